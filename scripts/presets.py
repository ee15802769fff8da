"""`vrex presets`."""

from dataclasses import asdict

from rich.table import Table

from hdl.params import PRESETS
from scripts import console


def command(json: console.Json = False) -> None:
    """List the presets and their parameters."""
    if json:
        console.print_json({name: asdict(p) for name, p in PRESETS.items()})
        return
    table = Table("parameter", *PRESETS, title="Presets")
    values = {name: flat(asdict(p)) for name, p in PRESETS.items()}
    for key in values["core"]:
        table.add_row(key, *(str(values[name][key]) for name in PRESETS))
    console.out.print(table)


def flat(tree: dict, prefix: str = "") -> dict:
    """A tree of parameters as one level of dotted names."""
    out = {}
    for key, value in tree.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out
