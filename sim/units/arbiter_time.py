"""Predicts in which cycle each burst and each beat passes the arbiter, from the bursts that its managers offer.

`ArbiterTime.run` steps the queues, slices and round-robin pointers of the hardware cycle by cycle, without data.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from openvrex.hdl.bus.arbiter import MANAGERS
from openvrex.hdl.params import SystemParams
from openvrex.hdl.queues import OWNERS, WRITES, port_beats, table_beats

# First cycle in which the manager offers the burst, number of beats; of an LXE's read that its group makes together,
# what is equal in the reads of all of them.
Burst = tuple[int, int] | tuple[int, int, int]


@dataclass
class ManagerCycles:
    """Cycles of all transfers at the port of one manager, by AXI channel, in order."""

    ar: list[int] = field(default_factory=list)
    aw: list[int] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    r: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)


@dataclass
class ArbiterCycles:
    """Cycles of all transfers of a run, at the managers and at the memory port.

    managers : cycles at the port of each manager
    ar, aw : (cycle, manager) of each burst on the memory port; of a common read, the manager whose turn it was
    w, r, b : cycles of the beats and responses on the memory port
    read_waits, write_waits : values of the hardware counters of these names
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
    """A `SyncFIFOBuffered`: an entry appears at the output two cycles after it went in."""

    def __init__(self, depth: int):
        self.room = depth - 1  # entries of the memory behind the output register
        self.inner: deque[int] = deque()
        self.out: int | None = None  # entry at the output

    @property
    def ready(self) -> bool:
        return len(self.inner) < self.room

    def step(self, put: int | None, take: bool) -> None:
        """Clock edge: stores `put` unless it is None, and drops the entry at the output if `take`."""
        moves = bool(self.inner) and (self.out is None or take)
        if moves or take:
            self.out = self.inner.popleft() if moves else None
        if put is not None:
            self.inner.append(put)


class _Offers:
    """Read or write bursts of one manager: up to two wait in its slice, and one is offered to the arbiter."""

    def __init__(self, bursts: Sequence[Burst], taken: list[int]):
        self.todo = deque(bursts)  # bursts that the manager has not handed over yet
        self.taken = taken  # cycles in which the slice took a burst
        self.waiting: deque[tuple[int, int | None]] = deque()  # beats of each burst in the slice, what is common
        self.offered: int | None = None  # beats of the burst that the arbiter may grant
        self.common: int | None = None  # of that burst

    def step(self, cycle: int, may: bool, granted: bool) -> int | None:
        """Clock edge; returns the beats of a burst that becomes offered, else None.

        may : the first waiting burst has the room that it needs
        granted : the arbiter grants the offered burst in this cycle
        """
        goes, room = None, len(self.waiting) < 2
        if self.offered is None or granted:
            goes, self.common = self.waiting.popleft() if self.waiting and may else (None, None)
            self.offered = goes
        if self.todo and room and self.todo[0][0] <= cycle:
            _, beats, *common = self.todo.popleft()
            self.waiting.append((beats, common[0] if common else None))
            self.taken.append(cycle)
        return goes


