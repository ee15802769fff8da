"""Predicts the cycles of programs on the LXE, by joining the time views of its units.

Each unit runs ahead as long as it knows the cycles that it depends on (`sim.units.queue_cycles`). Only the VPE is
stepped through time, because its stream and its STORE can win in either order. Between two steps of the VPE, every
other unit runs as far as it can. A cycle that is still unknown then lies after the next step.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import Op
from openvrex.golden.program.isa import ENGINE, Opcode, StoreTo
from openvrex.golden.program.isa import Queue as From
from openvrex.hdl.params import CoreParams
from openvrex.hdl.queues import MULS, RESULTS, ROUTES
from openvrex.sim.units.dpe_time import TO_READ, DpeTime
from openvrex.sim.units.loader_time import LoaderTime, beats_read, cut, unpacked, word_beats
from openvrex.sim.units.queue_cycles import Queue, Units, Wait, Waits
from openvrex.sim.units.sequencer_time import NAMES, Executed, Pipeline, SemaphoreTimes
from openvrex.sim.units.storer_time import Give, StorerTime
from openvrex.sim.units.vpe_time import NEVER, VpeTime, Work


@dataclass
class LxeCycles:
    """Cycles of a program's steps, counted from the cycle in which START is taken. Arrays are [steps].

    executed : the sequencer executes the step, or puts it into its engine's queue
    started : the engine takes the step; equal to `executed` for control instructions
    finished : the step is done; for a VECTOR, the VPE takes it
    done : first cycle in which `status` is DONE
    """

    executed: np.ndarray
    started: np.ndarray
    finished: np.ndarray
    done: int = 0


def busy(p: CoreParams, step: Executed) -> dict[str, int]:
    """Cycles in which a step keeps units busy, by unit: "dpe" (chunks), "vpe" (words), "load" and "store" (beats).

    A LOAD of packed weights takes as many cycles as it has words of W, or beats if these are more.
    """
    c = step.beat
    if step.op not in ENGINE or c["skip"]:
        return {}
    if step.op == Opcode.MUL:
        return {"dpe": (c["rows"] + 1) * (c["tiles"] + 1) * (c["chunks"] + 1)}
    if step.op == Opcode.VECTOR:
        i = c["instruction"]
        return {"vpe": (i["words"] + 1) * (i["op"] != Op.STORE)}
    if step.op == Opcode.LOAD:
        return {"load": max(beats_read(p, c), unpacked(p, c))}
    if step.op == Opcode.STORE and c["target"] == StoreTo.MEMORY:
        return {"store": (c["rows"] + 1) * (c["words"] + 1) * word_beats(p, c)}
    return {}


@dataclass(frozen=True)
class Stretch:
    """`count` rounds of a loop that differ only in addresses. Each has `length` steps; step `first` begins them."""

    first: int
    length: int
    count: int

    def round(self, i: int) -> slice:
        """The steps of round `i`."""
        return slice(self.first + i * self.length, self.first + (i + 1) * self.length)


def stretches(p: CoreParams, steps: list[Executed]) -> list[Stretch]:
    """Finds all stretches of more than one round, inner loops before outer ones.

    Two rounds count as equal if their addresses cut the rows into the same bursts.
    """
    names: dict[tuple, int] = {}

    def key(step: Executed) -> int:
        c = step.beat
        what: tuple = (step.pc, c.get("skip"), *(c.get(n) for n in ("rows", "words", "tiles", "chunks")))
        if "stride" in c:
            what += (id(cut(p, c, step.op == Opcode.LOAD)),)
        if "instruction" in c:
            what += (c["instruction"]["words"], c["instruction"]["keep"])
        return names.setdefault(what, len(names))

    keys = np.array([key(step) for step in steps])
    out: list[Stretch] = []
    open_: list[list[int]] = []  # first step of each round, by open loop
    for k, step in enumerate(steps):
        if step.op == Opcode.LOOP and not step.jumps:
            open_.append([k + 1])
        elif step.op == Opcode.END:
            open_[-1].append(k + 1)
            if not step.jumps:
                out += _equal(keys, open_.pop())
    return out


def _equal(keys: np.ndarray, starts: list[int]) -> list[Stretch]:
    """Stretches among rounds that begin at the steps `starts`; the last entry is the end of the loop."""
    out = [Stretch(starts[0], starts[1] - starts[0], 1)]
    for a, b in pairwise(starts[1:]):
        last = out[-1]
        if b - a == last.length and (keys[a:b] == keys[last.round(0)]).all():
            out[-1] = replace(last, count=last.count + 1)
        else:
            out.append(Stretch(a, b - a, 1))
    return [s for s in out if s.count > 1]


class LxeTime:
    """Time view of `hdl.execution.lxe.Lxe` with a memory that takes a burst and a beat in each direction every cycle.

    A program finds the VPE idle.

    latency : cycles of the memory, as in `LoaderTime` and `StorerTime`
    rounds : number of rounds of a long loop to play

    Long loops are sampled. Of more than twice `rounds` equal rounds, the view plays the first `rounds` and the last.
    If the last three of the first rounds have the same period in every step, it extrapolates the rounds left out.
    Otherwise it plays the whole loop.
    """

    def __init__(self, p: CoreParams, latency: int, rounds: int = 8):
        self.p, self.latency, self.rounds = p, latency, rounds

    def run(self, steps: list[Executed]) -> LxeCycles:
        """Cycles of a trace's steps (`sim.units.sequencer_time.trace`), which must end with HALT.

        Raises `ValueError` for a program that waits for ever, and for a semaphore that two engines signal in another
        order than the program's.
        """
        long = [s for s in stretches(self.p, steps) if s.count > 2 * self.rounds]
        while True:
            out, unlike = self._play(steps, long)
            if not unlike:
                return out
            long = [s for s in long if s not in unlike]

    def _play(self, steps: list[Executed], long: list[Stretch]) -> tuple[LxeCycles, list[Stretch]]:
        """Samples the stretches `long`; returns the cycles, and those of the stretches whose rounds do not repeat."""
        kept = np.ones(len(steps), bool)
        for s in long:
            kept[s.round(self.rounds).start : s.round(s.count - 1).start] = False
        chosen = np.flatnonzero(kept)
        played = self.play([steps[k] for k in chosen])
        times = np.zeros((3, len(steps)), np.int64)
        times[:, chosen] = played.executed, played.started, played.finished
        done = played.done
        unlike: list[Stretch] = []
        for s in long:
            if not kept[s.first] or any(s.first <= u.first < s.round(s.count).start for u in unlike):
                continue
            last, left = times[:, s.round(self.rounds - 1)], s.count - self.rounds - 1
            before = [times[:, s.round(self.rounds - i)] for i in (2, 3)]
            period = (last - before[0])[0, 0]
            if (last - before[0] != period).any() or (before[0] - before[1] != period).any():
                unlike.append(s)
                continue
            times[:, s.round(s.count - 1).start :] += period * left
            done += int(period) * left
            for i in range(1, left + 1):
                times[:, s.round(self.rounds - 1 + i)] = last + period * i
        return LxeCycles(times[0], times[1], times[2], done), unlike

    def play(self, steps: list[Executed]) -> LxeCycles:
        """Cycles of all steps, without sampling."""
        return Run(self.p, self.latency, steps).play()


class Run:
    """One run of a program on the units of the LXE. Steps are known by their numbers in `steps`.

    detail : keep the cycle of every transfer

    The lists of an engine follow the order of its instructions.
    """

    def __init__(self, p: CoreParams, latency: int, steps: list[Executed], detail: bool = False):
        self.p, self.steps, self.now = p, steps, 0
        self.shared = any(s.op == Opcode.STORE and s.beat["target"] == StoreTo.X for s in steps)
        self.loader, self.storer = LoaderTime(p, latency, detail, self.shared), StorerTime(p, latency, detail)
        self.dpe, self.vpe = DpeTime(p.dpe), VpeTime(p.vpe, detail)
        self.semaphores = SemaphoreTimes()
        names = NAMES.values()
        self.queues = {name: Queue(p.lxe.queue) for name in names}
        self.given: dict[str, list[int]] = {name: [] for name in names}  # steps put into each queue, by engine
        self.taken: dict[str, list[int]] = {name: [] for name in names}  # cycle in which each engine takes each of them
        self.done: dict[str, list[int]] = {name: [] for name in names}  # cycle in which each is done, by engine
        self.results = Queue(RESULTS)  # from the DPE to the VPE
        self.loaded, self.put = Queue(p.lxe.words), Queue(p.lxe.words)  # loader to VPE, VPE to storer
        self.routes = Queue(ROUTES)  # VECTORs that take words
        self.route: list[list[int]] = []  # of each of these: source of its words, words left
        self.to_dpe: list[int] = []  # cycle in which each MUL is offered to the DPE
        self.read: list[int] = []  # cycle in which the DPE has read each MUL's words
        self.head: tuple[int, int] | None = None  # VECTOR offered to the VPE, and the first cycle of the offer
        self.works: dict[tuple, Work] = {}
        executed, started, finished = np.zeros((3, len(steps)), np.int64)
        self.out = LxeCycles(executed, started, finished)
        self.units = Units(self.all_units())

    def all_units(self) -> dict[str, Waits]:
        """The units of the LXE except the VPE, by name."""
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
        """Runs the program to its end. Raises `ValueError` if it waits for ever."""
        vpe = self.vpe
        self.units.settle()
        while not self.out.done:
            c, i, o = self.comes(), self.arrives(), self.leaves()
            at = NEVER
            for t in (vpe.wake, c, i, o, *self.timed()):
                if self.now < t < at:
                    at = t
            if at == NEVER:
                raise ValueError(f"the program waits for ever from cycle {self.now} on: {self.stuck()}")
            self.now = at
            self.step(at, c <= at, i <= at, o <= at)
            if vpe.took_c or vpe.took_i or vpe.gave_o or self.shared:
                self.units.settle()
        return self.out

    def stuck(self) -> str:
        """The engines that wait, and where in the program."""
        late = ((name, given, len(self.done[name])) for name, given in self.given.items())
        names = [f"{name} at pc {self.steps[given[n]].pc}" for name, given, n in late if len(given) > n]
        return ", ".join(names) or "the sequencer"

    # The sequencer

    def sequencer(self) -> Waits:
        """The sequencer: executes control instructions and puts the others into their queues."""
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
                    at = yield from self.halt(max(at, reached + 1), bool(step.beat))
                self.semaphores.signal(step.signal, at)
                self.out.started[k] = self.out.finished[k] = at
            pipeline.at = executed[k] = at

    def halt(self, at: int, leave: bool) -> Generator[Wait, None, int]:
        """Executes HALT in cycle `at` or later: one cycle after all queues are empty and all engines idle.

        With `leave` the retrieval engine need only have taken its last instruction.
        """
        for name, done in self.done.items():
            ends = self.taken[name] if leave and name == "retrieve" else done
            yield ends, len(self.given[name]) - 1
            at = max([at, *(c + 2 for c in ends[-1:])])
        yield self.routes.taken, len(self.routes.put) - 1
        at = max([at, *(c + 2 for c in self.routes.taken[-1:])])
        self.out.done = at + 1
        return at

    def offered(self, name: str) -> Generator[Wait, None, tuple[int, int]]:
        """The next instruction of an engine: its step, and the first cycle in which the engine can take it.

        In that cycle it leaves the queue for the slice behind it, which the one before it has left.
        """
        queue, taken = self.queues[name], self.taken[name]
        n = len(taken)
        if len(queue.moved) <= n:
            yield queue.moved, n
        k = self.given[name][n]
        wait = self.steps[k].wait
        if wait:
            yield from self.semaphores.waits(wait)
        go = self.semaphores.ready(wait, max([queue.offered(n), *(c + 1 for c in taken[-1:])]))
        queue.pop(go)
        return k, go

    def take(self, name: str, k: int, cycle: int) -> None:
        """Records that an engine takes its next instruction, step `k`."""
        self.taken[name].append(cycle)
        self.out.started[k] = cycle

    def finish(self, name: str, k: int, cycle: int) -> None:
        """Records that an engine completes step `k`, and signals its semaphores."""
        self.done[name].append(cycle)
        self.out.finished[k] = cycle
        if self.steps[k].signal:
            self.semaphores.signal(self.steps[k].signal, cycle)

    # LOAD

    def loads(self) -> Waits:
        """The first half of the loader: takes LOADs and asks for their bursts."""
        taken = self.loader.out.taken
        while True:
            k, go = yield from self.offered("load")
            before = len(taken)
            for wait in self.loader.ask(self.steps[k].beat, go):
                if len(taken) > before and len(self.taken["load"]) == before:
                    self.take("load", k, taken[-1])
                yield wait
            if len(self.taken["load"]) == before:
                self.take("load", k, taken[-1])

    def load(self) -> Waits:
        """The second half of the loader: takes the beats and hands words on."""
        given = self.given["load"]
        for n in self.count():
            yield self.loader.out.taken, n
            k = given[n]
            done = yield from self.loader.receive(self.steps[k].beat, self.loaded)
            self.finish("load", k, done)

    # MUL

    def multiplier(self) -> Waits:
        """Takes MULs and offers them to the DPE; at most `MULS` are in flight."""
        at, done, commands = -1, self.done["mul"], 0
        for n in self.count():
            k, go = yield from self.offered("mul")
            if commands:
                yield self.dpe.taken, commands - 1
                at = max(at, self.dpe.taken[commands - 1] - 1)
            if n >= MULS:
                yield done, n - MULS
                at = max(at, done[n - MULS])
            at = max(go, at + 1)
            self.take("mul", k, at)
            if not self.steps[k].beat["skip"]:
                commands += 1
                self.to_dpe.append(at + 1)

    def multiply(self) -> Waits:
        """The DPE: executes MULs in order and records their ends."""
        given, commands = self.given["mul"], 0
        taken, done = self.taken["mul"], self.done["mul"]
        for n in self.count():
            yield taken, n
            c = self.steps[given[n]].beat
            end = taken[n]
            if not c["skip"]:
                end = yield from self.dpe.command(c, self.to_dpe[commands], self.results)
                end += TO_READ - 1
                self.read.append(end + 1)
                commands += 1
            self.finish("mul", given[n], max(end + 1, done[-1] + 1 if done else 0))

    # VECTOR

    def vectors(self) -> Waits:
        """Offers VECTORs to the VPE, one at a time."""
        taken = self.taken["vector"]
        for n in self.count():
            k, go = yield from self.offered("vector")
            if self.steps[k].beat["skip"]:
                self.hand(k, go)
            else:
                self.head = k, go
                yield taken, n

    def hand(self, k: int, cycle: int) -> None:
        """Records that the VPE takes the VECTOR of step `k`, or that the VECTOR is skipped."""
        self.head = None
        self.take("vector", k, cycle)
        self.finish("vector", k, cycle)

    def work(self, k: int) -> Work:
        """What the VPE does for the VECTOR of step `k`."""
        step = self.steps[k]
        i = step.beat["instruction"]
        key = step.pc, i["words"], i["keep"]
        if key not in self.works:
            self.works[key] = Work(self.p.vpe, VectorInstruction(**i))
        return self.works[key]

    def stream(self) -> Queue | None:
        """The queue from which the VPE takes its next word, None while no VECTOR in flight takes words."""
        n = len(self.routes.taken)
        if len(self.routes.moved) <= n:
            return None
        return self.loaded if self.route[n][0] == From.LOAD else self.results

    def arrives(self) -> int:
        """The first cycle in which a word is offered to the VPE."""
        queue = self.stream()
        if queue is None or len(queue.moved) <= len(queue.taken):
            return NEVER
        return max(queue.offered(len(queue.taken)), self.routes.offered(len(self.routes.taken)))

    def leaves(self) -> int:
        """The first cycle in which there is room for a word from the VPE."""
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

    def timed(self) -> Iterator[int]:
        """Cycles for which units wait: `to_x` waits until a given cycle has begun."""
        return (n for happened, n in self.units.waits.values() if happened is self) if self.shared else iter(())

    def __len__(self) -> int:
        """Number of cycles that have begun. A unit waits for cycle n by yielding `(self, n)`."""
        return self.now + 1

    def step(self, now: int, c: bool, i: bool, o: bool) -> None:
        """Steps the VPE. `c`, `i` : an instruction, a word is offered · `o` : there is room for a word."""
        vpe, head = self.vpe, self.head
        vpe.step(now, self.work(head[0]) if c and head else None, i, o)
        if vpe.took_i:
            stream = self.stream()
            assert stream is not None  # the word came from a queue
            stream.pop(now)
            route = self.route[len(self.routes.taken)]
            route[1] -= 1
            if not route[1]:
                self.routes.pop(now)
        if vpe.gave_o:
            self.put.push(now)
        if vpe.took_c and head:
            k = head[0]
            work = self.work(k)
            if work.streams:
                self.routes.push(now)
                self.route.append([self.steps[k].beat["source"], work.words + 1])
            self.hand(k, now)

    # STORE

    def store(self) -> Waits:
        """The storer: executes STOREs in order."""
        while True:
            k, go = yield from self.offered("store")
            c = self.steps[k].beat
            self.take("store", k, self.storer.take(go))
            done = yield from self.storer.store(c, self.put, self.give(c))
            self.finish("store", k, done)

    def give(self, c: dict) -> Give | None:
        """The receiver of words that do not go to memory and that may stall."""
        return self.to_x if c["target"] == StoreTo.X and not c["wide"] else None

    def to_x(self, cycle: int) -> Generator[Wait, None, int]:
        """Takes a word for X from `cycle` on; the loader's words have priority. Returns the cycle."""
        while True:
            yield self, cycle
            if cycle not in self.loader.to_x:
                return cycle
            cycle += 1

    @staticmethod
    def count() -> Iterator[int]:
        """0, 1, 2, ..."""
        n = 0
        while True:
            yield n
            n += 1
