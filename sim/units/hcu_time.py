"""Predicts how many cycles the HCU compares for each key, and when each result leaves."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hdl.params import HcuParams

JOIN, CLEAR = 0, 1


@dataclass(frozen=True)
class HcuCycles:
    """A run without stalls. Keys are offered without a gap, and the HCU takes the first in cycle 0.

    compares : cycles in which the accumulators work, per key
    out : cycle of each beat on `o`
    bound : cycles without early abandoning, tokens x clusters x N_hp / (N_HCU-h x N_HCU-w)
    """

    compares: np.ndarray
    out: np.ndarray
    bound: float


class HcuTime:
    """Time view of `hdl.retrieval.hcu.Hcu`. It keeps the cluster tables, because the distances decide the cycles."""

    # Cycles to the first comparison: acceptance, current hash-bit memory, its output register, read of the first group.
    LATENCY = 3

    def __init__(self, p: HcuParams, th_hd: int):
        self.p, self.th_hd = p, th_hd
        self._tables = np.zeros((p.n_ctx, p.clusters, p.chunks), np.uint64)
        self.used = [0] * p.n_ctx  # clusters of each context

    def clear(self, ctx: int) -> None:
        """Empties the table of a context."""
        self.used[ctx] = 0

    def key(self, ctx: int, key_hash: int) -> tuple[int, bool]:
        """Cycles of comparing a key, and whether it opens a cluster; updates the table.

        A key that opens a cluster delays the next scan by a cycle, in which the HCU writes the table. A key that joins
        ends at least two cycles after the key before, whose count is still being written.
        """
        p, used = self.p, self.used[ctx]
        mask = (1 << p.n_w) - 1
        key = np.array([key_hash >> c * p.n_w & mask for c in range(p.chunks)], np.uint64)
        opens, compares = self._scan(self._tables[ctx, :used], key)
        if opens:
            self._tables[ctx, used] = key
            self.used[ctx] += 1
        return compares, opens

    def run(self, hashes: Iterable[int]) -> HcuCycles:
        """Cycles of clustering `hashes` (integers of n_hp bits) in context 0, which is cleared first."""
        self.clear(0)
        return self.beats((JOIN, 0, key_hash) for key_hash in hashes)

    def beats(self, beats: Iterable[tuple[int, int, int]]) -> HcuCycles:
        """Cycles of beats (op, ctx, hash), where op is JOIN or CLEAR."""
        p = self.p
        compares, out, cycle, bound = [], [], self.LATENCY, 0.0
        counted = -2  # cycle of the last write of a count
        for op, ctx, key_hash in beats:
            if op == CLEAR:
                self.clear(ctx)
                n, opens = 0, False
                cycle += 1
            else:
                bound += self.used[ctx] * p.n_hp / (p.n_h * p.n_w)
                n, opens = self.key(ctx, key_hash)
                cycle += max(1, n)
                if not opens:
                    cycle = max(cycle, counted + 2)
                counted = cycle
            compares.append(n)
            out.append(cycle)
            cycle += opens
        return HcuCycles(np.array(compares), np.array(out), bound)

    def _scan(self, table: np.ndarray, key: np.ndarray) -> tuple[bool, int]:
        """Whether a key opens a cluster, and in how many cycles the HCU compares it with `table` [used, chunks]."""
        p, used = self.p, len(table)
        if not used:
            return True, 0
        limit = p.n_hp + 1 if used == p.clusters else self.th_hd
        partial = np.cumsum(np.bitwise_count(table ^ key), axis=1, dtype=np.int64)
        groups = -(-used // p.n_h)
        pad = groups * p.n_h - used
        partial = np.pad(partial, ((0, pad), (0, 0)), constant_values=p.n_hp + 2)
        least = partial.reshape(groups, p.n_h, p.chunks).min(1)  # least distance in each group, after each chunk
        opens = bool(least[:, -1].min() >= limit)
        if not p.early_abandon:
            return opens, groups * p.chunks
        # Lower bound: the bits to come differ in at least as many places as their numbers of ones differ.
        ones = np.bitwise_count(np.concatenate([table, key[None]])).astype(np.int64)
        rest = ones.sum(1, keepdims=True) - ones.cumsum(1)
        rest = np.pad(np.abs(rest[:-1] - rest[-1]), ((0, pad), (0, 0)))
        at_least = (partial + rest).reshape(groups, p.n_h, p.chunks).min(1)
        # A group must beat the best of the groups before it. A group that the HCU abandons could not have improved it.
        best = np.minimum.accumulate(np.concatenate([[limit], least[:-1, -1]]))
        beaten = at_least >= best[:, None]
        visited = np.where(beaten.any(1), beaten.argmax(1) + 1, p.chunks)
        zero = np.flatnonzero(least[:, -1] == 0)
        if limit and len(zero):
            visited = visited[: zero[0] + 1]
        return opens, int(visited.sum())
