"""What the simulator says that cores do of a layer is what the plan of a core's share compiles."""

from dataclasses import replace

import pytest

from golden.program.core_compiler import LEVEL, RetrievalShape
from golden.program.layer_memory import Register
from golden.program.share_plan import SharePlan
from sim.system.layer_load import ATTENTION, counted
from sim.system.layer_share import Layer
from sim.system.platforms import EDGE, SERVER
from sim.system.workload import Decoder

ENTRIES, CLUSTERS = 6400, 1024


@pytest.mark.parametrize("v", [EDGE, SERVER], ids=lambda v: v.name)
def test_the_leader_s_load_is_that_of_its_plan(v):
    """Each stage's cycles. A team's simulator takes `qkv` for `keys`, and all of the ring for a member's part of it."""
    layer = Layer(v.system, Decoder(), 1, 10, v.latency)
    s = replace(layer.shares, whole=replace(layer.shares.whole, entries=ENTRIES))
    d = v.core.dre
    retrieval = RetrievalShape(d.hcu.n_hp, d.hcu.clusters, readings=d.wtu.readings, frame=d.hcu.frame)
    plan = SharePlan(s, v.core.lxe_format(), retrieval, 0)
    own = -(-ENTRIES // s.members)
    size = plan.part * plan.fmt.lanes
    parts = {Register.PARTS: own // size, Register.LEFT: own % size} if size else {}
    known = {Register.ENTRIES: own, LEVEL: CLUSTERS} | parts
    theirs = {}
    for stage in plan.stages:
        entries = {Register.ENTRIES: ENTRIES} if stage.name == "scores" else {}
        theirs[stage.name] = counted(v.core, v.latency, plan, stage.name, known | entries).cycles
    before, attention = layer.prediction(CLUSTERS, True), layer.attention(ENTRIES, True)
    ours = {name: step.load.cycles for name, step in (before | attention).items()}
    rest = {name: [step.load.cycles for step in steps] for name, steps in layer.rest().items()}
    queries = ("keys", "cluster") if s.members == 1 else ("qkv", "cluster")
    assert ours["keys"] + ours["cluster"] == pytest.approx(sum(theirs[n] for n in queries), rel=0.06)
    for name in ("norm1", "entries", "hash", "select"):
        assert ours[name] == pytest.approx(theirs[name]), name
    assert ours["rank"] == pytest.approx(theirs["rank"], rel=0.15)
    assert sum(ours[n] for n in ATTENTION) == pytest.approx(sum(theirs[n] for n in ATTENTION), rel=0.1)
    assert rest["gate_up"] == pytest.approx([theirs["norm2"], theirs["gate_up"]])
    for name in ("output", "down"):
        mine = sum(rest[name])
        assert mine == pytest.approx(theirs[name] + theirs.get(f"add_{name}", 0), rel=0.05), name
    assert ("join" in ours) == ("join" in theirs) == (s.members > 1)
