"""Cycles of hybrid memory's history branch at SmolLM2's sizes, which docs/decisions.md and docs/window.md quote."""

from dataclasses import replace

import numpy as np
import pytest

from golden.policies.state_space import StateSpaceParams
from golden.program.isa import Instruction, Opcode, encode
from golden.program.layer_memory import LayerShape
from golden.program.window_plan import LAYER, WindowPlan
from hdl.params import preset
from sim.units.lxe_time import LxeTime
from sim.units.sequencer_time import trace
from tb.library.branch_runs import BranchRun
from tb.library.runner import ROOT

OMNI, TOKENS, LATENCY = preset("omni").core, 10, 50


def cycles(program: list[Instruction], registers: dict[int, int]) -> int:
    return LxeTime(OMNI, LATENCY).run(trace(OMNI, [encode(i) for i in program], registers).steps).done


@pytest.mark.slow
def test_a_scan_of_smollm2():
    run = BranchRun(OMNI.lxe_format(), 576, TOKENS, StateSpaceParams())
    [program] = [x for stage, x in zip(run.plan.stages, run.programs(), strict=True) if stage.name == "scan"]
    assert program[-1].op == Opcode.HALT
    text = (ROOT / "docs" / "decisions.md").read_text()
    assert f"takes {cycles(program, run.registers) / TOKENS:,.0f} cycles a token on `omni`" in text


@pytest.mark.slow
def test_a_layer_of_smollm2_with_and_without_its_branch():
    shape = LayerShape(tokens=TOKENS, recent=128, entries=0)
    plans = [WindowPlan(shape, OMNI.lxe_format(), 0, history=history) for history in (None, StateSpaceParams())]
    registers = {int(k): v for k, v in plans[1].addresses(np.arange(TOKENS), 1 << 20, 1 << 26).items()}
    programs = [plan.programs(*LAYER) for plan in plans]
    plain, whole = (sum(cycles(program, registers) for program in some) for some in programs)
    assert [len(some) for some in programs] == [1, 2]
    length = len(WindowPlan(shape, replace(plans[1].fmt, i_depth=4096), 0, history=StateSpaceParams()).program(*LAYER))
    assert f"has {length} instructions with the branch" in (ROOT / "docs" / "decisions.md").read_text()
    branch = plans[1].branch
    assert branch is not None
    state, kept = branch["state"].size, branch["kept"].size
    text = (ROOT / "docs" / "window.md").read_text()
    want = f"{plain:,} cycles a layer without the branch and {whole:,} with it, {(whole - plain) / TOKENS:,.0f} a token"
    assert want in text
    assert f"{state + kept:,} bytes a layer: {state:,} of state and {kept:,} of last inputs" in text
