"""Checks of the history branch on the RTL of an LXE: golden's memory, and every event in the time view's cycle."""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.program.isa import Instruction, Status, encode
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import ParamError, override, preset
from openvrex.sim.units.lxe_time import Run
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.lxe_time_checks import COUNTERS, events
from openvrex.tb.library.branch_runs import BranchRun
from openvrex.tb.library.lxe_programs import image
from openvrex.tb.library.runner import Run as Bench
from openvrex.tb.library.runner import emit
from openvrex.tb.library.stress_traffic import StressTraffic

# So small a W and X make groups of tokens, tiles in slices, and inputs of which X does not hold all tokens.
SIZES = ("lxe.i_depth=512", "vpe.depth=32", "dpe.w_depth=8", "dpe.x_depth=16", "lxe.queue=4", "features=hybrid")
PARAMS = StateSpaceParams(state=4)
WIDTH, TOKENS, PASSES, LATENCY = 8, 3, 2, 20


@cache
def params():
    return override(preset("tiny"), list(SIZES)).core


@cache
def emitted() -> Emitted:
    return emit("lxe", params())


@dataclass
class RandomTraffic(StressTraffic):
    """Passes of one stream through a branch of random sizes, beside a memory of random latency.

    inputs : normed hidden states and the numbers to add to, of each pass
    """

    own: BranchRun
    program: list[Instruction]
    inputs: list[tuple[np.ndarray, np.ndarray]]
    latency: int

    @classmethod
    def random(cls, rng: random.Random) -> Self:
        while True:
            seed, segments = rng.getrandbits(31), rng.choice((1, 2))
            sizes = StateSpaceParams(rng.choice((1, 2)), rng.choice((2, 4, 8)), rng.randint(1, 4), seed)
            width = rng.choice((4, 8, 12)) * segments
            own = BranchRun(params().lxe_format(), width, rng.randint(1, 5), sizes, segments)
            passes, latency = rng.randint(1, 3), rng.choice((1, 7, 20, 60))
            try:
                return cls.of(own, own.plan.program(), passes, latency, seed)
            except ParamError:  # the program is longer than the core's memory of programs
                continue

    @classmethod
    def of(cls, own: BranchRun, program: list[Instruction], passes: int, latency: int, seed: int) -> Self:
        """Traffic of random inputs."""
        rng, size = np.random.default_rng(seed), (own.plan.shape.tokens, own.plan.shape.width)
        return cls(
            own, program, [(rng.standard_normal(size), rng.standard_normal(size)) for _ in range(passes)], latency
        )

    def play(self, *unit: Emitted) -> Any:
        """Golden runs the passes, then the RTL. Each pass finds in memory what the one before has left there."""
        own, e = self.own, unit[0] if unit else emitted()
        words = [f"{encode(i):x}" for i in self.program]
        runs, first, last = [], None, image(own.memory)
        for x, total in self.inputs:
            own.give(x, total)
            now = image(own.memory)
            first = now if first is None else first
            at = np.flatnonzero(now != last) if runs else []
            writes = [[int(a), f"{now[a]:02x}"] for a in at]
            runs.append({"program": words, "registers": own.registers, "writes": writes})
            own.lxe.run(self.program, own.registers)
            last = image(own.memory)
        assert first is not None  # there is a pass
        config = {"params": list(SIZES), "runs": runs, "memory": first.tobytes().hex(), "ports": {}}
        config |= {"latency": self.latency, "counters": e.manifest["counters"]}
        return Bench(e, "bench_lxe_time", "timed", config)()

    def check(self, got: Any) -> int:
        """Memory after all passes, and each event of each pass; the number of events."""
        after, count = np.frombuffer(bytes.fromhex(got["memory"]), np.uint8), 0
        for r in self.own.memory.regions:
            known = np.ones(r.size, bool) if r.unknown is None else ~r.unknown
            np.testing.assert_array_equal(after[r.base : r.end][known], r.data[known], r.name)
        run = self.time()
        for one in got["runs"]:
            assert Status(one["status"]["code"]) == Status.DONE
            assert one["done"] == run.out.done
            for name, want in events(run).items():
                assert [c - COUNTERS[name] for c in one["events"][name]] == want, name
                count += len(want)
        return count

    def time(self) -> Run:
        """The time view of a pass."""
        steps = trace(params(), [encode(i) for i in self.program], self.own.registers).steps
        run = Run(params(), self.latency, steps, detail=True)
        run.play()
        return run


def check_the_branch_equals_golden_and_time_view(*unit: Emitted) -> dict[str, int]:
    """Passes of one stream, which carry the state on in memory; their cycles, and instructions of the program."""
    own = BranchRun(params().lxe_format(), WIDTH, TOKENS, PARAMS)
    traffic = RandomTraffic.of(own, own.plan.program(), PASSES, LATENCY, 4)
    traffic.check(traffic.play(*unit))
    return {"done": traffic.time().out.done, "programs": len(traffic.program)}
