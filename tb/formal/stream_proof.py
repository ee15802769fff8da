"""Proof about every stream of any unit: an offered beat stays unchanged until it is taken.

All inputs are free in every cycle, except that streams into the unit keep the same rule and inputs named `stable` never
change. A check of the netlist adds: no output's `valid` or payload depends on a `ready` of the same cycle.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amaranth import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.back import rtlil
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.tb.library.yosys import run_yosys

_AXI = re.compile(r"(\w*axi_(?:ar|aw|w|r|b)|\w*axis_\w_t)valid")


@dataclass(frozen=True)
class Channel:
    """A stream, or a channel of an AXI4 or AXI-Stream port; `given` if the unit drives it."""

    name: str
    given: bool
    valid: Value
    ready: Value
    payload: tuple[Value, ...]

    @property
    def bits(self) -> Value:
        """All bits of the payload."""
        return Cat(*self.payload)


def ports(unit: wiring.Component) -> dict[str, tuple[wiring.Flow, Value]]:
    """Direction and value of every port, by its name in Verilog."""
    return {
        "__".join(map(str, path)): (member.flow, Value.cast(value))
        for path, member, value in unit.signature.flatten(unit)
    }


def channels(unit: wiring.Component) -> Iterator[Channel]:
    """Every stream of a unit, also in arrays and bundles, and every channel of its AXI4 and AXI-Stream ports."""
    found = ports(unit)
    for name, (flow, valid) in found.items():
        axi = _AXI.fullmatch(name)
        if not axi and not name.endswith("__valid"):
            continue
        stem = axi[1] if axi else name.removesuffix("valid")
        ends = (name, f"{stem}ready")
        payload = tuple(value for other, (_, value) in found.items() if other.startswith(stem) and other not in ends)
        yield Channel(stem.rstrip("_"), flow == Out, valid, found[f"{stem}ready"][1], payload)


class UnitMonitor(wiring.Component):
    """A unit between free inputs, except that beats offered to it stay until taken and `stable` inputs never change.

    more : further free inputs, for `claims`
    asked : the memory answers only bursts that it was asked for
    drawn : the unit as it is elaborated, if not as itself
    """

    def __init__(
        self,
        unit: wiring.Component,
        stable: tuple[str, ...] = (),
        more: tuple[str, ...] = (),
        asked: bool = False,
        drawn: Elaboratable | None = None,
    ):
        self.unit, self.stable, self.asked, self.drawn = unit, stable, asked, drawn or unit
        self.free = {name: value for name, (flow, value) in ports(unit).items() if flow == In}
        super().__init__({name: In(len(value)) for name, value in self.free.items()} | dict.fromkeys(more, In(1)))

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """The assertions. By channel: `held`, a beat was offered but not taken a cycle ago; `before`, its payload."""
        raise NotImplementedError

    def elaborate(self, platform):
        m = Module()
        unit, m.submodules.unit = self.unit, self.drawn
        gives = {id(value): getattr(self, name) for name, value in self.free.items()}
        begun = Signal()
        m.d.sync += begun.eq(1)
        for name in self.stable:
            value = self.free[name]
            kept, now = Signal(len(value), name=f"{name}_kept"), Signal(len(value), name=f"{name}_now")
            m.d.comb += now.eq(Mux(begun, kept, getattr(self, name)))
            m.d.sync += kept.eq(now)
            gives[id(value)] = now
        helds, befores = {}, {}
        found = {c.name: c for c in channels(unit)}
        for c in found.values():
            helds[c.name] = held = Signal(name=f"{c.name}_held")
            befores[c.name] = before = Signal(len(c.bits), name=f"{c.name}_before")
            m.d.sync += [held.eq(c.valid & ~c.ready), before.eq(c.bits)]
            if not c.given:
                k = 0
                for value in c.payload:
                    gives[id(value)] = Mux(held, before[k : k + len(value)], gives[id(value)])
                    k += len(value)
                valid = Signal(name=f"{c.name}_now")
                may = self._may_answer(m, c, found, valid, gives) if self.asked else 1
                m.d.comb += valid.eq(held | (gives[id(c.valid)] & may))
                gives[id(c.valid)] = valid
        m.d.comb += [value.eq(gives[id(value)]) for value in self.free.values()]
        self.claims(m, helds, befores)
        return m

    def _may_answer(self, m: Module, c: Channel, found: dict[str, Channel], valid: Value, gives: dict) -> Value:
        """Whether a burst or an ask waits for a beat of `c`, if `c` answers bursts or asks (`table_client`)."""
        bundle, _, part = c.name.rpartition("__")
        if part == "data" and f"{bundle}__ask" in found:
            ask, owed = found[f"{bundle}__ask"], Signal(6, name=f"{bundle}_owed")
            more = getattr(self.unit, bundle).ask.payload.more
            m.d.sync += owed.eq(owed + Mux(ask.valid & ask.ready, more + 1, 0) - (valid & c.ready))
            return owed.any()
        stem, kind = c.name[:-1], c.name[-1]
        if not stem.endswith("axi_") or kind not in "rb":
            return 1
        named = ports(self.unit)
        last = {n: gives.get(id(v), v) for n in "rw" for v in [named[f"{stem}{n}last"][1]]}
        asked = {"ar": 1} if kind == "r" else {"aw": 1, "w": last["w"]}
        may = []
        for name, ends in asked.items():
            owed, by = Signal(4, name=f"{stem}{name}_owed"), found[stem + name]
            m.d.sync += owed.eq(owed + (by.valid & by.ready & ends) - (valid & c.ready & (last["r"] | (kind == "b"))))
            may.append(owed.any())
        return Cat(may).all()


class StreamMonitor(UnitMonitor):
    """Claims that a unit's offers stay until they are taken.

    reach : claims instead that not every output was ever stalled; that claim must fail
    """

    def __init__(self, unit: wiring.Component, stable: tuple[str, ...] = (), reach: bool = False, asked: bool = False):
        super().__init__(unit, stable, asked=asked)
        self.reach = reach

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """One claim for every channel that the unit drives."""
        given = [c for c in channels(self.unit) if c.given]
        if self.reach:
            stalled = Signal(len(given))
            m.d.sync += stalled.eq(stalled | Cat(held[c.name] for c in given))
            m.d.comb += Assert(~stalled.all(), "every output has been stalled")
            return
        for c in given:
            m.d.comb += Assert(~held[c.name] | c.valid, f"{c.name} is withdrawn")
            same = c.bits == before[c.name]
            m.d.comb += Assert(~held[c.name] | ~c.valid | same, f"{c.name} changes while it waits")


def waiting(unit: wiring.Component) -> dict[str, set[str]]:
    """For each output channel, the `ready` inputs on which its `valid` or payload depends in the same cycle.

    The netlist is followed cell by cell, so there are no other dependences.
    """
    driver = {}
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "a.il").write_text(rtlil.convert(unit, name="top", emit_src=False))
        passes = ("hierarchy -top top", "proc", "flatten", "opt_clean", "memory_collect")
        run_yosys([f"read_rtlil {folder / 'a.il'}", *passes, f"write_json {folder / 'a.json'}"])
        top = json.loads((folder / "a.json").read_text())["modules"]["top"]
    for cell in top["cells"].values():
        sides = {"input": [], "output": []}
        for port, bits in cell["connections"].items():
            sides[cell["port_directions"][port]] += bits
        kept = "CLK" in cell["connections"] or "RD_CLK" in cell["connections"]
        driver |= {bit: () if kept else tuple(sides["input"]) for bit in sides["output"]}
    bits = {name: port["bits"] for name, port in top["ports"].items()}
    start = {bit: n for n in bits if n.endswith("ready") and top["ports"][n]["direction"] == "input" for bit in bits[n]}
    out = {}
    for c in channels(unit):
        if not c.given:
            continue
        ready = next(n for n in bits if re.fullmatch(rf"{c.name}(__)?ready", n))
        own = ready.removesuffix("ready")
        seen = set()
        todo = [b for n in bits if n.startswith(own) and n != ready for b in bits[n]]
        while todo:
            bit = todo.pop()
            if bit not in seen:
                seen.add(bit)
                todo += driver.get(bit, ())
        out[c.name] = {start[bit] for bit in seen & start.keys()}
    return out
