"""cocotb side of the bench of the expander of 4-bit weights: a word a cycle, and cycles without `move`."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import bits_of


@cocotb.test()
async def words(dut):
    """Drive each of config["i"] until a cycle with `move`; return what leaves in such cycles, and `more` there.

    move : a string of "0" and "1", which repeats
    """
    c = config()
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value, dut.i.value, dut.move.value = 1, 0, 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    out, more, cycle, moves = [], [], 0, c["move"]
    for word in c["i"]:
        dut.i.value = int(word, 16)
        while True:
            move = moves[cycle % len(moves)] == "1"
            dut.move.value = int(move)
            cycle += 1
            if move:
                out.append(f"{bits_of(dut.o):x}")
                more.append(bits_of(dut.more))
            await FallingEdge(dut.clk)
            if move:
                break
    result({"o": out, "more": more})
