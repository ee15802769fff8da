"""The search for nearest centroids on a golden LXE, alone: from directions and centroids to numbers in memory."""

import numpy as np

from golden.arithmetic.numerics import BF16
from golden.program.centroid_stages import CentroidPlan
from golden.program.isa import Instruction, LxeFormat, encode
from golden.program.layer_memory import LayerShape, Register
from golden.program.lxe_model import Lxe, Memory, Region
from golden.retrieval import centroids
from hdl.params import CoreParams
from sim.units.lxe_time import LxeTime
from sim.units.sequencer_time import trace


class CentroidRun:
    """A plan with its memory: directions, centroids, work arrays."""

    def __init__(self, fmt: LxeFormat, width: int, tokens: int, clusters: int):
        shape = LayerShape(
            width=width, heads=1, kv_heads=1, head_size=fmt.lanes, ffn=fmt.lanes, tokens=tokens, recent=tokens
        )
        self.plan = CentroidPlan(shape, fmt, clusters)
        sizes = {"x": 2 * tokens * width, "table": self.plan.table.size, "work": self.plan.work.size}
        regions, at = [], 0
        for name, size in sizes.items():
            regions.append(Region(name, at, size))
            at += -(-size // 4096) * 4096
        bases = dict(zip((Register.OUT, Register.WEIGHTS, Register.KV), (r.base for r in regions), strict=True))
        self.registers = {int(register): base for register, base in bases.items()} | {int(Register.REST): 0}
        self.memory = Memory(regions)
        self.lxe = Lxe(fmt, self.memory)

    def _at(self, name: str) -> int:
        array = self.plan[name]
        return self.registers[array.base] + array.offset

    def put(self, x: np.ndarray, m: np.ndarray, open_: np.ndarray | None = None) -> np.ndarray:
        """Write directions [tokens, width] and centroids [clusters, width], both BF16; the scores to expect.

        open_ : clusters that may be chosen, bool [clusters]; all if not given
        """
        q = centroids.norms(m, self.plan.fmt.dot)
        q = q if open_ is None else np.where(open_, q, np.float32(np.inf))
        for name, array in self.plan.pack(m, q).items():
            self.memory.put(self._at(name), array)
        self.memory.put(self._at("x"), x.reshape(self.plan["x"].shape).astype(BF16))
        return centroids.scores(x, m, q, self.plan.fmt.dot)

    def program(self, first: str | None = None) -> list[Instruction]:
        """The program from a stage on, from the scores if not given."""
        return self.plan.program(first)

    def run(self, first: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Execute the program on golden: number of each token's nearest centroid, and its score."""
        self.lxe.run(self.program(first), self.registers)
        out = self.memory.get(self._at("nearest"), self.plan["nearest"].shape, np.float32)
        assert (out == out[..., :1]).all()
        return out[:, 0, 0], out[:, 1, 0]

    def cycles(self, p: CoreParams, latency: int, first: str | None = None) -> int:
        """Cycles of the program on the time view, from START to its end."""
        steps = trace(p, [encode(i) for i in self.program(first)], self.registers).steps
        return int(LxeTime(p, latency).run(steps).done)
