"""`vrex papers measure`: what ReSV selects on a recorded trace and what it loses, layer by layer."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from openvrex.golden.function_params import RATIO, ReSVParams, check
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.retrieval import wicsum
from openvrex.golden.retrieval.resv import ReSV, Retrieved, attend, probabilities
from openvrex.scripts import console
from openvrex.scripts.progress import track
from openvrex.scripts.quantity import Column

COLUMNS = {
    "blocks": Column("blocks"),
    "clusters": Column("clusters"),
    "tokens_per_cluster": Column("cluster size", "tokens", 1),
    "fetched_of_cached": Column("fetched of cached", "%", 1),
    "fetched_of_offloaded": Column("fetched of offloaded", "%", 1),
    "visited": Column("row visited", "%", 1),
    "buckets_row": Column("buckets: row", "x", 2),
    "buckets_fetched": Column("buckets: fetched", "x", 2),
    "error": Column("error of ReSV", "%", 2),
    "error_topk": Column("error of top-k", "%", 2),
    "error_window": Column("error of the window", "%", 2),
}
STAGES = ("frame", "generation")
DEFAULT = ReSVParams()


def command(
    traces: Annotated[list[Path], typer.Argument(help="Trace files of `vrex trace`.")],
    ratio: Annotated[float, typer.Option(help="Th_r-wics, 0 to 1.")] = RATIO,
    th_hd: Annotated[
        int, typer.Option(help="Th_hd: a token joins a cluster at a Hamming distance below it.")
    ] = DEFAULT.th_hd,
    scope: Annotated[str, typer.Option(help="Clusters per layer or per KV head.")] = DEFAULT.scope,
    score_map: Annotated[str, typer.Option(help="exp, shift or clip.")] = DEFAULT.score_map,
    recent: Annotated[int, typer.Option(help="Number of last tokens that stay in device memory.")] = DEFAULT.recent,
    max_clusters: Annotated[int, typer.Option(help="Most clusters of a table.")] = DEFAULT.max_clusters,
    centre: Annotated[
        bool, typer.Option("--centre/--no-centre", help="Take hash bits from the first frame's mean key, or from zero.")
    ] = DEFAULT.centre,
    every: Annotated[int, typer.Option(help="Measure every n-th frame.")] = 1,
    json: console.Json = False,
) -> None:
    """Measure what ReSV selects on traces, and its error.

    Each layer has a row: retrieval ratio, early exit, clusters and error of the attention output.
    """
    results = []
    check(every >= 1, "every", every, "must be at least 1")
    check(0 <= ratio <= 1, "ratio", ratio, "must be 0 to 1")
    params = ReSVParams(
        ratio_q16=round(ratio * 65536),
        th_hd=th_hd,
        scope=scope,
        score_map=score_map,
        recent=recent,
        max_clusters=max_clusters,
        centre=centre,
    )
    for path in traces:
        trace = Trace.load(path)
        layers = range(len(trace.layers))
        for i in track(layers, path.name, json):
            results += [{"trace": path.name, **row} for row in measure(trace, i, params, every)]
    if json:
        console.print_json(results)
        return
    table = Table("trace", "layer", "stage", *(c.head for c in COLUMNS.values()), title="ReSV against attention")
    for r in results:
        cells = (c.cell(r[name]) for name, c in COLUMNS.items())
        table.add_row(r["trace"], str(r["layer"]), r["stage"], *cells)
    console.out.print(table)
    console.out.print(
        "Measured over blocks (frames, or generated tokens with the question) whose past is partly offloaded. Errors "
        "are |o - o_full| / |o_full| of the attention output. Top-k reads as many tokens per KV head as ReSV, those "
        "with the largest attention in the block. buckets: equal buckets over the exact minimal set, in clusters a row "
        f"and in fetched tokens.\n{verdict(results)}",
        highlight=False,
    )


def verdict(rows: list[dict]) -> str:
    """A sentence that compares ReSV's error in frames with top-k's and the recent window's; "" without values."""
    frames = [r for r in rows if r["stage"] == "frame" and r["error"] is not None]
    if not frames:
        return ""
    worse = [r for r in frames if r["error"] > r["error_topk"]]
    error = COLUMNS["error"].cell
    pairs = ", ".join(f"layer {r['layer']}: {error(r['error'])} against {error(r['error_topk'])} %" for r in worse)
    window = sum(r["error"] < r["error_window"] for r in frames)
    return (
        f"In frames, ReSV's error is above top-k's in {len(worse)} of {len(frames)} layers"
        + (f" ({pairs})" if worse else "")
        + f", and below that of the recent window alone in {window} of {len(frames)}. Top-k reads as many tokens, but "
        "ranks them by their true attention, which nobody knows before every key was read. ReSV reads one mean key a "
        "cluster and fetches whole clusters, so part of what it fetches matters little."
    )


