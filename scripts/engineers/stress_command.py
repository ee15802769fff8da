"""`vrex dev stress`: random transactions of units against golden, as many as asked for."""

import math
from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.blocks.campaign_results import hardware, keep
from openvrex.scripts.progress import Bar
from openvrex.tb.campaigns.stress import SLOW, SUBJECT, UNITS, campaign


def command(
    unit: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(UNITS)}; all by default.")] = None,
    n: Annotated[
        int, typer.Option("-n", help="Transactions of each unit; a join of units plays a share of them.")
    ] = 1_000_000,
    out: console.Folder = Path("build/stress"),
    record: console.Record = False,
    json: console.Json = False,
) -> None:
    """Play long random traffic on units and compare every beat.

    The command keeps its progress; a later run on the same hardware goes on from there. Of traffic that fails it
    tells the seed and the fewest parts that still fail, and leaves their waveforms.
    """
    check(n >= 1, "n", n, "must be at least 1")
    for name in unit or ():
        check(name in UNITS, "unit", name, f"must be one of {', '.join(UNITS)}")
    found = {}
    with Bar(quiet=json, transient=False) as bar:
        for name in unit or UNITS:
            own = math.ceil(n / SLOW.get(name, 1))
            task = bar.add_task(name, total=own)
            try:
                for done in campaign(name, own, out, hardware(SUBJECT.get(name, name))):
                    bar.update(task, completed=min(done, own))
            except AssertionError as e:
                console.err.print(f"[red]{name}:[/] {e}", highlight=False, soft_wrap=True)
                raise typer.Exit(1) from None
            found[name] = done
            if not json:
                console.out.print(f"{name}: {done:,} transactions as golden", highlight=False)
    if record:
        keep("stress", {name: {"transactions": done} for name, done in found.items()})
    if json:
        console.print_json([{"unit": name, "transactions": done} for name, done in found.items()])
