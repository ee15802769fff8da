"""The cycle model of programs against the RTL of a core: the cycle of every instruction, burst, beat, word, chunk."""

import random
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

import numpy as np
import pytest

from golden.arithmetic.vector import Bank, Format, Op, Post, Reduce, Source
from golden.arithmetic.vector import Instruction as Vector
from golden.program.core_host import CoreHost
from golden.program.isa import Instruction, LoadTo, Opcode, Queue, Status, StoreTo, encode
from golden.program.isa import vector as vector_of
from golden.program.layer_compiler import LayerPlan, LayerShape
from hdl.emit import Emitted
from hdl.params import override, preset
from scripts.run import prediction_command, stages_command
from sim.units.core_time import CoreTime, Retrieval
from sim.units.hcu_time import HcuTime
from sim.units.lxe_time import LxeTime, Run
from sim.units.sequencer_time import trace
from tb.library.lxe_programs import Script
from tb.library.runner import Run as Bench
from tb.tests.hdl.execution.test_core import SHAPE, SIZES, begin, emitted, host, params, ports

# Counter -> cycles from what it counts to the cycle in which it has.
COUNTERS = {
    "sequencer.instructions": 2,
    **dict.fromkeys((f"loader.{n}" for n in ("instructions", "bursts", "beats", "words")), 1),
    **dict.fromkeys((f"storer.{n}" for n in ("instructions", "bursts", "beats", "words")), 1),
    **dict.fromkeys(("dpe.commands", "dpe.results", "vpe.instructions", "vpe.loads", "vpe.stores"), 1),
}


def events(run: Run) -> dict[str, list[int]]:
    """What the time view says of each counter."""
    load, store, steps = run.loader.out, run.storer.out, run.steps
    reads = [c for c, k in zip(run.done["mul"], run.given["mul"], strict=True) if not steps[k].beat["skip"]]
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
        "dpe.commands": reads,
        "dpe.results": run.results.taken,
        "vpe.instructions": run.vpe.out.c,
        "vpe.loads": run.vpe.out.i,
        "vpe.stores": run.vpe.out.o,
    }


@dataclass
class Program:
    """A random program that a tiny LXE can run: timing only, numbers mean nothing."""

    seed: int
    out: list[Instruction] = field(default_factory=list)

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.free = list(range(8))  # semaphores
        p = params()
        self.lanes, self.bytes = p.dpe.n_w, 2 * p.dpe.n_w
        self.pieces(self.rng.randint(4, 14), 0)
        self.add(Opcode.HALT)

    def add(self, op: Opcode, **values: int) -> None:
        """An instruction, zeros left out."""
        self.out.append(Instruction(op, {k: int(v) for k, v in values.items() if v}))

    def address(self) -> int:
        return self.rng.randrange(256) * self.bytes

    def pieces(self, count: int, depth: int) -> None:
        kinds = ["product", "words", "vectors", "set", "nothing", "several"] + ["loop"] * (depth < 2)
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
        """Words of the VPE go somewhere."""
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
        """Memory to the VPE."""
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
        """A sum over MULs."""
        count = self.rng.randint(1, 4)
        for i in range(count):
            self.add(Opcode.MUL, chunks=self.rng.randrange(4), start=int(i == 0), end=int(i == count - 1))
        self.vector(1, a=Source.STREAM, wide=1)


def play(e: Emitted, programs: list[list[Instruction]], latency: int, registers: dict | None = None) -> list[dict]:
    """Each program on the RTL, one after the other; register 7 is 0 if none is given."""
    words = [[f"{encode(i):x}" for i in program] for program in programs]
    runs = [{"program": w, "registers": registers or {7: 0}, "writes": []} for w in words]
    ports = dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0)
    return simulate(e, runs, latency, ports, bytes(1 << 17))


def simulate(e: Emitted, runs: list[dict], latency: int, ports: dict[str, int], memory: bytes) -> list[dict]:
    """Runs as `tb.benches.bench_lxe_time` takes them."""
    config = {"params": list(SIZES), "runs": runs, "memory": memory.hex(), "ports": ports, "latency": latency}
    return Bench(e, "tb.benches.bench_lxe_time", "timed", config | {"counters": e.manifest["counters"]})()["runs"]


