"""Proof that no output of a unit depends on a word that a memory reads at the edge that writes it.

Two copies of the unit get the same inputs, and their memories start with zeros. The memories of one copy give such a
read the old word, those of the other the word's complement. The copies must offer the same and access memories alike.
"""

from unittest.mock import patch

from amaranth import Array, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Fragment
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from openvrex.hdl.memory import Ram
from openvrex.tb.formal.idle_proof import flags
from openvrex.tb.formal.stream_proof import UnitMonitor, ports

Ports = dict[str, Value]


class _Copy(Elaboratable):
    """A unit, its memories' `accesses`, and whether they are read and written at once (`collisions`)."""

    def __init__(self, unit: wiring.Component, inverts: bool):
        self.unit = unit
        self.accesses: list[tuple[Value, Value]] = []
        self.collisions: list[Signal] = []

        def cells(memory: Ram, _: object, inside: Ports) -> Module:
            m, width = Module(), len(inside["w_data"])
            lane = width // memory.lanes
            words = Array(Signal(width, name=f"word{i}", reset_less=True) for i in range(memory.words))
            word, collides = Signal(width, reset_less=True), Signal()
            m.d.comb += inside["r_data"].eq(word)
            m.d.comb += collides.eq(inside["r_en"] & inside["w_en"].any() & (inside["w_addr"] == inside["r_addr"]))
            for k in range(memory.lanes):
                with m.If(inside["w_en"][k]):
                    part = inside["w_data"].word_select(k, lane)
                    m.d.sync += words[inside["w_addr"]].word_select(k, lane).eq(part)
            with m.If(inside["r_en"]):
                m.d.sync += word.eq(words[inside["r_addr"]] ^ (inverts & collides).replicate(width))
            self.accesses += [(inside["w_en"], inside["w_addr"]), (inside["r_en"], inside["r_addr"])]
            self.collisions.append(collides)
            return m

        with patch.object(Ram, "_cells", cells):
            self.fragment = Fragment.get(unit, None)

    def elaborate(self, platform):
        return self.fragment


class CollisionMonitor(UnitMonitor):
    """Claims that `unit` uses no word of a collision; with `reach` that nothing collides. `other` is a copy of it."""

    def __init__(
        self, unit: wiring.Component, other: wiring.Component, stable: tuple[str, ...], reach: bool, asked: bool
    ):
        self.reach, self.one, self.two = reach, _Copy(unit, False), _Copy(other, True)
        super().__init__(unit, stable, asked=asked, drawn=self.one)

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """One claim for every output, and one for every port of a memory."""
        m.submodules.two = self.two
        ours, others, flags_of = ports(self.one.unit), ports(self.two.unit), flags(self.one.unit)
        m.d.comb += [others[name][1].eq(value) for name, value in self.free.items()]
        if self.reach:
            m.d.comb += [Assert(~collides, "a memory is read and written") for collides in self.one.collisions]
            return
        for name, (flow, value) in ours.items():
            if flow == Out:
                by, bit = flags_of.get(name, ("", None))
                shown = [found[by][1][bit or 0] if by else Const(1) for found in (ours, others)]
                same = Mux(shown[0], value, 0) == Mux(shown[1], others[name][1], 0)
                m.d.comb += Assert(same, f"{name} shows it")
        for (en, at), (other_en, other_at) in zip(self.one.accesses, self.two.accesses, strict=True):
            m.d.comb += Assert((en == other_en) & (~en.any() | (at == other_at)), "a memory's port shows it")
