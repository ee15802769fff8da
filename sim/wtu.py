"""Cycles of the WTU."""

from dataclasses import dataclass

import numpy as np

from golden.params import ReSVParams
from golden.wicsum import bucket, threshold, value
from hdl.params import WtuParams

GROUP = 4  # words whose highest bins the selecting pass compares at once
TO_CHECK = 5  # from the last word of a load, or of a zoom's scan, to the check of the first bin
TO_EVERY = 3  # from the last word of a load to the finding that the whole row is selected
TO_BEAT = 3  # from the read of a word, or of a list entry, to its beat
TO_START = 2  # from the grant of the histogram to the first read of a zoom


@dataclass(frozen=True)
class RowTiming:
    """One row in a unit that is otherwise idle, cycles.

    words: of the row, the bound of one pass · walked: bins (or passes over the row, "buckets") · zooms ·
    latency: from the acceptance of its first word to its last beat · interval: to the earliest acceptance of the next
    row's first word while `select` of the row before does not hold it up · select: from the walk's end to the last beat
    """

    words: int
    walked: int
    zooms: int
    latency: int
    interval: int
    select: int


@dataclass(frozen=True)
class _Plan:
    words: int
    load: int  # from the last word's acceptance to the end of the walk
    select: int  # from there to the last beat, or to the request for a zoom
    zoom: int  # from the grant to the last beat
    zooms: int
    walked: int


