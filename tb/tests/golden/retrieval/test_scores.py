"""Hash bits and score codes against fractions and high-precision decimals, which share no code with golden."""

import hashlib
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.score_codes import encode, value
from openvrex.golden.function_params import DotFormat, ParamError, ReSVParams, ScoreFormat
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.retrieval.hashing import Hasher, hyperplanes, pack, to_int, unpack
from openvrex.golden.retrieval.scores import codes, exp_codes, scores
from openvrex.scripts.check.verify_command import FIXTURE

FORMATS = [
    ScoreFormat(),
    ScoreFormat(0, 16),
    ScoreFormat(5, 8),
    ScoreFormat(1, 4),
    ScoreFormat(3, 1),
    ScoreFormat(5, 1),
]
ids = [f"e{f.exp_bits}m{f.man_bits}" for f in FORMATS]


def nearest(x: Fraction, fmt: ScoreFormat) -> set[int]:
    """The codes whose values are nearest to `x`."""
    values = value(np.arange(1 << fmt.bits), fmt).tolist()
    best = min(abs(v - x) for v in values)
    return {c for c, v in enumerate(values) if abs(v - x) == best}


@pytest.mark.parametrize("fmt", FORMATS, ids=ids)
def test_encode_inverts_value_and_rounds_to_nearest(fmt):
    every = np.arange(1 << fmt.bits)
    assert encode(value(every, fmt).astype(float), fmt).tolist() == every.tolist()
    small = ScoreFormat(fmt.exp_bits, min(fmt.man_bits, 4))
    top = int(value((1 << small.bits) - 1, small))
    rng = np.random.default_rng(1)
    xs = np.concatenate([rng.random(60) * top, 2.0 ** (rng.random(60) * small.value_bits - 1), np.arange(40) / 2])
    for x in xs[xs <= top].tolist():
        code = int(encode(np.array([x]), small)[0])
        ties = nearest(Fraction(x), small)
        assert code in ties
        assert len(ties) == 1 or code % 2 == 0


@pytest.mark.parametrize("fmt", FORMATS, ids=ids)
def test_exp_table_is_within_half_a_unit_of_the_exponential(fmt):
    """Half a unit for a significand, one more half for a right shift; and it falls from the top code to 0."""
    getcontext().prec = 50
    table = exp_codes(fmt)
    assert table[0] == (1 << fmt.bits) - 1
    assert table[-1] == 0
    assert (np.diff(table.astype(int)) <= 0).all()
    assert len(table) > 256 * fmt.value_bits
    for k in [*range(1, 300), *range(300, len(table), 97)]:
        want = Decimal(2) ** (Decimal(256 * fmt.value_bits - k) / 256)
        top = int(value((1 << fmt.bits) - 1, fmt))
        got = int(value(int(table[k]), fmt))
        octave = (256 * fmt.value_bits - k) // 256
        unit = Decimal(2) ** (octave - fmt.significand_bits + 1)
        error = abs(min(want, Decimal(top)) - got)
        assert error <= (unit / 2 if unit >= 1 else Decimal("0.5") + unit / 2), k


def float_codes(s, params, head_dim):
    """Values of one row by the definition, in float64; finite scores only."""
    top = int(value((1 << params.score.bits) - 1, params.score))
    s = s.astype(float)
    if params.score_map == "exp":
        return 2.0**params.score.value_bits * np.exp((s - s.max()) / np.sqrt(head_dim))
    low = s.min() if params.score_map == "shift" else 0.0
    return np.maximum(s - low, 0) / (s.max() - low) * top


