"""The head of a decoder on a golden LXE, alone: from a hidden state, or from given logits, to the next token."""

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_memory import LayerShape, Tiling
from openvrex.tb.library.plan_runs import PlanRun

# Logits whose maximum is easy to miss, by name: a function of their number gives them.
CORNERS = {
    "first": lambda n: np.arange(n, 0, -1),
    "last": lambda n: np.arange(n),
    "all equal": lambda n: np.zeros(n),
    "all negative": lambda n: -5 - np.arange(n) % 7,
    "negative and equal": lambda n: np.full(n, -3),
    "zeros of both signs": lambda n: np.where(np.arange(n) % 2, 0.0, -0.0),
    "equal in other lanes": lambda n: np.where(np.isin(np.arange(n), (n - 1, n // 2, n // 2 + 1)), 9, 1),
    "one step apart": lambda n: np.where(np.arange(n) == n // 2, np.nextafter(np.float32(1e-30), np.float32(1)), 1e-30),
    "the largest numbers": lambda n: np.where(np.arange(n) == n - 1, 3.4e38, -3.4e38),
}


class HeadRun(PlanRun):
    """A head with its memory: hidden state, weights, work arrays."""

    def __init__(
        self,
        fmt: LxeFormat,
        width: int,
        vocabulary: int,
        packing: Packing | None = None,
        cut: Tiling | None = None,
    ):
        shape = LayerShape(width=width, heads=1, kv_heads=1, head_size=fmt.lanes, ffn=fmt.lanes, tokens=2, recent=2)
        plan = HeadPlan(shape, fmt, vocabulary, cut=cut, packing=packing)
        super().__init__(plan, {"hidden": 4 * width, "weights": plan.weights.size, "work": plan.work.size})

    def put_logits(self, logits: np.ndarray) -> None:
        """Write logits as the head leaves them: behind the last one its copies."""
        copies = self.plan["logits"].shape[1] - len(logits)
        self.put("logits", np.pad(logits, (0, copies), mode="edge"))
        self.put("numbers", np.arange(self.plan["numbers"].shape[0]))

    def program(self, first: str | None = None) -> list[Instruction]:
        """The program from a stage on, from the norm if not given."""
        return self.plan.program(first)

    def run(self, first: str | None = None) -> None:
        """Execute the program on golden."""
        self.lxe.run(self.program(first), self.registers)

    @property
    def token(self) -> float:
        """The token that was chosen."""
        return float(self.get("next")[0, 0, 0])
