"""Waveform pictures of a unit's streams from a simulation."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from hdl.emit import Emitted
from tb.library.activity_recorder import recordings

CYCLES = 48  # in a picture


def streams(emitted: Emitted) -> dict[str, int]:
    """Streams among a unit's ports, inputs first: name -> bits of the payload (0: none)."""
    ports = {p["name"]: p for p in emitted.manifest["ports"]}
    names = [n.removesuffix("__valid") for n in ports if n.endswith("__valid")]
    names.sort(key=lambda n: ports[f"{n}__valid"]["dir"] == "out")
    return {n: ports[f"{n}__payload"]["width"] if f"{n}__payload" in ports else 0 for n in names}


def record(emitted: Emitted, play: Callable[[Emitted], object]) -> dict[str, np.ndarray]:
    """The samples of the unit's streams in every cycle while `play` runs it: name of a port -> [cycles, bits]."""
    wanted = []
    for name, bits in streams(emitted).items():
        wanted += [f"{name}__valid", f"{name}__ready"]
        wanted += [f"{name}__payload[{i}]" for i in range(bits)] if bits > 1 else [f"{name}__payload"] * bits
    got = recordings(emitted, {emitted.top: wanted}, play)[emitted.top][0]
    samples = np.unpackbits(got.samples, axis=1, bitorder="little")
    out: dict[str, list[np.ndarray]] = {}
    for name in wanted:
        out.setdefault(name.partition("[")[0], []).append(samples[:, got.columns[name]])
    return {name: np.stack(columns, 1) for name, columns in out.items()}


def draw(emitted: Emitted, samples: dict[str, np.ndarray]) -> Figure:
    """Draw `CYCLES` cycles of every stream, at the place with most beats.

    Each stream is a row: dark for a beat that is handed over (with its payload in hexadecimal, as far as it fits),
    light for a beat that waits for `ready`, empty without a beat.
    """
    names = list(streams(emitted))
    moves = np.stack([(samples[f"{n}__valid"] & samples[f"{n}__ready"])[:, 0].astype(int) for n in names])
    total = np.pad(np.cumsum(moves, 1), ((0, 0), (1, 0)))
    span = min(CYCLES, moves.shape[1])
    start = int(np.argmax(np.log1p(total[:, span:] - total[:, :-span]).sum(0)))
    figure = Figure(figsize=(11, 0.5 + 0.42 * len(names)), layout="constrained")
    axes = figure.add_subplot(xlabel="cycle")
    for row, name in enumerate(names):
        valid, ready = (samples[f"{name}__{w}"][start : start + CYCLES, 0].astype(bool) for w in ("valid", "ready"))
        waits, gives = np.flatnonzero(valid & ~ready), np.flatnonzero(valid & ready)
        for at, colour in ((waits, "#f2c879"), (gives, "#3b6ea5")):
            axes.broken_barh([(start + c, 0.92) for c in at.tolist()], (row - 0.35, 0.7), facecolors=colour)
        if f"{name}__payload" not in samples:
            continue
        payload = samples[f"{name}__payload"][start : start + CYCLES]
        for c in gives.tolist():
            text = f"{int(''.join(map(str, payload[c][::-1])), 2):x}"
            text = text if len(text) <= 4 else "…" + text[-3:]
            axes.text(start + c + 0.46, row, text, fontsize=5, color="white", ha="center", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(start, start + CYCLES)
    return figure
