"""Numbers for pages and the terminal: significant digits only, and never an exponent."""

import math
from dataclasses import dataclass


def number(value: float | None, digits: int = 3) -> str:
    """A value with this many significant digits; integers in full; "-" for None."""
    if value is None:
        return "-"
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    size = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits - 1 - size)}f}"


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading names the unit, its values have `places` decimals.

    unit : "" for a count or a ratio; values of unit "%" are shares of one
    """

    title: str
    unit: str = ""
    places: int = 0

    @property
    def head(self) -> str:
        """The heading: title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def cell(self, value: float | None) -> str:
        """The text of a value in this column; "-" for None."""
        if value is None:
            return "-"
        return f"{100 * value if self.unit == '%' else value:,.{self.places}f}"
