"""cocotb side of the FMA's bench: drives operands every cycle."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import bits_of


@cocotb.test()
async def words(dut):
    """Drive config["a"], ["b"], ["c"], ["pick"] and ["least"], one of each a cycle; return y of every cycle."""
    c = config()
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 0
    y = []
    ports = {"a": dut.op_a, "b": dut.op_b, "c": dut.op_c, "pick": dut.pick, "least": dut.least}
    for beat in zip(*(c[name] for name in ports), strict=True):
        await FallingEdge(dut.clk)
        y.append(f"{bits_of(dut.y):x}")
        for port, value in zip(ports.values(), beat, strict=True):
            port.value = value
    result({"y": y})
