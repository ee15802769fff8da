"""Token signatures: a bit for each number of a key, by which queries rank tokens without reading their keys.

ReSV ranks clusters, so a token can hide behind its cluster's mean. Here every token has a signature of its own.

A page is `page` adjacent tokens. For each KV head, device memory keeps the mean key of every page and a signature of
every token: `n_hp` signs of the key less its page's mean, and the length of that difference. A query's product with a
key is then about its product with the page's mean, plus what signs and length say about the rest.

1. Page mean: the FP32 sum of the page's keys in token order, divided and rounded to BF16. A page has a mean once all
   its tokens have arrived. Only tokens outside the window of `recent` tokens need it; a page is no longer than that.
2. Difference: key less mean, rounded to BF16.
3. Signs: sign i is 1 if the difference's product with `planes` i is above zero, else -1. Planes hold 1 and -1, and are
   orthogonal, so that their signs say more about a key than those of independent planes.
4. Length: `length_codes` of the difference, in steps of 2^(1/8).
5. Query: a row is one query token of one query head. Its FP32 products with the planes are divided by a power of two,
   the row's unit, and rounded to integers, ties to even, so that the largest has `query_bits` bits with its sign.
6. Rest of the product: the sum of integers times signs, times the `significands` and the octave of the length. It is an
   integer of at most 39 bits, in a unit that is the row's times 2^-k.
7. Score of a token for a row: that integer, plus the row's FP32 product with the page's mean, rounded to the same unit,
   ties to even, and held within 2^40 units. Score for a KV head: the largest over the head's rows, units included.
8. The candidates are the tokens that are not resident. Those of the highest scores are chosen, floor(budget x
   candidates) of them; equal scores by rising index.

Source: this project (docs/papers/recall.md). Signs are hash bits as in V-Rex IV-B; sign codes of a difference from a
mean are known from vector search (RaBitQ), pages with a summary from Quest.
"""

from dataclasses import dataclass
from math import log2, pi, sqrt

import numpy as np

from openvrex.golden.arithmetic.numerics import positive, to_bf16
from openvrex.golden.function_params import Parameters, check, parameter
from openvrex.golden.retrieval.scores import scores

LENGTH_BITS = 7  # of a length code
LOWEST = -4  # octave of the shortest length that a code tells from others: code c is a length of 2^(c / 8 + LOWEST)
QUARTERS = np.exp2(np.arange(-3, 0) / 4).astype(np.float32)  # 2^(-3/4), 2^(-2/4), 2^(-1/4)
PAGE_LIMIT = 2.0**40  # units of a page's product


