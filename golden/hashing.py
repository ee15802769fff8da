"""Hash bits of keys from random hyperplanes (V-Rex section IV-B, Fig. 8 step 1)."""

from collections.abc import Iterable

import numpy as np


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
