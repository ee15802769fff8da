"""Proof about the table port: what is in flight, where items go, and what is written.

* Reads and writes are never in flight together.
* Every item goes to the client that asked for it, in order, as the memory gave it.
* Every put is written once, in its bytes and no others.
* An ask goes out behind all puts that were taken before it, a put behind all asks.
* Addresses and beats that are offered stay until they are taken.

Together: of what a memory holds that serves accesses in order, every ask gives the items as the puts before it left
them, as `golden.retrieval.table_layout` places them.

The monitor follows any one request and any one item of it. Inputs are free within the rules of AXI4 and of
`hdl.retrieval.table_client`: requests, stalls, responses, errors, `stop`. `table_base` is 0.
"""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib import data

from openvrex.golden.retrieval.table_layout import SHARED, Item
from openvrex.hdl.params import DreParams, override, preset
from openvrex.hdl.retrieval.table_client import ask_layout, put_layout
from openvrex.hdl.retrieval.table_port import CLIENTS, ITEMS, TablePort, client_sizes
from openvrex.tb.formal.stream_proof import Channel, UnitMonitor, channels

_COUNT = 6  # bits of a count
_BULK = {"hcu": Item.HASH, "kvmu": Item.COUNT}


def small(size: int) -> DreParams:
    """Tables of a few items of a byte each, in beats and bursts of `size` items."""
    ones = ("hcu.n_w=1", "n_hp=1", "clusters=2", "n_ctx=1", "wtu.n_w=1", "count_bits=1", "blocks=2", "block_slots=1")
    sizes = (f"tile={size}", "frame=1", f"counts={size}", f"read_counts={size}", "recent=1")
    sizes += (f"bus_bytes={size}", f"table.burst_bytes={size}")
    return override(preset("tiny"), [*ones, *sizes]).core.dre


