"""Plays a trace through golden ReSV and the RTL and compares them beat by beat: for `vrex verify` and the demo."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.retrieval.hashing import to_int
from openvrex.golden.retrieval.kvmap import KvMap
from openvrex.golden.retrieval.resv import ReSV
from openvrex.hdl.emit import Emitted, params_of
from openvrex.hdl.params import DpeParams, DreParams, SystemParams, VpeParams
from openvrex.sim.units.dpe_time import DpeTime
from openvrex.sim.units.hcu_time import HcuTime
from openvrex.sim.units.kvmu_time import KvmuTime
from openvrex.sim.units.wtu_time import Ring, WtuTime
from openvrex.tb.library.dpe_traffic import Traffic
from openvrex.tb.library.dre_scenario import HCU_BEAT, Scenario
from openvrex.tb.library.runner import Run
from openvrex.tb.library.vpe_traffic import Episode, shares

LATENCY = 20  # cycles of the tables in memory
ROUNDS = 8  # times that a trace is played at most


@dataclass
class Table:
    """What one HC table sees of a trace: hashes of all segments, and rows of the segments whose queries are used."""

    name: str  # "layer 3", or "layer 3 head 1" with scope "head"
    hashes: list[list[int]] = field(default_factory=list)  # of each segment, without sinks
    codes: list[np.ndarray | None] = field(default_factory=list)  # of each segment, [R, C]
    fetched: list[set[int]] = field(default_factory=list)  # tokens that golden ReSV fetches, for each query block


@dataclass
class Play:
    """A table in one context of the hardware, and the events that golden sees.

    name : the table's name, with "again" if another play has the same table
    """

    name: str
    table: Table
    ctx: int
    events: Counter[str] = field(default_factory=Counter)
    clusters: int = 0
    differences: list[str] = field(default_factory=list)
    _homes: dict[int, int] = field(default_factory=dict)  # token of each home address

    def label(self, segment: int | None = None) -> str:
        """Name of the play in messages."""
        return f"{self.name} (context {self.ctx})" + (f", segment {segment}" if segment is not None else "")

    def keys(self, s: Scenario, hashes: list[int], along: bool) -> None:
        """Add a segment's keys."""
        kv, seen = s.model.kv, {name: len(getattr(s, name)) for name in "twx"}
        freed = len(kv.freed)
        s.keys(self.ctx, hashes, along)
        t, w, x = ([b for b in getattr(s, name)[n:] if not b.get("op")] for name, n in seen.items())
        full_joins, opened = (sum(beat[name] for beat in t) for name in ("full_join", "is_new"))
        self.events += Counter(
            {
                "keys": len(t),
                "clusters opened": opened,
                "joins": len(t) - opened - full_joins,
                "joins of a full table": full_joins,
                "keys refused": sum(beat["full"] for beat in w),
                "offloads": len(x),
                "freed blocks used": freed - len(kv.freed),
            }
        )
        self._homes |= {beat["home"]: s.f.sinks + beat["token"] for beat in w if not beat["full"]}
        self.clusters = s.model.level(self.ctx)

    def rows(self, s: Scenario, codes: np.ndarray, block: int) -> None:
        """Add the rows of the table's query block number `block`. Its bursts must fetch exactly the tokens of golden
        ReSV.
        """
        s.switch(self.ctx)
        s.query(codes)
        q, p = s.queries[-1], s.p
        times = [WtuTime(p.wtu).row(row, q.counts, s.f.ratio_q16) for row in codes]
        pairs = itertools.pairwise(q.bursts)
        passes = [time.walked for time in times if p.wtu.selection == "buckets"]
        self.events += Counter(
            {
                "SWITCHes": 1,
                "rows": len(codes),
                "rows of several words": sum(time.words > 1 for time in times),
                "rows whose counts stream": len(codes) * (codes.shape[1] > p.wtu.counts),
                "rows that select a part": int(np.count_nonzero(q.rows.clusters < codes.shape[1])),
                "early exits": sum(n < p.wtu.n_buckets for n in passes),
                "tests of equal codes": sum(time.tests for time in times),
                "bursts": len(q.bursts),
                "bursts of several blocks": sum(burst.bytes > p.kvmu.block_bytes for burst in q.bursts),
                "bursts cut at the boundary": sum(a.addr + a.bytes == b.addr for a, b in pairs),
            }
        )
        if self.events["keys refused"]:
            return  # refused entries are not stored, so the bursts fetch fewer
        at, size = self._homes, p.kvmu.entry_bytes
        tokens = {at[a] for b in q.bursts for a in at if b.addr <= a < b.addr + b.bytes}
        tokens |= {at[a] for b in q.bursts for a in at if a < b.addr < a + size}  # entries that the boundary cuts
        want = self.table.fetched[block]
        if tokens != want:
            text = f"query block {block}: bursts fetch {len(tokens)} tokens, ReSV {len(want)}"
            self.differences.append(f"{self.label()}, {text}")


