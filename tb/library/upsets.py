"""Injects errors into memories: flips bits of a code word as a unit's Verilog reads it, or of tables outside the unit.

It covers every module of `hdl.memory`; queues have no check bits. A log has the flipped reads and the unit's port
`error`, cycle by cycle.
"""

import random
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from openvrex.golden.arithmetic.secded import check_bits
from openvrex.golden.retrieval.dre_model import DreModel
from openvrex.golden.retrieval.table_image import items
from openvrex.golden.retrieval.table_layout import Item, TableLayout
from openvrex.hdl.emit import Emitted
from openvrex.hdl.memory import KINDS
from openvrex.tb.library.runner import Mutant, simulator

LOG = "upsets.log"
EVERYWHERE = 1  # simulation in which one bit is flipped in a share of all reads
SHARE = 4  # one read in this many
_FIRST = 2  # first simulation with two flipped bits in one read of a memory, one number a memory
_PLACES = 1000  # number = kind + _PLACES * read
_INSTANCE = re.compile(rf"^  (\\?\w+_(?:{'|'.join(KINDS)})) #\(((?:\n    .*)*)\n  \) (\\?)(\w+)", re.M)
_MONITOR = """  integer out;
  initial out = $fopen("upsets.log", "a");
  always @(posedge clk) if (error != 0 && !rst) begin
    $fdisplay(out, "%0d error %b", $time, error);
    $fflush(out);
  end
"""


@dataclass(frozen=True)
class Log:
    """What a log says.

    upset : cycle -> number of reads with flipped bits
    corrected, detected : cycles of the two bits of `error`
    """

    upset: dict[int, int]
    corrected: list[int]
    detected: list[int]


def with_upsets(e: Emitted) -> tuple[Emitted, list[str]]:
    """A unit whose memories can be upset, and their names: modules of check bits, also of memories without any."""
    parts, names = re.split(r"(?=^module )", e.verilog, flags=re.M), []
    tells = any(port["name"] == "error" for port in e.manifest["ports"])
    for k, text in enumerate(parts):
        module = re.match(r"(?:module \\?([\w$]+))?", text)[1] or ""

        def numbered(instance: re.Match, module: str = module) -> str:
            kind, sizes, escape, name = instance.groups()
            names.append(module if name == "ram" else f"{module}__{name}")
            return f"  {kind} #(\n    .KIND({len(names) - 1 + _FIRST}),{sizes}\n  ) {escape}{name}"

        parts[k] = _INSTANCE.sub(numbered, text)
        if module.removeprefix(f"{e.top}_") in KINDS:
            parts[k] = _upset(text)
        elif tells and module == e.top:
            head, end, body = parts[k].partition(";\n")
            parts[k] = f"{head}{end}{_MONITOR}{body}"
    return replace(e, verilog="".join(parts)), names


def _upset(text: str) -> str:
    """A memory with a parameter KIND, its number."""
    body = f"""
  integer number, reads, out;
  initial begin
    if (!$value$plusargs("mutant=%d", number)) number = 0;
    reads = 0;
    out = $fopen("{LOG}", "a");
  end
  function automatic [WIDTH-1:0] upset(input integer unused);
    integer first, a, b;
    begin
      upset = 0;
      first = ($urandom % LANES) * LANE;
      a = $urandom % LANE;
      b = (a + 1 + $urandom % (LANE - 1)) % LANE;
      if (number == {EVERYWHERE} && $urandom % {SHARE} == 0) upset[first + a] = 1;
      if (number % {_PLACES} == KIND && reads == number / {_PLACES}) begin
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
    text, n = re.subn(r"r_data <= (mem\[\w+\]);", r"r_data <= \1 ^ upset(0);", text)
    assert n == 1, f"a memory with {n} reads"
    text = text.replace("#(\n", "#(\n  parameter KIND = 0,\n", 1)
    return re.sub(r"  integer k;\n", lambda line: line[0] + body, text, count=1)


def singles(e: Emitted) -> Mutant:
    """The unit with one flipped bit in a share of all reads."""
    return Mutant(e.verilog, e.top, e.manifest, number=EVERYWHERE)


def double(e: Emitted, memory: int, read: int) -> Mutant:
    """The unit with two flipped bits in one code word, at one read of one memory."""
    return Mutant(e.verilog, e.top, e.manifest, number=_FIRST + memory + _PLACES * read)


def wrong_items(
    layout: TableLayout, model: DreModel, rng: random.Random, bits: int, kinds: Collection[Item] = tuple(Item)
) -> dict[int, bytes]:
    """So many wrong bits for each item of these kinds: a mask, by the item's address behind the base of the tables."""
    out = {}
    for item, ctx, index, _ in items(layout, model):
        if item in kinds:
            own = layout.bits(item)
            flips = rng.sample(range(own + check_bits(own, layout.protect)), bits)
            mask = sum(1 << flip for flip in flips)
            out[layout.address(item, ctx, index)] = mask.to_bytes(layout.bytes(item), "little")
    return out


def flipped(data: bytes, mask: bytes) -> bytes:
    """The data with the bits of the mask turned over."""
    return bytes(a ^ b for a, b in zip(data, mask, strict=True))


def logs(e: Emitted) -> list[Path]:
    """Logs that runs of a unit have written."""
    return sorted((simulator(e).parent.parent / "runs").glob(f"*/{LOG}"))


def read_log(path: Path) -> Log:
    """Parse a log. Its time resolution is the clock's two time units."""
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
