"""Proves bits of a unit constant, so that code coverage need not reach them.

ABC looks for an inductive proof (`scorr`) that a bit keeps one value in every cycle after the first of a reset. Inputs
are free in every cycle, but for those that coverage leaves out with a reason: they are 0. Memories and multipliers give
any value, so a bit that is constant here is constant in the unit.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyosys

from openvrex.hdl.emit import Emitted
from openvrex.tb.library.yosys import run_yosys

SECONDS = 300
Bit = tuple[str, str]  # module and bit, such as ("hcu", "len[3]")
_BIT = re.compile(r"(\w+)(?:\[(\d+)\])?")
_GRAPH = (
    "memory_collect",
    "memory_nordff",
    "opt_clean",
    "cutpoint t:$mem_v2 t:$mul",
    "opt -fast",
    "setundef -undriven -anyseq",
    "techmap",
    "opt -fast",
    "async2sync",
    "dffunmap",
    "aigmap",
    "opt_clean",
    "write_aiger -zinit {folder}/a.aig",
)


def constant(unit: Emitted, bits: Iterable[Bit], zero: Iterable[str] = ()) -> set[Bit]:
    """Those of `bits` that are proved constant in every instance of their module.

    zero : bits of input ports that are 0
    """
    wanted = [bit for bit in dict.fromkeys(bits) if _BIT.fullmatch(bit[1])]
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "unit.v").write_text(unit.verilog)
        passes = [f"read_verilog {folder}/unit.v", f"hierarchy -top {unit.top}", "proc -norom", "flatten"]
        run_yosys([*passes, f"write_rtlil {folder}/flat.il"])
        places = _places(unit)
        watched = [(bit, path, bit[1]) for bit in wanted for path in places.get(bit[0], ())]
        text = (folder / "flat.il").read_text()
        (folder / "flat.il").write_text(_shown(text, [path + name for _, path, name in watched]))
        (folder / "side.v").write_text(_side(unit, len(watched), set(zero)))
        passes = [f"read_rtlil {folder}/flat.il", f"read_verilog {folder}/side.v", "hierarchy -top side", "proc"]
        run_yosys([*passes, "flatten", *(c.format(folder=folder) for c in _GRAPH)])
        abc = Path(pyosys.__file__).parent / "yosys-abc"
        script = "read_aiger a.aig; scorr; write_aiger b.aig"
        subprocess.run([abc, "-c", script], cwd=folder, capture_output=True, check=True, timeout=SECONDS)
        zeros = _zeros(folder / "b.aig")
    assert len(zeros) == 2 * len(watched)
    moving = {bit for (bit, *_), *both in zip(watched, zeros[::2], zeros[1::2], strict=True) if not any(both)}
    return {bit for bit, *_ in watched} - moving


def _places(unit: Emitted) -> dict[str, list[str]]:
    """The paths of instances of each module, such as "placer."."""
    instances: dict[str, list[tuple[str, str]]] = {}
    module = ""
    for line in unit.verilog.split("\n"):
        if found := re.match(r"module (\w+)", line):
            module = found[1]
        elif found := re.match(r"  (\w+) +(?:#\(.*\) +)?(\w+) +\($", line):
            instances.setdefault(module, []).append((found[1], found[2]))
    out: dict[str, list[str]] = {}

    def walk(module: str, path: str) -> None:
        out.setdefault(module, []).append(path)
        for inner, name in instances.get(module, ()):
            walk(inner, f"{path}{name}.")

    walk(unit.top, "")
    return out


def _shown(text: str, names: list[str]) -> str:
    """RTLIL of a flat unit with one more output, `seen`: the bits with these names."""
    port = 1 + max(int(n) for n in re.findall(r"(?:input|output) (\d+) ", text))
    bits = []
    for name in reversed(names):
        signal, _, bit = name.partition("[")
        found = re.search(rf"^  wire (?:width (\d+) )?(?:offset (\d+) )?.*\\{re.escape(signal)}$", text, re.M)
        assert found, f"{signal}: not in the netlist"
        bits.append(f"\\{signal} [{int(bit.rstrip(']')) - int(found[2] or 0)}]" if bit else f"\\{signal}")
    end = text.rindex("end\n")
    seen = f"  wire width {len(names)} output {port} \\seen__\n  connect \\seen__ {{ {' '.join(bits)} }}\n"
    return text[:end] + seen + text[end:]


def _side(unit: Emitted, count: int, zero: set[str]) -> str:
    """A module around the unit, whose reset is high at first. Two outputs for each bit seen: it is 1, it is 0."""
    ins = [p for p in unit.manifest["ports"] if p["dir"] == "in" and p["name"] != "clk"]
    head = ", ".join(["input clk", *(f"input [{p['width'] - 1}:0] {p['name']}" for p in ins)])
    pins = [".clk(clk)"]
    for p in ins:
        bits = [f"{p['name']}[{k}]" for k in reversed(range(p["width"]))]
        value = ", ".join("1'b0" if _plain(b, p["width"]) in zero else b for b in bits)
        pins.append(f".{p['name']}({{{value}}}{' | first__' if p['name'] == 'rst' else ''})")
    both = ", ".join(f"seen__[{k}] & ~first__, ~seen__[{k}] & ~first__" for k in reversed(range(count)))
    return (
        f"module side({head}, output [{2 * count - 1}:0] moved__);\n  reg first__ = 1;\n"
        f"  always @(posedge clk) first__ <= 0;\n  wire [{count - 1}:0] seen__;\n"
        f"  {unit.top} unit({', '.join(pins)}, .seen__(seen__));\n  assign moved__ = {{{both}}};\nendmodule\n"
    )


def _plain(bit: str, width: int) -> str:
    """The name of a port's bit as coverage has it."""
    return bit.partition("[")[0] if width == 1 else bit


def _zeros(path: Path) -> list[bool]:
    """Whether each output of a binary AIGER file is constantly 0."""
    head, _, rest = path.read_bytes().partition(b"\n")
    _, inputs, latches, outputs, *_ = map(int, head.split()[1:6])
    lines = rest.split(b"\n", latches + outputs)[: latches + outputs]
    return [line == b"0" for line in lines[latches:]]
