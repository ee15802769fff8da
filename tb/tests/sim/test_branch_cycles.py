"""Cycles of the scan of hybrid memory's history branch at SmolLM2's sizes, which docs/decisions.md quotes."""

import pytest

from golden.policies.state_space import StateSpaceParams
from golden.program.isa import Opcode, encode
from hdl.params import preset
from sim.units.lxe_time import LxeTime
from sim.units.sequencer_time import trace
from tb.library.branch_runs import BranchRun
from tb.library.runner import ROOT


@pytest.mark.slow
def test_a_scan_of_smollm2():
    p, tokens = preset("omni").core, 10
    run = BranchRun(p.lxe_format(), 576, tokens, StateSpaceParams())
    [program] = [x for stage, x in zip(run.plan.stages, run.programs(), strict=True) if stage.name == "scan"]
    assert program[-1].op == Opcode.HALT
    cycles = LxeTime(p, 50).run(trace(p, [encode(i) for i in program], run.registers).steps).done
    text = (ROOT / "docs" / "decisions.md").read_text()
    assert f"takes {cycles / tokens:,.0f} cycles a token on `omni`" in text
