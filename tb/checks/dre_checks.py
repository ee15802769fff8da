"""Checks of the DRE, shared by tests, mutants, coverage and stress: beats, bursts and counters of the joined units."""

import random
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.retrieval.table_layout import PAGE, Item
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import DreParams, KvmuParams, override, preset
from openvrex.hdl.retrieval.hcu_state import CLEAR, SWITCH
from openvrex.tb.library.dre_scenario import Scenario
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

SMALL = ["clusters=12", "counts=8", "blocks=48"]  # a short run fills these tables, rings of counts and blocks
TINY = override(preset("tiny"), SMALL).core.dre
SHAPES = {
    "tiny": SMALL,
    "one-lane": [*SMALL, "wtu.n_w=1"],  # words of the cluster set are often zero
    "buckets": [*SMALL, "counts=16", "selection=buckets"],
    "cores": [*SMALL, "wtu.n_h=3", "hcu.n_h=2"],
    "budgets": [*SMALL, "wtu.n_h=2", "budget=true"],
    "recent-one": [*SMALL, "recent=1"],
    "one": [
        "hcu.n_w=1",
        "n_hp=1",
        "wtu.n_w=1",
        "read_counts=1",
        "counts=1",
        "clusters=1",
        "n_ctx=1",
        "frame=1",
        "blocks=3",
        "block_slots=1",
        "recent=1",
    ],
}
NEVER = {  # counters that stand still
    "buckets": {"wtu0.tests", "wtu0.waits"},  # they have no tests, and keep a row with its counts
    "cores": {"wtu1.waits", "wtu2.waits"},  # counts roll for the first core only
    "budgets": {"wtu1.waits"},
    "one": {"wtu0.waits"},
}


def sizes(p: KvmuParams) -> dict[str, int]:
    """Bytes of the rings and of the blocks."""
    return {"device": p.n_ctx * p.recent * p.entry_bytes, "home": p.blocks * p.block_bytes}


