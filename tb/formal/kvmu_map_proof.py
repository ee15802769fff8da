"""Proof about the KVMU's map: it is a bijection on live entries.

A model beside the unit keeps the map as the data sheet defines it, from the unit's ports. It has the cluster of every
home and whether its entry is there, and the home of the entry in every ring slot. No two live entries share a home. No
entry is placed in a ring slot that still holds another. Each entry moves once, from its slot to its own home. A fetch
of a cluster set reads every entry at home in these clusters once, and nothing else: the proof claims it of any one set,
which `pick` chooses.

Operations, clusters, stalls and the initial content of the memories are free. The clusters of a set ascend.
"""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.params import KvmuParams
from hdl.retrieval.kvmu import APPEND, CLEAR, Kvmu

SMALL = KvmuParams(
    n_ctx=1, clusters=2, blocks=2, block_slots=2, recent=1, entry_bytes=1, boundary=2, addr_bits=3, token_bits=1
)


class MapMonitor(wiring.Component):
    """The KVMU between free inputs, with one context and entries of one byte.

    fetches : claim what sets fetch; otherwise where entries are
    reach : claim instead that after a CLEAR nothing is moved, or fetched by a later set; that claim must fail
    """

    def __init__(self, p: KvmuParams, fetches: bool = False, reach: bool = False):
        self.p, self.fetches, self.reach, self.unit = p, fetches, reach, Kvmu(p)
        ones = ("a_valid", "f_valid", "w_ready", "x_ready", "b_ready")
        payloads = {f"{n}_payload": In(getattr(self.unit, n).payload.shape()) for n in ("a", "f")}
        super().__init__({**dict.fromkeys(ones, In(1)), **payloads})

    def elaborate(self, platform):
        m, p = Module(), self.p
        m.submodules.unit = unit = self.unit
        a, f, w, x, b = unit.a, unit.f, unit.w, unit.x, unit.b
        slots = p.blocks * p.block_slots

        def comb(name, value, shape=1):
            s = Signal(shape, name=name)
            m.d.comb += s.eq(value)
            return s

        # Beats of a set ascend, and an empty beat is alone. The next set comes when the one before is fetched.
        going = Signal()
        opens, above = Signal(init=1), Signal(p.cluster_bits)  # the next beat opens a set; the cluster before it
        legal = Mux(self.f_payload.empty, opens & self.f_payload.last, opens | (self.f_payload.cluster > above))
        m.d.comb += [
            a.valid.eq(self.a_valid),
            a.payload.eq(self.a_payload),
            a.payload.ctx.eq(0),
            f.valid.eq(self.f_valid & legal & ~(going & opens)),
            f.payload.eq(self.f_payload),
            f.payload.ctx.eq(0),
            *(getattr(unit, n).ready.eq(getattr(self, f"{n}_ready")) for n in ("w", "x", "b")),
        ]
        taken, named, answered, leaves, fetched = (
            comb(name, s.valid & s.ready)
            for s, name in ((a, "taken"), (f, "named"), (w, "answered"), (x, "leaves"), (b, "fetched"))
        )
        asked = comb("asked", taken & (a.payload.op == APPEND))
        cleared = comb("cleared", taken & (a.payload.op == CLEAR))
        stale = Signal()  # the offered move was caused before a CLEAR
        moved = comb("moved", leaves & ~stale)
        m.d.sync += stale.eq(x.valid & ~x.ready & (stale | cleared))
        with m.If(named):
            m.d.sync += [opens.eq(f.payload.last), above.eq(f.payload.cluster)]

        # Clusters of the replies in flight, the oldest lowest; those before a CLEAR are void.
        waiting, void, clusters = (
            Signal(2),
            Signal(2),
            Array(Signal(p.cluster_bits, name=f"asked{i}") for i in range(2)),
        )
        left = comb("left", waiting - answered, 2)
        after = [Signal.like(c, name=f"after{i}") for i, c in enumerate(clusters)]
        m.d.comb += [
            after[0].eq(Mux(answered, clusters[1], clusters[0])),
            after[1].eq(clusters[1]),
        ]
        m.d.sync += [
            waiting.eq(left + asked),
            void.eq((void >> answered) | Mux(cleared, 3, 0)),
            clusters[0].eq(Mux(asked & (left == 0), a.payload.cluster, after[0])),
            clusters[1].eq(Mux(asked & (left == 1), a.payload.cluster, after[1])),
        ]
        with m.If(asked):
            m.d.sync += void.bit_select(left[:1], 1).eq(0)

        # The map of the homes and of the ring's slots.
        placed = comb("placed", answered & ~void[0] & ~w.payload.full)
        used, there = Signal(slots), Signal(slots)
        of = [Signal(p.cluster_bits, name=f"of{h}") for h in range(slots)]
        held = Signal(p.recent)
        homes = Array(Signal(range(max(2, slots)), name=f"home{d}") for d in range(p.recent))
        to, at = comb("to", 1 << w.payload.home, slots), comb("at", 1 << w.payload.device, p.recent)
        source, target = comb("source", 1 << x.payload.src, p.recent), comb("target", 1 << x.payload.dst, slots)
        m.d.sync += [
            used.eq(Mux(cleared, 0, used | Mux(placed, to, 0))),
            there.eq(Mux(cleared, 0, there | Mux(moved, target, 0))),
            held.eq(Mux(cleared, 0, (held & ~Mux(moved, source, 0)) | Mux(placed, at, 0))),
        ]
        with m.If(placed):
            m.d.sync += [of_h.eq(clusters[0]) for of_h in of]
            for h in range(slots):
                with m.If(~to[h]):
                    m.d.sync += of[h].eq(of[h])
            m.d.sync += homes[w.payload.device].eq(w.payload.home)

        if self.reach and not self.fetches:
            again = Signal()
            m.d.sync += again.eq(again | (cleared & there.any()))
            m.d.comb += Assert(~(again & moved), "nothing is moved after a CLEAR")
            return m
        if not self.fetches:
            m.d.comb += [
                Assert(~asked | ~left[1], "more replies under way than are followed"),
                Assert(~answered | waiting.any(), "a reply without an APPEND"),
                Assert(~placed | ((w.payload.home < slots) & (w.payload.device < p.recent)), "a place that is none"),
                Assert(~placed | ~(used & to).any(), "two entries have one home"),
                Assert(~placed | ~(held & at).any(), "two entries have one slot of the ring"),
                Assert(~moved | (held & source).any(), "what is moved is not in the ring"),
                Assert(~moved | (x.payload.dst == homes[x.payload.src]), "an entry is moved to another's home"),
                Assert(~moved | ~(there & target).any(), "an entry is moved twice"),
            ]
            return m

        # A set: the homes that it must fetch, and those that it has fetched.
        names = [there[h] & (of[h] == f.payload.cluster) & named & ~f.payload.empty for h in range(slots)]
        last = b.payload.addr + b.payload.bytes
        spans = [(b.payload.addr <= h) & (last > h) & ~b.payload.empty & fetched for h in range(slots)]
        named_now, span = comb("named_now", Cat(names), slots), comb("span", Cat(spans), slots)
        wanted, got, spoilt = Signal(slots), Signal(slots), Signal()  # spoilt: a CLEAR came in between
        ends = comb("ends", fetched & b.payload.last)
        m.d.sync += [
            wanted.eq(Mux(ends, 0, wanted | named_now)),
            got.eq(Mux(ends, 0, got | span)),
            going.eq(~ends & (going | named)),
            spoilt.eq(~ends & (spoilt | (cleared & (going | named)))),
        ]
        if self.reach:
            m.d.comb += Assert(~(ends & (wanted & span).any() & ~spoilt), "no set fetches an entry")
            return m
        m.d.comb += [
            Assert(spoilt | ~(got & span).any(), "a set fetches an entry twice"),
            Assert(spoilt | ~(span & ~wanted).any(), "a set fetches what it does not name, or what is in the ring"),
            Assert(spoilt | ~ends | (opens & (wanted == (got | span))), "a set does not fetch what it names"),
        ]
        return m
