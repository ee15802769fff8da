"""Checks of the sequencer, shared by tests, mutants, coverage and stress: loops, semaphores, faults, cycles."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import chain, pairwise, product
from random import Random
from typing import Any, Self

from openvrex.golden.arithmetic.vector import Swap
from openvrex.golden.program.isa import (
    ENGINE,
    PAYLOAD,
    SEMAPHORES,
    Engine,
    Instruction,
    Opcode,
    Retrieve,
    Status,
    encode,
)
from openvrex.hdl.execution.semaphores import WAITERS
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START
from openvrex.hdl.params import CoreParams, override_part, preset
from openvrex.sim.units.sequencer_time import NAMES, SequencerTime, trace
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

SIZES = {
    "tiny": [],
    "registers": ["to_register=true"],
    "queue-5": ["lxe.queue=5", "lxe.i_depth=128"],
    "one": ["lxe.queue=1", "dpe.n_h=1", "dpe.n_w=1", "vpe.n_w=1", "vpe.depth=1", "bus_bytes=2", "lxe.i_depth=128"],
}
IN_FULL = 1 << 40


def core(size: str) -> CoreParams:
    return override_part(preset("tiny"), "core", SIZES[size]).core


def op(name: str, **values: int) -> int:
    """The word of an instruction."""
    return encode(Instruction(Opcode[name], values))


TAME = {
    Opcode.LOAD: {"target": 3, "addr": 1 << 20, "stride": 1 << 8},
    Opcode.STORE: {"target": 0, "addr": 3 << 15, "stride": 0},
    Opcode.MUL: {"w": 3, "x": 5, "rows": 1, "tiles": 1, "chunks": 1, "x_step": 2, "start": 1, "end": 1, "halves": 0},
}


class Writer:
    """Random programs that end and cannot deadlock: a wait follows its signal, in the same round of a loop.

    Each semaphore has one engine (or the sequencer) that signals and one that waits. R1 to R5 hold lengths, R6 to R10
    addresses. With `tame` they stay within the scratchpads, which golden checks.
    """

    def __init__(self, p: CoreParams, seed: int, tame: bool = False, hosted: int = 0):
        self.p, self.rng, self.tame = p, random.Random(seed), tame
        self.words: list[int] = []
        kinds = [*(e.name for e in Engine), "SYNC"]
        self.ends = [(self.rng.choice(kinds), self.rng.choice(kinds)) for _ in range(SEMAPHORES)]
        self.longest = min(60, p.vpe.depth * p.vpe.n_w)
        self.registers = {r: self.value(r) for r in self.rng.sample(range(1, 11), hosted)}

    def program(self, length: int) -> list[int]:
        """A program of at most `length` words."""
        for r in range(1, 11):
            if r not in self.registers:
                self.set(r)
        self.block(length - 1, 0)
        assert len(self.words) < length
        return [*self.words, op("HALT")]

    def value(self, r: int) -> int:
        """A number for register `r`: a length for the first five, an address for the others."""
        return self.rng.randint(-4, self.longest) % IN_FULL if r <= 5 else self.rng.getrandbits(33) << 7

    def set(self, r: int) -> None:
        self.words.append(op("SET", to=r, imm=self.value(r)))

    def block(self, end: int, depth: int) -> None:
        rng = self.rng
        for _ in range(rng.randint(2, 9 if depth else 60)):
            room = end - len(self.words)
            kind = rng.choices(["engine", "pair", "set", "add", "loop"], [8, 5, 1, 2, 3 if depth < 4 else 0])[0]
            if room < 8:
                break
            if kind == "engine":
                self.engine(rng.choice(list(Engine)).name)
            elif kind == "pair":
                s = rng.randrange(SEMAPHORES)
                self.engine(self.ends[s][0], signal=1 << s)
                for _ in range(rng.randint(0, 2)):
                    self.engine(rng.choice(list(Engine)).name)
                self.engine(self.ends[s][1], wait=1 << s)
            elif kind == "set":
                self.set(rng.randint(1, 10))
            elif kind == "add":
                low, high, imm = (1, 5, rng.choice([1, 2])) if rng.random() < 0.4 else (6, 10, rng.getrandbits(33) << 7)
                self.words.append(op("ADD", to=rng.randint(low, high), a=rng.randint(low, high), imm=imm))
            else:
                self.loop(end, depth)

    def loop(self, end: int, depth: int) -> None:
        rng = self.rng
        rounds = {"count": rng.choice([0, 1, 1, 2, 3])}
        if rng.random() < 0.5:  # a register gives the number of rounds, which is small
            rounds = {"len": 5, "add": rng.randint(-1, 1), "unit": rng.getrandbits(1), "pair": rng.getrandbits(1)}
            scale = (2 if rounds["pair"] else 1) * (self.p.dpe.n_w if rounds["pair"] or rounds["unit"] else 1)
            self.words.append(op("SET", to=5, imm=rng.randint(-1, 3) * scale % IN_FULL))
        at = len(self.words)
        self.words.append(0)
        if depth < 3 and end - at > 12 and rng.random() < 0.5:
            self.loop(end - 1, depth + 1)
        if rng.random() < 0.9:
            self.block(min(end - 1, at + 25), depth + 1)
        self.words[at] = op("LOOP", end=len(self.words), **rounds)
        self.words.append(op("END"))

    def engine(self, name: str, **header: int) -> None:
        rng, opcode = self.rng, Opcode[name]
        values = {k: rng.getrandbits(bits) for k, bits in PAYLOAD[opcode].items()}
        if "base" in values:
            values["base"] = rng.choice([0, *range(6, 11)])
        if name == "MUL":
            values["keep"] = rng.randrange(self.p.dpe.n_w)
        if name == "VECTOR":
            for k in ("words", "addr_a", "addr_b", "addr_c", "addr_d"):
                values[k] = rng.randrange(self.p.vpe.depth)
            values["keep"] = rng.randrange(self.p.vpe.n_w)
            values["swap"] = rng.randint(0, Swap.HALF + self.p.vpe.addr_bits)
        if self.tame:
            values |= TAME.get(opcode, {})
        if name == "RETRIEVE":
            values["action"] = rng.choice(list(Retrieve))
        if opcode in ENGINE and rng.random() < 0.5:
            values |= {"len": rng.randint(1, 5), "unit": rng.getrandbits(1), "pair": int(rng.random() < 0.2)}
            values["add"] = rng.randint(-3, 3)
        self.words.append(op(name, **values, **header))


def random_program(p: CoreParams, seed: int, steps: int = 500, tame: bool = False) -> list[int]:
    """The first program from `seed` on that ends within this many steps."""
    return hosted_program(p, seed, 0, steps, tame)[0]


def hosted_program(
    p: CoreParams, seed: int, hosted: int, steps: int = 500, tame: bool = False
) -> tuple[list[int], dict[int, int]]:
    """The same, with the `hosted` registers that the host must write before it."""
    while True:
        writer = Writer(p, seed, tame, hosted)
        words = writer.program(p.lxe.i_depth)
        if trace(p, words, writer.registers, limit=steps).code == Status.DONE:
            return words, writer.registers
        seed += 1000


def host(words: list[int], registers: dict[int, int] | None = None) -> list[dict]:
    """Beats that write a program and registers and start it."""
    beats = [{"op": PROGRAM, "addr": i, "data": w} for i, w in enumerate(words)]
    beats += [{"op": REGISTER, "addr": r, "data": v} for r, v in (registers or {}).items()]
    return [*beats, {"op": START, "addr": 0, "data": 0}]


def play(emitted, size, runs, delays=(1, 1), idle=0.0, stall=0.0, waves=True) -> list[dict]:
    """Run the programs; the result of each. `delays` are of all engines, or by name."""
    delays = delays if isinstance(delays, dict) else dict.fromkeys(NAMES.values(), delays)
    c = {"assign": SIZES[size], "idle": idle, "stall": stall, "delays": {n: list(d) for n, d in delays.items()}}
    runs = [{"limit": 10_000, **r} for r in runs]
    return Run(emitted, "bench_sequencer", "programs", c | {"runs": runs}, waves=waves)()["runs"]


def emitted(size: str):
    return emit("sequencer", core(size))


def beats(steps) -> dict[str, list[dict]]:
    """The beats that every engine must get."""
    return {n: [_head(s.beat) for s in steps if ENGINE.get(s.op) == e] for e, n in NAMES.items()}


def given(run: dict) -> dict[str, list[dict]]:
    """The beats that every engine got."""
    return {n: [_head(beat) for _, beat in run[n]] for n in NAMES.values()}


def _head(beat: dict) -> dict:
    """The defined part of a beat: one that is skipped has no counts."""
    return {k: beat[k] for k in ("skip", "wait", "signal")} if beat["skip"] else beat


def counters(steps, cycles) -> Counter[str]:
    """What a program adds to the unit's counters."""
    rounds = sum(s.jumps == (s.op == Opcode.END) for s in steps if s.op in (Opcode.LOOP, Opcode.END))
    waits = {f"{name}_waits": n for name, n in cycles.waits.items()}
    return Counter({"instructions": len(steps), "loops": rounds} | waits)


