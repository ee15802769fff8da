"""`vrex report`: write one self-contained HTML page about a design."""

import itertools
import json as json_format
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.markup import escape

from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.emit import UNITS, Emitted, params_of
from openvrex.hdl.emit_cache import emitted
from openvrex.hdl.params import SystemParams, flat
from openvrex.scripts import console
from openvrex.scripts.check.plan_table import TESTS
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.pages import block_diagram, html_page, waveform
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.quantity import number
from openvrex.synth import flow, table3
from openvrex.synth.sweep import pareto_front
from openvrex.synth.sweep.database import Row as Result
from openvrex.synth.sweep.point_costs import OBJECTIVES
from openvrex.synth.table3 import DRE, SYSTEMS, Row
from openvrex.tb.library.runner import BenchError
from openvrex.tb.library.trace_check import Outcome, verify_unit

STALLS = {"idle": 0.1, "stall": 0.2}  # so that the waveforms show waiting beats


def command(
    folder: console.Folder = Path("build/report"),
    preset: console.Preset = "core",
    param: console.Param = None,
    trace: console.Trace = FIXTURE,
    sweep: Annotated[Path | None, typer.Option(help="Folder of `vrex sweep`: show its Pareto front and plots.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of `vrex run`: show its stages and picture.")] = None,
    tests: console.Tests = TESTS,
    seed: console.Seed = 1,
    json: console.Json = False,
) -> None:
    """Write one HTML page about a design.

    It shows verdicts, sweep, verification, areas, layers, coverage, waveforms and parameters.
    """
    system = console.params(preset, param)
    data = Trace.load(trace)
    swept, choice = _sweep(sweep) if sweep else ([], [])  # first, so that a wrong folder is found before the long part
    ran = _ran(run) if run else []
    tested = _tests(tests)
    areas: dict[str, flow.Area] = {}
    outcomes: dict[str, list[Outcome]] = {}
    pictures: dict[str, str] = {}
    with Bar(quiet=json) as progress:
        bar = progress.add_task("", total=len(table3.UNITS) + len(UNITS))
        for unit in table3.UNITS:
            progress.update(bar, description=f"{unit}: area")
            made, parts = table3.design(unit, system, flow.BUILD)
            areas[unit] = flow.synthesise(made.verilog, made.top, **parts)
            progress.advance(bar)
        for unit in UNITS:
            progress.update(bar, description=f"{unit}: {trace.name} on the RTL")
            made = emitted(unit, params_of(unit, system), flow.BUILD)
            try:
                outcomes[unit], pictures[unit] = _simulate(unit, made, system, data, seed)
            except BenchError as e:
                console.err.print(f"[red]{unit} failed[/] {escape(str(e))}", highlight=False, soft_wrap=True)
                raise typer.Exit(1) from None
            progress.advance(bar)
    differs = [f"{u}, {o.table}: {d}" for u, found in outcomes.items() for o in found for d in o.differences]
    sections = [
        _verdicts(outcomes, choice, tested),
        *swept,
        _verification(outcomes, data),
        _diagram(system, areas),
        *_areas(areas),
        *ran,
        tested,
        *(_waveform(unit, picture) for unit, picture in pictures.items()),
        *_parameters(system),
    ]
    lead = f"Preset {preset}" + (f" with {', '.join(param)}" if param else "") + f", trace {trace.name}."
    verdict = f"{len(differs)} differences from golden." if differs else "Every beat equals golden."
    file = folder / "report.html"
    html_page.write(file, f"OpenVRex {preset}", lead, verdict, not differs, sections)
    if json:
        tables = {s.title: [dict(zip(s.head, row, strict=True)) for row in s.rows] for s in sections}
        console.print_json({"passed": not differs, "report": str(file), "differences": differs, **tables})
    else:
        console.out.print(f"Report: {file}")
    for line in differs:
        console.err.print(f"[red]differs:[/] {line}", highlight=False, soft_wrap=True)
    if differs:
        raise typer.Exit(1)


def _simulate(unit: str, made: Emitted, system: SystemParams, data: Trace, seed: int) -> tuple[list[Outcome], str]:
    """Outcomes of the trace on the RTL, and a waveform of the run."""
    outcomes: list[Outcome] = []

    def play(recorder: Emitted) -> None:
        f = system.core.dre.function()
        outcomes.extend(verify_unit(unit, data, system, recorder, f, queries=1, seed=seed, **STALLS))

    samples = waveform.record(made, play)
    return outcomes, html_page.svg(waveform.draw(made, samples))


def _parameters(system: SystemParams) -> list[Section]:
    values = flat(system)
    return [
        Section(
            "Parameters",
            "Names and values as `-p` takes them.",
            ["parameter", "value"],
            [list(item) for item in values.items()],
        )
    ]


