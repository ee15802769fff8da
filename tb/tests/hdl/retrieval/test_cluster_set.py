"""Cluster set: the union of rows equal to Python sets, cycles equal to the time view; stalls, sizes, mutants."""

from collections import Counter
from itertools import pairwise

import pytest

from openvrex.hdl.params import WtuParams
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import cluster_set_checks
from openvrex.tb.checks.cluster_set_checks import (
    SIZES,
    STALLS,
    TINY,
    check_beats,
    check_cycles,
    emitted,
    episode,
    rows,
    run,
    unions,
)
from tb.tests.by_day import at_sizes

BINS = {
    *("empty_set", "empty_row", "all_clusters", "same_word_at_once", "same_word_later", "word_left_from_before"),
    *("one_beat_set", "set_last_all_row", "empty_mask_ends_set", "lower_word_later"),
    *("zero_words_cost_time", "zero_words_cost_none", "first_and_last_word"),
}


def bins(p: WtuParams, beats: list[dict]) -> set[str]:
    """What a stream exercises."""
    hit, words, before, previous, row = set(), set(), set(), None, []
    sets = unions(p, beats)
    hit |= {"empty_set"} if any(not c for _, c in sets) else set()
    hit |= {"all_clusters"} if any(len(c) == p.clusters for _, c in sets) else set()
    hit |= {"one_beat_set"} if any(n == 1 for n, _ in sets) else set()
    for _, clusters in sets:
        hit |= listed(p, clusters)
    for b in beats:
        if b["mask"]:
            hit |= {"same_word_at_once"} if previous == b["addr"] else set()
            hit |= {"same_word_later"} if b["addr"] in words and previous != b["addr"] else set()
            hit |= {"word_left_from_before"} if b["addr"] in before - words else set()
            hit |= {"lower_word_later"} if words and b["addr"] < min(words) else set()
            words.add(b["addr"])
        previous = b["addr"] if b["mask"] else None
        row.append(b)
        if b["row_last"]:
            hit |= {"empty_row"} if not any(v["mask"] for v in row) else set()
            hit |= {"set_last_all_row"} if len(row) > 1 and all(v["set_last"] for v in row) else set()
            row = []
            if b["set_last"]:
                hit |= {"empty_mask_ends_set"} if words and not b["mask"] else set()
                before, words, previous = before | words, set(), None
    return hit


def listed(p: WtuParams, clusters: list[int]) -> set[str]:
    """What the list of a set exercises."""
    words = Counter(c // p.n_w for c in clusters)
    hit = {"first_and_last_word"} if p.words > 1 and {0, p.words - 1} <= set(words) else set()
    for word, after in pairwise(words):
        if after - word > 1:
            hit |= {"zero_words_cost_none" if words[word] >= after - word else "zero_words_cost_time"}
    return hit


DAY = "tiny", "ragged", "one", "parity"


test_equals_sets_and_time_view = at_sizes(cluster_set_checks.check_equals_sets_and_time_view, SIZES, *DAY)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = set().union(*(bins(SIZES[size], rows(SIZES[size], seed, 60)) for size in DAY for seed in (1, 2)))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, BINS - hit


MUTANTS = {  # of "tiny"
    "$or 0.99df15a3: B[0] const0": "a cluster in the memory is forgotten",
    "$and 1.4c5f1b7e: Y[0] const0": "the word of the beat before is read too early",
    "$or 2.de17b3a6: B[0] const0": "the memory is not cleared, neither after a reset nor behind a list",
    # The lowest and the highest word touched.
    "$or 1.aea77964: B[0] const0": "the lowest is the first",
    "$or 1.aea77964: A[0] const0": "the lowest is that of all sets",
    "$or 1.cd242f2b: B[0] const0": "the highest is the first",
    "$or 1.cd242f2b: A[0] const0": "the highest is that of all sets",
    "$and 1.31b6c005: B[0] const1": "each word ends with the set's last cluster",
    # It looks on before the word ahead is used, or behind the last word; zero words wait.
    "$and 1.fc7cbffa: B[0] const1": "a word is looked up over the one ahead",
    "$and 2.aa4b02e6: B[0] const1": "words behind the last are looked up",
    "$or 1.e12de1fb: A[0] const0": "a word without clusters waits",
    "$and 1.33610847: B[0] const1": "a set whose only clusters are in its last beat is empty",
    "$or 1.467e481d: B[0] const0": "it is idle while it clears",
    "$or 1.467e481d: A[0] const1": "it is never idle",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    """Every fourth one, and at night all. The first episode ends in a reset that leaves words in the memory."""
    full = [{"addr": i % TINY.words, "mask": 15, "row_last": 0, "set_last": 0} for i in range(9 * TINY.words)]
    cut = episode(full, cut_at=6 * TINY.words)
    beats = rows(TINY, 5, 40)

    def passes(unit):
        stalled, steady = run(unit, TINY, [cut, episode(beats, STALLS), cut, episode(beats)], waves=False)
        check_beats(TINY, beats, stalled)
        check_beats(TINY, beats, steady)
        check_cycles(TINY, beats, steady)

    assert not survivors(emitted(TINY), MUTANTS, passes, every=every)
