"""Where retrieval hardware pays: who is first, where caches end, and the recorded cells of today."""

import json

import pytest

from openvrex.sim.system.machines import CACHES, NEAR, STREAMS, Cell, curve, first, ways
from openvrex.sim.system.platforms import H100
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import refuses, tried, vrex

KEPT = json.loads((ROOT / "docs/results/machines.json").read_text())["figures"]
BY_NAME = {w.name: w for w in ways()}


def test_the_first_of_lines():
    """y = x and y = 10,000 / x cross at 100; the second ends at 1,000, where a third becomes first that ends later."""
    curves = {"up": [(1, 1), (10000, 10000)], "down": [(1, 10000), (1000, 10)], "far": [(10, 500), (10000, 500)]}
    assert first(curves) == [(1, "up"), (100, "down"), (1000, "far")]
    assert first({"a": [(1, 2), (4, 2)], "b": []}) == [(1, "a")]
    assert first({}) == []


def test_a_curve_ends_where_memory_does():
    """The H100's memory holds the cache of one stream up to what its weights leave."""
    cells = curve(BY_NAME["H100, memory"], 1)
    room = (H100.capacity - Point(1, policy="").device_bytes) / Decoder().token_bytes
    assert [c.cache for c in cells[:-1]] == list(CACHES[:-1])
    assert room / NEAR < cells[-1].cache <= room
    assert curve(BY_NAME["AGX Orin, scaled, memory"], 16)[-1].cache < 10240
    assert curve(BY_NAME["AGX Orin, scaled, memory"], 1000) == []


def test_a_batch_is_of_each_stream():
    one, many = (curve(BY_NAME["H100, host"], n)[0] for n in STREAMS)
    assert many.ms < one.ms
    assert many.joules < one.joules


GPUS = [name for name in BY_NAME if "H100" in name or "scaled" in name]


@pytest.mark.parametrize("name", GPUS)
def test_recorded_curves_are_todays(name):
    """Of GPUs; other machines are held by the records of `vrex simulate frames` and `vrex papers evaluate`."""
    for streams in STREAMS:
        kept = [Cell(**c) for c in KEPT["frames"][f"{streams}"][name]]
        found = curve(BY_NAME[name], streams)
        assert [c.cache for c in found] == [c.cache for c in kept]
        assert [c.ms for c in found] == pytest.approx([c.ms for c in kept])
        assert [c.joules for c in found] == pytest.approx([c.joules for c in kept])


def test_presets_are_as_in_the_record_of_frames():
    """At each cache, beside `docs/results/simulation.json`."""
    record = json.loads((ROOT / "docs/results/simulation.json").read_text())["figures"]
    for at, name in enumerate(("edge8x, memory", "server48x, memory")):
        cells = {c["cache"]: f"{c['ms']:.1f}" for c in KEPT["frames"]["1"][name]}
        assert [cells[n] for n in CACHES[:4]] == record["frames pages x"]["rows"][at][1:5]
        assert cells[1 << 20] == record["frames pages x 1M"]["rows"][at][1]
    anchors = json.loads((ROOT / "docs/results/evaluation.json").read_text())["figures"]
    for name in ("V-Rex8", "V-Rex48"):
        (own,) = (n["trace"] for n in anchors if n["what"] == f"{name}, frame, 40K")
        home = "drive" if name == "V-Rex8" else "host"
        cells = {c["cache"]: c["ms"] for c in KEPT["frames"]["1"][f"{name}, {home}"]}
        assert cells[40960] == pytest.approx(own)


def test_the_command_draws_and_names(tmp_path):
    words = ["--machine", "H100", "--streams", "1", "-o", str(tmp_path)]
    done = vrex("simulate", "machines", *words)
    assert "Least milliseconds, 1 stream, any machine: H100, memory from 1K tokens; H100, host from" in done.stdout
    assert {p.name for p in tmp_path.iterdir()} == {"machines.svg", "machines.png"}
    done = refuses("simulate", "machines", "--machine", "H200")
    assert "machine='H200': must be one of V-Rex8, V-Rex48" in done.stderr


def test_an_interrupt_keeps_what_is_done(monkeypatch):
    """The table has the machines before it; exit code 130."""

    def interrupted(way, streams):
        if way.home != "memory":
            raise KeyboardInterrupt
        return curve(way, streams)

    monkeypatch.setattr("openvrex.scripts.simulate.machines_command.curve", interrupted)
    done = tried("simulate", "machines", "--machine", "H100", "--streams", "1")
    assert done.exit_code == 130
    assert "H100, memory" in done.stdout
    assert "H100, host" not in done.stdout
