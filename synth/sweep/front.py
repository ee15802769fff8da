"""The Pareto front of a sweep, its files and its plots."""

import csv
import io
import itertools
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from golden.files import write_atomically
from synth.sweep.database import Row
from synth.sweep.evaluate import OBJECTIVES
from synth.sweep.points import Point


def front(values: np.ndarray, most: list[bool]) -> np.ndarray:
    """Which points [n] no other point of `values` [n, objectives] dominates: as good in all and better in one.

    most : objectives of which more is better. Points that are equal in all objectives are on the front together.
    """
    cost = np.where(most, -np.asarray(values, float), np.asarray(values, float))
    distinct, at = np.unique(cost, axis=0, return_inverse=True)
    on = np.ones(len(distinct), bool)
    for i, row in enumerate(distinct):  # in lexical order, so that only those before a row can dominate it
        on[i] = not (distinct[:i][on[:i]] <= row).all(1).any()
    return on[at.ravel()]


def front_of(rows: list[Row], objectives: tuple[str, ...]) -> list[int]:
    """Indices of the rows on the front, by the first objective; rows without results are on none."""
    good = [i for i, row in enumerate(rows) if not row.error]
    if not good:
        return []
    values = np.array([[rows[i].result[o] for o in objectives] for i in good])
    on = front(values, [OBJECTIVES[o].most for o in objectives])
    return sorted(itertools.compress(good, on), key=lambda i: [rows[i].result[o] for o in objectives])


def write(folder: Path, points: list[Point], rows: list[Row], objectives: tuple[str, ...]) -> None:
    """`points.csv`, `points.json` and a plot in PNG and SVG of each pair of objectives, each at once or not at all."""
    best = set(front_of(rows, objectives))
    table = [
        {"point": p, "result": r.result, "error": r.error, "front": i in best}
        for i, (p, r) in enumerate(zip(points, rows, strict=True))
    ]
    write_atomically(folder / "points.json", (json.dumps(table, indent=1) + "\n").encode())
    write_atomically(folder / "points.csv", _csv(table).encode())
    for x, y in itertools.combinations(objectives, 2):
        figure = plot(rows, best, x, y)
        for kind in ("png", "svg"):
            write_atomically(folder / f"{x}-{y}.{kind}", _image(figure, kind))


def plot(rows: list[Row], best: set[int], x: str, y: str) -> Figure:
    """All points by two objectives; those of the front filled, the front of these two alone as a line."""
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    good = [(i, row.result[x], row.result[y]) for i, row in enumerate(rows) if not row.error]
    axes.plot([p[1] for p in good], [p[2] for p in good], "o", color="tab:gray", mfc="none", label="points")
    chosen = [p for p in good if p[0] in best]
    axes.plot([p[1] for p in chosen], [p[2] for p in chosen], "o", color="tab:blue", label="Pareto front")
    line = sorted((rows[i].result[x], rows[i].result[y]) for i in front_of(rows, (x, y)))
    where = "pre" if OBJECTIVES[x].most else "post"
    axes.step([p[0] for p in line], [p[1] for p in line], where=where, color="tab:blue", lw=1, label=f"of {x} and {y}")
    axes.set(
        xlabel=f"{OBJECTIVES[x].title} ({OBJECTIVES[x].unit})", ylabel=f"{OBJECTIVES[y].title} ({OBJECTIVES[y].unit})"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _csv(table: list[dict]) -> str:
    names = list(dict.fromkeys(n for entry in table for n in entry["point"]))
    results = sorted({n for entry in table for n in entry["result"]})
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*names, *results, "front", "error"])
    for entry in table:
        own = [entry["point"].get(n, "") for n in names] + [entry["result"].get(n, "") for n in results]
        out.writerow([*own, int(entry["front"]), entry["error"]])
    return text.getvalue()


def _image(figure: Figure, kind: str) -> bytes:
    data = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "sweep"}):
        figure.savefig(data, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return data.getvalue()
