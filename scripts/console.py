"""Options, error lines and JSON output that the `vrex` commands share."""

import json
import os
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from amaranth.hdl import UnusedElaboratable
from rich.console import Console
from rich.text import Text

from openvrex.golden.function_params import RATIO, ReSVParams, check
from openvrex.hdl import generated
from openvrex.hdl.design import load
from openvrex.hdl.emit import ALL, UNITS, Emitted, params_of
from openvrex.hdl.emit_cache import emitted
from openvrex.hdl.params import DreParams, SystemParams, override, override_part, stated
from openvrex.scripts.fitting_console import FittingConsole
from openvrex.synth import flow

# A pipe or a log has no width of its own; a table there should not be squeezed into 80 columns.
out = FittingConsole(width=None if sys.stdout and sys.stdout.isatty() else 160)
err = Console(stderr=True)


def folder(typed: str | Path) -> Path:
    """The output folder that the user typed. Raises `ValueError` if it cannot be made or written to."""
    if not str(typed):
        raise ValueError("must name a folder (`-o .` is the current one)")
    path = Path(typed)
    nearest = next(x for x in (path, *path.absolute().parents) if x.exists())
    if not nearest.is_dir():
        raise ValueError(f"must be a folder, and {nearest} is a file: choose another place")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"must be writable, and {nearest} is not: choose another place")
    return path


def file(typed: str | Path) -> Path:
    """The output file that the user typed. Raises `ValueError` if it cannot be made or replaced."""
    if not str(typed):
        raise ValueError("must name a file")
    if Path(typed).is_dir():
        raise ValueError("must be a file, and is a folder: add a file's name")
    folder(Path(typed).absolute().parent)
    return Path(typed)


# Both names are one option: a design file names its preset itself.
Preset = Annotated[
    str,
    typer.Option("--preset", "--design", metavar="NAME|FILE.toml", help="Preset (see `vrex presets`) or design file."),
]
System = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "--design",
        metavar="NAME|FILE.toml",
        help="Hardware of the platform: a preset or design file. By default edge8 on the edge, server48 on the server.",
    ),
]
Param = Annotated[
    list[str] | None, typer.Option("-p", help="Change a parameter: name=value or unit.name=value. May be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Record = Annotated[bool, typer.Option("--record", help="Record the results in docs/results/blocks.json.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of random stalls and data.")]
Folder = Annotated[Path, typer.Option("-o", parser=folder, help="Folder to write into.")]
Trace = Annotated[
    Path,
    typer.Option("--trace", show_default=False, help="Trace of `vrex trace`; by default a small one of a real video."),
]
Tests = Annotated[Path, typer.Option("--tests", help="Results of a test run (JUnit XML), which `make test` writes.")]
# How ReSV selects on a trace.
Queries = Annotated[int, typer.Option("--queries", min=1, help="Number of frames, the last ones, that select tokens.")]
# None: as the design's reading says (`DreParams.reading`).
ThHd = Annotated[
    int | None,
    typer.Option(
        "--th-hd",
        min=0,
        help="Th_hd: a key joins a cluster at a Hamming distance below it; at most n_hp + 1. By default "
        f"the design's reading gives it ({ReSVParams.th_hd} of 32 bits in most presets).",
    ),
]
Ratio = Annotated[
    float | None,
    typer.Option(
        "--ratio",
        min=0,
        max=1,
        help="Th_r-wics: share of a row's weighted sum that the selection covers. By default the design's reading "
        f"gives it ({RATIO} in most presets).",
    ),
]
Centre = Annotated[
    bool | None,
    typer.Option(
        "--centre/--no-centre",
        help="Take hash bits from the first frame's mean key, or from zero. By default as the design's reading says.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that was edited.")]
# Where the tasks of a sweep or a fleet run.
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Worker processes (one for each processor by default), or jobs (2 by default)."
    ),
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="Use this Dask scheduler, e.g. tcp://host:8786.")
]
Jobs = Annotated[
    Literal["local", "slurm", "lsf"] | None,
    typer.Option("--cluster", help="Submit the workers as jobs to this batch system."),
]
# A pass of Llama-3 8B in the time view.
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="New tokens of the pass, which is a frame.")]
Cached = Annotated[list[int], typer.Option("--cached", min=1, help="Tokens in the cache. May be repeated.")]
Share = Annotated[
    float | None,
    typer.Option(
        "--share", min=0, max=1, help="Share of the cached, not recent entries that is fetched; that of --select."
    ),
]
Latency = Annotated[int, typer.Option("--latency", min=1, help="Cycles from a burst's address to its first beat.")]


