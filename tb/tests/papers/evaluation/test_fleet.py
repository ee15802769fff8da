"""`vrex papers fleet`: how long a device keeps up, what it takes; results kept, taken up again."""

import csv
import json

import pytest
from typer.testing import CliRunner

from openvrex.papers.commands.fleet_command import as_csv
from openvrex.papers.evaluation.fleet import Device, day
from openvrex.papers.evaluation.other_policies import PROFILES, point
from openvrex.scripts.main import app
from openvrex.sim.system.platforms import EDGE
from openvrex.sim.system.workload import Decoder, Session
from openvrex.synth.sweep.database import Row


def vrex(folder, *words):
    return CliRunner().invoke(app, ["papers", "fleet", *words, "-o", str(folder)])


def test_memory_ends_at_its_last_token():
    device = Device("edge", "full")
    done = day(device)
    tokens = round(done["hours"] * 3600 * device.fps * Session.frame_tokens)
    needs = [point(PROFILES["full"], n).device_bytes for n in (tokens, tokens + 1)]
    assert done["limit"] == "memory"
    assert needs[0] <= EDGE.capacity < needs[1]
    assert done["fetched"] == 0


def test_a_stream_of_any_length_fits_where_the_cache_does_not_grow():
    short, long = (day(Device("edge", "hybrid", hours=h)) for h in (1.0, 100.0))
    assert (short["limit"], long["limit"]) == ("none", "none")
    assert (short["hours"], long["hours"]) == (1.0, 100.0)
    assert short["seconds"] == long["seconds"]
    assert long["joules"] == pytest.approx(100 * short["joules"], rel=4096 / 72000)  # until the window is full


def test_an_hour_of_less_than_a_frame_is_one():
    assert day(Device("edge", "hybrid", hours=1e-9))["limit"] == "none"


def test_falls_behind_when_a_pass_takes_a_frame_s_time():
    slow, fast, many = (day(Device("edge", "flexgen", s, fps)) for s, fps in ((1, 2.0), (1, 1.0), (4, 1.0)))
    assert {d["limit"] for d in (slow, fast, many)} == {"speed"}
    assert (slow["seconds"], fast["seconds"]) == (pytest.approx(0.5), pytest.approx(1.0))
    assert many["hours"] < fast["hours"]
    # All but the recent tokens at every frame; what is sampled is linear but where the first token is fetched.
    tokens = slow["hours"] * 3600 * 2 * Session.frame_tokens
    recent = EDGE.core.dre.kvmu.recent
    want = (tokens - recent) ** 2 / 2 / Session.frame_tokens * Decoder().token_bytes
    assert slow["fetched"] == pytest.approx(want, rel=recent / tokens)
    never = day(Device("edge", "full", fps=20.0))
    assert never.pop("seconds") > 1 / 20
    assert never == {"hours": 0.0, "limit": "speed", "joules": 0.0, "fetched": 0.0, "busy": 0.0, "room": 0.0}


def test_results_are_kept(tmp_path, monkeypatch):
    words = ("--policy", "hybrid,full", "--hours", "1", "--workers", "1", "--json")
    first = vrex(tmp_path, *words)
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("openvrex.synth.sweep.dask_run.cluster", None)  # nothing is asked of it
    assert vrex(tmp_path, *words).stdout == first.stdout
    found = json.loads(first.stdout)
    assert [d["policy"] for d in found] == ["hybrid", "full"]
    assert found[1] == found[1] | day(Device("edge", "full", hours=1.0))
    rows = list(csv.DictReader((tmp_path / "fleet.csv").read_text().splitlines()))
    assert [{n: str(v) for n, v in d.items()} for d in found] == rows
    assert (rows[0]["policy"], rows[0]["asked"]) == ("hybrid", "1.0")


def test_a_device_that_failed_has_a_line(tmp_path):
    """With its error, and nothing where the others have results."""
    devices = [Device("edge", "full"), Device("edge", "resv", preset="core", params=("recent=512",))]
    text = as_csv(devices, [Row({"hours": 2.0}), Row({}, "broken, badly")])
    assert text.splitlines() == [
        "platform,policy,streams,fps,asked,preset,params,hours,error",
        "edge,full,1,2.0,24.0,,,2.0,",
        'edge,resv,1,2.0,24.0,core,recent=512,,"broken, badly"',
    ]
