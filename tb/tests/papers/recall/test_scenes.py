"""Joined scenes: the stream and its questions, what policies attend to, `vrex papers scenes`, and its picture."""

import json
import re
from dataclasses import asdict, replace
from math import exp, fsum

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.full_streaming import StreamingParams
from openvrex.golden.policies.light_attention import bf16
from openvrex.golden.policies.policy import Block, LayerBlock
from openvrex.golden.policies.registry import override
from openvrex.papers.commands.scenes_command import interval, share
from openvrex.papers.policies.registry import entry
from openvrex.papers.recall.scene_picture import THUMBNAILS, picture
from openvrex.papers.recall.scene_run import SceneCase, _Asked, ask, far_frames
from openvrex.papers.recall.scenes import CLIPS, Scenes
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import tried, vrex
from tb.tests.golden.inputs.trace_samples import models

SHORT = SceneCase(Scenes(("bikes", "carphone", "bigbuckbunny"), frames=3, tokens=5, seed=3), window=20, layers=2)


@models
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stream_joins_its_scenes(seed):
    """Every scene has adjacent frames of its clip and starts a GOP without motion; its question is not shown."""
    joined = Scenes(seed=seed).joined()
    frames = joined.shown()
    assert sorted(joined.order) == sorted(CLIPS)
    assert joined == Scenes(seed=seed).joined()
    assert [f.index for f in frames] == list(range(4 * 24))
    times = np.array([f.time for f in frames]).reshape(4, 24)
    assert (abs(np.diff(times) - 1 / 8) < 1 / 12.5).all()  # the clips' own frames are up to 1 / 12.5 s apart
    for scene in range(4):
        own = frames[scene * 24 : scene * 24 + 24]
        assert (own[0].kind, own[0].leads, sum(map(len, own[0].motions))) == ("I", True, 0)
        assert {f.gop for f in own}.isdisjoint(f.gop for f in frames if f not in own)
        assert joined.held_out(scene).time > own[-1].time


@models
def test_seeds_differ():
    made = [Scenes(seed=seed).joined() for seed in range(1, 9)]
    assert len({(j.order, j.starts) for j in made}) == 8
    assert len({j.order for j in made}) > 1


