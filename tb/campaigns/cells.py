"""Names the cells of a unit's netlist by its structure, so that renames, comments and moves change no name.

"$and 2.9f3c01a7" is an AND. The digest tells it from all other cells by what surrounds it, here at most two cells away.
Names of signals and modules, widths written otherwise, or places in a file are not in it. "+1" is the next one of cells
that are alike.
"""

import hashlib
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.tb.library.yosys import run_yosys

READ = ("read_verilog {top}.v", "hierarchy -top {top}", "proc -norom", "opt_expr", "wreduce", "opt_clean -purge")
_SPAN = re.compile(r"(\d+)\.(\d+)-(\d+)\.(\d+)$")
DEPTH = 6  # cells that differ no nearer than this are alike


@dataclass
class Cell:
    """A cell of a netlist.

    sources : places in the Verilog
    pins : port -> its bits, which are numbers of nets, or constants
    labels : by distance, digests of the cell and of what is at most that far from it
    """

    module: str
    name: str
    type: str
    sources: list[str]
    outputs: frozenset[str]
    pins: dict[str, list]
    labels: list[str] = field(default_factory=list)


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()


def read(emitted: Emitted) -> list[str]:
    """Commands of Yosys that read a unit's Verilog as word-level cells, which are named after its file."""
    return [c.format(top=emitted.top) for c in READ]


def cells(emitted: Emitted, module: str = "") -> list[Cell]:
    """All cells of a unit's netlist, or of one module of it, with their labels."""
    with tempfile.TemporaryDirectory() as tmp:
        emitted.write(Path(tmp))
        run_yosys([*read(emitted), "write_json netlist"], Path(tmp))
        modules = json.loads(Path(tmp, "netlist").read_text())["modules"]
    return [cell for name, m in modules.items() if name == (module or name) for cell in _labelled(name, m)]


def _labelled(name: str, module: dict) -> list[Cell]:
    found, own = [], []
    for cell, c in module["cells"].items():
        outputs = frozenset(p for p, way in c["port_directions"].items() if way == "output")
        found.append(Cell(name, cell, c["type"], c["attributes"].get("src", "").split("|"), outputs, c["connections"]))
        # Of an instance, its type and its ports are names.
        sizes = {k: v for k, v in c["parameters"].items() if k != "MEMID"}
        found[-1].type = c["type"] if c["type"][0] == "$" and not c["type"].startswith("$paramod") else "instance"
        own.append((found[-1].type, sorted(sizes.items())))
    # Where each bit comes from, and where it goes: (number of the cell, port, place in it).
    drivers, readers = {}, defaultdict(list)
    for k, cell in enumerate(found):
        for port, bits in cell.pins.items():
            pin = port if cell.type != "instance" else (port in cell.outputs, len(bits))
            for place, bit in enumerate(bits):
                if port in cell.outputs:
                    drivers[bit] = k, pin, place
                else:
                    readers[bit].append((k, pin, place))
    edge = {}
    for port in module["ports"].values():
        for place, bit in enumerate(port["bits"]):
            edge[bit] = port["direction"], len(port["bits"]), place
    labels = [_digest(*what, sorted(len(b) for b in c.pins.values())) for what, c in zip(own, found, strict=True)]
    for depth in range(DEPTH + 1):
        for cell, label in zip(found, labels, strict=True):
            cell.labels.append(label)
        if depth == DEPTH:
            break

        def far(ends: Iterable[tuple]) -> list[tuple]:
            return [(labels[k], *rest) for k, *rest in ends]  # noqa: B023 - called in this round

        around = []
        for cell in found:
            pins = []
            for port, bits in sorted(cell.pins.items()):
                for bit in bits:
                    ends = readers[bit] if port in cell.outputs else [drivers[bit]] if bit in drivers else []
                    text = bit if isinstance(bit, str) else ""
                    pins.append((sorted(map(repr, far(ends))), edge.get(bit), text))
            around.append(sorted(map(repr, pins)) if cell.type == "instance" else pins)
        labels = [_digest(label, pins) for label, pins in zip(labels, around, strict=True)]
    return found


def span(sources: Iterable[str]) -> tuple[int, ...]:
    """First line and column of a cell in the source, and last line and the column behind it."""
    # Places in the source list declarations of wires first; the cell's own place is the largest one.
    spans = [tuple(map(int, found[0])) for found in map(_SPAN.findall, sources) if found]
    return max(spans, key=lambda s: (s[0], s[2], s[3] - s[1]), default=(0, 0, 0, 0))


def shown(verilog: str, span: tuple[int, ...]) -> str:
    """A cell's Verilog in one line, of an instance without its ports; empty if Yosys made the cell."""
    first, left, last, right = span
    if not last:
        return ""
    lines = verilog.splitlines()[first - 1 : last]
    lines[-1] = lines[-1][: right - 1]
    return " ".join(" ".join([lines[0][left - 1 :], *lines[1:]]).split()).partition(" ( .")[0]


def named(emitted: Emitted, module: str = "") -> dict[str, Cell]:
    """All cells of a unit's netlist, or of one module of it, by their names."""
    found = cells(emitted, module)
    found.sort(key=lambda c: (c.module, span(c.sources)))
    counts = [Counter((c.type, c.labels[depth]) for c in found) for depth in range(DEPTH + 1)]
    alike: Counter[str] = Counter()
    out = {}
    for c in found:
        depth = next((d for d in range(DEPTH) if counts[d][c.type, c.labels[d]] == 1), DEPTH)
        name = f"{c.type} {depth}.{c.labels[depth]}"
        out[f"{name}+{alike[name]}" if alike[name] else name] = c
        alike[name] += 1
    return out
