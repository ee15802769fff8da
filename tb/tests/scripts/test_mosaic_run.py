"""`vrex run mosaic`: Mosaic on the RTL of a core; every byte, cycle and decision, resumption, messages."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from distributed import Client

from openvrex.scripts.run import policy_run, run_folder
from openvrex.scripts.run.mosaic_command import MosaicRun
from openvrex.synth.sweep import dask_run
from openvrex.tb.library import small_models
from openvrex.tb.library.mosaic_stream import EVENTS
from openvrex.tb.library.page_rules import faults
from openvrex.tb.library.small_mosaic import shown
from openvrex.tb.library.small_windows import SmallDecoder
from tb.tests.commands import refuses, tried, vrex
from tb.tests.golden.inputs.trace_samples import models

OWN = ("ratio=0.3", "breadth=2", "recent=12", "build=2", "cluster_tokens=3", "visual.small=0.5", "visual.large=0.9")
OWN += ("semantic.small=0.3", "semantic.large=0.5", "semantic.rate=4")


def given(assignments, prefix: str = "") -> list[str]:
    return [x for one in assignments for x in ("-p", prefix + one)]


@pytest.fixture
def small(monkeypatch):
    """The command with the small decoder and its stream in place of a video in SmolLM2."""

    def stream(video, options, folder, progress, model):
        segments = shown(frames=5)
        decoder = SmallDecoder()
        decoder.layers = decoder.layers[: options.depth]
        source = {"stream": video, "depth": options.depth}
        return SimpleNamespace(segments=segments[:-1], decoder=decoder, source=source, fallbacks=["is small"])

    monkeypatch.setattr(policy_run, "DecoderStream", stream)
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as own:
        monkeypatch.setattr(dask_run, "cluster", lambda *where: nullcontext(own))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("core", [(), pytest.param(("lxe.to_register=true",), marks=pytest.mark.nightly)])
def test_mosaic_on_the_rtl(small, tmp_path, core):
    """Every store, all memory and every cycle of a stream, and every decision of the policy."""
    words = ["--preset", "tiny", *given((*small_models.SIZES, *core)), *given(OWN, "mosaic."), "--generate", 1]
    words += ["-o", tmp_path]
    got = vrex("run", "mosaic", *words, "--json")
    result = json.loads(got.stdout)
    assert not result["differences"]
    assert result["numbers"] > 0
    events = result["events"]
    for event in EVENTS:
        assert events[event] > 0 or event == "split", event  # no split on the device in a stream so short
    kinds = {one["kind"] for one in result["kinds"]}
    assert {"assign", "halve"} & kinds if core else {"probe", "absorb, probe"} & kinds
    rows = result["blocks"]
    assert result["steps"] == sum(one["programs"] for one in rows) == sum(one["programs"] for one in result["kinds"])
    assert sum(one["readings"] for one in rows) == events["readings"]
    for one in rows:
        assert one["cycles"] == one["predicted"] == sum(one[x] for x in ("layers", "choice", "moves", "clusters"))
        assert one["compared"] > one["stored"]
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    assert "Every store and all memory equal golden, and every decision that of the policy." in page
    assert [s.title for s in run_folder.load(tmp_path)] == ["mosaic on the RTL", "Programs", "Events"]

    # The same once more: nothing runs again, and the policy decides the same on what golden left. Then one is repeated.
    before = (tmp_path / "passes" / "passes.jsonl").read_bytes()
    again = vrex("run", "mosaic", *words)
    assert "Clustered: frames." in again.stdout
    assert (tmp_path / "passes" / "passes.jsonl").read_bytes() == before
    some = tried("run", "mosaic", *words, "--from", 1)
    assert some.stdout.splitlines()[0] == "1: prompt 0, 1: append, layer 0: equal", some.output


def test_events_that_never_happened_are_told():
    result = {"policy": "mosaic", "events": dict.fromkeys(EVENTS, 1) | {"split": 0, "covered": 0}}
    assert MosaicRun.missing(result) == [
        "mosaic: nothing was split or covered in this stream: more --frames, a smaller window or thresholds "
        "(-p mosaic.NAME=VALUE) show it"
    ]
    assert not MosaicRun.missing({"policy": "mosaic", "events": dict.fromkeys(EVENTS, 1)})


@pytest.mark.slow
def test_a_block_longer_than_a_pass_is_told(small, tmp_path):
    got = refuses("run", "mosaic", "--preset", "tiny", *given(small_models.SIZES), "--at-once", 3, "-o", tmp_path)
    assert "--at-once=3: must be at least 4: a block is one pass" in got.stderr


@models
@pytest.mark.nightly
def test_two_layers_of_the_real_decoder(tmp_path):
    """Real weights and frames: every store, all memory, every cycle, every decision; every kind of event happens."""
    core = given(("dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "vpe.depth=128", "bus_bytes=32"))
    own = given(("recent=20", "build=2", "cluster_tokens=4", "ratio=0.3"), "mosaic.")
    asked = ["--frames", 6, "--tokens", 10, "--generate", 1, "--question", "What?"]
    got = vrex("run", "mosaic", *asked, *core, *own, "-o", tmp_path, "--json")
    result = json.loads(got.stdout)
    assert not result["differences"]
    assert not MosaicRun.missing(result)
    for one in result["blocks"]:
        assert one["cycles"] == one["predicted"]
        assert one["error"] < 0.2
