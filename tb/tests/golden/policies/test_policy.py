"""The policy interface: attention, ledger and store are right, nothing looks ahead, and a decoder runs under it."""

import pickle
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import READINGS, ParamError
from openvrex.golden.inputs.decoder import loss
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.inputs.trace_model import Model, frequencies
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.ledger import Ledger, PolicyError
from openvrex.golden.policies.light_attention import Selected, attention, bf16, by_kv_head, turn_keys
from openvrex.golden.policies.policy import Admitted, Policy
from openvrex.golden.policies.policy_run import DecoderRun, TraceRun, blocks, decoder_shape, shape_of
from openvrex.golden.policies.registry import Entry, override
from openvrex.golden.policies.store import runs
from openvrex.papers.policies.registry import POLICIES, entry
from openvrex.scripts.check.verify_command import FIXTURE
from tb.tests.golden.policies.policy_runs import drive, rotated

SMALL = {  # parameters under which a policy must give something up on the fixture's 300 tokens
    "infinigen": {"calibrate": "8"},
    "infinigenp": {"calibrate": "8"},
    "rekv": {"recent": "32"},
    "streamingllm": {"recent": "32"},
    "codecsight": {"window": "8", "stride": "4"},
    "mosaic": {"recent": "32"},
    "mosaic-eager": {"recent": "32"},
    "livevlm": {"recent": "32", "budget": "40"},
    "streammem": {"budget": "80", "clip": "2"},
    "hybrid": {"recent_blocks": "2"},
    "signatures": {"recent": "32", "page": "16"},
    "pages": {"recent": "32", "mean": "32", "budget": "64"},
    "pages-by": {"recent": "32", "mean": "32", "budget": "64"},
    "resv": {"resv.recent": "32"},
    **{f"resv-{name}": {"resv.recent": "32"} for name in READINGS if name != "resv"},
}
ALL = {  # parameters under which a policy attends to everything
    "infinigen": {"calibrate": "8", "generation_ratio": "1"},
    "infinigenp": {"calibrate": "8", "frame_ratio": "1", "generation_ratio": "1"},
    "rekv": {"recent": "32", "frame_ratio": "1", "generation_ratio": "1"},
    "streamingllm": {"recent": "300"},
    "mosaic": {"recent": "32", "ratio": "1"},
    "mosaic-eager": {"recent": "32", "ratio": "1"},
    "livevlm": {"recent": "32", "ratio": "1"},
    "hybrid": {"ssm": "disabled"},
    "signatures": {"recent": "32", "page": "16", "budget_q16": "65536"},
    "pages": {"recent": "32", "mean": "16", "budget": "300"},
    "pages-by": {"recent": "32", "mean": "16", "budget": "300"},
    "resv": {"resv.recent": "32", "resv.ratio_q16": "65536"},
    **{
        f"resv-{name}": {"resv.recent": "32", "resv.ratio_q16": "65536"}
        for name in ("paper", "exact", "buckets", "first")
    },
}
# Oaken does not store K and V as they are; raw scores that are negative never give back what exceeds a ratio of 1.
EXACT = [name for name in POLICIES if name not in ("oaken", "resv-equations")]

MODEL = Model(1e-5, 100.0, frequencies(100.0, 8), (True, True))  # of two recorded layers


@pytest.fixture(scope="module")
def world() -> Trace:
    return Trace.load(FIXTURE)


def small(name: str, changes: dict = SMALL) -> Entry:
    found = POLICIES[name]
    return replace(found, params=override(found.params, changes.get(name, {})))


def run(name: str, trace: Trace, stop: int | None = None, changes: dict = SMALL) -> TraceRun:
    out = TraceRun(small(name, changes).build(shape_of(trace)), trace)
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


# Properties of every policy


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


@pytest.mark.parametrize("name", EXACT)
def test_everything_selected_is_full_attention(name, world):
    """No error at all where everything is kept, and an error where the small parameters give something up."""
    asked = [r for r in run(name, world, changes=ALL).records if not np.isnan(r.error).all()]
    assert len(asked) == 7
    for r in asked:
        assert (r.error == 0).all()
        assert (r.kept == r.start).all()
    if name in SMALL:
        assert np.nanmax([r.error for r in run(name, world).records]) > 0.01


