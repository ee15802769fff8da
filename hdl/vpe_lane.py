"""A lane of the VPE."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from golden.vector import MINUS_ZERO, ONE
from hdl.arith.elementwise import Elementwise, Op, ScoreCode
from hdl.arith.fma import Fma
from hdl.params import VpeParams


class Result(enum.Enum, shape=2):
    """What a lane puts out."""

    WIDE = 0  # FP32 of the multiply-add
    ROUNDED = 1  # BF16 of it
    FUNCTION = 2  # of that
    CODE = 3  # score code of that


class Lane(wiring.Component):
    """a * b + c, or the larger or smaller of a and c, and then a rounding, a function and a score code of the result.

    A BF16 number stands in the upper half of its word, and so does a score code; the lower half is 0.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    op_a, op_c : In(32), op_b : In(16) : operands
    pick, least : In(1) : the larger of a and c, with `least` the smaller, in place of the multiply-add
    fn : In(Op) : of the operands of three cycles ago
    result : In(Result) : which result `y` takes at the clock edge after the next
    y : Out(32) : result

    Latency: `LATENCY` = 5 cycles from operands to `y`, `FUNCTION_LATENCY` = 8 for functions and codes.
    Throughput: one result a cycle; who drives it sees to it that no two arrive at once.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A (the VPE); function: `golden.vector`.
    """

    LATENCY = Fma.LATENCY + 2
    FUNCTION_LATENCY = LATENCY + Elementwise.LATENCY

    def __init__(self, p: VpeParams):
        self.p = p
        super().__init__(
            {
                "op_a": In(32),
                "op_b": In(16),
                "op_c": In(32),
                "pick": In(1),
                "least": In(1),
                "fn": In(Op),
                "result": In(Result),
                "y": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.fma = fma = Fma()
        m.submodules.elementwise = elementwise = Elementwise()
        m.submodules.code = code = ScoreCode(self.p.score)

        # Which of two numbers is larger: as integers, NaN last.
        keys = []
        for name, x in (("a", self.op_a), ("c", self.op_c)):
            key = Signal(32, name=f"key_{name}")
            nan = Signal(name=f"nan_{name}")
            m.d.comb += [
                nan.eq(x[23:31].all() & x[:23].any()),
                key.eq((x ^ Cat((x[31] ^ self.least).replicate(31), ~self.least)) & (~nan).replicate(32)),
            ]
            keys.append(key)
        second = Signal()
        m.d.comb += second.eq(self.pick & (keys[1] > keys[0]))
        a, b, c = (Signal(n, name=f"taken_{name}", reset_less=True) for name, n in (("a", 32), ("b", 16), ("c", 32)))
        m.d.sync += [
            a.eq(Mux(second, self.op_c, self.op_a)),
            b.eq(Mux(self.pick, ONE, self.op_b)),
            c.eq(Mux(self.pick, MINUS_ZERO << 16, self.op_c)),
        ]
        m.d.comb += [fma.op_a.eq(a), fma.op_b.eq(b), fma.op_c.eq(c)]

        rounded = Signal(16)
        m.d.comb += rounded.eq(fma.y[16:] + (fma.y[15] & (fma.y[:15].any() | fma.y[16])))
        # Registers of every lane's own: all lanes share these inputs.
        fn, result = Signal(Op, reset_less=True), Signal(Result, reset_less=True)
        m.d.sync += [fn.eq(self.fn), result.eq(self.result)]
        m.d.comb += [
            elementwise.op.eq(fn),
            elementwise.x.eq(rounded),
            code.y.eq(elementwise.y),
        ]
        zero = Const(0, 16)
        with m.Switch(result):
            with m.Case(Result.WIDE):
                m.d.sync += self.y.eq(fma.y)
            with m.Case(Result.ROUNDED):
                m.d.sync += self.y.eq(Cat(zero, rounded))
            with m.Case(Result.FUNCTION):
                m.d.sync += self.y.eq(Cat(zero, elementwise.y))
            with m.Case(Result.CODE):
                m.d.sync += self.y.eq(Cat(zero, code.code))
        return m
