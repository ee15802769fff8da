"""Says what the cores of a platform do of a decoder layer, stage by stage: each stage's work on the core with the most.

Cores share a layer as `golden.program.shares` says. Heads whose K and V an entry holds (`kvmu.entry_bytes`) have a
table of their own; a context is (stream, layer, table). At most as many cores as tables: a core runs the programs of
one table after the other, and chooses entries for the next layer (`RetrievalShape.ahead`). More cores: a team shares a
table, joins the parts of its attention, and each layer fetches for itself.

The products of all streams run in common passes of as many rows as a core takes; attention runs stream by stream.
"""

from dataclasses import dataclass, replace

from golden.function_params import check
from golden.program.core_compiler import RetrievalShape
from golden.program.layer_memory import LayerShape
from golden.program.shares import Shares
from hdl.params import SystemParams
from sim.system import layer_load
from sim.system.layer_load import Load, most_rows
from sim.system.platforms import Vrex
from sim.system.timeline import RESIDENT, Point
from sim.system.workload import Decoder, Selection

COMMON = ("norm1", "keys", "entries", "hash", "cluster", "rotary")  # stages of all streams' rows
GUESS = ("guess_norm", "guess", "guess_rotary")
OWN_CHOICE, NEXT_CHOICE = ("rank", "select"), ("guess_rank", "guess_select")
NORMS = ("norm1", "guess_norm")  # stages that every core computes as a whole
PHASES, TEAM_PHASES = 4, 9  # barriers of a layer between phases: of cores alone, and of teams
SUM_PHASES = 2  # barriers more where sums of products are cut


