"""A trace through golden ReSV and through the RTL, beat by beat: what `vrex verify` and the demo run."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np

from golden import vector_programs as programs
from golden.hashing import to_int
from golden.params import ReSVParams
from golden.resv import ReSV
from golden.trace import Trace, TraceError
from hdl.emit import Emitted, params_of
from hdl.params import DpeParams, DreParams, SystemParams, VpeParams
from sim.dpe import DpeTime
from sim.hcu import HcuTime
from sim.kvmu import KvmuTime
from sim.wtu import WtuTime
from tb.dpe import Traffic
from tb.dre import Scenario, row_beats
from tb.runner import Run
from tb.vpe import Episode, shares


@dataclass
class Table:
    """What one HC table sees of a trace: the segments' hashes, the rows of those whose queries are used."""

    name: str  # "layer 3", or "layer 3 head 1" with scope "head"
    hashes: list[list[int]] = field(default_factory=list)  # of each segment, sinks left out
    codes: list[np.ndarray | None] = field(default_factory=list)  # of each segment, [R, C]
    fetched: list[set[int]] = field(default_factory=list)  # tokens that golden ReSV fetches, per query block


@dataclass(frozen=True)
class Outcome:
    """One table of a trace on the RTL."""

    table: str
    keys: int
    clusters: int
    rows: int
    bursts: int
    refused: int  # keys without a free block: kvmu.blocks is too small for the trace
    beats: int  # compared bit by bit
    differences: list[str]
    cycles: int  # of the whole run in Verilator


@dataclass(frozen=True)
class Played:
    """A run of a unit on a table's scenario."""

    beats: int  # compared bit by bit
    differences: list[str]
    cycles: int


def tables(trace: Trace, f: ReSVParams, queries: int) -> Iterator[Table]:
    """The HC tables of every recorded layer; rows for the last `queries` frames whose queries are recorded
    (segments, in a trace without frames).

    Raises `TraceError` if there is no such segment.
    """
    spans, asked = trace.spans(), _asked(trace, queries)
    for i, layer in enumerate(trace.layers):
        policy = ReSV(f, trace.kv_heads, trace.head_size)
        # Informative hash bits first: same distances, earlier abandon (docs/decisions.md).
        start, stop = next(iter(trace.spans("frame")), spans[0])
        policy.hasher.sort_planes(policy.hasher.split(trace.k[i, start:stop]))
        own = [
            Table(f"layer {layer}" + (f" head {h}" if len(policy.tables) > 1 else ""))
            for h in range(len(policy.tables))
        ]
        for start, stop in spans:
            appended = policy.append(trace.k[i, start:stop])
            got = policy.retrieve(trace.queries(i, start, stop)) if (start, stop) in asked else None
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


def scenario(table: Table, p: DreParams, f: ReSVParams) -> tuple[Scenario, list[str]]:
    """The table's keys and rows for the DRE, and where the bursts do not fetch exactly golden ReSV's tokens."""
    s = Scenario(p, f, device_base=1 << 16, home_base=1 << 20)
    wrong = []
    for hashes, codes in zip(table.hashes, table.codes, strict=True):
        if hashes:
            s.keys(0, hashes)
        if codes is None:
            continue
        s.query(0, codes)
        if any(beat["full"] for beat in s.w):
            continue  # refused entries are not stored, so fetches are fewer than the policy's
        at = {beat["home"]: f.sinks + beat["token"] for beat in s.w}
        size = p.kvmu.entry_bytes
        tokens = {at[a] for b in s.queries[-1].bursts for a in at if b.addr <= a < b.addr + b.bytes}
        tokens |= {at[a] for b in s.queries[-1].bursts for a in at if a < b.addr < a + size}  # cut by the boundary
        want = table.fetched[len(s.queries) - 1]
        if tokens != want:
            wrong.append(f"query block {len(s.queries) - 1}: bursts fetch {len(tokens)} tokens, ReSV {len(want)}")
    return s, wrong


def play(unit: str, emitted: Emitted, table: Table, s: Scenario, stalls: tuple[float, float], seed: int) -> Played:
    """The scenario of a table, or the part of it that concerns `unit`, on the RTL."""
    return _PLAYERS[unit](emitted, table, s, *stalls, seed)


def _dre(emitted, table, s, idle, stall, seed) -> Played:
    got = Run(emitted, "tb.bench_dre", "phases", s.config(idle, stall), seed)()
    model = None
    if not (idle or stall) and s.p.wtu.n_h == 1:
        ends = [end - first for first, end in zip(got["first"], got["ends"], strict=True)]
        model = _compare("cycles of a phase", s.phase_cycles(), ends)
    return Played(sum(len(getattr(s, n)) for n in "twxb"), s.differences(got) + (model or []), got["cycles"])


