"""`docs/limits.md` says what is so: each limit that code can show is shown here, so that the page cannot go stale."""

import json
import re

import pytest

from golden.function_params import ParamError
from golden.policies.registry import POLICIES
from golden.program.core_compiler import RetrievalShape
from golden.program.layer_compiler import LayerShape
from golden.program.system_host import SharePlan
from hdl.emit import ALL
from hdl.params import preset
from scripts.simulate.layer_command import LLAMA
from tb.library.runner import ROOT

PAGE = (ROOT / "docs/limits.md").read_text()
PAPERS = ("core", "edge8", "server48")  # the presets of V-Rex's sizes


def share(name: str) -> SharePlan:
    """What the first core of a preset does of a layer of Llama-3 8B."""
    system = preset(name)
    shape = LayerShape(**LLAMA, tokens=10, recent=256, entries=256)
    retrieval = RetrievalShape(n_hp=32, clusters=system.core.dre.hcu.clusters)
    return SharePlan(shape, system.core.lxe_format(), retrieval, 0, system.cores, 0)


def test_one_context():
    assert {preset(name).core.dre.kvmu.n_ctx for name in PAPERS} == {1}
    assert "The DRE of `core`, `edge8` and `server48` holds one (`n_ctx`)" in PAGE


def test_a_cache_of_40k_does_not_fit():
    kvmu = preset("core").core.dre.kvmu
    slots = kvmu.blocks * kvmu.block_slots
    assert slots < 40 << 10
    assert f"has {slots:,} entries ({kvmu.blocks:,} blocks of {kvmu.block_slots}), less than {40 << 10:,}" in PAGE


def test_48_cores_do_not_take_llama():
    said = "kv_heads=8: must be a multiple of 48"
    with pytest.raises(ParamError, match=said):
        share("server48")
    assert f"`{said}`" in PAGE
    assert [share(name).shape.kv_heads for name in ("core", "edge8")] == [8, 1]
    assert "one and eight cores take it" in PAGE


def test_tables_and_recall_are_those_of_the_record():
    record = json.loads((ROOT / "docs/results/recall.json").read_text())

    def of(summaries: list[dict], *names: str) -> list[str]:
        recalls = {s["variant"]: f"{s['recall']:.0%}".replace("%", " %") for s in summaries}
        return [recalls[name] for name in names]

    sizes = next(r["summaries"] for r in record["runs"] if "max_clusters" in r["command"] and "3000" in r["command"])
    small, large = (f"resv prefetch=none max_clusters={n}" for n in (1024, 8192))
    clusters = round(next(s["clusters"] for s in sizes if s["variant"] == large), -1)
    assert {preset(name).core.dre.hcu.clusters for name in PAPERS} == {1024}
    assert f"about {clusters:.0f} clusters for each 1,000 tokens" in PAGE
    assert f"after some {round(1024 / clusters * 1000, -2):,.0f} tokens" in PAGE
    assert (
        "At 3,000 tokens ReSV then recalls {} of a key, with 8,192 clusters {}".format(*of(sizes, small, large)) in PAGE
    )
    said = "it recalls {}, full attention {}. The policy `signatures` recalls {}"
    assert said.format(*of(record["runs"][0]["summaries"], "resv", "full", "signatures")) in PAGE
    lookup = [s for t in record["tables"] for s in t["summaries"] if s["task"] == "lookup"]
    said = "in a table of numbers ReSV recalls {}, full attention {}"
    assert said.format(*of(lookup, "resv prefetch=none", "full")) in PAGE


def test_longest_recall_is_that_of_the_record():
    runs = json.loads((ROOT / "docs/results/recall.json").read_text())["runs"]
    second = json.loads((ROOT / "docs/results/recall_gemma3.json").read_text())
    summaries = [s for run in [*runs, second] for s in run["summaries"]]
    longest = max(s["tokens"] for s in summaries)
    texts = max(s["runs"] for s in summaries if s["tokens"] == longest)
    number = {1: "one text", 2: "two texts"}[texts]
    assert f"**Recall of contexts beyond {longest:,} tokens**, and of more than {number} of that length" in PAGE


def test_only_resv_has_hardware():
    line = re.search(r"\*\*Only ReSV has hardware\.\*\* (.*)", PAGE)[1].lower()
    families = {name.partition("-")[0].removesuffix("p") for name in POLICIES} - {"full", "resv"}
    assert not [name for name in families if name not in line]
    assert not [unit for unit in ALL if any(name in unit for name in families)]
