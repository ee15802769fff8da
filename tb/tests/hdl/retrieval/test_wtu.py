"""WTU: selections equal to golden, cycles equal to the time view; stalls, sizes, reset, coverage, mutants."""

from dataclasses import replace

import numpy as np
import pytest

from golden.arithmetic.score_codes import value
from golden.function_params import ParamError
from golden.retrieval.wicsum import bucket, select
from hdl.params import WtuParams
from sim.units.wtu_time import WtuTime, params_of
from tb.checks.wtu_checks import (
    CORE,
    EPISODES,
    SIZES,
    TINY,
    check_counts_written_while_rows_run,
    check_equals_golden_and_time_view,
    check_every_bit_of_a_weight_decides,
    check_numbers_of_histograms_come_round,
    check_reset_in_flight,
    check_words_of_every_bin,
    differs,
    emitted,
    episode,
    run,
    unit_counts,
)
from tb.library.runner import survivors


@pytest.mark.parametrize("size", ["tiny", "lanes", pytest.param("ahead", marks=pytest.mark.nightly)])
def test_numbers_of_histograms_come_round(size):
    check_numbers_of_histograms_come_round(size)


def test_words_of_every_bin():
    check_words_of_every_bin()


@pytest.mark.parametrize("size", SIZES)
def test_equals_golden_and_time_view(size):
    check_equals_golden_and_time_view(size)


@pytest.mark.parametrize("size", ["tiny", "digits", "buckets"])
def test_every_bit_of_a_weight_decides(size):
    check_every_bit_of_a_weight_decides(size)


@pytest.mark.parametrize("size", ["tiny", "single", "ahead", "buckets"])
def test_counts_written_while_rows_run(size):
    check_counts_written_while_rows_run(size)


@pytest.mark.parametrize("size", ["tiny", "ahead", "buckets"])
def test_reset_in_flight(size):
    check_reset_in_flight(size)


@pytest.mark.parametrize("size", ["early", "early-ahead", "one"])
def test_rows_right_after_reset(size):
    """They wait until the bins are clear."""
    p = SIZES[size]
    episodes = [episode(p, seed, *x) | {"clear": False} for seed, x in enumerate(EPISODES, 1)]
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not (wrong := differs(p, e, got)), wrong


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
    p = replace(CORE, selection=selection)
    view, rng = WtuTime(p), np.random.default_rng(1)
    for clusters in (p.clusters, 155, 1):
        for largest in (1, 40, 600, (1 << p.count_bits) - 1):
            counts = rng.integers(1, largest + 1, clusters)
            latency = view.row(ADVERSARIAL[kind](rng, clusters), counts, round(ratio * 65536)).latency
            assert latency <= view.worst(clusters, largest), (clusters, largest)


@pytest.mark.parametrize(("selection", "slack"), [("exact", 2), ("buckets", 1)])
def test_worst_case_is_about_reached(selection, slack):
    """The bound means something: some row comes close."""
    p = replace(CORE, selection=selection)
    view, rng, counts = WtuTime(p), np.random.default_rng(1), np.ones(p.clusters, int)
    rows = [make(rng, p.clusters) for make in ADVERSARIAL.values()]
    got = max(view.row(codes, counts, round(r * 65536)).latency for codes in rows for r in (0.3, 0.8))
    assert got * slack >= view.worst(p.clusters, 1)


def bins_hit(p: WtuParams, e: dict) -> set[str]:
    """Coverage bins of an episode, from golden and the time view."""
    table = np.zeros((p.n_ctx, p.clusters), np.int64)
    for w in e["counts"]:
        table[w["ctx"], w["cluster"]] = w["count"]
    hit = set()
    for ctx, codes in e["rows"]:
        codes, counts = np.array(codes), table[ctx, : len(codes)]
        s = select(codes, counts, params_of(p, e["ratio"]))
        t = WtuTime(p).row(codes, counts, e["ratio"])
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
        hit |= {f"zooms_{t.zooms}"}
        hit |= {"further_digit"} if (counts >= 1 << p.count_digit).any() else set()
        if t.zooms:
            low = max(0, p.score.bits - p.bin_bits)
            listed = codes >> low == codes[s.mask].min() >> low
            hit |= {"list_ran_empty" if listed.sum() <= p.list_limit else "list_limit"}
        equal = codes == codes[s.mask].min()
        hit |= {"tie_cut"} if (equal & ~s.mask).any() else set()
        words = np.flatnonzero(equal) // p.n_w
        hit |= {"tie_across_words"} if len(set(words.tolist())) > 1 and (equal & ~s.mask).any() else set()
        hit |= {"walked_far"} if t.walked > 20 else set()
    return hit


