"""Mosaic: every equation and step of the paper (`mosaic.txt` V-VII), and what must hold whatever the stream."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import decoder as decoder_module
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.ledger import PolicyError
from openvrex.golden.policies.light_attention import Selected, attention, bf16
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams, batched_attention
from openvrex.golden.policies.mosaic_clusters import Clusters, Threshold, kmeans, unit
from openvrex.golden.policies.mosaic_layer import best
from openvrex.golden.policies.policy_run import DecoderRun, blocks, decoder_shape
from openvrex.golden.policies.store import HOST
from openvrex.scripts.check.verify_command import FIXTURE
from tb.tests.golden.inputs.trace_samples import small_weights
from tb.tests.golden.policies.mosaic_streams import (
    DRIFT,
    KINDS,
    LEVELS,
    SCENES,
    SMALL,
    WIDTH,
    drifting,
    halves,
    run,
    stream,
)


def directions(rng: np.random.Generator, n: int, width: int = 6, kinds: int = 3, noise: float = 0.3) -> np.ndarray:
    """Unit vectors near a few directions."""
    return unit(
        rng.standard_normal((kinds, width))[rng.integers(kinds, size=n)] + noise * rng.standard_normal((n, width))
    )


# Equations


@given(st.integers(0, 999), st.integers(1, 30))
def test_equations_1_and_2_centroid_and_variance_by_definition(seed, n):
    x = directions(np.random.default_rng(seed), n)
    clusters = Clusters(6)
    c = clusters.add(x)
    want = x.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(clusters.mean[c], want, atol=1e-6)
    np.testing.assert_allclose(clusters.variance[c], ((x - want) ** 2).sum(axis=1).mean(), atol=1e-6)
    np.testing.assert_allclose(clusters.variance[c], 1 - want @ want, atol=1e-6)  # unit vectors need no members


@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 400))
def test_equations_3_and_4_running_updates_equal_recomputation(seed, first, more):
    """Welford-style updates in FP32 stay within 2^-23 (4 + n / 8) of the definition over all members in float64."""
    x = directions(np.random.default_rng(seed), first + more)
    clusters = Clusters(6)
    c = clusters.add(x[:first])
    for one in x[first:]:
        want = clusters.grown(c, one)
        clusters.absorb(c, one)
        assert clusters.variance[c] == np.float32(want)
    assert clusters.size[c] == len(x)
    mean = x.astype(np.float64).mean(axis=0)
    bound = 2**-23 * (4 + len(x) / 8)
    assert np.abs(clusters.mean[c] - mean).max() <= bound
    assert abs(clusters.variance[c] - ((x - mean) ** 2).sum(axis=1).mean()) <= bound


def test_equation_5_threshold_relaxes_with_size():
    t = Threshold(0.1, 0.3, 10.0)
    assert t(0) == 0.1
    np.testing.assert_allclose(t(10), 0.3 - 0.2 / math.e)
    np.testing.assert_allclose(t(10**6), 0.3)
    values = [t(n) for n in range(60)]
    assert all(a < b for a, b in zip(values, values[1:], strict=False))


# V-B: cosine K-means, nested


def test_kmeans_goes_by_direction_not_by_length():
    rng = np.random.default_rng(1)
    kinds = np.repeat(np.arange(3), 20)
    x = (np.eye(3)[kinds] + 0.05 * rng.standard_normal((60, 3))) * rng.uniform(0.01, 100, (60, 1))
    labels, _ = kmeans(unit(x), 3, 0)
    assert len(set(zip(labels.tolist(), kinds.tolist(), strict=True))) == 3


@given(st.integers(0, 99), st.integers(1, 25), st.integers(1, 8))
def test_kmeans_ends_at_nearest_centroids(seed, n, k):
    """Labels have no gap, there are at most k, and each is that of the most similar centroid; a seed decides."""
    x = directions(np.random.default_rng(seed), n, kinds=4)
    labels, ran = kmeans(x, k, seed, 50)
    assert 1 <= ran < 50
    assert set(labels.tolist()) == set(range(labels.max() + 1))
    assert labels.max() < min(k, n)
    centres = unit(np.stack([x[labels == c].sum(axis=0) for c in range(labels.max() + 1)]))
    close = x @ centres.T
    assert (close[np.arange(n), labels] >= close.max(axis=1) - 1e-5).all()
    np.testing.assert_array_equal(kmeans(x, k, seed, 50)[0], labels)


def test_kmeans_of_equal_vectors_is_one_cluster():
    labels, _ = kmeans(np.ones((5, 4), np.float32) / 2, 3, 0)
    assert not labels.any()


def test_semantic_clusters_are_nested_in_visual_ones():
    """All entries of a semantic cluster come from frames of one visual cluster, the same frames in every layer."""
    trace, parts = stream(SCENES)
    policy = run(SMALL, trace, parts).policy
    assert len(policy.visual) == 4
    seen = {}
    for layer in policy.layers:
        assert (layer.cluster >= 0).all()
        for token, c in enumerate(layer.cluster.tolist()):
            scene = SCENES[token // 4]
            assert seen.setdefault(scene, layer.clusters.partition[c]) == layer.clusters.partition[c]
    assert len(set(seen.values())) == 4
    assert (policy.layers[0].cluster != policy.layers[1].cluster).any()


def test_a_new_scene_opens_a_visual_cluster():
    trace, parts = stream([0, 1, 0, 1, 2])
    before, after = (run(SMALL, trace, parts[:n]).policy for n in (4, 5))
    assert (len(before.visual), len(after.visual)) == (2, 3)
    np.testing.assert_array_equal(after.visual.size, [2, 2, 1])


# V-C: index, retrieval, representatives, window


@settings(max_examples=15)
@given(st.integers(0, 99))
def test_index_is_the_mean_of_members(seed):
    """The sums behind the representatives, and the statistics, are those of the members that are not buffered."""
    trace, parts = stream(SCENES, seed, noise=0.4)
    policy = run(SMALL, trace, parts).policy
    assert policy.splits
    for i, layer in enumerate(policy.layers):
        k, v = (a[i].astype(np.float64).reshape(-1, WIDTH) for a in (trace.k, trace.v))
        for c in range(len(layer.clusters)):
            at = (layer.cluster == c) & ~layer.buffered
            x = unit(k[at])
            assert layer.clusters.size[c] == at.sum()
            np.testing.assert_allclose(layer.sums[c], [k[at].sum(axis=0), v[at].sum(axis=0)], atol=1e-4)
            np.testing.assert_allclose(layer.clusters.mean[c], x.mean(axis=0), atol=1e-5)
            np.testing.assert_allclose(layer.clusters.variance[c], 1 - x.mean(axis=0) @ x.mean(axis=0), atol=1e-5)


def test_best_reaches_the_weight():
    score, weight = np.array([3.0, 9, 5, 7, 8]), np.array([1, 2, 4, 3, 0])
    for enough, want in (
        (0, []),
        (1, [1]),
        (2, [1]),
        (3, [1, 3]),
        (6, [1, 2, 3]),
        (10, [0, 1, 2, 3]),
        (99, [0, 1, 2, 3]),
    ):
        assert np.flatnonzero(best(score, weight, enough)).tolist() == want


def test_two_stage_retrieval_searches_the_best_visual_clusters_alone():
    """A matching semantic cluster in a visual cluster that does not match is lost, unless the visual stage is wide."""
    trace, parts = stream([0, 1, 2, 0, 1, 2, 0, 1, 2])
    k = np.zeros(trace.k.shape, np.float32)
    k[..., 0] = 1
    k[:, :, :, 1] = np.tile(np.repeat([1, 2, 0], 4), 3)[:, None]  # scene 1 matches on the whole
    k[:, 8::12, :, 1] = 4  # one token of scene 2 matches best of all
    k[:, 9::12, :, 1] = k[:, 10::12, :, 1] = k[:, 11::12, :, 1] = -2
    q = np.zeros(trace.q.shape, np.float32)
    q[..., 1] = 1
    trace = replace(trace, k=k.astype(ml_dtypes.bfloat16), q=q.astype(ml_dtypes.bfloat16))
    found = {}
    for breadth in (1.0, 99.0):
        params = replace(SMALL, ratio=0.05, breadth=breadth, recent=4)
        seen = []
        run(params, trace, parts, lambda s, c, *__, seen=seen: seen.append(np.flatnonzero(c.keep[0, : s.n - 8])))
        found[breadth] = set((seen[-1] // 4 % 3).tolist())
    assert found == {1.0: {1}, 99.0: {2}}


def test_representatives_stand_for_what_is_left_in_temporal_order():
    checked = []

    def spy(step, chosen, host, policy):
        layer = policy.layers[step.layer]
        if chosen.extra_k is not None:
            own = layer.cluster[host]
            at = {c: host[own == c].mean() for c in set(own.tolist())}
            want = [layer.sums[c] / layer.clusters.size[c] for c in sorted(at, key=at.get)]
            got = np.stack([chosen.extra_k, chosen.extra_v]).transpose(2, 0, 1, 3).reshape(len(at), 2, -1)
            np.testing.assert_array_equal(got, bf16(np.stack(want)))
            checked.append(len(at))

    run(replace(SMALL, ratio=0.0), *stream(SCENES), spy)
    assert max(checked) >= 10


def test_what_is_retrieved_has_no_representative_beside_it():
    trace, parts = stream(SCENES)
    counts = []
    for ratio in (0.0, 0.4, 1.0):
        seen = []
        run(replace(SMALL, ratio=ratio), trace, parts, lambda _, c, *__, seen=seen: seen.append(c))
        counts.append(0 if seen[-1].extra_k is None else seen[-1].extra_k.shape[1])
        assert seen[-1].keep.all() == (ratio == 1)
    assert counts[0] > counts[1] > counts[2] == 0


def test_local_window_prompt_and_text_are_always_attended():
    trace, parts = stream(SCENES)
    parts = [replace(b, stage={0: "prompt", 7: "question"}.get(i, "frame")) for i, b in enumerate(parts)]

    def see(step, chosen, *_):
        text = np.isin(np.arange(step.n) // 4, [0, 7])
        assert chosen.keep[:, text | (np.arange(step.n) >= step.n - SMALL.recent)].all()

    out = run(replace(SMALL, ratio=0.0), trace, parts, see)
    assert out.policy.store.census()["host"] > 0


# VI: assignment and Algorithm 1


@settings(max_examples=25)
@given(st.integers(0, 999), st.booleans())
def test_batched_assignment_equals_one_by_one(seed, defer):
    """Entries of several frames matched in one product end as if they had come singly (VII-A, cluster retrieval)."""
    trace, parts = stream([0, 1, 0, 1, 0, 1, 1, 0, 1, 0], seed, noise=0.4, layers=1)
    ends = []
    for size in (1, 4, 16):
        policy = run(replace(SMALL, defer=defer, recent=4), trace, parts[:6]).policy
        state, new = policy.layers[0], np.arange(24, 40)
        policy.store.arrive(40)
        policy.store.append(0, new)
        policy.framed = False
        policy.append(0, new, *(a[0, 24:40].astype(np.float32) for a in (trace.k, trace.v)))
        partition = policy.layers[0].clusters.partition[state.cluster[np.array([0, 4])]]
        partition = np.repeat(partition[[1, 0, 1, 0]], 4)
        for at in range(0, 16, size):
            policy._assign(0, new[at : at + size], partition[at : at + size])
        ends.append((state, policy.splits, policy.deferred))
    for state, *counts in ends[1:]:
        assert counts == list(ends[0][1:])
        for name in ("cluster", "buffered", "sums"):
            np.testing.assert_array_equal(getattr(state, name), getattr(ends[0][0], name))
        for name in ("mean", "variance", "size", "lazy"):
            np.testing.assert_array_equal(getattr(state.clusters, name), getattr(ends[0][0].clusters, name))


def test_algorithm_1_lines_4_to_6_resident_clusters_are_split_at_once():
    trace, parts = drifting()
    policy = run(replace(DRIFT, recent=99), trace, parts).policy
    assert policy.splits > 0
    assert policy.deferred == 0
    assert not policy.layers[0].clusters.lazy.any()
    assert not policy.ledger.moved


def test_algorithm_1_lines_7_to_10_split_is_deferred_and_the_entry_stays_visible():
    """Flagged, statistics untouched, nothing moved in; the singleton is on the device and attended."""
    trace, parts = drifting()
    before = run(DRIFT, trace, parts[:5]).policy.layers[0].clusters
    seen = []
    out = run(DRIFT, trace, parts, lambda _, c, *__: seen.append(c))
    policy, state = out.policy, out.policy.layers[0]
    waiting = np.flatnonzero(state.buffered)
    assert policy.deferred == len(waiting) > 0
    assert policy.splits == 0
    assert set(waiting.tolist()) <= set(range(20, 24))
    assert (np.flatnonzero(state.clusters.lazy) == np.unique(state.cluster[waiting])).all()
    for c in np.flatnonzero(state.clusters.lazy):
        grown = [t for t in range(20, 24) if state.cluster[t] == c and not state.buffered[t]]
        assert state.clusters.size[c] == before.size[c] + len(grown)
    assert not any(direction == "in" for direction, _ in policy.ledger.moved)
    assert policy.store.on_device(0)[:, waiting].all()
    assert seen[-1].keep[:, waiting].all()


def test_algorithm_1_lines_12_to_17_retrieval_merges_the_buffer_and_splits():
    trace, parts = drifting()
    held = run(DRIFT, trace, parts[:6]).policy.layers[0]
    waiting, lazy = np.flatnonzero(held.buffered), np.flatnonzero(held.clusters.lazy)
    out = run(DRIFT, trace, parts[:6])
    out.policy.params = replace(DRIFT, ratio=1.0)  # everything on the host is retrieved by the last frame
    seen = []
    select = out.policy.select
    out.policy.select = lambda step: (seen.append(select(step)), seen[-1])[1]
    out.step(trace, parts[6])
    state = out.policy.layers[0]
    assert out.policy.splits == len(lazy) > 0
    assert not state.clusters.lazy.any()
    assert not state.buffered.any()
    assert seen[0].keep[:, waiting].all()
    for c in lazy:  # the two parts hold what the cluster and its buffer held
        parts_of = np.unique(state.cluster[held.members(c)])
        assert len(parts_of) == 2
        assert c in parts_of
    assert len(state.clusters) == len(held.clusters) + len(lazy)
    assert out.policy.ledger.moved["in", "fetch"] > 0
    assert ("in", "index") not in out.policy.ledger.moved


def test_splitting_at_once_moves_clusters_for_maintenance_alone():
    trace, parts = drifting()
    policy = run(replace(DRIFT, defer=False), trace, parts).policy
    assert policy.splits > 0
    assert policy.deferred == 0
    assert policy.ledger.moved["in", "index"] > 0
    assert not policy.layers[0].buffered.any()


def test_a_split_reads_nothing_that_is_not_on_the_device():
    trace, parts = drifting()
    policy = run(DRIFT, trace, parts).policy
    c = int(np.flatnonzero(policy.layers[0].clusters.lazy)[0])
    with pytest.raises(PolicyError, match=f"cluster {c} of layer 0 is split without having its tokens"):
        policy._split(0, policy.layers[0].members(c), c)


def test_deferring_splits_less_often():
    trace, parts = stream([0, 1, 2] * 3 + [2, 1, 0, 1, 2, 0, 0, 2, 1] * 4, noise=0.5)
    now, later = (run(replace(SMALL, ratio=0.1, defer=d), trace, parts).policy for d in (False, True))
    assert 0 < later.splits < now.splits
    assert now.ledger.moved["in", "index"] > 0
    assert later.ledger.moved["in", "index"] == 0


# VII: batched execution, prefetch


def batched(trace: Trace, parts: list, params: MosaicParams) -> int:
    """Compare all frames at once with one by one, in every layer; returns the frames that gave something up."""
    steps: list[list] = [[] for _ in trace.layers]
    run(params, trace, parts, lambda s, c, *__: steps[s.layer].append((s, c)))
    for seen in steps:
        one_by_one = [attention(s.q, s.k, s.v, s.rows, c)[0] for s, c in seen]
        at_once = batched_attention([s for s, _ in seen], [c for _, c in seen])
        np.testing.assert_allclose(at_once, np.concatenate(one_by_one), atol=3e-6)
    return sum(not c.keep.all() for _, c in steps[0])


@settings(max_examples=15)
@given(st.integers(0, 999))
def test_batched_execution_under_a_causal_mask_equals_frame_by_frame(seed):
    assert batched(*stream(SCENES, seed), SMALL) > 5


def test_batched_execution_on_the_committed_trace():
    trace = Trace.load(FIXTURE)
    assert batched(trace, list(blocks(trace)), MosaicParams(recent=32)) == 7


def test_the_mask_hides_later_frames():
    """Without it, a frame would see the next one's tokens and representatives."""
    trace, parts = stream(SCENES)
    seen = []
    run(SMALL, trace, parts, lambda s, c, *__: seen.append((s, c)) if s.layer == 0 else None)
    steps, chosen = ([pair[i] for pair in seen] for i in (0, 1))
    want = batched_attention(steps, chosen)[: steps[0].rows.size * 10]
    wild = replace(steps[-1], k=steps[-1].k.copy(), v=steps[-1].v.copy())
    wild.k[:, 40:], wild.v[:, 40:] = 9, 9
    loud = [replace(c, extra_v=None if c.extra_v is None else c.extra_v + 9) for c in chosen[10:]]
    got = batched_attention([*steps[:-1], wild], [*chosen[:10], *loud])[: len(want)]
    np.testing.assert_array_equal(got, want)


