"""Copier: copies words from one place in memory to another, in bursts."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS, PAYLOAD, Opcode
from openvrex.golden.retrieval.kv4 import RATIO
from openvrex.hdl.bus.axi import Bursts, address_layout, manager_signature
from openvrex.hdl.memory import Ram, collect_errors
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.queues import copied_beats, kv4_beats
from openvrex.hdl.retrieval.kv4_codec import Kv4Codec
from openvrex.hdl.unit import Unit


def copy_layout(p: CoreParams) -> data.StructLayout:
    """A copy of `words` + 1 words of 2 * lanes bytes from byte `src` to byte `dst`.

    If entries at home are packed, a copy can pack them (`packs`) or expand them (`expands`). `words` are then those of
    BF16 numbers, four times as many as the packed ones. With `kvmu.shared`, `wipes` writes zeros in place of what is
    read, and `from_named` and `to_named` say that a program names these addresses.
    """
    kinds = {"packs": 1, "expands": 1} if p.dre.kvmu.kv4_group else {}
    if p.dre.kvmu.shared:
        kinds |= {"wipes": 1, "from_named": 1, "to_named": 1}
    return data.StructLayout({"src": ADDR_BITS, "dst": ADDR_BITS, "words": PAYLOAD[Opcode.LOAD]["words"], **kinds})


def bus_signature(p: CoreParams) -> wiring.Signature:
    """Channels of an AXI4 manager as streams of the layouts in `hdl.bus.axi`: ar, r, aw, w, b."""
    return manager_signature(p.lxe.bus_bytes, p.dre.kvmu.shared)


class Copier(Unit):
    """Copies words in memory, one copy behind the other, and reads ahead of what it writes.

    Copies come in on `i`; beats are read in the order of the copies and written in it. The buffer holds `lxe.copies` +
    1 bursts. The copier asks for a burst only when its beats have room, and writes a burst only when all its beats are
    in the buffer. So no burst, read or written, ever waits for another one. A copy may write what a copy before it
    reads. It must not read what a copy before it writes, unless `ended` was high between them.

    If entries at home are packed, a codec behind the buffer packs and expands (`hdl.retrieval.kv4_codec`). The buffer
    then holds at least five bursts, as a packed burst waits for four that are read. The codec takes several cycles a
    beat: of the `core` preset, in groups of 32, it expands one in 2 cycles and packs one in 50. A packed beat holds
    four, so beats of a packed burst leave on `w` 200 cycles apart.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    i : In(stream of `copy_layout`) : copies; bits of an address below a beat count as zero; one that packs or expands
        has whole packed beats
    bus : Out(`bus_signature`) : AXI4; a burst's address on `aw` goes out with its first beat on `w`; up to `lxe.copies`
        bursts are in flight in each direction; beats on `r` and responses on `b` are always taken
    read : Out(1) : the copier takes a beat of a copy
    ended : Out(1) : all copies taken so far are written, and the bus has confirmed it
    bus_error : Out(1) : pulse: an error response
    go : In(1) : begin bursts, keep the beats that come; falls once, for good, at a fault or with `stop`
    stop : In(1) : write nothing more: the rest of a burst goes out with strb 0
    busy : Out(1) : a burst is in flight
    perf : Out(struct of 32-bit counters) : reads, writes (bursts begun), beats (written), waits (cycles in which a
        burst waits for room in the buffer)

    Latency: a burst is offered on `ar` 2 cycles after its copy is taken; on `aw` and `w` 2 cycles after its last beat
        came. `ended` rises in the cycle after the last response. Exact in `sim.units.retriever_time`.
    Throughput: a beat in each direction every cycle, across copies, while bursts have their full length and the memory
        answers within (`lxe.copies` - 1) * burst_bytes / bus_bytes - 1 cycles: 111 at the `core` preset.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: AXI4 (ARM IHI 0022); V-Rex section V-C.
    """

    COUNTERS = ("reads", "writes", "beats", "waits")

    def __init__(self, p: CoreParams):
        self.depth = copied_beats(p)
        super().__init__(
            p,
            {
                "i": In(stream.Signature(copy_layout(p))),
                "bus": Out(bus_signature(p)),
                "read": Out(1),
                "ended": Out(1),
                "bus_error": Out(1),
                "go": In(1),
                "stop": In(1),
                "busy": Out(1),
            },
            p.lxe.protect,
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.reads = reads = Bursts(p, single=True, limit=bits_for(self.depth + 1))
        m.submodules.writes = writes = Bursts(p, single=True)
        m.submodules.buffer = buffer = Ram(8 * p.lxe.bus_bytes, self.depth, protect=p.lxe.protect)
        collect_errors(m, self, [buffer])
        queue = m.submodules.queue = SyncFIFO(width=_to_layout(p).size, depth=p.lxe.copies)
        read, write = _Reading(p, self.depth), _Writing(p)

        self._accept(m, reads, writes, queue)
        self._read(m, reads, read, write)
        level = self._store(m, buffer, read, write)
        if write.kind is not None:
            self._convert(m, buffer, writes, queue, write)
        self._write(m, writes, queue, level, read, write)
        self._write_beat(m, writes, write)
        self._count_later(
            m,
            reads=read.asks,
            writes=write.begins,
            beats=write.makes,
            waits=reads.waits,
        )
        return m

    def _accept(self, m: Module, reads: Bursts, writes: Bursts, queue: SyncFIFO) -> None:
        """Gives a copy to the reader, and queues its destination for the writer, so that reads need not wait for
        writes.
        """
        i, layout = self.i.payload, _to_layout(self.p)
        to_in, to = Signal(layout, name="to_in"), data.View(layout, queue.r_data)
        m.d.comb += [
            self.i.ready.eq(reads.c.ready & queue.w_rdy),
            reads.c.valid.eq(self.i.valid & queue.w_rdy),
            reads.c.payload.addr.eq(i.src),
            reads.c.payload.words.eq(i.words),
            *(to_in[name].eq(i[name]) for name, _ in layout),
            queue.w_data.eq(to_in),
            queue.w_en.eq(self.i.valid & reads.c.ready),
            writes.c.valid.eq(queue.r_rdy),
            writes.c.payload.addr.eq(to.dst),
            writes.c.payload.words.eq(to.words),
            queue.r_en.eq(writes.c.ready),
        ]
        if "packs" in layout.members:  # the packed side has fewer words
            m.d.comb += [
                reads.c.payload.words.eq(Mux(i.expands, i.words // RATIO, i.words)),
                writes.c.payload.words.eq(Mux(to.packs, to.words // RATIO, to.words)),
            ]

    def _read(self, m: Module, reads: Bursts, read: "_Reading", write: "_Writing") -> None:
        """Asks for a burst once its beats have room in the buffer."""
        bus, burst, offered = self.bus, reads.o.payload, read.offered
        m.d.comb += [
            reads.most.eq(read.room),
            reads.o.ready.eq(self.go & (read.reading != self.p.lxe.copies) & (~offered | bus.ar.ready)),
            read.asks.eq(reads.o.valid & reads.o.ready),
            bus.ar.valid.eq(offered),
            bus.r.ready.eq(1),
            read.error.eq(self.go & bus.r.valid & bus.r.payload.resp[1]),
            read.puts.eq(self.go & bus.r.valid & ~read.error),
            self.read.eq(read.puts),
        ]
        m.d.sync += [
            read.reading.eq(read.reading + read.asks - (bus.r.valid & bus.r.payload.last)),
            read.room.eq(read.room + write.gives - Mux(read.asks, burst.len + 1, 0)),
        ]
        with m.If(~offered | bus.ar.ready):
            m.d.sync += offered.eq(read.asks)
        with m.If(read.asks):
            m.d.sync += [bus.ar.payload.addr.eq(burst.addr), bus.ar.payload.len.eq(burst.len)]
        if self.p.dre.kvmu.shared:
            with m.If(reads.c.valid & reads.c.ready):
                m.d.sync += read.named.eq(self.i.payload.from_named)
            with m.If(read.asks):
                m.d.sync += bus.ar.payload.named.eq(read.named)

    def _store(self, m: Module, buffer: Ram, read: "_Reading", write: "_Writing") -> Signal:
        """The buffer as a FIFO; returns the number of beats in it."""
        bus, depth, puts, gives = self.bus, self.depth, read.puts, write.gives
        level = Signal(bits_for(depth + 1))
        first = Signal(range(max(2, depth)))
        last = Signal.like(first)
        m.d.comb += [
            buffer.w_en.eq(puts),
            buffer.w_addr.eq(last),
            buffer.w_data.eq(bus.r.payload.data),
            buffer.r_en.eq(write.reads),
            buffer.r_addr.eq(first),
        ]
        if write.kind is None:
            m.d.comb += bus.w.payload.data.eq(self._zeroed(write, buffer.r_data))
        m.d.sync += level.eq(level + puts - gives)
        with m.If(puts):
            m.d.sync += last.eq(Mux(last == depth - 1, 0, last + 1))
        with m.If(write.reads):
            m.d.sync += first.eq(Mux(first == depth - 1, 0, first + 1))
        if write.kind is not None and kv4_beats(self.p) > 1:  # the codec reads the beats of a group twice
            left = Signal.like(first)  # the first beat that has not left the buffer
            with m.If(gives):
                m.d.sync += left.eq(Mux(left == depth - 1, 0, left + 1))
            with m.If(write.kind.codec.again):
                m.d.sync += first.eq(left)
        return level

    def _convert(self, m: Module, buffer: Ram, writes: Bursts, queue: SyncFIFO, write: "_Writing") -> None:
        """Packs and expands behind the buffer: tells the codec which bursts, and when it may go on."""
        kind, to = write.kind, data.View(_to_layout(self.p), queue.r_data)
        m.submodules.codec = codec = kind.codec
        with m.If(writes.c.valid & writes.c.ready):
            m.d.sync += kind.coming.eq(Cat(to.packs, to.expands))
        with m.If(write.begins):
            m.d.sync += kind.begun.eq(kind.coming)
        m.d.comb += [
            Cat(kind.packs, kind.expands).eq(Mux(write.open, kind.begun, kind.coming)),
            codec.packs.eq(kind.coming[0]),
            codec.starts.eq(write.begins & (kind.packs | kind.expands)),
            codec.runs.eq(write.open & write.w_free & kind.begun.any()),
            codec.ends.eq(write.left == 0),
            codec.stored.eq(buffer.r_data),
            self.bus.w.payload.data.eq(Mux(kind.begun.any(), codec.o, self._zeroed(write, buffer.r_data))),
        ]

    def _write(
        self, m: Module, writes: Bursts, queue: SyncFIFO, level: Signal, read: "_Reading", write: "_Writing"
    ) -> None:
        """Begins a burst once all its beats are in the buffer."""
        bus, burst, w_free, kind = self.bus, writes.o.payload, write.w_free, write.kind
        enough = level > burst.len
        if kind is not None:
            # Parts of the packed beat that was read last are left while a copy expands.
            parts = Cat(Const(0, 2), level) + (-kind.codec.part)[:2]
            quads = Cat(Const(3, 2), burst.len)  # the beats of a packed burst but one
            enough = Mux(kind.packs, level > quads, Mux(kind.expands, parts > burst.len, level > burst.len))
        m.d.comb += [
            w_free.eq(~write.w_valid | bus.w.ready),
            writes.o.ready.eq(
                self.go
                & w_free
                & ~write.open
                & (write.writing != self.p.lxe.copies)
                & enough
                & (~write.announced | bus.aw.ready)
            ),
            write.begins.eq(writes.o.valid & writes.o.ready),
            write.steps.eq(write.begins | (write.open & w_free)),
            write.remaining.eq(Mux(write.open, write.left, burst.len)),
            bus.aw.valid.eq(write.announced),
            bus.w.valid.eq(write.w_valid),
            bus.b.ready.eq(1),
            self.bus_error.eq(read.error | (self.go & bus.b.valid & bus.b.payload.resp[1])),
            self.busy.eq(read.reading.any() | write.writing.any()),
            self.ended.eq(~queue.r_rdy & ~writes.o.valid & ~write.writing.any()),
        ]
        if kind is not None:
            passes = comb(m, "passes", write.steps & ~kind.packs & ~kind.expands)  # a beat goes through as it is
            m.d.comb += [
                write.reads.eq(passes | kind.codec.reads),
                write.gives.eq(passes | kind.codec.gives),
                write.makes.eq(passes | kind.codec.makes),
            ]
        m.d.sync += write.writing.eq(write.writing + write.begins - bus.b.valid)
        if self.p.dre.kvmu.shared:
            to = data.View(_to_layout(self.p), queue.r_data)
            with m.If(writes.c.valid & writes.c.ready):
                m.d.sync += [write.wipes_next.eq(to.wipes), write.named.eq(to.to_named)]
            with m.If(write.begins):
                m.d.sync += [write.wipes.eq(write.wipes_next), bus.aw.payload.named.eq(write.named)]

    def _zeroed(self, write: "_Writing", beat: Value) -> Value:
        """A beat as it is written: of a copy that wipes it is zero."""
        return Mux(write.wipes, 0, beat) if self.p.dre.kvmu.shared else beat

    def _write_beat(self, m: Module, writes: Bursts, write: "_Writing") -> None:
        """Registers the beat that is offered, and with a burst's first beat its address."""
        bus, burst, remaining = self.bus, writes.o.payload, write.remaining
        with m.If(~write.announced | bus.aw.ready):
            m.d.sync += write.announced.eq(write.begins)
        with m.If(write.begins):
            m.d.sync += [bus.aw.payload.addr.eq(burst.addr), bus.aw.payload.len.eq(burst.len)]
        with m.If(write.w_free):
            m.d.sync += write.w_valid.eq(write.makes)
        with m.If(write.makes):
            m.d.sync += [
                bus.w.payload.strb.eq(Mux(self.stop, 0, (1 << self.p.lxe.bus_bytes) - 1)),
                bus.w.payload.last.eq(remaining == 0),
                write.open.eq(remaining != 0),
                write.left.eq(remaining - 1),
            ]
        if write.kind is not None:
            with m.Elif(write.begins):
                m.d.sync += [write.open.eq(1), write.left.eq(remaining)]


