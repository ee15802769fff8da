"""State diagrams of units, derived from the elaborated design, as Mermaid text.

A state machine is an `m.FSM`, a register of an enumeration that only takes constants, or a register of which the unit
decodes every value into a signal `<register>_<state>`.
An edge stands where the next state can differ from the present one. To find edges, this module evaluates the conditions
of all assignments to the register with the state known and everything else unknown. Labels are the conditions as the
source states them.
"""

import ast
import gc
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from amaranth import Const, Module, Signal, UnusedElaboratable, Value
from amaranth.hdl import Format
from amaranth.hdl import _ast as hdl_ast
from amaranth.hdl._dsl import resolve_statements
from amaranth.lib import wiring

_ANY = "any state"
_LONGEST = 50  # characters of a label in the diagram; a longer one is a number there and a line of the list below

Bits = list[int | None]  # lowest first; None: unknown


@dataclass
class Machine:
    """A state machine: `states` by their value, the state after reset, and (from, to) -> conditions of the change."""

    name: str
    states: dict[int, str]
    reset: int
    edges: dict[tuple[str, str], list[str]] = field(default_factory=dict)


def machines(unit: wiring.Component) -> list[Machine]:
    """The state machines of a unit itself, not of its submodules, in the order of its source."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UnusedElaboratable
        )  # submodules are not elaborated; Amaranth says so as they go
        m = unit.elaborate(None)
        found = [_machine(m, *register) for register in _registers(m)]
        del m
        gc.collect()
    return found


def mermaid(machine: Machine) -> str:
    """The machine as a `stateDiagram-v2`, and below it the labels that are too long for the diagram."""
    ids = {name: name.replace(" ", "_") for name in [*machine.states.values(), _ANY]}
    lines, long = ["```mermaid", "stateDiagram-v2"], []
    if any(a == _ANY for a, _ in machine.edges):
        lines.append(f'    state "{_ANY}" as {ids[_ANY]}')
    lines.append(f"    [*] --> {ids[machine.states[machine.reset]]}: reset")
    order = [*machine.states.values(), _ANY]
    for (a, b), labels in sorted(machine.edges.items(), key=lambda edge: order.index(edge[0][0])):
        text = " or ".join(labels)
        if len(text) > _LONGEST:
            long.append(text)
            text = f"({len(long)})"
        # Mermaid ends a label at a semicolon and starts another at a colon.
        lines.append(f"    {ids[a]} --> {ids[b]}" + (f": {text.replace(':', '#58;')}" if text else ""))
    lines += ["```", ""]
    return "\n".join(lines + [f"{n}. `{text}`" for n, text in enumerate(long, 1)] + [""] * bool(long))


def _registers(m: Module) -> Iterator[tuple[str, Signal, dict[int, str]]]:
    """Name, register and names of the values of each state machine."""
    for name, fsm in m._generated.items():
        yield name, fsm.state, {value: state for state, value in fsm.encoding.items()}
    for register in _assigned(m._statements.get("sync", ())):
        if isinstance(form := register._format, Format.Enum) and len(form._variants) > 2:
            known = _Known({}, register, register.init)
            if all(None not in values for values, _ in _targets(m._statements["sync"], register, known, ())):
                yield register.name, register, dict(form._variants)
    decoded: dict[int, tuple[Signal, dict[int, str]]] = {}
    for target, source in _drivers(m).values():
        match source:
            case hdl_ast.Operator(operator="==", operands=[Signal() as register, Const() as value]):
                decoded.setdefault(id(register), (register, {}))[1][value.value] = target.name
    for register, names in decoded.values():
        prefix = re.match(r"(\w+?_)\w+(?: \1\w+)+$", " ".join(names.values()))
        if prefix and len(names) > 2 and sorted(names) == list(range(len(names))):
            yield prefix[1].rstrip("_"), register, {v: n.removeprefix(prefix[1]).upper() for v, n in names.items()}


def _assigned(statements: Iterable) -> list[Signal]:
    """The signals that statements assign as a whole, each once."""
    found: dict[int, Signal] = {}
    for s in statements:
        if isinstance(s, hdl_ast.Switch):
            found |= {id(x): x for _, inner, _ in s.cases for x in _assigned(inner)}
        elif isinstance(s, hdl_ast.Assign) and isinstance(s.lhs, Signal):
            found[id(s.lhs)] = s.lhs
    return list(found.values())


def _drivers(m: Module) -> dict[int, tuple[Signal, Value]]:
    """Combinational signals that one unconditional assignment drives, by identity."""
    return {id(s.lhs): (s.lhs, s.rhs) for s in m._statements.get("comb", ())
            if isinstance(s, hdl_ast.Assign) and isinstance(s.lhs, Signal)}  # fmt: skip


def _machine(m: Module, name: str, register: Signal, states: dict[int, str]) -> Machine:
    out, drivers = Machine(name, states, register.init), _drivers(m)
    found: dict[tuple[str, str], dict[str, set[str]]] = {}  # (to, label) -> states from which the edge leads
    sync = resolve_statements(m._statements.get("sync", ()))
    for value, state in states.items():
        known = _Known(drivers, register, value)
        for target, label in _targets(sync, register, known, ()):
            for to in sorted({states[t] for t in target if t in states} - {state}):
                found.setdefault((to, label), {})[state] = set()
    for (to, label), sources in found.items():
        common = len(sources) >= len(states) - 1 and len(sources) > 2
        for source in [_ANY] if common else sources:
            labels = out.edges.setdefault((source, to), [])
            if label and label not in labels:
                labels.append(label)
    return out


def _targets(
    statements: list, register: Signal, known: "_Known", path: tuple[str, ...]
) -> Iterator[tuple[set[int | None], str]]:
    """Values that the register can get, each with its condition."""
    for s in statements:
        if isinstance(s, hdl_ast.Assign) and s.lhs is register:
            yield known.values(s.rhs), " and ".join(f"({c})" if " | " in c and len(path) > 1 else c for c in path)
        elif isinstance(s, hdl_ast.Switch):
            test = known.bits(s.test)
            for patterns, inner, where in s.cases:
                fits = [_fit(test, p) for p in patterns] if patterns is not None else [None]
                if any(f is not False for f in fits):
                    sure = True in fits or s.test is register
                    yield from _targets(inner, register, known, path if sure else (*path, *_condition(where)))
                if True in fits:
                    break


def _fit(bits: Bits, pattern: str) -> bool | None:
    """Whether a pattern of a case matches; None if that depends on an unknown bit."""
    pairs = [(b, int(p)) for b, p in zip(bits, reversed(pattern), strict=True) if p != "-"]
    if any(b is not None and b != p for b, p in pairs):
        return False
    return None if any(b is None for b, _ in pairs) else True


def _number(bits: Bits) -> int | None:
    """The number with these bits; None if one is unknown."""
    known = [b for b in bits if b is not None]
    return sum(b << k for k, b in enumerate(known)) if len(known) == len(bits) else None


class _Known:
    """Bits of values that follow from the state."""

    def __init__(self, drivers: dict[int, tuple[Signal, Value]], register: Signal, state: int):
        self._drivers, self._register, self._state = drivers, register, state
        self._made: dict[int, Bits] = {}

    def values(self, value: Value) -> set[int | None]:
        """What `value` can be, as far as a multiplexer chooses between constants; None for what is not known."""
        if isinstance(value, hdl_ast.SwitchValue):
            test, out = self.bits(value.test), set()
            for patterns, inner in value.cases:
                fits = [_fit(test, p) for p in patterns] if patterns is not None else [None]
                out |= self.values(inner) if any(f is not False for f in fits) else set()
                if True in fits:
                    break
            return out
        return {_number(self.bits(value))}

    def bits(self, value: Value) -> Bits:
        """Each bit of `value`."""
        if id(value) not in self._made:
            self._made[id(value)] = [None] * len(value)  # also ends a circle
            self._made[id(value)] = self._bits(value)
        return self._made[id(value)]

    def _bits(self, value: Value) -> Bits:
        if value is self._register:
            return [self._state >> k & 1 for k in range(len(value))]
        match value:
            case Const():
                return [value.value >> k & 1 for k in range(len(value))]
            case Signal() if id(value) in self._drivers:
                source = self.bits(self._drivers[id(value)][1])
                return (source + [0] * len(value))[: len(value)]
            case hdl_ast.Slice():
                return self.bits(value.value)[value.start : value.stop]
            case hdl_ast.Concat():
                return [b for part in value.parts for b in self.bits(part)]
            case hdl_ast.SwitchValue():
                found = self.values(value)
                if len(found) == 1 and (only := found.pop()) is not None:
                    return [only >> k & 1 for k in range(len(value))]
            case hdl_ast.Operator():
                return self._operator(value)
        return [None] * len(value)

    def _operator(self, value: Value) -> Bits:
        operands, n = [self.bits(x) for x in value.operands], len(value)
        padded = [(x + [0] * n)[:n] for x in operands]
        match value.operator:
            case "&":
                return [0 if 0 in b else None if None in b else 1 for b in zip(*padded, strict=True)]
            case "|":
                return [1 if 1 in b else None if None in b else 0 for b in zip(*padded, strict=True)]
            case "~":
                return [None if b is None else 1 - b for b in operands[0]]
            case "b" | "r|":
                return [1 if 1 in operands[0] else None if None in operands[0] else 0]
            case "==" | "!=":
                a, b = map(_number, operands)
                return [None if a is None or b is None else int((a == b) == (value.operator == "=="))]
        return [None] * n


def _condition(where: tuple[str, int] | None) -> list[str]:
    """The condition at a place of the source, as it stands there."""
    found = _conditions(where[0]).get(where[1], "") if where else ""
    return [re.sub(r"\b(?:self|u)\.", "", found)] if found else []


@cache
def _conditions(file: str) -> dict[int, str]:
    """Line -> condition of each `m.If`, `m.Elif`, `m.Else` and `m.Case` of a file."""
    out: dict[int, str] = {}

    def walk(node: ast.AST, switch: str) -> None:
        chain: list[str] = []  # conditions of an If and its Elifs
        for inner in ast.iter_child_nodes(node):
            inside = switch
            match inner:
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Attribute(attr=kind), args=args))]):
                    text = ", ".join(ast.unparse(a) for a in args)
                    if kind == "Switch":
                        inside = text
                    if kind == "If":
                        chain = []
                    if kind in ("If", "Elif"):
                        chain.append(text)
                    elif kind == "Else":
                        text = " and ".join(f"~({c})" if " " in c else f"~{c}".replace("~~", "") for c in chain)
                    elif kind == "Case":
                        # The variable of a loop over all cases is not worth showing.
                        text = f"the value of {switch}" if text.islower() else f"{switch} = {text}"
                    out.update(dict.fromkeys(range(inner.lineno, inner.body[0].lineno), text))
            walk(inner, inside)

    walk(ast.parse(Path(file).read_text()), "")
    return out
