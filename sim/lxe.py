"""Cycles of programs on the LXE: the time views of its units, joined.

Units go on by themselves as far as what they wait for is known (`sim.queue`). Only the VPE is stepped through time,
because in it a stream and a STORE can come first in either order; between its steps every unit goes as far as what the
VPE has done lets it, and what is still unknown then lies after the next step.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np

from golden.isa import ENGINE, Opcode, StoreTo
from golden.isa import Queue as From
from golden.vector import Instruction as VectorInstruction
from hdl.params import CoreParams
from sim.dpe import ROOM, TO_READ, DpeTime
from sim.loader import LoaderTime
from sim.queue import Queue, Units, Wait, Waits
from sim.sequencer import NAMES, Pipeline, SemaphoreTimes, Step
from sim.storer import StorerTime
from sim.vpe import NEVER, VpeTime, Work

ROUTES = 4  # VECTORs that wait for words
PENDING = 4  # MULs that are not done


@dataclass
class LxeCycles:
    """A run of a program, in cycles from the one in which START is taken.

    executed : of every step of its trace: executed, or put into its engine's queue · started : taken by its engine (of
    control instructions as `executed`) · finished : done (of a VECTOR: taken by the VPE) · done : the first in which
    `status` is DONE
    busy : cycles in which each unit works: dpe (a chunk), vpe (a word goes into the lanes), load, store (a beat on the
    bus) · waits : cycles in which the DPE waits for room, the VPE for a stream (starved) or for itself, by its reason
    """

    executed: list[int] = field(default_factory=list)
    started: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    finished: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    done: int = 0
    busy: dict[str, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)


class LxeTime:
    """Time view of `hdl.lxe.Lxe` with a memory that takes a burst and a beat in each direction every cycle.

    latency : of the memory, as in `LoaderTime` and `StorerTime` · detail : keep the cycles of every transfer
    """

    def __init__(self, p: CoreParams, latency: int, detail: bool = False):
        self.p, self.latency, self.detail = p, latency, detail

    def run(self, steps: list[Step]) -> LxeCycles:
        """Cycles of a trace's steps (`sim.sequencer.trace`), the last of them HALT.

        Raises `ValueError` for a program that waits for ever, and where a semaphore's first signal in time is not the
        first in the program.
        """
        return Run(self.p, self.latency, steps, self.detail).play()


class Run:
    """A program's units. Lists of an engine are in the order of its instructions."""

    def __init__(self, p: CoreParams, latency: int, steps: list[Step], detail: bool):
        self.p, self.steps, self.now = p, steps, 0
        shared = any(s.op == Opcode.STORE and s.beat["target"] == StoreTo.X for s in steps)
        self.loader, self.storer = LoaderTime(p, latency, detail, shared), StorerTime(p, latency, detail)
        self.dpe, self.vpe = DpeTime(p.dpe), VpeTime(p.vpe, detail)
        self.semaphores = SemaphoreTimes()
        names = NAMES.values()
        self.queues = {name: Queue(p.lxe.queue) for name in names}
        self.given: dict[str, list[int]] = {name: [] for name in names}  # steps put into each queue
        self.done: dict[str, list[int]] = {name: [] for name in names}
        self.results = Queue(ROOM)
        self.loaded, self.put = Queue(p.lxe.words), Queue(p.lxe.words)
        self.routes, self.route = Queue(ROUTES), []  # VECTORs that take words, and each one's source and words left
        self.multiplied: list[int] = []  # MULs that have been taken and go to the DPE
        self.to_dpe: list[int] = []  # cycle in which each of these is offered there
        self.head: tuple[int, int] | None = None  # VECTOR in front of the VPE, and from which cycle on
        self.works: dict[tuple, Work] = {}
        self.out = LxeCycles(
            executed=[0] * len(steps),
            started=np.zeros(len(steps), np.int64),
            finished=np.zeros(len(steps), np.int64),
        )
        self.units = Units(self.all_units())

    def all_units(self) -> dict[str, Waits]:
        """By name."""
        return {
            "sequencer": self.sequencer(),
            "loads": self.loads(),
            "loader": self.load(),
            "multiplier": self.multiplier(),
            "dpe": self.multiply(),
            "vectors": self.vectors(),
            "storer": self.store(),
        }

    def play(self) -> LxeCycles:
        """All of it."""
        while True:
            self.units.settle()
            if self.out.done:
                return self.totals()
            at = self.next_cycle()
            if at >= NEVER:
                raise ValueError(f"the program waits for ever from cycle {self.now} on: {self.stuck()}")
            self.now = at
            self.step(at)

    def totals(self) -> LxeCycles:
        """What the units have counted."""
        out, vpe = self.out, self.vpe.out
        out.busy = {
            "dpe": self.dpe.busy,
            "vpe": vpe.words,
            "load": self.loader.beats,
            "store": self.storer.beats,
        }
        out.waits = {"dpe": self.dpe.waits, "starved": self.vpe.starved} | dict(vpe.waits)
        return out

    def stuck(self) -> str:
        """Which units wait."""
        names = [
            f"{name} at pc {self.steps[k[-1]].pc}" for name, k in self.given.items() if len(k) > len(self.done[name])
        ]
        return ", ".join(names) or "the sequencer"

    # The sequencer

    def sequencer(self) -> Waits:
        """Executes control instructions, puts the others into their queues."""
        pipeline, executed = Pipeline(), self.out.executed
        for k, step in enumerate(self.steps):
            at = pipeline.reach(step)
            if step.op in ENGINE:
                name = NAMES[ENGINE[step.op]]
                queue = self.queues[name]
                happened, n = queue.room()
                if len(happened) <= n:
                    yield happened, n
                at = queue.push(at)
                self.given[name].append(k)
            else:
                yield from self.semaphores.waits(step.wait)
                reached, at = at, self.semaphores.ready(step.wait, at)
                if step.op == Opcode.HALT:
                    at = yield from self.halt(max(at, reached + 1))
                self.semaphores.signal(step.signal, at)
                self.out.started[k] = self.out.finished[k] = at
            pipeline.at = executed[k] = at

    def halt(self, at: int) -> Generator[Wait, None, int]:
        """HALT, which can be executed from a cycle on: one after the first in which all is empty and idle."""
        for name, done in self.done.items():
            yield done, len(self.given[name]) - 1
            at = max([at, *(c + 2 for c in done[-1:])])
        yield self.routes.taken, len(self.routes.put) - 1
        at = max([at, *(c + 2 for c in self.routes.taken[-1:])])
        self.out.done = at + 1
        return at

    def offered(self, name: str) -> Generator[Wait, None, tuple[int, int]]:
        """The next instruction of an engine: its step, the first cycle in which it can go."""
        queue, given = self.queues[name], self.given[name]
        n = len(queue.taken)
        if len(queue.moved) <= n:
            yield queue.moved, n
        k = given[n]
        wait = self.steps[k].wait
        if wait:
            yield from self.semaphores.waits(wait)
        return k, self.semaphores.ready(wait, queue.offered(n))

    def take(self, name: str, k: int, cycle: int) -> None:
        """An engine takes its next instruction."""
        self.queues[name].pop(cycle)
        self.out.started[k] = cycle

    def finish(self, name: str, k: int, cycle: int) -> None:
        """An engine's next instruction is done."""
        self.done[name].append(cycle)
        self.out.finished[k] = cycle
        if self.steps[k].signal:
            self.semaphores.signal(self.steps[k].signal, cycle)

    # LOAD

    def loads(self) -> Waits:
        """Takes LOADs and asks for their bursts."""
        taken = self.loader.out.taken
        while True:
            k, go = yield from self.offered("load")
            before = len(taken)
            for wait in self.loader.ask(self.steps[k].beat, go):
                if len(taken) > before and len(self.queues["load"].taken) == before:
                    self.take("load", k, taken[-1])
                yield wait
            if len(self.queues["load"].taken) == before:
                self.take("load", k, taken[-1])

    def load(self) -> Waits:
        """Takes their beats."""
        given = self.given["load"]
        for n in self.count():
            yield self.loader.out.taken, n
            k = given[n]
            done = yield from self.loader.receive(self.steps[k].beat, self.loaded)
            self.finish("load", k, done)

    # MUL

    def multiplier(self) -> Waits:
        """Takes MULs; a command waits for the DPE, and up to four for their end."""
        at, done, commands = -1, self.done["mul"], 0
        for n in self.count():
            k, go = yield from self.offered("mul")
            if commands:
                yield self.dpe.taken, commands - 1
                at = max(at, self.dpe.taken[commands - 1] - 1)
            if n >= PENDING:
                yield done, n - PENDING
                at = max(at, done[n - PENDING])
            at = max(go, at + 1)
            self.take("mul", k, at)
            if not self.steps[k].beat["skip"]:
                commands += 1
                self.to_dpe.append(at + 1)

    def multiply(self) -> Waits:
        """The DPE, and the ends of MULs."""
        given, commands = self.given["mul"], 0
        taken, done = self.queues["mul"].taken, self.done["mul"]
        for n in self.count():
            yield taken, n
            c = self.steps[given[n]].beat
            end = taken[n]
            if not c["skip"]:
                end = yield from self.dpe.command(c, self.to_dpe[commands], self.results)
                end += TO_READ - 1
                commands += 1
            self.finish("mul", given[n], max(end + 1, done[-1] + 1 if done else 0))

    # VECTOR

    def vectors(self) -> Waits:
        """The head of the queue in front of the VPE."""
        taken = self.queues["vector"].taken
        for n in self.count():
            k, go = yield from self.offered("vector")
            if self.steps[k].beat["skip"]:
                self.hand(k, go)
            else:
                self.head = k, go
                yield taken, n

    def hand(self, k: int, cycle: int) -> None:
        """A VECTOR goes to the VPE, or nowhere."""
        self.head = None
        self.take("vector", k, cycle)
        self.finish("vector", k, cycle)

    def work(self, k: int) -> Work:
        """What the VPE does."""
        step = self.steps[k]
        i = step.beat["instruction"]
        key = step.pc, i["words"], i["keep"]
        if key not in self.works:
            self.works[key] = Work(self.p.vpe, VectorInstruction(**i))
        return self.works[key]

    def stream(self) -> Queue | None:
        """The queue from which the VPE takes its next word, None if nothing says."""
        n = len(self.routes.taken)
        if len(self.routes.moved) <= n:
            return None
        return self.loaded if self.route[n][0] == From.LOAD else self.results

    def arrives(self) -> int:
        """The first cycle in which a word for the VPE is there."""
        queue = self.stream()
        if queue is None or len(queue.moved) <= len(queue.taken):
            return NEVER
        return max(queue.offered(len(queue.taken)), self.routes.offered(len(self.routes.taken)))

    def leaves(self) -> int:
        """The first cycle in which there is room for a word of the VPE."""
        happened, n = self.put.room()
        return 0 if n < 0 else happened[n] + 1 if len(happened) > n else NEVER

    def comes(self) -> int:
        """The first cycle in which the VPE is offered an instruction."""
        if self.head is None:
            return NEVER
        k, go = self.head
        if not self.work(k).streams:
            return go
        happened, n = self.routes.room()
        return go if n < 0 else max(go, happened[n] + 1) if len(happened) > n else NEVER

    def next_cycle(self) -> int:
        """The next in which the VPE, or a unit that waits for time, can do something."""
        later = [t for t in (self.vpe.wake, self.comes(), self.arrives(), self.leaves()) if t > self.now]
        return min([*later, *self.timed()], default=NEVER)

    def timed(self) -> Iterator[int]:
        """Cycles that units wait for."""
        return (n for happened, n in self.units.waits.values() if happened is self)

    def __len__(self) -> int:
        """Cycles that have begun: to wait for a cycle, a unit waits for its entry here."""
        return self.now + 1

    def step(self, now: int) -> None:
        """A cycle of the VPE."""
        vpe = self.vpe
        c = self.head if self.comes() <= now else None
        vpe.step(now, self.work(c[0]) if c else None, self.arrives() <= now, self.leaves() <= now)
        if vpe.took_i:
            self.stream().pop(now)
            route = self.route[len(self.routes.taken)]
            route[1] -= 1
            if not route[1]:
                self.routes.pop(now)
        if vpe.gave_o:
            self.put.push(now)
        if vpe.took_c:
            k = c[0]
            work = self.work(k)
            if work.streams:
                self.routes.push(now)
                self.route.append([self.steps[k].beat["source"], work.words + 1])
            self.hand(k, now)

    # STORE

    def store(self) -> Waits:
        """Takes STOREs and their words."""
        while True:
            k, go = yield from self.offered("store")
            c = self.steps[k].beat
            self.take("store", k, self.storer.take(go))
            done = yield from self.storer.store(c, self.put, self.give(c))
            self.finish("store", k, done)

    def give(self, c: dict):
        """Where words go that are not for memory."""
        return self.to_x if c["target"] == StoreTo.X else None

    def to_x(self, cycle: int) -> Generator[Wait, None, int]:
        """X takes the loader's words first."""
        while True:
            yield self, cycle
            if cycle not in self.loader.to_x:
                return cycle
            cycle += 1

    @staticmethod
    def count() -> Iterator[int]:
        """0, 1, ..."""
        n = 0
        while True:
            yield n
            n += 1