@dataclass(frozen=True)
class Step:
    """A program stage on all cores.

    load : on the core with the most work
    bytes : of the device memory, all cores
    runs : times that the stage begins and ends, each of which waits for the memory
    """

    load: Load
    bytes: float
    runs: int = 1


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

    @property
    def shares(self) -> Shares:
        """The heads of a table, the tables of a core, the members of a team."""
        m, lanes = self.model, self.system.core.lxe_format().lanes
        whole = LayerShape(m.width, m.heads, m.kv_heads, m.head, m.hidden, self.rows, self.recent, 1)
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
        return self.shares.members == 1

    def shape(self, rows: int) -> LayerShape:
        """The shape of a table's part of the layer; its FFN is not used."""
        s, lanes = self.shares, self.system.core.lxe_format().lanes
        return replace(s.whole, heads=s.heads * s.whole.group, kv_heads=s.heads, ffn=lanes, tokens=rows)

    def retrieval(self, frame: int, first: bool) -> RetrievalShape:
        """The retrieval of a layer whose HCU holds `frame` keys."""
        dre, ahead = self.system.core.dre, 1 if self.prefetches else -1
        own = first or not self.prefetches
        retrieval = RetrievalShape(dre.hcu.n_hp, dre.hcu.clusters, ahead=ahead, fetched=not own, frame=frame)
        return replace(retrieval, readings=dre.wtu.readings)

    def prediction(self, clusters: int, first: bool) -> dict[str, Step]:
        """The stages before the attention, with those that rank `clusters` clusters and choose.

        first : no layer before has chosen entries for this one
        """
        s, core, frame = self.shares, self.system.core, self.system.core.dre.hcu.frame
        rows = self.streams * self.rows
        passes = -(-rows // most_rows(core))
        common = -(-rows // passes)
        of_all = layer_load.stages(
            core, self.latency, self.shape(common), self.retrieval(max(frame, common), first), clusters
        )
        of_one = layer_load.stages(core, self.latency, self.shape(self.rows), self.retrieval(frame, first), clusters)
        lanes = core.lxe_format().lanes
        columns = s.heads * (s.whole.group + 2) * s.whole.head_size // lanes
        pairs = -(-clusters // (2 * lanes))
        busiest = {  # part of a table's work that the core with the most has
            "keys": len(s.product("qkv", 0).tiles) / columns,
            "rank": -(-pairs // s.members) / max(1, pairs),
        }
        out = {}
        for name, load in of_all.items():
            times = passes
            if name in (*OWN_CHOICE, *NEXT_CHOICE):
                load, times = of_one[name], self.streams
            turns = times * (1 if name in NORMS else s.groups)
            total = load.bytes * turns * (s.cores if name in NORMS else s.teams)
            out[name] = Step(load * (turns * busiest.get(name, 1.0)), total, turns)
        return out

    def attention(self, entries: float, first: bool) -> dict[str, Step]:
        """The stages of the attention to the ring and `entries` entries behind it in each table."""
        s, core = self.shares, self.system.core
        own = self.retrieval(core.dre.hcu.frame, first)
        number, pair, turns = round(entries), 2 * core.lxe_format().lanes, self.streams * s.groups
        # Pairs of tiles are dealt out to the members. One with so many as the ring has runs the program of a core that
        # has its ring and some entries behind it; one with fewer runs a part of that of the ring.
        pairs, ring = -(-self.recent // pair) + -(-number // pair), -(-self.recent // pair)
        mine = -(-pairs // s.members)
        if s.members > 1:
            number = max(0, mine - ring) * pair
        loads = layer_load.attention(core, self.latency, self.shape(self.rows), own, number)
        part = min(1.0, mine / ring) * turns
        every = s.teams * pairs / mine  # cores' worth of work like this one's
        out = {n: Step(load * part, load.bytes * part * every, turns) for n, load in loads.items()}
        if s.members > 1:
            load = self._join() * self.streams
            out["join"] = Step(load, load.bytes * s.cores, self.streams)
        return out

    def _join(self) -> Load:
        """Parts of the members' attention: each stores its own, and joins some of the rows (`Shares`)."""
        s, core = self.shares, self.system.core
        f, bus = core.lxe_format(), core.lxe.bus_bytes
        rows = s.heads * s.whole.rows
        words = s.whole.head_size // f.lanes + 2  # of a row's values, maximum and sum
        mine = -(-rows // s.members)
        stored, loaded = rows * words, mine * words * s.members
        size = 4 * f.lanes  # FP32
        return Load(0, 2 * loaded, max(stored, loaded) * size / bus, (stored + loaded) * size)

    def rest(self) -> dict[str, list[Step]]:
        """The products behind the attention, with norm and sums, and all barriers of the layer."""
        s, core = self.shares, self.system.core
        w, f = s.whole, core.lxe_format()
        rows = self.streams * self.rows
        out = {}
        for name, inputs in (("output", w.heads * w.head_size), ("gate_up", w.width), ("down", w.ffn)):
            own, columns = s.product(name, 0), w.ffn if name == "gate_up" else w.width
            load = layer_load.product(
                *(core, self.latency, rows, len(own.words) * f.lanes, len(own.tiles) * f.lanes),
                gated=name == "gate_up",
            )
            whole = inputs * columns / (len(own.words) * len(own.tiles) * f.lanes**2)
            passes = -(-rows // most_rows(core))
            out[name] = [Step(load, load.bytes * whole, passes)]
            if s.parts > 1 and name != "gate_up":
                size = 4 * rows * len(s.summed(0)) * f.lanes
                add = Load(0, s.parts * size / 4 / f.lanes, s.parts * size / core.lxe.bus_bytes, (s.parts + 2) * size)
                out[name].append(Step(add, add.bytes * s.cores, passes))
        norm = layer_load.norm(core, self.latency, -(-rows // passes), w.width) * passes
        out["gate_up"].insert(0, Step(norm, norm.bytes * s.cores, passes))
        out["output"].append(Step(Load(), 0, self.barriers))
        return out

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

    @property
    def barriers(self) -> int:
        """Times that all cores wait for all others in a layer."""
        s = self.shares
        if s.cores == 1:
            return 0
        return (TEAM_PHASES if s.members > 1 else PHASES) + SUM_PHASES * (s.parts > 1)


def at_home(v: Vrex, p: Point, selection: Selection) -> tuple[int, int]:
    """Entries of each context in home memory, and its clusters."""
    home = 0 if p.policy in RESIDENT else max(0, p.cache - v.core.dre.kvmu.recent)
    return home, max(1, min(v.core.dre.hcu.clusters, -(-home // selection.cluster)))
