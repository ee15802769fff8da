"""Plays the programs of a layer under Mosaic on one core, for what a mean frame and a token ask.

The driver of the hardware itself starts the programs (`golden.policies.mosaic_core`). It reads numbers that are laid
down in place of a core's: each token goes to cluster 0 and stays below its threshold, or does not; K-means takes a
given number of rounds and makes equal parts. A program's cycles depend on such numbers only through its addresses,
which decide where bursts end. Entries, clusters and members lie at the start of their arrays here.

Time view: `sim.units.lxe_time.LxeTime`, whose cycles are those of the RTL.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import floor

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.mosaic import Mosaic
from openvrex.golden.policies.mosaic_core import CoreLayer, Job, MosaicDriver
from openvrex.golden.program.bus_memory import Memory
from openvrex.golden.program.cluster_stages import ANSWERS, NUMBER
from openvrex.golden.program.isa import encode
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.mosaic_plan import MosaicPlan
from openvrex.golden.retrieval.centroids import ROUNDS
from openvrex.hdl.params import SystemParams
from openvrex.sim.system.mosaic_demand import MosaicDemand
from openvrex.sim.system.share_cycles import COUNTS, DEVICE, WEIGHTS, executed, work
from openvrex.sim.system.workload import Decoder
from openvrex.sim.units.lxe_time import LxeTime

Counts = dict[str, float]


class Laid(MosaicDriver):
    """A driver of one layer that notes its programs, and reads numbers that are laid down.

    jobs : the programs that it started
    below : whether a token's cluster stays below its threshold · rounds, centres : of K-means
    """

    def __init__(self, plan: MosaicPlan):
        self.jobs: list[Job] = []
        self.below, self.rounds, self.centres, self._round = True, ROUNDS, 2, 0
        base = {0: 0, int(Register.WEIGHTS): WEIGHTS, int(Register.KV): DEVICE}
        super().__init__(plan, {0: base}, Memory([]), self.jobs.append)

    def write(self, layer: int, name: str, x: np.ndarray) -> None:
        """Nothing reads it."""

    def answer(self, layer: int) -> np.ndarray:
        """Cluster or member 0; margin, or greatest distance, 1 or -1."""
        out = np.full(ANSWERS, 1.0 if self.below else -1.0)
        out[NUMBER] = self.plan.above
        return out

    def read(self, layer: int, name: str, dtype: type | None = None) -> np.ndarray:
        """Labels in turn, others than in the round before, up to the last one; anything else is 0."""
        a = self.plan[name]
        out: np.ndarray = np.zeros(a.shape, dtype or a.dtype)
        if name == "labels":
            self._round += self._round < max(1, self.rounds - (self.rounds < ROUNDS))
            out[:] = ((np.arange(len(out)) + self._round) % self.centres)[:, None]
        return out

    def place(self, tokens: int, together: int) -> np.ndarray:
        """Put tokens 0, 1, ... into slots from the first on, with a free slot behind each `together` of them."""
        own = np.arange(tokens)
        self.slot[0, own] = own + own // together
        return own


@dataclass(frozen=True)
class MosaicShare:
    """A core's programs of a layer in a pass of `tokens` tokens under Mosaic.

    latency : cycles from a burst's address to its first beat

    Raises `ParamError` where the hardware has no program for the layer, or no room for the policy.
    """

    system: SystemParams
    model: Decoder
    d: MosaicDemand
    latency: int

    @cached_property
    def plan(self) -> MosaicPlan:
        """The programs of the largest pass."""
        core, m, d = self.system.core, self.model, self.d
        cores = self.system.cores
        check(cores == 1, "cores", cores, "must be 1 for mosaic, whose clusters span all KV heads: --preset core")
        fmt = replace(core.lxe_format(), to_register=False)  # steps that a host steers, on any core
        n = fmt.lanes
        clusters, visual = (-(-x // n) * n for x in (d.clusters, d.visual))
        slots = -(-(d.tokens + clusters) // (2 * n)) * 2 * n
        most = core.vpe.depth * n
        reason = f"must be at most {most}, whose masks a core holds: lower mosaic.ratio or mosaic.recent"
        check(slots <= most, "slots", slots, reason)
        shape = LayerShape(**m.sizes, tokens=d.most, recent=slots, entries=0)
        limit = Mosaic(d.params, Shape(1, m.heads, m.kv_heads, m.head, ((1.0,) * (m.head // 2),))).semantic_limit
        return MosaicPlan(shape, fmt, clusters, visual, d.cached + d.most, (fmt.depth - 1) // 2, limit)

    @cached_property
    def _plans(self) -> dict[int, MosaicPlan]:
        return {self.plan.shape.tokens: self.plan}

    def of(self, tokens: int) -> MosaicPlan:
        """The programs of a pass of so many tokens, written once."""
        if tokens not in self._plans:
            self._plans[tokens] = self.plan.of(tokens)
        return self._plans[tokens]

    # Programs

    def driven(self, drive: Callable[[Laid, CoreLayer], object]) -> list[Job]:
        """The programs that the driver starts for something that it is asked to do in a fresh layer."""
        core = Laid(self.plan)
        layer = CoreLayer(self.plan.width, self.model.kv_heads, core, 0)
        layer.cluster = np.full(self.plan.stream, -1)
        layer.buffered = np.zeros(self.plan.stream, bool)
        layer.clusters.open(0)
        drive(core, layer)
        return core.jobs

    def ask(self, tokens: int) -> list[Job]:
        """A pass up to its queries, and its entries' way to their slots."""
        plan = self.of(tokens)

        def drive(core: Laid, layer: CoreLayer) -> None:
            core.start("ask", 0, tokens, plan.ask())
            own, size = core.place(tokens, tokens), core._row(plan["ring"])
            fresh = [plan["fresh"].offset + k * size for k in range(tokens)]
            core.copy("append", 0, fresh, [core.entry(0, t) for t in own.tolist()])

        return self.driven(drive)

    def attend(self, tokens: int) -> list[Job]:
        """A pass from its scores to the layer's end."""
        plan = self.of(tokens)
        return self.driven(lambda core, _: core.start("attend", 0, tokens, plan.attend(), WEIGHED=WEIGHTS))

    def choose(self) -> list[Job]:
        """Score codes of visual clusters and of clusters."""
        one = np.ones(1, np.int64)

        def drive(core: Laid, layer: CoreLayer) -> None:
            core.query_at = core.address(0, "query")
            layer.visual_choice(np.zeros(0), one, 1)
            layer.choice(np.zeros(0), np.zeros(1, np.int64), one, 1)

        return self.driven(drive)

    def copy(self, kind: str, entries: int) -> list[Job]:
        """A copy of adjacent entries between home and slots. kind : `fetch`, `prefetch` or `offload`"""

        def drive(core: Laid, layer: CoreLayer) -> None:
            own = core.place(entries, entries).tolist()
            home, slots = ([core.address(0, "home", t) for t in own], [core.entry(0, t) for t in own])
            core.copy(kind, 0, *((slots, home) if kind == "offload" else (home, slots)))

        return self.driven(drive)

    def assign(self, tokens: int, below: bool) -> list[Job]:
        """The tokens of a frame, adjacent in their slots, to clusters. below : all are taken, else none"""

        def drive(core: Laid, layer: CoreLayer) -> None:
            core.below = below
            own, partition = core.place(tokens, tokens), np.zeros(tokens, np.int64)
            layer.visit(own, partition)
            x = layer.directions(own)
            layer.clusters.assign(x, partition, self.plan.limit, lambda _, __: None, lambda _, __: [])  # type: ignore[arg-type]

        return self.driven(drive)

    def split(self, members: int, rounds: int, together: int) -> list[Job]:
        """A cluster's split in two."""

        def drive(core: Laid, layer: CoreLayer) -> None:
            core.rounds = rounds
            layer.split(core.place(members, together), 0, 0)

        return self.driven(drive)

    def create(self, tokens: int, clusters: int, rounds: int) -> list[Job]:
        """Clusters of a frame that opens a visual cluster, by K-means."""

        def drive(core: Laid, layer: CoreLayer) -> None:
            core.rounds, core.centres = rounds, clusters
            own = core.place(tokens, tokens)
            layer.visit(own, np.zeros(tokens, np.int64))
            layer.create(own, 0, clusters, 0)

        return self.driven(drive)

    # Cycles

    def counts(self, jobs: Sequence[Job]) -> Counts:
        """`COUNTS` of programs, one after the other."""
        out: Counts = dict.fromkeys(COUNTS, 0)
        for job in jobs:
            key = tuple(encode(i) for i in job.program), tuple(sorted(job.registers.items()))
            for name, n in _played(self.system, self.latency, *key).items():
                out[name] += n
        return out

    def events(self, text: int, first: bool, last: bool) -> Iterator[tuple[str, list[Job], float]]:
        """Name, programs, and how often they run in a layer of a text of so many tokens; 0: of a mean frame.

        first, last : of the decoder's layers
        """
        d, h = self.d, self.d.habits
        tokens = text or d.frame_tokens
        yield "ask", self.ask(tokens), 1.0
        if d.home:
            ahead = d.prefetches and not last
            yield "choose", self.choose(), 1.0 + ahead
            for kind, entries in (("fetch", d.fetched(first)), ("prefetch", d.wanted * ahead)):
                yield from ((kind, jobs, n) for jobs, n in self.moved(kind, entries, h.together))
        yield "attend", self.attend(tokens), 1.0
        if not text and d.cached >= d.params.build * tokens:
            yield from self.clustering(tokens)
            if d.home:
                yield from (("offload", jobs, n) for jobs, n in self.moved("offload", tokens, tokens))

    def clustering(self, tokens: int) -> Iterator[tuple[str, list[Job], float]]:
        """The part of `events` that puts a frame into clusters."""
        d, h = self.d, self.d.habits
        joins, broken = 1 - h.opened, h.split + h.deferred
        yield "assign", self.assign(tokens, True), joins * (1 - broken)
        yield "assign", self.assign(tokens, False), joins * broken
        for rounds, n in parts(h.rounds):
            for together, m in parts(h.together):
                jobs = self.split(min(round(h.members), self.plan.members), rounds, together)
                yield "split", jobs, n * m * joins * broken * tokens
            clusters = -(-tokens // d.params.cluster_tokens) if d.params.semantic_level else 1
            yield "create", self.create(tokens, clusters, rounds), n * h.opened

    def moved(self, kind: str, entries: float, together: float) -> Iterator[tuple[list[Job], float]]:
        """Programs that copy `entries` entries, `together` at a time, and how often they run."""
        for some, n in parts(together):
            yield self.copy(kind, some), n * entries / together

    def layer(self, text: int = 0, first: bool = False, last: bool = False) -> dict[str, Counts]:
        """`COUNTS` of a layer by the names of `events`."""
        return {name: dict(counts) for name, counts in _layer(self, text, first, last)}


def parts(x: float) -> list[tuple[int, float]]:
    """The integers next to a mean of x, and the share of each: what is linear in them is right on average."""
    low = floor(x)
    return [(k, share) for k, share in ((low, 1 - (x - low)), (low + 1, x - low)) if share]


@lru_cache(maxsize=64)
def _layer(share: MosaicShare, text: int, first: bool, last: bool) -> tuple[tuple[str, Counts], ...]:
    out: dict[str, Counts] = {}
    for name, jobs, times in share.events(text, first, last):
        own = out.setdefault(name, dict.fromkeys(COUNTS, 0.0))
        for key, n in share.counts(jobs).items():
            own[key] += n * times
    return tuple(out.items())


@lru_cache(maxsize=4096)
def _played(
    system: SystemParams, latency: int, program: tuple[int, ...], registers: tuple[tuple[int, int], ...]
) -> Counts:
    ran = executed(system.core, program, dict(registers))
    cycles = LxeTime(system.core, latency).run(ran.steps)
    return {"cycles": int(cycles.finished.max()), **work(system.core, latency, ran.steps)}
