"""The whole system, layer by layer: what runs when, what limits it, what it costs."""

from dataclasses import dataclass, field

from sim.accelerator import run as run_vrex
from sim.gpu import run as run_gpu
from sim.platform import Gpu, Vrex
from sim.timeline import Pass, Point
from sim.workload import Selection, Session, constant, table_ii

NOT_SELECTING = ("flexgen", "resident", "oaken")


def simulate(platform: Vrex | Gpu, point: Point, selection: Selection | None = None) -> Pass:
    """Latency, timeline and energy of `point`; what is selected is V-Rex's Table II unless given."""
    if point.policy in NOT_SELECTING:
        selection = constant(point.policy, *([float(point.policy == "flexgen")] * 2), point.model)
    elif selection is None:
        selection = table_ii(point.policy, point.model)
    return (run_vrex if isinstance(platform, Vrex) else run_gpu)(platform, point, selection)


@dataclass(frozen=True)
class Served:
    """A session: its parts, each a pass and how often it runs."""

    parts: dict[str, tuple[int, Pass]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of the whole session."""
        return sum(n * p.seconds for n, p in self.parts.values())

    @property
    def joules(self) -> float:
        """Of the whole session."""
        return sum(n * p.joules for n, p in self.parts.values())


def session(
    platform: Vrex | Gpu,
    cache: int,
    policy: str,
    batch: int = 1,
    selection: Selection | None = None,
    s: Session = Session(),  # noqa: B008 - frozen
) -> Served:
    """A session at a cache of `cache` tokens, which is taken as constant (V-Rex III-A: "a specific length is
    maintained")."""
    frame = simulate(platform, Point(cache, batch, s.frame_tokens, True, policy), selection)
    question = simulate(platform, Point(cache, batch, s.question, False, policy), selection)
    answer = simulate(platform, Point(cache, batch, 1, False, policy), selection)
    return Served({"frames": (s.frames, frame), "question": (1, question), "answer": (s.answer, answer)})
