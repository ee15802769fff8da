"""A design of Amaranth as modules of CIRCT, whose printer writes them as Verilog."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amaranth.hdl import Instance, MemoryInstance, Signal, Value
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from openvrex.hdl.writer.amaranth_private import Design, SwitchValue, depth_and_width, reads_of, writes_of
from openvrex.hdl.writer.blocks import Block, Case, If, Node, Set, assigned, blocks, groups, sets, tests
from openvrex.hdl.writer.circt import BEHIND, Language, exported
from openvrex.hdl.writer.expressions import Expressions, needed
from openvrex.hdl.writer.loops import levels
from openvrex.hdl.writer.names import Names, comment, legal, summary
from openvrex.hdl.writer.parts import Part, members, parts, through
from openvrex.hdl.writer.variables import Var, Variables, WriterError, pin_name

PACKAGES = Path(__file__).parents[2]  # the folder in which the packages are
Arm = tuple[tuple[str, ...] | None, str]  # patterns of an arm of a `case`, None for its default, and its text


@dataclass(frozen=True)
class Pin:
    """A port of a module in the text, which is bits of a port of its design.

    name, output, width : as in the text · port : the design's port · start : its lowest bit here
    """

    name: str
    output: bool
    width: int
    port: str
    start: int


@dataclass(frozen=True)
class Origin:
    """Where a variable of the text comes from: bits of a signal in Amaranth's RTLIL, from `start` on."""

    signal: str
    start: int


@dataclass
class Inside:
    """Variables of a module that have rules, by their names in the text.

    origins : components of which the module is made
    states : {register: (bits, names of its states by number)}
    overflow, underflow : (access, readiness) of a queue whose user does not look at its readiness
    """

    origins: tuple[object, ...]
    states: dict[str, tuple[int, dict[int, str]]] = field(default_factory=dict)
    overflow: list[tuple[str, str]] = field(default_factory=list)
    underflow: list[tuple[str, str]] = field(default_factory=list)


class Writer:
    """Writes designs as modules of one text.

    pins : {module: its ports in the text}
    inside : {module: what in it has rules}
    origins : {module: {variable of the text: its origin}}, to prove the text equal to RTLIL
    instances : {module: {instance in the text: (its name in RTLIL, its module)}}
    """

    def __init__(self, language: Language = Language.VERILOG2005, lines: bool = False):
        self.language, self.lines = language, lines
        self.pins: dict[str, list[Pin]] = {}
        self.inside: dict[str, Inside] = {}
        self.origins: dict[str, dict[str, Origin]] = {}
        self.instances: dict[str, dict[str, tuple[str, str]]] = {}
        self._through: dict[str, dict[str, set[str]]] = {}  # of each design, the inputs that outputs depend on at once
        self._modules: list[str] = []
        self._externs: dict[tuple, str] = {}

    def add(self, design: Design, top: str) -> None:
        """Adds the modules of a design, whose top module is `top`; leaves come before designs that have them.

        Raises `WriterError` for a construct that cannot be written.
        """
        variables = Variables()
        whole = parts(design, top, variables, self._through)
        comb = [group for part in whole.all() for group in groups(part.trees.get("comb", []), _one)]
        level = levels(comb, whole.comb)
        modules = [_Module(self, design, part, variables, level).text() for part in whole.all()]
        self._through[top] = through(whole)
        self._modules[:0] = reversed(modules)  # a module stands before those that it uses

    def extern(self, instance: Instance, pins: list[Pin]) -> str:
        """The symbol of a module that is written elsewhere."""
        key = instance.type, tuple(instance.parameters), tuple(pins)
        if key not in self._externs:
            symbol = f"{instance.type}_{len(self._externs)}"
            generic = f"<{', '.join(f'{n}: i32' for n in instance.parameters)}>" if instance.parameters else ""
            ports = ", ".join(f"{'out ' if pin.output else 'in %'}{pin.name}: i{pin.width}" for pin in pins)
            attributes = f'attributes {{verilogName = "{instance.type}"}}'
            self._modules.append(f"hw.module.extern @{symbol}{generic}({ports}) {attributes}")
            self._externs[key] = symbol
        return self._externs[key]

    def verilog(self) -> str:
        """The text of all modules, a module before those that it uses."""
        return exported("\n".join(self._modules), self.language, self.lines)


