"""The whole system, layer by layer: what runs when, what limits it, what it costs."""

from sim.accelerator import run as run_vrex
from sim.gpu import run as run_gpu
from sim.platform import Gpu, Vrex
from sim.timeline import RESIDENT, Pass, Point
from sim.workload import Selection, constant, table_ii

NOT_SELECTING = ("flexgen", *RESIDENT)


def simulate(platform: Vrex | Gpu, point: Point, selection: Selection | None = None) -> Pass:
    """Latency, timeline and energy of `point`; what is selected is V-Rex's Table II unless given."""
    if point.policy in NOT_SELECTING:
        selection = constant(point.policy, *([float(point.policy == "flexgen")] * 2), point.model)
    elif selection is None:
        selection = table_ii(point.policy, point.model)
    return (run_vrex if isinstance(platform, Vrex) else run_gpu)(platform, point, selection)
