"""Specification of the KVMU's placer: what a beat reads, writes, moves and replies, an event a cycle."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.count_stream import switch_layout
from openvrex.hdl.retrieval.kvmu_layouts import (
    APPEND,
    CLEAR,
    SWITCH,
    append_layout,
    kept_index,
    map_layouts,
    map_port,
    move_layout,
    placed_layout,
    sharing_members,
    span_layout,
)
from openvrex.hdl.retrieval.table_client import ask_layout, put_layout

# What an APPEND reads, in order; AFTER and OLDEST once it knows its place, OLD once it knows the oldest entry's
# cluster, SECOND once it knows that cluster's row.
PLACE, ROW, COUNT, AFTER, OLDEST, OLD, SECOND = READS = range(7)


class PlacerSpec(wiring.Component):
    """What comes next of a beat, given what memory has answered: `golden.retrieval.kvmap`, an event a cycle.

    An event is offered by `..._due`, with what it carries; an input says that it happens.

    Members
    -------
    beat, takes : In : a beat is taken · came, comes : In : an item that was asked for
    span, span_due : In, Out : the blocks of the cluster that a CLEAR frees next; `pops`: In(1) : it goes on to the next
    ask, put, move, switch, reply : Out : what comes next, each with `..._due`
    asks, puts, moves, switches, replies : In(1) : it happens · switched : In(1) : the counts are there
    idle : Out(1) : no beat is served · pooled : Out(1) : the pool is known · refused : Out(1) : the entry is
    device_base, home_base, blocks, quota : In : as the KVMU's
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        n_ctx, n_index, bits, most, *_ = map_port(p)
        offers = {
            "ask": ask_layout(n_ctx, n_index, most),
            "put": put_layout(n_ctx, n_index, bits),
            "move": move_layout(p),
            "switch": switch_layout(p),
            "reply": placed_layout(p),
        }
        happens = ("takes", "comes", "pops", "asks", "puts", "moves", "switches", "switched", "replies")
        shows = ("span_due", "idle", "pooled", "refused", *(f"{name}_due" for name in offers))
        bases = {"device_base": In(p.addr_bits), "home_base": In(p.addr_bits), "blocks": In(bits_for(p.blocks + 1))}
        super().__init__(
            {
                "beat": In(append_layout(p)),
                "came": In(bits),
                "span": In(span_layout(p)),
                **{name: Out(layout) for name, layout in offers.items()},
                **dict.fromkeys(happens, In(1)),
                **dict.fromkeys(shows, Out(1)),
                **bases,
                **sharing_members(p),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        self.job, self.pool = Signal(append_layout(p)), Signal(map_layouts(p)[Item.POOL])
        serves = Signal()
        with m.If(self.takes):
            m.d.sync += [serves.eq(1), self.job.eq(self.beat)]
        with m.If(self.replies):
            m.d.sync += serves.eq(0)
        m.d.comb += [self.idle.eq(~serves), self.reply.op.eq(self.job.op), self.reply.token.eq(self.job.token)]
        self._know_pool(m)
        appends, clears, switches = (serves & (self.job.op == op) for op in (APPEND, CLEAR, SWITCH))
        self._append(m, appends)
        self._clear(m, clears)
        self._switch(m, switches)
        return m

    def _know_pool(self, m: Module) -> None:
        """The pool's record is read before the first beat that needs it."""
        asked = Signal(name="asked_pool")
        with m.If(self.idle & ~self.pooled):
            m.d.comb += [self.ask_due.eq(~asked), self.ask.item.eq(Item.POOL)]
            m.d.sync += asked.eq(asked | self.asks)
            with m.If(self.comes):
                m.d.sync += [self.pooled.eq(1), self.pool.eq(self.came)]

    # An APPEND.

    def _append(self, m: Module, serves: Value) -> None:
        """`KvMap.append`: an entry gets a slot of its cluster, and the oldest of its context goes home."""
        e = _Entry(self.p)
        with m.If(self.takes):
            m.d.sync += [e.asked.eq(0), e.there.eq(0), e.row.eq(0), e.count.eq(0), e.sent.eq(0)]
        self._place(m, e)
        self._take_block(m, e)
        self._leave(m, e)
        with m.If(serves):
            self._ask(m, e)
        known, job = e.there[PLACE] & (self.job.is_new | e.there[COUNT]) & (e.asked == e.there), self.job
        needed = Cat(when for when, *_ in self._reads(e))
        complete = known & ((needed & ~e.there) == 0)
        device = self.device_base + (job.ctx * self.p.recent + e.place.pos) * self.p.entry_bytes
        with m.If(serves):
            home = (e.leaver.off * self.p.block_slots + e.leaver.off_slots) * self.p.home_bytes
            m.d.comb += [
                self.move_due.eq(complete & e.leaves & ~e.sent),
                self.move.src.eq(device),
                self.move.dst.eq(self.home_base + home),
                self.move.bytes.eq(self.p.entry_bytes),
            ]
            m.d.sync += e.sent.eq(e.sent | self.moves)
        wrote = self._puts(m, serves & complete & (e.sent | ~e.leaves), self._writes(e), "entry")
        with m.If(serves):
            m.d.comb += [self.reply_due.eq(wrote), self.reply.full.eq(self.refused)]
            with m.If(~self.refused):
                home = (e.grown.tail * self.p.block_slots + e.used) * self.p.home_bytes
                m.d.comb += [self.reply.device.eq(device), self.reply.home.eq(self.home_base + home)]
            with m.If(self.replies & e.grows & ~self.refused):
                m.d.sync += self.pool.eq(e.pool)

    def _place(self, m: Module, e: "_Entry") -> None:
        """The slot of the entry, its cluster's row with it, and the ring behind it."""
        row, place = e.row, e.place
        wraps = place.pos == self.p.recent - 1
        m.d.comb += [
            e.opens.eq(row.tail_slots == 0),
            e.grows.eq(e.opens | (row.tail_slots == self.p.block_slots)),
            e.used.eq(Mux(e.grows, 0, row.tail_slots)),
            e.grown.head.eq(Mux(e.opens, e.block, row.head)),
            e.grown.off.eq(Mux(e.opens, e.block, row.off)),
            e.grown.off_slots.eq(row.off_slots),
            e.grown.tail.eq(Mux(e.grows, e.block, row.tail)),
            e.grown.tail_slots.eq(e.used + 1),
            e.ring.pos.eq(Mux(wraps, 0, place.pos + 1)),
            e.ring.filled.eq(place.filled | wraps),
        ]
        if self.p.shared:
            m.d.comb += e.ring.blocks.eq(place.blocks + e.grows)

    def _take_block(self, m: Module, e: "_Entry") -> None:
        """The block that the entry gets if it needs one, and the pool without it."""
        pool, none = self.pool, ~e.unused & ~self.pool.freed
        if self.p.shared:
            none |= (self.quota != 0) & (e.place.blocks >= self.quota)
        m.d.comb += [
            e.unused.eq(pool.fresh < self.blocks),
            e.block.eq(Mux(e.unused, pool.fresh, pool.free_head)),
            e.next_freed.eq(~e.unused & (pool.free_head != pool.free_tail)),
            self.refused.eq(e.grows & none),
            e.pool.eq(pool),
        ]
        with m.If(e.unused):
            m.d.comb += e.pool.fresh.eq(pool.fresh + 1)
        with m.Elif(e.next_freed):
            m.d.comb += e.pool.free_head.eq(e.after)
        with m.Else():
            m.d.comb += [e.pool.free_head.eq(0), e.pool.free_tail.eq(0), e.pool.freed.eq(0)]

    def _leave(self, m: Module, e: "_Entry") -> None:
        """The row of the cluster whose entry leaves the ring: before, at the entry's slot, and behind it."""
        before, full = e.before, e.before.off_slots == self.p.block_slots
        m.d.comb += [
            e.leaves.eq(e.place.filled & ~self.refused),
            e.same.eq(e.oldest == self.job.cluster),
            before.eq(Mux(e.same, e.grown, e.old)),
            e.leaver.eq(before),
            e.moved.eq(before),
            e.moved.off.eq(e.leaver.off),
            e.moved.off_slots.eq(e.leaver.off_slots + 1),
        ]
        with m.If(full):  # it begins the next block
            m.d.comb += [e.leaver.off.eq(e.second), e.leaver.off_slots.eq(0)]

    def _reads(self, e: "_Entry") -> list[tuple[Value, Value, Item, Value, Value]]:
        """Of each read: whether it is needed, whether it may be made, what it reads."""
        job, there, none = self.job, e.there, Const(0)
        known = there[PLACE] & (job.is_new | there[COUNT]) & (e.asked == there)
        beside = e.asked[AFTER] & ~there[AFTER]  # OLDEST does not wait for it
        takes = e.grows & ~self.refused & e.next_freed
        full = e.before.off_slots == self.p.block_slots
        return [
            (Const(1), Const(1), Item.PLACE, job.ctx, none),
            (~job.is_new, Const(1), Item.ROW, job.ctx, job.cluster),
            (~job.is_new, Const(1), Item.COUNT, job.ctx, job.cluster),
            (takes, known, Item.NEXT, none, self.pool.free_head),
            (e.leaves, known | beside, Item.RING, job.ctx, e.place.pos),
            (e.leaves & ~e.same, known & there[OLDEST], Item.ROW, job.ctx, e.oldest),
            (e.leaves & full, known & there[OLDEST] & (e.same | there[OLD]), Item.NEXT, none, e.before.off),
        ]

    def _ask(self, m: Module, e: "_Entry") -> None:
        """Offers the first read that is needed, and keeps what comes, in the order of the reads."""
        for k, (needed, may, item, ctx, index) in reversed(list(enumerate(self._reads(e)))):
            with m.If(needed & ~e.asked[k]):
                m.d.comb += [self.ask_due.eq(may), self.ask.item.eq(item)]
                m.d.comb += [self.ask.ctx.eq(ctx), self.ask.index.eq(index)]
                with m.If(self.asks):
                    m.d.sync += e.asked.eq(e.asked | 1 << k)
        waits = e.asked & ~e.there
        first = waits & (~waits + 1)
        with m.If(self.comes):
            m.d.sync += e.there.eq(e.there | first)
            for k, answer in enumerate(e.answers):
                with m.If(first[k]):
                    m.d.sync += Value.cast(answer).eq(self.came)

    def _writes(self, e: "_Entry") -> list[tuple[Value, Item, Value, Value, Value]]:
        """Of each write, in order: whether it is needed, the item, its content."""
        job, placed, none = self.job, ~self.refused, Const(0)
        kept = [(placed & e.opens, Item.RING, job.ctx, kept_index(self.p, job.cluster), none)] if self.p.kept else []
        return [
            (placed & e.grows, Item.POOL, none, none, e.pool),
            (placed & e.grows & ~e.opens, Item.NEXT, none, e.row.tail, e.block),
            (placed & ~(e.leaves & e.same), Item.ROW, job.ctx, job.cluster, e.grown),
            (e.leaves, Item.ROW, job.ctx, e.oldest, e.moved),
            (Const(1), Item.COUNT, job.ctx, job.cluster, Mux(e.count.all(), e.count, e.count + 1)),
            (placed, Item.RING, job.ctx, e.place.pos, job.cluster),
            (placed, Item.PLACE, job.ctx, none, e.ring),
            *kept,
        ]

    def _puts(self, m: Module, serves: Value, writes: list[tuple], name: str) -> Value:
        """Writes one after the other the items that are needed; whether all are written."""
        done = Signal(len(writes), name=f"{name}_written")
        with m.If(self.takes):
            m.d.sync += done.eq(0)
        left = Cat(Value.cast(needed)[0] for needed, *_ in writes) & ~done
        with m.If(serves):
            m.d.comb += self.put_due.eq(left.any())
            for k, (_, item, ctx, index, content) in reversed(list(enumerate(writes))):
                with m.If(left[k]):
                    m.d.comb += [self.put.item.eq(item), self.put.ctx.eq(ctx), self.put.index.eq(index)]
                    m.d.comb += self.put.data.eq(Value.cast(content))
                    with m.If(self.puts):
                        m.d.sync += done.eq(done | 1 << k)
        return serves & ~left.any()

    # A CLEAR.

    def _clear(self, m: Module, serves: Value) -> None:
        """`KvMap.clear`: the blocks of each cluster are wiped, if users share, and go behind the freed ones."""
        p, job, n = self.p, self.job, bits_for(self.p.clusters + 1)
        asked, came, done = (Signal(n, name=f"rows_{name}") for name in ("asked", "came", "done"))
        wiped = Signal(name="wiped")  # the blocks of the cluster are, if they must be
        with m.If(self.takes):
            m.d.sync += [asked.eq(0), came.eq(0), done.eq(0), wiped.eq(not p.shared)]
        with m.If(serves):
            m.d.comb += [
                self.ask_due.eq((asked < job.clusters) & (asked - done < p.rows)),
                self.ask.item.eq(Item.ROW),
                self.ask.ctx.eq(job.ctx),
                self.ask.index.eq(asked),
                self.span_due.eq(done < came),
            ]
            m.d.sync += [
                asked.eq(asked + (self.asks & (self.ask.item == Item.ROW))),
                came.eq(came + (self.comes & (came != asked))),
                done.eq(done + self.pops),
            ]
        some = self.span_due & (self.span.slots != 0)
        with m.If(some & wiped):
            self._free(m, done, wiped)
        ends = serves & (done == job.clusters) & (asked == job.clusters)
        none = Const(0)
        last = [(Const(1), Item.POOL, none, none, self.pool), (Const(1), Item.PLACE, job.ctx, none, none)]
        wrote = self._puts(m, ends, last, "context")
        with m.If(serves):
            m.d.comb += self.reply_due.eq(wrote)
        if p.shared:
            self._wipe(m, some & ~wiped, came == asked, wiped)

    def _free(self, m: Module, cluster: Signal, wiped: Signal) -> None:
        """The blocks of a cluster go behind the freed ones, and then its row becomes zero."""
        put, pool, span, linked = self.put, self.pool, self.span, Signal(name="linked")
        m.d.comb += self.put_due.eq(1)
        with m.If(pool.freed & ~linked):
            m.d.comb += [put.item.eq(Item.NEXT), put.index.eq(pool.free_tail), put.data.eq(span.head)]
            m.d.sync += linked.eq(self.puts)
        with m.Else():
            m.d.comb += [put.item.eq(Item.ROW), put.ctx.eq(self.job.ctx), put.index.eq(cluster)]
            with m.If(self.puts):
                m.d.sync += [linked.eq(0), pool.free_tail.eq(span.end), pool.freed.eq(1), wiped.eq(not self.p.shared)]
                with m.If(~pool.freed):
                    m.d.sync += pool.free_head.eq(span.head)
        with m.If(self.takes):
            m.d.sync += linked.eq(0)

    def _wipe(self, m: Module, serves: Value, rows: Value, wiped: Signal) -> None:
        """The blocks of a cluster are wiped one after the other, from the first to the last.

        rows : all rows that were asked for have come, so what comes next is a block
        """
        further, at = Signal(name="wipes_further"), Signal(self.p.block_bits, name="wipes_at")
        follows, asked = Signal(name="wipe_follows"), Signal(name="wipe_asked")  # the block behind must be read
        block = Mux(further, at, self.span.head)
        address, last = self.home_base + block * self.p.block_bytes, block == self.span.end
        with m.If(serves):
            with m.If(follows & ~asked):
                m.d.comb += [self.ask_due.eq(1), self.ask.item.eq(Item.NEXT), self.ask.ctx.eq(0)]
                m.d.comb += self.ask.index.eq(block)
            m.d.comb += [
                self.move_due.eq(~follows),
                self.move.src.eq(address),
                self.move.dst.eq(address),
                self.move.bytes.eq(self.p.block_bytes),
                self.move.wipes.eq(1),
            ]
            with m.If(self.moves):
                m.d.sync += [follows.eq(~last), wiped.eq(last), further.eq(further & ~last)]
            with m.If(self.asks & follows):
                m.d.sync += asked.eq(1)
            with m.If(self.comes & asked & rows):
                m.d.sync += [asked.eq(0), follows.eq(0), further.eq(1), at.eq(self.came)]

    def _switch(self, m: Module, serves: Value) -> None:
        """The counts of a context are asked for."""
        gone, there = Signal(name="gone"), Signal(name="counted")
        with m.If(self.takes):
            m.d.sync += [gone.eq(0), there.eq(0)]
        m.d.comb += [self.switch.ctx.eq(self.job.ctx), self.switch.clusters.eq(self.job.clusters)]
        with m.If(serves):
            m.d.comb += [self.switch_due.eq(~gone), self.reply_due.eq(there)]
            m.d.sync += [gone.eq(gone | self.switches), there.eq(there | (gone & self.switched))]


class _Entry:
    """What an APPEND has read, and what follows from it."""

    def __init__(self, p: KvmuParams):
        fields = map_layouts(p)
        self.place = Signal(fields[Item.PLACE], name="place")
        self.row, self.old = (Signal(fields[Item.ROW], name=name) for name in ("row", "old"))  # of it; of the oldest
        self.count = Signal(p.count_bits, name="count")
        self.after, self.second = (Signal(p.block_bits, name=name) for name in ("after", "second"))
        self.oldest = Signal(p.cluster_bits, name="oldest")  # cluster of the entry that leaves
        self.answers = (self.place, self.row, self.count, self.after, self.oldest, self.old, self.second)
        self.asked, self.there = Signal(len(READS), name="asked"), Signal(len(READS), name="there")
        self.sent = Signal(name="sent")  # the move was made
        self.opens, self.grows = Signal(name="opens"), Signal(name="grows")  # its cluster; by a block
        self.unused, self.next_freed = Signal(name="unused"), Signal(name="next_freed")  # blocks that there are
        self.block, self.used = Signal(p.block_bits, name="block"), Signal(bits_for(p.block_slots + 1), name="used")
        self.grown = Signal(fields[Item.ROW], name="grown")  # its cluster's row with it
        self.ring = Signal(fields[Item.PLACE], name="ring")
        self.pool = Signal(fields[Item.POOL], name="pool_behind")
        self.leaves, self.same = Signal(name="leaves"), Signal(name="same")  # an entry leaves; one of its own cluster
        self.before, self.leaver, self.moved = (
            Signal(fields[Item.ROW], name=name) for name in ("before", "leaver", "moved")
        )
