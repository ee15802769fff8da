"""Mosaic's clustering: cosine K-means, online assignment with running statistics, and a threshold that grows with size.

Sources: `mosaic.txt` V-B, V-C, VI-A. The text has lost the formulas of Equations 1 to 5, so they are derived here. A
cluster has unit vectors x_1 ... x_n, centroid r and variance s; x is a new vector:

    (1)  r  = 1/n sum x_i
    (2)  s  = 1/n sum |x_i - r|^2
    (3)  r' = 1/(n+1) (n r + x) = r + (x - r) / (n + 1)
    (4)  s' = n/(n+1) (s + |x - r|^2 / (n + 1))
    (5)  t(n) = small + (large - small) (1 - exp(-n / rate))

Equation 4: sum |x_i - r'|^2 = n s + n |r - r'|^2, because the x_i - r sum to 0, and r - r' = -(x - r) / (n + 1). The
new vector adds |x - r'|^2 = n^2 / (n + 1)^2 |x - r|^2. Together this is n s + (n + n^2) / (n + 1)^2 |x - r|^2, that is
n s + n / (n + 1) |x - r|^2. Division by n + 1 gives (4). For unit vectors, (2) is 1 - |r|^2, a check that needs no
members.

Equation 5: the text names the size, a stricter threshold for small clusters, a looser one for large clusters and a
transition rate, and says that the threshold relaxes as the cluster grows. So it rises from the one to the other and
saturates; the exponential does this with as many constants. (The text's "small clusters should not be split
aggressively" would need a falling threshold and contradicts the rest of its paragraph.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, check, parameter, required


@dataclass(frozen=True)
class Threshold(Parameters):
    """The variance that a cluster may have, by its number of members (Equation 5)."""

    small: float = required("variance allowed in a small cluster, the stricter limit", low=0)
    large: float = required("variance allowed in a large cluster")
    rate: float = parameter(16.0, "members at which the threshold has risen 63 % of the way from small to large")

    def __post_init__(self):
        super().__post_init__()
        check(self.large >= self.small, "large", self.large, f"must be at least small = {self.small}")
        check(self.rate > 0, "rate", self.rate, "must be above 0")

    def __call__(self, size: int) -> float:
        """The threshold of a cluster of `size` members."""
        return self.small + (self.large - self.small) * (1 - np.exp(-size / self.rate))


def unit(x: np.ndarray) -> np.ndarray:
    """Vectors [..., D] scaled to length 1, FP32. A zero vector stays zero."""
    x = np.asarray(x, np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-30))


def kmeans(x: np.ndarray, k: int, seed: int, iterations: int = 10) -> tuple[np.ndarray, int]:
    """Cosine K-means of unit vectors x [n, D]: labels, int64 [n] from 0 without gaps, and the iterations that ran.

    The first centres are drawn with probability 1 - cosine to the nearest centre so far (K-means++). The generator is
    its own, so the result depends only on the arguments. A centre is the direction of its members' mean. K-means ends
    when no label changes. There may be fewer than k clusters, as there are never more than distinct vectors.
    """
    rng = np.random.default_rng(seed)
    n = len(x)
    centres = x[[rng.integers(n)]]
    far = 1 - x @ centres[0]
    while len(centres) < min(k, n):
        weight = np.where(far > 1e-6, far, 0).astype(np.float64)  # below that it is rounding: the vectors are equal
        if not weight.any():
            break
        centres = np.concatenate([centres, x[[rng.choice(n, p=weight / weight.sum())]]])
        far = np.minimum(far, 1 - x @ centres[-1])
    ran, labels = 0, np.full(n, -1)
    while ran < iterations:
        ran += 1
        new = (x @ centres.T).argmax(axis=1)
        if np.array_equal(new, labels):
            break
        labels = new
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, x)
        centres = np.where((np.bincount(labels, minlength=len(centres)) > 0)[:, None], unit(sums), centres)
    return np.unique(labels, return_inverse=True)[1], ran


Absorbed = Callable[[int, int], None]  # told of a vector's number and the cluster that has taken it
Invalid = Callable[[int, int], list[int]]  # told of a vector that a cluster cannot take; gives the clusters it changed


class Clusters:
    """Statistics of clusters of unit vectors, kept without the members. Each cluster belongs to a partition.

    mean, variance : FP32 [C, D], the centroids, and FP32 [C]
    size, partition : int64 [C]
    lazy : bool [C], whether a cluster is flagged for a split
    """

    def __init__(self, width: int):
        self.mean = np.zeros((0, width), np.float32)
        self.variance = np.zeros(0, np.float32)
        self.size = np.zeros(0, np.int64)
        self.partition = np.zeros(0, np.int64)
        self.lazy = np.zeros(0, bool)

    def __len__(self) -> int:
        return len(self.size)

    def open(self, partition: int) -> int:
        """Add a cluster without members; returns its number."""
        self.mean = np.concatenate([self.mean, np.zeros_like(self.mean, shape=(1, self.mean.shape[1]))])
        self.variance = np.append(self.variance, np.float32(0))
        self.size = np.append(self.size, 0)
        self.partition = np.append(self.partition, partition)
        self.lazy = np.append(self.lazy, False)
        return len(self) - 1

    def add(self, members: np.ndarray, partition: int = 0) -> int:
        """Add a cluster with the unit vectors `members` [n, D]; returns its number."""
        c = self.open(partition)
        self.put(c, members)
        return c

    def put(self, c: int, members: np.ndarray) -> None:
        """Set the statistics of cluster c from its members [n, D] (Equations 1 and 2), and clear its lazy flag."""
        self.mean[c] = members.mean(axis=0, dtype=np.float64)
        self.variance[c] = ((members - self.mean[c]) ** 2).sum(axis=1, dtype=np.float64).mean()
        self.size[c] = len(members)
        self.lazy[c] = False

    def grown(self, c: int, x: np.ndarray, close: np.float32 | None = None) -> float:
        """Variance that cluster c would have with x [D] in it (Equation 4). `close`, their similarity, may help."""
        n, d = int(self.size[c]), x - self.mean[c]
        return n / (n + 1) * (float(self.variance[c]) + float(d @ d) / (n + 1))

    def absorb(self, c: int, x: np.ndarray, close: np.float32 | None = None) -> None:
        """Take x [D] into cluster c (Equations 3 and 4). `close` is their similarity."""
        self.variance[c] = self.grown(c, x)
        self.mean[c] += (x - self.mean[c]) / np.float32(self.size[c] + 1)
        self.size[c] += 1

    def similarity(self, x: np.ndarray, which: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Cosine of unit vectors x [T, D] and centroids, [T, C]."""
        return x @ unit(self.mean[which]).T

    def limit(self, threshold: Threshold, size: int) -> float:
        """The threshold of a cluster of `size` members."""
        return threshold(size)

    def candidates(self, x: np.ndarray, partition: np.ndarray) -> np.ndarray:
        """Similarities [T, C] of vectors x [T, D] and centroids; those of other partitions [T] are not looked at."""
        return self.similarity(x)

    def assign(
        self, x: np.ndarray, partition: np.ndarray, threshold: Threshold, absorbed: Absorbed, invalid: Invalid
    ) -> None:
        """Assign unit vectors x [T, D], which belong to partitions [T], greedily and in order.

        absorbed : called as absorbed(i, c) after cluster c has taken vector i
        invalid : called as invalid(i, c) where vector i would break the threshold of cluster c; it splits the cluster
            or defers that, and returns the clusters that it changed

        Each vector goes to the most similar centroid of its partition. The similarities of all vectors and centroids
        are one matrix product; then only the columns of changed centroids are computed anew. So many frames can be
        given at once, with the same result as one by one.
        """
        close = self.candidates(x, partition)
        for i, own in enumerate(partition.tolist()):
            c = int(np.where(self.partition == own, close[i], -np.inf).argmax())
            if self.grown(c, x[i], close[i, c]) <= self.limit(threshold, int(self.size[c]) + 1):
                self.absorb(c, x[i], close[i, c])
                absorbed(i, c)
                changed = [c]
            else:
                changed = invalid(i, c)
            close = np.pad(close, ((0, 0), (0, len(self) - close.shape[1])))
            close[i + 1 :, changed] = self.similarity(x[i + 1 :], np.array(changed, np.int64))
