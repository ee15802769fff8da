"""V-Rex's "16 % of a row" and Fig. 19: how much of a row the WTU visits, and what clustering saves."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.function_params import READINGS, ReSVParams
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.retrieval import wicsum
from openvrex.golden.retrieval.hashing import to_int
from openvrex.golden.retrieval.resv import ReSV, Retrieved, attend, probabilities
from openvrex.hdl.design import load
from openvrex.hdl.params import DreParams
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.papers.commands.readings_command import frames
from openvrex.scripts.quantity import Column
from openvrex.sim.units.hcu_time import HcuTime
from openvrex.sim.units.wtu_time import WtuTime

PAPER = READINGS["paper"]
TH_HD = (7, 3)
RATIOS = (0.3, 0.5, 0.8, 0.9)
ROWS = 64  # most rows of a frame whose cycles are counted
ALL = 1 << 16  # clusters of a table that never fills
VISITED = {
    "trace": Column("trace"),
    "th_hd": Column("Th_hd"),
    "clusters": Column("clusters"),
    "ratio": Column("ratio", "", 1),
    "exact": Column("visited, exact", "%", 1),
    "least": Column("least layer", "%", 1),
    "most": Column("largest layer", "%", 1),
    "buckets": Column("visited, 16 buckets", "%", 1),
}
CLUSTERING = {
    "trace": Column("trace"),
    "method": Column("method"),
    "scored": Column("scores a row"),
    "fetched": Column("fetched", "%", 1),
    "traffic": Column("traffic", "%", 1),
    "speed": Column("speed-up if fetching limits", "x", 1),
    "paper": Column("paper", "x", 1),
    "products": Column("score products a frame", "M", 2),
    "hcu": Column("HCU cycles a key"),
    "wtu": Column("WTU cycles a row"),
    "error": Column("error of attention", "%", 1),
}
METHODS: dict[str, tuple[ReSVParams | None, float | None]] = {  # name -> parameters, the paper's speed-up
    "all fetched": (None, 1.0),
    "no clusters": (replace(PAPER, th_hd=0, max_clusters=ALL), 1.6),
    "Th_hd 3": (replace(PAPER, th_hd=3), None),
    "Th_hd 7": (PAPER, 9.4),
}


def visited(traces: dict[str, Trace]) -> Drawn:
    """The share of a row's clusters that make up the ratio, which is where the WTU ends."""
    rows: list[Row] = []
    for name, trace in traces.items():
        for th_hd in TH_HD:
            found = [visits(trace, i, replace(PAPER, th_hd=th_hd)) for i in range(len(trace.layers))]
            clusters = float(np.mean([f["clusters"] for f in found]))
            for ratio in RATIOS:
                exact = [f[f"exact {ratio}"] for f in found]
                row: Row = {"trace": name, "th_hd": f"{th_hd}", "clusters": clusters, "ratio": ratio}
                row |= {"exact": float(np.mean(exact)), "least": min(exact), "most": max(exact)}
                rows.append(row | {"buckets": float(np.mean([f[f"buckets {ratio}"] for f in found]))})
    note = (
        "Share of a row's clusters, mean over the rows of frames with queries, then over layers. exact: the fewest "
        "clusters above the ratio (ours). buckets: the 16 equal buckets that the paper's WTU sorts before it exits."
    )
    paper = "16 % of a row on average, at ratio 0.3."
    return Drawn("V-Rex V-B: share of a row visited before the early exit", paper, VISITED, rows, note, plot_visited)


def visits(trace: Trace, i: int, params: ReSVParams) -> dict[str, float]:
    """Clusters of recorded layer `i`, and the mean share of a row visited: "exact 0.3", "buckets 0.3", ..."""
    shares: dict[str, list[np.ndarray]] = {}
    clusters = []
    for got, counts in scored(trace, i, params):
        clusters.append(len(counts))
        for ratio in RATIOS:
            for selection in ("exact", "buckets"):
                p = replace(params, ratio_q16=round(ratio * 65536), selection=selection)
                chosen = wicsum.select_rows(got, counts, p).clusters
                shares.setdefault(f"{selection} {ratio}", []).append(chosen / len(counts))
    return {name: float(np.concatenate(x).mean()) for name, x in shares.items()} | {
        "clusters": float(np.mean(clusters))
    }


