"""The arithmetic of the VPE, bit for bit: fused multiply-add of FP32 and BF16 numbers.

`fma` computes a * b + c exactly and rounds once to FP32. Operands below 2^-126 in magnitude are zeros of their sign,
a result whose exact magnitude is below 2^-126 is a zero of its sign, and an exact sum of zero is -0 only if product
and addend are both -0. So b = 1 adds, and c = -0 multiplies without touching the sign of a zero. NaN is 0x7fc00000:
the result of a NaN operand, infinity times zero, or a product and an addend of opposite infinities.
"""

import numpy as np

from golden.numerics import flush, to_fp32


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c rounded once, FP32; `a` and `c` FP32, `b` BF16."""
    with np.errstate(invalid="ignore"):
        product = flush_fp32(a).astype(np.float64) * flush(b).astype(np.float64)  # 24 + 8 bits: exact
        addend = flush_fp32(c).astype(np.float64)
        total = product + addend
        # TwoSum: what the rounding to float64 lost, exactly.
        other = total - product
        lost = (product - (total - other)) + (addend - other)
        # Rounded to odd instead, so that FP32 is rounded once.
        even = np.ascontiguousarray(total).view(np.int64) & 1 == 0
        inexact = np.isfinite(total) & (lost != 0) & even
    return to_fp32(np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total))


def flush_fp32(x: np.ndarray) -> np.ndarray:
    """`x` (FP32) with every subnormal made a zero of its sign."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return np.where(bits & 0x7F800000, bits, bits & 0x80000000).astype(np.uint32).view(np.float32)
