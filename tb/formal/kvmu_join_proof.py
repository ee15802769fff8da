# amaranth: UnusedElaboratable=no
# (the monitor elaborates the KVMU itself)
"""Proof of how the KVMU joins its parts: each read of a part is made once, and its items come to it, in order.

The parts are free, but for what the proofs of their equalities claim of them:

* the placer has three reads in flight at most, in a CLEAR as many as there are rows, and a block
* the walk has `rows` reads in flight at most, with `kept` twice as many; while a CLEAR is served none
* the stream of counts has as many as fit into the ring of the WTU, and one of which some words have come
* a row that comes has one of `rows` places, and between beats of `a` no row waits

The queue of reads in flight is as long as these together, so it is never full before a read. So the KVMU does what its
specifications say: the join hands each part the answers of memory to its own reads.
"""

from unittest.mock import patch

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval import kvmu
from openvrex.hdl.retrieval.count_stream import CountStream
from openvrex.hdl.retrieval.fetch_walk import FetchWalk
from openvrex.hdl.retrieval.kvmu_layouts import map_layouts, map_port, span_layout
from openvrex.hdl.retrieval.placer import Placer
from openvrex.hdl.retrieval.table_client import ask_layout, put_layout

PARTS = (Placer, CountStream, FetchWalk)  # in the order in which their reads go
PLACER, COUNTS, WALK = range(len(PARTS))
OWED = 3  # most reads of the placer in flight, but in a CLEAR


class _Free(wiring.Component):
    """The ports of a part, which the monitor drives."""

    def elaborate(self, platform):
        return Module()


