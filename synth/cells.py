"""Reads the logic and the power of Liberty cells: their functions, the energy of their edges, and their leakage.

Energies are in fJ, leakage is in nW.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import numpy as np

from openvrex.synth import nldm
from openvrex.synth.liberty import ClockGate, Library, SynthError, clock_gate, evaluate
from openvrex.synth.liberty_text import Group, number
from openvrex.synth.nldm import Table

_NANOWATTS = {"fw": 1e-6, "pw": 1e-3, "nw": 1.0, "uw": 1e3, "mw": 1e6}
_NAME = r"[A-Za-z_]\w*"
Env = dict[str, np.ndarray]  # bits of each pin or state


class Function:
    """A Liberty function of pins, which works on arrays of bits."""

    def __init__(self, run: Callable[[Env], np.ndarray]) -> None:
        self.run = run

    def __call__(self, env: Env) -> np.ndarray:
        return self.run(env)

    def __and__(self, other: "Function") -> "Function":
        return Function(lambda env: self.run(env) & other.run(env))

    def __or__(self, other: "Function") -> "Function":
        return Function(lambda env: self.run(env) | other.run(env))

    def __xor__(self, other: "Function") -> "Function":
        return Function(lambda env: self.run(env) ^ other.run(env))

    def __rsub__(self, one: int) -> "Function":
        return Function(lambda env: ~self.run(env))


def function(text: str) -> Function:
    """A function from its Liberty text. Raises `ValueError` or `IndexError` if the text is not a function."""
    return evaluate(text, {name: _pin(name) for name in set(re.findall(_NAME, text))})


def _pin(name: str) -> Function:
    """The function that returns the bits of a pin."""
    return Function(lambda env: env[name])


@dataclass(frozen=True)
class Internal:
    """Energy inside a cell at an edge of `pin`, which is an output, or an input whose edge moves no output.

    when : state of the cell for which it holds, None if the library states none
    rise, fall : energy by slew of the input and load of the output
    """

    pin: str
    when: Function | None
    rise: Table | None
    fall: Table | None


@dataclass
class Gate:
    """Logic and power of a cell.

    inputs : input pins without the clock
    outputs : functions of the inputs, or for a register of its state, by pin
    loads : capacitance of every input pin, clock included (fF), by pin
    state : two names of a register's state, true and inverted
    next_state : function of a register's inputs and state, None for a gate
    clock : clock pin of a register or a clock gate
    gate : pins of a clock gate, whose `outputs` are empty; None for another cell
    leakage : nW, None if the library states none
    internal : energies of edges, empty if the library states none
    """

    name: str
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, Function] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    state: tuple[str, str] = ("", "")
    next_state: Function | None = None
    clock: str = ""
    gate: ClockGate | None = None
    leakage: float | None = None
    internal: list[Internal] = field(default_factory=list)

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self, env: Env) -> np.ndarray:
        """Whether a clock gate passes the clock edge behind a cycle with the inputs in `env`."""
        return reduce(or_, (env[pin] for pin in self.inputs))

    def states(self, source: np.ndarray) -> Env:
        """State of a register whose counterpart in the source holds `source`."""
        value = self._next({self.inputs[0]: source}) if len(self.inputs) == 1 else source
        return {self.state[0]: value, self.state[1]: ~value}

    def stored(self, pin: str, value: np.ndarray) -> Env:
        """State of a register whose output `pin` shows `value`."""
        zero = np.zeros_like(value)
        value = value ^ self.outputs[pin]({self.state[0]: zero, self.state[1]: ~zero})
        return {self.state[0]: value, self.state[1]: ~value}

    def coming(self, env: Env) -> np.ndarray:
        """Value of the counterpart in the source after the clock edge; `env` holds inputs and state."""
        return env[self.inputs[0]] if len(self.inputs) == 1 else self._next(env)

    def _next(self, env: Env) -> np.ndarray:
        """Next state of a register."""
        assert self.next_state is not None  # callers have a register
        return self.next_state(env)


def load(library: Library, names: set[str]) -> tuple[dict[str, Gate], float]:
    """The cells `names` of a library by name, and its supply voltage.

    Raises: `SynthError` for a function, a unit or a table that cannot be read.
    """
    gates: dict[str, Gate] = {}
    volts = 0.0
    for name in sorted(names):
        cell = library.cells[name]
        head, file = cell.library, cell.file
        templates = {g.args: g for g in head.of("lu_table_template", "power_lut_template")}
        power = head.attributes.get("leakage_power_unit", "1nW")
        unit = re.fullmatch(r"([\d.]+)\s*([a-z]+)", power.lower())
        if not unit or unit[2] not in _NANOWATTS:
            raise SynthError(f"{file}: leakage_power_unit {power!r} is not a power such as 1nW")
        nw = float(unit[1]) * _NANOWATTS[unit[2]]
        volts = max(volts, number(file, "nom_voltage", head.attributes.get("nom_voltage", "0")))
        gates[name] = _gate(f"{file}: cell {name}", name, cell.group, templates, *nldm.units_of(file, head), nw)
    return gates, volts


def _gate(where: str, name: str, cell: Group, templates: dict, ps: float, ff: float, nw: float) -> Gate:
    """The cell `name`; `where` names it in errors, `ps`, `ff` and `nw` are the file's units."""
    gate = Gate(name)
    ground_pins = grounds(cell)
    gate.gate = clock_gate(cell)
    gate.clock = gate.gate.clock if gate.gate else ""
    for ff_ in cell.of("ff", "ff_bank"):
        gate.state, gate.clock = (ff_.args[0], ff_.args[1]), ff_.attributes["clocked_on"].strip("() ")
        gate.next_state = _function(where, ff_.attributes["next_state"])
    for pin in cell.of("pin"):
        for p in pin.args:
            if pin.attributes.get("direction") == "output" and "function" in pin.attributes:
                gate.outputs[p] = _function(where, pin.attributes["function"])
            elif pin.attributes.get("direction") == "input":
                gate.loads[p] = sum(nldm.capacitances(where, pin)) / 2 * ff
            for group in pin.of("internal_power"):
                # The figures of a ground pin count the charge of the supply once more, on its way out.
                if group.attributes.get("related_pg_pin") in ground_pins:
                    continue
                found = {g.kind: nldm.table_of(f"{where}, pin {p}", g, templates, ps, ff) for g in group.groups}
                rise, fall = (_scaled(found.get(k, found.get("power")), ff / ps) for k in ("rise_power", "fall_power"))
                when = group.attributes.get("when")
                gate.internal.append(Internal(p, _function(where, when) if when else None, rise, fall))
    used = set(re.findall(_NAME, " ".join(ff_.attributes["next_state"] for ff_ in cell.of("ff", "ff_bank"))))
    gate.inputs = [p for p in gate.loads if p != gate.clock and (not gate.next_state or p in used)]
    gate.leakage = _leakage(where, cell, ground_pins, nw)
    return gate


