"""Functions of one BF16 operand, and score codes."""

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.elementwise import (
    ANTILOG,
    EXPM1,
    EXPM1_TURN,
    FRAC,
    HIGH,
    INF,
    LOG,
    LOW,
    NAN,
    ONE,
    PRODUCT_FRAC,
    SIGMOID,
    SLOPE,
    SOFTPLUS_ABOVE,
    SOFTPLUS_BASE,
    SOFTPLUS_BELOW,
    SOFTPLUS_LOW,
    SOFTPLUS_TURN,
    T_BITS,
)
from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.arith.table import table
from openvrex.hdl.named import reg
from openvrex.hdl.params import bits_for


class Op(enum.Enum, shape=2):
    """Function of an operand."""

    EXP = 0
    RECIP = 1
    RSQRT = 2
    SILU = 3


class HybridOp(enum.Enum, shape=3):
    """Function of an operand, with those of the feature "hybrid": the codes of `Post` with bit 2 inverted."""

    EXP = 0
    RECIP = 1
    RSQRT = 2
    SILU = 3
    EXPM1 = 6
    SOFTPLUS = 7


class Lines(enum.Enum, shape=2):
    """Straight lines that stage 2 adds."""

    SILU = 0
    EXPM1 = 1
    BELOW = 2  # softplus below zero
    ABOVE = 3  # softplus above zero


class Special(enum.Enum, shape=2):
    """A result that the logarithm does not give."""

    NONE = 0
    ZERO = 1
    INF = 2
    NAN = 3


