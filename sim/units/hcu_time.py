"""Cycles of the HCU."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hdl.params import HcuParams

JOIN, CLEAR = 0, 1


@dataclass(frozen=True)
class HcuCycles:
    """An unstalled run, keys offered without a gap, the first taken in cycle 0.

    compares : per key, cycles in which the accumulators work · out : cycle of each beat on `o`
    bound : tokens x clusters x N_hp / (N_HCU-h x N_HCU-w)
    """

    compares: np.ndarray
    out: np.ndarray
    bound: float


class HcuTime:
    """Time view of `hdl.retrieval.hcu.Hcu`, with the tables that it carries along; distances alone decide."""

    # Acceptance, current hash-bit memory, its output register, read of the first group.
    LATENCY = 3

    def __init__(self, p: HcuParams, th_hd: int):
        self.p, self.th_hd = p, th_hd
        self._tables = np.zeros((p.n_ctx, p.clusters, p.chunks), np.uint64)
        self.used = [0] * p.n_ctx  # clusters of each context

    def clear(self, ctx: int) -> None:
        """Forget a context."""
        self.used[ctx] = 0

    def key(self, ctx: int, key_hash: int) -> tuple[int, bool]:
        """Comparisons of a key, and whether it opens a cluster.

        If it does, the next key's scan starts a cycle later: the table is being written. If it joins, it ends
        two cycles after the key before or later: the count of that one is being written.
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
        """Cycles of clustering `hashes` (integers of n_hp bits) in context 0."""
        self.clear(0)
        return self.beats((JOIN, 0, key_hash) for key_hash in hashes)

    def beats(self, beats: Iterable[tuple[int, int, int]]) -> HcuCycles:
        """Cycles of (op, ctx, hash), where op is JOIN or CLEAR."""
        p = self.p
        compares, out, cycle, bound = [], [], self.LATENCY, 0.0
        counted = -2  # cycle in which a count was written last
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
        """Whether the key opens a cluster, and its comparisons."""
        p, used = self.p, len(table)
        if not used:
            return True, 0
        limit = p.n_hp + 1 if used == p.clusters else self.th_hd
        partial = np.cumsum(np.bitwise_count(table ^ key), axis=1, dtype=np.int64)
        groups = -(-used // p.n_h)
        pad = groups * p.n_h - used
        partial = np.pad(partial, ((0, pad), (0, 0)), constant_values=p.n_hp + 2)
        least = partial.reshape(groups, p.n_h, p.chunks).min(1)  # of a group, after each chunk
        opens = bool(least[:, -1].min() >= limit)
        if not p.early_abandon:
            return opens, groups * p.chunks
        # At least: the bits to come differ in no fewer than the difference of their ones.
        ones = np.bitwise_count(np.concatenate([table, key[None]])).astype(np.int64)
        rest = ones.sum(1, keepdims=True) - ones.cumsum(1)
        rest = np.pad(np.abs(rest[:-1] - rest[-1]), ((0, pad), (0, 0)))
        at_least = (partial + rest).reshape(groups, p.n_h, p.chunks).min(1)
        # What a group must beat: the best of the groups before it. One that is left early could not have improved it.
        best = np.minimum.accumulate(np.concatenate([[limit], least[:-1, -1]]))
        beaten = at_least >= best[:, None]
        visited = np.where(beaten.any(1), beaten.argmax(1) + 1, p.chunks)
        zero = np.flatnonzero(least[:, -1] == 0)
        if limit and len(zero):
            visited = visited[: zero[0] + 1]
        return opens, int(visited.sum())
