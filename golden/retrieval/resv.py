"""ReSV, the retrieval policy of V-Rex: it decides which tokens of one decoder layer a frame attends to.

For every frame, the caller makes two calls:

1. `append` takes the frame's keys. It hashes them and clusters the tokens.
2. `retrieve` takes the frame's queries. It scores the clusters, selects clusters for each row by WiCSum, unites the
   rows' selections and returns the tokens of the chosen clusters.

Light attention then reads the chosen tokens, the first `sinks` tokens of the stream, the last `recent` tokens and the
frame itself. Sinks are never clustered.

Device memory keeps the sinks and the last `recent` tokens, as the KVMU's ring does (`golden.retrieval.kvmap`). A frame
longer than `recent` pushes its own first tokens out of the ring. If their cluster is chosen, they are fetched like any
other token. The frame attends to them in any case, because their keys and values were just computed.

Source: V-Rex section IV, Fig. 6.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from openvrex.golden.arithmetic.numerics import flush
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval import wicsum
from openvrex.golden.retrieval.clustering import Clusterer, Joined
from openvrex.golden.retrieval.hashing import Hasher
from openvrex.golden.retrieval.scores import codes, scores


@dataclass(frozen=True)
class Appended:
    """Result of `append`: the hashes and clusters of a frame's tokens.

    Scope "layer" has one HC table, scope "head" one per KV head. T' tokens were clustered; sinks are not.
    """

    tokens: np.ndarray  # [T'] int64: indices of the clustered tokens
    hashes: np.ndarray  # [tables, T', words] uint64: their hash bits
    joined: list[list[Joined]]  # [tables][T']: the cluster of each


@dataclass(frozen=True)
class Retrieved:
    """Result of `retrieve`. The lists have one item per HC table.

    A table of C clusters has R rows: one for each query token and each query head of its KV heads. Heads vary fastest.
    """

    codes: list[np.ndarray]  # [R, C] uint16 score codes (int64 for score map "raw")
    counts: list[np.ndarray]  # [C] int64 token counts at that time
    rows: list[wicsum.Selection]  # selection of each row
    clusters: list[np.ndarray]  # [C] bool: union of the rows' selections
    keep: np.ndarray  # [kv_heads, n] bool: tokens that light attention reads
    fetched: np.ndarray  # [kv_heads, n] bool: tokens of chosen clusters that are not resident


class ReSV:
    """The state of ReSV for one decoder layer: its HC tables, and the number of tokens seen so far (`length`)."""

    def __init__(self, params: ReSVParams, kv_heads: int, head_dim: int):
        self.params = params
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.hasher = Hasher(params, kv_heads, head_dim)
        self.tables = [
            Clusterer(params, self.hasher.dim, partial(self.hasher.rehash, table=i)) for i in range(self.hasher.tables)
        ]
        self._cluster_of = np.full((len(self.tables), 1024), -1)  # `append` doubles it when it is full
        self.length = 0
        self.frame = 0  # tokens in the last frame

    @property
    def cluster_of(self) -> np.ndarray:
        """Cluster of each of the n tokens in each table, int64 [tables, n]; -1 for a sink."""
        return self._cluster_of[:, : self.length]

    def append(self, k: np.ndarray) -> Appended:
        """Cluster the T tokens of a new frame by their keys `k` [T, kv_heads, head_dim], BF16, post-rotary."""
        tokens = np.arange(self.length, self.length + len(k))
        clustered = tokens >= self.params.sinks
        keys = self.hasher.split(k)[:, clustered]
        hashes = self.hasher.frame(keys)
        names = tokens[clustered].tolist()
        joined = [t.add_frame(h, names, x) for t, h, x in zip(self.tables, hashes, keys, strict=True)]
        self.length += len(k)
        self.frame = len(k)
        while self.length > self._cluster_of.shape[1]:
            self._cluster_of = np.concatenate([self._cluster_of, np.full_like(self._cluster_of, -1)], axis=1)
        self.cluster_of[:, tokens[clustered]] = [[j.cluster for j in of] for of in joined]
        return Appended(tokens[clustered], hashes, joined)

    def retrieve(self, q: np.ndarray) -> Retrieved:
        """Choose tokens for the queries `q` [T, H, head_dim] of the last frame, BF16, post-rotary.

        Raises `ParamError` if the H query heads are not a multiple of the KV heads.
        """
        row_codes = [codes(s, self.params, self.head_dim) for s in self.scores(q)]
        counts = [t.counts.copy() for t in self.tables]
        rows = [wicsum.select_rows(c, n, self.params) for c, n in zip(row_codes, counts, strict=True)]
        clusters = [wicsum.union(r.mask) for r in rows]
        chosen = self.tokens_of(clusters)
        return Retrieved(row_codes, counts, rows, clusters, chosen | self.always(), chosen & ~self.resident())

    def resident(self) -> np.ndarray:
        """Which tokens device memory keeps, [n] bool: the sinks and the last `recent` tokens."""
        t = np.arange(self.length)
        return (t < self.params.sinks) | (t >= self.length - self.params.recent)

    def always(self) -> np.ndarray:
        """Which tokens are attended in any case, [n] bool: the resident ones and the whole last frame."""
        return self.resident() | (np.arange(self.length) >= self.length - self.frame)

    def tokens_of(self, clusters: Iterable[np.ndarray]) -> np.ndarray:
        """Which tokens belong to the chosen clusters, [kv_heads, n] bool; `clusters` has one [C] bool per table."""
        out = np.stack([np.append(mask, False)[of] for mask, of in zip(clusters, self.cluster_of, strict=True)])
        return np.broadcast_to(out, (self.kv_heads, self.length)) if len(out) == 1 else out

    def scores(self, q: np.ndarray) -> list[np.ndarray]:
        """Scores of each query row against the clusters: one FP32 [R, C] per table, for queries [T, H, head_dim]."""
        q = flush(q)
        heads = q.shape[1] // len(self.tables)
        own = self.kv_heads // len(self.tables)
        out = []
        for i, table in enumerate(self.tables):
            s = scores(q[:, i * heads : (i + 1) * heads], table.key_cluster(), own, self.params.dot)
            out.append(s.reshape(len(q) * heads, len(table)))
        return out


def probabilities(q: np.ndarray, k: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Causal softmax weights of light attention, FP32 [T, H, n].

    The last T of n tokens attend to the tokens of `keep` [kv_heads, n]. `q` is [T, H, head_dim], `k` is
    [n, kv_heads, head_dim].
    """
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    position = np.arange(len(k) - rows, len(k))
    seen = position[:, None] >= np.arange(len(k))
    out = np.empty((rows, heads, len(k)), np.float32)
    for h in range(heads):
        g = h // group
        s = q[:, h].astype(np.float32) @ k[:, g].astype(np.float32).T / np.float32(np.sqrt(dim))
        s = np.where(seen & keep[g], s, -np.inf)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        out[:, h] = p / p.sum(axis=1, keepdims=True)
    return out


def attend(p: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention output, FP32 [T, H, head_dim], of weights `p` [T, H, n] and values `v` [n, kv_heads, head_dim]."""
    group = p.shape[1] // v.shape[1]
    return np.stack([p[:, h] @ v[:, h // group].astype(np.float32) for h in range(p.shape[1])], axis=1)
