"""Centroids of the hardware: every rounding against exact rationals, and the decisions against brute force."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic import elementwise
from openvrex.golden.arithmetic.vector import Sum, fma
from openvrex.golden.function_params import DotFormat, ParamError, ReSVParams, ScoreFormat
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.retrieval import centroids
from openvrex.golden.retrieval.wicsum import select

BF16 = ml_dtypes.bfloat16
SMALL = DotFormat(4, 24)  # several words and chunks in short rows
FMTS = [SMALL, DotFormat()]
SEEDS = st.integers(0, 2**32 - 1)


def fractions(x) -> list[Fraction]:
    return [Fraction(float(v)) for v in np.ravel(x)]


def rounded(x: Fraction, bits: int) -> Fraction:
    """x rounded to `bits` significant bits, ties to even; the normal range is not left."""
    if not x:
        return x
    e = 0
    while abs(x) >= 2**bits * Fraction(2) ** e:
        e += 1
    while abs(x) < 2 ** (bits - 1) * Fraction(2) ** e:
        e -= 1
    unit = Fraction(2) ** e
    return round(x / unit) * unit  # Python rounds a Fraction half to even


def fp32(x: Fraction) -> Fraction:
    return rounded(x, 24)


def bf16(x: Fraction) -> Fraction:
    return rounded(x, 8)


def vectors(seed: int, n: int, width: int = 6, kinds: int = 3, noise: float = 0.4) -> np.ndarray:
    """Directions near a few, BF16."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((kinds, width))[rng.integers(kinds, size=n)] + noise * rng.standard_normal((n, width))
    return centroids.directions(x.astype(BF16), SMALL)


# Parts


@given(SEEDS, st.integers(1, 70), st.sampled_from([1, 4, 64]), st.sampled_from([0, 3, 40]))
def test_row_sums_are_the_vpe_s(seed, length, lanes, spread):
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.standard_normal((3, length)), rng.integers(-spread, spread + 1, (3, length))).astype(np.float32)
    x[0, rng.random(length) < 0.3] = 0
    for row, got in zip(x, centroids.row_sums(x, lanes), strict=True):
        total = Sum()
        for at in range(0, length, lanes):
            total.add(row[at : at + lanes])
        assert got == total.total()


@given(SEEDS)
def test_add_is_an_fma_with_a_factor_of_one(seed):
    bits = np.random.default_rng(seed).integers(0, 2**32, (2, 400), np.uint32)
    bits[1, :200] = bits[0, :200] ^ np.random.default_rng(seed + 1).integers(0, 2**25, 200, np.uint32) ^ 2**31
    a, b = bits.view(np.float32)
    good = np.isfinite(a) & np.isfinite(b)
    a, b = a[good], b[good]
    with np.errstate(over="ignore"):
        got = centroids.add(a, b)
    want = fma(a, np.full(a.shape, 1, BF16), b)
    same = got.view(np.uint32) == want.view(np.uint32)
    assert same[np.isfinite(want)].all()


