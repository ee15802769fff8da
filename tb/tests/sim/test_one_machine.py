"""The simulator has one machine, the preset: no size, clock or scope of its own.

Presets that cannot run the model are refused as the hardware's own plan refuses them.
"""

import ast
import inspect
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.hdl.params import CLOCK, SHARED, SystemParams, flat, override, preset
from openvrex.sim.system import (
    accelerator,
    device_memory,
    dre_demand,
    home,
    layer_load,
    layer_share,
    mosaic_pass,
    mosaic_share,
    page_share,
    pages_pass,
    passes,
    platforms,
    share_cycles,
    window_demand,
    window_pass,
    window_share,
)
from openvrex.sim.system.accelerator import run
from openvrex.sim.system.layer_share import Layer
from openvrex.sim.system.passes import device_bytes, lacks
from openvrex.sim.system.platforms import EDGE, SERVER, Vrex
from openvrex.sim.system.selection import PUBLISHED
from openvrex.sim.system.timeline import DRE, Pass, Point
from openvrex.sim.system.workload import Decoder, Selection, constant, traced
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import tried, vrex

MODEL = Decoder()
AT = Point(4096)
SHARES = traced(MODEL, policy=PUBLISHED)
# All that computes a pass or a layer on V-Rex. GPUs, memories, workloads and the paper's numbers describe other things.
MACHINE = (accelerator, device_memory, dre_demand, layer_load, layer_share, passes, share_cycles)
MACHINE += (home, page_share, pages_pass, window_demand, window_pass, window_share, mosaic_pass, mosaic_share)


def seen(v: Vrex, at: Point = AT, shares: Selection = SHARES) -> tuple:
    """What a preset decides: time and bytes of every stage, device memory."""
    p = run(v, at, shares)
    return (*((s.name, s.start, s.end, s.bytes) for s in p.stages), device_bytes(v, at, shares))


# Sizes


def test_a_platform_has_no_size_of_its_own():
    names = {f.name: f.type for f in fields(Vrex)}
    hardware = {"system"}
    around = {
        "name",
        "dram",
        "link",
        "ssd",
        "capacity",
        "gap",
        "latency",
        "kvmu",
        "power",
        "prefetch",
        "home",
        "network",
    }
    assert set(names) - hardware == around
    for name in ("cores", "core", "clusters", "clock", "entry_bytes"):
        with pytest.raises(TypeError, match=name):
            replace(EDGE, **{name: 1})
    assert (EDGE.system, SERVER.system) == (preset("edge8"), preset("server48"))
    assert EDGE.core is EDGE.system.core
    assert (EDGE.cores, SERVER.cores) == (8, 48)


# All numbers beyond 4 that the machine's files state, outside sizes of caches: exponents of addresses, steps and bytes
# of samples, work of the encoder, units. A size of the hardware in one of these files is a number more.
STATED = {
    "accelerator": {1e-3},
    "home": {15, 24, 34, 4096},
    "page_share": {37},
    "pages_pass": set(),
    "device_memory": set(),
    "dre_demand": {8, 12, 17, 32, 64, 2048},
    "layer_load": {8, 16, 34, 36},
    "layer_share": set(),
    "mosaic_pass": {256},
    "mosaic_share": set(),
    "passes": {30},
    "share_cycles": {30, 32, 33, 34, 37, 38, 7, 10_000_000},
    "window_demand": {16, 32},
    "window_pass": set(),
    "window_share": set(),
}


@pytest.mark.parametrize("module", MACHINE)
def test_no_file_states_a_size(module):
    tree = ast.parse(inspect.getsource(module))
    caches = {id(k.value) for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "maxsize"}
    numbers = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    small = {0, 0.25, 0.5, 1, 1.6, 1e-9, 2, 3, 4}
    stated = {n.value for n in numbers if id(n) not in caches} - small
    assert stated == STATED[module.__name__.rpartition(".")[2]]


def test_presets_are_changed_by_names_only():
    """Nothing in the simulator builds hardware, or replaces a part of it; a sampled map of home memory has no ring."""
    made = re.compile(r"\b(?:System|Core|Dre|Hcu|Wtu|Kvmu|Table|Dpe|Vpe|Lxe)Params\(")
    replaced = re.compile(r"replace\([^()]*(?:\([^()]*\))?[^()]*(?:core|dre|hcu|wtu|kvmu|dpe|vpe|lxe)=(?!False)")
    hits = []
    for path in [*(ROOT / "sim/system").glob("*.py"), *(ROOT / "papers/evaluation").glob("*.py")]:
        for line in path.read_text().splitlines():
            if made.search(line) or replaced.search(line):
                hits.append((path.name, line.strip()))
    assert len(hits) == 1, hits
    assert hits[0][0] == "dre_demand.py"
    assert "recent=1" in hits[0][1]


