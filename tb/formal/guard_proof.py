"""Proofs about the guard: nothing outside the regions leaves, and every burst has its answer, in order.

Unbounded, for every manager and memory within AXI4's rules: the manager sends as many beats as it announced, early or
late, and the memory answers what it was asked for. Regions change at any time.
"""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.program.regions import DENIED, PAGE_BITS
from openvrex.hdl.bus.axi import LEN_BITS, address_layout, read_beat, response_layout, write_beat
from openvrex.hdl.bus.guard import Guard, reach_layout

BUS_BYTES, REGIONS, MOST = 1, 2, 2
_BEATS = 2  # bits of a burst's length


class GuardMonitor(wiring.Component):
    """A guard between a free manager and a free memory, with bursts of up to four beats.

    named : bursts say whether they are `named`, and regions whether those may

    With `reach` it claims instead that no refused read of several beats ends while a write waits. That must fail.
    """

    def __init__(self, named: bool = False, reach: bool = False):
        self.named, self.reach = named, reach
        ones = ("ar_valid", "aw_valid", "w_valid", "r_ready", "b_ready", "confine")
        ones += ("ar_ready", "aw_ready", "w_ready", "r_valid", "b_valid")
        payloads = {"ar": address_layout(named), "aw": address_layout(named), "w": write_beat(BUS_BYTES)}
        payloads |= {"r": read_beat(BUS_BYTES), "b": response_layout()}
        members = {**dict.fromkeys(ones, In(1)), **{n: In(x) for n, x in payloads.items()}}
        super().__init__({**members, "regions": In(reach_layout(REGIONS, named))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Guard(BUS_BYTES, REGIONS, MOST, self.named)
        i, o = unit.i, unit.o
        m.d.comb += [unit.confine.eq(self.confine), unit.regions.eq(self.regions)]
        for name in ("ar", "aw", "w"):
            here, there = getattr(i, name), getattr(o, name)
            m.d.comb += [
                here.valid.eq(getattr(self, f"{name}_valid")),
                here.payload.eq(getattr(self, name)),
                there.ready.eq(getattr(self, f"{name}_ready")),
            ]
            held = Signal(name=f"{name}_held")
            before = Signal.like(here.payload.as_value(), name=f"{name}_before")
            m.d.sync += [held.eq(here.valid & ~here.ready), before.eq(here.payload.as_value())]
            m.d.comb += Assume(~held | (here.valid & (here.payload.as_value() == before)))  # the manager keeps an offer
        m.d.comb += [i.r.ready.eq(self.r_ready), i.b.ready.eq(self.b_ready)]
        claims = [*self._reads(m, i, o), *self._writes(m, i, o), *self._inside(m, i, o)]
        if self.reach:
            ends = i.r.valid & i.r.ready & i.r.payload.last & (i.r.payload.resp == DENIED) & ~o.r.valid
            several = Signal()
            m.d.sync += several.eq(i.r.valid & i.r.ready & ~i.r.payload.last)
            m.d.comb += Assert(~(ends & several & i.aw.valid), "a refused read ends while a write waits")
            return m
        for holds, what in claims:
            m.d.comb += Assert(holds, what)
        return m

    def _inside(self, m: Module, i: wiring.PureInterface, o: wiring.PureInterface) -> list[tuple[Value, str]]:
        """A burst on offer was inside when the offer began, is the manager's, and stays until it is taken."""
        out = []
        for name, kind in (("ar", "read"), ("aw", "write")):
            here, there = getattr(i, name), getattr(o, name)
            page, held = here.payload.addr[PAGE_BITS:], Signal(name=f"{name}_offered")
            m.d.sync += held.eq(there.valid & ~there.ready)
            named = here.payload.named if self.named else 0
            may = [(r[f"{kind}_named"] & named) | (r[kind] & ~named) if self.named else r[kind] for r in self.regions]
            within = [of & (r.first <= page) & (page <= r.last) for of, r in zip(may, self.regions, strict=True)]
            inside = ~self.confine | Cat(*within).any()
            refused = here.valid & here.ready & ~(there.valid & there.ready)
            outside = Signal(name=f"{name}_outside")  # the burst was, in the cycle before
            m.d.sync += outside.eq(here.valid & ~here.ready & ~inside)
            same = Cat(there.payload[n] == here.payload[n] for n in ("addr", "len")).all()
            out += [
                (~there.valid | held | inside, f"a {kind} outside the regions leaves"),
                (~refused | ~inside | outside, f"a {kind} inside the regions is refused"),
                (~there.valid | same, f"a {kind} leaves that the manager has not offered"),
                (~held | there.valid, f"an offered {kind} is withdrawn"),
            ]
        return out

    def _reads(self, m: Module, i: wiring.PureInterface, o: wiring.PureInterface) -> list[tuple[Value, str]]:
        """A queue of the manager's reads that have no answer yet: their lengths, and which were refused."""
        at = Signal(range(MOST + 2))  # reads in the queue
        lengths = [Signal(LEN_BITS, name=f"length{k}") for k in range(MOST + 2)]
        denied = [Signal(name=f"denied{k}") for k in range(MOST + 2)]
        beat = Signal(LEN_BITS)  # of the first read
        takes, passes = i.ar.valid & i.ar.ready, o.ar.valid & o.ar.ready
        first_length, first_denied = lengths[0], denied[0]
        m.d.comb += [
            Assume(i.ar.payload.len < 1 << _BEATS),
            o.r.valid.eq(self.r_valid & at.any() & ~first_denied),  # the memory answers what it was asked for
            o.r.payload.eq(self.r),
            Assume(self.r.last == (beat == first_length)),
        ]
        gives, left = i.r.valid & i.r.ready, Signal.like(at)
        ends = gives & (beat == first_length)
        m.d.comb += left.eq(at - ends)
        m.d.sync += [beat.eq(Mux(ends, 0, beat + gives)), at.eq(left + takes)]
        for k in range(MOST + 1):
            new = takes & (left == k)
            m.d.sync += [
                lengths[k].eq(Mux(new, i.ar.payload.len, Mux(ends, lengths[k + 1], lengths[k]))),
                denied[k].eq(Mux(new, ~passes, Mux(ends, denied[k + 1], denied[k]))),
            ]
        stands, stood = i.ar.valid & ~at.any() & ~i.ar.ready & ~o.ar.valid, Signal(name="read_stood")
        m.d.sync += stood.eq(stands)
        refused = i.r.payload.resp == DENIED
        known = at.any() & i.r.valid
        asked = Mux(first_denied, refused & (i.r.payload.last == (beat == first_length)), i.r.payload == o.r.payload)
        return [
            (at <= MOST, "more reads in flight than `most`"),
            (~passes | takes, "a read passes that the manager still offers"),
            (~i.r.valid | at.any(), "an answer to nothing"),
            (~known | asked, "an answer to another read, or out of order"),
            (~(at.any() & first_denied) | i.r.valid, "a refused read waits once it is the first"),
            (~o.r.valid | (o.r.ready == i.r.ready), "the memory's answer waits without need"),
            (~(stands & stood), "a read waits while nothing is in flight"),
        ]

    def _writes(self, m: Module, i: wiring.PureInterface, o: wiring.PureInterface) -> list[tuple[Value, str]]:
        """Counts of bursts that passed and that were refused, of those whose beats went, and of answers."""
        # passed: bursts that passed less those whose beats went; -1: the beats went first
        # gone: bursts whose beats went, owed: bursts that passed, less those that have an answer
        passed, gone, owed = (Signal(range(-4, 4), name=n) for n in ("passed", "gone", "owed"))
        denied, taken = Signal(), Signal()  # a refused burst has no answer yet; its beats were dropped
        lost = Signal()  # a beat was dropped before its burst was refused
        takes, passes = i.aw.valid & i.aw.ready, o.aw.valid & o.aw.ready
        ends, swallows = (x.valid & x.ready & x.payload.last for x in (o.w, i.w))
        answers, memory = i.b.valid & i.b.ready, o.b.valid & o.b.ready
        m.d.sync += [passed.eq(passed + passes - ends), owed.eq(owed + passes - memory), gone.eq(gone + ends - memory)]
        m.d.comb += [
            o.b.valid.eq(self.b_valid & (owed > 0) & (gone > 0)),  # a burst is answered behind its address and beats
            o.b.payload.eq(self.b),
        ]
        with m.If(takes & ~passes):
            m.d.sync += denied.eq(1)
        drops = i.w.valid & i.w.ready & ~(o.w.valid & o.w.ready)
        m.d.sync += lost.eq((lost | drops) & ~denied & ~takes)
        with m.If(drops & swallows):
            m.d.sync += taken.eq(1)
        with m.If(denied & answers & ~memory):
            m.d.sync += [denied.eq(0), taken.eq(0)]
        stands, stood = i.aw.valid & (owed <= 0) & ~denied & ~i.aw.ready & ~o.aw.valid, Signal(name="write_stood")
        m.d.sync += stood.eq(stands)
        refused = i.b.payload.resp == DENIED
        moves = i.w.valid & i.w.ready
        return [
            (owed <= MOST, "more writes in flight than `most`"),
            (~(takes & ~passes & denied), "a second write is refused"),
            (~passes | ~denied, "a write passes one that was refused"),
            (~o.w.valid | (passed > 0) | ((passed == 0) & o.aw.valid), "a beat leaves without a burst"),
            (~o.w.valid | (o.w.payload == i.w.payload), "another beat leaves than the manager's"),
            (~(o.w.valid & o.w.ready) | moves, "a beat leaves that the manager still offers"),
            (~drops | ((passed == 0) & ~o.aw.valid & ~taken & (denied | i.aw.valid)), "a beat is lost"),
            (~lost | (i.aw.valid & ~o.aw.valid), "a burst leaves that lacks a beat"),
            (~(o.w.valid & denied & (passed <= 0)), "a beat of a refused write leaves"),
            (
                ~i.b.valid | o.b.valid | (denied & taken & refused & (owed == 0)),
                "an answer out of order, or to nothing",
            ),
            (~o.b.valid | ((i.b.payload == o.b.payload) & (o.b.ready == i.b.ready)), "the memory's answer stays"),
            (~(denied & taken & (owed == 0)) | i.b.valid, "a refused write waits for its answer"),
            (~(denied & ~taken & (passed == 0)) | i.w.ready, "a beat of a refused write waits"),
            (~(stands & stood), "a write waits while nothing is in flight"),
            (~(i.w.valid & o.w.ready & (passed > 0)) | i.w.ready, "a beat waits whose burst has passed"),
        ]
