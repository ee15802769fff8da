"""The interface of a unit's random traffic, which `vrex dev stress` plays seed after seed."""

import copy
import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self


class StressTraffic(ABC):
    """Random transactions for a unit of random size, with random stalls on both sides.

    `play` runs them, and `check` returns how many of them equal golden. Both raise `AssertionError`.

    PARTS : the field whose items may be left out, but for the last; empty if there is none
    """

    PARTS: ClassVar[str] = ""

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

    def parts(self) -> list:
        """What may be left out."""
        return getattr(self, self.PARTS) if self.PARTS else [None]

    def of(self, kept: list[int]) -> Self:
        """The same traffic with some of its parts."""
        if not self.PARTS:
            return self
        own, parts = copy.copy(self), self.parts()
        setattr(own, self.PARTS, [parts[k] for k in kept])
        return own

    def fails(self) -> str:
        """Run and compare it: what differs from golden first, or nothing."""
        try:
            self.check(self.play())
        except AssertionError as e:
            return str(e) or "differs from golden"
        return ""

    def least(self) -> list[int]:
        """Parts of traffic that fails, without any of which it no longer does, by delta debugging (Zeller 2002)."""
        kept, size = list(range(len(self.parts()))), len(self.parts()) // 2
        while size:
            for start in range(0, len(kept) - size, size):
                rest = kept[:start] + kept[start + size :]
                if self.of(rest).fails():
                    kept = rest
                    break
            else:
                size //= 2
        return kept


def stall_rate(rng: random.Random) -> float:
    """Share of cycles in which one side of a stream stalls. Two streams in five run at full rate."""
    return rng.choice((0.0, 0.0, 0.2, 0.5, 0.8))
