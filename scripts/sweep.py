"""`vrex sweep`: a design space on Dask, results kept as they arrive."""

from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from golden.params import check
from scripts import console
from scripts.verify import FIXTURE
from synth.sweep import points
from synth.sweep.database import Database, Row
from synth.sweep.evaluate import OBJECTIVES, Settings

NOTE = (
    "cycles: mean over the timed frames and the recorded layers, keys phase + query phase. area: the units of the DRE, "
    "each synthesised on its own, with their memories, N_WTU-h cores counted. fmax: the slowest unit. "
    "energy: of that frame, without DRAM. docs/sweeps.md"
)


def command(
    axes: Annotated[
        list[str],
        typer.Argument(metavar="NAME=V,V,...", help="A parameter, by the paper's name or ours, and its values."),
    ],
    preset: console.Preset = "core",
    param: console.Param = None,
    trace: console.Trace = FIXTURE,
    objective: Annotated[str, typer.Option(help=f"Of {', '.join(OBJECTIVES)}; separated by commas.")] = "cycles,area",
    queries: Annotated[int, typer.Option(help="Frames that are timed, from the end.")] = 2,
    th_hd: Annotated[int, typer.Option(min=0, max=257, help="Th_hd, where it is no axis.")] = 7,
    ratio: Annotated[float, typer.Option(help="Th_r-wics, where it is no axis.")] = 0.3,
    listed: Annotated[
        bool, typer.Option("--list", help="The n-th values of all axes make a point; else a grid.")
    ] = False,
    search: Annotated[
        int | None, typer.Option(metavar="POINTS", min=1, help="Search this many points of the grid.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 1,
    liberty: Annotated[list[Path] | None, typer.Option(help="Liberty file; repeat for several.")] = None,
    effort: Annotated[str, typer.Option(help="What to map for: area or speed.")] = "area",
    target: Annotated[float | None, typer.Option(metavar="PS", help="With --effort speed: delay to size for.")] = None,
    node: Annotated[int, typer.Option(metavar="NM", help="Technology that area and clock are stated for.")] = 14,
    workers: console.Workers = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    folder: console.Folder = Path("build/sweep"),
    json: console.Json = False,
) -> None:
    """Evaluate a grid, a list or a search of designs and print the Pareto front; run it again to resume."""
    # Dask and Matplotlib take half a second to import, for which no other command should wait.
    from synth.sweep import front
    from synth.sweep.run import Sweep, cluster
    from synth.sweep.search import search as searched

    with console.one_line_errors(), ExitStack() as stack:
        objectives = tuple(dict.fromkeys(objective.split(",")))
        for o in objectives:
            check(o in OBJECTIVES, "objective", o, f"must be of {', '.join(OBJECTIVES)}")
        check(not (listed and search), "--list", search, "a search goes through a grid; leave out one")
        space = points.axes(axes, param or [])
        settings = Settings.of(trace, queries, liberty or [], effort, target, node)
        asked = [] if search else list(points.points(space, listed))
        design = partial(points.design, preset, param or [], th_hd=th_hd, ratio=ratio)
        _check_some(design, asked or [{a.name: a.values[0] for a in space}])
        database = stack.enter_context(Database(folder / "sweep.db"))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = stack.enter_context(
            Progress(
                *columns,
                TextColumn("{task.fields[end]}"),
                console=console.err,
                disable=json or not console.err.is_terminal,
            )
        )
        task = bar.add_task("points", total=search or len(asked), end="")
        connect = cache(lambda: stack.enter_context(cluster(scheduler, jobs, workers)))
        sweep = Sweep(
            settings, objectives, design, database, connect, lambda left: bar.update(task, advance=1, end=_end(left))
        )
        try:
            if search:
                asked, rows = searched(space, objectives, search, seed, sweep.run)
            else:
                rows = sweep.run(asked)
        except KeyboardInterrupt:
            bar.stop()
            console.err.print("interrupted; results so far are kept: run the same command again")
            raise typer.Exit(130) from None
        front.write(folder, asked, rows, objectives)
    best = front.front_of(rows, objectives)
    if json:
        found = [{"point": p, "result": r.result, "error": r.error} for p, r in zip(asked, rows, strict=True)]
        console.print_json({"points": found, "front": best})
    else:
        _print(space, asked, rows, best, objectives)
        console.out.print(f"{NOTE}\n{folder}/sweep.db, points.csv, points.json and plots", highlight=False)
    failed = [row.error for row in rows if row.error]
    if failed:
        first = next(iter(dict.fromkeys(failed)))
        console.err.print(
            f"{len(failed)} of {len(rows)} points failed, the first: {first}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1)


def _check_some(design, asked: list[points.Point]) -> None:
    """Raise the first point's `ParamError` if no point is a design: a name or a bound is wrong, not a combination."""
    errors = []
    for point in asked:
        try:
            design(point)
        except ValueError as e:
            errors.append(e)
        else:
            return
    raise errors[0]


def _end(left: float | None) -> str:
    return "" if left is None else f"ends about {datetime.now() + timedelta(seconds=left):%H:%M:%S}"


def _print(
    space: tuple[points.Axis, ...],
    asked: list[points.Point],
    rows: list[Row],
    best: list[int],
    objectives: tuple[str, ...],
) -> None:
    table = Table(title=f"Pareto front: {len(best)} of {len(rows)} points")
    for a in space:
        table.add_column(a.given, justify="right" if a.ordered else "left")
    for o in objectives:
        table.add_column(f"{o} ({OBJECTIVES[o].unit})" if o != OBJECTIVES[o].unit else o, justify="right")
    for i in best:
        table.add_row(*(asked[i][a.name] for a in space), *(f"{rows[i].result[o]:,.1f}" for o in objectives))
    console.out.print(table)
