"""Proves bits of a unit constant and changes of state impossible, so that code coverage need not reach them.

ABC looks for an inductive proof (`scorr`) that a bit keeps one value in every cycle after the first of a reset, or that
a register never has the two states one after the other. Inputs are free in every cycle, but for those that
`coverage.toml` names as 0. Memories and multipliers give any value, so what is proved holds in the unit.
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
    "setundef -anyseq",  # unknown bits may be anything
    "aigmap",
    "opt_clean",
    "write_aiger -zinit {folder}/a.aig",
)


def constant(unit: Emitted, bits: Iterable[Bit], zero: Iterable[str] = (), join: str = "") -> set[Bit]:
    """Those of `bits` that are proved constant in every instance of their module.

    zero : bits of input ports that are 0
    join : the only module with such bits, where it joins units: these give any value, too
    """
    places = _places(unit)
    wanted = [bit for bit in dict.fromkeys(bits) if _BIT.fullmatch(bit[1])]
    watched = [(bit, f"{path}{bit[1]}") for bit in wanted for path in places.get(bit[0], ())]
    claims = [text for k in range(len(watched)) for text in (f"seen__[{k}]", f"~seen__[{k}]")]
    proved = _impossible(unit, [name for _, name in watched], claims, set(zero), join)
    moving = {bit for (bit, _), *both in zip(watched, proved[::2], proved[1::2], strict=True) if not any(both)}
    return {bit for bit, _ in watched} - moving


def impossible_changes(unit: Emitted, register: dict, changes: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those `changes` of a register of states, as a manifest has it, that are proved never to happen but by a reset."""
    pairs, name, width = list(changes), register["name"], register["width"]
    names = [f"{name}[{k}]" for k in range(width)] if width > 1 else [name]
    claims = [f"~was_reset__ & was__ == {a} & seen__ == {b}" for a, b in pairs]
    return {pair for pair, holds in zip(pairs, _impossible(unit, names, claims), strict=True) if holds}


def _impossible(
    unit: Emitted, names: list[str], claims: list[str], zero: set[str] = frozenset(), join: str = ""
) -> list[bool]:
    """Whether each of `claims`, Verilog about `seen__`, the bits with these names, is proved to be 0 always."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "unit.v").write_text(unit.verilog)
        passes = [f"read_verilog {folder}/unit.v", f"hierarchy -top {unit.top}", "proc -norom"]
        passes += [f"cutpoint t:{name}" for name in _apart(unit, join)] if join else []
        run_yosys([*passes, "flatten", f"write_rtlil {folder}/flat.il"])
        (folder / "flat.il").write_text(_shown((folder / "flat.il").read_text(), names))
        (folder / "side.v").write_text(_side(unit, len(names), claims, zero))
        passes = [f"read_rtlil {folder}/flat.il", f"read_verilog {folder}/side.v", "hierarchy -top side", "proc"]
        run_yosys([*passes, "flatten", *(c.format(folder=folder) for c in _GRAPH)])
        abc = Path(pyosys.__file__).parent / "yosys-abc"
        script = "read_aiger a.aig; scorr; write_aiger b.aig"
        subprocess.run([abc, "-c", script], cwd=folder, capture_output=True, check=True, timeout=SECONDS)
        zeros = _zeros(folder / "b.aig")
    assert len(zeros) == len(claims)
    return zeros


def _places(unit: Emitted) -> dict[str, list[str]]:
    """The paths of instances of each module, such as "placer."."""
    instances, out = _instances(unit), dict[str, list[str]]()

    def walk(module: str, path: str) -> None:
        out.setdefault(module, []).append(path)
        for inner, name in instances.get(module, ()):
            walk(inner, f"{path}{name}.")

    walk(unit.top, "")
    return out


def _instances(unit: Emitted) -> dict[str, list[tuple[str, str]]]:
    """The instances in each module: module and name of each."""
    out: dict[str, list[tuple[str, str]]] = {}
    module = ""
    for line in unit.verilog.split("\n"):
        if found := re.match(r"module (\w+)", line):
            module = found[1]
        elif found := re.match(r"  (\w+) +(?:#\(.*\) +)?(\w+) +\($", line):
            out.setdefault(module, []).append((found[1], found[2]))
    return out


def _apart(unit: Emitted, join: str) -> set[str]:
    """The modules in `join` and in those around it, except these themselves."""
    instances = _instances(unit)
    around = {join}
    while more := {name for name, inside in instances.items() if around & {n for n, _ in inside}} - around:
        around |= more
    return {name for module in around for name, _ in instances.get(module, ())} - around


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


def _side(unit: Emitted, count: int, claims: list[str], zero: set[str]) -> str:
    """A module around the unit, whose reset is high at first. It has an output for each claim, 0 in the first cycle."""
    ins = [p for p in unit.manifest["ports"] if p["dir"] == "in" and p["name"] != "clk"]
    head = ", ".join(["input clk", *(f"input [{p['width'] - 1}:0] {p['name']}" for p in ins)])
    pins = [".clk(clk)"]
    for p in ins:
        bits = [f"{p['name']}[{k}]" for k in reversed(range(p["width"]))]
        value = ", ".join("1'b0" if _plain(b, p["width"]) in zero else b for b in bits)
        pins.append(f".{p['name']}({{{value}}}{' | first__' if p['name'] == 'rst' else ''})")
    wide = f"[{count - 1}:0]"
    broken = ", ".join(f"~first__ & ({claim})" for claim in reversed(claims))
    return (
        f"module side({head}, output [{len(claims) - 1}:0] broken__);\n  reg first__ = 1, was_reset__ = 1;\n"
        f"  wire {wide} seen__;\n  reg {wide} was__;\n  always @(posedge clk) begin\n    first__ <= 0;\n"
        f"    was_reset__ <= rst | first__;\n    was__ <= seen__;\n  end\n"
        f"  {unit.top} unit({', '.join(pins)}, .seen__(seen__));\n  assign broken__ = {{{broken}}};\nendmodule\n"
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
