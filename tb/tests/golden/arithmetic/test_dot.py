"""The fused dot product against exact rationals: error bound, rounding, specials, order."""

from fractions import Fraction

import numpy as np
import pytest

from openvrex.golden.arithmetic.dot import CHUNKS, dot
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import DotFormat, ParamError
from openvrex.tb.library.operands import KINDS, operands

WINDOWS = (16, 24, 32)


def exact(a: np.ndarray, b: np.ndarray) -> tuple[Fraction, Fraction]:
    """Sum and sum of magnitudes of the products of two rows of finite numbers; subnormals count as zero."""
    total = magnitude = Fraction(0)
    for x, y in zip(a.astype(float).tolist(), b.astype(float).tolist(), strict=True):
        if min(abs(x), abs(y)) >= 2.0**-126:
            total += Fraction(x) * Fraction(y)
            magnitude += abs(Fraction(x) * Fraction(y))
    return total, magnitude


def nearest(x: Fraction) -> float:
    """FP32 nearest to x, ties to even, subnormals flushed, by search over integers."""
    if abs(x) < Fraction(2) ** -126:
        return 0.0
    e = 0
    while abs(x) >= Fraction(2) ** (e + 1):
        e += 1
    while abs(x) < Fraction(2) ** e:
        e -= 1
    unit = Fraction(2) ** (e - 23)
    low = x // unit
    rest = x - low * unit
    low += rest > unit / 2 or (rest == unit / 2 and low % 2 == 1)
    value = low * unit
    return float(value) if abs(value) < Fraction(2) ** 128 else float("inf") * (1 if x > 0 else -1)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["normal", "exponents", "cancel", "huge", "zero"])
