"""Expressions of Verilog that equal one of their operands, or a constant, whatever their variables are."""

import re
from functools import partial

from pyslang import syntax

_ZERO, _ONE, _ONES = 0, 1, -1
# A number that decides an operator, or leaves the other operand as it is: on both sides, and on the right alone.
_EITHER = {"&": (_ZERO, _ONES), "|": (_ZERO, _ONES), "^": (_ZERO, _ONES), "+": (_ZERO,), "*": (_ZERO, _ONE)}
_LEFT = {"<<": (_ZERO,), ">>": (_ZERO,), ">>>": (_ZERO,), ">": (_ZERO,), "<=": (_ZERO,), "<": (_ONES,), ">=": (_ONES,)}
_RIGHT = {"<<": (_ZERO,), ">>": (_ZERO,), ">>>": (_ZERO,), "-": (_ZERO,)}
_RIGHT |= {">=": (_ZERO,), "<": (_ZERO,), ">": (_ONES,), "<=": (_ONES,)}
_ALIKE = ("-", "^", "&", "|", "==", "!=", "<", "<=", ">", ">=")  # operators that operands alike decide
_ASSIGNS = "SyntaxKind.AssignmentExpression", "SyntaxKind.NonblockingAssignmentExpression"


def needless(text: str) -> list[str]:
    """The expressions of a text that an identity makes needless, such as `x - x`, `x & 8'h0` or `x % 8'h4`."""
    found: list[str] = []
    syntax.SyntaxTree.fromText(text).root.visit(partial(_visit, found))
    return found


def numbered(text: str, registers: dict[str, set[str]]) -> list[str]:
    """Comparisons and assignments in which a register of states meets a number that has no name.

    registers : names of such registers by module
    """
    found: list[str] = []
    for module in re.findall(r"(?s)^module .*?^endmodule", text, re.M):
        own = registers.get(re.match(r"module (\w+)", module)[1], set())
        if own:
            syntax.SyntaxTree.fromText(module).root.visit(partial(_visit_states, own, found))
    return found


def _visit(found: list[str], node: object) -> None:
    if isinstance(node, syntax.BinaryExpressionSyntax) and str(node.kind) not in _ASSIGNS:
        if _decided(_plain(node.left), node.operatorToken.rawText, _plain(node.right)):
            found.append(_plain(node))
    elif isinstance(node, syntax.ConditionalExpressionSyntax):
        test, a, b = _plain(node.predicate), _plain(node.left), _plain(node.right)
        if _number(test) or a == b or {a, b} == {"1'h0", "1'h1"}:
            found.append(_plain(node))
    elif isinstance(node, syntax.MultipleConcatenationExpressionSyntax) and _number(_plain(node.concatenation)[1:-1]):
        found.append(_plain(node))


def _decided(a: str, op: str, b: str) -> bool:
    x, y = _number(a), _number(b)
    if x and y or op in _ALIKE and a == b or op in "&|^" and a.lstrip("~") == b.lstrip("~"):
        return True
    if op in ("%", "/") and y and y[0] & (y[0] - 1) == 0:
        return True
    both = _EITHER.get(op, ())
    sides = (x, both + _LEFT.get(op, ())), (y, both + _RIGHT.get(op, ()))
    return any(n is not None and n[0] in {number & n[1] for number in numbers} for n, numbers in sides)


def _visit_states(own: set[str], found: list[str], node: object) -> None:
    if isinstance(node, syntax.CaseStatementSyntax) and _plain(node.expr) in own:
        items = [e for item in node.items if hasattr(item, "expressions") for e in item.expressions]
        found += [f"case ({_plain(node.expr)}) {_plain(e)}" for e in items if _number(_plain(e))]
    if not isinstance(node, syntax.BinaryExpressionSyntax) or _plain(node.left) not in own:
        return
    values = [node.right]
    while str(node.kind) in _ASSIGNS and values:
        value = values.pop()
        if isinstance(value, syntax.ConditionalExpressionSyntax):
            values += [value.left, value.right]
        elif _number(_plain(value)):
            found.append(_plain(node))
    if node.operatorToken.rawText in ("==", "!=") and _number(_plain(node.right)):
        found.append(_plain(node))


def _plain(node: object) -> str:
    """Text on one line, without parentheses around it."""
    text = " ".join(re.sub(r"//.*", "", str(node)).split())
    while isinstance(node, syntax.ParenthesizedExpressionSyntax):
        node, text = node.expression, text[1:-1].strip()
    return text


def _number(text: str) -> tuple[int, int] | None:
    """Value and mask of a sized constant."""
    match = re.fullmatch(r"(\d+)'h([0-9A-Fa-f]+)", text)
    return (int(match[2], 16), (1 << int(match[1])) - 1) if match else None
