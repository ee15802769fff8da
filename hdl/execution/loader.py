"""Loader: reads words from memory into the scratchpads of the DPE and to the VPE."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.packed_weights import GROUPS, Packing, Rule
from openvrex.golden.program.isa import SEMAPHORES, LoadTo
from openvrex.hdl.bus.axi import Bursts, address_layout, error_layout, read_layout, rows_layout, word_beats
from openvrex.hdl.execution.code_expander import CodeExpander
from openvrex.hdl.execution.dpe import activation_layout, weight_layout
from openvrex.hdl.execution.vpe import word_layout
from openvrex.hdl.execution.weight_expander import WeightExpander, slots
from openvrex.hdl.instruction_layouts import done_layout, transfer_layout
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.unit import Unit


def code_slice(p: CoreParams) -> tuple[int, int]:
    """The fewest beats that hold whole words of W of codes, and how many words: a LOAD of codes takes them at once."""
    own = p.lxe_format().code_words
    size = own.places * own.code_bytes
    beats = max(1, size // p.lxe.bus_bytes)
    return beats, beats * p.lxe.bus_bytes // size


class Loader(Unit):
    """Executes LOADs: reads rows of words in bursts, and sends each word to its scratchpad or to the VPE.

    Instructions come in on `c` and end in order on `done`. Bursts go out while the data of earlier ones still come,
    also across instructions: up to `lxe.bursts` are in flight, of up to `lxe.queue` instructions and the one before
    them. Rows without a gap are cut into bursts as one. The loader has no buffer for data: it takes a beat when its
    word can go.

    With `lxe.codes`, a LOAD to W with `wide` reads words of codes, a word a row: each goes to W as `CodeWords.many`
    words, expanded, a cycle each. They go beat by beat, if a beat holds a whole one (`code_slice`). Those of all rows
    fill tree after tree, `words` words of each. And a row of one word with stride 0 is read once: its word goes to all
    its trees in one cycle.

    With `lxe.weights`, a LOAD to W with `wide` and a stride of 1 to 7 reads adjacent words of 4-bit or 8-bit weights
    (`golden.arithmetic.packed_weights`), whose words of W go as those of codes do. The loader holds a word of scales,
    and takes the rest beat by beat: each is one word of W or several, of which one enters the expander
    (`hdl.execution.weight_expander`) a cycle. The next instruction's words wait until the last one has left it.

    Faults come in the order of the words: an error response; an address or a stride that is no multiple of 2 * lanes
    bytes; a word outside its scratchpad; a COLUMN row of more than one word; `wide` but for LoadTo.VECTOR
    (and, with `lxe.codes` or `lxe.weights`, W); a word of scales that no weights follow. The pulse
    comes in the cycle in which the beat is taken, or in which it or the instruction would have been next. The loader
    does not hand on the word at fault, and takes nothing more until `stop`. While `stop` is high it begins no burst,
    and drops the beats in flight; once `busy` is low, a reset is safe for the bus.

    Corner cases: an instruction with `skip` reads nothing, but ends in order like all others.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    c : In(stream of `hdl.instruction_layouts.transfer_layout`) : instructions; `skip`: done without a
        transfer
    ar : Out(stream of `hdl.bus.axi.address_layout`) : bursts, of beats of `lxe.bus_bytes`
    r : In(stream of `hdl.bus.axi.read_layout`) : their beats, in order
    w : Out(stream of `hdl.execution.dpe.weight_layout`) : words for LoadTo.W and COLUMN; tree is 0 for a column, lane
        for others
    x : Out(stream of `hdl.execution.dpe.activation_layout`) : words for LoadTo.X
    v : Out(stream of `hdl.execution.vpe.word_layout`) : words for LoadTo.VECTOR; above a BF16 word the upper half is
        undefined
    done : Out(`hdl.instruction_layouts.done_layout`) : in the cycle in which an instruction's last word is
        taken
    fault : Out(`hdl.bus.axi.error_layout`) : one pulse until a reset
    stop : In(1) : begin nothing, drop the beats that come
    busy : Out(1) : a burst is in flight
    perf : Out(struct of 32-bit counters) : instructions (done), bursts (begun), beats (taken), words (handed on), waits
        (cycles in which a beat is there and not taken)

    Latency: an instruction's first burst is offered 2 cycles after it is taken; a word is offered the cycle after its
        last beat is taken, a word of packed weights 5 cycles later; a beat can be taken 2 cycles after its instruction.
        Behind these the next instruction's words wait for these 5 cycles, too. Exact in
        `sim.units.loader_time.LoaderTime`.
    Throughput: a beat a cycle, also across rows and instructions, while words are taken and `lxe.bursts` bursts, of at
        most `lxe.queue` instructions, cover the memory's latency: n beats each, (bursts - 1) * n - 1 cycles from `ar`
        to the first beat, 495 at the `core` preset with bursts of 16 beats. A skipped instruction takes a cycle.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: `golden.program.isa`; V-Rex section V-A (LXE).
    """

    COUNTERS = ("instructions", "bursts", "beats", "words", "waits")

    def __init__(self, p: CoreParams):
        self.beats = word_beats(p)
        self.codes = p.lxe_format().code_words if p.lxe.codes else None
        self.packs = p.lxe.weights
        self.parts = p.lxe.codes > 0 or self.packs  # words may go to W part after part
        self.slice_beats, self.slice_words = code_slice(p) if self.codes else (1, 0)
        # Words of W of a beat of 4-bit weights, 2 or more; of 8-bit ones half as many.
        self.many = 2 * p.lxe.bus_bytes // p.dpe.n_w if self.packs else 0
        super().__init__(
            p,
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
            },
        )

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        beats = word_beats(p)
        codes = ""
        if p.lxe.codes:
            some, words = code_slice(p)
            codes = f"{beats // some * (words + some - 1)} a word of codes, "
        many = 2 * p.lxe.bus_bytes // p.dpe.n_w
        lost = " or ".join(str(1 + max(0, beats - n)) for n in (many, many // 2))
        scales = f"1 a word of W of 4-bit or 8-bit weights and {lost} a word of scales, "
        codes += scales if p.lxe.weights else ""
        late = f", {1 + WeightExpander.LATENCY} of packed weights"
        return {
            "burst_latency": "2 from an instruction to its first burst",
            "word_latency": "1 from a word's last beat to the word" + (late if p.lxe.weights else ""),
            "interval": f"{beats} cycles a word, {2 * beats} a wide one, {codes}1 a skipped instruction",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        asked, at, out = _Bursts(p), _Work(p, self.beats), _Out(p, max(self.slice_words, self.many))
        bursts = m.submodules.bursts = Bursts(p, joined=True)
        queue = m.submodules.queue = SyncFIFO(width=_work_layout(p).size, depth=p.lxe.queue)

        self._accept(m, bursts, queue, asked, out)
        self._ask(m, bursts, asked, out)
        self._place(m, at)
        self._take(m, at, out)
        self._fill(m, at, out)
        self._next_instruction(m, queue, at, out)
        self._hand_on(m, out)
        self._count(
            m,
            instructions=self.done.valid,
            bursts=asked.asks,
            beats=self.r.valid & self.r.ready,
            words=out.full & out.went if self.parts else out.taken & out.sends,
            waits=self.r.valid & ~self.r.ready,
        )
        return m

    def _accept(self, m: Module, bursts: Bursts, queue: SyncFIFO, asked: "_Bursts", out: "_Out") -> None:
        """Gives the rows of an instruction to the burst cutter, and queues the fields that its words need."""
        c, bad, entry = self.c.payload, asked.bad, asked.entry
        grid = (2 * self.p.dpe.n_w).bit_length() - 1
        m.d.comb += [
            bad.eq(
                c.addr[:grid].any()
                | (c.stride[:grid].any() & ~asked.packed if self.packs else c.stride[:grid].any())
                | (c.wide & (c.target != LoadTo.VECTOR) & ~asked.coded)
                | ((c.target == LoadTo.COLUMN) & (c.words != 0))
            ),
            asked.accept.eq(~out.failed & ~self.stop & queue.w_rdy),
            self.c.ready.eq(asked.accept & bursts.c.ready),
            bursts.c.valid.eq(self.c.valid & asked.accept & ~c.skip & ~bad),
            queue.w_en.eq(self.c.valid & self.c.ready),
            queue.w_data.eq(entry),
            *(entry[name].eq(c[name]) for name in _KEPT),
            entry.bad.eq(bad),
            *(bursts.c.payload[name].eq(c[name]) for name, _ in rows_layout()),
        ]
        to_w = c.target == LoadTo.W
        if self.packs:
            m.d.comb += [
                asked.packed.eq(to_w & c.wide & ~c.stride[3:].any() & c.stride[:3].any()),
                entry.packed.eq(asked.packed),
                entry.packing.eq(c.stride),
            ]
        if self.parts:
            m.d.comb += [
                asked.coded.eq(to_w & c.wide if self.codes else asked.packed),
                entry.coded.eq(asked.coded),
                entry.wide.eq(c.wide & ~asked.coded),  # a word of codes has the bytes of a word of BF16 numbers
                bursts.c.payload.wide.eq(entry.wide),
            ]
        if self.codes:
            m.d.comb += entry.once.eq(to_w & ~c.wide & (c.stride == 0) & (c.words == 0) & (c.rows < self.p.dpe.n_h))
        if self.parts:
            with m.If(asked.coded):
                m.d.comb += bursts.c.payload.words.eq(0)
        if self.codes:
            with m.If(entry.once):
                m.d.comb += bursts.c.payload.rows.eq(0)
        if self.packs:
            with m.If(asked.packed):
                m.d.comb += bursts.c.payload.stride.eq(2 * self.p.dpe.n_w)

    def _ask(self, m: Module, bursts: Bursts, asked: "_Bursts", out: "_Out") -> None:
        """Offers bursts as long as the number in flight allows."""
        asks, offered, burst = asked.asks, asked.offered, bursts.o.payload
        ends = Signal()
        m.d.comb += [
            bursts.o.ready.eq(
                (asked.under_way != self.p.lxe.bursts) & (~offered | self.ar.ready) & ~out.failed & ~self.stop
            ),
            asks.eq(bursts.o.valid & bursts.o.ready),
            ends.eq(self.r.valid & self.r.ready & self.r.payload.last),
            self.ar.valid.eq(offered),
            self.busy.eq(asked.under_way != 0),
        ]
        m.d.sync += asked.under_way.eq(asked.under_way + asks - ends)
        with m.If(~offered | self.ar.ready):
            m.d.sync += offered.eq(asks)
        with m.If(asks):
            m.d.sync += [self.ar.payload.addr.eq(burst.addr), self.ar.payload.len.eq(burst.len)]

    def _place(self, m: Module, at: "_Work") -> None:
        """Finds the destination of the word whose beats come."""
        dpe, work = self.p.dpe, at.work
        m.d.comb += [
            at.column.eq(work.target == LoadTo.COLUMN),
            at.to_w.eq((work.target == LoadTo.W) | at.column),
            at.to_x.eq(work.target == LoadTo.X),
            at.to_v.eq(work.target == LoadTo.VECTOR),
            at.last.eq(at.row_last & (at.rows == 0)),
            at.outside.eq(work.bad | (at.to_w & (at.addr >= dpe.w_depth)) | (at.to_x & (at.addr >= dpe.x_depth))),
        ]
        if self.codes:
            with m.If(work.once):
                m.d.comb += at.last.eq(1)
        if self.parts:
            with m.If(work.coded):  # each part finds its own place
                m.d.comb += at.outside.eq(work.bad | (at.scales & at.last) if self.packs else work.bad)
            own = at.beat[: (self.slice_beats - 1).bit_length()]  # the beat's number in its slice of codes
            m.d.comb += [
                at.place.eq(Mux(work.coded, own, at.beat)),
                at.loads.eq(Mux(work.coded, own.all() if len(own) else 1, at.whole)),
            ]
        if self.packs:
            # The words in hand need scales of the last beat.
            m.d.comb += at.early.eq(at.scales & ~at.whole & ~at.first)
            with m.If(work.packed):  # each beat of weights goes to the first places
                m.d.comb += [at.place.eq(0), at.loads.eq(~at.scales)]

    def _take(self, m: Module, at: "_Work", out: "_Out") -> None:
        """Takes a beat if its word has a place, or drops it after `stop`."""
        word, work = out.out, at.work
        works = Signal()
        takes = Signal()
        error = Signal()
        passes = Signal()  # the instruction is skipped
        m.d.comb += [
            out.sends.eq(word.to_w | word.to_x | word.to_v),
            out.went.eq(
                (word.to_w & (Mux(word.packed, out.moves, self.w.ready) if self.packs else self.w.ready) & ~out.stays)
                | (word.to_x & self.x.ready)
                | (word.to_v & self.v.ready)
            ),
            out.taken.eq(out.full & (out.leaves if self.packs else (out.went | ~out.sends) & out.ends)),
            out.free.eq(~out.full | out.taken),
            works.eq(at.active & ~out.failed & ~self.stop),
            self.fault.range.eq((works & ~work.skip & at.outside) | out.outside),
            takes.eq(works & ~work.skip & ~at.outside & (out.free | at.early if self.packs else out.free)),
            self.r.ready.eq(takes | self.stop),
            error.eq(takes & self.r.valid & self.r.payload.resp[1]),
            self.fault.bus.eq(error),
            at.whole.eq(at.beat == Mux(work.wide, 2 * self.beats - 1, self.beats - 1)),
            out.fills.eq(takes & self.r.valid & ~error),
            passes.eq(works & work.skip & out.free),
            out.loads.eq((out.fills & (at.loads if self.parts else at.whole)) | passes),
            out.finish.eq((out.fills & at.whole & at.last) | passes),
            self.done.valid.eq(out.taken & word.last),
            self.done.signal.eq(word.signal),
        ]
        m.d.sync += out.failed.eq(out.failed | self.fault.bus | self.fault.range)

    def _fill(self, m: Module, at: "_Work", out: "_Out") -> None:
        """Collects the beats of a word in the register from which it is offered."""
        word, work = out.out, at.work
        beat = self.r.payload.data
        with m.If(out.fills):
            m.d.sync += at.beat.eq(Mux(at.whole, 0, at.beat + 1))
        with m.If(out.fills & ~at.scales if self.packs else out.fills):
            m.d.sync += out.numbers.word_select(at.place if self.parts else at.beat, len(beat)).eq(beat)
        if self.packs:  # scales have a register of their own
            with m.If(out.fills & at.scales):
                m.d.sync += out.scales.word_select(at.beat[: bits_for(self.beats)], len(beat)).eq(beat)
        with m.If(out.free):
            m.d.sync += out.full.eq(out.loads)
        with m.If(out.loads):
            m.d.sync += [
                word.to_w.eq(at.to_w & ~work.skip),
                word.to_x.eq(at.to_x & ~work.skip),
                word.to_v.eq(at.to_v & ~work.skip),
                word.column.eq(at.column),
                word.last.eq((at.last & at.whole if self.parts else at.last) | work.skip),
                word.tree.eq(Mux(work.once, work.rows, at.tree) if self.codes else at.tree),
                word.addr.eq(at.addr),
                word.signal.eq(work.signal),
            ]
            if self.codes:
                m.d.sync += word.upto.eq(work.once & ~work.skip)
            if self.parts:
                more = Mux(work.coded, self.slice_words - 1, 0) if self.codes else Const(0)
                more = Mux(work.packed, Mux(at.byte, self.many // 2, self.many) - 1, more) if self.packs else more
                m.d.comb += [out.begins.eq(at.first), out.to.eq(work.to), out.words.eq(work.words)]
                m.d.sync += [
                    at.first.eq(0),
                    word.coded.eq(work.coded & ~work.skip),
                    word.more.eq(Mux(work.skip, 0, more)),
                    word.words.eq(work.words),
                    word.step.eq(work.step),
                ]
            if self.packs:
                own = {
                    "packed": work.packed & ~work.skip,
                    "rule": work.packing[:2],
                    "groups": work.packing[2] & ~at.byte,
                }
                m.d.sync += [word[name].eq(value) for name, value in own.items()]
        with m.If((out.fills & at.whole) | (out.loads & work.skip) if self.parts else out.loads):
            m.d.sync += [at.word.eq(at.word + 1), at.addr.eq(at.addr + 1)]
            self._next_row(m, at)
        if self.packs:
            self._next_of_pack(m, at, out)

    def _next_of_pack(self, m: Module, at: "_Work", out: "_Out") -> None:
        """Counts the words of a pack of weights, of which scales are the first."""
        packing = at.work.packing
        lengths = [[Packing(rule, group).words - 2 for rule in (Rule.SCALE, Rule.ZERO)] for group in GROUPS]
        length = Mux(packing[2], *(Mux(packing[1], pair, one) for one, pair in reversed(lengths)))
        length = Mux(at.byte, Packing(Rule.BYTE).words - 2, length)
        with m.If(out.fills & at.whole & at.work.packed):
            m.d.sync += [at.scales.eq(~at.scales & (at.left == 0)), at.left.eq(Mux(at.scales, length, at.left - 1))]
        m.d.comb += out.new_pack.eq(out.fills & at.whole & at.scales)

    def _next_row(self, m: Module, at: "_Work") -> None:
        """Moves to the next row: to the next tree or, behind the last tree, to the next address."""
        lanes, work = self.p.dpe.n_w, at.work
        step = Mux(at.to_x | (at.tree == lanes - 1), Mux(at.column, 1, work.step), 0)
        base = comb(m, "row_base", at.base + step, len(at.base))
        with m.If(at.row_last):
            m.d.sync += [at.word.eq(0), at.rows.eq(at.rows - 1), at.tree.eq(at.tree + 1)]
            m.d.sync += [at.base.eq(base), at.addr.eq(base)]
            with m.If(at.tree == lanes - 1):
                m.d.sync += at.tree.eq(0)

    def _next_instruction(self, m: Module, queue: SyncFIFO, at: "_Work", out: "_Out") -> None:
        m.d.comb += queue.r_en.eq(~at.active | out.finish)
        head = data.View(_work_layout(self.p), queue.r_data)
        with m.If(queue.r_en):
            m.d.sync += [
                at.active.eq(queue.r_rdy),
                at.work.eq(head),
                at.word.eq(0),
                at.rows.eq(head.rows),
                at.tree.eq(0),
                at.base.eq(head.to),
                at.addr.eq(head.to),
            ]
            if self.parts:
                m.d.sync += at.first.eq(1)
            if self.packs:
                m.d.sync += at.scales.eq(head.packed)

    def _hand_on(self, m: Module, out: "_Out") -> None:
        """Offers the word on the port of its destination."""
        word, full, numbers = out.out, out.full, out.numbers
        m.d.comb += [
            self.w.valid.eq(
                full & word.to_w & ~out.stays & ~word.packed if self.packs else full & word.to_w & ~out.stays
            ),
            self.w.payload.tree.eq(Mux(word.column, 0, word.tree)),
            self.w.payload.lane.eq(Mux(word.column, word.tree, 0)),
            self.w.payload.upto.eq(word.upto if self.codes else 0),
            self.w.payload.addr.eq(word.addr),
            self.w.payload.column.eq(word.column),
            self.x.valid.eq(full & word.to_x),
            self.x.payload.addr.eq(word.addr),
            self.v.valid.eq(full & word.to_v),
            *(port.payload.data.as_value().eq(numbers) for port in (self.w, self.x)),
            self.v.payload.as_value().eq(numbers),
        ]
        if self.parts:
            self._hand_on_parts(m, out)

    def _hand_on_parts(self, m: Module, out: "_Out") -> None:
        """Offers a word of codes or of 4-bit weights part after part, expanded."""
        word = out.out
        part = Signal.like(word.more)
        goes = comb(m, "part_goes", out.full & out.went)
        if self.codes:
            m.submodules.expander = expander = CodeExpander(self.codes)
            size = 8 * self.codes.places * self.codes.code_bytes
            codes = comb(m, "codes", out.numbers, self.slice_words * size)
            m.d.comb += expander.i.as_value().eq(codes.word_select(part[: bits_for(self.slice_words)], size))
        m.d.comb += out.ends.eq(part == word.more)
        addr, outside = self._place_part(m, out, goes & word.coded)
        stays = word.coded & outside & ~out.sent if self.packs else word.coded & outside
        m.d.comb += [
            out.stays.eq(stays),
            out.outside.eq(out.full & stays & ~out.failed & ~self.stop),
        ]
        if self.codes:
            with m.If(word.coded):
                m.d.comb += [
                    self.w.payload.tree.eq(out.tree),
                    self.w.payload.addr.eq(addr),
                    self.w.payload.data.eq(expander.o),
                ]
        if self.packs:
            self._hand_on_weights(m, out, part, addr, goes)
        with m.If(goes):
            m.d.sync += part.eq(Mux(out.ends, 0, part + 1))

    def _hand_on_weights(self, m: Module, out: "_Out", part: Signal, addr: Signal, goes: Value) -> None:
        """Moves a beat's words of packed weights into the expander, and hands on those that leave it."""
        dpe, word = self.p.dpe, out.out
        m.submodules.weights = expander = WeightExpander(dpe)
        beat = comb(m, "weights_beat", out.numbers, 8 * self.p.lxe.bus_bytes)
        four = beat.word_select(part[: bits_for(self.many)], 4 * dpe.n_w)
        eight = beat.word_select(part[: bits_for(self.many // 2)], 8 * dpe.n_w) if self.many > 2 else beat
        q = Mux(word.rule == 0, eight, Cat(Cat(four.word_select(lane, 4), Const(0, 4)) for lane in range(dpe.n_w)))
        move = comb(m, "weights_move", ~expander.o.valid | self.w.ready)
        index = Signal(range(Packing(Rule.SCALE, GROUPS[1]).made))  # of the word of W in its pack
        with m.If(goes):
            m.d.sync += index.eq(index + 1)
        with m.If(out.new_pack):
            m.d.sync += index.eq(0)
        lanes, place = dpe.n_w, bits_for(dpe.n_w)  # of a halfword of scales
        for k in range(slots(dpe)):
            number = comb(m, f"number{k}", index * lanes + k * GROUPS[0], len(index) + lanes.bit_length() - 1)
            group = comb(m, f"group{k}", Mux(word.groups, *(number[g.bit_length() - 1 :] for g in reversed(GROUPS))))
            pair = comb(m, f"pair{k}", group << 1, place)
            scale = Mux(word.rule[1], pair, group[:place])
            m.d.comb += [
                expander.i.scale[k].eq(out.scales.word_select(scale, 16)),
                expander.i.other[k].eq(out.scales.word_select(pair | 1, 16)),
            ]
        m.d.comb += [
            expander.move.eq(move),
            out.moves.eq(move & ~out.sent),
            expander.i.valid.eq(goes & word.packed),
            expander.i.rule.eq(word.rule),
            expander.i.q.as_value().eq(q),
            expander.i.tree.eq(out.tree),
            expander.i.addr.eq(addr),
            # The last word of an instruction stays until it has left the expander, so that nothing overtakes it.
            out.leaves.eq(
                Mux(
                    word.packed & word.last,
                    out.sent & self.w.ready & ~expander.more,
                    (out.went | ~out.sends) & out.ends,
                )
            ),
        ]
        with m.If(out.taken):
            m.d.sync += out.sent.eq(0)
        with m.Elif(goes & word.packed & word.last & out.ends):
            m.d.sync += out.sent.eq(1)
        with m.If(expander.o.valid):
            m.d.comb += [
                self.w.valid.eq(1),
                self.w.payload.tree.eq(expander.o.tree),
                self.w.payload.addr.eq(expander.o.addr),
                self.w.payload.data.eq(expander.o.data),
            ]

    def _place_part(self, m: Module, out: "_Out", goes: Value) -> tuple[Signal, Signal]:
        """The address of a part in its tree, and whether it is outside. `goes`: a part goes."""
        dpe, word = self.p.dpe, out.out
        base = Signal(transfer_layout()["to"].width + 1)  # of the tree's first word
        addr, left = Signal.like(base), Signal(len(word.words))
        next_base = comb(m, "next_base", base + word.step, len(base))
        with m.If(goes):
            m.d.sync += [addr.eq(addr + 1), left.eq(left - 1)]
            with m.If(left == 0):
                m.d.sync += [addr.eq(base), left.eq(word.words), out.tree.eq(out.tree + 1)]
                with m.If(out.tree == dpe.n_w - 1):
                    m.d.sync += [out.tree.eq(0), base.eq(next_base), addr.eq(next_base)]
        with m.If(out.begins):
            m.d.sync += [addr.eq(out.to), left.eq(out.words), out.tree.eq(0), base.eq(out.to)]
        return addr, comb(m, "part_outside", addr >= dpe.w_depth)


_KEPT = ("target", "wide", "words", "rows", "to", "step", "signal", "skip")  # fields that words need


def _work_layout(p: CoreParams) -> data.StructLayout:
    codes, weights = p.lxe.codes > 0, p.lxe.weights
    own = {"bad": 1, **({"coded": 1} if codes or weights else {}), **({"once": 1} if codes else {})}
    own |= {"packed": 1, "packing": 3} if weights else {}
    return data.StructLayout({**{name: transfer_layout()[name].shape for name in _KEPT}, **own})


class _Bursts:
    """Bursts that the loader asks for."""

    def __init__(self, p: CoreParams):
        self.entry = Signal(_work_layout(p))
        self.coded = Signal() if p.lxe.codes or p.lxe.weights else Const(0)  # words of the instruction are codes
        self.packed = Signal() if p.lxe.weights else Const(0)  # of weights
        self.bad = Signal()  # the instruction is at fault
        self.accept = Signal()
        self.under_way = Signal(bits_for(p.lxe.bursts + 1))
        self.asks = Signal()  # the loader asks for another burst
        self.offered = Signal()  # a burst is on `ar`


class _Work:
    """The word whose beats come, and its destination. Addresses have one bit more than the scratchpads', for
    overflow.
    """

    def __init__(self, p: CoreParams, beats: int):
        c = transfer_layout()
        self.work = Signal(_work_layout(p))
        self.active = Signal()
        self.beat = Signal(range(2 * beats))
        self.whole = Signal()  # the beat is the word's last
        self.word = Signal(c["words"].width)
        self.rows = Signal(c["rows"].width)  # rows after this one
        parts = p.lxe.codes or p.lxe.weights
        if parts:
            self.first = Signal()  # the word is the instruction's first
            self.place = Signal.like(self.beat)  # of the beat among those that it is handed on with
            self.loads = Signal()  # the beat gives words to hand on
        if p.lxe.weights:
            self.scales = Signal()  # the word holds scales
            self.byte = self.work.packing == Rule.BYTE  # the weights have 8 bits
            most = Packing(Rule.SCALE, GROUPS[1]).words - 1
            self.left = Signal(range(most))  # words of weights of the pack behind this one
            self.early = Signal()  # the beat needs no place
        self.tree = Signal(bits_for(p.dpe.n_w))
        self.base = Signal(c["to"].width + 1)  # of the row's first word
        self.addr = Signal(c["to"].width + 1)
        self.to_w = Signal()
        self.to_x = Signal()
        self.to_v = Signal()
        self.column = Signal()
        # The word is its row's last. A row of codes is one word.
        self.row_last = (
            self.word == Mux(self.work.coded, 0, self.work.words) if parts else (self.word == self.work.words)
        )
        self.last = Signal()  # the word is the instruction's last
        self.outside = Signal()  # the word is outside its scratchpad


class _Out:
    """The word on offer."""

    def __init__(self, p: CoreParams, parts: int):
        fields = {name: transfer_layout()[name].width for name in ("words", "step")}  # of a LOAD that expands
        # `more`: parts behind the first
        more = {"coded": 1, "more": bits_for(parts), **fields} if parts else {}
        more |= {"upto": 1} if p.lxe.codes else {}
        more |= {"packed": 1, "rule": 2, "groups": 1} if p.lxe.weights else {}
        layout = {
            **dict.fromkeys(("to_w", "to_x", "to_v", "column", "last"), 1),
            **more,
            "tree": bits_for(p.dpe.n_w),
            "addr": max(p.dpe.w_addr_bits, p.dpe.x_addr_bits),
            "signal": SEMAPHORES,
        }
        self.out = Signal(data.StructLayout(layout))
        self.full = Signal()
        self.numbers = Signal(32 * p.dpe.n_w, reset_less=True)
        self.sends = Signal()  # the register holds a word, not a skipped instruction
        self.went = Signal()
        self.taken = Signal()
        self.ends = Signal() if parts else Const(1)  # the word goes as a whole, or with its last part
        self.stays = Signal() if parts else Const(0)  # the part has no place
        self.outside = Signal() if parts else Const(0)  # the same, and it is a fault
        if p.lxe.weights:
            self.scales = Signal(16 * p.dpe.n_w, reset_less=True)
            self.new_pack = Signal()  # the last beat of scales comes
            self.moves = Signal()  # the expander can take a word
            self.sent = Signal()  # the instruction's last word is in the expander
            self.leaves = Signal()  # the word has gone, out of the expander, too
        if parts:
            self.begins = Signal()  # a LOAD's first word comes, whose parts go from `to` on, `words` to a tree
            self.to, self.words = (Signal(transfer_layout()[name].width) for name in ("to", "words"))
            self.tree = Signal(bits_for(p.dpe.n_w), name="part_tree")
        self.free = Signal()
        self.fills = Signal()  # a beat comes in
        self.loads = Signal()  # the word is complete
        self.finish = Signal()  # the word is complete and its instruction's last
        self.failed = Signal()  # after a fault: take nothing more