def measure(trace: Trace, i: int, params: ReSVParams, every: int = 1) -> list[dict]:
    """The figures of recorded layer `i`: one row for each stage of `STAGES`, with the keys of `COLUMNS`.

    A figure is None if nothing was offloaded or the trace has no values. Raises `TraceError` if the trace has no
    queries of a frame.
    """
    if not trace.spans("frame", queries=True):
        raise TraceError("no queries of any frame in the trace: record it with more --queries")
    resv = ReSV(params, trace.kv_heads, trace.head_size)
    sums: dict[str, dict[str, list[float]]] = {stage: defaultdict(list) for stage in STAGES}
    frames = set(trace.spans("frame", queries=True)[every - 1 :: every])
    answer = set(trace.spans("question", queries=True) + trace.spans("generation", queries=True))
    for start, stop in trace.spans():
        resv.append(trace.k[i, start:stop])
        stage = "frame" if (start, stop) in frames else "generation" if (start, stop) in answer else None
        if stage and not resv.resident().all():
            for name, value in _block(trace, i, resv, start, stop).items():
                sums[stage][name].append(value)
    return [
        {"layer": trace.layers[i], "stage": stage, **_summary(resv, sums[stage])}
        for stage in STAGES
        if stage == "frame" or answer
    ]


def _block(trace: Trace, i: int, resv: ReSV, start: int, stop: int) -> dict[str, float]:
    q = trace.queries(i, start, stop)
    got = resv.retrieve(q)
    resident = resv.resident()
    out = {
        "fetched": got.fetched.mean(0).sum(),
        "cached": start,
        "offloaded": (~resident).sum(),
        "visited": np.mean([r.clusters.mean() / r.mask.shape[1] for r in got.rows]),
        "row": np.mean([r.clusters.mean() for r in got.rows]),
    }
    buckets = [
        wicsum.select_rows(c, n, replace(resv.params, selection="buckets"))
        for c, n in zip(got.codes, got.counts, strict=True)
    ]
    out["row_buckets"] = np.mean([b.clusters.mean() for b in buckets])
    tokens = resv.tokens_of([wicsum.union(b.mask) for b in buckets])
    out["fetched_buckets"] = (tokens & ~resident).mean(0).sum()
    if trace.v is not None:
        out |= _errors(q, trace.k[i, :stop], trace.v[i, :stop], got, resv.always())
    return out


def _errors(q: np.ndarray, k: np.ndarray, v: np.ndarray, got: Retrieved, always: np.ndarray) -> dict[str, float]:
    everything = np.ones_like(got.keep)
    p = probabilities(q, k, everything)
    full = attend(p, v)
    mass = np.where(always, -1.0, p.sum(axis=0).reshape(len(got.keep), -1, len(k)).sum(axis=1))  # [kv_heads, n]
    topk = np.tile(always, (len(mass), 1))
    for g, budget in enumerate(got.fetched.sum(axis=1).tolist()):
        topk[g, np.argsort(-mass[g], kind="stable")[:budget]] = True
    keeps = {"error": got.keep, "error_topk": topk, "error_window": np.broadcast_to(always, topk.shape)}
    return {
        name: float(np.linalg.norm(attend(probabilities(q, k, keep), v) - full) / np.linalg.norm(full))
        for name, keep in keeps.items()
    }


def _summary(resv: ReSV, sums: dict[str, list[float]]) -> dict[str, float | None]:
    total = {name: float(np.sum(values)) for name, values in sums.items()}

    def over(a: str, b: str) -> float | None:
        return total[a] / total[b] if total.get(b) else None

    clusters = float(np.mean([len(t) for t in resv.tables]))
    out = {
        "blocks": len(sums["fetched"]),
        "clusters": clusters,
        "tokens_per_cluster": (resv.length - resv.params.sinks) / clusters,
        "fetched_of_cached": over("fetched", "cached"),
        "fetched_of_offloaded": over("fetched", "offloaded"),
        "buckets_row": over("row_buckets", "row"),
        "buckets_fetched": over("fetched_buckets", "fetched"),
    }
    for name in ("visited", "error", "error_topk", "error_window"):
        out[name] = float(np.mean(sums[name])) if sums[name] else None
    return out
