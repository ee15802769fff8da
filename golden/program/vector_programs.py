"""The VPE's sequences: programs for rows of a decoder layer and for the inputs of the retrieval engine.

Each function returns the steps of one row or block. They take the banks' first words (`at`) and registers (`regs`, four
from there on), so that several can stand in the machine at once; `interleave` mixes the programs of many rows, which
hides the latencies of one behind the words of others. Rows are as long as a bank at most.

Numbers: what enters as FP32 is FP32, results are BF16. A reciprocal or root is refined in FP32 by a Newton step
(relative error below 2^-15), so that a row's common factor does not carry BF16's error.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from golden.arithmetic.numerics import BF16, to_bf16
from golden.arithmetic.vector import (
    ONE,
    Bank,
    Format,
    Instruction,
    Machine,
    Op,
    Output,
    Post,
    Reduce,
    Source,
    Step,
    Swap,
    VectorFormat,
)
from golden.function_params import check

BANK, STREAM, SCALAR, IMMEDIATE = Source


# Turns and period of a sequence for `interleave`: between a scalar's step and its use, words of other rows pass.
SOFTMAX_TURNS = (0, 5, 8, 11, 13, 16, 17), 7
SCORE_TURNS = (0, 4, 5), 3
NORM_TURNS = (0, 3, 10, 12, 15, 18, 19, 21, 23, 28, 31, 32), 11


def count_words(length: int, fmt: VectorFormat) -> int:
    """Words of a row; `ParamError` if a bank does not hold them."""
    check(1 <= length <= fmt.depth * fmt.n, "row", length, f"must be 1 to {fmt.depth * fmt.n} numbers, as a bank holds")
    return -(-length // fmt.n)


def words_of(x: np.ndarray, fmt: VectorFormat) -> np.ndarray:
    """Bits of a row of FP32 or BF16 numbers as words [words, n], zeros after its end."""
    bits = np.ascontiguousarray(x).view(np.uint16 if x.dtype == BF16 else np.uint32).astype(np.uint32)
    return np.pad(bits, (0, -len(bits) % fmt.n)).reshape(-1, fmt.n)


def imm(x: float) -> int:
    """`x` rounded to BF16, as an immediate."""
    return int(to_bf16(np.array([x])).view(np.uint16)[0])


def row(length: int, fmt: VectorFormat) -> dict[str, int]:
    """The fields that say how long a row is."""
    return {"words": count_words(length, fmt) - 1, "keep": (length - 1) % fmt.n}


def load(x: np.ndarray, fmt: VectorFormat, write: int, at: int, **fields: int) -> Step:
    """A row from the stream, FP32 or BF16, into banks."""
    wide = int(x.dtype != BF16)
    i = Instruction(a=STREAM, wide=wide, write=write, addr_d=at, **row(len(x), fmt), **fields)
    return Step(i, words_of(x, fmt))


def store(length: int, fmt: VectorFormat, at: int, form: Format = Format.HALF) -> Step:
    """A row to the output."""
    return Step(Instruction(op=Op.STORE, addr_b=at, addr_c=at, format=form, **row(length, fmt)))


def scalar(to: int, **fields: int) -> Step:
    """A word of scalars, whose result goes to register `to`."""
    return Step(Instruction(a=SCALAR, reduce=Reduce.LAST, scalar_d=to, **fields))


def reciprocal(of: int, to: int, temporary: int) -> list[Step]:
    """Register `to` = 1 / register `of`, refined in FP32: r + r (1 - x r). Zero and infinite x give NaN."""
    return [
        scalar(to, scalar_a=of, post=Post.RECIPROCAL),
        scalar(temporary, scalar_a=of, negate_a=1, b=SCALAR, scalar_b=to, imm_c=ONE),
        scalar(to, scalar_a=temporary, b=SCALAR, scalar_b=to, c=SCALAR, scalar_c=to),
    ]


def softmax(s: np.ndarray, scale: float, fmt: VectorFormat, at: int = 0, regs: int = 0) -> list[Step]:
    """Softmax of the row `scale` * s, s FP32: banks A and B, registers 0 to 3 of `regs`. `scale` is rounded to BF16.

    A row with NaN or an infinite maximum is NaN. A NaN score takes no part in the maximum.
    """
    top, total, inverse, rest = range(regs, regs + 4)
    size = row(len(s), fmt)
    return [
        load(s, fmt, Bank.A, at, imm_b=imm(scale), reduce=Reduce.MAX, scalar_d=top),
        Step(_less_top(size, at, top, reduce=Reduce.SUM, scalar_d=total)),
        *reciprocal(total, inverse, rest),
        Step(
            Instruction(a=SCALAR, scalar_a=inverse, b=BANK, addr_b=at, post=Post.ROUND, write=Bank.B, addr_d=at, **size)
        ),
        store(len(s), fmt, at),
    ]


def score_codes(s: np.ndarray, scale: float, fmt: VectorFormat, at: int = 0, regs: int = 0) -> list[Step]:
    """Score codes of the row exp(`scale` * (s - max s)), s FP32: banks A and B, register 0 of `regs`."""
    size = row(len(s), fmt)
    return [
        load(s, fmt, Bank.A, at, imm_b=imm(scale), reduce=Reduce.MAX, scalar_d=regs),
        Step(_less_top(size, at, regs, code=1)),
        store(len(s), fmt, at),
    ]


def _less_top(size: dict[str, int], at: int, top: int, **fields: int) -> Instruction:
    """exp of a row in bank A less a register, into B."""
    into: dict[str, int] = {"post": Post.EXP, "write": Bank.B, "addr_d": at}
    return Instruction(a=BANK, addr_a=at, c=SCALAR, scalar_c=top, negate_c=1, **into, **size, **fields)


def hash_bits(products: np.ndarray, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """Whether each of a row of FP32 products exceeds zero: bank B."""
    return [load(products, fmt, Bank.B, at, post=Post.ROUND), store(len(products), fmt, at, Format.SIGN)]


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray | None,
    epsilon: float,
    fmt: VectorFormat,
    at: int,
    w_at: int,
    regs: int = 0,
) -> list[Step]:
    """x / sqrt(mean(x^2) + epsilon) * weight, x and weight BF16, epsilon rounded to BF16.

    Banks A and B from `at`; the weight in B from `w_at`, loaded if one is given; registers 0 to 3 of `regs`.
    """
    mean, root, half, rest = range(regs, regs + 4)
    size, nth = row(len(x), fmt), np.float32(1 / len(x))
    high = float(to_bf16(np.array(nth)))
    low = float(nth) - high
    square = Instruction(a=BANK, addr_a=at, b=BANK, addr_b=at, reduce=Reduce.SUM, scalar_d=rest, **size)
    scale = Instruction(a=SCALAR, scalar_a=root, b=BANK, addr_b=at, write=Bank.A, addr_d=at, **size)
    weigh = Instruction(a=BANK, addr_a=at, b=BANK, addr_b=w_at, post=Post.ROUND, write=Bank.B, addr_d=at, **size)
    return [
        *([load(weight, fmt, Bank.B, w_at)] if weight is not None else []),
        load(x, fmt, Bank.A | Bank.B, at),
        Step(square),
        scalar(mean, scalar_a=rest, imm_b=imm(low), imm_c=imm(epsilon)),
        scalar(mean, scalar_a=rest, imm_b=imm(high), c=SCALAR, scalar_c=mean),
        scalar(root, scalar_a=mean, post=Post.RSQRT),
        # r + r/2 (1 - x r r)
        scalar(half, scalar_a=root, imm_b=imm(0.5)),
        scalar(rest, scalar_a=mean, b=SCALAR, scalar_b=root),
        scalar(rest, scalar_a=rest, negate_a=1, b=SCALAR, scalar_b=root, imm_c=ONE),
        scalar(root, scalar_a=rest, b=SCALAR, scalar_b=half, c=SCALAR, scalar_c=root),
        Step(scale),
        Step(weigh),
        store(len(x), fmt, at),
    ]


def rotary_tables(cos: np.ndarray, sin: np.ndarray, pairs: str, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """cos, then sin with the sign of each half of a pair, of one position (FP32 [head / 2] each), into bank A at `at`.

    A position difference in place of a position re-rotates cached keys (CodecSight's). `pairs`: "halves" (i with
    i + head / 2, as Llama) or "neighbours" (2i with 2i + 1). A scale of the scores can be multiplied into both.
    """
    if pairs == "halves":
        whole = np.concatenate([cos, cos]), np.concatenate([-sin, sin])
    else:
        whole = np.repeat(cos, 2), np.stack([-sin, sin], axis=1).reshape(-1)
    words = count_words(len(whole[0]), fmt)
    check(2 * words <= fmt.depth, "head", len(whole[0]), f"cos and sin need {2 * words} words of {fmt.depth}")
    return [load(t.astype(np.float32), fmt, Bank.A, at + k * words) for k, t in enumerate(whole)]


def rotary(
    x: np.ndarray, head: int, pairs: str, fmt: VectorFormat, at: int = 0, to: int | None = None, table_at: int = 0
) -> list[Step]:
    """Rotate heads [heads, head] of one position, BF16 or FP32 (rounded to BF16 first), by the tables at `table_at`.

    Banks B and C from `at`, the result in B from `to`, behind the heads if not given. A head fills whole words.
    "halves" takes heads of n numbers or of a power of two times 2n, "neighbours" any of whole words.
    """
    n, length = fmt.n, x.size
    check(head % n == 0, "head", head, f"must be a multiple of n = {n}")
    period = head // n
    spans = period.bit_length() - 1
    check(period == 1 << spans, "head", head, f"must be a power of two times n = {n}")
    size = row(length, fmt)
    words = size["words"] + 1
    to = at + words if to is None else to
    check(words + abs(to - at) <= fmt.depth, "heads", len(x), "and their results do not fit in a bank")
    # Halves of one word are swapped in it, longer ones by the address.
    swap = Swap.NEIGHBOUR if pairs == "neighbours" else Swap.HALF + spans
    check(swap <= Swap.HALF or at % period == 0, "at", at, f"must be a multiple of the {period} words of a head")
    table = {"a": BANK, "b": BANK, "addr_b": at, "span_a": spans}
    return [
        load(x.reshape(-1), fmt, Bank.B, at, post=Post.ROUND),
        Step(Instruction(**table, addr_a=table_at, write=Bank.C, addr_d=at, **size)),
        Step(
            Instruction(
                **table,
                addr_a=table_at + period,
                swap=swap,
                c=BANK,
                addr_c=at,
                post=Post.ROUND,
                write=Bank.B,
                addr_d=to,
                **size,
            )
        ),
        store(length, fmt, to),
    ]


def silu_gate(gate: np.ndarray, up: np.ndarray, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """SiLU(gate) * up of two FP32 rows: bank B."""
    size = row(len(up), fmt)
    multiply = Instruction(a=STREAM, wide=1, b=BANK, addr_b=at, post=Post.ROUND, write=Bank.B, addr_d=at, **size)
    return [
        load(gate, fmt, Bank.B, at, post=Post.SILU),
        Step(multiply, words_of(up, fmt)),
        store(len(gate), fmt, at),
    ]


def residual(x: np.ndarray, delta: np.ndarray, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """x + delta of two FP32 rows, FP32: bank C."""
    size = row(len(x), fmt)
    add = Instruction(a=STREAM, wide=1, c=BANK, addr_c=at, write=Bank.C, addr_d=at, **size)
    return [load(x, fmt, Bank.C, at), Step(add, words_of(delta, fmt)), store(len(x), fmt, at, Format.WIDE)]


def cluster_add(key: np.ndarray, first: bool, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """Add a BF16 key to its cluster's FP32 sum in banks A and C; the `first` one starts it."""
    added = {} if first else {"c": BANK, "addr_c": at}
    return [load(key, fmt, Bank.A | Bank.C, at, **added)]


