"""WiCSum thresholding: it selects the fewest top-scored clusters that hold a given share of a row's total weight.

WiCSum means weighted cumulative sum. A row holds the score codes (`ScoreFormat`) and the token counts of C clusters.
The weight of a cluster is value(code) x count.

- Equation 1: Sum is the sum of all weights.
- Equation 2: the threshold is Th = floor(Sum x ratio_q16 / 2^16).
- Equation 3: order the clusters by descending score, ties by ascending index. Select the shortest prefix whose weight
  Acc exceeds Th. Acc is an integer, so the floor in Th changes no selection. If no prefix exceeds Th (Sum = 0, or a
  ratio of 1), all clusters are selected.
- Selection "buckets" (section V-B, Fig. 11): cut the range between the row's smallest and largest code into `n_buckets`
  buckets of equal width. Select whole buckets from the top until Acc > Th.

With score map "raw" a code is its own value and may be negative (`golden.retrieval.scores`). Then Acc rises and falls,
and the prefix ends where Acc first exceeds Th. If Sum is zero or below, that is mostly at once. Hardware does not offer
this map.

All sums are exact in every format.

With a budget of tokens, the weight of a cluster is its count alone and Th is budget - 1: the codes only rank, and the
prefix is the shortest that holds the budget. Mosaic retrieves this way (`golden.policies.mosaic`). The exact selection
of hardware offers budgets with `hdl.params.WtuParams.budget`.

Source: V-Rex section IV-C, Equations 1 to 3; section V-B for the buckets.
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.score_codes import values
from openvrex.golden.function_params import RAW_BITS, ParamError, ReSVParams, check


@dataclass(frozen=True)
class Selection:
    """Selections of R rows over C clusters."""

    mask: np.ndarray  # [R, C] bool: the cluster is selected
    clusters: np.ndarray  # [R] int64: number of selected clusters
    tokens: np.ndarray  # [R] int64: sum of their token counts
    total: np.ndarray  # [R] int64, or Python integers beyond 63 bits: Sum of Equation 1
    threshold: np.ndarray  # as total: Th of Equation 2


@dataclass(frozen=True)
class RowSelection:
    """Selection of one row over C clusters."""

    mask: np.ndarray  # [C] bool: the cluster is selected
    clusters: int  # number of selected clusters
    tokens: int  # sum of their token counts
    total: int  # Sum of Equation 1
    threshold: int  # Th of Equation 2


def threshold(total: np.ndarray, ratio_q16: int) -> np.ndarray:
    """Equation 2: floor(total x ratio_q16 / 2^16), elementwise and without overflow.

    `total` holds int64 numbers below 2^63 or Python integers.
    """
    total = np.asarray(total)
    return (total >> 16) * ratio_q16 + (((total & 0xFFFF) * ratio_q16) >> 16)


def bucket(codes: np.ndarray, n_buckets: int) -> np.ndarray:
    """Bucket of each code c of rows [..., C], int64: `((max - c) * n_buckets) // (max - min + 1)`; 0 is the top."""
    codes = np.asarray(codes, dtype=np.int64)
    top, low = codes.max(-1, keepdims=True), codes.min(-1, keepdims=True)
    return (top - codes) * n_buckets // (top - low + 1)


def select(codes: np.ndarray, counts: np.ndarray, params: ReSVParams, budget: int | None = None) -> RowSelection:
    """Select clusters of one row: `codes` [C] and `counts` [C] are integers, and C may be 0.

    Raises `ParamError` for a wrong shape, and for a code or a count outside the range that `params` gives.
    """
    codes = np.asarray(codes)
    check(codes.ndim == 1, "codes.shape", codes.shape, "must be [C]; select_rows takes [R, C]")
    s = select_rows(codes[None], counts, params, budget)
    return RowSelection(s.mask[0], int(s.clusters[0]), int(s.tokens[0]), int(s.total[0]), int(s.threshold[0]))


def select_rows(codes: np.ndarray, counts: np.ndarray, params: ReSVParams, budget: int | None = None) -> Selection:
    """Select clusters of R rows that share a count table: `codes` [R, C] and `counts` [C] are integers.

    Raises `ParamError` for a wrong shape, and for a code or a count outside the range that `params` gives.
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
    # Sums beyond 63 bits, which only wide formats have, are Python integers.
    bits = (RAW_BITS + 1 if raw else params.score.value_bits) + params.count_bits + clusters.bit_length()
    exact = np.int64 if bits <= 63 else object
    # A sort key holds rank and index of a cluster. No two keys are equal, so any sort breaks ties by index.
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
    if budget is not None:
        acc = counts.astype(exact).take(at)
    else:
        acc = ordered.astype(exact) if raw else values(params.score).astype(exact).take(ordered)
        acc *= counts.astype(exact).take(at)
    np.cumsum(acc, axis=1, out=acc)
    total = acc[:, -1].copy()
    th = threshold(total, params.ratio_q16) if budget is None else np.full_like(total, budget - 1)
    enough = acc > th[:, None]
    enough[:, -1] = True
    last = enough.argmax(axis=1)
    cut = order[np.arange(rows), last][:, None]
    mask = key <= cut if params.selection == "exact" else rank <= cut >> unsigned(low)
    tokens = (mask.astype(np.float64) @ counts.astype(np.float64)).astype(np.int64)  # below 2^53
    return Selection(mask, np.count_nonzero(mask, axis=1), tokens, total, th)


def union(mask: np.ndarray) -> np.ndarray:
    """Cluster set of a query block, bool [C]: the clusters that any row of `mask` [R, C] selects (section IV-C)."""
    return np.logical_or.reduce(np.asarray(mask, bool), axis=0)


def _check_range(name: str, array: np.ndarray, bits: int) -> None:
    if not np.issubdtype(array.dtype, np.integer):
        raise ParamError(f"{name}: dtype {array.dtype} must be an integer type")
    if array.size and (array.min() < 0 or array.max() >= 1 << bits):
        bad = (array < 0) | (array >= 1 << bits)
        raise ParamError(f"{name}: {array[bad][0]} does not fit in {bits} unsigned bits")
