"""`vrex size scan`: make a mapped unit's flip-flops scan chains, and count the faults that tests detect."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.hdl import emit, emit_cache
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.scripts.size import mapped_units
from openvrex.scripts.size.mapped_units import UNITS, print_table
from openvrex.synth import faults, flow, opensta, scan
from openvrex.synth.liberty import SynthError


def command(
    unit: Annotated[str, typer.Argument(help=f"One of {', '.join(UNITS)}, or a folder of `vrex generate`.")],
    preset: console.Preset = "core",
    assign: console.Param = None,
    liberty: mapped_units.Liberty = None,
    effort: mapped_units.Effort = "area",
    target: mapped_units.Target = None,
    gated: mapped_units.Gated = flow.GATED,
    chains: Annotated[int, typer.Option("--chains", help="Number of scan chains.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of random patterns.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("-o", parser=console.folder, help="Folder for the netlist's Verilog and for chains.json."),
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Add scan chains to a mapped unit, and count its faults.

    The unit is flattened; memories are outside. Every flip-flop joins a chain from port scan_in to scan_out, and
    scan_enable lets them shift. Stuck-at faults are detected by random patterns, then by SAT, or proved untestable.
    """
    unit, system, generated = console.chosen(unit, preset, assign, alone=True)
    check(unit in UNITS, "unit", unit, f"must be one of {', '.join(UNITS)}")
    try:
        flow.check_mapping(liberty, effort, target, gated)
        with Spinner() as status:
            status.update(f"synthesising {unit}")
            made = generated or emit_cache.emitted(unit, emit.params_of(unit, system), flow.BUILD)
            done, library = flow.netlists(made.verilog, made.top, liberty, effort=effort, target=target, gated=gated)
            found = scan.insert(made.top, done[made.top]["netlist"], library, chains)
            if out:
                _write(out, made.top, found)
            status.update(f"searching tests of {unit}")
            tested = faults.coverage(found.netlist, library, seed)
    except SynthError as e:
        console.error(str(e))
        raise typer.Exit(2) from None
    ge = library.unit.area or 1.0
    report = {
        "flip_flops": sum(map(len, found.chains)),
        "chains": len(found.chains),
        "length": max(map(len, found.chains)),
        "kge_without": found.before / ge / 1000,
        "kge": found.area / ge / 1000,
        **asdict(tested),
        "coverage": tested.coverage,
    }
    if as_json:
        console.print_json({"preset": preset, "assignments": assign or [], "unit": unit, "effort": effort} | report)
    else:
        _print(unit, ", ".join(library.names), report)


def _write(folder: Path, top: str, found: scan.Scan) -> None:
    """The netlist's Verilog, and the instances of each chain with the signals that they hold."""
    text, names, _ = opensta.verilog(top, found.netlist, named=True)
    instance = {name: f"u{i}" for i, (name, *_) in enumerate(found.netlist["cells"])}
    chains = [[[instance[name], names[instance[name]]] for name in chain] for chain in found.chains]
    write_atomically(folder / f"{top}.v", text.encode())
    write_atomically(folder / "chains.json", (json.dumps(chains, indent=1) + "\n").encode())


def _print(unit: str, library: str, r: dict[str, Any]) -> None:
    more = 100 * (r["kge"] / r["kge_without"] - 1)
    sheet = [
        ("flip-flops", f"{r['flip_flops']:,} in {r['chains']} chains of at most {r['length']:,}"),
        ("area", f"{r['kge_without']:,.2f} kGE, with scan {r['kge']:,.2f} ({more:.1f} % more)"),
        ("stuck-at faults", f"{r['faults']:,}"),
        ("- by random patterns", f"{r['by_random']:,}, by {r['random_patterns']:,} patterns"),
        ("- by SAT", f"{r['by_sat']:,}, by {r['sat_patterns']:,} patterns"),
        ("- proved untestable", f"{r['untestable']:,}"),
        ("- undetected", f"{r['undetected']:,}"),
        ("coverage", f"{100 * r['coverage']:.2f} % of the testable faults"),
    ]
    print_table(f"{unit} with scan chains, {library}", ["what", "figure"], [list(row) for row in sheet])
