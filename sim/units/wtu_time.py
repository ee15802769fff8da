"""Predicts the cycles of the WTU for rows of score codes and token counts, in both variants.

A row's codes and counts fix how long each of its readings and walks takes. Only counts that stream make words wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval.wicsum import bucket, select, threshold
from openvrex.hdl.params import COUNT_BANKS, WtuParams

# In cycles:
TO_CHECK = 5  # buckets: from the last word of a load to the first pass
SETTLES = 3  # exact: from the last digit of a reading or a test until its bin is read
TH = 16  # exact: multiplication for Th
EVERY = 1  # exact: the same for a row that is selected as a whole


@dataclass(frozen=True)
class RowTiming:
    """Timing of one row in a unit that is otherwise idle, with its counts on chip.

    words : words of the row
    walked : bins that the unit walks; for the variant "buckets", passes over the row
    tests : tests of equal codes
    latency : cycles from the first word's acceptance, in the first reading, to the last beat
    """

    words: int
    walked: int
    tests: int
    latency: int


@dataclass(frozen=True)
class RowPlan:
    """What a row takes.

    digits : cycles in which the lanes add each word's counts
    walks : cycles between a reading and the next, from the last word to the first word's first digit
    tests : tests of each word in the last reading
    walked : bins walked; for the variant "buckets", passes over the row
    """

    digits: tuple[int, ...]
    walks: tuple[int, ...]
    tests: tuple[int, ...]
    walked: int


class WtuTime:
    """Time view of `hdl.retrieval.wtu.Wtu`, both variants. Input words are always offered, output is always taken.

    In all methods `ratio_q16` is the share of the weighted sum to reach, as an integer out of 2^16, and `budget` the
    tokens to select instead; 0: the share.
    """

    def __init__(self, p: WtuParams):
        self.p = p

    def row(self, codes: np.ndarray, counts: np.ndarray, ratio_q16: int, budget: int = 0) -> RowTiming:
        """Timing of one row of score codes `codes` [C] with token counts `counts` [C]. C is at least 1."""
        plan = self.plan(codes, counts, ratio_q16, budget)
        _, last = self._times([plan], None)
        return RowTiming(len(plan.digits), plan.walked, sum(plan.tests), int(last[0]))

    def worst(self, clusters: int, largest: int) -> int:
        """The longest latency of a row of `clusters` clusters, whole words, whose counts are at most `largest`.

        All codes are 1, the least that weighs something, so that every bin but the last is walked and every word is
        tested; the threshold falls into the last word. Of a row that ends within a word it is a bound.
        """
        p = self.p
        words = -(-clusters // p.n_w)
        if p.selection == "buckets":
            return words * (1 + p.n_buckets) + TO_CHECK - 1
        digits = max(1, -(-largest.bit_length() // p.count_digit))
        bins = [1 << width for width, _ in p.digits]
        walks = bins[0] + TH + sum(SETTLES + b for b in bins)
        tests = (words + p.test_steps) * (digits + SETTLES + 1)  # every word has equal codes, and one is halved
        return p.readings * words * digits + walks - 1 + tests + SETTLES + 1 - digits

    def run(
        self,
        rows: list[tuple[np.ndarray, np.ndarray]],
        ratio_q16: int,
        ring: "Ring | None" = None,
        budgets: Sequence[int] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cycles in which each row's first word is accepted (0 for the first row) and its last beat leaves, [R] each.

        rows : codes [C] and counts [C] of each row
        ring : the counts do not fit, so they stream through this ring
        budgets : `budget` of each row; none given: 0
        """
        each = zip(rows, budgets or [0] * len(rows), strict=True)
        plans = [self.plan(codes, counts, ratio_q16, budget) for (codes, counts), budget in each]
        return self._times(plans, ring)

    def delayed(self, codes: np.ndarray, counts: np.ndarray, ratio_q16: int, taken: int, budget: int = 0) -> int:
        """Cycles by which a row ends later if no beat of it is taken before cycle `taken`; of the exact variant.

        Cycle 0 is that of the first word's acceptance. Words go on until one has to wait for the beat of another.
        """
        plan = self.plan(codes, counts, ratio_q16, budget)
        chosen = select(codes, counts, params_of(self.p, ratio_q16), budget or None).mask
        starts = 1 - plan.digits[0] + sum(plan.digits) * len(plan.walks) + sum(plan.walks)
        for k, (digits, tests) in enumerate(zip(plan.digits, plan.tests, strict=True)):
            starts += tests * (digits + SETTLES + 1) + digits
            if chosen[k * self.p.n_w : (k + 1) * self.p.n_w].any():
                break
        last = k == len(plan.digits) - 1
        return max(0, taken - starts - last * SETTLES)

    def plan(self, codes: np.ndarray, counts: np.ndarray, ratio_q16: int, budget: int = 0) -> RowPlan:
        """What a row takes."""
        p = self.p
        codes, counts = np.asarray(codes, np.int64), np.asarray(counts, np.int64)
        n = len(codes)
        words = -(-n // p.n_w)
        weight = value(codes, p.score) if not budget else np.ones(n, np.int64)
        if p.score.value_bits + p.count_bits + n.bit_length() > 62:
            weight = weight.astype(object)
        weight = weight * counts
        total = weight.sum()
        left = budget - 1 if budget else int(threshold(np.asarray(total), ratio_q16))
        if p.selection == "buckets":
            b = bucket(codes, p.n_buckets)
            acc = np.array([weight[b == j].sum() for j in range(b.max() + 1)]).cumsum()
            over = np.flatnonzero(acc > left)
            return RowPlan((1,) * words, (), (), int(over[0]) + 1 if len(over) else p.n_buckets)
        digits = tuple(self._count_digits(counts, words).tolist())
        first = SETTLES + (1 << p.digits[0][0])  # until Sum is known
        if budget and total <= left:  # the whole first walk finds that the row holds too few
            walk = 1 << p.digits[0][0]
            return RowPlan(digits, (SETTLES + walk, *(0,) * (p.readings - 2)), (0,) * words, walk)
        if not budget and (total == 0 or ratio_q16 >= 1 << 16):
            return RowPlan(digits, (first + EVERY, *(0,) * (p.readings - 2)), (0,) * words, 0)
        inside, bins = np.arange(n), []  # indices of the codes that begin with the known digits; bins of each walk
        for width, low in p.digits:
            digit = codes[inside] >> low & (1 << width) - 1
            order = np.argsort(-digit, kind="stable")
            crossing = int(digit[order[np.argmax(weight[inside][order].cumsum() > left)]])
            bins.append((1 << width) - crossing)
            left -= int(weight[inside[digit > crossing]].sum())
            inside = inside[digit == crossing]
        walks = [SETTLES + b for b in bins]
        walks[0] += 0 if budget else first - SETTLES + TH
        return RowPlan(digits, tuple(walks), self._tests(inside, weight, left, words), sum(bins))

    def _tests(self, inside: np.ndarray, weight: np.ndarray, left: int, words: int) -> tuple[int, ...]:
        """Tests of each word; `inside` are the equal codes."""
        word = inside // self.p.n_w
        crossing = int(word[np.argmax(weight[inside].cumsum() > left)])
        tests = np.bincount(word[word <= crossing], minlength=words) > 0
        tests = tests.astype(np.int64)
        if np.count_nonzero(word == crossing) > 1:
            tests[crossing] += self.p.test_steps
        return tuple(tests.tolist())

    def _count_digits(self, counts: np.ndarray, words: int) -> np.ndarray:
        """Number of digits of the largest count in each word, at least 1, [words]."""
        p = self.p
        largest = np.pad(counts.astype(np.int64), (0, words * p.n_w - len(counts))).reshape(words, p.n_w).max(1)
        digits = np.ones(words, np.int64)
        for d in range(1, p.count_digits):
            digits += largest >> d * p.count_digit > 0
        return digits

    def _times(self, plans: list[RowPlan], ring: "Ring | None") -> tuple[np.ndarray, np.ndarray]:
        """Cycles of the first words and of the last beats."""
        first, done = np.zeros(len(plans), np.int64), np.zeros(len(plans), np.int64)
        now = 0
        for r, plan in enumerate(plans):
            if self.p.selection == "buckets":
                first[r], done[r] = now, now + len(plan.digits) * (1 + plan.walked) + TO_CHECK - 1
            elif ring:
                first[r], done[r] = self._streamed(plan, ring)
            else:
                load = sum(plan.digits)
                select = load + sum(n * (d + SETTLES + 1) for n, d in zip(plan.tests, plan.digits, strict=True))
                first[r] = now + plan.digits[0] - 1
                done[r] = now + load * len(plan.walks) + sum(plan.walks) + select + SETTLES
            now = done[r] + 1
        return first - first[:1], done - first[:1]

    def _streamed(self, plan: RowPlan, ring: "Ring") -> tuple[int, int]:
        """The same for a row whose counts stream, cycle by cycle."""
        first = -1
        none = (0,) * len(plan.digits)
        for walk, tests in zip((*plan.walks, SETTLES), (*(none,) * len(plan.walks), plan.tests), strict=True):
            for digits, n in zip(plan.digits, tests, strict=True):
                for _ in range(n):
                    ring.feed(digits)
                    ring.rest(SETTLES + 1)
                taken = ring.feed(digits, takes=True)
                first = taken if first < 0 else first
            ring.rest(walk)
        ring.rest(1)
        return first, ring.now - 1


class Ring:
    """Time view of `hdl.retrieval.wtu_counts.CountRing`, with a stream that has no gap.

    words : places of the ring
    stored : words in it at the start, from place 0 on; one is held ahead
    now : the cycle
    waits : cycles in which a word's counts were not there
    """

    def __init__(self, words: int, stored: int):
        self.waits = 0
        self.now, self.words, self.stored, self.held = 0, words, stored, stored > 0
        self.read, self.write = 0, stored % words  # places of the next word to use, and of the next that comes

    def feed(self, digits: int, takes: bool = False) -> int:
        """Use the counts of a word in so many cycles; returns the last cycle."""
        left = digits
        while left:
            left -= self.held
            self.waits += not self.held
            self._cycle(takes and not left)
        return self.now - 1

    def rest(self, cycles: int) -> None:
        """Let so many cycles pass in which no word needs its counts."""
        for _ in range(cycles):
            self._cycle()

    def _cycle(self, take: bool = False) -> None:
        writes = self.comes(take)
        self.read = (self.read + take) % self.words
        clash = writes and self.read % COUNT_BANKS == self.write % COUNT_BANKS
        reads = self.stored > take and not clash and (take or not self.held)
        self.write = (self.write + writes) % self.words
        self.stored += writes - take
        self.held = reads or (self.held and not take and not clash)
        self.now += 1

    def comes(self, take: bool) -> bool:
        """Whether a word comes in this cycle; `take`: a place gets free in it."""
        return self.stored < self.words


def params_of(p: WtuParams, ratio_q16: int) -> ReSVParams:
    """Function parameters of the golden model that match a WTU and its input `ratio`."""
    return ReSVParams(
        score=p.score,
        count_bits=p.count_bits,
        ratio_q16=ratio_q16,
        selection=p.selection,
        n_buckets=p.n_buckets,
    )