def test_layers_do_not_depend_on_each_other_so_that_a_layer_can_run_many_frames():
    """Layer 1 alone, as a batch that goes layer by layer would run it, selects what it selects beside layer 0."""
    trace, parts = stream(SCENES)
    params = replace(SMALL, prefetch="none")
    both, alone = [], []
    run(params, trace, parts, lambda s, c, *__: both.append(c) if s.layer == 1 else None)
    single = replace(trace, layers=(1,), k=trace.k[1:], q=trace.q[1:], v=trace.v[1:])
    run(params, single, parts, lambda _, c, *__: alone.append(c))
    for a, b in zip(both, alone, strict=True):
        np.testing.assert_array_equal(a.keep, b.keep)
        np.testing.assert_array_equal(a.extra_k, b.extra_k)


def test_prefetch_changes_when_bytes_move_and_not_what_is_attended():
    trace, parts = stream(SCENES)
    seen: list[list[Selected]] = [[], []]
    ends = [
        run(replace(SMALL, prefetch=how), trace, parts, lambda _, c, *__, i=i: seen[i].append(c)).policy
        for i, how in enumerate(("none", "query"))
    ]
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a.keep, b.keep)
    plain, ahead = (p.ledger.moved for p in ends)
    size = ends[1].shape.entry_bytes * 2
    assert ("in", "prefetch") not in plain
    assert ends[0].covered == 0 < ends[1].covered < ends[1].needed == ends[0].needed
    assert plain["in", "fetch"] - ahead["in", "fetch"] == ends[1].covered * size  # the completion step brings the rest


