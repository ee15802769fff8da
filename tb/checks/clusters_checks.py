"""Checks of the programs that decide about Mosaic's clusters: golden core, NumPy, RTL and time view agree."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.mosaic_core import Job
from openvrex.golden.program.deadlock_hazard_check import play as ordered
from openvrex.golden.program.isa import Instruction
from openvrex.golden.program.lxe_model import BusError, Result
from openvrex.golden.program.sequencer_model import LxeError
from openvrex.golden.retrieval import centroids
from openvrex.hdl.emit import Emitted
from openvrex.sim.units.lxe_time import Run as TimeRun
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.lxe_time_checks import differences
from openvrex.tb.library import small_models
from openvrex.tb.library.cluster_runs import WIDTH, ClusterRun
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.runner import Run as Bench
from openvrex.tb.library.runner import emit
from openvrex.tb.library.small_models import PORTS
from openvrex.tb.library.stress_traffic import StressTraffic

LARGE, SMALL = 2.0**40, 2.0**-40  # their squares are far from infinity, and above and below EPSILON


def _ends(two: np.ndarray, n: int, first: tuple[int, int], last: tuple[int, int]) -> np.ndarray:
    """The first of two rows n times, but for sums of both as first and last row."""
    out = np.repeat(two[:1], n, 0)
    out[-1], out[0] = last @ two, first @ two
    return out


def _several_rounds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows of which the means of two groups move some to the other group, the last one among them.

    Three rows never do.
    """
    dot = small_models.params().lxe_format().dot
    for _ in range(400 if n > 3 else 1):
        out = rng.normal(size=(n, 32))
        keys = centroids.directions(out.astype(BF16)[:, :WIDTH], dot)
        (first, _), (last, rounds) = (centroids.k_means(keys, 2, dot, most) for most in (1, centroids.ROUNDS))
        if rounds > 2:
            return out[np.argsort(first != last, kind="stable")]
    return out


KINDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=(n, 32)),
    "equal": lambda rng, n: np.repeat(rng.normal(size=(1, 32)), n, 0),
    "two values": lambda rng, n: rng.normal(size=(2, 32))[rng.integers(0, 2, n)],
    "ties": lambda rng, n: rng.integers(-1, 2, (n, 32)),
    "one number": lambda rng, n: np.eye(32)[rng.integers(0, 3, n)],
    "groups": lambda rng, n: rng.normal(size=(3, 32))[rng.integers(0, 3, n)] + 0.1 * rng.normal(size=(n, 32)),
    "the last apart": lambda rng, n: rng.normal(size=(2, 32))[np.arange(n) // (n - 1 or 1)],
    # K-means takes the last member as its second seed, or as its third.
    "the ends opposite": lambda rng, n: _ends(rng.normal(size=(2, 32)), n, (0, 1), (0, -1)),
    "the first opposite": lambda rng, n: _ends(rng.normal(size=(2, 32)), n, (-1, 0), (0, 1)),
    "mixed": lambda rng, n: rng.normal(size=(n, 32)) * rng.choice((0, SMALL, 1, LARGE), (n, 1)),
    "zeros": lambda rng, n: np.zeros((n, 32)),
    "large": lambda rng, n: LARGE * rng.normal(size=(n, 32)),
    "small": lambda rng, n: SMALL * rng.normal(size=(n, 32)),
    "several rounds": _several_rounds,
    "opposite": lambda rng, n: rng.normal(size=(1, 32)) * rng.choice((-1, 1), (n, 1)),
}
# Sizes that reach every program and every tile of clusters.
CASES = (
    ("groups", 10, 7, 3),
    ("mixed", 9, 6, 3),
    ("the last apart", 8, 8, 2),
    ("groups", 22, 20, 8),
    ("ties", 8, 8, 2),
    ("mixed", 8, 8, 3),
    ("the ends opposite", 8, 8, 3),
    ("the first opposite", 8, 8, 3),
    *[("several rounds", 8, 8, 2)] * 6,
    *[("normal", 8, 8, 4)] * 6,
    *[("groups", 24, 18, 8)] * 6,
    *[("normal", 30, 24, 8)] * 2,
)
BINS = {*KINDS, "one member", "one cluster", "several clusters", "a full program", "a ragged program"}
BINS |= {"taken", "split", "steered by the host", "steered by its registers"}
STEERED = ("to_register=true",)  # a core whose programs take control from their own numbers


@cache
def emitted(core: tuple[str, ...]) -> Emitted:
    return emit("core", small_models.params(*core))


