"""Units mapped to gates: what the commands for area, timing and Table III share."""

import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from openvrex.golden.function_params import ParamError, check
from openvrex.hdl import emit
from openvrex.hdl.params import SystemParams
from openvrex.scripts import console
from openvrex.scripts.progress import Spinner
from openvrex.synth import flow, table3
from openvrex.synth.liberty import SynthError

CORE = "core"  # its units side by side
UNITS = (*emit.UNITS, *table3.BLOCKS)  # with parameters of their own


def valid() -> list[str]:
    """What can be mapped."""
    return [*UNITS, *emit.BESIDE, *table3.AROUND, CORE, table3.JOINED]


Liberty = Annotated[
    list[Path] | None,
    typer.Option("--liberty", help="Liberty file (may be .gz); repeat it for a library in several files."),
]
Effort = Annotated[str, typer.Option("--effort", help="Map for least area or for least delay: area or speed.")]
Target = Annotated[
    float | None,
    typer.Option(
        "--target", metavar="PS", help="With --effort speed: size the gates for this delay between registers."
    ),
]
DontUse = Annotated[list[str] | None, typer.Option("--dont-use", help="Pattern of cells that mapping must not use.")]
MacroBits = Annotated[int, typer.Option("--macro-bits", min=0, help="Build memories with fewer bits of flip-flops.")]
Gated = Annotated[
    int,
    typer.Option(
        "--gated", metavar="N", help="Gate the clock of N or more flip-flops that share an enable; 0: no clock gates."
    ),
]
Unit = Annotated[
    str,
    typer.Argument(
        help=f"One of {', '.join(valid())}, or a folder of `vrex generate`. The units inside of it are listed too. "
        f"{CORE}: all units side by side; {table3.JOINED}: joined, so that paths go through several of them."
    ),
]


@dataclass
class Mapped:
    """The results of mapping a unit and those inside of it to gates.

    generated : the Verilog of a folder, then the only unit · options : of `flow.synthesise`
    done : areas of the mapped units · errors : why other units failed · code : exit code after an error
    """

    unit: str
    system: SystemParams
    generated: emit.Emitted | None
    options: dict[str, Any]
    done: dict[str, flow.Area] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    code: int = 2

    @property
    def rows(self) -> dict[str, flow.Area]:
        """The areas in the order of the report."""
        return {u: self.done[u] for u in units_of(self.unit) if u in self.done}

    def report(self, preset: str, assign: list[str] | None) -> dict[str, Any]:
        """The areas as JSON."""
        units = {u: a.report() for u, a in self.rows.items()}
        return {"preset": preset, "assignments": assign or [], "units": units}

    def end(self) -> None:
        """End the command with one line for each error; do nothing without an error."""
        for error in dict.fromkeys(self.errors):  # a bad library is the same error in every unit
            console.error(error)
        if self.errors:
            raise typer.Exit(self.code)


def mapped(
    unit: str,
    preset: str,
    assign: list[str] | None,
    liberty: list[Path] | None = None,
    effort: str = "area",
    target: float | None = None,
    dont_use: list[str] | None = None,
    macro_bits: int = flow.MACRO_BITS,
    gated: int = flow.GATED,
) -> Mapped:
    """Map a unit and those inside of it. Raises `ParamError` or `SynthError` before anything is mapped."""
    unit, system, generated = console.chosen(unit, preset, assign, alone=True)
    parts = "; others are measured by these parts of them" if unit in emit.ALL else ""
    check(unit in valid(), "unit", unit, f"must be one of {', '.join(valid())}{parts}")
    check(not (generated and unit == CORE), "unit", unit, "is measured unit by unit: name it, not its folder")
    flow.check_mapping(liberty, effort, target, gated)
    options = {"liberty": liberty, "macro_bits": macro_bits, "dont_use": tuple(dont_use or ()), "gated": gated}
    out = Mapped(unit, system, generated, options | {"effort": effort, "target": target})
    _map(out)
    if out.done:
        note_gates(liberty, gated, out.options["dont_use"])
    return out


