"""Checks of the KVMU, shared by tests, mutants, coverage and stress: every address, move and burst against golden."""

import random
from dataclasses import asdict, dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

from golden.retrieval.kvmap import KvMap
from hdl.emit import emit
from hdl.params import KvmuParams, preset
from sim.units.kvmu_time import KvmuTime
from tb.library.runner import Run
from tb.library.streams import LATE
from tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").core.dre.kvmu
RAGGED = KvmuParams(
    n_ctx=3, clusters=5, blocks=19, block_slots=3, recent=5, entry_bytes=24, boundary=64, addr_bits=14, token_bits=9
)
SIZES = {
    "tiny": TINY,
    "ragged": RAGGED,
    "runs": replace(RAGGED, n_ctx=1, clusters=3, blocks=40, block_slots=2, recent=2, boundary=1 << 16),
    "one": KvmuParams(
        n_ctx=1, clusters=1, blocks=1, block_slots=1, recent=1, entry_bytes=1, boundary=1, addr_bits=3, token_bits=1
    ),
    "one-slot": replace(RAGGED, n_ctx=1, block_slots=1, recent=1, entry_bytes=40, boundary=32),
}
STALLS = [dict.fromkeys("afwxb", 0.4), {"b": 0.85}, {"x": 0.8, "w": 0.3}, {}, {"a": 0.7, "b": 0.5}]
BINS = {
    *("full", "clear_empty", "clear_used", "skipped", "opens", "fresh_block", "freed_block", "last_free_block"),
    *("next_block", "offload_of_same_cluster", "join_block", "join_cluster", "split", "empty_set", "resident_set"),
    *("closing_empty_beat", "part_block", "unknown_cluster", "append_within_cluster", "append_within_set"),
}


@cache
def emitted(p: KvmuParams):
    return emit("kvmu", p)


def bases(p: KvmuParams, seed: int = 0) -> tuple[int, int]:
    """Random device and home bases; without a seed the blocks end where the address space ends."""
    rng, home = random.Random(seed), (1 << p.addr_bits) - p.blocks * p.block_bytes
    device = (1 << p.addr_bits) - p.n_ctx * p.recent * p.entry_bytes
    return (rng.randint(0, device), min(home, rng.randint(0, home) | 7)) if seed else (1, home)


