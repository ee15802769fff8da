"""Score codes: unsigned numbers whose order as integers is the order of their values."""

from functools import lru_cache

import numpy as np

from golden.function_params import ScoreFormat


def encode(x: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Codes of the format's values nearest to `x` (float64, at least 0), ties to even, at most the top code, int64."""
    exponent = np.frexp(x)[1].astype(np.int64)  # x < 2^exponent
    shift = np.clip(exponent - fmt.significand_bits, 0, fmt.max_shift)
    significand = np.rint(np.ldexp(x, -shift)).astype(np.int64)
    return np.minimum((shift << fmt.man_bits) + significand, (1 << fmt.bits) - 1)  # a carry moves to the next shift


def value(codes: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Exact integer value of score codes, any shape, int64: `m` for e = 0, `(2^man_bits + m) << (e - 1)` otherwise."""
    codes = np.asarray(codes, dtype=np.int64)
    m = codes & ((1 << fmt.man_bits) - 1)
    e = codes >> fmt.man_bits
    if not fmt.exp_bits:
        return codes
    return np.where(e == 0, m, (m + (1 << fmt.man_bits)) << np.maximum(e - 1, 0))


@lru_cache
def values(fmt: ScoreFormat) -> np.ndarray:
    """The value of every code."""
    return value(np.arange(1 << fmt.bits), fmt)
