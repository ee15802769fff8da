"""Hybrid memory as a policy: attention to sink and recent blocks, and a state-space branch for the rest of the stream.

Blocks between sink and recent ones are evicted from memory. The parameters of the branch are random, as in the paper.
So with the branch on, error and agreement say nothing about a trained one.

Source: "To Infinity and Beyond" (hybrid memory in vLLM), sections III to V.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.state_space import HistoryBranch, State, StateSpaceParams
from openvrex.golden.function_params import Parameters, check, parameter
from openvrex.golden.policies.block_allocator import HOLE, BlockPool, blocks_to_free, prefill, rewrite
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import Admitted, LayerBlock, Policy

EVICTIONS = ("rewrite", "compression", "mask")
BRANCHES = ("random", "disabled")


@dataclass(frozen=True)
class HybridParams(Parameters):
    """Parameters of hybrid memory."""

    block_tokens: int = parameter(16, "tokens of a KV block", low=1)
    sink_blocks: int = parameter(1, "first blocks of the stream, kept for good (NUM_SINK)", low=0)
    recent_blocks: int = parameter(256, "last blocks, the one being filled included (NUM_RECENT); 4,096 tokens", low=1)
    eviction: str = parameter(
        "rewrite",
        "Listing 1; compression: by token masks, which lost; mask: Eq. 1, frees nothing",
        choices=EVICTIONS,
    )
    ssm: str = parameter(
        "random", "history branch with random parameters, as in the paper; disabled: none", choices=BRANCHES
    )
    state: StateSpaceParams = StateSpaceParams()
    pool_blocks: int = parameter(1 << 16, "blocks of the pool; a request for more is out of memory", low=1)

    @property
    def sink_tokens(self) -> int:
        """Number of tokens of the sink blocks."""
        return self.sink_blocks * self.block_tokens

    @property
    def recent_tokens(self) -> int:
        """Largest number of tokens of the recent blocks."""
        return self.recent_blocks * self.block_tokens

    def kept(self, n: int) -> np.ndarray:
        """Which of n tokens are sink or recent ones, bool [n]: those where the mask of Eq. 1 is 0."""
        at = np.arange(n)
        return (at < self.sink_tokens) | (at >= n - self.recent_tokens)


class Manager:
    """Block table of one request over the stream: `StreamingVideoKVCacheManager` (section IV-B).

    `extend` takes blocks for new tokens. `evict` ends a step and frees blocks, as the parameters say:

    - rewrite (phase 2, Listing 1): frees the middle; the table is sink + recent blocks, never longer.
    - compression (the variant that lost): the attention's token mask names the blocks without a kept token. The
      scheduler frees those that nobody else holds, and the worker zeroes them. The table keeps a hole for each, so its
      length grows on. A shared middle block is kept.
    - mask (phase 1): frees nothing.

    lengths : lengths of the table that attention has seen after a step; each new one is a guard failure of a compiler
    handoffs : messages from attention to worker, to scheduler, to worker
    zeroed : blocks cleared on the device
    """

    def __init__(self, params: HybridParams, pool: BlockPool):
        self.params, self.pool = params, pool
        self.table: list[int] = []
        self.numbers: list[int] = []  # block of the stream in each place of the table
        self.tokens = 0
        self.lengths: set[int] = set()
        self.handoffs = 0
        self.zeroed = 0

    @property
    def live(self) -> list[int]:
        """The blocks that the request holds."""
        return [block for block in self.table if block != HOLE]

    def extend(self, tokens: int) -> None:
        """Take blocks for `tokens` more tokens. Raises `PoolError` if the pool has too few."""
        size = self.params.block_tokens
        begun, wanted = -(-self.tokens // size), -(-(self.tokens + tokens) // size)
        self.table += self.pool.allocate(wanted - begun)
        self.numbers += range(begun, wanted)
        self.tokens += tokens

    def evict(self) -> np.ndarray:
        """End a step; returns the blocks of the stream that are evicted, int64."""
        p, before = self.params, self.numbers
        gone: list[int] = []
        if p.eviction == "rewrite":
            self.table, middle = rewrite(self.pool, self.table, p.sink_blocks, p.recent_blocks)
            last = p.sink_blocks + len(middle)
            gone = before[p.sink_blocks : last]
            self.numbers = before[: p.sink_blocks] + before[last:]
        elif p.eviction == "compression" and len(self.table) > p.sink_blocks + p.recent_blocks:
            named = blocks_to_free(p.kept(self.tokens), p.block_tokens).tolist()
            gone = [i for i in named if self.table[i] != HOLE and self.pool.refs[self.table[i]] == 1]
            self.pool.free([self.table[i] for i in gone])
            for i in gone:
                self.table[i] = HOLE
            self.handoffs += 3
            self.zeroed += len(gone)
        self.lengths.add(len(self.table))
        return np.array(gone, np.int64)


def block_bytes(params: HybridParams, shape: Shape) -> int:
    """Bytes of a KV block: K and V of its tokens for all layers and KV heads."""
    return params.block_tokens * shape.layers * shape.kv_heads * shape.entry_bytes


def state_pages(params: HybridParams, shape: Shape, width: int) -> int:
    """KV pages for the state of a layer, rounded up (`mamba_page_size_padded`, section IV-C).

    So state and KV blocks share one pool without gaps; a block of the pool is one page of every layer.
    """
    if params.ssm == "disabled":
        return 0
    s = params.state
    size = 4 * s.expand * width * (s.state + s.conv - 1)
    return -(-size // (block_bytes(params, shape) // shape.layers))


def memory(params: HybridParams, shape: Shape, width: int, steps: Sequence[int]) -> tuple[np.ndarray, int]:
    """Device bytes of KV blocks and state after each step, int64 [steps], and their peak (as Tables II and III).

    steps : tokens of each step

    Weights and activations do not count. Full attention is eviction "mask" with ssm "disabled".
    """
    pool = BlockPool(params.pool_blocks)
    pool.allocate(state_pages(params, shape, width))
    manager = Manager(params, pool)
    held = []
    for tokens in steps:
        manager.extend(tokens)
        manager.evict()
        held.append(pool.used)
    size = block_bytes(params, shape)
    return np.array(held, np.int64) * size, pool.peak * size


class Hybrid(Policy):
    """Attention to sink and recent blocks, plus the output of a state-space branch over the whole stream.

    Eviction is at the end of a block of the stream (section IV-B), so attention sees the whole block in flight. Keys
    keep the rotary positions that they were stored with. The branch's state represents evicted tokens; without a branch
    (phase 2) they are pruned.

    In a decoder the branch reads the layer's input, scaled to a root mean square of 1. The paper's branch reads the
    output of the layer's norm, whose trained scale a policy does not see. A trace has no such input, so there the
    branch reads the values, those of a KV head once for each of its query heads. Its parameters are random.

    The ledger counts the branch's MACs as state, blocks whose reference count is checked as comparisons, and whole KV
    blocks and the padded state as device memory.
    """

    speaks = True
    source = "hybrid memory III-C, IV, Eq. 1, Listings 1 and 2; random branch: no output quality"
    events = ("dropped",)

    def __init__(self, params: HybridParams, shape: Shape):
        super().__init__(params, shape)
        self.pool = BlockPool(params.pool_blocks)
        self.manager = Manager(params, self.pool)
        self.branches: list[HistoryBranch] = []
        self.states: list[State] = []
        self.waiting: list[np.ndarray | None] = [None] * shape.layers  # values that the branch has not read yet
        self.padding = [0] * shape.layers  # tokens for which a layer's last block has room

    def plan(self, block: Block) -> Admitted:
        self.manager.extend(block.stop - block.start)
        self.ledger.hold("device", -sum(self.padding) * self.shape.kv_heads * self.store.entry_bytes)
        return Admitted()

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        room = -(int(tokens[-1]) + 1) % self.params.block_tokens
        self.ledger.hold("device", room * self.shape.kv_heads * self.store.entry_bytes)
        self.padding[layer] = room
        self.waiting[layer] = v.repeat(self.shape.group, axis=1).reshape(len(v), -1)

    def select(self, step: LayerBlock) -> Selected:
        p, layer, start = self.params, step.layer, step.block.start
        keep = self.store.on_device(layer)
        if p.eviction != "rewrite":
            keep = keep & np.concatenate([p.kept(start), np.ones(step.n - start, bool)])
        x = self.waiting[layer]
        if step.x is not None:
            assert self.shape.epsilon is not None  # known of every decoder
            x = rms_norm(step.x, self.shape.epsilon)
        assert x is not None  # `append` has left the block's values
        y = self._history(layer, x)
        return Selected(keep, add=None if y is None else y.reshape(step.q.shape))

    def end(self, block: Block) -> None:
        p = self.params
        for layer, x in enumerate(self.waiting):
            if x is not None:  # there was no query, so `select` has not run
                self._history(layer, x)
        if p.eviction == "compression":
            self.ledger.work("compare", len(self.manager.live))
        for first in (self.manager.evict() * p.block_tokens).tolist():
            for layer in range(self.shape.layers):
                self.store.drop(layer, slice(first, first + p.block_tokens), represented=p.ssm != "disabled")

    def _history(self, layer: int, x: np.ndarray) -> np.ndarray | None:
        """The branch's output [T, heads x head_size] for its input x [T, width]; None without a branch."""
        self.waiting[layer] = None
        if self.params.ssm == "disabled":
            return None
        if not self.branches:
            out, width = self.shape.heads * self.shape.head_size, x.shape[1]
            self.branches = [HistoryBranch(self.params.state, width, out, i) for i in range(self.shape.layers)]
            self.states = [branch.begin() for branch in self.branches]
            pages = state_pages(self.params, self.shape, width)
            self.pool.allocate(pages)
            self.ledger.hold("device", pages * block_bytes(self.params, self.shape))
        y, self.states[layer] = self.branches[layer](x, np.array([0, len(x)]), self.states[layer])
        self.ledger.work("state", len(x) * self.branches[layer].macs)
        return y


