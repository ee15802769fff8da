"""Predicts latency, timeline and power of one pass through a model on a V-Rex platform (V-Rex Fig. 10).

The platform is a preset with memories around it. The pass runs the programs of the layer compiler, shared out among the
cores as `sim.system.layer_share` says. LXE, DRE and link each run one stage at a time, in order. A stage starts when
its resource is free and its inputs are there.

In a layer, the LXE computes queries, keys and values. The DRE clusters and places the keys, and switches to the next
context. The LXE scores that context's clusters, the DRE selects, and link and drive fetch. Each layer chooses for the
next one, and attends to what was fetched for it; the first layer waits for its own choice. A core with several tables
works on one after the other, as its programs do (`golden.program.share_plan`): it chooses for the next table when the
DRE has fetched for the one before, and attends and multiplies while the DRE fetches. The fetch of the last table has
until the next layer's keys are placed.

- LXE: for each stage of the program the longest of four times on the core with the most work: chunks on the DPE,
  words on the VPE, the core's port, and all cores' bytes at the device memory. Between stages the core waits for its
  writes and for its first read, and between phases all cores wait for each other.
- DRE: cycles of the units' time views with the tables in the device memory (`sim.system.dre_demand`). The tables'
  bytes share the device memory with those of the LXE and of the link.
- Link and drive: their models, on a sample of the KVMU's bursts. The latency counts once, then the sample's rate. The
  copier, which expands entries of 4 bits, works while they come, and counts where it is slower.
- The vision encoder runs the programs of `golden.program.encoder_compiler`, an image after the other. A stage takes
  its cycles by the time view, or as long as the bytes of all cores at the device memory. The vocabulary counts as a
  product of a layer.

The model leaves out the write of new entries to home memory: 1.3 MB a frame, against the direction of fetches.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import cache

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.arithmetic.state_space import scan_macs
from openvrex.golden.program.share_plan import spread
from openvrex.hdl.params import CLOCK
from openvrex.sim.system import dre_demand, encoder_load, layer_load
from openvrex.sim.system.device_memory import arrays, blocks_at_home
from openvrex.sim.system.dre_demand import Demand
from openvrex.sim.system.home import fetching
from openvrex.sim.system.layer_load import ATTENTION, Load, most_rows
from openvrex.sim.system.layer_share import COMMON, GUESS, NEXT_CHOICE, OWN_CHOICE, REST, Layer, StageShare, at_home
from openvrex.sim.system.platforms import HOST, POWER, Vrex
from openvrex.sim.system.timeline import EVERYTHING, RESIDENT, Pass, Point, Timeline
from openvrex.sim.system.workload import Selection
from openvrex.sim.units.retriever_time import copied_entry

OAKEN = 0.25  # bytes of a cached number in 4 bits, over those in BF16


def seconds(v: Vrex, steps: Iterable[StageShare], crowd: float = 1.0) -> float:
    """Seconds of program stages, one after the other.

    crowd : all bytes of the device memory over those of the LXE
    """
    between = 2 * v.latency  # the last write, then the first read
    return sum(max((s.load.cycles + s.runs * between) / CLOCK, crowd * s.bytes / v.bandwidth) for s in steps if s.runs)


def vocabulary(v: Vrex, rows: int, inputs: int, columns: int, packing: Packing | None = None) -> StageShare:
    """A product whose columns are shared out among the cores in tiles, as the layer compiler writes one."""
    lanes = v.core.lxe_format().lanes
    own = -(-columns // (lanes * v.cores)) * lanes
    load = layer_load.product(v.core, v.latency, rows, inputs, own, packing)
    return StageShare(load, load.bytes * columns / own, -(-rows // most_rows(v.core)))


def encoder(v: Vrex, p: Point) -> list[StageShare]:
    """The vision encoder of one image of each stream, without the gaps of its layers."""
    shape = p.vision.shape(p.rows, p.model.width)
    found = encoder_load.loads(v.system, v.latency, shape)
    every = ((*stage, p.batch * encoder_load.times(name, shape)) for name, stage in found.items())
    return [StageShare(load * n, moved * n, n) for load, moved, n in every]


def branch(v: Vrex, p: Point, rows: int) -> list[StageShare]:
    """A layer's state-space branch beside hybrid memory's attention, for `rows` tokens, shared by all cores.

    No program of several cores computes it yet: its products count as those of a layer, and each MAC of convolution and
    scan as a lane of the VPE for a cycle.
    """
    if not p.branch:
        return []
    steps = [vocabulary(v, rows, k, n) for k, n in p.branch_products.values()]
    return [*steps, StageShare(Load(vpe=rows * scan_macs(p.branch, p.model.width) * CLOCK / v.lanes), 0)]


def assembled(v: Vrex, p: Point, decode: Callable[[Timeline], float]) -> Pass:
    """A pass: the encoder of a frame, the layers, the vocabulary.

    decode : enters the layers into the timeline, and returns the bytes that they fetched
    """
    line, m = Timeline(), p.model
    if p.frame:
        steps = encoder(v, p)
        took, moved = v.gap * p.vision.layers + seconds(v, steps), sum(x.bytes for x in steps)
        line.put(-1, "vision", "LXE", took, 0.0, moved, 2.0 * p.batch * p.vision.macs)
    fetched = decode(line)
    rows = p.batch if p.frame else p.batch * p.rows
    step = vocabulary(v, rows, m.width, m.vocab, m.head_packing)
    line.put(-1, "vocabulary", "LXE", seconds(v, [step]), 0.0, step.bytes, 2.0 * rows * m.width * m.vocab)
    return Pass(line.stages, fetched, watts(v, line, fetched))


def fetch(v: Vrex, tokens: float, share: float, sizes: tuple[int, ...], near: float) -> tuple[float, Demand]:
    """Seconds of a layer's reads from home, and the KVMU's walk over the clusters of all these tokens.

    tokens : entries to fetch
    share : share of the clusters that hold them
    sizes : typical tokens of these clusters
    near : share of home that lies in device memory
    """
    if tokens <= 0:
        return 0.0, Demand()
    f = dre_demand.fetch(v.core.dre, sizes, share, v.latency, v.kvmu)
    took = fetching(v, tokens * v.core.dre.kvmu.home_bytes, f.addr, f.bytes, near)
    return took, f.walk * (tokens * len(sizes) / sum(sizes))


class _Run:
    """One pass: its layers' work, and the timeline that it enters them into."""

    def __init__(self, v: Vrex, p: Point, selection: Selection, free: Container[str]):
        self.v, self.p, self.free = v, p, free
        self.layer = Layer(v.system, p.model, p.batch, p.rows, v.latency, v.prefetch)
        self.prediction, self.rest = cache(self.layer.prediction), cache(self.layer.rest)  # of layers that do the same
        self.s, dre = self.layer.shares, v.core.dre
        self.shares = selection.tables(p.stage, self.s.heads)
        self.recent = min(p.cache, dre.kvmu.recent)
        self.home, wanted = at_home(v, p, selection)
        self.clusters = min(dre.hcu.clusters, wanted)  # a full table has larger ones
        self.sizes = selection.fetched(p.stage, wanted / self.clusters)
        if self.home:
            self.layer.check_tables(self.home, self.clusters)
        self.near = 0.0  # share of home in device memory
        if v.home == "device" and self.home and p.policy != EVERYTHING:
            self.near = arrays(v, p, selection)["blocks"] / blocks_at_home(v, p, selection)
        self.predicts = self.home > 0 and bool(0 < self.shares.mean() < 1)
        self.line: Timeline
        self.came: dict[int, float] = {}  # when the entries that a layer has chosen for the next one are there
        self.start = 0.0  # of the first layer; where nothing is chosen, all fetches are asked for then
        self.fetched = 0.0
        self.crowd = 1.0

    def lxe(self, layer: int, name: str, steps: list[StageShare], after: float = 0.0, ops: float = 0.0) -> float:
        """A stage of the LXE; returns its end."""
        moved = sum(s.bytes for s in steps)
        return self.line.put(layer, name, "LXE", seconds(self.v, steps, self.crowd), after, moved, ops)

    def dre(self, layer: int, name: str, demand: Demand, after: float) -> float:
        """A stage of the DREs that work side by side, one in each team; returns its end."""
        moved, took = demand.bytes * self.s.teams, 0.0 if name in self.free else demand.cycles / CLOCK
        return self.line.put(layer, name, "DRE", took, after, moved)

    def choose(self, layer: int, of: int, steps: list[StageShare], after: float, tables: int) -> float:
        """The choice for one of `tables` tables of layer `of`, and its fetch; returns when the entries are there.

        These are scores on the LXE, rows on the WTUs, the walk on the KVMU, reads over the link.
        """
        s, core, each = self.s, self.v.core, self.layer.tables / tables
        scored = self.lxe(layer, "predict", [x.split(tables) for x in steps], after)
        rows = each * s.heads * s.whole.rows / core.dre.wtu.n_h
        row = dre_demand.selecting(core.dre, self.clusters, self.v.latency)
        chosen = self.dre(layer, "select", row * rows, scored)
        most = float(self.shares[of].max()) * self.home  # of the table that fetches most
        walk = fetch(self.v, most, float(self.shares[of].mean()), self.sizes, self.near)[1]
        # The table that fetches most sets the cycles, all tables together the bytes.
        mean = self.shares[of].mean() / max(self.shares[of].max(), 1e-9)
        walked = self.dre(layer, "walk", Demand(walk.cycles, walk.bytes * mean) * each, chosen)
        return max(self.fetch(of, chosen, tables), walked)  # bursts leave while the KVMU walks

    def entries(self, layer: int) -> float:
        """Entries that each table of a layer fetches, on average."""
        return 0.0 if self.p.policy in RESIDENT else float(self.shares[layer].mean()) * self.home

    def fetch(self, layer: int, asked: float, tables: int = 1) -> float:
        """The fetch for one of `tables` tables of a layer; returns its end."""
        m, tokens = self.p.model, self.p.batch * self.entries(layer) / tables
        if not tokens:
            return 0.0
        k = self.v.core.dre.kvmu
        moved = tokens * m.entry_bytes * k.home_bytes / k.entry_bytes
        self.fetched += moved * (1 - self.near)
        share = float(self.shares[layer].mean())
        took = fetch(self.v, tokens * m.kv_heads / self.s.heads, share, self.sizes, self.near)[0]
        # The copiers of all leaders work side by side, each for its tables of all streams; the table that fetches most
        # sets their cycles.
        most = tokens * float(self.shares[layer].max()) / max(share, 1e-9)
        copied = most * self.s.groups * copied_entry(self.v.core) / CLOCK
        return self.line.put(layer, "fetch", "link", max(took, copied), asked, moved * (1 + self.near))

    def decode(self, layer: int) -> None:
        """One layer of the decoder."""
        v, p, s, m = self.v, self.p, self.s, self.p.model
        tokens, prefetches = self.entries(layer), self.layer.prefetches
        first = not (prefetches and layer)
        own, ahead = self.predicts and first, self.predicts and prefetches and layer + 1 < m.layers
        parts = self.prediction(self.clusters if self.predicts else 0, first)
        behind = p.cache - self.recent if p.policy in RESIDENT else tokens
        attend = list(self.layer.attention(behind, first).values())
        if p.policy == "oaken":
            attend = [_packed(x, p.batch * p.cache * m.entry_bytes / len(ATTENTION)) for x in attend]
        rest = self.rest()
        rows = p.batch * p.rows
        ops = {name: 2.0 * rows * k * n for name, (k, n) in m.matrices.items()}
        names = [n for n in (*COMMON, *OWN_CHOICE * own, *(*GUESS, *NEXT_CHOICE) * ahead) if n in parts]
        lxe_bytes = sum(parts[n].bytes for n in names) + sum(x.bytes for x in attend)
        lxe_bytes += sum(x.bytes for x in rest.values())
        frame = self.tables_of_a_frame() * self.predicts
        self.crowd = 1 + ((1 + self.near) * p.batch * tokens * m.entry_bytes + frame.bytes * s.teams) / lxe_bytes

        came = self.came.get(layer, 0.0) if self.predicts else self.fetch(layer, self.start)
        self.line.put(layer, "gap", "LXE", v.gap)
        guess = [parts[n] for n in GUESS] if ahead else []
        if guess:
            self.lxe(layer, "predict", guess)
        upto = COMMON.index("cluster")
        keys, queries = ([parts[n] for n in some if n in parts] for some in (COMMON[:upto], COMMON[upto:]))
        share = 1 - m.heads / (m.heads + 2 * m.kv_heads)  # of the product's operations for keys and values
        hashed = self.lxe(layer, "qkv", keys, 0.0, ops["qkv"] * share)
        self.lxe(layer, "qkv", queries, 0.0, ops["qkv"] * (1 - share))
        tables = self.layer.tables if self.predicts and prefetches else 1
        placed = 0.0
        if self.predicts:  # the retriever works in order: places are given when the entries have come
            placed = self.dre(layer, "cluster", self.keys(), max(hashed, came))
        part = 1 / tables  # of the layer's work for all tables
        if own:
            for _ in range(tables):
                switched = self.dre(layer, "switch", self.switches() * part, max(placed, came))
                came = self.choose(layer, layer, [parts[n] for n in OWN_CHOICE], switched, tables)

        def ask() -> None:
            """Chooses for the next layer, for one table."""
            switched = self.dre(layer, "switch", self.switches() * part, max(placed, self.came.get(layer + 1, 0.0)))
            choice = [parts[n] for n in NEXT_CHOICE]
            self.came[layer + 1] = self.choose(layer, layer + 1, choice, switched, tables)

        asks = spread(tables, len(REST)) if ahead else []
        macs = p.batch * m.attention_macs(p.rows, self.recent + behind) / tables
        for k in range(tables):
            for _ in range(asks.count(k)):
                ask()
            self.lxe(layer, "attention", [x.split(tables) for x in attend], max(came, placed), 2.0 * macs)
        if steps := branch(v, p, rows):
            self.lxe(layer, "branch", steps, 0.0, 2.0 * rows * sum(k * n for k, n in p.branch_products.values()))
        waits = StageShare(Load(), 0, self.layer.barriers(first))
        for k, (name, stages) in enumerate(REST.items(), tables):
            for _ in range(asks.count(k)):
                ask()
            steps = [rest[n] for n in stages if n in rest] + [waits] * (name == "out")
            self.lxe(layer, name, steps, 0.0, ops[name])

    def keys(self) -> Demand:
        """The DRE's work for the keys of a layer."""
        return dre_demand.clustering(self.v.core.dre, self.clusters, self.p.rows, self.v.latency) * self.layer.tables

    def switches(self) -> Demand:
        """The SWITCHes of a layer: one for each context."""
        return dre_demand.switching(self.v.core.dre, self.clusters, self.v.latency) * self.layer.tables

    def tables_of_a_frame(self) -> Demand:
        """All traffic of a layer's tables on a leader, as far as it shares the memory with the layer."""
        share = float(self.shares.mean())
        walk = fetch(self.v, self.home * share, share, self.sizes, self.near)[1]
        return self.keys() + self.switches() + walk * self.layer.tables if self.predicts else Demand()

    def decoded(self, line: Timeline) -> float:
        """All layers; returns the bytes that were fetched."""
        self.line, self.start = line, line.free.get("LXE", 0.0)
        for layer in range(self.p.model.layers):
            self.decode(layer)
        return self.fetched


