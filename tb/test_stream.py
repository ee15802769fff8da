"""`vrex stream` and `vrex policies` as a user meets them: results, plots, resuming bit for bit, one-line errors."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

import golden.run
import golden.stream
from golden import decoder, vision
from golden.compare import ratios, series, summary
from golden.policies import POLICIES
from golden.run import Record
from scripts.main import app
from scripts.stream import TEACHER, chosen
from scripts.verify import FIXTURE
from tb.test_trace import FakeEncoder, models, small, small_weights  # noqa: F401 - `small` is a fixture

POLICY = ("--policy", "resv,rekv,streamingllm", "-p", "resv.resv.recent=32", "-p", "rekv.recent=32")
FILES = ["ratio.png", "ratio.svg", "results.json", "stream.png", "stream.svg"]


def vrex(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def written(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on the fixture that nothing interrupts."""
    folder = tmp_path_factory.mktemp("stream") / "whole"
    done = vrex("stream", FIXTURE, *POLICY, "-o", folder, "--json")
    assert done.exit_code == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture
def small_models(monkeypatch):
    """Random weights in place of the models of models.txt."""
    monkeypatch.setattr(decoder.Decoder, "_read", staticmethod(lambda: small_weights(3)))
    monkeypatch.setattr(decoder, "N_LAYERS", 3)
    monkeypatch.setattr(vision, "VisionEncoder", FakeEncoder)


def test_trace_side_by_side(whole):
    folder, results = whole
    assert json.loads((folder / "results.json").read_text()) == results
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        [*FILES, "source.json", *(f"{name}.run" for name in results["policies"])]
    )
    assert list(results["policies"]) == [TEACHER, "resv", "rekv", "streamingllm"]
    assert results["layers"] == [1, 10, 20]
    full, resv = results["policies"]["full"], results["policies"]["resv"]
    for stage in ("frame", "answer"):
        assert (full[stage]["kept"], full[stage]["fetched"], full[stage]["error"]) == (1, 0, 0)
        assert 0 < resv[stage]["fetched"] < resv[stage]["kept"] < 1
        assert 0 < resv[stage]["error"] < 0.5
        assert resv[stage]["agreement"] is None  # no decoder on a trace
    assert resv["totals"]["in.fetch"] == resv["series"]["in_bytes"][-1] > 0
    assert results["policies"]["streamingllm"]["tokens"]["pruned"] > 0
    assert np.shape(resv["ratio"]) == (3, 3)
    assert resv["series"]["tokens"][-1] == 300
    for name in ("ratio.svg", "stream.svg"):
        text = (folder / name).read_text()
        assert "<svg" in text


@pytest.mark.parametrize("stop", [1, 40, 75])
def test_interrupted_while_writing_it_resumes_to_the_same_bits(stop, whole, tmp_path, monkeypatch):
    """The stop-th file is torn in the middle; the second call ends with the bytes of the uninterrupted run."""
    sound, count = golden.stream.save, 0

    @contextmanager
    def torn(path):
        nonlocal count
        count += 1
        if count == stop:
            with sound(path) as file:
                file.write(b"half")
                raise RuntimeError("killed")
        with sound(path) as file:
            yield file

    monkeypatch.setattr(golden.stream, "save", torn)
    first = vrex("stream", FIXTURE, *POLICY, "-o", tmp_path / "x")
    assert str(first.exception) == "killed"
    assert not (tmp_path / "x" / "results.json").exists()
    before = count
    again = vrex("stream", FIXTURE, *POLICY, "-o", tmp_path / "x")
    assert again.exit_code == 0, again.stderr
    assert count - before == 4 * 34 + (stop == 1) - max(0, stop - 2)  # only what was not there yet
    assert written(tmp_path / "x") == written(whole[0])


