"""State diagrams of units, derived from the elaborated design, as Mermaid text.

A state machine is an `m.FSM`, a register of an enumeration that only takes constants, or a register of which the unit
decodes every value into a signal `<register>_<state>`.
An edge stands where the next state can differ from the present one. To find edges, this module evaluates the conditions
of all assignments to the register with the state known and everything else unknown. Labels are the conditions as the
source states them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from amaranth import Const, Module, Signal, Value
from amaranth.lib import wiring

from openvrex.hdl.writer import amaranth_private as private

ANY = "any state"
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
    m = elaborated(unit)
    return [_machine(m, *register) for register in _registers(m)]


def elaborated(unit: wiring.Component) -> Module:
    """The unit's own module; its submodules are not elaborated, and Amaranth is told not to warn of that."""
    m = unit.elaborate(None)
    private.mark_used(unit, m)
    return m


def mermaid(machine: Machine) -> str:
    """The machine as a `stateDiagram-v2`, and below it the labels that are too long for the diagram."""
    ids = {name: name.replace(" ", "_") for name in [*machine.states.values(), ANY]}
    lines, long = ["```mermaid", "stateDiagram-v2"], []
    if any(a == ANY for a, _ in machine.edges):
        lines.append(f'    state "{ANY}" as {ids[ANY]}')
    lines.append(f"    [*] --> {ids[machine.states[machine.reset]]}: reset")
    order = [*machine.states.values(), ANY]
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
    yield from private.machines_of(m)
    of_sync, of_comb = assignments(m, "sync"), assignments(m, "comb")
    for register in {id(s.lhs): s.lhs for _, s in of_sync if isinstance(s.lhs, Signal)}.values():
        members, given = (
            private.members_of(private.format_of(register)),
            [s.rhs for _, s in of_sync if s.lhs is register],
        )
        if members and len(members) > 2 and all(isinstance(x, Const) for x in given):
            yield register.name, register, dict(members)
    decoded: dict[int, tuple[Signal, dict[int, str]]] = {}
    for path, s in of_comb:
        match s.rhs:
            case private.Operator(operator="==", operands=[Signal() as register, Const() as value]):
                if not path and isinstance(s.lhs, Signal):
                    decoded.setdefault(id(register), (register, {}))[1][value.value] = s.lhs.name
    for register, names in decoded.values():
        prefix = re.match(r"(\w+?_)\w+(?: \1\w+)+$", " ".join(names.values()))
        if prefix and len(names) > 2 and sorted(names) == list(range(len(names))):
            yield prefix[1].rstrip("_"), register, {v: n.removeprefix(prefix[1]).upper() for v, n in names.items()}


def _machine(m: Module, name: str, register: Signal, states: dict[int, str]) -> Machine:
    out = Machine(name, states, register.init)
    found: dict[tuple[str, str], set[str]] = {}  # (to, label) -> states from which the edge leads
    for value, state in states.items():
        known = Known(m, register, value)
        for path, s in assignments(m, "sync"):
            fits = [known.fits(case) for case in path]
            if s.lhs is register and False not in fits:
                parts = [_condition(case.where) for case, sure in zip(path, fits, strict=True) if not sure]
                label = " and ".join(f"({c})" if " | " in c and len(parts) > 1 else c for c in parts if c)
                for to in sorted({states[t] for t in known.values(s.rhs) if t in states} - {state}):
                    found.setdefault((to, label), set()).add(state)
    for (to, label), sources in found.items():
        common = len(sources) >= len(states) - 1 and len(sources) > 2
        for source in [ANY] if common else [state for state in states.values() if state in sources]:
            labels = out.edges.setdefault((source, to), [])
            if label and label not in labels:
                labels.append(label)
    return out


@dataclass(frozen=True)
class Case:
    """A case of an `If` or `Switch`: its patterns (None: any value), those of the cases before it, its place."""

    test: Value
    before: tuple[tuple[str, ...] | None, ...]
    patterns: tuple[str, ...] | None
    where: tuple[str, int] | None


def assignments(m: Module, domain: str) -> list[tuple[tuple[Case, ...], private.Assign]]:
    """Every assignment of a domain in the order of the source, below the cases that it stands in."""
    return list(_flat(private.statements_of(m, domain), ()))


def _flat(statements: Iterable, path: tuple[Case, ...]) -> Iterator[tuple[tuple[Case, ...], private.Assign]]:
    for s in statements:
        if isinstance(s, private.Assign):
            yield path, s
        elif isinstance(s, private.Switch):
            before: tuple = ()
            for patterns, inner, where in s.cases:
                yield from _flat(inner, (*path, Case(s.test, before, patterns, where)))
                before += (patterns,)


