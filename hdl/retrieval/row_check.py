"""Row check: lets a row of scores through only if it has one code for each cluster of its context."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.named import comb
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval.wtu_lanes import row_layout


def score_layout(p: WtuParams) -> data.StructLayout:
    """A word of a row (`hdl.retrieval.wtu_lanes.row_layout`). `set_last`: in every word of a query block's last row."""
    return data.StructLayout({"row": row_layout(p), "set_last": 1})


class RowCheck(wiring.Component):
    """Stops a row that is shorter or longer than its context, so that no score selects a cluster that is not there.

    Words pass in the cycle in which they come. The word that shows that a row is wrong stays on `i`, and nothing behind
    it passes until a reset: `last` before the last cluster, none at it, another lane than the last cluster's in `keep`,
    any word of a context without clusters, or the rest of a row that a SWITCH cuts. Offer no word with a SWITCH.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    i : In(stream of `score_layout`), o : Out(the same) : rows, and those that are right
    switches : In(1), clusters : In : a SWITCH, and the clusters of its context, which the rows behind it have
    refuses : Out(1) : high from a wrong word on until a reset, while the word is on offer

    Latency: 0. Throughput: a word a cycle.
    Raises: nothing of its own.
    Source: this project's own.
    """

    def __init__(self, p: WtuParams):
        self.p = p
        super().__init__(
            {
                "i": In(stream.Signature(score_layout(p))),
                "o": Out(stream.Signature(score_layout(p))),
                "switches": In(1),
                "clusters": In(bits_for(p.clusters + 1)),
                "refuses": Out(1),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        lane_bits = p.n_w.bit_length() - 1
        row = self.i.payload.row
        final = Signal(bits_for(p.clusters))  # the last cluster
        some = Signal()  # rows may come: there is a cluster
        at = Signal(bits_for(p.words))  # number of the word in its row
        ends = Signal()  # it holds the code of the last cluster: known a word ahead, as `right` is on a long path
        right = Signal()
        last = comb(m, "last", (self.clusters - 1)[: len(final)])
        after = comb(m, "after", Mux(ends, 0, at + 1), len(at))
        with m.If(self.switches):
            m.d.sync += [
                some.eq((self.clusters != 0) & (at == 0)),
                final.eq(last),
                ends.eq(at == last >> lane_bits),
            ]
        lane = (row.keep == final[:lane_bits]) if lane_bits else 1
        m.d.comb += [
            right.eq(some & (row.last == ends) & (~ends | lane)),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & right),
            self.i.ready.eq(self.o.ready & ~self.refuses),
            self.refuses.eq(self.i.valid & ~right),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [at.eq(after), ends.eq(after == final >> lane_bits)]
        return m
