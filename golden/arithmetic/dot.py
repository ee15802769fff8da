"""The DPE's dot product of BF16 rows, bit for bit: it aligns exact products, adds integers and rounds once per row.

The DPE cuts a row into chunks of `n` numbers; the last chunk may be shorter. Two operands have the sum of biased
exponents e = ea + eb and the product of 8-bit significands p = ma * mb. The product's value is p * 2^(e - 268).

* Chunk: E is the largest e among the products that are not zero, or 0 if all are zero. The DPE aligns each product to
  floor(p * 2^(window - 16) / 2^(E - e)), a number of `window` bits. It adds them with their signs to an exact
  integer S. The unit of S is 2^(E - 252 - window).
  Of `halves`, S is the larger of the sums of the first and the last n / 2 products.
* Row: the accumulator is an integer whose unit is that of an exponent divisible by 8. It takes S * 2^(E mod 8), which
  has the unit of E - (E mod 8). If the units differ, the larger wins, and the other side is shifted right by a
  multiple of 8, rounding down.
* End: the integer is rounded once to FP32 by the rules of `golden.arithmetic.numerics`.

Error bound, relative to the row's sum of magnitudes:

* In a chunk, at most n - 1 products lose less than one unit each. Each step of the row loses less than one unit more.
* A unit is at most 2^(2 - window) of the largest product so far.
* So the loss is below (n - 1 + chunks - 1) * 2^(2 - window). The final rounding adds 2^-24 of the result.

The integer sum is exact under two conditions: all chunks have the same E div 8, and no product is more than
window - 16 binades below the largest of its chunk.

NaN, infinity and zero follow `golden.arithmetic.numerics.matmul`; those of both halves count. A sum of zero is +0.

Source: V-Rex section V-A (the DPE's MAC trees); the fused form is this project's own (`docs/decisions.md`).
"""

from functools import reduce

import numpy as np

from openvrex.golden.arithmetic.numerics import flush, to_fp32
from openvrex.golden.function_params import DotFormat, check

BLOCK_BITS = 3  # the exponent of the accumulator's unit is a multiple of 2^3
CHUNKS = 1024  # chunks of the longest row that the accumulator has room for
_PRODUCTS = 1 << 21  # products held in memory at once
_EMPTY = -4096  # stands for the exponent of a zero


def dot(a: np.ndarray, b: np.ndarray, fmt: DotFormat, halves: bool = False) -> np.ndarray:
    """Dot products of each row of `a` [R, K] with each row of `b` [C, K] (BF16) as the DPE computes them, FP32 [R, C].

    halves : take the larger sum of each chunk's halves instead of their sum; needs `fmt.halves`

    Empty rows (K = 0) give +0. Raises `ParamError` if rows of `a` and `b` differ in length or exceed 1,024 chunks, or
    for halves that the format lacks.
    """
    length = a.shape[1]
    check(fmt.halves or not halves, "halves", halves, "must be false: the format has none")
    check(length == b.shape[1], "K", (length, b.shape[1]), "rows of both operands must be equally long")
    check(length <= CHUNKS * fmt.n, "K", length, f"must be at most {CHUNKS} chunks of {fmt.n}")
    a, b = flush(a), flush(b)
    out = np.zeros((len(a), len(b)), np.float32)
    if not length or not out.size:
        return out
    step = max(1, _PRODUCTS // (len(b) * min(fmt.n, length)))
    for r in range(0, len(a), step):
        out[r : r + step] = _rows(a[r : r + step], b, fmt, halves)
    return out


def chunk(a: np.ndarray, b: np.ndarray, fmt: DotFormat, halves: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The sum S and the exponent E of one chunk, int64 [R, C] each.

    `a` [R, k] and `b` [C, k] are finite BF16 numbers without subnormals, k at most `fmt.n`. halves : as of `dot`
    """
    top = np.maximum((_exponents(a)[:, None] + _exponents(b)[None]).max(axis=2), 0)
    products = a.astype(np.float64)[:, None] * b.astype(np.float64)[None]
    np.ldexp(products, (252 + fmt.window - top)[..., None], out=products)
    np.trunc(products, out=products)
    middle = fmt.n // 2
    parts = (products[..., :middle], products[..., middle:]) if halves else (products,)
    total = reduce(np.maximum, [part.sum(axis=2) for part in parts])
    return total.astype(np.int64), top.astype(np.int64)


def _rows(a: np.ndarray, b: np.ndarray, fmt: DotFormat, halves: bool) -> np.ndarray:
    """`dot` of flushed operands of at least one column."""
    with np.errstate(invalid="ignore"):
        special = a.astype(np.float64) @ b.astype(np.float64).T  # finite sums cannot overflow in float64
    finite = np.isfinite(special)
    if not finite.all():  # compute on zeros instead of NaN and infinity, and replace the affected results at the end
        a, b = (np.where(np.isfinite(x.astype(np.float32)), x, x.dtype.type(0)) for x in (a, b))
    total = np.zeros((len(a), len(b)), np.int64)  # accumulators
    block = np.zeros_like(total)  # exponents of their units, in steps of 2^BLOCK_BITS
    for k in range(0, a.shape[1], fmt.n):
        s, e = chunk(a[:, k : k + fmt.n], b[:, k : k + fmt.n], fmt, halves)
        s, e = s << (e & (1 << BLOCK_BITS) - 1), e >> BLOCK_BITS
        larger = np.maximum(block, e)
        total = (total >> _shift(larger - block)) + (s >> _shift(larger - e))
        block = larger
    exact = np.ldexp(_odd(total), (block << BLOCK_BITS) - 252 - fmt.window)
    return np.where(finite, to_fp32(exact), to_fp32(special)) + np.float32(0)


def _shift(blocks: np.ndarray) -> np.ndarray:
    """Bits of a right shift by `blocks`; 63 shifts everything out."""
    return np.minimum(blocks << BLOCK_BITS, 63)


def _odd(x: np.ndarray) -> np.ndarray:
    """`x` (int64) as float64; numbers of over 53 bits are rounded to odd, so that rounding to FP32 stays correct."""
    kept = x >> 10 << 10 | ((x & 1023) != 0) << 10
    return np.where(np.abs(x) < 1 << 53, x, kept).astype(np.float64)


def _exponents(x: np.ndarray) -> np.ndarray:
    """Biased exponents of flushed BF16 numbers, int32; that of a zero is far below all others."""
    e = (x.view(np.uint16) >> 7 & 0xFF).astype(np.int32)
    return np.where(e, e, _EMPTY)
