"""Full attention, StreamingLLM, ReKV, InfiniGen, Oaken and ReSV against definitions that share no code with them.

The tests check the tokens that each policy attends to, moves and holds, and the work that it counts.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.full_streaming import Full, FullParams, Streaming, StreamingParams
from openvrex.golden.policies.light_attention import bf16
from openvrex.golden.policies.policy_run import DecoderRun, Run, decoder_shape
from openvrex.golden.policies.resv_policy import ReSVPolicy, ReSVPolicyParams
from openvrex.golden.retrieval.resv import ReSV
from openvrex.papers.policies.infinigen import InfiniGen, InfiniGenParams, skew
from openvrex.papers.policies.oaken import Oaken, OakenParams, quantise
from openvrex.papers.policies.rekv import ReKV, ReKVParams
from tb.tests.golden.policies.policy_runs import drive, rotated
from tb.tests.golden.retrieval.resv_samples import video
from tb.tests.papers.policies.policy_streams import ENTRY, SHAPE, Stream


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


# FlexGen


def test_flexgen_fetches_the_whole_cache_for_every_block():
    """V-Rex VI-B: everything is offloaded once and every block moves all that lies before it."""
    s = Stream(Full(FullParams(offload=True), SHAPE))
    assert s.moved("out", "offload") == 2 * 56 * ENTRY
    assert s.moved() == 2 * ENTRY * 7 * sum(range(8))
    s.block("generation", 1)
    assert s.moved() == 2 * ENTRY * (7 * sum(range(8)) + 56)
    assert s.policy.ledger.held == {"device": 0, "host": 2 * 57 * ENTRY}
    assert s.policy.ledger.peak["device"] == 2 * 57 * ENTRY


def test_full_attention_moves_nothing():
    s = Stream(Full(FullParams(), SHAPE))
    assert not s.policy.ledger.moved
    assert s.policy.ledger.held == {"device": 2 * 56 * ENTRY, "host": 0}


# StreamingLLM


def test_streamingllm_keeps_sinks_and_recent_and_drops_the_middle():
    """Equation 1 of the hybrid paper: 0 for j in Sink or Recent, minus infinity for j in Middle."""
    s = Stream(Streaming(StreamingParams(sinks=3, recent=10), SHAPE))
    place = s.policy.store.place(0)
    gone = np.zeros(56, bool)
    gone[3 : 49 - 10] = True  # the last block starts at 49
    np.testing.assert_array_equal(place == 3, [gone, gone])
    np.testing.assert_array_equal(s.policy.store.on_device(0), [~gone, ~gone])
    assert s.policy.ledger.peak["device"] == 2 * ENTRY * max(3 + 10 + 7 + 7, 0)  # a block goes in before one goes out
    assert s.policy.store.census()["pruned"] == 2 * gone.sum()


def test_streamingllm_counts_positions_inside_the_cache():
    """Its attention is that over the kept keys alone, rotated anew to positions 0, 1, 2, ..."""
    rng = np.random.default_rng(4)
    plain = {name: rng.standard_normal((42, heads, 8)) for name, heads in (("q", 4), ("k", 2))}
    s = Stream(Streaming(StreamingParams(sinks=3, recent=10), SHAPE), frames=0)
    for name, x in plain.items():
        turned = [[rotated(h, t, 100.0) for h in x[t]] for t in range(42)]
        setattr(s, name, bf16(np.array(turned, np.float32)))
    for _ in range(6):
        s.block("frame", 7)
    kept = [0, 1, 2, *range(25, 42)]
    for i, t in enumerate(range(35, 42)):
        at = [j for j in kept if j <= t]
        for h in range(4):
            q = rotated(plain["q"][t, h], 13 + i, 100.0)
            e = softmax(np.array([q @ rotated(plain["k"][j, h // 2], p, 100.0) for p, j in enumerate(at)]) / 8**0.5)
            np.testing.assert_allclose(s.y[-1][i, h], e @ s.v[at, h // 2], atol=0.03)
    assert s.policy.ledger.done["elementwise"] == 4 * 3 * 3 * 2 * 8  # four blocks with a middle: 3 sinks, 2 x 8 numbers


# ReKV


def chosen_frames(s, budget):
    """Frames by cosine of mean key and mean query, brute force; the last block is the query."""
    start = s.run.length - 7
    q = s.q[start : start + 7].reshape(7, 2, 2, 8).mean(axis=(0, 2)).ravel()
    cosine = []
    for f in range(1, start // 7):
        m = bf16(s.k[7 * f : 7 * f + 7].mean(axis=0)).ravel()
        cosine.append((m @ q / np.linalg.norm(m) / np.linalg.norm(q), f))
    return {f for _, f in sorted(cosine, reverse=True)[:budget]}


@pytest.mark.parametrize("seed", [1, 5, 8])
def test_rekv_retrieves_whole_frames_by_mean_key(seed):
    s = Stream(ReKV(ReKVParams(frame_ratio=0.4, recent=7), SHAPE), frames=9, seed=seed)
    record = s.run.records[-1]
    want = chosen_frames(s, 3)  # 0.4 of frames 1 to 7, rounded up
    assert record.kept.tolist() == [[28, 28]]  # the prompt and three frames
    assert record.fetched.tolist() == [[21, 21]]
    before = s.moved()
    select, seen = s.policy.select, []
    s.policy.select = lambda step: (seen.append(select(step)), seen[-1])[1]
    s.block("frame", 7)
    want = {0, *chosen_frames(s, 4), 9}  # 0.4 of 8; the new block itself
    assert {t // 7 for t in np.flatnonzero(seen[0].keep[0])} == want
    assert seen[0].keep.sum() == 2 * 7 * 6
    assert s.moved() - before == 2 * 28 * ENTRY


def test_rekv_uses_its_generation_ratio_and_keeps_recent():
    s = Stream(ReKV(ReKVParams(frame_ratio=1.0, generation_ratio=0.2, recent=14), SHAPE), frames=9)
    assert s.run.records[-1].error[0] == 0
    record = s.block("generation", 1)
    # 63 tokens: a prompt of 7, the last 14 resident (one of which is the new one), 43 of 7 blocks on the host
    assert record.fetched.tolist() == [[14, 14]]
    assert record.kept.tolist() == [[7 + 13 + 14] * 2]
    assert s.policy.ledger.held["device"] == 2 * ENTRY * (7 + 14) + 10 * 2 * 16  # and ten mean keys in BF16


# InfiniGen


def test_skewing_changes_no_score_and_gathers_the_weight():
    rng = np.random.default_rng(3)
    mix = rng.standard_normal((2, 8, 8)) * np.geomspace(4, 0.1, 8)[:, None]
    q, k = rng.standard_normal((2, 50, 8)) @ mix, rng.standard_normal((2, 30, 8))
    whole = skew(q, 8).astype(float)
    np.testing.assert_allclose((q @ whole) @ (k @ whole).swapaxes(1, 2), q @ k.swapaxes(1, 2), rtol=1e-4, atol=1e-4)
    part = skew(q, 3)
    for h in range(2):
        sums = np.abs(q[h] @ whole[h]).sum(axis=0)
        best = np.sort(np.argsort(-sums)[:3])
        np.testing.assert_array_equal(part[h], whole[h][:, best].astype(np.float32))
        assert np.square(q[h] @ part[h]).sum() > 1.05 * np.sort(np.square(q[h]).sum(axis=0))[-3:].sum()
    assert skew(q[:, :2], 8).shape == (2, 8, 8)  # fewer rows than columns


@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_infinigen_retrieves_a_fixed_share_by_predicted_attention(partial):
    params = InfiniGenParams(frame_ratio=0.3, generation_ratio=0.1, partial_ratio=partial, calibrate=20)
    s = Stream(InfiniGen(params, SHAPE))
    basis = s.policy.bases[0]
    np.testing.assert_array_equal(basis, skew(by_head(s.q[:14], 2), round(8 * partial)))  # 28 rows after two blocks
    select, seen = s.policy.select, []
    s.policy.select = lambda step: (seen.append(select(step)), seen[-1])[1]
    for stage, size, ratio in (("frame", 7, 0.3), ("generation", 1, 0.1)):
        start = s.run.length
        budget = int(np.ceil(ratio * start))
        record = s.block(stage, size)
        for g in range(2):
            if partial == 1:
                keys = s.k[:start, g]  # the skew is orthogonal: no need of it
                rows = by_head(s.q[start : start + size], 2)[g]
            else:
                keys = bf16(s.k[:start, g] @ basis[g])
                rows = by_head(s.q[start : start + size], 2)[g] @ basis[g]
            mass = sum(softmax(r @ keys.T / 8**0.5) for r in rows)
            best = set(np.argsort(-mass)[:budget])
            got = set(np.flatnonzero(seen[-1].keep[g, :start]))
            assert len(got) == budget
            assert len(got & best) >= budget - (1 if partial == 1 else 0)  # BF16 partial keys may swap a tie
            assert seen[-1].keep[g, start:].all()
        assert record.fetched.tolist() == [[budget, budget]]
    columns = round(8 * partial)
    assert s.policy.ledger.held["device"] == 2 * 2 * columns * s.run.length  # BF16 partial keys, nothing else


def by_head(q, kv_heads):
    return np.stack([q[:, 2 * g : 2 * g + 2].reshape(-1, q.shape[2]) for g in range(kv_heads)])


def test_infinigen_without_prefill_retrieval_fetches_everything_in_frames():
    """V-Rex Table II: 100 % in frames, 6.8 % in generation."""
    s = Stream(InfiniGen(InfiniGenParams(calibrate=20), SHAPE))
    assert s.moved() == 2 * ENTRY * 7 * sum(range(8))
    record = s.block("generation", 1)
    assert record.fetched.tolist() == [[4, 4]]  # 6.8 % of 56, rounded up


def test_infinigen_prefetches_what_the_layer_before_guesses(small_decoder):  # noqa: F811
    x = np.random.default_rng(2).standard_normal((60, 24)).astype(np.float32)
    policy = InfiniGen(InfiniGenParams(frame_ratio=0.25, calibrate=30), decoder_shape(small_decoder))
    out = drive(DecoderRun(policy, 24), small_decoder, x, [20, 10, 10, 10])
    entry = policy.store.entry_bytes
    # The first block (60 rows a KV head) calibrates; then the first layer fetches, the others are prefetched.
    assert policy.ledger.moved["in", "fetch"] == 3 * entry * (5 + 8 + 10)
    assert policy.ledger.moved["in", "prefetch"] == 2 * 3 * entry * (5 + 8 + 10)
    assert out.records[-1].fetched.tolist() == [[10] * 3] * 3
    assert not policy.predicted


# Oaken


def test_oaken_groups_and_error():
    """Shares of 4 / 90 / 6 %; half a step of its group is the largest error, but for BF16 rounding."""
    x = bf16(np.random.default_rng(7).standard_normal((200, 2, 64)))
    inner, outer = np.quantile(np.abs(x), [0.06, 0.96])
    got, apart = quantise(x, inner, outer, 4)
    size = np.abs(x)
    np.testing.assert_array_equal(apart, (size < inner) | (size >= outer))
    assert 0.095 < apart.mean() < 0.105
    assert (np.sign(got) == np.where(np.signbit(x), -1, 1)).all()
    tops = {  # of each token: the largest value after the shift
        "inner": np.where(size < inner, size, 0).max(axis=(1, 2)) / 16,
        "middle": np.where(apart, 0, size - inner).max(axis=(1, 2)) / 8,
        "outer": np.where(size >= outer, size - outer, 0).max(axis=(1, 2)) / 16,
    }
    step = np.select([size < inner, size < outer], [tops["inner"][:, None, None], tops["middle"][:, None, None]],
                     tops["outer"][:, None, None])  # fmt: skip
    # BF16 twice: the scale (which may fall short of the largest value by 2^-8 of it) and the result.
    assert (np.abs(got - x) <= step / 2 + 17 * step * 2.0**-8 + np.abs(got) * 2.0**-8).all()
    levels = len(np.unique(np.round(((np.abs(got[0]) - inner) / (step[0] + 1e-9))[~apart[0]], 1)))
    assert levels <= 8 + 1  # sign and three bits


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 7))
def test_oaken_more_bits_are_more_exact(seed, bits):
    x = bf16(np.random.default_rng(seed).standard_normal((20, 64)))
    limits = np.quantile(np.abs(x), [0.06, 0.96])
    errors = [np.square(quantise(x, *limits, b)[0] - x).mean() for b in (bits, bits + 1)]
    assert errors[1] < 0.5 * errors[0] + 1e-6  # BF16 rounding stays


def test_oaken_attends_to_quantised_values_and_freezes_its_thresholds():
    s = Stream(Oaken(OakenParams(calibrate=20), SHAPE))
    seen = np.stack([np.abs(a[:21]).reshape(-1) for a in (s.k, s.v)])  # three blocks reach 20 tokens
    np.testing.assert_allclose(s.policy.limits[0], np.quantile(seen, [0.06, 0.96], axis=1).T)
    stored = s.policy.stored[0]
    got, apart = quantise(s.k[49:56], *s.policy.limits[0][0], 4)
    np.testing.assert_array_equal(stored.k[:, 49:], got.swapaxes(0, 1))
    assert 0 < s.run.records[-1].error[0] < 0.5
    # 4 bits a value, a byte for each outlier, three scales of K and of V a token
    ledger = s.policy.ledger
    assert s.policy.store.entry_bytes == ENTRY // 4
    outliers = ledger.held["device"] - 56 * (2 * ENTRY // 4 + 12)
    assert 0.05 < outliers / (56 * 2 * 2 * 8) < 0.2
    assert not ledger.moved


def test_oaken_takes_4_8_bits_a_value_of_a_large_model():
    policy = Oaken(OakenParams(calibrate=256), Shape(1, 32, 8, 128))
    run = Run(policy)
    x = bf16(np.random.default_rng(8).standard_normal((2, 256, 8, 128)))
    block = Block(0, "frame", 0, 256)
    run.begin(block)
    run.take(0, block.tokens, x[0], x[1])
    run.finish(block)
    bits = 8 * policy.ledger.held["device"] / x.size
    assert bits == pytest.approx(4 + 0.1 * 8 + 12 * 8 / 2048, abs=0.01)


# ReSV


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_resv_policy_attends_to_what_golden_resv_keeps(scope):
    """The same tokens, fetched once each; what is resident, and the HC table's bytes."""
    params = ReSVParams(n_hp=16, th_hd=4, recent=12, sinks=3, ratio_q16=20000, scope=scope)
    s = Stream(ReSVPolicy(ReSVPolicyParams(params), SHAPE))
    resv = ReSV(params, 2, 8)
    fetched = 0
    for i, record in enumerate(s.run.records):
        at = slice(7 * i, 7 * i + 7)
        resv.append(s.k[at].astype(BF16))
        got = resv.retrieve(s.q[at].astype(BF16))
        np.testing.assert_array_equal(record.kept[0], got.keep[:, : 7 * i].sum(axis=1))
        np.testing.assert_array_equal(record.fetched[0], got.fetched.sum(axis=1))
        fetched += int(got.fetched.sum())
    assert fetched
    assert s.moved() == fetched * ENTRY
    ledger, clusters = s.policy.ledger, sum(len(t) for t in resv.tables)
    assert s.moved("out", "offload") == 2 * ENTRY * (56 - 3 - 12)
    table = clusters * (2 * resv.hasher.dim + 2 + 2) + len(resv.tables) * 53 * 4
    assert ledger.held["device"] == 2 * ENTRY * 15 + table
    assert ledger.done["index"] == 53 * 16 * 17  # 53 tokens of 16 numbers: 16 hyperplanes and a running sum


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_resv_pieces_are_clusters(scope):
    """Section V-C: a cluster's tokens are contiguous, so it moves in one piece for each KV head of its table."""
    params = ReSVParams(n_hp=16, th_hd=4, recent=7, sinks=0, ratio_q16=65536, scope=scope)
    s = Stream(ReSVPolicy(ReSVPolicyParams(params), SHAPE))
    before = s.policy.ledger.pieces["in", "fetch"]
    tables = s.policy.layers[0].tables
    assert len(tables) == {"head": 2, "layer": 1}[scope]
    s.block("generation", 1)
    old = sum(min(m) < 57 - 7 for table in tables for m in table.members)
    assert s.policy.ledger.pieces["in", "fetch"] - before == old * 2 // len(tables)


