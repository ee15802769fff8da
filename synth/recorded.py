"""Power of a unit in a simulation of its source: netlists, recorders, a run and prices, one after the other."""

from collections.abc import Callable

from hdl.emit import Emitted
from synth import flow
from synth.power import Power, chosen, circuits, measure
from tb.library.activity_recorder import recordings


def power(emitted: Emitted, play: Callable[[Emitted], object], options: dict, leaves=(), **measured) -> Power:
    """Power of `emitted` while `play` runs it.

    options : of `synth.flow.netlists` · measured : of `synth.power.measure`
    leaves : modules that are mapped and priced apart, their counters left out, besides those that the manifest names
    Raises: `SynthError`, and what `play` raises.
    """
    apart = (*emitted.manifest["leaves"], *leaves)
    unread = ("perf", *(f"{leaf}.perf" for leaf in leaves))
    netlists, library = flow.netlists(emitted.verilog, emitted.top, leaves=apart, unread=unread, **options)
    modules = circuits(netlists, library)
    signals = {name: circuit.needs for name, circuit in modules.items()}
    recorded = recordings(emitted, signals, play, chosen(modules))
    memories = {name: done["memories"] for name, done in netlists.items()}
    return measure(emitted.top, modules, memories, library, recorded, **measured)
