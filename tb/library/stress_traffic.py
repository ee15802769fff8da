"""The interface of a unit's random traffic, which `vrex dev stress` plays seed after seed."""

import random
from abc import ABC, abstractmethod
from typing import Any, Self


class StressTraffic(ABC):
    """Random transactions for a unit of random size, with random stalls on both sides.

    `play` runs them, and `check` returns how many of them equal golden. Both raise `AssertionError`.
    """

    @classmethod
    @abstractmethod
    def random(cls, rng: random.Random) -> Self:
        """Traffic that depends only on the generator's state."""

    @abstractmethod
    def play(self) -> Any:
        """Run it on Verilator; the unit's answers."""

    @abstractmethod
    def check(self, got: Any) -> int:
        """Compare every answer with golden; the number of transactions."""


def stall_rate(rng: random.Random) -> float:
    """Share of cycles in which one side of a stream stalls. Two streams in five run at full rate."""
    return rng.choice((0.0, 0.0, 0.2, 0.5, 0.8))