# Each parameter that matters to a pass, with a value that a preset can have instead.
MATTERS = {
    "cores": 4,
    **{"hcu.n_h": 2, "hcu.n_w": 8, "hcu.n_hp": 64, "clusters": 64, "hcu.tile": 32},
    **{"wtu.n_h": 2, "wtu.n_w": 8, "kvmu.block_slots": 16, "kvmu.recent": 512, "kvmu.entry_bytes": 1024},
    **{"kvmu.kv4_group": 32, "kvmu.kept": 1024},
    **{"bus_bytes": 32, "dpe.w_depth": 64, "dpe.x_depth": 64, "vpe.depth": 128},
    **{"lxe.bursts": 16, "lxe.burst_bytes": 128, "ports": 2},
}
# Those that change no figure of a pass on these presets; `test_hardware_that_cannot_serve_is_refused` has some.
SILENT = {
    "n_ctx", "token_bits", "count_bits", "counts", "hcu.frame", "hcu.early_abandon", "hcu.newest",
    "kvmu.blocks", "kvmu.boundary", "kvmu.addr_bits", "kvmu.rows", "kvmu.read_counts", "kvmu.shared",
    "dpe.n_h", "dpe.n_w", "dpe.window", "vpe.n_h",
    "vpe.n_w", "vpe.score", "lxe.i_depth", "lxe.queue", "lxe.words", "lxe.copies",
}  # fmt: skip


@pytest.mark.parametrize("name", MATTERS)
def test_each_parameter_that_matters_changes_the_pass(name):
    assert seen(EDGE.changed(f"{name}={MATTERS[name]}")) != seen(EDGE)


def test_every_parameter_of_the_dre_is_known():
    """A parameter that the hardware gets must be judged here: does it change a pass?"""
    names = {n for n in flat(preset("edge8")) if n.partition(".")[0] in ("hcu", "kvmu", *SHARED)}
    assert {n for n in names if not n.endswith("protect")} <= {*MATTERS, *SILENT}


def test_memory_ports_carry_what_the_memory_gives():
    """The edge's four ports do, at their peak; a server has a network, which no unit here is."""
    assert EDGE.system.ports * EDGE.core.lxe.bus_bytes * CLOCK == EDGE.dram.t.bandwidth
    assert EDGE.bandwidth == replace(EDGE, network=True).bandwidth
    assert (EDGE.changed("ports=1").bandwidth, SERVER.network) == (64 * CLOCK, True)


# The clock


def test_the_clock_is_stated_once(monkeypatch):
    """Half the clock doubles all cycles and leaves the link alone; no other file states it."""
    before = run(EDGE, AT, constant("x", 0.0, 0.0, MODEL))
    for module in (accelerator, platforms):
        monkeypatch.setattr(module, "CLOCK", CLOCK / 2)
    after = run(EDGE, AT, constant("x", 0.0, 0.0, MODEL))
    assert after.seconds > before.seconds
    assert EDGE.macs == 8 * 64 * 64 * CLOCK / 2
    states = re.compile(r"\b(?:800e6|8e8|800\.0|800_000_000|1\.25e-9)\b")
    files = [p for top in ("hdl", "sim", "synth", "ip", "scripts") for p in (ROOT / top).rglob("*.py")]
    found = {p.relative_to(ROOT).as_posix() for p in files if states.search(p.read_text())}
    assert found == {"hdl/params.py"}


# The scope of tables


def test_shares_have_the_scope_of_the_tables():
    """A table of one head fetches its own share, one of eight heads their union: on one core, which has both."""
    one = replace(EDGE, system=override(preset("core"), ["kvmu.entry_bytes=512"]))
    all_heads = one.changed("kvmu.entry_bytes=4096")
    few, many = (run(v, AT, SHARES) for v in (one, all_heads))
    home = (AT.cache - one.core.dre.kvmu.recent) * MODEL.token_bytes
    assert few.fetched == pytest.approx(home * SHARES.layers("frame", 1).mean())
    assert many.fetched == pytest.approx(home * SHARES.layers("frame", 8).mean())
    assert SHARES.layers("frame", 8).mean() > 2 * SHARES.layers("frame", 1).mean()
    contexts = [Layer(v.system, MODEL, 1, 10, 100).contexts for v in (one, all_heads)]
    assert contexts == [8 * 32, 32]
    own = {v: sum(s.bytes for s in p.stages if s.name == "switch") for v, p in (("one", few), ("all", many))}
    assert own["one"] == 8 * own["all"]  # a SWITCH for each table


