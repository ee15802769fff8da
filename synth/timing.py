"""Finds the longest paths of a clock cycle in mapped netlists: static timing analysis with a library's NLDM tables.

Model. Delay and output slew of a cell come from its tables by input slew and load. As in OpenSTA, the lookup is
bilinear between entries and linear beyond the outermost two, and no slew is below 0. The load of a net is the
capacitance of its pins for that edge, and of its wire if it is given one; there is no clock tree. The slew of a net is
the largest that any of its arcs gives (graph-based analysis). Rise and fall stay apart by the sense of each arc. Every
arc counts as possible, so there are no false paths.

- The clock is ideal: one edge at time 0 with slew 0. A register starts paths with its clock-to-output delay. It ends
  them its setup (or recovery) time before the next edge. Hold is not analysed.
- A clock gate ends paths at its enable, its setup time before the next edge. The clock behind it is as ideal as the one
  in front: the same edge, without delay, slew or skew.
- A memory left out of the logic starts paths at its read data and ends them at all its other pins. It takes the access
  and setup times that it is given (`MemoryTimes`), else none. Data that it reads without a clock follow address and
  enable by the access time.
- Input ports switch at time 0 with slew 0. Output ports have no load and end paths at the clock edge.
- Constants and undriven nets never switch.

Each leaf is analysed once, alone, with its outputs loaded as in the worst of its instances. The modules around it see
it as a cell: input capacitance, time needed behind each input (for a slew of 0), arrival at each output, and delays
from input to output where no register lies between.
"""

from dataclasses import asdict, dataclass
from itertools import chain, pairwise

import numpy as np

from openvrex.synth.liberty import SynthError
from openvrex.synth.nldm import EDGES, FALL, RISE, CellTiming, Table, Tables

REGISTER, MEMORY, PORT = range(3)  # kinds of starts and ends of paths
_STARTS = ("register", "memory", "input")
_ENDS = ("register", "memory", "output")
_CLOCK = -3  # stands for the clock edge as source of arcs, until nodes are counted; -1 and -2 are edges of a constant


@dataclass(frozen=True)
class PathStep:
    """A step of a path: through `instance` of `cell` to the signal `net`, where the edge arrives at `arrival`.

    `net` is "" if mapping left no name.
    """

    cell: str
    instance: str
    net: str
    edge: str
    delay: float
    arrival: float


@dataclass(frozen=True)
class Path:
    """The longest path of its kind, such as "register to memory", from signal `start` to signal `end` of `module`.

    delay : delay of the whole path, including `setup` at its end
    levels : cells between start and end; a leaf on the way counts as one
    through : signals of the source between them (`synth.source_names`)
    """

    kind: str
    module: str
    start: str
    end: str
    delay: float
    setup: float
    levels: int
    steps: tuple[PathStep, ...]
    through: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryTimes:
    """Times of a memory, for rising and falling signals.

    access, slews : delay of read data behind the clock edge and their slew, by the slew of the clock and the load
    setup : time that an input must be there before the clock edge, by its slew
    load : capacitance of an input (fF)
    """

    access: tuple[Table, Table]
    slews: tuple[Table, Table]
    setup: tuple[Table, Table]
    load: float = 0.0


def memory_times(access: float, setup: float) -> MemoryTimes:
    """Times (ps, or tau for the embedded library) that depend on no slew and no load; read data have a slew of 0."""
    tables = (constant(access),) * 2, (_ZERO,) * 2, (constant(setup),) * 2
    return MemoryTimes(*tables)


@dataclass(frozen=True)
class Timing:
    """The longest path of each kind, longest first. `unit` of times: "ps", or "tau" for the embedded library."""

    unit: str
    paths: tuple[Path, ...]

    @property
    def delay(self) -> float:
        """The shortest clock period; 0 for a design without paths."""
        return self.paths[0].delay if self.paths else 0.0

    @property
    def levels(self) -> int:
        """Number of cells on the longest path."""
        return self.paths[0].levels if self.paths else 0

    @property
    def fmax_mhz(self) -> float | None:
        """The highest clock frequency; None without paths, and for the unit tau, which is no time."""
        return 1e6 / self.delay if self.unit == "ps" and self.delay > 0 else None

    def report(self) -> dict:
        """All fields and derived figures as a dict that JSON can hold."""
        return asdict(self) | {n: getattr(self, n) for n in ("delay", "levels", "fmax_mhz")}