@dataclass(frozen=True)
class SignatureParams(Parameters):
    """Function parameters of retrieval by signatures.

    By default a signature has as many bits as a key has numbers: for a head of 64 numbers 57 signs and 7 bits of
    length, one word of 64 bits.
    """

    n_hp: int = parameter(
        0,
        "signs of a signature, one for each plane; 0: so many that signs and length fill head_size bits",
        low=0,
        high=505,
    )
    page: int = parameter(64, "tokens of a page, which share a mean key", low=1, power_of_two=True)
    query_bits: int = parameter(4, "bits of a query's product with a plane, with its sign", low=2, high=8)
    budget_q16: int = parameter(
        6553, "share of the candidates to choose, in units of 2^-16; the default is 0.1", low=0, high=65536
    )
    hash_seed: int = parameter(2025, "seed of the planes")
    recent: int = parameter(256, "most recent tokens of a layer: always attended, kept in device memory", low=1)
    sinks: int = parameter(4, "first tokens of a stream: always attended", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.page <= self.recent, "page", self.page, f"must be at most recent = {self.recent}: pages complete there"
        )

    def signs(self, head_dim: int) -> int:
        """Signs of a signature for heads of this size."""
        return self.n_hp or max(1, head_dim - LENGTH_BITS)

    def bytes(self, head_dim: int) -> int:
        """Bytes of a signature for heads of this size."""
        return -(-(self.signs(head_dim) + LENGTH_BITS) // 8)


class Signatures:
    """Page means and signatures of one decoder layer of `length` tokens, and the choice among them."""

    def __init__(self, params: SignatureParams, kv_heads: int, head_dim: int):
        self.params = params
        self.kv_heads = kv_heads
        self.n_hp = params.signs(head_dim)
        self.planes = planes(self.n_hp, head_dim, params.hash_seed)
        self.steps, self.octave = significands(self.n_hp)
        self.length = 0
        self.means = np.zeros((kv_heads, 0, head_dim), self.planes.dtype)  # [kv_heads, pages, head_dim] BF16
        self._open = np.zeros((0, kv_heads, head_dim), self.planes.dtype)  # keys of the page that is not complete
        self._signs = np.zeros((kv_heads, 1024, self.n_hp), np.float32)  # `_sign` doubles it when it is full
        self._codes = np.zeros((kv_heads, 1024), np.uint8)

    @property
    def signed(self) -> int:
        """Tokens of complete pages."""
        return self.means.shape[1] * self.params.page

    @property
    def signs(self) -> np.ndarray:
        """Signs of the tokens of complete pages, 1 or -1, FP32 [kv_heads, signed, n_hp]."""
        return self._signs[:, : self.signed]

    @property
    def codes(self) -> np.ndarray:
        """Their length codes, uint8 [kv_heads, signed]."""
        return self._codes[:, : self.signed]

    def append(self, k: np.ndarray) -> None:
        """Enter the T keys of a new frame `k` [T, kv_heads, head_dim], BF16, post-rotary; sign complete pages."""
        self.length += len(k)
        keys = np.concatenate([self._open, k])
        whole = len(keys) - len(keys) % self.params.page
        for start in range(0, whole, self.params.page):
            self._sign(keys[start : start + self.params.page])
        self._open = keys[whole:]

    def _sign(self, keys: np.ndarray) -> None:
        """Sign a page of keys [page, kv_heads, head_dim]."""
        total = np.zeros(keys.shape[1:], np.float32)
        for key in keys.astype(np.float32):
            total = total + key
        mean = to_bf16(total / np.float32(len(keys)))
        rest = to_bf16(keys.astype(np.float64) - mean.astype(np.float64))
        start = self.signed
        self.means = np.concatenate([self.means, mean[:, None]], axis=1)
        while self.signed > self._signs.shape[1]:
            self._signs = np.concatenate([self._signs, np.zeros_like(self._signs)], axis=1)
            self._codes = np.concatenate([self._codes, np.zeros_like(self._codes)], axis=1)
        for head in range(self.kv_heads):
            own = rest[:, head]
            self.signs[head, start:] = np.where(positive(own, self.planes), 1.0, -1.0)
            self.codes[head, start:] = length_codes(scores(own[:, None], own, 1)[:, 0].diagonal())

    def resident(self) -> np.ndarray:
        """Which tokens device memory keeps, [n] bool: the sinks and the last `recent` tokens."""
        t = np.arange(self.length)
        return (t < self.params.sinks) | (t >= self.length - self.params.recent)

    def query(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integers [R, n_hp] of rows `q` [R, head_dim] BF16, and the exponents [R] of their units.

        Raises `ParamError` for a query that is not finite.
        """
        products = scores(q[:, None], self.planes, 1)[:, 0].astype(np.float64)
        check(bool(np.isfinite(products).all()), "queries", "infinite or NaN", "products with planes must be finite")
        unit = np.frexp(np.abs(products).max(axis=1))[1] - (self.params.query_bits - 1)
        top = (1 << (self.params.query_bits - 1)) - 1  # rounding up may reach one more
        return np.clip(np.rint(np.ldexp(products, -unit[:, None])), -top, top), unit

    def scores(self, q: np.ndarray) -> np.ndarray:
        """Score of every signed token for every KV head, exact in FP64 [kv_heads, signed].

        Queries are [T, H, head_dim] BF16; R is T x H / kv_heads. Raises `ParamError` if the H query heads are not a
        multiple of the KV heads, or for a query that is not finite.
        """
        tokens, heads, dim = q.shape
        check(heads % self.kv_heads == 0, "query heads", heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        out = np.empty((self.kv_heads, self.signed))
        for g, rows in enumerate(q.reshape(tokens, self.kv_heads, -1, dim).swapaxes(0, 1)):
            own = rows.reshape(-1, dim)
            integers, unit = self.query(own)
            unit = unit[:, None] - self.octave
            page = np.rint(np.ldexp(scores(own[:, None], self.means[g], 1)[:, 0].astype(np.float64), -unit))
            sums = integers.astype(np.float32) @ self.signs[g].T  # magnitudes up to 505 x 127: exact in FP32
            rest = sums * np.ldexp(self.steps[self.codes[g] & 7], self.codes[g] >> 3)  # FP64
            rest += np.clip(page, -PAGE_LIMIT, PAGE_LIMIT).repeat(self.params.page, axis=1)
            out[g] = np.ldexp(rest, unit).max(axis=0, initial=-np.inf)
        return out

    def choose(self, q: np.ndarray) -> np.ndarray:
        """Candidates that the queries [T, H, head_dim] choose, [kv_heads, n] bool; raises as `scores`."""
        candidates = np.flatnonzero(~self.resident())
        count = len(candidates) * self.params.budget_q16 >> 16
        out = np.zeros((self.kv_heads, self.length), bool)
        for head, score in enumerate(self.scores(q)):
            order = np.argsort(-score[candidates], kind="stable")  # equal scores by rising index
            out[head, candidates[order[:count]]] = True
        return out


def planes(n: int, dim: int, seed: int) -> np.ndarray:
    """Planes [n, dim] of 1 and -1, BF16: rows of Hadamard matrices, whose columns have random signs (PCG64, `seed`).

    A matrix has the next power of two of `dim` rows, of which the first `dim` columns count, and gives that many planes
    in random order. They are orthogonal if `dim` is a power of two. More planes come from a further matrix.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    parts = [
        (matrix[:, :dim] * random.choice([-1.0, 1.0], dim))[random.permutation(len(matrix))]
        for _ in range(-(-n // len(matrix)))
    ]
    return to_bf16(np.concatenate(parts)[:n])


def significands(n_hp: int) -> tuple[np.ndarray, int]:
    """Significands s of the eight steps of an octave of length, integers of 8 or 9 bits in FP64, and an exponent k.

    The estimate of a product is the sum of `n_hp` signed products with planes, times the length, times
    sqrt(pi / 2) / n_hp. For code c that factor is s[c % 8] x 2^(c // 8 - k); s is rounded to the nearest integer.
    """
    factor = sqrt(pi / 2) / n_hp * 2.0**LOWEST
    k = 7 - int(np.floor(log2(factor)))
    return np.rint(factor * 2.0**k * np.exp2(np.arange(8) / 8)), k


def length_codes(squares: np.ndarray) -> np.ndarray:
    """Codes of lengths from their squares [N] FP32, not negative: uint8 [N], the same on every platform.

    A code counts quarters of octaves of the square, so eighths of octaves of the length, from 2^LOWEST up. It saturates
    at 0 and 127, a length of 2^12. Infinity and NaN have code 127.
    """
    fraction, exponent = np.frexp(squares.astype(np.float32))  # square = fraction x 2^exponent, fraction from 1/2 on
    quarters = (fraction[:, None] >= QUARTERS).sum(axis=1)
    code = 4 * (exponent.astype(np.int64) - 1 - 2 * LOWEST) + quarters
    code = np.where(squares > 0, code, 0)
    top = (1 << LENGTH_BITS) - 1
    return np.clip(np.where(np.isfinite(squares), code, top), 0, top).astype(np.uint8)
