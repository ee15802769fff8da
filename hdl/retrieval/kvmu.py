"""KV cache management unit."""

from amaranth import Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hdl.memory import SinglePortRam, collect_errors
from hdl.params import KvmuParams, bits_for
from hdl.queues import RANGES
from hdl.retrieval import hcu
from hdl.retrieval.cluster_set import cluster_layout
from hdl.unit import Unit

# The DRE hands an op of the HCU on as it is.
APPEND, CLEAR = hcu.JOIN, hcu.CLEAR

# Who uses the one port of the memory `table`, and in which states. Requesters of one state exclude each other, so that
# at most one drives the port in a cycle: `tb/tests/hdl/retrieval/test_kvmu.py` holds the design to this list.
TABLE_PORT = {
    "appended cluster": ("IDLE", "WALK"),
    "fetched cluster": ("IDLE", "WALK"),
    "skipped row": ("PLACE",),
    "placed entry": ("PLACE",),
    "oldest entry": ("OLDEST",),
    "offloaded entry": ("OFFLOAD", "NEXT"),
    "first row": ("LEVEL",),
    "next row": ("FREE",),
}


def append_layout(p: KvmuParams) -> data.StructLayout:
    """An entry to place in the cluster that it joins. `op`: APPEND, or CLEAR the map of `ctx`. `token`: its number."""
    return data.StructLayout({"op": 1, "ctx": bits_for(p.n_ctx), "cluster": p.cluster_bits, "token": p.token_bits})


def placed_layout(p: KvmuParams) -> data.StructLayout:
    """Reply to an APPEND: where to write the entry now (`device`), and its home.

    `full`: the unit refuses the entry, as no block is free; both addresses are 0.
    """
    return data.StructLayout({"token": p.token_bits, "full": 1, "device": p.addr_bits, "home": p.addr_bits})


def move_layout(p: KvmuParams) -> data.StructLayout:
    """An offload: copy `bytes` (always entry_bytes) from device address `src` to home address `dst`."""
    return data.StructLayout({"src": p.addr_bits, "dst": p.addr_bits, "bytes": bits_for(p.entry_bytes + 1)})


def burst_layout(p: KvmuParams) -> data.StructLayout:
    """A fetch of `bytes` from home address `addr` for `ctx`.

    `last`: the final burst of its set. `empty`: the set needs nothing, and `bytes` is 0.
    """
    longest = min(p.boundary, p.blocks * p.block_bytes)
    return data.StructLayout(
        {"addr": p.addr_bits, "bytes": bits_for(longest + 1), "ctx": bits_for(p.n_ctx), "last": 1, "empty": 1}
    )


