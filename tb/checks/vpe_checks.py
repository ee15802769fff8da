"""Checks of the VPE, shared by tests, mutants, coverage and stress: words equal golden, cycles its time view."""

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.vector import (
    FOREVER,
    ONE,
    SCALARS,
    Bank,
    Format,
    Instruction,
    Op,
    Post,
    Reduce,
    Source,
    Step,
    Swap,
)
from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.params import VpeParams, preset
from openvrex.tb.library.operands import SPECIAL
from openvrex.tb.library.runner import emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate
from openvrex.tb.library.vpe_traffic import Episode, run

TINY = replace(preset("tiny").core.vpe, depth=16)  # few words, so addresses wrap
SIZES = {
    "tiny": TINY,
    "rows": VpeParams(n_h=2, n_w=2, depth=4, score=ScoreFormat(0, 16)),
    "one": VpeParams(n_w=1, depth=1),
    "hybrid": replace(TINY, n_w=2, features="hybrid"),
}
STALLS = [(0.4, 0.4, 0.4), (0.0, 0.8, 0.0), (0.0, 0.0, 0.85), (0.0, 0.0, 0.0), (0.8, 0.1, 0.5), (0.0, 0.0, LATE)]
FULL_RATE = [(0.0, 0.0, 0.0)]


@cache
def emitted(p: VpeParams):
    return emit("vpe", p)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], wide: bool) -> np.ndarray:
    """Bits of FP32 or BF16 numbers: of moderate size, of any size, special ones."""
    bits = (rng.standard_normal(shape) * 4).astype(np.float32).view(np.uint32).astype(np.int64)
    kind = rng.random(shape)
    bits = np.where(kind < 0.2, rng.integers(0, 1 << 32, shape), bits)
    bits = np.where(kind > 0.93, rng.choice(SPECIAL, shape), bits)
    return (bits if wide else bits >> 16).astype(np.uint32)


def random_rows(p: VpeParams, seed: int, count: int) -> list[list[Step]]:
    """`count` instructions with any value in any field, after instructions that fill the banks."""
    rng = np.random.default_rng(seed)
    fill = {"a": Source.STREAM, "wide": 1, "write": Bank.A | Bank.B | Bank.C, "words": p.depth - 1}
    instructions = [Instruction(**fill)]
    address_bits = p.depth.bit_length() - 1

    def pick(*values):
        return int(rng.choice(values))

    def address() -> int:
        return int(rng.integers(p.depth))

    for _ in range(count):
        instructions.append(
            Instruction(
                op=pick(Op.FMA, Op.FMA, Op.FMA, Op.MAX, Op.MIN, Op.STORE, Op.STORE),
                words=min(p.depth, pick(1, 1, 2, 3, 5, p.depth)) - 1,
                keep=int(rng.integers(p.n_w)),
                **{n: pick(*Source) for n in "abc"},
                **{f"scalar_{n}": int(rng.integers(SCALARS)) for n in "abcd"},
                **{f"imm_{n}": int(numbers(rng, (1,), False)[0]) for n in "abc"},
                **{f"addr_{n}": address() for n in "abcd"},
                **{f"span_{n}": pick(0, 1, 2, FOREVER, FOREVER) for n in "abc"},
                negate_a=pick(0, 1),
                negate_c=pick(0, 1),
                swap=pick(0, 0, *range(1, Swap.HALF + 1 + address_bits)),
                wide=pick(0, 1),
                post=pick(0, 0, *range(8)),
                code=pick(0, 0, 1),
                write=int(rng.integers(8)),
                reduce=pick(0, *Reduce),
                format=int(rng.integers(4)),
            )
        )

    def row() -> list[Step]:
        return [Step(i, numbers(rng, (i.words + 1, p.n_w), bool(i.wide)) if i.streams else None) for i in instructions]

    return [row() for _ in range(p.n_h)]


@cache
def random_episodes(size: str) -> list[Episode]:
    """Random programs of one size: stalled, at full rate, with resets in flight between them."""
    p = SIZES[size]
    stalled = [Episode(p, random_rows(p, seed, 150), STALLS) for seed in (1, 2)]
    cut = [Episode(p, random_rows(p, seed, 60), STALLS[:1], cut_at=seed) for seed in (7, 40, 111)]
    full_rate = [Episode(p, random_rows(p, seed, 150), FULL_RATE) for seed in (21, 22, 23)]
    return [stalled[0], cut[0], full_rate[0], cut[1], full_rate[1], stalled[1], cut[2], full_rate[2]]


