"""`vrex size timing`: print the longest path and the highest clock of units."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import Mapped, print_table
from openvrex.synth import flow, memory_times, opensta, table3
from openvrex.synth.flow import WithMemories
from openvrex.synth.liberty import SynthError
from openvrex.synth.memory_times import Macro
from openvrex.synth.technology import NODES
from openvrex.synth.timing import Timing


def command(
    unit: mapped_units.Unit = "dre",
    preset: console.Preset = "core",
    assign: console.Param = None,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    dont_use: mapped_units.DontUse = None,
    macro_bits: mapped_units.MacroBits = flow.MACRO_BITS,
    gated: mapped_units.Gated = flow.GATED,
    macro: Annotated[
        list[Path] | None,
        typer.Option(
            "--macro", help="Liberty file of memory macros, whose times replace the model's for memories of their size."
        ),
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(
            help=f"Node (nm) of the modelled memories: {', '.join(map(str, NODES))}; else the library's, by its FO4."
        ),
    ] = None,
    with_sta: Annotated[
        bool,
        typer.Option(
            "--opensta", help="Let OpenSTA (`sta`) time the units without leaves too, and print the difference."
        ),
    ] = False,
    as_json: console.Json = False,
) -> None:
    """Print the longest path and the highest clock of a unit.

    Delays are in τ (a fifth of an FO4 inverter) with the embedded library, in ps with --liberty; then the clock is in
    MHz. Access and setup times of memories are from --macro, else from the model, of 14 nm with the embedded library.
    The last tables show the times of memories, the longest path of each kind and the steps of the longest one.
    """
    check(node is None or node in NODES, "--node", node, f"must be one of {', '.join(map(str, NODES))}")
    macros = [m for path in macro or () for m in memory_times.read(path)]
    found = mapped_units.mapped(unit, preset, assign, liberty, effort, target, dont_use, macro_bits, gated)
    rows, failed = found.rows, bool(found.errors)
    report = found.report(preset, assign)
    timed: dict[str, WithMemories] = {}
    theirs: dict[str, opensta.StaPath] = {}
    if not failed:
        try:
            timed = _time(found, node, macros)
            if with_sta:
                theirs = _opensta(rows, timed)
                report["opensta"] = {u: asdict(p) for u, p in theirs.items()}
        except SynthError as e:
            found.errors.append(str(e))
            failed = True
    for name, one in timed.items():
        report["units"][name] |= _report(one)
    if as_json and not failed:
        typer.echo(json.dumps(report, indent=1))
    elif rows and not as_json:
        _print(rows, timed)
        if found.unit in timed:
            _print_memories(timed[found.unit])
            _print_paths(timed[found.unit])
        if theirs:
            _print_opensta(timed, theirs)
    found.errors += [a.untimed for a in rows.values() if a.untimed]
    found.end()


def _time(found: Mapped, node: int | None, macros: list[Macro]) -> dict[str, WithMemories]:
    """The timing with memories of each unit that has a timing."""
    out = {}
    with Spinner() as status:
        for unit, area in found.rows.items():
            if area.timing:
                status.update(f"timing {unit}")
                if found.generated:
                    made, parts = found.generated, {"leaves": tuple(found.generated.manifest["leaves"])}
                else:
                    made, parts = table3.design(unit, found.system, flow.BUILD)
                out[unit] = flow.with_memories(made.verilog, made.top, node, macros, **parts, **found.options)
    return out


def _opensta(rows: dict[str, flow.Area], timed: dict[str, WithMemories]) -> dict[str, opensta.StaPath]:
    """The longest path by OpenSTA, for each unit that has a path and no leaves."""
    out = {}
    for unit, one in timed.items():
        top = rows[unit].top
        if not rows[unit].leaves:
            out[unit] = opensta.longest(top, one.netlists[top]["netlist"], one.library, memories=one.times[top])
    return out


def _report(one: WithMemories) -> dict[str, Any]:
    """The timing with memories as JSON. Times of a macro are those at the smallest slew and load."""
    assert one.timing is not None
    times = {
        f"{module}.{name}": {
            "access": max(t.values[0][0] for t in x.access),
            "setup": max(t.values[0][0] for t in x.setup),
            "source": one.sources[module][name],
        }
        for module, own in one.times.items()
        for name, x in own.items()
    }
    return {"with_memories": one.timing.report(), "memory_node": one.node, "memory_times": times}


def _print(rows: dict[str, flow.Area], timed: dict[str, WithMemories]) -> None:
    """Print a table with one row for each unit."""
    one = next(iter(rows.values()))
    unit = "ps" if one.microns else "τ"
    heads = ["unit", f"without memories {unit}", f"with them {unit}", "levels", *["MHz"] * one.microns]
    body = []
    for name, a in rows.items():
        found = timed[name].timing if name in timed else None
        cells = ["-", "-", "-"]
        if a.timing and found:
            cells = [f"{a.timing.delay:,.0f}", f"{found.delay:,.0f}", f"{found.levels}"]
        body.append([name, *cells, *[_megahertz(found)] * a.microns])
    said = "before layout" if one.microns else "1 τ = a fifth of FO4"
    print_table(mapped_units.title("Timing", one, said), heads, body)


def _print_memories(one: WithMemories) -> None:
    """Print the times of each memory."""
    body = [
        [name, *(f"{x[k]:,.1f}" for k in ("access", "setup")), x["source"]]
        for name, x in _report(one)["memory_times"].items()
    ]
    if body:
        print_table(f"Memories, modelled at {one.node} nm", ["memory", "access", "setup", "times of"], body)


def _print_paths(one: WithMemories) -> None:
    """Print the longest path of each kind and the steps of the longest one."""
    if not one.timing or not one.timing.paths:
        return
    unit, paths = {"ps": "ps", "tau": "τ"}[one.timing.unit], one.timing.paths
    body = [[p.kind, f"{p.delay:,.1f}", f"{p.levels}", p.module, p.start, p.end] for p in paths]
    print_table("Longest paths, with memories", ["kind", unit, "levels", "module", "from", "to"], body)
    path = paths[0]
    console.out.print(f"{path.start} → {' → '.join(path.through)} → {path.end}", highlight=False, markup=False)
    body = [["", path.start, "", "", "", ""]]
    body += [[s.cell, s.instance, s.net, s.edge, f"{s.delay:,.1f}", f"{s.arrival:,.1f}"] for s in path.steps]
    body.append(["setup", path.end, "", "", f"{path.setup:,.1f}", f"{path.delay:,.1f}"])
    print_table(f"{path.kind} in {path.module}", ["cell", "instance", "signal", "edge", unit, "at"], body)


def _print_opensta(timed: dict[str, WithMemories], theirs: dict[str, opensta.StaPath]) -> None:
    """Print the longest paths of `synth.timing` beside those of OpenSTA."""
    body = []
    for unit, path in theirs.items():
        found = timed[unit].timing
        own = found.delay if found else 0.0
        delays = (f"{own:,.2f}", f"{path.delay:,.2f}", f"{100 * (own / path.delay - 1):+.3f}" if path.delay else "-")
        body.append([unit, *delays, path.start, path.end])
    unit = "τ" if next(iter(timed.values())).library.embedded else "ps"
    print_table("Longest paths and OpenSTA's", ["unit", unit, f"OpenSTA {unit}", "difference %", "from", "to"], body)


def _megahertz(found: Timing | None) -> str:
    return f"{found.fmax_mhz:,.0f}" if found and found.fmax_mhz else "-"
