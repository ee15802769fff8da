"""Coded pages: pages of adjacent tokens, found by codes of their keys.

Device memory keeps a code of every key, 64 bits for a head of 64 numbers. A query block scores all old pages by the
codes alone and attends to the pages of the highest scores, as many as a fixed budget allows. So a page is fetched
whole, and what a block fetches does not grow with the cache.

1. Mean: 256 adjacent tokens share a mean key, for each KV head: the FP32 sum of their keys in token order, divided and
   rounded to BF16. Keys are coded once their mean is there. They are within the window of recent tokens until then.
2. Difference: key less mean, FP32, then BF16.
3. Numbers: the difference's products with the rows of the head's code matrix, BF16. Each would be a number of variance
   1 for the text that the matrix was derived from (`golden.retrieval.key_matrices`).
4. Gain: an eighth of an octave, in 6 bits, from the FP32 sum of the numbers' squares, each at most `LARGEST` and
   rounded to BF16. Gain c stands for a root mean square from 2^(c / 8 + LOWEST) on, within the rounding of `gains_of`.
   It is 0 where a difference is not finite.
5. Code: a number is one of -7, -5, ... 5, 7, in 3 bits: its sign, and how many of 1, 2 and 3 `STEP`s its magnitude is
   above, times the middle of the gain's range (`quantised`).
6. Query: a row is one query token of one query head. Its products with the rows of the head's query matrix are rounded
   to BF16, `numbers` of them. They hold the steps of the codes, and attention's scale.
7. Sum of a row: the logarithm of its softmax weights over the resident tokens (`resident_sum`), FP32. Its negative is
   the sum of two BF16 numbers: rounded, and the rest rounded (`halves`).
8. Score of a key for a row: the product of the row's numbers with the key's, which are multiplied by the gain and
   rounded to BF16 (`expanded`), less the row's sum. It is one dot product, FP32, as two ones follow the key's numbers.
   A DPE with `halves` aligns the products of two tokens as one chunk and gives the larger score
   (`golden.arithmetic.dot`).
9. Score of a page: for each row the largest of its tokens', plus the row's product with the mean by attention's scale
   rounded to BF16, in one FMA; then the largest over the rows of the KV head.
10. The candidates are the pages with a token that is not resident. The score codes of their scores by `SHARPNESS`
   (`golden.retrieval.scores`, map vpe) rank them; other pages have code 0, and pages of sinks the highest one. Chosen
   are the fewest pages of the highest codes that hold the budget and the sinks' pages, equal codes by rising index
   (`golden.retrieval.wicsum`, a budget of tokens). Their tokens that are not resident are fetched.

Products are exact and rounded once to FP32, or those of the DPE's format. All else are operations of the VPE, so an LXE
takes every step with what it has (`golden.program.page_stages`). Scores are natural logarithms. Device memory keeps the
last `recent` tokens, as the KVMU's ring does (`golden.retrieval.kvmap`).

Source: this project (docs/papers/recall.md). Codes of keys in a rotated basis are known from Loki and A2ATS, pages with
a score from Quest.
"""

from dataclasses import dataclass, replace
from functools import cache, reduce
from math import sqrt
from pathlib import Path

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.elementwise import exp, reciprocal
from openvrex.golden.arithmetic.numerics import BF16, flush, to_bf16
from openvrex.golden.arithmetic.vector import Sum, flush_fp32, fma, larger, order, smaller
from openvrex.golden.function_params import (
    DotFormat,
    Parameters,
    ReSVParams,
    ScoreFormat,
    check,
    parameter,
)
from openvrex.golden.retrieval.key_matrices import KeyMatrices, kept, load, plain
from openvrex.golden.retrieval.scores import exponential_codes, scores
from openvrex.golden.retrieval.wicsum import select_rows

STEP = 0.586  # of the uniform quantiser of 3 bits that serves a Gaussian of variance 1 best
GAIN_BITS = 6
LOWEST = -4  # octave of the smallest gain
MIDDLE = 2.0 ** (1 / 16)  # of a gain's range, times its start
LARGEST = 2.0**100  # square of a number
SURE = 2.0**60  # times a difference of a mean square and a bound: at least 1 where it is above zero
SHARPNESS = 0.25  # of the codes of scores: they tell apart 88 octaves, the upper 60 in steps of 1/22 octave
START, ROUNDS = 4.0, 4  # of the search for a logarithm
PLAIN = "plain"  # in place of a file of matrices
# Value of the number 1 of a code at gain 2^0: half a quantiser's step, in the middle of the gain's range.
ONE = STEP / 2 * MIDDLE


