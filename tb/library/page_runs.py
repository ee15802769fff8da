"""The index of coded pages on a golden LXE, alone: from queries and resident scores to scores of pages in memory."""

from functools import cached_property

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import fma
from openvrex.golden.program.code_stages import CODES, KEYS, MEAN
from openvrex.golden.program.isa import Instruction, LxeFormat, encode
from openvrex.golden.program.layer_memory import LayerShape, Register
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
        own = plan["q"].size + 2 * params.mean * shape.entry  # queries, and entries behind them
        super().__init__(plan, {"q": own, "table": plan.table.size, "work": plan.work.size})
        self.keys, self.pages = CodedKeys(params, matrices, fmt.dot), 0
        self._open = np.zeros((0, shape.kv_heads, shape.head_size), BF16)  # keys without a mean
        for name, array in plan.index.constants(matrices).items():
            self.put(name, array)

    def append(self, k: np.ndarray) -> None:
        """Take keys [T, kv_heads, head_size], BF16. Means and codes of those that are complete come to memory: by the
        program, or as golden has them where there is none.
        """
        own, p = self.keys, self.plan.index
        before = own.coded // p.mean
        self._open = np.concatenate([self._open, k])
        own.append(k)
        if p.coded:
            for number in range(before, own.coded // p.mean):
                block, self._open = np.split(self._open, [p.mean])
                self.code(number, block)
        else:
            self.put("codes", np.stack([p.pack(*of) for of in zip(own.numbers, own.gains, strict=True)]))
            means = self.get("means")
            means[:, : own.means.shape[1]] = own.means
            self.put("means", means)
        self.pages = own.coded // p.page
        self.registers[PAGES] = self.pages

    def code(self, number: int, block: np.ndarray) -> None:
        """Execute the programs that code the keys of mean `number`, [mean, kv_heads, head_size]."""
        p, s, at, mean = self.plan, self.plan.shape, self.registers, self.plan.index.mean
        codes, means = p["codes"], p["means"]
        at[KEYS] = at[Register.OUT] + p["q"].size
        at[CODES] = at[codes.base] + codes.offset + number * mean * codes.shape[-1] * 2
        at[MEAN] = at[means.base] + means.offset + number * s.head_size * 2
        entries = np.zeros((mean, s.entry), BF16)
        entries[:, : s.entry // 2] = block.reshape(mean, -1)
        self.memory.put(at[KEYS], entries)
        for program in self._coding:
            self.execute(program)

    @cached_property
    def _coding(self) -> list[list[Instruction]]:
        return self.plan.programs("code0", f"code{self.plan.shape.kv_heads - 1}")

    def execute(self, program: list[Instruction]) -> None:
        """Execute a program on golden."""
        self.lxe.run(program, self.registers)

    def ask(self, q: np.ndarray, resident: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Write queries [T, heads, size] and the scores of resident keys [n, kv_heads, size]; the sums to expect.

        seen : which of them each token sees, bool [T, n]
        """
        p, s = self.plan, self.plan.shape
        products = scores(q, resident.reshape(len(resident), -1), s.kv_heads, p.fmt.dot)
        scale = to_bf16(np.full(products.shape, p.index.scale))
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
        """The programs of some stages, from the sums of rows to the scores of pages if not given."""
        return self.plan.programs(first or "sums", last or f"rank{self.plan.shape.kv_heads - 1}")

    def run(self) -> np.ndarray:
        """Execute the programs on golden: the scores of the coded pages, FP32 [kv_heads, coded / page]."""
        for program in self.programs():
            self.execute(program)
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
