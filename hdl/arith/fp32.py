"""Normaliser: FP32 numbers from wide integers."""

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.function_params import check
from openvrex.hdl.arith.leading_one import halved
from openvrex.hdl.named import reg

BIAS = 127


class Normaliser(wiring.Component):
    """Rounds x * 2^(step * scale + offset) once to FP32; a zero result is +0.

    Parameters
    ----------
    width : bits of the signed integer
    scale_bits, step, offset : of the exponent

    Members
    -------
    x : In(width), scale : In(scale_bits) : the integer, and its scale
    nan, infinite, minus : In(1) : the result is NaN, or else infinite with that sign, whatever x
    load : In(LATENCY) : stages that take a value at the clock edge; a clock gate needs it
    y : Out(32) : FP32

    Latency: 3 cycles (`LATENCY`): magnitude; coarse and fine normalisation; rounding.
    Throughput: one result a cycle, no back-pressure.
    Raises: `ParamError` for a width below 26.
    Source: one normalisation as `golden.arithmetic.dot` has it; rounding to nearest, ties to even.
    """

    LATENCY = 3

    def __init__(self, width: int, scale_bits: int, step: int, offset: int):
        check(width >= 26, "width", width, "must be at least 26: significand, guard and sign")
        self.width, self.scale_bits, self.step, self.offset = width, scale_bits, step, offset
        super().__init__(
            {
                "x": In(width),
                "scale": In(scale_bits),
                "nan": In(1),
                "infinite": In(1),
                "minus": In(1),
                "load": In(self.LATENCY),
                "y": Out(32),
            }
        )

    def elaborate(self, platform):
        m, width = Module(), self.width

        negative = self.x[-1]
        magnitude = reg(m, "magnitude", (self.x ^ negative.replicate(width)) + negative, width, when=self.load[0])
        # The biased exponent if the highest bit of `magnitude` were the leading one.
        ceiling = self.offset + width - 1 + BIAS
        largest = ceiling + self.step * ((1 << self.scale_bits) - 1)
        shape = signed(max(largest, -(ceiling - width)).bit_length() + 1)
        exponent = reg(m, "exponent", self.scale * self.step + ceiling, shape, when=self.load[0])
        sign = Mux(self.infinite, self.minus, negative)
        special = reg(m, "special", Cat(self.nan, self.infinite, sign), when=self.load[0])

        # Shift left until the leading one is the highest bit: half of the steps in this cycle, half in the next.
        steps = [1 << k for k in reversed(range((width - 1).bit_length()))]
        half = len(steps) // 2
        coarse, up = halved(m, "coarse", magnitude, steps[:half])
        coarse2, exponent2, special2 = (
            reg(m, "coarse2", coarse, when=self.load[1]),
            reg(m, "exponent2", exponent - up, shape, when=self.load[1]),
            reg(m, "special2", special, when=self.load[1]),
        )
        fine, more = halved(m, "fine", coarse2, steps[half:])
        significand, guard, rest = fine[-24:], fine[-25], fine[:-25].any()
        at = Signal(shape, name="at")
        rounded = Signal(25, name="rounded")
        m.d.comb += [at.eq(exponent2 - more), rounded.eq(significand + (guard & (rest | significand[0])))]
        final = Signal(shape, name="final")
        nan, infinite, minus = special2
        m.d.comb += final.eq(at + rounded[24])
        huge, normal = Signal(), Signal()
        m.d.comb += huge.eq(infinite | ((final >= 255) & fine[-1]))  # a sum of zero is not huge
        m.d.comb += normal.eq((at >= 1) & fine[-1])
        body = Signal(31, name="body")
        with m.If(nan):
            m.d.comb += body.eq(0x7FC00000)
        with m.Elif(huge):
            m.d.comb += body.eq(0x7F800000)
        with m.Elif(normal):
            m.d.comb += body.eq(Cat(rounded[:23], final[:8]))
        m.d.comb += self.y.eq(reg(m, "y", Cat(body, minus & ~nan & (huge | normal)), when=self.load[2]))
        return m
