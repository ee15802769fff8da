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

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import Instruction, Opcode
from openvrex.golden.program.loop_rolling import UNPLACED, Item, Loop

Values = dict[str, range]  # the addresses of each value before it has a place


def place(stage: str, items: Sequence[Item], values: Values, depth: int) -> list[Item]:
    """The items of a stage with the places of its values. Raises `ParamError` if a bank of `depth` words is full."""
    if not values:
        return list(items)
    lives, places = _Lives(values, depth), dict[int, int]()
    lives.before(items, 0)
    taken: dict[str, int] = {}  # the words of each value, as a set of bits
    for name, words in values.items():
        near = lives.near[name]
        full = near & (1 << depth) - 1
        for other, held in taken.items():
            full |= held if near & lives.own[other] or lives.near[other] & lives.own[name] else 0
        need = (1 << len(words)) - 1
        at = next((k for k in range(depth - len(words) + 1) if not full & need << k), depth)
        reason = f"words must be free in banks of {depth}, of which others hold {full.bit_count()}: raise depth"
        check(at < depth, f"{stage}: {name}", len(words), reason)
        taken[name] = need << at
        places |= {address: at + k for k, address in enumerate(words)}
    return [_moved(item, places) for item in items]


def _moved(item: Item, places: dict[int, int]) -> Item:
    if isinstance(item, Loop):
        body, after = (tuple(_moved(x, places) for x in some) for some in (item.body, item.after))
        return replace(item, body=body, after=after)
    own = {field: places[address] for field, address in item.values}
    return replace(item, instruction=Instruction(item.instruction.op, item.instruction.values | own), values=())


class _Lives:
    """Which words are alive beside each value. A number is a set of words, with a bit for each.

    Words of a bank come first, as the stage addresses them, then those of values. A set of all three banks has those of
    bank A, then those of B and C.
    """

    def __init__(self, values: Values, depth: int):
        self.values, self.depth = values, depth
        self.size = depth + sum(map(len, values.values()))
        self.own = {name: self._set(words) for name, words in values.items()}
        self.near = dict.fromkeys(values, 0)  # what is alive in a bank while the value is written, and the reverse

    def _set(self, addresses: Iterable[int]) -> int:
        words = {a % self.depth if a < UNPLACED else a - UNPLACED + self.depth for a in addresses}
        return sum(1 << word for word in words)

    def before(self, items: Sequence[Item], alive: int) -> int:
        """What is alive before some items, from what is alive behind them."""
        for item in reversed(items):
            if isinstance(item, Loop):
                alive = self.before(item.after, alive)
                first = self.before(item.body, alive)  # of the last round
                alive = self.before(item.body, alive | first) | (alive if item.register else 0)
            elif item.instruction.op == Opcode.VECTOR:
                step, counted, whole = item.vector, item.instruction["len"], 2 * UNPLACED
                stores = step.op == VectorOp.STORE
                reads = self._used([step.store_places(whole)] if stores else step.places(whole), counted)
                writes = 0 if stores else self._used([(k, step.results(whole)) for k in step.into], counted)
                for bank in range(3):
                    self._note(*(x >> bank * self.size & (1 << self.size) - 1 for x in (alive | reads, writes)))
                # Of words that the stage itself addresses, a register says how many are written.
                alive = alive & ~(0 if counted and step.addr_d < UNPLACED else writes) | reads
        return alive

    def _note(self, alive: int, writes: int) -> None:
        for name, own in self.own.items():
            self.near[name] |= (alive | writes if writes & own else writes if alive & own else 0) & ~own

    def _used(self, places: Iterable[tuple[int, np.ndarray]], counted: int) -> int:
        """Words of banks. Where a register counts them, all behind the first, of a value or of the bank."""
        out = 0
        for bank, addresses in places:
            first, words = int(addresses[0]), addresses.tolist()
            if counted:
                end = (own.stop for own in self.values.values() if first in own)
                words = range(first, next(end, self.depth))
            out |= self._set(words) << bank * self.size
        return out
