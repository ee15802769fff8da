"""The hybrid memory's history branch on a golden LXE, alone: passes of one stream, from normed states to outputs."""

import numpy as np

from golden.arithmetic.numerics import to_bf16
from golden.policies.state_space import HistoryBranch, StateSpaceParams
from golden.program.isa import Instruction, LxeFormat
from golden.program.layer_memory import LayerShape
from golden.program.lxe_model import Result
from golden.program.scan_compiler import BranchPlan
from tb.library.plan_runs import PlanRun


class BranchRun(PlanRun):
    """A branch with its memory: weights, work arrays with the state, and the sum that it adds to."""

    def __init__(self, fmt: LxeFormat, width: int, tokens: int, params: StateSpaceParams):
        shape = LayerShape(width=width, heads=1, kv_heads=1, head_size=fmt.lanes, tokens=tokens, recent=tokens)
        plan, self.branch = BranchPlan(shape, fmt, params), HistoryBranch(params, width, width)
        super().__init__(plan, {"sum": plan["sum"].size, "weights": plan.weights.size, "work": plan.work.size})
        for name, x in self.plan.pack(self.branch).items():
            self.put(name, x)
        for name in ("kept", "state"):
            self.put(name, np.zeros(self.plan[name].shape))

    def programs(self) -> list[list[Instruction]]:
        """The program of each stage, or of all where the program memory holds them."""
        return [self.plan.program(stage.name, stage.name) for stage in self.plan.stages]

    def give(self, x: np.ndarray, total: np.ndarray) -> None:
        """Write the inputs of a pass: normed hidden states [T, width], and the sum to add to [T, width]."""
        self.put("normed", to_bf16(x))
        self.put("sum", total)

    def run(self, x: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, list[Result]]:
        """A pass on golden: the sum after it, and the record of each program."""
        self.give(x, total)
        results = [self.lxe.run(program, self.registers) for program in self.programs()]
        return self.get("sum"), results
