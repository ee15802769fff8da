"""Proofs that the fetch of cluster sets equals its specification: the walk over blocks, and the bursts of its ranges.

Both hold for every set, stall and answer of memory, of any length. The walk's ranges are what the merger takes.
"""

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.burst_merger import BurstMerger
from openvrex.hdl.retrieval.fetch_walk import FetchWalk
from openvrex.hdl.retrieval.kvmu_layouts import (
    burst_layout,
    fetch_layout,
    kept_index,
    map_port,
    range_layout,
    span_layout,
)
from openvrex.hdl.retrieval.table_client import put_layout

IDLES = 1  # cycle without a stall in which a set may go on without an event


class WalkSpec(wiring.Component):
    """The ranges of sets, given their rows and the blocks behind blocks: an event a cycle.

    Members
    -------
    beat, takes : In : a cluster of a set is taken, and its row asked for
    span, rows : In : the blocks of the oldest cluster; they are known · pops : Out(1) : they are no longer needed
    next, nexts : In : the block that was asked for comes
    gives : In(1) : the range is taken · notes : In(1) : a note is written
    range, range_due : Out : the next range · ends : Out(1) : it, or nothing, is the oldest cluster's last
    ask, ask_due : Out : the block whose follower must be read · asks : In(1) : it is asked for
    left : Out : clusters whose last range is to come · opens : Out(1) : the next cluster opens a set
    note, notes_due : Out, with `kept` : the blocks to be kept, oldest first
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        ones = ("takes", "rows", "nexts", "asks", "gives", "notes")
        shows = ("pops", "range_due", "ask_due", "opens", "notes_due")
        n_ctx, n_index, bits, *_ = map_port(p)
        super().__init__(
            {
                "beat": In(fetch_layout(p)),
                "span": In(span_layout(p)),
                "next": In(p.block_bits),
                **dict.fromkeys(ones, In(1)),
                **dict.fromkeys(shows, Out(1)),
                "range": Out(range_layout(p)),
                "ask": Out(p.block_bits),
                "left": Out(bits_for(p.rows + 1)),
                "note": Out(put_layout(n_ctx, n_index, bits)),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        line = [Signal(fetch_layout(p), name=f"waits{k}") for k in range(p.rows)]
        ends = Signal()
        for k, beat in enumerate(line):
            with m.If(self.takes & (self.left - ends == k)):
                m.d.sync += beat.eq(self.beat)
            with m.Elif(ends):
                m.d.sync += beat.eq(line[min(k + 1, p.rows - 1)])
        m.d.sync += self.left.eq(self.left + self.takes - ends)
        ctx, opens = Signal(bits_for(p.n_ctx), name="of"), Signal(init=1)
        with m.If(self.takes):
            m.d.sync += opens.eq(self.beat.last)
            with m.If(opens):
                m.d.sync += ctx.eq(self.beat.ctx)
        m.d.comb += self.opens.eq(opens)
        beat, span, out = line[0], self.span, self.range
        further, at = Signal(), Signal(p.block_bits)  # the block is not the first of its cluster; its number then
        asked = Signal()  # it was asked for
        starts, joins, before = (
            Signal(init=1),
            Signal(),
            Signal(p.block_bits),
        )  # of the range before: joins: it is whole
        none, here, last = Signal(), Signal(p.block_bits), Signal()
        alone = out.near | out.keep if p.kept else Const(0)  # nothing joins a kept block
        known = self.left.any() & (beat.empty | self.rows) & ~self.ask_due & ~asked
        m.d.comb += [
            none.eq(beat.empty | ((span.head == span.end) & (span.slots == 0))),
            here.eq(Mux(further, at, span.head)),
            last.eq(none | (here == span.end)),
            self.range_due.eq(known & (~none | beat.last)),
            out.block.eq(here),
            out.slots.eq(Mux(none, 0, Mux(last, span.slots, p.block_slots))),
            out.join.eq(~starts & (none | (joins & ~alone & (here == before + 1)))),
            out.last.eq(last & beat.last),
            out.ctx.eq(ctx),
            ends.eq(last & (self.gives | (known & none & ~beat.last))),
            self.pops.eq(ends & ~beat.empty),
            self.ask.eq(at),
        ]
        with m.If(self.gives):
            m.d.sync += starts.eq(out.last)
            with m.If(~none):
                m.d.sync += [before.eq(here), joins.eq(out.slots == p.block_slots)]
            with m.If(~last):
                m.d.sync += [self.ask_due.eq(1), at.eq(here), further.eq(1)]
        with m.If(ends):
            m.d.sync += further.eq(0)
        with m.If(self.asks):
            m.d.sync += [self.ask_due.eq(0), asked.eq(1)]
        with m.If(self.nexts):
            m.d.sync += [asked.eq(0), at.eq(self.next)]
        if p.kept:
            self._keep(m, beat, further, none, ctx, joins)
        return m

    def _keep(self, m: Module, beat: data.View, further: Value, none: Value, ctx: Value, joins: Signal) -> None:
        """Of each cluster of a set the first block, if it is whole, comes from its place, or is kept there."""
        p, out, low = self.p, self.range, bits_for(self.p.kept)
        most = p.map_sizes().keeps
        line = [Signal(p.cluster_bits, name=f"keeps{k}") for k in range(most)]
        count, many = Signal(range(most + 1)), Signal(range(most + 1))  # notes to write; blocks of this set
        whole = ~further & ~none & (out.slots == p.block_slots)
        tag = beat.cluster[low:] + 1
        m.d.comb += [
            out.near.eq(whole & (self.span.kept == tag[: p.cluster_bits])),
            out.keep.eq(whole & ~out.near & (many != most)),
            out.place.eq(beat.cluster),
            self.notes_due.eq(count.any()),
            self.note.item.eq(Item.RING),
            self.note.ctx.eq(ctx),
            self.note.index.eq(kept_index(p, line[0])),
            self.note.data.eq(line[0][low:] + 1),
        ]
        added = self.gives & out.keep
        m.d.sync += count.eq(count + added - self.notes)
        for k, cluster in enumerate(line):
            with m.If(added & (count - self.notes == k)):
                m.d.sync += cluster.eq(beat.cluster)
            with m.Elif(self.notes):
                m.d.sync += cluster.eq(line[min(k + 1, most - 1)])
        with m.If(self.gives):
            m.d.sync += many.eq(Mux(out.last, 0, many + out.keep))
            with m.If(out.near | out.keep):
                m.d.sync += joins.eq(0)


class WalkMonitor(wiring.Component):
    """A walk and its specification, with free sets, rows, blocks and stalls, and resets at any time.

    `reach`: the claim is that no range of a further block joins the one before, which must fail.
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        self.p, self.reach = p, reach
        ones = ("beat_valid", "hold", "ask_ready", "shows", "gives", "o_ready", "put_ready")
        free = {"beat": fetch_layout(p), "span": span_layout(p), "block": p.block_bits} | dict.fromkeys(ones, 1)
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = FetchWalk(p)
        m.submodules.spec = spec = WalkSpec(p)
        f, ask = unit.f, unit.ask
        # A beat that is offered stays; an empty one ends its set.
        offered, beat = Signal(), Signal(fetch_layout(p))
        with m.If(~offered | f.ready):
            m.d.sync += [offered.eq(self.beat_valid), beat.eq(self.beat)]
        m.d.comb += [
            Assume((self.beat.ctx < p.n_ctx) & (self.beat.cluster < p.clusters)),
            Assume(~self.beat.empty | self.beat.last),
        ]
        takes, gives = f.valid & f.ready, unit.o.valid & unit.o.ready
        asked = ask.valid & ask.ready
        further, place = ask.payload.item == Item.NEXT, ask.payload.item == Item.RING
        rows, shown, span = Signal(range(p.rows + 1)), Signal(), Signal(span_layout(p))  # rows asked for
        row, pops = asked & (ask.payload.item == Item.ROW), unit.row.valid & unit.row.ready
        m.d.sync += rows.eq(rows + row - pops)
        with m.If(~shown | pops):
            m.d.sync += [shown.eq(self.shows & (rows > (shown & pops))), span.eq(self.span)]
        waits = Signal()  # for a further block
        nexts = waits & self.gives
        m.d.sync += waits.eq((waits & ~nexts) | (asked & further))
        put = unit.put if p.kept else None
        notes = put.valid & put.ready if p.kept else Const(0)
        m.d.comb += [
            f.valid.eq(offered),
            f.payload.eq(beat),
            unit.hold.eq(self.hold),
            ask.ready.eq(self.ask_ready),
            unit.row.valid.eq(shown),
            unit.row.payload.eq(span),
            unit.next.valid.eq(nexts),
            unit.next.block.eq(self.block),
            unit.o.ready.eq(self.o_ready),
            *([put.ready.eq(self.put_ready)] if p.kept else []),
            spec.beat.eq(beat),
            spec.takes.eq(takes),
            spec.span.eq(span),
            spec.rows.eq(shown),
            spec.next.eq(self.block),
            spec.nexts.eq(nexts),
            spec.asks.eq(asked & further),
            spec.gives.eq(gives),
            spec.notes.eq(notes),
        ]
        if self.reach:
            m.d.comb += Assert(~(gives & unit.o.payload.join & (unit.o.payload.slots != 0)), "a range joins another")
            return m
        second = Signal()  # the place of the beat's cluster was asked for
        if p.kept:
            with m.If(asked & ~further):
                m.d.sync += second.eq(place)
        due = Signal(ask.payload.shape())  # of the beat
        m.d.comb += [due.ctx.eq(beat.ctx), due.item.eq(Item.ROW), due.index.eq(beat.cluster)]
        if p.kept:
            with m.If(~second):
                m.d.comb += [due.item.eq(Item.RING), due.index.eq(kept_index(p, beat.cluster))]
        block = (ask.payload.ctx == 0) & (ask.payload.index == spec.ask)
        ahead = offered & ~beat.empty & (ask.payload == due)
        may = second | (~self.hold & (spec.left != p.rows) & (~spec.opens | ((spec.left == 0) & ~spec.notes_due)))
        quiet = (spec.left == 0) & ~second & ~spec.notes_due
        idles = Signal(range(IDLES + 2))
        stalls = (
            (ask.valid & ~ask.ready)
            | (unit.o.valid & ~unit.o.ready)
            | (waits & ~self.gives)
            | ((rows != 0) & ~shown)
            | (self.hold & ~second & (spec.left == 0))
            | (~offered & (spec.left == 0))
            | (~offered & ~spec.opens)
        )
        whole = 2 if p.kept else 1  # reads of a cluster
        flies = (rows - shown) * whole + second + waits  # reads in flight, while no row came that is not shown
        claims = [
            (~ask.valid | Mux(further, spec.ask_due & block, ahead & may), "an ask that is not due"),
            (~takes | (may & (beat.empty | row)), "a cluster is taken without its row"),
            (~row | takes, "a row of no cluster"),
            (~unit.o.valid | spec.range_due, "a range that is not due"),
            (~(unit.o.valid & spec.range_due) | (unit.o.payload == spec.range), "another range"),
            (pops == spec.pops, "a row stays until its last range is taken"),
            (rows <= p.rows, "more rows than there are places"),
            (flies <= p.rows * whole, "more reads in flight than `tb.formal.kvmu_join_proof` knows"),
            (unit.idle == quiet, "idle shows that all ranges were given"),
        ]
        if p.kept:
            between = (spec.left == 0) & (spec.opens | (self.hold & ~second))
            claims += [
                (~put.valid | (spec.notes_due & between), "a note that is not due"),
                (~(put.valid & spec.notes_due) | (put.payload == spec.note), "another note"),
            ]
            stalls = stalls | (put.valid & ~put.ready)
        m.d.sync += idles.eq(Mux(stalls | takes | asked | gives | pops | nexts | notes, 0, idles + (idles <= IDLES)))
        claims += [(idles <= IDLES, "the unit goes on in time")]
        for claim, what in claims:
            m.d.comb += Assert(claim, what)
        return m