def scored(trace: Trace, i: int, params: ReSVParams) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Score codes [R, C] and token counts [C] of each frame with queries, by table."""
    asked = set(trace.spans("frame", queries=True))
    if not asked:
        raise TraceError("no queries of any frame in the trace: record it with more --queries")
    resv = ReSV(params, trace.kv_heads, trace.head_size)
    for start, stop in trace.spans():
        resv.append(trace.k[i, start:stop])
        if (start, stop) in asked:
            got = resv.retrieve(trace.queries(i, start, stop))
            yield from zip(got.codes, got.counts, strict=True)


def plot_visited(rows: list[Row]) -> Figure:
    """Share visited against the ratio: a colour a trace, solid exact, dashed buckets, a marker a threshold."""
    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    for n, name in enumerate(dict.fromkeys(r["trace"] for r in rows)):
        for th_hd, marker in zip(TH_HD, "os", strict=True):
            own = [r for r in rows if r["trace"] == name and r["th_hd"] == f"{th_hd}"]
            x = [r["ratio"] for r in own]
            for kind, line in (("exact", "-"), ("buckets", "--")):
                y = [100 * r[kind] for r in own]
                axes.plot(x, y, f"{marker}{line}", color=f"C{n}", label=f"{name}, Th_hd {th_hd}, {kind}")
    axes.axhline(16, color="black", linewidth=0.8, label="paper")
    axes.set(xlabel="ratio", ylabel="clusters of a row visited (%)")
    axes.legend(fontsize="x-small")
    return figure


def clustering(traces: dict[str, Trace]) -> Drawn:
    """Fig. 19: the traffic, the predicted work and the error with and without clusters."""
    p = load("core").core.dre
    rows: list[Row] = []
    for name, trace in traces.items():
        for method, (params, theirs) in METHODS.items():
            found = [costs(trace, i, params, p) for i in range(len(trace.layers))]
            row: Row = {"trace": name, "method": method, "paper": theirs}
            for key in CLUSTERING.keys() - row.keys() - {"speed"}:
                values = [f[key] for f in found if f[key] is not None]
                row[key] = float(np.mean(values)) if values else None
            rows.append(row | {"speed": 1 / row["traffic"] if row["traffic"] else None})
    note = (
        "Means over frames with queries and layers. fetched: share of the offloaded tokens. traffic: share of their "
        "bytes that crosses the link; without clusters all keys do, since each is scored, and the values of the "
        "fetched tokens. Cycles are those of preset core (time views); its WTU is widened where a row is longer."
    )
    paper = "1.6 x without clusters and 9.4 x with them over fetching all, at 40K; accuracy -0.3 % and -0.8 %."
    return Drawn("V-Rex Fig. 19: with and without clusters", paper, CLUSTERING, rows, note, plot_clustering)


def costs(trace: Trace, i: int, params: ReSVParams | None, p: DreParams) -> Row:
    """The figures of `CLUSTERING` in recorded layer `i`; `params` None fetches everything without a prediction."""
    own = params or PAPER
    sums: dict[str, list[float]] = {name: [] for name in ("scored", "fetched", "products", "wtu", "error")}
    resv = None
    for resv, start, stop in frames(trace, i, own):
        q = trace.queries(i, start, stop)
        if params is None:
            sums["fetched"].append(1.0)
            sums["error"].append(0.0)
            continue
        got = resv.retrieve(q)
        clusters = len(got.counts[0])
        sums["scored"].append(clusters)
        sums["fetched"].append(float(got.fetched.mean(0).sum() / (~resv.resident()).sum()))
        sums["products"].append(q.size * clusters / 1e6)
        sums["wtu"].append(wtu_cycles(got, p, own.ratio_q16))
        if trace.v is not None:
            sums["error"].append(error(q, trace.k[i, :stop], trace.v[i, :stop], got))
    if resv is None:
        raise TraceError("all tokens of the trace are recent: record a longer one with 'vrex trace'")
    out: Row = {name: float(np.mean(x)) if x else None for name, x in sums.items()}
    fetched = out["fetched"] or 0.0
    whole_keys = params is not None and params.th_hd == 0
    out["traffic"] = 0.5 + fetched / 2 if whole_keys else fetched
    out["hcu"] = None if params is None or whole_keys else hcu_cycles(trace, i, params, p)
    return out


def wtu_cycles(got: Retrieved, p: DreParams, ratio_q16: int) -> float:
    """Mean cycles from a row to the next in a WTU core, over up to `ROWS` rows spread over a frame."""
    codes, counts = got.codes[0], got.counts[0]
    width = p.wtu.n_w
    clusters = max(p.wtu.clusters, -(-len(counts) // width) * width)
    at = np.linspace(0, len(codes) - 1, min(ROWS, len(codes))).astype(int)
    counted = max(p.wtu.counts, clusters)  # of rows that need no stream
    _, done = WtuTime(replace(p.wtu, clusters=clusters, counts=counted)).run(
        [(codes[r], counts) for r in at], ratio_q16
    )
    return float(done[-1] - done[0]) / max(1, len(at) - 1)


def hcu_cycles(trace: Trace, i: int, params: ReSVParams, p: DreParams) -> float:
    """Mean cycles in which the HCU compares a key of the last frame."""
    resv = ReSV(params, trace.kv_heads, trace.head_size)
    hashes = [to_int(w) for start, stop in trace.spans() for w in resv.append(trace.k[i, start:stop]).hashes[0]]
    start, stop = trace.spans("frame")[-1]
    compares = HcuTime(p.hcu, params.th_hd).run(hashes).compares
    return float(np.mean(compares[start - params.sinks : stop - params.sinks]))


def error(q: np.ndarray, k: np.ndarray, v: np.ndarray, got: Retrieved) -> float:
    """|o - o_full| / |o_full| of the attention output of a frame."""
    full, light = (attend(probabilities(q, k, keep), v) for keep in (np.ones_like(got.keep), got.keep))
    return float(np.linalg.norm(light - full) / np.linalg.norm(full))


def plot_clustering(rows: list[Row]) -> Figure:
    """Bars: the traffic of each method, and its error."""
    figure = Figure((9, 3.5), layout="constrained")
    axes = figure.subplots(1, 2)
    names = [f"{r['method']}\n{r['trace']}" for r in rows]
    for ax, key, label in zip(axes, ("traffic", "error"), ("traffic (%)", "error of attention (%)"), strict=True):
        ax.barh(names, [100 * (r[key] or 0) for r in rows])
        ax.set(xlabel=label)
        ax.invert_yaxis()
        ax.tick_params(labelsize="x-small")
    return figure
