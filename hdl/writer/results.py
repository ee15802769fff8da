"""CIRCT's combinational operations on results of others, without those that an identity makes needless.

`x - x`, `x & 0` or `x << 0` is the constant, or the operand, that it equals for every x: in a simulator with four
states the operation itself would be X where x is.
"""

import re
from collections.abc import Iterable
from functools import reduce

from openvrex.hdl.writer.names import Names

NAME = re.compile(r"%\w+")
_WIRE = re.compile(r"hw\.wire (%\w+) ")
# Comparisons that all numbers decide: with 0, 0, and all ones twice, on the right and on the left.
_ABOVE, _BELOW = ("uge", "ult", "ule", "ugt"), ("ule", "ugt", "uge", "ult")
_HOLDS = {"eq": int.__eq__, "ne": int.__ne__} | {
    f"{sign}{how}": getattr(int, f"__{how}__") for sign in "su" for how in ("lt", "le", "gt", "ge")
}


class Results:
    """The operations of one module.

    lines : operations so far, as MLIR text · temporaries : width of each wire that has no signal
    """

    def __init__(self, names: Names):
        self.names = names
        self.lines: list[str] = []
        self.temporaries: dict[str, int] = {}
        self._numbers = 0
        self._constants: dict[str, int] = {}
        self._binary: dict[str, str] = {}  # the operation of two operands that made a result
        self._same: dict[str, str] = {}  # of a result, the first one that is computed alike
        self._first: dict[str, str] = {}  # that first one, by how it is computed
        self._inverse: dict[str, str] = {}  # of a result without others alike, the one that it inverts

    def op(self, text: str) -> str:
        """Adds an operation and returns the name of its result."""
        self._numbers += 1
        out = f"%{self._numbers}"
        self.lines.append(f"{out} = {text}")
        wire = _WIRE.match(text)
        alike = NAME.sub(lambda found: self._like(found[0]), text)
        self._same[out] = self._like(wire[1]) if wire else self._first.setdefault(alike, out)
        return out

    def equal(self, a: str, b: str) -> bool:
        """Whether two results are computed alike from the same variables."""
        return self._like(a) == self._like(b)

    def opposite(self, a: str, b: str) -> bool:
        """Whether one of two results is the inverse of the other."""
        a, b = self._like(a), self._like(b)
        return self._inverse.get(a) == b or self._inverse.get(b) == a

    def _like(self, x: str) -> str:
        return self._same.get(x, x)

    def known(self, x: str) -> int | None:
        """The number that a result is; `None` if it is no constant."""
        return self._constants.get(x)

    def constant(self, value: int, width: int) -> str:
        """A constant, modulo 2^width."""
        value &= (1 << width) - 1
        out = self.op(f"hw.constant {value - (1 << width) if value >> (width - 1) else value} : i{width}")
        self._constants[out] = value
        return out

    def logic(self, name: str, a: str, b: str, width: int) -> str:
        """The operation and, or or xor of two results."""
        ones = (1 << width) - 1
        for x, y in ((a, b), (b, a)):
            if (known := self.known(x)) is None:
                continue
            if known == (ones if name == "and" else 0):
                return y
            if name != "xor" and known == (0 if name == "and" else ones):
                return x
            if name == "xor" and known == ones:
                return self.inverse(y, width)
        x, y = self.known(a), self.known(b)
        if x is not None and y is not None:
            return self.constant(x & y if name == "and" else x | y if name == "or" else x ^ y, width)
        if self.equal(a, b):
            return self.constant(0, width) if name == "xor" else a
        if self.opposite(a, b):
            return self.constant(0 if name == "and" else -1, width)
        a, b = (self._within(name, x, width) for x in (a, b))
        out = self.op(f"comb.{name} {a}, {b} : i{width}")
        self._binary[out] = name
        return out

    def inverse(self, x: str, width: int) -> str:
        """All bits inverted."""
        if (known := self.known(x)) is not None:
            return self.constant(~known, width)
        out = self.op(f"comb.xor {x}, {self.constant(-1, width)} : i{width}")
        self._inverse.setdefault(self._like(out), self._like(x))
        return out

    def sum(self, name: str, a: str, b: str, width: int) -> str:
        """The operation add, sub or mul of two results."""
        x, y = self.known(a), self.known(b)
        if x is not None and y is not None:
            return self.constant(x + y if name == "add" else x - y if name == "sub" else x * y, width)
        if name == "mul":
            for one, other in ((x, b), (y, a)):
                if one in (0, 1):
                    return other if one else self.constant(0, width)
        elif y == 0:
            return a
        elif name == "add" and x == 0:
            return b
        elif name == "sub" and self.equal(a, b):
            return self.constant(0, width)
        out = self.op(f"comb.{name} {a}, {b} : i{width}")
        self._binary[out] = name
        return out

    def shift(self, name: str, x: str, by: str, width: int) -> str:
        """The operation shl, shru or shrs."""
        if self.known(by) == 0 or self.known(x) == 0:
            return x
        return self.op(f"comb.{name} {x}, {by} : i{width}")

    def compare(self, how: str, a: str, b: str, width: int) -> str:
        """Whether a comparison holds."""
        x, y = self.known(a), self.known(b)
        if self.equal(a, b):
            return self.constant(how in ("eq", "ule", "uge", "sle", "sge"), 1)
        if x is not None and y is not None:
            if how[0] == "s":
                x, y = (n - (n >> (width - 1) << width) for n in (x, y))
            return self.constant(_HOLDS[how](x, y), 1)
        for kinds, number in ((_ABOVE, y), (_BELOW, x)):
            if how in kinds and number == (kinds.index(how) > 1) * ((1 << width) - 1):
                return self.constant(how.endswith("e"), 1)
        out = self.op(f"comb.icmp {how} {a}, {b} : i{width}")
        # The printer writes |a and &a for the others.
        if (how, y) not in (("ne", 0), ("eq", (1 << width) - 1)):
            self._binary[out] = how
        return out

    def mux(self, test: str, a: str, b: str, width: int) -> str:
        """`a` if `test` is 1, else `b`."""
        known = self.known(test)
        if known is not None or self.equal(a, b):
            return b if known == 0 else a
        if width == 1 and (self.known(a), self.known(b)) in ((1, 0), (0, 1)):
            return test if self.known(a) else self.inverse(test, 1)
        return self.op(f"comb.mux {test}, {a}, {b} : i{width}")

    def concat(self, parts: Iterable[tuple[str, int]]) -> str:
        """Parts (result, width), the lowest first, as one value."""
        parts = list(parts)[::-1]
        if len(parts) == 1:
            return parts[0][0]
        known = [self.known(part) for part, _ in parts]
        if None not in known:
            number = reduce(lambda a, b: a << b[1][1] | b[0], zip(known, parts, strict=True), 0)
            return self.constant(number, sum(width for _, width in parts))
        return self.op(f"comb.concat {', '.join(p for p, _ in parts)} : {', '.join(f'i{w}' for _, w in parts)}")

    def replicate(self, x: str, width: int, times: int) -> str:
        """A result that is repeated."""
        if (known := self.known(x)) is not None:
            return self.constant(sum(known << k * width for k in range(times)), width * times)
        return x if times == 1 else self.op(f"comb.replicate {x} : (i{width}) -> i{width * times}")

    def extract(self, value: str, width: int, start: int, stop: int) -> str:
        """Bits of a result that has a name in the text."""
        if (start, stop) == (0, width):
            return value
        if (known := self.known(value)) is not None:
            return self.constant(known >> start, stop - start)
        return self.op(f"comb.extract {value} from {start} : (i{width}) -> i{stop - start}")

    def parity(self, x: str, width: int) -> str:
        """Whether an odd number of bits is 1."""
        if (known := self.known(x)) is not None:
            return self.constant(known.bit_count(), 1)
        return x if width == 1 else self.op(f"comb.parity {x} : i{width}")

    def named(self, value: str, width: int, name: str) -> str:
        """The same result as a wire with a name."""
        out = self.op(f'hw.wire {value} name "{self.names.new(name)}" : i{width}')
        self.temporaries[out] = width
        if (known := self.known(value)) is not None:
            self._constants[out] = known
        return out

    def _within(self, name: str, x: str, width: int) -> str:
        """An operand of and, or, xor: in parentheses if it is another operation, whose precedence few readers know."""
        if self._binary.get(x, name) == name:
            return x
        out = self.op(f'sv.verbatim.expr "({{{{0}}}})"({x}) : (i{width}) -> i{width}')
        self._same[out] = self._like(x)
        return out
