"""Plays a core's share of a decoder layer instruction by instruction, with the retrieval of its tables.

The programs are those of `golden.program.share_plan` for core 0, which has the most work and leads its team. Time views
that RTL has confirmed play them: `CoreTime` where a program uses the DRE, `LxeTime` elsewhere. Where a core has several
tables, each table's program takes the same cycles, so one stands for all.

What depends on data is laid down: every token compares all clusters and joins one of them, the ring is full if so many
tokens are cached, and tokens reached the clusters in turn, so no block of a cluster follows another one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.program.core_compiler import LEVEL, RetrievalShape
from openvrex.golden.program.core_stages import ROW
from openvrex.golden.program.isa import Instruction, Opcode, Retrieve, Status, StoreTo, encode
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.share_plan import OF_TABLES, SharePlan, shared_space
from openvrex.golden.program.shares import Shares
from openvrex.hdl.params import CoreParams, SystemParams
from openvrex.sim.system.workload import CLUSTER_TOKENS
from openvrex.sim.units.core_time import CoreTime, Retrieval
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.hcu_time import SWITCH, Beat
from openvrex.sim.units.kvmu_time import APPEND, KvmuCycles
from openvrex.sim.units.loader_time import cut
from openvrex.sim.units.lxe_time import LxeCycles, LxeTime, busy
from openvrex.sim.units.queue_cycles import Waits
from openvrex.sim.units.sequencer_time import Executed, Trace, trace
from openvrex.sim.units.table_port_time import TablePortTime
from openvrex.sim.units.wtu_time import RowPlan, WtuTime

UNITS = ("dpe", "vpe", "load", "store", "reads", "writes")
COUNTS = ("cycles", *UNITS, "bytes")  # of a stage
BURSTS = {"load": "reads", "store": "writes"}
LONGEST = 10_000_000  # steps of a program
# Addresses far apart, so that no burst is cut because of another array: the core's and its team's work, a stream's
# inputs, weights, rings and blocks.
WORK, TEAM, INPUTS, WEIGHTS, DEVICE, HOME = (1 << n for n in (30, 32, 33, 34, 37, 38))
USES_DRE = (StoreTo.HASH, StoreTo.SCORE)
DRE_STAGES = {"hash", "cluster", "select"}


class FreeSwitch(DreTime):
    """A DRE whose SWITCHes take no time. Against it, a layer shows how many cycles of its SWITCHes stay visible."""

    def answer(
        self,
        beats: Sequence[Beat],
        clusters: Sequence[int],
        port: TablePortTime,
        out: KvmuCycles,
        news: list[int],
        taken: Sequence[int],
        offered: Sequence[int] | None = None,
    ) -> Waits:
        """As `DreTime.answer`; a SWITCH is answered in the cycle in which it is offered."""
        if beats[0][0] != SWITCH or offered is None:
            yield from super().answer(beats, clusters, port, out, news, taken, offered)
            return
        aside: list[int] = []
        port_aside, out_aside = TablePortTime(self.p, self.latency), KvmuCycles()
        yield from super().answer(beats, clusters, port_aside, out_aside, aside, aside, offered)
        self.kvmu.begin()
        for answers in (news, out.a, out.w):
            answers.append(offered[0])


@dataclass(frozen=True)
class CoreShare:
    """Core 0's share of a layer with retrieval, in a pass of `tokens` tokens over `cached` cached ones.

    system : the hardware, which says how cores share the layer, what a table holds and how long its ring is
    model : shape of a layer: width, heads, kv_heads, head_size, ffn, packing of 4-bit weights if they have these
    share : of the clusters, which the pass fetches
    latency : cycles from a burst's address to its first beat
    cluster : mean tokens of a cluster, of a table with room

    Raises `ParamError` where the hardware has no program for the layer.
    """

    system: SystemParams
    model: Mapping[str, Any]
    tokens: int
    cached: int
    share: float
    latency: int
    cluster: float = CLUSTER_TOKENS

    @property
    def core(self) -> CoreParams:
        """Parameters of a core."""
        return self.system.core

    @cached_property
    def clusters(self) -> int:
        """Clusters of each table."""
        return min(self.core.dre.hcu.clusters, self.wanted)

    @property
    def wanted(self) -> int:
        """Clusters of a table with room for all."""
        return max(1, int(self.cached / self.cluster))

    @property
    def remarks(self) -> list[str]:
        """That the tables do not hold the clusters that the tokens would open, if so."""
        full = f"{self.cached:,} cached: tables full, {self.clusters:,} of {self.wanted:,} clusters."
        return [full] if self.wanted > self.clusters else []

    @cached_property
    def entries(self) -> int:
        """Entries of the chosen clusters behind the ring, in each table."""
        home = max(0, self.cached - self.core.dre.kvmu.recent)
        return sum(len(range(c, home, self.clusters)) for c in self.chosen)

    @property
    def chosen(self) -> range:
        """The clusters that a pass chooses."""
        return range(round(self.share * self.clusters))

    @cached_property
    def shares(self) -> Shares:
        """How the cores share the layer."""
        recent = self.core.dre.kvmu.recent
        whole = LayerShape(**self.model, tokens=self.tokens, recent=recent, entries=max(1, self.entries))
        lanes = self.core.lxe_format().lanes
        return Shares.of(whole, lanes, self.system.cores, self.core.dre.kvmu.entry_bytes)

    @cached_property
    def plan(self) -> SharePlan:
        """The programs of core 0."""
        dre = self.core.dre
        retrieval = RetrievalShape.of(dre.sizes(), dre.function().centre)
        return SharePlan(self.shares, self.core.lxe_format(), retrieval, 0, WORK, TEAM)

    @cached_property
    def phases(self) -> dict[str, list[str]]:
        """The stages of core 0 in each phase."""
        own = [stage.name for stage in self.plan.stages]
        named = {phase: [n for n in own if n in stages] for phase, stages in self.plan.phases.items()}
        return {phase: stages for phase, stages in named.items() if stages}

    def turns(self, phase: str) -> int:
        """Times that the core runs a phase's program in a layer."""
        return self.shares.groups if phase in OF_TABLES else 1

    def layer(self) -> dict[str, dict[str, int]]:
        """`COUNTS` of each stage, of all tables of the core."""
        out, dre = {}, self.held(DreTime)
        for phase, stages in self.phases.items():
            for name, counts in self.played(dre, phase, stages).items():
                out[name] = {unit: n * self.turns(phase) for unit, n in counts.items()}
        return out

    def until(self, fetches: bool = True, switches: bool = True) -> int:
        """Cycles of the programs that use the DRE, for all tables, up to the first scores of chosen entries.

        fetches, switches : False: copying the chosen entries, and the SWITCHes, take no time
        """
        dre, out = self.held(DreTime if switches else FreeSwitch), 0
        for phase, stages in self.phases.items():
            if set(stages) & DRE_STAGES:
                upto = stages[: stages.index("scores") + 1] if "scores" in stages else stages
                counts = self.played(dre, phase, upto, fetches).values()
                out += sum(c["cycles"] for c in counts) * self.turns(phase)
        return out

    def without(self) -> int:
        """Cycles of the core's stages qkv, rotary and append, which a layer without retrieval has before the scores."""
        plan = LayerPlan(self.plan.shape, self.plan.fmt)
        plan = LayerPlan(self.plan.shape, self.plan.fmt, plan.cuts | {"qkv": self.plan.cuts["qkv"]})
        registers = plan.registers(self.cached, self.entries, WEIGHTS, DEVICE)
        steps = self.traced(plan, ["qkv", "rotary", "append"], {int(r): v for r, v in registers.items()}).steps
        return int(LxeTime(self.core, self.latency).run(steps).finished.max()) * self.shares.groups

    def registers(self, phase: str) -> dict[int, int]:
        """Values of the registers that the program of a phase starts with; any that it does not read, too."""
        team = self.shares.members > 1
        return {
            int(Register.WEIGHTS): WEIGHTS,
            int(Register.KV): DEVICE,
            int(ROW): 0,
            int(LEVEL): self.clusters,
            int(Register.REST): 0,
            int(Register.ENTRIES): self.entries if team else 0,
            int(Register.CONTEXT): 0,
            int(Register.OUT): shared_space(self.shares).arrays["attention"].offset,
        }

    def traced(self, plan: LayerPlan, stages: list[str], registers: dict[int, int]) -> Trace:
        """The steps of some stages of a plan."""
        return executed(self.core, plan.program(stages[0], stages[-1]), registers, self.retrieved(stages))

    def retrieved(self, stages: list[str]) -> Iterator[dict[int, int]]:
        """The registers that each RETRIEVE of some stages sets."""
        if "hash" in stages and self.plan.retrieval.centre:
            yield {int(LEVEL): self.clusters}  # of the context before the pass
        if "cluster" in stages:
            table = WEIGHTS + self.plan["table"].offset
            for t in range(self.tokens):
                yield {int(ROW): table + self.joined(t) * self.plan.pitch, int(LEVEL): self.clusters}
                yield {}
            yield {}  # the SWITCH
        if "select" in stages:
            yield {int(Register.ENTRIES): self.entries}

    def joined(self, token: int) -> int:
        """The cluster that a token of the pass joins."""
        return 7 * token % self.clusters

    def hashed(self, token: int) -> int:
        """Hash bits of a token of the pass; any, as all clusters are compared."""
        return 0

    def held(self, kind: type[DreTime]) -> DreTime:
        """A DRE with the table in context 0, whose keys compare all clusters to the end."""
        hcu = self.core.dre.hcu
        out = kind(self.core.dre, hcu.n_hp + 1, self.latency, DEVICE, HOME)
        out.hcu.p = replace(hcu, early_abandon=False)
        out.hcu.tables[0] = np.zeros((self.clusters, hcu.chunks), np.uint64)
        kv, timed = out.kvmu.kv, min(self.cached, 1)  # one APPEND in the time view, which then has read the pool
        for t in range(self.cached - timed):
            ok = kv.append(0, t % self.clusters).ok
            check(ok, "blocks", kv.blocks, f"must be more for {self.cached} tokens of one table: raise kvmu.blocks")
        out.kvmu.run([(APPEND, 0, self.clusters - 1)] * timed)
        return out

    def played(self, dre: DreTime, phase: str, stages: list[str], fetches: bool = True) -> dict[str, dict[str, int]]:
        """Cycles and work of stages that follow each other in the program of a phase (`by_stage`)."""
        steps = self.traced(self.plan, stages, self.registers(phase)).steps
        cycles = self.timed(dre, steps, fetches)
        return by_stage(self.core, self.latency, self.plan, stages, steps, cycles)

    def timed(self, dre: DreTime, steps: list[Executed], fetches: bool) -> LxeCycles:
        """The cycles of a program's steps."""
        retrieves = (s.op == Opcode.RETRIEVE or s.op == Opcode.STORE and s.beat["target"] in USES_DRE for s in steps)
        if not any(retrieves):
            return LxeTime(self.core, self.latency).run(steps)
        return CoreTime(self.core, dre, self.retrieval(dre, fetches)).run(steps)

    def retrieval(self, dre: DreTime, fetches: bool) -> Retrieval:
        """What of the retrieval depends on data."""
        shape, size = self.plan.shape, 2 * self.plan.shape.entry
        places = []
        for t in range(self.tokens):
            move = {"src": DEVICE + t * size, "dst": HOME + t * size}
            full = self.cached + t >= shape.recent
            places.append([("x", move)] * full + [("w", {"device": move["src"]})])
        bursts, first = self.bursts(dre)
        return Retrieval(
            keys=[(self.hashed(t), self.joined(t)) for t in range(self.tokens)],
            places=places,
            clusters=[self.clusters],
            plans=[[self.row()] * self.rows],
            sets=[bursts if fetches else []],
            firsts=[first],
        )

    @property
    def rows(self) -> int:
        """Rows of score codes that the WTU takes of a table."""
        return self.plan.shape.kv_heads * self.plan.shape.rows

    def row(self) -> RowPlan:
        """What a row takes in the WTU whose codes are of all sizes."""
        wtu = self.core.dre.wtu
        codes = 37 * np.arange(self.clusters) % (1 << wtu.score.bits)
        counts = np.full(self.clusters, max(1, round(self.cached / self.clusters)))
        return WtuTime(wtu).plan(codes, counts, self.core.dre.function().ratio_q16)

    def bursts(self, dre: DreTime) -> tuple[list[dict], int]:
        """The bursts of the chosen clusters, each with the cycles by which it follows the first one; the cycles from
        the end of the set to the first.
        """
        chosen = list(self.chosen)
        bursts, _ = dre.kvmu.kv.found(0, chosen)
        at = dre.fetch(0, chosen).b
        pairs = zip(bursts, at, strict=False)  # an empty set has a beat, but no burst
        return [b.beat() | {"after": c - at[0]} for b, c in pairs], at[0]


