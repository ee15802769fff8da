"""Paged KV memory: a pool of blocks with reference counts, physical eviction, and a cache of shared prefixes.

`golden.policies.hybrid` builds on it.

Source: "To Infinity and Beyond" (hybrid memory in vLLM), sections II-C, IV-B (Listing 1) and IV-D.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from openvrex.golden.function_params import check

HOLE = -1  # stands for a freed block in a block table that keeps its length


class PoolError(ValueError):
    """A pool without enough free blocks, or a call that shares, frees or caches a block that nobody holds."""


class BlockPool:
    """Blocks of KV memory, named 0 to `blocks` - 1. Several requests may hold one block; the pool counts them.

    A block whose count falls to 0 goes to the end of the free list. If it is cached under a key, `share` can take it up
    again until `allocate` gives it away. `allocate` gives blocks that were never used first, then the one longest free.

    Raises `PoolError`; a call that raises has changed nothing.
    Source: section IV-B, `GLOBAL_POOL`, "decrements the reference count of the physical pages"; vLLM's block pool.
    """

    def __init__(self, blocks: int):
        check(blocks >= 1, "blocks", blocks, "must be at least 1")
        self.blocks = blocks
        self.refs: dict[int, int] = {}  # number of holders of every block in use
        self.peak = 0  # most blocks in use at once
        self._unused = 0  # blocks from here on were never allocated
        self._free: dict[int, None] = {}  # freed blocks, longest free first
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return len(self.refs)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.blocks - self._unused + len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks, each held once."""
        if count > self.free_blocks:
            free = f"{self.free_blocks} of {self.blocks} free"
            raise PoolError(f"out of memory: {count} blocks wanted, {free}: evict, or raise pool_blocks")
        fresh = min(count, self.blocks - self._unused)
        given = list(range(self._unused, self._unused + fresh))
        self._unused += fresh
        for block in list(self._free)[: count - fresh]:
            del self._free[block]
            self._block_of.pop(self._key_of.pop(block, b""), None)
            given.append(block)
        self.refs |= dict.fromkeys(given, 1)
        self.peak = max(self.peak, self.used)
        return given

    def share(self, blocks: Sequence[int]) -> None:
        """Hold blocks once more. A block must be in use, or cached."""
        for block in blocks:
            if block not in self.refs and not (block in self._free and block in self._key_of):
                raise PoolError(f"share block {block}: neither in use nor cached: allocate it")
        for block in blocks:
            self._free.pop(block, None)
            self.refs[block] = self.refs.get(block, 0) + 1
        self.peak = max(self.peak, self.used)

    def free(self, blocks: Sequence[int]) -> list[int]:
        """Give back one hold on each block; returns the blocks that nobody holds any more."""
        for block, times in Counter(blocks).items():
            if times > self.refs.get(block, 0):
                raise PoolError(f"free block {block} {times} times: it is held {self.refs.get(block, 0)} times")
        freed = []
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]
                self._free[block] = None
                freed.append(block)
        return freed

    def cache(self, block: int, key: bytes) -> None:
        """Name the contents of a block in use by `key`. The first block of a key keeps it."""
        if block not in self.refs:
            raise PoolError(f"cache block {block}: not in use: allocate it first")
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def find(self, key: bytes) -> int | None:
        """The block with the contents named `key`, or None."""
        return self._block_of.get(key)


def rewrite(pool: BlockPool, table: list[int], sink: int, recent: int) -> tuple[list[int], list[int]]:
    """Listing 1: free the middle of a block table; returns the remaining table and the freed blocks.

    The result keeps the first `sink` and the last `recent` blocks, and never has more: the static shape. A table of at
    most sink + recent blocks stays as it is (the listing's MAX_TOKENS), since its slices would overlap and name a block
    twice.
    """
    if len(table) <= sink + recent:
        return table, []
    middle = table[sink : len(table) - recent]
    pool.free(middle)
    return table[:sink] + table[len(table) - recent :], middle


def blocks_to_free(keep: np.ndarray, block_tokens: int) -> np.ndarray:
    """Numbers of the blocks without a kept token, int64; `keep` is bool [n]. The last block may be partly filled.

    Source: section IV-B, `compression_info`.
    """
    padded = np.zeros(-(-len(keep) // block_tokens) * block_tokens, bool)
    padded[: len(keep)] = keep
    return np.flatnonzero(~padded.reshape(-1, block_tokens).any(axis=1))


def prefill(pool: BlockPool, tokens: np.ndarray, block_tokens: int) -> tuple[list[int], int]:
    """Build the block table of a request of tokens [n] int64; returns the table and the tokens found in the cache.

    Only whole blocks are cached, under the hash of all tokens up to their end. So a hit needs an identical prefix.
    Source: section IV-D, "prefix caching mechanism detects the shared hash".
    """
    whole = np.asarray(tokens, np.int64)[: len(tokens) // block_tokens * block_tokens]
    keys: list[bytes] = []
    key = b""
    for row in whole.reshape(-1, block_tokens):
        key = blake2b(key + row.tobytes(), digest_size=16).digest()
        keys.append(key)
    hits: list[int] = []
    for key in keys:
        hit = pool.find(key)
        if hit is None:
            break
        hits.append(hit)
    pool.share(hits)
    try:
        table = hits + pool.allocate(-(-len(tokens) // block_tokens) - len(hits))
    except PoolError:
        pool.free(hits)
        raise
    for block, key in zip(table, keys, strict=False):
        pool.cache(block, key)
    return table, len(hits) * block_tokens