def _diagram(system: SystemParams, areas: dict[str, flow.Area]) -> Section:
    made = emitted("dre", params_of("dre", system), flow.BUILD)
    notes = {u: f"{a.total_ge:,.0f} GE" for u, a in areas.items()}
    notes |= {f"wtu{i}": notes["wtu"] for i in range(system.core.dre.wtu.n_h)}
    note = (
        "Drawn from the Verilog of the DRE: its parts with their memories, and the data that go from one to the other "
        "(bits of the widest port). k: keys' hash bits, s: rows of score codes, t: clusters of the keys, w: addresses "
        "of new entries, x: moves out of the recent window, b: bursts to fetch."
    )
    return Section(
        "Retrieval engine (DRE)", note, plot=html_page.svg(block_diagram.draw(made.verilog, made.top, notes))
    )


def _areas(areas: dict[str, flow.Area]) -> list[Section]:
    rows = table3.table3(areas)
    core, paper = rows["core"], rows["core"].paper_area
    body = [
        [
            r.name,
            f"{r.paper_area:.4f}" if r.paper_area else "-",
            f"{100 * r.paper_area / paper:.2f}" if r.paper_area else "-",
            f"{r.area.value:.4f}",
            f"{r.area.low:.4f} to {r.area.high:.4f}",
            f"{100 * r.area.value / core.area.value:.2f}",
        ]
        for r in rows.values()
    ]
    for n, mm2 in SYSTEMS.items():
        ours = n * core.area
        body.append([f"{n} cores", f"{mm2:.2f}", "", f"{ours.value:.2f}", f"{ours.low:.2f} to {ours.high:.2f}", ""])
    third = Section(
        "Table III",
        "Area in 14 nm and share of the core: the paper's, and ours through the embedded library and the documented "
        "step from gate equivalents to a node, with its uncertainty (docs/size.md).",
        ["unit", "paper, mm²", "of its core, %", "ours, mm²", "low to high, mm²", "of our core, %"],
        body,
    )
    units = Section(
        "Logic and memories of each unit",
        "Embedded library; 1 GE is one NAND2, 1 τ a fifth of an inverter with four alike behind it.",
        ["unit", "cells, GE", "registers, GE", "memories, bit", "longest path, τ", "levels"],
        [
            [
                u,
                *(f"{x:,.0f}" for x in (a.comb_ge, a.reg_ge, a.memory_bits)),
                *((f"{a.timing.delay:,.0f}", str(a.timing.levels)) if a.timing else ("-", "-")),
            ]
            for u, a in areas.items()
        ],  # fmt: skip
    )
    return [
        Section("Area of the core", "Cells, registers and memories of each unit.", plot=_tree_map(rows)),
        third,
        units,
    ]


def _tree_map(rows: dict[str, Row]) -> str:
    """A picture of the area: each column is a unit, as wide as its area, split into cells, registers and memories.

    The DRE has a second picture of its own, enlarged.
    """
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    kinds = (("cells", "#3b6ea5"), ("registers", "#8fb3d9"), ("memories", "#e0b060"))
    for i, (title, names) in enumerate((("core", [*(n for n in rows if n not in (*DRE, "core"))]), ("DRE", DRE)), 1):
        axes = figure.add_subplot(1, 2, i, title=f"{title}: {rows[title.lower()].area.value:.3f} mm²")
        axes.set_axis_off()
        total, x = sum(max(0.0, rows[n].area.value) for n in names), 0.0
        for name in names:
            own = max(0.0, rows[name].area.value)
            width, y = own / total, 0.0
            for kind, colour in kinds:
                height = max(0.0, getattr(rows[name], kind).value) / own if own else 0.0
                axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=1))
                y += height
            if width > 0.02:
                axes.text(x + width / 2, 0.5, f"{rows[name].name}\n{100 * width:.0f} %", ha="center", va="center",
                          rotation=90 if width < 0.12 else 0, fontsize=8)  # fmt: skip
            x += width
        for kind, colour in kinds:
            axes.bar(0, 0, color=colour, label=kind)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
    return html_page.svg(figure)


def _verdicts(outcomes: dict[str, list[Outcome]], choice: list[list[str]], tested: Section) -> Section:
    """The first section: is the RTL right, which design is best, and what has been tested."""
    runs = [o for found in outcomes.values() for o in found]
    wrong = sum(len(o.differences) for o in runs)
    verdict = f"{wrong:,} differences" if wrong else "every beat is equal"
    rows = [["RTL against golden", verdict, f"{sum(o.beats for o in runs):,} beats of {len(runs):,} runs"], *choice]
    passed, failed, skipped = (sum(int(row[i].replace(",", "")) for row in tested.rows) for i in (1, 2, 3))
    counts = f"{passed:,} passed, {failed:,} failed, {skipped:,} skipped" if tested.rows else "none on record"
    return Section("Verdicts", "", ["what", "verdict", "of"], [*rows, ["tests", counts, f"{len(tested.rows):,} files"]])


