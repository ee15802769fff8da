"""`vrex dev record`: measure the manual's figures by the commands that it shows, and keep both."""

import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.hdl.params import override, preset
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.scripts.records import gpu_results, recorded_results, stream_results, synthesis_results
from openvrex.scripts.records.run_results import OF_WEIGHTS
from openvrex.sim.system import dre_demand
from openvrex.sim.system.gpu_figures import written
from openvrex.sim.system.platforms import H100_FILE, POWER_FILE
from openvrex.synth import flow, fpga, layout, opensta, table3
from openvrex.synth.sram import Sram
from openvrex.synth.structure import structure

RESULTS = recorded_results.DOCS / "results"
# Library -> its files, relative to the folder of the project, as all paths of the manual.
LIBRARIES = {"embedded": "", "ASAP7": "../shared/pdk/asap7*.lib.gz", "SKY130": "../shared/pdk/sky130hd_tt.lib.gz"}
POWERED = ("ASAP7", "SKY130")  # libraries with power tables
VREX = "import sys; sys.argv[0] = 'vrex'; from openvrex.scripts.main import app; app()"


@dataclass(frozen=True)
class Result:
    """A group of recorded figures.

    runs : library and words after `vrex` of each command · units : units of `table3.UNITS` whose Verilog matters, with
    the name of a preset other than `core`, as in "loader of edge8x"; of a result without any, a test compares parts
    with today's code
    keep : makes the figures from pairs of library and report · tools : packages whose versions matter
    """

    runs: tuple[tuple[str, str], ...]
    units: tuple[str, ...]
    keep: Callable[[list[tuple[str, dict]]], dict]
    tools: tuple[str, ...] = ("amaranth", "pycde", "pyosys")


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Results to measure; without a name the command only writes the pages.")
    ] = None,
) -> None:
    """Measure the manual's figures and write its tables.

    The figures stand in docs/results; the tables are made from them.
    """
    for name in names or ():
        check(name in MEASURED, "result", name, f"must be one of {', '.join(MEASURED)}")
    check(
        recorded_results.DOCS.is_dir(),
        "docs",
        str(recorded_results.DOCS),
        "is missing: run the command in a checkout of the project",
    )
    for name in names or ():
        with Spinner(name):
            kept = measure(MEASURED[name])
        write_atomically(RESULTS / f"{name}.json", (json.dumps(kept, indent=1) + "\n").encode())
        console.out.print(f"{name}: {RESULTS / name}.json", highlight=False)
    write_atomically(H100_FILE, written(gpu_results.platform_file(gpu_results.recorded())).encode())
    known = load()
    write_atomically(POWER_FILE, (json.dumps(synthesis_results.core_power(known), indent=1) + "\n").encode())
    for path, text in recorded_results.pages(known).items():
        write_atomically(path, text.encode())
    for page, line in recorded_results.stale(known):
        console.err.print(f"{page}: must say: {line}", highlight=False, soft_wrap=True)


def load() -> dict[str, dict]:
    """The recorded figures of each result, and of the campaigns on each block."""
    return {name: json.loads((RESULTS / f"{name}.json").read_text())["figures"] for name in (*MEASURED, "blocks")}


