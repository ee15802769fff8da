"""cocotb side of the elementwise benches: drives a word of all lanes every cycle."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import bits_of


@cocotb.test()
async def words(dut):
    """Drive config["op"] and config["x"] (hexadecimal words of all lanes), one a cycle; return y of every cycle."""
    c = config()
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 0
    y = []
    for op, x in zip(c["op"], c["x"], strict=True):
        await FallingEdge(dut.clk)
        y.append(f"{bits_of(dut.y):x}")
        dut.op.value, dut.x.value = int(op, 16), int(x, 16)
    result({"y": y})


@cocotb.test()
async def codes(dut):
    """Drive config["x"] into combinational circuits; return their codes."""
    out = []
    for x in config()["x"]:
        dut.x.value = int(x, 16)
        await Timer(1, unit="ns")
        out.append(f"{bits_of(dut.code):x}")
    result({"code": out})