def cluster_mean(length: int, count: int, fmt: VectorFormat, at: int, to: int, regs: int = 0) -> list[Step]:
    """BF16 mean of a cluster of `count` keys, 1 to 65,535, from its sum in banks A and C at `at`.

    A first quotient y, then y + (sum - count y) / count: the quotient in FP32 to one unit in the last place, and exact
    where it is a tie of BF16. Banks A, B and C from `to`; registers 0 to 3 of `regs`.
    """
    check(1 <= count < 1 << 16, "count", count, "must be 1 to 65,535")
    words = count_words(length, fmt)
    apart = min((to - at) % fmt.depth, (at - to) % fmt.depth)
    check(apart >= words, "to", to, f"overlaps the sum at {at}: both take {words} words of {fmt.depth}")
    whole, inverse, low, high = range(regs, regs + 4)
    number = {"a": IMMEDIATE, "imm_a": imm(count & 0xFF00), "imm_c": imm(count & 0xFF)}

    def part(**fields: int) -> Step:
        return Step(Instruction(addr_d=to, **row(length, fmt), **fields))

    return [
        Step(Instruction(**number, reduce=Reduce.LAST, scalar_d=whole)),
        *reciprocal(whole, inverse, low),
        scalar(high, scalar_a=inverse, post=Post.ROUND),
        scalar(low, scalar_a=inverse, c=SCALAR, scalar_c=high, negate_c=1, post=Post.ROUND),
        part(a=BANK, addr_a=at, b=SCALAR, scalar_b=high, post=Post.ROUND, write=Bank.B | Bank.C),
        part(a=SCALAR, scalar_a=whole, negate_a=1, b=BANK, addr_b=to, c=BANK, addr_c=at, write=Bank.A),
        part(a=BANK, addr_a=to, b=SCALAR, scalar_b=low, c=BANK, addr_c=to, write=Bank.C),
        part(a=BANK, addr_a=to, b=SCALAR, scalar_b=high, c=BANK, addr_c=to, post=Post.ROUND, write=Bank.B),
        store(length, fmt, to),
    ]


def interleave(programs: Iterable[list[Step]], turns: Sequence[int], period: int) -> list[Step]:
    """Many programs of equal shape, each `period` turns behind the one before; step j of one takes its turn `turns[j]`.

    Programs under way at the same time, `turns[-1] // period + 1` of them, must share no word and no register.
    """
    order = [(k * period + turns[j], k, step) for k, steps in enumerate(programs) for j, step in enumerate(steps)]
    return [step for _, _, step in sorted(order, key=lambda x: x[:2])]


def rows(outputs: Iterable[Output]) -> list[np.ndarray]:
    """The stored rows: FP32, or the 16 bits of BF16 numbers and score codes, or bits (uint8)."""
    out: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for word in outputs:
        parts.append(word.data[: word.keep + 1])
        if word.last:
            bits, parts = np.concatenate(parts), []
            if word.format == Format.WIDE:
                out.append(bits.view(np.float32))
            else:
                out.append(bits.astype(np.uint16 if word.format == Format.HALF else np.uint8))
    return out


def run(program: Iterable[Step], fmt: VectorFormat) -> list[np.ndarray]:
    """The rows that a program stores, on a machine of its own."""
    return rows(Machine(fmt).run(program))
