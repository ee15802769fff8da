"""Checks of the cluster set, shared by tests, mutants, coverage and stress: the union of rows, and its cycles."""

import random
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

from openvrex.hdl.params import WtuParams, preset
from openvrex.sim.units.cluster_set_time import ClusterSetTime
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").core.dre.wtu
SIZES = {
    "tiny": TINY,
    "ragged": replace(TINY, n_w=3, clusters=15, counts=15),
    "one": WtuParams(n_w=1, clusters=1),
    "one-word": replace(TINY, n_w=16, clusters=16),
    "one-lane": replace(TINY, n_w=1, clusters=11),
    "many-words": replace(TINY, n_w=2, clusters=128),
    "parity": replace(TINY, protect="parity"),
}
STALLS = [(0.4, 0.4), (0.0, 0.8), (0.0, 0.0), (0.8, 0.0), (0.0, LATE)]


@cache
def emitted(p: WtuParams):
    return emit("cluster_set", p)


def rows(p: WtuParams, seed: int, n_sets: int) -> list[dict]:
    """Sets of a few rows: sparse, dense or empty, with words ascending, repeated or in any order."""
    rng = random.Random(seed)
    beats = []
    for _ in range(n_sets):
        n_rows, density = rng.choice([1, 1, 2, 4]), rng.choice([0.0, 0.1, 0.5, 1.0])
        whole_row = rng.random() < 0.5
        for r in range(n_rows):
            words = [rng.randrange(p.words) for _ in range(rng.choice([1, 2, p.words]))]
            words = sorted(set(words)) if rng.random() < 0.5 else words
            words = range(p.words) if density == 1.0 else words
            for i, word in enumerate(words):
                end = i == len(words) - 1
                mask = sum((rng.random() < density) << k for k in range(p.n_w))
                last = r == n_rows - 1 and (whole_row or end)
                beats.append({"addr": word, "mask": mask, "row_last": int(end), "set_last": int(last)})
    return beats


def unions(p: WtuParams, beats: list[dict]) -> list[tuple[int, list[int]]]:
    """Number of beats and ascending clusters of each set."""
    out, seen, n = [], set(), 0
    for b in beats:
        n += 1
        seen |= {b["addr"] * p.n_w + k for k in range(p.n_w) if b["mask"] >> k & 1}
        if b["row_last"] and b["set_last"]:
            out.append((n, sorted(seen)))
            seen, n = set(), 0
    return out


def listing(sets) -> list[dict]:
    """The beats that `o` must give."""
    out = []
    for _, clusters in sets:
        beats = [{"cluster": k, "last": 0, "empty": 0} for k in clusters]
        beats = beats or [{"cluster": 0, "last": 0, "empty": 1}]
        beats[-1]["last"] = 1
        out += beats
    return out


def idle(beats: list[dict], got: dict) -> list[list[int]]:
    """The value that `idle` must have in each recorded cycle: whether every set that came in before is listed."""
    ends = [cycle for cycle, b in zip(got["i"], beats, strict=True) if b["row_last"] and b["set_last"]]
    lists = [cycle for cycle, b in got["o"] if b["last"]]
    return [[now, int(bisect_left(ends, now) == bisect_left(lists, now))] for now, _ in got["idle"]]


def episode(beats: list[dict], stalls=((0.0, 0.0),), cut_at=0) -> dict:
    return {"beats": beats, "stalls": list(stalls), "cut_at": cut_at}


def run(e, p: WtuParams, episodes: list[dict], waves=True) -> list[dict]:
    c = {"params": asdict(p), "episodes": episodes}
    return Run(e, "bench_cluster_set", "rows", c, waves=waves)()["episodes"]


@dataclass
class RandomTraffic(StressTraffic):
    """A thousand rows of selected clusters."""

    p: WtuParams
    episode: dict

    @classmethod
    def random(cls, rng: Random) -> Self:
        p = SIZES[rng.choice(list(SIZES))]
        stalls = sorted(
            ((stall_rate(rng), stall_rate(rng)) for _ in range(3)), reverse=True
        )  # the bench's first stalls
        return cls(p, episode(rows(p, rng.getrandbits(31), 1000), stalls))

    def play(self) -> Any:
        return run(emitted(self.p), self.p, [self.episode])

    def check(self, got: Any) -> int:
        assert [v for _, v in got[0]["o"]] == listing(unions(self.p, self.episode["beats"]))
        return len(self.episode["beats"])


def check_equals_sets_and_time_view(size):
    """Beats equal the unions, and cycles the time view, under every stall pattern and at full rate.

    Between these, resets in flight cut episodes: while the unit clears its memory, and while sets are in it.
    """
    p = SIZES[size]
    cut = [episode(rows(p, n, 20), STALLS[:1], n) for n in (1, 3, p.words + 77)]
    episodes = [cut[0], episode(rows(p, 1, 61), STALLS), *cut[1:], episode(rows(p, 2, 140))]
    results = run(emitted(p), p, episodes)
    whole = [e for e in episodes if not e["cut_at"]]
    for e, got in zip(whole, results, strict=True):
        check_beats(p, e["beats"], got)
    check_cycles(p, whole[-1]["beats"], results[-1])


def check_beats(p: WtuParams, beats: list[dict], got: dict):
    """An episode gave the unions, the counters and `idle`."""
    sets = unions(p, beats)
    assert [v for _, v in got["o"]] == listing(sets)
    assert got["perf"] == {"sets": len(sets), "clusters": sum(len(c) for _, c in sets)}
    assert got["idle"] == idle(beats, got)


def check_cycles(p: WtuParams, beats: list[dict], got: dict):
    """An episode at full rate took the cycles of the time view, from its reset on."""
    time = ClusterSetTime(p)
    want, first = time.run(unions(p, beats)), got["i"][0]
    assert first == max(1, time.ready)  # the bench offers the first beat in cycle 1
    assert [c - first for c in got["i"]] == want.i
    assert [c - first for c, _ in got["o"]] == want.o
