"""Straight-line programs of the LXE rolled into loops.

Stages of a layer are written down without loops, one instruction after the other, with every address as it is. `roll`
finds what repeats: a stretch of instructions that comes again and again and differs only in addresses, each of which
moves by the same step from one time to the next. `assemble` gives each distinct step a register.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from golden.function_params import check
from golden.program.isa import ADDR_BITS, LOOPS, PAYLOAD, Instruction, Opcode

LONGEST = 512  # items of a loop's body
_NAMES: dict[tuple, int] = {}


def _name(what: tuple) -> int:
    """A number for each distinct `what`: compared far faster."""
    return _NAMES.setdefault(what, len(_NAMES))


@dataclass(frozen=True)
class Op:
    """An instruction; `address` stands for its field `addr`, if it has one, which is 0 in `instruction`."""

    instruction: Instruction
    address: int | None = None

    size = 1  # instructions
    depth = 0  # of loops

    @cached_property
    def key(self) -> int:
        """Equal for what differs in addresses only."""
        return _name((self.instruction.op, *sorted(self.instruction.values.items())))

    @property
    def addresses(self) -> tuple[int, ...]:
        """Its address, if it has one."""
        return () if self.address is None else (self.address,)

    @property
    def bases(self) -> tuple[int, ...]:
        """The register that the address is added to."""
        return () if self.address is None else (self.instruction["base"],)


@dataclass(frozen=True)
class Loop:
    """`body`, `count` times or, with a `register`, as often as that says; address k moves by `steps[k]` each time.

    unit : what the register counts in: "" itself, its words ("unit") or pairs of words ("pair")
    after : what comes once behind it, with its addresses moved by as many steps (theirs come last in `steps`)
    """

    body: tuple["Op | Loop", ...]
    steps: tuple[int, ...]
    count: int = 0
    register: int = 0
    unit: str = ""
    after: tuple["Op | Loop", ...] = ()

    @cached_property
    def key(self) -> int:
        """Equal for what differs in addresses only."""
        parts = (tuple(item.key for item in items) for items in (self.body, self.after))
        return _name((self.count, self.register, self.unit, self.steps, *parts))

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Those of the first time."""
        return addresses(self.body + self.after)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """The registers that the addresses are added to."""
        return tuple(b for item in self.body + self.after for b in item.bases)

    @cached_property
    def size(self) -> int:
        """Instructions, about: two more for each pointer, one to set it and one to move it."""
        pointers = {(b, s) for b, s in zip(self.bases, self.steps, strict=True) if s}
        return 2 + sum(item.size for item in self.body + self.after) + 2 * len(pointers)

    @cached_property
    def depth(self) -> int:
        """Of loops in loops."""
        return max([1 + item.depth for item in self.body] + [item.depth for item in self.after])


Item = Op | Loop


def addresses(items: Sequence[Item]) -> tuple[int, ...]:
    """Addresses of items in order."""
    return tuple(a for item in items for a in item.addresses)


def repeat(
    register: int, unit: str, first: Sequence[Item], second: Sequence[Item], after: Sequence[Sequence[Item]] = ((), ())
) -> Loop:
    """A loop with a count in a register, from what its body is the first and the second time.

    after : what comes behind the loop when it is skipped, and when its body is executed once
    """
    bodies, ends = [tuple(roll(x)) for x in (first, second)], [tuple(roll(x)) for x in after]
    one, two = (body + end for body, end in zip(bodies, ends, strict=True))
    check([i.key for i in one] == [i.key for i in two], "body", len(first), "must differ in addresses only")
    return Loop(bodies[0], _steps(one, two), register=register, unit=unit, after=ends[0])


def roll(items: Sequence[Item]) -> list[Item]:
    """The same program with fewer instructions."""
    items, period = list(items), 1
    while period <= min(LONGEST, len(items) // 2):
        folded = _fold(items, period)
        period = 1 if len(folded) < len(items) else period + 1
        items = folded
    return items


def _fold(items: list[Item], period: int) -> list[Item]:
    """Items with every stretch of `period` that repeats, and is worth it, made a loop."""
    keys = np.array([item.key for item in items])
    same = keys[:-period] == keys[period:]
    ends = np.append(np.flatnonzero(~same), len(same))
    run = ends[np.searchsorted(ends, np.arange(len(same)))] - np.arange(len(same))  # equal ones from here on
    out, at = [], 0
    for start in np.flatnonzero(run >= period).tolist():
        if start < at:
            continue
        parts = [items[start + k * period :][:period] for k in range(run[start] // period + 1)]
        steps, count = _steps(parts[0], parts[1]), 2
        while count < len(parts) and _steps(parts[count - 1], parts[count]) == steps:
            count += 1
        loop = Loop(tuple(parts[0]), steps, count)
        if loop.depth <= LOOPS and loop.size < count * sum(item.size for item in parts[0]):
            out += [*items[at:start], loop]
            at = start + count * period
    return out + items[at:]


def _steps(first: Sequence[Item], second: Sequence[Item]) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(addresses(first), addresses(second), strict=True))


@dataclass
class _Assembler:
    free: list[int]  # registers
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
        wanted = dict.fromkeys((b, s) for b, s in zip(bases, loop.steps, strict=True) if s)
        used = Counter(b for b, _ in set(zip(bases, loop.steps, strict=True)))
        # A register that only moves by one step is moved itself, and back after the loop.
        moved = [want for want in wanted if want[0] and used[want[0]] == 1 and loop.count]
        copied = [want for want in wanted if want not in moved]
        check(
            len(copied) <= len(self.free), "registers", len(copied), f"a loop needs more than the {len(self.free)} free"
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
    """The instructions of items; loops take their pointers from the registers `free`.

    `ParamError` if these do not suffice.
    """
    assembler = _Assembler(list(free))
    assembler.emit(items, [b for item in items for b in item.bases])
    return assembler.out


def op(opcode: Opcode, **values: int) -> Op:
    """An instruction as an item; zeros may be given."""
    address = values.pop("addr", 0) if "addr" in PAYLOAD[opcode] else None
    return Op(Instruction(opcode, {k: int(v) for k, v in values.items() if v}), address)
