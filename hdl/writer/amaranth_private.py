"""All that OpenVRex takes from Amaranth's private modules and attributes, so that an upgrade breaks one place.

Amaranth promises nothing of a name that begins with an underscore, and the writer needs what comes before the netlist.
Other files take it from here; `tb/tests/tb/test_imports.py` says where one does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amaranth.hdl import Format, MemoryInstance, Module, Shape, Signal, Value, _ast, _dsl, _ir

Statement = _ast.Statement  # any statement
Assign = _ast.Assign  # a target takes a value
Switch = _ast.Switch  # `If`, `Switch` and `FSM`
Print = _ast.Print  # has no Verilog
Property = _ast.Property  # `Assert`, `Assume` and `Cover`, which have no Verilog
Operator = _ast.Operator  # value: an operator and its operands
Slice = _ast.Slice  # value: bits of another
Concat = _ast.Concat  # value: `Cat`
Part = _ast.Part  # value: `bit_select` and `word_select`
SwitchValue = _ast.SwitchValue  # value: `Mux`, and an element of an `Array`
Design = _ir.Design  # what `Fragment.prepare` returns: names, ports and signals of each fragment
PortDirection = _ir.PortDirection  # of a design's ports
RequirePosedge = _ir.RequirePosedge  # a fragment without content: the writer asks for the edge itself


@dataclass(frozen=True)
class MemoryPort:
    """A port of a memory. domain : "comb" of a read without a register · transparent : sees writes of its cycle."""

    domain: str
    address: Value
    data: Value
    enable: Value
    transparent: bool


def writes_of(memory: MemoryInstance) -> list[MemoryPort]:
    """The write ports of a memory, whose enable has a bit for each part of a word."""
    return [MemoryPort(p._domain, p._addr, p._data, p._en, False) for p in memory._write_ports]


def reads_of(memory: MemoryInstance) -> list[MemoryPort]:
    """The read ports of a memory."""
    ports = memory._read_ports
    return [MemoryPort(p._domain, p._addr, p._data, p._en, bool(p._transparent_for)) for p in ports]


def depth_and_width(memory: MemoryInstance) -> tuple[int, int]:
    """Words of a memory, and bits of one."""
    return memory._data.depth, Shape.cast(memory._data.shape).width


def format_of(signal: Signal) -> Format:
    """How a signal is shown, which knows the fields of its layout."""
    return signal._format


def fields(form: Format) -> Mapping[str, Format] | None:
    """The fields of a layout; `None` of another format."""
    return form._fields if isinstance(form, Format.Struct) else None


def members_of(form: Format) -> Mapping[int, str] | None:
    """The members of an enumeration by number; `None` of another format."""
    return form._variants if isinstance(form, Format.Enum) else None


def shown_by(form: Format) -> list[Value]:
    """The values that a format shows."""
    if isinstance(form, Format.Enum | Format.Array | Format.Struct):
        return [form._value]
    return [chunk[0] for chunk in form._chunks if not isinstance(chunk, str)]


def assigned(target: Value) -> Iterator[Signal]:
    """The signals of which an assignment to `target` sets bits."""
    yield from target._lhs_signals()


def statements_of(m: Module, domain: str) -> list[Statement]:
    """A module's own statements in a clock domain, with the states of machines as numbers."""
    return list(_dsl.resolve_statements(m._statements.get(domain, ())))


def machines_of(m: Module) -> Iterator[tuple[str, Signal, dict[int, str]]]:
    """Name, register and names of the states by number of each `FSM` of a module."""
    for name, fsm in m._generated.items():
        yield name, fsm.state, {number: state for state, number in fsm.encoding.items()}


def mark_used(unit: object, m: Module) -> None:
    """Tells Amaranth not to warn that a unit whose module is `m`, and its submodules, are never elaborated."""
    todo = [unit, m, *(inner for inner, _ in [*m._named_submodules.values(), *m._anon_submodules])]
    while todo:
        thing = todo.pop()
        thing._MustUse__used = True
        todo += [vars(thing)["_elaboratable_"]] if "_elaboratable_" in vars(thing) else []  # renamed domains
