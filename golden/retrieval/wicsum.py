"""WiCSum thresholding: weighted cumulative sum, V-Rex section IV-C, Equations 1 to 3, in exact integers.

A row holds the score codes of C clusters (`ScoreFormat`) and their token counts. A cluster weighs value(code) x count.

- Equation 1: Sum = sum of the weights. Equation 2: Th = floor(Sum x ratio_q16 / 2^16).
- Equation 3: clusters by score descending, then index ascending; the shortest prefix whose weight Acc exceeds Th.
  Acc is an integer, so the floor changes nothing. If no prefix exceeds Th (Sum = 0, or ratio 1), all are selected.
- Selection "buckets" (section V-B, Figure 11): `n_buckets` of equal width in the code between the smallest and the
  largest of the row, whole buckets from the top until Acc > Th.

With score map "raw" a code is its value, and may be negative (`golden.retrieval.scores`): Acc then rises and falls,
the prefix ends where it first exceeds Th, and where Sum is not above zero that is mostly at once. Hardware does not
have it.

No sum is rounded, whatever the format.
"""

from dataclasses import dataclass

import numpy as np

from golden.arithmetic.score_codes import values
from golden.function_params import RAW_BITS, ParamError, ReSVParams, check


@dataclass(frozen=True)
class Selection:
    """Result of one row, or of R rows side by side (then every scalar below has shape [R])."""

    mask: np.ndarray  # [C] or [R, C] bool: cluster is selected
    clusters: np.ndarray  # int64: how many are
    tokens: np.ndarray  # int64: sum of their counts
    total: np.ndarray  # int64 (object beyond 63 bits): Sum, Equation 1
    threshold: np.ndarray  # the same: Th, Equation 2


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
    raw = params.score_map == "raw"
    if raw:
        check(bool((np.abs(codes) <= 1 << RAW_BITS).all()), "codes", "too large", f"raw: at most 2^{RAW_BITS}")
    else:
        _check_range("codes", codes, params.score.bits)
    _check_range("counts", counts, params.count_bits)
    rows, clusters = codes.shape
    if clusters == 0:
        zero = np.zeros(rows, np.int64)
        return Selection(np.zeros((rows, 0), bool), zero, zero, zero, zero)
    # Sums beyond 63 bits (wide formats alone) are made of Python integers.
    bits = (RAW_BITS + 1 if raw else params.score.value_bits) + params.count_bits + clusters.bit_length()
    exact = np.int64 if bits <= 63 else object
    # Rank and index of a cluster in one integer: no two are equal, so any sort of them is the stable one of the ranks.
    low = clusters.bit_length()
    unsigned = np.uint32 if params.score.bits + low <= 32 and not raw else np.uint64
    top = codes.max(1, keepdims=True)
    rank = (top - codes.astype(np.int64)).astype(unsigned)
    if params.selection == "buckets":
        rank = bucket(codes, params.n_buckets).astype(unsigned)
    key = (rank << unsigned(low)) | np.arange(clusters, dtype=unsigned)
    order = np.sort(key, axis=1)
    at = (order & unsigned((1 << low) - 1)).astype(np.int64)
    ordered = np.take_along_axis(codes, at, 1)
    acc = ordered.astype(exact) if raw else values(params.score).astype(exact).take(ordered)
    acc *= counts.astype(exact).take(at)
    np.cumsum(acc, axis=1, out=acc)
    total = acc[:, -1].copy()
    th = threshold(total, params.ratio_q16)
    enough = acc > th[:, None]
    enough[:, -1] = True
    last = enough.argmax(axis=1)
    cut = order[np.arange(rows), last][:, None]
    mask = key <= cut if params.selection == "exact" else rank <= cut >> unsigned(low)
    tokens = (mask.astype(np.float64) @ counts.astype(np.float64)).astype(np.int64)  # below 2^53
    return Selection(mask, np.count_nonzero(mask, axis=1), tokens, total, th)


def union(mask: np.ndarray) -> np.ndarray:
    """Cluster set of a query block: OR over the rows of `mask` [R, C], shape [C] (section IV-C)."""
    return np.asarray(mask, bool).any(0)


def _check_range(name: str, array: np.ndarray, bits: int) -> None:
    if not np.issubdtype(array.dtype, np.integer):
        raise ParamError(f"{name}: dtype {array.dtype} must be an integer type")
    if array.size and (array.min() < 0 or array.max() >= 1 << bits):
        bad = (array < 0) | (array >= 1 << bits)
        raise ParamError(f"{name}: {array[bad][0]} does not fit in {bits} unsigned bits")
