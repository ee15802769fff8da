"""`vrex size power`: print the power of mapped units on a recorded trace."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from openvrex.golden.function_params import ReSVParams, check
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.emit import UNITS, Emitted, params_of
from openvrex.hdl.emit_cache import emitted
from openvrex.hdl.params import CLOCK, SystemParams
from openvrex.hdl.retrieval.dre import Dre
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.scripts.size import mapped_units
from openvrex.synth import flow, opensta, recorded
from openvrex.synth.opensta_power import TOLERANCE, compared
from openvrex.synth.power import Power
from openvrex.synth.technology import node as known_node
from openvrex.tb.library.runner import ROOT, BenchError
from openvrex.tb.library.trace_check import products, vectors, verify

FIXTURE = ROOT / "tb" / "fixtures" / "world.safetensors"


def command(
    unit: Annotated[
        list[str], typer.Argument(help=f"Any of {', '.join(UNITS)}; or folders of `vrex generate` with one of them.")
    ],
    preset: console.Preset = "core",
    param: console.Param = None,
    trace: console.Trace = FIXTURE,
    queries: console.Queries = 1,
    th_hd: console.ThHd = None,
    ratio: console.Ratio = None,
    centre: console.Centre = None,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    gated: mapped_units.Gated = flow.GATED,
    mhz: Annotated[float, typer.Option(help="Clock in MHz.")] = CLOCK / 1e6,
    node: Annotated[int, typer.Option(help="Process node in nm to which the figures are scaled.")] = 14,
    cycles: Annotated[int, typer.Option(help="Evaluate this many cycles of each run, spread over all of it.")] = 4096,
    with_sta: Annotated[
        bool,
        typer.Option("--opensta", help="Let OpenSTA (`sta`) find the logic's power too, and print the difference."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", parser=console.folder, help="Folder for OpenSTA's netlists, libraries and the run as SAIF."),
    ] = None,
    json: console.Json = False,
) -> None:
    """Print the power of units at work on a trace.

    Verilator simulates the units, and the command counts the toggles of every net in their netlists.
    """
    check(with_sta or not output, "-o", str(output), "is for the files of --opensta; add it")
    check(bool(liberty) or not with_sta, "--opensta", with_sta, "needs a library with power tables; add --liberty")
    if with_sta:
        opensta.command()
    check(mhz > 0, "mhz", mhz, "must be more than 0")
    check(cycles >= 2, "cycles", cycles, "must be at least 2")
    known_node(node)
    flow.check_mapping(liberty, effort, target, gated)
    designs = [console.chosen(name, preset, param) for name in unit]
    for name, *_ in designs:
        check(name in UNITS, "unit", name, f"must be one of {', '.join(UNITS)}, or a generated folder of one")
    data = Trace.load(trace)
    done = {}
    try:
        for name, system, made in designs:
            with Spinner(f"{name} on {trace.name}", json):
                options = {"liberty": liberty, "effort": effort, "target": target, "gated": gated}
                sta = {"with_opensta": with_sta, "folder": output and output / name}
                f = console.function(system.core.dre, th_hd, ratio, centre)
                done[name] = power(
                    name, system, data, options, queries, f, made=made, mhz=mhz, node=node, cycles=cycles, **sta
                )
    except BenchError as e:
        console.err.print(f"[red]error:[/] {escape(str(e))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    mapped_units.note_gates(liberty, gated)
    if json:
        console.print_json({"preset": preset, "trace": trace.name, "units": {n: p.report() for n, p in done.items()}})
    else:
        console.out.print(table(done, f"Power on {trace.name} ({preset}), mapped for {effort}"))
        if with_sta:
            console.out.print(beside(done))


def power(
    unit: str,
    system: SystemParams,
    trace: Trace,
    options: dict,
    queries: int = 1,
    f: ReSVParams | None = None,
    made: Emitted | None = None,
    **measured,
) -> Power:
    """Power of `unit` while it does its part of ReSV on every recorded layer of a trace, at full rate.

    The units of the DRE are mapped apart; so the power of each one in the same runs is known.
    f : function parameters, of the hardware if not given · made : Verilog to take instead of generating it
    options : of `synth.flow.netlists`
    measured : more arguments of `synth.recorded.power`
    Raises: `SynthError`, `TraceError`; `BenchError` if the RTL does not do what golden does.
    """
    own, p = params_of(unit, system), system.core.dre
    f = f or p.function()

    def play(recorder: Emitted) -> None:
        if unit == "dpe":
            outcomes = products(trace, own, recorder, f, queries)
        elif unit == "vpe":
            outcomes = vectors(trace, own, recorder, f, queries)
        else:
            outcomes = verify(unit, trace, p, recorder, f, queries)
        wrong = [f"{o.table}: {d}" for o in outcomes for d in o.differences]
        if wrong:
            raise BenchError(f"{unit}: {wrong[0]}")

    leaves = tuple(f"dre__{name}" for name, *_ in Dre.units(p)) if unit == "dre" else ()
    return recorded.power(made or emitted(unit, own, flow.BUILD), play, options, leaves, **measured)


def table(powers: dict[str, Power], title: str) -> Table:
    """A table with one row for each unit."""
    one = next(iter(powers.values()))
    where = f"{one.node} nm" if one.library_node else "the library's own node"
    title += f" with {', '.join(one.library)}; {where}, {one.mhz:g} MHz; before layout: no wires, glitches, clock tree"
    heads = ("unit", "cycles", "toggles a cycle", "nets pJ", "cells pJ", "clock pJ", "logic mW", "leakage mW")
    out = Table(*heads, "memory mW", "total mW", "from", "to", "idle mW", title=title)
    lines = [line for unit, whole in powers.items() for line in ((unit, whole), *_split(unit, whole))]
    for name, p in lines:
        top = p.modules[-1]
        toggles = sum(m.instances * m.toggles for m in p.modules)
        parts = (p.energy(n) for n in ("switching", "internal", "clock"))
        total = p.total
        milliwatts = (
            p.dynamic_mw.value,
            p.leakage_mw.value,
            p.memory_mw.value,
            total.value,
            total.low,
            total.high,
            p.idle_mw,
        )
        numbers = [*(f"{x:,.2f}" for x in parts), *(f"{x:,.3f}" for x in milliwatts)]
        out.add_row(name, f"{top.cycles:,}", f"{toggles:,.0f}", *numbers)
    return out


def beside(powers: dict[str, Power]) -> Table:
    """A table of the logic's power beside OpenSTA's, with a row for each kind of cells of a unit."""
    one = next(iter(powers.values()))
    title = f"Logic beside OpenSTA, with {', '.join(one.library)}, {one.mhz:g} MHz; without nets of ports and memories"
    heads = ("unit", "cells", "ours µW", "OpenSTA µW", "difference %", "nets %", "inside %", "leakage %")
    out = Table(*heads, "with our slew and loads %", title=title)
    for unit, p in powers.items():
        assert p.beside is not None  # measured with OpenSTA
        for kind, row in compared(p.beside).items():
            marks = ["-" if x is None else f"{x:+.2f}" for x in row.differences]
            judged = row.differences[-1] or 0.0  # the others' causes are known: slews and loads
            if kind == "all" and abs(judged) > TOLERANCE:
                marks[-1] = f"[red]{marks[-1]}[/]"
            out.add_row(unit if kind == "all" else "", kind, f"{row.ours:,.3f}", f"{row.opensta:,.3f}", *marks)
    return out


def _split(unit: str, p: Power) -> list[tuple[str, Power]]:
    """The power of each unit in the DRE, and of the logic between them."""
    parts = p.parts().items() if unit == "dre" else ()
    return [("  the join" if n == unit else f"  its {n.removeprefix('dre__')}", q) for n, q in parts]
