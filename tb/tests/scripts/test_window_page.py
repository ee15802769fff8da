"""The comparisons of docs/window.md: what was recorded on the RTL, and what the simulator says."""

import json
import re
from dataclasses import asdict, replace
from statistics import mean

import pytest
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.window_decisions import windowed
from openvrex.hdl.params import preset
from openvrex.sim.system.core_policies import compare
from openvrex.sim.system.mosaic_demand import WORLD, MosaicDemand
from openvrex.sim.system.mosaic_pass import MosaicPass
from openvrex.sim.system.platforms import EDGE
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, traced
from openvrex.tb.library.runner import ROOT

PAGE = (ROOT / "docs/window.md").read_text()
PART = PAGE[PAGE.index("## Which policy suits") : PAGE.index("## Evidence")]
RECORD = json.loads((ROOT / "docs/results/one_stream.json").read_text())["frames"]
HEADS = json.loads((ROOT / "docs/results/recall.json").read_text())["runs"][0]["summaries"]


def rows(text: str, name: str) -> list[list[str]]:
    """Cells of the rows of a policy."""
    found = re.findall(rf"^\| `{name}`(?:,[^|]*)? \| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in found]


@pytest.mark.parametrize("name", RECORD)
def test_one_stream_on_one_core(name):
    """The page's first table, and what it says of the runs."""
    r = RECORD[name]
    cells = rows(PART, name)[0]
    counts = [f"{r[key]:,}" for key in ("cycles", "loaded", "device", "home")]
    assert cells[:6] == [*counts, f"{mean(r['errors']):.1f} %", f"{r['errors'][-1]:.1f} %"]
    assert r["differences"] == 0
    if name in ("full", "resv", "mosaic"):
        assert f"{r['compared']:,}" in PART
        assert f"{r['programs']:,}" in PART
    else:  # the runs of the page's other table
        assert f"| 0 | {r['cycles']:,} | {r['loaded']:,} |" in PAGE
    assert r["command"].split(" -p")[0] in PAGE.replace("codecsight", name)
    entry = 2 * 2 * 3 * 64  # K and V of three heads of 64 numbers in BF16
    assert r["device"] == 2 * entry * r["held"]


def test_recall_is_what_was_recorded():
    known = {one["variant"]: one["recall"] for one in HEADS}
    for name in ("full", "resv", "streamingllm", "mosaic"):
        assert rows(PART, name)[0][6] == f"{known[name]:.0%}".replace("%", " %")
    for name in ("hybrid", "codecsight"):
        assert name not in known
        assert rows(PART, name)[0][6] == "-"


def test_full_size_by_the_simulator():
    """Rows of the recorded comparison, simulated again."""
    entries = {"resv": windowed("full"), "streamingllm": windowed("streamingllm")}
    kept = json.loads((ROOT / "docs/results/simulation.json").read_text())["figures"]["windows"]
    for row in compare(EDGE, entries, Decoder(), (10240,), traced(Decoder())):
        assert asdict(row) in kept


@pytest.mark.slow
def test_mosaic_at_full_size_on_one_core():
    """The page's sentence, and what the copies and clusters take in it."""
    v, params = replace(EDGE, system=preset("core")), MosaicParams(arithmetic="hardware")
    entries = {"mosaic": Entry(Mosaic, params), "full": windowed("full")}
    found = {row.policy: row for row in compare(v, entries, Decoder(), (10240,), traced(Decoder()))}
    one, other = found["mosaic"], found["full"]
    assert f"take {one.frame:.1f} ms a frame and {one.token:.1f} a token by its" in PART
    assert f"beside {other.frame:.1f} and {other.token:.1f} of `full`" in PART
    frame = MosaicPass(v, MosaicDemand(params, WORLD, 10240), Point(10240)).frame()
    clusters, copies = 1e3 * frame.named("assign", "split", "create", "offload"), 1e3 * frame.named("copy")
    assert f"clusters take {clusters:.1f} ms of the frame, its copies {copies:.1f}." in PART
