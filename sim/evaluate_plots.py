"""Plots of simulated passes and of the evaluation, as SVG and PNG."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "openvrex"
matplotlib.rcParams["font.size"] = 9

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from sim.platform import Gpu, Vrex  # noqa: E402
from sim.timeline import Pass  # noqa: E402

COLOURS = {
    "vision": "#8172b2", "qkv": "#4c72b0", "predict": "#dd8452", "select": "#c44e52", "fetch": "#937860",
    "attention": "#55a868", "out": "#64b5cd", "gate_up": "#8c8c8c", "down": "#b5b5b5", "layer": "#4c72b0",
    "vocabulary": "#ccb974",
}  # fmt: skip


def saved(figure, folder: Path, name: str) -> list[Path]:
    """Write a figure both ways; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    out = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(out[0], metadata={"Date": None})
    figure.savefig(out[1], dpi=120, metadata={"Software": None})
    plt.close(figure)
    return out


def timeline(platform: Vrex | Gpu, p: Pass, folder: Path, name: str) -> list[Path]:
    """Stages of a middle layer and its neighbours by resource, and the device memory's bandwidth under them (Fig.
    17)."""
    middle = max(s.layer for s in p.stages) // 2
    first = min(s.start for s in p.stages if s.layer == middle and s.name in ("qkv", "layer"))
    last = max(s.end for s in p.stages if s.layer == middle + 1)
    shown = [s for s in p.stages if s.end > first and s.start < last]
    resources = sorted({s.resource for s in shown}, reverse=True)
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.2), sharex=True, layout="constrained")
    for s in shown:
        at, width = (s.start - first) * 1e3, (s.end - s.start) * 1e3
        above.barh(resources.index(s.resource), width, left=at, color=COLOURS[s.name], edgecolor="white", linewidth=0.3)
    names = list(dict.fromkeys(s.name for s in shown))
    above.legend([plt.Rectangle((0, 0), 1, 1, color=COLOURS[n]) for n in names], names, ncol=len(names), fontsize=7)
    above.set_yticks(range(len(resources)), resources)
    above.set_ylim(-0.6, len(resources) + 0.3)
    time, rate = bandwidth(p)
    for resource, values in rate.items():
        if values.any():
            below.step((time - first) * 1e3, values / 1e9, where="post", label=resource)
    if isinstance(platform, Vrex):
        below.axhline(platform.dram.t.bandwidth / 1e9, color="black", linewidth=0.6, linestyle=":")
    below.set_xlim(0, (last - first) * 1e3)
    below.set_xlabel(f"ms, layers {middle} and {middle + 1}")
    below.set_ylabel("device memory, GB/s")
    below.legend(fontsize=7)
    return saved(figure, folder, name)


def bandwidth(p: Pass) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Bytes per second of the device memory by resource, from each of these times on."""
    edges = np.unique([t for s in p.stages for t in (s.start, s.end)])
    out = {r: np.zeros(len(edges)) for r in dict.fromkeys(s.resource for s in p.stages)}
    for s in p.stages:
        if s.end > s.start:
            within = (edges >= s.start) & (edges < s.end)
            out[s.resource][within] += s.bytes / (s.end - s.start)
    return edges, out
