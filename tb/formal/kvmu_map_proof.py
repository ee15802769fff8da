"""Proofs about the KVMU's map: where entries are, when they move, and what a set fetches.

Both start from any consistent tables (`tb.formal.kvmu_tables`) and are bounded, as the allocator's proof. An entry is
placed in a ring slot only behind the move of the one before, which goes once, to the first slot of its cluster that is
not at home. A beat writes every item once at most, and nothing is written outside a beat. A fetch of a cluster set
reads every entry that was at home in these clusters when their rows were asked for, once, and nothing else: no row is
used that was not read for its beat.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Assert

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, CLEAR
from openvrex.tb.formal.kvmu_tables import SMALL, TablesMonitor

__all__ = ["SMALL", "FetchMonitor", "MoveMonitor"]


class MoveMonitor(TablesMonitor):
    """Claims about the moves and the writes of each beat, without fetches.

    reach : claims instead that no entry moves that begins a further block of its cluster; that claim must fail
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        super().__init__(p)
        self.reach = reach

    def claims(self, m: Module) -> None:
        """Compares the slots at home behind a beat with those before."""
        p, x, w = self.p, self.unit.x.payload, self.unit.w.payload
        slots = p.blocks * p.block_slots
        place, ring = self.words[Item.PLACE, 0], [self.words[Item.RING, i].cluster for i in range(p.recent)]
        m.d.comb += self.unit.f.valid.eq(0)
        now, before = Signal(slots, name="home_now"), Signal(slots, name="home_before")
        due = Signal(slots)  # slots of the oldest entry's cluster that are not at home
        oldest = Signal(p.cluster_bits)
        owed = Signal(slots)
        pos, filled = Signal.like(place.pos), Signal()
        moves = Signal()
        serving, moved, target = Signal(), Signal(), Signal(slots)
        m.d.comb += [now.eq(sum(self.home[1:], self.home[0])), moves.eq(self.unit.x.valid & self.unit.x.ready)]
        for i, cluster in enumerate(ring):
            with m.If(place.pos == i):
                m.d.comb += oldest.eq(cluster)
        for k in range(p.clusters):
            with m.If(oldest == k):
                m.d.comb += due.eq(self.taken[k] & ~self.home[k])
        with m.If(self.begins):
            m.d.sync += [before.eq(now), pos.eq(place.pos), filled.eq(place.filled), owed.eq(due & (~due + 1))]
            m.d.sync += [serving.eq(1), moved.eq(0), target.eq(0)]
        with m.Elif(self.answered):
            m.d.sync += serving.eq(0)
        with m.If(moves):
            m.d.sync += [moved.eq(1), target.eq(1 << x.dst)]
        if self.reach:
            further = (owed & (now << 1)) == 0
            m.d.comb += Assert(~(moves & further & (before != 0)), "no entry begins a further block")
            return
        placed = Signal()
        m.d.comb += placed.eq(self.answered & (self.job.op == APPEND) & ~w.full)
        m.d.comb += [
            Assert(~moves | (serving & ~moved & (self.job.op == APPEND)), "a move without its beat, or a second one"),
            Assert(~moves | ((x.src == pos) & filled), "a move of another slot"),
            Assert(~moves | (1 << x.dst == owed), "an entry is moved to another's home"),
            Assert(~moves | (now == before), "a fetch can see an entry at home before its move"),
            Assert(~placed | (w.device == pos), "a slot of the ring that is not the next"),
            Assert(~placed | (moved == filled), "a slot of the ring is used again before its entry moved"),
            Assert(~self.answered | (self.job.op == CLEAR) | (now == (before | target)), "the tables miss a move"),
        ]
        self._writes(m, serving)

    def _writes(self, m: Module, serving: Signal) -> None:
        """Each word is written once a beat at most, and only in a beat."""
        hits, written = Signal(len(self.put_of)), Signal(len(self.put_of))
        m.d.comb += hits.eq(Cat(self.put_of.values()))
        m.d.sync += written.eq(Mux(self.begins, 0, written | hits))
        m.d.comb += [
            Assert((hits & written) == 0, "an item is written twice"),
            Assert(~self.writes | (serving & (hits != 0)), "a write without a beat, or of an item that is none"),
        ]


class FetchMonitor(TablesMonitor):
    """Claims about the fetch of any one set, beside any beats of `a`.

    reach : claims instead that no set of two clusters fetches entries of both; that claim must fail
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        super().__init__(p)
        self.reach = reach

    def claims(self, m: Module) -> None:
        """Compares the bursts of a set with the slots that were at home."""
        p, f, b = self.p, self.unit.f, self.unit.b
        slots = p.blocks * p.block_slots
        # Beats of a set ascend, and an empty beat is alone. The next set comes when the one before is fetched.
        going, opens, above = Signal(), Signal(init=1), Signal(p.cluster_bits)
        free, legal = self.f_payload, Signal(name="legal_beat")
        rises = opens | (free.cluster > above)
        m.d.comb += [
            legal.eq(Mux(free.empty, opens & free.last, rises & (free.cluster < p.clusters))),
            f.valid.eq(self.legal & self.f_valid & legal & ~(going & opens)),
            f.payload.eq(free),
            f.payload.ctx.eq(0),
        ]
        named, fetched, ends = Signal(), Signal(), Signal()
        m.d.comb += [named.eq(f.valid & f.ready), fetched.eq(b.valid & b.ready), ends.eq(fetched & b.payload.last)]
        with m.If(named):
            m.d.sync += [opens.eq(free.last), above.eq(free.cluster)]
        # The row of a beat is asked for with the next request.
        asks, cluster = Signal(), Signal(p.cluster_bits, name="asked_cluster")
        here, span = Signal(slots, name="home_here"), Signal(slots, name="burst")
        with m.If(named & ~free.empty):
            m.d.sync += [asks.eq(1), cluster.eq(free.cluster)]
        with m.Elif(self.reads):
            m.d.sync += asks.eq(0)
        for k in range(p.clusters):
            with m.If(asks & self.reads & (cluster == k)):
                m.d.comb += here.eq(self.home[k])
        last = b.payload.addr + b.payload.bytes
        m.d.comb += span.eq(Cat((b.payload.addr <= h) & (last > h) & ~b.payload.empty & fetched for h in range(slots)))
        wanted, got, spoilt = Signal(slots), Signal(slots), Signal()  # spoilt: a CLEAR came in between
        cleared = Signal()
        m.d.comb += cleared.eq(self.begins & (self.unit.a.payload.op == CLEAR))
        m.d.sync += [
            wanted.eq(Mux(ends, 0, wanted | here)),
            got.eq(Mux(ends, 0, got | span)),
            going.eq(~ends & (going | named)),
            spoilt.eq(~ends & (spoilt | (cleared & (going | named)))),
        ]
        if self.reach:
            both = Cat((wanted & home).any() for home in self.home).all()
            m.d.comb += Assert(~(ends & ~spoilt & both), "no set fetches two clusters")
            return
        m.d.comb += [
            Assert(spoilt | ((got & span) == 0), "a set fetches an entry twice"),
            Assert(spoilt | ((span & ~(wanted | here)) == 0), "a set fetches what it does not name"),
            Assert(spoilt | ~ends | (opens & (wanted == (got | span))), "a set does not fetch what it names"),
        ]
