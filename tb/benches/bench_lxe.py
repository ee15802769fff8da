"""cocotb side of the benches of LXE and core: takes programs and memory, returns status, memory and counters."""

from pathlib import Path

import cocotb
import numpy as np
from cocotb.triggers import First, Timer, ValueChange
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiBus, AxiRam, AxiSlave

from openvrex.golden.program.isa import Status
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START, host_layout, status_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, unpack


def memory(bench: Bench, prefix: str, pause: float, **how) -> AxiRam:
    """A memory at one of the AXI ports; its channels stall in a share of the cycles."""
    dut = bench.dut
    ram = AxiRam(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst, **how)
    pauses(bench, ram, pause)
    return ram


def pauses(bench: Bench, memory: AxiRam | AxiSlave, share: float) -> None:
    """Make a memory's channels stall in a share of the cycles."""
    for side, channels in ((memory.write_if, ("aw", "w", "b")), (memory.read_if, ("ar", "r"))) if share else ():
        for name in channels:
            waits = (bench.rng.random() < share for _ in iter(int, 1))
            getattr(side, f"{name}_channel").set_pause_generator(waits)


@cocotb.test()
async def program(dut):
    """Run programs one after the other on one memory.

    programs : [words in hex]
    memory : a file of bytes from address 0, which also takes the memory at the end
    ports : values of constant inputs
    runs : [{"program", "registers", "writes": [[address, hex]]}]
    watch : [[address, bytes]] whose contents are returned after each run
    pause : share of cycles in which a channel of a memory stalls
    limit : cycles after which a run has failed
    """
    c = config()
    bench = Bench(dut, c["seed"])
    host = bench.source("host", host_layout())
    for name, value in c["ports"].items():
        getattr(dut, name).value = value
    data = np.fromfile(c["memory"], np.uint8)
    ram = memory(bench, "m_axi", c["pause"], size=len(data))
    ram.write(0, data.tobytes())
    for port in ("h_axi", "t_axi"):
        if hasattr(dut, f"{port}_araddr"):
            memory(bench, port, c["pause"], size=len(data), mem=ram.mem)
    await bench.start()
    runs, loaded = [], None
    for run in c["runs"]:
        for address, text in run["writes"]:
            ram.write(address, bytes.fromhex(text))
        if run["program"] != loaded:
            loaded = run["program"]
            words = c["programs"][loaded]
            host.put({"op": PROGRAM, "addr": i, "data": int(word, 16)} for i, word in enumerate(words))
        host.put({"op": REGISTER, "addr": int(r), "data": v} for r, v in run["registers"].items())
        host.put([{"op": START}])
        while host.queue:
            await bench.step()
        await bench.step()  # START has been taken, and nothing more is offered
        start = get_sim_time("ns")
        while (status := unpack(status_layout(), bits_of(dut.status)))["code"] == Status.RUNNING:
            cycles = int(get_sim_time("ns") - start) // 2
            assert cycles < c["limit"], f"no end after {c['limit']} cycles: {status}"
            await First(ValueChange(dut.status), Timer(2 * c["limit"], unit="ns"))
        cycles = int(get_sim_time("ns") - start) // 2
        seen = [ram.read(address, size).hex() for address, size in c["watch"]]
        runs.append({"status": status, "cycles": cycles, "seen": seen, "perf": f"{bits_of(dut.perf):x}"})
        await bench.step()
        if status["code"] != Status.DONE:
            break
    Path(c["memory"]).write_bytes(ram.read(0, len(data)))
    result({"runs": runs})
