"""Faults chosen by hand: each is a mutation of one cell of a unit's netlist, which is found by its structure.

A fault reads "$and 2.9f3c01a7: A[0] const1": bit 0 of port A of this AND is constant 1 (`tb.campaigns.cells`). A rename
loses no fault. `vrex dev mutate hcu --at TEXT` names the faults where a text stands in the unit's Verilog.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.tb.campaigns.cells import named, read, shown, span
from openvrex.tb.campaigns.mutants import MutateError, Mutation, netlist, seen
from openvrex.tb.library.runner import Mutant
from openvrex.tb.library.yosys import run_yosys

# What a text names that stands for a promise of a data sheet, not for a detail.
RULE = re.compile(r"\b(error|fault|reset|refused?|not cleared|a CLEAR|a SWITCH|stale|lost)\b")
FAULT = re.compile(r"(\S+ \d\.[0-9a-f]{8}(?:\+\d+)?): (\w+)\[(\d+)\] (\w+?)(?: by (\d+))?")


def at(emitted: Emitted, text: str, module: str = "") -> Iterator[str]:
    """Cells whose Verilog has a text, the shortest first: name, ports with their widths, Verilog."""
    found = [(shown(emitted.verilog, span(c.sources)), name, c) for name, c in named(emitted, module).items()]
    for verilog, name, cell in sorted((f for f in found if text in f[0]), key=lambda f: len(f[0])):
        yield f"{name}: {' '.join(f'{port}[{len(bits)}]' for port, bits in cell.pins.items())}: {verilog[:120]}"


def mutations(emitted: Emitted, faults: Iterable[str], module: str = "") -> list[Mutation]:
    """What Yosys changes for each fault. Raises `MutateError` if the netlist has no such cell.

    module : the only one that has faults: the logic that joins units
    """
    there, out = named(emitted, module), []
    for fault in faults:
        m = FAULT.fullmatch(fault)
        cell = there.get(m[1]) if m else None
        if not cell:
            raise MutateError(f"{fault!r}: {emitted.top} has no such cell: vrex dev mutate --at names those of a text")
        by = f" -ctrlbit {m[5]}" if m[5] else ""
        where = f"-module {cell.module} -cell {cell.name} -port {m[2]} -portbit {m[3]}{by}"
        out.append(Mutation(f"{where} -mode {m[4]}", fault))
    return out


def with_faults(emitted: Emitted, faults: Iterable[str], module: str = "") -> list[Mutant]:
    """The unit without a fault, and with each of them: one simulator for all."""
    with tempfile.TemporaryDirectory() as tmp:
        return netlist(emitted, mutations(emitted, faults, module), Path(tmp))


def survivors(
    emitted: Emitted,
    faults: dict[str, str],
    passes: Callable[[Emitted], object],
    module: str = "",
    every: int = 1,
) -> dict[str, str]:
    """Faults that no check notices: with them `passes` neither raises nor returns False.

    faults : what each does
    every : try only each n-th one, and all whose text names a rule (`RULE`)
    """
    all_of_them = dict(zip(faults, mutations(emitted, faults, module), strict=True))  # raises for those not tried, too
    chosen = {f: what for k, (f, what) in enumerate(faults.items()) if not k % every or RULE.search(what)}
    with tempfile.TemporaryDirectory() as tmp:
        sound, *mutants = netlist(emitted, [all_of_them[f] for f in chosen], Path(tmp))
    assert not (how := seen(passes, sound)), f"the checks fail without a fault: {how}"
    return {f: what for (f, what), m in zip(chosen.items(), mutants, strict=True) if not seen(passes, m)}


def with_fault(emitted: Emitted, fault: str, module: str = "") -> Emitted:
    """The unit with a fault for good."""
    [mutation] = mutations(emitted, [fault], module)
    with tempfile.TemporaryDirectory() as tmp:
        emitted.write(Path(tmp))
        run_yosys(
            [*read(emitted), f"mutate {mutation.options}", "write_verilog -noattr -noparallelcase out"], Path(tmp)
        )
        return replace(emitted, verilog=Path(tmp, "out").read_text())
