"""Compiles the index of coded pages: from queries and resident scores to one score a page, on the engines of any LXE.

`PagePlan` takes the queries of a pass through these stages:

========  ==========================================================================================================
code0 ... on an LXE that expands codes: of a KV head's keys that share a mean, the mean and the codes
          (`golden.program.code_stages`), each time that so many tokens have come
sums      of each row, the largest resident logit and the sum of the weights
turn      the row's numbers, less the logarithm of its sum: a word of activations for each place of a code in a word
rank0 ... the scores of all pages of a KV head, FP32
========  ==========================================================================================================

The results are those of `golden.retrieval.coded_pages`, bit for bit.

How a page's score stays on the core. A word of weights holds the codes of `places` adjacent tokens, expanded, one
behind the other. A tree takes a page, so a step takes as many adjacent pages as there are trees, and the DPE multiplies
every row by one token of each page at once:

    place 0   x = [ numbers of the row, less its sum | 0                               ]   tokens 0, 2, 4, 6
    place 1   x = [ 0                                | numbers of the row, less its sum ]   tokens 1, 3, 5, 7
              w = [ code of token 0, 1, 1            | code of token 1, 1, 1           ]   word 0 of the page's tree

With `dpe.halves` a MUL multiplies the codes of both halves of a word and gives the larger score, so one word of
activations serves both places:

    shift 0   x = [ numbers of the row, less its sum | numbers of the row, less its sum ]   tokens 0 and 1, 2 and 3, ...

So the maxima over a page's tokens are maxima of words: the VPE keeps one word for each row in bank C, replaces it by
the larger of it and the next products, adds the rows' products with the mean, and folds the rows into one word, whose
lanes are the pages. Nothing goes to memory but that word. A page takes page / places words of W of a tree.

Memory holds the words of W as they are, or, where a LOAD expands codes (`lxe.codes`), the codes, both in the order of
the tokens.

For `lanes` pages with R rows, K = ceil(head_size / lanes) and m means, the engines take at least

    W port   lanes * (page / places) + K * m        DPE   R * (page / h + K)        VPE   R * (page / h + 2)

cycles, h = 2 with halves, else 1: at `core`, with 64 lanes, pages of 8, R = 40 rows and a head of 64 numbers 256 + 2,
200 and 240 for 512 tokens.
Where a loader has no `lxe.codes`, means take K * lanes * (m + 1) / 2 on the W port. While a step's maxima are taken,
the step before is folded, if a bank has room for both: 3 R / 2 words. From the bus come
lanes * page / (places * many) words of codes, and as many words of means as on the W port.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import Bank, Post, Reduce
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import check
from openvrex.golden.program.attention_stages import add
from openvrex.golden.program.code_stages import CodeCompiler, CodeSizes
from openvrex.golden.program.compiler import FREE, FULL, QUERIES, semaphores
from openvrex.golden.program.isa import LoadTo, LxeFormat, Opcode
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Space, divisors
from openvrex.golden.program.page_index import PageIndex
from openvrex.golden.program.recipes import BANK, STREAM, Row, exponentials, imm, logarithm, split
from openvrex.golden.program.sequencer_model import register_values
from openvrex.golden.program.stage_plan import Plan, Planned, Work
from openvrex.golden.retrieval.coded_pages import PageParams

PAGES = Register.FIRST  # number of coded pages
MORE = Register.LEFT  # the same behind the first pair of steps
MULTIPLIED = 13  # semaphore: a step has been multiplied by its means
AT_ONCE = 4  # rows of scores that banks hold for `sums`


class PageSizes(CodeSizes, Protocol):
    """What `PageCompiler` reads of its plan."""

    index: PageIndex
    resident_scores: Array  # products of queries and resident keys lead each row


class PageCompiler(CodeCompiler):
    """Writes the stages of a `PagePlan`."""

    plan: PageSizes

    def sums(self) -> None:
        """Store each row's largest logit and its sum of weights, each in all lanes of a word."""
        p, words = self.plan, self.shape.recent // self.fmt.lanes
        scores = p.resident_scores
        rows = self.shape.kv_heads * self.shape.rows
        some = max(d for d in divisors(rows) if d <= AT_ONCE and d * max(words, 2) <= self.fmt.depth)
        for first in range(0, rows, some):
            with self.overlapped(), self.scalars(2 * some) as taken:
                for k in range(some):
                    at, row = k * words, (first + k) * scores.shape[-1]
                    top, total = taken[2 * k : 2 * k + 2]
                    self.take(p["mask"], (first + k) % self.shape.rows * self.shape.recent, words, Bank.C, at)
                    fields = {"imm_b": imm(p.index.scale), "c": int(BANK), "addr_c": at}
                    most = {"reduce": int(Reduce.MAX), "scalar_d": top.number}
                    self.take(scores, row, words, Bank.A, at, **fields, **most)
                    exponentials(self, Row(at, words), top, reduce=Reduce.SUM, scalar_d=total.number)
                    for j, scalar in enumerate((top, total)):
                        self.vector(**scalar.of("a"), write=Bank.C, addr_d=2 * k + j)
                self.give(p["row_sums"], 2 * first * self.fmt.lanes, 2 * some)

    def turn_queries(self) -> None:
        """Store the activations of each row for the codes, one word for each place."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        period, shifts, rows = p.index.period, p.index.shifts, p.index.turned
        at = self.places(ones=2 * shifts, low=rows)  # ones in the lanes of the halves of a row's sum; lower halves
        self.take(p["ones"], 0, 2 * shifts, Bank.B, at.ones)
        for first in range(0, s.kv_heads * s.rows, rows):
            w_at, x_at = self.turn()
            weight = first // s.rows * shifts * n * s.head_size
            head = {"step": period}
            self.load(p["turn_weight"], weight, shifts * n, period, s.head_size, LoadTo.W, (FREE,), to=w_at, **head)
            self.load(p["q"], first * s.head_size, rows, period, s.head_size, LoadTo.X, (), (FULL,), to=x_at, **head)
            for k in range(shifts):
                hands = semaphores((FULL,) if k == 0 else (), (FREE,) if k == shifts - 1 else ())
                self.part(w_at + k * period, x_at, rows, period, hands)
            self.less_logarithm(first)
            for k in range(shifts):
                to = k * rows
                self.vector(rows, a=STREAM, wide=1, post=Post.ROUND, write=Bank.C, addr_d=to)
                for half in range(2):  # of the sum, in bank A
                    word = {"a": int(BANK), "addr_a": half * at.low, "c": int(BANK), "addr_c": to}
                    one = {"b": int(BANK), "addr_b": at.ones + 2 * k + half, "span_b": 0}
                    result = {"write": Bank.B if half else Bank.C, "addr_d": to}
                    self.vector(rows, **word, **one, **result)
                self.give(p["turned"], (first * shifts + k) * n, 1, to, rows=rows, stride=shifts * n)

    def less_logarithm(self, first: int) -> None:
        """The sums of the rows from number `first`, negative, to bank A: upper halves from word 0, the others to `low`.

        It is done before the products are taken: the upper halves are where `logarithm` begins.
        """
        p, n, rows = self.plan, self.fmt.lanes, self.plan.index.turned
        x, apart, at = Row(0, rows), 2 * n, self.places(half=rows, y=rows, low=rows)
        y, low = Row(at.y, rows), Row(at.low, rows, Bank.A)
        self.take(p["row_sums"], 2 * first * n + n, 1, Bank.A, rows=rows, stride=apart)
        logarithm(self, x, Row(at.half, rows), y)
        less = {"negate_a": 1, "c": int(BANK), "addr_c": at.y, "negate_c": 1}
        self.take(p["row_sums"], 2 * first * n, 1, Bank.A, at.y, rows=rows, stride=apart, **less)
        split(self, y, Row(0, rows, Bank.A | Bank.C), low)

    def rank_pages(self, g: int) -> None:
        """Store the score of each page of a KV head: a step multiplies its rows by codes and means of `lanes` pages."""
        s, p, own, n = self.shape, self.plan, self.plan.index, self.fmt.lanes
        rows, period, words = s.rows, own.period, own.page // own.places
        query = rows * own.shifts  # word of X where the queries begin
        means = n * own.page // own.mean
        self.fence(Opcode.MUL, signal=(QUERIES,))
        self.load(p["turned"], g * query * n, 1, query, 0, LoadTo.X, (QUERIES,))
        self.load(p["q"], g * rows * s.head_size, rows, period, s.head_size, LoadTo.X, to=query, step=period)

        def load(i: int) -> None:
            w_at, page = self.half_of(i), own.page * own.size
            rows, row, expand = (page, n, {"wide": 1}) if own.coded else (n, page, {})
            first, to = g * own.pages + self.number(i) * n, {"to": w_at, "step": words}
            self.load(p["codes"], first * page, rows, words, row, LoadTo.W, (FREE,), **to, **expand)
            for k in reversed(range(means)):  # each takes the trees of those before it
                trees, full = n // means * (k + 1), (FULL,) if k == 0 else ()
                for word in range(period):  # one a LOAD, as some loaders read it once then
                    mean = (first * own.page // own.mean + k) * s.head_size + word * n
                    waits = (MULTIPLIED,) if (k, word) == (means - 1, 0) else ()
                    hands = full if word == period - 1 else ()
                    self.load(p["means"], mean, trees, 1, 0, LoadTo.W, waits, hands, to=w_at + words + word)

        low, high = rows // 2, rows - rows // 2
        base = high if high + rows <= self.fmt.depth else 0  # word of the results, where the next step leaves them

        def score(i: int, before: Iterator[None]) -> None:
            w_at = self.half_of(i)
            muls = words * own.shifts
            for k in range(muls):
                word, shift = divmod(k, own.shifts)
                halves = int(own.shifts < own.places)
                hands = semaphores((FULL,) if k == 0 else (), (FREE,) if k == muls - 1 else ())
                self.part(w_at + word, shift, rows, 1, hands, x_step=own.shifts, halves=halves)
                larger = {"op": VectorOp.MAX, "c": int(BANK)} if k else {}
                self.vector(rows, a=STREAM, wide=1, **larger, write=Bank.C)
            self.part(w_at + words, query, rows, period, semaphores((), (MULTIPLIED,)))
            next(before, None)  # of the step before the lower rows are free
            for some, at, banks in ((low, 0, Bank.A), (high, low, Bank.A | Bank.C)):
                if some:
                    scaled = {"a": STREAM, "wide": 1, "imm_b": imm(own.scale), "c": BANK, "addr_c": at}
                    self.vector(some, **scaled, write=banks, addr_d=base + at)
                deque(before, 0)
            if not base:
                deque(fold(i), 0)

        def fold(i: int) -> Iterator[None]:
            at, left = base, rows
            while left > 1:
                half = left // 2
                to = at + left - half  # the lower half goes into the upper one, out of the next step's way
                larger = {"op": VectorOp.MAX, "a": BANK, "addr_a": at, "c": BANK, "addr_c": to}
                self.vector(half, **larger, write=Bank.A | Bank.C, addr_d=to)
                at, left = at + half, left - half
                yield
            self.give(p["ranks"], g * own.pages + self.number(i) * n, 1, at)

        for _ in range(2):  # the halves of W
            self.fence(Opcode.MUL, signal=(MULTIPLIED,))
        self.steps(load, score, fold if base else lambda i: iter(()))
        for _ in range(2):
            self.fence(Opcode.LOAD, wait=(MULTIPLIED,))

    def number(self, i: int) -> int:
        """The number of the core's step i among those of all pages."""
        return i

    def half_of(self, i: int) -> int:
        """The first word of the half of W that step i takes."""
        return (self.half + i) % 2 * (self.fmt.w_depth // 2)

    def steps(
        self,
        load: Callable[[int], None],
        score: Callable[[int, Iterator[None]], None],
        fold: Callable[[int], Iterator[None]],
    ) -> None:
        """Load, score and fold steps, as many pairs as PAGES says.

        The LOADs of a step stand before the step ahead of it is scored: else they would wait in the sequencer until its
        VECTORs have room in their queue. A step is folded while the next one is multiplied by the means, which takes
        the DPE longer than the VPE. Its codes may be replaced before that, its means behind it.
        """

        def last(k: int) -> None:
            score(2 * k + 1, fold(2 * k))
            deque(fold(2 * k + 1), 0)

        with self.when(self.above_zero(PAGES)):
            load(0)
            load(1)
            score(0, iter(()))
            self.items.append(add(MORE, PAGES, -2 * self.fmt.lanes))
            for k in self.rounds(MORE, "pair", last):
                for i in (2 * k + 1, 2 * k + 2):
                    load(i + 1)
                    score(i, fold(i - 1))

    def part(self, w: int, x: int, rows: int, chunks: int, hands: dict[str, int], **fields: int) -> None:
        """MUL of one tile as one of several on a half of W. hands : semaphores"""
        size = {"rows": rows - 1, "chunks": chunks - 1, "keep": self.fmt.lanes - 1, "x_step": chunks}
        self._emit(Opcode.MUL, w=w, x=x, start=1, end=1, **size | hands | fields)


class PagePlan(Plan):
    """The program from queries and resident scores to the scores of pages, and its arrays in memory.

    shape : `recent` are the resident tokens, other fields as in a layer; `width` and `ffn` do not matter
    pages : most pages of a KV head
    params : of the pages; `page`, `mean` and `numbers` matter

    Arrays of `table` start at the address in the register WEIGHTS: those of the index. Those of `work` start at the one
    in KV: `scores`, the products of queries and resident keys in FP32; `mask`, added to the scores of a row of each KV
    head; `ranks`, FP32 [kv_heads, pages]. Queries `q` are at the address in OUT, rows in the order KV head, token,
    query head. The register FIRST holds the number of coded pages.

    Raises `ParamError` for sizes that do not fit together.
    """

    _compiler = PageCompiler

    def __init__(self, shape: LayerShape, fmt: LxeFormat, pages: int, params: PageParams):
        n, recent = fmt.lanes, shape.recent
        self.shape, self.fmt, self.cuts = shape, fmt, {}
        self.index = PageIndex(shape, fmt, pages, params)
        check(recent % n == 0, "recent", recent, f"must be a multiple of lanes = {n}: they are whole words")
        align = max(4096, 4 * n)
        self.table, self.work = Space(align, Register.WEIGHTS), Space(align, Register.KV)
        heads, rows = shape.kv_heads, shape.rows
        self.work.add("scores", (heads * rows, recent), np.float32)
        self.work.add("mask", (rows, recent), BF16)
        self.index.place(self.table, self.work)
        if self.index.coded:
            self.coding = self.index.coding
        q = Array("q", 0, (heads * rows, shape.head_size), BF16, Register.OUT)
        self.arrays = self.table.arrays | self.work.arrays | {"q": q}
        self.stages = list(self._stages())

    @property
    def resident_scores(self) -> Array:
        """Products of queries and resident keys."""
        return self["scores"]

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        heads = range(self.shape.kv_heads)
        codes = [Planned(f"code{g}", partial(c.code, g), self.index.coded) for g in heads]
        ranks = [Planned(f"rank{g}", partial(c.rank_pages, g)) for g in heads]
        return [*codes, Planned("sums", c.sums), Planned("turn", c.turn_queries), *ranks]

    def cost(self, pages: int) -> Work:
        """The work of `rank0`, the scores of a KV head, with so many pages."""
        return self._cost("rank0", register_values({int(PAGES): pages}))
