"""Random traffic of a unit: what `vrex stress` plays, seed after seed."""

import random
from abc import ABC, abstractmethod
from typing import Any, Self


class StressTraffic(ABC):
    """Transactions that a seed chooses, with the unit's size and the stalls on both sides.

    `check` of what `play` returned gives the number of transactions that equal golden. Both raise `AssertionError`.
    """

    @classmethod
    @abstractmethod
    def random(cls, rng: random.Random) -> Self:
        """Traffic that depends on the generator's state alone."""

    @abstractmethod
    def play(self) -> Any:
        """What the unit answers, on Verilator."""

    @abstractmethod
    def check(self, got: Any) -> int:
        """Compare every answer with golden; how many there were."""


def stall_rate(rng: random.Random) -> float:
    """Share of cycles in which one side of a stream pauses; two of five streams run at the full rate."""
    return rng.choice((0.0, 0.0, 0.2, 0.5, 0.8))
