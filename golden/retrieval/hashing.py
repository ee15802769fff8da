"""Hash bits of keys: similar keys get hash bits that differ in few places.

Each hash bit says on which side of a random hyperplane the key lies. Source: V-Rex section IV-B, Fig. 8 step 1.
"""

from collections.abc import Iterable
from copy import copy

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import flush, matmul, positive, to_bf16
from openvrex.golden.arithmetic.vector import fma
from openvrex.golden.function_params import ReSVParams


class Hasher:
    """Computes the hash bits of keys. Bit i is 1 if the key's dot product with hyperplane i is above a threshold.

    The dot product is that of the DPE if the parameter `dot` gives its format. Otherwise it is exact.

    * Scope "layer" has one table. It hashes the keys of all KV heads of a token end to end (dim = kv_heads x
      head_dim).
    * Scope "head" has one table per KV head, all with the same hyperplanes (dim = head_dim).
    * The threshold is zero. With `centre` it is the mean product of the first frame that the hasher hashed. So the
      mean key of that frame lies on every hyperplane, and bits tell keys apart by what they do not share.

    With `centre`, all arithmetic is that of the VPE, `golden.arithmetic.vector.fma`, on products in FP32 (exact ones
    are rounded once). The first frame's T products P and s = 1 / T rounded to BF16 give the threshold
    t = fma(P[T - 1], s, ... fma(P[1], s, fma(P[0], s, -0))). Bit i is 1 if fma(P, 1, -t) is above zero: a difference
    below 2^-126 counts as zero, and NaN gives 0.

    `tables` is the number of tables, `planes` [n_hp, dim] BF16 the hyperplanes.
    """

    def __init__(self, params: ReSVParams, kv_heads: int, head_dim: int):
        self.params = params
        self.tables = kv_heads if params.scope == "head" else 1
        self.dim = kv_heads * head_dim // self.tables
        self.planes = hyperplanes(params.n_hp, self.dim, params.hash_seed)
        self.thresholds: np.ndarray | None = None  # [tables, n_hp] FP32, for `centre`: from the first frame

    def split(self, k: np.ndarray) -> np.ndarray:
        """Rearrange keys [T, kv_heads, head_dim] BF16 for the tables, [tables, T, dim], with subnormals flushed."""
        return flush(k).reshape(len(k), self.tables, self.dim).swapaxes(0, 1)

    def frame(self, keys: np.ndarray) -> np.ndarray:
        """Hash a frame's keys, `split` before: hash words [tables, T, words] uint64 of keys [tables, T, dim]."""
        if self.params.centre and self.thresholds is None and keys.shape[1]:
            self.thresholds = np.stack([mean_product(self.products(own)) for own in keys])
        return np.stack([self.words(keys[i], i) for i in range(self.tables)])

    def sort_planes(self, keys: np.ndarray) -> None:
        """Sort the hyperplanes so that an HCU that reads hashes in parts abandons distant clusters sooner.

        The hyperplanes whose bits are most balanced on `keys` [tables, T, dim] come first: they tell clusters
        apart best. Keys share a large mean, and a hyperplane far from this mean gives nearly constant bits. Sorting
        permutes the bits of every hash, so no distance, cluster or selection changes.

        Call it before any frame is hashed. Raises `ValueError` if `centre` already took thresholds from a frame.
        """
        if self.thresholds is not None:
            raise ValueError("sort_planes after a frame was hashed: old hashes have the old order; call it before")
        words = copy(self).frame(keys)
        bits = np.concatenate([unpack(w, self.params.n_hp) for w in words])
        order = np.argsort(np.abs(2 * bits.sum(axis=0, dtype=np.int64) - len(bits)), kind="stable")
        self.planes = self.planes[order]

    def words(self, keys: np.ndarray, table: int = 0) -> np.ndarray:
        """Hash words [N, words] uint64 of keys [N, dim] BF16 of one table."""
        if self.thresholds is not None:
            products = self.products(keys)
            one = np.ones(1, keys.dtype)
            return pack(fma(products, one, -np.broadcast_to(self.thresholds[table], products.shape)) > 0)
        fmt = self.params.dot
        return pack(dot(keys, self.planes, fmt) > 0 if fmt else positive(keys, self.planes))

    def products(self, keys: np.ndarray) -> np.ndarray:
        """Dot products of keys [N, dim] BF16 with the hyperplanes, FP32 [N, n_hp]."""
        fmt = self.params.dot
        return dot(keys, self.planes, fmt) if fmt else matmul(keys, self.planes)

    def rehash(self, key: np.ndarray, table: int = 0) -> int:
        """The hash of one key [dim] BF16 as an integer, for `hash_policy` "mean"."""
        return to_int(self.words(key[None], table)[0])


def mean_product(products: np.ndarray) -> np.ndarray:
    """The mean of rows [T, n_hp] FP32 as the VPE computes it in token order, [n_hp] FP32. `Hasher` states it."""
    share = to_bf16(np.array([1 / len(products)]))
    mean = np.full(products.shape[1], -0.0, np.float32)
    for row in products:
        mean = fma(row, share, mean)
    return mean


def hyperplanes(n_hp: int, dim: int, seed: int) -> np.ndarray:
    """Normals of the hyperplanes, [n_hp, dim] BF16: standard Gaussian numbers from PCG64 with seed `seed`."""
    return to_bf16(np.random.Generator(np.random.PCG64(seed)).standard_normal((n_hp, dim)))


def pack(bits: np.ndarray) -> np.ndarray:
    """Pack bits [N, n_hp] into little-endian 64-bit words, [N, ceil(n_hp / 64)] uint64; bit 0 is the lowest."""
    n, n_hp = bits.shape
    whole = np.zeros((n, -(-n_hp // 64) * 64), np.uint8)
    whole[:, :n_hp] = bits
    return np.packbits(whole, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def unpack(words: np.ndarray, n_hp: int) -> np.ndarray:
    """Undo `pack`: bits [N, n_hp] uint8 of words [N, ceil(n_hp / 64)]."""
    return np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little")[:, :n_hp]


def to_words(hashes: Iterable[int], n_hp: int) -> np.ndarray:
    """Integers as little-endian 64-bit words, [N, ceil(n_hp / 64)] uint64.

    Raises `ValueError` for a negative integer and for one of more than `n_hp` bits.
    """
    hashes = [int(h) for h in hashes]
    for h in hashes:
        if not 0 <= h < 1 << n_hp:
            raise ValueError(f"hash {h:#x} does not fit in n_hp = {n_hp} bits: mask it or raise n_hp")
    words = -(-n_hp // 64)
    raw = b"".join(h.to_bytes(8 * words, "little") for h in hashes)
    return np.frombuffer(raw, "<u8").astype(np.uint64).reshape(len(hashes), words)


def to_int(words: np.ndarray) -> int:
    """The integer that one row of little-endian 64-bit words [words] holds."""
    return int.from_bytes(words.astype("<u8").tobytes(), "little")
