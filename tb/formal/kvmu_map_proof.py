"""Proofs about the KVMU's map: where entries are, when they move, and what a set fetches.

Both start from any consistent tables (`tb.formal.kvmu_tables`) and are bounded, as the allocator's proof. An entry is
placed in a ring slot only behind the move of the one before, which goes once, to the first slot of its cluster that is
not at home. A beat writes every item once at most, and nothing is written outside a beat. A fetch of a cluster set
reads every entry that was at home in these clusters when their rows were asked for, once, and nothing else: no row is
used that was not read for its beat.

With several contexts a beat writes only its own context's items and those of the pool, moves only between its ring and
its blocks, and a CLEAR has each of its blocks wiped once, and no other. So no address is outside the blocks of the
context that a beat or a set names.
"""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import data

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, CLEAR
from openvrex.tb.formal.kvmu_tables import TablesMonitor


class MoveMonitor(TablesMonitor):
    """Claims about the moves and the writes of each beat, without fetches.

    reach : claims instead that no entry moves that begins a further block of its cluster, and with users who share that
        no context is cleared that has all blocks; that claim must fail
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        super().__init__(p)
        self.reach = reach

    def claims(self, m: Module) -> None:
        """Compares the slots at home behind a beat with those before."""
        p, x, w = self.p, self.unit.x.payload, self.unit.w.payload
        slots = p.blocks * p.block_slots
        m.d.comb += self.unit.f.valid.eq(0)
        place, ring, due, blocks = self._context(m)
        now, before = Signal(slots, name="home_now"), Signal(slots, name="home_before")
        owed = Signal(slots)
        at, filled = Signal(range(p.n_ctx * p.recent)), Signal()  # the ring's next slot; whether it is taken
        moves, wipes = Signal(), Signal()
        serving, moved, target = Signal(), Signal(), Signal(slots)
        due_blocks, wiped = Signal(p.blocks), Signal(p.blocks)  # of a context that is cleared
        block = Signal(p.blocks)  # that is wiped
        beats = self.unit.x.valid & self.unit.x.ready
        m.d.comb += now.eq(sum(self.home[1:], self.home[0]))
        m.d.comb += [wipes.eq(beats & x.wipes), block.eq(1 << (x.dst // p.block_slots))] if p.shared else []
        m.d.comb += moves.eq(beats & ~wipes)
        with m.If(self.begins):
            m.d.sync += [before.eq(now), at.eq(ring), filled.eq(place.filled), owed.eq(due & (~due + 1))]
            m.d.sync += [serving.eq(1), moved.eq(0), target.eq(0), due_blocks.eq(blocks), wiped.eq(0)]
        with m.Elif(self.answered):
            m.d.sync += serving.eq(0)
        with m.If(moves):
            m.d.sync += [moved.eq(1), target.eq(1 << x.dst)]
        with m.If(wipes):
            m.d.sync += wiped.eq(wiped | block)
        if self.reach:
            if p.shared:
                both = self.answered & (self.job.op == CLEAR) & wiped.all()
                m.d.comb += Assert(~both, "no context with all blocks is cleared")
                return
            further = (owed & (now << 1)) == 0
            m.d.comb += Assert(~(moves & further & (before != 0)), "no entry begins a further block")
            return
        placed = Signal()
        m.d.comb += placed.eq(self.answered & (self.job.op == APPEND) & ~w.full)
        m.d.comb += [
            Assert(~moves | (serving & ~moved & (self.job.op == APPEND)), "a move without its beat, or a second one"),
            Assert(~moves | ((x.src == at) & filled), "a move of another slot"),
            Assert(~moves | (1 << x.dst == owed), "an entry is moved to another's home"),
            Assert(~moves | (now == before), "a fetch can see an entry at home before its move"),
            Assert(~placed | (w.device == at), "a slot of the ring that is not the next"),
            Assert(~placed | (moved == filled), "a slot of the ring is used again before its entry moved"),
            Assert(~self.answered | (self.job.op == CLEAR) | (now == (before | target)), "the tables miss a move"),
        ]
        if p.shared:
            clears = serving & (self.job.op == CLEAR)
            m.d.comb += [
                Assert(~wipes | (clears & (block & due_blocks & ~wiped).any()), "another block is wiped, or one twice"),
                Assert(~wipes | (x.dst % p.block_slots == 0), "a wipe begins within a block"),
                Assert(~wipes | ((x.src == x.dst) & (x.bytes == p.block_slots)), "another wipe than of a block"),
                Assert(~(self.answered & clears) | (wiped == due_blocks), "a block is not wiped"),
            ]
        self._writes(m, serving)

    def _context(self, m: Module) -> tuple[data.View, Signal, Signal, Signal]:
        """Of the context of the beat that begins: PLACE, the next slot of its ring, the slots of the cluster of the
        oldest entry that are not at home, and its blocks.
        """
        p, ctx, cluster = self.p, self.unit.a.payload.ctx, Signal(self.p.cluster_bits, name="oldest")
        place = Signal(self.words[Item.PLACE, 0].shape(), name="place")
        ring, due = Signal(range(p.n_ctx * p.recent), name="next_slot"), Signal(p.blocks * p.block_slots, name="due")
        blocks = Signal(p.blocks, name="own_blocks")
        m.d.comb += ring.eq(ctx * p.recent + place.pos)
        for of in range(p.n_ctx):
            with m.If(ctx == of):
                m.d.comb += place.eq(self.words[Item.PLACE, of])
        for i in range(p.n_ctx * p.recent):
            with m.If(ring == i):
                m.d.comb += cluster.eq(self.words[Item.RING, i].cluster)
        for k in range(p.n_ctx * p.clusters):
            with m.If(ctx * p.clusters + cluster == k):
                m.d.comb += due.eq(self.taken[k] & ~self.home[k])
            with m.If(ctx == k // p.clusters):
                own = self.blocks[k // p.clusters * p.clusters :][: p.clusters]
                m.d.comb += blocks.eq(reduce(or_, own))
        return place, ring, due, blocks

    def _writes(self, m: Module, serving: Signal) -> None:
        """Each word is written once a beat at most, and only in a beat, and only of its context or the pool."""
        others = [
            hit & (self.job.ctx != k // self.sizes[item])
            for (item, k), hit in self.put_of.items()
            if item in self.sizes
        ]
        m.d.comb += Assert(~Cat(others).any(), "an item of another context is written")
        hits, written = Signal(len(self.put_of)), Signal(len(self.put_of))
        m.d.comb += hits.eq(Cat(self.put_of.values()))
        m.d.sync += written.eq(Mux(self.begins, 0, written | hits))
        m.d.comb += [
            Assert((hits & written) == 0, "an item is written twice"),
            Assert(~self.writes | (serving & (hits != 0)), "a write without a beat, or of an item that is none"),
        ]


class FetchMonitor(TablesMonitor):
    """Claims about the fetch of any one set, beside any beats of `a`.

    reach : claims instead that no set of two clusters fetches entries of both, and with several contexts that no set
        fetches an entry while each has one at home; that claim must fail
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
        ctx, held = Signal(range(p.n_ctx), name="of"), Signal(range(p.n_ctx), name="of_before")  # of the set
        m.d.comb += ctx.eq(Mux(opens, Mux(free.ctx < p.n_ctx, free.ctx, 0), held))
        m.d.sync += held.eq(ctx)
        rises = opens | (free.cluster > above)
        m.d.comb += [
            legal.eq(Mux(free.empty, opens & free.last, rises & (free.cluster < p.clusters))),
            f.valid.eq(self.legal & self.f_valid & legal & ~(going & opens)),
            f.payload.eq(free),
            f.payload.ctx.eq(ctx),
        ]
        named, fetched, ends = Signal(), Signal(), Signal()
        m.d.comb += [named.eq(f.valid & f.ready), fetched.eq(b.valid & b.ready), ends.eq(fetched & b.payload.last)]
        with m.If(named):
            m.d.sync += [opens.eq(free.last), above.eq(free.cluster)]
        # The row of a beat is asked for with the next request.
        asks, cluster = Signal(), Signal(range(p.n_ctx * p.clusters), name="asked_cluster")
        here, span = Signal(slots, name="home_here"), Signal(slots, name="burst")
        with m.If(named & ~free.empty):
            m.d.sync += [asks.eq(1), cluster.eq(ctx * p.clusters + free.cluster)]
        with m.Elif(self.reads):
            m.d.sync += asks.eq(0)
        for k in range(p.n_ctx * p.clusters):
            with m.If(asks & self.reads & (cluster == k)):
                m.d.comb += here.eq(self.home[k])
        last = b.payload.addr + b.payload.bytes
        m.d.comb += span.eq(Cat((b.payload.addr <= h) & (last > h) & ~b.payload.empty & fetched for h in range(slots)))
        wanted, got, spoilt = Signal(slots), Signal(slots), Signal()  # spoilt: a CLEAR came in between
        cleared = Signal()
        m.d.comb += cleared.eq(self.begins & (self.unit.a.payload.op == CLEAR) & (self.unit.a.payload.ctx == ctx))
        m.d.sync += [
            wanted.eq(Mux(ends, 0, wanted | here)),
            got.eq(Mux(ends, 0, got | span)),
            going.eq(~ends & (going | named)),
            spoilt.eq(~ends & (spoilt | (cleared & (going | named)))),
        ]
        if self.reach:
            both = Cat((home if p.n_ctx > 1 else wanted & home).any() for home in self.home).all() & wanted.any()
            m.d.comb += Assert(~(ends & ~spoilt & both), "no set fetches two clusters, or beside another context")
            return
        m.d.comb += [
            Assert(spoilt | ((got & span) == 0), "a set fetches an entry twice"),
            Assert(spoilt | ((span & ~(wanted | here)) == 0), "a set fetches what it does not name"),
            Assert(spoilt | ~ends | (opens & (wanted == (got | span))), "a set does not fetch what it names"),
        ]
