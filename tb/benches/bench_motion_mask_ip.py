"""cocotb side of the motion mask IP's bench: frames through registers, blocks and masks on AXI4 streams."""

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge, with_timeout

from openvrex.golden.program.isa import Status
from openvrex.hdl.params import MaskParams
from openvrex.hdl.shells.register_block import address_map
from openvrex.tb.library.register_bus import Registers
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of


async def send(bench: Bench, beats: list[dict], idle: float) -> None:
    """Send beats {"data", "last"} of blocks; a share of them has a pause in front."""
    dut = bench.dut
    for beat in beats:
        while bench.rng.random() < idle:
            await RisingEdge(dut.clk)
        dut.s_axis_b_tdata.value, dut.s_axis_b_tlast.value = beat["data"], beat["last"]
        dut.s_axis_b_tvalid.value = 1
        await FallingEdge(dut.clk)
        while not bits_of(dut.s_axis_b_tready):
            await FallingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.s_axis_b_tvalid.value = 0


async def watch(bench: Bench, stall: list[float], seen: dict[str, list]) -> None:
    """Take rows, in a share of the cycles not, and note the cycle of each response to a write, block and row."""
    dut, cycle, was, held = bench.dut, 0, 0, None
    while True:
        dut.m_axis_m_tready.value = int(bench.rng.random() >= stall[0])
        await FallingEdge(dut.clk)
        responds = bits_of(dut.s_axi_bvalid)
        if responds and not was:
            seen["f"].append(cycle)
        was = responds
        if bits_of(dut.s_axis_b_tvalid) and bits_of(dut.s_axis_b_tready):
            seen["i"].append(cycle)
        offer = None
        if bits_of(dut.m_axis_m_tvalid):
            offer = [bits_of(getattr(dut, f"m_axis_m_{n}")) for n in ("tdata", "tuser", "tlast")]
        assert held is None or offer == held, "an offer changes before it is taken"
        taken = offer is not None and bits_of(dut.m_axis_m_tready)
        if taken:
            seen["o"].append([cycle, *offer])
        held = None if taken else offer
        await RisingEdge(dut.clk)
        cycle += 1


@cocotb.test(timeout_time=4_000_000, timeout_unit="ns")
async def frames(dut):
    """Play config["frames"], one behind the other.

    Each has the values of registers ("size", "blocks", ...), the beats of its "stream", and "ends": whether its command
    ends by itself. After one that does not, or that ends with a fault, and after "reset", the block is reset.

    idle, stall : share of cycles in which the streams wait · polls : poll instead of waiting for the interrupt
    """
    c = config()
    bench, regs = Bench(dut, c["seed"]), Registers(dut, address_map("motion_mask_ip", MaskParams(**c["params"])))
    dut.s_axis_b_tvalid.value = dut.m_axis_m_tready.value = 0
    await bench.start()
    seen: dict[str, list] = {"f": [], "i": [], "o": []}
    stall = [c["stall"]]
    cocotb.start_soon(watch(bench, stall, seen))
    await regs.write("irq_enable", done=1, fault=1)
    out = []
    for f in c["frames"]:
        for name, fields in f["registers"].items():
            await regs.write(name, **fields)
        stall[0] = 1.0 if f["hold"] else c["stall"]
        task = cocotb.start_soon(send(bench, f["stream"], c["idle"]))
        first = {name: len(found) for name, found in seen.items()}
        await regs.write("control", start=1)
        begins = seen["f"][-1]
        if f["ends"]:
            if c["polls"]:
                while await regs.read("status.code") == Status.RUNNING:
                    pass
            elif not bits_of(dut.irq):
                await RisingEdge(dut.irq)
            code = await regs.read("status.code")
            assert await regs.read("irq") == (1 if code == Status.DONE else 2)
            await regs.write("irq", done=1, fault=1)
            assert not bits_of(dut.irq)
        else:
            for _ in range(f["reset_after"]):
                await RisingEdge(dut.clk)
            code = await regs.read("status.code")
        kept = {name: await regs.read(f"kept.{name}") for name in ("tokens", "whole")}
        if code != Status.DONE:
            await regs.write("control", start=1)  # ignored
            if code == Status.RANGE:  # the rest of the stream is dropped
                await with_timeout(task, 10_000, "ns")
            task.cancel()
            dut.s_axis_b_tvalid.value = 0
            await regs.write("control", reset=1)
            if f["hold"]:
                assert await regs.read("status.resets")
                assert await regs.read("status.code") == Status.RUNNING
                stall[0] = 0.0
            while await regs.read("status.resets"):
                pass
            assert await regs.read("status.code") == Status.IDLE
            assert await regs.read("perf.mask.frames") == 0
            await regs.write("irq", done=1, fault=1)
        got = {name: found[first[name] :] for name, found in seen.items()}
        out.append({"f": begins, "i": got["i"], "o": got["o"], "code": code, **kept})
    perf = {name: await regs.read(f"perf.mask.{name}") for name in ("frames", "blocks", "masks")}
    await regs.write("irq_test", done=1, fault=1)
    assert await regs.read("irq") == 3
    assert bits_of(dut.irq)
    result({"frames": out, "perf": perf})
