"""`docs/limits.md` says what is so: each limit that code can show is shown here, so that the page cannot go stale."""

import json
import re
from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.layer_compiler import LayerShape
from openvrex.golden.program.shares import Shares
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.hdl.emit import ALL, BESIDE
from openvrex.hdl.params import override, preset
from openvrex.papers.policies.registry import POLICIES
from openvrex.sim.system.layer_load import most_rows
from openvrex.sim.system.workload import Decoder
from openvrex.tb.library.runner import ROOT

PAGE = " ".join((ROOT / "docs/limits.md").read_text().split())
PAPERS = ("core", "edge8", "server48")  # the presets of V-Rex's sizes


def share(name: str, cores: int = 0) -> Shares:
    """How a preset's cores, or others, share a layer of Llama-3 8B."""
    system = preset(name)
    shape = LayerShape(**Decoder().sizes, tokens=10, recent=256, entries=256)
    core = system.core
    return Shares.of(shape, core.core_format().lanes, cores or system.cores, core.dre.kvmu.entry_bytes)


def test_sizes():
    k = preset("core").core.dre.kvmu
    assert {preset(name).core.dre.kvmu for name in PAPERS} == {k}
    assert f"| contexts of a DRE | {k.n_ctx:,} (`n_ctx`); `tiny` has {preset('tiny').core.dre.kvmu.n_ctx} |" in PAGE
    assert f"| clusters of a context | {k.clusters:,} in presets;" in PAGE
    assert f"{k.blocks:,} in presets, for {k.blocks * k.block_slots:,} entries;" in PAGE
    assert f"saturate at {(1 << k.count_bits) - 1:,} (`count_bits`)" in PAGE
    h = preset("core").core.dre.hcu
    assert f"| {h.frame} in presets; `hcu.frame`, at most `hcu.tile` ({h.tile} in presets) |" in PAGE


def test_a_section_of_a_pass_has_few_tokens():
    """A layer of Llama-3 8B on a core: as many tokens as the HCU holds, and not one more; of coded pages as have rows
    in a bank.
    """
    core = preset("core").core
    h, most = core.dre.hcu, most_rows(core)
    assert f"**A pass has at most {most} tokens**" in PAGE
    assert f"| tokens of a pass | {most} in presets; `vpe.depth`, at most half of `dpe.x_depth` |" in PAGE

    def plan(tokens: int, frame: int) -> CorePlan:
        shape = LayerShape(**Decoder().sizes, tokens=tokens, recent=256, entries=256)
        return CorePlan(shape, core.lxe_format(), RetrievalShape(h.n_hp, h.clusters, frame=frame))

    def paged(tokens: int) -> CorePlan:
        shape = LayerShape(**Decoder().sizes, tokens=tokens, recent=256, entries=520)
        shape = replace(shape, heads=shape.group, kv_heads=1)
        return CorePlan(shape, core.lxe_format(), RetrievalShape(h.n_hp, h.clusters, pages=PageParams()))

    own = core.vpe.depth // paged(1).shape.group
    assert f"as many tokens as have their rows in a bank, {own} of Llama-3" in PAGE
    assert paged(own).shape.tokens == own
    with pytest.raises(ParamError, match=f"more than depth = {core.vpe.depth}"):
        paged(own + 1)

    assert plan(h.frame, h.frame).shape.tokens == h.frame
    with pytest.raises(ParamError, match=f"must be at most frame = {h.frame}"):
        plan(h.frame + 1, h.frame)
    larger = int(re.search(r"`hcu\.frame`, at most `hcu\.tile` \((\d+) in presets\)", PAGE)[1])
    assert override(preset("core"), [f"hcu.frame={larger}"]).core.dre.hcu.frame == larger


def test_a_cache_of_40k_fits():
    """32 layers of 8 KV heads, with a last block of each cluster that is not full."""
    k = preset("core").core.dre.kvmu
    assert 32 * 8 * ((40 << 10) // k.block_slots + k.clusters) <= k.blocks
    assert "`core` and `edge8` can hold it: [tables and blocks of its 32 layers]" in PAGE


def test_presets_take_llama():
    """`test_shares` compiles it for every core; other numbers of cores are refused."""
    assert "`core`, `edge8` and `server48` run Llama-3 8B with a table for each of its eight KV heads" in PAGE
    assert [share(name).groups for name in PAPERS] == [8, 1, 1]
    assert [share(name).members for name in PAPERS] == [1, 1, 6]
    with pytest.raises(ParamError, match="cores=5: must divide 8, the tables of a layer"):
        share("core", 5)


def test_tables_and_recall_are_those_of_the_record():
    record = json.loads((ROOT / "docs/results/recall.json").read_text())

    def of(summaries: list[dict], *names: str) -> list[str]:
        recalls = {s["variant"]: f"{s['recall']:.0%}".replace("%", " %") for s in summaries}
        return [recalls[name] for name in names]

    sizes = next(r["summaries"] for r in record["runs"] if "max_clusters" in r["command"] and "3000" in r["command"])
    small, large = (f"resv prefetch=none scope=layer max_clusters={n}" for n in (1024, 8192))
    clusters = round(next(s["clusters"] for s in sizes if s["variant"] == large), -1)
    assert {preset(name).core.dre.hcu.clusters for name in PAPERS} == {16384}
    assert f"up to {clusters:.0f} clusters for each 1,000 tokens" in PAGE
    assert f"after some {round(16384 / clusters * 1000, -3):,.0f} tokens" in PAGE
    said = "ReSV with a table of 1,024 clusters for each layer recalls {} of a key, with 8,192 clusters {}"
    assert said.format(*of(sizes, small, large)) in PAGE
    assert "it recalls {}, full attention {}".format(*of(record["runs"][0]["summaries"], "resv", "full")) in PAGE
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


def test_only_resv_and_pages_have_all_their_hardware():
    line = re.search(r"\*\*Only ReSV and coded pages have all their hardware\*\*, (.*?) - \*\*", PAGE)[1].lower()
    families = {name.partition("-")[0].removesuffix("p") for name in POLICIES} - {"full", "resv", "pages"}
    assert not [name for name in families if name not in line]
    assert not [unit for unit in ALL if any(name in unit for name in families)]
    assert all(f"datasheets/{unit}.md" in line for unit in BESIDE)
