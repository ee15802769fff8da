"""Mosaic's Table IV on traces: what each level of its clusters, and each rule of its maintenance, is worth."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.policies.policy_run import TraceRun, blocks, shape_of
from openvrex.golden.retrieval.resv import probabilities
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.scripts.quantity import Column

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


class Watched(TraceRun):
    """A run that also sums the attention which its policy retrieves. All KV heads choose the same tokens.

    offloaded, retrieved, best : attention mass of the tokens on the host, of those retrieved, and of as many tokens
        with the largest mass; sums over blocks and layers
    tokens : tokens on the host, and those retrieved
    """

    def __init__(self, policy: Policy, trace: Trace):
        super().__init__(policy, trace)
        self.offloaded = self.retrieved = self.best = 0.0
        self.tokens = np.zeros(2, np.int64)

    def look(self, step: LayerBlock, chosen: Selected) -> None:
        host = self.policy.store.on_host(step.layer)[0]
        keep = np.ones((len(step.k), step.n), bool)
        p = probabilities(step.q, step.k.swapaxes(0, 1), keep).sum(axis=(0, 1), dtype=np.float64)
        got = chosen.keep[0] & host
        self.offloaded += float(p[host].sum())
        self.retrieved += float(p[got].sum())
        self.best += float(np.sort(p[host])[::-1][: got.sum()].sum())
        self.tokens += host.sum(), got.sum()

    def errors(self) -> list[float]:
        """The error of each layer's attention, in blocks with queries."""
        asked = (r for r in self.records if r.fetched.size and not np.isnan(r.error).all())
        return [e for r in asked for e in r.error.tolist()]


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
    policy = Mosaic(params, shape_of(trace))
    return {
        **watched(policy, trace),
        "clusters": float(np.mean([len(state.clusters) for state in policy.layers])),
        "splits": policy.splits,
        "deferred": policy.deferred,
    }


def watched(policy: Policy, trace: Trace) -> Row:
    """Tokens, mass and error of a policy's run over a trace."""
    run = Watched(policy, trace)
    for block in blocks(trace):
        run.step(trace, block)
    errors = run.errors()
    return {
        "retrieved": float(run.tokens[1] / run.tokens[0]) if run.tokens[0] else None,
        "mass": run.retrieved / run.offloaded if run.offloaded else None,
        "best": run.retrieved / run.best if run.best else None,
        "error": float(np.mean(errors)) if errors else None,
    }


def plot(rows: list[Row]) -> Figure:
    """Bars: the mass that each method retrieves of what the best tokens would."""
    figure = Figure((7, 0.35 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    axes.barh([f"{r['method']}, {r['trace']}" for r in rows], [100 * (r["best"] or 0) for r in rows])
    axes.set(xlabel="attention mass retrieved, of as many best entries' (%)")
    axes.invert_yaxis()
    return figure
