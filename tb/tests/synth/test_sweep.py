"""Sweeps: spaces, the join of shared unit times, results that survive every fault, the front, the search."""

import importlib
import itertools
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import dask
import numpy as np
import pytest
import yaml
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.emit import emit
from openvrex.hdl.params import flat, override, preset
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.main import app
from openvrex.scripts.size.sweep_command import LONG
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.wtu_cores_time import WtuCores
from openvrex.sim.units.wtu_time import WtuTime
from openvrex.synth import flow
from openvrex.synth.flow import MemoryMacro
from openvrex.synth.sram import Sram
from openvrex.synth.sweep import dask_run, energy, pareto_front, point_costs, points, search
from openvrex.synth.sweep.dask_run import ClusterError, Estimate, Sweep
from openvrex.synth.sweep.database import Database, DatabaseError, Row
from openvrex.synth.sweep.energy import Energy
from openvrex.synth.sweep.point_costs import RECORDED, UNITS, Settings, Task
from openvrex.synth.technology import node
from openvrex.tb.library.dre_scenario import Scenario
from openvrex.tb.library.runner import ROOT, Run
from openvrex.tb.library.trace_check import scenario, tables
from tb.tests.by_day import by_day

TINY = ("tiny", ["blocks=128", "counts=32", "entry_bytes=512"])


def vrex(*args):
    own = () if "--trace" in args else ("--trace", FIXTURE)
    return CliRunner().invoke(app, ["sweep", *map(str, (*args, *own))])


def asked(**other) -> Settings:
    options = {"queries": 2, "liberty": [], "effort": "area", "target": None, "node": 14}
    return Settings.of(FIXTURE, **options | other)


# The space.


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("N_HCU=1,2,4", "hcu.n_h", "1 2 4"),
        ("N_HCU-w=8", "hcu.n_w", "8"),
        ("N_WTU-h=1..3", "wtu.n_h", "1 2 3"),
        ("clusters=64..1024*4", "clusters", "64 256 1024"),
        ("kvmu.recent=1..10:4,64", "kvmu.recent", "1 5 9 64"),
        ("Th_r-wics=0.3,0.5", "ratio", "0.3 0.5"),
        ("selection=exact,buckets", "selection", "exact buckets"),
    ],
)
def test_axis(text, name, values):
    axis = points.axis(text)
    assert (axis.name, axis.values) == (name, tuple(values.split()))
    assert axis.ordered == (name != "selection")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["n_w"], "must look like"),
        (["n_w="], "must look like"),
        (["n_w=1,,2"], "an empty value"),
        (["N_HCU=8..2"], "a range from 8 to 2 holds nothing; write 2..8"),
        (["N_HCU=1..8:0"], "step must be at least 1"),
        (["N_HCU=1..8*1"], "factor is 2 or more"),
        (["N_HCU=0..8*2"], "starts at 1 or more"),
        (["N_HCU=1..x"], "must look like 1..8"),
        (["N_HCU=1..9999999999"], "more than 1000000 values"),
        (["N_HCU=1,2,1"], "is given twice"),
        (["N_HCU=1,two"], "numbers and words"),
        (["N_HCU=1,2", "hcu.n_h=4"], "both set the same parameter"),
        (["N_HCU=1,2", "n_h=4"], "both set the same parameter"),
        (["n_ctx=2"], "both set the same parameter"),
        ([], "give at least one"),
        (["N_HCU=1..2000", "N_WTU=1..2000"], "a grid has at most 1000000"),
    ],
)
def test_contradictory_axes(texts, message):
    with pytest.raises(ParamError, match=message):
        list(points.points(points.axes(texts, ["n_ctx=1"]), False))


def test_different_units_are_no_contradiction():
    assert len(points.axes(["hcu.n_h=1", "wtu.n_h=1", "N_HCU-w=8"], ["N_WTU-w=4"])) == 3


def test_grid_and_list():
    axes = points.axes(["N_HCU=1,2", "N_WTU=3,4"], [])
    grid = [tuple(p.values()) for p in points.points(axes, False)]
    assert grid == [("1", "3"), ("1", "4"), ("2", "3"), ("2", "4")]
    assert [tuple(p.values()) for p in points.points(axes, True)] == [("1", "3"), ("2", "4")]
    with pytest.raises(ParamError, match="N_HCU has 2, N_WTU has 1"):
        list(points.points(points.axes(["N_HCU=1,2", "N_WTU=3"], []), True))


def test_a_point_means_a_design():
    d = points.design("tiny", ["N_hp=32", "recent=8"], {"hcu.n_h": "4", "th_hd": "5", "ratio": "0.5"})
    assert (d.system.core.dre.hcu.n_h, d.system.core.dre.wtu.n_h) == (4, 1)
    assert (d.function.n_hp, d.function.th_hd, d.function.ratio_q16, d.function.recent) == (32, 5, 32768, 8)
    for point in ({"th_hd": "1.5"}, {"ratio": "2"}, {"hcu.n_w": "3"}, {"n_q": "1"}):
        with pytest.raises(ParamError):
            points.design("tiny", [], point)


# Evaluation.


@pytest.fixture(scope="module")
def fixture_trace():
    return Trace.load(FIXTURE)


def timed(design, objectives=("cycles", "bytes")):
    """Objectives of a design, its tasks run here."""

    def result(task):
        return task.function(*task.arguments, *map(result, task.inputs))

    return result(point_costs.task(design, objectives, asked()))


