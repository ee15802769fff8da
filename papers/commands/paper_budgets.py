"""Mosaic's Figs. 10 and 12 on traces: Mosaic, ReKV and evenly spaced frames at several budgets, and at several lengths.

Evenly spaced frames stand for NoCache, Mosaic's first baseline, which samples frames and recomputes them. A trace has
keys and values as the cache holds them, so its choice is NoCache's and its values are not.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.mosaic import Mosaic
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.policies.policy_run import shape_of
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.papers.commands.paper_mosaic import BASE, watched
from openvrex.papers.policies.rekv import ReKV, ReKVParams
from openvrex.scripts.quantity import Column

BUDGETS = (0.025, 0.05, 0.1, 0.2, 0.4)
CHOICE = 0.1  # budget of the lengths, the policy's default
COLUMNS = {
    "trace": Column("trace"),
    "frames": Column("frames"),
    "budget": Column("budget", "%", 1),
    "method": Column("method"),
    "retrieved": Column("retrieved", "%", 1),
    "mass": Column("mass", "%", 1),
    "best": Column("of the best tokens' mass", "%", 1),
    "error": Column("error of attention", "%", 2),
}
NOTE = (
    "Over blocks with queries and all recorded layers. retrieved: share of the offloaded entries; whole clusters and "
    "frames pass the budget. mass: share of full attention's mass on the offloaded entries that was retrieved; then "
    "beside that of as many entries with the largest mass. Mosaic's means stand for what stays on the host."
)


class EvenFrames(ReKV):
    """Attends evenly spaced frames instead of the most similar ones: the choice of NoCache."""

    def select(self, step: LayerBlock) -> Selected:
        old = self.store.on_host(step.layer)[0]
        at = np.flatnonzero(np.add.reduceat(old, self.starts) > 0)
        budget = int(np.ceil(self.params.frame_ratio * len(at)))
        frames = np.zeros(len(self.starts), bool)
        frames[at[np.arange(budget) * len(at) // max(budget, 1)]] = True
        self.store.fetch(step.layer, np.repeat(frames, np.diff([*self.starts, step.n])))
        return Selected(self.store.on_device(step.layer))


def rekv(budget: float) -> ReKVParams:
    """ReKV that retrieves the same share for frames, questions and answers."""
    return ReKVParams(budget, budget, BASE.recent)


METHODS: dict[str, Callable[[float, Shape], Policy]] = {
    "mosaic": lambda budget, shape: Mosaic(replace(BASE, ratio=budget), shape),
    "rekv": lambda budget, shape: ReKV(rekv(budget), shape),
    "even frames": lambda budget, shape: EvenFrames(rekv(budget), shape),
}


def budgets(traces: dict[str, Trace]) -> Drawn:
    """Fig. 10: the share of the offloaded entries that may be retrieved varies."""
    rows = [row(name, trace, method, b) for name, trace in traces.items() for b in BUDGETS for method in METHODS]
    paper = "Mosaic's accuracy is above ReKV's at every number of retrieved frames, most so at few; its latency below."
    return Drawn("Mosaic Fig. 10: budgets", paper, COLUMNS, rows, NOTE, lambda r: plot(r, "budget", "budget (%)", 100))


def lengths(traces: dict[str, Trace]) -> Drawn:
    """Fig. 12: the length of the video varies, by traces of several lengths."""
    rows = [row(name, trace, method, CHOICE) for name, trace in traces.items() for method in METHODS]
    paper = "Mosaic has the highest accuracy and the lowest latency of all methods at every length."
    return Drawn("Mosaic Fig. 12: lengths", paper, COLUMNS, rows, NOTE, lambda r: plot(r, "frames", "frames", 1))


def row(name: str, trace: Trace, method: str, budget: float) -> Row:
    """A method on a trace."""
    of = {"trace": name, "frames": len(trace.spans("frame")), "budget": budget, "method": method}
    return of | watched(METHODS[method](budget, shape_of(trace)), trace)


def plot(rows: list[Row], key: str, label: str, scale: float) -> Figure:
    """Retrieved mass of what the best tokens would have: a curve for each method, and each trace of several budgets."""
    figure = Figure((5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    curves: dict[str, list[Row]] = {}
    for r in rows:
        curves.setdefault(r["method"] if key == "frames" else f"{r['method']}, {r['trace']}", []).append(r)
    for name, own in curves.items():
        shown = [(scale * r[key], 100 * r["best"]) for r in own if r["best"] is not None]
        axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", label=name)
    axes.set(xlabel=label, ylabel="mass retrieved, of as many best entries' (%)")
    axes.legend(fontsize="x-small")
    return figure
