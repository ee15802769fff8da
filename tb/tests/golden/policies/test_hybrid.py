"""Hybrid memory: allocator and eviction, the history branch, the client's prefix cache, and the paper's tables."""

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.state_space import (
    HistoryBranch,
    State,
    StateSpaceParams,
    causal_conv1d,
    selective_scan,
    silu,
)
from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.block_allocator import HOLE, BlockPool, PoolError, blocks_to_free, prefill, rewrite
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.hybrid import (
    Backend,
    Client,
    Hybrid,
    HybridParams,
    Manager,
    batched_window,
    block_bytes,
    memory,
    sliding_window,
    state_pages,
)
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from tb.tests.golden.policies.policy_runs import drive
from tb.tests.papers.policies.policy_streams import Stream

SHAPE = Shape(1, 4, 2, 8, epsilon=1e-5)
SMALL = HybridParams(block_tokens=4, sink_blocks=1, recent_blocks=3, state=StateSpaceParams(state=4))
PHASE_2 = replace(SMALL, ssm="disabled")


# Block allocator


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("asfcp"), st.integers(0, 5), st.integers(0, 99)), max_size=60))
def test_no_block_is_lost_or_given_twice_and_no_count_is_negative(calls):
    """Against a list of holders: allocate, share, free, cache and prefill in any order, refused calls included."""
    pool, held = BlockPool(9), []
    for what, count, pick in calls:
        some = [held[(pick + i) % len(held)] for i in range(min(count, len(held)))]
        try:
            if what == "a":
                given_now = pool.allocate(count)
                assert len(set(given_now)) == count
                assert not set(given_now) & set(held)
                held += given_now
            elif what == "s":
                pool.share(some)
                held += some
            elif what == "f":
                freed = pool.free(some)
                for block in some:
                    held.remove(block)
                assert sorted(freed) == sorted(set(some) - set(held))
            elif what == "c":
                pool.cache(pick % 9, bytes([count]))
            else:
                held += prefill(pool, np.arange(3 * count) + pick % 2, 3)[0]
        except PoolError:
            pass
        assert pool.refs == Counter(held)
        assert all(n > 0 for n in pool.refs.values())
        assert pool.used + pool.free_blocks == 9
    pool.free(held)
    assert sorted(pool.allocate(9)) == list(range(9))


def test_refused_calls_name_the_block_and_change_nothing():
    pool = BlockPool(3)
    a, b = pool.allocate(2)
    with pytest.raises(PoolError, match="out of memory: 2 blocks wanted, 1 of 3 free"):
        pool.allocate(2)
    with pytest.raises(PoolError, match=f"free block {b} 2 times: it is held 1 times"):
        pool.free([a, b, b])
    with pytest.raises(PoolError, match="share block 2: neither"):
        pool.share([a, 2])
    with pytest.raises(PoolError, match="cache block 2: not in use"):
        pool.cache(2, b"x")
    assert pool.refs == {a: 1, b: 1}
    with pytest.raises(ParamError, match="blocks=0"):
        BlockPool(0)


def test_listing_1():
    """Sink, middle and recent by the listing's slices; the middle's counts fall by one; the table is rewritten."""
    pool = BlockPool(20)
    table = pool.allocate(10)
    pool.share(table[3:5])
    new, middle = rewrite(pool, table, 2, 3)
    assert (new, middle) == (table[:2] + table[-3:], table[2:-3])
    assert pool.refs == dict.fromkeys(table[:2] + table[3:5] + table[-3:], 1)
    assert rewrite(pool, new, 2, 3) == (new, [])
    assert rewrite(pool, new[:4], 2, 3) == (new[:4], [])  # the listing's slices would overlap


