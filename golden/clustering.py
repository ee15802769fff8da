"""Hamming-distance clustering of key hash-bits and the hash cluster (HC) table (V-Rex section IV-B, Fig. 8)."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from golden.hashing import pack, to_int, to_words, unpack
from golden.numerics import flush, to_bf16
from golden.params import ReSVParams


class Joined(NamedTuple):
    """What happened to one token."""

    cluster: int  # index of the cluster that holds the token now
    is_new: bool  # the token opened it
    count: int  # tokens in it, this one included; saturates at 2^count_bits - 1
    full_join: bool  # the table was full and no cluster was under th_hd
    distance: int  # to the hash of the cluster before it joined; 0 for a new cluster


class Clusterer:
    """One HC table and the rule by which tokens enter it.

    A token joins the nearest cluster whose Hamming distance is below `th_hd`, ties to the lowest index; without one it
    opens a cluster; with a full table (`max_clusters`) it joins the nearest whatever the distance. Tokens are taken in
    order, so one can join a cluster opened by an earlier token of its frame.

    Columns: `hashes` [C, words] uint64 (little-endian words of `n_hp` bits), `counts` [C] int64, `members` (token
    indices in order of arrival), `key_sums` [C, key_dim] FP32 running sums in order of arrival, `key_cluster()` their
    BF16 means. A count that is saturated freezes the sum: hardware divides by the count it has.

    `hash_policy`: "first" keeps the hash of the first member (the hardware's), "majority" takes each bit's majority
    (a tie gives 0), "mean" hashes the BF16 mean through `rehash(mean [key_dim]) -> int`.
    """

    def __init__(self, params: ReSVParams, key_dim: int = 0, rehash: Callable[[np.ndarray], int] | None = None):
        if params.hash_policy == "mean" and (key_dim == 0 or rehash is None):
            raise ValueError("hash_policy='mean' needs key_dim and rehash, and every add its key")
        self.params = params
        self.key_dim = key_dim
        self.members: list[list[int]] = []
        self._rehash = rehash
        self._words = -(-params.n_hp // 64)
        self._top = (1 << params.count_bits) - 1
        self._tokens = 0
        self._allocate(min(64, params.max_clusters))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def hashes(self) -> np.ndarray:
        """Key_cluster hash-bits, [C, words] uint64."""
        return self._hashes[: len(self)]

    @property
    def counts(self) -> np.ndarray:
        """Token counts, [C] int64."""
        return self._counts[: len(self)]

    @property
    def key_sums(self) -> np.ndarray:
        """FP32 sums of the members' keys, [C, key_dim]."""
        return self._sums[: len(self)]

    def key_cluster(self) -> np.ndarray:
        """Key_cluster: means of the members' keys, [C, key_dim], one rounding to FP32 and one to BF16."""
        return to_bf16(self.key_sums / self.counts[:, None].astype(np.float32))

    def distances(self, hashes: np.ndarray) -> np.ndarray:
        """Hamming distances of `hashes` [N, words] to every cluster, [N, C]."""
        return hamming(hashes, self.hashes)

    def add(self, key_hash: int, token: int | None = None, key: np.ndarray | None = None) -> Joined:
        """Put one token, by default the next index, into the table."""
        words = to_words([key_hash], self.params.n_hp)
        key = None if key is None else flush(key)
        return self._place(words[0], *_nearest(self.distances(words)[0], 0), token, key)

    def add_frame(
        self,
        hashes: np.ndarray | Iterable[int],
        tokens: Iterable[int] | None = None,
        keys: np.ndarray | None = None,
    ) -> list[Joined]:
        """Put a frame's tokens in, in order: `hashes` as words [N, words] or integers, `keys` [N, key_dim].

        The same as `add` on each; hashes that never change ("first") let all distances to the clusters of
        earlier frames be one array operation.
        """
        words = hashes if isinstance(hashes, np.ndarray) and hashes.ndim == 2 else to_words(hashes, self.params.n_hp)
        n = len(words)
        token_of = [None] * n if tokens is None else list(tokens)
        key_of = [None] * n if keys is None else flush(keys)
        if self.params.hash_policy != "first":
            return [self.add(to_int(w), t, k) for w, t, k in zip(words, token_of, key_of, strict=True)]
        old = len(self)
        far = self.params.n_hp + 1
        before = self.distances(words)
        at = before.argmin(axis=1) if old else np.zeros(n, np.int64)
        best = before[np.arange(n), at].tolist() if old else [far] * n
        joined = []
        for i, nearest in enumerate(zip(best, at.tolist(), strict=True)):
            if len(self) > old:  # strictly nearer only: the older cluster has the lower index
                nearest = min(nearest, _nearest(hamming(words[i : i + 1], self.hashes[old:])[0], old))
            joined.append(self._place(words[i], *nearest, token_of[i], key_of[i]))
        return joined

    def _place(self, words: np.ndarray, distance: int, c: int, token: int | None, key: np.ndarray | None) -> Joined:
        full = len(self) == self.params.max_clusters
        near = len(self) > 0 and distance < self.params.th_hd
        is_new = not near and not full
        if is_new:
            c, distance = len(self), 0
            if c == len(self._counts):
                self._allocate(min(2 * c, self.params.max_clusters))
            self.members.append([])
            self._hashes[c] = words
        self.members[c].append(self._tokens if token is None else token)
        self._tokens += 1
        if self._counts[c] < self._top:
            self._counts[c] += 1
            if self.key_dim:
                with np.errstate(invalid="ignore", over="ignore"):  # infinities follow IEEE 754
                    self._sums[c] += key.astype(np.float32)
        if self.params.hash_policy == "majority":
            self._ones[c] += unpack(words[None], self.params.n_hp)[0]
            self._hashes[c] = pack(2 * self._ones[c : c + 1] > len(self.members[c]))[0]
        elif self.params.hash_policy == "mean":
            self._hashes[c] = to_words([self._rehash(self.key_cluster()[c])], self.params.n_hp)[0]
        return Joined(c, is_new, int(self._counts[c]), full and not near, distance)

    def _allocate(self, capacity: int) -> None:
        n = len(self)
        columns = {"_hashes": (self._words, np.uint64), "_sums": (self.key_dim, np.float32)}
        if self.params.hash_policy == "majority":
            columns["_ones"] = (self.params.n_hp, np.int64)
        for name, (width, dtype) in columns.items():
            grown = np.zeros((capacity, width), dtype)
            if n:
                grown[:n] = getattr(self, name)[:n]
            setattr(self, name, grown)
        counts = np.zeros(capacity, np.int64)
        if n:
            counts[:n] = self._counts[:n]
        self._counts = counts


def hamming(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Hamming distances between hash words `a` [N, words] and `b` [C, words] (uint64), [N, C]."""
    d = np.bitwise_count(a[:, None, 0] ^ b[None, :, 0])
    for w in range(1, a.shape[1]):
        d = d.astype(np.uint16) + np.bitwise_count(a[:, None, w] ^ b[None, :, w])
    return d


def _nearest(distances: np.ndarray, base: int) -> tuple[int, int]:
    """(distance, index) of the first of the smallest `distances`, whose indices start at `base`."""
    if len(distances) == 0:
        return 0, 0
    at = int(distances.argmin())
    return int(distances[at]), base + at
