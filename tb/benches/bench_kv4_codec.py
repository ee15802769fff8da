"""cocotb side of the codec's bench: packs and expands at the full rate."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from tb.library.runner import config, result

PARTS = 4


@cocotb.test()
async def converts(dut):
    """Pack config["beats"], a beat of BF16 numbers a cycle, then expand config["packed"]; returns both results.

    A quad's beats are read from the buffer `config["behind"]` quads behind those that go in.
    """
    c = config()
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    for name in ("puts", "steps", "packs", "expands", "part", "beat", "stored"):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    for _ in range(2):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    beats, behind, got = [int(x, 16) for x in c["beats"]], PARTS * c["behind"], []
    quads = []
    for t in range(len(beats) + behind + 1):
        await FallingEdge(dut.clk)
        stepped = t - behind - 1  # the beat that was read in the cycle before
        dut.puts.value = int(t < len(beats))
        dut.beat.value = beats[t] if t < len(beats) else 0
        if 0 <= stepped < len(beats):
            dut.stored.value = beats[stepped]
        at = t - behind
        dut.steps.value = dut.packs.value = int(0 <= at < len(beats))
        dut.part.value = at % PARTS
        await ReadOnly()
        if 0 <= stepped < len(beats) and stepped % PARTS == PARTS - 1:
            got.append(f"{int(dut.o.value):x}")
        if 0 <= at < len(beats) and at % PARTS == 0:
            quads.append(int(dut.quads.value))
    await FallingEdge(dut.clk)
    left = int(dut.quads.value)
    dut.packs.value, dut.expands.value, expanded = 0, 1, []
    for word in c["packed"]:
        for part in range(PARTS):
            dut.steps.value, dut.part.value = 1, part
            await FallingEdge(dut.clk)
            if part == 0:
                dut.stored.value = int(word, 16)
            await ReadOnly()
            expanded.append(f"{int(dut.o.value):x}")
            await FallingEdge(dut.clk)
            dut.steps.value = 0
    result({"packed": got, "expanded": expanded, "quads": quads, "left": left})
