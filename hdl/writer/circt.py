"""CIRCT's printer of Verilog, from the package `pycde`."""

import re
import subprocess
import sys
from enum import StrEnum

from openvrex.hdl.writer.mlir import Number, Op, Result, text
from openvrex.hdl.writer.variables import WriterError

WIDTH = 110  # characters of a line
_OPTIONS = (
    "disallowPackedArrays",
    "disallowLocalVariables",
    f"emittedLineLength={WIDTH}",
    "omitVersionComment",
    "maximumNumberOfTermsPerExpression=100000",
)


class Language(StrEnum):
    """A dialect of the text. SystemVerilog has `logic`, `always_ff` and `always_comb`."""

    VERILOG2005 = "verilog2005"
    SYSTEMVERILOG = "systemverilog"

    @property
    def variable(self) -> str:
        """CIRCT's operation that declares what a block assigns."""
        return "sv.logic" if self == Language.SYSTEMVERILOG else "sv.reg"

    @property
    def suffix(self) -> str:
        """The end of a file's name."""
        return ".sv" if self == Language.SYSTEMVERILOG else ".v"

    def clocked(self, clk: Result, body: list[Op]) -> Op:
        """A block of registers."""
        if self == Language.SYSTEMVERILOG:
            return Op("sv.alwaysff", (clk,), {"clockEdge": Number(0), "resetStyle": Number(0)}, regions=(body, None))
        return Op("sv.always", (clk,), {"events": (Number(0),)}, regions=(body,))

    def combinational(self, body: list[Op]) -> Op:
        """A block without registers."""
        if self == Language.SYSTEMVERILOG:
            return Op("sv.alwayscomb", regions=(body,))
        return Op("sv.always", attributes={"events": ()}, regions=(body,))


def said(comment: str) -> Op:
    """A comment as a line of its own."""
    return Op("sv.verbatim", (), {"format_string": plain(comment), "symbols": ()})


def assign(how: str, to: Result, value: Result, source: tuple[str, int] | None = None) -> Op:
    """An assignment: `assign` (continuous), `bpassign` (blocking) or `passign`."""
    return Op(f"sv.{how}", (to, value), source=source)


def choice(test: Result, then: list[Op], other: list[Op] | None = None) -> Op:
    """An `if`, with an `else` unless `other` is `None`."""
    return Op("sv.if", (test,), regions=(then, other))


def plain(words: str) -> str:
    """Text of a comment: ASCII, without what the printer would replace."""
    return words.encode("ascii", "replace").decode().replace("{{", "{ {").rstrip("\\ ")


# In a process of its own: CIRCT ends its process on an error within, and its depth needs the stack of a main thread.
_CODE = """
import io, sys
from pycde import circt
from pycde.circt import ir
with ir.Context() as context, ir.Location.unknown():
    circt.register_dialects(context)
    module = ir.Module.parse(sys.stdin.read())
    out = io.StringIO()
    circt.export_verilog(module, out)
sys.stdout.write(out.getvalue())
"""
# An attribute that is a line of its own, and a comment that is one, with the declaration below.
_ATTRIBUTED = re.compile(r"^( +\(\* \w+ \*\))\n +(?=reg|logic)", re.M)
# A wire that only gives its value to an output, which the printer never reads nor writes before the end.
BEHIND = "_o"  # end of its name
_MODULE = re.compile(r"^module .*?^endmodule", re.M | re.S)
_OUTPUT = re.compile(rf"^  assign (\w+) = \1{BEHIND};\n", re.M)
_PLACES = re.compile(r"\t// (.*)$", re.M)  # of a line's statements
_COMMENTED = re.compile(r"^ +(//.*)\n( +(?:\(\* \w+ \*\) )?(?:reg|logic|wire) .*;)\n", re.M)


def exported(modules: list[Op], language: Language, lines: bool) -> str:
    """Verilog of modules, with places in the source if `lines`.

    Raises `WriterError` with CIRCT's message.
    """
    options = _OPTIONS if language == Language.SYSTEMVERILOG else (*_OPTIONS, "noAlwaysComb")
    options = (*options, f"locationInfoStyle={'plain' if lines else 'none'}")
    mlir = text([Op("builtin.module", attributes={"circt.loweringOptions": ",".join(options)}, regions=(modules,))])
    run = subprocess.run([sys.executable, "-c", _CODE], input=mlir, capture_output=True, text=True, check=False)
    if run.returncode:
        raise WriterError(f"CIRCT could not write Verilog ({run.returncode}): {run.stderr[-500:]}")
    out = _PLACES.sub(_in_source, run.stdout) if lines else run.stdout
    out = _COMMENTED.sub(_joined, _ATTRIBUTED.sub(r"\1 ", out))
    return _MODULE.sub(_with_outputs, out)


def _in_source(found: re.Match) -> str:
    """The places of a line that are in Python, without those in the text that CIRCT read."""
    file, out = "", []
    for place in found[1].split(", "):
        file = place.partition(":")[0] or file
        if file.endswith(".py"):
            out.append(place)
    return f"  // {', '.join(out)}" if out else ""


def _with_outputs(found: re.Match) -> str:
    """A module whose outputs stand in place of the wires behind them."""
    out = found[0]
    wires = set(_OUTPUT.findall(out))
    if not wires:
        return out
    behind = "|".join(wires)
    out = _OUTPUT.sub("", out)
    out = re.sub(rf"^  wire [^;=]*\b(?:{behind}){BEHIND};.*\n", "", out, flags=re.M)
    out = re.sub(rf"^  wire [^;=]*\b({behind}){BEHIND} = ", r"  assign \1 = ", out, flags=re.M)
    return re.sub(rf"\b({behind}){BEHIND}\b", r"\1", out)


def _joined(found: re.Match) -> str:
    """A comment behind its declaration, where the line can hold both."""
    line = f"{found[2]}  {found[1]}"
    return f"{line}\n" if len(line) <= WIDTH else found[0]
