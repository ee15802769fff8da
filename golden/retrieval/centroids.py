"""Clusters of vectors by their centroids, bit for bit as the DPE and the VPE compute them.

These functions define every decision that Mosaic's hardware makes about a cluster: which one is nearest, how its mean
and its variance move, whether it must be split, and into which halves. FMA is `golden.arithmetic.vector.fma`, which
rounds once to FP32; Sum is the VPE's row sum; p is the DPE's product (`golden.arithmetic.dot`). BF16(...) rounds once
more. Vectors have D numbers. `fmt` gives the products of a DPE chunk, which is also the lanes of a VPE word.

    direction   s = Sum(k k) + 2^-60,  y = 1 / sqrt(BF16(s)),  r = FMA(FMA(-(s y), y, 1), y / 2, y),  x = BF16(r k)
    norm        q = Sum(x x)
    score       p(x, m) - q_m / 2            the nearest centroid m has the largest; of equal ones the lowest index
    distance    d = max(q_x - 2 score, 0)    |x - m|^2, from the winning score alone
    share       u = 1 / BF16(n + 1)          BF16; n is the cluster's size
    mean        m' = BF16(FMA(x - m, u, m))                                    Equation 3
    variance    t = FMA(d, u, v),  v' = FMA(-t, u, t)                          Equation 4
    threshold   T = FMA(-exp(BF16(n w)), BF16(large - small), BF16(large)),  w = BF16(-1 / rate)     Equation 5
    split       if v' > T for the size n + 1; a comparison of FP32 numbers

A cluster that is made at once, with members x_1 to x_n in the order of their tokens:

    sum         S_i = S_(i-1) + x_i          FP32, rounded after each vector
    inverse     g = 1 / BF16(n),  f = FMA(FMA(-n, g, 1), g, g),  h = BF16(f),  l = BF16(f - h)
    mean        m = BF16(FMA(S, h, S l))                                       Equation 1
    variance    v = FMA(V, h, V l),  V the sum of the d_i                      Equation 2

K-means (`k_means`) uses these scores and means, fixed seeds and a fixed number of rounds. It draws no random numbers.

No result is NaN or infinite while |k|^2 < 2^126 and counts are below 2^24: q is then finite, and all other numbers stay
below 4 in magnitude, but for means of vectors that are no directions, which stay within their members' range.

Source: Mosaic V-B, VI-A, Equations 1 to 5 (`golden.policies.mosaic_clusters`); the roundings are this project's own.
"""

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.elementwise import exp, reciprocal, rsqrt
from openvrex.golden.arithmetic.numerics import flush, to_bf16, to_fp32
from openvrex.golden.arithmetic.vector import flush_fp32, fma
from openvrex.golden.function_params import DotFormat, check

ROUNDS = 4  # of K-means
EPSILON = np.float32(2.0**-60)  # added to a squared length, so that a zero vector has the direction zero
EQUAL = np.float32(2.0**-12)  # above the rounding of the distance between two equal directions
_NONE = np.float32(-0.0)  # the addend of a product alone


def wide(x: np.ndarray) -> np.ndarray:
    """BF16 numbers as FP32, subnormals flushed."""
    return flush(x).astype(np.float32)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b, FP32: `fma` with a factor of 1, for finite numbers. An exact sum of zero is +0 unless both are -0."""
    return flush_fp32(flush_fp32(a) + flush_fp32(b))


def row_sums(x: np.ndarray, lanes: int) -> np.ndarray:
    """The VPE's row sum (`golden.arithmetic.vector.Sum`) of each row of x [R, D], finite FP32; FP32 [R]."""
    rows, length = x.shape
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    bits = np.pad(bits, ((0, 0), (0, -length % lanes))).reshape(rows, -1, lanes)
    exponent = bits >> 23 & 255
    total, block = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for word, e in zip(bits.swapaxes(0, 1), exponent.swapaxes(0, 1), strict=True):
        top = np.maximum(block, e.max(axis=1) >> 3)
        terms = (word & 0x7FFFFF | 1 << 23) << (e & 7) >> np.minimum(8 * (top[:, None] - (e >> 3)), 63)
        signed = np.where(e > 0, np.where(word >> 31 & 1, -terms, terms), 0)
        total = (total >> np.minimum(8 * (top - block), 63)) + signed.sum(axis=1)
        block = top
    return to_fp32(np.ldexp(total.astype(np.float64), 8 * block - 150)) + np.float32(0)


def norms(x: np.ndarray, fmt: DotFormat) -> np.ndarray:
    """Squared lengths q of the rows of x [R, D] BF16; FP32 [R]."""
    return row_sums(fma(wide(x), x, np.full(x.shape, _NONE)), fmt.n)


def directions(k: np.ndarray, fmt: DotFormat) -> np.ndarray:
    """Rows of k [R, D] BF16 scaled to length 1, BF16. A zero row stays zero."""
    s = add(norms(k, fmt), np.full(len(k), EPSILON))
    y = rsqrt(to_bf16(s))
    half = to_bf16(wide(y) / 2)
    left = fma(-_times(s, y), y, np.ones(len(k), np.float32))
    r = fma(left, half, wide(y))
    return to_bf16(_times(np.broadcast_to(r[:, None], k.shape), k))


