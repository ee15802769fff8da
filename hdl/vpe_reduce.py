"""Row reductions of the VPE: maximum and sum of a row's words."""

from collections.abc import Callable

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.arith.carry_save import carry_save
from hdl.arith.fp32 import Normaliser
from hdl.arith.order import exceeds
from hdl.params import VpeParams

GROUP = 8  # lanes whose numbers are compressed to two rows in the cycle that aligns them
FIELD = 31  # bits of a significand shifted to its block of eight exponents
BLOCK_BITS = 5
NAN = 0x7FC00000


def tree(m: Module, values: list, name: str, exceeds: Callable) -> Signal:
    """Largest of `values`, by comparisons in pairs: `exceeds(m, x, y, name)` is whether x is larger than y."""
    level = 0
    while len(values) > 1:
        best = []
        for j in range(0, len(values) - 1, 2):
            s = Signal(len(values[0]), name=f"{name}_{level}_{j // 2}")
            x, y = values[j], values[j + 1]
            m.d.comb += s.eq(Mux(exceeds(m, y, x, f"{name}_{level}_second{j // 2}"), y, x))
            best.append(s)
        values, level = best + values[len(values) & ~1 :], level + 1
    return values[0]


def _above(m: Module, x: Signal, y: Signal, name: str):
    return x > y


class RowMax(wiring.Component):
    """Maximum of a row of FP32 numbers without subnormals, NaN left out: `golden.vector.larger`.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    word : In(32 * n_w), live : In(n_w) : numbers, and which of them count
    valid, first, last : In(1) : there is a word, the first or last one of its row
    y : Out(32), done : Out(1) : maximum of the row whose last word came `LATENCY` cycles ago, NaN if it has none

    Latency: `LATENCY` = 3 cycles.
    Throughput: a word a cycle, no back-pressure.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A (the VPE).
    """

    LATENCY = 3

    def __init__(self, p: VpeParams):
        self.p = p
        ports = {"word": In(32 * p.n_w), "live": In(p.n_w), "y": Out(32), "done": Out(1)}
        super().__init__(ports | dict.fromkeys(("valid", "first", "last"), In(1)))

    def elaborate(self, platform):
        m = Module()
        keys = []
        for j in range(self.p.n_w):
            x, key, out = self.word.word_select(j, 32), Signal(32, name=f"key{j}"), Signal(name=f"out{j}")
            m.d.comb += out.eq(~self.live[j] | x[22:31].all())  # the only NaN is the quiet one
            m.d.comb += key.eq(x | out.replicate(32))
            keys.append(key)
        for stage, size in enumerate((4, 8)):
            groups = [keys[j : j + size] for j in range(0, len(keys), size)]
            keys = [Signal(32, name=f"top{stage}_{k}", reset_less=True) for k in range(len(groups))]
            for k, group in enumerate(groups):
                m.d.sync += keys[k].eq(tree(m, group, f"stage{stage}_{k}", exceeds))
        valid, first, last = (Signal(2, name=name) for name in ("valid_", "first_", "last_"))
        for s, new in ((valid, self.valid), (first, self.first), (last, self.last)):
            m.d.sync += s.eq(Cat(new, s[0]))
        row = Signal(32, reset_less=True)
        before = Signal(32)
        m.d.comb += before.eq(row | first[1].replicate(32))
        with m.If(valid[1]):
            m.d.sync += row.eq(tree(m, [*keys, before], "row", exceeds))
        m.d.sync += self.done.eq(valid[1] & last[1])
        m.d.comb += self.y.eq(Mux(row[22:].all(), NAN, row))
        return m


