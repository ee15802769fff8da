"""Recall: tasks with facts, and what policies recall of them in the real decoder."""

import itertools
import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from math import comb
from statistics import fmean, stdev

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.full_streaming import StreamingParams
from openvrex.golden.retrieval.signatures import SignatureParams
from openvrex.papers.commands.kept_runs import complete, variants_of
from openvrex.papers.commands.recall_command import Summary, interval, plot, summaries, without_matrices
from openvrex.papers.policies.registry import entry
from openvrex.papers.recall.recall_run import MODELS, Case, Recalled, recall
from openvrex.papers.recall.recall_tasks import TASKS, task
from openvrex.synth.sweep.database import Row
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import refuses, tried, vrex
from tb.tests.golden.inputs.trace_samples import models

pytestmark = models
SHORT = Case(tokens=512, seed=3)


@pytest.fixture(scope="module")
def tokenizer():
    return Decoder(1, 1).tokenizer


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_a_task_holds_its_answer(tokenizer, name, depth):
    """The text is as long as asked for, holds the answer, and depends on the seed alone."""
    made = task(name, 7, 400, depth, tokenizer)
    assert abs(len(made.text) - 400) <= 24  # a table ends with a whole row, shorter than that
    assert tokenizer.decode(made.answer) in tokenizer.decode(made.text)
    assert made == task(name, 7, 400, depth, tokenizer)
    assert made.text != task(name, 8, 400, depth, tokenizer).text


def test_the_key_stands_where_it_was_asked_for(tokenizer):
    for depth in (0.1, 0.5, 0.9):
        # Depth is a share of tokens, and letters per token differ along the text.
        text = tokenizer.decode(task("passkey", 1, 1000, depth, tokenizer).text)
        assert abs(text.index("The pass key is") / len(text) - depth) < 0.15


def test_everything_fetched_is_full_attention():
    """To the last digit, with all that it fetched counted."""
    full, flexgen = (recall(SHORT, entry(name), layers=3) for name in ("full", "flexgen"))
    own = {"frames", "answers", "in_bytes", "pieces", "tokens", "blocks", "seconds"}
    assert {k: v for k, v in asdict(full).items() if k not in own} == {
        k: v for k, v in asdict(flexgen).items() if k not in own
    }
    assert (full.frames, flexgen.frames) == (0.0, 1.0)
    assert full.in_bytes == 0 < flexgen.in_bytes


def test_nothing_fetched_recalls_nothing():
    """All layers: full attention repeats the key, a window that has passed it does not."""
    window = replace(entry("streamingllm"), params=StreamingParams(recent=64))
    assert recall(SHORT, entry("full")).recall == 1.0
    assert recall(SHORT, window).recall <= 0.4  # by chance, 0.1 a digit, 3 or more of 5 come in 0.9 % of texts


def test_same_case_same_result():
    a, b = (asdict(recall(SHORT, entry("resv"), layers=2)) for _ in range(2))
    assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_command_resumes(tmp_path, monkeypatch):
    """What is known is not run again; a second call gives the same figures."""
    line = ("repeat", "--policy", "full,resv", "-p", "resv.resv.th_hd=3,7", "--tokens", "256", "--seeds", "1")
    first = vrex("papers", "recall", *line, "-o", str(tmp_path), "--workers", "1", "--json")
    assert [s["variant"] for s in json.loads(first.stdout)] == ["full", "resv th_hd=3", "resv th_hd=7"]
    monkeypatch.setattr("openvrex.synth.sweep.dask_run.cluster", lambda *_: pytest.fail("nothing is left to run"))
    assert json.loads(vrex("papers", "recall", *line, "-o", str(tmp_path), "--json").stdout) == json.loads(first.stdout)
    assert json.loads((tmp_path / "recall.json").read_text()) == json.loads(first.stdout)
    shown = tried("papers", "recall", *line, "-o", str(tmp_path))
    assert "resv th_hd=3" in shown.stdout
    title = "Recall: smollm2, repeat, tokens 256, depth 0.25, runs 1"
    assert title in " ".join(shown.stdout.split())  # in a narrow terminal it takes two lines
    assert (tmp_path / "recall.svg").read_text().startswith("<?xml")


