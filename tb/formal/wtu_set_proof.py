"""Proof about the WTU: it selects the set of Equation 3, or of whole buckets (`golden.retrieval.wicsum`).

It follows the first row after power-up, with any length, scores, counts and ratio (in quarters); later rows are free.
Where the WTU has budgets, the row takes any budget or a share.
The counts of the row fit in the ring, or stream.
The selection weighs more than Th, or is the whole row. No cluster outside it comes before one inside. Without its last
cluster or bucket it does not weigh more than Th. The beat that ends it counts its clusters and tokens. There are no
stalls; `tb.formal.stream_proof` covers what they may change. After the cycles that the row can take, nothing is left to
claim.
"""

from contextlib import AbstractContextManager
from functools import reduce
from operator import add, and_, or_
from unittest.mock import patch

from amaranth import Array, Cat, ClockDomain, ClockSignal, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval.wtu import Wtu

SMALL = WtuParams(
    n_w=2, clusters=4, counts=4, score=ScoreFormat(2, 1), count_bits=2, bin_bits=2, count_digit=2, n_buckets=2
)
TH_STEPS = 2  # bits of the ratio that the proof of the exact variant keeps, so that the row takes fewer cycles


def short_ratio() -> AbstractContextManager:
    """Lets the exact variant multiply for Th in units of 2^-2 instead of 2^-16, while it is elaborated."""
    return patch("openvrex.hdl.retrieval.wtu_exact.TH_STEPS", TH_STEPS)


