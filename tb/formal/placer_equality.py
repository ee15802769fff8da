"""Proof that the KVMU's placer equals its specification: for every beat, stall and answer of memory."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.kvmu_layouts import (
    APPEND,
    CLEAR,
    SWITCH,
    append_layout,
    map_port,
    sharing_members,
    span_layout,
)
from openvrex.hdl.retrieval.placer import Placer
from openvrex.tb.formal.placer_spec import PlacerSpec

OWED = 3  # most reads in flight, but in a CLEAR
IDLES = 2  # cycles without a stall in which a beat may go on without an event


class PlacerMonitor(wiring.Component):
    """A placer and its specification, with free beats, answers and stalls, and resets at any time.

    Items come in the order of the asks, each as late as memory likes. `idle` is free, as fetches run beside it.

    `reach`: the claim is that no entry that takes a freed block moves another home, which must fail.
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        self.p, self.reach = p, reach
        bits = map_port(p).bits
        ones = ("beat_valid", "walks", "ask_ready", "put_ready", "x_ready", "w_ready", "gives", "spans", "switch_ready")
        free = {"beat": append_layout(p), "came": bits, "span": span_layout(p), "switched": 1}
        bases = {"device_base": p.addr_bits, "home_base": p.addr_bits, "blocks": bits_for(p.blocks + 1)}
        members = free | bases | dict.fromkeys(ones, 1)
        super().__init__({name: In(shape) for name, shape in members.items()} | sharing_members(p))

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = Placer(p)
        m.submodules.spec = spec = PlacerSpec(p)
        beat = self.beat
        for legal in (
            beat.op <= SWITCH,
            beat.ctx < p.n_ctx,
            beat.cluster < p.clusters,
            beat.clusters <= p.clusters,
            (self.blocks > 0) & (self.blocks <= p.blocks),
        ):
            m.d.comb += Assume(legal)
        takes = unit.a.valid & unit.a.ready
        # What is stable while the unit works.
        steady = ["device_base", "home_base", "blocks", *(["quota"] if p.shared else [])]
        for name in steady:
            kept = Signal.like(getattr(self, name), name=f"steady_{name}", reset_less=True)
            with m.If(spec.idle & ~takes):
                m.d.sync += kept.eq(getattr(self, name))
            m.d.comb += [getattr(unit, name).eq(kept), getattr(spec, name).eq(kept)]
        owed, rows = Signal(range(p.rows + 4)), Signal(range(p.rows + 2))  # items to come; rows that came
        shown, span = Signal(), Signal(span_layout(p))
        asks, comes = unit.ask.valid & unit.ask.ready, unit.came.valid
        pops = unit.rows.valid & unit.rows.ready
        item = Signal(bits_for(len(Item)))
        m.d.sync += owed.eq(owed + asks - comes)
        row = comes & unit.clears & (item == Item.ROW)
        m.d.sync += rows.eq(rows + row - pops)
        with m.If(~shown | pops):
            m.d.sync += [shown.eq(self.spans & (rows + row != pops)), span.eq(self.span)]
        # The kinds of the items that are owed, oldest first.
        line = [Signal(bits_for(len(Item)), name=f"kind{k}") for k in range(p.rows + 3)]
        for k, kind in enumerate(line):
            with m.If(asks & (owed - comes == k)):
                m.d.sync += kind.eq(unit.ask.payload.item)
            with m.Elif(comes):
                m.d.sync += kind.eq(line[min(k + 1, len(line) - 1)])
        m.d.comb += item.eq(line[0])
        m.d.comb += [
            unit.a.valid.eq(self.beat_valid),
            unit.a.payload.eq(self.beat),
            unit.idle.eq(self.walks),
            unit.ask.ready.eq(self.ask_ready),
            unit.put.ready.eq(self.put_ready),
            unit.x.ready.eq(self.x_ready),
            unit.w.ready.eq(self.w_ready),
            unit.switch.ready.eq(self.switch_ready),
            unit.switched.eq(self.switched),
            unit.came.valid.eq(self.gives & owed.any()),
            unit.came.item.eq(item),
            unit.came.data.eq(self.came),
            unit.rows.valid.eq(shown),
            unit.rows.payload.eq(span),
        ]
        happens = {
            "takes": takes,
            "comes": comes,
            "pops": pops,
            "asks": asks,
            "puts": unit.put.valid & unit.put.ready,
            "moves": unit.x.valid & unit.x.ready,
            "switches": unit.switch.valid & unit.switch.ready,
            "replies": unit.w.valid & unit.w.ready,
        }
        m.d.comb += [getattr(spec, name).eq(value) for name, value in happens.items()]
        m.d.comb += [spec.switched.eq(self.switched), spec.beat.eq(self.beat), spec.came.eq(self.came)]
        m.d.comb += spec.span.eq(span)
        serving = Signal(append_layout(p))
        with m.If(takes):
            m.d.sync += serving.eq(self.beat)
        appends, clears = (~spec.idle & (serving.op == op) for op in (APPEND, CLEAR))
        if self.reach:
            freed = Signal()
            with m.If(takes):
                m.d.sync += freed.eq(0)
            with m.Elif(asks & appends & (unit.ask.payload.item == Item.NEXT)):
                m.d.sync += freed.eq(1)
            m.d.comb += Assert(~(happens["moves"] & freed & appends), "a freed block beside a move")
            return m
        refusals = Signal(2)  # pulses for this entry
        m.d.sync += refusals.eq(Mux(takes, 0, refusals + (unit.refuses & ~refusals[1])))
        pairs = [
            (unit.ask, spec.ask, spec.ask_due, "ask"),
            (unit.put, spec.put, spec.put_due, "write"),
            (unit.x, spec.move, spec.move_due, "move"),
            (unit.w, spec.reply, spec.reply_due, "reply"),
            (unit.switch, spec.switch, spec.switch_due, "SWITCH"),
        ]
        for got, want, due, what in pairs:
            m.d.comb += [
                Assert(~got.valid | due, f"a {what} that is not due"),
                Assert(~(got.valid & due) | (got.payload.as_value() == want.as_value()), f"another {what}"),
            ]
        waits_for = [
            *(got.valid & ~got.ready for got, *_ in pairs),
            owed.any() & ~self.gives,
            spec.span_due & ~shown,
            ~spec.idle & (serving.op == SWITCH) & ~self.switched,
            spec.idle & ~self.beat_valid,
            spec.idle & (self.beat.op == CLEAR) & ~self.walks,
        ]
        moves_on = Cat(happens.values()).any()
        waits = Signal(range(IDLES + 2))
        m.d.sync += waits.eq(Mux(Cat(waits_for).any() | moves_on, 0, waits + (waits <= IDLES)))
        zeroes = happens["puts"] & (unit.put.payload.item == Item.ROW)
        hold = clears | (takes & (self.beat.op == CLEAR))
        for claim, what in (
            (~takes | (spec.idle & (spec.pooled | (self.beat.op == SWITCH))), "a beat beside another, or without pool"),
            (~(takes & (self.beat.op == CLEAR)) | self.walks, "a CLEAR beside a fetch"),
            (~pops | (spec.span_due & ((span.slots == 0) | zeroes)), "a row goes before its blocks are free"),
            (~(zeroes & clears) | pops, "a row is freed twice"),
            (~takes | ((owed == 0) & (rows == 0)), "a beat begins before the one before has all it asked for"),
            (owed <= Mux(clears, p.rows + 1, OWED), "more reads in flight than `tb.formal.kvmu_join_proof` knows"),
            (rows <= p.rows, "more rows than there are places"),
            (unit.clears == clears, "rows belong to a CLEAR"),
            (~hold | unit.hold, "no fetch begins beside a CLEAR"),
            (~unit.hold | hold | (self.beat_valid & (self.beat.op == CLEAR)), "fetches are held back for a CLEAR"),
            (~unit.refuses | (appends & (refusals == 0)), "an entry is refused twice, or none"),
            (~(happens["replies"] & appends) | (refusals.any() == spec.refused), "an entry is refused or not"),
            (waits <= IDLES, "the unit goes on in time"),
        ):
            m.d.comb += Assert(claim, what)
        return m
