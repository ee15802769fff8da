"""BF16 operands of dot products: each kind of number that takes its own path through the hardware."""

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16

# Bits of FP32 numbers: zeros, infinities, NaNs, the ends of subnormal and normal numbers, ones.
SPECIAL = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x00000001, 0x807FFFFF]
SPECIAL += [0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000]

KINDS = ("normal", "exponents", "bits", "cancel", "huge", "special", "zero", "one_nan")


def operands(rng, kind: str, *shape: int) -> np.ndarray:
    """Random BF16 numbers of `shape`, of one of `KINDS`."""
    if kind == "bits":
        return rng.integers(0, 1 << 16, shape).astype(np.uint16).view(BF16)
    x = rng.standard_normal(shape)
    if kind == "exponents":
        x = x * np.exp2(rng.integers(-60, 60, shape))
    if kind == "cancel":  # pairs that cancel, with remainders far below
        x[..., 1::2] = x[..., : x.shape[-1] // 2 * 2 : 2] * np.where(rng.random(x[..., 1::2].shape) < 0.8, -1, 1.01)
    if kind == "huge":
        x = np.where(rng.random(shape) < 1 / 16, 2.0**120, x * 2.0**-30)
    if kind == "zero":
        x = x * (rng.random(shape) < 0.1)
    out = to_bf16(x)
    if kind in ("special", "one_nan"):
        values = np.array([0x7F80, 0xFF80, 0x7F81, 0xFFC0, 0, 0x8000, 1, 0x7F7F], np.uint16)
        some = rng.random(shape) < (0.1 if kind == "special" else 1 / 64)
        out = np.where(some, rng.choice(values, shape), out.view(np.uint16)).view(BF16)
    return out
