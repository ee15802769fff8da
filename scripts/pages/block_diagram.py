"""Block diagrams drawn from Verilog: modules, their contents and the data between them."""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from openvrex.tb.library.yosys import run_yosys

_MOST = 5  # most kinds of memories in a box
_WIDE = 2  # signals with fewer bits are control, not data
_KEEPS = ("$dff", "$sdff", "$adff", "$mem", "$dlatch")  # beginnings of Yosys's registers and memories


@dataclass
class Module:
    """The parts of a module that the diagram shows. A bit of a signal is a number.

    ports : name -> (input or output, its bits) · drives : bit -> bits from which logic computes it
    cells : instance -> (module, {port: bits}) · memories : (words, bits) of each memory in it
    """

    ports: dict[str, tuple[str, list[int]]]
    drives: dict[int, list[int]] = field(default_factory=dict)
    cells: dict[str, tuple[str, dict[str, list[int]]]] = field(default_factory=dict)
    memories: list[tuple[int, int]] = field(default_factory=list)


def modules(verilog: str) -> dict[str, Module]:
    """The modules of Verilog, as Yosys reads them."""
    with tempfile.TemporaryDirectory() as tmp:
        Path(tmp, "read.v").write_text(verilog)
        run_yosys([f"read_verilog {tmp}/read.v", "proc -noopt", f"write_json {tmp}/read.json"])
        found = json.loads(Path(tmp, "read.json").read_text())["modules"]
    return {name: _module(of, found) for name, of in found.items()}


def _module(of: dict, others: dict) -> Module:
    """A module of Yosys's JSON. One with parameters is a memory's, and its instances are memories."""
    out = Module({n: (port["direction"], port["bits"]) for n, port in of["ports"].items()})
    out.memories = [(m["size"], m["width"]) for m in of.get("memories", {}).values()]
    for name, cell in of["cells"].items():
        pins, kind = cell["connections"], cell["type"]
        if "DEPTH" in cell["parameters"] and kind in others:
            words, width = (int(cell["parameters"][n], 2) for n in ("DEPTH", "WIDTH"))
            out.memories.append((words, width))
        elif kind in others:
            out.cells[name] = kind, pins
        elif not kind.startswith(_KEEPS):
            into = [bit for pin, bits in pins.items() if cell["port_directions"][pin] == "input" for bit in bits]
            for pin, bits in pins.items():
                if cell["port_directions"][pin] == "output":
                    out.drives |= dict.fromkeys(bits, into)
    return out


def _bundles(ports: dict[str, tuple[str, list[int]]]) -> dict[tuple[str, str], list[str]]:
    """(name, direction) -> ports that carry its data: those of a stream or an AXI bus, or one port by itself."""
    out: dict[tuple[str, str], list[str]] = {}
    streams = sorted((n.removesuffix("_valid") for n in ports if n.endswith("_valid")), key=len, reverse=True)
    for name, (way, bits) in ports.items():
        of = next((s for s in streams if name.startswith(f"{s}_")), "")
        if not of and name[1:].startswith("_axi_"):
            of = name[:5]
        if name not in (f"{of}_valid", f"{of}_ready") and (of or len(bits) >= _WIDE):
            out.setdefault((of or name, way), []).append(name)
    return out


def edges(design: dict[str, Module], top: str) -> dict[tuple[str, str], int]:
    """(from, to) -> bits of the widest stream or port on the way, without a register between.

    A stream or an AXI bus of the module itself is a node too: `k` for `k_hash`, `m_axi` for `m_axi_araddr`.
    """
    m = design[top]
    drives: dict[int, str] = {}
    ends: list[tuple[str, list[int]]] = []
    for (of, way), names in _bundles(m.ports).items():
        bits = [bit for name in names for bit in m.ports[name][1]]
        if way == "input" and [of] != names:
            drives |= dict.fromkeys(bits, of)
        elif way == "output" and [of] != names:
            ends.append((of, bits))
    for instance, (kind, pins) in m.cells.items():
        for (_, way), names in _bundles(design[kind].ports).items():
            bits = [bit for name in names for bit in pins.get(name, ())]
            if way == "output":
                drives |= dict.fromkeys(bits, instance)
            else:
                ends.append((instance, bits))
    found: dict[tuple[str, str], int] = {}
    for node, bits in ends:
        for source in sorted({drives[b] for b in _before(m, bits, drives) if b in drives} - {node}):
            found[source, node] = max(len(bits), found.get((source, node), 0))
    return found


