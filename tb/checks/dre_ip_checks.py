"""Checks of the DRE's IP block, shared by tests, mutants, coverage and stress: the DRE as software sees it."""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np

from golden.program.isa import Retrieve, Status
from hdl.emit import Emitted, emit
from hdl.shells.dre_ip import CODE_BITS
from tb.checks.core_checks import SIZES
from tb.library.dre_scenario import Scenario, row_beats
from tb.library.runner import Run
from tb.library.stress_traffic import StressTraffic
from tb.library.transfer_traffic import params

DEVICE, HOME, FRESH, BUFFER = 0x0000, 0x1000, 0x8000, 0x10000


TOP = 0x20000
CHANGES = [*SIZES, "addr_bits=36", "clusters=8"]
PROTECTION = ["protection.corrected", "protection.detected"]


@cache
def emitted() -> Emitted:
    return emit("dre_ip", params(CHANGES))


def counters(unit: Emitted) -> dict[str, str]:
    """The register of each event counter."""
    return {name: "perf." + name.replace("wtu0", "wtu[0]") for name in unit.manifest["counters"]}


class Software:
    """The steps of a driver, and the answers that golden expects."""

    def __init__(self, seed: int, **changes):
        self.rng, p = random.Random(seed), params(CHANGES).dre
        self.p = p
        self.function = replace(p.function(), **{"th_hd": 4, "ratio_q16": 3 << 14} | changes)
        self.scenario = Scenario(p, self.function, DEVICE, HOME)  # the engine's part of each step
        self.model = self.scenario.model
        self.memory = bytearray(self.rng.randbytes(TOP))
        self.before = bytes(self.memory)
        self.bases = [self.rng.getrandbits(p.hcu.n_hp) for _ in range(16)]
        self.steps: list[dict] = []
        self.wants: list[list[int]] = []
        self.last = [0, 0]  # result, count
        self.bins: set[str] = set()

    def command(self, action: Retrieve, result: int | None = None, count: int | None = None, **fields) -> None:
        """Add a command and the result that it must give."""
        self.last = [self.last[0] if result is None else result, self.last[1] if count is None else count]
        polls = self.rng.random() < 0.5
        self.steps.append({"command": {"action": int(action), **fields}, "polls": polls})
        self.wants.append([Status.DONE, *self.last])
        self.bins |= {action.name, "polls" if polls else "interrupt"}

    def frame(self, ctx: int, tokens: int, rows: int) -> None:
        """Add a frame: keys with their clusters and places, then a query block and its fetches."""
        hashes = [self.rng.choice(self.bases) ^ (1 << self.rng.randrange(self.p.hcu.n_hp)) for _ in range(tokens)]
        number, size, s = self.scenario.tokens[ctx], self.p.kvmu.entry_bytes, self.scenario
        self.steps.append(
            {
                "keys": [
                    {"data": h, "user": {"token": number + i, "ctx": ctx}, "last": int(i == tokens - 1)}
                    for i, h in enumerate(hashes)
                ]
            }
        )
        fresh = self.rng.randbytes(size * tokens)
        self.steps.append({"writes": [[FRESH, fresh.hex()]]})
        self.memory[FRESH : FRESH + len(fresh)] = fresh
        for i, h in enumerate(hashes):
            assert self.entry(ctx, h, FRESH + i * size)
        level = len(self.model.tables[ctx].counts)
        if rows:
            bits = self.rng.choice((2, 8, self.p.wtu.score.bits))  # codes with many ties, with some, with hardly any
            codes = np.array([[self.rng.getrandbits(bits) for _ in range(level)] for _ in range(rows)])
            s.query(ctx, codes)
            query = s.queries[-1]
            self.steps.append({"rows": [axis(beat) for beat in row_beats(self.p.wtu, ctx, codes)]})
            at = BUFFER
            for burst in query.bursts:
                self.copy(burst.addr, at, burst.bytes)
                at += burst.bytes
            entries = (at - BUFFER) // size
            self.bins |= {"fetches" if entries else "fetches_nothing", f"rows of context {ctx}"}
            self.command(Retrieve.FETCH, entries, entries << 2, base=BUFFER, rows=max(entries, 1), shift=2)

    def entry(self, ctx: int, key_hash: int, fresh: int) -> bool:
        """Add a key's cluster and the place of its entry, which lies at `fresh`; whether a block was free."""
        s, moves, size = self.scenario, len(self.scenario.x), self.p.kvmu.entry_bytes
        s.keys(ctx, [key_hash])
        joined, placed = s.t[-1], s.w[-1]
        self.bins |= {f"full table of context {ctx}"} if joined["full_join"] else set()
        level = len(self.model.tables[ctx].counts)
        self.command(Retrieve.CLUSTER, 0x100 + (joined["cluster"] << 3), level, base=0x100, shift=3)
        for move in s.x[moves:]:
            self.copy(move["src"], move["dst"], move["bytes"])
        self.command(Retrieve.PLACE, base=fresh)
        if placed["full"]:
            self.wants[-1][0] = Status.FULL
        else:
            self.copy(fresh, placed["device"], size)
        return not placed["full"]

    def fill(self, ctx: int) -> None:
        """Add keys until one finds no free block."""
        size, more = self.p.kvmu.entry_bytes, True
        while more:
            key = {"data": self.rng.choice(self.bases), "user": {"token": self.scenario.tokens[ctx], "ctx": ctx}}
            self.steps.append({"keys": [key | {"last": 1}]})
            more = self.entry(ctx, key["data"], FRESH + self.rng.randrange(8) * size)

    def copy(self, src: int, dst: int, size: int) -> None:
        """Copy bytes of the expected memory."""
        self.memory[dst : dst + size] = self.memory[src : src + size]

    def clear(self, ctx: int) -> None:
        """Forget a context."""
        self.scenario.clear(ctx)
        self.command(Retrieve.CLEAR, ctx=ctx)

    def count(self, ctx: int) -> None:
        """Ask how many clusters a context has."""
        self.command(Retrieve.COUNT, count=len(self.model.tables[ctx].counts), ctx=ctx)

    def play(
        self,
        unit: Emitted,
        idle: float = 0.0,
        pause: float = 0.0,
        seed: int = 1,
        changes: Sequence[str] = CHANGES,
        **how,
    ) -> dict:
        """Run the steps on the RTL; results of the commands, and the memory."""
        f = self.function
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "memory.bin")
            path.write_bytes(self.before)
            c = {
                "params": list(changes),
                "memory": str(path),
                "steps": self.steps,
                "ports": {"th_hd": f.th_hd, "ratio": f.ratio_q16, "device_base": DEVICE, "home_base": HOME},
                "counters": [*counters(unit).values(), *PROTECTION],
                "idle": idle,
                "pause": pause,
            }
            got = Run(unit, "tb.benches.bench_dre_ip", "commands", c, seed, **how)()
            return got | {"memory": path.read_bytes()}

    def check(self, got: dict) -> None:
        """Compare results and memory with golden."""
        assert got["commands"] == self.wants
        assert got["memory"] == bytes(self.memory)


