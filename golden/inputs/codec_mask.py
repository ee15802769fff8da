"""Motion mask: which visual tokens of a frame to encode, by integers only. The function of the unit `motion_mask`.

It decides as `golden.inputs.codec.Pruner` does with its rules `centre` and `block`: the motion of a patch is that of
the block at its centre. Numbers are those of `golden.inputs.codec.BLOCK`: vectors in quarter pixels.

Equations of CodecSight 3.3.1, in integers. A block with the vector (dx, dy) moves if its length exceeds tau pixels:
sqrt(dx^2 + dy^2) / 4 > tau, which is dx^2 + dy^2 > floor((4 tau)^2), the `limit`. Nothing is rounded.

With residuals (Equation 3) a block moves if sqrt(dx^2 + dy^2) / 4 + alpha R > tau. R is the block's residual, scaled to
the area of a patch. Lengths count in parts of 1 / 64 pixel:

* threshold = 64 tau, exactly.
* residual = floor(256 sad / (w h)), the sum of a block of 256 pixels. It is exact for every block of 4 to 16 pixels.
* weight = 2^18 alpha R / residual / 256 = 1024 alpha times the pixels of a patch, rounded to the nearest integer.
* share = floor(weight * residual / 2^12), the residual's part of the length.
* The block moves if share > threshold, or 256 (dx^2 + dy^2) > (threshold - share)^2.

So a block that moves has M > tau, and one with M > tau + 1 / 64 pixel moves, but for the rounding of the weight.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import CELL, Coded, PruneParams, group_complete

PARTS = 16  # of a quarter pixel, in a threshold
WEIGHT_BITS = 12
WEIGHT_SHIFT = 12  # weight * residual, in parts
RESIDUAL_BITS = 16
PIXELS = 256  # to which residuals are scaled


@dataclass(frozen=True)
class Command:
    """A coded frame: what the mask needs to know of it besides its blocks.

    width, height : pixels of the coded picture
    limit : squared length in quarter pixels above which a block moves (`limit_of`)
    leads : the frame begins a GOP
    take : the frame is encoded, so its mask is asked for; the motion of other frames counts for the next one that is
    accumulate : a dynamic patch stays dynamic until the GOP ends
    threshold : 64 tau (`threshold_of`), used with residuals in place of `limit`
    weight : of a block's residual (`weight_of`)
    """

    width: int
    height: int
    limit: int
    leads: bool = False
    take: bool = True
    accumulate: bool = True
    threshold: int = 0
    weight: int = 0


def limit_of(tau: float) -> int:
    """floor((4 tau)^2): the limit of a threshold of `tau` pixels. Raises `ParamError` for one below 0 or not finite."""
    check(0 <= tau < float("inf"), "tau", tau, "must not be negative, and finite: below 0 every patch is dynamic")
    return int(16 * Fraction(tau) ** 2)


def threshold_of(tau: float) -> int:
    """64 tau: the threshold in 1 / 64 pixel, for a unit with residuals. Raises `ParamError` unless it is an integer."""
    out = 4 * PARTS * Fraction(tau) if 0 <= tau < float("inf") else Fraction(1, 2)
    parts = 4 * PARTS
    check(out.denominator == 1, "tau", tau, f"must be a multiple of 1/{parts}, from 0: residuals count in such parts")
    return int(out)


def weight_of(alpha: float, size: tuple[int, int], grid: int) -> int:
    """The weight of residuals, for a picture of `size` (height, width) cut into grid x grid patches.

    It is 1024 alpha times the pixels of a patch, rounded to the nearest integer, halves to the even one. Raises
    `ParamError` for one that no weight stands for.
    """
    patch = Fraction(size[0] * size[1], grid * grid)
    exact = Fraction(alpha) * patch * 4 * PARTS * (1 << WEIGHT_SHIFT) / PIXELS
    out, top = round(exact), (1 << WEIGHT_BITS) - 1
    least, most = (float(n / (exact / Fraction(alpha))) if alpha else 0 for n in (1, top))
    hint = f"must be 0, or {least:.3g} to {most:.3g} for patches of {float(patch):g} pixels"
    check(out <= top and (out > 0 or alpha == 0), "alpha", alpha, hint)
    return out


def residuals(blocks: np.ndarray) -> np.ndarray:
    """Residual of each block as the unit takes it, int64 [blocks]: floor(256 sad / (w h)), at most 65,535."""
    pixels = np.maximum(1, blocks["w"].astype(np.int64) * blocks["h"])
    return np.minimum(blocks["sad"].astype(np.int64) * PIXELS // pixels, (1 << RESIDUAL_BITS) - 1)


def moves(command: Command, blocks: np.ndarray, with_residuals: bool = False) -> np.ndarray:
    """Which blocks move, bool [blocks]: Equations 3 and 4."""
    dx, dy = (blocks[name].astype(np.int64) for name in ("dx", "dy"))
    squared = dx * dx + dy * dy
    if not with_residuals:
        return squared > command.limit
    left = command.threshold - (command.weight * residuals(blocks) >> WEIGHT_SHIFT)
    return (left < 0) | (PARTS * PARTS * squared > left * left)


def centres(size: int, grid: int) -> np.ndarray:
    """Cell of 4 pixels at the centre of each patch along one axis, [grid]: floor((2 i + 1) size / (8 grid))."""
    return (2 * np.arange(grid) + 1) * size // (2 * CELL * grid)


class MotionMask:
    """Masks of one stream, frame by frame in display order.

    grid : patches on a side of a frame
    group : patches on a side of a visual token
    residuals : blocks have residuals, and commands a threshold and a weight

    A patch is dynamic in a frame if a block at its centre moves, or if no block covers its centre: then it is
    intra-coded. A token with one dynamic patch is kept. The first frame of a GOP that is taken is kept whole and starts
    anew; so is the first one of another size.
    """

    def __init__(self, grid: int = 16, group: int = 2, residuals: bool = False):
        self.grid, self.group, self.residuals = grid, group, residuals
        self.size = 0, 0
        self.whole = False  # the next frame taken is kept whole
        self.active = np.zeros((grid, grid), bool)

    def __call__(self, command: Command, blocks: np.ndarray) -> np.ndarray | None:
        """Tokens to keep, bool [grid / group, grid / group], or None of a frame that is not taken.

        blocks : [n] `BLOCK`, in any order
        """
        size = command.width, command.height
        if command.leads or size != self.size:
            self.whole, self.size = True, size
            self.active[:] = False
        if not self.whole:
            rows, cols = (self._hits(blocks, axis) for axis in ("y", "x"))
            moved = moves(command, blocks, self.residuals)
            covered = rows.T.astype(int) @ cols > 0
            self.active |= (rows[moved].T.astype(int) @ cols[moved] > 0) | ~covered
        if not command.take:
            return None
        out = np.ones((self.grid // self.group,) * 2, bool) if self.whole else group_complete(self.active, self.group)
        if self.whole or not command.accumulate:
            self.active[:] = False
        self.whole = False
        return out

    def _hits(self, blocks: np.ndarray, axis: str) -> np.ndarray:
        """Which centres along an axis each block covers, bool [blocks, grid]."""
        first = (blocks[axis].astype(np.int64) // CELL)[:, None]
        span = np.maximum(1, blocks["w" if axis == "x" else "h"].astype(np.int64) // CELL)[:, None]
        at = centres(self.size[axis == "y"], self.grid)
        return (at >= first) & (at < first + span)


def commands(
    frames: Iterable[Coded], p: PruneParams, with_residuals: bool = False
) -> Iterator[tuple[Command, np.ndarray]]:
    """Commands and blocks of every coded frame of a stream, for the frames that a sampler took.

    with_residuals : for a unit that takes them; the stream's blocks have their `sad`

    Raises `ParamError` for parameters that the unit does not have: another rule, residuals of a unit without them, a
    threshold below 0.
    """
    check(p.rule == "centre", "rule", p.rule, "must be centre")
    if with_residuals:
        check(p.residual == "block", "residual", p.residual, "must be block: the unit adds up no pixels of a patch")
    else:
        check(p.alpha == 0, "alpha", p.alpha, "must be 0: a motion mask without mask.residuals has none")
    limit, gop = limit_of(p.tau), None
    threshold = threshold_of(p.tau) if with_residuals else 0
    for f in frames:
        height, width = f.size
        weight = weight_of(p.alpha, f.size, p.grid) if with_residuals else 0
        for k, blocks in enumerate(f.motions):
            take = k == len(f.motions) - 1
            yield Command(width, height, limit, f.gop != gop, take, p.accumulate, threshold, weight), blocks
        gop = f.gop