class PortMonitor(UnitMonitor):
    """A table port between free inputs.

    claim : "bus", "asks", "puts" or "order": what is claimed
    reach : claims instead that nothing of that kind happens behind another request; that claim must fail
    """

    def __init__(self, p: DreParams, claim: str, reach: bool = False):
        super().__init__(TablePort(p), more=("watch", "nth"), asked=True)
        self.p, self.claim, self.reach, self.layout = p, claim, reach, p.layout()
        del self.free["table_base"]  # undriven, so 0
        self.counts: dict[str, Signal] = {}

    def _moves(self, name: str) -> Value:
        """Whether a beat of a channel transfers."""
        c = next(c for c in channels(self.unit) if c.name == name)
        return c.valid & c.ready

    def _count(self, m: Module, name: str, up: Value, down: Value) -> Signal:
        """Difference of the events `up` and `down` so far."""
        if name not in self.counts:
            self.counts[name] = s = Signal(_COUNT, name=name)
            m.d.sync += s.eq(s + up - down)
        return self.counts[name]

    def _may_answer(self, m: Module, c: Channel, found: dict[str, Channel], valid: Value, gives: dict) -> Value:
        """Whether the memory owes a beat or a response, or a request is a legal one."""
        ar = self.unit.bus.ar.payload
        if c.name == "bus__r":
            beats = Mux(self._moves("bus__ar"), ar.len + 1, 0)
            return self._count(m, "beats_owed", beats, self._moves("bus__r")).any()
        if c.name == "bus__b":
            answered = self._moves("bus__b")
            return Cat(
                self._count(m, f"{name}_owed", self._moves(f"bus__{name}"), answered).any() for name in ("aw", "w")
            ).all()
        client, kind = c.name.split("__")
        n_ctx, n_index, bits, most, *_ = client_sizes(self.p)[client]
        layout = put_layout(n_ctx, n_index, bits) if kind == "put" else ask_layout(n_ctx, n_index, most)
        request = data.View(layout, gives[id(c.payload[0])])
        more = 0 if kind == "put" else request.more
        legal = []
        for item in ITEMS[client]:
            contexts = 1 if item in SHARED else n_ctx
            bulk = (more == 0) | ((request.index % most == 0) & (more < most) if item == _BULK[client] else 0)
            inside = (request.ctx < contexts) & (request.index + more < self.layout.number(item))
            legal.append((request.item == item) & bulk & inside)
        return Cat(legal).any()

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """The claims that were chosen."""
        if self.claim == "bus":
            self._claim_bus(m, held, before)
        else:
            self._follow(m)

    def _claim_bus(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """Reads and writes are not in flight together, and an offer stays."""
        counts, bus = self.counts, self.unit.bus
        reads = bus.ar.valid | counts["beats_owed"].any()
        writes = bus.aw.valid | bus.w.valid | counts["aw_owed"].any() | counts["w_owed"].any()
        if self.reach:
            wrote = Signal()
            m.d.sync += wrote.eq(wrote | bus.w.valid)
            m.d.comb += Assert(~(bus.ar.valid & wrote), "no read goes out behind a write")
            return
        m.d.comb += Assert(~(reads & writes), "reads and writes are in flight together")
        for c in channels(self.unit):
            if c.given and c.name.startswith("bus"):
                same = c.valid & (c.bits == before[c.name])
                m.d.comb += Assert(~held[c.name] | same, f"{c.name} is withdrawn or changed")

    def _follow(self, m: Module) -> None:
        """Follows one request, and one item of it."""
        unit, f, mine = self.unit, _Followed(self.p), _Request(self.p)
        asks = [self._moves(f"{name}__ask") for name in CLIENTS]
        puts = [self._moves(f"{name}__put") for name in CLIENTS]
        gives = [getattr(unit, name).data.valid for name in CLIENTS]
        ask, put, given = (Signal(name=n) for n in ("ask_taken", "put_taken", "item_given"))
        m.d.comb += [ask.eq(Cat(asks).any()), put.eq(Cat(puts).any()), given.eq(Cat(gives).any())]
        for number, name in enumerate(CLIENTS):
            port = getattr(unit, name)
            for took, stream in ((asks[number], port.ask), (puts[number], port.put)):
                with m.If(took):
                    m.d.comb += self._request(mine, number, stream.payload)
        ar, aw, w = (self._moves(f"bus__{name}") for name in ("ar", "aw", "w"))
        unread = self._count(m, "unread", ask, ar)  # asks that are not on the bus yet
        unwritten = {"aw": self._count(m, "unwritten_aw", put, aw), "w": self._count(m, "unwritten_w", put, w)}
        owed = self._count(m, "items_owed", Mux(ask, mine.more + 1, 0), given)
        begins = Signal()
        m.d.comb += begins.eq((ask | put) & self.watch & ~f.begun)
        with m.If(begins):
            m.d.sync += [f.begun.eq(1), f.put.eq(put), f.client.eq(mine.client), f.item.eq(mine.item)]
            m.d.sync += [f.first.eq(mine.address), f.more.eq(mine.more), f.data.eq(mine.data)]
            nth = Mux(self.nth & mine.more.any(), mine.more, 0)  # the first item, or the last one
            m.d.sync += [f.nth.eq(nth), f.items.eq(owed - given + nth), f.reads.eq(unread - ar)]
            m.d.sync += [f.ranks[name].eq(unwritten[name] - moves) for name, moves in (("aw", aw), ("w", w))]
        with m.If(begins):
            m.d.sync += f.behind.eq(Mux(put, unwritten["w"].any(), (owed != given)))
            m.d.sync += f.met.eq(Mux(put, unread != ar, unwritten["w"] != w))
        m.d.sync += f.failed.eq(f.failed | unit.bus_error)
        if self.claim == "order":
            self._follow_order(m, f, ar, aw, w)
            return
        quiet = ~unit.busy & ~unit.stop & ~f.failed
        if self.claim == "asks":
            self._follow_ask(m, f, ar, given, gives)
            counts = {"items": (given, owed), "reads": (ar, unread)}
        else:
            self._follow_put(m, f, aw, w)
            counts = {"addresses": (aw, unwritten["aw"]), "beats": (w, unwritten["w"])}
        for name, (moves, left) in counts.items():
            if not self.reach:
                m.d.comb += Assert(~moves | left.any(), f"{name} without a request")
                m.d.comb += Assert(~quiet | (left == moves), f"busy falls before the last of the {name}")

    def _request(self, mine: "_Request", client: int, payload: data.View) -> list:
        """The request that is taken."""
        layout = self.layout
        places = [
            Mux(payload.item == item, layout.address(item) + payload.index * layout.bytes(item), 0) for item in Item
        ]
        address = sum(places) + payload.ctx * layout.table_bytes
        own = [mine.more.eq(payload.more)] if hasattr(payload, "more") else [mine.data.eq(payload.data)]
        return [mine.client.eq(client), mine.item.eq(payload.item), mine.address.eq(address), *own]

    def _follow_ask(self, m: Module, f: "_Followed", ar: Value, given: Value, gives: list[Value]) -> None:
        """Follows an ask over its address and its beat to the item."""
        unit, bus, beat = self.unit, self.unit.bus, self.layout.beat
        size = Signal.like(f.first, name="size")  # bytes of an item
        at = Signal.like(f.first, name="at")  # address of the item
        m.d.comb += [
            size.eq(sum(Mux(f.item == i, self.layout.bytes(i), 0) for i in Item)),
            at.eq(f.first + f.nth * size),
        ]
        r = self._moves("bus__r")
        follows = f.begun & ~f.put
        with m.If(follows & ~f.asked & ar):
            m.d.sync += f.reads.eq(f.reads - 1)
            with m.If(f.reads == 0):
                start = f.first // beat
                m.d.sync += [f.asked.eq(1), f.beats.eq(self.counts["beats_owed"] - r + at // beat - start)]
                if not self.reach:
                    ends = (f.first + (f.more + 1) * size - 1) // beat
                    m.d.comb += Assert(bus.ar.payload.addr == start * beat, "another address is read")
                    m.d.comb += Assert(bus.ar.payload.len == ends - start, "another number of beats is read")
        with m.If(f.asked & ~f.read & bus.r.valid & (f.beats == 0)):
            m.d.sync += [f.came.eq(1), f.value.eq(bus.r.payload.data >> (at % beat * 8)[:_COUNT])]
        with m.If(f.asked & ~f.read & r):
            m.d.sync += [f.beats.eq(f.beats - 1), f.read.eq(f.beats == 0)]
        with m.If(follows & ~f.ended & given):
            m.d.sync += [f.items.eq(f.items - 1), f.ended.eq(f.items == 0)]
            with m.If(f.items == 0):
                if self.reach:
                    m.d.comb += Assert(~f.behind, "no item comes behind another")
                    return
                good = sum(Mux(f.item == i, f.value[: self.layout.bits(i)], 0) for i in Item)
                m.d.comb += Assert(f.came, "an item comes before its beat")
                for number, name in enumerate(CLIENTS):
                    item = getattr(unit, name).data.payload
                    m.d.comb += Assert(gives[number] == (f.client == number), "an item goes to the other client")
                    m.d.comb += Assert(~gives[number] | (item == good), "another item is given")

    def _follow_order(self, m: Module, f: "_Followed", ar: Value, aw: Value, w: Value) -> None:
        """Follows a request until it is on the bus. Nothing of the other kind that was taken before it goes later."""
        moves = {"ar": ar, "aw": aw, "w": w}
        ranks = {"ar": f.reads, **f.ranks}  # accesses of each channel before it
        for name, rank in ranks.items():
            with m.If(f.begun & moves[name] & (rank != 0)):
                m.d.sync += rank.eq(rank - 1)
        goes = {"ar": ~f.put & ~f.asked, **{name: f.put & ~f.written[name] for name in f.written}}
        flags = {"ar": f.asked, **f.written}
        for name, mine in goes.items():
            with m.If(f.begun & mine & moves[name] & (ranks[name] == 0)):
                m.d.sync += flags[name].eq(1)
                others = [ranks[other] for other in (("aw", "w") if name == "ar" else ("ar",))]
                if self.reach:
                    m.d.comb += Assert(~f.met, "none of the other kind was before it")
                else:
                    m.d.comb += Assert(~Cat(others).any(), "a request goes before one that was taken before it")

    def _follow_put(self, m: Module, f: "_Followed", aw: Value, w: Value) -> None:
        """Follows a put to its address and its beat."""
        bus, beat, layout = self.unit.bus, self.layout.beat, self.layout
        for name, moves in (("aw", aw), ("w", w)):
            with m.If(f.begun & f.put & ~f.written[name] & moves):
                m.d.sync += [f.ranks[name].eq(f.ranks[name] - 1), f.written[name].eq(f.ranks[name] == 0)]
                with m.If(f.ranks[name] == 0):
                    if self.reach:
                        m.d.comb += Assert(~f.behind, "no put is written behind another")
                        continue
                    if name == "aw":
                        address = bus.aw.payload.addr == f.first // beat * beat
                        m.d.comb += Assert(address & (bus.aw.payload.len == 0), "another address is written")
                        continue
                    lane = (f.first % beat)[:_COUNT]
                    content = (bus.w.payload.data >> (lane * 8))[: 8 * beat]
                    for item in Item:
                        mine, bits = f.item == item, 8 * layout.bytes(item)
                        strb = bus.w.payload.strb == ((1 << layout.bytes(item)) - 1 << lane)[:beat]
                        same = content[:bits] == f.data[: layout.bits(item)]
                        m.d.comb += Assert(~mine | (strb & same & bus.w.payload.last), "other bytes are written")


class _Request:
    """The request that is taken."""

    def __init__(self, p: DreParams):
        self.client = Signal(name="mine_client")
        self.item = Signal(Item, name="mine_item")
        self.more = Signal(4, name="mine_more")
        self.address = Signal(16, name="mine_address")
        self.data = Signal(max(sizes.bits for sizes in client_sizes(p).values()), name="mine_data")


class _Followed:
    """The request that is followed, what is in front of it, and how far it is."""

    def __init__(self, p: DreParams):
        self.begun = Signal(name="f_begun")
        self.put = Signal(name="f_put")
        self.client = Signal(name="f_client")
        self.item = Signal(Item, name="f_item")
        self.first = Signal(16, name="f_first")
        self.more = Signal(4, name="f_more")
        self.data = Signal(max(sizes.bits for sizes in client_sizes(p).values()), name="f_data")
        self.nth = Signal(4, name="f_nth")  # the item of the ask that is followed
        self.items = Signal(_COUNT, name="f_items")  # items before it
        self.reads = Signal(_COUNT, name="f_reads")  # reads before it
        self.beats = Signal(_COUNT, name="f_beats")  # beats before its own
        self.asked = Signal(name="f_asked")  # its address went
        self.came = Signal(name="f_came")  # its beat is on the bus
        self.value = Signal(8 * p.table.bus_bytes, name="f_value")  # its bytes, lowest
        self.read = Signal(name="f_read")  # its beat was taken
        self.ended = Signal(name="f_ended")  # it came out
        self.ranks = {name: Signal(_COUNT, name=f"f_rank_{name}") for name in ("aw", "w")}  # puts before it
        self.written = {name: Signal(name=f"f_written_{name}") for name in ("aw", "w")}
        self.behind = Signal(name="f_behind")  # another request of its kind was in front of it
        self.met = Signal(name="f_met")  # a request of the other kind was in front of it
        self.failed = Signal(name="f_failed")  # an error response came
