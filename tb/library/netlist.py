"""Maps a unit to the gates of the project's own library, around its memories, so that its own bench can run on them."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hdl.emit import Emitted
from hdl.memory import bodies

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
_CELLS = ("read_liberty {lib}", "write_verilog -noattr {out}")


def mapped(e: Emitted) -> Emitted:
    """The unit after synthesis. Memories stay as they are emitted, queues become flip-flops."""
    memories = {memory["module"] for memory in e.manifest.get("memories", ())} - {""}
    kinds = {memory.removeprefix(f"{e.top}_") for memory in memories}
    with tempfile.TemporaryDirectory() as folder:
        source, netlist, cells = (Path(folder, name) for name in ("a.v", "b.v", "c.v"))
        source.write_text(e.verilog)
        what = {"v": source, "top": e.top, "lib": LIBRARY, "memories": " ".join(sorted(memories))}
        _yosys([c.format(out=netlist, **what) for c in _MAP if memories or "blackbox" not in c])
        _yosys([c.format(out=cells, lib=LIBRARY) for c in _CELLS])
        text = netlist.read_text() + cells.read_text() + bodies(e.top, kinds)
    return replace(e, verilog=text)


def _yosys(commands: list[str]) -> None:
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    run = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"Yosys could not map it: {(run.stdout + run.stderr)[-800:]}")
