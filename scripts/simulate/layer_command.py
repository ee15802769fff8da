"""`vrex simulate layer`: cycles of a decoder layer on the LXE, stage by stage.

The time view of the LXE gives them; its bench holds the time view equal to the RTL.
"""

from dataclasses import asdict, dataclass

from rich.table import Table

from golden.function_params import check
from golden.program.core_compiler import LEVEL, CorePlan, RetrievalShape
from golden.program.isa import Instruction, Opcode, encode
from golden.program.layer_compiler import LayerPlan, LayerShape
from hdl.params import CoreParams
from scripts import console
from sim.units.loader_time import cut
from sim.units.lxe_time import LxeTime, busy
from sim.units.sequencer_time import trace

LLAMA = {"width": 4096, "heads": 32, "kv_heads": 8, "head_size": 128, "ffn": 14336}
UNITS = ("dpe", "vpe", "load", "store", "reads", "writes")
LONGEST = 10_000_000  # steps of a program
BURSTS = {"load": "reads", "store": "writes"}
CLUSTER_TOKENS = 32  # section VI-D
NOTE = (
    "Shares of the stage's cycles in which a unit works: DPE on a chunk of all trees, VPE on a word, load and store on "
    "a beat of the bus. Reads and writes: the latency of all bursts over the number of bursts that may be in flight. "
    "Limit: the largest share."
)

# Parameters that change the figures. The entries of the ring are an option.
USED = (
    *(f"dpe.{n}" for n in ("n_h", "n_w", "w_depth", "x_depth")),
    *(f"vpe.{n}" for n in ("n_w", "depth")),
    *(f"lxe.{n}" for n in ("i_depth", "queue", "words", "bus_bytes", "bursts", "burst_bytes")),
    *("hcu.clusters", "wtu.clusters", "kvmu.clusters"),
)


@dataclass(frozen=True)
class StageCycles:
    """The cycles of a stage, and those in which each unit works.

    reads, writes : least cycles for the latency of all bursts, with `lxe.bursts` in flight
    """

    cached: int
    entries: int
    stage: str
    cycles: int
    dpe: int = 0
    vpe: int = 0
    load: int = 0
    store: int = 0
    reads: int = 0
    writes: int = 0

    @property
    def limit(self) -> str:
        """The unit, or the direction of bursts, that takes most of the cycles."""
        return max(UNITS, key=lambda unit: getattr(self, unit))


def command(
    preset: console.Preset = "core",
    param: console.Param = None,
    tokens: console.Tokens = 10,
    cached: console.Cached = [1024, 10240, 40960],  # noqa: B006
    share: console.Share = 0.327,
    recent: console.Recent = 1024,
    latency: console.Latency = 100,
    json: console.Json = False,
) -> None:
    """Count the cycles of a decoder layer, stage by stage.

    The layer is one of Llama-3 8B on the LXE. The table also shows what limits each stage.
    """
    p = console.params(preset, param).core
    console.check_used("simulate layer", param, USED)
    rows = [row for n in cached for row in measure(p, tokens, n, share, recent, latency)]
    if json:
        console.print_json([asdict(row) | {"limit": row.limit} for row in rows])
        return
    out = Table("cached", "entries", "stage", "cycles", *UNITS, "limit", title=f"Llama-3 8B, a layer, preset {preset}")
    for row in rows:
        shares = (f"{getattr(row, unit) / row.cycles:.1%}" for unit in UNITS)
        out.add_row(f"{row.cached:,}", f"{row.entries:,}", row.stage, f"{row.cycles:,}", *shares, row.limit)
    console.out.print(out)
    console.out.print(NOTE, highlight=False)


def measure(p: CoreParams, tokens: int, cached: int, share: float, recent: int, latency: int) -> list[StageCycles]:
    """Every stage of a pass over `cached` tokens, then the whole layer, then `rank`, a stage of the retrieval."""
    entries = round(max(0, cached - recent) * share)
    shape = LayerShape(**LLAMA, tokens=tokens, recent=recent, entries=max(1, entries))
    plan = LayerPlan(shape, p.lxe_format())
    registers = {int(r): v for r, v in plan.registers(cached, entries, plan.work.size, 1 << 36).items()}
    ends = {}  # name -> instructions up to there
    for stage in plan.stages:
        ends[stage.name] = len(plan.program(None, stage.name)) - 1
    rows = [
        StageCycles(cached, entries, name, **counts)
        for name, counts in staged(p, plan.program(), registers, ends, latency).items()
    ]
    total = {unit: sum(getattr(row, unit) for row in rows) for unit in ("cycles", *UNITS)}
    clusters = min(p.dre.hcu.clusters, max(1, cached // CLUSTER_TOKENS))
    hcu = p.dre.hcu
    hashes = max(tokens, hcu.frame)  # only `rank` is played, which sends no key to the HCU
    retrieval = CorePlan(
        shape, p.lxe_format(), RetrievalShape(hcu.n_hp, hcu.clusters, frame=hashes, readings=p.dre.wtu.readings)
    )
    program = retrieval.program("rank", "rank")
    rank = staged(p, program, {int(LEVEL): clusters}, {"rank": len(program) - 1}, latency)["rank"]
    return [*rows, StageCycles(cached, entries, "layer", **total), StageCycles(cached, entries, "rank", **rank)]


def staged(
    p: CoreParams, program: list[Instruction], registers: dict[int, int], ends: dict[str, int], latency: int
) -> dict[str, dict[str, int]]:
    """Cycles and work of each stage of a program.

    A stage lasts from the end of the stage before to the end of its last instruction.
    ends : stage -> index of the first instruction after it
    """
    steps = trace(p, [encode(i) for i in program], registers, LONGEST).steps
    check(
        steps[-1].op == Opcode.HALT, "steps", len(steps), "must be fewer: the program does not end within this number"
    )
    cycles = LxeTime(p, latency).run(steps)
    out, before, names = {}, 0, list(ends)
    for name in names:
        first = ends[names[names.index(name) - 1]] if name != names[0] else 0
        mine = [k for k, step in enumerate(steps) if first <= step.pc < ends[name]]
        end = max(before, int(cycles.finished[mine].max(initial=0)))
        counts = dict.fromkeys(UNITS, 0) | {"cycles": end - before}
        for k in mine:
            for unit, n in busy(p, steps[k]).items():
                counts[unit] += n
            for unit, direction in BURSTS.items():
                if unit in busy(p, steps[k]):
                    bursts = cut(p, steps[k].beat, joined=direction == "reads")
                    counts[direction] += len(bursts) * (latency + 1) + sum(beats for beats, _ in bursts)
        for direction in BURSTS.values():
            counts[direction] //= p.lxe.bursts
        out[name], before = counts, end
    return out
