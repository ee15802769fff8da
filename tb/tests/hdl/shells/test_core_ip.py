"""The core IP: layers run by software through registers and an interrupt; faults, resets, mutants."""

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.hdl.params import override, preset
from openvrex.hdl.shells.register_block import address_map
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import core_ip_checks
from openvrex.tb.checks.core_checks import FEATURES, SIZES
from openvrex.tb.checks.core_ip_checks import (
    check_layers_equal_golden,
    emitted,
    faults,
)
from openvrex.tb.library.runner import lint


@pytest.mark.parametrize(
    ("seed", "pause", "count", "more", "function"),
    [
        pytest.param(1, 0.0, 7, (), {"centre": False}, marks=pytest.mark.nightly, id="bins"),
        pytest.param(2, 0.2, 5, FEATURES, {}, marks=pytest.mark.nightly, id="features"),
        pytest.param(3, 0.3, 2, (), {}, id="stalls"),
    ],
)
def test_layers_equal_golden(seed, pause, count, more, function, record_property):
    """With budgets, registers that a STORE sets, and homes of 4 bits in `features`."""
    check_layers_equal_golden(seed, pause, count, record_property, more, **function)


test_faults_and_resets_leave_a_core_that_works = core_ip_checks.check_faults_and_resets_leave_a_core_that_works


MUTANTS = {
    "$or 1.d25dad4a: B[0] const0": "software cannot reset the core",
    "$and 1.fa1ad9b4: Y[0] const1": "a reset while the bus is busy",
    "$or 2.8f092d4b: Y[0] const0": "no interrupt of an end",
    "$or 2.8ad8461b: Y[0] const0": "no interrupt of a fault",
    "$or 1.549f18b7: Y[0] const0": "software does not see that it resets",
    "instance 0.fa1b65f5: host_op[1] const0": "it never starts",
    "instance 0.fa1b65f5: host_data[192] inv": "an instruction has a wrong bit",
    "instance 0.fa1b65f5: confine[0] const0": "software cannot confine the core",
    "instance 0.fa1b65f5: regions[57] const1": "a region allows a store that software does not",
    "instance 0.bfc5a4e2: busy[0] const0": "a setting changes while a program runs",
}  # of what joins registers and core


@pytest.mark.nightly
def test_mutants_are_killed():
    """In an error response of the tables' port, in resets while a program runs, and in a store outside the regions."""
    assert not survivors(emitted(), MUTANTS, lambda unit: all(faults(unit, slice(6, 11))), "core_ip")


def test_lints(tmp_path):
    assert not lint(emitted(), tmp_path)


def test_parameters_that_do_not_fit_together_are_refused():
    with pytest.raises(ParamError, match=r"entry_bytes=36.*multiple of a word"):
        address_map("core_ip", override(preset("tiny"), [*SIZES, "entry_bytes=36"]).core)
