"""Writes programs as straight-line instructions: control flow, transfers, and how W and X are used in halves.

Addresses are final. A program holds loops only where a register gives the number of rounds;
`golden.program.loop_rolling` finds all other loops.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Protocol

import numpy as np

from openvrex.golden.arithmetic.vector import SCALARS, Format
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.isa import LoadTo, LxeFormat, Opcode, Queue, StoreTo, vector
from openvrex.golden.program.layer_memory import Array, Register
from openvrex.golden.program.loop_rolling import POINTERS, UNPLACED, Item, Loop, Op, addresses, op, repeat, roll
from openvrex.golden.program.placing import Values, place
from openvrex.golden.program.recipes import STREAM, Scalar, Words
from openvrex.golden.program.schedule import schedule

# Semaphores: a half of W and X is free, a half is filled, a stage is in memory, X holds no query that is still needed.
FREE, FULL, STORED, QUERIES = range(4)
# Added to a small register it gives a negative count, so that the instruction only waits and signals.
NEVER = -(1 << 15)


@lru_cache(maxsize=4096)
def vector_item(header: tuple[tuple[str, int], ...], **fields: int) -> Op:
    """A VECTOR as an item: fields of its header, and those of the VPE's instruction. Cached, as many are equal."""
    values = {name: x for name, x in fields.items() if x >= UNPLACED}
    i = vector(VectorInstruction(**fields | dict.fromkeys(values, 0)), **dict(header))
    return Op(i, values=tuple(values.items()))


class Sizes(Protocol):
    """What stages read of their plan (`golden.program.stage_plan.Plan`)."""

    fmt: LxeFormat
    pointers: Sequence[int]  # registers for the pointers of loops

    def __getitem__(self, name: str) -> Array: ...


