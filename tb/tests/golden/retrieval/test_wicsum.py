"""The golden WiCSum selection against a brute force that shares no code with it, and its properties."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import ParamError, ReSVParams, ScoreFormat
from openvrex.golden.retrieval.wicsum import bucket, select, select_rows, threshold, union

FORMATS = [ScoreFormat(), ScoreFormat(0, 16), ScoreFormat(2, 3), ScoreFormat(5, 11)]


def brute_value(code: int, fmt: ScoreFormat) -> int:
    """The float that the code spells, scaled so that the smallest step is 1."""
    e, m = divmod(code, 1 << fmt.man_bits)
    if e == 0:
        return m
    return int(Fraction(2) ** (e - 1) * (Fraction(1) + Fraction(m, 1 << fmt.man_bits)) * (1 << fmt.man_bits))


def brute(codes, counts, p: ReSVParams) -> tuple[set[int], int]:
    """Selected indices and Sum: Python integers and rationals, one cluster (or bucket) at a time."""
    weight = [brute_value(c, p.score) * n for c, n in zip(codes, counts, strict=True)]
    th = Fraction(sum(weight) * p.ratio_q16, 1 << 16)
    if p.selection == "exact":
        groups = [[i] for _, i in sorted((-c, i) for i, c in enumerate(codes))]
    else:
        span = Fraction(max(codes) - min(codes) + 1, p.n_buckets)
        groups = []
        for b in range(p.n_buckets):
            hi, lo = max(codes) - b * span, max(codes) - (b + 1) * span
            groups.append([i for i, c in enumerate(codes) if lo < c <= hi])
    chosen, acc = set(), 0
    for g in groups:
        chosen.update(g)
        acc += sum(weight[i] for i in g)
        if acc > th:
            break
    return chosen, sum(weight)


@given(
    st.lists(st.tuples(st.integers(-(1 << 30), 1 << 30), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(0, 65536),
)
@settings(max_examples=200)
def test_raw_scores_by_the_equations(row, ratio_q16):
    """Equations 1 to 3 on signed scores, in rationals: the shortest prefix, though its sum may fall again."""
    scores, counts = (list(x) for x in zip(*row, strict=True))
    total = sum(s * n for s, n in row)
    acc, want = 0, []
    for i in sorted(range(len(row)), key=lambda i: (-scores[i], i)):
        want.append(i)
        acc += scores[i] * counts[i]
        if acc > Fraction(total * ratio_q16, 65536):
            break
    got = select(np.array(scores), np.array(counts), ReSVParams(score_map="raw", ratio_q16=ratio_q16))
    assert (np.flatnonzero(got.mask).tolist(), got.total) == (sorted(want), total)


@st.composite
def rows(draw):
    fmt = draw(st.sampled_from(FORMATS))
    count_bits = draw(st.sampled_from([1, 4, 16]))
    n = draw(st.integers(1, 40))
    top = (1 << fmt.bits) - 1
    pool = draw(st.lists(st.integers(0, top), min_size=1, max_size=6))  # few values: ties
    code = st.sampled_from(pool) | st.integers(0, top) | st.sampled_from([0, top])
    codes = draw(st.lists(code, min_size=n, max_size=n))
    counts = draw(st.lists(st.integers(0, (1 << count_bits) - 1), min_size=n, max_size=n))
    p = ReSVParams(
        score=fmt,
        count_bits=count_bits,
        ratio_q16=draw(st.sampled_from([0, 1, 19661, 32768, 65535, 65536]) | st.integers(0, 65536)),
        selection=draw(st.sampled_from(["exact", "buckets"])),
        n_buckets=draw(st.sampled_from([1, 2, 16])),
    )
    return codes, counts, p


@settings(max_examples=400, derandomize=True)
@given(rows())
def test_equals_brute_force(case):
    """Equations 1 to 3, and whole buckets in place of Equation 3's clusters (V-B): sum, threshold, shortest prefix."""
    codes, counts, p = case
    got = select(np.array(codes), np.array(counts), p)
    want, total = brute(codes, counts, p)
    assert set(np.flatnonzero(got.mask)) == want
    assert (got.clusters, got.tokens) == (len(want), sum(counts[i] for i in want))
    assert (got.total, got.threshold) == (total, total * p.ratio_q16 >> 16)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_value_of_every_code(fmt):
    got = value(np.arange(1 << fmt.bits), fmt)
    assert got.tolist() == [brute_value(c, fmt) for c in range(1 << fmt.bits)]
    assert (np.diff(got) > 0).all(), "codes order as their values"
    assert int(got[-1]).bit_length() == fmt.value_bits


@pytest.mark.parametrize("selection", ["exact", "buckets"])
def test_rows_equal_single_rows(selection):
    rng = np.random.default_rng(3)
    p = ReSVParams(selection=selection)
    codes, counts = rng.integers(0, 2048, (50, 37)), rng.integers(0, 100, 37)
    many = select_rows(codes, counts, p)
    for r, row in enumerate(codes):
        one = select(row, counts, p)
        assert (many.mask[r] == one.mask).all()
        for name in ("clusters", "tokens", "total", "threshold"):
            assert getattr(many, name)[r] == getattr(one, name)
    assert (union(many.mask) == (many.mask.sum(0) > 0)).all()


