"""WiCSum thresholding: weighted cumulative sum, V-Rex section IV-C, Equations 1 to 3, in exact integers.

A row holds the score codes of C clusters (`ScoreFormat`) and their token counts. A cluster weighs value(code) x count.

- Equation 1: Sum = sum of the weights. Equation 2: Th = floor(Sum x ratio_q16 / 2^16).
- Equation 3: clusters by score descending, then index ascending; the shortest prefix whose weight Acc exceeds Th.
  Acc is an integer, so the floor changes nothing. If no prefix exceeds Th (Sum = 0, or ratio 1), all are selected.
- Selection "buckets" (section V-B, Figure 11): `n_buckets` of equal width in the code between the smallest and the
  largest of the row, whole buckets from the top until Acc > Th.

No sum is rounded, whatever the format.
"""

from dataclasses import dataclass

import numpy as np

from golden.params import ParamError, ReSVParams, ScoreFormat, check


@dataclass(frozen=True)
class Selection:
    """Result of one row, or of R rows side by side (then every scalar below has shape [R])."""

    mask: np.ndarray  # [C] or [R, C] bool: cluster is selected
    clusters: np.ndarray  # int64: how many are
    tokens: np.ndarray  # int64: sum of their counts
    total: np.ndarray  # int64 (object beyond 63 bits): Sum, Equation 1
    threshold: np.ndarray  # the same: Th, Equation 2


def encode(x: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Codes of the format's values nearest to `x` (float64, at least 0), ties to even, at most the top code, int64."""
    exponent = np.frexp(x)[1].astype(np.int64)  # x < 2^exponent
    shift = np.clip(exponent - fmt.significand_bits, 0, fmt.max_shift)
    significand = np.rint(np.ldexp(x, -shift)).astype(np.int64)
    return np.minimum((shift << fmt.man_bits) + significand, (1 << fmt.bits) - 1)  # a carry moves to the next shift


def value(codes: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Exact integer value of score codes, any shape, int64: `m` for e = 0, `(2^man_bits + m) << (e - 1)` otherwise."""
    codes = np.asarray(codes, dtype=np.int64)
    m = codes & ((1 << fmt.man_bits) - 1)
    e = codes >> fmt.man_bits
    if not fmt.exp_bits:
        return codes
    return np.where(e == 0, m, (m + (1 << fmt.man_bits)) << np.maximum(e - 1, 0))


def threshold(total: np.ndarray, ratio_q16: int) -> np.ndarray:
    """floor(total x ratio_q16 / 2^16) of integers, int64 (any below 2^63, without overflow) or object."""
    total = np.asarray(total)
    return (total >> 16) * ratio_q16 + (((total & 0xFFFF) * ratio_q16) >> 16)


def bucket(codes: np.ndarray, n_buckets: int) -> np.ndarray:
    """Bucket of each code of rows [..., C], 0 the highest: `((max - c) * n_buckets) // (max - min + 1)`."""
    codes = np.asarray(codes, dtype=np.int64)
    top, low = codes.max(-1, keepdims=True), codes.min(-1, keepdims=True)
    return (top - codes) * n_buckets // (top - low + 1)


def select(codes: np.ndarray, counts: np.ndarray, params: ReSVParams) -> Selection:
    """Selection of one row: `codes` [C] and `counts` [C] integers in the ranges that `params` gives; C may be 0."""
    codes = np.asarray(codes)
    check(codes.ndim == 1, "codes.shape", codes.shape, "must be [C]; select_rows takes [R, C]")
    s = select_rows(codes[None], counts, params)
    return Selection(s.mask[0], *(int(getattr(s, n)[0]) for n in ("clusters", "tokens", "total", "threshold")))


def select_rows(codes: np.ndarray, counts: np.ndarray, params: ReSVParams) -> Selection:
    """Selection of R rows that share a count table: `codes` [R, C], `counts` [C].

    Raises `ParamError` for a shape, a code or a count out of range.
    """
    codes, counts = np.asarray(codes), np.asarray(counts)
    check(codes.ndim == 2, "codes.shape", codes.shape, "must be [R, C]")
    check(counts.shape == codes.shape[1:], "counts.shape", counts.shape, f"must be [{codes.shape[1]}], as codes")
    _check_range("codes", codes, params.score.bits)
    _check_range("counts", counts, params.count_bits)
    bits = params.score.value_bits + params.count_bits + codes.shape[1].bit_length()
    codes, counts = codes.astype(np.int64), counts.astype(np.int64)
    rows, clusters = codes.shape
    if clusters == 0:
        zero = np.zeros(rows, np.int64)
        return Selection(np.zeros((rows, 0), bool), zero, zero, zero, zero)
    # Sums beyond 63 bits (wide formats alone) are made of Python integers.
    exact = np.int64 if bits <= 63 else object
    weight = value(codes, params.score).astype(exact) * counts.astype(exact)
    total = weight.sum(1)
    th = threshold(total, params.ratio_q16)
    # A stable sort of the keys: equal keys stay in index order.
    key = -codes if params.selection == "exact" else bucket(codes, params.n_buckets)
    order = np.argsort(key, axis=1, kind="stable")
    acc = np.take_along_axis(weight, order, 1).cumsum(1)
    over = (acc > th[:, None]).astype(bool)
    last = np.where(over.any(1), over.argmax(1), clusters - 1)
    if params.selection == "exact":
        mask = np.zeros((rows, clusters), bool)
        np.put_along_axis(mask, order, np.arange(clusters) <= last[:, None], 1)
    else:
        cut = np.take_along_axis(np.take_along_axis(key, order, 1), last[:, None], 1)
        mask = key <= cut
    n = mask.sum(1)
    return Selection(mask, n, mask @ counts, total, th)


def union(mask: np.ndarray) -> np.ndarray:
    """Cluster set of a query block: OR over the rows of `mask` [R, C], shape [C] (section IV-C)."""
    return np.asarray(mask, bool).any(0)


def _check_range(name: str, array: np.ndarray, bits: int) -> None:
    if not np.issubdtype(array.dtype, np.integer):
        raise ParamError(f"{name}: dtype {array.dtype} must be an integer type")
    bad = (array < 0) | (array >= 1 << bits)
    if bad.any():
        raise ParamError(f"{name}: {array[bad][0]} does not fit in {bits} unsigned bits")
