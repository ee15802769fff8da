"""Lanes of the exact WTU: weights, their sum, and a private weighted histogram a lane."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl import wtu_lanes as lanes
from hdl.memory import Ram
from hdl.params import WtuParams


class WeightedHistogram(wiring.Component):
    """Adds significand x count of n_w codes a cycle to a histogram a lane, and value x count to the sum of the row.

    Codes of a bin share their exponent, so bins hold unshifted products. A bin's word carries the number of the
    histogram that wrote it and counts as zero in any other; a bin is cleared when its own number ends, so that numbers
    can come round: starting anew takes one cycle whatever the size.

    Parameters
    ----------
    p : WtuParams · bin_bits : bits of a bin, at most those of a code

    Members
    -------
    fire : In(1) : a word of codes, once in a cycle; the following are those of its lanes
    first : In(1) : it starts a row
    used : In(n_w) : lanes that count · codes, counts, bins : In(arrays of n_w)
    word_top : Out(bin_bits) : highest bin of the word, in the same cycle
    top : Out(bin_bits) : highest bin of the row so far, one cycle later
    total : Out(sum_bits) : Sum of the row so far, three cycles later
    walk : In(1), walk_bin : In(bin_bits) : read a bin, not before the second cycle after a `fire`
    bin_sum : Out : the bin of all lanes, unshifted, two cycles later
    next : In(1) : start a new histogram, not in the cycle after a `fire`; 2^bin_bits times after reset

    Latency: see the members. Throughput: a word, or a bin, a cycle.
    Raises: nothing.
    Source: V-Rex Equation 1 (Sum); the histogram is this project's own.
    """

    def __init__(self, p: WtuParams, bin_bits: int):
        self.p, self.bin_bits = p, bin_bits
        self.weight_bits = lanes.product_bits(p) + (p.words - 1).bit_length()
        self.bin_sum_bits = self.weight_bits + (p.n_w - 1).bit_length()
        super().__init__(
            {
                "fire": In(1),
                "first": In(1),
                "used": In(p.n_w),
                "codes": In(data.ArrayLayout(p.score.bits, p.n_w)),
                "counts": In(data.ArrayLayout(p.count_bits, p.n_w)),
                "bins": In(data.ArrayLayout(bin_bits, p.n_w)),
                "word_top": Out(bin_bits),
                "top": Out(bin_bits),
                "total": Out(p.sum_bits),
                "walk": In(1),
                "walk_bin": In(bin_bits),
                "bin_sum": Out(self.bin_sum_bits),
                "next": In(1),
            }
        )

    def elaborate(self, platform):
        p, m, bin_bits, weight_bits = self.p, Module(), self.bin_bits, self.weight_bits
        max_shift = p.score.max_shift
        row = Signal(bin_bits)  # number of the histogram
        add, add_first, total_valid, total_first, walked = (
            Signal(name=n) for n in ("add", "add_first", "total_valid", "total_first", "walked")
        )
        m.d.sync += [
            add.eq(self.fire),
            add_first.eq(self.first),
            total_valid.eq(add),
            total_first.eq(add_first),
            walked.eq(self.walk),
            row.eq(row + self.next),
        ]
        in_tree, tops = [], []
        for j in range(p.n_w):
            code, bin_ = self.codes[j], self.bins[j]
            top = Signal(bin_bits, name=f"top{j}")
            m.d.comb += top.eq(Mux(self.used[j], bin_, 0))
            tops.append(top)

            # First stage: the product, while the bin is read.
            count = Signal(p.count_bits, name=f"count{j}")
            product = Signal(lanes.product_bits(p), name=f"product{j}", reset_less=True)
            exponent = Signal(max(1, p.score.exp_bits), name=f"exponent{j}")
            bin_now = Signal(bin_bits, name=f"bin{j}", reset_less=True)
            again = Signal(name=f"again{j}", reset_less=True)  # the bin that the word before has just written
            m.d.comb += count.eq(Mux(self.used[j] & self.fire, self.counts[j], 0))
            m.d.sync += [
                again.eq(self.fire & add & (bin_ == bin_now)),
                product.eq(lanes.multiply(m, count, lanes.significand(p, code), f"mul{j}")),
                bin_now.eq(bin_),
            ]
            m.d.comb += exponent.eq(lanes.exponent_of(p, bin_now))
            # A word: sum, number of the histogram, whether it holds anything.
            m.submodules[f"hist{j}"] = ram = Ram(weight_bits + bin_bits + 1, 1 << bin_bits)
            m.d.comb += [ram.r_en.eq(self.fire | self.walk), ram.r_addr.eq(Mux(self.walk, self.walk_bin, bin_))]

            # Second stage: add, write back.
            was, wrote = ram.r_data[:weight_bits], Signal(weight_bits, name=f"wrote{j}", reset_less=True)
            current = Signal(name=f"current{j}")
            fresh = Signal(name=f"fresh{j}")
            old = Signal(weight_bits, name=f"old{j}")
            new = Signal(weight_bits, name=f"new{j}")
            m.d.comb += [
                current.eq(ram.r_data[weight_bits:] == Cat(row, 1)),
                fresh.eq(current & ~again),
                old.eq((wrote & again.replicate(weight_bits)) | (was & fresh.replicate(weight_bits))),
                new.eq(old + product),
                ram.w_en.eq(add | self.next),
                ram.w_addr.eq(Mux(self.next, row, bin_now)),
                ram.w_data.eq(Cat(new, row, ~self.next)),
            ]
            m.d.sync += wrote.eq(new)
            shift = Signal(lanes.shift_bits(p), name=f"shift{j}")
            value = Signal(lanes.product_bits(p) + max_shift, name=f"value{j}")
            addend = Signal(max(len(value), weight_bits), name=f"addend{j}")
            m.d.comb += [
                shift.eq(lanes.shift_of(p, exponent)),
                value.eq(product << shift),
                addend.eq(value | Mux(walked, old, 0)),  # no product follows a walk
            ]
            in_tree.append(addend)

        tree = lanes.adder_tree(m, in_tree, "tree")
        tree_sum = Signal(len(tree), reset_less=True)
        m.d.sync += tree_sum.eq(tree)
        m.d.comb += [self.word_top.eq(lanes.max_tree(m, tops, "word_top")), self.bin_sum.eq(tree_sum)]
        with m.If(self.fire):
            m.d.sync += self.top.eq(Mux(self.first | (self.word_top > self.top), self.word_top, self.top))
        with m.If(total_valid):
            m.d.sync += self.total.eq(Mux(total_first, 0, self.total) + tree_sum)
        return m