def test_functional_coverage(record_property):
    """The episodes of this file reach every stated bin; without this a comparison could pass on dull data."""
    both = {"one_cluster", "full_row", "ragged", "zero_sum", "zero_threshold", "all_selected", "one_selected"}
    both |= {"saturated_count", "just_crossed"}
    exact = both | {"zooms_0", "zooms_1", "zooms_2", "tie_cut", "tie_across_words", "walked_far"}
    exact |= {"further_digit", "list_ran_empty", "list_limit"}
    buckets = both | {"buckets_one", "buckets_some", "buckets_all", "empty_bucket", "one_code"}
    for selection, want in (("exact", exact), ("buckets", buckets)):
        hit = set()
        for p in SIZES.values():
            if p.selection == selection:
                for seed, x in enumerate(EPISODES, 1):
                    hit |= bins_hit(p, episode(p, seed, *x))
        record_property("bins", f"{selection}: {', '.join(sorted(hit))}")  # for `vrex report`
        assert hit >= want, (selection, want - hit)


MUTANTS = [
    ("tiny", "key0 >= key", "key0 > key"),  # equal candidates in the wrong order
    ("tiny", "assign same_set = ", "assign same_set = 0 & "),  # a bin that the word before has just written
    ("tiny", "assign current0_0 = ", "assign current0_0 = 1 | "),  # a bin of an earlier row
    ("tiny", "assign exhaust = ", "assign exhaust = 0 & "),  # a list that runs empty
    ("tiny", "assign crossed = check & ", "assign crossed = check & (walk_rest == 0) | check & "),
    ("tiny", "whole0 = {weight0[14:0], ", "whole0 = {15'h0, "),  # the higher digit of a count
    ("tiny", "assign may_start = ", "assign may_start = 1 | "),  # a histogram that is still walked
    ("ahead", "assign set_next = load_set ^ ", "assign set_next = load_set | 0 & "),  # a zoom into the bins of a load
    ("digits", "load_bank <= bank_after", "load_bank <= 0 & bank_after"),  # rows over one another
    ("buckets", "assign crosses = ", "assign crosses = (after == 0) | "),
    ("buckets", "code0 >= low", "code0 > low"),
]


@pytest.mark.parametrize(
    "size", ["tiny", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted({m[0] for m in MUTANTS} - {"tiny"}))]
)
def test_mutants_are_killed(size):
    p = SIZES[size]
    edits = [m[1:] for m in MUTANTS if m[0] == size]
    episodes = [episode(p, seed, *x) for seed, x in enumerate(EPISODES[:5], 1)]
    episodes = [e | {"limit": 4000} for e in [*episodes, unit_counts(p)]]  # a deadlock is found soon

    def passes(unit):
        got = run(unit, p, episodes, waves=False)
        return not any(differs(p, e, g) for e, g in zip(episodes, got, strict=True))

    assert not survivors(emitted(p), edits, passes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_w": 5}, "n_w=5: must divide clusters = 32"),
        ({"list_depth": 0}, "list_depth=0: must be 1 to 64"),
        ({"count_digit": 0}, "count_digit=0: must be 1 to 64"),
        ({"double_buffer": False, "walk_ahead": True}, "walk_ahead=True: needs double_buffer"),
        ({"selection": "best"}, "selection='best': must be one of exact, buckets"),
        ({"bin_bits": 3}, "bin_bits=3: must be at least score.exp_bits = 4"),
        ({"n_buckets": 12}, "n_buckets=12: must be a power of two"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(ParamError, match=message):
        replace(TINY, **change)