def scores(x: np.ndarray, m: np.ndarray, q_m: np.ndarray, fmt: DotFormat) -> np.ndarray:
    """Scores of x [T, D] against centroids m [C, D], both BF16, whose norms are q_m [C] FP32; FP32 [T, C]."""
    return add(dot(x, m, fmt), -np.broadcast_to(q_m / 2, (len(x), len(m))))


def nearest(score: np.ndarray) -> np.ndarray:
    """Index of the largest of each row of scores [T, C], int64 [T]; the lowest of equal ones."""
    return score.argmax(axis=1)


def distances(q_x: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Squared distances of vectors with norms q_x from the centroids that gave them these scores; FP32, same shape."""
    return np.maximum(fma(score, _bf16(-2.0, score.shape), q_x), np.float32(0))


def grown(variance: np.ndarray, d: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Variances of clusters of these sizes that take a vector at squared distance d (Equation 4); FP32 [C] each."""
    u = _share(size)
    t = fma(d, u, variance)
    return fma(-t, u, t)


def moved(m: np.ndarray, x: np.ndarray, size: int) -> np.ndarray:
    """The mean m [D] BF16 of `size` vectors after it took x [D] BF16 (Equation 3)."""
    u = np.broadcast_to(_share(np.array([size])), m.shape)
    return to_bf16(fma(add(wide(x), -wide(m)), u, wide(m)))


def threshold(size: np.ndarray, small: float, large: float, rate: float) -> np.ndarray:
    """Variance that clusters of these sizes may have (Equation 5), FP32 of the same shape."""
    size = np.asarray(size)
    fade = exp(to_bf16(_times(_float(size), _bf16(-1 / rate, size.shape))))
    top = wide(_bf16(large, size.shape))
    return fma(-wide(fade), _bf16(large - small, size.shape), top)


def total(x: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """The sum of the rows of x [R, D] BF16 in their order, from `start` [D] FP32 on (zero if not given); FP32 [D]."""
    s = np.zeros(x.shape[1], np.float32) if start is None else start
    for one in wide(x):
        s = add(s, one)
    return s


def divided(s: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """s / n for FP32 numbers s and counts n that fit their shape, with a relative error below 2^-13; FP32."""
    count = np.broadcast_to(_float(n), s.shape)
    g = reciprocal(to_bf16(count))
    f = fma(fma(-count, g, np.ones(s.shape, np.float32)), g, wide(g))
    h = to_bf16(f)
    low = to_bf16(add(f, -wide(h)))
    return fma(s, h, _times(s, low))


def mean(x: np.ndarray) -> np.ndarray:
    """The mean of the rows of x [n, D] BF16 (Equation 1), BF16 [D]. Of a single row it is the row."""
    return to_bf16(divided(total(x), len(x)))


def variance(x: np.ndarray, m: np.ndarray, fmt: DotFormat) -> np.float32:
    """The mean squared distance of the rows of x [n, D] from m [D] (Equation 2)."""
    score = scores(x, m[None], norms(m[None], fmt), fmt)[:, 0]
    s = np.zeros(1, np.float32)
    for d in distances(norms(x, fmt), score):
        s = add(s, d)
    return np.float32(divided(s, len(x))[0])


def k_means(x: np.ndarray, k: int, fmt: DotFormat, rounds: int = ROUNDS) -> tuple[np.ndarray, int]:
    """K-means of the rows of x [n, D] BF16: labels, int64 [n] from 0 without gaps, and the rounds that ran.

    Seeds: the first is the row farthest from the mean of all. Each further one is the row whose nearest seed is
    farthest; of equal ones the first. Seeding ends early when no row is farther than `EQUAL` from its nearest seed.

    Round: each row takes the nearest centre, then each centre with rows becomes their mean. A round that changes no
    label ends it, as all further ones would change nothing. Otherwise `rounds` rounds run.
    """
    check(len(x) > 0, "x", x.shape, "K-means needs at least one vector")
    q = norms(x, fmt)

    def far(m: np.ndarray, q_m: np.ndarray) -> np.ndarray:
        return distances(q, scores(x, m[None], q_m[None], fmt)[:, 0])

    middle = mean(x)
    seeds = [int(far(middle, norms(middle[None], fmt)[0]).argmax())]
    left = far(x[seeds[0]], q[seeds[0]])
    while len(seeds) < min(k, len(x)):
        if left.max() <= EQUAL:
            break
        seeds.append(int(left.argmax()))
        left = np.minimum(left, far(x[seeds[-1]], q[seeds[-1]]))
    centres = x[seeds]
    labels, ran = np.full(len(x), -1), 0
    while ran < rounds:
        ran += 1
        new = nearest(scores(x, centres, norms(centres, fmt), fmt))
        if np.array_equal(new, labels):
            break
        labels = new
        for c in np.unique(labels):
            centres[c] = mean(x[labels == c])
    return np.unique(labels, return_inverse=True)[1], ran


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return fma(a, b, np.full(np.shape(a), _NONE))


def _bf16(x: float, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(to_bf16(np.array(x)), shape)


def _float(n: int | np.ndarray) -> np.ndarray:
    """Counts below 2^24 as FP32."""
    return np.asarray(n).astype(np.float32)


def _share(size: np.ndarray) -> np.ndarray:
    """1 / (size + 1), BF16."""
    return reciprocal(to_bf16(_float(np.asarray(size) + 1)))
