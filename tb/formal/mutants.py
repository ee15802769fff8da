"""Whether a mutant is its unit: ABC compares the two sequentially and without a bound, from the same state on.

Each starts with a reset. Memories, and registers that a reset leaves alone, start with anything, the same in both.
Inputs are free in every cycle, the reset too. Outputs are compared in every cycle, a stream's payload where it is valid.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyosys

from hdl.emit import Emitted

REACHED = 12  # bits of a 32-bit event counter that the runs of a bench reach
SECONDS = 20
_MAP = (
    "read_rtlil {il}",
    "read_verilog side.v",
    "hierarchy -top side",
    "proc",
    "flatten",
    "opt_clean",
    "memory -nordff",
    "opt -fast",
    "techmap",
    "opt -fast",
    "setundef -undriven -zero",
    "async2sync",
    "dffunmap",
    "simplemap",
    "aigmap",
    "opt_clean",
    "delete -input side/mutant side/whole",
)


def _yosys(folder: str, *commands: str) -> None:
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    command = [sys.executable, "-c", code, *commands]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"Yosys could not write the graph: {(run.stdout + run.stderr)[-500:]}")


class Miter:
    """Decides mutants of one netlist, `il`, whose input `mutant` chooses (`tb.mutate.netlist`)."""

    def __init__(self, emitted: Emitted, il: Path, mutants: int):
        self.bits, self.folder = mutants.bit_length(), tempfile.TemporaryDirectory()
        Path(self.folder.name, "side.v").write_text(_side(emitted, self.bits))
        _yosys(self.folder.name, *(c.format(il=il) for c in _MAP), "write_rtlil side.il")

    def decide(self, number: int) -> tuple[str, str]:
        """What a mutant is, and how that is known.

        equivalent · counter: equivalent but for bits of counters that no run reaches · survives
        """
        end = self._compare(number, 0, f"bmc3 -F 200 -T {SECONDS}; pdr -T {SECONDS}")
        if end != "equal":
            return "survives", end
        return ("equivalent" if self._compare(number, 1) == "equal" else "counter"), "proved"

    def _compare(self, number: int, whole: int, search: str = "") -> str:
        """equal, differs in some cycle, or undecided; `whole`: in all bits of counters."""
        for name, k in (("unit", 0), ("mutant", number)):
            sets = f"connect -set mutant {self.bits}'d{k}", f"connect -set whole 1'd{whole}"
            _yosys(self.folder.name, "read_rtlil side.il", *sets, f"write_aiger -zinit {name}.aig")
        abc = Path(pyosys.__file__).parent / "yosys-abc"
        # What is left of equal ones is mostly a constant, which the engines for sequential networks refuse.
        script = f"miter -n unit.aig mutant.aig; orpos; strash; scorr; sat; {search}"
        run = subprocess.run([str(abc), "-c", script], cwd=self.folder.name, capture_output=True, text=True, check=False)
        if "UNSATISFIABLE" in run.stdout or "Property proved" in run.stdout:
            return "equal"
        found = re.search(r"asserted in frame (\d+)", run.stdout)
        return f"differs in cycle {found[1]} after a reset" if found else "undecided"


def _side(emitted: Emitted, bits: int) -> str:
    """A module around the netlist whose outputs are what is compared, after a first cycle under reset."""
    ports = emitted.manifest["ports"]
    names = {p["name"] for p in ports}
    head, pins, body = [], [".mutant(mutant)"], []
    for p in ports:
        name, width = p["name"], p["width"]
        head.append(f"{p['dir']}put [{width - 1}:0] {name}")
        pins.append(f".{name}({name if p['dir'] == 'in' and name != 'rst' else f'own_{name}'})")
        if p["dir"] == "out":
            valid = name.removesuffix("payload") + "valid"
            when = f"own_{valid}" if name.endswith("__payload") and valid in names else "1'b1"
            reached = sum(1 << i for i in range(width) if i % 32 < REACHED)
            mask = f" & ({width}'h{reached:x} | {{{width}{{whole}}}})" if name == "perf" else ""
            body += [f"wire [{width - 1}:0] own_{name};"]
            body += [f"assign {name} = {{{width}{{started & {when}}}}} & own_{name}{mask};"]
    return (
        f"module side({', '.join(head)}, input [{bits - 1}:0] mutant, input whole);\n"
        "reg started = 0; always @(posedge clk) started <= 1;\nwire own_rst = rst | ~started;\n"
        + "\n".join(body)
        + f"\n{emitted.top} unit({', '.join(pins)});\nendmodule\n"
    )
