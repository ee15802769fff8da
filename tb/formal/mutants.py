"""Whether a mutant is its unit: ABC compares the two sequentially and without a bound, from the same state on.

Each starts with a reset. Memories, and registers that a reset leaves alone, start with anything, the same in both.
Inputs are free in every cycle, the reset too. Outputs are compared in every cycle, the payload of a stream where it is
valid, and of it those bits that mean something.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from hdl.emit import Emitted

REACHED = 8  # bits of 32-bit event counters that a bench's runs should reach
SECONDS = 40  # for a comparison
_MAP = (
    "read_rtlil mutants.il",
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


def _yosys(folder: Path, *commands: str) -> None:
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    command = [sys.executable, "-c", code, *commands]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"Yosys could not write the graph: {(run.stdout + run.stderr)[-500:]}")


class Miter:
    """Decides mutants of a netlist, `mutants.il` in `folder`, whose input `mutant` chooses (`tb.mutate.netlist`)."""

    def __init__(self, emitted: Emitted, folder: Path, mutants: int, care: dict[str, str]):
        self.bits, self.folder = mutants.bit_length(), folder
        (folder / "side.v").write_text(_side(emitted, self.bits, care))
        _yosys(folder, *_MAP, "write_rtlil side.il")

    def decide(self, number: int) -> tuple[str, str]:
        """What a mutant is, and how that is known.

        equivalent · counter: equivalent if a reset comes when a counter gets to 2^REACHED · survives
        """
        end = self._compare(number, 0)
        if end != "equal":
            return "survives", end
        return ("equivalent" if self._compare(number, 1) == "equal" else "counter"), "proved"

    def _compare(self, number: int, whole: int) -> str:
        """equal, differs in some cycle, or undecided; `whole`: wherever the counters are."""
        for name, k in (("unit", 0), ("mutant", number)):
            sets = f"connect -set mutant {self.bits}'d{k}", f"connect -set whole 1'd{whole}"
            _yosys(self.folder, "read_rtlil side.il", *sets, f"write_aiger -zinit {name}.aig")
        abc = Path(find_spec("pyosys").submodule_search_locations[0], "yosys-abc")
        # What `scorr` leaves of equal ones is mostly a constant, which the engines for sequential networks refuse.
        search = f"bmc3 -F 60 -T {SECONDS // 4};" if not whole else ""
        script = f"miter -n unit.aig mutant.aig; orpos; strash; {search} scorr; sat; pdr -T {SECONDS // 2}"
        command = [str(abc), "-c", script]
        try:
            run = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=SECONDS, check=False)
            text = run.stdout.decode()
        except subprocess.TimeoutExpired as e:
            text = (e.stdout or b"").decode()
        if found := re.search(r"asserted in frame (\d+)", text):
            return f"differs in cycle {found[1]} after a reset"
        return "equal" if "UNSATISFIABLE" in text or "Property proved" in text else "undecided"


def _side(emitted: Emitted, bits: int, care: dict[str, str]) -> str:
    """A module around the netlist whose outputs are what is compared, after a first cycle under reset.

    care : port -> Verilog of the bits of it that mean something, outputs being <port> there
    """
    ports = emitted.manifest["ports"]
    widths = {p["name"]: p["width"] for p in ports}
    head, pins, body = ["output past"], [".mutant(mutant)"], []
    for name, width in widths.items():
        given = next(p["dir"] for p in ports if p["name"] == name) == "in"
        head.append(f"{'in' if given else 'out'}put [{width - 1}:0] {name if given else f'seen_{name}'}")
        pins.append(f".{name}({'held' if name == 'rst' else name})")
        if not given:
            valid = name.removesuffix("payload") + "valid"
            when = valid if name.endswith("__payload") and valid in widths else "1'b1"
            body += [f"wire [{width - 1}:0] {name};"]
            means = care.get(name, "~0")
            body += [f"assign seen_{name} = {{{width}{{started & ~past & {when}}}}} & {name} & ({means});"]
    perf = widths.get("perf", 1)
    reached = sum(1 << i for i in range(perf) if i % 32 < REACHED)
    high = f"|(perf & ~{perf}'h{reached:x})" if "perf" in widths else "1'b0"
    return (
        f"module side({', '.join(head)}, input [{bits - 1}:0] mutant, input whole);\n"
        + "\n".join(body)
        + "\nreg started = 0; always @(posedge clk) started <= 1;\n"
        f"assign past = started & ~whole & ({high});\n"
        "wire held = rst | ~started | past;\n"
        f"{emitted.top} unit({', '.join(pins)});\nendmodule\n"
    )
