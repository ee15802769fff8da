"""Finds deadlocks and hazards in a program of the LXE, whose engines run side by side.

A deadlock is a program that never ends. A hazard is two accesses to one word by two engines, at least one of them a
write, that neither semaphores nor streams order: the result depends on timing.

Deadlocks. `simulate` plays the program without numbers: queues of instructions, each executed in order, the semaphores,
and the three queues of words. Only one engine waits for each semaphore, and only one takes from each queue of words. So
the outcome does not depend on which engine moves first, and a program that ends still ends with longer queues.

Hazards. The check gives each engine a vector clock: how many accesses of every other engine are known to lie in its
past. An engine learns from the semaphores that it waits for and from the words that it takes, which carry the clock of
their source. Where several engines signal one semaphore, a waiter knows of an engine's signals only what the signals of
all others cannot account for; give the engines of a loop semaphores of their own.

The check watches W and X by words, memory by words of BF16 numbers, and registers that a RETRIEVE or STORE sets and the
sequencer uses, or the other engine sets. Only the VPE uses its banks, so they need no check. Two things are outside:
the copies of a RETRIEVE, whose lengths depend on data, and its waiting for the DRE.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.vector import Op
from openvrex.golden.program.isa import (
    ADDR_BITS,
    ENGINE,
    SEMAPHORES,
    SIGNS,
    Engine,
    Instruction,
    LoadTo,
    LxeFormat,
    Opcode,
    Queue,
    Retrieve,
    StoreTo,
    expanded_places,
    expands,
    packs_signs,
    sets_register,
    unpacks,
    words_taken,
)
from openvrex.golden.program.sequencer_model import Issue, bits, register_values, sequence

SEQUENCER = "sequencer"
# Fields of a RETRIEVE that name registers which it sets.
RESULTS: dict[int, tuple[str, ...]] = dict.fromkeys((Retrieve.CLUSTER, Retrieve.FETCH), ("to", "level"))
RESULTS |= dict.fromkeys((Retrieve.CLEAR, Retrieve.SWITCH, Retrieve.BUDGET), ("level",))
# Columns of a clock: accesses of each of these engines; of RETRIEVE, instructions that are done.
_WATCHED = [Engine.LOAD, Engine.MUL, Engine.STORE, Engine.RETRIEVE]


@dataclass(frozen=True)
class Hazard:
    """Two accesses that nothing orders.

    first, second : indices of their instructions · engines : who executes them · word : the word that both use
    """

    first: int
    second: int
    engines: tuple[str, str]
    word: str

    def __str__(self) -> str:
        first, second = self.engines
        return (
            f"instruction {self.second} ({second}) and instruction {self.first} ({first}) both use {self.word}, and "
            f"nothing orders them: let {second} wait for a semaphore that {first} signals"
        )


@dataclass(frozen=True)
class Order:
    """The findings about a program.

    waiting : of a program that does not end, the instruction and what it waits for, by engine or "sequencer"
    left : words left at the end, by queue
    hazards : one for each pair of instructions
    """

    waiting: dict[str, tuple[int, str]]
    left: dict[str, int]
    hazards: list[Hazard]

    def problems(self) -> list[str]:
        """The findings as text, one line each; empty for a sound program."""
        out = [f"deadlock: instruction {pc} ({who}) {why}" for who, (pc, why) in self.waiting.items()]
        out += [f"{n} words are left in {name}" for name, n in self.left.items()]
        return out + [str(h) for h in self.hazards]


def simulate(
    program: Sequence[Instruction], registers: dict[int, int], fmt: LxeFormat, queue: int = 2, words: int = 4
) -> Order:
    """Play a program and report deadlocks, words left over and hazards.

    registers : values that the host sets before
    queue : places for instructions in front of each engine
    words : places in each queue of words

    Raises `LxeError` as `golden.program.sequencer_model.sequence` does, and for a semaphore above 255. Here RETRIEVEs
    leave the registers as they are; where counts depend on them, `play` the issues that a run has recorded.
    """
    return play(sequence(program, register_values(registers), fmt), fmt, queue, words)


def play(issues: Iterable[Issue], fmt: LxeFormat, queue: int = 2, words: int = 4) -> Order:
    """Play instructions with their registers resolved, such as `golden.program.lxe_model.Result.issues`."""
    return _Playback(list(issues), fmt, queue, words).play()


class _Accesses:
    """The last read and write of every word by each engine, as positions among the engine's accesses."""

    def __init__(self, name: str, words: int):
        self.name = name
        self.reads, self.writes = np.zeros((2, len(_WATCHED), words), np.int64)

    def touch(self, engine: int, at: np.ndarray, position: np.ndarray, clock: np.ndarray, write: bool) -> np.ndarray:
        """Record accesses to the words `at` and return those that race with accesses of another engine.

        engine : column of the accessing engine in a clock
        position : positions of the accesses, [words]
        clock : what the engine knows at each access, [engines] or [words, engines]

        Returns rows (other engine, its position, own position, word).
        """
        clock = np.broadcast_to(clock, (len(at), len(_WATCHED)))
        found = []
        for other in range(len(_WATCHED)):
            if other == engine:
                continue
            last = self.writes[other, at]
            if write:
                last = np.maximum(last, self.reads[other, at])
            bad = last > clock[:, other]
            if bad.any():
                found.append(np.stack([np.full(bad.sum(), other), last[bad], position[bad], at[bad]], axis=1))
        (self.writes if write else self.reads)[engine, at] = position
        return np.concatenate(found) if found else np.zeros((0, 4), np.int64)


