"""Names and comments of the written Verilog: both come from the Python source."""

import ast
import re
import tokenize
from functools import cache
from pathlib import Path

# IEEE 1800-2017 annex B, which includes the words of Verilog-2005.
_KEYWORDS = """
    accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin
    bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking cmos
    config const constraint context continue cover covergroup coverpoint cross deassign default defparam design
    disable dist do edge else end endcase endchecker endclass endclocking endconfig endfunction endgenerate
    endgroup endinterface endmodule endpackage endprimitive endprogram endproperty endspecify endsequence
    endtable endtask enum event eventually expect export extends extern final first_match for force foreach
    forever fork forkjoin function generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins
    implements implies import incdir include initial inout input inside instance int integer interconnect
    interface intersect join join_any join_none large let liblist library local localparam logic longint
    macromodule matches medium modport module nand negedge nettype new nexttime nmos nor noshowcancelled not
    notif0 notif1 null or output package packed parameter pmos posedge primitive priority program property
    protected pull0 pull1 pulldown pullup pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase
    randsequence rcmos real realtime ref reg reject_on release repeat restrict return rnmos rpmos rtran rtranif0
    rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared sequence shortint shortreal
    showcancelled signed small soft solve specify specparam static string strong strong0 strong1 struct super
    supply0 supply1 sync_accept_on sync_reject_on table tagged task this throughout time timeprecision timeunit
    tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union unique unique0 unsigned until
    until_with untyped use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while wildcard
    wire with within wor xnor xor
"""
KEYWORDS = frozenset(_KEYWORDS.split())


def legal(name: str) -> str:
    """`name` as an identifier of Verilog: letters, digits and single underscores, and no reserved word."""
    name = re.sub(r"_+", "_", re.sub(r"\W|^(?=\d)", "_", name, flags=re.A)).strip("_") or "value"
    return f"{name}_" if name in KEYWORDS else name


class Names:
    """The names taken in one module."""

    def __init__(self):
        self._taken: set[str] = set()

    def free(self, name: str) -> bool:
        """Whether `new` would give this name."""
        return legal(name) not in self._taken

    def new(self, name: str) -> str:
        """`name` if it is free, or with the lowest number from 2 that makes it so."""
        name = out = legal(name)
        number = 2
        while out in self._taken:
            out, number = f"{name}_{number}", number + 1
        self._taken.add(out)
        return out


@cache
def _comments(path: str) -> tuple[dict[int, str], dict[int, str]]:
    """Comments of a Python file by line: those behind code, and those that are lines of their own."""
    behind, alone = {}, {}
    try:
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT:
                    own = not token.line[: token.start[1]].strip()
                    (alone if own else behind)[token.start[0]] = token.string.lstrip("# ").rstrip()
    except (OSError, SyntaxError, tokenize.TokenError):
        pass
    return behind, alone


def comment(src_loc: tuple[str, int] | None) -> str:
    """The comment of a declaration: behind its line, or in the lines just above it. "" if there is none."""
    if not src_loc:
        return ""
    behind, alone = _comments(src_loc[0])
    if src_loc[1] in behind:
        text = behind[src_loc[1]]
    else:
        lines, at = [], src_loc[1] - 1
        while at in alone:
            lines.append(alone[at])
            at -= 1
        text = " ".join(reversed(lines))
    return "" if re.match(r"(noqa|type:|amaranth:)", text) else text


@cache
def _assigned(path: str) -> dict[int, str]:
    """Python variables by the lines of the statements that give them their values."""
    out: dict[int, str] = {}
    try:
        tree = ast.parse(Path(path).read_text())
    except (OSError, SyntaxError):
        return out
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            if name:
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    out[line] = name
    return out


def variable(src_loc: tuple[str, int] | None) -> str:
    """The Python variable that the statement at a place assigns to; "" if it does not."""
    return _assigned(src_loc[0]).get(src_loc[1], "") if src_loc else ""


def summary(component: object) -> str:
    """The first sentence of a class's own docstring, on one line."""
    doc = type(component).__dict__.get("__doc__") if type(component).__name__ != "Module" else ""
    return " ".join((doc or "").split("\n\n")[0].split())
