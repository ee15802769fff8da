"""Cycles of a unit that waits for items of tables in memory.

A unit's time view is a generator. It yields an `Ask` or a `Put` with the first cycle in which the unit offers it, and
gets back the cycle in which it was taken (a `Put`) or the cycles of its items on `data` (an `Ask`). Requests of one
unit come in the order of their cycles; one offered in the cycle in which the one before was taken comes later. Results
that a neighbour may stall are an `Offer` each, in the same order.
"""

from collections.abc import Generator
from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """A read of `items` items, offered from `cycle` on; `counts`: they are COUNTs, which come in words."""

    cycle: int
    items: int = 1
    counts: bool = False


@dataclass(frozen=True)
class Put:
    """A write of one item, offered from `cycle` on."""

    cycle: int


@dataclass(frozen=True)
class Offer:
    """A result on the unit's own output, offered from `cycle` on. The answer comes at once and says nothing."""

    cycle: int


@dataclass(frozen=True)
class Room:
    """The unit waits until its last result was taken; the answer gives that cycle, 0 if there was none."""


@dataclass(frozen=True)
class Taken:
    """The answer: the cycle in which a request was taken, and the cycle of each item or word of an ask."""

    cycle: int
    comes: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The cycle of the first item."""
        return self.comes[0]


Requests = Generator[Ask | Put | Offer | Room, Taken, None]


def alone(unit: Requests, latency: int, lanes: int = 1) -> None:
    """Run a unit to its end on a memory that takes every request at once, as does whoever takes its results.

    An item, or a word of `lanes` counts, comes `latency` cycles after its ask was taken, but not before those asked for
    earlier.
    """
    last, offered = -1, 0  # cycles of the last item and of the last result
    answer: Taken | None = None
    while True:
        try:
            request = unit.send(answer) if answer else next(unit)
        except StopIteration:
            return
        match request:
            case Ask(cycle, items, counts):
                first = max(cycle + latency, last + 1)
                last = first + -(-items // lanes if counts else -items) - 1
                answer = Taken(cycle, tuple(range(first, last + 1)))
            case Put(cycle):
                answer = Taken(cycle)
            case Offer(cycle):
                answer, offered = Taken(cycle), cycle
            case Room():
                answer = Taken(offered)