class _Words:
    """A queue of words, of which only the clocks are kept."""

    def __init__(self, name: str, places: int):
        self.name, self.places = name, places
        self.clocks: deque[np.ndarray] = deque()
        self.waiting = self.taken = 0

    def put(self, clocks: np.ndarray) -> int:
        """Append as many as there is room for; returns how many."""
        count = min(len(clocks), self.places - self.waiting)
        if count:
            self.clocks.append(clocks[:count])
            self.waiting += count
        return count

    def take(self, most: int) -> np.ndarray:
        """Take up to `most` words; returns their clocks."""
        out, left = [np.zeros((0, len(_WATCHED)), np.int64)], most
        while left and self.clocks:
            part = self.clocks.popleft()
            if len(part) > left:
                self.clocks.appendleft(part[left:])
            out.append(part[:left])
            left -= len(out[-1])
        self.waiting -= most - left
        self.taken += most - left
        return np.concatenate(out)


def _scores(issues: list[Issue]) -> deque[int]:
    """Words that each STORE to SCORE takes, in order; a row is the words of one VECTOR of op STORE."""
    given: deque[int] = deque()
    out: deque[int] = deque()
    for i in issues:
        if i.skip:
            continue
        if i.op == Opcode.VECTOR and i.vector.op == Op.STORE:
            given.append(i["words"])
        elif i.op == Opcode.STORE and i["target"] == StoreTo.SCORE:
            out.append(sum(given.popleft() if given else 1 for _ in range(i["rows"])))
        elif i.op == Opcode.STORE:
            left = i["rows"] * i["words"]
            while left and given:
                part = min(left, given[0])
                left -= part
                given[0] -= part
                if not given[0]:
                    given.popleft()
    return out


def _name(who: Engine | str) -> str:
    return who if isinstance(who, str) else str(who.name)


