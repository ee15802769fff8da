"""Values of Amaranth as CIRCT's combinational operations, at exactly the width that is needed.

Amaranth's arithmetic never overflows: an operator's result is wide enough for every operand. Sums, differences,
products and bitwise operators modulo 2^w need only the operands modulo 2^w, so the text has no bits that are dropped.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import groupby, takewhile

from amaranth.hdl import Const, Signal, Value

from openvrex.hdl.writer.amaranth_private import Concat, Operator, Part, Slice, SwitchValue
from openvrex.hdl.writer.circt import Language, assign, said
from openvrex.hdl.writer.mlir import Attribute, Literal, Number, Op, Result
from openvrex.hdl.writer.names import variable
from openvrex.hdl.writer.results import Results
from openvrex.hdl.writer.values import alike, is_cast, operands
from openvrex.hdl.writer.variables import Var, Variables, WriterError

BITWISE = {"&": "and", "|": "or", "^": "xor"}
RING = {"+": "add", "-": "sub", "*": "mul"}
COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
Arm = tuple[tuple[str, ...] | None, list[Op]]  # patterns of an arm of a `case`, None for its default, and what it does
CHOICES = 4  # values beyond which a choice is a `case`
SHARED = 3  # operators of a value that is read more than once and then has a name of its own


class Expressions(Results):
    """The operations of one module, from values.

    vars : variables of signals · inlined : {id of a signal without a name: its value}
    values : results of input ports, and of their fields · places, declared : variables declared here
    constants : signal, number and name of each state, and its declaration
    """

    def __init__(self, language: Language, variables: Variables, inlined: dict[int, Value]):
        super().__init__()
        self.language, self.vars, self.inlined = language, variables, inlined
        self.values: dict[Var, Result] = {}
        self.places: dict[Var, Result] = {}
        self.declared: list[Op] = []
        self.states: dict[tuple, Result] = {}
        self.constants: list[tuple[str, int, str, Op]] = []
        self.target = "value"  # name of what is assigned, after which temporaries are named
        self._uses: dict[int, int] = {}
        self._costs: dict[int, int] = {}
        self._shared: dict[tuple[int, int], Result] = {}
        self._kept: list[Value] = []  # so that no id is given twice

    def read(self, var: Var) -> Result:
        """The value of a variable."""
        if var in self.values:
            return self.values[var]
        if var in self.places:
            return self.op("sv.read_inout", var.width, self.places[var])
        return self.constant(var.init, var.width)  # nothing drives it

    def state(self, var: Var | None, number: int) -> Result | None:
        """The constant with the name of a variable's number; `None` if it has none."""
        name = var.numbers.get(number) if var else None
        if var is None or not name:
            return None
        key = name, number, var.width
        if key not in self.states:
            own = self.names.new(name if self.names.free(name) else f"{var.name.upper()}_{name}")
            self.states[key] = Result(var.width, own)
            op = Op("sv.localparam", (), {"value": Number(number, var.width)}, (self.states[key],))
            self.constants.append((var.name, number, own, op))
        return self.states[key]

    def declaration(self, name: str, width: int, register: bool, how: tuple = (), depth: int = 0) -> Result:
        """Declares a variable that blocks assign, or a wire. `how` : attributes of its declaration."""
        out = Result(width, name, place=True, depth=depth)
        kind = self.language.variable if register else "sv.wire"
        self.declared.append(Op(kind, (), {"sv.attributes": how} if how else {}, (out,)))
        return out

    def arms(self, value: Value, test: Result, arms: list[Arm]) -> Op:
        """A `case` over a value, whose result is `test`, with the patterns (without -) of each arm."""
        n, operands, var = len(value), [test], self.vars.numbered(value, self.inlined)
        patterns: list[Attribute] = []
        if arms[-1][0] is None or sum(len(p or ()) for p, _ in arms) < 1 << n:
            arms = arms if arms[-1][0] is None else [*arms, (None, [])]
        else:  # all numbers have an arm, and lint tools want a default
            last, ops = arms[-1]
            state = self.state(var, int(last[0], 2))
            arms = [*arms[:-1], (None, [said(f"// {state.name}"), *ops] if state else ops)]
        for p, _ in arms:
            if p is None:
                patterns.append(Literal("unit"))
                continue
            states = [self.state(var, int(x, 2)) for x in p]
            if len(p) == 1 and not states[0]:
                patterns.append(_pattern(int(p[0], 2), n))
                continue
            items = [state or self.constant(int(x, 2), n) for state, x in zip(states, p, strict=True)]
            patterns.append(Literal("#sv.expr"))
            if len(items) > 1:  # the printer has one pattern for an arm, which may be a list
                items = [self.text(", ".join(f"{{{{{i}}}}}" for i in range(len(items))), n, *items)]
            operands += items
        style = {"caseStyle": Number(0), "validationQualifier": Literal("#sv<validation_qualifier plain>")}
        return Op("sv.case", operands, {"casePatterns": tuple(patterns)} | style, regions=[ops for _, ops in arms])

    def choose(self, value: SwitchValue, test: Result, arms: list[tuple], width: int) -> Result:
        """A variable that a `case` gives one of several results; its value."""
        place = self.declaration(self.names.new(self.name_of(value)), width, True)
        body = self.arms(value.test, test, [(p, [assign("bpassign", place, x)]) for p, x in arms])
        self.ops.append(self.language.combinational([body]))
        out = self.op("sv.read_inout", width, place)
        self.temporaries.append(out)
        return out

    def count(self, value: Value, times: int = 1) -> int:
        """Notes more uses of a value, for different bits of it; its number of operators."""
        if times > 1 and isinstance(value, SwitchValue):  # each use chooses its own bits
            self.count(value.test, times)
            for _, element in value.cases:
                self.count(element, times)
            times = 1
        self._uses[id(value)] = self._uses.get(id(value), 0) + times
        if id(value) not in self._costs:
            self._kept.append(value)
            own = isinstance(value, Operator | SwitchValue | Part)
            self._costs[id(value)] = own + sum(map(self.count, operands(value)))
        return self._costs[id(value)]

    def value(self, v: Value, width: int) -> Result:
        """The lowest `width` bits of a value, extended by its sign or by zeros where it has fewer."""
        n = len(v)
        if isinstance(v, Const):
            return self.constant(v.value, width)
        if width <= n:
            return self.low(v, width)
        if not n:
            return self.constant(0, width)
        inner = self.low(v, n)
        if isinstance(v, Concat) or not v.shape().signed:
            return self.concat([inner, self.constant(0, width - n)])
        if not isinstance(v, Signal):
            inner = self.named(inner, self.name_of(v))
        return self.concat([inner, self.replicate(self.extract(inner, n - 1, n), width - n)])

    def low(self, v: Value, width: int) -> Result:
        """The lowest `width` bits of a value that has at least as many."""
        shared = self._shares(v) or (id(v), width) in self._shared
        return self._wire(v, width) if shared else self._low(v, width)

    def _wire(self, v: Value, width: int) -> Result:
        """A wire of these bits, the same at every request."""
        key = id(v), width
        if key not in self._shared:
            self._kept.append(v)
            self._shared[key] = self.named(self._low(v, width), self.name_of(v))
        return self._shared[key]

    def _wired(self, v: Value, start: int, stop: int) -> Result | None:
        """Bits of a value that takes no gates; `None` of another."""
        if isinstance(v, Const):
            return self.constant(v.value >> start, stop - start)
        if isinstance(v, Signal):
            return self.signal(v, start, stop)
        if isinstance(v, Slice):
            return self.bits(v.value, v.start + start, v.start + stop)
        return self.concat(self._parts(v, start, stop)) if isinstance(v, Concat) else None

    def _low(self, v: Value, width: int) -> Result:
        if out := self._wired(v, 0, width):
            return out
        if isinstance(v, SwitchValue):
            return self._switch(v, lambda element: self.value(element, width), width)
        if isinstance(v, Part):
            return self._part(v, width)
        if isinstance(v, Operator):
            return self._operator(v, width)
        raise WriterError(f"{type(v).__name__}: no such value can be written")

    def bits(self, v: Value, start: int, stop: int) -> Result:
        """Bits `start` to `stop - 1` of a value, which may lie above its own: extended as in `value`."""
        n = len(v)
        if start == 0:
            return self.value(v, stop)
        if stop > n and not isinstance(v, Const):
            if start < n:
                return self.concat([self.bits(v, start, n), self._sign(v, stop - n)])
            return self._sign(v, stop - start)
        if out := self._wired(v, start, stop):
            return out
        if is_cast(v):
            return self.bits(v.operands[0], start, stop)
        if not self._shares(v):
            if isinstance(v, Operator) and v.operator in BITWISE:
                a, b = (self.bits(x, start, stop) for x in v.operands)
                return self.logic(BITWISE[v.operator], a, b)
            if isinstance(v, Operator) and v.operator == "~":
                return self.inverse(self.bits(v.operands[0], start, stop))
            if isinstance(v, SwitchValue):
                return self._switch(v, lambda element: self.bits(element, start, stop), stop - start)
        return self.extract(self._wire(v, n if self._shares(v) else stop), start, stop)

    def number(self, var: Var | None, v: Value, at: int = 0) -> Result | None:
        """What a variable with names of its numbers takes, bits of a value, with those names; `None` if it has none."""
        if var is None or not var.numbers:
            return None
        if isinstance(v, Const):
            number = v.value >> at & (1 << var.width) - 1
            return self.state(var, number) or self.constant(number, var.width)
        if is_cast(v):
            return self.number(var, v.operands[0], at)
        stop = at + var.width
        if isinstance(v, Slice):
            return self.number(var, v.value, v.start + at) if stop <= len(v) else None
        if isinstance(v, SwitchValue) and not self._shares(v):
            return self._switch(v, lambda x: self.number(var, x, at) or self.bits(x, at, stop), var.width)
        return self.bits(v, at, stop)

    def signal(self, s: Signal, start: int, stop: int) -> Result:
        """Bits of a signal."""
        if id(s) in self.inlined:
            return self.bits(self.inlined[id(s)], start, stop)
        return self.concat(self.extract(self.read(var), low, high) for var, low, high in self.vars.over(s, start, stop))

    def true(self, v: Value) -> Result:
        """Whether a value is not zero."""
        return self.value(v, 1) if len(v) < 2 else self.any_of(self.low(v, len(v)))

    def matches(self, test: Result, patterns: Iterable[str], var: Var | None = None) -> Result:
        """Whether a result fits one of the patterns of 0, 1 and -, the highest bit first.

        var : the variable with names of its numbers that the result is
        """
        found = []
        for pattern in patterns:
            if "-" not in pattern:
                if var and (state := self.state(var, int(pattern, 2))):
                    found.append(self.compare("eq", test, state))
                elif test.width == 1:
                    found.append(test if pattern == "1" else self.inverse(test))
                else:
                    found.append(self.compare("eq", test, self.constant(int(pattern, 2), test.width)))
                continue
            if not set(pattern) - {"-"}:
                return self.constant(1, 1)
            parts, at = [], 0
            for known, run in groupby(reversed(pattern), lambda bit: bit != "-"):
                low, bits = at, "".join(run)
                at += len(bits)
                if known:
                    parts.append(self.matches(self.extract(test, low, at), [bits[::-1]]))
            found.append(reduce(lambda a, b: self.logic("and", a, b), parts))
        return reduce(lambda a, b: self.logic("or", a, b), found)

    def _shares(self, v: Value) -> bool:
        if isinstance(v, Signal | Const | Slice):
            return False
        return self._uses.get(id(v), 0) > 1 and self._costs.get(id(v), 0) >= SHARED

    def name_of(self, v: Value) -> str:
        """A name for a value: the Python variable that holds it, or what it feeds."""
        own = variable(getattr(v, "src_loc", None))
        return own if own and own not in ("out", "value", "m") else f"{self.target}_{_kind(v)}"

    def _parts(self, v: Concat, start: int, stop: int) -> list[Result]:
        parts: list[Result] = []
        at, i = 0, 0
        while i < len(v.parts):
            part, n = v.parts[i], len(v.parts[i])
            same = sum(1 for _ in takewhile(lambda other, part=part: alike(other, part), v.parts[i:]))
            inside = [at + k * n for k in range(same) if start <= at + k * n and at + (k + 1) * n <= stop]
            if n and len(inside) == same > 1:  # the value once, and how often
                parts.append(self.replicate(self.low(part, n), same))
                at, i = at + same * n, i + same
                continue
            low, high = max(start, at), min(stop, at + n)
            if low < high:
                parts.append(self.bits(part, low - at, high - at))
            at, i = at + n, i + 1
        return parts

    def _sign(self, v: Value, width: int) -> Result:
        n = len(v)
        if not n or not v.shape().signed:
            return self.constant(0, width)
        return self.replicate(self.bits(v, n - 1, n), width)

    def _switch(self, v: SwitchValue, arm: Callable[[Value], Result], width: int) -> Result:
        n = len(v.test)
        if not n:
            return arm(v.cases[0][1])
        test, var = self.low(v.test, n), self.vars.numbered(v.test, self.inlined)
        if (known := test.known) is not None:
            found = (x for ps, x in v.cases if ps is None or any(_fits(known, p) for p in ps))
            return next((arm(x) for x in found), self.constant(0, width))
        patterns = [p for ps, _ in v.cases for p in ps or ()]
        if len(v.cases) > CHOICES and not any("-" in p for p in patterns):
            arms = [(ps, arm(element)) for ps, element in v.cases]
            if arms[-1][0] is not None and len(set(patterns)) < 1 << n:
                arms.append((None, self.constant(0, width)))
            return self.choose(v, test, arms, width)
        if n > 1 and len(v.cases) > 2 and not isinstance(v.test, Signal):
            test = self.named(test, self.name_of(v.test))
        whens = [(patterns, arm(element)) for patterns, element in v.cases]
        covered = set().union(*(set(p) for p, _ in whens if p is not None))
        full = whens[-1][0] is None or not any("-" in p for p in covered) and len(covered) == 1 << n
        out = whens.pop()[1] if full else self.constant(0, width)
        for patterns, value in reversed(whens):
            # Mux(test, a, b) is two cases, the first for 0.
            if tuple(patterns) == ("0" * n,) and (n == 1 or len(v.cases) == 2) and not var:
                out = self.mux(self.any_of(test), out, value)
            else:
                out = self.mux(self.matches(test, patterns, var), value, out)
        return out

    def _part(self, v: Part, width: int) -> Result:
        """`v.width` bits from bit `v.offset * v.stride` on; bits above the value's are zeros, or its sign."""
        n, m = len(v.value), len(v.offset)
        last = ((1 << m) - 1) * v.stride + v.width  # bits that the offset can reach
        if v.value.shape().signed and last > n:
            raise WriterError(f"bit_select of a signed value of {n} bits up to bit {last - 1}: extend it first")
        if not m:
            return self.bits(v.value, 0, width)
        inner, size = v.value, max(n, last)
        over = list(self.vars.over(inner, 0, n)) if isinstance(inner, Signal) and id(inner) not in self.inlined else []
        if len(over) == 1 and last <= n:
            base = self.read(over[0][0])
        else:
            name = f"{inner.name}_padded" if isinstance(inner, Signal) else self.name_of(inner)
            base = self.named(self.value(inner, size), name)
        offset = self.offset(v.offset, v.stride)
        return self.bit(base, offset) if v.stride == width == 1 else self.indexed(base, offset, width)

    def bit(self, of: Result, at: Result) -> Result:
        """One bit of a result, or of a variable."""
        if of.place:
            return self.text("{{0}}[{{1}}]", 1, of, at, place=True)
        return self.text("{{1}}[{{0}}]", 1, at, of)

    def indexed(self, of: Result, at: Result, width: int) -> Result:
        """Bits of a result, or of a variable, from a place on."""
        kind = f"sv.indexed_part_select{'_inout' * of.place}"
        return self.op(kind, width, of, at, place=of.place, width=Number(width))

    def offset(self, offset: Value, stride: int) -> Result:
        """The lowest bit of a part."""
        m = len(offset)
        zeros = stride.bit_length() - 1
        if stride == 1:
            return self.low(offset, m)
        if stride == 1 << zeros:
            return self.concat([self.constant(0, zeros), self.low(offset, m)])
        bits = m + stride.bit_length()
        return self.op("comb.mul", bits, self.value(offset, bits), self.constant(stride, bits))

    def _operator(self, v: Operator, width: int) -> Result:
        op, operands = v.operator, v.operands
        x = operands[0]
        if len(operands) == 1:
            if op in ("s", "u"):
                return self.low(x, width)
            if op == "~":
                if isinstance(x, Operator) and x.operator in INVERSE and not self._shares(x):
                    return self._compare(INVERSE[x.operator], *x.operands)
                return self.inverse(self.low(x, width))
            if op == "-":
                return self.sum("sub", self.constant(0, width), self.value(x, width))
            if op in ("b", "r|"):
                return self.true(x)
            if not len(x):
                return self.constant(op == "r&", 1)
            inner = self.low(x, len(x))
            if op == "r&":
                return self.all_of(inner)
            if op == "r^":
                return self.parity(inner)
        y = operands[1]
        if op in ("*", "//", "%"):
            if op == "*" and isinstance(x, Const):
                x, y = y, x
            if isinstance(y, Const) and y.value > 0 and y.value & (y.value - 1) == 0:
                return self._power(op, x, y.value.bit_length() - 1, width)
        if op in BITWISE:
            return self.logic(BITWISE[op], self.value(x, width), self.value(y, width))
        if op in RING:
            return self.sum(RING[op], self.value(x, width), self.value(y, width))
        if op in COMPARE:
            return self._compare(op, x, y)
        if op in ("<<", ">>"):
            return self._shift(op, x, y, width)
        if isinstance(y, Const) and y.value > 0 and not x.shape().signed:
            n = max(width, len(x), y.value.bit_length())
            kind = {"//": "divu", "%": "modu"}[op]
            out = self.op(f"comb.{kind}", n, self.value(x, n), self.constant(y.value, n))
            return out if n == width else self.extract(self.named(out, self.name_of(v)), 0, width)
        raise WriterError(f"operator {op}: divides by a value; use shifts or a table")

    def _power(self, op: str, x: Value, zeros: int, width: int) -> Result:
        """Product, quotient or remainder of a value and 2^zeros."""
        if op != "%":
            return self._shift("<<" if op == "*" else ">>", x, Const(zeros), width)
        kept = min(zeros, width)
        parts = [self.value(x, kept)] if kept else []
        return self.concat(parts + ([self.constant(0, width - kept)] if width > kept else []))

    def _compare(self, op: str, x: Value, y: Value) -> Result:
        signed = x.shape().signed or y.shape().signed
        n = max(1, *(len(v) + (signed and not v.shape().signed) for v in (x, y)))
        how = COMPARE[op]
        for value, other in ((x, y), (y, x)):
            var = self.vars.numbered(value, self.inlined) if isinstance(other, Const) else None
            if how in ("eq", "ne") and var and var.width == n and (state := self.state(var, other.value)):
                return self.compare(how, self.value(value, n), state)
        if n == 1 and how in ("eq", "ne") and isinstance(y, Const):
            return self.value(x, 1) if (y.value != 0) == (how == "eq") else self.inverse(self.value(x, 1))
        if how not in ("eq", "ne"):
            how = f"{'s' if signed else 'u'}{how}"
        return self.compare(how, self.value(x, n), self.value(y, n))

    def _shift(self, op: str, x: Value, y: Value, width: int) -> Result:
        if isinstance(y, Const):
            if op == ">>":
                return self.bits(x, y.value, y.value + width)
            parts = [self.constant(0, min(width, y.value))] if y.value else []
            return self.concat(parts + ([self.value(x, width - y.value)] if width > y.value else []))
        if op == "<<":
            n = max(width, len(y))
            out = self.shift("shl", self.value(x, n), self.value(y, n))
        else:
            n = max(len(x), len(y), width)
            how = "shrs" if x.shape().signed else "shru"
            out = self.shift(how, self.value(x, n), self.value(y, n))
        return out if n == width else self.extract(self.named(out, f"{self.target}_shifted"), 0, width)


def _fits(number: int, pattern: str) -> bool:
    """Whether a number fits a pattern of 0, 1 and -."""
    return all(bit in ("-", str(number >> i & 1)) for i, bit in enumerate(reversed(pattern)))


def _kind(v: Value) -> str:
    """What a value without a name is."""
    if isinstance(v, Operator):
        kinds = {"+": "sum", "-": "difference", "*": "product", "<<": "shifted", ">>": "shifted", "~": "inverse"}
        kinds |= {"//": "quotient", "%": "remainder"}
        return kinds.get(v.operator, "term")
    return {"SwitchValue": "choice", "Concat": "word", "Part": "part"}.get(type(v).__name__, "term")


def _pattern(number: int, bits: int) -> Number:
    """A pattern of `sv.case`, which has two bits for each bit: 0 or 1."""
    return Number(sum((number >> i & 1) << 2 * i for i in range(bits)), 2 * bits)
