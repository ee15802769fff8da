"""`vrex verify --signoff`: the stage that every block has reached, and what keeps it from its target."""

from dataclasses import asdict

import typer
from rich.table import Table

from openvrex.scripts import console
from openvrex.scripts.blocks import sign_off
from openvrex.scripts.blocks.sign_off import CHECKLIST, TARGETS


def show(json: bool) -> None:
    """Print it. Exit code 1 if a block is below its target. Raises: `ParamError` outside of a checkout."""
    known = sign_off.recorded()
    found = {unit: sign_off.judged(unit, known) for unit in TARGETS}
    stages = {unit: sign_off.reached(own) for unit, own in found.items()}
    if json:
        console.print_json({unit: _whole(unit, own) for unit, own in found.items()})
    else:
        table = Table("block", "target", "reached", "open", "first open criterion", title="Sign-off by checklist")
        for unit, own in found.items():
            first = sign_off.open_criteria(unit, own)
            colour = "red" if sign_off.below(unit, own) else "green"
            said = f"{first[0].name}: {own[first[0].name].figure}" if first else ""
            table.add_row(unit, TARGETS[unit], f"[{colour}]{stages[unit]}[/]", str(len(first) or ""), said)
        console.out.print(table)
        for unit, own in found.items():
            for c in sign_off.open_criteria(unit, own):
                text = f"{unit}, {c.stage}, {c.name}: {own[c.name].figure}: {c.command.replace('UNIT', unit)}"
                console.err.print(text, highlight=False, markup=False, soft_wrap=True)
    if any(sign_off.below(unit, own) for unit, own in found.items()):
        raise typer.Exit(1)


def _whole(unit: str, found: dict[str, sign_off.Finding]) -> dict:
    lines = {c.name: {"stage": c.stage, "asks": c.asks} | asdict(found[c.name]) for c in CHECKLIST}
    return {"target": TARGETS[unit], "reached": sign_off.reached(found), "criteria": lines}
