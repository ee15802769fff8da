"""Cluster set: the union of rows equal to Python sets, cycles equal to the time view; stalls, sizes, mutants."""

import random
from dataclasses import asdict, replace
from functools import cache

import pytest

from hdl.emit import emit
from hdl.params import WtuParams, preset
from sim.units.cluster_set_time import ClusterSetTime
from tb.library.runner import Run, survivors
from tb.library.streams import LATE

TINY = preset("tiny").core.dre.wtu
SIZES = {
    "tiny": TINY,
    "ragged": replace(TINY, n_w=3, clusters=15, n_ctx=1),
    "one": WtuParams(n_w=1, clusters=1, n_ctx=1),
    "one-word": replace(TINY, n_w=16, clusters=16, n_ctx=2),
    "one-lane": replace(TINY, n_w=1, clusters=11),
}
STALLS = [(0.4, 0.4), (0.0, 0.8), (0.0, 0.0), (0.8, 0.0), (0.0, LATE)]
BINS = {
    *("empty_set", "empty_row", "all_clusters", "same_word_at_once", "same_word_later", "word_left_from_before"),
    *("one_beat_set", "waits_for_listing", "set_last_all_row"),
}


@cache
def emitted(p: WtuParams):
    return emit("cluster_set", p)


def rows(p: WtuParams, seed: int, n_sets: int) -> list[dict]:
    """Sets of a few rows: sparse, dense, empty; words ascending, repeated or in any order."""
    rng = random.Random(seed)
    beats = []
    for _ in range(n_sets):
        ctx, n_rows, density = rng.randrange(p.n_ctx), rng.choice([1, 1, 2, 4]), rng.choice([0.0, 0.1, 0.5, 1.0])
        whole_row = rng.random() < 0.5
        for r in range(n_rows):
            words = [rng.randrange(p.words) for _ in range(rng.choice([1, 2, p.words]))]
            words = sorted(set(words)) if rng.random() < 0.5 else words
            words = range(p.words) if density == 1.0 else words
            for i, word in enumerate(words):
                end = i == len(words) - 1
                mask = sum((rng.random() < density) << k for k in range(p.n_w))
                last = r == n_rows - 1 and (whole_row or end)
                beats.append({"ctx": ctx, "addr": word, "mask": mask, "row_last": int(end), "set_last": int(last)})
    return beats


def unions(p: WtuParams, beats: list[dict]) -> list[tuple[int, int, list[int]]]:
    """(context, beats, ascending clusters) of each set."""
    out, seen, n = [], set(), 0
    for b in beats:
        n += 1
        seen |= {b["addr"] * p.n_w + k for k in range(p.n_w) if b["mask"] >> k & 1}
        if b["row_last"] and b["set_last"]:
            out.append((b["ctx"], n, sorted(seen)))
            seen, n = set(), 0
    return out


def listing(sets) -> list[dict]:
    """The beats that `o` must give."""
    out = []
    for ctx, _, clusters in sets:
        beats = [{"ctx": ctx, "cluster": k, "last": 0, "empty": 0} for k in clusters]
        beats = beats or [{"ctx": ctx, "cluster": 0, "last": 0, "empty": 1}]
        beats[-1]["last"] = 1
        out += beats
    return out


def episode(beats: list[dict], stalls=((0.0, 0.0),), cut_at=0) -> dict:
    return {"beats": beats, "stalls": list(stalls), "cut_at": cut_at}


def run(e, p: WtuParams, episodes: list[dict], waves=True) -> list[dict]:
    c = {"params": asdict(p), "episodes": episodes}
    return Run(e, "tb.benches.bench_cluster_set", "rows", c, waves=waves)()["episodes"]


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
    """Every stall pattern, and full rate; resets in flight cut the episodes between these."""
    p = SIZES[size]
    cut = [episode(rows(p, n, 20), STALLS[:1], n) for n in (1, 3, 77)]
    episodes = [cut[0], episode(rows(p, 1, 61), STALLS), *cut[1:], episode(rows(p, 2, 61))]
    results = run(emitted(p), p, episodes)
    whole = [e for e in episodes if not e["cut_at"]]
    for e, got in zip(whole, results, strict=True):
        sets = unions(p, e["beats"])
        assert [v for _, v in got["o"]] == listing(sets)
        assert got["perf"] == {"sets": len(sets), "clusters": sum(len(c) for _, _, c in sets)}
    want = ClusterSetTime().run((n, len(c)) for _, n, c in sets)
    first = got["i"][0]
    assert [c - first for c in got["i"]] == want.i
    assert [c - first for c, _ in got["o"]] == want.o


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = set().union(*(bins(p, rows(p, seed, 60)) for p in SIZES.values() for seed in (1, 2)))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, BINS - hit


MUTANTS = [  # of "tiny"
    ("assign word = part[8:5] | ", "assign word = part[8:5] ^ "),
    ("assign old = part[1] ? ", "assign old = ~part[1] ? "),
    ("assign look = _015_ & ", "assign look = _015_ | 0 & "),  # looks on before the word ahead is used
    ("assign load = ahead & ", "assign load = ahead | 0 & "),
]


def test_mutants_are_killed():
    beats = rows(TINY, 5, 40)
    want = listing(unions(TINY, beats))

    def passes(unit):
        got = run(unit, TINY, [episode(beats, STALLS)], waves=False)[0]
        return [v for _, v in got["o"]] == want

    assert not survivors(emitted(TINY), MUTANTS, passes)