@settings(max_examples=40)
@example(0, 1, -24, FMTS[0])  # |k|^2 is near 2^-60
@given(SEEDS, st.integers(1, 9), st.integers(-30, 30), st.sampled_from(FMTS))
def test_directions_and_norms(seed, width, scale, fmt):
    """A number of a direction is off by the root's error and one rounding; its norm by the row sum's rounding.

    Both are those of k / sqrt(|k|^2 + 2^-60): a vector of about that length is scaled to less than 1.
    """
    k = np.ldexp(np.random.default_rng(seed).standard_normal((5, width)), scale).astype(BF16)
    exact = k.astype(np.float64)
    square = (exact**2).sum(axis=1, keepdims=True)
    want = exact / np.sqrt(square + 2.0**-60)
    x = centroids.directions(k, fmt)
    assert (np.abs(x.astype(np.float64) - want) <= np.abs(want) * (2.0**-8 + 2.0**-13) + 1e-30).all()
    words = -(-width // fmt.n)
    for row, q, s in zip(x, centroids.norms(x, fmt), square[:, 0], strict=True):
        true = sum(v * v for v in fractions(row))
        lost = (width + words) * Fraction(2) ** -23 * max(v * v for v in fractions(row))
        assert abs(Fraction(float(q)) - true) <= lost + true * Fraction(2) ** -24
        assert abs(true - Fraction(s / (s + 2.0**-60))) < Fraction(1, 64)


def test_a_zero_vector_has_no_direction():
    k = np.zeros((1, 8), BF16)
    assert (centroids.directions(k, SMALL) == 0).all()
    assert centroids.norms(k, SMALL)[0] == 0


@given(SEEDS, st.integers(1, 300), st.floats(0, 1, width=32), st.floats(0, 4, width=32))
def test_grown_and_moved_round_as_stated(seed, size, variance, d):
    u = bf16(1 / bf16(Fraction(size + 1)))
    v, dist = Fraction(variance), Fraction(d)
    t = fp32(dist * u + v)
    want = fp32(t - t * u)
    got = centroids.grown(np.array([variance], np.float32), np.array([d], np.float32), np.array([size]))
    if min(abs(t), abs(want)) >= Fraction(2) ** -126:
        assert Fraction(float(got[0])) == want
    m, x = vectors(seed, 2)
    for m_i, x_i, new in zip(
        fractions(m), fractions(x), fractions(centroids.moved(m.copy(), x.copy(), size)), strict=True
    ):
        assert new == bf16(fp32(fp32(x_i - m_i) * u + m_i))


@given(SEEDS, st.integers(1, 40))
def test_the_mean_of_members_rounds_as_stated(seed, n):
    x = vectors(seed, n)
    g = bf16(1 / bf16(Fraction(n)))
    f = fp32(fp32(1 - n * g) * g + g)
    h = bf16(f)
    low = bf16(fp32(f - h))
    for column, got in zip(x.T, fractions(centroids.mean(x)), strict=True):
        s = Fraction(0)
        for v in fractions(column):
            s = fp32(s + v)
        assert got == bf16(fp32(s * h + fp32(s * low)))
    assert n > 1 or (centroids.mean(x) == x[0]).all()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 257, 999, 65_537, 2**24 - 1])
def test_divided_is_close(n):
    s = np.random.default_rng(n).standard_normal(100).astype(np.float32) * n
    want = s.astype(np.float64) / n
    assert (np.abs(centroids.divided(s, n) - want) <= np.abs(want) * 2.0**-13).all()


@pytest.mark.parametrize("limits", [(0.06, 0.12, 16.0), (0.08, 0.16, 16.0), (0.05, 0.05, 16.0), (0.0, 0.5, 3.0)])
def test_the_threshold_is_equation_5(limits):
    """Error: of the exponent (two roundings to BF16), of exp, and of both constants."""
    size = np.concatenate([np.arange(1, 3000), [10**5, 2**24 - 1]])
    small, large, rate = limits
    got = centroids.threshold(size, *limits)
    want = np.array([Threshold(*limits)(int(n)) for n in size])
    z = size / rate
    fade = np.exp(-z) * (np.minimum(z * 2.0**-8 * 1.01, 1) + 0.69 * 2.0**-7 + 2.0**-8)
    bound = (large - small) * (fade + 2.0**-9 * 1.01) + large * (2.0**-9 + 2.0**-23)
    assert (np.abs(got - want) <= bound).all()
    assert (np.diff(got) >= 0).all()


def test_the_threshold_rounds_as_stated():
    for n in (1, 2, 5, 16, 40, 128, 129, 1000):
        w = bf16(Fraction(-1, 16))
        z = np.array([float(bf16(fp32(n * w)))]).astype(BF16)
        e = Fraction(float(elementwise.exp(z)[0]))
        want = fp32(bf16(Fraction(0.16)) - e * bf16(Fraction(0.16 - 0.08)))
        assert Fraction(float(centroids.threshold(np.array([n]), 0.08, 0.16, 16.0)[0])) == want


# Nearest centroid


