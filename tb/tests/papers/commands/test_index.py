"""`vrex papers index`: costs counted by hand, and bad input."""

import json
from collections import defaultdict
from collections.abc import Iterator
from math import sqrt
from statistics import fmean

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.program.code_stages import CODES, KEYS, MEAN
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.page_stages import PAGES as CODED
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.params import CLOCK, override, preset
from openvrex.papers.commands.index_command import rows_of
from openvrex.sim.system.platforms import EDGE
from openvrex.tb.library.page_runs import PageRun
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import refuses, tried, vrex

RESV = {"model": "smollm2", "variant": "resv", "task": "passkey", "tokens": 1500, "recall": 0.99, "error": 0.1,
        "blocks": 15.0, "clusters": 1800.0}  # fmt: skip
PAGES = RESV | {"variant": "pages budget=512", "recall": 1.0, "error": 0.05, "blocks": 64.0, "clusters": None}


def test_costs_by_hand(tmp_path):
    """40 rows a KV head, a head a core, 32 layers: bytes, and cycles of each unit."""
    file = tmp_path / "recall.json"
    file.write_text(json.dumps([RESV, RESV | {"task": "keys", "recall": 0.89}, PAGES]))
    run = vrex("papers", "index", file, "--cache", "15000,150000", "--json")
    resv, resv10, pages, pages10 = json.loads(run.stdout)
    assert (resv["variant"], pages["variant"], resv["recall"], pages["recall"]) == ("resv", PAGES["variant"], 0.94, 1.0)
    cycle = 32 / CLOCK
    # a share of the cache: 150 blocks of 8 entries of 512 bytes; 600 clusters for each 1,000 tokens of a head
    assert resv["reads"] == pytest.approx(150 * 8 * 32)
    assert resv["moved"] == pytest.approx(150 * 8 * 32 * 8 * 512)
    assert resv["held"] == resv["read"] == pytest.approx(9000 * 256 * 8 * 32)
    assert resv["load"] == pytest.approx(9000 * 2 * cycle)
    assert resv["dpe"] == pytest.approx(40 * 9000 / 64 * 2 * cycle)
    assert resv["vpe"] == pytest.approx(40 * 9000 / 64 * cycle)
    assert resv["wtu"] == pytest.approx(40 * 6 * 9000 / 16 * cycle)
    assert resv10["reads"] == pytest.approx(10 * resv["reads"])
    # a budget: 64 blocks at any length; 9 bytes a token and head. 64 trees take 512 tokens: 64 pages. The loader hands
    # on a word of codes in 8 cycles, and each word of two means, of two beats, to its trees. The DPE takes 40 rows by
    # two of 8 tokens at once and the two words of a mean, the VPE the products, the rows folded into one word, and that
    # word.
    assert pages["reads"] == pages10["reads"] == 64 * 8 * 32
    assert pages["held"] == pages["read"] == pytest.approx(15000 * 9 * 8 * 32)
    assert pages["load"] == pytest.approx((32 * 8 + 2 * 2 * 2) / 512 * 15000 * cycle)
    assert pages["dpe"] == pytest.approx(40 * (4 + 2) / 512 * 15000 * cycle)
    assert pages["vpe"] == pytest.approx((40 * 5 + 39 + 1) / 512 * 15000 * cycle)
    assert pages["wtu"] == pytest.approx(6 * 15000 / 8 / 16 * cycle)
    assert pages["memory"] == pytest.approx(pages["held"] / EDGE.bandwidth)
    assert pages10["link"] == pages["link"]
    assert resv10["link"] > resv["link"] > pages["link"]
    four = vrex("papers", "index", file, "--cache", "15000", "--packed", "--json")
    assert [r["bits"] for r in json.loads(run.stdout) + json.loads(four.stdout)] == [16] * 4 + [4] * 2
    [own] = rows_of([PAGES | {"variant": "pages budget=512 kv4_group=32"}], EDGE, [15000], False)
    assert own == json.loads(four.stdout)[1] | {"variant": own["variant"]}
    assert "pages budget=512" in tried("papers", "index", file, "--cache", "15000").stdout


