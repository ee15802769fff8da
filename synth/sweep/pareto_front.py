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
from matplotlib.transforms import Bbox

from openvrex.golden.atomic_files import write_atomically
from openvrex.synth.sweep.database import Row
from openvrex.synth.sweep.point_costs import OBJECTIVES

Shown = dict[str, int | float | str]  # a point as `points.named` shows it
MARK = "sweep point "  # begins the SVG ids that `hover` turns into titles
CHOSEN = "#c0392b"
SIDES = (  # of a point, for its label: points to the right and up, and which end of the text is there
    *((5, 5, "left", "bottom"), (5, -5, "left", "top"), (-5, 5, "right", "bottom"), (-5, -5, "right", "top")),
    *((8, 0, "left", "center"), (-8, 0, "right", "center"), (0, 8, "center", "bottom"), (0, -8, "center", "top")),
)


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
        figure = plot(points, rows, best, x, y, choice) if (x, y) in drawn else None
        for kind in ("png", "svg"):
            file = folder / f"{x}-{y}.{kind}"
            if figure:
                write_atomically(file, _image(figure, kind))
            else:
                file.unlink(missing_ok=True)


def plot(points: list[Shown], rows: list[Row], best: set[int], x: str, y: str, choice: int | None = None) -> Figure:
    """Draws all points by two objectives. Points of the front `best` are filled, and the chosen one has a ring. A line
    is the front of these two.

    The chosen point and those on the line are labelled with their design, where there is room for it. `hover` makes
    every point show its design in a browser.
    """
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
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
    if choice is not None:
        at = rows[choice].result[x], rows[choice].result[y]
        axes.plot([at[0]], [at[1]], "o", label=f"chosen: {_design(points[choice])}", color=CHOSEN, ms=13, mfc="none")
    axes.set(
        xlabel=f"{OBJECTIVES[x].title} ({OBJECTIVES[x].unit})", ylabel=f"{OBJECTIVES[y].title} ({OBJECTIVES[y].unit})"
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower left", frameon=False)
    wanted = list(dict.fromkeys([*([] if choice is None else [choice]), *line]))
    dots = [(rows[i].result[x], rows[i].result[y]) for i in good]
    _label(figure, {i: (rows[i].result[x], rows[i].result[y]) for i in wanted}, points, dots)
    return figure


def _label(figure: Figure, wanted: dict[int, tuple[float, float]], points: list[Shown], dots: list) -> None:
    """Labels the points `wanted` with their values, each on the first of eight sides where it covers nothing."""
    axes = figure.axes[0]
    figure.draw_without_rendering()  # from here on, places on the axes are known
    taken = [Bbox.from_bounds(px - 3, py - 3, 6, 6) for px, py in axes.transData.transform(dots)]
    for i, at in wanted.items():
        text = ", ".join(map(str, points[i].values()))
        for dx, dy, ha, va in SIDES:
            label = axes.annotate(
                text, at, xytext=(dx, dy), textcoords="offset points", fontsize=7, ha=ha, va=va, in_layout=False
            )
            box = label.get_window_extent()
            inside = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()


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
