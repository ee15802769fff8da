"""A unit as its mapped netlist: gates of the project's own library around its memories, for the unit's own bench."""

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hdl.emit import Emitted

LIBRARY = Path(__file__).parent.parent / "synth" / "openvrex.lib"
_MAP = (
    "read_verilog {v}",
    "hierarchy -check -top {top}",
    "blackbox {memories}",
    "synth -top {top} -flatten -noabc",
    "dfflibmap -liberty {lib}",
    "abc -liberty {lib}",
    "opt_clean -purge",
    "write_verilog -noattr {out}",
)
_CELLS = ("read_liberty {lib}", "write_verilog -noattr {out}")
_MODULE = re.compile(r"^module \\?(\S+?) ?\(")


def mapped(e: Emitted) -> Emitted:
    """The unit after synthesis. Memories stay as they are emitted; queues become flip-flops."""
    modules = re.split(r"(?=^module )", e.verilog, flags=re.M)[1:]
    memories = {_MODULE.match(text)[1]: text for text in modules if re.search(r"^  reg \[\d+:0\] mem \[", text, re.M)}
    with tempfile.TemporaryDirectory() as folder:
        source, netlist, cells = (Path(folder, name) for name in ("a.v", "b.v", "c.v"))
        source.write_text(e.verilog)
        what = {"v": source, "top": e.top, "lib": LIBRARY, "memories": " ".join(memories)}
        _yosys([c.format(out=netlist, **what) for c in _MAP if memories or "blackbox" not in c])
        _yosys([c.format(out=cells, lib=LIBRARY) for c in _CELLS])
        text = "".join([netlist.read_text(), cells.read_text(), *memories.values()])
    return replace(e, verilog=text)


def _yosys(commands: list[str]) -> None:
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    run = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"Yosys could not map it: {(run.stdout + run.stderr)[-800:]}")
