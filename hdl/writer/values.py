"""Values of Amaranth: what they are made of."""

from collections.abc import Iterator

from amaranth.hdl import Const, Signal, Value

from openvrex.hdl.writer.amaranth_private import Concat, Operator, Part, Slice, SwitchValue


def is_cast(v: Value) -> bool:
    """Whether a value is another with or without a sign."""
    return isinstance(v, Operator) and v.operator in ("s", "u")


def sliced(v: Value, casts: bool = False) -> tuple[Value, int, int]:
    """The value of which another is bits `start` to `stop - 1`, and these two. `casts` : also behind a cast."""
    start, stop = 0, len(v)
    while isinstance(v, Slice) or casts and is_cast(v):
        if isinstance(v, Slice):
            start, stop, v = start + v.start, stop + v.start, v.value
        else:
            v = v.operands[0]
    return v, start, stop


def operands(v: Value) -> list[Value]:
    """The values that a value is computed from."""
    if isinstance(v, Operator):
        return list(v.operands)
    if isinstance(v, Slice):
        return [v.value]
    if isinstance(v, Part):
        return [v.value, v.offset]
    if isinstance(v, SwitchValue):
        return [v.test, *(element for _, element in v.cases)]
    return list(v.parts) if isinstance(v, Concat) else []


def signals_of(v: Value) -> Iterator[tuple[Signal, int, int]]:
    """Every signal that a value reads, with the range of bits. A signal may come more than once."""
    inner, start, stop = sliced(v) if isinstance(v, Signal | Slice) else (v, 0, 0)
    if isinstance(inner, Signal):
        yield inner, start, stop
    else:
        for operand in operands(inner):
            yield from signals_of(operand)


def alike(a: Value, b: Value) -> bool:
    """Whether two values are written alike. Amaranth copies a value that is repeated."""
    if a is b:
        return True
    if type(a) is not type(b) or len(a) != len(b) or isinstance(a, Signal | SwitchValue | Part):
        return False
    if isinstance(a, Const):
        return a.value == b.value
    if isinstance(a, Slice) and (a.start, a.stop) != (b.start, b.stop):
        return False
    if isinstance(a, Operator) and a.operator != b.operator:
        return False
    return len(operands(a)) == len(operands(b)) and all(map(alike, operands(a), operands(b)))