def ended(run: dict) -> tuple[Status, int]:
    return Status(run["status"]["code"]), run["status"]["pc"]


@dataclass
class RandomTraffic(StressTraffic):
    """Twelve programs with loops, semaphores and all engines' instructions.

    programs : words of each, and registers that the host writes before it; the others are kept
    """

    PARTS = "programs"

    size: str
    programs: list[tuple[list[int], dict[int, int]]]
    delays: tuple[int, int]
    idle: float
    stall: float

    @classmethod
    def random(cls, rng: Random) -> Self:
        size = rng.choice(list(SIZES))
        programs = [hosted_program(core(size), rng.getrandbits(31), rng.choice((0, 1, 4))) for _ in range(12)]
        return cls(size, programs, (1, rng.choice((1, 9, 40))), stall_rate(rng), stall_rate(rng))

    def play(self) -> Any:
        runs = [{"host": host(*program)} for program in self.programs]
        return play(emitted(self.size), self.size, runs, self.delays, self.idle, self.stall)

    def check(self, got: Any) -> int:
        registers: dict[int, int] = {}
        steps = 0
        for (words, written), one in zip(self.programs, got, strict=True):
            want = trace(core(self.size), words, registers | written)
            assert given(one) == beats(want.steps)
            assert ended(one) == (Status.DONE, want.pc)
            registers, steps = dict(enumerate(want.registers)), steps + len(want.steps)
        return steps