class _Port:
    """State of one `hdl.bus.manager_port.ManagerPort`, whose manager takes every answer at once."""

    def __init__(
        self, room: tuple[int, int, int], reads: Sequence[Burst], writes: Sequence[Burst], seen: ManagerCycles
    ):
        self.room, writes_room, self.most = room
        self.seen = seen
        self.whole = self.owed = 0  # write bursts whose beats are all here; writes without a response
        self.reads, self.writes = _Offers(reads, seen.ar), _Offers(writes, seen.aw)
        self.beats = deque((at, k == n - 1) for at, n, *_ in writes for k in range(n))
        self.data = _Fifo(writes_room)
        self.given = 0  # beats of `seen.r` that the manager has taken
        self.answered = 0  # responses of `seen.b` that the manager has taken

    def step(self, cycle: int, read: bool, write: bool, beat: bool) -> None:
        """Clock edge of a cycle in which the arbiter granted a read or a write, or took a beat of write data."""
        first = self.reads.waiting[0][0] if self.reads.waiting else 0
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
    """Time view of `hdl.bus.arbiter.Arbiter` between ideal managers and an ideal memory.

    The managers take every answer at once. The memory takes a read burst, a write burst and a beat in every cycle, and
    answers bursts in the order in which it takes them.

    latency : cycles, at least 1: from a burst on m_axi_ar to its first beat on m_axi_r, and from the later of m_axi_aw
    and the last beat on m_axi_w to the response
    common_log2 : as the arbiter's input
    """

    TO_MANAGER = 3  # cycles from m_axi_r and m_axi_b to `r` and `b` of a manager

    def __init__(self, p: SystemParams, latency: int, common_log2: int = 0):
        self.p, self.latency, self.common_log2 = p, latency, common_log2

    def run(self, reads: Sequence[Sequence[Burst]], writes: Sequence[Sequence[Burst]]) -> ArbiterCycles:
        """Cycles of all transfers for the `reads` and `writes` of each manager, three managers a core.

        A manager offers its bursts in order. It offers the beats of a write together with the burst, also in order.
        """
        p, count = self.p, MANAGERS * self.p.cores
        out = ArbiterCycles([ManagerCycles() for _ in range(count)])
        rooms = (*(self._room(p, lxe) for lxe in (True, False)), table_beats(p)) * p.cores
        ports = [_Port(*bursts) for bursts in zip(rooms, [*reads], [*writes], out.managers, strict=True)]
        order = _Fifo(WRITES)
        turns = {"reads": count - 1, "writes": count - 1}  # manager granted last, for round robin
        owner: int | None = None  # manager whose write beats pass
        pending: deque[tuple[int, int]] = deque()  # (cycle of m_axi_aw, manager) of unanswered writes
        agree = [False] * p.cores  # all LXEs of the core's group have offered the same read, since a cycle
        owners, ends = _Fifo(OWNERS), deque[int]()  # of reads of LXEs; cycles in which their last beats come
        wanted = sum(burst[1] for bursts in reads for burst in bursts) + sum(map(len, writes))

        def asks(i: int, kind: str) -> bool:
            """Whether a manager's burst may be granted."""
            offers: _Offers = getattr(ports[i], kind)
            if kind == "writes" or i % MANAGERS or not p.common:
                return offers.offered is not None
            here = offers.offered is not None and owners.ready
            return here and (not self._is_common(offers) or agree[i // MANAGERS])

        def pick(kind: str) -> int | None:
            """The manager that the arbiter grants in this cycle, if any."""
            last = turns[kind]
            around = (i % count for i in range(last + 1, last + count + 1))
            return next((i for i in around if asks(i, kind)), None)

        cycle = 0
        given = 0  # answers of all managers
        while given < wanted or any(port.owed for port in ports):
            read, write = pick("reads"), pick("writes")
            asked = [sum(asks(i, kind) for i in range(count)) for kind in turns]
            write = write if order.ready else None
            takers = self._takers(ports, read)
            out.read_waits += asked[0] > len(takers)
            out.write_waits += asked[1] > (write is not None)
            agreed = [self._agreed(ports, core) for core in range(p.cores)]
            if read is not None:
                turns["reads"] = read
                out.ar.append((cycle + 1, read))
                first = max(cycle + 1 + self.latency, out.r[-1] + 1 if out.r else 0)
                size = ports[read].reads.offered
                assert size is not None  # `pick` returns a manager that offers a burst
                beats = range(first, first + size)
                out.r += beats
                for i in takers:
                    out.managers[i].r += (at + self.TO_MANAGER for at in beats)
                given += size * len(takers)
                if read % MANAGERS == 0:
                    ends.append(beats[-1] + 1)
            if write is not None:
                turns["writes"] = write
                out.aw.append((cycle + 1, write))
                pending.append((cycle + 1, write))
            last = None
            if owner is not None:
                last = ports[owner].data.out
                out.w.append(cycle + 1)
            if last:
                at, i = pending.popleft()
                due = max(at, cycle + 1) + self.latency
                out.b.append(max(due, out.b[-1] + 1 if out.b else 0))
                out.managers[i].b.append(out.b[-1] + self.TO_MANAGER)
                given += 1
            agree = [ok and MANAGERS * core not in takers for core, ok in enumerate(agreed)]
            for i, port in enumerate(ports):
                port.step(cycle, i in takers, i == write, i == owner)
            free = owner is None or bool(last)
            owner, taken = (order.out if free else owner), free
            order.step(write, taken)
            ended = bool(ends) and ends[0] == cycle
            if ended:
                ends.popleft()
            owners.step(read if read is not None and read % MANAGERS == 0 else None, ended)
            cycle += 1
        return out

    @staticmethod
    def _room(p: SystemParams, lxe: bool) -> tuple[int, int, int]:
        """Beats of reads and writes, and responses, for which an LXE or a retriever has room."""
        reads, writes = port_beats(p, p.common and lxe)
        return reads, writes, p.core.lxe.bursts

    def _is_common(self, offers: _Offers) -> bool:
        return self.common_log2 > 0 and offers.common is not None

    def _group(self, core: int) -> range:
        first = core >> self.common_log2 << self.common_log2
        return range(first, min(first + (1 << self.common_log2), self.p.cores))

    def _takers(self, ports: Sequence[_Port], read: int | None) -> list[int]:
        """The managers whose reads are granted with that of a manager."""
        if read is None or read % MANAGERS or not self._is_common(ports[read].reads):
            return [] if read is None else [read]
        return [MANAGERS * core for core in self._group(read // MANAGERS)]

    def _agreed(self, ports: Sequence[_Port], core: int) -> bool:
        """Whether all LXEs of a core's group offer the same read."""
        offers = [ports[MANAGERS * c].reads for c in self._group(core)]
        return len({(o.offered, o.common) for o in offers}) == 1 and self._is_common(offers[0])
