"""Checks of the DRE, shared by tests, mutants, coverage and stress: beats, bursts and counters of the joined units."""

import random
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from hdl.emit import Emitted, emit
from hdl.params import DreParams, KvmuParams, override, preset
from tb.library.dre_scenario import Scenario
from tb.library.runner import Run
from tb.library.stress_traffic import StressTraffic, stall_rate

SMALL = ["clusters=12", "blocks=48"]  # a short run fills these tables and blocks
TINY = override(preset("tiny"), SMALL).core.dre
SHAPES = {
    "tiny": SMALL,
    "buckets": [*SMALL, "selection=buckets"],
    "cores": [*SMALL, "wtu.n_h=3", "hcu.n_h=2"],
    "single-buffer": [*SMALL, "double_buffer=false", "recent=1"],
    "one": [
        "hcu.n_w=1",
        "n_hp=1",
        "wtu.n_w=1",
        "clusters=1",
        "n_ctx=1",
        "frame=1",
        "blocks=3",
        "block_slots=1",
        "recent=1",
    ],
}
NEVER = {  # counters that stand still: buckets have no zooms, and a row of one cluster needs none
    "buckets": {"wtu0.zooms"},
    "one": {"wtu0.zooms"},
}


def sizes(p: KvmuParams) -> dict[str, int]:
    """Bytes of the rings and of the blocks."""
    return {"device": p.n_ctx * p.recent * p.entry_bytes, "home": p.blocks * p.block_bytes}


def play(p: DreParams, seed: int, frames: int = 6) -> Scenario:
    """Random frames in all contexts: keys around a few centres or anywhere, rows that peak at a few clusters.

    Keys of another context follow right behind, or come beside rows. Rows of any context follow right behind rows.
    """
    rng = random.Random(seed)
    nrng = np.random.default_rng(seed)
    top = {name: (1 << p.kvmu.addr_bits) - size for name, size in sizes(p.kvmu).items()}
    near = rng.choice((max(1, p.hcu.n_hp // 4), rng.randrange(p.hcu.n_hp + 2)))
    function = {"th_hd": near, "ratio_q16": rng.choice((52429, 65535, rng.randrange(1 << 16)))}
    s = Scenario(p, replace(p.function(), **function), *(rng.randrange(n) for n in top.values()))
    s.tokens = [rng.randrange((1 << p.hcu.token_bits) - 10 * frames) for _ in s.tokens]
    centres = [rng.getrandbits(p.hcu.n_hp) for _ in range(max(2, p.hcu.clusters // 2))]

    def frame(ctx: int, along: bool = False) -> None:
        bits = rng.choice([0, 1, 2, p.hcu.n_hp])
        flips = [sum(1 << rng.randrange(p.hcu.n_hp) for _ in range(bits)) for _ in range(rng.randrange(1, 10))]
        s.label = f"keys of context {ctx}, phase {len(s.phases)}"
        if rng.random() < 0.1:
            s.clear(ctx, along)
            along = True
        s.keys(ctx, [(rng.choice(centres) ^ f) & (1 << p.hcu.n_hp) - 1 for f in flips], along)

    def rows(ctx: int, along: bool = False) -> None:
        n, best = len(s.model.tables[ctx]), (1 << p.wtu.score.bits) - 1
        codes = best - nrng.exponential(nrng.choice([1, 100, 400, best]), (rng.randrange(1, 5), n))
        codes = np.where(nrng.random(codes.shape) < 0.1, 0, np.maximum(0, codes)).astype(int)
        s.label = f"rows of context {ctx}, phase {len(s.phases)}"
        s.query(ctx, codes, along)

    for _ in range(frames):
        ctx = rng.randrange(p.hcu.n_ctx)
        other = (ctx + rng.randrange(p.hcu.n_ctx)) % p.hcu.n_ctx
        frame(ctx)
        if other != ctx:
            frame(other, along=True)
        rows(ctx)
        what = rng.choice(("rows", "keys", "nothing"))
        if what == "rows":
            for _ in range(rng.randrange(1, 4)):  # two sets wait in the cluster set, and rows of a third one before it
                rows(rng.choice((ctx, other)), along=True)
        elif what == "keys" and other != ctx:
            frame(other, along=True)
    return s


def bins(s: Scenario) -> set[str]:
    """Events between the units, by context."""
    hit: set[str] = set()
    news, blocks = iter(s.t), iter(zip(s.blocks, s.queries, strict=True))
    full = [set() for _ in range(s.p.hcu.n_ctx)]  # of each context, clusters grown in a full table since its rows
    for phase in s.phases:
        for n in range(phase.get("blocks", 0)):
            (ctx, codes), q = next(blocks)
            hit |= {f"rows of context {ctx}"}
            hit |= {f"a count of a full table, context {ctx}"} if full[ctx] & set(q.clusters) else set()
            hit |= {"keys beside rows"} if "keys" in phase else set()
            hit |= {"rows behind rows"} if n else set()
            hit |= {"part of a row"} if (q.rows.clusters < codes.shape[1]).any() else set()
            hit |= {"a whole row"} if (q.rows.clusters == codes.shape[1]).any() else set()
            hit |= {"nothing to fetch"} if not q.bursts else set()
            full[ctx] = set()
        for beat in (next(news) for _ in phase.get("keys", [])):
            ctx = beat["ctx"]
            if beat["op"]:
                hit |= {f"CLEAR of context {ctx}"}
                full[ctx] = set()
            elif beat["full_join"]:
                full[ctx].add(beat["cluster"])
    return hit


BINS = {"keys beside rows", "rows behind rows", "part of a row", "a whole row", "nothing to fetch"}


@cache
def emitted(shape: str) -> Emitted:
    return emit("dre", params(shape))


def params(shape: str) -> DreParams:
    return override(preset("tiny"), SHAPES[shape]).core.dre


def run(unit: Emitted, s: Scenario, idle: float = 0.0, stall: float = 0.0, seed: int = 1, reset_at: int = 0, **how):
    """Run the scenario on the RTL."""
    return Run(unit, "tb.benches.bench_dre", "phases", s.config(idle, stall, reset_at), seed, **how)()


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
    for seed, idle, stall in ((14, 0.0, 0.0), (5, 0.3, 0.3), (6, 0.0, 0.7)):
        s = play(p, seed, 32)
        got = run(unit, s, idle, stall, seed)
        assert s.differences(got) == [], f"seed {seed}"
        if not (idle or stall) and p.wtu.n_h == 1:
            assert s.cycles_differ(got) == []
        hit |= bins(s)
        moves |= {name for name, n in got["perf"].items() if n}
    assert set(unit.manifest["counters"]) - moves == NEVER.get(shape, set())
    if shape != "one":
        record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
        assert hit == BINS, BINS - hit


def check_reset_in_flight(reset_at):
    s = play(TINY, reset_at, 10)
    got = run(emitted("tiny"), s, 0.2, 0.2, reset_at, reset_at)
    assert s.differences(got) == []
