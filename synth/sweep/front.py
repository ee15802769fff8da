"""The Pareto front of a sweep, its files and its plots."""

import csv
import itertools
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

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
    folder.mkdir(parents=True, exist_ok=True)
    table = [
        {"point": p, "result": r.result, "error": r.error, "front": i in best}
        for i, (p, r) in enumerate(zip(points, rows, strict=True))
    ]
    _whole(folder / "points.json", lambda part: part.write_text(json.dumps(table, indent=1) + "\n"))
    _whole(folder / "points.csv", lambda part: _csv(part, table))
    for x, y in itertools.combinations(objectives, 2):
        figure = plot(rows, best, x, y)
        for end in ("png", "svg"):
            with mpl.rc_context({"svg.hashsalt": "sweep"}):
                metadata = {"Date": None} if end == "svg" else None
                _whole(
                    folder / f"{x}-{y}.{end}",
                    lambda part, f=figure, e=end, m=metadata: f.savefig(part, format=e, dpi=150, metadata=m),
                )


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


def _csv(part: Path, table: list[dict]) -> None:
    names = list(dict.fromkeys(n for entry in table for n in entry["point"]))
    results = sorted({n for entry in table for n in entry["result"]})
    with part.open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow([*names, *results, "front", "error"])
        for entry in table:
            own = [entry["point"].get(n, "") for n in names] + [entry["result"].get(n, "") for n in results]
            out.writerow([*own, int(entry["front"]), entry["error"]])


def _whole(path: Path, write) -> None:
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