def test_the_same_query_in_the_next_layer_is_covered_whole():
    trace, parts = stream(SCENES)
    same = replace(trace, k=trace.k[[0, 0]], q=trace.q[[0, 0]])
    policy = run(SMALL, same, parts).policy
    moved = policy.ledger.moved
    assert policy.covered == policy.needed > 0
    assert moved["in", "fetch"] == moved["in", "prefetch"]  # the first layer's own, the second's in advance


@pytest.fixture(scope="module")
def small_decoder() -> decoder_module.Decoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module.Decoder, "_read", staticmethod(lambda: small_weights(3)))
        return decoder_module.Decoder(3, 128)


def test_prefetch_by_the_layers_input_in_a_decoder(small_decoder):
    """It guesses as `Step.ahead` does, pays for the projection, and changes no token and no attended entry."""
    x = np.random.default_rng(2).standard_normal((60, 24)).astype(np.float32)
    outs = {}
    for how in ("none", "query", "input"):
        params = replace(SMALL, prefetch=how)
        out = outs[how] = DecoderRun(Mosaic(params, decoder_shape(small_decoder)), 24)
        for i in range(15):
            out.step(small_decoder, Block(i, "frame", 4 * i, 4 * i + 4), x[4 * i : 4 * i + 4])
    for how in ("query", "input"):
        for a, b in zip(outs["none"].records, outs[how].records, strict=True):
            np.testing.assert_array_equal(a.kept, b.kept)
            assert a.choices == b.choices
        assert 0 < outs[how].policy.covered < outs[how].policy.needed
    assert outs["query"].policy.covered != outs["input"].policy.covered
    work = [outs[how].policy.ledger.done["prediction"] for how in ("none", "query", "input")]
    projection = 2 * 60 * 24 * 9 * 64  # two guesses a token
    assert work[0] < work[1]
    assert projection < work[2] < work[1] + projection + 2 * 60 * 9 * 64 * 3


