"""Coded pages: means, numbers, gains, codes, scores and the choice, against exact rationals."""

from dataclasses import replace
from fractions import Fraction
from math import floor, sqrt

import numpy as np
import pytest

from openvrex.golden.arithmetic.elementwise import exp
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval import key_matrices
from openvrex.golden.retrieval.coded_pages import (
    BITS,
    LOWEST,
    MIDDLE,
    PLAIN,
    SHARPNESS,
    STEP,
    CodedKeys,
    PageParams,
    expanded,
    gains_of,
    limits,
    logarithm,
    matrices_of,
    norm,
    quantised,
    resident_sum,
    words,
)
from openvrex.golden.retrieval.key_matrices import KeyMatrices, Moments

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
    squares = [to_bf16(np.float64(v) ** 2) for v in x]
    left = fp32(Fraction(float(fp32(sum(Fraction(float(v)) for v in squares)))) * Fraction(norm(p.numbers)))
    gain, middle = 0, np.float32(to_bf16(np.float64(2.0**LOWEST * MIDDLE)))
    for bit in BITS:
        gain *= 2
        if left > bit.bound:
            gain += 1
            left = fp32(Fraction(float(left)) * Fraction(bit.square))
            middle = fp32(Fraction(float(middle)) * Fraction(bit.middle))
    numbers = []
    for v in x:
        size = sum(abs(Fraction(float(v))) > Fraction(float(y)) * Fraction(float(to_bf16(middle))) for y in limits())
        numbers.append(-2 * size - 1 if v < 0 else 2 * size + 1)
    return numbers, gain


def code_by_definition(scores: list[float]) -> list[int]:
    """Score codes: of e to the score less the largest, by SHARPNESS, both rounded; 8 significant bits of 22."""
    out = []
    for score in scores:
        down = np.float32(float(Fraction(score * SHARPNESS) - Fraction(max(scores) * SHARPNESS)))
        value = Fraction(float(exp(to_bf16(np.array([down])))[0])) * 2**22
        shift = max(0, floor(value).bit_length() - 8)
        m = round(value / 2**shift)  # ties to even
        out.append(min(2047, (shift << 7) + m))
    return out


