"""`vrex dev coverage`: measure the code and the stalls that the tests of each unit reach."""

import math
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.hdl.emit import ALL, Emitted, params_of
from openvrex.hdl.params import preset
from openvrex.scripts import console
from openvrex.scripts.blocks.campaign_results import COVERAGE_TARGETS as TARGETS
from openvrex.scripts.blocks.campaign_results import keep
from openvrex.scripts.pages.state_diagram import ANY
from openvrex.scripts.pages.unit_datasheet import state_machines
from openvrex.scripts.progress import Bar
from openvrex.tb.campaigns.code_coverage import (
    KINDS,
    Source,
    changes,
    counts,
    inputs_at_zero,
    lcov,
    left_out,
    measure,
    missed,
    proved_constant,
    proved_impossible,
    without,
)
from openvrex.tb.campaigns.subjects import SUBJECTS
from openvrex.tb.library.runner import ROOT

EXCLUDED = ROOT / "tb" / "campaigns" / "coverage.toml"


def command(
    unit: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(SUBJECTS)}; all by default.")] = None,
    out: console.Folder = Path("build/coverage"),
    record: console.Record = False,
    json: console.Json = False,
) -> None:
    """Measure the code that the tests of each unit reach.

    The command writes lines, branches and toggles of the Verilog as LCOV, and counts stalls of the streams, states and
    changes of state. Exit code 1 below 98 % of lines or branches, or if a stream's beat never waits, is never missing
    or never follows another one at once. Bits of the 32-bit event counters and bits that are proved constant are left
    out, and what no test can reach, each with its reason.
    """
    unit = unit or list(SUBJECTS)
    for name in unit:
        check(name in SUBJECTS, "unit", name, f"must be one of {', '.join(SUBJECTS)}")
    listed = tomllib.loads(EXCLUDED.read_text())
    rows, wrong = [], []
    with Bar(quiet=json) as bar:
        task = bar.add_task("tests", total=len(unit))
        for name in unit:
            subject = SUBJECTS[name]
            try:
                every = measure(subject)
            except AssertionError as e:  # of a bench, or of a comparison
                console.fail(f"{name}: its tests fail: {e}", 1)
            emitted = subject.emitted()
            source, states = Source(emitted.verilog), expected_states(subject.unit, emitted)
            every = Counter({p: n for p, n in every.items() if p.kind != "state" or p.what.split(":")[0] in states})
            excluded, bad = left_out(every, emitted.verilog, listed.get(name, {}))
            never, strange = changes(every, set().union(*states.values()))
            zero, missing = inputs_at_zero(emitted, listed.get(name, {}))
            wrong += [f"{name}: {text}" for text in [*bad, *strange, *missing]]
            points = without(every, {**excluded, **dict.fromkeys(never)})
            proved = proved_constant(emitted, points, zero, subject.module)
            impossible = proved_impossible(emitted, points)
            points = without(points, proved | impossible)
            excluded |= dict.fromkeys(proved, "Proved constant.") | dict.fromkeys(impossible, "Proved impossible.")
            write_atomically(out / f"{name}.info", lcov(name, points))
            left = [
                f"{p.line}: toggle {p.what} in {p.module}" if p.kind == "toggle" else f"{p.line}: {source.name(p)}"
                for p in missed(points)
            ]
            write_atomically(out / f"{name}.missed", "\n".join(left) + "\n")
            reasons = [f"{p.line}: {source.name(p)}: {why}" for p, why in excluded.items()]
            write_atomically(out / f"{name}.excluded", "\n".join(reasons) + "\n")
            row: dict = {"unit": name, "size": subject.size}
            for kind, (hit, total) in counts(points).items():
                row[kind] = {"hit": hit, "total": total, "excluded": sum(p.kind == kind for p in excluded)}
            rows.append(row)
            bar.advance(task)
    if record:
        keep("coverage", {row["unit"]: kept(row) for row in rows})
    if json:
        console.print_json({"units": rows, "wrong": wrong})
    else:
        console.out.print(table(rows, out))
    for text in wrong:
        line = f"[red]error:[/] {EXCLUDED.name}: {text.replace('[', chr(92) + '[')}"
        console.err.print(line, highlight=False, soft_wrap=True)
    if wrong or any(share(row[kind]) < target for row in rows for kind, target in TARGETS.items()):
        raise typer.Exit(1)


def expected_states(unit: str, emitted: Emitted) -> dict[str, set[str]]:
    """For each register of a state machine: its states and changes of state, as points name them, by its diagram."""
    out: dict[str, set[str]] = {}
    for machine in state_machines(unit, params_of(unit, preset("tiny"))) if unit in ALL else ():
        names = set(machine.states.values())
        for register in emitted.manifest.get("states", []):
            if {v for v in register["values"] if v} == names:
                own = out.setdefault(register["name"], {f"{register['name']}: {state}" for state in names})
                for a, b in machine.edges:
                    own |= {f"{register['name']}: {x} -> {b}" for x in (names - {b} if a == ANY else {a})}
    return out


def share(found: dict[str, int]) -> float:
    """The share of a kind's points that were hit."""
    return found["hit"] / found["total"] if found["total"] else 1.0


def kept(row: dict) -> dict:
    """What the record keeps of a unit: the share of each kind that was reached, in percent, and what was left out."""
    reached = {kind: percent(row[kind]) for kind in KINDS}
    of = {"points": "total", "left_out": "excluded"}
    return {"size": str(row["size"]), "reached": reached} | {
        name: {kind: row[kind][key] for kind in KINDS} for name, key in of.items()
    }


def percent(found: dict[str, int]) -> float:
    """The share in percent, rounded down, so that 100 means all."""
    return math.floor(1000 * share(found)) / 10


def table(rows: list[dict], out: Path) -> Table:
    """A table with one row for each unit."""
    heads = [h for kind in KINDS for h in (kind, "left out")]
    made = Table("unit", "size", *heads, title="Reached by the units' own tests", caption=f"the rest: {out}/*.missed")
    for row in rows:
        cells = []
        for kind in KINDS:
            found = row[kind]
            colour = "green" if share(found) >= TARGETS.get(kind, 0) else "red"
            cells.append(f"{found['hit']}/{found['total']} [{colour}]{share(found):.1%}[/]")
            cells += [str(found["excluded"])]
        made.add_row(row["unit"], str(row["size"]), *cells)
    return made
