"""`vrex dev bench`: compare area, delay, cycles and Verilog size of every unit and preset with the accepted figures."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import READINGS, check
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.emit import BESIDE, UNITS, emit, params_of
from openvrex.hdl.params import PRESETS, CoreParams, SystemParams, preset
from openvrex.scripts import console
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import engines
from openvrex.scripts.simulate import dre_command
from openvrex.synth import flow
from openvrex.synth.structure import tokens
from openvrex.synth.table3 import BLOCKS

ROOT = Path(__file__).parents[2]
BUDGETS = ROOT / "tb/budgets.json"
TRACE = ROOT / "tb/fixtures/world.safetensors"  # 8 frames of a real stream, three layers of a real decoder
# Noise of mapping: renamed signals change area by up to 1 %. They change the longest path by up to 8 %, because the
# mapping is for area; look at such a figure before you accept it.
SLACK = 0.01
MEASURED = (*UNITS, *BLOCKS, *BESIDE)
# figure -> (meaning, +1 if more is better, -1 if less is)
FIGURES = {
    "logic_ge": ("gate equivalents of cells and registers, embedded library", -1),
    "memory_bits": ("bits of memories", -1),
    "delay_tau": ("longest path, embedded library", -1),
    "verilog_tokens": ("words, numbers and signs of the Verilog: a longer name costs nothing", -1),
    "over_bound": ("HCU: cycles over tokens x clusters x N_hp / (h x w)", -1),
    "latency": ("WTU: cycles of a row over ceil(clusters / N_WTU-w), median", -1),
    "interval": ("WTU: cycles between rows, over the same", -1),
    "burst_bytes": ("KVMU: mean burst", 1),
    "useful": ("KVMU: useful bytes over fetched bytes", 1),
    "utilisation": ("DPE, VPE: busy share of their steps on the trace's shapes, mean", 1),
}
CYCLES = {
    "hcu": {"over_bound": "hcu"},
    "wtu": {"latency": "{selection}_latency", "interval": "{selection}_interval"},
    "kvmu": {"burst_bytes": "burst", "useful": "useful"},
}


def command(
    units: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(MEASURED)}; all by default.")] = None,
    presets: Annotated[
        list[str] | None, typer.Option("--preset", help="Preset; all by default. May be repeated.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Accept the measured figures as the new budgets.")] = False,
    as_json: console.Json = False,
) -> None:
    """Compare area, delay and cycles of units with budgets.

    The budgets are the accepted figures of every unit and preset. Exit code 1 if a figure is worse or missing.
    """
    for name in presets or ():
        preset(name)  # refuses an unknown name
    for unit in units or ():
        check(unit in MEASURED, "unit", unit, f"must be one of {', '.join(MEASURED)}")
    todo = [(p, u) for p in presets or PRESETS for u in units or MEASURED]
    measured: dict[str, float] = {}
    with Bar() as progress:
        bar = progress.add_task("", total=len(todo))
        for name, unit in todo:
            progress.update(bar, description=f"{name} {unit}")
            measured |= {f"{name}.{unit}.{k}": v for k, v in measure(unit, preset(name)).items()}
            progress.advance(bar)
    budgets = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    bad = {k: why for k, v in measured.items() if (why := verdict(k, v, budgets.get(k)))}
    if accept:
        whole = not (units or presets)  # then figures that are no longer measured are dropped
        kept = measured if whole else budgets | measured
        write_atomically(BUDGETS, (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())
    if as_json:
        console.print_json({k: {"now": v, "budget": budgets.get(k), "fault": bad.get(k)} for k, v in measured.items()})
    else:
        _print(measured, budgets, bad)
    if bad and not accept:
        console.err.print(f"[red]error:[/] {len(bad)} figures off their budgets; accept with `vrex dev bench --accept`")
        raise typer.Exit(1)


def verdict(key: str, now: float, budget: float | None) -> str:
    """Why the figure `key` ("preset.unit.figure") fails; "" if it is no worse than its budget, within SLACK."""
    better = FIGURES[key.rpartition(".")[2]][1]
    if budget is None:
        return "has no budget"
    worse = (budget - now) * better
    return f"{now:,.10g} is worse than {budget:,.10g}" if worse > SLACK * abs(budget) else ""


def measure(unit: str, system: SystemParams) -> dict[str, float]:
    """The figures of `unit`, with the keys of `FIGURES`. A unit that two presets share is measured once."""
    return dict(_hardware(unit, params_of(unit, system))) | _speed(unit, system.core)


@functools.cache
def _hardware(unit: str, own) -> dict[str, float]:
    made = emit(unit, own)
    area = flow.synthesise(made.verilog, made.top, leaves=tuple(made.manifest.get("leaves", ())))
    return {
        "logic_ge": round(area.total_ge, 1),
        "memory_bits": area.memory_bits,
        "delay_tau": round(area.timing.delay, 2) if area.timing else 0.0,
        "verilog_tokens": len(tokens(made.verilog)),
    }


def _speed(unit: str, core: CoreParams) -> dict[str, float]:
    if unit in CYCLES:
        keys = {name: key.format(selection=core.dre.wtu.selection) for name, key in CYCLES[unit].items()}
        return {name: round(_retrieval(core)[key], 4) for name, key in keys.items()}
    shares = [share for name, _, share in _engines(core) if name.startswith(f"{unit.upper()}:")]
    return {"utilisation": round(sum(shares) / len(shares), 4)} if shares else {}


@functools.cache
def _retrieval(core: CoreParams) -> dict[str, float]:
    """Geometric means of `dre_command.measure` over the HC tables of the trace.

    At the paper's point: its loose clusters fetch long bursts from this short trace.
    """
    paper, own = READINGS["paper"], core.dre.function()
    near = paper.th_hd_of(own.n_hp)
    f = replace(own, th_hd=near, ratio_q16=paper.ratio_q16, centre=paper.centre, scope=paper.scope)
    found = [dre_command.measure(table, core.dre, f) for table in dre_command.tables(Trace.load(TRACE), f, 2)]
    return {k: math.prod(x[k] for x in found) ** (1 / len(found)) for k in found[0]}


@functools.cache
def _engines(core: CoreParams) -> list[tuple[str, int, float]]:
    return engines.utilisation(Trace.load(TRACE), core)


def _print(measured: dict[str, float], budgets: dict[str, float], bad: dict[str, str]) -> None:
    table = Table("figure", "now", "budget", "change", "", title="Figures against their budgets")
    for key, now in measured.items():
        budget = budgets.get(key)
        change = f"{now / budget - 1:+.1%}" if budget else "-"
        table.add_row(key, f"{now:,.10g}", "-" if budget is None else f"{budget:,.10g}", change, bad.get(key, "ok"))
    console.out.print(table)
    for name, (what, better) in FIGURES.items():
        console.out.print(f"{name}: {what}; {'more' if better > 0 else 'less'} is better", highlight=False)
