"""The hybrid memory's history branch on a golden LXE, alone: passes of one stream, from normed states to outputs."""

import numpy as np

from golden.arithmetic.numerics import to_bf16
from golden.policies.state_space import HistoryBranch, StateSpaceParams
from golden.program.isa import Instruction, LxeFormat
from golden.program.layer_memory import LayerShape, Register
from golden.program.lxe_model import Lxe, Memory, Region, Result
from golden.program.scan_compiler import BranchPlan


class BranchRun:
    """A branch with its memory: weights, work arrays with the state, and the sum that it adds to."""

    def __init__(self, fmt: LxeFormat, width: int, tokens: int, params: StateSpaceParams):
        shape = LayerShape(width=width, heads=1, kv_heads=1, head_size=fmt.lanes, tokens=tokens, recent=tokens)
        self.plan, self.branch = BranchPlan(shape, fmt, params), HistoryBranch(params, width, width)
        sizes = {"sum": self.plan["sum"].size, "weights": self.plan.weights.size, "work": self.plan.work.size}
        regions, at = [], 0
        for name, size in sizes.items():
            regions.append(Region(name, at, size))
            at += -(-size // 4096) * 4096
        bases = dict(zip((Register.OUT, Register.WEIGHTS, Register.KV), (r.base for r in regions), strict=True))
        self.registers = {int(register): base for register, base in bases.items()} | {int(Register.REST): 0}
        self.memory = Memory(regions)
        self.lxe = Lxe(fmt, self.memory)
        for name, x in self.plan.pack(self.branch).items():
            self.put(name, x)
        for name in ("kept", "state"):
            self.put(name, np.zeros(self.plan[name].shape))

    def put(self, name: str, x: np.ndarray) -> None:
        """Write an array of the plan."""
        array = self.plan[name]
        self.memory.put(self.registers[array.base] + array.offset, x.astype(array.dtype).reshape(array.shape))

    def get(self, name: str) -> np.ndarray:
        """Read an array of the plan."""
        array = self.plan[name]
        return self.memory.get(self.registers[array.base] + array.offset, array.shape, array.dtype)

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
