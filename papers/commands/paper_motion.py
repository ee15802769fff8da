"""CodecSight Fig. 5 on clips: how many patches of a frame stand still."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

from openvrex.golden.inputs.codec import Coded, PruneParams, Pruner, mean_motion, motion_class
from openvrex.papers.commands.paper_codecsight import GOP, coded
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.papers.commands.prune_command import PRUNING
from openvrex.scripts.quantity import Column

QUARTERS = {"first": 25, "median": 50, "third": 75}  # of the frames
COLUMNS = {
    "clip": Column("clip"),
    "motion": Column("motion"),
    "frames": Column("P-frames"),
    "first": Column("patches that stand still: a quarter of the frames below", "%", 1),
    "median": Column("half below", "%", 1),
    "third": Column("three quarters below", "%", 1),
    "paper": Column("paper: half of the frames", "%"),
}
NOTE = (
    f"A patch stands still in a frame if its motion is at most {PRUNING.tau} pixels; residuals do not count, as the "
    "paper does not give their weight. I-frames have no motion and are left out. The paper's 77 to 94 % are taken as "
    "the quartiles of its surveillance videos."
)


def draw(clips: dict[str, Path], frames: int, bar: Progress) -> Drawn:
    """A row for each clip."""
    rows: list[Row] = []
    task = bar.add_task("codecsight-motion", total=len(clips))
    for clip, path in clips.items():
        rows.append({"clip": clip, **still(coded(path, GOP, frames, 8)), "paper": "77 to 94"})
        bar.advance(task)
    paper = "across all tested videos, 50 % of frames contain patches that are 77 to 94 % similar."
    return Drawn("CodecSight Fig. 5: patches that stand still", paper, COLUMNS, rows, NOTE, plot)


def still(frames: Sequence[Coded]) -> Row:
    """Quartiles, over the frames behind I-frames, of the share of patches that stand still."""
    pruner = Pruner(PruneParams(**vars(PRUNING) | {"group": 1, "accumulate": False}))
    shares, last = [], None
    for frame in frames:
        share = 1 - float(pruner(frame).mean())
        if frame.gop == last:
            shares.append(share)
        last = frame.gop
    quarters = np.percentile(shares, list(QUARTERS.values())).tolist() if shares else [None] * len(QUARTERS)
    of: Row = {"motion": motion_class(mean_motion(frames)), "frames": len(shares)}
    return of | dict(zip(QUARTERS, quarters, strict=True))


def plot(rows: list[Row]) -> Figure:
    """The middle half of the frames of each clip, beside the paper's."""
    figure = Figure((6, 0.5 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for y, r in enumerate(rows):
        if r["median"] is not None:
            axes.plot([100 * r["first"], 100 * r["third"]], [y, y], linewidth=6, solid_capstyle="butt")
            axes.plot([100 * r["median"]], [y], "k|")
    axes.axvspan(77, 94, alpha=0.2, label="paper")
    axes.set(xlabel="patches of a frame that stand still (%)", xlim=(0, 100))
    axes.set_yticks(range(len(rows)), [r["clip"] for r in rows])
    axes.legend(fontsize="x-small")
    return figure
