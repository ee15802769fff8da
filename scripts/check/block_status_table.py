"""`vrex verify --status`: what every block has reached, in a line each."""

from dataclasses import asdict

from rich.table import Table

from openvrex.scripts import console
from openvrex.scripts.blocks import block_status


def show(json: bool) -> None:
    """Print the status of every block. Raises: `ParamError` outside of a checkout, which has the records."""
    found = block_status.lines(block_status.recorded())
    if json:
        console.print_json({u: {name: asdict(f) for name, f in own.items()} for u, own in found.items()})
        return
    table = Table("block", *block_status.COLUMNS, title="Status of the blocks, from recorded results")
    for unit, figures in found.items():
        table.add_row(unit, *(f.text if f.fine else f"[red]{f.text}[/]" for f in figures.values()))
    console.out.print(table)
    for name, meaning in block_status.COLUMNS.items():
        console.out.print(f"{name}: {meaning.replace('`', '')}", highlight=False)
