"""LiveVLM and StreamMem against their rules, written anew in float64 and plain loops."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.light_attention import bf16
from openvrex.papers.policies.compressed_cache import (
    LiveVlm,
    LiveVlmParams,
    StreamMem,
    StreamMemParams,
    bucketed,
    importance,
)
from tb.tests.golden.policies.policy_runs import rotated
from tb.tests.golden.retrieval.resv_samples import video
from tb.tests.papers.policies.policy_streams import ENTRY, SHAPE, Stream


def stream(policy, seed: int = 1, prompt: bool = True) -> Stream:
    """A stream of up to 84 tokens, after its prompt of seven if there is one."""
    s = Stream(policy, 0)
    s.q, s.k, s.v = (
        np.concatenate(x).astype(np.float32) for x in zip(*((f[0], f[1], f[2]) for f in video(seed, 12)), strict=True)
    )
    if prompt:
        s.block("prompt", 7)
    return s


def weights(q: np.ndarray, k: np.ndarray, seen: list[int] | None = None) -> np.ndarray:
    """Softmax of rows q [T, 4, 8] over k [2, n, 8], mean over rows and heads; row t sees the first seen[t] keys."""
    out = np.zeros(k.shape[1])
    for t in range(len(q)):
        for head in range(4):
            n = k.shape[1] if seen is None else seen[t]
            e = np.exp([q[t, head].astype(float) @ key / 8**0.5 for key in k[head // 2, :n].astype(float)])
            out[:n] += e / e.sum() / (len(q) * 4)
    return out


def test_importance_by_definition():
    rng = np.random.default_rng(1)
    q, k = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 8), (2, 9, 8)))
    tokens = np.array([0, 2, 3, 5, 8, 9, 11, 12, 13])
    got = importance(q, k, np.array([9, 11, 12]), tokens)
    np.testing.assert_allclose(got, weights(q, k, [6, 7, 8]), rtol=1e-5)
    assert got[-1] == 0
    assert got.sum() == pytest.approx(1, rel=1e-6)


def by_buckets(tokens, score, length, budget, top):
    """The rule with exact fractions and a count for each bucket."""
    order = sorted(range(len(tokens)), key=lambda i: (-score[i], i))
    counts, kept = {}, order[:top]
    number = [ceil(Fraction((int(t) + 1) * budget, length)) for t in tokens]
    for i in kept:
        counts[number[i]] = counts.get(number[i], 0) + 1
    for i in order[top:]:
        if len(kept) < budget and not counts.get(number[i]):
            counts[number[i]] = 1
            kept.append(i)
    for i in order:
        if len(kept) < budget and i not in kept:
            kept.append(i)
    return sorted(kept)


@settings(max_examples=100)
@given(st.sets(st.integers(0, 60), min_size=1), st.integers(1, 30), st.integers(0, 30), st.integers(0, 5))
def test_bucketed_by_definition(places, budget, top, seed):
    tokens = np.array(sorted(places))
    score = np.random.default_rng(seed).integers(0, 9, len(tokens))  # with ties
    length, top = int(tokens[-1]) + 3, min(top, budget)
    assert bucketed(tokens, score, length, budget, top).tolist() == by_buckets(tokens, score, length, budget, top)


def test_buckets_cover_the_stream():
    """Without top tokens, each stretch keeps its own best token, although the last ones score best of all."""
    score = np.arange(100.0)
    assert bucketed(np.arange(100), score, 100, 10, 0).tolist() == list(range(9, 100, 10))
    assert bucketed(np.arange(100), score, 100, 10, 10).tolist() == list(range(90, 100))
    assert bucketed(np.array([255]), score[:1], 1000, 10, 0).tolist() == [0]  # the paper's token 256 is in bucket 3


@pytest.mark.parametrize("seed", [1, 2])
def test_livevlm_by_definition(seed):
    """Every frame leaves the last tokens and the bucketed others; a question drops the worst pages for its answer."""
    p = LiveVlmParams(budget=12, recent=10, window=3, top=0.25, page=3, ratio=0.4)
    s = stream(LiveVlm(p, SHAPE), seed)
    held, compressions = list(range(7)), 0
    for frame in range(1, 9):
        s.block("frame", 7)
        start, stop = 7 * frame, 7 * frame + 7
        held += range(start, stop)
        old = [t for t in held if 7 <= t < stop - 10]
        if len(old) > 12:
            compressions += 1
            seen = [sum(t <= row for t in held) for row in range(stop - 3, stop)]
            score = weights(s.q[stop - 3 : stop], s.k[held].swapaxes(0, 1), seen)[[held.index(t) for t in old]]
            kept = by_buckets(old, score, stop - 10, 12, 3)
            held = [t for t in held if t not in old or t in [old[i] for i in kept]]
        assert np.flatnonzero(s.policy.store.on_device(0)[0]).tolist() == held
        assert np.flatnonzero(s.policy.store.on_device(0)[1]).tolist() == held
    assert compressions >= 4
    assert len([t for t in held if 7 <= t < 53]) == 12
    s.block("question", 2)
    old = [t for t in held if 7 <= t < 63 - 10]
    plain = np.array([[rotated(s.k[t, g], -t, 100.0) for t in old] for g in range(2)])
    q = np.array([[rotated(s.q[t, h], -t, 100.0) for h in range(4)] for t in (63, 64)])
    means = np.array([[head[i : i + 3].mean(axis=0) for i in range(0, len(old), 3)] for head in plain])
    best = np.argsort(-weights(q, means))[: ceil(0.4 * means.shape[1])]
    read = [t for i, t in enumerate(old) if i // 3 in best]
    want = [t for t in held if t not in old or t in read] + [63, 64]
    assert 0 < len(read) < len(old)
    for size in (0, 1, 1):  # the question, then tokens of the answer, which keep its pages
        if size:
            s.block("generation", 1)
            want.append(s.run.length - 1)
        assert s.run.records[-1].kept[0].tolist() == [sum(t < s.run.records[-1].start for t in want)] * 2
        assert np.flatnonzero(keep_of(s)).tolist() == want
    s.block("frame", 7)  # attends to all that is held, pages left out included
    assert s.run.records[-1].kept[0, 0] == len(held) + 4
    assert s.policy.ledger.held["device"] == s.policy.store.census()["device"] * ENTRY
    assert not s.policy.ledger.moved


def keep_of(s: Stream) -> np.ndarray:
    """Tokens that the last block of a LiveVLM stream attended to: held ones that its question did not leave out."""
    keep = s.policy.store.on_device(0)[0].copy()
    keep[: len(s.policy.unread[0])] &= ~s.policy.unread[0]
    return keep


@pytest.mark.parametrize("seed", [1, 2])
def test_streammem_by_definition(seed):
    """After a clip the memory holds the best entries and a prototype of each new frame, within its budget."""
    s = stream(StreamMem(StreamMemParams(budget=15, clip=2, proxy=3), SHAPE), seed)
    tokens, kept_prototypes, clip, dropped = [], [], [], 0  # prototypes: K and V, [2, 2, 8]
    for frame in range(1, 9):
        s.block("frame", 7)
        span = range(7 * frame, 7 * frame + 7)
        clip.append(span)
        tokens += span
        if len(clip) == 2:
            if len(tokens) + len(kept_prototypes) > 15:
                stop = span.stop
                q = [[bf16(rotated(s.q[t, h], stop - t, 100.0)) for h in range(4)] for t in range(4, 7)]
                keys = np.array([*[p[0] for p in kept_prototypes], *s.k[tokens]]).swapaxes(0, 1)
                score = weights(np.array(q), keys)
                names = [*range(-len(kept_prototypes), 0), *tokens]  # prototypes have names below 0
                by = dict(zip(names, score, strict=True))
                new = []
                for own in clip:
                    share = np.array([by[t] for t in own]) / sum(by[t] for t in own)
                    new.append([np.einsum("t,tgd->gd", share, x[own.start : own.stop]) for x in (s.k, s.v)])
                best = sorted(names, key=lambda t: -by[t])[: 15 - 2]
                dropped += sum(t < 0 and t not in best for t in names)
                kept_prototypes = [p for i, p in enumerate(kept_prototypes, -len(kept_prototypes)) if i in best] + new
                tokens = [t for t in tokens if t in best]
            clip = []
        assert np.flatnonzero(s.policy.store.on_device(0)[0]).tolist() == [*range(7), *tokens]
        got = s.policy.prototypes[0]
        assert got.shape[2] == len(kept_prototypes)
        if kept_prototypes:
            np.testing.assert_allclose(got.transpose(2, 0, 1, 3), np.array(kept_prototypes), rtol=2**-7, atol=2**-9)
        kept_prototypes = list(got.transpose(2, 0, 1, 3))  # as stored, in BF16
        entries = s.policy.store.census()["device"] + 2 * len(kept_prototypes)
        assert s.policy.ledger.held["device"] == entries * ENTRY
    assert len(tokens) + len(kept_prototypes) == 15
    assert dropped
    assert not s.policy.ledger.moved
    s.block("question", 3)
    q, k, v = s.q[63:66], s.k[[*range(7), *tokens, 63, 64, 65]], s.v[[*range(7), *tokens, 63, 64, 65]]
    k = np.concatenate([[p[0] for p in kept_prototypes], k])
    v = np.concatenate([[p[1] for p in kept_prototypes], v])
    for t in range(3):
        for head in range(4):
            e = np.exp(k[: len(k) - 2 + t, head // 2].astype(float) @ q[t, head] / 8**0.5)
            np.testing.assert_allclose(s.y[-1][t, head], e / e.sum() @ v[: len(v) - 2 + t, head // 2], atol=1e-5)


def test_streammem_without_a_prompt_ranks_by_the_frame():
    """Real text has no prompt: then the frame's own last queries choose, and the memory is still bounded."""
    s = stream(StreamMem(StreamMemParams(budget=15, clip=2, proxy=3), SHAPE), prompt=False)
    for _ in range(4):
        s.block("frame", 7)
    assert s.policy.template == [None]
    assert s.policy.store.on_device(0)[0].sum() + s.policy.prototypes[0].shape[2] == 15
    one = stream(StreamMem(StreamMemParams(budget=3, clip=1, proxy=9), SHAPE), prompt=False)
    for _ in range(4):
        one.block("frame", 2)
    assert one.policy.store.on_device(0)[0].sum() + one.policy.prototypes[0].shape[2] == 3