def test_a_file_is_replaced_at_once(tmp_path):
    """A reader of the old file never sees a part of the new one, and a failed write leaves nothing behind."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with open(path, "rb") as reader:
        with golden.stream.save(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    with pytest.raises(TypeError), golden.stream.save(path) as file:
        file.write("no bytes")
    assert [f.name for f in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"new"


def test_killed_it_resumes_to_the_same_bits(whole, tmp_path):
    folder = tmp_path / "x"
    line = [sys.executable, "-c", "from scripts.main import app; app()", "stream", FIXTURE, *POLICY, "-o", folder]
    process = subprocess.Popen([str(a) for a in line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (folder / "resv.run").exists() and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert vrex("stream", FIXTURE, *POLICY, "-o", folder).exit_code == 0
    assert written(folder) == written(whole[0])


def test_finished_it_runs_nothing_again_and_takes_more_policies(whole, tmp_path, monkeypatch):
    args = ("stream", FIXTURE, "-o", tmp_path / "x")
    assert vrex(*args, "--policy", "rekv").exit_code == 0
    before = (tmp_path / "x" / "full.run").stat().st_mtime_ns
    more = vrex(*args, "--policy", "rekv,flexgen", "--json")
    assert list(json.loads(more.stdout)["policies"]) == ["full", "rekv", "flexgen"]
    assert (tmp_path / "x" / "full.run").stat().st_mtime_ns == before


def test_video_in_a_decoder(small, small_models, tmp_path):  # noqa: F811
    """Frames, question and answer; a second stream into the same folder is refused; a resumed one is the same."""
    args = ("stream", small, "--frames", 5, "--tokens", 4, "--question", "why", "--generate", 3)
    args += ("--policy", "resv,streamingllm,oaken", "-p", "resv.resv.recent=8", "-p", "streamingllm.recent=4")
    done = vrex(*args, "-o", tmp_path / "x", "--json")
    assert done.exit_code == 0, done.stderr
    results = json.loads(done.stdout)
    full, resv, oaken = (results["policies"][name] for name in ("full", "resv", "oaken"))
    assert results["source"]["sha256"]
    assert (full["frame"]["agreement"], full["answer"]["agreement"]) == (1, 1)
    assert resv["answer"]["kept"] < 1
    assert oaken["frame"]["error"] > 0.01
    assert resv["frame"]["loss"] is None
    assert full["answer"]["loss"] > 0
    assert resv["totals"]["in.prefetch"] > 0
    assert resv["totals"]["ops.linear"] == full["totals"]["ops.linear"]
    assert len(list((tmp_path / "x" / "visual").iterdir())) == 5
    (tmp_path / "x" / "oaken.run").unlink()
    (tmp_path / "x" / "visual" / "3.npy").unlink()
    assert json.loads(vrex(*args, "-o", tmp_path / "x", "--json").stdout) == results
    refused = vrex(*args, "--fps", 5, "-o", tmp_path / "x")
    assert refused.exit_code == 2
    assert "holds another run (fps is None there and 5.0 now)" in refused.stderr
    table = vrex(*args, "-o", tmp_path / "x")
    assert "projector" in table.stdout


def test_policies_are_fed_the_answer_of_full_attention(small, small_models, tmp_path, monkeypatch):  # noqa: F811
    options = golden.stream.Options(4, 4, None, "why", 4)
    stream = golden.stream.DecoderStream(str(small), options, tmp_path, lambda done, total: None)
    teacher = golden.stream.follow(stream, "full", POLICIES["full"], tmp_path)
    ids = [r.choices[-1] for r in teacher.records]
    step, targets = golden.run.DecoderRun.step, []

    def spy(self, model, block, x, wanted):
        targets.append(wanted)
        return step(self, model, block, x, wanted)

    monkeypatch.setattr(golden.run.DecoderRun, "step", spy)
    run = golden.stream.follow(stream, "oaken", POLICIES["oaken"], tmp_path, teacher.records)
    assert [t.tolist() for t in targets[6:]] == [[i] for i in ids[6:]]
    assert targets[5][-1] == ids[5]
    assert targets[1] is None
    first = stream.answer_from
    x = run.embeddings[-4:]
    np.testing.assert_array_equal(x, stream.decoder.embeddings[ids[first - 1 : -1]])
    assert [r.stage for r in run.records] == ["prompt", *["frame"] * 4, "question", *["generation"] * 4]
    assert all(len(r.losses) == (r.stop - r.start) * (r.stage in ("question", "generation")) for r in run.records)


def test_text_has_a_loss_at_every_token(small_models, tmp_path):
    args = ("stream", "text", "--frames", 4, "--tokens", 9, "--generate", 0, "-o", tmp_path / "x", "--json")
    done = vrex(*args, "--policy", "streamingllm", "-p", "streamingllm.recent=3")
    assert done.exit_code == 0, done.stderr
    results = json.loads(done.stdout)["policies"]
    losses = [results[name]["frame"]["loss"] for name in ("full", "streamingllm")]
    assert 0 < losses[0] != losses[1]


@models
def test_real_models(tmp_path):
    done = vrex("stream", "world", "--frames", 2, "--tokens", 4, "--generate", 1, "--policy", "resv", "-p",
                "resv.resv.recent=1", "-o", tmp_path / "x", "--json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["layers"] == list(range(30))
    assert 0 < results["policies"]["resv"]["answer"]["kept"] < 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((FIXTURE, "--policy", "fool"), "policy='fool': must be one of full, flexgen"),
        ((FIXTURE, "-p", "resv.resv.th_hd"), "-p='resv.resv.th_hd': must look like policy.name=value"),
        ((FIXTURE, "-p", "rekv.recent=3"), "rekv is not among the policies to run (full, resv)"),
        ((FIXTURE, "-p", "resv.resv.th_hd=99"), "th_hd=99: must be 0 to n_hp + 1 = 33"),
        (("nowhere.safetensors",), "nowhere.safetensors: cannot be read"),
        (("nowhere.mp4",), "nowhere.mp4: no such file"),
        (("text", "--frames", "0"), "frames=0: must be at least 1"),
        (("text", "--tokens", "0"), "tokens=0: must be at least 1"),
        (("text", "--frames", "9000"), "the decoder knows only 8192 positions"),
        (("world", "--tokens", "11"), "tokens=11: must be g*g"),
        (("world", "--fps", "0"), "fps=0.0: must be above 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, message, tmp_path):
    run = vrex("stream", *args, "-o", tmp_path / "out")
    assert run.exit_code == 2
    assert message in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    args = ("stream", FIXTURE, "--policy", "rekv", "-o", tmp_path)
    assert "not empty, and not a run; choose another folder" in vrex(*args).stderr
    (tmp_path / "source.json").write_text("{")
    assert "source.json: damaged; choose another folder" in vrex(*args).stderr
    (tmp_path / "source.json").unlink()
    (tmp_path / "mine.txt").unlink()
    assert vrex(*args).exit_code == 0
    assert "ran with ReKVParams(" in vrex(*args, "-p", "rekv.recent=3").stderr
    (tmp_path / "rekv.run").write_bytes(b"half")
    assert "rekv.run: damaged; remove it to run rekv again" in vrex(*args).stderr


# Figures


class FakeRun:
    """Records alone."""

    def __init__(self, records):
        self.records = records
        self.shape = type("S", (), {"layers": 2, "kv_heads": 2})


def record(stage, start, stop, kept, choices, error=0.5, device=8):
    kept = np.full((2, 2), float(kept))
    totals = {"in.fetch": 10 * stop, "in.prefetch": 1, "out.offload": 2, "ops.sort": 5, "ops.linear": 100}
    totals |= {"device.peak": 7, "pieces.in.fetch": 99}
    census = {"absent": 0, "device": device, "host": 4, "pruned": 0, "represented": 0}
    return Record(
        0, stage, start, stop, 1, kept, kept / 2, np.full(2, error), totals, census, choices, [1.0] * len(choices)
    )


def test_figures_by_definition():
    def run(second, answer, error):
        frames = [record("frame", 4, 8, 2, second, error), record("frame", 8, 12, 2, [5])]
        return FakeRun([record("prompt", 0, 4, 0, [3]), *frames, record("generation", 12, 13, 3, answer)])

    mine, full = run([7, 2], [9], 0.2), run([1, 7, 2], [8], 0.5)
    s = summary(mine, full)
    assert s["frame"]["kept"] == pytest.approx((2 / 4 + 2 / 8) / 2)
    assert s["frame"]["fetched"] == pytest.approx(s["frame"]["kept"] / 2)
    assert s["frame"]["error"] == pytest.approx((0.2 + 0.5) / 2)
    assert s["frame"]["agreement"] == 1  # rows are matched from the last one back
    assert s["answer"] == {"kept": 3 / 12, "fetched": 1.5 / 12, "error": 0.5, "agreement": 0, "loss": 1}
    assert s["tokens"]["device"] == 2
    t = series(mine, full)
    assert t["tokens"] == [4, 8, 12, 13]
    assert t["in_bytes"] == [41, 81, 121, 131]
    assert t["out_bytes"] == [2] * 4
    assert t["operations"] == [5] * 4
    assert t["held_tokens"] == [3] * 4
    assert t["agreement"] == [1, 1, 1, 4 / 5]
    np.testing.assert_allclose(ratios(mine), (2 / 4 + 2 / 8) / 2)


def test_all_policies_by_one_word():
    assert list(chosen("all", [])) == list(POLICIES)
    assert list(chosen("resv, full", [])) == ["full", "resv"]


def test_policies_lists_every_parameter_and_source():
    listing = json.loads(vrex("policies", "--json").stdout)
    assert list(listing) == list(POLICIES)
    for name, p in listing.items():
        assert p["source"]
        assert p["summary"].endswith((".", ";"))
        for param, (_, meaning) in p["params"].items():
            assert meaning or param.startswith("resv."), (name, param)
    assert listing["resv"]["params"]["resv.th_hd"] == [7, "a token joins a cluster at a Hamming distance below this"]
    shown = vrex("policies").stdout
    assert "resv.ratio_q16" in shown
    assert "flexgen" in shown
