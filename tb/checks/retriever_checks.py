"""Checks of the retriever, shared by tests, mutants, coverage and stress: copies, replies, faults, full rate."""

import random
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from golden.program.isa import Retrieve
from hdl.emit import Emitted, emit
from sim.units.retriever_time import RetrieverTime
from tb.library.retriever_traffic import FETCHED, HOMES, SIZES, SOURCES, Episode, cut, random_episode
from tb.library.runner import Run
from tb.library.streams import LATE
from tb.library.stress_traffic import StressTraffic
from tb.library.transfer_traffic import PAGE, params

PORTS = ("c", "t", "w", "x", "b", "clear", *(f"bus_{n}" for n in ("ar", "r", "aw", "w", "b")))
STALLS = [
    {},
    dict.fromkeys(PORTS, 0.4),
    {"bus_w": 0.8, "bus_aw": 0.5},
    {"bus_r": 0.7, "bus_ar": 0.8},
    dict.fromkeys(("clear", "bus_ar", "bus_aw", "bus_w"), LATE),
]


@cache
def emitted(size: str) -> Emitted:
    return emit("retriever", params(SIZES[size]))


def run(size: str, episodes: list[tuple[Episode, dict]], seed=1, unit: Emitted | None = None, waves=True) -> list[dict]:
    """Run the bench and compare; its results."""
    config = {"params": SIZES[size], "episodes": [e.config(**how) for e, how in episodes]}
    got = Run(unit or emitted(size), "tb.benches.bench_retriever", "retrieves", config, seed, waves)()["episodes"]
    kept = [e for e, how in episodes if not how.get("cut_at")]
    for e, g in zip(kept, got, strict=True):
        compare(e, g)
    return got


def compare(e: Episode, got: dict) -> None:
    p = e.p
    assert [s for _, s in got["done"]] == e.signals
    assert [(to, value) for _, to, value in got["sets"]] == e.sets
    reads, writes = ([(b["addr"], b["len"]) for _, b in got[name]] for name in ("reads", "writes"))
    assert [f for _, f in got["faults"]] == [e.fault] * bool(e.fault)
    memory = {addr: value for addr, value in got["memory"]}
    if e.fault:
        assert reads == e.reads[: len(reads)]
        assert writes == e.writes[: len(writes)]
        assert all(value in e.written[addr] for addr, value in memory.items())
    else:
        assert (reads, writes) == (e.reads, e.writes)
        assert memory == {addr: values[-1] for addr, values in e.written.items()}
        assert [b["ctx"] for _, b in got["clear"]] == e.cleared
        perf, placed = got["perf"], [name for name, _ in e.places]
        beats = sum(size for *_, size in e.copies) // p.lxe.bus_bytes
        assert perf == {
            "waits": perf["waits"],  # the time view knows the number
            "instructions": len(e.signals),
            "moves": placed.count("x"),
            "entries": placed.count("w"),
            "fetches": sum(not b["empty"] for b in e.b),
            "reads": len(reads),
            "writes": len(writes),
            "beats": beats,
        }
    for addr, n in reads + writes:
        assert addr // PAGE == (addr + (n + 1) * p.lxe.bus_bytes - 1) // PAGE, "a burst crosses 4 KB"


def traffic(size: str) -> list[tuple[Episode, dict]]:
    """Seeded random episodes, each with stalls of its own."""
    rng = random.Random(1)
    n = 24 if size == "tiny" else 12
    return [(random_episode(params(SIZES[size]), rng, n), {"stalls": stalls}) for stalls in STALLS]


@dataclass
class RandomTraffic(StressTraffic):
    """Eight episodes of 24 commands each, with random stalls of the memories."""

    size: str
    episodes: list[tuple[Episode, dict]]

    @classmethod
    def random(cls, rng: Random) -> Self:
        size = rng.choice(list(SIZES))
        some = [random_episode(params(SIZES[size]), rng, 24) for _ in range(8)]
        return cls(size, [(e, {"stalls": rng.choice(STALLS)}) for e in some])

    def play(self) -> Any:
        run(self.size, self.episodes)  # compares every beat

    def check(self, got: Any) -> int:
        return sum(len(e.signals) + len(e.reads) + len(e.writes) for e, _ in self.episodes)


def check_equals_the_reference(size):
    run(size, traffic(size))


def check_takes_the_cycles_of_the_time_view(size):
    rng = random.Random(2)
    p = params(SIZES[size])
    cases = [(random_episode(p, rng, 12), latency) for latency in (1, 4, 60)]
    results = run(size, [(e, {"latency": (latency, latency)}) for e, latency in cases])
    for (e, latency), got in zip(cases, results, strict=True):
        want = RetrieverTime(p, latency).run(e.c, e.places, e.b)
        first = got["taken"][0]
        cycles = {
            **{name: got[name] for name in ("taken", "news", "places", "fetched", "read", "written")},
            **{name: [cycle for cycle, *_ in got[name]] for name in ("reads", "writes", "sets", "done")},
            "clears": [cycle for cycle, _ in got["clear"]],
        }
        waits = {"waits": got["perf"]["waits"]}
        assert {name: [t - first for t in cycles[name]] for name in cycles} | waits == vars(want)


def check_news_that_are_dropped_or_late():
    """The retriever drops a CLEAR that nobody asked for, and takes the beat behind it a cycle later."""
    e = Episode(params(SIZES["tiny"]))
    for ctx in (1, 0, 1):
        e.cluster(ctx, to=1, level=2)
        e.dropped(ctx)
        e.cluster(ctx, to=3, level=4)
    direct, late = run("tiny", [(e, {}), (e, {"stalls": {"t": 0.8}})])
    assert 1 in np.diff(direct["news"])
    assert late["done"][-1][0] > direct["done"][-1][0]


