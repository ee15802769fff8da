"""Checks of the history branch on the RTL of an LXE: golden's memory, and every event in the time view's cycle."""

from functools import cache

import numpy as np

from golden.policies.state_space import StateSpaceParams
from golden.program.isa import Status, encode
from hdl.emit import Emitted, emit
from hdl.params import override, preset
from sim.units.lxe_time import Run
from sim.units.sequencer_time import trace
from tb.checks.lxe_time_checks import COUNTERS, events
from tb.library.branch_runs import BranchRun
from tb.library.lxe_programs import image
from tb.library.runner import Run as Bench

SIZES = ("lxe.i_depth=256", "vpe.depth=16", "lxe.queue=4", "features=hybrid")
PARAMS = StateSpaceParams(state=4)
WIDTH, TOKENS, PASSES, LATENCY = 8, 3, 2, 20


@cache
def params():
    return override(preset("tiny"), list(SIZES)).core


@cache
def emitted() -> Emitted:
    return emit("lxe", params())


def check_the_branch_equals_golden_and_time_view(*unit: Emitted) -> dict[str, int]:
    """Passes of one stream, which carry the state on in memory; the words of each VPE function that they took."""
    own, rng = BranchRun(params().lxe_format(), WIDTH, TOKENS, PARAMS), np.random.default_rng(4)
    e, program = unit[0] if unit else emitted(), own.plan.program()
    words = [f"{encode(i):x}" for i in program]
    runs, first, last = [], None, image(own.memory)
    for _ in range(PASSES):
        own.give(rng.standard_normal((TOKENS, WIDTH)), rng.standard_normal((TOKENS, WIDTH)))
        now = image(own.memory)
        first = now if first is None else first
        at = np.flatnonzero(now != last) if runs else []
        writes = [[int(a), f"{now[a]:02x}"] for a in at]
        runs.append({"program": words, "registers": own.registers, "writes": writes})
        own.lxe.run(program, own.registers)
        last = image(own.memory)
    config = {"params": list(SIZES), "runs": runs, "memory": first.tobytes().hex(), "ports": {}, "latency": LATENCY}
    got = Bench(e, "tb.benches.bench_lxe_time", "timed", config | {"counters": e.manifest["counters"]})()
    after = np.frombuffer(bytes.fromhex(got["memory"]), np.uint8)
    for r in own.memory.regions:
        known = np.ones(r.size, bool) if r.unknown is None else ~r.unknown
        np.testing.assert_array_equal(after[r.base : r.end][known], r.data[known], r.name)
    run = Run(params(), LATENCY, trace(params(), [encode(i) for i in program], own.registers).steps, detail=True)
    run.play()
    for one in got["runs"]:
        assert Status(one["status"]["code"]) == Status.DONE
        assert one["done"] == run.out.done
        for name, want in events(run).items():
            assert [c - COUNTERS[name] for c in one["events"][name]] == want, name
    return {"done": run.out.done, "programs": len(program)}