class RowMonitor(wiring.Component):
    """The WTU from power-up on, with one table of counts. If it does not fit, it comes round and round.

    With `reach` it claims instead that the whole row is always selected. That claim must fail.
    """

    def __init__(self, p: WtuParams, reach: bool = False):
        self.p, self.reach = p, reach
        clusters = range(max(2, p.clusters))
        free = {
            "scores": In(p.n_w * p.score.bits),
            "keep": In(range(max(2, p.n_w))),
            "last": In(1),
        }  # inputs of later rows
        own = {"codes": In(p.clusters * p.score.bits), "counts": In(p.clusters * p.count_bits), "length": In(clusters)}
        mode = {"budgeted": In(1), "budget": In(bits_for(p.clusters + 1) + p.count_bits)} if p.budget else {}
        super().__init__({"clk": In(1), "quarters": In(3), **free, **own, **mode})

    def elaborate(self, platform):
        m, p = Module(), self.p
        m.domains.sync = ClockDomain(reset_less=True)
        m.d.comb += ClockSignal().eq(self.clk)
        m.submodules.unit = unit = Wtu(p)
        begun = Signal()
        m.d.sync += begun.eq(1)

        def kept(name):
            """An input that keeps the value of its first cycle."""
            now, first = getattr(self, name), Signal.like(getattr(self, name), name=f"{name}_first")
            out = Signal.like(now, name=f"{name}_kept")
            m.d.comb += out.eq(Mux(begun, first, now))
            m.d.sync += first.eq(out)
            return out

        codes, counts = kept("codes"), kept("counts")
        quarters, length, top = kept("quarters"), kept("length"), Signal(range(max(2, p.clusters)))
        m.d.comb += top.eq(Mux(length < p.clusters, length, p.clusters - 1))  # the highest cluster of the row
        code = [codes.word_select(k, p.score.bits) for k in range(p.clusters)]
        count = [counts.word_select(k, p.count_bits) for k in range(p.clusters)]
        ratio = Signal(3)
        steps = TH_STEPS if p.selection == "exact" else 16
        m.d.comb += [ratio.eq(Mux(quarters[2], 4, quarters)), unit.ratio.eq(ratio << steps - 2)]

        if p.budget:
            budgeted, budget = kept("budgeted"), kept("budget")
            m.d.comb += [unit.budgeted.eq(budgeted), unit.budget.eq(budget)]

        # Counts and rows, the first row as often as the unit reads it.
        keep = p.clusters <= p.counts
        given, begins, loaded = Signal(range(p.words + 1)), Signal(init=1), Signal()
        reading, mine = Signal(range(p.readings + 1)), Signal()  # mine: a word of the first row
        word, own_last, takes = Signal(range(max(2, p.words))), Signal(), Signal()
        held, row, before = Signal(), unit.i.payload, Signal.like(unit.i.payload.as_value())
        counted = Signal()  # the last word of counts goes
        m.d.comb += [
            mine.eq(reading < p.readings),
            unit.c.valid.eq(~loaded),
            unit.c.payload.counts.eq(counts.word_select(given, p.n_w * p.count_bits)),
            unit.c.payload.first.eq(begins),
            unit.c.payload.keep.eq(keep),
            counted.eq(given == top // p.n_w),
            own_last.eq(word == top // p.n_w),
            unit.i.valid.eq(~begins),
            row.as_value().eq(before),
            takes.eq(unit.i.valid & unit.i.ready),
        ]
        with m.If(~held):
            m.d.comb += [
                row.scores.eq(Mux(mine, codes.word_select(word, p.n_w * p.score.bits), self.scores)),
                row.last.eq(Mux(mine, own_last, self.last | (word == p.words - 1))),
                row.keep.eq(Mux(mine, Mux(own_last, top % p.n_w, 0), self.keep)),
            ]
        with m.If(unit.c.valid & unit.c.ready):
            m.d.sync += [given.eq(Mux(counted, 0, given + 1)), loaded.eq(counted & keep), begins.eq(0)]
        m.d.sync += [held.eq(unit.i.valid & ~unit.i.ready), before.eq(row)]
        with m.If(takes):
            m.d.sync += [word.eq(Mux(row.last, 0, word + 1)), reading.eq(reading + (mine & row.last))]

        # The row's output beats.
        beat, got, done = unit.o.payload, Signal(p.clusters), Signal()
        ends, mask = Signal(), Signal(p.clusters)
        m.d.comb += [
            unit.o.ready.eq(1),
            ends.eq(unit.o.valid & beat.last & ~done),
            mask.eq(got | (beat.mask << (beat.addr * p.n_w))),
        ]
        m.d.sync += done.eq(done | ends)
        with m.If(unit.o.valid):
            m.d.sync += got.eq(mask)

        # The selection that golden defines.
        there = [k <= top for k in range(p.clusters)]
        values = Array(int(v) for v in value(range(1 << p.score.bits), p.score))
        weight = []
        for k in range(p.clusters):
            w = Signal(p.score.value_bits + p.count_bits, name=f"weight{k}")
            own = Mux(budgeted, 1, values[code[k]]) if p.budget else values[code[k]]
            m.d.comb += w.eq(Mux(there[k], own * count[k], 0))
            weight.append(w)
        th = Signal(p.sum_bits)
        share = (reduce(add, weight) * ratio) >> 2
        m.d.comb += th.eq(Mux(budgeted, budget, share) if p.budget else share)

        def weighs(some):
            """Weight of the clusters whose bit is set."""
            return reduce(add, (Mux(bit, w, 0) for bit, w in zip(some, weight, strict=True)))

        exists, everything = Signal(p.clusters), Signal()
        m.d.comb += [exists.eq(Cat(there)), everything.eq(mask == exists)]
        if self.reach:
            m.d.comb += Assert(~ends | everything, "no row is selected in part")
            return m
        order = self._before if p.selection == "exact" else self._above
        earlier = [[order(code, j, k) for j in range(p.clusters)] for k in range(p.clusters)]
        rank = self._bucket(m, code, there) if p.selection == "buckets" else None
        skips, tail = [], []
        for k in range(p.clusters):
            skips += [mask[k] & there[j] & ~mask[j] & earlier[k][j] for j in range(p.clusters) if j != k]
            if rank is None:
                ahead_of = [mask[j] & earlier[k][j] for j in range(p.clusters)]
            else:
                ahead_of = [mask[j] & (rank[j] < rank[k]) for j in range(p.clusters)]
            tail.append(~mask[k] | (weighs(ahead_of) <= th))
        tokens = reduce(add, (Mux(mask[k], count[k], 0) for k in range(p.clusters)))
        m.d.comb += [
            Assert(~ends | ((mask & ~exists) == 0), "a cluster that is none"),
            Assert(~ends | everything | (weighs(mask) > th), "it does not reach the threshold"),
            Assert(~ends | ~reduce(or_, skips), "one is left out before one that is in"),
            Assert(~ends | reduce(and_, tail), "it is not minimal"),
            Assert(~ends | (beat.clusters == reduce(add, mask)), "its clusters are not counted"),
            Assert(~ends | (beat.tokens == tokens), "its tokens are not counted"),
        ]
        return m

    @staticmethod
    def _before(code: list[Value], j: int, k: int) -> Value:
        """Whether cluster j comes before k: by its code, then by its index."""
        return code[j] >= code[k] if j < k else code[j] > code[k]

    @staticmethod
    def _above(code: list[Value], j: int, k: int) -> Value:
        return code[j] >= code[k]

    def _bucket(self, m: Module, code: list[Value], there: list[Value]) -> list[Signal]:
        """The bucket of each cluster, 0 the highest: ((max - c) * n) // (max - min + 1)."""
        n, bits = self.p.n_buckets, self.p.score.bits
        high, low = Signal(bits), Signal(bits)
        found = list(zip(there, code, strict=True))
        m.d.comb += [
            high.eq(reduce(lambda a, b: Mux(a > b, a, b), (Mux(t, c, 0) for t, c in found))),
            low.eq(reduce(lambda a, b: Mux(a < b, a, b), (Mux(t, c, (1 << bits) - 1) for t, c in found))),
        ]
        out = []
        for k, c in enumerate(code):
            rank = Signal(range(max(2, n)), name=f"bucket{k}")
            span = high - low + 1
            m.d.comb += rank.eq(sum((high - c) * n >= b * span for b in range(1, n)))
            out.append(rank)
        return out
