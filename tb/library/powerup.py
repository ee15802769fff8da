"""Simulates a unit from power-up in four states, and finds outputs that are still unknown after its reset.

Registers and memories start unknown, and so do inputs that no `valid` marks as defined. The other inputs are 0, and the
bench takes every stream that the unit offers. After a reset of one cycle every output must be known. `valid` and
`ready` must always be; the rest of a stream, an AXI channel or a struct with a field `valid` only while that is high.
Yosys's simulator does it, and Icarus where it is installed.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.tb.library.yosys import run_yosys

IDLE = 40  # cycles after the reset that are checked: some units initialise themselves in them
_CHANNEL = re.compile(r"(\w+_axi_(?:aw|ar|w|b|r)|\w+_axis_\w_t)\w+")
_CLOCKED = """
module clocked;
  reg clk = 0, rst = 1;
  wire [{top}:0] shown;
  integer k;
  power_up unit(clk, rst, shown);
  always #1 clk = ~clk;
  initial begin
    repeat (2) @(negedge clk);
    rst = 0;
    repeat ({cycles}) begin
      #1 for (k = 0; k <= {top}; k = k + 1) if (shown[k] === 1'bx) $display("unknown %0d", k);
      @(negedge clk);
    end
    $finish;
  end
endmodule
"""


def _valid(port: dict, names: set[str]) -> str:
    """The port that says whether another is defined; "" for a port that always is."""
    if "role" in port:
        return f"{port['stream']}_valid" if port["role"] == "payload" else ""
    channel = _CHANNEL.fullmatch(port["name"])
    valid = f"{channel[1]}valid" if channel else ""
    return valid if valid in names and not port["name"].endswith(("valid", "ready")) else ""


def _shown(e: Emitted) -> Iterator[tuple[str, str]]:
    """The checked bits: their output, and Verilog that is unknown if one of its defined bits is."""
    names = {p["name"] for p in e.manifest["ports"]}
    for port in e.manifest["ports"]:
        if port["dir"] == "out":
            name = port["name"]
            flag = [f"{name}[{f['offset']}]" for f in port.get("fields", ()) if f["name"] == "valid"]
            valid = [v] if (v := _valid(port, names)) else flag
            yield from ((name, text) for text in flag)
            yield name, " & ".join([*valid, f"^{name}"])


def bench(e: Emitted, top: str, clock: str) -> str:
    """Verilog of a module `power_up` around the unit's module `top`, with these clock and reset connections."""
    pins, body, names = [clock], [], {p["name"] for p in e.manifest["ports"]}
    for port in e.manifest["ports"]:
        name, width = port["name"], port["width"]
        if port["dir"] == "out":
            body.append(f"  wire [{width - 1}:0] {name};")
            pins.append(f".{name}({name})")
        elif name not in ("clk", "rst"):
            value = f"{width}'bx" if _valid(port, names) else f"{width}'d{int(name.endswith('ready'))}"
            pins.append(f".{name}({value})")
    shown = [text for _, text in _shown(e)]
    body += [f"  assign shown[{k}] = {text};" for k, text in enumerate(shown)]
    head = f"module power_up(input clk, input rst, output [{len(shown) - 1}:0] shown);\n"
    return head + "\n".join(body) + f"\n  {top} unit({', '.join(pins)});\nendmodule\n"


def unknown(e: Emitted, folder: Path, around: str = "", top: str = "", clock: str = ".clk(clk), .rst(rst)") -> set[str]:
    """Outputs that are unknown in a cycle after the reset. `around` is Verilog of a module `top` that has the unit."""
    source = folder / "power_up.v"
    source.write_text(e.verilog + around + bench(e, top or e.top, clock))
    cycles = e.manifest["reset_cycles"] + IDLE
    names = [name for name, _ in _shown(e)]
    return {names[k] for k in _by_yosys(source, cycles) | _by_icarus(source, cycles, len(names))}


def _by_yosys(source: Path, cycles: int) -> set[int]:
    """Unknown bits of `shown` by Yosys's simulator: a bit is unknown if an unknown bit may decide it, also in registers
    made of gates.
    """
    vcd = source.with_suffix(".vcd")
    run_yosys(
        [
            f"read_verilog {source}",
            "hierarchy -top power_up",
            "proc -norom",
            "flatten",
            "memory -nordff -nomap",
            "opt_clean",
            f"sim -clock clk -reset rst -rstlen 1 -n {cycles} -vcd {vcd} power_up",
        ]
    )
    head, _, changes = vcd.read_text().partition("$enddefinitions $end")
    codes = {name: code for code, name in re.findall(r"\$var wire \d+ (\S+) (rst|shown) ", head)}
    now: dict[str, str] = {}
    seen: set[int] = set()
    for moment in changes.split("#"):
        now |= {code: bits for bits, code in re.findall(r"b(\S+) (\S+)", moment)}
        if now.get(codes["rst"]) == "0":
            seen |= {k for k, bit in enumerate(reversed(now[codes["shown"]])) if bit == "x"}
    return seen


def _by_icarus(source: Path, cycles: int, bits: int) -> set[int]:
    """Unknown bits by Icarus Verilog, which also checks memory addresses; none where it is not installed."""
    if not shutil.which("iverilog"):
        return set()
    (bench := source.with_name("clocked.v")).write_text(_CLOCKED.format(top=bits - 1, cycles=cycles))
    binary = source.with_suffix(".vvp")
    compiled = ["iverilog", "-g2005", "-DOPENVREX_CHECK", "-s", "clocked", "-o", binary, source, bench]
    subprocess.run(compiled, check=True, capture_output=True)
    # A loop of blocks would run for ever.
    said = subprocess.run(["vvp", "-n", binary], check=True, capture_output=True, text=True, timeout=900).stdout
    assert " word " not in said, said
    return {int(k) for k in re.findall(r"^unknown (\d+)$", said, re.M)}
