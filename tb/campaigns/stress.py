"""Stress: random traffic of a unit, seed after seed, every beat compared with golden.

A seed chooses the size (any of the unit's test file), the data and the stalls; what it plays can be played again.
"""

import json
import random
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from golden.program.isa import LoadTo, StoreTo
from tb.campaigns.subjects import test_module

_LIMIT = {"limit": 1_000_000}  # cycles; no run needs as many


def _stall(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, 0.2, 0.5, 0.8))


def _hcu(t, rng: random.Random) -> int:
    p, seed = t.SIZES[rng.choice(list(t.SIZES))], rng.getrandbits(31)
    th_hd = rng.randint(0, p.n_hp + 1)
    beats = t.stream(p, seed, 3000, p.n_ctx, rng.choice((0.0, 0.01, 0.1)))
    got = t.run(t.emitted(p), p, beats, th_hd, _stall(rng), _stall(rng), seed)
    assert got["beats"] == t.golden(p, th_hd, beats)[0]
    return len(beats)


def _wtu(t, rng: random.Random) -> int:
    p = t.SIZES[rng.choice(list(t.SIZES))]
    ratio = rng.choice((0, 1, 19661, 65535, 65536, rng.randrange(65537)))
    stalls = [(_stall(rng), _stall(rng), rng.choice((0, 9))) for _ in range(4)]
    episodes = [t.episode(p, rng.getrandbits(31), ratio, a, b, n=300, late=late) for a, b, late in stalls]
    for e, got in zip(episodes, t.run(t.emitted(p), p, [e | _LIMIT for e in episodes]), strict=True):
        wrong = t.differs(p, e, got)
        assert not wrong, wrong
    return sum(len(e["words"]) for e in episodes)


def _cluster_set(t, rng: random.Random) -> int:
    p = t.SIZES[rng.choice(list(t.SIZES))]
    e = t.episode(t.rows(p, rng.getrandbits(31), 1000), [(_stall(rng), _stall(rng)) for _ in range(3)])
    (got,) = t.run(t.emitted(p), p, [e])
    assert [v for _, v in got["o"]] == t.listing(t.unions(p, e["beats"]))
    return len(e["beats"])


def _kvmu(t, rng: random.Random) -> int:
    p, seed = t.SIZES[rng.choice(list(t.SIZES))], rng.getrandbits(31)
    stalls = [{name: _stall(rng) for name in "afwxb"} for _ in range(3)]
    e = t.episode(p, *t.traffic(p, seed, 6000, rng.choice((0.0, 0.02, 0.06))), stalls)
    (got,) = t.run(t.emitted(p), p, [e])
    t.check(p, e, got)
    return len(e["a"]) + len(e["f"])


def _dpe(t, rng: random.Random) -> int:
    p, seed = t.SIZES[rng.choice(list(t.SIZES))], rng.getrandbits(31)
    traffic = t.traffic(p, seed, 800)
    assert traffic.run(t.emitted(p), seed, _stall(rng), _stall(rng))["beats"] == traffic.wants
    return len(traffic.wants)


def _vpe(t, rng: random.Random) -> int:
    p = t.SIZES[rng.choice(list(t.SIZES))]
    e = t.Episode(p, t.random_rows(p, rng.getrandbits(31), 3000), [tuple(_stall(rng) for _ in range(3)) for _ in "ab"])
    (got,) = t.run(t.emitted(p), p, [e])
    e.check(got)
    return len(e.want)


def _transfers(target: object) -> Callable:
    def play(t, rng: random.Random) -> int:
        size = rng.choice(list(t.SIZES))
        p = t.params(t.SIZES[size])
        programs = [t.random_transfers(p, rng, 24, t.TARGETS, target) for _ in range(6)]
        cases = [t.case(size, commands, rng.choice(t.STALLS)) for commands in programs]
        t.run(size, cases)
        return sum(len(e["want"].words) + len(e["want"].bursts) for e in cases)

    return play


def _retriever(t, rng: random.Random) -> int:
    size = rng.choice(list(t.SIZES))
    episodes = [t.random_episode(t.params(t.SIZES[size]), rng, 24) for _ in range(8)]
    t.run(size, [(e, {"stalls": rng.choice(t.STALLS)}) for e in episodes])
    return sum(len(e.signals) + len(e.reads) + len(e.writes) for e in episodes)


def _feeder(t, rng: random.Random) -> int:
    size = rng.choice(list(t.SIZES))
    programs = [t.random_words(size, rng, 40) for _ in range(6)]
    t.run(size, [t.episode(size, words, rng.choice(t.STALLS), clears) for words, clears in programs])
    return sum(len(words) for words, _ in programs)