def _to_layout(p: CoreParams) -> data.StructLayout:
    return data.StructLayout({name: field.shape for name, field in copy_layout(p) if name != "src"})


class _Reading:
    """Bursts being read."""

    def __init__(self, p: CoreParams, depth: int):
        self.reading = Signal(bits_for(p.lxe.copies + 1))  # bursts in flight
        self.room = Signal(bits_for(depth + 1), init=depth)  # beats of the buffer not reserved by a burst
        self.asks = Signal()  # the copier asks for another burst
        self.offered = Signal()  # a burst is on `ar`
        self.error = Signal()
        self.puts = Signal()  # a beat goes into the buffer
        self.named = Signal(name="read_named")  # a program names the address of the copy whose bursts are asked for


class _Writing:
    """Bursts being written."""

    def __init__(self, p: CoreParams):
        self.writing = Signal(bits_for(p.lxe.copies + 1))  # bursts in flight
        self.announced = Signal()  # a burst is on `aw`
        self.w_valid = Signal()
        self.w_free = Signal()
        self.open = Signal()  # a burst has begun and has beats left
        self.left = Signal(address_layout()["len"].width)  # beats after the next one, while a burst is open
        self.remaining = Signal(address_layout()["len"].width)  # beats after the next one
        self.begins = Signal()  # a burst begins
        self.gives = Signal()  # a beat leaves the buffer
        self.named = Signal(name="write_named")  # a program names the address of the copy whose bursts begin
        self.wipes_next = Signal()  # that copy wipes
        self.wipes = Signal()  # the burst that began last is of one that wipes
        self.kind = _Kind(p) if p.dre.kvmu.kv4_group else None  # of the copy being written
        if self.kind is None:
            self.steps = self.reads = self.makes = self.gives
        else:
            self.steps = Signal(name="steps")  # the writer goes on
            self.reads = Signal(name="reads")  # a beat of the buffer is read
            self.makes = Signal(name="makes")  # a beat for the bus is complete


class _Kind:
    """What the copy being written does with its beats."""

    def __init__(self, p: CoreParams):
        self.codec = Kv4Codec(p)
        self.coming = Signal(2, name="kind_coming")  # packs, expands: of the burst that begins next
        self.begun = Signal(2, name="kind_begun")  # of the one that began last
        self.packs = Signal(name="kind_packs")  # of the one that goes on or begins
        self.expands = Signal(name="kind_expands")