def _sweep(folder: Path) -> tuple[list[Section], list[list[str]]]:
    """The section and the verdict of a sweep: its Pareto front with plots, and the chosen point.

    Raises: `ValueError` for a folder that `vrex sweep` did not write.
    """
    try:
        points = json_format.loads((folder / "points.json").read_text())
        shown = [p["point"] for p in points]
        rows = [Result(p["result"], p["error"]) for p in points]
        best = [i for i, p in enumerate(points) if p["front"]]
        objectives = tuple(o for o in OBJECTIVES if any(o in r.result for r in rows))
        choice = pareto_front.chosen(rows, best, objectives)
        names = list(points[0]["point"]) if points else []
        body = [
            [
                *(str(shown[i][n]) for n in names),
                *(number(rows[i].result[o], 4) for o in objectives),
                "chosen" if i == choice else "",
            ]
            for i in best
        ]
        varied = pareto_front.differing(rows, objectives)
        pairs = itertools.combinations(varied, 2)
        plots = [
            pareto_front.hover(html_page.svg(pareto_front.plot(shown, rows, set(best), x, y, choice))) for x, y in pairs
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"sweep={folder}: not a folder that `vrex sweep` wrote ({e})") from None
    failed = sum(bool(r.error) for r in rows)
    counts = f"{len(points):,} points, {failed:,} failed, {len(best):,} on the Pareto front"
    same = [OBJECTIVES[o].title for o in objectives if o not in varied]
    note = f"{counts}." + (f" The same at all points, so not plotted: {', '.join(same)}." if same else "")
    note += " Chosen: the point of the front nearest to the best of every objective, each scaled over the front."
    heads = [*names, *(f"{OBJECTIVES[o].title}, {OBJECTIVES[o].unit}" for o in objectives), ""]
    verdict = "no point has a result" if choice is None else ", ".join(f"{n} {v}" for n, v in shown[choice].items())
    section = Section("Sweep", note, heads, body, f'<div class="plots">{"".join(plots)}</div>' if plots else "")
    return [section], [["sweep: chosen point", verdict, counts]]


def _verification(outcomes: dict[str, list[Outcome]], data: Trace) -> Section:
    return Section(
        "RTL against golden",
        f"{data.tokens:,} tokens, layers {', '.join(map(str, data.layers))}; inputs idle in {STALLS['idle']:.0%} and "
        f"outputs are stalled in {STALLS['stall']:.0%} of the cycles. Cycles of unstalled runs are held equal by "
        "`vrex verify`.",
        ["unit", "run", "beats compared", "clock cycles", "result"],
        [
            [u, o.table, f"{o.beats:,}", f"{o.cycles:,}", "DIFFERS" if o.differences else "equal"]
            for u, found in outcomes.items()
            for o in found
        ],
    )


def _ran(folder: Path) -> list[Section]:
    """The sections of a run on the RTL."""
    from openvrex.scripts.run.run_folder import load  # of the extra `models`, as the run was

    return load(folder)


def _tests(path: Path) -> Section:
    """The tests of each file, and the coverage bins that they reached."""
    if not path.exists():
        return Section("Tests and functional coverage", f"No test run on record at {path}: `make test` leaves one.")
    try:
        cases = list(ET.parse(path).iter("testcase"))
    except ET.ParseError as e:
        raise ValueError(f"tests={path}: not JUnit's XML ({e})") from None
    counts: dict[str, list[int]] = {}
    bins: dict[str, str] = {}
    for case in cases:
        name = case.get("classname", "").rpartition(".")[2]
        own = counts.setdefault(name, [0, 0, 0])
        failed = case.find("failure") is not None or case.find("error") is not None
        own[1 if failed else 2 if case.find("skipped") is not None else 0] += 1
        for p in case.iter("property"):
            if p.get("name") == "bins":
                bins[name] = f"{bins[name]}, {p.get('value')}" if name in bins else p.get("value", "")
    rows = [[n, *(f"{x:,}" for x in c), bins.get(n, "")] for n, c in sorted(counts.items())]
    return Section(
        "Tests and functional coverage",
        f"From {path}. Every bin listed was reached; a test fails if a stated one is not.",
        ["file", "passed", "failed", "skipped", "coverage bins"],
        rows,
    )


def _waveform(unit: str, picture: str) -> Section:
    return Section(
        f"Streams of {unit}",
        "From the run above. Blue: a beat is handed over, the end of its payload in hexadecimal; yellow: offered, the "
        "receiver not ready.",
        plot=picture,
    )
