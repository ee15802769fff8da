"""Policies with packed entries on the host: what they read, what they move, what they remember."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.policy_run import TraceRun, blocks, shape_of
from openvrex.golden.policies.registry import override
from openvrex.golden.policies.store import DEVICE, HOST
from openvrex.golden.retrieval import kv4
from openvrex.papers.policies.registry import POLICIES
from openvrex.scripts.check.verify_command import FIXTURE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world() -> Trace:
    return Trace.load(FIXTURE)


SHORT = {  # few tokens stay on the device
    "resv": {"resv.recent": "24"},
    "pages": {"recent": "24", "mean": "16", "budget": "16", "numbers": "8"},
}
both = pytest.mark.parametrize("name", SHORT)


def begin(trace: Trace, name: str, group: int) -> TraceRun:
    found = POLICIES[name]
    params = override(found.params, {"kv4_group": str(group)} | SHORT[name])
    return TraceRun(replace(found, params=params).build(shape_of(trace)), trace)


def run(trace: Trace, name: str, group: int) -> TraceRun:
    out = begin(trace, name, group)
    for block in blocks(trace):
        out.step(trace, block)
    return out


@both
def test_a_quarter_of_the_bytes_and_the_same_choice(world, name):
    """Both directions and the host's memory; transfers, device memory and chosen tokens stay as they are."""
    packed, plain = run(world, name, 32), run(world, name, 0)
    moved, whole = packed.policy.ledger, plain.policy.ledger
    assert moved.pieces == whole.pieces
    assert moved.held["host"] * kv4.RATIO == whole.held["host"] > 0
    assert moved.held["device"] == whole.held["device"]
    for direction in ("in", "out"):
        a, b = (sum(n for (way, _), n in ledger.moved.items() if way == direction) for ledger in (moved, whole))
        assert a * kv4.RATIO == b > 0
    places = [[r.policy.store.place(layer) for layer in range(len(world.layers))] for r in (packed, plain)]
    assert np.array_equal(*places)


@both
def test_what_attention_reads(world, name):
    """Entries on the device as they came, those on the host as their packed form stands for, by head."""
    policy, trace = run(world, name, 64).policy, world
    for layer in range(len(trace.layers)):
        place, stored = policy.store.place(layer), policy.stored[layer]
        for got, came in ((stored.k, trace.k[layer]), (stored.v, trace.v[layer])):
            want = came.astype(np.float32).swapaxes(0, 1)
            assert np.array_equal(got[place == DEVICE], want[place == DEVICE])
            assert np.array_equal(got[place == HOST], kv4.copied(want[place == HOST], 64))
        assert {DEVICE, HOST} <= set(np.unique(place))


@both
def test_a_resumed_run_equals_an_uninterrupted_one(world, name):
    half, whole = begin(world, name, 32), begin(world, name, 32)
    for i, block in enumerate(blocks(world)):
        if i == 7:
            half = pickle.loads(pickle.dumps(half))
        half.step(world, block)
        whole.step(world, block)
    for a, b in zip(half.policy.stored, whole.policy.stored, strict=True):
        assert np.array_equal(a.k, b.k)
        assert np.array_equal(a.v, b.v)


@both
def test_errors(world, name):
    with pytest.raises(ParamError, match="kv4_group=128: must divide the 64 numbers of a head"):
        begin(world, name, 128)
    with pytest.raises(ParamError, match="kv4_group=24: must be one of"):
        begin(world, name, 24)
