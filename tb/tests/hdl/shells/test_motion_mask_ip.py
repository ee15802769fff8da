"""The motion mask IP: masks and their cycles as golden and the time view say, wrong streams, resets, mutants."""

import pytest

from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks.motion_mask_checks import SIZES
from openvrex.tb.checks.motion_mask_ip_checks import (
    check_a_wrong_number_of_blocks_is_refused,
    check_equals_golden_and_time_view,
    emitted,
)
from openvrex.tb.library.runner import lint


@pytest.mark.parametrize("size", ["tiny", "residuals"])
def test_equals_golden_and_time_view(size, record_property):
    check_equals_golden_and_time_view(size, record_property)


def test_a_wrong_number_of_blocks_is_refused():
    check_a_wrong_number_of_blocks_is_refused()


MUTANTS = {
    "$and 1.dde0c8d0: A[0] const1": "it begins by itself",
    "$or 1.0f3e979a: B[0] const0": "a faulty frame is not drained",
    "$and 1.efd6f1b3: B[0] const1": "a faulty frame has a mask",
    "$and 1.f24e6527: B[0] const1": "a reset while the bus is busy",
    "$or 1.9d736e1f: B[0] const0": "software cannot reset the unit",
    "$or 2.b476714d: Y[0] const0": "no interrupt of a fault",
    "$or 2.59226ad5: A[0] const0": "no test of the interrupt",
}


@pytest.mark.nightly
def test_mutants_are_killed():
    def passes(unit):
        check_equals_golden_and_time_view("tiny", lambda *_: None, unit, waves=False)
        check_a_wrong_number_of_blocks_is_refused(unit, waves=False)

    assert not survivors(emitted(SIZES["tiny"]), MUTANTS, passes)


@pytest.mark.parametrize("size", ["one", "residuals-core"])
def test_lints(size, tmp_path):
    assert not lint(emitted(SIZES[size]), tmp_path)