def traffic(p: KvmuParams, seed: int, n: int, clear: float = 0.02) -> tuple[list[dict], list[dict]]:
    """Beats of `a` (clusters opened in order or not, growing in streaks) and of `f` (random sets)."""
    rng = random.Random(seed)
    a, f = [], []
    cluster, opened = 0, [0] * p.n_ctx
    for i in range(n):
        ctx = rng.randrange(p.n_ctx)
        if rng.random() < 0.5:
            known = rng.randrange(opened[ctx] + 1) if rng.random() < 0.95 else p.clusters - 1
            cluster = min(known, p.clusters - 1)
            opened[ctx] = max(opened[ctx], cluster + 1)
        op = int(rng.random() < clear)
        opened[ctx] *= not op
        a.append({"op": op, "ctx": ctx, "cluster": cluster, "token": i % (1 << p.token_bits)})
    for _ in range(n // 8):
        ctx = rng.randrange(p.n_ctx)
        share = rng.choice([0.0, 0.3, 0.7, 1.0])
        chosen = [k for k in range(p.clusters) if rng.random() < share]
        beats = [{"ctx": ctx, "cluster": k, "last": 0, "empty": 0} for k in chosen]
        if not beats or rng.random() < 0.1:
            beats.append({"ctx": ctx, "cluster": 0, "last": 0, "empty": 1})
        beats[-1]["last"] = 1
        f += beats
    return a, f


def golden_map(p: KvmuParams, device: int, home: int) -> KvMap:
    sizes = {k: v for k, v in asdict(p).items() if k not in ("addr_bits", "token_bits", "protect")}
    return KvMap(**sizes, device_base=device, home_base=home)


def check(p: KvmuParams, e: dict, got: dict) -> set[str]:
    """Replay the beats on the golden map in the order of their acceptance, and compare all outputs; the bins hit."""
    a, f, kv, bins = e["a"], e["f"], golden_map(p, *e["bases"]), set()
    assert len(got["a"]) == len(a)
    assert len(got["f"]) == len(f)
    order = sorted([(c, 0, i) for i, c in enumerate(got["a"])] + [(c, 1, i) for i, c in enumerate(got["f"])])
    assert len({c for c, _, _ in order}) == len(order), "one beat a cycle takes effect"
    w, x, b, chosen = [], [], [], []
    offloads, bursts = 0, 0
    for cycle, is_fetch, i in order:
        beat = f[i] if is_fetch else a[i]
        ctx = beat["ctx"]
        clusters = kv.contexts[ctx].clusters
        if is_fetch:
            assert all(c < cycle for c, _ in got["x"][: len(x)]), "a fetch was taken before the move of an append"
            ranges = [] if beat["empty"] else kv.ranges(ctx, beat["cluster"])
            bins |= {"unknown_cluster"} if not beat["empty"] and beat["cluster"] not in clusters else set()
            bins |= {"closing_empty_beat"} if beat["empty"] and chosen else set()
            within = any(not a[j]["op"] and cycle < c <= cycle + len(ranges) for j, c in enumerate(got["a"]))
            bins |= {"append_within_cluster"} if within and len(ranges) > 1 else set()
            bins |= {"part_block"} if ranges and ranges[-1].slots < p.block_slots else set()
            chosen.append((i, ranges))
            if not beat["last"]:
                continue
            want = kv.bursts(r for _, rs in chosen for r in rs)
            b += [{"addr": s.addr, "bytes": s.bytes, "ctx": ctx, "last": int(s is want[-1]), "empty": 0} for s in want]
            bursts += len(want)
            if not want:
                b.append({"ctx": ctx, "bytes": 0, "last": 1, "empty": 1})
                bins.add("empty_set" if f[chosen[0][0]]["empty"] else "resident_set")
            start = got["f"][chosen[0][0]]
            bins |= {"append_within_set"} if any(start < c < cycle for c in got["a"]) else set()
            bins |= _layout_bins(p, [rs for _, rs in chosen if rs], want)
            chosen = []
        elif beat["op"]:
            bins.add("clear_used" if clusters else "clear_empty")
            kv.clear(ctx)
        else:
            bins |= _append_bins(kv, beat)
            placed = kv.append(ctx, beat["cluster"])
            w.append({"token": beat["token"], "full": int(not placed.ok), "device": placed.device, "home": placed.home})
            if placed.move:
                x.append({"src": placed.move.src, "dst": placed.move.dst, "bytes": placed.move.bytes})
                offloads += 1
                assert got["x"][len(x) - 1][0] < got["w"][len(w) - 1][0], "the move comes before the reply"
    assert [v for _, v in got["w"]] == w
    assert [v for _, v in got["x"]] == x
    assert [{k: v[k] for k in want} for (_, v), want in zip(got["b"], b, strict=False)] == b
    assert len(got["b"]) == len(b)
    full = sum(r["full"] for r in w)
    slots = sum(v["bytes"] for v in b) // p.entry_bytes
    perf = {"appends": len(w) - full, "full": full, "offloads": offloads, "fetched": slots, "bursts": bursts}
    assert got["perf"] == perf
    return bins


def _append_bins(kv: KvMap, beat: dict) -> set[str]:
    """Bins that an append is about to reach."""
    c = kv.contexts[beat["ctx"]]
    bins = set()
    k = c.clusters.get(beat["cluster"])
    if k is None or len(k.entries) % kv.block_slots == 0:
        left = kv.blocks - kv.fresh + len(kv.freed)
        bins.add("fresh_block" if kv.fresh < kv.blocks else "freed_block" if kv.freed else "full")
        bins |= {"last_free_block"} if left == 1 and kv.freed else set()
    bins |= {"opens"} if k is None else set()
    bins |= {"skipped"} if beat["cluster"] > max(c.clusters, default=-1) + 1 else set()
    if c.n >= kv.recent and "full" not in bins:
        bins |= {"offload_of_same_cluster"} if c.ring[0] == beat["cluster"] else set()
        n = c.clusters[c.ring[0]].offloaded
        bins |= {"next_block"} if n and n % kv.block_slots == 0 else set()
    return bins


def _layout_bins(p: KvmuParams, ranges: list, bursts: list) -> set[str]:
    """Bins that a fetch has reached, from the ranges of each of its clusters."""

    def joins(r, s):
        return r.slots == p.block_slots and s.block == r.block + 1

    bins = {"join_block"} if any(joins(r, s) for rs in ranges for r, s in zip(rs, rs[1:], strict=False)) else set()
    pairs = zip(ranges, ranges[1:], strict=False)
    bins |= {"join_cluster"} if any(joins(r[-1], s[0]) for r, s in pairs) else set()
    split = any(s.addr + s.bytes == t.addr for s, t in zip(bursts, bursts[1:], strict=False))
    return bins | ({"split"} if split else set())


def episode(p: KvmuParams, a, f, stalls=({},), block_b=False, cut_at=0, seed=0) -> dict:
    return {"a": a, "f": f, "bases": bases(p, seed), "stalls": list(stalls), "block_b": block_b, "cut_at": cut_at}


def run(e, p: KvmuParams, episodes: list[dict], waves=True) -> list[dict]:
    c = {"params": asdict(p), "episodes": episodes}
    return Run(e, "tb.benches.bench_kvmu", "traffic", c, waves=waves)()["episodes"]


def cycles(p: KvmuParams, e: dict) -> dict:
    """Cycles of an unstalled run by the time view. No set may end in an extra empty beat."""
    sets, chosen = [], []
    for beat in e["f"]:
        chosen += [] if beat["empty"] else [beat["cluster"]]
        if beat["last"]:
            sets.append((beat["ctx"], chosen))
            chosen = []
    return asdict(KvmuTime(p, *e["bases"]).run([(v["op"], v["ctx"], v["cluster"]) for v in e["a"]], sets))


@cache
def results(size: str) -> list[tuple[dict, dict]]:
    """Episodes of one size with their results: every stall pattern, full rate after a cut, `b` blocked."""
    p = SIZES[size]
    blocked = episode(p, *traffic(p, 7, 150, clear=0), [{"a": 0.5}], block_b=True, seed=1)
    cut = [episode(p, *traffic(p, n, 120), STALLS[:1], cut_at=n) for n in (1, 9, 60, 201)]
    full_rate = [episode(p, *unstalled(p, n, 200), seed=n) for n in (21, 22)]
    late = episode(p, *traffic(p, 8, 150), [dict.fromkeys("wxb", LATE)], seed=2)
    churn = episode(p, *traffic(p, 9, 500, clear=0.06), [{"b": 0.5}, {}], seed=3)
    long = episode(p, *traffic(p, 1, 900), STALLS)
    episodes = [late, churn, cut[0], full_rate[0], *cut[1:3], blocked, cut[3], full_rate[1], long]
    return list(zip([e for e in episodes if not e["cut_at"]], run(emitted(p), p, episodes), strict=True))


@cache
def covered(size: str) -> frozenset[str]:
    """Compare every episode of one size; the bins hit."""
    return frozenset().union(*(check(SIZES[size], e, got) for e, got in results(size)))


def check_equals_golden(size):
    """Outputs equal golden, also after resets in flight, which cut some episodes."""
    assert covered(size) <= BINS


def unstalled(p: KvmuParams, seed: int, n: int) -> tuple[list[dict], list[dict]]:
    """Traffic in which no empty beat closes a set with clusters: the time view does not model that."""
    a, f = traffic(p, seed, n, clear=0.01)
    sets, chosen = [], []
    for beat in f:
        chosen += [] if beat["empty"] and chosen else [beat]
        if beat["last"]:
            chosen[-1]["last"] = 1
            sets, chosen = sets + chosen, []
    return a, sets


def check_cycles_equal_time_view(size):
    full_rate = [(e, got) for e, got in results(size) if e["stalls"] == [{}]]
    assert len(full_rate) == 2
    for e, got in full_rate:
        want, first = cycles(SIZES[size], e), got["a"][0]
        for name in ("a", "f"):
            assert [c - first for c in got[name]] == want[name], name
        for name in ("w", "x", "b"):
            assert [c - first for c, _ in got[name]] == want[name], name


def check_append_never_waits_for_bursts(size):
    blocked = [got for e, got in results(size) if e["block_b"]]
    assert blocked
    for got in blocked:
        assert got["w"][-1][0] < got["b"][0][0]


@dataclass
class RandomTraffic(StressTraffic):
    """APPENDs, CLEARs and fetches until blocks run out."""

    p: KvmuParams
    episode: dict

    @classmethod
    def random(cls, rng: Random) -> Self:
        p, seed = SIZES[rng.choice(list(SIZES))], rng.getrandbits(31)
        stalls = [{name: stall_rate(rng) for name in "afwxb"} for _ in range(3)]
        return cls(p, episode(p, *traffic(p, seed, 6000, rng.choice((0.0, 0.02, 0.06))), stalls))

    def play(self) -> Any:
        return run(emitted(self.p), self.p, [self.episode])

    def check(self, got: Any) -> int:
        check(self.p, self.episode, got[0])
        return len(self.episode["a"]) + len(self.episode["f"])
