"""Computes the power of a mapped unit: exact toggles of its netlist times the energies of a cell library.

Counted:

- the charge of every pin that a net drives, half C V^2 a toggle
- the internal energy of every cell's edges
- the clock pins of clock gates and of registers without one in every cycle, those behind a gate in the cycles that it
  passes
- reads and writes of memories, by the SRAM model
- leakage of cells and memories

Not counted are wires, glitches and the clock tree, as in a report before layout. docs/size.md says what they add.

The internal energy of an output's edge is the mean over the inputs that may have caused it. For an input's edge that
moves no output, it is the library's figure for the state of the cell. The slew is that of a chain of inverters that
drive four.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from openvrex.hdl import params
from openvrex.synth import cells, nldm, technology
from openvrex.synth.cells import Gate, Internal
from openvrex.synth.flow import MemoryMacro
from openvrex.synth.liberty import Library, SynthError
from openvrex.synth.nldm import Table
from openvrex.synth.sram import Sram
from openvrex.synth.switching_activity import Activity, Circuit, Counts, after, count, spread
from openvrex.synth.technology import ZERO, Estimate
from openvrex.tb.library.recording import Recording

INSTANCES = 4  # recorded instances of a leaf; their mean stands for the others
# Capacitance (fF) of the smallest inverter's pin: ASAP7's INVx1 at 7 nm. Other nodes lie on the line through it and
# SKY130's inv_1 (2.302) in log scales, as the delays of `technology` do.
PIN, SHRINK = 0.6198, 0.449
LEAK = 0.078  # nW per gate equivalent: mean of hcu, kvmu, cluster_set and wtu in ASAP7 (docs/size.md)
# CLOCK: charge behind the clock pin of a DFF per cycle, in charges of one pin. It is the geometric mean of ASAP7's
# DFFHQN (1.9) and SKY130's dfxtp (5.3), from their tables. CLOCK_DELAY: part of a DFF's delay that its two clock
# inverters take (openvrex.lib). GATE: as CLOCK for a closed clock gate, from ASAP7's ICGx1 (0.56) and SKY130's dlclkp_1
# (3.4).
CLOCK, CLOCK_DELAY, GATE = 3.2, 6.0, 1.4
LIBRARIES = {"openvrex": 7, "asap7": 7, "sky130": 130}  # node (nm) of a library, by the beginning of its file name
# Factors of the interval at a node other than the library's. They span the results of ASAP7 and SKY130 (docs/size.md).
SPREAD, LEAK_SPREAD = 1.5, 10.0


@dataclass(frozen=True)
class Part:
    """Energy of a kind of cells per cycle (fJ), of the nets that they drive and inside them, and their leakage (nW)."""

    switching: float
    internal: float
    leakage: float


@dataclass(frozen=True)
class Module:
    """Energy of a module per cycle (fJ), without the leaves in it, as the mean over what was recorded.

    instances, recorded : instances in the unit, recordings that entered the mean
    cycles : evaluated cycles, of all recordings
    toggles : toggles of its nets per cycle
    switching, internal : energy of its nets, and inside its cells
    clock : energy of clock pins and of the inverters behind them, and of clock gates
    idle : the same while nothing moves, after the run
    leakage : nW
    accesses : reads and writes per cycle, by memory
    kinds : by kind of cells, "registers", "clock gates" and "logic", without the nets that ports and memories drive
    counts : toggles and times of its nets, of all recordings
    """

    name: str
    instances: int
    recorded: int
    cycles: int
    toggles: float
    switching: float
    internal: float
    clock: float
    idle: float
    leakage: float
    accesses: dict[MemoryMacro, tuple[float, float]]
    kinds: dict[str, Part]
    counts: Counts = field(compare=False, repr=False)


@dataclass(frozen=True)
class Beside:
    """Power of a unit's logic beside OpenSTA's, as `Module.kinds` but in µW, at its library's node.

    ours, opensta : by this module and by OpenSTA
    same : by OpenSTA with our slew and loads, empty if it reads SAIF
    """

    ours: dict[str, Part]
    opensta: dict[str, Part]
    same: dict[str, Part]


@dataclass(frozen=True)
class Power:
    """Power of a unit at a clock of `mhz`, with logic and memories at `node`.

    library_node, volts : node and supply of the library. If the node is None (unknown), logic stays at the library's
    node : nm
    modules : leaves, then top
    run_cycles : cycles of all runs, from the first to the last in which anything moves
    beside : the same by OpenSTA, None if it was not asked
    """

    unit: str
    library: tuple[str, ...]
    library_node: int | None
    volts: float
    node: int
    mhz: float
    modules: tuple[Module, ...]
    run_cycles: int
    beside: Beside | None = None

    @property
    def factor(self) -> float:
        """Energy of a gate at `node` and its supply, over its energy in the library."""
        return pin_energy(self.node) / pin_energy(self.library_node, self.volts) if self.library_node else 1.0

    def energy(self, *parts: str) -> float:
        """Energy per cycle (pJ) at `node`; `parts` : some of "switching", "internal", "clock" and "idle"."""
        return sum(m.instances * getattr(m, p) for m in self.modules for p in parts) * self.factor / 1000

    @property
    def cycle_pj(self) -> float:
        """Energy per cycle (pJ), including memories and leakage."""
        return self.total.value / self.mhz * 1000

    @property
    def work_pj(self) -> float:
        """Energy per cycle (pJ) of activity: nets, cells, clocks that gates let pass, accesses of memories."""
        return self.cycle_pj - self.idle_pj

    @property
    def idle_pj(self) -> float:
        """Energy per cycle (pJ) while nothing moves, after the run: clock and leakage."""
        return (
            self.cycle_pj - self.access_pj.value - self.energy("switching", "internal", "clock") + self.energy("idle")
        )

    @property
    def idle_mw(self) -> float:
        """Power (mW) while nothing moves, after the run."""
        return self.idle_pj * self.mhz / 1000

    @property
    def dynamic_mw(self) -> Estimate:
        """Dynamic power of the logic (mW), including clock pins."""
        value = self.energy("switching", "internal", "clock") * self.mhz / 1000
        spread = SPREAD if self.node != self.library_node else 1.0
        return Estimate(value / spread, value, value * spread)

    @property
    def leakage_mw(self) -> Estimate:
        """Leakage of the logic (mW) at 25 °C, as the library states it."""
        value = sum(m.instances * m.leakage for m in self.modules) / 1e6
        spread = LEAK_SPREAD if self.node != self.library_node else 1.0
        return Estimate(value / spread, value, value * spread)

    @property
    def access_pj(self) -> Estimate:
        """Energy of reads and writes of memories per cycle (pJ)."""
        return sum((r.read_energy * reads + r.write_energy * writes for r, (reads, writes) in self._macros()), ZERO)

    @property
    def memory_mw(self) -> Estimate:
        """Power of memories (mW): reads, writes and leakage."""
        return self.access_pj * (self.mhz / 1000) + sum((r.leakage * 1e-3 for r, _ in self._macros()), ZERO)

    @property
    def total(self) -> Estimate:
        """Total power (mW)."""
        return self.dynamic_mw + self.leakage_mw + self.memory_mw

    def _macros(self) -> list[tuple[Sram, tuple[float, float]]]:
        """The macro of every memory of every instance, with its reads and writes per cycle."""
        return [
            (m.macro(self.node), accesses)
            for module in self.modules
            for m, accesses in module.accesses.items()
            for _ in range(module.instances)
        ]

    def parts(self) -> dict[str, "Power"]:
        """Power of all instances of each module, by module."""
        return {m.name: replace(self, modules=(m,), beside=None) for m in self.modules}

    def milliwatts(self) -> dict[str, dict[str, float]]:
        """All powers as low, value and high, ready for JSON."""
        powers = {"dynamic": self.dynamic_mw, "leakage": self.leakage_mw, "memory": self.memory_mw, "total": self.total}
        return {f"{n}_mw": vars(p) for n, p in powers.items()}

    def report(self) -> dict:
        """All fields and derived figures as a dict that JSON can hold."""
        parts = {n: self.energy(n) for n in ("switching", "internal", "clock")}
        return {
            "unit": self.unit,
            "library": self.library,
            "library_node": self.library_node,
            "volts": self.volts,
            "node": self.node,
            "mhz": self.mhz,
            "pj_per_cycle": parts | {"all": self.cycle_pj},
            **self.milliwatts(),
            "idle_mw": self.idle_mw,
            "modules": [_told(m) for m in self.modules],
            "parts": {name: p.milliwatts() | {"idle_mw": p.idle_mw} for name, p in self.parts().items()},
            **({"beside": asdict(self.beside)} if self.beside else {}),
        }


def _told(m: Module) -> dict:
    """A module as a dict that JSON can hold, without its counts."""
    own = {k: v for k, v in vars(m).items() if k != "counts"}
    return own | {
        "accesses": {k.name: v for k, v in m.accesses.items()},
        "kinds": {k: vars(p) for k, p in m.kinds.items()},
    }


def pin_energy(node: int, volts: float | None = None) -> float:
    """Energy C V^2 (fJ) of charging the smallest inverter's pin at a node, at its nominal supply unless given."""
    return PIN * (node / 7) ** SHRINK * (volts or technology.node(node).volts) ** 2


