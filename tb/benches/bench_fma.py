"""cocotb side of the FMA's bench: drives operands every cycle."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import bits_of


@cocotb.test()
async def words(dut):
    """Drive config["a"], ["b"] and ["c"], one of each a cycle; return y of every cycle."""
    c = config()
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 0
    y = []
    for a, b, addend in zip(c["a"], c["b"], c["c"], strict=True):
        await FallingEdge(dut.clk)
        y.append(f"{bits_of(dut.y):x}")
        dut.op_a.value, dut.op_b.value, dut.op_c.value = a, b, addend
    result({"y": y})