@pytest.mark.parametrize(
    "assign",
    [[], ["hcu.n_h=4", "recent=4"], ["counts=32", "selection=buckets", "wtu.n_w=8"], ["clusters=4", "th_hd=2"]],
)
def test_shared_times_join_to_the_dre(assign, fixture_trace):
    """What units cost apart, joined, is what `sim.units.dre_time` gives for them together, which Verilator counts."""
    d = points.design(
        TINY[0], TINY[1] + [a for a in assign if "th_hd" not in a], {}, th_hd=2 if "th_hd=2" in assign else 7
    )
    p, got = d.system.core.dre, timed(d)
    parts: dict[str, list[int]] = {"keys": [], "switch": [], "query": []}
    fetched = []
    for table in tables(fixture_trace, d.function, 2):
        s, _ = scenario(table, p, d.function)
        s.device_base = s.home_base = point_costs.BASE
        cycles = s.phase_cycles(point_costs.LATENCY)
        at = [i for i, phase in enumerate(s.phases) if "rows" in phase]
        for back, name in enumerate(reversed(parts)):
            parts[name] += [cycles[i - back] for i in at]
        fetched += [q.traffic.fetched_bytes for q in s.queries]
    for name, own in parts.items():
        assert got[f"cycles.{name}"] == np.mean(own), name
    assert got["cycles"] == sum(np.mean(own) for own in parts.values())
    assert got["bytes"] == np.mean(fetched)


def rows(p, seed, n=14):
    """Keys, then rows of every kind: peaked, of ties, of zeros."""
    rng, nrng = random.Random(seed), np.random.default_rng(seed)
    s = Scenario(p, replace(p.function(), th_hd=1))
    for _ in range(3):
        s.keys(0, [rng.getrandbits(p.hcu.n_hp) & 0x3F3F for _ in range(12)])
        top, c = (1 << p.wtu.score.bits) - 1, len(s.model.tables[0])
        kinds = [
            np.maximum(0, top - nrng.exponential(rng.choice([1, 30, 100, 400]), c)).astype(int),
            np.full(c, rng.randrange(top)),
            nrng.integers(0, top, c),
            np.where(nrng.random(c) < 0.9, 0, top - 3),
        ]
        s.switch(0)
        s.query(np.stack([kinds[rng.randrange(4)][nrng.permutation(c)] for _ in range(n)]))
    return s


@pytest.mark.parametrize(
    "assign",
    [
        ["wtu.n_h=3", "hcu.n_h=2", "counts=32"],
        pytest.param(["wtu.n_h=3", "selection=buckets", "counts=32"], marks=pytest.mark.nightly),
    ],
)
def test_cores_equal_rtl(assign):
    """Several WTU cores in the DRE's RTL: every query block ends in the cycle that the time view gives."""
    p = override(preset("tiny"), assign).core.dre
    for seed in (1, 2):
        s = rows(p, seed)
        got = Run(emit("dre", p), "bench_dre", "phases", s.config(), seed)()
        assert s.differences(got) == []
        ends = [b - a for a, b in zip(got["first"], got["ends"], strict=True)]
        queries = iter(zip(s.queries, s.blocks, strict=True))
        time = DreTime(p, s.f.th_hd, got["latency"])
        t = iter(s.t)
        for phase, cycles in zip(s.phases, ends, strict=True):
            if "keys" in phase:
                beats = [(k["op"], k["ctx"], k["hash"], k["last"]) for k in phase["keys"]]
                assert cycles == time.keys(beats, [next(t).get("cluster", 0) for _ in beats]).w[-1]
                continue
            q, (_, codes) = next(queries)
            last = WtuCores(p.wtu).run([(row, q.counts) for row in codes], s.f.ratio_q16)[-1]
            assert cycles == last + time.fetch(0, q.clusters).b[-1]


@pytest.mark.parametrize("assign", [["counts=32"], ["counts=32", "selection=buckets"]])
def test_one_core_is_the_unit_and_more_are_no_slower(assign):
    p = override(preset("tiny"), assign).core.dre.wtu
    s = rows(override(preset("tiny"), assign).core.dre, 5)
    for q, (_, codes) in zip(s.queries, s.blocks, strict=True):
        own = [(row, q.counts) for row in codes]
        first, ends = WtuTime(p).run(own, s.f.ratio_q16)
        assert (WtuCores(p).run(own, s.f.ratio_q16) == ends - first[0]).all()
        lasts = [WtuCores(replace(p, n_h=n)).run(own, s.f.ratio_q16)[-1] for n in (1, 2, 4, 20)]
        assert lasts == sorted(lasts, reverse=True)
        assert lasts[0] > lasts[2]


def test_refused_keys_are_an_error():
    with pytest.raises(ParamError, match="keys of the trace are refused; give more"):
        timed(points.design("tiny", ["blocks=8"], {}))


def distinct(designs, objectives) -> list[str]:
    keys = {}

    def walk(task):
        keys[task.key] = task.kind
        for t in task.inputs:
            walk(t)

    for d in designs:
        walk(point_costs.task(d, objectives, asked()))
    return sorted(keys.values())


def test_points_share_what_their_units_share():
    """100 points of 10 HCUs and 10 WTUs of one width: 10 syntheses of HCUs and one of each other unit."""
    grid = [
        points.design("core", [], {"count_bits": "16", "hcu.frame": str(f), "wtu.n_h": str(h)})
        for f in range(1, 11)
        for h in range(1, 11)
    ]
    kinds = distinct(grid, ("cycles", "area", "fmax"))
    assert {k: kinds.count(k) for k in dict.fromkeys(kinds)} == {
        "point": 100,
        "stream": 1,
        "table cycles": 10,
        "wtu cycles": 10,
        "hcu synthesis": 10,
        "wtu synthesis": 1,
        "cluster_set synthesis": 1,
        "kvmu synthesis": 1,
        "table_port synthesis": 1,
    }
    kinds = distinct(grid, ("energy",))
    assert {k: kinds.count(k) for k in kinds if "energy" in k} == {
        "hcu energy": 10,
        "wtu energy": 1,
        "cluster_set energy": 1,
        "kvmu energy": 1,
    }
    assert kinds.count("hcu synthesis") == 10
    assert not [k for k in distinct(grid, ("cycles", "bytes")) if "synthesis" in k or "energy" in k]
    assert not [k for k in distinct(grid, ("area",)) if "cycles" in k or k == "stream"]


