"""Checks of the DRE's IP block, shared by tests, mutants, coverage and stress: the DRE as software sees it."""

import random
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.program.isa import Retrieve, Status
from openvrex.golden.program.regions import EVERYTHING, Allow, Reach, confined
from openvrex.golden.retrieval import kv4
from openvrex.golden.retrieval.clustering import Joined
from openvrex.golden.retrieval.kvmap import Placed
from openvrex.golden.retrieval.table_image import TableMemory
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import WtuParams
from openvrex.hdl.shells.dre_ip import CODE_BITS
from openvrex.tb.checks.core_checks import SIZES
from openvrex.tb.library.dre_scenario import Scenario, row_beats
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.stress_traffic import StressTraffic
from openvrex.tb.library.transfer_traffic import params
from openvrex.tb.library.upsets import flipped, wrong_items

DEVICE, HOME, FRESH, BUFFER, TABLES = 0x0000, 0x1000, 0x8000, 0x10000, 0x20000
CHANGES = [*SIZES, "addr_bits=36", "clusters=8", "counts=4", "read_counts=4"]
PROTECTION = ["protection.corrected", "protection.detected"]


@cache
def emitted(more: tuple[str, ...] = ()) -> Emitted:
    return emit("dre_ip", params([*CHANGES, *more]))


def counters(unit: Emitted) -> dict[str, str]:
    """The register of each event counter."""
    return {name: "perf." + name.replace("wtu0", "wtu[0]") for name in unit.manifest["counters"]}