class RowSum(wiring.Component):
    """Sum of a row of FP32 numbers without subnormals: `golden.vector.Sum`.

    Largest block of eight exponents in the word, and numbers shifted to their blocks; these aligned to the row's
    largest so far and, eight lanes at a time, compressed to two rows; their sum; added to the row's, which is shifted
    as the largest block rises; one normalisation.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    word : In(32 * n_w), live : In(n_w) : numbers, and which of them count
    valid, first, last : In(1) : there is a word, the first or last one of its row; at most `depth` words a row
    y : Out(32), done : Out(1) : sum of the row whose last word came `LATENCY` cycles ago

    Latency: `LATENCY` = 7 cycles.
    Throughput: a word a cycle, no back-pressure.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A (the VPE); the sum is `golden.vector.Sum`.
    """

    LATENCY = 4 + Normaliser.LATENCY

    def __init__(self, p: VpeParams):
        self.p = p
        ports = {"word": In(32 * p.n_w), "live": In(p.n_w), "y": Out(32), "done": Out(1)}
        super().__init__(ports | dict.fromkeys(("valid", "first", "last"), In(1)))

    def elaborate(self, platform):
        m, n, width = Module(), self.p.n_w, self.p.format.sum_bits

        def comb(name, value, bits=None):
            s = Signal(len(value) if bits is None else bits, name=name)
            m.d.comb += s.eq(value)
            return s

        def reg(name, value, bits=None, reset_less=True):
            s = Signal(len(value) if bits is None else bits, name=name, reset_less=reset_less)
            m.d.sync += s.eq(value)
            return s

        def later(name, value, cycles):
            out = [value]
            for k in range(cycles):
                out.append(reg(f"{name}{k + 1}", out[-1], reset_less=False))
            return out

        valid, last = later("valid", self.valid, self.LATENCY), later("last", self.last, self.LATENCY)
        first = later("first", self.first, 3)
        m.d.comb += self.done.eq(valid[-1] & last[-1])

        # Cycle 0: the word's largest block; a zero is in block 0. Specials may be in it, for the flags then rule.
        lanes = [comb(f"lane{j}", self.word.word_select(j, 32) & self.live[j].replicate(32)) for j in range(n)]
        top1 = reg("top1", tree(m, [x[26:31] for x in lanes], "largest", _above))
        special = comb("special", Cat(x[23:31].all() for x in lanes))
        sign = comb("sign", Cat(x[31] for x in lanes))
        nan = (special & Cat(x[22] for x in lanes)).any()  # the only NaN is the quiet one
        flags1 = reg("flags1", Cat(nan, (special & ~sign).any(), (special & sign).any()))
        blocks = [reg(f"block{j}", x[26:31]) for j, x in enumerate(lanes)]
        numbers = []
        for j, x in enumerate(lanes):
            some = comb(f"some{j}", x[23:31].any())
            numbers.append(reg(f"number{j}", Cat(x[:23], some) << x[23:26], FIELD))  # a zero has no fraction
        sign1 = reg("sign1", sign)

        # Cycle 1: aligned, inverted where negative: -t is ~t + 1, and its sign bit of weight -2^31 is that of a
        # positive one less 2^31.
        block = Signal(BLOCK_BITS, reset_less=True)
        before = comb("before", block & (~first[1]).replicate(BLOCK_BITS))
        highest = comb("highest", Mux(before > top1, before, top1))
        with m.If(valid[1]):
            m.d.sync += block.eq(highest)
        rise2 = reg("rise2", highest - before, BLOCK_BITS)
        rows, ones = [], []
        for g in range(0, n, GROUP):
            terms, signs = [], []
            for j in range(g, min(n, g + GROUP)):
                down = comb(f"down{j}", highest - blocks[j], BLOCK_BITS)
                near = comb(f"near{j}", Mux(down[0], numbers[j] >> 8, numbers[j]))
                aligned = comb(f"aligned{j}", Mux(down[1], near >> 16, near) & (~down[2:].any()).replicate(FIELD))
                terms.append(comb(f"term{j}", Cat(aligned ^ sign1[j].replicate(FIELD), ~sign1[j])))
                signs.append(sign1[j])
            pair, left = carry_save(m, terms, signs, width, f"group{g}")
            rows += [reg(f"row{g}_{k}", v, width) for k, v in enumerate(pair)]
            ones += left
        ones2, flags2 = reg("ones2", Cat(ones)), reg("flags2", flags1)

        # Cycle 2: their sum.
        weights = Const(-(n << FIELD) & ((1 << width) - 1), width)
        pair, left = carry_save(m, [*rows, weights], list(ones2), width, "word")
        total3 = reg("total3", sum(left, pair[0] + pair[1])[:width])
        rise3, flags3 = reg("rise3", rise2), reg("flags3", flags2)

        # Cycle 3: the row's.
        row, flags = Signal(width, reset_less=True), Signal(3, reset_less=True)
        shifted = row
        for k in range(BLOCK_BITS):
            s = Signal(width, name=f"row_down{k}")
            m.d.comb += s.eq(Mux(rise3[k], shifted.as_signed() >> min(8 << k, width), shifted))
            shifted = s
        again = ~first[3].replicate(width)
        with m.If(valid[3]):
            m.d.sync += [row.eq((shifted & again) + total3), flags.eq(flags3 | (flags & again[:3]))]

        # Cycles 4 to 6: rounded; a row's unit is 2^(8 block - 150).
        m.submodules.round = rounder = Normaliser(width, BLOCK_BITS, 8, -150)
        m.d.comb += [
            rounder.x.eq(row),
            rounder.scale.eq(reg("block4", reg("block3", block))),
            rounder.nan.eq(flags[0] | (flags[1] & flags[2])),
            rounder.infinite.eq(flags[1] | flags[2]),
            rounder.minus.eq(flags[2]),
            self.y.eq(rounder.y),
        ]
        return m
