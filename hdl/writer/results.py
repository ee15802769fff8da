"""CIRCT's combinational operations on results of others, without those that an identity makes needless.

`x - x`, `x & 0` or `x << 0` is the constant, or the operand, that it equals for every x: in a simulator with four
states the operation itself would be X where x is.
"""

from collections import Counter
from collections.abc import Iterable
from functools import reduce

from openvrex.hdl.writer.mlir import Attribute, Number, Op, Result, walk
from openvrex.hdl.writer.names import Names

COMPARISONS = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")  # by CIRCT's numbers
# Comparisons that all numbers decide: with 0, 0, and all ones twice, on the right and on the left.
_ABOVE, _BELOW = ("uge", "ult", "ule", "ugt"), ("ule", "ugt", "uge", "ult")
_HOLDS = {"eq": int.__eq__, "ne": int.__ne__} | {
    f"{sign}{how}": getattr(int, f"__{how}__") for sign in "su" for how in ("lt", "le", "gt", "ge")
}
_PURE = ("comb.", "hw.constant", "hw.wire", "sv.read_inout", "sv.indexed", "sv.array", "sv.verbatim.expr")


class Results:
    """The operations of one module.

    names : those taken in the module · ops : operations so far
    temporaries : wires, and other results of a variable that has no signal
    """

    def __init__(self):
        self.names = Names()
        self.ops: list[Op] = []
        self.temporaries: list[Result] = []
        self._same: dict[Result, Result] = {}  # of a result, the first one that is computed alike
        self._first: dict[tuple, Result] = {}  # that first one, by how it is computed

    def op(self, kind: str, width: int, /, *operands: Result, place: bool = False, **attributes: Attribute) -> Result:
        """Adds an operation and returns its result."""
        out = Result(width, place=place)
        self.ops.append(Op(kind, operands, attributes, (out,)))
        alike = kind, width, *map(self._like, operands), *attributes.items()
        self._same[out] = self._first.setdefault(alike, out)
        return out

    def text(self, form: str, width: int, *operands: Result, place: bool = False) -> Result:
        """A result that CIRCT prints as `form`, with operands in place of {{0}}, {{1}} and so on."""
        return self.op("sv.verbatim.expr", width, *operands, place=place, format_string=form, symbols=())

    def equal(self, a: Result, b: Result) -> bool:
        """Whether two results are computed alike from the same variables."""
        return self._like(a) is self._like(b)

    def opposite(self, a: Result, b: Result) -> bool:
        """Whether one of two results is the inverse of the other."""
        a, b = self._like(a), self._like(b)
        return any(_inverts(x) and self.equal(x.op.operands[0], y) for x, y in ((a, b), (b, a)))

    def _like(self, x: Result) -> Result:
        return self._same.get(x, x)

    def constant(self, value: int, width: int) -> Result:
        """A constant, modulo 2^width."""
        return self.op("hw.constant", width, value=Number(value & (1 << width) - 1, width))

    def logic(self, name: str, a: Result, b: Result) -> Result:
        """The operation and, or or xor of two results."""
        ones = (1 << a.width) - 1
        for x, y in ((a, b), (b, a)):
            if (known := x.known) is None:
                continue
            if known == (ones if name == "and" else 0):
                return y
            if name != "xor" and known == (0 if name == "and" else ones):
                return x
            if name == "xor" and known == ones:
                return self.inverse(y)
        if a.known is not None and b.known is not None:
            return self.constant(getattr(int, f"__{name}__")(a.known, b.known), a.width)
        if self.equal(a, b):
            return self.constant(0, a.width) if name == "xor" else a
        if self.opposite(a, b):
            return self.constant(0 if name == "and" else -1, a.width)
        return self.op(f"comb.{name}", a.width, *(self._within(name, x) for x in (a, b)))

    def inverse(self, x: Result) -> Result:
        """All bits inverted."""
        if x.known is not None:
            return self.constant(~x.known, x.width)
        return self.op("comb.xor", x.width, x, self.constant(-1, x.width))

    def sum(self, name: str, a: Result, b: Result) -> Result:
        """The operation add, sub or mul of two results."""
        x, y = a.known, b.known
        if x is not None and y is not None:
            return self.constant(getattr(int, f"__{name}__")(x, y), a.width)
        if name == "mul":
            for one, other in ((x, b), (y, a)):
                if one in (0, 1):
                    return other if one else self.constant(0, a.width)
        elif y == 0:
            return a
        elif name == "add" and x == 0:
            return b
        elif name == "sub" and self.equal(a, b):
            return self.constant(0, a.width)
        return self.op(f"comb.{name}", a.width, a, b)

    def shift(self, name: str, x: Result, by: Result) -> Result:
        """The operation shl, shru or shrs."""
        return x if 0 in (by.known, x.known) else self.op(f"comb.{name}", x.width, x, by)

    def compare(self, how: str, a: Result, b: Result) -> Result:
        """Whether a comparison holds."""
        x, y, width = a.known, b.known, a.width
        if self.equal(a, b):
            return self.constant(how in ("eq", "ule", "uge", "sle", "sge"), 1)
        if x is not None and y is not None:
            if how[0] == "s":
                x, y = (n - (n >> (width - 1) << width) for n in (x, y))
            return self.constant(_HOLDS[how](x, y), 1)
        for kinds, number in ((_ABOVE, y), (_BELOW, x)):
            if how in kinds and number == (kinds.index(how) > 1) * ((1 << width) - 1):
                return self.constant(how.endswith("e"), 1)
        return self.op("comb.icmp", 1, a, b, predicate=Number(COMPARISONS.index(how), 64))

    def all_of(self, x: Result) -> Result:
        """Whether all bits are 1."""
        return x if x.width == 1 else self.compare("eq", x, self.constant(-1, x.width))

    def any_of(self, x: Result) -> Result:
        """Whether a bit is 1."""
        return x if x.width == 1 else self.compare("ne", x, self.constant(0, x.width))

    def mux(self, test: Result, a: Result, b: Result) -> Result:
        """`a` if `test` is 1, else `b`."""
        if test.known is not None or self.equal(a, b):
            return b if test.known == 0 else a
        if a.width == 1 and (a.known, b.known) in ((1, 0), (0, 1)):
            return test if a.known else self.inverse(test)
        return self.op("comb.mux", a.width, test, a, b)

    def concat(self, parts: Iterable[Result]) -> Result:
        """Parts, the lowest first, as one value."""
        parts = list(parts)[::-1]
        if len(parts) == 1:
            return parts[0]
        width = sum(part.width for part in parts)
        if all(part.known is not None for part in parts):
            return self.constant(reduce(lambda a, b: a << b.width | b.known, parts, 0), width)
        return self.op("comb.concat", width, *parts)

    def replicate(self, x: Result, times: int) -> Result:
        """A result that is repeated."""
        if x.known is not None:
            return self.constant(sum(x.known << k * x.width for k in range(times)), x.width * times)
        return x if times == 1 else self.op("comb.replicate", x.width * times, x)

    def extract(self, x: Result, start: int, stop: int) -> Result:
        """Bits of a result that has a name in the text."""
        if (start, stop) == (0, x.width):
            return x
        if x.known is not None:
            return self.constant(x.known >> start, stop - start)
        return self.op("comb.extract", stop - start, x, lowBit=Number(start))

    def parity(self, x: Result) -> Result:
        """Whether an odd number of bits is 1."""
        if x.known is not None:
            return self.constant(x.known.bit_count(), 1)
        return x if x.width == 1 else self.op("comb.parity", 1, x)

    def named(self, x: Result, name: str) -> Result:
        """The same result as a wire with a name."""
        out = Result(x.width, self.names.new(name))
        self.ops.append(Op("hw.wire", (x,), {}, (out,)))
        self._same[out] = self._like(x)
        self.temporaries.append(out)
        return out

    def _within(self, name: str, x: Result) -> Result:
        """An operand of and, or, xor: in parentheses if it is another operation, whose precedence few readers know."""
        if _operator(x) in ("", f"comb.{name}"):
            return x
        out = self.text("({{0}})", x.width, x)
        self._same[out] = self._like(x)
        return out