@pytest.mark.parametrize("score_map", ["exp", "shift", "clip"])
@pytest.mark.parametrize("fmt", FORMATS[:3], ids=ids[:3])
def test_codes_follow_their_map(score_map, fmt):
    params = ReSVParams(score_map=score_map, score=fmt)
    s = (np.random.default_rng(2).standard_normal((20, 50)) * 60).astype(np.float32)
    got = codes(s, params, 64)
    assert (got.max(1) == (1 << fmt.bits) - 1).all()
    for r in range(20):
        want = float_codes(s[r], params, 64)
        have = value(got[r], fmt)
        order = np.argsort(s[r], kind="stable")
        assert (np.diff(got[r][order].astype(int)) >= 0).all()
        loss = 2.0 ** -(fmt.man_bits + 1) + (1 / 256 if score_map == "exp" else 0)  # a quarter octave step each way
        assert (np.abs(have - want) <= np.maximum(1, want * loss)).all()


def test_rows_that_have_no_shape():
    nan, inf = np.nan, np.inf
    top = 2047
    cases = {
        "exp": {
            (1, 1, 1): (top, top, top),
            (nan, 3, -inf): (0, top, 0),
            (inf, 3, inf): (top, 0, top),
            (nan, -inf, nan): (0, 0, 0),
            (0.0, -0.0, -1e38): (top, top, 0),
        },
        "shift": {
            (1, 1, 1): (top, top, top),
            (nan, 3, -inf): (0, top, 0),
            (4, 3, -inf): (top, 0, 0),
            (inf, 3, 4): (top, 0, 0),
            (3e38, -3e38, 0): (top, 0, int(encode(np.array([255 * 2.0**13]), ScoreFormat())[0])),
        },
        "clip": {(-1, -2, 0): (0, 0, 0), (-1, 2, -inf): (0, top, 0), (inf, 1, nan): (top, 0, 0), (3, 3, 3): (top,) * 3},
    }
    for score_map, rows in cases.items():
        for row, want in rows.items():
            got = codes(np.array([row], np.float32), ReSVParams(score_map=score_map), 64)[0]
            assert tuple(got.tolist()) == want, (score_map, row)
        assert codes(np.zeros((3, 0), np.float32), ReSVParams(score_map=score_map), 64).shape == (3, 0)


def test_query_heads_share_kv_heads():
    rng = np.random.default_rng(3)
    q, kc = to_bf16(rng.standard_normal((2, 6, 8))), to_bf16(rng.standard_normal((5, 3 * 8)))
    got = scores(q, kc, 3)
    for t in range(2):
        for h in range(6):
            for c in range(5):
                g = h // 2
                pairs = zip(q[t, h].astype(float), kc[c, g * 8 : g * 8 + 8].astype(float), strict=True)
                exact = sum(Fraction(x) * Fraction(y) for x, y in pairs)
                assert got[t, h, c] == np.float32(float(exact))
    with pytest.raises(ParamError, match="heads=6: must be a multiple of kv_heads = 4"):
        scores(q, kc, 4)


def test_hyperplanes_are_the_same_everywhere():
    planes = hyperplanes(32, 192, 2025)
    digest = hashlib.sha256(planes.view(np.uint16).astype("<u2").tobytes()).hexdigest()
    assert digest == "1ddb1f5bd50e97c8d869f4c0b73f53fb7138c51400a9b4f16ddd14081c87d410"
    assert abs(planes.astype(float).std() - 1) < 0.02


def single(x: Fraction) -> Fraction:
    """`x` rounded to FP32: to nearest, ties to even, below 2^-126 to zero."""
    return rounded(x, 24) if abs(x) >= Fraction(2) ** -126 else Fraction(0)


def rounded(x: Fraction, digits: int) -> Fraction:
    """`x` rounded to a significand of `digits` bits: to nearest, ties to even."""
    if not x:
        return x
    unit = Fraction(2) ** (abs(x.numerator).bit_length() - x.denominator.bit_length() - digits)
    while abs(x) >= unit * 2**digits:
        unit *= 2
    return round(x / unit) * unit  # `round` of a fraction takes ties to even


