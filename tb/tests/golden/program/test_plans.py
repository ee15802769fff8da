"""A plan is a table of stages, each with the arrays that it reads and writes: no array is idle, or read too early."""

import re
from dataclasses import replace

import pytest

from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.program import core_compiler, layer_compiler, scan_compiler
from openvrex.golden.program.centroid_stages import CentroidPlan
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape, Team
from openvrex.golden.program.scan_compiler import BranchPlan
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.stage_plan import Plan
from openvrex.golden.program.window_plan import WindowPlan

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=64, depth=64, i_depth=1 << 12)
HYBRID = replace(FMT, features="hybrid")
SHAPE = LayerShape(width=16, heads=4, kv_heads=2, head_size=8, ffn=24, tokens=3, recent=16, entries=24)
RING = replace(SHAPE, entries=0)
WHOLE = replace(SHAPE, width=32, ffn=32, kv_heads=4, heads=8)
RETRIEVAL = RetrievalShape(n_hp=8, clusters=32, sinks=2)
HISTORY = StateSpaceParams(state=4)
OF_BRANCH = {"history_kept", "history_state"}

# Plans, and the arrays that they write behind a stage that reads them: what the pass gets from the one before or from
# the host. A product with a residual reads what it writes.
PLANS: dict[str, tuple[Plan, set[str]]] = {
    "layer": (LayerPlan(SHAPE, FMT), {"hidden"}),
    "member": (LayerPlan(SHAPE, FMT, team=Team(1, 3)), {"hidden"}),
    "core": (CorePlan(SHAPE, FMT, RETRIEVAL), {"hidden", "table", "thresholds"}),
    "core ahead": (CorePlan(SHAPE, FMT, replace(RETRIEVAL, ahead=1)), {"hidden", "table", "thresholds"}),
    "share": (SharePlan(Shares(WHOLE, 4, 2, 2), FMT, RETRIEVAL, 0), {"own_output", "own_down", "table", "thresholds"}),
    "window": (WindowPlan(RING, FMT, 6), {"hidden", "ring"}),
    "hybrid window": (WindowPlan(RING, HYBRID, 0, history=HISTORY), {"hidden"} | OF_BRANCH),
    "branch": (BranchPlan(SHAPE, HYBRID, HISTORY), {"sum"} | OF_BRANCH),
    "head": (HeadPlan(SHAPE, FMT, 601), set()),
    "centroid": (CentroidPlan(SHAPE, FMT, 27), set()),
}


@pytest.mark.parametrize("name", PLANS)
def test_stages_use_all_arrays_and_no_other(name):
    plan, _ = PLANS[name]
    assert {x for stage in plan.stages for x in stage.reads + stage.writes} == {a.name for a in plan.arrays.values()}


@pytest.mark.parametrize("name", PLANS)
def test_a_stage_reads_what_an_earlier_one_has_written(name):
    plan, given = PLANS[name]
    early, left = set(), {x for stage in plan.stages for x in stage.writes}
    for stage in plan.stages:
        early |= left & set(stage.reads)
        left -= set(stage.writes)
    assert early == given


@pytest.mark.parametrize(
    ("module", "name"), [(layer_compiler, "layer"), (core_compiler, "core"), (scan_compiler, "branch")]
)
def test_the_table_of_a_module_has_its_stages_in_their_order(module, name):
    plan, (_, table) = PLANS[name][0], re.split(r"^=+  =+$", module.__doc__, flags=re.MULTILINE)[:2]
    stages = [stage.name for stage in plan.stages]
    own = re.findall(r"^(\w+)  ", table, re.MULTILINE)
    assert own == [stage for stage in stages if stage in own]
    assert len(own) > 3
