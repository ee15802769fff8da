"""Mosaic's clusters and layers with every decision as the hardware makes it, bit for bit.

`golden.retrieval.centroids` defines the numbers: BF16 products on the DPE, FP32 sums and scalars on the VPE. Retrieval
ranks the score codes of the VPE and takes the fewest clusters that hold a budget of tokens, as the WTU would
(`golden.retrieval.wicsum`). This module keeps the state that they work on.

What differs from floating point, besides rounding: the nearest centroid is nearest by distance instead of by angle,
K-means has fixed seeds and rounds, clusters rank by score codes, and representatives lie in the order of their first
token instead of their mean token.
"""

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import DotFormat, ReSVParams
from openvrex.golden.policies.mosaic_clusters import Clusters, Threshold
from openvrex.golden.policies.mosaic_layer import Layer
from openvrex.golden.retrieval import centroids
from openvrex.golden.retrieval.scores import codes
from openvrex.golden.retrieval.wicsum import select

FMT = DotFormat()  # of the paper's core: 64 products a chunk, 64 lanes
WTU = ReSVParams(score_map="vpe", count_bits=24)


class HardwareClusters(Clusters):
    """`Clusters` of BF16 directions. Similarity is the score that the nearest centroid has the largest of.

    mean : BF16 [C, D] · norm : FP32 [C], squared lengths of the means
    fmt : of the products
    """

    def __init__(self, width: int, fmt: DotFormat = FMT):
        super().__init__(width)
        self.fmt = fmt
        self.mean = np.zeros((0, width), BF16)
        self.norm = np.zeros(0, np.float32)

    def open(self, partition: int) -> int:
        self.norm = np.append(self.norm, np.float32(0))
        return super().open(partition)

    def put(self, c: int, members: np.ndarray) -> None:
        self.mean[c] = centroids.mean(members)
        self.norm[c] = centroids.norms(self.mean[[c]], self.fmt)[0]
        self.variance[c] = centroids.variance(members, self.mean[c], self.fmt)
        self.size[c] = len(members)
        self.lazy[c] = False

    def grown(self, c: int, x: np.ndarray, close: np.float32 | None = None) -> float:
        assert close is not None  # `assign` has it from the choice of the cluster
        d = centroids.distances(centroids.norms(x[None], self.fmt), np.array([close], np.float32))
        return float(centroids.grown(self.variance[[c]], d, self.size[[c]])[0])

    def absorb(self, c: int, x: np.ndarray, close: np.float32 | None = None) -> None:
        self.variance[c] = self.grown(c, x, close)
        self.mean[c] = centroids.moved(self.mean[c], x, int(self.size[c]))
        self.norm[c] = centroids.norms(self.mean[[c]], self.fmt)[0]
        self.size[c] += 1

    def limit(self, threshold: Threshold, size: int) -> float:
        return float(centroids.threshold(np.array([size]), threshold.small, threshold.large, threshold.rate)[0])

    def similarity(self, x: np.ndarray, which: slice | np.ndarray = slice(None)) -> np.ndarray:
        return centroids.scores(x, self.mean[which], self.norm[which], self.fmt)

    def candidates(self, x: np.ndarray, partition: np.ndarray) -> np.ndarray:
        out = np.full((len(x), len(self)), -np.inf, np.float32)
        own = np.flatnonzero(np.isin(self.partition, partition))
        out[:, own] = self.similarity(x, own)
        return out


class SummedClusters(HardwareClusters):
    """`HardwareClusters` whose means are those of FP32 sums, of all members in their order.

    sums : FP32 [C, D]
    """

    def __init__(self, width: int):
        super().__init__(width)
        self.sums = np.zeros((0, width), np.float32)

    def open(self, partition: int) -> int:
        self.sums = np.pad(self.sums, ((0, 1), (0, 0)))
        return super().open(partition)

    def put(self, c: int, members: np.ndarray) -> None:
        super().put(c, members)
        self.sums[c] = centroids.total(members)

    def absorb(self, c: int, x: np.ndarray, close: np.float32 | None = None) -> None:
        super().absorb(c, x, close)
        self.sums[c] = centroids.total(x[None], self.sums[c])
        self.mean[c] = to_bf16(centroids.divided(self.sums[c], int(self.size[c])))
        self.norm[c] = centroids.norms(self.mean[[c]], FMT)[0]


