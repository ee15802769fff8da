"""Errors injected into memories: bits of a code word that a read gives are turned over, in the Verilog of a unit.

A memory is any module of `hdl.memory`; queues are none. What was turned and what the unit's port `error` says is
written to a log, cycle by cycle.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from hdl.emit import Emitted
from tb.runner import Mutant, simulator

LOG = "upsets.log"
EVERYWHERE = 1  # number of the simulation in which a share of all reads has one bit turned over
SHARE = 4  # of so many reads, one
_FIRST = 2  # number of the first memory's, in which two bits of one of its reads are
_PLACES = 1000  # number = kind + _PLACES * read
_CELLS = re.compile(r"^  reg \[(\d+):0\] mem \[\d+:0\];$", re.M)
_READ = re.compile(r"^( +)(\S+) <= mem\[([^\]]+(?:\[[^\]]*\])?)\];$", re.M)
_LANE = re.compile(r"mem\[.*\]\[(\d+):(\d+)\] <= ")
_HEAD = re.compile(r"^module [^;]*;\n", re.M)


@dataclass(frozen=True)
class Log:
    """upset : cycles in which reads were turned over, and how many · corrected, detected : those of `error`"""

    upset: dict[int, int]
    corrected: list[int]
    detected: list[int]


def with_upsets(e: Emitted) -> tuple[Emitted, list[str]]:
    """A unit whose memories can be upset, and the names of these memories' modules."""
    parts, names = re.split(r"(?=^module )", e.verilog, flags=re.M), []
    for k, text in enumerate(parts):
        cells = _CELLS.search(text)
        if cells:
            name, bits = re.match(r"module \\?(\S+?) ?\(", text)[1], int(cells[1]) + 1
            lane = [int(a) - int(b) + 1 for a, b in _LANE.findall(text)]
            parts[k] = _upset(text, len(names) + _FIRST, bits, lane[0] if lane else bits)
            names.append(name)
        tells = any(port["name"] == "error" for port in e.manifest["ports"])
        if tells and text.startswith(f"module {e.top}("):
            monitor = '  integer out;\n  initial out = $fopen("upsets.log", "a");\n'
            monitor += "  always @(posedge clk) if (error != 0 && !rst) begin\n"
            monitor += '    $fdisplay(out, "%0d error %b", $time, error);\n    $fflush(out);\n  end\n'
            parts[k] = _HEAD.sub(lambda head, monitor=monitor: head[0] + monitor, parts[k], count=1)
    return replace(e, verilog="".join(parts)), names


def _upset(text: str, kind: int, bits: int, lane: int) -> str:
    body = f"""
  integer number, reads, out;
  initial begin
    if (!$value$plusargs("mutant=%d", number)) number = 0;
    reads = 0;
    out = $fopen("{LOG}", "a");
  end
  function automatic [{bits - 1}:0] upset(input integer unused);
    integer first, a, b;
    begin
      upset = 0;
      first = ($urandom % {bits // lane}) * {lane};
      a = $urandom % {lane};
      b = (a + 1 + $urandom % {lane - 1}) % {lane};
      if (number == {EVERYWHERE} && $urandom % {SHARE} == 0) upset[first + a] = 1;
      if (number % {_PLACES} == {kind} && reads == number / {_PLACES}) begin
        upset[first + a] = 1;
        upset[first + b] = 1;
      end
      reads = reads + 1;
      if (upset != 0) begin
        $fdisplay(out, "%0d upset", $time);
        $fflush(out);
      end
    end
  endfunction
"""
    text, n = _READ.subn(lambda read: f"{read[1]}{read[2]} <= mem[{read[3]}] ^ upset(0);", text)
    assert n == 1, f"a memory with {n} reads"
    return _HEAD.sub(lambda head: head[0] + body, text, count=1)


def singles(e: Emitted) -> Mutant:
    """The unit in which a share of all reads has a bit turned over."""
    return Mutant(e.verilog, e.top, e.manifest, EVERYWHERE)


def double(e: Emitted, memory: int, read: int) -> Mutant:
    """The unit in which two bits of one code word of a memory's read are turned over."""
    return Mutant(e.verilog, e.top, e.manifest, _FIRST + memory + _PLACES * read)


def logs(e: Emitted) -> list[Path]:
    """The logs that runs of a unit have left."""
    return sorted((simulator(e).parent.parent / "runs").glob(f"*/{LOG}"))


def read_log(path: Path) -> Log:
    """What a log says; the resolution is the clock's two time units."""
    upset: dict[int, int] = {}
    corrected, detected = [], []
    for line in path.read_text().splitlines():
        time, what, *bits = line.split()
        cycle = int(time) // 2000
        if what == "upset":
            upset[cycle] = upset.get(cycle, 0) + 1
        else:
            corrected += [cycle] if bits[0][1] == "1" else []
            detected += [cycle] if bits[0][0] == "1" else []
    return Log(upset, corrected, detected)