class JoinMonitor(wiring.Component):
    """A KVMU of free parts, with free answers and stalls, and resets at any time.

    claim : "reads", "rows" or "writes": what is claimed
    reach : the claim is that a case never happens, which must fail: an item of the placer comes before one of the walk;
        all places of rows are taken; placer and walk write at once
    """

    def __init__(self, p: KvmuParams, claim: str, reach: bool = False):
        self.p, self.claim, self.reach = p, claim, reach
        n_ctx, n_index, bits, most, *_ = sizes = map_port(p)
        free = {f"ask{k}": ask_layout(n_ctx, n_index, most) for k in range(len(PARTS))}
        free |= {f"put{k}": put_layout(n_ctx, n_index, bits) for k in (PLACER, WALK)}
        free |= {"data": sizes.beat_bits, "wants": len(PARTS), "writes": len(PARTS), "pops": 2}
        free |= dict.fromkeys(("asks", "puts", "gives", "clears"), 1)
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        self.unit = unit = kvmu.Kvmu(p)
        self.parts = [_Free(part(p).signature) for part in PARTS]
        own = {part.__name__: lambda p, free=free: free for part, free in zip(PARTS, self.parts, strict=True)}
        with patch.multiple(kvmu, **own):
            m.submodules.unit = unit.elaborate(platform)
        clears = Signal()  # changes between beats
        m.d.comb += [
            unit.m.ask.ready.eq(self.asks),
            unit.m.put.ready.eq(self.puts),
            self.parts[PLACER].clears.eq(clears),
        ]
        self.cases: dict[str, Value] = {}
        reads, rows = self._reads(m, clears)
        claims = {"reads": reads, "rows": rows, "writes": self._writes(m)}[self.claim]
        for claim, what in [(~self.cases[self.claim], "the case")] if self.reach else claims:
            m.d.comb += Assert(claim, what)
        return m

    def _reads(self, m: Module, clears: Signal) -> tuple[list[tuple[Value, str]], list[tuple[Value, str]]]:
        """The reads in flight, oldest first, whose they are, and which memory has; claims of them, and of rows."""
        p, port, parts = self.p, self.unit.m, self.parts
        depth = p.rows * (2 if p.kept else 1) + OWED + 1 + p.counts // p.read_counts
        read = data.StructLayout({"ask": self.ask0.shape(), "of": bits_for(len(PARTS)), "clears": 1})
        # A ring, which the prover pairs with the KVMU's queue word by word.
        line = Array(Signal(read, name=f"flies{k}") for k in range(depth))
        first, free, made = (Signal(range(depth), name=n) for n in ("first", "free", "made"))
        count, owed, items = Signal(range(depth + 1)), Signal(range(depth + 1)), Signal(range(p.read_words + 1))
        fresh, oldest, offered = Signal(read), Signal(read), Signal(read)
        goes, may = [], [Signal(name=f"may{k}") for k in range(len(parts))]
        for k, part in enumerate(parts):
            given = getattr(self, f"ask{k}")
            m.d.comb += part.ask.valid.eq(self.wants[k] & may[k])
            m.d.comb += [part.ask.payload[name].eq(given[name]) for name, _ in part.ask.payload.shape()]
            goes.append(part.ask.valid & part.ask.ready)
            with m.If(goes[k]):
                m.d.comb += [
                    fresh.of.eq(k),
                    fresh.clears.eq(clears),
                    *(fresh.ask[n].eq(given[n]) for n, _ in part.ask.payload.shape()),
                ]
        words = Mux(oldest.of == COUNTS, oldest.ask.more // p.count_lanes, 0)
        came, takes, ends = port.data.valid, Cat(goes).any(), Signal()
        sent, same = port.ask.valid & port.ask.ready, (oldest.of == COUNTS) | (oldest.clears == clears)
        full = Signal()  # a row that comes has no place
        m.d.comb += [
            oldest.eq(line[first]),
            offered.eq(line[made]),
            port.data.valid.eq(self.gives & owed.any() & same & ~full),
            port.data.payload.eq(self.data),
            ends.eq(came & (items == words)),
        ]
        m.d.sync += [
            count.eq(count + takes - ends),
            owed.eq(owed + sent - ends),
            items.eq(Mux(ends, 0, items + came)),
        ]
        for pointer, moves in ((first, ends), (free, takes), (made, sent)):
            with m.If(moves):
                m.d.sync += pointer.eq(Mux(pointer == depth - 1, 0, pointer + 1))
        with m.If(takes):
            m.d.sync += line[free].eq(fresh)
        owner, item = oldest.of, oldest.ask.item
        rows = self._rows(m, clears, came, full, owner, item)
        legal = (
            ~clears | _is(self.ask0, Item.ROW, Item.NEXT),
            _is(self.ask1, Item.COUNT) & (self.ask1.more < p.read_counts),
            ~clears & _is(self.ask2, Item.ROW, Item.NEXT, *([Item.RING] if p.kept else [])),
        )
        m.d.comb += [own.eq(one & (count != depth)) for own, one in zip(may, legal, strict=True)]
        behind = line[Mux(first == depth - 1, 0, first + 1)]
        self.cases["reads"] = came & (count > 1) & (owner == PLACER) & (behind.of == WALK)
        placer, counts, walk = parts
        word = Value.cast(counts.came.counts)
        in_order = (count > owed) & (port.ask.payload == offered.ask)
        reads = [
            (sum(goes) <= 1, "two reads at once"),
            (~port.ask.valid | in_order, "another read, or out of order"),
            (placer.came.valid == (came & (owner == PLACER)), "an item of the placer"),
            (~placer.came.valid | ((placer.came.item == item) & (placer.came.data == self.data)), "its content"),
            (counts.came.valid == (came & (owner == COUNTS)), "a word of counts"),
            (~counts.came.valid | (word == self.data[: len(word)]), "its content"),
            (walk.next.valid == (came & (owner == WALK) & (item == Item.NEXT)), "a block of the walk"),
            (~walk.next.valid | (walk.next.block == self.data[: p.block_bits]), "its content"),
        ]
        return reads, rows

    def _rows(
        self, m: Module, clears: Signal, came: Value, full: Signal, owner: Value, item: Value
    ) -> list[tuple[Value, str]]:
        """Rows that came wait in order, for the walk or a CLEAR."""
        p, placer, walk = self.p, self.parts[PLACER], self.parts[WALK]
        row, span, oldest = Signal(map_layouts(p)[Item.ROW]), Signal(span_layout(p)), Signal(span_layout(p))
        line = Array(Signal(span_layout(p), name=f"row{k}") for k in range(p.rows))
        first, free = Signal(range(p.rows), name="row_first"), Signal(range(p.rows), name="row_free")
        there = Signal(range(p.rows + 1), name="rows_there")
        row_comes = (item == Item.ROW) & ((owner == WALK) | clears)
        keeps = came & row_comes
        pops = Cat(part.valid & part.ready for part in (placer.rows, walk.row)).any()
        m.d.comb += [
            row.eq(self.data),
            oldest.eq(line[first]),
            full.eq(row_comes & (there == p.rows)),
            span.head.eq(row.head),
            span.end.eq(Mux(clears, row.tail, row.off)),
            span.slots.eq(Mux(clears, row.tail_slots, row.off_slots)),
            placer.rows.ready.eq(self.pops[0]),
            walk.row.ready.eq(self.pops[1]),
        ]
        if p.kept:
            place = Signal(p.cluster_bits)  # that came last for the walk
            with m.If(came & (owner == WALK) & (item == Item.RING)):
                m.d.sync += place.eq(self.data)
            m.d.comb += span.kept.eq(place)
        self.cases["rows"] = there == p.rows
        m.d.sync += there.eq(there + keeps - pops)
        with m.If((there == 0) & ~keeps):
            m.d.sync += clears.eq(self.clears)
        m.d.sync += [first.eq(first + pops), free.eq(free + keeps)]  # `rows` is a power of two
        with m.If(keeps):
            m.d.sync += line[free].eq(span)
        return [
            claim
            for got, mine in ((placer.rows, clears), (walk.row, ~clears))
            for claim in (
                (~got.valid | ((there != 0) & mine), "a row that did not come, or of another"),
                (~got.valid | (got.payload == oldest), "another row"),
            )
        ]

    def _writes(self, m: Module) -> list[tuple[Value, str]]:
        """Writes of the placer, with `kept` also of the walk; an offer stays."""
        port, parts = self.unit.m.put, [self.parts[PLACER], *([self.parts[WALK]] if self.p.kept else [])]
        claims, goes, offers = [], [], []
        for k, part in enumerate(parts):
            free, held = self.put0 if k == 0 else self.put2, Signal(name=f"write{k}_held")
            kept = Signal(free.shape(), name=f"write{k}")
            with m.If(~held | part.put.ready):
                m.d.sync += [held.eq(self.writes[k]), kept.eq(free)]
            m.d.comb += [part.put.valid.eq(held), part.put.payload.eq(kept)]
            offers.append(held)
            goes.append(held & part.put.ready)
            claims.append((~goes[k] | (port.payload == kept), "another write"))
        self.cases["writes"] = Cat(offers).all()
        offered, before = Signal(), Signal(port.payload.shape())
        m.d.sync += [offered.eq(port.valid & ~port.ready), before.eq(port.payload)]
        stays = ~offered | (port.valid & (port.payload == before))
        return [*claims, (sum(goes) == (port.valid & port.ready), "each write once"), (stays, "a write stays")]


def _is(ask: data.View, *items: Item) -> Value:
    """Whether a read is of one of these kinds."""
    return Cat(ask.item == item for item in items).any()