def note_gates(liberty: list[Path] | None, gated: int, dont_use: tuple[str, ...] = ()) -> None:
    """Say in one line that clock gates were asked for, and that the library has none."""
    if gated and (library := flow.loaded(liberty, dont_use)).gate is None:
        names = ", ".join(library.names)
        console.err.print(f"{names}: has no clock gate for the rising edge; nothing is gated", soft_wrap=True)


def with_library(one: Mapped, liberty: list[Path]) -> Mapped:
    """Map the same units with another library."""
    out = replace(one, options=one.options | {"liberty": liberty}, done={}, errors=[])
    _map(out)
    return out


def units_of(unit: str) -> list[str]:
    """The units of a report, each one after those inside of it.

    A unit is inside of another one if its parameters are part of the parameters of that one. The table port is inside
    of the DRE, with which it shares all parameters.
    """
    if unit == CORE:
        return list(table3.UNITS)
    if unit not in emit.UNITS:
        return [unit] if unit in (*table3.BLOCKS, *emit.BESIDE, *table3.AROUND, table3.JOINED) else []
    inside = [u for u in emit.UNITS if emit.UNITS[u][2].startswith(emit.UNITS[unit][2] + ".")]
    return [*inside, *(["table_port"] if unit == "dre" else []), unit]


def _map(m: Mapped) -> None:
    """Fill `done` unit by unit, and `errors` with the reasons of the others. Ctrl-C stops running jobs."""
    try:
        _measure(m)
    except (ParamError, SynthError) as e:
        m.errors.append(str(e))
    except KeyboardInterrupt:
        m.code = 130
        m.errors.append("interrupted; finished units are kept and will not be run again")


def _measure(m: Mapped) -> None:
    units = [m.unit] if m.generated else units_of(m.unit)
    jobs: dict[Future[flow.Area], str] = {}
    pool = ThreadPoolExecutor(len(units))  # `synth.mapping` lets only a few run at once

    def collect(futures: list[Future[flow.Area]]) -> None:
        for job in futures:
            unit = jobs.pop(job)
            try:
                m.done[unit] = job.result()
            except SynthError as e:
                m.errors.append(str(e))

    try:
        with Spinner() as status:
            for unit in units:
                status.update(f"generating {unit}")
                parts: dict[str, Any]
                if m.generated:
                    made, parts = m.generated, {"leaves": tuple(m.generated.manifest["leaves"])}
                else:
                    made, parts = table3.design(unit, m.system, flow.BUILD)
                jobs[pool.submit(flow.synthesise, made.verilog, made.top, **parts, **m.options)] = unit
                collect([j for j in jobs if j.done()])
            while jobs:
                status.update(f"synthesising {', '.join(jobs.values())}")
                collect(list(wait(jobs, return_when=FIRST_COMPLETED).done))
    finally:
        collect([j for j in jobs if j.done() and not j.cancelled()])  # jobs that ended just before the interrupt
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(job.done() for job in jobs):  # a thread may be about to start its run
            flow.stop()
            time.sleep(0.05)


def library(area: flow.Area) -> str:
    """The name of a library; for several files the common start of their names."""
    names = area.library
    return names[0] if len(names) == 1 else f"{os.path.commonprefix(names).strip('_-.')} ({len(names)} files)"


def title(what: str, area: flow.Area, unit: str) -> str:
    """The title of a table: what it shows, the library, the effort and the unit of measure."""
    return f"{what} with {library(area)}, mapped for {area.effort} ({unit})"


def print_table(title: str, heads: list[str], body: list[list[str]]) -> None:
    """Print a table; columns of numbers are aligned to the right."""
    table = Table(title=title, min_width=min(len(title), console.out.width))  # so that the title is one line
    for head, column in zip(heads, zip(*body, strict=True), strict=True):
        number = all(not x.strip("0123456789.,-") for x in column)
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in body:
        table.add_row(*row)
    console.out.print(table)