@pytest.mark.parametrize("prefetch", ["none", "complete", "only"])
def test_resv_prefetch(prefetch, small_decoder):  # noqa: F811
    """Section IV-A: tokens come a layer early; completed on demand, nothing else changes."""
    x = np.random.default_rng(2).standard_normal((60, 24)).astype(np.float32)
    resv = ReSVParams(recent=8, sinks=2, th_hd=9)

    def go(how):
        policy = ReSVPolicy(ReSVPolicyParams(resv, how), decoder_shape(small_decoder))
        return drive(DecoderRun(policy, 24), small_decoder, x, [10] * 6)

    out, plain = go(prefetch), go("none")
    if prefetch != "none":  # what is prefetched is chosen by the queries guessed for the next layer
        steps, asked = [], []
        select, retrieve = out.policy.select, out.policy._retrieve
        out.policy.select = lambda step: (steps.append(step), select(step))[1]
        out.policy._retrieve = lambda *args: (asked.append(args), retrieve(*args))[1]
        again = Block(6, "frame", 60, 65)
        out.step(small_decoder, again, x[:5])
        out.records.pop()
        guessed = [args[:3] for args in asked if args[2] == "prefetch"]
        assert [layer for layer, _, _ in guessed] == [1, 2]
        for (_, q, _), step in zip(guessed, steps, strict=False):
            np.testing.assert_array_equal(q, step.ahead)
        out, plain = go(prefetch), go("none")
    moved = out.policy.ledger.moved
    kept, want = (np.array([r.kept for r in run.records]) for run in (out, plain))
    if prefetch == "only":
        assert moved["in", "fetch"] > 0  # of the first layer, which nothing precedes
        np.testing.assert_array_equal(kept[:, 0], want[:, 0])
        assert (kept[:, 1:] != want[:, 1:]).any()
        assert moved["in", "prefetch"] == 256 * int(sum(r.fetched[1:].sum() for r in out.records))
    else:
        np.testing.assert_array_equal(kept, want)
        assert [r.choices for r in out.records] == [r.choices for r in plain.records]
        assert (moved["in", "prefetch"] > 0) == (prefetch == "complete")
        demand = 256 * int(sum(r.fetched.sum() for r in plain.records))
        assert (moved["in", "fetch"] < demand) == (prefetch == "complete")
        assert moved["in", "fetch"] + moved["in", "prefetch"] >= demand


