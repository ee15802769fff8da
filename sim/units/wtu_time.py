"""Predicts the cycles of the WTU for rows of score codes and token counts, in both variants.

A row's codes and counts fix how long each of its stages takes (`WtuTime._plan`). For the exact variant, `_Pipeline`
then steps the rows through the stages, which overlap and wait for each other.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from golden.arithmetic.score_codes import value
from golden.function_params import ReSVParams
from golden.retrieval.wicsum import bucket, threshold
from hdl.params import WtuParams

# In cycles:
TO_CHECK = 5  # buckets: from the last word of a load to the first pass
TO_MOVE = 1  # exact: from the acceptance of the last word until the row leaves the loading stage
TO_EVERY = 2  # from there until the unit knows that it selects the whole row
TO_ADD = 3  # from the last digit that a zoom adds to the read of its first bin
TO_BIN = 2  # from the read of a bin to its check
TO_BEAT = 4  # from the read of a word, or of a list entry, to its beat

Row = np.ndarray  # one value for each cluster or word of a row


@dataclass(frozen=True)
class RowTiming:
    """Timing of one row in a unit that is otherwise idle.

    words : words of the row, which is the bound of one pass in cycles
    walked : bins that the unit walks; for the variant "buckets", passes over the row
    zooms : number of zooms into a bin
    latency : cycles from the acceptance of the first word to the last beat
    """

    words: int
    walked: int
    zooms: int
    latency: int


@dataclass(frozen=True)
class _Pass:
    """One selecting pass. Cycles count from the end of the walk before it, unless stated."""

    ends: int  # last beat, or the first cycle in which the list is too short
    asks: int  # first cycle in which a zoom can start; 0 if the pass completes the selection
    feed: int = 0  # cycles in which the zoom before it occupies the lanes, from its start to the read of the first bin
    walk: int = 0  # cycles from there to the end of its walk


@dataclass(frozen=True)
class _Plan:
    """How long each stage takes for a row."""

    words: int
    digits: tuple[int, ...]  # cycles in which the lanes add each word's counts
    crossed: int  # cycles from when the row leaves the loading stage to the end of the walk
    passes: tuple[_Pass, ...]
    walked: int  # bins, or passes over the row


class WtuTime:
    """Time view of `hdl.retrieval.wtu.Wtu`, both variants. Input words are always offered, output is always taken.

    In all methods `ratio_q16` is the share of the weighted sum to reach, as an integer out of 2^16.
    """

    def __init__(self, p: WtuParams):
        self.p = p
        rest = p.score.bits
        self.digits: list[int] = []  # lowest bit of each digit of a code
        while rest:
            rest -= min(p.bin_bits, rest)
            self.digits.append(rest)

    def row(self, codes: np.ndarray, counts: np.ndarray, ratio_q16: int) -> RowTiming:
        """Timing of one row of score codes `codes` [C] with token counts `counts` [C]. C is at least 1."""
        plan = self._plan(np.asarray(codes, np.int64), np.asarray(counts, np.int64), ratio_q16)
        latency = sum(plan.digits[1:]) + plan.crossed + plan.passes[0].ends
        if self.p.selection == "exact":
            latency += TO_MOVE
        for before, after in itertools.pairwise(plan.passes):
            latency += before.asks - before.ends + after.feed + after.walk + after.ends
        return RowTiming(plan.words, plan.walked, len(plan.passes) - 1, latency)

    def worst(self, clusters: int, largest: int) -> int:
        """Upper bound of the latency of any row of `clusters` clusters whose counts are at most `largest`."""
        p = self.p
        words = -(-clusters // p.n_w)
        if p.selection == "buckets":
            return words * (1 + p.n_buckets) + TO_CHECK - 1
        digits = max(1, -(-largest.bit_length() // p.count_digit))
        bins = [1 << top - low for top, low in itertools.pairwise([p.score.bits, *self.digits])]
        load = words * digits
        cycles = load + TO_MOVE + p.th_steps + 1 + bins[0]
        for b in bins[1:]:
            # The list turns out too short at its last candidate; then the words are fed to the lanes; then a walk.
            cycles += words + p.list_limit + p.list_depth + TO_BEAT + 4 + load + TO_ADD + 2 + b
        # Equal candidates: every word for its codes above, again for its equal ones, and one word lane by lane.
        return cycles + 2 * words + p.n_w + 4 * TO_BEAT

    def run(self, rows: list[tuple[np.ndarray, np.ndarray]], ratio_q16: int) -> tuple[np.ndarray, np.ndarray]:
        """Cycles in which each row's first word is accepted (0 for the first row) and its last beat leaves, [R] each.

        rows : codes [C] and counts [C] of each row
        """
        plans = [self._plan(np.asarray(c, np.int64), np.asarray(n, np.int64), ratio_q16) for c, n in rows]
        if self.p.selection == "buckets":
            first, done = np.zeros(len(plans), np.int64), np.zeros(len(plans), np.int64)
            start = 0
            for r, plan in enumerate(plans):
                first[r], done[r] = start, start + plan.words - 1 + plan.crossed + plan.passes[0].ends
                start = done[r] + 1
            return first, done
        pipeline = _Pipeline(self.p, plans)
        while len(pipeline.done) < len(plans):
            pipeline.cycle()
        first, done = np.array(pipeline.first, np.int64), np.array(pipeline.done, np.int64)
        return first - first[:1], done - first[:1]

    def _plan(self, codes: Row, counts: Row, ratio_q16: int) -> _Plan:
        """How long each stage takes for a row."""
        p, n = self.p, len(codes)
        words = -(-n // p.n_w)
        digits = self._count_digits(counts, words)
        weight = value(codes, p.score)
        if p.score.value_bits + p.count_bits + n.bit_length() > 62:
            weight, counts = weight.astype(object), counts.astype(object)
        weight = weight * counts
        total = weight.sum()
        left = int(threshold(np.asarray(total), ratio_q16))
        if p.selection == "buckets":
            b = bucket(codes, p.n_buckets)
            acc = np.array([weight[b == j].sum() for j in range(b.max() + 1)]).cumsum()
            over = np.flatnonzero(acc > left)
            walked = int(over[0]) + 1 if len(over) else p.n_buckets
            return _Plan(words, (1,) * words, TO_CHECK, (_Pass(words * walked, 0),), walked)
        if total == 0 or ratio_q16 >= 1 << 16:
            return _Plan(words, tuple(digits), TO_EVERY, (_Pass(words + TO_BEAT, 0),), 0)

        top = codes >> self.digits[0]
        pad = words * p.n_w - n
        highest = np.pad(top, (0, pad)).reshape(words, p.n_w).max(1)
        inside = np.arange(n)  # indices of the codes in the crossing bin
        above = np.zeros(n, bool)
        passes: list[_Pass] = []
        walked = crossed = 0
        # Each level is a pass. Its walk goes down the bins of one digit of the codes and finds the bin in which the sum
        # crosses the threshold. If the list cannot order that bin's codes, a zoom splits the bin by the next digit.
        for level, low in enumerate(self.digits):
            width = (self.digits[level - 1] if level else p.score.bits) - low
            digit = (codes[inside] >> low) & ((1 << width) - 1)
            order = np.argsort(-digit, kind="stable")
            crossing = int(digit[order[np.argmax(weight[inside][order].cumsum() > left)]])
            higher = digit > crossing
            bins = int(digit.max()) - crossing + 1
            walked += bins
            feed = walk = 0
            if level == 0:
                reach = highest >= crossing
                crossed = p.th_steps + TO_BIN + bins
            else:
                feed = self._feed(reach, digits)
                walk = TO_BIN - 1 + bins
            left -= int(weight[inside][higher].sum())
            above[inside[higher]] = True
            inside = inside[digit == crossing]
            scan = self._equal if level == len(self.digits) - 1 else self._list
            ends, asks = scan(reach, above, inside, weight, left, codes)
            passes.append(_Pass(ends, asks, feed, walk))
            if not asks:
                break
        return _Plan(words, tuple(digits.tolist()), crossed, tuple(passes), walked)

    def _count_digits(self, counts: np.ndarray, words: int) -> np.ndarray:
        """Number of digits of the largest count in each word, at least 1, [words]."""
        p = self.p
        largest = np.pad(counts.astype(np.int64), (0, words * p.n_w - len(counts))).reshape(words, p.n_w).max(1)
        digits = np.ones(words, np.int64)
        for d in range(1, p.count_digits):
            digits += largest >> d * p.count_digit > 0
        return digits

    def _steps(self, reach: np.ndarray, cost: np.ndarray | None) -> tuple[np.ndarray, int, bool]:
        """Steps of a scan over the row: when it reads each word, its cycles, and whether its last step reads a word.

        reach : words that reach the bin; the scan skips groups without one
        cost : cycles for each word read, 1 if None
        """
        words, size = len(reach), self.p.group
        spent = reach.astype(np.int64) if cost is None else np.where(reach, cost, 0)
        groups = -(-words // size)
        blank = ~np.asarray(np.pad(reach, (0, groups * size - words)).reshape(groups, size).any(1))
        at = spent.cumsum() - spent + np.repeat(blank.cumsum() - blank, size)[:words]
        return at, int(spent.sum() + blank.sum()), not blank[-1]

    def _feed(self, reach: np.ndarray, digits: np.ndarray) -> int:
        """Cycles from the start of a zoom to the read of its first bin. A word takes a cycle for each of its digits."""
        at, total, _ = self._steps(reach, None)
        steps = np.zeros(total, np.int64)
        steps[at[reach]] = digits[reach]
        cycle = added = 0  # cycle of the step; cycle in which the lanes are free again
        for taken in steps.tolist():
            cycle = max(cycle + 1, added)
            added = cycle + taken if taken else added
        return max(cycle + 1, added + TO_ADD)

    def _list(self, reach: Row, above: Row, inside: Row, weight: Row, left: int, codes: Row) -> tuple[int, int]:
        """`_Pass.ends` and `_Pass.asks` of a pass that sorts its candidates in the list.

        reach : words with a code in or above the crossing bin, [words]
        above : clusters above the crossing bin, [C]
        inside : indices of the candidates, the clusters in the crossing bin
        weight : code value x count, [C]
        left : weight that the candidates must exceed
        codes : score codes, [C]
        """
        p, words = self.p, len(reach)
        word = inside // p.n_w
        candidates = np.bincount(word, minlength=words)
        has_above = np.zeros(words, bool)
        has_above[np.flatnonzero(above) // p.n_w] = True
        cost = np.maximum(candidates, 1)
        at, total, _ = self._steps(reach, cost)
        if len(inside) > p.list_limit:
            w = int(word[p.list_limit])
            over = 2 + int(at[w]) + p.list_limit - int(candidates[:w].sum())  # the first candidate over the limit
            sent = 2 + at[reach & has_above]  # cycles of codes above the bin that are in flight
            left_over = max((3 - d for d in (1, 2) if over - d in sent), default=0)
            return over + 1, over + 1 + left_over
        order = np.argsort(-codes[inside], kind="stable")
        pops = int(np.argmax(weight[inside][order].cumsum() > left))
        w = int(np.flatnonzero(reach)[-1])
        first = max(total + 1, int(at[w] + cost[w]) + 3)  # first pop: the list holds all candidates
        if pops >= p.list_depth:
            empty = first + p.list_depth + TO_BEAT + 1
            return empty, empty
        return first + pops + TO_BEAT, 0

    def _equal(self, reach: Row, above: Row, inside: Row, weight: Row, left: int, codes: Row) -> tuple[int, int]:
        """As `_list`, for equal candidates. The unit takes whole words, and goes lane by lane where they cross."""
        p, words = self.p, len(reach)
        word = inside // p.n_w
        has_equal, has_above = np.zeros(words, bool), np.zeros(words, bool)
        has_equal[word] = True
        has_above[np.flatnonzero(above) // p.n_w] = True
        at, _, _ = self._steps(reach, np.maximum(has_equal.astype(np.int64) + has_above, 1))
        crossing = int(np.argmax(weight[inside].cumsum() > left))
        w = int(word[crossing])
        cycle = 1 + int(at[w]) + int(has_above[w]) + TO_BEAT  # the unit weighs the equal lanes of the word
        if np.count_nonzero(word == w) > 1:
            cycle += TO_BEAT + 1 + crossing - int(np.argmax(word == w))
        rest = reach.copy()
        rest[: w + 1] = False
        group = w // p.group * p.group
        _, total, reads = self._steps(rest[group:], None)
        return cycle + 1 + total + int(reads) + TO_BEAT, 0


class _Pipeline:
    """Steps rows through the exact variant: one is loaded, one waits for its crossing bin, one is selected.

    The plans say how long a stage takes. The pipeline decides which row waits for which. Attributes hold for `now`.
    """

    def __init__(self, p: WtuParams, plans: list[_Plan]):
        self.p, self.plans = p, plans
        self.now = 0
        self.first: list[int] = []  # cycle in which each row's first word was accepted
        self.done: list[int] = []  # cycle of each row's last beat
        self.taken = 0  # words taken of the row in the loading stage
        self.full = False  # that row is complete
        self.adds, self.part = False, 0  # the lanes add a digit; digits that they have added of the next word
        self.counted = False  # the next word's counts have been read
        self.moved = 0  # rows that have left the loading stage
        self.waits, self.since = False, 0  # a row is in the waiting stage; the cycle in which it came
        self.handed = 0  # rows that have left the waiting stage
        self.selects = False  # a row is in the selecting stage
        self.passes: Iterator[_Pass] = iter(())  # its passes to come
        self.at = _Pass(0, 0)  # its current pass, meaningless while `selects` is low
        self.base = 0  # the cycle from which that pass counts
        self.granted = -1  # start of the zoom before the pass `at`, -1 without a zoom in flight

    def cycle(self) -> None:
        """Steps one cycle."""
        p, now = self.p, self.now
        start, idle = self.taken == 0, not self.waits
        crossed = self.since + self.plans[self.moved - 1].crossed if self.waits else 0
        parked = self.waits and now > crossed
        th = self.waits and self.since + (p.th_steps == 1) < now <= min(self.since + 1 + p.th_steps, crossed)
        zooming = self.granted >= 0
        feeding = zooming and now <= self.granted + self.at.feed
        over = self.selects and not zooming and self.at.asks > 0 and now >= self.base + self.at.ends
        move = self.full and idle and not zooming
        if p.walk_ahead:
            free = not self.full
            stop = over and (idle or parked) and not self.part
        else:
            free = not self.full and idle and not over and not zooming
            free = free and (p.double_buffer or len(self.first) == len(self.done))
            stop = False
        row = len(self.first) - (not start)
        offered = row < len(self.plans)
        take = offered and self.counted and (free or self.part > 0 or not start) and not (th or stop or feeding)
        accept = take and self.part + 1 == self.plans[row].digits[self.taken]
        last = accept and self.taken + 1 == self.plans[row].words
        read = offered and not self.counted and not feeding and (p.double_buffer or free or not start)
        walked = parked or (idle and not self.full)
        grant = over and now >= self.base + self.at.asks and not self.adds and not self.part and walked
        grant = grant and (start or p.walk_ahead)
        hand = self.waits and now >= crossed and not self.selects
        finish = self.selects and not zooming and not self.at.asks and now == self.base + self.at.ends

        self.adds, self.part = take, self.part + 1 if take and not accept else 0 if accept else self.part
        self.counted = (read or (accept and not last) or (self.counted and not accept)) and not grant
        if move:
            self.full, self.waits, self.since, self.moved = False, True, now, self.moved + 1
        if accept:
            if start:
                self.first.append(now)
            self.full = last
            self.taken = 0 if last else self.taken + 1
        if hand:
            self.waits, self.selects, self.base = False, True, now
            self.passes = iter(self.plans[self.handed].passes)
            self.at = next(self.passes)
            self.handed += 1
        if grant:
            self.granted, self.at = now, next(self.passes)
        elif zooming and now == self.granted + self.at.feed + self.at.walk:
            self.granted, self.base = -1, now
        if finish:
            self.selects = False
            self.done.append(now)
        self.now += 1


def params_of(p: WtuParams, ratio_q16: int) -> ReSVParams:
    """Function parameters of the golden model that match a WTU and its input `ratio`."""
    return ReSVParams(
        score=p.score,
        count_bits=p.count_bits,
        ratio_q16=ratio_q16,
        selection=p.selection,
        n_buckets=p.n_buckets,
    )
