"""Loader: words from memory to the scratchpads of the DPE and to the VPE."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from golden.isa import SEMAPHORES, LoadTo
from hdl.axi import Bursts, address_layout, error_layout, read_layout, rows_layout, word_beats
from hdl.dpe import activation_layout, weight_layout
from hdl.isa import done_layout, transfer_layout
from hdl.params import CoreParams, bits_for
from hdl.vpe import word_layout


class Loader(wiring.Component):
    """Executes LOADs: reads rows of words in bursts and hands each word on where it belongs.

    Bursts go out while the data of earlier ones still come, also across instructions: up to `lxe.bursts` are under
    way, of up to `lxe.queue` instructions and the one before them. Rows without a gap are cut as one. There is no room
    for data: a beat is taken when its word can go.

    Faults come in the order of the words: an error response; an address or a stride that is no multiple of 2 * lanes
    bytes; a word outside its scratchpad; a COLUMN row of more than one word; `wide` but for LoadTo.VECTOR. The pulse is
    in the cycle in which the beat is taken, or in which it or the instruction would have been next. No word of what is
    at fault is handed on, and nothing more is taken until `stop`. While `stop` is high no burst is begun, and beats on
    their way are taken and dropped; once `busy` is low, a reset is safe for the bus.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    c : In(stream of `hdl.isa.transfer_layout`) : instructions; `skip`: done without a transfer
    ar : Out(stream of `hdl.axi.address_layout`) : bursts, of beats of `lxe.bus_bytes`
    r : In(stream of `hdl.axi.read_layout`) : their beats, in order
    w : Out(stream of `hdl.dpe.weight_layout`) : words for LoadTo.W and COLUMN; tree is 0 for a column, lane for others
    x : Out(stream of `hdl.dpe.activation_layout`) : words for LoadTo.X
    v : Out(stream of `hdl.vpe.word_layout`) : words for LoadTo.VECTOR; above a BF16 word the upper half is undefined
    done : Out(`hdl.isa.done_layout`) : in the cycle in which an instruction's last word is taken
    fault : Out(`hdl.axi.error_layout`) : one pulse until a reset
    stop : In(1) : begin nothing, drop what comes
    busy : Out(1) : a burst is under way
    perf : Out(struct of 32-bit counters) : instructions (done), bursts (begun), beats (taken), words (handed on), waits
        (cycles in which a beat is there and not taken)

    Latency: an instruction's first burst is offered 2 cycles after it is taken; a word is offered the cycle after its
        last beat is taken; a beat can be taken 2 cycles after its instruction. Exact in `sim.loader.LoaderTime`.
    Throughput: a beat a cycle, also across rows and instructions, while words are taken and `lxe.bursts` bursts, of at
        most `lxe.queue` instructions, cover the memory's latency: n beats each, (bursts - 1) * n - 1 cycles from `ar`
        to the first beat. A skipped instruction takes a cycle.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: `golden.isa`; V-Rex section V-A (LXE).
    """

    def __init__(self, p: CoreParams):
        self.p = p
        self.beats = word_beats(p)
        super().__init__(
            {
                "c": In(stream.Signature(transfer_layout())),
                "ar": Out(stream.Signature(address_layout())),
                "r": In(stream.Signature(read_layout(p))),
                "w": Out(stream.Signature(weight_layout(p.dpe))),
                "x": Out(stream.Signature(activation_layout(p.dpe))),
                "v": Out(stream.Signature(word_layout(p.vpe))),
                "done": Out(done_layout()),
                "fault": Out(error_layout()),
                "stop": In(1),
                "busy": Out(1),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["instructions", "bursts", "beats", "words", "waits"]

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "burst_latency": "2 from an instruction to its first burst",
            "word_latency": "1 from a word's last beat to the word",
            "interval": f"{word_beats(p)} cycles a word, {2 * word_beats(p)} a wide one, 1 a skipped instruction",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        lanes = p.dpe.n_w
        failed = Signal()

        # Bursts.
        c = self.c.payload
        grid = (2 * lanes).bit_length() - 1
        bad = Signal()
        accept = Signal()
        kept = ("target", "wide", "words", "rows", "to", "step", "signal", "skip")
        fields = {name: transfer_layout()[name].shape for name in kept}
        work_layout = data.StructLayout({**fields, "bad": 1})
        bursts = m.submodules.bursts = Bursts(p, joined=True)
        queue = m.submodules.queue = SyncFIFO(width=work_layout.size, depth=p.lxe.queue)
        entry = Signal(work_layout)
        m.d.comb += [
            bad.eq(
                c.addr[:grid].any()
                | c.stride[:grid].any()
                | (c.wide & (c.target != LoadTo.VECTOR))
                | ((c.target == LoadTo.COLUMN) & (c.words != 0))
            ),
            accept.eq(~failed & ~self.stop & queue.w_rdy),
            self.c.ready.eq(accept & bursts.c.ready),
            bursts.c.valid.eq(self.c.valid & accept & ~c.skip & ~bad),
            queue.w_en.eq(self.c.valid & self.c.ready),
            queue.w_data.eq(entry),
            *(entry[name].eq(c[name]) for name in kept),
            entry.bad.eq(bad),
            *(bursts.c.payload[name].eq(c[name]) for name, _ in rows_layout()),
        ]
        under_way = Signal(bits_for(p.lxe.bursts + 1))
        asks = Signal()
        ends = Signal()
        offered = Signal()
        m.d.comb += [
            bursts.o.ready.eq((under_way != p.lxe.bursts) & (~offered | self.ar.ready) & ~failed & ~self.stop),
            asks.eq(bursts.o.valid & bursts.o.ready),
            ends.eq(self.r.valid & self.r.ready & self.r.payload.last),
            self.ar.valid.eq(offered),
            self.busy.eq(under_way != 0),
        ]
        m.d.sync += under_way.eq(under_way + asks - ends)
        with m.If(~offered | self.ar.ready):
            m.d.sync += offered.eq(asks)
        with m.If(asks):
            m.d.sync += [self.ar.payload.addr.eq(bursts.o.payload.addr), self.ar.payload.len.eq(bursts.o.payload.len)]

        # The word whose beats come, and where it goes. Addresses are those of the scratchpads and an overflow.
        work = Signal(work_layout)
        active = Signal()
        beat = Signal(range(2 * self.beats))
        word = Signal(len(c.words))
        rows = Signal(len(c.rows))  # after this one
        tree = Signal(bits_for(lanes))
        base = Signal(len(c.to) + 1)
        addr = Signal.like(base)
        to_w = Signal()
        to_x = Signal()
        to_v = Signal()
        column = Signal()
        last = Signal()
        outside = Signal()
        m.d.comb += [
            column.eq(work.target == LoadTo.COLUMN),
            to_w.eq((work.target == LoadTo.W) | column),
            to_x.eq(work.target == LoadTo.X),
            to_v.eq(work.target == LoadTo.VECTOR),
            last.eq((word == work.words) & (rows == 0)),
            addr.eq(base + word),
            outside.eq(work.bad | (to_w & (addr >= p.dpe.w_depth)) | (to_x & (addr >= p.dpe.x_depth))),
        ]

        # A word is put together in the register from which it is offered.
        full = Signal()
        out_layout = data.StructLayout(
            {
                **dict.fromkeys(("to_w", "to_x", "to_v", "column", "last"), 1),
                "tree": len(tree),
                "addr": max(p.dpe.w_addr_bits, p.dpe.x_addr_bits),
                "signal": SEMAPHORES,
            }
        )
        out = Signal(out_layout)
        numbers = Signal(32 * lanes, reset_less=True)
        sends = Signal()  # it is a word and no skipped instruction
        went = Signal()
        taken = Signal()
        free = Signal()
        works = Signal()
        takes = Signal()
        error = Signal()
        fills = Signal()
        whole = Signal()
        passes = Signal()
        loads = Signal()
        finish = Signal()
        m.d.comb += [
            sends.eq(out.to_w | out.to_x | out.to_v),
            went.eq((out.to_w & self.w.ready) | (out.to_x & self.x.ready) | (out.to_v & self.v.ready)),
            taken.eq(full & (went | ~sends)),
            free.eq(~full | taken),
            works.eq(active & ~failed & ~self.stop),
            self.fault.range.eq(works & ~work.skip & outside),
            takes.eq(works & ~work.skip & ~outside & free),
            self.r.ready.eq(takes | self.stop),
            error.eq(takes & self.r.valid & self.r.payload.resp[1]),
            self.fault.bus.eq(error),
            whole.eq(beat == Mux(work.wide, 2 * self.beats - 1, self.beats - 1)),
            fills.eq(takes & self.r.valid & ~error),
            passes.eq(works & work.skip & free),
            loads.eq((fills & whole) | passes),
            finish.eq((fills & whole & last) | passes),
            self.done.valid.eq(taken & out.last),
            self.done.signal.eq(out.signal),
        ]
        m.d.sync += failed.eq(failed | self.fault.bus | self.fault.range)
        with m.If(fills):
            m.d.sync += [
                numbers.word_select(beat, 8 * p.lxe.bus_bytes).eq(self.r.payload.data),
                beat.eq(Mux(whole, 0, beat + 1)),
            ]
        with m.If(free):
            m.d.sync += full.eq(loads)
        with m.If(loads):
            m.d.sync += [
                out.to_w.eq(to_w & ~work.skip),
                out.to_x.eq(to_x & ~work.skip),
                out.to_v.eq(to_v & ~work.skip),
                out.column.eq(column),
                out.last.eq(last | work.skip),
                out.tree.eq(tree),
                out.addr.eq(addr),
                out.signal.eq(work.signal),
                word.eq(word + 1),
            ]
            with m.If(word == work.words):
                m.d.sync += [word.eq(0), rows.eq(rows - 1), tree.eq(tree + 1)]
                with m.If(tree == lanes - 1):
                    m.d.sync += tree.eq(0)
                with m.If(to_x | (tree == lanes - 1)):
                    m.d.sync += base.eq(base + Mux(column, 1, work.step))
        m.d.comb += queue.r_en.eq(~active | finish)
        head = data.View(work_layout, queue.r_data)
        with m.If(queue.r_en):
            m.d.sync += [
                active.eq(queue.r_rdy),
                work.eq(head),
                word.eq(0),
                rows.eq(head.rows),
                tree.eq(0),
                base.eq(head.to),
            ]
        m.d.comb += [
            self.w.valid.eq(full & out.to_w),
            self.w.payload.tree.eq(Mux(out.column, 0, out.tree)),
            self.w.payload.lane.eq(Mux(out.column, out.tree, 0)),
            self.w.payload.addr.eq(out.addr),
            self.w.payload.column.eq(out.column),
            self.x.valid.eq(full & out.to_x),
            self.x.payload.addr.eq(out.addr),
            self.v.valid.eq(full & out.to_v),
            *(port.payload.data.as_value().eq(numbers) for port in (self.w, self.x)),
            self.v.payload.as_value().eq(numbers),
        ]
        for name, event in (
            ("instructions", self.done.valid),
            ("bursts", asks),
            ("beats", self.r.valid & self.r.ready),
            ("words", taken & sends),
            ("waits", self.r.valid & ~self.r.ready),
        ):
            m.d.sync += self.perf[name].eq(self.perf[name] + event)
        return m
