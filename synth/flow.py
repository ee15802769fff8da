"""Area of a design: Yosys and ABC in a process of their own, results cached by content."""

import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from synth.liberty import EMBEDDED, Library, SynthError, digest, load, write_atomically

BUILD = Path("build/synth")  # below the current folder, as everything generated
MACRO_BITS = 512  # a smaller memory is a few rows of flip-flops in practice: no memory compiler makes it
AREA_SCRIPT = Path(__file__).with_name("area.abc")
WORKER = Path(__file__).with_name("worker.py")

_READ = (
    "read_verilog -sv top.v",
    "hierarchy -check -top {top}",
    "proc",
    "chformal -remove",  # assertions, and what only they read, are not hardware
    "delete t:$print",
    "synth -run coarse:fine -flatten -noshare",
    "memory_map -rom-only",  # a table of constants is logic; by this way a case of 64 came out at half the area
    "select t:$mem_v2",
    "write_json -selected memories.json",
    "select -clear",
)
# `synth`'s own steps from here on, less its mapping of memories and its ABC runs.
_MAP = (
    "opt -fast -full",
    "opt -undriven -fine",
    "techmap",
    "opt -fast",
    "dfflibmap {bar} {lib}",  # legalises what the library lacks: resets and enables become logic
    "opt -fast",
    "abc -script area.abc {bar} {lib}",
    "opt_clean -purge",
    "tee -o stat.json stat -json",
)
_running: set[subprocess.Popen] = set()
_loading = threading.Lock()  # so that two threads do not both read a library of 50 MB
_library = functools.lru_cache(maxsize=2)(lambda content, paths, build, dont_use: load(list(paths), build, dont_use))


@dataclass(frozen=True)
class Memory:
    """A memory left out of the logic: `depth` words of `width` bits; writes of parts of a word share a port."""

    name: str
    width: int
    depth: int
    read_ports: int
    write_ports: int

    @property
    def bits(self) -> int:
        """Bits stored."""
        return self.width * self.depth


@dataclass(frozen=True)
class Area:
    """Logic area of `top` after mapping, memories beside it.

    unit_cell, unit_area : the library's smallest two-input NAND, one gate equivalent, and its area
    comb_area, reg_area : combinational cells, flip-flops and latches, in the library's unit
    microns : that unit is µm² (a library was given) and not gate equivalents (the embedded one)
    cells : count of each mapped cell · registers : flip-flops and latches
    cpu_seconds, peak_mb : processor time of the run, and the larger of Yosys's and ABC's memory
    """

    top: str
    library: tuple[str, ...]
    microns: bool
    unit_cell: str
    unit_area: float
    comb_area: float
    reg_area: float
    registers: int
    cells: dict[str, int]
    memories: tuple[Memory, ...]
    cpu_seconds: float
    peak_mb: float

    @property
    def comb_ge(self) -> float:
        """Combinational gate equivalents."""
        return self.comb_area / self.unit_area

    @property
    def reg_ge(self) -> float:
        """Gate equivalents of flip-flops and latches."""
        return self.reg_area / self.unit_area

    @property
    def total_ge(self) -> float:
        """Gate equivalents of all logic."""
        return self.comb_ge + self.reg_ge

    @property
    def total_area(self) -> float:
        """Area of all logic in the library's unit."""
        return self.comb_area + self.reg_area

    @property
    def memory_bits(self) -> int:
        """Bits of all memories."""
        return sum(m.bits for m in self.memories)

    def report(self) -> dict:
        """Everything, ready for JSON."""
        extra = ("comb_ge", "reg_ge", "total_ge", "total_area", "memory_bits")
        memories = [asdict(m) | {"bits": m.bits} for m in self.memories]
        return asdict(self) | {n: getattr(self, n) for n in extra} | {"memories": memories}


def synthesise(
    verilog: str | Path,
    top: str,
    liberty: list[Path] | None = None,
    macro_bits: int = MACRO_BITS,
    dont_use: tuple[str, ...] = (),
    build: Path = BUILD,
) -> Area:
    """Area of module `top`, flattened and mapped for least area.

    verilog : source text, or the path of a file
    liberty : library files that are used as one (`.gz` allowed); None is the embedded library
    macro_bits : memories of this many bits or more are left out of the logic, smaller ones are built of flip-flops
    dont_use : patterns of cells to bar, besides those in `synth.liberty.DONT_USE`
    build : where results are kept, under the hash of everything that decides them

    Safe to call from several threads and processes at once: each run is a process of its own.
    Raises: `SynthError` for an unknown top, Verilog that cannot be read, and the library faults of `liberty.load`.
    """
    text = _source(verilog)
    paths = [Path(p) for p in liberty] if liberty else [EMBEDDED]
    recipe = (AREA_SCRIPT.read_text(), WORKER.read_text(), _READ, _MAP, version("pyosys"))
    content = digest(paths)
    parts = (text, top, content, macro_bits, dont_use, recipe)
    kept = build / f"{top}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.json"
    found = _recall(kept)
    if found is not None:
        return found
    with _loading:
        library = _library(content, tuple(paths), build, dont_use)
    area = _run(text, top, library, macro_bits, [p.name for p in paths] if liberty else ["openvrex"], bool(liberty))
    write_atomically(kept, json.dumps(asdict(area), indent=1).encode())
    return area


