"""Coded pages: pages of adjacent tokens, found by codes of their keys.

Device memory keeps a code of every key, 64 bits for a head of 64 numbers. A query block scores all old pages by the
codes alone and attends to the pages of the highest scores, as many as a fixed budget allows. So a page is fetched
whole, and what a block fetches does not grow with the cache.

1. Mean: 256 adjacent tokens share a mean key, for each KV head: the FP32 sum of their keys in token order, divided and
   rounded to BF16. Keys are coded once their mean is there. They are within the window of recent tokens until then.
2. Difference: key less mean, rounded to BF16.
3. Numbers: the difference's products with the rows of the head's code matrix, BF16. Each would be a number of variance
   1 for the text that the matrix was derived from (`golden.retrieval.key_matrices`).
4. Gain: an eighth of an octave, in 6 bits, from the product of the numbers with themselves, FP32. Gain c stands for a
   root mean square of 2^(c / 8 + LOWEST), within the rounding of `gain_codes`.
5. Code: a number is one of -7, -5, ... 5, 7, in 3 bits: its sign, and how many of `thresholds` its magnitude reaches.
6. Query: a row is one query token of one query head. Its products with the rows of the head's query matrix are rounded
   to BF16, `numbers` of them. They hold the steps of the codes, and attention's scale.
7. Sum of a row: the logarithm of its softmax weights over the resident tokens (`resident_sum`), FP32. Its negative is
   the sum of two BF16 numbers: rounded, and the rest rounded (`halves`).
8. Score of a key for a row: the product of the row's numbers with the key's, which are multiplied by the gain and
   rounded to BF16 (`expanded`), less the row's sum. It is one dot product, FP32, as two ones follow the key's numbers.
9. Score of a page: for each row the largest of its tokens', plus the row's product with the mean by attention's scale
   rounded to BF16, in one FMA; then the largest over the rows of the KV head.
10. The candidates are the pages without a resident token. The score codes of their scores by `SHARPNESS`
   (`golden.retrieval.scores`, map vpe) rank them: budget / page of those with the highest codes are chosen, equal codes
   by rising index.

Products are exact and rounded once to FP32, or those of the DPE's format. Scores are natural logarithms, so an LXE
takes steps 6 to 10 with the operations that it has (`golden.program.page_stages`). Tokens are resident by whole pages:
those with one of the first `sinks` tokens, and those with one of the last `recent`.

Source: this project (docs/papers/recall.md). Codes of keys in a rotated basis are known from Loki and A2ATS, pages with
a score from Quest.
"""

from dataclasses import dataclass
from functools import cache, reduce
from math import floor, log2, sqrt

import numpy as np

from openvrex.golden.arithmetic.elementwise import exp, reciprocal
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import Sum, fma, larger
from openvrex.golden.function_params import DotFormat, ScoreFormat, check, check_parameters, parameter
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.golden.retrieval.scores import exponential_codes, scores
from openvrex.golden.retrieval.signatures import QUARTERS

STEP = 0.586  # of the uniform quantiser of 3 bits that serves a Gaussian of variance 1 best
GAIN_BITS = 6
LOWEST = -4  # octave of the smallest gain
SHARPNESS = 0.25  # of the codes of scores: they tell apart 88 octaves, the upper 60 in steps of 1/22 octave
START, ROUNDS = 4.0, 4  # of the search for a logarithm


