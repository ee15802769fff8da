"""`vrex ip`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ip.package import PERIOD, write
from ip.shell import TOPS
from scripts import console


def command(
    unit: Annotated[str, typer.Argument(help=f"One of {', '.join(TOPS)}.")] = "core_ip",
    preset: console.Preset = "core",
    param: console.Param = None,
    folder: Annotated[
        Path | None, typer.Option("-o", parser=console.folder, help="Folder to write into; default build/ip/UNIT.")
    ] = None,
    period: Annotated[float, typer.Option("--period", help="ns of the clock in the SDC; 800 MHz by default.")] = PERIOD,
    json: console.Json = False,
) -> None:
    """Write an IP block for a SoC: Verilog, constraints, registers, FuseSoC core; of a core also driver and example."""
    with console.one_line_errors():
        folder = console.own_folder(folder, Path("build/ip"), unit)
        files = write(unit, console.params(preset, param).core, folder, period)
    shown = [f for f in files if f.relative_to(folder).parts[0] != "html" or f.name == "index.html"]
    if json:
        console.print_json({"unit": unit, "files": [str(f) for f in shown]})
        return
    table = Table("file", "bytes", title=f"{unit} ({preset})")
    for file in shown:
        table.add_row(str(file), f"{file.stat().st_size:,}")
    console.out.print(table)
