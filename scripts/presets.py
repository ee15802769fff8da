"""`vrex presets`."""

from dataclasses import asdict

from rich.table import Table

from hdl.params import PRESETS, flat
from scripts import console


def command(json: console.Json = False) -> None:
    """List the presets and their parameters."""
    if json:
        console.print_json({name: asdict(p) for name, p in PRESETS.items()})
        return
    table = Table("-p", *PRESETS, title="Presets")
    values = {name: flat(p) for name, p in PRESETS.items()}
    for key in values["core"]:
        table.add_row(key, *(values[name][key] for name in PRESETS))
    console.out.print(table)
