"""WTU: selections equal to golden, cycles equal to the time view; stalls, sizes, reset, coverage, mutants."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval.wicsum import bucket
from openvrex.hdl.params import WtuParams
from openvrex.sim.units.wtu_time import WtuTime
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import wtu_checks
from openvrex.tb.checks.wtu_checks import (
    CORE,
    EPISODES,
    SIZES,
    TINY,
    budgets_of,
    chosen,
    differs,
    emitted,
    episode,
    episodes_of,
    rows_of,
    run,
    unit_counts,
)
from tb.tests.by_day import at_sizes

DAY = "tiny", "one", "fixed", "long", "budget", "buckets", "buckets-one"


test_equals_golden_and_time_view = at_sizes(wtu_checks.check_equals_golden_and_time_view, SIZES, *DAY)
test_every_bit_of_a_weight_decides = at_sizes(
    wtu_checks.check_every_bit_of_a_weight_decides, ["tiny", "digits", "buckets"], "tiny", "buckets"
)
test_counts_that_come_while_rows_run = at_sizes(
    wtu_checks.check_counts_that_come_while_rows_run, ["tiny", "fixed", "long", "buckets"], "tiny", "long", "buckets"
)
test_equal_codes_cross_in_every_lane = at_sizes(
    wtu_checks.check_equal_codes_cross_in_every_lane, ["tiny", "fixed", "lanes", "wide"], "tiny", "fixed"
)
test_many_rows = at_sizes(wtu_checks.check_many_rows, ["tiny", "buckets"], "tiny")
test_budgets_at_every_count = at_sizes(wtu_checks.check_budgets_at_every_count, ["budget", "budget-fixed"], "budget")
test_reset_in_flight = at_sizes(
    wtu_checks.check_reset_in_flight, ["tiny", "long", "budget-long", "buckets"], "tiny", "long", "buckets"
)


ADVERSARIAL = {
    "all equal": lambda rng, c: np.full(c, 1500),
    "all zero": lambda rng, c: np.zeros(c, int),
    "uniform": lambda rng, c: rng.integers(0, 2048, c),
    "one bin": lambda rng, c: rng.integers(1472, 1536, c),
    "ties": lambda rng, c: rng.integers(1500, 1502, c),
    "one huge": lambda rng, c: np.where(np.arange(c) == c // 2, 2047, 1),
}


@pytest.mark.parametrize("ratio", [0.3, 0.8])
@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("selection", ["exact", "buckets"])
def test_adversarial_rows_end_in_time(selection, kind, ratio):
    """`WtuTime.worst` is the documented bound; the cycles are those that the tests above hold equal to the RTL's."""
    p = replace(CORE, selection=selection, budget=False)
    view, rng = WtuTime(p), np.random.default_rng(1)
    for clusters in (p.clusters, 155, 1):
        for largest in (1, 40, 600, (1 << p.count_bits) - 1):
            counts = rng.integers(1, largest + 1, clusters)
            latency = view.row(ADVERSARIAL[kind](rng, clusters), counts, round(ratio * 65536)).latency
            assert latency <= view.worst(clusters, largest), (clusters, largest)


@pytest.mark.parametrize("largest", [1, 40, 600])
@pytest.mark.parametrize("selection", ["exact", "buckets"])
def test_the_worst_case_is_reached(selection, largest):
    """Each term of the bound counts: codes of 1 with a threshold in the last word take exactly as long."""
    p = replace(CORE, selection=selection, budget=False)
    view, counts = WtuTime(p), np.full(p.clusters, largest)
    rows = [np.full(p.clusters, code) for code in (0, 1)]
    got = max(view.row(codes, counts, round(r * 65536)).latency for codes in rows for r in (0.3, 0.9999))
    assert got == view.worst(p.clusters, largest)


