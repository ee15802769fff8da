"""Block diagrams drawn from emitted Verilog: modules, their contents and the data between them."""

import re
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

_NAME = r"(\\\S+ |[A-Za-z_][\w$]*)"
_WORD = re.compile(r"\\\S+ |(?<![\w$'])[A-Za-z_][\w$]*")
_PORT = re.compile(rf"^  (input|output) (?:\[(\d+):0\] )?{_NAME};", re.M)
_ASSIGN = re.compile(r"^  assign (.+?) = (.+);$", re.M)
_CELL = re.compile(rf"^  {_NAME}\s*{_NAME}\s*\(\n(.*?)^  \);", re.M | re.S)
_PIN = re.compile(rf"^    \.{_NAME}\((.*)\),?$", re.M)
_MEMORY = re.compile(r"^  reg \[(\d+):0\] \S+ \[(\d+):0\];", re.M)
# A memory is an instance whose sizes are parameters.
_RAM = re.compile(r"^  \S+ #\(\n    \.DEPTH\(32'd(\d+)\),\n.*?\.WIDTH\(32'd(\d+)\)\n", re.M | re.S)
_MOST = 5  # most kinds of memories in a box
_WIDE = 2  # signals with fewer bits are control, not data


@dataclass
class Module:
    """The parts of a module that the diagram shows.

    ports : name -> (input or output, bits) · assigns : signal -> signals of the expression that drives it
    cells : instance -> (module, {port: signals}) · memories : (words, bits) of each memory in it
    """

    ports: dict[str, tuple[str, int]]
    assigns: dict[str, set[str]] = field(default_factory=dict)
    cells: dict[str, tuple[str, dict[str, set[str]]]] = field(default_factory=dict)
    memories: list[tuple[int, int]] = field(default_factory=list)


def modules(verilog: str) -> dict[str, Module]:
    """The modules of Verilog that `hdl.emit` wrote."""
    out = {}
    for text in re.findall(r"^module .*?^endmodule", verilog, re.M | re.S):
        (name,) = (m[1].strip() for m in re.finditer(rf"^module {_NAME}", text))
        ports = {p.strip(): (way, int(high or 0) + 1) for way, high, p in _PORT.findall(text)}
        out[name] = m = Module(ports)
        for left, right in _ASSIGN.findall(text):
            for signal in _words(left):
                m.assigns.setdefault(signal, set()).update(_words(right))
        for kind, instance, pins in _CELL.findall(text):
            if kind.strip() in ("always", "initial"):
                continue
            m.cells[instance.strip()] = kind.strip(), {p.strip(): _words(x) for p, x in _PIN.findall(pins)}
        m.memories = [(int(words) + 1, int(bits) + 1) for bits, words in _MEMORY.findall(text)]
        m.memories += [(int(words), int(bits)) for words, bits in _RAM.findall(text)]
    return out


def edges(design: dict[str, Module], top: str) -> dict[tuple[str, str], int]:
    """(from, to) -> bits of the widest port on the way, without a register between.

    A stream or an AXI bus of the module itself is a node too: `k` for `k__payload`, `m_axi` for `m_axi_araddr`.
    """
    m = design[top]
    drives: dict[str, str] = {}
    for port, (way, bits) in m.ports.items():
        if way == "input" and bits >= _WIDE and _stream(port):
            drives[port] = _stream(port)
    for instance, (kind, pins) in m.cells.items():
        for port, signals in pins.items():
            if design[kind].ports[port][0] == "output" and design[kind].ports[port][1] >= _WIDE:
                drives |= dict.fromkeys(signals, instance)
    ends = [
        (instance, signals, design[kind].ports[port][1])
        for instance, (kind, pins) in m.cells.items()
        for port, signals in pins.items()
        if design[kind].ports[port][0] == "input" and design[kind].ports[port][1] >= _WIDE
    ]
    ends += [(_stream(p), {p}, bits) for p, (way, bits) in m.ports.items() if way == "output" and _stream(p)]
    found: dict[tuple[str, str], int] = {}
    for node, signals, bits in ends:
        if bits < _WIDE:
            continue
        for source in sorted({drives[s] for s in _before(m, signals, set(drives)) if s in drives} - {node}):
            found[source, node] = max(bits, found.get((source, node), 0))
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


def _before(m: Module, signals: set[str], stop: set[str]) -> set[str]:
    """`signals` and all signals that drive them combinationally, without going past those of `stop`."""
    seen, todo = set(), list(signals)
    while todo:
        s = todo.pop()
        if s not in seen:
            seen.add(s)
            todo += () if s in stop else m.assigns.get(s, ())
    return seen


def _stream(port: str) -> str:
    """The stream or AXI bus of a port; empty for a port by itself."""
    found = re.match(r"\w+?(?=__)|[mhs]_axi(?=_)", port)
    return found[0] if found else ""


def _words(text: str) -> set[str]:
    """The signals in an expression."""
    return {w.strip() for w in _WORD.findall(text)}
