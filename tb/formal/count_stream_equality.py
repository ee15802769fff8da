"""Proof that the KVMU's stream of counts equals its specification: for every SWITCH, stall and answer of memory."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.count_stream import CountStream, switch_layout
from openvrex.hdl.retrieval.kvmu_layouts import counts_layout, map_port
from openvrex.hdl.retrieval.table_client import ask_layout


class CountsSpec(wiring.Component):
    """Which counts of a context are read, as far as the WTU's ring has room: an event a cycle.

    Members
    -------
    context, switches : In : a SWITCH is taken · asks : In(1) : the read is made
    comes, uses : In(1) : a word comes; a place of the ring is free again
    ask, ask_due : Out : the next read, while there is room for the longest one
    coming : Out : words on their way · first, keep : Out(1) : of the next word
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        n_ctx, n_index, _, most, *_ = map_port(p)
        ones = dict.fromkeys(("switches", "asks", "comes", "uses"), In(1))
        shows = {"ask_due": Out(1), "first": Out(1), "keep": Out(1), "coming": Out(bits_for(p.ring + 1))}
        super().__init__(
            {"context": In(switch_layout(p)), **ones, **shows, "ask": Out(ask_layout(n_ctx, n_index, most))}
        )

    def elaborate(self, platform):
        p, m, ask = self.p, Module(), self.ask
        now, at, goes = Signal(switch_layout(p)), Signal(range(p.clusters + p.read_counts)), Signal()
        room, counts, words = (Signal(range(n + 1)) for n in (p.ring, p.read_counts, p.read_words))
        rest = now.clusters - at
        m.d.comb += [
            counts.eq(Mux(rest < p.read_counts, rest, p.read_counts)),
            words.eq((counts + p.count_lanes - 1) // p.count_lanes),
            self.ask_due.eq(goes & (room >= p.read_words)),
            self.keep.eq(now.clusters <= p.counts),
            ask.item.eq(Item.COUNT),
            ask.ctx.eq(now.ctx),
            ask.index.eq(at),
            ask.more.eq(counts - 1),
        ]
        asked = Mux(self.asks, words, 0)
        m.d.sync += [room.eq(room - asked + self.uses), self.coming.eq(self.coming + asked - self.comes)]
        with m.If(self.asks):
            m.d.sync += at.eq(at + p.read_counts)
            with m.If(rest <= p.read_counts):  # the last read of the context: it begins again, if it does not fit
                m.d.sync += [at.eq(0), goes.eq(~self.keep)]
        with m.If(self.comes):
            m.d.sync += self.first.eq(0)
        with m.If(self.switches):
            some = self.context.clusters != 0
            m.d.sync += [now.eq(self.context), at.eq(0), goes.eq(some), self.first.eq(some), room.eq(p.ring)]
        return m


class CountsMonitor(wiring.Component):
    """A stream of counts and its specification, with a free WTU, free words and stalls, and resets at any time.

    `reach`: the claim is that no context comes round again, which must fail.
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        self.p, self.reach = p, reach
        ones = ("switch_valid", "ask_ready", "gives", "c_free", "c_used")
        free = {"context": switch_layout(p), "counts": counts_layout(p)["counts"].shape}
        super().__init__({name: In(shape) for name, shape in (free | dict.fromkeys(ones, 1)).items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = CountStream(p)
        m.submodules.spec = spec = CountsSpec(p)
        switches, asks = unit.switch.valid & unit.switch.ready, unit.ask.valid & unit.ask.ready
        comes = self.gives & spec.coming.any()
        # Words of each read in flight, oldest first: as many reads as fit into the ring.
        most = p.counts // p.read_counts + 1
        line = [Signal(range(max(2, p.read_words)), name=f"words{k}") for k in range(most)]
        reads, seen = Signal(range(most + 1)), Signal(range(max(2, p.read_words)))
        ends = comes & (seen == line[0])
        m.d.sync += [reads.eq(reads + asks - ends), seen.eq(Mux(ends, 0, seen + comes))]
        for k, words in enumerate(line):
            with m.If(asks & (reads - ends == k)):
                m.d.sync += words.eq(unit.ask.payload.more // p.count_lanes)
            with m.Elif(ends):
                m.d.sync += words.eq(line[min(k + 1, most - 1)])
        held = Signal(range(p.ring + 1))  # words in the ring, which the WTU has not used
        m.d.sync += held.eq(Mux(switches, 0, held + comes - self.c_used))
        m.d.comb += [
            Assume((self.context.ctx < p.n_ctx) & (self.context.clusters <= p.clusters)),
            Assume(~self.c_used | (held.any() & ~spec.keep)),
            unit.switch.valid.eq(self.switch_valid),
            unit.switch.payload.eq(self.context),
            unit.ask.ready.eq(self.ask_ready),
            unit.came.valid.eq(comes),
            unit.came.counts.eq(self.counts),
            unit.c_free.eq(self.c_free),
            unit.c_used.eq(self.c_used),
            spec.context.eq(self.context),
            spec.switches.eq(switches),
            spec.asks.eq(asks),
            spec.comes.eq(comes),
            spec.uses.eq(self.c_used),
        ]
        if self.reach:
            again = Signal()
            m.d.sync += again.eq(~switches & (again | (asks & (unit.ask.payload.index != 0))))
            m.d.comb += Assert(~(asks & again & (unit.ask.payload.index == 0)), "a context comes round")
            return m
        out, empties = unit.c, self.c_free | (self.context.clusters == 0)
        for claim, what in (
            (unit.switch.ready == (self.switch_valid & empties & (spec.coming == 0)), "a SWITCH waits for words"),
            (unit.ask.valid == (spec.ask_due & ~self.switch_valid), "a read that is not due, or none"),
            (~unit.ask.valid | (unit.ask.payload == spec.ask), "another read"),
            (out.valid == comes, "a word is handed on at once"),
            (~comes | (out.counts == self.counts), "another word"),
            (~comes | ((out.first == spec.first) & (out.keep == spec.keep)), "the first word, and whether it is kept"),
            (unit.switched == (~spec.ask_due & (spec.coming == comes)), "the ring is full, or holds all counts"),
            (held + spec.coming <= p.ring, "a word without a place in the ring"),
            (~asks | (reads - ends < most), "more reads in flight than the ring holds"),
        ):
            m.d.comb += Assert(claim, what)
        return m
