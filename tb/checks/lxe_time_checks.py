"""Checks of the joined time view of LXE and core: every event of random programs and layers is in the RTL's cycle."""

import random
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random
from typing import Any, Self

from openvrex.golden.arithmetic.vector import Bank, Format, Op, Post, Reduce, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.program.isa import Instruction, LoadTo, Opcode, Queue, StoreTo, encode, to_register
from openvrex.golden.program.isa import vector as vector_of
from openvrex.hdl.emit import Emitted
from openvrex.sim.units.lxe_time import Run
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.core_checks import SIZES, emitted, params
from openvrex.tb.library.runner import Run as Bench
from openvrex.tb.library.stress_traffic import StressTraffic

# Counter -> cycles between an event and the cycle in which the counter shows it.
COUNTERS = {
    **dict.fromkeys((f"loader.{n}" for n in ("instructions", "bursts", "beats", "words")), 1),
    **dict.fromkeys((f"storer.{n}" for n in ("instructions", "bursts", "beats", "words")), 1),
    **dict.fromkeys(("sequencer.instructions", "dpe.commands", "dpe.results"), 2),
    **dict.fromkeys(("vpe.instructions", "vpe.loads", "vpe.stores"), 2),
}
Size = tuple[str, ...]
# Sizes of the LXE, as changes of `core_checks.SIZES`: its own, the least of a core, wide ones.
SHAPES = {
    "tiny": (),
    "least": ("dpe.n_h=2", "dpe.n_w=2", "vpe.n_w=2", "bus_bytes=4", "lxe.words=2", "lxe.queue=1", "lxe.bursts=1"),
    "wide": ("dpe.n_h=8", "dpe.n_w=8", "vpe.n_w=8", "bus_bytes=16", "lxe.bursts=4"),
}


def events(run: Run) -> dict[str, list[int]]:
    """Events of each counter by the time view."""
    load, store = run.loader.out, run.storer.out
    return {
        "sequencer.instructions": run.out.executed.tolist(),
        "loader.instructions": load.done,
        "loader.bursts": [c - 1 for c in load.bursts],
        "loader.beats": load.beats,
        "loader.words": load.words,
        "storer.instructions": store.done,
        "storer.bursts": [c - 1 for c in store.bursts],
        "storer.beats": [c - 1 for c in store.beats],
        "storer.words": store.words,
        "dpe.commands": run.read,
        "dpe.results": run.results.taken,
        "vpe.instructions": run.vpe.out.c,
        "vpe.loads": run.vpe.out.i,
        "vpe.stores": run.vpe.out.o,
    }