def differences(run: Run, got: dict) -> list[str]:
    """What differs, the earliest first."""
    out = [(got["done"], f"done: RTL {got['done']}, time view {run.out.done}")] if got["done"] != run.out.done else []
    for name, want in events(run).items():
        have = [c - COUNTERS[name] for c in got["events"][f"lxe.{name}"]]
        pairs = list(zip_longest(have, want))
        wrong = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
        if wrong is not None:
            at = min(c for c in pairs[wrong] if c is not None)
            out.append((at, f"{name} {wrong}: RTL {pairs[wrong][0]}, time view {pairs[wrong][1]}"))
    return [text for _, text in sorted(out)]


def timed(program: list[Instruction], latency: int, registers=None) -> Run:
    """The time view of a program."""
    p = params()
    steps = trace(p, [encode(i) for i in program], registers).steps
    run = Run(p, latency, steps, detail=True)
    run.play()
    return run


@pytest.mark.parametrize("latency", [1, 9])
def test_random_programs(latency):
    programs = [Program(100 * latency + k).out for k in range(9)]
    got = play(emitted(), programs, latency)
    for k, (program, run) in enumerate(zip(programs, got, strict=True)):
        assert run["status"]["code"] == Status.DONE, f"program {k}"
        assert not differences(timed(program, latency), run), f"program {k}"


def layer() -> tuple[LayerPlan, dict[int, int]]:
    """A layer on a tiny LXE, and its registers."""
    plan = LayerPlan(replace(SHAPE, tokens=2), params().lxe_format())
    return plan, {
        int(r): v for r, v in plan.registers(7, 11, plan.work.size, plan.work.size + plan.weights.size).items()
    }


@pytest.mark.slow
def test_a_layer():
    plan, registers = layer()
    [got] = play(emitted(), [plan.program()], 6, registers)
    assert got["status"]["code"] == Status.DONE
    assert not differences(timed(plan.program(), 6, registers), got)


def test_equal_rounds_are_left_out():
    """Cycles are those of the whole program."""
    p, played, steps_of_all = params(), 0, 0
    for k in range(6):
        body = Program(300 + k).out[:-1]
        program = [
            Instruction(Opcode.LOOP, {"count": 40, "end": len(body) + 2}),
            Instruction(Opcode.SET, {"to": 7}),  # rounds differ in nothing
            *(moved(i, 2) for i in body),
            Instruction(Opcode.END, {}),
            Instruction(Opcode.HALT, {}),
        ]
        steps = trace(p, [encode(i) for i in program]).steps
        time, whole = Played(p, 4), Run(p, 4, steps).play()
        short = time.run(steps)
        played, steps_of_all = played + time.played, steps_of_all + len(steps)
        for name in ("executed", "started", "finished", "done"):
            assert np.array_equal(getattr(short, name), getattr(whole, name)), name
    assert played < steps_of_all / 4


class Played(LxeTime):
    """Counts the steps that it plays in the end."""

    def play(self, steps):
        self.played = len(steps)
        return super().play(steps)


def moved(i: Instruction, places: int) -> Instruction:
    """The instruction, some places on."""
    return Instruction(i.op, i.values | {"end": i["end"] + places}) if i.op == Opcode.LOOP else i


def test_a_program_that_waits_for_ever():
    program = [
        Instruction(Opcode.MUL, {"start": 1, "end": 1, "rows": 15, "tiles": 3}),
        Instruction(Opcode.MUL, {"wait": 1}),
        Instruction(Opcode.HALT, {}),
    ]
    with pytest.raises(ValueError, match="waits for ever from cycle .* on: mul at pc 0"):
        timed(program, 1)


