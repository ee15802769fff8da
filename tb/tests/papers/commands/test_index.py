"""`vrex papers index`: costs counted by hand, and bad input."""

import json

import pytest
from typer.testing import CliRunner

from openvrex.hdl.params import CLOCK
from openvrex.papers.commands.index_command import rows_of
from openvrex.scripts.main import app
from openvrex.sim.system.platforms import EDGE
from openvrex.tb.library.runner import ROOT

RESV = {"model": "smollm2", "variant": "resv", "task": "passkey", "tokens": 1500, "recall": 0.99, "error": 0.1,
        "blocks": 15.0, "clusters": 1800.0}  # fmt: skip
PAGES = RESV | {"variant": "pages budget=512", "recall": 1.0, "error": 0.05, "blocks": 64.0, "clusters": None}


def vrex(*words: object):
    return CliRunner().invoke(app, ["papers", "index", *map(str, words)])


def test_costs_by_hand(tmp_path):
    """40 rows a KV head, a head a core, 32 layers: bytes, and cycles of each unit."""
    file = tmp_path / "recall.json"
    file.write_text(json.dumps([RESV, RESV | {"task": "keys", "recall": 0.89}, PAGES]))
    run = vrex(file, "--cache", "15000,150000", "--json")
    assert run.exit_code == 0, run.output
    resv, resv10, pages, pages10 = json.loads(run.stdout)
    assert (resv["variant"], pages["variant"], resv["recall"], pages["recall"]) == ("resv", PAGES["variant"], 0.94, 1.0)
    cycle = 32 / CLOCK
    # a share of the cache: 150 blocks of 8 entries of 512 bytes; 600 clusters for each 1,000 tokens of a head
    assert resv["reads"] == pytest.approx(150 * 8 * 32)
    assert resv["moved"] == pytest.approx(150 * 8 * 32 * 8 * 512)
    assert resv["held"] == resv["read"] == pytest.approx(9000 * 256 * 8 * 32)
    assert resv["weights"] == pytest.approx(9000 * 2 * cycle)
    assert resv["dpe"] == pytest.approx(40 * 9000 / 64 * 2 * cycle)
    assert resv["vpe"] == pytest.approx(40 * 9000 / 64 * cycle)
    assert resv["wtu"] == pytest.approx(40 * 6 * 9000 / 16 * cycle)
    assert resv10["reads"] == pytest.approx(10 * resv["reads"])
    # a budget: 64 blocks at any length; 9 bytes a token and head
    assert pages["reads"] == pages10["reads"] == 64 * 8 * 32
    assert pages["held"] == pytest.approx(15000 * 9 * 8 * 32)
    assert pages["weights"] == pytest.approx(15000 * cycle)
    assert pages["dpe"] == pytest.approx(40 * 15000 / 64 * cycle)
    assert pages["wtu"] == pytest.approx(6 * 15000 / 8 / 16 * cycle)
    assert pages["vpe"] == 0
    assert pages["memory"] == pytest.approx(pages["held"] / EDGE.bandwidth)
    assert pages10["link"] == pages["link"]
    assert resv10["link"] > resv["link"] > pages["link"]
    shown = vrex(file, "--cache", "15000", "--packed")
    assert "4-bit entries" in shown.stdout
    assert "pages budget=512" in shown.stdout


def test_the_page_shows_recall_and_cost_of_coded_pages():
    """The section has the recorded commands, a row for each of their figures, and the costs that follow from them."""
    record = json.loads((ROOT / "docs/results/recall_pages.json").read_text())
    section = (ROOT / "docs/papers/recall.md").read_text().partition("## Coded pages")[2].partition("\n## ")[0]
    summaries = [s for run in record["runs"] for s in run["summaries"]]
    assert all(f"\n{run['command']}\n" in section for run in record["runs"])
    for s in summaries:
        lead = f"| `{s['variant']}` | `{s['task']}` | {s['tokens']:,} | {s['recall']:.0%} | {s['low']:.0%} to "
        fetched = "all |" if s["variant"] == "full" else f"{s['fetched']:.0f} | {s['blocks']:.0f}"
        row = f"{lead}{s['high']:.0%} | {s['answer_loss']:.2f} | {s['error']:.3f} | {fetched} |"
        assert f"\n{row}\n" in section
    for packed in (False, True):
        for r in rows_of(summaries, EDGE, [40960, 102400, 1048576], packed):
            times = " | ".join(f"{1e3 * r[name]:,.1f}" for name in ("link", "memory", "weights", "dpe", "vpe", "wtu"))
            lead = f"| `{r['variant']}` | {4 if packed else 16} | {r['cache']:,} | {r['moved'] / 1e6:,.0f} | "
            assert f"\n{lead}{r['reads']:,.0f} | {r['held'] / 1e6:,.0f} | {times} |\n" in section


@pytest.mark.parametrize("text", ["", "[1]", '[{"variant": "resv"}]', "7"])
def test_a_file_that_holds_no_summaries(tmp_path, text):
    file = tmp_path / "recall.json"
    file.write_text(text)
    run = vrex(file)
    assert run.exit_code == 2
    assert "is no recall.json of 'vrex papers recall': run it anew" in run.stderr.replace("\n", " ")


def test_runs_that_cannot_be_counted(tmp_path):
    file = tmp_path / "recall.json"
    file.write_text(json.dumps([PAGES | {"variant": "full"}]))
    run = vrex(file)
    assert run.exit_code == 2
    assert "no run of 'pages' or of a reading of ReSV" in run.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--platform", "a100"), "platform='a100': must be a system of cores"),
        (("--platform", "none"), "platform='none': must be one of"),
        (("--cache", "long"), "cache='long': must be numbers"),
    ],
)
def test_bad_input_is_named(tmp_path, words, message):
    (tmp_path / "r").write_text(json.dumps([PAGES]))
    run = vrex(tmp_path / "r", *words)
    assert run.exit_code == 2
    assert message in run.stderr