def error(message: str) -> None:
    """Print an error in one line on standard error."""
    err.print("[red]error:[/]", Text(" ".join(message.split())), highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """Print a note in one line on standard error; the command goes on."""
    err.print("[yellow]note:[/]", Text(message), highlight=False, soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    """End the command with an error in one line and this exit code."""
    error(message)
    warnings.simplefilter("ignore", UnusedElaboratable)  # Amaranth warns of components that the error left unfinished
    raise typer.Exit(code) from None


def params(preset_name: str, assignments: list[str] | None) -> SystemParams:
    """The parameters of the preset or design file, changed by each -p."""
    return override(load(preset_name), assignments or [])


def unit_system(unit: str, preset_name: str, assignments: list[str] | None) -> SystemParams:
    """A system whose `unit` has these parameters.

    Only the rules of the unit itself are checked; other units need not fit. `ParamError` for a parameter that the unit
    does not have: it would change nothing.
    """
    check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    return override_part(load(preset_name), ALL[unit][2], assignments or [])


def check_used(command: str, assignments: list[str] | None, used: tuple[str, ...]) -> None:
    """Raise `ParamError` for a -p that does not change the figures of a command; those of `used` do."""
    for text in assignments or []:
        name = text.partition("=")[0]
        fix = f"has no effect on `vrex {command}`, which depends on {', '.join(used)}: leave it out"
        check(name in used or name in {n.rpartition(".")[2] for n in used}, "-p", text, fix)


def chosen(
    unit: str, preset_name: str, assignments: list[str] | None, alone: bool = False
) -> tuple[str, SystemParams, Emitted | None]:
    """Unit, system and Verilog that the user named by a unit's name or by a folder of `vrex generate`.

    A folder brings its own Verilog and parameters. A note says if the Verilog was edited or comes from another version.
    alone : check the rules of the unit only; otherwise all units of the system must fit
    """

    def system(unit: str, given: list[str], apart: bool) -> SystemParams:
        return unit_system(unit, preset_name, given) if apart else params(preset_name, given)

    if unit in ALL or not Path(unit).is_dir():
        return unit, system(unit, assignments or [], alone and unit in UNITS), None
    place, made = Path(unit), generated.read(Path(unit))
    unit = made.manifest["unit"]
    apart = alone and unit in UNITS
    chosen = system(unit, [*generated.assignments(made, apart), *(assignments or [])], apart)
    own = params_of(unit, chosen)
    same = json.loads(json.dumps(stated(own))) == made.manifest["params"]
    check(
        same,
        "-p",
        " ".join(assignments or []),
        f"must not change the generated {unit} of {place}: leave it out, or generate the unit again",
    )
    if generated.edited(made):
        note(f"{place / made.file}: edited since it was generated; taken as it is")
    elif made.manifest["sha256"] != emitted(unit, own, flow.BUILD, **generated.options(made)).manifest["sha256"]:
        note(f"{place / made.file}: this version generates other Verilog; taken as it is")
    return unit, chosen, made


def function(p: DreParams, th_hd: int | None, ratio: float | None, centre: bool | None) -> ReSVParams:
    """The function parameters of a design, with those of a run that are not None. Raises: `ParamError`."""
    q16 = None if ratio is None else round(ratio * 65536)
    given: dict[str, Any] = {"th_hd": th_hd, "ratio_q16": q16, "centre": centre}
    return replace(p.function(), **{name: value for name, value in given.items() if value is not None})


def check_replaced(path: Path, option: str, kind: str, pattern: bytes) -> None:
    """Raise `ParamError` for a file that no earlier call wrote: one whose first bytes do not match."""
    if path.exists():
        with path.open("rb") as file:
            ok = re.fullmatch(pattern, file.read(4096), re.S)
        check(bool(ok), option, str(path), f"is a file that holds no {kind}, and would be lost: choose another name")


def own_folder(folder: Path | None, default: Path, top: str) -> Path:
    """The folder for the files of a top module. Raises `ParamError` for a file or a folder of another module."""
    folder = folder or default / top
    files = [str(x) for x in (folder, *folder.parents) if x.is_file()]
    check(not files, "-o", str(folder), f"must be a folder, and {''.join(files)} is a file")
    manifest = folder / "manifest.json"
    other = json.loads(manifest.read_text()).get("top", "another manifest.json") if manifest.exists() else top
    check(other == top, "-o", str(folder), f"holds {other}, whose files would be mixed with those of {top}")
    return folder


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    json.dump(value, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
