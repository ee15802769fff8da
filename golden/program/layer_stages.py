"""Writes the stages of a layer's program as straight-line instructions, from GEMMs to softmax.

Each stage is a method of `Compiler` that appends instructions with their final addresses. The stages hold loops only
where a register gives the number of rounds; `golden.program.loop_rolling` finds all other loops.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from golden.arithmetic.numerics import to_bf16
from golden.arithmetic.vector import MINUS_ZERO, ONE, Bank, Format, Post, Reduce, Source, Swap
from golden.arithmetic.vector import Instruction as VectorInstruction
from golden.arithmetic.vector import Op as VectorOp
from golden.program.isa import ADDR_BITS, LoadTo, Opcode, Queue, StoreTo, vector
from golden.program.layer_memory import Array, Register, Tiling, divisors
from golden.program.loop_rolling import Item, Loop, Op, op, repeat
from golden.program.vector_programs import imm

if TYPE_CHECKING:
    from golden.program.layer_compiler import LayerPlan

BANK, STREAM, SCALAR, IMMEDIATE = Source
# Scalar registers of a row of scores: its maximum, its sum of exponentials, 1 / sum, results of a part, unused results.
TOP, TOTAL, INVERSE, PART, OTHER = range(5)

POINTERS = range(10, 16)  # registers for the pointers of loops
# Semaphores: a half of W and X is free, a half is filled, a stage is in memory, X holds no query that is still needed.
FREE, FULL, STORED, QUERIES = range(4)
# Added to a small register it gives a negative count, so that the instruction only waits and signals.
NEVER = -(1 << 15)


@lru_cache(maxsize=4096)
def vector_item(header: tuple[tuple[str, int], ...], **fields: int) -> Op:
    """A VECTOR as an item: fields of its header, and those of the VPE's instruction. Cached, as many are equal."""
    return Op(vector(VectorInstruction(**fields), **dict(header)))