def contexts(p: DreParams) -> list[int]:
    """The contexts that the checks use: the first, the last, and some between."""
    return sorted({0, 1 % p.hcu.n_ctx, p.hcu.n_ctx // 2, p.hcu.n_ctx - 1})


def play(p: DreParams, seed: int, frames: int = 6) -> Scenario:
    """Random frames in all contexts: keys around a few centres or anywhere, rows that peak at a few clusters.

    Keys of another context follow right behind, or come beside rows. Rows of any context follow right behind rows.
    Where the WTU has budgets, two in three SWITCHes give one.
    """
    rng = random.Random(seed)
    nrng = np.random.default_rng(seed)
    top = {name: (1 << p.kvmu.addr_bits) - size for name, size in sizes(p.kvmu).items()}
    near = rng.choice((max(1, p.hcu.n_hp // 4), rng.randrange(p.hcu.n_hp + 2)))
    function = {"th_hd": near, "ratio_q16": rng.choice((52429, 65535, rng.randrange(1 << 16)))}
    bases = {f"{name}_base": rng.randrange(n) for name, n in top.items()}
    s = Scenario(p, replace(p.function(), **function), **bases, table_base=rng.randrange(1 << 20) * PAGE)
    s.tokens = {ctx: rng.randrange((1 << p.hcu.token_bits) - 10 * frames) for ctx in contexts(p)}
    centres = [rng.getrandbits(p.hcu.n_hp) for _ in range(max(2, p.hcu.clusters // 2))]

    def frame(ctx: int, along: bool = False) -> None:
        bits = rng.choice([0, 1, 2, p.hcu.n_hp])
        flips = [sum(1 << rng.randrange(p.hcu.n_hp) for _ in range(bits)) for _ in range(rng.randrange(1, 10))]
        s.label = f"keys of context {ctx}, phase {len(s.phases)}"
        if rng.random() < 0.15:
            s.clear(ctx, along)
            along = True
        s.keys(ctx, [(rng.choice(centres) ^ f) & (1 << p.hcu.n_hp) - 1 for f in flips], along)

    def rows(ctx: int, along: bool = False) -> None:
        if not along:
            tokens = s.tokens_of(ctx)
            budgets = (0, 0, 1, tokens, tokens + 1, rng.randint(1, max(1, tokens)), rng.randint(1, max(1, tokens)))
            s.switch(ctx, along=rng.random() < 0.3, budget=rng.choice(budgets) if p.wtu.budget else 0)
        n, best = len(s.model.counts), (1 << p.wtu.score.bits) - 1
        codes = best - nrng.exponential(nrng.choice([1, 100, 400, best]), (rng.randrange(1, 5), n))
        codes = np.where(nrng.random(codes.shape) < 0.1, 0, np.maximum(0, codes)).astype(int)
        s.label = f"rows of context {ctx}, phase {len(s.phases)}"
        s.query(codes, along)

    used = contexts(p)
    for _ in range(frames):
        ctx, other = rng.choice(used), rng.choice(used)
        frame(ctx)
        if other != ctx:
            frame(other, along=True)
        if rng.random() < 0.2:
            s.switch(p.hcu.n_ctx // 3, along=True)  # never written, if there are several
        rows(ctx)
        what = rng.choice(("rows", "keys", "nothing"))
        if what == "rows":
            for _ in range(rng.randrange(1, 4)):  # rows that wait while the cluster set lists those before
                rows(ctx, along=True)
        elif what == "keys" and other != ctx:
            frame(other, along=True)
        elif what == "nothing":  # the KVMU still lists sets of the context before
            s.switch(other, along=True, what="then")
    return s


def bins(s: Scenario) -> set[str]:
    """Events between the units, by context."""
    hit: set[str] = set()
    news, blocks = iter(s.t), iter(zip(s.blocks, s.queries, strict=True))
    full: dict[int, set] = {
        ctx: set() for ctx in contexts(s.p)
    }  # of each context, clusters grown in a full table since its rows
    for phase in s.phases:
        for n in range(phase.get("blocks", 0)):
            (ctx, codes), q = next(blocks)
            hit |= {f"rows of context {ctx}"}
            hit |= {"counts that roll" if len(q.counts) > s.p.kvmu.counts else "counts that are kept"}
            hit |= {f"a count of a full table, context {ctx}"} if full[ctx] & set(q.clusters) else set()
            hit |= {"keys beside rows"} if "keys" in phase else set()
            hit |= {"a SWITCH behind rows"} if "then" in phase else set()
            hit |= {"rows behind rows"} if n else set()
            if s.p.wtu.budget:
                kind = "a share" if not q.budget else "a budget" if q.budget <= q.counts.sum() else "too large a budget"
                hit |= {kind} | ({"a budget that is exceeded"} if 0 < q.budget < q.rows.tokens.max() else set())
            hit |= {"part of a row"} if (q.rows.clusters < codes.shape[1]).any() else set()
            hit |= {"a whole row"} if (q.rows.clusters == codes.shape[1]).any() else set()
            hit |= {"nothing to fetch"} if not q.bursts else set()
            full[ctx] = set()
        for beat in (next(news) for _ in (*phase.get("keys", []), *phase.get("then", []))):
            ctx = beat["ctx"]
            if beat["op"] == CLEAR:
                hit |= {f"CLEAR of context {ctx}"}
                full[ctx] = set()
            elif beat["op"] == SWITCH:
                hit |= {"SWITCH to an empty context"} if not beat["clusters"] else {"SWITCH"}
            elif beat["full_join"]:
                full[ctx].add(beat["cluster"])
    return hit


ROLLS = "counts that roll"  # those of a context that the WTU cannot hold
BINS = {
    ROLLS,
    "counts that are kept",
    "SWITCH",
    "SWITCH to an empty context",
    "keys beside rows",
    "a SWITCH behind rows",
    "rows behind rows",
    "part of a row",
    "a whole row",
    "nothing to fetch",
    *(
        f"{what} {ctx}"
        for what in ("rows of context", "a count of a full table, context", "CLEAR of context")
        for ctx in contexts(TINY)
    ),
}
BUDGETS = {"a share", "a budget", "too large a budget", "a budget that is exceeded"}


@cache
def emitted(shape: str) -> Emitted:
    return emit("dre", params(shape))


def params(shape: str) -> DreParams:
    return override(preset("tiny"), SHAPES[shape]).core.dre


def run(
    unit: Emitted,
    s: Scenario,
    idle: float = 0.0,
    stall: float = 0.0,
    seed: int = 1,
    reset_at: int = 0,
    latency: int = 20,
    **how,
):
    """Run the scenario on the RTL."""
    c = s.config(idle, stall, reset_at, (latency, latency))
    return Run(unit, "bench_dre", "phases", c, seed, **how)()


@dataclass
class RandomTraffic(StressTraffic):
    """Eighty frames: keys, rows of scores, fetches and evictions."""

    shape: str
    seed: int
    idle: float
    stall: float

    def __post_init__(self):
        self.scenario = play(params(self.shape), self.seed, 80)

    @classmethod
    def random(cls, rng: Random) -> Self:
        return cls(rng.choice(list(SHAPES)), rng.getrandbits(31), stall_rate(rng), stall_rate(rng))

    def play(self) -> Any:
        return run(emitted(self.shape), self.scenario, self.idle, self.stall, self.seed)

    def check(self, got: Any) -> int:
        wrong = self.scenario.differences(got)
        assert not wrong, wrong
        return sum(len(getattr(self.scenario, name)) for name in "twxb")


def check_equals_golden(shape, record_property):
    """Every beat and counter equals golden, and no counter stands still.

    In every context, counts of a full table decide rows.
    """
    p, unit = params(shape), emitted(shape)
    hit, moves = set(), set()
    for seed, idle, stall, latency in ((14, 0.0, 0.0, 20), (5, 0.3, 0.3, 20), (6, 0.0, 0.7, 3), (7, 0.0, 0.0, 3)):
        s = play(p, seed, 32 if latency == 20 or stall else 10)
        got = run(unit, s, idle, stall, seed, latency=latency)
        assert s.differences(got) == [], f"seed {seed}"
        if not (idle or stall) and p.wtu.n_h == 1:
            assert s.cycles_differ(got) == []
        hit |= bins(s)
        moves |= {name for name, n in got["perf"].items() if n}
    assert set(unit.manifest["counters"]) - moves == NEVER.get(shape, set())
    if shape != "one":
        record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
        want = BINS if p.kvmu.clusters > p.kvmu.counts else BINS - {ROLLS}
        want = want | BUDGETS if p.wtu.budget else want
        assert hit == want, want - hit


def check_reset_in_flight(reset_at):
    s = play(TINY, reset_at, 10)
    got = run(emitted("tiny"), s, 0.2, 0.2, reset_at, reset_at)
    assert s.differences(got) == []


def fresh_phases(s: Scenario) -> list[int]:
    """Numbers of the phases before which the WTUs may lose their counts: a SWITCH comes before the next row."""
    out, safe = [], False
    for number in reversed(range(len(s.phases))):
        phase = s.phases[number]
        if "rows" in phase:
            safe = False
        elif any(beat["op"] == SWITCH for beat in phase["keys"]):
            safe = True
        if safe:
            out.append(number)
    return out[::-1]


def filled(s: Scenario) -> list[list[int]]:
    """Contexts with a cluster before each phase."""
    out, level, answers = [], dict.fromkeys(contexts(s.p), 0), iter(s.t)
    for phase in s.phases:
        out.append([ctx for ctx, n in level.items() if n])
        for beat in (next(answers) for _ in (*phase.get("keys", []), *phase.get("then", []))):
            if beat["op"] != SWITCH:
                level[beat["ctx"]] = 0 if beat["op"] == CLEAR else beat["clusters"]
    return out


def check_interrupted_switches(shape):
    """A bus error or a stop in a SWITCH, then a reset: no table is lost, and the run goes on as golden.

    Counts what it exercised: errors at the number of clusters and at counts, stops before, in and behind the reads.
    """
    p, rng, hit = params(shape), Random(20), set()
    for seed in (1, 2, 3):
        s = play(p, seed, 40)
        layout, interrupts = p.layout(), {}
        some = filled(s)
        for number in fresh_phases(s):
            how = rng.choice([Item.LEVEL, "stop", *([Item.COUNT] if some[number] else [])])
            ctx = rng.choice(some[number] if how == Item.COUNT else contexts(p))
            end = {"after": rng.randrange(90)}
            if isinstance(how, Item):
                at = s.table_base + layout.address(how, ctx)
                end = {"errors": [at - at % p.table.bus_bytes], "at": how.name}
            interrupts[str(number)] = {"ctx": ctx, **end}
        config = s.config(0.2, 0.2, latency=(3, 25)) | {"interrupts": interrupts}
        got = Run(emitted(shape), "bench_dre", "phases", config, seed)()
        got["perf"] = s.perf()  # a reset clears the counters
        assert s.differences(got) == [], f"seed {seed}"
        for how, seen in zip(interrupts.values(), got["interrupts"], strict=True):
            if "errors" in how:
                hit |= {f"an error at {how['at']}"}
            else:
                hit |= {"a stop behind the reply" if seen["replied"] else f"a stop with reads: {bool(seen['asked'])}"}
                hit |= {"a stop while reads wait"} if seen["waiting"] else set()
    assert len(hit) == 6, hit


def check_goes_on_elsewhere(shape):
    """A second engine, with a copy of the memory at other addresses of the tables, goes on in mid-stream as golden."""
    p, cuts = params(shape), 0
    for seed in (4, 7):
        s = play(p, seed, 24)
        safe = fresh_phases(s)
        cut = safe[len(safe) // 2]
        config = s.config(0.2, 0.2)
        other = (s.table_base + PAGE * 77) % (1 << 32)
        ports = config["ports"] | {"table_base": other}
        first = Run(emitted(shape), "bench_dre", "phases", config | {"phases": s.phases[:cut]}, seed)()
        moved = {str(int(at) - s.table_base + other): byte for at, byte in first["memory"].items()}
        rest = config | {"phases": s.phases[cut:], "ports": ports, "memory": moved}
        second = Run(emitted(shape), "bench_dre", "phases", rest, seed + 1)()
        assert min(len(first["x"]), len(second["x"])), "each engine must offload"
        assert any(beat["op"] == 0 and not beat["is_new"] for beat in second["t"]), "no key joins an old cluster"
        got = {name: first[name] + second[name] for name in "twxb"} | {"perf": s.perf()}
        got["memory"] = {str(int(at) - other + s.table_base): byte for at, byte in second["memory"].items()}
        assert s.differences(got) == [], f"seed {seed}"
        cuts += 1
    assert cuts == 2


def check_first_rows_wait_for_the_cluster_set():
    """Behind a reset, rows of a context in memory come before the cluster set is clear; they take the view's cycles."""
    p = override(preset("tiny"), ["clusters=2048", "counts=8", "blocks=48"]).core.dre
    unit, rng, waited = emit("dre", p), np.random.default_rng(2), set()
    for clusters in (1, 2, 5, 8):
        s = Scenario(p, replace(p.function(), th_hd=1))
        s.keys(0, [3 * k for k in range(clusters)])
        s.switch(0)
        s.query(rng.integers(0, 1 << p.wtu.score.bits, (2, clusters)))
        config = s.config()
        before = Run(unit, "bench_dre", "phases", config | {"phases": s.phases[:1]})()
        got = Run(
            unit,
            "bench_dre",
            "phases",
            config | {"phases": s.phases[1:], "memory": before["memory"]},
        )()
        spans = [b - a for a, b in zip(got["first"], got["ends"], strict=True)]
        early = s.phase_cycles(got["latency"], [0, *got["first"]])[1:]
        assert spans == early, clusters
        waited |= {clusters} if early != s.phase_cycles(got["latency"])[1:] else set()
    assert waited == {1, 2, 5, 8}


def check_a_row_meets_no_switch():
    """Rows on offer around a SWITCH to another context: each is wholly of the context before, or of the one behind.

    The two contexts have as many clusters, and counts that select different ones.
    """
    p, seen = override(preset("tiny"), [*SMALL, "counts=16"]).core.dre, []
    unit, codes = emit("dre", p), np.full((1, 2), 1 << p.wtu.score.bits - 1)
    s = Scenario(p, replace(p.function(), th_hd=1, ratio_q16=40000))
    for ctx in (0, 1):
        s.keys(ctx, [0, 3, *[3 * ctx] * 20])  # the first cluster has nearly all tokens, or the second
    s.switch(0)
    wants = []
    for ctx in (0, 1):
        s.switch(ctx)
        s.query(codes)
        wants.append(len(s.b))
    config, n = s.config(), len(s.phases)
    by_context = {0: s.b[: wants[0]], 1: s.b[wants[0] :]}
    assert by_context[0] != by_context[1]
    rows = s.phases[-1]
    for late in range(40):
        crossing = rows | {"keys": s.phases[n - 2]["keys"], "late": late}
        got = Run(unit, "bench_dre", "phases", config | {"phases": [*s.phases[:3], crossing]})()
        seen.append(next(ctx for ctx, want in by_context.items() if got["b"] == want))
    assert seen == sorted(seen), "rows that come later are of an earlier context"
    assert set(seen) == {0, 1}
