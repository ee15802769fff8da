"""`vrex simulate layer`: cycles of a decoder layer on a core of the preset, stage by stage.

Time views that the benches hold equal to the RTL give them (`sim.system.share_cycles`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.hdl.params import SystemParams
from openvrex.scripts import console
from openvrex.scripts.simulate import system_options, window_options
from openvrex.scripts.simulate.window_options import ON_CORE
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import KINDS
from openvrex.sim.system.platforms import EDGE
from openvrex.sim.system.share_cycles import UNITS, CoreShare
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, Selection, constant

NOTE = (
    "Shares of the stage's cycles in which a unit works: DPE on a chunk of all trees, VPE on a word, load and store on "
    "a beat of the bus. Reads and writes: the latency of all bursts over the number of bursts that may be in flight. "
    "Loads may begin beside the stage before, so a share can exceed 100 %. Limit: the largest share."
)

SHOWN = ("cycles", *UNITS)

# Parameters that change the figures.
USED = (
    *(f"dpe.{n}" for n in ("n_h", "n_w", "w_depth", "x_depth")),
    *(f"vpe.{n}" for n in ("n_w", "depth")),
    *(f"lxe.{n}" for n in ("i_depth", "queue", "words", "bursts", "burst_bytes", "copies", "codes", "weights")),
    *(f"hcu.{n}" for n in ("n_h", "n_w", "n_hp", "tile", "frame")),
    *(f"wtu.{n}" for n in ("n_w", "selection", "n_buckets", "bin_bits", "count_digit", "budget")),
    *(f"kvmu.{n}" for n in ("recent", "entry_bytes", "block_slots", "blocks", "boundary", "kept")),
    *("cores", "clusters", "counts", "bus_bytes", "table.burst_bytes"),
)


@dataclass(frozen=True)
class StageCycles:
    """The cycles of a stage on core 0, all its tables together, and those in which each unit works.

    entries : chosen ones of each table; slots of the pool and entries behind it, if the policy keeps a window
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
    ctx: typer.Context,
    preset: console.Preset = "core",
    param: console.Param = None,
    policy: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(ON_CORE)}; {system_options.OWN_POLICY}")
    ] = None,
    tokens: console.Tokens = 10,
    cached: console.Cached = [1024, 10240, 40960],  # noqa: B006
    select: system_options.Select = None,
    share: console.Share = None,
    latency: console.Latency = 100,
    weights: system_options.Weights = None,
    video: window_options.Video = "world",
    fps: window_options.Fps = 2.0,
    gop: window_options.Gop = 16,
    at_once: window_options.AtOnce = 16,
    json: console.Json = False,
) -> None:
    """Count the cycles of a decoder layer, stage by stage.

    The layer is one of Llama-3 8B. Of several cores, core 0's share is played, which has the most work.
    """
    of_resv = select is not None or share is not None
    policy = system_options.own_policy(policy, "edge", preset, param, of_resv)
    window_options.check_used(ctx, [policy])
    found, rest = window_options.policies([policy], param or [])
    p = console.params(preset, rest)
    console.check_used("simulate layer", rest, USED)
    v, of, shares = replace(EDGE, name=preset, system=p, latency=latency), policy, constant(policy, 0.0, 0.0, Decoder())
    if policy == "resv":
        shares = system_options.selection(select, policy, Decoder(), p.core)
        of = shares.name
        if share is not None:
            shares = replace(shares, frame=np.full_like(shares.frame, share))
    else:
        for name, value in (("--share", share), ("--select", select)):
            check(value is None, name, value, f"has no effect on {policy}, {KINDS[policy].own_share}: leave it out")
    given, rows, notes = Given(shares, window_options.coded([policy], video, fps, gop), at_once), [], []
    for n in cached:
        own = KINDS[policy].of(v, found[policy], Point(n, rows=tokens, model=v.held(Decoder(), weights or "")), given)
        rows += _rows(n, *own.layer())
        notes += own.remarks
        of = of if policy == "resv" else f"{policy}, {own.note}"
    if json:
        console.print_json([asdict(row) | {"limit": row.limit} for row in rows])
        return
    out = Table(
        "cached",
        "entries",
        "stage",
        "cycles",
        *UNITS,
        "limit",
        title=title(f"Llama-3 8B, a layer, {of}", preset, p),
    )
    for row in rows:
        busy = (f"{getattr(row, unit) / max(1, row.cycles):.1%}" for unit in UNITS)
        out.add_row(f"{row.cached:,}", f"{row.entries:,}", row.stage, f"{row.cycles:,}", *busy, row.limit)
    console.out.print(out)
    for note in (NOTE, *notes):
        console.out.print(note, highlight=False)


def played(p: SystemParams, own: Selection, tokens: int, cached: int, share: float | None, latency: int) -> CoreShare:
    """Core 0's share of a pass over `cached` tokens. share : of the entries; that of the selection if not given"""
    mean = float(own.layers("frame").mean()) if share is None else share
    sizes = replace(EDGE, system=p).held(Decoder()).sizes
    return CoreShare(p, sizes, tokens, cached, mean, latency, own.cluster)


def title(what: str, preset: str, p: SystemParams) -> str:
    """The title of a table of a core's share."""
    return f"{what}, preset {preset}" + (f", core 0 of {p.cores}" if p.cores > 1 else "")


def measure(share: CoreShare) -> list[StageCycles]:
    """Every stage of a pass, then the whole layer."""
    return _rows(share.cached, share.entries, share.layer())


def _rows(cached: int, entries: int, stages: Mapping[str, Mapping[str, float]]) -> list[StageCycles]:
    rows: dict[str, Mapping[str, float]] = {**stages}
    rows["layer"] = {unit: sum(counts[unit] for counts in stages.values()) for unit in SHOWN}
    return [StageCycles(cached, entries, name, **{k: round(n[k]) for k in SHOWN}) for name, n in rows.items()]
