"""`vrex run`: run decoder layers on golden and on the RTL of a core, and compare them."""

import json as json_format
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from golden.atomic_files import replacing, write_atomically
from golden.function_params import RATIO, ReSVParams
from golden.inputs.trace import Trace, TraceError
from hdl.emit import emit
from scripts import console
from scripts.pages import html_page
from scripts.pages.html_page import Section
from tb.library.decoder_layers import DecoderLayers
from tb.library.layer_runs import LATENCY, Ran, with_memory
from tb.library.runner import BenchError, simulator
from tb.library.stage_log import Span, Unit, spans

RESULT, PICTURE = "run.json", "timeline"  # in the folder
BINS = 400  # of the picture
PASSES = ("frame", "layer", "cycles", "clusters", "chosen", "fetched", "offloaded", "stored")
PASS_NOTE = (
    "clusters, offloaded: clusters and offloaded entries of the layer after the pass; chosen: clusters that the pass "
    "chose; fetched: entries fetched for them; stored: bytes that the LXE stored. After every pass the command "
    "compared the stores in their order and every array in memory with golden."
)
STAGE_NOTE = (
    "Cycles: from the end of all earlier stages to the end of this one, so that they add up. Units: share of the "
    "cycles between first and last in which the unit works for this stage: the DPE on a chunk a cycle, the VPE on a "
    "word, loader, storer and retriever on a beat of the bus, the HCU on a comparison, the WTU on a word of scores."
)


