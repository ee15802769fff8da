"""The core IP: layers run by software through registers and an interrupt; faults, resets, mutants."""

import tempfile
from functools import cache
from pathlib import Path

import pytest

from golden.function_params import ParamError
from golden.program.core_host import CoreHost
from golden.program.isa import Status
from hdl.bus.register_block import address_map
from hdl.emit import Emitted, emit
from hdl.params import override, preset
from tb.library.lxe_programs import Ran, Script
from tb.library.runner import Run, lint, survivors
from tb.tests.hdl.execution.test_core import LAYERS, SHAPE, SIZES, interruptions, params, passes, ports


@cache
def emitted() -> Emitted:
    return emit("core_ip", params())


def counters() -> list[str]:
    """The registers of the core's counters."""
    return ["perf." + name.replace("wtu0", "wtu[0]") for name in emitted().manifest["counters"]]


def play(unit: Emitted, h: CoreHost, script: Script, pause: float = 0.0, seed: int = 1, **how) -> list[Ran]:
    """The runs of a script, which leave golden's memory."""
    how |= {"bench": "tb.benches.bench_core_ip", "params": list(SIZES), "counters": counters()}
    ran, after = script.play(unit, ports(h), pause, seed=seed, **how)
    wrong = script.differences(ran, after)
    assert not wrong, wrong
    return ran


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "pause", "count"), [(1, 0.0, 2), (3, 0.3, 2)])
def test_layers_equal_golden(seed, pause, count):
    """Every byte of memory after every run, and every counter as on the core without registers."""
    h, script, _ = passes(seed, count)
    ran = play(emitted(), h, script, pause, seed)
    assert ran[-1].perf["retriever.entries"] == count * LAYERS * SHAPE.tokens
    if not pause:
        bare, _ = script.play(emit("core", params()), ports(h), seed=seed)
        one = {"lxe.sequencer.instructions": 1}  # HALT is counted in the cycle in which the other bench looks
        assert [r.perf for r in ran] == [r.perf | {k: r.perf[k] + n for k, n in one.items()} for r in bare]


def faults(unit: Emitted, chosen: slice = slice(None)) -> list[bool]:
    """Whether each interruption ended as it must, and the core was then as at first."""
    h, cases, before = interruptions()
    cases = cases[chosen]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "memory.bin")
        before.tofile(path)
        c = {"cases": cases, "memory": str(path), "limit": 5000, "params": list(SIZES)}
        got = Run(unit, "tb.benches.bench_core_ip", "faults", c, waves=False)()["cases"]
    out = []
    for case, (codes, moves, after) in zip(cases, got, strict=True):
        data = bytes.fromhex(after)
        wants = [r for r in h.memory.regions if r.name in ("rings", "weights 0")]
        same = all(data[r.base : r.end] == r.data.tobytes() for r in wants)
        want = [Status.BUS if case["errors"] else Status.DONE, Status.DONE]
        out.append(codes == want and same and not moves)
    return out


def test_faults_and_resets_leave_a_core_that_works():
    assert all(faults(emitted()))


MUTANTS = [
    ("assign unit_rst = rst | reset", "assign unit_rst = rst"),
    ("assign may_reset = ", "assign may_reset = 1 | "),
    ("assign \\i.irq.done  = ", "assign \\i.irq.done  = 0 & "),
    ("assign \\i.irq.fault  = ", "assign \\i.irq.fault  = 0 & "),
    ("assign \\i.status.resets  = ", "assign \\i.status.resets  = 0 & "),
    ("assign \\host__payload.op  = ", "assign \\host__payload.op  = 2'h2 | "),
    ("program__payload[43:12], part6, part5,", "program__payload[43:12], part5, part5,"),
]


@pytest.mark.nightly
def test_mutants_are_killed():
    assert not survivors(emitted(), MUTANTS, lambda unit: all(faults(unit, slice(4, 6))))


def test_lints(tmp_path):
    assert not lint(emitted(), tmp_path)


def test_parameters_that_do_not_fit_together_are_refused():
    with pytest.raises(ParamError, match=r"entry_bytes=36.*multiple of a word"):
        address_map("core_ip", override(preset("tiny"), [*SIZES, "entry_bytes=36"]).core)