def test_error_bound(kind, window):
    rng = np.random.default_rng(window)
    for n, length in ((64, 64), (64, 576), (7, 50), (1, 9)):
        a, b = operands(rng, kind, 6, length), operands(rng, kind, 5, length)
        got = dot(a, b, DotFormat(n, window))
        chunks = -(-length // n)
        for r, c in np.ndindex(got.shape):
            total, magnitude = exact(a[r], b[c])
            bound = (n - 1 + chunks - 1) * Fraction(2) ** (2 - window) * magnitude
            want, have = nearest(total), float(got[r, c])
            if np.isinf(want) or np.isinf(have):
                assert abs(total) + bound >= Fraction(2) ** 128 * (1 - Fraction(2) ** -25)
                continue
            half = max(abs(Fraction(have)), abs(Fraction(want)), Fraction(2) ** -126) * Fraction(2) ** -24
            assert abs(Fraction(have) - total) <= bound + half
            if not bound:
                assert have == want


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["normal", "exponents", "cancel", "huge", "zero"])
def test_error_bound_of_halves(kind, window):
    """The larger half is found as exactly as a sum of the whole chunk, whose largest product sets the unit."""
    rng = np.random.default_rng(window)
    for n, length in ((64, 64), (6, 6), (6, 5), (6, 3), (2, 1)):
        a, b = operands(rng, kind, 6, length), operands(rng, kind, 5, length)
        got = dot(a, b, DotFormat(n, window, True), halves=True)
        for r, c in np.ndindex(got.shape):
            parts = [exact(a[r, k], b[c, k]) for k in (slice(n // 2), slice(n // 2, None))]
            largest = max(total for total, _ in parts)
            bound = (n // 2) * Fraction(2) ** (2 - window) * max(magnitude for _, magnitude in parts)
            have = float(got[r, c])
            if np.isinf(have):
                assert abs(largest) + bound >= Fraction(2) ** 128 * (1 - Fraction(2) ** -25)
                continue
            half = max(abs(Fraction(have)), abs(Fraction(nearest(largest))), Fraction(2) ** -126) * Fraction(2) ** -24
            assert abs(Fraction(have) - largest) <= bound + half


def test_halves_are_those_of_two_products():
    """Within the window the result is the larger of the products of each half; over chunks, of each chunk's halves."""
    rng, fmt = np.random.default_rng(5), DotFormat(8, 24, True)
    a, b = (to_bf16(rng.integers(-99, 99, (7, 24)).astype(float)) for _ in range(2))
    whole, single = np.zeros((7, 7)), [x.astype(float).reshape(7, 6, 4) for x in (a, b)]
    for k in range(0, 6, 2):
        whole += np.maximum(*(single[0][:, j] @ single[1][:, j].T for j in (k, k + 1)))
    np.testing.assert_array_equal(dot(a, b, fmt, halves=True), whole.astype(np.float32))
    assert (dot(a, b, fmt) != whole).any()


def test_nothing_is_lost_within_the_window():
    """Products within window - 16 binades of the largest, in one block of exponents, are summed exactly."""
    rng = np.random.default_rng(3)
    a = to_bf16(rng.integers(128, 256, (9, 256)) / 128 * rng.choice([-1, 1], (9, 256)))
    b = to_bf16(rng.integers(128, 256, (9, 256)) / 128 * np.exp2(rng.integers(-2, 3, (9, 256))))
    got = dot(a, b, DotFormat(64, 24))
    for r, c in np.ndindex(got.shape):
        assert float(got[r, c]) == nearest(exact(a[r], b[c])[0])


def test_one_rounding_whatever_the_length():
    """1 + 2^-24 twice: rounded chunk by chunk it would stay 1."""
    a = np.zeros((1, 192), BF16)
    b = np.ones((1, 192), BF16)
    a[0, 0], a[0, 64], a[0, 128] = 1.0, 2.0**-24, 2.0**-24
    assert float(dot(a, b, DotFormat(64, 32))[0, 0]) == 1 + 2.0**-23


def bits(*values: int) -> np.ndarray:
    return np.array([values], np.uint16).view(BF16)


ONE, INF, NAN, ZERO, SUBNORMAL, HUGE = 0x3F80, 0x7F80, 0x7FC1, 0x0000, 0x007F, 0x7F7F
MINUS = 0x8000


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ((ONE, NAN), (ONE, ONE), 0x7FC00000),
        ((ONE, NAN), (ONE, ZERO), 0x7FC00000),
        ((INF, ONE), (ZERO, ONE), 0x7FC00000),
        ((INF, ONE), (SUBNORMAL, ONE), 0x7FC00000),
        ((INF, ONE), (ONE, ONE), 0x7F800000),
        ((INF, ONE), (ONE | MINUS, ONE), 0xFF800000),
        ((INF, INF), (ONE, ONE | MINUS), 0x7FC00000),
        ((INF, INF | MINUS), (ONE, ONE | MINUS), 0x7F800000),
        ((HUGE, HUGE), (HUGE, HUGE), 0x7F800000),
        ((HUGE, HUGE | MINUS), (HUGE, HUGE), 0x00000000),
        ((SUBNORMAL, ONE), (HUGE, ONE), 0x3F800000),
        ((ZERO | MINUS, ZERO), (ONE, ONE), 0x00000000),
        ((0x0080, ZERO), (0x3F00, ONE), 0x00000000),  # 2^-127 is flushed
        ((0x0080, ZERO), (ONE, ONE), 0x00800000),
    ],
)
@pytest.mark.parametrize("n", [1, 2, 64])
def test_specials(a, b, want, n):
    assert dot(bits(*a), bits(*b), DotFormat(n, 24)).view(np.uint32)[0, 0] == want


def test_a_special_value_spoils_its_row_alone():
    rng = np.random.default_rng(4)
    a, b = operands(rng, "normal", 5, 130), operands(rng, "normal", 4, 130)
    clean = dot(a, b, DotFormat())
    a[2, 100] = np.nan
    got = dot(a, b, DotFormat())
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_rows_change_nothing(kind, monkeypatch):
    rng = np.random.default_rng(5)
    a, b = operands(rng, kind, 9, 100), operands(rng, kind, 7, 100)
    whole = dot(a, b, DotFormat())
    monkeypatch.setattr("openvrex.golden.arithmetic.dot._PRODUCTS", 1)
    np.testing.assert_array_equal(dot(a, b, DotFormat()), whole)


def test_bad_sizes_are_refused():
    x = np.zeros((1, 3), BF16)
    with pytest.raises(ParamError, match="K=.*equally long"):
        dot(x, x[:, :2], DotFormat())
    with pytest.raises(ParamError, match="1024 chunks of 1"):
        dot(np.zeros((1, CHUNKS + 1), BF16), np.zeros((1, CHUNKS + 1), BF16), DotFormat(1))
    with pytest.raises(ParamError, match="window=15"):
        DotFormat(64, 15)
    with pytest.raises(ParamError, match="n_w=0"):
        DotFormat(0)
    with pytest.raises(ParamError, match="n_w=3: must be even"):
        DotFormat(3, halves=True)
    with pytest.raises(ParamError, match="halves=True: must be false"):
        dot(x, x, DotFormat(), halves=True)
    assert dot(np.zeros((2, 0), BF16), np.zeros((3, 0), BF16), DotFormat()).tolist() == [[0.0] * 3] * 2
