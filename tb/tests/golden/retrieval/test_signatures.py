"""Token signatures: page means, signs, length codes, integer queries and the choice, against exact rationals."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval.signatures import SignatureParams, Signatures, length_codes, planes, significands

HEADS, KV_HEADS, DIM = 6, 2, 16
SMALL = SignatureParams(n_hp=9, page=4, budget_q16=20000, recent=5, sinks=1)


def exact(x: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in x]


def dot(a: np.ndarray, b: np.ndarray) -> Fraction:
    return sum((x * y for x, y in zip(exact(a), exact(b), strict=True)), Fraction(0))


def rounded(a: np.ndarray, b: np.ndarray) -> Fraction:
    """A product in FP32, rounded once; the sums here are exact in FP64."""
    return Fraction(float(np.float32(float(dot(a, b)))))


def filled(p: SignatureParams, seed: int, sizes: list[int]) -> tuple[Signatures, np.ndarray, np.ndarray]:
    """A layer after frames of these sizes; all its keys, and queries of the last frame."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-7, 7, (sum(sizes), KV_HEADS, 1)))
    k = to_bf16(rng.standard_normal((sum(sizes), KV_HEADS, DIM)) * scale + 2)
    own, at = Signatures(p, KV_HEADS, DIM), 0
    for n in sizes:
        own.append(k[at : at + n])
        at += n
    return own, k, to_bf16(rng.standard_normal((sizes[-1], HEADS, DIM)) * 3)


def integers_of(p: SignatureParams, products: list[Fraction]) -> tuple[list[int], Fraction]:
    """Step 5: products with planes as integers, and their unit."""
    largest, half = max(abs(x) for x in products), 2 ** (p.query_bits - 1)
    unit = Fraction(1)
    while largest >= unit * half:
        unit *= 2
    while largest < unit * half / 2:
        unit /= 2
    return [min(half - 1, max(1 - half, round(x / unit))) for x in products], unit


def page_of(p: SignatureParams, keys: np.ndarray) -> tuple[np.ndarray, list[tuple[list[int], int]]]:
    """Steps 1 to 4: the mean of keys [page, dim], and signs and length code of each."""
    total = np.zeros(DIM, np.float32)
    for key in keys.astype(np.float32):
        total = total + key
    mean, own = to_bf16(total / np.float32(p.page)), []
    for key in keys:
        rest = to_bf16(key.astype(np.float64) - mean.astype(np.float64))
        code = int(length_codes(np.array([float(dot(rest, rest))], np.float32))[0])
        own.append(([1 if dot(rest, plane) > 0 else -1 for plane in planes(p.n_hp, DIM, p.hash_seed)], code))
    return mean, own


