"""Proof about rows of scores: a row that reaches the WTU has one code for each cluster of its context, and no more.

Words, stalls and SWITCHes are free in every cycle, so the proof holds for any stream, however wrong. Only a word and a
SWITCH never come together (`tb.formal.dre_join_proof`).
"""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval.row_check import RowCheck, score_layout


class RowMonitor(wiring.Component):
    """A row check between free inputs, with claims about the words that it passes.

    With `reach` it claims instead that no row of two words passes. That claim must fail.
    """

    def __init__(self, p: WtuParams, reach: bool = False):
        self.p, self.reach = p, reach
        super().__init__(
            {
                "valid": In(1),
                "word": In(score_layout(p)),
                "ready": In(1),
                "switches": In(1),
                "clusters": In(bits_for(p.clusters + 1)),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = RowCheck(p)
        clusters = Signal.like(self.clusters)  # of the SWITCH
        m.d.comb += [
            clusters.eq(Mux(self.clusters > p.clusters, p.clusters, self.clusters)),
            Assume(~(self.valid & self.switches)),
            unit.i.valid.eq(self.valid),
            unit.i.payload.eq(self.word),
            unit.o.ready.eq(self.ready),
            unit.switches.eq(self.switches),
            unit.clusters.eq(clusters),
        ]
        passes, row = unit.o.valid & unit.o.ready, unit.o.payload.row
        known = Signal.like(clusters)  # clusters of the last SWITCH; 0 before the first
        before = Signal(bits_for(p.clusters + 1))  # codes of the row in the words before
        cut = Signal()  # a SWITCH came in the middle of a row
        codes = before + Mux(row.last, row.keep + 1, p.n_w)
        with m.If(self.switches):
            m.d.sync += [known.eq(clusters), cut.eq(before != 0)]
        with m.If(passes):
            m.d.sync += before.eq(Mux(row.last, 0, before + p.n_w))
        if self.reach:
            m.d.comb += Assert(~(passes & row.last & (before != 0)), "no row of two words passes")
            return m
        m.d.comb += [
            Assert(~passes | (codes <= known), "a code passes that belongs to no cluster"),
            Assert(~passes | ~row.last | (codes == known), "a row ends before its last cluster"),
            Assert(~passes | ~cut, "a row goes on behind a SWITCH"),
            Assert(~(unit.i.valid & unit.i.ready) | passes, "a word is lost"),
        ]
        return m
