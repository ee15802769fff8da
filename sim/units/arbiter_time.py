"""Predicts in which cycle each burst and each beat passes the arbiter, from the bursts that its managers offer.

`ArbiterTime.run` steps the queues, slices and round-robin pointers of the hardware cycle by cycle, without data.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from openvrex.hdl.bus.arbiter import MANAGERS
from openvrex.hdl.params import SystemParams
from openvrex.hdl.queues import OWNERS, WRITES, dealt_bursts, port_beats, table_beats


class Burst(NamedTuple):
    """A burst of one manager.

    at : first cycle in which the manager offers it · port : memory port of its address
    common : of an LXE's read that its group makes together, what is equal in the reads of all of them
    """

    at: int
    beats: int
    port: int = 0
    common: int | None = None


@dataclass
class Cycles:
    """Cycles of all transfers of a manager, or at a memory port, by AXI channel, in order."""

    ar: list[int] = field(default_factory=list)
    aw: list[int] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    r: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)


@dataclass
class PortCycles(Cycles):
    """Cycles at a memory port.

    reads, writes : manager of each burst; of a common read, the one whose turn it was
    """

    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


@dataclass
class ArbiterCycles:
    """Cycles of all transfers of a run, at the managers and at the memory ports.

    read_waits, write_waits : values of the hardware counters of these names
    """

    managers: list[Cycles]
    ports: list[PortCycles]
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

    def __init__(self) -> None:
        self.waiting: deque[Burst] = deque()
        self.offered: Burst | None = None  # the burst that the arbiter may grant

    @property
    def ready(self) -> bool:
        """Whether the slice takes a burst."""
        return len(self.waiting) < 2

    def step(self, put: Burst | None, may: bool, granted: bool) -> int | None:
        """Clock edge; returns the beats of a burst that becomes offered, else None.

        may : the first waiting burst has the room that it needs
        granted : the arbiter grants the offered burst in this cycle
        """
        goes = None
        if self.offered is None or granted:
            goes = self.offered = self.waiting.popleft() if self.waiting and may else None
        if put is not None:
            self.waiting.append(put)
        return goes.beats if goes else None


class _Moves(NamedTuple):
    """What passes between a manager and one of its buffers in a cycle."""

    ar: Burst | None = None
    aw: Burst | None = None
    w: bool | None = None  # a beat, and whether it is the last of its burst
    r: bool = False
    b: bool = False


class _Buffers:
    """State of one `hdl.bus.manager_port.ManagerPort`."""

    def __init__(self, room: tuple[int, int, int]):
        self.room, writes_room, self.most = room
        self.whole = self.owed = 0  # write bursts whose beats are all here; writes without a response
        self.reads, self.writes = _Offers(), _Offers()
        self.data = _Fifo(writes_room)
        self.answers: deque[tuple[int, bool]] = deque()  # beats for the manager: first cycle, whether a burst ends
        self.responses: deque[int] = deque()  # the same of responses

    def step(self, moves: _Moves, read: bool, write: bool, beat: bool) -> None:
        """Clock edge of a cycle in which the arbiter granted a read or a write, or took a beat of write data."""
        first = self.reads.waiting[0].beats if self.reads.waiting else 0
        goes = self.reads.step(moves.ar, self.room >= first, read)
        self.room += moves.r - (goes or 0)
        goes = self.writes.step(moves.aw, self.whole > 0 and self.owed < self.most, write)
        self.whole += bool(moves.w) - (goes is not None)
        self.owed += (goes is not None) - moves.b
        self.data.step(None if moves.w is None else int(moves.w), beat)


class _Manager:
    """An ideal manager in front of one memory port: it takes every answer at once."""

    def __init__(self, reads: Sequence[Burst], writes: Sequence[Burst]):
        self.reads, self.writes = deque(reads), deque(writes)
        self.beats = deque((b.at, k == b.beats - 1) for b in writes for k in range(b.beats))
        self.seen = Cycles()

    @staticmethod
    def _next(todo: deque[Burst], cycle: int, ready: bool, seen: list[int]) -> Burst | None:
        """The burst that goes in this cycle, if any."""
        if not (todo and ready and todo[0].at <= cycle):
            return None
        seen.append(cycle)
        return todo.popleft()

    def _beat(self, cycle: int, to: _Buffers) -> bool | None:
        """Whether the beat that goes in this cycle ends its burst; None without one."""
        if not (self.beats and self.beats[0][0] <= cycle and to.data.ready):
            return None
        self.seen.w.append(cycle)
        return self.beats.popleft()[1]

    def _answer(self, cycle: int, of: _Buffers) -> bool | None:
        """The same of a beat that the manager takes."""
        if not (of.answers and of.answers[0][0] <= cycle):
            return None
        self.seen.r.append(cycle)
        return of.answers.popleft()[1]

    def _response(self, cycle: int, of: _Buffers) -> bool:
        """Whether the manager takes a response."""
        if not (of.responses and of.responses[0] <= cycle):
            return False
        self.seen.b.append(cycle)
        of.responses.popleft()
        return True

    def step(self, cycle: int, buffers: Sequence[_Buffers]) -> list[_Moves]:
        """What passes in this cycle, at each port."""
        [own] = buffers
        ar = self._next(self.reads, cycle, own.reads.ready, self.seen.ar)
        aw = self._next(self.writes, cycle, own.writes.ready, self.seen.aw)
        beat, answer = self._beat(cycle, own), self._answer(cycle, own)
        return [_Moves(ar, aw, beat, answer is not None, self._response(cycle, own))]


class _DealtManager(_Manager):
    """An ideal manager in front of a `hdl.bus.interleaver.Interleaver`."""

    def __init__(self, reads: Sequence[Burst], writes: Sequence[Burst], most: int):
        super().__init__(reads, writes)
        self.read_slice: deque[Burst] = deque()
        self.write_slice: deque[Burst] = deque()
        self.of_reads, self.of_beats, self.of_writes = _Fifo(most), _Fifo(WRITES), _Fifo(most)

    def step(self, cycle: int, buffers: Sequence[_Buffers]) -> list[_Moves]:
        """What passes in this cycle, at each port."""
        ar = self._dealt(self.read_slice, self.of_reads.ready, [own.reads for own in buffers])
        room = self.of_beats.ready and self.of_writes.ready
        aw = self._dealt(self.write_slice, room, [own.writes for own in buffers])
        reads, beats, writes = (order.out for order in (self.of_reads, self.of_beats, self.of_writes))
        beat = None if beats is None else self._beat(cycle, buffers[beats])
        answer = None if reads is None else self._answer(cycle, buffers[reads])
        response = writes is not None and self._response(cycle, buffers[writes])
        for todo, slice_, gone, seen in (
            (self.reads, self.read_slice, ar, self.seen.ar),
            (self.writes, self.write_slice, aw, self.seen.aw),
        ):
            put = self._next(todo, cycle, len(slice_) < 2, seen)
            if gone:
                slice_.popleft()
            if put:
                slice_.append(put)
        self.of_reads.step(ar.port if ar else None, bool(answer))
        self.of_beats.step(aw.port if aw else None, bool(beat))
        self.of_writes.step(aw.port if aw else None, response)
        return [
            _Moves(
                ar if ar and ar.port == j else None,
                aw if aw and aw.port == j else None,
                beat if j == beats else None,
                answer is not None and j == reads,
                response and j == writes,
            )
            for j in range(len(buffers))
        ]

    @staticmethod
    def _dealt(waiting: deque[Burst], room: bool, to: Sequence[_Offers]) -> Burst | None:
        """The burst that goes to its port."""
        return waiting[0] if waiting and room and to[waiting[0].port].ready else None


class _PortArbiter:
    """State of the arbiter of one memory port, and of an ideal memory behind it."""

    TO_MANAGER = 3  # cycles from m_axi_r and m_axi_b to `r` and `b` of a manager

    def __init__(self, p: SystemParams, latency: int, common_log2: int):
        self.p, self.latency, self.common_log2 = p, latency, common_log2
        self.count = MANAGERS * p.cores
        rooms = (*(self._room(lxe) for lxe in (True, False)), table_beats(p)) * p.cores
        self.buffers = [_Buffers(room) for room in rooms]
        self.seen = PortCycles()
        self.order = _Fifo(WRITES)
        self.turns = {"reads": self.count - 1, "writes": self.count - 1}  # manager granted last, for round robin
        self.owner: int | None = None  # manager whose write beats pass
        self.pending: deque[tuple[int, int]] = deque()  # (cycle of m_axi_aw, manager) of unanswered writes
        self.agree = [False] * p.cores  # all LXEs of the core's group have offered the same read, since a cycle
        self.owners, self.ends = _Fifo(OWNERS), deque[int]()  # of reads of LXEs; cycles in which their last beats come
        self.read_waits = self.write_waits = 0

    def _room(self, lxe: bool) -> tuple[int, int, int]:
        """Beats of reads and writes, and responses, for which an LXE or a retriever has room."""
        reads, writes = port_beats(self.p, self.p.common and lxe, self.p.ports)
        return reads, writes, self.p.core.lxe.bursts

    def _asks(self, i: int, kind: str) -> bool:
        """Whether a manager's burst may be granted."""
        offers: _Offers = getattr(self.buffers[i], kind)
        if kind == "writes" or i % MANAGERS or not self.p.common:
            return offers.offered is not None
        here = offers.offered is not None and self.owners.ready
        return here and (not self._is_common(offers) or self.agree[i // MANAGERS])

    def _pick(self, kind: str) -> int | None:
        """The manager that the arbiter grants in this cycle, if any."""
        last = self.turns[kind]
        around = (i % self.count for i in range(last + 1, last + self.count + 1))
        return next((i for i in around if self._asks(i, kind)), None)

    def grant(self, cycle: int) -> None:
        """Grants of this cycle, and the memory's answers to them."""
        self.read, write = self._pick("reads"), self._pick("writes")
        asked = [sum(self._asks(i, kind) for i in range(self.count)) for kind in self.turns]
        self.write = write if self.order.ready else None
        self.takers = self._takers(self.read)
        self.read_waits += asked[0] > len(self.takers)
        self.write_waits += asked[1] > (self.write is not None)
        self.agreed = [self._agreed(core) for core in range(self.p.cores)]
        if self.read is not None:
            self._read(cycle, self.read)
        if self.write is not None:
            self.turns["writes"] = self.write
            self.seen.aw.append(cycle + 1)
            self.seen.writes.append(self.write)
            self.pending.append((cycle + 1, self.write))
        self.last = None
        if self.owner is not None:
            self.last = self.buffers[self.owner].data.out
            self.seen.w.append(cycle + 1)
        if self.last:
            at, i = self.pending.popleft()
            due = max(at, cycle + 1) + self.latency
            self.seen.b.append(max(due, self.seen.b[-1] + 1 if self.seen.b else 0))
            self.buffers[i].responses.append(self.seen.b[-1] + self.TO_MANAGER)

    def _read(self, cycle: int, read: int) -> None:
        self.turns["reads"] = read
        self.seen.ar.append(cycle + 1)
        self.seen.reads.append(read)
        first = max(cycle + 1 + self.latency, self.seen.r[-1] + 1 if self.seen.r else 0)
        burst = self.buffers[read].reads.offered
        assert burst is not None  # `_pick` returns a manager that offers a burst
        beats = range(first, first + burst.beats)
        self.seen.r += beats
        for i in self.takers:
            self.buffers[i].answers += ((at + self.TO_MANAGER, at == beats[-1]) for at in beats)
        if read % MANAGERS == 0:
            self.ends.append(beats[-1] + 1)

    def step(self, cycle: int, moves: Sequence[_Moves]) -> None:
        """Clock edge."""
        self.agree = [ok and MANAGERS * core not in self.takers for core, ok in enumerate(self.agreed)]
        for i, own in enumerate(self.buffers):
            own.step(moves[i], i in self.takers, i == self.write, i == self.owner)
        free = self.owner is None or bool(self.last)
        self.owner, taken = (self.order.out if free else self.owner), free
        self.order.step(self.write, taken)
        ended = bool(self.ends) and self.ends[0] == cycle
        if ended:
            self.ends.popleft()
        self.owners.step(self.read if self.read is not None and self.read % MANAGERS == 0 else None, ended)

    def _is_common(self, offers: _Offers) -> bool:
        return self.common_log2 > 0 and offers.offered is not None and offers.offered.common is not None

    def _group(self, core: int) -> range:
        first = core >> self.common_log2 << self.common_log2
        return range(first, min(first + (1 << self.common_log2), self.p.cores))

    def _takers(self, read: int | None) -> list[int]:
        """The managers whose reads are granted with that of a manager."""
        if read is None or read % MANAGERS or not self._is_common(self.buffers[read].reads):
            return [] if read is None else [read]
        return [MANAGERS * core for core in self._group(read // MANAGERS)]

    def _agreed(self, core: int) -> bool:
        """Whether all LXEs of a core's group offer the same read."""
        offers = [self.buffers[MANAGERS * c].reads for c in self._group(core)]
        return (
            self._is_common(offers[0]) and len({o.offered and (o.offered.beats, o.offered.common) for o in offers}) == 1
        )


class ArbiterTime:
    """Time view of `hdl.bus.arbiter.Arbiter` between ideal managers and an ideal memory.

    The managers take every answer at once. Each memory port takes a read burst, a write burst and a beat in every
    cycle, and answers bursts in the order in which it takes them.

    latency : cycles, at least 1: from a burst on m_axi_ar to its first beat on m_axi_r, and from the later of m_axi_aw
    and the last beat on m_axi_w to the response
    common_log2 : as the arbiter's input
    """

    def __init__(self, p: SystemParams, latency: int, common_log2: int = 0):
        self.p, self.latency, self.common_log2 = p, latency, common_log2

    def run(self, reads: Sequence[Sequence[Burst]], writes: Sequence[Sequence[Burst]]) -> ArbiterCycles:
        """Cycles of all transfers for the `reads` and `writes` of each manager, three managers a core.

        A manager offers its bursts in order. It offers the beats of a write together with the burst, also in order.
        """
        p, most = self.p, dealt_bursts(self.p)
        managers = [
            _Manager(*bursts) if p.ports == 1 else _DealtManager(*bursts, most)
            for bursts in zip(reads, writes, strict=True)
        ]
        ports = [_PortArbiter(p, self.latency, self.common_log2) for _ in range(p.ports)]
        wanted = sum(b.beats for bursts in reads for b in bursts) + sum(map(len, writes))
        cycle = 0
        while sum(len(m.seen.r) + len(m.seen.b) for m in managers) < wanted:
            for port in ports:
                port.grant(cycle)
            moves = [m.step(cycle, [port.buffers[i] for port in ports]) for i, m in enumerate(managers)]
            for j, port in enumerate(ports):
                port.step(cycle, [own[j] for own in moves])
            cycle += 1
        waits = (sum(getattr(port, name) for port in ports) for name in ("read_waits", "write_waits"))
        return ArbiterCycles([m.seen for m in managers], [port.seen for port in ports], *waits)
