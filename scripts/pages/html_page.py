"""Self-contained HTML pages of tables and plots, for `vrex papers demo`, `run`, `report` and `evaluate`."""

import io
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter, StrMethodFormatter
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically

TEMPLATE = Path(__file__).with_name("report.html")
THOUSANDS = StrMethodFormatter("{x:,.9g}")


@dataclass
class Section:
    """A section of a page: heading, note (each line is a paragraph), table and plot (inline SVG)."""

    title: str
    note: str = ""
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    plot: str = ""

    def numeric(self) -> list[bool]:
        """Whether each column holds numbers, which are aligned to the right; the first column holds names."""
        columns = zip(*self.rows, strict=True)
        return [i > 0 and all(cell[:1] in "0123456789-+" for cell in column) for i, column in enumerate(columns)]

    def table(self) -> Table:
        """The table for the terminal."""
        out = Table(title=self.title)
        for head, right in zip(self.head, self.numeric() or [False] * len(self.head), strict=True):
            out.add_column(head, justify="right" if right else "left")
        for row in self.rows:
            out.add_row(*row)
        return out


def write(path: Path, title: str, lead: str, verdict: str, passed: bool, sections: list[Section]) -> None:
    """Write the page at `path`, whole or not at all. The page loads nothing from elsewhere.

    lead, verdict : the opening lines; the verdict is green if `passed`, red otherwise, absent if empty
    """
    template = jinja2.Template(TEMPLATE.read_text(), autoescape=True, undefined=jinja2.StrictUndefined)
    text = template.render(title=title, lead=lead, verdict=verdict, passed=passed, sections=sections)
    write_atomically(path, text.encode())


def svg(figure: Figure) -> str:
    """A plot as inline SVG, in the page's style."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        for axis in (axes.xaxis, axes.yaxis):
            if type(axis.get_major_formatter()) is ScalarFormatter:  # which writes 1e5 beside the axis
                axis.set_major_formatter(THOUSANDS)
    named = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if named and not figure.legends:  # below the axes, where it covers nothing
        figure.legend(named.values(), named, loc="outside lower left", ncols=4, frameon=False)
    return inline(figure)


def inline(figure: Figure) -> str:
    """A figure as inline SVG: the same figure gives the same text, with ids that are unique within a page."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "openvrex"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def histogram(series: dict[str, np.ndarray], edges: np.ndarray, xlabel: str, ylabel: str) -> str:
    """Overlaid histograms as inline SVG."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    for name, values in series.items():
        axes.hist(values, edges.tolist(), histtype="stepfilled", alpha=0.5, label=name)
    return svg(figure)


def bars(labels: list[str], series: dict[str, list[float]], xlabel: str, ylabel: str) -> str:
    """Grouped bars as inline SVG."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    x, width = np.arange(len(labels)), 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        axes.bar(x + (i - (len(series) - 1) / 2) * width, values, width, label=name)
    axes.set_xticks(x, labels)
    return svg(figure)
