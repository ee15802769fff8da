"""HCU: bits and tables equal to golden, cycles equal to the time view; stalls, sizes, reset, coverage, mutants."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.hdl.params import HcuParams
from openvrex.sim.units.hcu_time import HcuTime
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import hcu_checks
from openvrex.tb.checks.hcu_checks import (
    SIZES,
    TINY,
    check_reset_in_flight,
    check_words_hold_while_a_key_waits,
    emitted,
    golden,
    run,
    stream,
    timed,
    wrong,
)
from tb.tests.by_day import at_sizes, by_day

DAY = "tiny", "no-abandon", "protected", "one", "ragged", "all-lanes", "newest"
EACH = by_day(SIZES, *DAY)


test_equals_golden_and_time_view = at_sizes(hcu_checks.check_equals_golden_and_time_view, EACH)
test_thresholds_to_their_ends = pytest.mark.parametrize("th_hd", [0, 1, 3, 6, 11, 17])(
    hcu_checks.check_thresholds_to_their_ends
)


def test_words_hold_while_a_key_waits():
    check_words_hold_while_a_key_waits()


test_reset_in_flight = pytest.mark.parametrize("reset_at", [1, 7, 40, 101])(hcu_checks.check_reset_in_flight)


def test_reset_in_flight_of_newest_keys():
    check_reset_in_flight(40, "newest")


test_many_contexts_of_a_host = hcu_checks.check_many_contexts_of_a_host
test_tables_of_the_core = hcu_checks.check_tables_of_the_core
test_newest_clusters_of_a_million = hcu_checks.check_newest_clusters_of_a_million


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    want = {"new", "join", "full_join", "tie", "zero_distance", "just_below", "just_not_below", "all_bits_differ"}
    want |= {"clear", "clear_empty", "switch", "switch_empty", "contexts"}
    want |= {f"ends_by_{why}" for why in ("last", "frame", "context", "op", "command")}
    want |= {f"{keys}tiles_{n}" for keys in ("", "alone_") for n in range(5)} | {"alone"}
    want |= {f"newest_tiles_{n}" for n in range(5)} | {"newest_misses_a_nearer_one"}
    want |= {"joins_of_this_batch", "joins_of_the_last_tile", "joins_of_a_tile_before", "tie_over_tiles"}
    want |= {"opens_behind_whole_tile", "opens_over_end_of_tile", "full_in_its_batch", "full_joins_of_this_batch"}
    want |= {"abandoned", "not_abandoned", "compares_nothing", "waits_for_memory"}
    hit = set()
    for p in (SIZES[size] for size in DAY):
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


MUTANTS = {  # by size
    "tiny": {
        "$lt 0.7a9b5244: B[0] const1": "the last instead of the first of a tie",
        "$sub 0.1e00fd39: B[0] const1": "it gives up too soon",
        "$and 1.b5ab4a44: Y[0] const0": "a full table is not told",
        "$eq 0.1858fc0e: B[0] const1": "a table is never full",
        "$gt 1.6e0ad928: B[0] const1": "a table that fills up with the last key of a batch",
        "$or 1.a03fbdf4: Y[0] const1": "a group is left after its first chunk",
        "$mux 1.d345eca9: S[0] const0": "the last comparison is forgotten",
        "$or 1.0ae58569: A[0] const1": "a visit ends without a comparison",
        "$or 1.5c2aa391: Y[0] const1": "a result takes the place of one that waits",
        "$and 1.a97a3259: B[0] const1": "a result before its writes",
        "$and 1.3ddca527: Y[0] const0": "a cluster of an earlier tile is forgotten",
        "$mux 1.883d61e9: S[0] const1": "the best of this visit is forgotten",
        "$ne 1.2f2899ae: Y[0] const1": "a key alone reads what is being written",
        "$gt 1.19a0768a: Y[0] const1": "the first group is not there yet",
        "$gt 1.6ea411e4: Y[0] const1": "a group is not there yet",
        "$ne 0.6cf473e1: Y[0] const1": "the next group is not there yet",
        "$and 1.4c752a74: B[0] const1": "a tile over one in use",
        "$mux 1.2ee0354f: S[0] const0": "clusters beyond the table",
        "$and 1.896f8049: B[0] const1": "a key leaves before its cluster was written",
        "$or 1.dc2daf96: Y[0] const1": "the next key comes before the hash bits are taken",
        "$ne 0.7cea9049: Y[0] const1": "a key over another",
        "$ne 0.a144d0cd: Y[0] const0": "keys of two contexts in a batch",
        "$reduce_or 0.959985c0: Y[0] const1": "at a threshold of 0 a key joins",
        "$eq 0.ec8dab53: A[2] const1": "a tile ends in its middle",
        "$and 1.7e2bfd13: B[0] const1": "items come in the next batch",
        "$and 1.3fefe919: B[0] const1": "a batch ends before the number of clusters is taken",
    },
    "one-tile": {"$lt 3.fe2e776d: B[0] const1": "the higher lane of a tie"},
    "ragged": {"$mux 1.d87c0d54: S[0] const0": "positions beyond the memory"},
}


@pytest.mark.parametrize(
    "size", ["tiny", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted(MUTANTS.keys() - {"tiny"}))]
)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(size, every):
    """Every fourth one, and at night all."""
    p = SIZES[size]
    beats = stream(p, 5, 200) + stream(p, 6, 200, 3, 0.05)

    def passes(unit):
        return not any(
            wrong(run(unit, p, beats, th_hd, 0.0, stall, waves=False), golden(p, th_hd, beats))
            for th_hd, stall in ((4, 0.0), (4, 0.6), (0, 0.0))
        )

    assert not survivors(emitted(p), MUTANTS[size], passes, every=every)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_w": 5}, "n_w=5: must divide n_hp = 16"),
        ({"n_h": 3, "tile": 8}, "n_h=3: must divide tile = 8"),
        ({"n_h": 16}, "n_h=16: must divide tile = 8"),
        ({"tile": 12}, "tile=12: must be a power of two"),
        ({"frame": 9}, "frame=9: must be at most tile = 8"),
        ({"clusters": 0}, "clusters=0: must be 1 to 1048576"),
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
