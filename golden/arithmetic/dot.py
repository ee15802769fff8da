"""The fused BF16 dot product of the DPE: exact products, aligned integer sums, one rounding for a row of any length.

A row is cut into chunks of `n` numbers, the last one ragged. With biased exponents e = ea + eb and products
p = ma * mb of 8-bit significands (value p * 2^(e - 268)):

* Chunk: E is the largest e of the products that are not zero, 0 if all are. A product becomes
  floor(p * 2^(window - 16) / 2^(E - e)), `window` bits; with its sign it enters an exact integer sum S, whose unit is
  2^(E - 252 - window).
* Row: S * 2^(E mod 8) is added to an integer whose unit is that of E - (E mod 8). The larger of the two units wins: the
  other side is shifted right by a multiple of 8 (floor).
* The end: the integer is rounded once to FP32 by the rules of `golden.arithmetic.numerics`.

Error, in shares of the row's sum of magnitudes: at most n - 1 products of a chunk lose less than one unit each, a step
of the row less than another, and a unit is at most 2^(2 - window) of the largest product of the chunks so far. So the
loss is below (n - 1 + chunks - 1) * 2^(2 - window); the final rounding adds 2^-24 of the result. Nothing is lost where
no product of a chunk is more than window - 16 binades below its largest and all chunks share E div 8.

NaN, infinity and zero: as `golden.arithmetic.numerics.matmul`. A sum of zero is +0.

Source: V-Rex section V-A (the DPE's MAC trees); the fused form is this project's own (`docs/decisions.md`).
"""

import numpy as np

from golden.arithmetic.numerics import flush, to_fp32
from golden.function_params import DotFormat, check

BLOCK_BITS = 3  # the accumulator's unit is a multiple of 2^3 binades
CHUNKS = 1024  # of the longest row: what the accumulator has room for
_PRODUCTS = 1 << 21  # held at once
_EMPTY = -4096  # exponent of a product that is zero


def dot(a: np.ndarray, b: np.ndarray, fmt: DotFormat) -> np.ndarray:
    """Dot products of the rows of `a` [R, K] with the rows of `b` [C, K] (BF16), FP32 [R, C]. K of 0 gives +0.

    `ParamError` if the rows of the two differ in length or have more than 1,024 chunks.
    """
    length = a.shape[1]
    check(length == b.shape[1], "K", (length, b.shape[1]), "rows of both operands must be equally long")
    check(length <= CHUNKS * fmt.n, "K", length, f"must be at most {CHUNKS} chunks of {fmt.n}")
    a, b = flush(a), flush(b)
    out = np.zeros((len(a), len(b)), np.float32)
    if not length or not out.size:
        return out
    step = max(1, _PRODUCTS // (len(b) * min(fmt.n, length)))
    for r in range(0, len(a), step):
        out[r : r + step] = _rows(a[r : r + step], b, fmt)
    return out


def chunk(a: np.ndarray, b: np.ndarray, fmt: DotFormat) -> tuple[np.ndarray, np.ndarray]:
    """S and E of a chunk, int64 [R, C] each, for finite flushed operands of at most `fmt.n` columns."""
    top = np.maximum((_exponents(a)[:, None] + _exponents(b)[None]).max(axis=2), 0)
    products = a.astype(np.float64)[:, None] * b.astype(np.float64)[None]
    np.ldexp(products, (252 + fmt.window - top)[..., None], out=products)
    return np.trunc(products, out=products).sum(axis=2).astype(np.int64), top.astype(np.int64)


def _rows(a: np.ndarray, b: np.ndarray, fmt: DotFormat) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        special = a.astype(np.float64) @ b.astype(np.float64).T  # finite sums cannot overflow in float64
    finite = np.isfinite(special)
    if not finite.all():  # their rows are computed with the others and then replaced
        a, b = (np.where(np.isfinite(x.astype(np.float32)), x, x.dtype.type(0)) for x in (a, b))
    total = block = None
    for k in range(0, a.shape[1], fmt.n):
        s, e = chunk(a[:, k : k + fmt.n], b[:, k : k + fmt.n], fmt)
        s, e = s << (e & (1 << BLOCK_BITS) - 1), e >> BLOCK_BITS
        if total is None:
            total, block = s, e
            continue
        larger = np.maximum(block, e)
        total = (total >> _shift(larger - block)) + (s >> _shift(larger - e))
        block = larger
    exact = np.ldexp(_odd(total), (block << BLOCK_BITS) - 252 - fmt.window)
    return np.where(finite, to_fp32(exact), to_fp32(special)) + np.float32(0)


def _shift(blocks: np.ndarray) -> np.ndarray:
    return np.minimum(blocks << BLOCK_BITS, 63)


def _odd(x: np.ndarray) -> np.ndarray:
    """`x` (int64) in float64; where that has too few bits, rounded to odd, so that FP32 is still rounded once."""
    kept = x >> 10 << 10 | ((x & 1023) != 0) << 10
    return np.where(np.abs(x) < 1 << 53, x, kept).astype(np.float64)


def _exponents(x: np.ndarray) -> np.ndarray:
    """Biased exponents of flushed BF16 numbers, far below all others for a zero."""
    e = (x.view(np.uint16) >> 7 & 0xFF).astype(np.int32)
    return np.where(e, e, _EMPTY)