def stop() -> None:
    """End every run of this process, for a caller that was interrupted while threads of its own wait for them."""
    for process in list(_running):
        _kill(process)


def _source(verilog: str | Path) -> str:
    if isinstance(verilog, str):
        return verilog
    try:
        return verilog.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise SynthError(f"{verilog}: cannot read the Verilog file: {getattr(e, 'strerror', 'not text')}") from None


def _recall(kept: Path) -> Area | None:
    """A kept result; a damaged one is measured again."""
    try:
        d = json.loads(kept.read_text())
        return Area(**d | {"library": tuple(d["library"]), "memories": tuple(Memory(**m) for m in d["memories"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _run(text: str, top: str, library: Library, macro_bits: int, names: list[str], microns: bool) -> Area:
    if not re.fullmatch(r"[A-Za-z_]\w*", top):
        raise SynthError(f"top {top!r}: not a plain Verilog name")
    with tempfile.TemporaryDirectory(prefix="vrex-synth-") as tmp:
        folder = Path(tmp)
        for i, path in enumerate(library.files):  # Yosys takes no name with a space in it
            (folder / f"{i}.lib").symlink_to(path.absolute())
        (folder / "top.v").write_text(text)
        (folder / "area.abc").write_text(AREA_SCRIPT.read_text())
        lib = " ".join(f"-liberty {i}.lib" for i in range(len(library.files)))
        bar = " ".join(f"-dont_use {n}" for n in library.barred)
        job = {
            "top": top,
            "macro_bits": macro_bits,
            "read": [c.format(top=top) for c in _READ],
            "map": [c.format(lib=lib, bar=bar) for c in _MAP],
        }
        (folder / "job.json").write_text(json.dumps(job))
        done = _yosys(folder, top, text)
    cells = Counter({n: c for n, c in done["cells"].items() if n not in ("$mem_v2", "$scopeinfo")})
    for name in cells:
        if name not in library.cells:
            raise SynthError(f"{top}: {', '.join(names)} has no cell for {name} ({cells[name]} of them)")
        if library.cells[name].area is None:
            raise SynthError(f"{', '.join(names)}: cell {name} has no area; use a library with areas")
    area, registers = {True: 0.0, False: 0.0}, 0
    for name, count in cells.items():
        stateful = bool(library.cells[name].state)
        area[stateful] += library.cells[name].area * count
        registers += count * stateful
    return Area(
        top=top,
        library=tuple(names),
        microns=microns,
        unit_cell=library.unit.name,
        unit_area=library.unit.area,
        comb_area=area[False],
        reg_area=area[True],
        registers=registers,
        cells=dict(sorted(cells.items())),
        memories=tuple(Memory(n, *m) for n, m in sorted(done["memories"].items())),
        cpu_seconds=round(done["cpu"], 1),
        peak_mb=round(done["peak"] / 1024, 1),
    )


def _yosys(folder: Path, top: str, text: str) -> dict:
    """Run the job of `folder`; what it found. Raises: `SynthError` with Yosys's own reason."""
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
        try:
            process.wait()
        finally:
            _kill(process)
            _running.discard(process)
        log.seek(0)
        out = log.read()
    if process.returncode == 0:
        return json.loads((folder / "done.json").read_text())
    if process.returncode < 0 and "ERROR" not in out:
        name = signal.Signals(-process.returncode).name
        raise SynthError(f"{top}: Yosys was ended by {name}; if memory ran out, synthesise its units one by one")
    raise SynthError(f"{top}: {_reason(out, top, text)}")


def _reason(log: str, top: str, text: str) -> str:
    """What Yosys stopped at, in our words where they help more."""
    line = next((x for x in reversed(log.splitlines()) if "ERROR:" in x), "")
    where, _, reason = line.partition("ERROR: ")
    plain = reason.replace("\\", "")
    if plain.startswith(f"Module `{top}' not found"):
        modules = sorted(set(re.findall(r"^\s*module\s+\\?([\w.$]+)", text, re.M)))
        return f"no such module; the source has {', '.join(modules) or 'none'}"
    if "cannot be legalized" in plain:
        return f"the library has no cell for a register of the design: {plain}"
    if where.startswith("top.v:"):
        return f"Verilog line {where.split(':')[1]}: {plain}"
    return plain or f"Yosys stopped without a reason: {log.strip()[-200:]!r}"


def _kill(process: subprocess.Popen) -> None:
    """End a run with its ABC, if it has not ended yet."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
