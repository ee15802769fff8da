"""Writes the stages of a layer's program around its attention as straight-line instructions: norms, GEMMs, rotary.

Each stage is a method of `Compiler` that appends instructions with their final addresses. The stages hold loops only
where a register gives the number of rounds; `golden.program.loop_rolling` finds all other loops.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Protocol

import numpy as np
from openvrex.golden.arithmetic.vector import Bank, Format, Post, Reduce, Swap
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.isa import LoadTo, LxeFormat, Opcode, Queue, StoreTo, vector
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Tiling, divisors
from openvrex.golden.program.loop_rolling import POINTERS, Item, Loop, Op, addresses, op, repeat, roll
from openvrex.golden.program.recipes import BANK, SCALAR, STREAM, Row, Words, root_mean_square, rotate

# Semaphores: a half of W and X is free, a half is filled, a stage is in memory, X holds no query that is still needed.
FREE, FULL, STORED, QUERIES = range(4)
# Added to a small register it gives a negative count, so that the instruction only waits and signals.
NEVER = -(1 << 15)


@lru_cache(maxsize=4096)
def vector_item(header: tuple[tuple[str, int], ...], **fields: int) -> Op:
    """A VECTOR as an item: fields of its header, and those of the VPE's instruction. Cached, as many are equal."""
    return Op(vector(VectorInstruction(**fields), **dict(header)))


class Sizes(Protocol):
    """What stages read of their plan (`golden.program.stage_plan.Plan`)."""

    shape: LayerShape
    fmt: LxeFormat

    def __getitem__(self, name: str) -> Array: ...


