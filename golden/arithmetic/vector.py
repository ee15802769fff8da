"""The VPE, bit for bit: its arithmetic, its instructions and an interpreter that runs them.

**FMA.** `fma` computes a * b + c exactly and rounds once to FP32. An operand below 2^-126 in magnitude counts as a
zero of its sign. A result whose exact magnitude is below 2^-126 becomes a zero of its sign. An exact sum of zero is
-0 only if product and addend are both -0. So an FMA with b = 1 adds, and one with c = -0 multiplies and keeps the sign
of a zero. The result is NaN (0x7fc00000) for a NaN operand, for infinity times zero, and for a product and an addend
of opposite infinities.

**Maximum and minimum.** `larger` and `smaller` ignore a NaN operand and return NaN only if both are. -0 is below +0.

**Row sum.** `Sum` adds all numbers of a row as integers and rounds once at the end. A number has a 24-bit significand
m and a biased exponent e. Its block is e div 8, and its integer in this block is m * 2^(e mod 8). B is the
largest block of the row so far. The VPE shifts each integer right to block B, rounding the magnitude down:
floor(m * 2^(e mod 8) / 2^(8 (B - e div 8))). When B rises, the VPE shifts the sum of the earlier words right,
rounding down.

The unit of the sum is 2^(8 B - 150), at most 2^-23 of the largest number. Every number and every word loses less than
one unit. So the error is below (numbers + words) * 2^-23 * max|x|, plus the final rounding. NaN and infinities follow
`golden.arithmetic.numerics`; a sum of zero is +0.

Source: the VPE is V-Rex's (section V-A); this arithmetic and these instructions are this project's own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np

from openvrex.golden.arithmetic import elementwise
from openvrex.golden.arithmetic.numerics import BF16, flush, to_bf16, to_fp32
from openvrex.golden.function_params import FEATURES, Parameters, ScoreFormat, check, parameter

ONE, MINUS_ZERO = 0x3F80, 0x8000  # BF16
SCALARS = 16  # scalar registers
FOREVER = 15  # a span of 2^15 words: larger than any bank, so an operand's addresses never return to their first word


@dataclass(frozen=True)
class VectorFormat(Parameters):
    """Function parameters of the VPE: lanes, words of a bank, the format of score codes, and optional functions."""

    n: int = parameter(64, "lanes of a word")
    depth: int = parameter(64, "words of a bank")
    score: ScoreFormat = parameter(ScoreFormat(), "exponent and mantissa bits of a score code")
    features: str = parameter("", "optional functions: hybrid has EXPM1 and SOFTPLUS", features=FEATURES)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("n_w", self.n), ("depth", self.depth)):
            check(1 <= value <= 4096 and value & (value - 1) == 0, name, value, "must be a power of two, at most 4,096")
        check(self.n * self.depth <= 1 << 22, "n_w * depth", self.n * self.depth, "must be at most 2^22")

    @property
    def sum_bits(self) -> int:
        """Bits of the signed sum of the longest row, `depth` words of `n` numbers."""
        return 31 + (self.n * self.depth).bit_length()

    @property
    def hybrid(self) -> bool:
        """Whether `Post` has EXPM1 and SOFTPLUS."""
        return "hybrid" in self.features.split("+")

    def is_function(self, post: int) -> bool:
        """Whether a value of `Post` is a function of the rounded result."""
        return post >= (Post.EXPM1 if self.hybrid else Post.EXP)

    def scores(self, i: "Instruction") -> bool:
        """Whether the results of an instruction are score codes."""
        return bool(i.code) and self.is_function(i.post)


class Op(IntEnum):
    """Operation of an instruction."""

    FMA = 0  # a * b + c
    MAX = 1  # the larger of a and c
    MIN = 2  # the smaller of a and c
    STORE = 3  # sends words of a bank to the output


# The operands that an operation takes.
OPERANDS: dict[int, str] = {Op.FMA: "abc", Op.MAX: "ac", Op.MIN: "ac", Op.STORE: ""}


class Source(IntEnum):
    """Source of an operand. Operand c cannot come from the stream: there STREAM means IMMEDIATE."""

    BANK = 0  # bank A, B or C for operand a, b or c
    STREAM = 1  # the next word of the input stream
    SCALAR = 2  # a scalar register, in every lane
    IMMEDIATE = 3  # a BF16 number in every lane


class Bank(IntFlag):
    """Banks that a result is written to. A and C hold FP32; B holds the upper halves, which are BF16."""

    NONE = 0
    A = 1
    B = 2
    C = 4


class Post(IntEnum):
    """Last step on a result. The functions take the result rounded to BF16.

    Without the feature "hybrid", EXPM1 and SOFTPLUS mean ROUND.
    """

    NONE = 0  # the result stays FP32
    ROUND = 1  # rounds to BF16
    EXPM1 = 2  # e^x - 1
    SOFTPLUS = 3  # log(1 + e^x)
    EXP = 4
    RECIPROCAL = 5
    RSQRT = 6
    SILU = 7


FUNCTIONS = {
    Post.EXPM1: elementwise.expm1,
    Post.SOFTPLUS: elementwise.softplus,
    Post.EXP: elementwise.exp,
    Post.RECIPROCAL: elementwise.reciprocal,
    Post.RSQRT: elementwise.rsqrt,
    Post.SILU: elementwise.silu,
}


class Reduce(IntEnum):
    """What an instruction puts into a scalar register.

    Lanes of the last word above `keep` take no part. Score codes take no part in MAX and SUM.
    """

    NONE = 0
    MAX = 1
    SUM = 2
    LAST = 3  # lane 0 of the last word


LATENCY = 5  # cycles from a word's operands to its result
FUNCTION_LATENCY = 8  # the same for a word with a function (exp, reciprocal, ...)
# Cycles from a row's last result to the write of its register:
REDUCTION: dict[int, int] = {Reduce.MAX: 3, Reduce.SUM: 7, Reduce.LAST: 0}


class Format(IntEnum):
    """What STORE sends to the output. Value 3 means SIGN."""

    WIDE = 0  # FP32 from bank C
    HALF = 1  # the 16 bits of bank B: BF16, or score codes
    SIGN = 2  # from bank B, one bit per lane: whether the number is above zero


class Swap(IntEnum):
    """Exchange of operand b from bank B, for rotary pairs.

    A value of 2 + k with k >= 1 reads the word whose address differs in bit k - 1.
    """

    NONE = 0
    NEIGHBOUR = 1  # a lane reads lane ^ 1: pairs are interleaved
    HALF = 2  # a lane reads lane ^ n / 2: pairs lie in the two halves of a word


@dataclass(frozen=True)
class Instruction:
    """One VPE instruction, which works on `words` + 1 words. Every value of every field is legal.

    op : operation (`Op`)
    words : number of words, less one
    keep : highest lane in use of the last word
    a, b, c : source of each operand (`Source`)
    scalar_a, scalar_b, scalar_c : scalar register of an operand from SCALAR
    imm_a, imm_b, imm_c : BF16 bits of an operand from IMMEDIATE
    addr_a, addr_b, addr_c : bank address of the first word of an operand from BANK
    span_a, span_b, span_c : the addresses of an operand start again after 2^span words
    negate_a, negate_c : flips the sign of the operand
    swap : exchange of operand b when it comes from a bank (`Swap`)
    wide : the words of the stream are FP32; otherwise BF16
    post : last step on the result (`Post`)
    code : replaces the result of a function by its score code of 16 bits
    write : banks that take the result (`Bank`)
    addr_d : bank address of the first result
    reduce : reduction into a scalar register (`Reduce`)
    scalar_d : register that takes the reduction
    format : what STORE sends (`Format`); STORE reads bank B at addr_b or bank C at addr_c

    All addresses wrap at the bank's depth. The VPE takes words one by one: a word sees the results of earlier words,
    those of its own instruction too. Scalar registers keep their old values until the instruction ends.
    """

    op: int = Op.FMA
    words: int = 0
    keep: int = 0
    a: int = Source.BANK
    b: int = Source.IMMEDIATE
    c: int = Source.IMMEDIATE
    scalar_a: int = 0
    scalar_b: int = 0
    scalar_c: int = 0
    imm_a: int = 0
    imm_b: int = ONE
    imm_c: int = MINUS_ZERO
    addr_a: int = 0
    addr_b: int = 0
    addr_c: int = 0
    span_a: int = FOREVER
    span_b: int = FOREVER
    span_c: int = FOREVER
    negate_a: int = 0
    negate_c: int = 0
    swap: int = Swap.NONE
    wide: int = 0
    post: int = Post.NONE
    code: int = 0
    write: int = Bank.NONE
    addr_d: int = 0
    reduce: int = Reduce.NONE
    scalar_d: int = 0
    format: int = Format.WIDE

    def source(self, name: str) -> int | None:
        """Source of operand `name`; None if the operation does not take it."""
        return getattr(self, name) if name in OPERANDS[self.op] else None

    @property
    def streams(self) -> bool:
        """Whether the instruction takes one word of the input stream for each of its words."""
        return Source.STREAM in (self.source("a"), self.source("b"))

    @property
    def scalars(self) -> list[int]:
        """Registers that its operands come from."""
        return [getattr(self, f"scalar_{name}") for name in "abc" if self.source(name) == Source.SCALAR]

    @property
    def into(self) -> list[int]:
        """Numbers of the banks that it writes."""
        return [bank for bank in range(3) if self.write >> bank & 1]

    @property
    def stored(self) -> tuple[int, int]:
        """Of a STORE: the number of the bank that it reads, and the address of its first word."""
        return (2, self.addr_c) if self.format == Format.WIDE else (1, self.addr_b)

    @property
    def flips(self) -> int:
        """Bits of operand b's address that its exchange flips."""
        return 1 << self.swap - Swap.HALF - 1 if self.swap > Swap.HALF else 0

    def places(self, depth: int) -> list[tuple[int, np.ndarray]]:
        """The bank and the addresses of each operand from BANK, a row for each."""
        out = []
        for bank, name in enumerate("abc"):
            if self.source(name) == Source.BANK:
                span = (1 << getattr(self, f"span_{name}")) - 1
                at = getattr(self, f"addr_{name}") + (np.arange(self.words + 1) & span)
                out.append((bank, (at ^ self.flips * (bank == 1)) & depth - 1))
        return out

    def results(self, depth: int) -> np.ndarray:
        """The addresses of its results."""
        return (self.addr_d + np.arange(self.words + 1)) & depth - 1

    def store_places(self, depth: int) -> tuple[int, np.ndarray]:
        """Of a STORE: the bank and the addresses of its words."""
        bank, at = self.stored
        return bank, (at + np.arange(self.words + 1)) & depth - 1

    def partners(self, n: int) -> np.ndarray:
        """The lane of operand b from a bank that each of `n` lanes takes."""
        distances: dict[int, int] = {Swap.NEIGHBOUR: 1, Swap.HALF: n // 2}
        return np.arange(n) ^ min(distances.get(self.swap, 0), n - 1)


class Step(NamedTuple):
    """An instruction of a program, and the words that it takes from the stream: [words + 1, n] FP32 or BF16 bits."""

    instruction: Instruction
    words: np.ndarray | None = None


@dataclass(frozen=True)
class Output:
    """One word that a STORE sends to the output."""

    data: np.ndarray  # uint32 [n]: bits of each lane, for SIGN 0 or 1
    format: int  # `Format`
    keep: int  # highest lane in use
    last: int  # 1 for the last word of its STORE


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c, rounded once to FP32. `a` and `c` are FP32 and `b` is BF16, all of one shape."""
    with np.errstate(invalid="ignore"):
        product = flush_fp32(a).astype(np.float64) * flush(b).astype(np.float64)  # 24 + 8 bits: exact
        addend = flush_fp32(c).astype(np.float64)
        total = product + addend
        # TwoSum gives the exact error of the float64 addition.
        other = total - product
        lost = (product - (total - other)) + (addend - other)
        # An inexact sum is rounded to odd, so that the rounding to FP32 is correct.
        even = np.ascontiguousarray(total).view(np.int64) & 1 == 0
        inexact = np.isfinite(total) & (lost != 0) & even
    return to_fp32(np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total))


def larger(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The larger of two FP32 numbers, elementwise; ignores one NaN."""
    return _clean(np.where(order(c) > order(a), c, a))


def smaller(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The smaller of two FP32 numbers, elementwise; ignores one NaN."""
    return _clean(np.where(order(-c) > order(-a), c, a))


def order(x: np.ndarray) -> np.ndarray:
    """Map FP32 numbers to uint32 integers of the same order, with -0 below +0 and NaN below all."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    nan = bits & 0x7FFFFFFF > 0x7F800000
    return np.where(nan, 0, np.where(bits >> 31, ~bits, bits | 0x80000000)).astype(np.uint32)


def flush_fp32(x: np.ndarray) -> np.ndarray:
    """Replace every subnormal of `x` (FP32) by a zero of its sign."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return np.where(bits & 0x7F800000, bits, bits & 0x80000000).astype(np.uint32).view(np.float32)


def _clean(x: np.ndarray) -> np.ndarray:
    """Flush subnormals and make NaN canonical, as an FMA with b = 1 and c = -0 does."""
    x = flush_fp32(x)
    return np.where(np.isnan(x), np.float32(np.nan), x)


class Sum:
    """The VPE's row sum: call `add` for each word, then `total`. The module docstring states the arithmetic."""

    def __init__(self) -> None:
        self.sum = 0  # of the finite numbers, in units of 2^(8 * block - 150)
        self.block = 0  # B, the largest block so far
        self.special = np.float32(0)  # sum of the infinities and NaN

    def add(self, x: np.ndarray) -> None:
        """Add the numbers of one word, `x` [lanes] FP32."""
        bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
        exponent = bits >> 23 & 255
        with np.errstate(invalid="ignore"):
            self.special = np.float32(self.special + np.sum(x[exponent == 255], dtype=np.float32))
        live = (exponent > 0) & (exponent < 255)
        bits, exponent = bits[live], exponent[live]
        top = max(self.block, int(exponent.max(initial=0)) >> 3)
        terms = (bits & 0x7FFFFF | 1 << 23) << (exponent & 7) >> np.minimum(8 * (top - (exponent >> 3)), 63)
        self.sum = (self.sum >> 8 * (top - self.block)) + int(np.where(bits >> 31, -terms, terms).sum())
        self.block = top

    def total(self) -> np.float32:
        """The sum of all numbers added, rounded once to FP32."""
        if not np.isfinite(self.special):
            return np.float32(np.nan) if np.isnan(self.special) else self.special
        return np.float32(to_fp32(np.ldexp(float(self.sum), 8 * self.block - 150)) + np.float32(0))


class Machine:
    """One vector unit: three banks, the scalar registers, and an interpreter of instructions.

    Callers may read and set the state. `banks` is uint32 [3, depth, n], banks A, B and C; only the upper halves of B
    count. `scalars` is FP32 [16]. In hardware the banks are undefined after reset and the scalars are zero.
    """

    def __init__(self, fmt: VectorFormat):
        self.fmt = fmt
        self.banks = np.zeros((3, fmt.depth, fmt.n), np.uint32)
        self.scalars = np.zeros(SCALARS, np.float32)

    def run(self, program: Iterable[Step]) -> Iterator[Output]:
        """Execute a program and yield the words that its STORE instructions send."""
        for i, words in program:
            if i.op == Op.STORE:
                yield from self._store(i)
            else:
                self._compute(i, words)

    def _store(self, i: Instruction) -> Iterator[Output]:
        bank, places = i.store_places(self.fmt.depth)
        for w, at in enumerate(places):
            bits = self.banks[bank][at].copy() if i.format == Format.WIDE else self.banks[bank][at] >> 16
            if i.format >= Format.SIGN:
                bits = ((bits < 0x8000) & (bits >= 0x80) & (bits <= 0x7F80)).astype(np.uint32)
            last = int(w == i.words)
            yield Output(bits, i.format, i.keep if last else self.fmt.n - 1, last)

    def _compute(self, i: Instruction, came: np.ndarray | None) -> None:
        n, count = self.fmt.n, i.words + 1
        places, d_at = dict(i.places(self.fmt.depth)), i.results(self.fmt.depth)
        stream: np.ndarray = np.zeros((count, n), np.uint32)
        if i.streams:
            assert came is not None, "an instruction that reads the stream needs the words of its step"
            stream = came.astype(np.uint32) << (0 if i.wide else 16)
        scalars = self.scalars.view(np.uint32).copy()

        def operand(bank: int) -> np.ndarray:
            name = "abc"[bank]
            source = i.source(name)
            if bank in places:
                return self.banks[bank][places[bank][part]]
            if source == Source.STREAM and bank < 2:
                return stream[part]
            one = scalars[getattr(i, f"scalar_{name}")] if source == Source.SCALAR else getattr(i, f"imm_{name}") << 16
            return np.full((len(d_at[part]), n), one, np.uint32)

        # Word by word if a word reads the result of an earlier one, otherwise all words at once.
        reads = [at for bank, at in places.items() if bank in i.into]
        chained = any(np.triu(d_at[:, None] == at[None], 1).any() for at in reads)
        parts = [slice(w, w + 1) for w in range(count)] if chained else [slice(0, count)]
        result = np.zeros((count, n), np.uint32)
        for part in parts:
            a = operand(0) ^ np.uint32(i.negate_a << 31)
            b = operand(1)
            c = operand(2) ^ np.uint32(i.negate_c << 31)
            if 1 in places:
                b = b[:, i.partners(n)]
            result[part] = self._lanes(i, a.view(np.float32), b, c.view(np.float32))
            for bank in i.into:
                self.banks[bank][d_at[part]] = result[part]
        self._reduce(i, result)

    def _lanes(self, i: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if i.op == Op.FMA:
            y = fma(a, (b >> 16).astype(np.uint16).view(BF16), c)
        else:
            y = larger(a, c) if i.op == Op.MAX else smaller(a, c)
        if i.post == Post.NONE:
            return y.view(np.uint32)
        half = to_bf16(y)
        if self.fmt.is_function(i.post):
            half = FUNCTIONS[Post(i.post)](half)
            if self.fmt.scores(i):
                return elementwise.score_code(half, self.fmt.score).astype(np.uint32) << 16
        return half.view(np.uint16).astype(np.uint32) << 16

    def _reduce(self, i: Instruction, result: np.ndarray) -> None:
        rows = [result[0, :0]] if self.fmt.scores(i) else [*result[:-1], result[-1, : i.keep + 1]]
        if i.reduce == Reduce.MAX:
            top = max(order(row.view(np.float32)).max(initial=0) for row in rows)
            bits = 0x7FC00000 if top == 0 else top & 0x7FFFFFFF if top >> 31 else ~top
            self.scalars[i.scalar_d] = np.uint32(bits).view(np.float32)
        elif i.reduce == Reduce.SUM:
            total = Sum()
            for row in rows:
                total.add(row.view(np.float32))
            self.scalars[i.scalar_d] = total.total()
        elif i.reduce == Reduce.LAST:
            self.scalars[i.scalar_d] = result[-1, 0:1].view(np.float32)[0]
