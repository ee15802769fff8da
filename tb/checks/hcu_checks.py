"""Checks of the HCU, shared by tests, mutants, coverage and stress: beats equal golden, cycles its time view."""

import random
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Self

from golden.function_params import ReSVParams
from golden.retrieval.clustering import Clusterer
from hdl.emit import emit
from hdl.params import HcuParams, preset
from sim.units.hcu_time import HcuTime
from tb.library.runner import Run
from tb.library.streams import LATE
from tb.library.stress_traffic import StressTraffic, stall_rate

TINY = replace(preset("tiny").core.dre.hcu, count_bits=5)  # small counts, which saturate
SIZES = {
    "tiny": TINY,
    "no-abandon": replace(TINY, early_abandon=False),
    "lanes": replace(TINY, n_h=4, n_w=4),
    "lanes-no-abandon": replace(TINY, n_h=2, early_abandon=False, n_ctx=2),
    "one": HcuParams(n_h=1, n_w=1, n_hp=1, clusters=1, n_ctx=1, frame=1, count_bits=1, token_bits=4),
    "all-lanes": HcuParams(n_h=8, n_w=8, n_hp=8, clusters=8, n_ctx=1, frame=3, count_bits=3, token_bits=12),
    "wide": HcuParams(n_h=1, n_w=16, n_hp=96, clusters=16, n_ctx=1, frame=32, count_bits=16, token_bits=12),
}
STALLS = [(0.0, 0.0), (0.4, 0.4), (0.0, 0.8), (0.8, 0.0), (0.0, LATE)]


