"""The page of recorded tables, which MkDocs makes of docs/results: other pages show only what they argue with."""

import json
from collections.abc import Callable
from typing import NamedTuple

from openvrex.scripts.blocks import nights
from openvrex.scripts.records import layer_results, run_results, synthesis_results
from openvrex.scripts.records.recorded_results import DOCS

RESULTS = DOCS / "results"
HEAD = """# Recorded results

The tables that other pages summarise, each with the record that it is made of. A record holds its commands, the
versions of the tools and, where hardware was measured, a digest of it; `vrex dev record NAME` measures it again.
"""


class Table(NamedTuple):
    """A table of the page: the record in docs/results, what a reader must know to read it, and how it is made."""

    record: str
    says: str
    make: Callable[[dict], str]


TABLES = {
    "Nights": Table(
        "nightly",
        "What `make nightly` ran, by minutes: 🟢 passed, 🔴 failed, 🟡 stopped, to go on the next night. Then what was "
        "on record at its end: the least coverage of a block, mutants killed, and random transactions played.",
        nights.trend,
    ),
    "Our timing beside OpenSTA": Table(
        "opensta",
        "Longest paths of `core` in area mode by `synth/timing.py` and by OpenSTA: the same netlist, library and "
        "model. Where start and end differ, several paths are equally long.",
        synthesis_results.opensta,
    ),
    "Our power beside OpenSTA": Table(
        "opensta_power",
        "Power of `core`'s logic in area mode on the shipped trace, 800 MHz, by `synth/power.py` and by OpenSTA "
        "2.0, of the same netlist, library and toggles, at the library's node. Memories and nets that they or ports "
        "drive are in neither. That release adds the energies and the leakages of all states and arcs of a cell, so "
        "its library holds their means. OpenSTA finds a slew for each pin and takes a pin's load at a rising edge; "
        "we take one slew and the mean load of both edges. In the last column it takes ours. What is left is the "
        "state of a cell: we take an input's energy from it, OpenSTA the mean of all states.",
        synthesis_results.opensta_power,
    ),
    "Longest paths": Table(
        "clock",
        "Preset `core` with ASAP7, speed mode: the longest path and the signals at its ends, without the times of "
        "memories and with those of our model at 7 nm; then the longest paths from and to a memory with its times, all "
        "at 14 nm.",
        synthesis_results.paths,
    ),
    "Public memory macros": Table(
        "macros",
        "What the model of memories is above published macros. Left out: the error with a fit to all other macros, and "
        "to all other generators. Without ASAP7's one, the only timed macro of 7 nm, times follow FO4. Times by a "
        "formula are of no circuit, and are not fitted.",
        synthesis_results.macros,
    ),
    "Layout": Table(
        "layout",
        "Units of `core` in SKY130 (130 nm), FlexCells, no clock tree, no gate resized, memories outside. Layers are "
        "m1, m2 and so on. KLayout finds open and touching nets in the metal.",
        synthesis_results.routing,
    ),
    "Scan chains": Table(
        "scan",
        "Units of `core` in area mode with four chains: 4,096 random patterns, then those that SAT finds. Faults are "
        "pins of cells and ports, clock pins excepted. The embedded library has no scan flip-flop, so multiplexers "
        "stand in.",
        synthesis_results.scan_by_library,
    ),
    "Units on an FPGA": Table(
        "fpga",
        "An ECP5 LFE5U-85F of the slowest grade, placed and routed out of context, by one seed of the placer. LUTs "
        "have four inputs and include memories and carries.",
        synthesis_results.fpga,
    ),
    "Area by library": Table(
        "area",
        "A core in mm² at 14 nm, area mode. Each % is of the core in the column before it, brackets hold the low and "
        "high estimate.",
        synthesis_results.area_by_library,
    ),
    "Readings of a row": Table(
        "readings",
        "Variants of the WTU by the times that it reads a row of scores: `core`, embedded library, area mode, 14 nm. "
        "Rows are in cycles at a memory latency of 60, with 33 tokens a cluster on average; the counts of 1,024 "
        "clusters are on chip, those of 16,384 stream. The last columns are a frame at 20,000 cached tokens.",
        synthesis_results.readings,
    ),
    "Power in Table III": Table(
        "power",
        "The DRE's rows are parts of one run of the whole DRE on the shipped trace, so they add up: 800 MHz, 14 nm, "
        "embedded library. The LXE's control, retriever and feeder are not measured.",
        synthesis_results.power_table3,
    ),
    "Power of each unit": Table(
        "power",
        "Preset `core` on the shipped trace, 800 MHz, 14 nm, mW, at the paper's Th_hd, ratio and hash bits. `all` is "
        "logic, memories and leakage. Alone, a unit is as busy as it can be; in the DRE, units wait for each other.",
        synthesis_results.power,
    ),
    "A layer, stage by stage": Table(
        "layers",
        "Cycles of a layer of Llama-3 8B, 10 tokens on `core` at latency 100, with Table II's share of the cache "
        "(`vrex simulate layer --select table2`). Columns give the cached tokens. A load may begin beside the stage "
        "before, so a share can exceed 100 %.",
        layer_results.stages,
    ),
    "A layer of 128 tokens": Table(
        "layers",
        "Stages of a layer of Llama-3 8B on a wider `core` at latency 100: `w_depth` 64, `x_depth` 2,048, `vpe.depth` "
        "256, a bus of 128 bytes, `hcu.frame` and `hcu.tile` 128; 2,048 tokens cached, 588 entries fetched.",
        layer_results.large,
    ),
    "KV prediction, V-Rex as published": Table(
        "layers",
        "Cycles of core 0 that retrieval adds to a layer of Llama-3 8B, 10 tokens at latency 100, with Table II's "
        "share of the cache and 32 tokens a cluster. Percentages are of the layer.",
        layer_results.prediction("prediction"),
    ),
    "KV prediction, the default function": Table(
        "layers",
        "The same with what the default function fetched on `world`: about two tokens a cluster.",
        layer_results.prediction("default"),
    ),
    "One table for each KV head, or for several": Table(
        "simulation",
        "Milliseconds of a frame of 10 tokens by the tokens cached (`vrex simulate frames --policy resv`, with "
        "`-p kvmu.entry_bytes=1024` and `4096`). `*`: the tables are full.",
        run_results.homes,
    ),
    "DRAM": Table(
        "memories",
        "Share of the peak that a pattern reaches in steady state: sequential, then chunks of one size at random "
        "places. A refresh stops all banks, or one.",
        run_results.memory(0),
    ),
    "DRAM, reads and writes mixed": Table(
        "memories",
        "Accesses of 256 B on one channel without refresh, by the share of writes.",
        run_results.memory(1),
    ),
    "PCI Express": Table("memories", "GB/s of payload by the size of a transfer.", run_results.memory(2)),
    "SSD": Table("memories", "GB/s of random reads by their size and the queue depth.", run_results.memory(3)),
}


def page() -> str:
    """Its text, in Markdown."""
    records = {t.record: json.loads((RESULTS / f"{t.record}.json").read_text()) for t in TABLES.values()}
    known = {name: record["figures"] for name, record in records.items()}
    parts = [HEAD]
    for title, t in TABLES.items():
        of = f"Recorded {records[t.record]['date']}: [`{t.record}.json`](results/{t.record}.json)."
        parts.append(f"## {title}\n\n{t.says} {of}\n\n{t.make(known)}\n")
    return "\n".join(parts)