def draw(verilog: str, top: str, notes: dict[str, str] | None = None) -> Figure:
    """Draw `top` from left to right: one box for each instance with its memories, and the data between the boxes.

    notes : instance -> a line of text under its name, such as the area
    """
    design = modules(verilog)
    m, links = design[top], edges(design, top)
    columns = _columns([*m.cells, *dict.fromkeys(n for pair in links for n in pair if n not in m.cells)], links)
    texts = {
        n: _text(design, m.cells[n][0], n, (notes or {}).get(n)) if n in m.cells else n for c in columns for n in c
    }
    heights = {n: 0.5 + 0.32 * texts[n].count("\n") for n in texts}
    tall = max(sum(heights[n] + 0.5 for n in c) for c in columns)
    figure = Figure(figsize=(2.4 * len(columns), max(1.5, 0.62 * tall)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    at: dict[str, tuple[float, float, float]] = {}
    for place, column in enumerate(columns):
        y = (tall + sum(heights[n] + 0.5 for n in column)) / 2
        for n in column:
            y -= heights[n] + 0.25
            at[n] = 3.4 * place, y, heights[n]
            y -= 0.25
    for n, (x, y, h) in at.items():
        inside = n in m.cells
        style = "round,pad=0,rounding_size=.1" if inside else "round,pad=0,rounding_size=.25"
        face, edge = ("#eef4fb", "#3b6ea5") if inside else ("#f6f6f6", "#999999")
        axes.add_patch(FancyBboxPatch((x, y), 2.2, h, boxstyle=style, facecolor=face, edgecolor=edge))
        axes.text(x + 1.1, y + h / 2, texts[n], ha="center", va="center", fontsize=8)
    below, above = 0, 0  # number of tracks in use
    color, width = "#555555", 0.9
    for k, ((a, b), bits) in enumerate(links.items()):
        (xa, ya, ha), (xb, yb, hb) = at[a], at[b]
        start, end = (xa + 2.2, ya + ha / 2), (xb, yb + hb / 2)
        if 0 < xb - xa < 4:
            label = start[0] + 0.4 * (end[0] - start[0]), start[1] + 0.4 * (end[1] - start[1])
        else:  # go around the boxes between: forward on a track below, back on a track above
            if xb > xa:
                below += 1
                track = -0.4 * below
            else:
                above += 1
                track = tall + 0.4 * above
            left, right = start[0] + 0.15 + 0.08 * (k % 7), end[0] - 0.7 + 0.08 * (k % 7)
            xs, ys = [start[0], left, left, right, right], [start[1], start[1], track, track, end[1]]
            axes.plot(xs, ys, color=color, linewidth=width)
            start, label = (right, end[1]), ((left + right) / 2, track)
        axes.annotate(
            "", end, start, arrowprops=dict(arrowstyle="->", shrinkA=0, shrinkB=0, color=color, linewidth=width)
        )
        axes.text(*label, f"{bits}", fontsize=7, color=color, ha="center", va="bottom")
    axes.set_xlim(-0.2, 3.4 * len(columns) - (0.3 if above else 1))
    axes.set_ylim(-0.4 * below - 0.2, tall + 0.4 * above + 0.2)
    figure.set_figheight(max(1.5, 0.62 * (tall + 0.4 * (below + above))))
    return figure


def _text(design: dict[str, Module], module: str, name: str, note: str | None) -> str:
    """The text of a box: name, note and the largest memories inside."""
    sizes: dict[tuple[int, int], int] = {}

    def walk(kind: str) -> None:
        for size in design[kind].memories:
            sizes[size] = sizes.get(size, 0) + 1
        for below, _ in design[kind].cells.values():
            walk(below)

    walk(module)
    largest = sorted(sizes.items(), key=lambda held: (-held[0][0] * held[0][1] * held[1], held[0]))
    held = [f"{n} x " * (n > 1) + f"{words:,} x {bits} bit" for (words, bits), n in largest[:_MOST]]
    more = [f"and {len(largest) - _MOST} smaller"] if len(largest) > _MOST else []
    return "\n".join([name, *([note] if note else []), *held, *more])


def _columns(nodes: list[str], links: dict[tuple[str, str], int]) -> list[list[str]]:
    """Nodes by the longest path to them; links that close a cycle do not count."""
    after: dict[str, list[str]] = {n: [b for a, b in links if a == n] for n in nodes}
    order, forward = [], set()  # nodes in reverse order; links that close no cycle
    seen: set[str] = set()
    open_: set[str] = set()

    def walk(n: str) -> None:
        seen.add(n)
        open_.add(n)
        for b in after[n]:
            if b not in open_:
                forward.add((n, b))
            if b not in seen:
                walk(b)
        open_.remove(n)
        order.append(n)

    sources = [n for n in nodes if not any(b == n for _, b in links)]
    for n in [*sources, *nodes]:
        if n not in seen:
            walk(n)
    depth = dict.fromkeys(nodes, 0)
    for n in reversed(order):
        for b in after[n]:
            if (n, b) in forward:
                depth[b] = max(depth[b], depth[n] + 1)
    last = max(depth.values())
    ends = {b for _, b in links} - {a for a, _ in links}
    depth |= dict.fromkeys(ends, last)  # outputs of the module stand in one column
    return [[n for n in nodes if depth[n] == d] for d in range(last + 1) if d in depth.values()]


def _before(m: Module, bits: Iterable[int], stop: dict[int, str]) -> set[int]:
    """`bits` and all bits from which logic computes them, without going past those of `stop`."""
    seen: set[int] = set()
    todo = list(bits)
    while todo:
        bit = todo.pop()
        if bit not in seen:
            seen.add(bit)
            todo += () if bit in stop else m.drives.get(bit, ())
    return seen