def grounds(cell: Group) -> set[str]:
    """The ground pins of a cell."""
    return {g.args[0] for g in cell.of("pg_pin") if "ground" in g.attributes.get("pg_type", "") and g.args}


def _leakage(where: str, cell: Group, ground_pins: set[str], nw: float) -> float | None:
    """Leakage in nW, as the mean over the states that the library lists; None if it lists none."""
    if "cell_leakage_power" in cell.attributes:
        return number(where, "cell_leakage_power", cell.attributes["cell_leakage_power"]) * nw
    groups = [g for g in cell.of("leakage_power") if g.attributes.get("related_pg_pin") not in ground_pins]
    whole = [g for g in groups if "when" not in g.attributes] or groups
    values = [number(where, "leakage_power", g.attributes.get("value", "")) for g in whole]
    return sum(values) / len(values) * nw if whole else None


def _scaled(table: Table | None, factor: float) -> Table | None:
    """A table with its values times `factor`."""
    if table is None:
        return None
    return Table(table.x, table.y, tuple(tuple(v * factor for v in row) for row in table.values))


def _function(where: str, text: str) -> Function:
    """A function from its text. Raises `SynthError` if it cannot be read."""
    try:
        return function(text)
    except (ValueError, IndexError, KeyError):
        raise SynthError(f"{where}: function {text!r} cannot be read; use a sound Liberty file") from None