def test_other_indexes_by_hand():
    """40 rows a KV head of 128 numbers, a head a core: a mean of a page has two words, its extremes four."""
    names = ("keys", "minmax", "means", "means-codes", "short-codes", "entries")
    of = {n: PAGES | {"variant": f"pages-by budget=512 index={n} matrices=build/x.npz"} for n in names}
    got = {n: rows_of([s], EDGE, [16384], False)[0] for n, s in of.items()}
    [codes] = rows_of([PAGES], EDGE, [16384], False)
    tokens, every, cycle = 16384, 8 * 32, 32 / CLOCK
    known = ("held", "read", "load", "dpe", "vpe")

    def costs_of(name: str) -> list[float]:
        scale = dict.fromkeys(("held", "read"), tokens * every) | dict.fromkeys(known[2:], tokens * cycle)
        return [got[name][figure] / scale[figure] for figure in known]

    own = [codes[f] / (tokens * (every if f in ("held", "read") else cycle)) for f in known]
    assert costs_of("keys") == pytest.approx([256, 256, 2, 40 * 2 / 64, 40 / 64])
    assert costs_of("means") == pytest.approx([32, 32, 2 / 8, 40 * 2 / 8 / 64, 40 / 8 / 64])
    assert costs_of("minmax") == pytest.approx([64, 64, 4 / 8, 40 * 4 / 8 / 64, 40 / 8 / 64])
    assert costs_of("entries") == pytest.approx(own)
    first = np.array(costs_of("means"))
    assert costs_of("means-codes") == pytest.approx((first + np.array(own) * [1, *4 * [0.25]]).tolist())
    short = [0, 30 / 8, 10 / 64, 40 * 10 / 64 / 64, 40 / 64]
    assert costs_of("short-codes") == pytest.approx((np.array(short) + np.array(own) * [1, *4 * [0.25]]).tolist())


def recalled(summaries: list[dict]) -> Iterator[str]:
    """A row a length and variant: recall of each task, their mean, and how far it is behind full attention's."""
    groups = defaultdict(list)
    for s in summaries:
        groups[s["tokens"], s["variant"]].append(s)
    for (size, name), own in groups.items():
        shares = " | ".join(f"{100 * x:.1f}" for x in [s["recall"] for s in own] + [fmean(s["recall"] for s in own)])
        behind, figures = "", "all |"
        if own[0]["behind"] is not None and name != "full":
            about = sqrt(sum(s["about"] ** 2 for s in own)) / len(own)
            behind = f"{100 * fmean(s['behind'] for s in own):.1f} ± {100 * about:.1f}"
        if name != "full":
            figures = f"{fmean(s['fetched'] for s in own):.0f} | {fmean(s['blocks'] for s in own):.0f}"
        nats, error = (fmean(s[figure] for s in own) for figure in ("answer_loss", "error"))
        lead = f"| {size:,} | {sum(s['runs'] for s in own)} | `{name}` | {shares} | {behind} | "
        yield f"{lead}{nats:.2f} | {error:.3f} | {figures} |"


def costs(summaries: list[dict], packed: bool) -> Iterator[str]:
    """A row a variant and length of the cache."""
    for r in rows_of(summaries, EDGE, [40960, 102400, 1048576], packed):
        times = " | ".join(f"{1e3 * r[name]:,.1f}" for name in ("link", "memory", "load", "dpe", "vpe", "wtu"))
        lead = f"| `{r['variant']}` | {r['bits']} | {r['cache']:,} | {r['moved'] / 1e6:,.0f} | "
        yield f"{lead}{r['reads']:,.0f} | {r['held'] / 1e6:,.0f} | {times} |"


def test_the_page_shows_recall_and_cost_of_coded_pages():
    """The section has the recorded commands, a row for each of their figures, and the costs that follow from them."""
    record = json.loads((ROOT / "docs/results/recall_pages.json").read_text())
    section = (ROOT / "docs/papers/recall.md").read_text().partition("## Coded pages")[2].partition("\n## ")[0]
    summaries = [s for run in record["runs"] for s in run["summaries"]]
    assert all(f"\n{run['command']}\n" in section for run in record["runs"])
    for run in record["runs"]:
        assert all(f"\n{row}\n" in section for row in recalled(run["summaries"]))
    counted = [s for s in summaries if "kv4_group" not in s["variant"]]  # their index is that of the others
    assert all(f"\n{row}\n" in section for packed in (False, True) for row in costs(counted, packed))


