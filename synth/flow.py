"""Measures area and timing of a design. Yosys and ABC map its modules. Results are cached by content."""

import functools
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from openvrex.golden.atomic_files import write_atomically
from openvrex.synth import mapping, memory_times, nldm, source_names, timing
from openvrex.synth.liberty import EMBEDDED, Library, SynthError, digest, load
from openvrex.synth.memory_times import Macro
from openvrex.synth.sram import Sram
from openvrex.synth.timing import MemoryTimes, Timing

BUILD = Path("build/synth")  # folder of caches, below the current folder
MACRO_BITS = 512  # smaller memories become flip-flops, as memory compilers do not make them
GATED = 4  # fewest flip-flops that get a clock gate; with fewer a gate costs the area that their multiplexers save
stop = mapping.stop

_loading = threading.Lock()  # keeps two threads from reading the same library of 50 MB
_library = functools.lru_cache(maxsize=2)(lambda content, paths, build, dont_use: load(list(paths), build, dont_use))


@dataclass(frozen=True)
class MemoryMacro:
    """A memory left out of the logic, with `depth` words of `width` bits. Writes of parts of a word share a port.

    count : number of such memories, in all instances of a leaf
    shared : a single-port macro suffices, as for `hdl.memory.SinglePortRam`: the read and the write port have one
        address, and no cycle uses both
    """

    name: str
    width: int
    depth: int
    read_ports: int
    write_ports: int
    count: int = 1
    shared: bool = False

    @classmethod
    def of(cls, name: str, shape: list[int]) -> "MemoryMacro":
        """The memory that `synth.worker` reports as `shape`: width, words, read ports, write ports, single port."""
        width, depth, read_ports, write_ports, shared = shape
        return cls(name, width, depth, read_ports, write_ports, shared=bool(shared))

    @property
    def bits(self) -> int:
        """Number of bits stored, in all `count` memories."""
        return self.width * self.depth * self.count

    def macro(self, node: int) -> Sram:
        """The SRAM macro of one such memory at a node (nm)."""
        return Sram(self.depth, self.width, self.read_ports, self.write_ports, node, self.shared)


@dataclass(frozen=True)
class Leaf:
    """A module mapped once and instantiated `instances` times. `area` is that of one, without the leaves in it."""

    name: str
    instances: int
    area: "Area"


@dataclass(frozen=True)
class Area:
    """Area and timing of `top` after mapping. The logic includes all instances of leaves; memories count apart.

    effort, library : as asked for, and names of the library files
    microns : areas are in µm² (a library was given), else in gate equivalents (the embedded library)
    unit_cell, unit_area : the library's smallest two-input NAND, which is one gate equivalent, and its area
    comb_area, reg_area : area of combinational cells, and of flip-flops, latches and clock gates, in the library's unit
    registers, clock_gates : number of flip-flops and latches, and of clock gates
    cells : number of cells, by type
    memories : memories left out of the logic
    leaves : area of each leaf; the remaining logic is around them
    timing : longest paths in all modules, None if there is none
    untimed : why there is no timing
    cpu_seconds, peak_mb : processor time of all runs, and the largest memory of Yosys or ABC
    """

    top: str
    effort: str
    library: tuple[str, ...]
    microns: bool
    unit_cell: str
    unit_area: float
    comb_area: float
    reg_area: float
    registers: int
    clock_gates: int
    cells: dict[str, int]
    memories: tuple[MemoryMacro, ...]
    leaves: tuple[Leaf, ...]
    timing: Timing | None
    untimed: str
    cpu_seconds: float
    peak_mb: float

    @property
    def comb_ge(self) -> float:
        """Gate equivalents of combinational cells."""
        return self.comb_area / self.unit_area

    @property
    def reg_ge(self) -> float:
        """Gate equivalents of flip-flops, latches and clock gates."""
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
        """Number of bits of all memories."""
        return sum(m.bits for m in self.memories)

    def report(self) -> dict:
        """All fields and derived figures as a dict that JSON can hold."""
        extra = ("comb_ge", "reg_ge", "total_ge", "total_area", "memory_bits")
        return (
            asdict(self)
            | {n: getattr(self, n) for n in extra}
            | {
                "memories": [asdict(m) | {"bits": m.bits} for m in self.memories],
                "leaves": [asdict(leaf) | {"area": leaf.area.report()} for leaf in self.leaves],
                "timing": self.timing and self.timing.report(),
            }
        )