@dataclass
class RandomTraffic(StressTraffic):
    """Clusters made at once, split, and joined by more tokens, on the RTL: under stalls, or in the time view's cycles.

    core : more of the core's parameters
    pause : the memory's share of stalls; None: no stalls, the time view's cycles and a memory of `latency`
    bins : what the programs met, known after `golden`
    """

    seed: int
    kind: str
    many: int
    first: int
    clusters: int
    pause: float | None
    latency: int
    core: tuple[str, ...] = ()
    bins: set[str] = field(default_factory=set)

    @classmethod
    def random(cls, rng: Random) -> Self:
        many = rng.choice((1, 2, 3, 5, 8, 9, 10))
        first = rng.randint(1, many) if rng.random() < 0.7 else many
        pause = rng.choice((None, None, 0.2, 0.5))
        kind, clusters = rng.choice(list(KINDS)), rng.randint(1, 3)
        core = rng.choice(((), STEERED))
        return cls(rng.getrandbits(31), kind, many, first, clusters, pause, rng.choice((1, 9, 30)), core)

    def run(self, launch: Callable[[Job, Callable[[Job], Result]], object] | None = None) -> ClusterRun:
        """The layer on a golden core and in NumPy, before anything runs."""
        entries = KINDS[self.kind](np.random.default_rng(self.seed), self.many).astype(BF16)
        return ClusterRun(entries, self.first, self.clusters, launch, self.core)

    def golden(self) -> Script:
        """Golden runs everything, and must equal NumPy; the programs' order must be sound. What the RTL must do."""
        seen: set[int] = set()

        def launch(job: Job, plain: Callable[[Job], Result]) -> None:
            script.add(job.program, job.registers)
            self.numbers.append([])
            result = plain(job)
            script.expect()
            if id(job.program) not in seen:
                seen.add(id(job.program))
                assert not (problems := ordered(result.issues, job.plan.fmt).problems()), (job.kind, problems)
            if job.kind == "middle":  # a program of K-means has work for so many members, whatever their number
                self.bins.add("a full program" if job.size == job.plan.size(job.size) else "a ragged program")

        def number(plain: Callable, i: Any, *word: Any) -> None:
            plain(i, *word)
            self.numbers[-1].append({i["to"]: own.unit.registers[i["to"]]})

        self.numbers: list[list[dict[int, int]]] = []  # registers that each STORE of each program sets
        own = self.run(launch)
        own.unit.number = partial(number, own.unit.number)  # type: ignore[method-assign]
        script = Script(own.memory, [r.name for r in own.memory.regions])
        wrong = own.play()
        assert not wrong, f"the core and NumPy differ: {', '.join(wrong)}"
        self.bins.add("steered by its registers" if any(self.numbers) else "steered by the host")
        table = own.want.clusters
        self.bins |= {self.kind, "several clusters" if len(table) > 1 else "one cluster"}
        self.bins |= {"one member"} if (table.size == 1).any() else set()
        self.bins |= {"taken"} if own.taken else set()
        self.bins |= {"split"} if own.split else set()
        return script

    def play(self, *unit: Emitted) -> Any:
        script, e = self.golden(), unit[0] if unit else emitted(self.core)
        self.script = script
        if self.pause is not None:
            return script.play(e, PORTS, self.pause, seed=self.seed)
        runs = [run | {"program": script.programs[run["program"]]} for run in script.runs]
        config = {"params": [*small_models.SIZES, *self.core], "runs": runs, "memory": script.before.tobytes().hex()}
        ports = {name: value for name, value in PORTS.items() if name not in ("table_base", "blocks")}
        config |= {"ports": ports, "latency": self.latency, "counters": e.manifest["counters"]}
        return Bench(e, "bench_lxe_time", "timed", config)()

    def check(self, got: Any) -> int:
        script, p = self.script, small_models.params(*self.core)
        if self.pause is not None:
            wrong = script.differences(*got)
            assert not wrong, wrong
            return sum(run.perf["lxe.sequencer.instructions"] for run in got[0][-1:])
        after, count, views = np.frombuffer(bytes.fromhex(got["memory"]), np.uint8), 0, {}
        for r in script.memory.regions:
            known = np.ones(r.size, bool) if r.unknown is None else ~r.unknown
            np.testing.assert_array_equal(after[r.base : r.end][known], r.data[known], r.name)
        for run, one, numbers in zip(script.runs, got["runs"], self.numbers, strict=True):
            key = run["program"], str(run["registers"]), str(numbers)
            if key not in views:
                words = [int(w, 16) for w in script.programs[run["program"]]]
                steps = trace(p, words, run["registers"], stored=numbers).steps
                views[key] = TimeRun(p, self.latency, steps, detail=True)
                views[key].play()
            wrong = differences(views[key], one)
            assert not wrong, wrong
            count += len(views[key].steps)
        return count


def cases(core: tuple[str, ...]) -> list[RandomTraffic]:
    """The cases that judge faults of a core's programs, those that notice most first."""
    return [RandomTraffic(k, *case, None, 1, core) for k, case in enumerate(CASES)]


def programs(core: tuple[str, ...] = ()) -> list[tuple[str, list[Instruction]]]:
    """Kind and instructions of every program that the cases run on a core."""
    found: dict[str, tuple[str, list[Instruction]]] = {}

    def launch(job: Job, plain: Callable[[Job], Result]) -> None:
        found.setdefault(str(job.program), (job.kind, job.program))
        plain(job)

    for case in cases(core):
        assert not case.run(launch).play()
    return list(found.values())


def noticed(program: list[Instruction], mutant: list[Instruction], core: tuple[str, ...] = ()) -> str:
    """How the checks of golden programs notice a mutant in the program's place; empty if they do not."""
    for case in cases(core):
        checked: list[bool] = []

        def launch(job: Job, plain: Callable[[Job], Result], checked: list[bool] = checked) -> None:
            if job.program != program:
                plain(job)
                return
            result = plain(replace(job, program=mutant))
            if not checked:
                checked.append(True)
                assert not (problems := ordered(result.issues, job.plan.fmt).problems()), problems

        try:
            wrong = case.run(launch).play()
        except (AssertionError, LxeError, BusError, ParamError, LookupError, ValueError) as e:
            return f"{type(e).__name__}: {e}"
        if wrong:
            return ", ".join(wrong)
    return ""
