"""Proves a unit mapped with clock gates equal to the unit mapped without them.

Both netlists are those that `vrex size` measures: library cells after ABC. Their flip-flops have the same names, so
both become one circuit without registers: ports, states of flip-flops and read data of memories go in, what they take
goes out. A flip-flop behind a gate takes its data in cycles whose enable is 1, and keeps its state in others. ABC's
`&cec` compares what is not the same gate. A unit's leaves are proved each on its own.

That a latch and an AND before a flip-flop's clock do so is proved by `prove_cell`, with the clock as a signal.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from openvrex.hdl.emit import emit
from openvrex.synth import cells, flow
from openvrex.synth.cells import Gate
from openvrex.tb.formal.verilog_equivalence import Equal, Graph, UnequalError
from openvrex.tb.library.yosys import run_yosys

Name = tuple  # of a bit that both sides have: ("port", name, bit), ("register", cell), ("memory", name, pin,
# bit), (leaf, pin, bit)

SAT = "sat -tempinduct -maxsteps 20 -prove-asserts -set-assumes"
# The library's gate in front of a flip-flop, and a flip-flop with an enable. Data and enable change at rising edges, as
# registers drive them.
CELL = """
module top(input clk, d, e);
  reg held, data, enable, gated, plain;
  always @(posedge clk) begin data <= d; enable <= e; end
  always @* if (!clk) held = enable;
  wire passed = clk & held;
  always @(posedge passed) gated <= data;
  always @(posedge clk) if (enable) plain <= data;
  initial assume (gated == plain);
  always @* assert (gated == plain);