def brute(x: np.ndarray, m: np.ndarray) -> list[list[Fraction]]:
    """Exact squared distances."""
    return [
        [sum((a - b) ** 2 for a, b in zip(fractions(one), fractions(c), strict=True)) for c in m]  # type: ignore[misc]
        for one in x
    ]


@given(SEEDS, st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.sampled_from(FMTS))
def test_small_integers_give_the_exact_nearest_and_ties_the_lowest(seed, rows, clusters, width, fmt):
    """All products and sums of small integers are exact, so brute force must agree to the bit; ties are common."""
    rng = np.random.default_rng(seed)
    x, m = (rng.integers(-2, 3, (n, width)).astype(BF16) for n in (rows, clusters))
    score = centroids.scores(x, m, centroids.norms(m, fmt), fmt)
    got = centroids.nearest(score)
    d = centroids.distances(centroids.norms(x, fmt)[:, None] + 0 * score, score)
    for i, exact in enumerate(brute(x, m)):
        assert got[i] == exact.index(min(exact))
        assert fractions(d[i]) == exact


@settings(max_examples=30)
@given(SEEDS, st.integers(2, 6), st.sampled_from([3, 64, 130]), st.sampled_from(FMTS))
def test_the_nearest_is_exact_up_to_its_rounding(seed, clusters, width, fmt):
    """The chosen centroid is no farther than the nearest by more than twice the error of a distance."""
    x = vectors(seed, 4, width)
    m = np.stack([centroids.mean(vectors(seed + c, 3, width)) for c in range(clusters)])
    score = centroids.scores(x, m, centroids.norms(m, fmt), fmt)
    d = centroids.distances(centroids.norms(x, fmt)[:, None] + 0 * score, score)
    words = -(-width // fmt.n)
    product = (fmt.n + words) * Fraction(2) ** (2 - fmt.window) * Fraction(17, 16)  # of lengths of about 1
    error = 2 * product + 2 * (width + words) * Fraction(2) ** -23 + Fraction(2) ** -20
    assert error < centroids.EQUAL * 8
    for i, exact in enumerate(brute(x, m)):
        assert exact[centroids.nearest(score)[i]] <= min(exact) + 2 * error
        assert all(abs(a - b) <= error for a, b in zip(fractions(d[i]), exact, strict=True))


# Running statistics


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 5), st.integers(1, 60))
def test_running_statistics_follow_the_definition(seed, first, more):
    """A step of the mean loses a rounding to BF16 and the error of u; earlier losses fade as the mean does.

    The variance is within the mean's distance from the true one of Equation 2, which is exact for any centre.
    """
    x = vectors(seed, first + more, 8)
    m = centroids.mean(x[:first])
    v = np.array([centroids.variance(x[:first], m, SMALL)])
    for n in range(first, first + more):
        q = centroids.norms(m[None], SMALL)
        score = centroids.scores(x[n : n + 1], m[None], q, SMALL)[:, 0]
        d = centroids.distances(centroids.norms(x[n : n + 1], SMALL), score)
        v, m = centroids.grown(v, d, np.array([n])), centroids.moved(m, x[n], n)
    n = first + more
    exact = x.astype(np.float64)
    mean = exact.mean(axis=0)
    off = np.abs(m.astype(np.float64) - mean)
    most = np.abs(exact).max()
    assert (off <= most * ((n + 1) * 2.0**-10 + 2.0**-6)).all()
    spread = ((exact - mean) ** 2).sum(axis=1).mean()
    step = np.sqrt(8) * most * ((n + 1) * 2.0**-10 + 2.0**-6)  # of the whole vector, at every earlier size too
    assert abs(float(v[0]) - spread) <= 4 * step + step**2 + 2.0**-6 * spread + 2.0**-12


@given(SEEDS, st.integers(1, 20))
def test_variance_of_equal_members_is_zero_but_for_rounding(seed, n):
    x = np.repeat(vectors(seed, 1), n, axis=0)
    m = centroids.mean(x)
    exact = float(np.abs(m.astype(np.float64) - x[0].astype(np.float64)).max())
    assert exact <= 2.0**-9
    assert 0 <= centroids.variance(x, m, SMALL) <= 6 * exact**2 + float(centroids.EQUAL)


