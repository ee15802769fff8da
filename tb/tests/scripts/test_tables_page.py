"""`docs/tables.md` has the layout, the sizes and the cycles that the preset `core` has."""

import re
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.retrieval import table_layout
from openvrex.golden.retrieval.table_layout import SHARED, Item
from openvrex.hdl.params import DreParams, override, preset
from openvrex.sim.units.dre_time import CountRing, DreTime
from openvrex.sim.units.kvmu_time import APPEND, SWITCH
from openvrex.sim.units.table_port_time import TablePortTime
from openvrex.tb.library.runner import ROOT

PAGE = (ROOT / "docs/tables.md").read_text()
WORDS = " ".join(PAGE.split())
DRE = preset("core").core.dre
LAYOUT = DRE.layout()
CONTEXTS = 32 * 8  # layers and KV heads of Llama-3 8B


def test_layout():
    """Sizes of pool and table, and an address made of them; the drawing has every item in its order."""
    base, table = f"{LAYOUT.pool_bytes:,}", f"{LAYOUT.table_bytes:,}"
    assert f"| {base} + {table} N." in WORDS
    assert f"`table_base` + {base} + 2 * {table} + 0xa00 + 3 * 4" in WORDS
    assert f"**Tables**: {CONTEXTS} * {table} bytes." in WORDS
    drawn = table_layout.__doc__[table_layout.__doc__.index("table_base") :]
    places = [
        drawn.index(f"{item.name} ")
        for item in sorted(LAYOUT.offsets, key=lambda i: (i not in SHARED, LAYOUT.offsets[i]))
    ]
    assert places == sorted(places)
    assert LAYOUT.address(Item.HASH, 2, 3) == LAYOUT.pool_bytes + 2 * LAYOUT.table_bytes + 0xA00 + 3 * 4
    assert f"a table of `core` then has {replace(LAYOUT, protect='secded').table_bytes:,} bytes" in WORDS


def test_memory_beside_the_tables():
    k = DRE.kvmu
    ring = k.recent * k.entry_bytes
    assert f"| {ring:,} N: `recent` ({k.recent}) entries of {k.entry_bytes:,} bytes each |" in WORDS
    assert f"| {k.block_bytes:,} bytes a block: `block_slots` ({k.block_slots}) entries |" in WORDS
    kept = k.map_sizes().kept_bytes
    assert f"**Rings** take {CONTEXTS * ring / 1e6:.1f} MB" in WORDS
    assert f"places of kept blocks {CONTEXTS * kept / 1e6:.1f} MB" in WORDS
    assert f"| {kept:,} N: `kept` ({k.kept}) blocks of {k.block_bytes:,} bytes each;" in WORDS


@pytest.mark.parametrize(("name", "tokens"), [("1K", 1 << 10), ("40K", 40 << 10), ("1M", 1 << 20)])
def test_sizes_of_llama(name, tokens):
    """Blocks by brute force: clusters of one entry each, but one that has all others modulo a block."""
    k, tables = DRE.kvmu, CONTEXTS * LAYOUT.table_bytes
    clusters = min(k.clusters, tokens)
    worst = [1] * clusters  # entries of each cluster; whole blocks on top keep every last block at one entry
    worst[0] += (tokens - clusters) // k.block_slots * k.block_slots
    blocks = CONTEXTS * sum(-(-n // k.block_slots) for n in worst)
    assert blocks == CONTEXTS * ((tokens + (k.block_slots - 1) * clusters) // k.block_slots)
    links, cache = blocks * LAYOUT.bytes(Item.NEXT), CONTEXTS * tokens * k.entry_bytes
    sizes = f"{tables:,} bytes | {blocks:,} | {links:,} bytes | {cache / 1e9:.1f} GB"
    assert f"| {name} | {sizes} | {100 * (tables + links) / cache:.3f} % |" in WORDS
    larger = re.search(r"`-p (kvmu\.blocks=\d+)`", WORDS)[1]
    fits = [blocks <= k.blocks, blocks <= override(preset("core"), [larger]).core.dre.kvmu.blocks]
    assert fits == [name != "1M", True]


def switch_cycles(p: DreParams, clusters: int, latency: int) -> int:
    """Cycles from a SWITCH on `k` to its reply on `w`, to a context of so many clusters on an idle DRE."""
    time = DreTime(p, th_hd=0, latency=latency)
    if clusters:
        time.hcu.tables[0] = np.stack([time.hcu.words(cluster) for cluster in range(clusters)])
    time.kvmu.run([(APPEND, 0, cluster) for cluster in range(clusters)])
    run = time.keys([(SWITCH, 0, 0, 1)], [0])
    assert len(run.c) == min(p.kvmu.ring, -(-clusters // p.kvmu.count_lanes))
    return run.w[-1]


def test_cycles_of_a_switch():
    rows = {
        int(n.replace(",", "")): cells.split(" | ")
        for n, cells in re.findall(r"^\| ([\d,]+) \| ([\d,]+ \| [\d,]+ \| [\d,]+) \|$", PAGE, re.M)
    }
    assert list(rows) == [0, 256, 1024, 16384]
    for clusters, cells in rows.items():
        assert cells == [f"{switch_cycles(DRE, clusters, latency):,}" for latency in (20, 60, 100)]
    cited = f"To 1,024 clusters it takes {rows[1024][2]} cycles at a latency of 100"
    assert cited in " ".join((ROOT / "docs/limits.md").read_text().split())


def row_cycles(p: DreParams, clusters: int, latency: int) -> int:
    """Cycles of a row behind a SWITCH, with random codes near the top and few tokens a cluster."""
    rng, time = np.random.default_rng(clusters), DreTime(p, th_hd=0, latency=latency)
    time.kvmu.run([(APPEND, 0, cluster) for cluster in range(clusters)])
    time.keys([(SWITCH, 0, 0, 1)], [0])
    best = (1 << p.wtu.score.bits) - 1
    row = np.maximum(0, best - rng.exponential(200, clusters).astype(int)), rng.integers(1, 20, clusters)
    time.kvmu.begin()
    ring = CountRing(time.kvmu, TablePortTime(p, latency)) if time.kvmu.roll else None
    return int(time.wtu.run([row], ReSVParams().ratio_q16, ring)[1][0])


def test_cycles_of_a_row():
    rows = re.findall(r"^\| a row of ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.M)
    assert len(rows) == 2
    for clusters, *cells in rows:
        for cell, latency in zip(cells, (20, 60, 100), strict=True):
            cycles = row_cycles(DRE, int(clusters.replace(",", "")), latency)
            assert int(cell.replace(",", "")) == pytest.approx(cycles, rel=0.03)


def test_limits():
    for name in ("small", "core", "edge8", "server48"):
        d = preset(name).core.dre
        assert (d.hcu.n_ctx, d.hcu.frame, d.hcu.tile) == (65_536, 32, 64)
        assert d.kvmu.blocks == (65_536 if name == "small" else 8_388_608)
        assert (1 << d.kvmu.count_bits) - 1 == 65_535
    assert preset("tiny").core.dre.hcu.n_ctx == 48
    override(preset("core"), ["hcu.frame=64"])
    for change in ("n_ctx=65537", "clusters=65537", "hcu.frame=65", f"kvmu.blocks={(1 << 28) + 1}"):
        with pytest.raises(ParamError):
            override(preset("core"), [change])