class Recorded:
    """What the data decide in a run of a golden core, for the time view."""

    def __init__(self, h: CoreHost):
        self.core, self.h = h.core, h
        self.hcu = HcuTime(params().dre.hcu, h.core.dre.params.th_hd)
        self.begin()
        for unit, name in ((h.core.dre, "key"), (h.core.dre, "query"), (h.core, "retrieve")):
            setattr(unit, name, partial(getattr(self, name), getattr(unit, name)))

    def begin(self) -> None:
        self.data, self.registers = Retrieval(), []

    def key(self, plain, ctx: int, key_hash: int):
        joined, placed = plain(ctx, key_hash)
        self.data.scans.append(self.hcu.key(ctx, key_hash)[0])
        move = [("x", {"src": placed.move.src, "dst": placed.move.dst})] if placed.move else []
        self.data.places.append([*move, ("w", {"device": placed.device})])
        return joined, placed

    def query(self, plain, ctx: int, rows: np.ndarray):
        out = plain(ctx, rows)
        self.data.clusters.append(rows.shape[1])
        self.data.selects.append(2 * -(-rows.shape[1] // params().dre.wtu.n_w) + 30)
        self.data.sets.append([{"addr": b.addr, "bytes": b.bytes} for b in out.bursts])
        return out

    def retrieve(self, plain, i):
        out = plain(i)
        self.registers.append({i[n]: self.core.registers[i[n]] for n in ("to", "level") if i[n]})
        return out


@pytest.mark.slow
def test_layers_on_a_core():
    """What the DRE takes is not exact, but close."""
    rng, p, latency = np.random.default_rng(1), params(), 6
    h = host(rng)
    script, runs, views = Script(h.memory), [], []
    recorded = Recorded(h)
    for k in range(4):
        begin(h, rng, k * SHAPE.tokens)
        for i in range(2):
            script.add(h.program(i), h.registers(i))
            recorded.begin()
            registers = h.registers(i)
            h.run(i)
            script.expect()
            program = [encode(x) for x in h.program(i)]
            steps = trace(p, program, registers, retrieved=recorded.registers).steps
            views.append(CoreTime(p, latency, recorded.data).run(steps).done)
            runs.append({"program": [f"{w:x}" for w in program], "registers": registers})
    for run, given in zip(runs, script.runs, strict=True):
        run["writes"] = given["writes"]
    got = simulate(emitted(), runs, latency, ports(h), script.before.tobytes())
    assert all(g["status"]["code"] == Status.DONE for g in got)
    for view, g in zip(views, got, strict=True):
        assert abs(view - g["done"]) <= 0.0025 * g["done"]
    assert sum(view == g["done"] for view, g in zip(views, got, strict=True)) >= 6


def test_stages_of_a_small_model(monkeypatch):
    """What the units do is what the layer compiler counts, and takes no less than their time."""
    monkeypatch.setattr(stages_command, "LLAMA", {"width": 256, "heads": 4, "kv_heads": 2, "head_size": 64, "ffn": 512})
    p, cached, recent = preset("core").core, 400, 128
    rows = stages_command.measure(p, 4, cached, 0.5, recent, 20)
    assert {row.entries for row in rows} == {136}
    plan = LayerPlan(LayerShape(**stages_command.LLAMA, tokens=4, recent=recent, entries=136), p.lxe_format())
    for name, work in plan.costs(136).items():
        [row] = (row for row in rows if row.stage == name)
        least = work.cycles(p.lxe.bus_bytes)
        assert (row.dpe, row.load, row.store) == (least["dpe"], least["load"], least["store"]), name
        assert row.cycles >= max(row.dpe, row.load, row.store), name
    whole, rank = rows[-2:]
    assert whole.cycles == sum(row.cycles for row in rows[:-2])
    assert rank.stage == "rank"
    assert rank.dpe > 0


def test_prediction_of_a_small_model(monkeypatch):
    """What shows is what the LXE has to do for it; a longer fetch is waited for longer."""
    small = {"width": 256, "heads": 4, "kv_heads": 2, "head_size": 64, "ffn": 512}
    monkeypatch.setattr(stages_command, "LLAMA", small)
    monkeypatch.setattr(prediction_command, "LLAMA", small)
    p = override(preset("core"), ["entry_bytes=512"]).core
    few, more = (prediction_command.predict(p, 4, cached, 0.5, 128, 20) for cached in (400, 1200))
    assert (few.entries, few.clusters, more.entries, more.clusters) == (136, 12, 536, 37)
    for row in (few, more):
        [rank] = (s for s in stages_command.measure(p, 4, row.cached, 0.5, 128, 20) if s.stage == "rank")
        assert max(rank.load, rank.dpe) <= row.rank <= rank.cycles  # which counts the program's start, too
        assert row.codes >= 16 * -(-row.clusters // p.dre.wtu.n_w)  # words of the 16 rows
        assert row.clustering >= 0
        assert row.fetch <= row.entries * 512 // p.lxe.bus_bytes
    assert 0 < few.fetch < more.fetch
