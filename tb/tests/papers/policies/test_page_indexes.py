"""Other indexes of pages: scores beside a sum over all tokens, entries in the rotated basis, two levels."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.retrieval.coded_pages import ONE, CodedKeys, PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.papers.policies.page_indexes import IndexedKeys, IndexedPages, IndexedPagesParams

SIZE, HEADS, KV_HEADS, TOKENS = 16, 4, 2, 192
PARAMS = IndexedPagesParams(page=4, mean=32, recent=32, numbers=6, short=2, budget=24)


@pytest.fixture(scope="module")
def basis() -> KeyMatrices:
    """An orthogonal basis of all numbers of a head, and its inverse as `Moments` would derive it."""
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((KV_HEADS, SIZE, SIZE)))[0]
    return KeyMatrices(to_bf16(turn), to_bf16(turn * (ONE / np.sqrt(SIZE))))


@pytest.fixture(scope="module")
def seen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys [T, kv_heads, size], queries [3, heads, size] and sums of their rows [3, heads]."""
    rng = np.random.default_rng(4)
    keys = to_bf16(rng.standard_normal((TOKENS, KV_HEADS, SIZE)) + 2 * rng.standard_normal((1, KV_HEADS, SIZE)))
    return keys, to_bf16(rng.standard_normal((3, HEADS, SIZE))), rng.standard_normal((3, HEADS)).astype(np.float32)


def indexed(basis: KeyMatrices, keys: np.ndarray, index: str, **more) -> IndexedKeys:
    out = IndexedKeys(replace(PARAMS, index=index, **more), basis)
    out.append(keys)
    return out


def logits(keys: np.ndarray, q: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Of every KV head, row and token, float64 [kv_heads, 3 rows of 2 heads, T]; each less its row's sum."""
    group = HEADS // KV_HEADS
    rows = np.array([[q[t, g * group + h] for t in range(3) for h in range(group)] for g in range(KV_HEADS)], float)
    less = np.array([[sums[t, g * group + h] for t in range(3) for h in range(group)] for g in range(KV_HEADS)])
    return rows @ keys.astype(float).transpose(1, 2, 0) / np.sqrt(SIZE) - less[:, :, None]


def test_scores_by_keys_means_and_extremes(basis, seen):
    keys, q, sums = seen
    exact = logits(keys, q, sums).reshape(KV_HEADS, 6, -1, 4)
    got = {index: indexed(basis, keys, index).page_scores(q, sums) for index in ("keys", "means", "minmax")}
    assert np.allclose(got["keys"], exact.max(axis=(1, 3)), atol=1e-4)
    assert np.allclose(got["means"], exact.mean(axis=3).max(axis=1), atol=1e-4)
    assert (got["minmax"] >= got["keys"] - 1e-4).all()  # a bound
    assert (got["minmax"] > got["keys"] + 0.1).mean() > 0.9  # that is not tight
    one = replace(PARAMS, index="minmax", page=1)  # of a token alone it is
    alone = IndexedKeys(one, basis)
    alone.append(keys)
    assert np.allclose(alone.page_scores(q, sums), exact.reshape(KV_HEADS, 6, -1).max(axis=1), atol=1e-4)


@pytest.mark.parametrize("index", ["means-codes", "short-codes"])
def test_two_levels(basis, seen, index):
    """The second level ranks the pages that the first one keeps; with all of them it ranks as codes alone do."""
    keys, q, sums = seen
    codes = CodedKeys(
        PageParams(page=4, mean=32, recent=32, numbers=6, budget=24), indexed(basis, keys, "means").matrices
    )
    codes.append(keys)
    alone = codes.page_scores(q, sums)
    for share, kept in ((1.0, 48), (0.25, 12)):
        found = indexed(basis, keys, index, share=share).page_scores(q, sums)
        chosen = found > -1e38
        assert (chosen.sum(axis=1) == kept).all()
        assert np.array_equal(found[chosen], alone[chosen])
    if index == "means-codes":
        first = indexed(basis, keys, "means").page_scores(q, sums)
    else:  # the numbers that a short code lacks do not count: a query without them ranks alike
        few = KeyMatrices(basis.code, np.where(np.arange(SIZE)[:, None] < PARAMS.short, basis.query, BF16(0)))
        first = indexed(few, keys, "short-codes", share=1.0).page_scores(q, sums)
    assert (np.where(chosen, first, 9).min(axis=1) > np.where(chosen, -9, first).max(axis=1)).all()


def test_entries_hold_their_codes(basis, seen):
    """Entries are near the keys, and a code is the upper bits of the first numbers."""
    keys, q, sums = seen
    entries = indexed(basis, keys, "entries")
    error = np.sqrt(np.mean((entries.keys - keys.astype(np.float32).swapaxes(0, 1)) ** 2))
    assert 0.05 < error < 0.2  # sixteen levels of a Gaussian: 0.11 of its deviation
    exact = logits(keys, q, sums).reshape(KV_HEADS, 6, -1, 4).max(axis=(1, 3))
    whole = indexed(basis, keys, "entries", numbers=SIZE).page_scores(q, sums)
    assert np.corrcoef(whole.ravel(), exact.ravel())[0, 1] > 0.95
    rest = keys.astype(np.float32).swapaxes(0, 1)[:, :32] - entries.means[:, :1].astype(np.float32)
    x = rest @ basis.code.astype(np.float32).swapaxes(1, 2)
    sure = np.abs(x[..., :6]) > 0.1
    assert (np.sign(x[..., :6]) == np.sign(entries.numbers[:, :32]))[sure].all()


def test_a_policy_keeps_sinks_and_recent_tokens_as_they_are(seen):
    keys, _, _ = seen
    shape = Shape(1, HEADS, KV_HEADS, SIZE)
    policy = IndexedPages(replace(PARAMS, index="entries", matrices="plain", kv4_group=16), shape)
    own = keys.astype(np.float32)
    for start in range(0, TOKENS, 32):
        tokens = np.arange(start, start + 32)
        policy.store.arrive(start + 32)
        policy.store.append(0, tokens)
        policy.append(0, tokens, own[tokens], own[tokens])
    stored = policy.stored[0].k
    came = own.swapaxes(0, 1)
    same = (stored == came).all(axis=2)
    assert same[:, :4].all()
    assert same[:, -32:].all()
    assert not same[:, 4:-32].any()


def test_bad_parameters():
    with pytest.raises(ParamError, match="index='none': must be one of keys, minmax"):
        replace(PARAMS, index="none")
    with pytest.raises(ParamError, match="short=7: must be at most numbers = 6"):
        replace(PARAMS, short=7)
