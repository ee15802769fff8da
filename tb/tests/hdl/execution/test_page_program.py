"""Codes of keys and scores of pages on the RTL of a core: bytes of memory equal golden, cycles equal the time view."""

from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.program.isa import Instruction, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.emit import Emitted
from openvrex.sim.units.lxe_time import Run as TimeRun
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.lxe_time_checks import differences
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.page_runs import PageRun, asked
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.small_models import CODES, PORTS, params
from openvrex.tb.library.small_models import SIZES as CORE

SHAPE = LayerShape(width=8, heads=4, kv_heads=2, head_size=8, ffn=8, tokens=3, recent=8, entries=0)
PAGE = PageParams(page=2, mean=4, numbers=2, recent=4)


@cache
def emitted(more: tuple[str, ...]) -> Emitted:
    return emit("core", params(*more))


def page_run(more: tuple[str, ...] = ()) -> PageRun:
    own = to_bf16(np.random.default_rng(1).standard_normal((2, 2, 2, 8)))
    run = PageRun(params(*more).lxe_format(), SHAPE, 16, PAGE, KeyMatrices(*own))
    assert run.plan.index.coded == bool(more)
    return run


WHOLE = (*CODES, "dpe.halves=false")


@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.nightly), CODES, WHOLE])
def test_scores_of_pages_equal_golden(more):
    """Without a page, with part of a step, with whole steps, with all that there is room for; bytes of all memory."""
    run, rng, seen = page_run(more), np.random.default_rng(2), set()
    script = Script(run.memory, [r.name for r in run.memory.regions])

    def execute(program: list[Instruction]) -> None:
        script.add(program, run.registers)
        run.lxe.run(program, run.registers)
        script.expect()

    run.execute = execute
    for tokens in (0, 4, 8, 20):
        run.append(to_bf16(rng.standard_normal((tokens, 2, 8)) * 2 + 1))
        q, sums = asked(run, rng)
        want = run.keys.page_scores(q, sums)
        got = run.run()
        np.testing.assert_array_equal(got, want)
        seen |= set(got.ravel().tolist())
    ran, after = script.play(emitted(more), PORTS)
    assert not script.differences(ran, after)
    assert run.pages == run.plan.index.pages == 16
    assert len(np.unique(run.keys.gains)) > 4
    assert len(seen) > 40


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        ("code1", CODES),
        ("sums", CODES),
        ("turn", CODES),
        ("rank1", CODES),
        pytest.param("rank1", (), marks=pytest.mark.nightly),
        pytest.param("rank1", WHOLE, marks=pytest.mark.nightly),
    ],
)
def test_cycles_are_those_of_the_time_view(stage, more):
    """The cycles that `docs/papers/recall.md` gives come from this time view."""
    latency, run, rng = 9, page_run(more), np.random.default_rng(3)
    run.append(to_bf16(rng.standard_normal((28, 2, 8))))
    [program] = run.programs(stage, stage)
    words = [f"{encode(i):x}" for i in program]
    config = {
        "params": [*CORE, *more],
        "runs": [{"program": words, "registers": run.registers, "writes": []}],
        "memory": bytes(1 << 16).hex(),
        "ports": PORTS,
        "latency": latency,
        "counters": emitted(more).manifest["counters"],
    }
    [got] = Run(emitted(more), "bench_lxe_time", "timed", config)()["runs"]
    assert got["done"] == run.cycles(params(*more), latency, stage)
    steps = trace(params(*more), [int(w, 16) for w in words], run.registers).steps
    view = TimeRun(params(*more), latency, steps, detail=True)
    view.play()
    assert not differences(view, got)
