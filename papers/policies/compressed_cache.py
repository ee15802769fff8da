"""LiveVLM and StreamMem as policies: caches of a fixed size, compressed as the video arrives, before any question.

Neither paper is among the project's copies. The docstrings say what follows published descriptions of them and what is
this project's choice. Mosaic's section VIII-A compares itself with both.
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, check, parameter
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.light_attention import Selected, bf16, by_kv_head, turn_keys
from openvrex.golden.policies.policy import Admitted, LayerBlock, Policy


def importance(q: np.ndarray, k: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """How much queries attend to keys: softmax weights, mean over queries and query heads, FP32 [n].

    q : [T, heads, d] · k : [kv_heads, n, d] · rows : [T], tokens of the queries · tokens : [n], tokens of the keys

    A query does not see keys after its own token, and every query must see a key. Scores are scaled by d^-0.5.
    """
    scores = by_kv_head(q * np.float32(q.shape[2] ** -0.5), len(k)) @ k.swapaxes(1, 2)
    hidden = (tokens > rows[:, None]).repeat(q.shape[1] // len(k), axis=0)
    np.copyto(scores, np.float32(-np.inf), where=hidden)
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    return scores.mean(axis=(0, 1), dtype=np.float32)


class Compressed(Policy):
    """Base of both: all of the cache is on the device, text stays, and `end` drops the frames' tokens that lost.

    All KV heads of a layer keep the same tokens. A layer without queries (a trace's first blocks) drops nothing.

    visual : bool [n], whether a token belongs to a frame · losing : by layer, tokens to drop after the block, bool [n]
    """

    turns = True  # scores turn keys or queries

    def __init__(self, params: "LiveVlmParams | StreamMemParams", shape: Shape):
        super().__init__(params, shape)
        self.visual = np.zeros(0, bool)
        self.losing: list[np.ndarray | None] = [None] * shape.layers

    def plan(self, block: Block) -> Admitted:
        own = np.full(block.stop - block.start, block.stage == "frame")
        self.visual = np.concatenate([self.visual, own])
        return Admitted()

    def end(self, block: Block) -> None:
        for layer, losing in enumerate(self.losing):
            if losing is not None:
                self.store.drop(layer, losing)
        self.losing = [None] * self.shape.layers

    def turned(self, layer: int, x: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """Vectors x [heads, n, d] of a layer, turned by `delta` [n] positions and rounded to BF16."""
        assert self.shape.frequencies is not None  # `Policy` refuses a shape without them, as `turns` is set
        self.ledger.work("elementwise", 3 * x.size)  # a rotation: 2 multiplications and an addition a number
        return turn_keys(x, delta, self.shape.frequencies[layer])


@dataclass(frozen=True)
class LiveVlmParams(Parameters):
    """Parameters of LiveVLM. The paper's budget is 12,288 tokens and its share of top tokens is unknown to us."""

    budget: int = parameter(512, "tokens of the long-term memory, and its buckets of one token", low=1)
    recent: int = parameter(256, "short-term memory: last tokens of the stream, never compressed", low=0)
    window: int = parameter(32, "last queries of a frame, whose attention ranks tokens", low=1)
    top: float = parameter(0.5, "share of the budget for the best tokens, wherever they are", low=0, high=1)
    page: int = parameter(16, "tokens of a page, which a question retrieves whole", low=1)
    ratio: float = parameter(0.4, "share of the pages that a question retrieves", low=0, high=1)


class LiveVlm(Compressed):
    """Compresses old frames to a budget of tokens spread over time; a question attends to a share of their pages.

    Follows descriptions of LiveVLM (arXiv 2505.15269, version 2):

    * Short-term memory is the last tokens, as they are; long-term memory is a budget of older tokens (FIFO).
    * Vision sink bucketing compresses. A token's score is the attention that the frame's last queries pay it. The best
      tokens stay. Then, by falling score, each token stays whose bucket, a stretch of the stream, has room. Buckets
      hold one token, as in the paper.
    * A frame attends to all that is held. A question attends to short-term memory and to the best pages of long-term
      memory. A page is ranked by its mean key without rotary positions (position-agnostic retrieval). Attention itself
      uses the positions. The answer's tokens keep the question's pages.

    Ours: buckets divide the stream so far, also when tokens are compressed again; a bucket without tokens leaves its
    room to the best of the rest; text is never compressed; one choice
    for all KV heads; a page's score is its softmax weight, mean over queries and heads; the frame filter is left out.
    """

    source = "LiveVLM, V-Rex [24], Mosaic [20] and VIII-A"
    params: LiveVlmParams

    def __init__(self, params: LiveVlmParams, shape: Shape):
        super().__init__(params, shape)
        self.unread: list[np.ndarray | None] = [None] * shape.layers  # tokens that the last question did not retrieve

    def select(self, step: LayerBlock) -> Selected:
        layer, held = step.layer, self.store.on_device(step.layer)
        if step.block.stage in ("prompt", "frame"):
            self.unread[layer] = None
            if step.block.stage == "frame":
                self._compress(step, held[0])
            return Selected(held)
        unread = self.unread[layer]
        if unread is None or step.block.stage == "question":
            unread = self.unread[layer] = self._unread(step, held[0])
        keep = held.copy()
        keep[:, : len(unread)] &= ~unread
        return Selected(keep)

    def _compress(self, step: LayerBlock, held: np.ndarray) -> None:
        p, block, size = self.params, step.block, self.shape.head_size
        edge = max(0, min(block.start, block.stop - p.recent))  # end of the long-term memory
        old = np.flatnonzero((held & self.visual)[:edge])
        if len(old) <= p.budget:
            return
        at, rows = np.flatnonzero(held), step.rows[-p.window :]
        score = importance(step.q[-p.window :], step.k[:, at], rows, at)[np.isin(at, old)]
        self.ledger.work("prediction", len(rows) * self.shape.heads * len(at) * size)
        self.ledger.sort(len(old))
        losing = np.zeros(step.n, bool)
        losing[old] = True
        losing[old[bucketed(old, score, edge, p.budget, int(p.top * p.budget))]] = False
        self.losing[step.layer] = losing

    def _unread(self, step: LayerBlock, held: np.ndarray) -> np.ndarray:
        """Retrieval by a block's queries: tokens of the long-term memory that stay out, bool [n]."""
        p, s, layer = self.params, self.shape, step.layer
        out = held & self.visual & (np.arange(step.n) < step.block.start - p.recent)
        old = np.flatnonzero(out)
        if not len(old):
            return out
        starts = np.arange(0, len(old), p.page)
        plain = self.turned(layer, step.k[:, old], -old)
        means = np.add.reduceat(plain, starts, axis=1) / np.diff([*starts, len(old)])[:, None].astype(np.float32)
        q = self.turned(layer, step.q.swapaxes(0, 1), -step.rows).swapaxes(0, 1)
        score = importance(q, means, np.zeros(len(q), int), np.zeros(len(starts), int))  # every query sees every page
        self.ledger.work("index", plain.size)
        self.ledger.work("prediction", len(q) * s.heads * len(starts) * s.head_size)
        self.ledger.sort(len(starts))
        chosen = np.argsort(-score, kind="stable")[: int(np.ceil(p.ratio * len(starts)))]
        out[old[np.isin(np.arange(len(old)) // p.page, chosen)]] = False
        return out


def bucketed(tokens: np.ndarray, score: np.ndarray, length: int, budget: int, top: int) -> np.ndarray:
    """Vision sink bucketing: indices of the `budget` tokens that stay, or of all if there are fewer; rising.

    tokens : [n], places in the stream, below `length`, rising · score : [n] · top : best tokens that stay anyway

    The stream's `length` places are divided into `budget` buckets of one token each. Token p, counted from 1, is in
    bucket ceil(p * budget / length). Room that stays empty, since old buckets have no tokens, goes to the best of the
    rest. Ties go to the earlier token.
    """
    bucket = ((tokens + 1) * budget - 1) // length
    full = np.zeros(budget, bool)
    kept: list[int] = []
    rest: list[int] = []
    for rank, i in enumerate(np.argsort(-score, kind="stable").tolist()):
        (kept if rank < top or not full[bucket[i]] else rest).append(i)
        full[bucket[i]] = True
    return np.sort(np.array([*kept, *rest][:budget], np.int64))


@dataclass(frozen=True)
class StreamMemParams(Parameters):
    """Parameters of StreamMem. The paper's budgets are 6,144 tokens and more."""

    budget: int = parameter(512, "entries of the memory in a layer: tokens of frames, and prototypes", low=1)
    clip: int = parameter(8, "frames after which the memory is compressed", low=1)
    proxy: int = parameter(4, "queries that rank entries: last ones of the prompt, or else of the frame", low=1)

    def __post_init__(self):
        super().__post_init__()
        check(
            self.clip < self.budget, "clip", self.clip, f"must be below budget = {self.budget}: a frame needs an entry"
        )


class StreamMem(Compressed):
    """Keeps a fixed number of entries: the tokens that chat-template tokens attend to most, and a mean of each frame.

    Follows descriptions of StreamMem (arXiv 2508.15717):

    * After each clip of frames, the memory is cut to its budget. Old entries and the clip's tokens compete.
    * An entry's score is the attention that chat-template tokens behind the clip pay it. They stand in for a question
      yet unknown. A layer has one order of entries.
    * A new frame's K and V are also merged into a prototype, weighted by their scores. Prototypes are entries, and
      attention reads them with the tokens that stay.

    Ours: the template's queries are those of the prompt ("<|im_start|>user", newline), turned to the clip's end. The
    paper runs the assistant's start after each clip. Without a prompt the frame's last queries stand in. A prototype is
    made only if the clip exceeds the budget, and takes room before tokens. The filter of alike frames and YaRN are left
    out.
    """

    source = "StreamMem, Mosaic [39] and VIII-A"
    params: StreamMemParams

    def __init__(self, params: StreamMemParams, shape: Shape):
        super().__init__(params, shape)
        self.clip: list[tuple[int, int]] = []  # spans of the frames since the last compression
        self.template: list[tuple[np.ndarray, np.ndarray] | None] = [None] * shape.layers  # queries, and their tokens
        nothing = np.zeros((2, shape.kv_heads, 0, shape.head_size), np.float32)
        self.prototypes = [nothing] * shape.layers  # by layer, K and V of merged frames
        self.merged: list[np.ndarray | None] = [None] * shape.layers  # prototypes after this block

    def plan(self, block: Block) -> Admitted:
        if block.stage == "frame":
            self.clip.append((block.start, block.stop))
        return super().plan(block)

    def select(self, step: LayerBlock) -> Selected:
        layer, held = step.layer, self.store.on_device(step.layer)
        if step.block.stage == "prompt":
            self.template[layer] = step.q[-self.params.proxy :], step.rows[-self.params.proxy :]
        elif step.block.stage == "frame" and len(self.clip) >= self.params.clip:
            self._compress(step, held[0])
        k, v = self.prototypes[layer]
        return Selected(held, extra_k=k, extra_v=v) if k.shape[1] else Selected(held)

    def end(self, block: Block) -> None:
        super().end(block)
        size = self.shape.kv_heads * self.store.entry_bytes
        for layer, merged in enumerate(self.merged):
            if merged is not None:
                self.ledger.hold("device", size * (merged.shape[2] - self.prototypes[layer].shape[2]))
                self.prototypes[layer] = merged
                self.clip = []
        self.merged = [None] * self.shape.layers

    def _compress(self, step: LayerBlock, held: np.ndarray) -> None:
        """Rank all entries, and note what the memory holds after the block."""
        p, layer, old = self.params, step.layer, self.prototypes[step.layer]
        at = np.flatnonzero(held & self.visual)
        count = old.shape[2]
        self.merged[layer] = old
        if len(at) + count <= p.budget:
            return
        keys = np.concatenate([old[0], step.k[:, at]], axis=1)
        q = self._queries(step)
        score = importance(q, keys, np.zeros(len(q), int), np.zeros(keys.shape[1], int))  # every query sees every entry
        self.ledger.work("prediction", len(q) * self.shape.heads * keys[0].size)
        self.ledger.sort(len(score))
        new = np.stack([self._merge(step, at, score[count:], span) for span in self.clip[-p.budget :]], axis=2)
        best = np.argsort(-score, kind="stable")[: p.budget - new.shape[2]]
        losing = np.zeros(step.n, bool)
        losing[at] = True
        losing[at[best[best >= count] - count]] = False
        self.losing[layer] = losing
        self.merged[layer] = np.concatenate([old[:, :, np.sort(best[best < count])], new], axis=2)

    def _queries(self, step: LayerBlock) -> np.ndarray:
        """The queries that stand for a question, [proxy, heads, d]; fewer if prompt or frame has fewer."""
        template = self.template[step.layer]
        if template is None:
            return step.q[-self.params.proxy :]
        q, rows = template
        return self.turned(step.layer, q.swapaxes(0, 1), step.n - rows).swapaxes(0, 1)

    def _merge(self, step: LayerBlock, at: np.ndarray, score: np.ndarray, span: tuple[int, int]) -> np.ndarray:
        """K and V [2, kv_heads, d] of a frame's prototype: means of its tokens, weighted by their scores."""
        own = (at >= span[0]) & (at < span[1])
        weight = score[own] + np.float32(1e-30)  # equal weights if nothing looks at the frame
        weight /= weight.sum()
        entries = np.stack([step.k[:, at[own]], step.v[:, at[own]]])
        self.ledger.work("index", entries.size)
        return bf16(weight @ entries)
