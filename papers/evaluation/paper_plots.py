"""Draws the figures of V-Rex's evaluation, as SVG and PNG."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "openvrex"
matplotlib.rcParams["font.size"] = 9

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from openvrex.papers.evaluation.paper_points import CACHES, PLATFORMS, TABLE_II, Points, budgeted  # noqa: E402
from openvrex.sim.system.pass_picture import saved, timeline  # noqa: E402
from openvrex.sim.system.passes import simulate  # noqa: E402
from openvrex.sim.system.selection import PUBLISHED  # noqa: E402
from openvrex.sim.system.timeline import Point  # noqa: E402
from openvrex.sim.system.workload import Decoder, Session, Vision, traced  # noqa: E402

X = [c / 1024 for c in CACHES]  # K tokens


def latencies(p: Points, folder: Path, trace: str) -> list[Path]:
    """Draws V-Rex Fig. 13: time of frames and tokens and energy of frames, on edge and server."""
    figure, axes = plt.subplots(3, 2, figsize=(9, 8), layout="constrained", sharex=True)
    for column, (vrex, gpu) in enumerate((("edge", "agx"), ("server", "a100"))):
        for row, (stage, what) in enumerate((("frame", "seconds"), ("token", "seconds"), ("frame", "joules"))):
            axis = axes[row, column]
            for policy in ("flexgen", "infinigen", "infinigenp", "rekv"):
                y = [p.at(gpu, c, 1, stage, policy)[what] for c in CACHES]
                axis.plot(X, y, marker=".", label=f"{PLATFORMS[gpu].name} {policy}")
            for select, style in ((TABLE_II, "-"), (trace, "--")):
                y = [p.at(vrex, c, 1, stage, "resv", select)[what] for c in CACHES]
                axis.plot(X, y, "k", linestyle=style, marker="o", label=f"{PLATFORMS[vrex].name}, {select}")
            if row == 0 and vrex == "edge":
                axis.plot(X, [0.121, 0.123, 0.198, 0.200, 0.254], "rx", label="V-Rex8, paper")
            axis.set_yscale("log")
            axis.set_ylabel(f"{'J' if what == 'joules' else 's'} a {stage}")
            if row == 0:
                axis.legend(fontsize=6)
        axes[2, column].set_xlabel("tokens in the cache, K")
    return saved(figure, folder, "fig13")


def memory(folder: Path) -> list[Path]:
    """Draws V-Rex Fig. 4a: device memory against minutes of video, at 10 frames a second and batch 4."""
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    minutes, m = np.linspace(0, 10, 21), Decoder()
    cache = minutes * 60 * 10 * Session.frame_tokens * 4 * m.token_bytes / 2**30
    axis.plot(minutes, 2 * m.pass_weights / 2**30 + cache)
    for name in ("agx", "a100"):
        axis.axhline(PLATFORMS[name].capacity / 2**30, linestyle=":", label=f"{PLATFORMS[name].name}'s memory")
    axis.set_xlabel("minutes of video")
    axis.set_ylabel("GiB of weights and cache")
    axis.legend(fontsize=7)
    return saved(figure, folder, "fig4a")


def budget(folder: Path) -> list[Path]:
    """Draws V-Rex Fig. 4c: parts of the work of a frame that fetches 10K of 40K tokens, ours beside the paper's."""
    work = budgeted()
    ours = [100 * work.busy_share(part) for part in ("predict", "fetch")]
    figure, axis = plt.subplots(figsize=(4, 3), layout="constrained")
    for x, (label, parts) in enumerate((("paper", [40.0, 39.0]), ("ours", ours))):
        under = 0.0
        for part, y in zip(("prediction", "fetch", "rest"), [*parts, 100 - sum(parts)], strict=True):
            axis.bar(x, y, 0.6, bottom=under, color=f"C{('prediction', 'fetch', 'rest').index(part)}", label=part)
            under += y
        axis.text(x, 101, label, ha="center")
    axis.set_xticks([])
    axis.set_ylim(0, 110)
    axis.set_ylabel("% of the work, A100 + InfiniGenP")
    handles, names = axis.get_legend_handles_labels()
    axis.legend(handles[:3], names[:3], fontsize=7)
    return saved(figure, folder, "fig4c")


