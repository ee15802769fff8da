"""Vector processing engine: instructions on rows of numbers, behind streams."""

from dataclasses import fields

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.vector import SCALARS, Bank, Format, Instruction, Op, Post, Reduce, Source, Swap
from hdl.leaf import place
from hdl.memory import collect_errors, error_members
from hdl.params import VpeParams, bits_for
from hdl.vpe_lane import OPERANDS, Lane, Result
from hdl.vpe_unit import REGISTER, VectorUnit, read_layout, write_layout

BANK_B, BANK_C = 1, 2


def instruction_layout(p: VpeParams) -> data.StructLayout:
    """The fields of `golden.vector.Instruction`, which see."""
    widths = {
        "op": 2,
        "words": p.addr_bits,
        "keep": bits_for(p.n_w),
        **dict.fromkeys(("a", "b", "c"), 2),
        **dict.fromkeys(("scalar_a", "scalar_b", "scalar_c", "scalar_d"), REGISTER),
        **dict.fromkeys(("imm_a", "imm_b", "imm_c"), 16),
        **dict.fromkeys(("addr_a", "addr_b", "addr_c", "addr_d"), p.addr_bits),
        **dict.fromkeys(("span_a", "span_b", "span_c"), 4),
        **dict.fromkeys(("negate_a", "negate_c", "wide", "code"), 1),
        "swap": bits_for(Swap.HALF + p.addr_bits + 1),
        "post": 3,
        "write": 3,
        "reduce": 2,
        "format": 2,
    }
    return data.StructLayout({f.name: widths[f.name] for f in fields(Instruction)})


def word_layout(p: VpeParams) -> data.ArrayLayout:
    """A word for each of the n_h units: n_w FP32 numbers, lane 0 lowest, or n_w BF16 numbers in the lower half."""
    return data.ArrayLayout(32 * p.n_w, p.n_h)


def output_layout(p: VpeParams) -> data.StructLayout:
    """A stored word of each unit, lane 0 lowest: 32, 16 or 1 bits a lane by `format` (`golden.vector.Format`).

    keep : highest lane in use · last : of its STORE
    """
    return data.StructLayout({"data": word_layout(p), "format": 2, "keep": bits_for(p.n_w), "last": 1})


