"""Retriever: registers, copies and bursts equal to a reference, cycles to the time view; stalls, faults, mutants."""

import random
from functools import cache

import pytest

from hdl.emit import Emitted, emit
from sim.retriever import RetrieverTime
from tb.retrievals import SIZES, Episode, random_episode
from tb.runner import Run
from tb.transfers import PAGE, params

PORTS = ("c", "t", "w", "x", "b", "clear", *(f"bus__{n}" for n in ("ar", "r", "aw", "w", "b")))
STALLS = [{}, dict.fromkeys(PORTS, 0.4), {"bus__w": 0.8, "bus__aw": 0.5}, {"bus__r": 0.7, "bus__ar": 0.8}]


@cache
def emitted(size: str) -> Emitted:
    return emit("retriever", params(SIZES[size]))


def run(size: str, episodes: list[tuple[Episode, dict]], seed=1, unit: Emitted | None = None, waves=True) -> list[dict]:
    """Results of the bench, compared."""
    config = {"params": SIZES[size], "episodes": [e.config(**how) for e, how in episodes]}
    got = Run(unit or emitted(size), "tb.bench_retriever", "retrieves", config, seed, waves)()["episodes"]
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
        waits = perf.pop("waits")
        assert waits <= got["done"][-1][0]
        assert perf == {
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


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size):
    rng = random.Random(1)
    p = params(SIZES[size])
    run(size, [(random_episode(p, rng, 24), {"stalls": stalls}) for stalls in STALLS])


@pytest.mark.parametrize("size", SIZES)
def test_takes_the_cycles_of_the_time_view(size):
    rng = random.Random(2)
    p = params(SIZES[size])
    cases = [(random_episode(p, rng, 20), latency) for latency in (1, 4, 60)]
    results = run(size, [(e, {"latency": (latency, latency)}) for e, latency in cases])
    for (e, latency), got in zip(cases, results, strict=True):
        want = RetrieverTime(p, latency).run(e.c, e.places, e.b)
        first = got["taken"][0]
        cycles = {
            **{name: got[name] for name in ("taken", "news", "places", "fetched", "read", "written")},
            **{name: [cycle for cycle, *_ in got[name]] for name in ("reads", "writes", "sets", "done")},
            "clears": [cycle for cycle, _ in got["clear"]],
        }
        assert {name: [t - first for t in cycles[name]] for name in cycles} == vars(want)
