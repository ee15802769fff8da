"""cocotb side of long runs of a core: takes programs and registers, returns status, cycles and counters."""

import os
from pathlib import Path

import cocotb
from cocotb.triggers import FallingEdge, First, Timer
from cocotb.utils import get_sim_time

from golden.program.isa import Status
from hdl.instruction_layouts import PROGRAM, REGISTER, START, host_layout, status_layout
from tb.library.runner import config, result
from tb.library.streams import Bench, unpack


def counts(dut, counters: list[list[int]]) -> list[int]:
    """Sums of performance counters, which are given by their places."""
    perf = int(dut.perf.value)
    return [sum(perf >> 32 * i & 0xFFFFFFFF for i in places) for places in counters]


@cocotb.test()
async def layers(dut):
    """Run programs one after the other on one memory (`tb/library/axi_memory.v`).

    folder : its files
    programs : [words in hex]
    ports : values of constant inputs
    runs : [{"program", "registers"}]
    counters : [[places of counters to add up]]
    every : cycles between samples; a sample has the cycle and the counts since the reset
    limit : cycles after which a run has failed
    """
    c = config()
    os.chdir(c["folder"])
    bench = Bench(dut, c["seed"])
    host = bench.source("host", host_layout())
    for name, value in c["ports"].items():
        getattr(dut, name).value = value
    dut.run.value = 0
    await bench.start()
    done, loaded = [], None
    for k, run in enumerate(c["runs"]):
        dut.run.value = k + 1
        await bench.step()
        if run["program"] != loaded:
            loaded = run["program"]
            words = c["programs"][loaded]
            host.put({"op": PROGRAM, "addr": i, "data": int(word, 16)} for i, word in enumerate(words))
        host.put({"op": REGISTER, "addr": int(r), "data": v} for r, v in run["registers"].items())
        host.put([{"op": START}])
        while host.queue:
            await bench.step()
        await bench.step()  # START has been taken, and nothing more is offered
        start, samples, cycle = get_sim_time("ns"), [], 0
        while int(dut.running.value):
            samples.append([cycle, *counts(dut, c["counters"])])
            assert cycle < c["limit"], f"no end after {c['limit']} cycles: {int(dut.status.value):#x}"
            await First(FallingEdge(dut.running), Timer(2 * c["every"], unit="ns"))
            cycle = int(get_sim_time("ns") - start) // 2
        samples.append([cycle, *counts(dut, c["counters"])])
        status = unpack(status_layout(), int(dut.status.value))
        done.append({"status": status, "cycles": cycle, "samples": samples, "perf": f"{int(dut.perf.value):x}"})
        Path("progress").write_text(str(k + 1))
        await bench.step()
        if status["code"] != Status.DONE:
            break
    dut.run.value = 0
    await bench.step()
    await bench.step()
    result({"runs": done})