endmodule
"""


def prove(unit: str, params: object, edit: Callable[[dict], None] = lambda _: None, **options: Any) -> Iterator[Equal]:
    """Proves each module of a unit that is mapped once, leaves first.

    `edit` changes the netlist with gates, to see the proof fail; `options` are of `flow.netlists`.
    Raises: `UnequalError` for a bit that differs, and if nothing in the whole unit is gated.
    """
    made = emit(unit, params)
    options = {"leaves": tuple(made.manifest["leaves"])} | options
    plain, library = flow.netlists(made.verilog, made.top, **options | {"gated": 0})
    gated, _ = flow.netlists(made.verilog, made.top, **options)
    used = {c for d in (*plain.values(), *gated.values()) for c in d["cells"] if c in library.cells}
    gates, _ = cells.load(library, used)
    if not any(gate.gate for gate in gates.values()):
        raise UnequalError(f"{unit}: nothing is gated, so nothing is proved")
    for name, done in gated.items():
        start = time.monotonic()
        edit(done["netlist"])
        graph = Graph()
        inputs: dict[Name, Literal] = {}
        one, other = (Side(name, x, gates, graph, inputs) for x in (plain, gated))
        mine, theirs = one.taken(), other.taken()
        if lost := mine.keys() ^ theirs.keys():
            raise UnequalError(f"{name}: only one side has {sorted(lost)[:3]}")
        pairs = [(" ".join(map(str, n)), value.at, theirs[n].at) for n, value in mine.items()]
        differ = [pair for pair in pairs if pair[1] != pair[2]]
        with tempfile.TemporaryDirectory() as tmp:
            if differ:
                graph.check(Path(tmp), differ)
        yield Equal(name, len(one.flops), len(pairs), len(pairs) - len(differ), time.monotonic() - start)


class Literal:
    """A bit of a graph; works as an operand of `cells.Function`."""

    def __init__(self, graph: Graph, at: int) -> None:
        self.graph, self.at = graph, at

    def __and__(self, other: "Literal") -> "Literal":
        return Literal(self.graph, self.graph.both(self.at, other.at))

    def __invert__(self) -> "Literal":
        return Literal(self.graph, self.at ^ 1)

    def __or__(self, other: "Literal") -> "Literal":
        return ~(~self & ~other)

    def __xor__(self, other: "Literal") -> "Literal":
        return (self & ~other) | (~self & other)


class Side:
    """A mapped netlist in a graph.

    modules : netlists of all modules, for the directions of a leaf's pins
    inputs : the bits that go in, by name, which both sides share
    """

    def __init__(
        self, name: str, modules: dict[str, dict], gates: dict[str, Gate], graph: Graph, inputs: dict[Name, Literal]
    ) -> None:
        self.netlist, self.graph, self.inputs = modules[name]["netlist"], graph, inputs
        self.values: dict[int | str, Literal] = {c: Literal(graph, int(c == "1")) for c in "01xz"}
        self.drivers: dict[int | str, tuple[Gate, dict, str]] = {}  # net -> a combinational cell, and its pin
        self.flops: list[tuple[str, Gate, dict]] = []
        self.passed: dict[int | str, tuple[Gate, dict]] = {}  # net behind a clock gate
        self.asked: list[tuple[Name, int | str]] = []  # what goes out, with its net
        for cell, kind, pins in self.netlist["cells"]:
            gate = gates.get(kind)
            if gate is None:
                self._ports(modules[kind]["netlist"]["ports"], "output", (cell,), pins)
            elif gate.gate:
                self.passed[pins[gate.gate.out][0]] = gate, pins
            elif gate.next_state:
                self.flops.append((cell, gate, pins))
            else:
                self.drivers |= {pins[p][0]: (gate, pins, p) for p in gate.outputs if pins.get(p)}
        ports = self.netlist["ports"]
        self._ports(ports, "input", ("port",), {n: bits for n, (_, bits) in ports.items()})
        for memory, (_, pins) in self.netlist["memories"].items():
            self._ports({p: (p,) for p in pins}, "RD_DATA", ("memory", memory), pins)
        for cell, gate, pins in self.flops:
            state = gate.states(self._input(("register", cell)))
            self.values |= {pins[p][0]: out(state) for p, out in gate.outputs.items() if pins.get(p)}

    def _ports(self, ports: dict, giving: str, name: Name, pins: dict[str, list]) -> None:
        """Bits of a box's or this module's ports: those of the direction `giving` go in, the others out."""
        for pin, bits in pins.items():
            for i, bit in enumerate(bits):
                if ports[pin][0] == giving:
                    self.values[bit] = self._input((*name, pin, i))
                else:
                    self.asked.append(((*name, pin, i), bit))

    def _input(self, name: Name) -> Literal:
        if name not in self.inputs:
            self.inputs[name] = Literal(self.graph, self.graph.new())
        return self.inputs[name]

    def value(self, bit: int | str) -> Literal:
        """The literal of a net, with those that it needs. A gated clock is like nothing else."""
        work = [bit]
        while work:
            at = work[-1]
            if at in self.values:
                work.pop()
            elif at not in self.drivers:
                self.values[at] = Literal(self.graph, self.graph.new())
            else:
                gate, pins, pin = self.drivers[at]
                into = {p: pins[p][0] for p in gate.inputs}
                if left := [x for x in into.values() if x not in self.values]:
                    work += left
                else:
                    self.values[at] = gate.outputs[pin]({p: self.values[x] for p, x in into.items()})
        return self.values[bit]

    def taken(self) -> dict[Name, Literal]:
        """What goes out: outputs, what leaves and memories take, and of each flip-flop the next state and the clock."""
        out = {name: self.value(bit) for name, bit in self.asked}
        for cell, gate, pins in self.flops:
            label = "register", self.netlist["registers"].get(cell, cell)
            now = self.inputs["register", cell]
            coming = gate.coming({p: self.value(pins[p][0]) for p in gate.inputs} | gate.states(now))
            clock = pins[gate.clock][0]
            if clock in self.passed:
                before, into = self.passed[clock]
                clock = into[before.clock][0]
                edge = before.open({p: self.value(into[p][0]) for p in before.inputs})
                coming = (coming & edge) | (now & ~edge)
            out[*label, "next", cell] = coming
            out[*label, "clock", cell] = self.value(clock)
        return out


def prove_cell(edit: tuple[str, str] = ("", "")) -> None:
    """Proves that a flip-flop behind a clock gate is one with an enable, with the clock free in every step.

    `edit` (old, new) changes `CELL`, to see the proof fail. Raises: `UnequalError` if it does.
    """
    with tempfile.TemporaryDirectory() as tmp:
        source, log = Path(tmp, "a.v"), Path(tmp, "log")
        source.write_text(CELL.replace(*edit))
        run_yosys(
            [f"read_verilog -formal {source}", "prep -top top", "clk2fflogic", "opt_clean", f"tee -q -o {log} {SAT}"]
        )
        if "Induction step proven: SUCCESS!" not in log.read_text():
            raise UnequalError(f"a flip-flop behind a clock gate differs: {log.read_text()[-500:]}")
