"""Simulator of a core for long runs: the core's Verilog, a memory and a starter, with no Python inside.

`tb/library/core_run.sv` has the memory's AXI4 ports and what starts and watches a program, `tb/library/core_run.cpp`
the memory's bytes and the clock.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvrex.golden.program.isa import Status
from openvrex.hdl.bus.axi import HOST_PREFIX, PREFIX, TABLE_PREFIX, port_members
from openvrex.hdl.emit import Emitted
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START, host_layout, status_layout
from openvrex.hdl.params import CoreParams
from openvrex.hdl.ports import streams
from openvrex.tb.library.runner import ROOT, build
from openvrex.tb.library.waveforms import suffix

LATENCY = 32  # cycles from a read's address to its first beat
EVERY = 64  # cycles between samples of the counters
PREFIXES = PREFIX, HOST_PREFIX, TABLE_PREFIX  # of the ports: LXE, retriever, tables
SIDES = "arvalid", "arready", "araddr", "arlen", "awvalid", "awready", "awaddr"
SIDES += "rvalid", "rready", "rdata", "rlast", "wvalid", "wready", "wdata", "wstrb", "wlast", "bvalid", "bready"


@dataclass(frozen=True)
class CoreSimulator:
    """What is simulated.

    core : the core's Verilog (`hdl.emit.emit`)
    p : its parameters
    counters : the counters that are sampled; each sample is the sum of some, given by their names
    flat : for long runs: six times as long to build at 16 lanes, 1.8 times as fast (docs/archive/decisions.md)
    """

    core: Emitted
    p: CoreParams
    counters: Sequence[Sequence[str]]
    flat: bool = False

    def top(self) -> str:
        """Verilog of the module around the core, `bench_core`, which has a clock and a reset."""
        manifest, ports = self.core.manifest, {x["name"]: x for x in self.core.manifest["ports"]}
        bus = [name for prefix in PREFIXES for name in port_members(self.p, prefix)]
        host = streams(manifest["ports"])["host"]
        payload = {x["name"]: f"host_payload[{x['offset']} +: {x['width']}]" for x in host.payload}
        wires = [n for n in (*bus, "host_valid", "host_ready", "status", "perf") if n in ports]
        given = [n for n, x in ports.items() if x["dir"] == "in" and n not in (*wires, *payload, "clk", "rst")]
        unused = [n for n, x in ports.items() if x["dir"] == "out" and n not in wires]
        given.remove("timeout")
        pins = {n: n for n in ports} | payload | dict.fromkeys(unused, "") | {"timeout": "1'd0"}
        text = "".join(f"  wire [{ports[n]['width'] - 1}:0] {n};\n" for n in wires)
        text += f"  wire [{host.width - 1}:0] host_payload;\n"
        # Constant inputs come from the command line, so that all their values share a simulator.
        text += "".join(f"  reg [{ports[n]['width'] - 1}:0] {n};\n" for n in given)
        text += "".join(f'  initial if (!$value$plusargs("{n}=%h", {n})) $fatal(1, "no +{n}");\n' for n in given)
        text += "".join(f"  assign {a}{n} = 0;\n" for a in PREFIXES for n in ("rid", "rresp", "bid", "bresp"))
        memory = ", ".join(f".{n}({{{', '.join(x + n for x in reversed(PREFIXES))}}})" for n in SIDES)
        names, code = manifest["counters"], status_layout()["code"]
        sums = [" + ".join(f"perf[{32 * names.index(n)} +: 32]" for n in one) for one in self.counters]
        text += "".join(f"  wire [31:0] count_{k} = {one};\n" for k, one in enumerate(sums))
        counts = ", ".join(f"count_{k}" for k in reversed(range(len(sums))))
        sizes = {"REQUEST": host.width, "STATUS": ports["status"]["width"], "CODE": code.offset}
        sizes |= {"CODE_BITS": code.width, "RUNNING": int(Status.RUNNING), "COUNTERS": len(names), "COUNTS": len(sums)}
        sizes |= {"HOLD": manifest.get("reset_cycles", 0), "EVERY": EVERY}
        return (
            f"module bench_{self.core.top}(input clk, input rst);\n{text}"
            f"  {self.core.top} unit({', '.join(f'.{name}({pin})' for name, pin in pins.items())});\n"
            f"  axi_memory #(.BYTES({self.p.lxe.bus_bytes}), .LATENCY({LATENCY}), .PORTS({len(PREFIXES)})) memory(\n"
            f"    .clk(clk), .rst(rst), {memory});\n"
            f"  core_run #({', '.join(f'.{name}({value})' for name, value in sizes.items())}) starter(\n"
            "    .clk(clk), .rst(rst), .host_valid(host_valid), .host_ready(host_ready), .host_payload(host_payload),\n"
            f"    .status(status), .perf(perf), .counts({{{counts}}}));\nendmodule\n"
        )

    @property
    def key(self) -> str:
        """A hash of all that decides what is simulated; how it is built (`flat`) does not."""
        library = ROOT / "tb" / "library"
        texts = [self.core.verilog, self.top(), *((library / f"core_run.{kind}").read_text() for kind in ("sv", "cpp"))]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()

    def build(self, waves: bool = False) -> Path:
        """The path of the simulator; built if its content is new. Raises `BenchError`, `ToolError`."""
        library = ROOT / "tb" / "library"
        files = {"bench.sv": (library / "core_run.sv").read_text() + self.top()}
        files["main.cpp"] = (library / "core_run.cpp").read_text()
        flags = ["-O3", "--x-initial", "unique", "-Wno-fatal", "-Wno-WIDTH", "-DOPENVREX_CHECK"]
        flags += [f"--trace-{suffix()}"] if waves else []
        runtime = f"runtime-core{'-waves' if waves else ''}{'-flat' if self.flat else ''}"
        optimise = "-O0" if waves else "-O2" if self.flat else "-O1"
        return build(self.core, files, flags, [], runtime, optimise, self.flat)


def requests(words: Sequence[int], registers: dict[int, int]) -> str:
    """What the host sends to start a program, a line for each request in hexadecimal: words, registers, START."""
    sent = [{"op": PROGRAM, "addr": k, "data": word} for k, word in enumerate(words)]
    sent += [{"op": REGISTER, "addr": register, "data": value} for register, value in registers.items()]
    sent.append({"op": START, "addr": 0, "data": 0})
    layout = host_layout()
    fields = [(name, layout[name].offset) for name in ("op", "addr", "data")]
    return "".join(
        f"{sum(one[name] << at for name, at in fields):x}\n" for one in [*sent, dict(op=START, addr=0, data=0)]
    )


def ended(bits: int) -> tuple[Status, int]:
    """Status and the address of the instruction issued last, from the bits of a core's status."""
    fields = status_layout()
    code, pc = (bits >> fields[name].offset & (1 << fields[name].width) - 1 for name in ("code", "pc"))
    return Status(code), pc
