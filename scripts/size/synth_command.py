"""`vrex synth`: area and timing per unit."""

import glob
import json
import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from golden.atomic_files import write_atomically
from golden.function_params import ParamError, check
from hdl import emit, params
from scripts import console
from scripts.quantity import number
from synth import agreement, emission, flow, fpga, opensta, table3
from synth.liberty import SynthError
from synth.technology import NODES, Estimate

CORE = "core"


def command(
    unit: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join((*emit.UNITS, *table3.BLOCKS))}, core; the units inside of it are listed too."
        ),
    ] = "dre",
    preset: console.Preset = "core",
    assign: console.Param = None,
    liberty: Annotated[
        list[Path] | None, typer.Option(help="Liberty file, .gz allowed; repeat for a library in several files.")
    ] = None,
    dont_use: Annotated[list[str] | None, typer.Option(help="Pattern of cells that mapping must not use.")] = None,
    macro_bits: Annotated[int, typer.Option(min=0, help="Smaller memories are built of flip-flops.")] = flow.MACRO_BITS,
    effort: Annotated[str, typer.Option(help="What to map for: area or speed.")] = "area",
    target: Annotated[
        float | None, typer.Option(metavar="PS", help="With --effort speed: delay between registers to size gates for.")
    ] = None,
    path: Annotated[bool, typer.Option("--path", help="Print the unit's longest path.")] = False,
    beside_paper: Annotated[
        bool, typer.Option("--table3", help="With unit core: print its area beside Table III of V-Rex.")
    ] = False,
    power: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --table3: output of vrex power dre vpe dpe --json."),
    ] = None,
    node: Annotated[int, typer.Option(help=f"Process of --table3, nm: {', '.join(map(str, NODES))}.")] = 14,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Also measure with the library in these files and print the agreement."),
    ] = None,
    with_sta: Annotated[
        bool, typer.Option("--opensta", help="Also time units without leaves with OpenSTA, if `sta` is installed.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option("--fpga", help=f"Place and route on an FPGA instead: {', '.join(fpga.DEVICES)}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable results on stdout.")] = False,
    out: Annotated[Path | None, typer.Option("-o", parser=console.folder, help="Also write area.json there.")] = None,
) -> None:
    """Map units to gates and print their area, longest path and highest clock; in µm² and MHz with --liberty."""
    if device:
        _place(unit, preset, assign or [], device, as_json)
        return
    done: dict[str, flow.Area] = {}
    others: dict[str, dict[str, flow.Area]] = {}
    powers: dict[str, Estimate] = {}
    errors: list[str] = []
    code = 2
    try:
        unit, chosen, generated = console.chosen(unit, preset, assign, alone=True)
        valid = (*emit.UNITS, *table3.BLOCKS, CORE)
        check(unit in valid, "unit", unit, f"must be one of {', '.join(valid)}")
        check(not (generated and unit == CORE), "unit", unit, "is measured unit by unit: name it, not its folder")
        check(unit == CORE or not beside_paper, "--table3", unit, "is of the whole core: vrex synth core --table3")
        powers = _powers(power) if power else {}
        check(node in NODES, "--node", node, f"must be one of {', '.join(map(str, NODES))}")
        flow.check_mapping(liberty, effort, target)
        options = {"liberty": liberty, "macro_bits": macro_bits, "dont_use": tuple(dont_use or ())}
        options |= {"effort": effort, "target": target}
        files = {pattern: _files(pattern) for pattern in compare or []}
        units = [unit] if generated else _units(unit)
        _measure(units, chosen, options, done, errors, generated)
        for pattern, paths in files.items():
            others[pattern] = {}
            _measure(units, chosen, options | {"liberty": paths}, others[pattern], errors, generated)
    except (ParamError, SynthError) as e:
        errors.append(str(e))
    except KeyboardInterrupt:
        code = 130
        errors.append("interrupted; finished units are kept and will not be run again")
    rows = {u: done[u] for u in _units(unit) if u in done}
    untimed = [a.untimed for a in rows.values() if a.untimed]
    report = {"preset": preset, "assignments": assign or [], "units": {u: a.report() for u, a in rows.items()}}
    lines = table3.table3(rows, powers, node) if beside_paper and set(rows) >= set(table3.UNITS) else {}
    if lines:
        report["table3"] = {"node": node, "rows": {n: asdict(r) | {"area": asdict(r.area)} for n, r in lines.items()}}
    agreements = [_agreement(rows, measured) for measured in others.values()] if rows and not errors else []
    if agreements:
        report["agreement"] = [{k: asdict(a) | {"worst": a.worst} for k, a in x.items()} for x in agreements]
    timed: dict[str, opensta.StaPath] = {}
    if with_sta and rows and not errors:
        try:
            timed = _time(rows, chosen, options, generated)
        except SynthError as e:
            errors.append(str(e))
        report["opensta"] = {u: asdict(p) for u, p in timed.items()}
    text = json.dumps(report, indent=1)
    if as_json and not errors:
        typer.echo(text)
    elif rows and not as_json:
        _print(rows, rows.get(unit))
        if path and unit in rows:
            _print_paths(rows[unit])
        if lines:
            _print_table3(lines, next(iter(rows.values())), node)
        if timed:
            _print_opensta(rows, timed)
        for pattern, found in zip(others, agreements, strict=False):
            _print_agreement(Path(pattern).name, found)
    if out and not errors:
        write_atomically(out / "area.json", text.encode())
    for error in dict.fromkeys(errors + untimed):  # a bad library is the same fault in every unit
        console.error(error)
    if errors or untimed:
        raise typer.Exit(code)


def _place(unit: str, preset: str, assign: list[str], device: str, as_json: bool) -> None:
    """A unit and those inside of it on an FPGA; what was placed is printed though another failed."""
    placed: dict[str, fpga.Placed] = {}
    errors = []
    with console.one_line_errors():
        unit, chosen, generated = console.chosen(unit, preset, assign)
        valid = (*emit.UNITS, *table3.BLOCKS)
        check(unit in valid, "unit", unit, f"must be one of {', '.join(valid)}")
        check(device in fpga.DEVICES, "--fpga", device, f"must be one of {', '.join(fpga.DEVICES)}")
        with Progress(console=console.err, transient=True, disable=not console.err.is_terminal) as progress:
            for name in progress.track([unit] if generated else _units(unit), description=f"{device}: place and route"):
                made = generated or emission.emitted(name, emit.params_of(name, chosen), flow.BUILD)
                try:
                    placed[name] = fpga.place(made.verilog, made.top, device)
                except SynthError as e:
                    errors.append(str(e))
    if as_json:
        console.print_json(
            {"preset": preset, "assignments": assign, "units": {n: p.report() for n, p in placed.items()}}
        )
    elif placed:
        heads = [
            "unit",
            "LUTs",
            "flip-flops",
            "DSPs",
            "block RAMs",
            "MHz",
            "longest path ns",
            "of it logic",
            "from",
            "to",
        ]
        body = []
        for name, p in placed.items():
            used = (p.luts, p.flip_flops, p.dsps, p.block_rams)
            times = (f"{p.mhz:.1f}", f"{p.path_ns:.1f}", f"{p.logic_ns:.1f}")
            body.append([name, *(f"{x:,}" for x in used), *times, p.start, p.end])
        has = ", ".join(f"{n:,} {k.replace('_', ' ')}" for k, n in next(iter(placed.values())).available.items())
        _table(f"On {device} after place and route ({has})", heads, body)
    for error in dict.fromkeys(errors):
        console.error(error)
    if errors:
        raise typer.Exit(2)


def _powers(file: Path) -> dict[str, Estimate]:
    """Powers of the rows of Table III, from a file that `vrex power --json` wrote."""
    try:
        units = json.loads(file.read_text())["units"]
    except OSError as e:
        raise ParamError(f"--power={str(file)!r}: cannot read it: {e.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ParamError(f"--power={str(file)!r}: is no output of vrex power UNITS --json") from None
    return table3.powers_of(units)


def _files(pattern: str) -> list[Path]:
    """The files of a library, by a pattern."""
    found = sorted(map(Path, glob.glob(pattern)))
    check(bool(found), "--compare", pattern, "names no file; quote a pattern so that the shell leaves it alone")
    return found


def _agreement(rows: dict[str, flow.Area], others: dict[str, flow.Area]) -> dict[str, agreement.Agreement]:
    """Of area and delay, where at least two units have them."""
    pairs = zip(("area", "delay"), agreement.figures(rows), agreement.figures(others), strict=True)
    return {k: agreement.agreement(a, b) for k, a, b in pairs if len(a.keys() & b.keys()) > 1}


def _units(unit: str) -> list[str]:
    """The rows of a report: a unit comes after those inside of it, whose parameters are part of its own."""
    if unit == CORE:  # its units side by side
        return list(table3.UNITS)
    if unit not in emit.UNITS:
        return [unit] if unit in table3.BLOCKS else []
    return [*(u for u in emit.UNITS if emit.UNITS[u][2].startswith(emit.UNITS[unit][2] + ".")), unit]


def _measure(
    units: list[str],
    chosen: params.SystemParams,
    options: dict,
    done: dict[str, flow.Area],
    errors: list[str],
    generated: emit.Emitted | None,
) -> None:
    """Fill `done` unit by unit, and `errors` with what stopped the others; Ctrl-C ends those that run.

    generated : the only unit, as it lies in a folder
    """
    jobs: dict[Future, str] = {}
    pool = ThreadPoolExecutor(len(units))  # which wait for each other: `synth.mapping` has few at once

    def collect(futures) -> None:
        for job in futures:
            unit = jobs.pop(job)
            try:
                done[unit] = job.result()
            except SynthError as e:
                errors.append(str(e))

    try:
        with console.err.status("") as status:
            for unit in units:
                status.update(f"generating {unit}")
                if generated:
                    made, parts = generated, {"leaves": tuple(generated.manifest["leaves"])}
                else:
                    made, parts = table3.design(unit, chosen, flow.BUILD)
                jobs[pool.submit(flow.synthesise, made.verilog, made.top, **parts, **options)] = unit
                collect([j for j in jobs if j.done()])
            while jobs:
                status.update(f"synthesising {', '.join(jobs.values())}")
                collect(wait(jobs, return_when=FIRST_COMPLETED).done)
    finally:
        collect([j for j in jobs if j.done() and not j.cancelled()])  # interrupted just after they ended
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(job.done() for job in jobs):  # a thread may be about to start its run
            flow.stop()
            time.sleep(0.05)


def _time(
    rows: dict[str, flow.Area], chosen: params.SystemParams, options: dict, generated: emit.Emitted | None
) -> dict[str, opensta.StaPath]:
    """OpenSTA's longest path of each unit that has one and no leaves."""
    out = {}
    for unit, area in rows.items():
        if area.timing and not area.leaves:
            made = generated or emission.emitted(unit, emit.params_of(unit, chosen), flow.BUILD)
            netlists, library = flow.netlists(made.verilog, made.top, **options)
            out[unit] = opensta.longest(made.top, netlists[made.top]["netlist"], library)
    return out


def _print(rows: dict[str, flow.Area], asked: flow.Area | None) -> None:
    """Table of the units, then the leaves and memories of the unit asked for."""
    one = next(iter(rows.values()))
    unit = f"1 GE = {one.unit_cell}" + (f", {one.unit_area:g} µm²" if one.microns else "; 1 τ = a fifth of FO4")
    heads = ["unit", "comb GE", "reg GE", "total GE", "registers", "memory bits"]
    heads += ["µm²", "delay ps", "levels", "MHz"] if one.microns else ["delay τ", "levels"]
    body = []
    for name, a in rows.items():
        cells = [f"{x:,.0f}" for x in (a.comb_ge, a.reg_ge, a.total_ge, a.registers, a.memory_bits)]
        cells += [f"{a.total_area:,.1f}"] * a.microns
        cells += [f"{a.timing.delay:,.0f}", f"{a.timing.levels}"] if a.timing else ["-", "-"]
        cells += [_megahertz(a)] * a.microns
        body.append([name, *cells])
    _table(f"Area and timing with {_library(one)}, mapped for {one.effort} ({unit})", heads, body)
    if asked and asked.leaves:
        split = [(x.name, x.instances, x.area) for x in asked.leaves]
        rest = asked.total_ge - sum(n * a.total_ge for _, n, a in split)
        body = [[name, f"{n:,}", f"{a.total_ge:,.0f}", f"{n * a.total_ge:,.0f}"] for name, n, a in split]
        body.append(["the rest", "1", f"{rest:,.0f}", f"{rest:,.0f}"])
        _table(f"Leaves of {asked.top}", ["leaf", "instances", "GE each", "GE"], body)
    if asked and asked.memories:
        heads = ["memory", "count", "words", "bits a word", "ports", "bits"]
        body = [
            [m.name, f"{m.count:,}", f"{m.depth:,}", f"{m.width:,}", _ports(m), f"{m.bits:,}"] for m in asked.memories
        ]
        _table(f"Memories of {asked.top}, not in the area", heads, body)


def _ports(memory: flow.Memory) -> str:
    return "1RW" if memory.shared else f"{memory.read_ports}R {memory.write_ports}W"


def _print_paths(area: flow.Area) -> None:
    """The longest path of each kind, and the steps of the longest of all."""
    if not area.timing or not area.timing.paths:
        return
    unit = {"ps": "ps", "tau": "τ"}[area.timing.unit]
    body = [[p.kind, f"{p.delay:,.1f}", f"{p.levels}", p.module, p.start, p.end] for p in area.timing.paths]
    _table(f"Longest paths of {area.top}", ["kind", unit, "levels", "module", "from", "to"], body)
    path = area.timing.paths[0]
    console.out.print(f"{path.start} → {' → '.join(path.through)} → {path.end}", highlight=False, markup=False)
    body = [["", path.start, "", "", "", ""]]
    body += [[s.cell, s.instance, s.net, s.edge, f"{s.delay:,.1f}", f"{s.arrival:,.1f}"] for s in path.steps]
    body.append(["setup", path.end, "", "", f"{path.setup:,.1f}", f"{path.delay:,.1f}"])
    _table(f"{path.kind} in {path.module}", ["cell", "instance", "signal", "edge", unit, "at"], body)


def _print_table3(rows: dict[str, table3.Row], area: flow.Area, node: int) -> None:
    """Table III of the paper and ours, then systems of several cores."""
    core, paper = rows["core"], rows["core"].paper_area
    title = f"Table III at {node} nm, mm², with {_library(area)}, mapped for {area.effort}"
    heads = ["unit", "paper", "%", "ours", "low to high", "%", "cells", "registers", "memories", "KB"]
    heads += ["paper mW", "%", "mW", "%"]
    body = []
    for r in rows.values():
        cells = [f"{r.paper_area:.4f}", f"{100 * r.paper_area / paper:.2f}"] if r.paper_area else ["-", "-"]
        cells += [f"{round(r.area.value, 4) + 0:.4f}", f"{r.area.low:.4f} to {r.area.high:.4f}"]
        cells.append(f"{100 * r.area.value / core.area.value:.2f}")
        cells += [f"{round(x.value, 4) + 0:.4f}" for x in (r.cells, r.registers, r.memories)] + [
            f"{r.bits / 8192:,.1f}"
        ]
        for mw, whole in (
            (r.paper_power, core.paper_power),
            (r.power and r.power.value, core.power and core.power.value),
        ):
            cells += [f"{mw:,.2f}" if mw else "-", f"{100 * mw / whole:.2f}" if mw and whole else "-"]
        body.append([r.name, *cells])
    _table(title, heads, body)
    body = [
        [f"{n}", f"{mm2:.2f}", f"{n * core.area.value:.2f}", f"{n * core.area.low:.2f} to {n * core.area.high:.2f}"]
        for n, mm2 in table3.SYSTEMS.items()
    ]
    _table("Systems, mm²", ["cores", "paper", "ours", "low to high"], body)


def _print_opensta(rows: dict[str, flow.Area], timed: dict[str, opensta.StaPath]) -> None:
    """Longest paths of `synth.timing` beside OpenSTA's."""
    body = []
    for unit, path in timed.items():
        own = rows[unit].timing.delay
        delays = (f"{own:,.2f}", f"{path.delay:,.2f}", f"{100 * (own / path.delay - 1):+.3f}" if path.delay else "-")
        body.append([unit, *delays, path.start, path.end])
    unit = "ps" if next(iter(rows.values())).microns else "τ"
    _table("Longest paths and OpenSTA's", ["unit", unit, f"OpenSTA {unit}", "difference %", "from", "to"], body)


def _print_agreement(name: str, found: dict[str, agreement.Agreement]) -> None:
    """What one library makes of every unit, scaled once, over what the other does."""
    heads = ["of", "factor", "rank correlation", "worst", *found["area"].names] if found else []
    body = []
    for what, a in found.items():
        errors = dict(zip(a.names, a.errors, strict=True))
        cells = [f"{100 * errors[n]:+.1f}" if n in errors else "-" for n in heads[4:]]
        body.append([what, number(a.factor, 4), f"{a.rank:.3f}", f"{100 * a.worst:.1f}", *cells])
    if body:
        _table(f"Agreement with {name}: per cent above it after one factor", heads, body)


def _library(area: flow.Area) -> str:
    """Name of a library; of one in several files what these have in common."""
    names = area.library
    return names[0] if len(names) == 1 else f"{os.path.commonprefix(names).strip('_-.')} ({len(names)} files)"


def _megahertz(area: flow.Area) -> str:
    return f"{area.timing.fmax_mhz:,.0f}" if area.timing and area.timing.fmax_mhz else "-"


def _table(title: str, heads: list[str], body: list[list[str]]) -> None:
    """A table whose columns of numbers stand to the right."""
    table = Table(title=title)
    for head, column in zip(heads, zip(*body, strict=True), strict=True):
        number = all(not x.strip("0123456789.,-") for x in column)
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in body:
        table.add_row(*row)
    console.out.print(table)