@settings(max_examples=60)
@given(
    st.sampled_from(["rewrite", "compression", "mask"]),
    st.integers(0, 2),
    st.integers(1, 3),
    st.lists(st.integers(1, 11), max_size=15),
)
def test_every_block_of_the_stream_is_held_or_evicted_by_rule(eviction, sink, recent, steps):
    p = HybridParams(block_tokens=4, sink_blocks=sink, recent_blocks=recent, eviction=eviction, pool_blocks=64)
    pool = BlockPool(64)
    m, gone = Manager(p, pool), []
    for tokens in steps:
        m.extend(tokens)
        gone += m.evict().tolist()
        begun = -(-m.tokens // 4)
        holding = [n for n, block in zip(m.numbers, m.table, strict=True) if block != HOLE]
        assert sorted(gone + holding) == list(range(begun))
        assert pool.used == len(set(m.live)) == len(holding)
        if eviction == "rewrite":
            assert holding == [n for n in range(begun) if n < sink or n >= begun - recent]
            assert len(m.table) == min(begun, sink + recent)  # static shape
        elif eviction == "compression":
            assert holding == [n for n in range(begun) if p.kept(m.tokens)[4 * n : 4 * n + 4].any()]
            assert len(m.table) == begun
        else:
            assert (gone, len(m.table)) == ([], begun)


def test_token_masks_do_not_align_to_blocks():
    """IV-B, overhead 2: what compression may free is what the mask leaves whole; an edge inside a block costs it."""
    keep = np.ones(18, bool)
    keep[3:12] = False
    assert blocks_to_free(keep, 4).tolist() == [1, 2]
    keep[11] = True
    assert blocks_to_free(keep, 4).tolist() == [1]
    assert blocks_to_free(np.zeros(0, bool), 4).tolist() == []
    assert blocks_to_free(np.zeros(5, bool), 4).tolist() == [0, 1]


def test_why_compression_lost():
    """IV-B, overheads 1, 3 and 4: shapes go on changing, every step costs handoffs, shared blocks are not reclaimed."""
    managers = {}
    for eviction in ("rewrite", "compression", "mask"):
        pool = BlockPool(100)
        m = managers[eviction] = Manager(replace(PHASE_2, eviction=eviction), pool)
        m.extend(32)
        pool.share(m.table[1:3])  # another request of the batch reads them
        shared = m.table[1:3]
        m.evict()
        for _ in range(10):
            m.extend(7)
            m.evict()
        assert all(pool.refs[block] >= 1 for block in shared)
    assert {e: len(m.live) for e, m in managers.items()} == {"rewrite": 4, "compression": 7, "mask": 26}
    assert managers["rewrite"].lengths == {4}
    assert len(managers["compression"].lengths) == len(managers["mask"].lengths) == 11
    m = managers["compression"]
    assert (m.handoffs, m.zeroed) == (33, 19)


# Prefix cache


def test_prefix_hits_end_at_the_first_difference():
    pool, tokens = BlockPool(40), np.arange(18)
    first, hits = prefill(pool, tokens, 4)
    assert (len(first), hits) == (5, 0)
    other = tokens.copy()
    other[9] = 99
    second, hits = prefill(pool, other, 4)
    assert (second[:2], hits) == (first[:2], 8)
    assert not set(second[2:]) & set(first)
    assert pool.refs[first[0]] == 2
    pool.free(first + second)
    assert pool.used == 0
    again, hits = prefill(pool, tokens, 4)
    assert (again[:4], hits) == (first[:4], 16)  # freed and not given anew; the part-filled block is not cached
    with pytest.raises(PoolError, match="out of memory"):
        prefill(pool, np.arange(180), 4)  # its hits are given back
    assert pool.refs == dict.fromkeys(again, 1)
    pool.free(again)
    pool.allocate(40)
    assert pool.find(b"") is None
    assert not pool._block_of  # what is given anew is forgotten


def test_client_accumulates_then_shifts():
    """IV-D: while R grows everything but the new frames hits; then every request shifts, and the sink alone hits."""
    client = Client(BlockPool(500), sink=2, window=5, frame_tokens=8, block_tokens=4, keep=5)
    seen = []
    for _ in range(10):
        before = client.hits, client.computed
        prompt = client.request(1)
        seen.append((prompt.tolist(), client.hits - before[0], client.computed - before[1]))
    assert [s[0] for s in seen[:3]] == [[0], [0, 1], [0, 1, 2]]
    assert [s[0] for s in seen[6:8]] == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 3, 4, 5, 6, 7]]
    assert [s[1:] for s in seen[:7]] == [(8 * i, 8) for i in range(7)]
    assert [s[1:] for s in seen[7:]] == [(16, 40)] * 3
    assert (client.shifts, client.frames) == (3, 10)