def test_the_page_says_what_coded_pages_recall():
    """What the bullets name, of the recorded means over tasks."""
    record = json.loads((ROOT / "docs/results/recall_pages.json").read_text())
    section = (ROOT / "docs/papers/recall.md").read_text().partition("## Coded pages")[2].partition("\n## ")[0]
    known = defaultdict(list)
    for s in (s for run in record["runs"] for s in run["summaries"]):
        known[s["variant"], s["tokens"]].append(s)
    mean = {of: {f: fmean(s[f] or 0 for s in own) for f in ("recall", "error", "behind")} for of, own in known.items()}
    more = sorted(-100 * mean[f"pages budget={n}", tokens]["behind"] for n in (256, 512) for tokens in (4000, 7800))
    assert all(mean[f"pages budget={n}", 1500]["behind"] < 0.01 for n in (256, 512))
    lost = [f"{100 - 100 * known['full', tokens][0]['recall']:.1f}" for tokens in (4000, 7800)]
    few, many = (mean[f"pages budget={n}", 1500]["error"] / mean["resv", 1500]["error"] for n in (256, 512))
    home = [[mean[f"pages budget=512 kv4_group={g}", n]["recall"] for g in (32, 0)] for n in (1500, 4000)]
    said = (
        f"and {more[0]:.1f} to {more[-1]:.1f} points more at 4,000 and 7,800.",
        f"misses {' and '.join(lost)} % of a passkey's digits",
        f"is {many:.0%} of `resv`'s with 512 tokens, {few:.0%} with 256".replace("%", " %"),
        " at 1,500 tokens, ".join(f"{a:.1%} instead of {b:.1%}" for a, b in home).replace("%", " %"),
    )
    for sentence in said:
        assert sentence in " ".join(section.split()), sentence


def test_the_page_compares_indexes():
    """The commands, a row for each figure, the costs, and what the bullets name."""
    record = json.loads((ROOT / "docs/results/recall_pages.json").read_text())
    own, resv = record["indexes"], record["runs"][-1]["summaries"]
    section = (ROOT / "docs/papers/recall.md").read_text().partition("### Other indexes")[2].partition("\n## ")[0]
    assert f"\n{own['calibrated']}\n" in section
    mean = defaultdict(list)
    for run in own["runs"]:
        assert f"\n{run['command']}\n" in section
        assert all(f"\n{row}\n" in section for row in recalled(run["summaries"]))
        for s in run["summaries"]:
            mean[s["variant"].rpartition("index=")[2], s["tokens"]].append(100 * s["recall"])
    others = [s for run in own["runs"] for s in run["summaries"] if s["variant"].startswith("pages-by")]
    assert all(f"\n{row}\n" in section for row in costs(others, False))
    assert all(f"\n{command}\n" in section for command in own["video"]["commands"])
    for name, error in own["video"]["error"].items():
        assert f"\n| `{name}` | {error['frame']:.3f} | {error['answer']:.3f} |\n" in section
    both = {name: [fmean(mean[name, n]) for n in (1500, 4000)] for name, _ in mean}
    codes = both["pages budget=256"]
    lost = sorted(b - a for name in ("means-codes", "short-codes") for a, b in zip(both[name], codes, strict=True))
    [few] = rows_of([s for s in others if "minmax" in s["variant"]], EDGE, [1048576], False)
    shared, blocks = (fmean(s[name] for s in resv) for name in ("shared", "blocks"))
    said = (
        "Codes recall {:.1f} and {:.1f} %".format(*codes),
        "Keys themselves recall {:.1f} and {:.1f} %".format(*both["keys"]),
        "Extremes (`minmax`) recall {:.1f} and {:.1f} %".format(*both["minmax"]),
        f"an index of {few['held'] / 1e9:.0f} GB and {1e3 * few['memory']:.0f} ms to read it",
        f"Two levels lose {lost[0]:.0f} to {lost[-1]:.0f} points",
        "recall {:.1f} and {:.1f} %".format(*both["entries"]),
        f"would take {shared:.1f} blocks instead of {blocks:.1f}",
    )
    for sentence in said:
        assert sentence in " ".join(section.split()), sentence


