"""The hybrid memory's history branch on a golden LXE, alone: passes of one stream, from normed states to outputs."""

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.state_space import HistoryBranch, StateSpaceParams
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_memory import Array, LayerShape, Register
from openvrex.golden.program.lxe_model import Result
from openvrex.golden.program.scan_compiler import BranchPlan
from openvrex.tb.library.plan_runs import PlanRun


class BranchRun(PlanRun):
    """A branch with its memory: weights, work arrays with the state, and the sum that it adds to.

    segments : parts of the sum's rows that lie one behind the other, as heads do in attention's output
    """

    def __init__(self, fmt: LxeFormat, width: int, tokens: int, params: StateSpaceParams, segments: int = 1):
        shape = LayerShape(width=width, heads=1, kv_heads=1, head_size=fmt.lanes, tokens=tokens, recent=tokens)
        total = Array("sum", 0, (segments, tokens, width // segments), BF16, Register.OUT)
        plan, self.branch = BranchPlan(shape, fmt, params, total), HistoryBranch(params, width, width)
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
        segments, tokens, numbers = self.plan["sum"].shape
        self.put("sum", to_bf16(total).reshape(tokens, segments, numbers).swapaxes(0, 1))

    def run(self, x: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, list[Result]]:
        """A pass on golden: the sum after it, and the record of each program."""
        self.give(x, total)
        results = [self.lxe.run(program, self.registers) for program in self.programs()]
        return self.get("sum").swapaxes(0, 1).reshape(x.shape).astype(np.float32), results
