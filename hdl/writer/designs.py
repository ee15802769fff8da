"""Components of Amaranth as designs, which `modules.Writer` takes."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from amaranth.hdl import Fragment, Signal
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
def elaborated(
    component: wiring.Component,
    name: str,
    platform: object = None,
    more: Callable[[Fragment], dict[str, tuple[Signal, PortDirection]]] = lambda _: {},
) -> Design:
    """A component as design `name`, whose ports are those of its signature, and clock and reset.

    more : further ports, after elaboration
    """
    directions = {wiring.In: PortDirection.Input, wiring.Out: PortDirection.Output}
    ports = {"__".join(map(str, path)): (value, directions[member.flow]) for path, member, value in members(component)}
    fragment = Fragment.get(component, platform)
    return fragment.prepare(ports=ports | more(fragment), hierarchy=(name,))
