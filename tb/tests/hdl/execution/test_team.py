"""Layers on teams of cores, on RTL: every byte of memory equals golden after each member's part of each phase."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.program.isa import Status, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.tb.checks.core_checks import emitted, params
from openvrex.tb.checks.lxe_time_checks import differences, simulate, timed
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.random_layers import turns, weights
from openvrex.tb.library.team_layers import PHASES, TeamHost

SHAPE = LayerShape(width=16, heads=2, kv_heads=1, head_size=8, ffn=32, tokens=3, recent=8, entries=29)
GROUPS = replace(SHAPE, heads=4, kv_heads=2, recent=16, tokens=2)
LONG = replace(SHAPE, tokens=1, entries=1100)  # rows of scores that a bank does not hold
PORTS = dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0)


def play(shape: LayerShape, members: int, passes: list[int], phases: Iterable[str] = PHASES) -> TeamHost:
    """Passes with so many entries behind the ring. One core runs the members' programs, one after the other."""
    rng = np.random.default_rng(members)
    host = TeamHost(shape, params().lxe_format(), members, weights(shape, rng))
    script = Script(host.memory, ["work"])
    for k, many in enumerate(passes):
        host.fetch(rng.normal(size=(many, 2, shape.kv_heads, shape.head_size)).astype(BF16))
        hidden = rng.normal(size=(shape.tokens, shape.width)).astype(np.float32)
        host.begin(hidden, *turns(shape, k * shape.tokens), k * shape.tokens)
        for phase in phases:
            for member, program, registers in host.steps(phase):
                script.add(program, registers)
                host.units[member].run(program, registers)
                script.expect()
    ran, after = script.play(emitted(), PORTS)
    assert len(ran) == len(passes) * sum(members if PHASES[name][2] else 1 for name in phases)
    assert not script.differences(ran, after)
    return host


@pytest.mark.parametrize("members", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_a_team_equals_golden(members):
    """Without entries behind the ring, all members but one have none; then each has some, the last pair not full."""
    host = play(SHAPE, members, [0, 5, 29])
    assert [plan.near for plan in host.plans] == [8] + [0] * (members - 1)


def test_a_team_with_groups_equals_golden():
    host = play(GROUPS, 3, [3, 21])
    assert [len(plan.team.rows(8)) for plan in host.plans] == [2, 3, 3]


@pytest.mark.nightly
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_long_rows_of_a_team_equal_golden(kv_heads):
    host = play(replace(LONG, kv_heads=kv_heads), 2, [1099], ("before", "attention", "join"))
    assert all(plan.part for plan in host.plans)
    pitch = [plan["probabilities"].shape[-1] // plan["scores"].shape[-1] for plan in host.plans]
    assert pitch == [kv_heads] * 2  # rows of several heads lie as far apart in bytes as those of scores


@pytest.mark.parametrize("latency", [pytest.param(1, marks=pytest.mark.nightly), 7])
def test_cycles_equal_the_time_view(latency):
    """Every program that members have for themselves; the time does not depend on the numbers in memory."""
    host = TeamHost(SHAPE, params().lxe_format(), 3, weights(SHAPE, np.random.default_rng(1)))
    host.entries = 13
    steps = [step for phase in ("attention", "join", "down_part", "down") for step in host.steps(phase)]
    runs = [{"program": [f"{encode(i):x}" for i in p], "registers": r, "writes": []} for _, p, r in steps]
    got = simulate(emitted(), runs, latency, PORTS, bytes(host.memory.regions[-1].end))
    assert len(got) == 12
    for (_, program, registers), run in zip(steps, got, strict=True):
        assert run["status"]["code"] == Status.DONE
        assert not differences(timed(program, latency, registers), run)