def synthesise(
    verilog: str | Path,
    top: str,
    liberty: list[Path] | None = None,
    macro_bits: int = MACRO_BITS,
    dont_use: tuple[str, ...] = (),
    build: Path = BUILD,
    leaves: tuple[str, ...] = (),
    effort: str = "area",
    target: float | None = None,
    unread: tuple[str, ...] = ("perf",),
    outside: tuple[str, ...] = (),
    gated: int = GATED,
) -> Area:
    """Maps module `top` to gates and returns its area and timing.

    verilog : source text, or the path of a file
    liberty : library files that are used as one (`.gz` allowed); None is the embedded library
    macro_bits : memories of this many bits or more stay out of the logic, smaller ones become flip-flops
    dont_use : patterns of cells to bar, besides those in `synth.liberty.DONT_USE`
    build : folder of the cache, whose key is a hash of everything that decides the result
    leaves : modules below top that are mapped once each, flattened inside, and counted as often as they are
        instantiated. The rest is flattened around them. Empty: everything is flattened
    effort : "area" maps for least area, "speed" for least delay
    target : delay (ps) between registers that "speed" meets with the least area, None for the least delay. It excludes
        the times of the registers themselves, which ABC does not know
    unread : outputs of top, and of leaves as "leaf.output", that stay open, so that logic which only they read
        disappears. The default is the performance counters, which serve verification
    outside : modules below top that are left out because they are measured elsewhere; the design then has no timing
    gated : flip-flops that share an enable get a clock gate if they are this many or more; 0 gates nothing. A library
        without a clock gate of `liberty.CLOCK_GATES` gates nothing either

    Several threads and processes may call this at once. Each run is a process of its own, and this process runs at most
    `mapping.RUNS` at a time.
    Raises: `SynthError` for an unknown top or leaf, Verilog that cannot be read, and the library faults of
    `liberty.load`. A design that cannot be timed has its area and the reason.
    """
    text = _source(verilog)
    _check(top, (*leaves, *outside), unread, effort, target, gated)
    paths = [Path(p) for p in liberty] if liberty else [EMBEDDED]
    content = digest(paths)
    sources = tuple(Path(str(m.__file__)).read_text() for m in (nldm, source_names, timing))
    names = tuple(p.name for p in paths) if liberty else ("openvrex",)
    # Names and units of the library are in what is kept, so other names ask for the figures again, not for the mapping.
    asked = (names, bool(liberty), macro_bits, dont_use, leaves, effort, target, unread, gated, *outside)
    decides = (text, top, content, asked, mapping.recipe(effort, target), sources)
    kept = build / f"{top}-{hashlib.sha256(repr(decides).encode()).hexdigest()[:32]}.json"
    found = _recall(kept)
    if found is not None:
        return found
    done, library = netlists(
        text, top, liberty, macro_bits, dont_use, build, leaves, effort, target, unread, outside, gated
    )
    area = _total(top, effort, done, library, names, bool(liberty), outside)
    write_atomically(kept, json.dumps(asdict(area), indent=1).encode())
    return area


