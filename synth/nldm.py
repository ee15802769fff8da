"""Reads the timing of Liberty cells (NLDM tables, pin capacitances, unateness, checks), in ps and fF."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from openvrex.synth.liberty import ClockGate, Library, SynthError, clock_gate
from openvrex.synth.liberty_text import Group, number, numbers

RISE, FALL = 0, 1
EDGES = ("rise", "fall")

_UNIT = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z]+)")
_SECONDS = {"fs": 1e-3, "ps": 1.0, "ns": 1e3, "us": 1e6}
_FARADS = {"ff": 1.0, "pf": 1e3, "nf": 1e6}
_LOADS = ("total_output_net_capacitance",)
_SLEWS = ("input_net_transition", "input_transition_time", "constrained_pin_transition")
_CLOCKS = ("related_pin_transition",)


@dataclass(frozen=True)
class Table:
    """A lookup table: `values[i][j]` (ps) holds at `x[i]`, `y[j]`.

    x : slew of the input or of the constrained pin (ps)
    y : load (fF), or slew of the clock (ps)

    An axis that the library's table does not have is (0,).
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Arc:
    """An edge of pin `source` that causes an edge of pin `target` after `delay`, with `slew` at the target."""

    source: str
    source_edge: int
    target: str
    target_edge: int
    delay: Table
    slew: Table


@dataclass(frozen=True)
class Check:
    """Setup or recovery: pin `data` must be stable `tables[edge of data]` before the clock edge; None: no limit."""

    data: str
    tables: tuple[Table | None, Table | None]


