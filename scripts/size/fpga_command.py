"""`vrex size fpga`: place and route units on an FPGA."""

from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.hdl import emit, emit_cache
from openvrex.scripts import console
from openvrex.scripts.progress import Bar
from openvrex.scripts.size.mapped_units import UNITS, print_table, units_of
from openvrex.synth import flow, fpga
from openvrex.synth.liberty import SynthError


def command(
    unit: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(UNITS)}, or a folder of `vrex generate`. The units inside of it are listed too."
        ),
    ] = "dre",
    preset: console.Preset = "core",
    assign: console.Param = None,
    device: Annotated[str, typer.Option(help=f"Device: {', '.join(fpga.DEVICES)}.")] = "ecp5",
    as_json: console.Json = False,
) -> None:
    """Place and route a unit on an FPGA.

    Yosys maps the unit and those inside of it, nextpnr places and routes them. The table shows LUTs, flip-flops, DSPs,
    block RAMs, clock and longest path. Needs the extra fpga.
    """
    placed: dict[str, fpga.Placed] = {}
    errors = []
    unit, chosen, generated = console.chosen(unit, preset, assign)
    check(unit in UNITS, "unit", unit, f"must be one of {', '.join(UNITS)}")
    check(device in fpga.DEVICES, "--device", device, f"must be one of {', '.join(fpga.DEVICES)}")
    with Bar() as progress:
        for name in progress.track([unit] if generated else units_of(unit), description=f"{device}: place and route"):
            made = generated or emit_cache.emitted(name, emit.params_of(name, chosen), flow.BUILD)
            try:
                placed[name] = fpga.place(made.verilog, made.top, device)
            except SynthError as e:
                errors.append(str(e))
    if as_json:
        units = {n: p.report() for n, p in placed.items()}
        console.print_json({"preset": preset, "assignments": assign or [], "units": units})
    elif placed:
        _print(placed, device)
    for error in dict.fromkeys(errors):
        console.error(error)
    if errors:
        raise typer.Exit(2)


def _print(placed: dict[str, fpga.Placed], device: str) -> None:
    heads = ["unit", "LUTs", "flip-flops", "DSPs", "block RAMs", "MHz", "longest path ns", "of it logic", "from", "to"]
    body = []
    for name, p in placed.items():
        used = (p.luts, p.flip_flops, p.dsps, p.block_rams)
        times = (f"{p.mhz:.1f}", f"{p.path_ns:.1f}", f"{p.logic_ns:.1f}")
        body.append([name, *(f"{x:,}" for x in used), *times, p.start, p.end])
    has = ", ".join(f"{n:,} {k.replace('_', ' ')}" for k, n in next(iter(placed.values())).available.items())
    print_table(f"On {device} after place and route ({has})", heads, body)
