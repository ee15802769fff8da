"""Units that equal their specifications: proofs, faults that they refute, and the specifications beside golden."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.golden.retrieval.wicsum import select
from openvrex.hdl.params import HcuParams
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN
from openvrex.tb.checks import hcu_checks, motion_mask_checks
from openvrex.tb.checks.cluster_set_checks import SIZES, listing, rows, unions
from openvrex.tb.formal.cluster_set_equality import ClusterSetSpec
from openvrex.tb.formal.hcu_equality import HcuSpec
from openvrex.tb.formal.motion_mask_equality import MotionMaskSpec
from openvrex.tb.formal.planted import planted
from openvrex.tb.formal.proofs import EQUAL, goals
from openvrex.tb.formal.wtu_equality import SMALL as SMALL_WTU
from openvrex.tb.formal.wtu_equality import WtuSpec
from openvrex.tb.formal.wtu_set_proof import TH_STEPS
from openvrex.tb.library.simulated import simulated

GOALS = {f"{g.unit}, {g.size}": g for g in goals() if g.claim == EQUAL}


SLOW = [name for name in GOALS if name.startswith(("motion_mask", "hcu", "wtu", "kvmu, placer"))]  # minutes


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in SLOW)) for n in GOALS])
def test_a_unit_equals_its_specification(name):
    """For every input, every stall, every content of memory, and resets at any time; without a bound."""
    verdict = GOALS[name].judge()
    assert verdict.kind == "unbounded", verdict.note
    assert verdict.reached
    assert verdict.edited


PLANTED = [
    "cluster_set, 6 clusters, 2 a word",
    "kvmu, walk, 4 blocks of 3",
    "register_block, registers of motion_mask_ip",
    pytest.param("kvmu, placer, blocks of 3", marks=pytest.mark.nightly),
    pytest.param("hcu, 2 lanes, 2 chunks", marks=pytest.mark.nightly),
    pytest.param("wtu, buckets, 2 lanes", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_refuted(name):
    """Three here; `vrex dev prove --equal` plants ten in each. Each leaves a trace, or is proved to change nothing."""
    found = list(planted(GOALS[name], 3))
    assert [f.kind for f in found].count("refuted") == 3
    assert {f.kind for f in found} <= {"refuted", "equal"}
    assert all(f.depth and f.claim and f.wave.exists() for f in found if f.kind == "refuted")


@pytest.mark.parametrize("size", ["tiny", "ragged", "one"])
def test_the_cluster_set_s_specification_is_golden(size):
    """Random sets of rows, listed as Python sets list them."""
    p, beats = SIZES[size], rows(SIZES[size], 1, 60)
    spec, given = ClusterSetSpec(p), []

    async def play(ctx):
        for beat in beats:
            ctx.set(spec.row, beat)
            ctx.set(spec.takes, 1)
            await ctx.tick()
            ctx.set(spec.takes, 0)
            ctx.set(spec.gives, 1)
            while ctx.get(spec.complete):
                given.append({name: ctx.get(spec.next[name]) for name in ("cluster", "last", "empty")})
                await ctx.tick()
            ctx.set(spec.gives, 0)

    simulated(spec, play)
    wanted = listing(unions(p, beats))
    assert given == wanted
    assert any(beat["empty"] for beat in wanted) or size == "one"
    assert len(wanted) > 40


@pytest.mark.parametrize("size", ["tiny", "ragged", "one", "one-token", "residuals", "residuals-one"])
def test_the_motion_mask_s_specification_is_golden(size):
    """Frames of several GOPs and sizes, masks growing, blocks at the limit of tau."""
    p = motion_mask_checks.SIZES[size]
    frames = motion_mask_checks.stream(p, 1, 30) + motion_mask_checks.covering(p, 2, 15)
    spec, given = MotionMaskSpec(p), []
    blocks = iter(motion_mask_checks.bits(p, frames))

    async def play(ctx):
        for frame in motion_mask_checks.beats(p, frames):
            ctx.set(spec.frame, frame)
            ctx.set(spec.frames, 1)
            await ctx.tick()
            ctx.set(spec.frames, 0)
            ctx.set(spec.blocks, 1)
            while ctx.get(spec.left):
                ctx.set(spec.block.as_value(), next(blocks))
                await ctx.tick()
            ctx.set(spec.blocks, 0)
            ctx.set(spec.rows, 1)
            while ctx.get(spec.complete):
                given.append({name: ctx.get(spec.row[name]) for name in ("tokens", "whole", "last")})
                await ctx.tick()
            ctx.set(spec.rows, 0)

    simulated(spec, play)
    assert given == motion_mask_checks.listing(p, frames)
    assert len({row["tokens"] for row in given}) >= min(3, 1 << p.tokens)


def stepped(spec, beats, th_hd) -> list[dict]:
    """Results of an HCU's specification for keys, a step each."""
    given = []

    async def play(ctx):
        ctx.set(spec.th_hd, th_hd)
        ctx.set(spec.steps, 1)
        for beat in beats:
            ctx.set(spec.key, beat)
            given.append({name: ctx.get(spec.result[name]) for name, _ in spec.result.shape()})
            await ctx.tick()

    simulated(spec, play)
    return given


