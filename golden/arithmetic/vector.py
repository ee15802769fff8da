"""The VPE, bit for bit: its arithmetic and its instructions.

`fma` computes a * b + c exactly and rounds once to FP32. Operands below 2^-126 in magnitude are zeros of their sign,
a result whose exact magnitude is below 2^-126 is a zero of its sign, and an exact sum of zero is -0 only if product
and addend are both -0. So b = 1 adds, and c = -0 multiplies without touching the sign of a zero. NaN is 0x7fc00000:
the result of a NaN operand, infinity times zero, or a product and an addend of opposite infinities.

`larger` and `smaller` leave out NaN operands (the result is NaN if both are) and order -0 below +0.

`Sum` is the row sum. A number of 24-bit significand m and biased exponent e is m * 2^(e mod 8), of the block e div 8.
With the largest block B of the row so far it becomes floor(m * 2^(e mod 8) / 2^(8 (B - e div 8))) with its sign, and
the sum of the words before is shifted right (floor) as B rises. The whole is an exact integer, rounded once at the
row's end. A number loses less than one unit, 2^(8 B - 150), at most 2^-23 of the largest; so the sum is off by less
than (numbers + words) * 2^-23 * max|x|, and its rounding. NaN and infinities are as in `golden.arithmetic.numerics`; a
sum of zero is +0.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np

from golden.arithmetic import elementwise
from golden.arithmetic.numerics import BF16, flush, to_bf16, to_fp32
from golden.function_params import ScoreFormat, check, check_ints

ONE, MINUS_ZERO = 0x3F80, 0x8000  # BF16
SCALARS = 16
FOREVER = 15  # a span that no bank reaches


@dataclass(frozen=True)
class VectorFormat:
    """Function parameters of the VPE: lanes of a word, words of a bank, score codes."""

    n: int = 64
    depth: int = 64
    score: ScoreFormat = ScoreFormat()

    def __post_init__(self):
        check_ints(self)
        for name, value in (("n_w", self.n), ("depth", self.depth)):
            check(1 <= value <= 4096 and value & (value - 1) == 0, name, value, "must be a power of two, at most 4,096")
        check(self.n * self.depth <= 1 << 22, "n_w * depth", self.n * self.depth, "must be at most 2^22")

    @property
    def sum_bits(self) -> int:
        """Bits of the signed sum of a row, `depth` words of n numbers."""
        return 31 + (self.n * self.depth).bit_length()


class Op(IntEnum):
    """What an instruction does."""

    FMA = 0  # a * b + c
    MAX = 1  # the larger of a and c
    MIN = 2  # the smaller of a and c
    STORE = 3  # words of a bank go to the output


class Source(IntEnum):
    """Where an operand comes from; c has no stream, 1 is as IMMEDIATE there."""

    BANK = 0  # bank A, B or C for operand a, b or c
    STREAM = 1
    SCALAR = 2  # a register, in every lane
    IMMEDIATE = 3  # a BF16 number in every lane


class Bank(IntFlag):
    """Memories that a result is written to: A and C hold FP32, B the upper halves, i.e. BF16."""

    NONE = 0
    A = 1
    B = 2
    C = 4


class Post(IntEnum):
    """What happens to a result; 2 and 3 are as ROUND. Functions take the result rounded to BF16."""

    NONE = 0
    ROUND = 1  # to BF16
    EXP = 4
    RECIPROCAL = 5
    RSQRT = 6
    SILU = 7


class Reduce(IntEnum):
    """What goes to a scalar register; lanes of the last word beyond `keep` take no part, nor do score codes."""

    NONE = 0
    MAX = 1
    SUM = 2
    LAST = 3  # lane 0 of the last word


class Format(IntEnum):
    """What STORE puts out; 3 is as SIGN."""

    WIDE = 0  # FP32 from bank C
    HALF = 1  # the 16 bits of bank B: BF16, or score codes
    SIGN = 2  # from bank B, one bit a lane: whether it exceeds zero


class Swap(IntEnum):
    """Where a lane takes operand b in bank B. 2 + k (k >= 1): from the word whose address differs in bit k - 1."""

    NONE = 0
    NEIGHBOUR = 1  # lane ^ 1: interleaved pairs
    HALF = 2  # lane ^ n / 2: halves of a word


@dataclass(frozen=True)
class Instruction:
    """One instruction on `words` + 1 words. Every value of every field has a meaning: none can be bad.

    keep : highest lane of the last word in use
    a, b, c : sources · scalar_* : registers · imm_* : BF16 immediates
    addr_*, span_* : address of an operand's first word, which comes back after 2^span words. All addresses wrap
    negate_a, negate_c : sign flipped · swap : of operand b from a bank
    wide : the stream's words are FP32, else BF16
    post, code : of the result; `code` takes the score code (16 bits) of a function's result instead
    write, addr_d : banks and address of the first result · reduce, scalar_d : and register
    format : of STORE, which reads its bank at addr_b or addr_c

    Words go one by one: a word sees what those before have written, also of its own instruction. Scalars are as they
    were before the instruction.
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

    @property
    def streams(self) -> bool:
        """Whether it takes a word of the stream for each of its words."""
        return self.op != Op.STORE and Source.STREAM in (self.a, self.b if self.op == Op.FMA else None)


