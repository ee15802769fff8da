"""Statements of Amaranth as blocks of Verilog.

A fragment's statements become a tree of assignments to variables, `if` chains and `case`s. Each block is that tree,
restricted to the variables of the block. Amaranth's combinational statements hold all at once, those of a Verilog block
one after the other: no variable is read in the block that assigns it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from amaranth.hdl import Signal, Value

from openvrex.hdl.writer import amaranth_private as private
from openvrex.hdl.writer.values import signals_of, sliced
from openvrex.hdl.writer.variables import Var, Variables, WriterError


@dataclass
class Set:
    """Bits `low` to `high - 1` of a variable take `high - low` bits of `value` from bit `at` on.

    With an `index`, bits `index * stride` and those above take them: as many as `width`.
    """

    var: Var
    low: int
    high: int
    value: Value
    at: int
    src_loc: tuple
    index: Value | None = None
    stride: int = 1
    width: int = 0


@dataclass
class If:
    """The first arm whose test is true, or the one without a test."""

    arms: list[tuple[Value | None, list]]


@dataclass
class Case:
    """The first arm with a pattern that fits the test, or the one without patterns."""

    test: Value
    arms: list[tuple[tuple[str, ...] | None, list]]


Node = Set | If | Case


@dataclass
class Block:
    """Variables that one block assigns, and its statements. `domain` : clock domain, or "comb"."""

    domain: str
    vars: list[Var]
    body: list[Node] = field(default_factory=list)


def tree(statements: Iterable[private.Statement], variables: Variables) -> Iterator[list[Node]]:
    """Each statement as nodes."""
    for statement in statements:
        if isinstance(statement, private.Assign):
            yield list(_sets(statement.lhs, statement.rhs, 0, variables, statement.src_loc))
        elif isinstance(statement, private.Switch):
            yield _switch(statement.test, [(p, s) for p, s, _ in statement.cases], variables)
        elif isinstance(statement, private.Property | private.Print):
            raise WriterError(f"{type(statement).__name__}: simulate it with Amaranth; Verilog of a unit has none")


def _switch(test: Value, cases: list, variables: Variables) -> list[Node]:
    bodies = [(patterns, [n for nodes in tree(body, variables) for n in nodes]) for patterns, body in cases]
    if isinstance(test, private.Concat) and (arms := _chain(test, bodies)):
        return [If(arms)]
    if not len(test):
        return bodies[0][1]
    bit = len(test) == 1 and not variables.numbered(test, {})  # states have names also if there are two
    if bit and all(p is None or len(p) == 1 and p[0] in "01" for p, _ in bodies):
        both = {p for ps, _ in bodies[:2] for p in ps or ()} == {"0", "1"}
        arms = [(None if p is None else test if p[0] == "1" else ~test, b) for p, b in bodies]
        return [If([arms[0], (None, arms[1][1])] if both else arms)]
    return [Case(test, bodies)]


def _chain(test: private.Concat, bodies: list) -> list | None:
    """The arms of an If/Elif/Else, which Amaranth writes as a switch over all its tests."""
    arms: list = []
    if any(len(part) != 1 for part in test.parts):
        return None
    for patterns, body in bodies:
        if patterns is None:
            arms.append((None, body))
        elif len(patterns) == 1 and patterns[0].count("1") == 1 and set(patterns[0]) <= {"1", "-"}:
            arms.append((test.parts[len(test) - 1 - patterns[0].index("1")], body))
        else:
            return None
    return arms


def _sets(target: Value, value: Value, at: int, variables: Variables, src_loc: tuple) -> Iterator[Node]:
    """Assignments of `value`, from its bit `at` on, to all of `target`."""
    inner, start, stop = sliced(target, casts=True)
    whole = stop - start == len(inner)
    if isinstance(inner, Signal):
        for var, low, high in variables.over(inner, start, stop):
            yield Set(var, low, high, value, at + var.start + low - start, src_loc)
    elif isinstance(inner, private.SwitchValue):
        elements = [(p, element if whole else element[start:stop]) for p, element in inner.cases]
        yield Case(inner.test, [(p, list(_sets(e, value, at, variables, src_loc))) for p, e in elements])
    elif not whole:
        raise WriterError(f"a slice of {type(inner).__name__} is assigned: assign to a signal, then use that")
    elif isinstance(inner, private.Concat):
        for part in inner.parts:
            yield from _sets(part, value, at, variables, src_loc)
            at += len(part)
    elif isinstance(inner, private.Part):
        of, low, high = sliced(inner.value)
        over = list(variables.over(of, low, high)) if isinstance(of, Signal) else []
        if len(over) != 1 or over[0][1:] != (0, over[0][0].width):
            raise WriterError("bit_select of several fields is assigned: make it an array, or select from one field")
        if not len(inner.offset):
            yield from _sets(of[low : low + inner.width], value, at, variables, src_loc)
        else:
            var = over[0][0]
            yield Set(var, 0, var.width, value, at, src_loc, inner.offset, inner.stride, inner.width)


def sets(nodes: Iterable[Node]) -> Iterator[Set]:
    """Every assignment of nodes, in order."""
    for node in nodes:
        if isinstance(node, Set):
            yield node
        else:
            for _, body in node.arms:
                yield from sets(body)


def assigned(nodes: Iterable[Node]) -> Iterator[Var]:
    """Every variable that nodes assign, in order; a variable may come more than once."""
    return (node.var for node in sets(nodes))


def tests(nodes: Iterable[Node]) -> Iterator[tuple[Value, int]]:
    """Every value that nodes read, and how often: fields of one variable that take bits of one value count each."""
    for _, run in groupby(nodes, lambda n: id(n.value if isinstance(n, Set) and n.index is None else n)):
        node, *others = run
        if isinstance(node, Set):
            yield node.value, 1 + len(others)
            if node.index is not None:
                yield node.index, 1
            continue
        if isinstance(node, Case):
            yield node.test, 1
        for test, body in node.arms:
            if isinstance(node, If) and test is not None:
                yield test, 1
            yield from tests(body)


def restricted(nodes: Iterable[Node], keep: set[Var]) -> list[Node]:
    """The nodes that assign variables of `keep`, without arms that have nothing to do."""
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Set):
            if node.var in keep:
                out.append(node)
            continue
        arms = [(test, restricted(body, keep)) for test, body in node.arms]
        if not any(body for _, body in arms):
            continue
        if isinstance(node, Case):
            if arms[-1][0] is None and not arms[-1][1]:
                arms.pop()
            if arms[-1][0] is not None and not any("-" in pattern for patterns, _ in arms for pattern in patterns):
                arms = [(patterns, body) for patterns, body in arms if body]
            out.append(Case(node.test, arms))
            continue
        while not arms[-1][1]:
            arms.pop()
        if len(arms) == 2 and not arms[0][1]:
            test, other = arms[0][0], arms[1][0]
            arms = [(~test if other is None else ~test.bool() & other.bool(), arms[1][1])]
        out.append(If(arms))
    return out


def reads(nodes: Iterable[Node], variables: Variables, inlined: dict[int, Value]) -> set[Var]:
    """The variables that nodes read."""
    return {var for value, _ in tests(nodes) for var in read_by(value, variables, inlined)}


def read_by(value: Value, variables: Variables, inlined: dict[int, Value]) -> Iterator[Var]:
    """The variables that a value reads."""
    for signal, start, stop in signals_of(value):
        if id(signal) in inlined:
            yield from read_by(inlined[id(signal)], variables, inlined)
        else:
            yield from (var for var, _, _ in variables.over(signal, start, stop))


def groups(top: list[list[Node]], kind: Callable[[Var], object]) -> list[list[Var]]:
    """The variables of a domain's statements; those that share a statement and `kind` are one group."""
    leader: dict[Var, Var] = {}

    def find(var: Var) -> Var:
        while leader[var] is not var:
            leader[var] = leader[leader[var]]
            var = leader[var]
        return var

    for nodes in top:
        known: dict[object, Var] = {}
        for var in assigned(nodes):
            leader.setdefault(var, var)
            first = known.setdefault(kind(var), var)
            leader[find(var)] = find(first)
    out: dict[Var, list[Var]] = {}
    for var in leader:
        out.setdefault(find(var), []).append(var)
    return list(out.values())


def blocks(domain: str, top: list[list[Node]], kind: Callable[[Var], object], level: dict[Var, int]) -> list[Block]:
    """The blocks of one domain: its groups, split by the levels of their variables."""
    order: dict[Var, set[int]] = {}
    for i, nodes in enumerate(top):
        for var in assigned(nodes):
            order.setdefault(var, set()).add(i)
    out = []
    for members in groups(top, kind):
        parts: dict[int, list[Var]] = {}
        for var in members:
            parts.setdefault(level.get(var, 0), []).append(var)
        for part in parts.values():
            at = sorted(set().union(*(order[var] for var in part)))
            out.append(Block(domain, part, restricted([n for i in at for n in top[i]], set(part))))
    return out
