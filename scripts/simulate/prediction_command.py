"""`vrex simulate prediction`: the cycles of KV prediction and fetch that no other work hides, by a core's time view."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
from rich.progress import track
from rich.table import Table

from golden.function_params import ReSVParams, check
from golden.program.core_compiler import LEVEL, ROW, CorePlan, RetrievalShape
from golden.program.isa import Opcode, Retrieve, Status, encode
from golden.program.layer_compiler import LayerShape
from golden.program.layer_memory import Register
from hdl.params import CoreParams, DreParams
from scripts import console
from scripts.simulate.layer_command import CLUSTER_TOKENS, LLAMA, LONGEST, measure
from scripts.simulate.layer_command import USED as STAGES
from sim.units.core_time import CoreTime, Retrieval
from sim.units.dre_time import DreTime
from sim.units.kvmu_time import APPEND
from sim.units.sequencer_time import Step, trace
from sim.units.wtu_time import Plan, WtuTime

LAST = "values"  # later stages are the same with and without retrieval
# Addresses of the arrays, far apart so that no burst is cut because of another array.
WEIGHTS, KV, DEVICE, HOME = (1 << n for n in (34, 36, 37, 38))

# Parameters that change the figures.
USED = (
    *STAGES,
    *("lxe.copies", "hcu.n_h", "hcu.n_w", "hcu.n_hp", "hcu.tile", "hcu.frame", "wtu.n_w", "table.bus_bytes"),
    *(f"kvmu.{n}" for n in ("recent", "entry_bytes", "block_slots", "boundary", "counts")),
)


@dataclass(frozen=True)
class Prediction:
    """Cycles of a layer, and the part of each retrieval step that no other work hides.

    clustering : hash bits, clusters and places · rank : queries times Key_cluster · codes : score codes and the choice
    · fetch : wait of the attention for the entries
    """

    cached: int
    entries: int
    clusters: int
    layer: int
    clustering: int
    rank: int
    codes: int
    fetch: int

    @property
    def visible(self) -> int:
        """Visible cycles of the prediction, without the wait for the fetch."""
        return self.clustering + self.rank + self.codes


def command(
    preset: console.Preset = "core",
    param: console.Param = None,
    tokens: console.Tokens = 10,
    cached: console.Cached = [10240, 40960],  # noqa: B006
    share: console.Share = 0.327,
    recent: console.Recent = 1024,
    latency: console.Latency = 100,
    json: console.Json = False,
) -> None:
    """Count the cycles that KV prediction adds to a layer.

    The table shows the prediction and the wait for the fetch in a layer of Llama-3 8B on a core.
    """
    p = console.params(preset, param).core
    console.check_used("simulate prediction", param, USED)
    lengths = track(cached, "passes", console=console.err, transient=True)
    rows = [predict(p, tokens, n, share, recent, latency) for n in lengths]
    if json:
        console.print_json([asdict(row) | {"visible": row.visible} for row in rows])
        return
    names = ("clustering", "rank", "codes", "visible", "fetch")
    out = Table("cached", "entries", "clusters", "layer", *names, title=f"KV prediction, Llama-3 8B, preset {preset}")
    for row in rows:
        shares = (f"{getattr(row, n):,} ({getattr(row, n) / row.layer:.2%})" for n in names)
        out.add_row(*(f"{x:,}" for x in (row.cached, row.entries, row.clusters, row.layer)), *shares)
    console.out.print(out)


def predict(p: CoreParams, tokens: int, cached: int, share: float, recent: int, latency: int) -> Prediction:
    """The extra cycles of each stage in a pass with retrieval over the same pass without."""
    alone = {row.stage: row for row in measure(p, tokens, cached, share, recent, latency)}
    entries = alone["layer"].entries
    clusters = min(p.dre.hcu.clusters, max(1, cached // CLUSTER_TOKENS))
    takes = ends(p, tokens, entries, clusters, recent, latency)
    fetched = ends(p, tokens, entries, clusters, recent, latency, fetched=True)
    steps = dict(zip(takes, np.diff([0, *takes.values()]).tolist(), strict=True))
    clustering = sum(steps[n] for n in ("keys", "entries", "hash", "cluster", "rotary"))
    clustering -= sum(alone[n].cycles for n in ("qkv", "rotary", "append"))
    rank, codes = steps["rank"], steps["select"]
    return Prediction(
        cached=cached,
        entries=entries,
        clusters=clusters,
        layer=takes[LAST] + sum(alone[n].cycles for n in ("output", "norm2", "gate_up", "down")),
        clustering=clustering,
        rank=rank,
        codes=codes,
        fetch=takes[LAST] - fetched[LAST] - rank - codes,
    )


def plan_of_row(p: DreParams, clusters: int) -> Plan:
    """What a row takes in the WTU whose codes are of all sizes."""
    codes = 37 * np.arange(clusters) % (1 << p.wtu.score.bits)
    return WtuTime(p.wtu).plan(codes, np.full(clusters, CLUSTER_TOKENS), ReSVParams().ratio_q16)


def ends(
    p: CoreParams, tokens: int, entries: int, clusters: int, recent: int, latency: int, fetched: bool = False
) -> dict[str, int]:
    """The cycle in which each stage of a core's program up to `values` ends, without the copies of the fetch.

    Every token compares all clusters. The ring is full, so every token moves an entry out.

    fetched : the layer before has fetched the entries
    """
    shape = LayerShape(**LLAMA, tokens=tokens, recent=recent, entries=max(1, entries))
    d = p.dre
    retrieves = RetrievalShape(d.hcu.n_hp, d.hcu.clusters, fetched=fetched, readings=d.wtu.readings, frame=d.hcu.frame)
    plan = CorePlan(shape, p.lxe_format(), retrieves)
    entry, table = 2 * shape.entry, WEIGHTS + plan["table"].offset
    registers = {int(Register.WEIGHTS): WEIGHTS, int(Register.KV): KV, int(LEVEL): clusters}
    registers |= {int(ROW): entries} if fetched else {}

    def retrieved() -> Iterator[dict[int, int]]:
        if plan.retrieval.centre:
            yield {int(LEVEL): clusters}  # of the context before the pass
        for t in range(tokens):
            yield {int(ROW): table + 7 * t % clusters * plan.pitch, int(LEVEL): clusters}  # token t's cluster
            yield {}
        if not fetched:
            yield {}  # the SWITCH
            yield {int(Register.ENTRIES): entries}

    names = [stage.name for stage in plan.stages]
    names = names[: names.index(LAST) + 1]
    program = [encode(i) for i in plan.program(None, LAST)]
    played = trace(p, program, registers, LONGEST, retrieved())
    check(played.code == Status.DONE, "status", played.code.name, f"must be DONE: the program ended at {played.pc}")
    sizes = [entry * min(CLUSTER_TOKENS, entries - k) for k in range(0, entries, CLUSTER_TOKENS)]
    starts = [HOME + k * 3 * CLUSTER_TOKENS * entry for k in range(len(sizes))]  # homes do not follow each other
    bursts = [
        {"addr": at + k, "bytes": min(d.kvmu.boundary, size - k)}
        for at, size in zip(starts, sizes, strict=True)
        for k in range(0, size, d.kvmu.boundary)
    ]
    moves = [{"src": DEVICE + t * entry, "dst": HOME + t * entry} for t in range(tokens)]
    retrieval = Retrieval(
        keys=[(0, 7 * t % clusters) for t in range(tokens)],
        places=[[("x", move), ("w", {"device": move["src"]})] for move in moves],
        clusters=[clusters],
        plans=[[plan_of_row(d, clusters)] * (shape.kv_heads * shape.rows)],
        sets=[bursts],
    )
    cycles = CoreTime(p, held(d, clusters, latency), retrieval).run(played.steps)
    out, first, last = {}, 0, 0
    for name in names:
        upto = len(plan.program(None, name)) - 1
        mine = [k for k, step in enumerate(played.steps) if first <= step.pc < upto and not _copies(step)]
        first, last = upto, max(last, int(cycles.finished[mine].max(initial=0)))
        out[name] = last
    return out


def held(p: DreParams, clusters: int, latency: int) -> DreTime:
    """A DRE whose context 0 has `clusters` clusters and a full ring, and whose keys compare all of these to the end."""
    own = replace(p, hcu=replace(p.hcu, early_abandon=False))
    out = DreTime(own, p.hcu.n_hp + 1, latency)
    out.hcu.tables[0] = np.zeros((clusters, own.hcu.chunks), np.uint64)
    out.kvmu.run([(APPEND, 0, k % clusters) for k in range(max(clusters, p.kvmu.recent))])
    return out


def _copies(step: Step) -> bool:
    return step.op == Opcode.RETRIEVE and step.beat["action"] == Retrieve.FETCH
