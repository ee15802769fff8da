"""Cycles of the arbiter, as a function of what its managers ask for."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hdl.params import SystemParams
from hdl.queues import WRITES, port_beats

Burst = tuple[int, int]  # the cycle from which on it is offered, its beats


@dataclass
class ManagerCycles:
    """The cycles in which a manager's bursts and beats go, and its answers come, by stream."""

    ar: list[int] = field(default_factory=list)
    aw: list[int] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    r: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)


@dataclass
class ArbiterCycles:
    """A run: cycles at the managers and at the memory port.

    ar, aw : (cycle, manager) of each burst · w, r, b : cycles · read_waits, write_waits : as the counters
    """

    managers: list[ManagerCycles]
    ar: list[tuple[int, int]] = field(default_factory=list)
    aw: list[tuple[int, int]] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    r: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    read_waits: int = 0
    write_waits: int = 0


class _Fifo:
    """A buffered FIFO: an entry comes out two cycles after it has gone in."""

    def __init__(self, depth: int):
        self.room, self.inner, self.out = depth - 1, deque(), None

    @property
    def ready(self) -> bool:
        return len(self.inner) < self.room

    def step(self, put: int | None, take: bool) -> None:
        """The end of a cycle."""
        moves = bool(self.inner) and (self.out is None or take)
        if moves or take:
            self.out = self.inner.popleft() if moves else None
        if put is not None:
            self.inner.append(put)


class _Offers:
    """Bursts of one kind of a manager: two wait in a slice, one is on offer."""

    def __init__(self, bursts: Sequence[Burst], taken: list[int]):
        self.todo, self.taken, self.waiting, self.offered = deque(bursts), taken, deque(), None

    def step(self, cycle: int, may: bool, granted: bool) -> int | None:
        """The end of a cycle; the beats of a burst that goes on offer. `may` : the first that waits may go."""
        goes, room = None, len(self.waiting) < 2
        if self.offered is None or granted:
            goes = self.offered = self.waiting.popleft() if self.waiting and may else None
        if self.todo and room and self.todo[0][0] <= cycle:
            self.waiting.append(self.todo.popleft()[1])
            self.taken.append(cycle)
        return goes


class _Port:
    """State of `hdl.bus.manager_port.ManagerPort`; the manager takes its answers at once."""

    def __init__(self, p: SystemParams, reads: Sequence[Burst], writes: Sequence[Burst], seen: ManagerCycles):
        self.room, writes_room = port_beats(p)
        self.most, self.seen = p.core.lxe.bursts, seen
        self.whole = self.owed = 0
        self.reads, self.writes = _Offers(reads, seen.ar), _Offers(writes, seen.aw)
        self.beats = deque((at, k == n - 1) for at, n in writes for k in range(n))
        self.data = _Fifo(writes_room)
        self.given = 0  # beats of `seen.r` that have left
        self.answered = 0  # responses of `seen.b`

    def step(self, cycle: int, read: bool, write: bool, beat: bool) -> None:
        """The end of a cycle in which a read or a write was granted, or a beat went."""
        first = self.reads.waiting[0] if self.reads.waiting else 0
        goes = self.reads.step(cycle, self.room >= first, read)
        self.room -= goes or 0
        if self.given < len(self.seen.r) and self.seen.r[self.given] == cycle:
            self.given, self.room = self.given + 1, self.room + 1
        goes = self.writes.step(cycle, self.whole > 0 and self.owed < self.most, write)
        self.whole, self.owed = self.whole - (goes is not None), self.owed + (goes is not None)
        if self.answered < len(self.seen.b) and self.seen.b[self.answered] == cycle:
            self.answered, self.owed = self.answered + 1, self.owed - 1
        last = None
        if self.beats and self.beats[0][0] <= cycle and self.data.ready:
            last = int(self.beats.popleft()[1])
            self.seen.w.append(cycle)
            self.whole += last
        self.data.step(last, beat)


class ArbiterTime:
    """Time view of `Arbiter` between managers that take every answer at once and a memory that never waits.

    It takes a burst of each kind and a beat every cycle and answers bursts in the order in which it takes them.

    latency : cycles from a burst on m_axi_ar to its first beat on m_axi_r, and from the later of m_axi_aw and its last
    beat on m_axi_w to the response, at least 1
    """

    TO_MANAGER = 3  # from m_axi_r and m_axi_b to `r` and `b`

    def __init__(self, p: SystemParams, latency: int):
        self.p, self.latency = p, latency

    def run(self, reads: Sequence[Sequence[Burst]], writes: Sequence[Sequence[Burst]]) -> ArbiterCycles:
        """Bursts of each manager; beats of a write are offered with it, and bursts and beats in order."""
        p, count = self.p, 2 * self.p.cores
        out = ArbiterCycles([ManagerCycles() for _ in range(count)])
        ports = [_Port(p, *bursts) for bursts in zip([*reads], [*writes], out.managers, strict=True)]
        order = _Fifo(WRITES)
        turns = {"reads": count - 1, "writes": count - 1}  # who was granted last
        owner = None  # whose beats go
        pending: deque[tuple[int, int]] = deque()  # (cycle of m_axi_aw, manager) of writes that are not answered
        wanted = sum(n for bursts in reads for _, n in bursts) + sum(map(len, writes))

        def pick(kind: str) -> int | None:
            """Who is granted."""
            last = turns[kind]
            around = (i % count for i in range(last + 1, last + count + 1))
            return next((i for i in around if getattr(ports[i], kind).offered is not None), None)

        cycle = 0
        while len(out.r) + len(out.b) < wanted or any(port.owed for port in ports):
            read, write = pick("reads"), pick("writes")
            asks = [sum(getattr(port, kind).offered is not None for port in ports) for kind in turns]
            write = write if order.ready else None
            out.read_waits += asks[0] > (read is not None)
            out.write_waits += asks[1] > (write is not None)
            if read is not None:
                turns["reads"] = read
                out.ar.append((cycle + 1, read))
                first = max(cycle + 1 + self.latency, out.r[-1] + 1 if out.r else 0)
                beats = range(first, first + ports[read].reads.offered)
                out.r += beats
                out.managers[read].r += (at + self.TO_MANAGER for at in beats)
            if write is not None:
                turns["writes"] = write
                out.aw.append((cycle + 1, write))
                pending.append((cycle + 1, write))
            last = owner is not None and ports[owner].data.out
            if owner is not None:
                out.w.append(cycle + 1)
            if last:
                at, i = pending.popleft()
                due = max(at, cycle + 1) + self.latency
                out.b.append(max(due, out.b[-1] + 1 if out.b else 0))
                out.managers[i].b.append(out.b[-1] + self.TO_MANAGER)
            for i, port in enumerate(ports):
                port.step(cycle, i == read, i == write, i == owner)
            free = owner is None or last
            owner, taken = (order.out if free else owner), free
            order.step(write, taken)
            cycle += 1
        return out
