"""`vrex size layout`: place and route a unit in SKY130, and time it with its wires."""

from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.hdl import emit, emit_cache
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import UNITS, print_table
from openvrex.synth import flow, layout
from openvrex.synth.liberty import SynthError


def command(
    unit: Annotated[str, typer.Argument(help=f"One of {', '.join(UNITS)}, or a folder of `vrex generate`.")],
    preset: console.Preset = "core",
    assign: console.Param = None,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    density: Annotated[
        float, typer.Option("--density", help="Share of cells in the rows, 0.1 to 0.9. Lower: easier to route.")
    ] = layout.DENSITY,
    out: Annotated[
        Path | None,
        typer.Option("-o", parser=console.folder, help="Folder for DEF, LEF, GDS and picture (build/layout/UNIT)."),
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Place and route a unit in SKY130, and time it with wires.

    --liberty must be SKY130's. The layout holds logic only: memories are outside, no clock tree is built, no gate is
    resized. Needs the extra layout.
    """
    unit, system, generated = console.chosen(unit, preset, assign, alone=True)
    check(unit in UNITS, "unit", unit, f"must be one of {', '.join(UNITS)}")
    folder = out or flow.BUILD.parent / "layout" / unit
    try:
        layout.check_density(density)
        flow.check_mapping(liberty, effort, target)
        layout.check_installed()
        bars = layout.barred(flow.loaded(liberty))
        with Spinner() as status:
            status.update(f"synthesising {unit}")
            made = generated or emit_cache.emitted(unit, emit.params_of(unit, system), flow.BUILD)
            text, top = made.verilog, made.top
            mapping = {"liberty": liberty, "effort": effort, "target": target, "gated": 0}
            one = flow.with_memories(text, top, layout.NODE, (), dont_use=bars, **mapping)
            status.update(f"placing and routing {unit}")
            netlist = one.netlists[top]["netlist"]
            found = layout.place(top, netlist, one.library, folder, density, memories=one.times[top])
    except SynthError as e:
        console.error(str(e))
        raise typer.Exit(2) from None
    if as_json:
        head = {"preset": preset, "assignments": assign or [], "unit": unit, "effort": effort}
        console.print_json(head | found.report())
    else:
        _print(found, effort, folder)


def _metal(layer: str) -> str:
    """Resistance and capacitance of a layer."""
    ohms, farads = layout.METALS.metals[layer]
    return f"{ohms:.2f} Ω and {farads:.3f} fF a µm"


def _print(found: layout.Layout, effort: str, folder: Path) -> None:
    """Print the layout, its wires, its longest path, and what the router could not finish."""
    width, height = found.die
    sheet = [
        ("cells", f"{found.cells:,}"),
        ("cells' area", f"{found.cell_area:,.0f} µm², {100 * found.density:.0f} % of the rows"),
        ("die", f"{width:,.1f} µm x {height:,.1f} µm"),
        ("wire", f"{found.wire:,.1f} mm"),
        *((f"- on {layer}", f"{length / 1000:,.1f} mm, {_metal(layer)}") for layer, length in found.lengths.items()),
        ("vias", f"{found.vias:,}"),
        ("pieces of wire without a track", f"{len(found.unrouted):,}"),
        ("pins without a wire", f"{len(found.open):,}"),
        ("nets in parts, nets that touch", f"{len(found.split):,}, {len(found.touching):,}"),
        ("processor time", ", ".join(f"{step} {s:,.1f} s" for step, s in found.seconds.items())),
    ]
    title = f"{found.top} in SKY130 ({layout.NODE} nm), mapped for {effort}, no gate resized, memories outside"
    print_table(title, ["what", "layout"], [list(row) for row in sheet])
    times = [("OpenVRex", found.delay, found.with_wires), ("OpenSTA", found.opensta or 0.0, found.opensta_wires or 0.0)]
    body = [[name, f"{a:,.0f}", f"{b:,.0f}", f"{b / a:.2f}", f"{1e6 / b:,.0f}"] for name, a, b in times if a and b]
    if body:
        heads = ["timed by", "longest path ps", "with wires ps", "times", "with wires MHz"]
        print_table(f"From {found.start} to {found.end}", heads, body)
    console.out.print(f"with wires and the times of memories: {found.with_memories:,.0f} ps", highlight=False)
    for text in (*found.unrouted, *found.open, *found.split, *(f"{', '.join(nets)} touch" for nets in found.touching)):
        console.out.print(f"not finished: {text}", highlight=False, markup=False)
    console.out.print(f"{folder}: DEF, LEF, GDS, layout.png", highlight=False)
