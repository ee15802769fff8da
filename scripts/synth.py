"""`vrex synth`: area per unit."""

import json
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from golden.params import ParamError, check
from hdl import emit, params
from scripts import console
from synth import flow
from synth.liberty import SynthError, write_atomically

JOBS = 2  # Yosys runs at once, each a process of its own


def command(
    unit: Annotated[str, typer.Argument(help=f"One of {', '.join(emit.UNITS)}; dre lists every unit in it.")] = "dre",
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(params.PRESETS)}.")] = "core",
    assign: Annotated[list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="Change a parameter.")] = None,
    liberty: Annotated[
        list[Path] | None, typer.Option(help="Liberty file, .gz allowed; repeat for a library in several files.")
    ] = None,
    dont_use: Annotated[list[str] | None, typer.Option(help="Pattern of cells that mapping must not use.")] = None,
    macro_bits: Annotated[int, typer.Option(help="Smaller memories are built of flip-flops.")] = flow.MACRO_BITS,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable results on stdout.")] = False,
    out: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Also write DIR/area.json.")] = None,
) -> None:
    """Map units to gates and print their area, in gate equivalents or, with --liberty, also in µm²."""
    done: dict[str, flow.Area] = {}
    errors: list[str] = []
    code = 2
    try:
        check(unit in emit.UNITS, "unit", unit, f"must be one of {', '.join(emit.UNITS)}")
        chosen = params.override(params.preset(preset), assign or [])
        _measure(_units(unit), chosen, (liberty, macro_bits, tuple(dont_use or ())), done, errors)
    except ParamError as e:
        errors.append(str(e))
    except KeyboardInterrupt:
        code = 130
        errors.append("interrupted; finished units are kept and will not be run again")
    rows = {u: done[u] for u in _units(unit) if u in done}
    report = {"preset": preset, "assignments": assign or [], "units": {u: a.report() for u, a in rows.items()}}
    text = json.dumps(report, indent=1)
    if as_json and not errors:
        typer.echo(text)
    elif rows and not as_json:
        _print(rows, rows.get(unit))
    if out and not errors:
        write_atomically(out / "area.json", text.encode())
    for error in dict.fromkeys(errors):  # a bad library is the same fault in every unit
        typer.echo(f"vrex synth: {error}", err=True)
    if errors:
        raise typer.Exit(code)


def _units(unit: str) -> list[str]:
    """The rows of a report: a DRE comes after the units it is made of."""
    return [*(u for u in emit.UNITS if u != unit), unit] if unit == "dre" else [unit]


def _measure(
    units: list[str], chosen: params.SystemParams, options: tuple, done: dict[str, flow.Area], errors: list[str]
) -> None:
    """Fill `done` unit by unit, and `errors` with what stopped the others; Ctrl-C ends those that run."""
    jobs: dict[Future, str] = {}
    pool = ThreadPoolExecutor(JOBS)

    def collect(futures) -> None:
        for job in futures:
            unit = jobs.pop(job)
            try:
                done[unit] = job.result()
            except SynthError as e:
                errors.append(str(e))

    try:
        with console.err.status("") as status:
            for unit in units:
                status.update(f"generating {unit}")
                made = emit.emit(unit, emit.params_of(unit, chosen))
                jobs[pool.submit(flow.synthesise, made.verilog, made.top, *options)] = unit
                collect([j for j in jobs if j.done()])
            while jobs:
                status.update(f"synthesising {', '.join(jobs.values())}")
                collect(wait(jobs, return_when=FIRST_COMPLETED).done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(job.done() for job in jobs):  # a thread may be about to start its run
            flow.stop()
            time.sleep(0.05)


def _print(rows: dict[str, flow.Area], asked: flow.Area | None) -> None:
    any_area = next(iter(rows.values()))
    unit = f"1 GE = {any_area.unit_cell}" + (f", {any_area.unit_area:g} µm²" if any_area.microns else "")
    table = Table(title=f"Area with {', '.join(any_area.library)} ({unit})")
    heads = ["unit", "comb GE", "reg GE", "total GE", "registers", "memory bits"] + ["µm²"] * any_area.microns
    for head in heads:
        table.add_column(head, justify="left" if head == "unit" else "right")
    for name, a in rows.items():
        cells = [f"{x:,.0f}" for x in (a.comb_ge, a.reg_ge, a.total_ge, a.registers, a.memory_bits)]
        table.add_row(name, *cells, *([f"{a.total_area:,.1f}"] if a.microns else []))
    console.out.print(table)
    if asked and asked.memories:
        listing = Table(title=f"Memories of {asked.top}, not in the area")
        for head in ("memory", "words", "bits a word", "ports", "bits"):
            listing.add_column(head, justify="left" if head == "memory" else "right")
        for m in asked.memories:
            ports = f"{m.read_ports}R {m.write_ports}W"
            listing.add_row(m.name, f"{m.depth:,}", f"{m.width:,}", ports, f"{m.bits:,}")
        console.out.print(listing)
