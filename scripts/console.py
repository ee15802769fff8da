"""What every `vrex` command shares: error lines, JSON output, parameter options."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from golden.params import check
from hdl.emit import ALL, params_of
from hdl.params import SystemParams, flat, override, preset

# A pipe or a log has no width of its own; a table there should not be squeezed into 80 columns.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True)

Preset = Annotated[str, typer.Option("--preset", help="Named parameter set, see `vrex presets`.")]
Param = Annotated[list[str] | None, typer.Option("-p", help="name=value or unit.name=value; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable results.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of stalls and constrained-random data.")]
Folder = Annotated[Path, typer.Option("-o", help="Folder to write into.")]
Trace = Annotated[Path, typer.Option("--trace", help="Trace of `vrex trace`; a small real one by default.")]
Tests = Annotated[Path, typer.Option("--tests", help="A test run in JUnit's XML, as `make test` leaves it.")]
# Where tasks run.
Workers = Annotated[
    int | None, typer.Option("--workers", help="Processes here, or jobs; default one a processor, 2 jobs.")
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, e.g. tcp://host:8786.")
]
Jobs = Annotated[str | None, typer.Option("--cluster", help="Submit workers as jobs: slurm or lsf.")]
# A pass of Llama-3 8B by the time view.
Tokens = Annotated[int, typer.Option("--tokens", help="Tokens of a pass: of a frame.")]
Cached = Annotated[list[int], typer.Option("--cached", help="Cached tokens; may be repeated.")]
Share = Annotated[float, typer.Option("--share", help="Fetched entries, of the cached ones that are not recent.")]
Recent = Annotated[int, typer.Option("--recent", help="Entries of the ring.")]
Latency = Annotated[int, typer.Option("--latency", help="Cycles from a burst's address to its first beat.")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what the user can mend (ValueError and its kin, OSError) into one line and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as e:
        named = isinstance(e, OSError) and e.filename
        message = f"{e.filename}: {e.strerror}" if named else e
        err.print(f"[red]error:[/] {message}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def params(preset_name: str, assignments: list[str] | None) -> SystemParams:
    """The parameters that --preset and -p name."""
    return override(preset(preset_name), assignments or [])


def unit_params(unit: str, preset_name: str, assignments: list[str] | None) -> object:
    """Those of a unit; `ParamError` for a name that the unit has not, which would change nothing."""
    own = params_of(unit, params(preset_name, assignments))
    names = flat(own, ALL[unit][2].rpartition(".")[2])
    for text in assignments or []:
        name = text.partition("=")[0]
        known = name in names or name in {n.rpartition(".")[2] for n in names}
        check(known, "parameter", name, f"{unit} has none of this name; it has {', '.join(names)}")
    return own


def own_folder(folder: Path | None, default: Path, unit: str) -> Path:
    """Where the files of a unit go; `ParamError` for a folder with those of another one, and for a file."""
    folder = folder or default / unit
    files = [str(x) for x in (folder, *folder.parents) if x.is_file()]
    check(not files, "-o", str(folder), f"must be a folder, and {''.join(files)} is a file")
    manifest = folder / "manifest.json"
    other = json.loads(manifest.read_text()).get("unit", "another manifest.json") if manifest.exists() else unit
    check(other == unit, "-o", str(folder), f"holds {other}, whose files would be mixed with those of {unit}")
    return folder


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