def random_trace(seed: int, sizes: list[int], heads: int) -> Trace:
    """A stream of blocks of these sizes, all stages, two layers, keys that resemble those of the block before."""
    rng = np.random.default_rng(seed)
    n, kind = sum(sizes), rng.standard_normal((5, 2, 1, 2, 8))
    k = np.moveaxis(kind[np.arange(n) % 5, :, 0], 0, 1) + 0.3 * rng.standard_normal((2, n, 2, 8))
    stages = np.minimum(np.arange(len(sizes)) * 4 // max(1, len(sizes)), 3).astype(np.uint8)
    q = rng.standard_normal((2, n, heads, 8))
    to = lambda x: x.astype(ml_dtypes.bfloat16)  # noqa: E731
    v, offsets = rng.standard_normal(k.shape), np.cumsum([0, *sizes]).astype(np.int32)
    return Trace((0, 1), to(k), to(q), to(v), offsets, stages, {}, model=MODEL)


TIGHT = {
    "infinigen": {"calibrate": "6", "generation_ratio": "0.3"},
    "infinigenp": {"calibrate": "6", "frame_ratio": "0.3", "generation_ratio": "0.3"},
    "rekv": {"recent": "3", "frame_ratio": "0.3"},
    "streamingllm": {"recent": "3", "sinks": "2"},
    "codecsight": {"window": "2", "stride": "1"},
    "mosaic": {"recent": "3", "build": "2", "ratio": "0.3", "cluster_tokens": "3"},
    "mosaic-eager": {"recent": "3", "build": "2", "ratio": "0.3", "cluster_tokens": "3"},
    "livevlm": {"recent": "3", "budget": "5", "window": "2", "page": "2"},
    "streammem": {"budget": "6", "clip": "2", "proxy": "2"},
    "hybrid": {"block_tokens": "2", "recent_blocks": "2"},
    "resv": {"resv.recent": "3", "resv.sinks": "2", "resv.max_clusters": "6"},
    **{f"resv-{name}": {"resv.recent": "3"} for name in READINGS if name != "resv"},
}


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from([2, 4]),
    st.integers(0, 99),
)
def test_on_random_streams(name, sizes, heads, seed):
    """Nothing is lost, bytes held are those of the entries and of the index, and a longer stream has the same past."""
    trace = random_trace(seed, sizes, heads)
    out = run(name, trace, changes=TIGHT)
    store, census, held = out.policy.store, out.policy.store.census(), out.policy.ledger.held
    assert census["absent"] == 0
    assert sum(census.values()) == 4 * sum(sizes)
    assert held["host"] == census["host"] * store.entry_bytes
    assert held["device"] >= census["device"] * store.entry_bytes
    for r in out.records:
        assert (r.kept <= r.start).all()
        assert (r.fetched <= r.kept + r.stop - r.start).all()
        assert np.isfinite(r.error).all()
    offsets = np.concatenate([trace.offsets, trace.offsets[1:] + sum(sizes)]).astype(np.int32)
    twice = [np.concatenate([a, -a], axis=1) for a in (trace.k, trace.q, trace.v)]
    longer = Trace((0, 1), *twice, offsets, np.tile(trace.stages, 2), {}, model=MODEL)
    assert same(run(name, longer, len(sizes), TIGHT).records, out.records)


class Watcher(Policy):
    """Full attention that keeps what it is shown."""

    def __init__(self, shape):
        super().__init__(None, shape)
        self.shown = []

    def append(self, layer, tokens, k, v):
        self.shown.append((layer, tokens.copy(), k.copy()))

    def select(self, step):
        self.step = step
        return Selected(self.store.on_device(step.layer))


def test_a_policy_is_shown_what_has_arrived_and_no_more(world):
    out = TraceRun(Watcher(shape_of(world)), world)
    for i, block in enumerate(blocks(world)):
        out.step(world, block)
        if block.start < world.first_query:
            assert not hasattr(out.policy, "step")
            continue
        step = out.policy.step
        assert (step.n, step.rows.tolist()) == (block.stop, list(range(block.start, block.stop)))
        np.testing.assert_array_equal(step.k, world.k[2, : block.stop].astype(np.float32).swapaxes(0, 1))
        np.testing.assert_array_equal(step.v, world.v[2, : block.stop].astype(np.float32).swapaxes(0, 1))
        for a in (step.k, step.v):
            assert not a.flags.writeable
            assert not a.base[:, block.stop :].any()  # not even the array beneath holds the future
        assert len(out.policy.shown) == 3 * (i + 1)
        np.testing.assert_array_equal(out.policy.shown[-1][2], world.k[2, block.start : block.stop].astype(np.float32))