def axis(beat: dict) -> dict:
    """A word of scores as bits on the AXI stream."""
    row = beat["row"]
    data = sum(code << CODE_BITS * i for i, code in enumerate(row["scores"]))
    return {
        "data": data,
        "user": {"keep": row["keep"], "ctx": row["ctx"], "set_last": beat["set_last"]},
        "last": row["last"],
    }


BINS = {
    *(a.name for a in Retrieve),
    *("polls", "interrupt", "fetches", "fetches_nothing"),
    *(f"{what} of context {ctx}" for what in ("rows", "full table") for ctx in range(params(CHANGES).dre.hcu.n_ctx)),
}


def frames(seed: int, count: int) -> Software:
    """Frames in several contexts, some of which are forgotten in between."""
    s = Software(seed)
    for n in range(count):
        ctx = s.rng.randrange(s.p.kvmu.n_ctx)
        s.frame(ctx, s.rng.choice((1, 2, 3, 11)), s.rng.choice((0, 1, 3)))
        if n % 5 == 4:
            s.clear(s.rng.randrange(s.p.kvmu.n_ctx))
        s.count(s.rng.randrange(s.p.kvmu.n_ctx))
    return s


@dataclass
class RandomTraffic(StressTraffic):
    """Four to twenty frames, driven over AXI4-Lite. In a fifth of the runs a context's table is full."""

    software: Software
    idle: float
    pause: float
    seed: int

    @classmethod
    def random(cls, rng: Random) -> Self:
        seed = rng.getrandbits(31)
        s = frames(seed, rng.randint(4, 20))
        if rng.random() < 0.2:
            s.fill(rng.randrange(s.p.kvmu.n_ctx))
        return cls(s, rng.choice((0.0, 0.5)), rng.choice((0.0, 0.3)), seed)

    def play(self) -> Any:
        return self.software.play(emitted(), self.idle, self.pause, self.seed)

    def check(self, got: Any) -> int:
        self.software.check(got)
        return len(self.software.wants)


