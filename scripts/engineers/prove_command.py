"""`vrex dev prove`: prove properties of the units formally, one after the other."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.blocks.campaign_results import keep
from openvrex.scripts.progress import Spinner
from openvrex.tb.formal.cones import cones
from openvrex.tb.formal.planted import Planted, planted
from openvrex.tb.formal.proofs import EQUAL, LIMIT, PROVED, Goal, Verdict, goals

FAULTS = 10  # that are planted in a unit and refuted


def command(
    units: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(PROVED)}; all by default.")] = None,
    equal: Annotated[
        bool, typer.Option("--equal", help="Only that units equal their specifications, with ten planted faults each.")
    ] = False,
    look: Annotated[
        bool, typer.Option("--cones", help="Only count the registers from which logic leads to a claim.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Give up a proof after this many seconds.")] = LIMIT,
    record: Annotated[bool, typer.Option("--record", help="With --cones: record the counts.")] = False,
    json: console.Json = False,
) -> None:
    """Prove properties of the units formally.

    For each claim the command also shows that its event happens and that an edited unit breaks it. It leaves a
    counterexample as a waveform. Exit code 1 if a claim is broken, has no answer or could not fail, or if a fault that
    --equal plants is neither refuted nor proved to change nothing.
    """
    for unit in units or ():
        check(unit in PROVED, "unit", unit, f"must be one of {', '.join(PROVED)}")
    check(limit >= 1, "limit", limit, "must be at least 1")
    check(look or not record, "--record", True, "needs --cones: proofs are counted in their registry")
    check(not (look and equal), "--cones --equal", True, "must not stand together: give one of them")
    if look:
        _cones(units or list(PROVED), record, json)
        return
    todo = [g for g in goals() if (not units or g.unit in units) and (not equal or g.claim == EQUAL)]
    check(bool(todo), "unit", " ".join(units or ()), "has no specification yet: leave --equal out")
    found: list[Verdict] = []
    faults: dict[str, list[Planted]] = {}
    with Spinner(quiet=json) as step:
        for i, goal in enumerate(todo):
            step.update(f"{i + 1} of {len(todo)}: {goal.unit} {goal.size}, {goal.claim}")
            found.append(goal.judge(limit))
            if not json:
                console.out.print(line(found[-1]), highlight=False, soft_wrap=True)
            if equal and isinstance(goal, Goal) and goal.plants:
                step.update(f"{i + 1} of {len(todo)}: {goal.unit} {goal.size}, planted faults")
                faults[f"{goal.unit} {goal.size}"] = own = list(planted(goal, FAULTS, limit))
                if not json:
                    console.out.print(f"{'':<12} {_counted(own)}", highlight=False, soft_wrap=True)
    if json:
        planted_in = {where: [asdict(f) for f in own] for where, own in faults.items()}
        console.print_json(
            {"goals": [asdict(v) for v in found], "faults": planted_in} if equal else [asdict(v) for v in found]
        )
    bad = [v for v in found if not v.fine]
    for where, own in faults.items():
        if not _told(own):
            console.err.print(f"{where}: {_counted(own)}", highlight=False, soft_wrap=True)
    for v in bad:
        console.err.print(f"{v.unit} {v.size}, {v.claim}: {v.kind} {v.note}", highlight=False, soft_wrap=True)
    if bad or not all(map(_told, faults.values())):
        raise typer.Exit(1)


def _cones(units: list[str], record: bool, json: bool) -> None:
    """Print, and record, how many registers of each unit lie in the cone of a claim."""
    found = {}
    with Spinner(quiet=json) as step:
        for unit in units:
            step.update(unit)
            inside, every = cones(unit)
            found[unit] = {"inside": len(inside), "registers": len(every)}
            if not json:
                console.out.print(f"{unit:<12} {len(inside)} of {len(every)} registers in the cone of a claim")
                for name in sorted(every - inside):
                    console.out.print(f"{'':<12} not: {name}", highlight=False, markup=False, soft_wrap=True)
    if record:
        keep("cones", found)
    if json:
        console.print_json(found)


def _counted(faults: list[Planted]) -> str:
    """How many planted faults came to which end."""
    counts = Counter(f.kind for f in faults)
    longest = max((f.depth or 0 for f in faults), default=0)
    return (
        f"planted faults: {', '.join(f'{n} {kind}' for kind, n in counts.items())}, traces of at most {longest} cycles"
    )


def _told(faults: list[Planted]) -> bool:
    """Whether enough faults are refuted, and none is without an answer."""
    counts = Counter(f.kind for f in faults)
    return counts["refuted"] >= FAULTS and not counts["no answer"]


def line(v: Verdict) -> str:
    """A verdict in one line, with the cycles until the event happens and until an edit is seen."""
    colour = "green" if v.fine else "red"
    seen = "".join(f", {what} in {n}" for what, n in (("reached", v.reached), ("edit seen", v.edited)) if n)
    what = f"{v.unit:<12} {v.claim:<32} {v.size:<22}"
    return f"{what} [{colour}]{v.kind:<10}[/] {v.engine:<8} {v.seconds:7.1f} s{seen}"
