"""Simulates the points of V-Rex's evaluation, and judges each number of its text against ours."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from openvrex.sim.system import platforms
from openvrex.sim.system.passes import simulate
from openvrex.sim.system.selection import PUBLISHED
from openvrex.sim.system.timeline import DRE, Pass, Point
from openvrex.sim.system.workload import Decoder, Session, constant, table_ii, traced

CACHES = (1024, 5120, 10240, 20480, 40960)
# The paper's machines, which are presets, and its GPUs.
PLATFORMS: dict[str, platforms.Platform] = {
    "edge": platforms.PAPER_EDGE,
    "kvpu": replace(platforms.PAPER_EDGE, name="V-Rex8 KVPU", kvmu=False),
    "server": platforms.PAPER_SERVER,
    "agx": platforms.AGX,
    "a100": platforms.A100,
}
SCALED: dict[str, platforms.MeasuredGpu] = {"agx": platforms.AGX_SCALED, "a100": platforms.A100_SCALED}
ROWS = {"frame": Session.frame_tokens, "question": Session.question, "token": 1}
TOLERANCE = 0.10  # relative difference up to which a number of ours agrees
TABLE_II = "table2"  # name of the selection of V-Rex Table II


AGREE = ("predicted", "on fits", "fitted", "restated", "accident")
DIFFER = ("off", "unexplained", "inconsistent")
Basis = tuple[str, str]  # a verdict of `AGREE`, and its reason: what our value is made of
# All simulated times: those of V-Rex have the gap of a layer, those of GPUs their rates.
ON_FITS = ("on fits", "GPU rates or V-Rex's gap of a layer, which are fitted, are in its path")
PREDICTED = ("predicted", "")
RESTATED = "restated"


@dataclass(frozen=True)
class Number:
    """A number of the paper beside ours.

    where, what : section or figure of the paper, and the quantity
    paper, unit : the paper's value
    ours    : our value with the shares of Table II, None if we do not simulate it
    trace   : our value with the shares of a real stream, None if no selection enters
    verdict : one of `AGREE`, whose values are within 10 %, and say what the agreement is worth:
              predicted (nothing that the paper reports entered)
              on fits (a constant that other numbers of the paper set is in its path)
              fitted (the number itself set a constant of the model or an open condition)
              restated (only arithmetic on the paper's tables, on shapes of its model, or on sizes taken from it)
              accident (its parts differ by more)
              or
              inconsistent (the paper's own numbers contradict it: `proof` is the arithmetic)
              unexplained (it does not follow from the paper's other numbers unless an open premise holds: see `why`)
              off (ours differs by more than 10 %: see `why`)
    why     : reason of the verdict
    proof   : arithmetic on numbers of the paper alone that excludes this one; "" if there is none
    scaled  : where a GPU fitted to the paper enters our value, the value with one scaled from the measured H100; None
              for a policy that was not measured
    """

    where: str
    what: str
    paper: float
    unit: str
    ours: float | None
    trace: float | None
    verdict: str
    why: str
    proof: str = ""
    scaled: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our value over the paper's."""
        return None if self.ours is None else self.ours / self.paper


@dataclass
class Points:
    """Simulates points and remembers them. With `file`, an interrupted evaluation resumes where it stopped.

    scaled : GPUs are those scaled from the measured one, in place of those fitted to the paper
    """

    file: Path | None = None
    known: dict[str, dict] = field(default_factory=dict)
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.file and self.file.exists() and not self.known:
            self.known = json.loads(self.file.read_text())

    def at(
        self,
        on: str,
        cache: int,
        batch: int = 1,
        stage: str = "frame",
        policy: str = "resv",
        select: str = TABLE_II,
    ) -> dict[str, float]:
        """Result of a point.

        on : key of `PLATFORMS`
        stage : key of `ROWS`
        select : `TABLE_II`, or the name of a stream of `sim.system.selection`

        Returns "seconds", "joules", "fetched" (bytes) and "ops"; seconds of the parts "vision", "predict", "select"
        and "attention"; seconds of the link ("fetch") and of LXE and GPU ("compute"). All are NaN for a policy that was
        not measured on a scaled GPU.
        """
        model, target = Decoder(), self.platform(on)
        if isinstance(target, platforms.MeasuredGpu) and policy not in target.policies:
            return defaultdict(lambda: nan)
        shares = table_ii(policy, model) if select == TABLE_II else traced(model, select, PUBLISHED)
        made_of = f"{target} {shares.frame.tobytes()!r} {shares.text.tobytes()!r} {shares.cluster} {shares.sizes}"
        key = f"{on} {cache} {batch} {stage} {policy} {select} {hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
        if key not in self.known:
            p = simulate(target, Point(cache, batch, ROWS[stage], stage == "frame", policy), shares)
            self.known[key] = {
                "seconds": p.seconds,
                "joules": p.joules,
                "fetched": p.fetched,
                "ops": p.ops,
                "vision": p.named("vision"),
                "predict": p.named("predict", *DRE),
                "select": p.named(*DRE),
                "attention": p.named("attention"),
                "fetch": p.busy("link"),
                "compute": p.busy("LXE") + p.busy("GPU"),
            }
            if self.file:
                write_atomically(self.file, json.dumps(self.known))
        return self.known[key]

    def platform(self, on: str) -> platforms.Platform:
        """The platform that a key of `PLATFORMS` means."""
        return SCALED[on] if self.scaled and on in SCALED else PLATFORMS[on]

    def ms(
        self,
        on: str,
        cache: int,
        batch: int = 1,
        stage: str = "frame",
        policy: str = "resv",
        select: str = TABLE_II,
    ) -> float:
        """Milliseconds of a point, with the arguments of `at`."""
        return 1e3 * self.at(on, cache, batch, stage, policy, select)["seconds"]

    def gain(
        self,
        pair: tuple[str, str],
        cache: int,
        batch: int = 1,
        stage: str = "frame",
        select: str = TABLE_II,
        of: str = "seconds",
    ) -> float:
        """Seconds or joules of FlexGen on a GPU, over those of ReSV on V-Rex. `pair` : V-Rex and GPU."""
        vrex, gpu = pair
        return self.at(gpu, cache, batch, stage, "flexgen")[of] / self.at(vrex, cache, batch, stage, "resv", select)[of]

    def session(self, on: str, cache: int, policy: str, select: str = TABLE_II) -> dict[str, float]:
        """Seconds of COIN's average session with a cache of constant length, by part and in "total"."""
        s = Session()
        times = {"frame": s.frames, "question": 1, "token": s.answer}
        out = {k: n * self.at(on, cache, 1, k, policy, select)["seconds"] for k, n in times.items()}
        return out | {"total": sum(out.values())}


@dataclass
class Claims:
    """Collects judged numbers. `trace` names the stream that gives the second selection."""

    trace: str
    found: list[Number] = field(default_factory=list)

    def say(
        self,
        where: str,
        what: str,
        paper: float,
        unit: str,
        ours: Callable[[str], float] | float | None,
        doubt: str = "",
        fitted: str = "",
        off: str = "",
        proof: str = "",
        basis: Basis = ON_FITS,
    ) -> None:
        """Judges a number of the paper and appends it to `found`.

        ours : our value, or a function that gives it for a selection
        proof : why the number cannot be right
        doubt : why it can only be right on an open premise
        fitted : the constant that it sets
        off : why ours differs
        basis : what ours is made of, which is the verdict if it agrees
        """
        value, other = (ours(TABLE_II), ours(self.trace)) if callable(ours) else (ours, None)
        verdict, why = judged(paper, value, doubt, fitted, off, proof, basis)
        if other is not None and verdict in ("inconsistent", "unexplained", "off") and near(paper, other):
            why += "; the trace's is within 10 %"
        self.found.append(Number(where, what, paper, unit, value, other, verdict, why.removeprefix("; "), proof))


def near(paper: float, ours: float | None) -> bool:
    """Whether our value is within the tolerance of the paper's."""
    return ours is not None and abs(ours / paper - 1) <= TOLERANCE


def judged(
    paper: float, ours: float | None, doubt: str, fitted: str, off: str, proof: str = "", basis: Basis = ON_FITS
) -> tuple[str, str]:
    """Verdict and reason, with the arguments of `Claims.say`. Only a proof makes a number inconsistent."""
    if proof:
        return "inconsistent", ""
    if doubt:
        return "unexplained", doubt
    if near(paper, ours):
        return ("fitted", fitted) if fitted else basis
    return "off", off or fitted


def budgeted() -> Pass:
    """The pass of Fig. 4c: a frame of A100+InfiniGenP that fetches 10K of 40K tokens."""
    return simulate(platforms.A100, Point(40960, policy="infinigenp"), constant("10K", 0.25, 0.25, Decoder()))
