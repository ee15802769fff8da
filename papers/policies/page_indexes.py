"""Other indexes of pages, beside the codes that OpenVRex has hardware for (`golden.retrieval.coded_pages`).

Pages, budget, resident tokens and the choice by scores are those of coded pages, so that runs differ in the index
alone. A page's score for a row is less the row's sum over its resident tokens; the largest one over the rows counts.
Arithmetic is that of NumPy: no hardware is described.

Source: this project (docs/papers/recall.md). `minmax` is Quest's index, `means` is like that of InfLLM and ReKV.
"""

from dataclasses import dataclass, replace

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import check, parameter
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.pages_policy import CodedPages, PagesPolicyParams
from openvrex.golden.retrieval.coded_pages import ONE, STEP, CodedKeys, gains_of, matrices_of
from openvrex.golden.retrieval.key_matrices import KeyMatrices

FINE = 0.335  # STEP of a number of an entry: of the uniform quantiser of 4 bits that serves a Gaussian best
INDEXES = {
    "keys": "the keys themselves, all in device memory",
    "minmax": "the least and the largest of each number of a page's keys",
    "means": "the mean of a page's keys",
    "means-codes": "means keep a share of the pages, codes choose among them",
    "short-codes": "the first numbers of the codes keep a share of the pages, the whole codes choose among them",
    "entries": "the first numbers of entries that are kept in the rotated basis, 4 bits a number",
}


@dataclass(frozen=True)
class IndexedPagesParams(PagesPolicyParams):
    """Parameters of pages with another index."""

    index: str = parameter("keys", "; ".join(f"{name}: {what}" for name, what in INDEXES.items()))
    share: float = parameter(0.25, "of the coded pages, that the first of two levels keeps", low=0, high=1)
    short: int = parameter(8, "numbers of a short code", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.index in INDEXES, "index", self.index, f"must be one of {', '.join(INDEXES)}")
        check(self.short <= self.numbers, "short", self.short, f"must be at most numbers = {self.numbers}")


class IndexedKeys(CodedKeys):
    """As `CodedKeys`, with the keys at hand, and scores by another index.

    whole : matrices of as many numbers as a head has; codes have the first ones
    """

    params: IndexedPagesParams

    def __init__(self, params: IndexedPagesParams, whole: KeyMatrices):
        n, step = params.numbers, 2 * FINE if params.index == "entries" else STEP
        query = to_bf16(whole.query[:, :n].astype(np.float64) * (step / STEP))
        super().__init__(params, KeyMatrices(whole.code[:, :n], query))
        self.whole, self.taken = whole, n  # numbers of a code that count
        self.keys = np.zeros((self.kv_heads, 0, self.head_size), np.float32)  # of coded tokens, as the home holds them

    def _code(self, keys: np.ndarray) -> None:
        super()._code(keys)
        own = keys.astype(np.float32).swapaxes(0, 1)
        if self.params.index == "entries":
            own = self._rotated(own)
        self.keys = np.concatenate([self.keys, own], axis=1)

    def _rotated(self, keys: np.ndarray) -> np.ndarray:
        """What keys [kv_heads, mean, head_size] are as entries; their first numbers' upper bits become their codes."""
        start, mean = self.coded - self.params.mean, self.means[:, -1:].astype(np.float32)
        x = to_bf16((keys - mean) @ self.whole.code.astype(np.float32).swapaxes(1, 2))
        gains, middles = gains_of(x.reshape(-1, x.shape[-1]))
        middle = middles.astype(np.float32).reshape(*x.shape[:2], 1)
        level = np.clip(np.floor(x.astype(np.float32) / (FINE * middle)), -8, 7)
        self.gains[:, start:] = gains.reshape(x.shape[:2])
        self.numbers[:, start:] = 2 * np.floor(level[..., : self.params.numbers] / 2) + 1
        basis = self.whole.query.astype(np.float32) * (np.sqrt(self.head_size) / ONE)
        return to_bf16(mean + ((level + 0.5) * FINE * middle) @ basis).astype(np.float32)

    def page_scores(self, q: np.ndarray, sums: np.ndarray) -> np.ndarray:
        index, p = self.params.index, self.params
        if index in ("keys", "minmax", "means"):
            return self._plain(q, sums, index)
        scores = super().page_scores(q, sums)
        if index == "entries" or not scores.size:
            return scores
        if index == "means-codes":
            first = self._plain(q, sums, "means")
        else:
            self.taken = p.short
            first = super().page_scores(q, sums)
            self.taken = p.numbers
        least = -np.sort(-first, axis=1)[:, int(p.share * (scores.shape[1] - 1)), None]
        return np.where(first >= least, scores, np.float32(-3e38))

    def _products(self, x: np.ndarray, keys: np.ndarray) -> np.ndarray:
        counts = (np.arange(x.shape[1]) < self.taken) | (np.arange(x.shape[1]) >= self.params.numbers)
        return super()._products(np.where(counts, x, BF16(0)), keys)

    def _plain(self, q: np.ndarray, sums: np.ndarray, index: str) -> np.ndarray:
        """Scores by the keys themselves, by their extremes or by their mean in each page."""
        heads, size = self.kv_heads, self.head_size
        pages = self.keys.reshape(heads, -1, self.params.page, size)
        rows = q.astype(np.float32).reshape(len(q), heads, -1, size).swapaxes(0, 1).reshape(heads, -1, size)
        if index == "keys":
            logits = (rows @ self.keys.swapaxes(1, 2)).reshape(*rows.shape[:2], *pages.shape[1:3]).max(axis=3)
        elif index == "means":
            logits = rows @ pages.mean(axis=2).swapaxes(1, 2)
        else:
            high, low = (f(pages, axis=2).swapaxes(1, 2) for f in (np.max, np.min))
            logits = np.maximum(rows, 0) @ high + np.minimum(rows, 0) @ low
        less = sums.reshape(len(q), heads, -1).swapaxes(0, 1).reshape(heads, -1, 1)
        return (logits / np.sqrt(size) - less).max(axis=1).astype(np.float32)


class IndexedPages(CodedPages):
    """Pages as `CodedPages` takes them, chosen by another index (`INDEXES`).

    With `entries`, the matrices need as many numbers as a head has. The ledger counts the work of codes for all.
    """

    source = "this project: docs/papers/recall.md"
    params: IndexedPagesParams

    def __init__(self, params: IndexedPagesParams, shape: Shape):
        entries = params.index == "entries"
        super().__init__(replace(params, kv4_group=params.kv4_group or 32 * entries), shape)
        numbers = shape.head_size if entries else params.numbers
        whole = replace(params, numbers=numbers)
        matrices = matrices_of(whole, shape.layers, shape.kv_heads, shape.head_size, shape.model)
        self.indexes = [IndexedKeys(params, own) for own in matrices]
        self.layers = [*self.indexes]

    def pack(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray, going: np.ndarray) -> None:
        if self.params.index == "entries":  # keys of sinks are far from all others, and stay as they are
            going = going & (np.arange(going.shape[1]) >= self.params.pinned * self.params.page)
        super().pack(layer, tokens, k, v, going)
        if self.params.index == "entries":
            keys = self.indexes[layer].keys
            self.stored[layer].put_keys(going, keys[going[:, : keys.shape[1]]])