def netlists(
    verilog: str | Path,
    top: str,
    liberty: list[Path] | None = None,
    macro_bits: int = MACRO_BITS,
    dont_use: tuple[str, ...] = (),
    build: Path = BUILD,
    leaves: tuple[str, ...] = (),
    effort: str = "area",
    target: float | None = None,
    unread: tuple[str, ...] = ("perf",),
    outside: tuple[str, ...] = (),
    gated: int = GATED,
) -> tuple[dict[str, dict], Library]:
    """The reports of `synth.worker` on top and each leaf, and the library. Arguments and errors as in `synthesise`."""
    text = _source(verilog)
    _check(top, (*leaves, *outside), unread, effort, target, gated)
    paths = [Path(p) for p in liberty] if liberty else [EMBEDDED]
    content = digest(paths)
    library = loaded(liberty, dont_use, build)
    texts = {n: t for n, t in _split(text, top, (*leaves, *outside)).items() if n not in outside}
    with ThreadPoolExecutor(len(texts)) as pool:
        options = (library, content + repr(dont_use), macro_bits, effort, target)
        jobs = {}
        for n, t in texts.items():
            others = tuple(x for x in (*leaves, *outside) if x != n)
            left = tuple(name for where, _, name in (o.rpartition(".") for o in unread) if (where or top) == n)
            jobs[n] = pool.submit(mapping.mapped, t, n, others, *options, left, gated, build)
        done = {n: job.result() for n, job in jobs.items()}
    return done, library


@dataclass(frozen=True)
class WithMemories:
    """Timing of a design with the times of its memories.

    node : of the memories that no macro stands for (nm)
    netlists, library : the design, as `netlists` returns it
    times, sources : of each memory by module and name, and where they are from (`memory_times.times`)
    timing : longest paths in all modules, None if there is none
    """

    node: int
    netlists: dict[str, dict]
    library: Library
    times: dict[str, dict[str, MemoryTimes]]
    sources: dict[str, dict[str, str]]
    timing: Timing | None


def with_memories(
    verilog: str | Path, top: str, node: int | None = None, macros: Sequence[Macro] = (), **options: Any
) -> WithMemories:
    """Maps a design and times it with its memories.

    node : of the memories (nm), None for the library's (`memory_times.node_of`)
    macros : whose times replace the model's for memories of their size
    options : arguments of `netlists`
    Raises: `SynthError` as `netlists` does, and for macros beside the embedded library, whose unit is no time;
    `ParamError` for an unknown node.
    """
    done, library = netlists(verilog, top, **options)
    if macros and library.embedded:
        raise SynthError(f"macro {macros[0].name}: has times in ps, the embedded library has none; give --liberty, too")
    node = node or memory_times.node_of(library)
    order = list(_instances(top, done))
    found = {
        n: {
            name: memory_times.times(MemoryMacro.of(name, shape).macro(node), library, macros)
            for name, shape in done[n]["memories"].items()
        }
        for n in order
    }
    times = {n: {name: t for name, (t, _) in own.items()} for n, own in found.items()}
    sources = {n: {name: s for name, (_, s) in own.items()} for n, own in found.items()}
    timed, _ = _timings(order, done, library, not library.embedded, times)
    return WithMemories(node, done, library, times, sources, timed.get(top))


def loaded(liberty: list[Path] | None, dont_use: tuple[str, ...] = (), build: Path = BUILD) -> Library:
    """The library that `netlists` uses. Raises `SynthError` as `liberty.load` does."""
    paths = [Path(p) for p in liberty] if liberty else [EMBEDDED]
    with _loading:
        return _library(digest(paths), tuple(paths), build.absolute(), dont_use)


def _check(
    top: str, leaves: tuple[str, ...], unread: tuple[str, ...], effort: str, target: float | None, gated: int
) -> None:
    """Raises `SynthError` for names that are not plain Verilog names, and as `check_mapping` does."""
    for what, name in (
        ("top", top),
        *(("leaf", n) for n in leaves),
        *(("output", n) for o in unread for n in o.split(".")),
    ):
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise SynthError(f"{what}={name!r}: must be a plain Verilog name (letters, digits, underscores)")
    check_mapping(None, effort, target, gated)


