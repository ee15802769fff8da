"""`vrex papers stream` as a user meets it: results, plots, resuming bit for bit, one-line errors."""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import safetensors
from matplotlib.figure import Figure

from openvrex.golden.inputs import decoder, vision
from openvrex.golden.inputs.trace import TENSORS
from openvrex.golden.policies import policy_run, stream_runs
from openvrex.golden.policies.policy_run import Record
from openvrex.golden.policies.registry import override
from openvrex.papers.commands import policy_comparison, stream_command
from openvrex.papers.commands.stream_command import TEACHER, chosen
from openvrex.papers.policies.registry import ALL, POLICIES
from openvrex.papers.policies.run_figures import of_policy, ratios, series, summary
from openvrex.scripts.check.verify_command import FIXTURE
from tb.tests.commands import refuses, tried, vrex
from tb.tests.golden.inputs.trace_samples import FakeEncoder, models, rewrite, small_weights
from tb.tests.golden.inputs.video_samples import texture, without_packets, write

POLICY = ("--policy", "resv,rekv,streamingllm", "-p", "resv.resv.recent=32", "-p", "rekv.recent=32")
FILES = ["ratio.png", "ratio.svg", "results.json", "stream.png", "stream.svg"]


def written(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on the fixture that nothing interrupts."""
    folder = tmp_path_factory.mktemp("stream") / "whole"
    done = vrex("papers", "stream", FIXTURE, *POLICY, "-o", folder, "--json")
    return folder, json.loads(done.stdout)


@pytest.fixture
def no_plots(monkeypatch):
    """Empty plots: drawing takes longer than a small stream."""
    for name in ("plot_series", "plot_ratios"):
        monkeypatch.setattr(stream_command, name, lambda *_: Figure())


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
        [*FILES, "report.md", "source.json", *(f"{name}.run" for name in results["policies"])]
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
    everything = {"layers": [1, 10, 20], "policies": dict.fromkeys(POLICIES, full)}
    for plot in (stream_command.plot_series, stream_command.plot_ratios):
        lines = plot(everything).axes[0].lines
        assert len({line.get_color() for line in lines}) == len(lines) == len(POLICIES)


@pytest.mark.parametrize("stop", [1, 40, 75])
def test_interrupted_while_writing_it_resumes_to_the_same_bits(stop, whole, tmp_path, monkeypatch):
    """The stop-th file is torn in the middle; the second call ends with the bytes of the uninterrupted run."""
    sound, count = stream_runs.replacing, 0

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

    monkeypatch.setattr(stream_runs, "replacing", torn)
    monkeypatch.setattr(stream_runs, "SAVING", float("inf"))  # after every block
    first = tried("papers", "stream", FIXTURE, *POLICY, "-o", tmp_path / "x")
    assert str(first.exception) == "killed"
    assert not (tmp_path / "x" / "results.json").exists()
    before = count
    vrex("papers", "stream", FIXTURE, *POLICY, "-o", tmp_path / "x")
    assert count - before == 4 * 34 + (stop == 1) - max(0, stop - 2)  # only what was not there yet
    assert written(tmp_path / "x") == written(whole[0])


@pytest.mark.parametrize(("share", "saves"), [(float("inf"), 34), (1e-12, 2)])
def test_saving_has_its_share_of_the_time(share, saves, tmp_path, monkeypatch):
    """After every block, or, where it may take nothing, after the first and the last."""
    sound, count = stream_runs.replacing, 0

    def counted(path):
        nonlocal count
        count += path.suffix == ".run"
        return sound(path)

    stream = stream_runs.TraceStream(FIXTURE, tmp_path, {})
    monkeypatch.setattr(stream_runs, "replacing", counted)
    monkeypatch.setattr(stream_runs, "SAVING", share)
    run = stream_runs.follow(stream, "rekv", POLICIES["rekv"], tmp_path)
    assert (len(run.records), count) == (34, saves)
    assert len(load(tmp_path / "rekv.run").records) == 34


def test_a_file_is_replaced_at_once(tmp_path):
    """A reader of the old file never sees a part of the new one, and a failed write leaves nothing behind."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with open(path, "rb") as reader:
        with stream_runs.replacing(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    with pytest.raises(TypeError), stream_runs.replacing(path) as file:
        file.write("no bytes")
    assert [f.name for f in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"new"


def test_killed_it_resumes_to_the_same_bits(whole, tmp_path):
    folder = tmp_path / "x"
    line = [
        sys.executable,
        "-c",
        "from openvrex.scripts.main import app; app()",
        "papers",
        "stream",
        FIXTURE,
        *POLICY,
        "-o",
        folder,
    ]
    process = subprocess.Popen([str(a) for a in line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (folder / "resv.run").exists() and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    vrex("papers", "stream", FIXTURE, *POLICY, "-o", folder)
    assert written(folder) == written(whole[0])


def test_finished_it_runs_nothing_again_and_takes_more_policies(no_plots, tmp_path):
    args = ("papers", "stream", FIXTURE, "-o", tmp_path / "x")
    vrex(*args, "--policy", "rekv")
    before = (tmp_path / "x" / "full.run").stat().st_mtime_ns
    more = vrex(*args, "--policy", "rekv,flexgen", "--json")
    assert list(json.loads(more.stdout)["policies"]) == ["full", "rekv", "flexgen"]
    assert (tmp_path / "x" / "full.run").stat().st_mtime_ns == before


def test_video_in_a_decoder(small, small_models, no_plots, tmp_path):  # noqa: F811
    """Frames, question and answer; a second stream into the same folder is refused; a resumed one is the same."""
    args = ("papers", "stream", small, "--frames", 5, "--tokens", 4, "--question", "why", "--generate", 3)
    args += ("--policy", "resv,streamingllm,oaken", "-p", "resv.resv.recent=8", "-p", "streamingllm.recent=4")
    done = vrex(*args, "-o", tmp_path / "x", "--json")
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
    refused = refuses(*args, "--fps", 5, "-o", tmp_path / "x")
    assert "holds another run (fps is None there and 5.0 now)" in refused.stderr
    table = tried(*args, "-o", tmp_path / "x")
    assert "projector" in table.stdout


def test_policies_are_fed_the_answer_of_full_attention(small, small_models, tmp_path, monkeypatch):  # noqa: F811
    options = stream_runs.Options(4, 4, None, "why", 4)
    stream = stream_runs.DecoderStream(str(small), options, tmp_path, lambda done, total: None)
    teacher = stream_runs.follow(stream, "full", POLICIES["full"], tmp_path)
    ids = [r.choices[-1] for r in teacher.records]
    step, targets = policy_run.DecoderRun.step, []

    def spy(self, model, block, x, wanted):
        targets.append(wanted)
        return step(self, model, block, x, wanted)

    monkeypatch.setattr(policy_run.DecoderRun, "step", spy)
    run = stream_runs.follow(stream, "oaken", POLICIES["oaken"], tmp_path, teacher.records)
    assert [t.tolist() for t in targets[6:]] == [[i] for i in ids[6:]]
    assert targets[5][-1] == ids[5]
    assert targets[1] is None
    first = stream.answer_from
    x = run.embeddings[-4:]
    np.testing.assert_array_equal(x, stream.decoder.embeddings[ids[first - 1 : -1]])
    assert [r.stage for r in run.records] == ["prompt", *["frame"] * 4, "question", *["generation"] * 4]
    assert all(len(r.losses) == (r.stop - r.start) * (r.stage in ("question", "generation")) for r in run.records)


def test_hybrid_memory_answers_in_its_own_words(small, small_models, tmp_path):  # noqa: F811
    """Fed its own choices: as full attention if it evicts nothing and has no branch, else as a run made by hand."""
    runs = stream_runs
    stream = runs.DecoderStream(str(small), runs.Options(4, 4, None, "why", 4), tmp_path, lambda done, total: None)
    teacher = runs.follow(stream, "full", POLICIES["full"], tmp_path)
    said = {}
    for name, changes in (("plain", {"ssm": "disabled"}), ("branch", {"block_tokens": "2", "recent_blocks": "2"})):
        found = replace(POLICIES["hybrid"], params=override(POLICIES["hybrid"].params, changes))
        run = runs.follow(stream, name, found, tmp_path, teacher.records)
        assert len(run.records) == len(teacher.records)
        assert run.length == teacher.length  # the run itself was fed the other's words
        alone = stream.start(found)
        list(stream.run(alone, None))  # its own words from the start, as it comes first
        assert run.spoken == [r.choices[-1] for r in alone.records[stream.answer_from - 1 : -1]]
        said[name] = stream.text(run, False)
    assert len(run.spoken) == 4
    assert said["plain"] == stream.text(teacher, True)
    assert stream.text(runs.follow(stream, "oaken", POLICIES["oaken"], tmp_path, teacher.records), False) is None
    shown = policy_comparison.answers([{"source": {"stream": "a.mp4"}, "texts": said}, {"source": {}}])
    assert shown == [f"a.mp4, {name}: {text!r}" for name, text in said.items()]


def test_text_has_a_loss_at_every_token(small_models, no_plots, tmp_path):
    args = ("papers", "stream", "text", "--frames", 4, "--tokens", 9, "--generate", 0, "-o", tmp_path / "x", "--json")
    done = vrex(*args, "--policy", "streamingllm", "-p", "streamingllm.recent=3")
    results = json.loads(done.stdout)["policies"]
    losses = [results[name]["frame"]["loss"] for name in ("full", "streamingllm")]
    assert 0 < losses[0] != losses[1]


def test_several_videos_in_one_report(small, small_models, no_plots, tmp_path):  # noqa: F811
    """A folder each, one table of all, the motion that the vectors say; a finished one runs nothing again."""
    still = write(tmp_path / "still.mkv", texture(8, step=0))
    args = ("papers", "stream", still, small, "--frames", 6, "--tokens", 4, "--generate", 1, "--gop", 3, "--depth", 1)
    args += ("--policy", "codecsight,mosaic,mosaic-eager,hybrid", "-o", tmp_path / "x")
    done = vrex(*args, "--json")
    first, second = json.loads(done.stdout)
    assert [s["source"]["stream"] for s in (first, second)] == ["still.mkv", "small.mp4"]
    assert first["motion"] == {"pixels": 0, "class": "low"}
    assert first["layers"] == [0]
    assert sorted(f.name for f in (tmp_path / "x").iterdir()) == ["report.md", "small", "still"]
    assert json.loads((tmp_path / "x" / "still" / "results.json").read_text()) == first
    # A GOP of 3: of 6 frames the I-frames 0 and 3 are whole, and nothing moves in the others.
    assert first["policies"]["codecsight"]["pruned"] == pytest.approx(4 / 6)
    assert first["policies"]["full"]["pruned"] == 0
    text = (tmp_path / "x" / "report.md").read_text()
    table = [line.split(" | ") for line in text.splitlines() if line.startswith(("| still.mkv", "| small.mp4"))]
    assert [row[2] for row in table] == ["full", "codecsight", "mosaic", "mosaic-eager", "hybrid"] * 2
    assert len({len(row) for row in table}) == 1
    assert "low motion (0.00 px a frame)" in text
    assert policy_comparison.RANDOM in text
    encoded = (tmp_path / "x" / "still" / "stream.mkv").stat().st_mtime_ns
    assert json.loads(vrex(*args, "--json").stdout) == [first, second]
    assert (tmp_path / "x" / "still" / "stream.mkv").stat().st_mtime_ns == encoded
    shown = tried(*args).stdout.replace("\n", " ")
    for note in ("parameters of its history branch are random", "first 1 layers ran", "CodecSight 6.1.4", "Table II"):
        assert note in shown
    twice = tried("papers", "stream", still, still, "-o", tmp_path / "y")
    assert "each needs a name of its own" in twice.stderr


def test_hybrid_without_its_branch_needs_no_warning(no_plots, tmp_path):
    args = ("papers", "stream", FIXTURE, "--policy", "hybrid", "-o", tmp_path / "x", "-p", "hybrid.ssm=disabled")
    assert "random" not in tried(*args).stdout
    assert "random" not in (tmp_path / "x" / "report.md").read_text()


# Streams that are not as they should be


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Videos by what is odd about them."""
    folder = tmp_path_factory.mktemp("odd")
    moving = write(folder / "moving.mkv", texture(14), gop=4)
    parts = [write(folder / f"{size}.h264", texture(4, size=size)) for size in (64, 96)]
    (folder / "resized.h264").write_bytes(b"".join(p.read_bytes() for p in parts))
    (folder / "cut.mkv").write_bytes(moving.read_bytes()[: moving.stat().st_size // 2])
    return {
        "late": without_packets(moving, folder / "late.mkv", 2),
        "resized": folder / "resized.h264",
        "vectorless": write(folder / "vectorless.mkv", texture(5), codec="libvpx-vp9"),
        "one": write(folder / "one.mkv", texture(1)),
        "none": write(folder / "none.mkv", []),
        "cut": folder / "cut.mkv",
    }


@pytest.mark.parametrize("gop", [0, 4])
@pytest.mark.parametrize(
    ("kind", "frames", "note"),
    [
        ("late", 10, "starts within a GOP: 2 packets before its first I-frame are left out"),
        ("resized", 8, "changes its resolution (64x64, 96x96)"),
        ("vectorless", 5, "has no motion vectors"),
        ("one", 1, None),
    ],
)
def test_a_fallback_is_stated(kind, frames, note, gop, odd, small_models, no_plots, tmp_path):
    """Every policy runs on it and loses no entry; encoding anew gives motion vectors to a stream without."""
    done = vrex(
        "papers",
        "stream",
        odd[kind],
        "--tokens",
        4,
        "--generate",
        1,
        "--gop",
        gop,
        "--policy",
        "all",
        "--depth",
        1,
        "-o",
        tmp_path / "x",
        "--json",
    )
    results = json.loads(done.stdout)
    assert list(results["policies"]) == list(ALL)
    stated = [] if note is None or gop and kind == "vectorless" else [note]
    assert [text[: len(note or "")] for text in results["fallbacks"]] == stated
    assert all(text in (tmp_path / "x" / "report.md").read_text() for text in results["fallbacks"])
    for name, r in results["policies"].items():
        assert r["tokens"]["absent"] == 0, name
        assert sum(r["tokens"].values()) == results["tokens"]
    lengths = [r.stage for r in load(tmp_path / "x" / "full.run").records]
    assert lengths.count("frame") == frames
    assert results["policies"]["full"]["frame"]["error"] in (0, None)
    if kind == "vectorless" and not gop:
        assert results["policies"]["codecsight"]["pruned"] == 0
        assert results["motion"] == {"pixels": None, "class": None}


@pytest.mark.parametrize("gop", [0, 4])
@pytest.mark.parametrize(("kind", "message"), [("none", "has no frame"), ("cut", "cut.mkv: damaged at frame")])
def test_a_stream_that_cannot_run_is_one_line(kind, message, gop, odd, small_models, tmp_path):
    run = refuses("papers", "stream", odd[kind], "--tokens", 4, "--gop", gop, "-o", tmp_path / "x")
    assert not (tmp_path / "x" / "results.json").exists()
    assert message in run.stderr or "no frame" in run.stderr


def load(path):
    return pickle.loads(path.read_bytes())[1]


@models
def test_real_models(no_plots, tmp_path):
    done = vrex(
        "papers",
        "stream",
        "world",
        "--frames",
        2,
        "--tokens",
        4,
        "--generate",
        1,
        "--policy",
        "resv",
        "-p",
        "resv.resv.recent=1",
        "-o",
        tmp_path / "x",
        "--json",
    )
    results = json.loads(done.stdout)
    assert results["layers"] == list(range(30))
    assert 0 < results["policies"]["resv"]["answer"]["kept"] < 1


def test_a_folder_of_something_else_is_refused(no_plots, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    args = ("papers", "stream", FIXTURE, "--policy", "rekv", "-o", tmp_path)
    assert "not empty and not the folder of a run: choose another folder" in tried(*args).stderr
    (tmp_path / "source.json").write_text("{")
    assert "source.json: damaged: choose another folder" in tried(*args).stderr
    (tmp_path / "source.json").unlink()
    (tmp_path / "mine.txt").unlink()
    vrex(*args)
    assert "ran with ReKVParams(" in tried(*args, "-p", "rekv.recent=3").stderr
    (tmp_path / "rekv.run").write_bytes(b"half")
    assert "rekv.run: damaged: remove it to run rekv again" in tried(*args).stderr


# Figures


class FakeRun:
    """Records alone; of the stream's tokens, number 6 was pruned by a plan."""

    policy = None

    def __init__(self, records):
        self.records = records
        self.known = np.arange(records[-1].stop) != 6
        self.shape = type("S", (), {"layers": 2, "kv_heads": 2})


def record(stage, start, stop, kept, choices, error=0.5, device=8):
    kept = np.full((2, 2), float(kept))
    totals = {"in.fetch": 10 * stop, "in.prefetch": 1, "out.offload": 2, "ops.sort": 5, "ops.linear": 100}
    totals |= {"device.peak": 7, "pieces.in.fetch": 99, "device": 3 * stop, "host": 5}
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
    assert s["generation"] == s["answer"]
    assert s["pruned"] == 1 / 8
    assert np.isnan(list(s["growth"].values())).all()  # one frame in the second half
    assert s["tokens"]["device"] == 2
    t = series(mine, full)
    assert t["tokens"] == [4, 8, 12, 13]
    assert t["in_bytes"] == [41, 81, 121, 131]
    assert t["out_bytes"] == [2] * 4
    assert t["operations"] == [5] * 4
    assert t["held_tokens"] == [3] * 4
    assert t["agreement"] == [1, 1, 1, 4 / 5]
    np.testing.assert_allclose(ratios(mine), (2 / 4 + 2 / 8) / 2)


def test_growth_is_that_of_the_second_half_of_the_frames():
    rows = [record("frame", 4 * i, 4 * i + 4, 0, []) for i in range(6)]
    for r, device in zip(rows, (99, 0, 7, 10, 30, 20), strict=True):
        r.totals |= {"device": device}
    assert summary(FakeRun(rows), FakeRun(rows))["growth"] == {"device": 5, "host": 0}


def test_generation_is_the_answer_without_the_question():
    rows = [record("frame", 0, 4, 0, []), record("question", 4, 8, 4, []), record("generation", 8, 9, 2, [])]
    s = summary(FakeRun(rows), FakeRun(rows))
    assert s["generation"]["kept"] == 2 / 8
    assert s["answer"]["kept"] == (1 + 2 / 8) / 2


def test_mosaic_s_splits_and_coverage_are_its_policy_s(small, small_models, tmp_path):  # noqa: F811
    """Coverage is of the retrieved tokens, whichever there are; splitting at once defers nothing."""
    options = stream_runs.Options(14, 9, None, "why", 2)
    stream = stream_runs.DecoderStream(str(small), options, tmp_path, lambda done, total: None)
    strict = {"recent": "18", "build": "3", "ratio": "0.3", "cluster_tokens": "4", "semantic.small": "0.005",
              "semantic.large": "0.01"}  # fmt: skip
    found = {}
    for name in ("mosaic", "mosaic-eager"):
        entry = replace(POLICIES[name], params=override(POLICIES[name].params, strict))
        run = stream_runs.follow(stream, name, entry, tmp_path)
        found[name] = of_policy(run)
        assert found[name]["coverage"] == run.policy.covered / run.policy.needed
        assert 0 < found[name]["coverage"] <= 1
        assert found[name]["splits"] == run.policy.splits > 0
    assert found["mosaic"]["deferred"] > 0 == found["mosaic-eager"]["deferred"]


def test_codecsight_s_reduction_counts_windows_after_the_first(tmp_path, small_models):
    """CodecSight 6.1.3. GOP 4, w = 4, s = 2, nothing moves: of 11 frames, windows at 2, 4, 6 compute 4 frames each.

    Frames 4 to 9 come after the first window: 4 and 8 are I-frames, whole; the others bring nothing. Frames 0 and 4 are
    the overlaps' I-frames: window [2, 6) begins at its GOP's I-frame 0, so does not move; [4, 8) drops 0 to 3, keeps 4
    and computes it anew; [6, 10) begins at 4 and does not move.
    """
    path = write(tmp_path / "still.mkv", texture(11, step=0), gop=4)
    options = stream_runs.Options(11, 4, None, "why", 0, depth=1)
    stream = stream_runs.DecoderStream(str(path), options, tmp_path / "x", lambda done, total: None)
    entry = replace(
        POLICIES["codecsight"], params=override(POLICIES["codecsight"].params, {"window": "4", "stride": "2"})
    )
    run = stream_runs.follow(stream, "codecsight", entry, tmp_path / "x")
    assert of_policy(run)["reduction"] == pytest.approx(1 - (4 + 4 + 4) / (3 * 16))
    whole = stream_runs.follow(stream, "one", POLICIES["codecsight"], tmp_path / "x")  # 80 frames: one window
    assert np.isnan(of_policy(whole)["reduction"])


# Beside the papers


def fake_results(kept=0.5):
    """Results of the policies that the papers' figures need."""
    stages = {"frame": {"kept": kept}, "generation": {"kept": 0.02}}
    more = {"growth": {"device": 2.0**20}, "pruned": 0.27, "ratio": [[0.1, 0.3], [0.6, 0.4]]}
    own = {"mosaic": {"splits": 6, "coverage": 0.9}, "mosaic-eager": {"splits": 8}, "codecsight": {"reduction": 0.8}}
    return {
        name: stages
        | more
        | {"policy": own.get(name, {})}
        | ({"frame": {"kept": 0.25}} if name == "resv-paper" else {})
        for name in POLICIES
    }


def test_the_papers_figures_are_read_off_the_results():
    source = {"stream": "a.mp4"}
    made = {"source": source, "motion": {"class": None}, "tokens": 9, "layers": [0], "policies": fake_results()}
    table = policy_comparison.beside_papers([made, made])
    shown = {row[0]: row for row in table.rows}
    assert len(shown) == len(policy_comparison.FIGURES)
    ours = {what: row[3] for what, row in shown.items()}
    assert all(row[3] == row[4] for row in table.rows)
    assert ours["rekv: cache attended, frames / generation"] == "50.0% / 2.0%"
    assert ours["rekv over resv-paper: tokens attended, frames"] == "2.0 x"
    assert ours["resv-paper: layers, frames"] == "20.0% to 50.0%; heads 10.0% to 60.0%"
    assert ours["codecsight: visual tokens pruned"] == "27.0%"
    assert ours["codecsight: tokens not computed, of full recomputation's"] == "80.0%"
    assert ours["mosaic: splits saved by deferring"] == "25.0% (6 instead of 8)"
    assert ours["mosaic: retrieved tokens that prefetch had brought"] == "90.0%"
    assert ours["hybrid: device growth, MiB a frame"] == "1.000"
    made["policies"]["mosaic-eager"]["policy"]["splits"] = 0
    assert policy_comparison.saved(made["policies"]) == "no split"
    del made["policies"]["mosaic-eager"]
    assert len(policy_comparison.beside_papers([made]).rows) == len(policy_comparison.FIGURES) - 1


def test_baselines_run_at_the_ratios_that_stand_beside_them():
    """V-Rex Table II."""
    paper = {figure.what.partition(":")[0]: figure.paper for figure in policy_comparison.FIGURES[:3]}
    for name, text in paper.items():
        params = POLICIES[name].params
        assert text == f"{100 * params.frame_ratio:.3g} % / {100 * params.generation_ratio:.3g} %"


def test_hybrid_tables_ii_and_iii():
    ours = {row[0]: row[2] for row in policy_comparison.hybrid_tables().rows}
    assert list(ours.values()) == ["223.5 to 23.6 (-89.4%)", "9.5 x", "392 to 140 (-64%)", "6.12 to 0.00"]


def test_length_table_has_each_quarter_s_end():
    series = {"tokens": [5, 6, 7, 8, 9, 10], "device_peak": [1e6, 2e6, 3e6, 4e6, 5e6, 6e6]}
    series |= {"in_bytes": [0, 1e6, 2e6, 3e6, 4e6, 5e6], "out_bytes": [1e6] * 6}
    table = policy_comparison.by_length({"source": {"stream": "a"}, "policies": {"full": {"series": series}}})
    assert table.columns == ("policy", "6 tokens", "7 tokens", "9 tokens", "10 tokens")
    assert table.rows == [("full", "2.00 / 2.0", "3.00 / 3.0", "5.00 / 5.0", "6.00 / 6.0")]


def test_all_policies_by_one_word():
    assert list(chosen("all", [])) == list(ALL)
    assert list(chosen("resv, full", [])) == ["full", "resv"]


def test_policies_lists_every_parameter_and_source():
    listing = json.loads(vrex("papers", "list", "--json").stdout)
    assert list(listing) == list(POLICIES)
    for name, p in listing.items():
        assert p["source"]
        assert p["summary"].endswith((".", ";"))
        for param, (_, meaning) in p["params"].items():
            assert meaning or param.startswith("resv."), (name, param)
    value, meaning = listing["resv"]["params"]["resv.th_hd"]
    assert value == 3
    assert meaning.startswith("a token joins a cluster at a Hamming distance below this")
    shown = tried("papers", "list").stdout
    assert "resv.ratio_q16" in shown
    assert "flexgen" in shown


def test_a_trace_that_does_not_say_how_keys_are_turned(tmp_path, no_plots):
    """Version 1: refused where a policy turns keys, before anything is written; other policies take it."""
    path, folder = tmp_path / "old.safetensors", tmp_path / "x"
    path.write_bytes(FIXTURE.read_bytes())

    def first_version(header, head):
        model = head.pop("model")
        head["version"] = 1
        assert model["rotary"]["base"] == 1e5

    rewrite(path, first_version)
    tensors = {name: t["data"] for name, t in safetensors.deserialize(path.read_bytes())}
    digest = hashlib.sha256(b"".join(tensors[name] for name in TENSORS if name in tensors)).hexdigest()
    rewrite(path, lambda header, head: head.update(sha256=digest))
    for policy in ("streamingllm", "resv,codecsight"):
        ran = tried("papers", "stream", path, "--policy", policy, "-o", folder)
        assert (ran.exit_code, ran.stderr.count("\n"), folder.exists()) == (2, 1, False)
        assert (
            f"{path}: does not say how its keys are turned, which {policy.split(',')[-1]} needs: record" in ran.stderr
        )
    vrex("papers", "stream", path, "--policy", "rekv", "-o", folder)