# Levels (Table IV)


def test_without_levels_the_best_entries_are_retrieved():
    """Of the entries on the host, those with the largest product of key and mean query; nothing stands for others."""
    trace, parts = stream(SCENES, noise=0.4)
    checked = []

    def spy(step, chosen, host, _):
        q = trace.q[step.layer, step.rows].astype(np.float64).reshape(len(step.rows), 2, 2, -1).mean(axis=(0, 2))
        score = (trace.k[step.layer, host].astype(np.float64) * q).sum(axis=(1, 2))
        wanted = host[np.argsort(-score)[: int(np.ceil(0.3 * len(host)))]]
        assert chosen.extra_k is None
        assert set(np.flatnonzero(chosen.keep[0]).tolist()) & set(host.tolist()) == set(wanted.tolist())
        checked.append(len(wanted))

    params = replace(SMALL, visual_level=False, semantic_level=False, prefetch="none")
    policy = run(params, trace, parts, spy).policy
    assert max(checked) >= 10
    assert (policy.splits, policy.deferred) == (0, 0)


def test_the_visual_level_alone_retrieves_whole_visual_clusters():
    trace, parts = stream(SCENES, noise=0.4)
    policy = run(replace(SMALL, semantic_level=False), trace, parts).policy
    assert len(policy.visual) > 2
    for state in policy.layers:
        assert sorted(state.clusters.partition.tolist()) == list(range(len(policy.visual)))
        scene = state.cluster.reshape(-1, 4)
        assert (scene == scene[:, :1]).all()  # tokens of a frame stay together
    assert (policy.splits, policy.deferred) == (0, 0)


