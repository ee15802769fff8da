"""Computes the objectives of a sweep's points (cycles, bytes, area, clock, energy) from tasks that points share.

A unit is timed and synthesised once for all points in which its parameters are the same. A grid of HCUs and WTUs thus
costs as many syntheses as the sum of its axes, not their product. HCU and KVMU are timed together, because they share
the port to the tables. The memory behind that port answers `LATENCY` cycles after a request.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl import emit
from openvrex.hdl.params import DreParams, HcuParams, WtuParams
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.hcu_time import JOIN, SWITCH
from openvrex.sim.units.wtu_cores_time import WtuCores
from openvrex.synth import flow, technology
from openvrex.synth.liberty import EMBEDDED, digest, load
from openvrex.synth.sweep.energy import Energy, energy, hcu_events, row_words
from openvrex.synth.sweep.points import Design, Point
from openvrex.synth.sweep.trace_tables import Stream, file_digest, stream

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("golden", "hdl", "sim", "synth")
RECORDED = ("hcu", "wtu", "cluster_set", "kvmu")  # units whose energies are measured
UNITS = (*RECORDED, "table_port")
LATENCY = 100  # cycles of the memory behind the table port, as `vrex simulate layer` takes by default
BASE = 1 << 20  # base address of the KVMU's device and home memory, which decides where bursts are cut


@dataclass(frozen=True)
class Objective:
    """A quantity to optimise.

    most : more is better
    timed : needs the time views
    built : needs synthesis
    recorded : needs a recorded run of every unit
    """

    title: str
    unit: str
    most: bool = False
    timed: bool = False
    built: bool = False
    recorded: bool = False


OBJECTIVES = {
    "cycles": Objective("DRE cycles per frame and table", "cycles", timed=True),
    "bytes": Objective("fetched per frame and table", "bytes", timed=True),
    "area": Objective("DRE area", "µm²", built=True),
    "fmax": Objective("highest clock", "MHz", most=True, built=True),
    "energy": Objective(
        "DRE energy per frame and table, without table port", "nJ", timed=True, built=True, recorded=True
    ),
}


@cache
def code() -> str:
    """Hash of all sources that decide a result, and of the version of Yosys."""
    files = [f for p in PACKAGES for f in (ROOT / p).rglob("*") if f.suffix in (".py", ".abc", ".v")]
    files += [*(ROOT / "tb" / "library").glob("*.py"), *(ROOT / "tb" / "benches").glob("*.py")]
    text = [(f.relative_to(ROOT).as_posix(), f.read_bytes()) for f in sorted(files)]
    return hashlib.sha256(repr((text, version("pyosys"))).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Settings:
    """The settings that all points of a sweep share. Paths are absolute, because workers may run elsewhere.

    trace_digest, library_digest : hashes of the files' contents
    queries : number of frames to time, from the end of the trace
    effort, target : as in `synth.flow.synthesise`
    node : process node (nm) for area and clock
    build : folder of synthesis caches
    code : hash of all sources
    """

    trace: str
    trace_digest: str
    queries: int
    liberty: tuple[str, ...]
    library_digest: str
    effort: str
    target: float | None
    node: int
    build: str
    code: str

    @classmethod
    def of(
        cls, trace: Path, queries: int, liberty: list[Path], effort: str, target: float | None, node: int
    ) -> "Settings":
        """Settings for existing files. Raises `TraceError`, `SynthError` or `ParamError` for a bad argument or file."""
        check(queries >= 1, "queries", queries, "must be at least 1")
        check(effort in ("area", "speed"), "effort", effort, "must be one of area, speed")
        ok = target is None or (effort == "speed" and target > 0)
        check(ok, "target", target, "must be more than 0 ps, and needs effort speed")
        technology.node(node)
        Trace.load(trace)
        return cls(
            trace=str(trace.absolute()),
            trace_digest=file_digest(trace),
            queries=queries,
            liberty=tuple(str(f.absolute()) for f in liberty),
            library_digest=digest(list(liberty) or [EMBEDDED]),
            effort=effort,
            target=target,
            node=node,
            build=str(flow.BUILD.absolute()),
            code=code(),
        )

    @property
    def identity(self) -> str:
        """Everything that decides results. The paths of the files do not."""
        kept = (self.trace_digest, self.queries, self.library_digest, self.effort, self.target, self.node, self.code)
        return repr(kept)


@dataclass(frozen=True)
class Task:
    """A call `function(*arguments, *results of inputs)`. Two tasks with the same key are the same."""

    kind: str
    function: Callable
    arguments: tuple
    inputs: tuple["Task", ...] = ()
    salt: str = ""  # anything else that decides the result

    @cached_property
    def key(self) -> str:
        """Hash of everything that decides the result."""
        decides = (self.arguments, [t.key for t in self.inputs], self.salt)
        return f"{self.kind}-{hashlib.sha256(repr(decides).encode()).hexdigest()[:32]}"


def key_of(design: Design | Point, settings: Settings) -> str:
    """Key of a design's results, from its parameters, trace, library and code; or that of a point that is no design."""
    return hashlib.sha256(repr((design, settings.identity)).encode()).hexdigest()[:32]