class _Playback:
    """A program that is being played: who has reached which instruction, and what each engine knows.

    The sequencer and the engines are generators. Each runs as far as it can and yields where it must wait.
    """

    def __init__(self, issues: list[Issue], fmt: LxeFormat, queue: int, words: int):
        self.issues, self.fmt, self.queue = issues, fmt, queue
        self.moves = 0  # counts every progress; if it stands still, the program is over or in a deadlock
        self.issued = False  # whether the sequencer has issued all instructions
        # Instruction in hand and what it waits for, "" if for nothing.
        self.at: dict[Engine | str, tuple[int, str]] = dict.fromkeys([*Engine, SEQUENCER], (0, ""))
        # Instructions in front of each engine, with the sequencer's clock at their issue.
        self.queues: dict[Engine, deque[tuple[Issue, np.ndarray]]] = {e: deque() for e in Engine}
        # Clocks.
        self.knows: dict[Engine | str, np.ndarray] = {
            who: np.zeros(len(_WATCHED), np.int64) for who in [*Engine, SEQUENCER]
        }
        self.words = {q: _Words(f"the queue of {q.name} words", words) for q in Queue}
        self.out = _Words("the VPE's output", 1)
        self.counts, self.takes = [0] * SEMAPHORES, [0] * SEMAPHORES  # of semaphores: counters, waits that succeeded
        self.totals: list[Counter[Engine | str]] = [Counter() for _ in range(SEMAPHORES)]  # signals by engine
        self.signals: dict[tuple[int, Engine | str], list[np.ndarray]] = {}  # clocks of the signals so far
        for i in issues:
            for s in bits(i["signal"]):
                self.totals[s][ENGINE.get(i.op, SEQUENCER)] += 1
        # For each watched engine: accesses so far; position of the last access of each instruction, and its index.
        self.positions = [0] * len(_WATCHED)
        self.ends: list[list[int]] = [[] for _ in _WATCHED]
        self.pcs: list[list[int]] = [[] for _ in _WATCHED]
        # Memory words that some STORE writes; others cannot be part of a hazard.
        stored = [self._units(i) for i in issues if i.op == Opcode.STORE and i["target"] == StoreTo.MEMORY]
        self.stored = np.unique(np.concatenate([np.zeros(0, np.int64), *(u.reshape(-1) for u in stored)]))
        self.spaces = {
            "W": _Accesses("W word", fmt.w_depth),
            "X": _Accesses("X word", fmt.x_depth),
            "memory": _Accesses("memory at", len(self.stored)),
        }
        self.hazards: dict[tuple[int, int, str], Hazard] = {}
        # LOADs whose words may still wait in the queue: words to be taken, the instruction, its clock.
        self.loads: deque[tuple[int, Issue, np.ndarray]] = deque()
        # By register: index and engine of the last instruction that sets it, and its number among the RETRIEVEs, or
        # among the STOREs to a register.
        self.sets: dict[int, tuple[int, Engine, int]] = {}
        self.numbers: list[int] = []  # positions of the STOREs to a register that have been executed
        self.retrieves = self.stores = 0  # RETRIEVEs, and STOREs to a register, issued so far
        self.scores = _scores(issues)  # words of each STORE to SCORE to come
        self.tags = np.zeros((3, fmt.depth, len(_WATCHED)), np.int64)  # clocks of the words in the banks
        self.fired = np.zeros(len(_WATCHED), np.int64)  # clock of the last word that entered the VPE

    def play(self) -> Order:
        """Let the sequencer and the engines move in turn until all have ended or none can move."""
        actors: dict[Engine | str, Iterator[None]] = {SEQUENCER: self._sequencer()}
        actors |= {e: self._engine(e) for e in Engine}
        before = -1
        while actors and self.moves != before:
            before = self.moves
            for who, actor in list(actors.items()):
                if next(actor, "ended") == "ended":
                    del actors[who]
                    self.moves += 1
                self._loaded()
        waiting = {_name(who): self.at[who] for who in actors if self.at[who][1]}
        if self.loads:
            waiting.setdefault(_name(Engine.LOAD), (self.loads[0][1].pc, "waits for the VPE to take its words"))
        queues = [] if waiting else [*self.words.values(), self.out]
        left = {q.name: q.waiting for q in queues if q.waiting}
        return Order(waiting, left, list(self.hazards.values()))

    def _sequencer(self) -> Iterator[None]:
        for i in self.issues:
            if i.op not in ENGINE:
                yield from self._wait(SEQUENCER, i)
                self._uses(i)
                self._signal(SEQUENCER, i, self.knows[SEQUENCER])
            else:
                e = ENGINE[i.op]
                while len(self.queues[e]) == self.queue:
                    self.at[SEQUENCER] = (
                        i.pc,
                        f"waits for room in the queue of {e.name} instructions ({self.queue} places)",
                    )
                    yield
                self._uses(i)
                self.queues[e].append((i, self.knows[SEQUENCER]))
            self.moves += 1
        self.issued = True

    def _uses(self, i: Issue) -> None:
        """Find hazards of registers that the sequencer uses now; record those that an engine will set."""
        used = {i["len"], i["base"] if i.op in (Opcode.LOAD, Opcode.STORE, Opcode.RETRIEVE) else 0}
        if i.op in (Opcode.SET, Opcode.ADD):
            used |= {i["to"], i["a"]}
        for r in used & self.sets.keys():
            self._unordered(i, r, SEQUENCER)
        if i.op == Opcode.STORE and sets_register(i) and not i.skip:
            self.stores += 1
            self._sets(i, Engine.STORE, self.stores, [i["to"]])
        if i.op == Opcode.RETRIEVE:
            self.retrieves += 1
            names = RESULTS.get(i["action"], ())
            self._sets(i, Engine.RETRIEVE, self.retrieves, [i[name] for name in names if not i.skip])

    def _sets(self, i: Issue, e: Engine, number: int, registers: list[int]) -> None:
        """Record the registers that an instruction will set. One that the other engine sets must be ordered before."""
        for r in registers:
            if r in self.sets and self.sets[r][1] != e:
                self._unordered(i, r, _name(e))
            if r:
                self.sets[r] = (i.pc, e, number)

    def _unordered(self, i: Issue, r: int, who: str) -> None:
        """Report a hazard if the sequencer does not know that a register is set."""
        pc, e, number = self.sets[r]
        done = e == Engine.RETRIEVE or number <= len(self.numbers)  # a STORE's position is known once it is executed
        position = number if e == Engine.RETRIEVE or not done else self.numbers[number - 1]
        if not done or position > self.knows[SEQUENCER][_WATCHED.index(e)]:
            self.hazards.setdefault((pc, i.pc, "R"), Hazard(pc, i.pc, (_name(e), who), f"register {r}"))

    def _engine(self, e: Engine) -> Iterator[None]:
        work: dict[Engine, Callable[[Issue], Iterable[None]]] = {
            Engine.LOAD: self._load,
            Engine.MUL: self._mul,
            Engine.VECTOR: self._vector,
            Engine.STORE: self._store,
            Engine.RETRIEVE: lambda i: (),
        }
        while True:
            while not self.queues[e]:
                if self.issued:
                    return
                self.at[e] = 0, ""
                yield
            i, order = self.queues[e][0]
            yield from self._wait(e, i)
            self.queues[e].popleft()
            self.moves += 1
            self.knows[e] = np.maximum(self.knows[e], order)
            if not i.skip:
                yield from work[e](i)
            self._done(e, i)

    def _done(self, e: Engine, i: Issue) -> None:
        clock = self.knows[e].copy()
        if e == Engine.RETRIEVE:
            self.positions[_WATCHED.index(e)] += 1
        if e in _WATCHED:
            clock[_WATCHED.index(e)] = self.positions[_WATCHED.index(e)]
        if e == Engine.LOAD:
            queue = self.words[Queue.LOAD]
            self.loads.append((queue.taken + queue.waiting, i, clock))
            self._loaded()
        else:
            self._signal(e, i, clock)

    def _loaded(self) -> None:
        """Let LOADs signal, in order, once all their words are taken."""
        while self.loads and self.loads[0][0] <= self.words[Queue.LOAD].taken:
            _, i, clock = self.loads.popleft()
            self._signal(Engine.LOAD, i, clock)
            self.moves += 1

    def _wait(self, who: Engine | str, i: Issue) -> Iterator[None]:
        wait = bits(i["wait"])
        while short := [s for s in wait if not self.counts[s]]:
            self.at[who] = i.pc, f"waits for semaphore {short[0]}"
            yield
        for s in wait:
            self.counts[s] -= 1
            self.takes[s] += 1
            total = self.totals[s].total()
            for source, own in self.totals[s].items():
                sure = self.takes[s] - (total - own)  # least signals that must have come from this source
                if sure > 0:
                    self.knows[who] = np.maximum(self.knows[who], self.signals[s, source][sure - 1])

    def _signal(self, who: Engine | str, i: Issue, clock: np.ndarray) -> None:
        for s in bits(i["signal"]):
            self.signals.setdefault((s, who), []).append(clock)
            self.counts[s] += 1
            i.check_counter(s, self.counts[s])

    def _put(self, e: Engine, i: Issue, queue: _Words, clocks: np.ndarray) -> Iterator[None]:
        done = 0
        while done < len(clocks):
            count = queue.put(clocks[done:])
            done += count
            self.moves += count
            if not count:
                self.at[e] = (
                    i.pc,
                    f"waits for room in {queue.name} ({queue.places} places) for {len(clocks) - done} more",
                )
                yield

    def _take(self, e: Engine, i: Issue, queue: _Words, count: int) -> Iterator[np.ndarray | None]:
        """Yield the clocks of `count` words in parts as they come, and None while there are none."""
        while count:
            part = queue.take(count)
            count -= len(part)
            self.moves += len(part)
            if len(part):
                yield part
            else:
                self.at[e] = i.pc, f"waits for {count} words of {queue.name}"
                yield None

    def _units(self, i: Issue) -> np.ndarray:
        """Numbers of the memory words that a LOAD or STORE accesses, [words, 1 or 2 (wide)]."""
        size = self.fmt.word_bytes
        coded = i.op == Opcode.LOAD and expands(i)
        wide, words = (1, 1) if coded else (1 + i["wide"], i["words"])
        stride = size if coded and unpacks(i) else i["stride"]
        at = i.addr + np.arange(i["rows"])[:, None] * stride + np.arange(words) * wide * size
        return (at.reshape(-1, 1) % (1 << ADDR_BITS)) // size + np.arange(wide)

    def _positions(self, e: Engine, i: Issue, count: int) -> np.ndarray:
        """Positions of an instruction's accesses among those of its engine, from 1."""
        k = _WATCHED.index(e)
        first = self.positions[k]
        self.positions[k] += count
        self.ends[k].append(self.positions[k])
        self.pcs[k].append(i.pc)
        return first + 1 + np.arange(count)

    def _touch(
        self, e: Engine, space: str, at: np.ndarray, positions: np.ndarray, clock: np.ndarray, write: bool
    ) -> None:
        accesses, k = self.spaces[space], _WATCHED.index(e)
        for other, before, now, word in accesses.touch(k, at, positions, clock, write):
            first, second = (self.pcs[n][bisect_left(self.ends[n], p)] for n, p in ((other, before), (k, now)))
            where = hex(self.stored[word] * self.fmt.word_bytes) if space == "memory" else word
            hazard = Hazard(first, second, (_name(_WATCHED[other]), _name(e)), f"{accesses.name} {where}")
            self.hazards.setdefault((first, second, space), hazard)

    def _memory(self, e: Engine, units: np.ndarray, positions: np.ndarray, clock: np.ndarray, write: bool) -> None:
        """Record accesses to memory words that some STORE writes."""
        if not len(self.stored):
            return
        at = np.searchsorted(self.stored, units)
        hit = self.stored[np.minimum(at, len(self.stored) - 1)] == units
        row = np.nonzero(hit)[0]
        self._touch(e, "memory", at[hit], positions[row], clock if clock.ndim == 1 else clock[row], write)

    def _clocks(self, e: Engine, positions: np.ndarray) -> np.ndarray:
        """Clocks of the words that an engine puts in a queue at these positions."""
        out = np.tile(self.knows[e], (len(positions), 1))
        out[:, _WATCHED.index(e)] = positions
        return out

    def _load(self, i: Issue) -> Iterator[None]:
        rows, words, lanes = i["rows"], 1 if expands(i) else i["words"], self.fmt.lanes
        positions, clock = self._positions(Engine.LOAD, i, rows * words), self.knows[Engine.LOAD]
        self._memory(Engine.LOAD, self._units(i), positions, clock, write=False)
        if i["target"] == LoadTo.VECTOR:
            yield from self._put(Engine.LOAD, i, self.words[Queue.LOAD], self._clocks(Engine.LOAD, positions))
            return
        r = np.arange(rows)[:, None]
        step = {LoadTo.W: r // lanes * i["step"], LoadTo.COLUMN: r // lanes, LoadTo.X: r * i["step"]}[
            LoadTo(i["target"])
        ]
        at = (i["to"] + step + np.arange(words)).reshape(-1)
        if expands(i):
            source, _, at = expanded_places(i, self.fmt)
            positions = positions[source]
        self._touch(Engine.LOAD, "X" if i["target"] == LoadTo.X else "W", at, positions, clock, write=True)

    def _mul(self, i: Issue) -> Iterator[None]:
        rows, tiles, chunks = i["rows"], i["tiles"], i["chunks"]
        positions, clock = self._positions(Engine.MUL, i, rows * tiles), self.knows[Engine.MUL]
        grid = positions.reshape(rows, tiles)
        at = i["w"] + np.arange(tiles * chunks)
        self._touch(Engine.MUL, "W", at, np.repeat(grid[-1], chunks), clock, write=False)
        at = (i["x"] + np.arange(rows)[:, None] * i["x_step"] + np.arange(chunks)).reshape(-1)
        self._touch(Engine.MUL, "X", at, np.repeat(grid[:, -1], chunks), clock, write=False)
        if i["end"]:
            yield from self._put(Engine.MUL, i, self.words[Queue.MUL], self._clocks(Engine.MUL, positions))

    def _vector(self, i: Issue) -> Iterator[None]:
        v, knows = i.vector, self.knows[Engine.VECTOR]
        count = i["words"]
        if v.op == Op.STORE:
            carried = np.maximum(self.tags[v.store_places(self.fmt.depth)], knows)
            yield from self._put(Engine.VECTOR, i, self.out, carried)
            return
        done, to = 0, v.results(self.fmt.depth)
        into = np.array(v.into, int)[:, None]
        if not v.streams:
            self.tags[into, to] = self.fired
            return
        for part in self._take(Engine.VECTOR, i, self.words[Queue(i["source"])], count):
            if part is None:
                yield
                continue
            tags = np.maximum.accumulate(np.maximum(part, self.fired))
            self.tags[into, to[done : done + len(part)]] = tags
            self.fired = tags[-1]
            done += len(part)

    def _store(self, i: Issue) -> Iterator[None]:
        e, target = Engine.STORE, i["target"]
        count = self.scores.popleft() if target == StoreTo.SCORE else words_taken(i, self.fmt)
        positions, done = self._positions(e, i, count), 0
        if sets_register(i):
            self.numbers.append(int(positions[-1]))
        at = (i["to"] + np.arange(i["rows"])[:, None] * i["step"] + np.arange(i["words"])).reshape(-1)
        units = self._units(i)
        if self.fmt.codes and packs_signs(i):
            units = units.repeat(SIGNS, axis=0)
        for part in self._take(e, i, self.out, count):
            if part is None:
                yield
                continue
            clocks = np.maximum.accumulate(np.maximum(part, self.knows[e]))
            now = slice(done, done + len(part))
            if target == StoreTo.X and not i["wide"]:
                self._touch(e, "X", at[now], positions[now], clocks, write=True)
            elif target == StoreTo.MEMORY:
                self._memory(e, units[now], positions[now], clocks, write=True)
            self.knows[e] = clocks[-1]
            done += len(part)