def _hcu(emitted, table, s, idle, stall, seed) -> Played:
    keys = [beat for phase in s.phases for beat in phase.get("keys", [])]
    c = {"params": asdict(s.p.hcu), "beats": keys, "th_hd": s.f.th_hd, "idle": idle, "stall": stall, "reset_at": 0}
    got = Run(emitted, "tb.bench_hcu", "keys", c | {"limit": 10_000_000}, seed)()
    wrong = _compare("o", s.t, got["beats"])
    if not (idle or stall):
        times = HcuTime(s.p.hcu, s.f.th_hd).run([k["hash"] for k in keys]).out.tolist()
        wrong += _compare("cycle of o", times, [c - got["first"] for c in got["cycles"]])
    return Played(len(s.t), wrong, got["cycles"][-1])


def _wtu(emitted, table, s, idle, stall, seed) -> Played:
    """A run of rows per query block, with the counts of its time."""
    p = s.p.wtu
    episodes, wants = [], []
    for q, (ctx, codes) in zip(s.queries, s.blocks, strict=True):
        counts = [{"ctx": ctx, "cluster": c, "count": n} for c, n in enumerate(q.counts.tolist())]
        words = [beat["row"] for beat in row_beats(p, ctx, codes)]
        stalls = {"idle": idle, "stall": stall, "period": 0, "clear": True, "reset_at": 0, "limit": 1_000_000}
        episodes.append({"counts": counts, "late": [], "words": words, "ratio": s.f.ratio_q16, **stalls})
        rows = zip(q.rows.mask, q.rows.clusters.tolist(), q.rows.tokens.tolist(), strict=True)
        wants.append([{"set": np.flatnonzero(m).tolist(), "clusters": c, "tokens": t} for m, c, t in rows])
    c = {"params": asdict(p), "episodes": episodes}
    results = Run(emitted, "tb.bench_wtu", "rows", c, seed)()["episodes"]
    wrong, cycles = [], 0
    for (_, codes), q, want, got in zip(s.blocks, s.queries, wants, results, strict=True):
        rows, chosen, ends = [], set(), []
        for cycle, beat in zip(got["cycles"], got["beats"], strict=True):
            chosen |= {beat["addr"] * p.n_w + i for i in range(p.n_w) if beat["mask"] >> i & 1}
            if beat["last"]:
                rows.append({"set": sorted(chosen), "clusters": beat["clusters"], "tokens": beat["tokens"]})
                ends.append(cycle - got["taken"][0])
                chosen = set()
        wrong += _compare("row", want, rows)
        if not (idle or stall):
            _, model = WtuTime(p).run([(row, q.counts) for row in codes], s.f.ratio_q16)
            wrong += _compare("cycle of a row's last beat", model.tolist(), ends)
        cycles += got["cycles"][-1] - got["taken"][0]
    return Played(sum(map(len, wants)), wrong, cycles)


def _kvmu(emitted, table, s, idle, stall, seed) -> Played:
    """Every append, then the last query block's set, fetched from the map as it is by then."""
    a = [{"op": t["op"], "ctx": t["ctx"], "cluster": t["cluster"], "token": t["token"]} for t in s.t]
    last = s.queries[-1]
    names = last.clusters or [0]
    f = [
        {"ctx": 0, "cluster": c, "last": int(i == len(names) - 1), "empty": int(not last.clusters)}
        for i, c in enumerate(names)
    ]
    stalls = {"a": idle, "f": idle, "w": stall, "x": stall, "b": stall}
    bases = s.device_base, s.home_base
    episode = {"a": a, "f": f, "bases": bases, "stalls": [stalls], "block_b": 0, "cut_at": 0}
    c = {"params": asdict(s.p.kvmu), "episodes": [episode]}
    got = Run(emitted, "tb.bench_kvmu", "traffic", c, seed)()["episodes"][0]
    fetched = s.model.kv.fetch(0, last.clusters)
    bursts = [{**burst._asdict(), "last": int(i == len(fetched) - 1), "empty": 0} for i, burst in enumerate(fetched)]
    bursts = bursts or [{"last": 1, "empty": 1}]
    wrong = []
    for name, want in (("w", s.w), ("x", s.x), ("b", bursts)):
        wrong += _compare(name, want, [beat for _, beat in got[name]])
    if not (idle or stall):
        time = KvmuTime(s.p.kvmu, s.device_base, s.home_base)
        cycles = time.run([(v["op"], v["ctx"], v["cluster"]) for v in a], [(0, last.clusters)])
        wrong += _compare("cycle of b", cycles.b, [cycle - got["a"][0] for cycle, _ in got["b"]])
    return Played(len(s.w) + len(s.x) + len(bursts), wrong, got["b"][-1][0])