@dataclass(frozen=True)
class PageParams:
    """Function parameters of coded pages."""

    page: int = parameter(8, "adjacent tokens that are fetched together", low=1, power_of_two=True)
    mean: int = parameter(256, "adjacent tokens that share a mean key", low=1, power_of_two=True)
    numbers: int = parameter(18, "numbers of a code, 3 bits each", low=1, high=64)
    budget: int = parameter(512, "tokens that a KV head fetches for a block, in whole pages", low=0)
    recent: int = parameter(256, "most recent tokens of a layer: always attended, kept in device memory", low=1)
    sinks: int = parameter(4, "first tokens of a stream: always attended", low=0)
    matrices: str = parameter(
        "", "file of `vrex papers calibrate`; empty: rows of a Hadamard matrix, which know nothing of the model"
    )

    def __post_init__(self) -> None:
        check_parameters(self)
        check(
            self.mean <= self.recent, "mean", self.mean, f"must be at most recent = {self.recent}: means complete there"
        )
        check(self.page <= self.mean, "page", self.page, f"must be at most mean = {self.mean}: a page has one mean")

    @property
    def code_bytes(self) -> int:
        """Bytes of a key's code: whole words of 64 bits."""
        return 8 * -(-(3 * self.numbers + GAIN_BITS) // 64)


class CodedKeys:
    """Means and codes of the keys of one decoder layer of `length` tokens, and the choice among its pages."""

    def __init__(self, params: PageParams, matrices: KeyMatrices):
        self.params, self.matrices = params, matrices
        self.kv_heads, _, self.head_size = matrices.code.shape
        self.length = 0
        self.means = np.zeros((self.kv_heads, 0, self.head_size), BF16)
        self._open = np.zeros((0, self.kv_heads, self.head_size), BF16)  # keys whose mean is not complete
        self._numbers = np.zeros((self.kv_heads, 1024, params.numbers), np.int8)  # `_code` doubles it when it is full
        self._gains = np.zeros((self.kv_heads, 1024), np.uint8)

    @property
    def coded(self) -> int:
        """Tokens with a code."""
        return self.means.shape[1] * self.params.mean

    @property
    def numbers(self) -> np.ndarray:
        """Odd numbers of the codes, int8 [kv_heads, coded, numbers]."""
        return self._numbers[:, : self.coded]

    @property
    def gains(self) -> np.ndarray:
        """Gains of the codes, uint8 [kv_heads, coded]."""
        return self._gains[:, : self.coded]

    def append(self, k: np.ndarray) -> None:
        """Enter the T keys of a new block `k` [T, kv_heads, head_size], BF16, post-rotary; code those with a mean."""
        self.length += len(k)
        keys = np.concatenate([self._open, k])
        whole = len(keys) - len(keys) % self.params.mean
        for start in range(0, whole, self.params.mean):
            self._code(keys[start : start + self.params.mean])
        self._open = keys[whole:]

    def _code(self, keys: np.ndarray) -> None:
        """Code the keys [mean, kv_heads, head_size] of one mean."""
        total = np.zeros(keys.shape[1:], np.float32)
        for key in keys.astype(np.float32):
            total = total + key
        mean = to_bf16(total / np.float32(len(keys)))
        with np.errstate(invalid="ignore"):
            rest = to_bf16(keys.astype(np.float64) - mean.astype(np.float64))
        start = self.coded
        self.means = np.concatenate([self.means, mean[:, None]], axis=1)
        while self.coded > self._numbers.shape[1]:
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)], axis=1)
            self._gains = np.concatenate([self._gains, np.zeros_like(self._gains)], axis=1)
        for head, matrix in enumerate(self.matrices.code):
            x = to_bf16(scores(rest[:, head, None], matrix, 1)[:, 0])
            gains = gain_codes(scores(x[:, None], x, 1)[:, 0].diagonal(), self.params.numbers)
            self.gains[head, start:] = gains
            self.numbers[head, start:] = quantised(x, gains)

    def resident(self) -> np.ndarray:
        """Which tokens device memory keeps, [length] bool."""
        p, t = self.params, np.arange(self.length)
        first = -(-p.sinks // p.page) * p.page
        last = max(0, self.length - p.recent) // p.page * p.page
        return (t < first) | (t >= last)

    def page_scores(self, q: np.ndarray, sums: np.ndarray, fmt: DotFormat | None = None) -> np.ndarray:
        """Scores of all coded pages, FP32 [kv_heads, coded / page].

        q : queries [T, heads, head_size], BF16 · sums : of `resident_sum` for each row, FP32 [T, heads]
        fmt : of the DPE; exact products without it
        """
        p, (_, heads, size) = self.params, q.shape
        check(heads % self.kv_heads == 0, "query heads", heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        out = np.zeros((self.kv_heads, self.coded // p.page), np.float32)
        scale = to_bf16(np.array(1 / sqrt(size)))
        for g in range(self.kv_heads) if self.coded else ():
            own = slice(g * heads // self.kv_heads, (g + 1) * heads // self.kv_heads)
            rows, total = q[:, own].reshape(-1, 1, size), sums[:, own].ravel()
            turned = to_bf16(scores(rows, self.matrices.query[g], 1, fmt)[:, 0])
            x = np.concatenate([turned, halves(-total)], axis=1)
            means = scores(rows, self.means[g], 1, fmt)[:, 0].repeat(p.mean // p.page, axis=1)
            keys = with_ones(expanded(self.numbers[g], self.gains[g])).reshape(-1, p.page, p.numbers + 2)
            best = scores(x[:, None], keys[:, 0], 1, fmt)[:, 0]
            for token in range(1, p.page):
                best = larger(scores(x[:, None], keys[:, token], 1, fmt)[:, 0], best)
            out[g] = reduce(larger, fma(means, np.broadcast_to(scale, means.shape), best))
        return out

    def choose(self, q: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Tokens of the pages that the queries choose, [kv_heads, length] bool; arguments as `page_scores`."""
        p = self.params
        candidates = np.flatnonzero(~self.resident()[: self.coded].reshape(-1, p.page).any(axis=1))
        out = np.zeros((self.kv_heads, self.length), bool)
        if not len(candidates):
            return out
        codes = exponential_codes(self.page_scores(q, sums)[:, candidates], SHARPNESS, ScoreFormat())
        for own, row in zip(out, codes.astype(np.int64), strict=True):
            order = np.argsort(-row, kind="stable")  # equal codes by rising index
            chosen = np.zeros(self.coded // p.page, bool)
            chosen[candidates[order[: p.budget // p.page]]] = True
            own[: self.coded] = chosen.repeat(p.page)
        return out


def gain_codes(squares: np.ndarray, numbers: int) -> np.ndarray:
    """Gains from the sums of the squares of so many numbers, FP32 [N]: uint8 [N], the same on every platform.

    A quarter of an octave of a square is an eighth of one of the gain. So the code is floor(4 log2(square)), less a
    constant. It saturates at 0 and 63; infinity and NaN have 63.
    """
    fraction, exponent = np.frexp(squares.astype(np.float32))  # square = fraction x 2^exponent, fraction from 1/2 on
    quarters = 4 * (exponent.astype(np.int64) - 1) + (fraction[:, None] >= QUARTERS).sum(axis=1)
    code = np.where(squares > 0, quarters - floor(4 * log2(numbers)) - 8 * LOWEST, 0)
    top = (1 << GAIN_BITS) - 1
    return np.clip(np.where(np.isfinite(squares), code, top), 0, top).astype(np.uint8)


def middle(numbers: int) -> float:
    """The middle of a gain's range, in eighths of an octave above 2^(c / 8 + LOWEST), for codes of so many numbers."""
    return 0.5 + floor(4 * log2(numbers)) - 4 * log2(numbers)


@cache
def thresholds(numbers: int) -> np.ndarray:
    """Magnitudes that part the codes of a number, BF16 [64 gains, 3]: STEP, 2 and 3 STEP times the gain."""
    gain = np.exp2((np.arange(1 << GAIN_BITS) + middle(numbers)) / 8 + LOWEST)
    return to_bf16(gain[:, None] * STEP * np.arange(1, 4))


def quantised(x: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Odd numbers -7 to 7 of BF16 numbers `x` [N, numbers] with gains [N], int8; a zero of either sign gives 1."""
    limits = thresholds(x.shape[1])[gains].astype(np.float32)
    values = x.astype(np.float32)
    size = (np.abs(values)[:, :, None] >= limits[:, None]).sum(axis=2)
    return np.where(values < 0, -2 * size - 1, 2 * size + 1).astype(np.int8)


@cache
def magnitudes() -> np.ndarray:
    """1, 3, 5 and 7 times each gain, rounded to BF16, [64 gains, 4]."""
    gain = np.exp2(np.arange(1 << GAIN_BITS) / 8 + LOWEST)
    return to_bf16(gain[:, None] * np.arange(1, 8, 2))


def expanded(numbers: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """What a query's numbers are multiplied by: `numbers` [N, n] times 2^(gain / 8 + LOWEST), rounded to BF16."""
    size = np.abs(numbers) >> 1
    magnitude = magnitudes()[gains[:, None], size].astype(np.float32)
    return np.where(numbers < 0, -magnitude, magnitude).astype(BF16)


def with_ones(keys: np.ndarray) -> np.ndarray:
    """Two ones behind each row [N, n] BF16, which the halves of a bias are multiplied by."""
    return np.concatenate([keys, np.ones((len(keys), 2), BF16)], axis=1)


def halves(x: np.ndarray) -> np.ndarray:
    """Numbers [N] FP32 as two BF16 numbers each, [N, 2]: rounded, and the rest rounded."""
    high = to_bf16(x)
    with np.errstate(invalid="ignore"):
        return np.stack([high, to_bf16(x.astype(np.float64) - high.astype(np.float64))], axis=1)


def words(numbers: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Codes as they lie in memory, uint64 [N, words]: a bit of every number, then the next one, then the gain.

    Of n numbers, bit i is the sign of number i. Bits n + i and 2n + i, the upper and the lower one, tell 1, 3, 5 or 7.
    So each third of a code is the outcome of one comparison for all numbers, which the VPE makes at once (SIGN).
    """
    n = numbers.shape[1]
    bits = np.zeros((len(numbers), 64 * -(-(3 * n + GAIN_BITS) // 64)), np.uint8)
    size = (np.abs(numbers) >> 1).astype(np.uint8)
    bits[:, :n], bits[:, n : 2 * n], bits[:, 2 * n : 3 * n] = numbers < 0, size >> 1, size & 1
    bits[:, 3 * n : 3 * n + GAIN_BITS] = gains[:, None] >> np.arange(GAIN_BITS, dtype=np.uint8) & 1
    return np.packbits(bits, axis=1, bitorder="little").view("<u8")


@dataclass(frozen=True)
class CodeWords:
    """Codes of keys in words: of memory, 2 * lanes bytes each, and of W, into which a LOAD expands them.

    lanes : numbers of a word of W · numbers : of a code

    A word of W has room for `places` codes, a power of two: code k, expanded and with its two ones, stands in the lanes
    from k * lanes / places on, zeros behind it. A word of memory holds the codes of `many` words of W one behind the
    other, each of `code_bytes` bytes (`words`).

    Raises `ParamError` if a word of W has no room for a code, or if a code's bytes are no power of two.
    """

    lanes: int
    numbers: int

    def __post_init__(self) -> None:
        reason = f"must be at most {self.lanes - 2}, a word less 2"
        check(self.numbers + 2 <= self.lanes, "numbers of a code", self.numbers, reason)
        size = self.code_bytes
        reason = f"has {size} bytes, which must be a power of two"
        check(size & (size - 1) == 0, "numbers of a code", self.numbers, reason)

    @property
    def places(self) -> int:
        """Codes of a word of W."""
        return 1 << (self.lanes // (self.numbers + 2)).bit_length() - 1

    @property
    def code_bytes(self) -> int:
        """Bytes of a code in memory: whole words of 64 bits."""
        return 8 * -(-(3 * self.numbers + GAIN_BITS) // 64)

    @property
    def many(self) -> int:
        """Words of W of a word of memory."""
        return 2 * self.lanes // (self.places * self.code_bytes)

    def expanded(self, memory: np.ndarray) -> np.ndarray:
        """The words of W of words of memory, uint8 [N, 2 * lanes]: bits of BF16 numbers, uint16 [N, many, lanes]."""
        count, n = len(memory), self.numbers
        codes = np.unpackbits(memory.reshape(-1, self.code_bytes), axis=1, bitorder="little").astype(np.int8)
        sign, upper, lower = codes[:, : 3 * n].reshape(-1, 3, n).swapaxes(0, 1)
        size = 2 * (2 * upper + lower) + 1
        gains = codes[:, 3 * n : 3 * n + GAIN_BITS] @ (1 << np.arange(GAIN_BITS))
        out = np.zeros((len(codes), self.lanes // self.places), BF16)
        out[:, : n + 2] = with_ones(expanded(np.where(sign, -size, size), gains))
        return out.view(np.uint16).reshape(count, self.many, self.lanes)


def resident_sum(logits: np.ndarray, seen: np.ndarray, lanes: int = 64) -> np.ndarray:
    """Logarithm of each row's sum of weights over the tokens that it sees, FP32 [R].

    logits : products of query and key times attention's scale, FP32 [R, n] · seen : bool [R, n], one at least a row
    lanes : numbers of a word of the row sum

    A weight is exp of the logit less the row's largest, rounded to BF16 before and behind. Their sum is the VPE's row
    sum (`golden.arithmetic.vector.Sum`). The result is its logarithm plus the largest logit, rounded once.
    """
    hidden = np.where(seen, logits, -np.inf).astype(np.float32)
    largest = hidden.max(axis=1)
    weights = exp(to_bf16(hidden - largest[:, None])).astype(np.float32)
    totals = np.empty(len(logits), np.float32)
    for r, row in enumerate(weights):
        total = Sum()
        for at in range(0, row.size, lanes):
            total.add(row[at : at + lanes])
        totals[r] = total.total()
    return logarithm(totals) + largest


def logarithm(x: np.ndarray) -> np.ndarray:
    """Natural logarithm of FP32 numbers from 1 to 2,980, which is e^8, of any shape, FP32; at most 1/40 off.

    Up to e^10 it is at most 1/25 off: so much is left of the distance from START.

    Halley's steps from START on: y + (x e^-y - 1) / ((x e^-y + 1) / 2). The exponential and the inverse are BF16, all
    else FMAs. Each step cubes the distance from the logarithm, or nearly, until the exponential's rounding is left.
    """
    x = x.astype(np.float32)

    def constant(c: float) -> np.ndarray:
        return np.full(x.shape, c, np.float32)

    half = fma(x, to_bf16(constant(0.5)), constant(-0.0))
    y = constant(START)
    for _ in range(ROUNDS):
        power = exp(to_bf16(-y))
        inverse = reciprocal(to_bf16(fma(half, power, constant(0.5))))
        y = fma(fma(x, power, constant(-1.0)), inverse, y)
    return y