class Greedy(Policy):
    """Attends to everything, fetches nothing."""

    def select(self, step):
        return Selected(np.ones((self.shape.kv_heads, step.n), bool))

    def end(self, block):
        self.offload_but(0, 0, 8)


def test_attending_to_what_is_not_there_is_refused(world):
    out = TraceRun(Greedy(None, shape_of(world)), world)
    *before, first = list(blocks(world))[:28]
    for block in before:
        out.step(world, block)
    with pytest.raises(PolicyError, match="Greedy attends to token 0 of layer 0, head 0, without having it"):
        out.step(world, first)


def test_a_stream_goes_on_where_it_ended(world):
    out = TraceRun(Watcher(shape_of(world)), world)
    first, second = list(blocks(world))[:2]
    with pytest.raises(ParamError, match="block.start=3: must be 0, the length of the stream"):
        out.step(world, second)
    with pytest.raises(ParamError, match="stage='pause': must be one of prompt, frame"):
        out.step(world, replace(first, stage="pause"))
    with pytest.raises(ParamError, match="block.stop=0: must be above start"):
        out.step(world, replace(first, stop=0))


def test_a_trace_without_values_is_refused(world):
    with pytest.raises(ParamError, match="without --no-values"):
        TraceRun(Watcher(shape_of(world)), replace(world, v=None))


# Ledger and store


def test_ledger_counts():
    ledger = Ledger()
    ledger.move("in", "fetch", 100, 3)
    ledger.move("in", "fetch", 50)
    ledger.move("out", "offload", 0, 7)
    ledger.work("attention", 5)
    ledger.sort(9, times=2)  # 9 x ceil(log2 9)
    ledger.sort(1)
    ledger.hold("device", 30)
    ledger.hold("device", -10)
    assert ledger.totals() == {
        "in.fetch": 150,
        "pieces.in.fetch": 4,
        "ops.attention": 5,
        "ops.sort": 72,
        "device": 20,
        "host": 0,
        "device.peak": 30,
        "host.peak": 0,
    }
    for wrong in (
        lambda: ledger.move("up", "fetch", 1),
        lambda: ledger.move("in", "whim", 1),
        lambda: ledger.move("in", "fetch", -1),
        lambda: ledger.work("magic", 1),
        lambda: ledger.work("sort", -1),
        lambda: ledger.hold("device", -21),
    ):
        with pytest.raises(PolicyError):
            wrong()


@settings(max_examples=60)
@given(st.data())
def test_store_conserves_entries_and_bytes(data):
    """Whatever is offloaded, fetched, released and dropped: bytes held are the entries', and transfers add up."""
    policy = Greedy(None, Shape(2, 4, 2, 8))
    store, ledger = policy.store, policy.ledger
    assert store.entry_bytes == 32
    n, out, into = 0, 0, 0
    guests = set()  # copies on the device, dropped ones included
    for _ in range(data.draw(st.integers(1, 6))):
        new = np.arange(n, n + data.draw(st.integers(1, 5)))
        n = int(new[-1]) + 1
        store.arrive(n)
        for layer in range(2):
            store.append(layer, new)
            for _ in range(data.draw(st.integers(0, 4))):
                action = data.draw(st.sampled_from(["offload", "fetch", "drop"]))
                mask = np.array(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n))).reshape(2, n)
                moved = getattr(store, action)(layer, mask)
                assert not (moved & ~mask).any()
                if action == "fetch":
                    into += int(moved.sum())
                    guests |= {(layer, *at) for at in np.argwhere(moved).tolist()}
                    assert (store.on_device(layer) | ~mask | (store.place(layer) > 2)).all()
                out += int(moved.sum()) * (action == "offload")
            if data.draw(st.booleans()):
                store.release(layer)
                guests = {g for g in guests if g[0] != layer}
        census = store.census()
        assert census["absent"] == 0
        assert sum(census.values()) == 4 * n
        assert ledger.held["host"] == census["host"] * 32
        assert ledger.held["device"] == (census["device"] + len(guests)) * 32
        assert (ledger.moved["out", "offload"], ledger.moved["in", "fetch"]) == (32 * out, 32 * into)
    for layer in range(2):
        store.release(layer)
        store.drop(layer, np.ones(n, bool), represented=True)
    assert ledger.held == {"device": 0, "host": 0}


