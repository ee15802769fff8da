"""`vrex simulate dre`: the cycles of HCU, WTU and KVMU on a trace.

The time views give them; the benches hold the time views equal to the RTL.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.params import DreParams
from openvrex.scripts import console
from openvrex.scripts.progress import track
from openvrex.scripts.quantity import Column
from openvrex.sim.units.hcu_time import HcuTime
from openvrex.sim.units.wtu_time import WtuTime
from openvrex.tb.library.trace_check import Table as HcTable
from openvrex.tb.library.trace_check import scenario, tables


def over_bound(title: str) -> Column:
    """A column of cycles as a multiple of the lower bound."""
    return Column(title, "x bound", 2)


GROUPS = {  # title of a table: its note, its columns
    "HCU: cycles": (
        "The bound is tokens x clusters x N_hp / (N_HCU-h x N_HCU-w) cycles. Partial distances that can no longer win "
        "are abandoned; so a run can take less than the bound.",
        {
            "clusters": Column("clusters"),
            "hcu_full": over_bound("every distance whole"),
            "hcu": over_bound("with abandoning"),
        },
    ),
    "WTU: cycles of a row": (
        "The bound is ceil(clusters / N_WTU-w) cycles. Latency: from the first word in to the last beat out, median "
        "and worst row; interval: between rows that are offered without a gap, median. Chosen: clusters a row, mean. "
        "For rows of few clusters the fixed latency of the two passes is many times the bound.",
        {
            "clusters": Column("clusters"),
            "exact_latency": over_bound("exact: latency"),
            "exact_worst": over_bound("exact: worst"),
            "exact_interval": over_bound("exact: interval"),
            "exact_size": Column("exact: chosen", "clusters", 1),
            "buckets_latency": over_bound("buckets: latency"),
            "buckets_worst": over_bound("buckets: worst"),
            "buckets_interval": over_bound("buckets: interval"),
            "buckets_size": Column("buckets: chosen", "clusters", 1),
        },
    ),
    "KVMU: bursts": (
        "Useful: share of the fetched bytes that the selection needs. Mean bytes of a burst: with clusters together in "
        "memory, as they are, and with tokens in their order.",
        {
            "useful": Column("useful", "%"),
            "burst": Column("mean burst", "B"),
            "scattered": Column("in token order", "B"),
        },
    ),
}

# Parameters that change the figures of one table and one WTU core. Both selections are measured, and both HCU modes.
USED = (
    *(f"hcu.{n}" for n in ("n_h", "n_w", "n_hp", "tile", "frame")),
    *(f"wtu.{n}" for n in ("n_w", "score", "n_buckets", "bin_bits", "count_digit")),
    *(f"kvmu.{n}" for n in ("blocks", "block_slots", "recent", "entry_bytes", "boundary")),
    *("clusters", "counts", "count_bits"),
)


def command(
    traces: Annotated[list[Path], typer.Argument(help="Trace files of `vrex trace`.")],
    preset: console.Preset = "core",
    param: console.Param = None,
    queries: console.Queries = 2,
    th_hd: console.ThHd = None,
    ratio: console.Ratio = None,
    centre: console.Centre = None,
    json: console.Json = False,
) -> None:
    """Count the cycles of HCU and WTU on a trace.

    Each HC table of the trace has a row. The HCU's and the WTU's cycles are given as multiples of their
    lower bounds, the KVMU's traffic in bytes of a burst.
    """
    rows: list[dict] = []
    p = console.params(preset, param).core.dre
    console.check_used("simulate dre", param, USED)
    f = console.function(p, th_hd, ratio, centre)
    for path in traces:
        found = list(tables(Trace.load(path), f, queries))
        for table in track(found, path.name, json):
            rows.append({"trace": path.name, "table": table.name, **measure(table, p, f)})
    if json:
        console.print_json(rows)
        return
    for title, (note, columns) in GROUPS.items():
        out = Table("trace", "table", *(c.head for c in columns.values()), title=f"{title}, preset {preset}")
        for row in rows:
            out.add_row(row["trace"], row["table"], *(c.cell(row[name]) for name, c in columns.items()))
        console.out.print(out)
        console.out.print(note, highlight=False)


def measure(table: HcTable, p: DreParams, f: ReSVParams) -> dict[str, float]:
    """The figures of one HC table, as `GROUPS` names them."""
    hashes = [h for segment in table.hashes for h in segment]
    out: dict[str, float] = {}
    for name, abandon in (("hcu_full", False), ("hcu", True)):
        run = HcuTime(replace(p.hcu, early_abandon=abandon), f.th_hd).run(hashes)
        out[name] = float(run.out[-1] / run.bound)
    for selection in ("exact", "buckets"):
        held = max(p.wtu.counts, p.wtu.clusters) if selection == "buckets" else p.wtu.counts  # buckets keep a row
        budget = p.wtu.budget and selection == "exact"
        own = replace(p, wtu=replace(p.wtu, selection=selection, counts=held, budget=budget))
        s, _ = scenario(table, own, replace(f, selection=selection))
        latency, interval, size, bound = [], [], [], []
        blocks = [c for c in table.codes if c is not None]
        for query, codes in zip(s.queries, blocks, strict=True):
            n = codes.shape[1]
            counts = query.counts
            time = WtuTime(own.wtu)
            least = -(-n // own.wtu.n_w)
            bound.append(n)
            latency += [time.row(row, counts, f.ratio_q16).latency / least for row in codes]
            _, ends = time.run([(row, counts) for row in codes], f.ratio_q16)
            interval += (np.diff(ends) / least).tolist()
            size += query.rows.clusters.tolist()
        out["clusters"] = bound[-1]
        out[f"{selection}_latency"] = float(np.median(latency))
        out[f"{selection}_worst"] = float(np.max(latency))
        out[f"{selection}_interval"] = float(np.median(interval))
        out[f"{selection}_size"] = float(np.mean(size))
        if selection == "exact":
            traffic = [q.traffic for q in s.queries if q.traffic.bursts]
            fetched = sum(t.fetched_bytes for t in traffic)
            out["useful"] = sum(t.useful_bytes for t in traffic) / fetched if fetched else 1.0
            out["burst"] = fetched / max(1, sum(t.bursts for t in traffic))
            out["scattered"] = fetched / max(1, sum(t.scattered_bursts for t in traffic))
    return out