def check_equals_interpreter_and_time_view(size):
    """At full rate every beat, its cycle and the end equal the time view; registers keep their values."""
    p, registers = core(size), {}
    programs = [random_program(p, 100 + i) for i in range(5)]
    delays = {"load": 30, "mul": 5, "vector": 2, "store": 1, "retrieve": 12}
    got = play(emitted(size), size, [{"host": host(w)} for w in programs], {n: (d, d) for n, d in delays.items()})
    counted: Counter[str] = Counter()
    for words, run in zip(programs, got, strict=True):
        want = trace(p, words, registers)
        cycles = SequencerTime(p, delays).run(want.steps)
        assert given(run) == beats(want.steps)
        assert {n: [c for c, _ in run[n]] for n in NAMES.values()} == cycles.handed
        assert (run["end"], ended(run)) == (cycles.done, (Status.DONE, want.pc))
        registers = dict(enumerate(want.registers))
        counted += counters(want.steps, cycles)
        assert run["perf"] == dict.fromkeys(run["perf"], 0) | counted


def check_equals_interpreter_under_stalls(size):
    p, resets = core(size), (None, 3, 40, None, 97)
    programs = [hosted_program(p, 7000 + i, i) for i in range(len(resets))]
    for (words, _), (_, hosted) in pairwise(programs):  # what stands behind HALT writes no register
        words += [op("SET", to=r, imm=1) for r in list(hosted)[: p.lxe.i_depth - len(words)]]
    runs = [{"host": host(*program), "reset": reset} for program, reset in zip(programs, resets, strict=True)]
    got = play(emitted(size), size, runs, (1, 40), 0.2, 0.5)
    registers: dict[int, int] = {}
    for (words, hosted), run, reset in zip(programs, got, resets, strict=True):
        want = trace(p, words, ({} if reset else registers) | hosted)
        assert given(run) == beats(want.steps)
        assert ended(run) == (Status.DONE, want.pc)
        assert run["status"]["engines"] == 0
        registers = dict(enumerate(want.registers))


def check_directed(runs: list[tuple[list[int], dict]]) -> None:
    """Run programs from reset, with pins as in `bench_sequencer`: counters, and beats where no cycle was skipped."""
    p, delays = core("tiny"), {"load": 13, "mul": 12, "vector": 2, "store": 11, "retrieve": 10}
    ways = [{"host": host(words), "fresh": True} | pins for words, pins in runs]
    got = play(emitted("tiny"), "tiny", ways, {n: (d, d) for n, d in delays.items()})
    for (words, pins), run in zip(runs, got, strict=True):
        want = trace(p, words)
        cycles = SequencerTime(p, delays).run(want.steps)
        if "sleep" not in pins:
            assert given(run) == beats(want.steps)
            assert {n: [c for c, _ in run[n]] for n in NAMES.values()} == cycles.handed
        assert (run["end"], ended(run)) == (cycles.done, (Status.DONE, want.pc))
        assert run["perf"] == dict.fromkeys(run["perf"], 0) | counters(want.steps, cycles)


