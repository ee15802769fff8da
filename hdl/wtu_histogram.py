"""Lanes of the exact WTU: weights, their sum, and a private weighted histogram a lane."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl import wtu_lanes as lanes
from hdl.memory import Ram, collect_errors, error_members
from hdl.params import WtuParams, bits_for


class WeightedHistogram(wiring.Component):
    """Adds significand x count of n_w codes a cycle to a histogram a lane, and value x count to the sum of the row.

    Counts are multiplied `count_digit` bits a cycle: a word in which a count has more takes a cycle for each further
    digit that is not zero in all lanes up to its highest.
    Codes of a bin share their exponent, so bins hold products unshifted by it. A bin's word carries the number of the
    histogram that wrote it and counts as zero in any other; a bin is cleared when its own number ends, so that numbers
    can come round: starting anew takes one cycle whatever the size.
    With walk_ahead there are two sets of bins: one takes words while the other is walked, through a tree of its own.
    The multipliers also make Th of the sum and the ratio, in `th_steps` cycles.

    Parameters
    ----------
    p : WtuParams · bin_bits : bits of a bin, at most those of a code

    Members
    -------
    take : In(1) : a digit of the word that the following eight hold; with `more` they hold it for the next one too
    zoom : In(1) : it goes to the set that is walked, and not into the sum
    hidden : In(1) : hidden bit of the codes of a `zoom`
    first : In(1) : it starts a row · there, used : In(n_w) : lanes that it has, and those of them that count
    bins, mantissas, counts : In(arrays of n_w)
    more : Out(1) : it has further digits; whether it is taken or not
    part : Out(1) : a word's first digits have been taken and not its last
    active : Out(1) : a digit is added, the cycle after `take`
    fresh : Out(1), word_top : Out(bin_bits) : the first digit of a word is, its highest bin
    total : Out(sum_bits) : Sum of the row, three cycles after the last digit was taken
    th : In(1) : a step of Th; no `take`
    th_step : In, ratio : In(16), th_value : Out(sum_bits) : which step; Th, the cycle after the last one
    load_set : In(1) : set that takes words
    walk : In(1), walk_bin : In(bin_bits) : read a bin of the other set; not before the second cycle after its last
        digit was taken
    bin_sum : Out : the bin of all lanes, unshifted, two cycles later
    next : In(sets) : start a new histogram in that set, to which no word is added then; 2^bin_bits times after reset

    Latency: see the members. Throughput: a word's digit and a bin a cycle; with one set, one of both.
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
        p, m, bin_bits, weight_bits = self.p, Module(), self.bin_bits, self.weight_bits
        n_w, n_digits, digit_bits, sets = p.n_w, p.count_digits, (p.count_digits - 1).bit_length(), self.sets

        def comb(width, name, value):
            s = Signal(width, name=name)
            m.d.comb += s.eq(value)
            return s

        def held(width, name):
            return Signal(width, name=name, reset_less=True)

        # The digit that is multiplied, and the one before, which is added.
        digit, digit2 = Signal(max(1, digit_bits)), held(max(1, digit_bits), "digit2")
        add, zoom, first, set_ = (Signal(name=n) for n in ("add", "zoom_", "first_", "set_"))
        used = held(n_w, "used_")
        counts = [comb(p.count_bits, f"count{j}", self.counts[j]) for j in range(n_w)]
        with m.Switch(digit):
            for d in range(n_digits - 1):
                above = Cat(c[(d + 1) * p.count_digit :].any() for c in counts)
                with m.Case(d):
                    m.d.comb += self.more.eq((above & self.there).any())
        set_next = comb(1, "set_next", self.load_set ^ self.zoom if sets == 2 else 0)
        same_set = comb(1, "same_set", add & (set_ == set_next))
        m.d.comb += [self.part.eq(digit != 0), self.active.eq(add), self.fresh.eq(add & (digit2 == 0))]
        with m.If(self.take):
            m.d.sync += digit.eq(Mux(self.more, digit + 1, 0))
        m.d.sync += [add.eq(self.take), zoom.eq(self.zoom), first.eq(self.first), set_.eq(set_next), digit2.eq(digit)]
        m.d.sync += used.eq(self.used & self.take.replicate(n_w))

        # Numbers of the histograms, and which set is walked.
        rows = [Signal(bin_bits, name=f"row{s}") for s in range(sets)]
        m.d.sync += [r.eq(r + self.next[s]) for s, r in enumerate(rows)]
        walk1 = Signal()
        m.d.sync += walk1.eq(self.walk)
        set_walks = [
            comb(1, f"set_walks{s}", self.walk & (self.load_set != s if sets == 2 else 1)) for s in range(sets)
        ]
        set_walked = [comb(1, f"set_walked{s}", self.load_set != s if sets == 2 else walk1) for s in range(sets)]

        pieces = self._pieces()
        products, values, bins_walked, tops = [], [], [], []
        rams = []
        for j in range(n_w):
            # The product, of a digit or for Th.
            factor, part = Signal(p.score.significand_bits, name=f"factor{j}"), Signal(p.count_digit, name=f"part{j}")
            now = lanes.exponent_of(p, self.bins[j]).any()
            m.d.comb += factor.eq(
                Cat(self.mantissas[j], Mux(self.zoom, self.hidden, now)) if p.score.exp_bits else self.mantissas[j]
            )
            with m.Switch(digit):
                for d in range(n_digits):
                    with m.Case(d):
                        m.d.comb += part.eq(counts[j][d * p.count_digit : (d + 1) * p.count_digit])
            with m.If(self.th):
                with m.Switch(self.th_step):
                    for step in range(p.th_steps):
                        if step * n_w + j < len(pieces):
                            i, k = pieces[step * n_w + j]
                            with m.Case(step):
                                m.d.comb += part.eq(self.total[i * p.count_digit : (i + 1) * p.count_digit])
                                m.d.comb += factor.eq(self.ratio[k * len(factor) : (k + 1) * len(factor)])
            product = held(self.product_bits, f"product{j}")
            m.d.sync += product.eq(lanes.multiply(m, part, factor, f"multiply{j}"))
            products.append(product)

            # Added, to the sum and to its bin. A bin that is walked, or Th, has the tree for itself.
            bin_ = held(bin_bits, f"bin{j}")
            m.d.sync += bin_.eq(self.bins[j])
            tops.append(comb(bin_bits, f"top{j}", Mux(used[j], bin_, 0)))
            weight = comb(self.product_bits, f"weight{j}", product & used[j].replicate(self.product_bits))
            exponent = comb(max(1, p.score.exp_bits), f"exponent{j}", lanes.exponent_of(p, bin_))
            value = lanes.scaled(m, p, weight, exponent, f"value{j}")

            # The bin is read while the product is made; what is being written to it is forwarded.
            again, wrote = Signal(name=f"again{j}", reset_less=True), held(weight_bits, f"wrote{j}")
            old, new = Signal(weight_bits, name=f"old{j}"), Signal(weight_bits, name=f"new{j}")
            whole = Signal(lanes.product_bits(p), name=f"whole{j}")
            with m.Switch(digit2):
                for d in range(n_digits):
                    with m.Case(d):
                        m.d.comb += whole.eq(weight << d * p.count_digit)
            # A bin that is read in the cycle in which it is cleared may hold what a histogram of the new number left;
            # with two sets, that of the words is not the one that starts anew.
            clears, gone = self.next[0] if sets == 1 else 0, Signal(name=f"gone{j}", reset_less=True)
            written = comb(bin_bits, f"written{j}", Mux(clears, rows[0], bin_))
            same = comb(1, f"same{j}", written == self.bins[j])
            m.d.sync += [again.eq(same_set & same), gone.eq((same_set | clears) & same), wrote.eq(new)]
            m.d.comb += new.eq(old + whole)
            was, seen = wrote & again.replicate(weight_bits), 0
            for s in range(sets):
                # A word of a bin: sum, number of the histogram, whether it holds anything.
                m.submodules[f"hist{j}_{s}"] = ram = Ram(weight_bits + bin_bits + 1, 1 << bin_bits, protect=p.protect)
                rams.append(ram)
                m.d.comb += [
                    ram.r_en.eq(self.take | self.walk),
                    ram.r_addr.eq(Mux(set_walks[s], self.walk_bin, self.bins[j])),
                    ram.w_en.eq((add & (set_ == s if sets == 2 else 1)) | self.next[s]),
                    ram.w_addr.eq(Mux(self.next[s], rows[s], bin_)),
                    ram.w_data.eq(Cat(new, rows[s], ~self.next[s])),
                ]
                current = comb(1, f"current{j}_{s}", ram.r_data[weight_bits:] == Cat(rows[s], 1))
                loaded = comb(1, f"loaded{j}_{s}", current & ~gone & (set_ == s if sets == 2 else 1))
                inside = comb(1, f"inside{j}_{s}", current & set_walked[s])
                was = was | (ram.r_data[:weight_bits] & loaded.replicate(weight_bits))
                seen = seen | (ram.r_data[:weight_bits] & inside.replicate(weight_bits))
            m.d.comb += old.eq(was)
            walked = comb(weight_bits, f"walked{j}", seen)
            if sets == 2:
                values.append(value)
                bins_walked.append(walked)
            else:
                values.append(comb(max(len(value), weight_bits), f"addend{j}", value | walked))
        collect_errors(m, self, rams)
        m.d.comb += self.word_top.eq(lanes.max_tree(m, tops, "word_top"))
        self._th(m, products, pieces)

        # The sum of the row.
        tree = self._registered_tree(m, values, "sum")
        sum_valid, sum_first, sum_digit = Signal(), Signal(), Signal.like(digit)
        m.d.sync += [sum_valid.eq(add & ~zoom), sum_first.eq(first & (digit2 == 0)), sum_digit.eq(digit2)]
        addend = Signal(p.sum_bits)
        with m.Switch(sum_digit):
            for d in range(n_digits):
                with m.Case(d):
                    m.d.comb += addend.eq(tree << d * p.count_digit)
        with m.If(sum_valid):
            m.d.sync += self.total.eq(Mux(sum_first, 0, self.total) + addend)

        m.d.comb += self.bin_sum.eq(self._registered_tree(m, bins_walked, "walk_tree") if sets == 2 else tree)
        return m

    def _registered_tree(self, m: Module, values: list[Signal], name: str) -> Signal:
        """Sum of `values`, with a register before the last level of the tree."""
        level = 0
        while len(values) > 2:
            values, level = lanes.adder_level(m, values, f"{name}_{level}"), level + 1
        halves = [Signal(len(v), name=f"{name}_half{j}", reset_less=True) for j, v in enumerate(values)]
        m.d.sync += [r.eq(v) for r, v in zip(halves, values, strict=True)]
        return lanes.adder_tree(m, halves, name)

    def _pieces(self) -> list[tuple[int, int]]:
        """Pairs of a digit of the total and a part of the ratio whose products make Th, n_w a step."""
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
                    sums.append(Signal(min(end, width), name=f"th_number{step}_{k}"))
                    m.d.comb += sums[-1].eq(Cat(joined))
                with m.Case(step):
                    m.d.comb += now.eq(lanes.adder_tree(m, sums, f"th_sum{step}", width))
        so_far = 0
        if p.th_steps > 1:
            partial = Signal(width, name="th_partial", reset_less=True)
            so_far = Mux(th_step == 0, 0, partial)
            m.d.sync += partial.eq(so_far + now)
        m.d.comb += self.th_value.eq((so_far + now) >> 16)
