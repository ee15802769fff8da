"""The layer compiler: a Llama-style decoder layer as a program of the LXE (`golden.isa`).

A pass takes the hidden states of `tokens` tokens through one layer, in stages one after the other:

=========  ===========================================================================================================
norm1      RMSNorm of each token: `golden.vector_programs.rms_norm`
qkv        queries, keys and values: GEMM
rotary     queries and keys turned (pairs i and i + head / 2); keys and values put together as entries
append     the pass's entries to their slots of the ring
scores     queries against all keys of the ring and all entries behind it, FP32
softmax    each row of scores, with an additive mask: `vector_programs.softmax`; probabilities are BF16
values     probabilities against the values
output     output projection, added to the hidden states
norm2      as norm1
gate_up    SiLU(gate) * up
down       added to the hidden states
=========  ===========================================================================================================

Hidden states are FP32 in memory, everything else BF16. A stage begins when all of the one before is in memory.

GEMM, y = x W^T: N is cut in blocks of tiles of `lanes` outputs, K in slices; a step loads one slice of a block's
weights and of the activations into a half of W and of X while the DPE works on the other half. Sums of a slice are
dot products of the DPE (`golden.dot`), FP32, and are added up in bank C of the VPE in FP32: in the order of the slices,
after the residual, if there is one. Weights lie in memory in the order in which they are loaded.

Scores and values are the same steps with keys and transposed values for weights, one tile of `lanes` entries a step.

Entries are kept in whole: the keys of all KV heads, then the values. The ring holds the last `recent` tokens, those of
the pass included: token t in slot t mod recent. Behind it lie up to `entries` more (sinks and what was fetched), as
many as the register ENTRIES says when `scores` begins; keys are multiplied in pairs of tiles, so some beyond them,
which are masked, as are slots of the ring that a token does not see: the host's mask says which. All that is masked
must be finite: memory is zero at first.

Rows of attention are ordered by KV head, token and query head of its group.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np

from golden.isa import ADDR_BITS, ENGINE, Instruction, LoadTo, LxeFormat, Opcode, Queue, StoreTo, vector
from golden.loops import Item, Loop, Op, assemble, op, repeat, roll
from golden.lxe_sequence import register_values, sequence
from golden.numerics import BF16, to_bf16
from golden.params import check, check_ints
from golden.vector import MINUS_ZERO, ONE, Bank, Format, Post, Reduce, Source, Swap
from golden.vector import Instruction as VectorInstruction
from golden.vector import Op as VectorOp

BANK, STREAM, SCALAR, IMMEDIATE = Source


class Register(IntEnum):
    """What the host puts into registers before a pass; the others are the program's."""

    WEIGHTS = 1  # address of the layer's weights
    KV = 2  # address of its entries
    SLOT = 3  # address of the slot of the pass's first token
    FIRST = 4  # tokens of the pass from there to the ring's end
    REST = 5  # those that go on at the ring's start
    ENTRIES = 6  # behind the ring; read from the stage `scores` on
    TAIL = 7  # the program's: bytes to the mask of the last tile with an entry


POINTERS = range(8, 16)  # of the program's loops
# Semaphores: a half of W and X is free; filled; a stage is in memory; X holds no queries that are still needed.
FREE, FULL, STORED, QUERIES = range(4)
_NEVER = -(1 << 15)  # added to a small register gives a count below zero: the instruction only waits and signals


