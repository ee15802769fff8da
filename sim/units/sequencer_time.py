"""Executes a program as the LXE's sequencer does (`trace`), and predicts the cycles (`SequencerTime`).

`trace` resolves loops, registers and lengths, so that each step holds what its engine receives. The timing classes
`Pipeline` and `SemaphoreTimes` are shared with the time view of the LXE.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from openvrex.golden.arithmetic.vector import Swap
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import (
    ADDR_BITS,
    ENGINE,
    LOOPS,
    PAYLOAD,
    REGISTERS,
    SEMAPHORES,
    VECTOR,
    Engine,
    Instruction,
    Opcode,
    Status,
    decode,
    sets_register,
)
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.sim.units.queue_cycles import Queue, Wait

NAMES = {e: str(e.name).lower() for e in Engine}
TO_FETCH = 1  # cycles from START to the first fetch
TO_COUNT = 2  # cycles from an event that signals a semaphore to an instruction that waits for it
_FLOW = (Opcode.LOOP, Opcode.END, Opcode.SYNC, Opcode.HALT)
_HOLDING = (Opcode.SET, Opcode.ADD, *_FLOW)


class _Masks(dict):
    """Semaphores of each mask, computed once."""

    def __missing__(self, mask: int) -> tuple[int, ...]:
        self[mask] = tuple(s for s in range(SEMAPHORES) if mask >> s & 1)
        return self[mask]


_MASKS = _Masks()


@dataclass(frozen=True)
class Executed:
    """An executed instruction.

    pc : its address
    op : what it does
    wait, signal : masks of semaphores
    jumps : the next instruction is not at pc + 1
    beat : what its engine receives; of control instructions only a HALT's `leave`, where it is set
    """

    pc: int
    op: Opcode
    wait: int
    signal: int
    jumps: bool = False
    beat: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """What a program does, without cycles.

    steps : executed instructions in order
    code : how the program ends; RUNNING if it does not end within the limit
    pc : address at which it ends
    registers : R0 to R15 at the end
    """

    steps: list[Executed]
    code: Status
    pc: int
    registers: list[int]


@dataclass(frozen=True)
class SequencerTiming:
    """Cycles of a program, counted from START's transfer.

    executed : cycle of every step of the trace
    handed : cycle of every hand-over, by engine
    done : first cycle in which the status is DONE, None without HALT
    waits : number of cycles in which the head of each queue waits for a semaphore, by engine; "sync" for SYNC and HALT
    """

    executed: list[int]
    handed: dict[str, list[int]]
    done: int | None
    waits: dict[str, int]


def trace(
    p: CoreParams,
    program: list[int],
    registers: dict[int, int] | None = None,
    limit: int = 100_000,
    retrieved: Iterable[dict[int, int]] = (),
    stored: Iterable[dict[int, int]] = (),
) -> Trace:
    """Executes a program and returns its steps.

    program : instruction words
    registers : initial values by number, zero where not named
    limit : largest number of instructions to execute
    retrieved : registers that each RETRIEVE sets, skipped ones not counted; registers not named keep their values
    stored : the same of each STORE that sets a register

    A bad instruction ends the trace with OPCODE, a value out of range with RANGE. Nothing is raised.
    """
    lanes, r = p.lxe_format().lanes, [0] * REGISTERS
    for number, value in (registers or {}).items():
        r[number] = value if number else 0
    steps: list[Executed] = []
    loops: list[list[int]] = []  # of each open loop: rounds left, address of its first instruction, address of END
    known: dict[int, tuple[Instruction, dict]] = {}
    sets, numbers = iter(retrieved), iter(stored)
    pc = 0
    while len(steps) < limit:
        if pc >= p.lxe.i_depth:
            return Trace(steps, Status.OPCODE, steps[-1].pc, r)
        try:
            i, fixed = known[pc] = known.get(pc) or _decoded(program[pc])
        except ParamError:
            return Trace(steps, Status.OPCODE, pc, r)
        half = 1 << ADDR_BITS - 1
        n = (r[i["len"]] + i["add"] + half) % (2 * half) - half if i["len"] else None
        skip = n is not None and n <= 0
        if n is not None and i["pair"]:
            n = -(-n // (2 * lanes)) * 2 * lanes
        beat: dict = {}
        after, jumps = pc + 1, False
        if i.op in ENGINE:
            beat = _beat(i, fixed, r, n, lanes)
            if not skip and not _fits(p, i.op, beat, lanes):
                return Trace(steps, Status.RANGE, pc, r)
            if i.op == Opcode.RETRIEVE and not skip:
                for to, value in next(sets, {}).items():
                    r[to] = value
            if p.lxe.to_register and i.op == Opcode.STORE and sets_register(i) and not skip:
                for to, value in next(numbers, {}).items():
                    r[to] = value
        elif i.op in (Opcode.SET, Opcode.ADD):
            if i["to"]:
                r[i["to"]] = (i["imm"] + (r[i["a"]] if i.op == Opcode.ADD else 0)) % (1 << ADDR_BITS)
        elif i.op == Opcode.LOOP:
            count = i["count"] if n is None else n // (2 * lanes) if i["pair"] else -(-n // lanes) if i["unit"] else n
            if count > 0xFFFF:
                return Trace(steps, Status.RANGE, pc, r)
            if len(loops) == LOOPS:
                return Trace(steps, Status.OPCODE, pc, r)
            if count > 0:
                loops.append([count, pc + 1, i["end"]])
            else:
                after, jumps = i["end"] + 1, True
        elif i.op == Opcode.END:
            if not loops or loops[-1][2] != pc:
                return Trace(steps, Status.OPCODE, pc, r)
            loops[-1][0] -= 1
            if loops[-1][0]:
                after, jumps = loops[-1][1], True
            else:
                loops.pop()
        elif i.op == Opcode.HALT and i["leave"]:
            beat = {"leave": 1}
        steps.append(Executed(pc, i.op, i["wait"], i["signal"], jumps, beat))
        if i.op == Opcode.HALT:
            return Trace(steps, Status.DONE, pc, r)
        pc = after
    return Trace(steps, Status.RUNNING, pc, r)


def _decoded(word: int) -> tuple[Instruction, dict]:
    """An instruction, and what its engine receives but for what depends on registers."""
    i = decode(word)
    if i.op in (Opcode.LOAD, Opcode.STORE):
        own: dict = {k: i[k] for k in ("target", "wide", "rows", "words", "stride", "to", "step")}
    elif i.op == Opcode.MUL:
        own = {k: i[k] for k in ("w", "x", "rows", "tiles", "chunks", "keep", "x_step", "start", "end", "halves")}
    elif i.op == Opcode.RETRIEVE:
        own = {k: i[k] for k in ("action", "rows", "to", "level", "shift")}
    else:
        own = {"source": i["source"], "instruction": {k.removeprefix("v_"): i[k] for k in VECTOR}}
    return i, own


def _beat(i: Instruction, fixed: dict, r: list[int], n: int | None, lanes: int) -> dict:
    """What the engine receives. `n` is the length from a register, if any. Counts are unchecked."""
    out = {"skip": int(n is not None and n <= 0), "wait": i["wait"], "signal": i["signal"], **fixed}
    words, rest = (-(-n // lanes) - 1, (n - 1) % lanes) if n is not None else (0, 0)
    if i.op == Opcode.MUL:
        if n is not None:
            out |= {"chunks": words, "keep": rest} if i["unit"] else {"tiles": words}
    elif i.op == Opcode.VECTOR:
        if n is not None:
            out["instruction"] = fixed["instruction"] | {"words": words, "keep": rest}
    else:
        out["addr"] = (r[i["base"]] + i["addr"]) % (1 << ADDR_BITS)
        out["rows"] = fixed["rows"] if n is None else words if i["unit"] or i["pair"] else n - 1
    return out


def _fits(p: CoreParams, op: Opcode, beat: dict, lanes: int) -> bool:
    """Whether every field is within the range of its engine."""
    if op in (Opcode.LOAD, Opcode.STORE, Opcode.RETRIEVE):
        return beat["rows"] < 1 << PAYLOAD[op]["rows"]
    if op == Opcode.MUL:
        return max(beat["tiles"], beat["chunks"]) < 1 << 12 and beat["keep"] < lanes
    v = beat["instruction"]
    addresses = all(v[k] < p.vpe.depth for k in ("words", "addr_a", "addr_b", "addr_c", "addr_d"))
    return addresses and v["keep"] < lanes and v["swap"] < 1 << bits_for(Swap.HALF + p.vpe.addr_bits + 1)


class Pipeline:
    """Cycles of the sequencer's stages: fetch, decode and address addition."""

    def __init__(self) -> None:
        self.fetched, self.decoded, self.added, self.at = TO_FETCH, 0, 0, 0
        self.before: Executed | None = None

    def reach(self, step: Executed) -> int:
        """The first cycle in which the next step can be executed or queued. Set `at` to the actual cycle afterwards."""
        before, earliest = self.before, 0
        if before:
            self.fetched = self.at + 1 if before.jumps else self.decoded
            earliest = max(self.added + (before.op in _HOLDING), self.at if before.op in _FLOW else 0)
        self.decoded = max(self.fetched + 1, earliest)
        self.added = max(self.decoded + 1, self.at)
        self.before = step
        return self.added + 1