@cache
def random_results(size: str) -> list[tuple[Episode, dict]]:
    """Results of those that no reset cuts."""
    p, episodes = SIZES[size], random_episodes(size)
    return list(zip([e for e in episodes if not e.cut_at], run(emitted(p), p, episodes), strict=True))


@dataclass
class RandomTraffic(StressTraffic):
    """A program of 3,000 random instructions, with two alternating patterns of stalls."""

    p: VpeParams
    episode: Episode

    @classmethod
    def random(cls, rng: Random) -> Self:
        p = SIZES[rng.choice(list(SIZES))]
        words = random_rows(p, rng.getrandbits(31), 3000)
        return cls(p, Episode(p, words, [tuple(stall_rate(rng) for _ in range(3)) for _ in "ab"]))

    def play(self) -> Any:
        return run(emitted(self.p), self.p, [self.episode])

    def check(self, got: Any) -> int:
        self.episode.check(got[0])
        return len(self.episode.want)


def check_random_programs_equal_golden(size):
    """Stored words equal golden, also after resets in flight, which cut some episodes."""
    for episode, got in random_results(size):
        episode.check(got)


def check_cycles_equal_time_view(size):
    full_rate = [(e, got) for e, got in random_results(size) if e.stalls == FULL_RATE]
    assert len(full_rate) == 3
    for episode, got in full_rate:
        episode.check_cycles(got)


def check_rounding_up_to_a_power_of_two():
    """Rounding 2 - 2^-30 carries through all ones of the fraction into the exponent."""
    least = np.full((1, TINY.n_w), np.float32(2.0**-30).view(np.uint32))
    add = Instruction(a=Source.STREAM, wide=1, negate_a=1, imm_c=0x4000, write=Bank.C)
    row = [Step(add, least), Step(Instruction(op=Op.STORE, format=Format.WIDE))]
    episode = Episode(TINY, [row] * TINY.n_h, FULL_RATE)
    assert (episode.want[0][0].data == np.float32(2).view(np.uint32)).all()
    (got,) = run(emitted(TINY), TINY, [episode])
    episode.check(got)


