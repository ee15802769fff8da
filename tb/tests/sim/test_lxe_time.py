"""The cycle model of programs against the RTL of a core: the cycle of every instruction, burst, beat, word, chunk."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from openvrex.golden.arithmetic.vector import Source
from openvrex.golden.program.isa import Instruction, LoadTo, Opcode, Status, StoreTo, encode
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.sim.units.lxe_time import LxeTime, Run
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.core_checks import (
    FEATURES,
    PUBLISHED,
    SHAPE,
    begin,
    budget_passes,
    emitted,
    host,
    params,
    ports,
)
from openvrex.tb.checks.lxe_time_checks import SHAPES, Program, differences, play, simulate, simulated, timed
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.pass_time import PassTime


def bins(run: Run) -> set[str]:
    """Instructions of a program, those that are skipped, and the engines that work in the same cycle."""
    hit: set[str] = set()
    spans: dict[str, list[tuple[int, int]]] = {}
    for step, start, end in zip(run.steps, run.out.started.tolist(), run.out.finished.tolist(), strict=True):
        name, to = step.op.name, {Opcode.LOAD: LoadTo, Opcode.STORE: StoreTo}.get(step.op)
        if step.beat.get("skip"):
            hit |= {f"{name} that is skipped"}
            continue
        hit |= {f"{name} {to(step.beat['target']).name}" if to else name}
        hit |= {"waits for a semaphore"} if step.wait else set()
        hit |= {"goes round"} if step.jumps else set()
        if step.op in ENGINES:
            spans.setdefault(name, []).append((start, end))
    for a, b in combinations(spans, 2):
        if any(max(x, v) <= min(y, w) for x, y in spans[a] for v, w in spans[b]):
            hit |= {" beside ".join(sorted((a, b)))}
    return hit


ENGINES = (Opcode.LOAD, Opcode.MUL, Opcode.VECTOR, Opcode.STORE)
BINS = {
    *("LOAD W", "LOAD COLUMN", "LOAD X", "LOAD VECTOR", "STORE X", "STORE MEMORY", "MUL", "VECTOR"),
    *("SET", "ADD", "LOOP", "END", "HALT", "goes round", "waits for a semaphore"),
    *(f"{op.name} that is skipped" for op in ENGINES),
    *(" beside ".join(sorted((a.name, b.name))) for a, b in combinations(ENGINES, 2)),
}


@pytest.mark.parametrize(
    ("size", "latency"),
    [("tiny", 1), ("tiny", 9), *(pytest.param(size, 9, marks=pytest.mark.nightly) for size in ("least", "wide"))],
)
def test_random_programs(size, latency, record_property):
    """With every instruction, skipped ones, and every pair of engines at work."""
    more = SHAPES[size]
    programs = [Program(100 * latency + k, size=more).out for k in range(9)]
    got = play(emitted(more), programs, latency, size=more)
    hit: set[str] = set()
    for k, (program, run) in enumerate(zip(programs, got, strict=True)):
        assert run["status"]["code"] == Status.DONE, f"program {k}"
        want = timed(program, latency, size=more)
        assert not differences(want, run), f"program {k}"
        hit |= bins(want)
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


def test_halt_waits_for_words():
    """The last VECTOR goes to the VPE while nothing else is under way but the product whose result it waits for."""
    programs = []
    for words in range(1, 17):
        one = Program(words)
        one.out.clear()
        one.vector(words, a=Source.BANK)
        one.add(Opcode.MUL, start=1, end=1)
        one.vector(1, a=Source.STREAM, wide=1)
        one.add(Opcode.HALT)
        programs.append(one.out)
    waits = 0
    for program, run in zip(programs, play(emitted(), programs, 1), strict=True):
        want = timed(program, 1)
        assert not differences(want, run)
        waits += want.done["mul"][-1] + 1 < want.out.finished[-2] < want.results.taken[-1]
    assert waits > 4


def layer() -> tuple[LayerPlan, dict[int, int]]:
    """A layer on a tiny LXE, and its registers."""
    plan = LayerPlan(replace(SHAPE, tokens=2), params().lxe_format())
    return plan, {
        int(r): v for r, v in plan.registers(7, 11, plan.work.size, plan.work.size + plan.weights.size).items()
    }


def test_a_layer():
    plan, registers = layer()
    [got] = play(emitted(), [plan.program()], 6, registers)
    assert got["status"]["code"] == Status.DONE
    assert not differences(timed(plan.program(), 6, registers), got)


def test_equal_rounds_are_left_out():
    """Cycles are those of the whole program."""
    p, played, steps_of_all = params(), 0, 0
    for k in range(6):
        body = Program(300 + k).out[:-1]
        program = [
            Instruction(Opcode.LOOP, {"count": 40, "end": len(body) + 2}),
            Instruction(Opcode.SET, {"to": 7}),  # rounds differ in nothing
            *(moved(i, 2) for i in body),
            Instruction(Opcode.END, {}),
            Instruction(Opcode.HALT, {}),
        ]
        steps = trace(p, [encode(i) for i in program]).steps
        time, whole = Played(p, 4), Run(p, 4, steps).play()
        short = time.run(steps)
        played, steps_of_all = played + time.played, steps_of_all + len(steps)
        for name in ("executed", "started", "finished", "done"):
            assert np.array_equal(getattr(short, name), getattr(whole, name)), name
    assert played < steps_of_all / 4


class Played(LxeTime):
    """Counts the steps that it plays in the end."""

    def play(self, steps):
        self.played = len(steps)
        return super().play(steps)


def moved(i: Instruction, places: int) -> Instruction:
    """The instruction, some places on."""
    return Instruction(i.op, i.values | {"end": i["end"] + places}) if i.op == Opcode.LOOP else i


def test_a_program_that_waits_for_ever():
    program = [
        Instruction(Opcode.MUL, {"start": 1, "end": 1, "rows": 15, "tiles": 3}),
        Instruction(Opcode.MUL, {"wait": 1}),
        Instruction(Opcode.HALT, {}),
    ]
    with pytest.raises(ValueError, match="waits for ever from cycle .* on: mul at pc 0"):
        timed(program, 1)


@pytest.mark.parametrize(
    ("latency", "more"),
    [(6, ()), *(pytest.param(*own, marks=pytest.mark.nightly) for own in ((30, ()), (1, ()), (6, PUBLISHED)))],
)
def test_layers_on_a_core(latency, more):
    """Layers with retrieval, from the first key to the last store; of V-Rex as published, too.

    Its reading gives threshold, ratio and hash bits. Some rows end early, and the RTL makes no pass more than golden
    asks for.
    """
    rng, p = np.random.default_rng(1), params(more=more)
    h = host(rng, more=more)
    script, runs, views, fetched, passes = Script(h.memory), [], [], [], []
    time = PassTime(p, h.core, ports(h), latency)
    for k in range(4):
        begin(h, rng, k * SHAPE.tokens)
        for i in range(2):
            script.add(h.program(i), h.registers(i))
            registers = h.registers(i)
            with time.recorded() as what:
                h.run(i)
            script.expect()
            views.append(time.cycles(h.program(i), registers, what)[0])
            fetched.append(sum(map(len, what.data.sets)))
            passes += [plan.walked for plans in what.data.plans for plan in plans]
            runs.append({"program": [f"{encode(w):x}" for w in h.program(i)], "registers": registers})
    for run, given in zip(runs, script.runs, strict=True):
        run["writes"] = given["writes"]
    bench = simulated(emitted(more), runs, latency, ports(h), script.before.tobytes())
    got = bench["runs"]
    assert all(g["status"]["code"] == Status.DONE for g in got)
    assert views == [g["done"] for g in got]
    assert not script.end_differences(np.frombuffer(bytes.fromhex(bench["memory"]), np.uint8))
    assert sum(fetched) > 0
    assert sum(len(g["events"]["dre.wtu0.walked"]) for g in got) == sum(passes)
    if more:
        assert h.core.dre.params == p.dre.function()
        assert min(passes) < p.dre.wtu.n_buckets, "no row ends early"


def test_layers_on_a_core_with_budgets():
    """The same where rows take budgets of tokens and shares in turn."""
    h, passes, start = budget_passes(2)
    script, runs, views = Script(h.memory), [], []
    time = PassTime(params(more=FEATURES), h.core, ports(h), 6)
    for n, (program, registers, _) in enumerate(passes):
        start(n)
        script.add(program, registers)
        with time.recorded() as what:
            h.execute(program, registers)
        script.expect()
        views.append(time.cycles(program, registers, what)[0])
        runs.append({"program": [f"{encode(w):x}" for w in program], "registers": registers})
    for run, given in zip(runs, script.runs, strict=True):
        run["writes"] = given["writes"]
    got = simulate(emitted(FEATURES), runs, 6, ports(h), script.before.tobytes())
    assert all(g["status"]["code"] == Status.DONE for g in got)
    assert views == [g["done"] for g in got]