def run(v: Vrex, p: Point, selection: Selection, free: Container[str] = ()) -> Pass:
    """Simulates one pass of `p` on `v`; `selection` says which share of the offloaded tokens each layer fetches.

    free : names of stages of the DRE that take no time, to find out what of them is visible

    Raises `ParamError` where the hardware cannot run the model or hold the caches.
    """
    return assembled(v, p, _Run(v, p, selection, free).decoded)


def _packed(step: StageShare, entries: float) -> StageShare:
    """A stage of the attention whose `entries` bytes of K and V are packed as Oaken does."""
    less = max(0.0, 1 - (1 - OAKEN) * entries / max(1.0, step.bytes))
    return StageShare(replace(step.load, port=step.load.port * less), step.bytes * less, step.runs)


def watts(v: Vrex, line: Timeline, fetched: float) -> dict[str, float]:
    """Mean power in watts, by part.

    Cores count by use ("ours") or as the paper gives them ("paper"), memory by bytes, link and drive by busy time.
    """
    total = max(s.end for s in line.stages)
    mw = POWER[v.power]
    use = sum(s.ops for s in line.stages) / 2 / v.macs / total if v.power == "ours" else 1.0
    core = mw["dpe idle"] + mw["dpe busy"] * use + mw["vpe"] + mw["dre"] + mw["memory"]
    moved = sum(s.bytes for s in line.stages)
    link = sum(s.end - s.start for s in line.stages if s.resource == "link") / total
    drive = HOST.idle_watts + HOST.joules(fetched) / total
    if v.ssd:
        drive = v.ssd.idle_watts + (v.ssd.active_watts - v.ssd.idle_watts) * link
    return {
        "cores": v.cores * core * 1e-3,
        "memory": v.dram.idle_watts + v.dram.joules(moved) / total,
        "link": v.link.watts * (v.link.idle_share + (1 - v.link.idle_share) * link),
        "store": drive,
    }
