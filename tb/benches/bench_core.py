"""cocotb side of the core's bench of errors and resets: a program is cut short, then runs whole after a reset."""

from pathlib import Path

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge
from cocotbext.axi import AxiBus, AxiSlave

from openvrex.golden.program.isa import Status
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START, host_layout, status_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, unpack

PORTS = ("m_axi", "h_axi", "t_axi")
CHANNELS = ("ar", "aw", "w", "r", "b")
DRAIN, QUIET = 100, 100  # cycles after the end of a run: first for pending transfers, then without any


class Faulty:
    """A memory behind one port. `errors` has the words, ("read" or "write", address), that get an error response."""

    def __init__(self, data: bytearray):
        self.data, self.errors = data, set()

    async def read(self, address: int, length: int) -> bytes:
        """Read a beat."""
        if ("read", address) in self.errors:
            raise OSError(address)
        return bytes(self.data[address : address + length])

    async def write(self, address: int, data: bytes) -> None:
        """Write bytes of a beat."""
        if ("write", address) in self.errors:
            raise OSError(address)
        self.data[address : address + len(data)] = data


async def run(bench: Bench, host, case: dict, cut_at: int, limit: int) -> dict:
    """Reset, load and start a program; its status at the end or after `cut_at` cycles, and channels that move later."""
    dut = bench.dut
    await bench.reset()
    host.put({"op": PROGRAM, "addr": i, "data": int(word, 16)} for i, word in enumerate(case["program"]))
    host.put({"op": REGISTER, "addr": int(r), "data": v} for r, v in case["registers"].items())
    host.put([{"op": START}])
    while host.queue:
        await bench.step()
    if cut_at:
        host.put([{"op": START}])  # it waits for the program's end, which a reset prevents
    await bench.step()
    for _ in range(cut_at or limit):
        await FallingEdge(dut.clk)
        status = unpack(status_layout(), bits_of(dut.status))
        if status["code"] != Status.RUNNING:
            break
    moves = set()
    for n in range(0 if cut_at else DRAIN + QUIET):
        await FallingEdge(dut.clk)
        valid = {f"{p}_{c}" for p in PORTS for c in CHANNELS if bits_of(getattr(dut, f"{p}_{c}valid"))}
        moves |= valid if n >= DRAIN else set()
    return {"status": status["code"], "moves": sorted(moves)}


@cocotb.test()
async def interrupted(dut):
    """Run each case twice: with its errors or cut short by a reset, then whole on the memory as it was.

    memory : a file of bytes from address 0
    cases : [{"program", "registers", "ports": values of constant inputs, "errors": [[port, "read" or "write",
        address]], "cut_at", "bad": ports, other fields of the first run, "kept": [[first, end]], bytes that it leaves}]
    limit : cycles

    What the guards refused in the first run, whether it left what it must, and the memory after each case are part of
    the result.
    """
    c = config()
    bench = Bench(dut, c["seed"])
    host = bench.source("host", host_layout())
    for name, value in c["cases"][0]["ports"].items():
        getattr(dut, name).value = value
    image = np.fromfile(Path(c["memory"]), np.uint8).tobytes()
    data = bytearray(image)
    behind = {p: Faulty(data) for p in PORTS}
    slaves = [AxiSlave(AxiBus.from_prefix(dut, p), dut.clk, dut.rst, target=m) for p, m in behind.items()]
    assert len(slaves) == len(PORTS)
    await bench.start()
    out = []
    for case in c["cases"]:
        both, refused, kept = [], 0, True
        for good in (False, True):
            now = case if good else case | case.get("bad", {})
            for name, value in now["ports"].items():
                getattr(dut, name).value = value
            data[:] = image
            for port, memory in behind.items():
                memory.errors = {(kind, a) for p, kind, a in case["errors"] if p == port and not good}
            both.append(await run(bench, host, now, 0 if good else case["cut_at"], c["limit"]))
            if not good:
                refused = bits_of(dut.refused)
                kept = all(data[first:end] == image[first:end] for first, end in case.get("kept", []))
        out.append([*both, refused, kept, bytes(data).hex()])
    await ClockCycles(dut.clk, 1)
    result({"cases": out})