# K-means


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 25), st.integers(1, 6), st.sampled_from([1, 4, 50]))
def test_k_means_labels_every_row_once(seed, n, k, rounds):
    """Labels have no gap, there are at most k, nothing but the arguments decides, and an end is a fixed point."""
    x = vectors(seed, n, kinds=4)
    labels, ran = centroids.k_means(x, k, SMALL, rounds)
    assert labels.shape == (n,)
    assert set(labels.tolist()) == set(range(labels.max() + 1))
    assert labels.max() < min(k, n)
    assert 1 <= ran <= rounds
    again = centroids.k_means(x.copy(), k, SMALL, rounds)
    np.testing.assert_array_equal(labels, again[0])
    if ran == rounds == 50 or labels.max() == 0:
        return
    if rounds == 50:
        m = [np.mean(x[labels == c].astype(np.float64), axis=0) for c in range(labels.max() + 1)]
        d = ((x.astype(np.float64)[:, None] - np.stack(m)[None]) ** 2).sum(axis=2)
        assert (d[np.arange(n), labels] <= d.min(axis=1) + 0.02).all()  # means are BF16 numbers: 2^-8 of a length 1


def test_two_means_separate_two_groups():
    x = np.eye(2)[[0, 1, 1, 0, 0]] + 0.01
    labels, _ = centroids.k_means(centroids.directions(x.astype(BF16), SMALL), 2, SMALL)
    assert set(map(tuple, (np.flatnonzero(labels == c).tolist() for c in (0, 1)))) == {(0, 3, 4), (1, 2)}


@pytest.mark.parametrize("n", [1, 2, 7])
def test_k_means_of_equal_rows_is_one_cluster(n):
    assert not centroids.k_means(np.repeat(vectors(1, 1), n, axis=0), 2, SMALL)[0].any()


def test_k_means_of_nothing_is_refused():
    with pytest.raises(ParamError, match="K-means needs at least one vector"):
        centroids.k_means(np.zeros((0, 4), BF16), 2, SMALL)


@settings(max_examples=40)
@given(SEEDS, st.sampled_from(["huge", "tiny", "mixed", "zero"]))
def test_nothing_is_nan_or_infinite(seed, kind):
    rng = np.random.default_rng(seed)
    scale = {"huge": 60, "tiny": -140, "mixed": rng.integers(-140, 60, (6, 4)), "zero": -300}[kind]
    k = np.ldexp(rng.uniform(-1, 1, (6, 4)), scale).astype(BF16)
    x = centroids.directions(k, SMALL)
    m = centroids.mean(x)
    q = centroids.norms(m[None], SMALL)
    score = centroids.scores(x, m[None], q, SMALL)[:, 0]
    d = centroids.distances(centroids.norms(x, SMALL), score)
    v = centroids.variance(x, m, SMALL)
    for size in (1, 6, 2**24 - 2):
        for out in (x, m, score, d, v, centroids.grown(np.full(6, v), d, np.full(6, size)), centroids.mean(k)):
            assert np.isfinite(np.asarray(out, np.float32)).all()
        assert np.isfinite(centroids.moved(m, x[0], size).astype(np.float32)).all()
    assert centroids.k_means(x, 3, SMALL)[0].shape == (6,)


# A budget of tokens


@given(SEEDS, st.integers(0, 12), st.integers(1, 60), st.booleans())
def test_a_budget_takes_the_fewest_clusters_that_hold_it(seed, clusters, budget, equal):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3 if equal else 2048, clusters)
    counts = rng.integers(0, 9, clusters)
    got = select(codes, counts, ReSVParams(score=ScoreFormat()), budget)
    chosen: list[int] = []
    for c in sorted(range(clusters), key=lambda c: (-codes[c], c)):
        if sum(counts[chosen]) >= budget:
            break
        chosen.append(c)
    assert sorted(chosen) == np.flatnonzero(got.mask).tolist()
    assert got.tokens == counts[chosen].sum()