class Step(NamedTuple):
    """An instruction of a program and the words it takes from the stream, [words + 1, n] FP32 or BF16 bits."""

    instruction: Instruction
    words: np.ndarray | None = None


@dataclass(frozen=True)
class Output:
    """A stored word: the lanes' bits (uint32 [n]; SIGN: 0 or 1), format, highest lane in use, last of its STORE."""

    data: np.ndarray
    format: int
    keep: int
    last: int


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c rounded once, FP32; `a` and `c` FP32, `b` BF16."""
    with np.errstate(invalid="ignore"):
        product = flush_fp32(a).astype(np.float64) * flush(b).astype(np.float64)  # 24 + 8 bits: exact
        addend = flush_fp32(c).astype(np.float64)
        total = product + addend
        # TwoSum: what the rounding to float64 lost, exactly.
        other = total - product
        lost = (product - (total - other)) + (addend - other)
        # Rounded to odd instead, so that FP32 is rounded once.
        even = np.ascontiguousarray(total).view(np.int64) & 1 == 0
        inexact = np.isfinite(total) & (lost != 0) & even
    return to_fp32(np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total))


def larger(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The larger of two FP32 numbers."""
    return _clean(np.where(order(c) > order(a), c, a))


def smaller(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The smaller of two FP32 numbers."""
    return _clean(np.where(order(-c) > order(-a), c, a))


def order(x: np.ndarray) -> np.ndarray:
    """Integers that order as FP32 numbers do, -0 below +0 and NaN below all, uint32."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    nan = bits & 0x7FFFFFFF > 0x7F800000
    return np.where(nan, 0, np.where(bits >> 31, ~bits, bits | 0x80000000)).astype(np.uint32)


def flush_fp32(x: np.ndarray) -> np.ndarray:
    """`x` (FP32) with every subnormal made a zero of its sign."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return np.where(bits & 0x7F800000, bits, bits & 0x80000000).astype(np.uint32).view(np.float32)


def _clean(x: np.ndarray) -> np.ndarray:
    """Subnormals flushed, NaN canonical: what passes an FMA with b = 1 and c = -0."""
    x = flush_fp32(x)
    return np.where(np.isnan(x), np.float32(np.nan), x)


class Sum:
    """A row sum in progress: `add` words, then `total`."""

    def __init__(self):
        self.sum = self.block = 0
        self.special = np.float32(0)  # sum of the infinities and NaN

    def add(self, x: np.ndarray) -> None:
        """Add the numbers of `x` (FP32, one dimension)."""
        bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
        exponent = bits >> 23 & 255
        with np.errstate(invalid="ignore"):
            self.special = self.special + np.sum(x[exponent == 255], dtype=np.float32)
        live = (exponent > 0) & (exponent < 255)
        bits, exponent = bits[live], exponent[live]
        top = max(self.block, int(exponent.max(initial=0)) >> 3)
        terms = (bits & 0x7FFFFF | 1 << 23) << (exponent & 7) >> np.minimum(8 * (top - (exponent >> 3)), 63)
        self.sum = (self.sum >> 8 * (top - self.block)) + int(np.where(bits >> 31, -terms, terms).sum())
        self.block = top

    def total(self) -> np.float32:
        """The sum of all, FP32."""
        if not np.isfinite(self.special):
            return np.float32(np.nan) if np.isnan(self.special) else self.special
        return to_fp32(np.ldexp(float(self.sum), 8 * self.block - 150))[()] + np.float32(0)


class Machine:
    """One vector unit: banks of `depth` words, scalar registers, and an interpreter of instructions.

    Banks and scalars can be read and set: `banks[i]` is uint32 [depth, n] (of B only the upper halves count),
    `scalars` FP32 [16]. Hardware starts with unknown banks and scalars of zero.
    """

    def __init__(self, fmt: VectorFormat):
        self.fmt = fmt
        self.banks = np.zeros((3, fmt.depth, fmt.n), np.uint32)
        self.scalars = np.zeros(SCALARS, np.float32)

    def run(self, program: Iterable[Step]) -> Iterator[Output]:
        """Execute a program; the stored words."""
        for i, words in program:
            if i.op == Op.STORE:
                yield from self._store(i)
            else:
                self._compute(i, words)

    def _words(self, addr: int, span: int, count: int) -> np.ndarray:
        return (addr + (np.arange(count) & (1 << span) - 1)) & self.fmt.depth - 1

    def _store(self, i: Instruction) -> Iterator[Output]:
        wide = i.format == Format.WIDE
        for w, at in enumerate(self._words(i.addr_c if wide else i.addr_b, FOREVER, i.words + 1)):
            bits = self.banks[2][at].copy() if wide else self.banks[1][at] >> 16
            if i.format >= Format.SIGN:
                bits = ((bits < 0x8000) & (bits >= 0x80) & (bits <= 0x7F80)).astype(np.uint32)
            last = int(w == i.words)
            yield Output(bits, i.format, i.keep if last else self.fmt.n - 1, last)

    def _compute(self, i: Instruction, came: np.ndarray | None) -> None:
        n, count = self.fmt.n, i.words + 1
        a_at, b_at, c_at = (self._words(getattr(i, f"addr_{x}"), getattr(i, f"span_{x}"), count) for x in "abc")
        if i.swap > Swap.HALF:
            b_at = (b_at ^ 1 << i.swap - 3) & self.fmt.depth - 1
        d_at = (i.addr_d + np.arange(count)) & self.fmt.depth - 1
        shape = (count, n)
        if i.streams:
            came = came.astype(np.uint32) << (0 if i.wide else 16)
        scalars = self.scalars.view(np.uint32).copy()

        def operand(source: int, bank: int, at: np.ndarray, register: int, immediate: int) -> np.ndarray:
            if source == Source.BANK:
                return self.banks[bank][at]
            if source == Source.STREAM and bank < 2:
                return came[part]
            return np.full((len(at), n), scalars[register] if source == Source.SCALAR else immediate << 16, np.uint32)

        b_source = i.b if i.op == Op.FMA else Source.IMMEDIATE
        # Word by word where a word reads what one before it wrote, else all at once.
        operands = ((a_at, i.a, Bank.A), (b_at, b_source, Bank.B), (c_at, i.c, Bank.C))
        reads = [at for at, source, bank in operands if source == Source.BANK and i.write & bank]
        chained = any(np.triu(d_at[:, None] == at[None], 1).any() for at in reads)
        parts = [slice(w, w + 1) for w in range(count)] if chained else [slice(0, count)]
        result = np.zeros(shape, np.uint32)
        for part in parts:
            a = operand(i.a, 0, a_at[part], i.scalar_a, i.imm_a) ^ np.uint32(i.negate_a << 31)
            b = operand(b_source, 1, b_at[part], i.scalar_b, i.imm_b)
            c = operand(i.c, 2, c_at[part], i.scalar_c, i.imm_c) ^ np.uint32(i.negate_c << 31)
            distance = {Swap.NEIGHBOUR: 1, Swap.HALF: n // 2}.get(i.swap, 0)
            if b_source == Source.BANK:
                b = b[:, np.arange(n) ^ min(distance, n - 1)]
            result[part] = self._lanes(i, a.view(np.float32), b, c.view(np.float32))
            for bank in range(3):
                if i.write >> bank & 1:
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
        if i.post >= Post.EXP:
            functions = (elementwise.exp, elementwise.reciprocal, elementwise.rsqrt, elementwise.silu)
            half = functions[i.post - Post.EXP](half)
            if i.code:
                return elementwise.score_code(half, self.fmt.score).astype(np.uint32) << 16
        return half.view(np.uint16).astype(np.uint32) << 16

    def _reduce(self, i: Instruction, result: np.ndarray) -> None:
        rows = [*result[:-1], result[-1, : i.keep + 1]] if not (i.code and i.post >= Post.EXP) else [result[0, :0]]
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
