"""Vector processing engine: instructions on rows of numbers, behind streams."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.vector import SCALARS, Bank, Format, Op, Post, Reduce, Source, Swap
from openvrex.hdl.arith.elementwise_logic import Elementwise
from openvrex.hdl.arith.fma import Fma
from openvrex.hdl.execution.vpe_lane import LOAD, OPERANDS, Lane, Result
from openvrex.hdl.execution.vpe_unit import VectorUnit, read_layout, write_layout
from openvrex.hdl.instruction_layouts import instruction_layout, picks, takes_words
from openvrex.hdl.leaf import place
from openvrex.hdl.memory import collect_errors
from openvrex.hdl.named import comb
from openvrex.hdl.params import VpeParams, bits_for
from openvrex.hdl.unit import Unit

BANK_B, BANK_C = 1, 2


def word_layout(p: VpeParams) -> data.ArrayLayout:
    """A word for each of the n_h units: n_w FP32 numbers, lane 0 lowest, or n_w BF16 numbers in the lower half."""
    return data.ArrayLayout(32 * p.n_w, p.n_h)


def output_layout(p: VpeParams) -> data.StructLayout:
    """A stored word of each unit, lane 0 lowest: 32, 16 or 1 bits a lane by `format` (`vector.Format`).

    keep : highest lane in use · last : final word of its STORE
    """
    return data.StructLayout({"data": word_layout(p), "format": 2, "keep": bits_for(p.n_w), "last": 1})


class Vpe(Unit):
    """Executes vector instructions on n_h units of n_w lanes, each with its own banks, stream and scalars.

    Instructions come in on `c` and issue in order, a word a cycle. Operands come from three banks, one for each operand
    of the multiply-add, from the stream `i` or from scalars. A word waits until its operands have been written (a word
    of a bank, a scalar), and while its result would overtake those of earlier words. STOREs go to an engine of their
    own, which puts words on `o` in order. It reads words as they are written, in cycles in which the lanes read other
    banks; a later instruction does not overwrite a word that it has still to read.

    Corner cases: no instruction is illegal: every value of every field has a meaning. If `o` is not taken, the STOREs
    stop, then every instruction that reads their bank, and so `i`. An instruction that takes words from `i` and from a
    bank waits until earlier STOREs have read this bank, so STOREs never wait for words of `i`.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    c : In(stream of `instruction_layout`) : instructions
    i : In(stream of `word_layout`) : words for instructions that take them, in order
    o : Out(stream of `output_layout`) : words of the STOREs, in order
    perf : Out(struct of 32-bit counters) : instructions (taken, STOREs included), words (through the lanes), functions
        (of those, through a function), loads (words of `i`), stores (words of `o`), waits (cycles in which an
        instruction is present and neither issues nor is handed on), starved (cycles in which a word waits for `i`)

    Latency: a word's result can be read 7 cycles after the issue of the word, 10 with a function; a scalar can be used
        by an issue 7 (last), 10 (maximum) or 14 (sum) cycles after that of its row's last word, 3 more with a function;
        a stored word is on `o` the cycle after it is read. Exact in `sim.units.vpe_time.VpeTime`.
    Throughput: a word a cycle, also across instructions; a STORE beside them takes one cycle of issue. An instruction
        without a function waits 3 cycles after one with a function. At the `core` preset a row of 4,096 numbers is 64
        words.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A; function: `golden.arithmetic.vector.Machine`.
    """

    COUNTERS = ("instructions", "words", "functions", "loads", "stores", "waits", "starved")

    def __init__(self, p: VpeParams):
        super().__init__(
            p,
            {
                "c": In(stream.Signature(instruction_layout(p))),
                "i": In(stream.Signature(word_layout(p))),
                "o": Out(stream.Signature(output_layout(p))),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: VpeParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "interval": "words cycles an instruction, 1 a STORE, 3 more for one without a function after one with",
            "result": "7 cycles from a word's issue to that of one that reads its result, 10 with a function",
            "scalar": "7 (last), 10 (maximum), 14 (sum) cycles from a row's last word to its use; function: 3 more",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        now, way, store, scalars = _Instruction(p), _Way(p), _Store(p), _Scalars()

        self._decode(m, now)
        self._next_word(m, now)
        self._move_on(m, way)
        self._store(m, now, way, store)
        needs = self._wait_for_scalars(m, now, scalars)
        self._issue(m, now, way, store, needs)
        operands = self._operands(m, now)
        self._hold(m, now, way)
        load = self._load(m, now, way)
        live = self._lanes_that_count(m, way)
        write = self._write(m, way)
        read = self._read(m, now, store)
        units = [place(m, platform, f"unit{h}", VectorUnit, p) for h in range(p.n_h)]
        for h, unit in enumerate(units):
            m.d.comb += [
                unit.read.eq(read),
                unit.operands.eq(operands),
                unit.load.eq(load),
                unit.i.eq(self.i.payload[h]),
                unit.fn.eq(way.coming[Lane.LATENCY].fn),
                unit.result.eq(way.coming[2].result),
                unit.write.eq(write),
                unit.live.eq(live),
                unit.format.eq(store.out.format),
                self.o.payload.data[h].eq(unit.o),
            ]
            if h == 0:
                m.d.comb += scalars.done.eq(unit.done)
        collect_errors(m, self, units)
        m.d.comb += [
            self.o.valid.eq(store.out_valid),
            self.o.payload.format.eq(store.out.format),
            self.o.payload.keep.eq(store.out.keep),
            self.o.payload.last.eq(store.out.last),
        ]
        self._count_events(m, now, way)
        return m

    def _decode(self, m: Module, now: "_Instruction") -> None:
        """Finds the addresses and banks that the instruction's next word reads and writes."""
        p, top, i = self.p, self.p.depth - 1, now.now
        now.is_store = comb(m, "is_store", i.op == Op.STORE)
        now.picks = comb(m, "picks", picks(i))
        now.last_word = comb(m, "last_word", now.word == i.words)
        for k, name in enumerate("abc"):
            mask = Cat(i[f"span_{name}"] > j for j in range(p.addr_bits))
            addr = i[f"addr_{name}"] + (now.word & mask)
            if k == BANK_B:
                addr = addr[: p.addr_bits] ^ Cat(i.swap == Swap.HALF + 1 + j for j in range(p.addr_bits))
            now.at.append(comb(m, f"at_{name}", addr[: p.addr_bits] & top))
        now.to = comb(m, "to", i.addr_d[: p.addr_bits] & top)
        now.reads = [
            comb(m, "reads_a", i.a == Source.BANK),
            comb(m, "reads_b", (i.b == Source.BANK) & ~now.picks),
            comb(m, "reads_c", i.c == Source.BANK),
        ]
        now.streams = comb(m, "streams", takes_words(i, now.picks))

    def _next_word(self, m: Module, now: "_Instruction") -> None:
        m.d.comb += self.c.ready.eq(~now.active | (now.issue & now.last_word) | now.hand_on)
        with m.If(now.issue):
            # The address to write counts along, since whether a STORE has still to read it decides late.
            m.d.sync += [now.word.eq(now.word + 1), now.now.addr_d.eq(now.to + 1)]
        with m.If(self.c.ready):
            m.d.sync += [now.active.eq(self.c.valid), now.word.eq(0), now.now.eq(self.c.payload)]

    def _move_on(self, m: Module, way: "_Way") -> None:
        """Sends the word whose operands are there into the lanes, unless its result would overtake earlier ones."""
        held, comes, fire = way.held, way.comes, way.fire
        way.slow = slow = comb(m, "slow", held.result.as_value()[1])
        early = comb(m, "early", ~slow & comes[Lane.LATENCY :].any())  # its result would overtake others
        m.d.comb += fire.eq(way.held_valid & ~early & (self.i.valid | ~way.held_streams))
        m.d.comb += self.i.ready.eq(way.held_valid & ~early & way.held_streams)
        m.d.sync += comes.eq(
            Cat(comes[1:], 0) | ((fire & ~slow) << (Lane.LATENCY - 1)) | ((fire & slow) << (Lane.FUNCTION_LATENCY - 1))
        )
        for k, e in enumerate(way.coming):
            after, there = (way.coming[k + 1], comes[k + 1]) if k + 1 < len(way.coming) else (held, fire)
            if k == Lane.LATENCY - 1:
                after, there = Mux(fire & ~slow, held, after), there | fire
            with m.If(there):
                m.d.sync += e.eq(after)

    def _store(self, m: Module, now: "_Instruction", way: "_Way", store: "_Store") -> None:
        """Reads a word for STORE as soon as it is written, in a cycle in which the lanes read other banks."""
        p, top, s, out, i = self.p, self.p.depth - 1, store.s, store.out, now.now
        store.bank = s_bank = comb(m, "s_bank", _stored_bank(s.format))
        in_c, in_b = way.writes(m, "s_c", BANK_C, s.at), way.writes(m, "s_b", BANK_B, s.at)
        s_waits = comb(m, "s_waits", Mux(s_bank[BANK_C], in_c, in_b))
        store.out_bank = comb(m, "out_bank", _stored_bank(out.format))
        store.out_free = comb(m, "out_free", ~store.out_valid | self.o.ready)
        waits = comb(m, "waits", Mux(way.held_valid & ~way.fire, way.held_reads, 0))  # banks that a word reads again
        may = store.active & ~s_waits & store.out_free & ~(waits & s_bank).any()
        m.d.comb += [
            store.fetch.eq(may & ~(now.issue & (Cat(now.reads) & s_bank).any())),
            # While the instruction is a STORE, no word issues.
            now.hand_on.eq(now.active & now.is_store & (~store.active | (may & (s.left == 0)))),
        ]
        with m.If(store.fetch):
            m.d.sync += [s.at.eq((s.at + 1) & top), s.left.eq(s.left - 1), store.active.eq(s.left != 0)]
            m.d.sync += [
                out.last.eq(s.left == 0),
                out.keep.eq(Mux(s.left == 0, s.keep, p.n_w - 1)),
                out.format.eq(s.format),
            ]
        with m.If(store.out_free):
            m.d.sync += store.out_valid.eq(store.fetch)
        with m.If(now.hand_on):
            wide = i.format == Format.WIDE
            m.d.sync += [
                store.active.eq(1),
                s.at.eq(Mux(wide, i.addr_c, i.addr_b) & top),
                s.left.eq(i.words),
                s.keep.eq(i.keep),
                s.format.eq(i.format),
            ]

    def _wait_for_scalars(self, m: Module, now: "_Instruction", scalars: "_Scalars") -> list[Value]:
        """Returns whether the instruction needs scalars that are still on their way."""
        i, pending, needs = now.now, scalars.pending, []
        for name in "abc":
            used = (i[name] == Source.SCALAR) & (~now.picks if name == "b" else 1)
            needs.append(used & pending.bit_select(i[f"scalar_{name}"], 1))
        reduces = i.reduce != Reduce.NONE
        needs.append(reduces & pending.bit_select(i.scalar_d, 1))
        sets = comb(m, "sets", Mux(now.issue & now.last_word & reduces, 1 << i.scalar_d, 0), SCALARS)
        m.d.sync += pending.eq((pending & ~scalars.done) | sets)
        return needs

    def _issue(self, m: Module, now: "_Instruction", way: "_Way", store: "_Store", needs: list[Value]) -> None:
        """Issues a word if its operands are written and its accesses do not conflict with a STORE."""
        top, reads, s = self.p.depth - 1, now.reads, store.s
        conflicts = [reads[k] & way.writes(m, f"way_{n}", k, now.at[k]) for k, n in enumerate("abc")]
        behind = comb(m, "behind", (now.to - s.at) & top, self.p.addr_bits)
        unread = store.active & (now.now.write & store.bank).any()
        unread &= behind <= s.left if top else 1  # of one word it is the word
        conflicts += [
            comb(m, "unread", unread),  # a STORE has still to read the word
            store.active & now.streams & (Cat(reads) & store.bank).any(),
            ~store.out_free & (Cat(reads) & store.out_bank).any(),
        ]
        free = ~way.held_valid | way.fire
        m.d.comb += now.issue.eq(now.active & ~now.is_store & free & ~Cat(conflicts, needs).any())
        with m.If(free):
            m.d.sync += way.held_valid.eq(now.issue)

    def _operands(self, m: Module, now: "_Instruction") -> Signal:
        """Operand sources of the instruction."""
        i, operands = now.now, Signal(OPERANDS, name="operands")
        m.d.comb += [
            *(operands[n].eq(i[n]) for n in ("a", "b", "c", "negate_a", "negate_c", "wide")),
            operands.swap.eq(Cat(i.swap == Swap.NEIGHBOUR, i.swap == Swap.HALF)),
            operands.pick.eq(now.picks),
            operands.least.eq(i.op == Op.MIN),
        ]
        return operands

    def _load(self, m: Module, now: "_Instruction", way: "_Way") -> Signal:
        """Stages of the lanes that a word enters; a word with a function passes the multiply-add, then the function."""
        load, comes = Signal(LOAD, name="load"), way.comes
        slow = [e.result.as_value()[1] for e in way.coming]
        fma = [comes[k] & ~slow[k] for k in range(Lane.LATENCY)]
        m.d.comb += [
            load.operands.eq(now.issue),
            load.taken.eq(way.held_valid),
            load.fma.eq(Cat(comes[-1 - k] | fma[-1 - k] for k in range(Fma.LATENCY))),
            load.function.eq(Cat(comes[k] & slow[k] for k in range(1 + Elementwise.LATENCY, 1, -1))),
            load.y.eq(comes[1]),
        ]
        return load

    def _hold(self, m: Module, now: "_Instruction", way: "_Way") -> None:
        """Keeps the fields that travel with the issued word until its result is written."""
        i, held, hybrid = now.now, way.held, self.p.format.hybrid
        functional = i.post[1:].any() if hybrid else i.post[2]
        with m.If(now.issue):
            m.d.sync += [
                way.held_streams.eq(now.streams),
                way.held_reads.eq(Cat(now.reads)),
                held.write.banks.eq(i.write),
                held.write.addr.eq(now.to),
                held.write.reduce.eq(i.reduce),
                held.write.register.eq(i.scalar_d),
                held.write.first.eq(now.word == 0),
                held.write.last.eq(now.last_word),
                held.keep.eq(Mux(now.last_word, i.keep, self.p.n_w - 1)),
                held.fn.eq(Cat(i.post[:2], ~i.post[2]) if hybrid else i.post[:2]),
                held.result.eq(
                    Mux(functional, Mux(i.code, Result.CODE, Result.FUNCTION), Mux(i.post == Post.NONE, 0, 1))
                ),
                held.scores.eq(functional & i.code),
            ]

    def _lanes_that_count(self, m: Module, way: "_Way") -> Signal:
        """Lanes that count in a reduction of the next result."""
        live = Signal(self.p.n_w, reset_less=True)
        next_ = way.coming[1]
        with m.If(way.comes[1]):
            m.d.sync += live.eq(Cat((next_.keep >= j) & ~next_.scores for j in range(self.p.n_w)))
        return live

    def _write(self, m: Module, way: "_Way") -> Signal:
        """The write of the result that has come."""
        write = Signal(write_layout(self.p), name="write")
        m.d.comb += write.eq(way.coming[0].write)
        with m.If(~way.comes[0]):
            m.d.comb += [write.banks.eq(Bank.NONE), write.reduce.eq(Reduce.NONE)]
        return write

    def _read(self, m: Module, now: "_Instruction", store: "_Store") -> Signal:
        """Reads words and scalars for the word that issues, and the STORE's word in a bank that this one leaves
        free.
        """
        i, issue, reads = now.now, now.issue, now.reads
        read = Signal(read_layout(self.p), name="read")
        banks_at = [now.at[0], *(Mux(issue & reads[k], now.at[k], store.s.at) for k in (BANK_B, BANK_C))]
        m.d.comb += [
            read.en.eq(Mux(issue, Cat(reads), 0) | Mux(store.fetch, store.bank, 0)),
            *(read.addr[k].eq(a) for k, a in enumerate(banks_at)),
            *(read.register[k].eq(i[f"scalar_{n}"]) for k, n in enumerate("abc")),
            *(read.immediate[k].eq(i[f"imm_{n}"]) for k, n in enumerate("abc")),
            read.fixed.eq(Cat(i[n] != Source.SCALAR for n in "abc")),
        ]
        return read

    def _count_events(self, m: Module, now: "_Instruction", way: "_Way") -> None:
        self._count_later(
            m,
            instructions=self.c.valid & self.c.ready,
            words=way.fire,
            functions=way.fire & way.slow,
            loads=self.i.valid & self.i.ready,
            stores=self.o.valid & self.o.ready,
            waits=now.active & ~now.issue & ~now.hand_on,
            starved=self.i.ready & ~self.i.valid,
        )