@settings(max_examples=40)
@given(st.integers(0, 3), st.integers(1, 6), st.integers(1, 6), st.lists(st.integers(0, 9), max_size=15))
def test_prompts_are_bounded_and_every_token_is_a_hit_or_computed(sink, window, keep, news):
    """IV-D: a prompt never exceeds N_sink + N_window, whatever the stream; it ends with the newest frame."""
    client, sent = Client(BlockPool(60), sink, window, 6, 4, min(keep, window)), 0
    for new in news:
        prompt = client.request(new)
        sent += 6 * len(prompt)
        assert len(prompt) <= sink + window
        assert (np.diff(prompt) > 0).all()
        assert not new or prompt[-1] == client.frames - 1
        assert prompt[:sink].tolist() == list(range(min(sink, client.frames)))
        assert client.hits + client.computed == sent
        assert client.pool.used == 0


def test_a_smaller_keep_shifts_seldom():
    paper, ours = (Client(BlockPool(500), 2, 20, 8, 4, keep) for keep in (20, 10))
    for _ in range(102):
        paper.request(1)
        ours.request(1)
    assert (paper.shifts, ours.shifts) == (80, 8)
    assert ours.computed < paper.computed / 5


# History branch


def branch(width=12, out=16, **changes):
    return HistoryBranch(StateSpaceParams(**changes), width, out)


def by_definition(b: HistoryBranch, x: np.ndarray) -> np.ndarray:
    """Mamba 1.0 token by token and channel by channel, float64."""
    p, taps, n = b.params, b.params.conv, b.params.state
    past, h, out = [np.zeros(b.inner)] * taps, np.zeros((b.inner, n)), []
    sigmoid = lambda u: 1 / (1 + np.exp(-u))  # noqa: E731
    for row in x.astype(float):
        both = row @ b.in_proj.astype(float)
        inner, z = both[: b.inner], both[b.inner :]
        past = [*past[1:], inner]
        conv = b.conv_bias + sum(w * u for w, u in zip(b.conv_weight.astype(float), past, strict=True))
        u = conv * sigmoid(conv)
        parts = u @ b.x_proj.astype(float)
        dt = np.log1p(np.exp(parts[: b.rank] @ b.dt_proj.astype(float) + b.dt_bias))
        y = np.zeros(b.inner)
        for channel in range(b.inner):
            for i in range(n):
                decay = np.exp(dt[channel] * b.a[channel, i])
                h[channel, i] = decay * h[channel, i] + dt[channel] * parts[b.rank + i] * u[channel]
                y[channel] += parts[b.rank + p.state + i] * h[channel, i]
        out.append(((y + b.d * u) * z * sigmoid(z)) @ b.out_proj.astype(float))
    return np.array(out)


@pytest.mark.parametrize("changes", [{}, {"conv": 1}, {"expand": 1, "state": 1, "conv": 2}])
def test_listing_2_by_definition(changes):
    b = branch(**changes)
    x = 3 * np.random.default_rng(1).standard_normal((17, 12)).astype(np.float32)
    got, _ = b(x, [0, 17], b.begin())
    want = by_definition(b, x)
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_the_recurrence_is_the_continuous_equation():
    """II-D: with small steps h_t = A_bar h + B_bar x follows h' = A h + B x, whose solution for constant x is known."""
    steps, a, b, x = 4000, np.float32(-3), 0.7, 1.3
    dt = np.full((steps, 1), 1 / steps, np.float32)
    ones = np.ones((steps, 1), np.float32)
    y, h = selective_scan(x * ones, dt, a.reshape(1, 1), b * ones, ones, np.array([0, steps]), np.ones((1, 1, 1), "f4"))
    exact = np.exp(-3) + b * x / 3 * (1 - np.exp(-3))
    np.testing.assert_allclose([y[-1, 0], h[0, 0, 0]], exact, rtol=1e-3)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 99))
