"""Cluster set: the union of rows equal to Python sets, cycles equal to the time view; stalls, sizes, mutants."""

import pytest

from hdl.params import WtuParams
from sim.units.cluster_set_time import ClusterSetTime
from tb.checks.cluster_set_checks import (
    SIZES,
    STALLS,
    TINY,
    check_equals_sets_and_time_view,
    emitted,
    episode,
    listing,
    rows,
    run,
    unions,
)
from tb.library.runner import survivors

BINS = {
    *("empty_set", "empty_row", "all_clusters", "same_word_at_once", "same_word_later", "word_left_from_before"),
    *("one_beat_set", "waits_for_listing", "set_last_all_row"),
}


def bins(p: WtuParams, beats: list[dict]) -> set[str]:
    """What a stream exercises."""
    hit, words, before, previous, row = set(), set(), set(), None, []
    sets = unions(p, beats)
    hit |= {"empty_set"} if any(not c for _, _, c in sets) else set()
    hit |= {"all_clusters"} if any(len(c) == p.clusters for _, _, c in sets) else set()
    hit |= {"one_beat_set"} if any(n == 1 for _, n, _ in sets) else set()
    cycles = ClusterSetTime().run((n, len(c)) for _, n, c in sets)
    starts = [0] + [sum(n for _, n, _ in sets[: k + 1]) for k in range(len(sets) - 1)]
    waits = (cycles.i[s] - cycles.i[s - 1] > 2 for s in starts[1:])
    hit |= {"waits_for_listing"} if any(waits) else set()
    for b in beats:
        if b["mask"]:
            hit |= {"same_word_at_once"} if previous == b["addr"] else set()
            hit |= {"same_word_later"} if b["addr"] in words and previous != b["addr"] else set()
            hit |= {"word_left_from_before"} if b["addr"] in before - words else set()
            words.add(b["addr"])
        previous = b["addr"] if b["mask"] else None
        row.append(b)
        if b["row_last"]:
            hit |= {"empty_row"} if not any(v["mask"] for v in row) else set()
            hit |= {"set_last_all_row"} if len(row) > 1 and all(v["set_last"] for v in row) else set()
            row = []
            if b["set_last"]:
                before, words, previous = before | words, set(), None
    return hit


@pytest.mark.parametrize("size", SIZES)
def test_equals_sets_and_time_view(size):
    check_equals_sets_and_time_view(size)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = set().union(*(bins(p, rows(p, seed, 60)) for p in SIZES.values() for seed in (1, 2)))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, BINS - hit


MUTANTS = [  # of "tiny"
    ("assign word = part_mask | ", "assign word = part_mask ^ "),
    ("assign old = part_bank ? ", "assign old = ~part_bank ? "),
    # It looks on before the word ahead is used.
    ("assign look = listing & word2_0_some & ", "assign look = listing & word2_0_some | 0 & "),
    ("assign load = ahead & ", "assign load = ahead | 0 & "),
]


def test_mutants_are_killed():
    beats = rows(TINY, 5, 40)
    want = listing(unions(TINY, beats))

    def passes(unit):
        got = run(unit, TINY, [episode(beats, STALLS)], waves=False)[0]
        return [v for _, v in got["o"]] == want

    assert not survivors(emitted(TINY), MUTANTS, passes)
