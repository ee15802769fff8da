"""Table port: reads and writes the tables in memory for HCU and KVMU, over one AXI4 port.

A request goes down on the left, what memory answers comes up on the right. A request waits in `kept` while the bus has
accesses of the other kind in flight::

    hcu:  ask  put        kvmu:  ask  put                    hcu.data     kvmu.data
           |    |                 |    |                         ^            ^
           v    v                 v    v                         |            |
        +----------------------------------+                 +--------------------+
        | _place: each one's in its table  |                 | _hand_out: check   |
        | _take: the older of a client,    |                 |   bits             |
        |        clients in turn           |                 |                    |
        +----------------------------------+                 +--------------------+
                         | kept                                        ^ r_word
                         v                                   +--------------------+
                                                             | _read_beat: an item|
                                                             |   a cycle          |
        +----------------------------------+   order, a      +--------------------+
        | _send: addresses                 | -- FIFO of asks --->      ^
        | _write_beat: check bits, strobes |                           |
        +----------------------------------+                           |
             | ar      | aw, w      ^ b                                | r
    ---------+---------+------------+----------------------------------+----------------- AXI4, to memory
"""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.secded import check_bits
from openvrex.golden.program.isa import ADDR_BITS
from openvrex.golden.retrieval.table_layout import PAGE, Item, TableLayout
from openvrex.hdl.bus.axi import manager_signature
from openvrex.hdl.check_bits import checks_of, decoded
from openvrex.hdl.memory import error_members
from openvrex.hdl.named import comb
from openvrex.hdl.params import DreParams, bits_for
from openvrex.hdl.queues import PUTS, READS
from openvrex.hdl.retrieval.hcu_state import client_sizes as hcu_port
from openvrex.hdl.retrieval.kvmu_layouts import map_port
from openvrex.hdl.retrieval.table_client import Sizes, table_client
from openvrex.hdl.unit import Unit

CLIENTS = ("hcu", "kvmu")
# The kinds of items that each client reads and writes.
ITEMS = {
    "hcu": (Item.LEVEL, Item.HASH),
    "kvmu": (Item.PLACE, Item.RING, Item.COUNT, Item.ROW, Item.NEXT, Item.POOL),
}
_PAGE_BITS = PAGE.bit_length() - 1


def client_sizes(p: DreParams) -> dict[str, Sizes]:
    """The argument of `table_client` for each client."""
    return {"hcu": hcu_port(p.hcu), "kvmu": map_port(p.kvmu)}


