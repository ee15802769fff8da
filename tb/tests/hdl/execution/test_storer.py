"""Storer: bursts, beats and words equal to a byte-wise reference, cycles to the time view; stalls, faults, mutants."""

import pytest

from openvrex.golden.program.isa import StoreTo
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import storer_checks
from openvrex.tb.checks.storer_checks import (
    case,
    emitted,
    faulty,
    run,
    traffic,
)
from openvrex.tb.library.transfer_traffic import SIZES, octave_bins, params, transfer
from tb.tests.by_day import at_sizes

test_equals_the_reference = at_sizes(
    storer_checks.check_equals_the_reference, SIZES, "tiny", "one", "narrow", "registers", "codes"
)
test_long_instructions = storer_checks.check_long_instructions


test_every_count_of_rows = pytest.mark.nightly(
    pytest.mark.parametrize("size", ["tiny", "registers", "codes"])(storer_checks.check_every_count_of_rows)
)
test_every_shift_of_a_number = storer_checks.check_every_shift_of_a_number
test_cycles_equal_the_time_view = at_sizes(
    storer_checks.check_cycles_equal_the_time_view, ["tiny", "registers", "codes"]
)
test_full_rate = at_sizes(storer_checks.check_full_rate, ["tiny", "core"], "tiny")
test_signs_at_full_rate = storer_checks.check_signs_at_full_rate


def test_a_response_waits_for_what_was_stored_before_its_burst():
    """Two responses in a row, and between their bursts a word to X, whose end comes between, too."""
    word, program = 2 * params(SIZES["narrow"]).dpe.n_w, []
    for k in range(12):
        program.append(transfer(StoreTo.MEMORY, 2 * k * word, signal=1 << k))
        program.append(transfer(StoreTo.X, 0, signal=1 << k))
    (got,) = run("narrow", [case("narrow", program, latency=(1, 40))])
    assert got["waited"] > 0


test_faults = at_sizes(storer_checks.check_faults, ["tiny", "registers", "codes"])
test_reset_in_flight = at_sizes(storer_checks.check_reset_in_flight, ["tiny", "registers", "codes"])


BINS = {
    *(
        "memory",
        "wide_memory",
        "x",
        "hash",
        "score",
        "wide_score",
        "skip",
        "one_row",
        "rows",
        "one_word",
        "words",
        "stride_0",
        "contiguous",
    ),
    *("apart", "overlapping", "clear", "groups", "crosses_page", "wraps", "longest_burst", "short_burst"),
    *("fault bus", "fault range", "context_first", "context_last", "context_another"),
    "part_of_a_row",
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` reaches every bin, that of `test_faults` every fault."""
    hit = set().union(*(e["want"].bins for e in traffic("tiny")), (f"fault {e['want'].fault}" for e in faulty()))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    wanted = BINS | octave_bins(params(SIZES["tiny"]))
    assert hit >= wanted, wanted - hit
    assert {"signs", "newest"} <= set().union(*(e["want"].bins for e in traffic("codes")))


MUTANTS = {
    "$le 0.ad6cca9d: Y[0] const1": "a row is one burst",
    "$and 1.cbee31db: A[0] const1": "a beat is overwritten before it is taken",
    "$mux 1.9f46925d: B[0] const1": "a burst begins under stop",
    "$and 1.f22584c2: Y[0] const0": "an error response is lost",
    "$ge 0.b0ed93e4: A[16] const0": "a context beyond the bits that the DRE gets",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    """Every fourth one, and at night all."""
    episodes = [*traffic("tiny"), *faulty()]
    assert not survivors(
        emitted("tiny"), MUTANTS, lambda unit: run("tiny", episodes, unit=unit, waves=False), every=every
    )


REGISTERS = {
    "$dff 1.47066c44: D[0] const0": "no register is set",
    "$add 0.23833141: A[0] const0": "an odd base is even",
    "$shl 0.8eca085e: A[22] const0": "a bit of the number is lost",
    "$shl 0.8eca085e: B[4] const0": "long steps are short",
    "$and 1.4fdd7e91: B[0] const1": "an end is lost where there is no room",
    "$and 3.3be202aa: B[0] const1": "a refused instruction sets registers",
    "$and 1.1468268d: Y[0] const0": "a register is a word of memory",
    "$dff 0.ead07872: D[3] const0": "one of the low registers is set",
}


@pytest.mark.nightly
def test_mutants_of_registers_are_killed():
    episodes = [*traffic("registers"), *faulty("registers")]
    assert not survivors(
        emitted("registers"), REGISTERS, lambda unit: run("registers", episodes, unit=unit, waves=False)
    )
