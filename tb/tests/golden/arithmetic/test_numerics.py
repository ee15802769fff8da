"""Numeric rules against exact rationals (fractions.Fraction), which share no code with golden.arithmetic.numerics."""

from fractions import Fraction
from math import inf, isinf, isnan, nan

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, exact_dot, flush, matmul, positive, to_bf16, to_fp32


def rounded(x: Fraction, bits: int) -> float:
    """`x` rounded to `bits` significant bits, ties to even, flushed below 2^-126, infinite from 2^128."""
    if abs(x) < Fraction(1, 2**126):
        return 0.0
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    e -= abs(x) < Fraction(2) ** e
    unit = Fraction(2) ** (e - bits + 1)
    y = round(x / unit) * unit  # Fraction rounds half to even
    return float(y) if abs(y) < 2**128 else inf if y > 0 else -inf


def same(got, want):
    return (isnan(got) and isnan(want)) or got == want


def as_float(x):
    """Floats of BF16 bits, by their definition (NumPy warns about signalling NaN)."""
    return np.left_shift(x.view(np.uint16).astype(np.uint32), 16).view(np.float32)


EVERY = np.arange(65536, dtype=np.uint16).view(BF16)


def test_flush_over_every_bf16():
    for x, y in zip(EVERY.view(np.uint16).tolist(), flush(EVERY).view(np.uint16).tolist(), strict=True):
        assert y == (x if x & 0x7F80 else x & 0x8000)


def test_every_bf16_is_its_own_rounding():
    out = to_bf16(as_float(EVERY))
    keep = ~np.isnan(as_float(EVERY))
    np.testing.assert_array_equal(out.view(np.uint16)[keep], flush(EVERY).view(np.uint16)[keep])
    assert set(out.view(np.uint16)[~keep].tolist()) == {0x7FC0}


@pytest.mark.parametrize(("fn", "bits"), [(to_bf16, 8), (to_fp32, 24)])
def test_rounding_against_fractions(fn, bits):
    rng = np.random.default_rng(bits)
    m = 2 ** (bits - 1) + rng.integers(0, 2 ** (bits - 1), 600)
    ties = (2 * m + 1).astype(float) * 2.0 ** rng.integers(-135 - bits, 128 - bits, 600)
    near = [np.nextafter(ties, d) for d in (0, inf)]
    edges = [
        2.0**-126,
        np.nextafter(2.0**-126, 0),
        2.0**-127,
        2.0**128,
        2.0**128 * (1 - 2.0 ** -(bits + 1)),
        0.0,
        1e300,
    ]
    xs = np.concatenate([ties, *near, edges, rng.standard_normal(200)])
    for sign in (1, -1):
        for x, y in zip((sign * xs).tolist(), fn(sign * xs).astype(float).tolist(), strict=True):
            assert y == rounded(Fraction(x), bits), x
    assert str(fn(np.array([-1e-50]))[0]) in ("-0", "-0.0")


def vectors(rng, rows, n, spread):
    x = rng.standard_normal((rows, n)) * 2.0 ** rng.integers(-spread, spread + 1, (rows, n))
    return to_bf16(np.where(rng.random((rows, n)) < 0.1, 0, x))


def fraction_dot(a, b):
    return sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("n", [1, 2, 16, 128])
@pytest.mark.parametrize("spread", [0, 20, 60, 120])
def test_dot_against_fractions(n, spread):
    """Half of the pairs cancel to their smallest term, where float64 alone is wrong."""
    rng = np.random.default_rng([n, spread])
    a, b = vectors(rng, 6, n, spread), vectors(rng, 6, n, spread)
    if n > 1:
        a[:3, n // 2 : n // 2 * 2] = -a[:3, : n // 2]
        b[:3, n // 2 : n // 2 * 2] = b[:3, : n // 2]
        a[:3, -1] = flush(a[:3, -1] * BF16(2.0**-spread))
    got, sign = matmul(a, b), positive(a, b)
    for r in range(6):
        for c in range(6):
            want = fraction_dot(a[r], b[c])
            m, e = exact_dot(a[r], b[c])
            assert m * Fraction(2) ** e == want
            assert float(got[r, c]) == rounded(want, 24)
            assert sign[r, c] == (want > 0)


def test_sum_that_float64_gets_wrong():
    big, small = 2.0**100, 2.0**-100
    a = to_bf16(np.array([[big, small, -big], [big, -small, -big], [big, 0, -big], [1, 2.0**-24, 2.0**-80]]))
    one = to_bf16(np.ones((1, 3)))
    assert matmul(a, one)[:, 0].tolist() == [small, -small, 0.0, 1 + 2.0**-23]
    assert positive(a, one)[:, 0].tolist() == [True, False, False, True]
    assert not np.signbit(matmul(a, one)[2, 0])


def test_order_does_not_matter():
    rng = np.random.default_rng(5)
    a, b = vectors(rng, 4, 64, 30), vectors(rng, 5, 64, 30)
    want = matmul(a, b)
    for _ in range(5):
        p = rng.permutation(64)
        np.testing.assert_array_equal(matmul(a[:, p], b[:, p]), want)


def test_underflow_is_plus_zero_and_subnormal_operands_are_zero():
    t = 2.0**-100
    got = matmul(to_bf16(np.array([[t], [-t]])), to_bf16(np.array([[t]])))[:, 0]
    assert got.tolist() == [0.0, 0.0]
    assert not np.signbit(got).any()
    assert positive(to_bf16(np.array([[t]])), to_bf16(np.array([[t]])))[0, 0]
    sub = np.array([[1]], np.uint16).view(BF16)
    big = to_bf16(np.array([[2.0**127]]))
    assert matmul(sub, big)[0, 0] == 0
    assert not positive(sub, big)[0, 0]


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ([nan, 1], [0, 1], nan),
        ([inf, 1], [0, 1], nan),
        ([inf, 1], [1, 1], inf),
        ([inf, 1], [-1, 1], -inf),
        ([inf, inf], [1, -1], nan),
        ([inf, -inf], [1, -1], inf),
        ([2.0**127, 2.0**127], [2.0**127, -(2.0**127)], 0.0),
        ([2.0**127, 1], [2, 1], inf),
    ],
)
def test_nan_and_infinity(a, b, want):
    with np.errstate(all="ignore"):
        a, b = (np.array([x], np.float32).astype(BF16) for x in (a, b))
    got = float(matmul(a, b)[0, 0])
    assert same(got, want)
    assert positive(a, b)[0, 0] == (want > 0)
    if isnan(want):
        assert matmul(a, b).view(np.uint32)[0, 0] == 0x7FC00000
    assert isinf(want) == isinf(got)
