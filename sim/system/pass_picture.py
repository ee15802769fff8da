"""Draws a simulated pass: its stages by resource and the bandwidth of the device memory, as SVG and PNG."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "openvrex"
matplotlib.rcParams["font.size"] = 9

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from openvrex.golden.atomic_files import replacing  # noqa: E402
from openvrex.sim.system.platforms import Platform, Vrex  # noqa: E402
from openvrex.sim.system.timeline import Pass  # noqa: E402

# Stages that most passes have; those of a policy's programs get colours in the order of a pass.
COLOURS = {
    "vision": "#8172b2", "qkv": "#4c72b0", "predict": "#dd8452", "select": "#c44e52",
    "cluster": "#e08a8c", "switch": "#701c1e", "walk": "#a33b3e", "fetch": "#937860",
    "join": "#da8bc3", "expand": "#c7b299",
    "attention": "#55a868", "out": "#64b5cd", "gate_up": "#8c8c8c", "down": "#b5b5b5", "layer": "#4c72b0",
    "vocabulary": "#ccb974", "gap": "#eeeeee",
}  # fmt: skip


def saved(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes a figure as NAME.svg and NAME.png; the same figure gives the same bytes. Returns both paths."""
    out = [folder / f"{name}.svg", folder / f"{name}.png"]
    options: tuple[dict, dict] = {"metadata": {"Date": None}}, {"dpi": 120, "metadata": {"Software": None}}
    for path, how in zip(out, options, strict=True):
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix[1:], **how)
    plt.close(figure)
    return out


def timeline(platform: Platform, p: Pass, folder: Path, name: str) -> list[Path]:
    """Draws the stages of a middle layer and its neighbours by resource, with the device memory's bandwidth below
    (V-Rex Fig. 17)."""
    middle = max(s.layer for s in p.stages) // 2
    first = min(s.start for s in p.stages if s.layer == middle and s.name in ("gap", "layer"))
    last = max(s.end for s in p.stages if s.layer == middle + 1)
    shown = [s for s in p.stages if s.end > first and s.start < last]
    resources = sorted({s.resource for s in shown}, reverse=True)
    names = list(dict.fromkeys(s.name for s in shown))
    others = [n for n in names if n not in COLOURS]
    colours = COLOURS | {n: matplotlib.colormaps["tab20"](k % 20) for k, n in enumerate(others)}
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.2), sharex=True, layout="constrained")
    for s in shown:
        at, width = (s.start - first) * 1e3, (s.end - s.start) * 1e3
        above.barh(resources.index(s.resource), width, left=at, color=colours[s.name], edgecolor="white", linewidth=0.3)
    patches = [plt.Rectangle((0, 0), 1, 1, color=colours[n]) for n in names]
    figure.legend(patches, names, loc="outside upper center", ncol=8, fontsize=7)
    above.set_yticks(range(len(resources)), resources)
    above.set_ylim(-0.6, len(resources) - 0.4)
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
    """Times in seconds at which the bandwidth changes, and bytes per second from each on, by resource."""
    edges = np.unique([t for s in p.stages for t in (s.start, s.end)])
    out = {r: np.zeros(len(edges)) for r in dict.fromkeys(s.resource for s in p.stages)}
    for s in p.stages:
        if s.end > s.start:
            within = (edges >= s.start) & (edges < s.end)
            out[s.resource][within] += s.bytes / (s.end - s.start)
    return edges, out
