"""Proves a unit with test ports of memories equal to the unit without while `bist_enable` is 0.

Memories are cut out of both: what they take goes out, what they give comes in. Yosys pairs what has the same name, and
proves each pair equal for all inputs and states, by induction where registers lie between.
"""

import re
import tempfile
from pathlib import Path

from openvrex.hdl.emit import Emitted, emit
from openvrex.tb.formal.verilog_equivalence import UnequalError
from openvrex.tb.library.yosys import run_yosys


def prove(unit: str, params: object, old: str = "", new: str = "") -> int:
    """Proves the unit equal; returns how many pairs were compared.

    old, new : of the text with test ports, to see the proof fail
    Raises: `UnequalError` with the pairs that differ.
    """
    plain, tested = (emit(unit, params, memory_bodies=False, bist=bist) for bist in (False, True))
    assert old in tested.verilog
    cells = [m["name"] for m in tested.manifest["memories"] if m["module"]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("plain.v").write_text(plain.memories + plain.verilog)
        folder.joinpath("tested.v").write_text(tested.memories + tested.verilog.replace(old, new))
        commands = [*_read(plain, "plain", cells), *_read(tested, "tested", cells)]
        commands += [f"design -copy-from {kind} {kind}" for kind in ("plain", "tested")]
        commands += ["equiv_make plain tested both", "cd both", "equiv_simple", "equiv_induct", "equiv_status"]
        log = run_yosys(commands, folder)
    if wrong := re.findall(r"^  Unproven \$equiv \S+ (\S+) ", log, re.M):
        raise UnequalError(f"{unit}: {len(wrong)} signals may differ: {', '.join(wrong[:5])}")
    return int(re.findall(r"Found (\d+) \$equiv cells", log)[-1])


def _read(made: Emitted, kind: str, cells: list[str]) -> list[str]:
    """Commands that leave the unit, flat and without its memories, in the design `kind`.

    Wires of the modules around a memory are hidden, since Yosys would name registers after them on one side only.
    """
    top = made.top
    hidden = [f"rename -hide {top}/w:{cell.removesuffix('.cells')}.*" for cell in cells]
    tie = []
    if kind == "tested":
        named = [f"rename {cell} {cell.removesuffix('.cells')}" for cell in cells]
        tie = [f"cd {top}", *named, "delete -port w:bist_*", "cd", "setundef -undriven -zero w:bist_*"]
    return [
        *(f"read_verilog {kind}.v", f"hierarchy -check -top {top}", "proc -norom", "flatten -noscopeinfo"),
        *(*hidden, *tie, "memory_map", "opt_expr", "opt_clean"),
        *(f"expose -sep _pin_ -evert t:{top}_ram_*", "opt_clean -purge"),
        *(f"rename {top} {kind}", f"design -stash {kind}"),
    ]