def from_json(d: dict) -> Timing:
    """The timing that `dataclasses.asdict` has turned into `d`."""
    lists = ({"steps": tuple(PathStep(**s) for s in p["steps"]), "through": tuple(p["through"])} for p in d["paths"])
    return Timing(d["unit"], tuple(Path(**p | x) for p, x in zip(d["paths"], lists, strict=True)))


def analyse(
    netlists: dict[str, dict],
    cells: dict[str, CellTiming],
    unit: str,
    wires: dict[int, tuple[float, float]] | None = None,
    memories: dict[str, dict[str, MemoryTimes]] | None = None,
) -> dict[str, Timing]:
    """Longest paths of every module, by module. The last module's include those in its leaves.

    netlists : netlist of `synth.worker`, by module; each follows the leaves that it holds
    cells : timing of every library cell in them
    unit : unit of times for the reports, "ps" or "tau"
    wires : capacitance (fF) of a net's wire and its longest delay (ps), by net of the last module. The capacitance
        loads the driver; the delay counts on every way through the net, and leaves the slew as it is
    memories : times of memories by module and name; another memory takes none
    Raises: `SynthError` for latches, combinational loops, several clocks, and clocks made by logic other than a clock
    gate.
    """
    modules: dict[str, _Module] = {}
    for name, netlist in netlists.items():
        modules[name] = _Module(name, netlist, cells, modules, (memories or {}).get(name, {}))
    modules[name].add_wires(wires or {})
    for module in reversed(list(modules.values())):
        module.load_leaves()
    found = {}
    for module in modules.values():
        module.run()
        if module.name != name:
            module.summarise()
        found[module.name] = module.paths(inner=module.name != name)
    found[name] = [p for paths in found.values() for p in paths]
    return {n: Timing(unit, _worst(paths)) for n, paths in found.items()}


def _worst(paths: list[Path]) -> tuple[Path, ...]:
    """The longest path of each kind, longest first."""
    worst: dict[str, Path] = {}
    for path in sorted(paths, key=lambda p: -p.delay):
        worst.setdefault(path.kind, path)
    return tuple(worst.values())


