"""A figure of a paper, measured here: rows of a table, the paper's values beside ours, and a plot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from openvrex.scripts.quantity import Column

Row = dict[str, Any]  # values by name: numbers, text, or None where there is none


@dataclass(frozen=True)
class Drawn:
    """A measured figure.

    paper : what the paper shows, in a sentence
    columns : heading of each value of a row; text is shown as it is
    note : how to read the rows
    """

    title: str
    paper: str
    columns: dict[str, Column]
    rows: list[Row]
    note: str
    plot: Callable[[list[Row]], Figure]

    def cells(self, row: Row) -> list[str]:
        """The text of a row, column by column."""
        out = []
        for name, column in self.columns.items():
            value = row[name]
            out.append(value if isinstance(value, str) else column.cell(value))
        return out

    def table(self) -> Table:
        """The table for the terminal."""
        out = Table(*(c.head for c in self.columns.values()), title=self.title)
        for row in self.rows:
            out.add_row(*self.cells(row))
        return out
