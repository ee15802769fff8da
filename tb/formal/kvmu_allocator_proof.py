"""Proof about the KVMU's allocator: no block is given to two clusters, none is lost, FULL is never wrong.

In no cycle does memory leave a block to two owners, so a reset at any time may lose blocks, but gives none to two.
With several contexts: a beat of one changes no entry of another, and none gets more blocks than its quota.

The proof starts from any consistent tables (`tb.formal.kvmu_tables`) and is bounded: it covers every course of the
first `DEPTH` cycles behind a reset, in which the longest beat fits: it reads POOL, gives a freed block with another
behind it, and moves an entry that begins a block. Nothing stalls, and memory answers at once; simulation covers the
rest. Each beat leaves consistent tables, from which the next may start. Zero tables are consistent.
"""

from functools import reduce
from operator import or_

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, CLEAR
from openvrex.tb.formal.kvmu_tables import SMALL, TablesMonitor
from openvrex.tb.formal.prover import holds

DEPTH = 36  # cycles


class AllocatorMonitor(TablesMonitor):
    """Claims about blocks and slots behind every beat of `a`.

    With `reach` it claims instead that no beat places an entry in a freed block and moves another. That claim must
    fail, or the proof is vacuous.
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        super().__init__(p)
        self.reach = reach

    def claims(self, m: Module) -> None:
        """Compares the slots behind a beat with those before."""
        p, w, pool = self.p, self.unit.w.payload, self.words[Item.POOL, 0]
        slots = p.blocks * p.block_slots
        now, before = Signal(slots), Signal(slots)  # slots of all clusters
        mine, mine_before = Signal(slots), Signal(slots)  # of the beat's cluster
        given = Signal(slots)  # the slot that the reply names
        room, room_before = Signal(), Signal()  # the cluster's last block has room
        unused, free = Signal(), Signal()  # some block was never used; some block was free
        placed = Signal()
        ctx = Signal(range(p.n_ctx))  # of the beat
        own, own_before = Signal(slots), Signal(slots)  # slots of this context
        spent, held = Signal(), Signal(range(p.blocks + 1))  # it had its quota; blocks that it has
        m.d.comb += [
            now.eq(sum(self.taken[1:], self.taken[0])),
            unused.eq(pool.fresh != p.blocks),
            placed.eq(self.answered & (w.op == APPEND) & ~w.full),
            given.eq(Mux(placed, 1 << w.home, 0)),
        ]
        beat = self.unit.a.payload
        m.d.comb += ctx.eq(Mux(self.begins, beat.ctx, self.job.ctx))
        for k, taken in enumerate(self.taken):
            row, (of, cluster) = self.words[Item.ROW, k], divmod(k, p.clusters)
            with m.If((ctx == of) & (Mux(self.begins, beat.cluster, self.job.cluster) == cluster)):
                m.d.comb += [mine.eq(taken), room.eq((row.tail_slots != 0) & (row.tail_slots != p.block_slots))]
        for of in range(p.n_ctx):
            clusters = slice(of * p.clusters, (of + 1) * p.clusters)
            with m.If(ctx == of):
                m.d.comb += [
                    own.eq(reduce(or_, self.taken[clusters])),
                    held.eq(sum(block for blocks in self.blocks[clusters] for block in blocks)),
                ]
        with m.If(self.begins):
            m.d.sync += [before.eq(now), mine_before.eq(mine), room_before.eq(room), free.eq(unused | pool.freed)]
            m.d.sync += own_before.eq(own)
            if p.shared:
                m.d.sync += spent.eq(self.unit.quota.any() & (held >= self.unit.quota))
        if self.reach:
            moved, full = Signal(), Signal()
            with m.If(self.begins):
                m.d.sync += [moved.eq(0), full.eq(~unused)]
            with m.Elif(self.unit.x.valid & self.unit.x.ready):
                m.d.sync += moved.eq(1)
            m.d.comb += Assert(~(placed & full & ~room_before & moved), "no entry goes into a freed block")
            return
        m.d.comb += [
            Assert(~self.answered | self.consistent, "the tables are not consistent behind a beat"),
            Assert(~self.legal | self.apart, "a reset in this cycle would leave a block to two"),
            Assert(~placed | (w.home < slots), "a home that is none"),
            Assert((before & given) == 0, "two entries have one home"),
            Assert(~placed | (mine == (mine_before | given)), "the entry is not in its cluster"),
            Assert(~placed | (now == (before | given)), "another entry is lost, or appears"),
            Assert(~self.answered | (w.op != APPEND) | (w.full == ~(room_before | free & ~spent)), "FULL is wrong"),
            Assert(~(self.answered & w.full) | (now == before), "a refused entry changes the map"),
            Assert(~(self.answered & (w.op == CLEAR)) | (own == 0), "a cleared context has entries"),
            Assert(~self.answered | (now & ~own == before & ~own_before), "an entry of another context changes"),
        ]


def prove(p: KvmuParams = SMALL, edit: tuple[str, str] | None = None, reach: bool = False, depth: int = DEPTH) -> bool:
    """Whether the monitor's claims hold in the first `depth` cycles (`tb.formal.prover.holds`)."""
    return holds(AllocatorMonitor(p, reach), edit, merge=False, depth=depth)
