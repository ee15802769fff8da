"""Amaranth's own simulator, for components that are looked at cycle by cycle."""

from collections.abc import Callable
from typing import Any

from amaranth.sim import Simulator


def simulated(component: Any, *benches: Callable[[Any], Any]) -> None:
    """Runs a component, with a clock if it has one, beside coroutines that drive it; until the first one ends."""
    simulator = Simulator(component)
    simulator.add_clock(1e-6, if_exists=True)
    for k, bench in enumerate(benches):
        simulator.add_testbench(bench, background=k > 0)
    simulator.run()
