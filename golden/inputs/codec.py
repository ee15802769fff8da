"""Motion vectors of a video stream, and the visual tokens of each frame that they leave worth encoding.

A decoded frame carries its blocks as an array of `BLOCK`, one entry per motion vector. An entry holds the place of the
block, the offset to its prediction and, on request, the residual's sum of absolute differences (`block_sads`). A block
without a vector is intra-coded. `Pruner` turns a stream of such frames into one mask of visual tokens per frame, in
one pass.

Source: CodecSight section 3.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from openvrex.golden.atomic_files import replacing
from openvrex.golden.function_params import Parameters, check, parameter

BLOCK = np.dtype(
    [
        ("x", "<i2"),  # left edge in the picture, pixels
        ("y", "<i2"),  # top edge, pixels
        ("w", "u1"),  # width, 4 to 16 pixels
        ("h", "u1"),  # height, 4 to 16 pixels
        ("dx", "<i2"),  # offset to the prediction, quarter pixels to the right
        ("dy", "<i2"),  # offset to the prediction, quarter pixels down
        ("sad", "<u4"),  # Equation 2; 0 if residuals were not requested
    ]
)
CELL = 4  # pixels: side of the smallest block of H.264
RULES = ("centre", "mean", "max")
RESIDUALS = ("patch", "block")
MOTION = {"low": 0.5, "medium": 2.0, "high": np.inf}  # class of a stream -> upper bound of its mean motion, pixels


class Coded(Protocol):
    """The data of a frame that the pruner needs; `golden.inputs.frames.Frame` and `Recorded` provide it."""

    @property
    def gop(self) -> int:
        """Number of the frame's GOP, in display order."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the coded picture in pixels."""
        ...

    @property
    def motions(self) -> tuple[np.ndarray, ...]:
        """Blocks of each frame since the previous one of the stream, the frame's own last."""
        ...


@dataclass(frozen=True, eq=False)
class Recorded:
    """A frame of a motion file: the data that the pruner needs, without the picture."""

    kind: str  # "I", "P" or "B"
    gop: int  # the other fields: see `Coded`
    size: tuple[int, int]
    motions: tuple[np.ndarray, ...]


