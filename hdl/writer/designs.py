"""Components of Amaranth as designs, which `modules.Writer` takes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from amaranth.hdl import Fragment
from amaranth.lib import wiring

from openvrex.hdl.writer.amaranth_private import Design, PortDirection
from openvrex.hdl.writer.signature import members


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's search for garbage cycles is off: it would visit millions of small objects that are all in use."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@uncollected()
def elaborated(component: wiring.Component, name: str, platform: object = None) -> Design:
    """A component as design `name`, whose ports are those of its signature, and clock and reset."""
    directions = {wiring.In: PortDirection.Input, wiring.Out: PortDirection.Output}
    ports = {"__".join(map(str, path)): (value, directions[member.flow]) for path, member, value in members(component)}
    return Fragment.get(component, platform).prepare(ports=ports, hierarchy=(name,))
