"""Vector unit of the VPE: banks, operands, lanes, scalar registers, reductions of one row."""

from functools import reduce
from operator import or_

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.vector import SCALARS, Format, Reduce
from openvrex.hdl.execution.vpe_lane import LOAD, OPERANDS, Lane, Result, function_type
from openvrex.hdl.execution.vpe_reduce import RowMax, RowSum
from openvrex.hdl.leaf import place
from openvrex.hdl.memory import Ram, collect_errors, error_members
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import VpeParams, bits_for

REGISTER = bits_for(SCALARS)


def read_layout(p: VpeParams) -> data.StructLayout:
    """Words to read of each bank, and the scalars or immediates of the operands."""
    three = data.ArrayLayout
    scalars = {"register": three(REGISTER, 3), "immediate": three(16, 3), "fixed": 3}
    return data.StructLayout({"en": 3, "addr": three(p.addr_bits, 3), **scalars})


def write_layout(p: VpeParams) -> data.StructLayout:
    """Destination of the results: banks and address; reduction, its register, first and last word of its row."""
    row = {"reduce": 2, "register": REGISTER, "first": 1, "last": 1}
    return data.StructLayout({"banks": 3, "addr": p.addr_bits, **row})


class VectorUnit(wiring.Component):
    """Executes VPE instructions with n_w lanes on rows of its own.

    It never stalls: `hdl.execution.vpe` drives every stage.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    read : In(`read_layout`) : a cycle before the operands
    operands : In(OPERANDS) : with `read`; i : In(32 * n_w) : a word of the stream, a cycle later
    load, fn, result : In : of the lanes, see `hdl.execution.vpe_lane`
    write : In(`write_layout`), live : In(n_w) : of the lanes' results; lanes that count in a reduction
    done : Out(16) : scalar registers that are written at the next clock edge
    format : In(2) : of o : Out(32 * n_w), the word of bank B or C that was read last

    Latency: `Lane.LATENCY` or `Lane.FUNCTION_LATENCY` from operands to results; a reduction's register is written 3
        (maximum), 7 (sum) or 0 cycles (last) after that.
    Throughput: a word a cycle.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A; function: `golden.arithmetic.vector.Machine`.
    """

    def __init__(self, p: VpeParams):
        self.p = p
        super().__init__(
            {
                "read": In(read_layout(p)),
                "operands": In(OPERANDS),
                "i": In(32 * p.n_w),
                "load": In(LOAD),
                "fn": In(function_type(p)),
                "result": In(Result),
                "write": In(write_layout(p)),
                "live": In(p.n_w),
                "done": Out(SCALARS),
                "format": In(2),
                "o": Out(32 * p.n_w),
                **error_members(p.protect),
            }
        )

    def elaborate(self, platform):
        m = Module()
        y = Signal(32 * self.p.n_w)  # results of the lanes
        banks = self._banks(m, y)
        collect_errors(m, self, banks)
        words = [bank.r_data for bank in banks]
        scalars = Signal(data.ArrayLayout(32, SCALARS))
        operands = self._scalar_operands(m, scalars)
        self._lanes(m, platform, words, operands, y)
        self._reduce(m, y, scalars)
        self._output(m, words)
        return m

    def _banks(self, m: Module, y: Signal) -> list[Ram]:
        """Banks a, b and c; b takes the upper halves of the results."""
        p, n, banks = self.p, self.p.n_w, []
        for k, name in enumerate("abc"):
            width = 16 * n if name == "b" else 32 * n
            bank = m.submodules[f"bank_{name}"] = Ram(width, p.depth, protect=p.protect)
            banks.append(bank)
            m.d.comb += [
                bank.r_en.eq(self.read.en[k]),
                bank.r_addr.eq(self.read.addr[k]),
                bank.w_en.eq(self.write.banks[k]),
                bank.w_addr.eq(self.write.addr),
                bank.w_data.eq(self._halves(m, "y_halves", y) if name == "b" else y),
            ]
        return banks

    def _halves(self, m: Module, name: str, word: Value) -> Signal:
        """The upper half of each number."""
        return comb(m, name, Cat(word.word_select(2 * j + 1, 16) for j in range(self.p.n_w)))

    def _scalar_operands(self, m: Module, scalars: Signal) -> list[Signal]:
        """Scalars of the three operands, latched when the banks are read; b's stands in the upper half."""
        operands = []
        for k, name in enumerate("abc"):
            s = Signal(32, name=f"scalar_{name}", reset_less=True)
            immediate = Cat(Const(0, 16), self.read.immediate[k])
            with m.If(self.load.operands):
                m.d.sync += s.eq(Mux(self.read.fixed[k], immediate, scalars[self.read.register[k]]))
            operands.append(s)
        return operands

    def _lanes(self, m: Module, platform: object, words: list[Value], scalars: list[Signal], y: Signal) -> None:
        p, n = self.p, self.p.n_w
        for j in range(n):
            lane = place(m, platform, f"lane{j}", Lane, p)
            m.d.comb += [
                lane.operands.eq(self.operands),
                lane.bank_a.eq(words[0].word_select(j, 32)),
                lane.bank_b.eq(words[1].word_select(j, 16)),
                lane.near_b.eq(words[1].word_select(j ^ min(1, n - 1), 16)),
                lane.far_b.eq(words[1].word_select(j ^ n // 2, 16)),
                lane.bank_c.eq(words[2].word_select(j, 32)),
                lane.stream.eq(self.i.word_select(j, 32)),
                lane.narrow.eq(self.i.word_select(j, 16)),
                lane.scalar_a.eq(scalars[0]),
                lane.scalar_b.eq(scalars[1][16:]),
                lane.scalar_c.eq(scalars[2]),
                lane.load.eq(self.load),
                lane.fn.eq(self.fn),
                lane.result.eq(self.result),
                y.word_select(j, 32).eq(lane.y),
            ]

    def _reduce(self, m: Module, y: Signal, scalars: Signal) -> None:
        """Writes a row's last number, maximum or sum into a scalar register."""
        last = comb(m, "last", self.write.last)
        ends = (self.write.reduce == Reduce.LAST) & last
        written = [(comb(m, "done_last", Mux(ends, 1 << self.write.register, 0), SCALARS), y[:32])]
        for kind, cls in ((Reduce.MAX, RowMax), (Reduce.SUM, RowSum)):
            name = kind.name.lower()
            unit = m.submodules[f"row_{name}"] = cls(self.p)
            m.d.comb += [
                unit.word.eq(y),
                unit.live.eq(self.live),
                unit.valid.eq(self.write.reduce == kind),
                unit.first.eq(self.write.first),
                unit.last.eq(last),
            ]
            register = self.write.register
            for k in range(unit.LATENCY):
                register = reg(m, f"{name}_register{k}", register)
            written.append((comb(m, f"done_{name}", Mux(unit.done, 1 << register, 0), SCALARS), unit.y))
        for done, value in written:
            for k in range(SCALARS):
                with m.If(done[k]):
                    m.d.sync += scalars[k].eq(value)
        m.d.comb += self.done.eq(reduce(or_, (done for done, _ in written)))

    def _output(self, m: Module, words: list[Value]) -> None:
        """The word that STORE puts out, in its format."""
        half = comb(m, "half", words[1])
        lanes = [half.word_select(j, 16) for j in range(self.p.n_w)]
        signs = Cat(~x[15] & x[7:15].any() & ~(x[7:15].all() & x[:7].any()) for x in lanes)
        with m.Switch(self.format):
            with m.Case(Format.WIDE):
                m.d.comb += self.o.eq(words[2])
            with m.Case(Format.HALF):
                m.d.comb += self.o.eq(half)
            with m.Default():
                m.d.comb += self.o.eq(signs)
