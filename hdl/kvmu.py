"""KV cache management unit."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hdl.cluster_set import cluster_layout
from hdl.memory import SinglePortRam, collect_errors, error_members
from hdl.params import KvmuParams, bits_for

APPEND, CLEAR = 0, 1


def append_layout(p: KvmuParams) -> data.StructLayout:
    """An entry to place: op (APPEND, or CLEAR the map of ctx), ctx, the cluster it joins, token number."""
    return data.StructLayout({"op": 1, "ctx": bits_for(p.n_ctx), "cluster": p.cluster_bits, "token": p.token_bits})


def placed_layout(p: KvmuParams) -> data.StructLayout:
    """Reply to an APPEND: its token; full (refused, both addresses 0); where to write the entry now and its home."""
    return data.StructLayout({"token": p.token_bits, "full": 1, "device": p.addr_bits, "home": p.addr_bits})


def move_layout(p: KvmuParams) -> data.StructLayout:
    """An offload: `bytes` (always entry_bytes) from device address `src` to home address `dst`."""
    return data.StructLayout({"src": p.addr_bits, "dst": p.addr_bits, "bytes": bits_for(p.entry_bytes + 1)})


def burst_layout(p: KvmuParams) -> data.StructLayout:
    """A fetch: `bytes` from home address `addr` for ctx; last of its set; empty (the set needs nothing, bytes 0)."""
    longest = min(p.boundary, p.blocks * p.block_bytes)
    return data.StructLayout(
        {"addr": p.addr_bits, "bytes": bits_for(longest + 1), "ctx": bits_for(p.n_ctx), "last": 1, "empty": 1}
    )


class Kvmu(wiring.Component):
    """Places entries of the KV cache cluster by cluster, offloads the oldest, and fetches cluster sets in bursts.

    An entry gets its home at once: the next slot of its cluster's last block, or of a new block. It is written into
    the ring of its context in device memory and moves home when `recent` newer entries came. A fetch covers the
    slots at home of each cluster of a set; `golden.kvmap` defines every address.

    State: a row per cluster (first, offload and last block, slots used in the latter two), a pointer per block to the
    next of its cluster or of the free list, the cluster of each ring slot, a word per context. Memories need no
    initial content: blocks never used are counted, rows at or above a context's level are empty.

    Order. Beats of `a` and `f` take effect in the order of their acceptance; if both wait, `a` goes first. A cluster
    is fetched as it was when its beat of `f` was taken. An APPEND is accepted between any two blocks of a fetch, so
    it never waits for `b`; a CLEAR waits until the cluster being fetched is done. The move of an APPEND is taken on
    `x` before its reply is offered on `w`, for the reply allows writing to the slot that the move reads; and it is
    taken before a later beat of `f` is. Bursts already taken from `f` are not recalled by a CLEAR.

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
    device_base, home_base : In(addr_bits) : byte addresses of the rings and of the blocks, stable while the unit
        works; base plus size stays within addr_bits
    perf : Out(struct of 32-bit counters modulo 2^32) : appends (placed), full (refused), offloads, fetched (entries),
        bursts

    Latency: APPEND to `w` 2 cycles, 5 with an offload (its move after 4), one more if the offload starts another
    block; plus the clusters skipped if it opens one above the level. `f` to `b` 4 cycles.
    Throughput: an APPEND every 2, with an offload every 4 cycles (5 if it starts another block); CLEAR 2 + level
    cycles; a fetch max(1, blocks) cycles a cluster, and no more than one burst a cycle.
    Raises: `ParamError` from `KvmuParams`.
    Source: V-Rex section V-C, Fig. 12.
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        super().__init__(
            {
                "a": In(stream.Signature(append_layout(p))),
                "w": Out(stream.Signature(placed_layout(p))),
                "x": Out(stream.Signature(move_layout(p))),
                "f": In(stream.Signature(cluster_layout(p))),
                "b": Out(stream.Signature(burst_layout(p))),
                "device_base": In(p.addr_bits),
                "home_base": In(p.addr_bits),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
                **error_members(p.protect),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["appends", "full", "offloads", "fetched", "bursts"]

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
        slots_bits = bits_for(p.block_slots + 1)
        row_layout = data.StructLayout(
            {
                "head": p.block_bits,
                "off": p.block_bits,  # block that takes the next offload, or the full one before it
                "tail": p.block_bits,
                "off_slots": slots_bits,  # slots of `off` that are at home
                "tail_slots": slots_bits,  # slots of `tail` that are taken; 0: no entry yet
            }
        )
        state_layout = data.StructLayout(
            {"level": bits_for(p.clusters + 1), "pos": bits_for(p.recent), "filled": 1}  # pos: ring slot of next entry
        )
        table = m.submodules.table = SinglePortRam(row_layout.size, p.n_ctx * p.clusters, protect=p.protect)
        chain = m.submodules.chain = SinglePortRam(p.block_bits, p.blocks, protect=p.protect)
        ring = m.submodules.ring = SinglePortRam(p.cluster_bits, p.n_ctx * p.recent, protect=p.protect)
        state = m.submodules.state = SinglePortRam(state_layout.size, p.n_ctx, protect=p.protect)
        collect_errors(m, self, [table, chain, ring, state])
        items = m.submodules.items = SyncFIFO(width=self._item_layout().size, depth=4)

        # What was read for the beat taken last. A context that holds nothing has no valid state word.
        live = Signal(p.n_ctx)
        known = Signal()
        row = Signal(row_layout)
        word = Signal(state_layout)
        level = Signal.like(word.level)
        m.d.comb += [
            row.eq(table.r_data),
            word.eq(state.r_data),
            level.eq(Mux(known, word.level, 0)),
        ]
        job = Signal(append_layout(p))  # the beat of `a` being worked on
        fetch = Signal(cluster_layout(p))  # the beat of `f` being worked on
        take_a = Signal()
        take_f = Signal()
        m.d.comb += [self.a.ready.eq(take_a), self.f.ready.eq(take_f)]
        with m.If(take_a):
            m.d.sync += [job.eq(self.a.payload), known.eq(live.bit_select(self.a.payload.ctx, 1))]
            m.d.comb += [state.en.eq(1), state.addr.eq(self.a.payload.ctx)]
        with m.Elif(take_f):
            m.d.sync += [fetch.eq(self.f.payload), known.eq(live.bit_select(self.f.payload.ctx, 1))]
            m.d.comb += [state.en.eq(1), state.addr.eq(self.f.payload.ctx)]

        # Free list: blocks never used, then a chain of freed ones. A head that was given is followed by the next block
        # when a beat of `a` is taken, which leaves the chain's port free.
        fresh = Signal(bits_for(p.blocks + 1))
        unused = Signal()
        freed = Signal()  # the chain holds a block
        free_head = Signal(p.block_bits)
        free_tail = Signal(p.block_bits)
        renew = Signal()  # `free_head` was given
        renewed = Signal()  # its follower has just been read
        free_block = Signal(p.block_bits)
        block = Signal(p.block_bits)
        m.d.comb += [
            unused.eq(fresh != p.blocks),
            free_block.eq(Mux(renewed, chain.r_data, free_head)),
            block.eq(Mux(unused, fresh[: p.block_bits], free_block)),
        ]
        m.d.sync += [renewed.eq(take_a & renew), free_head.eq(free_block)]
        with m.If(take_a):
            m.d.comb += [chain.en.eq(renew), chain.addr.eq(free_head)]
            m.d.sync += renew.eq(0)

        # APPEND: where the entry goes.
        skipping = Signal()
        skip = Signal(p.cluster_bits)
        lowest = Signal.like(word.level)  # empty cluster rows are written below this
        exists = Signal()
        opens = Signal()
        grows = Signal()
        full = Signal()
        used = Signal(slots_bits)
        grown = Signal(row_layout)
        pos = Signal.like(word.pos)
        wraps = Signal()
        entry = Signal(bits_for(p.n_ctx * p.recent))
        m.d.comb += [
            lowest.eq(Mux(skipping, skip, level)),
            exists.eq(job.cluster < level),
            used.eq(Mux(exists, row.tail_slots, 0)),
            opens.eq(used == 0),
            grows.eq(opens | (used == p.block_slots)),
            full.eq(grows & ~unused & ~freed),
            grown.head.eq(Mux(opens, block, row.head)),
            grown.off.eq(Mux(opens, block, row.off)),
            grown.off_slots.eq(Mux(opens, 0, row.off_slots)),
            grown.tail.eq(Mux(grows, block, row.tail)),
            grown.tail_slots.eq(Mux(grows, 1, used + 1)),
            pos.eq(Mux(known, word.pos, 0)),
            wraps.eq(pos == p.recent - 1),
            entry.eq(job.ctx * p.recent + pos),
        ]

        # Reply and move; both name the same ring slot, the move goes first.
        reply = Signal(data.StructLayout({"token": p.token_bits, "full": 1, "home": self._slot_bits}))
        reply_valid = Signal()
        moves = Signal()  # moves: the move of the reply has not been taken
        slot = Signal.like(entry)
        move = Signal(self._slot_bits)
        move_valid = Signal()
        reply_free = Signal()
        device = Signal(p.addr_bits)
        m.d.comb += [
            device.eq(self.device_base + slot * p.entry_bytes),
            self.x.valid.eq(move_valid),
            self.x.payload.src.eq(device),
            self.x.payload.dst.eq(self.home_base + move * p.entry_bytes),
            self.x.payload.bytes.eq(p.entry_bytes),
            self.w.valid.eq(reply_valid & ~moves),
            self.w.payload.token.eq(reply.token),
            self.w.payload.full.eq(reply.full),
            reply_free.eq(~reply_valid | (self.w.valid & self.w.ready)),
        ]
        with m.If(~reply.full):
            m.d.comb += [
                self.w.payload.device.eq(device),
                self.w.payload.home.eq(self.home_base + reply.home * p.entry_bytes),
            ]
        with m.If(self.w.valid & self.w.ready):
            m.d.sync += reply_valid.eq(0)
        with m.If(move_valid & self.x.ready):
            m.d.sync += [move_valid.eq(0), moves.eq(0), self.perf.offloads.eq(self.perf.offloads + 1)]

        # Offload of the entry that was in the ring slot.
        oldest = Signal(p.cluster_bits)
        sent = Signal(row_layout)
        leave = Signal()
        m.d.comb += [sent.eq(row), sent.off_slots.eq(row.off_slots + 1)]

        # Fetch: blocks of one cluster, as its row was when the beat was taken.
        walking = Signal()  # a beat of `f` is not finished
        first = Signal()  # its row has just been read
        begun = Signal()  # a block of it went into `items`
        snap = Signal(data.StructLayout({"head": p.block_bits, "off": p.block_bits, "slots": slots_bits, "none": 1}))
        here = Signal.like(snap)
        at = Signal(p.block_bits)
        before = Signal(p.block_bits)
        final = Signal()
        m.d.comb += [
            here.eq(snap),
            at.eq(Mux(begun, chain.r_data, here.head)),
            final.eq(here.none | (at == here.off)),
        ]
        with m.If(first):
            m.d.comb += [
                here.head.eq(row.head),
                here.off.eq(row.off),
                here.slots.eq(row.off_slots),
                here.none.eq(
                    fetch.empty
                    | (fetch.cluster >= level)
                    | (row.tail_slots == 0)
                    | ((row.head == row.off) & (row.off_slots == 0))
                ),
            ]
            m.d.sync += snap.eq(here)
        item = Signal(self._item_layout())
        starts = Signal(init=1)  # the next item is the first of its set
        whole = Signal()  # the previous item was a whole block
        previous = Signal(p.block_bits)
        m.d.comb += [
            item.block.eq(at),
            item.slots.eq(Mux(here.none, 0, Mux(final, here.slots, p.block_slots))),
            item.join.eq(~starts & (here.none | (whole & (at == previous + 1)))),
            item.last.eq(final & fetch.last),
            item.ctx.eq(fetch.ctx),
            items.w_data.eq(item),
        ]
        with m.If(items.w_en & items.w_rdy):
            m.d.sync += [starts.eq(item.last), self.perf.fetched.eq(self.perf.fetched + item.slots)]
            with m.If(~here.none):
                m.d.sync += [previous.eq(at), whole.eq(item.slots == p.block_slots)]

        index = Signal(bits_for(p.clusters))
        after = Signal.like(word.level)
        m.d.comb += after.eq(index + 1)

        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.a.valid & ((self.a.payload.op == APPEND) | ~walking)):
                    m.d.comb += take_a.eq(1)
                    with m.If(self.a.payload.op == APPEND):
                        m.next = "PLACE"
                    with m.Else():
                        m.next = "LEVEL"
                with m.Elif(walking):
                    m.d.comb += [chain.en.eq(begun), chain.addr.eq(before)]
                    m.next = "WALK"
                with m.Elif(self.f.valid & ~move_valid):
                    m.d.comb += take_f.eq(1)
                    m.next = "WALK"

            with m.State("PLACE"):
                with m.If(~full & (job.cluster > lowest)):
                    m.d.comb += [table.en.eq(1), table.write.eq(1), table.addr.eq(job.ctx * p.clusters + lowest)]
                    m.d.sync += [skipping.eq(1), skip.eq(lowest + 1)]
                with m.Elif(reply_free):
                    m.d.sync += [
                        skipping.eq(0),
                        reply_valid.eq(1),
                        reply.token.eq(job.token),
                        reply.full.eq(full),
                        reply.home.eq(grown.tail * p.block_slots + (grown.tail_slots - 1)),
                        slot.eq(entry),
                    ]
                    m.next = "IDLE"
                    with m.If(full):
                        m.d.sync += self.perf.full.eq(self.perf.full + 1)
                    with m.Else():
                        m.d.sync += [
                            self.perf.appends.eq(self.perf.appends + 1),
                            live.bit_select(job.ctx, 1).eq(1),
                        ]
                        new = Signal(state_layout)
                        m.d.comb += [
                            table.en.eq(1),
                            table.write.eq(1),
                            table.addr.eq(job.ctx * p.clusters + job.cluster),
                            table.w_data.eq(grown),
                            new.level.eq(Mux(exists, level, job.cluster + 1)),
                            new.pos.eq(Mux(wraps, 0, pos + 1)),
                            new.filled.eq((known & word.filled) | wraps),
                            state.en.eq(1),
                            state.write.eq(1),
                            state.addr.eq(job.ctx),
                            state.w_data.eq(new),
                            chain.en.eq(grows & ~opens),
                            chain.write.eq(1),
                            chain.addr.eq(row.tail),
                            chain.w_data.eq(block),
                            ring.en.eq(1),
                            ring.write.eq(~(known & word.filled)),
                            ring.addr.eq(entry),
                            ring.w_data.eq(job.cluster),
                        ]
                        with m.If(known & word.filled):
                            m.d.sync += moves.eq(1)
                            m.next = "OLDEST"
                        with m.If(grows & unused):
                            m.d.sync += fresh.eq(fresh + 1)
                        with m.Elif(grows & (free_block == free_tail)):
                            m.d.sync += freed.eq(0)
                        with m.Elif(grows):
                            m.d.sync += renew.eq(1)

            with m.State("OLDEST"):
                m.d.comb += [
                    ring.en.eq(1),
                    ring.write.eq(1),
                    ring.addr.eq(slot),
                    ring.w_data.eq(job.cluster),
                    table.en.eq(1),
                    table.addr.eq(job.ctx * p.clusters + ring.r_data),
                ]
                m.d.sync += oldest.eq(ring.r_data)
                m.next = "OFFLOAD"

            with m.State("OFFLOAD"):
                m.d.comb += chain.addr.eq(row.off)
                with m.If(row.off_slots == p.block_slots):
                    m.d.comb += chain.en.eq(1)
                    m.next = "NEXT"
                with m.Else():
                    m.d.comb += leave.eq(1)
                    m.next = "IDLE"

            with m.State("NEXT"):
                m.d.comb += [leave.eq(1), sent.off.eq(chain.r_data), sent.off_slots.eq(1)]
                m.next = "IDLE"

            with m.State("WALK"):
                m.d.sync += first.eq(0)
                with m.If(self.a.valid & (self.a.payload.op == APPEND)):
                    m.d.comb += take_a.eq(1)
                    m.next = "PLACE"
                with m.Else():
                    m.d.comb += items.w_en.eq(~here.none | fetch.last)
                    with m.If(~items.w_en | items.w_rdy):
                        with m.If(~final):
                            m.d.comb += [chain.en.eq(1), chain.addr.eq(at)]
                            m.d.sync += [before.eq(at), begun.eq(1)]
                        with m.Elif(self.f.valid & ~self.a.valid & ~move_valid):
                            m.d.comb += take_f.eq(1)
                        with m.Else():
                            m.d.sync += walking.eq(0)
                            m.next = "IDLE"

            with m.State("LEVEL"):
                m.d.comb += [table.en.eq(1), table.addr.eq(job.ctx * p.clusters)]
                m.d.sync += index.eq(0)
                with m.If(level == 0):
                    m.next = "IDLE"
                with m.Else():
                    m.next = "FREE"

            with m.State("FREE"):
                with m.If(row.tail_slots != 0):
                    m.d.comb += [
                        chain.en.eq(freed),
                        chain.write.eq(1),
                        chain.addr.eq(free_tail),
                        chain.w_data.eq(row.head),
                    ]
                    m.d.sync += [freed.eq(1), free_tail.eq(row.tail)]
                    with m.If(~freed):
                        m.d.sync += free_head.eq(row.head)
                m.d.sync += index.eq(after)
                with m.If(after == level):
                    m.d.sync += live.bit_select(job.ctx, 1).eq(0)
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += [table.en.eq(1), table.addr.eq(job.ctx * p.clusters + after)]

        with m.If(leave):
            m.d.comb += [
                table.en.eq(1),
                table.write.eq(1),
                table.addr.eq(job.ctx * p.clusters + oldest),
                table.w_data.eq(sent),
            ]
            m.d.sync += [move_valid.eq(1), move.eq(sent.off * p.block_slots + (sent.off_slots - 1))]
        with m.If(take_a):
            at_a = self.a.payload
            m.d.comb += [table.en.eq(1), table.addr.eq(at_a.ctx * p.clusters + at_a.cluster)]
        with m.Elif(take_f):
            at_f = self.f.payload
            m.d.comb += [table.en.eq(1), table.addr.eq(at_f.ctx * p.clusters + at_f.cluster)]
            m.d.sync += [walking.eq(1), first.eq(1), begun.eq(0)]

        self._merge(m, items)
        return m

    def _merge(self, m, items):
        """Bursts from block ranges: adjacent ones are joined into a run, a run leaves in pieces up to the boundary.

        The end of a run is kept back until it is known whether another range of its set follows.
        """
        p = self.p
        head = data.View(self._item_layout(), items.r_data)
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
        take = Signal()
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

    @property
    def _slot_bits(self):
        return bits_for(self.p.blocks * self.p.block_slots)

    def _item_layout(self):
        """A range of the first `slots` of a block (0: none); whether it continues the previous one of its set."""
        p = self.p
        return data.StructLayout(
            {
                "block": p.block_bits,
                "slots": bits_for(p.block_slots + 1),
                "join": 1,
                "last": 1,
                "ctx": bits_for(p.n_ctx),
            }
        )
