"""A picture of what a question attended to: the stream's frames, and under them heat maps of layers by frames."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openvrex.papers.recall.scenes import Joined

THUMBNAILS = 16  # in the row, shared out to the scenes
PIXELS = 74  # per side of a thumbnail, at most: a third of the encoder's
SCALE = 4  # top of the weight's colours, times a mean frame
WIDTH, HEAD, ROW, GAP, FOOT = 12.0, 1.05, 1.3, 0.38, 0.55  # inches: figure, thumbnails, heat map, above it, axis
LEFT, RIGHT = 0.085, 0.925  # of the width, where frames begin and end
INK, MUTED, MARK, RESIDENT = "#1b1f24", "#57606a", "#d1242f", "#e4e8ec"


def picture(
    joined: Joined, asked: int, far: np.ndarray, weight: tuple[str, np.ndarray], fetched: dict[str, np.ndarray]
) -> Figure:
    """Thumbnails of the stream and of the question, full attention's weight, and what each policy attended to.

    asked : scene of the question · far : bool [frames], the frames that count; the others are grey
    weight : title, and full attention's share on each frame [layers, frames]
    fetched : share of each frame's tokens attended [layers, frames], by title
    """
    times = weight[1] / weight[1][:, far].mean(axis=1, keepdims=True)
    maps = [(f"{weight[0]}, in multiples of a mean frame's", times, "Oranges", SCALE)]
    maps += [(f"{title}, % of its tokens", 100 * own, "Blues", 100) for title, own in fetched.items()]
    height = HEAD + len(maps) * (ROW + GAP) + FOOT
    figure = Figure((WIDTH, height))
    _thumbnails(figure, joined, asked, height)
    for i, (title, values, colours, top) in enumerate(maps):
        last = i == len(maps) - 1
        bottom = FOOT + (len(maps) - 1 - i) * (ROW + GAP)
        axes = figure.add_axes((LEFT, bottom / height, RIGHT - LEFT, ROW / height), facecolor=RESIDENT)
        image = axes.imshow(
            np.ma.masked_array(values, np.broadcast_to(~far, values.shape)),
            cmap=colours,
            vmin=0,
            vmax=top,
            aspect="auto",
            interpolation="nearest",
            extent=(0, len(far), len(values) - 0.5, -0.5),
        )
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set_ylabel("layer", color=MUTED)
        axes.tick_params(colors=MUTED, labelsize=8, labelbottom=last)
        _mark(axes, joined, asked, far)
        legend = figure.add_axes((RIGHT + 0.01, bottom / height, 0.012, ROW / height))
        figure.colorbar(image, cax=legend, ticks=[0, top / 2, top]).outline.set_visible(False)  # type: ignore[operator]
        legend.tick_params(colors=MUTED, labelsize=8, length=0)
        if last:
            axes.set_xlabel("frame of the stream", color=MUTED)
    return figure


def _thumbnails(figure: Figure, joined: Joined, asked: int, height: float) -> None:
    """The question in the margin, and pictures of each scene above its frames, evenly spaced."""
    s = joined.scenes
    shown = min(s.frames, max(1, THUMBNAILS // len(s.clips)))
    step = (RIGHT - LEFT) / (shown * len(s.clips))
    side = min(0.94 * step * WIDTH, HEAD - 0.4)  # inches
    bottom = (height - HEAD + 0.05) / height

    def put(left: float, image: np.ndarray, marked: bool, title: str) -> None:
        axes = figure.add_axes((left, bottom, side / WIDTH, side / height), xticks=[], yticks=[])
        axes.imshow(_small(image))
        axes.set_title(title, loc="left", fontsize=10, color=MARK if marked else INK)
        for spine in axes.spines.values():
            spine.set(visible=marked, color=MARK, linewidth=2)

    put(0.008, joined.held_out(asked).picture, True, "question")
    pictures = [f.picture for f in joined.shown()]
    for i in range(shown * len(s.clips)):
        scene, part = divmod(i, shown)
        image = pictures[scene * s.frames + (2 * part + 1) * s.frames // (2 * shown)]
        put(LEFT + i * step, image, scene == asked, joined.name(scene) if part == 0 else "")


def _mark(axes: Axes, joined: Joined, asked: int, far: np.ndarray) -> None:
    """Where scenes change, which is asked for, and what is resident."""
    n = joined.scenes.frames
    for scene in range(1, len(joined.order)):
        axes.axvline(scene * n, color=INK, linewidth=0.8)
    axes.axvspan(asked * n, (asked + 1) * n, fill=False, edgecolor=MARK, linewidth=1.6, zorder=3)
    last = int(np.flatnonzero(far)[-1]) + 1
    middle = (last + len(far)) / 2, sum(axes.get_ylim()) / 2
    axes.text(*middle, "resident, not counted", color=MUTED, fontsize=9, ha="center", va="center",
              bbox={"facecolor": RESIDENT, "edgecolor": "none", "pad": 2})  # fmt: skip


def _small(image: np.ndarray) -> np.ndarray:
    """A picture at the size of a thumbnail: means of whole pixels."""
    step = -(-len(image) // PIXELS)
    side = len(image) // step
    cut = image[: side * step, : side * step].reshape(side, step, side, step, 3)
    return cut.mean(axis=(1, 3)).astype(np.uint8)
