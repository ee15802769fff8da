"""`vrex size libraries`: compare cell libraries on the areas and delays of units."""

import glob
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.quantity import number
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import Mapped, print_table
from openvrex.synth import agreement, flow


def command(
    unit: mapped_units.Unit,
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="PATTERN",
            help="Liberty files of another library, as a quoted pattern. One pattern for each library.",
        ),
    ],
    preset: console.Preset = "core",
    assign: console.Param = None,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    dont_use: mapped_units.DontUse = None,
    macro_bits: mapped_units.MacroBits = flow.MACRO_BITS,
    as_json: console.Json = False,
) -> None:
    """Compare cell libraries on the area and delay of units.

    The command maps a unit and those inside of it with the embedded library (or --liberty) and with each other one. One
    factor takes out the units of measure; the table shows the remaining differences.
    """
    several = len(mapped_units.units_of(unit)) != 1
    check(several, "unit", unit, "has no units inside, and one alone shows no agreement: name dre or core")
    files = {pattern: _files(pattern) for pattern in patterns}
    found = mapped_units.mapped(unit, preset, assign, liberty, effort, target, dont_use, macro_bits)
    others: list[Mapped] = []
    for paths in files.values():
        if not found.errors:
            others.append(mapped_units.with_library(found, paths))
            found.errors, found.code = others[-1].errors, others[-1].code
    if not found.errors:
        found.errors = [a.untimed for a in found.rows.values() if a.untimed]
        agreements = [_agreement(found.rows, other.done) for other in others]
        report = found.report(preset, assign)
        report["agreement"] = [{k: asdict(a) | {"worst": a.worst} for k, a in x.items()} for x in agreements]
        if as_json:
            typer.echo(json.dumps(report, indent=1))
        else:
            for pattern, one in zip(files, agreements, strict=True):
                _print(Path(pattern).name, one)
    found.end()


def _files(pattern: str) -> list[Path]:
    """The files that a pattern names. Raises `ParamError` if there is none."""
    found = sorted(map(Path, glob.glob(pattern)))
    check(bool(found), "pattern", pattern, "names no file; quote a pattern so that the shell leaves it alone")
    return found


def _agreement(rows: dict[str, flow.Area], others: dict[str, flow.Area]) -> dict[str, agreement.Agreement]:
    """The agreement on area and on delay, each if at least two units have it."""
    pairs = zip(("area", "delay"), agreement.figures(rows), agreement.figures(others), strict=True)
    return {k: agreement.agreement(a, b) for k, a, b in pairs if len(a.keys() & b.keys()) > 1}


def _print(name: str, found: dict[str, agreement.Agreement]) -> None:
    """Print by how much the first library, scaled by one factor, is above the other one for each unit."""
    heads = ["of", "factor", "rank correlation", "worst", *found["area"].names] if found else []
    body = []
    for what, a in found.items():
        errors = dict(zip(a.names, a.errors, strict=True))
        cells = [f"{100 * errors[n]:+.1f}" if n in errors else "-" for n in heads[4:]]
        body.append([what, number(a.factor, 4), f"{a.rank:.3f}", f"{100 * a.worst:.1f}", *cells])
    if body:
        print_table(f"Agreement with {name}: per cent above it after one factor", heads, body)