def circuits(netlists: dict[str, dict], library: Library) -> dict[str, Circuit]:
    """Prepares every module of `flow.netlists` for evaluation."""
    out = {}
    for name, done in netlists.items():
        used = {c for c in done["cells"] if c in library.cells}
        out[name] = Circuit(name, done["netlist"], cells.load(library, used)[0])
    return out


def chosen(modules: dict[str, Circuit]) -> dict[str, list[str]]:
    """Names of the instances of leaves to record: `INSTANCES` in each module that holds more, at equal distances."""
    out = {}
    for module in modules.values():
        for leaf, held in module.leaves.items():
            if leaf in modules and len(held) > INSTANCES:
                names = [name.rpartition(".")[2] for name, _ in held]
                out[leaf] = [names[i] for i in np.linspace(0, len(names) - 1, INSTANCES).astype(int)]
    return out


def measure(
    unit: str,
    modules: dict[str, Circuit],
    memories: dict[str, dict],
    library: Library,
    recordings: dict[str, list[Recording]],
    mhz: float = params.CLOCK / 1e6,
    node: int = 14,
    cycles: int = 4096,
) -> Power:
    """Power of `unit` from recordings of all its modules, in the same runs.

    modules : result of `circuits`
    memories : the `memories` of each module's report, {name: shape}, by module
    recordings : recordings of each module's instances in the same runs, by module
    mhz, node : clock, and node (nm) of the result
    cycles : cycles to evaluate of each run, between the first and last cycle after reset in which anything moves
    Raises: `SynthError` for a library without power tables or leakage, for a recording in which nothing moves, and as
    `Circuit.evaluate` does.
    """
    counts = Counter({unit: 1})
    for name in _outside_in(unit, modules):
        for leaf, held in modules[name].leaves.items():
            counts[leaf] += counts[name] * len(held)
    spans = [_span(unit, r) for r in recordings[unit]]
    out = []
    for name, circuit in modules.items():
        gates, volts = cells.load(library, set(circuit.gates))
        if library.embedded:
            gates, volts = _stand_in(library, gates), 1.0
        for gate in gates.values():
            if gate.leakage is None or not (gate.internal or not (gate.outputs or gate.gate)):
                what = "leakage" if gate.leakage is None else "internal_power tables"
                raise SynthError(f"{_files(library)}: cell {gate.name} has no {what}; use a library with power tables")
        prices = Prices(circuit, gates, volts, slew_of(library))
        each = len(recordings[name]) // len(spans)
        if not each:
            raise SynthError(
                f"{unit}: no instance of {name} was recorded in all {len(spans)} runs; record one in every run"
            )
        activities = (
            circuit.evaluate(recording, spread(*spans[i // each], cycles))
            for i, recording in enumerate(recordings[name])
        )
        scale = pin_energy(7) if library.embedded else 1.0
        out.append(prices.module(activities, counts[name], memories[name], scale))
    files = ("openvrex",) if library.embedded else library.names
    known = next((n for start, n in LIBRARIES.items() if files[0].startswith(start)), None)
    volts = 0.7 if library.embedded else volts
    return Power(unit, files, known, volts, node, mhz, tuple(out), sum(b - a + 1 for a, b in spans))


def _files(library: Library) -> str:
    """Names of the library's files, for errors."""
    return ", ".join(library.names)


def _outside_in(unit: str, modules: dict[str, Circuit]) -> list[str]:
    """Modules in an order in which each precedes those that it holds."""
    order = [unit]
    for name in order:
        for leaf in modules[name].leaves:
            if leaf in order:
                order.remove(leaf)
            order.append(leaf)
    return order


def _span(unit: str, recording: Recording) -> tuple[int, int]:
    """First and last cycle after reset in which anything moves. Raises `SynthError` if nothing does."""
    moves = np.flatnonzero((recording.samples[1:] != recording.samples[:-1]).any(1))
    if "rst" in recording.columns:
        at = recording.columns["rst"]
        reset = np.flatnonzero(recording.samples[:, at // 8] >> (at % 8) & 1)
        moves = moves[moves > reset.max(initial=-1) + 1]
    if not len(moves):
        raise SynthError(f"{unit}: nothing moves in the recording; give it a trace with traffic")
    return int(moves[0]), int(moves[-1]) + 1


def slew_of(library: Library) -> float:
    """Slew (ps) in a chain of the library's inverter that drives four, as the mean of both edges."""
    cell = nldm.load(library, {library.inverter.name})[library.inverter.name]
    load, slew = 4 * sum(next(iter(cell.inputs.values()))) / 2, 0.0
    for _ in range(20):
        slew = float(np.mean([_at(a.slew, slew, np.array([load]))[0] for a in cell.arcs]))
    return slew


def _at(table: Table | None, slew: float, loads: np.ndarray) -> np.ndarray:
    """Values of a table at one slew and some loads. Beyond its ends the lines go on. None gives 0."""
    if table is None:
        return np.zeros(len(loads))
    row = _line(np.array([slew]), table.x, np.array(table.values).T)[:, 0]
    return _line(loads, table.y, row)


def _line(at: np.ndarray, points: tuple[float, ...], values: np.ndarray) -> np.ndarray:
    """Values [..., at] on the lines through `values` [..., points]."""
    if len(points) == 1:
        return values[..., [0] * len(at)]
    left = np.clip(np.searchsorted(points, at) - 1, 0, len(points) - 2)
    share = (at - np.take(points, left)) / np.diff(points)[left]
    return values[..., left] + share * (values[..., left + 1] - values[..., left])


def _stand_in(library: Library, gates: dict[str, Gate]) -> dict[str, Gate]:
    """The embedded library's cells with energies in charges of one pin, from logical effort (d = p + g h).

    Besides its load, an output moves the charge of p / g pins, its parasitic capacitance. For a register, p excludes
    the clock inverters, for which `CLOCK` stands; the output of a clock gate comes on top of `GATE`. Leakage is
    proportional to area.
    """
    timings = nldm.load(library, set(gates))
    out = {}
    for name, gate in gates.items():
        arcs = [a.delay for a in (*timings[name].arcs, *timings[name].launches)]
        clock = CLOCK_DELAY if gate.next_state else 0.0
        charge = float(np.mean([(t.values[0][0] - clock) / ((t.values[0][1] - t.values[0][0]) / t.y[1]) for t in arcs]))
        outputs = (gate.gate.out,) if gate.gate else gate.outputs
        own = [Internal(pin, None, *[_constant(charge / 2)] * 2) for pin in outputs]
        behind = GATE if gate.gate else CLOCK
        own += [Internal(gate.clock, None, *[_constant(behind / 2)] * 2)] if gate.clock else []
        area = library.cells[name].area
        assert area is not None  # the embedded library states all areas
        out[name] = replace(gate, internal=own, leakage=area * LEAK)
    return out


def _constant(value: float) -> Table:
    """A table with one value for every slew and load."""
    return Table((0.0,), (0.0,), ((value,),))


def kind_of(gate: Gate) -> str:
    """The kind of a cell in `Module.kinds`."""
    return "clock gates" if gate.gate else "registers" if gate.next_state else "logic"


class Prices:
    """Prices the edges of a circuit's pins."""

    def __init__(self, circuit: Circuit, gates: dict[str, Gate], volts: float, slew: float) -> None:
        self.circuit, self.volts, self.slew = circuit, volts, slew
        self.registers = [(gates[g.name], pins) for g, _, pins in circuit.registers]
        self.clock_gates = [(gates[g.name], pins) for g, pins in circuit.clock_gates]
        self.groups = [(gates[g.name], pins) for g, pins in circuit.steps] + self.registers + self.clock_gates
        self.loads = np.zeros(max(circuit.rows.values()) + 1)
        # Load behind each clock gate, in the order of `Circuit.passes`.
        self.passed = np.zeros(1 + sum(len(pins[g.inputs[0]]) for g, pins in self.clock_gates))
        for (gate, _), clocks in zip(self.registers, circuit.clocks, strict=True):
            np.add.at(self.passed, clocks, gate.loads[gate.clock])
        for gate, pins in self.groups:
            for pin in gate.inputs:
                np.add.at(self.loads, pins[pin], gate.loads[pin])

    def module(
        self, activities: Iterable[Activity], instances: int, shapes: dict[str, list[int]], scale: float
    ) -> Module:
        """Energies of the module, as means over `activities`.

        shapes : shapes of its memories, by name
        scale : fJ in a unit of the gates' energies
        """
        sums = dict.fromkeys(("switching", "internal", "clock", "idle"), 0.0)
        inside, driven, leakage = (defaultdict[str, float](float) for _ in range(3))  # by kind of cells
        recorded = cycles = 0
        counts: Counts | None = None
        accesses: Counter = Counter()
        for activity in activities:
            own = activity.counts()
            counts = own if counts is None else counts + own
            cycles += activity.cycles
            recorded += 1
            charges = own.toggles * self.loads * self.volts**2 / 2
            sums["switching"] += charges.sum()
            for gate, pins in self.groups:
                energy = self._internal(activity, gate, pins)
                sums["internal"] += energy
                inside[kind_of(gate)] += energy
                driven[kind_of(gate)] += sum(charges[pins[pin]].sum() for pin in gate.outputs)
            clocks, nets = self._clocks(activity)
            sums["clock"] += sum(clocks.values()) + sum(nets)
            for kind, energy in clocks.items():
                inside[kind] += energy
            driven["clock gates"] += nets[1]
            clocks, nets = self._clocks(activity.rest())
            sums["idle"] += sum(clocks.values()) + sum(nets)
            accesses.update(self._accesses(activity, shapes))
        for gate, pins in self.groups:
            assert gate.leakage is not None  # `measure` refuses such a library
            leakage[kind_of(gate)] += gate.leakage * len(next(iter(pins.values())))
        assert counts is not None  # `measure` refuses a module without a recording
        edges = counts.steps
        return Module(
            name=self.circuit.name,
            instances=instances,
            recorded=recorded,
            cycles=cycles,
            toggles=counts.toggles.sum() / edges,
            switching=sums["switching"] / edges * scale,
            internal=sums["internal"] / edges * scale,
            clock=sums["clock"] / edges * scale,
            idle=sums["idle"] / recorded * scale,
            leakage=sum(leakage.values()),
            accesses={
                MemoryMacro.of(name, shape): (accesses[name, "RD"] / edges, accesses[name, "WR"] / edges)
                for name, shape in shapes.items()
            },
            kinds={k: Part(driven[k] / edges * scale, inside[k] / edges * scale, leakage[k]) for k in leakage},
            counts=counts,
        )

    def _internal(self, activity: Activity, gate: Gate, pins: dict[str, np.ndarray]) -> float:
        """Energy of all edges of outputs, and of inputs that move no output, in all instances of a gate."""
        energy = 0.0
        env = None
        for pin in dict.fromkeys(i.pin for i in gate.internal if i.pin in pins):
            prices = [i for i in gate.internal if i.pin == pin]
            edges = activity.moves(pins[pin])
            if pin in gate.outputs:
                loads = self.loads[pins[pin]]
                for words, way in zip(edges, ("rise", "fall"), strict=True):
                    price = np.mean([_at(getattr(i, way), self.slew, loads) for i in prices], 0)
                    energy += (count(words) * price).sum()
                continue
            if env is None:
                env = self._state(activity, gate, pins, after)
            energy += self._stated(prices, edges, env)
        return energy

    def _clocks(self, activity: Activity) -> tuple[dict[str, float], tuple[float, float]]:
        """Energy at clock edges: inside cells, by kind, and of the nets of clocks, without a gate and behind one."""
        passes = self.circuit.passes(activity.values)
        inside, nets, at = defaultdict[str, float](float), [0.0, 0.0], 1
        for (gate, pins), clocks in zip(self.registers, self.circuit.clocks, strict=True):
            inside["registers"] += self._clock(activity, gate, pins, passes[clocks])
            charges = count(passes[clocks] & activity.follows) * gate.loads[gate.clock] * self.volts**2
            nets[0] += charges[clocks == 0].sum()
            nets[1] += charges[clocks > 0].sum()
        for gate, pins in self.clock_gates:
            many = slice(at, at := at + len(pins[gate.inputs[0]]))
            inside["clock gates"] += self._clock(activity, gate, pins, passes[[0]])
            edges = int(count(passes[[0]] & activity.follows)[0])
            nets[0] += (many.stop - many.start) * edges * gate.loads[gate.clock] * self.volts**2
            prices = [i for i in gate.internal if gate.gate and i.pin == gate.gate.out]
            for way in ("rise", "fall") if prices else ():
                price = np.mean([_at(getattr(i, way), self.slew, self.passed[many]) for i in prices], 0)
                inside["clock gates"] += (count(passes[many] & activity.follows) * price).sum()
        return inside, (nets[0], nets[1])

    def _clock(self, activity: Activity, gate: Gate, pins: dict[str, np.ndarray], edges: np.ndarray) -> float:
        """Energy inside cells at edges of clock pins: a rising edge at the end of each cycle of `edges`, a falling edge
        in the middle of the next.
        """
        prices = [i for i in gate.internal if i.pin == gate.clock]
        many = len(next(iter(pins.values())))
        words = np.broadcast_to(edges & activity.follows, (many, len(activity.follows)))
        before, later = (self._state(activity, gate, pins, f) for f in (lambda words: words, after))
        none = np.zeros_like(words)
        return self._stated(prices, (words, none), before) + self._stated(prices, (none, words), later)

    def _state(
        self, activity: Activity, gate: Gate, pins: dict[str, np.ndarray], at: Callable[[np.ndarray], np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Values of all pins of all instances, shifted by `at`. The clock is high when data move.

        The output of a clock gate is that of the cycle before: high from the edge that it passes until the falling one.
        """
        env = {p: at(activity.values[rows]) for p, rows in pins.items()}
        shape = next(iter(env.values()))
        if gate.gate:
            env[gate.gate.out] = gate.open({p: activity.values[rows] for p, rows in pins.items()})
        return env | ({gate.clock: np.full_like(shape, ~np.uint64(0))} if gate.clock else {})

    def _stated(self, prices: list[Internal], edges: tuple, env: dict[str, np.ndarray]) -> float:
        """Energy of input edges by the state of the cell. Prices without a state serve edges in no listed state."""
        energy, zero = 0.0, np.zeros(1)
        for words, way in zip(edges, ("rise", "fall"), strict=True):
            left = count(words).sum()
            for price, when in ((i, i.when) for i in prices if i.when):
                hit = count(words & when(env)).sum()
                left -= hit
                energy += hit * _at(getattr(price, way), self.slew, zero)[0]
            energy += sum(left * _at(getattr(i, way), self.slew, zero)[0] for i in prices if not i.when)
        return energy

    def _accesses(self, activity: Activity, shapes: dict[str, list[int]]) -> Counter:
        """Number of cycles in which the read and the write ports of each memory are enabled."""
        out: Counter = Counter()
        for name in shapes:
            parameters, pins = self.circuit.netlist["memories"][name]
            for way in ("RD", "WR"):
                ports = int(parameters[f"{way}_PORTS"], 2)
                bits = len(pins[f"{way}_EN"]) // max(1, ports)
                for p in range(ports):
                    rows = [self.circuit.row(b) for b in pins[f"{way}_EN"][p * bits : (p + 1) * bits]]
                    enabled = np.bitwise_or.reduce(activity.values[rows]) & activity.follows
                    out[name, way] += int(count(enabled[None])[0])
        return out
