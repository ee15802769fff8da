"""Units of which only the ports are left, for proofs of what joins them."""

from amaranth import Cat, Instance, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from openvrex.tb.formal.stream_proof import channels, ports


def free(unit: type) -> type:
    """The class of a unit without what is inside: its outputs change in every cycle.

    What it offers on a stream stays until it is taken, as is proved of every unit.
    """
    return type(unit.__name__, (unit,), {"elaborate": _elaborate})


def _elaborate(unit: wiring.Component, platform: object) -> Module:
    m, given = Module(), {}
    for name, (flow, value) in ports(unit).items():
        if flow == Out and len(value):
            given[id(value)] = any_ = Signal(len(value), name=f"any_{name}")
            m.submodules += Instance("$anyseq", p_WIDTH=len(value), o_Y=any_)
    for c in channels(unit):
        if c.given:
            held, before = Signal(name=f"{c.name}_held"), Signal(len(c.bits), name=f"{c.name}_before")
            m.d.sync += [held.eq(c.valid & ~c.ready), before.eq(c.bits)]
            given[id(c.valid)] |= held
            offered = Mux(held, before, Cat(given[id(value)] for value in c.payload))
            at = 0
            for value in c.payload:
                given[id(value)] = offered[at : at + len(value)]
                at += len(value)
    m.d.comb += [value.eq(given[id(value)]) for _, value in ports(unit).values() if id(value) in given]
    return m


class FreeJoin(wiring.Component):
    """A join with claims inside, between free inputs."""

    def __init__(self, join: wiring.Component):
        self.join = join
        self.free = {name: value for name, (flow, value) in ports(join).items() if flow != Out}
        super().__init__({name: wiring.In(len(value)) for name, value in self.free.items()})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = self.join
        m.d.comb += [value.eq(getattr(self, name)) for name, value in self.free.items()]
        return m
