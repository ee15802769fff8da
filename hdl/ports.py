"""The ports of a unit as its Verilog has them: those of a stream by field, `i_valid, i_ready, i_hash, i_token`.

A struct beside the streams, such as the counters `perf`, is one port.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import EnumType

from amaranth import Signal
from amaranth.hdl import ShapeCastable
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, Layout

from openvrex.hdl.writer.names import Names
from openvrex.hdl.writer.signature import ROLES, members
from openvrex.hdl.writer.variables import Variables, pin_name


def ports(component: wiring.Component) -> list[dict]:
    """Every port of the Verilog in its order.

    name, dir, width : "in" or "out"; bits
    stream, role : of a port of a stream: the stream's name, and one of `ROLES`
    offset : of a part of a payload: its lowest bit there
    fields : of a port that is a field or has some: name in its layout, lowest bit in the port, and width of each
    """
    names, variables = Names(), Variables()
    out = [{"name": names.new(n), "dir": "in", "width": 1} for n in ("clk", "rst")]
    for path, member, value in members(component):
        port, direction = "__".join(map(str, path)), "out" if member.flow == wiring.Out else "in"
        of = {"stream": "_".join(map(str, path[:-1])), "role": path[-1]} if path[-1] in ROLES else {}
        layout = _layout(member.shape)
        inner = list(_fields(layout)) if layout else []
        split = variables.of(value) if path[-1] == "payload" and isinstance(value, Signal) else [None]
        for var in split:
            start, width = (var.start, var.width) if var else (0, len(value))
            own = {"name": names.new(pin_name(port, var)), "dir": direction, "width": width, **of}
            if of.get("role") == "payload":
                own["offset"] = start
            within = [f | {"offset": f["offset"] - start} for f in inner if start <= f["offset"] < start + width]
            out.append(own | ({"fields": within} if within else {}))
    return out


@dataclass(frozen=True)
class Stream:
    """A stream among ports.

    name · given : the unit takes its beats · payload : ports of its fields, the lowest first
    """

    name: str
    given: bool
    payload: list[dict] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Bits of its payload."""
        return sum(port["width"] for port in self.payload)


def streams(ports: Iterable[dict]) -> dict[str, Stream]:
    """The streams among ports, by name, in their order."""
    out: dict[str, Stream] = {}
    for port in ports:
        if port.get("role") == "valid":
            out[port["stream"]] = Stream(port["stream"], port["dir"] == "in")
        elif port.get("role") == "payload":
            out[port["stream"]].payload.append(port)
    return out


def _layout(shape: object) -> Layout | None:
    """The layout behind a shape; `None` of a number or an enumeration."""
    while isinstance(shape, ShapeCastable) and not isinstance(shape, Layout | EnumType):
        shape = shape.as_shape()
    return shape if isinstance(shape, Layout) else None


def _fields(layout: Layout, name: str = "", offset: int = 0) -> Iterator[dict]:
    """Name, lowest bit and width of every field; an array of plain fields is one, with how many there are."""
    array = isinstance(layout, ArrayLayout)
    for key, inner in layout:
        full = f"{name}[{key}]" if array else f"{name}.{key}".lstrip(".")
        if below := _layout(inner.shape):
            yield from _fields(below, full, offset + inner.offset)
        else:
            yield {"name": full, "offset": offset + inner.offset, "width": inner.width}