def centred_bits(products: list[list[Fraction]], thresholds: list[Fraction]) -> list[int]:
    return [
        sum(1 << b for b, (p, t) in enumerate(zip(row, thresholds, strict=True)) if single(p - t) > 0)
        for row in products
    ]


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_hash_bits_by_fractions(scope):
    """V-Rex IV-B, hash-bit generation: key times hyperplanes, zero or below gives 0."""
    rng = np.random.default_rng(4)
    params = ReSVParams(n_hp=70, scope=scope, centre=False)
    k = to_bf16(rng.standard_normal((2, 5, 2, 8)) + 2)
    k[1, 0] = 0
    hasher = Hasher(params, 2, 8)
    got = [hasher.frame(hasher.split(f)) for f in k]
    tables = [k.reshape(2, 5, 16)] if scope == "layer" else [k[:, :, 0], k[:, :, 1]]
    for i, keys in enumerate(tables):
        planes = hyperplanes(70, keys.shape[2], params.hash_seed)
        for f in range(2):
            for t, row in enumerate(exact_products(keys[f], planes)):
                assert to_int(got[f][i, t]) == sum(1 << b for b, d in enumerate(row) if d > 0)
    assert to_int(got[1][0, 0]) == 0


def exact_products(keys: np.ndarray, planes: np.ndarray) -> list[list[Fraction]]:
    k, p = ([[Fraction(x) for x in row] for row in rows.astype(float).tolist()] for rows in (keys, planes))
    return [[sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0)) for y in p] for x in k]


@pytest.mark.parametrize("fmt", [None, DotFormat(8, 24)], ids=["exact", "dpe"])
@pytest.mark.parametrize("scope", ["layer", "head"])
@pytest.mark.parametrize("first", [1, 3, 5])
def test_centred_hash_bits_by_fractions(scope, first, fmt):
    """The thresholds are the FP32 sum of the first frame's products, each times 1 / T in BF16; a frame without tokens
    gives none. All frames are compared with them, the first one, too."""
    rng = np.random.default_rng(first)
    params = ReSVParams(n_hp=40, scope=scope, centre=True, dot=fmt)
    mean = 3 * rng.standard_normal((2, 8))
    frames = [to_bf16(rng.standard_normal((n, 2, 8)) + mean) for n in (0, first, 4, 6)]
    frames[2][1] = frames[1][0]
    hasher = Hasher(params, 2, 8)
    got = [hasher.frame(hasher.split(f)) for f in frames]
    share = rounded(Fraction(1, first), 8)
    ones, differ = 0, 0
    for i in range(hasher.tables):
        own = [f.reshape(len(f), 16) if scope == "layer" else f[:, i] for f in frames]
        planes = hyperplanes(40, own[0].shape[1], params.hash_seed)
        products = [
            [[Fraction(x) for x in row] for row in dot(f, planes, fmt).astype(float).tolist()]
            if fmt
            else [[single(x) for x in row] for row in exact_products(f, planes)]
            for f in own
        ]
        thresholds = [Fraction(0)] * 40
        for row in products[1]:
            thresholds = [single(p * share + t) for p, t in zip(row, thresholds, strict=True)]
        for f in range(1, 4):
            want = centred_bits(products[f], thresholds)
            assert [to_int(w) for w in got[f][i]] == want
            ones += sum(w.bit_count() for w in want)
            differ += sum(
                (a ^ b).bit_count() for a, b in zip(want, centred_bits(products[f], [Fraction(0)] * 40), strict=True)
            )
    assert ones > 40
    assert differ > 40  # thresholds matter
    if first == 1:
        assert not got[1].any()  # a product is not above itself


def test_centred_bits_at_the_limits():
    """A difference that is zero or too small for FP32 gives 0, and so does one that is no number."""
    h = Hasher(ReSVParams(n_hp=2, centre=True), 1, 1)
    h.planes = to_bf16(np.array([[1.0], [-1.0]]))
    low, inf = 2.0**-126, float("inf")

    def bits(*keys: float) -> list[int]:
        return [to_int(w) for w in h.frame(h.split(to_bf16(np.array(keys)).reshape(-1, 1, 1)))[0]]

    assert bits(low) == [0]
    assert bits(low * 1.5, low * 2, low / 2, inf, -inf, float("nan")) == [0, 1, 2, 1, 2, 0]
    h.thresholds = None
    assert bits(inf) == [0]
    assert bits(1, inf, -inf) == [2, 0, 2]  # the second threshold is minus infinity