class TablePort(Unit):
    """Reads and writes items of the tables in memory for the HCU and the KVMU.

    A client names an item by its kind, its context and its index. The port computes the address, sends one burst for
    each ask and one beat for each put, picks the items out of the beats, and adds and checks the check bits. Requests
    of both clients take effect in the order in which the port takes them, one a cycle. AXI orders nothing between reads
    and writes. Therefore a read goes out only when every write is answered, and a write only when every read has come.
    Requests of one kind follow each other without waiting: up to READS + 1 asks or PUTS puts are in flight
    (`hdl.queues`).

    Fairness: if both clients offer a request, the port takes one of the client that it did not serve last. Of the ask
    and the put of one client the port takes the one that was offered first, and the ask if both came in one cycle.

    Errors: an error response, or an item with wrong bits that its check bits cannot correct, halts the port until a
    reset. A halted port begins nothing and hands out no item, so nothing in memory depends on a wrong item. It still
    takes all beats and responses that come. A put that waits in the cycle in which check bits turn out wrong may begin.

    Corner cases: asks for neighbouring items are not merged. Addresses are modulo 2^40, and bits of `table_base` below
    4,096 count as zero.

    Parameters
    ----------
    p : DreParams

    Members
    -------
    hcu, kvmu : In(`hdl.retrieval.table_client.table_client` of `client_sizes`) : the clients; `data.ready` is not read
    table_base : In(40) : first byte of the tables; stable
    bus : Out(`hdl.bus.axi.manager_signature`) : AXI4, INCR bursts of whole beats, one ID; ready of `b` is always 1,
        that of `r` is 0 while a beat has items to hand out
    bus_error : Out(1) : pulse: an error response
    error : Out(2), if items have check bits : pulses: bit 0, an item was corrected; bit 1, one was wrong and could not
        be
    stop : In(1) : begin nothing more; an address or a beat that is offered stays
    busy : Out(1) : a request waits or is in flight; while the port is stopped or halted: in flight
    perf : Out(struct of 32-bit counters) : asks, puts (sent to the bus), items (beats of `data`), waits (cycles in
        which a request waits for the bus or for requests of the other kind)

    Latency: 2 cycles from an ask or a put to its address on the bus, 1 from a beat to its first item on `data`. `busy`
        falls in the cycle after the last response, or in the cycle of the last item. Exact in
        `sim.units.table_port_time`.
    Throughput: an ask and an item a cycle if the memory's latency is below READS, a put a cycle if it is below
        PUTS - 1. A word of counts takes a cycle for each beat that it has counts in. A put behind an ask waits until
        the ask's items have come, an ask behind a put for the response.
    Raises: `ParamError` for a beat that an item does not fit in. 40 bits of address reach the largest tables.
    Source: V-Rex sections V-B and V-C (HC table and mapping in DRAM); AXI4 (ARM IHI 0022).
    """

    COUNTERS = ("asks", "puts", "items", "waits")

    def __init__(self, p: DreParams):
        self.layout = p.layout()
        self.protect = p.table.protect
        # COUNTs that are read at once: a word of them, or as many as a beat holds.
        self.lanes = min(p.kvmu.count_lanes, p.table.bus_bytes // self.layout.bytes(Item.COUNT))
        super().__init__(
            p,
            {
                **{name: In(table_client(sizes)) for name, sizes in client_sizes(p).items()},
                "table_base": In(ADDR_BITS),
                "bus": Out(manager_signature(p.table.bus_bytes)),
                "bus_error": Out(1),
                "stop": In(1),
                "busy": Out(1),
                **error_members(self.protect),
            },
        )

    @staticmethod
    def timing(p: DreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "request_latency": "2 from an ask or a put to its address",
            "item_latency": "1 from a beat to its first item",
            "interval": "1 a request, 1 an item",
            "in_flight": f"{READS + 1} asks or {PUTS} puts",
        }

    def elaborate(self, platform):
        m = Module()
        request, sent, given = _Request(self.p, self.layout), _Sent(self.layout), _Given(self.p, self.layout)
        order = m.submodules.order = SyncFIFO(width=given.ask.shape().size, depth=READS)
        self._take(m, request)
        self._send(m, request, sent, given, order)
        self._write_beat(m, request, sent)
        self._read_beat(m, given, order)
        self._hand_out(m, given)
        self._halt(m, request, sent, given, order)
        self._count_later(
            m,
            asks=request.goes & ~request.kept.write,
            puts=request.goes & request.kept.write,
            items=given.whole,
            waits=request.waits & ~request.goes,
        )
        return m

    def _take(self, m: Module, request: "_Request") -> None:
        """Picks the next request: of each client the one that was offered first, of both clients in turn."""
        turn = Signal()  # the number of the client that was served last
        room = Signal()  # a request can be taken
        parts = []
        for number, name in enumerate(CLIENTS):
            ask, put = getattr(self, name).ask, getattr(self, name).put
            older = Signal(name=f"{name}_older")  # the put was offered before the ask
            writes = Signal(name=f"{name}_writes")  # the client's next request is its put
            offers = Signal(name=f"{name}_offers")
            picked = Signal(name=f"{name}_picked")
            m.d.comb += [
                writes.eq(older | ~ask.valid),
                offers.eq(ask.valid | put.valid),
                ask.ready.eq(picked & room & ~older),
                put.ready.eq(picked & room & writes),
            ]
            m.d.sync += older.eq(put.valid & ~put.ready & (writes | ask.ready))
            # Who is picked is known late, so each request has its place by then.
            places = [self._place(m, f"{name}_{n}", ITEMS[name], x.payload) for n, x in (("ask", ask), ("put", put))]
            parts.append((number, ask.payload, put.payload, places, writes, offers, picked))
        (*_, first, first_picked), (*_, second, second_picked) = parts
        m.d.comb += [
            room.eq(~request.waits | request.goes),
            first_picked.eq(first & (~second | turn)),
            second_picked.eq(second & ~first_picked),
            request.comes.eq(first | second),
            request.client.eq(second_picked),
        ]
        with m.If(room):
            m.d.sync += request.waits.eq(request.comes)
            with m.If(request.comes):
                m.d.sync += turn.eq(second_picked)
        with m.If(room & request.comes):
            m.d.sync += request.kept.eq(request.next)
        m.d.comb += request.next.client.eq(request.client)
        for number, ask, put, (ask_place, put_place), writes, _, _ in parts:
            with m.If(request.client == number):
                m.d.comb += [
                    request.next.write.eq(writes),
                    request.next.more.eq(Mux(writes, 0, ask.more)),
                    request.next.data.eq(put.data),
                    request.next.item.eq(Mux(writes, put.item, ask.item)),
                    request.next.ctx.eq(Mux(writes, put.ctx, ask.ctx)),
                    request.next.place.eq(Mux(writes, put_place, ask_place)),
                ]

    def _place(self, m: Module, name: str, items: tuple[Item, ...], asked: data.View) -> Signal:
        """The place of an item, which is of one of these kinds, in its table."""
        layout = self.layout
        first = Signal(_place_bits(layout), name=f"{name}_first")  # place of the array
        behind = Signal(_place_bits(layout), name=f"{name}_behind")  # bytes of the items before this one
        with m.Switch(asked.item):
            for item in items:
                with m.Case(item):
                    m.d.comb += [
                        first.eq(layout.address(item)),
                        behind.eq(asked.index << _log(layout.bytes(item))),
                    ]
        return comb(m, f"{name}_place", first + behind, len(first))

    def _send(self, m: Module, request: "_Request", sent: "_Sent", given: "_Given", order: SyncFIFO) -> None:
        """Sends the request to the bus when nothing of the other kind is in flight."""
        bus, kept, beat = self.bus, request.kept, _log(self.layout.beat)
        entry = Signal.like(given.ask, name="entry")
        addr = Cat(Const(0, beat), sent.addr[beat:])  # of the beat that holds the item
        m.d.comb += [
            sent.reading.eq(given.asked | order.r_rdy),
            sent.free.eq(
                (~sent.ar_valid | bus.ar.ready) & (~sent.aw_valid | bus.aw.ready) & (~sent.w_valid | bus.w.ready)
            ),
            request.may.eq(Mux(kept.write, ~sent.reading & (sent.writing != PUTS), ~sent.writing.any() & order.w_rdy)),
            request.goes.eq(request.waits & sent.works & sent.free & request.may),
            entry.client.eq(kept.client),
            entry.item.eq(kept.item),
            entry.more.eq(kept.more),
            entry.lane.eq(kept.place[:beat]),
            order.w_data.eq(entry),
            order.w_en.eq(request.goes & ~kept.write),
            bus.ar.valid.eq(sent.ar_valid),
            bus.ar.payload.addr.eq(addr),
            bus.ar.payload.len.eq(sent.len),
            bus.aw.valid.eq(sent.aw_valid),
            bus.aw.payload.addr.eq(addr),
            bus.b.ready.eq(1),
        ]
        for channel, valid, goes in (
            (bus.ar, sent.ar_valid, request.goes & ~kept.write),
            (bus.aw, sent.aw_valid, request.goes & kept.write),
            (bus.w, sent.w_valid, request.goes & kept.write),
        ):
            with m.If(~valid | channel.ready):
                m.d.sync += valid.eq(goes)
        page = Signal(ADDR_BITS - _PAGE_BITS)
        table = comb(m, "table", kept.ctx * (self.layout.table_bytes // PAGE))  # first page of it
        m.d.comb += page.eq(self.table_base[_PAGE_BITS:] + table + kept.place[_PAGE_BITS:])
        with m.If(request.goes):
            m.d.sync += [sent.addr.eq(Cat(kept.place[:_PAGE_BITS], page)), sent.len.eq(0)]
            with m.Switch(kept.item):
                for item in Item:
                    with m.Case(item):
                        m.d.sync += [
                            sent.len.eq((kept.more << _log(self.layout.bytes(item))) >> beat),
                            sent.w_bytes.eq(self.layout.bytes(item)),
                        ]
        m.d.sync += sent.writing.eq(sent.writing + (request.goes & kept.write) - bus.b.valid)

    def _write_beat(self, m: Module, request: "_Request", sent: "_Sent") -> None:
        """Adds the check bits to an item, repeats it in all lanes of the beat, and selects its bytes by strobes."""
        layout, kept, w = self.layout, request.kept, self.bus.w
        code = Signal.like(sent.w_word, name="code")  # the item with its check bits
        with m.Switch(kept.item):
            for item in Item:
                with m.Case(item):
                    content = kept.data[: layout.bits(item)]
                    checks = checks_of(m, content, self.protect, f"{item.name.lower()}_new")
                    m.d.comb += code.eq(Cat(content, checks))
        with m.If(request.goes):
            m.d.sync += sent.w_word.eq(code)
        beat, strb = sent.w_word[:8], Const(1, 1)
        for k in range(_log(layout.beat)):
            size = 8 << k
            wide = sent.w_bytes[k + 1 :].any()  # the item is longer than 2^k bytes
            high = sent.w_word[size : 2 * size]
            beat = comb(m, f"lanes{2 << k}", Cat(beat, Mux(wide, high, beat) if len(high) else beat))
            low, up = ~sent.addr[k], sent.addr[k] | wide  # the item is in the lower half, in the upper half
            strb = comb(m, f"strb{2 << k}", Cat(strb & low.replicate(1 << k), strb & up.replicate(1 << k)))
        m.d.comb += [
            w.valid.eq(sent.w_valid),
            w.payload.data.eq(beat),
            w.payload.strb.eq(strb),
            w.payload.last.eq(1),
        ]

    def _read_beat(self, m: Module, given: "_Given", order: SyncFIFO) -> None:
        """Picks an item a cycle out of the beats that come, and takes a beat with its last item."""
        layout, ask, r, lanes = self.layout, given.ask, self.bus.r, self.lanes
        entry = data.View(ask.shape(), order.r_data)
        beat = _log(layout.beat)
        lane = Signal(beat + 1)  # lane of the next item; the top bit says that it is in the next beat
        step = Signal(range(layout.beat + 1))  # bytes taken out of the beat
        items = Signal(range(lanes + 1))  # items in them
        m.d.comb += items.eq(1)
        with m.Switch(ask.item):
            for item in Item:
                with m.Case(item):
                    m.d.comb += step.eq(layout.bytes(item) * (lanes if item == Item.COUNT else 1))
                    if item == Item.COUNT:
                        m.d.comb += items.eq(lanes)
        word = r.payload.data
        for k in reversed(range(beat)):
            size = 8 << k
            low = Mux(ask.lane[k], word[size : 2 * size], word[:size])
            word = comb(m, f"read{1 << k}", Cat(low, word[size : max(size, given.widest)]))
        final = Signal()  # the last items of the ask
        m.d.comb += [
            lane.eq(ask.lane + step),
            final.eq(ask.more < items),
            given.gives.eq(given.asked & r.valid),
            r.ready.eq(given.asked & (final | lane[-1])),
            given.ends.eq(given.gives & final),
            order.r_en.eq(~given.asked | given.ends),
            given.failed.eq(given.gives & r.payload.resp[1]),
        ]
        with m.If(given.gives):
            m.d.sync += [ask.lane.eq(lane[:beat]), ask.more.eq(ask.more - items)]
            m.d.sync += [given.r_item.eq(ask.item), given.r_client.eq(ask.client)]
        self._join_parts(m, given, word)
        with m.If(order.r_en):
            m.d.sync += [given.asked.eq(order.r_rdy), ask.eq(entry)]
        m.d.sync += given.r_valid.eq(given.whole)  # a failed one is not handed out, because the port halts

    def _join_parts(self, m: Module, given: "_Given", word: Value) -> None:
        """Keeps what was picked out of a beat; joins the parts of a word of counts that is longer than a beat."""
        parts, ask = self.p.kvmu.count_lanes // self.lanes, given.ask
        size = 8 * self.lanes * self.layout.bytes(Item.COUNT)
        m.d.comb += given.whole.eq(given.gives)
        if parts == 1:
            with m.If(given.gives):
                m.d.sync += [given.r_word.eq(word), given.r_more.eq(ask.more)]
            return
        part = Signal(range(parts))  # of the word
        with m.If((ask.item == Item.COUNT) & (part != parts - 1)):
            m.d.comb += given.whole.eq(given.ends)
        with m.If(given.gives):
            m.d.sync += part.eq(Mux(given.whole, 0, part + 1))
            with m.If(part == 0):
                m.d.sync += [given.r_word.eq(word), given.r_more.eq(ask.more)]
            for k in range(1, parts):
                with m.If(part == k):
                    m.d.sync += given.r_word[k * size : (k + 1) * size].eq(word)

    def _hand_out(self, m: Module, given: "_Given") -> None:
        """Checks an item, or a word of counts, and gives it to the client that asked."""
        layout = self.layout
        with m.Switch(given.r_item):
            for item in Item:
                with m.Case(item):
                    bits, size = layout.bits(item), 8 * layout.bytes(item)
                    goods, errors = [], []
                    for k in range(self.p.kvmu.count_lanes if item == Item.COUNT else 1):
                        code = given.r_word[k * size :][: bits + check_bits(bits, self.protect)]
                        name = f"{item.name.lower()}{k or ''}"
                        good, *found = decoded(m, code, bits, self.protect, name)
                        if k:
                            asked = comb(m, f"asked_{name}", given.r_more >= k)
                            good, found = good & asked.replicate(bits), [error & asked for error in found]
                        goods.append(good)
                        errors.append(found)
                    corrected, wrong = (Cat(each).any() for each in zip(*errors, strict=True))
                    m.d.comb += [given.good.eq(Cat(goods)), given.corrected.eq(corrected), given.wrong.eq(wrong)]
        for number, name in enumerate(CLIENTS):
            out = getattr(self, name).data
            m.d.comb += [
                out.payload.eq(given.good),
                out.valid.eq(given.r_valid & ~given.halted & ~given.wrong & (given.r_client == number)),
            ]

    def _halt(self, m: Module, request: "_Request", sent: "_Sent", given: "_Given", order: SyncFIFO) -> None:
        """Halts the port at an error."""
        b, fails = self.bus.b, Signal()
        m.d.comb += [
            sent.works.eq(~self.stop & ~given.halted),
            self.bus_error.eq(~given.halted & (given.failed | (b.valid & b.payload.resp[1]))),
            fails.eq(given.r_valid & ~given.halted & given.wrong),
            self.busy.eq(sent.reading | sent.writing.any() | (request.waits & sent.works)),
        ]
        with m.If(self.bus_error | fails):
            m.d.sync += given.halted.eq(1)
        if hasattr(self, "error"):
            m.d.sync += self.error.eq(Cat(given.r_valid & ~given.halted & given.corrected, fails))


def _log(size: int) -> int:
    """The logarithm of a power of two."""
    return size.bit_length() - 1


def _order_layout(p: DreParams, layout: TableLayout) -> data.StructLayout:
    """An ask whose items come: `more` items after the next one, which begins in byte `lane` of its beat."""
    most = max(sizes.most for sizes in client_sizes(p).values())
    return data.StructLayout(
        {"client": 1, "item": bits_for(len(Item)), "more": bits_for(most), "lane": max(1, _log(layout.beat))}
    )


def _place_bits(layout: TableLayout) -> int:
    """Bits of the number of bytes from the first page of a table to an item."""
    last = max(layout.address(item, 0, layout.number(item) - 1) for item in Item)
    return max(_PAGE_BITS + 1, bits_for(last + 1))


class _Request:
    """The request that comes, and the one that waits for the bus."""

    def __init__(self, p: DreParams, layout: TableLayout):
        n_ctx, _, bits, most, *_ = map(max, zip(*client_sizes(p).values(), strict=True))
        kept = data.StructLayout(
            {
                "write": 1,
                "client": 1,
                "item": bits_for(len(Item)),
                "more": bits_for(most),
                "ctx": bits_for(n_ctx),
                "place": _place_bits(layout),  # bytes from the table's first page to the item
                "data": bits,
            }
        )
        self.comes = Signal()  # a client offers a request
        self.client = Signal()  # the client whose turn it is
        self.next = Signal(kept)  # the request that comes
        self.waits = Signal()  # a request waits for the bus
        self.kept = Signal(kept, reset_less=True)  # that request
        self.may = Signal()  # nothing of the other kind is in flight, and there is room for one more of this kind
        self.goes = Signal()  # the request goes to the bus


class _Sent:
    """What is on the bus. Reads and writes are never there together, so they share the address."""

    def __init__(self, layout: TableLayout):
        longest = max(layout.bytes(item) for item in Item)
        self.works = Signal()  # neither stopped nor halted
        self.reading = Signal()  # asks are in flight
        self.writing = Signal(bits_for(PUTS + 1))  # puts in flight
        self.free = Signal()  # no channel stalls
        self.ar_valid = Signal()
        self.aw_valid = Signal()
        self.w_valid = Signal()
        self.addr = Signal(ADDR_BITS)  # the first item's address
        self.len = Signal(8)
        self.w_bytes = Signal(bits_for(longest + 1))  # bytes of the item on `w`
        self.w_word = Signal(8 * longest)  # that item


class _Given:
    """The ask whose items come, and the item that the port hands out."""

    def __init__(self, p: DreParams, layout: TableLayout):
        lanes, size = p.kvmu.count_lanes, 8 * layout.bytes(Item.COUNT)
        longest = 8 * max(layout.bytes(item) for item in Item)
        self.widest = max(longest, size * min(lanes, 8 * layout.beat // size))  # bits picked out of a beat
        self.asked = Signal()  # there is such an ask
        self.ask = Signal(_order_layout(p, layout))
        self.gives = Signal()  # an item, or a word of counts or a part of one, is picked out of the beat
        self.whole = Signal()  # with it the item or the word is whole
        self.ends = Signal()  # it is the last one of its ask
        self.failed = Signal()  # its beat is an error response
        self.r_valid = Signal()  # an item is handed out
        self.r_word = Signal(max(longest, lanes * size))  # with check bits, other items above it
        self.r_more = Signal(self.ask.more.shape())  # items of the ask behind its first one
        self.r_item = Signal(bits_for(len(Item)))
        self.r_client = Signal()
        self.good = Signal(max(sizes.beat_bits for sizes in client_sizes(p).values()))  # without check bits, corrected
        self.corrected = Signal()  # some item of it
        self.wrong = Signal()  # the check bits cannot correct it
        self.halted = Signal()  # an error has occurred
