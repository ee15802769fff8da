"""`vrex evaluate`: V-Rex's evaluation with our hardware in it, number by number."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from golden.params import check
from scripts import console
from sim.evaluate import Number, Points, markdown
from sim.evaluate_numbers import numbers
from sim.selection import RATIOS


def command(
    trace: Annotated[
        str, typer.Option(help=f"Stream whose shares stand beside Table II's: {', '.join(RATIOS)}.")
    ] = "world",
    output: Annotated[
        Path | None,
        typer.Option("-o", help="Folder for report.md, numbers.json, points.json (resumed from) and plots."),
    ] = None,
    json: console.Json = False,
) -> None:
    """Simulate every point of the paper's section VI; each number of its text beside ours, with ratio and verdict."""
    with console.one_line_errors():
        check(trace in RATIOS, "trace", trace, f"must be one of {', '.join(RATIOS)}")
        if output:
            output.mkdir(parents=True, exist_ok=True)
        points = Points(output / "points.json" if output else None)
        with console.err.status("simulating"):
            found = numbers(points, trace)
        if output:
            _write(points, found, output, trace)
    if json:
        console.print_json([asdict(n) | {"ratio": n.ratio} for n in found])
    else:
        console.out.print(table(found))
        console.out.print(summary(found))


def summary(found: list[Number]) -> str:
    """How many numbers got which verdict."""
    return ", ".join(f"{n} {verdict}" for verdict, n in Counter(n.verdict for n in found).most_common())


def table(found: list[Number]) -> Table:
    """One row a number."""
    out = Table("where", "what", "paper", "ours", "ratio", "trace", "verdict", title="V-Rex's evaluation")
    for n in found:
        ours, trace = ("-" if x is None else f"{x:.4g}" for x in (n.ours, n.trace))
        ratio = "-" if n.ratio is None else f"{n.ratio:.2f}"
        out.add_row(n.where, n.what, f"{n.paper:g} {n.unit}", ours, ratio, trace, n.verdict)
    return out


def _write(points: Points, found: list[Number], folder: Path, trace: str) -> None:
    from sim.evaluate_plots import figures

    plots = [path for path in figures(points, folder, trace) if path.suffix == ".png"]
    lines = [f"# V-Rex's evaluation\n\n`vrex evaluate --trace {trace}`: {summary(found)}.\n", markdown(found)]
    (folder / "report.md").write_text("\n".join([*lines, *(f"![{p.stem}]({p.name})" for p in plots), ""]))
    with (folder / "numbers.json").open("w") as file:
        console.json.dump([asdict(n) | {"ratio": n.ratio} for n in found], file, indent=1)