def test_store_grows_and_counts_pieces():
    store = Greedy(None, Shape(1, 2, 2, 4)).store
    store.arrive(3000)
    store.append(0, np.arange(3000))
    mask = np.zeros((2, 3000), bool)
    mask[0, [0, 1, 5, 2999]] = mask[1, [1]] = True
    assert store.offload(0, mask).sum() == 5
    store.arrive(3001)
    assert store.fetch(0, np.ones(3001, bool), "prefetch").sum() == 5
    assert store.ledger.pieces == {("out", "offload"): 4, ("in", "prefetch"): 4}
    assert not store.fetch(0, np.ones(3001, bool)).any()  # here already
    assert store.census() == {"absent": 2, "device": 5995, "host": 5, "pruned": 0, "represented": 0}
    assert store.drop(0, mask[:, :3000].any(axis=0).repeat([1] * 2999 + [2]), represented=True).sum() == 8 + 2
    store.drop(0, np.ones(3001, bool))
    assert store.census() == {"absent": 0, "device": 0, "host": 0, "pruned": 5992, "represented": 10}


def test_a_slice_is_dropped_as_its_mask_is():
    stores = [Greedy(None, Shape(1, 2, 2, 4)).store for _ in range(2)]
    mask = np.zeros(50, bool)
    mask[7:30] = True
    for store, which in zip(stores, (mask, slice(7, 30)), strict=True):
        store.arrive(50)
        store.append(0, np.arange(2, 50))
        store.offload(0, np.arange(50) % 3 == 0)
        gone = store.drop(0, which)
        assert gone.shape == ((2, 50) if store is stores[0] else (2, 23))
        assert gone.sum() == 2 * 23
        assert not store.drop(0, which).any()
    np.testing.assert_array_equal(*(store.place(0) for store in stores))
    assert stores[0].ledger.held == stores[1].ledger.held == {"device": 2 * 16 * 16, "host": 2 * 9 * 16}


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3))
def test_runs_by_definition(rows):
    want = sum("".join("x" if b else " " for b in row).split().__len__() for row in rows)
    assert runs(np.array(rows)) == want
    assert runs(np.zeros((2, 0), bool)) == 0


# Attention


@pytest.mark.parametrize("seed", range(4))
def test_light_attention_by_definition(seed):
    """Row by row in float64: kept tokens up to the row, moved keys, extra keys, an added output; MACs counted."""
    rng = np.random.default_rng(seed)
    n, t, m = 23, 5, 3 if seed % 2 else 0
    q, k, v = (bf16(rng.standard_normal(s)) for s in ((t, 4, 8), (2, n, 8), (2, n, 8)))
    rows = np.array([3, 18, 19, 21, 22])
    keep = rng.random((2, n)) < 0.5
    keep[:, 0] = True
    turn = rng.integers(0, 50, n) if seed > 1 else None
    extra = bf16(rng.standard_normal((2, 2, m, 8)))
    add = rng.standard_normal(q.shape).astype(np.float32)
    chosen = Selected(keep, turn=turn, extra_k=extra[0] if m else None, extra_v=extra[1] if m else None, add=add)
    got, macs = attention(q, k, v, rows, chosen, frequencies(100.0, 8))
    pairs = 0
    for i, row in enumerate(rows):
        for h in range(4):
            g = h // 2
            at = [j for j in range(row + 1) if keep[g, j]]
            keys = [bf16(rotated(k[g, j], turn[j], 100.0)) if turn is not None else k[g, j] for j in at]
            keys, values = [*keys, *extra[0, g]], [*v[g, at], *extra[1, g]]
            e = np.exp([q[i, h].astype(float) @ key / 8**0.5 for key in keys])
            pairs += len(keys)
            np.testing.assert_allclose(got[i, h] - add[i, h], e / e.sum() @ np.array(values), atol=2e-2)
            if turn is None:
                np.testing.assert_allclose(got[i, h] - add[i, h], e / e.sum() @ np.array(values), atol=2e-6)
    assert macs == pairs * 2 * 8


