from itertools import product

from amaranth import Module, Signal

from openvrex.golden.arithmetic.vector import OPERANDS, Instruction, Op, Source
from openvrex.hdl.instruction_layouts import instruction_layout, picks, takes_words
from openvrex.hdl.params import preset
from openvrex.tb.library.simulated import simulated


def test_hardware_decodes_operands_as_golden_does():
    """Every operation with every source: whether it has an operand b, and whether it takes words of the stream."""
    assert OPERANDS.keys() == set(Op)
    m, i, pick, takes = Module(), Signal(instruction_layout(preset("tiny").core.vpe)), Signal(), Signal()
    m.d.comb += [pick.eq(picks(i)), takes.eq((i.op != Op.STORE) & takes_words(i, pick))]
    seen = []

    async def bench(ctx):
        for op, a, b in product(Op, Source, Source):
            for name, value in (("op", op), ("a", a), ("b", b)):
                ctx.set(i[name], value)
            await ctx.delay(1e-9)
            own = Instruction(op=op, a=a, b=b)
            assert ctx.get(pick) == (op != Op.STORE and own.source("b") is None)
            assert ctx.get(takes) == own.streams
            seen.append(own.streams)

    simulated(m, bench)
    assert len(seen) == 64
    assert 0 < sum(seen) < 64
