"""Decides whether a mutant is equivalent to its unit: ABC compares the two sequentially and without a bound.

Each starts with a reset. Memories, and registers without reset, start with any content, the same in both. Inputs are
free in every cycle, including the reset. Outputs are compared in every cycle: of a stream's payload, only the defined
bits, and only while it is valid. A mutant that is equivalent in a module inside is so in the unit, and a small module
takes little time.
"""

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.synth.yosys_abc import run_abc
from openvrex.tb.library.yosys import run_yosys

REACHED = 8  # a bench's runs should reach this bit of 32-bit event counters
SECONDS = 20  # of processor time, for one comparison
INSIDE = 4  # the same for a module inside: small ones take 2 s, large ones would take all
_FLATTEN = (
    "read_rtlil mutants.il",
    "read_verilog side.v",
    "hierarchy -top side",
    "proc",
    "flatten",
    "opt_clean",
    "memory -nordff -nomap",
    "opt -fast",
    "write_rtlil flat.il",
)
_MAP = (
    "read_rtlil {flat}.il",
    "memory_map",
    "techmap",
    "opt -fast",
    "setundef -undriven -zero",
    "async2sync",
    "dffunmap",
    "simplemap",
    "aigmap",
    "opt_clean",
    "delete -input side/mutant side/whole",
    "write_rtlil {flat}.il",
)
# `lcorr` merges most registers at once. Equal outputs are then mostly constants, which the sequential engines refuse.
_PROOF = f"lcorr; scorr; sat; pdr -T {SECONDS // 2}"
_MODULE = re.compile(r"^module \\(\S+)\n(.*?)^end\n", re.M | re.S)
_PORT = re.compile(r"^  wire (?:width (\d+) )?(?:signed )?(in|out)put \d+ (?:signed )?\\(\S+)$", re.M)
_MEMORY = re.compile(r"(?:  attribute .*\n)*  cell \$mem_v2 .*\n(?:    .*\n)*  end\n")


class Miter:
    """Decides mutants of `mutants.il` in `folder`, a netlist whose input `mutant` selects (`tb.campaigns.mutants`)."""

    def __init__(self, emitted: Emitted, folder: Path, mutants: int, care: dict[str, str]):
        self.bits, self.folder, self.written = mutants.bit_length(), folder, set()
        self.top, self.mutants, self.inner = emitted.top, mutants, dict[str, Miter]()
        (folder / "side.v").write_text(_side(emitted, self.bits, care))
        run_yosys(list(_FLATTEN), folder)
        text = (folder / "flat.il").read_text()
        (folder / "cut.il").write_text(_cut(text))
        self.model = "cut" if "$mem_v2" in text else "flat"  # the model for proofs
        for flat in {self.model, "flat"}:
            run_yosys([c.format(flat=flat) for c in _MAP], folder)

    def decide(self, number: int, module: str = "") -> tuple[str, str]:
        """The kind of a mutant, and how that is known.

        module : the one that is mutated

        equivalent: proved; counter: equivalent unless a counter reaches 2^REACHED before a reset; survives: neither is
        proved
        """
        for around in self._around(module):
            if around._compare(around.model, number, 1, _PROOF, INSIDE) == "equal":
                return "equivalent", f"proved of {around.top}"
        if self._compare(self.model, number, 0, _PROOF) == "equal":
            whole = self._compare(self.model, number, 1, _PROOF)
            return ("equivalent" if whole == "equal" else "counter"), "proved"
        return "survives", self._compare("flat", number, 0, f"bmc3 -F 40 -T {SECONDS // 2}")

    def _around(self, module: str) -> Iterator["Miter"]:
        """Miters of a module inside the unit, and of each around it, as long as each has one place."""
        modules = dict(_MODULE.findall((self.folder / "mutants.il").read_text()))
        while module and module != self.top:
            if module not in self.inner:
                (folder := self.folder / module).mkdir()
                shutil.copy(self.folder / "mutants.il", folder)
                found = [(w, way, name) for w, way, name in _PORT.findall(modules[module]) if name != "mutant"]
                ports = [{"name": name, "dir": way, "width": int(width or 1)} for width, way, name in found]
                self.inner[module] = Miter(Emitted("", module, {"ports": ports}), folder, self.mutants, {})
            yield self.inner[module]
            outer = [name for name, text in modules.items() if re.search(rf"^  cell \\{module} ", text, re.M)]
            module = outer[0] if len(outer) == 1 else ""

    def _compare(self, model: str, number: int, whole: int, engines: str, seconds: int = SECONDS) -> str:
        """Whether the two are equal, differ in some cycle, or are undecided. `whole`: at any value of the counters."""
        unit = f"{model}{whole}.aig"
        for name, k in ((unit, 0), ("mutant.aig", number)):
            if name not in self.written:
                sets = f"connect -set mutant {self.bits}'d{k}", f"connect -set whole 1'd{whole}"
                run_yosys([f"read_rtlil {model}.il", *sets, f"write_aiger -zinit {name}"], self.folder)
        self.written.add(unit)
        text = run_abc(f"miter -n {unit} mutant.aig; orpos; strash; {engines}", self.folder, seconds)
        if found := re.search(r"asserted in frame (\d+)", text):
            return f"differs in cycle {found[1]} after a reset"
        return "equal" if "UNSATISFIABLE" in text or "Property proved" in text else "undecided"


