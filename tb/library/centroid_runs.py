"""The search for nearest centroids on a golden LXE, alone: from directions and centroids to numbers in memory."""

import numpy as np

from openvrex.golden.program.centroid_stages import CentroidPlan
from openvrex.golden.program.isa import Instruction, LxeFormat, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.retrieval import centroids
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.library.plan_runs import PlanRun


class CentroidRun(PlanRun):
    """A plan with its memory: directions, centroids, work arrays."""

    def __init__(self, fmt: LxeFormat, width: int, tokens: int, clusters: int):
        shape = LayerShape(
            width=width, heads=1, kv_heads=1, head_size=fmt.lanes, ffn=fmt.lanes, tokens=tokens, recent=tokens
        )
        plan = CentroidPlan(shape, fmt, clusters)
        super().__init__(plan, {"x": 2 * tokens * width, "table": plan.table.size, "work": plan.work.size})

    def give(self, x: np.ndarray, m: np.ndarray, open_: np.ndarray | None = None) -> np.ndarray:
        """Write directions [tokens, width] and centroids [clusters, width], both BF16; the scores to expect.

        open_ : clusters that may be chosen, bool [clusters]; all if not given
        """
        q = centroids.norms(m, self.plan.fmt.dot)
        q = q if open_ is None else np.where(open_, q, np.float32(np.inf))
        for name, array in self.plan.pack(m, q).items():
            self.put(name, array)
        self.put("x", x)
        return centroids.scores(x, m, q, self.plan.fmt.dot)

    def program(self, first: str | None = None) -> list[Instruction]:
        """The program from a stage on, from the scores if not given."""
        return self.plan.program(first)

    def run(self, first: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Execute the program on golden: number of each token's nearest centroid, and its score."""
        self.lxe.run(self.program(first), self.registers)
        out = self.get("nearest")
        assert (out == out[..., :1]).all()
        return out[:, 0, 0], out[:, 1, 0]

    def cycles(self, p: CoreParams, latency: int, first: str | None = None) -> int:
        """Cycles of the program on the time view, from START to its end."""
        steps = trace(p, [encode(i) for i in self.program(first)], self.registers).steps
        return int(LxeTime(p, latency).run(steps).done)
