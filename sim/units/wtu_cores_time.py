"""Predicts the cycles of N_WTU-h WTU cores that share one stream of rows, as in the DRE."""

import numpy as np

from hdl.params import WtuParams
from sim.units.wtu_time import TO_BEAT, Row, WtuTime, _Pipeline, _Plan

NEVER = 1 << 62


class WtuCores:
    """Time view of the WTU cores of `hdl.retrieval.dre.Dre`. Words are always offered, the cluster set is always ready.

    Row r goes to core r mod N_WTU-h. The stream offers at most one word a cycle, in order. The cluster set takes the
    rows in order. A core whose turn has not come holds its first beat at the output, so that its selecting pass
    stalls; meanwhile the core loads and walks further rows.
    """

    def __init__(self, p: WtuParams):
        self.p = p

    def run(self, rows: list[tuple[np.ndarray, np.ndarray]], ratio_q16: int) -> np.ndarray:
        """Cycle of each row's last beat, [R], counted from the acceptance of the first row's first word.

        rows : score codes [C] and token counts [C] of each row
        ratio_q16 : share of the weighted sum, as an integer out of 2^16
        """
        plans = []
        for codes, counts in rows:
            recorder = _Recorder(self.p)
            plan = recorder._plan(np.asarray(codes, np.int64), np.asarray(counts, np.int64), ratio_q16)
            plans.append((plan, recorder.firsts(plan, codes)))
        return self._buckets(plans) if self.p.selection == "buckets" else self._exact(plans)

    def _exact(self, plans: list[tuple[_Plan, list[int]]]) -> np.ndarray:
        """`run` for the exact variant, cycle by cycle."""
        n = self.p.n_h
        cores = [_Core(self.p) for _ in range(n)]
        given = 0  # rows given to cores
        done: list[int] = []
        while len(done) < len(plans):
            if given < len(plans) and cores[(given - 1) % n].idle:
                cores[given % n].give(*plans[given])
                given += 1
            turn = len(done)
            for i, core in enumerate(cores):
                core.step(may_beat=turn % n == i)
            if len(cores[turn % n].done) > turn // n:
                done.append(cores[turn % n].done[-1])
        return np.array(done, np.int64) - cores[0].first[0]

    def _buckets(self, plans: list[tuple[_Plan, list[int]]]) -> np.ndarray:
        """`run` for the variant with equal buckets, row by row."""
        n = self.p.n_h
        done: list[int] = []
        offered = 0
        for r, (plan, (first,)) in enumerate(plans):
            start = max(offered, done[r - n] + 1 if r >= n else 0)
            offered = start + plan.words
            late = max(0, done[-1] + 1 - (offered - 1 + plan.crossed + first)) if done else 0
            done.append(offered - 1 + plan.crossed + plan.passes[0].ends + late)
        return np.array(done, np.int64)


class _Recorder(WtuTime):
    """Plans a row, and records when each pass has its first beat at the output, in the cycles of `_Pass.ends`."""

    def __init__(self, p: WtuParams):
        super().__init__(p)
        self._firsts: list[int] = []

    def firsts(self, plan: _Plan, codes: np.ndarray) -> list[int]:
        """Cycle of the first beat of each pass of the row that was planned last."""
        if self.p.selection == "buckets":
            return [int(np.argmax(codes)) // self.p.n_w + 1]  # the first word of the highest bucket
        return self._firsts or [1 + TO_BEAT]

    def _list(self, reach: Row, above: Row, inside: Row, weight: Row, left: int, codes: Row) -> tuple[int, int]:
        ends, asks = super()._list(reach, above, inside, weight, left, codes)
        cost = np.maximum(np.bincount(inside // self.p.n_w, minlength=len(reach)), 1)
        at, total, _ = self._steps(reach, cost)
        high, last = np.flatnonzero(above) // self.p.n_w, int(np.flatnonzero(reach)[-1])
        pop = max(total + 1, int(at[last] + cost[last]) + 3)
        first = TO_BEAT + (1 + int(at[high[0]]) if len(high) else pop)
        if len(inside) > self.p.list_limit and not (len(high) and first <= ends):
            first = NEVER  # the pass ends before its first beat
        self._firsts.append(first)
        return ends, asks

    def _equal(self, reach: Row, above: Row, inside: Row, weight: Row, left: int, codes: Row) -> tuple[int, int]:
        ends, asks = super()._equal(reach, above, inside, weight, left, codes)
        word, high = inside // self.p.n_w, np.flatnonzero(above) // self.p.n_w
        cost = np.bincount(np.unique(word), minlength=len(reach)) + np.bincount(np.unique(high), minlength=len(reach))
        at, _, _ = self._steps(reach, np.maximum(cost, 1))
        w = int(min([*word[:1], *high[:1]]))
        first = 1 + int(at[w]) + TO_BEAT
        crossing = word[int(np.argmax(weight[inside].cumsum() > left))]
        if w == crossing and w not in high and np.count_nonzero(word == w) > 1:
            first += TO_BEAT + 1  # the core sends its word lane by lane
        self._firsts.append(first)
        return ends, asks


class _Core(_Pipeline):
    """A core that receives rows one by one, and whose output may stall."""

    def __init__(self, p: WtuParams):
        super().__init__(p, [])
        self._firsts: list[list[int]] = []

    @property
    def idle(self) -> bool:
        """Whether the core has taken every word of its rows."""
        return len(self.first) == len(self.plans) and self.taken == 0

    def give(self, plan: _Plan, firsts: list[int]) -> None:
        """Offers a row from this cycle on."""
        self.plans.append(plan)
        self._firsts.append(firsts)

    def step(self, may_beat: bool) -> None:
        """Steps one cycle. Without `may_beat`, the selecting pass stalls when its first beat is at the output."""
        if self.selects and self.granted < 0 and not may_beat:
            row = len(self.done)
            at = next(i for i, p in enumerate(self.plans[row].passes) if p is self.at)
            if self.now >= self.base + self._firsts[row][at]:
                self.base += 1
        self.cycle()
