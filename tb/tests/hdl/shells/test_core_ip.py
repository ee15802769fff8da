"""The core IP: layers run by software through registers and an interrupt; faults, resets, mutants."""

import pytest
from openvrex.golden.function_params import ParamError
from openvrex.hdl.params import override, preset
from openvrex.hdl.shells.register_block import address_map
from openvrex.tb.checks.core_checks import SIZES
from openvrex.tb.checks.core_ip_checks import (
    check_faults_and_resets_leave_a_core_that_works,
    check_layers_equal_golden,
    emitted,
    faults,
)
from openvrex.tb.library.runner import lint, survivors


@pytest.mark.parametrize(("seed", "pause", "count"), [pytest.param(1, 0.0, 2, marks=pytest.mark.nightly), (3, 0.3, 2)])
def test_layers_equal_golden(seed, pause, count):
    check_layers_equal_golden(seed, pause, count)


def test_faults_and_resets_leave_a_core_that_works():
    check_faults_and_resets_leave_a_core_that_works()


MUTANTS = [
    ("assign unit_rst = rst | reset", "assign unit_rst = rst"),
    ("assign may_reset = ", "assign may_reset = 1 | "),
    ("assign registers_i_irq_done = ", "assign registers_i_irq_done = 0 & "),
    ("assign registers_i_irq_fault = ", "assign registers_i_irq_fault = 0 & "),
    ("assign registers_i_status_resets = ", "assign registers_i_status_resets = 0 & "),
    ("(core_host_op)", "(2'h0)"),
    ("{registers_program_data, part6, part5,", "{registers_program_data, part5, part5,"),
]


@pytest.mark.nightly
def test_mutants_are_killed():
    assert not survivors(emitted(), MUTANTS, lambda unit: all(faults(unit, slice(4, 6))))


def test_lints(tmp_path):
    assert not lint(emitted(), tmp_path)


def test_parameters_that_do_not_fit_together_are_refused():
    with pytest.raises(ParamError, match=r"entry_bytes=36.*multiple of a word"):
        address_map("core_ip", override(preset("tiny"), [*SIZES, "entry_bytes=36"]).core)
