"""Writes the registers of an IP block as one HTML page, which a browser opens from disk: no script, nothing loaded."""

from collections.abc import Iterator
from html import escape

from systemrdl.node import AddrmapNode, FieldNode, MemNode, RegNode

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { border: 1px solid #8888; padding: .2rem .5rem; text-align: left; vertical-align: top; }
.bits { table-layout: fixed; } .bits td { text-align: center; overflow-wrap: anywhere; }
.unused { background: #8883; } code, .number { font-family: monospace; white-space: nowrap; }
"""
_BITS = 32  # of an access
_PULSE, _CLEARS = "write: a one acts once", "read; writing a one clears"


def page(top: AddrmapNode, title: str, origin: list[str]) -> str:
    """The page of an address map: a table of all registers and windows, then each register that has named fields.

    origin : lines that say where the file comes from
    """
    nodes = [n for n in top.descendants(unroll=True) if isinstance(n, (RegNode, MemNode))]
    nodes.sort(key=lambda n: n.absolute_address)
    rows = [[f"0x{n.absolute_address:05X}", _linked(n, top), _access(n), _text(n)] for n in nodes]
    body = [
        f"<h1>Registers of <code>{escape(title)}</code></h1>",
        "<p>Accesses are of 32 bits, at byte addresses from the start of the block. An address without a register, a "
        "write to what cannot be written and a read of what cannot be read answer SLVERR and change nothing.</p>",
        *_table(["Address", "Name", "Access", "Meaning"], rows),
        *(line for n in nodes if isinstance(n, RegNode) and _has_fields(n) for line in _register(n, top)),
        f"<footer><p>{'<br>'.join(map(escape, origin))}</p></footer>",
    ]
    head = f'<meta charset="utf-8"><title>Registers of {escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _register(node: RegNode, top: AddrmapNode) -> Iterator[str]:
    """A register's heading, its words as a picture of bits, and its fields."""
    name = node.get_rel_path(top)
    yield f'<h2 id="{name}"><span class="number">0x{node.absolute_address:02X}</span> {name}</h2>'
    yield f"<p>{_text(node)}</p>"
    fields = sorted(node.fields(), key=lambda f: -f.low)
    for first in range(node.size * 8 - _BITS, -1, -_BITS):
        yield from _picture([f for f in fields if first <= f.low < first + _BITS], first)
    rows = [[_range(f), f"<code>{f.inst_name}</code>", _access(f), _reset(f), _text(f)] for f in reversed(fields)]
    yield from _table(["Bits", "Field", "Access", "Reset", "Meaning"], rows)


def _picture(fields: list[FieldNode], first: int) -> Iterator[str]:
    """A row of a word's bits, from `first` on, the highest one left."""
    at, cells = first + _BITS, []
    for field in [*fields, None]:
        high = field.high + 1 if field else first
        if at > high:
            cells.append(f'<td class="unused" colspan="{at - high}"></td>')
        if field:
            cells.append(f'<td colspan="{field.width}">{field.inst_name}<br><small>{_range(field)}</small></td>')
            at = field.low
    yield f'<table class="bits"><tr>{"".join(cells)}</tr></table>'


def _has_fields(node: RegNode) -> bool:
    """Whether the row of the overview leaves something to say: it is more than one `value` of 32 bits."""
    return [(f.inst_name, f.width) for f in node.fields()] != [("value", _BITS)]


def _linked(node: RegNode | MemNode, top: AddrmapNode) -> str:
    name = node.get_rel_path(top)
    linked = isinstance(node, RegNode) and _has_fields(node)
    return f'<a href="#{name}"><code>{name}</code></a>' if linked else f"<code>{name}</code>"


def _range(field: FieldNode) -> str:
    return f"{field.high}:{field.low}" if field.width > 1 else str(field.low)


def _reset(field: FieldNode) -> str:
    value = field.get_property("reset")
    return "" if value is None else f'<span class="number">0x{value:X}</span>'


def _access(node: RegNode | MemNode | FieldNode) -> str:
    """What software can do with it, in words."""
    if isinstance(node, RegNode):
        return "; ".join(dict.fromkeys(_access(f) for f in node.fields()))
    if isinstance(node, FieldNode):
        if node.get_property("singlepulse"):
            return _PULSE
        if node.get_property("onwrite"):
            return _CLEARS
    return {"r": "read", "w": "write", "rw": "read, write"}[node.get_property("sw").name]


def _text(node: RegNode | MemNode | FieldNode) -> str:
    """The meaning of a node; that of a register with one field, and a field's named values, too."""
    parts = [node.get_property("desc") or ""]
    if isinstance(node, MemNode):
        parts.append(f"{node.get_property('mementries')} words.")
    if isinstance(node, RegNode) and node.fields()[0].get_property("sw").name == "r" and not _has_fields(node):
        value = node.fields()[0].get_property("reset")
        parts.append(f"Always 0x{value:X}." if value is not None else "")
    lines = [escape(" ".join(filter(None, parts)))]
    if isinstance(node, FieldNode) and node.get_property("encode"):
        lines += [f"{m.value} <code>{m.name}</code> {escape(m.rdl_desc or '')}" for m in node.get_property("encode")]
    return "<br>".join(filter(None, lines))


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>"
    yield from (f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    yield "</table>"
