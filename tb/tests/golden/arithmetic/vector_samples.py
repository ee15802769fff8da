"""Operands of the VPE."""

import numpy as np

from openvrex.tb.library.operands import SPECIAL


def words(bits) -> np.ndarray:
    return np.asarray(bits, np.int64).astype(np.uint32).view(np.float32)


def operands(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """FP32, BF16 and FP32 bits: random, special, and addends that cancel, tie or vanish beside the product."""
    a, c = (rng.integers(0, 1 << 32, n) for _ in range(2))
    b = rng.integers(0, 1 << 16, n)
    near = rng.random(n) < 0.7  # the rest has all exponents
    a = np.where(near, a & 0x807FFFFF | rng.integers(100, 150, n) << 23, a)
    b = np.where(near, b & 0x807F | rng.integers(100, 150, n) << 7, b)
    with np.errstate(all="ignore"):
        product = words(a).astype(np.float64) * words(b << 16).astype(np.float64)
        scaled = [product * -(2.0 ** rng.integers(-2, 3, n)), product * 2.0 ** rng.integers(-40, 40, n), -product]
        for share, value in zip((0.25, 0.35, 0.6), scaled, strict=True):
            bits = value.astype(np.float32).view(np.uint32).astype(np.int64)
            bits = bits + rng.integers(-2, 3, n) & 0xFFFFFFFF
            c = np.where(rng.random(n) < share, bits, c)
    few = rng.random(n) < 0.3  # short significands make ties
    a, c = np.where(few, a & 0xFFF80000, a), np.where(rng.random(n) < 0.3, c & 0xFFFFF000, c)
    at = rng.random(n) < 0.05
    a = np.where(at, rng.choice(SPECIAL, n), a)
    b = np.where(rng.random(n) < 0.05, rng.choice(SPECIAL, n) >> 16, b)
    c = np.where(rng.random(n) < 0.1, rng.choice(SPECIAL, n), c)
    return a, b, c
