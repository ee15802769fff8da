"""`vrex simulate selection`: the shares of the cache that a recorded stream selects."""

from pathlib import Path
from typing import Annotated

import typer

from scripts import console
from scripts.simulate.system_options import read_results
from sim.system.selection import shares


def command(
    results: Annotated[list[Path], typer.Argument(help="results.json files of `vrex stream`.")],
) -> None:
    """Print the shares that recorded streams select, as JSON."""
    console.print_json({str(path): _described(path) for path in results})


def _described(path: Path) -> dict:
    frame, text, unions = read_results(path, shares)
    kept = {
        name: [[round(float(x), 3) for x in row] for row in a] for name, a in (("frame", frame), ("unions", unions))
    }
    return kept | {"text": [round(float(x), 4) for x in text], "mean": frame.mean(), "union": unions.mean(0).tolist()}
