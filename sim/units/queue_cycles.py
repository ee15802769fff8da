"""Cycles of the queues between units, and units that wait for each other.

A unit is a generator that goes on as far as what it needs is known: it yields `(happened, n)` to wait until the list
`happened` has an entry n. Entries are the cycles in which something happened, in order.
"""

from collections.abc import Generator, Sequence

Wait = tuple[Sequence[int], int]
Waits = Generator[Wait, None, None]


class Queue:
    """A `SyncFIFOBuffered`: of each entry the cycles in which it is put in, moves to the output, is taken."""

    def __init__(self, depth: int):
        self.depth = depth
        self.put: list[int] = []
        self.moved: list[int] = []
        self.taken: list[int] = []

    def room(self) -> Wait:
        """What must be known before the next `push`."""
        n = len(self.put)
        return (self.taken, n - 1) if self.depth == 1 else (self.moved, n - self.depth + 1)

    def push(self, at: int) -> int:
        """The first cycle from `at` on in which there is room: the entry is put in then."""
        happened, n = self.room()
        if n >= 0:
            at = max(at, happened[n] + 1)
        self.put.append(at)
        self._move()
        return at

    def offered(self, n: int) -> int:
        """The first cycle in which entry n, which has `moved`, can be taken."""
        return self.moved[n] + 1

    def pop(self, at: int) -> None:
        """The next entry is taken."""
        self.taken.append(at)
        self._move()

    def _move(self) -> None:
        n = len(self.moved)
        if n < len(self.put) and n <= len(self.taken):
            at = self.put[n] + (self.depth > 1)
            self.moved.append(max(at, self.taken[n - 1]) if n and self.depth > 1 else at)


class Always:
    """The end of a stream that is always ready, or has all its words from cycle 0 on."""

    def __init__(self):
        self.put: list[int] = []
        self.taken: list[int] = []
        self.moved = range(1 << 62)

    def room(self) -> Wait:
        """As in `Queue`."""
        return self.put, -1

    def push(self, at: int) -> int:
        """As in `Queue`."""
        self.put.append(at)
        return at

    def offered(self, n: int) -> int:
        """As in `Queue`."""
        return 0

    def pop(self, at: int) -> None:
        """As in `Queue`."""
        self.taken.append(at)


class Units:
    """Units that wait for each other, by name."""

    def __init__(self, units: dict[str, Waits]):
        self._slots = [[name, unit, (0,), 0] for name, unit in units.items()]  # and what each waits for

    @property
    def waits(self) -> dict[str, Wait]:
        """What each waits for, of those that have not ended."""
        return {name: (happened, n) for name, _, happened, n in self._slots}

    def settle(self) -> None:
        """Let all go on as far as they can."""
        moved = True
        while moved:
            moved = False
            for slot in self._slots:
                if len(slot[2]) > slot[3]:
                    moved = True
                    unit = slot[1]
                    wait = next(unit, None)
                    while wait and len(wait[0]) > wait[1]:
                        wait = next(unit, None)
                    slot[2:] = wait or ((), 0)
                    if not wait:
                        self._slots = [s for s in self._slots if s is not slot]


def alone(**units: Waits) -> None:
    """Run units to their end."""
    all_ = Units(units)
    all_.settle()
    for name, (happened, n) in all_.waits.items():
        raise AssertionError(f"{name} waits for entry {n} of {len(happened)}, which nothing gives")
