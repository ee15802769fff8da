"""`vrex simulate selection`: what policies fetched on recorded streams, as the simulator takes it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.scripts import console
from openvrex.scripts.simulate.system_options import read_results
from openvrex.sim.system.selection import Record, fetching, recorded, written

SLOTS = 8  # of a block in the presets


def command(
    results: Annotated[list[Path], typer.Argument(help="results.json files of `vrex papers stream`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the records, as `--select` reads.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Show what policies fetched on recorded streams.

    A row has the mean shares of the tokens at home that a table of one KV head fetches, and how clusters lie there.
    """
    records = [one for path in results for one in read_results(path, _records)]
    if output:
        write_atomically(output, written(records).encode())
    if json:
        console.print_json([vars(one) for one in records])
        return
    columns = ("policy and stream", "in frames", "in generation", "tokens a cluster", "of a fetched one")
    out = Table(*columns, f"slots filled of a fetched block of {SLOTS}", title="Shares of the tokens at home")
    for one in records:
        out.add_row(one.name, *figures(one))
    console.out.print(out)


def figures(r: Record) -> tuple[str, ...]:
    """Mean shares in frames and generation; tokens of a cluster, of a fetched one in frames, and of its blocks."""
    share, sizes = sum(row[0] for row in r.unions) / len(r.unions), r.sizes["frame"]
    filled = sum(sizes) / sum(-(-n // SLOTS) for n in sizes)
    return f"{share:.1%}", f"{r.text[0]:.1%}", f"{r.cluster:.1f}", f"{sum(sizes) / len(sizes):.1f}", f"{filled:.1f}"


def _records(results: dict) -> list[Record]:
    return [recorded(results, name) for name in fetching(results)]
