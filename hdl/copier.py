"""Copier: words from one place in memory to another, in bursts."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from golden.isa import ADDR_BITS, PAYLOAD, Opcode
from hdl.axi import Bursts, address_layout, read_layout, response_layout, write_layout
from hdl.memory import Ram, collect_errors, error_members
from hdl.params import CoreParams, bits_for


def copy_layout() -> data.StructLayout:
    """`words` + 1 words of 2 * lanes bytes from byte `src` to byte `dst`."""
    return data.StructLayout({"src": ADDR_BITS, "dst": ADDR_BITS, "words": PAYLOAD[Opcode.LOAD]["words"]})


def bus_signature(p: CoreParams) -> wiring.Signature:
    """Channels of an AXI4 manager as streams of the layouts in `hdl.axi`: ar, r, aw, w, b."""
    return wiring.Signature(
        {
            "ar": Out(stream.Signature(address_layout())),
            "r": In(stream.Signature(read_layout(p))),
            "aw": Out(stream.Signature(address_layout())),
            "w": Out(stream.Signature(write_layout(p))),
            "b": In(stream.Signature(response_layout())),
        }
    )


class Copier(wiring.Component):
    """Copies words, one copy behind the other, reading ahead of what is written.

    What was asked for has a place in the buffer of `lxe.copies` + 1 bursts, and a burst is written when it is there as
    a whole: whatever the bus does, no burst, read or written, waits for another one. Beats are read in the order of
    the copies and written in it: a copy may write what one before it reads, not read what one before it writes unless
    `ended` was high between them.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    i : In(stream of `copy_layout`) : copies; bits of an address below a beat count as zero
    bus : Out(`bus_signature`) : AXI4; a burst's address on `aw` goes out with its first beat on `w`, up to `lxe.copies`
        bursts are under way in each direction, beats on `r` and responses on `b` are always taken
    read : Out(1) : a beat of a copy is being taken
    ended : Out(1) : all copies taken so far are written, and the bus has said so
    bus_error : Out(1) : an error response, pulses
    go : In(1) : begin bursts, keep what comes. It falls once, for good, at a fault or with `stop`
    stop : In(1) : write nothing more: the rest of a burst goes out with strb 0
    busy : Out(1) : a burst is under way
    perf : Out(struct of 32-bit counters) : reads, writes (bursts begun), beats (written), waits (cycles in which a
        burst waits for room in the buffer)

    Latency: a burst is offered on `ar` 2 cycles after its copy is taken; on `aw` and `w` 2 cycles after its last beat
        came. `ended` rises in the cycle after the last response. Exact in `sim.retriever`.
    Throughput: a beat in each direction every cycle, across copies, while bursts are as long as they can be and the
        memory answers within (`lxe.copies` - 1) * burst_bytes / bus_bytes - 1 cycles.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: AXI4 (ARM IHI 0022); V-Rex section V-C.
    """

    def __init__(self, p: CoreParams):
        self.p = p
        self.longest = p.lxe.burst_bytes // p.lxe.bus_bytes  # beats of a burst
        self.depth = (p.lxe.copies + 1) * self.longest  # what is being read, and a burst that is being written
        super().__init__(
            {
                "i": In(stream.Signature(copy_layout())),
                "bus": Out(bus_signature(p)),
                "read": Out(1),
                "ended": Out(1),
                "bus_error": Out(1),
                "go": In(1),
                "stop": In(1),
                "busy": Out(1),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
                **error_members(p.lxe.protect),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["reads", "writes", "beats", "waits"]

    def elaborate(self, platform):
        p, bus, depth, m = self.p, self.bus, self.depth, Module()
        bursts = p.lxe.copies
        m.submodules.reads = reads = Bursts(p)
        m.submodules.writes = writes = Bursts(p)
        m.submodules.buffer = buffer = Ram(8 * p.lxe.bus_bytes, depth, protect=p.lxe.protect)
        collect_errors(m, self, [buffer])

        # A copy goes to both; what it writes waits, so that its reads need not.
        i = self.i.payload
        to_layout = data.StructLayout({name: copy_layout()[name].shape for name in ("dst", "words")})
        queue = m.submodules.queue = SyncFIFO(width=to_layout.size, depth=bursts)
        to_in, to = Signal(to_layout), data.View(to_layout, queue.r_data)
        m.d.comb += [
            self.i.ready.eq(reads.c.ready & queue.w_rdy),
            reads.c.valid.eq(self.i.valid & queue.w_rdy),
            reads.c.payload.addr.eq(i.src),
            reads.c.payload.words.eq(i.words),
            *(to_in[name].eq(i[name]) for name, _ in to_layout),
            queue.w_data.eq(to_in),
            queue.w_en.eq(self.i.valid & reads.c.ready),
            writes.c.valid.eq(queue.r_rdy),
            writes.c.payload.addr.eq(to.dst),
            writes.c.payload.words.eq(to.words),
            queue.r_en.eq(writes.c.ready),
        ]

        # Reading.
        reading = Signal(bits_for(bursts + 1))  # bursts
        room = Signal(bits_for(depth + 1), init=depth)  # beats of the buffer that nothing was asked for
        offered = Signal()
        asks = Signal()
        error = Signal()
        puts = Signal()
        gives = Signal()
        m.d.comb += [
            reads.o.ready.eq(self.go & (reading != bursts) & (room > reads.o.payload.len) & (~offered | bus.ar.ready)),
            asks.eq(reads.o.valid & reads.o.ready),
            bus.ar.valid.eq(offered),
            bus.r.ready.eq(1),
            error.eq(self.go & bus.r.valid & bus.r.payload.resp[1]),
            puts.eq(self.go & bus.r.valid & ~error),
            self.read.eq(puts),
        ]
        m.d.sync += [
            reading.eq(reading + asks - (bus.r.valid & bus.r.payload.last)),
            room.eq(room + gives - Mux(asks, reads.o.payload.len + 1, 0)),
        ]
        with m.If(~offered | bus.ar.ready):
            m.d.sync += offered.eq(asks)
        with m.If(asks):
            m.d.sync += [bus.ar.payload.addr.eq(reads.o.payload.addr), bus.ar.payload.len.eq(reads.o.payload.len)]

        # The buffer.
        level = Signal(bits_for(depth + 1))
        first = Signal(range(max(2, depth)))
        last = Signal.like(first)
        m.d.comb += [
            buffer.w_en.eq(puts),
            buffer.w_addr.eq(last),
            buffer.w_data.eq(bus.r.payload.data),
            buffer.r_en.eq(gives),
            buffer.r_addr.eq(first),
            bus.w.payload.data.eq(buffer.r_data),
        ]
        m.d.sync += level.eq(level + puts - gives)
        with m.If(puts):
            m.d.sync += last.eq(Mux(last == depth - 1, 0, last + 1))
        with m.If(gives):
            m.d.sync += first.eq(Mux(first == depth - 1, 0, first + 1))

        # Writing: a burst that has begun has all its beats in the buffer.
        writing = Signal(bits_for(bursts + 1))  # bursts
        announced = Signal()
        w_valid = Signal()
        w_free = Signal()
        open_ = Signal(name="open")
        left = Signal(len(bus.aw.payload.len))  # beats after the next one, while a burst is open
        remaining = Signal.like(left)
        begins = Signal()
        m.d.comb += [
            w_free.eq(~w_valid | bus.w.ready),
            writes.o.ready.eq(
                self.go
                & w_free
                & ~open_
                & (writing != bursts)
                & (level > writes.o.payload.len)
                & (~announced | bus.aw.ready)
            ),
            begins.eq(writes.o.valid & writes.o.ready),
            gives.eq(begins | (open_ & w_free)),
            remaining.eq(Mux(open_, left, writes.o.payload.len)),
            bus.aw.valid.eq(announced),
            bus.w.valid.eq(w_valid),
            bus.b.ready.eq(1),
            self.bus_error.eq(error | (self.go & bus.b.valid & bus.b.payload.resp[1])),
            self.busy.eq(reading.any() | writing.any()),
            self.ended.eq(~queue.r_rdy & ~writes.o.valid & ~writing.any()),
        ]
        m.d.sync += writing.eq(writing + begins - bus.b.valid)
        with m.If(~announced | bus.aw.ready):
            m.d.sync += announced.eq(begins)
        with m.If(begins):
            m.d.sync += [bus.aw.payload.addr.eq(writes.o.payload.addr), bus.aw.payload.len.eq(writes.o.payload.len)]
        with m.If(w_free):
            m.d.sync += w_valid.eq(gives)
        with m.If(gives):
            m.d.sync += [
                bus.w.payload.strb.eq(Mux(self.stop, 0, (1 << p.lxe.bus_bytes) - 1)),
                bus.w.payload.last.eq(remaining == 0),
                open_.eq(remaining != 0),
                left.eq(remaining - 1),
            ]
        for name, event in (
            ("reads", asks),
            ("writes", begins),
            ("beats", gives),
            ("waits", reads.o.valid & (room <= reads.o.payload.len)),
        ):
            m.d.sync += self.perf[name].eq(self.perf[name] + event)
        return m
