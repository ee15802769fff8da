"""Proves the written Verilog of a unit equal to Amaranth's own RTLIL of it.

Yosys reads both and makes gates of them. Registers of the text have the names of their signals (`Writer.origins`), so
that both become one circuit without registers: the inputs of the unit, its registers and its memories go in, what they
take goes out. Gates that are alike are the same gate at once, and ABC's `&cec` compares the rest.

A unit's leaves, which stand in it many times, are proved each on its own, and so is the rest of the unit around them.
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amaranth.back.rtlil import convert_fragment

from openvrex.hdl.emit import component_of, elaborated_unit, in_text
from openvrex.hdl.leaf import Leaves
from openvrex.hdl.memory import bodies
from openvrex.hdl.writer.amaranth_private import Design, PortDirection
from openvrex.hdl.writer.modules import Writer
from openvrex.synth.yosys_abc import run_abc
from openvrex.tb.library.yosys import run_yosys

_GATES = (
    "hierarchy -check -top {top}",
    "proc -norom",
    "flatten",
    "opt_expr",
    "memory_collect",
    "memory_map",
    "opt_expr",
    "techmap",
    "simplemap",
    "dffunmap",
    "opt_expr",
    "opt_clean",
    "aigmap",
    "opt_clean",
    "write_json {json}",
)
_NO_START = ("delete w:$verilog_initial_trigger", "delete t:$meminit t:$meminit_v2", "setattr -unset init w:*")
_CONSTANTS = {"0": 0, "1": 1, "x": 0, "z": 0}

Name = tuple  # of a bit that both sides have: ("port", name, bit), ("register", path, bit), ("box", path, pin, bit)


@dataclass(frozen=True)
class Equal:
    """A module that is proved equal. outputs : bits compared · alike : of them, those that are the same gates"""

    module: str
    registers: int
    outputs: int
    alike: int
    seconds: float


class UnequalError(AssertionError):
    """A module that is not equal; the message names some of the bits that differ."""


def prove(unit: str, params: object, change: tuple[str, str] | None = None) -> Iterator[Equal]:
    """Proves each module of a unit that is emitted once, leaves first.

    `change` (old, new) replaces the first `old` of the text, to see the proof fail. Raises `UnequalError`.
    """
    leaves = Leaves(unit)
    design = elaborated_unit(unit, component_of(unit, params), unit, leaves)
    designs, writer = leaves.designs | {unit: design}, in_text(design, unit, leaves)
    text = writer.verilog()
    if change:
        assert change[0] in text, f"nothing to change: {change[0]!r}"
        text = text.replace(*change, 1)
    memories = bodies(unit, leaves.kinds, empty=True)
    for name in designs:
        yield _prove_module(name, designs, writer, text, memories)


def _prove_module(top: str, designs: dict[str, Design], writer: Writer, text: str, memories: str) -> Equal:
    start = time.monotonic()
    others = [name for name in designs if name != top]
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "memories.v").write_text(memories)
        (folder / "boxes.v").write_text("".join(_box(name, designs[name]) for name in others))
        (folder / "gold.il").write_text(convert_fragment(designs[top], name=top, emit_src=False)[0])
        (folder / "gate.v").write_text(text)
        boxes = [f"blackbox {' '.join(others)}"] if others else []
        read = [f"read_verilog {folder}/memories.v"] if memories else []
        gold = _netlist(
            folder, top, [*read, f"read_verilog {folder}/boxes.v", f"read_rtlil {folder}/gold.il", *_NO_START]
        )
        gate = _netlist(folder, top, [*read, f"read_verilog {folder}/gate.v", *boxes])
        both = _Both(gold, gate, _Names(writer, top))
        pairs = both.pairs()
        differ = [pair for pair in pairs if pair[1] != pair[2]]
        if differ:
            both.graph.check(folder, differ)
        return Equal(top, both.registers, len(pairs), len(pairs) - len(differ), time.monotonic() - start)


def _box(name: str, design: Design) -> str:
    """A module without content, with the ports of a design."""
    ports = [
        f"{'output' if direction is PortDirection.Output else 'input'} [{len(signal) - 1}:0] \\{port} "
        for port, signal, direction in design.ports
        if len(signal)
    ]
    return f"(* blackbox *)\nmodule {name}({', '.join(ports)});\nendmodule\n"


def _netlist(folder: Path, top: str, read: list[str]) -> dict:
    run_yosys([*read, *(c.format(top=top, json=folder / "a.json") for c in _GATES)])
    return json.loads((folder / "a.json").read_text())["modules"][top]


class _Names:
    """What the names of the text are in RTLIL: of registers and FIFO words, of instances, of ports."""

    def __init__(self, writer: Writer, top: str):
        self.writer, self.top = writer, top
        self.signals: dict[str, tuple[str, int]] = {}
        self.boxes: dict[str, tuple[str, str]] = {}
        self._walk(top, (), ())

    def _walk(self, module: str, here: tuple[str, ...], there: tuple[str, ...]) -> None:
        for name, origin in self.writer.origins[module].items():
            self.signals[".".join((*here, name))] = ".".join((*there, origin.signal)), origin.start
        for label, (own, kind) in self.writer.instances[module].items():
            self.boxes[".".join((*here, label))] = ".".join((*there, own)), kind
            if kind in self.writer.origins and kind.startswith(f"{module}__"):
                self._walk(kind, (*here, label), (*there, own))

    def signal(self, name: str, bit: int) -> tuple[str, int] | None:
        """The bit of a signal in RTLIL."""
        base, bracket, word = name.partition("[")
        if base not in self.signals:
            return None
        origin, start = self.signals[base]
        return f"{origin}{bracket}{word}", start + bit

    def pin(self, module: str, name: str, bit: int) -> tuple[str, int]:
        """The bit of a port in RTLIL."""
        for pin in self.writer.pins.get(module, ()):
            if pin.name == name:
                return pin.port, pin.start + bit
        return name, bit


class _Side:
    """A netlist of one side: the value of every bit, as a literal of the graph that both share."""

    def __init__(self, netlist: dict, graph: "Graph"):
        self.netlist, self.graph = netlist, graph
        self.values: dict[object, int] = dict(_CONSTANTS)
        self.gates: dict[int, dict] = {}
        self.registers: dict[int, int] = {}  # output: input
        self.boxes: list[tuple[str, dict]] = []
        for name, cell in netlist["cells"].items():
            pins = cell["connections"]
            if cell["type"] in ("$_AND_", "$_NOT_"):
                self.gates[pins["Y"][0]] = pins
            elif cell["type"] == "$_DFF_P_":
                self.registers[pins["Q"][0]] = pins["D"][0]
            elif not cell["type"].startswith("$"):
                self.boxes.append((name, cell))
            else:
                assert cell["type"] == "$scopeinfo", f"{name}: a {cell['type']} cannot be compared"
        self.names: dict[int, list[tuple[str, int]]] = {}
        for name, net in netlist["netnames"].items():
            for i, bit in enumerate(net["bits"]):
                self.names.setdefault(bit, []).append((name, i))

    def value(self, bit: object) -> int:
        """The literal of a bit, with those that it needs."""
        work = [bit]
        while work:
            at = work[-1]
            pins = self.gates.get(at)
            if at in self.values or pins is None:
                self.values.setdefault(at, 0)  # nothing drives it
                work.pop()
                continue
            into = [pins["A"][0], *pins.get("B", ())]
            if left := [x for x in into if x not in self.values]:
                work += left
                continue
            a, *b = (self.values[x] for x in into)
            self.values[at] = self.graph.both(a, b[0]) if b else a ^ 1
            work.pop()
        return self.values[bit]


class _Both:
    """The two sides in one graph. `registers` : bits of registers that the text has"""

    def __init__(self, gold: dict, gate: dict, names: _Names):
        self.graph, self.of = Graph(), names
        self.gold, self.gate = _Side(gold, self.graph), _Side(gate, self.graph)
        self.inputs: dict[Name, int] = {}
        known = {name: bit for bit in self.gold.registers for name in self.gold.names.get(bit, ())}
        self.same: dict[int, int] = {}  # register of the text: that of RTLIL
        for bit in self.gate.registers:
            own = [name for n, i in self.gate.names.get(bit, ()) if (name := names.signal(n, i)) in known]
            if not own:
                raise UnequalError(f"{names.top}: RTLIL has no register {self.gate.names.get(bit)}")
            self.same[bit] = known[own[0]]
        self.registers = len(self.same)
        for bit in self.gold.registers:
            self.gold.values[bit] = self._input(("register", bit))
        for bit, other in self.same.items():
            self.gate.values[bit] = self._input(("register", other))
        for side in (self.gold, self.gate):
            for name, bit in self._bits(side, "output", "input"):
                side.values[bit] = self._input(name)

    def _input(self, name: Name) -> int:
        if name not in self.inputs:
            self.inputs[name] = self.graph.new()
        return self.inputs[name]

    def _bits(self, side: _Side, of_box: str, of_port: str) -> Iterator[tuple[Name, object]]:
        """Bits of instances' pins and of ports with these directions."""
        here = side is self.gate
        for label, cell in side.boxes:
            path, kind = self.of.boxes[label] if here else (label, "")
            for pin, bits in cell["connections"].items():
                if cell["port_directions"][pin] == of_box:
                    for i, bit in enumerate(bits):
                        yield ("box", path, *(self.of.pin(kind, pin, i) if here else (pin, i))), bit
        for name, port in side.netlist["ports"].items():
            if port["direction"] == of_port:
                for i, bit in enumerate(port["bits"]):
                    yield ("port", *(self.of.pin(self.of.top, name, i) if here else (name, i))), bit

    def pairs(self) -> list[tuple[str, int, int]]:
        """What both sides compute, by name: of RTLIL, of the text."""
        gold = {name: self.gold.value(bit) for name, bit in self._bits(self.gold, "input", "output")}
        gate = {name: self.gate.value(bit) for name, bit in self._bits(self.gate, "input", "output")}
        if lost := gold.keys() ^ gate.keys():
            raise UnequalError(f"{self.of.top}: only one side has {sorted(lost)[:3]}")
        out = [(" ".join(map(str, name)), value, gate[name]) for name, value in gold.items()]
        for bit, other in self.same.items():
            name = f"register {self.gate.names[bit][0]}"
            out.append((name, self.gold.value(self.gold.registers[other]), self.gate.value(self.gate.registers[bit])))
        return out