def test_many_frames_without_queries_leave_prototypes_only():
    """A trace's first frames have no queries. Their prototypes alone may fill the memory; the last ones stay."""
    s = stream(StreamMem(StreamMemParams(budget=3, clip=1, proxy=2), SHAPE))
    s.policy.clip = [(7 * i, 7 * i + 7) for i in range(1, 6)]
    for _ in range(5):
        run = s.run
        run.length += 7
        run.known = np.ones(run.length, bool)
        s.policy.store.arrive(run.length)
        at = np.arange(run.length - 7, run.length)
        run.take(0, at, s.k[at], s.v[at])
        s.policy.visual = np.concatenate([s.policy.visual, np.ones(7, bool)])
    s.block("frame", 7)
    assert s.policy.prototypes[0].shape[2] == 3
    assert np.flatnonzero(s.policy.store.on_device(0)[0]).tolist() == list(range(7))


def test_bad_parameters_and_unknown_rotation():
    with pytest.raises(ParamError, match="clip=8: must be below budget = 8"):
        StreamMemParams(budget=8)
    with pytest.raises(ParamError, match="ratio=1.5"):
        LiveVlmParams(ratio=1.5)
    for policy, params in ((LiveVlm, LiveVlmParams()), (StreamMem, StreamMemParams())):
        with pytest.raises(ParamError, match=f"because {policy.__name__} turns keys"):
            policy(params, Shape(1, 4, 2, 8))
