"""The comparisons of docs/window.md: what was recorded on the RTL, and what the simulator says."""

import json
import re
from statistics import mean

import pytest

from golden.policies.registry import override
from golden.policies.window_decisions import windowed
from sim.evaluation.core_policies import Row, compare
from sim.system.platforms import EDGE
from sim.system.workload import Decoder, traced
from tb.library.runner import ROOT

PAGE = (ROOT / "docs/window.md").read_text()
PART = PAGE[PAGE.index("## Which policy suits") : PAGE.index("## Evidence")]
RECORD = json.loads((ROOT / "docs/results/one_stream.json").read_text())["frames"]
HEADS = json.loads((ROOT / "docs/results/recall.json").read_text())["runs"][0]["summaries"]


def rows(text: str, name: str) -> list[list[str]]:
    """Cells of the rows of a policy."""
    found = re.findall(rf"^\| `{name}`(?:,[^|]*)? \| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in found]


@pytest.mark.parametrize("name", RECORD)
def test_one_stream_on_one_core(name):
    """The page's first table, and what it says of the runs."""
    r = RECORD[name]
    cells = rows(PART, name)[0]
    counts = [f"{r[key]:,}" for key in ("cycles", "loaded", "device", "home")]
    assert cells[:6] == [*counts, f"{mean(r['errors']):.1f} %", f"{r['errors'][-1]:.1f} %"]
    assert r["differences"] == 0
    if name in ("full", "resv", "mosaic"):
        assert f"{r['compared']:,}" in PART
        assert f"{r['programs']:,}" in PART
    else:  # the runs of the page's other table
        assert f"| 0 | {r['cycles']:,} | {r['loaded']:,} |" in PAGE
    assert r["command"].split(" -p")[0] in PAGE.replace("codecsight", name)
    entry = 2 * 2 * 3 * 64  # K and V of three heads of 64 numbers in BF16
    assert r["device"] == 2 * entry * r["held"]


def test_recall_is_what_was_recorded():
    known = {one["variant"]: one["recall"] for one in HEADS}
    for name in ("full", "resv", "streamingllm", "mosaic"):
        assert rows(PART, name)[0][6] == f"{known[name]:.0%}".replace("%", " %")
    for name in ("hybrid", "codecsight"):
        assert name not in known
        assert rows(PART, name)[0][6] == "-"


def test_full_size_by_the_simulator():
    """Rows of the second table that take seconds."""
    hybrid = windowed("hybrid")
    hybrid = type(hybrid)(hybrid.policy, override(hybrid.params, {"recent_blocks": "240"}))
    entries = {"resv": windowed("full"), "full": windowed("full"), "streamingllm": windowed("streamingllm")}
    page = {name: rows(PART, name)[1:] for name in (*entries, "hybrid")}  # the first row is of one core
    shares = traced(Decoder())
    long = {"resv": entries["resv"], "streamingllm": entries["streamingllm"], "hybrid": hybrid}
    for cache, some in ((1024, {"full": entries["full"]}), (10240, long)):
        for row in compare(EDGE, some, Decoder(), (cache,), shares):
            size = f"{row.cache >> 10}K"
            own = [cells[1:] for cells in page[row.policy] if size in cells[0].split(", ")]
            assert own == [cells_of(row)], row.policy


def cells_of(row: Row) -> list[str]:
    times = [f"{x:.1f}" for x in (row.frame, row.slowest, row.token)]
    sizes = [f"{x:,.0f}" for x in (row.device, row.home, row.fetched)]
    return [f"{row.attended:,}", *times, *sizes, row.limit]
