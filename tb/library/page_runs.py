"""The index of coded pages on a golden LXE, alone: from queries and resident scores to scores of pages in memory."""

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import fma
from openvrex.golden.program.isa import Instruction, LxeFormat, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.page_stages import PAGES, PagePlan
from openvrex.golden.retrieval.coded_pages import CodedKeys, PageParams, resident_sum
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.golden.retrieval.scores import scores
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.library.plan_runs import PlanRun


class PageRun(PlanRun):
    """A plan with its memory, and the coded keys of a layer."""

    def __init__(self, fmt: LxeFormat, shape: LayerShape, pages: int, params: PageParams, matrices: KeyMatrices):
        plan = PagePlan(shape, fmt, pages, params)
        super().__init__(plan, {"q": plan["q"].size, "table": plan.table.size, "work": plan.work.size})
        self.keys, self.pages = CodedKeys(params, matrices, fmt.dot), 0
        for name, array in plan.constants(matrices).items():
            self.put(name, array)

    def append(self, k: np.ndarray) -> None:
        """Code keys [T, kv_heads, head_size], BF16, and write what is complete to memory."""
        own, p = self.keys, self.plan
        own.append(k)
        codes, means = self.get("codes"), self.get("means")
        for g in range(own.kv_heads):
            codes[g] = p.pack(own.numbers[g], own.gains[g])
            means[g, : own.means.shape[1]] = own.means[g]
        self.put("codes", codes)
        self.put("means", means)
        self.pages = own.coded // p.page
        self.registers[PAGES] = self.pages

    def ask(self, q: np.ndarray, resident: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Write queries [T, heads, size] and the scores of resident keys [n, kv_heads, size]; the sums to expect.

        seen : which of them each token sees, bool [T, n]
        """
        p, s = self.plan, self.plan.shape
        products = scores(q, resident.reshape(len(resident), -1), s.kv_heads, p.fmt.dot)
        scale = to_bf16(np.full(products.shape, p.scale))
        logits = fma(products, scale, np.full(products.shape, -0.0, np.float32))
        every = np.broadcast_to(seen[:, None], logits.shape)
        sums = resident_sum(logits.reshape(-1, len(resident)), every.reshape(-1, len(resident)), p.fmt.lanes)
        self.put("q", self.by_head(q))
        self.put("scores", self.by_head(products))
        self.put("mask", np.where(seen, 0, -np.inf).astype(BF16).repeat(s.group, axis=0))
        return sums.reshape(q.shape[:2])

    def by_head(self, rows: np.ndarray) -> np.ndarray:
        """Rows [T, heads, numbers] in the order of the programs: KV head, token, query head."""
        s = self.plan.shape
        parts = rows.reshape(s.tokens, s.kv_heads, s.group, -1)
        return parts.swapaxes(0, 1).reshape(s.kv_heads * s.rows, -1)

    def programs(self, first: str | None = None, last: str | None = None) -> list[list[Instruction]]:
        """The programs of some stages, of all if not given."""
        names = [stage.name for stage in self.plan.stages]
        return self.plan.programs(first or names[0], last or names[-1])

    def run(self) -> np.ndarray:
        """Execute the programs on golden: the scores of the coded pages, FP32 [kv_heads, coded / page]."""
        for program in self.programs():
            self.lxe.run(program, self.registers)
        return self.get("ranks")[:, : self.pages]

    def cycles(self, p: CoreParams, latency: int, stage: str) -> int:
        """Cycles of a stage on the time view, from START to the end."""
        [program] = self.programs(stage, stage)
        steps = trace(p, [encode(i) for i in program], self.registers).steps
        return int(LxeTime(p, latency).run(steps).done)


def asked(run: PageRun, rng: np.random.Generator, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Random queries of a block, times a factor, that see the resident tokens before them: queries and their sums."""
    s = run.plan.shape
    q = to_bf16(rng.standard_normal((s.tokens, s.heads, s.head_size)) * factor)
    resident = to_bf16(rng.standard_normal((s.recent, s.kv_heads, s.head_size)))
    seen = np.arange(s.recent) <= np.arange(s.recent - s.tokens, s.recent)[:, None]
    return q, run.ask(q, resident, seen)