@dataclass
class Program:
    """A random program that a tiny LXE can run. Only its timing counts; its numbers mean nothing.

    numbers : it also sets registers by STORE, which it does not use · size : of `SHAPES`
    """

    seed: int
    numbers: bool = False
    size: Size = ()
    out: list[Instruction] = field(default_factory=list)

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.free = list(range(8))  # semaphores
        p = params(more=self.size)
        self.lanes, self.bytes = p.dpe.n_w, 2 * p.dpe.n_w
        self.pieces(self.rng.randint(4, 14), 0)
        self.add(Opcode.HALT)

    def add(self, op: Opcode, **values: int) -> None:
        """Add an instruction; zero fields are left out."""
        self.out.append(Instruction(op, {k: int(v) for k, v in values.items() if v}))

    def address(self) -> int:
        return self.rng.randrange(256) * self.bytes

    def pieces(self, count: int, depth: int) -> None:
        kinds = ["product", "words", "vectors", "set", "nothing", "several"] + ["loop"] * (depth < 2)
        kinds += ["number"] * (2 * self.numbers)
        for _ in range(count):
            getattr(self, self.rng.choice(kinds))(depth)

    def loop(self, depth: int) -> None:
        at = len(self.out)
        self.add(Opcode.LOOP)
        self.pieces(self.rng.randint(1, 3), depth + 1)
        self.out[at] = Instruction(Opcode.LOOP, {"count": self.rng.randint(1, 3), "end": len(self.out)})
        self.add(Opcode.END)

    def set(self, _: int) -> None:
        self.add(Opcode.SET, to=self.rng.randint(4, 6), imm=self.rng.randrange(3))
        self.add(Opcode.ADD, to=7, a=7, imm=self.bytes)

    def nothing(self, _: int) -> None:
        """Instructions that are skipped."""
        for op in self.rng.sample([Opcode.LOAD, Opcode.MUL, Opcode.VECTOR, Opcode.STORE], 2):
            self.add(op, len=8, add=-1 if self.rng.random() < 0.9 else 0)

    def transfer(self, op: Opcode, target: int, rows: int, words: int, **values: int) -> None:
        where = {"addr": self.address(), "stride": self.rng.randrange(20) * self.bytes, "base": self.rng.choice([0, 7])}
        self.add(op, target=target, rows=rows - 1, words=words - 1, step=words, **(where | values))

    def finish(self, words: int) -> None:
        """Send words of the VPE somewhere."""
        rng = self.rng
        wide = rng.random() < 0.5
        form = Format.WIDE if wide else Format.HALF
        where = {"addr_b": rng.randrange(4), "addr_c": rng.randrange(4)}
        self.out.append(vector_of(Vector(op=Op.STORE, words=words - 1, format=form, **where)))
        rows = rng.choice([r for r in range(1, words + 1) if words % r == 0])
        if not wide and rng.random() < 0.4:
            self.transfer(Opcode.STORE, StoreTo.X, rows, words // rows)
        else:
            self.transfer(Opcode.STORE, StoreTo.MEMORY, rows, words // rows, wide=wide)

    def number(self, _: int) -> None:
        """A number into a register, for which the sequencer waits or not."""
        waits, shift = self.rng.random() < 0.5, self.rng.randrange(32)
        self.out.append(vector_of(Vector(op=Op.STORE, format=Format.WIDE, addr_c=self.rng.randrange(4))))
        signal = {"signal": 1 << 15} if waits else {}
        self.out.append(to_register(self.rng.randrange(10, 16), self.rng.choice([0, 7]), shift=shift, **signal))
        if waits:
            self.add(Opcode.SYNC, wait=1 << 15)

    def vector(self, words: int, **values: int) -> None:
        rng = self.rng
        more = {
            "b": rng.choice([Source.IMMEDIATE, Source.BANK, Source.SCALAR]),
            "c": rng.choice([Source.IMMEDIATE, Source.IMMEDIATE, Source.BANK, Source.SCALAR]),
            "post": rng.choice([Post.NONE, Post.NONE, Post.ROUND, Post.EXP]),
            "write": rng.choice([Bank.A, Bank.B, Bank.C, Bank.B | Bank.C]),
            "reduce": rng.choice([Reduce.NONE, Reduce.NONE, Reduce.MAX, Reduce.SUM, Reduce.LAST]),
            **{f"addr_{n}": rng.randrange(8) for n in "abcd"},
            **{f"scalar_{n}": rng.randrange(3) for n in "abcd"},
        }
        source = values.pop("source", 0)
        self.out.append(vector_of(Vector(words=words - 1, **(more | values)), source=source))

    def vectors(self, _: int) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.vector(self.rng.randint(1, 6), a=self.rng.choice([Source.BANK, Source.SCALAR]))
        if self.rng.random() < 0.6:
            self.finish(self.rng.randint(1, 8))

    def words(self, _: int) -> None:
        """Words from memory to the VPE."""
        rng, rows, words, wide = self.rng, self.rng.randint(1, 4), self.rng.randint(1, 5), self.rng.random() < 0.5
        self.transfer(Opcode.LOAD, LoadTo.VECTOR, rows, words, wide=wide)
        left = rows * words
        while left:
            part = rng.randint(1, left)
            self.vector(part, a=Source.STREAM, wide=wide, source=Queue.LOAD)
            left -= part
        if rng.random() < 0.7:
            self.finish(rng.randint(1, 8))

    def product(self, _: int) -> None:
        rng = self.rng
        rows, tiles, chunks = rng.randint(1, 7), rng.randint(1, 4), rng.randint(1, 5)
        s, t = rng.sample(range(8), 2)
        column = rng.random() < 0.3
        size = self.lanes * tiles
        kind, words = (LoadTo.COLUMN, 1) if column else (LoadTo.W, chunks)
        self.transfer(Opcode.LOAD, kind, size, words, to=rng.randrange(4), signal=1 << s)
        self.transfer(Opcode.LOAD, LoadTo.X, rows, chunks, to=rng.randrange(20), signal=1 << t)
        fields = {"rows": rows - 1, "tiles": tiles - 1, "chunks": chunks - 1, "x_step": chunks}
        self.add(Opcode.MUL, **fields, start=1, end=1, wait=1 << s | 1 << t)
        left = rows * tiles
        while left:
            part = rng.randint(1, left)
            self.vector(part, a=Source.STREAM, wide=1)
            left -= part
        if rng.random() < 0.8:
            self.finish(rng.randint(1, 12))

    def several(self, _: int) -> None:
        """A sum over several MULs."""
        count = self.rng.randint(1, 4)
        for i in range(count):
            self.add(Opcode.MUL, chunks=self.rng.randrange(4), start=int(i == 0), end=int(i == count - 1))
        self.vector(1, a=Source.STREAM, wide=1)


def play(
    e: Emitted, programs: list[list[Instruction]], latency: int, registers: dict | None = None, size: Size = ()
) -> list[dict]:
    """Run each program on the RTL, one after the other. Register 7 is 0 unless given."""
    words = [[f"{encode(i):x}" for i in program] for program in programs]
    runs = [{"program": w, "registers": registers or {7: 0}, "writes": []} for w in words]
    ports = dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0)
    return simulated(e, runs, latency, ports, bytes(1 << 17), size)["runs"]


def simulate(e: Emitted, runs: list[dict], latency: int, ports: dict[str, int], memory: bytes) -> list[dict]:
    """Run what `tb.benches.bench_lxe_time` takes."""
    return simulated(e, runs, latency, ports, memory)["runs"]


def simulated(
    e: Emitted, runs: list[dict], latency: int, ports: dict[str, int], memory: bytes, size: Size = ()
) -> dict:
    """The same: "runs", and "memory" behind them in hex."""
    config = {"params": [*SIZES, *size], "runs": runs, "memory": memory.hex(), "ports": ports, "latency": latency}
    return Bench(e, "bench_lxe_time", "timed", config | {"counters": e.manifest["counters"]})()


def differences(run: Run, got: dict) -> list[str]:
    """Events that differ, the earliest first."""
    out = [(got["done"], f"done: RTL {got['done']}, time view {run.out.done}")] if got["done"] != run.out.done else []
    for name, want in events(run).items():
        have = [c - COUNTERS[name] for c in got["events"][f"lxe.{name}"]]
        pairs = list(zip_longest(have, want))
        wrong = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
        if wrong is not None:
            at = min(c for c in pairs[wrong] if c is not None)
            out.append((at, f"{name} {wrong}: RTL {pairs[wrong][0]}, time view {pairs[wrong][1]}"))
    return [text for _, text in sorted(out)]


def timed(program: list[Instruction], latency: int, registers=None, size: Size = ()) -> Run:
    """The time view of a program."""
    p = params(more=size)
    steps = trace(p, [encode(i) for i in program], registers).steps
    run = Run(p, latency, steps, detail=True)
    run.play()
    return run


@dataclass
class RandomTraffic(StressTraffic):
    """Twelve programs of every kind of instruction, in the cycles of the time view."""

    PARTS = "programs"

    programs: list[list[Instruction]]
    latency: int

    @classmethod
    def random(cls, rng: Random) -> Self:
        latency = rng.choice((1, 9, 30))
        return cls([Program(rng.getrandbits(31)).out for _ in range(12)], latency)

    def play(self) -> Any:
        return play(emitted(), self.programs, self.latency)

    def check(self, got: Any) -> int:
        for program, one in zip(self.programs, got, strict=True):
            wrong = differences(timed(program, self.latency), one)
            assert not wrong, wrong
        return sum(map(len, self.programs))
