"""Mosaic's Table IV on traces: what each level of its clusters, and each rule of its maintenance, is worth."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from golden.inputs.trace import Trace
from golden.policies.blocks import Shape
from golden.policies.light_attention import Selected
from golden.policies.mosaic import Mosaic, MosaicParams
from golden.policies.policy import Step
from golden.policies.policy_run import TraceRun, blocks, shape_of
from golden.retrieval.resv import probabilities
from scripts.quantity import Column
from scripts.research.paper_figure import Drawn, Row

BASE = MosaicParams(prefetch="none")  # prefetch changes when bytes move, and nothing of what is attended
METHODS = {  # name -> parameters, the paper's accuracy on MLVU and LongVideoBench
    "no clusters": (replace(BASE, visual_level=False, semantic_level=False), "68.4, 59.8"),
    "visual level alone": (replace(BASE, semantic_level=False), "66.8, 59.2"),
    "semantic level alone": (replace(BASE, visual_level=False), "68.6, 59.8"),
    "both levels": (BASE, "69.0, 60.4"),
    "both, no deferred split": (replace(BASE, defer=False), None),
    "both, fixed threshold": (replace(BASE, adaptive=False), None),
}
COLUMNS = {
    "trace": Column("trace"),
    "method": Column("method"),
    "retrieved": Column("retrieved", "%", 1),
    "mass": Column("mass", "%", 1),
    "best": Column("of the best tokens' mass", "%", 1),
    "error": Column("error of attention", "%", 2),
    "clusters": Column("clusters a layer"),
    "splits": Column("splits"),
    "deferred": Column("deferred"),
    "paper": Column("paper's accuracy", "%"),
}


class Measured(Mosaic):
    """Mosaic that also sums the attention that it retrieves.

    offloaded, retrieved, best : attention mass of the tokens on the host, of those retrieved, and of as many tokens
        with the largest mass; sums over blocks and layers
    tokens : tokens on the host, and those retrieved
    """

    def __init__(self, params: MosaicParams, shape: Shape):
        super().__init__(params, shape)
        self.offloaded = self.retrieved = self.best = 0.0
        self.tokens = np.zeros(2, np.int64)

    def select(self, step: Step) -> Selected:
        host = self.store.on_host(step.layer)[0].copy()
        chosen = super().select(step)
        keep = np.ones((len(step.k), step.n), bool)
        p = probabilities(step.q, step.k.swapaxes(0, 1), keep).sum(axis=(0, 1), dtype=np.float64)
        got = chosen.keep[0] & host
        self.offloaded += float(p[host].sum())
        self.retrieved += float(p[got].sum())
        self.best += float(np.sort(p[host])[::-1][: got.sum()].sum())
        self.tokens += host.sum(), got.sum()
        return chosen


def draw(traces: dict[str, Trace]) -> Drawn:
    """Table IV, and the maintenance beside it."""
    rows = [
        {"trace": name, "method": method, **measure(trace, params), "paper": paper}
        for name, trace in traces.items()
        for method, (params, paper) in METHODS.items()
    ]
    paper = "accuracy of LLaVA-OV-7B on MLVU and LongVideoBench; the last two rows have no accuracy in the paper."
    note = (
        "Over blocks with queries and all recorded layers. retrieved: share of the offloaded entries. mass: share of "
        "full attention's mass on the offloaded entries that was retrieved; then beside that of as many entries with "
        "the largest mass. Error counts the means that stand for entries left on the host; without clusters there "
        "are none."
    )
    return Drawn("Mosaic Table IV: levels of clusters", paper, COLUMNS, rows, note, plot)


def measure(trace: Trace, params: MosaicParams) -> Row:
    """The figures of `COLUMNS` of a run over a trace; None where nothing was offloaded."""
    policy = Measured(params, shape_of(trace))
    run = TraceRun(policy, trace)
    for block in blocks(trace):
        run.step(trace, block)
    errors = [e for r in run.records if r.fetched.size and not np.isnan(r.error).all() for e in r.error.tolist()]
    return {
        "retrieved": float(policy.tokens[1] / policy.tokens[0]) if policy.tokens[0] else None,
        "mass": policy.retrieved / policy.offloaded if policy.offloaded else None,
        "best": policy.retrieved / policy.best if policy.best else None,
        "error": float(np.mean(errors)) if errors else None,
        "clusters": float(np.mean([len(state.clusters) for state in policy.layers])),
        "splits": policy.splits,
        "deferred": policy.deferred,
    }


def plot(rows: list[Row]) -> Figure:
    """Bars: the mass that each method retrieves of what the best tokens would."""
    figure = Figure((7, 0.35 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    axes.barh([f"{r['method']}, {r['trace']}" for r in rows], [100 * (r["best"] or 0) for r in rows])
    axes.set(xlabel="attention mass retrieved, of as many best entries' (%)")
    axes.invert_yaxis()
    return figure
