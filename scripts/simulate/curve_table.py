"""Curves of the simulator as tables, or as JSON."""

from rich.table import Table

from openvrex.scripts import console
from openvrex.sim.system.memory_curves import Curve


def show(curves: list[Curve], as_json: bool) -> None:
    """Print each curve as a table, or all of them as one JSON document."""
    if as_json:
        console.print_json([vars(c) for c in curves])
        return
    for c in curves:
        out = Table(*c.columns, title=c.title)
        for row in c.rows:
            out.add_row(*row)
        console.out.print(out)