def check_every_semaphore_for_everyone():
    """Semaphores count to 255 and to zero, up to four engines signal one at once, and each engine waits for each."""
    every = (1 << SEMAPHORES) - 1
    many = [op("LOOP", count=255, end=2), op("SYNC", signal=every), op("END")]
    many += [op("LOOP", count=255, end=5), op("SYNC", wait=every), op("END")]
    four = [op(n, signal=every) for n in ("LOAD", "MUL", "STORE", "RETRIEVE")]
    last = [op(n, **{how: 1 << s}) for s in range(SEMAPHORES) for n, how in (("STORE", "signal"), ("MUL", "wait"))]
    runs = [([*many, *last, op("HALT")], {})]
    for n in (2, 3, 4):
        again = [op("LOOP", count=n, end=n + 2), op("SYNC", wait=every), op("END")]
        runs.append(([*four[:n], *again, *last, op("HALT")], {}))
    names = [e.name for e in Engine] + ["SYNC"]
    for signals, waits in zip([*names[:-1], "LOAD"], [*names[1:-1], "LOAD", "SYNC"], strict=True):
        pairs = [(op(signals, signal=1 << s), op(waits, wait=1 << s)) for s in range(SEMAPHORES)]
        twice = op("LOOP", count=2, end=1 + 2 * len(pairs))  # what is left of the first round shows in the second
        runs.append(([twice, *chain.from_iterable(pairs), op("END"), op("HALT")], {}))
    for wait in (0, 1):  # counts of 8 to 11 for a number of cycles that is odd or even
        some = [op("SYNC", signal=every)] * 11 + [op("LOAD")] * wait + [op("SYNC", wait=every)] * 11
        runs.append(([*some, *last, op("HALT")], {}))
    check_directed(runs)


def check_instructions_hold_while_they_wait():
    """Instructions stay unchanged while they wait for room in a queue, or for a semaphore."""
    free = (1 << SEMAPHORES) - 2
    runs = [([op("LOAD", signal=1), op("SYNC", wait=1, signal=free), op("MUL", wait=free), op("HALT")], {})]
    for name, other in (
        ("LOAD", "STORE"),
        ("MUL", "STORE"),
        ("VECTOR", "STORE"),
        ("STORE", "LOAD"),
        ("RETRIEVE", "LOAD"),
    ):
        writer = Writer(core("tiny"), 1)
        writer.words += [op(other, signal=1), op(name, wait=1)]
        for _ in range(40):  # so many that those which wait have any two bits of `signal` alike and not
            writer.engine(name, signal=writer.rng.getrandbits(SEMAPHORES))
        runs.append(([*writer.words, op("HALT")], {}))
    check_directed(runs)
    got = play(emitted("tiny"), "tiny", [fault(words) for words, _ in runs], (1, 9), stall=0.5)
    for (words, _), run in zip(runs, got, strict=True):
        assert given(run) == beats(trace(core("tiny"), words).steps)


def check_loops_in_loops():
    """Four nested loops anywhere in a program, entered an odd number of times, with odd and even bodies."""
    runs = []
    for k, at in enumerate((2, 13, 27, 41)):
        tails = [1 + (k == depth) for depth in range(4)]
        ends = [at + 8 + sum(1 + n for n in tails[depth:]) - 1 for depth in range(4)]
        words = [op("SYNC") for _ in range(at)]
        for depth, end in enumerate(ends):
            words += [op("LOAD", rows=at + depth), op("LOOP", count=3 - (depth == 3), end=end)]
        for depth in (3, 2, 1, 0):
            words += [*[op("STORE", rows=at + depth)] * tails[depth], op("END")]
        runs.append(([*words, op("HALT")], {}))
    # `odd`: a depth with a MUL behind its inner loop, where counts and ends are held for an odd number of cycles.
    for rounds, odd in [(1367, None), (2732, None), *product((55, 106), range(4))]:
        extra = [int(depth == odd) for depth in range(4)]
        ends = [4 + sum(1 + n for n in extra[depth:]) for depth in range(4)]
        words = [op("LOOP", count=1 if depth else rounds, end=end) for depth, end in enumerate(ends)]
        words[3:3] = [op("MUL")]
        for depth in (3, 2, 1, 0):
            words += [*[op("MUL")] * extra[depth], op("END")]
        runs.append(([*words, op("HALT")], {"sleep": {"20": 16 * rounds}, "limit": 100_000}))
    rounds = 0xC009  # counts of 15 and 16 bits
    words = [op("LOOP", count=rounds, end=2), op("SYNC"), op("END"), op("HALT")]
    runs.append((words, {"sleep": {"20": 6 * (rounds - 10)}, "limit": 400_000}))
    check_directed(runs)


def check_every_bit_of_a_register():
    """Host, engine and program write every bit of a register; all are zero after a reset."""
    rng, p = random.Random(8), core("tiny")
    for _ in range(2):
        first = {r: rng.getrandbits(40) for r in range(1, 16)}
        second = {r: v ^ IN_FULL - 1 for r, v in first.items()}
        reads = [op("LOAD", base=r, rows=r) for r in range(16)] + [op("HALT")]
        spins = [op("LOOP", count=16, end=1), op("END")]
        runs, wants = [], []
        for values in (first, second):
            pulses = {str(4 * r): {"valid": 1, "to": r, "data": v} for r, v in values.items()}
            writes = [op("SET", to=r, imm=v) for r, v in values.items()]
            runs += [
                {"host": host(reads, values), "fresh": True},
                {"host": host([*writes, *reads])},
                {"host": host(reads), "fresh": True},
                {"host": host([*spins, *reads]), "retrieve_set": pulses},
                {"host": host(reads, values)},
            ]
            wants += [values, values, {}, values, values]
        for values, run in zip(wants, play(emitted("tiny"), "tiny", runs, (3, 3)), strict=True):
            assert given(run) == beats(trace(p, reads, values).steps)
        lengths = {r: rng.randint(1, 1 << 16) for r in first}
        both = lengths, {r: (1 << 16) + 1 - n for r, n in lengths.items()}
        counts = [op("LOAD", len=r) for r in lengths] + [op("HALT")]
        for values, run in zip(both, play(emitted("tiny"), "tiny", [fault(counts, x) for x in both]), strict=True):
            assert given(run) == beats(trace(p, counts, values).steps)


