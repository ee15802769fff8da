"""cocotb side of the DRE IP's bench: streams of keys and scores, commands through registers."""

import itertools
from pathlib import Path

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiSlave

from openvrex.golden.program.isa import Status
from openvrex.hdl.shells.dre_ip import key_layout, scores_layout
from openvrex.hdl.shells.register_block import address_map
from openvrex.tb.benches.bench_core import Faulty
from openvrex.tb.benches.bench_lxe import pauses
from openvrex.tb.library.register_bus import Registers
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, pack
from openvrex.tb.library.transfer_traffic import params
from openvrex.tb.library.upsets import flipped

PORTS = ("m_axi", "t_axi")


async def send(bench: Bench, name: str, beats: list[dict], layout, idle: float) -> None:
    """Send beats {"data", "user", "last"} on an AXI4 stream; a share of them has a pause in front."""

    def port(field):
        return getattr(bench.dut, f"s_axis_{name}_{field}")

    for beat in beats:
        while bench.rng.random() < idle:
            await RisingEdge(bench.dut.clk)
        port("tdata").value, port("tlast").value = beat["data"], beat["last"]
        port("tuser").value = pack(layout, beat["user"])
        port("tvalid").value = 1
        await FallingEdge(bench.dut.clk)
        while not bits_of(port("tready")):
            await FallingEdge(bench.dut.clk)
        await RisingEdge(bench.dut.clk)
        port("tvalid").value = 0


@cocotb.test(timeout_time=100_000, timeout_unit="ns")  # four times the longest run
async def commands(dut):
    """Play config["steps"]: keys, rows, writes, commands and resets.

    {"keys"} and {"rows"} go out beside the commands. {"writes": [[address, hex]]} change memory, and {"flips":
    [[address, hex]]} flip bits of it. {"command": fields, "polls", "errors": [["read" or "write", address]], "broken":
    its answer may fail}. {"reset": cycles} asks for a reset so many cycles after the step before. {"settings": values}
    writes registers. {"fault"} waits for a fault without a command, {"drains": kinds} until streams are taken whole.

    memory : a file of bytes from address 0, which also takes the memory at the end
    ports : registers that stay constant
    idle, pause : share of cycles in which the streams and the memory stall

    The result has status, result and count of each command.
    """
    c = config()
    p = params(c["params"])
    bench, regs = Bench(dut, c["seed"]), Registers(dut, address_map("dre_ip", p))
    data = Path(c["memory"]).read_bytes()
    behind = Faulty(bytearray(data))
    for port in PORTS:
        slave = AxiSlave(AxiBus.from_prefix(dut, port), dut.clk, dut.rst, target=behind)
        pauses(bench, slave, c["pause"])
    dut.s_axis_k_tvalid.value = dut.s_axis_s_tvalid.value = 0
    await bench.start()
    while await regs.read("status.resets"):
        pass
    await regs.write("irq_enable", done=1, fault=1)
    await regs.settings(c["ports"])
    out, sending = [], {}
    for step in c["steps"]:
        for kind, name, layout in (("keys", "k", key_layout(p.dre.hcu)), ("rows", "s", scores_layout(p.dre.wtu))):
            if kind in step:
                if name in sending:
                    await sending[name]
                sending[name] = cocotb.start_soon(send(bench, name, step[kind], layout, c["idle"]))
        for address, text in step.get("writes", []):
            behind.data[address : address + len(text) // 2] = bytes.fromhex(text)
        for address, mask in step.get("flips", []):
            item = slice(address, address + len(mask) // 2)
            behind.data[item] = flipped(behind.data[item], bytes.fromhex(mask))
        await regs.settings(step.get("settings", {}))
        for kind in step.get("drains", []):
            await sending[kind[0].replace("r", "s")]
        behind.errors = {tuple(error) for error in step.get("errors", [])}
        if "fault" in step:
            if not bits_of(dut.irq):
                await RisingEdge(dut.irq)
            assert await regs.read("irq") & 3 == 2
            out.append([await regs.read("status.code"), await regs.read("result"), await regs.read("count")])
        if "command" in step:
            fields = step["command"]
            await regs.write("base", value=fields.get("base", 0))
            await regs.write("rows", value=fields.get("rows", 1) - 1)
            names = ("action", "shift")
            await regs.write("command", **{n: fields.get(n, 0) for n in names})
            await regs.write("control", start=1)
            if "reset" in step:
                await ClockCycles(dut.clk, step["reset"])
            elif step.get("polls"):
                while await regs.read("status.code") == Status.RUNNING:
                    pass
            elif not bits_of(dut.irq):
                await RisingEdge(dut.irq)
            code = await regs.read("status.code")
            if not {"reset", "broken"} & step.keys():
                assert await regs.read("irq") & 3 == (1 if code == Status.DONE else 2)
            out.append([code, await regs.read("result"), await regs.read("count")])
        if "reset" in step:
            for task in sending.values():
                task.cancel()
            sending = {}
            dut.s_axis_k_tvalid.value = dut.s_axis_s_tvalid.value = 0
            await regs.write("control", reset=1)
            while await regs.read("status.resets"):
                pass
            assert await regs.read("status.code") == Status.IDLE
            assert await regs.read("perf.retriever.reads") == 0
            for port, channel in itertools.product(PORTS, ("ar", "aw", "w", "r", "b")):
                assert not bits_of(getattr(dut, f"{port}_{channel}valid")), (port, channel)
        await regs.write("irq", done=1, fault=1, corrected=1)
    Path(c["memory"]).write_bytes(behind.data)
    result({"commands": out, "perf": {path: await regs.read(path) for path in c["counters"]}})