def test_chunked_scan_equals_whole_scan(chunks, taps, seed):
    """IV-C, chunked prefill: within 1e-5 of the largest output; scan and convolution alone to the last bit."""
    b, rng = branch(conv=taps), np.random.default_rng(seed)
    x = rng.standard_normal((sum(chunks), 12)).astype(np.float32)
    want, end = b(x, [0, len(x)], b.begin())
    state, got, at = b.begin(), [], 0
    for size in chunks:
        y, state = b(x[at : at + size], [0, size], state)
        got.append(y)
        at += size
    bound = 1e-5 * max(np.abs(want).max(initial=0), np.abs(end.h).max(initial=0), 1e-3)
    np.testing.assert_allclose(np.concatenate(got), want, rtol=0, atol=bound)
    np.testing.assert_allclose(state.h, end.h, rtol=0, atol=bound)
    np.testing.assert_allclose(state.conv, end.conv, rtol=0, atol=1e-5)
    u, dt = rng.standard_normal((2, len(x), 24)).astype(np.float32)
    bc = rng.standard_normal((2, len(x), 16)).astype(np.float32)
    runs = []
    for cuts in ([len(x)], chunks):
        conv, h, ys, at = b.begin().conv, b.begin().h, [], 0
        for size in cuts:
            part, cu = slice(at, at + size), np.array([0, size])
            c, conv = causal_conv1d(u[part], b.conv_weight, b.conv_bias, cu, conv)
            y, h = selective_scan(c, np.abs(dt[part]), b.a, bc[0, part], bc[1, part], cu, h)
            ys.append(y)
            at += size
        runs.append((np.concatenate(ys), conv, h))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 99))
def test_batch_with_cu_seqlens_equals_each_sequence_alone(lengths, seed):
    """IV-C: states are passed to their own sequence, begun from zero or carried; 1e-5 of the largest number."""
    b, rng = branch(), np.random.default_rng(seed)
    x = rng.standard_normal((sum(lengths), 12)).astype(np.float32)
    cu = np.concatenate([[0], np.cumsum(lengths)])
    fresh = rng.random(len(lengths)) < 0.5
    begun = State(*(rng.standard_normal(s.shape).astype(np.float32) for s in vars(b.begin(len(lengths))).values()))
    begun.conv[fresh] = begun.h[fresh] = 0
    before = begun.conv.copy(), begun.h.copy()
    got, after = b(x, cu, begun)
    np.testing.assert_array_equal(begun.conv, before[0])  # what was passed in is still there
    np.testing.assert_array_equal(begun.h, before[1])
    for i, size in enumerate(lengths):
        one = slice(i, i + 1)
        state = b.begin() if fresh[i] else State(begun.conv[one], begun.h[one])
        want, end = b(x[cu[i] : cu[i + 1]], [0, size], state)
        np.testing.assert_allclose(got[cu[i] : cu[i + 1]], want, rtol=0, atol=1e-5 * max(1, np.abs(got).max(initial=0)))
        np.testing.assert_allclose(after.h[one], end.h, rtol=0, atol=1e-5 * np.abs(end.h).max(initial=1))
        np.testing.assert_allclose(after.conv[one], end.conv, rtol=0, atol=1e-5)


def test_state_has_a_fixed_size_and_a_branch_its_seed():
    b = branch()
    _, state = b(np.ones((50, 12), np.float32), [0, 50], b.begin())
    assert state.size == b.begin().size == 4 * 24 * (16 + 3)
    copy = pickle.loads(pickle.dumps(b))
    np.testing.assert_array_equal(copy.in_proj, b.in_proj)
    assert len(pickle.dumps(b)) < 1000
    assert (HistoryBranch(b.params, 12, 16, 1).in_proj != b.in_proj).any()
    steps = np.logaddexp(0, b.dt_bias)
    assert 0.00099 < steps.min() < steps.max() < 0.101
    assert silu(np.array([-1e4, 0, 1e4], np.float32)).tolist() == [0, 0, 1e4]


def test_bad_batches_are_refused():
    b = branch()
    for cu in ([0, 3], [1, 4], [0, 4, 4], [0, 5, 4]):
        with pytest.raises(ParamError, match="cu_seqlens=.* must rise from 0 to 4"):
            b(np.ones((4, 12), np.float32), cu, b.begin(1 if len(cu) == 2 else 3))


# Backend