def bins_hit(p: WtuParams, e: dict) -> set[str]:
    """Coverage bins of an episode, from golden and the time view."""
    kinds = ["kept" if len(c["table"]) <= p.counts else "streamed" for c in e["contexts"]]
    hit = {f"{a}_then_{b}" for a, b in itertools.pairwise(kinds)}
    for c in e["contexts"]:
        hit |= {"far_over_the_ring"} if len(c["table"]) > 10 * p.counts else set()
        hit |= {"full_ring"} if len(c["table"]) == p.counts else set()
    budgets = budgets_of(e)
    hit |= {f"{'budget' if a else 'share'}_then_{'budget' if b else 'share'}" for a, b in itertools.pairwise(budgets)}
    for (codes, counts), s, budget in zip(rows_of(e), chosen(p, e), budgets, strict=True):
        t = WtuTime(p).row(codes, counts, e["ratio"], budget)
        if budget:
            kind = "met" if s.tokens == budget else "passed" if s.tokens > budget else "beyond_the_row"
            cut = codes == codes[s.mask].min()
            hit |= {f"budget_{kind}"} | ({"budget_of_one"} if budget == 1 else set())
            hit |= {"budget_cuts_a_tie"} if (cut & ~s.mask).any() else set()
            hit |= {"budget_takes_no_tokens"} if (counts[s.mask] == 0).any() else set()
            continue
        hit |= {"one_cluster"} if len(codes) == 1 else set()
        hit |= {"full_row"} if len(codes) == p.clusters else {"ragged"} if len(codes) % p.n_w else set()
        hit |= {"zero_sum"} if s.total == 0 else set()
        hit |= {"zero_threshold"} if s.threshold == 0 and s.total else set()
        hit |= {"all_selected"} if s.clusters == len(codes) > 1 else set()
        hit |= {"one_selected"} if s.clusters == 1 < len(codes) else set()
        hit |= {"saturated_count"} if (counts == (1 << p.count_bits) - 1).any() else set()
        acc = (value(codes, p.score) * counts)[s.mask].sum()
        hit |= {"just_crossed"} if acc == s.threshold + 1 else set()
        if p.selection == "buckets":
            b = bucket(codes, p.n_buckets)
            hit |= {f"buckets_{'one' if t.walked == 1 else 'all' if t.walked == p.n_buckets else 'some'}"}
            hit |= {"empty_bucket"} if len(set(b[s.mask].tolist())) < t.walked else set()
            hit |= {"one_code"} if len(set(codes.tolist())) == 1 else set()
            continue
        hit |= {"further_digit"} if (counts >= 1 << p.count_digit).any() else set()
        equal = codes == codes[s.mask].min()
        words = np.flatnonzero(equal) // p.n_w
        if s.total and e["ratio"] < 65536:
            cut = np.flatnonzero(equal & s.mask)[-1] // p.n_w
            hit |= {"tie_cut"} if (equal & ~s.mask).any() else set()
            hit |= {"tie_cut_within_word"} if t.tests > len(set(words[words <= cut].tolist())) else set()
            hit |= {"tie_across_words"} if len(set(words[words <= cut].tolist())) > 1 else set()
            hit |= {"tested_in_last_word"} if cut == t.words - 1 else set()
        hit |= {"nothing_in_last_word"} if not s.mask[(t.words - 1) * p.n_w :].any() else set()
        hit |= {"walked_far"} if t.walked > sum((1 << width) // 2 for width, _ in p.digits) + 4 else set()
    return hit


def test_functional_coverage(record_property):
    """The episodes of this file reach every stated bin; without this a comparison could pass on dull data."""
    both = {"one_cluster", "full_row", "ragged", "zero_sum", "zero_threshold", "all_selected", "one_selected"}
    both |= {"saturated_count", "just_crossed", "full_ring", "kept_then_kept"}
    exact = both | {"tie_cut", "tie_cut_within_word", "tie_across_words", "tested_in_last_word", "nothing_in_last_word"}
    exact |= {"further_digit", "walked_far", "far_over_the_ring"}
    exact |= {f"{a}_then_{b}" for a in ("kept", "streamed") for b in ("kept", "streamed")}
    exact |= {f"{a}_then_{b}" for a in ("budget", "share") for b in ("budget", "share")}
    exact |= {
        f"budget_{kind}" for kind in ("met", "passed", "beyond_the_row", "of_one", "cuts_a_tie", "takes_no_tokens")
    }
    buckets = both | {"buckets_one", "buckets_some", "buckets_all", "empty_bucket", "one_code"}
    for selection, want in (("exact", exact), ("buckets", buckets)):
        hit = set()
        for p in (SIZES[size] for size in DAY):
            if p.selection == selection:
                hit = hit.union(*(bins_hit(p, e) for e in episodes_of(p)))
        record_property("bins", f"{selection}: {', '.join(sorted(hit))}")  # for `vrex report`
        assert hit >= want, (selection, want - hit)


MUTANTS = {  # by size
    "tiny": {
        "$sub 0.e628a436: A[0] const0": "a bin crosses that equals what is left",
        "$and 1.a97a3259: Y[0] const1": "a word without its counts",
        "$and 1.350d497b: B[0] const1": "counts of a new context under a row",
        "$mux 1.3d4f3ddd: S[0] const0": "words behind are not forgotten",
        "$and 1.b2e82e43: Y[0] const0": "equal codes are never tested",
        "$reduce_or 0.959985c0: Y[0] const0": "a word crosses as a whole",
        "$and 1.6ff7723a: B[0] const1": "a test ends in front of the codes that cross",
        "$and 1.11b86688: Y[0] const0": "a test adds to the one before",
        "$and 1.190283c8: Y[0] const0": "a row is never selected as a whole",
        "$eq 1.34941f93: Y[0] const0": "counts over those not used",
    },
    "budget": {
        "$or 1.0222093c: B[0] const0": "weights, not counts",
        "$and 2.895e1202: Y[0] const0": "a budget beyond the row",
        "$and 1.dd81f5c2: B[0] const1": "units of bins",
        "$and 1.ceb754c7: B[0] const1": "Sum and Th of the row",
        "$mux 1.b8072f64: B[14] const0": "a bit of a budget is lost",
        "$mux 1.b8072f64: B[13] const1": "a budget is odd",
    },
    "buckets": {
        "$add 0.5691b8c7: B[0] const1": "a bucket crosses that equals what is left",
        "$ge 1.35357b19: B[0] const1": "the lowest code of a bucket is outside",
        "$or 1.0ffcaa3f: B[0] const0": "a row ends with an empty word, and has no last beat",
        "$mux 1.5a8c05b7: S[0] const1": "weights are those of the next word's counts",
    },
}


@pytest.mark.parametrize(
    "size", ["tiny", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted(MUTANTS.keys() - {"tiny"}))]
)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(size, every):
    """Every fourth one, and at night all."""
    p = SIZES[size]
    episodes = [episode(p, seed, *x) for seed, x in enumerate(EPISODES[:5], 1)]
    episodes = [e | {"limit": 4000} for e in [*episodes, episode(p, 6, late=True), unit_counts(p)]]

    def passes(unit):
        got = run(unit, p, episodes, waves=False)
        return not any(differs(p, e, g) for e, g in zip(episodes, got, strict=True))

    assert not survivors(emitted(p), MUTANTS[size], passes, every=every)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_w": 5}, "n_w=5: must divide clusters = 32"),
        ({"n_w": 32}, "n_w=32: must divide counts = 16"),
        ({"counts": 0}, "counts=0: must be 1 to"),
        ({"count_digit": 0}, "count_digit=0: must be 1 to 64"),
        ({"selection": "buckets", "counts": 32, "budget": True}, "budget=True: must be false with selection buckets"),
        ({"selection": "best"}, "selection='best': must be one of exact, buckets"),
        ({"selection": "buckets"}, "counts=16: must be at least clusters = 32"),
        ({"bin_bits": 7}, "bin_bits=7: must be 1 to 6"),
        ({"n_buckets": 12}, "n_buckets=12: must be a power of two"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(ParamError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(("bits", "readings"), [(1, 12), (2, 7), (3, 5), (4, 4), (6, 3)])
def test_readings(bits, readings):
    assert replace(CORE, bin_bits=bits).readings == readings
    assert replace(CORE, bin_bits=bits, selection="buckets", budget=False).readings == 1
