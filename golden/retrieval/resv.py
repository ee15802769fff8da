"""ReSV, the retrieval policy of V-Rex (section IV, Fig. 6), over the stream of one decoder layer.

Of every frame: `append` its keys (hash-bits, clustering), then `retrieve` for its queries (scores of the clusters,
WiCSum selection of each row, union over the rows, tokens of the chosen clusters). Light attention then runs over the
chosen tokens, the first `sinks`, the last `recent` and the frame itself. Sinks are never clustered.

Resident are sinks and the last `recent` tokens, as in the KVMU's ring (`golden.retrieval.kvmap`), however long the
frame is. What a longer frame has pushed out of the ring is fetched like any token where its cluster is chosen. The
frame attends to it in any case: whoever computes attention has just made those keys and values.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from golden.arithmetic.numerics import flush
from golden.function_params import ReSVParams
from golden.retrieval import wicsum
from golden.retrieval.clustering import Clusterer, Joined
from golden.retrieval.hashing import Hasher
from golden.retrieval.scores import codes, scores


@dataclass(frozen=True)
class Appended:
    """What `append` did. A table is the layer's one (scope "layer") or a KV head's (scope "head")."""

    tokens: np.ndarray  # [T'] int64: the tokens that were clustered (sinks are not)
    hashes: np.ndarray  # [tables, T', words] uint64
    joined: list[list[Joined]]  # [tables][T']


@dataclass(frozen=True)
class Retrieved:
    """What `retrieve` chose. Rows of a table: query tokens x query heads of its KV heads, heads running fastest."""

    codes: list[np.ndarray]  # a table: [R, C] uint16 score codes (raw: int64)
    counts: list[np.ndarray]  # a table: [C] int64 token counts at that time
    rows: list[wicsum.Selection]  # a table: selection of each row
    clusters: list[np.ndarray]  # a table: [C] bool, the union of its rows
    keep: np.ndarray  # [kv_heads, n] bool: tokens that light attention reads
    fetched: np.ndarray  # [kv_heads, n] bool: tokens of chosen clusters that are not resident


class ReSV:
    """The HC tables of a layer of `kv_heads` KV heads and the tokens seen so far (`length`)."""

    def __init__(self, params: ReSVParams, kv_heads: int, head_dim: int):
        self.params = params
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.hasher = Hasher(params, kv_heads, head_dim)
        self.tables = [
            Clusterer(params, self.hasher.dim, partial(self.hasher.rehash, table=i)) for i in range(self.hasher.tables)
        ]
        self._cluster_of = np.full((len(self.tables), 1024), -1)
        self.length = 0
        self.frame = 0  # tokens of the last frame

    @property
    def cluster_of(self) -> np.ndarray:
        """Cluster of every token in every table, int64 [tables, n]; -1 for a sink."""
        return self._cluster_of[:, : self.length]

    def append(self, k: np.ndarray) -> Appended:
        """Cluster the keys `k` [T, kv_heads, head_dim] (BF16, after the rotary embedding) of a new frame."""
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
        """Choose tokens for the queries `q` [T, H, head_dim] (BF16, after the rotary embedding) of the last frame."""
        row_codes = [codes(s, self.params, self.head_dim) for s in self.scores(q)]
        counts = [t.counts.copy() for t in self.tables]
        rows = [wicsum.select_rows(c, n, self.params) for c, n in zip(row_codes, counts, strict=True)]
        clusters = [wicsum.union(r.mask) for r in rows]
        chosen = self.tokens_of(clusters)
        return Retrieved(row_codes, counts, rows, clusters, chosen | self.always(), chosen & ~self.resident())

    def resident(self) -> np.ndarray:
        """Tokens that device memory keeps, [n] bool: sinks and the last `recent`."""
        t = np.arange(self.length)
        return (t < self.params.sinks) | (t >= self.length - self.params.recent)

    def always(self) -> np.ndarray:
        """Tokens that are attended whatever is chosen, [n] bool: the resident ones and the whole last frame."""
        return self.resident() | (np.arange(self.length) >= self.length - self.frame)

    def tokens_of(self, clusters: Iterable[np.ndarray]) -> np.ndarray:
        """Tokens of cluster sets ([C] bool a table) by the HC tables, [kv_heads, n] bool."""
        out = np.stack([np.append(mask, False)[of] for mask, of in zip(clusters, self.cluster_of, strict=True)])
        return np.broadcast_to(out, (self.kv_heads, self.length)) if len(out) == 1 else out

    def scores(self, q: np.ndarray) -> list[np.ndarray]:
        """Scores of the queries' rows against the clusters of each table, FP32 [R, C]."""
        q = flush(q)
        heads = q.shape[1] // len(self.tables)
        own = self.kv_heads // len(self.tables)
        out = []
        for i, table in enumerate(self.tables):
            s = scores(q[:, i * heads : (i + 1) * heads], table.key_cluster(), own, self.params.dot)
            out.append(s.reshape(len(q) * heads, len(table)))
        return out


def probabilities(q: np.ndarray, k: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Softmax weights [T, H, n] in FP32 of the last T of n tokens over the tokens of `keep` [kv_heads, n], causal."""
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
    """Attention output [T, H, head_dim] in FP32 of weights `p` [T, H, n] on values `v` [n, kv_heads, head_dim]."""
    group = p.shape[1] // v.shape[1]
    return np.stack([p[:, h] @ v[:, h // group].astype(np.float32) for h in range(p.shape[1])], axis=1)
