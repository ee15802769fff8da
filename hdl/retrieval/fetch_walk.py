"""Walks over the blocks of the clusters that a set names."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.memory import error_members
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.ram_fifo import RamFifo
from openvrex.hdl.retrieval.kvmu_layouts import fetch_layout, kept_index, map_port, range_layout, span_layout
from openvrex.hdl.retrieval.table_client import item_layout, put_layout


class FetchWalk(wiring.Component):
    """Asks for the rows of a set's clusters ahead of time, and lists the slots of each cluster that are at home.

    The unit asks for a row with every beat of `f`, until `rows` rows are on their way or wait. The rows come back in
    order. Of each it gives the range of the first block at once. It then asks for the block behind, if that holds
    entries at home too. The next set begins when the rows of the set before are done.

    With `kept` it asks for a cluster's place before its row, and says of a first block that is whole whether it is
    kept, or is to be. Behind the set it notes those to be kept, and then begins the next.

    Parameters
    ----------
    p : KvmuParams

    Members
    -------
    f : In(stream of `fetch_layout`) : cluster sets, as the KVMU's
    hold : In(1) : take nothing more from `f`
    idle : Out(1) : all ranges of the beats taken from `f` were given
    ask : Out(stream of `item_layout`) : the row or the block to read; may change while it waits
    row : In(stream of `span_layout`) : the slots at home of the clusters asked for, in order
    next : In(struct of `valid` and `block`) : the block asked for
    o : Out(stream of `range_layout`) : ranges of each set in order; a cluster without one gives none, but for the last
        of its set
    put : Out(stream of `put_layout`), with `kept` : notes of blocks to be kept
    error : Out(2), with `kept`, if protected : as in `hdl.memory.error_members`

    Latency: the range is offered in the cycle in which the row is.
    Throughput: a beat of `f`, a row and a range every cycle; with `kept` a beat of `f` every other cycle.
    Raises: nothing of its own.
    Source: V-Rex section V-C.
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        n_ctx, n_index, bits, *_ = map_port(p)
        kept = (
            {"put": Out(stream.Signature(put_layout(n_ctx, n_index, bits)))} | error_members(p.protect)
            if p.kept
            else {}
        )
        super().__init__(
            {
                "f": In(stream.Signature(fetch_layout(p))),
                "hold": In(1),
                "idle": Out(1),
                "ask": Out(stream.Signature(item_layout(n_ctx, n_index))),
                "row": In(stream.Signature(span_layout(p))),
                "next": In(data.StructLayout({"valid": 1, "block": p.block_bits})),
                "o": Out(stream.Signature(range_layout(p))),
                **kept,
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = _beat_layout(self.p).size
        m.submodules.beats = beats = SyncFIFO(width=width, depth=self.p.rows)  # whose ranges are to come
        ahead, block = _Ahead(self.p), _Block(self.p, beats)
        self._take(m, beats, ahead, block)
        self._find(m, beats, block)
        self._give(m, ahead, block)
        self._step(m, beats, block)
        if self.p.kept:
            self._keep(m, beats, ahead, block)
        return m

    def _take(self, m: Module, beats: SyncFIFO, ahead: "_Ahead", block: "_Block") -> None:
        """Takes beats of `f` and asks for their rows. The block behind the current one goes before."""
        beat, ask = self.f.payload, self.ask.payload
        may = beats.w_rdy & ~self.hold & ~block.asks & (~ahead.opens | self.idle)
        idle, takes, item, index, more = ~beats.r_rdy, beat.empty | self.ask.ready, Item.ROW, beat.cluster, ()
        if self.p.kept:  # the cluster's place is read before its row
            idle, may = idle & ~ahead.second & ~ahead.left, may | (ahead.second & ~block.asks)
            takes = beat.empty | (self.ask.ready & ahead.second)
            item = Mux(ahead.second, Item.ROW, Item.RING)
            index = Mux(ahead.second, beat.cluster, kept_index(self.p, beat.cluster))
            more = (beat.cluster,)
            with m.If(self.ask.valid & self.ask.ready & ~block.asks):
                m.d.sync += ahead.second.eq(~ahead.second)
        m.d.comb += [
            self.idle.eq(idle),
            ahead.may.eq(may),
            self.f.ready.eq(self.f.valid & ahead.may & takes),
            self.ask.valid.eq(block.asks | (self.f.valid & ahead.may & ~beat.empty)),
            ask.item.eq(Mux(block.asks, Item.NEXT, item)),
            ask.ctx.eq(Mux(block.asks, 0, beat.ctx)),
            ask.index.eq(Mux(block.asks, block.at, index)),
            beats.w_en.eq(self.f.ready),
            beats.w_data.eq(Cat(beat.last, beat.empty, *more)),
        ]
        with m.If(beats.w_en):
            m.d.sync += ahead.opens.eq(beat.last)
            with m.If(ahead.opens):
                m.d.sync += ahead.ctx.eq(beat.ctx)

    def _find(self, m: Module, beats: SyncFIFO, block: "_Block") -> None:
        """Finds the block of the oldest beat that the walk has reached."""
        row, beat = self.row.payload, block.beat
        m.d.comb += [
            block.known.eq(beats.r_rdy & (beat.empty | self.row.valid) & ~block.waits),
            block.here.eq(Mux(block.further, block.at, row.head)),
            block.none.eq(beat.empty | ((row.head == row.end) & (row.slots == 0))),
            block.ends.eq(block.none | (block.here == row.end)),
        ]

    def _give(self, m: Module, ahead: "_Ahead", block: "_Block") -> None:
        """Gives the range of the block that is at home."""
        item = self.o.payload
        m.d.comb += [
            self.o.valid.eq(block.known & (~block.none | block.beat.last)),
            item.block.eq(block.here),
            item.slots.eq(Mux(block.none, 0, Mux(block.ends, self.row.payload.slots, self.p.block_slots))),
            item.join.eq(~block.starts & (block.none | (block.follows & (block.here == block.previous + 1)))),
            item.last.eq(block.ends & block.beat.last),
            item.ctx.eq(ahead.ctx),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += block.starts.eq(item.last)
            with m.If(~block.none):
                m.d.sync += [block.previous.eq(block.here), block.whole.eq(item.slots == self.p.block_slots)]

    def _step(self, m: Module, beats: SyncFIFO, block: "_Block") -> None:
        """Ends the beat, or waits for the block behind this one."""
        m.d.comb += [
            block.done.eq(block.known & (~self.o.valid | self.o.ready)),
            beats.r_en.eq(block.done & block.ends),
            self.row.ready.eq(beats.r_en & ~block.beat.empty),
        ]
        with m.If(block.done):
            m.d.sync += [block.further.eq(~block.ends), block.asks.eq(~block.ends), block.waits.eq(~block.ends)]
            m.d.sync += block.at.eq(block.here)
        with m.Elif(block.asks & self.ask.ready):
            m.d.sync += block.asks.eq(0)
        with m.If(self.next.valid):
            m.d.sync += [block.at.eq(self.next.block), block.waits.eq(0)]

    def _keep(self, m: Module, beats: SyncFIFO, ahead: "_Ahead", block: "_Block") -> None:
        """Finds whether a cluster's first block is kept, or is to be. Behind the set it notes those to be kept.

        It does so at once where a CLEAR waits.
        """
        p, item, put, known = self.p, self.o.payload, self.put.payload, bits_for(self.p.kept)
        most, cluster = p.map_sizes().keeps, block.beat.cluster
        m.submodules.keeps = keeps = RamFifo(p.cluster_bits, most, p.protect)  # clusters whose blocks are to be kept
        if p.protect != "none":
            m.d.comb += self.error.eq(keeps.error)
        first = Signal()  # the range is a cluster's first block, and whole
        tag = Signal(p.cluster_bits)  # the item of the cluster's place, if the block is kept
        kept = Signal(p.cluster_bits)  # the cluster whose place is written
        many = Signal(bits_for(most + 1))  # blocks of the set that are to be kept
        left = Signal(bits_for(most + 1))  # of those that are not noted
        drained = Signal()  # nothing of the set is read before a CLEAR, which waits
        m.d.comb += [
            first.eq(~block.further & ~block.none & (item.slots == p.block_slots)),
            tag.eq(cluster[known:] + 1),
            item.near.eq(first & (self.row.payload.kept == tag)),
            item.keep.eq(first & ~item.near & (many != most)),
            drained.eq(self.hold & ~beats.r_rdy & ~ahead.second),
            item.place.eq(cluster),
            block.follows.eq(block.whole & ~item.near & ~item.keep),
            keeps.w_en.eq(self.o.valid & self.o.ready & item.keep),
            keeps.w_data.eq(cluster),
            kept.eq(keeps.o.payload),
            ahead.left.eq(left != 0),
            self.put.valid.eq(keeps.o.valid & (block.starts | drained)),
            keeps.o.ready.eq(self.put.valid & self.put.ready),
            put.item.eq(Item.RING),
            put.ctx.eq(ahead.ctx),
            put.index.eq(kept_index(p, kept)),
            put.data.eq(kept[known:] + 1),
        ]
        m.d.sync += left.eq(left + keeps.w_en - keeps.o.ready)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += many.eq(Mux(item.last, 0, many + item.keep))
            with m.If(item.near | item.keep):
                m.d.sync += block.whole.eq(0)  # no range joins a kept block


class _Ahead:
    """The beats of `f` that the unit takes ahead of their rows."""

    def __init__(self, p: KvmuParams):
        self.may = Signal()  # a beat of `f` may be taken
        self.opens = Signal(init=1)  # the next beat opens a set
        self.ctx = Signal(bits_for(p.n_ctx))  # context of the set
        if p.kept:
            self.second = Signal()  # the place of the beat's cluster was asked for, and its row is next
            self.left = Signal()  # blocks to be kept that are not noted


class _Block:
    """The block that the walk has reached, in the cluster of the oldest beat."""

    def __init__(self, p: KvmuParams, beats: SyncFIFO):
        self.beat = data.View(_beat_layout(p), beats.r_data)
        self.known = Signal()  # the block is known
        self.further = Signal()  # it is not the first of its cluster
        self.at = Signal(p.block_bits)  # it, if so; while `waits`, the block before
        self.here = Signal(p.block_bits)  # it
        self.none = Signal()  # nothing of the cluster is at home
        self.ends = Signal()  # no block behind it has a slot at home
        self.done = Signal()  # its range is given, if there is one
        self.asks = Signal()  # the block behind `at` must be asked for
        self.waits = Signal()  # that block has not come
        self.starts = Signal(init=1)  # the next range is the first of its set
        self.whole = Signal()  # the range before was a whole block
        self.follows = Signal() if p.kept else self.whole  # it was, and this one may join it
        self.previous = Signal(p.block_bits)  # that block


def _beat_layout(p: KvmuParams) -> data.StructLayout:
    """What the walk needs of a beat of `f` when its row has come."""
    return data.StructLayout({"last": 1, "empty": 1, **({"cluster": p.cluster_bits} if p.kept else {})})
