"""The VPE's golden arithmetic against exact rationals, its sequences against float64: neither shares code with it."""

from fractions import Fraction
from math import isinf, isnan

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, matmul, to_bf16
from openvrex.golden.arithmetic.vector import (
    Bank,
    Instruction,
    Machine,
    Reduce,
    Source,
    Step,
    Sum,
    VectorFormat,
    fma,
    larger,
    smaller,
)
from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.tb.library.operands import SPECIAL
from openvrex.tb.library.runner import ROOT
from tb.tests.golden.arithmetic.vector_samples import operands, words


def exact(bits: int) -> Fraction | float:
    """The number that FP32 bits stand for, subnormals flushed; a float where it is no rational."""
    sign, exponent, fraction = -1 if bits >> 31 else 1, bits >> 23 & 255, bits & 0x7FFFFF
    if exponent == 255:
        return float("nan") if fraction else sign * float("inf")
    return sign * Fraction((1 << 23 | fraction) << exponent, 1 << 150) if exponent else Fraction(0)


def expected(a: int, b: int, c: int) -> int:
    """FP32 bits of the fused multiply-add, by the rules' text."""
    x, y, z = exact(a), exact(b << 16), exact(c)
    sign_p = (a >> 31) ^ (b >> 15)
    nan = any(isinstance(v, float) and isnan(v) for v in (x, y, z))
    infinite = [isinstance(v, float) and isinf(v) for v in (x, y, z)]
    zero_times = (infinite[0] and y == 0) or (infinite[1] and x == 0)
    product_inf = infinite[0] or infinite[1]
    if nan or zero_times or (product_inf and infinite[2] and sign_p != c >> 31):
        return 0x7FC00000
    if product_inf or infinite[2]:
        return 0x7F800000 | (sign_p if product_inf else c >> 31) << 31
    total = x * y + z
    if total == 0:
        return (x * y == 0 and z == 0 and sign_p == 1 and c >> 31 == 1) << 31
    sign = (total < 0) << 31
    if abs(total) < Fraction(1, 1 << 126):
        return sign
    e = abs(total.numerator).bit_length() - total.denominator.bit_length()
    e -= abs(total) < Fraction(2) ** e
    significand = round(abs(total) / Fraction(2) ** (e - 23))  # Fraction rounds half to even
    if significand >> 24:
        significand, e = significand >> 1, e + 1
    return sign | (0x7F800000 if e > 127 else (e + 127) << 23 | significand & 0x7FFFFF)


def test_fma_against_fractions():
    a, b, c = operands(np.random.default_rng(1), 6000)
    got = fma(words(a), b.astype(np.uint16).view(BF16), words(c)).view(np.uint32).tolist()
    seen = set()
    for x, y, z, bits in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        assert bits == expected(x, y, z), (hex(x), hex(y), hex(z))
        seen |= {"zero"} if bits == 0 else {"nan"} if bits == 0x7FC00000 else set()
        seen |= {"infinite"} if bits & 0x7FFFFFFF == 0x7F800000 else set()
    assert seen == {"zero", "nan", "infinite"}


def test_fma_of_special_operands():
    for x in SPECIAL:
        for y in SPECIAL:
            b = np.full(len(SPECIAL), y >> 16, np.uint16).view(BF16)
            got = fma(words([x] * len(SPECIAL)), b, words(SPECIAL)).view(np.uint32).tolist()
            assert got == [expected(x, y >> 16, z) for z in SPECIAL]


@pytest.mark.parametrize("c", [0x80000000, 0x3F800000])
def test_fma_rounds_once(c):
    """Products of 32 bits beside addends: rounding twice would give the neighbour."""
    a, b = 0x3F800001, 0x3F81  # (1 + 2^-23)(1 + 2^-7): just above a tie
    got = fma(words([a]), np.array([b], np.uint16).view(BF16), words([c])).view(np.uint32)
    assert got[0] == expected(a, b, c)