def test_keys_tell_points_apart():
    base, s = points.design("tiny", [], {}), asked()
    other = [points.design("tiny", [], p) for p in ({"hcu.n_h": "2"}, {"th_hd": "5"}, {"recent": "8"})]
    assert len({point_costs.key_of(d, s) for d in (base, *other)}) == 4
    for change in ({"queries": 1}, {"node": 7}, {"effort": "speed"}, {"effort": "speed", "target": 900.0}):
        assert point_costs.key_of(base, asked(**change)) != point_costs.key_of(base, s)
    assert point_costs.key_of(base, replace(s, trace="/elsewhere", build="/elsewhere")) == point_costs.key_of(base, s)
    assert point_costs.key_of(base, replace(s, code="other")) != point_costs.key_of(base, s)


# Running, resuming and failing: tasks of the tests' own on threads of this process.

ran: list[tuple[int, int]] = []  # generation and number of each evaluation


def work(n: int, generation: int, *_: object) -> dict[str, float]:
    ran.append((generation, n))
    if n == 13:
        raise ValueError("thirteen: unlucky")
    return {"cycles": float(n), "area": 100.0 / n}


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as c:
        yield c


class Stub(Sweep):
    """Evaluates points {"n": N} by `work`; in a new generation Dask knows nothing of those before."""

    generation = 0

    def task(self, n, objectives, _):
        return Task("point", work, (n, self.generation, objectives, str(self.database.path)))

    def ran(self) -> list[int]:
        return sorted(n for generation, n in ran if generation == self.generation)


@pytest.fixture
def sweep(client, tmp_path, monkeypatch):
    ran.clear()
    with Database(tmp_path / "sweep.db") as database:
        s = Stub(asked(), ("cycles", "area"), lambda p: int(p["n"]), database, lambda: client)
        monkeypatch.setattr(point_costs, "task", s.task)
        yield s


def numbers(*n: int) -> list[dict]:
    return [{"n": str(i)} for i in n]


def test_a_failing_point_is_recorded_and_the_sweep_goes_on(sweep):
    found = sweep.run(numbers(1, 13, 2))
    assert [r.result for r in found] == [{"cycles": 1, "area": 100}, {}, {"cycles": 2, "area": 50}]
    assert [r.error for r in found] == ["", "thirteen: unlucky", ""]
    kept = sqlite3.connect(sweep.database.path)
    assert sorted(kept.execute("SELECT point, error FROM points")) == [
        ('{"n": "1"}', ""),
        ('{"n": "13"}', "thirteen: unlucky"),
        ('{"n": "2"}', ""),
    ]
    kept.close()
    sweep.generation = 1
    sweep.run(numbers(1, 13, 2, 3))
    assert sweep.ran() == [3, 13], "what failed is tried again, what is known is not"


def test_an_impossible_point_is_recorded(sweep):
    def design(point):
        raise ParamError("n=7: must not be seven")

    sweep.design = lambda p: int(p["n"]) if p["n"] != "7" else design(p)
    assert [r.error for r in sweep.run(numbers(7, 8))] == ["n=7: must not be seven", ""]
    assert sweep.ran() == [8]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_an_interrupted_sweep_resumes(sweep, stop):
    """Stopped after five points: these are kept, and the next run evaluates the others alone, with the same result."""
    wanted, ended = numbers(*range(20, 40)), []

    def progress(n, left):
        ended.append(n)
        if sum(ended) == 5:
            raise stop

    sweep.progress = progress
    with pytest.raises((stop, ClusterError)):
        sweep.run(wanted)
    kept = set(sweep.database.get(point_costs.key_of(int(p["n"]), sweep.settings) for p in wanted))
    assert len(kept) == 5
    sweep.generation = 1
    sweep.progress = lambda n, left: None
    assert [r.result["cycles"] for r in sweep.run(wanted)] == list(range(20, 40))
    assert len(sweep.ran()) == len(set(sweep.ran())) == 15
    sweep.connect = lambda: pytest.fail("nothing is left to evaluate")
    assert len(sweep.run(wanted)) == 20


def test_further_objectives_are_added(sweep):
    sweep.objectives = ("cycles",)
    sweep.run(numbers(1))
    sweep.objectives = ("cycles", "bytes")
    sweep.run(numbers(1))
    assert sweep.ran() == [1, 1], "the result lacks an objective"


def test_points_of_one_design_are_evaluated_once(sweep):
    seen = []
    sweep.progress = lambda n, left: seen.append((n, left is not None))
    assert [r.result["cycles"] for r in sweep.run([{"n": "4"}, {"n": "04"}])] == [4, 4]
    assert sweep.ran() == [4]
    assert seen == [(0, False), (0, True), (2, True)], "known points, the first estimate, both points at once"


# Every parameter is an axis: two values of it that make a design, on a fresh database, all objectives.

WORDS = {"true": "false", "false": "true", "none": "parity", "exact": "buckets", "e4m7": "e4m6", "resv": "buckets"}
OTHERS = {"kvmu.kv4_group": "16", "vpe.features": "hybrid", "kvmu.kept": "4"}  # of parameters that few values suit
NAMES = [*flat(preset("tiny")), *points.FUNCTION]