class Vpe(wiring.Component):
    """n_h vector units of n_w lanes that execute the same instructions, each on its own banks, stream and scalars.

    Instructions issue in order, a word a cycle, and take their operands from three banks, one for each operand of the
    multiply-add, from the stream or from scalars. A word waits until what it reads has been written (a word of a bank,
    a scalar), and where its result would come before those of earlier words. STOREs are handed to an engine of their
    own, which reads words as they are written, in cycles in which the lanes read other banks; a later instruction does
    not overwrite what it has not read. No instruction is bad: every value of every field has a meaning.

    `o` that is not taken stops the STOREs and then whatever reads their bank, and so `i`. An instruction that takes
    words from `i` and from a bank waits until earlier STOREs have read this bank: they never wait for words of `i`.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    c : In(stream of `instruction_layout`) : instructions
    i : In(stream of `word_layout`) : words for those that take them, in order
    o : Out(stream of `output_layout`) : words of the STOREs, in order
    perf : Out(struct of 32-bit counters) : instructions (taken, STOREs included), words (through the lanes), functions
        (of those, through a function), loads (words of `i`), stores (words of `o`), waits (cycles in which an
        instruction is in hand and neither issues nor is handed on), starved (cycles in which a word waits for `i`)

    Latency: a word's result can be read 7 cycles after the issue of the word, 10 with a function; a scalar can be used
        by an issue 7 (last), 10 (maximum) or 14 (sum) cycles after that of its row's last word, 3 more with a function;
        a stored word is on `o` the cycle after it is read. Exact in `sim.vpe.VpeTime`.
    Throughput: a word a cycle, also across instructions; STOREs beside them take one cycle of issue. After an
        instruction with a function, one without waits 3 cycles.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A; function: `golden.vector.Machine`.
    """

    def __init__(self, p: VpeParams):
        self.p = p
        super().__init__(
            {
                "c": In(stream.Signature(instruction_layout(p))),
                "i": In(stream.Signature(word_layout(p))),
                "o": Out(stream.Signature(output_layout(p))),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
                **error_members(p.protect),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["instructions", "words", "functions", "loads", "stores", "waits", "starved"]

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
        top = p.depth - 1

        def comb(name, value, bits=None):
            s = Signal(len(value) if bits is None else bits, name=name)
            m.d.comb += s.eq(value)
            return s

        # The instruction in hand, its next word, the addresses of that.
        now = Signal(instruction_layout(p))
        active, issue, hand_on = Signal(), Signal(), Signal()
        word = Signal(p.addr_bits)
        is_store = comb("is_store", now.op == Op.STORE)
        picks = comb("picks", (now.op == Op.MAX) | (now.op == Op.MIN))
        last_word = comb("last_word", word == now.words)
        at = []
        for k, name in enumerate("abc"):
            mask = Cat(now[f"span_{name}"] > i for i in range(p.addr_bits))
            addr = now[f"addr_{name}"] + (word & mask)
            if k == BANK_B:
                addr = addr[: p.addr_bits] ^ Cat(now.swap == Swap.HALF + 1 + i for i in range(p.addr_bits))
            at.append(comb(f"at_{name}", addr[: p.addr_bits] & top))
        to = comb("to", (now.addr_d + word)[: p.addr_bits] & top)
        reads = [
            comb("reads_a", now.a == Source.BANK),
            comb("reads_b", (now.b == Source.BANK) & ~picks),
            comb("reads_c", now.c == Source.BANK),
        ]
        streams = comb("streams", (now.a == Source.STREAM) | ((now.b == Source.STREAM) & ~picks))
        m.d.comb += self.c.ready.eq(~active | (issue & last_word) | hand_on)
        with m.If(issue):
            m.d.sync += word.eq(word + 1)
        with m.If(self.c.ready):
            m.d.sync += [active.eq(self.c.valid), word.eq(0), now.eq(self.c.payload)]

        # Words on their way: the one whose operands are there, and those whose results come in k cycles.
        entry = data.StructLayout(
            {
                "write": write_layout(p),
                "keep": bits_for(p.n_w),
                "fn": 2,
                "result": Result,
                "scores": 1,
            }
        )
        held, held_valid, fire = Signal(entry), Signal(), Signal()
        operands, held_streams, held_reads = Signal(OPERANDS), Signal(), Signal(3)
        coming = [Signal(entry, name=f"coming{k}", reset_less=True) for k in range(Lane.FUNCTION_LATENCY)]
        comes = Signal(Lane.FUNCTION_LATENCY)
        slow = comb("slow", held.result.as_value()[1])
        early = comb("early", ~slow & comes[Lane.LATENCY :].any())  # it would come before others
        m.d.comb += fire.eq(held_valid & ~early & (self.i.valid | ~held_streams))
        m.d.comb += self.i.ready.eq(held_valid & ~early & held_streams)
        m.d.sync += comes.eq(
            Cat(comes[1:], 0) | ((fire & ~slow) << (Lane.LATENCY - 1)) | ((fire & slow) << (Lane.FUNCTION_LATENCY - 1))
        )
        for k, e in enumerate(coming):
            after = coming[k + 1] if k + 1 < len(coming) else held
            m.d.sync += e.eq(Mux(fire & ~slow, held, after) if k == Lane.LATENCY - 1 else after)

        def on_the_way(name, bank, addr):
            """Whether a word that is on its way writes word `addr` of a bank."""
            hits = [held_valid & held.write.banks[bank] & (held.write.addr == addr)]
            hits += [comes[k] & e.write.banks[bank] & (e.write.addr == addr) for k, e in enumerate(coming)]
            return comb(name, Cat(hits).any())

        # STOREs.
        s_active, s_fetch = Signal(), Signal()
        s = Signal(data.StructLayout({"at": p.addr_bits, "left": p.addr_bits, "keep": bits_for(p.n_w), "format": 2}))
        s_bank = comb("s_bank", Cat(0, s.format != Format.WIDE, s.format == Format.WIDE))
        s_waits = comb("s_waits", Mux(s_bank[BANK_C], on_the_way("s_c", BANK_C, s.at), on_the_way("s_b", BANK_B, s.at)))
        out, out_valid = Signal(data.StructLayout({"keep": bits_for(p.n_w), "format": 2, "last": 1})), Signal()
        out_bank = comb("out_bank", Cat(0, out.format != Format.WIDE, out.format == Format.WIDE))
        out_free = comb("out_free", ~out_valid | self.o.ready)
        taken = comb("taken", Mux(issue, Cat(reads), 0) | Mux(held_valid & ~fire, held_reads, 0))
        m.d.comb += [
            s_fetch.eq(s_active & ~s_waits & out_free & ~(taken & s_bank).any()),
            hand_on.eq(active & is_store & (~s_active | (s_fetch & (s.left == 0)))),
        ]
        with m.If(s_fetch):
            m.d.sync += [s.at.eq((s.at + 1) & top), s.left.eq(s.left - 1), s_active.eq(s.left != 0)]
            m.d.sync += [
                out.last.eq(s.left == 0),
                out.keep.eq(Mux(s.left == 0, s.keep, p.n_w - 1)),
                out.format.eq(s.format),
            ]
        with m.If(out_free):
            m.d.sync += out_valid.eq(s_fetch)
        with m.If(hand_on):
            wide = now.format == Format.WIDE
            m.d.sync += [
                s_active.eq(1),
                s.at.eq(Mux(wide, now.addr_c, now.addr_b) & top),
                s.left.eq(now.words),
                s.keep.eq(now.keep),
                s.format.eq(now.format),
            ]

        # Scalars on their way.
        pending, done = Signal(SCALARS), Signal(SCALARS)
        needs = []
        for name in "abc":
            used = (now[name] == Source.SCALAR) & (~picks if name == "b" else 1)
            needs.append(used & pending.bit_select(now[f"scalar_{name}"], 1))
        needs.append((now.reduce != Reduce.NONE) & pending.bit_select(now.scalar_d, 1))
        sets = comb("sets", Mux(issue & last_word & (now.reduce != Reduce.NONE), 1 << now.scalar_d, 0), SCALARS)
        m.d.sync += pending.eq((pending & ~done) | sets)

        # Issue.
        conflicts = [reads[k] & on_the_way(f"way_{n}", k, at[k]) for k, n in enumerate("abc")]
        behind = comb("behind", (to - s.at) & top, p.addr_bits)
        conflicts += [
            comb("unread", s_active & (now.write & s_bank).any() & (behind <= s.left)),  # to be stored before
            s_active & streams & (Cat(reads) & s_bank).any(),
            ~out_free & (Cat(reads) & out_bank).any(),
        ]
        free = ~held_valid | fire
        m.d.comb += issue.eq(active & ~is_store & free & ~Cat(conflicts, needs).any())
        with m.If(free):
            m.d.sync += held_valid.eq(issue)
        chosen = Signal(OPERANDS)  # of the word that issues, else of the one that is held
        m.d.comb += chosen.eq(operands)
        m.d.sync += operands.eq(chosen)
        with m.If(issue):
            m.d.comb += [
                *(chosen[n].eq(now[n]) for n in ("a", "b", "c", "negate_a", "negate_c", "wide")),
                chosen.swap.eq(Cat(now.swap == Swap.NEIGHBOUR, now.swap == Swap.HALF)),
                chosen.pick.eq(picks),
                chosen.least.eq(now.op == Op.MIN),
            ]
        functional = now.post[2]
        with m.If(issue):
            m.d.sync += [
                held_streams.eq(streams),
                held_reads.eq(Cat(reads)),
                held.write.banks.eq(now.write),
                held.write.addr.eq(to),
                held.write.reduce.eq(now.reduce),
                held.write.register.eq(now.scalar_d),
                held.write.first.eq(word == 0),
                held.write.last.eq(last_word),
                held.keep.eq(Mux(last_word, now.keep, p.n_w - 1)),
                held.fn.eq(now.post[:2]),
                held.result.eq(
                    Mux(functional, Mux(now.code, Result.CODE, Result.FUNCTION), Mux(now.post == Post.NONE, 0, 1))
                ),
                held.scores.eq(functional & now.code),
            ]

        # The units.
        live = Signal(p.n_w, reset_less=True)
        m.d.sync += live.eq(Cat((coming[1].keep >= j) & ~coming[1].scores for j in range(p.n_w)))
        write = Signal(write_layout(p))
        m.d.comb += write.eq(coming[0].write)
        with m.If(~comes[0]):
            m.d.comb += [write.banks.eq(Bank.NONE), write.reduce.eq(Reduce.NONE)]
        read = Signal(read_layout(p))
        banks_at = [at[0], *(Mux(issue & reads[k], at[k], s.at) for k in (BANK_B, BANK_C))]
        m.d.comb += [
            read.en.eq(Mux(issue, Cat(reads), 0) | Mux(s_fetch, s_bank, 0)),
            *(read.addr[k].eq(a) for k, a in enumerate(banks_at)),
            read.take.eq(issue),
            *(read.register[k].eq(now[f"scalar_{n}"]) for k, n in enumerate("abc")),
            *(read.immediate[k].eq(now[f"imm_{n}"]) for k, n in enumerate("abc")),
            read.fixed.eq(Cat(now[n] != Source.SCALAR for n in "abc")),
        ]
        units = []
        for h in range(p.n_h):
            unit = place(m, platform, f"unit{h}", VectorUnit, p)
            m.d.comb += [
                unit.read.eq(read),
                unit.operands.eq(chosen),
                unit.i.eq(self.i.payload[h]),
                unit.fn.eq(coming[Lane.LATENCY].fn),
                unit.result.eq(coming[2].result),
                unit.write.eq(write),
                unit.live.eq(live),
                unit.format.eq(out.format),
                self.o.payload.data[h].eq(unit.o),
            ]
            units.append(unit)
            if h == 0:
                m.d.comb += done.eq(unit.done)
        collect_errors(m, self, units)
        m.d.comb += [
            self.o.valid.eq(out_valid),
            self.o.payload.format.eq(out.format),
            self.o.payload.keep.eq(out.keep),
            self.o.payload.last.eq(out.last),
        ]

        for name, event in (
            ("instructions", self.c.valid & self.c.ready),
            ("words", fire),
            ("functions", fire & slow),
            ("loads", self.i.valid & self.i.ready),
            ("stores", self.o.valid & self.o.ready),
            ("waits", active & ~issue & ~hand_on),
            ("starved", self.i.ready & ~self.i.valid),
        ):
            with m.If(event):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m
