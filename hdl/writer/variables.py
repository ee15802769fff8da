"""Signals of a design as variables of Verilog: a signal with a layout is one variable for each field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amaranth.hdl import Format, Signal, Value

from openvrex.hdl.writer.amaranth_private import fields, format_of, members_of, shown_by
from openvrex.hdl.writer.values import sliced


class WriterError(ValueError):
    """A construct that cannot be written as Verilog; the message names it and what to write in its place."""


@dataclass(frozen=True)
class Var:
    """Bits `start` to `start + width - 1` of a signal, which are a field of it or all of it.

    field : path of the field, "" of a whole signal
    numbers : names of its numbers: the states of a machine, or the members of an enumeration
    """

    signal: Signal
    start: int
    width: int
    field: str
    numbers: Mapping[int, str]

    # Signals have no equality of their own: two variables are the same if they are the same bits of one signal.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Var) and self.signal is other.signal and self.start == other.start

    def __hash__(self) -> int:
        return hash((id(self.signal), self.start))

    @property
    def stop(self) -> int:
        """The bit behind the highest."""
        return self.start + self.width

    @property
    def init(self) -> int:
        """Its value at reset."""
        return self.signal.init >> self.start & (1 << self.width) - 1

    @property
    def name(self) -> str:
        """The name that it has if no other has it. The payload of a stream has the names of its fields only."""
        name = self.signal.name
        if self.field:
            name = f"{name.removesuffix('payload').rstrip('_')}_{self.field}"
        return name.replace("__", "_")


class Variables:
    """The variables of every signal of a design."""

    def __init__(self):
        self._of: dict[int, tuple[Signal, list[Var]]] = {}

    def of(self, signal: Signal) -> list[Var]:
        """The variables of a signal, lowest bits first; none of a signal without bits."""
        if id(signal) not in self._of:
            found = sorted(_fields(signal, format_of(signal), ""), key=lambda f: f[0])
            whole = sum(width for _, width, *_ in found) == len(signal)
            at = 0
            for start, width, *_ in found:
                whole, at = whole and start == at, start + width
            if not whole:  # a union, or a layout with gaps
                found = [(0, len(signal), "", {})]
            self._of[id(signal)] = signal, [Var(signal, *f) for f in found if f[1]]
        return self._of[id(signal)][1]

    def over(self, signal: Signal, start: int, stop: int) -> Iterator[tuple[Var, int, int]]:
        """The variables that hold bits `start` to `stop - 1` of a signal, and which of their own bits these are."""
        for var in self.of(signal):
            low, high = max(start, var.start), min(stop, var.stop)
            if low < high:
                yield var, low - var.start, high - var.start

    def numbered(self, value: Value, inlined: dict[int, Value]) -> Var | None:
        """The variable with names of its numbers that a value is; `None` if it is no such variable."""
        value, start, stop = sliced(value, casts=True)
        while id(value) in inlined:
            value, low, _ = sliced(inlined[id(value)], casts=True)
            start, stop = start + low, stop + low
        for var in self.of(value) if isinstance(value, Signal) else ():
            if (var.start, var.stop) == (start, stop):
                return var if var.numbers else None
        return None


def pin_name(port: str, var: Var | None) -> str:
    """The name in the text of a design's port, or of the field of a stream's payload that it carries."""
    stream = port.removesuffix("__payload")
    return port if var is None or stream == port else f"{stream}_{var.field or 'payload'}"


def _fields(signal: Signal, form: Format, path: str) -> Iterator[tuple[int, int, str, Mapping[int, str]]]:
    """Lowest bit, width and path of every field of a signal that is a plain number, and the names of its numbers."""
    if (inside := fields(form)) is not None:
        for name, inner in inside.items():
            yield from _fields(signal, inner, f"{path}_{name}".lstrip("_").replace(".", "_"))
        return
    values = shown_by(form)
    shown = values[0] if len(values) == 1 else signal
    value, start, _ = sliced(shown, casts=True)
    yield (start, len(shown), path, _numbers(signal, form)) if value is signal else (0, len(signal), "", {})


def _numbers(signal: Signal, form: Format) -> Mapping[int, str]:
    if (members := members_of(form)) is not None:
        return members
    out = {}
    for number in range(1 << len(signal)) if signal.decoder is not None else ():
        try:
            out[number] = str(signal.decoder(number)).partition("/")[0]
        except KeyError:  # a number without a state
            continue
    return out