@dataclass(frozen=True)
class Outcome:
    """The result of one table of a trace on the RTL."""

    table: str
    keys: int
    clusters: int
    rows: int
    bursts: int
    refused: int  # keys without a free block: kvmu.blocks is too small for the trace
    beats: int  # compared bit by bit
    differences: list[str]
    cycles: int  # of the whole run in Verilator, which may have other tables, too
    context: int = 0
    events: dict[str, int] = field(default_factory=dict)  # how often each of `EVENTS` happened


@dataclass(frozen=True)
class Played:
    """One run of a unit on a scenario."""

    labels: list[str]  # labels of the beats that were compared bit by bit
    differences: list[str]  # each begins with a label where the beat is known
    cycles: int


# Events that the tables of a trace can cause in each unit, and what brings about those that are missing: options of
# `vrex verify`, or words.
EVENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "clusters opened": (("hcu", "dre"), "lower --th-hd"),
    "joins": (("hcu", "dre"), "raise --th-hd"),
    "joins of a full table": (("hcu", "dre"), "-p clusters={few_clusters}"),
    "CLEARs": (("hcu", "kvmu", "dre"), ""),
    "SWITCHes": (("hcu", "kvmu", "dre"), ""),
    "keys refused": (("kvmu", "dre"), "a longer --trace"),
    "freed blocks used": (("kvmu", "dre"), "a longer --trace"),
    "offloads": (("kvmu", "dre"), "-p recent=8"),
    "rows of several words": (("wtu", "cluster_set", "dre"), "-p wtu.n_w=1"),
    "rows whose counts stream": (("wtu", "dre"), "-p counts={few_counts}"),
    "rows that select a part": (("wtu", "dre"), "lower --ratio"),
    "early exits": (("wtu", "dre"), "lower --ratio"),
    "tests of equal codes": (("wtu", "dre"), "lower --ratio"),
    "bursts": (("dre",), "-p recent=8"),
    "bursts of several blocks": (("dre",), "-p block_slots=1"),
    "bursts cut at the boundary": (("dre",), "-p boundary=256"),
    "commands": (("dpe",), ""),
    "chunks": (("dpe",), ""),
    "results": (("dpe",), ""),
    "words": (("vpe",), ""),
    "functions": (("vpe",), ""),
}


def exercised(unit: str, p: DreParams) -> list[str]:
    """Those of `EVENTS` that can happen in a unit with these parameters."""
    k, w = p.kvmu, p.wtu
    can = {
        "rows of several words": w.clusters > w.n_w,
        "rows whose counts stream": w.clusters > w.counts,
        "early exits": w.selection == "buckets",
        "tests of equal codes": w.selection == "exact",
        "bursts of several blocks": k.boundary > k.block_bytes,  # a burst never crosses the boundary
        "bursts cut at the boundary": k.boundary < k.blocks * k.block_bytes,
    }
    return [name for name, (units, _) in EVENTS.items() if unit in units and can.get(name, True)]


