"""The VPE's golden arithmetic against exact rationals, which share no code with it."""

from fractions import Fraction
from math import isinf, isnan

import numpy as np
import pytest

from golden.numerics import BF16
from golden.vector import fma

SPECIAL = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x00000001, 0x807FFFFF]
SPECIAL += [0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000]


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


def exact(bits: int) -> Fraction | float:
    """The number that FP32 bits stand for, subnormals flushed; a float where it is no rational."""
    sign, exponent, fraction = -1 if bits >> 31 else 1, bits >> 23 & 255, bits & 0x7FFFFF
    if exponent == 255:
        return float("nan") if fraction else sign * float("inf")
    return sign * Fraction((1 << 23 | fraction) << exponent, 1 << 150) if exponent else Fraction(0)


def expected(a: int, b: int, c: int) -> int:
    """FP32 bits of the fused multiply-add, by the rules' text."""
    x, y, z = exact(a), exact(b << 16), exact(c)
    sign_p = (a >> 31) ^ (b >> 15)
    nan = any(isinstance(v, float) and isnan(v) for v in (x, y, z))
    infinite = [isinstance(v, float) and isinf(v) for v in (x, y, z)]
    zero_times = (infinite[0] and y == 0) or (infinite[1] and x == 0)
    product_inf = infinite[0] or infinite[1]
    if nan or zero_times or (product_inf and infinite[2] and sign_p != c >> 31):
        return 0x7FC00000
    if product_inf or infinite[2]:
        return 0x7F800000 | (sign_p if product_inf else c >> 31) << 31
    total = x * y + z
    if total == 0:
        return (x * y == 0 and z == 0 and sign_p == 1 and c >> 31 == 1) << 31
    sign = (total < 0) << 31
    if abs(total) < Fraction(1, 1 << 126):
        return sign
    e = abs(total.numerator).bit_length() - total.denominator.bit_length()
    e -= abs(total) < Fraction(2) ** e
    significand = round(abs(total) / Fraction(2) ** (e - 23))  # Fraction rounds half to even
    if significand >> 24:
        significand, e = significand >> 1, e + 1
    return sign | (0x7F800000 if e > 127 else (e + 127) << 23 | significand & 0x7FFFFF)


def test_fma_against_fractions():
    a, b, c = operands(np.random.default_rng(1), 6000)
    got = fma(words(a), b.astype(np.uint16).view(BF16), words(c)).view(np.uint32).tolist()
    seen = set()
    for x, y, z, bits in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        assert bits == expected(x, y, z), (hex(x), hex(y), hex(z))
        seen |= {"zero"} if bits == 0 else {"nan"} if bits == 0x7FC00000 else set()
        seen |= {"infinite"} if bits & 0x7FFFFFFF == 0x7F800000 else set()
    assert seen == {"zero", "nan", "infinite"}


def test_fma_of_special_operands():
    for x in SPECIAL:
        for y in SPECIAL:
            b = np.full(len(SPECIAL), y >> 16, np.uint16).view(BF16)
            got = fma(words([x] * len(SPECIAL)), b, words(SPECIAL)).view(np.uint32).tolist()
            assert got == [expected(x, y >> 16, z) for z in SPECIAL]


@pytest.mark.parametrize("c", [0x80000000, 0x3F800000])
def test_fma_rounds_once(c):
    """Products of 32 bits beside addends: rounding twice would give the neighbour."""
    a, b = 0x3F800001, 0x3F81  # (1 + 2^-23)(1 + 2^-7): just above a tie
    got = fma(words([a]), np.array([b], np.uint16).view(BF16), words([c])).view(np.uint32)
    assert got[0] == expected(a, b, c)
