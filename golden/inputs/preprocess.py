"""Fused preprocessing of decoded frames: from YUV 4:2:0 planes to the patches that an encoder takes, in one pass.

CodecSight (section 3.2) fuses resizing, colour conversion and normalisation on the GPU, so that frames never return to
the CPU. The paper gives no arithmetic. This module defines one, in integers up to the last step, and skips all pixels
of patches that were pruned:

1. **Resize**, each plane by itself: bilinear, half-pixel centres, edges repeated. A position is rounded to 1/256 of a
   source pixel, and the sum of four products once to an 8-bit number.
2. **Convert** each pixel to RGB: BT.601, limited range, 8-bit factors, rounded once and clipped to 0 to 255.
3. **Normalise**: (value / 255 - mean) / deviation of the channel, rounded once to BF16. It is a table of 256 numbers a
   channel.

Chroma is resized from its own plane, as if its samples lay in the middle of 2 x 2 pixels. Nothing blurs before
shrinking. So pixels differ from those of `golden.inputs.video.read`, which the libraries of FFmpeg scale.
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import check, check_parameters, parameter

# R, G and B from Y - 16, U - 128 and V - 128, in 1/256 (BT.601, limited range).
FACTORS = np.array([[298, 0, 409], [298, -100, -208], [298, 516, 0]])
OFFSETS = np.array([16, 128, 128])


@dataclass(frozen=True)
class PreprocessParams:
    """Parameters of the preprocessing. The defaults are those of `golden.inputs.vision`."""

    size: int = parameter(224, "pixels on a side of the picture that the encoder sees", low=1, high=4096)
    patch: int = parameter(14, "pixels on a side of a patch", low=1, high=4096)
    mean: tuple[float, ...] = parameter((0.485, 0.456, 0.406), "mean of red, green and blue, each of 1")
    deviation: tuple[float, ...] = parameter((0.229, 0.224, 0.225), "standard deviation of the same")

    def __post_init__(self):
        check_parameters(self)
        check(self.size % self.patch == 0, "patch", self.patch, f"must divide size = {self.size}")
        for name in ("mean", "deviation"):
            check(len(getattr(self, name)) == 3, name, getattr(self, name), "must have a number for each of 3 channels")
        check(min(self.deviation) > 0, "deviation", self.deviation, "must be above 0")

    @property
    def grid(self) -> int:
        """Patches on a side."""
        return self.size // self.patch

    def table(self) -> np.ndarray:
        """The normalised value of each 8-bit value, BF16 [3, 256]."""
        mean, deviation = (np.array(x)[:, None] for x in (self.mean, self.deviation))
        return ((np.arange(256) / 255 - mean) / deviation).astype(BF16)


def taps(n: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source pixels of `size` output pixels along a line of n: the first, the second, the second's weight in 1/256.

    Output i lies at (i + 1/2) n / size - 1/2, no further out than the first and last pixel.
    """
    at = np.clip((2 * np.arange(size) + 1) * n - size, 0, (n - 1) * 2 * size)  # in 1 / (2 size) of a pixel
    first, rest = np.divmod(at, 2 * size)
    return first, np.minimum(first + 1, n - 1), (rest * 256 + size) // (2 * size)


class Preprocess:
    """The fused pass. It computes the pixels of chosen patches alone and keeps no picture.

    read : bytes of source planes that the chosen patches of all frames so far needed, each byte of a frame once
    """

    def __init__(self, params: PreprocessParams):
        self.params = params
        self.table = params.table()
        self.read = 0

    def __call__(self, y: np.ndarray, u: np.ndarray, v: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """The chosen patches of a frame, BF16 [n, patch * patch * 3], row by row; in a patch rows, columns, channels.

        y : uint8 [height, width] · u, v : uint8, half of it in both directions, rounded up · keep : bool [grid, grid]

        Raises `ParamError` for planes or a mask of another shape.
        """
        p = self.params
        half = tuple(-(-n // 2) for n in y.shape)
        check(y.ndim == 2 and min(y.shape) >= 1, "y", y.shape, "must be [height, width]")
        check(u.shape == v.shape == half, "u, v", (u.shape, v.shape), f"must be {half}, half of y's {y.shape}")
        check(keep.shape == (p.grid, p.grid), "keep", keep.shape, f"must be [{p.grid}, {p.grid}]")
        at = np.argwhere(keep)[:, :, None] * p.patch + np.arange(p.patch)  # [n, row or column, patch]
        yuv = np.stack([self._resized(plane, at[:, 0], at[:, 1]) for plane in (y, u, v)], axis=-1)
        rgb = np.clip(((yuv - OFFSETS) @ FACTORS.T + 128) >> 8, 0, 255)
        return self.table[np.arange(3), rgb].reshape(len(at), 3 * p.patch**2)

    def _resized(self, plane: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Pixels [n, patch, patch] of the resized plane at rows and columns [n, patch]."""
        (top, bottom, down), (left, right, across) = (taps(n, self.params.size) for n in plane.shape)
        touched = np.zeros(plane.shape, bool)

        def pixels(r: np.ndarray, c: np.ndarray) -> np.ndarray:
            at = r[rows][:, :, None], c[columns][:, None, :]
            touched[at] = True
            return plane[at].astype(np.int64)

        wy, wx = down[rows][:, :, None], across[columns][:, None, :]
        upper = (256 - wx) * pixels(top, left) + wx * pixels(top, right)
        lower = (256 - wx) * pixels(bottom, left) + wx * pixels(bottom, right)
        self.read += int(touched.sum())
        return ((256 - wy) * upper + wy * lower + (1 << 15)) >> 16
