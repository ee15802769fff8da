"""Mosaic's decisions in floating point and as the hardware makes them, each beside the exact one on the same state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.policies.mosaic_layer import Layer, best
from openvrex.golden.policies.policy_run import TraceRun, blocks, shape_of
from openvrex.golden.policies.store import runs
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.papers.commands.paper_mosaic import BASE
from openvrex.scripts.quantity import Column

DRAWN = ("float", "hardware")
COLUMNS = {
    "trace": Column("trace"),
    "arithmetic": Column("arithmetic"),
    "tokens": Column("tokens judged"),
    "distance": Column("other than the nearest", "%", 2),
    "angle": Column("other than the nearest by angle", "%", 2),
    "verdict": Column("other verdict", "%", 2),
    "jaccard": Column("retrieved in common", "%", 2),
    "error": Column("error of attention", "%", 2),
    "clusters": Column("clusters a layer"),
    "splits": Column("splits"),
    "deferred": Column("deferred"),
    "index": Column("index", "KB", 0),
    "fetched": Column("fetched", "KB", 0),
}


class Judged(Mosaic):
    """Mosaic that computes each decision again in FP64, from the members of its own clusters.

    judged, far, turned, other : tokens assigned; those not in the cluster of the nearest mean; not in that of the
        mean of the nearest direction; with another verdict on the split
    common : Jaccard index of the retrieved tokens and of the exact choice, by retrieval of at least one token
    cut : members of each cluster that was split at once, and rounds of its K-means
    retrieved, asked : tokens that retrieval chose, and its budgets
    came, copies : entries fetched, and their runs of adjacent tokens
    """

    def __init__(self, params: MosaicParams, shape: Shape):
        super().__init__(params, shape)
        self.judged = self.far = self.turned = self.other = 0
        self.common: list[float] = []
        self.exact_query = np.zeros(0)
        self.cut: list[tuple[int, int]] = []
        self.retrieved = self.asked = self.came = self.copies = 0

    def _assign(self, layer: int, tokens: np.ndarray, partition: int | np.ndarray) -> None:
        state = self.layers[layer]
        assign, state.clusters.assign = state.clusters.assign, self._judge(state, tokens, partition)  # type: ignore[method-assign]
        super()._assign(layer, tokens, partition)
        state.clusters.assign = assign  # type: ignore[method-assign]

    def _judge(self, state: Layer, tokens: np.ndarray, partition: int | np.ndarray) -> Callable[..., None]:
        """`Clusters.assign` that judges each decision before it takes effect."""
        clusters, assign = state.clusters, state.clusters.assign
        keys = state.keys.data[0].astype(np.float64)
        x = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-300)

        def members(c: int) -> np.ndarray:
            return np.flatnonzero((state.cluster == c) & ~state.buffered)

        sums = {c: x[members(c)].sum(axis=0) for c in np.flatnonzero(np.isin(clusters.partition, partition)).tolist()}

        def judge(i: int, c: int, partition: int, threshold: Threshold, absorbed: bool) -> None:
            at = np.flatnonzero(clusters.partition == partition)
            mean, token = np.stack([sums[c] for c in at.tolist()]) / clusters.size[at, None], x[tokens[i]]
            self.judged += 1
            self.far += int(at[((mean - token) ** 2).sum(axis=1).argmin()] != c)
            self.turned += int(at[(mean @ token / np.linalg.norm(mean, axis=1)).argmax()] != c)
            grown = (sums[c] + token) / (clusters.size[c] + 1)  # of unit vectors, Equation 2 is 1 - |mean|^2
            self.other += int((1 - grown @ grown <= threshold(int(clusters.size[c]) + 1)) != absorbed)

        def judged(
            vectors: np.ndarray, partition: np.ndarray, threshold: Threshold, absorbed: Any, invalid: Any
        ) -> None:
            def taken(i: int, c: int) -> None:
                clusters.size[c] -= 1  # judged as it was before
                judge(i, c, int(partition[i]), threshold, True)
                clusters.size[c] += 1
                sums[c] += x[tokens[i]]
                absorbed(i, c)

            def refused(i: int, c: int) -> list[int]:
                judge(i, c, int(partition[i]), threshold, False)
                changed = invalid(i, c)
                sums.update({c: x[members(c)].sum(axis=0) for c in changed})
                return changed

            assign(vectors, partition, threshold, taken, refused)

        return judged

    def _split(self, layer: int, tokens: np.ndarray, c: int) -> list[int]:
        state, work = self.layers[layer], self.ledger.done["index"]
        at_once = not (state.clusters.lazy[c] or state.buffered[tokens].any())
        out = super()._split(layer, tokens, c)
        if at_once:
            macs = 2 * len(tokens) * self.width  # of a round
            self.cut.append((len(tokens), (self.ledger.done["index"] - work) // macs))
        return out

    def _fetch(self, layer: int, mask: np.ndarray, reason: str) -> None:
        before = self.store.on_device(layer).copy()
        super()._fetch(layer, mask, reason)
        came = (self.store.on_device(layer) & ~before)[:1]
        self.came += int(came.sum())
        self.copies += runs(came)

    def _query(self, q: np.ndarray) -> np.ndarray:
        heads = q.astype(np.float64).reshape(len(q), self.shape.kv_heads, self.shape.group, -1)
        self.exact_query = heads.mean(axis=(0, 2)).ravel()
        return super()._query(q)

    def _choose(self, layer: int, query: np.ndarray) -> np.ndarray:
        chosen = super()._choose(layer, query)
        state, clusters = self.layers[layer], self.layers[layer].clusters
        host = self.store.on_host(layer)[0, : len(state.cluster)]
        weight = np.bincount(state.cluster[host], minlength=len(clusters))
        budget = int(np.ceil(self.params.ratio * weight.sum()))
        if budget:
            own = np.flatnonzero((state.cluster >= 0) & ~state.buffered)
            sums = np.zeros((len(clusters), self.width))
            np.add.at(sums, state.cluster[own], state.keys.data[0, own])
            score = sums @ self.exact_query
            count = np.bincount(state.cluster[own], minlength=len(clusters))
            groups = clusters.partition
            held = np.bincount(groups, weights=weight)
            whole = np.bincount(groups, weights=score) / np.bincount(groups, weights=count)
            at = np.flatnonzero(best(whole, held, self.params.breadth * budget)[groups])
            exact = np.zeros(len(clusters), bool)
            exact[at[best(score[at] / count[at], weight[at], budget)]] = True
            both = weight[exact & chosen[:-1]].sum()
            self.common.append(float(both / weight[exact | chosen[:-1]].sum()))
            self.retrieved += int(weight[chosen[:-1]].sum())
            self.asked += budget
        return chosen


def draw(traces: dict[str, Trace]) -> Drawn:
    """A row for each trace and arithmetic."""
    rows = [
        {"trace": name, "arithmetic": how, **measure(trace, replace(BASE, arithmetic=how))}
        for name, trace in traces.items()
        for how in DRAWN
    ]
    note = (
        "Over blocks with queries and all recorded layers. The exact decision is in FP64, from the members of the "
        "run's own clusters: the nearest mean by distance, or by angle; Equations 2 and 5; two-stage retrieval. "
        "Retrieved in common: Jaccard index of tokens. Index: device bytes at the end, all layers."
    )
    return Drawn("Mosaic's decisions in hardware", "has no such figure.", COLUMNS, rows, note, plot)


def measure(trace: Trace, params: MosaicParams) -> Row:
    """The figures of `COLUMNS` of a run over a trace, None where nothing was decided; and what `Habits` rest on.

    at_once, members, rounds : clusters split at once; mean of their members, and of the rounds of K-means
    over : retrieved tokens by those asked for · together : fetched entries by the runs that they lie in
    visual : visual clusters at the end · built : those of the first frames · frames, first : of the stream, and until
    the first clusters are made
    """
    policy = Judged(params, shape_of(trace))
    run = TraceRun(policy, trace)
    for block in blocks(trace):
        run.step(trace, block)
    errors = [e for r in run.records if r.fetched.size and not np.isnan(r.error).all() for e in r.error.tolist()]
    tokens = policy.judged or None
    return {
        "tokens": policy.judged,
        "distance": tokens and policy.far / tokens,
        "angle": tokens and policy.turned / tokens,
        "verdict": tokens and policy.other / tokens,
        "jaccard": float(np.mean(policy.common)) if policy.common else None,
        "error": float(np.mean(errors)) if errors else None,
        "clusters": float(np.mean([len(state.clusters) for state in policy.layers])),
        "splits": policy.splits,
        "deferred": policy.deferred,
        "index": sum(state.index_bytes for state in policy.layers) / 1e3,
        "fetched": policy.ledger.moved["in", "fetch"] / 1e3,
        **habits(policy, trace),
    }


def habits(policy: Judged, trace: Trace) -> Row:
    """The figures of `measure` that describe the stream and are not in `COLUMNS`."""
    frames, first = len(trace.spans("frame")), policy.params.build
    members, rounds = (float(np.mean(x)) for x in zip(*policy.cut, strict=True)) if policy.cut else (None, None)
    return {
        "at_once": len(policy.cut),
        "members": members,
        "rounds": rounds,
        "over": policy.retrieved / policy.asked if policy.asked else None,
        "together": policy.came / policy.copies if policy.copies else None,
        "visual": len(policy.visual) if policy.visual is not None else 0,
        "built": -(-first // policy.params.partition_frames),
        "frames": frames,
        "first": first,
    }


def plot(rows: list[Row]) -> Figure:
    """Bars: decisions that differ from the exact ones."""
    figure = Figure((7, 0.35 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    names = [f"{r['arithmetic']}, {r['trace']}" for r in rows]
    axes.barh(names, [100 * (r["verdict"] or 0) for r in rows])
    axes.set(xlabel="verdicts on splits that are not the exact ones (%)")
    axes.invert_yaxis()
    return figure
