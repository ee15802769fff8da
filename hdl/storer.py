"""Storer: words of the VPE to memory, to the activations of the DPE and to the DRE."""

from functools import reduce
from operator import or_

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from golden.isa import ADDR_BITS, SEMAPHORES, StoreTo
from hdl.axi import Bursts, address_layout, error_layout, response_layout, rows_layout, word_beats, write_layout
from hdl.dpe import activation_layout
from hdl.isa import done_layout, transfer_layout
from hdl.params import CONTEXT_BITS, CoreParams, bits_for
from hdl.vpe import output_layout


def dre_layout(p: CoreParams) -> data.StructLayout:
    """A word for the DRE: hash bits (a lane's bit each, lane 0 lowest) or score codes (16 bits a lane).

    target : StoreTo.HASH or SCORE · ctx : context · number : of the row, from the instruction's `addr` on
    row_last : of its row · last : of the last row of an instruction, of a query block for SCORE · keep : highest lane
    in use
    """
    lanes = p.dpe.n_w
    return data.StructLayout(
        {
            "target": 2,
            "ctx": CONTEXT_BITS,
            "number": ADDR_BITS,
            "row_last": 1,
            "last": 1,
            "keep": bits_for(lanes),
            "data": 16 * lanes,
        }
    )


class Storer(wiring.Component):
    """Executes STOREs: takes rows of words from the VPE and writes them to memory in bursts, to activations or hands
    them to the DRE.

    A burst's address goes out with its first beat, so no bus waits for words that are still computed, other than the
    rest of a burst. Up to `lxe.bursts` bursts wait for their responses. Words are written whole, whatever their format
    and length: the lower 2 * lanes bytes of a word of `i`, all 4 * lanes with `wide`.

    Faults: an error response; in the order of the instructions and after the responses to all earlier ones, an address
    or a stride that is no multiple of 2 * lanes bytes (of MEMORY and X), a word outside the activations, a context that
    the DRE has not, rows of HASH too short for its hash bits, `wide` but for MEMORY and SCORE. Nothing more is begun
    after one. While `stop` is high no burst is begun, the rest of one begun goes out with strb 0, and responses are
    taken; once `busy` is low, a reset is safe for the bus.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    c : In(stream of `hdl.isa.transfer_layout`) : instructions; `skip`: done without a transfer
    i : In(stream of `hdl.vpe.output_layout`) : words, in order; a word is taken with its last beat
    x : Out(stream of `hdl.dpe.activation_layout`) : words for StoreTo.X, in the cycle in which they are taken on `i`
    d : Out(stream of `dre_layout`) : words for StoreTo.HASH and SCORE, in the cycle in which they are taken on `i`
    aw : Out(stream of `hdl.axi.address_layout`) : bursts, of beats of `lxe.bus_bytes`
    w : Out(stream of `hdl.axi.write_layout`) : their beats, in order
    b : In(stream of `hdl.axi.response_layout`) : a response to each burst, in order
    done : Out(`hdl.isa.done_layout`) : in the cycle of the response to an instruction's last burst, or the one after
        its last word went to X or the DRE; later where responses to earlier ones are due
    fault : Out(`hdl.axi.error_layout`) : one pulse until a reset
    stop : In(1) : begin nothing, end what was begun
    busy : Out(1) : a burst is under way
    perf : Out(struct of 32-bit counters) : instructions (done), bursts (begun), beats (to memory), words (of `i`),
        waits (cycles in which a word is there and no beat or word goes)

    Latency: a burst and its first beat are offered 2 cycles after its instruction is taken, 1 after its word is there.
        Exact in `sim.storer.StorerTime`.
    Throughput: a beat, or a word to X or the DRE, every cycle, also across rows and instructions, while they are taken
        and `lxe.bursts` bursts cover the memory's latency: n beats each, (bursts - 1) * n - 1 cycles from the last beat
        to the response. A skipped instruction takes a cycle.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: `golden.isa`; V-Rex section V-A (LXE).
    """

    def __init__(self, p: CoreParams):
        self.p = p
        self.beats = word_beats(p)
        super().__init__(
            {
                "c": In(stream.Signature(transfer_layout())),
                "i": In(stream.Signature(output_layout(p.vpe))),
                "x": Out(stream.Signature(activation_layout(p.dpe))),
                "d": Out(stream.Signature(dre_layout(p))),
                "aw": Out(stream.Signature(address_layout())),
                "w": Out(stream.Signature(write_layout(p))),
                "b": In(stream.Signature(response_layout())),
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
            "burst_latency": "2 from an instruction, 1 from a word, to the burst and its first beat",
            "interval": f"{word_beats(p)} cycles a word, {2 * word_beats(p)} a wide one, 1 a word to X or the DRE",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        lanes = p.dpe.n_w
        c = self.c.payload
        failed = Signal()

        # The instruction in hand and its next word.
        work = Signal(transfer_layout())
        active = Signal()
        finish = Signal()
        grid = (2 * lanes).bit_length() - 1
        bad = Signal()
        to_memory = Signal()
        to_hash = Signal()
        to_score = Signal()
        to_dre = Signal()
        bursts = m.submodules.bursts = Bursts(p)
        beat = Signal(range(2 * self.beats))
        word = Signal(len(c.words))
        rows = Signal(len(c.rows))  # after this one
        base = Signal(len(c.to) + 1)
        addr = Signal.like(base)
        m.d.comb += [
            to_memory.eq(c.target == StoreTo.MEMORY),
            to_hash.eq(c.target == StoreTo.HASH),
            to_score.eq(c.target == StoreTo.SCORE),
            to_dre.eq(to_hash | to_score),
            bad.eq(
                (~to_dre & (c.addr[:grid].any() | c.stride[:grid].any()))
                | (c.wide & ~to_memory & ~to_score)
                | (to_dre & (c.to >= p.dre.hcu.n_ctx))
                | (to_hash & (c.words < -(-p.dre.hcu.n_hp // lanes) - 1))
            ),
            self.c.ready.eq((~active | finish) & ~failed & ~self.stop),
            # It is free by then: its last burst began before the instruction's last beat, or with it.
            bursts.c.valid.eq(self.c.valid & self.c.ready & to_memory & ~c.skip & ~bad),
            *(bursts.c.payload[name].eq(c[name]) for name, _ in rows_layout()),
        ]
        is_memory = Signal()
        is_x = Signal()
        is_dre = Signal()
        is_bad = Signal()
        with m.If(~active | finish):
            m.d.sync += [
                active.eq(self.c.valid & self.c.ready),
                work.eq(c),
                is_bad.eq(bad & ~c.skip),
                is_memory.eq(to_memory & ~c.skip & ~bad),
                is_x.eq((c.target == StoreTo.X) & ~c.skip & ~bad),
                is_dre.eq(to_dre & ~c.skip & ~bad),
                word.eq(0),
                rows.eq(c.rows),
                base.eq(c.to),
            ]

        # What waits for its end, in order: bursts for their responses, other words and skipped instructions for theirs.
        pending_layout = data.StructLayout({"burst": 1, "last": 1, "signal": SEMAPHORES})
        pending = m.submodules.pending = SyncFIFO(width=pending_layout.size, depth=p.lxe.bursts)
        entry = Signal(pending_layout)
        head = data.View(pending_layout, pending.r_data)
        error = Signal()
        outside = Signal()
        m.d.comb += [
            pending.w_data.eq(entry),
            pending.r_en.eq(self.b.valid | ~head.burst),
            self.b.ready.eq(pending.r_rdy & head.burst),
            error.eq(self.b.valid & self.b.ready & self.b.payload.resp[1]),
            self.done.valid.eq(pending.r_rdy & pending.r_en & head.last & ~error & ~failed),
            self.done.signal.eq(head.signal),
            self.fault.bus.eq(error & ~failed & ~self.stop),
            outside.eq(is_x & (addr >= p.dpe.x_depth)),
            self.fault.range.eq(active & (is_bad | outside) & ~pending.r_rdy & ~failed & ~self.stop),
            self.busy.eq(pending.r_rdy),
        ]
        m.d.sync += failed.eq(failed | self.fault.bus | self.fault.range)

        # Beats. After `stop` only the rest of a burst goes, of nothing.
        open_ = Signal(name="open")
        left = Signal(len(self.aw.payload.len))  # beats after the next one, while a burst is open
        remaining = Signal.like(left)
        aw_valid = Signal()
        w_valid = Signal()
        w_free = Signal()
        may_begin = Signal()
        gives = Signal()
        begins = Signal()
        whole = Signal()
        last = Signal()
        word_goes = Signal()
        passes = Signal()
        m.d.comb += [
            w_free.eq(~w_valid | self.w.ready),
            may_begin.eq((~aw_valid | self.aw.ready) & pending.w_rdy & ~failed & ~self.stop),
            gives.eq(w_free & Mux(self.stop, open_, active & is_memory & self.i.valid & (open_ | may_begin))),
            begins.eq(gives & ~open_),
            bursts.o.ready.eq(begins),
            remaining.eq(Mux(open_, left, bursts.o.payload.len)),
            whole.eq(beat == Mux(work.wide, 2 * self.beats - 1, self.beats - 1)),
            self.aw.valid.eq(aw_valid),
            self.w.valid.eq(w_valid),
        ]
        # One wire selects each part: registers cannot drive as many gates as a beat has bits.
        bits, parts = 8 * p.lxe.bus_bytes, []
        for k in range(2 * self.beats):
            chosen = Signal(name=f"beat{k}")
            m.d.comb += chosen.eq(beat == k)
            parts.append(self.i.payload.data.as_value().word_select(k, bits) & chosen.replicate(bits))
        part = Signal(bits)
        m.d.comb += part.eq(reduce(or_, parts))
        with m.If(w_free):
            m.d.sync += w_valid.eq(gives)
        with m.If(gives):
            m.d.sync += [
                self.w.payload.data.eq(part),
                self.w.payload.strb.eq(Mux(self.stop, 0, (1 << p.lxe.bus_bytes) - 1)),
                self.w.payload.last.eq(remaining == 0),
                open_.eq(remaining != 0),
                left.eq(remaining - 1),
                beat.eq(Mux(whole, 0, beat + 1)),
            ]
        with m.If(~aw_valid | self.aw.ready):
            m.d.sync += aw_valid.eq(begins)
        with m.If(begins):
            m.d.sync += [self.aw.payload.addr.eq(bursts.o.payload.addr), self.aw.payload.len.eq(bursts.o.payload.len)]

        # Words. A row of scores is as long as the VPE says.
        row_last = Signal()
        m.d.comb += [
            addr.eq(base + word),
            row_last.eq(Mux(is_dre & (work.target == StoreTo.SCORE), self.i.payload.last, word == work.words)),
            last.eq(row_last & (rows == 0)),
            self.d.valid.eq(active & is_dre & self.i.valid & pending.w_rdy),
            self.d.payload.target.eq(work.target),
            self.d.payload.ctx.eq(work.to),
            self.d.payload.number.eq(work.addr),
            self.d.payload.row_last.eq(row_last),
            self.d.payload.last.eq((rows == 0) & (work.wide | (work.target == StoreTo.HASH))),
            self.d.payload.keep.eq(self.i.payload.keep),
            self.d.payload.data.eq(self.i.payload.data.as_value()),
            self.x.valid.eq(active & is_x & ~outside & self.i.valid & pending.w_rdy),
            self.x.payload.addr.eq(addr),
            self.x.payload.data.as_value().eq(self.i.payload.data.as_value()),
            word_goes.eq((gives & ~self.stop & whole) | (self.x.valid & self.x.ready) | (self.d.valid & self.d.ready)),
            self.i.ready.eq(word_goes),
            passes.eq(active & work.skip & pending.w_rdy),
            finish.eq((word_goes & last) | passes),
            pending.w_en.eq(begins | (finish & ~is_memory)),
            entry.burst.eq(begins),
            entry.last.eq(~begins | bursts.o.payload.last),
            entry.signal.eq(work.signal),
        ]
        with m.If(word_goes & ~finish):
            m.d.sync += word.eq(word + 1)
            with m.If(row_last):
                m.d.sync += [
                    word.eq(0),
                    rows.eq(rows - 1),
                    base.eq(base + work.step),
                    work.addr.eq(work.addr + 1),  # a row's number, for the DRE
                ]
        for name, event in (
            ("instructions", self.done.valid),
            ("bursts", begins),
            ("beats", gives),
            ("words", word_goes),
            ("waits", self.i.valid & ~gives & ~word_goes),
        ):
            m.d.sync += self.perf[name].eq(self.perf[name] + event)
        return m
