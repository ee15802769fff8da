"""`vrex coverage`: code that units' own tests reach."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from golden.params import check
from scripts import console
from tb.coverage import KINDS, counts, lcov, measure, missed
from tb.subjects import SUBJECTS


def command(
    unit: Annotated[list[str], typer.Argument(help=f"Any of {', '.join(SUBJECTS)}.")],
    out: console.Folder = Path("build/coverage"),
    json: console.Json = False,
) -> None:
    """Lines, branches and toggles of a unit's Verilog that its own tests reach; an LCOV file each.

    Bits of the 32-bit event counters are left out.
    """
    with console.one_line_errors():
        for name in unit:
            check(name in SUBJECTS, "unit", name, f"must be one of {', '.join(SUBJECTS)}")
        out.mkdir(parents=True, exist_ok=True)
        rows, left = [], {}
        with Progress(console=console.err, transient=True, disable=json) as bar:
            task = bar.add_task("tests", total=len(unit))
            for name in unit:
                points = measure(SUBJECTS[name])
                (out / f"{name}.info").write_text(lcov(name, points))
                rows.append({"unit": name} | {kind: list(found) for kind, found in counts(points).items()})
                left[name] = [f"{p.line}: {p.kind} {p.what} in {p.module}" for p in missed(points)]
                (out / f"{name}.missed").write_text("\n".join(left[name]) + "\n")
                bar.advance(task)
    if json:
        console.print_json(rows)
        return
    table = Table("unit", *KINDS, "not reached", title="Reached by the units' own tests")
    for row in rows:
        cells = [f"{hit}/{every} {hit / every:.1%}" if every else "-" for hit, every in (row[k] for k in KINDS)]
        table.add_row(row["unit"], *cells, str(out / f"{row['unit']}.missed"))
    console.out.print(table)