@pytest.mark.parametrize("size", ["one", "ragged", "newest-one", "newest-lanes"])
def test_the_hcu_s_specification_is_golden(size):
    """Keys of several contexts around a few centres, CLEARs and SWITCHes, at several thresholds."""
    p = hcu_checks.SIZES[size]
    for th_hd in (0, max(1, p.n_hp // 4), p.n_hp + 1):
        beats = hcu_checks.stream(p, th_hd, 200, 4, 0.05)
        given = stepped(HcuSpec(p), beats, th_hd)
        wanted = hcu_checks.golden(p, th_hd, beats).out
        for got, want in zip(given, wanted, strict=True):
            same = [n for n in got if n != "cluster" or got["op"] == JOIN]
            assert {n: got[n] for n in same} == {n: int(want[n]) for n in same}
        assert any(b["is_new"] for b in given)


def test_the_hcu_s_specification_is_golden_for_every_small_table():
    """Every table of at most three clusters of two hash bits, every key and threshold."""
    p = HcuParams(n_w=1, n_hp=2, clusters=3, n_ctx=1, tile=1, frame=1, token_bits=1)
    tables = [t for level in range(p.clusters + 1) for t in product(range(4), repeat=level)]
    spec, wrong = HcuSpec(p), []

    async def play(ctx):
        async def step(th_hd, op, key_hash=0):
            ctx.set(spec.th_hd, th_hd)
            ctx.set(spec.key, {"op": op, "hash": key_hash})
            r = ctx.get(spec.result)
            await ctx.tick()
            return r["cluster"], r["is_new"], r["full_join"], r["clusters"]

        ctx.set(spec.steps, 1)
        for table, key, th_hd in product(tables, range(4), range(4)):
            golden = Clusterer(ReSVParams(n_hp=p.n_hp, th_hd=th_hd, max_clusters=p.clusters))
            golden.load(np.array(table, np.uint64).reshape(-1, 1), np.ones(len(table), np.int64))
            await step(0, CLEAR)
            for k in table:  # opens a cluster at a threshold of 0
                await step(0, JOIN, k)
            got, j = await step(th_hd, JOIN, key), golden.add(key)
            if got != (j.cluster, j.is_new, j.full_join, len(golden)):
                wrong.append((table, key, th_hd, got))

    simulated(spec, play)
    assert len(tables) == 85
    assert not wrong


@pytest.mark.parametrize("change", [{}, {"budget": True}, {"selection": "buckets"}], ids=["exact", "budget", "buckets"])
def test_the_wtu_s_specification_is_golden(change):
    """Every row of at most three clusters of two-bit codes and one-bit counts, at every quarter of a ratio."""
    p = replace(SMALL_WTU, clusters=3, counts=3, **change)
    spec, wrong, seen = WtuSpec(p), [], set()

    async def play(ctx):
        for n in (1, 2, 3):
            tables = product(range(1 << p.count_bits), repeat=n)
            for counts, codes, th in product(tables, product(range(1 << p.score.bits), repeat=n), range(5)):
                row = {"codes": [*codes, *[3] * (3 - n)], "top": n - 1, "ratio": 0 if p.budget else th}
                ctx.set(spec.counts, [*counts, *[1] * (3 - n)])
                ctx.set(spec.row, row | ({"budgeted": 1, "budget": th} if p.budget else {}))
                f = ReSVParams(
                    score=p.score,
                    count_bits=p.count_bits,
                    ratio_q16=th << 16 - TH_STEPS if th and not p.budget else 0,
                    selection=p.selection,
                    n_buckets=p.n_buckets,
                )
                want = select(np.array(codes), np.array(counts), f, th + 1 if p.budget else None)
                mask = sum(int(bit) << k for k, bit in enumerate(want.mask))
                seen.add(mask)
                if ctx.get(spec.chosen) != mask:
                    wrong.append((codes, counts, th))

    simulated(spec, play)
    assert len(seen) >= 5
    assert not wrong
