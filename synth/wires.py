"""Reads the wires of a laid-out design from its DEF: lengths, capacitances, resistances, delays, and SPEF.

A wire is a graph: its nodes are points on a layer, its edges are pieces of metal and vias. Capacitance and resistance
of metal follow its length by a table per layer. The delay to a pin is Elmore's: the sum, over the edges from the driver
to the pin, of the edge's resistance times the capacitance behind it. An edge that closes a loop carries no current in
this sum; its capacitance counts.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

Point = tuple[str, int, int]  # layer, x, y
Pin = tuple[str, str]  # instance, pin; ("", "") is the pin of a port at the edge
Pad = tuple[str, int, int, int, int]  # layer and corners of a pin's shape

_NET = re.compile(r"-\s+(\S+)(.*?);", re.S)
_PIECE = re.compile(r"(?:ROUTED|NEW)\s+(\S+)((?:\s+\(\s*\S+\s+\S+\s*\))+)(?:\s+(?!NEW\b)(\w+))?")
_POINT = re.compile(r"\(\s*(\S+)\s+(\S+)\s*\)")


@dataclass(frozen=True)
class Metals:
    """Wires of a technology.

    metals : layer -> ohms and fF of a micrometre
    cuts : layer of a via's cut -> ohms of the via
    source : where the figures are from
    """

    metals: dict[str, tuple[float, float]]
    cuts: dict[str, float]
    source: str


@dataclass(frozen=True)
class Wire:
    """The wire of a net.

    lengths : micrometres by layer · vias : their number
    edges : pairs of nodes, with ohms and fF; half of the capacitance is at each end
    pins : node of each pin that the wire reaches
    open : pins that it does not reach
    """

    lengths: dict[str, float]
    vias: int
    nodes: int
    edges: tuple[tuple[int, int, float, float], ...]
    pins: dict[Pin, int]
    open: tuple[Pin, ...]

    @property
    def capacitance(self) -> float:
        """Capacitance of the whole wire (fF)."""
        return sum(c for *_, c in self.edges)

    def elmore(self, driver: Pin, loads: dict[Pin, float]) -> dict[Pin, float]:
        """Delay (ps) from `driver` to each other pin that the wire reaches. `loads` : fF of pins."""
        if driver not in self.pins:
            return {}
        behind: dict[int, float] = defaultdict(float)
        near: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for a, b, ohms, farads in self.edges:
            for node, other in ((a, b), (b, a)):
                behind[node] += farads / 2
                near[node].append((other, ohms))
        for pin, node in self.pins.items():
            behind[node] += loads.get(pin, 0.0)
        root = self.pins[driver]
        order, before = [root], {root: (root, 0.0)}
        for node in order:
            for other, ohms in near[node]:
                if other not in before:
                    before[other] = node, ohms
                    order.append(other)
        for node in reversed(order[1:]):
            behind[before[node][0]] += behind[node]
        at = {root: 0.0}
        for node in order[1:]:
            previous, ohms = before[node]
            at[node] = at[previous] + ohms * behind[node] / 1000
        return {pin: at[node] for pin, node in self.pins.items() if pin != driver and node in at}


def wires(design: str, pads: dict[str, dict[Pin, Pad]], metals: Metals, per_micron: int = 1000) -> dict[str, Wire]:
    """The wire of each net of a DEF's section NETS.

    design : text of the DEF; the name of a via is its lower metal, its cut and its upper metal, joined by `_`
    pads : the pins of each net · per_micron : the DEF's units in a micrometre
    """
    section = re.search(r"^NETS\b.*?^END NETS", design, re.S | re.M)
    found = dict(_NET.findall(section[0].partition(";")[2])) if section else {}
    return {net: _wire(found.get(net, ""), own, metals, per_micron) for net, own in pads.items()}


def _wire(text: str, pads: dict[Pin, Pad], metals: Metals, per_micron: int) -> Wire:
    segments, cuts = set(), set()
    for layer, points, via in _PIECE.findall(text):
        path = list(_points(points))
        segments |= {(layer, *sorted(ends)) for ends in zip(path, path[1:], strict=False) if ends[0] != ends[1]}
        if via:
            lower, cut, upper = via.split("_")
            cuts.add(((lower, *path[-1]), (upper, *path[-1]), cut))
    corners = {(layer, *p) for layer, *ends in segments for p in ends} | {p for a, b, _ in cuts for p in (a, b)}
    rows: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)  # by layer, axis and place on it
    for layer, *point in corners:
        for axis in (0, 1):
            rows[layer, axis, point[axis]].append((point[0], point[1]))
    pieces = set()  # between neighbours on a segment, so that metal drawn twice counts once
    for layer, (x1, y1), (x2, y2) in segments:
        row = rows[layer, 0, x1] if x1 == x2 else rows[layer, 1, y1]
        inner = sorted(p for p in row if x1 <= p[0] <= x2 and y1 <= p[1] <= y2)
        pieces |= {((layer, *a), (layer, *b)) for a, b in zip(inner, inner[1:], strict=False)}
    number = {point: i for i, point in enumerate(sorted(corners))}
    pins = {}
    for pin, (layer, x1, y1, x2, y2) in pads.items():
        inside = sorted(p for p in number if p[0] == layer and x1 <= p[1] <= x2 and y1 <= p[2] <= y2)
        number |= {p: number[inside[0]] for p in inside}  # the pin's own metal joins them
        if inside:
            pins[pin] = number[inside[0]]
    lengths: dict[str, float] = defaultdict(float)
    edges = []
    for a, b in sorted(pieces):
        microns = (abs(a[1] - b[1]) + abs(a[2] - b[2])) / per_micron
        lengths[a[0]] += microns
        ohms, farads = metals.metals[a[0]]
        edges.append((number[a], number[b], microns * ohms, microns * farads))
    edges += [(number[a], number[b], metals.cuts[cut], 0.0) for a, b, cut in sorted(cuts)]
    part = _parts(len(number), edges)
    whole = max(sorted(set(part)), key=[part[n] for n in pins.values()].count, default=0)
    pins = {pin: n for pin, n in pins.items() if part[n] == whole}
    return Wire(dict(lengths), len(cuts), len(number), tuple(edges), pins, tuple(sorted(pads.keys() - pins.keys())))


def _points(text: str) -> Iterator[tuple[int, int]]:
    """Points of a path; `*` repeats a coordinate."""
    x = y = ""
    for a, b in _POINT.findall(text):
        x, y = x if a == "*" else a, y if b == "*" else b
        yield int(x), int(y)


def _parts(nodes: int, edges: list) -> list[int]:
    """The part of the graph that each node is in, by the least of its nodes."""
    part = list(range(nodes))

    def root(node: int) -> int:
        while part[node] != node:
            part[node] = part[part[node]]
            node = part[node]
        return node

    for a, b, *_ in edges:
        one, other = sorted((root(a), root(b)))
        part[other] = one
    return [root(n) for n in range(nodes)]


def spef(top: str, named: dict[str, tuple[Wire, dict[Pin, str]]]) -> str:
    """The wires as SPEF.

    named : name of each net -> its wire, and for each pin its name and direction there, such as `u3:A I`; a name
        without a colon is a port
    """
    lines = [
        '*SPEF "IEEE 1481-1998"',
        f'*DESIGN "{top}"',
        *('*DATE ""', '*VENDOR "OpenVRex"', '*PROGRAM "vrex size layout"', '*VERSION ""', '*DESIGN_FLOW ""'),
        *("*DIVIDER /", "*DELIMITER :", "*BUS_DELIMITER []", "*T_UNIT 1 PS", "*C_UNIT 1 FF", "*R_UNIT 1 OHM"),
        "*L_UNIT 1 HENRY",
        "",
    ]
    for net, (wire, pins) in named.items():
        at = {wire.pins[pin]: text.split()[0] for pin, text in pins.items() if pin in wire.pins}
        name = [at.get(i, f"{net}:{i}") for i in range(wire.nodes)]
        charge = [0.0] * wire.nodes
        for a, b, _, farads in wire.edges:
            charge[a] += farads / 2
            charge[b] += farads / 2
        lines += [f"*D_NET {net} {wire.capacitance:.6g}", "*CONN"]
        lines += [f"{'*I' if ':' in text else '*P'} {text}" for pin, text in pins.items() if pin in wire.pins]
        lines.append("*CAP")
        lines += [f"{i + 1} {name[i]} {c:.6g}" for i, c in enumerate(charge) if c]
        lines.append("*RES")
        lines += [f"{i + 1} {name[a]} {name[b]} {ohms:.6g}" for i, (a, b, ohms, _) in enumerate(wire.edges) if ohms]
        lines += ["*END", ""]
    return "\n".join(lines)
