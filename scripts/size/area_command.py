"""`vrex size area`: print the gates, registers and memories of units."""

import json
from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.atomic_files import write_atomically
from openvrex.scripts import console
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import print_table
from openvrex.synth import flow


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
    as_json: console.Json = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", parser=console.folder, help="Folder to write area.json into, the same as --json."),
    ] = None,
) -> None:
    """Print the gates, registers and memories of a unit.

    Yosys maps the unit and those inside of it to cells. Figures are in gate equivalents (GE: one NAND2), with --liberty
    also in µm².
    """
    found = mapped_units.mapped(unit, preset, assign, liberty, effort, target, dont_use, macro_bits, gated)
    text = json.dumps(found.report(preset, assign), indent=1)
    if as_json and not found.errors:
        typer.echo(text)
    elif found.rows and not as_json:
        _print(found.rows, found.rows.get(found.unit))
    if out and not found.errors:
        write_atomically(out / "area.json", text.encode())
    found.end()


def _print(rows: dict[str, flow.Area], asked: flow.Area | None) -> None:
    """Print a table of all units, then the leaves and memories of the unit that the user named."""
    one = next(iter(rows.values()))
    heads = ["unit", "comb GE", "reg GE", "total GE", "registers", "clock gates", "memory bits", *["µm²"] * one.microns]
    body = []
    for name, a in rows.items():
        cells = [f"{x:,.0f}" for x in (a.comb_ge, a.reg_ge, a.total_ge, a.registers, a.clock_gates, a.memory_bits)]
        body.append([name, *cells, *[f"{a.total_area:,.1f}"] * a.microns])
    unit = f"1 GE = {one.unit_cell}" + (f", {one.unit_area:g} µm²" if one.microns else "")
    print_table(mapped_units.title("Area", one, unit), heads, body)
    if asked and asked.leaves:
        split = [(x.name, x.instances, x.area) for x in asked.leaves]
        rest = asked.total_ge - sum(n * a.total_ge for _, n, a in split)
        body = [[name, f"{n:,}", f"{a.total_ge:,.0f}", f"{n * a.total_ge:,.0f}"] for name, n, a in split]
        body.append(["the rest", "1", f"{rest:,.0f}", f"{rest:,.0f}"])
        print_table(f"Leaves of {asked.top}", ["leaf", "instances", "GE each", "GE"], body)
    if asked and asked.memories:
        heads = ["memory", "count", "words", "bits a word", "ports", "bits"]
        body = [
            [m.name, f"{m.count:,}", f"{m.depth:,}", f"{m.width:,}", _ports(m), f"{m.bits:,}"] for m in asked.memories
        ]
        print_table(f"Memories of {asked.top}, not in the area", heads, body)


def _ports(memory: flow.MemoryMacro) -> str:
    return "1RW" if memory.shared else f"{memory.read_ports}R {memory.write_ports}W"
