"""Places entries, offloads the oldest, and frees the blocks of contexts.

The blocks of a cluster. An entry gets its slot when it is appended, and moves there when it leaves the ring::

    ROW:   head                     off                      tail
            |                        |                        |
            v                        v                        v
         +----------+   NEXT      +----------+   NEXT      +----------+
         | #  #  #  | ----------> | #  #  .  | ----------> | .  .     |
         +----------+             +----------+             +----------+
                                   off_slots = 2            tail_slots = 2

    #  the entry is at home      .  the slot of an entry that is still in the ring      blank: free

The pool hands out blocks that were never used before it reuses freed ones::

    POOL:  fresh                    free_head                free_tail
            |                        |                        |
            v                        v                        v
    used blocks | unused ...      +----------+   NEXT      +----------+
                                  |          | ----------> |          |
                                  +----------+             +----------+
"""

from amaranth import Cat, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
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

# Writes of a beat, in this order; behind them "kept", if blocks are kept. A block leaves the pool before it is a
# cluster's, and comes back behind that, so that a reset in between never leaves it to two.
WRITES = ("pool", "link", "row", "oldest", "count", "ring", "place")


class Placer(wiring.Component):
    """Serves APPEND, CLEAR and SWITCH one after the other: reads items, decides, moves an entry, writes items, replies.

    An APPEND reads the context's ring position, the cluster's row and its count. If an entry leaves the ring, it also
    reads which cluster that entry belongs to and this cluster's row. It writes only when every item has come, so that
    reads and writes of memory alternate once an APPEND.

    A CLEAR reads the rows in groups, links the blocks of each to the freed ones, and zeroes the row. With `shared` it
    gives these blocks to `x` before, to be wiped. A SWITCH goes on to the stream of counts. The pool's record is read
    before the first APPEND or CLEAR after a reset.

    Parameters
    ----------
    p : KvmuParams

    Members
    -------
    a : In(stream of `append_layout`), w : Out(stream of `placed_layout`), x : Out(stream of `move_layout`),
        device_base, home_base, blocks, quota : In : as the KVMU's
    hold : Out(1) : a CLEAR is served or waits, and no fetch may begin
    idle : In(1) : no fetch needs a row or a block any more; a CLEAR begins only then
    ask : Out(stream of `ask_layout`), put : Out(stream of `put_layout`) : reads and writes of items
    came : In(struct of `valid`, `item` and `data`) : an item that was asked for; rows of a CLEAR also come on `rows`
    refuses : Out(1) : pulse: no block is free for an entry, or its context has its quota
    clears : Out(1) : rows that come belong to a CLEAR
    rows : In(stream of `span_layout`) : first block, last block and slots taken of the rows that a CLEAR asked for
    switch : Out(stream of `hdl.retrieval.count_stream.switch_layout`), switched : In(1) : a SWITCH, and its end

    Latency: as the KVMU's.
    Throughput: as the KVMU's.
    Raises: nothing of its own.
    Source: V-Rex section V-C.
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        n_ctx, n_index, bits, most, *_ = map_port(p)
        came = data.StructLayout({"valid": 1, "item": bits_for(len(Item)), "data": bits})
        super().__init__(
            {
                "a": In(stream.Signature(append_layout(p))),
                "w": Out(stream.Signature(placed_layout(p))),
                "x": Out(stream.Signature(move_layout(p))),
                "device_base": In(p.addr_bits),
                "home_base": In(p.addr_bits),
                "blocks": In(bits_for(p.blocks + 1)),
                **sharing_members(p),
                "hold": Out(1),
                "idle": In(1),
                "ask": Out(stream.Signature(ask_layout(n_ctx, n_index, most))),
                "came": In(came),
                "refuses": Out(1),
                "clears": Out(1),
                "rows": In(stream.Signature(span_layout(p))),
                "switch": Out(stream.Signature(switch_layout(p))),
                "switched": In(1),
                "put": Out(stream.Signature(put_layout(n_ctx, n_index, bits))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        read, place, scan, write = _Read(self.p), _Place(self.p), _Scan(self.p), _Write(self.p)
        self._decide(m, read, place)
        self._next_pool(m, read, place)
        self._outputs(m, read, place, scan)
        self._written(m, read, place, scan, write)
        with m.FSM() as fsm:
            with m.State("IDLE"):
                self._idle(m, read, scan)
            with m.State("POOL"):
                self._ask(m, Item.POOL, "POOLED")
            with m.State("POOLED"):
                with m.If(self.came.valid):
                    m.d.sync += read.pooled.eq(1)
                    m.next = "IDLE"
            self._append_states(m, read, place, write)
            with m.State("ROWS"):
                self._ask_rows(m, read, scan)
            with m.State("FREE"):
                self._free(m, read, scan, write)
            if self.p.shared:
                self._wipe_states(m, read, scan, write)
            with m.State("SWITCH"):
                m.d.comb += self.switch.valid.eq(1)
                with m.If(self.switch.ready):
                    m.next = "SWITCHED"
            with m.State("SWITCHED"):
                with m.If(self.switched):
                    m.next = "REPLY"
            with m.State("WRITE"):
                self._write(m, read, place, scan, write)
            with m.State("REPLY"):
                m.d.comb += self.w.valid.eq(1)
                with m.If(self.w.ready):
                    m.next = "IDLE"
        self._come(m, read, fsm.ongoing("OFFLOAD"), fsm.ongoing("MOVE"))
        idle = fsm.ongoing("IDLE")
        m.d.comb += [
            self.clears.eq(~idle & (read.job.op == CLEAR)),
            self.hold.eq(self.clears | (idle & self.a.valid & (self.a.payload.op == CLEAR))),
        ]
        return m

    def _idle(self, m: Module, read: "_Read", scan: "_Scan") -> None:
        """Takes the next beat, once the pool's record is known."""
        beat = self.a.payload
        may = (read.pooled | (beat.op == SWITCH)) & (self.idle | (beat.op != CLEAR))
        m.d.comb += self.a.ready.eq(self.a.valid & may)
        with m.If(self.a.ready):
            m.d.sync += [
                read.job.eq(beat),
                read.row.eq(0),  # of a new cluster
                read.count.eq(0),
                scan.asked.eq(0),
                scan.through.eq(beat.clusters == 0),
                scan.done.eq(0),
            ]
            with m.Switch(beat.op):
                with m.Case(APPEND):
                    m.next = "PLACE"
                with m.Case(CLEAR):
                    m.next = "FREE"
                with m.Default():
                    m.next = "SWITCH"
        with m.Elif(self.a.valid & ~read.pooled & (beat.op != SWITCH)):
            m.next = "POOL"

    def _append_states(self, m: Module, read: "_Read", place: "_Place", write: "_Write") -> None:
        """An APPEND up to the first write."""
        job = read.job
        with m.State("PLACE"):
            with m.If(job.is_new):
                self._ask(m, Item.PLACE, "FOUND", ctx=job.ctx)
            with m.Else():
                self._ask(m, Item.PLACE, "ROW", ctx=job.ctx)
        with m.State("ROW"):
            self._ask(m, Item.ROW, "COUNT", ctx=job.ctx, index=job.cluster)
        with m.State("COUNT"):
            self._ask(m, Item.COUNT, "FOUND", ctx=job.ctx, index=job.cluster)
        with m.State("FOUND"):
            with m.If(read.complete):
                self._found(m, place, write)
        with m.State("FREED"):
            with m.If(place.leaves):
                self._ask(m, Item.NEXT, "RING", index=read.pool.free_head)
            with m.Else():
                self._ask(m, Item.NEXT, "WRITE", index=read.pool.free_head)
        with m.State("RING"):
            self._ask(m, Item.RING, "OLDEST", ctx=job.ctx, index=read.place.pos)
        with m.State("OLDEST"):
            with m.If(read.complete):
                with m.If(read.oldest == job.cluster):
                    m.d.sync += [read.old.eq(place.grown), write.left[WRITES.index("row")].eq(0)]
                    m.next = "OFFLOAD"
                with m.Else():
                    self._ask(m, Item.ROW, "OFFLOAD", ctx=job.ctx, index=read.oldest)
        with m.State("OFFLOAD"):
            with m.If(read.complete):
                with m.If(read.old.off_slots == self.p.block_slots):
                    self._ask(m, Item.NEXT, "MOVE", index=read.old.off)
                with m.Else():
                    m.next = "MOVE"
        with m.State("MOVE"):
            m.d.comb += self.x.valid.eq(read.complete)
            with m.If(self.x.valid & self.x.ready):
                m.next = "WRITE"

    def _ask(self, m: Module, item: Item, state: str, ctx: ValueLike = 0, index: ValueLike = 0) -> None:
        """Asks for an item, and goes on to `state`."""
        ask = self.ask.payload
        m.d.comb += [self.ask.valid.eq(1), ask.item.eq(item), ask.ctx.eq(ctx), ask.index.eq(index)]
        with m.If(self.ask.ready):
            m.next = state

    def _come(self, m: Module, read: "_Read", offload: Value, move: Value) -> None:
        """Keeps the items that come, and counts those to come."""
        asks = Signal()
        m.d.comb += [asks.eq(self.ask.valid & self.ask.ready), read.complete.eq(read.owed == 0)]
        m.d.sync += read.owed.eq(read.owed + asks - self.came.valid)
        # One condition for each register, which synthesis can take for its enable.
        comes = {item: self.came.valid & (self.came.item == item) for item in Item}
        for register, when in (
            (read.place, comes[Item.PLACE]),
            (read.row, comes[Item.ROW] & ~offload),
            (read.old, comes[Item.ROW] & offload),
            (read.count, comes[Item.COUNT]),
            (read.oldest, comes[Item.RING]),
            (read.after, comes[Item.NEXT] & ~move),
            (read.pool, comes[Item.POOL]),
        ):
            with m.If(when):
                m.d.sync += register.eq(self.came.data)
        with m.If(comes[Item.NEXT] & move):
            m.d.sync += [read.old.off.eq(self.came.data), read.old.off_slots.eq(0)]

    def _decide(self, m: Module, read: "_Read", place: "_Place") -> None:
        """Finds where the entry of an APPEND goes, and its cluster's row with this entry."""
        p, row, pool, grown = self.p, read.row, read.pool, place.grown
        m.d.comb += [
            place.opens.eq(row.tail_slots == 0),
            place.grows.eq(place.opens | (row.tail_slots == p.block_slots)),
            place.unused.eq(pool.fresh < self.blocks),
            place.full.eq(place.grows & self._refused(read, ~place.unused & ~pool.freed)),
            place.leaves.eq(read.place.filled),
            place.block.eq(Mux(place.unused, pool.fresh, pool.free_head)),
            grown.head.eq(Mux(place.opens, place.block, row.head)),
            grown.off.eq(Mux(place.opens, place.block, row.off)),
            grown.off_slots.eq(row.off_slots),  # 0 in an empty row
            grown.tail.eq(Mux(place.grows, place.block, row.tail)),
            place.used.eq(Mux(place.grows, 0, row.tail_slots)),
            grown.tail_slots.eq(place.used + 1),
            place.wraps.eq(read.place.pos == p.recent - 1),
            place.ring.pos.eq(Mux(place.wraps, 0, read.place.pos + 1)),
            place.ring.filled.eq(read.place.filled | place.wraps),
            place.counted.eq(read.count + ~read.count.all()),
        ]
        if p.shared:
            m.d.comb += place.ring.blocks.eq(read.place.blocks + place.grows)

    def _refused(self, read: "_Read", none: Value) -> Value:
        """Whether the context gets no further block: there is `none`, or it holds as many as it may."""
        return none | (self.quota.any() & (read.place.blocks >= self.quota)) if self.p.shared else none

    def _next_pool(self, m: Module, read: "_Read", place: "_Place") -> None:
        """Finds the pool's record without the block that an APPEND takes."""
        pool, after = read.pool, place.pool
        m.d.comb += [place.ends.eq(pool.free_head == pool.free_tail), after.eq(pool)]
        with m.If((read.job.op == APPEND) & place.unused):
            m.d.comb += after.fresh.eq(pool.fresh + 1)
        with m.Elif((read.job.op == APPEND) & place.ends):
            m.d.comb += [after.free_head.eq(0), after.free_tail.eq(0), after.freed.eq(0)]
        with m.Elif(read.job.op == APPEND):
            m.d.comb += after.free_head.eq(read.after)

    def _found(self, m: Module, place: "_Place", write: "_Write") -> None:
        """Knows the place of the entry, and what must still be read."""
        grown, slots = place.grown, self.p.block_slots
        m.d.comb += self.refuses.eq(place.full)
        m.d.sync += [
            place.refused.eq(place.full),
            place.home.eq(grown.tail * slots + place.used[: bits_for(slots)]),
            write.left.eq(_writes(self.p, count=1)),
        ]
        with m.If(place.full):
            m.next = "WRITE"
        with m.Else():
            link = place.grows & ~place.opens
            m.d.sync += write.left.eq(
                _writes(
                    self.p,
                    link=link,
                    row=1,
                    oldest=place.leaves,
                    count=1,
                    ring=1,
                    place=1,
                    pool=place.grows,
                    kept=place.opens,
                )
            )
            with m.If(place.grows & ~place.unused & ~place.ends):
                m.next = "FREED"
            with m.Elif(place.leaves):
                m.next = "RING"
            with m.Else():
                m.next = "WRITE"

    def _ask_rows(self, m: Module, read: "_Read", scan: "_Scan") -> None:
        """CLEAR: asks for the rows of a group."""
        last = scan.asked + 1 == read.job.clusters
        m.d.comb += [
            self.ask.valid.eq(1),
            self.ask.payload.item.eq(Item.ROW),
            self.ask.payload.ctx.eq(read.job.ctx),
            self.ask.payload.index.eq(scan.asked),
        ]
        with m.If(self.ask.ready):
            m.d.sync += [scan.asked.eq(scan.asked + 1), scan.through.eq(last)]
            with m.If(last | ((scan.asked + 1) % self.p.rows == 0)):
                m.next = "FREE"

    def _free(self, m: Module, read: "_Read", scan: "_Scan", write: "_Write") -> None:
        """CLEAR: links the blocks of a row to the freed ones. Behind the last row it writes the context's records."""
        with m.If(scan.done == scan.asked):
            with m.If(scan.through):
                m.d.sync += write.left.eq(_writes(self.p, place=1, pool=1))
                m.next = "WRITE"
            with m.Else():
                m.next = "ROWS"
        with m.Elif(self.rows.valid):
            freed = self.rows.payload
            with m.If(freed.slots == 0):
                m.d.comb += self.rows.ready.eq(1)
                m.d.sync += scan.done.eq(scan.done + 1)
            with m.Else():
                m.d.sync += write.left.eq(_writes(self.p, link=read.pool.freed, row=1))
                if self.p.shared:
                    m.d.sync += scan.at.eq(freed.head)
                m.next = "WIPE" if self.p.shared else "WRITE"

    def _wipe_states(self, m: Module, read: "_Read", scan: "_Scan", write: "_Write") -> None:
        """CLEAR: gives the blocks of a row to `x`, one after the other, to be wiped."""
        with m.State("WIPE"):
            m.d.comb += self.x.valid.eq(1)
            with m.If(self.x.ready):
                m.next = "WRITE"
                with m.If(scan.at != self.rows.payload.end):
                    m.next = "CHAIN"
        with m.State("CHAIN"):
            self._ask(m, Item.NEXT, "LINKED", index=scan.at)
        with m.State("LINKED"):
            with m.If(read.complete):
                m.d.sync += scan.at.eq(read.after)
                m.next = "WIPE"

    def _write(self, m: Module, read: "_Read", place: "_Place", scan: "_Scan", write: "_Write") -> None:
        """Writes an item after the other. A CLEAR then goes on with the next row."""
        m.d.comb += self.put.valid.eq(read.complete)
        with m.If(self.put.valid & self.put.ready):
            m.d.sync += write.left.eq(write.rest)
            with m.If(self.clears & (self.put.payload.item == Item.ROW)):
                freed = self.rows.payload
                m.d.comb += self.rows.ready.eq(1)
                m.d.sync += [scan.done.eq(scan.done + 1), read.pool.free_tail.eq(freed.end), read.pool.freed.eq(1)]
                with m.If(~read.pool.freed):
                    m.d.sync += read.pool.free_head.eq(freed.head)
                m.next = "FREE"
            with m.Elif(write.rest == 0):
                with m.If(place.grows & ~place.refused):
                    m.d.sync += read.pool.eq(place.pool)
                m.next = "REPLY"

    def _written(self, m: Module, read: "_Read", place: "_Place", scan: "_Scan", write: "_Write") -> None:
        """Finds the item to write now."""
        job, put, freed = read.job, self.put.payload, self.rows.payload
        m.d.comb += write.rest.eq(write.left & (write.left - 1))
        items = {  # kind, context, index, content
            "link": (
                *(Item.NEXT, 0, Mux(self.clears, read.pool.free_tail, read.row.tail)),
                Mux(self.clears, freed.head, place.block),
            ),
            "row": (Item.ROW, job.ctx, Mux(self.clears, scan.done, job.cluster), Mux(self.clears, 0, place.grown)),
            "oldest": (Item.ROW, job.ctx, read.oldest, place.sent),
            "count": (Item.COUNT, job.ctx, job.cluster, place.counted),
            "ring": (Item.RING, job.ctx, read.place.pos, job.cluster),
            "place": (Item.PLACE, job.ctx, 0, Mux(self.clears, 0, place.ring)),
            "pool": (Item.POOL, 0, 0, place.pool),
            # Another cluster loses its place.
            "kept": (Item.RING, job.ctx, kept_index(self.p, job.cluster), 0),
        }
        for k, name in reversed(list(enumerate(_names(self.p)))):
            item, ctx, index, content = items[name]
            with m.If(write.left[k]):
                m.d.comb += [put.item.eq(item), put.ctx.eq(ctx), put.index.eq(index), put.data.eq(content)]

    def _outputs(self, m: Module, read: "_Read", place: "_Place", scan: "_Scan") -> None:
        """Forms the reply, the move and the SWITCH for the stream of counts."""
        p, job, old, out = self.p, read.job, read.old, self.w.payload
        m.d.comb += [
            place.slot.eq(job.ctx * p.recent + read.place.pos),
            place.device.eq(self.device_base + place.slot * p.entry_bytes),
            place.sent.eq(old),
            place.sent.off_slots.eq(old.off_slots + 1),
            self.x.payload.src.eq(place.device),
            self.x.payload.dst.eq(self.home_base + (old.off * p.block_slots + old.off_slots) * p.home_bytes),
            self.x.payload.bytes.eq(p.entry_bytes),
            out.op.eq(job.op),
            out.token.eq(job.token),
            out.full.eq((job.op == APPEND) & place.refused),
            self.switch.payload.ctx.eq(job.ctx),
            self.switch.payload.clusters.eq(job.clusters),
        ]
        if p.shared:
            block = self.home_base + scan.at * p.block_bytes
            wipe = {"src": block, "dst": block, "bytes": p.block_bytes, "wipes": 1}
            with m.If(self.clears):
                m.d.comb += [self.x.payload[name].eq(value) for name, value in wipe.items()]
        with m.If((job.op == APPEND) & ~place.refused):
            m.d.comb += [out.device.eq(place.device), out.home.eq(self.home_base + place.home * p.home_bytes)]


