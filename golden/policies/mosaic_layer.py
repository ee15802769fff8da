"""One layer of Mosaic: its semantic clusters, their members and their representatives, in floating point.

`golden.policies.mosaic_hardware` has the same layer in the arithmetic of the hardware.
"""

import numpy as np

from openvrex.golden.policies.history import Growing
from openvrex.golden.policies.light_attention import bf16
from openvrex.golden.policies.mosaic_clusters import Clusters, kmeans, unit


class Layer:
    """A layer's semantic clusters, their members, and the sums from which representatives follow.

    An entry is a token's keys of all KV heads end to end, D wide. Entries are clustered by direction.

    cluster : int64 [n], cluster of every token, -1 for none
    buffered : bool [n], whether a token waits beside an invalid cluster for its split
    keys, values : copies of what the store holds; they are read only while the entries are on the device
    """

    def __init__(self, width: int, kv_heads: int):
        self.kv_heads = kv_heads
        self.clusters = Clusters(width)
        self.cluster = np.zeros(0, np.int64)
        self.buffered = np.zeros(0, bool)
        self.keys, self.values = Growing(1, width), Growing(1, width)
        self.sums = np.zeros((0, 2, width), np.float32)  # sums of keys and of values, by cluster
        self.pending: list[np.ndarray] = []  # tokens of each frame that waits for its clusters
        self.index_bytes = 0
        self.row_bytes = 6 * width + 8  # of a cluster: BF16 centroid, mean key and value, variance and size
        self.key_bytes = 2 * width  # of a visual cluster: its mean key

    def visual_clusters(self, width: int) -> Clusters:
        """No visual clusters yet, of embeddings of so many numbers, in this layer's arithmetic."""
        return Clusters(width)

    def members(self, c: int) -> np.ndarray:
        """Tokens of cluster c, the buffered ones included."""
        return np.flatnonzero(self.cluster == c)

    def entries(self, tokens: np.ndarray) -> np.ndarray:
        """Keys and values of tokens, [n, 2, D]."""
        return np.stack([self.keys.data[0, tokens], self.values.data[0, tokens]], axis=1)

    def directions(self, tokens: np.ndarray) -> np.ndarray:
        """Unit keys of tokens, [n, D]."""
        return unit(self.keys.data[0, tokens])

    def direction(self, x: np.ndarray) -> np.ndarray:
        """The direction [D] of the mean of vectors x [T, D]."""
        return unit(x.mean(axis=0))

    def query(self, q: np.ndarray) -> np.ndarray:
        """The mean [D] of queries q [rows, kv_heads, group, head_size] over rows and query heads of a KV head."""
        return q.mean(axis=(0, 2)).ravel()

    def kmeans(self, x: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, int]:
        """Cluster directions x [n, D] into up to k clusters: labels without gaps, and the iterations that ran."""
        return kmeans(x, k, seed)

    def absorbed(self, token: int, c: int) -> None:
        """Note that the statistics of cluster c have taken a token."""
        self.cluster[token] = c
        self.sums[c] += self.entries(np.array([token]))[0]

    def visit(self, tokens: np.ndarray, partition: np.ndarray) -> None:
        """Note that tokens [T] belong to the visual clusters `partition` [T]. Called before they are clustered."""

    def means(self, at: np.ndarray) -> np.ndarray:
        """Mean keys and values of clusters `at`, BF16 values [n, 2, D]."""
        return bf16(self.sums[at] / self.clusters.size[at, None, None])

    def order(self, host: np.ndarray) -> np.ndarray:
        """Clusters of the tokens `host`, in temporal order: by their mean token."""
        at, inverse = np.unique(self.cluster[host], return_inverse=True)
        time = np.bincount(inverse, weights=host) / np.bincount(inverse)
        return at[np.argsort(time, kind="stable")]

    def visual_choice(self, query: np.ndarray, held: np.ndarray, enough: float) -> np.ndarray:
        """The best visual clusters that hold `enough` of the tokens `held` [groups] by each; bool."""
        clusters, groups = self.clusters, len(held)
        sums = np.zeros((groups, self.sums.shape[2]), np.float32)
        np.add.at(sums, clusters.partition, self.sums[:, 0])
        total = np.bincount(clusters.partition, weights=clusters.size, minlength=groups)
        return best(sums @ query / np.maximum(total, 1), held, enough)

    def choice(self, query: np.ndarray, at: np.ndarray, weight: np.ndarray, enough: int) -> np.ndarray:
        """The best of clusters `at` that hold `enough` of the tokens `weight` [len(at)] by each; bool."""
        return best(self.sums[at, 0] @ query / self.clusters.size[at], weight, enough)

    def place(self, tokens: np.ndarray, c: int) -> None:
        """Make tokens the members of cluster c, which has no others."""
        self.cluster[tokens] = c
        self.buffered[tokens] = False
        total = self.entries(tokens).sum(axis=0)[None]
        self.sums = np.concatenate([self.sums, total]) if c == len(self.sums) else self.sums
        self.sums[c] = total

    def create(self, tokens: np.ndarray, partition: int, k: int, seed: int) -> int:
        """Cluster tokens by K-means into up to k new clusters of a partition; returns the MACs."""
        x = self.directions(tokens)
        labels, ran = self.kmeans(x, k, seed)
        for label in range(labels.max() + 1):
            self.place(tokens[labels == label], self.clusters.add(x[labels == label], partition))
        return ran * x.size * k

    def single(self, tokens: np.ndarray) -> None:
        """Make each token a cluster of its own."""
        for token, x in zip(tokens[:, None], self.directions(tokens), strict=True):
            self.place(token, self.clusters.add(x[None]))

    def split(self, tokens: np.ndarray, c: int, seed: int) -> tuple[list[int], int]:
        """Split cluster c, which has these tokens, into two (Algorithm 1, lines 4 to 6): changed clusters, and MACs."""
        x = self.directions(tokens)
        labels, ran = self.kmeans(x, 2, seed)
        self.clusters.put(c, x[labels == 0])
        self.place(tokens[labels == 0], c)
        changed = [c]
        if labels.any():
            changed.append(self.clusters.add(x[labels == 1], int(self.clusters.partition[c])))
            self.place(tokens[labels == 1], changed[1])
        return changed, 2 * ran * x.size


def best(score: np.ndarray, weight: np.ndarray, enough: float) -> np.ndarray:
    """The highest scores with a weight above 0 whose weights together first reach `enough`, bool."""
    order = np.argsort(-score, kind="stable")
    order = order[weight[order] > 0]
    before = np.cumsum(weight[order]) - weight[order]
    out = np.zeros(len(score), bool)
    out[order[before < enough]] = True
    return out
