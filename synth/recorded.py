"""Measures the power of a unit while it runs: maps it, records a simulation of its RTL, and prices the toggles."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openvrex.hdl.emit import Emitted
from openvrex.synth import flow, opensta_power
from openvrex.synth.power import Power, chosen, circuits, measure
from openvrex.tb.library.activity_recorder import recordings


def power(
    emitted: Emitted,
    play: Callable[[Emitted], object],
    options: dict,
    leaves: Sequence[str] = (),
    with_opensta: bool = False,
    folder: Path | None = None,
    **measured: Any,
) -> Power:
    """Power of `emitted` while `play` runs it.

    play : simulates the unit with recorders in it
    options : arguments of `synth.flow.netlists`
    leaves : modules to map and price on their own, without their counters, besides the manifest's leaves
    with_opensta, folder : ask OpenSTA, too, and keep its files in `folder`
    measured : arguments of `synth.power.measure`
    Raises: `SynthError`, and the errors of `play`.
    """
    apart = (*emitted.manifest["leaves"], *leaves)
    unread = ("perf", *(f"{leaf}.perf" for leaf in leaves))
    netlists, library = flow.netlists(emitted.verilog, emitted.top, leaves=apart, unread=unread, **options)
    modules = circuits(netlists, library)
    signals = {name: circuit.needs for name, circuit in modules.items()}
    recorded = recordings(emitted, signals, play, chosen(modules))
    memories = {name: done["memories"] for name, done in netlists.items()}
    found = measure(emitted.top, modules, memories, library, recorded, **measured)
    if not with_opensta:
        return found
    return replace(found, beside=opensta_power.beside(found, modules, library, options["liberty"], folder))
