"""Finds the Pareto front of a sweep, and writes its tables and plots."""

import csv
import io
import itertools
import json
import re
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from golden.atomic_files import write_atomically
from synth.sweep.database import Row
from synth.sweep.point_costs import OBJECTIVES

Shown = dict[str, int | float | str]  # a point as `points.named` shows it
MARK = "sweep point "  # begins the SVG ids that `hover` turns into titles
LABELS = 16  # most labels on a line, so that they stay readable


def front(values: np.ndarray, most: list[bool]) -> np.ndarray:
    """Marks the points [n] of `values` [n, objectives] that no other point dominates.

    A point dominates another if it is as good in all objectives and better in one. Points that are equal in all
    objectives are on the front together.
    most : objectives of which more is better
    """
    cost = np.where(most, -np.asarray(values, float), np.asarray(values, float))
    distinct, at = np.unique(cost, axis=0, return_inverse=True)
    on = np.ones(len(distinct), bool)
    for i, row in enumerate(distinct):  # in lexical order, so that only earlier rows can dominate a row
        on[i] = not (distinct[:i][on[:i]] <= row).all(1).any()
    return on[at.ravel()]


def front_of(rows: list[Row], objectives: tuple[str, ...]) -> list[int]:
    """Indices of the rows on the front, sorted by the first objective. Rows without results are not on it."""
    good = [i for i, row in enumerate(rows) if not row.error]
    if not good:
        return []
    values = np.array([[rows[i].result[o] for o in objectives] for i in good])
    on = front(values, [OBJECTIVES[o].most for o in objectives])
    return sorted(itertools.compress(good, on), key=lambda i: [rows[i].result[o] for o in objectives])


def chosen(rows: list[Row], best: list[int], objectives: tuple[str, ...]) -> int | None:
    """The point of the front that is nearest to the best value of every objective; None for an empty front.

    Each objective is scaled from 0 to 1 over the front.
    """
    values = np.array([[rows[i].result[o] * (-1 if OBJECTIVES[o].most else 1) for o in objectives] for i in best])
    if not best:
        return None
    low, span = values.min(0), np.ptp(values, axis=0)
    return best[int(np.argmin(np.linalg.norm((values - low) / np.where(span > 0, span, 1), axis=1)))]


def differing(rows: list[Row], objectives: tuple[str, ...]) -> tuple[str, ...]:
    """The objectives whose values differ between points, so that a plot can show them."""
    return tuple(o for o in objectives if len({row.result[o] for row in rows if not row.error}) > 1)


def write(folder: Path, points: list[Shown], rows: list[Row], objectives: tuple[str, ...]) -> None:
    """Writes `points.csv`, `points.json`, and a plot of each pair of objectives as PNG and SVG.

    Each file is written completely or not at all. Objectives that are the same at all points are not plotted. Plots of
    an earlier sweep in the folder are removed.
    """
    on_front = front_of(rows, objectives)
    best, choice = set(on_front), chosen(rows, on_front, objectives)
    table = [
        {"point": p, "result": r.result, "error": r.error, "front": i in best, "chosen": i == choice}
        for i, (p, r) in enumerate(zip(points, rows, strict=True))
    ]
    write_atomically(folder / "points.json", (json.dumps(table, indent=1) + "\n").encode())
    write_atomically(folder / "points.csv", _csv(table).encode())
    drawn = set(itertools.combinations(differing(rows, objectives), 2))
    for x, y in itertools.permutations(OBJECTIVES, 2):
        figure = plot(points, rows, best, x, y) if (x, y) in drawn else None
        for kind in ("png", "svg"):
            file = folder / f"{x}-{y}.{kind}"
            if figure:
                write_atomically(file, _image(figure, kind))
            else:
                file.unlink(missing_ok=True)


def plot(points: list[Shown], rows: list[Row], best: set[int], x: str, y: str) -> Figure:
    """Draws all points by two objectives. Points of the front `best` are filled; a line is the front of these two.

    The points on the line are labelled with their design. `hover` makes every point show it in a browser.
    """
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    good = [i for i, row in enumerate(rows) if not row.error]
    for kind, of, colour, fill in (
        ("points", [i for i in good if i not in best], "tab:gray", "none"),
        (f"Pareto front: {', '.join(points[0])}", [i for i in good if i in best], "tab:blue", "tab:blue"),
    ):
        axes.plot([], [], "o", label=kind, color=colour, mfc=fill)
        for i in of:
            at = rows[i].result[x], rows[i].result[y]
            (dot,) = axes.plot([at[0]], [at[1]], "o", color=colour, mfc=fill)
            dot.set_gid(f"{MARK}{x}-{y}-{i} {_design(points[i])}: {x} {at[0]:,.6g}, {y} {at[1]:,.6g}")
    line = front_of(rows, (x, y))
    ends = sorted((rows[i].result[x], rows[i].result[y]) for i in line)
    where: Literal["pre", "post"] = "pre" if OBJECTIVES[x].most else "post"
    axes.step([p[0] for p in ends], [p[1] for p in ends], where=where, color="tab:blue", lw=1, label=f"of {x} and {y}")
    for i in line[:LABELS]:
        label, at = ", ".join(map(str, points[i].values())), (rows[i].result[x], rows[i].result[y])
        axes.annotate(label, at, xytext=(4, 4), textcoords="offset points", fontsize=6)
    axes.set(
        xlabel=f"{OBJECTIVES[x].title} ({OBJECTIVES[x].unit})", ylabel=f"{OBJECTIVES[y].title} ({OBJECTIVES[y].unit})"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def hover(svg: str) -> str:
    """The SVG of a `plot` with titles, so that every point shows its design under the mouse."""
    return re.sub(rf'<g id="{MARK}(\S+) ([^"]*)">', r'<g id="\1"><title>\2</title>', svg)


def _design(point: Shown) -> str:
    return ", ".join(f"{n}={v}" for n, v in point.items())


def _csv(table: list[dict]) -> str:
    names = list(dict.fromkeys(n for entry in table for n in entry["point"]))
    results = sorted({n for entry in table for n in entry["result"]})
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*names, *results, "front", "chosen", "error"])
    for entry in table:
        own = [entry["point"].get(n, "") for n in names] + [entry["result"].get(n, "") for n in results]
        out.writerow([*own, int(entry["front"]), int(entry["chosen"]), entry["error"]])
    return text.getvalue()


def _image(figure: Figure, kind: str) -> bytes:
    data = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "sweep"}):
        figure.savefig(data, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return hover(data.getvalue().decode()).encode() if kind == "svg" else data.getvalue()
