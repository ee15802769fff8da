"""Loader: bursts and words equal to a byte-wise reference, cycles to the time view; stalls, faults, sizes, mutants."""

import pytest

from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks.loader_checks import (
    case,
    check_cycles,
    check_cycles_equal_the_time_view,
    check_equals_the_reference,
    check_every_count_of_rows,
    check_faults,
    check_full_rate,
    check_full_rate_of_codes,
    check_full_rate_of_weights,
    check_long_instructions,
    check_reset_in_flight,
    corners,
    emitted,
    faulty,
    run,
    traffic,
)
from openvrex.tb.library.transfer_traffic import SIZES, octave_bins, params
from tb.tests.by_day import by_day

CODES = ["codes", "codes-narrow", "weights-core"]
WEIGHTS = ["weights", "weights-narrow", "weights-core", "weights-two"]


@pytest.mark.parametrize("size", by_day(SIZES, "tiny", "one", "codes", "weights"))
def test_equals_the_reference(size):
    check_equals_the_reference(size)


def test_long_instructions():
    check_long_instructions()


@pytest.mark.nightly
def test_every_count_of_rows():
    check_every_count_of_rows("tiny")


@pytest.mark.parametrize("size", by_day(["tiny", *CODES, *WEIGHTS[:2], WEIGHTS[3]], "tiny", "codes", "weights"))
def test_cycles_equal_the_time_view(size):
    check_cycles_equal_the_time_view(size)


@pytest.mark.parametrize("size", by_day(["tiny", "core"], "tiny"))
def test_full_rate(size):
    check_full_rate(size)


@pytest.mark.parametrize("size", by_day(WEIGHTS, "weights"))
def test_full_rate_of_weights(size):
    check_full_rate_of_weights(size)


@pytest.mark.parametrize("size", by_day(CODES, "codes"))
def test_full_rate_of_codes(size):
    check_full_rate_of_codes(size)


@pytest.mark.parametrize("size", by_day(["tiny", *CODES[:2], *WEIGHTS[:2]], "tiny", "codes", "weights"))
def test_faults(size):
    check_faults(size)


@pytest.mark.parametrize("size", ["tiny", "codes", "weights"])
def test_reset_in_flight(size):
    check_reset_in_flight(size)


BINS = {
    *("w", "column", "x", "vector", "wide_vector", "skip", "one_row", "rows", "one_word", "words", "stride_0"),
    *("contiguous", "apart", "overlapping", "clear", "groups", "crosses_page", "wraps", "longest_burst", "short_burst"),
    *("fault bus", "fault range"),
}


OF_WEIGHTS = {
    *("weights", "scale", "minimum", "zero", "byte", "groups_of_32", "groups_of_128", "whole_pack", "cut_short"),
    *("another_pack", "w", "column", "x", "vector", "skip", "crosses_page", "groups", "words"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` reaches every bin, that of `test_faults` every fault."""
    hit = set().union(*(e["want"].bins for e in traffic("tiny")), (f"fault {e['want'].fault}" for e in faulty()))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    wanted = BINS | octave_bins(params(SIZES["tiny"]))
    assert hit >= wanted, wanted - hit
    of_codes = set().union(*(e["want"].bins for e in (*traffic("codes"), case("codes", corners("codes")))))
    for size in WEIGHTS:
        own = set().union(*(e["want"].bins for e in (*traffic(size), case(size, corners(size)))))
        assert own >= OF_WEIGHTS, OF_WEIGHTS - own
    assert of_codes >= {"codes", "tree_within_a_word", "once", "w", "column", "x", "vector", "wraps", "groups"}


MUTANTS = {
    "$eq 0.9efdbcc8: A[8] const0": "a bit of a stride is lost where rows join",
    "$eq 0.9efdbcc8: A[28] const0": "the highest bit of a stride is lost where rows join",
    "$or 1.b3a0d0d7: Y[0] const1": "a word is overwritten before it is taken",
    "$le 0.ad6cca9d: Y[0] const1": "a row is one burst",
    "$and 1.a2b7095a: Y[0] const0": "a burst ends with its row",
    "$eq 1.6345f569: Y[0] const0": "words of a column are those of a row",
    "$and 1.8bc4f982: Y[0] const0": "an error response is lost",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    """Every fourth one, and at night all."""
    episodes = [*traffic("tiny"), *faulty()]

    def passes(unit):
        run("tiny", episodes, unit=unit, waves=False)
        check_cycles("tiny", unit=unit, waves=False)

    assert not survivors(emitted("tiny"), MUTANTS, passes, every=every)