def _sequencer(t, rng: random.Random) -> int:
    size = rng.choice(list(t.SIZES))
    programs = [t.random_program(t.core(size), rng.getrandbits(31)) for _ in range(12)]
    delays = (1, rng.choice((1, 9, 40)))
    got = t.play(t.emitted(size), size, [{"host": t.host(w)} for w in programs], delays, _stall(rng), _stall(rng))
    registers, steps = {}, 0
    for words, run in zip(programs, got, strict=True):
        want = t.trace(t.core(size), words, registers)
        assert t.given(run) == t.beats(want.steps)
        assert t.ended(run) == (t.Status.DONE, want.pc)
        registers, steps = dict(enumerate(want.registers)), steps + len(want.steps)
    return steps


def _arbiter(t, rng: random.Random) -> int:
    how = {"cores": rng.randint(1, 3), "bursts": 40, "errors": rng.choice((0.0, 0.1))}
    stalls = [{n: _stall(rng) for n in ("", "w", "r")} for _ in range(4)]
    runs = [t.Traffic(**how, stalls=s, latency=(0, rng.choice((0, 9, 40))), seed=rng.getrandbits(20)) for s in stalls]
    t.play(runs)
    return sum(len(m["ar"]) + len(m["aw"]) for r in runs for m in r.managers)


def _dre(t, rng: random.Random) -> int:
    shape, seed = rng.choice(list(t.SHAPES)), rng.getrandbits(31)
    s = t.play(t.params(shape), seed, 80)
    wrong = s.differences(t.run(t.emitted(shape), s, _stall(rng), _stall(rng), seed))
    assert not wrong, wrong
    return sum(len(getattr(s, name)) for name in "twxb")


def _lxe(t, rng: random.Random) -> int:
    """Programs of every kind of instruction, in the cycles of the time view."""
    t, latency = import_module("tb.tests.sim.test_lxe_time"), rng.choice((1, 9, 30))
    programs = [t.Program(rng.getrandbits(31)).out for _ in range(12)]
    for program, got in zip(programs, t.play(t.emitted(), programs, latency), strict=True):
        wrong = t.differences(t.timed(program, latency), got)
        assert not wrong, wrong
    return sum(map(len, programs))


def _core(t, rng: random.Random) -> int:
    seed, how = rng.getrandbits(31), rng.choice(((), (t.GROUPS, t.AHEAD), (t.GROUPS, t.AWAY), (t.RING,)))
    h, script, _ = t.passes(seed, rng.randint(2, 7), *how)
    ran, after = script.play(t.emitted(), t.ports(h), rng.choice((0.0, 0.2, 0.5)), seed=seed)
    wrong = script.differences(ran, after)
    assert not wrong, wrong
    return ran[-1].perf["lxe.sequencer.instructions"]


def _core_ip(t, rng: random.Random) -> int:
    seed = rng.getrandbits(31)
    h, script, _ = t.passes(seed, rng.randint(1, 3))
    return t.play(t.emitted(), h, script, rng.choice((0.0, 0.3)), seed)[-1].perf["lxe.sequencer.instructions"]


def _dre_ip(t, rng: random.Random) -> int:
    seed = rng.getrandbits(31)
    s = t.frames(seed, rng.randint(4, 20))
    if rng.random() < 0.2:
        s.fill(rng.randrange(s.p.kvmu.n_ctx))
    s.check(s.play(t.emitted(), rng.choice((0.0, 0.5)), rng.choice((0.0, 0.3)), seed))
    return len(s.wants)


_PLAYS = {
    **{"hcu": _hcu, "wtu": _wtu, "cluster_set": _cluster_set, "kvmu": _kvmu, "dpe": _dpe, "vpe": _vpe},
    **{"loader": _transfers(LoadTo.VECTOR), "storer": _transfers(StoreTo.MEMORY), "retriever": _retriever},
    **{"feeder": _feeder, "sequencer": _sequencer, "arbiter": _arbiter},
    **{"dre": _dre, "lxe": _lxe, "core": _core, "dre_ip": _dre_ip, "core_ip": _core_ip},
}
UNITS = tuple(_PLAYS)
SLOW = {"dre": 4, "lxe": 50, "core": 100, "core_ip": 200, "dre_ip": 100}  # transactions of a join are larger


def play(unit: str, seed: int) -> int:
    """One seed's traffic; the transactions compared. Raises `AssertionError`, of the bench or of the comparison."""
    return _PLAYS[unit](import_module(test_module(unit)), random.Random(f"{unit} {seed}"))


def campaign(unit: str, count: int, folder: Path) -> Iterator[int]:
    """Seeds 1, 2, ... until `count` transactions are compared; those so far, after each. Raises as `play`.

    What was played is kept in `folder`, a line a seed: a later campaign goes on behind it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{unit}.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    total, seed = sum(d["transactions"] for d in done), len(done)
    yield total
    while total < count:
        seed += 1
        n = play(unit, seed)
        with kept.open("a") as f:
            f.write(json.dumps({"seed": seed, "transactions": n}) + "\n")
        total += n
        yield total