def command(
    trace: Annotated[Path, typer.Option(help="Trace of `vrex trace`; its frames enter the first layer.")],
    layers: Annotated[int, typer.Option(min=1, help="Number of decoder layers, from the first one.")] = 2,
    frames: Annotated[int, typer.Option(min=1, help="Number of frames, from the first one.")] = 3,
    ahead: Annotated[
        bool,
        typer.Option("--ahead", help="Let each layer choose and fetch entries for the next one during its own work."),
    ] = False,
    th_hd: console.ThHd = None,
    ratio: console.Ratio = RATIO,
    centre: console.Centre = ReSVParams.centre,
    preset: console.Preset = "small",
    param: console.Param = None,
    folder: console.Folder = Path("build/run"),
    json: console.Json = False,
) -> None:
    """Run decoder layers on the RTL of a core.

    Golden runs the same layers; the command compares every store and every array.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    p = console.params(preset, param).core
    started = time.perf_counter()
    with Progress(*columns, console=console.err, disable=json or not console.err.is_terminal) as bar:

        @contextmanager
        def step(name: str, total: int = 1) -> Iterator:
            task = bar.add_task(name, total=total)
            yield lambda done: bar.update(task, completed=done)
            bar.update(task, completed=total)

        data = Trace.load(trace)
        try:
            run = DecoderLayers(data, p, layers, frames, ahead, console.function(p.dre, th_hd, ratio, centre))
        except TraceError as e:
            raise TraceError(f"{trace.name}: {e}") from None
        with step("golden", layers * frames) as advance:
            run.run(advance)
        with step("full attention, FP64"):
            errors = run.errors()
        with step("Verilog"):
            made = with_memory(emit("core", p), p, run.session.size)
        try:
            with step("Verilator"):
                simulator(made)
            with step("RTL", layers * frames) as advance:
                ran = run.play(made, advance)
        except BenchError as e:
            console.err.print(f"[red]the RTL failed[/] {escape(str(e))}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
    result = {
        "trace": trace.name,
        "model": data.provenance["decoder"]["model"],
        "preset": preset,
        "param": param or [],
        "layers": layers,
        "frames": frames,
        "ahead": ahead,
        "tokens_per_frame": run.tokens,
        "sinks": run.sinks,
        "errors": errors,
        "seconds": round(time.perf_counter() - started, 1),
        "passes": [measured(run, ran, k) for k in range(len(ran))],
        "differences": [line for had in ran for line in had.differences],
    }
    if len(ran) < len(run.passes):
        result["differences"].append(f"{len(ran)} passes of {len(run.passes)} were run")
    write_atomically(folder / RESULT, json_format.dumps(result, indent=1).encode())
    figure = draw(run, ran[-1])
    write_atomically(folder / f"{PICTURE}.svg", html_page.svg(figure).encode())
    with replacing(folder / f"{PICTURE}.png") as file:
        figure.savefig(file, format="png", dpi=150)
    lead = f"{result['model']}: {layers} layers, {frames} frames of {trace.name}, preset {preset}."
    verdict = "The RTL differs from golden." if result["differences"] else "Every store and every array equal golden."
    passed = not result["differences"]
    html_page.write(folder / "report.html", "OpenVRex: layers on the RTL", lead, verdict, passed, load(folder))
    if json:
        console.print_json(result)
    else:
        for s in sections(result):
            console.out.print(s.table())
        console.out.print(f"Report: {folder / 'report.html'} · picture: {folder / PICTURE}.svg, .png")
    for line in result["differences"]:
        console.err.print(f"[red]differs:[/] {line}", highlight=False, soft_wrap=True)
    if result["differences"]:
        raise typer.Exit(1)


def measured(run: DecoderLayers, ran: list[Ran], k: int) -> dict:
    """The figures of pass `k` on the RTL and of its stages."""
    one, had = run.passes[k], ran[k]
    before = ran[k - 1].perf if k else dict.fromkeys(had.perf, 0)
    perf = {name: n - before[name] for name, n in had.perf.items()}
    names = [s.name for s in run.plans[one.layer].stages]
    reached = had.samples[-1, 1 : 1 + len(run.units)]
    found = spans(np.minimum(one.ends, reached[:, None]), had.samples)
    return {
        "frame": one.frame,
        "layer": one.layer,
        "cycles": had.cycles,
        "clusters": one.clusters,
        "chosen": perf["dre.cluster_set.clusters"],
        "fetched": one.entries - run.sinks,
        "offloaded": one.offloaded,
        "stored": perf["lxe.storer.beats"] * run.p.lxe.bus_bytes,
        "differs": bool(had.differences),
        "utilisation": {
            u.name: int(n) / had.cycles for u, n in zip(run.units, had.samples[-1, -len(found) :], strict=True)
        },
        "stages": stage_rows(names, run.units, found),
    }


def stage_rows(names: list[str], units: list[Unit], found: list[list[Span | None]]) -> list[dict]:
    """The cycles of each stage, and the share of them in which each unit worked for it."""
    out, before = [], 0
    for k, name in enumerate(names):
        own = {u.name: span for u, row in zip(units, found, strict=True) if (span := row[k])}
        if not own:
            continue
        first, last = min(s.first for s in own.values()), max(s.last for s in own.values())
        share = {unit: s.busy / max(1, last - first) for unit, s in own.items()}
        out.append({"stage": name, "cycles": max(0, last - before), "first": first, "last": last, "units": share})
        before = max(before, last)
    return out


def draw(run: DecoderLayers, had: Ran) -> Figure:
    """A picture of the last pass: one row for each unit.

    The colour names the stage; the height of the filling is the share of cycles in which the unit was busy.
    """
    one, n = run.passes[-1], len(run.units)
    found = spans(one.ends, had.samples)
    names = [s.name for s in run.plans[one.layer].stages]
    colours = [matplotlib.colormaps["tab20"](k)[:3] for k in range(20)]
    figure = Figure(figsize=(12, 0.75 * n + 1.2), layout="constrained")
    axes = figure.add_subplot(xlabel="cycle", title=f"frame {one.frame}, layer {one.layer}")
    edges = np.linspace(0, had.cycles, BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    for u, row in enumerate(found):
        busy = np.diff(np.interp(edges, had.samples[:, 0], had.samples[:, 1 + n + u])) / np.diff(edges)
        for k, span in enumerate(row):
            if span:
                base = n - 1 - u
                axes.broken_barh(
                    [(span.first, span.last - span.first)], (base, 0.85), color=colours[k % 20], alpha=0.15
                )
                own = (middle >= span.first) & (middle <= span.last)
                heights = base + 0.85 * busy[own]
                axes.fill_between(middle[own], base, heights, step="mid", color=colours[k % 20], linewidth=0)
    axes.set_yticks(np.arange(n) + 0.4, [u.name for u in reversed(run.units)])
    axes.set_xlim(0, had.cycles)
    axes.set_ylim(-0.05, n)
    used = [k for k in range(len(names)) if any(row[k] for row in found)]
    handles = [Patch(color=colours[k % 20], label=names[k]) for k in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False)
    return figure


def sections(result: dict, picture: str = "") -> list[Section]:
    """The sections of a report about a run."""
    passes = result["passes"]
    units = list(passes[-1]["utilisation"])
    last = passes[-1]
    everything = {"stage": "all", "cycles": last["cycles"], "first": 0, "last": last["cycles"]}
    everything["units"] = last["utilisation"]
    longest_first = sorted(passes, key=lambda one: -len(one["stages"]))
    names = list(dict.fromkeys(s["stage"] for one in longest_first for s in one["stages"]))
    cycles = [{s["stage"]: s["cycles"] for s in one["stages"]} for one in passes]
    chooses = "each layer chooses for the next one" if result["ahead"] else "each layer chooses for itself"
    return [
        Section(
            "Decoder layers on the RTL",
            f"{result['model']}, {result['tokens_per_frame']} tokens a frame, {result['sinks']} before the first as "
            f"sinks; {chooses}; trace {result['trace']}, preset {' '.join([result['preset'], *result['param']])}; "
            f"memory: {LATENCY} cycles to the first beat, then a beat a cycle. {PASS_NOTE}",
            [*PASSES, "error", "result"],
            [
                [*(f"{one[key]:,}" for key in PASSES), _error(result, one), "DIFFERS" if one["differs"] else "equal"]
                for one in passes
            ],
        ),
        Section(
            f"Stages of frame {last['frame']}, layer {last['layer']}",
            STAGE_NOTE,
            ["stage", "cycles", "first", "last", *units],
            [
                [
                    s["stage"],
                    *(f"{s[key]:,}" for key in ("cycles", "first", "last")),
                    *(f"{s['units'][u]:.1%}" if u in s["units"] else "" for u in units),
                ]
                for s in [*last["stages"], everything]
            ],
            picture,
        ),
        Section(
            "Cycles of the stages, pass by pass",
            "",
            ["stage", *(f"{one['frame']}, {one['layer']}" for one in passes)],
            [[name, *(f"{c[name]:,}" if name in c else "" for c in cycles)] for name in names],
        ),
    ]


def _error(result: dict, one: dict) -> str:
    """The error against full attention in FP64, for the last layer of a frame."""
    return f"{result['errors'][one['frame']]:.2%}" if one["layer"] == result["layers"] - 1 else ""


def load(folder: Path) -> list[Section]:
    """The sections of the run in a folder of `vrex run`. Raises `ValueError` for any other folder."""
    try:
        return sections(json_format.loads((folder / RESULT).read_text()), (folder / f"{PICTURE}.svg").read_text())
    except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
        raise ValueError(f"run={folder}: not a folder that `vrex run` wrote ({e})") from None