class MergerSpec(wiring.Component):
    """The bursts of ranges: adjacent bytes of a set in as few bursts as boundaries allow. An event a cycle.

    Members
    -------
    given, takes : In : a range is taken · gives : In(1) : the burst is taken
    burst, due : Out : the next burst, once no range can lengthen it · full : Out(1) : a range is known behind it
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        bases = {"home_base": In(p.addr_bits), "device_base": In(p.addr_bits)}
        ones = {"takes": In(1), "gives": In(1), "due": Out(1), "full": Out(1)}
        super().__init__({"given": In(range_layout(p)), **ones, **bases, "burst": Out(burst_layout(p))})

    def elaborate(self, platform):
        p, m, given, out = self.p, Module(), self.given, self.burst
        run = data.StructLayout(
            {"valid": 1, "first": p.addr_bits, "end": p.addr_bits, "none": 1, "of": range_layout(p)}
        )
        now, after = Signal(run), Signal(run)  # what the next burst takes, and what follows it
        left, behind = Signal(run), Signal(run)  # the same without the burst
        fresh, first, empty = Signal(run), Signal(p.addr_bits), given.slots == 0
        m.d.comb += [
            first.eq(self.home_base + given.block * p.block_bytes),
            fresh.valid.eq(1),
            fresh.first.eq(first),
            fresh.end.eq(Mux(empty, first, first + given.slots * p.home_bytes - 1)),
            fresh.none.eq(empty),
            fresh.of.eq(given),
        ]
        page = min(p.boundary.bit_length() - 1, p.addr_bits)
        cut, stop = Signal(), Signal(p.addr_bits)
        m.d.comb += [
            cut.eq(now.first >> page != now.end >> page),
            stop.eq(Mux(cut, now.first | ((1 << page) - 1), now.end)),
            self.due.eq(now.valid & (cut | now.of.last | after.valid)),
            self.full.eq(after.valid),
            out.addr.eq(now.first),
            out.bytes.eq(Mux(now.none, 0, stop - now.first + 1)),
            out.ctx.eq(now.of.ctx),
            out.last.eq(now.of.last & ~cut),
            out.empty.eq(now.none),
            left.eq(now),
            behind.eq(after),
        ]
        if p.kept:
            place = p.map_sizes().place_bytes * (now.of.ctx * p.kept + now.of.place + 1)
            kept = self.device_base - place + now.first % p.block_bytes
            m.d.comb += [out.near.eq(now.of.near), out.keep.eq(now.of.keep), out.to.eq(kept)]
        with m.If(self.gives & cut):
            m.d.comb += left.first.eq(stop + 1)
        with m.Elif(self.gives):
            m.d.comb += [left.eq(after), behind.valid.eq(0)]
        m.d.sync += [now.eq(left), after.eq(behind)]
        with m.If(self.takes & given.join):  # it lengthens the run that came last
            for target, own in ((now, ~behind.valid), (after, behind.valid)):
                with m.If(own):
                    m.d.sync += target.of.last.eq(given.last)
                    with m.If(~empty):
                        m.d.sync += target.end.eq(fresh.end)
        with m.Elif(self.takes & left.valid):
            m.d.sync += after.eq(fresh)
        with m.Elif(self.takes):
            m.d.sync += now.eq(fresh)
        return m


class MergerMonitor(wiring.Component):
    """A merger and its specification, with free ranges and stalls, and resets at any time.

    `reach`: the claim is that no set has two bursts without a gap, which must fail.
    """

    def __init__(self, p: KvmuParams, reach: bool = False):
        self.p, self.reach = p, reach
        free = {"given": range_layout(p), "given_valid": 1, "ready": 1}
        free |= {"home_base": p.addr_bits, "device_base": p.addr_bits}
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        self.unit = m.submodules.unit = unit = BurstMerger(p)
        self.spec = m.submodules.spec = spec = MergerSpec(p)
        held, ranges = self._ranges(m)
        self._bases(m)
        takes, gives = unit.i.valid & unit.i.ready, unit.o.valid & unit.o.ready
        m.d.comb += [
            unit.i.valid.eq(held),
            unit.i.payload.eq(ranges),
            unit.o.ready.eq(self.ready),
            spec.given.eq(ranges),
            spec.takes.eq(takes),
            spec.gives.eq(gives),
        ]
        out = unit.o.payload
        if self.reach:
            before, follows = Signal(p.addr_bits), Signal()
            with m.If(gives):
                m.d.sync += [before.eq(out.addr + out.bytes), follows.eq(~out.last)]
            m.d.comb += Assert(~(gives & follows & (out.addr == before) & out.last), "a run is cut")
            return m
        idles = Signal(range(IDLES + 2))
        stalls = (unit.o.valid & ~unit.o.ready) | (~held & ~spec.due)
        m.d.sync += idles.eq(Mux(stalls | takes | gives, 0, idles + (idles <= IDLES)))
        for claim, what in (
            (~takes | ~spec.full | gives, "a range is taken without room"),
            (~unit.o.valid | spec.due, "a burst that is not due"),
            (~(unit.o.valid & spec.due) | (out == spec.burst), "another burst"),
            (idles <= IDLES, "the unit goes on in time"),
        ):
            m.d.comb += Assert(claim, what)
        return m

    def _ranges(self, m: Module) -> tuple[Signal, Signal]:
        """Ranges as the walk gives them, whether there is one and what it is. An offer stays.

        A range that joins follows a whole block, and is the next one or nothing; one of nothing ends its set.
        """
        p, given = self.p, self.given
        begins, whole, before = Signal(init=1), Signal(), Signal(p.block_bits)
        held, ranges, empty = Signal(), Signal(range_layout(p)), given.slots == 0
        kept = given.near | given.keep if p.kept else Const(0)
        with m.If(~held | self.unit.i.ready):
            m.d.sync += [held.eq(self.given_valid), ranges.eq(given)]
            with m.If(self.given_valid):
                m.d.sync += begins.eq(given.last)
                with m.If(~empty):
                    m.d.sync += [before.eq(given.block), whole.eq((given.slots == p.block_slots) & ~kept)]
                for legal in (
                    given.slots <= p.block_slots,
                    ~given.join | (~begins & (empty | (whole & (given.block == before + 1)))),
                    ~empty | (given.last & (begins | given.join)),
                    ~kept | (~given.join & (given.slots == p.block_slots)),
                ):
                    m.d.comb += Assume(legal)
        return held, ranges

    def _bases(self, m: Module) -> None:
        """Addresses that stay: blocks and places lie within the space, on multiples of their sizes."""
        p, known = self.p, Signal()
        m.d.sync += known.eq(1)
        for name in ("home_base", *(["device_base"] if p.kept else [])):
            size = p.map_sizes().place_bytes if name == "device_base" else p.block_bytes if p.kept else 1
            base, given = Signal(p.addr_bits, name=f"steady_{name}", reset_less=True), getattr(self, name)
            room = p.n_ctx * p.kept * size if name == "device_base" else 0
            top = (1 << p.addr_bits) - (0 if room else p.blocks * p.block_bytes)
            with m.If(~known):
                m.d.sync += base.eq(given)
            m.d.comb += [Assume((given >= room) & (given <= top) & (given % size == 0))]
            m.d.comb += [getattr(self.unit, name).eq(base), getattr(self.spec, name).eq(base)]