class _Module:
    """One module of the text."""

    def __init__(self, writer: Writer, design: Design, part: Part, variables: Variables, level: dict[Var, int]):
        self.writer, self.part, self.vars, self.level = writer, part, variables, level
        self.info = design.fragments[part.fragment]
        self.names = Names()
        self.e = Expressions(variables, self.names, self._read, self._state, self._choose, part.inlined)
        self.inputs: dict[str, int] = {}  # input ports and their widths
        self.values: dict[Var, str] = {}  # results: of input ports, and of their fields
        self.places: dict[Var, str] = {}  # references to declarations
        self.states: dict[tuple, str] = {}
        self.constants: list[tuple[str, int, str]] = []  # signal and number of each state, and its declaration
        self.declared: list[str] = []
        self.origins: dict[str, Origin] = writer.origins.setdefault(part.name, {})
        self.instances: dict[str, tuple[str, str]] = writer.instances.setdefault(part.name, {})

    def text(self) -> str:
        """The module as MLIR text."""
        pins = self._pins()
        own = self._blocks()
        self._declare(own, {pin.name for pin, _ in pins if pin.output})
        for block in own:
            for value, times in tests(block.body):
                self.e.count(value, times)
        for below in self.part.below:
            self._below(below)
        for label, instance in self.part.instances:
            self._instance(label, instance)
        for label, memory in self.part.memories:
            self._memory(label, memory)
        for block in own:
            self._block(block)
        outputs = [(self.e.concat([(self._read(v), v.width) for v in of]), f"i{p.width}") for p, of in pins if p.output]
        results = f" {', '.join(o for o, _ in outputs)} : {', '.join(t for _, t in outputs)}" if outputs else ""
        ports = ", ".join(f"{'out ' if pin.output else 'in %'}{pin.name}: i{pin.width}" for pin, _ in pins)
        about = " ".join(filter(None, (summary(origin) for origin in self.part.fragment.origins or ())))
        attributes = f' attributes {{comment = "{_escaped(about)}"}}' if about else ""
        lines = self._unused(f"hw.output{results}")
        self.writer.inside[self.part.name] = self._inside({pin.name for pin, _ in pins})
        text = "\n".join(lines)
        constants = [line for _, _, line in sorted(self.constants) if re.search(rf"{line.partition(' ')[0]}\b", text)]
        lines = [*constants, *self.declared, text]
        return f"hw.module @{self.part.name}({ports}){attributes} {{\n" + "\n".join(lines) + "\n}"

    def _pins(self) -> list[tuple[Pin, list[Var]]]:
        """The ports in the text, each with its variables."""
        groups: dict[object, list] = {}
        for port in self.part.ports:
            groups.setdefault(port.var if port.name.endswith("payload") else port.name, []).append(port)
        out = []
        for group in groups.values():
            of = [port.var for port in group]
            name = self.names.new(pin_name(group[0].name, of[0]))
            pin = Pin(name, group[0].output, sum(v.width for v in of), group[0].name, of[0].start)
            out.append((pin, of))
            if not pin.output:
                self._input(pin, of)
        self.writer.pins[self.part.name] = [pin for pin, _ in out]
        return out

    def _input(self, pin: Pin, of: list[Var]) -> None:
        self.inputs[f"%{pin.name}"] = pin.width
        if len(of) == 1:
            self.values[of[0]] = f"%{pin.name}"
            return
        for var in of:
            field = self.e.extract(f"%{pin.name}", pin.width, var.start, var.stop)
            self.values[var] = self.e.named(field, var.width, var.name)

    def _blocks(self) -> list[Block]:
        out: list[Block] = []
        plain: dict[tuple, Block] = {}
        for domain, trees in self.part.trees.items():
            kind: Callable[[Var], object] = _one if domain == "comb" else _resets
            for block in blocks(domain, trees, kind, self.level if domain == "comb" else {}):
                key = domain, _resets(block.vars[0])
                if domain == "comb" or not all(isinstance(node, Set) for node in block.body):
                    out.append(block)
                elif key in plain:  # registers that take a value in every cycle share a block
                    plain[key].vars += block.vars
                    plain[key].body += block.body
                else:
                    plain[key] = block
                    out.append(block)
        return out

    def _declare(self, own: list[Block], outputs: set[str]) -> None:
        """Declares the variables that this module drives, or a module in it."""
        registers = {v for block in own if not _continuous(block) for v in block.vars}
        for _, memory in self.part.memories:
            registers |= {v for p in reads_of(memory) if p.domain != "comb" for v in self.vars.of(p.data)}
        labels = {}  # of ports of submodules: the submodule's name goes before theirs
        for inner, _, _ in self.part.fragment.subfragments:
            for origin in inner.origins or ():
                for name, signal in members(origin):
                    if signal.name == name:
                        labels.setdefault(id(signal), f"{self._label_of(inner)}_")
        here = dict.fromkeys([*self.part.drivers, *(p.var for b in self.part.below for p in b.ports if p.output)])
        rank = {id(signal): i for i, signal in enumerate(self.info.used_signals)}
        indexed = {n.var for block in own for n in sets(block.body) if n.index is not None and n.stride == 1}
        said = ""
        for var in sorted(here, key=lambda v: (rank.get(id(v.signal), len(rank)), v.start)):
            name = legal(labels.get(id(var.signal), "") + var.name)
            origin = Origin(self.info.signal_names.get(var.signal, ""), var.start)
            if name in outputs:
                # The printer cannot declare an output as a register, nor read one: the variable stands behind it.
                kept = var in registers and self.part.drivers.get(var) != "comb"
                self.origins[name] = origin
                name += "_q" if kept else "_c" if var in registers else BEHIND
            name = self.names.new(name)
            about = comment(var.signal.src_loc)
            if about and about != said:
                self.declared.append(f'sv.verbatim "{_escaped("// " + about)}"')
            said = about
            kind = self.writer.language.variable if var in registers else "sv.wire"
            # Yosys then makes a choice for each index, as RTLIL has it, in place of shifts, which take more gates.
            how = ' {sv.attributes = [#sv.attribute<"nowrshmsk">]}' if var in indexed and var.width > 1 else ""
            self.declared.append(f'%{name}_v = {kind} name "{name}"{how} : !hw.inout<i{var.width}>')
            self.places[var] = f"%{name}_v"
            self.origins[name] = origin

    def _inside(self, ports: set[str]) -> Inside:
        """What in this module has rules."""
        out = Inside(tuple(self.part.fragment.origins or ()))
        for var in self.part.drivers:
            if self.part.drivers[var] not in ("comb", "memory") and var in self.places and var.numbers:
                out.states[self._named(var, ports)] = var.width, dict(sorted(var.numbers.items()))
        for queue in self.part.fragment.origins or ():
            if isinstance(queue, SyncFIFO | SyncFIFOBuffered):
                for to, ends in ((out.overflow, (queue.w_en, queue.w_rdy)), (out.underflow, (queue.r_en, queue.r_rdy))):
                    access, ready = (self.vars.of(end)[0] for end in ends)
                    known = [var in self.places or var in self.values for var in (access, ready)]
                    if all(known) and ready not in {port.var for port in self.part.ports}:
                        to.append((self._named(access, ports), self._named(ready, ports)))
        return out

    def _named(self, var: Var, ports: set[str]) -> str:
        """The name of a variable in the text."""
        if var in self.values:
            return self.values[var].removeprefix("%")
        name = self.places.get(var, "").removeprefix("%").removesuffix("_v")
        behind = name.removesuffix(BEHIND)
        return behind if behind != name and behind in ports else name

    def _label_of(self, fragment: object) -> str:
        labelled = [(b.label, b.fragment) for b in self.part.below] + self.part.instances + self.part.memories
        return next((label for label, inner in labelled if inner is fragment), "")

    def _read(self, var: Var) -> str:
        if var in self.values:
            return self.values[var]
        if var in self.places:
            return self.e.op(f"sv.read_inout {self.places[var]} : !hw.inout<i{var.width}>")
        return self.e.constant(var.init, var.width)  # nothing drives it

    def _state(self, var: Var | None, number: int) -> str:
        """The constant with the name of a variable's number; "" if it has none."""
        name = var.numbers.get(number) if var else None
        if var is None or not name:
            return ""
        n = var.width
        key = name, number, n
        if key not in self.states:
            own = self.names.new(name if self.names.free(name) else f"{var.name.upper()}_{name}")
            value = number - (1 << n) if number >> (n - 1) else number
            self.states[key] = f"%{own}"
            line = f'%{own} = sv.localparam {{value = {value} : i{n}, name = "{own}"}} : i{n}'
            self.constants.append((var.name, number, line))
        return self.states[key]

    def _instantiate(self, label: str, module: str, generic: str, pins: list[Pin], values: dict[str, str]) -> list[str]:
        """Adds an instance; the results of its outputs, in order."""
        ins = ", ".join(f"{pin.name}: {values[pin.name]}: i{pin.width}" for pin in pins if not pin.output)
        outs = [pin for pin in pins if pin.output]
        results = [f"%{label}_{pin.name}_r" for pin in outs]
        left = f"{', '.join(results)} = " if outs else ""
        right = ", ".join(f"{pin.name}: i{pin.width}" for pin in outs)
        self.e.lines.append(f'{left}hw.instance "{label}" @{module}{generic}({ins}) -> ({right})')
        return results

    def _below(self, below: Part) -> None:
        label = self.names.new(below.label)
        self.instances[label] = below.label, below.name
        pins = self.writer.pins[below.name]
        of = {pin.name: port.var for pin, port in zip(pins, below.ports, strict=True)}
        values = {pin.name: self._read(of[pin.name]) for pin in pins if not pin.output}
        results = self._instantiate(label, below.name, "", pins, values)
        for pin, result in zip((pin for pin in pins if pin.output), results, strict=True):
            self.e.lines.append(f"sv.assign {self.places[of[pin.name]]}, {result} : i{pin.width}")

    def _instance(self, own: str, instance: Instance) -> None:
        label = self.names.new(own)
        self.instances[label] = own, instance.type
        pins = self.writer.pins.get(instance.type)
        symbol = instance.type
        if pins is None:
            pins = [Pin(name, kind == "o", len(value), name, 0) for name, (value, kind) in instance.ports.items()]
            symbol = self.writer.extern(instance, pins)
        values = {}
        for pin in pins:
            value = instance.ports[pin.port][0]
            if not pin.output:
                self.e.target = f"{label}_{pin.name}"
                self.e.count(value)
                values[pin.name] = self.e.bits(value, pin.start, pin.start + pin.width)
        parameters = ", ".join(f"{n}: i32 = {v}" for n, v in instance.parameters.items())
        results = self._instantiate(label, symbol, f"<{parameters}>" if parameters else "", pins, values)
        for pin, result in zip((pin for pin in pins if pin.output), results, strict=True):
            signal = instance.ports[pin.port][0]
            for var, low, high in self.vars.over(signal, pin.start, pin.start + pin.width):
                if var in self.places:
                    at = var.start + low - pin.start
                    bits = self.e.extract(result, pin.width, at, at + high - low)
                    self.e.lines.append(f"sv.assign {self._slice(var, low, high)}, {bits} : i{high - low}")

    def _memory(self, own: str, memory: MemoryInstance) -> None:
        """The words of a FIFO, as an array."""
        (depth, width), name = depth_and_width(memory), self.names.new(own)
        kind = f"!hw.inout<uarray<{depth}xi{width}>>" if depth > 1 else f"!hw.inout<i{width}>"
        self.declared.append(f'%{name}_v = {self.writer.language.variable} name "{name}" : {kind}')
        self.origins[name] = Origin(own if depth > 1 else f"{own}[0]", 0)

        def word(address: Value) -> str:
            if depth == 1:
                return f"%{name}_v"
            n = len(address)
            at = self.e.low(address, n) if n else self.e.constant(0, 1)
            return self.e.op(f"sv.array_index_inout %{name}_v[{at}] : {kind}, i{max(1, n)}")

        for port in writes_of(memory):
            self.e.target = f"{name}_write"
            to, what, lanes = word(port.address), self.e.low(port.data, width), len(port.enable)
            lane, body = width // lanes, []
            for k in range(lanes):
                part, kind_ = to, f"i{lane}"
                if lanes > 1:
                    bits = f'sv.verbatim.expr "{{{{0}}}}[{(k + 1) * lane - 1}:{k * lane}]"({to})'
                    part = self.e.op(f"{bits} : (!hw.inout<i{width}>) -> !hw.inout<{kind_}>")
                value = self.e.bits(port.data, k * lane, (k + 1) * lane) if lanes > 1 else what
                body.append(f"sv.if {self.e.bits(port.enable, k, k + 1)} {{\nsv.passign {part}, {value} : {kind_}\n}}")
            self._clocked(port.domain, "\n".join(body))
        for port in reads_of(memory):
            self.e.target = f"{name}_read"
            if port.transparent:
                raise WriterError(f"memory {name}: a read that sees a write of its cycle; forward the word instead")
            (var,) = self.vars.of(port.data)
            value = self.e.op(f"sv.read_inout {word(port.address)} : !hw.inout<i{width}>")
            if port.domain == "comb":
                self.e.lines.append(f"sv.assign {self.places[var]}, {value} : i{width}")
            else:
                enable = self.e.low(port.enable, 1)
                self._clocked(port.domain, f"sv.if {enable} {{\nsv.passign {self.places[var]}, {value} : i{width}\n}}")

    def _clocked(self, domain: str, body: str) -> None:
        clk = self._read(self.vars.of(self.part.clocks[domain][0])[0])
        self.e.lines.append(self.writer.language.clocked(clk, body))

    def _initial(self, var: Var, assign: str) -> str:
        value = self._state(var, var.init) or self.e.constant(var.init, var.width)
        return f"sv.{assign} {self.places[var]}, {value} : i{var.width}"

    def _block(self, block: Block) -> None:
        if _continuous(block):
            self._assigns(block)
        elif block.domain == "comb":
            starts = [self._initial(var, "bpassign") for var in block.vars if not _covered(var, block.body)]
            body = self._nodes(block.body, "bpassign")
            self.e.lines.append(self.writer.language.combinational("\n".join([*starts, body])))
        else:
            body = self._nodes(block.body, "passign")
            rst = self.part.clocks[block.domain][1]
            if rst is not None and _resets(block.vars[0]):
                starts = "\n".join(self._initial(var, "passign") for var in block.vars)
                body = f"sv.if {self._read(self.vars.of(rst)[0])} {{\n{starts}\n}} else {{\n{body}\n}}"
            self._clocked(block.domain, body)

    def _assigns(self, block: Block) -> None:
        """A continuous assignment for each statement, and for the bits that none drives."""
        left = {var: (1 << var.width) - 1 for var in block.vars}
        for node in block.body:
            self.e.target = node.var.name
            value = self.e.bits(node.value, node.at, node.at + node.high - node.low)
            to = self._slice(node.var, node.low, node.high)
            self.e.lines.append(f"sv.assign {to}, {value} : i{node.high - node.low}{self._place(node)}")
            left[node.var] &= ~((1 << node.high) - (1 << node.low))
        for var, bits in left.items():
            for low, high in _runs(bits):
                value = self.e.constant(var.init >> low, high - low)
                self.e.lines.append(f"sv.assign {self._slice(var, low, high)}, {value} : i{high - low}")

    def _slice(self, var: Var, low: int, high: int) -> str:
        """A reference to bits of a variable."""
        if (low, high) == (0, var.width):
            return self.places[var]
        bits = f"[{low}]" if high == low + 1 else f"[{high - 1}:{low}]"
        kind = f"(!hw.inout<i{var.width}>) -> !hw.inout<i{high - low}>"
        return self.e.op(f'sv.verbatim.expr "{{{{0}}}}{bits}"({self.places[var]}) : {kind}')

    def _nodes(self, nodes: list[Node], assign: str) -> str:
        return "\n".join(self._node(node, assign) for node in nodes)

    def _node(self, node: Node, assign: str) -> str:
        self.e.target = next(assigned([node])).name
        if isinstance(node, If):
            return self._chain([(None if t is None else self.e.true(t), body) for t, body in node.arms], assign)
        if isinstance(node, Case):
            return self._case(node, assign)
        if node.index is not None:
            return self._indexed(node, node.index, assign)
        value = self.e.number(node.var if node.high - node.low == node.var.width else None, node.value, node.at)
        value = value or self.e.bits(node.value, node.at, node.at + node.high - node.low)
        to = self._slice(node.var, node.low, node.high)
        return f"sv.{assign} {to}, {value} : i{node.high - node.low}{self._place(node)}"

    def _indexed(self, node: Set, index: Value, assign: str) -> str:
        size, width, n = node.var.width, node.width, len(index)
        value = self.e.bits(node.value, node.at, node.at + width)
        if size == 1:  # Verilog has no part of a single bit
            zero = self.e.matches(self.e.low(index, n), n, ["0" * n])
            return f"sv.if {zero} {{\nsv.{assign} {self.places[node.var]}, {value} : i1\n}}"
        if ((1 << n) - 1) * node.stride + width > size and size % node.stride:
            raise WriterError(f"signal {node.var.name}: bit_select of {width} bits can pass its highest bit; widen it")
        if node.stride > 1:  # words, which tools choose better by a case than by a shift
            arms = []
            for k in range(min(1 << n, size // node.stride)):
                to = self._slice(node.var, k * node.stride, k * node.stride + width)
                text = f"sv.{assign} {to}, {value} : i{width}{self._place(node)}"
                arms.append(((f"{k:0{n}b}",), text))
            return self._arms(index, self.e.low(index, n), arms)
        at, bits = self.e.offset(index, node.stride)
        if width == 1:
            to = self.e.bit(self.places[node.var], f"!hw.inout<i{size}>", at, bits)
            return f"sv.{assign} {to}, {value} : i1{self._place(node)}"
        kind = f"!hw.inout<i{size}>, i{bits}"
        to = self.e.op(f"sv.indexed_part_select_inout {self.places[node.var]}[{at} : {width}] : {kind}")
        return f"sv.{assign} {to}, {value} : i{width}{self._place(node)}"

    def _place(self, node: Set) -> str:
        """The place of a statement in the source, from the folder of the packages on."""
        if not self.writer.lines:
            return ""
        path, line = Path(node.src_loc[0]), node.src_loc[1]
        own = path.is_relative_to(PACKAGES)
        return f' loc("{path.relative_to(PACKAGES).as_posix() if own else path.name}":{line}:0)'

    def _chain(self, arms: list[tuple[str | None, list[Node]]], assign: str) -> str:
        (test, body), *rest = arms
        known = 1 if test is None else self.e.known(test)
        if test is None or known is not None:
            return self._nodes(body, assign) if known else self._chain(rest, assign) if rest else ""
        out = f"sv.if {test} {{\n{self._nodes(body, assign)}\n}}"
        return f"{out} else {{\n{self._chain(rest, assign)}\n}}" if rest else out

    def _case(self, node: Case, assign: str) -> str:
        test = self.e.low(node.test, len(node.test))
        if any("-" in pattern for patterns, _ in node.arms for pattern in patterns or ()):
            if not isinstance(node.test, Signal):
                test = self.e.named(test, len(node.test), f"{self.e.target}_case")
            fits = (None if p is None else self.e.matches(test, len(node.test), p) for p, _ in node.arms)
            return self._chain([(fit, body) for fit, (_, body) in zip(fits, node.arms, strict=True)], assign)
        return self._arms(node.test, test, [(p, self._nodes(body, assign)) for p, body in node.arms])

    def _arms(self, value: Value, test: str, arms: list[Arm]) -> str:
        """A `case` over a value, whose result is `test`, with the patterns (without -) and the text of each arm."""
        n, operands, patterns, var = len(value), [test], [], self.vars.numbered(value, self.part.inlined)
        if arms[-1][0] is None or sum(len(p or ()) for p, _ in arms) < 1 << n:
            arms = arms if arms[-1][0] is None else [*arms, (None, "")]
        else:  # all numbers have an arm, and lint tools want a default
            last, text = arms[-1]
            state = self._state(var, int(last[0], 2))
            arms = [*arms[:-1], (None, f'sv.verbatim "// {state[1:]}"\n{text}' if state else text)]
        for p, _ in arms:
            if p is None:
                patterns.append("unit")
                continue
            states = [self._state(var, int(x, 2)) for x in p]
            if len(p) == 1 and not states[0]:
                patterns.append(_pattern(int(p[0], 2), n))
                continue
            items = [state or self.e.constant(int(x, 2), n) for state, x in zip(states, p, strict=True)]
            patterns.append("#sv.expr")
            if len(items) > 1:  # the printer has one pattern for an arm, which may be a list
                form = ", ".join(f"{{{{{i}}}}}" for i in range(len(items)))
                kinds = ", ".join([f"i{n}"] * len(items))
                items = [self.e.op(f'sv.verbatim.expr "{form}"({", ".join(items)}) : ({kinds}) -> i{n}')]
            operands += items
        regions = ", ".join(f"{{\n^bb0:\n{text}\n}}" for _, text in arms)
        style = "caseStyle = 0 : i32, validationQualifier = #sv<validation_qualifier plain>"
        properties = f"<{{casePatterns = [{', '.join(patterns)}], {style}}}>"
        types = ", ".join([f"i{n}"] * len(operands))
        return f'"sv.case"({", ".join(operands)}) {properties} ({regions}) : ({types}) -> ()'

    def _choose(self, value: SwitchValue, test: str, arms: list[Arm], width: int) -> str:
        """A variable that a `case` gives one of several results; its value."""
        name = self.names.new(self.e.name_of(value))
        place = f"%{name}_v"
        self.declared.append(f'{place} = {self.writer.language.variable} name "{name}" : !hw.inout<i{width}>')
        body = self._arms(value.test, test, [(p, f"sv.bpassign {place}, {x} : i{width}") for p, x in arms])
        self.e.lines.append(self.writer.language.combinational(body))
        out = self.e.op(f"sv.read_inout {place} : !hw.inout<i{width}>")
        self.e.temporaries[out] = width
        return out

    def _unused(self, output: str) -> list[str]:
        """The lines that are needed, and a wire of the bits that nothing reads, whose name tells lint tools so."""
        lines, bits = needed([*self.e.lines, output])
        defined = {line.partition(" = ")[0] for line in lines}
        self.e.lines = lines[:-1]
        wires = {name: width for name, width in self.e.temporaries.items() if name in defined}
        rest = []
        for name, width in (wires | self.inputs).items():
            rest += [(name, width, *run) for run in _runs(~bits.get(name, 0) & (1 << width) - 1)]
        for var, place in self.places.items():
            rest += [(self._read(var), var.width, *run) for run in _runs(~bits.get(place, 0) & (1 << var.width) - 1)]
        if rest:
            every = self.e.concat([(self.e.extract(*part), part[3] - part[2]) for part in rest])
            self.e.named(self.e.all_of(every, sum(high - low for *_, low, high in rest)), 1, "unused")
        return [*self.e.lines, output]


def _one(_: Var) -> None:
    """All variables are of one kind."""


def _resets(var: Var) -> bool:
    return not var.signal.reset_less


def _continuous(block: Block) -> bool:
    """Whether a combinational block is a list of assignments to bits, each of them once."""
    if block.domain != "comb" or not all(isinstance(n, Set) and n.index is None for n in block.body):
        return False
    taken: dict[Var, int] = {}
    for node in block.body:
        bits = (1 << node.high) - (1 << node.low)
        if taken.get(node.var, 0) & bits:
            return False
        taken[node.var] = taken.get(node.var, 0) | bits
    return True


def _covered(var: Var, nodes: list[Node]) -> bool:
    """Whether a variable's first assignment is always done, and to all its bits."""
    first = next(node for node in nodes if var in set(assigned([node])))
    return isinstance(first, Set) and first.index is None and (first.low, first.high) == (0, var.width)


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """The ranges of bits that are set."""
    at = 0
    while bits >> at:
        at += (bits >> at & -(bits >> at)).bit_length() - 1
        rest = bits >> at
        width = (~rest & -~rest).bit_length() - 1
        yield at, at + width
        at += width


def _pattern(number: int, bits: int) -> str:
    """A pattern of `sv.case`, which has two bits for each bit: 0 or 1."""
    return f"{sum((number >> i & 1) << 2 * i for i in range(bits))} : i{2 * bits}"


def _escaped(text: str) -> str:
    """Text of a comment as a string of MLIR: ASCII, without what the printer would replace."""
    text = text.encode("ascii", "replace").decode().replace("{{", "{ {").rstrip("\\ ")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A")