def test_sliding_window_by_definition():
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((5, 4, 8), (2, 9, 8), (2, 9, 8)))
    got = sliding_window(q, k, v, 3)
    for i in range(5):
        for h in range(4):
            near = slice(4 + i - 2, 4 + i + 1)
            e = np.exp(k[h // 2, near].astype(float) @ q[i, h] / 8**0.5)
            np.testing.assert_allclose(got[i, h], e / e.sum() @ v[h // 2, near], atol=1e-6)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=4), st.integers(1, 6))
def test_batched_window_by_definition(sizes, window):
    """Rows and older keys of each sequence, possibly none; a row sees its own sequence alone, in float64."""
    rng = np.random.default_rng(len(sizes))
    cu_rows, cu_keys = (np.cumsum([0, *x]) for x in ([t for t, _ in sizes], [t + old for t, old in sizes]))
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((cu_rows[-1], 4, 8), *[(2, cu_keys[-1], 8)] * 2))
    got = batched_window(q, k, v, cu_rows, cu_keys, window)
    assert got.shape == q.shape
    for i, (t, old) in enumerate(sizes):
        for row in range(t):
            last = cu_keys[i] + old + row
            near = slice(max(cu_keys[i], last - window + 1), last + 1)
            for h in range(4):
                e = np.exp(k[h // 2, near].astype(float) @ q[cu_rows[i] + row, h] / 8**0.5)
                np.testing.assert_allclose(got[cu_rows[i] + row, h], e / e.sum() @ v[h // 2, near], atol=2e-6)


def test_bad_bounds_are_refused():
    q, k = np.zeros((3, 4, 8), np.float32), np.zeros((2, 5, 8), np.float32)
    for rows, keys, message in (
        ([0, 3], [0, 2, 5], "cu_keys=.*must give each sequence at least its rows"),
        ([0, 2, 3], [0, 1, 5], "at least its rows"),
        ([0, 2], [0, 5], "cu_rows=.*must end at 3"),
        ([0, 3], [0, 4], "cu_keys=.*must end at 5"),
    ):
        with pytest.raises(ParamError, match=message):
            batched_window(q, k, k, np.array(rows), np.array(keys), 2)


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(0, 99),
)
def test_sum_of_both_whatever_the_chunks_and_the_batch(chunks, window, seed):
    """IV-C: `output += ssm_out`; three sequences prefilled in chunks, in one batch, are each alone in one piece."""
    rng, b = np.random.default_rng(seed), branch(out=32)
    totals = np.sum(chunks, axis=0)
    data = [
        [rng.standard_normal(s).astype(np.float32) for s in ((n, 4, 8), (n, 2, 8), (n, 2, 8), (n, 12))] for n in totals
    ]
    backend, got, at = Backend(b, window), [[], [], []], np.zeros(3, int)
    for sizes in chunks:
        cu = np.concatenate([[0], np.cumsum(sizes)])
        batch = [np.concatenate([d[i][a : a + s] for d, a, s in zip(data, at, sizes, strict=True)]) for i in range(4)]
        out = backend("abc", cu, *batch)
        for i in range(3):
            got[i].append(out[cu[i] : cu[i + 1]])
        at += sizes
        assert all(kv[0].shape[1] == min(n, window - 1) for kv, n in zip(backend.kv.values(), at, strict=True))
    for (q, k, v, x), parts in zip(data, got, strict=True):
        near = sliding_window(q, k.swapaxes(0, 1), v.swapaxes(0, 1), window)
        far = b(x, [0, len(x)], b.begin())[0].reshape(q.shape)
        np.testing.assert_allclose(np.concatenate(parts), near + far, rtol=0, atol=1e-5)
    backend.end("b")
    assert set(backend.states) == set(backend.kv) == {"a", "c"}
    with pytest.raises(ParamError, match="may be in a batch once"):
        backend("aa", [0, 0, 0], *(d[:0] for d in data[0]))


# Policy


def test_phase_2_attends_sink_and_recent_blocks():
    """Frames of 7 tokens in blocks of 4: at a frame, what Listing 1 left at the end of the one before."""
    s = Stream(Hybrid(PHASE_2, SHAPE))
    for r in s.run.records[1:]:
        blocks = -(-r.start // 4)
        kept = [t for t in range(r.start) if t // 4 < 1 or t // 4 >= blocks - 3]
        assert (r.kept == len(kept)).all()
    assert s.policy.store.census()["represented"] == 0
    assert s.policy.store.census()["pruned"] == 2 * (56 - 16)
    assert s.policy.manager.lengths == {2, 4}


def test_equation_1_masks_and_frees_nothing():
    """IV-A: attention is that of the mask, memory grows as the stream does."""
    s = Stream(Hybrid(replace(PHASE_2, eviction="mask"), SHAPE))
    for r in s.run.records[1:]:
        assert (r.kept == sum(t < 4 or t >= r.start - 12 for t in range(r.start))).all()
        assert r.census["device"] == 2 * r.stop
    full = Hybrid(replace(PHASE_2, eviction="mask", pool_blocks=5), SHAPE)
    with pytest.raises(PoolError, match="out of memory"):
        Stream(full)


def test_compression_attends_the_mask_and_frees_whole_blocks():
    s = Stream(Hybrid(replace(PHASE_2, eviction="compression"), SHAPE))
    masked = Stream(Hybrid(replace(PHASE_2, eviction="mask"), SHAPE))
    np.testing.assert_array_equal(s.y, masked.y)
    assert s.policy.store.census()["device"] == 2 * 4 * 4  # 56 tokens: the recent edge is that of a block
    s.block("frame", 1)
    assert s.policy.store.census()["device"] == 2 * (4 + 13)  # it lies within one
    assert s.policy.ledger.done["compare"] > 0


@pytest.mark.parametrize("eviction", ["rewrite", "mask"])
def test_branch_is_added_and_carried_from_block_to_block(eviction):
    """The policy's output less phase 2's is the branch over the whole stream at once (values, where there is no x)."""
    p = replace(SMALL, eviction=eviction)
    both, alone = Stream(Hybrid(p, SHAPE)), Stream(Hybrid(replace(p, ssm="disabled"), SHAPE))
    x = both.v[:56].repeat(2, axis=1).reshape(56, 32)
    b = HistoryBranch(p.state, 32, 32)
    want = b(x, [0, 56], b.begin())[0].reshape(56, 4, 8)
    np.testing.assert_allclose(np.concatenate(both.y) - np.concatenate(alone.y), want, rtol=0, atol=2e-5)
    assert both.policy.ledger.done["state"] == 56 * b.macs
    census = both.policy.store.census()
    assert (census["pruned"], census["represented"]) == (0, 80 if eviction == "rewrite" else 0)


def test_macs_by_definition():
    b = HistoryBranch(StateSpaceParams(expand=2, state=3, conv=4), 32, 40)
    weights = sum(w.size for w in (b.in_proj, b.conv_weight, b.x_proj, b.dt_proj, b.out_proj))
    assert b.macs == weights + 4 * 64 * 3 + 2 * 64


@pytest.mark.parametrize("p", [SMALL, PHASE_2, replace(SMALL, eviction="mask"), replace(SMALL, eviction="compression")])
def test_device_memory_is_whole_blocks_and_the_padded_state(p):
    s = Stream(Hybrid(p, SHAPE))
    steps = [7] * 8
    held, peak = memory(p, SHAPE, 32, steps)
    assert [r.totals["device"] for r in s.run.records] == held.tolist()
    assert s.policy.ledger.peak["device"] == peak
    assert s.policy.pool.used * block_bytes(p, SHAPE) == held[-1]


def test_state_without_a_query_is_carried_too():
    """Blocks of a trace without queries advance the state as those with."""
    asked = Stream(Hybrid(SMALL, SHAPE))
    silent = Stream(Hybrid(SMALL, SHAPE), frames=0)
    run = silent.run
    for i in range(8):
        block = Block(i, "frame", run.length, run.length + 7)
        run.begin(block)
        run.take(0, block.tokens, asked.k[block.tokens], asked.v[block.tokens])
        run.finish(block)
    np.testing.assert_allclose(silent.policy.states[0].h, asked.policy.states[0].h, rtol=1e-5)


def test_bad_parameters():
    for changes, message in (
        ({"recent_blocks": 0}, "recent_blocks=0: must be at least 1"),
        ({"sink_blocks": -1}, "sink_blocks=-1"),
        ({"eviction": "none"}, "eviction='none': must be one of rewrite, compression, mask"),
        ({"ssm": "trained"}, "ssm='trained': must be one of random, disabled"),
    ):
        with pytest.raises(ParamError, match=message):
            HybridParams(**changes)
    with pytest.raises(ParamError, match="conv=0: must be at least 1"):
        StateSpaceParams(conv=0)
    with pytest.raises(ParamError, match="seed=-1"):
        StateSpaceParams(seed=-1)
    with pytest.raises(ParamError, match="keep=6: must be 1 to window = 5"):
        Client(BlockPool(9), 1, 5, 8, 4, 6)
    with pytest.raises(ParamError, match="window=0"):
        Backend(branch(), 0)


@pytest.mark.parametrize("width", [16, 32, 100, 576])
def test_padded_page_size(width):
    """IV-C, `mamba_page_size_padded`: a layer's state in whole KV pages, less than one of them empty."""
    page = block_bytes(SMALL, SHAPE)
    size = HistoryBranch(SMALL.state, width, 32).begin().size
    assert 0 <= state_pages(SMALL, SHAPE, width) * page - size < page
    many = replace(SHAPE, layers=3)  # a page of every layer is a block
    assert state_pages(SMALL, many, width) == state_pages(SMALL, SHAPE, width)


# Tables II and III


def test_table_2_footprint():
    """Read as Qwen2.5-VL-3B (36 layers, 2 KV heads of 128; the text names no model): 23.6 MB is 40 blocks of 16 tokens.

    223.1 MB is 6,052 tokens; -89.4 % and 9.5 x follow, and 968 streams x 223.1 MB = 9,150 x 23.6 MB: one pool.
    """
    qwen = Shape(36, 16, 2, 128)
    evicting = HybridParams(sink_blocks=1, recent_blocks=39, ssm="disabled")
    full = replace(evicting, eviction="mask")
    steps = [6052 // 18] * 17 + [6052 - 17 * (6052 // 18)]  # 18 frames of 9 s
    small, large = (memory(p, qwen, 2048, steps)[0][-1] for p in (evicting, full))
    assert round(small / 1e6, 1) == 23.6
    assert abs(large / 1e6 - 223.1) < 16 * qwen.layers * 2 * qwen.entry_bytes / 1e6  # to a block
    assert round(100 * (small / large - 1), 1) == -89.4
    assert round(large / small, 1) == 9.5
    assert abs(968 * 223.1 / (9150 * 23.6) - 1) < 0.0005


def test_table_3_growth_is_flat():
    """Llama-3.2-1B (16 layers, 8 KV heads of 64), 64 frames of 196 tokens (section I): flat once the window fills.

    Full attention grows by 6.125 MiB of K and V a frame, to a block; the paper's 120 MiB is more than K and V.
    """
    llama, mib = Shape(16, 32, 8, 64), 2**20
    hybrid = HybridParams()
    full = replace(hybrid, eviction="mask", ssm="disabled")
    (held, peak), (grown, top) = (memory(p, llama, 2048, [196] * 64) for p in (hybrid, full))
    filled = -(-257 * 16 // 196)
    assert (np.diff(held[filled:]) == 0).all()
    assert (np.diff(held[: filled - 1]) > 0).all()
    assert grown[-1] == top == 12544 * 32768
    assert abs(np.diff(grown).mean() / mib - 6.125) < 0.01
    pages = state_pages(hybrid, llama, 2048)
    assert pages == 10  # 304 KiB of state in pages of 32 KiB
    assert held[-1] == (257 + pages) * block_bytes(hybrid, llama) == 133.5 * mib
    assert peak == held[-1] + 13 * block_bytes(hybrid, llama)  # a frame's blocks before the eviction at its end
    assert peak / top < 0.45  # the paper's peak: 8.2 of 18.4 GB
    longer, same_peak = memory(hybrid, llama, 2048, [196] * 1000)
    assert (longer[-1], same_peak) == (held[-1], peak)


# In a decoder


def test_in_a_decoder_the_branch_reads_the_attentions_input(small_decoder, embedded):  # noqa: F811
    """Whatever the blocks, the branch's output for a layer's input x goes on from block to block."""
    shape = decoder_shape(small_decoder)
    p = HybridParams(block_tokens=4, recent_blocks=20)
    states = []
    for sizes in ([60], [7, 1, 30, 22]):
        policy = Hybrid(p, shape)
        drive(DecoderRun(policy, 24), small_decoder, embedded, sizes)
        assert policy.branches[0].width == 24
        assert policy.ledger.done["state"] == 60 * sum(b.macs for b in policy.branches)
        states.append(policy.states)
    b = policy.branches[0]
    rms = np.sqrt((embedded.astype(float) ** 2).mean(axis=1, keepdims=True))
    _, want = b(embedded / rms, [0, 60], b.begin())  # the first layer's input is the embedding
    for one, other in zip(*states, strict=True):
        np.testing.assert_allclose(one.h, other.h, rtol=0, atol=0.02 * np.abs(one.h).max())  # BF16 q, k and v round
    np.testing.assert_allclose(states[0][0].h, want.h, rtol=0, atol=1e-5 * np.abs(want.h).max())