class SemaphoreTimes:
    """The semaphores' counts over time.

    signals : cycles from which on each semaphore is one higher
    taken : how many of these signals instructions have consumed

    Signals may be recorded in any order, but none may be earlier than one that was consumed.
    """

    def __init__(self) -> None:
        self.signals: list[list[int]] = [[] for _ in range(SEMAPHORES)]
        self.taken = [0] * SEMAPHORES

    def signal(self, mask: int, done: int) -> None:
        """An instruction that is done in cycle `done` signals the semaphores of `mask`.

        Raises `ValueError` if a later signal in this order was already consumed.
        """
        for s in _MASKS[mask]:
            if self.taken[s] and done + TO_COUNT < self.signals[s][self.taken[s] - 1]:
                raise ValueError(
                    f"semaphore={s}: signals of two engines must come in the program's order "
                    "(the simulator has consumed the later one): use one semaphore for each engine"
                )
            insort(self.signals[s], done + TO_COUNT)

    def waits(self, mask: int) -> list[Wait]:
        """The signals that must be known before `ready`."""
        return [(self.signals[s], self.taken[s]) for s in _MASKS[mask] if len(self.signals[s]) <= self.taken[s]]

    def ready(self, mask: int, at: int) -> int:
        """The first cycle from `at` on in which all semaphores of `mask` are above zero; consumes a signal of each."""
        for s in _MASKS[mask]:
            at = max(at, self.signals[s][self.taken[s]])
            self.taken[s] += 1
        return at