def measure(result: Result) -> dict:
    """Run the commands of a result and return its record: figures, commands, versions and hashes."""
    reports: list[tuple[str, dict]] = []
    files: dict[str, str] = {}
    for library, words in result.runs:
        pattern = LIBRARIES[library]
        paths = sorted(Path().glob(pattern)) if pattern else []
        check(bool(paths) or not pattern, "library", pattern, "no such file: docs/size.md says where it is from")
        liberty = [word for path in paths for word in ("--liberty", str(path))]
        run = subprocess.run(
            [sys.executable, "-c", VREX, *shlex.split(words), *liberty, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        check(run.returncode == 0, "vrex", words, f"failed: {run.stderr.strip()}")
        reports.append((library, json.loads(run.stdout)))
        files |= {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return {
        "commands": [typed(*run) for run in result.runs],
        "date": date.today().isoformat(),
        "versions": {name: _version(name) for name in result.tools},
        "libraries": files,
        "verilog": {unit: digest(unit) for unit in result.units},
        "figures": result.keep(reports),
    }


def typed(library: str, words: str) -> str:
    """A command as a user types it, in the folder of the project."""
    pattern = LIBRARIES[library]
    return f"vrex {words}" + (f" $(printf -- '--liberty %s ' {pattern})" if pattern else "")


def digest(unit: str) -> str:
    """The structure of a unit as it is today: of `core`, or of the preset that its name ends in."""
    name, _, where = unit.partition(" of ")
    made, _ = table3.design(name, preset(where or "core"), flow.BUILD)
    return structure(made.verilog)


def _version(tool: str) -> str:
    if tool != opensta.COMMAND:
        return version(tool)
    return subprocess.run([tool, "-version"], capture_output=True, text=True, check=False).stdout.strip()


def _clock(reports: list[tuple[str, dict]]) -> dict:
    """The area and the longest paths (ps) of each unit, without its memories' times and with them.

    Each command stands twice: with memories of ASAP7's node, and with those of 14 nm, in ASAP7's FO4.
    """
    out = {}
    for (_, report), (_, later) in zip(reports[::2], reports[1::2], strict=True):
        where = "" if report["preset"] == "core" else f" of {report['preset']}"
        for name, unit in report["units"].items():
            paths, found = unit["timing"]["paths"], unit["with_memories"]["paths"]
            at_14 = later["units"][name]["with_memories"]["paths"]
            out[name + where] = {
                "area": unit["total_area"],
                "delay": paths[0]["delay"],
                "start": paths[0]["start"],
                "end": paths[0]["end"],
                "with_access": found[0]["delay"],
                "access_start": found[0]["start"],
                "access_end": found[0]["end"],
                "at_14": at_14[0]["delay"] * synthesis_results.STEP,
                "kinds": {p["kind"]: p["delay"] for p in found},
                "kinds_14": {p["kind"]: p["delay"] * synthesis_results.STEP for p in at_14},
            }
    return out


def _opensta(reports: list[tuple[str, dict]]) -> dict:
    """The longest path of each unit by `synth.timing` and by OpenSTA (ps; τ with the embedded library)."""

    def beside(ours: dict, theirs: dict) -> dict:
        same = all(_owner(ours["paths"][0][end]) == theirs[end] for end in ("start", "end"))
        return {"ours": ours["delay"], "opensta": theirs["delay"], "same_ends": same}

    return {
        library: {
            name: beside(report["units"][name]["with_memories"], path) for name, path in report["opensta"].items()
        }
        for library, report in reports
    }


def _opensta_power(reports: list[tuple[str, dict]]) -> dict:
    """Power (µW) of each unit's logic by `synth.power` and by OpenSTA, by kind of cells."""
    out: dict[str, dict] = {}
    for library, report in reports:
        out.setdefault(library, {}).update({name: unit["beside"] for name, unit in report["units"].items()})
    return out


def _owner(end: str) -> str:
    """The register, port or memory where a path starts or ends; OpenSTA names a memory without its port."""
    return re.split(" (?:read|write) ", end)[0]


def _area(reports: list[tuple[str, dict]]) -> dict:
    """The rows of Table III (mm²) and the gate equivalents of each unit, by library."""
    return {
        library: {
            "rows": {
                name: {k: row[k] for k in ("name", "paper_area", "area")}
                | {k: row[k]["value"] for k in ("cells", "registers", "memories")}
                for name, row in report["table3"]["rows"].items()
            },
            "ge": {name: unit["total_ge"] for name, unit in report["units"].items()},
        }
        for library, report in reports
    }


def _layout(reports: list[tuple[str, dict]]) -> dict:
    """The layout of each unit, without the names of what is unfinished."""
    out = {}
    for _, report in reports:
        own = {k: v for k, v in report.items() if k not in ("preset", "assignments")}
        own |= {k: len(report[k]) for k in ("unrouted", "open", "split", "touching")}
        out[f"{report['unit']}, {report['effort']}"] = own
    return out


def _scan(reports: list[tuple[str, dict]]) -> dict:
    """The scan chains and faults of each unit, by library."""
    out: dict[str, dict] = {}
    for library, report in reports:
        own = {k: v for k, v in report.items() if k not in ("preset", "assignments", "unit", "effort")}
        out.setdefault(library, {})[report["unit"]] = own
    return out


def _fpga(reports: list[tuple[str, dict]]) -> dict:
    """What each unit takes on an FPGA, by preset."""
    return {report["preset"]: report["units"] for _, report in reports}


def _power(reports: list[tuple[str, dict]]) -> dict:
    """Energy of a cycle (pJ), powers (mW) and cycles of each unit and each part of the DRE, by library.

    use : of the DPE, the share of cycles with a chunk, in each of which it reads exponents of activations
    """

    def milliwatts(report: dict) -> dict:
        powers = {k: report[f"{k}_mw"]["value"] for k in ("dynamic", "leakage", "memory", "total")}
        return powers | {"idle": report["idle_mw"]}

    return {
        library: {
            unit: milliwatts(r)
            | {"pj": r["pj_per_cycle"], "cycles": r["modules"][-1]["cycles"]}
            | ({"use": r["modules"][-1]["accesses"]["exponent_ram.mem"][0]} if unit == "dpe" else {})
            | {"parts": {name.removeprefix("dre__"): milliwatts(p) for name, p in r["parts"].items()}}
            | ({"table3": {k: e.value for k, e in table3.powers_of(report["units"]).items()}} if unit == "dre" else {})
            for unit, r in report["units"].items()
        }
        for library, report in reports
    }


def _first(reports: list[tuple[str, dict]]) -> dict:
    """The report of the one command."""
    ((_, report),) = reports
    return report


def _simulation(reports: list[tuple[str, Any]]) -> dict:
    """By name: the first of a command's tables, or its report."""
    return {
        name: report[0] if isinstance(report, list) and "columns" in report[0] else report
        for name, (_, report) in zip(SIMULATION, reports, strict=True)
    }


def _layers(reports: list[tuple[str, Any]]) -> dict:
    """The rows of each command, by name."""
    return {name: report for name, (_, report) in zip(LAYERS, reports, strict=True)}


def _texts(reports: list[tuple[str, dict]]) -> dict:
    """What each policy answers, and what its own answer follows: agreement and loss of the same tokens."""
    report = _first(reports)
    return {
        name: {"says": says} | {k: report["policies"][name]["generation"][k] for k in ("agreement", "loss")}
        for name, says in report["texts"].items()
    }


def _readings(reports: list[tuple[str, dict]]) -> dict:
    """Gates and memories (mm²) of each variant of the WTU, cycles of rows, milliseconds of a frame."""
    out = {}
    for name, (_, area), (_, frames) in zip(READINGS, reports[::2], reports[1::2], strict=True):
        p, unit = override(preset("core"), area["assignments"]).core.dre, area["units"]["wtu"]
        memories = [(m["depth"], m["width"], m["read_ports"], m["write_ports"], m["shared"]) for m in unit["memories"]]
        out[name] = {
            "readings": p.wtu.readings,
            "ge": unit["total_ge"],
            "memories": sum(Sram(*m[:4], synthesis_results.NODE, m[4]).area.value for m in memories) / 1e6,
            "rows": {n: round(dre_demand.selecting(p, n, LATENCY).cycles) for n in ROWS},
            "frames": {row[0].split()[0].rstrip(","): float(row[1]) for row in frames[0]["rows"]},
        }
    return out


# What reads a row less often, or at less cost: title, parameters.
READINGS = {
    "as generated": "",
    "2 bits a reading": "-p bin_bits=2",
    "4 bits a reading": "-p bin_bits=4",
    "4 bits a reading, 4 bits of a count a cycle": "-p bin_bits=4 -p count_digit=4",
    "codes of 9 bits (e4m5)": "-p wtu.score=e4m5",
    "codes of 8 bits, 4 a reading": "-p wtu.score=e4m4 -p bin_bits=4",
}
ROWS = (1024, 16384)  # clusters
LATENCY = 60  # cycles of memory
CACHE = 20000  # tokens
DRE = ("hcu", "wtu", "cluster_set", "kvmu", "table_port", "dre")
# Delays, ps, at which mapping gives 800 MHz at 14 nm with a quarter of the path for wires: a unit's registers and the
# access times of its memories, which ABC does not know, come on top.
DRE_TARGET, LXE_TARGET = 500, 600
EXECUTION = ("dpe", "vpe", "loader", "storer", "sequencer")
OTHERS = ("retriever", "feeder", "arbiter", "motion_mask", "dre_ip", table3.JOINED)  # beside and around the others
# Units that other presets have otherwise than `core`: an expander of weights, whole buckets, residuals, entries of 4
# bits, several cores.
ELSEWHERE = (
    ("loader", "edge8x", LXE_TARGET),
    ("wtu", "vrex8", DRE_TARGET),
    ("motion_mask", "omni", DRE_TARGET),
    ("retriever", "omni", DRE_TARGET),
    ("arbiter", "edge8", DRE_TARGET),
)
CLOCKED = (
    ("dre", DRE_TARGET),
    *((unit, LXE_TARGET) for unit in EXECUTION),
    *((unit, DRE_TARGET) for unit in OTHERS),
    *((f"{unit} --preset {where}", target) for unit, where, target in ELSEWHERE),
)
SCANNED = ("hcu", "cluster_set", "table_port")
PLACED = ("core", "small")  # presets whose DRE is placed on an FPGA
LAID_OUT = ("hcu --density 0.52", "hcu --effort speed", "cluster_set", "table_port")
PAPER = "--th-hd 7 --ratio 0.3 --no-centre"
BATCHES = (1, 2, 4, 16)  # streams
# Name of the table -> words of the command.
SIMULATION = {
    "limits": "simulate limits --select world:resv-buckets",
    "engines": "simulate engines --select world:resv-buckets -p clusters=2048",
    "policies": "papers policies",
    "pass": "simulate pass",
    "pass edge8x": "simulate pass --preset edge8x",
    "pass server48x": "simulate pass --platform server --preset server48x",
    "frames": "simulate frames --policy resv --home link",
    "frames of 2": "simulate frames --policy resv --home link -p kvmu.entry_bytes=1024",
    "frames of 8": "simulate frames --policy resv --home link -p kvmu.entry_bytes=4096",
    **{
        f"home {kind}{changes}": f"simulate frames --home link --cache 40000{select}{changes}"
        for kind, select in (("resv", " --policy resv"), ("published", " --select world:resv-buckets"))
        for changes in ("", " -p block_slots=32", " -p kv4_group=32", " -p kv4_group=32 -p block_slots=32")
    },
    **{
        f"frames {name}": f"simulate frames {words}".strip()
        for name, words in (
            ("flexgen", "--policy flexgen --platform edge --home link"),
            ("published", "--select world:resv-buckets --home link"),
            ("resv token", "--policy resv --stage token --home link"),
            ("pages token", "--stage token"),
            ("pages", ""),
            ("pages 4 bits far", "-p kv4_group=32 --home link"),
            ("pages x", "-p lxe.weights=true"),
            *((f"weights {name}", f"--platform edge --preset edge8x --weights {name}") for name in OF_WEIGHTS),
            *(
                (f"token {name}", f"--platform edge --preset edge8x --weights {name} --stage token")
                for name in OF_WEIGHTS
            ),
        )
    },
    **{
        f"frames pages{name} 1M": f"simulate frames --cache 1048576 -p clusters=131328{words}"
        for name, words in (
            ("", ""),
            (" x", " -p lxe.weights=true"),
        )
    },
    **{
        f"batch {name} {stage} {n}": f"simulate frames {on} --preset {name} --cache 40960 --stage {stage} --batch {n}"
        for on, name in (("--platform edge", "edge8x"), ("--platform server", "server48x"))
        for stage in ("frame", "token")
        for n in BATCHES
    },
    "windows": "simulate policies --home link --policy full,resv,pages,hybrid,streamingllm,codecsight "
    "-p hybrid.recent_blocks=240",
    "branch": "simulate policies --policy hybrid -p hybrid.recent_blocks=240 -p hybrid.ssm=random --cache 10240",
    "roomy": "simulate policies --policy resv --home link --cache 40960 -p clusters=32768",
    "server": "simulate policies --policy full,resv --home link --cache 40960 --platform server",
    "core": "simulate policies --policy full,resv --home link --cache 40960 --preset core",
}
# The same of a layer, for docs/simulator.md.
LONG = "--cached 1024 --cached 10240 --cached 40960"
_LARGE = "layer --select table2 --tokens 128 --cached 2048 -p w_depth=64 -p x_depth=2048 -p vpe.depth=256 "
_LARGE += "-p bus_bytes=128 -p hcu.frame=128 -p hcu.tile=128"
LAYERS = {
    "layer core": "layer --select table2",
    "layer 128": _LARGE,
    "layer 128, 64 bursts": f"{_LARGE} -p bursts=64",
    **{
        f"{kind} {name}": f"prediction {words}{LONG} --preset {name}"
        for kind, words in (("prediction", "--select table2 "), ("default", ""))
        for name in ("core", "edge8", "server48")
    },
}
FLEET = (
    "papers fleet --platform edge,server --policy flexgen,resv,resv-buckets,mosaic-eager,full,oaken,codecsight,hybrid "
    "--streams 1,4"
)
TEXT = "papers stream world --policy full,hybrid --gop 16 --frames 56 -p hybrid.recent_blocks=16 -o build/text"
MEASURED = {
    "clock": Result(
        tuple(
            ("ASAP7", f"size timing {unit} --effort speed --target {target}{node}")
            for unit, target in CLOCKED
            for node in ("", " --node 14")
        ),
        (*DRE, *EXECUTION, *OTHERS, *(f"{unit} of {where}" for unit, where, _ in ELSEWHERE)),
        _clock,
    ),
    "macros": Result((("embedded", "size macros"),), (), _first, ()),
    "opensta": Result(
        tuple((library, "size timing dre --opensta") for library in LIBRARIES),
        DRE,
        _opensta,
        ("amaranth", "pycde", "pyosys", "sta"),
    ),
    "opensta_power": Result(
        tuple((library, f"size power {unit} --opensta") for library in POWERED for unit in ("hcu", "cluster_set")),
        ("hcu", "cluster_set"),
        _opensta_power,
        ("amaranth", "pycde", "pyosys", "verilator", "sta"),
    ),
    "layout": Result(
        tuple(("SKY130", f"size layout {words}") for words in LAID_OUT),
        ("hcu", "cluster_set", "table_port"),
        _layout,
        ("amaranth", "pycde", "pyosys", *layout.PACKAGES, "sta"),
    ),
    "scan": Result(
        tuple((library, f"size scan {unit} --chains 4") for library in LIBRARIES for unit in SCANNED), SCANNED, _scan
    ),
    "fpga": Result(
        tuple(("embedded", f"size fpga dre --preset {name}") for name in PLACED),
        (*DRE, *(f"{unit} of small" for unit in DRE)),
        _fpga,
        ("amaranth", "pycde", "pyosys", *fpga.PACKAGES.values()),
    ),
    "area": Result(tuple((library, "size table3") for library in LIBRARIES), table3.UNITS, _area),
    "power": Result(
        tuple((library, f"size power hcu wtu cluster_set kvmu dre vpe dpe {PAPER}") for library in LIBRARIES),
        (*DRE, "vpe", "dpe"),
        _power,
        ("amaranth", "pycde", "pyosys", "verilator"),
    ),
    "verify": Result((("embedded", "verify dre --preset tiny"),), (), _first, ("amaranth", "pycde", "verilator")),
    "simulation": Result(tuple(("embedded", words) for words in SIMULATION.values()), (), _simulation, ("numpy",)),
    "layers": Result(tuple(("embedded", f"simulate {words}") for words in LAYERS.values()), (), _layers, ("numpy",)),
    "text": Result((("embedded", TEXT),), (), _texts, ("numpy",)),
    "streams": Result(
        tuple(("embedded", words) for words in stream_results.COMMANDS), (), stream_results.recorded, ("numpy",)
    ),
    "memories": Result((("embedded", "simulate memories"),), (), _first, ("numpy",)),
    "fleet": Result((("embedded", FLEET),), (), _first, ("numpy",)),
    "evaluation": Result((("embedded", "papers evaluate"),), (), _first, ("numpy",)),
    "machines": Result((("embedded", "simulate machines"),), (), _first, ("numpy",)),
    "readings": Result(
        tuple(
            ("embedded", f"{words} {changes}".rstrip())
            for changes in READINGS.values()
            for words in ("size area wtu", f"simulate frames --policy resv --home link --cache {CACHE}")
        ),
        ("wtu",),
        _readings,
    ),
}
