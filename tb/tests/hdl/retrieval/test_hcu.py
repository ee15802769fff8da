"""HCU: bits equal to golden, cycles equal to the time view; stalls, sizes, reset, coverage, mutants."""

from dataclasses import replace

import numpy as np
import pytest

from golden.function_params import ParamError
from hdl.params import HcuParams
from sim.units.hcu_time import HcuTime
from tb.checks.hcu_checks import (
    SIZES,
    TINY,
    check_equals_golden_and_time_view,
    check_reset_in_flight,
    check_thresholds_to_their_ends,
    check_words_hold_while_a_key_waits,
    emitted,
    golden,
    run,
    stream,
)
from tb.library.runner import survivors


@pytest.mark.parametrize("size", SIZES)
def test_equals_golden_and_time_view(size):
    check_equals_golden_and_time_view(size)


@pytest.mark.parametrize("th_hd", [0, 1, 3, 6, 11, 17])
def test_thresholds_to_their_ends(th_hd):
    check_thresholds_to_their_ends(th_hd)


def test_words_hold_while_a_key_waits():
    check_words_hold_while_a_key_waits()


@pytest.mark.parametrize("reset_at", [1, 7, 40, 101])
def test_reset_in_flight(reset_at):
    check_reset_in_flight(reset_at)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    want = {"new", "join", "full_join", "tie", "zero_distance", "just_below", "just_not_below"}
    want |= {"saturated", "same_cluster_again", "clear", "clear_empty", "contexts", "all_bits_differ"}
    want |= {"abandoned", "not_abandoned", "compares_nothing"}
    hit = set()
    for p in SIZES.values():
        for seed in range(1, 5):
            th_hd = max(1, p.n_hp // 4)
            hit |= golden(p, th_hd, stream(p, seed, 240, p.n_ctx, 0.02))[1]
            keys = [b["hash"] for b in stream(p, seed, 240)]
            n, most = (HcuTime(replace(p, early_abandon=x), th_hd).run(keys).compares for x in (p.early_abandon, False))
            hit |= {"abandoned"} if (n < most).any() else set()
            hit |= {"not_abandoned"} if (n == most)[most > 0].any() else set()
            hit |= {"compares_nothing"} if (most == 0).any() else set()
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= want, want - hit


MUTANTS = [
    ("tiny", "exists0 & (reach0 < ", "exists0 & (reach0 <= "),  # the last instead of the first of a tie
    ("tiny", "assign reach0 = ", "assign reach0 = 1 + "),  # gives up too soon
    ("all-lanes", "distance1 < distance0", "distance1 <= distance0"),
    ("tiny", "found_before <= found", "found_before <= 0 & found"),  # a cluster of an earlier group forgotten
    ("tiny", "assign far = ", "assign far = 0 & "),  # a full table not told
    ("tiny", "n_used == 6'h20", "n_used == 6'h1f"),
    ("all-lanes", "assign may_join = ", "assign may_join = 1 | "),  # a count that is read while another is written
    ("all-lanes", "assign load = ", "assign load = (fifo_r_rdy & finish) | "),  # a table read while it is written
    ("tiny", "assign leave = ", "assign leave = 1 | "),
    ("tiny", "assign last_group = ", "assign last_group = ~"),
    ("tiny", "assign out_free = ", "assign out_free = 1 | "),
]


@pytest.mark.parametrize(
    "size", ["tiny", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted({m[0] for m in MUTANTS} - {"tiny"}))]
)
def test_mutants_are_killed(size):
    p = SIZES[size]
    beats = stream(p, 5, 160) + stream(p, 6, 160, p.n_ctx, 0.05)
    want = golden(p, 4, beats)[0]
    edits = [m[1:] for m in MUTANTS if m[0] == size]

    def passes(unit):
        return all(run(unit, p, beats, 4, 0.0, stall, waves=False)["beats"] == want for stall in (0.0, 0.4))

    assert not survivors(emitted(p), edits, passes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_w": 5}, "n_w=5: must divide n_hp = 16"),
        ({"n_h": 3, "clusters": 33}, "n_h=3: must be a power of two"),
        ({"n_h": 64}, "n_h=64: must divide clusters = 32"),
        ({"clusters": 0}, "clusters=0: must be 1 to 65536"),
        ({"frame": 2.5}, "frame=2.5: must be an integer"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(ParamError, match=message):
        replace(TINY, **change)


def test_time_view_bound():
    """Without early abandon the unit is within one cycle a key of the bound, once the table is filled."""
    p = HcuParams(early_abandon=False, clusters=64)
    rng = np.random.default_rng(1)
    cycles = HcuTime(p, 7).run([int(x) for x in rng.integers(0, 1 << 32, 4000)])
    assert cycles.compares.sum() == cycles.bound
    assert cycles.out[-1] <= cycles.bound * 1.02
