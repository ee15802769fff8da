"""What rows and scalars go through, each written once: reciprocal, root, mean, softmax, RMSNorm, rotary, arg-max.

A recipe appends VECTORs to a `Writer`: the compiler of a program, or the rows of `golden.program.vector_programs`. Its
values are scalar registers (`Scalar`) or words of banks (`Row`); a row may hold a scalar in all lanes of a word for
each of many rows. A reciprocal or a root is refined in FP32 by a Newton step (relative error below 2^-15), so that the
common factor of a row does not carry the error of BF16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.vector import ONE, Bank, Op, Post, Reduce, Source
from openvrex.golden.retrieval.coded_pages import ROUNDS, START

BANK, STREAM, SCALAR, IMMEDIATE = Source
Words = int | dict[str, int]  # a number of words, or the fields of an instruction that count them


class Writer(Protocol):
    """What takes VECTORs."""

    def vector(self, words: Words = 1, *, keep: int | None = None, **fields: int) -> None:
        """VECTOR on some words. Lanes of the last word above `keep` take no part in a reduction; all do if None."""


@dataclass(frozen=True)
class Scalar:
    """A scalar register."""

    number: int

    words = 1
    keep = 0

    def of(self, operand: str) -> dict[str, int]:
        """The fields by which an instruction takes it as operand a, b or c."""
        return {operand: SCALAR, f"scalar_{operand}": self.number}

    @property
    def to(self) -> dict[str, int]:
        """The fields by which an instruction leaves its result there."""
        return {"reduce": Reduce.LAST, "scalar_d": self.number}


@dataclass(frozen=True)
class Row:
    """Words of banks from word `at`: operand a reads bank A, b bank B, c bank C, and results go to `banks`."""

    at: int
    words: Words = 1
    banks: int = Bank.NONE
    keep: int | None = None

    def of(self, operand: str) -> dict[str, int]:
        """As `Scalar.of`."""
        return {operand: BANK, f"addr_{operand}": self.at}

    @property
    def to(self) -> dict[str, int]:
        """As `Scalar.to`."""
        return {"write": self.banks, "addr_d": self.at}


Value = Scalar | Row


def imm(x: float) -> int:
    """The bits of `x` rounded to BF16, for an immediate field."""
    return int(to_bf16(np.array([x])).view(np.uint16)[0])


def put(w: Writer, to: Value, **fields: int) -> None:
    """An instruction whose result goes to a value."""
    w.vector(to.words, keep=to.keep, **to.to, **fields)


def integer(w: Writer, number: int, to: Scalar) -> None:
    """to = a number of at most 16 bits."""
    put(w, to, a=IMMEDIATE, imm_a=imm(number & 0xFF00), imm_c=imm(number & 0xFF))


def reciprocal(w: Writer, of: Value, first: Value, rest: Value, to: Value) -> None:
    """to = 1 / of, refined: r + r (1 - x r). A zero or infinite x gives NaN. `first` takes r; it may be `to`."""
    put(w, first, **of.of("a"), post=Post.RECIPROCAL)
    put(w, rest, **of.of("a"), negate_a=1, **first.of("b"), imm_c=ONE)
    put(w, to, **rest.of("a"), **first.of("b"), **first.of("c"))


def inverse_root(w: Writer, of: Scalar, root: Scalar, half: Scalar, rest: Scalar, to: Scalar) -> None:
    """to = 1 / sqrt(of), refined: r + r / 2 (1 - x r r). `root` takes r; `to` may be `root` or `rest`."""
    put(w, root, **of.of("a"), post=Post.RSQRT)
    put(w, half, **root.of("a"), imm_b=imm(0.5))
    put(w, rest, **of.of("a"), **root.of("b"))
    put(w, rest, **rest.of("a"), negate_a=1, **root.of("b"), imm_c=ONE)
    put(w, to, **rest.of("a"), **half.of("b"), **root.of("c"))


def split(w: Writer, of: Value, high: Value, low: Value) -> None:
    """high + low = of, to 16 bits: two BF16 numbers."""
    put(w, high, **of.of("a"), post=Post.ROUND)
    put(w, low, **of.of("a"), **high.of("c"), negate_c=1, post=Post.ROUND)


def times(
    w: Writer, x: Row, high: Value, low: Value, part: Row, to: Row, more: Row | None = None, post: int = 0
) -> None:
    """to = x (high + low) + more. `part`, in bank C, takes x low + more."""
    put(w, part, **x.of("a"), **low.of("b"), **(more.of("c") if more else {}))
    put(w, to, **x.of("a"), **high.of("b"), **part.of("c"), post=post)


def split_reciprocal(w: Writer, of: Value, first: Value, rest: Value, high: Value, low: Value) -> None:
    """high + low = 1 / of. `rest` may be `low`."""
    reciprocal(w, of, first, rest, rest)
    split(w, rest, high, low)


def mean(w: Writer, total: Row, count: Scalar, inverse: Scalar, low: Scalar, high: Scalar, at: int) -> None:
    """Word `at` of bank B and on = total / count, BF16, from FP32 sums in banks A and C. Uses A and C there, too.

    The first quotient y is corrected to y + (sum - count y) / count. That is the FP32 quotient to one unit in the last
    place, and exact where the quotient is a tie of BF16.
    """
    a, b, c, both = (Row(at, total.words, banks, total.keep) for banks in (Bank.A, Bank.B, Bank.C, Bank.B | Bank.C))
    reciprocal(w, count, inverse, low, inverse)
    split(w, inverse, high, low)
    put(w, both, **total.of("a"), **high.of("b"), post=Post.ROUND)
    put(w, a, **count.of("a"), negate_a=1, **b.of("b"), **total.of("c"))
    times(w, a, high, low, c, b, c, Post.ROUND)


def logarithm(w: Writer, x: Row, half: Row, y: Row) -> None:
    """y = the logarithm of x, in banks A and C, as `golden.retrieval.coded_pages.logarithm`; x in bank A.

    Uses bank B at x and at `half`, and bank A at `half`.
    """
    power, inverse = Row(x.at, x.words, Bank.B), Row(half.at, x.words, Bank.B)
    put(w, Row(half.at, x.words, Bank.A), **x.of("a"), imm_b=imm(0.5))
    result = Row(y.at, x.words, Bank.A | Bank.C)
    put(w, result, a=IMMEDIATE, imm_a=imm(START))
    for _ in range(ROUNDS):
        put(w, power, **y.of("a"), negate_a=1, post=Post.EXP)
        put(w, inverse, **half.of("a"), **power.of("b"), imm_c=imm(0.5), post=Post.RECIPROCAL)
        put(w, Row(y.at, x.words, Bank.A), **x.of("a"), **power.of("b"), imm_c=imm(-1))
        put(w, result, **y.of("a"), **inverse.of("b"), **y.of("c"))


def exponentials(w: Writer, of: Row, top: Scalar, **more: int) -> None:
    """The same words of bank B = exp(of - top), of in bank A; score codes with `code`. `more` may reduce them."""
    less = {**of.of("a"), **top.of("c"), "negate_c": 1}
    w.vector(of.words, keep=of.keep, **less, post=Post.EXP, write=Bank.B, addr_d=of.at, **more)


def scaled(w: Writer, x: Row, by: Scalar, to: Row, post: int = 0) -> None:
    """to = x by, x in bank B."""
    put(w, to, **by.of("a"), **x.of("b"), post=post)


def squared_length(w: Writer, x: Row, to: Scalar) -> None:
    """to = sum of x^2, x in banks A and B."""
    w.vector(x.words, keep=x.keep, **x.of("a"), **x.of("b"), reduce=Reduce.SUM, scalar_d=to.number)


def part_of(w: Writer, total: Scalar, count: int, to: Scalar, more: float | None = None) -> None:
    """to = total / count + more, by a factor of 16 bits."""
    nth = np.float32(1 / count)
    high = float(to_bf16(np.array(nth)))
    put(w, to, **total.of("a"), imm_b=imm(float(nth) - high), **({} if more is None else {"imm_c": imm(more)}))
    put(w, to, **total.of("a"), imm_b=imm(high), **to.of("c"))


def root_mean_square(
    w: Writer, x: Row, length: int, epsilon: float, regs: int = 0, banks: int = Bank.A, post: int = 0
) -> None:
    """The same words of `banks` = x / sqrt(mean(x^2) + epsilon), x in banks A and B. Uses four scalars from `regs`."""
    mean, root, half, rest = (Scalar(regs + k) for k in range(4))
    squared_length(w, x, rest)
    part_of(w, rest, length, mean, epsilon)
    inverse_root(w, mean, root, half, rest, root)
    scaled(w, x, root, Row(x.at, x.words, banks, x.keep), post)


def centred(w: Writer, x: Row, total: Scalar, length: int, mean: Scalar) -> None:
    """The same words of banks A and B = x - total / length, rounded, x in bank A; `mean` takes the quotient."""
    part_of(w, total, length, mean)
    both = Row(x.at, x.words, Bank.A | Bank.B, x.keep)
    put(w, both, **x.of("a"), **mean.of("c"), negate_c=1, post=Post.ROUND)


def gelu(w: Writer, x: Row, slope: Scalar) -> None:
    """The same words of bank B = GELU(x), x BF16 in banks A and B. Uses bank A at x; `slope` holds `GELU_SLOPE`.

    It is the form with tanh, x / (1 + exp(-x (s + c x^2))), with s = 2 sqrt(2 / pi) and c = 0.044715 s. Over all finite
    BF16 numbers it is within 0.0108 of GELU with erf, x Phi(x), and below 1.9 units in the last place for |x| < 1. A
    form with erf needs two more instructions, and its largest error is the same. GELU(-infinity) is NaN.
    """
    a, b = (Row(x.at, x.words, bank, x.keep) for bank in (Bank.A, Bank.B))
    put(w, a, **x.of("a"), **x.of("b"))
    put(w, a, **x.of("a"), imm_b=imm(0.044715 * GELU_SLOPE), **slope.of("c"))
    put(w, a, **x.of("a"), negate_a=1, **x.of("b"), post=Post.EXP)
    put(w, a, **x.of("a"), imm_c=ONE, post=Post.RECIPROCAL)
    put(w, b, **x.of("a"), **x.of("b"), post=Post.ROUND)


GELU_SLOPE = 2 * (2 / np.pi) ** 0.5


def fp32(w: Writer, number: float, to: Scalar) -> None:
    """to = a number, as the sum of two BF16 numbers."""
    high = float(to_bf16(np.array(np.float32(number))))
    put(w, to, a=IMMEDIATE, imm_a=imm(high), imm_c=imm(number - high))


def rotate(w: Writer, x: Row, cos: int, sin: int, swap: int, to: int, **span: int) -> None:
    """Word `to` of bank B and on = x cos + swapped x sin, rounded, x in bank B. Tables are in bank A; uses C at x."""
    both = {**x.of("b"), "a": int(BANK), **span}
    part, out = Row(x.at, x.words, Bank.C, x.keep), Row(to, x.words, Bank.B, x.keep)
    put(w, part, **both, addr_a=cos)
    put(w, out, **both, addr_a=sin, swap=swap, **part.of("c"), post=Post.ROUND)


def first_of(w: Writer, rows: Sequence[Row], tops: Sequence[Scalar], numbers: int, to: Sequence[Scalar]) -> None:
    """to = N less the place of the first number in each row of bank A that is its maximum, `tops`.

    numbers : the word of bank C from which N less each place stands
    """
    for x, top in zip(rows, tops, strict=True):
        put(w, x, **x.of("a"), **top.of("c"), negate_c=1, post=Post.RECIPROCAL)
    for x, number in zip(rows, to, strict=True):
        fields = {**x.of("a"), "c": int(BANK), "addr_c": numbers}
        w.vector(x.words, keep=x.keep, op=Op.MIN, **fields, reduce=Reduce.MAX, scalar_d=number.number)