class _Instruction:
    """The current instruction, its next word and the addresses of that word."""

    def __init__(self, p: VpeParams):
        self.now = Signal(instruction_layout(p))
        self.active = Signal()
        self.issue = Signal()  # the word issues
        self.hand_on = Signal()  # a STORE goes to its engine
        self.word = Signal(p.addr_bits)
        self.at: list[Signal] = []  # address to read of each bank
        self.to: Signal  # address to write
        self.reads: list[Signal]  # banks to read
        self.streams: Signal  # the word takes one of `i`
        self.is_store: Signal
        self.picks: Signal  # MAX or MIN
        self.last_word: Signal


class _Way:
    """Words on their way: the one whose operands are there, and those whose results come in k cycles."""

    def __init__(self, p: VpeParams):
        entry = data.StructLayout(
            {
                "write": write_layout(p),
                "keep": bits_for(p.n_w),
                "fn": 3 if p.format.hybrid else 2,
                "result": Result,
                "scores": 1,
            }
        )
        self.held = Signal(entry)
        self.held_valid = Signal()
        self.held_streams = Signal()  # the word takes one of `i`
        self.held_reads = Signal(3)  # banks whose words it holds
        self.fire = Signal()  # the word goes into the lanes
        self.slow: Signal  # the word goes through a function
        self.coming = [Signal(entry, name=f"coming{k}", reset_less=True) for k in range(Lane.FUNCTION_LATENCY)]
        self.comes = Signal(Lane.FUNCTION_LATENCY)  # which of them are there

    def writes(self, m: Module, name: str, bank: int, addr: Value) -> Signal:
        """Whether a word on its way writes word `addr` of a bank."""
        hits = [self.held_valid & self.held.write.banks[bank] & (self.held.write.addr == addr)]
        for k, e in enumerate(self.coming):
            hits.append(self.comes[k] & e.write.banks[bank] & (e.write.addr == addr))
        return comb(m, name, Cat(hits).any())


class _Store:
    """The STORE in its engine, and the word on offer."""

    def __init__(self, p: VpeParams):
        keep = bits_for(p.n_w)
        self.s = Signal(data.StructLayout({"at": p.addr_bits, "left": p.addr_bits, "keep": keep, "format": 2}))
        self.active = Signal(name="s_active")
        self.fetch = Signal(name="s_fetch")  # it reads its next word
        self.bank: Signal
        self.out = Signal(data.StructLayout({"keep": keep, "format": 2, "last": 1}))
        self.out_valid = Signal()
        self.out_bank: Signal
        self.out_free: Signal


class _Scalars:
    """Scalars on their way, and those being written."""

    def __init__(self):
        self.pending = Signal(SCALARS)
        self.done = Signal(SCALARS)


def _stored_bank(fmt: Value) -> Value:
    """The bank that a STORE of a format reads, one-hot."""
    return Cat(0, fmt != Format.WIDE, fmt == Format.WIDE)
