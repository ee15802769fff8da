"""Logic and power of Liberty cells: what they compute, what energy their edges take, what they leak.

Energies are in fJ, leakage in nW.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from synth import nldm
from synth.liberty import Library, SynthError, blank_comments, evaluate
from synth.nldm import Group, Table

_NANOWATTS = {"fw": 1e-6, "pw": 1e-3, "nw": 1.0, "uw": 1e3, "mw": 1e6}
_NAME = r"[A-Za-z_]\w*"
Env = dict[str, np.ndarray]


class Function:
    """A Liberty function of pins, applied to arrays of bits."""

    def __init__(self, run: Callable[[Env], np.ndarray]):
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
    """A function from its text. Raises: ValueError or IndexError where it is none."""
    names = set(re.findall(_NAME, text))
    return evaluate(text, {n: Function(lambda env, n=n: env[n]) for n in names})


@dataclass(frozen=True)
class Internal:
    """Energy inside of a cell at an edge of `pin`: of an output, or of an input that moves no output.

    when : the state of the cell it holds for, None where the library does not say
    rise, fall : by slew of the input and load of the output
    """

    pin: str
    when: Function | None
    rise: Table | None
    fall: Table | None


@dataclass
class Gate:
    """A cell. `outputs` are functions of `inputs`, or of `state` (its two names) for a register.

    next_state : of a register, of its inputs and state · clock : its pin, which is not among the inputs
    loads : capacitance of every input pin, clock included (fF)
    leakage, internal : None and empty where the library does not say
    """

    name: str
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, Function] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    state: tuple[str, str] = ("", "")
    next_state: Function | None = None
    clock: str = ""
    leakage: float | None = None
    internal: list[Internal] = field(default_factory=list)

    def __hash__(self):
        return hash(self.name)

    def states(self, source: np.ndarray) -> Env:
        """The names of a register's state, where the source's register holds `source`."""
        value = self.next_state({self.inputs[0]: source}) if len(self.inputs) == 1 else source
        return {self.state[0]: value, self.state[1]: ~value}

    def stored(self, pin: str, value: np.ndarray) -> Env:
        """The same, where output `pin` shows `value`."""
        zero = np.zeros_like(value)
        value = value ^ self.outputs[pin]({self.state[0]: zero, self.state[1]: ~zero})
        return {self.state[0]: value, self.state[1]: ~value}

    def coming(self, env: Env) -> np.ndarray:
        """What the source's register holds after the clock edge; `env` has inputs and state."""
        return env[self.inputs[0]] if len(self.inputs) == 1 else self.next_state(env)


def load(library: Library, names: set[str]) -> tuple[dict[str, Gate], float]:
    """The cells `names` of a library, and its supply voltage.

    Raises: `SynthError` for a function, a unit or a table that cannot be read.
    """
    gates, volts = {}, 0.0
    for i, path in enumerate(library.files):
        wanted = [n for n in sorted(names) if library.cells[n].file == i]
        if not wanted:
            continue
        text = library.text(i)
        first = min(c.span[0] for c in library.cells.values() if c.file == i)
        head = nldm.parse(blank_comments(text[:first]))
        ps, ff = nldm.units_of(path.name, head)
        templates = {g.args: g for g in head.of("lu_table_template", "power_lut_template")}
        unit = re.fullmatch(r"([\d.]+)\s*([a-z]+)", head.attributes.get("leakage_power_unit", "1nw").lower())
        if not unit or unit[2] not in _NANOWATTS:
            raise SynthError(f"{path.name}: leakage_power_unit is not a power such as 1nW")
        nw = float(unit[1]) * _NANOWATTS[unit[2]]
        volts = max(volts, float(head.attributes.get("nom_voltage", 0)))
        for name in wanted:
            start, end = library.cells[name].span
            cell = nldm.parse(blank_comments(text[start:end])).groups[0]
            gates[name] = _gate(f"{path.name}: cell {name}", name, cell, templates, ps, ff, nw)
    return gates, volts


def _gate(where: str, name: str, cell: Group, templates: dict, ps: float, ff: float, nw: float) -> Gate:
    gate = Gate(name)
    grounds = {g.args[0] for g in cell.of("pg_pin") if "ground" in g.attributes.get("pg_type", "") and g.args}
    for ff_ in cell.of("ff", "ff_bank"):
        gate.state, gate.clock = ff_.args[:2], ff_.attributes["clocked_on"].strip("() ")
        gate.next_state = _function(where, ff_.attributes["next_state"])
    for pin in cell.of("pin"):
        for p in pin.args:
            if pin.attributes.get("direction") == "output" and "function" in pin.attributes:
                gate.outputs[p] = _function(where, pin.attributes["function"])
            elif pin.attributes.get("direction") == "input":
                same = pin.attributes.get("capacitance", "0")
                caps = [float(pin.attributes.get(k, same)) for k in ("rise_capacitance", "fall_capacitance")]
                gate.loads[p] = sum(caps) / 2 * ff
            for group in pin.of("internal_power"):
                # A ground pin's figures are the supply's charge once more, on its way out.
                if group.attributes.get("related_pg_pin", "").strip('"') in grounds:
                    continue
                found = {g.kind: nldm.table_of(f"{where}, pin {p}", g, templates, ps, ff) for g in group.groups}
                rise, fall = (_scaled(found.get(k, found.get("power")), ff / ps) for k in ("rise_power", "fall_power"))
                when = group.attributes.get("when")
                gate.internal.append(Internal(p, _function(where, when) if when else None, rise, fall))
    used = set(re.findall(_NAME, " ".join(ff_.attributes["next_state"] for ff_ in cell.of("ff", "ff_bank"))))
    gate.inputs = [p for p in gate.loads if p != gate.clock and (not gate.next_state or p in used)]
    gate.leakage = _leakage(cell, grounds, nw)
    return gate


def _leakage(cell: Group, grounds: set[str], nw: float) -> float | None:
    """Mean over the states that the library has."""
    if "cell_leakage_power" in cell.attributes:
        return float(cell.attributes["cell_leakage_power"]) * nw
    groups = [g for g in cell.of("leakage_power") if g.attributes.get("related_pg_pin") not in grounds]
    whole = [g for g in groups if "when" not in g.attributes] or groups
    return sum(float(g.attributes["value"]) for g in whole) / len(whole) * nw if whole else None


def _scaled(table: Table | None, factor: float) -> Table | None:
    if table is None:
        return None
    return Table(table.x, table.y, tuple(tuple(v * factor for v in row) for row in table.values))


def _function(where: str, text: str) -> Function:
    try:
        return function(text)
    except (ValueError, IndexError, KeyError):
        raise SynthError(f"{where}: function {text!r} cannot be read") from None
