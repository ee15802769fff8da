"""What the simulator says that cores do of a layer is what the plans of their shares compile."""

from dataclasses import replace

import pytest

from openvrex.golden.program.core_compiler import LEVEL, RetrievalShape
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.sequencer_model import register_values, sequence
from openvrex.golden.program.share_plan import OF_TABLES, SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.sim.system.layer_load import ATTENTION, Load, counted
from openvrex.sim.system.layer_share import OWN_CHOICE, Layer
from openvrex.sim.system.platforms import EDGE, SERVER, Vrex
from openvrex.sim.system.workload import Decoder

CLUSTERS, ROWS = 1024, 10
# Platform, KV heads of a table, entries behind the ring that fill the leader's last pair of tiles, cores to compare.
CASES = [
    (EDGE, 1, 2048, range(1)),
    (EDGE, 8, 3968, range(8)),
    (SERVER, 1, 2944, range(0, 48, 8)),
    (SERVER, 8, 24448, (0, 1, 46, 47)),
]
PREDICTED = ("entries", "hash", "cluster")  # the leader's stages beside the rotation of queries
TURNED = ("rotary", "guess_rotary")


def plan(v: Vrex, heads: int, entries: int, core: int, first: bool = True) -> SharePlan:
    """A core's share of a layer that chooses for the next one, built without the simulator."""
    d, lanes = v.core.dre, v.core.dpe.n_w
    whole = LayerShape(**Decoder().sizes, tokens=ROWS, recent=d.kvmu.recent, entries=entries)
    shares = Shares(whole, lanes, v.cores, heads)
    own = {"readings": d.wtu.readings, "frame": d.hcu.frame}
    retrieval = RetrievalShape(d.hcu.n_hp, d.hcu.clusters, ahead=shares.groups, fetched=not first, **own)
    return SharePlan(shares, v.core.lxe_format(), retrieval, core)


def loads(v: Vrex, p: SharePlan, entries: int) -> dict[str, Load]:
    """The load of each stage of a core, with the registers that the stages before have left."""
    registers, out = register_values({int(Register.ENTRIES): entries, int(LEVEL): CLUSTERS}), {}
    for stage in p.stages:
        known = dict(enumerate(registers)) if stage.name in ATTENTION else {LEVEL: CLUSTERS}
        out[stage.name] = counted(v.core, v.latency, p, stage.name, known)[0]
        if stage.name in ATTENTION:
            list(sequence(p.program(stage.name, stage.name), registers, p.fmt))
    return out


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("v", "heads", "entries", "cores"), CASES, ids=lambda x: getattr(x, "name", None))
def test_steps_are_the_stages_of_the_programs(v, heads, entries, cores, first):
    """The same phases and stages; for each the work of the core that has most, and the bytes of all."""
    v = v.changed(f"kvmu.entry_bytes={512 * heads}")
    layer = Layer(v.system, Decoder(), 1, ROWS, v.latency)
    plans = [plan(v, heads, entries, core, first) for core in cores]
    names = {stage.name for p in plans for stage in p.stages}
    phases = {p: tuple(n for n in stages if n in names) for p, stages in plans[0].phases.items()}
    assert layer.phases(first) == {p: stages for p, stages in phases.items() if stages}
    assert layer.barriers(first) == sum(p not in OF_TABLES for p, stages in phases.items() if stages)
    ours = layer.prediction(CLUSTERS, first) | layer.attention(entries, first) | layer.rest()
    assert sorted(ours) == sorted(names)

    theirs = [loads(v, p, entries) for p in plans]
    compared = 0
    for name, step in ours.items():
        own = [x[name] for x in theirs if name in x]
        if name in TURNED and layer.shares.members > 1:
            leader = sum(theirs[0][n].cycles for n in PREDICTED)
            turned = max(sum(x[n].cycles for n in TURNED if n in x) for x in theirs)
            assert turned <= leader  # it runs beside the leader's stages
            assert (step.runs, step.load) == (0, Load())
        else:
            assert step.load.cycles == max(x.cycles for x in own), name
            assert step.runs == 1
            compared += 1
        if len(cores) == layer.shares.members:  # of one team
            every = sum(x.bytes for x in own) * layer.shares.teams
            assert step.bytes == pytest.approx(every, rel=1e-12), name
    assert compared >= 14


def test_many_streams_share_passes_of_products():
    """Products of three streams are those of one pass of 30 rows; each stream ranks, attends and joins for itself."""
    one, three = (Layer(SERVER.system, Decoder(), n, ROWS, 100) for n in (1, 3))
    rows = Layer(SERVER.system, Decoder(), 1, 3 * ROWS, 100)
    assert three.rest() == rows.rest()
    a, b = (x.prediction(CLUSTERS, True) for x in (one, three))
    for name in OWN_CHOICE:
        assert b[name].load == a[name].load * 3
    assert b["qkv"] == rows.prediction(CLUSTERS, True)["qkv"]
    a, b = (x.attention(1000, True) for x in (one, three))
    assert all(b[name].load == a[name].load * 3 for name in (*ATTENTION, "join"))


def test_work_grows_with_the_entries():
    """Between the programs that are counted, too, and beyond the entries of one FETCH."""
    for v in (EDGE, SERVER):
        layer = Layer(v.system, Decoder(), 1, ROWS, v.latency)
        sums = [sum(x.load.cycles for x in layer.attention(n, True).values()) for n in (0, 700, 3000, 20000, 100000)]
        assert sums == sorted(set(sums))
    s = layer.shares
    exact = loads(v, plan(v, 1, 20000, 0), 20000)
    between = layer.attention(20000, True)
    assert s.members == 6
    for name in ATTENTION:
        assert between[name].load.cycles == pytest.approx(exact[name].cycles, rel=0.04), name
    assert replace(s, heads=8).members == 48