def missing(unit: str, p: DreParams, outcomes: list[Outcome]) -> dict[str, str]:
    """Events that no table caused, and what brings each about."""
    largest = max(o.clusters for o in outcomes)
    sizes = {"few_clusters": max(1, (largest - 1) // p.wtu.n_w) * p.wtu.n_w, "few_counts": p.kvmu.read_counts}
    never = [name for name in exercised(unit, p) if not any(o.events.get(name) for o in outcomes)]
    return {name: EVENTS[name][1].format(**sizes) for name in never}


def rounds_of(trace: Trace, p: DreParams) -> int:
    """How often a trace must be played so that as many keys as the ring holds go home; at most `ROUNDS`."""
    return min(ROUNDS, -(-2 * p.kvmu.recent // trace.tokens))


def tables(trace: Trace, f: ReSVParams, queries: int, rounds: int = 1) -> Iterator[Table]:
    """The HC tables of every recorded layer, with rows of the last `queries` frames whose queries are recorded.

    In a trace without frames, segments stand for frames. With several rounds the trace's keys come again and again, and
    the rows in the last round. Raises `TraceError` if no segment has queries.
    """
    spans, asked = trace.spans(), _asked(trace, queries)
    for i, layer in enumerate(trace.layers):
        policy = ReSV(f, trace.kv_heads, trace.head_size)
        # Informative hash bits first: same distances, comparisons are abandoned earlier (docs/archive/decisions.md).
        start, stop = next(iter(trace.spans("frame")), spans[0])
        policy.hasher.sort_planes(policy.hasher.split(trace.k[i, start:stop]))
        own = [
            Table(f"layer {layer}" + (f" head {h}" if len(policy.tables) > 1 else ""))
            for h in range(len(policy.tables))
        ]
        for n, (start, stop) in enumerate(spans * rounds):
            appended = policy.append(trace.k[i, start:stop])
            asks = (start, stop) in asked and n >= len(spans) * (rounds - 1)
            got = policy.retrieve(trace.queries(i, start, stop)) if asks else None
            for t, table in enumerate(own):
                table.hashes.append([to_int(words) for words in appended.hashes[t]])
                rows = got is not None and got.codes[t].shape[1] > 0
                table.codes.append(got.codes[t].astype(int) if rows else None)
                if rows:
                    table.fetched.append(set(np.flatnonzero(got.fetched[t]).tolist()))
        yield from own


def _asked(trace: Trace, queries: int) -> list[tuple[int, int]]:
    """The last `queries` frames, or segments in a trace without frames, whose queries are recorded."""
    asked = (trace.spans("frame", queries=True) or trace.spans(queries=True))[-queries:]
    if not asked:
        raise TraceError("no segment of the trace has its queries recorded: record it with --queries 1 or more")
    return asked


def contexts(n_ctx: int) -> list[int]:
    """The contexts that tables are dealt to: the first two, one in the middle, the last."""
    return sorted({0, 1 % n_ctx, n_ctx // 2, n_ctx - 1})


def deal(tables: Sequence[Table], n_ctx: int) -> list[Play]:
    """Deal tables to `contexts` forth and back, so that each of these gets one and at least one is cleared."""
    plays, used = [], contexts(n_ctx)
    for i in range(max(len(tables), len(used) + 1)):
        table, turn, at = tables[i % len(tables)], i // len(used), i % len(used)
        name = table.name + (" again" if i >= len(tables) else "")
        plays.append(Play(name, table, used[-1 - at if turn % 2 else at]))
    return plays


def few_blocks(table: Table, p: DreParams, f: ReSVParams) -> tuple[list[Play], int]:
    """A table twice in the last context, and so few blocks that both refuse keys and the second uses freed ones.

    No play if the table's keys fit in one block.
    """
    blocks = mix([Play(table.name, table, 0)], p, f).most_blocks - 1
    names = (f"{table.name}, {blocks} blocks", f"{table.name}, cleared")
    return [Play(name, table, p.hcu.n_ctx - 1) for name in names] if blocks else [], blocks


def mix(plays: Sequence[Play], p: DreParams, f: ReSVParams, pool: int = 0) -> Scenario:
    """A scenario of plays in the contexts of the DRE: one play in each context advances in turn, segment by segment.

    The keys of all contexts follow each other without a gap; then come the rows, block by block. A context that had
    another play is cleared. Plays of one context follow each other.

    pool : as in `Scenario`
    """
    s = Scenario(p, f, device_base=1 << 16, home_base=1 << 20, pool=pool)
    blocks: Counter[int] = Counter()  # query blocks of each play so far
    at_once = min(len(contexts(p.hcu.n_ctx)), len({play.ctx for play in plays}))
    for start in range(0, len(plays), at_once):
        turn = plays[start : start + at_once]
        for segment in range(max(len(play.table.hashes) for play in turn)):
            own = [play for play in turn if segment < len(play.table.hashes)]
            along = False
            for play in own:
                hashes = play.table.hashes[segment]
                if not hashes:
                    continue
                s.label = play.label(segment)
                if start and not play.events["CLEARs"]:
                    s.clear(play.ctx, along)
                    play.events["CLEARs"] += 1
                    along = True
                play.keys(s, hashes, along)
                along = True
            for play in own:
                codes = play.table.codes[segment]
                if codes is not None:
                    s.label = play.label(segment)
                    play.rows(s, codes, blocks[id(play)])
                    blocks[id(play)] += 1
    return s


def scenario(table: Table, p: DreParams, f: ReSVParams) -> tuple[Scenario, list[str]]:
    """A table's keys and rows for the DRE, and messages where bursts do not fetch exactly the tokens of golden ReSV."""
    play = Play(table.name, table, 0)
    return mix([play], p, f), play.differences


def play(unit: str, emitted: Emitted, s: Scenario, stalls: tuple[float, float], seed: int) -> Played:
    """Run a scenario, or the part of it that concerns `unit`, on the RTL."""
    return _PLAYERS[unit](emitted, s, *stalls, seed)


def _dre(emitted, s, idle, stall, seed) -> Played:
    got = Run(emitted, "bench_dre", "phases", s.config(idle, stall), seed)()
    wrong = s.differences(got)
    if not (idle or stall) and s.p.wtu.n_h == 1:
        wrong += s.cycles_differ(got)
    return Played([label for name in "twxb" for label in s.labels[name]], wrong, got["cycles"])


def _hcu(emitted, s, idle, stall, seed) -> Played:
    keys = [beat for phase in s.phases for beat in phase.get("keys", [])]
    c = {"params": asdict(s.p.hcu), "beats": keys, "th_hd": s.f.th_hd, "idle": idle, "stall": stall, "reset_at": 0}
    c |= {"port_stall": stall, "latency": LATENCY, "late": 0, "items": [], "limit": 10_000_000}
    got = Run(emitted, "bench_hcu", "keys", c, seed)()
    labels = s.labels["t"]
    wrong = _compare("o", s.t, got["beats"], labels)
    if not (idle or stall):
        times = HcuTime(s.p.hcu, s.f.th_hd).beats([tuple(map(k.get, HCU_BEAT)) for k in keys], LATENCY).out
        wrong += _compare("cycle of o", times, [c - got["first"] for c in got["cycles"]], labels)
    return Played(labels, wrong, got["cycles"][-1])


def _wtu(emitted, s, idle, stall, seed) -> Played:
    """One run of rows for each query block, with the counts that its context has by then."""
    p = s.p.wtu
    episodes, wants, labels = [], [], []
    for q, (_, codes), label in zip(s.queries, s.blocks, s.asked, strict=True):
        keep, end = int(len(q.counts) <= p.counts), (len(q.counts) - 1) % p.n_w
        counts = [{"counts": own, "first": int(i == 0), "keep": keep} for i, own in enumerate(_words(q.counts, p.n_w))]
        rows = [[{"scores": own, "keep": end, "last": 0} for own in _words(row, p.n_w)] for row in codes]
        for row in rows:
            row[-1]["last"] = 1
        context = {"counts": counts, "rows": rows}
        stalls = {"idle": idle, "stall": stall, "gaps": idle, "period": 0, "late": False}
        limits = {"reset_at": 0, "limit": 10_000_000}
        episodes.append({"contexts": [context], "ratio": s.f.ratio_q16, **stalls, **limits})
        rows = zip(q.rows.mask, q.rows.clusters.tolist(), q.rows.tokens.tolist(), strict=True)
        wants.append([{"set": np.flatnonzero(m).tolist(), "clusters": c, "tokens": t} for m, c, t in rows])
        labels.append([label] * len(codes))
    c = {"params": asdict(p), "episodes": episodes}
    results = Run(emitted, "bench_wtu", "rows", c, seed)()["episodes"]
    wrong, cycles = [], 0
    for (_, codes), q, want, own, got in zip(s.blocks, s.queries, wants, labels, results, strict=True):
        rows, chosen, ends = [], set(), []
        for cycle, beat in zip(got["cycles"], got["beats"], strict=True):
            chosen |= {beat["addr"] * p.n_w + i for i in range(p.n_w) if beat["mask"] >> i & 1}
            if beat["last"]:
                rows.append({"set": sorted(chosen), "clusters": beat["clusters"], "tokens": beat["tokens"]})
                ends.append(cycle - got["taken"][0])
                chosen = set()
        wrong += _compare("row", want, rows, own)
        if not (idle or stall):
            ring = Ring(p.count_words, p.count_words) if len(q.counts) > p.counts else None
            _, model = WtuTime(p).run([(row, q.counts) for row in codes], s.f.ratio_q16, ring)
            wrong += _compare("cycle of a row's last beat", model.tolist(), ends, own)
        cycles += got["cycles"][-1] - got["taken"][0]
    return Played(sum(labels, []), wrong, cycles)


def _words(values: np.ndarray, n_w: int) -> list[list[int]]:
    """Words of n_w values; 0 behind the last one."""
    return np.pad(values, (0, -len(values) % n_w)).reshape(-1, n_w).tolist()


def _kvmu(emitted, s, idle, stall, seed) -> Played:
    """All appends and orders, then the last set of each context, fetched with the map's state at that time."""
    a = [{name: t.get(name, 0) for name in ("op", "ctx", "cluster", "is_new", "clusters", "token")} for t in s.t]
    sets = {ctx: (q.clusters, label) for (ctx, _), q, label in zip(s.blocks, s.queries, s.asked, strict=True)}
    f, bursts, labels = [], [], []
    for ctx, (clusters, label) in sets.items():
        wanted = [(cluster, s.model.kv.ranges(ctx, cluster)) for cluster in clusters]
        fetched, _ = s.model.kv.listed(ctx, wanted, [False] * len(wanted))  # no set came before
        beats = [{"ctx": ctx, "cluster": c, "last": 0, "empty": int(not clusters)} for c in clusters or [0]]
        f += [*beats[:-1], beats[-1] | {"last": 1}]
        beat = {"ctx": ctx, "last": 0, "empty": 0}
        own = [b.beat(s.p.kvmu.kept > 0) | beat for b in fetched] or [{"ctx": ctx, "empty": 1}]
        bursts += [*own[:-1], own[-1] | {"last": 1}]
        labels += [label] * len(own)
    stalls = {"a": idle, "f": idle, **dict.fromkeys(("w", "x", "c", "b", "ask", "put"), stall)}
    bases = s.device_base, s.home_base
    episode = {"a": a, "f": f, "after": [len(a)] * len(f), "bases": bases, "blocks": s.pool, "quota": 0}
    episode |= {"stalls": [stalls], "latency": LATENCY, "late": 0, "block_b": 0, "cut_at": 0, "keep": 0, "uses": 0.0}
    c = {"params": asdict(s.p.kvmu), "episodes": [episode]}
    got = Run(emitted, "bench_kvmu", "traffic", c, seed)()["episodes"][0]
    wrong = []
    for name, want, own in (("w", s.w, s.labels["w"]), ("x", s.x, s.labels["x"]), ("b", bursts, labels)):
        wrong += _compare(name, want, [beat for _, beat in got[name]], own)
    if not (idle or stall):
        time = KvmuTime(s.p.kvmu, KvMap(s.p.kvmu.map_sizes(s.pool), s.device_base, s.home_base))
        chosen = [(ctx, clusters) for ctx, (clusters, _) in sets.items()]
        cycles = time.run([(v["op"], v["ctx"], v["cluster"]) for v in a], chosen, LATENCY)
        # The time view counts requests and fetches from their first beats.
        for name, start, own in (("w", "a", s.labels["w"]), ("b", "f", labels)):
            times, first = getattr(cycles, name), getattr(cycles, start)[0]
            seen = [cycle - got[start][0] for cycle, _ in got[name]]
            wrong += _compare(f"cycle of {name}", [cycle - first for cycle in times], seen, own)
    return Played([*s.labels["w"], *s.labels["x"], *labels], wrong, got["b"][-1][0])


def _cluster_set(emitted, s, idle, stall, seed) -> Played:
    p = s.p.wtu
    beats, want, labels = [], [], []
    for q, label in zip(s.queries, s.asked, strict=True):
        for r, mask in enumerate(q.rows.mask):
            words = np.pad(mask, (0, -len(mask) % p.n_w)).reshape(-1, p.n_w) @ (1 << np.arange(p.n_w))
            ends = {"set_last": int(r == len(q.rows.mask) - 1)}
            last = len(words) - 1
            beats += [{"addr": i, "mask": int(w), "row_last": int(i == last), **ends} for i, w in enumerate(words)]
        own = [{"cluster": c, "last": int(c == q.clusters[-1]), "empty": 0} for c in q.clusters]
        want += own or [{"last": 1, "empty": 1}]
        labels += [label] * max(1, len(own))
    episode = {"beats": beats, "stalls": [(idle, stall)], "cut_at": 0}
    c = {"params": asdict(p), "episodes": [episode]}
    got = Run(emitted, "bench_cluster_set", "rows", c, seed)()["episodes"][0]
    wrong = _compare("o", want, [beat for _, beat in got["o"]], labels)
    return Played(labels, wrong, got["o"][-1][0])


_PLAYERS = {"dre": _dre, "hcu": _hcu, "wtu": _wtu, "kvmu": _kvmu, "cluster_set": _cluster_set}


def _compare(name: str, want: list, got: list, labels: list[str] | None = None) -> list[str]:
    """The first difference of two lists of numbers, or of beats in the fields that `want` has; empty if equal."""

    def at(i: int) -> str:
        return f"{labels[min(i, len(labels) - 1)]}: " if labels else ""

    if len(want) != len(got):
        return [f"{at(min(len(want), len(got)))}{name}: {len(got)} from the RTL, {len(want)} expected"]
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        fields = a.items() if isinstance(a, dict) else [("value", a)]
        for key, v in fields:
            have = b[key] if isinstance(a, dict) else b
            if have != v:
                return [f"{at(i)}{name}[{i}]: {key} is {have}, expected {v}"]
    return []


def products(
    trace: Trace,
    p: DpeParams,
    emitted: Emitted,
    f: ReSVParams,
    queries: int = 1,
    idle: float = 0.0,
    stall: float = 0.0,
    seed: int = 1,
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """The DPE's share of ReSV on every recorded layer: keys times hyperplanes, queries times Key_cluster.

    Covers the last `queries` segments whose queries are recorded. Raises `BenchError` as `verify` does.
    """
    out = []
    asked = _asked(trace, queries)
    for i, layer in enumerate(trace.layers):
        policy = ReSV(f, trace.kv_heads, trace.head_size)
        keys, clusters = Traffic(p), Traffic(p)
        n_keys = n_rows = n_clusters = 0
        for start, stop in trace.spans():
            policy.append(trace.k[i, start:stop])
            if (start, stop) not in asked:
                continue
            for own in policy.hasher.split(trace.k[i, start:stop]):
                keys.product(policy.hasher.planes, own)
                n_keys += len(own)
            q = trace.queries(i, start, stop)
            group = q.shape[1] // trace.kv_heads
            per = trace.kv_heads // len(policy.tables)  # KV heads of a table
            for h in range(trace.kv_heads):
                rows = q[:, h * group : (h + 1) * group].reshape(-1, trace.head_size)
                means = policy.tables[h // per].key_cluster().reshape(-1, per, trace.head_size)[:, h % per]
                clusters.product(means, rows)
                n_rows, n_clusters = n_rows + len(rows), max(n_clusters, len(means))
        for name, traffic in (("keys x hyperplanes", keys), ("queries x Key_cluster", clusters)):
            got = traffic.run(emitted, seed, idle, stall)
            wrong = _compare("o", traffic.wants, got["beats"])
            busy = DpeTime(p).run(traffic.commands).busy
            if got["perf"]["chunks"] != busy:
                wrong.append(f"chunks: {got['perf']['chunks']} in the RTL, {busy} in the time view")
            outcome = Outcome(
                table=f"layer {layer}, {name}",
                keys=n_keys,
                clusters=n_clusters,
                rows=n_rows,
                bursts=0,
                refused=0,
                beats=len(traffic.wants),
                differences=wrong,
                cycles=got["cycles"][-1],
                events=got["perf"],
            )
            out.append(outcome)
            progress(outcome)
    return out


def vectors(
    trace: Trace,
    p: VpeParams,
    emitted: Emitted,
    f: ReSVParams,
    queries: int = 1,
    idle: float = 0.0,
    stall: float = 0.0,
    seed: int = 1,
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """The VPE's share of ReSV on every recorded layer: hash bits, score codes, cluster means (`vpe_traffic.shares`).

    Covers the last `queries` segments whose queries are recorded. Raises `BenchError` as `verify` does.
    """
    out = []
    for i, layer in enumerate(trace.layers):
        parts = list(shares(trace, i, _asked(trace, queries), f, p.format))
        episodes = [Episode(p, [part.program] * p.n_h, [(idle, idle, stall)]) for part in parts]
        c = {"params": asdict(p), "episodes": [episode.beats() for episode in episodes]}
        results = Run(emitted, "bench_vpe", "programs", c, seed)()["episodes"]
        for name in dict.fromkeys(part.name for part in parts):
            wrong, beats, cycles, rows, events = [], 0, 0, 0, Counter()
            for part, episode, got in zip(parts, episodes, results, strict=True):
                if part.name != name:
                    continue
                stored = programs.rows(word for word, *_ in episode.want)
                rows, beats = rows + len(stored), beats + len(episode.want)
                cycles += got["o"][-1][0] if got["o"] else 0
                events += Counter(got["perf"])
                if part.want is not None:
                    wrong += _compare(name, np.concatenate(part.want).tolist(), np.concatenate(stored).tolist())
                try:
                    episode.check(got)
                    if not (idle or stall):
                        episode.check_cycles(got)
                except AssertionError as e:
                    wrong.append(f"{name}: {str(e).splitlines()[0]}")
            outcome = Outcome(
                table=f"layer {layer}, {name}",
                keys=0,
                clusters=0,
                rows=rows,
                bursts=0,
                refused=0,
                beats=beats,
                differences=wrong,
                cycles=cycles,
                events=dict(events),
            )
            out.append(outcome)
            progress(outcome)
    return out


def verify(
    unit: str,
    trace: Trace,
    p: DreParams,
    emitted: Emitted,
    f: ReSVParams,
    queries: int = 1,
    idle: float = 0.0,
    stall: float = 0.0,
    seed: int = 1,
    progress: Callable[[Outcome], None] = lambda outcome: None,
    dealt: bool = False,
) -> list[Outcome]:
    """Every table of the trace through the RTL of `unit`; the outcomes list differences in bits or cycles.

    dealt : all tables in one run over all contexts (`deal`); of units that know homes, with as many rounds of the
        trace as fill the ring twice, and with `few_blocks` in a second run. Otherwise each table in a run of its own,
        in context 0

    Raises `BenchError` if a simulator cannot be built or a run does not end.
    """
    out = []
    homes = dealt and unit in ("kvmu", "dre")
    found = tables(trace, f, queries, rounds_of(trace, p) if homes else 1)
    runs: Iterable[tuple[list[Play], int]] = (([Play(table.name, table, 0)], 0) for table in found)
    if dealt:
        every = list(found)
        runs = [(deal(every, p.hcu.n_ctx), 0)]
        if homes and (scarce := few_blocks(every[0], p, f))[0]:
            runs.append(scarce)
    for plays, pool in runs:
        s = mix(plays, p, f, pool)
        played = play(unit, emitted, s, (idle, stall), seed)
        for difference in played.differences:
            first = next((own for own in plays if difference.startswith(own.label())), plays[0])
            first.differences.append(difference)
        for own in plays:
            outcome = Outcome(
                table=own.name,
                keys=own.events["keys"],
                clusters=own.clusters,
                rows=own.events["rows"],
                bursts=own.events["bursts"],
                refused=own.events["keys refused"],
                beats=sum(label.startswith(own.label()) for label in played.labels),
                differences=own.differences,
                cycles=played.cycles,
                context=own.ctx,
                events=dict(own.events),
            )
            out.append(outcome)
            progress(outcome)
    return out


def verify_unit(unit: str, trace: Trace, system: SystemParams, emitted: Emitted, f: ReSVParams, **how) -> list[Outcome]:
    """Any unit on a trace: `products` for the DPE, `vectors` for the VPE, `verify` in all contexts for the others."""
    if unit in ("dpe", "vpe"):
        return (products if unit == "dpe" else vectors)(trace, params_of(unit, system), emitted, f, **how)
    return verify(unit, trace, system.core.dre, emitted, f, **how, dealt=True)
