"""The fragments of a design: what each drives and reads, what nothing depends on, and the ports between them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amaranth.hdl import Fragment, Instance, MemoryInstance, Signal, Value

from openvrex.hdl.writer import signature
from openvrex.hdl.writer.amaranth_private import Assign, Design, PortDirection, RequirePosedge, reads_of, writes_of
from openvrex.hdl.writer.blocks import Case, If, Node, Set, assigned, read_by, reads, restricted, tree
from openvrex.hdl.writer.names import Names, legal
from openvrex.hdl.writer.variables import Var, Variables, WriterError


@dataclass(frozen=True)
class Port:
    """A port between modules: its name, its direction, and the variable behind it."""

    name: str
    output: bool
    var: Var


@dataclass
class Part:
    """A fragment, which becomes a module.

    name : of the module · label : of its instance
    comb : the variables from which each of the design is computed without a register between
    trees : its statements by clock domain; "comb" has none · clocks : clock and reset of each domain
    inlined : {id of a signal without a name: its value}
    drivers : of each variable its clock domain, "comb", "memory" or the name of an instance
    reads : variables that it reads itself · read, driven : by it and those below
    """

    fragment: Fragment
    name: str
    label: str
    comb: dict[Var, set[Var]]
    below: list["Part"] = field(default_factory=list)
    instances: list[tuple[str, Instance]] = field(default_factory=list)
    memories: list[tuple[str, MemoryInstance]] = field(default_factory=list)
    trees: dict[str, list[list[Node]]] = field(default_factory=dict)
    clocks: dict[str, tuple[Signal, Signal | None]] = field(default_factory=dict)
    inlined: dict[int, Value] = field(default_factory=dict)
    drivers: dict[Var, str] = field(default_factory=dict)
    reads: set[Var] = field(default_factory=set)
    read: set[Var] = field(default_factory=set)
    driven: set[Var] = field(default_factory=set)
    ports: list[Port] = field(default_factory=list)

    def all(self) -> Iterator["Part"]:
        """It and those below it, the lowest first."""
        for below in self.below:
            yield from below.all()
        yield self


def parts(design: Design, top: str, variables: Variables, through: dict[str, dict[str, set[str]]]) -> Part:
    """The top part of a design, with those below it, their ports, and without what no output depends on.

    through : of designs of which it has instances, as `through` finds it
    """
    out = _Parts(design, variables, through)
    part = out.part(design.fragment, top, top)
    out.join_clocks(part)
    out.prune(part)
    out.find_reads(part)
    # Clock and reset come first, as everywhere; then the ports in the order of the signature.
    clocks = {id(s) for inner in part.all() for pair in inner.clocks.values() for s in pair if s is not None}
    for name, signal, direction in sorted(design.ports, key=lambda port: id(port[1]) not in clocks):
        part.ports += [Port(name, direction is PortDirection.Output, var) for var in variables.of(signal)]
    out.find_ports(part)
    return part


def through(top: Part) -> dict[str, set[str]]:
    """The input ports on which each output port of a design depends without a register between."""
    inputs_ = {port.var: port.name for port in top.ports if not port.output}
    out: dict[str, set[str]] = {}
    for port in top.ports:
        if port.output:
            from_ = {inputs_[var] for var in _reached([port.var], top.comb) if var in inputs_}
            out.setdefault(port.name, set()).update(from_)
    return out


def _reached(work: list[Var], edges: dict[Var, set[Var]]) -> set[Var]:
    """Variables, and all to which edges lead from them."""
    out: set[Var] = set()
    while work:
        var = work.pop()
        if var not in out:
            out.add(var)
            work += edges.get(var, ())
    return out


class _Parts:
    """Makes the parts of a design. `edges` : the variables from which each variable is computed; `comb` : at once."""

    def __init__(self, design: Design, variables: Variables, through: dict[str, dict[str, set[str]]]):
        self.design, self.vars, self.through = design, variables, through
        self.edges: dict[Var, set[Var]] = {}
        self.comb: dict[Var, set[Var]] = {}
        self.joined: dict[int, Signal] = {}  # a clock that only copies another: that one

    def part(self, fragment: Fragment, name: str, label: str) -> Part:
        part = Part(fragment, name, label, self.comb)
        for domain, statements in fragment.statements.items():
            if domain == "comb":
                statements = _inline(part, statements)
            else:
                self._clock(part, domain)
            part.trees[domain] = list(tree(statements, self.vars))
        for domain, trees in part.trees.items():
            timed = frozenset(v for s in part.clocks.get(domain, ()) if s is not None for v in self.vars.of(s))
            for nodes in trees:
                self._drive(part, nodes, domain, timed)
        for inner, _, _ in fragment.subfragments:
            own = self.design.fragments[inner].name[-1]
            if isinstance(inner, Instance):
                part.instances.append((own, inner))
                outputs = [value for value, kind in inner.ports.values() if kind == "o"]
                self._connect(part, outputs, inputs(inner), f"instance {own}")
                self._pass(part, inner)
            elif isinstance(inner, MemoryInstance):
                part.memories.append((own, inner))
                for port in [*writes_of(inner), *reads_of(inner)]:
                    if port.domain != "comb":
                        self._clock(part, port.domain)
                clocks = [clk for clk, _ in part.clocks.values()]
                self._connect(part, [port.data for port in reads_of(inner)], [*inputs(inner), *clocks], "memory")
                for port in reads_of(inner):
                    if port.domain == "comb":
                        found = self._read_by(part, inputs(inner))
                        self.comb |= {var: set(found) for var in self.vars.of(port.data)}
            elif not isinstance(inner, RequirePosedge):
                part.below.append(self.part(inner, f"{name}__{legal(own)}", own))
        return part

    def _clock(self, part: Part, name: str) -> None:
        domain = part.fragment.domains[name]
        if domain.clk_edge != "pos" or domain.async_reset:
            raise WriterError(f"clock domain {name}: must have a rising edge and a synchronous reset")
        part.clocks[name] = domain.clk, domain.rst

    def _read_by(self, part: Part, values: Iterable[Value]) -> set[Var]:
        return {var for value in values for var in read_by(value, self.vars, part.inlined)}

    def _drive(self, part: Part, nodes: list[Node], domain: str, above: frozenset[Var]) -> None:
        for node in nodes:
            if isinstance(node, Set):
                self._by(part, node.var, domain)
                values = [node.value] if node.index is None else [node.value, node.index]
                read = above | self._read_by(part, values)
                self.edges.setdefault(node.var, set()).update(read)
                if domain == "comb":
                    self.comb.setdefault(node.var, set()).update(read)
                continue
            here = above | self._read_by(part, [node.test]) if isinstance(node, Case) else above
            for test, body in node.arms:
                if isinstance(node, If) and test is not None:
                    here = here | self._read_by(part, [test])
                self._drive(part, body, domain, frozenset(here))

    def _by(self, part: Part, var: Var, driver: str) -> None:
        if part.drivers.setdefault(var, driver) != driver:
            both = f"{part.drivers[var]} and {driver}"
            raise WriterError(f"signal {var.name}: driven from {both}; make a signal for each")

    def _connect(self, part: Part, outputs: Iterable[Value], values: Iterable[Value], driver: str) -> None:
        into = self._read_by(part, values)
        for value in outputs:
            if not isinstance(value, Signal):
                raise WriterError(f"{driver}: drives {type(value).__name__}; connect a whole signal")
            for var in self.vars.of(value):
                self._by(part, var, driver)
                self.edges.setdefault(var, set()).update(into)

    def _pass(self, part: Part, instance: Instance) -> None:
        """Notes what goes through an instance; an instance of a memory has registers on every way."""
        for name, ins in self.through.get(instance.type, {}).items():
            values = [instance.ports[i][0] for i in ins if i in instance.ports]
            if name in instance.ports and isinstance(instance.ports[name][0], Signal):
                for var in self.vars.of(instance.ports[name][0]):
                    self.comb.setdefault(var, set()).update(self._read_by(part, values))

    def join_clocks(self, top: Part) -> None:
        """Replaces a clock that only copies another by the other, so that both have their edge at once."""
        copies: dict[int, Signal] = {}
        clocks = {id(clk) for part in top.all() for clk, _ in part.clocks.values()}
        for part in top.all():
            for nodes in part.trees.get("comb", ()):
                for node in nodes:
                    if isinstance(node, Set) and id(node.var.signal) in clocks and isinstance(node.value, Signal):
                        copies[id(node.var.signal)] = node.value

        def first(clk: Signal) -> Signal:
            return first(copies[id(clk)]) if id(clk) in copies else clk

        self.joined = {number: first(clk) for number, clk in copies.items()}
        for part in top.all():
            part.clocks = {name: (first(clk), rst) for name, (clk, rst) in part.clocks.items()}
            part.inlined |= self.joined

    def prune(self, top: Part) -> None:
        """Drops the statements of variables on which no output and no instance depends."""
        work = [v for _, s, d in self.design.ports if d is PortDirection.Output for v in self.vars.of(s)]
        for part in top.all():
            for _, instance in part.instances:
                work += self._read_by(part, inputs(instance))
        live = _reached(work, self.edges)
        for part in top.all():
            for domain, trees in part.trees.items():
                part.trees[domain] = [kept for kept in (restricted(nodes, live) for nodes in trees) if kept]
            part.drivers = {v: d for v, d in part.drivers.items() if v in live or d not in part.trees}

    def find_reads(self, part: Part) -> None:
        """Fills `reads`, `read` and `driven`."""
        for trees in part.trees.values():
            for nodes in trees:
                part.reads |= reads(nodes, self.vars, part.inlined)
        for domain, (clk, rst) in part.clocks.items():
            part.reads |= set(self.vars.of(clk))
            if rst is not None and any(
                not v.signal.reset_less for n in part.trees.get(domain, ()) for v in assigned(n)
            ):
                part.reads |= set(self.vars.of(rst))
        for _, inner in [*part.instances, *part.memories]:
            part.reads |= self._read_by(part, inputs(inner))
        part.read, part.driven = set(part.reads), set(part.drivers)
        for below in part.below:
            self.find_reads(below)
            part.read |= below.read
            part.driven |= below.driven

    def find_ports(self, part: Part) -> None:
        """The ports of the parts below: what they read from outside, and what is read there."""
        out = {port.var for port in part.ports if port.output}
        for below in part.below:
            others = [other.read for other in part.below if other is not below]
            wanted = out.union(part.reads, *others)
            names = Names()
            for var in self._in_order(below):
                if var in below.driven and var in wanted or var in below.read and var not in below.driven:
                    below.ports.append(Port(names.new(var.name), var in below.driven, var))
            self.find_ports(below)

    def _in_order(self, part: Part) -> Iterable[Var]:
        """Variables of a part as its ports have them: clocks and resets, those of its signature, the others."""
        clocks = [s for inner in part.all() for pair in inner.clocks.values() for s in pair if s is not None]
        clocks.sort(key=lambda signal: (not signal.name.endswith("clk"), signal.name))
        listed = [signal for origin in part.fragment.origins or () for _, signal in members(origin)]
        used = self.design.fragments[part.fragment].used_signals
        clocks += [self.joined[id(s)] for s in used if id(s) in self.joined]  # of a part that only hands it on
        signals = [*clocks, *listed, *used]
        return dict.fromkeys(var for signal in signals for var in self.vars.of(signal))


def _inline(part: Part, statements: Iterable) -> list:
    """The statements but for those of signals without a name, whose values stand where they are read."""
    rest = []
    for statement in statements:
        if isinstance(statement, Assign) and isinstance(statement.lhs, Signal) and not statement.lhs.name:
            part.inlined[id(statement.lhs)] = statement.rhs
        else:
            rest.append(statement)
    return rest


def inputs(fragment: Instance | MemoryInstance) -> list[Value]:
    """The values that go into an instance or a memory."""
    if isinstance(fragment, Instance):
        return [value for value, kind in fragment.ports.values() if kind == "i"]
    written = [value for p in writes_of(fragment) for value in (p.address, p.data, p.enable)]
    return written + [value for p in reads_of(fragment) for value in (p.address, p.enable)]


def members(component: object) -> Iterator[tuple[str, Signal]]:
    """Names and signals of a component's ports; of an elaboratable without a signature, its signals."""
    if hasattr(component, "signature"):
        found = [("__".join(map(str, path)), value) for path, _, value in signature.members(component)]
    else:
        found = list(vars(component).items())
    yield from ((name, value) for name, value in found if isinstance(value, Signal))
