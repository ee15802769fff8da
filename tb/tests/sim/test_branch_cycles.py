"""Cycles of hybrid memory's history branch at SmolLM2's sizes, which docs/run.md and its decisions quote."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.program.isa import Instruction, Opcode, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.window_plan import LAYER, WindowPlan
from openvrex.hdl.params import preset
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.library.branch_runs import BranchRun
from openvrex.tb.library.runner import ROOT

OMNI, TOKENS, LATENCY = preset("omni").core, 10, 50


def cycles(program: list[Instruction], registers: dict[int, int]) -> int:
    return LxeTime(OMNI, LATENCY).run(trace(OMNI, [encode(i) for i in program], registers).steps).done


@pytest.mark.slow
def test_a_scan_of_smollm2():
    run = BranchRun(OMNI.lxe_format(), 576, TOKENS, StateSpaceParams())
    [program] = [x for stage, x in zip(run.plan.stages, run.programs(), strict=True) if stage.name == "scan"]
    assert program[-1].op == Opcode.HALT
    text = " ".join((ROOT / "docs/archive/decisions.md").read_text().split())
    assert f"takes {cycles(program, run.registers) / TOKENS:,.0f} cycles a token on `omni`" in text


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, TOKENS, 16, 32])
def test_a_layer_of_smollm2_with_and_without_its_branch(tokens):
    """The table of docs/run.md. The branch's weights over the bus are a lower bound of its cycles."""
    shape = LayerShape(tokens=tokens, recent=128, entries=0)
    plans = [WindowPlan(shape, OMNI.lxe_format(), 0, history=history) for history in (None, StateSpaceParams())]
    branch = plans[1].branch
    assert branch is not None
    registers = {int(k): v for k, v in plans[1].addresses(np.arange(tokens), 1 << 20, 1 << 26).items()}
    programs = [plan.programs(*LAYER) for plan in plans]
    plain, whole = (sum(cycles(program, registers) for program in some) for some in programs)
    assert [len(some) for some in programs] == [1, 3 if tokens == 32 else 2]
    rows = plans[1].costs(0)
    weights = sum(branch[f"{name}_weight"].size for name in ("project", "low", "bc", "scan", "out"))
    least = -(-weights // OMNI.lxe.bus_bytes)
    text = (ROOT / "docs/run.md").read_text()
    each = (whole - plain) / tokens
    assert f"| {tokens} | {plain:,} | {whole:,} | {whole - plain:,} | {each:,.0f} | {least:,} |" in text
    # The scan is behind its weights or the weights are behind it: little but the longer of both is left.
    for k in range(len(branch.groups)):
        name = "scan" + f"_{k}" * bool(k)
        work = rows[name].cycles(OMNI.lxe.bus_bytes)
        assert cycles(plans[1].program(name, name), registers) < 1.08 * max(work["load"], work["vpe"])
    assert whole - plain < (1.13 if tokens <= TOKENS else 2) * least


def test_the_state_of_a_layer():
    plan = BranchRun(OMNI.lxe_format(), 576, 1, StateSpaceParams()).plan
    state, kept = plan["state"].size, plan["kept"].size
    text = " ".join((ROOT / "docs/run.md").read_text().split())
    assert f"{state + kept:,} bytes a layer: {state:,} of state and {kept:,} of last inputs" in text
    shape = LayerShape(tokens=TOKENS, recent=128, entries=0)
    whole = WindowPlan(shape, replace(OMNI.lxe_format(), i_depth=4096), 0, history=StateSpaceParams())
    text = " ".join((ROOT / "docs/archive/decisions.md").read_text().split())
    assert f"has {len(whole.program(*LAYER))} instructions with the branch" in text
