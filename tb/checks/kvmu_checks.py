"""Checks of the KVMU, shared by tests, mutants, coverage and stress: every beat and every write against golden."""

import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any, Self

from openvrex.golden.retrieval.kvmap import KvMap, Move, Range
from openvrex.golden.retrieval.map_items import context_items, pool_items
from openvrex.golden.retrieval.table_layout import SHARED, Item, TableLayout
from openvrex.hdl.params import KvmuParams, preset
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, CLEAR, SWITCH
from openvrex.sim.units.kvmu_time import KvmuTime
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").core.dre.kvmu
RAGGED = KvmuParams(
    **{"n_ctx": 3, "clusters": 7, "count_bits": 3, "blocks": 19, "block_slots": 3, "recent": 5, "entry_bytes": 24},
    **{"boundary": 64, "addr_bits": 14, "token_bits": 9, "rows": 2},
    **{"counts": 4, "count_lanes": 1, "read_counts": 2},
)
ONE = KvmuParams(*(1,) * 7, boundary=1, addr_bits=3, token_bits=1, rows=1, counts=1, count_lanes=1, read_counts=1)
SIZES = {
    "tiny": TINY,
    "ragged": RAGGED,
    "runs": replace(RAGGED, n_ctx=1, clusters=3, blocks=40, block_slots=2, recent=2, boundary=1 << 16, rows=4),
    "one": ONE,
    "protected": replace(RAGGED, protect="secded"),
    "packed": replace(RAGGED, entry_bytes=96, kv4_group=16),  # homes of 24 bytes
    "kept-large": replace(RAGGED, clusters=9, blocks=40, block_slots=4, entry_bytes=32, kept=2),
    "kept-packed": replace(TINY, protect="secded", entry_bytes=128, block_slots=2, kv4_group=16, kept=4),
    "two-slots": replace(RAGGED, clusters=9, blocks=40, block_slots=2, entry_bytes=16),
    "kept-one": replace(ONE, kept=2),
    "kept": replace(RAGGED, clusters=9, blocks=40, block_slots=2, entry_bytes=16, kept=4),
    "kept-shared": replace(RAGGED, clusters=9, blocks=40, block_slots=2, entry_bytes=16, kept=4, shared=True),
    "shared-one": replace(ONE, shared=True),
    "kept-all": replace(TINY, entry_bytes=512, kept=TINY.clusters),
    "one-slot": replace(RAGGED, shared=True, block_slots=1, recent=1, entry_bytes=40, count_lanes=2, read_counts=4),
}
ALL = (*"afwxcb", "ask", "put")  # streams that a pattern may stall
STALLS = [
    *(dict.fromkeys(ALL, 0.4), {"b": 0.85, "c": 0.9}, {"x": 0.8, "w": 0.3, "c": 0.6}, {}),
    *({"a": 0.7, "b": 0.5}, {"ask": 0.8, "f": 0.3}, {"put": 0.8}),
]
BINS = {
    *("full", "full_opens", "clear_empty", "clear_used", "clear_groups", "opens", "fresh_block", "freed_block"),
    *("quota", "quota_opens", "quota_after_clear", "wipes", "wipes_chain"),
    *("next_freed_block", "next_block", "offload_of_same_cluster", "count_saturates"),
    *(
        "switch_empty",
        "switch_keeps",
        "switch_rolls",
        "switch_waits_for_words",
        "rounds",
        "part_word",
        "roll_beside_append",
    ),
    *("join_block", "join_cluster", "split", "empty_set", "resident_set", "closing_empty_beat", "part_block"),
    *("unknown_cluster", "append_within_cluster", "append_meanwhile", "row_changes_before_it_is_read"),
    *("fetch_behind_clear", "opened_while_read", "other_context", "context_again"),
    *("near", "keeps", "too_many_to_keep", "two_of_a_place", "place_taken", "clear_between_keeps"),
}


@cache
def emitted(p: KvmuParams):
    return emit("kvmu", p)


def layout(p: KvmuParams) -> TableLayout:
    """The KVMU's part of the tables."""
    sizes = p.clusters, p.recent, p.count_bits, p.blocks, p.block_slots
    return TableLayout(1, *sizes, beat=4096, shared=p.shared)