def stream(p: HcuParams, seed: int, n: int, contexts: int = 1, clear: float = 0.0) -> list[dict]:
    """Keys around a few centres, so that joins, ties, new clusters, repeats and a full table all occur."""
    rng = random.Random(seed)
    centres = [0, *(rng.getrandbits(p.n_hp) for _ in range(max(1, p.clusters // 2)))]
    beats = []
    for i in range(n):
        key = rng.choice(centres)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3, p.n_hp])):
            key ^= 1 << rng.randrange(p.n_hp)
        if beats and rng.random() < 0.1:  # all bits differ from the first key
            key = beats[0]["hash"] ^ (1 << p.n_hp) - 1
        op = int(rng.random() < clear)
        ctx = rng.randrange(contexts)
        token = rng.getrandbits(p.token_bits)
        beats.append({"op": op, "ctx": ctx, "token": token, "hash": key, "last": int(i % 5 == 4)})
    return beats


def golden(p: HcuParams, th_hd: int, beats: list[dict]) -> tuple[list[dict], set[str]]:
    """The beats that `o` must give, and the coverage bins that the keys reach."""
    f = ReSVParams(n_hp=p.n_hp, th_hd=th_hd, max_clusters=p.clusters, count_bits=p.count_bits)
    tables: dict[int, Clusterer] = {}
    out, bins, previous = [], set(), None
    for b in beats:
        if b["op"]:
            bins.add("clear" if tables.pop(b["ctx"], None) else "clear_empty")
            out.append({"op": 1, "ctx": b["ctx"]})
            continue
        table = tables.setdefault(b["ctx"], Clusterer(f))
        near = [(h ^ b["hash"]).bit_count() for h in _hashes(table)]
        j = table.add(b["hash"])
        out.append(
            {k: b[k] for k in ("op", "ctx", "token", "last")}
            | {"cluster": j.cluster, "is_new": int(j.is_new), "full_join": int(j.full_join), "count": j.count}
        )
        bins.add("new" if j.is_new else "full_join" if j.full_join else "join")
        bins |= {"contexts"} if len(tables) > 1 else set()
        bins |= {"same_cluster_again"} if (b["ctx"], j.cluster) == previous and not j.is_new else set()
        bins |= {"tie"} if near and near.count(min(near)) > 1 and min(near) < th_hd else set()
        bins |= {"zero_distance"} if near and min(near) == 0 else set()
        bins |= {"all_bits_differ"} if near and max(near) == p.n_hp > 1 else set()
        bins |= {"just_below"} if near and min(near) == th_hd - 1 else set()
        bins |= {"just_not_below"} if near and min(near) == th_hd else set()
        bins |= {"saturated"} if j.count == (1 << p.count_bits) - 1 else set()
        previous = (b["ctx"], j.cluster)
    return out, bins


def _hashes(table: Clusterer) -> list[int]:
    return [sum(int(w) << 64 * i for i, w in enumerate(row)) for row in table.hashes]


def run(e, p, beats, th_hd, idle=0.0, stall=0.0, seed=1, reset_at=0, waves=True) -> dict:
    c = {"params": asdict(p), "beats": beats, "th_hd": th_hd, "idle": idle, "stall": stall, "reset_at": reset_at}
    got = Run(e, "tb.benches.bench_hcu", "keys", c | {"limit": max(40_000, 200 * len(beats))}, seed, waves)()
    got["beats"] = [{k: b[k] for k in ("op", "ctx")} if b["op"] else b for b in got["beats"]]
    return got


def counters(beats: list[dict], time) -> dict[str, int]:
    """Values that the counters must have, at full rate and without CLEARs."""
    sums = {n: sum(b[k] for b in beats) for n, k in (("opened", "is_new"), ("full_joins", "full_join"))}
    return {"tokens": len(beats), "compares": time.compares.sum(), **sums}


def emitted(p: HcuParams):
    return emit("hcu", p)


@dataclass
class RandomTraffic(StressTraffic):
    """Keys around a few centres, with CLEARs, over every context."""

    p: HcuParams
    seed: int
    th_hd: int
    clear: float
    idle: float
    stall: float

    def __post_init__(self):
        self.beats = stream(self.p, self.seed, 3000, self.p.n_ctx, self.clear)

    @classmethod
    def random(cls, rng: Random) -> Self:
        p, seed = SIZES[rng.choice(list(SIZES))], rng.getrandbits(31)
        return cls(p, seed, rng.randint(0, p.n_hp + 1), rng.choice((0.0, 0.01, 0.1)), stall_rate(rng), stall_rate(rng))

    def play(self) -> Any:
        return run(emitted(self.p), self.p, self.beats, self.th_hd, self.idle, self.stall, self.seed)

    def check(self, got: Any) -> int:
        assert got["beats"] == golden(self.p, self.th_hd, self.beats)[0]
        return len(self.beats)


def check_equals_golden_and_time_view(size):
    p = SIZES[size]
    e = emitted(p)
    th_hd = max(1, p.n_hp // 4)
    for seed, (idle, stall) in enumerate(STALLS, 1):
        full_rate = not (idle or stall)
        beats = stream(p, seed, 240, 1 if full_rate else p.n_ctx, 0 if full_rate else 0.02)
        got = run(e, p, beats, th_hd, idle, stall, seed)
        assert got["beats"] == golden(p, th_hd, beats)[0], f"seed {seed}"
        if full_rate:
            want = HcuTime(p, th_hd).run([b["hash"] for b in beats])
            assert [c - got["first"] for c in got["cycles"]] == want.out.tolist()
            assert got["perf"] == counters(got["beats"], want)


def check_thresholds_to_their_ends(th_hd):
    beats = stream(TINY, 9, 80 + th_hd)
    clear = {"op": 1, "ctx": 0, "token": 0, "hash": 0, "last": 0}
    got = run(emitted(TINY), TINY, [*beats, clear], th_hd)
    want = HcuTime(TINY, th_hd).run([b["hash"] for b in beats])
    assert got["beats"] == golden(TINY, th_hd, [*beats, clear])[0]
    assert [c - got["first"] for c in got["cycles"][:-1]] == want.out.tolist()
    assert got["perf"] == counters(got["beats"][:-1], want)


def check_words_hold_while_a_key_waits():
    """A comparison that waits for the output keeps its words.

    With tables of one cluster, every chunk of its word decides a key.
    """
    rng, half = random.Random(1), TINY.n_hp // 2

    def chunk(weight: int) -> int:
        return sum(1 << i for i in rng.sample(range(half), weight))

    for th_hd in (1, 4):
        pairs, beats = [], []
        for _ in range(150):
            old = chunk(rng.randint(0, half)) << half | rng.getrandbits(half)
            new = old ^ sum(1 << i for i in rng.sample(range(TINY.n_hp), th_hd - rng.getrandbits(1)))
            if rng.random() < 0.5:  # near in the first chunk, far in those of the second
                new = chunk(rng.randint(0, half)) << half | (new if th_hd == 1 else old) % (1 << half)
            pairs.append([old, new])
            beats.append({"op": 1, "ctx": 0, "token": 0, "hash": 0, "last": 0})
            beats += [{"op": 0, "ctx": 0, "token": 0, "hash": key, "last": 0} for key in pairs[-1]]
        for stall in (0.5, 0.8):
            got = run(emitted(TINY), TINY, beats, th_hd, 0.0, stall)
            assert got["beats"] == golden(TINY, th_hd, beats)[0]
            assert got["perf"]["compares"] == sum(HcuTime(TINY, th_hd).run(pair).compares.sum() for pair in pairs)


def check_reset_in_flight(reset_at):
    beats = stream(TINY, reset_at, 60, contexts=3)
    got = run(emitted(TINY), TINY, beats, 4, 0.2, 0.2, reset_at, reset_at)
    assert got["beats"] == golden(TINY, 4, beats)[0]
