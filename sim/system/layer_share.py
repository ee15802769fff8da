"""Says what the cores of a platform do of a decoder layer, stage by stage: each stage's work on the core with the most.

Cores share a layer as `golden.program.shares` says, and each stage is that of the core's own program
(`golden.program.share_plan`). Heads whose K and V an entry holds (`kvmu.entry_bytes`) have a table of their own; a
context is (stream, layer, table). At most as many cores as tables: a core runs the programs of one table after the
other. More cores: a team shares a table and joins the parts of its attention. With one stream each layer chooses
entries for the next one (`RetrievalShape.ahead`).

The products of all streams run in common passes of as many rows as a core takes; attention runs stream by stream.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil

from openvrex.golden.function_params import check
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.layer_memory import LayerShape, Team
from openvrex.golden.program.share_plan import LEADERS, OF_TABLES, SharePlan, barriers
from openvrex.golden.program.shares import Product, Shares
from openvrex.hdl.params import SystemParams
from openvrex.sim.system import layer_load
from openvrex.sim.system.layer_load import ATTENTION, Load, most_rows
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.timeline import RESIDENT, Point
from openvrex.sim.system.workload import Decoder, Selection

COMMON = ("norm1", "qkv", "keys", "entries", "hash", "cluster", "rotary")  # stages of all streams' rows
GUESS = ("guess_norm", "guess", "guess_rotary")
ROTATIONS = ("rotary", "guess_rotary")
OWN_CHOICE, NEXT_CHOICE = ("rank", "select"), ("guess_rank", "guess_select")
REST = {  # stages behind the attention: the projection, the two halves of the FFN
    "out": ("output", "add_output"),
    "gate_up": ("norm2", "gate_up"),
    "down": ("down", "add_down"),
}


@dataclass(frozen=True)
class StageShare:
    """A program stage on all cores.

    load : on the core with the most work
    bytes : of the device memory, all cores
    runs : times that the stage begins and ends, each of which waits for the memory; 0 beside longer stages of others
    """

    load: Load
    bytes: float
    runs: float = 1

    def split(self, tables: int) -> "StageShare":
        """The part of the stage for one of so many tables."""
        return StageShare(self.load * (1 / tables), self.bytes / tables, self.runs / tables)


@dataclass(frozen=True)
class Layer:
    """How a system shares a layer of a model in a pass of `rows` tokens of each of `streams` streams.

    latency : cycles from a burst's address to its first beat

    Raises `ParamError` where the hardware has no program for it: heads that entries do not hold, cores that do not
    divide, more tokens than the HCU holds.
    """

    system: SystemParams
    model: Decoder
    streams: int
    rows: int
    latency: int
    ahead: bool = True  # layers choose entries for the next one, but in a batch, whose programs do not

    @cached_property
    def shares(self) -> Shares:
        """The heads of a table, the tables of a core, the members of a team."""
        m, lanes = self.model, self.system.core.lxe_format().lanes
        whole = LayerShape(**m.sizes, tokens=self.rows, recent=self.recent, entries=1)
        return Shares.of(whole, lanes, self.system.cores, self.system.core.dre.kvmu.entry_bytes)

    @property
    def recent(self) -> int:
        """Slots of a ring."""
        return self.system.core.dre.kvmu.recent

    @property
    def tables(self) -> int:
        """Contexts of a core in a layer."""
        return self.streams * self.shares.groups

    @property
    def prefetches(self) -> bool:
        """Whether a layer chooses entries for the next one."""
        return self.ahead and self.streams == 1

    def of(self, rows: int) -> Shares:
        """The shares of a pass of so many rows in all."""
        return replace(self.shares, whole=replace(self.shares.whole, tokens=rows))

    def retrieval(self, frame: int, first: bool) -> RetrievalShape:
        """The retrieval of a layer whose HCU holds `frame` keys.

        first : no layer before has chosen entries for this one
        """
        dre, ahead = self.system.core.dre, self.shares.groups if self.prefetches else -1
        own = first or not self.prefetches
        return RetrievalShape.of(dre.sizes(), dre.function().centre, ahead=ahead, fetched=not own, frame=frame)

    @property
    def passes(self) -> tuple[int, int]:
        """Common passes of the rows of all streams, and rows of each."""
        rows = self.streams * self.rows
        passes = -(-rows // most_rows(self.system.core))
        return passes, -(-rows // passes)

    def phases(self, first: bool = True) -> dict[str, tuple[str, ...]]:
        """The phases of the programs, and the stages of each that a core has.

        first : no layer before has chosen entries for this one
        """
        plans = [self._plan(number, first) for number in {0, self.shares.cores - 1}]
        names = {stage.name for plan in plans for stage in plan.stages}
        phases = {p: tuple(s for s in stages if s in names) for p, stages in plans[0].phases.items()}
        return {p: stages for p, stages in phases.items() if stages}

    def _plan(self, number: int, first: bool) -> SharePlan:
        """The program of a core's share of a common pass."""
        rows, core = self.passes[1], self.system.core
        retrieval = self.retrieval(max(core.dre.hcu.frame, rows), first)
        return layer_load.share(core.lxe_format(), self.of(rows), retrieval, number)

    def _load(self, number: int, name: str, first: bool, clusters: int = 0) -> Load:
        """The load of a stage of a core's share: of a common pass, or of the rows of a stream."""
        core, frame = self.system.core, self.system.core.dre.hcu.frame
        common = self.passes[1]
        own = name in (*OWN_CHOICE, *NEXT_CHOICE, "join")
        rows, frame = (self.rows, frame) if own else (common, max(frame, common))
        retrieval = self.retrieval(frame, first)
        return layer_load.stage(core, self.latency, self.of(rows), retrieval, number, name, clusters)

    def prediction(self, clusters: int, first: bool) -> dict[str, StageShare]:
        """The stages before the attention, with those that rank `clusters` clusters and choose.

        first : no layer before has chosen entries for this one
        """
        s, out = self.shares, dict[str, StageShare]()
        pair = 2 * s.lanes
        pairs = -(-clusters // pair)
        for phase, stages in self.phases(first).items():
            for name in (n for n in stages if n in (*COMMON, *GUESS, *OWN_CHOICE, *NEXT_CHOICE)):
                turns = self.streams if name in (*OWN_CHOICE, *NEXT_CHOICE) else self.passes[0]
                turns *= s.groups if phase in OF_TABLES else 1
                number = s.cores - 1 if name in ROTATIONS else 0  # the core that has most of the stage
                load = self._load(number, name, first, clusters)
                if name == "qkv":
                    moved = self._of_all(name, partial(s.product, "qkv"), first)
                elif name in ROTATIONS:
                    moved = self._of_all(name, s.rotates, first)
                elif name in ("guess_norm", "guess"):
                    moved = self._of_all(name, s.guesses, first)
                elif name in ("rank", "guess_rank"):
                    moved = self._of_all(name, lambda core: range(self._team(core).share(0, pairs)), first, clusters)
                else:
                    moved = load.bytes * (s.teams if phase in OF_TABLES or name in LEADERS else s.cores)
                out[name] = StageShare(load * turns, moved * turns, turns)
        if s.members > 1:  # the leader's stages, or the rotations beside them
            lead, turned = ("entries", "hash", "cluster"), tuple(n for n in ROTATIONS if n in out)
            less = min(lead, turned, key=lambda names: sum(out[n].load.cycles for n in names))
            out |= {name: replace(out[name], load=Load(), runs=0) for name in less}
        return out

    def attention(self, entries: float, first: bool) -> dict[str, StageShare]:
        """The stages of the attention to the ring and `entries` entries behind it in each table."""
        s, core = self.shares, self.system.core
        own = self.retrieval(core.dre.hcu.frame, first)
        pair, turns = 2 * s.lanes, self.streams * s.groups
        ring, behind = self.recent // pair, -(-round(entries) // pair)
        shares, most, moved = self.of(self.rows), dict[str, Load](), dict.fromkeys(ATTENTION, 0.0)
        for member in range(s.members):  # the first has most
            team = Team(member, s.members)
            alike = 0 if team.share(0, ring) == Team(0, s.members).share(0, ring) else s.members - 1
            mine = team.share(ring, behind)
            loads = layer_load.attention(core, self.latency, shares, own, mine, alike * s.teams)
            most = most or loads
            moved = {n: moved[n] + load.bytes for n, load in loads.items()}
        out = {n: StageShare(load * turns, moved[n] * turns * s.teams, turns) for n, load in most.items()}
        if s.members > 1:
            join = self._load(s.cores - 1, "join", first)
            rows = s.heads * s.whole.rows
            every = self._of_all("join", lambda core: self._team(core).rows(rows), first)
            out["join"] = StageShare(join * self.streams, every * self.streams, self.streams)
        return out

    def rest(self) -> dict[str, StageShare]:
        """The stages behind the attention."""
        s, passes, out = self.shares, self.passes[0], {}
        behind = [name for stages in REST.values() for name in stages]
        for name in (name for stages in self.phases().values() for name in stages if name in behind):
            if name == "norm2":
                moved = self._load(0, name, True).bytes * s.cores
            elif name in ("add_output", "add_down"):
                moved = self._of_all(name, s.summed)
            else:
                moved = self._of_all(name, partial(s.product, name))
            out[name] = StageShare(self._load(0, name, True) * passes, moved * passes, passes)
        return out

    def _of_all(
        self, name: str, part: Callable[[int], Product | range], first: bool = True, clusters: int = 0
    ) -> float:
        """Bytes of a stage on all cores, of which those with parts of one size move as many."""
        sizes: dict[tuple[int, ...], list[int]] = {}
        for core in range(self.shares.cores):
            own = part(core)
            size = (len(own),) if isinstance(own, range) else (len(own.tiles), len(own.words))
            if size != (0,) or name not in (*ROTATIONS, *GUESS):  # a core that has nothing to do has no such stage
                sizes.setdefault(size, []).append(core)
        return sum(self._load(cores[0], name, first, clusters).bytes * len(cores) for cores in sizes.values())

    def _team(self, core: int) -> Team:
        """A core's place in its team."""
        return Team(self.shares.member(core), self.shares.members)

    @property
    def contexts(self) -> int:
        """Contexts of a core: one for each stream, layer and table of its own."""
        return self.tables * self.model.layers

    def blocks(self, home: int, clusters: int) -> int:
        """Most blocks of a core for contexts of `home` entries in `clusters` clusters.

        The last block of each cluster may have one entry.
        """
        filled = min(home, clusters)
        return self.contexts * ((home - filled) // self.system.core.dre.kvmu.block_slots + filled)

    def check_tables(self, home: int, clusters: int) -> None:
        """Raise `ParamError` where a core's contexts or blocks do not hold the streams; arguments as of `blocks`."""
        k, contexts, need = self.system.core.dre.kvmu, self.contexts, self.blocks(home, clusters)
        reason = f"must be at least {contexts}: a core has a context for each stream, layer and table of its own"
        check(contexts <= k.n_ctx, "n_ctx", k.n_ctx, f"{reason}; take fewer streams")
        reason = f"must be at least {need}: {contexts} contexts of {home} entries in {clusters} clusters"
        check(need <= k.blocks, "blocks", k.blocks, f"{reason}; raise kvmu.blocks, or take a shorter cache")

    def barriers(self, first: bool = True) -> int:
        """Times that all cores wait for all others in a layer; `first` as of `phases`."""
        return barriers(self.phases(first), self.shares.cores)


def at_home(v: Vrex, p: Point, selection: Selection) -> tuple[int, int]:
    """Entries of each context in home memory, and the clusters that they would open in a table with room."""
    home = 0 if p.policy in RESIDENT else max(0, p.cache - v.core.dre.kvmu.recent)
    return home, max(1, ceil(home / selection.cluster))