class Elementwise(wiring.Component):
    """Computes exp, 1/x, 1/sqrt(x) or SiLU of a BF16 operand: one logarithm, one sum, one power of two for all four.

    With `hybrid` also e^x - 1 and softplus, which share them and add straight lines of their own.
    Stage 1 takes the logarithm of the operand, and t = |x| log2(e). Stage 2 computes the logarithm of the result, stage
    3 its power of two. The tables are those of `golden.arithmetic.elementwise`.

    Parameters
    ----------
    hybrid : bool, default False : whether there are EXPM1 and SOFTPLUS

    Members
    -------
    op : In(Op), with `hybrid` In(HybridOp) : function
    x : In(16) : operand, BF16
    load : In(LATENCY) : stages that take a value at the clock edge; a clock gate needs it
    y : Out(16) : result of `op` and `x` of `LATENCY` cycles ago, BF16

    Latency: `LATENCY` = 3 cycles, the last of them in the register of `y`. No register has a reset.
    Throughput: one operand a cycle, any function after any other; no back-pressure.
    Raises: nothing.
    Source: the functions of V-Rex section V-A's vector engine; rules and errors: `golden.arithmetic.elementwise`.
    """

    LATENCY = 3

    def __init__(self, hybrid: bool = False):
        self.hybrid, self.ops = hybrid, HybridOp if hybrid else Op
        super().__init__({"op": In(self.ops), "x": In(16), "load": In(self.LATENCY), "y": Out(16)})

    def elaborate(self, platform):
        m = Module()
        lines = {"plus": 1, "silu": 1}
        if self.hybrid:
            # still: the term is not added; on: lines are added, of which kind, and whether these fall
            lines = {"plus": 1, "still": 1, "on": 1, "lines": Lines, "fall": 1}
        r1 = Signal(
            data.StructLayout({"base": FRAC + 8, "term": FRAC + 8, **lines, "sign": 1, "special": Special}),
            reset_less=True,
        )
        r2 = Signal(
            data.StructLayout({"low": FRAC, "carry": 1, "high": 10, "sign": 1, "special": Special}), reset_less=True
        )
        self._operand(m, r1)
        (self._hybrid_logarithm if self.hybrid else self._logarithm)(m, r1, r2)
        m.d.comb += self.y.eq(reg(m, "y", self._power(m, r2), when=self.load[2]))
        return m

    def _operand(self, m: Module, r1: data.View) -> None:
        """Stage 1: computes the summands of the result's logarithm, and finds results that do not come from it."""
        fraction = Signal(7)
        exponent = Signal(8)
        sign = Signal()
        m.d.comb += Cat(fraction, exponent, sign).eq(self.x)

        log = Signal(FRAC + 8)  # 127 + log2|x|
        bend = table(m, LOG - (np.arange(128) << FRAC - 7), fraction, "bend")
        m.d.comb += log.eq((self.x[:15] << FRAC - 7) + bend)

        # t: the product is shifted by the low bits of the exponent, then by eights.
        shifted = Signal(T_BITS + 2, name="shift0")
        product = table(m, HIGH, fraction[4:], "high") + table(m, LOW, fraction[:4], "low")
        m.d.comb += shifted.eq(product << T_BITS - PRODUCT_FRAC)
        for i in range(3):
            more = Signal.like(shifted, name=f"shift{i + 1}")
            m.d.comb += more.eq(Mux(exponent[i], shifted, shifted >> (1 << i)))
            shifted = more
        t = Signal(T_BITS)
        with m.Switch(exponent[3:]):
            for i in range(3):
                with m.Case(16 - i):
                    m.d.comb += t.eq(shifted >> 8 * i)

        exp, recip, rsqrt, silu = (Signal(name=op.name.lower()) for op in Op)
        m.d.comb += [s.eq(self.op == self.ops[op.name]) for s, op in zip((exp, recip, rsqrt, silu), Op, strict=True)]
        unsigned = exp  # results are positive
        if self.hybrid:
            expm1, softplus = (Signal(name=name) for name in ("expm1", "softplus"))
            m.d.comb += [expm1.eq(self.op == HybridOp.EXPM1), softplus.eq(self.op == HybridOp.SOFTPLUS)]
            unsigned = exp | softplus
        tiny = Signal()
        big = Signal()  # t is out of range, and so are results that depend on it
        huge = Signal()
        m.d.comb += [tiny.eq(exponent == 0), big.eq(exponent >= 127 + 7), huge.eq(exponent == 255)]
        special = Signal(Special)
        with m.If((huge & (fraction != 0)) | (rsqrt & sign & ~tiny)):
            m.d.comb += special.eq(Special.NAN)
        with m.Elif((tiny & (recip | rsqrt)) | (big & exp & ~sign)):
            m.d.comb += special.eq(Special.INF)
        with m.Elif((huge & rsqrt) | (big & (exp | silu) & sign)):
            m.d.comb += special.eq(Special.ZERO)

        # Biased by 128, one more than an exponent field. Subtraction adds the ones' complement.
        base = Signal(FRAC + 8)
        term = Signal(FRAC + 8)
        limited = t | big << T_BITS - 1
        with m.Switch(self.op):
            with m.Case(self.ops.EXP):
                m.d.comb += [base.eq(128 * ONE), term.eq(t)]
            with m.Case(self.ops.RECIP):
                m.d.comb += [base.eq(255 * ONE), term.eq(log)]
            with m.Case(self.ops.RSQRT):
                m.d.comb += [base.eq(383 * ONE // 2), term.eq(log >> 1)]
            with m.Case(self.ops.SILU):
                m.d.comb += [base.eq(log), term.eq(limited)]
            if self.hybrid:
                near, below, first = (Signal(name=name) for name in ("near", "below", "first"))
                m.d.comb += [
                    near.eq(self.x[:15] < EXPM1_TURN),
                    below.eq(sign | (self.x[:15] < SOFTPLUS_LOW)),
                    first.eq(self.x[:15] < SOFTPLUS_TURN),
                ]
                with m.Case(HybridOp.EXPM1):
                    m.d.comb += [base.eq(Mux(near, log, 127 * ONE)), term.eq(limited)]
                with m.Case(HybridOp.SOFTPLUS):
                    level = Mux(below, 127 * ONE, 128 * ONE - SOFTPLUS_BASE)
                    m.d.comb += [base.eq(Mux(below | first, level, log)), term.eq(limited)]
        if self.hybrid:
            kind = Mux(softplus, Mux(below, Lines.BELOW, Lines.ABOVE), Mux(expm1, Lines.EXPM1, Lines.SILU))
            lines = [
                r1.plus.eq(Mux(softplus, ~below, expm1 | ((exp | silu) & ~sign))),
                r1.still.eq(silu | softplus | (expm1 & sign)),
                r1.on.eq(silu | expm1 | softplus),
                r1.lines.eq(kind),
                r1.fall.eq(Mux(softplus, ~below & ~first, expm1 & near)),
            ]
        else:
            lines = [r1.plus.eq((exp | silu) & ~sign), r1.silu.eq(silu)]
        with m.If(self.load[0]):
            m.d.sync += [
                r1.base.eq(base),
                r1.term.eq(term),
                *lines,
                r1.sign.eq(sign & ~unsigned & (special != Special.NAN)),
                r1.special.eq(special),
            ]

    def _logarithm(self, m: Module, r1: data.View, r2: data.View) -> None:
        """Stage 2: base - term, base + term for exp, base + sigmoid [- term] for SiLU; the last carry is added in
        stage 3.
        """
        term = Signal(FRAC + 10)
        step = Signal(4)
        segment = Signal(7)
        far = Signal()  # the sigmoid is 1
        m.d.comb += [
            term.eq(r1.term),
            Cat(step, segment).eq(r1.term[FRAC - 7 :]),
            far.eq(r1.term[FRAC + 4 :].any()),
        ]
        slope = table(m, SLOPE, segment[1:], "slope")
        near = Signal(FRAC)
        sigmoid = Signal(FRAC)
        m.d.comb += [
            near.eq(table(m, SIGMOID, segment, "sigmoid_start") + ((slope * step) >> 1)),
            sigmoid.eq(Mux(r1.silu, near | far.replicate(FRAC), 0)),
        ]
        total = Signal(FRAC + 10)
        m.d.comb += total.eq(r1.base + Mux(~r1.plus, ~term, Mux(r1.silu, 0, term)))
        self._hand_on(m, r1, r2, total, sigmoid)

    def _hybrid_logarithm(self, m: Module, r1: data.View, r2: data.View) -> None:
        """Stage 2 with EXPM1 and SOFTPLUS: four sets of lines share the multiplier. Lines that fall count down."""
        term = Signal(FRAC + 10)
        step = Signal(4)
        segment = Signal(7)
        far = Signal()  # past the last line
        above = Signal()
        m.d.comb += [
            term.eq(r1.term),
            segment.eq(r1.term[FRAC - 3 :]),
            step.eq(r1.term[FRAC - 7 : FRAC - 3] ^ r1.fall.replicate(4)),
            far.eq(r1.term[FRAC + 4 :].any()),
            above.eq(r1.lines == Lines.ABOVE),
        ]
        index = Cat(segment, r1.lines)
        own = (EXPM1, SOFTPLUS_BELOW, SOFTPLUS_ABOVE)
        slope = table(m, np.concatenate([np.repeat(SLOPE, 2), *(np.abs(f.slope) for f in own)]), index, "slope")
        start = table(m, np.concatenate([SIGMOID, *(f.start for f in own)]), index, "start")
        near = Signal(FRAC, name="line")
        added = Signal(FRAC)
        addend = Signal(FRAC + 10)
        m.d.comb += [
            near.eq(start + ((slope * step) >> 1)),
            added.eq(Mux(r1.on & ~(above & far), near | far.replicate(FRAC), 0)),
            addend.eq(Mux(~r1.plus, ~term, Mux(r1.still, (above & r1.fall) << FRAC, term))),
        ]
        total = Signal(FRAC + 10)
        m.d.comb += total.eq(r1.base + addend)
        self._hand_on(m, r1, r2, total, added)

    def _hand_on(self, m: Module, r1: data.View, r2: data.View, total: Value, added: Value) -> None:
        """The logarithm, `total` and `added` to its fraction, to stage 3, which adds the carry."""
        with m.If(self.load[1]):
            m.d.sync += [
                Cat(r2.low, r2.carry).eq(total[:FRAC] + added),
                r2.high.eq(total[FRAC:]),
                r2.sign.eq(r1.sign),
                r2.special.eq(r1.special),
            ]

    def _power(self, m: Module, r2: data.View) -> Value:
        """Stage 3: the power's fraction is that of the logarithm less a small correction; close to 1 it carries."""
        below = table(m, [(i >> FRAC - 7) + 1 - int(a) for i, a in enumerate(ANTILOG)], r2.low, "below")
        fraction = Signal(7)
        full = Signal()
        exponent = Signal(10)
        m.d.comb += [
            fraction.eq(r2.low[FRAC - 7 :] + 1 - below),
            full.eq(r2.low >= int(np.searchsorted(ANTILOG, 128))),
            exponent.eq(r2.high - ~r2.carry + full),
        ]
        zero = Signal()
        infinite = Signal()
        m.d.comb += [
            zero.eq(exponent[9] | (exponent == 0) | (r2.special == Special.ZERO)),
            infinite.eq((~exponent[9] & (exponent[8] | exponent[:8].all())) | (r2.special == Special.INF)),
        ]
        magnitude = Signal(15)
        with m.If(r2.special == Special.NAN):
            m.d.comb += magnitude.eq(NAN)
        with m.Elif(infinite):
            m.d.comb += magnitude.eq(INF)
        with m.Elif(~zero):
            m.d.comb += magnitude.eq(Cat(fraction, exponent[:8]))
        return Cat(magnitude, r2.sign)


class ScoreCode(wiring.Component):
    """Converts a BF16 number in [0, 1] to a score code (`golden`: `score_code`).

    It changes the exponent's bias, and shifts numbers below the format's smallest exponent right with rounding.

    Parameters
    ----------
    fmt : ScoreFormat

    Members
    -------
    y : In(16) : BF16 number
    code : Out(fmt.bits) : y * 2^value_bits to the nearest value of the format, ties to even, at most the top code;
        0 for NaN and below 0

    Latency: combinational.
    Throughput: one a cycle.
    Raises: `ParamError` from `ScoreFormat`.
    Source: V-Rex section IV-C, Fig. 9 step 3; the format: `golden.function_params.ScoreFormat`.
    """

    def __init__(self, fmt: ScoreFormat):
        self.fmt = fmt
        super().__init__({"y": In(16), "code": Out(fmt.bits)})

    def elaborate(self, platform):
        fmt, m = self.fmt, Module()
        fraction = Signal(7)
        exponent = Signal(8)
        sign = Signal()
        m.d.comb += Cat(fraction, exponent, sign).eq(self.y)
        first = 126 - fmt.max_shift  # exponent field from which on the format has its full significand
        width = max(8, fmt.significand_bits)
        drop = width - fmt.significand_bits

        down = Signal(8)
        scale = Signal(8)
        m.d.comb += [
            down.eq(Mux(exponent < first, first - exponent, 0)),
            scale.eq(Mux(exponent < first, 0, exponent - first)),
        ]
        kept = Signal(width + 1)  # one bit more below the significand
        lost = Const(0, 1)
        m.d.comb += kept.eq(Cat(fraction, 1) << width - 7)
        for i in range(bits_for(width + 3)):
            shifted, sticky = Signal(width + 1, name=f"shifted{i}"), Signal(name=f"sticky{i}")
            m.d.comb += [
                shifted.eq(Mux(down[i], kept >> (1 << i), kept)),
                sticky.eq(lost | (down[i] & kept[: 1 << i].any())),
            ]
            kept, lost = shifted, sticky
        whole = Signal(fmt.significand_bits)
        up = Signal()
        code = Signal(fmt.bits + 1)
        m.d.comb += [
            whole.eq(kept[drop + 1 :]),
            up.eq(kept[drop] & (lost | kept[:drop].any() | whole[0])),
            code.eq((scale << fmt.man_bits) + whole + up),
        ]
        with m.If(sign | (self.y[:15] > INF) | down[bits_for(width + 3) :].any()):
            m.d.comb += self.code.eq(0)
        with m.Elif((exponent >= 127) | code[fmt.bits]):
            m.d.comb += self.code.eq(~Const(0, fmt.bits))
        with m.Else():
            m.d.comb += self.code.eq(code)
        return m
