"""`vrex presets`: list the presets, or start a design file."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.hdl import design
from openvrex.hdl.params import PRESETS, CoreParams, flat
from openvrex.scripts import console


def command(
    save: Annotated[
        Path | None,
        typer.Option(
            parser=console.file, metavar="FILE.toml", help="Write a design file: the preset, changed by each -p."
        ),
    ] = None,
    preset: Annotated[str, typer.Option("--preset", help="With --save: preset from which the file starts.")] = "core",
    param: console.Param = None,
    force: console.Force = False,
    json: console.Json = False,
) -> None:
    """List the presets, or start a design file from one.

    A design file (TOML) holds parameters of your own; other commands take it by --design.
    """
    if save:
        check(save.suffix == design.SUFFIX, "--save", str(save), f"must end in {design.SUFFIX}")
        check(preset in PRESETS, "preset", preset, f"must be one of {', '.join(PRESETS)}")
        text = design.text(console.params(preset, param), preset)
        edited = save.exists() and save.read_bytes() != text.encode()
        kept = "holds another design, which would be lost: choose another name, or give --force"
        check(force or not edited, "--save", str(save), kept)
        write_atomically(save, text)
        console.out.print(f"Design: {save}", highlight=False, soft_wrap=True)
        return
    check(not param, "-p", param, "changes a design file: give --save FILE.toml too")
    if json:
        console.print_json({name: asdict(p) for name, p in PRESETS.items()})
        return
    alike: dict[CoreParams, list[str]] = {}  # presets of one core
    for name, p in PRESETS.items():
        alike.setdefault(p.core, []).append(name)
    table = Table("-p", *(" ".join(names) for names in alike.values()), title="Presets")
    values = {name: flat(p) for name, p in PRESETS.items()}
    for key in values["core"]:
        told = ([values[name][key] for name in names] for names in alike.values())
        table.add_row(key, *(" ".join(dict.fromkeys(words)) for words in told))
    console.out.print(table)