class WtuTime:
    """Time view of `hdl.wtu.Wtu`, both variants: input words always offered, output always taken."""

    def __init__(self, p: WtuParams):
        self.p = p
        rest, self.digits = p.score.bits, []
        while rest:
            rest -= min(p.bin_bits, rest)
            self.digits.append(rest)  # lowest bit of each digit

    def row(self, codes: np.ndarray, counts: np.ndarray, ratio_q16: int) -> RowTiming:
        """One row of `codes` [C] with token counts `counts` [C], C at least 1."""
        plan = self._plan(np.asarray(codes, np.int64), np.asarray(counts, np.int64), ratio_q16)
        last = plan.words - 1 + plan.load
        latency = last + plan.select + plan.zoom
        overlaps = self.p.double_buffer and self.p.selection == "exact"
        interval = last + 1 if overlaps else latency + 1 + (self.p.selection == "exact")
        return RowTiming(plan.words, plan.walked, plan.zooms, latency, interval, latency - last)

    def run(self, rows: list[tuple[np.ndarray, np.ndarray]], ratio_q16: int) -> tuple[np.ndarray, np.ndarray]:
        """Cycles of the acceptance of each row's first word (0 for the first row) and of its last beat, [R] each."""
        plans = [self._plan(np.asarray(c, np.int64), np.asarray(n, np.int64), ratio_q16) for c, n in rows]
        first, done = np.zeros(len(plans), np.int64), np.zeros(len(plans), np.int64)
        if self.p.selection == "buckets":
            start = 0
            for r, plan in enumerate(plans):
                first[r], done[r] = start, start + plan.words - 1 + plan.load + plan.select
                start = done[r] + 1
            return first, done
        buffers = 2 if self.p.double_buffer else 1
        start, before = 0, -1  # acceptance of this row's first word; last beat of the row before
        end = plans[0].words - 1 if plans else 0  # acceptance of this row's last word
        for r, plan in enumerate(plans):
            first[r] = start
            walked = end + plan.load
            hand = max(walked, before + 1)
            ask = hand + plan.select
            done[r] = ask
            free = before if buffers == 2 else None  # last beat of the row that holds the next one's buffer
            more = r + 1 < len(plans)
            if more and free is not None:
                # Counts are read one cycle ahead, once a buffer is free; the histogram is free after the walk.
                start = max(end + 2, free + 2, hand + 1)
            if plan.zooms:
                grant, words = ask, 0
                if more and free is not None:
                    next_end = start + plans[r + 1].words - 1
                    if ask > next_end:
                        grant = max(ask, next_end + plans[r + 1].load + 1)
                    else:
                        words = max(0, ask - start)
                done[r] = grant + plan.zoom
            if more and free is None:
                start = done[r] + 2
            if more:
                end = start + plans[r + 1].words - 1
                if plan.zooms and free is not None and ask <= end:
                    # What had come is replayed, then the rest is taken.
                    start = start if words else done[r] + 2
                    end = done[r] + plans[r + 1].words + 1
            before = done[r]
        return first, done

    def _plan(self, codes: np.ndarray, counts: np.ndarray, ratio_q16: int) -> _Plan:
        p, n = self.p, len(codes)
        words = -(-n // p.n_w)
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
            passes = int(over[0]) + 1 if len(over) else p.n_buckets
            return _Plan(words, TO_CHECK, words * passes, 0, 0, passes)
        if total == 0 or ratio_q16 >= 1 << 16:
            return _Plan(words, TO_EVERY, words + TO_BEAT, 0, 0, 0)

        top = codes >> self.digits[0]
        pad = words * p.n_w - n
        highest = np.pad(top, (0, pad)).reshape(words, p.n_w).max(1)
        inside = np.arange(n)  # indices of the codes in the crossing bin
        above = np.zeros(n, bool)
        walked = zooms = zoom = 0
        load = select = 0
        for level, low in enumerate(self.digits):
            width = (self.digits[level - 1] if level else p.score.bits) - low
            digit = (codes[inside] >> low) & ((1 << width) - 1)
            order = np.argsort(-digit, kind="stable")
            crossing = int(digit[order[np.argmax(weight[inside][order].cumsum() > left)]])
            higher = digit > crossing
            left -= int(weight[inside][higher].sum())
            above[inside[higher]] = True
            steps = int(digit.max()) - crossing
            walked += steps + 1
            inside = inside[digit == crossing]
            if level == 0:
                reach = highest >= crossing
                load = TO_CHECK + steps
            else:
                zoom += TO_START + self._steps(reach, None)[1] - 1 + TO_CHECK + steps
            last_level = level == len(self.digits) - 1
            scan = self._equal if last_level else self._list
            cycles, overflow = scan(reach, above, inside, weight, left, codes)
            if level == 0:
                select = cycles
            else:
                zoom += cycles
            if not overflow:
                break
            zooms += 1
        return _Plan(words, load, select, zoom, zooms, walked)

    def _steps(self, reach: np.ndarray, cost: np.ndarray | None) -> tuple[np.ndarray, int, bool]:
        """When each word that reaches the bin is read, cycles of the whole scan, whether its last step reads a word."""
        words = len(reach)
        spent = reach.astype(np.int64) if cost is None else np.where(reach, cost, 0)
        groups = -(-words // GROUP)
        blank = ~np.pad(reach, (0, groups * GROUP - words)).reshape(groups, GROUP).any(1)
        at = spent.cumsum() - spent + np.repeat(blank.cumsum() - blank, GROUP)[:words]
        return at, int(spent.sum() + blank.sum()), not blank[-1]

    def _list(self, reach, above, inside, weight, left, codes) -> tuple[int, bool]:
        """Cycles from the end of the walk to the last beat, or to the request for a zoom (then True)."""
        p, words = self.p, len(reach)
        word = inside // p.n_w
        candidates = np.bincount(word, minlength=words)
        has_above = np.zeros(words, bool)
        has_above[np.flatnonzero(above) // p.n_w] = True
        cost = np.maximum(candidates, 1)
        at, total, reads = self._steps(reach, cost)
        if len(inside) > p.list_depth:
            w = int(word[p.list_depth])
            place = p.list_depth - int(candidates[:w].sum())
            over = 1 + int(at[w]) + 1 + place  # cycle in which the candidate finds no room
            if place:
                busy = place == 1 and has_above[w]
            else:
                previous = np.flatnonzero(reach[:w] & (at[:w] + 1 == at[w]) & (cost[:w] == 1))
                busy = bool(len(previous)) and bool(has_above[previous[-1]])
            return over + 1 + int(busy), True
        order = np.argsort(-codes[inside], kind="stable")
        pops = int(np.argmax(weight[inside][order].cumsum() > left))
        return 1 + total + int(reads) + pops + TO_BEAT, False

    def _equal(self, reach, above, inside, weight, left, codes) -> tuple[int, bool]:
        """The same where all candidates are equal: a word at a time, the word in which they cross by lanes."""
        p, words = self.p, len(reach)
        word = inside // p.n_w
        has_equal, has_above = np.zeros(words, bool), np.zeros(words, bool)
        has_equal[word] = True
        has_above[np.flatnonzero(above) // p.n_w] = True
        at, _, _ = self._steps(reach, np.maximum(has_equal.astype(np.int64) + has_above, 1))
        crossing = int(np.argmax(weight[inside].cumsum() > left))
        w = int(word[crossing])
        cycle = 1 + int(at[w]) + 1 + int(has_above[w]) + 2  # its equal lanes are weighed
        if np.count_nonzero(word == w) > 1:
            cycle += 4 + crossing - int(np.argmax(word == w))
        rest = reach.copy()
        rest[: w + 1] = False
        group = w // GROUP * GROUP
        _, total, reads = self._steps(rest[group:], None)
        return cycle + 1 + total + int(reads) + TO_BEAT, False


def params_of(p: WtuParams, ratio_q16: int) -> ReSVParams:
    """The function parameters that a WTU's parameters and its `ratio` input mean."""
    return ReSVParams(
        score=p.score,
        count_bits=p.count_bits,
        ratio_q16=ratio_q16,
        selection=p.selection,
        n_buckets=p.n_buckets,
    )
