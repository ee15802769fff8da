"""A design of Amaranth as modules of CIRCT, whose printer writes them as Verilog."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amaranth.hdl import Instance, MemoryInstance, Signal, Value
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered

from openvrex.hdl.writer.amaranth_private import Design, depth_and_width, reads_of, writes_of
from openvrex.hdl.writer.blocks import Block, Case, If, Node, Set, assigned, blocks, groups, sets, tests
from openvrex.hdl.writer.circt import BEHIND, Language, assign, choice, exported, plain, said
from openvrex.hdl.writer.designs import uncollected
from openvrex.hdl.writer.expressions import Arm, Expressions
from openvrex.hdl.writer.loops import levels
from openvrex.hdl.writer.mlir import Attribute, Literal, Op, Result, walk
from openvrex.hdl.writer.names import comment, legal, summary
from openvrex.hdl.writer.parts import Part, members, parts, through
from openvrex.hdl.writer.results import needed
from openvrex.hdl.writer.variables import Var, Variables, WriterError, pin_name


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

    sources : folder from which a comment behind each statement names its place in Python; `None` : no such comments
    pins : {module: its ports in the text}
    inside : {module: what in it has rules}
    origins : {module: {variable of the text: its origin}}, to prove the text equal to RTLIL
    instances : {module: {instance in the text: (its name in RTLIL, its module)}}
    """

    def __init__(self, language: Language = Language.VERILOG2005, sources: Path | None = None):
        self.language, self.sources = language, sources
        self.pins: dict[str, list[Pin]] = {}
        self.inside: dict[str, Inside] = {}
        self.origins: dict[str, dict[str, Origin]] = {}
        self.instances: dict[str, dict[str, tuple[str, str]]] = {}
        self._through: dict[str, dict[str, set[str]]] = {}  # of each design, the inputs that outputs depend on at once
        self._modules: list[Op] = []
        self._externs: dict[tuple, str] = {}

    @uncollected()
    def add(self, design: Design, top: str) -> None:
        """Adds the modules of a design, whose top module is `top`; leaves come before designs that have them.

        Raises `WriterError` for a construct that cannot be written.
        """
        variables = Variables()
        whole = parts(design, top, variables, self._through)
        comb = [group for part in whole.all() for group in groups(part.trees.get("comb", []), _one)]
        level = levels(comb, whole.comb)
        modules = [_Module(self, design, part, variables, level).whole() for part in whole.all()]
        self._through[top] = through(whole)
        self._modules[:0] = reversed(modules)  # a module stands before those that it uses

    def extern(self, instance: Instance, pins: list[Pin]) -> str:
        """The symbol of a module that is written elsewhere."""
        key = instance.type, tuple(instance.parameters), tuple(pins)
        if key not in self._externs:
            symbol = f"{instance.type}_{len(self._externs)}"
            parameters = tuple(Literal(f'#hw.param.decl<"{name}": i32>') for name in instance.parameters)
            named = {"sym_name": symbol, "verilogName": instance.type}
            self._modules.append(Op("hw.module.extern", attributes=_ports(pins, parameters) | named, regions=(None,)))
            self._externs[key] = symbol
        return self._externs[key]

    def verilog(self) -> str:
        """The text of all modules, a module before those that it uses."""
        return exported(self._modules, self.language, self.sources is not None)