def bases(p: KvmuParams, seed: int = 0) -> tuple[int, int]:
    """Random device and home bases; without a seed the blocks end where the address space ends."""
    rng, home = random.Random(seed), (1 << p.addr_bits) - p.blocks * p.block_bytes
    device = (1 << p.addr_bits) - p.n_ctx * p.recent * p.entry_bytes
    if p.kept:
        first = 1 + p.n_ctx * p.map_sizes().kept_bytes
        return (rng.randint(first, device), rng.randint(0, home)) if seed else (first, home)
    return (rng.randint(0, device), min(home, rng.randint(0, home) | 7)) if seed else (1, home)


def traffic(
    p: KvmuParams, seed: int, n: int, clear: float = 0.02, switch: float = 0.04, sets: int = 0
) -> tuple[list[dict], list[dict]]:
    """Beats of `a` (clusters that open in order and grow in streaks) and of `f` (random sets, n / 8 by default)."""
    rng = random.Random(seed)
    a, f = [], []
    ctx, level = 0, defaultdict(int)
    contexts = [rng.randrange(p.n_ctx) for _ in range(4)]
    streak = dict.fromkeys(range(p.n_ctx), 0)
    for i in range(n):
        if rng.random() < 0.6:
            ctx = rng.choice(contexts)
        kind = rng.random()
        op = CLEAR if kind < clear else SWITCH if kind < clear + switch else APPEND
        beat = {"op": op, "ctx": ctx, "token": i % (1 << p.token_bits), "cluster": 0, "is_new": 0}
        if op == APPEND:
            if rng.random() < 0.5:
                streak[ctx] = rng.randrange(min(level[ctx] + 1, p.clusters))
            beat["cluster"] = min(streak[ctx], level[ctx])
            beat["is_new"] = int(beat["cluster"] == level[ctx])
            level[ctx] += beat["is_new"]
        a.append({**beat, "clusters": level[ctx]})
        if op == CLEAR:
            level[ctx] = 0
    for _ in range(sets or n // 8):
        ctx = rng.choice(contexts)
        share = rng.choice([0.0, 0.3, 0.7, 1.0])
        chosen = [k for k in range(p.clusters) if rng.random() < share]
        beats = [{"ctx": ctx, "cluster": k, "last": 0, "empty": 0} for k in chosen]
        if not beats or rng.random() < 0.1:
            beats.append({"ctx": ctx, "cluster": 0, "last": 0, "empty": 1})
        beats[-1]["last"] = 1
        f += beats
    return a, f


def switches(p: KvmuParams) -> dict:
    """SWITCHes to a context of all clusters while the ring is seldom free."""
    beat = {"ctx": 0, "cluster": 0, "is_new": 0, "clusters": p.clusters, "token": 0}
    a = [{**beat, "op": APPEND, "cluster": k, "is_new": 1, "clusters": k + 1} for k in range(p.clusters)]
    a += [{**beat, "op": APPEND, "cluster": k} for k in range(p.clusters) for _ in range(k % 3)]  # the counts differ
    return episode(p, a + [{**beat, "op": SWITCH}] * 3, [], [{"c": 0.95}], latency=1, uses=0.9)


def golden_map(p: KvmuParams, e: dict) -> KvMap:
    """A golden map for an episode."""
    return KvMap(p.map_sizes(e["blocks"]), *e["bases"], e["quota"])


@dataclass
class Replay:
    """Golden map and counts, beside the beats that the unit should give, in the order of its requests to the tables.

    counts : token counts of each context's clusters
    ctx, seen : the context of the last beat of `a`, all contexts so far
    memory : every COUNT in the tables
    places : the item of each place of kept blocks, by context and index, before this episode
    """

    p: KvmuParams
    kv: KvMap
    counts: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    bins: set[str] = field(default_factory=set)
    ctx: int = -1
    seen: set[int] = field(default_factory=set)
    memory: dict[tuple[int, int], int] = field(default_factory=dict)
    places: dict[tuple[int, int], int] = field(default_factory=dict)

    def items(self, ctx: int) -> dict:
        """The items of a context and of the pool, by kind, context and index."""
        own = context_items(layout(self.p), self.kv, ctx, self.counts[ctx])
        own |= pool_items(layout(self.p), self.kv)
        return {(item, 0 if item in SHARED else ctx, index): v for (item, index), v in own.items()}

    def serve(self, beat: dict) -> tuple[dict, dict, list[dict]]:
        """The reply to a beat of `a`, the writes that it makes, its moves."""
        ctx, cluster, op, kv = beat["ctx"], beat["cluster"], beat["op"], self.kv
        before = self.items(ctx)
        reply = {"op": op, "token": beat["token"], "full": 0, "device": 0, "home": 0}
        if op == SWITCH:
            return reply, {}, []
        if op == CLEAR:
            clusters = kv.contexts[ctx].clusters
            self.bins.add("clear_used" if clusters else "clear_empty")
            self.bins |= {"clear_groups"} if beat["clusters"] > self.p.rows else set()
            gone = {(Item.ROW, ctx, k): 0 for k in clusters}
            wipes = [self._move(block) for block in kv.clear(ctx)]
            self.bins |= {"wipes"} if wipes else set()
            self.bins |= {"wipes_chain"} if len(wipes) > len(gone) else set()
            self.counts[ctx] = []
            after = self.items(ctx)
            changed = {k: v for k, v in after.items() if before.get(k) != v}
            pool = {k: after[k] for k in ((Item.PLACE, ctx, 0), (Item.POOL, 0, 0))}
            return reply, gone | changed | pool, wipes
        c = kv.contexts[ctx]
        slot, opens = c.n % self.p.recent, cluster not in c.clusters
        self._append_bins(beat)
        placed = kv.append(ctx, cluster)
        counts, top = self.counts[ctx], (1 << self.p.count_bits) - 1
        assert beat["is_new"] == (cluster == len(counts))
        counts += [0] * beat["is_new"]
        self.bins |= {"count_saturates"} if counts[cluster] == top else set()
        counts[cluster] = min(counts[cluster] + 1, top)
        after = self.items(ctx)
        writes = {k: v for k, v in after.items() if before.get(k) != v}
        keys = [(Item.COUNT, ctx, cluster)]
        keys += [(Item.RING, ctx, slot), (Item.PLACE, ctx, 0)] if placed.ok else []
        if placed.ok and opens and self.p.kept:
            keys.append((Item.RING, ctx, kept_index(self.p, cluster)))
            self.bins |= {"place_taken"} if before.get(keys[-1], 0) else set()
        writes |= {k: after[k] for k in keys}
        if not placed.ok:
            writes.pop((Item.ROW, ctx, cluster), None)  # of a new cluster: the row is zero
        reply |= {"full": int(not placed.ok), "device": placed.device, "home": placed.home}
        return reply, writes, [self._move(placed.move)] if placed.move else []

    def _move(self, move: Move) -> dict:
        """A beat of `x`."""
        return move._asdict() | ({"wipes": int(move.wipes)} if self.p.shared else {})

    def see(self, beat: dict) -> None:
        """Note the bins of a change of contexts."""
        ctx = beat["ctx"]
        if ctx != self.ctx:
            self.bins.add("context_again" if ctx in self.seen else "other_context")
        self.seen.add(ctx)
        self.ctx = ctx

    def _append_bins(self, beat: dict) -> None:
        """Bins that an append is about to reach."""
        kv, bins = self.kv, self.bins
        c = kv.contexts[beat["ctx"]]
        k = c.clusters.get(beat["cluster"])
        refused = False
        if k is None or len(k.entries) % kv.block_slots == 0:
            spent = 0 < kv.quota <= kv.held(beat["ctx"])
            why = "quota" if spent and kv.free else "full"
            refused = spent or not kv.free
            bins.add(why if refused else "fresh_block" if kv.fresh < kv.blocks else "freed_block")
            bins |= {f"{why}_opens"} if refused and beat["is_new"] else set()
            bins |= {"quota_after_clear"} if spent and kv.freed else set()
            bins |= {"next_freed_block"} if not refused and kv.fresh == kv.blocks and len(kv.freed) > 1 else set()
        bins |= {"opens"} if k is None else set()
        if c.n >= kv.recent and not refused:
            bins |= {"offload_of_same_cluster"} if c.ring[0] == beat["cluster"] else set()
            n = c.clusters[c.ring[0]].offloaded
            bins |= {"next_block"} if n and n % kv.block_slots == 0 else set()


def check(p: KvmuParams, e: dict, got: dict, replay: Replay | None = None) -> Replay:
    """Compare all outputs, every write and the tables at the end with golden; the replay with the bins hit.

    The events of golden are in the order in which the tables see them. `replay` holds what earlier episodes left.
    """
    a = e["a"]
    r = replay or Replay(p, golden_map(p, e))
    assert len(got["a"]) == len(got["w"]) == len(a)
    assert len(got["f"]) == len(e["f"])
    events = [*_changes(e, got), *_reads(e, got)]
    of_a = [put for put in got["puts"] if not notes(p, put)]
    noted = [put for put in got["puts"] if notes(p, put)]
    events += [(put[0], NOTE, k) for k, put in enumerate(noted)]
    fetch, moves = _Fetches(r, e, got), []
    check_words(r, e, got)
    for cycle, kind, i in sorted(events):
        if kind == READ:
            fetch.read(i, cycle)
            continue
        if kind == NOTE:
            _, _, ctx, index, tag = noted[i]
            place = index - p.recent
            r.kv.keep(ctx, [(tag - 1) * p.kept + place])
            continue
        beat = a[i]
        r.see(beat)
        reply, writes, moved = r.serve(beat)
        assert got["w"][i][1] == reply
        start, end = got["a"][i], got["w"][i][0]
        if beat["op"] == CLEAR:
            assert not any(start < c <= end for c in got["f"]), "a fetch begins beside a CLEAR"
            r.bins |= {"fetch_behind_clear"} if end + 1 in got["f"] else set()
        lies = slice(*(bisect_right(of_a, c, key=lambda put: put[0]) for c in (start, end)))
        puts = [((Item(k), ctx, index), v) for _, k, ctx, index, v in of_a[lies]]
        assert len(puts) == len(writes), "each change is written once"
        assert dict(puts) == writes
        for move in moved:
            at, x = got["x"][len(moves)]
            assert x == move
            assert start < at < end, "the move comes before the reply"
            wipes = beat["op"] == CLEAR
            until = (max if wipes else min)(c for c, *_ in of_a[lies])
            assert at < until, (
                "the block is wiped before it is free" if wipes else "the move comes before a fetch sees it"
            )
            moves.append(move)
    assert len(got["x"]) == len(moves)
    fetch.end()
    r.places |= {(ctx, index): v for _, k, ctx, index, v in got["puts"] if k == Item.RING and index >= p.recent}
    _check_tables(r, got["items"])
    full = sum(v["full"] for _, v in got["w"])
    slots = sum(v["bytes"] for _, v in got["b"]) // p.home_bytes
    placed = sum(beat["op"] == APPEND for beat in a) - full
    bursts = sum(not v["empty"] for _, v in got["b"])
    perf = {
        "appends": placed,
        "full": full,
        "offloads": sum(not move.get("wipes") for move in moves),
        "fetched": slots,
        "bursts": bursts,
    }
    assert got["perf"] == perf
    return r


def check_words(r: Replay, e: dict, got: dict) -> None:
    """The words of counts are those that each SWITCH wants, as memory held them when they were asked for."""
    p, bins, words = r.p, r.bins, []
    puts = [put for put in got["puts"] if put[1] == Item.COUNT]
    asks = bulk_asks(e, got)
    switches = [(beat, got["w"][i][0], got["a"][i]) for i, beat in enumerate(e["a"]) if beat["op"] == SWITCH]
    served = _Served(e, got)
    fills = [_fill(p, beat["clusters"]) for beat, *_ in switches]
    starts = [
        sum(ask[0] < reply for ask in asks) - len(fill) for fill, (_, reply, _) in zip(fills, switches, strict=True)
    ]
    assert not asks[: starts[0]] if starts else not asks
    for n, (fill, (beat, reply, taken)) in enumerate(zip(fills, switches, strict=True)):
        mine = asks[starts[n] : starts[n + 1] if n + 1 < len(starts) else None]
        size, ctx = beat["clusters"], beat["ctx"]
        keep, at = size <= p.counts, 0
        bins.add("switch_empty" if not size else "switch_keeps" if keep else "switch_rolls")
        bins |= {"switch_waits_for_words"} if n and any(taken < c < mine[0][0] for c, _ in got["c"] if mine) else set()
        assert [c for c, *_ in mine][: len(fill)] == [c for c, *_ in mine if c < reply], "the ring is full at the reply"
        assert not keep or len(mine) == len(fill), "counts that are kept come once"
        for k, ask in enumerate(mine):
            assert ask[1:] == (ctx, at, min(p.read_counts, size - at) - 1)
            while puts and puts[0][0] < ask[0]:
                _, _, *where, value = puts.pop(0)
                r.memory[tuple(where)] = value
            some = [r.memory[ctx, cluster] for cluster in range(at, at + ask[3] + 1)]
            lines = [some[j : j + p.count_lanes] for j in range(0, len(some), p.count_lanes)]
            bins |= {"part_word"} if len(lines[-1]) < p.count_lanes else set()
            bins |= {"rounds"} if k and at == 0 else set()
            beside = served.beat(ask[0])
            bins |= {"roll_beside_append"} if beside and beside["op"] == APPEND else set()
            lines[-1] += [0] * (p.count_lanes - len(lines[-1]))
            words += [{"counts": x, "first": int(k == j == 0), "keep": int(keep)} for j, x in enumerate(lines)]
            at = 0 if at + p.read_counts >= size else at + p.read_counts
    assert [word for _, word in got["c"]] == words
    r.memory |= {tuple(where): value for _, _, *where, value in puts}


def _fill(p: KvmuParams, size: int) -> list[int]:
    """Words of each read with which a SWITCH to `size` clusters fills the ring."""
    reads, at = [], 0
    while size and sum(reads) + p.read_words <= p.ring and not (reads and at == 0 and size <= p.counts):
        reads.append(-(-min(p.read_counts, size - at) // p.count_lanes))
        at = 0 if at + p.read_counts >= size else at + p.read_counts
    return reads


def bulk_asks(e: dict, got: dict) -> list[tuple[int, int, int, int]]:
    """Cycle, context, index and `more` of the reads for SWITCHes: no APPEND made them, behind its PLACE and its ROW."""
    places = [k for k, ask in enumerate(got["asks"]) if ask[1] == Item.PLACE]
    appends = [beat for beat in e["a"] if beat["op"] == APPEND]
    own = {k + 2 for k, beat in zip(places, appends, strict=True) if not beat["is_new"]}
    return [(c, *ask) for k, (c, item, *ask) in enumerate(got["asks"]) if item == Item.COUNT and k not in own]


READ, CHANGE, NOTE = 0, 1, 2  # of events in one cycle the read goes first


def _changes(e: dict, got: dict) -> list[tuple[int, int, int]]:
    """Cycle of each beat of `a` from which a fetch sees it: the last write of a row by an APPEND."""
    out, k = [], 0
    for i, beat in enumerate(e["a"]):
        start, end = got["a"][i], got["w"][i][0]
        cycle = start
        while k < len(got["puts"]) and got["puts"][k][0] <= end:
            if beat["op"] == APPEND and got["puts"][k][1] == Item.ROW:
                cycle = got["puts"][k][0]
            k += 1
        out.append((cycle, CHANGE, i))
    return out


def kept_index(p: KvmuParams, cluster: int) -> int:
    """Index of the item RING that says whether a cluster's first block is kept."""
    return p.recent + cluster % p.kept


def notes(p: KvmuParams, put: list) -> bool:
    """Whether a write notes that a block is kept; an APPEND that takes its place from a cluster writes 0."""
    return put[1] == Item.RING and put[3] >= p.recent and put[4] > 0


def _reads(e: dict, got: dict) -> list[tuple[int, int, int]]:
    """Cycle in which the row of each beat of `f` was asked for: with the next request behind the beat.

    Beats without a row come at once, but behind those before.
    """
    out, k = [], 0
    for i, beat in enumerate(e["f"]):
        cycle = got["f"][i]
        while not beat["empty"] and got["asks"][k][0] <= got["f"][i]:
            k += 1
        if not beat["empty"]:
            cycle, *ask = got["asks"][k]
            assert ask == [Item.ROW, beat["ctx"], beat["cluster"], 0]
        out.append((max(cycle, out[-1][0] if out else 0), READ, i))
    return out


class _Served:
    """The beats of `a` of an episode by cycle: each is served from the cycle in which it comes to that of its reply."""

    def __init__(self, e: dict, got: dict):
        self.beats, self.starts, self.ends = e["a"], got["a"], [reply[0] for reply in got["w"]]

    def beat(self, cycle: int) -> dict | None:
        """The beat that came before `cycle` and is answered behind it; one at most is served at a time."""
        k = bisect_left(self.starts, cycle) - 1
        return self.beats[k] if k >= 0 and cycle < self.ends[k] else None


@dataclass
class _Fetches:
    """The sets of an episode, and the bursts that they should give.

    ranges : of the beats of the current set, which begins with beat `first`
    near : whether the place of each has its first block · kept : contexts and clusters whose places are noted
    """

    r: Replay
    e: dict
    got: dict
    ranges: list[list[Range]] = field(default_factory=list)
    bursts: list[dict] = field(default_factory=list)
    first: int = 0
    near: list[bool] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self):
        self.served = _Served(self.e, self.got)
        # Cycles by item, context and index, or by item and index.
        self.asked: defaultdict[tuple, list[int]] = defaultdict(list)
        self.put: defaultdict[tuple, list[tuple[int, int]]] = defaultdict(list)
        for c, item, ctx, index, *_ in self.got["asks"]:
            self.asked[item, ctx, index].append(c)
            self.asked[item, index].append(c)
        for c, item, ctx, index, value in self.got["puts"]:
            self.put[item, ctx, index].append((c, value))

    def read(self, i: int, cycle: int) -> None:
        """The tables are asked for the row of beat i of `f`."""
        r, beat = self.r, self.e["f"][i]
        self.ranges.append([] if beat["empty"] else r.kv.ranges(beat["ctx"], beat["cluster"]))
        self.near.append(r.p.kept > 0 and not beat["empty"] and self._near(i))
        r.bins |= self._read_bins(i, cycle)
        if beat["last"]:
            ctx, beats = beat["ctx"], self.e["f"][self.first : i + 1]
            wanted = [(b["cluster"], ranges) for b, ranges in zip(beats, self.ranges, strict=True)]
            want, keeps = r.kv.listed(ctx, wanted, self.near)
            self.kept += [(ctx, k) for k in keeps]
            r.bins |= self._kept_bins(want, keeps)
            self.near = []
            self.bursts += [s.beat(r.p.kept > 0) | {"ctx": ctx, "last": int(s is want[-1]), "empty": 0} for s in want]
            if not want:
                self.bursts.append({"ctx": ctx, "bytes": 0, "last": 1, "empty": 1})
                r.bins.add("empty_set" if self.e["f"][self.first]["empty"] else "resident_set")
            r.bins |= _layout_bins(r.p, [rs for rs in self.ranges if rs], want)
            self.ranges, self.first = [], i + 1

    def end(self) -> None:
        """All bursts have come, and no others."""
        got = self.got["b"]
        assert [{k: v[k] for k in want} for (_, v), want in zip(got, self.bursts, strict=False)] == self.bursts
        assert len(got) == len(self.bursts)
        assert not self.ranges
        p = self.r.p
        written = [(ctx, index, v) for c, k, ctx, index, v in self.got["puts"] if notes(p, [c, k, ctx, index, v])]
        assert written == [(ctx, kept_index(p, k), 1 + k // p.kept) for ctx, k in self.kept]
        noted = [put[0] for put in self.got["puts"] if notes(p, put)]
        within = zip(self.e["f"], self.got["f"], self.got["f"][1:], strict=False)
        between = (not beat["last"] and any(a < c < b for c in noted) for beat, a, b in within)
        self.r.bins |= {"clear_between_keeps"} if any(between) else set()

    def _near(self, i: int) -> bool:
        """Whether the first block of beat i's cluster was kept when its place was asked for."""
        beat, p, got = self.e["f"][i], self.r.p, self.got
        place = Item.RING, beat["ctx"], kept_index(p, beat["cluster"])
        asked = max(c for c in self.asked[place] if c <= got["f"][i])
        values = [v for c, v in self.put[place] if c < asked]
        return (values or [self.r.places.get(place[1:], 0)])[-1] == 1 + beat["cluster"] // p.kept

    def _kept_bins(self, want: list, keeps: list[int]) -> set[str]:
        """Bins of kept blocks that a set reaches."""
        p, bins = self.r.p, set()
        if not p.kept:
            return bins
        firsts = [bool(rs) and rs[0].slots == p.block_slots for rs in self.ranges]
        whole, near = sum(firsts), sum(a and b for a, b in zip(firsts, self.near, strict=True))
        bins |= {"near"} if near else set()
        bins |= {"keeps"} if keeps else set()
        bins |= {"too_many_to_keep"} if whole - near > len(keeps) else set()
        bins |= {"two_of_a_place"} if len({k % p.kept for k in keeps}) < len(keeps) else set()
        return bins

    def _read_bins(self, i: int, cycle: int) -> set[str]:
        """Bins of one beat, whose row is asked for in `cycle`."""
        r, got, beat, ranges = self.r, self.got, self.e["f"][i], self.ranges[-1]
        bins = {"part_block"} if ranges and ranges[-1].slots < r.p.block_slots else set()
        if beat["empty"]:
            return bins | ({"closing_empty_beat"} if self.first < i else set())
        key = Item.ROW, beat["ctx"], beat["cluster"]
        if beat["cluster"] not in r.kv.contexts[beat["ctx"]].clusters:
            bins.add("unknown_cluster")
        changed = [c for c, _ in self.put[key] if got["f"][i] <= c < cycle]
        bins |= {"row_changes_before_it_is_read"} if changed else set()
        b = self.served.beat(cycle)
        if b and b["op"] == APPEND:
            bins.add("append_meanwhile")
            same = (b["ctx"], b["cluster"]) == (beat["ctx"], beat["cluster"])
            bins |= {"opened_while_read"} if same and b["is_new"] else set()
        if len(ranges) > 1:
            blocks = [x.block for x in ranges[:-1]]
            walked = sorted(c for block in set(blocks) for c in self.asked[Item.NEXT, block] if c > cycle)
            behind = bisect_right(got["a"], cycle)  # the next beat of `a`
            within = walked and behind < len(got["a"]) and got["a"][behind] < walked[len(blocks) - 1]
            bins |= {"append_within_cluster"} if within else set()
        return bins


def _check_tables(r: Replay, items: list) -> None:
    """The tables hold what golden says: every item that means something, and zero rows above the clusters."""
    memory = {(Item(k), ctx, index): v for k, ctx, index, v in items}
    for ctx in {*r.counts, *r.kv.contexts}:
        want = r.items(ctx)
        assert {k: memory.get(k, 0) for k in want} == want
        above = [v for (k, of, i), v in memory.items() if k == Item.ROW and of == ctx and i >= len(r.counts[ctx])]
        assert not any(above)
    assert {ctx for k, ctx, _ in memory if k not in SHARED} <= {*r.counts, *r.kv.contexts}


def _layout_bins(p: KvmuParams, ranges: list, bursts: list) -> set[str]:
    """Bins that a fetch has reached, from the ranges of each of its clusters."""

    def joins(r, s):
        return r.slots == p.block_slots and s.block == r.block + 1

    bins = {"join_block"} if any(joins(r, s) for rs in ranges for r, s in zip(rs, rs[1:], strict=False)) else set()
    pairs = zip(ranges, ranges[1:], strict=False)
    bins |= {"join_cluster"} if any(joins(r[-1], s[0]) for r, s in pairs) else set()
    split = any(s.addr + s.bytes == t.addr for s, t in zip(bursts, bursts[1:], strict=False))
    return bins | ({"split"} if split else set())


def episode(p: KvmuParams, a, f, stalls=({},), seed=0, latency=8, **more) -> dict:
    """Beats with what the bench needs to know, by default with sets all the time, zero tables and the largest pool."""
    before = [0, *accumulate(beat["last"] for beat in f)]
    after = [len(a) * done // max(1, before[-1]) for done in before[:-1]]
    e = {"a": a, "f": f, "after": after, "bases": bases(p, seed), "stalls": list(stalls), "latency": latency, "late": 0}
    return {**e, "blocks": p.blocks, "quota": 0, "block_b": False, "cut_at": 0, "keep": False, "uses": 0.0, **more}


def run(e, p: KvmuParams, episodes: list[dict], waves=True) -> list[dict]:
    c = {"params": asdict(p), "episodes": episodes}
    return Run(e, "bench_kvmu", "traffic", c, waves=waves)()["episodes"]


def cycles(p: KvmuParams, e: dict) -> dict:
    """Cycles of an unstalled run by the time view. No set may end in an extra empty beat."""
    sets, chosen = [], []
    for beat in e["f"]:
        chosen += [] if beat["empty"] else [beat["cluster"]]
        if beat["last"]:
            sets.append((beat["ctx"], chosen))
            chosen = []
    time = KvmuTime(p, golden_map(p, e))
    return asdict(time.run([(v["op"], v["ctx"], v["cluster"]) for v in e["a"]], sets, e["latency"]))


@cache
def results(size: str) -> list[tuple[dict, dict]]:
    """Episodes of one size with their results: every stall pattern, full rate after a cut, `b` blocked, two parts."""
    p = SIZES[size]
    some = max(1, p.blocks - 3)
    quota = {"quota": p.blocks // 3} if p.shared else {}
    blocked = episode(p, *traffic(p, 7, 150, clear=0), [{"a": 0.5}], block_b=True, seed=1)
    busy = episode(
        p,
        *traffic(p, 5, 250, clear=0.04, sets=120),
        [{"ask": 0.9}, {"ask": 0.9, "x": 0.9}],
        seed=4,
        uses=0.1,
        **quota,
    )
    cut = [episode(p, *traffic(p, n, 120), STALLS[:1], cut_at=n) for n in (1, 9, 60, 201)]
    full_rate = []
    for seed, latency in ((21, 1), (22, 7), (23, 30)):
        a, f = unstalled(p, seed, 200)
        full_rate.append(episode(p, a, f, seed=seed, latency=latency, after=[len(a)] * len(f), blocks=some, **quota))
    late = episode(p, *traffic(p, 8, 150), [dict.fromkeys((*"wxb", "ask", "put"), LATE)], seed=2, late=9, uses=0.5)
    churn = episode(
        p, *traffic(p, 9, 300, clear=0.08), [{"b": 0.5}, {}], seed=3, latency=2, blocks=some, uses=1.0, **quota
    )
    a, f = traffic(p, 1, 700)
    begun = episode(p, a[:350], f[: _ends(f)], STALLS, latency=3, late=5, uses=0.3)
    long = episode(p, a[350:], f[_ends(f) :], STALLS, latency=3, late=5, keep=True, uses=0.3)
    episodes = [
        switches(p),
        late,
        churn,
        busy,
        cut[0],
        full_rate[0],
        *cut[1:3],
        blocked,
        cut[3],
        *full_rate[1:],
        begun,
        long,
    ]
    return list(zip([e for e in episodes if not e["cut_at"]], run(emitted(p), p, episodes), strict=True))


def _ends(f: list[dict]) -> int:
    """Beats of about half of the sets."""
    ends = [i + 1 for i, beat in enumerate(f) if beat["last"]]
    return ends[len(ends) // 2]


@cache
def covered(size: str) -> frozenset[str]:
    """Compare every episode of one size; the bins hit."""
    bins, last = set(), None
    for e, got in results(size):
        last = check(SIZES[size], e, got, last if e["keep"] else None)
        bins |= last.bins
    return frozenset(bins)


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
    late = [(e, got) for e, got in results(size) if unstalled_sets(e)]
    assert len(late) == 3
    for e, got in late:
        check_cycles(SIZES[size], e, got)


def unstalled_sets(e: dict) -> bool:
    """Whether the time view knows the cycles of an episode: its sets come behind all beats of `a`."""
    return bool(e["after"]) and e["after"][0] == len(e["a"])


def check_cycles(p: KvmuParams, e: dict, got: dict) -> None:
    want = cycles(p, e)
    start = {"a": got["a"][0] - want["a"][0], "f": got["f"][0] - want["f"][0]}
    for name in "awxcfb":
        sent = got[name] if name in "af" else [c for c, _ in got[name]]
        first = start["f" if name in "fb" else "a"]
        assert [c - first for c in sent] == want[name], (name, e["latency"])


def check_append_never_waits_for_bursts(size):
    (got,) = (got for e, got in results(size) if e["block_b"])
    assert got["w"][-1][0] < got["b"][0][0]


@dataclass
class RandomTraffic(StressTraffic):
    """APPENDs, CLEARs, SWITCHes and fetches until blocks run out."""

    p: KvmuParams
    episode: dict

    @classmethod
    def random(cls, rng: Random) -> Self:
        p, seed = SIZES[rng.choice(list(SIZES))], rng.getrandbits(31)
        stalls = [{name: stall_rate(rng) for name in ALL} for _ in range(3)]
        tables = {"latency": rng.randint(1, 20), "late": rng.choice((0, 0, 5, 30)), "blocks": rng.randint(1, p.blocks)}
        tables["quota"] = rng.randint(0, p.blocks) if p.shared else 0
        tables["uses"] = rng.choice((0.0, 0.1, 1.0))
        return cls(p, episode(p, *traffic(p, seed, 3000, rng.choice((0.0, 0.02, 0.06))), stalls, **tables))

    def play(self) -> Any:
        return run(emitted(self.p), self.p, [self.episode])

    def check(self, got: Any) -> int:
        check(self.p, self.episode, got[0])
        return len(self.episode["a"]) + len(self.episode["f"])