def values(name: str) -> tuple[str, list[str]]:
    """The axis that a parameter makes, bare where units share it, and two legal values of it."""

    def legal(axis: str, value: str) -> bool:
        try:
            points.design(*TINY, {axis: value})
        except ParamError:
            return False
        return True

    now = (flat(points.design(*TINY, {}).system) | {"th_hd": str(ReSVParams.th_hd), "ratio": "0.2"})[name]
    n, now = int(now) if now.isdigit() else 0, now or "none"
    tried = [str(v) for v in (2 * n, n // 2, n + 1, 0.5)]
    if name in OTHERS or now in WORDS:
        tried = [OTHERS[name] if name in OTHERS else WORDS[now]]
    for axis, value in itertools.product((name, name.rpartition(".")[2]), tried):
        if value != now and legal(axis, value):
            return axis, [now, value]
    pytest.fail(f"{name}: no second value makes a design")


@pytest.fixture(scope="module")
def designs(tmp_path_factory):
    """A database of all axes, so that the design they start from is computed once."""
    with Database(tmp_path_factory.mktemp("axes") / "sweep.db") as database:
        yield database


def test_every_parameter_has_two_values():
    """Which make different designs, by the names under which results are kept."""
    base = asked()
    for name in NAMES:
        axis, two = values(name)
        assert len({point_costs.key_of(points.design(*TINY, {axis: value}), base) for value in two}) == 2, name


@pytest.mark.parametrize("name", by_day(NAMES, *NAMES[::8]))
def test_every_parameter_is_an_axis(name, client, designs, monkeypatch):
    monkeypatch.setattr(point_costs, "built", lambda unit, *_: point_costs.Built(100.0, (), 20.0, ""))
    monkeypatch.setattr(point_costs, "energy", lambda unit, *_: Energy(1.0, 2.0))
    axis, two = values(name)
    own = Sweep(asked(), tuple(point_costs.OBJECTIVES), partial(points.design, *TINY), designs, lambda: client)
    found = own.run([{axis: value} for value in two])
    assert [row.error for row in found] == ["", ""]
    assert all(o in row.result for row in found for o in point_costs.OBJECTIVES)
    assert pareto_front.front_of(found, own.objectives)


@pytest.mark.parametrize(
    ("axis", "objective", "search"),
    [("N_DPE=4,8", "cycles", []), ("th_hd=3,7", "area", []), ("lxe.copies=1,2", "cycles", ["--search", 2])],
)
def test_points_that_no_objective_tells_apart(axis, objective, search, client, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_run, "cluster", lambda *args: nullcontext(client))
    monkeypatch.setattr(point_costs, "built", lambda unit, *_: point_costs.Built(100.0, (), 20.0, ""))
    found = vrex(axis, "--objective", objective, *search, "--preset", "tiny", "-p", "blocks=128", "-o", tmp_path)
    assert found.exit_code == 0, found.output
    assert found.stderr.count("2 points, ends about") == 1, "from the start, once in a log"
    assert len((tmp_path / "points.csv").read_text().splitlines()) == 3


def test_other_code_on_a_worker_is_an_error(sweep):
    sweep.settings = replace(sweep.settings, code="older")
    assert "other code than the sweep" in sweep.run(numbers(1))[0].error


def test_a_full_disk_keeps_what_is_there(sweep):
    sweep.run(numbers(1))
    sweep.database._execute(f"PRAGMA max_page_count={sweep.database._execute('PRAGMA page_count')[0][0]}")
    with pytest.raises(DatabaseError, match="the disk is full; results so far are kept: free space and run the same"):
        sweep.run([{"n": str(n), "filling": "x" * 5000} for n in range(2, 9)])
    sweep.database._execute("PRAGMA max_page_count=100000")
    sweep.generation = 1
    assert sweep.run(numbers(1))[0].result["cycles"] == 1
    assert sweep.ran() == []


def test_files_that_are_no_database(tmp_path):
    (tmp_path / "text.db").write_text("hello " * 200)
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="not a file of results; choose another -o"):
        Database(tmp_path / "text.db")
    with pytest.raises(DatabaseError, match="cannot be made"):
        Database(tmp_path / "file" / "sweep.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version=9")
    newer.close()
    with pytest.raises(DatabaseError, match="of version 9, this is 1"):
        Database(tmp_path / "newer.db")


def test_estimate():
    e = Estimate()
    shared = Task("unit", work, (1,))
    tasks = [Task("point", work, (i,), (shared,)) for i in range(4)]
    for t in tasks:
        e.expect(t)
    assert e.remaining(1) == 4 * dask_run.EXPECTED["point"] + 1, "no kind was seen, one is not known"
    e.done(tasks[0], {shared.key: 30.0, tasks[0].key: 2.0})
    assert e.remaining(1) == 6
    assert e.remaining(2) == 3
    assert e.remaining(0) is None
    e.done(tasks[1], {})
    assert e.remaining(1) == 4, "a point that failed is not expected any more"


# Clusters.


def test_an_unreachable_scheduler_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_run, "CONNECT", 1)
    found = vrex("N_HCU=1,2", "--scheduler", "tcp://127.0.0.1:9", "--objective", "cycles", "-o", tmp_path)
    assert found.exit_code == 2
    assert "tcp://127.0.0.1:9: no scheduler answers within 1 s; start one with 'dask scheduler'" in found.stderr


def test_a_scheduler_that_accepts_and_says_nothing_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_run, "CONNECT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(dask_run.ClusterError, match=f"^{address}: no scheduler answers within 0.1 s; start"):
            dask_run._client(address, dask_run.CONNECT)


