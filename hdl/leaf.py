"""Leaf-once emission: a component that stands many times in a design is elaborated and emitted once.

Amaranth makes a module of every instance; 64 dot-product trees would take minutes and hundreds of megabytes. `place`
adds a component as a submodule of its own in a plain elaboration (Amaranth's simulator), and as an `Instance` of one
shared module where the design is converted with a `Leaves` as its platform (`hdl.emit`).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from amaranth import ClockSignal, Instance, Module, ResetSignal
from amaranth.hdl import Fragment
from amaranth.lib import wiring

from openvrex.hdl.memory_test import MemoryTest
from openvrex.hdl.writer import designs
from openvrex.hdl.writer.amaranth_private import Design

CLEAR = "clear"  # clock domain whose reset starts the counts that clear protected memories (`hdl.reset`)


def elaborated(component: wiring.Component, name: str, leaves: "Leaves | None") -> Design:
    """A component as design `name`."""
    more = leaves.test_ports(name) if leaves else nullcontext(lambda _: {})
    with more as ports:
        design = designs.elaborated(component, name, leaves, ports)
    # Memories use only the reset of this domain; Amaranth makes a port of its clock too.
    design.ports = [port for port in design.ports if port[0] != f"{CLEAR}_clk"]
    return design


class Leaves:
    """The platform of a conversion that emits each leaf once.

    designs : {name: design} of every shared module placed so far, deepest first; names are free of double
        underscores, which Verilator would mangle in a hierarchical build
    counts : {name: instances} of those that `place` made
    kinds : kinds of memories (`hdl.memory.KINDS`) in the leaves or outside
    test : of the module in elaboration, the test ports of its memories; None without them
    tested : {name: test ports} of every module that has some
    """

    def __init__(self, top: str, bist: bool = False):
        self.top, self._bist = top, bist
        self.test: MemoryTest | None = None
        self.tested: dict[str, dict] = {}
        self.designs: dict[str, Design] = {}
        self.counts: dict[str, int] = {}
        self.kinds: set[str] = set()
        self._made: dict[str, tuple] = {}  # class, arguments and signature of each module

    @contextmanager
    def test_ports(self, name: str) -> Iterator[Callable[[Fragment], dict]]:
        """The elaboration of module `name`, and what then makes the test ports of its memories."""
        above, self.test = self.test, MemoryTest() if self._bist else None
        test = self.test

        def made(fragment: Fragment) -> dict:
            ports = test.ports(fragment) if test else {}
            if ports:
                self.tested[name] = ports
            return ports

        try:
            yield made
        finally:
            self.test = above

    def memory(self, kind: str) -> str:
        """The module of a kind of memory."""
        self.kinds.add(kind)
        return f"{self.top}_{kind}"

    def instance(self, path: str, kind: str, cls: type, *args) -> tuple[wiring.PureInterface, Instance]:
        """The ports of one more `cls(*args)`, whose signals are named after `path`, and the instance behind them.

        Its module is `<top>_<kind>`, made at the first request for the kind. Raises `ValueError` if that was for
        another class or other arguments.
        """
        name = f"{self.top}_{kind}"
        if name not in self._made:
            component = cls(*args)
            self.designs[name] = elaborated(component, name, self)
            self._made[name] = cls, args, component.signature
        made, of, signature = self._made[name]
        if (made, of) != (cls, args):
            raise ValueError(f"leaf {name}: made of {made.__name__}{of}, cannot stand for {cls.__name__}{args}")
        ports, wires = signature.create(path=(path,)), {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        pins = {port for port, _, _ in self.designs[name].ports}
        if f"{CLEAR}_rst" in pins:
            wires[f"i_{CLEAR}_rst"] = ResetSignal(CLEAR)
        for names, member, value in signature.flatten(ports):
            direction = "o" if member.flow == wiring.Out else "i"
            wires[f"{direction}_{'__'.join(map(str, names))}"] = value
        wires = {k: v for k, v in wires.items() if k[2:] in pins}
        if self.test and name in self.tested:
            own = {port: len(signal) for port, (signal, _) in self.tested[name].items()}
            wires["a_bist"] = self.test.memories
            wires |= self.test.wires(own["bist_select"], own["bist_address"])
        return ports, Instance(name, **wires)


def place(m: Module, platform: object, name: str, cls: type, *args) -> wiring.PureInterface:
    """Add a `cls(*args)` to `m` as submodule `name` and return its ports, to be driven and read by `m`.

    Within one design all of a class have equal arguments; `ValueError` if not.
    """
    if isinstance(platform, Leaves):
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        ports, m.submodules[name] = platform.instance(name, kind, cls, *args)
        module = f"{platform.top}_{kind}"
        platform.counts[module] = platform.counts.get(module, 0) + 1
        return ports
    m.submodules[name] = component = cls(*args)
    return component
