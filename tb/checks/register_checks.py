"""Checks of programs whose registers come from numbers of the VPE: golden's memory, and the cycles of the time view."""

from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.program.isa import Instruction, Status, encode
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.core_checks import FEATURES, emitted, params
from openvrex.tb.checks.lxe_time_checks import Program, differences, simulate, timed
from openvrex.tb.checks.lxe_time_checks import play as play_timed
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.register_programs import Numbers, rows
from openvrex.tb.library.small_models import PORTS
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TABLE = 16  # rows


@dataclass
class Case:
    """A table whose rows are copied by numbers that the VPE makes, each or only where a value is above a threshold.

    apart : words from a row to the next, a power of two · word : of each row that is copied
    """

    seed: int
    count: int
    apart: int
    word: int
    threshold: float | None
    run: Numbers = field(init=False)
    program: list[Instruction] = field(init=False)

    def __post_init__(self):
        rng, fmt = np.random.default_rng(self.seed), params(more=FEATURES).lxe_format()
        table = rng.integers(-99, 99, (TABLE * self.apart, fmt.lanes)).astype(BF16)
        numbers = rng.integers(0, TABLE, self.count).tolist()
        values = rng.choice([1.0, 1.0078125, 0.9921875, -3.0, 50.0, 2.0**-30 + 1], self.count).astype(np.float32)
        self.run = Numbers(fmt, table, numbers, values)
        shift = (self.apart * fmt.word_bytes).bit_length() - 1
        self.program = rows(fmt, self.count, shift, self.word * fmt.word_bytes, self.threshold)
        self.copied = np.ones(self.count, bool) if self.threshold is None else values > self.threshold

    @classmethod
    def random(cls, rng: Random) -> Self:
        apart = rng.choice((1, 1, 2, 4))
        threshold = rng.choice((None, 1.0, -3.0, 0.9921875, 60.0))
        return cls(rng.getrandbits(31), rng.randint(1, 12), apart, rng.randrange(apart), threshold)

    def bins(self) -> set[str]:
        """What the program shows: rows copied and not, and the shape of the table."""
        kinds = {"copied"} if self.copied.any() else set()
        kinds |= {"left out"} if not self.copied.all() else set()
        kinds |= {"none copied"} if not self.copied.any() else set()
        kinds |= {"every row" if self.threshold is None else "by a threshold"}
        kinds |= {"one row"} if self.count == 1 else set()
        return kinds | {f"rows of {self.apart} words", "another word" if self.word else "the first word"}


@dataclass
class RandomTraffic(StressTraffic):
    """Tables by number under stalls, the same without in the time view's cycles, and random programs with numbers."""

    cases: list[Case]
    programs: list[list[Instruction]]
    latency: int
    stall: float

    @classmethod
    def random(cls, rng: Random) -> Self:
        programs = [Program(rng.getrandbits(31), numbers=True).out for _ in range(4)]
        return cls([Case.random(rng) for _ in range(4)], programs, rng.choice((1, 9, 30)), stall_rate(rng))

    def play(self) -> Any:
        got, unit = [], emitted(FEATURES)
        for case in self.cases:
            run, script = case.run, Script(case.run.memory, ["out"])
            script.add(case.program, run.registers)
            run.lxe.run(case.program, run.registers)
            script.expect()
            one = {"program": [f"{encode(i):x}" for i in case.program], "registers": run.registers, "writes": []}
            [cycles] = simulate(unit, [one], self.latency, PORTS, script.before.tobytes())
            got.append((script.differences(*script.play(unit, PORTS, self.stall, seed=case.seed)), cycles))
        return got, play_timed(unit, self.programs, self.latency)

    def check(self, got: Any) -> int:
        cases, programs = got
        for case, (wrong, cycles) in zip(self.cases, cases, strict=True):
            assert not wrong, wrong
            words = [encode(i) for i in case.program]
            steps = trace(params(more=FEATURES), words, case.run.registers, stored=case.run.stored).steps
            assert cycles["status"]["code"] == Status.DONE
            assert cycles["done"] == int(LxeTime(params(more=FEATURES), self.latency).run(steps).done)
        for program, one in zip(self.programs, programs, strict=True):
            wrong = differences(timed(program, self.latency), one)
            assert not wrong, wrong
        return sum(len(case.copied) for case in self.cases) + sum(map(len, self.programs))

    @property
    def bins(self) -> set[str]:
        """What the tables show."""
        return set().union(*(case.bins() for case in self.cases))
