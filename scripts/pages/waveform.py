"""Waveform pictures of a unit's streams from a simulation."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from openvrex.hdl.emit import Emitted
from openvrex.hdl.ports import Stream, streams
from openvrex.tb.library.activity_recorder import recordings

CYCLES = 48  # in a picture


def shown(emitted: Emitted) -> list[Stream]:
    """The streams of a unit, those that it takes first."""
    return sorted(streams(emitted.manifest["ports"]).values(), key=lambda s: not s.given)


def record(emitted: Emitted, play: Callable[[Emitted], object]) -> dict[str, np.ndarray]:
    """The samples of the unit's streams in every cycle while `play` runs it: name of a port -> [cycles, bits].

    The bits of a payload stand under "<stream>_payload".
    """
    wanted: dict[str, str] = {}  # bit of a port -> where it goes
    for s in shown(emitted):
        wanted |= {f"{s.name}_{word}": f"{s.name}_{word}" for word in ("valid", "ready")}
        for port in s.payload:
            bits = range(port["width"])
            names = [f"{port['name']}[{i}]" for i in bits] if len(bits) > 1 else [port["name"]]
            wanted |= dict.fromkeys(names, f"{s.name}_payload")
    got = recordings(emitted, {emitted.top: list(wanted)}, play)[emitted.top][0]
    samples = np.unpackbits(got.samples, axis=1, bitorder="little")
    out: dict[str, list[np.ndarray]] = {}
    for name, into in wanted.items():
        out.setdefault(into, []).append(samples[:, got.columns[name]])
    return {name: np.stack(columns, 1) for name, columns in out.items()}


def draw(emitted: Emitted, samples: dict[str, np.ndarray]) -> Figure:
    """Draw `CYCLES` cycles of every stream, at the place with most beats.

    Each stream is a row: dark for a beat that is handed over (with its payload in hexadecimal, as far as it fits),
    light for a beat that waits for `ready`, empty without a beat.
    """
    names = [s.name for s in shown(emitted)]
    moves = np.stack([(samples[f"{n}_valid"] & samples[f"{n}_ready"])[:, 0].astype(int) for n in names])
    total = np.pad(np.cumsum(moves, 1), ((0, 0), (1, 0)))
    span = min(CYCLES, moves.shape[1])
    start = int(np.argmax(np.log1p(total[:, span:] - total[:, :-span]).sum(0)))
    figure = Figure(figsize=(11, 0.5 + 0.42 * len(names)), layout="constrained")
    axes = figure.add_subplot(xlabel="cycle")
    for row, name in enumerate(names):
        valid, ready = (samples[f"{name}_{w}"][start : start + CYCLES, 0].astype(bool) for w in ("valid", "ready"))
        waits, gives = np.flatnonzero(valid & ~ready), np.flatnonzero(valid & ready)
        for at, colour in ((waits, "#f2c879"), (gives, "#3b6ea5")):
            axes.broken_barh([(start + c, 0.92) for c in at.tolist()], (row - 0.35, 0.7), facecolors=colour)
        if f"{name}_payload" not in samples:
            continue
        payload = samples[f"{name}_payload"][start : start + CYCLES]
        for c in gives.tolist():
            text = f"{int(''.join(map(str, payload[c][::-1])), 2):x}"
            text = text if len(text) <= 4 else "…" + text[-3:]
            axes.text(start + c + 0.46, row, text, fontsize=5, color="white", ha="center", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(start, start + CYCLES)
    return figure
