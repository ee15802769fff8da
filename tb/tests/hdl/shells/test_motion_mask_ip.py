"""The motion mask IP: masks and their cycles as golden and the time view say, wrong streams, resets, mutants."""

import pytest
from openvrex.hdl.emit import Emitted
from openvrex.tb.checks.motion_mask_checks import SIZES
from openvrex.tb.checks.motion_mask_ip_checks import (
    check_a_wrong_number_of_blocks_is_refused,
    check_equals_golden_and_time_view,
    emitted,
)
from openvrex.tb.library.runner import lint, survivors


@pytest.mark.parametrize("size", ["tiny", "residuals"])
def test_equals_golden_and_time_view(size):
    check_equals_golden_and_time_view(size)


def test_a_wrong_number_of_blocks_is_refused():
    check_a_wrong_number_of_blocks_is_refused()


MUTANTS = [
    ("assign begins = start & ", "assign begins = start | "),
    ("mask_i_ready | faulty", "mask_i_ready"),
    ("mask_o_valid & ~faulty", "mask_o_valid"),
    ("waits & ~engine_busy", "waits"),
    ("unit_rst = rst | reset", "unit_rst = rst"),
    ("assign registers_i_irq_fault = ", "assign registers_i_irq_fault = 0 & "),
    ("registers_o_irq_test_done | ", ""),
]


@pytest.mark.nightly
def test_mutants_are_killed():
    def passes(unit: Emitted):
        check_equals_golden_and_time_view("tiny", unit, waves=False)
        check_a_wrong_number_of_blocks_is_refused(unit, waves=False)

    assert not survivors(emitted(SIZES["tiny"]), MUTANTS, passes)


@pytest.mark.parametrize("size", ["one", "residuals-core"])
def test_lints(size, tmp_path):
    assert not lint(emitted(SIZES[size]), tmp_path)