class _Module(Expressions):
    """One module of the text."""

    def __init__(self, writer: Writer, design: Design, part: Part, variables: Variables, level: dict[Var, int]):
        super().__init__(writer.language, variables, part.inlined)
        self.writer, self.part, self.level = writer, part, level
        self.info = design.fragments[part.fragment]
        self.inputs: list[Result] = []
        self.called: dict[Var, str] = {}  # names in the text
        self.origins: dict[str, Origin] = writer.origins.setdefault(part.name, {})
        self.instances: dict[str, tuple[str, str]] = writer.instances.setdefault(part.name, {})

    def whole(self) -> Op:
        """The module as an operation."""
        pins = self._pins()
        own = self._blocks()
        self._declare(own, {pin.name for pin, _ in pins if pin.output})
        for block in own:
            for value, times in tests(block.body):
                self.count(value, times)
        for below in self.part.below:
            self._below(below)
        for label, instance in self.part.instances:
            self._instance(label, instance)
        for label, memory in self.part.memories:
            self._memory(label, memory)
        for block in own:
            self._block(block)
        outputs = [self.concat(map(self.read, of)) for pin, of in pins if pin.output]
        about = " ".join(filter(None, (summary(origin) for origin in self.part.fragment.origins or ())))
        named = {"sym_name": self.part.name} | ({"comment": plain(about)} if about else {})
        ops = self._unused(Op("hw.output", outputs))
        self.writer.inside[self.part.name] = self._inside()
        used = {x for op in walk(ops) for x in op.operands}
        constants = [op for *_, op in sorted(self.constants, key=lambda c: c[:3]) if op.results[0] in used]
        region = [*constants, *self.declared, *ops]
        return Op("hw.module", (), _ports([pin for pin, _ in pins]) | named, regions=(region,), inputs=self.inputs)

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
        port = Result(pin.width, pin.name)
        self.inputs.append(port)
        for var in of:
            bits = port if len(of) == 1 else self.named(self.extract(port, var.start, var.stop), var.name)
            self.values[var], self.called[var] = bits, bits.name

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
        labels: dict[int, str] = {}  # of ports of submodules: the submodule's name goes before theirs
        below = [(b.label, b.fragment) for b in self.part.below]
        for label, inner in [*below, *self.part.instances, *self.part.memories]:
            for origin in inner.origins or ():
                for name, signal in members(origin):
                    if signal.name == name:
                        labels.setdefault(id(signal), f"{label}_")
        here = dict.fromkeys([*self.part.drivers, *(p.var for b in self.part.below for p in b.ports if p.output)])
        rank = {id(signal): i for i, signal in enumerate(self.info.used_signals)}
        indexed = {n.var for block in own for n in sets(block.body) if n.index is not None and n.stride == 1}
        last = ""
        for var in sorted(here, key=lambda v: (rank.get(id(v.signal), len(rank)), v.start)):
            name = port = legal(labels.get(id(var.signal), "") + var.name)
            origin = Origin(self.info.signal_names.get(var.signal, ""), var.start)
            if name in outputs:
                # The printer cannot declare an output as a register, nor read one: the variable stands behind it.
                kept = var in registers and self.part.drivers.get(var) != "comb"
                self.origins[name] = origin
                name += "_q" if kept else "_c" if var in registers else BEHIND
            name = self.names.new(name)
            self.called[var] = port if name == f"{port}{BEHIND}" else name
            about = comment(var.signal.src_loc)
            if about and about != last:
                self.declared.append(said(f"// {about}"))
            last = about
            # Yosys then makes a choice for each index, as RTLIL has it, in place of shifts, which take more gates.
            how = (Literal('#sv.attribute<"nowrshmsk">'),) if var in indexed and var.width > 1 else ()
            self.places[var] = self.declaration(name, var.width, var in registers, how)
            self.origins[name] = origin

    def _inside(self) -> Inside:
        """What in this module has rules."""
        out = Inside(tuple(self.part.fragment.origins or ()))
        for var in self.part.drivers:
            if self.part.drivers[var] not in ("comb", "memory") and var in self.places and var.numbers:
                out.states[self.called[var]] = var.width, dict(sorted(var.numbers.items()))
        for queue in self.part.fragment.origins or ():
            if isinstance(queue, SyncFIFO | SyncFIFOBuffered):
                for to, ends in ((out.overflow, (queue.w_en, queue.w_rdy)), (out.underflow, (queue.r_en, queue.r_rdy))):
                    access, ready = (self.vars.of(end)[0] for end in ends)
                    if {access, ready} <= self.called.keys() and ready not in {port.var for port in self.part.ports}:
                        to.append((self.called[access], self.called[ready]))
        return out

    def _instantiate(
        self, label: str, module: str, parameters: tuple[Literal, ...], pins: list[Pin], values: list[Result]
    ) -> list[tuple[Pin, Result]]:
        """Adds an instance, whose inputs take values; its outputs and their results."""
        outs = [(pin, Result(pin.width)) for pin in pins if pin.output]
        named: dict[str, Attribute] = {"instanceName": label, "moduleName": Literal(f"@{module}")}
        named["argNames"] = tuple(pin.name for pin in pins if not pin.output)
        named["resultNames"] = tuple(pin.name for pin, _ in outs)
        results = [result for _, result in outs]
        self.ops.append(Op("hw.instance", values, named | {"parameters": parameters}, results))
        return outs

    def _below(self, below: Part) -> None:
        label = self.names.new(below.label)
        self.instances[label] = below.label, below.name
        pins = self.writer.pins[below.name]
        of = {pin.name: port.var for pin, port in zip(pins, below.ports, strict=True)}
        values = [self.read(of[pin.name]) for pin in pins if not pin.output]
        for pin, result in self._instantiate(label, below.name, (), pins, values):
            self.ops.append(assign("assign", self.places[of[pin.name]], result))

    def _instance(self, own: str, instance: Instance) -> None:
        label = self.names.new(own)
        self.instances[label] = own, instance.type
        pins = self.writer.pins.get(instance.type)
        symbol = instance.type
        if pins is None:
            pins = [Pin(name, kind == "o", len(value), name, 0) for name, (value, kind) in instance.ports.items()]
            symbol = self.writer.extern(instance, pins)
        values = []
        for pin in pins:
            value = instance.ports[pin.port][0]
            if not pin.output:
                self.target = f"{label}_{pin.name}"
                self.count(value)
                values.append(self.bits(value, pin.start, pin.start + pin.width))
        parameters = tuple(Literal(f'#hw.param.decl<"{n}": i32 = {v}>') for n, v in instance.parameters.items())
        for pin, result in self._instantiate(label, symbol, parameters, pins, values):
            signal = instance.ports[pin.port][0]
            for var, low, high in self.vars.over(signal, pin.start, pin.start + pin.width):
                if var in self.places:
                    at = var.start + low - pin.start
                    bits = self.extract(result, at, at + high - low)
                    self.ops.append(assign("assign", self._slice(var, low, high), bits))

    def _memory(self, own: str, memory: MemoryInstance) -> None:
        """The words of a FIFO, as an array."""
        (depth, width), name = depth_and_width(memory), self.names.new(own)
        array = self.declaration(name, width, True, depth=depth if depth > 1 else 0)
        self.origins[name] = Origin(own if depth > 1 else f"{own}[0]", 0)

        def word(address: Value) -> Result:
            if depth == 1:
                return array
            at = self.low(address, len(address)) if len(address) else self.constant(0, 1)
            return self.op("sv.array_index_inout", width, array, at, place=True)

        for port in writes_of(memory):
            self.target = f"{name}_write"
            to, what, lanes = word(port.address), self.low(port.data, width), len(port.enable)
            lane, body = width // lanes, []
            for k in range(lanes):
                part, value = to, what
                if lanes > 1:
                    low, high = k * lane, (k + 1) * lane
                    part = self.text(f"{{{{0}}}}[{high - 1}:{low}]", lane, to, place=True)
                    value = self.bits(port.data, low, high)
                body.append(choice(self.bits(port.enable, k, k + 1), [assign("passign", part, value)]))
            self._clocked(port.domain, body)
        for port in reads_of(memory):
            self.target = f"{name}_read"
            if port.transparent:
                raise WriterError(f"memory {name}: a read that sees a write of its cycle; forward the word instead")
            (var,) = self.vars.of(port.data)
            value = self.op("sv.read_inout", width, word(port.address))
            if port.domain == "comb":
                self.ops.append(assign("assign", self.places[var], value))
            else:
                enable = self.low(port.enable, 1)
                self._clocked(port.domain, [choice(enable, [assign("passign", self.places[var], value)])])

    def _clocked(self, domain: str, body: list[Op]) -> None:
        clk = self.read(self.vars.of(self.part.clocks[domain][0])[0])
        self.ops.append(self.language.clocked(clk, body))

    def _initial(self, var: Var, how: str) -> Op:
        return assign(how, self.places[var], self.state(var, var.init) or self.constant(var.init, var.width))

    def _block(self, block: Block) -> None:
        if _continuous(block):
            self._assigns(block)
        elif block.domain == "comb":
            starts = [self._initial(var, "bpassign") for var in block.vars if not _covered(var, block.body)]
            body = self._nodes(block.body, "bpassign")
            self.ops.append(self.language.combinational(starts + body))
        else:
            body = self._nodes(block.body, "passign")
            rst = self.part.clocks[block.domain][1]
            if rst is not None and _resets(block.vars[0]):
                starts = [self._initial(var, "passign") for var in block.vars]
                body = [choice(self.read(self.vars.of(rst)[0]), starts, body)]
            self._clocked(block.domain, body)

    def _assigns(self, block: Block) -> None:
        """A continuous assignment for each statement, and for the bits that none drives."""
        left = {var: (1 << var.width) - 1 for var in block.vars}
        for node in block.body:
            self.target = node.var.name
            value = self.bits(node.value, node.at, node.at + node.high - node.low)
            self.ops.append(self._set("assign", node, self._slice(node.var, node.low, node.high), value))
            left[node.var] &= ~((1 << node.high) - (1 << node.low))
        for var, bits in left.items():
            for low, high in _runs(bits):
                value = self.constant(var.init >> low, high - low)
                self.ops.append(assign("assign", self._slice(var, low, high), value))

    def _slice(self, var: Var, low: int, high: int) -> Result:
        """Bits of a variable, to be assigned."""
        if (low, high) == (0, var.width):
            return self.places[var]
        bits = f"[{low}]" if high == low + 1 else f"[{high - 1}:{low}]"
        return self.text(f"{{{{0}}}}{bits}", high - low, self.places[var], place=True)

    def _nodes(self, nodes: list[Node], how: str) -> list[Op]:
        return [op for node in nodes for op in self._node(node, how)]

    def _node(self, node: Node, how: str) -> list[Op]:
        self.target = next(assigned([node])).name
        if isinstance(node, If):
            return self._chain([(None if t is None else self.true(t), body) for t, body in node.arms], how)
        if isinstance(node, Case):
            return self._case(node, how)
        if node.index is not None:
            return [self._indexed(node, node.index, how)]
        value = self.number(node.var if node.high - node.low == node.var.width else None, node.value, node.at)
        value = value or self.bits(node.value, node.at, node.at + node.high - node.low)
        return [self._set(how, node, self._slice(node.var, node.low, node.high), value)]

    def _indexed(self, node: Set, index: Value, how: str) -> Op:
        size, width, n = node.var.width, node.width, len(index)
        value = self.bits(node.value, node.at, node.at + width)
        if size == 1:  # Verilog has no part of a single bit
            zero = self.matches(self.low(index, n), ["0" * n])
            return choice(zero, [assign(how, self.places[node.var], value)])
        if ((1 << n) - 1) * node.stride + width > size and size % node.stride:
            raise WriterError(f"signal {node.var.name}: bit_select of {width} bits can pass its highest bit; widen it")
        if node.stride > 1:  # words, which tools choose better by a case than by a shift
            arms: list[Arm] = []
            for k in range(min(1 << n, size // node.stride)):
                to = self._slice(node.var, k * node.stride, k * node.stride + width)
                arms.append(((f"{k:0{n}b}",), [self._set(how, node, to, value)]))
            return self.arms(index, self.low(index, n), arms)
        at, place = self.offset(index, node.stride), self.places[node.var]
        to = self.bit(place, at) if width == 1 else self.indexed(place, at, width)
        return self._set(how, node, to, value)

    def _set(self, how: str, node: Set, to: Result, value: Result) -> Op:
        """An assignment with its place in the source."""
        folder, path, line = self.writer.sources, Path(node.src_loc[0]), node.src_loc[1]
        if folder is None:
            return assign(how, to, value)
        own = path.is_relative_to(folder)
        return assign(how, to, value, (path.relative_to(folder).as_posix() if own else path.name, line))

    def _chain(self, arms: list[tuple[Result | None, list[Node]]], how: str) -> list[Op]:
        (test, body), *rest = arms
        known = 1 if test is None else test.known
        if test is None or known is not None:
            return self._nodes(body, how) if known else self._chain(rest, how) if rest else []
        then = self._nodes(body, how)
        return [choice(test, then, self._chain(rest, how) if rest else None)]

    def _case(self, node: Case, how: str) -> list[Op]:
        test = self.low(node.test, len(node.test))
        if any("-" in pattern for patterns, _ in node.arms for pattern in patterns or ()):
            if not isinstance(node.test, Signal):
                test = self.named(test, f"{self.target}_case")
            fits = (None if p is None else self.matches(test, p) for p, _ in node.arms)
            return self._chain([(fit, body) for fit, (_, body) in zip(fits, node.arms, strict=True)], how)
        return [self.arms(node.test, test, [(p, self._nodes(body, how)) for p, body in node.arms])]

    def _unused(self, output: Op) -> list[Op]:
        """The operations that are needed, and a wire of the bits that nothing reads, whose name tells lint tools so."""
        ops, bits = needed([*self.ops, output])
        made = {result for op in ops for result in op.results}
        self.ops = ops[:-1]
        rest = []
        for x in [*(x for x in self.temporaries if x in made), *self.inputs]:
            rest += [(x, *run) for run in _runs(~bits.get(x, 0) & (1 << x.width) - 1)]
        for var, place in self.places.items():
            rest += [(self.read(var), *run) for run in _runs(~bits.get(place, 0) & (1 << var.width) - 1)]
        if rest:
            self.named(self.all_of(self.concat(self.extract(*part) for part in rest)), "unused")
        return [*self.ops, output]


def _ports(pins: list[Pin], parameters: tuple[Literal, ...] = ()) -> dict[str, Attribute]:
    """The attributes of a module that say its ports and parameters."""
    ports = ", ".join(f"{'output' if pin.output else 'input'} {pin.name} : i{pin.width}" for pin in pins)
    return {"module_type": Literal(f"!hw.modty<{ports}>"), "parameters": parameters}


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