def _match(bits: Bits, patterns: tuple[str, ...] | None) -> bool | None:
    """Whether one of the patterns matches; None if that depends on an unknown bit."""
    if patterns is None:
        return True
    fits: list[bool | None] = []
    for pattern in patterns:
        pairs = [(b, int(p)) for b, p in zip(bits, reversed(pattern), strict=True) if p != "-"]
        wrong = any(b is not None and b != p for b, p in pairs)
        fits.append(False if wrong else None if any(b is None for b, _ in pairs) else True)
    return True if True in fits else None if None in fits else False


def _number(bits: Bits) -> int | None:
    """The number with these bits; None if one is unknown."""
    known = [b for b in bits if b is not None]
    return sum(b << k for k, b in enumerate(known)) if len(known) == len(bits) else None


class Known:
    """What follows from the state of a machine: bits of signals, and which cases can be taken."""

    def __init__(self, m: Module, register: Signal, state: int):
        self._register, self._state = register, state
        self._made: dict[int, Bits] = {}
        self._drives: dict[int, list[tuple[tuple[Case, ...], Value]]] = {}  # of signals that are only driven as a whole
        partly = set()
        for path, s in assignments(m, "comb"):
            if isinstance(s.lhs, Signal):
                self._drives.setdefault(id(s.lhs), []).append((path, s.rhs))
            else:
                partly |= {id(x) for x in private.assigned(s.lhs)}
        for signal in partly:
            self._drives.pop(signal, None)

    def fits(self, case: Case) -> bool | None:
        """Whether a case is taken; None if that does not follow from the state."""
        bits = self.bits(case.test)
        earlier = [_match(bits, patterns) for patterns in case.before]
        if True in earlier:
            return False
        own = _match(bits, case.patterns)
        return None if own and None in earlier else own

    def values(self, value: Value) -> set[int | None]:
        """What `value` can be, as far as a multiplexer chooses between constants; None for what is not known."""
        if isinstance(value, private.SwitchValue):
            out: set[int | None] = set()
            before: tuple = ()
            for patterns, inner in value.cases:
                if self.fits(Case(value.test, before, patterns, None)) is not False:
                    out |= self.values(inner)
                before += (patterns,)
            return out
        return {_number(self.bits(value))}

    def bits(self, value: Value) -> Bits:
        """Each bit of `value`."""
        if id(value) not in self._made:
            self._made[id(value)] = [None] * len(value)  # also ends a circle
            self._made[id(value)] = self._bits(value)
        return self._made[id(value)]

    def _driven(self, signal: Signal) -> Bits:
        """Bits of a combinational signal: those on which all its possible drivers agree."""
        out: Bits = [signal.init >> k & 1 for k in range(len(signal))]
        for path, source in self._drives[id(signal)]:
            fits = [self.fits(case) for case in path]
            if False not in fits:
                bits = (self.bits(source) + [0] * len(signal))[: len(signal)]
                out = [b if None not in fits or a == b else None for a, b in zip(out, bits, strict=True)]
        return out

    def _bits(self, value: Value) -> Bits:
        if value is self._register:
            return [self._state >> k & 1 for k in range(len(value))]
        match value:
            case Const():
                return [value.value >> k & 1 for k in range(len(value))]
            case Signal() if id(value) in self._drives:
                return self._driven(value)
            case private.Slice():
                return self.bits(value.value)[value.start : value.stop]
            case private.Concat():
                return [b for part in value.parts for b in self.bits(part)]
            case private.SwitchValue():
                found = self.values(value)
                if len(found) == 1 and (only := found.pop()) is not None:
                    return [only >> k & 1 for k in range(len(value))]
            case private.Operator():
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


def _condition(where: tuple[str, int] | None) -> str:
    """The condition at a place of the source, as it stands there."""
    return re.sub(r"\b(?:self|u)\.", "", _conditions(where[0]).get(where[1], "")) if where else ""


@cache
def _conditions(file: str) -> dict[int, str]:
    """Line -> condition of each `m.If`, `m.Elif`, `m.Else`, `m.Case` and `m.Default` of a file."""
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
                    elif kind == "Default":
                        text = f"another value of {switch}"
                    elif kind == "Case":
                        # The variable of a loop over all cases is not worth showing.
                        text = f"the value of {switch}" if text.islower() else f"{switch} = {text}"
                    out.update(dict.fromkeys(range(inner.lineno, inner.body[0].lineno), text))
            walk(inner, inside)

    walk(ast.parse(Path(file).read_text()), "")
    return out
