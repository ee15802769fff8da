"""`vrex papers figure`: figures of the papers, measured on our streams."""

from collections.abc import Callable, Container
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.function_params import ParamError, check
from openvrex.golden.inputs.decoder import MODEL
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.inputs.video import locate, package_file
from openvrex.papers.commands import (
    paper_budgets,
    paper_codecsight,
    paper_keys,
    paper_mosaic,
    paper_mosaic_hardware,
    paper_motion,
    paper_ratio,
    paper_selection,
    paper_transmission,
)
from openvrex.papers.commands.paper_figure import Drawn
from openvrex.scripts import console
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.progress import Bar

ON_TRACES: dict[str, Callable[[dict[str, Trace]], Drawn]] = {
    "7a": paper_keys.similarity,
    "7b": paper_keys.hashes,
    "visited": paper_selection.visited,
    "19": paper_selection.clustering,
    "mosaic": paper_mosaic.draw,
    "mosaic-budgets": paper_budgets.budgets,
    "mosaic-lengths": paper_budgets.lengths,
    "mosaic-hardware": paper_mosaic_hardware.draw,
}
ON_CLIPS = ("codecsight", "codecsight-motion", "transmission")
SENT = ", ".join(ON_CLIPS)
NAMES = (*ON_TRACES, "20", *ON_CLIPS)
CLIPS = "world,bigbuckbunny,bikes"


def command(
    ctx: typer.Context,
    figures: Annotated[list[str], typer.Argument(help=f"Of {', '.join(NAMES)}.")],
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace",
            show_default=False,
            help=f"Trace of `vrex trace` for {', '.join(ON_TRACES)}; may be repeated. A small one by default.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Texts for 20.")] = 4,
    workers: console.Workers = None,
    clips: Annotated[str, typer.Option(help=f"Clips or video files for {SENT}, with commas between.")] = CLIPS,
    frames: Annotated[int, typer.Option(help=f"Most frames of a clip for {SENT}.")] = paper_codecsight.FRAMES,
    errors: Annotated[bool, typer.Option(help="For codecsight, also run the first clip in the decoder.")] = False,
    folder: console.Folder = Path("build/paper"),
    json: console.Json = False,
) -> None:
    """Measure figures of V-Rex, Mosaic and CodecSight on our streams.

    Each figure is a table with the paper's values beside ours, a JSON file and a plot. 7a, 7b, visited, 19 and 20 are
    V-Rex's; mosaic, mosaic-budgets and mosaic-lengths are Mosaic's Table IV and Figs. 10 and 12; codecsight,
    codecsight-motion and transmission are CodecSight's Figs. 16 to 18, 5 and 6.1.1; mosaic-hardware is our own.
    """
    for name in figures:
        check(name in NAMES, "figure", name, f"must be one of {', '.join(NAMES)}")
    _check_used(ctx, figures)
    loaded = traces_of(traces or [FIXTURE], figures)
    files = paper_codecsight.located(clips, frames, errors) if "codecsight" in figures else {}
    sent = {clip: locate(clip) for clip in clips.split(",")} if set(ON_CLIPS[1:]) & set(figures) else {}
    if "20" in figures:
        package_file(*MODEL)
    drawn: dict[str, Drawn] = {}
    for name in dict.fromkeys(figures):
        if name == "20":  # with a progress bar of its own
            drawn[name] = paper_ratio.draw(folder, seeds, workers, json)
            continue
        with Bar(quiet=json) as bar:
            if name == "codecsight":
                drawn[name] = paper_codecsight.draw(files, frames, errors, bar)
            elif name == "codecsight-motion":
                drawn[name] = paper_motion.draw(sent, frames, bar)
            elif name == "transmission":
                drawn[name] = paper_transmission.draw(sent, frames, bar)
            else:
                bar.add_task(name, total=None)
                drawn[name] = ON_TRACES[name](loaded)
    for name, figure in drawn.items():
        write(figure, name, folder)
    if json:
        console.print_json({name: content(figure) for name, figure in drawn.items()})
        return
    for figure in drawn.values():
        show(figure)
    console.out.print(f"Tables and plots: {folder}", highlight=False)


def _check_used(ctx: typer.Context, figures: list[str]) -> None:
    """Raise `ParamError` for an option that has no effect on these figures."""
    uses: dict[str, Container[str]] = {"--trace": ON_TRACES, "--seeds": ("20",), "--workers": ("20",)}
    uses |= {"--clips": ON_CLIPS, "--frames": ON_CLIPS, "--errors": ("codecsight",)}
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        own = uses.get(option.opts[0])
        typed = source is not None and source.name == "COMMANDLINE"
        if typed and own is not None and not any(name in own for name in figures):
            raise ParamError(f"{option.opts[0]}: has no effect on {', '.join(figures)}: leave it out")


def traces_of(paths: list[Path], figures: list[str]) -> dict[str, Trace]:
    """The traces by the names of their files. Raises: `TraceError`, and `ParamError` for one that cannot be used."""
    out: dict[str, Trace] = {}
    for path in paths:
        check(path.stem not in out, "--trace", str(path), "each must have a name of its own: rename one")
        out[path.stem] = Trace.load(path)
        values = out[path.stem].v is not None or not any(name.startswith("mosaic") for name in figures)
        check(values, "--trace", str(path), "must have values for mosaic: record it without --no-values")
    return out


def content(drawn: Drawn) -> dict:
    """What the JSON file of a figure holds."""
    return {"title": drawn.title, "paper": drawn.paper, "rows": drawn.rows}


def write(drawn: Drawn, name: str, folder: Path) -> None:
    """Write the JSON file and the plot of a figure."""
    write_atomically(folder / f"{name}.json", (dumps(content(drawn), indent=1) + "\n").encode())
    with replacing(folder / f"{name}.svg") as file:
        drawn.plot(drawn.rows).savefig(file, format="svg")


def show(drawn: Drawn) -> None:
    """Print the table, what the paper shows, and how to read it."""
    console.out.print(drawn.table())
    console.out.print(f"Paper: {drawn.paper}\n{drawn.note}\n", highlight=False)
