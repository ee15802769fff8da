"""Proof about the exact WTU's bins: each holds exactly what its own histogram added.

Histograms have numbers that come round. The proof follows one bin of one lane for ever. Words, walks and new histograms
come in any order that the unit's data sheet allows. One case is a word that is read in the cycle in which a new
histogram starts.
"""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from golden.function_params import ScoreFormat
from hdl.params import WtuParams
from hdl.retrieval.wtu_histogram import WeightedHistogram

SMALL = WtuParams(
    n_w=1, clusters=2, score=ScoreFormat(2, 1), count_bits=1, bin_bits=2, list_depth=1, count_digit=1, n_buckets=2
)


class BinMonitor(wiring.Component):
    """A histogram of one lane and one set of bins.

    With `reach` it claims instead that no walked bin holds anything in a histogram after the numbers came round. That
    claim must fail.
    """

    def __init__(self, reach: bool = False):
        self.reach = reach
        bits = SMALL.bin_bits
        free = {"take": 1, "bin": bits, "mantissa": 1, "count": 1, "starts": 1, "walk": 1, "walk_bin": bits}
        super().__init__({"watched": In(bits), **{name: In(width) for name, width in free.items()}})

    def elaborate(self, platform):
        m, bits = Module(), SMALL.bin_bits
        m.submodules.unit = unit = WeightedHistogram(SMALL, bits)
        watched, begun = Signal(bits), Signal()
        m.d.sync += [begun.eq(1), watched.eq(Mux(begun, watched, self.watched))]

        # After a reset the bins are cleared; then inputs are free.
        clearing, took = Signal(range((1 << bits) + 1), init=1 << bits), Signal(2)
        ready = clearing == 0
        m.d.sync += [clearing.eq(Mux(ready, 0, clearing - 1)), took.eq(Mux(unit.take, 1, took << 1))]
        m.d.comb += [
            unit.take.eq(self.take & ready & begun),
            unit.next.eq((self.starts & ~took[0]) | ~ready),
            unit.walk.eq(self.walk & ready & ~unit.take & ~took[0]),
            unit.walk_bin.eq(self.walk_bin),
            unit.first.eq(0),
            unit.there.eq(1),
            unit.used.eq(1),
            unit.bins[0].eq(self.bin),
            unit.mantissas[0].eq(self.mantissa),
            unit.counts[0].eq(self.count),
        ]

        # The value that the watched bin must hold.
        held, came, mine = Signal(unit.weight_bits), Signal(3), Signal()
        significand = Signal(3)  # subnormal codes have no hidden bit
        m.d.comb += significand.eq(self.mantissa | Mux(self.bin == 0, 0, 2))
        m.d.sync += [came.eq(Mux(self.count, significand, 0)), mine.eq(unit.take & (self.bin == watched))]
        with m.If(unit.next):
            m.d.sync += held.eq(0)
        with m.Elif(mine):
            m.d.sync += held.eq(held + came)
        rounds = Signal(bits + 1)
        m.d.sync += rounds.eq(Mux(ready & unit.next & ~rounds[-1], rounds + 1, rounds))

        # The answer of a walk comes two cycles later.
        asked, due, wants, want = Signal(), Signal(), Signal.like(held), Signal.like(held)
        m.d.sync += [asked.eq(unit.walk & (self.walk_bin == watched) & ~unit.next), due.eq(asked)]
        m.d.sync += [wants.eq(held), want.eq(wants)]
        if self.reach:
            m.d.comb += Assert(~(due & want.any() & rounds[-1]), "nothing is found in a later round")
        else:
            m.d.comb += Assert(~due | (unit.bin_sum == want), "a bin holds something else")
        return m