def _cluster_set(emitted, table, s, idle, stall, seed) -> Played:
    p = s.p.wtu
    beats, want = [], []
    for q in s.queries:
        for r, mask in enumerate(q.rows.mask):
            words = np.pad(mask, (0, -len(mask) % p.n_w)).reshape(-1, p.n_w) @ (1 << np.arange(p.n_w))
            ends = {"set_last": int(r == len(q.rows.mask) - 1), "ctx": 0}
            last = len(words) - 1
            beats += [{"addr": i, "mask": int(w), "row_last": int(i == last), **ends} for i, w in enumerate(words)]
        want += [{"cluster": c, "last": int(c == q.clusters[-1]), "empty": 0} for c in q.clusters]
        want += [] if q.clusters else [{"last": 1, "empty": 1}]
    episode = {"beats": beats, "stalls": [(idle, stall)], "cut_at": 0}
    c = {"params": asdict(p), "episodes": [episode]}
    got = Run(emitted, "tb.bench_cluster_set", "rows", c, seed)()["episodes"][0]
    wrong = _compare("o", want, [beat for _, beat in got["o"]])
    return Played(len(want), wrong, got["o"][-1][0])


_PLAYERS = {"dre": _dre, "hcu": _hcu, "wtu": _wtu, "kvmu": _kvmu, "cluster_set": _cluster_set}


def _compare(name: str, want: list, got: list) -> list[str]:
    """The first difference of two lists of numbers, or of beats in the fields that `want` names; empty if equal."""
    if len(want) != len(got):
        return [f"{name}: {len(got)} from the RTL, {len(want)} expected"]
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        fields = a.items() if isinstance(a, dict) else [("value", a)]
        for key, v in fields:
            have = b[key] if isinstance(a, dict) else b
            if have != v:
                return [f"{name}[{i}]: {key} is {have}, expected {v}"]
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

    For the last `queries` segments whose queries are recorded. Raises `BenchError` as `verify` does.
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
    """The VPE's share of ReSV on every recorded layer: hash bits, score codes, cluster means (`tb.vpe.shares`).

    For the last `queries` segments whose queries are recorded. Raises `BenchError` as `verify` does.
    """
    out = []
    for i, layer in enumerate(trace.layers):
        parts = list(shares(trace, i, _asked(trace, queries), f, p.format))
        episodes = [Episode(p, [part.program] * p.n_h, [(idle, idle, stall)]) for part in parts]
        c = {"params": asdict(p), "episodes": [episode.beats() for episode in episodes]}
        results = Run(emitted, "tb.bench_vpe", "programs", c, seed)()["episodes"]
        for name in dict.fromkeys(part.name for part in parts):
            wrong, beats, cycles, rows = [], 0, 0, 0
            for part, episode, got in zip(parts, episodes, results, strict=True):
                if part.name != name:
                    continue
                stored = programs.rows(word for word, *_ in episode.want)
                rows, beats = rows + len(stored), beats + len(episode.want)
                cycles += got["o"][-1][0] if got["o"] else 0
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
) -> list[Outcome]:
    """Every table of the trace through the RTL of `unit`; differences in bits or cycles stand in the outcomes.

    Raises `BenchError` if a simulator cannot be built or does not end.
    """
    out = []
    for table in tables(trace, f, queries):
        s, wrong = scenario(table, p, f)
        played = play(unit, emitted, table, s, (idle, stall), seed)
        outcome = Outcome(
            table=table.name,
            keys=len(s.w),
            clusters=len(s.model.tables[0]),
            rows=sum(len(c) for c in table.codes if c is not None),
            bursts=len(s.b),
            refused=sum(w["full"] for w in s.w),
            beats=played.beats,
            differences=wrong + played.differences,
            cycles=played.cycles,
        )
        out.append(outcome)
        progress(outcome)
    return out


def verify_unit(unit: str, trace: Trace, system: SystemParams, emitted: Emitted, f: ReSVParams, **how) -> list[Outcome]:
    """Any unit on a trace: `products` for the DPE, `vectors` for the VPE, `verify` for the units of the DRE."""
    if unit in ("dpe", "vpe"):
        return (products if unit == "dpe" else vectors)(trace, params_of(unit, system), emitted, f, **how)
    return verify(unit, trace, system.core.dre, emitted, f, **how)