def test_the_semantic_level_alone_clusters_entries_of_all_frames():
    trace, parts = stream(SCENES, noise=0.4)
    policy = run(replace(SMALL, visual_level=False), trace, parts).policy
    assert len(policy.visual) == 1
    assert policy.splits > 0
    for state in policy.layers:
        assert not state.clusters.partition.any()
        assert len(state.clusters) > 4


def test_a_threshold_that_does_not_adapt_is_the_large_one():
    trace, parts = stream(SCENES, noise=0.4)
    rising = replace(SMALL, semantic=Threshold(0.05, 0.3))
    fixed, same, other = (
        run(p, trace, parts).policy
        for p in (replace(rising, adaptive=False), replace(SMALL, semantic=Threshold(0.3, 0.3)), rising)
    )
    assert [s.cluster.tolist() for s in fixed.layers] == [s.cluster.tolist() for s in same.layers]
    assert fixed.splits == same.splits < other.splits


# Properties


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=18),
    st.integers(0, 99),
    st.booleans(),
    st.floats(0, 1),
    st.sampled_from(LEVELS),
    st.sampled_from(["float", *KINDS]),
)
def test_nothing_is_lost(scenes, seed, defer, ratio, levels, kind):
    """Every entry is resident or on the host, in one cluster; what is buffered is resident; bytes add up."""
    trace, parts = stream(scenes, seed, noise=0.4)
    policy = run(replace(SMALL, arithmetic=kind, defer=defer, ratio=ratio, **levels), trace, parts).policy
    census = policy.store.census()
    assert census["device"] + census["host"] == 4 * trace.tokens
    for layer, state in enumerate(policy.layers):
        assert (policy.store.place(layer)[:, state.buffered] != HOST).all()
        np.testing.assert_array_equal(np.unique(state.cluster[state.buffered]), np.flatnonzero(state.clusters.lazy))
        if kind != "float":
            members = state.cluster[(state.cluster >= 0) & ~state.buffered]
            np.testing.assert_array_equal(np.bincount(members, minlength=len(state.clusters)), state.clusters.size)
            assert np.isfinite(state.clusters.variance).all()
            assert np.isfinite(state.clusters.mean.astype(np.float32)).all()
            assert state.visual_sizes.sum() == (state.cluster >= 0).sum()
    index = sum(state.index_bytes for state in policy.layers)
    assert policy.ledger.held["device"] == census["device"] * policy.store.entry_bytes + index