def test_larger_and_smaller():
    rng = np.random.default_rng(2)
    a, c = rng.integers(0, 1 << 32, 3000), rng.integers(0, 1 << 32, 3000)
    c[::5], a[::7], c[::11] = a[::5], rng.choice(SPECIAL, len(a[::7])), rng.choice(SPECIAL, len(c[::11]))
    top, low = larger(words(a), words(c)).view(np.uint32), smaller(words(a), words(c)).view(np.uint32)

    def key(bits: int) -> tuple:
        return float(exact(bits)), -(bits >> 31)

    for x, y, most, least in zip(a.tolist(), c.tolist(), top.tolist(), low.tolist(), strict=True):
        found = sorted((b for b in (x, y) if not isnan(float(exact(b)))), key=key)
        clean = [b if b & 0x7F800000 else b & 0x80000000 for b in found] or [0x7FC00000]
        assert (least, most) == (clean[0], clean[-1]), (hex(x), hex(y))


@pytest.mark.parametrize(("n", "spread"), [(1, 0), (3, 4), (64, 10), (300, 40), (64, 120)])
def test_sum_against_fractions(n, spread):
    """Within the stated bound of the exact sum, and exact where no bit can be lost."""
    rng = np.random.default_rng(n + spread)
    for _ in range(40):
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-spread, spread + 1, n)).astype(np.float32)
        x[rng.random(n) < 0.1] = 0
        if rng.random() < 0.3:
            x[n // 2 :] = -x[: n - n // 2]  # cancellation
        total = Sum()
        parts = np.array_split(x, 1 + n // 20)
        for part in parts:
            total.add(part)
        true = sum(map(Fraction, x.tolist()))
        bound = (n + len(parts)) * Fraction(float(np.abs(x).max())) / 2**23
        error = abs(Fraction(float(total.total())) - true)
        assert error <= bound + abs(true) / 2**24
        if spread == 0 or n == 1:
            assert error <= abs(true) / 2**24 + bound / 2**7  # within a block of eight exponents little is lost


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ([np.inf, 1, -1], np.inf),
        ([-np.inf, 5], -np.inf),
        ([np.inf, -np.inf], np.nan),
        ([np.nan, 1], np.nan),
        ([-0.0, -0.0], 0.0),
        ([1e-40, -1e-40], 0.0),
        ([3e38, 3e38], np.inf),
        ([3e38, 3e38, -3e38], 3e38),
    ],
)
def test_sum_rules(numbers, want):
    total = Sum()
    total.add(np.array(numbers, np.float32))
    np.testing.assert_equal(total.total(), np.float32(want))
    assert not np.signbit(total.total()) or want < 0


def test_a_word_sees_what_those_before_it_wrote():
    """A running sum of words: each reads the one that the word before has written."""
    fmt = VectorFormat(n=2, depth=8)
    machine = Machine(fmt)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    machine.banks[0] = 0
    chain = Instruction(a=Source.BANK, addr_a=0, c=Source.BANK, addr_c=1, words=3, write=Bank.A, addr_d=1)
    machine.banks[0][:5] = machine.banks[2][:5] = x.view(np.uint32)
    list(machine.run([Step(chain)]))
    np.testing.assert_array_equal(machine.banks[0][:5].view(np.float32), np.cumsum(x, axis=0))


def test_reductions_leave_out_idle_lanes_and_codes():
    fmt = VectorFormat(n=4, depth=4)
    x = np.array([1, 5, 2, 9], np.float32)
    for reduce, keep, want in ((Reduce.MAX, 2, 5), (Reduce.SUM, 2, 8), (Reduce.LAST, 2, 1), (Reduce.MAX, 3, 9)):
        machine = Machine(fmt)
        i = Instruction(a=Source.STREAM, wide=1, keep=keep, reduce=reduce, scalar_d=3)
        list(machine.run([Step(i, x.view(np.uint32)[None])]))
        assert machine.scalars[3] == want
    coded = Instruction(a=Source.STREAM, wide=1, post=4, code=1, keep=3, reduce=Reduce.SUM, scalar_d=1)
    list(machine.run([Step(coded, x.view(np.uint32)[None])]))
    assert machine.scalars[1] == 0


