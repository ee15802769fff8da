"""What every `vrex` command shares: error lines, JSON output, options."""

import json
import os
import sys
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from amaranth.hdl import UnusedElaboratable
from rich.console import Console
from rich.text import Text

from golden.function_params import ReSVParams, check
from hdl import generated
from hdl.design import load
from hdl.emit import ALL, UNITS, Emitted, params_of
from hdl.params import DreParams, SystemParams, override, override_part
from synth import flow
from synth.emission import emitted

# A pipe or a log has no width of its own; a table there should not be squeezed into 80 columns.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True)


def folder(typed: str | Path) -> Path:
    """An output folder that can be made, or written to. Raises: `ValueError`."""
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
    """An output file that can be made, or replaced. Raises: `ValueError`."""
    if not str(typed):
        raise ValueError("must name a file")
    if Path(typed).is_dir():
        raise ValueError("must be a file, and is a folder: add a file's name")
    folder(Path(typed).absolute().parent)
    return Path(typed)


# One option: a design file starts from a preset of its own.
Preset = Annotated[
    str,
    typer.Option("--preset", "--design", metavar="NAME|FILE.toml", help="Preset or design file, see `vrex presets`."),
]
Param = Annotated[list[str] | None, typer.Option("-p", help="name=value or unit.name=value; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable results.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of stalls and constrained-random data.")]
Folder = Annotated[Path, typer.Option("-o", parser=folder, help="Folder to write into.")]
Trace = Annotated[Path, typer.Option("--trace", help="Trace of `vrex trace`; a small real one by default.")]
Tests = Annotated[Path, typer.Option("--tests", help="A test run in JUnit's XML, as `make test` leaves it.")]
# Of ReSV on a trace.
Queries = Annotated[int, typer.Option("--queries", min=1, help="Query blocks (frames) that select, from the end.")]
ThHd = Annotated[
    int | None,
    typer.Option(
        "--th-hd", min=0, help="Th_hd, to n_hp + 1: keys join a cluster at a distance below it; default 7 of 32 bits."
    ),
]
Ratio = Annotated[float, typer.Option("--ratio", min=0, max=1, help="Th_r-wics.")]
# Where tasks run.
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes here, or jobs; default one a processor, 2 jobs.")
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, e.g. tcp://host:8786.")
]
Jobs = Annotated[Literal["local", "slurm", "lsf"] | None, typer.Option("--cluster", help="Submit workers as jobs.")]
# A pass of Llama-3 8B by the time view.
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="Tokens of a pass: of a frame.")]
Cached = Annotated[list[int], typer.Option("--cached", min=1, help="Cached tokens; may be repeated.")]
Share = Annotated[
    float, typer.Option("--share", min=0, max=1, help="Fetched entries, of the cached ones that are not recent.")
]
Recent = Annotated[int, typer.Option("--recent", min=1, help="Entries of the ring.")]
Latency = Annotated[int, typer.Option("--latency", min=1, help="Cycles from a burst's address to its first beat.")]


def error(message: str) -> None:
    """One line on standard error."""
    err.print("[red]error:[/]", Text(" ".join(message.split())), highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """One line on standard error that ends nothing."""
    err.print("[yellow]note:[/]", Text(message), highlight=False, soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line."""
    error(message)
    warnings.simplefilter("ignore", UnusedElaboratable)  # components were left half-way, which nobody need be told
    raise typer.Exit(code) from None


def params(preset_name: str, assignments: list[str] | None) -> SystemParams:
    """The parameters that --preset or --design name, with -p on top."""
    return override(load(preset_name), assignments or [])


def unit_system(unit: str, preset_name: str, assignments: list[str] | None) -> SystemParams:
    """A system for one unit of it: the unit has these parameters, checked by its own rules, whether others fit or not.

    `ParamError` for a name that the unit has not, which would change nothing.
    """
    check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    return override_part(load(preset_name), ALL[unit][2], assignments or [])


def check_used(command: str, assignments: list[str] | None, used: tuple[str, ...]) -> None:
    """`ParamError` for a -p that is none of `used`, the parameters on which a command's figures depend."""
    for text in assignments or []:
        name = text.partition("=")[0]
        fix = f"has no effect on `vrex {command}`, which depends on {', '.join(used)}: leave it out"
        check(name in used or name in {n.rpartition(".")[2] for n in used}, "-p", text, fix)


def chosen(
    unit: str, preset_name: str, assignments: list[str] | None, alone: bool = False
) -> tuple[str, SystemParams, Emitted | None]:
    """A unit by its name, or by the folder that `vrex generate` wrote: then with the Verilog and the parameters there.

    The parameters are those of a system in which all units fit, or of the unit `alone`. Verilog that was edited, or
    that this version makes otherwise, is told of and taken as it is.
    """

    def system(unit: str, given: list[str]) -> SystemParams:
        return unit_system(unit, preset_name, given) if alone and unit in UNITS else params(preset_name, given)

    if unit in ALL or not Path(unit).is_dir():
        return unit, system(unit, assignments or []), None
    place, made = Path(unit), generated.read(Path(unit))
    unit = made.manifest["unit"]
    chosen = system(unit, [*generated.assignments(made), *(assignments or [])])
    own = params_of(unit, chosen)
    same = json.loads(json.dumps(asdict(own))) == made.manifest["params"]
    check(same, "-p", " ".join(assignments or []), f"must leave {unit} as {place} has it: generate it again")
    if generated.edited(made):
        note(f"{place}/{made.top}.v: edited since it was generated; taken as it is")
    elif made.manifest["sha256"] != emitted(unit, own, flow.BUILD, **generated.options(made)).manifest["sha256"]:
        note(f"{place}/{made.top}.v: of another version, this one makes it otherwise; taken as it is")
    return unit, chosen, made


def function(p: DreParams, th_hd: int | None, ratio: float) -> ReSVParams:
    """ReSV as the hardware fixes it, with the thresholds of a run. Raises: `ParamError`."""
    own = p.function()
    return replace(own, th_hd=own.th_hd if th_hd is None else th_hd, ratio_q16=round(ratio * 65536))


def own_folder(folder: Path | None, default: Path, top: str) -> Path:
    """Where the files of a top module go; `ParamError` for a folder with those of another one, and for a file."""
    folder = folder or default / top
    files = [str(x) for x in (folder, *folder.parents) if x.is_file()]
    check(not files, "-o", str(folder), f"must be a folder, and {''.join(files)} is a file")
    manifest = folder / "manifest.json"
    other = json.loads(manifest.read_text()).get("top", "another manifest.json") if manifest.exists() else top
    check(other == top, "-o", str(folder), f"holds {other}, whose files would be mixed with those of {top}")
    return folder


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
