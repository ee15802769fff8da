"""Units that equal their specifications: proofs, faults that they refute, and the specifications beside golden."""

import pytest
from amaranth.sim import Simulator

from openvrex.tb.checks import motion_mask_checks
from openvrex.tb.checks.cluster_set_checks import SIZES, listing, rows, unions
from openvrex.tb.formal.cluster_set_equality import ClusterSetSpec
from openvrex.tb.formal.motion_mask_equality import MotionMaskSpec
from openvrex.tb.formal.planted import planted
from openvrex.tb.formal.proofs import EQUAL, goals

GOALS = {f"{g.unit}, {g.size}": g for g in goals() if g.claim == EQUAL}


SLOW = [name for name in GOALS if name.startswith("motion_mask")]  # minutes


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in SLOW)) for n in GOALS])
def test_a_unit_equals_its_specification(name):
    """For every input, every stall, every content of memory, and resets at any time; without a bound."""
    verdict = GOALS[name].judge()
    assert verdict.kind == "unbounded", verdict.note
    assert verdict.reached
    assert verdict.edited


def test_planted_faults_are_refuted():
    """Three here; `vrex dev prove --equal` plants ten in each. Each leaves a trace, or is proved to change nothing."""
    found = list(planted(GOALS["cluster_set, 6 clusters, 2 a word"], 3))
    assert [f.kind for f in found].count("refuted") == 3
    assert {f.kind for f in found} <= {"refuted", "equal"}
    assert all(f.depth and f.claim and f.wave.exists() for f in found if f.kind == "refuted")


def simulated(spec, play) -> None:
    """Runs a specification beside a coroutine that drives it."""
    simulator = Simulator(spec)
    simulator.add_clock(1e-6)
    simulator.add_testbench(play)
    simulator.run()


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
