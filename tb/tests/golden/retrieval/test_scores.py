"""Hash bits and score codes against fractions and high-precision decimals, which share no code with golden."""

import hashlib
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest

from golden.arithmetic.numerics import to_bf16
from golden.arithmetic.score_codes import encode, value
from golden.function_params import ParamError, ReSVParams, ScoreFormat
from golden.retrieval.hashing import Hasher, hyperplanes, pack, to_int, unpack
from golden.retrieval.scores import codes, exp_codes, scores

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


@pytest.mark.parametrize("scope", ["layer", "head"])
@pytest.mark.parametrize("centre", [False, True])
def test_hash_bits_by_fractions(scope, centre):
    """V-Rex IV-B, hash-bit generation: key times hyperplanes, zero or below gives 0."""
    rng = np.random.default_rng(4)
    params = ReSVParams(n_hp=70, scope=scope, centre=centre)
    k = to_bf16(rng.standard_normal((2, 5, 2, 8)) + 2)
    k[1, 0] = 0
    hasher = Hasher(params, 2, 8)
    got = [hasher.frame(hasher.split(f)) for f in k]
    tables = [k.reshape(2, 5, 16)] if scope == "layer" else [k[:, :, 0], k[:, :, 1]]
    for i, keys in enumerate(tables):
        planes = hyperplanes(70, keys.shape[2], params.hash_seed).astype(float)
        mean = np.zeros(keys.shape[2], np.float32)
        for row in keys[0]:
            mean = mean + row.astype(np.float32)
        mean = to_bf16(mean / np.float32(5)).astype(float)
        for f in range(2):
            for t in range(5):
                x = keys[f, t].astype(float)
                x = to_bf16(x - mean).astype(float) if centre else x
                dots = [sum(Fraction(a) * Fraction(b) for a, b in zip(x, p, strict=True)) for p in planes]
                assert to_int(got[f][i, t]) == sum(1 << b for b, d in enumerate(dots) if d > 0)
    assert centre or to_int(got[1][0, 0]) == 0


def test_expected_distance_is_proportional_to_the_angle():
    """E[Hamming] = n_hp x angle / pi (random hyperplanes), over 60 draws of 256 hyperplanes, within 4 sigma."""
    rng = np.random.default_rng(5)
    for angle in (0.3, 1.0, 2.5):
        u, v = np.linalg.qr(rng.standard_normal((64, 2)))[0].T
        keys = to_bf16(np.stack([u, np.cos(angle) * u + np.sin(angle) * v])[:, None])
        bits = 0
        for seed in range(60):
            h = Hasher(ReSVParams(n_hp=256, hash_seed=seed), 1, 64)
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
