"""VPE programs for the rows of a decoder layer (softmax, RMSNorm, rotary, SiLU) and for the retrieval engine.

Each function returns the steps of one row or block. `at` is the first word in the banks, `regs` the first of four
scalar registers; so several rows can be in the machine at once. `interleave` mixes the programs of many rows, which
hides the latency of one row behind the words of others. A row is at most as long as a bank.

FP32 inputs stay FP32; results are BF16. A reciprocal or a root is refined in FP32 by a Newton step (relative error
below 2^-15), so that the common factor of a row does not carry the error of BF16.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import (
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
from openvrex.golden.function_params import check

BANK, STREAM, SCALAR, IMMEDIATE = Source


# Turns of the steps and period for `interleave`: words of other rows pass between a scalar's step and its use.
SOFTMAX_TURNS = (0, 5, 8, 11, 13, 16, 17), 7
SCORE_TURNS = (0, 4, 5), 3
NORM_TURNS = (0, 3, 10, 12, 15, 18, 19, 21, 23, 28, 31, 32), 11


def count_words(length: int, fmt: VectorFormat) -> int:
    """Words of a row of `length` numbers. Raises `ParamError` if a bank does not hold them."""
    check(1 <= length <= fmt.depth * fmt.n, "row", length, f"must be 1 to {fmt.depth * fmt.n} numbers, as a bank holds")
    return -(-length // fmt.n)


def words_of(x: np.ndarray, fmt: VectorFormat) -> np.ndarray:
    """Bits of a row of FP32 or BF16 numbers as words, uint32 [words, n], with zeros behind the end."""
    bits = np.ascontiguousarray(x).view(np.uint16 if x.dtype == BF16 else np.uint32).astype(np.uint32)
    return np.pad(bits, (0, -len(bits) % fmt.n)).reshape(-1, fmt.n)


def imm(x: float) -> int:
    """The bits of `x` rounded to BF16, for an immediate field."""
    return int(to_bf16(np.array([x])).view(np.uint16)[0])


def row(length: int, fmt: VectorFormat) -> dict[str, int]:
    """The fields `words` and `keep` for a row of `length` numbers."""
    return {"words": count_words(length, fmt) - 1, "keep": (length - 1) % fmt.n}


def load(x: np.ndarray, fmt: VectorFormat, write: int, at: int, **fields: int) -> Step:
    """Take a row, FP32 or BF16, from the stream and write it to the banks `write` from word `at`."""
    wide = int(x.dtype != BF16)
    i = Instruction(a=STREAM, wide=wide, write=write, addr_d=at, **row(len(x), fmt), **fields)
    return Step(i, words_of(x, fmt))


def store(length: int, fmt: VectorFormat, at: int, form: Format = Format.HALF) -> Step:
    """Put a row from word `at` on the output: bank C as FP32 (`Format.WIDE`), else bank B."""
    return Step(Instruction(op=Op.STORE, addr_b=at, addr_c=at, format=form, **row(length, fmt)))


def scalar(to: int, **fields: int) -> Step:
    """Compute with scalar operands; the result goes to scalar register `to`."""
    return Step(Instruction(a=SCALAR, reduce=Reduce.LAST, scalar_d=to, **fields))


def reciprocal(of: int, to: int, temporary: int) -> list[Step]:
    """Register `to` = 1 / register `of`, refined in FP32: r + r (1 - x r). A zero or infinite x gives NaN."""
    return [
        scalar(to, scalar_a=of, post=Post.RECIPROCAL),
        scalar(temporary, scalar_a=of, negate_a=1, b=SCALAR, scalar_b=to, imm_c=ONE),
        scalar(to, scalar_a=temporary, b=SCALAR, scalar_b=to, c=SCALAR, scalar_c=to),
    ]


def softmax(s: np.ndarray, scale: float, fmt: VectorFormat, at: int = 0, regs: int = 0) -> list[Step]:
    """Softmax of the row `scale` * s, s FP32 [length]; stores BF16. `scale` is rounded to BF16.

    The result is NaN for a row with a NaN or an infinite maximum. A NaN score takes no part in the maximum. Uses banks
    A and B from `at` and registers `regs` to `regs` + 3.
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
    """Score codes of the row exp(`scale` * (s - max s)), s FP32 [length]. Uses banks A and B, and register `regs`."""
    size = row(len(s), fmt)
    return [
        load(s, fmt, Bank.A, at, imm_b=imm(scale), reduce=Reduce.MAX, scalar_d=regs),
        Step(_less_top(size, at, regs, code=1)),
        store(len(s), fmt, at),
    ]


def _less_top(size: dict[str, int], at: int, top: int, **fields: int) -> Instruction:
    """B = exp(A - register `top`) for a row."""
    into: dict[str, int] = {"post": Post.EXP, "write": Bank.B, "addr_d": at}
    return Instruction(a=BANK, addr_a=at, c=SCALAR, scalar_c=top, negate_c=1, **into, **size, **fields)