def save_motion(path: Path, frames: Iterable[Recorded]) -> int:
    """Write a motion file: types and blocks of a stream's frames, as .npz. Returns the number of frames.

    The arrays are `kinds` [n], `gops` [n], `sizes` [n, 2], `offsets` [n + 1] and `blocks` (`BLOCK`). Frame i has the
    blocks from offsets[i] to offsets[i + 1]. `golden.inputs.frames.Frame` works as input too. The same frames give the
    same bytes. Write every frame of a stream: the file would merge the motion of skipped frames with that of the next.
    Raises `OSError` that names `path`.
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
    """Read the frames of a motion file that `save_motion` wrote."""
    with np.load(path) as f:
        offsets, blocks = f["offsets"], f["blocks"]
        heads = zip(f["kinds"].tolist(), f["gops"].tolist(), f["sizes"].tolist(), strict=True)
        spans = zip(offsets, offsets[1:], strict=False)
        return [Recorded(k, g, (h, w), (blocks[a:b],)) for (k, g, (h, w)), (a, b) in zip(heads, spans, strict=True)]


@dataclass(frozen=True)
class PruneParams(Parameters):
    """Parameters of `Pruner` (CodecSight section 3.3). A visual token stands for group x group patches."""

    grid: int = parameter(16, "patches per side of a frame", low=1)
    group: int = parameter(2, "patches per side of a visual token")
    tau: float = parameter(0.25, "pixels of motion above which a patch is dynamic; below 0 every patch is")
    alpha: float = parameter(0.0, "pixels of motion that one grey level of a patch's residual counts as")
    rule: str = parameter(
        "centre", "motion of a patch: at its centre, mean by area, or largest of its blocks", choices=RULES
    )
    residual: str = parameter(
        "patch", "R of Equation 3: summed over a patch, or of a block and resampled with its motion", choices=RESIDUALS
    )
    accumulate: bool = parameter(True, "a dynamic patch stays dynamic until the next I-frame")

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.group >= 1 and self.grid % self.group == 0
        check(ok, "group", self.group, f"must divide grid = {self.grid}")
        check(np.isfinite(self.tau), "tau", self.tau, "must be finite")
        check(0 <= self.alpha < np.inf, "alpha", self.alpha, "must not be negative")

    @property
    def tokens(self) -> int:
        """Visual tokens of a whole frame."""
        return (self.grid // self.group) ** 2


def mean_motion(frames: Iterable[Coded]) -> float | None:
    """Mean length of a stream's motion vectors, in pixels per coded frame; None if it has no vectors.

    Each vector is weighted by the pixels of its block. Frames and blocks without vectors do not count. CodecSight 6.1.4
    sorts its videos by this figure into three equal groups of low, medium and high motion. `motion_class` classes a
    single stream by the fixed bounds of `MOTION` instead.
    """
    moved = area = 0.0
    for frame in frames:
        for blocks in frame.motions:
            pixels = blocks["w"].astype(float) * blocks["h"]
            moved += float((np.hypot(blocks["dx"].astype(float), blocks["dy"].astype(float)) / 4 * pixels).sum())
            area += float(pixels.sum())
    return moved / area if area else None


def motion_class(pixels: float | None) -> str | None:
    """Class "low", "medium" or "high" of a mean motion in pixels, by the bounds of `MOTION`; None of None."""
    return None if pixels is None else next(name for name, bound in MOTION.items() if pixels < bound)


def motion_map(
    blocks: np.ndarray, size: tuple[int, int], grid: int, rule: str = "centre", alpha: float = 0.0
) -> np.ndarray:
    """Motion of each patch in pixels of the coded picture, float64 [grid, grid]: V of Equations 1 and 3.

    With `alpha` a block's motion is M of Equation 3: its residual, scaled to the area of a patch, counts for `alpha`
    pixels a grey level (`residual` = block of `PruneParams`).

    The motion of a block is the Euclidean length of its vector (dx, dy), V_m = |v_m| (Equation 1). The picture is
    stretched to grid x grid patches, and the function resamples the motion from blocks to patches. The paper leaves
    the resampling open, so `rule` chooses:

    * `centre` takes the block at the patch's centre.
    * `mean` weights each block by the area that it shares with the patch.
    * `max` takes the largest motion of the blocks that the patch touches.

    Where blocks overlap, as in B-frames, the longer vector counts. A patch with an intra-coded block (for `centre`, at
    its centre) has infinite motion, because no vector says that it stands still. Square roots of squares are exact. So
    for tau a multiple of 1/4, V > tau decides as dx^2 + dy^2 > (4 tau)^2 does in integers.
    """
    motion = np.hypot(blocks["dx"].astype(float), blocks["dy"].astype(float)) / 4
    if alpha:
        pixels = blocks["w"].astype(np.int64) * blocks["h"]
        motion += alpha * (size[0] * size[1] / grid**2) * (blocks["sad"] / pixels)
    cells = _paint(blocks, size, motion, np.inf)
    edges = [np.arange(grid + 1) * n / grid for n in size]
    if rule == "centre":
        rows, cols = (((e[:-1] + e[1:]) / 2 // CELL).astype(int) for e in edges)
        return cells[np.ix_(rows, cols)]
    # Cells that each patch touches, as a slice per patch and axis.
    reach = [[slice(int(a // CELL), int(-(-b // CELL))) for a, b in zip(e, e[1:], strict=False)] for e in edges]
    largest = np.stack([cells[r].max(0) for r in reach[0]])
    largest = np.stack([largest[:, c].max(1) for c in reach[1]], axis=1)
    if rule == "max":
        return largest
    down, across = (_shares(e, n) for e, n in zip(edges, cells.shape, strict=True))
    area = np.outer(down.sum(1), across.sum(1))
    mean = down @ np.where(np.isfinite(cells), cells, 0) @ across.T / area
    return np.where(np.isfinite(largest), mean, np.inf)


def residual_map(blocks: np.ndarray, size: tuple[int, int], grid: int) -> np.ndarray:
    """Residual of each patch in grey levels, float64 [grid, grid]: R of Equation 3.

    The function spreads each block's sum of absolute differences (Equation 2) evenly over the block and sums it up per
    patch. The sum over the picture stays the same. Blocks without a vector give 0: their motion is already infinite.
    """
    pixels = blocks["w"].astype(np.int64) * blocks["h"]
    cells = _paint(blocks, size, blocks["sad"] / pixels, 0)
    edges = [np.arange(grid + 1) * n / grid for n in size]
    rows, cols = (_shares(e, n) for e, n in zip(edges, cells.shape, strict=True))
    return rows @ cells @ cols.T


def _paint(blocks: np.ndarray, size: tuple[int, int], values: np.ndarray, empty: float) -> np.ndarray:
    """Draw one value per block on cells of 4 x 4 pixels, float64 [cell rows, cell columns].

    Where blocks overlap the larger value wins. Cells without a block get `empty`.
    """
    h, w = (-(-n // CELL) for n in size)
    cells = np.full((h, w), -1.0)
    for width, height in {(int(a), int(b)) for a, b in np.unique(blocks[["w", "h"]])}:
        these = np.flatnonzero((blocks["w"] == width) & (blocks["h"] == height))
        # Ascending values: where blocks of one size overlap, the assignment below keeps the last, which is the largest.
        these = these[np.argsort(values[these], kind="stable")]
        y = blocks["y"][these, None, None] // CELL + np.arange(max(1, height // CELL))[:, None]
        x = blocks["x"][these, None, None] // CELL + np.arange(max(1, width // CELL))
        y, x, value = np.broadcast_arrays(y, x, values[these, None, None])
        inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
        at = y[inside], x[inside]
        cells[at] = np.maximum(cells[at], value[inside])
    return np.where(cells < 0, empty, cells)


def _shares(edges: np.ndarray, cells: int) -> np.ndarray:
    """Pixels that each patch shares with each cell along one axis, [patches, cells].

    Patch i lies from edges[i] to edges[i + 1].
    """
    at = np.arange(cells) * CELL
    return np.clip(np.minimum(edges[1:, None], at + CELL) - np.maximum(edges[:-1, None], at), 0, None)


def group_complete(mask: np.ndarray, group: int) -> np.ndarray:
    """Visual tokens with at least one dynamic patch, bool [g, g], from a patch mask [g * group, g * group].

    Source: CodecSight section 3.3.2.
    """
    g = len(mask) // group
    return np.logical_or.reduce(mask.reshape(g, group, g, group), axis=(1, 3))


def patches_of(tokens: np.ndarray, group: int) -> np.ndarray:
    """All patches of the tokens in a token mask [g, g], as a patch mask [g * group, g * group]."""
    return tokens.repeat(group, 0).repeat(group, 1)


class Pruner:
    """Chooses the visual tokens of each frame to encode: CodecSight's Motion Analyzer and Token Pruner.

    Call `pruner(frame)` for each frame of the stream in display order. It returns a bool mask [g, g] of tokens, with
    g = grid / group; `patches_of` gives their patches. `frame.motions` brings in the motion of frames that a sampler
    skipped.

    * A patch has the score M = V + alpha R (Equation 3). It is dynamic if M > tau (Equation 4).
    * A dynamic patch stays dynamic until the GOP ends (parameter `accumulate`). B-frames count as P-frames.
    * A token with one dynamic patch keeps all its patches.
    * An I-frame is encoded whole and starts anew. So does the first frame, and a frame whose picture changed its size:
      the model has not yet seen anything that could stand for pruned tokens.
    * A frame without any vector is encoded whole, and with `accumulate` so is the rest of its GOP. The codec exports no
      vectors then, or all blocks are intra-coded; the pruner cannot judge such a frame.

    Source: CodecSight sections 3.3.1 and 3.3.2.
    """

    def __init__(self, params: PruneParams = PruneParams()):  # noqa: B008 - frozen
        self.params = params
        self.gop: int | None = None
        self.size: tuple[int, int] | None = None
        self.active = np.ones((params.grid, params.grid), bool)

    def __call__(self, frame: Coded) -> np.ndarray:
        """Tokens of the next frame to encode, bool [g, g]."""
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
        """Dynamic patches of one frame, bool [grid, grid]: Equations 3 and 4."""
        p = self.params
        by_block = p.residual == "block"
        m = motion_map(blocks, size, p.grid, p.rule, p.alpha if by_block else 0.0)
        if p.alpha and not by_block:
            m = m + p.alpha * residual_map(blocks, size, p.grid)
        return m > p.tau


def block_sads(blocks: np.ndarray, luma: np.ndarray, reference: np.ndarray, bilinear: bool = False) -> np.ndarray:
    """Residual of each block, uint32 [blocks]: the sum over the block of |B(p) - prediction(p)| in luma (Equation 2).

    `luma` and `reference` are the decoded luma planes of the frame and of the frame before, uint8 [height, width]. The
    prediction is H.264's (8.4.2.2.1): six-tap filters give half-pixel samples, and their averages give quarter-pixel
    samples. It equals the codec's own prediction if each frame refers only to the one before, without weights;
    `golden.inputs.video.reencode` makes such streams. For other streams the residual is an estimate.

    `bilinear` predicts as MPEG-1, MPEG-2 and MPEG-4 do at half pixels: means of two or four samples, halves rounded up
    (ISO/IEC 13818-2, 7.6.4). An MPEG-4 frame may round halves down; then each pixel is off by at most a grey level.
    """
    if not len(blocks):
        return np.zeros(0, np.uint32)
    height, width = luma.shape
    x0, y0 = blocks["x"] + (blocks["dx"] >> 2), blocks["y"] + (blocks["dy"] >> 2)
    # Samples outside the picture repeat its edge. A six-tap filter reaches two samples back and three ahead.
    pad = 4 + int(max(-x0.min(), -y0.min(), (x0 + blocks["w"]).max() - width, (y0 + blocks["h"]).max() - height, 0))
    half_samples = _bilinear_samples if bilinear else _half_samples
    planes = half_samples(np.pad(reference, pad, mode="edge").astype(np.int32))
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


# QUARTERS[row][column] lists the one or two samples whose rounded mean is the sample at this quarter of a pixel. Each
# entry is a plane, an offset down and an offset right, in whole pixels. The planes are G (whole pixels), b (half a
# pixel right), h (half a pixel down) and J (both), after Figure 8-4 of the standard.
_G, _B, _H, _J = ((name, 0, 0) for name in "GbhJ")
_RIGHT, _BELOW, _M, _S = ("G", 0, 1), ("G", 1, 0), ("h", 0, 1), ("b", 1, 0)
QUARTERS = (
    ((_G,), (_G, _B), (_B,), (_B, _RIGHT)),
    ((_G, _H), (_B, _H), (_B, _J), (_B, _M)),
    ((_H,), (_H, _J), (_J,), (_J, _M)),
    ((_H, _BELOW), (_H, _S), (_J, _S), (_M, _S)),
)


def _half_samples(g: np.ndarray) -> dict[str, np.ndarray]:
    """The planes of `QUARTERS` by name, each of the size of the reference `g`."""

    def taps(a: np.ndarray, axis: int) -> np.ndarray:
        # H.264's six-tap filter along one axis.
        e, f, g, h, i, j = (np.roll(a, 2 - n, axis) for n in range(6))
        return e - 5 * f + 20 * g + 20 * h - 5 * i + j

    across, down = taps(g, 1), taps(g, 0)
    half = {name: np.clip((a + 16) >> 5, 0, 255) for name, a in (("b", across), ("h", down))}
    return half | {"G": g, "J": np.clip((taps(across, 0) + 512) >> 10, 0, 255)}


def _bilinear_samples(g: np.ndarray) -> dict[str, np.ndarray]:
    """The planes of `QUARTERS` by name, of a codec that takes means at half pixels."""
    right, below = np.roll(g, -1, 1), np.roll(g, -1, 0)
    across, down = (g + right + 1) >> 1, (g + below + 1) >> 1
    return {"G": g, "b": across, "h": down, "J": (g + right + below + np.roll(below, -1, 1) + 2) >> 2}
