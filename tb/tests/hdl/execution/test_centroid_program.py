"""Nearest centroids on the RTL of a core: bytes of memory equal golden, events are in the cycles of the time view."""

from functools import cache

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.program.isa import encode
from openvrex.golden.retrieval import centroids
from openvrex.hdl.emit import Emitted
from openvrex.sim.units.lxe_time import Run as TimeRun
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.lxe_time_checks import differences
from openvrex.tb.library.centroid_runs import CentroidRun
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.small_models import PORTS, params
from openvrex.tb.library.small_models import SIZES as CORE

# Tokens and clusters of directions of 16 numbers: one of each, a ragged tile, several rows at once, a full bank.
SIZES = [(1, 1), (3, 5), (8, 12), (8, 33)]


@cache
def emitted() -> Emitted:
    return emit("core", params())


def test_nearest_centroids_equal_golden():
    rng, seen = np.random.default_rng(5), {"ties": 0, "closed": 0, "numbers": set()}
    for tokens, clusters in SIZES:
        run = CentroidRun(params().lxe_format(), 16, tokens, clusters)
        script = Script(run.memory, [r.name for r in run.memory.regions])
        for kind in ("directions", "integers", "closed"):
            if kind == "integers":
                x, m = (rng.integers(-1, 2, (n, 16)).astype(BF16) for n in (tokens, clusters))
                m[-1] = m[0]
            else:
                x, m = (
                    centroids.directions(rng.normal(size=(n, 16)).astype(BF16), run.plan.fmt.dot)
                    for n in (tokens, clusters)
                )
            open_ = np.arange(clusters) % 3 == 0 if kind == "closed" else None
            score = run.give(x, m, open_)
            script.add(run.program(), run.registers)
            number, _ = run.run()
            script.expect()
            np.testing.assert_array_equal(number, score.argmax(axis=1))
            seen["ties"] += int(((score == score.max(axis=1, keepdims=True)).sum(axis=1) > 1).sum())
            seen["closed"] += kind == "closed" and clusters > 1
            seen["numbers"] |= set(number.tolist())
        ran, after = script.play(emitted(), PORTS)
        assert len(ran) == 3
        assert not script.differences(ran, after)
    assert seen["ties"] > 0 < seen["closed"]
    assert len(seen["numbers"]) > 8


def test_cycles_are_those_of_the_time_view():
    """The figures of `docs/policies.md` come from this time view."""
    latency, run = 9, CentroidRun(params().lxe_format(), 16, 8, 33)
    words = [f"{encode(i):x}" for i in run.program()]
    config = {
        "params": list(CORE),
        "runs": [{"program": words, "registers": run.registers, "writes": []}],
        "memory": bytes(1 << 16).hex(),
        "ports": dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0),
        "latency": latency,
        "counters": emitted().manifest["counters"],
    }
    [got] = Run(emitted(), "bench_lxe_time", "timed", config)()["runs"]
    assert got["done"] == run.cycles(params(), latency)
    steps = trace(params(), [int(w, 16) for w in words], run.registers).steps
    view = TimeRun(params(), latency, steps, detail=True)
    view.play()
    assert not differences(view, got)
