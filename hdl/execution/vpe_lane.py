"""Lane of the VPE."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.vector import ONE, Source
from openvrex.hdl.arith.elementwise_logic import Elementwise, HybridOp, Op, ScoreCode
from openvrex.hdl.arith.fma import Fma
from openvrex.hdl.named import reg
from openvrex.hdl.params import VpeParams


class Result(enum.Enum, shape=2):
    """The kind of result that a lane puts out."""

    WIDE = 0  # FP32 of the multiply-add
    ROUNDED = 1  # BF16 of the multiply-add
    FUNCTION = 2  # function of the BF16 number
    CODE = 3  # score code of the function's result


# a, b, c: source of each operand. negate_a, negate_c: flip its sign. swap: of b, one-hot. wide: the stream's words are
# FP32. pick: the larger of a and c (with least the smaller) in place of the multiply-add.
OPERANDS = data.StructLayout(
    {"a": 2, "b": 2, "c": 2, "negate_a": 1, "negate_c": 1, "swap": 2, "wide": 1, "pick": 1, "least": 1}
)


def function_type(p: VpeParams) -> type[enum.Enum]:
    """The codes of the functions that these parameters have."""
    return HybridOp if p.format.hybrid else Op


# Stages that take a value at the clock edge, by the registers that they end in.
LOAD = data.StructLayout({"operands": 1, "taken": 1, "fma": Fma.LATENCY, "function": Elementwise.LATENCY, "y": 1})


class Lane(wiring.Component):
    """Computes a * b + c, or the larger or smaller of a and c, and then a rounding, a function and a score code.

    A BF16 number stands in the upper half of its word, and so does a score code; the lower half is 0. Each lane has its
    own registers for the signals that all lanes share, so that none of them drives more than a lane. `load` has none:
    each of its bits drives a clock gate a lane.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    operands : In(OPERANDS) : sources of the next cycle's operands
    bank_a, bank_c : In(32), bank_b, near_b, far_b : In(16) : the banks' words; of b also the other lanes' for a swap
    stream : In(32), narrow : In(16) : the number of the stream's word, if it is FP32 and if it is BF16
    scalar_a, scalar_c : In(32), scalar_b : In(16) : scalars or immediates
    load : In(LOAD) : stages that take a value at the clock edge
    fn : In(`function_type`) : function for the operands of three cycles ago
    result : In(Result) : the result that `y` takes at the clock edge after the next
    y : Out(32) : result

    Latency: `LATENCY` = 5 cycles from operands to `y`, `FUNCTION_LATENCY` = 8 for functions and codes.
    Throughput: one result a cycle; the unit around it ensures that no two arrive at once.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A (the VPE); function: `golden.arithmetic.vector`.
    """

    LATENCY = Fma.LATENCY + 2
    FUNCTION_LATENCY = LATENCY + Elementwise.LATENCY

    def __init__(self, p: VpeParams):
        self.p = p
        wide, half = ("bank_a", "bank_c", "stream", "scalar_a", "scalar_c"), ("bank_b", "near_b", "far_b", "narrow")
        numbers = dict.fromkeys(wide, In(32)) | dict.fromkeys((*half, "scalar_b"), In(16))
        codes = {"fn": In(function_type(p)), "result": In(Result)}
        super().__init__({"operands": In(OPERANDS), **numbers, "load": In(LOAD), **codes, "y": Out(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fma = fma = Fma()
        m.submodules.elementwise = elementwise = Elementwise(self.p.format.hybrid)
        m.submodules.code = code = ScoreCode(self.p.score)

        # Operands.
        now = Signal(OPERANDS, reset_less=True)
        with m.If(self.load.operands):
            m.d.sync += now.eq(self.operands)
        stream, bank_b = Signal(32, name="word"), Signal(16, name="partner")
        m.d.comb += [
            stream.eq(Mux(now.wide, self.stream, Cat(Const(0, 16), self.narrow))),
            bank_b.eq(Mux(now.swap[1], self.far_b, Mux(now.swap[0], self.near_b, self.bank_b))),
        ]
        operands = []
        for name, bank, word in (("a", self.bank_a, stream), ("b", bank_b, stream[16:]), ("c", self.bank_c, None)):
            scalar = getattr(self, f"scalar_{name}")
            s = Signal(len(bank), name=f"operand_{name}")
            chosen = Mux(now[name] == Source.BANK, bank, scalar)
            m.d.comb += s.eq(chosen if word is None else Mux(now[name] == Source.STREAM, word, chosen))
            operands.append(s)
        op_a, op_b, op_c = operands
        op_a = Cat(op_a[:31], op_a[31] ^ now.negate_a)
        op_c = Cat(op_c[:31], op_c[31] ^ now.negate_c)

        a, b, c = (Signal(n, name=f"taken_{name}", reset_less=True) for name, n in (("a", 32), ("b", 16), ("c", 32)))
        pick, least = (Signal(name=f"taken_{name}", reset_less=True) for name in ("pick", "least"))
        with m.If(self.load.taken):
            m.d.sync += [
                a.eq(op_a),
                b.eq(Mux(now.pick, ONE, op_b)),
                c.eq(op_c),
                pick.eq(now.pick),
                least.eq(now.least),
            ]
        m.d.comb += [
            fma.op_a.eq(a),
            fma.op_b.eq(b),
            fma.op_c.eq(c),
            fma.pick.eq(pick),
            fma.least.eq(least),
            fma.load.eq(self.load.fma),
        ]

        rounded = Signal(16)
        m.d.comb += rounded.eq(fma.y[16:] + (fma.y[15] & (fma.y[:15].any() | fma.y[16])))
        fn = Signal(function_type(self.p), reset_less=True, name="fn")
        result = Signal(Result, reset_less=True, name="result")
        m.d.sync += [fn.eq(self.fn), result.eq(self.result)]
        m.d.comb += [
            elementwise.op.eq(fn),
            elementwise.x.eq(rounded),
            elementwise.load.eq(self.load.function),
            code.y.eq(elementwise.y),
        ]
        zero = Const(0, 16)
        y = Signal(32)
        with m.Switch(result):
            with m.Case(Result.WIDE):
                m.d.comb += y.eq(fma.y)
            with m.Case(Result.ROUNDED):
                m.d.comb += y.eq(Cat(zero, rounded))
            with m.Case(Result.FUNCTION):
                m.d.comb += y.eq(Cat(zero, elementwise.y))
            with m.Case(Result.CODE):
                m.d.comb += y.eq(Cat(zero, code.code))
        m.d.comb += self.y.eq(reg(m, "y", y, when=self.load.y))
        return m
