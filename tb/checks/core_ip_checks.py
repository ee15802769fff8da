"""Checks of the core's IP block, shared by tests, mutants, coverage and stress: the core as software sees it."""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Self

from openvrex.golden.program.isa import Instruction, Opcode, Retrieve, Status, encode
from openvrex.golden.program.regions import EVERYTHING, Allow, Reach, confined
from openvrex.hdl.emit import Emitted
from openvrex.tb.checks.core_checks import (
    BINS,
    LAYERS,
    SHAPE,
    SIZES,
    bins,
    forget,
    interruptions,
    params,
    passes,
    ports,
)
from openvrex.tb.library.core_host import CoreHost
from openvrex.tb.library.lxe_programs import Ran, Script
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.stress_traffic import StressTraffic


@cache
def emitted(more: tuple[str, ...] = ()) -> Emitted:
    return emit("core_ip", params(more=more))


def play(
    unit: Emitted, h: CoreHost, script: Script, pause: float = 0.0, seed: int = 1, more: tuple[str, ...] = (), **how
) -> list[Ran]:
    """Play a script through registers; the runs, after checking that memory equals golden's.

    more : changes of the sizes that `unit` has
    """
    counters = ["perf." + name.replace("wtu0", "wtu[0]") for name in unit.manifest["counters"]]
    how |= {"bench": "bench_core_ip", "params": [*SIZES, *more], "counters": counters}
    ran, after = script.play(unit, ports(h), pause, seed=seed, **how)
    wrong = script.differences(ran, after)
    assert not wrong, wrong
    return ran


@dataclass
class RandomTraffic(StressTraffic):
    """One to three passes, driven over AXI4-Lite."""

    seed: int
    count: int
    pause: float

    @classmethod
    def random(cls, rng: Random) -> Self:
        return cls(rng.getrandbits(31), rng.randint(1, 3), rng.choice((0.0, 0.3)))

    def play(self) -> Any:
        host, script, _ = passes(self.seed, self.count)
        return play(emitted(), host, script, self.pause, self.seed)  # compares memory with golden's

    def check(self, got: Any) -> int:
        return got[-1].perf["lxe.sequencer.instructions"]


def check_layers_equal_golden(seed, pause, count, record_property, more=(), **function):
    """Memory after every run equals golden's, and every counter that of the core without registers.

    The run of seed 1 reaches what the core's own does.
    """
    h, script, fetched = passes(seed, count, more=more, **function)
    ran = play(emitted(more), h, script, pause, seed, more)
    assert ran[-1].perf["retriever.entries"] == count * LAYERS * SHAPE.tokens
    if not pause:
        bare, _ = script.play(emit("core", params(more=more)), ports(h), seed=seed)
        one = {"lxe.sequencer.instructions": 1}  # HALT counts in the cycle in which the other bench reads
        assert [r.perf for r in ran] == [r.perf | {k: r.perf[k] + n for k, n in one.items()} for r in bare]
    if seed == 1:
        hit = bins(ran, fetched)
        record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
        assert hit >= BINS, BINS - hit


def wrong_programs(h: CoreHost, whole: dict) -> list[dict]:
    """Programs that store outside the regions, reach for a context without memory, send a row that its context lacks,
    or do not end."""

    def words(program: list[Instruction]) -> list[str]:
        return [f"{encode(i):x}" for i in program]

    def elsewhere(i: Instruction) -> Instruction:
        other = {"base": 0, "addr": 1}  # an empty context
        switches = i.op == Opcode.RETRIEVE and i["action"] == Retrieve.SWITCH
        return Instruction(i.op, i.values | other) if switches else i

    last, n = h.memory.regions[-1].end - 1, 3
    setting = whole["ports"] | confined([Reach(0, last)])
    endless = [Instruction(Opcode.LOOP, {"count": 65535, "end": 2 * n - i}) for i in range(n)]
    endless += [Instruction(Opcode.SYNC, {}), *[Instruction(Opcode.END, {})] * n, Instruction(Opcode.HALT, {})]
    bad = {
        Status.BUS: [{"ports": setting | confined([Reach(0, last, EVERYTHING & ~Allow.STORE)])}],
        Status.RANGE: [{"ports": setting | {"contexts": 0}}, {"program": words(forget(h.core.dre.kv.n_ctx))}],
        Status.LENGTH: [{"program": words([elsewhere(i) for i in h.program(0)])}],
        Status.TIMEOUT: [{"program": words(endless), "ports": setting | {"watchdog": 300}}],
    }
    regions = {r.name: [r.base, r.end] for r in h.memory.regions}
    out = []
    for status, several in bad.items():
        kept = [regions["home"]] if status == Status.LENGTH else [regions["home"], regions["tables"]]
        of_all = whole | {"errors": [], "ports": setting | {"watchdog": 0}, "want": status, "kept": kept}
        out += [of_all | {"bad": fields} for fields in several]
    return out


def faults(unit: Emitted, chosen: slice = slice(None)) -> list[bool]:
    """For each interruption: it ended as it must, and the core works again after a reset."""
    h, cases, before = interruptions()
    cases = [*cases, *wrong_programs(h, cases[0])][chosen]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "memory.bin")
        before.tofile(path)
        c = {"cases": cases, "memory": str(path), "limit": 5000, "params": list(SIZES)}
        got = Run(unit, "bench_core_ip", "faults", c, waves=False)()["cases"]
    out = []
    for case, (codes, moves, kept, after) in zip(cases, got, strict=True):
        data = bytes.fromhex(after)
        wants = [r for r in h.memory.regions if r.name in ("rings", "weights 0")]
        same = all(data[r.base : r.end] == r.data.tobytes() for r in wants)
        want = [case.get("want", Status.BUS if case["errors"] else Status.DONE), Status.DONE]
        out.append(codes == want and same and kept and not moves)
    return out


def check_faults_and_resets_leave_a_core_that_works():
    assert all(faults(emitted()))