def test_moved_keys_of_any_chunk_are_the_keys_moved_first():
    """Kept tokens fill three chunks of 1,024; keys move in the first two, the array ends before the third."""
    rng = np.random.default_rng(5)
    n = 6000
    q, k, v = (bf16(rng.standard_normal(s)) for s in ((3, 4, 8), (2, n, 8), (2, n, 8)))
    turn = np.where(rng.random(4000) < 0.1, rng.integers(1, 90, 4000), 0)
    moved = np.concatenate([turn_keys(k[:, :4000], turn, frequencies(100.0, 8)), k[:, 4000:]], axis=1)
    rows = np.arange(n - 3, n)
    for keep in (np.broadcast_to(rng.random(n) < 0.5, (2, n)), rng.random((2, n)) < 0.5):
        got, _ = attention(q, k, v, rows, Selected(keep, turn=turn), frequencies(100.0, 8))
        np.testing.assert_array_equal(got, attention(q, k, v, rows, Selected(keep, k=moved))[0])
        assert np.abs(got - attention(q, k, v, rows, Selected(keep))[0]).max() > 1e-3


@pytest.mark.parametrize("heads", [2, 6, 300])
def test_rows_that_jump_attend_as_they_do_alone(heads):
    """Frames computed anew lie apart: rows are done in blocks, of one token and more, that end where tokens jump."""
    rng = np.random.default_rng(7)
    n = 2600
    rows = np.concatenate([[3], np.arange(400, 436), np.arange(1500, 1720), [1730], np.arange(n - 36, n)])
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((len(rows), heads, 4), (2, n, 4), (2, n, 4)))
    keep = np.broadcast_to(rng.random(n) < 0.7, (2, n)).copy()
    keep[:, 0] = True
    got, macs = attention(q, k, v, rows, Selected(keep))
    alone = [attention(q[i : i + 1], k, v, rows[i : i + 1], Selected(keep)) for i in range(len(rows))]
    np.testing.assert_allclose(got, np.concatenate([y for y, _ in alone]), atol=2e-5)
    assert macs == sum(m for _, m in alone)


def test_a_row_without_tokens_gives_zero():
    q = np.ones((2, 2, 4), np.float32)
    k = v = np.ones((1, 5, 4), np.float32)
    keep = np.array([[False, False, False, True, True]])
    got, _ = attention(q, k, v, np.array([1, 4]), Selected(keep))
    assert not got[0].any()
    np.testing.assert_allclose(got[1], 1, rtol=1e-6)


def test_stored_keys_replace_exact_ones():
    rng = np.random.default_rng(3)
    q, k, v, k2, v2 = (rng.standard_normal(s).astype(np.float32) for s in ((2, 2, 4), *[(1, 5, 4)] * 4))
    rows, keep = np.array([3, 4]), np.ones((1, 5), bool)
    a, _ = attention(q, k, v, rows, Selected(keep, k=k2, v=v2))
    b, _ = attention(q, k2, v2, rows, Selected(keep))
    np.testing.assert_array_equal(a, b)


def test_moved_keys_are_codecsight_equation_5(small_decoder):
    """R(p_new - p_old) R(p_old) k = R(p_new) k, against the decoder's own rotation."""
    k = np.random.default_rng(5).standard_normal((6, 3, 64)).astype(np.float32)
    old, new = np.array([0, 5, 9, 40, 77, 3]), np.array([3, 0, 90, 41, 70, 3])
    stored, want = (small_decoder._rotary(k, p).swapaxes(0, 1) for p in (old, new))
    np.testing.assert_allclose(turn_keys(stored, new - old, small_decoder.frequencies), want, rtol=2**-7, atol=2e-3)


