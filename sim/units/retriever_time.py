"""Predicts when the retriever executes RETRIEVEs, and when its copier reads and writes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from openvrex.golden.program.isa import Retrieve
from openvrex.golden.retrieval.kv4 import RATIO
from openvrex.hdl.params import CoreParams
from openvrex.hdl.queues import copied_beats, kv4_codes, kv4_numbers
from openvrex.sim.units.loader_time import cut

ORDERS = (Retrieve.CLEAR, Retrieve.SWITCH, Retrieve.BUDGET)  # actions that send an order to the DRE


@dataclass
class RetrieverCycles:
    """Cycle of each transfer in a run of RETRIEVEs without stalls, all offered from cycle 0 on.

    taken : instructions taken
    news : results of the HCU on `t`
    places : replies and moves of the KVMU on `w` and `x`
    fetched : bursts of sets on `b`
    orders : CLEARs and SWITCHes on `order`
    reads, read : bursts on `ar`, their beats on `r`
    writes, written : bursts on `aw`, their beats on `w`
    sets, done : pulses
    waits : number of cycles in which a burst waits for room in the buffer
    """

    taken: list[int] = field(default_factory=list)
    news: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    sets: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    waits: int = 0


class CopierTime:
    """Time view of the retriever's copier with a memory that takes a burst each way and a beat every cycle.

    latency : cycles from a burst's transfer on `ar` to its first beat on `r`, and from its last beat on `w` to the
    response, at least 1
    """

    def __init__(self, p: CoreParams, latency: int, out: RetrieverCycles):
        self.p, self.latency, self.out = p, latency, out
        self.depth = copied_beats(p)
        self._gone: list[int] = []  # cycle behind each beat's leaving of the buffer
        self._asked = self._begun = -1  # cycles in which the last read was asked for, and the last write begun
        self._popped: list[int] = []  # cycle in which each copy left the queue
        self._ends: list[int] = []  # cycle of each burst's last beat on `r`
        self._responses: list[int] = []  # cycle of each write burst's response

    @property
    def ended(self) -> int:
        """The first cycle in which all copies so far have ended."""
        return self._responses[-1] + 1 if self._responses else 0

    def copy(self, cycle: int, src: int, dst: int, size: int, how: str = "") -> int:
        """Copies `size` bytes; returns the first cycle from `cycle` on in which the copier takes the job.

        how : "packs" or "expands": an entry goes home or comes back. That counts only if homes are packed
        """
        n, out = self.p.lxe.copies, self.out
        taken = max(cycle, self._asked)
        if len(self._popped) >= n:
            taken = max(taken, self._popped[-n] + 1)
        self._popped.append(max(taken + 1, self._begun))
        how = how if self.p.dre.kvmu.kv4_group else ""
        made = {"": size, "packs": size // RATIO, "expands": size * RATIO}[how]
        asked, free, writes = taken, self._popped[-1], self._cut(dst, made)
        part = 0  # beats written of the packed beat that left the buffer last
        for beats in self._cut(src, size):
            asked += 1
            most = len(out.read) + beats - self.depth  # beats that must have left the buffer
            room = self._gone[most - 1] if most > 0 else 0
            out.waits += max(0, room - asked)
            asked = max(asked, room, self._ends[-n] + 1 if len(self._ends) >= n else 0)
            out.reads.append(asked + 1)
            first = max(asked + 1 + self.latency, out.read[-1] + 1 if out.read else 0)
            out.read += range(first, first + beats)
            self._ends.append(out.read[-1])
            while writes and len(self._gone) + (takes := _taken(how, writes[0], part)) <= len(out.read):
                more = writes.pop(0)
                free = self._write(free, more, how, takes, part)
                part = (part + more) % RATIO if how == "expands" else 0
        self._asked = asked
        return taken

    def _write(self, after: int, beats: int, how: str, takes: int, part: int) -> int:
        """Writes a burst for which `takes` beats are in the buffer; returns the cycle of its last step."""
        out, n = self.out, self.p.lxe.copies
        there = out.read[len(self._gone) + takes - 1] if takes else 0
        begun = max(after, there, out.written[-1] - 1 if out.written else 0) + 1
        if len(self._responses) >= n:
            begun = max(begun, self._responses[-n] + 1)
        self._begun = begun
        out.writes.append(begun + 1)
        gives, makes = converted(self.p, how, beats, part)
        out.written += [begun + t + 1 for t in makes]
        self._gone += [begun + t + 1 for t in gives]
        self._responses.append(out.written[-1] + self.latency)
        return begun + makes[-1]

    def _cut(self, addr: int, size: int) -> list[int]:
        words = size // (2 * self.p.dpe.n_w)
        cuts = cut(self.p, {"addr": addr, "stride": 0, "rows": 0, "words": words - 1, "wide": 0})
        return [beats for beats, _ in cuts]


def _taken(how: str, beats: int, part: int) -> int:
    """Beats of the buffer that a burst of `beats` takes; `part`: beats written of the packed beat before."""
    if how == "expands":
        return -(-(beats - (-part) % RATIO) // RATIO)
    return beats * RATIO if how == "packs" else beats


def converted(p: CoreParams, how: str, beats: int, part: int) -> tuple[list[int], list[int]]:
    """Cycles from a burst's begin to each beat's leaving of the buffer, and to the last step for each of `beats`.

    how, part : as for `CopierTime.copy` and for `_taken`

    A beat that goes through is one step. The codec takes a slice of a beat in a cycle, and expands it in the next. It
    passes over each group to pack twice: it takes a cycle for each slice, 2 in between, and 2 for each slice.
    """
    if not how:
        return list(range(beats)), list(range(beats))
    n, group = p.lxe.bus_bytes // 2, p.dre.kvmu.kv4_group
    if how == "expands":
        taken = [(j + 1) * n // kv4_numbers(p) for j in range(beats)]
        ends = [t for j, t in enumerate(taken[:-1], part + 1) if j % RATIO == 0]
        return [0] * (part == 0) + ends, [t + 1 for t in taken]
    once = group // kv4_codes(p)
    both, of_group = 3 * once + 2, max(1, group // n)
    groups = range(0, beats * RATIO * n // group * both, both)
    if of_group > 1:  # the second pass reads again
        gives = [t + once + 2 + 2 * k * (n // kv4_codes(p)) for t in groups for k in range(of_group)]
    else:
        gives = list(groups[:: n // group])
    return gives, [(j + 1) * RATIO * n // group * both for j in range(beats)]


def copied_entry(p: CoreParams) -> int:
    """Cycles in which the copier writes an entry that a FETCH brings, if the entry is there: exact for whole bursts."""
    beats, longest = p.dre.kvmu.entry_bytes // p.lxe.bus_bytes, p.lxe.burst_bytes // p.lxe.bus_bytes
    if not p.dre.kvmu.kv4_group:
        return beats
    return sum(converted(p, "expands", min(longest, beats - k), 0)[1][-1] + 1 for k in range(0, beats, longest))


class RetrieverTime:
    """Time view of `hdl.retrieval.retriever.Retriever`. The DRE offers and takes everything as early as possible.

    latency : of the memory, as in `CopierTime`
    """

    def __init__(self, p: CoreParams, latency: int):
        self.p, self.latency = p, latency

    def run(
        self, commands: list[dict], news: list[dict], places: list[tuple[str, dict]], bursts: list[dict]
    ) -> RetrieverCycles:
        """Cycles of `commands`; all arguments are valid beats of the layouts in `hdl`. One with `at` comes in that
        cycle or later.

        news : results of the HCU, in order
        places : ("w", reply) and ("x", move) of the KVMU, in order
        bursts : bursts of the sets, in order
        """
        self.begin(places, bursts)
        free, results = 0, iter(news)
        for c in commands:
            takes = not c["skip"] and c["action"] in (Retrieve.CLUSTER, *ORDERS)
            free = self.execute(c, free, next(results).get("at", 0) if takes else 0) + 1
        return self.out

    def begin(self, places: Iterable[tuple[str, dict]], bursts: Iterable[dict]) -> None:
        """Starts a run. `execute` takes both lists in order; a beat with `at` comes in that cycle or later."""
        self.out = RetrieverCycles()
        self._copier = CopierTime(self.p, self.latency, self.out)
        self._places, self._bursts = iter(places), iter(bursts)

    def execute(self, c: dict, taken: int, news: int = 0) -> int:
        """Executes the instruction that was taken in cycle `taken`; returns the cycle in which it is done.

        news : first cycle in which CLUSTER or an order can take the HCU's result
        """
        out = self.out
        out.taken.append(taken)
        if c["skip"]:
            last = taken + 1
        elif c["action"] in ORDERS:
            out.orders.append(taken + 1)
            out.news.append(max(taken + 2, news))
            last = self._ended(self._answer(out.news[-1] + 1)) + 1
            out.places.append(last - 1)
            out.sets += [last] * (c["level"] > 0)
        elif c["action"] == Retrieve.CLUSTER:
            out.news.append(max(taken + 1, news))
            last = self._set(c, out.news[-1] + 1)
        elif c["action"] == Retrieve.PLACE:
            last = self._ended(self._place(c, taken + 1)) + 1
        else:
            last = self._set(c, self._ended(self._fetch(c, taken + 1)) + 1)
        out.done.append(last)
        return last

    def _answer(self, cycle: int) -> int:
        """Wipes blocks from `cycle` on; the cycle in which the KVMU's answer is there."""
        while True:
            name, beat = next(self._places)
            cycle = max(cycle, beat.get("at", 0))
            if name == "w":
                return cycle
            self.out.places.append(self._copier.copy(cycle, beat["src"], beat["dst"], beat["bytes"]))
            cycle = self.out.places[-1] + 1

    def _place(self, c: dict, cycle: int) -> int:
        """Copies entries to their places, and moves old ones out, from `cycle` on; returns the next free cycle."""
        size, left, since, at = self.p.dre.kvmu.entry_bytes, c["rows"] + 1, 0, c["addr"]
        while left:
            name, beat = next(self._places)
            cycle = max(cycle, beat.get("at", 0))
            if name == "x":
                if since == self.p.dre.kvmu.recent:
                    cycle, since = self._ended(cycle) + 1, 0
                cycle = self._copier.copy(cycle, beat["src"], beat["dst"], size, "packs")
            else:
                cycle = self._copier.copy(cycle, at, beat["device"], size)
                left, at, since = left - 1, at + size, min(since + 1, self.p.dre.kvmu.recent)
            self._copier.out.places.append(cycle)
            cycle += 1
        return cycle

    def _fetch(self, c: dict, cycle: int) -> int:
        """Copies the bursts of a set from `cycle` on; returns the next free cycle."""
        at, last, k = c["addr"], False, self.p.dre.kvmu
        ratio, keeps = k.entry_bytes // k.home_bytes, []
        while not last:
            beat = next(self._bursts)
            cycle = max(cycle, beat.get("at", 0))
            if not beat["empty"]:
                if beat.get("near"):
                    cycle = self._copier.copy(cycle, beat["to"], at, beat["bytes"] * ratio)
                else:
                    cycle = self._copier.copy(cycle, beat["addr"], at, beat["bytes"], "expands")
                keeps += [(at, beat["to"], beat["bytes"] * ratio)] if beat.get("keep") else []
            self._copier.out.fetched.append(cycle)
            at, last, cycle = at + beat["bytes"] * ratio, beat["last"], cycle + 1
        if keeps:
            cycle = self._ended(cycle) + 1
            for copy in keeps:
                cycle = self._copier.copy(cycle, *copy) + 1
        return cycle + (k.kept > 0)

    def _ended(self, cycle: int) -> int:
        """The first cycle from `cycle` on in which all copies have ended."""
        return max(cycle, self._copier.ended)

    def _set(self, c: dict, cycle: int) -> int:
        """Sets the registers of an instruction from `cycle` on; returns the cycle after."""
        self._copier.out.sets += [cycle] * (c["to"] > 0) + [cycle + 1] * (c["level"] > 0)
        return cycle + 1
