"""cocotb side of a system's bench: programs on all cores at once, on one memory."""

from pathlib import Path

import cocotb

from openvrex.golden.program.isa import Status
from openvrex.hdl.execution.system import system_host_layout
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START, status_layout
from openvrex.hdl.params import SystemParams
from openvrex.tb.benches.bench_arbiter import Failing, ReorderingMemory
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, unpack
from openvrex.tb.library.transfer_traffic import params

_TAKEN = 4  # cycles from the last beat on `host` until the status says RUNNING


class Host:
    """Sends programs, registers and starts to the cores, and reads their status."""

    def __init__(self, bench: Bench, p: SystemParams, programs: list[list[str]]):
        self.bench, self.cores, self.programs = bench, p.cores, programs
        self.stream = bench.source("host", system_host_layout(p))
        self.forget()

    def forget(self) -> None:
        """Start again after a reset."""
        self.stream.sent.clear()
        self.loaded = [None] * self.cores

    def start(self, core: int, program: int, registers: dict[str, int]) -> None:
        """Queue a program for a core that does not run."""
        beats = []
        if program != self.loaded[core]:
            self.loaded[core] = program
            beats += [{"op": PROGRAM, "addr": i, "data": int(w, 16)} for i, w in enumerate(self.programs[program])]
        beats += [{"op": REGISTER, "addr": int(r), "data": v} for r, v in registers.items()]
        self.stream.put({"addr": 0, "data": 0, **b, "core": core} for b in [*beats, {"op": START}])

    @property
    def ready(self) -> bool:
        """Whether the cores have taken everything, and `status` shows it."""
        return not self.stream.queue and self.bench.cycle >= self.stream.sent[-1] + _TAKEN

    def status(self) -> list[dict]:
        """Status of all cores."""
        bits, width = bits_of(self.bench.dut.status), status_layout().size
        return [unpack(status_layout(), bits >> width * i & (1 << width) - 1) for i in range(self.cores)]


@cocotb.test()
async def phases(dut):
    """Run each of config["phases"], {"starts": [[core, program, registers]], "writes": [[address, hex]], "errors"}.

    The host writes, then starts the cores. The next phase begins when no core runs any more. The result says which
    cores then had an engine with work ("beside").

    programs : words in hex
    data : a file of the memory from address 0, to which the memory after every phase is appended
    errors : [low, high) of addresses whose bursts fail
    memory : "own" or "axi"
    latency, pause : of the memory
    ports : {name: values of the cores}
    memory_ports : ports of the system
    common : whether it has `common`, whose inputs are in "inputs" of each phase
    cut_at : cycle of a reset, of the memory too, after which everything begins again
    limit : cycles after which the run has failed
    """
    c = config()
    p = SystemParams(params(c["params"]), c["cores"], c["common"], c["memory_ports"])
    bench = Bench(dut, c["seed"])
    host = Host(bench, p, c["programs"])
    for name, values in c["ports"].items():
        width = len(getattr(dut, name)) // p.cores
        getattr(dut, name).value = sum(v << width * i for i, v in enumerate(values))
    dut.perf_core.value = dut.perf_index.value = 0
    initial = Path(c["data"]).read_bytes()
    own = c["memory"] == "own"
    memory = ReorderingMemory(bench, p) if own else Failing(bench, len(initial), c["pause"])

    def begin() -> None:
        host.forget()
        if own:
            memory.begin(bytearray(initial), {"": c["pause"]}, c["latency"])
        else:
            memory.begin(bytearray(initial))

    begin()
    await bench.start()
    if c["cut_at"]:
        for start in c["phases"][0]["starts"]:
            host.start(*start)
        while bench.cycle < c["cut_at"]:
            await memory.step()
        assert host.ready, "the reset comes before the programs"
        assert all(s["code"] == Status.RUNNING for s in host.status()), "the reset comes too late"
        await bench.reset()
        begin()
    out = []
    with Path(c["data"]).open("ab") as images:
        for phase in c["phases"]:
            beside = [i for i, s in enumerate(host.status()) if s["engines"]]
            for address, text in phase["writes"]:
                memory.write(address, bytes.fromhex(text))
            memory.errors = [tuple(span) for span in phase["errors"]]
            for name, value in phase.get("inputs", {}).items():
                getattr(dut, name).value = value
            for start in phase["starts"]:
                host.start(*start)
            first, ends = bench.cycle, [0] * p.cores  # the last cycle in which each core ran
            while not host.ready or any(s["code"] == Status.RUNNING for s in host.status()):
                assert bench.cycle < c["limit"], f"no end after {c['limit']} cycles: {host.status()}"
                for i, status in enumerate(host.status()):
                    ends[i] = bench.cycle if status["code"] == Status.RUNNING else ends[i]
                await memory.step()
            images.write(bytes(memory.data))
            out.append({"status": host.status(), "first": first, "ends": ends, "beside": beside})
    perf = []
    for i in range(p.cores):
        dut.perf_core.value = i
        perf.append([])
        for k in range(c["counters"]):
            dut.perf_index.value = k
            for _ in range(3):
                await bench.step()
            perf[-1].append(bits_of(dut.perf_value))
    orders = [port.order for port in memory.ports] if own else None
    result({"phases": out, "perf": perf, "arbiter": f"{bits_of(dut.perf):x}", "order": orders})
