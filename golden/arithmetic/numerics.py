"""BF16 and FP32 rules, written once: rounding, flushing, NaN, infinity, and dot products that do not depend on order.

* Operands: a BF16 or FP32 number below 2^-126 in magnitude (a subnormal) is a zero of the same sign.
* Rounding: nearest, ties to even. A result whose exact magnitude is below 2^-126 is a zero (decided before rounding);
  one that rounds to 2^128 or more is infinite.
* Dot product: the exact sum of the exact products, rounded once. It is NaN if an operand is NaN, if a product is
  infinity times zero or if products of both infinite signs meet; else infinite if a product is. Finite partial sums
  never overflow. A sum of zero and a flushed one are +0.
* NaN results are the quiet NaN with a positive sign, 0x7fc0 in BF16.

Exactness: products of BF16 numbers are exact in float64, and a float64 sum of n of them, in any order, is off by less
than n * 2^-53 * sum|product|. Where that bound (doubled, for its own rounding) leaves a decision open, the sum is
redone in Python integers. A sum is known exact when every product is a multiple of 2^k and sum|product| < 2^(k+53).
"""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
TINY = 2.0**-126  # smallest normal number of BF16 and FP32


def flush(x: np.ndarray) -> np.ndarray:
    """`x` (BF16) with every subnormal made a zero of its sign."""
    bits = np.ascontiguousarray(x).view(np.uint16)
    return np.where(bits & 0x7F80, bits, bits & 0x8000).astype(np.uint16).view(BF16)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Floats (FP32 or float64) rounded once to BF16."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        x = np.asarray(x, np.float64)
    significand, exponent = np.frexp(x)
    rounded = np.ldexp(np.rint(np.ldexp(significand, 8)), exponent - 8)
    return _finish(x, rounded, BF16)


def to_fp32(x: np.ndarray) -> np.ndarray:
    """Float64 values rounded once to FP32."""
    x = np.asarray(x, np.float64)
    return _finish(x, x, np.float32)


def _finish(exact: np.ndarray, rounded: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        out = np.where(np.abs(exact) < TINY, np.copysign(0.0, exact), rounded).astype(dtype)
    return np.where(np.isnan(exact), dtype(np.nan), out)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Dot products of the rows of `a` [R, n] with the rows of `b` [C, n] (BF16), each rounded once to FP32, [R, C]."""
    a, b = flush(a), flush(b)
    total, bound = _sums(a, b)
    finite, special = np.isfinite(total), to_fp32(total)
    total, bound = np.where(finite, total, 0.0), np.where(finite, bound, 0.0)
    out = to_fp32(total)
    for r, c in np.argwhere(to_fp32(total - bound) != to_fp32(total + bound)):
        out[r, c] = _round_fp32(*exact_dot(a[r], b[c]))
    return np.where(finite, out, special) + np.float32(0)


def positive(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the exact dot products of the rows of `a` [R, n] and `b` [C, n] (BF16) exceed zero, [R, C] bool.

    Zero of either sign and NaN do not.
    """
    a, b = flush(a), flush(b)
    total, bound = _sums(a, b)
    out = total > 0
    for r, c in np.argwhere(np.isfinite(total) & (bound > 0) & (np.abs(total) <= bound)):
        out[r, c] = exact_dot(a[r], b[c])[0] > 0
    return out


def exact_dot(a: np.ndarray, b: np.ndarray) -> tuple[int, int]:
    """The dot product of two vectors of finite BF16 numbers as (m, e), exactly m * 2^e."""
    (ma, ea), (mb, eb) = _integers(a), _integers(b)
    m, e = (ma * mb).tolist(), (ea + eb).tolist()
    low = min(e)
    return sum(x << (y - low) for x, y in zip(m, e, strict=True)), low


def _integers(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finite BF16 numbers as (m, e) with x = m * 2^e, |m| < 256; e = 0 for a zero."""
    significand, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(significand, 8).astype(np.int64), np.where(significand == 0, 0, exponent.astype(np.int64) - 8)


def _sums(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dot products in float64 and a bound of their errors, 0 where they are known exact; both [R, C]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        total, size = a @ b.T, np.abs(a) @ np.abs(b).T
        exact = size < np.ldexp(1.0, 53 + _unit(a)[:, None] + _unit(b)[None, :])
        return total, np.where(exact | (size == 0), 0.0, size * (a.shape[1] * 2.0**-52))


def _unit(x: np.ndarray) -> np.ndarray:
    """The exponent of a power of two that divides every number of a row of `x` [N, n], which holds BF16 values."""
    significand, exponent = np.frexp(x)
    return np.where(significand == 0, 128, exponent - 8).min(axis=1, initial=128)


def _round_fp32(m: int, e: int) -> np.float32:
    """m * 2^e rounded once to FP32."""
    drop = max(0, abs(m).bit_length() - 53)
    odd = (abs(m) & ((1 << drop) - 1)) > 0  # the dropped bits' sticky bit: float64 has room for it, FP32 rounds once
    top = (abs(m) >> drop) | odd
    return to_fp32(np.ldexp(float(top if m > 0 else -top), e + drop))[()]
