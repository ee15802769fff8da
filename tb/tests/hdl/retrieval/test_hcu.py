"""HCU: bits and tables equal to golden, cycles equal to the time view; stalls, sizes, reset, coverage, mutants."""

from dataclasses import replace

import numpy as np
import pytest
from openvrex.golden.function_params import ParamError
from openvrex.hdl.params import HcuParams
from openvrex.sim.units.hcu_time import HcuTime
from openvrex.tb.checks.hcu_checks import (
    SIZES,
    TINY,
    check_equals_golden_and_time_view,
    check_many_contexts_of_a_host,
    check_reset_in_flight,
    check_tables_of_the_core,
    check_thresholds_to_their_ends,
    check_words_hold_while_a_key_waits,
    emitted,
    golden,
    run,
    stream,
    timed,
    wrong,
)
from openvrex.tb.library.runner import lint, survivors


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


def test_many_contexts_of_a_host():
    check_many_contexts_of_a_host()


def test_tables_of_the_core():
    check_tables_of_the_core()


@pytest.mark.parametrize("size", SIZES)
def test_lints_clean(size, tmp_path):
    assert not lint(emitted(SIZES[size]), tmp_path)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    want = {"new", "join", "full_join", "tie", "zero_distance", "just_below", "just_not_below", "all_bits_differ"}
    want |= {"clear", "clear_empty", "switch", "switch_empty", "contexts"}
    want |= {f"ends_by_{why}" for why in ("last", "frame", "context", "op", "command")}
    want |= {f"{keys}tiles_{n}" for keys in ("", "alone_") for n in range(5)} | {"alone"}
    want |= {"joins_of_this_batch", "joins_of_the_last_tile", "joins_of_a_tile_before", "tie_over_tiles"}
    want |= {"opens_behind_whole_tile", "opens_over_end_of_tile", "full_in_its_batch", "full_joins_of_this_batch"}
    want |= {"abandoned", "not_abandoned", "compares_nothing", "waits_for_memory"}
    hit = set()
    for p in SIZES.values():
        for seed in range(1, 5):
            th_hd = max(1, p.n_hp // 4)
            beats = stream(p, seed, 240, 4, 0.04)
            hit |= golden(p, th_hd, beats).bins
            quick, whole, slow = (
                timed(size, th_hd, beats, latency)
                for size, latency in ((p, 1), (replace(p, early_abandon=False), 1), (p, 40))
            )
            compares = list(zip(quick.compares, whole.compares, strict=True))
            hit |= {"abandoned"} if any(n < most for n, most in compares) else set()
            hit |= {"not_abandoned"} if any(n == most > 0 for n, most in compares) else set()
            hit |= {"compares_nothing"} if any(most == 0 for _, most in compares) else set()
            hit |= {"waits_for_memory"} if slow.waits > quick.waits else set()
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= want, want - hit


MUTANTS = [
    ("tiny", "exists0 & (reach0 < ", "exists0 & (reach0 <= "),  # the last instead of the first of a tie
    ("tiny", "assign reach0 = ", "assign reach0 = 1 + "),  # gives up too soon
    ("one-tile", "distance1 < distance0", "distance1 <= distance0"),  # the higher lane of a tie
    ("tiny", "assign far = ", "assign far = 0 & "),  # a full table not told
    ("tiny", "used == 6'h20", "used == 6'h1f"),
    ("tiny", "level > 6'h1C", "level > 6'h1D"),  # a table that fills up with the last key of a batch
    ("tiny", "assign leave = ", "assign leave = 1 | "),
    ("tiny", "assign out_free = ", "assign out_free = 1 | "),
    ("tiny", "assign o_valid = out_valid & ~puts_level", "assign o_valid = out_valid"),  # a result before its writes
    ("tiny", "assign nearest_w_en = ", "assign nearest_w_en = 0 & "),  # a cluster of an earlier tile forgotten
    ("tiny", "assign bound = scan_first ? ", "assign bound = "),  # the best of this visit forgotten
    ("tiny", "head_position != scan_position", "1'h1"),  # a key alone reads what is being written
    ("tiny", "(full_groups > {1'h0, first_group})", "1'h1"),  # groups that are not there yet
    ("tiny", "(full_groups > {1'h0, scan_group})", "1'h1"),
    ("tiny", "(full_groups != {1'h0, scan_group} + 6'h1)", "1'h1"),
    ("tiny", "assign asks_tile = asking & ~(ahead[1])", "assign asks_tile = asking"),  # a tile over one in use
    ("tiny", "asked == work_last_tile ? end_of_tile : ", ""),  # clusters beyond the table
    ("tiny", "(finish & (near | ~may_open))", "finish"),  # a key that leaves before its cluster was written
    ("tiny", "(~puts_hash | m_put_ready)", "1'h1"),
    ("ragged", "head_position == 2'h2 ? 2'h0 : ", ""),
    ("tiny", "(held != 3'h4)", "1'h1"),  # a key over another
    ("tiny", "i_ctx != batch_ctx", "1'h0"),  # keys of two contexts in a batch
    ("tiny", "(|th_hd)", "1'h1"),  # at a threshold of 0 a key joins
    ("tiny", "last_group = (scan_group & 5'h7) == 5'h7", "last_group = (scan_group & 5'h3) == 5'h3"),
    ("tiny", "all_here & ~puts_level", "~puts_level"),  # items that come in the next batch
    (
        "tiny",
        "started & ~head_valid & ~scan_valid & all_here & ~puts_level",
        "started & ~head_valid & ~scan_valid & all_here",
    ),
]


@pytest.mark.parametrize(
    "size", ["tiny", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted({m[0] for m in MUTANTS} - {"tiny"}))]
)
def test_mutants_are_killed(size):
    p = SIZES[size]
    beats = stream(p, 5, 200) + stream(p, 6, 200, 3, 0.05)
    edits = [m[1:] for m in MUTANTS if m[0] == size]

    def passes(unit):
        return not any(
            wrong(run(unit, p, beats, th_hd, 0.0, stall, waves=False), golden(p, th_hd, beats))
            for th_hd, stall in ((4, 0.0), (4, 0.6), (0, 0.0))
        )

    assert passes(emitted(p))
    assert not survivors(emitted(p), edits, passes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_w": 5}, "n_w=5: must divide n_hp = 16"),
        ({"n_h": 3, "tile": 8}, "n_h=3: must divide tile = 8"),
        ({"n_h": 16}, "n_h=16: must divide tile = 8"),
        ({"tile": 12}, "tile=12: must be a power of two"),
        ({"frame": 9}, "frame=9: must be at most tile = 8"),
        ({"clusters": 0}, "clusters=0: must be 1 to 65536"),
        ({"frame": 2.5}, "frame=2.5: must be an integer"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(ParamError, match=message):
        replace(TINY, **change)


def test_time_view_bound():
    """Without early abandon the unit is within 2 % of the bound, once the table is filled."""
    p = HcuParams(early_abandon=False, clusters=64)
    rng = np.random.default_rng(1)
    cycles = HcuTime(p, 7).run([int(x) for x in rng.integers(0, 1 << 32, 4000)])
    assert sum(cycles.compares) == cycles.bound
    assert cycles.out[-1] <= cycles.bound * 1.02


def test_the_last_batch_must_end():
    with pytest.raises(ValueError, match="the last of 1 keys must end its frame"):
        HcuTime(TINY, 4).beats([(0, 0, 5, 0)])
