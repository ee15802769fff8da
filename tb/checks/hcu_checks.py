"""Checks of the HCU, shared by tests, mutants, coverage and stress: beats, tables and cycles."""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval.cluster_items import cluster_items
from openvrex.golden.retrieval.clustering import Clusterer, Joined
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import HcuParams, preset
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN, NEWEST, SWITCH
from openvrex.sim.units.hcu_time import HcuTime
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").core.dre.hcu
SIZES = {
    "tiny": TINY,
    "no-abandon": replace(TINY, early_abandon=False),
    "lanes": replace(TINY, n_h=4, n_w=4),
    "lanes-no-abandon": replace(TINY, n_h=2, early_abandon=False, n_ctx=2),
    "protected": replace(TINY, n_h=2, protect="secded"),
    "one": HcuParams(n_h=1, n_w=1, n_hp=1, clusters=1, n_ctx=1, tile=1, frame=1, token_bits=4),
    "all-lanes": HcuParams(n_h=8, n_w=8, n_hp=8, clusters=8, n_ctx=1, tile=8, frame=3, token_bits=12),
    "one-tile": HcuParams(n_h=4, n_w=4, n_hp=8, clusters=13, n_ctx=3, tile=32, frame=16, token_bits=12),
    "ragged": HcuParams(n_h=2, n_w=4, n_hp=8, clusters=29, n_ctx=5, tile=4, frame=3, token_bits=12),
    "newest": replace(TINY, newest=True, clusters=61),
    "newest-one": HcuParams(n_w=1, n_hp=1, clusters=1, n_ctx=1, tile=1, frame=1, token_bits=4, newest=True),
    "newest-lanes": HcuParams(n_h=2, n_w=4, n_hp=8, clusters=29, n_ctx=5, tile=4, frame=3, token_bits=12, newest=True),
    "wide": HcuParams(n_h=1, n_w=16, n_hp=96, clusters=40, tile=4, frame=4, token_bits=12),
}
STALLS = [(0.0, 0.0), (0.4, 0.4), (0.0, 0.8), (0.8, 0.0), (0.0, LATE)]  # on `i`; on `o` and the table port
LATENCIES = (1, 8, 40)  # of the memory


