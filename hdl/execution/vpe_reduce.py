"""Row reductions of the VPE: maximum and sum of a row's words."""

from functools import reduce
from operator import or_
from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.arith.carry_save import carry_save
from openvrex.hdl.arith.fp32 import Normaliser
from openvrex.hdl.arith.largest import largest
from openvrex.hdl.arith.order import exceeds
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import VpeParams

AT_ONCE = 4  # numbers that are compared each with each
GROUP = 8  # lanes whose numbers are compressed to two rows in the cycle that aligns them
FIELD = 31  # bits of a significand shifted to its block of eight exponents
BLOCK_BITS = 5
NAN = 0x7FC00000


def _largest_number(m: Module, values: list[Value], name: str, out: Value | None = None) -> Signal:
    """The largest of a few FP32 numbers, all compared with each other at once, which is faster than a tree.

    Numbers in `out` do not take part; if all are out, the result is all ones, the NaN below all numbers.
    """
    loses: list[list[Value]] = [[] for _ in values]
    for j, y in enumerate(values):
        for i, x in enumerate(values[:j]):
            second = exceeds(m, y, x, f"{name}_{i}_{j}")
            if out is not None:
                second = comb(m, f"{name}_{i}_{j}_second", ~out[j] & (out[i] | second))
            loses[i].append(second)
            loses[j].append(~second)
    best = [x & (~Cat(lost).any()).replicate(32) for x, lost in zip(values, loses, strict=True)]
    if out is not None:
        best.append(out.all().replicate(32))
    return comb(m, name, reduce(or_, best))


