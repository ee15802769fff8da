"""Coded pages: means, numbers, gains, codes, scores and the choice, against exact rationals."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import floor, log2, sqrt

import numpy as np
import pytest

from openvrex.golden.arithmetic.elementwise import exp
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval import key_matrices
from openvrex.golden.retrieval.coded_pages import (
    LOWEST,
    OFFSET,
    STEP,
    TOP,
    UNIT,
    CodedKeys,
    PageParams,
    expanded,
    gain_codes,
    middle,
    quantised,
    resident_sum,
    score_codes,
    thresholds,
    words,
)
from openvrex.golden.retrieval.key_matrices import LOG2_E, KeyMatrices, Moments

HEADS, KV_HEADS, SIZE = 6, 2, 16
SMALL = PageParams(page=4, mean=8, numbers=5, budget=9, recent=9, sinks=3)


def dot(a: np.ndarray, b: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)), Fraction(0))


def fp32(x: Fraction) -> np.float32:
    """x rounded once; the sums here are exact in FP64."""
    assert Fraction(float(x)) == x
    return np.float32(float(x))


def matrices(seed: int, p: PageParams = SMALL) -> KeyMatrices:
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((2, KV_HEADS, p.numbers, SIZE)) / 4
    return KeyMatrices(to_bf16(own[0]), to_bf16(own[1]))


def filled(p: PageParams, seed: int, sizes: list[int]) -> tuple[CodedKeys, np.ndarray, np.ndarray, np.ndarray]:
    """A layer after blocks of these sizes; its keys, the queries of the last block, and sums of its rows."""
    rng = np.random.default_rng(seed)
    k = to_bf16(np.rint(16 * (rng.standard_normal((sum(sizes), KV_HEADS, SIZE)) * 3 + 2)) / 16)
    own, at = CodedKeys(p, matrices(seed, p)), 0
    for n in sizes:
        own.append(k[at : at + n])
        at += n
    q = to_bf16(np.rint(16 * rng.standard_normal((sizes[-1], HEADS, SIZE))) / 16)
    return own, k, q, rng.uniform(2, 9, (sizes[-1], HEADS)).astype(np.float32)


def code_of(p: PageParams, rest: np.ndarray, matrix: np.ndarray) -> tuple[list[int], int]:
    """Steps 3 to 5 for one key."""
    x = [to_bf16(np.float64(fp32(dot(rest, row)))) for row in matrix]
    square = Fraction(float(np.float32(float(sum(Fraction(float(v)) ** 2 for v in x)))))
    gain = min(63, max(0, floor(4 * log2(square)) - floor(4 * log2(p.numbers)) - 8 * LOWEST)) if square else 0
    root = 2.0 ** ((gain + middle(p.numbers)) / 8 + LOWEST)
    numbers = []
    for v in x:
        size = sum(abs(float(v)) >= float(to_bf16(np.float64(j * STEP * root))) for j in (1, 2, 3))
        numbers.append(-2 * size - 1 if v < 0 else 2 * size + 1)
    return numbers, gain


def chosen_by_definition(p: PageParams, m: KeyMatrices, k, q, sums) -> np.ndarray:
    """The rule of the module's docstring, key by key and row by row."""
    n = len(k)
    out = np.zeros((KV_HEADS, n), bool)
    group = HEADS // KV_HEADS
    for g in range(KV_HEADS):
        best: dict[int, float] = {}
        for start in range(0, n - n % p.mean, p.mean):
            keys = k[start : start + p.mean, g].astype(np.float32)
            mean = to_bf16(np.add.accumulate(keys)[-1] / np.float32(p.mean))
            for t, key in enumerate(keys, start):
                numbers, gain = code_of(p, to_bf16(key.astype(np.float64) - mean.astype(np.float64)), m.code[g])
                factor = [to_bf16(np.float64(v * 2.0 ** (gain / 8 + LOWEST))) for v in numbers]
                for row, total in zip(q[:, g * group : (g + 1) * group].reshape(-1, SIZE),
                                      sums[:, g * group : (g + 1) * group].ravel(), strict=True):  # fmt: skip
                    turned = [to_bf16(np.float64(fp32(dot(row, x)))) for x in m.query[g]]
                    scale = LOG2_E / sqrt(SIZE)
                    high = to_bf16(np.float64(scale))
                    low = to_bf16(np.float64(scale - float(high)))
                    product = fp32(dot(row, mean))
                    inner = np.float32(float(Fraction(float(product)) * Fraction(float(low)) - Fraction(float(total))))
                    bias = np.float32(float(Fraction(float(product)) * Fraction(float(high)) + Fraction(float(inner))))
                    top = to_bf16(np.float64(bias))
                    rest = to_bf16(np.float64(bias) - float(top))
                    score = fp32(dot(turned, factor) + Fraction(float(top)) + Fraction(float(rest)))
                    best[t // p.page] = max(best.get(t // p.page, -np.inf), float(score))
        codes = {i: min(TOP, max(0, floor(UNIT * s) + OFFSET)) for i, s in best.items()}
        resident = [t for t in range(n) if t < p.sinks or t >= n - p.recent]
        candidates = [i for i in codes if not {t // p.page for t in resident} & {i}]
        for i in sorted(candidates, key=lambda i: (-codes[i], i))[: p.budget // p.page]:
            out[g, i * p.page : (i + 1) * p.page] = True
    return out


@pytest.mark.parametrize("seed", range(4))
def test_choice_by_definition(seed):
    p = replace(SMALL, sinks=seed, page=2 ** (seed % 3), numbers=5 + 7 * (seed == 3))
    own, k, q, sums = filled(p, seed, [4, 7, 1, 12, 13, 3])
    got = own.choose(q, sums)
    np.testing.assert_array_equal(got, chosen_by_definition(p, own.matrices, k, q, sums))
    assert (got.sum(axis=1) == p.budget // p.page * p.page).all()
    assert not (got & own.resident()).any()
    assert len(np.unique(own.gains)) > 3
    assert {-7, 7, 1, -1} <= set(own.numbers.ravel().tolist())


def test_blocks_may_be_split():
    """Means and codes are those of the stream, whatever its blocks are. Tables grow past 1,024 tokens."""
    whole, k, q, sums = filled(SMALL, 3, [1200, 5])
    parts = CodedKeys(SMALL, whole.matrices)
    for at in range(0, 1205, 7):
        parts.append(k[at : at + 7])
    np.testing.assert_array_equal(whole.numbers, parts.numbers)
    np.testing.assert_array_equal(whole.choose(q, sums), parts.choose(q, sums))
    assert whole.coded == 1200


def test_ties_take_the_lower_page_and_nan_is_last():
    p = replace(SMALL, budget=8, recent=8, sinks=0)
    own = CodedKeys(p, matrices(1))
    own.append(to_bf16(np.ones((32, KV_HEADS, SIZE))))  # every key equals its mean
    q, sums = to_bf16(np.ones((1, HEADS, SIZE))), np.ones((1, HEADS), np.float32)
    assert np.flatnonzero(own.choose(q, sums)[0]).tolist() == list(range(8))
    own.means[:, 0] = np.nan
    assert own.page_codes(q, sums)[0, :2].tolist() == [0, 0]
    assert np.flatnonzero(own.choose(q, sums)[0]).tolist() == list(range(8, 16))


def test_nothing_to_choose():
    own, _, q, sums = filled(SMALL, 1, [3, 4])
    assert not own.choose(q, sums).any()
    own, _, q, sums = filled(replace(SMALL, budget=0), 1, [64])
    assert not own.choose(q, sums).any()


@pytest.mark.parametrize("numbers", [1, 5, 18, 64])
def test_gains_are_eighths_of_octaves(numbers):
    """A gain's range begins where the mean square reaches a quarter of an octave, and gains rise with the square."""
    ends = [2.0 ** ((c + middle(numbers) - 0.5) / 4 + 2 * LOWEST) * numbers for c in range(65)]
    for c, (low, high) in enumerate(pairwise(ends)):
        inside = np.array([low * 1.0001, sqrt(low * high), high * 0.9999], np.float32)
        assert gain_codes(inside, numbers).tolist() == [c] * 3
    corners = np.array([0, 1e-45, ends[0] / 2, ends[-1] * 2, np.inf, np.nan], np.float32)
    assert gain_codes(corners, numbers).tolist() == [0, 0, 0, 63, 63, 63]


def test_numbers_change_at_their_thresholds():
    limits = thresholds(5)[30]
    below = (limits.view(np.uint16) - 1).view(BF16)
    x = np.array([[*limits, *-below[:2]], [*below, 0.0, -0.0]], BF16)
    assert quantised(x, np.array([30, 30])).tolist() == [[3, 5, 7, -1, -3], [1, 3, 5, 1, 1]]


def test_words_hold_numbers_and_gain():
    rng = np.random.default_rng(1)
    for n in (1, 18, 19, 20, 40):
        numbers, gains = rng.choice(np.arange(-7, 8, 2), (50, n)).astype(np.int8), rng.integers(0, 64, 50, np.uint8)
        packed = words(numbers, gains)
        assert packed.shape[1] * 8 == PageParams(numbers=n).code_bytes
        for own, gain, row in zip(numbers.tolist(), gains.tolist(), packed.tolist(), strict=True):
            whole = sum(w << 64 * i for i, w in enumerate(row))
            fields = [whole >> 3 * i & 7 for i in range(n)]
            assert own == [(2 * (f & 3) + 1) * (-1 if f & 4 else 1) for f in fields]
            assert whole >> 3 * n == gain


def test_score_codes_are_steps_of_a_32nd_octave():
    exact = np.arange(-1408, 640) / 32
    assert score_codes(exact.astype(np.float32)).tolist() == list(range(2048))
    below = np.nextafter(exact.astype(np.float32), np.float32(-np.inf))
    assert score_codes(below).tolist() == [0, *range(2047)]
    assert score_codes(np.array([np.nan, -np.inf, np.inf, -3e38, 3e38, -0.0], np.float32)).tolist() == [
        0, 0, 2047, 0, 2047, 1408,
    ]  # fmt: skip


def test_expanded_numbers_are_rounded_once():
    numbers = np.arange(-7, 8, 2)[None].repeat(64, 0).astype(np.int8)
    got = expanded(numbers, np.arange(64, dtype=np.uint8)).astype(np.float64)
    exact = numbers * np.exp2(np.arange(64) / 8 + LOWEST)[:, None]
    assert (np.abs(got / exact - 1) <= 2.0**-8).all()
    np.testing.assert_array_equal(got, to_bf16(exact).astype(np.float64))


def test_the_logarithm_of_a_sum():
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((40, 30)) * 5).astype(np.float32)
    seen = rng.random((40, 30)) < 0.5
    seen[:, 3] = True
    got = resident_sum(logits, seen)
    for row, own, value in zip(logits, seen, got, strict=True):
        exact = np.log2(np.exp(row[own].astype(np.float64)).sum())
        # A line is at most 0.087 octaves below the logarithm. A weight is off by 2^-8 of itself for exp, and by less
        # than 2^-10 of the largest for the rounding of its logit: together below 0.01 octaves.
        assert -0.087 - 2.0**-6 < value - exact < 2.0**-6
        weights = exp(to_bf16(row[own] - row[own].max())).astype(np.float64)
        total = float(np.float32(weights.sum()))
        line = floor(log2(total)) + total / 2 ** floor(log2(total)) - 1
        largest = float(row[own].max()) * LOG2_E  # by a constant of two BF16 numbers, and two roundings to FP32
        assert abs(value - (line + largest)) <= (abs(largest) + abs(line)) * (2.0**-17 + 2.0**-23)


def test_matrices_keep_what_matters():
    """Numbers of variance 1, and products as of the keys themselves where as many numbers as a head are kept."""
    rng = np.random.default_rng(4)
    own = Moments(1, SIZE)
    keys = rng.standard_normal((4000, 1, SIZE)) @ (rng.standard_normal((SIZE, SIZE)) / 4)
    queries = rng.standard_normal((4000, 2, SIZE))
    own.add_keys(keys), own.add_queries(queries)
    for weight in (0, 0.5, 1):
        m = own.matrices(SIZE, weight, 1.0)
        code, query = m.code[0].astype(float), m.query[0].astype(float)
        numbers, parts = keys[:, 0] @ code.T, queries[:, 0] @ query.T
        # Rounding to BF16 moves each number of a matrix by 2^-9 of itself.
        large, wide = (np.abs(x[:, 0]) @ np.abs(y).T for x, y in ((keys, code), (queries, query)))
        size = np.sqrt((numbers**2).mean(axis=0))
        assert (np.abs(size - 1) <= 2.0**-9 * np.sqrt((large**2).mean(axis=0)) * 1.01).all()
        exact = queries[:, 0] @ keys[:50, 0].T * LOG2_E / sqrt(SIZE)
        assert (np.abs(parts @ numbers[:50].T - exact) <= 2.0**-8 * 1.01 * (wide @ large[:50].T)).all()
        fewer = own.matrices(6, weight, 1.0)
        np.testing.assert_array_equal(fewer.code, m.code[:, :6])


def test_a_file_of_matrices(tmp_path):
    path, own = tmp_path / "m.npz", [matrices(1), matrices(2)]
    key_matrices.save(path, own, {"model": "none"})
    for a, b in zip(own, key_matrices.load(path, 2, KV_HEADS, 5, SIZE), strict=True):
        np.testing.assert_array_equal(a.code, b.code)
        np.testing.assert_array_equal(a.query, b.query)
    with pytest.raises(ParamError, match=r"is for \[2, 2, 5, 16\] layers.* not \[3, 2, 5, 16\]"):
        key_matrices.load(path, 3, KV_HEADS, 5, SIZE)
    own[0].query[0, 0, 0] = np.inf
    key_matrices.save(path, own, {})
    with pytest.raises(ParamError, match="infinity"):
        key_matrices.load(path, 2, KV_HEADS, 5, SIZE)
    for text in (b"", b"PK\3\4 not a file", b"1 2 3"):
        path.write_bytes(text)
        with pytest.raises(ParamError, match="not a file of 'vrex papers calibrate'"):
            key_matrices.load(path, 2, KV_HEADS, 5, SIZE)
    with pytest.raises(ParamError, match="not a file"):
        key_matrices.load(tmp_path / "missing", 2, KV_HEADS, 5, SIZE)


@pytest.mark.parametrize(
    ("change", "name"), [({"mean": 16, "recent": 8}, "mean"), ({"page": 16, "mean": 8}, "page"), ({"page": 3}, "page")]
)
def test_parameters_that_cannot_work(change, name):
    with pytest.raises(ParamError, match=f"^{name}="):
        replace(SMALL, **change)
    with pytest.raises(ParamError, match="query heads=3"):
        filled(SMALL, 1, [64])[0].page_codes(to_bf16(np.ones((1, 3, SIZE))), np.ones((1, 3), np.float32))
    with pytest.raises(ParamError, match="^rows=0"):
        Moments(1, SIZE).matrices(4, 0.5, 1.0)
