"""Finds axes of a sweep that do not change the results, and warns of wrong conclusions from equal numbers."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

from openvrex.golden.function_params import ParamError
from openvrex.synth.sweep.database import Row
from openvrex.synth.sweep.point_costs import OBJECTIVES
from openvrex.synth.sweep.points import Axis, Point, value

# Sizes whose values give equal results once they exceed what the trace fills: the result that says so, what it counts.
FILLED = {"clusters": ("trace.clusters", "clusters"), "recent": ("trace.keys", "keys")}


def unread(axes: tuple[Axis, ...], points: Iterable[Point], key: Callable[[Point], str]) -> list[Axis]:
    """The axes that no objective reads. This is known before a run: the key of a point's task stays the same.

    key : key of a point's task; raises `ParamError` for a point that is no design
    """

    def keys(around: list[Point]) -> list[str]:
        """Keys of the points that are designs."""
        found = []
        for point in around:
            with suppress(ParamError):
                found.append(key(point))
        return found

    base = next((point for point in points if keys([point])), None)
    own = {a.name: keys([base | {a.name: v} for v in a.values]) for a in axes} if base else {}
    return [a for a in axes if len(own.get(a.name, [])) > 1 and len(set(own[a.name])) == 1]


def unchanged(axes: tuple[Axis, ...], points: list[Point], rows: list[Row], objectives: tuple[str, ...]) -> list[Axis]:
    """The axes along which no objective changed, over all points that differ in that axis alone."""
    out = []
    for a in axes:
        alike: dict[tuple, list[tuple]] = defaultdict(list)  # points that differ in this axis alone
        for point, row in zip(points, rows, strict=True):
            if not row.error:
                others = tuple(v for n, v in point.items() if n != a.name)
                alike[others].append(tuple(row.result[o] for o in objectives))
        groups = [found for found in alike.values() if len(found) > 1]
        if groups and all(len(set(found)) == 1 for found in groups):
            out.append(a)
    return out


def unfilled(axes: tuple[Axis, ...], rows: list[Row]) -> list[tuple[Axis, list[str], str]]:
    """Axes with several values that exceed what the trace fills: the axis, these values, and what the trace fills."""
    out = []
    for a in axes:
        result, what = FILLED.get(a.name.rpartition(".")[2], ("", ""))
        reached = [row.result[result] for row in rows if result in row.result]
        sizes = [(v, value(v)) for v in a.values]
        above = [v for v, n in sizes if reached and not isinstance(n, str) and n >= max(reached)]
        if len(above) > 1:
            out.append((a, above, f"{max(reached):,.0f} {what}"))
    return out


def warnings(axes: tuple[Axis, ...], points: list[Point], rows: list[Row], objectives: tuple[str, ...]) -> list[str]:
    """A line for each axis, or for values of an axis, that the results do not tell apart."""
    short = unfilled(axes, rows)
    timed = ", ".join(o for o in objectives if OBJECTIVES[o].timed)
    out = [
        f"{a.given}={','.join(above)}: {timed} cannot tell these apart, as no table of the trace has more than {most}; "
        "give a longer --trace (docs/sweeps.md)" + (" or a smaller --th-hd" if "clusters" in most else "")
        for a, above, most in short
    ]
    known = [a for a, above, _ in short if len(above) == len(a.values)]
    same = [a for a in unchanged(axes, points, rows, objectives) if a not in known]
    return out + [f"{a.given}: none of {', '.join(objectives)} changed along this axis" for a in same]