def check_mapping(liberty: list[Path] | None, effort: str, target: float | None, gated: int = GATED) -> None:
    """Raises `SynthError` if `synthesise` would refuse these arguments, before a caller makes Verilog."""
    if effort not in mapping.EFFORTS:
        raise SynthError(f"effort={effort!r}: must be one of {', '.join(mapping.EFFORTS)}")
    if target is not None and (effort != "speed" or not target > 0):
        raise SynthError(f"target={target:g}: must be more than 0 ps, and needs effort speed")
    if gated < 0:
        raise SynthError(f"gated={gated}: must be 0 (no clock gates) or the fewest flip-flops of a clock gate")
    digest(liberty or [])


def _source(verilog: str | Path) -> str:
    """Source text. Raises `SynthError` for a file that cannot be read."""
    if isinstance(verilog, str):
        return verilog
    try:
        return verilog.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise SynthError(f"{verilog}: cannot read the Verilog file: {getattr(e, 'strerror', 'not text')}") from None


def _split(text: str, top: str, leaves: tuple[str, ...]) -> dict[str, str]:
    """Text of top and of each leaf, with the modules that it does not need blanked. Line numbers stay the same."""
    if not leaves:
        return {top: text}
    modules = {m[1]: m for m in re.finditer(r"^[ \t]*module\s+\\?([\w$.]+)\b.*?\bendmodule\b", text, re.M | re.S)}

    def below(name: str) -> set[str]:
        """Modules that a module's text mentions, transitively. They include all that it instantiates."""
        seen, todo = set(), [name]
        while todo:
            name = todo.pop()
            if name in modules and name not in seen:
                seen.add(name)
                todo += set(re.findall(r"[\w$.]+", modules[name][0])) & modules.keys()
        return seen

    out = {}
    for leaf in leaves:
        if leaf == top or leaf not in below(top):
            raise SynthError(f"{top}: leaf {leaf} is not below it; name modules that it instantiates")
        if re.search(r"\bparameter\b", modules[leaf][0]):
            raise SynthError(f"{top}: leaf {leaf} has parameters (each set of values is another module); remove them")
    for name in (*leaves, top):
        needed = below(name)
        out[name] = text
        for other, found in modules.items():
            if other not in needed:
                blank = "\n" * found[0].count("\n")
                out[name] = out[name].replace(found[0], blank, 1)
    return out


def _total(
    top: str,
    effort: str,
    done: dict[str, dict],
    library: Library,
    names: tuple[str, ...],
    microns: bool,
    outside: tuple[str, ...],
) -> Area:
    """Area of a design: the sum of its modules' own cells times their instances."""
    instances = _instances(top, done)
    own = {n: _own(n, effort, d, {*done, *outside}, library, names, microns) for n, d in done.items()}
    timed, untimed = ({}, "") if outside else _timings(list(instances), done, library, microns)
    own = {n: replace(a, timing=timed.get(n), untimed=untimed) for n, a in own.items()}
    parts = [(own[n], instances[n]) for n in (top, *(n for n in done if n != top)) if n in instances]
    cells: Counter[str] = Counter()
    for area, count in parts:
        cells.update({n: c * count for n, c in area.cells.items()})
    return replace(
        own[top],
        comb_area=sum(a.comb_area * n for a, n in parts),
        reg_area=sum(a.reg_area * n for a, n in parts),
        registers=sum(a.registers * n for a, n in parts),
        clock_gates=sum(a.clock_gates * n for a, n in parts),
        cells=dict(sorted(cells.items())),
        memories=own[top].memories
        + tuple(replace(m, name=f"{a.top}.{m.name}", count=n) for a, n in parts[1:] for m in a.memories),
        leaves=tuple(Leaf(a.top, n, a) for a, n in parts[1:]),
        cpu_seconds=round(sum(d["cpu"] for d in done.values()), 1),
        peak_mb=round(max(d["peak"] for d in done.values()) / 1024, 1),
    )


