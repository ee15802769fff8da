"""The expander of packed weights equals golden: every scale and q, zero points, minima of every exponent; stalls."""

import numpy as np
import pytest

from openvrex.golden.arithmetic.packed_weights import Rule
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import weight_expander_checks
from openvrex.tb.checks.weight_expander_checks import (
    check_words_of_several_groups_and_stalls,
    emitted,
    numbers,
    pairs,
    run,
)

EVERY = np.arange(1 << 16)


def test_every_scale_and_number():
    """Q4_0: all 65,536 scales by all 16 numbers."""
    run(16, np.full(1 << 16, Rule.SCALE), numbers(1 << 16), EVERY[:, None], 0 * EVERY[:, None])


FRACTIONS = EVERY[(EVERY >> 15 == 0) & np.isin(EVERY >> 10, (0, 15))]  # of subnormal numbers and of one exponent
EXPONENTS = EVERY[np.isin(EVERY & 1023, (0, 1, 0x2A5, 1023))]


@pytest.mark.parametrize(
    "scales", [np.union1d(FRACTIONS, EXPONENTS), pytest.param(EVERY, marks=pytest.mark.nightly)], ids=["some", "every"]
)
def test_scales_and_every_number_of_8_bits(scales):
    """Q8_0: every fraction and every sign and exponent, at night all 65,536 scales, by all 256 numbers.

    Eight words have all numbers of a pair of scales, at other lanes for each pair.
    """
    pair = scales.reshape(-1, 2).repeat(8, axis=0)
    k = np.arange(len(pair))[:, None]
    run(64, np.full(len(pair), Rule.BYTE), (32 * k + k // 8 + np.arange(64)) % 256, pair, pair)


@pytest.mark.parametrize("count", [1 << 12, pytest.param(1 << 16, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("rule", [Rule.MINIMUM, Rule.ZERO])
def test_minima_and_zero_points(rule, count):
    """Random scales by every zero point, by minima near their multiples and by any."""
    rng = np.random.default_rng(rule)
    scale, other = pairs(count, rng)
    if rule == Rule.ZERO:
        other = np.arange(count) % 32 + 32 * rng.integers(0, 9, count)
    run(16, np.full(count, rule), numbers(count), scale[:, None], other[:, None])


test_words_of_several_groups_and_stalls = pytest.mark.parametrize("lanes", [4, 64])(
    weight_expander_checks.check_words_of_several_groups_and_stalls
)


MUTANTS = {
    "$or 4.f1dbc355: B[0] const0": "a number above half of a step is rounded down",
    "$and 4.cca1811a: A[0] inv": "a sum that FP32 rounds up to half of a step is not rounded on",
    "$reduce_and 3.541313b4: A[6] const0": "the same with one bit",
    "$not 1.86721b92: A[0] const1": "every minimum is added",
    "$mux 0.e6200d20: A[100] inv": "a word that waits changes",
    "$mul 0.5b712c13: B[2] const0": "a bit of the zero point does not count",
    "$reduce_or 1.0744025d: A[4] const1": "subnormal minima have a leading one",
    "$xor 4.7c91c9d9: A[0] const1": "scales have no sign",
    "$and 5.a4957aa9: Y[0] const0": "a sum does not go up by one bit",
    "$mul 6.14985610: B[7] const0": "of 8 bits: -128 counts as zero",
    "$xor 5.daef25a4: A[0] const1": "of 8 bits: a product has the number's sign alone, turned round",
    "$not 1.1ff7dc60: Y[0] const0": "of 8 bits: the smallest subnormal scales do not go up",
    "$reduce_or 6.89f68967: A[14] const0": "of 8 bits: a product above half of a step is rounded down",
    "$mux 1.cb01cd2f: S[0] const1": "of 8 bits: an exponent that waits changes",
    "$mux 1.7986f231: S[0] const0": "a lane's number of 8 bits is taken for one of 4",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    """Every fourth one, and at night all."""

    def passes(dut):
        check_words_of_several_groups_and_stalls(16, 2500, dut)

    assert not survivors(emitted(16), MUTANTS, passes, every=every)
