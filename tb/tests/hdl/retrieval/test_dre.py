"""DRE: the joined units equal golden in bits and the time view in cycles, under stalls, resets, in every shape."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.tb.campaigns.faults import survivors, with_fault
from openvrex.tb.checks import dre_checks
from openvrex.tb.checks.dre_checks import (
    SHAPES,
    TINY,
    check_goes_on_elsewhere,
    check_interrupted_switches,
    emitted,
    play,
    run,
)
from openvrex.tb.library.dre_scenario import Scenario
from openvrex.tb.library.runner import BenchError, Run
from tb.tests.by_day import by_day

test_equals_golden = pytest.mark.parametrize("shape", by_day(SHAPES, "tiny", "buckets", "budgets"))(
    dre_checks.check_equals_golden
)


MUTANTS = {
    "instance 0.28d33ea6: f_ctx[0] const0": "sets of the first context",
    "$or 1.f5fbf2ba: Y[0] const1": "a switch into the sets before",
    "$and 1.e2355c58: B[0] const1": "a tag for every word",
}


@pytest.mark.nightly
def test_mutants_of_the_join_are_killed():
    s = play(TINY, 6, 32)

    def passes(unit):
        return not s.differences(run(unit, s, 0.3, 0.3, waves=False))

    assert not survivors(emitted("tiny"), MUTANTS, passes, "dre")


test_reset_in_flight = pytest.mark.parametrize("reset_at", [3, 60, 333])(dre_checks.check_reset_in_flight)


def test_no_unit_looks_at_a_memory_after_a_write():
    """A single-port macro may put anything out then: here the complement of what is written."""
    e = emitted("tiny")
    read = "    if (en && !(|write)) r_data <= mem[addr];\n"
    assert e.verilog.count(read) == 1
    broken = e.verilog.replace(read, f"{read}    else if (en) r_data <= ~w_data;\n")
    s = play(TINY, 1, 24)
    got = run(replace(e, verilog=broken), s, 0.3, 0.3)
    assert s.differences(got) == []


def test_a_wrong_golden_is_noticed():
    """The comparison itself can fail: one bit of one expected beat of each stream."""
    s = play(TINY, 1, 24)
    got = run(emitted("tiny"), s)
    assert s.differences(got) == []
    for name, key in (("t", "cluster"), ("w", "home"), ("x", "dst"), ("b", "addr")):
        beats = getattr(s, name)
        assert beats, f"the scenario makes no beat on {name}"
        index = next(i for i, beat in enumerate(beats) if key in beat)
        beats[index] = {**beats[index], key: beats[index][key] ^ 1}
        assert len(s.differences(got)) == 1
        beats[index] = {**beats[index], key: beats[index][key] ^ 1}


def test_a_deadlock_says_where_it_stopped():
    """Phase, row, and the beat that waits at each stream."""
    s = Scenario(TINY, replace(TINY.function(), th_hd=1))
    s.keys(0, [1, 2, 3])
    s.label = "layer 4"
    s.switch(0)
    s.query(np.array([[1, 2, 3]] * 2))
    unit = with_fault(emitted("tiny"), "$and 1.aed28e09: Y[0] const0", "dre")  # no row is taken
    c = s.config() | {"limit": 400}
    with pytest.raises(
        BenchError, match=r"layer 4 stands at key 0 of 0, row 0 of 2: no end after 400 .*; s: 0 beats went"
    ):
        Run(unit, "bench_dre", "phases", c, waves=False)()


def test_units_must_agree():
    with pytest.raises(ParamError, match="token_bits=.*: must be one size in all units: set token_bits without a unit"):
        replace(TINY, kvmu=replace(TINY.kvmu, token_bits=9)).joined()


def test_interrupted_switches_lose_no_table():
    check_interrupted_switches("tiny")


def test_a_second_engine_goes_on():
    check_goes_on_elsewhere("tiny")


test_first_rows_wait_for_the_cluster_set = dre_checks.check_first_rows_wait_for_the_cluster_set
test_a_row_meets_no_switch = dre_checks.check_a_row_meets_no_switch