def test_selected_set_grows_with_the_ratio():
    rng = np.random.default_rng(5)
    codes, counts = rng.integers(0, 2048, 200), rng.integers(1, 60, 200)
    masks = [select(codes, counts, ReSVParams(ratio_q16=r)).mask for r in range(0, 65537, 2048)]
    for a, b in zip(masks, masks[1:], strict=False):
        assert not (a & ~b).any()
    assert masks[0].sum() == 1
    assert masks[-1].all()


def test_minimal_set():
    """Equation 3: without its last cluster the set does not exceed the threshold."""
    rng = np.random.default_rng(6)
    p = ReSVParams()
    for _ in range(20):
        codes, counts = rng.integers(1, 2048, 64), rng.integers(1, 60, 64)
        s = select(codes, counts, p)
        weight = value(codes, p.score) * counts
        lowest = max(np.flatnonzero(s.mask), key=lambda i: (-codes[i], i))
        assert weight[s.mask].sum() > s.threshold >= weight[s.mask].sum() - weight[lowest]


def test_buckets_hold_the_exact_set():
    rng = np.random.default_rng(7)
    for _ in range(20):
        codes, counts = rng.integers(0, 2048, 100), rng.integers(0, 60, 100)
        exact, whole = (select(codes, counts, ReSVParams(selection=s)).mask for s in ("exact", "buckets"))
        assert not (exact & ~whole).any()


def test_bucket_edges():
    """V-Rex V-B, Figure 11."""
    assert bucket(np.array([0, 15, 7, 8]), 16).tolist() == [15, 0, 8, 7]
    assert bucket(np.array([5, 5, 5]), 4).tolist() == [0, 0, 0]
    assert bucket(np.array([0, 2047]), 1).tolist() == [0, 0]


def test_threshold_of_large_sums():
    for total in (0, 1, 65535, 65536, (1 << 62) - 1):
        for ratio in (0, 1, 19661, 65535, 65536):
            assert int(threshold(total, ratio)) == total * ratio >> 16


def test_empty_row_selects_nothing():
    for selection in ("exact", "buckets"):
        s = select(np.zeros(0, int), np.zeros(0, int), ReSVParams(selection=selection))
        assert s.mask.shape == (0,)
        assert (s.clusters, s.tokens, s.total) == (0, 0, 0)


@pytest.mark.parametrize(
    ("codes", "counts", "message"),
    [
        (np.array([2048]), np.array([1]), "codes: 2048 does not fit in 11"),
        (np.array([-1]), np.array([1]), "codes: -1 does not fit"),
        (np.array([1]), np.array([65536]), "counts: 65536 does not fit in 16"),
        (np.array([1, 2]), np.array([1]), r"counts.shape=\(1,\)"),
        (np.array([[1]]), np.array([1]), r"codes.shape=\(1, 1\)"),
        (np.array([0.5]), np.array([1]), "codes: dtype float64"),
    ],
)
def test_bad_rows_are_named(codes, counts, message):
    with pytest.raises(ParamError, match=message):
        select(codes, counts, ReSVParams())


def test_sums_beyond_63_bits():
    p = ReSVParams(score=ScoreFormat(5, 11), count_bits=24, ratio_q16=50000)
    rng = np.random.default_rng(8)
    codes, counts = rng.integers(65000, 65536, 50), rng.integers(1 << 23, 1 << 24, 50)
    s = select(codes, counts, p)
    want, total = brute(codes.tolist(), counts.tolist(), p)
    assert total >= 1 << 63
    assert set(np.flatnonzero(s.mask)) == want
    assert (s.total, s.threshold) == (total, total * 50000 >> 16)


def test_budgets_by_brute_force():
    """The fewest clusters in order of their codes that hold the budget, found one cluster at a time; or all of them.

    Clusters without a score and without tokens are last: they are chosen only where the others hold too few.
    """
    rng, params = np.random.default_rng(5), ReSVParams()
    cut = whole = 0
    for _ in range(300):
        n = int(rng.integers(1, 12))
        codes, counts = rng.integers(0, 4, n), rng.integers(0, 5, n)
        outside = rng.random(n) < 0.3
        codes[outside] = counts[outside] = 0
        budget = int(rng.integers(1, counts.sum() + 3))
        want, held = np.zeros(n, bool), 0
        for _, k in sorted((-codes[k], k) for k in range(n)):
            want[k] = True
            held += counts[k]
            if held >= budget:
                break
        got = select(codes, counts, params, budget)
        assert got.mask.tolist() == want.tolist()
        assert (got.tokens, got.threshold) == (held, budget - 1)
        assert not (got.mask & outside).any() or (codes[outside ^ True] == 0).any() or held <= budget
        cut, whole = cut + (held > budget), whole + (held < budget)
    assert min(cut, whole) > 10