def by_stage(
    core: CoreParams, latency: int, plan: LayerPlan, stages: Sequence[str], steps: list[Executed], cycles: LxeCycles
) -> dict[str, dict[str, int]]:
    """Cycles of each of some stages that follow each other in one program, and its `work`.

    A stage lasts from the end of the stage before to the end of its last instruction, and the last one to the
    program's end. The copies of a FETCH go on beside the next stage.
    """
    out, before, first = {}, 0, 0
    for name in stages:
        upto = len(plan.program(stages[0], name)) - 1
        mine = [k for k, step in enumerate(steps) if first <= step.pc < upto]
        ends = [cycles.finished[k] for k in mine if not _copies(steps[k])]
        if name == stages[-1]:
            ends.append(cycles.finished[-1])
        first, end = upto, max(before, int(max(ends, default=0)))
        out[name] = {"cycles": end - before} | work(core, latency, [steps[k] for k in mine])
        before = end
    return out


def executed(
    core: CoreParams,
    program: Iterable[Instruction | int],
    registers: Mapping[int, int],
    retrieved: Iterable[dict[int, int]] = (),
) -> Trace:
    """The steps of a program of instructions or words; `retrieved` as of `trace`. Raises `ParamError` if it fails."""
    words = [i if isinstance(i, int) else encode(i) for i in program]
    out = trace(core, words, {int(k): int(v) for k, v in registers.items()}, LONGEST, retrieved)
    check(out.code == Status.DONE, "status", out.code.name, f"must be DONE: the program ended at {out.pc}")
    return out


def work(core: CoreParams, latency: int, steps: list[Executed]) -> dict[str, int]:
    """Cycles in which steps keep each of `UNITS` busy, and bytes on the bus, whose LOADs may expand or repeat them."""
    out = busy_for(core, latency, steps)
    return out | {name: out[name] // core.lxe.bursts for name in BURSTS.values()}


def busy_for(core: CoreParams, latency: int, steps: list[Executed]) -> dict[str, int]:
    """As `work`, with the latency of all bursts as if one were in flight at a time."""
    out = dict.fromkeys((*UNITS, "bytes"), 0)
    for step in steps:
        for unit, n in busy(core, step).items():
            out[unit] += n
            if unit in BURSTS:
                bursts = cut(core, step.beat, joined=unit == "load")
                beats = sum(n for n, _ in bursts)
                out[BURSTS[unit]] += len(bursts) * (latency + 1) + beats
                out["bytes"] += beats * core.lxe.bus_bytes
    return out


def _copies(step: Executed) -> bool:
    return step.op == Opcode.RETRIEVE and step.beat["action"] == Retrieve.FETCH