@settings(max_examples=16)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=18),
    st.integers(0, 99),
    st.sampled_from(LEVELS),
    st.sampled_from(["float", "hardware"]),
)
def test_everything_retrieved_is_full_attention(scenes, seed, levels, kind):
    params = replace(SMALL, ratio=1.0, arithmetic=kind, **levels)
    assert all((r.error == 0).all() for r in run(params, *stream(scenes, seed, noise=0.4)).records)


@pytest.mark.parametrize(
    "change", [*LEVELS, {"arithmetic": "hardware"}], ids=["both", "visual", "semantic", "none", "core"]
)
@pytest.mark.parametrize("at", [3, 9])
def test_causality(at, change):
    """Other frames from `at` on change nothing before."""
    trace, mixed, parts = halves(at)
    a, b = [], []
    run(replace(SMALL, **change), trace, parts, lambda _, c, *__: a.append(c))
    run(replace(SMALL, **change), mixed, parts, lambda _, c, *__: b.append(c))
    for x, y in list(zip(a, b, strict=True))[: 2 * at]:
        for name in ("keep", "extra_k", "extra_v"):
            np.testing.assert_array_equal(getattr(x, name), getattr(y, name))
    assert any(not np.array_equal(x.keep, y.keep) for x, y in zip(a, b, strict=True))