def fault(words: list[int], registers: dict[int, int] | None = None, **pins) -> dict:
    """A run from reset. `pins` as in `tb.benches.bench_sequencer`."""
    return {"host": host(words, registers), "fresh": True, **pins}


NOTHING = op("SYNC")
BAD = {  # words, registers, status, pc
    "opcode": ([NOTHING, 15, op("HALT")], {}, Status.OPCODE, 1),
    "end": ([NOTHING, op("END"), op("HALT")], {}, Status.OPCODE, 1),
    "other-end": ([op("LOOP", count=1, end=2), op("END"), op("END"), op("HALT")], {}, Status.OPCODE, 1),
    "five-loops": ([op("LOOP", count=1, end=9 - i) for i in range(5)] + [op("END")] * 5, {}, Status.OPCODE, 4),
    "five-loops-empty": ([op("LOOP", count=1 - i // 4, end=9 - i) for i in range(5)], {}, Status.OPCODE, 4),
    "past-the-end": ([NOTHING] * 64, {}, Status.OPCODE, 63),
    "skip-past-the-end": ([op("LOOP", end=63)], {}, Status.OPCODE, 0),
    "jump-far-past-the-end": ([op("LOOP", end=65535)], {}, Status.OPCODE, 0),
    **{  # every bit of an address that no program has
        f"loops-to-{end:x}": ([op("LOOP", count=end, end=end)] * 4 + [NOTHING] * 60, {}, Status.OPCODE, 63)
        for end in (0x5554, 0xAAA9)
    },
    **{f"jump-to-{end:x}": ([NOTHING, op("LOOP", end=end)], {}, Status.OPCODE, 1) for end in (0x5554, 0xAAA9)},
    "rows": ([op("LOAD"), op("LOAD", len=1, add=1)], {1: 1 << 16}, Status.RANGE, 1),
    "rows-store": ([op("STORE", len=1, unit=1, add=1)], {1: 4 << 16}, Status.RANGE, 0),
    "rows-retrieve": ([op("RETRIEVE", len=1, pair=1)], {1: (4 << 24) + 1}, Status.RANGE, 0),
    "tiles": ([op("MUL", len=2, add=1)], {2: 4 << 12}, Status.RANGE, 0),
    "chunks": ([op("MUL", len=2, unit=1, add=1)], {2: 4 << 12}, Status.RANGE, 0),
    "keep": ([op("MUL", keep=4)], {}, Status.RANGE, 0),
    "words": ([op("VECTOR", v_op=0, len=1, add=1)], {1: 4 << 7}, Status.RANGE, 0),
    "words-fixed": ([op("VECTOR", words=128)], {}, Status.RANGE, 0),
    "keep-vector": ([op("VECTOR", keep=4)], {}, Status.RANGE, 0),
    "bank": ([op("VECTOR", addr_d=128)], {}, Status.RANGE, 0),
    "rounds": ([op("LOOP", len=1, end=2)], {1: 1 << 16}, Status.RANGE, 0),
    "rounds-words": ([op("LOOP", len=1, unit=1, add=1, end=2)], {1: 65535 * 4}, Status.RANGE, 0),
    "rounds-pairs": ([op("LOOP", len=1, pair=1, end=2), 15], {1: 65535 * 8}, Status.OPCODE, 1),
    "largest-counts": (
        [
            op("LOAD", len=1),
            op("STORE", len=2, unit=1),
            op("MUL", len=3),
            op("VECTOR", len=4, keep=2),
            op("LOOP", len=1, add=-1, end=7),
            op("RETRIEVE"),
            op("RETRIEVE", len=5),
            15,
        ],
        {1: 1 << 16, 2: 4 << 16, 3: 4 << 12, 4: 4 << 7, 5: 1 << 24},
        Status.OPCODE,
        7,
    ),
    "pairs": (
        [
            op("LOAD", len=1, pair=1),
            op("MUL", len=1, unit=1, pair=1),
            op("VECTOR", len=1, pair=1),
            op("LOOP", len=1, pair=1, end=5),
            op("RETRIEVE", len=1, pair=1, add=4),
            op("END"),
            op("HALT"),
        ],
        {1: 13},  # 16 with 4 lanes
        Status.DONE,
        6,
    ),
    "skipped": (
        [
            op("VECTOR", len=1, addr_d=128),
            op("MUL", len=1, keep=4),
            op("LOAD", len=2),
            op("LOOP", len=1, add=-2, end=5),
            15,
            op("END"),
            op("HALT"),
        ],
        {1: 0, 2: 1 << 39},
        Status.DONE,
        6,
    ),
    **{  # every bit of an end that no program has
        f"far-end-{k}": (
            [op("LOOP", count=2, end=n) for n in ((1 << k) + 8, 7, 6, 5)] + [op("MUL"), *[op("END")] * 4, op("HALT")],
            {},
            Status.OPCODE,
            8,
        )
        for k in range(6, 16)
    },
    "no-loop": ([op("LOOP", len=1, end=2), 15, op("END"), op("HALT")], {0: 5, 16: 6}, Status.DONE, 3),
}


def check_statuses():
    """Bad and barely good programs end in the right status and pc, with every beat before the fault."""
    p = core("tiny")
    runs = [fault(words, registers, limit=1000) for words, registers, _, _ in BAD.values()]
    got = play(emitted("tiny"), "tiny", runs)
    for (name, (words, registers, code, pc)), run in zip(BAD.items(), got, strict=True):
        assert ended(run) == (code, pc), name
        want = trace(p, words + [0] * (p.lxe.i_depth - len(words)), {r: v for r, v in registers.items() if 0 < r < 16})
        assert (want.code, want.pc) == (code, pc), name
        assert given(run) == beats(want.steps), name


PULSES = {"bus": 1, "range": 1, "semaphore": 1, "full": 1, "length": 1, "timeout": 1}
FAULTS = [  # of several faults in a cycle, the first of this list is reported
    (Status.BUS, PULSES),
    (Status.RANGE, PULSES | {"bus": 0}),
    (Status.FULL, {"full": 1}),
    (Status.MEMORY, PULSES | {"memory": 1}),
    (Status.LENGTH, PULSES | {"bus": 0, "range": 0}),
    (Status.TIMEOUT, {"timeout": 1}),
    (Status.SEMAPHORE, {"semaphore": 1, "full": 1, "timeout": 1}),
]


def check_faults_beside_a_program():
    """Before START, which then has no effect, and after the end: a fault is never lost."""
    early = [fault([op("LOAD", base=7), op("HALT")], fault={"-1": pins}) for _, pins in FAULTS]
    late = [fault([op("HALT")], fault={"25": pins}) for _, pins in FAULTS]
    got = play(emitted("tiny"), "tiny", early + late)
    for (code, _), before, after in zip(FAULTS, got, got[len(FAULTS) :], strict=False):
        assert (ended(before)[0], given(before)["load"]) == (code, [])
        assert (ended(after)[0], after["end"] < 25) == (code, True)


def check_events():
    """Faults from outside, semaphores above 255, a second START, registers that an engine sets, inputs out of range."""
    p, slow = core("tiny"), [op("LOAD", rows=i, base=7) for i in range(6)] + [op("HALT")]
    runs = [fault(slow, fault={"9": pins}) for _, pins in FAULTS]
    runs.append({"host": host([op("HALT")])})  # START after a fault has no effect
    for count in (255, 256):
        loop = [op("LOOP", count=count, end=2), op("SYNC", signal=1 << 15), op("END"), op("HALT")]
        runs.append(fault(loop, sleep={"20": 6 * count - 40}))
    every = [op("LOOP", count=256, end=2), op("SYNC", signal=(1 << 16) - 1), op("END"), op("HALT")]
    runs.append(fault(every, sleep={"20": 6 * 256 - 40}))
    again = fault(slow)
    again["host"].append({"op": START, "addr": 0, "data": 0})
    runs.append(again)
    odd = fault(slow, {0: 99, 16: 77, 7: 1 << 39})
    odd["host"][-1:-1] = [{"op": PROGRAM, "addr": 64, "data": 15}, {"op": 3, "addr": 0, "data": 15}]
    runs.append(odd)
    reads = [
        op("RETRIEVE", signal=1),
        op("SYNC", wait=1),
        op("LOAD", base=7, addr=8),
        op("SET", to=0, imm=5),
        op("LOAD", len=7, base=0),
        op("HALT"),
    ]
    runs.append(fault(reads, {7: 3}, retrieve_set={"9": {"valid": 1, "to": 7, "data": 4096}}))
    got = play(emitted("tiny"), "tiny", runs, (3, 3))
    for (code, _), run in zip(FAULTS, got, strict=False):
        assert (ended(run)[0], run["end"]) == (code, 10)
    after, most, above, all_above, twice, dropped, sets = got[len(FAULTS) :]
    assert (ended(after)[0], after["end"], given(after)["load"]) == (Status.SEMAPHORE, 1, [])
    assert ended(most) == (Status.DONE, 3)
    assert ended(above)[0] == ended(all_above)[0] == Status.SEMAPHORE
    steps = trace(p, slow).steps
    done = SequencerTime(p, dict.fromkeys(NAMES.values(), 3)).run(steps).done
    assert given(twice)["load"] == 2 * beats(steps)["load"]
    assert twice["load"][0][0] == 6 - done  # the second START is taken as soon as the first run ends
    assert given(dropped) == beats(trace(p, slow, {7: 1 << 39}).steps)
    assert (ended(dropped)[0], ended(sets)[0]) == (Status.DONE, Status.DONE)
    assert given(sets) == beats(trace(p, reads, {7: 4096}).steps)


def check_every_register():
    """Host, SET, ADD and an engine write each register; a base, a length and ADD read it."""
    p, rest = core("tiny"), range(1, 16)
    values = {r: r << 11 for r in rest}
    loads = [op("LOAD", base=r, len=16 - r) for r in rest]
    sets = [op("SET", to=r, imm=r << 9) for r in rest]
    adds = [op("ADD", to=16 - r, a=r, imm=20_000) for r in rest]
    own = [*loads, *sets, *adds, *loads, op("HALT")]
    given_by_engine = [op("RETRIEVE", signal=1), op("SYNC", wait=1), *loads, op("HALT")]
    pulses = {str(8 + r): {"valid": 1, "to": r, "data": values[r]} for r in rest}
    runs = [fault(own, values), fault(given_by_engine, retrieve_set=pulses)]
    got = play(emitted("tiny"), "tiny", runs, {n: (40, 40) if n == "retrieve" else (3, 3) for n in NAMES.values()})
    for words, run in zip((own, given_by_engine), got, strict=True):
        assert given(run) == beats(trace(p, words, values).steps)
        assert ended(run) == (Status.DONE, len(words) - 1)


def check_halt_leaves_a_retrieve():
    """With `leave`, a program ends beside a RETRIEVE, but waits for its queue and for all other engines."""
    p, words = core("tiny"), [op("LOAD"), op("RETRIEVE", action=Retrieve.FETCH), op("MUL")]
    delays = [{"load": load, "retrieve": retrieve} for load, retrieve in ((3, 90), (40, 90), (40, 5), (3, 5))]
    kinds = [[*words, op("HALT", leave=leave)] for leave in (0, 1)]
    ends = []
    for own in delays:
        slow = dict.fromkeys(NAMES.values(), 2) | own
        got = play(emitted("tiny"), "tiny", [fault(kind) for kind in kinds], {n: (d, d) for n, d in slow.items()})
        for kind, run in zip(kinds, got, strict=True):
            want = trace(p, kind)
            assert given(run) == beats(want.steps)
            assert (run["end"], ended(run)) == (SequencerTime(p, slow).run(want.steps).done, (Status.DONE, 3))
        assert [run["status"]["engines"] for run in got] == [0, Engine.RETRIEVE if own["retrieve"] == 90 else 0]
        ends.append([run["end"] for run in got])
    waits, leaves = zip(*ends, strict=True)
    assert waits == (waits[0], waits[0], waits[2], waits[3])
    assert waits[0] > waits[2] > waits[3]
    assert leaves == (leaves[0], waits[2], waits[2], leaves[0])
    assert leaves[0] < waits[2]


def check_watchdog():
    """A wait without end is reported `WATCHDOG` + 3 cycles after the last move. Moves and debts postpone it."""
    lost = {n: [op(n.upper(), wait=4), op("HALT")] for n in WAITERS}
    busy = [op("LOOP", count=1200, end=1), op("END"), op("HALT")]  # 4 cycles a round
    runs = [fault(words, sleep={"8": 4080}) for words in lost.values()]
    runs += [
        fault(lost["mul"], moved=[1000], sleep={"8": 990, "1002": 4090}),
        fault(lost["mul"], outstanding=[4000, 4001], sleep={"8": 3990, "4003": 4090}),
        fault(busy, sleep={"8": 4780}),
    ]
    *got, moved, owed, last = play(emitted("tiny"), "tiny", runs)
    for name, run in zip(WAITERS, got, strict=True):
        begun, offered, pc, engines = (0, 4, 0, 0) if name == "sync" else (4, 6, 1, Engine[name.upper()])
        end = begun + Sequencer.WATCHDOG + 3
        assert (run["end"], run["status"]) == (end, {"code": Status.DEADLOCK, "pc": pc, "engines": engines, "bus": 0})
        assert {n: run["perf"][f"{n}_waits"] for n in WAITERS} == dict.fromkeys(WAITERS, 0) | {name: end - offered}
    assert (ended(moved), moved["end"]) == ((Status.DEADLOCK, 1), 1000 + Sequencer.WATCHDOG + 3)
    assert (ended(owed), owed["end"]) == ((Status.DEADLOCK, 1), 4001 + Sequencer.WATCHDOG + 3)
    assert ended(last) == (Status.DONE, 2)


def check_a_store_sets_registers():
    """A STORE sets each register, beside an engine that sets another. In one register the host and the engine win over
    it, and it wins over the program, as an engine does.
    """
    size, rest = "registers", range(1, 16)
    p = core(size)
    values, others = {r: r << 20 | 0xF << 36 for r in rest}, {r: r << 21 for r in rest}
    loads = [op("LOAD", base=r) for r in rest]
    waits = [op("STORE", signal=1), op("SYNC", wait=1)]
    words = [*waits, *loads, op("HALT")]
    store = {str(8 + r): {"valid": 1, "to": r, "data": values[r]} for r in rest}
    beside = {str(8 + r): {"valid": 1, "to": 16 - r, "data": others[16 - r]} for r in range(9, 16)}
    same = {str(8 + r): {"valid": 1, "to": r, "data": others[r]} for r in range(1, 8)}
    hosted = fault(words, store_set={"1": {"valid": 1, "to": 15, "data": 1 << 13}})
    hosted["host"].append({"op": REGISTER, "addr": 15, "data": 5 << 12})
    runs = [fault(words, store_set=store), fault(words, store_set=store, retrieve_set=beside)]
    runs += [fault(words, store_set=store, retrieve_set=same), hosted]
    wants = [values, values | {r: others[r] for r in range(1, 8)}, values | {r: others[r] for r in range(1, 8)}]
    wants.append({15: 5 << 12})
    # A SET writes its register in one of the first cycles: a pulse in each of them, of the engine or of the STORE.
    own = [op("SET", to=5, imm=7 << 12), *waits, op("LOAD", base=5), op("HALT")]
    pulses = [{str(k): {"valid": 1, "to": 5, "data": 99 << 12}} for k in range(1, 8)]
    runs += [fault(own, **{name: pulse}) for pulse in pulses for name in ("retrieve_set", "store_set")]
    delays = {n: (40, 40) if n == "store" else (3, 3) for n in NAMES.values()}
    got = play(emitted(size), size, runs, delays)
    for registers, run in zip(wants, got, strict=False):
        assert given(run) == beats(trace(p, words, registers).steps)
        assert ended(run) == (Status.DONE, len(words) - 1)
    read = [run["load"][0][1]["addr"] for run in got[len(wants) :]]
    assert read[::2] == read[1::2]
    assert set(read) == {7 << 12, 99 << 12}


def check_stores_between_instructions():
    """STOREs, an engine and the host write registers in every cycle of programs that write others: none is lost.

    Each of them writes every bit of the registers; where several write one register in a cycle, the first of host,
    engine and STORE wins.
    """
    size, rng, last, seen = "registers", Random(5), 60, Counter()
    p, reads = core(size), [*(op("LOAD", base=r) for r in range(16)), op("HALT")]
    runs, wants = [], []
    for k in range(40):  # so many that any two bits of a register differ in some value
        words = random_program(p, 300 + k) if k < 8 else [op("LOOP", count=last // 3, end=1), op("END"), op("HALT")]
        low = 11 if k < 8 else 1  # registers that the program does not write
        pulses = [
            {str(c): {"valid": 1, "to": rng.randint(low, 15), "data": rng.getrandbits(40)} for c in range(1, last)}
            for _ in range(2)
        ]
        own = [{"op": REGISTER, "addr": rng.randint(low, 15), "data": rng.getrandbits(40)} for _ in range(1, last)]
        store, engine = pulses[0], {c: v for c, v in pulses[1].items() if rng.random() < 0.4}
        run = fault(words, store_set=store, retrieve_set=engine)
        run["host"] += own  # one a cycle behind START
        want = dict(enumerate(trace(p, words).registers))
        for c in range(1, last):
            writes = [store[str(c)], *([engine[str(c)]] if str(c) in engine else [])]
            writes.append({"to": own[c - 1]["addr"], "data": own[c - 1]["data"]})
            for w in writes:
                want[w["to"]] = w["data"]
            seen["same"] += len({w["to"] for w in writes}) < len(writes)
            seen["apart"] += len({w["to"] for w in writes}) == 3
        runs += [run, {"host": host(reads)}]
        wants.append(want)
    got = play(emitted(size), size, runs, (3, 3))
    for k, want in enumerate(wants):
        assert ended(got[2 * k])[0] == Status.DONE
        assert got[2 * k]["end"] + 30 > last, "the bench has left out pulses"
        assert given(got[2 * k + 1]) == beats(trace(p, reads, want).steps), f"program {k}"
    assert min(seen["same"], seen["apart"]) > 50
