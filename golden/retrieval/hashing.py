"""Hash bits of keys from random hyperplanes (V-Rex section IV-B, Fig. 8 step 1)."""

from collections.abc import Iterable
from copy import copy

import numpy as np

from golden.arithmetic.dot import dot
from golden.arithmetic.numerics import flush, positive, to_bf16
from golden.function_params import ReSVParams


class Hasher:
    """Key hash-bits: bit i of a key is 1 where its dot product with hyperplane i exceeds zero, else 0.

    The product is exact, or as the parameter `dot` says the DPE's.

    Scope "layer" has one table, which hashes the keys of all KV heads of a token end to end (dim = kv_heads x
    head_dim); scope "head" has one table per KV head, all on the same hyperplanes (dim = head_dim).
    With `centre`, the mean key of the first hashed frame (FP32 sum in token order, rounded to BF16) is subtracted
    first, the difference rounded to BF16.
    """

    def __init__(self, params: ReSVParams, kv_heads: int, head_dim: int):
        self.params = params
        self.tables = kv_heads if params.scope == "head" else 1
        self.dim = kv_heads * head_dim // self.tables
        self.planes = hyperplanes(params.n_hp, self.dim, params.hash_seed)
        self.mean: np.ndarray | None = None  # [tables, dim] BF16, of the first frame

    def split(self, k: np.ndarray) -> np.ndarray:
        """Keys [T, kv_heads, head_dim] BF16 as the tables take them, subnormals flushed, [tables, T, dim]."""
        return flush(k).reshape(len(k), self.tables, self.dim).swapaxes(0, 1)

    def frame(self, keys: np.ndarray) -> np.ndarray:
        """Hash words [tables, T, words] of a frame's split keys [tables, T, dim]."""
        if self.params.centre and self.mean is None and keys.shape[1]:
            total = np.zeros((self.tables, self.dim), np.float32)
            with np.errstate(invalid="ignore", over="ignore"):
                for t in range(keys.shape[1]):
                    total = total + keys[:, t].astype(np.float32)
            self.mean = to_bf16(total / np.float32(keys.shape[1]))
        return np.stack([self.words(keys[i], i) for i in range(self.tables)])

    def sort_planes(self, keys: np.ndarray) -> None:
        """Put first the hyperplanes whose bits are most balanced on `keys` [tables, T, dim], before anything is hashed.

        It permutes the bits of every hash, so no distance, cluster or selection changes; but the bits that tell
        clusters apart then come first, so that an HCU which reads a hash in parts abandons sooner. Keys share a large
        mean, and a hyperplane that it lies far from has nearly constant bits.
        """
        if self.mean is not None:
            raise ValueError("sort_planes after a frame was hashed: the clusters' hash bits are in the old order")
        words = copy(self).frame(keys)
        bits = np.concatenate([unpack(w, self.params.n_hp) for w in words])
        order = np.argsort(np.abs(2 * bits.sum(axis=0, dtype=np.int64) - len(bits)), kind="stable")
        self.planes = self.planes[order]

    def words(self, keys: np.ndarray, table: int = 0) -> np.ndarray:
        """Hash words [N, words] of keys [N, dim] of one table."""
        if self.mean is not None:
            with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN
                keys = to_bf16(keys.astype(np.float64) - self.mean[table].astype(np.float64))
        fmt = self.params.dot
        return pack(dot(keys, self.planes, fmt) > 0 if fmt else positive(keys, self.planes))

    def rehash(self, key: np.ndarray, table: int = 0) -> int:
        """The hash of one key [dim]: what hash_policy "mean" needs."""
        return to_int(self.words(key[None], table)[0])


def hyperplanes(n_hp: int, dim: int, seed: int) -> np.ndarray:
    """Normals of the hyperplanes [n_hp, dim]: standard Gaussian from PCG64 seeded with `seed`, rounded to BF16."""
    return to_bf16(np.random.Generator(np.random.PCG64(seed)).standard_normal((n_hp, dim)))


def pack(bits: np.ndarray) -> np.ndarray:
    """Bits [N, n_hp] as little-endian 64-bit words, bit 0 first, [N, ceil(n_hp / 64)] uint64."""
    n, n_hp = bits.shape
    whole = np.zeros((n, -(-n_hp // 64) * 64), np.uint8)
    whole[:, :n_hp] = bits
    return np.packbits(whole, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def unpack(words: np.ndarray, n_hp: int) -> np.ndarray:
    """The inverse of `pack`: bits [N, n_hp] uint8 of words [N, ceil(n_hp / 64)]."""
    return np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little")[:, :n_hp]


def to_words(hashes: Iterable[int], n_hp: int) -> np.ndarray:
    """Integers as little-endian 64-bit words, [N, ceil(n_hp / 64)] uint64; ValueError if one has over `n_hp` bits."""
    hashes = [int(h) for h in hashes]
    for h in hashes:
        if not 0 <= h < 1 << n_hp:
            raise ValueError(f"hash {h:#x} does not fit in n_hp = {n_hp} bits: mask it or raise n_hp")
    words = -(-n_hp // 64)
    raw = b"".join(h.to_bytes(8 * words, "little") for h in hashes)
    return np.frombuffer(raw, "<u8").astype(np.uint64).reshape(len(hashes), words)


def to_int(words: np.ndarray) -> int:
    """The integer held by one row of 64-bit words."""
    return int.from_bytes(words.astype("<u8").tobytes(), "little")