def chosen_by_definition(p: SignatureParams, k: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The rule of the module's docstring in rationals, token by token."""
    n, steps = len(k), significands(p.n_hp)
    out = np.zeros((KV_HEADS, n), bool)
    for g in range(KV_HEADS):
        rows = [q[t, h] for t in range(len(q)) for h in range(3 * g, 3 * g + 3)]
        queries = [integers_of(p, [rounded(row, x) for x in planes(p.n_hp, DIM, p.hash_seed)]) for row in rows]
        scores: list[Fraction] = []
        for start in range(0, n - n % p.page, p.page):
            mean, tokens = page_of(p, k[start : start + p.page, g])
            for signs, code in tokens:
                best = []
                for row, (integers, unit) in zip(rows, queries, strict=True):
                    unit = unit / 2 ** steps[1]
                    rest = sum(i * s for i, s in zip(integers, signs, strict=True)) * int(steps[0][code % 8])
                    best.append(unit * (rest * 2 ** (code // 8) + round(rounded(row, mean) / unit)))
                scores.append(max(best))
        candidates = [t for t in range(n) if p.sinks <= t < n - p.recent]
        ranked = sorted(candidates, key=lambda t: (-scores[t], t))
        out[g, ranked[: len(candidates) * p.budget_q16 >> 16]] = True
    return out


@pytest.mark.parametrize("query_bits", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_choice_by_definition(query_bits, seed):
    """More planes than the head has numbers, too: 17 of two matrices."""
    p = replace(SMALL, n_hp=9 + 4 * seed, query_bits=query_bits, sinks=seed)
    own, k, q = filled(p, seed, [4, 7, 1, 12, 3])
    got = own.choose(q)
    np.testing.assert_array_equal(got, chosen_by_definition(p, k, q))
    assert got.sum() == KV_HEADS * ((22 - seed) * 20000 >> 16)
    assert len(np.unique(own.codes)) > 10  # lengths differ


def test_length_codes_are_eighths_of_octaves():
    """The range of every code begins where the square reaches 2^(code / 4 - 8), and codes rise with it."""
    for code in range(1, 128):
        octave, quarter = divmod(code, 4)
        first = np.float32(np.ldexp(np.float64(2 ** (quarter / 4)), octave - 8))
        assert length_codes(np.array([first, np.nextafter(first, np.float32(0))])).tolist() == [code, code - 1]
        # `first` is FP32's rounding of the bound, at most half a unit of its last place away
        assert abs(Fraction(float(first)) ** 4 / Fraction(2) ** (code - 32) - 1) < Fraction(1, 2**21)
    corners = np.array([0.0, 1e-45, 2.0**-30, 2.0**-8, 2.0**24, 2.0**60, np.inf, np.nan], np.float32)
    assert length_codes(corners).tolist() == [0, 0, 0, 0, 127, 127, 127, 127]


@pytest.mark.parametrize("n_hp", [1, 57, 64, 505])
def test_significands_by_definition(n_hp):
    """s x 2^-k is sqrt(pi / 2) / n_hp x 2^(i / 8 - 4) within half a unit; compared as eighth powers."""
    steps, k = significands(n_hp)
    low, high = Fraction("3.14159265358979"), Fraction("3.14159265358980")  # around pi
    for i, s in enumerate(steps.astype(int).tolist()):
        half = Fraction(1, 2)
        assert ((s - half) * n_hp * 16) ** 8 * 2**4 < high**4 * 2 ** (8 * k + i)
        assert ((s + half) * n_hp * 16) ** 8 * 2**4 > low**4 * 2 ** (8 * k + i)
    assert 128 <= steps[0] <= 256


def test_planes_are_orthogonal():
    both = planes(96, 64, 5).astype(int)
    assert set(np.unique(both)) == {-1, 1}
    np.testing.assert_array_equal(both[:64] @ both[:64].T, 64 * np.eye(64))
    np.testing.assert_array_equal(both[64:] @ both[64:].T, 64 * np.eye(32))
    assert np.abs(both[:64] @ both[64:].T).max() < 64  # another matrix
    assert planes(100, 80, 5).shape == (100, 80)  # the first 80 columns of a matrix of 128


def test_ties_take_the_lower_index():
    own = Signatures(replace(SMALL, budget_q16=32768, recent=4, sinks=0), 1, DIM)
    own.append(to_bf16(np.ones((12, 1, DIM))))  # every key equals its page's mean
    assert np.flatnonzero(own.choose(to_bf16(np.ones((2, 1, DIM))))[0]).tolist() == [0, 1, 2, 3]


def test_budgets_at_their_ends_and_nothing_to_choose():
    for budget, share in ((0, 0), (65536, 1)):
        own, _, q = filled(replace(SMALL, budget_q16=budget), 1, [8, 12])
        assert own.choose(q).sum() == share * KV_HEADS * 14
        assert not (own.choose(q) & own.resident()).any()
    own, _, q = filled(SignatureParams(recent=64), 1, [3, 4])
    assert not own.choose(q).any()


def test_frames_may_be_split():
    """Pages are those of the stream, whatever its frames are. Tables grow past 1,024 tokens."""
    p = SignatureParams(recent=64)
    a, k, q = filled(p, 2, [10, 1290])
    b = Signatures(p, KV_HEADS, DIM)
    for part in (k[:1], k[1:11], k[11:700], k[700:]):
        b.append(part)
    for name in ("means", "signs", "codes"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_array_equal(a.choose(q), b.choose(q))
    assert a.signed == 1280


def test_a_long_product_of_a_page_saturates():
    """A mean so long that its product leaves 2^40 units: all its tokens are equal then, and the first are chosen."""
    own = Signatures(replace(SMALL, sinks=0, budget_q16=32768), 1, DIM)
    own.append(to_bf16(np.concatenate([np.ones((4, 1, DIM)) * s for s in (2.0**20, 2.0**90, 2.0**91, 1)])))
    q = to_bf16(np.ones((1, 1, DIM)))
    assert own.scores(q)[0, 4] == own.scores(q)[0, 8] > own.scores(q)[0, 0]
    assert np.flatnonzero(own.choose(q)[0]).tolist() == [4, 5, 6, 7, 8]


def test_scores_estimate_products():
    """Scores of a row estimate its products with keys: a slope of 1 within three standard errors.

    A length code rounds down by less than an eighth of an octave, so the slope may be that much lower.
    """
    rng = np.random.default_rng(3)
    own = Signatures(SignatureParams(recent=64, sinks=0), 1, 64)
    k = to_bf16(rng.standard_normal((4096, 1, 64)))
    own.append(k)
    slopes = []
    for _ in range(64):
        q = to_bf16(rng.standard_normal((1, 1, 64)))
        product = k[:, 0].astype(float) @ q[0, 0].astype(float)
        slopes.append(own.scores(q)[0] @ product / (product @ product))
    error = 3 * np.std(slopes) / 8  # of the mean of 64
    assert 2.0**-0.125 - error < np.mean(slopes) < 1 + error
    assert error < 0.1


def test_a_signature_is_a_word():
    """Of as many bits as a key has numbers, unless told otherwise."""
    p = SignatureParams()
    assert [(p.signs(n), p.bytes(n)) for n in (1, 8, 64, 128, 256)] == [(1, 1), (1, 1), (57, 8), (121, 16), (249, 32)]
    assert (replace(p, n_hp=58).signs(64), replace(p, n_hp=58).bytes(64)) == (58, 9)
    assert Signatures(p, 2, 64).signs.shape == (2, 0, 57)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_hp": -1}, "n_hp=-1"),
        ({"n_hp": 506}, "n_hp=506"),
        ({"page": 48}, "page=48"),
        ({"page": 512}, "page=512: must be at most recent = 256"),
        ({"query_bits": 1}, "query_bits=1"),
        ({"query_bits": 9}, "query_bits=9"),
        ({"budget_q16": 65537}, "budget_q16=65537"),
        ({"recent": 0}, "recent=0"),
    ],
)
def test_bad_parameters_are_named(params, message):
    with pytest.raises(ParamError, match=message):
        SignatureParams(**params)


def test_bad_queries_are_named():
    own, _, q = filled(SMALL, 1, [8])
    with pytest.raises(ParamError, match="query heads=5: must be a multiple of kv_heads = 2"):
        own.choose(q[:, :5])
    q[0, 0, 0] = np.inf
    with pytest.raises(ParamError, match="queries='infinite or NaN'"):
        own.choose(q)