class Kvmu(Unit):
    """Places entries of the KV cache cluster by cluster, offloads the oldest, and fetches cluster sets in bursts.

    An entry comes in as an APPEND on `a`, and the reply on `w` says where it goes. It gets its home at once: the next
    slot of its cluster's last block, or of a new block. Until `recent` newer entries have come it lives in the ring of
    its context in device memory; then a move on `x` takes it home. A cluster set on `f` becomes bursts on `b`, which
    cover the slots of its clusters that are at home. `golden.retrieval.kvmap` defines every address.

    State: a row per cluster (first, offload and last block, used slots of the latter two), a pointer per block to the
    next of its cluster or of the free list, the cluster of each ring slot, and a word per context. Memories need no
    initial content: a counter knows the blocks never used, and rows at or above a context's level are empty.

    Order: beats of `a` and `f` take effect in the order of their acceptance; if both wait, `a` goes first. The unit
    fetches a cluster as it was when its beat of `f` was taken. It accepts an APPEND between any two blocks of a fetch,
    so an APPEND never waits for `b`; a CLEAR waits until the fetch of the current cluster is done. The move of an
    APPEND is taken on `x` before its reply is offered on `w`, because the reply allows writing to the slot that the
    move reads. It is also taken before a later beat of `f` is. A CLEAR does not recall bursts of beats already taken
    from `f`.

    Corner cases: an APPEND that needs a block when none is free gets a reply with `full`, and nothing changes. An
    APPEND to a cluster above the level first empties the rows that it skips. A set with nothing at home gives one
    `empty` burst.

    Parameters
    ----------
    p : KvmuParams

    Members
    -------
    a : In(stream of `append_layout`) : APPEND and CLEAR; ctx < n_ctx, cluster < clusters
    w : Out(stream of `placed_layout`) : one reply per APPEND, in order
    x : Out(stream of `move_layout`) : offloads, in order
    f : In(stream of `cluster_layout`) : cluster sets, clusters ascending, the final beat of a set has `last`;
        a beat with `empty` names no cluster
    b : Out(stream of `burst_layout`) : bursts of each set in the order of its clusters, exactly one with `last`
    device_base, home_base : In(addr_bits) : byte addresses of the rings and of the blocks; keep them stable while the
        unit works; base plus size stays within addr_bits
    perf : Out(struct of 32-bit counters modulo 2^32) : appends (placed), full (refused), offloads, fetched (entries),
        bursts

    Latency: APPEND to `w` 2 cycles, 5 with an offload (its move after 4), one more if the offload starts another
        block; plus the clusters skipped if it opens one above the level. `f` to `b` 4 cycles.
    Throughput: an APPEND every 2, with an offload every 4 cycles (5 if it starts another block); CLEAR 2 + level
        cycles, 1,026 for a full table of the `core` preset; a fetch max(1, blocks) cycles a cluster, and no more than
        one burst a cycle. At the `core` preset each entry is a burst, so 64 entries of a cluster take 64 cycles.
    Raises: `ParamError` from `KvmuParams`.
    Source: V-Rex section V-C, Fig. 12.
    """

    COUNTERS = ("appends", "full", "offloads", "fetched", "bursts")

    def __init__(self, p: KvmuParams):
        super().__init__(
            p,
            {
                "a": In(stream.Signature(append_layout(p))),
                "w": Out(stream.Signature(placed_layout(p))),
                "x": Out(stream.Signature(move_layout(p))),
                "f": In(stream.Signature(cluster_layout(p))),
                "b": Out(stream.Signature(burst_layout(p))),
                "device_base": In(p.addr_bits),
                "home_base": In(p.addr_bits),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: KvmuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "append_latency": "2 + skipped + (3 + next_block if offloads else 0)",
            "append_interval": "2 + skipped + (2 + next_block if offloads else 0)",
            "clear_interval": "2 + level",
            "fetch_latency": "4",
            "fetch_interval": "max(1, blocks) a cluster, at least 1 a burst",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        memories = _Memories(m, p)
        collect_errors(m, self, [memories.table, memories.chain, memories.ring, memories.state])
        items = m.submodules.items = SyncFIFO(width=_item_layout(p).size, depth=RANGES)
        beat, free, place, out = _Beat(p), _FreeList(p), _Placement(p), _Answers(p)
        offload, walk, clear = _Offload(p), _Walk(p), _Clear(p)

        self._take(m, memories, beat)
        self._free_blocks(m, memories.chain, beat, free)
        self._placement(m, beat, free, place)
        self._answer(m, out)
        m.d.comb += [offload.sent.eq(beat.row), offload.sent.off_slots.eq(beat.row.off_slots + 1)]
        self._walk(m, memories.chain, beat, walk)
        self._queue_items(m, items, beat, walk)
        m.d.comb += clear.after.eq(clear.index + 1)
        # Each access to a memory belongs to one state, so there is at most one a cycle. `take_a` and `take_f` belong to
        # IDLE and WALK, `leave` to OFFLOAD and NEXT.
        with m.FSM():
            with m.State("IDLE"):
                self._idle(m, memories.chain, beat, out, walk)
            with m.State("PLACE"):
                self._place(m, memories, beat, free, place, out)
            with m.State("OLDEST"):
                self._read_oldest(m, memories, beat, out, offload)
            with m.State("OFFLOAD"):
                self._offload(m, memories.chain, beat, offload)
            with m.State("NEXT"):
                m.d.comb += [
                    offload.leave.eq(1),
                    offload.sent.off.eq(memories.chain.r_data),
                    offload.sent.off_slots.eq(1),
                ]
                m.next = "IDLE"
            with m.State("WALK"):
                self._walk_block(m, memories.chain, items, beat, out, walk)
            with m.State("LEVEL"):
                m.d.comb += memories.table_read("first row", beat.job.ctx * p.clusters)
                m.d.sync += clear.index.eq(0)
                with m.If(beat.level == 0):
                    m.next = "IDLE"
                with m.Else():
                    m.next = "FREE"
            with m.State("FREE"):
                self._free_row(m, memories, beat, free, clear)
        self._write_offloaded(m, memories, beat, out, offload)
        self._read_rows(m, memories, beat, walk)
        self._merge(m, items)
        return m

    def _take(self, m: Module, memories: "_Memories", beat: "_Beat") -> None:
        """Takes a beat of `a` or `f`, and reads the word of its context."""
        row, word, state = beat.row, beat.word, memories.state
        m.d.comb += [
            row.eq(memories.table.r_data),
            word.eq(state.r_data),
            beat.level.eq(Mux(beat.known, word.level, 0)),
        ]
        m.d.comb += [self.a.ready.eq(beat.take_a), self.f.ready.eq(beat.take_f)]
        with m.If(beat.take_a):
            m.d.sync += [beat.job.eq(self.a.payload), beat.known.eq(beat.live.bit_select(self.a.payload.ctx, 1))]
            m.d.comb += _read(state, self.a.payload.ctx)
        with m.Elif(beat.take_f):
            m.d.sync += [beat.fetch.eq(self.f.payload), beat.known.eq(beat.live.bit_select(self.f.payload.ctx, 1))]
            m.d.comb += _read(state, self.f.payload.ctx)

    def _free_blocks(self, m: Module, chain: SinglePortRam, beat: "_Beat", free: "_FreeList") -> None:
        """Finds the block that the next cluster to grow gets."""
        p = self.p
        m.d.comb += [
            free.unused.eq(free.fresh != p.blocks),
            free.free_block.eq(Mux(free.renewed, chain.r_data, free.free_head)),
            free.block.eq(Mux(free.unused, free.fresh[: p.block_bits], free.free_block)),
        ]
        m.d.sync += [free.renewed.eq(beat.take_a & free.renew), free.free_head.eq(free.free_block)]
        with m.If(beat.take_a):
            m.d.comb += [chain.en.eq(free.renew), chain.addr.eq(free.free_head)]
            m.d.sync += free.renew.eq(0)

    def _placement(self, m: Module, beat: "_Beat", free: "_FreeList", place: "_Placement") -> None:
        """Computes where the entry of an APPEND goes, and its cluster's row with this entry."""
        p, job, row, grown = self.p, beat.job, beat.row, place.grown
        m.d.comb += [
            place.lowest.eq(Mux(place.skipping, place.skip, beat.level)),
            place.exists.eq(job.cluster < beat.level),
            place.used.eq(Mux(place.exists, row.tail_slots, 0)),
            place.opens.eq(place.used == 0),
            place.grows.eq(place.opens | (place.used == p.block_slots)),
            place.full.eq(place.grows & ~free.unused & ~free.freed),
            grown.head.eq(Mux(place.opens, free.block, row.head)),
            grown.off.eq(Mux(place.opens, free.block, row.off)),
            grown.off_slots.eq(Mux(place.opens, 0, row.off_slots)),
            grown.tail.eq(Mux(place.grows, free.block, row.tail)),
            grown.tail_slots.eq(Mux(place.grows, 1, place.used + 1)),
            place.pos.eq(Mux(beat.known, beat.word.pos, 0)),
            place.wraps.eq(place.pos == p.recent - 1),
            place.entry.eq(job.ctx * p.recent + place.pos),
        ]

    def _answer(self, m: Module, out: "_Answers") -> None:
        """Offers the move, and after it the reply."""
        p = self.p
        m.d.comb += [
            out.device.eq(self.device_base + out.slot * p.entry_bytes),
            self.x.valid.eq(out.move_valid),
            self.x.payload.src.eq(out.device),
            self.x.payload.dst.eq(self.home_base + out.move * p.entry_bytes),
            self.x.payload.bytes.eq(p.entry_bytes),
            self.w.valid.eq(out.reply_valid & ~out.moves),
            self.w.payload.token.eq(out.reply.token),
            self.w.payload.full.eq(out.reply.full),
            out.reply_free.eq(~out.reply_valid | (self.w.valid & self.w.ready)),
        ]
        with m.If(~out.reply.full):
            m.d.comb += [
                self.w.payload.device.eq(out.device),
                self.w.payload.home.eq(self.home_base + out.reply.home * p.entry_bytes),
            ]
        with m.If(self.w.valid & self.w.ready):
            m.d.sync += out.reply_valid.eq(0)
        with m.If(out.move_valid & self.x.ready):
            m.d.sync += [out.move_valid.eq(0), out.moves.eq(0), self.perf.offloads.eq(self.perf.offloads + 1)]

    def _walk(self, m: Module, chain: SinglePortRam, beat: "_Beat", walk: "_Walk") -> None:
        """Finds the block that the walk over a cluster has reached."""
        row, fetch, here = beat.row, beat.fetch, walk.here
        m.d.comb += [
            here.eq(walk.snap),
            walk.at.eq(Mux(walk.begun, chain.r_data, here.head)),
            walk.final.eq(here.none | (walk.at == here.off)),
        ]
        with m.If(walk.first):
            m.d.comb += [
                here.head.eq(row.head),
                here.off.eq(row.off),
                here.slots.eq(row.off_slots),
                here.none.eq(
                    fetch.empty
                    | (fetch.cluster >= beat.level)
                    | (row.tail_slots == 0)
                    | ((row.head == row.off) & (row.off_slots == 0))
                ),
            ]
            m.d.sync += walk.snap.eq(here)

    def _queue_items(self, m: Module, items: SyncFIFO, beat: "_Beat", walk: "_Walk") -> None:
        """Forms the item for `_merge`: the range of that block that is at home."""
        item, here = walk.item, walk.here
        m.d.comb += [
            item.block.eq(walk.at),
            item.slots.eq(Mux(here.none, 0, Mux(walk.final, here.slots, self.p.block_slots))),
            item.join.eq(~walk.starts & (here.none | (walk.whole & (walk.at == walk.previous + 1)))),
            item.last.eq(walk.final & beat.fetch.last),
            item.ctx.eq(beat.fetch.ctx),
            items.w_data.eq(item),
        ]
        with m.If(items.w_en & items.w_rdy):
            m.d.sync += [walk.starts.eq(item.last), self.perf.fetched.eq(self.perf.fetched + item.slots)]
            with m.If(~here.none):
                m.d.sync += [walk.previous.eq(walk.at), walk.whole.eq(item.slots == self.p.block_slots)]

    def _idle(self, m: Module, chain: SinglePortRam, beat: "_Beat", out: "_Answers", walk: "_Walk") -> None:
        """Starts the next beat: an APPEND or CLEAR first, then a walk under way, then a fetch."""
        with m.If(self.a.valid & ((self.a.payload.op == APPEND) | ~walk.walking)):
            m.d.comb += beat.take_a.eq(1)
            with m.If(self.a.payload.op == APPEND):
                m.next = "PLACE"
            with m.Else():
                m.next = "LEVEL"
        with m.Elif(walk.walking):
            m.d.comb += [chain.en.eq(walk.begun), chain.addr.eq(walk.before)]
            m.next = "WALK"
        with m.Elif(self.f.valid & ~out.move_valid):
            m.d.comb += beat.take_f.eq(1)
            m.next = "WALK"

    def _place(
        self,
        m: Module,
        memories: "_Memories",
        beat: "_Beat",
        free: "_FreeList",
        place: "_Placement",
        out: "_Answers",
    ) -> None:
        """Empties a row below the cluster's own, or replies and writes the entry into all memories."""
        p, job = self.p, beat.job
        with m.If(~place.full & (job.cluster > place.lowest)):
            m.d.comb += memories.table_write("skipped row", job.ctx * p.clusters + place.lowest)
            m.d.sync += [place.skipping.eq(1), place.skip.eq(place.lowest + 1)]
        with m.Elif(out.reply_free):
            m.d.sync += [
                place.skipping.eq(0),
                out.reply_valid.eq(1),
                out.reply.token.eq(job.token),
                out.reply.full.eq(place.full),
                out.reply.home.eq(place.grown.tail * p.block_slots + (place.grown.tail_slots - 1)),
                out.slot.eq(place.entry),
            ]
            m.next = "IDLE"
            with m.If(place.full):
                m.d.sync += self.perf.full.eq(self.perf.full + 1)
            with m.Else():
                m.d.sync += [
                    self.perf.appends.eq(self.perf.appends + 1),
                    beat.live.bit_select(job.ctx, 1).eq(1),
                ]
                self._write_placed(m, memories, beat, free, place)
                with m.If(beat.known & beat.word.filled):
                    m.d.sync += out.moves.eq(1)
                    m.next = "OLDEST"
                with m.If(place.grows & free.unused):
                    m.d.sync += free.fresh.eq(free.fresh + 1)
                with m.Elif(place.grows & (free.free_block == free.free_tail)):
                    m.d.sync += free.freed.eq(0)
                with m.Elif(place.grows):
                    m.d.sync += free.renew.eq(1)

    def _write_placed(
        self, m: Module, memories: "_Memories", beat: "_Beat", free: "_FreeList", place: "_Placement"
    ) -> None:
        """Writes the cluster's row, the context's word, the chain's new end and the cluster of the ring slot."""
        p, job, chain, ring = self.p, beat.job, memories.chain, memories.ring
        new = Signal(_state_layout(p))
        m.d.comb += [
            *memories.table_write("placed entry", job.ctx * p.clusters + job.cluster, place.grown),
            new.level.eq(Mux(place.exists, beat.level, job.cluster + 1)),
            new.pos.eq(Mux(place.wraps, 0, place.pos + 1)),
            new.filled.eq((beat.known & beat.word.filled) | place.wraps),
            *_write(memories.state, job.ctx, new),
            chain.en.eq(place.grows & ~place.opens),
            chain.write.eq(1),
            chain.addr.eq(beat.row.tail),
            chain.w_data.eq(free.block),
            ring.en.eq(1),
            ring.write.eq(~(beat.known & beat.word.filled)),  # otherwise OLDEST writes it, after reading the old one
            ring.addr.eq(place.entry),
            ring.w_data.eq(job.cluster),
        ]

    def _read_oldest(
        self, m: Module, memories: "_Memories", beat: "_Beat", out: "_Answers", offload: "_Offload"
    ) -> None:
        """Reads the row of the cluster whose entry the ring slot held, and writes the new entry's cluster into the
        slot.
        """
        p, ring = self.p, memories.ring
        m.d.comb += [
            *_write(ring, out.slot, beat.job.cluster),
            *memories.table_read("oldest entry", beat.job.ctx * p.clusters + ring.r_data),
        ]
        m.d.sync += offload.oldest.eq(ring.r_data)
        m.next = "OFFLOAD"

    def _offload(self, m: Module, chain: SinglePortRam, beat: "_Beat", offload: "_Offload") -> None:
        """Sends the oldest entry to the block that takes offloads, or to the next block if that one is full."""
        m.d.comb += chain.addr.eq(beat.row.off)
        with m.If(beat.row.off_slots == self.p.block_slots):
            m.d.comb += chain.en.eq(1)
            m.next = "NEXT"
        with m.Else():
            m.d.comb += offload.leave.eq(1)
            m.next = "IDLE"

    def _walk_block(
        self, m: Module, chain: SinglePortRam, items: SyncFIFO, beat: "_Beat", out: "_Answers", walk: "_Walk"
    ) -> None:
        """Puts a block of the cluster into `items`, unless an APPEND goes first."""
        m.d.sync += walk.first.eq(0)
        with m.If(self.a.valid & (self.a.payload.op == APPEND)):
            m.d.comb += beat.take_a.eq(1)
            m.next = "PLACE"
        with m.Else():
            m.d.comb += items.w_en.eq(~walk.here.none | beat.fetch.last)
            with m.If(~items.w_en | items.w_rdy):
                with m.If(~walk.final):
                    m.d.comb += _read(chain, walk.at)
                    m.d.sync += [walk.before.eq(walk.at), walk.begun.eq(1)]
                with m.Elif(self.f.valid & ~self.a.valid & ~out.move_valid):
                    m.d.comb += beat.take_f.eq(1)
                with m.Else():
                    m.d.sync += walk.walking.eq(0)
                    m.next = "IDLE"

    def _free_row(self, m: Module, memories: "_Memories", beat: "_Beat", free: "_FreeList", clear: "_Clear") -> None:
        """CLEAR: appends the blocks of a row to the free list, and reads the next row."""
        p, row, chain = self.p, beat.row, memories.chain
        with m.If(row.tail_slots != 0):
            m.d.comb += [
                chain.en.eq(free.freed),
                chain.write.eq(1),
                chain.addr.eq(free.free_tail),
                chain.w_data.eq(row.head),
            ]
            m.d.sync += [free.freed.eq(1), free.free_tail.eq(row.tail)]
            with m.If(~free.freed):
                m.d.sync += free.free_head.eq(row.head)
        m.d.sync += clear.index.eq(clear.after)
        with m.If(clear.after == beat.level):
            m.d.sync += beat.live.bit_select(beat.job.ctx, 1).eq(0)
            m.next = "IDLE"
        with m.Else():
            m.d.comb += memories.table_read("next row", beat.job.ctx * p.clusters + clear.after)

    def _write_offloaded(
        self, m: Module, memories: "_Memories", beat: "_Beat", out: "_Answers", offload: "_Offload"
    ) -> None:
        """Writes the row of the cluster that the offloaded entry belongs to, and starts its move."""
        p, sent = self.p, offload.sent
        with m.If(offload.leave):
            m.d.comb += memories.table_write("offloaded entry", beat.job.ctx * p.clusters + offload.oldest, sent)
            m.d.sync += [out.move_valid.eq(1), out.move.eq(sent.off * p.block_slots + (sent.off_slots - 1))]

    def _read_rows(self, m: Module, memories: "_Memories", beat: "_Beat", walk: "_Walk") -> None:
        """Reads the row of the beat that the unit takes."""
        with m.If(beat.take_a):
            at_a = self.a.payload
            # A CLEAR has no cluster.
            at = at_a.ctx * self.p.clusters + at_a.cluster
            m.d.comb += memories.table_read("appended cluster", at, at_a.op == APPEND)
        with m.Elif(beat.take_f):
            at_f = self.f.payload
            m.d.comb += memories.table_read("fetched cluster", at_f.ctx * self.p.clusters + at_f.cluster)
            m.d.sync += [walk.walking.eq(1), walk.first.eq(1), walk.begun.eq(0)]

    def _merge(self, m: Module, items: SyncFIFO) -> None:
        """Makes bursts of block ranges: joins adjacent ranges to a run, and cuts the run at every boundary.

        The end of a run waits until the unit knows whether the next range of its set continues it.
        """
        p = self.p
        head = data.View(_item_layout(p), items.r_data)
        span = Signal(
            data.StructLayout(
                {
                    "addr": p.addr_bits,
                    "bytes": bits_for(p.block_bytes + 1),
                    "join": 1,
                    "last": 1,
                    "ctx": bits_for(p.n_ctx),
                }
            )
        )
        span_valid = Signal()
        take = Signal()  # the run takes the span in
        m.d.comb += items.r_en.eq(~span_valid | take)
        with m.If(items.r_en):
            m.d.sync += [
                span_valid.eq(items.r_rdy),
                span.addr.eq(self.home_base + head.block * p.block_bytes),
                span.bytes.eq(head.slots * p.entry_bytes),
                span.join.eq(head.join),
                span.last.eq(head.last),
                span.ctx.eq(head.ctx),
            ]

        end_bits = p.addr_bits + 1  # a run may end where the address space does
        run = Signal(data.StructLayout({"addr": end_bits, "end": end_bits, "last": 1, "ctx": bits_for(p.n_ctx)}))
        run_valid = Signal()
        crosses = Signal()
        to_boundary = Signal(bits_for(p.boundary + 1))
        length = Signal(end_bits)
        within = p.boundary.bit_length() - 1
        m.d.comb += [
            to_boundary.eq(p.boundary - (run.addr[:within] if within else 0)),
            length.eq(run.end - run.addr),
            crosses.eq(length > to_boundary),
            take.eq(span_valid & (~run_valid | span.join | (~crosses & self.b.ready))),
            self.b.valid.eq(run_valid & (crosses | run.last | (span_valid & ~span.join))),
            self.b.payload.addr.eq(run.addr),
            self.b.payload.bytes.eq(Mux(crosses, to_boundary, length)),
            self.b.payload.ctx.eq(run.ctx),
            self.b.payload.last.eq(run.last & ~crosses),
            self.b.payload.empty.eq(length == 0),
        ]
        end = Signal(end_bits)
        m.d.comb += end.eq(span.addr + span.bytes)
        with m.If(self.b.valid & self.b.ready):
            m.d.sync += self.perf.bursts.eq(self.perf.bursts + ~self.b.payload.empty)
            with m.If(crosses):
                m.d.sync += run.addr.eq(run.addr + to_boundary)
            with m.Else():
                m.d.sync += run_valid.eq(0)
        with m.If(take):
            m.d.sync += [run_valid.eq(1), run.last.eq(span.last)]
            with m.If(~span.join):
                m.d.sync += [run.addr.eq(span.addr), run.end.eq(end), run.ctx.eq(span.ctx)]
            with m.Elif(span.bytes != 0):
                m.d.sync += run.end.eq(end)


class _Memories:
    """The memories of clusters (`table`), blocks (`chain`), ring slots (`ring`) and contexts (`state`)."""

    def __init__(self, m: Module, p: KvmuParams):
        m.submodules.rows = self.table = SinglePortRam(_row_layout(p).size, p.n_ctx * p.clusters, protect=p.protect)
        m.submodules.chain = self.chain = SinglePortRam(p.block_bits, p.blocks, protect=p.protect)
        m.submodules.ring = self.ring = SinglePortRam(p.cluster_bits, p.n_ctx * p.recent, protect=p.protect)
        m.submodules.state = self.state = SinglePortRam(_state_layout(p).size, p.n_ctx, protect=p.protect)
        self._free = set(TABLE_PORT)  # requesters of the table's port that have made no request yet

    def table_read(self, requester: str, row: Value, en: ValueLike = 1) -> list:
        """The only reads of `table`. A requester of `TABLE_PORT` reads a row in its own states."""
        self._free.remove(requester)
        return [self.table.addr.eq(row), self.table.en.eq(en)]

    def table_write(self, requester: str, row: Value, word: ValueLike | None = None) -> list:
        """The only writes of `table`. A requester of `TABLE_PORT` writes a row, without a `word` an empty one."""
        self._free.remove(requester)
        access = [self.table.en.eq(1), self.table.write.eq(1), self.table.addr.eq(row)]
        return access if word is None else [*access, self.table.w_data.eq(word)]


class _Beat:
    """The beat that the unit took last, and the words that it read for it."""

    def __init__(self, p: KvmuParams):
        self.live = Signal(p.n_ctx)  # contexts that hold entries; the others have no valid word in `state`
        self.known = Signal()  # the beat's context is live
        self.row = Signal(_row_layout(p))  # row of the beat's cluster
        self.word = Signal(_state_layout(p))  # word of its context
        self.level = Signal.like(self.word.level, name="level")  # clusters of its context
        self.job = Signal(append_layout(p))  # the beat of `a` being processed
        self.fetch = Signal(cluster_layout(p))  # the beat of `f` being processed
        self.take_a = Signal()
        self.take_f = Signal()


class _FreeList:
    """The free blocks: first those never used, then a chain of freed ones.

    The unit reads the next block of the chain with the next beat of `a`, because the chain's port is free in that
    cycle.
    """

    def __init__(self, p: KvmuParams):
        self.fresh = Signal(bits_for(p.blocks + 1))  # the first of the blocks never used
        self.unused = Signal()  # some block was never used
        self.freed = Signal()  # the chain holds a block
        self.free_head = Signal(p.block_bits)
        self.free_tail = Signal(p.block_bits)
        self.renew = Signal()  # `free_head` was given away: read the block behind it
        self.renewed = Signal()  # the block behind it has just been read
        self.free_block = Signal(p.block_bits)  # the chain's head
        self.block = Signal(p.block_bits)  # the block given next


class _Placement:
    """The place of an APPEND's entry."""

    def __init__(self, p: KvmuParams):
        layout = _state_layout(p)
        self.skipping = Signal()  # rows below the cluster's are being emptied
        self.skip = Signal(p.cluster_bits)  # the row being emptied
        self.lowest = Signal(layout["level"].width)  # first row that an APPEND above the level must empty
        self.exists = Signal()  # the cluster has a row
        self.opens = Signal()  # the entry is the cluster's first
        self.grows = Signal()  # the cluster needs another block
        self.full = Signal()  # the cluster needs another block, and none is free
        self.used = Signal(bits_for(p.block_slots + 1))  # used slots of the cluster's last block
        self.grown = Signal(_row_layout(p))  # the cluster's row with the entry
        self.pos = Signal(layout["pos"].width)  # ring slot of the entry
        self.wraps = Signal()  # the slot is the last of its ring
        self.entry = Signal(bits_for(p.n_ctx * p.recent))  # the slot, counted over all rings


class _Answers:
    """The reply and the move of an APPEND; both name the same ring slot, and the move goes first."""

    def __init__(self, p: KvmuParams):
        slot_bits = bits_for(p.blocks * p.block_slots)
        self.reply = Signal(data.StructLayout({"token": p.token_bits, "full": 1, "home": slot_bits}))
        self.reply_valid = Signal()
        self.moves = Signal()  # the move of the reply has not been taken
        self.slot = Signal(bits_for(p.n_ctx * p.recent))  # ring slot, counted over all rings
        self.move = Signal(slot_bits)  # home slot that the entry moves to
        self.move_valid = Signal()
        self.reply_free = Signal()
        self.device = Signal(p.addr_bits)  # byte address of `slot`


class _Offload:
    """The entry that the ring slot held before."""

    def __init__(self, p: KvmuParams):
        self.oldest = Signal(p.cluster_bits)  # its cluster
        self.sent = Signal(_row_layout(p))  # row of that cluster once the entry is at home
        self.leave = Signal()  # the entry leaves in this cycle


class _Walk:
    """A fetch: a walk over the blocks of one cluster, as its row was when the beat was taken."""

    def __init__(self, p: KvmuParams):
        slots_bits = bits_for(p.block_slots + 1)
        self.walking = Signal()  # a beat of `f` is not finished
        self.first = Signal()  # the cluster's row has just been read
        self.begun = Signal()  # a block of the cluster went into `items`
        self.snap = Signal(  # blocks of the row, slots at home of the last one; none: nothing is at home
            data.StructLayout({"head": p.block_bits, "off": p.block_bits, "slots": slots_bits, "none": 1})
        )
        self.here = Signal.like(self.snap, name="here")  # the same, valid already in the cycle of the row
        self.at = Signal(p.block_bits)  # the current block
        self.before = Signal(p.block_bits)  # the block before, read again for its follower after an APPEND
        self.final = Signal()  # the block is the cluster's last
        self.item = Signal(_item_layout(p))
        self.starts = Signal(init=1)  # the next item is the first of its set
        self.whole = Signal()  # the previous item was a whole block
        self.previous = Signal(p.block_bits)


class _Clear:
    """A CLEAR: the row whose blocks the unit frees, and the number of rows after it."""

    def __init__(self, p: KvmuParams):
        self.index = Signal(bits_for(p.clusters))
        self.after = Signal(_state_layout(p)["level"].width)


def _row_layout(p: KvmuParams) -> data.StructLayout:
    """A cluster's row in `table`."""
    slots_bits = bits_for(p.block_slots + 1)
    return data.StructLayout(
        {
            "head": p.block_bits,
            "off": p.block_bits,  # block that takes the next offload, or the full one before it
            "tail": p.block_bits,
            "off_slots": slots_bits,  # slots of `off` that are at home
            "tail_slots": slots_bits,  # slots of `tail` that are taken; 0: no entry yet
        }
    )


def _state_layout(p: KvmuParams) -> data.StructLayout:
    """A context's word in `state`. `level`: clusters that it has. `pos`: ring slot of the next entry. `filled`: the
    ring is.
    """
    return data.StructLayout({"level": bits_for(p.clusters + 1), "pos": bits_for(p.recent), "filled": 1})


def _item_layout(p: KvmuParams) -> data.StructLayout:
    """The first `slots` slots of a block (0: none). `join`: the range continues the previous one of its set."""
    return data.StructLayout(
        {
            "block": p.block_bits,
            "slots": bits_for(p.block_slots + 1),
            "join": 1,
            "last": 1,
            "ctx": bits_for(p.n_ctx),
        }
    )


def _read(ram: SinglePortRam, addr: Value) -> list:
    return [ram.en.eq(1), ram.addr.eq(addr)]


def _write(ram: SinglePortRam, addr: Value, word: ValueLike) -> list:
    return [ram.en.eq(1), ram.write.eq(1), ram.addr.eq(addr), ram.w_data.eq(word)]
