"""A console whose tables lose no word, however narrow it is."""

from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

NARROW = 24  # width to which the widest column of a table may wrap


class FittingConsole(Console):
    """Breaks headers and the widest column of a table at spaces, and prints rows as paragraphs if that is too wide."""

    def print(self, *objects: Any, **how: Any) -> None:
        """As in `Console`."""
        super().print(*(self._fitted(x) if isinstance(x, Table) else x for x in objects), **how)

    def _fitted(self, table: Table) -> Table | Group:
        columns = table.columns
        frame = 3 * len(columns) + 1
        heads, bodies = ([_width([c.header]) for c in columns], [_width(list(c.cells)) for c in columns])
        if sum(map(max, heads, bodies)) + frame <= self.width:
            return table
        words = [_width([_text(c.header).plain.replace(" ", "\n")]) for c in columns]
        widths = list(map(max, words, bodies))
        widest = widths.index(max(widths))
        least = min(widths[widest], max(NARROW, words[widest]))
        if sum(widths) - widths[widest] + least + frame > self.width:
            return _paragraphs(table)
        for i, column in enumerate(columns):
            column.no_wrap = i != widest
            if heads[i] > widths[i]:
                column.header = _text(column.header).plain.replace(" ", "\n")
        return table


def _paragraphs(table: Table) -> Group:
    """The first cell of each row, then each other cell behind its header."""
    heads = [_text(column.header).plain for column in table.columns]
    lines = [Text.from_markup(f"[italic]{table.title}[/]")] if table.title else []
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *rest = map(_text, row)
        pairs = [Text(f"{head} ") + cell for head, cell in zip(heads[1:], rest, strict=True) if cell]
        lines.append(Text(": ").join([Text(first.plain, "bold"), *([Text(", ").join(pairs)] if pairs else [])]))
    return Group(*lines)


def _width(cells: list) -> int:
    """Columns of the longest line."""
    return max((cell_len(line) for cell in cells for line in _text(cell).plain.split("\n")), default=0)


def _text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))
