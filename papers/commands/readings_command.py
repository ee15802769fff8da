"""`vrex papers readings`: what each reading of the paper selects on a trace, and how codes of scores change it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from openvrex.golden.function_params import RAW_BITS, READINGS, ReSVParams, ScoreFormat
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.retrieval import wicsum
from openvrex.golden.retrieval.resv import ReSV, attend, probabilities
from openvrex.golden.retrieval.scores import codes
from openvrex.scripts import console
from openvrex.scripts.progress import track
from openvrex.scripts.quantity import Column

FORMATS = [ScoreFormat(4, 7), ScoreFormat(4, 8), ScoreFormat(4, 10), ScoreFormat(5, 8), ScoreFormat(0, 16)]
OF_READINGS = {
    "rows": Column("rows"),
    "clusters": Column("clusters a table"),
    "low": Column("rows that sum to 0 or less", "%", 1),
    "fetched": Column("fetched of cached", "%", 1),
    "error": Column("error of attention", "%", 2),
}
OF_CODES = {
    "rows": Column("rows"),
    "changed": Column("rows changed", "%", 2),
    "fetched": Column("fetched of cached", "%", 1),
}


def command(
    traces: Annotated[list[Path], typer.Argument(help="Trace files of `vrex trace`.")],
    recent: Annotated[
        int, typer.Option(help="Number of last tokens that stay in device memory.")
    ] = ReSVParams().recent,
    json: console.Json = False,
) -> None:
    """Compare readings of V-Rex's ReSV on traces.

    The command also compares codes of a score, layer by layer, in the frames of the traces.
    """
    readings, formats = [], []
    for path in traces:
        trace = Trace.load(path)
        if not trace.spans("frame", queries=True):
            raise TraceError(f"{path}: no queries of any frame in the trace: record it with more --queries")
        layers = range(len(trace.layers))
        for i in track(layers, path.name, json):
            of = {"trace": path.name, "layer": trace.layers[i]}
            for name, params in READINGS.items():
                readings.append({**of, "reading": name, **measure(trace, i, replace(params, recent=recent))})
            formats += [{**of, **row} for row in code_widths(trace, i, replace(READINGS["paper"], recent=recent))]
    if json:
        console.print_json({"readings": readings, "codes": formats})
        return
    for title, key, columns, rows in (
        ("Readings of the paper", "reading", OF_READINGS, readings),
        ("Codes of a score, against scores in FP64 (reading resv)", "codes", OF_CODES, formats),
    ):
        out = Table("trace", "layer", key, *(c.head for c in columns.values()), title=title)
        for r in rows:
            out.add_row(r["trace"], str(r["layer"]), r[key], *(c.cell(r[name]) for name, c in columns.items()))
        console.out.print(out)
    console.out.print(
        "Measured over the frames with recorded queries whose past is partly offloaded. Error: |o - o_full| / |o_full| "
        "of the attention output, mean of the frames.",
        highlight=False,
    )


def measure(trace: Trace, i: int, params: ReSVParams) -> dict:
    """The figures of a reading in recorded layer `i`, with the keys of `OF_READINGS`; None without data."""
    total: dict[str, float] = defaultdict(float)
    errors = []
    for resv, start, stop in frames(trace, i, params):
        q = trace.queries(i, start, stop)
        got = resv.retrieve(q)
        total["rows"] += sum(len(r.total) for r in got.rows)
        total["low"] += sum(int((r.total <= 0).sum()) for r in got.rows)
        total["fetched"] += float(got.fetched.mean(0).sum())
        total["cached"] += start
        total["clusters"], total["tables"] = sum(map(len, resv.tables)), len(resv.tables)
        if trace.v is not None:
            k, v = trace.k[i, :stop], trace.v[i, :stop]
            full, light = (attend(probabilities(q, k, keep), v) for keep in (np.ones_like(got.keep), got.keep))
            errors.append(float(np.linalg.norm(light - full) / np.linalg.norm(full)))
    return {
        "rows": total["rows"],
        "clusters": _share(total, "clusters", "tables"),
        "low": _share(total, "low", "rows"),
        "fetched": _share(total, "fetched", "cached"),
        "error": float(np.mean(errors)) if errors else None,
    }


def code_widths(trace: Trace, i: int, params: ReSVParams) -> list[dict]:
    """For FP64 scores and each format of `FORMATS`: rows with another set than by FP64, and the fetched share."""
    totals: dict[str, dict[str, float]] = {name: defaultdict(float) for name in ("FP64", *map(_name, FORMATS))}
    for resv, start, stop in frames(trace, i, params):
        resident = resv.resident()
        scores, counts = resv.scores(trace.queries(i, start, stop)), [t.counts for t in resv.tables]
        exact = [_select_fp64(s, n, params, trace.head_size) for s, n in zip(scores, counts, strict=True)]
        masks = {"FP64": exact}
        for fmt in FORMATS:
            p = replace(params, score=fmt)
            own = (codes(s, p, trace.head_size) for s in scores)
            masks[_name(fmt)] = [wicsum.select_rows(c, n, p).mask for c, n in zip(own, counts, strict=True)]
        for name, chosen in masks.items():
            t = totals[name]
            t["rows"] += sum(map(len, chosen))
            t["changed"] += sum(int((a != b).any(axis=1).sum()) for a, b in zip(chosen, exact, strict=True))
            tokens = resv.tokens_of([wicsum.union(mask) for mask in chosen])
            t["fetched"] += float((tokens & ~resident).mean(0).sum())
            t["cached"] += start
    return [
        {
            "codes": name,
            "rows": t["rows"],
            "changed": _share(t, "changed", "rows"),
            "fetched": _share(t, "fetched", "cached"),
        }
        for name, t in totals.items()
    ]


def frames(trace: Trace, i: int, params: ReSVParams) -> Iterator[tuple[ReSV, int, int]]:
    """The state of recorded layer `i` at each frame that has queries and offloaded tokens, with the frame's span."""
    asked = set(trace.spans("frame", queries=True))
    resv = ReSV(params, trace.kv_heads, trace.head_size)
    for start, stop in trace.spans():
        resv.append(trace.k[i, start:stop])
        if (start, stop) in asked and not resv.resident().all():
            yield resv, start, stop


def _select_fp64(s: np.ndarray, counts: np.ndarray, params: ReSVParams, head_size: int) -> np.ndarray:
    """The mask of the exact set for exp(s - max) in FP64, to 2^-30 of the row's largest weight."""
    down = (s.astype(np.float64) - s.max(axis=1, keepdims=True)) / np.sqrt(head_size)
    weights = np.rint(np.ldexp(np.exp(down), RAW_BITS)).astype(np.int64)
    return wicsum.select_rows(weights, counts, replace(params, score_map="raw")).mask


def _name(fmt: ScoreFormat) -> str:
    return f"e{fmt.exp_bits}m{fmt.man_bits}"


def _share(total: dict[str, float], a: str, b: str) -> float | None:
    return total[a] / total[b] if total[b] else None
