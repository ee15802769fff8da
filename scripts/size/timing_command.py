"""`vrex size timing`: print the longest path and the highest clock of units."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from openvrex.hdl import emit, emit_cache
from openvrex.scripts import console
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import Mapped, print_table
from openvrex.synth import flow, opensta
from openvrex.synth.liberty import SynthError


def command(
    unit: mapped_units.Unit = "dre",
    preset: console.Preset = "core",
    assign: console.Param = None,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    dont_use: mapped_units.DontUse = None,
    macro_bits: mapped_units.MacroBits = flow.MACRO_BITS,
    gated: mapped_units.Gated = flow.GATED,
    with_sta: Annotated[
        bool,
        typer.Option(
            "--opensta", help="Let OpenSTA (`sta`) time the units without leaves too, and print the difference."
        ),
    ] = False,
    as_json: console.Json = False,
) -> None:
    """Print the longest path and the highest clock of a unit.

    Delays are in τ (a fifth of an FO4 inverter) with the embedded library, in ps with --liberty; then the clock is in
    MHz. The last tables show the longest path of each kind and the steps of the longest one.
    """
    found = mapped_units.mapped(unit, preset, assign, liberty, effort, target, dont_use, macro_bits, gated)
    rows, failed = found.rows, bool(found.errors)
    report = found.report(preset, assign)
    timed: dict[str, opensta.StaPath] = {}
    if with_sta and rows and not failed:
        try:
            timed = _time(found)
        except SynthError as e:
            found.errors.append(str(e))
            failed = True
        report["opensta"] = {u: asdict(p) for u, p in timed.items()}
    if as_json and not failed:
        typer.echo(json.dumps(report, indent=1))
    elif rows and not as_json:
        _print(rows)
        if found.unit in rows:
            _print_paths(rows[found.unit])
        if timed:
            _print_opensta(rows, timed)
    found.errors += [a.untimed for a in rows.values() if a.untimed]
    found.end()


def _time(found: Mapped) -> dict[str, opensta.StaPath]:
    """The longest path by OpenSTA, for each unit that has a path and no leaves."""
    out = {}
    for unit, area in found.rows.items():
        if area.timing and not area.leaves:
            made = found.generated or emit_cache.emitted(unit, emit.params_of(unit, found.system), flow.BUILD)
            netlists, library = flow.netlists(made.verilog, made.top, **found.options)
            out[unit] = opensta.longest(made.top, netlists[made.top]["netlist"], library)
    return out


def _print(rows: dict[str, flow.Area]) -> None:
    """Print a table with one row for each unit."""
    one = next(iter(rows.values()))
    heads = ["unit", "delay ps" if one.microns else "delay τ", "levels", *["MHz"] * one.microns]
    body = []
    for name, a in rows.items():
        cells = [f"{a.timing.delay:,.0f}", f"{a.timing.levels}"] if a.timing else ["-", "-"]
        body.append([name, *cells, *[_megahertz(a)] * a.microns])
    unit = "before layout" if one.microns else "1 τ = a fifth of FO4"
    print_table(mapped_units.title("Timing", one, unit), heads, body)


def _print_paths(area: flow.Area) -> None:
    """Print the longest path of each kind and the steps of the longest one."""
    if not area.timing or not area.timing.paths:
        return
    unit = {"ps": "ps", "tau": "τ"}[area.timing.unit]
    body = [[p.kind, f"{p.delay:,.1f}", f"{p.levels}", p.module, p.start, p.end] for p in area.timing.paths]
    print_table(f"Longest paths of {area.top}", ["kind", unit, "levels", "module", "from", "to"], body)
    path = area.timing.paths[0]
    console.out.print(f"{path.start} → {' → '.join(path.through)} → {path.end}", highlight=False, markup=False)
    body = [["", path.start, "", "", "", ""]]
    body += [[s.cell, s.instance, s.net, s.edge, f"{s.delay:,.1f}", f"{s.arrival:,.1f}"] for s in path.steps]
    body.append(["setup", path.end, "", "", f"{path.setup:,.1f}", f"{path.delay:,.1f}"])
    print_table(f"{path.kind} in {path.module}", ["cell", "instance", "signal", "edge", unit, "at"], body)


def _print_opensta(rows: dict[str, flow.Area], timed: dict[str, opensta.StaPath]) -> None:
    """Print the longest paths of `synth.timing` beside those of OpenSTA."""
    body = []
    for unit, path in timed.items():
        timing = rows[unit].timing
        own = timing.delay if timing else 0.0
        delays = (f"{own:,.2f}", f"{path.delay:,.2f}", f"{100 * (own / path.delay - 1):+.3f}" if path.delay else "-")
        body.append([unit, *delays, path.start, path.end])
    unit = "ps" if next(iter(rows.values())).microns else "τ"
    print_table("Longest paths and OpenSTA's", ["unit", unit, f"OpenSTA {unit}", "difference %", "from", "to"], body)


def _megahertz(area: flow.Area) -> str:
    return f"{area.timing.fmax_mhz:,.0f}" if area.timing and area.timing.fmax_mhz else "-"