class Compiler:
    """Writes the stages of a plan, one method each, into `items`.

    W and X are used in halves: LOADs fill one half while the DPE reads the other. `half` is the one that the next step
    takes.
    """

    plan: Sizes

    def __init__(self, plan: Sizes):
        self.plan, self.fmt = plan, plan.fmt
        self.items: list[Item] = []
        self.half = 0
        self.unplaced: Values = {}  # of the stage, by their names
        self.free = list(map(Scalar, range(SCALARS)))  # scalar registers that no value holds
        self.reads: dict[str, None] = {}  # names of the arrays that LOADs take, in the order of their first use
        self.writes: dict[str, None] = {}  # the same for STOREs and fetched entries

    # Control flow

    @contextmanager
    def block(self) -> Iterator[list[Item]]:
        """Collect what is written inside, instead of adding it to the program."""
        outer, self.items = self.items, []
        try:
            yield self.items
        finally:
            self.items = outer

    @contextmanager
    def loop(self, register: int = 0, count: int = 0, unit: str = "") -> Iterator[None]:
        """What is written inside runs as often as the register or `count` says, each time at the same addresses."""
        with self.block() as body:
            yield
        items = tuple(roll(body, len(self.plan.pointers)))
        self.items.append(Loop(items, (0,) * len(addresses(items)), count, register, unit))

    @contextmanager
    def overlapped(self, most: int = 1) -> Iterator[None]:
        """What is written inside, without loops, runs in the order that `golden.program.schedule` finds.

        LOADs and MULs stay in order and ahead of their VECTOR, STOREs behind it; so only a STORE must not signal what a
        LOAD or a MUL inside waits for.

        most : words of a VECTOR that a register counts
        """
        with self.block() as items:
            yield
        groups: list[list[Op]] = [[]]
        steps: list[VectorInstruction] = []
        for item in items:
            assert isinstance(item, Op)
            i = item.instruction
            if groups[-1] and i.op != Opcode.STORE and len(steps) == len(groups):
                groups.append([])
            groups[-1].append(item)
            if i.op == Opcode.VECTOR:
                steps.append(replace(item.vector, words=most - 1) if i["len"] else item.vector)
        streams = tuple(group[0].instruction.op != Opcode.VECTOR for group in groups)
        depth = 2 * UNPLACED if self.unplaced else self.fmt.depth
        for k in schedule(tuple(steps), self.fmt.vector, streams, depth):
            self.items += groups[k]

    def when(self, register: int) -> AbstractContextManager[None]:
        """What is written inside runs if the register holds 1, and does not if it holds 0."""
        return self.loop(register)

    def above_zero(self, register: int, unit: str = "unit", yes: int = 1, to: int = POINTERS[0]) -> int:
        """Register `to` = `yes` if another is above 0, where it counts `unit`, else 1 - `yes`. Returns `to`."""
        self.items.append(op(Opcode.SET, to=to, imm=1 - yes))
        with self.loop(register, unit=unit):
            self._emit(Opcode.SET, to=to, imm=yes)
        return to

    def rounds(self, register: int, unit: str = "", behind: Callable[[int], None] | None = None) -> Iterator[int]:
        """The rounds of a loop that the register counts, to be written twice: their addresses tell how each moves.

        behind : writes what follows the loop if it runs no round, and if it runs one
        """
        bodies: list[list[Item]] = []
        ends: list[list[Item]] = []
        for k in range(2):
            with self.block() as body:
                yield k
            with self.block() as end:
                if behind:
                    behind(k)
            bodies.append(body)
            ends.append(end)
        self.items.append(repeat(register, unit, bodies[0], bodies[1], ends, len(self.plan.pointers)))

    def fence(self, engine: Opcode, wait: tuple[int, ...] = (), signal: tuple[int, ...] = ()) -> None:
        """Make an engine wait for semaphores before what follows, and signal others once all before is done."""
        self._emit(engine, len=Register.REST, add=NEVER, **semaphores(wait, signal))

    @contextmanager
    def scalars(self, count: int) -> Iterator[list[Scalar]]:
        """Scalar registers for values that live inside. Those that another method takes meanwhile are others."""
        assert count <= len(self.free), "the VPE has no more scalar registers"
        taken, self.free = self.free[:count], self.free[count:]
        yield taken
        self.free = taken + self.free

    def places(self, **words: int) -> SimpleNamespace:
        """The first of the words that each value of the stage takes in banks: as many as it is first asked for."""
        for name, count in words.items():
            behind = UNPLACED + sum(map(len, self.unplaced.values()))
            own = self.unplaced.setdefault(name, range(behind, behind + count))
            assert count <= len(own), f"{name} has fewer words"
        return SimpleNamespace(**{name: self.unplaced[name].start for name in words})

    def stage(self, name: str, items: Sequence[Item]) -> list[Item]:
        """What is written of a stage, with loops, and with its values in their places."""
        out = place(name, roll(items, len(self.plan.pointers)), self.unplaced, self.fmt.depth)
        self.unplaced = {}
        return out

    # Instructions

    def _emit(self, opcode: Opcode, **values: int) -> None:
        self.items.append(op(opcode, **values))

    def load(
        self, array: Array, at: int, rows: int, words: int, stride: int, target: LoadTo, wait=(), signal=(), **more: int
    ) -> None:
        """LOAD `rows` rows of `words` words, the first from number `at` of the array, each `stride` numbers further."""
        self.reads[array.name] = None
        fields = _place(array, at, rows, words, stride) | {"target": target} | semaphores(wait, signal)
        self._emit(Opcode.LOAD, **fields | more)

    def store(self, array: Array, at: int, rows: int, words: int, stride: int, **more: int) -> None:
        """STORE the VPE's output in an array, with the arguments of `load`."""
        self.writes[array.name] = None
        self._emit(Opcode.STORE, **_place(array, at, rows, words, stride) | {"target": StoreTo.MEMORY} | more)

    def vector(self, words: Words = 1, source: int = Queue.MUL, keep: int | None = None, **fields: int) -> None:
        """VECTOR on `words` words; a dict instead holds the fields `len`, `add`, `pair` that count them.

        Lanes of the last word above `keep` take no part in a reduction.
        """
        counted, words = (words, 1) if isinstance(words, dict) else ({}, words)
        header = (("source", int(source)), *counted.items())
        keep = self.fmt.lanes - 1 if keep is None else keep
        self.items.append(vector_item(header, words=words - 1, keep=keep, **{k: int(v) for k, v in fields.items()}))

    def out(self, words: Words, wide: bool = False, at: int = 0, **more: int) -> None:
        """Put words of bank C (`wide`) or B, from word `at`, on the VPE's output."""
        form = Format.WIDE if wide else Format.HALF
        self.vector(words, op=VectorOp.STORE, addr_b=at, addr_c=at, format=form, **more)

    def take(
        self, array: Array, at: int, words: Words, write=0, to: int = 0, rows: int = 1, stride: int = 0, **fields: int
    ) -> None:
        """LOAD rows of words, with the arguments of `load`, and write them to banks from word `to`.

        fields : of the VECTOR, which may compute with them on the way
        """
        words, size, counted = self._run(words, rows, stride)
        self.load(array, at, *size, LoadTo.VECTOR, **counted)
        given = {"a": int(STREAM), "wide": int(array.dtype == np.float32), "write": write, "addr_d": to} | fields
        self.vector(words, Queue.LOAD, **given)

    def give(
        self, array: Array, at: int, words: Words, of: int = 0, rows: int = 1, stride: int = 0, **more: int
    ) -> None:
        """STORE rows of words, with the arguments of `store`, from word `of` of bank B, or of bank C if FP32."""
        words, size, counted = self._run(words, rows, stride)
        self.out(words, array.dtype == np.float32, of)
        self.store(array, at, *size, **counted | more)

    def _run(self, words: Words, rows: int, stride: int) -> tuple[Words, tuple[int, int, int], dict[str, int]]:
        """All words; rows, words and stride of their transfer; the fields that count its rows."""
        if isinstance(words, int):
            return rows * words, (rows, words, stride), {}
        return words, (1, 1, self.fmt.lanes), words if "pair" in words else words | {"unit": 1}

    def begin(self) -> None:
        """Make the following LOADs wait until the stage before is in memory."""
        self.fence(Opcode.LOAD, wait=(STORED,))

    def end(self) -> None:
        """Signal once all STOREs so far are in memory."""
        self.fence(Opcode.STORE, signal=(STORED,))

    def turn(self) -> tuple[int, int]:
        """Take turns between the halves; the first words in W and X of the half for the next step."""
        half, self.half = self.half, 1 - self.half
        return half * (self.fmt.w_depth // 2), half * (self.fmt.x_depth // 2)

    def mul(
        self, w: int, x: int, rows: int, tiles: int, chunks: int, x_step: int, wait=(FULL,), signal=(FREE,)
    ) -> None:
        """MUL of a step. If not said otherwise, it waits until its half is filled, and frees the half when done."""
        size = {"rows": rows - 1, "tiles": tiles - 1, "chunks": chunks - 1, "keep": self.fmt.lanes - 1}
        whole = {"x_step": x_step, "start": 1, "end": 1} | semaphores(wait, signal)
        self._emit(Opcode.MUL, w=w, x=x, **size, **whole)


def _place(array: Array, at: int, rows: int, words: int, stride: int) -> dict[str, int]:
    """The fields of a transfer that say where its words are in memory."""
    size, wide = np.dtype(array.dtype).itemsize, array.dtype == np.float32
    where = {"base": array.base, "addr": array.offset + at * size, "stride": stride * size, "wide": wide}
    return where | {"rows": rows - 1, "words": words - 1}


def semaphores(wait: tuple[int, ...], signal: tuple[int, ...]) -> dict[str, int]:
    """The fields `wait` and `signal` for the given numbers of semaphores."""
    return {"wait": sum(1 << s for s in wait), "signal": sum(1 << s for s in signal)}
