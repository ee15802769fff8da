"""Places decoder layers that cores share in one memory, and says which program runs with which register values.

Regions lie one after the other: what all cores share, the work arrays of each core and team, the weights of each layer
of a team, and a team's tables, rings and blocks. A team's other members have the addresses of its leader's tables,
rings and blocks, which their retrieval engines do not touch.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import groupby
from typing import Self

from openvrex.golden.function_params import check
from openvrex.golden.program.core_compiler import LEVEL, RetrievalShape
from openvrex.golden.program.core_stages import ROW
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_compiler import GEMMS
from openvrex.golden.program.layer_memory import Array, Register
from openvrex.golden.program.layers_in_memory import MemoryMap
from openvrex.golden.program.share_plan import (
    ADDS,
    HEADS,
    JOINT,
    OF_TABLES,
    PREFETCH,
    SharePlan,
    shared_space,
    spread,
)
from openvrex.golden.program.shares import Shares
from openvrex.golden.retrieval.dre_model import DreSizes
from openvrex.golden.retrieval.table_layout import PAGE, Item


class SystemMap:
    """Plans of all cores for layers of one shape, their programs, and their places in memory.

    shares : how the cores share a layer
    retrieval : sizes of a layer's retrieval; `ctx`, `ahead` and `fetched` are set here
    layers : number of layers
    sizes : of each core's DRE; memory has tables for the contexts that the layers use
    ahead : whether each layer fetches for the next one
    more : names and bytes of further regions behind the layers' weights
    streams : most streams of a batch; with several, `shares.batch` is the most tokens that they have together
    sections : most sections of a pass (`golden.program.model_host`); one of each stream if not given

    plans : [core][layer] · weights : addresses, [team][layer] · regions : all of memory
    contexts : tables that memory has for each core
    table_bases, device_bases, home_bases : one for each core · more_bases : addresses of further regions by name

    Table g of layer k of stream s on a core is its context (s * layers + k) * `shares.groups` + g.
    """

    def __init__(
        self,
        shares: Shares,
        fmt: LxeFormat,
        retrieval: RetrievalShape,
        layers: int,
        sizes: DreSizes,
        *,
        ahead: bool,
        more: dict[str, int] | None = None,
        streams: int = 1,
        sections: int = 0,
    ):
        check(streams == 1 or shares.batch > 0, "batch", shares.batch, f"must be the tokens of {streams} streams")
        self.shares, self.ahead, self.blocks = shares, ahead, sizes.map.blocks
        self.layers, self.streams, self.sections = layers, streams, max(streams, sections)
        self.batch, self.section = shares.batch, 0
        self.contexts = contexts = streams * layers * shares.groups
        n_ctx = sizes.map.n_ctx
        check(contexts <= n_ctx, "n_ctx", n_ctx, f"must be at least {contexts}, the tables of a core")
        own = MemoryMap(PAGE)
        self.regions, self._region = own.regions, own.add
        self._region("shared", shared_space(shares, retrieval.pages is not None, ahead).size)
        self._place_plans(fmt, retrieval, layers, streams)
        self.more_bases = {name: self._region(name, size) for name, size in (more or {}).items()}
        self.entry_bytes = self.plans[0][0].shape.entry * 2
        kept = contexts * sizes.map.kept_bytes  # in front of the rings
        ring = kept + contexts * shares.whole.recent * self.entry_bytes
        home = self.blocks * sizes.map.block_bytes
        spaces = {"tables": sizes.layout.address(Item.LEVEL, contexts), "rings": ring, "home": home}
        bases = [[self._region(f"{name} {t}", size) for t in range(shares.teams)] for name, size in spaces.items()]
        self.table_bases, self.device_bases, self.home_bases = (b * shares.members for b in bases)
        self.device_bases = [base + kept for base in self.device_bases]
        self._programs: dict[tuple[int, int, str], list[Instruction] | None] = {}

    def of(self, tokens: int, batch: int = 0) -> Self:
        """The same layers, in the same places, for passes of fewer tokens; what a pass leaves in memory they share.

        batch : in a host of batches, tokens whose products run together, of one stream if it is alone; 0: a pass that
            is no batch, of the only stream

        Arrays of a pass lie elsewhere than those of a pass of another size, and overwrite them.
        """
        wanted = "0 in a host without batches" if batch else "given in a host of several streams"
        check(self.batch > 0 if batch else self.streams == 1, "batch", batch, f"must be {wanted}")
        out = copy(self)
        made = {id(plan): plan.of(tokens, batch) for plans in self.plans for plan in plans}
        out.plans = [[made[id(plan)] for plan in plans] for plans in self.plans]
        out.shares, out._programs = out.plans[0][0].shares, {}
        return out

    def at(self, section: int) -> Self:
        """The same layers and programs, with the inputs of another section of the pass."""
        out = copy(self)
        out.section = section
        return out

    def _place_plans(self, fmt: LxeFormat, retrieval: RetrievalShape, layers: int, streams: int) -> None:
        """Make the plans of all cores and layers, and place their work arrays and weights."""
        s, groups = self.shares, self.shares.groups
        last = layers - 1
        kinds = [  # what differs between layers: whether it fetches for the next one, and has its entries fetched
            replace(retrieval, ctx=0, ahead=groups if self.ahead and k < last else -1, fetched=self.ahead and k > 0)
            for k in range(layers)
        ]
        self.inputs: list[int] = []  # addresses of the sections' inputs, of each core
        bases: dict[int, int] = {}
        team_bases: dict[int, int] = {}
        for i in range(s.cores):
            trial = {r: SharePlan(s, fmt, r, i) for r in kinds}
            sizes = [p.work.size for p in trial.values()]
            if streams == 1:  # shorter passes have norms of their own
                sizes += [p.of(n).work.size for p in trial.values() if p.norms_apart for n in {1, s.whole.tokens}]
            bases[i] = self._region(f"work {i}", max(sizes))
            if s.batch:
                self.input_bytes = trial[kinds[0]].input_bytes
                self.inputs.append(self._region(f"inputs {i}", self.sections * self.input_bytes))
            if s.members > 1 and s.member(i) == 0:
                team_bases[i] = self._region(f"team {i}", trial[kinds[0]].team_bytes)
        self.plans: list[list[SharePlan]] = []  # [core][layer]
        for i in range(s.cores):
            made = {r: SharePlan(s, fmt, r, i, bases[i], team_bases.get(s.team(i), 0)) for r in kinds}
            self.plans.append([made[r] for r in kinds])
        self.weights: list[list[int]] = []  # addresses, [team][layer]
        for t in range(s.teams):
            size = self.plans[t][0].apart
            self.weights.append([self._region(f"weights {t} of layer {k}", size) for k in range(layers)])
        self.of_streams: list[list[list[int]]] = []  # of each further stream: addresses, [stream][team][layer]
        for n in range(1, streams):
            size = s.groups * self.plans[0][0].context_bytes
            named = [[f"stream {n}, table {t} of layer {k}" for k in range(layers)] for t in range(s.teams)]
            self.of_streams.append([[self._region(name, size) for name in names] for names in named])

    def address(
        self, core: int, array: Array, layer: int = 0, group: int = 0, stream: int = 0, first: int = 0, phase: str = ""
    ) -> int:
        """Address of the first byte of an array of a core's plan, for one of its tables, with arguments of `start`."""
        where = layer, group, stream, first, phase
        return array.offset + (self.start(core, *where)[array.base] if array.base else 0)

    def context(self, layer: int, group: int = 0, stream: int = 0) -> int:
        """The context of a table, the same number on every core."""
        return (stream * self.layers + layer) * self.shares.groups + group

    def start(
        self,
        core: int,
        layer: int = 0,
        group: int = 0,
        stream: int = 0,
        first: int = 0,
        phase: str = "",
        clusters: int = 0,
        fetched: int = 0,
    ) -> dict[int, int]:
        """Values of the registers that a core's program starts with, for one of its tables of a layer.

        stream : of a batch · first : its first row
        phase : in a batch, it says which of its rows OUT is, and whether WEIGHTS are those of all streams
        clusters : of the table, before a phase of a team · fetched : its entries that lie behind the sinks
        """
        plan, s, team = self.plans[core][layer], self.shares, self.shares.team(core)
        ctx = self.context(layer, group, stream)
        out = shared_space(s).arrays["attention"]
        place = team * s.groups + group
        at = out.offset + place * s.heads * out.size // s.whole.kv_heads
        own: dict[int, int] = {}
        if s.batch:
            of_heads, rows = phase in HEADS, plan["qkv"]
            at = at if of_heads else plan.rows_at + group * rows.size
            at += first * (out if of_heads else rows).shape[-1] * 2
            own[Register.STREAM] = self.inputs[core] + self.section * self.input_bytes
        weights = self.weights[team][layer] + group * plan.group_bytes
        if stream and phase not in JOINT:
            weights = self.of_streams[stream - 1][team][layer] + group * plan.context_bytes - plan.context_at
        return own | {
            int(Register.WEIGHTS): weights,
            int(Register.KV): self.device_bases[core] + ctx * s.whole.recent * self.entry_bytes,
            int(ROW): 0,
            int(LEVEL): clusters,
            int(Register.REST): 0,
            int(Register.ENTRIES): plan.retrieval.sinks + fetched if plan.given else 0,
            int(Register.CONTEXT): ctx,
            int(Register.OUT): at,
        }

    def phases(self, layer: int = 0) -> list[str]:
        """The phases of a layer, in order. Before which of them cores wait for others: `golden.program.share_plan`."""
        plan = self.plans[0][layer]
        names = {stage.name for plan in (plan, self.plans[-1][layer]) for stage in plan.stages}
        return [name for name, stages in plan.phases.items() if names & set(stages)]

    def steps(self, layer: int = 0) -> Iterator[tuple[str, int]]:
        """The phases of a layer in the order in which they run, each with the table for which it does."""
        groups = range(self.shares.groups)
        if self.plans[0][layer].phases == PREFETCH:
            yield from self._prefetching(self.phases(layer))
            return
        for of_tables, phases in groupby(self.phases(layer), lambda phase: (phase in OF_TABLES, phase in JOINT)):
            names = list(phases)
            yield from ((name, group) for group in (groups if of_tables[0] else range(1)) for name in names)

    def _prefetching(self, phases: list[str]) -> Iterator[tuple[str, int]]:
        """The phases of a layer whose cores have tables of their own, and prefetch."""
        groups, behind = range(self.shares.groups), phases[phases.index("attention") + 1 :]
        places = [*(("attention", group) for group in groups), *((name, 0) for name in behind if name not in ADDS)]
        guesses = spread(len(groups), len(places) - len(groups)) if "guess" in phases else []
        chosen = 0  # tables
        yield ("norm", 0)
        yield from (("cluster", group) for group in groups)
        for step in (*places[: len(groups)], *((name, 0) for name in behind)):
            while step in places and guesses[chosen:] and places.index(step) == guesses[chosen]:
                yield ("guess", chosen)
                chosen += 1
            yield step

    def in_step(self, phase: str) -> int:
        """Cores that read the rows of a phase's product together in a batch; 1 if each reads alone."""
        of = [stage for stage in self.plans[0][0].phases[phase] if stage in GEMMS]
        return self.shares.in_step(of[0]) if of and self.shares.batch else 1

    def program(self, core: int, phase: str, layer: int = 0) -> list[Instruction] | None:
        """A core's program of a phase of a layer, or None if the core has nothing to do."""
        first = self.plans[core].index(self.plans[core][layer])  # layers of one kind have the same program
        key = core, first, phase
        if key not in self._programs:
            self._programs[key] = self.plans[core][layer].phase(phase)
        return self._programs[key]
