"""VPE programs for the rows of a decoder layer (softmax, RMSNorm, rotary, SiLU) and for the retrieval engine.

Each function returns the steps of one row or block. `at` is the first word in the banks, `regs` the first of four
scalar registers; so several rows can be in the machine at once. `interleave` mixes the programs of many rows, which
hides the latency of one row behind the words of others. A row is at most as long as a bank.

FP32 inputs stay FP32; results are BF16. The steps are those of `golden.program.recipes`.
"""

from collections.abc import Iterable

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import (
    Bank,
    Format,
    Instruction,
    Machine,
    Op,
    Output,
    Post,
    Reduce,
    Step,
    Swap,
    VectorFormat,
)
from openvrex.golden.function_params import check
from openvrex.golden.program import recipes
from openvrex.golden.program.recipes import BANK, STREAM, Row, Scalar, imm
from openvrex.golden.program.schedule import schedule


def count_words(length: int, fmt: VectorFormat) -> int:
    """Words of a row of `length` numbers. Raises `ParamError` if a bank does not hold them."""
    check(1 <= length <= fmt.depth * fmt.n, "row", length, f"must be 1 to {fmt.depth * fmt.n} numbers, as a bank holds")
    return -(-length // fmt.n)


def words_of(x: np.ndarray, fmt: VectorFormat) -> np.ndarray:
    """Bits of a row of FP32 or BF16 numbers as words, uint32 [words, n], with zeros behind the end."""
    bits = np.ascontiguousarray(x).view(np.uint16 if x.dtype == BF16 else np.uint32).astype(np.uint32)
    return np.pad(bits, (0, -len(bits) % fmt.n)).reshape(-1, fmt.n)


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


class Steps(list[Step]):
    """Steps that recipes write."""

    def vector(self, words: recipes.Words = 1, *, keep: int | None = None, **fields: int) -> None:
        """A step on some words, whose last has lanes 0 to `keep`."""
        assert isinstance(words, int)
        self.append(Step(Instruction(words=words - 1, keep=keep or 0, **fields)))


def _row(length: int, fmt: VectorFormat, at: int, banks: int = Bank.NONE) -> Row:
    """A row of `length` numbers."""
    return Row(at, count_words(length, fmt), banks, (length - 1) % fmt.n)


def softmax(s: np.ndarray, scale: float, fmt: VectorFormat, at: int = 0, regs: int = 0) -> list[Step]:
    """Softmax of the row `scale` * s, s FP32 [length]; stores BF16. `scale` is rounded to BF16.

    The result is NaN for a row with a NaN or an infinite maximum. A NaN score takes no part in the maximum. Uses banks
    A and B from `at` and registers `regs` to `regs` + 3.
    """
    top, total, inverse, rest = (Scalar(k) for k in range(regs, regs + 4))
    out, x = Steps(), _row(len(s), fmt, at, Bank.B)
    out.append(load(s, fmt, Bank.A, at, imm_b=imm(scale), reduce=Reduce.MAX, scalar_d=top.number))
    recipes.exponentials(out, x, top, reduce=Reduce.SUM, scalar_d=total.number)
    recipes.reciprocal(out, total, inverse, rest, inverse)
    recipes.scaled(out, x, inverse, x, Post.ROUND)
    return [*out, store(len(s), fmt, at)]


def score_codes(s: np.ndarray, scale: float, fmt: VectorFormat, at: int = 0, regs: int = 0) -> list[Step]:
    """Score codes of the row exp(`scale` * (s - max s)), s FP32 [length]. Uses banks A and B, and register `regs`."""
    out = Steps([load(s, fmt, Bank.A, at, imm_b=imm(scale), reduce=Reduce.MAX, scalar_d=regs)])
    recipes.exponentials(out, _row(len(s), fmt, at), Scalar(regs), code=1)
    return [*out, store(len(s), fmt, at)]


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
    out, in_b = Steps(), _row(len(x), fmt, at, Bank.B)
    if weight is not None:
        out.append(load(weight, fmt, Bank.B, w_at))
    out.append(load(x, fmt, Bank.A | Bank.B, at))
    recipes.root_mean_square(out, in_b, len(x), epsilon, regs)
    recipes.put(out, in_b, **in_b.of("a"), b=BANK, addr_b=w_at, post=Post.ROUND)
    return [*out, store(len(x), fmt, at)]


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
    words = count_words(length, fmt)
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
    out = Steps([load(x.reshape(-1), fmt, Bank.B, at, post=Post.ROUND)])
    recipes.rotate(out, _row(length, fmt, at), table_at, table_at + period, swap, to, span_a=spans)
    return [*out, store(length, fmt, to)]


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

    As `recipes.mean`. Uses banks A, B and C from `to` and registers `regs` to `regs` + 3.
    """
    check(1 <= count < 1 << 16, "count", count, "must be 1 to 65,535")
    words = count_words(length, fmt)
    apart = min((to - at) % fmt.depth, (at - to) % fmt.depth)
    check(apart >= words, "to", to, f"must be {words} words away from the sum at {at}, modulo depth = {fmt.depth}")
    out, (whole, inverse, low, high) = Steps(), (Scalar(k) for k in range(regs, regs + 4))
    recipes.integer(out, count, whole)
    recipes.mean(out, _row(length, fmt, at), whole, inverse, low, high, to)
    return [*out, store(length, fmt, to)]


def interleave(programs: Iterable[list[Step]], fmt: VectorFormat) -> list[Step]:
    """Mix the programs of many rows (`golden.program.schedule`). Rows that share words or registers come in turns."""
    steps = [step for program in programs for step in program]
    return [steps[k] for k in schedule(tuple(step.instruction for step in steps), fmt)]


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
