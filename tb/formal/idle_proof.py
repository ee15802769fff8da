"""Proof about every stream of any unit: what it holds while its `valid` is low shows at no output in the same cycle.

While a stream into the unit is not valid, every bit of its payload is unknown. Yosys adds to each signal the bits that
are unknown then, as a 4-state simulator does. Its SAT solver finds no state in which an output is unknown, except in
the payload of a stream that is not valid. Registers and memories hold any known value, so states that no run reaches
count too. That no register is misled by an idle payload is for the benches: their sources fill it with random bits.
"""

import re
import tempfile
from pathlib import Path

from amaranth import Module
from amaranth.back import rtlil
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.tb.formal.stream_proof import channels, ports
from openvrex.tb.library.yosys import run_yosys


def flags(unit: wiring.Component) -> dict[str, tuple[str, int | None]]:
    """The ports that need not always be known, and where their `valid` is: a port of its own, or a bit of the port."""
    found = ports(unit)
    names = {id(value): name for name, (_, value) in found.items()}
    flags = {names[id(value)]: (names[id(c.valid)], None) for c in channels(unit) for value in c.payload}
    for path, member, _ in unit.signature.flatten(unit):
        if isinstance(member.shape, data.StructLayout) and "valid" in dict(member.shape):
            name = "__".join(map(str, path))
            flags[name] = (name, member.shape["valid"].offset)
    return flags


class IdleMonitor(wiring.Component):
    """A unit whose inputs show `unknown` while they are not valid, and whose outputs are 0 while they are not."""

    def __init__(self, unit: wiring.Component):
        self.unit, self.found, self.flags = unit, ports(unit), flags(unit)
        members = {name: wiring.Member(flow, len(value)) for name, (flow, value) in self.found.items()}
        super().__init__(members | {"unknown": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = self.unit
        for name, (flow, value) in self.found.items():
            ours, known = getattr(self, name), ~0
            if name in self.flags:
                by, bit = self.flags[name]
                own = bit is not None
                valid = (self.found[by][1] if flow == Out else getattr(self, by))[bit or 0]
                known = valid.replicate(len(value)) | (own << bit if own else 0)
            if flow == Out:
                m.d.comb += ours.eq(value & known)
            else:
                m.d.comb += value.eq((ours & known) | (self.unknown.replicate(len(value)) & ~known))
        return m


def shown(unit: wiring.Component) -> set[str]:
    """Outputs of `unit` in which an idle payload may show; none is good."""
    monitor = IdleMonitor(unit)
    outputs = [name for name, (flow, value) in monitor.found.items() if flow == Out and len(value)]
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "a.il").write_text(rtlil.convert(monitor, name="top", emit_src=False))
        run_yosys(
            [
                *(f"read_rtlil {folder / 'a.il'}", "hierarchy -top top", "proc", "flatten", "memory_collect"),
                *("opt_clean", "cutpoint t:$dff t:$mem_v2", "opt_clean", "xprop -split-ports", "opt -fast"),
                *("opt_clean", f"write_rtlil {folder / 'b.il'}"),
            ]
        )
        inputs = re.findall(r"wire (?:width (\d+) )?input \d+ \\(\S+_x)\n", (folder / "b.il").read_text())
        sets = [f"-set {name} {n or 1}'b{str(int(name == 'unknown_x')) * int(n or 1)}" for n, name in inputs]
        proofs = [f"sat {' '.join(sets)} -prove {name}_x 0" for name in outputs]
        log = run_yosys([f"read_rtlil {folder / 'b.il'}", *proofs])
    verdicts = re.findall(r"SAT proof finished - (no model|model) found", log)
    return {name for name, verdict in zip(outputs, verdicts, strict=True) if verdict == "model"}
