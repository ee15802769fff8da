"""Computes the cycles of units that are joined by queues, without stepping through every cycle.

A unit is a generator. It runs ahead as long as it knows the cycles that it depends on. When it does not, it yields a
`Wait`, the pair `(happened, n)`, and goes on when the record `happened` has an entry n. A record lists the cycles in
which one kind of event happened, in order.
"""

from collections.abc import Generator, Sequence, Sized
from dataclasses import dataclass

Wait = tuple[Sized, int]
Record = tuple[Sequence[int], int]  # a Wait whose entry is read afterwards
Waits = Generator[Wait, None, None]


class Queue:
    """A `SyncFIFOBuffered` of `depth` entries.

    put, moved, taken : cycles in which each entry goes in, moves to the output register, and is taken
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.put: list[int] = []
        self.moved: list[int] = []
        self.taken: list[int] = []

    def room(self) -> Record:
        """The entry that must be known before the next `push`; its number is negative while the queue has room."""
        n = len(self.put)
        return (self.taken, n - 1) if self.depth == 1 else (self.moved, n - self.depth + 1)

    def push(self, at: int) -> int:
        """Puts an entry in, in the first cycle from `at` on in which there is room; returns that cycle."""
        happened, n = self.room()
        if n >= 0:
            at = max(at, happened[n] + 1)
        self.put.append(at)
        self._move()
        return at

    def offered(self, n: int) -> int:
        """The first cycle in which entry n can be taken. Its entry in `moved` must be known."""
        return self.moved[n] + 1

    def pop(self, at: int) -> None:
        """Takes the next entry in cycle `at`."""
        self.taken.append(at)
        self._move()

    def _move(self) -> None:
        n = len(self.moved)
        if n < len(self.put) and n <= len(self.taken):
            at = self.put[n] + (self.depth > 1)
            self.moved.append(max(at, self.taken[n - 1]) if n and self.depth > 1 else at)


class Always:
    """Stands in for a `Queue`: a sink that is always ready, or a source that offers every word from cycle 0 on."""

    def __init__(self) -> None:
        self.put: list[int] = []
        self.taken: list[int] = []
        self.moved = range(1 << 62)

    def room(self) -> Record:
        """There is always room."""
        return self.put, -1

    def push(self, at: int) -> int:
        """Puts an entry in, in cycle `at`; returns that cycle."""
        self.put.append(at)
        return at

    def offered(self, n: int) -> int:
        """Every entry can be taken from cycle 0 on."""
        return 0

    def pop(self, at: int) -> None:
        """Takes the next entry in cycle `at`."""
        self.taken.append(at)


@dataclass(slots=True)
class _Slot:
    """A unit that has not ended, and what it waits for."""

    name: str
    unit: Waits
    wait: Wait = ((0,), 0)  # fulfilled: the unit can start


class Units:
    """Runs named units that wait for each other."""

    def __init__(self, units: dict[str, Waits]):
        self._slots = [_Slot(name, unit) for name, unit in units.items()]

    @property
    def waits(self) -> dict[str, Wait]:
        """What each unit that has not ended waits for."""
        return {slot.name: slot.wait for slot in self._slots}

    def settle(self) -> None:
        """Lets all units go on until each has ended or waits for an entry that no unit has given."""
        moved = True
        while moved:
            moved = False
            for slot in self._slots:
                happened, n = slot.wait
                if len(happened) > n:
                    moved = True
                    wait = next(slot.unit, None)
                    while wait and len(wait[0]) > wait[1]:
                        wait = next(slot.unit, None)
                    if wait:
                        slot.wait = wait
                    else:
                        self._slots = [s for s in self._slots if s is not slot]


def alone(**units: Waits) -> None:
    """Runs units to their end. Raises `AssertionError` if one waits for an entry that no unit gives."""
    all_ = Units(units)
    all_.settle()
    for name, (happened, n) in all_.waits.items():
        raise AssertionError(f"{name} waits for entry {n}, but only {len(happened)} were given and no unit gives more")
