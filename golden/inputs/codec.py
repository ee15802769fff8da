"""What the codec knows of a stream, and which patches of a frame it says to encode (CodecSight, section 3.3).

A decoded frame carries its blocks as an array of `BLOCK`, one entry a motion vector: where the block is, the offset
from it to its prediction and, where asked for, the residual's sum of absolute differences (`block_sads`). Blocks
without a vector are intra-coded. `Pruner` turns a stream of such frames into masks of patches, in one pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from golden.atomic_files import replacing
from golden.function_params import check, check_ints

BLOCK = np.dtype(
    [
        ("x", "<i2"),  # left edge in the picture, pixels
        ("y", "<i2"),  # top edge
        ("w", "u1"),  # width, 4 to 16 pixels
        ("h", "u1"),
        ("dx", "<i2"),  # offset to the prediction, quarter pixels
        ("dy", "<i2"),
        ("sad", "<u4"),  # Equation 2; 0 where residuals were not asked for
    ]
)
CELL = 4  # pixels; the smallest block of H.264
RULES = ("centre", "mean", "max")
MOTION = {"low": 0.5, "medium": 2.0, "high": np.inf}  # class of a stream: mean pixels a frame that it stays below


class Coded(Protocol):
    """What the pruner reads of a frame; `golden.inputs.video.Frame` is one."""

    gop: int  # I-frames before this one or at it, in the order shown
    size: tuple[int, int]  # height, width of the coded picture in pixels
    motions: tuple[np.ndarray, ...]  # the blocks of every frame since the one before this, its own last


@dataclass(frozen=True, eq=False)
class Recorded:
    """A frame of a motion file: what the pruner reads, without the picture."""

    kind: str  # "I", "P" or "B"
    gop: int
    size: tuple[int, int]
    motions: tuple[np.ndarray, ...]


def save_motion(path: Path, frames: Iterable[Recorded]) -> int:
    """Write the types and blocks of a stream's frames (`golden.inputs.video.Frame` will do) to an .npz; returns frames.

    Arrays: `kinds` [n], `gops` [n], `sizes` [n, 2], `blocks` (`BLOCK`) of all frames, frame i's from offsets[i] to
    offsets[i + 1]. The same frames give the same bytes. A sampled frame's skipped motion is not kept apart: write
    every frame of a stream.
    """
    frames = list(frames)
    blocks = [np.concatenate(f.motions) for f in frames]
    with replacing(path) as file:
        np.savez_compressed(
            file,
            kinds=np.array([f.kind for f in frames], "U1"),
            gops=np.array([f.gop for f in frames], np.int32),
            sizes=np.array([f.size for f in frames], np.int32).reshape(-1, 2),
            offsets=np.cumsum([0] + [len(b) for b in blocks], dtype=np.int32),
            blocks=np.concatenate([np.zeros(0, BLOCK), *blocks]),
        )
    return len(frames)


def load_motion(path: Path) -> list[Recorded]:
    """The frames of a motion file."""
    with np.load(path) as f:
        offsets, blocks = f["offsets"], f["blocks"]
        heads = zip(f["kinds"].tolist(), f["gops"].tolist(), f["sizes"].tolist(), strict=True)
        spans = zip(offsets, offsets[1:], strict=False)
        return [Recorded(k, g, tuple(s), (blocks[a:b],)) for (k, g, s), (a, b) in zip(heads, spans, strict=True)]


@dataclass(frozen=True)
class PruneParams:
    """Motion analysis and token pruning (CodecSight 3.3). A visual token stands for group x group patches."""

    grid: int = 16  # patches a side of a frame
    group: int = 2  # patches a side of a visual token
    tau: float = 0.25  # pixels; a patch that moves more is dynamic. Below 0: all are
    alpha: float = 0.0  # pixels per grey level of the residual in a patch
    rule: str = "centre"  # motion of a patch: at its centre, mean by area, or largest of its blocks
    accumulate: bool = True  # a dynamic patch stays so until the next I-frame

    def __post_init__(self):
        check_ints(self)
        check(self.grid >= 1, "grid", self.grid, "must be at least 1")
        ok = self.group >= 1 and self.grid % self.group == 0
        check(ok, "group", self.group, f"must divide grid = {self.grid}")
        check(np.isfinite(self.tau), "tau", self.tau, "must be finite")
        check(0 <= self.alpha < np.inf, "alpha", self.alpha, "must not be negative")
        check(self.rule in RULES, "rule", self.rule, f"must be one of {', '.join(RULES)}")

    @property
    def tokens(self) -> int:
        """Visual tokens of a whole frame."""
        return (self.grid // self.group) ** 2


def mean_motion(frames: Iterable[Coded]) -> float | None:
    """Mean length of a stream's motion vectors in pixels a coded frame, weighted by the pixels of their blocks.

    CodecSight 6.1.4 parts its videos into low, medium and high motion by it, a third each; a stream alone is classed by
    the fixed bounds of `MOTION` (`motion_class`). Frames and blocks without vectors do not count; None without any.
    """
    moved = area = 0.0
    for frame in frames:
        for blocks in frame.motions:
            pixels = blocks["w"].astype(float) * blocks["h"]
            moved += float((np.hypot(blocks["dx"].astype(float), blocks["dy"].astype(float)) / 4 * pixels).sum())
            area += float(pixels.sum())
    return moved / area if area else None


def motion_class(pixels: float | None) -> str | None:
    """The class of `MOTION` of a mean motion."""
    return None if pixels is None else next(name for name, bound in MOTION.items() if pixels < bound)


def motion_map(blocks: np.ndarray, size: tuple[int, int], grid: int, rule: str = "centre") -> np.ndarray:
    """V of Equations 1 and 3: motion of every patch in pixels of the coded picture, float64 [grid, grid].

    V_m = |v_m| (Equation 1: the Euclidean length of the vector (dx, dy)), resampled from blocks to the patches of a
    picture that is stretched to grid x grid patches. The paper leaves the resampling open: `centre` takes the block at
    the patch's centre, `mean` weights blocks by the area they share with the patch, `max` takes the largest.
    Where blocks lie on one another, as in B-frames, the longer vector counts.
    A patch that an intra-coded block reaches (at its centre for `centre`) is infinite: no vector says that it stands
    still. With tau a multiple of 1/4, V > tau decides as the integers dx^2 + dy^2 > (4 tau)^2 do: square roots of
    squares are exact.
    """
    cells = _paint(blocks, size, np.hypot(blocks["dx"].astype(float), blocks["dy"].astype(float)) / 4, np.inf)
    edges = [np.arange(grid + 1) * n / grid for n in size]
    if rule == "centre":
        rows, cols = (((e[:-1] + e[1:]) / 2 // CELL).astype(int) for e in edges)
        return cells[np.ix_(rows, cols)]
    reach = [[slice(int(a // CELL), int(-(-b // CELL))) for a, b in zip(e, e[1:], strict=False)] for e in edges]
    largest = np.stack([cells[r].max(0) for r in reach[0]])
    largest = np.stack([largest[:, c].max(1) for c in reach[1]], axis=1)
    if rule == "max":
        return largest
    rows, cols = (_shares(e, n) for e, n in zip(edges, cells.shape, strict=True))
    area = np.outer(rows.sum(1), cols.sum(1))
    mean = rows @ np.where(np.isfinite(cells), cells, 0) @ cols.T / area
    return np.where(np.isfinite(largest), mean, np.inf)


def residual_map(blocks: np.ndarray, size: tuple[int, int], grid: int) -> np.ndarray:
    """R of Equation 3: residual of every patch in grey levels, float64 [grid, grid].

    Each block's sum of absolute differences (Equation 2) is spread evenly over it and gathered by the patches, so that
    the sum over the picture stays the same. Blocks without a vector give 0: their motion is infinite already.
    """
    pixels = blocks["w"].astype(np.int64) * blocks["h"]
    cells = _paint(blocks, size, blocks["sad"] / pixels, 0)
    edges = [np.arange(grid + 1) * n / grid for n in size]
    rows, cols = (_shares(e, n) for e, n in zip(edges, cells.shape, strict=True))
    return rows @ cells @ cols.T


def _paint(blocks: np.ndarray, size: tuple[int, int], values: np.ndarray, empty: float) -> np.ndarray:
    """A value a block on cells of 4 x 4 pixels, the larger where blocks overlap; `empty` where there is none."""
    h, w = (-(-n // CELL) for n in size)
    cells = np.full((h, w), -1.0)
    for width, height in {(int(a), int(b)) for a, b in np.unique(blocks[["w", "h"]])}:
        these = np.flatnonzero((blocks["w"] == width) & (blocks["h"] == height))
        these = these[
            np.argsort(values[these], kind="stable")
        ]  # of equal places the last one written, the larger, stays
        y = blocks["y"][these, None, None] // CELL + np.arange(max(1, height // CELL))[:, None]
        x = blocks["x"][these, None, None] // CELL + np.arange(max(1, width // CELL))
        y, x, value = np.broadcast_arrays(y, x, values[these, None, None])
        inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
        at = y[inside], x[inside]
        cells[at] = np.maximum(cells[at], value[inside])
    return np.where(cells < 0, empty, cells)


def _shares(edges: np.ndarray, cells: int) -> np.ndarray:
    """Pixels that patch i, from edges[i] to edges[i + 1], shares with cell c along one axis, [patches, cells]."""
    at = np.arange(cells) * CELL
    return np.clip(np.minimum(edges[1:, None], at + CELL) - np.maximum(edges[:-1, None], at), 0, None)


def group_complete(mask: np.ndarray, group: int) -> np.ndarray:
    """Visual tokens with a dynamic patch, bool [g, g], of a patch mask [g * group, g * group] (section 3.3.2)."""
    g = len(mask) // group
    return mask.reshape(g, group, g, group).any((1, 3))


def patches_of(tokens: np.ndarray, group: int) -> np.ndarray:
    """The group-complete patch mask [g * group, g * group] of a token mask [g, g]."""
    return tokens.repeat(group, 0).repeat(group, 1)


class Pruner:
    """Motion Analyzer and Token Pruner (sections 3.3.1 and 3.3.2): which visual tokens of each frame are encoded.

    `pruner(frame)` takes the stream's frames in the order shown and returns a bool mask [g, g] of tokens, g =
    grid / group; `patches_of` gives its patches. Frames that a sampler skipped count through `frame.motions`.

    * M = V + alpha R (Equation 3); dynamic where M > tau (Equation 4).
    * The dynamic patches of a GOP add up from P-frame to P-frame (B-frames count as P-frames); a token with one dynamic
      patch is kept whole.
    * I-frames are whole and start anew, as does the first frame of all and one whose picture changed its size: nothing
      that the model has seen stands for what would be left out.
    * A frame without any vector (a codec that exports none, or all blocks intra) is whole, and so is the rest of its
      GOP: what cannot be judged is not pruned.
    """

    def __init__(self, params: PruneParams = PruneParams()):  # noqa: B008 - frozen
        self.params = params
        self.gop: int | None = None
        self.size: tuple[int, int] | None = None
        self.active = np.ones((params.grid, params.grid), bool)

    def __call__(self, frame: Coded) -> np.ndarray:
        p = self.params
        whole = frame.gop != self.gop or frame.size != self.size
        self.gop, self.size = frame.gop, frame.size
        if whole:
            self.active = np.zeros_like(self.active)
            return np.ones((p.grid // p.group,) * 2, bool)
        now = np.zeros_like(self.active)
        for blocks in frame.motions:
            now |= self._dynamic(blocks, frame.size)
        if p.accumulate:
            now |= self.active
        self.active = now
        return group_complete(now, p.group)

    def _dynamic(self, blocks: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        p = self.params
        m = motion_map(blocks, size, p.grid, p.rule)
        if p.alpha:
            m = m + p.alpha * residual_map(blocks, size, p.grid)
        return m > p.tau


def block_sads(blocks: np.ndarray, luma: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """R of Equation 2 of every block, uint32: sum over the block of |B(p) - prediction(p)|, luma.

    The prediction is H.264's (8.4.2.2.1: six-tap half-pixel samples, averaged quarter-pixel ones) from `reference`, the
    frame before, as the decoder shows it. That is the codec's own prediction where frames refer to the one before
    alone and are not weighted (`golden.inputs.video.reencode` makes such streams); residuals of others are an estimate.
    """
    if not len(blocks):
        return np.zeros(0, np.uint32)
    height, width = luma.shape
    x0, y0 = blocks["x"] + (blocks["dx"] >> 2), blocks["y"] + (blocks["dy"] >> 2)
    # Samples outside the picture repeat its edge. A six-tap filter reaches 2 before and 3 after.
    pad = 4 + int(max(-x0.min(), -y0.min(), (x0 + blocks["w"]).max() - width, (y0 + blocks["h"]).max() - height, 0))
    planes = _half_samples(np.pad(reference, pad, mode="edge").astype(np.int32))
    out = np.zeros(len(blocks), np.uint32)
    for i, (block, bx, by) in enumerate(zip(blocks, x0.tolist(), y0.tolist(), strict=True)):
        x, y, w, h = (int(block[name]) for name in "xywh")
        own = luma[max(y, 0) : y + h, max(x, 0) : x + w].astype(np.int32)
        rows, cols = len(own), own.shape[1]
        parts = QUARTERS[int(block["dy"]) & 3][int(block["dx"]) & 3]
        got = [planes[p][by + pad + j :, bx + pad + i :][:rows, :cols] for p, j, i in parts]
        prediction = got[0] if len(got) == 1 else (got[0] + got[1] + 1) >> 1
        out[i] = np.abs(own - prediction).sum()
    return out


# Samples whose rounded mean is the one at quarter (row, column): plane G (whole), b (half right), h (half down) or
# j (both), and the whole pixels that it stands below and to the right. Names of the standard's Figure 8-4.
_G, _B, _H, _J = ((name, 0, 0) for name in "GbhJ")
_RIGHT, _BELOW, _M, _S = ("G", 0, 1), ("G", 1, 0), ("h", 0, 1), ("b", 1, 0)
QUARTERS = (
    ((_G,), (_G, _B), (_B,), (_B, _RIGHT)),
    ((_G, _H), (_B, _H), (_B, _J), (_B, _M)),
    ((_H,), (_H, _J), (_J,), (_J, _M)),
    ((_H, _BELOW), (_H, _S), (_J, _S), (_M, _S)),
)


def _half_samples(g: np.ndarray) -> dict[str, np.ndarray]:
    """The planes of `QUARTERS`, each of the reference's size."""

    def taps(a: np.ndarray, axis: int) -> np.ndarray:
        e, f, g, h, i, j = (np.roll(a, 2 - n, axis) for n in range(6))
        return e - 5 * f + 20 * g + 20 * h - 5 * i + j

    across, down = taps(g, 1), taps(g, 0)
    half = {name: np.clip((a + 16) >> 5, 0, 255) for name, a in (("b", across), ("h", down))}
    return half | {"G": g, "J": np.clip((taps(across, 0) + 512) >> 10, 0, 255)}
