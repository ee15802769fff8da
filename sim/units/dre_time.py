"""Predicts the cycles of the DRE from the time views of its HCU, WTU, cluster set and KVMU."""

from collections.abc import Iterable

import numpy as np

from hdl.params import DreParams
from sim.units.hcu_time import HcuTime
from sim.units.kvmu_time import CLEAR, KvmuTime
from sim.units.wtu_time import WtuTime


class DreTime:
    """Time view of `hdl.retrieval.dre.Dre` with one WTU core, one phase (keys or a query block) at a time.

    A phase starts when the one before has ended. Nothing stalls: the beats of a phase are offered without a gap, and
    the DRE takes the first in cycle 0.
    """

    SET_TO_FETCH = 4  # cycles from the beat that ends a set to its first cluster on `f` (cluster set)
    EMPTY_TO_FETCH = 2  # the same for an empty set

    def __init__(self, p: DreParams, th_hd: int, device_base: int = 0, home_base: int = 0):
        self.p = p.joined()
        self.hcu = HcuTime(p.hcu, th_hd)
        self.wtu = WtuTime(p.wtu)
        self.kvmu = KvmuTime(p.kvmu, device_base, home_base)  # the base addresses decide where bursts are cut

    def keys(self, beats: Iterable[tuple[int, int, int, int]]) -> list[int]:
        """Cycle of each beat on `t` for keys (op, ctx, hash, cluster that the golden model gives).

        A result leaves the HCU in the cycle in which the KVMU takes it too. The next scan cannot end before that.
        """
        out: list[int] = []
        scan = HcuTime.LATENCY  # the cycle before the key's first comparison
        left = placed = -1  # cycle in which the last result left the HCU; first cycle in which the KVMU takes another
        counted = -2  # cycle of the last write of a count
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
        """Cycle of the last burst of a query block.

        codes : score codes of the rows, [R, C]
        counts : tokens of each cluster, [C]
        ratio_q16 : the WTU's share of the weighted sum, as an integer out of 2^16
        clusters : union of the rows' selections, ascending
        """
        _, ends = self.wtu.run([(row, counts) for row in codes], ratio_q16)
        fetch = ends[-1] + (self.SET_TO_FETCH if clusters else self.EMPTY_TO_FETCH)
        return int(fetch + self.kvmu.run([], [(ctx, clusters)]).b[-1])