def stream(p: HcuParams, seed: int, n: int, contexts: int = 1, commands: float = 0.0) -> list[dict]:
    """Keys around a few centres, so that joins, ties, new clusters, repeats and a full table all occur. Batches end in
    every way.
    """
    rng = random.Random(seed)
    centres = [0, *(rng.getrandbits(p.n_hp) for _ in range(max(1, p.clusters // 2)))]
    numbers = [rng.randrange(p.n_ctx) for _ in range(contexts)]
    beats, ctx, ends, kind = [], numbers[0], 0.3, JOIN
    for i in range(n):
        key = rng.choice(centres)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3, p.n_hp])):
            key ^= 1 << rng.randrange(p.n_hp)
        if beats and rng.random() < 0.1:  # all bits differ from the first key
            key = beats[0]["hash"] ^ (1 << p.n_hp) - 1
        if rng.random() < 0.3:
            ctx, ends = rng.choice(numbers), rng.choice((0.0, 0.3, 1.0))
            kind = rng.choice((JOIN, NEWEST)) if p.newest else JOIN
        op = rng.choice((CLEAR, SWITCH)) if rng.random() < commands else kind
        last = int(i == n - 1 or rng.random() < ends)
        beats.append({"op": op, "ctx": ctx, "token": rng.getrandbits(p.token_bits), "hash": key, "last": last})
    return beats


def batches(p: HcuParams, beats: list[dict]) -> Iterator[tuple[list[dict], str]]:
    """The batches that the unit makes of beats, and why each ends."""
    batch: list[dict] = []
    for b, behind in zip(beats, [*beats[1:], None], strict=True):
        batch.append(b)
        ends = {"command": b["op"] in (CLEAR, SWITCH), "last": b["last"], "frame": len(batch) == p.frame}
        why = next((name for name, so in ends.items() if so), "")
        if not why and behind:
            why = "op" if behind["op"] != b["op"] else "context" if behind["ctx"] != b["ctx"] else ""
        if why:
            yield batch, why
            batch = []
    assert not batch, "the last batch does not end"


@dataclass
class Golden:
    """The beats that `o` must give, the tables behind them, and the coverage bins that the keys reach.

    reads : clusters that the unit reads, those of its context for each batch
    """

    p: HcuParams
    th_hd: int
    out: list[dict] = field(default_factory=list)
    tables: dict[int, Clusterer] = field(default_factory=dict)
    bins: set[str] = field(default_factory=set)
    reads: int = 0

    def play(self, beats: list[dict]) -> Self:
        f = ReSVParams(n_hp=self.p.n_hp, th_hd=self.th_hd, max_clusters=self.p.clusters)
        for batch, why in batches(self.p, beats):
            op, ctx = batch[0]["op"], batch[0]["ctx"]
            table = self.tables.setdefault(ctx, Clusterer(f))
            old = len(table)
            self.bins.add(f"ends_by_{why}")
            if op in (CLEAR, SWITCH):
                self.bins.add({CLEAR: "clear", SWITCH: "switch"}[op] + ("" if old else "_empty"))
                self.out.append(batch[0] | {"hash": 0, "clusters": old, "is_new": 0, "full_join": 0})
                if op == CLEAR:
                    self.tables[ctx] = Clusterer(f)
                continue
            tiles = -(-old // self.p.tile)
            first = max(0, tiles - 1) * self.p.tile if op == NEWEST else 0
            self.reads += old - first
            self.bins |= {f"newest_tiles_{min(tiles, 4)}"} if op == NEWEST else set()
            self.bins.add(f"tiles_{min(tiles, 4)}")
            self.bins |= {"alone", f"alone_tiles_{min(tiles, 4)}"} if len(batch) == 1 else set()
            for b in batch:
                every = _distances(table, b["hash"])
                near = every[first:]
                j = table.add(b["hash"], first=first)
                self.bins |= {"newest_misses_a_nearer_one"} if min(every, default=0) < min(near, default=0) else set()
                self._cover(near, old, j, tiles, len(table))
                mine = {"cluster": j.cluster, "clusters": len(table), "is_new": j.is_new, "full_join": j.full_join}
                self.out.append(b | {"op": JOIN, "hash": 0} | {k: int(v) for k, v in mine.items()})
        return self

    def _cover(self, near: list[int], old: int, j: Joined, tiles: int, now: int) -> None:
        p, th, reach = self.p, self.th_hd, set()
        least = min(near, default=p.n_hp)
        reach.add("new" if j.is_new else "full_join" if j.full_join else "join")
        reach |= {"contexts"} if sum(len(t) > 0 for t in self.tables.values()) > 1 else set()
        reach |= {"tie"} if near.count(least) > 1 and least < th else set()
        reach |= {"zero_distance"} if near and least == 0 else set()
        reach |= {"all_bits_differ"} if near and max(near) == p.n_hp > 1 else set()
        reach |= {"just_below"} if near and least == th - 1 else set()
        reach |= {"just_not_below"} if near and least == th else set()
        if not j.is_new:
            before = "of_the_last_tile" if j.cluster >= (tiles - 1) * p.tile else "of_a_tile_before"
            reach.add(f"joins_{'of_this_batch' if j.cluster >= old else before}")
            reach |= {"tie_over_tiles"} if near.count(least) > 1 and j.cluster // p.tile < now // p.tile else set()
            reach |= {"full_in_its_batch"} if old < p.clusters == now and j.full_join else set()
            reach |= {"full_joins_of_this_batch"} if j.full_join and j.cluster >= old else set()
        elif old and j.cluster % p.tile == 0:
            reach.add("opens_behind_whole_tile" if j.cluster == old else "opens_over_end_of_tile")
        self.bins |= reach

    @property
    def items(self) -> dict[tuple[Item, int, int], int]:
        """LEVEL and HASH of all contexts."""
        return {
            (item, ctx, index): bits
            for ctx, table in self.tables.items()
            for (item, index), bits in cluster_items(table).items()
        }


def _hashes(table: Clusterer) -> list[int]:
    return [sum(int(w) << 64 * i for i, w in enumerate(row)) for row in table.hashes]


def _distances(table: Clusterer, key_hash: int) -> list[int]:
    """Bits in which a key's hash differs from that of each cluster."""
    words = [key_hash >> 64 * i & (1 << 64) - 1 for i in range(table.hashes.shape[1])]
    return np.bitwise_count(table.hashes ^ np.array(words, np.uint64)).sum(axis=1).tolist()


def golden(p: HcuParams, th_hd: int, beats: list[dict]) -> Golden:
    """What the HCU must make of beats."""
    return Golden(p, th_hd).play(beats)


def run(e, p, beats, th_hd, idle=0.0, stall=0.0, seed=1, waves=True, latency=8, late=0, reset_at=0, items=()) -> dict:
    """Play beats. `idle` stalls `i`, `stall` the other streams; `items` are in memory before."""
    c = {"params": asdict(p), "beats": beats, "th_hd": th_hd, "idle": idle, "stall": stall, "reset_at": reset_at}
    c |= {"port_stall": stall, "latency": latency, "late": late, "items": list(items)}
    limit = max(40_000, (400 + 8 * latency + 8 * late) * len(beats))
    got = Run(e, "bench_hcu", "keys", c | {"limit": limit}, seed, waves)()
    for b in got["beats"]:
        if b["op"]:
            del b["cluster"]
    got["items"] = {(Item(item), ctx, index): bits for item, ctx, index, bits in got["items"]}
    return got


def wrong(got: dict, want: Golden) -> str:
    """Why a run is not golden's: its beats, the content of its memory, its writes and reads. Empty if it is."""
    expected = [{k: v for k, v in b.items() if k != "hash"} for b in want.out]
    for i, (a, b) in enumerate(zip(got["beats"], expected, strict=True)):
        if a != b:
            return f"beat {i}: {a} instead of {b}"
    for key, bits in want.items.items():
        if got["items"].get(key, 0) != bits:
            return f"item {key}: {got['items'].get(key)} instead of {bits}"
    # What each beat writes, and that it leaves afterwards.
    puts, cycles = iter(got["puts"]), got["cycles"][-len(expected) :]
    for b, cycle in zip(expected, cycles, strict=True):
        news = [Item.HASH, Item.LEVEL] if b["is_new"] else [Item.LEVEL] if b["op"] == CLEAR else []
        for item in news:
            at, *put = next(puts)
            if put[:2] != [item, b["ctx"]] or at >= cycle:
                return f"a put of {Item(put[0]).name} in cycle {at} in front of {b} in cycle {cycle}"
    if rest := list(puts):
        return f"puts that no beat explains: {rest[:3]}"
    return "" if got["read"] == want.reads else f"{got['read']} clusters read instead of {want.reads}"


def counters(want: Golden, time) -> dict[str, int]:
    """Values that the counters must have."""
    keys = [b for b in want.out if b["op"] == JOIN]
    sums = {n: sum(b[k] for b in keys) for n, k in (("opened", "is_new"), ("full_joins", "full_join"))}
    return {"tokens": len(keys), "compares": sum(time.compares), **sums}


def timed(p: HcuParams, th_hd: int, beats: list[dict], latency: int):
    """The time view's run of beats."""
    return HcuTime(p, th_hd).beats([(b["op"], b["ctx"], b["hash"], b["last"]) for b in beats], latency)


def emitted(p: HcuParams):
    return emit("hcu", p)


@dataclass
class RandomTraffic(StressTraffic):
    """Keys around a few centres, with commands, over a few contexts."""

    PARTS = "beats"

    p: HcuParams
    seed: int
    th_hd: int
    commands: float
    idle: float
    stall: float
    latency: int
    late: int

    def __post_init__(self):
        self.beats = stream(self.p, self.seed, 2000, 4, self.commands)

    @classmethod
    def random(cls, rng: Random) -> Self:
        p, seed = SIZES[rng.choice(list(SIZES))], rng.getrandbits(31)
        stalls = rng.choice((0.0, 0.01, 0.1)), stall_rate(rng), stall_rate(rng)
        return cls(p, seed, rng.randint(0, p.n_hp + 1), *stalls, rng.choice(LATENCIES), rng.choice((0, 3, 20)))

    def play(self) -> Any:
        how = {"latency": self.latency, "late": self.late}
        return run(emitted(self.p), self.p, self.beats, self.th_hd, self.idle, self.stall, self.seed, **how)

    def check(self, got: Any) -> int:
        assert not (why := wrong(got, golden(self.p, self.th_hd, self.beats))), why
        return len(self.beats)


def check_equals_golden_and_time_view(size):
    p = SIZES[size]
    e = emitted(p)
    th_hd = max(1, p.n_hp // 4)
    for seed, (idle, stall) in enumerate(STALLS[1:], 1):
        alone = {"op": SWITCH, "ctx": 0, "token": 0, "hash": 0, "last": 0}  # a command ends its batch by itself
        beats = [*stream(p, seed, 240, 4, 0.04), alone]
        got = run(e, p, beats, th_hd, idle, stall, seed, late=6 * seed)
        assert not (why := wrong(got, golden(p, th_hd, beats))), f"seed {seed}: {why}"
    for latency, contexts in zip(LATENCIES, (1, 3, 1), strict=True):
        check_cycles(e, p, stream(p, latency, 240, contexts, 0.03 * (contexts > 1)), th_hd, latency)


def check_cycles(e, p, beats, th_hd, latency) -> dict:
    """A run without stalls, by golden and the time view."""
    got, want = run(e, p, beats, th_hd, latency=latency), golden(p, th_hd, beats)
    time = timed(p, th_hd, beats, latency)
    assert not (why := wrong(got, want)), why
    assert [c - got["first"] for c in got["cycles"]] == time.out
    assert got["perf"] == counters(want, time)
    return got


def check_thresholds_to_their_ends(th_hd):
    """At a threshold of 0, 36 keys join a full table: bit 5 of their counter counts."""
    check_cycles(emitted(TINY), TINY, stream(TINY, 9, 88 + th_hd, 2, 0.02), th_hd, 8)


def check_words_hold_while_a_key_waits():
    """A comparison that waits for the output keeps its words.

    With tables of one cluster, every chunk of its word decides a key.
    """
    rng, half = random.Random(1), TINY.n_hp // 2

    def chunk(weight: int) -> int:
        return sum(1 << i for i in rng.sample(range(half), weight))

    for th_hd in (1, 4):
        beats = []
        for _ in range(150):
            old = chunk(rng.randint(0, half)) << half | rng.getrandbits(half)
            new = old ^ sum(1 << i for i in rng.sample(range(TINY.n_hp), th_hd - rng.getrandbits(1)))
            if rng.random() < 0.5:  # near in the first chunk, far in those of the second
                new = chunk(rng.randint(0, half)) << half | (new if th_hd == 1 else old) % (1 << half)
            beats.append({"op": CLEAR, "ctx": 0, "token": 0, "hash": 0, "last": 0})
            beats += [{"op": JOIN, "ctx": 0, "token": 0, "hash": key, "last": int(key is new)} for key in (old, new)]
        for stall in (0.5, 0.8):
            got, want = run(emitted(TINY), TINY, beats, th_hd, 0.0, stall), golden(TINY, th_hd, beats)
            assert not (why := wrong(got, want)), why
            assert got["perf"] == counters(want, timed(TINY, th_hd, beats, 8))


def check_reset_in_flight(reset_at, size="tiny"):
    p = SIZES[size]
    beats = stream(p, reset_at, 60, contexts=3)
    got, want = run(emitted(p), p, beats, 4, 0.2, 0.2, reset_at, reset_at=reset_at), golden(p, 4, beats)
    assert got["read"] >= want.reads  # and those before the reset
    assert not (why := wrong(got | {"read": want.reads}, want)), why


def _tables(p: HcuParams, th_hd: int, sizes: dict[int, int], seed: int) -> Golden:
    """Tables of a host: `sizes` are the clusters of contexts, at most."""
    rng, out = random.Random(seed), Golden(p, th_hd)
    for ctx, size in sizes.items():
        out.tables[ctx] = Clusterer(ReSVParams(n_hp=p.n_hp, th_hd=th_hd, max_clusters=p.clusters))
        out.tables[ctx].add_frame([rng.getrandbits(p.n_hp) for _ in range(size)])
    return out


def check_many_contexts_of_a_host():
    """Tables of 40 contexts, over 30 times what is on chip, which a host wrote to memory."""
    beats = stream(TINY, 4, 400, 40, 0.02)
    rng = random.Random(5)
    want = _tables(TINY, 4, {b["ctx"]: rng.randint(0, 2 * TINY.clusters) for b in beats}, 3)
    held = sum(len(table) for table in want.tables.values())
    items = [(*key, bits) for key, bits in want.items.items()]
    got = run(emitted(TINY), TINY, beats, 4, items=items)
    assert not (why := wrong(got, want.play(beats))), why
    assert held > 30 * 2 * TINY.tile
    assert want.bins >= {"tiles_4", "full_join", "new", "ends_by_context"}, want.bins


def check_tables_of_the_core():
    """A key alone and a frame in a table of 1,000 clusters at `core`: a comparison a cycle while tiles stream in."""
    p, th_hd, latency = preset("core").core.dre.hcu, 7, 60
    want, ctx = _tables(p, th_hd, {p.n_ctx - 1: 1000}, 1), p.n_ctx - 1
    rng = random.Random(2)
    near = [int(rng.choice(_hashes(want.tables[ctx]))) ^ 1 << rng.randrange(p.n_hp) for _ in range(20)]
    keys = [rng.getrandbits(p.n_hp), *near, *(rng.getrandbits(p.n_hp) for _ in range(20))]
    beats = [{"op": JOIN, "ctx": ctx, "token": k, "hash": key, "last": k < 2} for k, key in enumerate(keys)]
    beats[-1]["last"] = True
    items = [(*key, bits) for key, bits in want.items.items()]
    view = HcuTime(p, th_hd)
    view.tables[ctx] = np.array([view.words(key_hash) for key_hash in _hashes(want.tables[ctx])])
    time = view.beats([(b["op"], ctx, b["hash"], b["last"]) for b in beats], latency)
    got = run(emitted(p), p, beats, th_hd, latency=latency, items=items)
    assert not (why := wrong(got, want.play(beats))), why
    assert [c - got["first"] for c in got["cycles"]] == time.out
    tiles = -(-len(_hashes(want.tables[ctx])) // p.tile)
    assert time.out[0] == 2 * latency + p.n_h + 3 + time.compares[0] + tiles + 2 * got["beats"][0]["is_new"]
    # The frame, of which a batch takes 32: its visits, an idle cycle for each new cluster, two waits for memory.
    batches = time.out[-1] - time.out[1], sum(time.compares[2:]) + tiles * len(time.compares[2:])
    assert batches[1] <= batches[0] <= batches[1] + 2 * (2 * latency + 6) + sum(b["is_new"] for b in got["beats"]) + 2
    assert got["perf"] == counters(want, time)


def check_newest_clusters_of_a_million():
    """Keys of op NEWEST in a table of a million clusters take as long as in one of a tile: they read no other."""
    p = replace(preset("core").core.dre.hcu, newest=True, clusters=1 << 20)
    level, pages = (1 << 20) - 70, 3
    table = Clusterer(ReSVParams(n_hp=p.n_hp, th_hd=1, max_clusters=p.clusters))
    table.load(np.arange(level, dtype=np.uint64)[:, None], np.ones(level, np.int64))
    first = (level - 1) // p.tile * p.tile
    items = [(Item.LEVEL, 0, 0, level)] + [(Item.HASH, 0, k, k) for k in range(first, level)]
    numbers = [level - 1 + k // 4 for k in range(4 * pages)]  # some of the newest page, then new ones
    beats = [{"op": NEWEST, "ctx": 0, "token": k, "hash": n, "last": 0} for k, n in enumerate(numbers)]
    beats[-1]["last"] = 1
    want = Golden(p, 1, tables={0: table}).play(beats)
    view = HcuTime(p, 1)
    view.tables[0] = view.words(np.arange(level)).T
    time = view.beats([(b["op"], 0, b["hash"], b["last"]) for b in beats], 60)
    got = run(emitted(p), p, beats, 1, latency=60, items=items)
    assert [b["cluster"] for b in want.out] == numbers
    assert [c - got["first"] for c in got["cycles"]] == time.out
    assert got["read"] == want.reads == level - first <= p.tile
    assert [{k: v for k, v in b.items() if k != "hash"} for b in want.out] == got["beats"]
    assert got["perf"] == counters(want, time)
