"""Cycles of the HCU."""

from dataclasses import dataclass

import numpy as np

from hdl.params import HcuParams


@dataclass(frozen=True)
class HcuCycles:
    """An unstalled run: `compares` per key (cycles in which accumulators work), `out` (cycle of each beat on `o`,
    the first key being accepted in cycle 0, keys offered without a gap), `bound` (tokens x clusters x N_hp / (h x w)).
    """

    compares: np.ndarray
    out: np.ndarray
    bound: float


class HcuTime:
    """Time view of `hdl.hcu.Hcu`: cycles from the distances alone, one context, starting with an empty table."""

    # Acceptance, current hash-bit memory, its output register, read of the first group.
    LATENCY = 3

    def __init__(self, p: HcuParams, th_hd: int):
        self.p, self.th_hd = p, th_hd

    def run(self, hashes: list[int]) -> HcuCycles:
        """Cycles of clustering `hashes` (integers of n_hp bits)."""
        p = self.p
        chunk_mask = (1 << p.n_w) - 1
        keys = np.array([[h >> c * p.n_w & chunk_mask for c in range(p.chunks)] for h in hashes], np.uint64)
        table = np.zeros((p.clusters, p.chunks), np.uint64)
        used, bound = 0, 0
        compares, out, cycle = [], [], self.LATENCY
        for key in keys.reshape(-1, p.chunks):
            opened, n = self._scan(table[:used], key)
            compares.append(n)
            bound += used * p.n_hp / (p.n_h * p.n_w)
            cycle += max(1, n)
            out.append(cycle)
            if opened:
                table[used] = key
                cycle += used < p.n_h  # the first group is read after it is written
                used += 1
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
        opened = least[:, -1].min() >= limit
        if not p.early_abandon:
            return opened, groups * p.chunks
        # What a group must beat: the best of the groups before it. One that is left early could not have improved it.
        best = np.minimum.accumulate(np.concatenate([[limit], least[:-1, -1]]))
        beaten = least >= best[:, None]
        visited = np.where(beaten.any(1), beaten.argmax(1) + 1, p.chunks)
        zero = np.flatnonzero(least[:, -1] == 0)
        if limit and len(zero):
            visited = visited[: zero[0] + 1]
        return opened, int(visited.sum())
