"""`vrex verify --plan`: the verification plan, with the verdict of the last test run on each feature."""

from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.scripts import console
from openvrex.scripts.blocks import sign_off
from openvrex.scripts.blocks.campaign_results import measured_at
from openvrex.tb.campaigns.plan import STAGES, Cases, Status, cases, judge, load, record, recorded

COLOURS = {"passed": "green", "failed": "red", "no evidence": "red"}
FINE = ("passed", "skipped", "nightly", "not recorded")
TESTS = Path("build/tests.xml")
RECORD = Path(__file__).parents[2] / "docs" / "results" / "tests.json"


def show(tests: Path | None, json: bool, keep: bool) -> None:
    """Print the plan. Exit code 1 if a feature has no evidence, failed, or was not run. Raises: `PlanError`.

    The results of `make nightly` beside `tests` count as well.

    tests : by default those of the last `make test`, or the recorded ones if there are none
    keep : record these results, for checkouts without any
    """
    plan, facts = load(), None
    if tests is None and not TESTS.exists() and not keep and RECORD.exists():
        ran, facts = recorded(RECORD)
        console.note(
            f"{TESTS}: not there; these are the results of {facts['date']}, commit {facts['commit']}, which "
            f"{RECORD.relative_to(RECORD.parents[2])} keeps: 'make test' makes your own"
        )
    else:
        ran = _of_run(tests or TESTS)
    found = judge(plan, ran, of_record=facts is not None)
    if keep:
        facts = measured_at()
        write_atomically(RECORD, record(plan, ran, facts, sign_off.tests()))
    if json:
        console.print_json([asdict(s.feature) | {"verdict": s.verdict, "tests": s.tests} for s in found])
    else:
        console.out.print(lines(found))
        console.out.print(matrix(found))
    for s in found:
        if s.verdict not in FINE:
            names = ", ".join(f"test_{file}::test_{test}" for file, test in s.feature.evidence) or "nothing"
            console.err.print(f"{s.feature.unit}, {s.feature.name}: {s.verdict} ({names})", highlight=False)
    if any(s.verdict not in FINE for s in found):
        raise typer.Exit(1)


def _of_run(tests: Path) -> Cases:
    ran = cases(tests)
    for nightly in sorted(tests.parent.glob("nightly/*.xml")):
        for test, verdicts in cases(nightly).items():
            ran.setdefault(test, []).extend(verdicts)
    return ran


def matrix(found: list[Status]) -> Table:
    """A table with one row for each unit: passed features of each stage, and the number of test cases."""
    out = Table("unit", *STAGES, "test cases", title="Features with evidence, of all")
    for unit in dict.fromkeys(s.feature.unit for s in found):
        own = [s for s in found if s.feature.unit == unit]
        cells = []
        for stage in STAGES:
            these = [s for s in own if s.feature.stage == stage]
            done = sum(s.verdict == "passed" for s in these)
            cells.append(f"[{'green' if done == len(these) else 'red'}]{done}[/] / {len(these)}" if these else "-")
        out.add_row(unit, *cells, f"{sum(s.tests for s in own):,}")
    return out


def lines(found: list[Status]) -> Table:
    """A table with one row for each feature."""
    out = Table("unit", "stage", "feature", "test cases", "verdict", title="Verification plan")
    for s in found:
        colour = COLOURS.get(s.verdict, "yellow")
        out.add_row(s.feature.unit, s.feature.stage, s.feature.name, f"{s.tests:,}", f"[{colour}]{s.verdict}[/]")
    return out