class SequencerTime:
    """Time view of `hdl.execution.sequencer.Sequencer` with engines that take every instruction at once.

    p : CoreParams
    delays : cycles from a hand-over to the pulse of `done`, by engine, 1 where not named; for "vector", to the last
        cycle in which it is busy. An engine completes one instruction a cycle, in order.

    The signals of a semaphore count in the program's order. This is exact if they come in that order, for example
    from one engine.
    """

    def __init__(self, p: CoreParams, delays: dict[str, int] | None = None):
        self.p, self.delays = p, dict.fromkeys(NAMES.values(), 1) | (delays or {})

    def run(self, steps: list[Executed]) -> SequencerTiming:
        """Cycles of a trace's steps; START is taken in cycle 0. Raises `ValueError` for a wait that never ends."""
        semaphores, pipeline = SemaphoreTimes(), Pipeline()
        queues = {name: Queue(self.p.lxe.queue) for name in NAMES.values()}
        idle = dict.fromkeys(NAMES.values(), 0)  # cycle of the last `done`; the engine is idle from the next cycle on
        executed: list[int] = []
        finish, waits = None, dict.fromkeys((*NAMES.values(), "sync"), 0)

        def ready(step: Executed, at: int) -> int:
            if semaphores.waits(step.wait):
                s = next(s for s in _MASKS[step.wait] if len(semaphores.signals[s]) <= semaphores.taken[s])
                raise ValueError(f"pc={step.pc}: waits for semaphore {s}, which no earlier instruction signals")
            return semaphores.ready(step.wait, at)

        for step in steps:
            at = pipeline.reach(step)
            if step.op in ENGINE:
                name = NAMES[ENGINE[step.op]]
                queue = queues[name]
                at = queue.push(at)
                offered = queue.offered(len(queue.taken))
                go = ready(step, offered)
                waits[name] += go - offered
                queue.pop(go)
                done = go if name == "vector" else max(idle[name] + 1, go + self.delays[name])
                idle[name] = max(idle[name], done, go + self.delays[name])
            else:
                go = ready(step, at)
                waits["sync"] += go - at
                if step.op == Opcode.HALT:
                    if step.beat:  # it leaves the RETRIEVE that the engine has taken
                        idle["retrieve"] = max(queues["retrieve"].taken, default=0)
                    go = max([go, at + 1, *(c + 2 for c in idle.values())])
                    finish = go + 1
                done = at = go
            pipeline.at = at
            executed.append(at)
            semaphores.signal(step.signal, done)
        return SequencerTiming(executed, {n: q.taken for n, q in queues.items()}, finish, waits)
