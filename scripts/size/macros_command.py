"""`vrex size macros`: print how far the model of memories is from public macros."""

import json
from dataclasses import asdict
from typing import Any

import typer

from openvrex.scripts import console
from openvrex.scripts.size.mapped_units import print_table
from openvrex.synth.sram import FITTED, FITTED_NODE, MODELS, POINTS, Point, left_out

FIGURES = ("area", "energy", "access", "setup")


def command(as_json: console.Json = False) -> None:
    """Print how far the model of memories is from public macros.

    Access and setup times are fitted to the macros of a circuit; the columns after each show the error with a fit to
    all other macros, and to those of all other generators. Times by a formula of their generator are not fitted.
    """
    macros = [_report(p, formula=False) for p in POINTS] + [_report(p, formula=True) for p in MODELS]
    if as_json:
        typer.echo(json.dumps({"node": FITTED_NODE, "fit": asdict(FITTED), "macros": macros}, indent=1))
        return
    heads = ["macro", "nm", *(f"{n} %" for n in FIGURES), "access left out %", "generator left out %"]
    body = []
    for m in macros:
        errors = [_percent(m["errors"].get(n)) for n in FIGURES]
        unseen = [_percent(m[key].get("access")) for key in ("without_macro", "without_generator")]
        body.append([m["name"] + ", formula" * m["formula"], str(m["node"]), *errors, *unseen])
    print_table("The model of memories, above published macros", heads, body)


def _report(point: Point, formula: bool) -> dict[str, Any]:
    """A macro and the model's errors as JSON. A formula is left out of every fit."""
    times = () if formula or not (point.access or point.setup) else ("access", "setup")
    unseen = {
        key: {n: e for n, e in left_out(point, generator).items() if n in times} if times else {}
        for key, generator in (("without_macro", False), ("without_generator", True))
    }
    return asdict(point) | {"formula": formula, "errors": point.errors()} | unseen


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.0f}"
