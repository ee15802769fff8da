"""Writes the stages of a vision encoder's programs: products over many rows, LayerNorm, attention, GELU, pooling.

A picture has many tokens, so weights stay and rows pass. A **product** fills W with the weights of some tiles. Then all
rows of activations pass through X, once for them. The **attention** of a head keeps all its keys and values in W. Its
scores never leave the core: the VPE turns them into exponentials, and STORE puts these into X, where the DPE multiplies
them by the values. The results are rounded to BF16, and divided by the sum of the row's exponentials.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.vector import MINUS_ZERO, Bank, Post, Reduce
from openvrex.golden.program.compiler import FREE, FULL, Compiler, Sizes, semaphores
from openvrex.golden.program.isa import LoadTo, Opcode, Queue, StoreTo
from openvrex.golden.program.layer_memory import Array, Tiling
from openvrex.golden.program.loop_rolling import assemble, roll
from openvrex.golden.program.recipes import (
    BANK,
    GELU_SLOPE,
    IMMEDIATE,
    STREAM,
    Row,
    Scalar,
    centred,
    exponentials,
    fp32,
    gelu,
    imm,
    put,
    reciprocal,
    root_mean_square,
    scaled,
)

# Semaphores: the DPE has read all weights in W, exponentials are in X, weights are in W.
DRAINED, EXPONENTIALS, WEIGHTS = 4, 5, 6
ENDS = 3  # instructions of a program besides its stages': SYNCs and HALT
MOST = 4  # rows of a step of LayerNorm or attention: each has four scalar registers
ENOUGH = 4  # rows of a step of a product that are worth it
SLOPE = Scalar(15)


class EncoderSizes(Sizes, Protocol):
    """What the stages read of their plan (`golden.program.encoder_compiler.EncoderPlan`)."""

    tokens: int  # of a picture
    head_size: int
    epsilon: float


class EncoderCompiler(Compiler):
    """Writes the stages of an encoder."""

    plan: EncoderSizes

    def norm(self, x: Array, y: Array, rows: range, affine: tuple[Array, Array] | None = None) -> None:
        """LayerNorm of some rows of x, FP32, in y; with weight and bias where `affine` gives them and y is FP32."""
        length, n = x.shape[-1], self.fmt.lanes
        words = length // n
        room = self.fmt.depth - (words if affine else 0)
        at_once = min(MOST, room // words)
        if affine:
            bias = self.places(bias=words).bias
            self.take(affine[1], 0, words, Bank.C, bias)

        def fetch(t: int) -> None:
            if t < rows.stop:
                self.load(x, t * length, 1, words, 0, LoadTo.VECTOR)

        ahead = 0 if affine else 1  # rows that come while the VPE works on those before
        if ahead:
            fetch(rows.start)
        for some in _parts(rows, at_once):
            with self.overlapped():
                for k, t in enumerate(some):
                    row = Row(k * words, words)
                    total, mean = Scalar(4 * k), Scalar(4 * k + 1)
                    sums = {"reduce": int(Reduce.SUM), "scalar_d": total.number}
                    fetch(t + ahead)
                    self.vector(words, Queue.LOAD, a=STREAM, wide=1, write=Bank.A, addr_d=row.at, **sums)
                    centred(self, row, total, length, mean)
                    if affine is None:
                        root_mean_square(self, row, length, self.plan.epsilon, 4 * k, Bank.B, Post.ROUND)
                    else:
                        root_mean_square(self, row, length, self.plan.epsilon, 4 * k)
                        weighted: dict[str, int] = {**row.of("a"), "b": int(STREAM), "c": int(BANK), "addr_c": bias}
                        self.take(affine[0], 0, words, Bank.C, row.at, **weighted)
                    self.give(y, t * length, words, row.at)

    def product(
        self,
        x: Array,
        weight: Array,
        bias: Array,
        cut: Tiling,
        rows: range,
        y: Array,
        of: Array | None = None,
        nonlinear: bool = False,
        first: int = 0,
        most: int | None = None,
    ) -> None:
        """y = x W^T + bias, for some rows of x and the columns of W.

        y : [tokens, numbers] from the core's first column on; FP32 where K has several slices. Or [heads, tokens,
            head size], whose rows of a head lie together, so that its tiles are stored one by one
        of : what is added, FP32, as y is; may be y
        nonlinear : GELU of the sum, in BF16
        first : the core's first tile of columns, where y is by heads
        most : steps of rows whose sums of slices of K stay in banks; None for as many as fit there, or for two where
            the program were too long
        """
        start = len(self.items)
        n, length, row, heads = self.fmt.lanes, x.shape[-1], y.shape[-1], len(y.shape) > 2
        numbers, tiles, words = cut.words * n, cut.tiles, cut.words
        muls = tiles if heads else 1  # of a step
        biases = self.places(biases=tiles).biases
        plus: dict[str, int] = {"c": int(BANK), "addr_c": biases, "span_c": tiles.bit_length() - 1}
        if nonlinear:
            fp32(self, GELU_SLOPE, SLOPE)
        buffers, at_once = self.buffers(cut)
        part, parts, steps = self.fmt.x_depth // buffers, list(_parts(rows, at_once)), cut.blocks * cut.slices
        kept = self.kept(cut, at_once)[: len(parts)][:most]
        # Rows of the next weights come before these, where the part of X that they go to is the first one to be free.
        early = len(parts) % buffers == 0
        for _ in range(buffers - 2):
            self.fence(Opcode.MUL, signal=(FREE,))

        def fill(step: int, turn: int) -> None:
            if early and turn >= len(parts):
                step, turn = step + 1, turn - len(parts)
            if step < steps:
                for some in parts[turn : turn + 1]:
                    at, to_x = some.start * length + step % cut.slices * numbers, turn % buffers * part
                    self.load(x, at, len(some), words, length, LoadTo.X, (FREE,), (FULL,), to=to_x, step=words)

        def multiply(number: int) -> None:
            turn, j = divmod(number, muls)
            for some in parts[turn : turn + 1]:
                hands = (FULL, WEIGHTS)[: 1 + (not number)] if not j else (), (FREE,) * (j == muls - 1)
                at = j * words, turn % buffers * part
                self.mul(*at, len(some), tiles // muls, words, words, *hands)

        for block in range(cut.blocks):
            to = block * tiles * n
            for k in range(cut.slices):
                step, size = block * cut.slices + k, tiles * n
                at = step * size * numbers
                self.load(weight, at, size, words, numbers, LoadTo.W, signal=(WEIGHTS,), to=0, step=words)
                if not k:
                    self.take(bias, to, tiles, Bank.C, biases)
                added, more = y if k else of, k < cut.slices - 1
                if not (step and early):
                    fill(step, 0)
                    fill(step, 1)
                multiply(0)
                for turn, some in enumerate(parts):
                    many, at = len(some), some.start * row + to
                    place = kept[turn] if turn < len(kept) else None
                    sums = {} if k else plus
                    if k and place:
                        sums = self.sums(place, many * tiles)
                    elif added:
                        if k and turn == len(kept):
                            self.begin()  # what the slice before left in memory is there
                        self.take(added, at, tiles, Bank.C, rows=many, stride=row, **sums)
                        sums = {"c": int(BANK)}
                    # Ahead of the VECTORs, or these would wait in the sequencer for room in their queue.
                    for j in range(muls):
                        if j == muls - 1:
                            fill(step, turn + 2)
                        multiply(turn * muls + j + 1)
                        if heads:
                            self.tile(y, first + block * tiles + j, some, biases + j)
                    if place and more:
                        self.vector(many * tiles, a=STREAM, wide=1, write=place.banks, addr_d=place.at, **sums)
                    elif not heads:
                        self.results(many * tiles, y, nonlinear, sums)
                        self.give(y, at, tiles, rows=many, stride=row)
                if more and len(parts) > len(kept):
                    self.end()
                self.drain()
        for _ in range(buffers - 2):
            self.fence(Opcode.LOAD, wait=(FREE,))
        if most is None and cut.slices > 1 and self._length(start) > self.fmt.i_depth:
            del self.items[start:]
            self.product(x, weight, bias, cut, rows, y, of, nonlinear, first, most=2)

    def _length(self, start: int) -> int:
        """Instructions of a program of the items from `start` on."""
        rolled = roll(self.items[start:], len(self.plan.pointers))
        return ENDS + len(assemble(rolled, self.plan.pointers))

    def kept(self, cut: Tiling, at_once: int) -> list[Row]:
        """Places of sums that stay in banks from one slice of K to the next, each of the rows of a step."""
        words = at_once * cut.tiles
        if cut.slices == 1:
            return []
        beside = (self.fmt.depth - cut.tiles) // words - 1  # in bank C, which has the biases and a step's sums, too
        first = self.places(sums=beside * words).sums if beside else 0
        in_c = [Row(first + k * words, words, Bank.C) for k in range(beside)]
        return [Row(k * words, words, Bank.A) for k in range(self.fmt.depth // words)] + in_c

    def sums(self, place: Row, words: int) -> dict[str, int]:
        """The fields of a VECTOR that adds sums which were kept."""
        if place.banks == Bank.C:
            return place.of("c")
        self.vector(words, **place.of("a"), write=Bank.C)
        return {"c": int(BANK)}

    def tile(self, y: Array, number: int, rows: range, bias: int) -> None:
        """Take results of the DPE for a tile of columns of y, which is by heads, and STORE them."""
        n, many, (_, tokens, size) = self.fmt.lanes, len(rows), y.shape
        plus = {"c": int(BANK), "addr_c": bias, "span_c": 0}
        self.vector(many, a=STREAM, wide=1, post=Post.ROUND, write=Bank.B, **plus)
        head, word = divmod(number, size // n)
        at = (head * tokens + rows.start) * size + word * n
        together = size == n  # words of all rows
        self.give(y, at, many if together else 1, rows=1 if together else many, stride=size)

    def results(self, words: int, y: Array, nonlinear: bool, plus: dict[str, int]) -> None:
        """Take results of the DPE, added to what `plus` names, to the bank from which they are stored."""
        stream = {"a": int(STREAM), "wide": 1} | plus
        if nonlinear:
            self.vector(words, **stream, post=Post.ROUND, write=Bank.A | Bank.B)
            gelu(self, Row(0, words), SLOPE)
        elif y.dtype == np.float32:
            self.vector(words, **stream, write=Bank.C)
        else:
            self.vector(words, **stream, post=Post.ROUND, write=Bank.B)

    def buffers(self, cut: Tiling) -> tuple[int, int]:
        """Parts of X that rows of a product fill in turn, and rows of a step: a part's, if banks hold their results.

        With four parts a LOAD waits for the memory while two others have their rows in X. Steps of few rows cost more.
        """
        room = (self.fmt.depth - cut.tiles) // cut.tiles  # beside the biases
        half, quarter = (min(self.fmt.x_depth // parts // cut.words, room) for parts in (2, 4))
        return (4, quarter) if quarter >= ENOUGH else (2, half)

    def drain(self) -> None:
        """Let following LOADs wait until the DPE has read all weights."""
        self.fence(Opcode.MUL, signal=(DRAINED,))
        self.fence(Opcode.LOAD, wait=(DRAINED,))

    def attention(self, heads: range, rows: range) -> None:
        """Attention of some heads, for some rows of queries, to the keys of all tokens."""
        p, n = self.plan, self.fmt.lanes
        qkv, size, words, tiles = p["qkv"], p.head_size, p.head_size // n, -(-p.tokens // n)
        many = qkv.shape[0] // 3  # heads
        keys, values = 0, tiles * words
        for head in heads:
            at = p.tokens * size * (many + head)
            self.load(qkv, at, p.tokens, words, size, LoadTo.W, to=keys, step=words)
            parts = list(_parts(rows, self.queries_at_once()))
            self._queries(parts, 0, head)
            self._queries(parts, 1, head)
            self._multiply(parts, 0)
            at += p.tokens * size * many
            for j in range(words):
                signal = (WEIGHTS,) * (j == words - 1)
                self.load(qkv, at + j * n, p.tokens, 1, size, LoadTo.COLUMN, signal=signal, to=values + j * tiles)
            for k in range(len(parts) + 2):
                with self.overlapped():
                    self._queries(parts, k + 2, head)  # these come while the VPE works on the scores of those before
                    self._step(parts, k, head, values)
            self.drain()

    def queries_at_once(self) -> int:
        """Rows of a step of the attention."""
        words = self.plan.head_size // self.fmt.lanes
        each = words + -(-self.plan.tokens // self.fmt.lanes)
        return min(MOST, self.fmt.depth // each, self.fmt.x_depth // (2 * each))

    def _places(self, odd: int) -> tuple[int, int, int, int]:
        """Words of X: queries and exponentials of a step; words of a row of queries, and of exponentials."""
        words, tiles = self.plan.head_size // self.fmt.lanes, -(-self.plan.tokens // self.fmt.lanes)
        most = self.queries_at_once()
        return odd * most * words, most * (2 * words + odd * tiles), words, tiles

    def _queries(self, parts: list[range], k: int, head: int) -> None:
        """LOAD queries of step `k` to X."""
        qkv, size, (to, _, words, _) = self.plan["qkv"], self.plan.head_size, self._places(k % 2)
        if k < len(parts):
            at = (head * self.plan.tokens + parts[k].start) * size
            self.load(qkv, at, len(parts[k]), words, size, LoadTo.X, (FREE,), (FULL,), to=to, step=words)

    def _multiply(self, parts: list[range], k: int) -> None:
        """MUL of queries of step `k` by all keys."""
        queries, _, words, tiles = self._places(k % 2)
        if k < len(parts):
            self.mul(0, queries, len(parts[k]), tiles, words, words)

    def _step(self, parts: list[range], k: int, head: int, values: int) -> None:
        """Exponentials of the scores of step `k`, results of the step before, STORE of those of the one before that.

        The MULs come first, so that the DPE works ahead of the VPE: it multiplies the exponentials of the step before
        by values, then queries of the next step by keys. What needs no words of the DPE comes before what does.
        """
        before, rows = (parts[i] if 0 <= i < len(parts) else range(0) for i in (k - 1, k))
        _, exponents, words, tiles = self._places(1 - k % 2)
        if before:
            size = {"rows": len(before) - 1, "tiles": words - 1, "chunks": tiles - 1, "x_step": tiles}
            keep = (self.plan.tokens - 1) % self.fmt.lanes
            waits = (EXPONENTIALS, WEIGHTS)[: 1 + (k == 1)]
            whole = {"keep": keep, "start": 1, "end": 1} | semaphores(waits, ())
            self._emit(Opcode.MUL, w=values, x=exponents, **size, **whole)
        self._multiply(parts, k + 1)
        for r in range(len(before)):
            self._invert(r, 1 - k % 2)
        if k > 1:
            self._store(parts[k - 2], head)
        for r in range(len(rows)):
            self._highest(r, k % 2)
        for r in range(len(rows) - 1):
            self._exponentials(r, k % 2, False)
        if before:
            self.vector(len(before) * words, a=STREAM, wide=1, post=Post.ROUND, write=Bank.B, addr_d=self._behind)
        if rows:
            self._exponentials(len(rows) - 1, k % 2, True)
        for r in range(len(before)):
            row = Row(self._behind + r * words, words, Bank.B)
            scaled(self, row, self._inverse(r), row, Post.ROUND)

    def _sum(self, r: int, odd: int) -> Scalar:
        """The maximum of row `r` of a step, then its sum of exponentials."""
        return Scalar(MOST * odd + r)

    def _highest(self, r: int, odd: int) -> None:
        """Words of A = scores of a row; a scalar takes their maximum."""
        _, _, _, tiles = self._places(odd)
        last, top = (self.plan.tokens - 1) % self.fmt.lanes, self._sum(r, odd)
        fields = {"reduce": int(Reduce.MAX), "scalar_d": top.number}
        self.vector(tiles, a=STREAM, wide=1, keep=last, write=Bank.A, addr_d=r * tiles, **fields)

    def _exponentials(self, r: int, odd: int, done: bool) -> None:
        """B and X = exponentials of a row's scores less their maximum; the scalar takes their sum."""
        _, exponents, _, tiles = self._places(odd)
        last, total = (self.plan.tokens - 1) % self.fmt.lanes, self._sum(r, odd)
        exponentials(self, Row(r * tiles, tiles, keep=last), total, reduce=Reduce.SUM, scalar_d=total.number)
        self.out(tiles, at=r * tiles, keep=last)
        to = {"to": exponents + r * tiles, "rows": 0, "words": tiles - 1, "step": tiles}
        self._emit(Opcode.STORE, target=StoreTo.X, **to, **({"signal": 1 << EXPONENTIALS} if done else {}))

    def _invert(self, r: int, odd: int) -> None:
        """A scalar = 1 / sum of a row's exponentials."""
        reciprocal(self, self._sum(r, odd), self._inverse(r), Scalar(3 * MOST + r), self._inverse(r))

    def _inverse(self, r: int) -> Scalar:
        return Scalar(2 * MOST + r)

    def _store(self, rows: range, head: int) -> None:
        """STORE the results of a step."""
        out, words = self.plan["attention"], self.plan.head_size // self.fmt.lanes
        at, row = head * self.plan.head_size, out.shape[-1]
        self.give(out, rows.start * row + at, words, self._behind, rows=len(rows), stride=row)

    @property
    def _behind(self) -> int:
        """First word of a step's results in the banks, beside the scores of the next one."""
        return self.places(results=self.queries_at_once() * self.plan.head_size // self.fmt.lanes).results

    def pool(self, x: Array, y: Array, cells: list[tuple[range, range]], side: int, extra: int, columns: range) -> None:
        """Rows of y = means of the rows of x in each cell of the picture's grid, for some columns.

        cells : rows and columns of patches · side : patches of a row · extra : rows of x in front of them
        """
        n, length = self.fmt.lanes, x.shape[-1]
        words, first = len(columns) // n, extra
        for r in range(y.shape[0] - len(cells)):  # tokens without a patch stay as they are
            self.take(x, r * length + columns.start, words, Bank.B, post=Post.ROUND)
            self.give(y, r * length + columns.start, words)
        for r, (down, across) in enumerate(cells, y.shape[0] - len(cells)):
            self.vector(words, a=IMMEDIATE, imm_a=MINUS_ZERO, write=Bank.A | Bank.C)
            for i in down:
                for j in across:
                    at = (first + i * side + j) * length + columns.start
                    self.take(x, at, words, Bank.A | Bank.C, c=BANK)
            row, c = Row(0, words, Bank.B), Row(0, words, Bank.C)
            part = 1 / (len(down) * len(across))
            high = float(to_bf16(np.array(part)))
            put(self, c, **row.of("a"), imm_b=imm(part - high))
            put(self, row, **row.of("a"), imm_b=imm(high), **c.of("c"), post=Post.ROUND)
            self.give(y, r * length + columns.start, words)


def _parts(rows: range, most: int) -> Iterator[range]:
    """Consecutive parts of at most so many rows."""
    for first in range(rows.start, rows.stop, most):
        yield range(first, min(first + most, rows.stop))