def test_weight_is_that_of_full_attention():
    """Of every token, against a sum in exact arithmetic over the same queries and keys."""
    shape, rng = Shape(1, 6, 2, 8), np.random.default_rng(1)
    run = _Asked(entry("full").build(shape), 4)
    run.keep, run.weight = [], []
    arrays = [bf16(rng.normal(size=(20, heads, 8)).astype(np.float32)) for heads in (6, 2, 2)]
    for index, stage, tokens in ((0, "frame", np.arange(15)), (1, "question", np.arange(15, 20))):
        block = Block(index, stage, int(tokens[0]), int(tokens[-1]) + 1)
        run.begin(block)
        q, k, v = (a[tokens] for a in arrays)
        run.take(0, tokens, k, v)
        run.attend(LayerBlock(0, block, tokens, q, run.histories[0].k, run.histories[0].v))
        run.finish(block)
    assert len(run.weight) == len(run.keep) == 1
    q, k, _ = (a.astype(float) for a in arrays)
    want = np.zeros((2, 20))
    for row in range(15, 20):
        for head in range(6):
            scores = [float(q[row, head] @ k[token, head // 3]) / 8**0.5 for token in range(row + 1)]
            total = fsum(exp(s) for s in scores)
            for token, s in enumerate(scores):
                want[head // 3, token] += exp(s) / total
    # FP32: 8 products a score and their scale, an exponential, a sum of 20, a division; scores stay below 8.
    assert max(abs(q).sum(-1).max(), 1) < 32
    np.testing.assert_allclose(run.weight[0], want, rtol=64 * 8 * 2.0**-24 + 32 * 2.0**-24, atol=1e-12)


@models
def test_everything_fetched_recalls_everything():
    """To the last digit, and with the scenes' own share as precision; fetching it is all that differs from full."""
    full, flexgen = (ask(SHORT, entry(name)) for name in ("full", "flexgen"))
    far = far_frames(SHORT)
    assert far.tolist() == [False, True, True, True, True, False, False, False, False]  # sinks, four frames, 20 tokens
    for found in (full, flexgen):
        assert found.weight_found == found.weight
        assert found.attended == [found.far] * 2 == [2 * 4 * 5 * 3] * 2  # questions, frames, tokens, KV heads
        assert found.right == [found.own] * 2 == [2 * 2 * 5 * 3] * 2
        assert np.array(found.fetched_of).all()
        assert 0 < found.weight_right[0] < found.weight[0] < 2 * 5 * 9  # questions, rows, heads
    own = {"in_bytes", "pieces", "seconds"}
    assert {k: v for k, v in asdict(full).items() if k not in own} == {
        k: v for k, v in asdict(flexgen).items() if k not in own
    }
    earlier = 3 + 9 * 5  # prompt and frames
    assert (full.in_bytes, flexgen.in_bytes) == (0, 2 * earlier * 2 * 3 * 4 * 64)  # questions, tokens, layers, heads


@models
def test_nothing_fetched_recalls_nothing():
    window = replace(entry("streamingllm"), params=StreamingParams(recent=20))
    found = ask(SHORT, window)
    assert found.attended == found.right == [0, 0]
    assert found.weight_found == [0.0, 0.0]
    assert min(found.weight) > 0


@models
def test_same_case_same_answer():
    resv = replace(entry("resv"), params=override(entry("resv").params, {"resv.recent": "20"}))
    a, b = (asdict(ask(SHORT, resv)) for _ in range(2))
    assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert 0 < sum(a["attended"]) < 2 * a["far"]


@pytest.mark.nightly  # short form: test_recall.py
@models
def test_command_resumes(tmp_path, monkeypatch):
    """What is known is not run again; a second call gives the same figures and the same picture."""
    line = ("bikes", "carphone", "--frames", "5", "--tokens", "36", "--policy", "full,resv",
            "-p", "resv.resv.th_hd=3,7", "--seeds", "1", "-o", str(tmp_path))  # fmt: skip
    first = vrex("papers", "scenes", *line, "--workers", "1", "--json")
    found = json.loads(first.stdout)
    assert [s["variant"] for s in found] == ["full", "resv th_hd=3", "resv th_hd=7"]
    assert found[0]["recall"]["mean"] == found[0]["attended"]["mean"] == 1.0
    assert found[0]["precision"]["mean"] == found[0]["chance"]
    assert len(found[1]["recall"]["by_layer"]) == 30
    drawn = (tmp_path / "frames.png").read_bytes()
    monkeypatch.setattr("openvrex.synth.sweep.dask_run.cluster", lambda *_: pytest.fail("nothing is left to run"))
    assert json.loads(vrex("papers", "scenes", *line, "--json").stdout) == found
    assert json.loads((tmp_path / "scenes.json").read_text()) == found
    assert (tmp_path / "frames.png").read_bytes() == drawn
    assert "resv th_hd=3" in tried("papers", "scenes", *line).stdout
    assert (tmp_path / "layers.svg").read_text().startswith("<?xml")


@models
def test_every_scene_asked_for_has_far_frames():
    """A case is accepted exactly if it leaves some."""
    for clips in (CLIPS, CLIPS[:2]):
        for tokens, window in ((10, 256), (5, 20), (36, 64), (37, 256)):
            cases = [SceneCase(Scenes(clips, frames, tokens=tokens), window=window) for frames in range(1, 32)]
            for case in cases:
                far = far_frames(case).reshape(len(clips), -1)
                assert bool(far[:-1].any(axis=1).all()) is accepted(case)


def accepted(case: SceneCase) -> bool:
    try:
        case.checked()
    except ParamError:
        return False
    return True


@models
def test_the_picture_shows_every_scene():
    """A thumbnail for each shown frame and one for the question, and a heat map with its scale for each panel."""
    scenes = Scenes(seed=2)
    joined, far, rng = scenes.joined(), far_frames(SceneCase(scenes)), np.random.default_rng(1)
    weight, fetched = rng.random((30, 96)), rng.random((30, 96))
    figure = picture(joined, 1, far, ("weight", weight), {"a policy": fetched, "another": fetched})
    thumbnails = [a for a in figure.axes if a.images and a.images[0].get_array().ndim == 3]
    assert len(thumbnails) == 1 + THUMBNAILS
    assert [a.get_title("left") for a in thumbnails if a.get_title("left")] == ["question", *joined.order]
    maps = [a for a in figure.axes if a.get_ylabel() == "layer"]
    assert [a.get_title("left").partition(",")[0] for a in maps] == ["weight", "a policy", "another"]
    shown = maps[1].images[0].get_array()
    np.testing.assert_array_equal(shown[:, far], 100 * fetched[:, far])
    assert shown.mask[:, ~far].all()
    assert not shown.mask[:, far].any()
    assert maps[1].images[0].get_extent() == [0, 96, 29.5, -0.5]
    assert len(figure.axes) == len(thumbnails) + 2 * len(maps)


@models
def test_the_demo_shows_what_a_question_fetches():
    """As one picture within the page: no request to elsewhere."""
    from openvrex.papers.commands.demo_command import question_section

    section = question_section()
    assert section.plot.startswith("<svg")
    assert "resident, not counted" in section.plot
    assert set(re.findall(r'(?:src|href)="(?!#)([^"]{15})', section.plot)) == {"data:image/png;"}
    assert len(section.rows) == 1
    assert all(0 < float(cell) < 100 for cell in section.rows[0][1:])


def test_shares_and_their_intervals():
    """By hand: two seeds of two layers; t of 3, 7 and 19 degrees of freedom from tables."""
    found = share([[1, 0], [3, 0]], [[4, 0], [4, 2]])
    assert (found.mean, found.by_layer) == (0.375, [0.5, 0.0])
    assert share([[0, 0]], [[0, 0]]) == type(found)(None, None, None, [None, None])
    assert interval([0.5]) == (None, None)
    for n, t in ((4, 3.182), (8, 2.365), (20, 2.093)):
        values = [0.5 + 0.01 * (-1) ** i for i in range(n)]
        low, high = interval(values)
        assert high - low == pytest.approx(2 * t * np.std(values, ddof=1) / n**0.5, rel=0.01)


def test_the_page_shows_what_was_recorded():
    """`docs/papers/recall.md` has the recorded commands and a row for each of their figures."""
    runs = json.loads((ROOT / "docs/results/scenes.json").read_text())["runs"]
    page = (ROOT / "docs/papers/recall.md").read_text()
    assert all(f"\n{run['command']}\n" in page for run in runs)
    assert [len(run["summaries"]) for run in runs] == [8, 1]
    for s in runs[0]["summaries"] + runs[1]["summaries"]:
        means = [s[name]["mean"] for name in ("attended", "recall", "precision", "weight_precision")]
        row = " | ".join("" if mean is None else f"{mean:.1%}" for mean in means)
        assert f"\n| `{s['variant']}` | {row} | {s['in_mb']:.1f} | " in page
    weight = runs[0]["summaries"][0]["weight_precision"]["by_layer"]
    inner, outer = np.mean(weight[17:25]), np.mean(weight[:17] + weight[25:])
    assert f"{inner:.0%} of its weight lies on the scene asked\n  for; in the others {outer:.0%}" in page