@pytest.mark.parametrize("seed", range(3))
def test_resv_clusters_are_the_same_in_batches(seed):
    """Keys of several frames appended at once, behind the first frame, give the tables of frame by frame."""
    params = ReSVParams(n_hp=16, th_hd=4, sinks=3, max_clusters=9)
    keys = np.concatenate([k for _, k, _ in video(seed, 6)])
    one, many = ReSV(params, 2, 8), ReSV(params, 2, 8)
    many.append(keys[:7])
    many.append(keys[7:])
    for i in range(0, len(keys), 7):
        one.append(keys[i : i + 7])
    assert one.tables[0].members == many.tables[0].members
    np.testing.assert_array_equal(one.tables[0].key_sums, many.tables[0].key_sums)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InfiniGenParams(frame_ratio=1.5), "frame_ratio=1.5: must be 0 to 1"),
        (lambda: InfiniGenParams(partial_ratio=0), "partial_ratio=0: must be above 0"),
        (lambda: InfiniGenParams(calibrate=0), "calibrate=0: must be at least 1"),
        (lambda: ReKVParams(generation_ratio=-1), "generation_ratio=-1: must be 0 to 1"),
        (lambda: ReKVParams(recent=-1), "recent=-1: must not be negative"),
        (lambda: StreamingParams(sinks=-1), "sinks=-1: must not be negative"),
        (lambda: StreamingParams(recent=-1), "recent=-1: must not be negative"),
        (lambda: OakenParams(outer=0.5), "outer=0.5: must be at least 0 and below 0.5"),
        (lambda: OakenParams(bits=1), "bits=1: must be 2 to 8"),
        (lambda: OakenParams(calibrate=0), "calibrate=0: must be at least 1"),
        (lambda: replace(ReSVPolicyParams(), prefetch="soon"), "prefetch='soon': must be one of none, complete, only"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ParamError, match=message):
        make()