def check_frames_equal_golden(seed, idle, pause, record_property):
    s = frames(seed, 20)
    if seed == 1:
        s.fill(1)
    got = s.play(emitted(), idle, pause, seed)
    s.check(got)
    paths = counters(emitted())
    own = {name.removeprefix("dre."): got["perf"][path] for name, path in paths.items()}
    want = s.scenario.perf()
    want |= {
        "retriever.entries": want["kvmu.appends"],
        "retriever.moves": want["kvmu.offloads"],
        "retriever.fetches": want["kvmu.bursts"],
        "retriever.instructions": len(s.wants) - want["kvmu.full"],
    }
    assert {name: own[name] for name in want} == want
    assert [got["perf"][path] for path in PROTECTION] == [0, 0]
    if seed == 1:
        assert {name for name, n in own.items() if not n} == set(), "counters that stand still"
    record_property("bins", ", ".join(sorted(s.bins)))  # for `vrex report`
    if seed == 1:
        assert s.bins >= BINS, BINS - s.bins


def check_a_fault_ends_in_a_status_and_a_reset_mends_it(command, status):
    check_fault(command, status, emitted())


def check_fault(command: dict, status: Status, unit: Emitted, **how) -> None:
    """Nothing happens after the fault, and after a reset frames equal golden again."""
    broken, whole = Software(3), frames(4, 2)
    for _ in range(4):
        broken.frame(0, 4, 0)
    codes = np.full((1, len(broken.model.tables[0].counts)), 3)
    assert sum(b.bytes for b in broken.model.query(0, codes).bursts) > broken.p.kvmu.entry_bytes
    broken.steps.append({"rows": [axis(beat) for beat in row_beats(broken.p.wtu, 0, codes)]})
    if command["action"] == Retrieve.PLACE:
        broken.frame(0, 1, 0)
        broken.steps.pop()  # `command` takes the place of the last step
        broken.wants.pop()
    after = {"action": int(Retrieve.COUNT)}
    errors = command.get("errors", [])
    broken.steps += [{"command": command | {"action": int(command["action"])}, "errors": errors}]
    broken.steps += [{"command": after, "polls": 1}]
    broken.steps[-1]["reset"] = 50
    broken.steps.append({"writes": [[0, whole.before.hex()]]})
    broken.steps += whole.steps
    got = broken.play(unit, **how)
    ends = len(broken.wants)
    assert [c[0] for c in got["commands"][ends : ends + 2]] == [status, status]
    assert [c[0] for c in got["commands"][ends + 2 :]] == [Status.DONE] * len(whole.wants)
    assert got["memory"] == bytes(whole.memory)


def check_a_reset_while_a_command_runs(after):
    check_reset(after, emitted())


def check_reset(after: int, unit: Emitted, **how) -> None:
    """After a reset in flight the bus is quiet, and frames equal golden again."""
    broken, whole = Software(5), frames(6, 2)
    broken.frame(0, 4, 0)
    broken.steps[-1]["reset"] = after
    broken.steps.append({"writes": [[0, whole.before.hex()]]})
    broken.steps += whole.steps
    got = broken.play(unit, 0.0, 0.2, **how)
    assert got["commands"][len(broken.wants) - 1][0] in (Status.RUNNING, Status.DONE)
    assert [c[0] for c in got["commands"][len(broken.wants) :]] == [Status.DONE] * len(whole.wants)
    assert got["memory"] == bytes(whole.memory)
