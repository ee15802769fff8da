"""V-Rex Fig. 20 on a recall task: the share of the cache that each layer and KV head fetches."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.inputs.decoder import MODEL
from openvrex.golden.inputs.video import package_file
from openvrex.golden.policies.policy_run import Record
from openvrex.papers.commands.kept_runs import Variant, complete, fail_if_any, key
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.papers.recall.recall_run import Case, play, prepared
from openvrex.scripts.quantity import Column

VARIANTS = (
    Variant("resv-paper", ()),
    Variant("resv-paper", (("resv.th_hd", "3"),)),
    Variant("resv-buckets", ()),
    Variant("rekv", ()),
)
COLUMNS = {
    "policy": Column("policy"),
    "mean": Column("mean", "%", 1),
    "least_layer": Column("least layer", "%", 1),
    "most_layer": Column("largest layer", "%", 1),
    "least_head": Column("least head", "%", 1),
    "most_head": Column("largest head", "%", 1),
    "fewer": Column("fewer than ReKV", "x", 1),
    "recall": Column("recalled", "%", 0),
    "runs": Column("texts"),
}
PAPER = (
    "ReSV: 4.2 % to 44.0 % by layer, heads differ, 3.0 x fewer tokens than ReKV; InfiniGenP and ReKV alike everywhere."
)
NOTE = (
    "Share of the offloaded cache that a block of the text fetches, so that the recent window does not count. The "
    "task is passkey: 1,500 tokens, the key at a quarter of them."
)


@dataclass(frozen=True)
class Shares:
    """A case of the figure: the task of `Case`, and a name that tells it from a run of `vrex papers recall`."""

    case: Case
    of: str = "shares by layer and head"


def draw(folder: Path, seeds: int, workers: int | None, quiet: bool) -> Drawn:
    """Run the policies of `VARIANTS` on `seeds` texts; finished runs are kept in the folder."""
    package_file(*MODEL)  # named once, before a cluster starts
    cases = [Shares(Case(seed=seed)) for seed in range(1, seeds + 1)]
    asked = {key(variant, case): (variant, case) for variant in VARIANTS for case in cases}
    rows = complete(folder / "shares.db", asked, measure, quiet, None, None, workers)
    fail_if_any(rows)
    found = {variant.name: [rows[k].result for k, (v, _) in asked.items() if v == variant] for variant in VARIANTS}
    return Drawn("V-Rex Fig. 20 on a recall task", PAPER, COLUMNS, summaries(found), NOTE, plot)


def measure(point: tuple[Variant, Shares]) -> dict[str, float]:
    """On a worker: the recall, and the share of each layer and head as "layer.head"."""
    variant, asked = point
    run, decoder, task = prepared(asked.case, variant.entry())
    answer = play(run, decoder, task)
    right = [r.choices[-1] == token for r, token in zip(answer, task.answer, strict=True)]
    found = shares([r for r in run.records if r.stage == "frame"])
    out = {f"{layer}.{head}": float(x) for (layer, head), x in np.ndenumerate(found)}
    return out | {"recall": float(np.mean(right))}


def shares(records: list[Record]) -> np.ndarray:
    """Fetched of offloaded tokens over blocks, [layers, kv_heads]; 0 where nothing was offloaded.

    A policy attends to all tokens that it keeps on the device, so the others of the past are offloaded.
    """
    fetched = np.sum([r.fetched for r in records], axis=0)
    offloaded = np.sum([r.start - (r.kept - r.fetched) for r in records], axis=0)
    return np.divide(fetched, offloaded, out=np.zeros_like(fetched), where=offloaded > 0)


def summaries(found: dict[str, list[dict[str, float]]]) -> list[Row]:
    """A row a policy: means over texts first, then the spread over layers and heads."""
    out: list[Row] = []
    for name, results in found.items():
        grid = mean_grid(results)
        layers = grid.mean(axis=1)
        row: Row = {"policy": name, "mean": float(grid.mean())}
        row |= {"least_layer": float(layers.min()), "most_layer": float(layers.max())}
        row |= {"least_head": float(grid.min()), "most_head": float(grid.max())}
        row |= {"recall": float(np.mean([r["recall"] for r in results])), "runs": len(results)}
        out.append(row | {"shares": [[round(x, 4) for x in heads] for heads in grid.tolist()]})
    rekv = next((r["mean"] for r in out if r["policy"] == "rekv"), None)
    for row in out:
        row["fewer"] = rekv / row["mean"] if rekv and row["mean"] else None
    return out


def mean_grid(results: list[dict[str, float]]) -> np.ndarray:
    """Mean shares [layers, kv_heads] of runs, each with an item "layer.head" for every share."""
    places = [tuple(map(int, name.split("."))) for name in results[0] if "." in name]
    grid = np.zeros([1 + max(axis) for axis in zip(*places, strict=True)])
    for layer, head in places:
        grid[layer, head] = np.mean([r[f"{layer}.{head}"] for r in results])
    return grid


def plot(rows: list[Row]) -> Figure:
    """A curve a policy over the layers; thin lines are heads."""
    figure = Figure((8, 4), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        grid = 100 * np.array(row["shares"])
        axes.plot(grid.mean(axis=1), color=f"C{i}", label=str(row["policy"]))
        axes.plot(grid, color=f"C{i}", linewidth=0.4)
    axes.set(xlabel="layer", ylabel="fetched of the offloaded cache (%)")
    axes.legend(fontsize="small")
    return figure
