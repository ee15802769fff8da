"""Motion mask: which visual tokens of a frame to encode, by integers only. The function of the unit `motion_mask`.

It decides as `golden.inputs.codec.Pruner` does with its rule `centre` and without residuals (alpha 0): the motion of a
patch is that of the block at its centre. Numbers are those of `golden.inputs.codec.BLOCK`: vectors in quarter pixels.

Equations of CodecSight 3.3.1, in integers. A block with the vector (dx, dy) moves if its length exceeds tau pixels:
sqrt(dx^2 + dy^2) / 4 > tau, which is dx^2 + dy^2 > floor((4 tau)^2), the `limit`. Nothing is rounded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from golden.function_params import check
from golden.inputs.codec import CELL, Coded, PruneParams, group_complete


@dataclass(frozen=True)
class Command:
    """A coded frame: what the mask needs to know of it besides its blocks.

    width, height : pixels of the coded picture
    limit : squared length in quarter pixels above which a block moves (`limit_of`)
    leads : the frame begins a GOP
    take : the frame is encoded, so its mask is asked for; the motion of other frames counts for the next one that is
    accumulate : a dynamic patch stays dynamic until the GOP ends
    """

    width: int
    height: int
    limit: int
    leads: bool = False
    take: bool = True
    accumulate: bool = True


def limit_of(tau: float) -> int:
    """floor((4 tau)^2): the limit of a threshold of `tau` pixels. Raises `ParamError` for one below 0 or not finite."""
    check(0 <= tau < float("inf"), "tau", tau, "must not be negative, and finite: below 0 every patch is dynamic")
    return int(16 * Fraction(tau) ** 2)


def centres(size: int, grid: int) -> np.ndarray:
    """Cell of 4 pixels at the centre of each patch along one axis, [grid]: floor((2 i + 1) size / (8 grid))."""
    return (2 * np.arange(grid) + 1) * size // (2 * CELL * grid)


class MotionMask:
    """Masks of one stream, frame by frame in display order.

    grid : patches on a side of a frame
    group : patches on a side of a visual token

    A patch is dynamic in a frame if a block at its centre moves, or if no block covers its centre: then it is
    intra-coded. A token with one dynamic patch is kept. The first frame of a GOP that is taken is kept whole and starts
    anew; so is the first one of another size.
    """

    def __init__(self, grid: int = 16, group: int = 2):
        self.grid, self.group = grid, group
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
            dx, dy = (blocks[name].astype(np.int64) for name in ("dx", "dy"))
            moved = dx * dx + dy * dy > command.limit
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


def commands(frames: Iterable[Coded], p: PruneParams) -> Iterator[tuple[Command, np.ndarray]]:
    """Commands and blocks of every coded frame of a stream, for the frames that a sampler took.

    Raises `ParamError` for parameters that the unit does not have: another rule, residuals, a threshold below 0.
    """
    check(p.rule == "centre", "rule", p.rule, "must be centre")
    check(p.alpha == 0, "alpha", p.alpha, "must be 0: there are no residuals")
    limit, gop = limit_of(p.tau), None
    for f in frames:
        height, width = f.size
        for k, blocks in enumerate(f.motions):
            take = k == len(f.motions) - 1
            yield Command(width, height, limit, f.gop != gop, take, p.accumulate), blocks
        gop = f.gop