def _inverts(x: Result) -> bool:
    return x.op is not None and x.op.kind == "comb.xor" and x.op.operands[1].known == (1 << x.width) - 1


def _operator(x: Result) -> str:
    """The operation of two operands that the printer writes for a result; "" if it writes something else."""
    if x.op is None or _inverts(x):
        return ""
    if x.op.kind == "comb.icmp":  # it writes |a and &a for two of them
        b = x.op.operands[1]
        reduced = {"ne": 0, "eq": (1 << b.width) - 1}.get(COMPARISONS[x.op.attributes["predicate"].value], -1)
        return "" if b.known == reduced else x.op.kind
    return x.op.kind if x.op.kind in ("comb.and", "comb.or", "comb.xor", "comb.add", "comb.sub", "comb.mul") else ""


def needed(ops: list[Op]) -> tuple[list[Op], dict[Result, int]]:
    """Operations without those whose results nothing needs, and the bits that something reads of each result.

    Bits of a declaration are those of the results that read it.
    """
    uses = Counter(x for op in walk(ops) for x in op.operands)
    kept = []
    bits: dict[Result, int] = {}
    for op in reversed(ops):  # what reads a result stands before what makes it
        if op.kind.startswith(_PURE) and not uses[op.results[0]]:
            uses.subtract(op.operands)
            continue
        kept.append(op)
        if op.kind == "comb.extract":
            read = (1 << op.results[0].width) - 1 << op.attributes["lowBit"].value
            bits[op.operands[0]] = bits.get(op.operands[0], 0) | read
        elif op.kind == "sv.read_inout":
            bits[op.operands[0]] = bits.get(op.operands[0], 0) | bits.get(op.results[0], 0)
        else:
            bits |= {x: -1 for inner in walk((op,)) for x in inner.operands if not x.place}
    return kept[::-1], bits
