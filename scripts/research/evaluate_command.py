"""`vrex evaluate`: set every number of V-Rex's evaluation, and the other papers' latencies, beside ours."""

import json as json_format
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from golden.atomic_files import write_atomically
from golden.function_params import check
from scripts import console
from scripts.pages import html_page
from scripts.pages.html_page import Section
from scripts.progress import Step
from scripts.quantity import number
from sim.evaluation import other_papers
from sim.evaluation.paper_numbers import numbers
from sim.evaluation.paper_points import Claims, Number, Points
from sim.system.selection import RATIOS

OTHERS = "Latencies of CodecSight, Mosaic and hybrid memory"
HEAD = ("where", "what", "paper", "ours", "ratio, x", "trace", "verdict", "why")


def command(
    trace: Annotated[
        str, typer.Option(help=f"Recorded stream whose shares stand beside Table II's: {', '.join(RATIOS)}.")
    ] = "world",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            parser=console.folder,
            help="Folder for report.html, report.md, numbers.json, others.json, plots, and points.json, which a later "
            "run resumes.",
        ),
    ] = None,
    json: console.Json = False,
) -> None:
    """Set every number of V-Rex's evaluation beside ours.

    The command simulates every point of the paper's section VI. Each number of its text gets a ratio and a verdict. A
    second table does so for the latencies in the text of CodecSight, Mosaic and hybrid memory.
    """
    check(trace in RATIOS, "trace", trace, f"must be one of {', '.join(RATIOS)}")
    if output:
        output.mkdir(parents=True, exist_ok=True)
    points = Points(output / "points.json" if output else None)
    with Step("simulating", json):
        found, others = numbers(points, trace), other_papers.numbers(Claims(trace))
    if output:
        _write(points, found, others, output, trace)
    if json:
        console.print_json([asdict(n) | {"ratio": n.ratio} for n in (*found, *others)])
        return
    for title, some in (("V-Rex's evaluation", found), (OTHERS, others)):
        console.out.print(table(some, title))
        console.out.print(summary(some))


def summary(found: list[Number]) -> str:
    """The count of each verdict."""
    return ", ".join(f"{n} {verdict}" for verdict, n in Counter(n.verdict for n in found).most_common())


def table(found: list[Number], title: str) -> Table:
    """The table for the terminal, with one row for each number; the reasons are too wide for it."""
    out = Table(*HEAD[:-1], title=title)
    for n in found:
        out.add_row(*row(n)[:-1])
    return out


def row(n: Number) -> list[str]:
    """The cells of a number, under `HEAD`."""
    ours, trace = ("-" if x is None else f"{number(x, 4)} {n.unit}" for x in (n.ours, n.trace))
    ratio = "-" if n.ratio is None else f"{n.ratio:.2f}"
    why = "; ".join(x for x in (n.proof and f"proof: {n.proof}", n.why) if x)
    return [n.where, n.what, f"{n.paper:,} {n.unit}", ours, ratio, trace, n.verdict, why]


def markdown(found: list[Number]) -> str:
    """The table in Markdown, with the reasons."""
    lines = [HEAD, ["---" for _ in HEAD], *map(row, found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _write(points: Points, found: list[Number], others: list[Number], folder: Path, trace: str) -> None:
    from sim.evaluation.paper_plots import figures

    plots = [path for path in figures(points, folder, trace) if path.suffix == ".png"]
    lines = [f"# V-Rex's evaluation\n\n`vrex evaluate --trace {trace}`: {summary(found)}.\n", markdown(found)]
    pictures = (f"![{p.stem}]({p.name})" for p in plots)
    end = [f"## {OTHERS}\n\n{summary(others)}.\n", markdown(others)]
    write_atomically(folder / "report.md", "\n".join([*lines, *pictures, "", *end]))
    for name, some in (("numbers", found), ("others", others)):
        values = [asdict(n) | {"ratio": n.ratio} for n in some]
        write_atomically(folder / f"{name}.json", json_format.dumps(values, indent=1))
    lead = f"Section VI of the paper beside ours, shares of the cache of Table II and of trace {trace}."
    html_page.write(folder / "report.html", "V-Rex's evaluation", lead, "", True, load(folder))


def load(folder: Path) -> list[Section]:
    """The sections of the evaluation in a folder of `vrex evaluate`. Raises `ValueError` for any other folder."""
    try:
        found, others = (
            [
                Number(**{k: v for k, v in n.items() if k != "ratio"})
                for n in json_format.loads((folder / f"{name}.json").read_text())
            ]
            for name in ("numbers", "others")
        )
        plots = [(path.stem, path.read_text()) for path in sorted(folder.glob("fig*.svg"))]
        drawn = [
            Section(name.replace("_", ", ").replace("fig", "Fig. "), plot=x[x.index("<svg") :]) for name, x in plots
        ]
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise ValueError(f"evaluation={folder}: not a folder that `vrex evaluate` wrote ({e})") from None
    note = "{}. Ratio: ours over the paper's."
    first, last = (
        Section(title, note.format(summary(some)), list(HEAD), [row(n) for n in some])
        for title, some in (("V-Rex's evaluation", found), (OTHERS, others))
    )
    return [first, *drawn, last]