class _Module:
    """The timing graph of a module. Node 2n is the rise of net n, 2n + 1 its fall, the last node the clock edge.

    It is built in three steps, because modules need each other: graph from the netlist (here), loads outside of its
    ports (`load_leaves`), arrivals (`run`). `leaves` are the modules that it may hold, after their first step.
    """

    def __init__(
        self,
        name: str,
        netlist: dict,
        cells: dict[str, CellTiming],
        leaves: dict[str, "_Module"],
        memories: dict[str, MemoryTimes],
    ):
        self.name, self.netlist, self.leaves, self.memories = name, netlist, dict(leaves), memories
        self.nets: dict[int, int] = {}
        self.tables = Tables()
        self.arcs: list[tuple[np.ndarray, ...]] = []  # source, target, delay table, slew table, instance
        self.instances: list[tuple[str, str]] = []  # cell or "memory", name
        self.starts: dict[int, tuple[str, np.ndarray, np.ndarray]] = {}  # net -> name, arrivals by kind and edge, slews
        self.reads: dict[int, tuple[str, np.ndarray, np.ndarray]] = {}  # net -> memory, its tables of access and slew
        self.ends: list[tuple[int, int, int, str]] = []  # node, number of its setup table or -1, kind, name
        self.clocks: dict[tuple[int, int], str] = {}  # net, edge -> a register or memory that it clocks
        self.gated: dict[int, int] = {}  # net behind a clock gate -> the gate's clock
        self.loads: list[tuple[np.ndarray, np.ndarray]] = []  # nets, capacitance of a pin on each, by edge
        self.outside: dict[tuple[str, int], np.ndarray] = {}  # load outside of an output port, by port and bit
        ports = netlist["ports"].items()
        self.inputs = {(p, i): self._net(b) for p, (d, bits) in ports if d == "input" for i, b in enumerate(bits)}
        self.outputs = {(p, i): self._net(b) for p, (d, bits) in ports if d != "input" for i, b in enumerate(bits)}
        self.held = [c for c in netlist["cells"] if c[1] in leaves]
        for port, net in self.inputs.items():
            self._start(net, self.port(port), PORT)
        for port, net in self.outputs.items():
            self._end(net, (RISE, FALL), -1, PORT, self.port(port))
        self._gates(cells)
        for memory, (parameters, pins) in netlist["memories"].items():
            self._memory(memory, parameters, pins)
        for instance, kind, pins in self.held:
            self._leaf_inputs(instance, leaves[kind], pins)
        self.names = {self.nets[int(b)]: signal for b, signal in netlist["names"].items() if int(b) in self.nets}
        self.load, self.wire = np.zeros((2, 2 * len(self.nets) + 1))
        for nets, caps in self.loads:
            for edge in (RISE, FALL):
                np.add.at(self.load, 2 * nets[nets >= 0] + edge, np.broadcast_to(caps[edge], len(nets))[nets >= 0])
        inputs = np.array(list(self.inputs.values()), int)
        # Capacitance of its input ports, by edge.
        self.caps = np.where(inputs < 0, 0, [self.load[2 * inputs + edge] for edge in (RISE, FALL)])
        self.clock = self._clock()

    def add_wires(self, wires: dict[int, tuple[float, float]]) -> None:
        """Adds the capacitance of wires to the loads, and keeps their delays. A clock's wire has no delay."""
        for bit, (capacitance, delay) in wires.items():
            if bit in self.nets:
                node = 2 * self.nets[bit]
                self.load[node : node + 2] += capacitance
                self.wire[node : node + 2] = delay

    def port(self, port: tuple[str, int]) -> str:
        """Name of a bit of a port for readers."""
        return port[0] if len(self.netlist["ports"][port[0]][1]) == 1 else f"{port[0]}[{port[1]}]"

    def _net(self, bit: int | str) -> int:
        """Number of a net, -1 for a constant."""
        return self.nets.setdefault(bit, len(self.nets)) if isinstance(bit, int) else -1

    def _gates(self, cells: dict[str, CellTiming]) -> None:
        """Adds arcs, loads and ends of all cells, all cells of a type at once."""
        types: dict[str, list] = {}
        for name, kind, pins in self.netlist["cells"]:
            if kind not in self.leaves:
                types.setdefault(kind, []).append((len(self.instances), pins))
                self.instances.append((kind, name))
        for kind, members in types.items():
            cell = cells[kind]
            at = np.array([i for i, _ in members])
            if cell.latch:
                raise SynthError(
                    f"{self.name}: {self._register(at[0])} is a latch ({kind}); only edge-triggered registers are timed"
                )
            nets = {
                pin: np.array([self._net(pins[pin][0]) if pins.get(pin) else -1 for _, pins in members])
                for pin in (*cell.inputs, *cell.outputs)
            }
            self.loads += [(nets[pin], np.array(caps)) for pin, caps in cell.inputs.items()]
            for arc in () if cell.gate else cell.arcs:
                source, target = nets[arc.source], nets[arc.target]
                self._add(2 * source + arc.source_edge, 2 * target + arc.target_edge, arc.delay, arc.slew, at)
            for arc in cell.launches:
                self._add(np.full(len(at), _CLOCK), 2 * nets[arc.target] + arc.target_edge, arc.delay, arc.slew, at)
            for check in cell.checks:
                for edge, table in enumerate(check.tables):
                    for i, net in zip(at, nets[check.data], strict=True):
                        if table:
                            self._end(net, (edge,), self.tables.add(table), REGISTER, self._register(i))
            if cell.clock:
                pin, edge = cell.clock
                for i, net in zip(at, nets[pin], strict=True):
                    self.clocks.setdefault((net, edge), self._register(i))
            if cell.gate:
                self.gated |= dict(zip(nets[cell.gate.out], nets[cell.gate.clock], strict=True))

    def _register(self, instance: int) -> str:
        """Name of a register in the source, or of its cell."""
        name = self.instances[instance][1]
        return self.netlist["registers"].get(name, name)

    def _add(self, source: np.ndarray, target: np.ndarray, delay: Table, slew: Table, instance: np.ndarray) -> None:
        """Adds arcs between nodes; constants have none."""
        ok = (target >= 0) & ((source >= 0) | (source == _CLOCK))
        delays, slews = (np.full(ok.sum(), self.tables.add(t)) for t in (delay, slew))
        self.arcs.append((source[ok], target[ok], delays, slews, instance[ok]))

    def _end(self, net: int, edges: tuple[int, ...], table: int, kind: int, name: str) -> None:
        """Lets paths end at some edges of a net. `table` : number of the setup table, -1 for no setup time."""
        if net >= 0:
            self.ends += [(2 * net + e, table, kind, name) for e in edges]

    def _memory(self, name: str, parameters: dict[str, str], pins: dict[str, list]) -> None:
        """Adds starts and ends of a memory, and arcs if it is read without a clock."""
        width, abits = int(parameters["WIDTH"], 2), int(parameters["ABITS"], 2)
        times = self.memories.get(name, _NO_TIMES)
        for way, signals in (
            ("RD", {"address": ("ADDR", abits), "enable": ("EN", 1), "reset": ("SRST", 1)}),
            ("WR", {"address": ("ADDR", abits), "data": ("DATA", width), "enable": ("EN", width)}),
        ):
            ports = int(parameters[f"{way}_PORTS"], 2)
            for p in range(ports):
                clocked, rising = (parameters[f"{way}_CLK_{k}"][-1 - p] == "1" for k in ("ENABLE", "POLARITY"))
                verb = {"RD": "read", "WR": "write"}[way] + (f" {p}" if ports > 1 else "")
                taken = [
                    (self._net(b), f"{name} {verb} {word}" + (f"[{i}]" if n > 1 else ""))
                    for word, (key, n) in signals.items()
                    for i, b in enumerate(pins[f"{way}_{key}"][p * n : (p + 1) * n])
                ]
                given = [self._net(b) for b in pins["RD_DATA"][p * width : (p + 1) * width]] if way == "RD" else []
                loaded = np.array([net for net in dict(taken) if net >= 0], int)
                self.loads.append((loaded, np.full(2, times.load)))
                if clocked:
                    net = self._net(pins[f"{way}_CLK"][p])
                    self.clocks.setdefault((net, RISE if rising else FALL), f"{name} {verb}")
                    for net, what in dict(taken).items():
                        for edge in (RISE, FALL):
                            self._end(net, (edge,), self.tables.add(times.setup[edge]), MEMORY, what)
                    for i, net in enumerate(given):
                        self._start(net, f"{name} {verb} data" + (f"[{i}]" if width > 1 else ""), MEMORY)
                        access, slews = (
                            np.array([self.tables.add(t) for t in tables]) for tables in (times.access, times.slews)
                        )
                        self.reads[net] = name, access, slews
                elif way == "WR":
                    raise SynthError(f"{self.name}: {name} is written without a clock; only clocked writes are timed")
                else:
                    self._follow(name, [n for n, _ in taken], given, times)

    def _start(self, net: int, name: str, kind: int) -> None:
        """Lets paths start at both edges of a net at time 0."""
        if net < 0:
            return
        arrivals = np.full((3, 2), -np.inf)
        arrivals[kind] = 0
        self.starts[net] = name, arrivals, np.zeros(2)

    def _follow(self, name: str, sources: list[int], targets: list[int], times: MemoryTimes) -> None:
        """Adds arcs from all `sources` to all `targets`, in which the memory is read."""
        at = np.full(2 * len(sources) * len(targets), len(self.instances))
        self.instances.append(("memory", name))
        for edge in (RISE, FALL):
            pairs = np.array([(2 * s + a, 2 * t + edge) for s in sources for t in targets for a in (RISE, FALL)])
            self._add(pairs[:, 0], pairs[:, 1], times.access[edge], times.slews[edge], at)

    def _leaf_inputs(self, instance: str, leaf: "_Module", pins: dict[str, list]) -> None:
        """Adds loads and clock of a leaf in this module, and numbers all its nets."""
        for bit in chain(*pins.values()):
            self._net(bit)
        self.loads.append((np.array([self._pin(pins, *port) for port in leaf.inputs], int), leaf.caps))
        if leaf.clock:
            port, edge = leaf.clock
            self.clocks.setdefault((self._pin(pins, *port), edge), f"{leaf.name} {instance}")

    def _leaf_outputs(self, instance: str, leaf: "_Module", pins: dict[str, list]) -> None:
        """Adds starts, ends and arcs of a leaf in this module."""
        net = {port: self._pin(pins, *port) for port in (*leaf.inputs, *leaf.outputs)}
        name = {port: f"{instance}.{leaf.port(port)}" for port in net}
        for port, (arrivals, slews) in leaf.given.items():
            if net[port] >= 0:
                self.starts[net[port]] = name[port], arrivals, slews
        for (port, edge, kind), table in leaf.needed.items():
            self._end(net[port], (edge,), self.tables.add(table), kind, name[port])
        at = np.array([len(self.instances)])
        self.instances.append((leaf.name, instance))
        for (source, a, target, b), table in leaf.through.items():
            before, behind = (np.array([2 * net[p] + edge]) for p, edge in ((source, a), (target, b)))
            self._add(before, behind, table, _ZERO, at)

    def _pin(self, pins: dict[str, list], port: str, i: int) -> int:
        """Number of the net on bit `i` of a leaf's port, -1 for none."""
        return self._net(pins[port][i]) if port in pins else -1

    def _clock(self) -> tuple[tuple[str, int], int] | None:
        """Port and edge of the only clock, None without registers and memories."""
        names = {net: port for port, net in self.inputs.items()}
        used: dict[tuple[tuple[str, int], int], str] = {}
        for (net, edge), what in self.clocks.items():
            port = names.get(self.gated.get(net, net))
            if port is None:
                raise SynthError(
                    f"{self.name}: the clock of {what} is no input port, nor a clock gate's; only such a clock is timed"
                )
            used.setdefault((port, edge), f"{what} by the {EDGES[edge]} of {port[0]}")
        if len(used) > 1:
            one, other, *_ = used.values()
            raise SynthError(f"{self.name}: several clocks, {one} and {other}; only one clock is timed")
        return next(iter(used), None)

    def load_leaves(self) -> None:
        """Adds the loads outside of its outputs, and tells each leaf the worst loads of all its instances."""
        for port, outside in self.outside.items():
            n = self.outputs[port]
            self.load[2 * n : 2 * n + 2] += outside
        for _, kind, pins in self.held:
            leaf = self.leaves[kind]
            for (port, i), n in leaf.outputs.items():
                net = self._pin(pins, port, i)
                if n >= 0 and net >= 0:
                    worst = leaf.outside.setdefault((port, i), np.zeros(2))
                    np.maximum(worst, self.load[2 * net : 2 * net + 2], out=worst)

    def run(self) -> None:
        """Computes arrivals and slews of all nodes, delays of all arcs, and setup times of all ends."""
        for instance, kind, pins in self.held:
            self._leaf_outputs(instance, self.leaves[kind], pins)
        self.tables.freeze()
        nodes = 2 * len(self.nets) + 1
        none = np.zeros(0, int)
        arcs = [np.concatenate(column) for column in zip(*self.arcs, strict=True)] or [none] * 5
        arcs[0][arcs[0] == _CLOCK] = nodes - 1
        level = self._levels(arcs[0], arcs[1], nodes)
        order = np.lexsort((arcs[1], level[arcs[1]]))
        self.source, self.target, delay, slew, self.instance = (column[order] for column in arcs)
        edges = np.searchsorted(level[self.target], np.arange(1, level.max(initial=0) + 2))
        self.slices = list(pairwise(edges))
        self.into = np.argsort(self.target, kind="stable")
        self.arrival, self.slew = np.full((3, nodes), -np.inf), np.zeros(nodes)
        self.arrival[REGISTER, -1] = 0
        for net, (_, access, slew_of) in self.reads.items():
            if net >= 0:
                load = self.load[2 * net : 2 * net + 2]
                self.starts[net][1][MEMORY] = self.tables(access, np.zeros(2), load)
                self.starts[net][2][:] = np.maximum(self.tables(slew_of, np.zeros(2), load), 0)
        for net, (_, arrivals, slews) in self.starts.items():
            own = slice(2 * net, 2 * net + 2)
            self.arrival[:, own], self.slew[own] = arrivals + self.wire[own], slews
        self.delay = np.zeros(len(order))
        for a, b in self.slices:
            source, target = self.source[a:b], self.target[a:b]
            x, y = self.slew[source], self.load[target]
            self.delay[a:b] = self.tables(delay[a:b], x, y) + self.wire[target]
            at = self.arrival[:, source]
            live = at.max(0) > -np.inf
            first = np.flatnonzero(np.r_[True, target[1:] != target[:-1]])
            reached = target[first]
            latest = np.maximum.reduceat(at + self.delay[a:b], first, axis=1)
            self.arrival[:, reached] = np.maximum(self.arrival[:, reached], latest)
            out = np.where(live, self.tables(slew[a:b], x, y), 0)
            self.slew[reached] = np.maximum(self.slew[reached], np.maximum.reduceat(out, first))  # at least 0
        self.node, tables, self.kind = (np.array([e[i] for e in self.ends], int) for i in range(3))
        timed = tables >= 0
        self.setup = np.zeros(len(tables))
        self.setup[timed] = self.tables(tables[timed], self.slew[self.node[timed]], np.zeros(timed.sum()))

    def summarise(self) -> None:
        """Computes what a module around this one needs.

        given : arrivals and slews at outputs
        needed : time needed behind inputs
        through : delays from inputs to outputs without a register between
        """
        self.given = {}
        for port, n in self.outputs.items():
            if n >= 0:
                arrivals = self.arrival[:, 2 * n : 2 * n + 2].copy()
                arrivals[PORT] = -np.inf
                self.given[port] = arrivals, self.slew[2 * n : 2 * n + 2]
        self.needed, self.through = {}, {}
        for kind in (REGISTER, MEMORY):
            behind = np.full(len(self.slew), -np.inf)
            ends = self.kind == kind
            np.maximum.at(behind, self.node[ends], self.setup[ends])
            for port, edge, need in self._behind(behind):
                self.needed[port, edge, kind] = constant(need)
        for target, n in self.outputs.items():
            for b in (RISE, FALL):
                if n >= 0 and self.arrival[PORT, 2 * n + b] > -np.inf:
                    behind = np.full(len(self.slew), -np.inf)
                    behind[2 * n + b] = 0
                    for source, a, need in self._behind(behind):
                        self.through[source, a, target, b] = constant(need)

    def _behind(self, behind: np.ndarray) -> list[tuple[tuple[str, int], int, float]]:
        """Input ports and edges with their longest delay to a node of `behind`, plus the value there."""
        for a, b in reversed(self.slices):
            np.maximum.at(behind, self.source[a:b], behind[self.target[a:b]] + self.delay[a:b])
        ports = (
            (port, edge, behind[2 * n + edge]) for port, n in self.inputs.items() if n >= 0 for edge in (RISE, FALL)
        )
        return [p for p in ports if p[2] > -np.inf]

    def paths(self, inner: bool) -> list[Path]:
        """The longest path of each kind. For an `inner` module (a leaf), paths from and to its ports do not count."""
        out = []
        for start in range(3):
            for end in range(3):
                ends = np.flatnonzero(self.kind == end)
                total = self.arrival[start, self.node[ends]] + self.setup[ends]
                if len(total) and total.max() > -np.inf and not (inner and PORT in (start, end)):
                    out.append(self._path(start, ends[total.argmax()]))
        return out

    def _path(self, kind: int, end: int) -> Path:
        """The longest path from starts of a kind to end number `end`."""
        node, arcs = self.node[end], []
        while not self._starts(node, kind):
            into = self.into[slice(*np.searchsorted(self.target, (node, node + 1), sorter=self.into))]
            late = self.arrival[kind, self.source[into]] + self.delay[into] == self.arrival[kind, node]
            arcs.append(into[late.argmax()])
            node = self.source[arcs[-1]]
        clocked = node == len(self.slew) - 1
        start = self._register(self.instance[arcs[-1]]) if clocked else self.starts[node // 2][0]
        steps = []
        net, edge = divmod(node, 2)
        if kind == MEMORY and net in self.reads and self.reads[net][0] in self.memories:
            arrival = float(self.arrival[kind, node])
            steps.append(PathStep("memory", self.reads[net][0], self.names.get(net, ""), EDGES[edge], arrival, arrival))
        for i in reversed(arcs):
            net, edge = divmod(self.target[i], 2)
            cell, instance = self.instances[self.instance[i]]
            arrival = float(self.arrival[kind, self.target[i]])
            signal = self.names.get(net, "")
            steps.append(PathStep(cell, _short(instance), signal, EDGES[edge], float(self.delay[i]), arrival))
        setup, name = self.setup[end], self.ends[end][3]
        return Path(
            kind=f"{_STARTS[kind]} to {_ENDS[self.kind[end]]}",
            module=self.name,
            start=start,
            end=name,
            delay=float(self.arrival[kind, self.node[end]] + setup),
            setup=float(setup),
            levels=sum(s.cell != "memory" for s in steps) - int(clocked),
            steps=tuple(steps),
        )

    def _starts(self, node: int, kind: int) -> bool:
        """Whether the longest path of this kind starts at the node."""
        net, edge = divmod(node, 2)
        if net in self.starts and self.starts[net][1][kind][edge] + self.wire[node] == self.arrival[kind, node]:
            return True
        return node == len(self.slew) - 1

    def _levels(self, source: np.ndarray, target: np.ndarray, nodes: int) -> np.ndarray:
        """The largest number of arcs on a way to each node. Raises `SynthError`, which names the signals of a loop."""
        waiting = np.bincount(target, minlength=nodes)
        level = np.zeros(nodes, int)
        order = np.argsort(source, kind="stable")
        first = np.searchsorted(source[order], np.arange(nodes + 1))
        ready, depth = np.flatnonzero(waiting == 0), 0
        while len(ready):
            depth += 1
            count = first[ready + 1] - first[ready]
            skip = np.repeat(first[ready] - np.cumsum(count) + count, count)
            reached = target[order[skip + np.arange(count.sum())]]
            level[reached] = depth
            np.subtract.at(waiting, reached, 1)
            ready = np.unique(reached[waiting[reached] == 0])
        if waiting.any():
            loop = ", ".join(self._loop(source, target, waiting > 0))
            raise SynthError(f"{self.name}: combinational loop through {loop}; put a register into it")
        return level

    def _loop(self, source: np.ndarray, target: np.ndarray, stuck: np.ndarray) -> list[str]:
        """Signals of a loop among the `stuck` nodes. Each of them has a stuck node before it."""
        inside = stuck[source] & stuck[target]
        before = dict(zip(target[inside].tolist(), source[inside].tolist(), strict=True))
        way = [min(before)]
        while before[way[-1]] not in way:
            way.append(before[way[-1]])
        loop = dict.fromkeys(n // 2 for n in way[way.index(before[way[-1]]) :])
        return [self.names.get(n, "a net without name") for n in loop]


def constant(value: float) -> Table:
    """A table with one value for every slew and load."""
    return Table((0.0,), (0.0,), ((value,),))


_ZERO = constant(0.0)
_NO_TIMES = memory_times(0.0, 0.0)


def _short(instance: str) -> str:
    """An instance's name; names that Yosys made lose their history."""
    return f"_{instance.rpartition('$')[2]}_" if instance.startswith("$") else instance