def task(design: Design, objectives: tuple[str, ...], settings: Settings) -> Task:
    """The task of a point, with the tasks that it shares as inputs. Its result is {objective or detail: number}."""
    dre, f = design.system.core.dre, design.function
    make = partial(Task, salt=settings.code)
    inputs: list[Task] = []
    if any(OBJECTIVES[o].timed for o in objectives):
        shared = replace(f, recent=1)  # the selection does not depend on where the KVMU keeps entries
        seen = make("stream", stream, (shared, settings.trace, settings.trace_digest, settings.queries))
        inputs += [
            make("table cycles", table_cycles, (without_wtu(dre), f.th_hd), (seen,)),
            make("wtu cycles", wtu_cycles, (dre.wtu, f.ratio_q16), (seen,)),
        ]
    if any(OBJECTIVES[o].built for o in objectives):
        options = (settings.liberty, settings.library_digest, settings.effort, settings.target, settings.build)
        for unit in UNITS:
            own = emit.params_of(unit, design.system)
            if isinstance(own, WtuParams):
                own = replace(own, n_h=1)  # all cores are the same
            if isinstance(own, DreParams):
                own = port_view(own)
            known = make(f"{unit} synthesis", built, (unit, own, *options))  # its netlist serves the energies, too
            inputs.append(known)
            if unit in RECORDED and any(OBJECTIVES[o].recorded for o in objectives):
                arguments = (unit, own, shared, options, settings.node)
                inputs.append(make(f"{unit} energy", energy, arguments, (seen, known)))
    return make("point", combine, (dre, objectives, settings.node, tuple(t.kind for t in inputs)), tuple(inputs))


def without_wtu(p: DreParams) -> DreParams:
    """These parameters with the smallest WTU: HCU, KVMU and table port depend only on how it takes counts."""
    return replace(p, wtu=replace(p.wtu, n_h=1, selection="exact", bin_bits=1, count_digit=1))


def port_view(p: DreParams) -> DreParams:
    """These parameters with what the table port does not depend on at its smallest."""
    h = p.hcu
    sizes = {n: getattr(h, n) for n in ("n_hp", "clusters", "n_ctx", "tile", "token_bits")}
    return replace(without_wtu(p), hcu=HcuParams(n_h=1, n_w=h.n_hp, frame=1, **sizes))


def wtu_cycles(p: WtuParams, ratio_q16: int, streams: list[Stream]) -> list[list[tuple[int, int]]]:
    """(cycle of the last row's last beat on all N_WTU-h cores, words of the rows), by table and timed frame."""
    cores = WtuCores(p)
    ends = ([int(cores.run([(row, b.counts) for row in b.codes], ratio_q16)[-1]) for b in s.blocks] for s in streams)
    return [
        [(end, row_words(b.codes, p)) for end, b in zip(own, s.blocks, strict=True)]
        for own, s in zip(ends, streams, strict=True)
    ]


@dataclass(frozen=True)
class TableFrame:
    """A timed frame as HCU, KVMU and table port see it.

    clustering : cycles from the first key to the KVMU's reply to the last
    switch : cycles of the SWITCH before the rows, which brings the counts
    fetch : cycles from the set's last beat to its last burst
    work : cycles in which the KVMU has something in work
    compares : cycles in which the HCU compares, by key
    bytes : bytes fetched
    keys, clusters : keys and clusters of the table by then
    """

    clustering: int
    switch: int
    fetch: int
    work: int
    compares: tuple[int, ...]
    bytes: int
    keys: int
    clusters: int


def table_cycles(p: DreParams, th_hd: int, streams: list[Stream]) -> list[list[TableFrame]]:
    """A `TableFrame` by table and timed frame. Raises `ParamError` if the trace does not fit the KVMU."""
    out = []
    for s in streams:
        time = DreTime(p, th_hd, LATENCY, BASE, BASE)
        blocks = {b.segment: b for b in s.blocks}
        frames: list[TableFrame] = []
        keys = 0
        for segment, (hashes, clusters) in enumerate(zip(s.hashes, s.clusters, strict=True)):
            keys, before = keys + len(clusters), len(time.searched.compares)
            beats = [(JOIN, 0, h, int(k == len(hashes) - 1)) for k, h in enumerate(hashes)]
            took = time.keys(beats, clusters)
            if segment in blocks:
                union, used = blocks[segment].clusters, len(blocks[segment].counts)
                compares = tuple(time.searched.compares[before:])
                switch = time.keys([(SWITCH, 0, 0, 1)], [0]).w[-1]
                fetch = time.fetch(0, union).b[-1]
                work = sum(took.w) - sum(took.a) + len(took.a) + switch + fetch
                size = sum(r.slots for c in union for r in time.kvmu.kv.ranges(0, c)) * p.kvmu.entry_bytes
                clustering = max(took.w, default=0)
                frames.append(TableFrame(clustering, switch, fetch, work, compares, size, keys, used))
        refused = keys - time.kvmu.kv.contexts[0].n
        check(not refused, "blocks", p.kvmu.blocks, f"{refused} of {keys} keys of the trace are refused; give more")
        out.append(frames)
    return out


