"""The DRE IP: keys, scores, commands of random frames as golden, every byte of memory; faults, resets, mutants."""

import pytest

from openvrex.golden.program.isa import Retrieve, Status
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import dre_ip_checks
from openvrex.tb.checks.dre_ip_checks import (
    BUFFER,
    FRESH,
    check_budgets_equal_golden,
    check_fault,
    check_nothing_outside_its_regions_is_touched,
    check_packed_homes_equal_golden,
    check_reset,
    emitted,
    frames,
    refuse,
)
from openvrex.tb.library.runner import lint

test_frames_equal_golden = pytest.mark.parametrize(("seed", "idle", "pause"), [(1, 0.0, 0.0), (2, 0.5, 0.3)])(
    dre_ip_checks.check_frames_equal_golden
)
test_users_share_a_dre = dre_ip_checks.check_users_share_a_dre


def test_budgets_equal_golden():
    check_budgets_equal_golden(1)


def test_packed_homes_equal_golden():
    check_packed_homes_equal_golden(1)


test_a_fault_ends_in_a_status_and_a_reset_mends_it = pytest.mark.parametrize(
    ("command", "status"),
    [
        ({"action": Retrieve.PLACE, "base": FRESH + 1}, Status.RANGE),
        ({"action": Retrieve.CLEAR, "base": 3}, Status.RANGE),
        ({"action": 7}, Status.RANGE),
        ({"action": Retrieve.FETCH, "base": BUFFER, "rows": 1}, Status.FULL),
        ({"action": Retrieve.PLACE, "base": FRESH, "errors": [["read", FRESH + 8]]}, Status.BUS),
    ],
)(dre_ip_checks.check_a_fault_ends_in_a_status_and_a_reset_mends_it)
test_wrong_streams_are_refused = pytest.mark.parametrize(("seed", "idle", "pause"), [(1, 0.0, 0.0), (2, 0.4, 0.3)])(
    dre_ip_checks.check_wrong_streams_are_refused
)


def test_nothing_outside_its_regions_is_touched():
    check_nothing_outside_its_regions_is_touched()


test_rows_of_an_empty_context_are_refused = dre_ip_checks.check_rows_of_an_empty_context_are_refused
test_a_reset_while_a_command_runs = pytest.mark.parametrize("after", [0, 3, 17, 40])(
    dre_ip_checks.check_a_reset_while_a_command_runs
)


MUTANTS = {
    "$and 1.7be85e06: A[0] const1": "a command begins by itself",
    "$or 1.be2f42e1: B[0] const0": "software cannot reset the unit",
    "$or 1.a49b1fdf: Y[0] const1": "keys are lost",
    "$or 2.991ab66e: Y[0] const0": "no interrupt of a fault",
    "instance 1.bbaa1365: confine[0] const0": "the retriever goes where it likes",
    "instance 1.f3cb645e: regions[56] const1": "the DRE reads tables where it may not",
}


@pytest.mark.nightly
def test_mutants_are_killed():
    def passes(unit):
        s = frames(1, 8)
        s.check(s.play(unit, waves=False))
        check_fault({"action": Retrieve.CLEAR, "base": 3}, Status.RANGE, unit, waves=False)
        check_reset(3, unit, waves=False)
        refuse(1, 0.0, 0.0, unit, waves=False)
        check_nothing_outside_its_regions_is_touched(unit, waves=False)

    assert not survivors(emitted(), MUTANTS, passes)


def test_lints(tmp_path):
    assert not lint(emitted(), tmp_path)
