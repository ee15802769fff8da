"""`vrex ip`: write an IP block for a SoC."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from golden.function_params import check
from hdl.emit import params_of, top_of
from ip.package import PERIOD, configuration, write
from ip.shell import TOPS
from scripts import console


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
    json: console.Json = False,
) -> None:
    """Write an IP block for a SoC.

    The folder holds Verilog, constraints, registers and a FuseSoC core; for a core also a driver and an example.
    """
    check(unit in TOPS, "unit", unit, f"must be one of {', '.join(TOPS)}")
    p = params_of(unit, console.unit_system(unit, preset, param))
    prefix = configuration(p) if prefix is None else prefix
    folder = console.own_folder(folder, Path("build/ip"), top_of(unit, prefix))
    files = write(unit, p, folder, period, prefix)
    shown = [f for f in files if f.relative_to(folder).parts[0] != "html" or f.name == "index.html"]
    if json:
        console.print_json({"unit": unit, "prefix": prefix, "files": [str(f) for f in shown]})
        return
    table = Table("file", "bytes", title=top_of(unit, prefix))
    for file in shown:
        table.add_row(str(file), f"{file.stat().st_size:,}")
    console.out.print(table)