FMT = VectorFormat()


def trace() -> Trace:
    return Trace.load(ROOT / "tb" / "fixtures" / "world.safetensors")


def real_rows() -> list[np.ndarray]:
    """Scores of the last recorded query of every layer and head against all keys, FP32."""
    t = trace()
    start, stop = t.spans(queries=True)[-1]
    q = [t.queries(i, start, stop) for i in range(len(t.layers))]
    return [matmul(x[:, h], t.k[i, :stop, h // 3])[0] for i, x in enumerate(q) for h in range(9)]


def as_numbers(bits: np.ndarray) -> np.ndarray:
    return bits.view(BF16).astype(np.float64)


def test_softmax_of_real_rows():
    """Shares of the row's probability that are misplaced: BF16 takes the argument of exp with eight bits."""
    worst = 0.0
    for s in real_rows():
        got = as_numbers(programs.run(programs.softmax(s, 0.125, FMT), FMT)[0])
        want = np.exp((s.astype(np.float64) - s.max()) / 8)
        want /= want.sum()
        assert abs(got.sum() - 1) < 2**-8
        worst = max(worst, np.abs(got - want).sum())
    assert 0.001 < worst < 0.008


def test_norm_of_real_rows():
    """Correctly rounded but for the last bit: the common factor is right to 2^-15."""
    t, worst = trace(), 0.0
    for x in t.k[:, ::40].reshape(-1, 3 * 64):
        weight = to_bf16(1 + np.arange(192) / 100)
        got = as_numbers(programs.run(programs.rms_norm(x, weight, 1e-5, FMT, 0, 32), FMT)[0])
        wide = x.astype(np.float64)
        want = wide / np.sqrt((wide * wide).mean() + 1e-5) * weight.astype(np.float64)
        worst = max(worst, (np.abs(got - want) / np.abs(want)).max())
    assert worst < 2**-8 * 1.02


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("n", [4, 64])
def test_rotary(pairs, n):
    """Also back: by a position difference, as cached keys are rotated again."""
    fmt, t = VectorFormat(n=n), trace()
    frequency = 1e5 ** -(np.arange(32) / 32)
    x = np.ascontiguousarray(t.k[1, 40])  # [3 heads, 64]
    for position in (3, -17, 2000):
        angle = position * frequency
        table = programs.rotary_tables(np.cos(angle), np.sin(angle), pairs, fmt, at=fmt.depth - 2 * 64 // n)
        steps = table + programs.rotary(x[:1] if n == 4 else x, 64, pairs, fmt, table_at=fmt.depth - 2 * 64 // n)
        got = as_numbers(programs.run(steps, fmt)[0]).reshape(-1, 64)
        wide = x[: len(got)].astype(np.float64)
        if pairs == "halves":
            turned = (wide[:, :32] + 1j * wide[:, 32:]) * np.exp(1j * angle)
            want = np.concatenate([turned.real, turned.imag], axis=1)
        else:
            turned = (wide[:, ::2] + 1j * wide[:, 1::2]) * np.exp(1j * angle)
            want = np.stack([turned.real, turned.imag], axis=2).reshape(-1, 64)
        size = np.abs(turned).max()
        assert (np.abs(got - want) <= np.abs(want) * 2**-8 + size * 2**-21).all()


def test_gate_residual_and_hash_bits():
    s, u = real_rows()[:2]
    wide = s.astype(np.float64)
    got = as_numbers(programs.run(programs.silu_gate(s, u, FMT), FMT)[0])
    want = wide / (1 + np.exp(-wide)) * u
    near = 2.0**-7 + 2.0**-9 + np.abs(np.minimum(wide, 0)) * 2.0**-8  # gate, SiLU and product are BF16
    assert (np.abs(got - want) <= np.abs(want) * near + 2.0**-126 * np.abs(u)).all()
    np.testing.assert_array_equal(programs.run(programs.residual(s, u, FMT), FMT)[0], s + u)
    s[:6] = [0.0, -0.0, np.nan, -np.nan, 1e-40, np.inf]
    np.testing.assert_array_equal(programs.run(programs.hash_bits(s, FMT), FMT)[0], flushed(s) > 0)
    s[6:9] = u[6:9]  # no product is above itself
    with np.errstate(invalid="ignore"):
        above = flushed(flushed(s).astype(np.float64) - flushed(u)) > 0
    np.testing.assert_array_equal(programs.run(programs.hash_bits(s, FMT, thresholds=u), FMT)[0], above)
    assert 0 < above.sum() < len(s)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**-126, 0, x)


def test_cluster_means_equal_clustering():
    """The hardware's quotients are those of the HC table, which divides in FP32."""
    t = trace()
    for count in (1, 2, 3, 7, 24, 150, 259):
        keys = np.ascontiguousarray(t.k[0, :count].reshape(count, -1))
        table = Clusterer(ReSVParams(n_hp=8, th_hd=9), key_dim=keys.shape[1])
        for key in keys:
            table.add(0, key=key)
        steps = [step for i, key in enumerate(keys) for step in programs.cluster_add(key, i == 0, FMT)]
        got = programs.run(steps + programs.cluster_mean(keys.shape[1], count, FMT, 0, 8), FMT)[0]
        np.testing.assert_array_equal(got, table.key_cluster()[0].view(np.uint16))


def test_score_codes_of_real_rows():
    """The maximum has the top code; the order of scores is kept."""
    for s in real_rows():
        got = programs.run(programs.score_codes(s, 0.125, FMT), FMT)[0]
        assert got[s.argmax()] == got.max() == (1 << FMT.score.bits) - 1
        assert (np.diff(got[np.argsort(s, kind="stable")].astype(int)) >= 0).all()


def test_many_rows_at_once():
    rows = real_rows()[:5]
    for sequence, slots in ((programs.softmax, 3), (programs.score_codes, 2)):
        mixed = [sequence(s, 0.125, FMT, k % slots * 5, k % slots * 4) for k, s in enumerate(rows)]
        got = programs.run(programs.interleave(mixed, FMT), FMT)
        for s, y in zip(rows, got, strict=True):
            np.testing.assert_array_equal(y, programs.run(sequence(s, 0.125, FMT), FMT)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VectorFormat(n=48), "n_w=48: must be a power of two"),
        (lambda: VectorFormat(depth=0), "depth=0: must be a power of two"),
        (lambda: VectorFormat(n=4096, depth=4096), r"n_w \* depth=16777216: must be at most 2\^22"),
        (lambda: VectorFormat(n=2.0), "n=2.0: must be an integer"),
        (lambda: programs.softmax(np.zeros(5000, np.float32), 1, FMT), "row=5000: must be 1 to 4096 numbers"),
        (lambda: programs.rotary(np.zeros((1, 96), BF16), 96, "halves", FMT), "head=96: must be a multiple of n = 64"),
        (lambda: programs.rotary(np.zeros((1, 192), BF16), 192, "halves", FMT), "head=192: must be a power of two"),
        (
            lambda: programs.rotary(np.zeros((40, 64), BF16), 64, "halves", FMT),
            "heads=40: must be fewer: a bank of 64 words must hold",
        ),
        (lambda: programs.rotary(np.zeros((1, 128), BF16), 128, "halves", FMT, at=1), "at=1: must be a multiple of"),
        (lambda: programs.cluster_mean(64, 0, FMT, 0, 8), "count=0: must be 1 to 65,535"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ParamError, match=message):
        make()