def test_work_is_that_of_the_core_with_most():
    """48 cores have 64 tiles of columns in 8 parts of the sums, and teams of 6."""
    layer = Layer(SERVER.system, MODEL, 1, 10, 100)
    s = layer.shares
    assert (s.teams, s.members, s.groups) == (8, 6, 1)
    tiles = [
        sum(len(s.product(n, c).tiles) * len(s.product(n, c).words) for c in range(48)) for n in ("output", "down")
    ]
    assert tiles == [64 * 64, 64 * 224]
    edge = Layer(EDGE.system, MODEL, 1, 10, 100)
    for name in ("output", "down", "gate_up"):
        own, alone = (x.rest()[name].load for x in (layer, edge))
        ideal = alone.dpe / 6
        assert ideal <= own.dpe <= 1.4 * ideal, name
    few, most = (sum(x.load.dpe for x in layer.attention(n, True).values()) for n in (0, 10000))
    assert few < most
    pairs = 2 + -(-10000 // 128)
    alone = sum(x.load.dpe for x in edge.attention(10000, True).values())
    assert most == pytest.approx(alone * -(-pairs // 6) / pairs, rel=0.02)
    assert "join" in layer.attention(1, True)
    assert "join" not in edge.attention(1, True)
    assert layer.barriers() > edge.barriers() > Layer(preset("core"), MODEL, 1, 10, 100).barriers() == 0


# Tables are part of the frame


def test_tables_are_part_of_the_frame():
    p = run(EDGE, AT, SHARES)
    for name in ("cluster", "switch", "walk"):
        stages = [s for s in p.stages if s.name == name]
        assert len(stages) >= 31
        assert all(s.resource == "DRE" and s.end > s.start and s.bytes > 0 for s in stages)
    assert len([s for s in p.stages if s.name == "switch"]) == 32
    assert run(SERVER, AT, SHARES, DRE).seconds < run(SERVER, AT, SHARES).seconds


def test_a_stream_more_is_a_context_more():
    one, two = (run(EDGE, replace(AT, batch=n), SHARES) for n in (1, 2))

    def of(p: Pass, name: str) -> float:
        return sum(s.bytes for s in p.stages if s.name == name)

    assert all(of(two, name) == pytest.approx(2 * of(one, name)) for name in ("cluster", "switch", "walk"))


# Refusals


def plan(system: SystemParams) -> Shares:
    """The hardware's own refusal."""
    whole = Layer(preset("edge8"), MODEL, 1, 10, 100).shares.whole
    return Shares.of(whole, system.core.dpe.n_w, system.cores, system.core.dre.kvmu.entry_bytes)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("edge8", ["kvmu.entry_bytes=640", "kept=0"], "entry_bytes=640: must be a multiple of 512"),
        ("edge8", ["cores=5"], "cores=5: must divide 8, the tables of a layer"),
        ("edge8", ["hcu.frame=8"], "tokens=10: must be at most frame = 8"),
        ("edge8", ["kvmu.blocks=1024"], r"blocks=1024: must be at least \d+: 32 contexts of 3840 entries"),
        ("edge8", ["n_ctx=16"], "n_ctx=16: must be at least 32"),
        ("edge8", ["kvmu.recent=8192"], "recent=8192: must be at most"),
    ],
)
def test_hardware_that_cannot_serve_is_refused(name, changes, message):
    v = replace(EDGE, system=override(preset(name), changes))
    with pytest.raises(ParamError, match=message):
        run(v, AT, SHARES)


def test_refusals_are_the_plan_s():
    for changes in (["kvmu.entry_bytes=1536", "kept=0"], ["cores=5"]):
        system = override(preset("edge8"), changes)
        with pytest.raises(ParamError) as own:
            plan(system)
        with pytest.raises(ParamError) as ours:
            run(replace(EDGE, system=system), AT, SHARES)
        assert str(own.value) == str(ours.value)
    shares = Layer(EDGE.system, MODEL, 1, 10, 100).of(33)
    with pytest.raises(ParamError) as refused:
        SharePlan(shares, EDGE.core.lxe_format(), RetrievalShape(frame=EDGE.core.dre.hcu.frame), 0)
    with pytest.raises(ParamError) as same:
        run(EDGE, replace(AT, rows=33), SHARES)
    assert str(refused.value) == str(same.value)


def test_frames_of_presets_as_generated():
    shown = vrex(
        "simulate", "frames", "--select", "world:resv-buckets", "--cache", "4096", "--platform", "edge", "--json"
    )
    assert f"{run(EDGE, AT, SHARES).seconds * 1e3:.1f}" in shown.stdout
    refused = tried("simulate", "frames", "--cache", "4096", "-p", "cores=5", "--json")
    assert "cores=5: must divide 8, the tables" in refused.stdout
    assert lacks(EDGE, AT, SHARES) == ""
    assert np.isfinite(run(EDGE, AT, SHARES).joules)
