"""Predicts the cycles of N_WTU-h WTU cores that share one stream of rows, as in the DRE."""

from collections.abc import Sequence

import numpy as np

from openvrex.hdl.params import WtuParams
from openvrex.sim.units.wtu_time import SETTLES, TO_CHECK, Ring, RowPlan, WtuTime


class WtuCores:
    """Time view of the WTU cores of `hdl.retrieval.dre.Dre`.

    Words are always offered, the cluster set is always ready. Row r goes to core r mod N_WTU-h, in all its readings.
    The stream offers at most one word a cycle, in order. So the readings of two rows never overlap: a further core
    takes a row while the one before ends its own. With buckets it also loads while another core selects.
    Counts that do not fit on chip come to the first core alone, here without a gap.
    """

    def __init__(self, p: WtuParams):
        self.p = p

    def run(self, rows: list[tuple[np.ndarray, np.ndarray]], ratio_q16: int, budgets: Sequence[int] = ()) -> np.ndarray:
        """Cycle of each row's last beat, [R], counted from the acceptance of the first row's first word.

        rows : score codes [C] and token counts [C] of each row
        ratio_q16, budgets : as in `WtuTime.run`
        """
        view = WtuTime(self.p)
        if len(rows[0][1]) > self.p.counts:
            first, last = view.run(rows, ratio_q16, Ring(self.p.count_words, self.p.count_words), budgets)
            return last - first[0]
        each = zip(rows, budgets or [0] * len(rows), strict=True)
        plans = [view.plan(codes, counts, ratio_q16, budget) for (codes, counts), budget in each]
        if self.p.selection == "buckets":
            return self._buckets(plans, [int(np.argmax(codes)) // self.p.n_w + 1 for codes, _ in rows])
        return self._exact(plans)

    def _exact(self, plans: list[RowPlan]) -> np.ndarray:
        """`run` for the exact variant. A core's last beat leaves before the next core has read its row once."""
        n, start, done = self.p.n_h, 1 - plans[0].digits[0], list[int]()
        for r, plan in enumerate(plans):
            begin = max(start, done[r - n] + 1 if r >= n else start)
            _, last = WtuTime(self.p)._times([plan], None)
            done.append(begin + plan.digits[0] - 1 + int(last[0]))
            start = done[r] + 1 - SETTLES - 1
        return np.array(done, np.int64)

    def _buckets(self, plans: list[RowPlan], firsts: list[int]) -> np.ndarray:
        """`run` for the variant with equal buckets.

        firsts : cycle of each row's first beat, that of the first word of the highest bucket
        """
        n = self.p.n_h
        done: list[int] = []
        offered = 0
        for r, (plan, first) in enumerate(zip(plans, firsts, strict=True)):
            words = len(plan.digits)
            start = max(offered, done[r - n] + 1 if r >= n else 0)
            offered = start + words
            late = max(0, done[-1] + 1 - (offered - 1 + TO_CHECK + first)) if done else 0
            done.append(offered - 1 + TO_CHECK + words * plan.walked + late)
        return np.array(done, np.int64)