def recorded() -> tuple[dict, str]:
    return json.loads((ROOT / "docs/results/recall.json").read_text()), (ROOT / "docs/papers/recall.md").read_text()


def test_the_page_shows_what_was_recorded():
    """`docs/papers/recall.md` has the recorded commands and a row for each of their figures."""
    record, page = recorded()
    for run in record["runs"]:
        assert f"\n{run['command']}\n" in page
        for s in run["summaries"]:
            lead = f"{s['model']} | {s['tokens']:,} | " if run.get("lengths") else ""
            row = f"| {lead}`{s['variant']}` | {s['recall']:.0%} | {s['low']:.0%} to {s['high']:.0%} | "
            cost = f"{s['text_loss']:.3f} | {s['frames']:.1%} | {s['answers']:.1%} | {s['in_mb']:.0f} | "
            piece = "" if s["piece_bytes"] is None else f"{s['piece_bytes']:,.0f}"
            clusters = "" if s["clusters"] is None else f"{s['clusters']:.0f}"
            assert f"\n{row}{cost}{piece} | {clusters} | {s['seconds']:.0f} |\n" in page


def test_the_page_shows_other_places_and_tasks():
    """A row a policy: recall and interval at each place or task, and what it fetched on average over them."""
    record, page = recorded()
    for table in record["tables"]:
        assert all(f"\n{command}\n" in page for command in table["commands"])
        columns = list(dict.fromkeys(s[table["by"]] for s in table["summaries"]))
        heads = " | ".join(f"{c}" if table["by"] == "depth" else f"`{c}`" for c in columns)
        assert f"\n| policy | {heads} | fetched by a block | by a token of the answer |\n" in page
        for name in {s["variant"] for s in table["summaries"]}:
            own = [s for s in table["summaries"] if s["variant"] == name]
            assert [s[table["by"]] for s in own] == columns
            cells = " | ".join(f"{s['recall']:.0%} ({s['low']:.0%} to {s['high']:.0%})" for s in own)
            shares = (fmean(s[what] for s in own) for what in ("frames", "answers"))
            assert f"\n| `{name}` | {cells} | {' | '.join(f'{x:.1%}' for x in shares)} |\n" in page


def test_the_page_compares_a_table_for_each_head_with_one_for_a_layer():
    """The bytes and pieces that its bullets name; hardware's piece of a layer's table holds all three heads."""
    record, page = recorded()
    known = {s["variant"]: s for run in record["runs"][:2] for s in run["summaries"]}
    head, layer = known["resv"], known["resv scope=layer"]
    said = " ".join(page.split())
    assert (
        f"{head['in_mb']:.0f} MB instead of {layer['in_mb']:.0f}, {head['recall']:.0%} of the digits instead of" in said
    )
    assert f"pieces three times as long, {3 * layer['piece_bytes']:,.0f} bytes" in said
    ours, theirs = (s["in_mb"] * 1e6 / s["piece_bytes"] for s in (head, layer))
    assert f"takes {round(ours, -3):,.0f} pieces with a table for each head, {round(theirs / 3, -3):,.0f} with" in said


