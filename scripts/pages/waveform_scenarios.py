"""Waveforms of the data sheets: short scenarios of units on Verilator, drawn as SVG in the colours of the page."""

from dataclasses import asdict, dataclass, field
from functools import cache
from html import escape
from itertools import groupby
from typing import Any

from openvrex.hdl.emit import emit, params_of
from openvrex.hdl.params import preset
from openvrex.tb.library.runner import Run

PRESET = "tiny"
_STEP, _ROW, _LEFT = 25, 17, 84  # a cycle's width, a signal's height, room for names


@dataclass(frozen=True)
class Scenario:
    """The input of a unit, and the signals that the picture shows.

    says : the caption · shown : stream -> fields of its payload, `field[lane]` of an array or nothing of a
        payload without fields, with a format such as ":x"
    starts : stream -> cycle before which none of its beats is offered
    latency : cycles of the table memory, from a request to its first item; all its items are 0 at first
    """

    says: str
    beats: dict[str, list[dict]]
    shown: dict[str, list[str]]
    ports: dict[str, int] = field(default_factory=dict)
    stall: dict[str, float] = field(default_factory=dict)
    first: int = 0
    cycles: int = 34
    starts: dict[str, int] = field(default_factory=dict)
    latency: int = 3


def _frame(*hashes: int) -> list[dict]:
    last = len(hashes) - 1
    return [{"op": 0, "ctx": 0, "token": i, "hash": h, "last": int(i == last)} for i, h in enumerate(hashes)]


def _append(token: int, cluster: int) -> dict:
    return {"op": 0, "ctx": 0, "cluster": cluster, "is_new": int(token == cluster), "clusters": 2, "token": token}


def _row(scores: list[int], width: int) -> list[dict]:
    words = [scores[i : i + width] for i in range(0, len(scores), width)]
    return [{"scores": w, "keep": width - 1, "last": int(w is words[-1])} for w in words]


def _selection(addr: int, mask: int, row_last: int, set_last: int) -> dict:
    return {"addr": addr, "mask": mask, "row_last": row_last, "set_last": set_last}


SCENARIOS = {
    "hcu": Scenario(
        "Two frames, Th_hd 4. Of the first frame, keys 0 and 2 open clusters 0 and 1, which keys 1 and 3 join at "
        "distances of 1 and 2. For the second frame the HCU reads the number of clusters (item 0) and the hash bits of "
        "both clusters (item 3) from memory; key 0 joins cluster 1 at a distance of 1, and key 1 opens cluster 2. "
        "`o` stalls now and then: its beat holds until it is taken.",
        {"i": _frame(0x00FF, 0x00FE, 0xFF00, 0xFF03) + _frame(0xFF01, 0x0FF0)},
        {
            "i": ["token", "hash:04x", "last"],
            "o": ["token", "cluster", "is_new", "clusters"],
            "m_ask": ["item", "index", "more"],
            "m_data": [":04x"],
            "m_put": ["item", "index", "data:04x"],
        },
        ports={"th_hd": 4},
        stall={"o": 0.3},
        cycles=40,
    ),
    "wtu": Scenario(
        "The last four of five readings of a row of eight scores, each cluster of one token, at a ratio of a half. "
        "Three readings find a digit of the crossing code each, and the unit walks bins between them. The last "
        "reading weighs the equal code in the first word before it takes the word, and selects clusters 1, 2 and 5.",
        {
            "c": [{"counts": [1] * 4, "first": int(i == 0), "keep": 1} for i in range(2)],
            "i": 5 * _row([900, 1000, 990, 800, 700, 1010, 850, 600], 4),
        },
        {"i": [*(f"scores[{i}]" for i in range(4)), "last"], "o": ["addr", "mask:04b", "last", "clusters", "tokens"]},
        ports={"ratio": 1 << 15},
        first=34,
        cycles=36,
    ),
    "cluster_set": Scenario(
        "Two rows of a query block, {1, 6} and {1, 8, 9}; the second ends the set, whose union leaves in ascending "
        "order. Then a set of one row without a cluster, which waits until the first is listed. The "
        "unit cleared its memory before.",
        {
            "i": [
                _selection(0, 0b0010, 0, 0),
                _selection(1, 0b0100, 1, 0),
                _selection(2, 0b0011, 0, 1),
                _selection(0, 0b0010, 1, 1),
                _selection(0, 0, 1, 1),
            ]
        },
        {"i": ["addr", "mask:04b", "row_last", "set_last"], "o": ["cluster", "last", "empty"]},
        first=6,
        cycles=20,
    ),
    "kvmu": Scenario(
        "The last of 19 entries of two clusters, a ring of 16. The KVMU reads the place in the ring (item 1), the row "
        "and the count of the cluster (items 5 and 4) and the cluster of the oldest entry (item 2). It moves that "
        "entry home (`x`) and writes the items back before it replies on `w`. Then the set {0, 1} is fetched: both "
        "rows are read, and `b` has what is at home, nothing that is still in the ring.",
        {
            "a": [_append(i, i % 2) for i in range(19)],
            "f": [{"ctx": 0, "cluster": i, "last": i, "empty": 0} for i in range(2)],
        },
        {
            "a": ["token", "cluster"],
            "w": ["token", "device:x", "home:x"],
            "x": ["src:x", "dst:x"],
            "f": ["cluster", "last"],
            "b": ["addr:x", "bytes", "last"],
            "m_ask": ["item", "index", "more"],
            "m_put": ["item", "index"],
        },
        ports={"device_base": 0, "home_base": 0x10000, "blocks": 256},
        starts={"f": 300},
        first=279,
        cycles=34,
    ),
}


