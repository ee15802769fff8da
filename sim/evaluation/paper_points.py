"""Points of V-Rex's evaluation, and the verdict on a number of its text."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from golden.atomic_files import write_atomically
from sim.system import platforms
from sim.system.passes import simulate
from sim.system.timeline import Pass, Point
from sim.system.workload import Decoder, Session, constant, table_ii, traced

CACHES = (1024, 5120, 10240, 20480, 40960)
PLATFORMS = {
    "edge": platforms.EDGE,
    "kvpu": replace(platforms.EDGE, name="V-Rex8 KVPU", kvmu=False),
    "server": platforms.SERVER,
    "agx": platforms.AGX,
    "a100": platforms.A100,
}
ROWS = {"frame": Session.frame_tokens, "question": Session.question, "token": 1}
TOLERANCE = 0.10
TABLE_II = "table2"  # selection by V-Rex's Table II


@dataclass(frozen=True)
class Number:
    """A number of the paper beside ours, with the shares of Table II, and with those of a real stream (`trace`).

    verdict : reproduced (within 10 %), fitted (so, because a constant of the model or a condition that the paper leaves
              open was set by it), inconsistent (the paper's own numbers contradict it: `proof` is the arithmetic),
              unexplained (it does not follow from the paper's other numbers, but on a premise that the paper leaves
              open: `why` says which), or off (by more than 10 %, `why` says why)
    proof   : arithmetic on numbers of the paper alone that excludes this one; "" if there is none
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

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        return None if self.ours is None else self.ours / self.paper


@dataclass
class Points:
    """Simulated points, kept in `file` if there is one, so that an interrupted evaluation goes on where it was."""

    file: Path | None = None
    known: dict[str, dict] = field(default_factory=dict)

    def __post_init__(self):
        if self.file and self.file.exists():
            self.known = json.loads(self.file.read_text())

    def at(self, on: str, cache: int, batch=1, stage="frame", policy="resv", select=TABLE_II) -> dict[str, float]:
        """A point: its seconds, joules, fetched bytes and operations; seconds of parts, of the link and of
        computing."""
        model, target = Decoder(), PLATFORMS[on]
        shares = table_ii(policy, model) if select == TABLE_II else traced(model, select)
        made_of = f"{target} {shares.frame.tobytes()} {shares.text.tobytes()}"
        key = f"{on} {cache} {batch} {stage} {policy} {select} {hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
        if key not in self.known:
            p = simulate(target, Point(cache, batch, ROWS[stage], stage == "frame", policy), shares)
            self.known[key] = {
                "seconds": p.seconds,
                "joules": p.joules,
                "fetched": p.fetched,
                "ops": p.ops,
                "vision": p.named("vision"),
                "predict": p.named("predict", "select"),
                "select": p.named("select"),
                "attention": p.named("attention"),
                "fetch": p.busy("link"),
                "compute": p.busy("LXE") + p.busy("GPU"),
            }
            if self.file:
                write_atomically(self.file, json.dumps(self.known))
        return self.known[key]

    def ms(self, on: str, cache: int, batch=1, stage="frame", policy="resv", select=TABLE_II) -> float:
        """Milliseconds of a point."""
        return 1e3 * self.at(on, cache, batch, stage, policy, select)["seconds"]

    def gain(self, pair: tuple[str, str], cache: int, batch=1, stage="frame", select=TABLE_II, of="seconds") -> float:
        """FlexGen on a GPU over V-Rex, both of `pair`: seconds or joules."""
        vrex, gpu = pair
        return self.at(gpu, cache, batch, stage, "flexgen")[of] / self.at(vrex, cache, batch, stage, "resv", select)[of]

    def session(self, on: str, cache: int, policy: str, select=TABLE_II) -> dict[str, float]:
        """Seconds of COIN's average session at a cache that stays as it is, by part, and in all."""
        s = Session()
        times = {"frame": s.frames, "question": 1, "token": s.answer}
        out = {k: n * self.at(on, cache, 1, k, policy, select)["seconds"] for k, n in times.items()}
        return out | {"total": sum(out.values())}


@dataclass
class Claims:
    """Collects numbers: `say` takes ours as a value, or as a function of what selects."""

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
    ) -> None:
        """Judge a number. proof: why it cannot be; doubt: why it hardly can; fitted: what was set by it; off: why ours
        differs."""
        value, other = (ours(TABLE_II), ours(self.trace)) if callable(ours) else (ours, None)
        verdict, why = judged(paper, value, doubt, fitted, off, proof)
        if other is not None and verdict in ("inconsistent", "unexplained", "off") and near(paper, other):
            why += "; the trace's is within 10 %"
        self.found.append(Number(where, what, paper, unit, value, other, verdict, why.removeprefix("; "), proof))


def near(paper: float, ours: float | None) -> bool:
    """Whether ours is within the tolerance of the paper's."""
    return ours is not None and abs(ours / paper - 1) <= TOLERANCE


def judged(paper: float, ours: float | None, doubt: str, fitted: str, off: str, proof: str = "") -> tuple[str, str]:
    """Verdict and reason. Only a proof makes a number of the paper inconsistent."""
    if proof:
        return "inconsistent", ""
    if doubt:
        return "unexplained", doubt
    if near(paper, ours):
        return ("fitted", fitted) if fitted else ("reproduced", "")
    return "off", off or fitted


def budgeted() -> Pass:
    """Fig. 4c: a frame of A100+InfiniGenP that fetches 10K of 40K tokens."""
    return simulate(platforms.A100, Point(40960, policy="infinigenp"), constant("10K", 0.25, 0.25, Decoder()))