@pytest.fixture
def by_hand(tmp_path):
    """A scheduler and two workers as a user starts them."""
    env = {**os.environ, "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "0"}
    command = partial(subprocess.Popen, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path, env=env)
    dask = (
        [sys.executable, "-m", "distributed.cli.dask_scheduler"],
        [sys.executable, "-m", "distributed.cli.dask_worker"],
    )
    file = tmp_path / "scheduler.json"
    options = ["--scheduler-file", str(file), "--no-dashboard"]
    started = [command([*dask[0], *options, "--port", "0", "--host", "127.0.0.1"])]
    while not file.exists():
        assert started[0].poll() is None
        time.sleep(0.1)
    address = json.loads(file.read_text())["address"]
    started += [command([*dask[1], address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]) for _ in range(2)]
    yield address, started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_workers_and_a_scheduler_that_die(by_hand, tmp_path, monkeypatch):
    """A worker killed half-way: nothing is lost. Then the scheduler: one line, and what was done is kept."""
    address, (scheduler, worker, _) = by_hand

    def slow(n):  # within the test, so that workers need not import this file
        time.sleep(0.2)
        return {"cycles": float(n)}

    monkeypatch.setattr(dask_run, "CONNECT", 5)
    monkeypatch.setattr(point_costs, "task", lambda n, objectives, s: Task("point", slow, (n,), salt=str(tmp_path)))
    done = []

    def progress(n, left):
        done.extend([left] * n)
        if len(done) == 4:
            worker.send_signal(signal.SIGKILL)
        if len(done) == 12 + 12 + 4:
            scheduler.send_signal(signal.SIGKILL)

    with Database(tmp_path / "sweep.db") as database, dask_run.cluster(address) as client:
        client.wait_for_workers(2, timeout=600)
        sweep = Sweep(asked(), ("cycles",), lambda p: int(p["n"]), database, lambda: client, progress)
        found = sweep.run(numbers(*range(12)))
        assert [(r.error, r.result.get("cycles")) for r in found] == [("", n) for n in range(12)]
        assert len(client.scheduler_info()["workers"]) == 1
        with pytest.raises(ClusterError, match="results so far are kept: run the same command again"):
            sweep.run(numbers(*range(40)))
        known = database.get(point_costs.key_of(n, sweep.settings) for n in range(40))
        assert 12 < len(known) < 40
        assert not any(row.error for row in known.values())


FAKES = {  # a queue of one machine that runs a job at once
    "slurm": {"sbatch": 'cp "$1" job; sh job >/dev/null 2>&1 & echo "Submitted batch job $!"', "scancel": 'kill "$@"'},
    "lsf": {"bsub": 'cat > job; sh job >/dev/null 2>&1 & echo "Job <$!> is submitted"', "bkill": 'kill "$@"'},
}


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Makes a queue; returns the file in which it writes what it was asked."""

    def make(name: str):
        for command, text in FAKES[name].items():
            (tmp_path / command).write_text(f"#!/bin/sh\necho {command} >> {tmp_path}/log\n{text}\n")
            (tmp_path / command).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.chdir(tmp_path)
        return tmp_path / "log"

    return make


@pytest.mark.parametrize("name", by_day(FAKES, "slurm"))
def test_jobs_of_a_queue(name, queue):
    log = queue(name)
    with dask_run.cluster(jobs=name, workers=1) as client:
        assert client.submit(sum, [1, 2]).result(timeout=600) == 3
    assert set(log.read_text().split()) == set(FAKES[name]), "the job is submitted and ended"


def test_slurm_as_the_manual_has_it(queue, tmp_path):
    """The manual's jobqueue.yaml asks Slurm for what the manual says, and its workers start."""
    text = (ROOT / "docs" / "sweeps.md").read_text().replace("/shared/vrex", str(tmp_path))
    asked, job = (re.search(rf"```{kind}\n(.*?)```", text, re.S)[1] for kind in ("yaml", "sh"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    own = {f"jobqueue.slurm.{n}": v for n, v in yaml.safe_load(asked)["jobqueue"]["slurm"].items()}
    importlib.import_module("dask_jobqueue")  # which puts its defaults into the configuration
    queue("slurm")
    with dask.config.set(own), dask_run.cluster(jobs="slurm", workers=1) as client:
        assert client.submit(sum, [1, 2]).result(timeout=600) == 3
    script = (tmp_path / "job").read_text()
    for line in ("-p short", "-A my-project", "-t 01:00:00", "--mem=4G", f"-o {tmp_path}/logs/"):
        assert f"#SBATCH {line}" in script
    assert "--lifetime 55m" in script
    assert subprocess.run(["bash", "-n"], input=job, text=True, check=False).returncode == 0
    assert "--cluster slurm" in job


@pytest.mark.nightly
def test_a_job_that_reaches_its_wall_time_has_a_successor(queue):
    log = queue("slurm")
    with dask_run.cluster(jobs="slurm", workers=1) as client:
        first = client.submit(os.getppid).result(timeout=600)
        os.kill(first, signal.SIGTERM)  # as Slurm does
        while client.submit(os.getppid, pure=False).result(timeout=600) == first:
            time.sleep(0.1)
    assert log.read_text().split().count("sbatch") >= 2


def test_ctrl_c_does_not_reach_the_workers():
    """A terminal sends it to all processes; a worker that took it would end in a traceback on the screen."""
    with dask_run.cluster(workers=1) as client:
        masked = client.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result(timeout=600)
        assert signal.SIGINT in masked
        worker = client.submit(os.getpid).result(timeout=600)
        os.kill(worker, signal.SIGINT)
        assert client.submit(os.getpid, pure=False).result(timeout=600) == worker
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "but this process"


def test_workers_keep_freed_memory(monkeypatch):
    """As other processes do, and with one thread for each product; Dask would have them return it at once."""
    names = ("MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with dask_run.cluster(workers=1) as client:
        assert client.gather(client.map(os.environ.get, names)) == [None, "1"]


def test_a_queue_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="there is no sbatch here"), dask_run.cluster(jobs="slurm", workers=1):
        pass


# The front.


@settings(max_examples=200)
@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=30), st.tuples(*[st.booleans()] * 3))
def test_front_is_what_nothing_dominates(values, most):
    cost = [[-v if m else v for v, m in zip(row, most, strict=True)] for row in values]
    brute = [not any(all(a <= b for a, b in zip(o, row, strict=True)) and o != row for o in cost) for row in cost]
    assert pareto_front.front(np.array(values), list(most)).tolist() == brute


def test_files(tmp_path):
    wanted = [{"N": 1, "kind": "a"}, {"N": 2, "kind": "a"}, {"N": 3, "kind": "b"}]
    found = [Row({"cycles": 5.0, "area": 1.0}), Row({}, "broken, badly"), Row({"cycles": 6.0, "area": 2.0})]
    assert pareto_front.front_of(found, ("cycles", "area")) == [0]
    pareto_front.write(tmp_path, wanted, found, ("cycles", "area"))
    assert (tmp_path / "points.csv").read_text().splitlines() == [
        "N,kind,area,cycles,front,chosen,error",
        "1,a,1.0,5.0,1,1,",
        '2,a,,,0,0,"broken, badly"',
        "3,b,2.0,6.0,0,0,",
    ]
    kept = json.loads((tmp_path / "points.json").read_text())
    assert [p["front"] for p in kept] == [p["chosen"] for p in kept] == [True, False, False]
    assert [p["point"]["N"] for p in kept] == [1, 2, 3]
    files = ["cycles-area.png", "cycles-area.svg", "points.csv", "points.json"]
    assert sorted(f.name for f in tmp_path.iterdir()) == files
    before = (tmp_path / "cycles-area.svg").read_bytes()
    pareto_front.write(tmp_path, wanted, found, ("cycles", "area"))
    assert (tmp_path / "cycles-area.svg").read_bytes() == before
    titles = re.findall(r'<g id="cycles-area-(\d)"><title>(.*?)</title>', before.decode())
    assert titles == [("2", "N=3, kind=b: cycles 6, area 2"), ("0", "N=1, kind=a: cycles 5, area 1")]
    texts = [text.get_text() for text in pareto_front.plot(wanted, found, {0}, "cycles", "area").axes[0].texts]
    assert texts == ["1, a"]
    pareto_front.write(tmp_path, wanted[1:2], found[1:2], ("cycles", "area"))  # nothing but failures
    assert sorted(f.name for f in tmp_path.iterdir()) == files[2:], "no empty plot, and none of the sweep before"


def test_labels_of_a_plot_cover_nothing():
    """Thirty points at a knee, all on the front: no label lies on another, and the chosen one has its own."""
    wanted = [{"hcu.n_h": i, "wtu.n_w": 16} for i in range(30)]
    found = [Row({"cycles": 100 + 0.9**i * 3, "area": 100.0 + i * 0.1 + i // 20 * 40}) for i in range(30)]
    best = pareto_front.front_of(found, ("cycles", "area"))
    choice = pareto_front.chosen(found, best, ("cycles", "area"))
    figure = pareto_front.plot(wanted, found, set(best), "cycles", "area", choice)
    figure.draw_without_rendering()
    labels = figure.axes[0].texts
    boxes = [t.get_window_extent() for t in labels]
    assert len(labels) > 3
    assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    assert all(figure.axes[0].bbox.contains(*corner) for b in boxes for corner in (b.min, b.max))
    assert labels[0].get_text() == f"{choice}, 16"
    (legend,) = figure.legends
    assert f"chosen: hcu.n_h={choice}, wtu.n_w=16" in [t.get_text() for t in legend.get_texts()]
    assert not legend.get_window_extent().overlaps(figure.axes[0].bbox)


def test_an_objective_that_is_the_same_everywhere_is_not_plotted(tmp_path):
    found = [Row({"cycles": 5.0, "bytes": 0.0, "area": 1.0}), Row({"cycles": 4.0, "bytes": 0.0, "area": 2.0})]
    pareto_front.write(tmp_path, [{"N": 1}, {"N": 2}], found, ("cycles", "bytes", "area"))
    assert {f.stem for f in tmp_path.iterdir()} == {"points", "cycles-area"}


def test_chosen_is_nearest_to_the_best_of_each():
    found = [Row({"cycles": c, "fmax": f}) for c, f in ((0.0, 0.0), (10.0, 90.0), (100.0, 100.0), (50.0, 95.0))]
    best = pareto_front.front_of(found, ("cycles", "fmax"))
    assert pareto_front.chosen(found, best, ("cycles", "fmax")) == 1
    assert pareto_front.chosen([Row({}, "no")], [], ("cycles",)) is None
    assert pareto_front.chosen(found[:1], [0], ("cycles",)) == 0


# The search.


def landscape(point) -> Row:
    """16 x 16 points of two kinds, of which the front is known: kind a, y = 0, x from 3 to 11."""
    x, y, bad = int(point["x"]), int(point["y"]), point["kind"] == "b"
    if x == y == 15:
        return Row({}, "broken")
    return Row({"cycles": (x - 3) ** 2 + 9.0 * y + 50 * bad, "area": (x - 11) ** 2 + 9.0 * y + 50 * bad})


def test_search_finds_the_front():
    axes = points.axes(["x=0..15", "y=0..15", "kind=a,b"], [])
    asked_for = []

    def evaluated(batch):
        asked_for.append(len(batch))
        return [landscape(p) for p in batch]

    go = partial(search.search, axes, ("cycles", "area"), 100, 3, evaluated)
    found, result = go()
    assert len({tuple(p.values()) for p in found}) == 100
    assert max(asked_for) == search.BATCH
    best = {int(found[i]["x"]) for i in pareto_front.front_of(result, ("cycles", "area")) if found[i]["y"] == "0"}
    assert len(best & set(range(3, 12))) >= 7, "of the nine points of the front among 512"
    assert go()[0] == found, "the same seed searches the same points"


def test_search_drops_what_is_no_design():
    """No trial is spent on a point that cannot be; where fewer are left than asked for, all of them are the result."""
    axes = points.axes(["N_HCU=1..8", "clusters=256,512,1024"], [])
    dropped = []

    def feasible(point):
        ok = int(point["hcu.n_h"]) in (1, 2, 4, 8)
        dropped.extend([] if ok else [point])
        return ok

    def evaluated(batch):
        return [Row({"cycles": 9.0 - int(p["hcu.n_h"])}) for p in batch]

    for asked_for, there in ((9, 9), (20, 12)):
        found, result = search.search(axes, ("cycles",), asked_for, 1, evaluated, feasible)
        assert len({tuple(p.values()) for p in found}) == len(result) == there
        assert all(p["hcu.n_h"] in "1248" for p in found)
        assert dropped


def test_search_of_everything_is_the_grid():
    axes = points.axes(["x=13..15", "y=13..15", "kind=a,b"], [])
    found, result = search.search(axes, ("cycles", "area"), 18, 1, lambda batch: [landscape(p) for p in batch])
    assert len({tuple(p.values()) for p in found}) == 18
    assert sum(bool(r.error) for r in result) == 2
    with pytest.raises(ParamError, match="must be 1 to 18, the whole grid"):
        search.search(axes, ("cycles",), 19, 1, list)


# The command.


def test_command(tmp_path):
    args = ("N_HCU=1,2", "N_HCU-w=8,3", "--preset", "tiny", "-p", "blocks=128", "-p", "counts=32")
    args += ("--objective", "cycles,bytes")
    found = vrex(*args, "--workers", 1, "-o", tmp_path, "--json")
    assert found.exit_code == 1, "two points failed"
    assert "2 of 4 points failed, the first: hcu.n_w=3: must divide n_hp = 16" in found.stderr
    out = json.loads(found.stdout)
    assert [p["point"] for p in out["points"]] == [{"N_HCU": h, "N_HCU-w": w} for h in (1, 2) for w in (8, 3)]
    assert (tmp_path / "points.csv").read_text().startswith("N_HCU,N_HCU-w,bytes,cycles,")
    assert out["chosen"] in out["front"]
    assert out["points"][0]["result"] == timed(points.design(*TINY, {"hcu.n_h": "1", "hcu.n_w": "8"}))
    assert [p["error"] != "" for p in out["points"]] == [False, True, False, True]
    again = vrex(*args, "--scheduler", "tcp://127.0.0.1:9", "-o", tmp_path)
    assert again.exit_code == 1, "all is known: no scheduler is needed"
    assert "Pareto front" in again.stdout


def test_command_of_area(tmp_path, monkeypatch, client):
    """Area at the node of the units' gates and memories, N_WTU-h cores counted; the slowest unit's clock."""
    parts = {
        u: point_costs.Built(1000.0 * i, (MemoryMacro("m", 32, 256, 1, 1, i),), 20.0 + i, "")
        for i, u in enumerate(UNITS)
    }
    monkeypatch.setattr(dask_run, "cluster", lambda *args: nullcontext(client))
    monkeypatch.setattr(point_costs, "built", lambda unit, *_: parts[unit])
    found = vrex("N_WTU=1,3", "--preset", "tiny", "--objective", "area,fmax", "-o", tmp_path, "--json", "--node", 7)
    assert found.exit_code == 0, found.stderr
    one, three = (p["result"] for p in json.loads(found.stdout)["points"])
    gate, macro = node(7).nand2.value, Sram(256, 32, node=7).area.value
    assert one["area"] == pytest.approx(10000 * gate + 10 * macro)
    assert one["area.memory"] == pytest.approx(10 * macro)
    assert one["area.wtu"] == pytest.approx(1000 * gate + macro)
    assert three["area"] - one["area"] == pytest.approx(2 * one["area.wtu"])
    assert one["fmax"] == three["fmax"] == pytest.approx(1e6 / (24 * node(7).fo4.value))


def test_energy_of_a_frame():
    """Events of every unit, counts, clock and leakage, by hand: 3 keys, 4 clusters and 5 row words in 100 cycles."""
    p = override(preset("tiny"), ["wtu.n_h=2"]).core.dre
    parts = {u: Energy(10.0 * (i + 1), 1.0 + i, 0.5 if u == "wtu" else 0.0) for i, u in enumerate(RECORDED)}
    frame = point_costs.TableFrame(
        clustering=40, switch=10, fetch=9, work=16, compares=(4, 0, 7), bytes=0, keys=3, clusters=4
    )
    got = point_costs._spent(p, 100.0, parts, [[frame]], [[(60, 5)]])
    by_hand = {
        "energy.hcu": 10 * (4 + 7 + 3) + 100,
        "energy.wtu": 20 * 5 + 2 * (0.5 * 4 + 2 * 100),
        "energy.cluster_set": 30 * 5 + 300,
        "energy.kvmu": 40 * 16 + 400,
    }
    by_hand |= {"energy": sum(by_hand.values()), "energy.idle": 100 * (1 + 2 * 2 + 3 + 4)}
    assert got == {n: pytest.approx(pj / 1000) for n, pj in by_hand.items()}


def test_energy_of_a_unit_is_that_of_its_recorded_run(monkeypatch):
    """Events times their energy, and clock and leakage of every cycle, are those of `vrex size power`."""
    d = points.design(*TINY, {})
    s, f = asked(), replace(d.function, recent=1)
    own = d.system.core.dre.wtu
    streams = point_costs.stream(f, s.trace, s.trace_digest, s.queries)
    options = ((), s.library_digest, s.effort, s.target, s.build)
    found, power = [], energy.recorded.power
    monkeypatch.setattr(energy.recorded, "power", lambda *a, **how: found.append(power(*a, **how)) or found[-1])
    got = energy.energy("cluster_set", own, f, options, 14, streams)
    (whole,) = found
    total = got.event * energy.words(streams[0], own) + got.idle * whole.run_cycles
    assert total == pytest.approx(whole.cycle_pj * whole.run_cycles)
    assert (got.count, whole.mhz) == (0, energy.MHZ)
    assert whole.run_cycles > 20


def test_a_unit_is_measured_as_vrex_synth_does():
    p = preset("tiny").core.dre.wtu
    got = point_costs.built("cluster_set", p, (), "", "area", None, str(flow.BUILD))
    made = emit("cluster_set", p)
    area = flow.synthesise(made.verilog, made.top)
    assert (got.gates, got.memories) == (area.total_ge, area.memories)
    assert got.path * 5 == pytest.approx(area.timing.delay, rel=0.02), "an FO4 is 5 tau"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("N_HCU=1", "--workers", 2, "--scheduler", "tcp://x:1"), "has workers of its own"),
        (("N_HCU=1,2", "--search", 3), "must be 1 to 2, the whole grid"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, message, tmp_path):
    """What is found when the folder is there; `test_bad_inputs.py` has the rest."""
    found = vrex(*args, "-o", tmp_path / "out")
    assert found.exit_code == 2
    assert message in found.stderr


def told(client, monkeypatch, tmp_path, *args) -> list[str]:
    """The warnings of a sweep of `tiny`."""
    monkeypatch.setattr(dask_run, "cluster", lambda *args: nullcontext(client))
    monkeypatch.setattr(
        point_costs, "built", lambda unit, own, *_: point_costs.Built(getattr(own, "n_w", 1), (), 20.0, "")
    )
    found = vrex(*args, "--preset", "tiny", "-p", "blocks=128", "-o", tmp_path, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)["warnings"]


def test_an_axis_without_effect_is_named(client, tmp_path, monkeypatch):
    said = partial(told, client, monkeypatch, tmp_path)
    assert said("N_DPE=4,8", "N_HCU=1,2") == ["N_DPE: no objective of cycles, area depends on it; leave it out"]
    assert said("N_HCU-w=8,16", "--objective", "bytes") == ["N_HCU-w: none of bytes changed along this axis"]
    assert said("N_HCU-w=8,16", "N_HCU=1,2", "--objective", "area") == ["N_HCU: none of area changed along this axis"]
    assert said("N_HCU-w=8,16", "N_HCU=1,2", "--objective", "cycles,area") == []
    assert said("N_DPE=4,8", "N_HCU=1,2", "--search", 2)[0].startswith("N_DPE: no objective")


def test_a_trace_too_short_for_an_axis_is_named(client, tmp_path, monkeypatch):
    """No table of the trace has more than 279 keys, nor as many clusters: larger values are the same to it."""
    said = partial(told, client, monkeypatch, tmp_path)
    (line,) = said("clusters=8,64,128", "--objective", "cycles,area", "--th-hd", 5)
    assert line.startswith("clusters=64,128: cycles cannot tell these apart, as no table of the trace has more than")
    (line,) = said("recent=16,512,1024", "--objective", "cycles")
    assert line.startswith("recent=512,1024: cycles cannot tell these apart")
    assert "more than 279 keys; give a longer --trace" in line
    assert said("clusters=8,16", "N_WTU-w=4,8", "--objective", "area,cycles", "--th-hd", 3) == []


def test_the_shipped_trace_tells_sizes_apart(client, tmp_path, monkeypatch):
    """At Th_hd 3, up to 1,024 clusters; 300 tokens of another clip end at 279 keys."""
    monkeypatch.setattr(dask_run, "cluster", lambda *args: nullcontext(client))
    args = ("clusters=256,512,1024", "--th-hd", 3, "--objective", "cycles", "--json", "-o", tmp_path)
    found = vrex(*args, "--trace", LONG)
    assert found.exit_code == 0, found.output
    out = json.loads(found.stdout)
    assert out["warnings"] == []
    assert len({p["result"]["cycles"] for p in out["points"]}) == 3
    assert [p["result"]["trace.clusters"] for p in out["points"]] == [256, 512, 1024]
    assert "no table of the trace has more than" in json.loads(vrex(*args).stdout)["warnings"][0]
    assert LONG.stat().st_size <= 1_000_000


def test_a_full_disk_ends_the_command(tmp_path, monkeypatch, client):
    monkeypatch.setattr(dask_run, "cluster", lambda *args: nullcontext(client))
    rest = ("--preset", "tiny", "-p", "blocks=128", "--objective", "cycles", "-o", tmp_path)
    assert vrex("N_HCU=1", *rest).exit_code == 0
    known = Database(tmp_path / "sweep.db")
    before = known._execute("SELECT * FROM points")

    def full(*args):
        raise DatabaseError("sweep.db: the disk is full; results so far are kept")

    monkeypatch.setattr(Database, "put", full)
    found = vrex("N_HCU=1,2", *rest)
    assert found.exit_code == 2
    assert "the disk is full; results so far are kept" in found.stderr
    with known:
        assert known._execute("SELECT * FROM points") == before != []


def test_names_of_the_paper_are_stated():
    assert points.PAPER["N_HCU"] == points.PAPER["N_HCU-h"] == "hcu.n_h"
    assert {n for n in points.PAPER.values() if "." in n} == {
        f"{u}.n_{a}" for u in ("hcu", "wtu", "dpe", "vpe") for a in "hw"
    }
