"""`vrex size table3`: print the area of a core beside Table III of V-Rex."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.function_params import ParamError, check
from openvrex.golden.text_files import read_text
from openvrex.scripts import console
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import print_table
from openvrex.synth import flow, table3
from openvrex.synth.technology import NODES, Estimate


def command(
    preset: console.Preset = "core",
    assign: console.Param = None,
    power: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Powers: the output of `vrex size power dre vpe dpe --json`.")
    ] = None,
    node: Annotated[int, typer.Option(help=f"Process node in nm: {', '.join(map(str, NODES))}.")] = 14,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    dont_use: mapped_units.DontUse = None,
    macro_bits: mapped_units.MacroBits = flow.MACRO_BITS,
    as_json: console.Json = False,
) -> None:
    """Print the area of a core beside V-Rex's Table III.

    The command maps every unit of a core, adds the memories, and scales all of it to a process node. With --power the
    table has the powers, too.
    """
    powers = _powers(power) if power else {}
    check(node in NODES, "--node", node, f"must be one of {', '.join(map(str, NODES))}")
    found = mapped_units.mapped(mapped_units.CORE, preset, assign, liberty, effort, target, dont_use, macro_bits)
    rows = found.rows
    lines = table3.table3(rows, powers, node) if set(rows) >= set(table3.UNITS) else {}
    report = found.report(preset, assign)
    if lines:
        report["table3"] = {"node": node, "rows": {n: asdict(r) | {"area": asdict(r.area)} for n, r in lines.items()}}
    if as_json and not found.errors:
        typer.echo(json.dumps(report, indent=1))
    elif lines and not as_json:
        _print(lines, next(iter(rows.values())), node)
    found.end()


def _powers(file: Path) -> dict[str, Estimate]:
    """The powers of Table III's rows from an output of `vrex size power --json`."""
    try:
        units = json.loads(read_text(file))["units"]
    except OSError as e:
        raise ParamError(f"--power={str(file)!r}: cannot read it: {e.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ParamError(f"--power={str(file)!r}: is no output of vrex size power UNITS --json") from None
    return table3.powers_of(units)


def _print(rows: dict[str, table3.Row], area: flow.Area, node: int) -> None:
    """Print Table III of the paper and ours, then systems of several cores."""
    core, paper = rows["core"], rows["core"].paper_area
    title = f"Table III at {node} nm, mm², with {mapped_units.library(area)}, mapped for {area.effort}"
    heads = ["unit", "paper", "%", "ours", "low to high", "%", "cells", "registers", "memories", "KB"]
    heads += ["paper mW", "%", "mW", "%"]
    body = []
    for r in rows.values():
        cells = [f"{r.paper_area:.4f}", f"{100 * r.paper_area / paper:.2f}"] if r.paper_area else ["-", "-"]
        cells += [f"{round(r.area.value, 4) + 0:.4f}", f"{r.area.low:.4f} to {r.area.high:.4f}"]
        cells.append(f"{100 * r.area.value / core.area.value:.2f}")
        cells += [f"{round(x.value, 4) + 0:.4f}" for x in (r.cells, r.registers, r.memories)] + [
            f"{r.bits / 8192:,.1f}"
        ]
        for mw, whole in (
            (r.paper_power, core.paper_power),
            (r.power and r.power.value, core.power and core.power.value),
        ):
            cells += [f"{mw:,.2f}" if mw else "-", f"{100 * mw / whole:.2f}" if mw and whole else "-"]
        body.append([r.name, *cells])
    print_table(title, heads, body)
    body = [
        [f"{n}", f"{mm2:.2f}", f"{n * core.area.value:.2f}", f"{n * core.area.low:.2f} to {n * core.area.high:.2f}"]
        for n, mm2 in table3.SYSTEMS.items()
    ]
    print_table("Systems, mm²", ["cores", "paper", "ours", "low to high"], body)
