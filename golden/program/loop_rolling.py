"""Rolls straight-line programs of the LXE into loops, so that they fit in the program memory.

The layer compiler writes a stage without loops: one instruction after the other, each with its final address. `roll`
finds stretches of instructions that repeat and differ only in addresses, where each address moves by a constant step
from one repetition to the next. It replaces such a stretch by a `Loop`. `assemble` turns loops into instructions and
gives a pointer register to each distinct pair of base register and step. A stretch whose loops would need too many
stays as it is.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import ADDR_BITS, LOOPS, PAYLOAD, Instruction, Opcode

POINTERS = range(11, 16)  # registers for the pointers of loops
UNPLACED = 1 << 16  # address of the first word of a bank that has no place yet, above all other fields of a VECTOR
LONGEST = 512  # longest body of a loop that `roll` looks for, in items
_NAMES: dict[tuple, int] = {}


def _name(what: tuple) -> int:
    """A number that stands for `what`: numbers are compared far faster than tuples."""
    return _NAMES.setdefault(what, len(_NAMES))


@dataclass(frozen=True)
class Op:
    """One instruction of a straight-line program.

    The value of its field `addr` is kept in `address` and left out of `instruction`, so that equal instructions at
    different addresses compare equal. `address` is None for opcodes without that field. Fields of a VECTOR with words
    of banks that have no place yet, from `UNPLACED` on, are in `values` (`golden.program.placing`).
    """

    instruction: Instruction
    address: int | None = None
    values: tuple[tuple[str, int], ...] = ()

    size = 1  # instructions
    depth = 0  # loops inside

    @cached_property
    def key(self) -> int:
        """The same number for instructions that differ in addresses only."""
        return _name((self.instruction.op, *sorted(self.instruction.values.items()), *self.values))

    @property
    def vector(self) -> VectorInstruction:
        """The VPE's instruction that a VECTOR carries."""
        return replace(self.instruction.vector, **dict(self.values))

    @property
    def addresses(self) -> tuple[int, ...]:
        """The address, as a tuple of one, or of none."""
        return () if self.address is None else (self.address,)

    @property
    def bases(self) -> tuple[int, ...]:
        """The base register of each address."""
        return () if self.address is None else (self.instruction["base"],)