def _cut(il: str) -> str:
    """A flat module without its memories: their inputs become outputs, and their outputs become inputs.

    If the proof succeeds, memories with equal content stay equal. This saves most of the state.
    """
    count = itertools.count(1)

    def ports(cell: re.Match) -> str:
        n = next(count)
        pins = dict(re.findall(r"connect \\(\S+) (.*)", cell[0]))
        sizes = {k: int(v) for k, v in re.findall(r"parameter (?:signed )?\\(\S+) (\d+)$", cell[0], re.M)}
        data, bits = sizes["WR_PORTS"] * sizes["WIDTH"], sizes["ABITS"]
        asked = data + data + (sizes["WR_PORTS"] + sizes["RD_PORTS"]) * bits
        return (
            f"  wire width {sizes['RD_PORTS'] * sizes['WIDTH']} input {9000 + 2 * n} \\cut{n}_answer\n"
            f"  wire width {asked} output {9001 + 2 * n} \\cut{n}_asked\n"
            f"  wire width {data} \\cut{n}_data\n"
            f"  cell $and \\cut{n}_masked\n    parameter \\A_SIGNED 0\n    parameter \\B_SIGNED 0\n"
            f"    parameter \\A_WIDTH {data}\n    parameter \\B_WIDTH {data}\n    parameter \\Y_WIDTH {data}\n"
            f"    connect \\A {pins['WR_DATA']}\n    connect \\B {pins['WR_EN']}\n"
            f"    connect \\Y \\cut{n}_data\n  end\n"
            f"  connect {pins['RD_DATA']} \\cut{n}_answer\n"
            f"  connect \\cut{n}_asked {{ {pins['WR_EN']} \\cut{n}_data {pins['WR_ADDR']} {pins['RD_ADDR']} }}\n"
        )

    return _MEMORY.sub(ports, il)


def _side(emitted: Emitted, bits: int, care: dict[str, str]) -> str:
    """A module around the netlist whose outputs are the compared bits, after a first cycle under reset.

    care : port -> Verilog of its defined bits, in which outputs are named <port>
    """
    ports = emitted.manifest["ports"]
    widths = {p["name"]: p["width"] for p in ports}
    valid = {p["name"]: f"{p['stream']}_valid" for p in ports if p.get("role") == "payload"}
    head, pins, body = ["output past"], [".mutant(mutant)"], []
    for name, width in widths.items():
        given = next(p["dir"] for p in ports if p["name"] == name) == "in"
        head.append(f"{'in' if given else 'out'}put [{width - 1}:0] {name if given else f'seen_{name}'}")
        pins.append(f".{name}({'held' if name == 'rst' else name})")
        if not given:
            when = valid.get(name, "1'b1")
            body += [f"wire [{width - 1}:0] {name};"]
            means = care.get(name, "~0")
            body += [f"assign seen_{name} = {{{width}{{started & ~past & {when}}}}} & {name} & ({means});"]
    head += [f"input {name}" for name in ("clk", "rst") if name not in widths]
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
