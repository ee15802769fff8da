"""Reads the token counts of a context for the WTU."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.kvmu_layouts import counts_layout, map_port
from openvrex.hdl.retrieval.table_client import ask_layout


def switch_layout(p: KvmuParams) -> data.StructLayout:
    """A SWITCH to context `ctx`, which has `clusters` clusters."""
    return data.StructLayout({"ctx": bits_for(p.n_ctx), "clusters": bits_for(p.clusters + 1)})


class CountStream(wiring.Component):
    """Asks for the counts of a context ahead of time, as far as the WTU's ring has room, and forwards the words.

    A context that the ring can hold comes once. The counts of a larger one come round and round, until the next SWITCH:
    a word for each that the WTU uses. Words that come are never held back, as the ring has a place for each.

    Parameters
    ----------
    p : KvmuParams

    Members
    -------
    switch : In(stream of `switch_layout`) : taken when the ring may be emptied and no word is on its way
    switched : Out(1) : the ring is full, or holds all counts
    ask : Out(stream of `ask_layout`) : reads of counts; may be withdrawn
    came : In(struct of `valid` and `counts`) : a word that was asked for
    c : Out(`counts_layout`), c_free, c_used : In(1) : as the KVMU's

    Latency: an ask 1 cycle after the SWITCH; a word goes on in the cycle in which it comes.
    Throughput: an ask and a word every cycle.
    Raises: nothing of its own.
    Source: this project's own; V-Rex section V-C keeps the table of counts in DRAM.
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        n_ctx, n_index, _, most, *_ = map_port(p)
        counts = counts_layout(p)["counts"].shape
        super().__init__(
            {
                "switch": In(stream.Signature(switch_layout(p))),
                "switched": Out(1),
                "ask": Out(stream.Signature(ask_layout(n_ctx, n_index, most))),
                "came": In(data.StructLayout({"valid": 1, "counts": counts})),
                "c": Out(counts_layout(p)),
                "c_free": In(1),
                "c_used": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        scan, ring = _Scan(self.p), _Ring(self.p)
        self._begin(m, scan, ring)
        self._ask(m, scan, ring)
        self._forward(m, scan, ring)
        return m

    def _begin(self, m: Module, scan: "_Scan", ring: "_Ring") -> None:
        """Takes a SWITCH, and begins with an empty ring."""
        beat = self.switch.payload
        m.d.comb += [
            ring.empties.eq(self.switch.valid & (ring.coming == 0)),
            self.switch.ready.eq(ring.empties & (self.c_free | (beat.clusters == 0))),
        ]
        with m.If(self.switch.ready):
            m.d.sync += [
                scan.ctx.eq(beat.ctx),
                scan.last.eq(beat.clusters - 1),
                scan.keep.eq(beat.clusters <= self.p.counts if self.p.clusters > self.p.counts else 1),
                scan.at.eq(0),
                scan.goes.eq(beat.clusters != 0),
                ring.first.eq(beat.clusters != 0),
                ring.room.eq(self.p.ring),
            ]

    def _ask(self, m: Module, scan: "_Scan", ring: "_Ring") -> None:
        """Asks for the next read if the ring has room for the longest one."""
        p, ask = self.p, self.ask.payload
        few, lane = p.read_counts.bit_length() - 1, p.count_lanes.bit_length() - 1
        rest = scan.last % p.read_counts  # counts behind the first one of the last read
        m.d.comb += [
            scan.final.eq(scan.at >> few == scan.last >> few),
            scan.words.eq(Mux(scan.final, (rest >> lane) + 1, p.read_words)),
            scan.may.eq(scan.goes & (ring.room >= p.read_words)),
            self.ask.valid.eq(scan.may & ~self.switch.valid),
            ask.item.eq(Item.COUNT),
            ask.ctx.eq(scan.ctx),
            ask.index.eq(scan.at),
            ask.more.eq(Mux(scan.final, rest, p.read_counts - 1)),
            scan.asks.eq(self.ask.valid & self.ask.ready),
        ]
        with m.If(scan.asks):
            m.d.sync += scan.at.eq(Mux(scan.final, 0, scan.at + p.read_counts))
            with m.If(scan.final & scan.keep):
                m.d.sync += scan.goes.eq(0)

    def _forward(self, m: Module, scan: "_Scan", ring: "_Ring") -> None:
        """Hands on the words that come, and counts the ring's places."""
        asked = Mux(scan.asks, scan.words, 0)
        m.d.comb += [
            self.c.valid.eq(self.came.valid),
            self.c.counts.eq(self.came.counts),
            self.c.first.eq(ring.first | ring.empties),
            self.c.keep.eq(scan.keep),
            ring.left.eq(ring.coming - self.came.valid),
            self.switched.eq(~scan.may & (ring.left == 0)),
        ]
        m.d.sync += ring.coming.eq(ring.left + asked)
        with m.If(self.came.valid):
            m.d.sync += ring.first.eq(0)
        with m.If(~self.switch.ready):
            m.d.sync += ring.room.eq(ring.room - asked + self.c_used)


class _Scan:
    """The context, and the read that comes next."""

    def __init__(self, p: KvmuParams):
        self.ctx = Signal(bits_for(p.n_ctx))
        self.last = Signal(p.cluster_bits)  # its highest cluster
        self.keep = Signal()  # the ring holds all its counts
        self.goes = Signal()  # there are reads to make
        self.may = Signal()  # the ring has room for another one
        self.at = Signal(bits_for(p.clusters + p.read_counts))  # the first cluster of the next read
        self.final = Signal()  # that read ends with the highest cluster
        self.words = Signal(bits_for(p.read_words + 1))  # words of that read
        self.asks = Signal()  # it is made


class _Ring:
    """The WTU's ring, as far as the unit knows."""

    def __init__(self, p: KvmuParams):
        self.room = Signal(bits_for(p.ring + 1))  # words that can be asked for
        self.coming = Signal(bits_for(p.ring + 1))  # words that were asked for and have not come
        self.left = Signal(bits_for(p.ring + 1))  # the same, without a word that comes now
        self.empties = Signal()  # a SWITCH waits, and no word is on its way
        self.first = Signal()  # the next word is the first one of its context
