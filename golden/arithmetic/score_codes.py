"""Score codes: short unsigned floats that carry a score from the VPE to the WTU (`ScoreFormat`, by default e4m7).

Codes compare as plain integers in the order of their values, and every value is an exact integer. So the WTU sorts
codes without decoding them, and its sums need no rounding.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from openvrex.golden.function_params import ScoreFormat


def encode(x: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Round `x` (float64, not negative, any shape) to the nearest value of the format; returns its codes, int64.

    Ties go to the even significand. Numbers above the largest value saturate at the top code.
    """
    exponent = np.frexp(x)[1].astype(np.int64)  # x < 2^exponent
    shift = np.clip(exponent - fmt.significand_bits, 0, fmt.max_shift)
    significand = np.rint(np.ldexp(x, -shift)).astype(np.int64)
    return np.minimum((shift << fmt.man_bits) + significand, (1 << fmt.bits) - 1)  # a carry moves to the next shift


def value(codes: ArrayLike, fmt: ScoreFormat) -> np.ndarray:
    """Decode score codes of any shape to their exact integer values, int64.

    A code with exponent e and mantissa m stands for `m` if e = 0, and for `(2^man_bits + m) << (e - 1)` otherwise.
    """
    codes = np.asarray(codes, dtype=np.int64)
    m = codes & ((1 << fmt.man_bits) - 1)
    e = codes >> fmt.man_bits
    if not fmt.exp_bits:
        return codes
    return np.where(e == 0, m, (m + (1 << fmt.man_bits)) << np.maximum(e - 1, 0))


@lru_cache
def values(fmt: ScoreFormat) -> np.ndarray:
    """Values of all codes of the format, int64 [2^bits], indexed by code."""
    return value(np.arange(1 << fmt.bits), fmt)