class Compiler:
    """Writes the stages of a plan, one method each, into `items`.

    W and X are used in halves: LOADs fill one half while the DPE reads the other. `half` is the one that the next step
    takes. The register `second` has the address of the entries that go to the start of the ring.
    """

    second = Register.KV

    plan: Sizes

    def __init__(self, plan: Sizes):
        self.plan, self.shape, self.fmt = plan, plan.shape, plan.fmt
        self.items: list[Item] = []
        self.half = 0

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
        items = tuple(roll(body))
        self.items.append(Loop(items, (0,) * len(addresses(items)), count, register, unit))

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
        self.items.append(repeat(register, unit, bodies[0], bodies[1], ends))

    def fence(self, engine: Opcode, wait: tuple[int, ...] = (), signal: tuple[int, ...] = ()) -> None:
        """Make an engine wait for semaphores before what follows, and signal others once all before is done."""
        self._emit(engine, len=Register.REST, add=NEVER, **semaphores(wait, signal))

    # Instructions

    def _emit(self, opcode: Opcode, **values: int) -> None:
        self.items.append(op(opcode, **values))

    def load(
        self, array: Array, at: int, rows: int, words: int, stride: int, target: LoadTo, wait=(), signal=(), **more: int
    ) -> None:
        """LOAD `rows` rows of `words` words, the first from number `at` of the array, each `stride` numbers further."""
        fields = _place(array, at, rows, words, stride) | {"target": target} | semaphores(wait, signal)
        self._emit(Opcode.LOAD, **fields | more)

    def store(self, array: Array, at: int, rows: int, words: int, stride: int, **more: int) -> None:
        """STORE the VPE's output in an array, with the arguments of `load`."""
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

    def scalar(self, to: int, **fields: int) -> None:
        """Compute with scalar operands; the result goes to scalar register `to`."""
        self.vector(a=SCALAR, reduce=Reduce.LAST, scalar_d=to, keep=0, **fields)

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

    def mul(self, w: int, x: int, rows: int, tiles: int, chunks: int, x_step: int) -> None:
        """MUL of a step. It waits until its half is filled, and frees the half when it is done."""
        size = {"rows": rows - 1, "tiles": tiles - 1, "chunks": chunks - 1, "keep": self.fmt.lanes - 1}
        whole = {"x_step": x_step, "start": 1, "end": 1} | semaphores((FULL,), (FREE,))
        self._emit(Opcode.MUL, w=w, x=x, **size, **whole)

    # Stages

    def norm(self, x: Array, weight: Array, y: Array, scaled: Array | None = None) -> None:
        """RMSNorm of every token; the weight comes from memory for each token.

        scaled : where the numbers go, too, as they are before the weight, rounded
        """
        length, n = self.shape.width, self.fmt.lanes
        words = length // n
        for t in range(self.shape.tokens):
            self.take(x, t * length, words, Bank.A | Bank.B, post=Post.ROUND)
            root_mean_square(self, Row(0, words), length, self.shape.epsilon)
            if scaled:
                self.vector(words, a=BANK, post=Post.ROUND, write=Bank.B)
                self.give(scaled, t * length, words)
            self.take(weight, 0, words, Bank.B, a=BANK, b=STREAM, post=Post.ROUND)
            self.give(y, t * length, words)

    def gemm(
        self,
        x: Array,
        weight: Array,
        cut: Tiling,
        y: Array,
        gated: bool = False,
        blocks: range | None = None,
        first: int = 0,
        part: bool = False,
        add: bool = False,
    ) -> None:
        """y = x W^T. The product is added to y if y is FP32.

        x : [segments, tokens, numbers]; K runs through the segments
        y : [tokens, numbers], or [segments, tokens, numbers] if no block crosses a segment
        gated : SiLU of each even block times the odd block behind it
        blocks : the blocks of W to compute, all if not given
        first : the number of K where the rows of W begin, where W holds a slice of K; no step may cross a segment
        part : whether the product of that slice replaces y, which is FP32, for `total` to add
        add : whether the product is added to y, which is BF16: the sum is FP32, rounded once at its end
        """
        n, tokens = self.fmt.lanes, self.shape.tokens
        segment = x.shape[-1]
        numbers, many = cut.words * n, tokens * cut.tiles
        size = cut.tiles * n * numbers  # weights of a step
        row = y.shape[-1]
        wide = y.dtype == np.float32
        residual = add or (wide and not part)
        for block in range(cut.blocks) if blocks is None else blocks:
            gate, up = gated and block % 2 == 0, gated and block % 2 == 1
            segment_y, to = divmod((block // 2 if gated else block) * cut.tiles * n, row)
            to += segment_y * tokens * row
            for k in range(cut.slices):
                w_at, x_at = self.turn()
                step = block * cut.slices + k
                of_step = {"step": cut.words}
                self.load(weight, step * size, cut.tiles * n, cut.words, numbers, LoadTo.W, (FREE,), to=w_at, **of_step)
                which, rest = divmod(first + k * numbers, segment)
                at = which * tokens * segment + rest
                self.load(x, at, tokens, cut.words, segment, LoadTo.X, (), (FULL,), to=x_at, **of_step)
                if residual and k == 0:
                    self.take(y, to, cut.tiles, Bank.C, rows=tokens, stride=row)
                self.mul(w_at, x_at, tokens, cut.tiles, cut.words, cut.words)
                more: dict[str, int] = {"c": BANK} if k or residual else {}
                result: dict[str, int]
                if k < cut.slices - 1 or wide:
                    result = {"write": Bank.C}
                elif up:
                    result = {"write": Bank.A}
                else:
                    result = {"write": Bank.B, "post": Post.SILU if gate else Post.ROUND}
                self.vector(many, a=STREAM, wide=1, **more, **result)
            if gate:
                continue
            if up:
                self.vector(many, a=BANK, b=BANK, post=Post.ROUND, write=Bank.B)
            self.give(y, to, cut.tiles, rows=tokens, stride=row)

    def total(self, parts: Array, y: Array, columns: range) -> None:
        """Add partial products to `columns` of y: y + part 0 + part 1 and so on, each sum rounded to FP32.

        parts : [parts, tokens, numbers], FP32 · y : [tokens, numbers], FP32
        columns : the first number and the end, multiples of `lanes`; may be empty
        """
        count, tokens, row = parts.shape
        for at, words in self.columns(len(columns)) if columns else ():
            self.take(y, columns.start + at, words, Bank.C, rows=tokens, stride=row)
            for k in range(count):
                self.take(parts, k * tokens * row + columns.start + at, words, Bank.C, rows=tokens, stride=row, c=BANK)
            self.give(y, columns.start + at, words, rows=tokens, stride=row)

    def rotary(self) -> None:
        """Rotate queries and keys from `qkv`; put keys and values together as entries."""
        self.queries(self.plan["q"])
        self.entries()

    def queries(self, to: Array, heads: range | None = None) -> None:
        """Rotate query heads from `qkv`, all if not given, and store them in `to`."""
        s = self.shape

        def place(h: int, first: int) -> tuple[Array, int, int]:
            g, j = divmod(h, s.group)
            return to, ((g * s.tokens + first) * s.group + j) * s.head_size, s.group * s.head_size

        self.turn_heads(range(s.heads) if heads is None else heads, 0, place)

    def entries(self) -> None:
        """Rotate the keys from `qkv` and store them with the values as entries in `fresh`."""
        s, p = self.shape, self.plan
        fresh = p["fresh"]

        def place(h: int, first: int) -> tuple[Array, int, int]:
            return fresh, first * s.entry + (h - s.heads) * s.head_size, s.entry

        self.turn_heads(range(s.heads, s.heads + s.kv_heads), 1, place)
        row, half = p["qkv"].shape[-1], s.kv_heads * s.head_size
        for at, words in self.columns(half):
            self.take(p["qkv"], row - half + at, words, Bank.B, rows=s.tokens, stride=row)
            self.give(fresh, half + at, words, rows=s.tokens, stride=s.entry)

    def turn_heads(
        self,
        heads: range,
        which: int,
        place: Callable[[int, int], tuple[Array, int, int]],
        of: Array | None = None,
        load: dict[str, int] | None = None,
        store: dict[str, int] | None = None,
    ) -> None:
        """Rotate heads of `qkv`, some tokens at a time, by the tables `which` (0: queries, 1: keys) in bank A.

        place : takes a head and a first token. It gives the array, the number in it where the first row is stored, and
            the distance between rows in numbers
        of : an array [tokens, heads * head size] in place of `qkv`
        load, store : more fields of the instructions that load and store heads
        """
        s, p, n = self.shape, self.plan, self.fmt.lanes
        head, period = s.head_size, s.head_size // n
        at_once = max(d for d in divisors(s.tokens) if 2 * d * period <= self.fmt.depth)
        words = at_once * period
        of = of or p["qkv"]
        row = of.shape[-1]
        for first in range(0, s.tokens, at_once):
            for k in range(2):
                at = ((which * 2 + k) * s.tokens + first) * head
                self.take(p["tables"], at, words, Bank.A, k * words)
            for h in heads:
                self.load(of, first * row + h * head, at_once, period, row, LoadTo.VECTOR, **load or {})
                self.vector(words, Queue.LOAD, a=STREAM, post=Post.ROUND, write=Bank.B)
                rotate(self, Row(0, words), 0, words, Swap.HALF + period.bit_length() - 1, words)
                self.out(words, at=words)
                array, at, apart = place(h, first)
                self.store(array, at, at_once, period, apart, **store or {})

    def columns(self, numbers: int) -> list[tuple[int, int]]:
        """Cut rows of `numbers` numbers into columns that a bank holds for all tokens: first number, words."""
        n = self.fmt.lanes
        words = max(d for d in divisors(numbers // n) if d * self.shape.tokens <= self.fmt.depth)
        return [(at, words) for at in range(0, numbers, words * n)]

    def append(self) -> None:
        """Copy the entries of the pass to the ring: FIRST of them to SLOT, then REST to `second`."""
        s, p = self.shape, self.plan
        for at, words in self.columns(s.entry):
            self.take(p["fresh"], at, words, Bank.B, rows=s.tokens, stride=s.entry)
            self.out(s.tokens * words)
            self.store(p["ring"], at, 1, words, s.entry, base=Register.SLOT, len=Register.FIRST)
            self.store(p["ring"], at, 1, words, s.entry, base=self.second, len=Register.REST)


def _place(array: Array, at: int, rows: int, words: int, stride: int) -> dict[str, int]:
    """The fields of a transfer that say where its words are in memory."""
    size, wide = np.dtype(array.dtype).itemsize, array.dtype == np.float32
    where = {"base": array.base, "addr": array.offset + at * size, "stride": stride * size, "wide": wide}
    return where | {"rows": rows - 1, "words": words - 1}


def semaphores(wait: tuple[int, ...], signal: tuple[int, ...]) -> dict[str, int]:
    """The fields `wait` and `signal` for the given numbers of semaphores."""
    return {"wait": sum(1 << s for s in wait), "signal": sum(1 << s for s in signal)}