@dataclass(frozen=True)
class Built:
    """A unit after synthesis: gate equivalents, memories, longest path in FO4. Without a path, `untimed` says why."""

    gates: float
    memories: tuple[flow.MemoryMacro, ...]
    path: float | None
    untimed: str


def built(
    unit: str, params: Any, liberty: tuple[str, ...], _: str, effort: str, target: float | None, build: str
) -> Built:
    """Synthesises a unit on its own, with arguments as in `Settings`. The library's digest only enters the key."""
    made = emit.emit(unit, params)
    leaves = tuple(made.manifest["leaves"])
    files = [Path(f) for f in liberty]
    area = flow.synthesise(
        made.verilog, made.top, files or None, leaves=leaves, effort=effort, target=target, build=Path(build)
    )
    path = area.timing.delay / _fo4(tuple(files) or (EMBEDDED,), build) if area.timing else None
    return Built(area.total_ge, area.memories, path, area.untimed)


@cache
def _fo4(files: tuple[Path, ...], build: str) -> float:
    """FO4 of a library."""
    return technology.fo4(load(list(files), Path(build)))


def combine(
    p: DreParams, objectives: tuple[str, ...], node: int, kinds: tuple[str, ...], *results: Any
) -> dict[str, float]:
    """The objectives of a point and their parts, from the `results` of its tasks, whose kinds are `kinds`."""
    part = dict(zip(kinds, results, strict=True))
    out: dict[str, float] = {}
    if "table cycles" in part:
        out |= _timed(part["table cycles"], part["wtu cycles"])
    if "hcu synthesis" in part:
        out |= _sized(p, node, {u: part[f"{u} synthesis"] for u in UNITS}, "fmax" in objectives)
    if "hcu energy" in part:
        energies = {u: part[f"{u} energy"] for u in RECORDED}
        out |= _spent(p, out["cycles"], energies, part["table cycles"], part["wtu cycles"])
    return {n: v for n, v in out.items() if n.partition(".")[0] in (*objectives, "trace")}


def _timed(tables: list[list[TableFrame]], wtu: list[list[tuple[int, int]]]) -> dict[str, float]:
    """Means over the timed frames of all tables, and the sizes of the largest table."""
    frames = [frame for own in tables for frame in own]
    ends = [end for own in wtu for end, _ in own]
    parts = {
        "cycles.keys": [f.clustering for f in frames],
        "cycles.switch": [f.switch for f in frames],
        "cycles.query": [end + f.fetch for end, f in zip(ends, frames, strict=True)],
        "bytes": [f.bytes for f in frames],
    }
    out = {n: float(np.mean(v)) for n, v in parts.items()}
    out |= {f"trace.{n}": float(max(getattr(f, n) for f in frames)) for n in ("keys", "clusters")}
    return out | {"cycles": sum(v for n, v in out.items() if n.startswith("cycles."))}


def _sized(p: DreParams, node: int, units: dict[str, Built], clock: bool) -> dict[str, float]:
    """Area (µm²) of each unit with its memories, and the clock (MHz) of the slowest."""
    count = {u: p.wtu.n_h if u == "wtu" else 1 for u in units}
    logic = {u: count[u] * technology.to_node(x.gates, node).value for u, x in units.items()}
    memory = {u: count[u] * sum(_macros(x.memories, node)) for u, x in units.items()}
    out = {f"area.{u}": logic[u] + memory[u] for u in units}
    out |= {"area": sum(out.values()), "area.memory": sum(memory.values())}
    paths = [x.path for x in units.values() if x.path is not None]
    untimed = next((f"{u} has no longest path: {x.untimed}" for u, x in units.items() if x.path is None), "")
    check(not (clock and untimed), "fmax", None, untimed)
    if clock:
        out["fmax"] = 1e6 / (max(paths) * technology.node(node).fo4.value)
    return out


def _spent(
    p: DreParams,
    cycles: float,
    units: dict[str, Energy],
    tables: list[list[TableFrame]],
    wtu: list[list[tuple[int, int]]],
) -> dict[str, float]:
    """Energy (nJ) of each unit for a mean frame: its events, and clock and leakage over all the frame's cycles."""
    frames = [frame for own in tables for frame in own]
    words = float(np.mean([n for own in wtu for _, n in own]))
    events = {
        "hcu": float(np.mean([hcu_events(f.compares) for f in frames])),
        "wtu": words,
        "cluster_set": words,
        "kvmu": float(np.mean([f.work for f in frames])),
    }
    count = {u: p.wtu.n_h if u == "wtu" else 1 for u in units}
    counts = float(np.mean([f.clusters for f in frames]))
    out = {
        f"energy.{u}": (e.event * events[u] + count[u] * (e.count * counts + e.idle * cycles)) / 1000
        for u, e in units.items()
    }
    idle = sum(e.idle * count[u] for u, e in units.items()) * cycles / 1000
    return out | {"energy": float(sum(out.values())), "energy.idle": idle}


def _macros(memories: tuple[flow.MemoryMacro, ...], node: int) -> list[float]:
    """Area (µm²) of each memory."""
    return [m.count * m.macro(node).area.value for m in memories]
