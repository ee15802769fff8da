"""Lanes of the exact WTU: they weigh the clusters of a word, and add the weights to the bins of a digit."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval import wtu_lanes as lanes


class WeightedHistogram(wiring.Component):
    """Adds significand x count of the codes of a word to bins, each lane to the bin that `bins` names.

    A bin is a register with an adder tree of its own over the lanes, so any lane can add to any bin in every cycle, and
    bins need neither clearing nor forwarding. The codes of a bin may differ in their exponent: a lane shifts its
    product by `shifts`. The lanes multiply counts `count_digit` bits a cycle. A word takes one cycle, and one for each
    further digit up to the highest that is not zero in all lanes.

    With `tokens` a lane adds its count instead of its weight.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    take : In(1) : take a digit of the word on the following ports; while `more` is high, hold it for the next digit
    restart : In(bins) : these bins drop what they hold; with a word's first digit
    tokens : In(1) : count tokens
    there, used : In(n_w) : lanes that exist, and those of them that are added
    significands, shifts, bins, counts : In(arrays of n_w) : of each lane
    more : Out(1) : the word has further digits, whether this one is taken or not
    part : Out(1) : a word's first digits have been taken and not its last
    sums : Out(array of bins) : the bins

    Latency: 3 cycles from a digit to the bins.
    Throughput: a digit of a word a cycle.
    Raises: nothing.
    Source: V-Rex Equation 1 (weights); the histogram is this project's own.
    """

    def __init__(self, p: WtuParams):
        self.p, self.n_bins = p, len(p.bin_units)
        self.weight_bits = p.score.significand_bits + p.bin_shift + p.count_digit
        self.sum_bits = p.score.significand_bits + p.bin_shift + p.count_bits + (p.clusters - 1).bit_length()
        super().__init__(
            {
                "take": In(1),
                "restart": In(self.n_bins),
                "tokens": In(1),
                "there": In(p.n_w),
                "used": In(p.n_w),
                "significands": In(data.ArrayLayout(p.score.significand_bits, p.n_w)),
                "shifts": In(data.ArrayLayout(bits_for(p.bin_shift + 1), p.n_w)),
                "bins": In(data.ArrayLayout(bits_for(self.n_bins), p.n_w)),
                "counts": In(data.ArrayLayout(p.count_bits, p.n_w)),
                "more": Out(1),
                "part": Out(1),
                "sums": Out(data.ArrayLayout(self.sum_bits, self.n_bins)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        digit = self._digits(m)
        weights = [self._lane(m, j, digit) for j in range(self.p.n_w)]
        added = reg(m, "added", reg(m, "multiplied", digit))  # digits in stages 1 and 2
        valid1 = reg(m, "valid1", self.take, reset_less=False)
        valid2 = reg(m, "valid2", valid1, reset_less=False)
        for k in range(self.n_bins):
            self._bin(m, k, weights, added, valid1, valid2)
        return m

    def _digits(self, m: Module) -> Signal:
        """Steps through the digits of the counts; returns the number of the digit."""
        p = self.p
        digit = Signal(bits_for(p.count_digits))
        with m.Switch(digit):
            for d in range(p.count_digits - 1):
                above = Cat(self.counts[j][(d + 1) * p.count_digit :].any() for j in range(p.n_w))
                with m.Case(d):
                    m.d.comb += self.more.eq((above & self.there).any())
        with m.If(self.take):
            m.d.sync += digit.eq(Mux(self.more, digit + 1, 0))
        m.d.comb += self.part.eq(digit != 0)
        return digit

    def _lane(self, m: Module, j: int, digit: Signal) -> list[Signal]:
        """Stage 1: a lane's weight of the digit; returns it once for each bin, 0 for the bins that do not get it."""
        p = self.p
        part = Signal(p.count_digit, name=f"part{j}")
        with m.Switch(digit):
            for d in range(p.count_digits):
                with m.Case(d):
                    m.d.comb += part.eq(self.counts[j][d * p.count_digit : (d + 1) * p.count_digit])
        # `part` and `tokens` come late: the multiples are of the significand, and `tokens` chooses at the end.
        multiplied = lanes.multiply(m, self.significands[j], part, f"multiply{j}")
        scaled = comb(m, f"scaled{j}", multiplied << self.shifts[j], self.weight_bits)
        weight = reg(m, f"weight{j}", Mux(self.tokens, part, scaled), when=self.take)
        # Most of the decoding stands before the registers, since the path behind them through the tree is long.
        low = reg(m, f"bin{j}_low", self.bins[j][0], when=self.take)
        pairs = [
            reg(m, f"used{j}_{h}", self.used[j] & (self.bins[j][1:] == h), when=self.take)
            for h in range(self.n_bins // 2)
        ]
        return [
            comb(m, f"weight{j}_{k}", weight & (pairs[k // 2] & (low == k % 2)).replicate(len(weight)))
            for k in range(self.n_bins)
        ]

    def _bin(
        self, m: Module, k: int, weights: list[list[Signal]], added: Signal, valid1: Signal, valid2: Signal
    ) -> None:
        """Stages 2 and 3: adds the lanes' weights to bin k. Stage 2 ends with the sums of two halves of the lanes."""
        p, sum_, own = self.p, self.sums[k], [own[k] for own in weights]
        halves = [own[: len(own) // 2], own[len(own) // 2 :]] if len(own) > 1 else [own]
        sums = [
            reg(m, f"came{k}{name}", lanes.adder_tree(m, half, f"tree{k}{name}"), when=valid1)
            for name, half in zip("ab", halves, strict=False)
        ]
        came = comb(m, f"came{k}", sum(sums[1:], sums[0]))
        shifted = Signal(self.sum_bits, name=f"shifted{k}")
        with m.Switch(added):
            for d in range(p.count_digits):
                with m.Case(d):
                    m.d.comb += shifted.eq(came << d * p.count_digit)
        # A cycle before the first digit of a new sum arrives, which drops the last one of the sum before.
        restart = reg(m, f"restart{k}", self.restart[k] & self.take, reset_less=False)
        with m.If(valid2 | restart):
            m.d.sync += sum_.eq(Mux(restart, 0, sum_ + shifted))
