"""cocotb side of the core IP's bench: what software does, through registers."""

from pathlib import Path

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiBus, AxiResp, AxiSlave

from openvrex.golden.program.isa import WORD_BITS, Status
from openvrex.hdl.shells.register_block import address_map
from openvrex.tb.benches.bench_core import CHANNELS, PORTS, Faulty
from openvrex.tb.benches.bench_lxe import memory
from openvrex.tb.library.register_bus import Registers
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of
from openvrex.tb.library.transfer_traffic import params


async def prepare(regs: Registers, ports: dict[str, int]) -> None:
    """Enable interrupts, and write the registers that stay constant."""
    await regs.write("irq_enable", done=1, fault=1)
    await regs.settings(ports)


async def load(regs: Registers, words: list[str]) -> None:
    """Write a program."""
    for i, word in enumerate(words):
        await regs.fill("program", i, int(word, 16), WORD_BITS // 8)


async def start(regs: Registers, registers: dict[str, int]) -> None:
    """Write the R registers, then START."""
    for r, value in registers.items():
        await regs.fill("registers", int(r), value, 8)
    await regs.write("control", start=1)


async def ended(dut, regs: Registers, limit: int) -> dict[str, int]:
    """Wait for the interrupt and clear it; the status."""
    if not bits_of(dut.irq):
        await with_timeout(RisingEdge(dut.irq), 2 * limit, "ns")
    at = get_sim_time("ns")
    status = {name: await regs.read(f"status.{name}") for name in ("code", "pc")}
    assert await regs.read("irq") == (1 if status["code"] == Status.DONE else 2)
    await regs.write("irq", done=1, fault=1)
    assert await regs.read("irq") == 0
    assert not bits_of(dut.irq)
    return status | {"at": at}


async def reset(regs: Registers) -> None:
    """Ask for a reset and wait for its end."""
    await regs.write("control", reset=1)
    while await regs.read("status.resets"):
        pass


@cocotb.test(timeout_time=400_000, timeout_unit="ns")  # for a port that never answers
async def program(dut):
    """As `tb.benches.bench_lxe.program`, through registers and an interrupt.

    counters : paths of their registers
    """
    c = config()
    bench, top = Bench(dut, c["seed"]), address_map("core_ip", params(c["params"]))
    data = np.fromfile(c["memory"], np.uint8)
    ram = memory(bench, "m_axi", c["pause"], size=len(data))
    ram.write(0, data.tobytes())
    for port in ("h_axi", "t_axi"):
        memory(bench, port, c["pause"], size=len(data), mem=ram.mem)
    regs = Registers(dut, top)
    await bench.start()
    await prepare(regs, c["ports"])
    runs, loaded = [], None
    for run in c["runs"]:
        for address, text in run["writes"]:
            ram.write(address, bytes.fromhex(text))
        if run["program"] != loaded:
            loaded = run["program"]
            await load(regs, c["programs"][loaded])
        begin = get_sim_time("ns")
        await start(regs, run["registers"])
        status = await ended(dut, regs, c["limit"])
        seen = [ram.read(address, size).hex() for address, size in c["watch"]]
        perf = f"{sum([await regs.read(path) << 32 * i for i, path in enumerate(c['counters'])]):x}"
        runs.append({"status": status, "cycles": int(status["at"] - begin) // 2, "seen": seen, "perf": perf})
    Path(c["memory"]).write_bytes(ram.read(0, len(data)))
    result({"runs": runs})


@cocotb.test(timeout_time=400_000, timeout_unit="ns")  # for a port that never answers
async def faults(dut):
    """Run each case with its errors, then whole after a reset by software, as `bench_core.interrupted` does.

    A case with `cut_at` asks for the reset so many cycles after its start, while the program runs. The first run of a
    case with "bad" has these fields instead. It must leave the bytes of "kept" [[first, end]] as they are.
    """
    c = config()
    bench, top = Bench(dut, c["seed"]), address_map("core_ip", params(c["params"]))
    image = np.fromfile(Path(c["memory"]), np.uint8).tobytes()
    data = bytearray(image)
    behind = {p: Faulty(data) for p in PORTS}
    slaves = [AxiSlave(AxiBus.from_prefix(dut, p), dut.clk, dut.rst, target=m) for p, m in behind.items()]
    assert len(slaves) == len(PORTS)
    regs, setting = Registers(dut, top), top.find_by_path("th_hd").absolute_address
    await bench.start()
    out = []
    for case in c["cases"]:
        codes = []
        for good in (False, True):
            now = case if good else case | case.get("bad", {})
            await prepare(regs, now["ports"])
            data[:] = image
            for port, mem in behind.items():
                mem.errors = {(kind, a) for p, kind, a in case["errors"] if p == port and not good}
            await load(regs, now["program"])
            await start(regs, now["registers"])
            assert await regs.read("status.code") == Status.RUNNING
            await regs.write("control", start=1)  # no effect while a program runs
            if case["cut_at"] and not good:
                assert await regs.put(setting, now["ports"]["th_hd"] ^ 1) == AxiResp.SLVERR  # nor has a setting
                await ClockCycles(dut.clk, case["cut_at"])
                await regs.write("control", reset=1)
                assert await regs.read("status.resets") == 1  # the read waits until the reset has ended
            codes.append((await ended(dut, regs, c["limit"]))["code"] if good or not case["cut_at"] else Status.DONE)
            if not good:
                kept = all(data[first:end] == image[first:end] for first, end in case.get("kept", []))
                if codes[0] != Status.DONE:
                    await regs.write("control", start=1)  # no effect after a fault
                    assert await regs.read("status.code") == codes[0]
                    await regs.write("control", reset=1)
                while await regs.read("status.resets"):
                    pass
                await regs.write("irq", done=1, fault=1)
                assert await regs.read("status.code") == Status.IDLE
                assert await regs.read("perf.lxe.sequencer.instructions") == 0
                channels = (f"{p}_{channel}" for p in PORTS for channel in CHANNELS)
                moves = [name for name in channels if bits_of(getattr(dut, f"{name}valid"))]
        assert await regs.read("th_hd") == case["ports"]["th_hd"]
        out.append([codes, moves, kept, bytes(data).hex()])
        await reset(regs)
    result({"cases": out})
