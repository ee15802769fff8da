"""Proof that a WTU selects golden's set: for every row, budget, table of counts and stall, row after row, unbounded."""

from functools import reduce
from operator import add

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval.wtu import Wtu
from openvrex.tb.formal.wtu_set_proof import TH_STEPS

SMALL = WtuParams(
    n_w=1, clusters=2, counts=2, score=ScoreFormat(1, 1), count_bits=1, bin_bits=1, count_digit=1, n_buckets=2
)


def selection_layout(p: WtuParams) -> data.StructLayout:
    """A row: score codes, its highest cluster, its ratio in units of 2^-TH_STEPS, and if the WTU has budgets, one."""
    budget = {"budgeted": 1, "budget": bits_for(p.clusters + 1) + p.count_bits} if p.budget else {}
    codes = data.ArrayLayout(p.score.bits, p.clusters)
    return data.StructLayout({"codes": codes, "top": bits_for(p.clusters), "ratio": TH_STEPS + 1, **budget})


class WtuSpec(wiring.Component):
    """The selection of a row: a cluster is in it if those before it do not weigh more than Th.

    Members
    -------
    row : In(`selection_layout`), counts : In(array of count_bits) : the row, and the token counts
    chosen : Out(clusters) : the selection
    ranks : Out(array), deepest : Out : of whole buckets: the bucket of each cluster, 0 the highest; the last selected
    """

    def __init__(self, p: WtuParams):
        self.p = p
        counts = data.ArrayLayout(p.count_bits, p.clusters)
        members = {"row": In(selection_layout(p)), "counts": In(counts), "chosen": Out(p.clusters)}
        if p.selection == "buckets":
            bits = bits_for(p.n_buckets)
            members |= {"ranks": Out(data.ArrayLayout(bits, p.clusters)), "deepest": Out(bits)}
        super().__init__(members)

    def elaborate(self, platform):
        p, m, row = self.p, Module(), self.row
        values = Array(int(v) for v in value(range(1 << p.score.bits), p.score))
        weights = []
        for k in range(p.clusters):
            w = Signal(p.score.value_bits + p.count_bits, name=f"weight{k}")
            own = Mux(row.budgeted, 1, values[row.codes[k]]) if p.budget else values[row.codes[k]]
            m.d.comb += w.eq(Mux(k <= row.top, own * self.counts[k], 0))
            weights.append(w)
        th = Signal(p.sum_bits)
        share = (reduce(add, weights) * row.ratio) >> TH_STEPS
        m.d.comb += th.eq(Mux(row.budgeted, row.budget, share) if p.budget else share)
        ranks = self._ranks(m)
        if p.selection == "buckets":
            m.d.comb += [self.ranks[k].eq(rank) for k, rank in enumerate(ranks)]
            m.d.comb += self.deepest.eq(p.n_buckets - 1)
            for b in reversed(range(p.n_buckets)):
                with m.If(reduce(add, (Mux(self.ranks[k] <= b, weights[k], 0) for k in range(p.clusters))) > th):
                    m.d.comb += self.deepest.eq(b)
        for k in range(p.clusters):
            before = reduce(add, (Mux(self._comes(ranks, j, k), weights[j], 0) for j in range(p.clusters)))
            m.d.comb += self.chosen[k].eq((k <= row.top) & (before <= th))
        return m

    def _comes(self, ranks: list[Value], j: int, k: int) -> Value:
        """Whether cluster j comes before k: by its rank, and if single clusters are selected then by its index."""
        return ranks[j] <= ranks[k] if j < k and self.p.selection == "exact" else ranks[j] < ranks[k]

    def _ranks(self, m: Module) -> list[Value]:
        """What clusters are ordered by, the least first: ((max - c) * n) // (max - min + 1), or ~c."""
        p, codes = self.p, self.row.codes
        if p.selection == "exact":
            return [~codes[k] for k in range(p.clusters)]
        n, top = p.n_buckets, (1 << p.score.bits) - 1
        high, low = Signal(p.score.bits), Signal(p.score.bits)
        found = [(k <= self.row.top, codes[k]) for k in range(p.clusters)]
        m.d.comb += [
            high.eq(reduce(lambda a, b: Mux(a > b, a, b), (Mux(there, c, 0) for there, c in found))),
            low.eq(reduce(lambda a, b: Mux(a < b, a, b), (Mux(there, c, top) for there, c in found))),
        ]
        return [sum((high - c) * n >= b * (high - low + 1) for b in range(1, n)) for _, c in found]


