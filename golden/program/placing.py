"""Places the values of a stage in the VPE's banks: finds when each is alive, and gives it the first words free then.

A stage names values and the words that they need (`golden.program.compiler.Compiler.places`), and gets addresses above
all banks. Once it is written, and its loops are found, `place` replaces these. A word is alive from a write to the last
read behind it, and through the whole of a loop whose next round reads it. No value gets words that are alive while it
is written, nor does another get its words while they are alive: neither other values nor the row that a stage itself
puts at word 0. What an instruction reads counts as alive while it writes. A value has one address, in each of its
banks and wherever the stage takes it, so repeated instructions stay equal.

Only the VPE reaches its banks, in the order of the program. W and X of the DPE are not placed here: a LOAD fills one
half while a MUL reads the other, and semaphores, not the order of instructions, say when a half is free.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import Instruction, Opcode
from openvrex.golden.program.loop_rolling import UNPLACED, Item, Loop, Op

Values = dict[str, range]  # the addresses of each value before it has a place


def place(stage: str, items: Sequence[Item], values: Values, depth: int) -> list[Item]:
    """The items of a stage with the places of its values. Raises `ParamError` if a bank of `depth` words is full."""
    if not values:
        return list(items)
    lives, at = _Lives(values, depth), dict[str, int]()
    lives.before(items, 0)
    for name, words in values.items():
        taken = lives.beside[name] & (1 << depth) - 1
        for other, start in at.items():
            if (lives.beside[name] & lives.own[other]) | (lives.beside[other] & lives.own[name]):
                taken |= (1 << len(values[other])) - 1 << start
        need = (1 << len(words)) - 1
        free = (k for k in range(depth - len(words) + 1) if not taken & need << k)
        at[name] = next(free, depth)
        reason = f"words must be free in banks of {depth}, of which others hold {taken.bit_count()}: raise depth"
        check(at[name] < depth, f"{stage}: {name}", len(words), reason)
    places = {address: at[name] + k for name, words in values.items() for k, address in enumerate(words)}
    return _moved(items, places)


def _moved(items: Iterable[Item], places: dict[int, int]) -> list[Item]:
    out: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            item = replace(item, body=tuple(_moved(item.body, places)), after=tuple(_moved(item.after, places)))
        elif item.values:
            now = {field: places[address] for field, address in item.values}
            item = Op(Instruction(item.instruction.op, item.instruction.values | now))
        out.append(item)
    return out


class _Lives:
    """Which words are alive beside each value. A set of words is a number with a bit for each.

    Words of a bank come first, as the stage addresses them, then those of values. Sets of all three banks have the bits
    of bank A, then those of B and C.
    """

    def __init__(self, values: Values, depth: int):
        self.values, self.depth = values, depth
        self.size = depth + sum(map(len, values.values()))
        self.own = {name: self._set(words) for name, words in values.items()}
        self.beside: defaultdict[str, int] = defaultdict(int)

    def _set(self, addresses: Iterable[int]) -> int:
        words = (a % self.depth if a < UNPLACED else a - UNPLACED + self.depth for a in addresses)
        return sum(1 << word for word in set(words))

    def before(self, items: Sequence[Item], alive: int) -> int:
        """What is alive before some items, from what is alive behind them."""
        for item in reversed(items):
            if isinstance(item, Loop):
                alive = self.before(item.after, alive)
                first = self.before(item.body, alive)  # of the last round
                alive = self.before(item.body, alive | first) | (alive if item.register else 0)
            elif item.instruction.op == Opcode.VECTOR:
                reads, writes, surely = self._used(item)
                self._note(alive | reads | writes, writes)
                alive = alive & ~surely | reads
        return alive

    def _note(self, alive: int, writes: int) -> None:
        bank = (1 << self.size) - 1
        while writes:
            for name, own in self.own.items():
                if alive & own:
                    self.beside[name] |= (alive if writes & own else writes) & bank & ~own
            alive, writes = alive >> self.size, writes >> self.size

    def _used(self, op: Op) -> tuple[int, int, int]:
        """What a VECTOR reads, what it may write, and what it surely writes.

        Where a register counts words, it takes all behind the first, of a value or of the bank. Then it surely writes
        no word that the stage addresses itself.
        """
        step, counted, unwrapped = op.vector, op.instruction["len"], 2 * UNPLACED

        def used(bank: int, addresses: Iterable[int]) -> int:
            addresses = [int(a) for a in addresses]
            if counted:
                first = addresses[0]
                held = (words.stop for words in self.values.values() if first in words)
                addresses = list(range(first, next(held, self.depth)))
            return self._set(addresses) << bank * self.size

        read = [step.store_places(unwrapped)] if step.op == VectorOp.STORE else step.places(unwrapped)
        written = [used(bank, step.results(unwrapped)) for bank in step.into] if step.op != VectorOp.STORE else []
        reads, writes = (sum(sets) for sets in ([used(*place) for place in read], written))
        return reads, writes, 0 if counted and step.addr_d < UNPLACED else writes
