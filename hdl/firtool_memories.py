"""Memories with the port names of CIRCT's firtool, one module a shape, for which open flows make or find macros."""

import re
from collections.abc import Iterable
from enum import StrEnum

from openvrex.hdl.memory import bodies


class MemoryPorts(StrEnum):
    """Modules of a unit's memories: `own`, one a kind with parameters, or these with a module a shape inside each."""

    OWN = "own"
    FIRTOOL = "firtool"


_ABOUT = """// Memories with the port names of CIRCT's firtool, one module a shape. A macro in place of one must meet
// the contract of the module above that holds it: a word that was read stays while the port's enable is low.
"""


def in_shape(memory: dict) -> dict:
    """A memory of the manifest as an instance of the module of its shape."""
    if not memory["module"]:
        return memory
    return memory | {"name": f"{memory['name']}.macro.ram", "module": _name(*_size(memory))}


def holders(top: str, memories: Iterable[dict]) -> str:
    """Verilog of `<top>_<kind>` for the kinds in use, each with a module of `shapes` inside, by its parameters.

    memories : as the manifest lists them
    """
    found, out = _sizes(memories), []
    for module in dict.fromkeys(module for module, *_ in found):
        text = bodies(top, [module.removeprefix(f"{top}_")])
        head = re.sub(r"^//   \(.*\n", "", text.partition("\n);\n")[0], flags=re.M).replace(
            "output reg ", "output wire"
        )
        choices = [_choice(module, *sizes) for name, *sizes in found if name == module]
        out.append(
            f"{head}\n);\n  generate\n    case (1'b1)\n{''.join(choices)}    endcase\n  endgenerate\nendmodule\n"
        )
    return "\n".join(out)


def shapes(memories: Iterable[dict], empty: bool = False) -> str:
    """Verilog of a module for each size of memory, or with `empty` of a black box, whose reads give X.

    memories : as the manifest lists them
    """
    found = _sizes(memories)
    return _ABOUT + "\n".join(_module(*one, empty) for one in found) if found else ""


def _sizes(memories: Iterable[dict]) -> list[tuple[str, int, int, int]]:
    """Module of the kind, words, bits and lanes, of each shape once; FIFOs of flip-flops have no module."""
    return sorted({_size(m) for m in memories if m["module"]})


def _size(memory: dict) -> tuple[str, int, int, int]:
    return memory["module"], memory["words"], memory["bits"], memory["lanes"]


def _name(module: str, words: int, bits: int, lanes: int) -> str:
    """The name of the module of a shape."""
    return f"{module}_{words}x{bits}" + (f"_mask{lanes}" if lanes > 1 else "")


def _choice(module: str, words: int, bits: int, lanes: int) -> str:
    """The branch of a holder for one size."""
    if module.endswith("1rw"):
        pins = {"addr": "addr", "en": "en", "clk": "clk", "wmode": "|write", "wdata": "w_data", "rdata": "r_data"}
        pins = {f"RW0_{name}": wire for name, wire in pins.items()} | ({"RW0_wmask": "write"} if lanes > 1 else {})
    else:
        pins = {"R0_addr": "r_addr", "R0_en": "r_en", "R0_clk": "clk", "R0_data": "r_data"}
        pins |= {"W0_addr": "w_addr", "W0_en": "|w_en", "W0_clk": "clk", "W0_data": "w_data"}
        pins |= {"W0_mask": "w_en"} if lanes > 1 else {}
    wired = "".join(f"          .{pin}({wire}),\n" for pin, wire in pins.items()).removesuffix(",\n")
    branch = f"WIDTH == {bits} && DEPTH == {words} && LANES == {lanes}: begin : macro"
    return f"      {branch}\n        {_name(module, words, bits, lanes)} ram (\n{wired}\n        );\n      end\n"


def _module(module: str, words: int, bits: int, lanes: int, empty: bool) -> str:
    """The module of one size."""
    address, single = (words - 1).bit_length(), module.endswith("1rw")
    write, read = ("RW0", "RW0") if single else ("W0", "R0")
    data, out, mask = ("RW0_wdata", "RW0_rdata", "RW0_wmask") if single else ("W0_data", "R0_data", "W0_mask")
    if single:
        ports = {"RW0_addr": address, "RW0_en": 1, "RW0_clk": 1, "RW0_wmode": 1, data: bits, out: bits}
    else:
        ports = {"R0_addr": address, "R0_en": 1, "R0_clk": 1, out: bits}
        ports |= {"W0_addr": address, "W0_en": 1, "W0_clk": 1, data: bits}
    ports |= {mask: lanes} if lanes > 1 else {}
    head = ",\n".join(
        f"  {('output wire' if empty else 'output reg ') if name == out else 'input  wire'} [{width - 1}:0] {name}"
        for name, width in ports.items()
    ).replace(" [0:0]", "")
    if empty:
        unused = ", ".join(name for name in ports if name != out)
        body = f"  assign {out} = {{{bits}{{1'bx}}}};\n  wire unused = &{{{unused}}};\n"
    else:
        lane, enable = bits // lanes, f"{write}_en" + (" && RW0_wmode" if single else "")
        if lanes > 1:
            part = f"k*{lane} +: {lane}"
            store = f"for (k = 0; k < {lanes}; k = k + 1)\n        "
            store += f"if ({mask}[k]) mem[{write}_addr][{part}] <= {data}[{part}];"
        else:
            store = f"mem[{write}_addr] <= {data};"
        body = f"  reg [{bits - 1}:0] mem [0:{words - 1}];\n" + ("  integer k;\n" if lanes > 1 else "")
        body += f"  always @(posedge {write}_clk)\n    if ({enable})\n      {store}\n"
        body += f"  always @(posedge {read}_clk)\n    if ({read}_en{' && !RW0_wmode' if single else ''})"
        body += f" {out} <= mem[{read}_addr];\n"
    mark = "(* blackbox *)\n" if empty else ""
    return f"{mark}module {_name(module, words, bits, lanes)} (\n{head}\n);\n{body}endmodule\n"