class HardwareLayer(Layer):
    """`Layer` in the hardware's arithmetic. A mean moves with each member (Equation 3) and is kept in BF16 alone.

    pairs : BF16 [C, 2, D], mean keys and values of the clusters
    visual_sums, visual_sizes : FP32 [groups, D] and int64 [groups], sums of keys of the visual clusters, and their
        tokens; buffered tokens count
    fmt : of the products

    A row of the table has the BF16 centroid, mean key and mean value, then variance, squared length and size, 4 bytes
    each.
    """

    def __init__(self, width: int, kv_heads: int, fmt: DotFormat = FMT):
        super().__init__(width, kv_heads)
        self.fmt = fmt
        self.clusters = HardwareClusters(width, fmt)
        self.pairs = np.zeros((0, 2, width), BF16)
        self.visual_sums, self.visual_sizes = np.zeros((0, width), np.float32), np.zeros(0, np.int64)
        self.row_bytes = 6 * width + 12
        self.key_bytes = 4 * width + 4

    def visual_clusters(self, width: int) -> Clusters:
        return HardwareClusters(width, self.fmt)

    def directions(self, tokens: np.ndarray) -> np.ndarray:
        return centroids.directions(to_bf16(self.keys.data[0, tokens]), self.fmt)

    def direction(self, x: np.ndarray) -> np.ndarray:
        return centroids.directions(to_bf16(centroids.total(to_bf16(x)))[None], self.fmt)[0]

    def query(self, q: np.ndarray) -> np.ndarray:
        rows = q.swapaxes(1, 2).reshape(q.shape[0] * q.shape[2], -1)
        return centroids.mean(to_bf16(rows))

    def kmeans(self, x: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, int]:
        return centroids.k_means(x, k, self.fmt)

    def place(self, tokens: np.ndarray, c: int) -> None:
        self.cluster[tokens] = c
        self.buffered[tokens] = False
        if c == len(self.pairs):
            self.pairs = np.concatenate([self.pairs, np.zeros_like(self.pairs, shape=(1, 2, self.pairs.shape[2]))])
        entries = to_bf16(self.entries(tokens))
        self.pairs[c] = centroids.mean(entries.reshape(len(tokens), -1)).reshape(2, -1)

    def absorbed(self, token: int, c: int) -> None:
        self.cluster[token] = c
        entry = to_bf16(self.entries(np.array([token]))[0])
        self.pairs[c] = centroids.moved(self.pairs[c], entry, int(self.clusters.size[c]) - 1)

    def visit(self, tokens: np.ndarray, partition: np.ndarray) -> None:
        more = int(partition.max()) + 1 - len(self.visual_sizes)
        if more > 0:
            self.visual_sums = np.pad(self.visual_sums, ((0, more), (0, 0)))
            self.visual_sizes = np.pad(self.visual_sizes, (0, more))
        for group in np.unique(partition):
            own = tokens[partition == group]
            self.visual_sums[group] = centroids.total(to_bf16(self.keys.data[0, own]), self.visual_sums[group])
            self.visual_sizes[group] += len(own)

    def means(self, at: np.ndarray) -> np.ndarray:
        return self.pairs[at].astype(np.float32)

    def order(self, host: np.ndarray) -> np.ndarray:
        at, first = np.unique(self.cluster[host], return_index=True)
        return at[np.argsort(first)]

    def visual_choice(self, query: np.ndarray, held: np.ndarray, enough: float) -> np.ndarray:
        mean = to_bf16(centroids.divided(self.visual_sums, np.maximum(self.visual_sizes, 1)[:, None]))
        return self._best(query, mean, held, int(np.ceil(enough)))

    def choice(self, query: np.ndarray, at: np.ndarray, weight: np.ndarray, enough: int) -> np.ndarray:
        return self._best(query, self.pairs[at, 0], weight, enough)

    def _best(self, query: np.ndarray, means: np.ndarray, weight: np.ndarray, budget: int) -> np.ndarray:
        """The fewest clusters of the highest score codes that hold a budget of tokens; bool.

        Clusters without tokens on the host are not asked for: their score counts as minus infinity.
        """
        score = np.where(weight > 0, dot(query[None], means, self.fmt), -np.float32(np.inf))
        head_dim = len(query) * self.kv_heads  # scale: 1 / sqrt(head_size), and the mean over KV heads
        code = codes(score.astype(np.float32), WTU, head_dim)[0]
        return select(code, weight.astype(np.int64), WTU, budget).mask & (weight > 0)


class SummedLayer(HardwareLayer):
    """`HardwareLayer` whose table also holds FP32 sums of the members, which every mean is computed from.

    entry_sums : FP32 [C, 2 D], sums of keys and of values
    """

    def __init__(self, width: int, kv_heads: int):
        super().__init__(width, kv_heads)
        self.clusters = SummedClusters(width)
        self.entry_sums = np.zeros((0, 2 * width), np.float32)
        self.row_bytes = 18 * width + 12

    def visual_clusters(self, width: int) -> Clusters:
        return SummedClusters(width)

    def place(self, tokens: np.ndarray, c: int) -> None:
        super().place(tokens, c)
        self.entry_sums = np.pad(self.entry_sums, ((0, len(self.pairs) - len(self.entry_sums)), (0, 0)))
        self.entry_sums[c] = centroids.total(to_bf16(self.entries(tokens)).reshape(len(tokens), -1))

    def absorbed(self, token: int, c: int) -> None:
        self.cluster[token] = c
        entry = to_bf16(self.entries(np.array([token]))).reshape(1, -1)
        self.entry_sums[c] = centroids.total(entry, self.entry_sums[c])
        mean = centroids.divided(self.entry_sums[c], int(self.clusters.size[c]))
        self.pairs[c] = to_bf16(mean).reshape(2, -1)
