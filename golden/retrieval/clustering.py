"""The HC table: it groups the tokens of a stream into clusters of similar keys.

Two keys count as similar if few of their hash bits differ, that is if their Hamming distance is small.
`Clusterer` holds one hash cluster (HC) table and defines which cluster each token joins.

Source: V-Rex section IV-B, Fig. 8.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, flush, to_bf16
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval.hashing import pack, to_int, to_words, unpack


@dataclass(frozen=True, slots=True)
class Joined:
    """The table's answer to one token."""

    cluster: int  # index of the cluster that the token is in
    is_new: bool  # the token opened this cluster
    count: int  # tokens in the cluster, this one included; saturates at 2^count_bits - 1
    full_join: bool  # the table was full, so the token joined a cluster that is not closer than th_hd
    distance: int  # Hamming distance to the cluster's hash before the token joined; 0 for a new cluster


class Clusterer:
    """One HC table, and the rule by which tokens enter it.

    Rule:

    * A token joins the nearest cluster, if its Hamming distance is below `th_hd`. Ties go to the lowest index.
    * If no cluster is that near, the token opens a new cluster.
    * If the table is full (`max_clusters`), the token joins the nearest cluster at any distance.
    * Tokens enter in order, so a token can join a cluster that an earlier token of its frame opened.
    * With `join` "first", a token joins the cluster of lowest index below `th_hd`. Hardware does not offer this.

    Columns of the table, for C clusters:

    * `hashes` [C, words] uint64: the hash bits, as little-endian words of `n_hp` bits.
    * `counts` [C] int64: tokens per cluster.
    * `members`: token indices of each cluster, in order of arrival.
    * `key_sums` [C, key_dim] FP32: sums of the members' keys, in order of arrival. A saturated count freezes its sum,
      because hardware divides by the count that it has.
    * `key_cluster()` [C, key_dim] BF16: means of the members' keys.

    The hash of a growing cluster follows `hash_policy`: "first" keeps the hash of the first member, as hardware does.
    "majority" takes the majority of each bit; a tie gives 0. "mean" hashes the BF16 mean with
    `rehash(mean [key_dim]) -> int`; then `key_dim`, `rehash` and the key of every token are required.

    Keys are optional otherwise: `key_dim` of 0 keeps no sums. Raises `ValueError` if `rehash` or `key_dim` is missing.
    """

    def __init__(self, params: ReSVParams, key_dim: int = 0, rehash: Callable[[np.ndarray], int] | None = None):
        if params.hash_policy == "mean" and (key_dim == 0 or rehash is None):
            raise ValueError("hash_policy='mean': it hashes mean keys; give key_dim and rehash, and a key to every add")
        self.params = params
        self.key_dim = key_dim
        self.members: list[list[int]] = []
        self._rehash = rehash
        self._top = (1 << params.count_bits) - 1
        self._tokens = 0
        # Columns with room for more clusters than there are; `_allocate` grows them.
        self._hashes = np.zeros((0, -(-params.n_hp // 64)), np.uint64)
        self._counts = np.zeros(0, np.int64)
        self._sums = np.zeros((0, key_dim), np.float32)
        self._means = np.zeros((0, key_dim), BF16)  # as of the last call of `key_cluster`
        self._changed = np.zeros(0, bool)  # the sum changed since then
        self._ones = np.zeros((0, params.n_hp if params.hash_policy == "majority" else 0), np.int64)  # ones per bit
        self._allocate(min(64, params.max_clusters))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def hashes(self) -> np.ndarray:
        """Hash bits of the clusters, [C, words] uint64."""
        return self._hashes[: len(self)]

    @property
    def counts(self) -> np.ndarray:
        """Tokens per cluster, [C] int64; saturated at 2^count_bits - 1."""
        return self._counts[: len(self)]

    @property
    def key_sums(self) -> np.ndarray:
        """Sums of the members' keys, [C, key_dim] FP32."""
        return self._sums[: len(self)]

    def key_cluster(self) -> np.ndarray:
        """Key_cluster: means of the members' keys, [C, key_dim] BF16, rounded to FP32 and then to BF16."""
        changed = np.flatnonzero(self._changed[: len(self)])
        self._means[changed] = to_bf16(self._sums[changed] / self._counts[changed, None].astype(np.float32))
        self._changed[changed] = False
        return self._means[: len(self)].copy()

    def distances(self, hashes: np.ndarray) -> np.ndarray:
        """Hamming distances of `hashes` [N, words] uint64 to every cluster, unsigned integers [N, C]."""
        return hamming(hashes, self.hashes)

    def add(self, key_hash: int, token: int | None = None, key: np.ndarray | None = None, first: int = 0) -> Joined:
        """Put one token into the table: its hash of `n_hp` bits, its index (by default the next), its key [key_dim].

        first : the first cluster that the token looks at; it joins none before

        Raises `ValueError` for a hash of more than `n_hp` bits.
        """
        words = to_words([key_hash], self.params.n_hp)
        key = None if key is None else flush(key)
        distance, at = self._nearest(hamming(words, self.hashes[first:])[0])
        return self._place(words[0], distance, first + at, token, key)

    def add_frame(
        self,
        hashes: np.ndarray | Iterable[int],
        tokens: Iterable[int] | None = None,
        keys: np.ndarray | None = None,
    ) -> list[Joined]:
        """Put the N tokens of a frame into the table, in order; the result equals N calls of `add`.

        `hashes` are words [N, words] uint64 or integers, `tokens` the token indices (by default the next ones), `keys`
        [N, key_dim] BF16. Raises `ValueError` for a hash of more than `n_hp` bits.
        """
        words = hashes if isinstance(hashes, np.ndarray) and hashes.ndim == 2 else to_words(hashes, self.params.n_hp)
        n = len(words)
        token_of: list[int | None] = [None] * n if tokens is None else list(tokens)
        keys = None if keys is None else flush(keys)
        if self.params.hash_policy != "first" or self.params.join == "first":
            key_of = [None] * n if keys is None else keys
            return [self.add(to_int(w), t, k) for w, t, k in zip(words, token_of, key_of, strict=True)]
        # Hashes of clusters do not change here, so one array operation gives all distances to the old clusters.
        old, p = len(self), self.params
        distance = np.full(n, p.n_hp + 1)
        at = np.zeros(n, np.int64)
        if old:
            before = self.distances(words)
            at = before.argmin(axis=1)
            distance = before[np.arange(n), at].astype(np.int64)
        opened: dict[int, int] = {}  # token of the frame -> cluster that it opens
        first = 0
        while old + len(opened) < p.max_clusters and (lone := distance[first:] >= p.th_hd).any():
            first += int(lone.argmax())
            opened[first] = old + len(opened)
            near = hamming(words[first:], words[first : first + 1])[:, 0]
            closer = near < distance[first:]  # strictly, because a tie goes to the older cluster of lower index
            closer[0] = True
            at[first:][closer], distance[first:][closer] = opened[first], near[closer]
            first += 1
        return self._put(words, at.tolist(), distance.tolist(), set(opened), token_of, keys)

    def load(self, hashes: np.ndarray, counts: np.ndarray) -> None:
        """Let this empty table have C clusters with `hashes` [C, words] and `counts` [C], and without members."""
        n = len(hashes)
        self._allocate(max(n, len(self._counts)))
        self._hashes[:n], self._counts[:n] = hashes, counts
        self.members = [[] for _ in range(n)]

    def _put(
        self,
        words: np.ndarray,
        clusters: list[int],
        distances: list[int],
        opening: set[int],
        tokens: list[int | None],
        keys: np.ndarray | None,
    ) -> list[Joined]:
        """Enter a frame's tokens into the clusters found for them; tokens in `opening` open theirs."""
        while len(self) + len(opening) > len(self._counts):
            self._allocate(min(2 * len(self._counts), self.params.max_clusters))
        numbers = None if keys is None else keys.astype(np.float32)
        joined = []
        for i, c in enumerate(clusters):
            if i in opening:
                self.members.append([])
                self._hashes[c] = words[i]
            key = None if numbers is None else numbers[i]
            joined.append(self._count(c, i in opening, distances[i], tokens[i], key))
        return joined

    def _place(self, words: np.ndarray, distance: int, c: int, token: int | None, key: np.ndarray | None) -> Joined:
        """Enter one token: into cluster `c` at `distance` if the rule allows it, else into a new cluster."""
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
            assert self._rehash is not None  # checked by the constructor
            self._hashes[c] = to_words([self._rehash(self.key_cluster()[c])], self.params.n_hp)[0]
        return joined

    def _count(self, c: int, is_new: bool, distance: int, token: int | None, key: np.ndarray | None) -> Joined:
        """Add a token to the members, the count and the sum of cluster `c`."""
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
        """Distance and index of the candidate to join: the nearest cluster, or by `join` the first that is near."""
        if len(distances) == 0:
            return 0, 0
        near = distances < self.params.th_hd
        at = int(near.argmax() if self.params.join == "first" and near.any() else distances.argmin())
        return int(distances[at]), at

    def _allocate(self, capacity: int) -> None:
        """Grow every column to `capacity` clusters."""
        n = len(self)
        for name in ("_hashes", "_counts", "_sums", "_means", "_changed", "_ones"):
            column = getattr(self, name)
            grown = np.zeros((capacity, *column.shape[1:]), column.dtype)
            grown[:n] = column[:n]
            setattr(self, name, grown)


def hamming(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Hamming distances between hash words `a` [N, words] and `b` [C, words], both uint64; unsigned integers [N, C]."""
    d = np.bitwise_count(a[:, None, 0] ^ b[None, :, 0])
    for w in range(1, a.shape[1]):
        d = d.astype(np.uint16) + np.bitwise_count(a[:, None, w] ^ b[None, :, w])
    return d