@cache
def log(unit: str) -> dict[str, list]:
    """The streams of a unit in every cycle: [valid, ready, payload]. Raises `BenchError` as every bench."""
    scenario = {k: v for k, v in asdict(SCENARIOS[unit]).items() if k not in ("says", "shown")}
    made = emit(unit, params_of(unit, preset(PRESET)))
    return Run(made, "bench_scenario", "scenario", scenario | {"unit": unit, "preset": PRESET})()


def picture(unit: str) -> str:
    """The waveform of a unit's scenario with its caption, as HTML for a page of Markdown."""
    scenario = SCENARIOS[unit]
    return f"{scenario.says}\n\n{draw(scenario, log(unit))}"


def draw(scenario: Scenario, streams: dict[str, list]) -> str:
    """The SVG: valid, ready and the chosen fields of every stream; cycles in which a beat moves are shaded."""
    rows: list[str] = []
    y = _ROW + 4
    for name, fields in scenario.shown.items():
        cycles, top = streams[name], y
        for i, (valid, ready, _) in enumerate(cycles):
            if valid and ready:
                height = _ROW * (2 + len(fields))
                rows.append(_rect(i, top, height, "fill:var(--md-accent-fg-color,#526cfe);opacity:.16"))
        for index, what in enumerate(("valid", "ready")):
            rows += [_label(f"{name}.{what}", y), _line([c[index] for c in cycles], y)]
            y += _ROW
        for f in fields:
            key, _, base = f.partition(":")
            rows += [_label(key, y, 12), *_cells(cycles, key, base, y)]
            y += _ROW
        y += 8
    width = _LEFT + _STEP * scenario.cycles + 4
    middle = 'y="12" text-anchor="middle" opacity=".6"'
    marks = "".join(
        f'<text x="{_LEFT + _STEP * i + _STEP / 2:g}" {middle}>{scenario.first + i + 1}</text>'
        for i in range(0, scenario.cycles, 2)
    )
    style = f"width:{width}px;max-width:none;font:9px monospace;fill:currentColor"
    svg = f'<svg viewBox="0 0 {width} {y}" style="{style}" role="img">{marks}{"".join(rows)}</svg>'
    return f'<div style="overflow-x:auto">{svg}</div>'


def _rect(cycle: int, y: int, height: int, style: str) -> str:
    return f'<rect x="{_LEFT + _STEP * cycle}" y="{y}" width="{_STEP}" height="{height}" style="{style}"/>'


def _label(text: str, y: int, indent: int = 0) -> str:
    return f'<text x="{indent}" y="{y + 12}">{escape(text)}</text>'


def _line(values: list[int], y: int) -> str:
    """A signal of one bit."""
    points = []
    for i, v in enumerate(values):
        level = y + (4 if v else _ROW - 4)
        points += [f"{_LEFT + _STEP * i},{level}", f"{_LEFT + _STEP * (i + 1)},{level}"]
    return f'<polyline points="{" ".join(points)}" style="fill:none;stroke:currentColor"/>'


def _cells(cycles: list, key: str, base: str, y: int) -> list[str]:
    """The values of a field: one cell for each beat, from the cycle of its offer to the cycle of its transfer."""
    beats, number = [], 0
    for valid, ready, payload in cycles:
        beats.append((number, _value(payload, key, base)) if valid else None)
        number += valid and ready
    out, at = [], 0
    for beat, cells in groupby(beats):
        n = len(list(cells))
        if beat:
            x, width, text = _LEFT + _STEP * at, _STEP * n, beat[1]
            box = f'x="{x + 1}" y="{y + 2}" width="{width - 2}" height="{_ROW - 4}" rx="3"'
            out.append(f'<rect {box} style="fill:none;stroke:currentColor;opacity:.5"/>')
            size = f"font-size:{min(9, width / max(1, len(text)) * 1.55):.1f}px"
            out.append(f'<text x="{x + width / 2:g}" y="{y + 12}" text-anchor="middle" style="{size}">{text}</text>')
        at += n
    return out


def _value(payload: Any, key: str, base: str) -> str:
    name, _, lane = key.partition("[")
    value = payload[name] if name else payload
    value = value[int(lane[:-1])] if lane else value
    return f"{value:{base}}"