# Visual embeddings


def test_without_visual_embeddings_keys_of_the_first_layer_stand_for_them():
    trace, parts = stream(SCENES)
    keys = unit(trace.k[0].astype(np.float32).reshape(len(parts), 4, -1))
    by_hand = [replace(b, visual=x) for b, x in zip(parts, keys, strict=True)]
    ends = [run(SMALL, trace, p).policy for p in (list(blocks(trace)), by_hand, parts)]
    assert [p.by_keys for p in ends] == [True, False, False]
    np.testing.assert_allclose(ends[0].visual.mean, ends[1].visual.mean, atol=1e-6)
    for a, b in zip(ends[0].layers, ends[1].layers, strict=True):
        np.testing.assert_array_equal(a.cluster, b.cluster)
    assert ends[2].visual.mean.shape[1] == 5


def test_a_stream_keeps_its_kind_of_embedding():
    trace, parts = stream(SCENES)
    with pytest.raises(PolicyError, match="block 4: the frame has no visual embedding, but the first one has"):
        run(SMALL, trace, [*parts[:4], replace(parts[4], visual=None)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 1.1}, "ratio=1.1: must be 0 to 1"),
        ({"breadth": 0.5}, "breadth=0.5: must be at least 1"),
        ({"recent": -1}, "recent=-1: must not be negative"),
        ({"build": 0}, "build=0: must be at least 1"),
        ({"partition_frames": 0}, "partition_frames=0: must be at least 1"),
        ({"cluster_tokens": 0}, "cluster_tokens=0: must be at least 1"),
        ({"prefetch": "all"}, "prefetch='all': must be one of none, query, input"),
        ({"seed": -1}, "seed=-1: must not be negative"),
        ({"build": 1.5}, "build=1.5: must be an integer"),
    ],
)
def test_bad_parameters_are_refused(change, message):
    with pytest.raises(ParamError, match=message):
        MosaicParams(**change)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-0.1, 0.2), "small=-0.1: must not be negative"),
        ((0.3, 0.2), "large=0.2: must be at least small = 0.3"),
        ((0.1, 0.2, 0.0), "rate=0.0: must be above 0"),
    ],
)
def test_bad_thresholds_are_refused(values, message):
    with pytest.raises(ParamError, match=message):
        Threshold(*values)