class Software:
    """The steps of a driver, and the answers that golden expects. `protect` is that of all memories and tables."""

    def __init__(self, seed: int, protect: str = "none", more: tuple[str, ...] = (), **changes):
        self.changes = [*CHANGES, f"protect={protect}", *more]
        self.rng, p = random.Random(seed), params(self.changes).dre
        self.p = p
        self.function = replace(p.function(), **{"th_hd": 4, "ratio_q16": 3 << 14} | changes)
        self.scenario = Scenario(p, self.function, DEVICE, HOME, TABLES)  # the engine's part of each step
        self.model, layout = self.scenario.model, p.layout()
        zeros = bytes(layout.address(Item.LEVEL, p.kvmu.n_ctx))
        self.memory = bytearray(self.rng.randbytes(TABLES) + zeros)
        self.tables = TableMemory(layout, self.model, np.frombuffer(self.memory, np.uint8)[TABLES:])
        self.before = bytes(self.memory)
        self.bases = [self.rng.getrandbits(p.hcu.n_hp) for _ in range(16)]
        self.steps: list[dict] = []
        self.wants: list[list[int]] = []
        self.last = [0, 0]  # result, count
        self.bins: set[str] = set()
        self.wrong: dict[int, bytes] = {}  # wrong bits of items in memory, by address

    def command(self, action: Retrieve, result: int | None = None, count: int | None = None, **fields) -> None:
        """Add a command and the result that it must give."""
        self.last = [self.last[0] if result is None else result, self.last[1] if count is None else count]
        polls = self.rng.random() < 0.5
        self.steps.append({"command": {"action": int(action), **fields}, "polls": polls})
        self.wants.append([Status.DONE, *self.last])
        self.tables.write()
        self.bins |= {action.name, "polls" if polls else "interrupt"}

    def frame(self, ctx: int, tokens: int, rows: int) -> None:
        """Add a frame: keys with their clusters and places, then a query block and its fetches."""
        hashes = [self.rng.choice(self.bases) ^ (1 << self.rng.randrange(self.p.hcu.n_hp)) for _ in range(tokens)]
        number, size, s = self.scenario.tokens.get(ctx, 0), self.p.kvmu.entry_bytes, self.scenario
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
        for i, answer in enumerate(s.keys(ctx, hashes)):
            assert self.entry(ctx, *answer, FRESH + i * size)
        if rows:
            level = self.switch(ctx)
            bits = self.rng.choice((2, 8, self.p.wtu.score.bits))  # codes with many ties, with some, with hardly any
            codes = np.array([[self.rng.getrandbits(bits) for _ in range(level)] for _ in range(rows)])
            s.query(codes)
            query = s.queries[-1]
            self.steps.append({"rows": axis(self.p.wtu, codes)})
            at, kept = BUFFER, []
            for burst in query.bursts:
                came = self.fetch(burst.addr, at, burst.bytes, burst.near)
                kept += [] if burst.keep is None else [(burst.keep, at, came)]
                at += came
            for place, src, came in kept:
                self.memory[place : place + came] = self.memory[src : src + came]
            entries = (at - BUFFER) // size
            self.bins |= {"fetches" if entries else "fetches_nothing", f"rows of context {ctx}"}
            self.command(Retrieve.FETCH, entries, entries << 2, base=BUFFER, rows=max(entries, 1), shift=2)

    def entry(self, ctx: int, level: int, joined: Joined, placed: Placed, fresh: int) -> bool:
        """Add a key's cluster and the place of its entry, which lies at `fresh`; whether a block was free."""
        self.bins |= {f"full table of context {ctx}"} if joined.full_join else set()
        self.command(Retrieve.CLUSTER, 0x100 + (joined.cluster << 3), level, base=0x100, shift=3)
        if placed.move:
            self.move(*placed.move)
        self.command(Retrieve.PLACE, base=fresh)
        if placed.ok:
            self.copy(fresh, placed.device, self.p.kvmu.entry_bytes)
        else:
            self.wants[-1][0] = Status.FULL
        return placed.ok

    def fill(self, ctx: int) -> None:
        """Add keys until one finds no free block."""
        size, more = self.p.kvmu.entry_bytes, True
        while more:
            key = {"data": self.rng.choice(self.bases), "user": {"token": self.scenario.tokens.get(ctx, 0), "ctx": ctx}}
            self.steps.append({"keys": [key | {"last": 1}]})
            (answer,) = self.scenario.keys(ctx, [key["data"]])
            more = self.entry(ctx, *answer, FRESH + self.rng.randrange(8) * size)

    def copy(self, src: int, dst: int, size: int) -> None:
        """Copy bytes of the expected memory."""
        self.memory[dst : dst + size] = self.memory[src : src + size]

    def move(self, src: int, dst: int, size: int) -> None:
        """An entry goes home."""
        group = self.p.kvmu.kv4_group
        if not group:
            self.copy(src, dst, size)
            return
        numbers = np.frombuffer(self.memory[src : src + self.p.kvmu.entry_bytes], np.uint16)
        self.bins |= {"packs"}
        packed = kv4.pack(numbers, group).tobytes()
        self.memory[dst : dst + len(packed)] = packed

    def fetch(self, src: int, dst: int, size: int, near: bool = False) -> int:
        """A burst comes from home, of `size` bytes there; the bytes that it has at `dst`. near : it was kept"""
        group = self.p.kvmu.kv4_group
        if near or not group:
            size *= kv4.RATIO if group else 1
            self.copy(src, dst, size)
            return size
        out = kv4.expand(np.frombuffer(self.memory[src : src + size], np.uint8), group).tobytes()
        self.bins |= {"expands"}
        self.memory[dst : dst + len(out)] = out
        return len(out)

    def clear(self, ctx: int) -> None:
        """Forget a context."""
        level = self.model.level(ctx)
        for block in self.scenario.clear(ctx):
            self.memory[block.dst : block.dst + block.bytes] = bytes(block.bytes)
            self.bins |= {"wipes"}
        self.command(Retrieve.CLEAR, count=level, base=ctx)

    def upset(self, bits: int, kinds: Collection[Item] = tuple(Item)) -> None:
        """Flip so many bits of each item of the tables that has no wrong bits yet."""
        new = wrong_items(self.p.layout(), self.model, self.rng, bits, kinds)
        new = {TABLES + at: mask for at, mask in new.items() if TABLES + at not in self.wrong}
        self.steps.append({"flips": [[at, mask.hex()] for at, mask in new.items()]})
        self.wrong |= new

    def switch(self, ctx: int) -> int:
        """Let the rows that follow be of a context; its number of clusters. Some rows get a budget of tokens."""
        tokens = self.scenario.tokens_of(ctx)
        budget = self.rng.choice((0, 1, 1 + tokens // 4)) if self.p.wtu.budget else 0
        self.scenario.switch(ctx, budget=budget)
        level = self.model.level(ctx)
        action, rows = (Retrieve.BUDGET, {"rows": budget}) if budget else (Retrieve.SWITCH, {})
        self.command(action, count=level, base=ctx, **rows)
        return level

    def play(
        self,
        unit: Emitted,
        idle: float = 0.0,
        pause: float = 0.0,
        seed: int = 1,
        **how,
    ) -> dict:
        """Run the steps on the RTL; results of the commands, and the memory."""
        f = self.function
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "memory.bin")
            path.write_bytes(self.before)
            c = {
                "params": self.changes,
                "memory": str(path),
                "steps": self.steps,
                "ports": {
                    **{"th_hd": f.th_hd, "ratio": f.ratio_q16, "blocks": self.p.kvmu.blocks},
                    **{"device_base": DEVICE, "home_base": HOME, "table_base": TABLES},
                    **confined([Reach(0, len(self.before) - 1)]),
                },
                "counters": [*counters(unit).values(), *PROTECTION],
                "idle": idle,
                "pause": pause,
            }
            got = Run(unit, "bench_dre_ip", "commands", c, seed, **how)()
            return got | {"memory": path.read_bytes()}

    def check(self, got: dict) -> None:
        """Compare results and memory with golden. An item keeps its wrong bits until it is written."""
        assert got["commands"] == self.wants
        memory = bytearray(got["memory"])
        for at, mask in self.wrong.items():
            item, want = slice(at, at + len(mask)), bytes(self.memory[at : at + len(mask)])
            if memory[item] == flipped(want, mask):
                memory[item] = want
        assert memory == self.memory


def axis(p: WtuParams, codes: np.ndarray) -> list[dict]:
    """Rows [R, C] as beats of the AXI stream, each row as often as the WTU reads it."""
    beats = row_beats(p, codes)
    of_row = len(beats) // len(codes)
    return [
        {
            "data": sum(code << CODE_BITS * i for i, code in enumerate(beat["row"]["scores"])),
            "user": {"keep": beat["row"]["keep"], "set_last": beat["set_last"], "begins": int(i % of_row == 0)},
            "last": beat["row"]["last"],
        }
        for i, beat in enumerate(beats)
    ]


BINS = {
    *(a.name for a in Retrieve if a != Retrieve.BUDGET),  # an IP without `wtu.budget` refuses it
    *("polls", "interrupt", "fetches", "fetches_nothing"),
    *(f"{what} of context {ctx}" for what in ("rows", "full table") for ctx in range(params(CHANGES).dre.hcu.n_ctx)),
}


def frames(seed: int, count: int, protect: str = "none", more: tuple[str, ...] = ()) -> Software:
    """Frames in several contexts, some of which are forgotten in between."""
    s = Software(seed, protect, more)
    for n in range(count):
        ctx = s.rng.randrange(s.p.kvmu.n_ctx)
        s.frame(ctx, s.rng.choice((1, 2, 3, 11)), s.rng.choice((0, 1, 3)))
        if n % 5 == 4:
            s.clear(s.rng.randrange(s.p.kvmu.n_ctx))
        s.switch(s.rng.randrange(s.p.kvmu.n_ctx))
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


def check_packed_homes_equal_golden(seed):
    """Software sees the same answers; entries have 4 bits a number at home."""
    more = ("kv4_group=16",)
    s = frames(seed, 20, more=more)
    s.check(s.play(emitted(more), 0.0, 0.2, seed))
    assert s.bins >= {"packs", "expands"}


def check_users_share_a_dre():
    """Blocks of a context that is cleared hold zeros; a key of another's context and one beyond the quota are refused.

    The other's table, ring and blocks stay, and go on as golden after each reset.
    """
    more = ("shared=true",)
    s = Software(8, more=more)
    s.frame(1, 20, 2)
    s.frame(0, 4, 1)
    s.clear(0)
    quota = s.model.kv.quota = 2
    for settings, status in (({"first_context": 1}, Status.RANGE), ({"contexts": 1, "quota": quota}, Status.FULL)):
        s.steps.append({"settings": settings})
        key = {"data": s.bases[0], "user": {"token": 0, "ctx": 0}, "last": 1}
        if status == Status.RANGE:
            s.steps += [{"keys": [key], "fault": 1}, {"drains": ["keys"]}, {"reset": 0}]
            s.wants.append([status, *s.last])
        else:
            s.fill(0)
            assert 0 < s.model.kv.held(0) <= quota
            s.steps += [{"reset": 0}]
        s.last = [0, 0]
        s.steps.append({"settings": {"first_context": 0, "contexts": s.p.kvmu.n_ctx}})
    s.model.kv.quota = 0
    s.steps.append({"settings": {"quota": 0}})
    s.frame(1, 3, 2)
    s.check(s.play(emitted(more), 0.0, 0.2))
    assert {"wipes", "fetches"} <= s.bins


def check_budgets_equal_golden(seed):
    """Software may give the rows of a context a budget of tokens."""
    more = ("wtu.budget=true",)
    s = frames(seed, 20, more=more)
    s.check(s.play(emitted(more), 0.0, 0.2, seed))
    assert {"BUDGET", "SWITCH", "fetches"} <= s.bins


def check_a_fault_ends_in_a_status_and_a_reset_mends_it(command, status):
    check_fault(command, status, emitted())


def check_fault(command: dict, status: Status, unit: Emitted, **how) -> None:
    """Nothing happens after the fault, and after a reset frames equal golden again."""
    broken, whole = Software(3), frames(4, 2)
    for _ in range(4):
        broken.frame(0, 4, 0)
    codes = np.full((1, broken.switch(0)), 3)
    assert sum(b.bytes for b in broken.model.query(codes).bursts) > broken.p.kvmu.entry_bytes
    broken.steps.append({"rows": axis(broken.p.wtu, codes)})
    if command["action"] == Retrieve.PLACE:
        broken.frame(0, 1, 0)
        broken.steps.pop()  # `command` takes the place of the last step
        broken.wants.pop()
    after = {"action": int(Retrieve.SWITCH)}
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


def hostile(s: Software) -> dict[str, tuple[dict, dict | None, Status]]:
    """Wrong inputs by name: the step that brings them, the command that waits for them if any, and the status.

    The engine has table memory for contexts 0 and 1 of 3; context 1 is the one of the last SWITCH, context 0 is empty.
    """
    n, rng = s.model.level(1), s.rng
    assert n > s.p.wtu.n_w, "a row must have several words"
    fetch, cluster = {"action": int(Retrieve.FETCH), "base": BUFFER}, {"action": int(Retrieve.CLUSTER)}

    def key(ctx: int) -> dict:
        return {"keys": [{"data": rng.choice(s.bases), "user": {"token": 0, "ctx": ctx}, "last": 1}]}

    def rows(clusters: int, count: int = 2, cut: slice = slice(None), keep: int | None = None, last: int = 1) -> dict:
        beats = axis(s.p.wtu, np.full((count, clusters), 3))[cut]
        for beat in beats:
            beat["last"] &= last
            beat["user"]["keep"] = beat["user"]["keep"] if keep is None else keep
        return {"rows": beats}

    words = -(-n // s.p.wtu.n_w)
    row = words * s.p.wtu.readings
    twice = rows(n)
    twice["rows"][row:row] = twice["rows"][row - words : row]  # one reading more of the first row
    return {
        "a key of a context without memory": (key(2), cluster, Status.RANGE),
        "a key of a context that no table can have": (key(3), cluster, Status.RANGE),
        "a key that no command waits for": (key(2), None, Status.RANGE),
        "SWITCH to a context without memory": ({}, {"action": int(Retrieve.SWITCH), "base": 2}, Status.RANGE),
        "CLEAR of a context without memory": ({}, {"action": int(Retrieve.CLEAR), "base": 2}, Status.RANGE),
        "rows without their last word": (rows(n - s.p.wtu.n_w), fetch, Status.LENGTH),
        "rows of a word too many": (rows(n + s.p.wtu.n_w), fetch, Status.LENGTH),
        "rows without an end": (rows(n, last=0), fetch, Status.LENGTH),
        "rows of a cluster too few": (rows(n, keep=(n - 2) % s.p.wtu.n_w), fetch, Status.LENGTH),
        "rows that no command waits for": (rows(n + s.p.wtu.n_w), None, Status.LENGTH),
        "a reading too many": (twice, fetch, Status.LENGTH),
        "a reading too few": (rows(n, cut=slice(words, None)), fetch, Status.LENGTH),
        "half a set": (rows(n, cut=slice(row)), fetch, Status.TIMEOUT),
        "no rows": ({}, fetch, Status.TIMEOUT),
    }


def check_wrong_streams_are_refused(seed, idle, pause, record_property):
    record_property("bins", ", ".join(sorted(refuse(seed, idle, pause, emitted()))))


def refuse(seed: int, idle: float, pause: float, unit: Emitted, **how) -> set[str]:
    """Each wrong input ends in its status, its source is not held up, and nothing is written or lost.

    After a reset the same contexts go on as golden. Returns the names of the inputs.
    """
    s = Software(seed)
    s.steps.append({"settings": {"contexts": 2, "watchdog": 2000}})
    s.frame(1, 11, 0)
    while s.model.level(1) <= s.p.wtu.n_w:
        s.frame(1, 3, 0)
    names = list(hostile(s))
    for name in names:
        s.switch(1)
        beats, command, status = hostile(s)[name]
        s.steps.append({**beats, **({"command": command} if command else {"fault": 1})})
        s.wants.append([status, *s.last])
        s.steps += [{"drains": [*beats]}, {"reset": 0}]
        s.last = [0, 0]
        s.frame(1, 1, 1)
    s.check(s.play(unit, idle, pause, seed, **how))
    return set(names)


def check_nothing_outside_its_regions_is_touched(unit: Emitted | None = None, **how):
    """Without its tables a DRE cannot switch, without memory for entries it places none; nothing is written."""
    s = Software(4)
    whole = Reach(0, len(s.before) - 1)
    s.frame(1, 6, 2)
    for allow in (EVERYTHING & ~Allow.TABLE_READ, EVERYTHING):
        s.steps.append({"settings": confined([replace(whole, allow=allow)])})
        if allow != EVERYTHING:
            s.steps += [{"command": {"action": int(Retrieve.SWITCH), "base": 1}}, {"reset": 0}]
            s.wants.append([Status.BUS, *s.last])
            s.last = [0, 0]
    s.frame(1, 3, 2)
    for lacks in (Allow.ENTRY_WRITE, Allow.ENTRY_READ):  # the token's cluster is known, its entry stays away
        s.steps.append({"settings": confined([whole])})
        key = {"data": s.bases[0], "user": {"token": s.scenario.tokens[1], "ctx": 1}, "last": 1}
        s.steps.append({"keys": [key]})
        ((level, joined, _),) = s.scenario.keys(1, [key["data"]])
        s.command(Retrieve.CLUSTER, joined.cluster, level, base=0, shift=0)
        s.steps.append({"settings": confined([replace(whole, allow=EVERYTHING & ~lacks)])})
        s.steps += [{"command": {"action": int(Retrieve.PLACE), "base": FRESH}, "broken": 1}, {"reset": 0}]
        s.wants.append([Status.BUS, *s.last])
        s.last = [0, 0]
    got = s.play(unit or emitted(), **how)
    assert got["commands"] == s.wants
    assert got["memory"][:TABLES] == s.memory[:TABLES]  # the reset took the last keys before their tables were written


def check_rows_of_an_empty_context_are_refused():
    """Rows before a SWITCH and rows of a context without clusters end in LENGTH."""
    s = Software(2)
    s.frame(1, 6, 0)
    for switch in (False, True):
        if switch:
            s.switch(0)
        s.steps += [{"rows": axis(s.p.wtu, np.full((1, 1), 3)), "fault": 1}, {"reset": 0}]
        s.wants.append([Status.LENGTH, *s.last])
        s.last = [0, 0]
    s.frame(1, 3, 2)
    s.check(s.play(emitted()))


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