class WtuMonitor(wiring.Component):
    """A WTU and its specification, with free rows, counts and stalls, and resets at any time.

    Counts that do not fit in the ring stream, and then each row has all words of its context. A new context may be
    offered at any time, and withdrawn.

    `reach`: the claim is that every row is selected whole, which must fail.
    """

    def __init__(self, p: WtuParams, reach: bool = False):
        self.p, self.reach = p, reach
        free = {"row": selection_layout(p), "counts": data.ArrayLayout(p.count_bits, p.n_w)}
        free |= dict.fromkeys(("row_valid", "counts_valid", "first", "ready"), 1)
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = Wtu(p)
        m.submodules.spec = spec = WtuSpec(p)
        keep = p.clusters <= p.counts
        m.d.comb += [Assume(self.row.top < p.clusters), Assume(self.row.ratio <= 1 << TH_STEPS)]
        if not keep:
            m.d.comb += Assume(self.row.top // p.n_w == p.words - 1)
        takes, moves, gives = (s.valid & s.ready for s in (unit.i, unit.o, unit.c))
        beat = unit.o.payload
        over = moves & beat.last

        # The row in work and the next one, whose first word may be offered before its turn.
        row, behind = (Signal(selection_layout(p), name=name, reset_less=True) for name in ("row_now", "row_next"))
        loaded, held = Signal(range(3)), Signal()
        word, reading, flight = Signal(range(max(2, p.words))), Signal(range(p.readings + 1)), Signal()
        with m.If(over | (loaded != 2)):
            m.d.sync += [row.eq(behind), behind.eq(self.row)]
        with m.If(loaded != 2):
            m.d.sync += loaded.eq(loaded + 1)
        read = reading == p.readings  # all words of the row in work
        offered, last = Signal(selection_layout(p)), Signal()
        m.d.comb += [offered.eq(Mux(read, behind, row)), last.eq(word == offered.top // p.n_w)]
        m.d.sync += held.eq(unit.i.valid & ~unit.i.ready)
        with m.If(takes):
            m.d.sync += [word.eq(Mux(last, 0, word + 1)), reading.eq(reading + last), flight.eq(1)]
        with m.Elif(over):
            m.d.sync += [reading.eq(0), flight.eq(0)]

        # The counts of the context, which stream again and again if they do not fit, and those ahead of the words.
        counts = Signal(data.ArrayLayout(p.n_w * p.count_bits, p.words), reset_less=True)
        known, at, ahead = Signal(range(p.words + 1)), Signal(range(p.words + 1)), Signal(range(p.words + 2))
        first = unit.c.payload.first
        place = Mux(first, 0, at)
        whole = known == p.words
        more = (known != 0) if not keep else (known != 0) & ~whole
        with m.If(gives):
            m.d.sync += at.eq(Mux((place == p.words - 1) & (not keep), 0, place + 1))
            with m.If(first | ~whole):
                m.d.sync += [counts[place].eq(self.counts.as_value()), known.eq(place + 1)]
        with m.If(gives & first):
            m.d.sync += ahead.eq(1)
        with m.Elif(not keep):
            m.d.sync += ahead.eq(ahead + gives - takes)
        here = (word < known) if keep else (ahead != 0)

        m.d.comb += [
            unit.c.valid.eq(self.counts_valid & (self.first | more)),
            unit.c.payload.counts.eq(Mux(whole & ~self.first, counts[at], self.counts.as_value())),
            unit.c.payload.first.eq(self.first),
            unit.c.payload.keep.eq(keep),
            unit.i.valid.eq(held | (self.row_valid & (loaded == 2))),
            unit.i.payload.scores.eq(offered.codes.as_value().word_select(word, p.n_w * p.score.bits)),
            unit.i.payload.last.eq(last),
            unit.i.payload.keep.eq(Mux(last, offered.top % p.n_w, 0)),
            unit.ratio.eq(row.ratio << (TH_STEPS if p.selection == "exact" else 16) - TH_STEPS),
            unit.o.ready.eq(self.ready),
            spec.row.eq(row),
            spec.counts.eq(counts.as_value()),
        ]
        if p.budget:
            m.d.comb += [unit.budgeted.eq(row.budgeted), unit.budget.eq(row.budget)]

        # The next beat: the next word, bucket by bucket, that has a cluster, or the last word.
        parts, final = [spec.chosen.word_select(k, p.n_w) for k in range(p.words)], row.top // p.n_w
        if p.selection == "buckets":
            own = [Cat(rank == b for rank in spec.ranks) & spec.chosen for b in range(p.n_buckets)]
            parts = [mask.word_select(k, p.n_w) for mask in own for k in range(p.words)]
            final = spec.deepest * p.words + final
        start, part, mask = Signal(range(len(parts) + 1)), Signal(range(len(parts))), Signal(p.n_w)
        m.d.comb += part.eq(final)
        for k in reversed(range(len(parts))):
            with m.If((k >= start) & parts[k].any()):
                m.d.comb += part.eq(k)
        for k, own in enumerate(parts):
            with m.If(part == k):
                m.d.comb += mask.eq(own)
        with m.If(moves):
            m.d.sync += start.eq(Mux(beat.last, 0, part + 1))
        ends = Signal()
        m.d.comb += ends.eq(part == final)
        clusters = reduce(add, (spec.chosen[k] for k in range(p.clusters)))
        tokens = reduce(add, (Mux(spec.chosen[k], spec.counts[k], 0) for k in range(p.clusters)))
        if self.reach:
            m.d.comb += Assert(~(unit.o.valid & ends & (clusters == row.top)), "a row is selected in part")
            return m

        # Somebody is slow, or the unit goes on in time.
        slow = (unit.o.valid & ~unit.o.ready) | (flight & ~read & ~(unit.i.valid & here))
        room = first | keep | (ahead < p.count_words)
        must = flight | (unit.i.valid & here & ~(unit.c.valid & first)) | (unit.c.valid & room)
        most = self._most()
        waits = Signal(range(most + 2))
        m.d.sync += waits.eq(Mux(must & ~slow & ~takes & ~moves & ~gives, waits + 1, 0))
        rows = Signal(2)
        m.d.sync += rows.eq(rows + over)
        offers = unit.o.valid
        for holds, what in (
            (~takes | here, "a word goes before its counts"),
            (~takes | ~read, "a word of the next row is taken during a row"),
            (~(gives & first) | ~flight, "counts of the next context are taken during a row"),
            (~offers | flight, "a beat of no row"),
            (~offers | ((beat.addr == part % p.words) & (beat.mask == mask)), "another selection"),
            (~offers | (beat.last == ends), "another end"),
            (~(offers & ends) | (beat.clusters == clusters), "the count of clusters"),
            (~(offers & ends) | (beat.tokens == tokens), "the count of tokens"),
            (~unit.idle | ~flight, "idle during a row"),
            (unit.used == (takes & (not keep)), "used shows a place that gets free"),
            (waits <= most, "the unit goes on in time"),
            (flight | (unit.perf.rows == rows), "the count of rows"),
        ):
            m.d.comb += Assert(holds, what)
        return m

    def _most(self) -> int:
        """Cycles in which nothing moves, at most: the walks of a reading and Th, the tests of a word, or the passes."""
        p = self.p
        if p.selection != "exact":
            return 2 + 4 + p.words * (p.n_buckets + 1)
        walks = 2 * len(p.bin_units) + TH_STEPS
        return walks + (p.test_steps + 1) * (p.count_digits + 5) + 4
