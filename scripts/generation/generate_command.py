"""`vrex generate`: write the Verilog and the manifest of a unit."""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import replacing
from openvrex.golden.function_params import check
from openvrex.hdl import generated
from openvrex.hdl.emit import ALL, emit, params_of, top_of
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.writer.circt import Language
from openvrex.ip.fusesoc import unit_core_file
from openvrex.scripts import console


def command(
    unit: Annotated[str, typer.Argument(help=f"One of {', '.join(ALL)}.")] = "dre",
    preset: console.Preset = "core",
    param: console.Param = None,
    folder: Annotated[
        Path | None, typer.Option("-o", parser=console.folder, help="Folder to write into; build/rtl/UNIT by default.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Start the name of every module with this and an underscore.")
    ] = "",
    memory_bodies: Annotated[
        bool,
        typer.Option(
            help="With --no-memory-bodies memories are black boxes in a file of their own: instantiate macros there."
        ),
    ] = True,
    memory_ports: Annotated[
        MemoryPorts,
        typer.Option(help="Ports of memories: own, one module a kind, or firtool's, one module a shape, for macros."),
    ] = MemoryPorts.OWN,
    bist: Annotated[
        bool, typer.Option("--bist", help="Also make ports that test the memories: hooks for your MBIST controller.")
    ] = False,
    language: Annotated[Language, typer.Option(help="Dialect of the text.")] = Language.VERILOG2005,
    assertions: Annotated[
        bool, typer.Option("--assertions", help="Also write SystemVerilog assertions to bind, for your simulator.")
    ] = False,
    source_lines: Annotated[
        bool, typer.Option("--source-lines", help="Name the line of the Python source behind each statement.")
    ] = False,
    fusesoc: Annotated[bool, typer.Option("--fusesoc", help="Also write a FuseSoC core, with target lint.")] = False,
    force: console.Force = False,
    json: console.Json = False,
) -> None:
    """Write the Verilog of a unit.

    A manifest.json beside it holds parameters, ports, memories, latencies and the hash.
    """
    start = time.perf_counter()
    whole = "must stay out beside --no-memory-bodies (the core would lack your macros): write your own core"
    check(memory_bodies or not fusesoc, "--fusesoc", fusesoc, whole)
    own = params_of(unit, console.unit_system(unit, preset, param))
    folder = console.own_folder(folder, Path("build/rtl"), top_of(unit, prefix))
    if (folder / generated.MANIFEST).exists() and not force:
        lost = generated.edits(folder)
        kept = "was edited, and would be lost: write into another folder, or give --force"
        check(not lost, "-o", ", ".join(map(str, lost)), kept)
    emitted = emit(unit, own, prefix, memory_bodies, language, assertions, source_lines, memory_ports, bist)
    files = emitted.write(folder)
    if fusesoc:
        files.append(folder / f"{emitted.top}.core")
        with replacing(files[-1]) as file:
            file.write(unit_core_file(emitted, version("openvrex")).encode())
    facts = {
        "unit": unit,
        "files": [str(f) for f in files],
        "bytes": len(emitted.verilog),
        "modules": emitted.verilog.count("\nmodule "),
        "seconds": round(time.perf_counter() - start, 2),
        "sha256": emitted.manifest["sha256"],
    }
    if json:
        console.print_json(facts)
        return
    table = Table("", f"{unit} ({preset})")
    for key, value in facts.items():
        table.add_row(key, "\n".join(value) if isinstance(value, list) else str(value))
    console.out.print(table)
