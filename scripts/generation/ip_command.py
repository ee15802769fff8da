"""`vrex ip`: write an IP block for a SoC."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.hdl.emit import params_of, top_of
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.writer.circt import Language
from openvrex.ip.package import PERIOD, Options, configuration, write
from openvrex.ip.shell import TOPS
from openvrex.scripts import console


def command(
    unit: Annotated[str, typer.Argument(help=f"One of {', '.join(TOPS)}.")] = "core_ip",
    preset: console.Preset = "core",
    param: console.Param = None,
    folder: Annotated[
        Path | None,
        typer.Option("-o", parser=console.folder, help="Folder to write into; build/ip/PREFIX_UNIT by default."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            help="Start the name of every module and of the package with this; by default the preset's name or a hash.",
        ),
    ] = None,
    period: Annotated[
        float, typer.Option("--period", help="Clock period in ns for the SDC; the default is 800 MHz.")
    ] = PERIOD,
    memory_bodies: Annotated[
        bool,
        typer.Option(
            help="With --no-memory-bodies memories are black boxes in a file of their own: put macros in their place."
        ),
    ] = True,
    memory_ports: Annotated[
        MemoryPorts,
        typer.Option(help="Ports of memories: own, one module a kind, or firtool's, one module a shape, for macros."),
    ] = MemoryPorts.OWN,
    language: Annotated[Language, typer.Option(help="Dialect of the unit's text.")] = Language.VERILOG2005,
    assertions: Annotated[
        bool, typer.Option("--assertions", help="Also write SystemVerilog assertions to bind, for your simulator.")
    ] = False,
    bist: Annotated[
        bool, typer.Option("--bist", help="Also make ports that test the memories: hooks for your MBIST controller.")
    ] = False,
    json: console.Json = False,
) -> None:
    """Write an IP block for a SoC.

    The folder holds Verilog, constraints, registers, a FuseSoC core, a driver and an example SoC.
    """
    unit = unit if unit in TOPS else f"{unit}_ip"  # `vrex ip motion_mask`, too
    check(unit in TOPS, "unit", unit.removesuffix("_ip"), f"must be one of {', '.join(TOPS)}")
    p = params_of(unit, console.unit_system(unit, preset, param))
    how = Options(period, prefix, memory_bodies, language, assertions, memory_ports, bist)
    prefix = configuration(p) if prefix is None else prefix
    folder = console.own_folder(folder, Path("build/ip"), top_of(unit, prefix))
    files = write(unit, p, folder, how)
    if json:
        console.print_json({"unit": unit, "prefix": prefix, "files": [str(f) for f in files]})
        return
    table = Table("file", "bytes", title=top_of(unit, prefix))
    for file in files:
        table.add_row(str(file), f"{file.stat().st_size:,}")
    console.out.print(table)
