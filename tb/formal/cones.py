"""Which registers of a unit its proved claims look at: those from which a path of logic leads to a claim.

A register outside of every cone can be changed without breaking a proof. A register inside may still be seen only in
part, so a cone finds holes and shows no strength: that is for the mutants.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from openvrex.tb.formal.proofs import Goal, goals
from openvrex.tb.formal.prover import rtlil_of
from openvrex.tb.library.yosys import run_yosys

_REGISTER = re.compile(r"\$_?(?:a|s|ad|al)?dffs?r?e?|\$s?dffc?e?")
_COUNTERS = re.compile(r"(\b|_)perf(\b|_)|counted_")  # nothing is claimed of event counters
_PASSES = ("delete t:$meminit t:$meminit_v2", "hierarchy -top top", "proc", "flatten", "memory -nordff -nomap")


def cones(unit: str) -> tuple[set[str], set[str]]:
    """Registers of a unit in the cone of a claim, and all of them, by name."""
    inside: set[str] = set()
    every: set[str] = set()
    for goal in goals():
        if goal.unit == unit and isinstance(goal, Goal):
            reached, registers = cone(goal)
            inside |= reached
            every |= registers
    return inside, every


def cone(goal: Goal) -> tuple[set[str], set[str]]:
    """The same of one claim."""
    with goal.within(), tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "a.il").write_text(rtlil_of(goal.make(False)))
        run_yosys([f"read_rtlil {folder}/a.il", *_PASSES, f"cutpoint {goal.cut}", f"write_json {folder}/a.json"])
        return _of_netlist(json.loads((folder / "a.json").read_text())["modules"]["top"])


def _of_netlist(module: dict) -> tuple[set[str], set[str]]:
    """The same of a flat netlist whose unit is the instance `unit`."""
    drivers: dict[int, list[int]] = {}  # bit -> bits that decide it
    claims: list[int] = []
    registers: set[int] = set()
    for cell in module["cells"].values():
        pins = cell["connections"]
        ways = cell.get("port_directions", {})
        ins = [b for pin, bits in pins.items() if ways.get(pin) == "input" for b in bits if isinstance(b, int)]
        if cell["type"] in ("$check", "$assert"):
            claims += ins
        elif "Q" in pins and "D" in pins and _REGISTER.fullmatch(cell["type"]):
            rest = [b for pin, bits in pins.items() if pin not in ("Q", "D", "CLK") for b in bits if isinstance(b, int)]
            registers |= {b for b in pins["Q"] if isinstance(b, int)}
            for q, d in zip(pins["Q"], pins["D"], strict=True):
                drivers.setdefault(q, []).extend([*rest, *([d] if isinstance(d, int) else [])])
        else:
            for pin, bits in pins.items():
                for bit in bits if ways.get(pin) == "output" else ():
                    drivers.setdefault(bit, []).extend(ins)
    seen, todo = set(claims), list(claims)
    while todo:
        for bit in drivers.get(todo.pop(), ()):
            if bit not in seen:
                seen.add(bit)
                todo.append(bit)
    names = dict(_names(module))
    every = {names[b] for b in registers if b in names}
    return {names[b] for b in registers & seen if b in names}, every


def _names(module: dict) -> Iterator[tuple[int, str]]:
    """Bits of the unit's signals, and the signal's name."""
    for name, net in module["netnames"].items():
        if name.startswith("unit.") and not net["hide_name"] and not _COUNTERS.search(name):
            yield from ((b, name.removeprefix("unit.")) for b in net["bits"] if isinstance(b, int))