def sessions(p: Points, folder: Path, trace: str) -> list[Path]:
    """Draws V-Rex Figs. 4b and 14: seconds of the parts of COIN's session."""
    bars: list[tuple[str, str, str, tuple[int, ...]]] = [("a100", "infinigen", TABLE_II, (10240, 20480, 40960, 81920))]
    bars += [("agx", policy, TABLE_II, CACHES) for policy in ("flexgen", "infinigenp", "rekv")]
    bars += [("edge", "resv", TABLE_II, CACHES), ("edge", "resv", trace, CACHES)]
    figure, axes = plt.subplots(1, len(bars), figsize=(12, 3), layout="constrained")
    for axis, (on, policy, select, caches) in zip(axes, bars, strict=True):
        under = np.zeros(len(caches))
        for part in ("frame", "question", "token"):
            y = np.array([p.session(on, c, policy, select)[part] for c in caches])
            axis.bar([str(c >> 10) for c in caches], y, bottom=under, label=part)
            under += y
        axis.set_title(f"{PLATFORMS[on].name} {policy}\n{select}", fontsize=8)
        axis.set_xlabel("K tokens")
    axes[0].set_ylabel("s a session")
    axes[0].legend(fontsize=7)
    return saved(figure, folder, "fig4b_fig14")


def throughput(folder: Path, p: Points, trace: str) -> list[Path]:
    """Draws V-Rex Fig. 15: frames per second of a batch until the device memory is full.

    V-Rex8 stands beside Oaken and beside AGX with its cache on the device.
    """
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    batch = 16
    for on, policy in (("agx", "resident"), ("edge", "oaken"), ("edge", "resv")):
        fits = [c for c in CACHES if Point(c, batch, policy=policy).device_bytes <= PLATFORMS[on].capacity]
        select = trace if policy == "resv" else TABLE_II
        y = [batch * 1e3 / p.ms(on, c, batch, policy=policy, select=select) for c in fits]
        axis.plot([c / 1024 for c in fits], y, marker="o", label=f"{PLATFORMS[on].name} {policy}")
    axis.set_xlabel(f"tokens in the cache, K (batch {batch})")
    axis.set_ylabel("frames/s")
    axis.legend(fontsize=7)
    return saved(figure, folder, "fig15")


def ablation(p: Points, folder: Path, trace: str) -> list[Path]:
    """Draws V-Rex Fig. 16: latency and energy over AGX+FlexGen at 40K."""
    bars = [("agx", "flexgen"), ("agx", "resv"), ("kvpu", "resv"), ("edge", "resv")]
    base = p.at("agx", 40960, policy="flexgen")
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, what in zip(axes, ("seconds", "joules"), strict=True):
        for shift, select in ((-0.2, TABLE_II), (0.2, trace)):
            y = [base[what] / p.at(on, 40960, policy=policy, select=select)[what] for on, policy in bars]
            axis.bar(np.arange(len(bars)) + shift, y, 0.4, label=select)
        axis.set_xticks(range(len(bars)), ["AGX\nFlexGen", "AGX\nReSV", "V-Rex8\nKVPU", "V-Rex8\nAll"])
        axis.set_ylabel(f"times less {what}")
    axes[0].legend(fontsize=7)
    return saved(figure, folder, "fig16")


def roofline(p: Points, folder: Path, trace: str) -> list[Path]:
    """Draws V-Rex Fig. 18: operations per second against operations per byte, at 40K and batch 4.

    Bytes are those of weights and fetched cache.
    """
    figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
    x = np.logspace(0, 3, 50)
    axis.plot(x, np.minimum(x * 204.8e9, 54e12) / 1e12, "k", linewidth=0.8)
    model, batch, cache = Decoder(), 4, 40960
    for on, policy, select in (("agx", "flexgen", TABLE_II), ("agx", "rekv", TABLE_II), ("edge", "resv", trace)):
        a = p.at(on, cache, batch, policy=policy, select=select)
        ops = a["ops"] - 2 * batch * Vision().macs
        moved = 2 * model.pass_weights + a["fetched"]
        y = ops / (a["seconds"] - a["vision"]) / 1e12
        axis.plot(ops / moved, y, "o", label=f"{PLATFORMS[on].name} {policy}, {select}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations a byte of weights and fetched cache")
    axis.set_ylabel("TFLOPS")
    axis.legend(fontsize=7)
    return saved(figure, folder, "fig18")


def figures(p: Points, folder: Path, trace: str) -> list[Path]:
    """Draws all figures; `trace` names the stream of the second selection. Returns the paths."""
    middle = simulate(PLATFORMS["server"], Point(40960), traced(Decoder(), trace, PUBLISHED))
    return [
        *memory(folder),
        *budget(folder),
        *sessions(p, folder, trace),
        *latencies(p, folder, trace),
        *throughput(folder, p, trace),
        *ablation(p, folder, trace),
        *timeline(PLATFORMS["server"], middle, folder, "fig17"),
        *roofline(p, folder, trace),
    ]
