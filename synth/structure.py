"""A digest of a design's structure: of its Verilog without names, comments and spaces."""

import hashlib
import re

KEYWORDS = frozenset(
    {"always", "assign", "begin", "case", "casez", "default", "else", "end", "endcase", "endmodule", "for", "if"}
    | {"inout", "input", "integer", "localparam", "module", "negedge", "output", "parameter", "posedge", "reg"}
    | {"signed", "wire"}
)
_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\d*'s?[bdho][\dxz_a-fA-F]+|\d[\d_]*|\\\S+|`?\$?[A-Za-z_][\w$]*|[^\s\w]", re.S)


_SIMULATED = re.compile(r"`ifdef\s+VERILATOR\b.*?`endif\b", re.S)


def tokens(verilog: str) -> list[str]:
    """Words, numbers and signs of Verilog, without comments and without what only Verilator sees."""
    own = _SIMULATED.sub("", verilog)
    return [token.lstrip("\\") for token in _TOKEN.findall(own) if token[:2] not in ("//", "/*")]


def structure(verilog: str) -> str:
    """SHA-256 of Verilog in which each name is the number of its first place in its module.

    So it tells whether figures of a design still hold. A name, a comment or a line break changes nothing; an operator,
    a width, a constant or the order of two statements does. A port that an instance connects by name has its number
    in its own module.
    """
    modules: dict[str, dict[str, str]] = {}
    texts: list[list[str]] = [[]]
    for token in tokens(verilog):
        texts[-1].append(token)
        if token == "endmodule":
            texts.append([])
    for text in texts:
        own: dict[str, str] = {}
        for token in text:
            if _is_name(token):
                own.setdefault(token, f"n{len(own)}")
        if "module" in text:
            modules[text[text.index("module") + 1]] = own
    out = []
    for text in texts:
        own = modules[text[text.index("module") + 1]] if "module" in text else {}
        of, places = "", {name: f"m{k}" for k, name in enumerate(modules)}
        for before, token in zip(["", *text], text, strict=False):
            of = token if token in modules else of
            out.append(places.get(token) or (modules.get(of, own) if before == "." else own).get(token, token))
    return hashlib.sha256(" ".join(out).encode()).hexdigest()


def _is_name(token: str) -> bool:
    return (token[0].isalpha() or token[0] == "_") and token not in KEYWORDS