@dataclass(frozen=True)
class PageParams(Parameters):
    """Function parameters of coded pages."""

    page: int = parameter(8, "adjacent tokens that are fetched together", low=1, power_of_two=True)
    mean: int = parameter(256, "adjacent tokens that share a mean key", low=1, power_of_two=True)
    numbers: int = parameter(18, "numbers of a code, 3 bits each", low=1, high=64)
    budget: int = parameter(512, "tokens that a KV head fetches for a block, in whole pages", low=1)
    recent: int = parameter(256, "most recent tokens of a layer: always attended, kept in device memory", low=1)
    sinks: int = parameter(4, "first tokens of a stream: their pages are always fetched, beside the budget", low=0)
    matrices: str = parameter(
        "",
        "file of `vrex papers calibrate`; empty: that of OpenVRex for the model (SmolLM2), if there is one; "
        f"else or with `{PLAIN}`: rows of a Hadamard matrix, which know nothing of the model",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.mean <= self.recent, "mean", self.mean, f"must be at most recent = {self.recent}: means complete there"
        )
        check(self.page <= self.mean, "page", self.page, f"must be at most mean = {self.mean}: a page has one mean")

    @property
    def code_bytes(self) -> int:
        """Bytes of a key's code: whole words of 64 bits."""
        return 8 * -(-(3 * self.numbers + GAIN_BITS) // 64)

    @property
    def pinned(self) -> int:
        """Pages with a sink."""
        return -(-self.sinks // self.page)


class CodedKeys:
    """Means and codes of the keys of one decoder layer of `length` tokens, and the choice among its pages.

    fmt : of the DPE; exact products without it
    """

    def __init__(self, params: PageParams, matrices: KeyMatrices, fmt: DotFormat | None = None):
        self.params, self.matrices, self.fmt = params, matrices, fmt
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
        total, single = np.zeros(keys.shape[1:], np.float32), flush(keys).astype(np.float32)
        with np.errstate(invalid="ignore"):
            for key in single:
                total = flush_fp32(total + key)
        mean = to_bf16(affine(total, 1 / len(keys)))
        rest = to_bf16(affine(single, 1, -mean.astype(np.float32)))
        start = self.coded
        self.means = np.concatenate([self.means, mean[:, None]], axis=1)
        while self.coded > self._numbers.shape[1]:
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)], axis=1)
            self._gains = np.concatenate([self._gains, np.zeros_like(self._gains)], axis=1)
        x = np.stack([scores(rest[:, [h]], m, 1, self.fmt)[:, 0] for h, m in enumerate(self.matrices.code)])
        rows = to_bf16(x).reshape(-1, x.shape[-1])  # of all heads, [kv_heads x mean, numbers]
        gains, middles = gains_of(rows, self.fmt)
        finite = np.isfinite(rest.astype(np.float32)).all(axis=2).T
        self.gains[:, start:] = np.where(finite, gains.reshape(finite.shape), 0)
        self.numbers[:, start:] = quantised(rows, middles).reshape(x.shape)

    def resident(self) -> np.ndarray:
        """Which tokens device memory keeps, [length] bool."""
        return np.arange(self.length) >= self.length - self.params.recent

    def page_scores(self, q: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Scores of all coded pages, FP32 [kv_heads, coded / page].

        q : queries [T, heads, head_size], BF16 · sums : of `resident_sum` for each row, FP32 [T, heads]
        """
        p, fmt, (_, heads, size) = self.params, self.fmt, q.shape
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
            best = reduce(larger, (self._products(x, keys[:, tokens]) for tokens in self.together))
            out[g] = reduce(larger, fma(means, np.broadcast_to(scale, means.shape), best))
        return out

    @property
    def together(self) -> list[list[int]]:
        """The tokens of a page whose products the DPE finds at once, in its order: one, or one in each half of a word.

        A word of W holds the codes of adjacent tokens.
        """
        page, fmt = self.params.page, self.fmt
        places = min(page, CodeWords(fmt.n, self.params.numbers).places) if fmt and fmt.halves else 1
        if places == 1:
            return [[token] for token in range(page)]
        half = places // 2
        return [[word + k, word + k + half] for word in range(0, page, places) for k in range(half)]

    def _products(self, x: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The larger of the products of rows `x` [R, n] with each page's tokens, `keys` [pages, 1 or 2, n]; FP32."""
        if keys.shape[1] == 1:
            return scores(x[:, None], keys[:, 0], 1, self.fmt)[:, 0]
        assert self.fmt  # exact products are found one by one
        own = replace(self.fmt, n=2 * x.shape[1])
        return dot(np.concatenate([x, x], axis=1), keys.reshape(len(keys), -1), own, halves=True)

    def choose(self, q: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Tokens that are fetched for the queries, [kv_heads, length] bool; arguments as `page_scores`."""
        return self.pages(q, sums).repeat(self.params.page, axis=1)[:, : self.length] & ~self.resident()

    def pages(self, q: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Pages that the queries choose, [kv_heads, pages] bool; arguments as `page_scores`."""
        pages, coded = -(-self.length // self.params.page), self.coded // self.params.page
        scores = np.zeros((self.kv_heads, pages), np.float32)
        scores[:, :coded] = self.page_scores(q, sums)
        return chosen(scores, self.length, self.params)


def matrices_of(params: PageParams, layers: int, kv_heads: int, size: int, model: str = "") -> list[KeyMatrices]:
    """The matrices of a model's first layers: those of the file that `params` name, OpenVRex's own, or plain ones.

    size : numbers of a head · model : its name, if it is known. Raises `ParamError` as `key_matrices.load`
    """
    if params.matrices != PLAIN and (file := params.matrices or kept(model)):
        return load(Path(file), layers, kv_heads, params.numbers, size, model)
    return [plain(kv_heads, params.numbers, size, ONE)] * layers


def chosen(scores: np.ndarray, length: int, params: PageParams) -> np.ndarray:
    """Pages that are chosen by their scores [rows, pages], bool: those of a stream of `length` tokens.

    Scores of pages without a token that has left the ring do not matter. All others have codes, as mean <= recent.
    """
    starts = np.arange(scores.shape[1]) * params.page
    if not len(starts):
        return np.zeros(scores.shape, bool)
    old = starts < length - params.recent
    scaled = np.where(old, affine(scores, SHARPNESS), np.float32(-np.inf))
    best = np.take_along_axis(scaled, order(scaled).argmax(axis=1)[:, None], axis=1)
    pinned = np.arange(len(starts)) < params.pinned
    codes = exponential_codes(np.where(pinned, larger(scaled, best), scaled), 1, ScoreFormat())
    counts = np.minimum(length - starts, params.page)
    return select_rows(codes, counts, ReSVParams(), params.budget + params.pinned * params.page).mask


def affine(a: np.ndarray, b: float, c: float | np.ndarray = -0.0) -> np.ndarray:
    """a b + c, FP32; `b` is a BF16 number."""
    return fma(a, to_bf16(np.full(a.shape, b)), np.broadcast_to(np.asarray(c, np.float32), a.shape))


@dataclass(frozen=True)
class GainBit:
    """A bit of a gain: whether a mean square is above `bound`. All are BF16 numbers; a set bit multiplies by them.

    square : what is left of the mean square · middle : middle of the gain's range
    """

    bound: float
    square: float
    middle: float


def rounded(x: float) -> float:
    """x as BF16."""
    return float(to_bf16(np.array([x]))[0])


BITS = [
    GainBit(*(rounded(2.0**e) for e in (2**k / 4, -(2**k) / 4, 2**k / 8))) for k in reversed(range(GAIN_BITS))
]  # the highest first
LOWEST_MIDDLE = rounded(2.0**LOWEST * MIDDLE)


def norm(numbers: int) -> float:
    """What makes the sum of so many squares a mean square, 1 at the smallest gain."""
    return rounded(4.0**-LOWEST / numbers)


def gains_of(x: np.ndarray, fmt: DotFormat | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Gains of the numbers `x` [N, n], BF16: uint8 [N], and the middles of their ranges, BF16 [N]. NaN is large.

    A gain is found bit by bit: is what is left of the mean square above the bit's bound? Then it is multiplied by less.
    """
    n, wide = x.shape[1], x.astype(np.float32)
    none = np.full(x.shape, -0.0, np.float32)
    squares = to_bf16(smaller(fma(wide, x, none), np.full(x.shape, LARGEST, np.float32)))
    left = affine(scores(squares[:, None], np.ones((1, n), BF16), 1, fmt)[:, 0, 0], norm(n))
    gain, middle, none = np.zeros(len(x), np.uint8), np.full_like(left, LOWEST_MIDDLE), np.full_like(left, -0.0)
    for bit in BITS:
        above = affine(left, SURE, -bit.bound * SURE)
        one = smaller(larger(above, np.zeros_like(left)), np.ones_like(left))
        gain = 2 * gain + (one > 0)
        left = fma(left, to_bf16(affine(one, bit.square - 1, 1)), none)
        middle = fma(middle, to_bf16(affine(one, bit.middle - 1, 1)), none)
    return gain.astype(np.uint8), to_bf16(middle)


@cache
def limits() -> np.ndarray:
    """1, 2 and 3 STEPs, FP32 [3], whose last bit is set: their product with a BF16 number is no BF16 number."""
    return (np.float32(STEP) * np.arange(1, 4, dtype=np.float32)).view(np.uint32).__or__(1).view(np.float32)


def quantised(x: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """Odd numbers -7 to 7 of BF16 numbers `x` [N, n] with middles of gains [N], int8; zero and NaN give 1."""
    wide = x.astype(np.float32)
    size = larger(wide, -wide)
    g = np.broadcast_to(middles[:, None], x.shape)
    one, two, three = (fma(np.full(x.shape, -limit), g, size) for limit in limits())
    upper, lower = two > 0, larger(three, smaller(one, -two)) > 0
    number = 2 * (2 * upper + lower) + 1
    return np.where(wide < 0, -number, number).astype(np.int8)


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
