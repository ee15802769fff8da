"""DRE: the joined units equal golden in bits and the time view in cycles, under stalls, resets, in every shape."""

import random
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest

from golden.function_params import ParamError
from hdl.emit import Emitted, emit
from hdl.params import DreParams, KvmuParams, override, preset
from hdl.retrieval import dre
from tb.library.dre_scenario import Scenario
from tb.library.runner import BenchError, Run

SMALL = ["clusters=12", "blocks=48"]  # tables and blocks that a short run fills
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
NEVER = {  # counters that stand still: other bins of the exact variant, rows that are always selected whole
    "buckets": {"wtu0.zooms"},
    "one": {"wtu0.zooms"},
}


def sizes(p: KvmuParams) -> dict[str, int]:
    """Bytes of the rings and of the blocks."""
    return {"device": p.n_ctx * p.recent * p.entry_bytes, "home": p.blocks * p.block_bytes}


def play(p: DreParams, seed: int, frames: int = 6) -> Scenario:
    """Frames of keys around a few centres, or anywhere, in every context; rows peaked at a few clusters.

    Keys of another context come right behind them or beside rows, rows of any behind rows.
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
            for _ in range(rng.randrange(1, 4)):  # two sets wait in the cluster set, the rows of a third one before it
                rows(rng.choice((ctx, other)), along=True)
        elif what == "keys" and other != ctx:
            frame(other, along=True)
    return s


def bins(s: Scenario) -> set[str]:
    """What happened between the units, by context."""
    hit: set[str] = set()
    news, blocks = iter(s.t), iter(zip(s.blocks, s.queries, strict=True))
    full = [set() for _ in range(s.p.hcu.n_ctx)]  # of each context, clusters that grew in a full table since its rows
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
BINS |= {
    f"{what} {ctx}"
    for what in ("rows of context", "a count of a full table, context", "CLEAR of context")
    for ctx in range(TINY.hcu.n_ctx)
}


@cache
def emitted(shape: str) -> Emitted:
    return emit("dre", params(shape))


def params(shape: str) -> DreParams:
    return override(preset("tiny"), SHAPES[shape]).core.dre


def run(unit: Emitted, s: Scenario, idle: float = 0.0, stall: float = 0.0, seed: int = 1, reset_at: int = 0, **how):
    """The scenario on the RTL."""
    return Run(unit, "tb.benches.bench_dre", "phases", s.config(idle, stall, reset_at), seed, **how)()


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_golden(shape, record_property):
    """Every beat and counter; no counter stands still, and in every context a full table's counts decide rows."""
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


def joined_otherwise(old: str, new: str) -> Emitted:
    """A DRE from the source of `hdl.retrieval.dre` with an edit."""
    source = Path(dre.__file__).read_text()
    assert source.count(old) == 1, f"mutant does not apply: {old!r}"
    module = ModuleType(dre.__name__)
    with patch.dict(sys.modules, {dre.__name__: module}):
        exec(compile(source.replace(old, new), dre.__file__, "exec"), vars(module))
        return emit("dre", TINY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("count.eq(joined.count)", "count.eq(joined.count - joined.full_join)"),  # one less where a table is full
        *(
            pytest.param(*edit, marks=pytest.mark.nightly)
            for edit in (
                ("wtu.c.payload.ctx.eq(joined.ctx)", "wtu.c.payload.ctx.eq(joined.ctx & 1)"),
                ("tag_in.ctx.eq(row.ctx)", "tag_in.ctx.eq(row.ctx & 2)"),
                ("(wtu.c, ~(joined.op == CLEAR))", "(wtu.c, 1)"),  # counts of a CLEAR
                ("open_.eq(~first | tags.w_rdy)", "open_.eq(1)"),  # a row without a place for its tag
            )
        ),
    ],
)
def test_mutants_of_the_join_are_killed(old, new):
    s = play(TINY, 6, 32)
    try:
        got = run(joined_otherwise(old, new), s, 0.3, 0.3, waves=False)
    except BenchError:
        return
    assert s.differences(got)


@pytest.mark.parametrize("reset_at", [3, 60, 333])
def test_reset_in_flight(reset_at):
    s = play(TINY, reset_at, 10)
    got = run(emitted("tiny"), s, 0.2, 0.2, reset_at, reset_at)
    assert s.differences(got) == []


def test_no_unit_looks_at_a_memory_after_a_write():
    """A single-port macro may put anything out then: here the complement of what is written."""
    e = emitted("tiny")
    read = "    if (en && !(|write)) r_data <= mem[addr];\n"
    assert e.verilog.count(read) == 1
    broken = e.verilog.replace(read, f"{read}    else if (en) r_data <= ~w_data;\n")
    s = play(TINY, 1, 24)
    got = run(replace(e, verilog=broken), s, 0.3, 0.3)
    assert s.differences(got) == []


def test_a_wrong_golden_is_noticed():
    """The comparison itself can fail: one bit of one expected beat of each stream."""
    s = play(TINY, 1, 24)
    got = run(emitted("tiny"), s)
    assert s.differences(got) == []
    for name, key in (("t", "cluster"), ("w", "home"), ("x", "dst"), ("b", "addr")):
        beats = getattr(s, name)
        assert beats, f"the scenario makes no beat on {name}"
        index = next(i for i, beat in enumerate(beats) if key in beat)
        beats[index] = {**beats[index], key: beats[index][key] ^ 1}
        assert len(s.differences(got)) == 1
        beats[index] = {**beats[index], key: beats[index][key] ^ 1}


def test_a_deadlock_says_where_it_stopped():
    """Phase, row, and the beat that waits at each stream."""
    s = Scenario(TINY, replace(TINY.function(), th_hd=1))
    s.keys(0, [1, 2, 3])
    s.label = "layer 4"
    s.query(0, np.array([[1, 2, 3]] * 2))
    unit = joined_otherwise("self.s.ready.eq(wtu.i.ready & open_)", "self.s.ready.eq(0)")
    c = s.config() | {"limit": 400}
    with pytest.raises(
        BenchError, match=r"layer 4 stands at key 0 of 0, row 0 of 2: no end after 400 .*; s: 0 beats went"
    ):
        Run(unit, "tb.benches.bench_dre", "phases", c, waves=False)()


def test_units_must_agree():
    with pytest.raises(ParamError, match="token_bits.*same in every unit"):
        replace(TINY, kvmu=replace(TINY.kvmu, token_bits=9)).joined()