def chosen_by_definition(p: PageParams, m: KeyMatrices, k, q, sums) -> np.ndarray:
    """The rule of the module's docstring, key by key and row by row."""
    n = len(k)
    out = np.zeros((KV_HEADS, n), bool)
    group = HEADS // KV_HEADS
    for g in range(KV_HEADS):
        best: dict[int, float] = {}
        scale = to_bf16(np.float64(1 / sqrt(SIZE)))
        rows = q[:, g * group : (g + 1) * group].reshape(-1, SIZE)
        totals = sums[:, g * group : (g + 1) * group].ravel()
        factors = []  # of each key
        for first in range(0, n - n % p.mean, p.page):
            start = first // p.mean * p.mean
            mean = to_bf16(np.add.accumulate(k[start : start + p.mean, g].astype(np.float32))[-1] / np.float32(p.mean))
            for key in k[first : first + p.page, g]:
                numbers, gain = code_of(p, to_bf16(key.astype(np.float64) - mean.astype(np.float64)), m.code[g])
                factors.append([to_bf16(np.float64(v * 2.0 ** (gain / 8 + LOWEST))) for v in numbers])
            for row, total in zip(rows, totals, strict=True):
                turned = [to_bf16(np.float64(fp32(dot(row, x)))) for x in m.query[g]]
                high = to_bf16(np.float64(-total))
                low = to_bf16(np.float64(-total) - float(high))
                less = Fraction(float(high)) + Fraction(float(low))
                found = [fp32(dot(turned, factor) + less) for factor in factors[first : first + p.page]]
                product = Fraction(float(fp32(dot(row, mean)))) * Fraction(float(scale))
                score = fp32(product + Fraction(float(max(found))))
                best[first // p.page] = max(best.get(first // p.page, -np.inf), float(score))
        old = n - p.recent  # tokens that are not resident
        candidates = [i for i in best if i * p.page < old]
        best |= {i: max(best[c] for c in candidates) for i in range(-(-p.sinks // p.page))}
        candidates = sorted({*candidates, *range(-(-p.sinks // p.page))})
        codes = dict.fromkeys(range(-(-n // p.page)), 0)
        codes |= zip(candidates, code_by_definition([best[i] for i in candidates]), strict=True)
        held, budget = 0, p.budget + -(-p.sinks // p.page) * p.page
        for i in sorted(codes, key=lambda i: (-codes[i], i)):
            if held < budget:
                held += min(p.page, n - i * p.page)
                out[g, i * p.page : min((i + 1) * p.page, max(0, old))] = True
    return out


@pytest.mark.parametrize("seed", range(4))
def test_choice_by_definition(seed):
    p = replace(SMALL, sinks=seed, page=2 ** (seed % 3), numbers=5 + 7 * (seed == 3))
    own, k, q, sums = filled(p, seed, [4, 7, 1, 12, 13, 3])
    got = own.choose(q, sums)
    np.testing.assert_array_equal(got, chosen_by_definition(p, own.matrices, k, q, sums))
    most = (-(-p.budget // p.page) + -(-p.sinks // p.page)) * p.page
    assert (got.sum(axis=1) > p.budget // 2).all()
    assert (got.sum(axis=1) <= most).all()
    assert got[:, : p.sinks].all()
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
    assert np.isnan(own.page_scores(q, sums)[0, :2]).all()
    assert np.flatnonzero(own.choose(q, sums)[0]).tolist() == list(range(8, 16))


def test_nothing_to_choose():
    own, _, q, sums = filled(SMALL, 1, [3, 4])
    assert not own.choose(q, sums).any()
    assert not CodedKeys(SMALL, matrices(1)).choose(q[:0], sums[:0]).any()
    own, _, q, sums = filled(replace(SMALL, recent=64), 1, [60, 4])
    assert own.coded == 64
    assert not own.choose(q, sums).any()


@pytest.mark.parametrize("numbers", [1, 5, 18, 64])
def test_gains_are_eighths_of_octaves(numbers):
    """Gains rise with the numbers, an eighth of an octave each, and the middle is in the range or near its ends."""
    root = 2.0 ** (np.arange(-8, 520) / 64 + LOWEST)
    x = to_bf16(np.repeat(root[:, None], numbers, axis=1))
    gains, middles = gains_of(x)
    exact = np.clip(np.floor(np.log2(x[:, 0].astype(float)) * 8 - 8 * LOWEST), 0, 63)
    assert (np.diff(gains.astype(int)) >= 0).all()
    assert set(gains) == set(range(64))
    # Squares, their mean and the bounds are rounded to BF16, 2^-9 each; a twelfth of a gain is 2^-7.1.
    assert (np.abs(gains - exact) <= 1).all()
    inside = np.log2(middles.astype(float)) * 8 - 8 * LOWEST - gains
    assert ((inside > 0.3) & (inside < 0.7)).all()


def test_gains_at_their_corners():
    x = to_bf16(np.array([0, 1e-45, 1e-39, 2.0**-9, 2.0**6, 2.0**60, np.inf, -np.inf, np.nan]))[:, None]
    assert gains_of(x)[0].tolist() == [0, 0, 0, 0, 63, 63, 63, 63, 63]
    assert gains_of(to_bf16(np.full((1, 64), 3e38)))[0].tolist() == [63]


def test_numbers_change_at_their_limits():
    """No BF16 number is on a limit, whatever the gain: so above and not below mean the same."""
    middles = np.unique(gains_of(to_bf16(2.0 ** (np.arange(-8, 520) / 64 + LOWEST))[:, None])[1])
    assert len(middles) == 64
    for middle in middles:
        near = [to_bf16(np.float64(limit) * float(middle)) for limit in limits()]
        for size, value in enumerate(near):
            bits = np.array(value).view(np.uint16)
            x = np.array([bits - 1, bits, bits + 1], np.uint16).view(BF16)
            exact = [Fraction(float(v)) - Fraction(float(limits()[size])) * Fraction(float(middle)) for v in x]
            assert all(exact)
            want = [2 * (size + (e > 0)) + 1 for e in exact]
            assert quantised(x[None], np.array([middle], BF16)).tolist() == [want]
            assert quantised(-x[None], np.array([middle], BF16)).tolist() == [[-w for w in want]]
    zeros = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf]], BF16)
    assert quantised(zeros, np.array([1], BF16)).tolist() == [[1, 1, 1, 7, -7]]
    np.testing.assert_allclose(limits(), STEP * np.arange(1, 4), rtol=2.0**-22)


def test_keys_that_are_not_finite():
    """Gain 0; infinities keep their signs."""
    own, keys = CodedKeys(SMALL, matrices(1)), np.ones((8, KV_HEADS, SIZE), BF16)
    keys[3, 0, 2], keys[5, 1, 0] = np.inf, np.nan
    own.append(keys)
    assert not own.gains.any()
    assert set(own.numbers[0].ravel().tolist()) == {-7, 1, 7}
    assert (own.numbers[1] == 1).all()


def test_words_hold_numbers_and_gain():
    rng = np.random.default_rng(1)
    for n in (1, 18, 19, 20, 40):
        numbers, gains = rng.choice(np.arange(-7, 8, 2), (50, n)).astype(np.int8), rng.integers(0, 64, 50, np.uint8)
        packed = words(numbers, gains)
        assert packed.shape[1] * 8 == PageParams(numbers=n).code_bytes
        for own, gain, row in zip(numbers.tolist(), gains.tolist(), packed.tolist(), strict=True):
            whole = sum(w << 64 * i for i, w in enumerate(row))
            fields = [[whole >> third * n + i & 1 for third in range(3)] for i in range(n)]
            assert own == [(4 * high + 2 * low + 1) * (-1) ** sign for sign, high, low in fields]
            assert whole >> 3 * n == gain


def test_expanded_numbers_are_rounded_once():
    numbers = np.arange(-7, 8, 2)[None].repeat(64, 0).astype(np.int8)
    got = expanded(numbers, np.arange(64, dtype=np.uint8)).astype(np.float64)
    exact = numbers * np.exp2(np.arange(64) / 8 + LOWEST)[:, None]
    assert (np.abs(got / exact - 1) <= 2.0**-8).all()
    np.testing.assert_array_equal(got, to_bf16(exact).astype(np.float64))


def test_logarithms():
    x = np.exp(np.linspace(0, 8, 4001)).astype(np.float32)
    got = logarithm(x).astype(np.float64)
    # The exponential's operand, a number below 8, is off by 2^-6 at most, its result and the inverse's by 2^-8 of
    # themselves, of which the inverse's counts little. The last step starts within 1/32 of the logarithm.
    assert (np.abs(got - np.log(x.astype(np.float64))) < 2.0**-6 + 2.0**-8 + 2.0**-9).all()


def test_the_logarithm_of_a_sum():
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((40, 30)) * 5).astype(np.float32)
    seen = rng.random((40, 30)) < 0.5
    seen[:, 3] = True
    got = resident_sum(logits, seen, 4)
    for row, own, value in zip(logits, seen, got, strict=True):
        exact = np.log(np.exp(row[own].astype(np.float64)).sum())
        # A weight is off by 2^-8 of itself for exp, and by less than 2^-9 of the largest for the rounding of its logit.
        assert abs(value - exact) < 1 / 40 + 2.0**-8 + 2.0**-9
        weights = exp(to_bf16(row[own] - row[own].max())).astype(np.float64)
        # The row sum drops less than 2^-23 for each number and word.
        near = abs(value - row[own].max() - np.log(weights.sum()))
        assert near < 1 / 40 + (30 + 8) * 2.0**-23


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
        exact = queries[:, 0] @ keys[:50, 0].T / sqrt(SIZE)
        assert (np.abs(parts @ numbers[:50].T - exact) <= 2.0**-8 * 1.01 * (wide @ large[:50].T)).all()
        fewer = own.matrices(6, weight, 1.0)
        np.testing.assert_array_equal(fewer.code, m.code[:, :6])


def test_a_model_s_matrices_come_with_the_project():
    """Of SmolLM2's first layers and numbers; a model without a file gets rows that know none, as with `plain`."""
    own = matrices_of(PageParams(numbers=14), 2, 3, 64, "smollm2")
    file = key_matrices.load(key_matrices.HERE / "smollm2.npz", 30, 3, 18, 64, "smollm2")
    for a, b in zip(own, file, strict=False):
        np.testing.assert_array_equal(a.code.view(np.uint16), b.code[:, :14].view(np.uint16))
        np.testing.assert_array_equal(a.query.view(np.uint16), b.query[:, :14].view(np.uint16))
    assert (len(own), len(file)) == (2, 30)
    rows = key_matrices.plain(3, 18, 64, 1.0).code.view(np.uint16)
    for model, named in (("", ""), ("unknown", ""), ("smollm2", PLAIN)):
        plain, *_ = matrices_of(PageParams(matrices=named), 2, 3, 64, model)
        np.testing.assert_array_equal(plain.code.view(np.uint16), rows)


def test_a_file_of_matrices(tmp_path):
    path, own = tmp_path / "m.npz", [matrices(1), matrices(2)]
    key_matrices.save(path, own, {"model": "none"})
    for a, b in zip(own, key_matrices.load(path, 2, KV_HEADS, 5, SIZE), strict=True):
        np.testing.assert_array_equal(a.code, b.code)
        np.testing.assert_array_equal(a.query, b.query)
    key_matrices.load(path, 2, KV_HEADS, 5, SIZE, "none")
    for a, b in zip(own, key_matrices.load(path, 2, KV_HEADS, 3, SIZE), strict=True):
        np.testing.assert_array_equal(a.code[:, :3], b.code)
        np.testing.assert_array_equal(a.query[:, :3], b.query)
    with pytest.raises(ParamError, match=r"is for \[2, 2, 5, 16\] layers.* not \[2, 2, 6, 16\]"):
        key_matrices.load(path, 2, KV_HEADS, 6, SIZE)
    with pytest.raises(ParamError, match="is of none, not of smollm2: make it with 'vrex papers calibrate'"):
        key_matrices.load(path, 2, KV_HEADS, 5, SIZE, "smollm2")
    with pytest.raises(ParamError, match=r"is for \[2, 2, 5, 16\] layers.* not \[3, 2, 5, 16\]"):
        key_matrices.load(path, 3, KV_HEADS, 5, SIZE)
    own[0].query[0, 0, 0] = np.inf
    key_matrices.save(path, own, {"model": "none"})
    with pytest.raises(ParamError, match="infinity"):
        key_matrices.load(path, 2, KV_HEADS, 5, SIZE)
    key_matrices.save(path, own, {})
    with pytest.raises(ParamError, match="not a file of 'vrex papers calibrate'"):
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
        filled(SMALL, 1, [64])[0].page_scores(to_bf16(np.ones((1, 3, SIZE))), np.ones((1, 3), np.float32))
    with pytest.raises(ParamError, match="^rows=0"):
        Moments(1, SIZE).matrices(4, 0.5, 1.0)