@dataclass(frozen=True)
class Loop:
    """A body of items that is repeated, each time with its addresses moved.

    body : the items, with the addresses of the first round
    steps : bytes by which each address moves from round to round; those of `body` first, then those of `after`
    count : rounds, if `register` is 0
    register : the register that holds the number of rounds, 0 for none
    unit : what the register counts: rounds (""), numbers in words of `lanes` ("unit") or in pairs of words ("pair")
    after : items that follow once, with their addresses moved by a step for each round
    """

    body: tuple["Op | Loop", ...]
    steps: tuple[int, ...]
    count: int = 0
    register: int = 0
    unit: str = ""
    after: tuple["Op | Loop", ...] = ()

    @cached_property
    def key(self) -> int:
        """The same number for loops that differ in addresses only."""
        parts = (tuple(item.key for item in items) for items in (self.body, self.after))
        return _name((self.count, self.register, self.unit, self.steps, *parts))

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Addresses of the first round."""
        return addresses(self.body + self.after)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """The base register of each address."""
        return tuple(b for item in self.body + self.after for b in item.bases)

    @cached_property
    def size(self) -> int:
        """Estimated instructions. Each pointer costs two: one sets it, one moves it."""
        pointers = {(b, s) for b, s in zip(self.bases, self.steps, strict=True) if s}
        return 2 + sum(item.size for item in self.body + self.after) + 2 * len(pointers)

    @cached_property
    def depth(self) -> int:
        """Loops inside each other, this one included."""
        return max([1 + item.depth for item in self.body] + [item.depth for item in self.after])


Item = Op | Loop


def addresses(items: Sequence[Item]) -> tuple[int, ...]:
    """All addresses of some items, in order."""
    return tuple(a for item in items for a in item.addresses)


def repeat(
    register: int,
    unit: str,
    first: Sequence[Item],
    second: Sequence[Item],
    after: Sequence[Sequence[Item]] = ((), ()),
    pointers: int = len(POINTERS),
) -> Loop:
    """A loop whose register holds the number of rounds. The steps of its addresses follow from two rounds.

    first, second : the body in the first and in the second round
    after : the items behind the loop if it runs no round, and if it runs one
    pointers : as of `roll`

    Raises `ParamError` if the two differ in more than addresses.
    """
    bodies, ends = [tuple(roll(x, pointers)) for x in (first, second)], [tuple(roll(x, pointers)) for x in after]
    one, two = (body + end for body, end in zip(bodies, ends, strict=True))
    check(
        [i.key for i in one] == [i.key for i in two],
        "body",
        len(first),
        "the two rounds must have the same instructions, except for addresses",
    )
    return Loop(bodies[0], _steps(one, two), register=register, unit=unit, after=ends[0])


def roll(items: Sequence[Item], pointers: int = len(POINTERS)) -> list[Item]:
    """The same program with repeated stretches rolled into loops, which take at most so many pointers at once."""
    items, period = list(items), 1
    while period <= min(LONGEST, len(items) // 2):
        folded = _fold(items, period, pointers)
        period = 1 if len(folded) < len(items) else period + 1
        items = folded
    return items


def _fold(items: list[Item], period: int, pointers: int) -> list[Item]:
    """Items with every repeated stretch of `period` items made a loop where that saves instructions."""
    keys = np.array([item.key for item in items])
    same = keys[:-period] == keys[period:]
    ends = np.append(np.flatnonzero(~same), len(same))
    run = ends[np.searchsorted(ends, np.arange(len(same)))] - np.arange(len(same))  # equal neighbours from here on
    out, at = [], 0
    for start in np.flatnonzero(run >= period).tolist():
        if start < at:
            continue
        parts = [items[start + k * period :][:period] for k in range(run[start] // period + 1)]
        steps, count = _steps(parts[0], parts[1]), 2
        while count < len(parts) and _steps(parts[count - 1], parts[count]) == steps:
            count += 1
        loop = Loop(tuple(parts[0]), steps, count)
        fits = loop.depth <= LOOPS and _pointers([loop], loop.bases) <= pointers
        if fits and loop.size < count * sum(item.size for item in parts[0]):
            out += [*items[at:start], loop]
            at = start + count * period
    return out + items[at:]


def _steps(first: Sequence[Item], second: Sequence[Item]) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(addresses(first), addresses(second), strict=True))


def _wanted(loop: Loop, bases: Sequence[Hashable]) -> tuple[list, list]:
    """The pairs of base and step that the loop moves, and those of which it needs a copy in another register."""
    pairs = list(zip(bases, loop.steps, strict=True))
    used = Counter(b for b, _ in set(pairs))
    wanted = dict.fromkeys((b, s) for b, s in pairs if s)
    # A register that only moves by one step is moved itself, and back after the loop.
    moved = [want for want in wanted if want[0] and used[want[0]] == 1 and loop.count]
    return moved, [want for want in wanted if want not in moved]


def _pointers(items: Sequence[Item], bases: Sequence[Hashable]) -> int:
    """Registers that `_Assembler` takes at once for the items, whose addresses have these bases."""
    most, bases = 0, list(bases)
    for item in items:
        own, bases = bases[: len(item.addresses)], bases[len(item.addresses) :]
        if isinstance(item, Loop):
            _, copied = _wanted(item, own)
            inside = [want if want in copied else want[0] for want in zip(own, item.steps, strict=True)]
            most = max(most, len(copied) + _pointers(item.body + item.after, inside))
    return most


@dataclass
class _Assembler:
    """Emits the instructions of items, with the bases of their addresses replaced by the pointers of loops."""

    free: list[int]  # registers that no loop in hand uses
    out: list[Instruction] = field(default_factory=list)

    def emit(self, items: Sequence[Item], bases: Sequence[int]) -> None:
        bases = list(bases)
        for item in items:
            own, bases = bases[: len(item.addresses)], bases[len(item.addresses) :]
            if isinstance(item, Op):
                values = item.instruction.values
                place = {} if item.address is None else {"base": own[0], "addr": item.address}
                self.out.append(Instruction(item.instruction.op, {k: v for k, v in (values | place).items() if v}))
            else:
                self._loop(item, own)

    def _loop(self, loop: Loop, bases: Sequence[int]) -> None:
        moved, copied = _wanted(loop, bases)
        check(
            len(copied) <= len(self.free),
            "registers",
            len(copied),
            f"a loop needs more pointer registers than the {len(self.free)} that are free",
        )
        pointers = {want: want[0] for want in moved} | {want: self.free.pop() for want in copied}
        for want in copied:
            self._add(pointers[want], want[0], 0)
        head = len(self.out)
        self.out.append(Instruction(Opcode.LOOP, {}))
        moving = [pointers.get(want, want[0]) for want in zip(bases, loop.steps, strict=True)]
        inside = len(addresses(loop.body))
        self.emit(loop.body, moving[:inside])
        for (_, step), register in pointers.items():
            self._add(register, register, step)
        how = {"len": loop.register} if loop.register else {"count": loop.count}
        how |= {loop.unit: 1} if loop.unit else {}
        self.out[head] = op(Opcode.LOOP, **how, end=len(self.out)).instruction
        self.out.append(Instruction(Opcode.END, {}))
        self.emit(loop.after, moving[inside:])
        for register, step in moved:
            self._add(register, register, -step * loop.count)
        self.free += [pointers[want] for want in copied]

    def _add(self, to: int, a: int, imm: int) -> None:
        self.out.append(Instruction(Opcode.ADD, {"to": to, "a": a, "imm": imm % (1 << ADDR_BITS)}))


def assemble(items: Sequence[Item], free: Sequence[int]) -> list[Instruction]:
    """The instructions of items. Loops take their pointers from the registers `free`.

    Raises `ParamError` if these registers do not suffice.
    """
    assembler = _Assembler(list(free))
    assembler.emit(items, [b for item in items for b in item.bases])
    return assembler.out


def op(opcode: Opcode, **values: int) -> Op:
    """An instruction as an item. `values` are its encoded fields; zeros may be given."""
    address = values.pop("addr", 0) if "addr" in PAYLOAD[opcode] else None
    return Op(Instruction(opcode, {k: int(v) for k, v in values.items() if v}), address)
