"""ReSV with packed entries on the host: what it reads, what it moves, what it remembers."""

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


def begin(trace: Trace, group: int) -> TraceRun:
    found = POLICIES["resv"]
    params = override(found.params, {"kv4_group": str(group), "resv.recent": "24"})
    return TraceRun(replace(found, params=params).build(shape_of(trace)), trace)


def run(trace: Trace, group: int) -> TraceRun:
    out = begin(trace, group)
    for block in blocks(trace):
        out.step(trace, block)
    return out


def test_a_quarter_of_the_bytes_and_the_same_choice(world):
    """Both directions and the host's memory; transfers, device memory and chosen tokens stay as they are."""
    packed, plain = run(world, 32), run(world, 0)
    moved, whole = packed.policy.ledger, plain.policy.ledger
    assert moved.pieces == whole.pieces
    assert moved.held["host"] * kv4.RATIO == whole.held["host"] > 0
    assert moved.held["device"] == whole.held["device"]
    for direction in ("in", "out"):
        a, b = (sum(n for (way, _), n in ledger.moved.items() if way == direction) for ledger in (moved, whole))
        assert a * kv4.RATIO == b > 0
    places = [[r.policy.store.place(layer) for layer in range(len(world.layers))] for r in (packed, plain)]
    assert np.array_equal(*places)


def test_what_attention_reads(world):
    """Entries on the device as they came, those on the host as their packed form stands for, by head."""
    policy, trace = run(world, 64).policy, world
    for layer in range(len(trace.layers)):
        place, stored = policy.store.place(layer), policy.stored[layer]
        for got, came in ((stored.k, trace.k[layer]), (stored.v, trace.v[layer])):
            want = came.astype(np.float32).swapaxes(0, 1)
            assert np.array_equal(got[place == DEVICE], want[place == DEVICE])
            assert np.array_equal(got[place == HOST], kv4.copied(want[place == HOST], 64))
        assert {DEVICE, HOST} <= set(np.unique(place))


def test_a_resumed_run_equals_an_uninterrupted_one(world):
    half, whole = begin(world, 32), begin(world, 32)
    for i, block in enumerate(blocks(world)):
        if i == 7:
            half = pickle.loads(pickle.dumps(half))
        half.step(world, block)
        whole.step(world, block)
    for a, b in zip(half.policy.stored, whole.policy.stored, strict=True):
        assert np.array_equal(a.k, b.k)
        assert np.array_equal(a.v, b.v)


def test_errors(world):
    with pytest.raises(ParamError, match="kv4_group=128: must divide the 64 numbers of a head"):
        begin(world, 128)
    with pytest.raises(ParamError, match="kv4_group=24: must be one of"):
        begin(world, 24)