class RowMax(wiring.Component):
    """Finds the maximum of a row of FP32 numbers without subnormals, NaN left out.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    word : In(32 * n_w), live : In(n_w) : numbers, and lanes that count
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
        valid, first, last = (Signal(2, name=name) for name in ("valid_", "first_", "last_"))
        for s, new in ((valid, self.valid), (first, self.first), (last, self.last)):
            m.d.sync += s.eq(Cat(new, s[0]))
        words = [self.word.word_select(j, 32) for j in range(self.p.n_w)]
        # The only NaN is the quiet one.
        out = comb(m, "out", Cat(~live | x[22:31].all() for live, x in zip(self.live, words, strict=True)))
        groups = [slice(j, j + AT_ONCE) for j in range(0, len(words), AT_ONCE)]
        keys = [
            reg(m, f"key{k}", _largest_number(m, words[g], f"four{k}", out[g]), when=self.valid)
            for k, g in enumerate(groups)
        ]
        groups = [slice(j, j + AT_ONCE) for j in range(0, len(keys), AT_ONCE)]
        keys = [
            reg(m, f"best{k}", _largest_number(m, keys[g], f"group{k}"), when=valid[0]) for k, g in enumerate(groups)
        ]
        row = Signal(32, reset_less=True)
        before = comb(m, "before", row | first[1].replicate(32))
        with m.If(valid[1]):
            m.d.sync += row.eq(_largest_number(m, [*keys, before], "highest"))
        m.d.sync += self.done.eq(valid[1] & last[1])
        m.d.comb += self.y.eq(Mux(row[22:].all(), NAN, row))
        return m


class RowSum(wiring.Component):
    """Sums a row of FP32 numbers without subnormals.

    Cycle 0 finds the row's largest block of eight exponents so far and shifts numbers to their blocks. Cycle 1 aligns
    them to the largest block, and compresses eight lanes at a time to two rows. Cycle 2 adds the rows. Cycle 3
    adds the word to the row's sum, which it shifts as the largest block rises. One normalisation follows.

    Parameters
    ----------
    p : VpeParams

    Members
    -------
    word : In(32 * n_w), live : In(n_w) : numbers, and lanes that count
    valid, first, last : In(1) : there is a word, the first or last one of its row; at most `depth` words a row
    y : Out(32), done : Out(1) : sum of the row whose last word came `LATENCY` cycles ago

    Latency: `LATENCY` = 7 cycles.
    Throughput: a word a cycle, no back-pressure.
    Raises: `ParamError` from `VpeParams`.
    Source: V-Rex section V-A (the VPE); the sum is `golden.arithmetic.vector.Sum`.
    """

    LATENCY = 4 + Normaliser.LATENCY

    def __init__(self, p: VpeParams):
        self.p = p
        ports = {"word": In(32 * p.n_w), "live": In(p.n_w), "y": Out(32), "done": Out(1)}
        super().__init__(ports | dict.fromkeys(("valid", "first", "last"), In(1)))

    def elaborate(self, platform):
        m, width = Module(), self.p.format.sum_bits
        valid, last = _later(m, "valid", self.valid, self.LATENCY), _later(m, "last", self.last, self.LATENCY)
        first = _later(m, "first", self.first, 3)
        m.d.comb += self.done.eq(valid[-1] & last[-1])

        numbers = self._shift_to_blocks(m)
        rows, ones2 = self._align(m, numbers, valid[1])
        rise2 = reg(m, "rise2", numbers.block - numbers.before1, BLOCK_BITS, when=valid[1])
        flags2 = reg(m, "flags2", numbers.flags1, when=valid[1])
        total3 = self._add(m, rows, ones2, valid[2])
        rise3, flags3 = reg(m, "rise3", rise2, when=valid[2]), reg(m, "flags3", flags2, when=valid[2])
        row, flags = self._accumulate(m, total3, rise3, flags3, valid[3], first[3])

        # Cycles 4 to 6: rounded; a row's unit is 2^(8 block - 150).
        m.submodules.round = rounder = Normaliser(width, BLOCK_BITS, 8, -150)
        scale = numbers.block
        for k in range(1, 4):
            scale = reg(m, f"block{k + 1}", scale, when=valid[k])
        m.d.comb += [
            rounder.x.eq(row),
            rounder.scale.eq(scale),
            rounder.nan.eq(flags[0] | (flags[1] & flags[2])),
            rounder.infinite.eq(flags[1] | flags[2]),
            rounder.minus.eq(flags[2]),
            rounder.load.eq(Cat(v & x for v, x in zip(valid[4:7], last[4:7], strict=True))),
            self.y.eq(rounder.y),
        ]
        return m

    def _shift_to_blocks(self, m: Module) -> "_Numbers":
        """Cycle 0: shifts numbers to their blocks, and finds the row's largest block so far; a zero is in block 0.

        Specials may take part, because the flags override the result.
        """
        n = self.p.n_w
        lanes = [comb(m, f"lane{j}", self.word.word_select(j, 32) & self.live[j].replicate(32)) for j in range(n)]
        words = [self.word.word_select(j, 32) for j in range(n)]
        block = Signal(BLOCK_BITS, reset_less=True)
        before = comb(m, "before", block & (~self.first).replicate(BLOCK_BITS))
        blocks = [*(x[26:31] for x in words), before]
        highest, _, _ = largest(m, blocks, Cat(self.live, 1), Const(0, n + 1), "highest")
        with m.If(self.valid):
            m.d.sync += block.eq(highest)
        special = comb(m, "special", Cat(x[23:31].all() for x in lanes))
        sign = comb(m, "sign", Cat(x[31] for x in lanes))
        nan = (special & Cat(x[22] for x in lanes)).any()  # the only NaN is the quiet one
        flags1 = reg(m, "flags1", Cat(nan, (special & ~sign).any(), (special & sign).any()), when=self.valid)
        blocks = [reg(m, f"own{j}", x[26:31], when=self.valid) for j, x in enumerate(lanes)]
        numbers = []
        for j, x in enumerate(lanes):
            some = comb(m, f"some{j}", x[23:31].any())
            number = Cat(x[:23], some) << x[23:26]  # a zero has no fraction
            numbers.append(reg(m, f"number{j}", number, FIELD, when=self.valid))
        before1, sign1 = reg(m, "before1", before, when=self.valid), reg(m, "sign1", sign, when=self.valid)
        return _Numbers(numbers, blocks, block, before1, sign1, flags1)

    def _align(self, m: Module, x: "_Numbers", valid1: Signal) -> tuple[list[Signal], Signal]:
        """Cycle 1: aligns numbers to the row's largest block so far, and compresses them to two rows.

        It inverts negative numbers: -t is ~t + 1, and its sign bit of weight -2^31 is that of a positive one less 2^31.
        Returns the rows, and the ones to add.
        """
        n, width = self.p.n_w, self.p.format.sum_bits
        rows, ones = [], []
        for g in range(0, n, GROUP):
            terms, signs = [], []
            for j in range(g, min(n, g + GROUP)):
                down = comb(m, f"down{j}", x.block - x.blocks[j], BLOCK_BITS)
                near = comb(m, f"near{j}", Mux(down[0], x.numbers[j] >> 8, x.numbers[j]))
                far = ~down[2:].any()
                aligned = comb(m, f"aligned{j}", Mux(down[1], near >> 16, near) & far.replicate(FIELD))
                terms.append(comb(m, f"term{j}", Cat(aligned ^ x.sign1[j].replicate(FIELD), ~x.sign1[j])))
                signs.append(x.sign1[j])
            pair, left = carry_save(m, terms, signs, width, f"group{g}")
            rows += [reg(m, f"row{g}_{k}", v, width, when=valid1) for k, v in enumerate(pair)]
            ones += left
        return rows, reg(m, "ones2", Cat(ones), when=valid1)

    def _add(self, m: Module, rows: list[Signal], ones2: Signal, valid2: Signal) -> Signal:
        """Cycle 2: adds the rows."""
        width = self.p.format.sum_bits
        weights = Const(-(self.p.n_w << FIELD) & ((1 << width) - 1), width)
        pair, left = carry_save(m, [*rows, weights], list(ones2), width, "word")
        return reg(m, "total3", sum(left, pair[0] + pair[1])[:width], when=valid2)

    def _accumulate(
        self, m: Module, total3: Signal, rise3: Signal, flags3: Signal, valid3: Signal, first3: Signal
    ) -> tuple[Signal, Signal]:
        """Cycle 3: adds the word to the row's sum, which is shifted down as the largest block rises."""
        width = self.p.format.sum_bits
        row, flags = Signal(width, reset_less=True, name="row"), Signal(3, reset_less=True, name="flags")
        shifted = row
        for k in range(BLOCK_BITS):
            lower = shifted.as_signed() >> min(8 << k, width)
            shifted = comb(m, f"row_down{k}", Mux(rise3[k], lower, shifted), width)
        again = ~first3.replicate(width)
        with m.If(valid3):
            m.d.sync += [row.eq((shifted & again) + total3), flags.eq(flags3 | (flags & again[:3]))]
        return row, flags


class _Numbers(NamedTuple):
    """Registers at the end of cycle 0."""

    numbers: list[Signal]  # shifted to their blocks
    blocks: list[Signal]
    block: Signal  # the row's largest so far
    before1: Signal  # the same without this word, 0 for a row's first
    sign1: Signal
    flags1: Signal  # NaN, infinity, minus infinity


def _later(m: Module, name: str, value: Value, cycles: int) -> list[Value]:
    """`value`, and its values up to `cycles` cycles ago."""
    out = [value]
    for k in range(cycles):
        out.append(reg(m, f"{name}{k + 1}", out[-1], reset_less=False))
    return out