def test_the_page_shows_recall_of_coded_pages_on_the_second_decoder():
    record = json.loads((ROOT / "docs/results/recall_pages.json").read_text())["second"]
    section = (ROOT / "docs/papers/recall.md").read_text().partition("## A second decoder")[2].partition("\n## ")[0]
    assert f"\n{record['calibrated']}\n" in section
    mean = defaultdict(list)
    for run in record["runs"]:
        assert f"\n{run['command']}\n" in section
        assert {s["model"] for s in run["summaries"]} == {"gemma3"}
        assert all(f"\n{row}\n" in section for row in recalled(run["summaries"]))
        for s in run["summaries"]:
            mean[s["variant"], s["tokens"]].append(100 * s["recall"])
    more = " and ".join(
        f"{fmean(mean['pages numbers=36', n]):.1f} of full attention's {fmean(mean['full', n]):.1f} %"
        for n in sorted({n for _, n in mean})[1:]
    )
    full, few, many = (f"{s['recall']:.0%}".replace("%", " %") for s in record["longest"]["summaries"])
    assert f"\n{record['longest']['command']}\n" in section
    for said in (more, f"full attention recalls {full}, 36 numbers {many} and 18 numbers {few}."):
        assert said in " ".join(section.split()), said


def test_the_page_says_what_scores_cost_a_core():
    """Cycles by the time view, which the RTL confirms at small sizes (`test_page_program.py`)."""
    core = override(preset("core"), ["lxe.codes=18"]).core
    shape = LayerShape(width=128, heads=4, kv_heads=1, head_size=128, ffn=64, tokens=10, entries=0)
    matrix = np.zeros((1, 18, 128), BF16)
    run = PageRun(core.lxe_format(), shape, 2048, PageParams(), KeyMatrices(matrix, matrix))
    cycles = []
    for pages in (512, 1536):
        run.registers[CODED] = pages
        cycles.append(run.cycles(core, 100, "rank0"))
    step = (cycles[1] - cycles[0]) / 16
    more = run.cycles(core, 100, "sums") + run.cycles(core, 100, "turn")
    run.registers |= {int(KEYS): 0, int(CODES): 0, int(MEAN): 0}
    coding = run.cycles(core, 100, "code0")
    section = (ROOT / "docs/papers/recall.md").read_text().partition("## Coded pages")[2].partition("\n## ")[0]
    flat = " ".join(section.split())
    assert f"Coding 256 keys takes {coding:,} cycles" in flat
    assert f"in {step:.0f} cycles, if memory answers after 100, of which the DPE works 240" in flat
    assert f"turned queries, takes {more:,} more" in flat
    assert run.plan.cost(512).chunks == 240 * 512 * 8 / 512
    budgets = json.loads((ROOT / "tb/budgets.json").read_text())
    kge = (budgets["core.loader.logic_ge"] - budgets["vrex1.loader.logic_ge"]) / 1e3
    record = (ROOT / "docs/archive/decisions.md").read_text().partition("### Coded pages are scored by a program")[2]
    assert f"for 40 rows in {step:.0f} cycles, of which the DPE works 240; the expander has {kge:.1f} kGE" in record


@pytest.mark.parametrize("text", ["", "[1]", '[{"variant": "resv"}]', "7"])
def test_a_file_that_holds_no_summaries(tmp_path, text):
    file = tmp_path / "recall.json"
    file.write_text(text)
    run = refuses("papers", "index", file)
    assert "is no recall.json of 'vrex papers recall': run it anew" in run.stderr.replace("\n", " ")


def test_runs_that_cannot_be_counted(tmp_path):
    file = tmp_path / "recall.json"
    file.write_text(json.dumps([PAGES | {"variant": "full"}]))
    run = refuses("papers", "index", file)
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
    run = refuses("papers", "index", tmp_path / "r", *words)
    assert message in run.stderr
