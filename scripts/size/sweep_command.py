"""`vrex sweep`: evaluate a design space on Dask; every result is kept as it arrives."""

from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from openvrex.golden.function_params import ParamError, check
from openvrex.scripts import console
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.progress import Bar
from openvrex.scripts.size import mapped_units
from openvrex.synth.sweep import point_costs, points
from openvrex.synth.sweep.database import Database, Row
from openvrex.synth.sweep.point_costs import OBJECTIVES, Settings

LONG = FIXTURE.with_name("bikes_long.safetensors")  # fills a table of 1,024 clusters at Th_hd 3
SOME = 10_000  # a search first looks for a valid design among this many points of the grid
NOTE = (
    "cycles: mean over the timed frames and the recorded layers, keys phase + query phase. area: the units of the DRE, "
    "each synthesised on its own, with their memories, N_WTU-h cores counted. fmax: the slowest unit. "
    "energy: of that frame, without DRAM. docs/sweeps.md"
)


def command(
    axes: Annotated[
        list[str],
        typer.Argument(metavar="NAME=V,V,...", help="A parameter, by the paper's name or ours, with its values."),
    ],
    preset: console.Preset = "core",
    param: console.Param = None,
    trace: console.Trace = LONG,
    objective: Annotated[
        str, typer.Option(help=f"Figures to compare, with commas between: {', '.join(OBJECTIVES)}.")
    ] = "cycles,area",
    queries: Annotated[int, typer.Option(help="Number of frames, the last ones, that are timed.")] = 2,
    th_hd: Annotated[
        int | None,
        typer.Option(min=0, max=257, help="Th_hd, unless it is an axis; by default the design's reading gives it."),
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Th_r-wics, unless it is an axis; by default the design's reading gives it.")
    ] = None,
    centre: console.Centre = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Combine the n-th values of all axes instead of every combination (a grid).")
    ] = False,
    search: Annotated[
        int | None, typer.Option(metavar="POINTS", min=1, help="Let a search choose this many points of the grid.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 1,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    node: Annotated[int, typer.Option(metavar="NM", help="Process node in nm of area and clock.")] = 14,
    workers: console.Workers = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    folder: console.Folder = Path("build/sweep"),
    json: console.Json = False,
) -> None:
    """Evaluate many designs and print the Pareto front.

    The designs are a grid, a list or a search. Run the same command again to resume.
    """
    # Dask and Matplotlib take half a second to import; no other command should wait for them.
    from openvrex.synth.sweep import effects, pareto_front
    from openvrex.synth.sweep.dask_run import Sweep, cluster
    from openvrex.synth.sweep.search import BATCH
    from openvrex.synth.sweep.search import search as searched

    with ExitStack() as stack:
        objectives = tuple(dict.fromkeys(objective.split(",")))
        for o in objectives:
            check(o in OBJECTIVES, "objective", o, f"must be of {', '.join(OBJECTIVES)}")
        check(not (listed and search), "--list", search, "a search goes through a grid; leave out one")
        space = points.axes(axes, param or [])
        points.check_names(space, param or [])
        settings = Settings.of(trace, queries, liberty or [], effort, target, node)
        asked = [] if search else list(points.points(space, listed))
        design = partial(points.design, preset, param or [], th_hd=th_hd, ratio=ratio, centre=centre)
        some = asked or [points.at(space, i) for i in range(min(SOME, points.size(space, False)))]
        _check_some(design, some)
        unread = effects.unread(space, some, lambda point: point_costs.task(design(point), objectives, settings).key)
        told = [f"{a.given}: no objective of {', '.join(objectives)} depends on it; leave it out" for a in unread]
        for line in [] if json else told:
            console.note(line)
        database = stack.enter_context(Database(folder / "sweep.db"))
        bar = stack.enter_context(_progress(json))
        task = bar.add_task("points", total=search or len(asked), end="")
        connect = cache(lambda: stack.enter_context(cluster(scheduler, jobs, workers)))

        done, said = 0, json or console.err.is_terminal

        def progress(ended: int, left: float | None) -> None:
            nonlocal done, said
            done += ended
            if search and left:  # `left` is of this batch; later ones take as long
                left *= (search - done) / min(BATCH - done % BATCH, search - done)
            if left and not said:  # a log has no progress bar: one line at the start
                console.err.print(f"{search or len(asked)} points, {_end(left)}", highlight=False)
                said = True
            bar.update(task, advance=ended, end=_end(left))

        sweep = Sweep(settings, objectives, design, database, connect, progress)
        dropped: list[str] = []
        try:
            if search:
                feasible = partial(_feasible, design, dropped)
                asked, rows = searched(space, objectives, search, seed, sweep.run, feasible)
            else:
                rows = sweep.run(asked)
        except KeyboardInterrupt:
            bar.stop()
            console.err.print("interrupted; results so far are kept: run the same command again")
            raise typer.Exit(130) from None
        shown = [points.named(space, p) for p in asked]
        pareto_front.write(folder, shown, rows, objectives)
    best = pareto_front.front_of(rows, objectives)
    choice = pareto_front.chosen(rows, best, objectives)
    late = effects.warnings(tuple(a for a in space if a not in unread), asked, rows, objectives)
    if dropped:
        late.append(f"{len(dropped)} points that are no design were dropped, the first: {dropped[0]}")
    for line in [] if json else late:
        console.note(line)
    if json:
        found = [{"point": p, "result": r.result, "error": r.error} for p, r in zip(shown, rows, strict=True)]
        console.print_json({"points": found, "front": best, "chosen": choice, "warnings": told + late})
    else:
        _print(space, shown, rows, best, choice, objectives)
        console.out.print(f"{NOTE}\n{folder}/sweep.db, points.csv, points.json and plots", highlight=False)
    failed = [row.error for row in rows if row.error]
    if failed:
        first = next(iter(dict.fromkeys(failed)))
        console.err.print(
            f"{len(failed)} of {len(rows)} points failed, the first: {first}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1)


def _check_some(design, asked: list[points.Point]) -> None:
    """Raise the first point's `ParamError` if no point is a valid design.

    Then a name or a bound is wrong, not a combination.
    """
    errors = []
    for point in asked:
        try:
            design(point)
        except ValueError as e:
            errors.append(e)
        else:
            return
    raise errors[0]


def _feasible(design, dropped: list[str], point: points.Point) -> bool:
    """Whether a point is a valid design; if not, the reason is added to `dropped`."""
    try:
        design(point)
    except ParamError as e:
        dropped.append(str(e))
        return False
    return True


def _progress(quiet: bool) -> Bar:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[end]}"))
    return Bar(*columns, quiet=quiet, transient=False)


def _end(left: float | None) -> str:
    return "" if left is None else f"ends about {datetime.now() + timedelta(seconds=left):%H:%M:%S}"


def _print(
    space: tuple[points.Axis, ...],
    shown: list[dict[str, int | float | str]],
    rows: list[Row],
    best: list[int],
    choice: int | None,
    objectives: tuple[str, ...],
) -> None:
    table = Table(title=f"Pareto front: {len(best)} of {len(rows)} points", caption="*: nearest to the best of each")
    for a in space:
        table.add_column(a.given, justify="right" if a.ordered else "left")
    for o in objectives:
        table.add_column(f"{o} ({OBJECTIVES[o].unit})" if o != OBJECTIVES[o].unit else o, justify="right")
    table.add_column("")
    for i in best:
        numbers = (f"{rows[i].result[o]:,.1f}" for o in objectives)
        table.add_row(*map(str, shown[i].values()), *numbers, "*" if i == choice else "")
    console.out.print(table)
