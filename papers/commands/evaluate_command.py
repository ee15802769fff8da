"""`vrex papers evaluate`: set every number of V-Rex's evaluation, and the other papers' latencies, beside ours."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.papers.evaluation import other_papers
from openvrex.papers.evaluation.anchor_table import HEAD, markdown, row, summary
from openvrex.papers.evaluation.paper_numbers import numbers
from openvrex.papers.evaluation.paper_points import Claims, Number, Points
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Spinner
from openvrex.sim.system.selection import records

OTHERS = "Latencies of CodecSight, Mosaic and hybrid memory"


def command(
    trace: Annotated[
        str, typer.Option(help=f"Recorded stream whose shares stand beside Table II's: {', '.join(records())}.")
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

    The command simulates every point of the paper's section VI. Each number of its text gets a ratio and a verdict,
    which also says what an agreement is worth: predicted, on fits, fitted, restated or an accident. A
    second table does so for the latencies in the text of CodecSight, Mosaic and hybrid memory.
    """
    check(trace in records(), "trace", trace, f"must be one of {', '.join(records())}")
    if output:
        output.mkdir(parents=True, exist_ok=True)
    points = Points(output / "points.json" if output else None)
    with Spinner("simulating", json):
        found, others = numbers(points, trace), other_papers.numbers(Claims(trace))
    if output:
        _write(points, found, others, output, trace)
    if json:
        console.print_json([asdict(n) | {"ratio": n.ratio} for n in (*found, *others)])
        return
    for title, some in (("V-Rex's evaluation", found), (OTHERS, others)):
        console.out.print(table(some, title))
        console.out.print(summary(some))


def table(found: list[Number], title: str) -> Table:
    """The table for the terminal, with one row for each number; the reasons are too wide for it."""
    out = Table(*HEAD[:-1], title=title)
    for n in found:
        out.add_row(*row(n)[:-1])
    return out


def _write(points: Points, found: list[Number], others: list[Number], folder: Path, trace: str) -> None:
    from openvrex.papers.evaluation.paper_plots import figures

    plots = [path for path in figures(points, folder, trace) if path.suffix == ".png"]
    lines = [
        f"# V-Rex's evaluation\n\n`vrex papers evaluate --trace {trace}`: {summary(found)}.\n",
        markdown(found) + "\n",
    ]
    pictures = (f"![{p.stem}]({p.name})" for p in plots)
    end = [f"## {OTHERS}\n\n{summary(others)}.\n", markdown(others) + "\n"]
    write_atomically(folder / "report.md", "\n".join([*lines, *pictures, "", *end]))
    for name, some in (("numbers", found), ("others", others)):
        values = [asdict(n) | {"ratio": n.ratio} for n in some]
        write_atomically(folder / f"{name}.json", json_format.dumps(values, indent=1))
    lead = f"Section VI of the paper beside ours, shares of the cache of Table II and of trace {trace}."
    html_page.write(folder / "report.html", "V-Rex's evaluation", lead, "", True, load(folder))


def load(folder: Path) -> list[Section]:
    """The sections of the evaluation in a folder of `vrex papers evaluate`. `ValueError` for any other folder."""
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
        raise ValueError(f"evaluation={folder}: not a folder that `vrex papers evaluate` wrote ({e})") from None
    note = "{}. Ratio: ours over the paper's."
    first, last = (
        Section(title, note.format(summary(some)), list(HEAD), [row(n) for n in some])
        for title, some in (("V-Rex's evaluation", found), (OTHERS, others))
    )
    return [first, *drawn, last]
