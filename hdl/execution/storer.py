"""Storer: writes words of the VPE to memory, to the activations of the DPE and to the DRE."""

from functools import reduce
from operator import or_

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS, NUMBER_BITS, REGISTERS, SEMAPHORES, SIGNS, StoreTo
from openvrex.hdl.bus.axi import (
    Bursts,
    address_layout,
    error_layout,
    response_layout,
    rows_layout,
    word_beats,
    write_layout,
)
from openvrex.hdl.execution.dpe import activation_layout
from openvrex.hdl.execution.vpe import output_layout
from openvrex.hdl.instruction_layouts import done_layout, dre_layout, set_layout, transfer_layout
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.unit import Unit

_SHIFT_BITS = 5  # of the shift of a register's number


class Storer(Unit):
    """Executes STOREs: takes rows of words from the VPE and writes them to memory, to the activations or to the DRE.

    Instructions come in on `c`, their words on `i`, and they end in order on `done`. A burst's address goes out with
    its first beat, so the bus only waits for words still being computed when the rest of a burst needs them. Up to
    `lxe.bursts` bursts wait for their responses. Words are written whole, whatever their format and length: the lower 2
    * lanes bytes of a word of `i`, all 4 * lanes with `wide`.

    Faults: an error response. Then, in the order of the instructions and after the responses to all earlier ones: an
    address or a stride that is no multiple of 2 * lanes bytes (of MEMORY and X), a word outside the activations, a
    context that the DRE does not have (HASH), rows of HASH too short for its hash bits, `wide` but for MEMORY and SCORE
    (with `lxe.to_register` X too, with `hcu.newest` HASH). After a fault the storer begins nothing more. While `stop`
    is high it begins no burst, sends the rest of a burst with strb 0, and takes the responses; once `busy` is low, a
    reset is safe for the bus.

    Signs: with `lxe.codes`, an instruction to MEMORY without `wide` and with `step` odd packs signs: bit k of a word of
    memory is the sign of lane k mod lanes in word k / lanes, of `SIGNS` words of `i`, which has it in bit k mod lanes.

    Registers: with `lxe.to_register`, an instruction to X with `wide` sets a register: addr + (n << step), where n is
    bits 0 to 22 of lane 0 of its only word. It faults for more words, registers or bits of a shift than there are.

    Corner cases: an instruction with `skip` writes nothing, but ends in order like all others. A row of SCORE ends with
    the VPE's `last`, whatever the instruction's number of words. With `step` odd it is a part of a row for the DRE.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    c : In(stream of `hdl.instruction_layouts.transfer_layout`) : instructions; `skip`: done without a
        transfer
    i : In(stream of `hdl.execution.vpe.output_layout`) : words, in order; a word is taken with its last beat
    x : Out(stream of `hdl.execution.dpe.activation_layout`) : words for StoreTo.X, in the cycle in which they are
        taken on `i`
    d : Out(stream of `dre_layout`) : words for StoreTo.HASH and SCORE, in the cycle in which they are taken on `i`
    aw : Out(stream of `hdl.bus.axi.address_layout`) : bursts, of beats of `lxe.bus_bytes`
    w : Out(stream of `hdl.bus.axi.write_layout`) : their beats, in order
    b : In(stream of `hdl.bus.axi.response_layout`) : a response to each burst, in order
    store_set : Out(`hdl.instruction_layouts.set_layout`), if `lxe.to_register` : pulse, in the cycle after the word
    done : Out(`hdl.instruction_layouts.done_layout`) : in the cycle of the response to an instruction's last
        burst, or the one after its last word went to X or the DRE; later where responses to earlier ones are due
    fault : Out(`hdl.bus.axi.error_layout`) : one pulse until a reset
    stop : In(1) : begin nothing, finish what has begun
    busy : Out(1) : a burst is in flight
    perf : Out(struct of 32-bit counters) : instructions (done), bursts (begun), beats (to memory), words (of `i`),
        waits (cycles in which a word is there and no beat or word goes)

    Latency: a burst and its first beat are offered 2 cycles after its instruction is taken, 1 after its word is there.
        Exact in `sim.units.storer_time.StorerTime`.
    Throughput: a beat, a word of signs, or a word to X or the DRE, every cycle, also across rows and instructions,
        while they are taken and `lxe.bursts` bursts cover the memory's latency: n beats each, (bursts - 1) * n - 1
        cycles from the last beat to the response, 495 at the `core` preset with bursts of 16 beats. A skipped
        instruction takes a cycle.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: `golden.program.isa`; V-Rex section V-A (LXE).
    """

    COUNTERS = ("instructions", "bursts", "beats", "words", "waits")

    def __init__(self, p: CoreParams):
        self.beats = word_beats(p)
        registers = {"store_set": Out(set_layout())} if p.lxe.to_register else {}
        super().__init__(
            p,
            {
                "c": In(stream.Signature(transfer_layout())),
                "i": In(stream.Signature(output_layout(p.vpe))),
                "x": Out(stream.Signature(activation_layout(p.dpe))),
                "d": Out(stream.Signature(dre_layout(p))),
                "aw": Out(stream.Signature(address_layout())),
                "w": Out(stream.Signature(write_layout(p))),
                "b": In(stream.Signature(response_layout())),
                **registers,
                "done": Out(done_layout()),
                "fault": Out(error_layout()),
                "stop": In(1),
                "busy": Out(1),
            },
        )

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "burst_latency": "2 from an instruction, 1 from a word, to the burst and its first beat",
            "interval": f"{word_beats(p)} cycles a word, {2 * word_beats(p)} a wide one, "
            + (f"{SIGNS} a word of signs, " if p.lxe.codes else "")
            + "1 a word to X or the DRE",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        at, beats, words = _Work(p, self.beats), _Beats(), _Words()
        bursts = m.submodules.bursts = Bursts(p)
        pending = m.submodules.pending = SyncFIFO(width=_pending_layout().size, depth=p.lxe.bursts)

        self._decode(m, bursts, at)
        self._next_instruction(m, at)
        self._end(m, pending, at, words)
        self._send(m, bursts, pending, at, beats)
        self._write_beat(m, bursts, at, beats, self._part(m, at))
        if p.lxe.codes:
            self._collect_signs(m, at, beats)
        self._hand_on(m, bursts, pending, at, beats, words)
        self._next_word(m, at, words)
        if p.lxe.to_register:
            self._set_register(m, at)
        self._count(
            m,
            instructions=self.done.valid,
            bursts=beats.begins,
            beats=beats.gives,
            words=self.i.valid & self.i.ready if p.lxe.codes else words.word_goes,
            waits=self.i.valid & ~beats.gives & ~words.word_goes & ~at.collects,
        )
        return m

    def _decode(self, m: Module, bursts: Bursts, at: "_Work") -> None:
        """Finds the destination of an instruction's words, and whether the instruction is at fault."""
        p, c = self.p, self.c.payload
        lanes, hcu = p.dpe.n_w, p.dre.hcu
        grid = (2 * lanes).bit_length() - 1
        off_grid: Value = ~at.to_dre & (c.addr[:grid].any() | c.stride[:grid].any())
        wide: Value = c.wide & ~at.to_memory & ~at.to_score
        if p.lxe.to_register:
            many = c.rows.any() | c.words.any() | c.to[bits_for(REGISTERS) :].any() | c.step[_SHIFT_BITS:].any()
            m.d.comb += at.to_register.eq((c.target == StoreTo.X) & c.wide)
            off_grid = Mux(at.to_register, many, off_grid)
            wide &= ~at.to_register
        if hcu.newest:
            wide &= ~at.to_hash
        m.d.comb += [
            at.to_memory.eq(c.target == StoreTo.MEMORY),
            at.to_hash.eq(c.target == StoreTo.HASH),
            at.to_score.eq(c.target == StoreTo.SCORE),
            at.to_dre.eq(at.to_hash | at.to_score),
            at.bad.eq(
                off_grid
                | wide
                | (at.to_hash & (c.addr >= hcu.n_ctx))
                | (at.to_hash & (c.words < -(-hcu.n_hp // lanes) - 1))
            ),
            self.c.ready.eq((~at.active | at.finish) & ~at.failed & ~self.stop),
            # An instruction's last burst begins no later than its last beat, so the burst cutter is free for the next.
            bursts.c.valid.eq(self.c.valid & self.c.ready & at.to_memory & ~c.skip & ~at.bad),
            *(bursts.c.payload[name].eq(c[name]) for name, _ in rows_layout()),
        ]

    def _next_instruction(self, m: Module, at: "_Work") -> None:
        c = self.c.payload
        to_x: Value = c.target == StoreTo.X
        if self.p.lxe.to_register:
            to_x &= ~c.wide
            with m.If(~at.active | at.finish):
                m.d.sync += at.is_register.eq(at.to_register & ~c.skip & ~at.bad)
        with m.If(~at.active | at.finish):
            m.d.sync += [
                at.active.eq(self.c.valid & self.c.ready),
                at.work.eq(c),
                at.is_bad.eq(at.bad & ~c.skip),
                at.is_memory.eq(at.to_memory & ~c.skip & ~at.bad),
                *([at.is_signs.eq(at.to_memory & ~c.skip & ~at.bad & ~c.wide & c.step[0])] if self.p.lxe.codes else []),
                at.is_x.eq(to_x & ~c.skip & ~at.bad),
                at.is_dre.eq(at.to_dre & ~c.skip & ~at.bad),
                at.word.eq(0),
                at.rows.eq(c.rows),
                at.base.eq(c.to),
            ]

    def _end(self, m: Module, pending: SyncFIFO, at: "_Work", words: "_Words") -> None:
        """Ends instructions in order: bursts with their responses, other words and skipped instructions at once."""
        head = data.View(_pending_layout(), pending.r_data)
        error = Signal()
        m.d.comb += [
            pending.w_data.eq(words.entry),
            pending.r_en.eq(self.b.valid | ~head.burst),
            self.b.ready.eq(pending.r_rdy & head.burst),
            error.eq(self.b.valid & self.b.ready & self.b.payload.resp[1]),
            self.done.valid.eq(pending.r_rdy & pending.r_en & head.last & ~error & ~at.failed),
            self.done.signal.eq(head.signal),
            self.fault.bus.eq(error & ~at.failed & ~self.stop),
            at.outside.eq(at.is_x & (at.addr >= self.p.dpe.x_depth)),
            self.fault.range.eq(at.active & (at.is_bad | at.outside) & ~pending.r_rdy & ~at.failed & ~self.stop),
            self.busy.eq(pending.r_rdy),
        ]
        m.d.sync += at.failed.eq(at.failed | self.fault.bus | self.fault.range)

    def _send(self, m: Module, bursts: Bursts, pending: SyncFIFO, at: "_Work", beats: "_Beats") -> None:
        """Decides which beat goes. After `stop` only the rest of a burst goes, with no byte enabled."""
        open_, w_free = beats.open, beats.w_free
        may_begin = Signal()
        m.d.comb += [
            w_free.eq(~beats.w_valid | self.w.ready),
            may_begin.eq((~beats.aw_valid | self.aw.ready) & pending.w_rdy & ~at.failed & ~self.stop),
            beats.gives.eq(
                w_free
                & Mux(self.stop, open_, at.active & at.is_memory & at.sign_last & self.i.valid & (open_ | may_begin))
            ),
            beats.begins.eq(beats.gives & ~open_),
            bursts.o.ready.eq(beats.begins),
            beats.remaining.eq(Mux(open_, beats.left, bursts.o.payload.len)),
            at.whole.eq(at.beat == Mux(at.work.wide, 2 * self.beats - 1, self.beats - 1)),
            self.aw.valid.eq(beats.aw_valid),
            self.w.valid.eq(beats.w_valid),
        ]

    def _part(self, m: Module, at: "_Work") -> Signal:
        """Selects the beat's part of the word.

        One signal selects each part: a single register cannot drive as many gates as a beat has bits.
        """
        bits, parts = 8 * self.p.lxe.bus_bytes, []
        for k in range(2 * self.beats):
            chosen = comb(m, f"beat{k}", at.beat == k)
            parts.append(self.i.payload.data.as_value().word_select(k, bits) & chosen.replicate(bits))
        return comb(m, "part", reduce(or_, parts), bits)

    def _write_beat(self, m: Module, bursts: Bursts, at: "_Work", beats: "_Beats", part: Signal) -> None:
        """Registers the beat that is offered, and with a burst's first beat its address."""
        burst, remaining = bursts.o.payload, beats.remaining
        with m.If(beats.w_free):
            m.d.sync += beats.w_valid.eq(beats.gives)
        with m.If(beats.gives):
            with m.If(~at.is_signs):
                m.d.sync += self.w.payload.data.eq(part)
            m.d.sync += [
                self.w.payload.strb.eq(Mux(self.stop, 0, (1 << self.p.lxe.bus_bytes) - 1)),
                self.w.payload.last.eq(remaining == 0),
                beats.open.eq(remaining != 0),
                beats.left.eq(remaining - 1),
                at.beat.eq(Mux(at.whole, 0, at.beat + 1)),
            ]
        with m.If(~beats.aw_valid | self.aw.ready):
            m.d.sync += beats.aw_valid.eq(beats.begins)
        with m.If(beats.begins):
            m.d.sync += [self.aw.payload.addr.eq(burst.addr), self.aw.payload.len.eq(burst.len)]

    def _collect_signs(self, m: Module, at: "_Work", beats: "_Beats") -> None:
        """Takes words of signs into the register of the next beat, which goes with the last of them."""
        lanes, many = self.p.dpe.n_w, SIGNS // self.beats
        part = Signal(range(many))
        with m.If(at.is_signs):
            m.d.comb += at.sign_last.eq(part == many - 1)
        waits = at.active & at.is_signs & self.i.valid & ~at.sign_last
        m.d.comb += at.collects.eq(waits & beats.w_free & ~at.failed & ~self.stop)
        takes = comb(m, "takes_signs", at.is_signs & (at.collects | (beats.gives & ~self.stop)))
        with m.If(takes):
            m.d.sync += part.eq(Mux(at.sign_last, 0, part + 1))
        for k in range(many):
            with m.If(takes & (part == k)):
                own = self.w.payload.data.word_select(k, lanes)
                m.d.sync += own.eq(self.i.payload.data.as_value()[:lanes])

    def _hand_on(
        self, m: Module, bursts: Bursts, pending: SyncFIFO, at: "_Work", beats: "_Beats", words: "_Words"
    ) -> None:
        """Hands words to X and to the DRE. The VPE tells the length of a row of scores."""
        work, i, begins, word_goes = at.work, self.i.payload, beats.begins, words.word_goes
        last = Signal()  # the word is the instruction's last
        passes = Signal()  # the instruction is skipped
        goes = (beats.gives & ~self.stop & at.whole) | (self.x.valid & self.x.ready) | (self.d.valid & self.d.ready)
        if self.p.lxe.to_register:
            m.d.comb += at.sets.eq(at.active & at.is_register & self.i.valid & pending.w_rdy)
            goes |= at.sets
        m.d.comb += [
            at.addr.eq(at.base + at.word),
            words.row_last.eq(Mux(at.is_dre & (work.target == StoreTo.SCORE), i.last, at.word == work.words)),
            last.eq(words.row_last & (at.rows == 0)),
            self.d.valid.eq(at.active & at.is_dre & self.i.valid & pending.w_rdy),
            self.d.payload.target.eq(work.target),
            self.d.payload.ctx.eq(work.addr),
            *([self.d.payload.newest.eq(work.wide)] if self.p.dre.hcu.newest else []),
            self.d.payload.row_last.eq(words.row_last & ~((work.target == StoreTo.SCORE) & work.step[0])),
            self.d.payload.last.eq((at.rows == 0) & (work.wide | (work.target == StoreTo.HASH))),
            self.d.payload.keep.eq(i.keep),
            self.d.payload.data.eq(i.data.as_value()),
            self.x.valid.eq(at.active & at.is_x & ~at.outside & self.i.valid & pending.w_rdy),
            self.x.payload.addr.eq(at.addr),
            self.x.payload.data.as_value().eq(i.data.as_value()),
            word_goes.eq(goes),
            self.i.ready.eq(word_goes | at.collects | (at.is_signs & beats.gives & ~self.stop)),
            passes.eq(at.active & work.skip & pending.w_rdy),
            at.finish.eq((word_goes & last) | passes),
            pending.w_en.eq(begins | (at.finish & ~at.is_memory)),
            words.entry.burst.eq(begins),
            words.entry.last.eq(~begins | bursts.o.payload.last),
            words.entry.signal.eq(work.signal),
        ]

    def _set_register(self, m: Module, at: "_Work") -> None:
        """Sets a register in the cycle after its word goes."""
        work, number = at.work, self.i.payload.data.as_value()[:NUMBER_BITS]
        shifted = comb(m, "shifted", number << work.step[:_SHIFT_BITS], ADDR_BITS)
        m.d.sync += self.store_set.valid.eq(at.sets)
        with m.If(at.sets):
            m.d.sync += [self.store_set.to.eq(work.to), self.store_set.data.eq(work.addr + shifted)]

    def _next_word(self, m: Module, at: "_Work", words: "_Words") -> None:
        with m.If(words.word_goes & ~at.finish):
            m.d.sync += at.word.eq(at.word + 1)
            with m.If(words.row_last):
                m.d.sync += [
                    at.word.eq(0),
                    at.rows.eq(at.rows - 1),
                    at.base.eq(at.base + at.work.step),
                ]


def _pending_layout() -> data.StructLayout:
    return data.StructLayout({"burst": 1, "last": 1, "signal": SEMAPHORES})


class _Work:
    """The current instruction and its next word."""

    def __init__(self, p: CoreParams, beats: int):
        c = transfer_layout()
        self.work = Signal(c)
        self.active = Signal()
        self.finish = Signal()
        # Of the instruction on offer.
        self.bad = Signal()
        self.to_memory = Signal()
        self.to_hash = Signal()
        self.to_score = Signal()
        self.to_dre = Signal()
        # Of the current instruction; all low if it is skipped.
        self.is_memory = Signal()
        self.is_x = Signal()
        self.is_dre = Signal()
        self.is_bad = Signal()
        if p.lxe.to_register:
            self.to_register = Signal()
            self.is_register = Signal()
            self.sets = Signal()  # the word goes to a register
        # With `lxe.codes`: the instruction packs signs, a word of them only is collected, it is the last of its beat.
        self.is_signs, self.collects = (Signal(name=n) if p.lxe.codes else Const(0) for n in ("is_signs", "collects"))
        self.sign_last = Signal(init=1) if p.lxe.codes else Const(1)
        self.outside = Signal()  # the word is outside the activations
        self.failed = Signal()  # after a fault: begin nothing more
        self.beat = Signal(range(2 * beats))
        self.whole = Signal()  # the beat is the word's last
        self.word = Signal(c["words"].width)
        self.rows = Signal(c["rows"].width)  # rows after this one
        self.base = Signal(c["to"].width + 1)
        self.addr = Signal(c["to"].width + 1)


class _Beats:
    """The beat that goes to memory, and its burst."""

    def __init__(self):
        self.open = Signal()  # a burst has begun and has beats left
        self.left = Signal(address_layout()["len"].width)  # beats after the next one, while a burst is open
        self.remaining = Signal(address_layout()["len"].width)  # beats after the next one
        self.aw_valid = Signal()
        self.w_valid = Signal()
        self.w_free = Signal()
        self.gives = Signal()  # a beat goes
        self.begins = Signal()  # the beat begins a burst


class _Words:
    """The word that goes, and the entry for its end."""

    def __init__(self):
        self.word_goes = Signal()
        self.row_last = Signal()
        self.entry = Signal(_pending_layout())