def test_centred_bits_of_recorded_keys_are_those_of_an_exact_mean():
    """But for 5 bits in 10,000 (docs/numerics.md), because 1 / T has 8 significant bits: at most 2^-9 of the mean."""
    t = Trace.load(FIXTURE)
    first, differ = slice(*t.spans("frame")[0]), []
    for k in t.k:
        h = Hasher(ReSVParams(centre=True), t.kv_heads, t.head_size)
        keys = h.split(k)
        h.frame(keys[:, first])
        for i, own in enumerate(keys):
            exact = own.astype(float) @ h.planes.astype(float).T
            differ.append(unpack(h.words(own, i), 32) != (exact > exact[first].mean(axis=0)))
    assert len(differ) == len(t.k) * t.kv_heads
    assert round(1e4 * float(np.mean(differ))) == 5


def test_centred_hashing_starts_again_with_a_new_hasher():
    """Thresholds stay those of the first frame, and every hasher has its own."""
    rng = np.random.default_rng(9)
    k = to_bf16(rng.standard_normal((2, 6, 2, 8)) + 2)
    one, two = (Hasher(ReSVParams(centre=True), 2, 8) for _ in range(2))
    first = [one.frame(one.split(f)) for f in k]
    assert (one.frame(one.split(k[0])) == first[0]).all()
    assert (two.frame(two.split(k[1])) != first[1]).any()


def test_expected_distance_is_proportional_to_the_angle():
    """E[Hamming] = n_hp x angle / pi (random hyperplanes), over 60 draws of 256 hyperplanes, within 4 sigma."""
    rng = np.random.default_rng(5)
    for angle in (0.3, 1.0, 2.5):
        u, v = np.linalg.qr(rng.standard_normal((64, 2)))[0].T
        keys = to_bf16(np.stack([u, np.cos(angle) * u + np.sin(angle) * v])[:, None])
        bits = 0
        for seed in range(60):
            h = Hasher(ReSVParams(n_hp=256, hash_seed=seed, centre=False), 1, 64)
            a, b = h.frame(h.split(keys))[0]
            bits += bin(to_int(a) ^ to_int(b)).count("1")
        p = angle / np.pi
        n = 60 * 256
        assert abs(bits - n * p) < 4 * np.sqrt(n * p * (1 - p))


def test_pack():
    bits = np.zeros((1, 70), bool)
    bits[0, [0, 65]] = True
    assert to_int(pack(bits)[0]) == 1 | 1 << 65
    np.testing.assert_array_equal(unpack(pack(bits), 70), bits)


@pytest.mark.parametrize("scope", ["layer", "head"])
@pytest.mark.parametrize("centre", [False, True])
def test_sorted_planes_permute_the_bits(scope, centre):
    rng = np.random.default_rng(8)
    k = to_bf16(rng.standard_normal((40, 2, 8)) + 1.5 * rng.standard_normal((2, 8)))
    one, two = (Hasher(ReSVParams(scope=scope, centre=centre), 2, 8) for _ in range(2))
    two.sort_planes(two.split(k))
    a, b = (np.concatenate([unpack(w, 32) for w in h.frame(h.split(k))]) for h in (one, two))
    balance = [abs(int(x) - len(b) / 2) for x in b.sum(0, dtype=int)]
    assert balance == sorted(balance)
    assert balance != [abs(int(x) - len(a) / 2) for x in a.sum(0, dtype=int)]
    assert sorted(map(tuple, a.T.tolist())) == sorted(map(tuple, b.T.tolist()))
    if centre:
        with pytest.raises(ValueError, match="after a frame was hashed"):
            two.sort_planes(two.split(k))
