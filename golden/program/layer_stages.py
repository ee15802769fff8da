"""Writes the stages of a layer's program around its attention, each a method: norms, GEMMs, rotary."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from openvrex.golden.arithmetic.vector import Bank, Post, Swap
from openvrex.golden.program.compiler import FREE, FULL, Compiler, Sizes
from openvrex.golden.program.isa import LoadTo, Queue
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Tiling, divisors
from openvrex.golden.program.recipes import BANK, STREAM, Row, root_mean_square, rotate


class LayerSizes(Sizes, Protocol):
    """What the stages of a decoder's layer read of their plan."""

    shape: LayerShape


class LayerCompiler(Compiler):
    """Writes the stages that plans share. The register `second` has the address of a pass's second run of entries."""

    second = Register.KV
    plan: LayerSizes

    def __init__(self, plan: LayerSizes):
        super().__init__(plan)
        self.shape = plan.shape

    def norm(self, x: Array, weight: Array, y: Array, scaled: Array | None = None, tokens: range | None = None) -> None:
        """RMSNorm of every token; the weight comes from memory for each token.

        scaled : where the numbers go, too, as they are before the weight, rounded
        tokens : which to take, all if not given
        """
        length, n = self.shape.width, self.fmt.lanes
        words = length // n
        for t in range(x.shape[0]) if tokens is None else tokens:
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
        n, tokens, row = self.fmt.lanes, x.shape[1], y.shape[-1]
        many, wide = tokens * cut.tiles, y.dtype == np.float32
        residual = add or (wide and not part)
        for block in range(cut.blocks) if blocks is None else blocks:
            gate, up = gated and block % 2 == 0, gated and block % 2 == 1
            segment_y, to = divmod((block // 2 if gated else block) * cut.tiles * n, row)
            to += segment_y * tokens * row
            result: dict[str, int] = {"write": Bank.B, "post": Post.SILU if gate else Post.ROUND}
            if wide or up:
                result = {"write": Bank.C if wide else Bank.A}
            added = partial(self.take, y, to, cut.tiles, Bank.C, rows=tokens, stride=row) if residual else None
            self.block_of(x, weight, cut, block, result, first, added)
            if gate:
                continue
            if up:
                self.vector(many, a=BANK, b=BANK, post=Post.ROUND, write=Bank.B)
            self.give(y, to, cut.tiles, rows=tokens, stride=row)

    def block_of(
        self, x: Array, weight: Array, cut: Tiling, block: int, result: dict[str, int], first: int = 0, added=None
    ) -> None:
        """A block of `gemm`. result : fields of the last VECTOR · added : puts what is added into bank C"""
        _, tokens, segment = x.shape
        for k in range(cut.slices):
            w_at, x_at = self.turn()
            self.weights(weight, block * cut.slices + k, cut, w_at)
            which, at = divmod(first + k * cut.words * self.fmt.lanes, segment)
            at += which * tokens * segment
            self.load(x, at, tokens, cut.words, segment, LoadTo.X, (), (FULL,), to=x_at, step=cut.words)
            if added and not k:
                added()
            self.mul(w_at, x_at, tokens, cut.tiles, cut.words, cut.words)
            more = {"c": int(BANK)} if k or added else {}
            last = result if k == cut.slices - 1 else {"write": Bank.C}
            self.vector(tokens * cut.tiles, a=STREAM, wide=1, **more, **last)

    def weights(self, weight: Array, step: int, cut: Tiling, to: int) -> None:
        """LOAD the weights of a step of a GEMM to words `to` and behind of W, from numbers or from 4-bit weights."""
        n, of_step = self.fmt.lanes, {"to": to, "step": cut.words}
        if weight.packing is None:
            rows, numbers = cut.tiles * n, cut.words * n
            self.load(weight, step * rows * numbers, rows, cut.words, numbers, LoadTo.W, (FREE,), **of_step)
            return
        _, _, words, size = weight.shape
        of_step["wide"] = 1
        self.load(weight, step * words * size, words, cut.words, weight.packing.code, LoadTo.W, (FREE,), **of_step)

    def total(self, parts: Array, y: Array, columns: range) -> None:
        """Add partial products to `columns` of y: y + part 0 + part 1 and so on, each sum rounded to FP32.

        parts : [parts, tokens, numbers], FP32 · y : [tokens, numbers], FP32
        columns : the first number and the end, multiples of `lanes`; may be empty
        """
        count, tokens, row = parts.shape
        for at, words in self.columns(len(columns), tokens) if columns else ():
            self.take(y, columns.start + at, words, Bank.C, rows=tokens, stride=row)
            for k in range(count):
                self.take(parts, k * tokens * row + columns.start + at, words, Bank.C, rows=tokens, stride=row, c=BANK)
            self.give(y, columns.start + at, words, rows=tokens, stride=row)

    def rotary(self) -> None:
        """Rotate queries and keys from `qkv`; put keys and values together as entries."""
        self.queries(self.plan["q"])
        self.entries()

    def queries(self, to: Array, heads: range | None = None, of: Array | None = None) -> None:
        """Rotate query heads from `of`, or from `qkv`, all if not given, and store them in `to`."""
        s = self.shape

        def place(h: int, first: int) -> tuple[Array, int, int]:
            g, j = divmod(h, s.group)
            return to, ((g * s.tokens + first) * s.group + j) * s.head_size, s.group * s.head_size

        self.turn_heads(range(s.heads) if heads is None else heads, 0, place, of)

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
        turned = self.places(turned=words).turned
        of = of or p["qkv"]
        row = of.shape[-1]
        for first in range(0, s.tokens, at_once):
            for k in range(2):
                at = ((which * 2 + k) * s.tokens + first) * head
                self.take(p["tables"], at, words, Bank.A, k * words)
            for h in heads:
                self.load(of, first * row + h * head, at_once, period, row, LoadTo.VECTOR, **load or {})
                self.vector(words, Queue.LOAD, a=STREAM, post=Post.ROUND, write=Bank.B)
                rotate(self, Row(0, words), 0, words, Swap.HALF + period.bit_length() - 1, turned)
                self.out(words, at=turned)
                array, at, apart = place(h, first)
                self.store(array, at, at_once, period, apart, **store or {})

    def columns(self, numbers: int, tokens: int = 0) -> list[tuple[int, int]]:
        """Cut rows of `numbers` numbers into columns that a bank holds for all tokens: first number, words.

        tokens : rows; those of the pass if not given
        """
        n, tokens = self.fmt.lanes, tokens or self.shape.tokens
        words = max(d for d in divisors(numbers // n) if d * tokens <= self.fmt.depth)
        return [(at, words) for at in range(0, numbers, words * n)]

    def append(self) -> None:
        """Copy the entries of the pass to the ring: FIRST of them to SLOT, then REST to `second`."""
        s, p = self.shape, self.plan
        for at, words in self.columns(s.entry):
            self.take(p["fresh"], at, words, Bank.B, rows=s.tokens, stride=s.entry)
            self.out(s.tokens * words)
            self.store(p["ring"], at, 1, words, s.entry, base=Register.SLOT, len=Register.FIRST)
            self.store(p["ring"], at, 1, words, s.entry, base=self.second, len=Register.REST)
