"""`vrex dev prove`: prove properties of the units formally, one after the other."""

from dataclasses import asdict
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.hdl.emit import ALL
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.tb.formal.proofs import LIMIT, Verdict, goals


def command(
    units: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(ALL)}; all by default.")] = None,
    limit: Annotated[int, typer.Option(help="Give up a proof after this many seconds.")] = LIMIT,
    json: console.Json = False,
) -> None:
    """Prove properties of the units formally.

    For each claim the command also shows that its event happens and that an edited unit breaks it. It leaves a
    counterexample as a waveform. Exit code 1 if a claim is broken, has no answer or could not fail.
    """
    for unit in units or ():
        check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    check(limit >= 1, "limit", limit, "must be at least 1")
    todo = [g for g in goals() if not units or g.unit in units]
    found: list[Verdict] = []
    with Spinner(quiet=json) as step:
        for i, goal in enumerate(todo):
            step.update(f"{i + 1} of {len(todo)}: {goal.unit} {goal.size}, {goal.claim}")
            found.append(goal.judge(limit))
            if not json:
                console.out.print(line(found[-1]), highlight=False, soft_wrap=True)
    if json:
        console.print_json([asdict(v) for v in found])
    bad = [v for v in found if not v.fine]
    for v in bad:
        console.err.print(f"{v.unit} {v.size}, {v.claim}: {v.kind} {v.note}", highlight=False, soft_wrap=True)
    if bad:
        raise typer.Exit(1)


def line(v: Verdict) -> str:
    """A verdict in one line, with the cycles until the event happens and until an edit is seen."""
    colour = "green" if v.fine else "red"
    seen = "".join(f", {what} in {n}" for what, n in (("reached", v.reached), ("edit seen", v.edited)) if n)
    what = f"{v.unit:<12} {v.claim:<32} {v.size:<22}"
    return f"{what} [{colour}]{v.kind:<10}[/] {v.engine:<8} {v.seconds:7.1f} s{seen}"
