"""Mosaic in the hardware's arithmetic: what must hold whatever the stream, and its decisions beside exact ones."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.policies.ledger import PolicyError
from openvrex.golden.policies.mosaic_hardware import HardwareLayer
from tb.tests.golden.policies.mosaic_streams import DRIFT, KINDS, SCENES, SMALL, WIDTH, drifting, run, stream

HARDWARE = replace(SMALL, arithmetic="hardware")


def filled(kind: str, seed: int, n: int) -> HardwareLayer:
    """A layer with n tokens on the device, clustered into one cluster of partition 0."""
    rng = np.random.default_rng(seed)
    layer = KINDS[kind](WIDTH, 2)
    for growing in (layer.keys, layer.values):
        growing.append(rng.standard_normal((1, n, WIDTH)).astype(BF16).astype(np.float32))
    layer.cluster, layer.buffered = np.full(n, -1), np.zeros(n, bool)
    layer.create(np.arange(n), 0, 1, 0)
    return layer


@settings(max_examples=30)
@given(st.integers(0, 999), st.integers(1, 20), st.sampled_from(list(KINDS)), st.booleans())
def test_a_split_neither_loses_nor_doubles_an_entry(seed, n, kind, equal):
    """The parts hold what the cluster held, with the means of their members; equal keys stay one cluster."""
    layer = filled(kind, seed, n)
    if equal:
        layer.keys.data[0] = layer.keys.data[0, 0]
    before = layer.members(0)
    changed, macs = layer.split(before, 0, 0)
    parts = [layer.members(c) for c in changed]
    assert sorted(np.concatenate(parts).tolist()) == before.tolist()
    assert all(len(part) == layer.clusters.size[c] > 0 for c, part in zip(changed, parts, strict=True))
    assert len(changed) == len(layer.clusters) == len(layer.pairs) == (2 if n > 1 and not equal else 1)
    assert macs > 0
    assert not layer.clusters.lazy.any()
    for c, part in zip(changed, parts, strict=True):
        mean = layer.entries(part).astype(np.float64).mean(axis=0)
        assert np.abs(layer.means(np.array([c]))[0] - mean).max() <= np.abs(layer.entries(part)).max() * 2.0**-7


@pytest.mark.parametrize("kind", KINDS)
def test_algorithm_1_defers_buffers_and_splits(kind):
    """Entries that break the threshold of clusters on the host wait on the device; retrieval merges and splits."""
    trace, parts = drifting()
    how = replace(DRIFT, arithmetic=kind)
    out = run(how, trace, parts[:6])
    held = pickle.loads(pickle.dumps(out.policy.layers[0]))
    waiting, lazy = np.flatnonzero(held.buffered), np.flatnonzero(held.clusters.lazy)
    assert len(waiting) > 0 < len(lazy)
    assert out.policy.deferred == len(waiting)
    assert not any(direction == "in" for direction, _ in out.policy.ledger.moved)
    with pytest.raises(PolicyError, match="is split without having its tokens"):
        out.policy._split(0, held.members(int(lazy[0])), int(lazy[0]))
    out.policy.params = replace(how, ratio=1.0)
    out.step(trace, parts[6])
    state = out.policy.layers[0]
    assert out.policy.splits == len(lazy)
    assert not state.clusters.lazy.any()
    assert not state.buffered.any()
    for c in lazy:
        assert len(np.unique(state.cluster[held.members(c)])) == 2


def test_a_resumed_run_equals_an_uninterrupted_one():
    trace, parts = stream(SCENES, noise=0.4)
    whole, first = run(HARDWARE, trace, parts), run(HARDWARE, trace, parts[:8])
    again = pickle.loads(pickle.dumps(first))
    for block in parts[8:]:
        again.step(trace, block)
    for a, b in zip(whole.policy.layers, again.policy.layers, strict=True):
        np.testing.assert_array_equal(a.cluster, b.cluster)
        np.testing.assert_array_equal(a.pairs, b.pairs)
    assert whole.policy.splits == again.policy.splits > 0
    assert whole.policy.ledger.totals() == again.policy.ledger.totals()


@pytest.mark.parametrize("kind", KINDS)
def test_representatives_are_means_in_the_order_of_their_first_token(kind):
    checked = []

    def spy(step, chosen, host, policy):
        layer = policy.layers[step.layer]
        if chosen.extra_k is not None:
            order = list(dict.fromkeys(layer.cluster[host].tolist()))
            got = np.stack([chosen.extra_k, chosen.extra_v], 1).transpose(2, 1, 0, 3).reshape(len(order), 2, WIDTH)
            for c, pair in zip(order, got, strict=True):
                own = layer.entries(np.flatnonzero((layer.cluster == c) & ~layer.buffered))
                n = len(own)
                bound = np.abs(own).max() * ((n + 1) * 2.0**-10 + 2.0**-6)  # as in `test_centroids.py`
                assert np.abs(pair - own.astype(np.float64).mean(axis=0)).max() <= bound
            checked.append(len(order))

    run(replace(SMALL, ratio=0.0, arithmetic=kind), *stream(SCENES), spy)
    assert max(checked) > 3
