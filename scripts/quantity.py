"""Numbers as a reader expects them, on pages and in the terminal: digits that mean something, and never an exponent."""

import math
from dataclasses import dataclass


def number(value: float | None, digits: int = 3) -> str:
    """A value of unknown size, to so many significant digits; whole numbers in full; "-" for none."""
    if value is None:
        return "-"
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    size = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits - 1 - size)}f}"


@dataclass(frozen=True)
class Column:
    """A figure of a table: its heading says the unit, its values have so many decimals.

    unit : "" for a count or a ratio; values of unit "%" are given as shares of one
    """

    title: str
    unit: str = ""
    places: int = 0

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def cell(self, value: float | None) -> str:
        """A value under it; "-" for none."""
        if value is None:
            return "-"
        return f"{100 * value if self.unit == '%' else value:,.{self.places}f}"
