"""Checks of the DPE, shared by tests, mutants, coverage and stress: products equal golden, cycles its time view."""

from dataclasses import asdict, dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.hdl.params import DpeParams, preset
from openvrex.sim.units.dpe_time import DpeTime
from openvrex.tb.library.dpe_traffic import Traffic
from openvrex.tb.library.operands import KINDS, operands
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TINY = replace(preset("tiny").core.dpe, n_h=2, w_depth=4, x_depth=16, halves=True)  # few words: rows wrap
SIZES = {
    "tiny": TINY,
    "one": DpeParams(n_h=1, n_w=1, w_depth=1, x_depth=1),
    "row": DpeParams(n_h=1, n_w=9, w_depth=4, x_depth=4, window=32),
    "ragged": DpeParams(n_h=3, n_w=3, w_depth=8, x_depth=2, window=16),
    "wide": DpeParams(n_h=2, n_w=17, w_depth=2, x_depth=8, window=28),
    "halves": DpeParams(n_h=2, n_w=18, w_depth=4, x_depth=8, window=24, halves=True),
    "pair": DpeParams(n_h=1, n_w=2, w_depth=2, x_depth=4, window=16, halves=True),
}


@cache
def emitted(p: DpeParams):
    return emit("dpe", p)


@cache
def traffic(p: DpeParams, seed: int, phases: int) -> Traffic:
    rng = np.random.default_rng(seed)
    t = Traffic(p)
    for k in range(phases):
        kind = KINDS[k % len(KINDS)]
        chunks = int(rng.integers(1, max(1, min(p.w_depth, p.x_depth) // 2) + 1))
        length = max(1, chunks * p.n_w - int(rng.integers(0, p.n_w)))
        gap = int(rng.integers(0, 3)) if p.x_depth > 2 * chunks + 4 else 0
        rows = int(rng.integers(1, max(1, p.x_depth // 2 // (chunks + gap)) + 1))
        other = kind if rng.random() < 0.5 else "normal"
        splits = int(rng.integers(1, 4))
        tiles = int(rng.integers(1, max(1, p.w_depth // 2 // chunks) + 1)) if splits == 1 else 1
        columns = p.n_h <= p.n_w and bool(rng.integers(0, 2))
        weights = operands(rng, kind, tiles * p.n_h, length)
        alike = 0 if columns else int(rng.integers(0, p.n_h + 1))
        for first in range(0, len(weights) * bool(alike), p.n_h):
            weights[first : first + alike] = weights[first]
        halves = p.halves and bool(rng.integers(0, 2))
        t.phase(weights, operands(rng, other, rows, length), rng, splits, gap, columns, alike, halves)
    return t


def check_equals_golden(size):
    p = SIZES[size]
    for seed, (idle, stall) in enumerate([(0.0, 0.0), (0.4, 0.4), (0.0, 0.8), (0.0, LATE)], 1):
        t = traffic(p, seed, 24)
        got = t.run(emitted(p), seed, idle, stall)
        assert got["beats"] == t.wants, f"seed {seed}"
        assert got["perf"]["results"] == len(t.wants)
        assert got["perf"]["commands"] == len(t.commands)
        assert got["perf"]["overruns"] == t.overruns
        assert got["perf"]["chunks"] == DpeTime(p).run(t.commands).busy


def check_cycles_equal_the_time_view(size):
    p = SIZES[size]
    rng = np.random.default_rng(5)
    half = max(1, min(p.w_depth, p.x_depth) // 2)
    for rows, chunks in ((max(1, p.x_depth // 2), 1), (max(1, p.x_depth // 2 // half), half)):
        t = Traffic(p)
        t.phase(*(operands(rng, "normal", r, chunks * p.n_w) for r in (p.n_h, rows)))
        t.phases[0] |= {"c": t.commands * 3, "results": 3 * rows}
        got, want = t.run(emitted(p), 1), DpeTime(p).run(t.commands * 3)
        first = got["taken"][0]
        assert [c - first for c in got["taken"]] == want.taken.tolist()
        assert [c - first for c in got["cycles"]] == want.results.tolist()
        assert got["beats"] == t.wants * 3
        assert got["perf"]["waits"] == 0


@cache
def wrapping() -> Traffic:
    """Tiles and rows that start in the middle of the memories and need more than half of them, so addresses wrap."""
    t, rng = Traffic(TINY), np.random.default_rng(11)
    sizes = [(2, 1, 3), (TINY.w_depth, 1, 3), (1, 1, 1), (3, 1, 4)]
    for chunks in rng.integers(1, TINY.w_depth + 1, 200).tolist():
        most = TINY.w_depth // chunks, TINY.x_depth // chunks
        sizes.append((chunks, *(int(rng.integers(1, n + 1)) for n in most)))
    for chunks, tiles, rows in sizes:
        weights, n = operands(rng, "normal", tiles * TINY.n_h, chunks * TINY.n_w), chunks * TINY.n_w
        t.phase(weights, operands(rng, "normal", rows, n))
    return t


def check_addresses_that_wrap_are_counted():
    t = wrapping()
    got = t.run(emitted(TINY), 3, 0.2, 0.2)
    assert got["beats"] == t.wants
    assert got["perf"]["overruns"] == t.overruns > 256


def check_many_operands():
    """Many operands exercise shifts, carries and signs of every size, in the tree and in its rounding."""
    t = traffic(TINY, 9, 1200)
    assert t.run(emitted(TINY), 9)["beats"] == t.wants


def check_results_fill_their_queue():
    """Results that are not taken fill the queue, and chunks wait."""
    rng, t = np.random.default_rng(8), Traffic(TINY)
    for _ in range(6):  # in the halves of the memories in turn
        weights = operands(rng, "normal", TINY.w_depth // 2 * TINY.n_h, TINY.n_w)
        t.phase(weights, operands(rng, "normal", TINY.x_depth // 2, TINY.n_w))
    got = t.run(emitted(TINY), 1, stall=0.95)
    assert got["beats"] == t.wants
    assert got["perf"]["waits"] > 0


def overwritten(gap: int) -> tuple[list[dict], list[dict]]:
    """Results, and golden's, of a command whose last words are written with NaNs that many cycles after `read`."""
    p, t, rng = TINY, Traffic(TINY), np.random.default_rng(3)
    length = p.w_depth * p.n_w  # all words of W are read, the last one in the last cycle
    t.phase(operands(rng, "normal", p.n_h, length), operands(rng, "normal", 1, length))
    (phase,), nans = t.phases, {"data": [0x7FFF] * p.n_w}
    last = {"tree": p.n_h - 1, "upto": 1, "addr": phase["w"][-1]["addr"]}
    over = {"over_w": [last | nans], "over_x": [phase["x"][-1] | nans], "gap": gap}
    config = {"params": asdict(p), **phase, **over}
    return Run(emitted(p), "bench_dpe", "overwritten", config, waves=False)()["beats"], t.wants


def check_words_are_free_behind_read():
    """From the second cycle after `read`, as the data sheet says, and no earlier: this bench would see it."""
    got, wants = overwritten(2)
    assert got == wants
    got, wants = overwritten(1)
    assert got != wants


@cache
def long_sums() -> Traffic:
    """Sums of 1,020 chunks, which fill the accumulator to its lowest bits, and short ones of several commands."""
    t, rng = Traffic(TINY), np.random.default_rng(12)
    again, words = 255, TINY.w_depth  # the sum of all words goes on so often

    def numbers(*shape: int) -> np.ndarray:
        return rng.uniform(1, 2, shape)

    for sign in (1, -1) * 3:
        # In one block of exponents the largest products, and some whose last bits are the accumulator's.
        binades = np.array([[1], [-6], [1], [-6]]) - np.outer([0, 0, 3, 3], range(TINY.n_w))
        scale = np.exp2(binades).ravel()
        weights, row = to_bf16(numbers(TINY.n_h, words * TINY.n_w)), to_bf16(sign * scale * numbers(1, len(scale)))
        t.phase(weights, row)
        (c,) = t.phases[-1]["c"]
        t.phases[-1]["c"] = [c | {"start": int(not n), "end": int(n == again - 1)} for n in range(again)]
        want = dot(*(np.tile(x, (1, again)) for x in (row, weights)), TINY.dot).view(np.uint32)
        t.wants[-1] = {"data": want[0].tolist(), "last": 1}
    for _ in range(40):  # their units are those of the results' last bits
        signs = rng.choice((-4.0, 4.0), (1, 2 * TINY.n_w))
        t.phase(to_bf16(numbers(TINY.n_h, signs.size)), to_bf16(signs * numbers(*signs.shape)), splits=2)
    return t


def check_long_sums():
    t = long_sums()
    for idle in (0.0, 0.6):  # commands that come late leave sums alone
        assert t.run(emitted(TINY), 1, idle)["beats"] == t.wants


def check_chunks_far_from_each_other(exponents):
    """Products of two chunks lie 32 or more blocks of exponents apart, so nothing is left of the smaller ones."""
    t, values = Traffic(TINY), to_bf16(np.repeat(np.exp2(exponents), TINY.n_w))
    t.phase(np.tile(values, (TINY.n_h, 1)), values[None, :])
    assert {v for beat in t.wants for v in beat["data"]} == {int(np.float32(TINY.n_w * 2.0**120).view(np.uint32))}
    assert t.run(emitted(TINY), 1)["beats"] == t.wants


def check_a_sum_of_zero_is_zero(size):
    """Products beyond FP32 cancel; and of a negative half and none the larger is zero."""
    p = SIZES[size]
    t, huge = Traffic(p), np.full((p.n_h, p.n_w), 2.0**120)
    rows = np.resize([1.0, -1.0], (1, p.n_w)) * huge[:1]
    for weights, own, halves in ((huge, rows, False), (huge[:, : p.n_w // 2], -huge[:1, : p.n_w // 2], True)):
        if p.halves or not halves:
            t.phase(to_bf16(weights), to_bf16(own), halves=halves)
    assert not any(v for beat in t.wants for v in beat["data"])
    assert t.run(emitted(p), 1)["beats"] == t.wants


def specials(p: DpeParams) -> Traffic:
    """Rows of one infinity with either sign, one NaN, or infinity times 0, in each lane of either side."""
    t, lanes = Traffic(p), np.eye(p.n_w, dtype=bool)
    for lane in lanes:
        for value in (np.inf, -np.inf, np.nan):
            # The exponents' sum is that of a small number.
            numbers = np.where(lane, value, 1.0), np.full(p.n_w, 2.0**-120)
            one, tiny = (to_bf16(np.tile(v, (p.n_h, 1))) for v in numbers)
            t.phase(one, tiny[:1], halves=p.halves and value > 0)
            t.phase(tiny, one[:1])
        large, none = (to_bf16(np.tile(np.where(lane, v, 1.0), (p.n_h, 1))) for v in (np.inf, 0.0))
        t.phase(large, none[:1])
        t.phase(none, large[:1])
    return t


def check_no_bit_of_an_exponent_makes_a_number_special(size):
    """Rows of one number whose exponent lacks one bit of that of infinity and NaN, in each lane of both sides."""
    p = SIZES[size]
    t, lanes, tiny = Traffic(p), np.eye(p.n_w, dtype=bool), to_bf16(np.full(p.n_w, 2.0**-120))
    for lane in lanes:
        for bit in range(8):
            near = np.uint16((255 ^ 1 << bit) << 7 | 1).view(BF16)
            own = np.where(lane, near, to_bf16(np.ones(1)))
            t.phase(np.tile(own, (p.n_h, 1)), tiny[None])
            t.phase(np.tile(tiny, (p.n_h, 1)), own[None])
    assert all(v >> 23 & 255 != 255 for beat in t.wants for v in beat["data"])
    assert t.run(emitted(p), 1)["beats"] == t.wants


def check_one_special_number_in_each_lane(size):
    p = SIZES[size]
    t = specials(p)
    assert {v for beat in t.wants for v in beat["data"]} == {0x7F800000, 0xFF800000, 0x7FC00000}
    assert t.run(emitted(p), 1)["beats"] == t.wants


def check_reset_in_flight(reset_at):
    t = traffic(TINY, reset_at, 6)
    got = t.run(emitted(TINY), reset_at, 0.2, 0.2, reset_at)
    assert got["beats"] == t.wants
    assert got["perf"]["results"] == len(t.wants)


@dataclass
class RandomTraffic(StressTraffic):
    """Products of every kind of operand."""

    p: DpeParams
    seed: int
    idle: float
    stall: float

    def __post_init__(self):
        self.products = traffic(self.p, self.seed, 800)

    @classmethod
    def random(cls, rng: Random) -> Self:
        p, seed = SIZES[rng.choice(list(SIZES))], rng.getrandbits(31)
        return cls(p, seed, stall_rate(rng), stall_rate(rng))

    def play(self) -> Any:
        return self.products.run(emitted(self.p), self.seed, self.idle, self.stall)

    def check(self, got: Any) -> int:
        assert got["beats"] == self.products.wants
        return len(self.products.wants)