def check_sets_of_many_entries():
    """The longest bursts of the KVMU, lengths and counts beyond eight bits, and counts up to the highest bit."""
    p = params(SIZES["tiny"])
    e, entry, rng = Episode(p), p.dre.kvmu.entry_bytes, random.Random(6)
    e.place(1, SOURCES, 40)
    for entries, shift in ((300, 31), (170, 0), (1, 5)):
        home = rng.randrange(1 << p.dre.kvmu.addr_bits - 16) << 16
        e.fetch(FETCHED, cut(p, home + rng.randrange(99) * entry, entries), to=1, level=2, shift=shift)
    e.fetch(FETCHED, [(HOMES + 8192 * i, entry // 2) for i in range(6)])  # odd steps use the room up
    e.fetch(FETCHED, [(HOMES + 8192 * i, 8 * n) for i, n in enumerate((1, 6, 5))])
    run("tiny", [(e, {})])


def check_full_rate():
    """The retriever moves bus_bytes every cycle each way, also between copies, if `copies` covers the latency."""
    p, runs = params(SIZES["tiny"]), []
    covered = (p.lxe.copies - 1) * p.lxe.burst_bytes // p.lxe.bus_bytes - 1
    for latency in (1, covered, covered + 1):
        e = Episode(p)
        e.fetch(FETCHED, [(HOMES + 4096 * i, 6 * p.lxe.burst_bytes) for i in range(4)])
        runs.append((e, {"latency": (latency, latency)}))
    beats = 24 * p.lxe.burst_bytes // p.lxe.bus_bytes
    got = run("tiny", runs)
    for name in ("read", "written"):
        spans = [g[name][-1] - g[name][0] + 1 for g in got]
        assert spans[:2] == [beats, beats]
        assert spans[2] > beats
    assert [g["most"] for g in got] == [p.lxe.copies] * 3


def good(errors=()) -> Episode:
    """An episode that starts with good instructions."""
    e = Episode(params(SIZES["tiny"]), frozenset(errors))
    e.place(0, SOURCES, 4)
    e.cluster(0, to=1, level=2)
    e.fetch(FETCHED + 8, [(HOMES, 96), (HOMES + 960, 192)], to=3)
    return e


def bad() -> list[tuple[Episode, dict]]:
    """Episodes with instructions that are refused, or with replies for which there is no room."""
    n_ctx, out = params(SIZES["tiny"]).dre.kvmu.n_ctx, []
    for k, (action, fields) in enumerate(
        (
            (Retrieve.PLACE, {"addr": SOURCES + 4}),
            (Retrieve.FETCH, {"addr": 7}),
            (Retrieve.CLEAR, {"ctx": n_ctx}),
            (Retrieve.COUNT, {"ctx": n_ctx}),
            (len(Retrieve), {}),
            (7, {}),
        )
    ):
        e = good()
        e.bad(action, **fields)
        e.place(0, SOURCES, 2)
        out.append((e, {"stalls": STALLS[k % 2]}))
    for full_at in (0, 2):
        for stalls in STALLS[:3]:
            e = good()
            e.place(0, SOURCES, 3, full_at=full_at)
            e.cluster(0)
            out.append((e, {"stalls": stalls}))
    for stalls in STALLS[:2]:
        e = good()
        e.fetch(FETCHED, [(HOMES, e.p.dre.kvmu.entry_bytes)] * 3, short=1)
        out.append((e, {"stalls": stalls}))
    kinds = [e.fault for e, _ in out]
    assert (kinds.count("range"), kinds.count("full")) == (6, 8)
    return out


def errors(rng: random.Random) -> list[tuple[Episode, dict]]:
    """An error response to any beat that is read, or to any burst that is written."""
    out = []
    for stalls in STALLS * 4:
        e = good()
        reads = [a + k * e.p.lxe.bus_bytes for a, n in e.reads for k in range(n + 1)]
        e = good([rng.choice([rng.choice(reads), rng.choice(e.writes)[0]])])
        e.place(0, SOURCES, 3)
        out.append((e, {"stalls": stalls, "latency": (1, rng.choice([2, 30]))}))
    return out


def check_faults():
    """A fault pulses once, after all earlier work is done. Then nothing begins, and the bus drains."""
    got = run("tiny", [*bad(), *errors(random.Random(4))])
    assert any(g["filler"] for g in got), "no burst was cut short by stop"


def stops() -> list[tuple[Episode, dict]]:
    """The fault of another engine at every third cycle of an episode."""
    whole = random_episode(params(SIZES["tiny"]), random.Random(6), 12)
    return [(whole, {"stalls": STALLS[1], "cut_at": cut_at, "stop": True}) for cut_at in range(1, 600, 3)]


def check_stops_at_any_cycle():
    """A stop ends it in every state: nothing begins, and the bus drains. After a reset it works again."""
    whole, how = stops()[0]
    run("tiny", [*stops(), (whole, {"stalls": how["stalls"]})])


def check_reset_in_flight():
    whole = random_episode(params(SIZES["tiny"]), random.Random(5), 12)
    how = {"stalls": STALLS[1]}
    run("tiny", [x for cut_at in (1, 7, 43, 160) for x in ((whole, how | {"cut_at": cut_at}), (whole, how))])
