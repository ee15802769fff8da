"""Cycles of the DRE, from those of its units."""

from collections.abc import Iterable

import numpy as np

from hdl.params import DreParams
from sim.units.hcu_time import HcuTime
from sim.units.kvmu_time import CLEAR, KvmuTime
from sim.units.wtu_time import WtuTime


class DreTime:
    """Time view of `Dre` with one WTU core, phase by phase: a phase starts when the one before has ended.

    Nothing stalls, beats of a phase are offered without a gap, the first is taken in cycle 0.
    """

    SET_TO_FETCH = 4  # the beat that ends a set to the first cluster on `f` (ClusterSet)
    EMPTY_TO_FETCH = 2

    def __init__(self, p: DreParams, th_hd: int, device_base: int = 0, home_base: int = 0):
        self.p = p.joined()
        self.hcu = HcuTime(p.hcu, th_hd)
        self.wtu = WtuTime(p.wtu)
        self.kvmu = KvmuTime(p.kvmu, device_base, home_base)  # where bursts are cut depends on the base

    def keys(self, beats: Iterable[tuple[int, int, int, int]]) -> list[int]:
        """Cycle of each beat on `t` for keys (op, ctx, hash, cluster that golden gives).

        A result leaves the HCU when the KVMU takes it too, and the next scan cannot end before that.
        """
        out = []
        scan = HcuTime.LATENCY  # cycle before the first comparison of the key
        left = placed = -1  # cycle in which the result before left; from which the KVMU takes the next
        counted = -2  # cycle in which a count was written last
        for op, ctx, key_hash, cluster in beats:
            if op == CLEAR:
                self.hcu.clear(ctx)
                compares, opens = 1, False
            else:
                compares, opens = self.hcu.key(ctx, key_hash)
            valid = max(scan + max(1, compares), left + 1)
            if op != CLEAR:
                valid = counted = valid if opens else max(valid, counted + 2)
            taken = max(valid, placed)
            placed = taken + self.kvmu.run([(op, ctx, cluster)]).free
            left = taken
            out.append(valid)
            scan = valid + opens
        return out

    def query(self, ctx: int, codes: np.ndarray, counts: np.ndarray, ratio_q16: int, clusters: list[int]) -> int:
        """Cycle of the last burst of a query block: rows `codes` [R, C], union `clusters`."""
        _, ends = self.wtu.run([(row, counts) for row in codes], ratio_q16)
        fetch = ends[-1] + (self.SET_TO_FETCH if clusters else self.EMPTY_TO_FETCH)
        return int(fetch + self.kvmu.run([], [(ctx, clusters)]).b[-1])
