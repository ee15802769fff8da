"""KV cache management unit."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.memory import collect_errors
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.ram_fifo import RamFifo
from openvrex.hdl.retrieval.burst_merger import BurstMerger
from openvrex.hdl.retrieval.count_stream import CountStream
from openvrex.hdl.retrieval.fetch_walk import FetchWalk
from openvrex.hdl.retrieval.kvmu_layouts import (
    APPEND,
    append_layout,
    burst_layout,
    counts_layout,
    fetch_layout,
    map_layouts,
    map_port,
    move_layout,
    placed_layout,
    sharing_members,
    span_layout,
)
from openvrex.hdl.retrieval.placer import Placer
from openvrex.hdl.retrieval.table_client import table_client
from openvrex.hdl.unit import Unit

_PLACER, _WALK, _COUNTS = range(3)  # the parts that read tables


class Kvmu(Unit):
    """Places entries of the KV cache cluster by cluster, offloads the oldest, and fetches cluster sets in bursts.

    An entry comes in as an APPEND on `a`, and the reply on `w` says where it goes. It gets its home at once: the next
    slot of its cluster's last block, or of a new block. Until `recent` newer entries have come it lives in the ring of
    its context in device memory; then a move on `x` takes it home. A cluster set on `f` becomes bursts on `b`, which
    cover the slots of its clusters that are at home. `golden.retrieval.kvmap` defines every address.

    State: all of it is in memory, behind the port `m` (`golden.retrieval.table_layout`): PLACE, RING, COUNT, ROW, NEXT
    and POOL. The unit keeps a copy of POOL, and writes every change at once. A ROW without entries is zero, so memory
    needs zeros at first, and a CLEAR leaves zeros.

    Counts: a SWITCH makes the unit read the context's token counts into the ring of the WTU, which holds `counts` of
    them. If the context has more clusters, its counts come round and round, until the next SWITCH: at first as many
    words as the ring holds, then one for each word that the WTU uses. The next SWITCH begins when no word is on its
    way.

    Order: the unit serves beats of `a` one after the other, and replies to each in order. It offers the reply when
    memory has taken every write of the beat, and `x` its move. Fetches run beside that. A fetch covers a cluster as it
    was when its row was asked for; the move of an entry is taken on `x` before any fetch covers the entry's home.
    Neither an APPEND nor a SWITCH waits for `b`. A CLEAR waits until the blocks of all beats taken from `f` went to the
    bursts, and holds back further beats. It does not recall these bursts. Fetches do not wait for `w`, `x` or the WTU.
    A SWITCH is answered when the ring is full, or holds all counts.

    Kept blocks, with `kept`: device memory in front of the rings has `kept` places for blocks of each context. The
    items behind RING say which cluster's first block a place has. Of each cluster of a set the unit reads its place
    before its row. A block that is there comes from there (`near`). Of the others that are whole, the first `keeps` of
    a set are to be kept (`keep`), and the unit notes them behind the set, or before a CLEAR that waits. A cluster that
    gets its first block takes its place from another. Whoever copies the bursts keeps a set's blocks before it reads
    those of the next set. An entry at home never changes, so a place never holds old entries.

    Users who do not trust each other, with `shared`: a context gets at most `quota` blocks. A CLEAR gives each block to
    `x` to be wiped before it can be another's. Rings and places of kept blocks have their address from the context: who
    gives contexts to users wipes these.

    Corner cases: an APPEND that needs a block when none is free, or its context has its quota, gets a reply with
    `full`, and counts its token, but nothing else changes. A set with nothing at home gives one `empty` burst. A SWITCH
    to a context without clusters gives no count. Keys that a context gets after its SWITCH may change counts that come
    round and round.

    Parameters
    ----------
    p : KvmuParams

    Members
    -------
    a : In(stream of `append_layout`) : APPEND, CLEAR and SWITCH; ctx < n_ctx, cluster < clusters
    w : Out(stream of `placed_layout`) : one reply per beat of `a`, in order
    x : Out(stream of `move_layout`) : offloads, in order; with `shared` blocks to be wiped, before their CLEAR's reply
    c : Out(`counts_layout`) : words of token counts for the WTU, clusters ascending, one in each cycle with `valid`
    c_free : In(1) : the WTU can empty its ring; the unit gives the first word of a SWITCH only after it saw this
    c_used : In(1) : pulse: a place of the ring is free again, of a context whose counts come round and round
    f : In(stream of `fetch_layout`) : cluster sets, clusters ascending, the final beat of a set has `last`;
        a beat with `empty` names no cluster
    b : Out(stream of `burst_layout`) : bursts of each set in the order of its clusters, exactly one with `last`
    m : Out(`table_client`) : the tables in memory; sizes in `hdl.retrieval.kvmu_layouts.map_port`
    blocks : In : number of blocks of the pool, 1 to p.blocks
    quota : In, with `shared` : most blocks that a context may hold; 0: any number
    device_base, home_base : In(addr_bits) : byte addresses of the rings and of the blocks; keep them, `blocks` and
        `quota` stable while the unit works; base plus size stays within addr_bits
    perf : Out(struct of 32-bit counters modulo 2^32) : appends (placed), full (refused), offloads, fetched (entries),
        bursts

    Latency: L is the number of cycles from a request on `m` to its first item; memory takes requests at once. A SWITCH
        gives its first word 3 + L cycles after its beat on `a`, and its reply 1 cycle after the ring's last one. From
        `f` to `b` are 5 + L cycles. An APPEND takes 10 + L cycles from `a` to `w`, and

        - 7 + 2 L more if an entry leaves the ring, but 5 + L if that is of the same cluster
        - 1 + L more if the entry that leaves is the first of its block, but not of its cluster
        - 2 more if its cluster gets another block; 1 less if it opens its cluster, but not with `kept`
        - 2 + L more if that block is a freed one with another behind it, but 1 if an entry leaves as well
        - 3 + L more for the first beat after a reset, but a SWITCH, to read POOL

        At the `core` preset with L = 60 that is 70 cycles, and 197 with an offload.
    Throughput: a beat of `a` in the cycle after the reply before. A CLEAR takes up to 4 + 4 clusters + (L + 1) *
        ceil(clusters / rows) cycles; with `shared` L + 4 more a block. A SWITCH gives `count_lanes` counts a cycle. In
        a context of more than `counts` clusters the WTU can use a word a cycle if L + 2 + 2 * read_words is at most the
        words of the ring. A fetch takes a cluster a cycle if L + 4 is at most `rows`, otherwise `rows` clusters in L +
        4 cycles, and L + 3 cycles for each further block of a cluster; it gives at most a burst a cycle. With `kept` a
        cluster takes two cycles, and a set one more for each block that is noted.
    Raises: `ParamError` from `KvmuParams`.
    Source: V-Rex section V-C, Fig. 12; kept blocks are this project's own.
    """

    COUNTERS = ("appends", "full", "offloads", "fetched", "bursts")

    def __init__(self, p: KvmuParams):
        super().__init__(
            p,
            {
                "a": In(stream.Signature(append_layout(p))),
                "w": Out(stream.Signature(placed_layout(p))),
                "x": Out(stream.Signature(move_layout(p))),
                "c": Out(counts_layout(p)),
                "c_free": In(1),
                "c_used": In(1),
                "f": In(stream.Signature(fetch_layout(p))),
                "b": Out(stream.Signature(burst_layout(p))),
                "m": Out(table_client(map_port(p))),
                "blocks": In(bits_for(p.blocks + 1)),
                **sharing_members(p),
                "device_base": In(p.addr_bits),
                "home_base": In(p.addr_bits),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: KvmuParams) -> dict[str, str]:
        """Formulas for the manifest. L: cycles from a request on `m` to its first item."""
        return {
            "append_latency": "10 + L + (2 if it grows)"
            + " - (1 if it opens)" * (not p.kept)
            + " + (7 + 2 * L if it offloads)",
            "append_interval": "append_latency + 1",
            "clear_interval": f"4 + 4 * clusters + (L + 1) * ceil(clusters / {p.rows})"
            + " + (L + 4) * blocks" * p.shared,
            "switch_latency": "3 + L",
            "switch_interval": f"1 / {p.count_lanes} a count",
            "fetch_latency": "5 + L",
            "fetch_interval": f"max({1 + bool(p.kept)}, (L + 4) / {p.rows}) a cluster, L + 3 a further block, "
            "at least 1 a burst" + ", 1 a block that is noted" * bool(p.kept),
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.placer = placer = Placer(p)
        m.submodules.walk = walk = FetchWalk(p)
        m.submodules.merger = merger = BurstMerger(p)
        m.submodules.rows = rows = RamFifo(span_layout(p), p.rows, p.protect)
        m.submodules.counts = counts = CountStream(p)
        # Reads in flight: of the walk `rows` rows (a block is read in place of its row), of an APPEND three items, of
        # the counts as many as fit into the ring and one of which some words have come.
        depth = p.rows * (2 if p.kept else 1) + 4 + p.counts // p.read_counts
        m.submodules.asked = asked = SyncFIFO(width=_asked_layout(p).size, depth=depth)
        collect_errors(m, self, [rows, *([walk] if p.kept else [])])
        for name in ("a", "w", "x"):
            connect(m, flipped(getattr(self, name)), getattr(placer, name))
        connect(m, flipped(self.f), walk.f)
        connect(m, walk.o, merger.i)
        connect(m, flipped(self.b), merger.o)
        if p.kept:
            self._put(m, placer, walk)
            home = _multiple(self.home_base, p.block_bytes)
            m.d.comb += merger.device_base.eq(_multiple(self.device_base, p.map_sizes().place_bytes))
        else:
            connect(m, flipped(self.m.put), placer.put)
            home = self.home_base
        connect(m, placer.switch, counts.switch)
        m.d.comb += [
            self.c.eq(counts.c),
            counts.c_free.eq(self.c_free),
            counts.c_used.eq(self.c_used),
            placer.switched.eq(counts.switched),
            merger.home_base.eq(home),
            placer.home_base.eq(home),
            placer.device_base.eq(self.device_base),
            placer.blocks.eq(self.blocks),
            *([placer.quota.eq(self.quota)] if p.shared else []),
            placer.idle.eq(walk.idle),
            walk.hold.eq(placer.hold),
        ]
        self._ask(m, placer, walk, counts, asked)
        self._give(m, placer, walk, counts, asked, rows)
        self._share_rows(m, placer, walk, rows)
        self._count_events(m, placer, walk)
        return m

    def _ask(self, m: Module, placer: Placer, walk: FetchWalk, counts: CountStream, asked: SyncFIFO) -> None:
        """Keeps a read until it is taken; those of the placer go first, those of the walk last."""
        p, kept = self.p, self.m.ask
        free = Signal()  # another read may be kept
        some = Signal()  # there is one
        read = Signal.like(kept.payload, name="read")
        owner = Signal(_asked_layout(p))  # who makes it
        m.d.comb += [
            free.eq(~kept.valid | kept.ready),
            some.eq(placer.ask.valid | counts.ask.valid | walk.ask.valid),
            placer.ask.ready.eq(free),
            counts.ask.ready.eq(free & ~placer.ask.valid),
            walk.ask.ready.eq(free & ~placer.ask.valid & ~counts.ask.valid),
            asked.w_en.eq(free & some),
            asked.w_data.eq(owner),
            owner.item.eq(read.item),
        ]
        with m.If(placer.ask.valid):
            m.d.comb += [read.eq(placer.ask.payload), owner.of.eq(_PLACER)]
        with m.Elif(counts.ask.valid):
            m.d.comb += [read.eq(counts.ask.payload), owner.of.eq(_COUNTS)]
            m.d.comb += owner.words.eq(read.more >> p.count_lanes.bit_length() - 1)
        with m.Else():
            m.d.comb += [read[name].eq(walk.ask.payload[name]) for name in ("item", "ctx", "index")]
            m.d.comb += owner.of.eq(_WALK)
        with m.If(free):
            m.d.sync += [kept.valid.eq(some), kept.payload.eq(read)]

    def _put(self, m: Module, placer: Placer, walk: FetchWalk) -> None:
        """Offers the writes of the placer, or those of the walk; one that is offered stays."""
        held = Signal()  # a write of the walk is on offer
        first = Signal()  # the walk's write goes
        m.d.comb += [
            first.eq(held | ~placer.put.valid),
            self.m.put.valid.eq(placer.put.valid | walk.put.valid),
            self.m.put.payload.eq(Mux(first, walk.put.payload, placer.put.payload)),
            placer.put.ready.eq(self.m.put.ready & ~first),
            walk.put.ready.eq(self.m.put.ready & first),
        ]
        m.d.sync += held.eq(walk.put.valid & first & ~self.m.put.ready)

    def _give(
        self, m: Module, placer: Placer, walk: FetchWalk, counts: CountStream, asked: SyncFIFO, rows: RamFifo
    ) -> None:
        """Gives each item that comes to the part that asked for it."""
        p, came = self.p, self.m.data
        owner = data.View(_asked_layout(p), asked.r_data)
        words = Signal.like(owner.words, name="words_come")  # of the read that comes now
        row = Signal(map_layouts(p)[Item.ROW])  # the item, as a row
        span = Signal(span_layout(p))  # its blocks at home; for a CLEAR all its blocks
        m.d.comb += [
            came.ready.eq(1),
            asked.r_en.eq(came.valid & (words == owner.words)),
            placer.came.valid.eq(came.valid & (owner.of == _PLACER)),
            placer.came.item.eq(owner.item),
            placer.came.data.eq(came.payload),
            counts.came.valid.eq(came.valid & (owner.of == _COUNTS)),
            counts.came.counts.eq(came.payload),
            walk.next.valid.eq(came.valid & (owner.of == _WALK) & (owner.item == Item.NEXT)),
            walk.next.block.eq(came.payload),
            row.eq(came.payload),
            span.head.eq(row.head),
            span.end.eq(Mux(placer.clears, row.tail, row.off)),
            span.slots.eq(Mux(placer.clears, row.tail_slots, row.off_slots)),
            rows.w_en.eq(came.valid & (owner.item == Item.ROW) & ((owner.of == _WALK) | placer.clears)),
            rows.w_data.eq(span),
        ]
        if p.kept:  # the item of a cluster's place comes before its row
            kept = Signal(p.cluster_bits)
            with m.If(came.valid & (owner.of == _WALK) & (owner.item == Item.RING)):
                m.d.sync += kept.eq(came.payload)
            m.d.comb += span.kept.eq(kept)
        with m.If(came.valid):
            m.d.sync += words.eq(Mux(asked.r_en, 0, words + 1))

    def _share_rows(self, m: Module, placer: Placer, walk: FetchWalk, rows: RamFifo) -> None:
        """Gives the rows to the CLEAR that is served, otherwise to the walk."""
        m.d.comb += [
            placer.rows.payload.eq(rows.o.payload),
            placer.rows.valid.eq(rows.o.valid & placer.clears),
            walk.row.payload.eq(rows.o.payload),
            walk.row.valid.eq(rows.o.valid & ~placer.clears),
            rows.o.ready.eq(Mux(placer.clears, placer.rows.ready, walk.row.ready)),
        ]

    def _count_events(self, m: Module, placer: Placer, walk: FetchWalk) -> None:
        placed, given, moves = self.w.payload, walk.o, self.x.valid & self.x.ready
        replies = self.w.valid & self.w.ready & (placed.op == APPEND)
        self._count_later(
            m,
            appends=replies & ~placed.full,
            full=placer.refuses,
            offloads=moves & ~placer.clears if self.p.shared else moves,
            bursts=self.b.valid & self.b.ready & ~self.b.payload.empty,
            fetched=Mux(given.valid & given.ready, given.payload.slots, 0),
        )


def _multiple(base: Value, size: int) -> Value:
    """A base without its bits within `size` bytes, a power of two."""
    bits = size.bit_length() - 1
    return Cat(Const(0, bits), base[bits:])


def _asked_layout(p: KvmuParams) -> data.StructLayout:
    """A read in flight. `of`: the part that made it. `words`: beats of `m.data` behind the first one."""
    return data.StructLayout({"item": bits_for(len(Item)), "of": 2, "words": bits_for(p.read_words)})
