"""The number rules of the whole project, and exact dot products of BF16 numbers.

All golden models round, flush and treat NaN and infinity as this module says.

* Operands: a BF16 or FP32 number below 2^-126 in magnitude (a subnormal) counts as a zero of the same sign.
* Rounding: to nearest, ties to even. A result whose exact magnitude is below 2^-126 becomes a zero; this is decided
  before rounding. A result that rounds to 2^128 or more becomes infinite.
* Dot product: the exact sum of the exact products, rounded once, so the order of summation does not matter.
  The result is NaN if an operand is NaN, if a product is infinity times zero, or if infinite products of both signs
  meet. Otherwise it is infinite if a product is. Finite partial sums never overflow. A sum that is zero or flushed is
  +0.
* NaN results are the quiet NaN with a positive sign, 0x7fc0 in BF16.

How the sums are made exact: products of BF16 numbers are exact in float64. A float64 sum of n of them, in any order, is
off by less than n * 2^-53 * sum|product|. The code takes twice this bound, which covers the bound's own rounding. If
that leaves a result open, it repeats the sum in Python integers. A sum is known to be exact when every product is a
multiple of 2^k and sum|product| < 2^(k+53).

Source: BF16 operands are V-Rex's (section V-A); the rules are this project's own.
"""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
TINY = 2.0**-126  # smallest normal number of BF16 and FP32


def flush(x: np.ndarray) -> np.ndarray:
    """Replace every subnormal of `x` (BF16, any shape) by a zero of its sign."""
    bits = np.ascontiguousarray(x).view(np.uint16)
    return np.where(bits & 0x7F80, bits, bits & 0x8000).astype(np.uint16).view(BF16)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Round floats (FP32 or float64, any shape) once to BF16."""
    with np.errstate(invalid="ignore"):  # the conversion warns of a signalling NaN
        x = np.asarray(x, np.float64)
    significand, exponent = np.frexp(x)
    rounded = np.ldexp(np.rint(np.ldexp(significand, 8)), exponent - 8)
    return _finish(x, rounded, BF16)


def to_fp32(x: np.ndarray) -> np.ndarray:
    """Round float64 numbers (any shape) once to FP32."""
    x = np.asarray(x, np.float64)
    return _finish(x, x, np.float32)


def _finish(exact: np.ndarray, rounded: np.ndarray, dtype: type) -> np.ndarray:
    """Convert `rounded` to `dtype`; `exact` decides which results are flushed to zero and which are NaN."""
    with np.errstate(over="ignore", under="ignore"):
        out: np.ndarray = np.where(np.abs(exact) < TINY, np.copysign(0.0, exact), rounded).astype(dtype)
    return np.where(np.isnan(exact), dtype(np.nan), out)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Dot products of each row of `a` [R, n] with each row of `b` [C, n] (BF16), rounded once to FP32, [R, C]."""
    a, b = flush(a), flush(b)
    total, bound = _sums(a, b)
    finite, special = np.isfinite(total), to_fp32(total)
    total, bound = np.where(finite, total, 0.0), np.where(finite, bound, 0.0)
    out = to_fp32(total)
    for r, c in np.argwhere(to_fp32(total - bound) != to_fp32(total + bound)):
        out[r, c] = _round_fp32(*exact_dot(a[r], b[c]))
    return np.where(finite, out, special) + np.float32(0)


def positive(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the exact dot product of each row of `a` [R, n] with each row of `b` [C, n] (BF16) is above zero.

    Returns bool [R, C]. A product of zero, of either sign, or NaN gives False.
    """
    a, b = flush(a), flush(b)
    total, bound = _sums(a, b)
    out = total > 0
    for r, c in np.argwhere(np.isfinite(total) & (bound > 0) & (np.abs(total) <= bound)):
        out[r, c] = exact_dot(a[r], b[c])[0] > 0
    return out


def exact_dot(a: np.ndarray, b: np.ndarray) -> tuple[int, int]:
    """The exact dot product of two vectors [n] of finite BF16 numbers, as integers (m, e): it is m * 2^e."""
    (ma, ea), (mb, eb) = _integers(a), _integers(b)
    m, e = (ma * mb).tolist(), (ea + eb).tolist()
    low = min(e)
    return sum(x << (y - low) for x, y in zip(m, e, strict=True)), low


def _integers(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split finite BF16 numbers into integers (m, e) with x = m * 2^e and |m| < 256; e = 0 for a zero."""
    significand, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(significand, 8).astype(np.int64), np.where(significand == 0, 0, exponent.astype(np.int64) - 8)


def _sums(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dot products in float64 and bounds of their errors, both [R, C]; a bound of 0 says that the sum is exact."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        total, size = a @ b.T, np.abs(a) @ np.abs(b).T
        exact = size < np.ldexp(1.0, 53 + _unit(a)[:, None] + _unit(b)[None, :])
        return total, np.where(exact | (size == 0), 0.0, size * (a.shape[1] * 2.0**-52))


def _unit(x: np.ndarray) -> np.ndarray:
    """For each row of `x` [N, n] (BF16 values), the exponent of a power of two that divides every number of the row."""
    significand, exponent = np.frexp(x)
    return np.where(significand == 0, 128, exponent - 8).min(axis=1, initial=128)


def _round_fp32(m: int, e: int) -> np.float32:
    """Round m * 2^e once to FP32."""
    drop = max(0, abs(m).bit_length() - 53)
    sticky = (abs(m) & ((1 << drop) - 1)) > 0  # float64 keeps a sticky bit of the dropped ones, so FP32 rounds once
    top = (abs(m) >> drop) | sticky
    return np.float32(to_fp32(np.ldexp(float(top if m > 0 else -top), e + drop)))
