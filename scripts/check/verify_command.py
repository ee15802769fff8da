"""`vrex verify`: run a trace on the RTL in Verilator and compare it with golden, bit by bit."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.emit import ALL, UNITS, params_of
from openvrex.hdl.header import command_line
from openvrex.scripts import console
from openvrex.scripts.check import block_status_table, sign_off_table
from openvrex.scripts.check.plan_table import TESTS, show
from openvrex.scripts.progress import Spinner
from openvrex.tb.library.runner import ROOT, BenchError, emit
from openvrex.tb.library.trace_check import Outcome, exercised, missing, verify_unit
from openvrex.tb.library.waveforms import Traced

WAVES = Path("build/waves")
FIXTURE = ROOT / "tb" / "fixtures" / "world.safetensors"


def command(
    unit: Annotated[
        str, typer.Argument(help=f"One of {', '.join(UNITS)} (dre runs the others together), or a generated folder.")
    ] = "dre",
    preset: console.Preset = "core",
    param: console.Param = None,
    trace: console.Trace = FIXTURE,
    queries: console.Queries = 2,
    th_hd: console.ThHd = None,
    ratio: console.Ratio = None,
    centre: console.Centre = None,
    idle: Annotated[float, typer.Option(help="Probability that an input idles in a cycle.")] = 0.0,
    stall: Annotated[float, typer.Option(help="Probability that an output is stalled in a cycle.")] = 0.0,
    seed: console.Seed = 1,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Show the verification plan instead: each feature, with the verdict of the --tests."
        ),
    ] = False,
    status: Annotated[
        bool,
        typer.Option("--status", help="Show the status of each block instead: clock, size, coverage, mutants, proofs."),
    ] = False,
    signoff: Annotated[
        bool,
        typer.Option("--signoff", help="Show the stage that each block has reached by the sign-off checklist instead."),
    ] = False,
    tests: Annotated[
        Path | None,
        typer.Option(
            show_default=False,
            help=f"With --plan: results of a test run (JUnit XML); by default {TESTS} of 'make test', or the recorded "
            "ones.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--record", help="With --plan: record the results for checkouts without any.")
    ] = False,
    waves: Annotated[
        bool, typer.Option("--waves", help=f"Leave the waveform in {WAVES}/UNIT, with a save file for GTKWave.")
    ] = False,
    json: console.Json = False,
) -> None:
    """Run a trace on the RTL of a unit and compare it with golden.

    The command compares beat by beat; for the DRE every address and burst.
    """
    shown = [name for name, asked in (("--plan", plan), ("--status", status), ("--signoff", signoff)) if asked]
    check(len(shown) < 2, " ".join(shown), True, "must not stand together: give one of them")
    if signoff:
        sign_off_table.show(json)
        return
    if status:
        block_status_table.show(json)
        return
    if plan:
        show(tests, json, keep)
        return
    asked = unit
    unit, system, generated = console.chosen(asked, preset, param)
    preset = asked if generated else preset
    check(unit in UNITS, "unit", unit, f"must be one of {', '.join(UNITS)}, or a folder of one")
    check(0 <= idle < 1, "idle", idle, "must be at least 0 and below 1")
    check(0 <= stall < 1, "stall", stall, "must be at least 0 and below 1")
    p = system.core.dre
    f = console.function(p, th_hd, ratio, centre)
    data = Trace.load(trace)
    emitted = generated or emit(unit, params_of(unit, system))
    folder = (WAVES / unit).absolute()
    if waves:
        shutil.rmtree(folder, ignore_errors=True)
        emitted = Traced(**vars(emitted), folder=folder)
    try:
        with Spinner(f"{unit} on {trace.name}", json) as step:
            of_run = {"queries": queries, "idle": idle, "stall": stall, "seed": seed}
            outcomes = verify_unit(unit, data, system, emitted, f, **of_run, progress=lambda o: step.update(_line(o)))
    except BenchError as e:
        console.err.print(f"[red]{unit} failed[/] {escape(str(e))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    finally:
        for save in sorted(folder.glob("*.gtkw")) if waves else ():
            console.err.print(f"waveform: cd {folder} && gtkwave {save.name}", highlight=False, soft_wrap=True)
    # A folder's Verilog has its sizes: other sizes need the design that it was made from.
    own = f"{command_line(f'vrex verify {unit}', params_of(unit, system), ALL[unit][2], [])} " if generated else ""
    found = missing(unit, p, outcomes)
    never = [f"no {name}: {own if how.startswith('-p') else ''}{how}" for name, how in found.items()]
    if json:
        tables = [asdict(o) for o in outcomes]
        console.print_json({"unit": unit, "preset": preset, "seed": seed, "tables": tables, "missing": never})
    else:
        console.out.print(table(outcomes, f"{unit} ({preset}) on {trace.name}"))
        console.out.print(events(outcomes, exercised(unit, p)))
        for o in outcomes:
            for difference in o.differences:
                console.err.print(f"[red]{o.table}:[/] {difference}", highlight=False, soft_wrap=True)
    for line in never:
        console.err.print(f"[yellow]not exercised:[/] {line}", highlight=False, soft_wrap=True)
    if any(o.differences for o in outcomes):
        raise typer.Exit(1)


def table(outcomes: list[Outcome], title: str) -> Table:
    """A table with one row for each HC table of the trace."""
    head = ("table", "context", "keys", "clusters", "rows", "bursts", "refused", "beats compared", "cycles", "result")
    out = Table(*head, title=title)
    for o in outcomes:
        verdict = "[red]DIFFERS[/]" if o.differences else "[green]equal[/]"
        numbers = (o.context, o.keys, o.clusters, o.rows, o.bursts, o.refused, o.beats, o.cycles)
        out.add_row(o.table, *(f"{n:,}" for n in numbers), verdict)
    return out


def events(outcomes: list[Outcome], names: list[str]) -> Table:
    """A table with one row for each event: how often it happened."""
    out = Table("exercised", "times", "in tables", title="What the run exercised")
    for name in names:
        own = [o.events[name] for o in outcomes if o.events.get(name)]
        where = "all" if len(own) == len(outcomes) else f"{len(own)} of {len(outcomes)}"
        out.add_row(name, f"{sum(own):,}", where if own else "[yellow]never[/]")
    return out


def _line(o: Outcome) -> str:
    return f"{o.table}: {o.beats:,} beats compared, {len(o.differences)} differ"
