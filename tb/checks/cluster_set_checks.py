"""Checks of the cluster set, shared by tests, mutants, coverage and stress: the union of rows, and its cycles."""

import random
from dataclasses import asdict, dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

from hdl.emit import emit
from hdl.params import WtuParams, preset
from sim.units.cluster_set_time import ClusterSetTime
from tb.library.runner import Run
from tb.library.streams import LATE
from tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").core.dre.wtu
SIZES = {
    "tiny": TINY,
    "ragged": replace(TINY, n_w=3, clusters=15, n_ctx=1),
    "one": WtuParams(n_w=1, clusters=1, n_ctx=1),
    "one-word": replace(TINY, n_w=16, clusters=16, n_ctx=2),
    "one-lane": replace(TINY, n_w=1, clusters=11),
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
    """Context, beats and ascending clusters of each set."""
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


@dataclass
class RandomTraffic(StressTraffic):
    """A thousand rows of selected clusters."""

    p: WtuParams
    episode: dict

    @classmethod
    def random(cls, rng: Random) -> Self:
        p = SIZES[rng.choice(list(SIZES))]
        return cls(
            p, episode(rows(p, rng.getrandbits(31), 1000), [(stall_rate(rng), stall_rate(rng)) for _ in range(3)])
        )

    def play(self) -> Any:
        return run(emitted(self.p), self.p, [self.episode])

    def check(self, got: Any) -> int:
        assert [v for _, v in got[0]["o"]] == listing(unions(self.p, self.episode["beats"]))
        return len(self.episode["beats"])


def check_equals_sets_and_time_view(size):
    """Beats equal the unions, and cycles the time view, under every stall pattern and at full rate.

    Between these, resets in flight cut episodes.
    """
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
