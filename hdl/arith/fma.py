"""Fused multiply-add of FP32 and BF16 numbers."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.arith.carry_save import carry_save
from openvrex.hdl.arith.leading_one import lifted
from openvrex.hdl.arith.order import exceeds
from openvrex.hdl.named import comb, reg

FIELD = 35  # bits of a sum, of weights 2^2 to 2^-32 where the larger operand's exponent counts as 0
BELOW = FIELD - 24  # bits of it below a significand
SHIFT_BITS = 6
NAN, INF = 0x7FC00000, 0x7F800000


class Fma(wiring.Component):
    """Computes op_a * op_b + op_c, exact and rounded once to FP32, or picks the larger or smaller of op_a and op_c.

    Stage 1 multiplies, and finds which of product and addend has the larger exponent, or is picked. Stage 2 shifts the
    other one to it, keeps the bits that leave the field as one sticky bit, and adds or subtracts the magnitudes. The
    field is long enough: with exponents two or more apart the sum reaches weight 2^-1, whose rounding bit is above
    2^-32; closer, no bit leaves it. Stage 3 normalises, rounds and packs.

    Parameters
    ----------
    none

    Members
    -------
    op_a, op_c : In(32) : FP32
    op_b : In(16) : BF16
    pick, least : In(1) : the result is the larger of op_a and op_c, with `least` the smaller; NaN only if both are.
        op_b must be one
    load : In(LATENCY) : stages that take a value at the clock edge; a clock gate needs it
    y : Out(32) : FP32 of the operands of `LATENCY` cycles ago

    Latency: `LATENCY` = 3 cycles, of which the last is the register of `y`. No register has a reset.
    Throughput: one a cycle; no back-pressure.
    Raises: nothing; it has no parameters.
    Source: V-Rex section V-A (the VPE's lanes); rules: `golden.arithmetic.vector`.
    """

    LATENCY = 3

    def __init__(self):
        operands = {"op_a": In(32), "op_b": In(16), "op_c": In(32)}
        picks = dict.fromkeys(("pick", "least"), In(1))
        super().__init__({**operands, **picks, "load": In(self.LATENCY), "y": Out(32)})

    def elaborate(self, platform):
        m = Module()
        r1 = self._operands(m)
        r2 = self._sum(m, r1)
        m.d.comb += self.y.eq(reg(m, "y", self._rounded(m, r2), when=self.load[2]))
        return m

    def _operands(self, m: Module) -> data.View:
        """Stage 1: unpacks and multiplies. Zeros and subnormals have exponent 0."""
        operand = data.StructLayout({"exponent": 8, "fraction": 23, **dict.fromkeys(("some", "inf", "nan", "sign"), 1)})
        a, b, c = (Signal(operand, name=name) for name in "abc")
        for x, source in ((a, self.op_a), (b, Cat(Const(0, 16), self.op_b)), (c, self.op_c)):
            top = source[23:31].all()
            m.d.comb += [
                Cat(x.fraction, x.exponent, x.sign).eq(source),
                x.some.eq(source[23:31].any()),
                x.inf.eq(top & ~x.fraction.any()),
                x.nan.eq(top & x.fraction.any()),
            ]
        sign = comb(m, "p_sign", a.sign ^ b.sign)
        opposite = comb(m, "opposite", sign ^ c.sign)
        p_some, p_inf = comb(m, "p_some", a.some & b.some), comb(m, "p_inf", a.inf | b.inf)
        undefined = comb(m, "undefined", (a.inf & ~b.some) | (b.inf & ~a.some) | (p_inf & c.inf & opposite))

        # The product's exponent is that of the lower of the two bits it can start with.
        p_exponent = comb(m, "p_exponent", a.exponent + b.exponent - 127, 10)
        ahead = comb(m, "ahead", a.exponent + b.exponent - (c.exponent + 127), 11)
        second = comb(m, "second", a.nan | (~c.nan & (exceeds(m, self.op_c, self.op_a, "larger") ^ self.least)))
        # The addend has the larger exponent, or is picked.
        addend = comb(m, "addend", Mux(self.pick, second, ahead[-1] | ~p_some))
        distance = comb(m, "distance", ahead[:10] ^ ahead[-1].replicate(10))  # one too small if the addend is ahead

        product = self._product(m, a.fraction, b.fraction[16:])
        takes_c = comb(m, "takes_c", Mux(self.pick, second, c.inf & ~p_inf))
        infinite = comb(m, "infinite", Mux(self.pick, Mux(second, c.inf, a.inf), p_inf | c.inf))
        nan = comb(m, "nan", Mux(self.pick, a.nan & c.nan, a.nan | b.nan | c.nan | undefined))
        wide_p, wide_c = Cat(Const(0, 2), product), Cat(Const(0, 9), Cat(c.fraction, 1) & c.some.replicate(24))
        r1 = Signal(
            data.StructLayout(
                {
                    "larger": FIELD - 1,
                    "smaller": FIELD - 1,
                    "shift": SHIFT_BITS,
                    "exponent": 10,  # biased by 127, -127 to 383
                    **dict.fromkeys(("sign", "opposite", "addend", "nan", "inf"), 1),
                }
            ),
            reset_less=True,
        )
        with m.If(self.load[0]):
            m.d.sync += [
                r1.larger.eq(Mux(addend, wide_c, wide_p & p_some.replicate(FIELD - 1))),
                r1.smaller.eq(
                    Mux(addend, (wide_p >> 1) & p_some.replicate(FIELD - 1), wide_c) & (~self.pick).replicate(FIELD - 1)
                ),
                r1.shift.eq(distance[:SHIFT_BITS] | distance[SHIFT_BITS:].any().replicate(SHIFT_BITS)),
                r1.exponent.eq(Mux(addend, c.exponent, p_exponent)),
                r1.sign.eq(Mux(takes_c, c.sign, sign)),
                r1.opposite.eq(opposite & ~p_inf & ~c.inf & ~self.pick),
                r1.addend.eq(addend),
                r1.nan.eq(nan),
                r1.inf.eq(infinite),
            ]
        return r1

    def _sum(self, m: Module, r1: data.View) -> data.View:
        """Stage 2: shifts the smaller operand to the larger one's exponent, and adds."""
        aligned, lost = r1.smaller, []
        for k in range(SHIFT_BITS):
            lost.append(comb(m, f"lost{k}", r1.shift[k] & aligned[: 1 << k].any()))
            aligned = comb(m, f"aligned{k}", Mux(r1.shift[k], aligned >> (1 << k), aligned))
        sticky = comb(m, "sticky", Cat(lost).any())
        total, negative = self._magnitude(m, r1.larger, aligned, r1.opposite, sticky)
        r2 = Signal(
            data.StructLayout(
                {"total": FIELD, "exponent": 10, **dict.fromkeys(("sticky", "sign", "opposite", "nan", "inf"), 1)}
            ),
            reset_less=True,
        )
        with m.If(self.load[1]):
            m.d.sync += [
                r2.total.eq(total),
                r2.exponent.eq(r1.exponent),
                r2.sticky.eq(sticky),
                r2.sign.eq(r1.sign ^ (r1.opposite & (r1.addend ^ negative))),
                r2.opposite.eq(r1.opposite),
                r2.nan.eq(r1.nan),
                r2.inf.eq(r1.inf),
            ]
        return r2

    def _rounded(self, m: Module, r2: data.View) -> Value:
        """Stage 3: normalises, rounds and packs."""
        coarse, eights = lifted(m, "coarse", r2.total, 8)
        normal, ones = lifted(m, "normal", coarse, 1)
        zeros = Cat(ones, eights)
        up = comb(m, "up", normal[BELOW - 1] & (normal[BELOW] | normal[: BELOW - 1].any() | r2.sticky))
        kept = normal[BELOW:]
        rounded = comb(m, "rounded", Mux(up, kept + 1, kept), 25)  # the sum does not wait for `up`
        some = comb(m, "some", normal[-1])
        # The exponent without and with a carry from rounding, and whether the result is below or above the range.
        exponent = comb(m, "exponent", r2.exponent.as_signed() + 2 - zeros, 11)
        carried = comb(m, "carried", r2.exponent.as_signed() + 3 - zeros, 11)
        tiny = comb(m, "tiny", ~some | exponent[-1] | (exponent == 0))
        huge = comb(m, "huge", Mux(rounded[24], *(x[8:10].any() | x[:8].all() for x in (carried, exponent))))
        field = comb(m, "field", Mux(rounded[24], carried[:8], exponent[:8]))
        y = Signal(31)
        with m.If(r2.inf | (huge & ~tiny)):
            m.d.comb += y.eq(INF)
        with m.Elif(~tiny):
            m.d.comb += y.eq(Cat(rounded[:23], field))
        minus = comb(m, "minus", r2.sign & (some | r2.sticky | ~r2.opposite))  # operands that cancel give +0
        return Mux(r2.nan, NAN, Cat(y, minus))

    @staticmethod
    def _product(m: Module, fa: Value, fb: Value) -> Signal:
        """Product of the significands, 32 bits, as if neither operand were 0.

        Each partial product takes two bits of b, and one of them uses three times a: a seventh smaller than Booth's
        digits or single bits.
        """
        a = comb(m, "once", Cat(fa, 1), 26)
        thrice = comb(m, "thrice", a + (a << 1), 26)
        rows = []
        for i in range(3):
            low, high = fb[2 * i], fb[2 * i + 1]
            digits = ((low & ~high, a), (high & ~low, (a << 1)[:26]), (low & high, thrice))
            parts = [comb(m, f"row{i}_{k}", value & digit.replicate(26)) for k, (digit, value) in enumerate(digits)]
            rows.append((parts[0] | parts[1] | parts[2]) << 2 * i)
        rows.append(Mux(fb[6], thrice, a << 1) << 6)
        pair, _ = carry_save(m, rows, [], 32, "product")
        return comb(m, "product", (pair[0] + pair[1])[:32])

    @staticmethod
    def _magnitude(m: Module, larger: Value, smaller: Value, opposite: Value, sticky: Value) -> tuple[Value, Signal]:
        """|larger + smaller|, or |larger - smaller - sticky| rounded down, and whether the difference was 0 or below.

        One adder with an end-around carry: x - y is x + ~y + 1, and y - x is the inverse of x + ~y.
        """
        y = comb(m, "inverted", Cat(smaller, 0) ^ opposite.replicate(FIELD))
        half = comb(m, "half", larger ^ y)
        carry, through = comb(m, "carry", larger & y, FIELD), comb(m, "through", larger | y)
        # A prefix network: bit i takes from the end of the block below its own.
        for k in range((FIELD - 1).bit_length()):
            below = {i: (i >> k << k) - 1 for i in range(FIELD) if i >> k & 1}
            into = Cat(carry[below[i]] if i in below else 0 for i in range(FIELD))
            past = Cat(through[below[i]] if i in below else 1 for i in range(FIELD))
            carry = comb(m, f"carry{k}", carry | (through & into))
            through = comb(m, f"through{k}", through & past)
        negative = comb(m, "negative", opposite & ~carry[-1])
        around = comb(m, "around", opposite & carry[-1] & ~sticky)
        carries = comb(m, "carries", carry | (through & around.replicate(FIELD)))
        return half ^ Cat(around, carries[:-1]) ^ negative.replicate(FIELD), negative