@dataclass
class CellTiming:
    """Timing of a cell.

    inputs : capacitance that a rising and a falling edge see (fF), by pin
    outputs : names of output pins
    arcs : arcs of combinational gates
    launches : arcs from the clock edge to the outputs
    checks : setup and recovery
    clock : (pin, edge) of a flip-flop or a clock gate, None for gates and latches
    latch : the cell is transparent for part of a cycle, and no clock gate
    gate : pins of a clock gate, whose enable has checks as the data of a flip-flop
    """

    inputs: dict[str, tuple[float, float]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    arcs: list[Arc] = field(default_factory=list)
    launches: list[Arc] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    clock: tuple[str, int] | None = None
    latch: bool = False
    gate: ClockGate | None = None


class Tables:
    """Looks up many tables at once, as NumPy arrays. Tables of unequal sizes are padded."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.tables: list[Table] = []

    def add(self, table: Table) -> int:
        """The number of `table`, which is added if it is new."""
        if id(table) not in self.ids:
            self.ids[id(table)] = len(self.tables)
            self.tables.append(table)  # the reference also keeps its id from being reused
        return self.ids[id(table)]

    def freeze(self) -> None:
        """Builds the arrays. No table can be added afterwards."""
        n = len(self.tables)
        # An axis of one entry gets a second entry with the same values.
        self.n = np.array([[max(2, len(t.x)), max(2, len(t.y))] for t in self.tables], int).reshape(n, 2)
        nx, ny = self.n.max(0, initial=2)
        self.x, self.y, self.v = np.full((n, nx), np.inf), np.full((n, ny), np.inf), np.zeros((n, nx, ny))
        for k, t in enumerate(self.tables):
            x, y, v = (np.array(a, float) for a in (t.x, t.y, t.values))
            if len(x) == 1:
                x, v = np.array([x[0], x[0] + 1]), np.repeat(v, 2, 0)
            if len(y) == 1:
                y, v = np.array([y[0], y[0] + 1]), np.repeat(v, 2, 1)
            self.x[k, : len(x)], self.y[k, : len(y)], self.v[k, : len(x), : len(y)] = x, y, v

    def __call__(self, k: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Values of tables `k` at `x`, `y`: bilinear, and linear beyond the ends. All arrays are [lookups]."""
        i, fx = self._place(self.x, k, self.n[k, 0], x)
        j, fy = self._place(self.y, k, self.n[k, 1], y)
        low = self.v[k, i, j] * (1 - fy) + self.v[k, i, j + 1] * fy
        high = self.v[k, i + 1, j] * (1 - fy) + self.v[k, i + 1, j + 1] * fy
        return low * (1 - fx) + high * fx

    @staticmethod
    def _place(axes: np.ndarray, k: np.ndarray, n: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Interval of each value on its axis, and position in it."""
        i = np.clip((axes[k] <= at[:, None]).sum(1) - 1, 0, n - 2)
        low, high = axes[k, i], axes[k, i + 1]
        return i, (at - low) / (high - low)


def load(library: Library, names: set[str]) -> dict[str, CellTiming]:
    """Timing of the cells `names` of a library, by name. Each cell is read once and kept in `library.timings`.

    Raises: `SynthError` for a unit or table that cannot be read, and for an output without delay tables.
    """
    for name in sorted(names - library.timings.keys()):
        cell = library.cells[name]
        templates = {g.args: g for g in cell.library.of("lu_table_template")}
        units = units_of(cell.file, cell.library)
        library.timings[name] = _cell(f"{cell.file}: cell {name}", cell.group, templates, *units)
    return {n: library.timings[n] for n in names}


def units_of(where: str, head: Group) -> tuple[float, float]:
    """The file's units of time and capacitance, in ps and fF. Raises `SynthError` for unknown units."""
    time = head.attributes.get("time_unit", "1ns")  # the default of the format
    m = _UNIT.fullmatch(time.lower())
    if not m or m[2] not in _SECONDS or not float(m[1]):
        raise SynthError(f"{where}: time_unit {time!r} is not a time such as 1ps")
    ps = float(m[1]) * _SECONDS[m[2]]
    load = head.lists.get("capacitive_load_unit", ("1", "pf"))
    m = _UNIT.fullmatch("".join(load).lower())
    if not m or m[2] not in _FARADS or not float(m[1]):
        raise SynthError(f"{where}: capacitive_load_unit {', '.join(load)!r} is not a capacitance such as 1, ff")
    return ps, float(m[1]) * _FARADS[m[2]]


def _cell(where: str, group: Group, templates: dict, ps: float, ff: float) -> CellTiming:
    """Timing of the cell `group`; `where` names it in errors."""
    gate = clock_gate(group)
    out = CellTiming(latch=not gate and bool(group.of("latch", "latch_bank", "statetable")), gate=gate)
    clocks: set[tuple[str, int]] = set()
    for pin in group.of("pin"):
        for name in pin.args:
            direction = pin.attributes.get("direction")
            if direction == "input":
                rise, fall = capacitances(where, pin)
                out.inputs[name] = rise * ff, fall * ff
            elif direction == "output":
                out.outputs.append(name)
            for timing in pin.of("timing"):
                clocks |= _timing(
                    f"{where}, pin {name}", name, timing, out, lambda w, t: table_of(w, t, templates, ps, ff)
                )
    if out.latch:
        return out
    if gate:
        if not any(check.data == gate.enable for check in out.checks):
            raise SynthError(f"{where}: a clock gate without setup tables; use a library with them, or --gated 0")
        out.clock = gate.clock, RISE
        return out
    registers = group.of("ff", "ff_bank")
    if registers and not (clocks and out.launches):
        raise SynthError(f"{where}: a flip-flop without delay tables from its clock; use a library with NLDM tables")
    if len(clocks) > 1:
        raise SynthError(f"{where}: two clocks, {' and '.join(sorted(p for p, _ in clocks))}; bar it with --dont-use")
    out.clock = next(iter(clocks), None)
    timed = {a.target for a in (*out.arcs, *out.launches)}
    for pin in group.of("pin"):
        inputs = re.findall(r"[A-Za-z_]\w*", pin.attributes.get("function", ""))
        if inputs and not timed.issuperset(pin.args):
            raise SynthError(f"{where}: no delay tables for pin {pin.args[0]}; use a library with NLDM tables")
    return out


def capacitances(where: str, pin: Group) -> tuple[float, float]:
    """Capacitance of an input in the file's unit, at a rising and at a falling edge; 0 if the file states none."""
    stated = pin.attributes
    names = (f"{k}_capacitance" if f"{k}_capacitance" in stated else "capacitance" for k in EDGES)
    rise, fall = (number(where, k, stated.get(k, "0")) for k in names)
    return rise, fall


def _timing(
    where: str, pin: str, group: Group, out: CellTiming, table: Callable[[str, Group], Table]
) -> set[tuple[str, int]]:
    """Adds a timing group of a pin to a cell. Returns the clock pin and edge if the cell is a register."""
    kind = group.attributes.get("timing_type", "combinational")
    sources = group.attributes.get("related_pin", "").split()
    found = {g.kind: g for g in group.groups}
    if kind.startswith(("setup_", "recovery_")):
        rise, fall = (table(where, found[k]) if k in found else None for k in ("rise_constraint", "fall_constraint"))
        out.checks.append(Check(pin, (rise, fall)))
        return {(s, RISE if kind.endswith("rising") else FALL) for s in sources}
    launch = kind in ("rising_edge", "falling_edge")
    if not launch and not kind.startswith("combinational"):
        return set()  # clear, preset, hold, pulse width and three-state are not on the longest path of a cycle
    sense = group.attributes.get("timing_sense", "non_unate")
    for target, (delay, slew) in enumerate((("cell_rise", "rise_transition"), ("cell_fall", "fall_transition"))):
        if delay not in found:
            continue
        if slew not in found:
            raise SynthError(f"{where}: {delay} without {slew}; use a library with both")
        tables = table(where, found[delay]), table(where, found[slew])
        senses: dict[str, tuple[int, ...]] = {"positive_unate": (target,), "negative_unate": (1 - target,)}
        edges = senses.get(sense, (RISE, FALL))
        if launch:
            edges = (RISE if kind == "rising_edge" else FALL,)
        arcs = out.launches if launch else out.arcs
        arcs.extend(Arc(s, e, pin, target, *tables) for s in sources for e in edges)
    return {(s, RISE if kind == "rising_edge" else FALL) for s in sources} if launch else set()


def table_of(where: str, group: Group, templates: dict, ps: float, ff: float) -> Table:
    """The table `group` in ps, with slews in rows and loads (or slews of the clock) in columns.

    Raises `SynthError` for another axis, for values or indices that do not fit, and for numbers that are not finite, or
    negative where only a delay, a constraint or an energy may be.
    """
    template = templates.get(group.args)
    stated, lists = (template.attributes, template.lists) if template else ({}, {})
    axes: dict[str, tuple[float, ...]] = {}
    order = []
    for i in "12":
        variable = stated.get(f"variable_{i}")
        if variable is None:
            break
        if variable not in (*_LOADS, *_SLEWS, *_CLOCKS):
            raise SynthError(
                f"{where}: {group.kind} depends on {variable}; use a library whose tables depend on slew and load"
            )
        axis = "x" if variable in _SLEWS else "y"
        unit = ff if variable in _LOADS else ps
        index = group.lists.get(f"index_{i}", lists.get(f"index_{i}", ()))
        axes[axis] = tuple(v * unit for v in numbers(where, f"index_{i} of {group.kind}", index))
        order.append(axis)
    values = [v * ps for v in numbers(where, group.kind, group.lists.get("values", ()), "transition" not in group.kind)]
    x, y = axes.get("x", (0.0,)), axes.get("y", (0.0,))
    if len(values) != len(x) * len(y) or any(list(a) != sorted(set(a)) for a in (x, y)):
        shape = f"{len(values)} values for {len(x)} slews and {len(y)} loads"
        raise SynthError(f"{where}: {group.kind} has {shape}; axes must rise and fit the values")
    if order == ["y", "x"]:
        rows = tuple(tuple(values[i :: len(x)]) for i in range(len(x)))
    else:
        rows = tuple(tuple(values[i * len(y) : (i + 1) * len(y)]) for i in range(len(x)))
    return Table(x, y, rows)
