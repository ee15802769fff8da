"""Hamming-distance clustering of key hash-bits and the hash cluster (HC) table (V-Rex section IV-B, Fig. 8)."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from golden.arithmetic.numerics import BF16, flush, to_bf16
from golden.function_params import ReSVParams
from golden.retrieval.hashing import pack, to_int, to_words, unpack


class Joined(NamedTuple):
    """What happened to one token."""

    cluster: int  # index of the cluster that holds the token now
    is_new: bool  # the token opened it
    count: int  # tokens in it, this one included; saturates at 2^count_bits - 1
    full_join: bool  # the table was full and no cluster was under th_hd
    distance: int  # to the hash of the cluster before it joined; 0 for a new cluster


class Clusterer:
    """One HC table and the rule by which tokens enter it.

    A token joins the nearest cluster whose Hamming distance is below `th_hd`, ties to the lowest index (with `join`
    "first": the one of lowest index below `th_hd`, as the hardware does not); without one it
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
        changed = np.flatnonzero(self._changed[: len(self), 0])
        self._means[changed] = to_bf16(self._sums[changed] / self._counts[changed, None].astype(np.float32))
        self._changed[changed] = False
        return self._means[: len(self)].copy()

    def distances(self, hashes: np.ndarray) -> np.ndarray:
        """Hamming distances of `hashes` [N, words] to every cluster, [N, C]."""
        return hamming(hashes, self.hashes)

    def add(self, key_hash: int, token: int | None = None, key: np.ndarray | None = None) -> Joined:
        """Put one token, by default the next index, into the table."""
        words = to_words([key_hash], self.params.n_hp)
        key = None if key is None else flush(key)
        return self._place(words[0], *self._nearest(self.distances(words)[0]), token, key)

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
        keys = None if keys is None else flush(keys)
        if self.params.hash_policy != "first" or self.params.join == "first":
            key_of = [None] * n if keys is None else keys
            return [self.add(to_int(w), t, k) for w, t, k in zip(words, token_of, key_of, strict=True)]
        old, p = len(self), self.params
        distance = np.full(n, p.n_hp + 1)
        at = np.zeros(n, np.int64)
        if old:
            before = self.distances(words)
            at = before.argmin(axis=1)
            distance = before[np.arange(n), at].astype(np.int64)
        opened: dict[int, int] = {}  # token of the frame: the cluster it opens
        first = 0
        while old + len(opened) < p.max_clusters and (lone := distance[first:] >= p.th_hd).any():
            first += int(lone.argmax())
            opened[first] = old + len(opened)
            near = hamming(words[first:], words[first : first + 1])[:, 0]
            closer = near < distance[first:]  # strictly: the older cluster has the lower index
            closer[0] = True
            at[first:][closer], distance[first:][closer] = opened[first], near[closer]
            first += 1
        return self._put(words, at.tolist(), distance.tolist(), set(opened), token_of, keys)

    def _put(
        self,
        words: np.ndarray,
        clusters: list[int],
        distances: list[int],
        opening: set[int],
        tokens: list[int | None],
        keys: np.ndarray | None,
    ) -> list[Joined]:
        """Enter tokens into the clusters found for them; hashes of old clusters do not change."""
        while len(self) + len(opening) > len(self._counts):
            self._allocate(min(2 * len(self._counts), self.params.max_clusters))
        numbers = [None] * len(words) if keys is None else keys.astype(np.float32)
        joined = []
        for i, c in enumerate(clusters):
            if i in opening:
                self.members.append([])
                self._hashes[c] = words[i]
            joined.append(
                self._count(c, i in opening, distances[i], tokens[i], None if numbers is None else numbers[i])
            )
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
        joined = self._count(c, is_new, distance, token, None if key is None else key.astype(np.float32))
        if self.params.hash_policy == "majority":
            self._ones[c] += unpack(words[None], self.params.n_hp)[0]
            self._hashes[c] = pack(2 * self._ones[c : c + 1] > len(self.members[c]))[0]
        elif self.params.hash_policy == "mean":
            self._hashes[c] = to_words([self._rehash(self.key_cluster()[c])], self.params.n_hp)[0]
        return joined

    def _count(self, c: int, is_new: bool, distance: int, token: int | None, key: np.ndarray | None) -> Joined:
        self.members[c].append(self._tokens if token is None else token)
        self._tokens += 1
        if self._counts[c] < self._top:
            self._counts[c] += 1
            if self.key_dim:
                with np.errstate(invalid="ignore", over="ignore"):  # infinities follow IEEE 754
                    self._sums[c] += key
                self._changed[c] = True
        return Joined(c, is_new, int(self._counts[c]), not is_new and distance >= self.params.th_hd, distance)

    def _nearest(self, distances: np.ndarray) -> tuple[int, int]:
        """(distance, index) of the cluster to join, if it is near enough: the nearest, or the first that is."""
        if len(distances) == 0:
            return 0, 0
        near = distances < self.params.th_hd
        at = int(near.argmax() if self.params.join == "first" and near.any() else distances.argmin())
        return int(distances[at]), at

    def _allocate(self, capacity: int) -> None:
        n = len(self)
        columns = {
            "_hashes": (self._words, np.uint64),
            "_sums": (self.key_dim, np.float32),
            "_means": (self.key_dim, BF16),  # of clusters that have not changed since they were last asked for
            "_changed": (1, bool),
        }
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
