"""Lanes of the exact WTU: weights, their sum, and a weighted histogram in each lane."""

from typing import NamedTuple

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.memory import Ram, collect_errors, error_members
from hdl.named import comb, reg
from hdl.params import WtuParams, bits_for
from hdl.retrieval import wtu_lanes as lanes


class WeightedHistogram(wiring.Component):
    """Adds significand x count of n_w codes a cycle to a histogram in each lane, and value x count to the row's sum.

    The lanes multiply counts `count_digit` bits a cycle. A word takes one cycle, and one for each further digit up to
    the highest that is not zero in all lanes. Codes of a bin share their exponent, so bins hold products not shifted by
    it.

    A bin's word carries the number of the histogram that wrote it, and counts as zero in any other histogram. The bin
    that has the number of a histogram is cleared when that histogram ends, so that numbers can repeat. Starting a new
    histogram therefore takes one cycle, whatever the size.

    With walk_ahead there are two sets of bins: one takes words while the unit walks the other, through a tree of its
    own. The multipliers also make Th of the sum and the ratio, in `th_steps` cycles.

    Parameters
    ----------
    p : WtuParams · bin_bits : bits of a bin, at most those of a code

    Members
    -------
    take : In(1) : take a digit of the word on the following eight ports; while `more` is high, hold it for the next
        digit
    zoom : In(1) : the word goes to the set that is walked, and not into the sum
    hidden : In(1) : hidden bit of the codes of a `zoom`
    first : In(1) : the word starts a row · there, used : In(n_w) : lanes that exist, and those of them that count
    bins, mantissas, counts : In(arrays of n_w) : bin, mantissa and count of each lane
    more : Out(1) : the word has further digits, whether this one is taken or not
    part : Out(1) : a word's first digits have been taken and not its last
    active : Out(1) : a digit is being added, the cycle after `take`
    fresh : Out(1), word_top : Out(bin_bits) : the first digit of a word is being added; its highest bin
    total : Out(sum_bits) : Sum of the row, three cycles after the last digit was taken
    th : In(1) : a step of Th; no `take`
    th_step : In, ratio : In(16), th_value : Out(sum_bits) : which step; Th, the cycle after the last one
    load_set : In(1) : set that takes words
    walk : In(1), walk_bin : In(bin_bits) : read a bin of the other set; not before the second cycle after its last
        digit was taken
    bin_sum : Out : the bin of all lanes, unshifted, two cycles later
    next : In(sets) : start a new histogram in that set, to which no word is added then; 2^bin_bits times after reset

    Latency: see the members.
    Throughput: a word's digit and a bin a cycle; with one set, one of both.
    Raises: nothing.
    Source: V-Rex Equations 1 and 2 (Sum, Th); the histogram is this project's own.
    """

    def __init__(self, p: WtuParams, bin_bits: int):
        self.p, self.bin_bits = p, bin_bits
        self.sets = 2 if p.walk_ahead else 1
        self.product_bits = p.score.significand_bits + p.count_digit
        self.weight_bits = lanes.product_bits(p) + (p.words - 1).bit_length()
        self.bin_sum_bits = self.weight_bits + (p.n_w - 1).bit_length()
        super().__init__(
            {
                "take": In(1),
                "zoom": In(1),
                "hidden": In(1),
                "first": In(1),
                "there": In(p.n_w),
                "used": In(p.n_w),
                "bins": In(data.ArrayLayout(bin_bits, p.n_w)),
                "mantissas": In(data.ArrayLayout(p.score.man_bits, p.n_w)),
                "counts": In(data.ArrayLayout(p.count_bits, p.n_w)),
                "more": Out(1),
                "part": Out(1),
                "active": Out(1),
                "fresh": Out(1),
                "word_top": Out(bin_bits),
                "total": Out(p.sum_bits),
                "th": In(1),
                "th_step": In(bits_for(p.th_steps)),
                "ratio": In(16),
                "th_value": Out(p.sum_bits),
                "load_set": In(1),
                "walk": In(1),
                "walk_bin": In(bin_bits),
                "bin_sum": Out(self.bin_sum_bits),
                "next": In(self.sets),
                **error_members(p.protect),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        word, sets, pieces = _Word(p), _Sets(self.bin_bits, self.sets), self._pieces()
        counts = self._digits(m, word)
        self._number_sets(m, word, sets)
        made = [self._lane(m, j, word, sets, counts[j], pieces) for j in range(p.n_w)]
        collect_errors(m, self, [ram for lane in made for ram in lane.rams])
        m.d.comb += self.word_top.eq(lanes.max_tree(m, [lane.top for lane in made], "word_top"))
        self._th(m, [lane.product for lane in made], pieces)
        tree = self._sum(m, word, [lane.value for lane in made])
        walked = [lane.walked for lane in made]
        m.d.comb += self.bin_sum.eq(self._registered_tree(m, walked, "walk_tree") if self.sets == 2 else tree)
        return m

    def _digits(self, m: Module, word: "_Word") -> list[Signal]:
        """Steps through the digits of the counts; returns the counts."""
        p, digit = self.p, word.digit
        counts = [comb(m, f"count{j}", self.counts[j], p.count_bits) for j in range(p.n_w)]
        with m.Switch(digit):
            for d in range(p.count_digits - 1):
                above = Cat(c[(d + 1) * p.count_digit :].any() for c in counts)
                with m.Case(d):
                    m.d.comb += self.more.eq((above & self.there).any())
        set_next = comb(m, "set_next", self.load_set ^ self.zoom if self.sets == 2 else 0, 1)
        word.same_set = comb(m, "same_set", word.add & (word.set_ == set_next))
        m.d.comb += [
            self.part.eq(digit != 0),
            self.active.eq(word.add),
            self.fresh.eq(word.add & (word.digit2 == 0)),
        ]
        with m.If(self.take):
            m.d.sync += digit.eq(Mux(self.more, digit + 1, 0))
        m.d.sync += [
            word.add.eq(self.take),
            word.zoom.eq(self.zoom),
            word.first.eq(self.first),
            word.set_.eq(set_next),
            word.digit2.eq(digit),
        ]
        m.d.sync += word.used.eq(self.used & self.take.replicate(p.n_w))
        return counts

    def _number_sets(self, m: Module, word: "_Word", sets: "_Sets") -> None:
        """Numbers the histograms, and marks the set that is walked."""
        two = self.sets == 2
        m.d.sync += [r.eq(r + self.next[s]) for s, r in enumerate(sets.rows)]
        walk1 = reg(m, "walk1", self.walk, reset_less=False)
        for s in range(self.sets):
            walks = self.walk & (self.load_set != s if two else 1)
            sets.walks.append(comb(m, f"set_walks{s}", walks, 1))
        for s in range(self.sets):
            sets.walked.append(comb(m, f"set_walked{s}", self.load_set != s if two else walk1))

    def _lane(
        self, m: Module, j: int, word: "_Word", sets: "_Sets", count: Signal, pieces: list[tuple[int, int]]
    ) -> "_Lane":
        """A lane: its product, the weight for the sum, and its bins."""
        p = self.p
        product = self._product(m, j, word, count, pieces)
        # The weight goes to the sum and to its bin. A bin that is walked, or Th, has the tree for itself.
        bin_ = reg(m, f"bin{j}", self.bins[j], self.bin_bits)
        top = comb(m, f"top{j}", Mux(word.used[j], bin_, 0), self.bin_bits)
        weight = comb(m, f"weight{j}", product & word.used[j].replicate(self.product_bits), self.product_bits)
        exponent = comb(m, f"exponent{j}", lanes.exponent_of(p, bin_), max(1, p.score.exp_bits))
        value = lanes.scaled(m, p, weight, exponent, f"value{j}")
        rams, walked = self._bins(m, j, word, sets, bin_, weight)
        if self.sets == 1:
            value = comb(m, f"addend{j}", value | walked, max(len(value), self.weight_bits))
        return _Lane(product, top, value, walked, rams)

    def _product(self, m: Module, j: int, word: "_Word", count: Signal, pieces: list[tuple[int, int]]) -> Signal:
        """A lane's product: of a digit, or of a piece of Th."""
        p, mantissa = self.p, self.mantissas[j]
        factor, part = Signal(p.score.significand_bits, name=f"factor{j}"), Signal(p.count_digit, name=f"part{j}")
        now = lanes.exponent_of(p, self.bins[j]).any()
        m.d.comb += factor.eq(Cat(mantissa, Mux(self.zoom, self.hidden, now)) if p.score.exp_bits else mantissa)
        with m.Switch(word.digit):
            for d in range(p.count_digits):
                with m.Case(d):
                    m.d.comb += part.eq(count[d * p.count_digit : (d + 1) * p.count_digit])
        with m.If(self.th):
            with m.Switch(self.th_step):
                for step in range(p.th_steps):
                    if step * p.n_w + j < len(pieces):
                        i, k = pieces[step * p.n_w + j]
                        with m.Case(step):
                            m.d.comb += part.eq(self.total[i * p.count_digit : (i + 1) * p.count_digit])
                            m.d.comb += factor.eq(self.ratio[k * len(factor) : (k + 1) * len(factor)])
        return reg(m, f"product{j}", lanes.multiply(m, part, factor, f"multiply{j}"), self.product_bits)

    def _bins(
        self, m: Module, j: int, word: "_Word", sets: "_Sets", bin_: Signal, weight: Signal
    ) -> tuple[list[Ram], Signal]:
        """The lane's bins, and the bin that is walked.

        The lane reads a bin while it makes the product, and forwards the bin that it writes in that cycle.
        """
        p, weight_bits, two, rows = self.p, self.weight_bits, self.sets == 2, sets.rows
        again = Signal(name=f"again{j}", reset_less=True)
        wrote = Signal(weight_bits, name=f"wrote{j}", reset_less=True)
        old, new = Signal(weight_bits, name=f"old{j}"), Signal(weight_bits, name=f"new{j}")
        whole = Signal(lanes.product_bits(p), name=f"whole{j}")
        with m.Switch(word.digit2):
            for d in range(p.count_digits):
                with m.Case(d):
                    m.d.comb += whole.eq(weight << d * p.count_digit)
        # A bin that is read in the cycle in which it is cleared may hold a value that an older histogram of the new
        # number left. With two sets, words never go to the set that starts anew.
        clears, gone = 0 if two else self.next[0], Signal(name=f"gone{j}", reset_less=True)
        written = comb(m, f"written{j}", Mux(clears, rows[0], bin_), self.bin_bits)
        same = comb(m, f"same{j}", written == self.bins[j])
        m.d.sync += [again.eq(word.same_set & same), gone.eq((word.same_set | clears) & same), wrote.eq(new)]
        m.d.comb += new.eq(old + whole)
        was, seen, rams = wrote & again.replicate(weight_bits), 0, []
        for s in range(self.sets):
            # A bin's word: sum, number of the histogram, whether it holds anything.
            ram = Ram(weight_bits + self.bin_bits + 1, 1 << self.bin_bits, protect=p.protect)
            m.submodules[f"hist{j}_{s}"] = ram
            rams.append(ram)
            m.d.comb += [
                ram.r_en.eq(self.take | self.walk),
                ram.r_addr.eq(Mux(sets.walks[s], self.walk_bin, self.bins[j])),
                ram.w_en.eq((word.add & (word.set_ == s if two else 1)) | self.next[s]),
                ram.w_addr.eq(Mux(self.next[s], rows[s], bin_)),
                ram.w_data.eq(Cat(new, rows[s], ~self.next[s])),
            ]
            current = comb(m, f"current{j}_{s}", ram.r_data[weight_bits:] == Cat(rows[s], 1))
            loaded = comb(m, f"loaded{j}_{s}", current & ~gone & (word.set_ == s if two else 1), 1)
            inside = comb(m, f"inside{j}_{s}", current & sets.walked[s])
            was = was | (ram.r_data[:weight_bits] & loaded.replicate(weight_bits))
            seen = seen | (ram.r_data[:weight_bits] & inside.replicate(weight_bits))
        m.d.comb += old.eq(was)
        return rams, comb(m, f"walked{j}", seen, weight_bits)

    def _sum(self, m: Module, word: "_Word", values: list[Signal]) -> Signal:
        """Adds the word to the sum of the row; returns the sum of the word."""
        p, total = self.p, self.total
        tree = self._registered_tree(m, values, "sum")
        sum_valid, sum_first = Signal(name="sum_valid"), Signal(name="sum_first")
        sum_digit = Signal.like(word.digit)
        m.d.sync += [
            sum_valid.eq(word.add & ~word.zoom),
            sum_first.eq(word.first & (word.digit2 == 0)),
            sum_digit.eq(word.digit2),
        ]
        addend = Signal(p.sum_bits)
        with m.Switch(sum_digit):
            for d in range(p.count_digits):
                with m.Case(d):
                    m.d.comb += addend.eq(tree << d * p.count_digit)
        with m.If(sum_valid):
            m.d.sync += total.eq(Mux(sum_first, 0, total) + addend)
        return tree

    def _registered_tree(self, m: Module, values: list[Signal], name: str) -> Signal:
        """Sum of `values`, with a register before the last level of the tree."""
        level = 0
        while len(values) > 2:
            values, level = lanes.adder_level(m, values, f"{name}_{level}"), level + 1
        halves = [Signal(len(v), name=f"{name}_half{j}", reset_less=True) for j, v in enumerate(values)]
        m.d.sync += [r.eq(v) for r, v in zip(halves, values, strict=True)]
        return lanes.adder_tree(m, halves, name)

    def _pieces(self) -> list[tuple[int, int]]:
        """Pairs of a digit of the total and a part of the ratio, whose products make Th, n_w pairs a step."""
        p = self.p
        return [(i, k) for i in range(-(-p.sum_bits // p.count_digit)) for k in range(p.ratio_parts)]

    def _th(self, m: Module, products: list[Signal], pieces: list[tuple[int, int]]) -> None:
        """Th = floor(total x ratio / 2^16) from the products of its pieces."""
        p = self.p
        width = p.sum_bits + 16
        now, th_step = Signal(width, name="th_now"), Signal.like(self.th_step)
        m.d.sync += th_step.eq(self.th_step)
        with m.Switch(th_step):
            for step in range(p.th_steps):
                # Products that do not overlap are parts of one number.
                numbers: list[list[tuple[int, Signal]]] = []
                for (i, k), product in zip(pieces[step * p.n_w :], products, strict=False):
                    at = i * p.count_digit + k * p.score.significand_bits
                    room = [n for n in numbers if n[-1][0] + len(product) <= at]
                    if room:
                        room[0].append((at, product))
                    else:
                        numbers.append([(at, product)])
                sums = []
                for k, number in enumerate(numbers):
                    joined, end = [], 0
                    for at, product in number:
                        joined += [Signal(at - end, name=f"gap{step}_{k}_{at}"), product] if at > end else [product]
                        end = at + len(product)
                    sums.append(comb(m, f"th_number{step}_{k}", Cat(joined), min(end, width)))
                with m.Case(step):
                    m.d.comb += now.eq(lanes.adder_tree(m, sums, f"th_sum{step}", width))
        so_far = 0
        if p.th_steps > 1:
            partial = Signal(width, name="th_partial", reset_less=True)
            so_far = Mux(th_step == 0, 0, partial)
            m.d.sync += partial.eq(so_far + now)
        m.d.comb += self.th_value.eq((so_far + now) >> 16)


class _Word:
    """The digit being multiplied, and the one before, which is being added."""

    def __init__(self, p: WtuParams):
        digit_bits = max(1, (p.count_digits - 1).bit_length())
        self.digit = Signal(digit_bits)
        self.digit2 = Signal(digit_bits, reset_less=True)
        self.add = Signal()  # a digit is being added
        self.zoom = Signal(name="zoom_")  # the digit belongs to a zoom
        self.first = Signal(name="first_")  # the digit belongs to a row's first word
        self.set_ = Signal()  # set to which the digit is added
        self.used = Signal(p.n_w, name="used_", reset_less=True)  # lanes in which the digit is added
        self.same_set: Signal  # the next word goes to the same set


class _Sets:
    """The sets of histograms."""

    def __init__(self, bin_bits: int, n: int):
        self.rows = [Signal(bin_bits, name=f"row{s}") for s in range(n)]  # number of the histogram in each set
        self.walks: list[Signal] = []  # the set is being walked
        self.walked: list[Signal] = []  # the word read is a bin of the set


class _Lane(NamedTuple):
    """Outputs of a lane."""

    product: Signal
    top: Signal  # bin of the lane's code; 0 if the lane is not in use
    value: Signal  # weight for the sum
    walked: Signal  # the bin that is walked
    rams: list[Ram]
