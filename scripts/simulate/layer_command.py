"""`vrex simulate layer`: cycles of a decoder layer on a core of the preset, stage by stage.

Time views that the benches hold equal to the RTL give them (`sim.system.share_cycles`).
"""

from dataclasses import asdict, dataclass

from rich.table import Table

from hdl.params import SystemParams
from scripts import console
from sim.system.share_cycles import UNITS, CoreShare

LLAMA = {"width": 4096, "heads": 32, "kv_heads": 8, "head_size": 128, "ffn": 14336}
NOTE = (
    "Shares of the stage's cycles in which a unit works: DPE on a chunk of all trees, VPE on a word, load and store on "
    "a beat of the bus. Reads and writes: the latency of all bursts over the number of bursts that may be in flight. "
    "Loads may begin beside the stage before, so a share can exceed 100 %. Limit: the largest share."
)

# Parameters that change the figures.
USED = (
    *(f"dpe.{n}" for n in ("n_h", "n_w", "w_depth", "x_depth")),
    *(f"vpe.{n}" for n in ("n_w", "depth")),
    *(f"lxe.{n}" for n in ("i_depth", "queue", "words", "bus_bytes", "bursts", "burst_bytes", "copies")),
    *(f"hcu.{n}" for n in ("clusters", "n_h", "n_w", "n_hp", "tile", "frame")),
    *(f"wtu.{n}" for n in ("clusters", "n_w", "counts", "selection", "n_buckets", "bin_bits", "count_digit")),
    *(f"kvmu.{n}" for n in ("clusters", "counts", "recent", "entry_bytes", "block_slots", "blocks", "boundary")),
    *("cores", "table.bus_bytes", "table.burst_bytes"),
)


@dataclass(frozen=True)
class StageCycles:
    """The cycles of a stage on core 0, all its tables together, and those in which each unit works.

    entries : chosen ones of each table
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
    latency: console.Latency = 100,
    json: console.Json = False,
) -> None:
    """Count the cycles of a decoder layer, stage by stage.

    The layer is one of Llama-3 8B with retrieval. Of several cores, core 0's share is played, which has the most work.
    """
    p = console.params(preset, param)
    console.check_used("simulate layer", param, USED)
    rows = [row for n in cached for row in measure(CoreShare(p, LLAMA, tokens, n, share, latency))]
    if json:
        console.print_json([asdict(row) | {"limit": row.limit} for row in rows])
        return
    out = Table("cached", "entries", "stage", "cycles", *UNITS, "limit", title=title("Llama-3 8B, a layer", preset, p))
    for row in rows:
        shares = (f"{getattr(row, unit) / max(1, row.cycles):.1%}" for unit in UNITS)
        out.add_row(f"{row.cached:,}", f"{row.entries:,}", row.stage, f"{row.cycles:,}", *shares, row.limit)
    console.out.print(out)
    console.out.print(NOTE, highlight=False)


def title(what: str, preset: str, p: SystemParams) -> str:
    """The title of a table of a core's share."""
    return f"{what}, preset {preset}" + (f", core 0 of {p.cores}" if p.cores > 1 else "")


def measure(share: CoreShare) -> list[StageCycles]:
    """Every stage of a pass, then the whole layer."""
    stages = share.layer()
    total = {unit: sum(counts[unit] for counts in stages.values()) for unit in ("cycles", *UNITS)}
    rows = (stages | {"layer": total}).items()
    return [StageCycles(share.cached, share.entries, name, **counts) for name, counts in rows]