def test_the_page_shows_what_an_index_costs():
    """Bytes on the device and products of a row, for 1,000 tokens of a layer of three KV heads of 64.

    `resv` has three tables of keys of 64 numbers, `resv-paper` one of keys of 192.
    """
    page = (ROOT / "docs/papers/recall.md").read_text()
    clusters = {"resv": 2024, "resv-paper": 100}
    head = json.loads((ROOT / "docs/results/recall.json").read_text())["runs"][0]["summaries"]
    assert clusters == {s["variant"]: round(s["clusters"]) for s in head if s["clusters"]}
    for name, n in clusters.items():
        policy = entry(name).build(Shape(1, 9, 3, 64))
        tables = len(policy.layers[0].tables)
        assert tables == {"resv": 3, "resv-paper": 1}[name]
        size = n * policy._cluster_bytes(3 * 64 // tables) + tables * 1000 * 4
        products = round(n / tables) * 64
        assert f"| `{name}` | {size:,} | {size / 768_000:.1%} | {products:,} | |".replace("%", " %") in page
    p = SignatureParams()
    size = 3 * 1000 * p.bytes(64) + 3 * 1000 * 2 * 64 // p.page
    products = round((1000 / p.page + p.signs(64)) * 64)
    row = f"| `signatures` | {size:,} | {size / 768_000:.1%} | {products:,} | {1000 * p.signs(64):,} |"
    assert row.replace("%", " %") in page


def test_plots_have_a_panel_for_each_question():
    """Bytes and loss always; depth and length where there are several; a point for each summary."""

    def summary(variant: str, tokens: int, depth: float) -> Summary:
        shares = {"recall": depth, "low": 0.0, "high": 1.0, "frames": 0.1, "answers": 0.1}
        rest = dict.fromkeys(
            ("answer_loss", "text_loss", "in_mb", "seconds", "fetched", "blocks", "shared", "error"), 1.0
        )
        return Summary(
            "smollm2",
            variant,
            "passkey",
            tokens,
            depth,
            4,
            **shares,
            **rest,
            piece_bytes=None,
            clusters=None,
            behind=None,
            about=None,
        )

    for lengths, depths in (([512], [0.5]), ([512], [0.1, 0.9]), ([512, 1024], [0.5]), ([512, 1024], [0.1, 0.5, 0.9])):
        found = [summary(v, n, d) for v in ("full", "resv") for n in lengths for d in depths]
        panels = plot(found).axes
        assert len(panels) == 2 + (len(depths) > 1) + (len(lengths) > 1)
        for panel in panels[2:]:
            by_depth = panel.get_xlabel().startswith("place")
            lines = panel.get_legend_handles_labels()[1]
            assert len(lines) == 2 * len(lengths if by_depth else depths)
    assert len({*lines}) == len(lines)


def test_the_page_shows_what_was_recorded_of_the_second_decoder():
    """The section has the recorded commands and a row for each of their figures."""
    recorded = json.loads((ROOT / "docs/results/recall_gemma3.json").read_text())
    section = (ROOT / "docs/papers/recall.md").read_text().partition("## A second decoder")[2]
    assert all(f"\n{command}\n" in section for command in recorded["commands"])
    assert {s["model"] for s in recorded["summaries"]} == {"gemma3"}
    for s in recorded["summaries"]:
        row = f"| `{s['variant']}` | {s['tokens']:,} | {s['recall']:.0%} | {s['low']:.0%} to {s['high']:.0%} | "
        row += f"{s['text_loss']:.3f} | {s['frames']:.1%} | {s['answers']:.1%} | {s['in_mb']:.0f} | "
        assert f"\n{row}" in section


@pytest.mark.parametrize("bad", [1, 2])
def test_failed_runs_are_said(tmp_path, monkeypatch, bad):
    """One of two runs, or both: other results are written, and the command ends with 1 and the first error."""
    done = Row(asdict(Recalled(1.0, 0.1, 2.0, 0.1, 0.1, 4, 2, None, 8.0, 1.0, 1.0, 0.1, 1.0)))
    rows = lambda _, asked, *rest, **how: {k: Row({}, "it broke") if i < bad else done for i, k in enumerate(asked)}  # noqa: E731
    monkeypatch.setattr("openvrex.papers.commands.recall_command.complete", rows)
    run = tried("papers", "recall", "--policy", "full", "--seeds", "2", "-o", str(tmp_path))
    assert (run.exit_code, run.stderr) == (1, f"error: {bad} of 2 runs failed, the first: it broke\n")
    written = {f.name for f in tmp_path.iterdir()}
    assert written == ({"recall.json", "recall.svg"} if bad == 1 else set())
    assert bad == 2 or [s["runs"] for s in json.loads((tmp_path / "recall.json").read_text())] == [1]


@pytest.mark.parametrize("by_case", [False, True])
def test_a_worker_takes_all_runs_on_a_text(tmp_path, monkeypatch, by_case):
    """Where full attention reads it once. A run that fails says so; the others on its text go on."""
    taken = []

    def results(client, task, tasks):
        taken.extend(len(points) for points in tasks.values())
        return ((name, Row(task(points))) for name, points in tasks.items())

    def measure(point):
        variant, case = point
        if (variant.policy, case.seed) == ("full", 2):
            raise ValueError("it broke")
        return {"seed": case.seed}

    monkeypatch.setattr("openvrex.synth.sweep.dask_run.cluster", nullcontext)
    monkeypatch.setattr("openvrex.synth.sweep.dask_run.results", results)
    points = itertools.product(variants_of("full,resv", []), (replace(SHORT, seed=n) for n in (1, 2)))
    asked = {f"{variant.name} {case.seed}": (variant, case) for variant, case in points}
    rows = complete(tmp_path / "runs.db", asked, measure, True, by_case=by_case)
    assert taken == ([2, 2] if by_case else [1] * 4)
    assert rows.pop("full 2") == Row({}, "it broke")
    assert rows == {name: Row({"seed": asked[name][1].seed}) for name in asked if name != "full 2"}


@pytest.mark.parametrize(("name", "target"), [("smollm2", "models"), ("gemma3", "models-gemma")])
def test_a_missing_model_is_named_before_anything_runs(tmp_path, monkeypatch, name, target):
    monkeypatch.setattr(MODELS[name], "file", ("llm-none", *MODELS[name].file[1:]))
    run = refuses("papers", "recall", "-o", str(tmp_path / "x"), "--model", name)
    assert run.stderr == f"error: package llm-none is not installed: run 'make {target}'\n"
    assert not (tmp_path / "x").exists()


def test_a_policy_is_held_against_full_attention_on_the_same_texts():
    full, window = variants_of("full,streamingllm", [])
    one = Recalled(1.0, 0.1, 2.0, 0.1, 0.1, 4, 2, None, 8.0, 1.0, 1.0, 0.1, 1.0)
    runs = [(full, replace(SHORT, seed=n), replace(one, recall=r)) for n, r in enumerate((1.0, 0.8, 0.6))]
    runs += [(window, replace(SHORT, seed=n), replace(one, recall=r)) for n, r in enumerate((0.8, 0.8, 0.0))]
    found = [(round(s.behind, 6), round(s.about, 6)) for s in summaries(runs)]
    assert found == [(0.0, 0.0), (0.266667, round(1.96 * stdev((0.2, 0.0, 0.6)) / 3**0.5, 6))]
    assert [(s.behind, s.about) for s in summaries(runs[3:])] == [(None, None)]


def test_sweeps_are_grids():
    names = [v.name for v in variants_of("resv", ["resv.resv.th_hd=3,5", "resv.resv.ratio_q16=0,65536"])]
    assert names == [f"resv th_hd={h} ratio_q16={r}" for h in (3, 5) for r in (0, 65536)]


def test_interval_covers_the_share():
    """Wilson's interval holds the true share with these probabilities, summed over all outcomes of 20 runs.

    Outcomes are whole numbers, so that no interval holds it with exactly 95 %.
    """
    for share, holds in ((0.1, 0.957), (0.5, 0.959), (0.95, 0.925)):
        total = 0.0
        for k in range(21):
            low, high = interval(k / 20, 20)
            if low <= share <= high:
                total += comb(20, k) * share**k * (1 - share) ** (20 - k)
        assert round(total, 3) == holds
    assert interval(1.0, 20) == pytest.approx((0.839, 1.0), abs=1e-3)
    with pytest.raises(ParamError):
        Case(depth=-1).checked()


def test_a_model_without_matrices_is_told():
    """Coded pages of Gemma 3 take rows of a Hadamard matrix unless a file is given; SmolLM2's come with OpenVRex."""
    plain = list(variants_of("full,pages", []))
    assert "no matrices of gemma3 come with OpenVRex" in without_matrices(plain, "gemma3")
    assert not without_matrices(plain, "smollm2")
    assert not without_matrices(list(variants_of("full,resv", [])), "gemma3")
    assert not without_matrices(list(variants_of("pages", ["pages.matrices=own.npz"])), "gemma3")