def hash_bits(products: np.ndarray, fmt: VectorFormat, at: int = 0, thresholds: np.ndarray | None = None) -> list[Step]:
    """Hash bits of a row of FP32 products: 1 where a product exceeds zero, or its FP32 threshold (`Hasher`).

    Uses bank B, and bank C for thresholds.
    """
    less: dict[str, int] = {} if thresholds is None else {"c": BANK, "addr_c": at, "negate_c": 1}
    return [
        *([] if thresholds is None else [load(thresholds, fmt, Bank.C, at)]),
        load(products, fmt, Bank.B, at, post=Post.ROUND, **less),
        store(len(products), fmt, at, Format.SIGN),
    ]


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray | None,
    epsilon: float,
    fmt: VectorFormat,
    at: int,
    w_at: int,
    regs: int = 0,
) -> list[Step]:
    """RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight, with x and weight BF16 and epsilon rounded to BF16.

    The weight is in bank B from word `w_at`; it is loaded if one is given. Uses banks A and B from `at` and registers
    `regs` to `regs` + 3.
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
    """Load the tables of one position for `rotary` into bank A from `at`: cos, then sin with its signs.

    cos, sin : FP32 [head / 2]; a difference of positions re-rotates cached keys (CodecSight), a factor of the scores
        may be multiplied into both
    pairs : "halves" pairs i with i + head / 2, as Llama does; "neighbours" pairs 2i with 2i + 1
    """
    if pairs == "halves":
        whole = np.concatenate([cos, cos]), np.concatenate([-sin, sin])
    else:
        whole = np.repeat(cos, 2), np.stack([-sin, sin], axis=1).reshape(-1)
    words = count_words(len(whole[0]), fmt)
    check(
        2 * words <= fmt.depth,
        "head",
        len(whole[0]),
        f"cos and sin need {2 * words} words of a bank, but depth = {fmt.depth}",
    )
    return [load(t.astype(np.float32), fmt, Bank.A, at + k * words) for k, t in enumerate(whole)]


def rotary(
    x: np.ndarray, head: int, pairs: str, fmt: VectorFormat, at: int = 0, to: int | None = None, table_at: int = 0
) -> list[Step]:
    """Rotate the heads x [heads, head] of one position by the tables at word `table_at` of bank A.

    x is BF16, or FP32 that is rounded to BF16 first. Uses banks B and C from `at`; the result is in B from `to`, behind
    the heads if not given. A head must be n numbers times a power of two.
    """
    n, length = fmt.n, x.size
    check(head % n == 0, "head", head, f"must be a multiple of n = {n}")
    period = head // n
    spans = period.bit_length() - 1
    check(period == 1 << spans, "head", head, f"must be a power of two times n = {n}")
    size = row(length, fmt)
    words = size["words"] + 1
    to = at + words if to is None else to
    check(
        words + abs(to - at) <= fmt.depth,
        "heads",
        len(x),
        f"must be fewer: a bank of {fmt.depth} words must hold them and their results",
    )
    # The halves of a head swap within a word if the head is one word, else by the address.
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
    """SiLU(gate) * up of two FP32 rows; stores BF16. Uses bank B."""
    size = row(len(up), fmt)
    multiply = Instruction(a=STREAM, wide=1, b=BANK, addr_b=at, post=Post.ROUND, write=Bank.B, addr_d=at, **size)
    return [
        load(gate, fmt, Bank.B, at, post=Post.SILU),
        Step(multiply, words_of(up, fmt)),
        store(len(gate), fmt, at),
    ]


def residual(x: np.ndarray, delta: np.ndarray, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """x + delta of two FP32 rows; stores FP32. Uses bank C."""
    size = row(len(x), fmt)
    add = Instruction(a=STREAM, wide=1, c=BANK, addr_c=at, write=Bank.C, addr_d=at, **size)
    return [load(x, fmt, Bank.C, at), Step(add, words_of(delta, fmt)), store(len(x), fmt, at, Format.WIDE)]


def cluster_add(key: np.ndarray, first: bool, fmt: VectorFormat, at: int = 0) -> list[Step]:
    """Add a BF16 key to the FP32 sum of its cluster in banks A and C; the `first` key starts the sum."""
    added = {} if first else {"c": BANK, "addr_c": at}
    return [load(key, fmt, Bank.A | Bank.C, at, **added)]


def cluster_mean(length: int, count: int, fmt: VectorFormat, at: int, to: int, regs: int = 0) -> list[Step]:
    """BF16 mean of a cluster of `count` keys, 1 to 65,535, from its FP32 sum in banks A and C at `at`.

    The first quotient y is corrected to y + (sum - count y) / count. That is the FP32 quotient to one unit in the last
    place, and exact where the quotient is a tie of BF16. Uses banks A, B and C from `to` and registers `regs` to
    `regs` + 3.
    """
    check(1 <= count < 1 << 16, "count", count, "must be 1 to 65,535")
    words = count_words(length, fmt)
    apart = min((to - at) % fmt.depth, (at - to) % fmt.depth)
    check(apart >= words, "to", to, f"must be {words} words away from the sum at {at}, modulo depth = {fmt.depth}")
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
    """Mix many programs of equal shape. Each starts `period` turns after the one before; its step j is at `turns[j]`.

    At most `turns[-1] // period + 1` programs are in flight at once. They must share no word and no register.
    """
    order = [(k * period + turns[j], k, step) for k, steps in enumerate(programs) for j, step in enumerate(steps)]
    return [step for _, _, step in sorted(order, key=lambda x: x[:2])]


def rows(outputs: Iterable[Output]) -> list[np.ndarray]:
    """The stored rows: FP32, the 16 bits of BF16 numbers and score codes (uint16), or signs (uint8)."""
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
    """Run a program on a fresh VPE; returns the rows that it stores."""
    return rows(Machine(fmt).run(program))