@dataclass(frozen=True)
class LayerShape:
    """A layer and its pass: sizes of vectors in numbers, `tokens` of a pass, slots of the ring, entries behind it."""

    width: int = 576
    heads: int = 9
    kv_heads: int = 3
    head_size: int = 64
    ffn: int = 1536
    tokens: int = 10
    recent: int = 256
    entries: int = 256
    epsilon: float = 1e-5

    def __post_init__(self):
        check_ints(self)
        for name in ("width", "heads", "kv_heads", "head_size", "ffn", "tokens", "recent"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.entries >= 0, "entries", self.entries, "must not be negative")
        check(self.heads % self.kv_heads == 0, "heads", self.heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        check(self.tokens <= self.recent, "tokens", self.tokens, f"must be at most recent = {self.recent}")

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of attention of a KV head."""
        return self.tokens * self.group

    @property
    def entry(self) -> int:
        """Numbers of an entry."""
        return 2 * self.kv_heads * self.head_size


@dataclass(frozen=True)
class Array:
    """An array in memory, `offset` bytes behind the register `base` (0: address 0)."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: type
    base: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class Space:
    """Arrays one after the other behind a register, each at a multiple of `align` bytes."""

    def __init__(self, align: int, base: int = 0):
        self.align, self.base, self.size = align, base, 0
        self.arrays: dict[str, Array] = {}

    def add(self, name: str, shape: tuple[int, ...], dtype: type) -> Array:
        """A new array."""
        a = self.arrays[name] = Array(name, self.size, shape, dtype, self.base)
        self.size += -(-a.size // self.align) * self.align
        return a


@dataclass(frozen=True)
class Tiling:
    """How a GEMM is cut: `blocks` blocks of `tiles` tiles of outputs, `slices` slices of `words` words of K."""

    blocks: int
    tiles: int
    slices: int
    words: int


@dataclass
class Work:
    """What a stage does in a pass.

    issued : instructions of the four engines · loaded, stored : bytes over the bus · words : through the VPE's lanes
    or out of it · chunks : steps of the DPE, all trees at once
    """

    issued: int = 0
    loaded: int = 0
    stored: int = 0
    words: int = 0
    chunks: int = 0

    def cycles(self, bus_bytes: int) -> dict[str, int]:
        """Lower bounds by resource: DPE and VPE a chunk or word, the bus `bus_bytes` a cycle in either direction."""
        load, store = (-(-n // bus_bytes) for n in (self.loaded, self.stored))
        return {"dpe": self.chunks, "vpe": self.words, "load": load, "store": store}

    def utilisation(self, bus_bytes: int) -> tuple[float, str]:
        """Upper bound of the DPE's share of the stage's cycles, and the resource that sets it."""
        cycles = self.cycles(bus_bytes)
        most = max(cycles, key=cycles.get)
        return self.chunks / max(1, cycles[most]), most


@dataclass(frozen=True)
class Stage:
    """A part of the program, and the arrays it leaves in memory."""

    name: str
    items: tuple[Item, ...]
    outputs: tuple[Array, ...]


def divisors(n: int) -> list[int]:
    """All divisors of n."""
    return [d for d in range(1, n + 1) if n % d == 0]


@lru_cache(maxsize=4096)
def _vector(header: tuple, **fields: int) -> Op:
    return Op(vector(VectorInstruction(**fields), **dict(header)))


class _Compiler:
    """Builds the stages; `half` of W and X is the one that the next step takes."""

    def __init__(self, plan: "LayerPlan"):
        self.plan, self.shape, self.fmt = plan, plan.shape, plan.fmt
        self.items: list[Item] = []
        self.half = 0
        # Words of a row of scores: those of the ring and pairs behind it.
        self.row = {"len": int(Register.ENTRIES), "add": self.shape.recent, "pair": 1}

    # Instructions

    def _emit(self, opcode: Opcode, **values: int) -> None:
        self.items.append(op(opcode, **values))

    def load(
        self, array: Array, at: int, rows: int, words: int, stride: int, target: LoadTo, wait=(), signal=(), **more: int
    ) -> None:
        """LOAD `rows` rows of `words` words from number `at` of an array, `stride` numbers apart."""
        size, wide = np.dtype(array.dtype).itemsize, array.dtype == np.float32
        self._emit(
            Opcode.LOAD,
            **{
                "base": array.base,
                "addr": array.offset + at * size,
                "rows": rows - 1,
                "words": words - 1,
                "stride": stride * size,
                "target": target,
                "wide": wide,
            }
            | _semaphores(wait, signal)
            | more,
        )

    def store(self, array: Array, at: int, rows: int, words: int, stride: int, **more: int) -> None:
        """STORE the VPE's output to memory, as `load`."""
        size, wide = np.dtype(array.dtype).itemsize, array.dtype == np.float32
        self._emit(
            Opcode.STORE,
            **{
                "base": array.base,
                "addr": array.offset + at * size,
                "rows": rows - 1,
                "words": words - 1,
                "stride": stride * size,
                "target": StoreTo.MEMORY,
                "wide": wide,
            }
            | more,
        )

    def vector(self, words: int = 1, source: Queue = Queue.MUL, row: bool = False, keep: int | None = None, **fields):
        """VECTOR on `words` words, or on a row of scores. Lanes above `keep` take no part in a reduction."""
        header = (("source", int(source)),)
        if row:
            header += tuple(self.row.items())
        keep = self.fmt.lanes - 1 if keep is None else keep
        fields = {k: int(v) for k, v in fields.items()}
        self.items.append(_vector(header, words=0 if row else words - 1, keep=keep, **fields))

    def out(self, words: int, wide: bool = False, at: int = 0, **more) -> None:
        """Words of bank C (`wide`) or B to the output."""
        form = Format.WIDE if wide else Format.HALF
        self.vector(words, op=VectorOp.STORE, addr_b=at, addr_c=at, format=form, **more)

    def scalar(self, to: int, **fields) -> None:
        """A word of scalars whose result goes to register `to`."""
        self.vector(a=SCALAR, reduce=Reduce.LAST, scalar_d=to, keep=0, **fields)

    def begin(self) -> None:
        """LOADs wait for the stage before."""
        self._emit(Opcode.LOAD, len=Register.REST, add=_NEVER, **_semaphores((STORED,), ()))

    def end(self) -> None:
        """All STOREs so far are in memory."""
        self._emit(Opcode.STORE, len=Register.REST, add=_NEVER, **_semaphores((), (STORED,)))

    def turn(self) -> tuple[int, int]:
        """First words in W and X of the half for the next step."""
        half, self.half = self.half, 1 - self.half
        return half * (self.fmt.w_depth // 2), half * (self.fmt.x_depth // 2)

    def mul(self, w: int, x: int, rows: int, tiles: int, chunks: int, x_step: int) -> None:
        """MUL of a step; its half is free when it is done."""
        self._emit(
            Opcode.MUL,
            w=w,
            x=x,
            rows=rows - 1,
            tiles=tiles - 1,
            chunks=chunks - 1,
            keep=self.fmt.lanes - 1,
            x_step=x_step,
            start=1,
            end=1,
            **_semaphores((FULL,), (FREE,)),
        )

    # Stages

    def norm(self, x: Array, weight: Array, y: Array) -> None:
        """RMSNorm, as `vector_programs.rms_norm` with its weight from the stream."""
        length, n = self.shape.width, self.fmt.lanes
        words = length // n
        mean, root, half, rest = range(4)
        nth = np.float32(1 / length)
        high = to_bf16(nth)
        low = float(nth) - float(high)
        for t in range(self.shape.tokens):
            self.load(x, t * length, 1, words, 0, LoadTo.VECTOR)
            self.vector(words, Queue.LOAD, a=STREAM, wide=1, post=Post.ROUND, write=Bank.A | Bank.B)
            self.vector(words, a=BANK, b=BANK, reduce=Reduce.SUM, scalar_d=rest)
            self.scalar(mean, scalar_a=rest, imm_b=_bf16(low), imm_c=_bf16(self.shape.epsilon))
            self.scalar(mean, scalar_a=rest, imm_b=_bf16(high), c=SCALAR, scalar_c=mean)
            self.scalar(root, scalar_a=mean, post=Post.RSQRT)
            self.scalar(half, scalar_a=root, imm_b=_bf16(0.5))
            self.scalar(rest, scalar_a=mean, b=SCALAR, scalar_b=root)
            self.scalar(rest, scalar_a=rest, negate_a=1, b=SCALAR, scalar_b=root, imm_c=ONE)
            self.scalar(root, scalar_a=rest, b=SCALAR, scalar_b=half, c=SCALAR, scalar_c=root)
            self.vector(words, a=SCALAR, scalar_a=root, b=BANK, write=Bank.A)
            self.load(weight, 0, 1, words, 0, LoadTo.VECTOR)
            self.vector(words, Queue.LOAD, a=BANK, b=STREAM, post=Post.ROUND, write=Bank.B)
            self.out(words)
            self.store(y, t * length, 1, words, 0)

    def gemm(self, x: Array, weight: Array, cut: Tiling, y: Array, gated: bool = False) -> None:
        """y = x W^T; added to y if y is FP32; SiLU of the even blocks times the odd ones if `gated`.

        x [segments, tokens, numbers]: K runs through the segments.
        """
        n, tokens = self.fmt.lanes, self.shape.tokens
        segment = x.shape[-1]
        numbers, many = cut.words * n, tokens * cut.tiles
        size = cut.tiles * n * numbers  # of a step's weights
        row = y.shape[-1]
        residual = y.dtype == np.float32
        for block in range(cut.blocks):
            gate, up = gated and block % 2 == 0, gated and block % 2 == 1
            to = (block // 2 if gated else block) * cut.tiles * n
            for k in range(cut.slices):
                w_at, x_at = self.turn()
                step = block * cut.slices + k
                self.load(
                    weight, step * size, cut.tiles * n, cut.words, numbers, LoadTo.W, (FREE,), to=w_at, step=cut.words
                )
                part, rest = divmod(k * numbers, segment)
                self.load(
                    x,
                    part * tokens * segment + rest,
                    tokens,
                    cut.words,
                    segment,
                    LoadTo.X,
                    (),
                    (FULL,),
                    to=x_at,
                    step=cut.words,
                )
                if residual and k == 0:
                    self.load(y, to, tokens, cut.tiles, row, LoadTo.VECTOR)
                    self.vector(many, Queue.LOAD, a=STREAM, wide=1, write=Bank.C)
                self.mul(w_at, x_at, tokens, cut.tiles, cut.words, cut.words)
                more = {"c": BANK} if k or residual else {}
                if k < cut.slices - 1 or residual:
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
            self.out(many, residual)
            self.store(y, to, tokens, cut.tiles, row)

    def rotary(self) -> None:
        """Heads of `at_once` tokens at a time, turned by tables in bank A."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        head, period = s.head_size, s.head_size // n
        at_once, words = p.turned, p.turned * period
        row = p["qkv"].shape[-1]
        for first in range(0, s.tokens, at_once):
            for which, heads in enumerate((range(s.heads), range(s.heads, s.heads + s.kv_heads))):
                for k in range(2):
                    at = ((which * 2 + k) * s.tokens + first) * head
                    self.load(p["tables"], at, 1, words, 0, LoadTo.VECTOR)
                    self.vector(words, Queue.LOAD, a=STREAM, wide=1, write=Bank.A, addr_d=k * words)
                for h in heads:
                    self.load(p["qkv"], first * row + h * head, at_once, period, row, LoadTo.VECTOR)
                    self.vector(words, Queue.LOAD, a=STREAM, post=Post.ROUND, write=Bank.B)
                    self.vector(words, a=BANK, b=BANK, write=Bank.C)
                    self.vector(
                        words,
                        a=BANK,
                        addr_a=words,
                        b=BANK,
                        swap=Swap.HALF + period.bit_length() - 1,
                        c=BANK,
                        post=Post.ROUND,
                        write=Bank.B,
                        addr_d=words,
                    )
                    self.out(words, at=words)
                    if which == 0:
                        g, j = divmod(h, s.group)
                        at = ((g * s.tokens + first) * s.group + j) * head
                        self.store(p["q"], at, at_once, period, s.group * head)
                    else:
                        self.store(p["fresh"], first * s.entry + (h - s.heads) * head, at_once, period, s.entry)
        half = s.kv_heads * head
        for at, words in self.columns(half):
            self.load(p["qkv"], row - half + at, s.tokens, words, row, LoadTo.VECTOR)
            self.vector(s.tokens * words, Queue.LOAD, a=STREAM, write=Bank.B)
            self.out(s.tokens * words)
            self.store(p["fresh"], half + at, s.tokens, words, s.entry)

    def columns(self, numbers: int) -> list[tuple[int, int]]:
        """Rows of so many numbers cut so that a bank holds a part of all tokens' rows: first number, words."""
        n = self.fmt.lanes
        words = max(d for d in divisors(numbers // n) if d * self.shape.tokens <= self.fmt.depth)
        return [(at, words) for at in range(0, numbers, words * n)]

    def append(self) -> None:
        """Entries of the pass to the ring, which may end between two of them."""
        s, p = self.shape, self.plan
        for at, words in self.columns(s.entry):
            self.load(p["fresh"], at, s.tokens, words, s.entry, LoadTo.VECTOR)
            self.vector(s.tokens * words, Queue.LOAD, a=STREAM, write=Bank.B)
            self.out(s.tokens * words)
            self.store(p["ring"], at, 1, words, s.entry, base=Register.SLOT, len=Register.FIRST)
            self.store(p["ring"], at, 1, words, s.entry, len=Register.REST)

    def scores(self) -> None:
        """Queries of a KV head, `batch` rows at a time, against a tile of keys a step."""
        s, p, n, batch = self.shape, self.plan, self.fmt.lanes, self.plan.batch
        period, out = s.head_size // n, p["scores"]
        self.count()
        self.signal_queries()
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                at = first * s.head_size
                self.load(p["q"], at, batch, period, s.head_size, LoadTo.X, (QUERIES,), to=0, step=period)

                def tile(i: int, g=g, first=first) -> None:
                    w_at, _ = self.turn()
                    at = i * n * s.entry + g * s.head_size
                    self.load(p["ring"], at, n, period, s.entry, LoadTo.W, (FREE,), (FULL,), to=w_at, step=period)
                    self.mul(w_at, 0, batch, 1, period, period)
                    self.vector(batch, a=STREAM, wide=1, write=Bank.C)
                    self.out(batch, True)
                    self.store(out, first * out.shape[-1] + i * n, batch, 1, out.shape[-1])

                self.tiles(tile)
                self.signal_queries()

    def count(self) -> None:
        """TAIL from ENTRIES: the sequencer adds, and counts in words where a LOOP does."""
        n, tail, last = self.fmt.lanes, Register.TAIL, POINTERS[0]

        def add(to: int, a: int, imm: int) -> Op:
            return op(Opcode.ADD, to=to, a=a, imm=imm % (1 << ADDR_BITS))

        self.items += [
            # ENTRIES less all their tiles, and one back: numbers of the last one.
            add(last, Register.ENTRIES, n),
            Loop((add(last, last, -n),), (), register=Register.ENTRIES, unit="unit"),
            add(tail, 0, 0),
            Loop((add(tail, tail, 2 * self.fmt.word_bytes),), (), register=last),
        ]

    def signal_queries(self) -> None:
        """The queries in X are needed no more."""
        self._emit(Opcode.MUL, len=Register.REST, add=_NEVER, **_semaphores((), (QUERIES,)))

    def tiles(self, step: Callable[[int], None]) -> None:
        """`step` for every tile of entries: those of the ring, then as many pairs as the register says."""
        ring = self.shape.recent // self.fmt.lanes
        for i in range(ring):
            step(i)
        before, bodies = self.items, []
        for k in range(2):
            self.items = []
            for i in range(2):
                step(ring + 2 * k + i)
            bodies.append(self.items)
        self.items = [*before, repeat(Register.ENTRIES, "pair", *bodies)]

    def softmax(self) -> None:
        """Rows of scores, as `vector_programs.softmax` with a mask in bank C."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        ring, scores, out = s.recent // n, p["scores"], p["probabilities"]
        top, total, inverse, rest = range(4)
        size = scores.shape[-1]
        self.mask_behind()
        scale = {"imm_b": _bf16(p.scale)}
        for g in range(s.kv_heads):
            for r in range(s.rows):
                at = g * s.rows + r
                self.load(p["mask"], r * s.recent, 1, ring, 0, LoadTo.VECTOR)
                self.vector(ring, Queue.LOAD, a=STREAM, write=Bank.C)
                self.load(scores, at * size, 1, 1, n, LoadTo.VECTOR, **self.row)
                self.vector(
                    0,
                    Queue.LOAD,
                    True,
                    a=STREAM,
                    wide=1,
                    **scale,
                    c=BANK,
                    write=Bank.A,
                    reduce=Reduce.MAX,
                    scalar_d=top,
                )
                less = {"a": BANK, "c": SCALAR, "scalar_c": top, "negate_c": 1}
                self.vector(0, row=True, **less, post=Post.EXP, write=Bank.B, reduce=Reduce.SUM, scalar_d=total)
                self.scalar(inverse, scalar_a=total, post=Post.RECIPROCAL)
                self.scalar(rest, scalar_a=total, negate_a=1, b=SCALAR, scalar_b=inverse, imm_c=ONE)
                self.scalar(inverse, scalar_a=rest, b=SCALAR, scalar_b=inverse, c=SCALAR, scalar_c=inverse)
                self.vector(0, row=True, a=SCALAR, scalar_a=inverse, b=BANK, post=Post.ROUND, write=Bank.B)
                self.out(0, row=True)
                self.store(out, at * size, 1, 1, n, **self.row)

    def mask_behind(self) -> None:
        """The mask behind the ring, if there are entries, in bank C: zeros, the last tile's word, one for its pair."""
        p, n, some = self.plan, self.fmt.lanes, POINTERS[0]
        outer, self.items = self.items, []
        self.load(p["zeros"], 0, 1, 1, 0, LoadTo.VECTOR, len=Register.ENTRIES, unit=1, add=-n)
        self.load(p["tails"], 0, 1, 2, 0, LoadTo.VECTOR, base=Register.TAIL)
        header = (("source", int(Queue.LOAD)), ("len", int(Register.ENTRIES)), ("add", n))
        at = self.shape.recent // n % self.fmt.depth
        self.items.append(_vector(header, a=int(STREAM), write=int(Bank.C), addr_d=at))
        self.items = [
            *outer,
            op(Opcode.SET, to=some),
            Loop((op(Opcode.SET, to=some, imm=1),), (), register=Register.ENTRIES, unit="unit"),
            Loop(tuple(self.items), (0, 0), register=some),
        ]

    def values(self) -> None:
        """Probabilities of `batch` rows against a tile of values a step, transposed as they are loaded."""
        s, p, n, batch = self.shape, self.plan, self.fmt.lanes, self.plan.batch
        rows, out, tiles = p["probabilities"], p["attention"], p.value_tiles
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                for part in range(0, s.head_size // n, tiles):

                    def tile(i: int, g=g, first=first, part=part) -> None:
                        w_at, x_at = self.turn()
                        at = i * n * s.entry + (s.kv_heads + g) * s.head_size
                        for k in range(tiles):
                            wait = () if k else (FREE,)
                            self.load(p["ring"], at + (part + k) * n, n, 1, s.entry, LoadTo.COLUMN, wait, to=w_at + k)
                        at = first * rows.shape[-1] + i * n
                        self.load(rows, at, batch, 1, rows.shape[-1], LoadTo.X, (), (FULL,), to=x_at, step=1)
                        self.mul(w_at, x_at, batch, tiles, 1, 1)
                        self.vector(batch * tiles, a=STREAM, wide=1, **({"c": BANK} if i else {}), write=Bank.C)

                    self.tiles(tile)
                    self.vector(batch * tiles, a=IMMEDIATE, imm_a=MINUS_ZERO, c=BANK, post=Post.ROUND, write=Bank.B)
                    self.out(batch * tiles)
                    self.store(out, first * s.head_size + part * n, batch, tiles, s.head_size)


def _semaphores(wait: tuple[int, ...], signal: tuple[int, ...]) -> dict[str, int]:
    return {"wait": sum(1 << s for s in wait), "signal": sum(1 << s for s in signal)}


def _bf16(x: float) -> int:
    return int(to_bf16(np.array([x])).view(np.uint16)[0])


class LayerPlan:
    """The program of a layer's pass and its memory.

    `work`, `weights` and `kv` hold arrays (`plan["q"]` is one by its name); the first from address 0, the others from
    the registers WEIGHTS and KV, so that one program serves all layers of a decoder. `work` is the pass's own.

    cuts : how the GEMMs are cut and so how weights lie in memory; chosen for the pass if not given

    Raises `ParamError` for a shape that does not fit the format: it names the dimension and what it may be.
    """

    def __init__(self, shape: LayerShape, fmt: LxeFormat, cuts: dict[str, Tiling] | None = None):
        self.shape, self.fmt = shape, fmt
        self._check()
        s, n = shape, fmt.lanes
        head, period = s.head_size, s.head_size // n
        fits = [d for d in divisors(s.rows) if d <= min(fmt.depth, fmt.x_depth // 2) and d * period <= fmt.x_depth]
        self.batch = max(fits)  # rows of attention at once
        self.value_tiles = max(d for d in divisors(period) if self.batch * d <= fmt.depth and d <= fmt.w_depth // 2)
        self.turned = max(d for d in divisors(s.tokens) if 2 * d * period <= fmt.depth)  # tokens at once in `rotary`
        scale = head**-0.5
        self.scale = float(to_bf16(np.array([scale]))[0])  # of the scores
        self.query_scale = scale / self.scale  # what BF16 leaves of it, in the tables of the queries
        qkv = (s.heads + 2 * s.kv_heads) * head
        behind = -(-s.entries // (2 * n)) * 2 * n
        self.row = s.recent + behind  # the longest row of scores
        check(self.row <= fmt.depth * n, "recent + entries", self.row, f"must be at most {fmt.depth * n}, as a bank")

        align = max(4096, 4 * n)
        self.work, self.weights, self.kv = Space(align), Space(align, Register.WEIGHTS), Space(align, Register.KV)
        for name, dims, dtype in (
            ("hidden", (s.tokens, s.width), np.float32),
            ("tables", (2, 2, s.tokens, head), np.float32),  # of queries and keys: cos, sin
            ("mask", (s.rows, s.recent), BF16),
            ("zeros", (n,), BF16),
            ("tails", (n + 1, 2, n), BF16),  # masks of a tile with so many entries, and of one with none
            ("norm1", (1, s.tokens, s.width), BF16),
            ("qkv", (s.tokens, qkv), BF16),
            ("q", (s.kv_heads, s.tokens, s.group * head), BF16),
            ("fresh", (s.tokens, s.entry), BF16),
            ("scores", (s.kv_heads * s.rows, self.row), np.float32),
            ("probabilities", (s.kv_heads * s.rows, self.row), BF16),
            ("attention", (s.kv_heads, s.tokens, s.group * head), BF16),
            ("norm2", (1, s.tokens, s.width), BF16),
            ("gated", (1, s.tokens, s.ffn), BF16),
        ):
            self.work.add(name, dims, dtype)
        self.kv.add("ring", (self.row, s.entry), BF16)
        self.cuts = cuts or {
            "qkv": self._cut(qkv, s.width, s.width),
            "output": self._cut(s.width, s.heads * head, s.group * head),
            "gate_up": self._cut(s.ffn, s.width, s.width, 2),
            "down": self._cut(s.width, s.ffn, s.ffn),
        }
        self.weights.add("norm1_weight", (s.width,), BF16)
        self.weights.add("norm2_weight", (s.width,), BF16)
        for name, cut in self.cuts.items():
            dims = (cut.blocks, cut.slices, cut.tiles * n, cut.words * n)
            self.weights.add(f"{name}_weight", dims, BF16)
        self.arrays = self.work.arrays | self.weights.arrays | self.kv.arrays
        self.stages = list(self._stages())

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def of(self, tokens: int) -> "LayerPlan":
        """The plan of a pass of fewer tokens over the same weights and entries."""
        check(tokens <= self.shape.tokens, "tokens", tokens, f"must be at most the plan's {self.shape.tokens}")
        return LayerPlan(replace(self.shape, tokens=tokens), self.fmt, self.cuts)

    def _check(self) -> None:
        s, f = self.shape, self.fmt
        n, half = f.lanes, f.w_depth // 2
        for name in ("width", "head_size", "ffn"):
            value = getattr(s, name)
            check(value % n == 0, name, value, f"must be a multiple of lanes = {n}")
        check(s.recent % (2 * n) == 0, "recent", s.recent, f"must be a multiple of two words of lanes = {n}")
        period = s.head_size // n
        check(period & (period - 1) == 0, "head_size", s.head_size, f"must be a power of two times lanes = {n}")
        check(period <= half, "head_size", s.head_size, f"must be at most {half * n}: a key is a word of half of W")
        check(2 * period <= f.depth, "head_size", s.head_size, f"must be at most {f.depth // 2 * n}, half a bank")
        check(period <= f.x_depth, "head_size", s.head_size, f"must be at most {f.x_depth * n}, as X")
        check(s.width <= f.depth * n, "width", s.width, f"must be at most {f.depth * n} numbers, as a bank holds")
        most = min(f.depth, f.x_depth // 2)
        check(s.tokens <= most, "tokens", s.tokens, f"must be at most {most}: words of a bank, and of half of X")
        check(s.recent < -_NEVER, "recent", s.recent, f"must be below {-_NEVER}")

    def _cut(self, outputs: int, length: int, segment: int, gates: int = 1) -> Tiling:
        """The cut of a GEMM with the fewest words of activations, a step for 32; whole blocks and slices only."""
        f, tokens = self.fmt, self.shape.tokens
        n_tiles, k = outputs // f.lanes, length // f.lanes
        best = None
        for tiles in (d for d in divisors(n_tiles) if tokens * d <= f.depth):
            for words in divisors(segment // f.lanes):
                if tiles * words > f.w_depth // 2 or tokens * words > f.x_depth // 2:
                    continue
                cut = Tiling(gates * n_tiles // tiles, tiles, k // words, words)
                cost = cut.blocks * (tokens * k + 32 * cut.slices)
                cost *= 1.2 if cut.slices % 2 and cut.slices > 1 else 1  # the halves' turns make its loop twice as long
                best = min(best, (cost, cut), key=lambda x: x[0]) if best else (cost, cut)
        return best[1]

    def _stages(self) -> Iterator[Stage]:
        c = _Compiler(self)
        a = self.arrays

        def gemm(name: str, x: str, y: str, gated: bool = False) -> None:
            c.gemm(a[x], a[f"{name}_weight"], self.cuts[name], a[y], gated)

        for name, outputs, build in (
            ("norm1", ("norm1",), lambda: c.norm(a["hidden"], a["norm1_weight"], a["norm1"])),
            ("qkv", ("qkv",), lambda: gemm("qkv", "norm1", "qkv")),
            ("rotary", ("q", "fresh"), c.rotary),
            ("append", ("ring",), c.append),
            ("scores", ("scores",), c.scores),
            ("softmax", ("probabilities",), c.softmax),
            ("values", ("attention",), c.values),
            ("output", ("hidden",), lambda: gemm("output", "attention", "hidden")),
            ("norm2", ("norm2",), lambda: c.norm(a["hidden"], a["norm2_weight"], a["norm2"])),
            ("gate_up", ("gated",), lambda: gemm("gate_up", "norm2", "gated", True)),
            ("down", ("hidden",), lambda: gemm("down", "gated", "hidden")),
        ):
            c.items = []
            build()
            yield Stage(name, tuple(roll(c.items)), tuple(a[o] for o in outputs))

    def program(self, first: str | None = None, last: str | None = None) -> list[Instruction]:
        """The instructions of the stages from `first` to `last`, all if not given.

        `ParamError` if they do not fit in the program's memory, or need more registers for loops than there are.
        """
        names = [stage.name for stage in self.stages]
        for name in (first, last):
            check(name is None or name in names, "stage", name, f"must be one of {', '.join(names)}")
        chosen = self.stages[names.index(first or names[0]) : names.index(last or names[-1]) + 1]
        c = _Compiler(self)
        c.items = [op(Opcode.SYNC, **_semaphores((), (FREE,))) for _ in range(2)]
        for k, stage in enumerate(chosen):
            if k:
                c.begin()
            c.items += stage.items
            if k < len(chosen) - 1:
                c.end()
        out = [*assemble(c.items, POINTERS), Instruction(Opcode.HALT, {})]
        name = f"instructions of {first or names[0]} to {last or names[-1]}"
        check(len(out) <= self.fmt.i_depth, name, len(out), f"must be at most i_depth = {self.fmt.i_depth}: run fewer")
        return out

    def costs(self, entries: int) -> dict[str, Work]:
        """What each stage does with so many entries behind the ring, by name."""
        registers = register_values(self.registers(0, entries, 0, 0))
        return {stage.name: self._cost(stage.name, registers) for stage in self.stages}

    def _cost(self, name: str, registers: list[int]) -> Work:
        out = Work()
        for i in sequence(self.program(name, name), registers, self.fmt):
            out.issued += i.op in ENGINE
            if i.skip:
                continue
            if i.op in (Opcode.LOAD, Opcode.STORE):
                moved = i["rows"] * i["words"] * self.fmt.word_bytes * (1 + i["wide"])
                out.loaded += moved * (i.op == Opcode.LOAD)
                out.stored += moved * (i.op == Opcode.STORE)
            elif i.op == Opcode.MUL:
                out.chunks += i["rows"] * i["tiles"] * i["chunks"]
            elif i.op == Opcode.VECTOR:
                out.words += i["words"]
        return out

    # The host's part

    def registers(self, start: int, entries: int, weights: int, kv: int) -> dict[int, int]:
        """Of a pass whose first token is token `start`, with `entries` behind the ring; addresses of the layer."""
        s = self.shape
        check(0 <= entries <= s.entries, "entries", entries, f"must be 0 to {s.entries}")
        slot = start % s.recent
        first = min(s.tokens, s.recent - slot)
        return {
            Register.WEIGHTS: weights,
            Register.KV: kv,
            Register.SLOT: kv + slot * s.entry * 2,
            Register.FIRST: first,
            Register.REST: s.tokens - first,
            Register.ENTRIES: entries,
        }

    def inputs(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> dict[str, np.ndarray]:
        """Arrays of a pass by name: hidden states [tokens, width], cos and sin [tokens, head / 2] of its positions."""
        s = self.shape
        check(hidden.shape == (s.tokens, s.width), "hidden", hidden.shape, f"must be {(s.tokens, s.width)}")
        both = np.stack([np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)])
        return {
            "hidden": hidden.astype(np.float32),
            "tables": np.stack([both * self.query_scale, both]).astype(np.float32),
            "mask": np.where(np.repeat(self.seen(start), s.group, axis=0), 0.0, -np.inf).astype(BF16),
        }

    def seen(self, start: int) -> np.ndarray:
        """Which slots of the ring the tokens from `start` see, bool [tokens, recent]."""
        s = self.shape
        newest = start + s.tokens - 1
        token = newest - (newest - np.arange(s.recent)) % s.recent  # in each slot
        return (token >= 0) & (token <= start + np.arange(s.tokens)[:, None])

    def constants(self) -> dict[str, np.ndarray]:
        """Arrays by name that no pass changes."""
        rows, _, n = self["tails"].shape
        unused = np.arange(rows)[:, None] <= np.arange(2 * n)
        return {
            "zeros": np.zeros(n, BF16),
            "tails": np.where(unused, -np.inf, 0.0).astype(BF16).reshape(rows, 2, n),
        }

    def pack(self, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays of weights by name, from those of a layer as `golden.decoder` keeps them ([inputs, outputs])."""

        def gemm(name: str, *parts: np.ndarray) -> np.ndarray:
            blocks, slices, rows, numbers = self[f"{name}_weight"].shape
            cut = [to_bf16(w.T).reshape(-1, rows, slices, numbers).swapaxes(1, 2) for w in parts]
            return np.stack(cut, axis=1).reshape(blocks, slices, rows, numbers)

        return {
            "norm1_weight": to_bf16(layer["attn_norm"]),
            "norm2_weight": to_bf16(layer["ffn_norm"]),
            "qkv_weight": gemm("qkv", layer["qkv"]),
            "output_weight": gemm("output", layer["attn_output"]),
            "gate_up_weight": gemm("gate_up", *np.split(layer["gate_up"], 2, axis=1)),
            "down_weight": gemm("down", layer["ffn_down"]),
        }
