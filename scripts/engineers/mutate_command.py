"""`vrex dev mutate`: put faults into a unit's netlist and count those that its tests find."""

import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.blocks.campaign_results import MUTANTS_TARGET, VERDICTS, keep, killed_share
from openvrex.scripts.progress import Bar
from openvrex.tb.campaigns import faults
from openvrex.tb.campaigns.mutants import Verdict, campaign
from openvrex.tb.campaigns.subjects import SUBJECTS
from openvrex.tb.library.runner import ROOT, BenchError

EXPLAINED = ROOT / "tb" / "campaigns" / "survivors.toml"


def command(
    unit: Annotated[list[str], typer.Argument(help=f"Any of {', '.join(SUBJECTS)}.")],
    n: Annotated[int, typer.Option("-n", help="Number of mutants of each unit.")] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample of mutants.")] = 1,
    at: Annotated[str, typer.Option("--at", help="Only name the cells where this text stands in the Verilog.")] = "",
    out: console.Folder = Path("build/mutate"),
    record: console.Record = False,
    json: console.Json = False,
) -> None:
    """Put faults into units and count those that tests find.

    Yosys edits the netlist. ABC compares each surviving mutant with the unit. The command keeps its verdicts; a later
    run goes on from there. Exit code 1 if the tests miss more than 5 %.
    """
    check(n >= 1, "n", n, "must be at least 1")
    for name in unit:
        check(name in SUBJECTS, "unit", name, f"must be one of {', '.join(SUBJECTS)}")
    if at:
        for name in unit:
            for line in faults.at(SUBJECTS[name].emitted(), at, SUBJECTS[name].module):
                console.out.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    why = tomllib.loads(EXPLAINED.read_text())
    found: dict[str, list[Verdict]] = {}
    try:
        with Bar(quiet=json) as bar:
            for name in unit:
                task, subject = bar.add_task(name, total=n), SUBJECTS[name]
                how = subject.care, subject.module, subject.plain()
                verdicts = campaign(name, subject.emitted(), subject.judge, n, seed, out, *how)
                found[name] = []
                for v in verdicts:
                    found[name].append(v)
                    bar.advance(task)
    except (BenchError, RuntimeError) as e:
        console.err.print(f"[red]error:[/] {escape(str(e))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if record:
        of = {"seed": seed}
        kept = {u: tally(own) | {"explained": explained(own, why.get(u, {}))} for u, own in found.items()}
        keep("mutants", {u: {"size": str(SUBJECTS[u].size)} | of | ends for u, ends in kept.items()})
    if json:
        console.print_json(
            {u: [asdict(v) | {"why": why.get(u, {}).get(v.key)} for v in own] for u, own in found.items()}
        )
    else:
        console.out.print(table(found, why))
        for name, own in found.items():
            for v in own:
                if v.verdict == "survives":
                    reason = why.get(name, {}).get(v.key, "[red]not explained[/]")
                    shown = escape(f"{v.text} ({v.key})")
                    console.out.print(f"{shown} ({v.how}): {reason}", highlight=False)
    if any(killed_share(tally(own)) < MUTANTS_TARGET for own in found.values()):
        raise typer.Exit(1)


def tally(own: list[Verdict]) -> dict[str, int]:
    """How many mutants were made, and how they ended."""
    ends = Counter("surviving" if v.verdict == "survives" else v.verdict for v in own)
    return {"made": len(own)} | {verdict: ends[verdict] for verdict in VERDICTS}


def explained(own: list[Verdict], why: dict[str, str]) -> int:
    """How many survivors have a reason."""
    return sum(v.verdict == "survives" and v.key in why for v in own)


def table(found: dict[str, list[Verdict]], why: dict[str, dict[str, str]]) -> Table:
    """A table with one row for each unit."""
    heads = (
        "unit",
        "made",
        "killed",
        "equivalent",
        "counter bits",
        "surviving",
        "of them explained",
        "killed of the rest",
    )
    out = Table(*heads, title="Mutants")
    for name, own in found.items():
        ends = tally(own)
        counts = (*ends.values(), explained(own, why.get(name, {})))
        share = killed_share(ends)
        colour = "green" if share >= MUTANTS_TARGET else "red"
        out.add_row(name, *map(str, counts), f"[{colour}]{share:.1%}[/]")
    return out