def _instances(top: str, done: dict[str, dict]) -> dict[str, int]:
    """The number of instances of each module that `top` holds, leaves first. Raises `SynthError` for a cycle."""
    inside = {n: {x: d["cells"].get(x, 0) for x in done if x in d["cells"]} for n, d in done.items()}
    try:
        order = list(TopologicalSorter(inside).static_order())
    except CycleError as e:
        raise SynthError(f"{top}: {' in '.join(e.args[1])}: a module cannot contain itself") from None
    instances = Counter({top: 1})
    for name in reversed(order):
        for leaf, count in inside[name].items():
            instances[leaf] += count * instances[name]
    return {n: instances[n] for n in order if instances[n]}


def _own(
    name: str, effort: str, done: dict, modules: set[str], library: Library, names: tuple[str, ...], microns: bool
) -> Area:
    """A module's own area, without the leaves in it."""
    cells = {n: c for n, c in done["cells"].items() if n != "$mem_v2" and n not in modules}
    area, registers, gates = {True: 0.0, False: 0.0}, 0, 0
    for cell, count in cells.items():
        if cell not in library.cells:
            raise SynthError(
                f"{name}: {', '.join(names)} has no {mapping.cell_class(cell)}, {count} of them; {mapping.NO_CELL}"
            )
        own = library.cells[cell].area
        if own is None:
            raise SynthError(f"{', '.join(names)}: cell {cell} has no area; use a library with areas")
        stateful = bool(library.cells[cell].state)
        area[stateful] += own * count
        gate = library.gate is not None and cell == library.gate.cell
        gates += count * gate
        registers += count * (stateful and not gate)
    assert library.unit.area is not None  # `liberty.load` picks a unit with an area
    return Area(
        top=name,
        effort=effort,
        library=names,
        microns=microns,
        unit_cell=library.unit.name,
        unit_area=library.unit.area,
        comb_area=area[False],
        reg_area=area[True],
        registers=registers,
        clock_gates=gates,
        cells=dict(sorted(cells.items())),
        memories=tuple(MemoryMacro.of(n, m) for n, m in sorted(done["memories"].items())),
        leaves=(),
        timing=None,
        untimed="",
        cpu_seconds=round(done["cpu"], 1),
        peak_mb=round(done["peak"] / 1024, 1),
    )


def _timings(
    order: list[str],
    done: dict[str, dict],
    library: Library,
    microns: bool,
    memories: dict[str, dict[str, MemoryTimes]] | None = None,
) -> tuple[dict[str, Timing], str]:
    """Timing of each module, leaves first; without it the reason. `memories` as in `timing.analyse`."""
    used = {c for n in order for c in done[n]["cells"] if c in library.cells}
    try:
        cells = nldm.load(library, used)
        modules = {n: done[n]["netlist"] for n in order}
        found = timing.analyse(modules, cells, "ps" if microns else "tau", memories=memories)
    except SynthError as e:
        return {}, str(e)
    named = {}
    for name, t in found.items():
        signals = (source_names.through(done[p.module]["source"], p.start, p.end) for p in t.paths)
        paths = (replace(p, through=s) for p, s in zip(t.paths, signals, strict=True))
        named[name] = replace(t, paths=tuple(paths))
    return named, ""


def _recall(kept: Path) -> Area | None:
    """The cached result, None if there is none or it is damaged."""
    try:
        return _area(json.loads(kept.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _area(d: dict) -> Area:
    """The area that `dataclasses.asdict` has turned into `d`."""
    return Area(
        **d
        | {
            "library": tuple(d["library"]),
            "memories": tuple(MemoryMacro(**m) for m in d["memories"]),
            "leaves": tuple(Leaf(**leaf | {"area": _area(leaf["area"])}) for leaf in d["leaves"]),
            "timing": d["timing"] and timing.from_json(d["timing"]),
        }
    )
