"""The policy interface: the ledger and the store are right, nothing looks ahead, full attention is full attention."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.params import ParamError
from golden.policies import POLICIES, Entry, override
from golden.policy import Policy, PolicyError, Selected, Shape
from golden.run import TraceRun, blocks, shape_of
from golden.trace import Trace
from scripts.verify import FIXTURE


@pytest.fixture(scope="module")
def world() -> Trace:
    return Trace.load(FIXTURE)


SMALL = {  # parameters under which a policy must give something up on the fixture's 300 tokens
    "infinigen": {"calibrate": "8"},
    "infinigenp": {"calibrate": "8"},
    "rekv": {"recent": "32"},
    "streamingllm": {"recent": "32"},
    "resv": {"resv.recent": "32"},
    "resv-paper": {"resv.recent": "32"},
}


def small(name: str) -> Entry:
    found = POLICIES[name]
    return replace(found, params=override(found.params, SMALL.get(name, {})))


def run(name: str, trace: Trace, stop: int | None = None) -> TraceRun:
    out = TraceRun(small(name).build(shape_of(trace)), trace)
    for block in list(blocks(trace))[:stop]:
        out.step(trace, block)
    return out


def same(a, b) -> bool:
    """Whether two lists of records are equal, nan included."""
    for x, y in zip(a, b, strict=True):
        for name, value in vars(x).items():
            if not np.array_equal(value, getattr(y, name), equal_nan=isinstance(value, np.ndarray)):
                return False
    return True


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_lost(name, world):
    """Every entry of the stream is resident, offloaded, pruned by rule or represented."""
    store = run(name, world).policy.store
    census = store.census()
    assert census["absent"] == 0
    assert sum(census.values()) == len(world.layers) * world.kv_heads * world.tokens


@pytest.mark.parametrize("name", POLICIES)
def test_future_does_not_change_the_past(name, world):
    rng = np.random.default_rng(1)
    at = world.spans("frame")[-1][1]
    k, q, v = (a.copy() for a in (world.k, world.q, world.v))
    for a, first in ((k, 0), (v, 0), (q, world.first_query)):
        a[:, at - first :] = rng.standard_normal(a[:, at - first :].shape)
    past = len([s for s in world.spans() if s[1] <= at])
    a, b = run(name, world), run(name, replace(world, k=k, q=q, v=v))
    assert same(a.records[:past], b.records[:past])
    assert name in ("full", "flexgen") or not same(a.records, b.records)


@pytest.mark.parametrize("name", POLICIES)
def test_interrupted_and_resumed_equals_uninterrupted(name, world):
    half = pickle.loads(pickle.dumps(run(name, world, 29)))
    for block in list(blocks(world))[29:]:
        half.step(world, block)
    assert same(half.records, run(name, world).records)


class Greedy(Policy):
    """Attends to everything, fetches nothing."""

    def select(self, step):
        return Selected(np.ones((self.shape.kv_heads, step.n), bool))

    def end(self, block):
        self.offload_but(0, 0, 8)


def test_override():
    params = override(POLICIES["resv"].params, {"resv.th_hd": "3", "prefetch": "only", "resv.centre": "true"})
    assert (params.resv.th_hd, params.prefetch, params.resv.centre) == (3, "only", True)
    for path, text, message in (
        ("th_hd", "3", "unknown; valid: resv.\\*, prefetch"),
        ("resv", "3", "unknown"),
        ("resv.th", "3", "unknown; valid: n_hp"),
        ("prefetch.x", "3", "unknown"),
        ("resv.th_hd", "x", "must be of type int, as 7"),
        ("resv.centre", "1", "must be of type bool"),
        ("prefetch", "maybe", "must be one of none, complete, only"),
    ):
        with pytest.raises(ParamError, match=message):
            override(POLICIES["resv"].params, {path: text})


def test_attending_to_what_is_not_there_is_refused(world):
    out = TraceRun(Greedy(None, shape_of(world)), world)
    *before, first = list(blocks(world))[:28]
    for block in before:
        out.step(world, block)
    with pytest.raises(PolicyError, match="Greedy attends to token 0 of layer 0, head 0, without having it"):
        out.step(world, first)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_store_conserves_entries_and_bytes(data):
    """Whatever is offloaded, fetched, released and dropped: bytes held are the entries' and transfers add up."""
    policy = Greedy(None, Shape(2, 4, 2, 8))
    store, ledger = policy.store, policy.ledger
    n = 0
    for _ in range(data.draw(st.integers(1, 6))):
        new = np.arange(n, n + data.draw(st.integers(1, 5)))
        n = int(new[-1]) + 1
        store.arrive(n)
        for layer in range(2):
            store.append(layer, new)
            for _ in range(data.draw(st.integers(0, 4))):
                action = data.draw(st.sampled_from(["offload", "fetch", "drop"]))
                mask = np.array(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n))).reshape(2, n)
                getattr(store, action)(layer, mask)
            if data.draw(st.booleans()):
                store.release(layer)
        census = store.census()
        assert census["absent"] == 0
        assert sum(census.values()) == 4 * n
        assert ledger.held["host"] == census["host"] * store.entry_bytes
        copies = sum(int((store.on_device(i) & store.on_host(i)).sum()) for i in range(2))
        assert ledger.held["device"] >= (census["device"] + copies) * store.entry_bytes
        assert ledger.moved["out", "offload"] <= 4 * n * store.entry_bytes
    for layer in range(2):
        store.release(layer)
        store.drop(layer, np.ones(n, bool))
    assert ledger.held == {"device": 0, "host": 0}