class _Read:
    """The beat being served, and the items read for it."""

    def __init__(self, p: KvmuParams):
        fields = map_layouts(p)
        self.job = Signal(append_layout(p))  # the beat of `a`
        self.owed = Signal(bits_for(max(p.rows, 3) + 1))  # items asked for that have not come
        self.complete = Signal()  # there is none
        self.place = Signal(fields[Item.PLACE])  # the context's ring position
        self.row = Signal(fields[Item.ROW])  # row of the cluster
        self.count = Signal(p.count_bits)  # its tokens before
        self.oldest = Signal(p.cluster_bits)  # the cluster of the entry that leaves
        self.old = Signal(fields[Item.ROW])  # row of that cluster, with the new entry if that has joined it
        self.after = Signal(p.block_bits)  # the freed block behind the first
        self.pool = Signal(fields[Item.POOL])  # the pool's record; between beats as in memory
        self.pooled = Signal()  # it has been read


class _Place:
    """What an APPEND changes."""

    def __init__(self, p: KvmuParams):
        fields = map_layouts(p)
        self.opens = Signal()  # the entry is the first of its cluster
        self.grows = Signal()  # the cluster needs another block
        self.unused = Signal()  # some block was never used
        self.ends = Signal()  # the first freed block is the only one
        self.full = Signal()  # the cluster needs another block, and none is free or its context has its quota
        self.refused = Signal()  # the same, once it was decided
        self.leaves = Signal()  # the oldest entry leaves the ring
        self.block = Signal(p.block_bits)  # the block given next
        self.used = Signal(bits_for(p.block_slots + 1))  # slots of the entry's block that are taken
        self.grown = Signal(fields[Item.ROW])  # the cluster's row with the entry
        self.sent = Signal(fields[Item.ROW])  # the row of the cluster whose oldest entry is at home
        self.counted = Signal(p.count_bits)  # the cluster's tokens with this one
        self.wraps = Signal()  # the entry takes the last slot of the ring
        self.ring = Signal(fields[Item.PLACE])  # ring position behind the entry
        self.pool = Signal(fields[Item.POOL], name="pool_after")  # the pool's record afterwards
        self.slot = Signal(bits_for(p.n_ctx * p.recent))  # ring slot of the entry, counted over all rings
        self.device = Signal(p.addr_bits)  # its byte address
        self.home = Signal(bits_for(p.blocks * p.block_slots))  # slot of the entry's home, counted over all blocks


class _Scan:
    """The clusters that a CLEAR goes through."""

    def __init__(self, p: KvmuParams):
        self.asked = Signal(bits_for(p.clusters + 1))  # clusters asked for
        self.through = Signal()  # all of them
        self.done = Signal(bits_for(p.clusters + 1))  # clusters freed
        self.at = Signal(p.block_bits)  # the block that is wiped, or was last


class _Write:
    """The items to write, as bits in the order of `WRITES`."""

    def __init__(self, p: KvmuParams):
        self.left = Signal(len(_names(p)))
        self.rest = Signal(len(_names(p)))  # without the first


def _names(p: KvmuParams) -> tuple[str, ...]:
    """The items that a beat may write, in order."""
    return (*WRITES, "kept") if p.kept else WRITES


def _writes(p: KvmuParams, **which: ValueLike) -> Value:
    """The bits of these items."""
    return Cat(Value.cast(which.get(name, 0))[0] for name in _names(p))