def check_every_result_is_stored(size):
    """Every result of lanes, sums, maxima and functions is stored before a later one can hide it."""
    p, rng, steps = SIZES[size], np.random.default_rng(41), []
    words = p.depth

    def put(words: int = words, **fields: int) -> None:
        steps.append(Step(Instruction(words=words - 1, keep=p.n_w - 1, **fields)))

    def fill(bank: Bank, wide: int) -> None:
        spread = int(rng.choice([0, 3, 12, 40]))
        bits = np.ldexp(rng.standard_normal((words, p.n_w)), rng.integers(-spread, spread + 1, (words, p.n_w)))
        bits = bits.astype(np.float32).view(np.uint32)
        if rng.random() < 0.5:
            bits = np.where(rng.random(bits.shape) < 0.05, numbers(rng, bits.shape, True), bits)
        elif rng.random() < 0.5:  # one infinity, which a sum must keep
            bits[int(rng.integers(2)), int(rng.integers(p.n_w))] = rng.choice([0x7F800000, 0xFF800000])
        load(bank, wide, bits)

    def load(bank: Bank, wide: int, bits: np.ndarray) -> None:
        step = Instruction(a=Source.STREAM, wide=wide, write=bank, words=words - 1)
        steps.append(Step(step, bits if wide else bits >> 16))

    def near() -> None:
        """Rows of numbers that differ in one bit: every bit decides a maximum, and sums cancel but for it."""
        one = int(numbers(rng, (1,), True)[0])
        bits = one ^ 1 << rng.integers(0, 31, (words, p.n_w))
        load(Bank.A, 1, (bits ^ rng.integers(0, 2, bits.shape) * rng.integers(0, 2) << 31).astype(np.uint32))
        for reduce in (Reduce.MAX, Reduce.SUM):
            row = Instruction(a=Source.BANK, words=words - 1, keep=p.n_w - 1, reduce=reduce)
            steps.append(Step(replace(row, scalar_d=int(rng.integers(SCALARS)))))

    def alone() -> None:
        """A maximum of one number among NaN, in each lane."""
        lane = np.arange(words)[:, None] % p.n_w
        load(Bank.A, 1, np.where(np.arange(p.n_w) == lane, ONE << 16, 0x7FC00000).astype(np.uint32))
        for at in range(p.n_w):
            put(1, a=Source.BANK, addr_a=at, reduce=Reduce.MAX, scalar_d=at)

    def few() -> None:
        """A sum in which nothing is left but one of the lowest six bits."""
        bits = np.zeros(words * p.n_w, np.uint32)
        bits[0], bits[-1] = 0x40000020, 0xC0000000
        load(Bank.A, 1, bits.reshape(words, p.n_w))
        for length in (words, 1):  # and one that has more
            put(length, a=Source.BANK, reduce=Reduce.SUM)

    def waits() -> None:
        """A word of bank B that waits behind a function, and is stored at once."""
        put(1, a=Source.BANK, post=Post.EXP, write=Bank.C)
        put(1, a=Source.BANK, addr_a=1, write=Bank.B)
        put(1, op=Op.STORE, format=Format.HALF)

    def scalars() -> None:
        """Every scalar, as each operand."""
        for scalar in range(SCALARS):
            for operand in (
                {"a": Source.SCALAR, "scalar_a": scalar},
                {"a": Source.IMMEDIATE, "imm_a": ONE, "b": Source.SCALAR, "scalar_b": scalar},
                {"a": Source.IMMEDIATE, "c": Source.SCALAR, "scalar_c": scalar},
            ):
                put(1, **operand, write=Bank.C)
                put(1, op=Op.STORE, format=Format.WIDE)

    for _ in range(40):
        fill(Bank.A | Bank.C, 1)
        fill(Bank.B, 0)
        for op in (Op.FMA, Op.MAX, Op.MIN):
            signs = {name: int(rng.integers(2)) for name in ("negate_a", "negate_c")}
            put(op=op, a=Source.BANK, b=Source.BANK, c=Source.BANK, swap=int(rng.integers(4)), write=Bank.C, **signs)
            put(op=Op.STORE, format=Format.WIDE)
            fill(Bank.C, 1)
        for post in (Post.ROUND, *list(Post)[2:]):
            code = int(rng.integers(2))
            put(a=Source.BANK, post=post, code=code, write=Bank.B | Bank.C)
            put(op=Op.STORE, format=Format.HALF)
            put(op=Op.STORE, format=Format.SIGN)
        for reduce in (Reduce.MAX, Reduce.SUM, Reduce.LAST):
            length, scalar = int(rng.integers(1, words + 1)), int(rng.integers(SCALARS))
            row = Instruction(a=Source.BANK, words=length - 1, keep=int(rng.integers(p.n_w)), reduce=reduce)
            steps.append(Step(replace(row, scalar_d=scalar)))
        waits()
        scalars()
        for _ in range(SCALARS // 2):
            near()
        scalars()
    alone()
    scalars()
    few()
    scalars()
    episode = Episode(p, [steps] * p.n_h, FULL_RATE)
    [got] = run(emitted(p), p, [episode])
    episode.check(got)


def check_functions_over_every_operand():
    """Each function of "hybrid" takes all 65,536 BF16 operands, through a VPE's stream, lanes and output."""
    p, steps = SIZES["hybrid"], []
    rows = np.arange(1 << 16, dtype=np.uint32).reshape(-1, p.depth, p.n_w)
    for words in rows:
        for post in (Post.EXPM1, Post.SOFTPLUS):
            take = Instruction(a=Source.STREAM, words=p.depth - 1, keep=p.n_w - 1, post=post, write=Bank.B)
            steps += [Step(take, words), Step(Instruction(op=Op.STORE, words=p.depth - 1, format=Format.HALF))]
    episode = Episode(p, [steps], FULL_RATE)
    [got] = run(emitted(p), p, [episode], waves=False)
    episode.check(got)
    episode.check_cycles(got)