class Compiler:
    """Writes the stages of a plan, one method each, into `items`.

    W and X are used in halves: LOADs fill one half while the DPE reads the other. `half` is the one that the next step
    takes.
    """

    def __init__(self, plan: "LayerPlan"):
        self.plan, self.shape, self.fmt = plan, plan.shape, plan.fmt
        self.items: list[Item] = []
        self.half = 0
        # Fields that count the words of a row of scores: those of the ring, and pairs of words behind it.
        self.row = {"len": int(Register.ENTRIES), "add": self.shape.recent, "pair": 1}

    # Instructions

    def _emit(self, opcode: Opcode, **values: int) -> None:
        self.items.append(op(opcode, **values))

    def load(
        self, array: Array, at: int, rows: int, words: int, stride: int, target: LoadTo, wait=(), signal=(), **more: int
    ) -> None:
        """LOAD `rows` rows of `words` words, the first from number `at` of the array, each `stride` numbers further."""
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
            | semaphores(wait, signal)
            | more,
        )

    def store(self, array: Array, at: int, rows: int, words: int, stride: int, **more: int) -> None:
        """STORE the VPE's output in an array, with the arguments of `load`."""
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

    def vector(
        self, words: int | dict[str, int] = 1, source: int = Queue.MUL, keep: int | None = None, **fields: int
    ) -> None:
        """VECTOR on `words` words; a dict instead holds the fields `len`, `add`, `pair` that count them.

        Lanes of the last word above `keep` take no part in a reduction.
        """
        counted, words = (words, 1) if isinstance(words, dict) else ({}, words)
        header = (("source", int(source)), *counted.items())
        keep = self.fmt.lanes - 1 if keep is None else keep
        self.items.append(vector_item(header, words=words - 1, keep=keep, **{k: int(v) for k, v in fields.items()}))

    def out(self, words: int | dict[str, int], wide: bool = False, at: int = 0, **more: int) -> None:
        """Put words of bank C (`wide`) or B, from word `at`, on the VPE's output."""
        form = Format.WIDE if wide else Format.HALF
        self.vector(words, op=VectorOp.STORE, addr_b=at, addr_c=at, format=form, **more)

    def scalar(self, to: int, **fields: int) -> None:
        """Compute with scalar operands; the result goes to scalar register `to`."""
        self.vector(a=SCALAR, reduce=Reduce.LAST, scalar_d=to, keep=0, **fields)

    def begin(self) -> None:
        """Make the following LOADs wait until the stage before is in memory."""
        self._emit(Opcode.LOAD, len=Register.REST, add=NEVER, **semaphores((STORED,), ()))

    def end(self) -> None:
        """Signal once all STOREs so far are in memory."""
        self._emit(Opcode.STORE, len=Register.REST, add=NEVER, **semaphores((), (STORED,)))

    def turn(self) -> tuple[int, int]:
        """Take turns between the halves; the first words in W and X of the half for the next step."""
        half, self.half = self.half, 1 - self.half
        return half * (self.fmt.w_depth // 2), half * (self.fmt.x_depth // 2)

    def mul(self, w: int, x: int, rows: int, tiles: int, chunks: int, x_step: int) -> None:
        """MUL of a step. It waits until its half is filled, and frees the half when it is done."""
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
            **semaphores((FULL,), (FREE,)),
        )

    # Stages

    def norm(self, x: Array, weight: Array, y: Array) -> None:
        """RMSNorm of every token, as `vector_programs.rms_norm`; the weight comes from memory for each token."""
        length, n = self.shape.width, self.fmt.lanes
        words = length // n
        mean, root, half, rest = range(4)
        nth = np.float32(1 / length)
        high = float(to_bf16(np.array(nth)))
        low = float(nth) - high
        for t in range(self.shape.tokens):
            self.load(x, t * length, 1, words, 0, LoadTo.VECTOR)
            self.vector(words, Queue.LOAD, a=STREAM, wide=1, post=Post.ROUND, write=Bank.A | Bank.B)
            self.vector(words, a=BANK, b=BANK, reduce=Reduce.SUM, scalar_d=rest)
            self.scalar(mean, scalar_a=rest, imm_b=imm(low), imm_c=imm(self.shape.epsilon))
            self.scalar(mean, scalar_a=rest, imm_b=imm(high), c=SCALAR, scalar_c=mean)
            self.scalar(root, scalar_a=mean, post=Post.RSQRT)
            self.scalar(half, scalar_a=root, imm_b=imm(0.5))
            self.scalar(rest, scalar_a=mean, b=SCALAR, scalar_b=root)
            self.scalar(rest, scalar_a=rest, negate_a=1, b=SCALAR, scalar_b=root, imm_c=ONE)
            self.scalar(root, scalar_a=rest, b=SCALAR, scalar_b=half, c=SCALAR, scalar_c=root)
            self.vector(words, a=SCALAR, scalar_a=root, b=BANK, write=Bank.A)
            self.load(weight, 0, 1, words, 0, LoadTo.VECTOR)
            self.vector(words, Queue.LOAD, a=BANK, b=STREAM, post=Post.ROUND, write=Bank.B)
            self.out(words)
            self.store(y, t * length, 1, words, 0)

    def gemm(
        self, x: Array, weight: Array, cut: Tiling, y: Array, gated: bool = False, blocks: range | None = None
    ) -> None:
        """y = x W^T. The product is added to y if y is FP32.

        x : [segments, tokens, numbers]; K runs through the segments
        gated : SiLU of each even block times the odd block behind it
        blocks : the blocks of W to compute, all if not given
        """
        n, tokens = self.fmt.lanes, self.shape.tokens
        segment = x.shape[-1]
        numbers, many = cut.words * n, tokens * cut.tiles
        size = cut.tiles * n * numbers  # weights of a step
        row = y.shape[-1]
        residual = y.dtype == np.float32
        for block in range(cut.blocks) if blocks is None else blocks:
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
                more: dict[str, int] = {"c": BANK} if k or residual else {}
                result: dict[str, int]
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
        """Rotate queries and keys from `qkv`; put keys and values together as entries."""
        self.queries(self.plan["q"])
        self.entries()

    def queries(self, to: Array) -> None:
        """Rotate all query heads from `qkv` and store them in `to`."""
        s = self.shape

        def place(h: int, first: int) -> tuple[Array, int, int]:
            g, j = divmod(h, s.group)
            return to, ((g * s.tokens + first) * s.group + j) * s.head_size, s.group * s.head_size

        self.turn_heads(range(s.heads), 0, place)

    def entries(self) -> None:
        """Rotate the keys from `qkv` and store them with the values as entries in `fresh`."""
        s, p = self.shape, self.plan
        fresh = p["fresh"]

        def place(h: int, first: int) -> tuple[Array, int, int]:
            return fresh, first * s.entry + (h - s.heads) * s.head_size, s.entry

        self.turn_heads(range(s.heads, s.heads + s.kv_heads), 1, place)
        row, half = p["qkv"].shape[-1], s.kv_heads * s.head_size
        for at, words in self.columns(half):
            self.load(p["qkv"], row - half + at, s.tokens, words, row, LoadTo.VECTOR)
            self.vector(s.tokens * words, Queue.LOAD, a=STREAM, write=Bank.B)
            self.out(s.tokens * words)
            self.store(fresh, half + at, s.tokens, words, s.entry)

    def turn_heads(self, heads: range, which: int, place: Callable[[int, int], tuple[Array, int, int]]) -> None:
        """Rotate heads of `qkv`, some tokens at a time, by the tables `which` (0: queries, 1: keys) in bank A.

        `place` takes a head and a first token. It gives the array, the number in it where the first row is stored, and
        the distance between rows in numbers.
        """
        s, p, n = self.shape, self.plan, self.fmt.lanes
        head, period = s.head_size, s.head_size // n
        at_once, words = p.turned, p.turned * period
        row = p["qkv"].shape[-1]
        for first in range(0, s.tokens, at_once):
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
                array, at, apart = place(h, first)
                self.store(array, at, at_once, period, apart)

    def columns(self, numbers: int) -> list[tuple[int, int]]:
        """Cut rows of `numbers` numbers into columns that a bank holds for all tokens: first number, words."""
        n = self.fmt.lanes
        words = max(d for d in divisors(numbers // n) if d * self.shape.tokens <= self.fmt.depth)
        return [(at, words) for at in range(0, numbers, words * n)]

    def append(self) -> None:
        """Copy the entries of the pass to the ring. They wrap around where the ring ends."""
        s, p = self.shape, self.plan
        for at, words in self.columns(s.entry):
            self.load(p["fresh"], at, s.tokens, words, s.entry, LoadTo.VECTOR)
            self.vector(s.tokens * words, Queue.LOAD, a=STREAM, write=Bank.B)
            self.out(s.tokens * words)
            self.store(p["ring"], at, 1, words, s.entry, base=Register.SLOT, len=Register.FIRST)
            self.store(p["ring"], at, 1, words, s.entry, len=Register.REST)

    def scores(self) -> None:
        """Multiply queries by the keys of the ring and of the entries behind it."""
        self.count()
        self.products(self.plan["q"], self.plan["scores"], self.keys, self.tiles)

    def products(
        self,
        q: Array,
        out: Array,
        keys: Callable[[int, int], tuple[Array, int, int]],
        tiles: Callable[[Callable[[int], None]], None],
    ) -> None:
        """Multiply queries of a KV head, `batch` rows at a time, by one tile of keys a step; store FP32 in `out`.

        keys : takes a KV head and a tile; gives the array, the number of the first key in it, and the distance between
            keys in numbers
        tiles : calls the function it is given for every tile
        """
        s, n, batch = self.shape, self.fmt.lanes, self.plan.batch
        period, row = s.head_size // n, out.shape[-1]
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                self.signal_queries()
                at = first * s.head_size
                self.load(q, at, batch, period, s.head_size, LoadTo.X, (QUERIES,), to=0, step=period)

                def tile(i: int, g=g, first=first) -> None:
                    w_at, _ = self.turn()
                    array, at, apart = keys(g, i)
                    self.load(array, at, n, period, apart, LoadTo.W, (FREE,), (FULL,), to=w_at, step=period)
                    self.mul(w_at, 0, batch, 1, period, period)
                    self.vector(batch, a=STREAM, wide=1, write=Bank.C)
                    self.out(batch, True)
                    self.store(out, first * row + i * n, batch, 1, row)

                tiles(tile)

    def keys(self, g: int, i: int) -> tuple[Array, int, int]:
        """The keys of KV head `g` in tile `i`: array, first number, distance between keys in numbers."""
        array, first = self.entry_tile(i)
        return array, first + g * self.shape.head_size, self.shape.entry

    def entry_tile(self, i: int) -> tuple[Array, int]:
        """Where tile `i` of the entries lies: the array, and the first number of its first entry."""
        p, tile, ring = self.plan, self.fmt.lanes * self.shape.entry, self.shape.recent // self.fmt.lanes
        return (p["ring"], i * tile) if i < ring else (p["behind"], (i - ring) * tile)

    def count(self) -> None:
        """Compute TAIL, PARTS and LEFT from ENTRIES. The sequencer only adds; a LOOP divides by the size of a word."""
        n, tail, last = self.fmt.lanes, Register.TAIL, POINTERS[0]

        def add(to: int, a: int, imm: int) -> Op:
            return op(Opcode.ADD, to=to, a=a, imm=imm % (1 << ADDR_BITS))

        self.items += [
            # Entries of the last tile: ENTRIES minus the size of all its tiles, plus one tile.
            add(last, Register.ENTRIES, n),
            Loop((add(last, last, -n),), (), register=Register.ENTRIES, unit="unit"),
            add(tail, 0, 0),
            Loop((add(tail, tail, 2 * self.fmt.word_bytes),), (), register=last),
        ]
        if self.plan.part:
            size, more, parts, left = self.plan.part * n, POINTERS[1], Register.PARTS, Register.LEFT
            # One round for each part that there may be: if LEFT holds a whole part, take it away and count it.
            turn = (
                add(last, left, 1 - size),
                add(more, 0, 0),
                Loop((add(more, 0, 1),), (), register=last, unit="unit"),
                Loop((add(left, left, -size), add(parts, parts, 1)), (), register=more),
            )
            most = self.shape.entries // size
            self.items += [add(left, Register.ENTRIES, 0), add(parts, 0, 0), Loop(turn, (), count=most)]

    def signal_queries(self) -> None:
        """Signal that the DPE has read all queries in X, so that the next ones may overwrite them."""
        self._emit(Opcode.MUL, len=Register.REST, add=NEVER, **semaphores((), (QUERIES,)))

    def tiles(self, step: Callable[[int], None]) -> None:
        """Call `step` for every tile of entries: those of the ring, then those behind it."""
        self.ring_tiles(step)
        self.tiles_behind(step)

    def ring_tiles(self, step: Callable[[int], None]) -> None:
        """Call `step` for every tile of the ring."""
        for i in range(self.shape.recent // self.fmt.lanes):
            step(i)

    def tiles_behind(self, step: Callable[[int], None]) -> None:
        """Loop over the tiles behind the ring, as many as ENTRIES says."""
        self.pairs(step, self.shape.recent // self.fmt.lanes, Register.ENTRIES)

    def pairs(self, step: Callable[[int], None], first: int, register: int) -> None:
        """Loop over pairs of tiles from number `first`; the register holds the number of their entries."""
        before = self.items
        bodies: list[list[Item]] = []
        for k in range(2):
            self.items = []
            for i in range(2):
                step(first + 2 * k + i)
            bodies.append(self.items)
        self.items = [*before, repeat(register, "pair", bodies[0], bodies[1])]

    def softmax(self) -> None:
        """Softmax of every row of scores, as `vector_programs.softmax`, with an additive mask in bank C."""
        s, p = self.shape, self.plan
        ring = s.recent // self.fmt.lanes
        self.mask_behind()
        for g in range(s.kv_heads):
            for r in range(s.rows):
                self.load(p["mask"], r * s.recent, 1, ring, 0, LoadTo.VECTOR)
                self.vector(ring, Queue.LOAD, a=STREAM, write=Bank.C)
                at = (g * s.rows + r) * p["scores"].shape[-1]
                if p.part:
                    self.long_row(at)
                else:
                    self.highest(at, self.row, 0, TOP)
                    self.exponentials(self.row, TOTAL)
                    self.reciprocal()
                    self.shares(at, self.row)

    def long_row(self, at: int) -> None:
        """Softmax of a row that a bank does not hold, read in parts three times: for maximum, sum, probabilities."""
        for result, none, op_code in ((TOP, 0xFF80, VectorOp.MAX), (TOTAL, 0, VectorOp.FMA), (None, 0, None)):

            def part(at: int, size: int | dict, mask: int | None, result=result, none=none, op_code=op_code) -> None:
                if result is not None:  # the result of a part without words
                    self.vector(a=IMMEDIATE, imm_a=none, reduce=Reduce.LAST, scalar_d=PART, keep=0)
                self.highest(at, size, mask, PART if result == TOP else OTHER)
                if result != TOP:
                    self.exponentials(size, PART if result == TOTAL else OTHER)
                if result is None:
                    self.shares(at, size)
                else:
                    self.scalar(result, op=op_code, scalar_a=PART, c=SCALAR, scalar_c=result)

            if result is not None:
                self.vector(a=IMMEDIATE, imm_a=none, reduce=Reduce.LAST, scalar_d=result, keep=0)
            self.parts(at, part)
            if result == TOTAL:
                self.reciprocal()

    def parts(self, at: int, part: Callable[[int, int | dict, int | None], None]) -> None:
        """Call `part` for the parts of a row that starts at number `at`: the ring, whole parts behind it, and the rest.

        `part` takes the first number, the words or the fields that count them, and the word of bank C where the mask
        of the part begins (None: it needs no mask).
        """
        n, ring, words = self.fmt.lanes, self.shape.recent // self.fmt.lanes, self.plan.part
        part(at, ring, 0)
        before = self.items
        bodies: list[list[Item]] = []
        ends: list[list[Item]] = []
        left: dict[str, int] = {"len": int(Register.LEFT), "pair": 1}
        for k in range(2):
            first = at + (ring + k * words) * n
            self.items = []
            part(first, words, None)
            bodies.append(self.items)
            self.items = []
            part(first, left, ring)
            ends.append(self.items)
        self.items = [*before, repeat(Register.PARTS, "", bodies[0], bodies[1], ends)]

    def highest(self, at: int, size: int | dict, mask: int | None, to: int) -> None:
        """A = scores from number `at`, scaled, plus the mask from word `mask` of bank C; the maximum goes to `to`."""
        n = self.fmt.lanes
        fields: dict[str, int] = {} if mask is None else {"c": BANK, "addr_c": mask}
        scores = self.plan["scores"]
        if isinstance(size, int):
            self.load(scores, at, 1, size, 0, LoadTo.VECTOR)
        else:
            self.load(scores, at, 1, 1, n, LoadTo.VECTOR, **size)
        scale = {"imm_b": imm(self.plan.scale), "wide": 1}
        self.vector(size, Queue.LOAD, a=STREAM, **scale, **fields, write=Bank.A, reduce=Reduce.MAX, scalar_d=to)

    def exponentials(self, size: int | dict, to: int) -> None:
        """B = exp(A - maximum of the row); the sum goes to scalar `to`."""
        less = {"a": BANK, "c": SCALAR, "scalar_c": TOP, "negate_c": 1}
        self.vector(size, **less, post=Post.EXP, write=Bank.B, reduce=Reduce.SUM, scalar_d=to)

    def reciprocal(self) -> None:
        """INVERSE = 1 / TOTAL, with the steps of `vector_programs.reciprocal`."""
        self.scalar(INVERSE, scalar_a=TOTAL, post=Post.RECIPROCAL)
        self.scalar(PART, scalar_a=TOTAL, negate_a=1, b=SCALAR, scalar_b=INVERSE, imm_c=ONE)
        self.scalar(INVERSE, scalar_a=PART, b=SCALAR, scalar_b=INVERSE, c=SCALAR, scalar_c=INVERSE)

    def shares(self, at: int, size: int | dict) -> None:
        """Store B times INVERSE as probabilities, from number `at` of a row."""
        out = self.plan["probabilities"]
        self.vector(size, a=SCALAR, scalar_a=INVERSE, b=BANK, post=Post.ROUND, write=Bank.B)
        self.out(size)
        if isinstance(size, int):
            self.store(out, at, 1, size, 0)
        else:
            self.store(out, at, 1, 1, self.fmt.lanes, **size)

    def mask_behind(self) -> None:
        """Load the mask of the entries behind the ring, or of the rest behind whole parts, into bank C.

        It is zeros for the full tiles, then the word of the last tile, then the word of an empty tile, which completes
        a pair.
        """
        p, n, some = self.plan, self.fmt.lanes, POINTERS[0]
        entries = int(Register.LEFT if p.part else Register.ENTRIES)
        outer, self.items = self.items, []
        self.load(p["zeros"], 0, 1, 1, 0, LoadTo.VECTOR, len=entries, unit=1, add=-n)
        self.load(p["tails"], 0, 1, 2, 0, LoadTo.VECTOR, base=Register.TAIL)
        at = self.shape.recent // n % self.fmt.depth
        self.vector({"len": entries, "add": n}, Queue.LOAD, a=STREAM, write=Bank.C, addr_d=at)
        self.items = [
            *outer,
            op(Opcode.SET, to=some),
            Loop((op(Opcode.SET, to=some, imm=1),), (), register=entries, unit="unit"),
            Loop(tuple(self.items), (0, 0), register=some),
        ]

    def values(self) -> None:
        """Multiply probabilities, `batch` rows at a time, by one tile of values a step; LOAD transposes the values."""
        s, p, n, batch = self.shape, self.plan, self.fmt.lanes, self.plan.batch
        rows, out, tiles = p["probabilities"], p["attention"], p.value_tiles
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                for part in range(0, s.head_size // n, tiles):

                    def tile(i: int, g=g, first=first, part=part) -> None:
                        w_at, x_at = self.turn()
                        array, at = self.entry_tile(i)
                        at += (s.kv_heads + g) * s.head_size
                        for k in range(tiles):
                            wait = () if k else (FREE,)
                            self.load(array, at + (part + k) * n, n, 1, s.entry, LoadTo.COLUMN, wait, to=w_at + k)
                        at = first * rows.shape[-1] + i * n
                        self.load(rows, at, batch, 1, rows.shape[-1], LoadTo.X, (), (FULL,), to=x_at, step=1)
                        self.mul(w_at, x_at, batch, tiles, 1, 1)
                        self.vector(batch * tiles, a=STREAM, wide=1, **({"c": BANK} if i else {}), write=Bank.C)

                    self.tiles(tile)
                    self.vector(batch * tiles, a=IMMEDIATE, imm_a=MINUS_ZERO, c=BANK, post=Post.ROUND, write=Bank.B)
                    self.out(batch * tiles)
                    self.store(out, first * s.head_size + part * n, batch, tiles, s.head_size)


def semaphores(wait: tuple[int, ...], signal: tuple[int, ...]) -> dict[str, int]:
    """The fields `wait` and `signal` for the given numbers of semaphores."""
    return {"wait": sum(1 << s for s in wait), "signal": sum(1 << s for s in signal)}