def rms_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    """Rows of x [T, width] divided by their root mean square; `epsilon` is that of the model's norms."""
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(epsilon))


class Backend:
    """One layer of `HybridAttentionBackend` (section IV-C), for batches that hold chunks of several sequences.

    Every row attends to the last `window` tokens of its sequence, itself included. The branch reads the whole sequence.
    The outputs are added. Attention and branch each run once for the whole batch. Between chunks a sequence keeps
    window - 1 keys and values and the state, so its memory does not grow.
    """

    def __init__(self, branch: HistoryBranch, window: int):
        check(window >= 1, "window", window, "must be at least 1")
        self.branch, self.window = branch, window
        self.states: dict[str, State] = {}
        self.kv: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # [kv_heads, up to window - 1, head_size]

    def __call__(
        self, names: Sequence[str], cu_seqlens: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, x: np.ndarray
    ) -> np.ndarray:
        """Output [T, heads, head_size] of a batch; sequence names[b] has the rows cu_seqlens[b] to cu_seqlens[b + 1].

        q : [T, heads, head_size] · k, v : [T, kv_heads, head_size] · x : [T, width]

        A new name begins a new sequence. Raises `ParamError` if a name is there twice.
        """
        check(len(set(names)) == len(names), "names", list(names), "a sequence may be in a batch once: join its chunks")
        states = [self.states.get(name) or self.branch.begin() for name in names]
        joined = State(np.concatenate([s.conv for s in states]), np.concatenate([s.h for s in states]))
        out, after = self.branch(x, cu_seqlens, joined)
        out = out.reshape(q.shape)
        for i, name in enumerate(names):
            self.states[name] = State(after.conv[i : i + 1], after.h[i : i + 1])
        return out + self._attend(names, np.asarray(cu_seqlens, np.int64), q, k, v)

    def end(self, name: str) -> None:
        """Forget a sequence and free its memory."""
        del self.states[name], self.kv[name]

    def _attend(
        self, names: Sequence[str], cu_seqlens: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        """Attention of the whole batch at once, over what each sequence has kept and its new keys and values."""
        nothing = k.swapaxes(0, 1)[:, :0]
        joined: list[list[np.ndarray]] = [[], []]
        for i, name in enumerate(names):
            old = self.kv.get(name, (nothing, nothing))
            new = (x[cu_seqlens[i] : cu_seqlens[i + 1]].swapaxes(0, 1) for x in (k, v))
            both = [np.concatenate(pair, axis=1) for pair in zip(old, new, strict=True)]
            first = max(0, both[0].shape[1] - self.window + 1)
            self.kv[name] = both[0][:, first:].copy(), both[1][:, first:].copy()
            for x, own in zip(joined, both, strict=True):
                x.append(own)
        cu_keys = np.cumsum([0, *(x.shape[1] for x in joined[0])])
        whole_k, whole_v = (np.concatenate([nothing, *x], axis=1) for x in joined)
        return batched_window(q, whole_k, whole_v, cu_seqlens, cu_keys, self.window)


def batched_window(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_rows: np.ndarray, cu_keys: np.ndarray, window: int
) -> np.ndarray:
    """Sliding-window attention of several sequences in one batch, FP32 [T, heads, head_size].

    q : [T, heads, head_size], sequences end to end · k, v : [kv_heads, n, head_size], the same
    cu_rows, cu_keys : [B + 1], bounds of each sequence's rows and keys, from 0 up

    The rows of a sequence are its last tokens, possibly none. A row attends to the last `window` tokens of its own
    sequence, itself included; scores are scaled by head_size^-0.5. Sequences are padded to the longest, so that the
    batch takes two products. Raises `ParamError` for bounds that do not fit.
    """
    rows, keys = np.diff(cu_rows), np.diff(cu_keys)
    ok = len(rows) == len(keys) and cu_rows[0] == cu_keys[0] == 0 and (rows >= 0).all() and (rows <= keys).all()
    check(bool(ok), "cu_keys", cu_keys.tolist(), "must give each sequence at least its rows, from 0 up")
    for name, cu, n in (("cu_rows", cu_rows, len(q)), ("cu_keys", cu_keys, k.shape[1])):
        check(cu[-1] == n, name, cu.tolist(), f"must end at {n}")
    (t, heads, size), kv_heads = q.shape, len(k)
    if not t:
        return np.zeros(q.shape, np.float32)
    b, most, longest = len(rows), int(rows.max()), int(keys.max())
    of_row, of_key = np.arange(b).repeat(rows), np.arange(b).repeat(keys)
    row, key = np.arange(t) - cu_rows[of_row], np.arange(k.shape[1]) - cu_keys[of_key]  # places in their sequences
    padded_q = np.zeros((b, most, heads, size), np.float32)
    padded_q[of_row, row] = q
    padded_k, padded_v = np.zeros((2, b, longest, kv_heads, size), np.float32)
    padded_k[of_key, key], padded_v[of_key, key] = k.swapaxes(0, 1), v.swapaxes(0, 1)
    group = heads // kv_heads
    padded_q = padded_q.reshape(b, most, kv_heads, group, size).swapaxes(1, 2).reshape(b, kv_heads, -1, size)
    scores = padded_q @ padded_k.transpose(0, 2, 3, 1) * np.float32(size**-0.5)
    at = np.arange(longest)
    own = np.minimum((keys - rows)[:, None] + np.arange(most), longest - 1).repeat(group, axis=1)[:, None, :, None]
    np.copyto(scores, np.float32(-np.inf), where=(at > own) | (at <= own - window))
    scores -= scores.max(axis=3, keepdims=True)
    np.exp(scores, out=scores)
    y = scores / scores.sum(axis=3, keepdims=True) @ padded_v.swapaxes(1, 2)
    return y.reshape(b, kv_heads, most, group, size).swapaxes(1, 2).reshape(b, most, heads, size)[of_row, row]


def sliding_window(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int) -> np.ndarray:
    """Sliding-window attention, FP32 [T, heads, head_size]: each of the last T of n tokens attends to `window` tokens.

    q : [T, heads, head_size] · k, v : [kv_heads, n, head_size]

    The window ends with the token itself. Scores are scaled by head_size^-0.5.
    """
    return batched_window(q, k, v, np.array([0, len(q)]), np.array([0, k.shape[1]]), window)


class Client:
    """The client of section IV-D, which sends sink frames S and recent frames R as a prompt [S, R] over a prefix cache.

    Accumulate: new frames fill S first and are then appended to R. Shift: if R exceeds `window` frames, R <- R[-keep:].
    The paper's rule is keep = window: every request after the first full window shifts, so that only S and what stays
    in front of the oldest recent frame hit the cache. A smaller `keep` shifts once in window - keep frames. A prompt
    never exceeds sink + window frames. Tokens are named by frame and index.
    """

    def __init__(self, pool: BlockPool, sink: int, window: int, frame_tokens: int, block_tokens: int, keep: int):
        check(sink >= 0, "sink", sink, "must not be negative")
        check(1 <= keep <= window, "keep", keep, f"must be 1 to window = {window}")
        self.pool, self.sink, self.window, self.keep = pool, sink, window, keep
        self.frame_tokens, self.block_tokens = frame_tokens, block_tokens
        self.frames = 0
        self.recent: list[int] = []
        self.shifts = 0
        self.hits = 0  # tokens found in the prefix cache
        self.computed = 0  # tokens that were not

    def request(self, new: int) -> np.ndarray:
        """Send a request after `new` more frames; returns the frames of its prompt, int64."""
        arrived = range(self.frames, self.frames + new)
        self.frames += new
        self.recent += [frame for frame in arrived if frame >= self.sink]
        if len(self.recent) > self.window:
            self.recent = self.recent[-self.keep :]
            self.shifts += 1
        prompt = np.array([*range(min(self.sink, self.frames)), *self.recent], np.int64)
        tokens = (prompt[:, None] * self.frame_tokens + np.arange(self.frame_tokens)).ravel()
        table, hits = prefill(self.pool, tokens, self.block_tokens)
        self.pool.free(table[::-1])  # the request is answered; the pool gives away its last blocks first
        self.hits += hits
        self.computed += len(tokens) - hits
        return prompt