def test_bf16_is_that_of_ml_dtypes():
    """Every exponent and sign with random mantissas, at ties, beside ties and in between."""
    high = np.arange(1 << 16, dtype=np.uint32)
    high = high[(high & 0x7F80) < 0x7F00] << 16  # beyond, it may round to infinity
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234, 0xC0DE], np.uint32)
    x = (high[:, None] | low).view(np.float32)
    np.testing.assert_array_equal(bf16(x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_rows_of_kv_heads():
    q = np.arange(24).reshape(2, 6, 2)
    rows = by_kv_head(q, 2)
    assert rows.shape == (2, 6, 2)
    assert rows[1, :, 0].tolist() == [6, 8, 10, 18, 20, 22]


# In a decoder


@pytest.mark.parametrize("sizes", [[60], [7, 1, 30, 22], [10] * 6])
def test_decoder_run_is_the_decoder_whatever_the_blocks(sizes, small_decoder, embedded):
    """Batched, frame by frame or in between: the run under full attention is the decoder, but for BF16 rounding."""
    shape = decoder_shape(small_decoder)
    out = drive(DecoderRun(entry("full").build(shape), 24), small_decoder, embedded, sizes)
    small_decoder.length = 0
    want = small_decoder.logits(small_decoder(embedded)[[sum(sizes[: i + 1]) - 1 for i in range(len(sizes))]])
    for layer in range(3):
        history = out.histories[layer]
        np.testing.assert_allclose(history.k, small_decoder.k[layer, :, :60], atol=0.1, rtol=0.05)
        assert (history.k == bf16(history.k)).all()
    assert [r.choices[-1] for r in out.records] == want.argmax(axis=1).tolist()
    macs = sum(w.size for layer in small_decoder.layers for w in layer.values() if w.ndim == 2)
    assert out.records[-1].totals["ops.linear"] == 60 * macs
    assert out.records[-1].totals["ops.attention"] == 3 * 9 * 2 * 64 * (60 * 61 // 2)


def test_losses_are_those_of_the_decoder(small_decoder):
    ids = small_decoder.tokenizer.encode("hello world, hello again")
    small_decoder.length = 0
    want = loss(small_decoder, ids)
    out = DecoderRun(entry("full").build(decoder_shape(small_decoder)), 24)
    n = len(ids) - 1
    record = out.step(small_decoder, Block(0, "frame", 0, n), small_decoder.embeddings[ids[:-1]], np.array(ids[1:]))
    np.testing.assert_allclose(record.losses, want, rtol=0.02, atol=0.05)
    own = DecoderRun(entry("full").build(decoder_shape(small_decoder)), 24)
    free = own.step(small_decoder, Block(0, "frame", 0, n), small_decoder.embeddings[ids[:-1]], np.full(n, -1))
    assert free.choices == record.choices
    most = max(set(free.choices), key=free.choices.count)
    small_decoder.end, end = most, small_decoder.end
    barred = DecoderRun(entry("full").build(decoder_shape(small_decoder)), 24)
    block = Block(0, "frame", 0, n)
    assert most not in barred.step(small_decoder, block, small_decoder.embeddings[ids[:-1]], np.full(n, -1)).choices
    small_decoder.end = end
    assert (np.array(free.losses) <= np.array(record.losses) + 1e-9).sum() > n / 2  # the likeliest but for the end


class Pruner(Policy):
    """Lets every other token of a frame in, at positions without gaps, and computes some anew."""

    def __init__(self, shape, prune=False, refresh=(), shift=0):
        super().__init__(None, shape)
        self.prune, self.fresh, self.shift, self.admitted = prune, refresh, shift, 0

    def plan(self, block):
        admit = (block.tokens % 2 == 0) if self.prune else None
        refresh = np.array([t for t in self.fresh if t < block.start], np.int64)
        count = len(block.tokens) if admit is None else int(admit.sum())
        new = np.arange(self.admitted, self.admitted + count)
        self.admitted += count
        return Admitted(admit, refresh, np.concatenate([refresh, new]) + self.shift)

    def select(self, step):
        return Selected(self.store.on_device(step.layer))


def test_pruned_tokens_are_as_if_they_had_not_been(small_decoder, embedded):
    out = drive(DecoderRun(Pruner(decoder_shape(small_decoder), prune=True), 24), small_decoder, embedded, [20, 20, 20])
    short = drive(
        DecoderRun(entry("full").build(decoder_shape(small_decoder)), 24), small_decoder, embedded[::2], [10] * 3
    )
    assert [r.choices for r in out.records] == [r.choices for r in short.records]
    for layer in range(3):
        np.testing.assert_array_equal(out.histories[layer].k[:, :60:2], short.histories[layer].k)
    assert out.policy.store.census()["pruned"] == 3 * 3 * 30
    assert all((r.error == 0).all() for r in out.records)  # over what was computed
    assert out.records[-1].totals["ops.linear"] == short.records[-1].totals["ops.linear"]


def test_refreshed_tokens_are_computed_anew(small_decoder, embedded):
    """With nothing lost, refreshing changes nothing but the work; rows are counted."""
    shape = decoder_shape(small_decoder)
    plain = drive(DecoderRun(Pruner(shape), 24), small_decoder, embedded, [20, 20, 20])
    fresh = drive(DecoderRun(Pruner(shape, refresh=(4, 11)), 24), small_decoder, embedded, [20, 20, 20])
    assert [r.rows for r in fresh.records] == [20, 22, 22]
    for layer in range(3):
        a, b = fresh.histories[layer], plain.histories[layer]
        np.testing.assert_allclose(a.k, b.k, atol=0.05, rtol=0.02)  # as many, too
    assert fresh.records[-1].totals["ops.linear"] * 60 == plain.records[-1].totals["ops.linear"] * 64
    assert fresh.policy.store.census()["device"] == 3 * 3 * 60
    stale = drive(DecoderRun(Pruner(shape, refresh=(4, 11)), 24), small_decoder, embedded, [20])
    stale.embeddings[4] += 1  # what is computed anew is computed from the embeddings kept
    drive(stale, small_decoder, embedded, [20])
    assert np.abs(stale.histories[0].k[:, 4] - plain.histories[0].k[:, 4]).max() > 0.1
    np.testing.assert_array_equal(stale.histories[0].k[:, 5], plain.histories[0].k[:, 5])


def test_only_differences_of_positions_matter(small_decoder, embedded):
    shape = decoder_shape(small_decoder)
    a = drive(DecoderRun(Pruner(shape), 24), small_decoder, embedded, [30, 30])
    b = drive(DecoderRun(Pruner(shape, shift=50), 24), small_decoder, embedded, [30, 30])
    assert np.abs(a.histories[1].k - b.histories[1].k).max() > 0.5
    assert np.abs(a.histories[2].v - b.histories[2].v).mean() < 0.02  # BF16 keys round elsewhere


def test_a_plan_out_of_order_is_refused(small_decoder, embedded):
    policy = Pruner(decoder_shape(small_decoder), refresh=(11, 4))
    out = drive(DecoderRun(policy, 24), small_decoder, embedded, [20])
    with pytest.raises(PolicyError, match="must rise, refreshed before new"):
        drive(out, small_decoder, embedded, [20])


def test_guessed_queries_are_the_next_layers_projection_of_this_layers_input(small_decoder, embedded):
    policy = Watcher(decoder_shape(small_decoder))
    policy.uses_ahead = True
    seen = []
    keep = policy.select
    policy.select = lambda step: (seen.append(step), keep(step))[1]
    drive(DecoderRun(policy, 24), small_decoder, embedded, [9])
    assert [s.layer for s in seen] == [0, 1, 2]
    assert seen[2].ahead is None
    for s in seen[:2]:
        want = small_decoder.qkv(s.layer + 1, s.x, s.rows)[0]
        np.testing.assert_allclose(s.ahead, want, rtol=2**-7, atol=1e-6)


# Names and parameters


def test_override():
    params = override(POLICIES["resv"].params, {"resv.th_hd": "3", "prefetch": "only", "resv.centre": "true"})
    assert (params.resv.th_hd, params.prefetch, params.resv.centre) == (3, "only", True)
    for path, text, message in (
        ("th_hd", "3", "unknown; valid: resv.\\*, prefetch"),
        ("resv", "3", "unknown"),
        ("resv.th", "3", "parameter='resv.th': unknown; valid: n_hp"),
        ("prefetch.x", "3", "unknown"),
        ("resv.th_hd", "x", "must be of type int, such as 3"),
        ("resv.centre", "1", "must be of type bool"),
        ("prefetch", "maybe", "must be one of none, complete, only"),
    ):
        with pytest.raises(ParamError, match=message):
            override(POLICIES["resv"].params, {path: text})
    # Set together: one at a time, either would break the other's bound.
    assert override(POLICIES["resv"].params, {"resv.n_hp": "4", "resv.th_hd": "2"}).resv.n_hp == 4


def test_unknown_names_and_bad_shapes():
    with pytest.raises(ParamError, match="policy='fool': must be one of full, flexgen"):
        entry("fool")
    with pytest.raises(ParamError, match="heads=5: must be a multiple of kv_heads = 2"):
        Shape(1, 5, 2, 8)
    with pytest.raises(ParamError, match="layers=0: must be at least 1"):
        Shape(0, 4, 2, 8)
