"""Maps a unit to the gates of the project's own library, around its memories, so that its own bench can run on them."""

import tempfile
from dataclasses import replace
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.hdl.memory import bodies
from openvrex.tb.library.yosys import run_yosys

LIBRARY = Path(__file__).parents[2] / "synth" / "openvrex.lib"
_MAP = (
    "read_verilog {v}",
    "blackbox {memories}",
    "hierarchy -check -top {top}",
    "synth -top {top} -flatten -noabc",
    "dfflibmap -liberty {lib}",
    "abc -liberty {lib}",
    "opt_clean -purge",
    "write_verilog -noattr {out}",
)
_CELLS = ("read_liberty -ignore_miss_func {lib}", "write_verilog -noattr {out}")  # no clock gate is used


def mapped(e: Emitted) -> Emitted:
    """The unit after synthesis. Memories stay as they are emitted, queues become flip-flops."""
    memories = {memory["module"] for memory in e.manifest.get("memories", ())} - {""}
    kinds = {memory.removeprefix(f"{e.top}_") for memory in memories}
    with tempfile.TemporaryDirectory() as folder:
        source, netlist, cells = (Path(folder, name) for name in ("a.v", "b.v", "c.v"))
        source.write_text(e.verilog)
        what = {"v": source, "top": e.top, "lib": LIBRARY, "memories": " ".join(sorted(memories))}
        run_yosys([c.format(out=netlist, **what) for c in _MAP if memories or "blackbox" not in c])
        run_yosys([c.format(out=cells, lib=LIBRARY) for c in _CELLS])
        text = netlist.read_text() + cells.read_text() + bodies(e.top, kinds)
    return replace(e, verilog=text)
