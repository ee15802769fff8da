"""Functions of one BF16 operand, and score codes."""

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from golden.elementwise import ANTILOG, FRAC, HIGH, INF, LOG, LOW, NAN, ONE, PRODUCT_FRAC, SIGMOID, SLOPE, T_BITS
from golden.params import ScoreFormat
from hdl.arith.table import table
from hdl.params import bits_for


class Op(enum.Enum, shape=2):
    """Function of an operand."""

    EXP = 0
    RECIP = 1
    RSQRT = 2
    SILU = 3


class Special(enum.Enum, shape=2):
    """A result that does not come from the logarithm."""

    NONE = 0
    ZERO = 1
    INF = 2
    NAN = 3


class Elementwise(wiring.Component):
    """exp, 1/x, 1/sqrt(x) and SiLU of one BF16 operand, by the tables of `golden.elementwise`.

    Stage 1: logarithm of the operand and t = |x| log2(e). Stage 2: logarithm of the result, a sum of those and of
    log2(1 + 2^-t). Stage 3: its power of two, packed.

    Members
    -------
    op : In(Op) : function
    x : In(16) : operand
    y : Out(16) : result of the operand of `LATENCY` cycles ago

    Latency: `LATENCY` = 3 cycles, of which the last is the register of `y`.
    Throughput: one operand a cycle, any function after any other; no back-pressure.
    Raises: nothing; it has no parameters.
    Source: V-Rex section V-A (the VPE's special functions); rules and errors: `golden.elementwise`.

    Parameters
    ----------
    none
    """

    LATENCY = 3

    def __init__(self):
        super().__init__({"op": In(Op), "x": In(16), "y": Out(16)})

    def elaborate(self, platform):
        m = Module()

        # Stage 1. Logarithm (biased by 127) and natural exponent of the operand, both rounded down.
        fraction, exponent, sign = Signal(7), Signal(8), Signal()
        m.d.comb += Cat(fraction, exponent, sign).eq(self.x)
        log = Signal(FRAC + 8)
        bend = table(m, LOG - (np.arange(128) << FRAC - 7), fraction, "bend")
        m.d.comb += log.eq((Cat(fraction, exponent) << FRAC - 7) + bend)
        product = Signal(PRODUCT_FRAC + 2)
        m.d.comb += product.eq(table(m, HIGH, fraction[4:], "high") + table(m, LOW, fraction[:4], "low"))
        t = self._shift(m, product, exponent)

        exp, recip, rsqrt, silu = (Signal(name=op.name.lower()) for op in Op)
        m.d.comb += [s.eq(self.op == op) for s, op in zip((exp, recip, rsqrt, silu), Op, strict=True)]
        tiny, huge, nan = Signal(), Signal(), Signal()
        special = Signal(Special)
        m.d.comb += [tiny.eq(exponent == 0), huge.eq(exponent == 255), nan.eq(huge & (fraction != 0))]
        with m.If(nan | (rsqrt & sign & ~tiny)):
            m.d.comb += special.eq(Special.NAN)
        with m.Elif(tiny & (recip | rsqrt)):
            m.d.comb += special.eq(Special.INF)
        with m.Elif(huge & rsqrt):
            m.d.comb += special.eq(Special.ZERO)

        # The result's logarithm is base + ~x, or base + x for exp of a positive operand, and the sigmoid's for SiLU.
        base, x_ = Signal(FRAC + 8), Signal(FRAC + 8)
        with m.Switch(self.op):
            with m.Case(Op.EXP):
                m.d.comb += [base.eq(128 * ONE), x_.eq(t)]
            with m.Case(Op.RECIP):
                m.d.comb += [base.eq(255 * ONE), x_.eq(log)]
            with m.Case(Op.RSQRT):
                m.d.comb += [base.eq(383 * ONE // 2), x_.eq(log >> 1)]
            with m.Case(Op.SILU):
                m.d.comb += [base.eq(log), x_.eq(t)]
        r1 = Signal(
            data.StructLayout({"base": FRAC + 8, "x": FRAC + 8, "plus": 1, "silu": 1, "sign": 1, "special": Special})
        )
        m.d.sync += [
            r1.base.eq(base),
            r1.x.eq(x_),
            r1.plus.eq((exp | silu) & ~sign),
            r1.silu.eq(silu),
            r1.sign.eq(sign & ~exp & (special != Special.NAN)),
            r1.special.eq(special),
        ]

        # Stage 2. Biased by 128: one more than the result's exponent field.
        segment, step = Signal(7), Signal(4)
        m.d.comb += Cat(step, segment).eq(r1.x[FRAC - 7 :])
        slope = table(m, SLOPE, segment[2:], "slope")
        near, far = Signal(FRAC), Signal()
        m.d.comb += [
            near.eq(table(m, SIGMOID, segment, "sigmoid") + ((slope * step) >> 1)),
            far.eq(r1.x[FRAC + 4 :].any()),
        ]
        x, term, gain = Signal(FRAC + 10), Signal(FRAC + 10), Signal(FRAC)
        m.d.comb += [
            x.eq(r1.x),
            term.eq(Mux(~r1.plus, ~x, Mux(r1.silu, 0, x))),
            gain.eq(Mux(r1.silu, near | far.replicate(FRAC), 0)),
        ]
        r2 = Signal(data.StructLayout({"log": FRAC + 10, "sign": 1, "special": Special}))
        m.d.sync += [r2.log.eq(r1.base + term + gain), r2.sign.eq(r1.sign), r2.special.eq(r1.special)]

        # Stage 3. A power of two's fraction is that of its logarithm less a small correction; it can carry.
        power, field = Signal(8), Signal(10)
        below = table(m, [(i >> FRAC - 7) + 1 - int(a) for i, a in enumerate(ANTILOG)], r2.log[:FRAC], "below")
        m.d.comb += [power.eq(r2.log[FRAC - 7 : FRAC] + 1 - below), field.eq(r2.log[FRAC:] - ~power[7])]
        zero, infinite = Signal(), Signal()
        m.d.comb += [
            zero.eq(field[9] | (field == 0) | (r2.special == Special.ZERO)),
            infinite.eq((~field[9] & (field[8] | field[:8].all())) | (r2.special == Special.INF)),
        ]
        y = Signal(15)
        with m.If(r2.special == Special.NAN):
            m.d.comb += y.eq(NAN)
        with m.Elif(infinite):
            m.d.comb += y.eq(INF)
        with m.Elif(~zero):
            m.d.comb += y.eq(Cat(power[:7], field[:8]))
        m.d.sync += self.y.eq(Cat(y, r2.sign))
        return m

    @staticmethod
    def _shift(m: Module, product: Signal, exponent: Signal) -> Signal:
        """t, from the product and the operand's biased exponent: shifts by its low bits, then by eights."""
        shifted = Signal(T_BITS + 2, name="shift_0")
        m.d.comb += shifted.eq(product << T_BITS + 2 - len(product))
        for i in range(3):
            more = Signal.like(shifted, name=f"shift_{i + 1}")
            m.d.comb += more.eq(Mux(exponent[i], shifted, shifted >> (1 << i)))
            shifted = more
        t = Signal(T_BITS)
        with m.If(exponent >= 127 + 7):
            m.d.comb += t.eq(~Const(0, T_BITS))
        with m.Else():
            with m.Switch(exponent[3:]):
                for i in range(3):
                    with m.Case(16 - i):
                        m.d.comb += t.eq(shifted >> 8 * i)
        return t


class ScoreCode(wiring.Component):
    """Score code of a BF16 number in [0, 1] (`golden.elementwise.score_code`): another bias for the exponent, and a
    right shift with rounding for what is below the format's smallest exponent.

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
    Source: V-Rex section IV-C, Fig. 9 step 3; the format: `golden.params.ScoreFormat`.
    """

    def __init__(self, fmt: ScoreFormat):
        self.fmt = fmt
        super().__init__({"y": In(16), "code": Out(fmt.bits)})

    def elaborate(self, platform):
        fmt, m = self.fmt, Module()
        fraction, exponent, sign = Signal(7), Signal(8), Signal()
        m.d.comb += Cat(fraction, exponent, sign).eq(self.y)
        first = 126 - fmt.max_shift  # exponent field from which on the format has its full significand
        width = max(8, fmt.significand_bits)
        drop = width - fmt.significand_bits

        down, scale = Signal(8), Signal(8)
        m.d.comb += [
            down.eq(Mux(exponent < first, first - exponent, 0)),
            scale.eq(Mux(exponent < first, 0, exponent - first)),
        ]
        kept, lost = Signal(width + 1), Const(0, 1)  # one bit more below the significand
        m.d.comb += kept.eq(Cat(fraction, 1) << width - 7)
        for i in range(bits_for(width + 3)):
            shifted, sticky = Signal(width + 1, name=f"shifted{i}"), Signal(name=f"sticky{i}")
            m.d.comb += [
                shifted.eq(Mux(down[i], kept >> (1 << i), kept)),
                sticky.eq(lost | (down[i] & kept[: 1 << i].any())),
            ]
            kept, lost = shifted, sticky
        whole, up, code = Signal(fmt.significand_bits), Signal(), Signal(fmt.bits + 1)
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
