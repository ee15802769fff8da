"""Plays a core's share of a decoder layer that retrieves coded pages, instruction by instruction.

The programs are those of `golden.program.share_plan` (`PAGES`, in a team `TEAM_PAGES`), the same that a core's RTL
runs. Time views that RTL has confirmed play them, as for clusters (`sim.system.share_cycles`).

What depends on data is laid down. A context's pages hold tokens in order, and the chosen ones lie evenly apart. The
pass starts at a multiple of `mean` tokens, so it completes no mean; of the stage `code`, which follows every `mean`
tokens, a mean pass has its part. Left out: where a mean ends within a pass, its tokens are placed by two programs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.program.core_compiler import LEVEL, RetrievalShape
from openvrex.golden.program.isa import LoadTo, Opcode
from openvrex.golden.program.layer_compiler import GEMMS
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.share_plan import HEADS, LEADERS, NORMS, SharePlan
from openvrex.golden.program.shares import Shares, divide
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.kvmap import Burst
from openvrex.hdl.params import SystemParams
from openvrex.sim.system.share_cycles import DEVICE, HOME, INPUTS, TEAM, WEIGHTS, WORK, CoreShare, busy_for
from openvrex.sim.system.workload import Decoder
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.kvmu_time import APPEND
from openvrex.sim.units.wtu_time import RowPlan, WtuTime

EARLY = "hash"  # the phase of a pass that completes a mean


@lru_cache(maxsize=256)
def shared(
    system: SystemParams,
    model: Decoder,
    tokens: int,
    cached: int,
    latency: int,
    pages: PageParams,
    found: float,
    streams: int,
) -> "PageShare":
    """A share, of which each is played once: homes do not matter to it."""
    return PageShare(system, model.sizes, tokens, cached, 0.0, latency, pages=pages, found=found, streams=streams)


@dataclass(frozen=True)
class PageShare(CoreShare):
    """Core 0's share of a layer that retrieves pages; `share` and `cluster` have no effect.

    pages : parameters of the policy; `numbers` and `recent` are those of the hardware
    found : share of the whole pages of a set that the core finds kept, where it keeps blocks
    streams : of a batch, whose products run together

    Raises `ParamError` where the hardware has no program for the layer, or no room for its pages.
    """

    pages: PageParams = PageParams()
    found: float = 0.0
    streams: int = 1

    @property
    def start(self) -> int:
        """Tokens before the pass, whole means."""
        return self.cached // self.pages.mean * self.pages.mean

    @property
    def left(self) -> int:
        """Tokens at home behind the pass."""
        return max(0, self.start + self.tokens - self.core.dre.kvmu.recent)

    @property
    def wanted(self) -> int:
        """Pages of all tokens."""
        return -(-(self.start + self.tokens) // self.pages.page)

    @cached_property
    def clusters(self) -> int:
        have, need = self.core.dre.hcu.clusters, self.wanted
        reason = f"must be at least {need}, pages of {self.start + self.tokens:,} tokens: raise it, or pages.page"
        check(need <= have, "clusters", have, reason)
        return need

    @property
    def compared(self) -> int:
        """Pages that a token is compared with, at most."""
        hcu = self.core.dre.hcu
        return min(self.clusters, hcu.tile) if hcu.newest else self.clusters

    @property
    def candidates(self) -> int:
        """Pages with a token at home."""
        return -(-self.left // self.pages.page)

    @property
    def chosen(self) -> list[int]:  # type: ignore[override]
        """The pages that a pass chooses: those of sinks, and as many as the budget holds."""
        p, pinned = self.pages, min(self.pages.pinned, self.candidates)
        others = min(-(-p.budget // p.page), self.candidates - pinned)
        apart = max(1, (self.candidates - pinned) // max(1, others))
        return [*range(pinned), *range(pinned, pinned + apart * others, apart)]

    @cached_property
    def entries(self) -> int:
        page = self.pages.page
        return sum(min(page, self.left - number * page) for number in self.chosen)

    @property
    def home_blocks(self) -> int:
        """Blocks of a table at home; each page begins one."""
        slots, page = self.core.dre.kvmu.block_slots, self.pages.page
        whole, rest = divmod(self.left, page)
        return whole * -(-page // slots) + -(-rest // slots)

    @cached_property
    def shares(self) -> Shares:
        p, kvmu = self.pages, self.core.dre.kvmu
        most = (-(-p.budget // p.page) + p.pinned) * p.page
        whole = LayerShape(**self.model, tokens=self.tokens, recent=kvmu.recent, entries=most)
        one = Shares.of(whole, self.core.lxe_format().lanes, self.system.cores, kvmu.entry_bytes)
        return replace(one, batch=self.streams * self.tokens) if self.streams > 1 else one

    @cached_property
    def plan(self) -> SharePlan:
        dre = self.core.dre
        pages = replace(self.pages, numbers=max(1, self.core.lxe.codes), recent=dre.kvmu.recent)
        retrieval = RetrievalShape.of(dre.sizes(), False, pages=pages)
        check(dre.wtu.budget, "wtu.budget", False, "must be true: the WTU chooses pages within a budget")
        return SharePlan(self.shares, self.core.lxe_format(), retrieval, 0, WORK, TEAM)

    def alike(self, stage: str) -> float:
        """Cores that have as much of a stage as core 0."""
        s = self.shares
        if stage in NORMS and self.plan.norms_apart:
            return s.joint / len(divide(s.joint, s.cores)[0])
        return s.teams if stage in LEADERS else s.cores

    def layer(self) -> dict[str, dict[str, float]]:  # type: ignore[override]
        """As of `CoreShare`, of a mean pass. Entries are there when they are asked for.

        Of a batch: stages of `share_plan.JOINT` are those of all streams, the others of one. `rows` are bytes of
        products that other cores read, too (`Shares.in_step`).
        """
        out, dre = {}, self.held(DreTime)
        for phase, stages in self.phases.items():
            if phase == EARLY:
                continue
            times = self.turns(phase) * (self.tokens / self.pages.mean if phase == "code" else 1)
            for name, counts in self.played(dre, phase, stages, fetches=False).items():
                out[name] = {unit: n * times for unit, n in counts.items()}
                if self.streams > 1 and name in GEMMS:
                    steps = self.traced(self.plan, [name], self.registers(phase)).steps
                    rows = [s for s in steps if s.op == Opcode.LOAD and s.beat["target"] == LoadTo.X]
                    out[name]["rows"] = busy_for(self.core, self.latency, rows)["bytes"] * times
        return out

    @cached_property
    def times(self) -> tuple[dict[str, dict[str, float]], float, list[Burst]]:
        """`layer`, `placing`, and the bursts of a FETCH, which a system reads from where its entries lie."""
        return self.layer(), self.placing(), self.held(DreTime).kvmu.kv.fetch(0, self.chosen)

    def placing(self) -> float:
        """Cycles in which DRE and retriever place all tokens of a pass, which stages of the LXE overlap."""
        played = self.played(self.held(DreTime), EARLY, self.phases[EARLY]).values()
        return self.turns(EARLY) * sum(counts["cycles"] for counts in played)

    def registers(self, phase: str) -> dict[int, int]:
        start = self.start - self.tokens * (phase == EARLY)  # the phase takes the tokens up to the end of a mean
        given = {int(LEVEL): 0}
        if self.streams > 1:
            given[Register.STREAM] = INPUTS
            if phase not in HEADS:
                given[Register.OUT] = self.plan.rows_at
        given |= self.plan.page_registers(phase, start, WEIGHTS, DEVICE, given.get(Register.STREAM, 0))
        return super().registers(phase) | given

    def retrieved(self, stages: list[str]) -> Iterator[dict[int, int]]:
        if {"cluster", "early_cluster"} & set(stages):
            yield from ({} for _ in range(2 * self.tokens))
        if "select" in stages:
            yield {int(LEVEL): self.clusters}
            yield {int(Register.ENTRIES): self.entries}

    def joined(self, token: int) -> int:
        return (self.start + token) // self.pages.page

    def hashed(self, token: int) -> int:
        """The token's page number."""
        return self.joined(token)

    def held(self, kind: type[DreTime]) -> DreTime:
        """A DRE whose context 0 has the pages of the tokens before the pass."""
        hcu, kvmu, page = self.core.dre.hcu, self.core.dre.kvmu, self.pages.page
        out = kind(self.core.dre, 1, self.latency, DEVICE, HOME)
        known = min(self.clusters, -(-self.start // page))  # which checks that they fit
        numbers, chunk = np.arange(known, dtype=np.uint64)[:, None], np.arange(hcu.chunks, dtype=np.uint64)
        out.hcu.tables[0] = numbers >> chunk * np.uint64(hcu.n_w) & np.uint64((1 << hcu.n_w) - 1)
        for token in range(self.start - 1):
            ok = out.kvmu.kv.append(0, token // page).ok
            check(ok, "blocks", kvmu.blocks, f"must be more for {self.start} tokens of one table: raise kvmu.blocks")
        if self.start:
            out.kvmu.run([(APPEND, 0, known - 1)])
        if kvmu.kept:
            out.kvmu.kv.keep(0, self.chosen[: round(self.found * len(self.chosen))])
        return out

    @property
    def rows(self) -> int:
        """One, of page scores."""
        return 1

    def row(self) -> RowPlan:
        """What the row takes in the WTU: codes of all sizes, 0 for pages that are no candidates."""
        wtu, p, number = self.core.dre.wtu, self.pages, np.arange(self.clusters)
        codes = np.where(number < self.candidates, 37 * number % (1 << wtu.score.bits), 0)
        counts = np.full(self.clusters, p.page)
        return WtuTime(wtu).plan(codes, counts, self.core.dre.function().ratio_q16, p.budget + p.pinned * p.page)
