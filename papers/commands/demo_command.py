"""`vrex papers demo`: from an H.264 stream to verified Verilog and its area."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.progress import BarColumn, TimeElapsedColumn

from openvrex.golden.inputs import vision
from openvrex.golden.inputs.trace_recorder import record
from openvrex.golden.policies.registry import override
from openvrex.hdl.emit import emit, params_of
from openvrex.papers.commands.measure_command import COLUMNS, measure, verdict
from openvrex.papers.commands.scenes_command import draw
from openvrex.papers.policies.registry import entry
from openvrex.papers.recall.scene_run import SceneCase, ask
from openvrex.papers.recall.scenes import Scenes
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import engines
from openvrex.scripts.run.trace_command import layer_numbers
from openvrex.scripts.simulate.dre_command import GROUPS
from openvrex.scripts.simulate.dre_command import measure as measure_cycles
from openvrex.synth import flow, technology
from openvrex.tb.library.runner import BenchError
from openvrex.tb.library.trace_check import tables, verify

UNITS = ("hcu", "wtu", "cluster_set", "kvmu")
NODE = 14  # nm, the paper's
FRAMES, WINDOW = 8, 64  # of each scene, and resident tokens, in the picture of a question
CHANCE = 1.5  # times the scene's share of the stream: less counts as chance, with three questions
SHOWN = ("clusters", "tokens_per_cluster", "fetched_of_cached", "visited", "error", "error_topk", "error_window")


def command(
    folder: console.Folder = Path("build/demo"),
    video: Annotated[str, typer.Option(help="Video file or clip, as for `vrex trace`.")] = "world",
    frames: Annotated[int, typer.Option(min=1, help="Number of frames.")] = 40,
    tokens: Annotated[int, typer.Option(help="Tokens of each frame.")] = 36,
    layers: Annotated[str, typer.Option(help="Decoder layers to record, with commas between.")] = "0",
    preset: console.Preset = "core",
    seed: console.Seed = 1,
    json: console.Json = False,
) -> None:
    """Go from a video to verified Verilog and a report.

    The demo decodes a video, runs a real decoder on it, and selects tokens by golden ReSV and by the RTL.
    """
    seconds: dict[str, float] = {}
    system, chosen = console.params(preset, None), layer_numbers(layers)
    vision.check_tokens(tokens)
    p = system.core.dre
    f = p.function()
    with Bar(BarColumn(), TimeElapsedColumn(), quiet=json, transient=False) as bar:

        @contextmanager
        def step(name: str, total: int) -> Iterator:
            start, task = time.perf_counter(), bar.add_task(name, total=total)
            yield lambda done, of=total: bar.update(task, completed=done, total=of)
            bar.update(task, completed=total, total=total)
            seconds[name] = time.perf_counter() - start

        with step(f"{video}: video to Q, K, V", frames) as advance:
            trace = record(video, frames=frames, tokens=tokens, layers=chosen, queries=2, progress=advance)
            trace.save(folder / "trace.safetensors")
        with step("golden ReSV", len(chosen)) as advance:
            figures = []
            for i in range(len(chosen)):
                figures += measure(trace, i, f)
                advance(i + 1)
        with step("Verilog of the DRE", 1):
            dre = emit("dre", p)
            dre.write(folder / "rtl")
        own = list(tables(trace, f, 2))  # one a KV head if it has a table of its own
        with step("RTL against golden", len(own)) as advance:
            outcomes = []

            def seen(outcome) -> None:
                outcomes.append(outcome)
                advance(len(outcomes))

            try:
                verify("dre", trace, p, dre, f, queries=2, seed=seed, progress=seen)
            except BenchError as e:
                console.err.print(f"[red]the RTL failed[/] {escape(str(e))}", highlight=False, soft_wrap=True)
                raise typer.Exit(1) from None
        with step("cycles", len(own)) as advance:
            cycles = []
            for table in own:
                cycles.append((table.name, measure_cycles(table, p, f)))
                advance(len(cycles))
        with step("area", len(UNITS)) as advance:
            areas = {}
            for unit in UNITS:
                made = emit(unit, params_of(unit, system))
                areas[unit] = flow.synthesise(made.verilog, made.top, leaves=tuple(made.manifest["leaves"]))
                advance(len(areas))
        with step("what a question fetches", 1):
            asked = question_section()
        with step("execution engines", 2) as advance:
            busy = engines.utilisation(trace, system.core)
            advance(1)
            lost = engines.errors(trace, system.core.dpe.n_w)
    passed = not any(o.differences for o in outcomes)
    sections = [asked, *_sections(seconds, figures, outcomes, cycles, areas), *_engines(busy, lost)]
    verdict = "Every beat equals golden." if passed else "The hardware differs from golden."
    html_page.write(
        folder / "report.html", f"OpenVRex demo, preset {preset}", _lead(trace, frames), verdict, passed, sections
    )
    if json:
        results = {s.title: [dict(zip(s.head, row, strict=True)) for row in s.rows] for s in sections}
        console.print_json({"passed": passed, "report": str(folder / "report.html"), **results})
    else:
        for s in sections:
            console.out.print(s.table())
        console.out.print(f"Report: {folder / 'report.html'} · Verilog: {folder / 'rtl'} · trace: {folder}")
    if not passed:
        for o in outcomes:
            for d in o.differences:
                console.err.print(f"[red]{o.table}:[/] {d}", highlight=False, soft_wrap=True)
        raise typer.Exit(1)


def _lead(trace, frames: int) -> str:
    return (
        f"{frames} frames, {trace.tokens:,} tokens, layers {', '.join(map(str, trace.layers))} of "
        f"{trace.provenance['decoder']['model']}, {trace.kv_heads} KV heads: every cluster, selected token, address "
        "and burst of the RTL in Verilator was compared with golden."
    )


def question_section() -> Section:
    """A small run of `vrex papers scenes`. The window of resident tokens is short, so that ReSV has to fetch."""
    case = SceneCase(Scenes(frames=FRAMES), window=WINDOW)
    resv = override(entry("resv").params, {"resv.recent": str(WINDOW)})
    found = ask(case, replace(entry("resv"), params=resv))
    weight = sum(found.weight)
    shares = (
        sum(found.attended) / (found.far * len(found.attended)),
        sum(found.weight_found) / weight,
        sum(found.right) / sum(found.attended),
        sum(found.weight_right) / weight,
        found.own / found.far,
    )
    return Section(
        "What a question fetches",
        "Four clips joined into one stream, and a held-out frame of one of them (red) as the question, in all layers "
        "of the real decoder. The first map shows where full attention looks, the second what ReSV attends to and "
        "therefore fetches. The table counts three questions, one for each of the first three scenes. The projector "
        "between the models is not trained, so the question is a picture, not a sentence: docs/papers/recall.md says "
        f"what vrex papers scenes measures.\n{beside_chance(shares[2], shares[4])}",
        ["policy", "tokens fetched, %", "full attention's weight on them, %", "fetched of the scene asked for, %",
         "weight on that scene, %", "tokens of that scene, %"],
        [["ReSV", *(f"{100 * share:.0f}" for share in shares)]],
        html_page.inline(draw(case, {"ReSV": found})),
    )  # fmt: skip


def beside_chance(found: float, share: float) -> str:
    """A sentence that compares the share of a scene in what is fetched with its share of the stream."""
    better = found > CHANCE * share
    verdict = f"{found / share:.1f} times as much" if better else "so its choice hardly follows the question"
    return (
        f"A fetch that ignored the question would take {100 * share:.0f} % of its tokens from the scene asked for. "
        f"ReSV takes {100 * found:.0f} %: {verdict}."
    )


def _sections(seconds, figures, outcomes, cycles, areas) -> list[Section]:
    verified = Section(
        "RTL against golden",
        "Every beat of the DRE's four output streams, bit by bit; clock cycles counted in Verilator without stalls.",
        ["table", "keys", "clusters", "rows", "bursts", "beats compared", "clock cycles", "result"],
        [
            [
                o.table,
                *(f"{n:,}" for n in (o.keys, o.clusters, o.rows, o.bursts, o.beats, o.cycles)),
                "DIFFERS" if o.differences else "equal",
            ]
            for o in outcomes
        ],
    )
    resv = Section(
        "What ReSV selects",
        "Share of the cached tokens that a block (a frame, or generated tokens) fetches, share of a row visited before "
        "early exit, relative error of the attention output beside top-k at the same budget and the recent window "
        "alone. The projector between the vision encoder and the decoder is not trained: the errors are about "
        f"attention, not about answers.\n{verdict(figures)}",
        ["layer", "stage", *(COLUMNS[c].head for c in SHOWN)],
        [[str(r["layer"]), r["stage"], *(COLUMNS[c].cell(r[c]) for c in SHOWN)] for r in figures],
        html_page.bars(
            [f"{r['layer']}, {r['stage']}" for r in figures],
            {
                name: [100 * (r[c] or 0) for r in figures]
                for name, c in (("ReSV", "error"), ("top-k", "error_topk"), ("recent window alone", "error_window"))
            },
            "layer, stage",
            "error of the attention output, %",
        ),
    )
    bounds = [
        Section(
            title,
            note,
            ["table", *(c.head for c in columns.values())],
            [[name, *(c.cell(row[key]) for key, c in columns.items())] for name, row in cycles],
        )
        for title, (note, columns) in GROUPS.items()
    ]
    area = Section(
        "Area",
        "Gate equivalents (GE: one NAND2) with the project's embedded library, cells only, and what the logic would "
        f"take at {NODE} nm (docs/size.md has the interval). Memories stand beside the logic.",
        ["unit", "combinational, GE", "registers, GE", "logic, GE", f"logic at {NODE} nm, µm²", "memories, bit"],
        [
            [
                u,
                *(f"{x:,.0f}" for x in (a.comb_ge, a.reg_ge, a.total_ge)),
                f"{technology.to_node(a.total_ge, NODE).value:,.0f}",
                f"{a.memory_bits:,}",
            ]
            for u, a in areas.items()
        ],
        html_page.bars(
            list(areas),
            {"combinational": [a.comb_ge for a in areas.values()], "registers": [a.reg_ge for a in areas.values()]},
            "unit",
            "gate equivalents",
        ),
    )
    spent = Section("Time", "", ["step", "time, s"], [[name, f"{s:.1f}"] for name, s in seconds.items()])
    return [verified, resv, *bounds, area, spent]


def _engines(busy: list[tuple[str, int, float]], lost: dict[int, np.ndarray]) -> list[Section]:
    run = Section(
        "Execution engines",
        "Cycles and utilisation of DPE and VPE by their time views, which the benches hold equal to the RTL: operands "
        "in place, nothing stalls, from the first command to the last result.",
        ["step", "clock cycles", "utilisation, %"],
        [[name, f"{cycles:,}", f"{100 * share:.0f}"] for name, cycles, share in busy],
    )
    error = Section(
        "Error of the fused dot product",
        "Queries times keys of the trace, in shares of each score's sum of magnitudes, for three alignment windows; "
        "zero errors are left out. FP32 alone rounds by up to 2^-24 of the result.",
        ["window, bit", "worst error", "median error", "below 2^-24, %"],
        [
            [
                str(w),
                f"2^{np.log2(e.max()):.1f}",
                f"2^{np.log2(np.median(e)):.1f}",
                f"{100 * (e < 2.0**-24).mean():.1f}",
            ]
            for w, e in lost.items()
        ],
        html_page.histogram(
            {f"{w} bits": np.log2(e[e > 0]) for w, e in lost.items()},
            np.arange(-40, -7, 0.5),
            "log2 of the error",
            "scores",
        ),
    )
    return [run, error]