class Graph:
    """An and-inverter graph without registers; equal gates are one. A literal is twice a node, plus 1 if inverted."""

    def __init__(self):
        self.nodes = 0
        self.inputs: list[int] = []
        self.ands: dict[tuple[int, int], int] = {}

    def new(self) -> int:
        """A new input."""
        self.nodes += 1
        self.inputs.append(self.nodes)
        return 2 * self.nodes

    def both(self, a: int, b: int) -> int:
        """The literal of a and b."""
        a, b = min(a, b), max(a, b)
        if a == 0 or a == b ^ 1:
            return 0
        if a == 1 or a == b:
            return b
        if (a, b) not in self.ands:
            self.nodes += 1
            self.ands[a, b] = 2 * self.nodes
        return self.ands[a, b]

    def write(self, path: Path, outputs: list[int]) -> None:
        """Binary AIGER, whose inputs have the lowest numbers."""
        number = {node: i + 1 for i, node in enumerate(self.inputs)}
        number[0] = 0
        for literal in self.ands.values():
            number[literal // 2] = len(number)
        new = lambda literal: 2 * number[literal // 2] + literal % 2  # noqa: E731
        head = f"aig {self.nodes} {len(self.inputs)} 0 {len(outputs)} {len(self.ands)}\n"
        lines = head + "".join(f"{new(output)}\n" for output in outputs)
        body = bytearray()
        for (a, b), literal in self.ands.items():
            low, high = sorted((new(a), new(b)))
            for delta in (new(literal) - high, high - low):
                while delta >= 128:
                    body.append(delta & 127 | 128)
                    delta >>= 7
                body.append(delta)
        path.write_bytes(lines.encode() + bytes(body))

    def check(self, folder: Path, pairs: list[tuple[str, int, int]]) -> None:
        """Raises `UnequalError` unless the literals of each pair are equal for all inputs."""
        self.write(folder / "gold.aig", [gold for _, gold, _ in pairs])
        self.write(folder / "gate.aig", [gate for _, _, gate in pairs])
        said = run_abc("&r gold.aig; &cec gate.aig", folder)
        if "Networks are equivalent" in said:
            return
        shown = re.search(r"z = \d+'h(\w+) \(gold\), z = \d+'h(\w+) \(gate\)", said)
        if not shown:
            raise RuntimeError(f"ABC found no answer: {said[-500:]}")
        wrong = int(shown[1], 16) ^ int(shown[2], 16)
        raise UnequalError(f"{pairs[(wrong & -wrong).bit_length() - 1][0]} differs")
