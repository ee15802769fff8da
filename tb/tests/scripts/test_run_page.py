"""Comparisons of docs/run.md and docs/papers/policies.md: what was recorded on the RTL, what the simulator says."""

import json
import re
from dataclasses import asdict, replace
from statistics import mean

import pytest

from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.window_decisions import windowed
from openvrex.hdl.params import preset
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import compare
from openvrex.sim.system.limits import EDGE
from openvrex.sim.system.mosaic_demand import WORLD, MosaicDemand
from openvrex.sim.system.mosaic_pass import MosaicPass
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, traced
from openvrex.tb.library.runner import ROOT

PAGE = (ROOT / "docs/run.md").read_text()
RESULTS = ROOT / "docs/results"
STREAM, DECODER = (
    PAGE[PAGE.index(first) : PAGE.index(behind)]
    for first, behind in (("### One stream under each policy", "### A frame"), ("### The whole decoder", "## Limits"))
)
SIZED = (ROOT / "docs/papers/policies.md").read_text()
SIZED = SIZED[SIZED.index("## Which policy suits") :]
SIZED = " ".join(SIZED.split())
RECORD = json.loads((RESULTS / "one_stream.json").read_text())["frames"]
WHOLE = json.loads((RESULTS / "whole_decoder.json").read_text())
HEADS = json.loads((RESULTS / "recall.json").read_text())["runs"][0]["summaries"]


def rows(text: str, name: str) -> list[list[str]]:
    """Cells of the rows of a policy."""
    found = re.findall(rf"^\| `{name}`(?:,[^|]*)? \| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in found]


@pytest.mark.parametrize("name", RECORD)
def test_one_stream_on_one_core(name):
    """A row of the table, and the options that the page's command has."""
    r = RECORD[name]
    cells = rows(STREAM, name)[0]
    counts = [f"{r[key]:,}" for key in ("programs", "compared", "cycles", "loaded", "device", "home")]
    assert cells[:8] == [*counts, f"{mean(r['errors']):.1f} %", f"{r['errors'][-1]:.1f} %"]
    assert r["differences"] == 0
    words, first = " ".join(PAGE.replace("\\\n", " ").split()), RECORD["codecsight"]["command"]
    assert first in words
    command, _, own = r["command"].partition(" -p ")
    assert command in words.replace("windows codecsight", name if name == "mosaic" else f"windows {name}")
    assert set(own.split()) - set(first.split()) <= {x for x in own.split() if x.startswith(f"{name}.")}
    entry = 2 * 2 * 3 * 64  # K and V of three heads of 64 numbers in BF16
    assert r["device"] == 2 * entry * r["held"]


def test_the_whole_decoder():
    r = WHOLE["figures"]
    assert f"    {WHOLE['command']}\n" in DECODER
    cells = dict(re.findall(r"^\| (.*) \| (.*) \|$", DECODER, re.M))
    assert list(cells.values())[2:-1] == [
        f"{r['passes']}, {r['steps']:,}",
        f"{r['cycles']:,}",
        f"{r['compared']:,}, {r['differences']}",
        f'"{r["says"]}"',
        f'"{r["full_says"]}"',
        f"{r['opened']:,}, {r['joined']:,}",
        f"{r['offloaded']:,}, {r['fetched']:,}",
        f"{r['frames_a_second']} frames a second, {r['tokens_a_second']} generated tokens a second",
    ]
    large, head, choice = r["shares"].values()
    said = f"take {large:.0f} % of the cycles, the head {head:.0f} %, hash, rank and select {choice:.0f} %."
    assert said in " ".join(DECODER.split())


def test_mosaic_s_programs_that_steer_themselves():
    r, words = json.loads((RESULTS / "mosaic_stream.json").read_text()), " ".join(PAGE.replace("\\\n", " ").split())
    plain, steered = r["plain"], r["lxe.to_register"]
    assert r["command"] in words
    more = steered["cycles"] / plain["cycles"] - 1
    said = f"{plain['programs']} programs and {plain['readings']} host readings become {steered['programs']} and"
    assert f"{said} {steered['readings']}, for {more:.1%} more cycles".replace("%", " %") in words


def test_recall_is_what_was_recorded():
    known = {one["variant"]: one["recall"] for one in HEADS}
    for name in ("full", "resv", "streamingllm", "mosaic"):
        assert rows(STREAM, name)[0][8] == f"{known[name]:.0%}".replace("%", " %")
    for name in ("hybrid", "codecsight"):
        assert name not in known
        assert rows(STREAM, name)[0][8] == "-"


def test_full_size_by_the_simulator():
    """Rows of the recorded comparison, simulated again."""
    entries = {"resv": windowed("full"), "streamingllm": windowed("streamingllm")}
    kept = json.loads((RESULTS / "simulation.json").read_text())["figures"]["windows"]
    for row in compare(EDGE, entries, Decoder(), (10240,), Given(traced(Decoder()))):
        assert asdict(row) in kept


@pytest.mark.slow
def test_mosaic_at_full_size_on_one_core():
    """The page's sentence, and what the copies and clusters take in it."""
    v, params = replace(EDGE, system=preset("core")), MosaicParams(arithmetic="hardware")
    entries = {"mosaic": Entry(Mosaic, params), "full": windowed("full")}
    found = {row.policy: row for row in compare(v, entries, Decoder(), (10240,), Given(traced(Decoder())))}
    one, other = found["mosaic"], found["full"]
    assert f"take {one.frame:.1f} ms a frame and {one.token:.1f} a token by its" in SIZED
    assert f"beside {other.frame:.1f} and {other.token:.1f} of `full`" in SIZED
    frame = MosaicPass(v, MosaicDemand(params, WORLD, 10240), Point(10240)).frame()
    clusters, copies = 1e3 * frame.named("assign", "split", "create", "offload"), 1e3 * frame.named("copy")
    assert f"clusters take {clusters:.1f} ms of the frame, its copies {copies:.1f}." in SIZED
