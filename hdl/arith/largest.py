"""Largest of many numbers, found from the highest bit down."""

from amaranth import Cat, Module, Mux, Signal, Value

from openvrex.hdl.named import comb


def largest(
    m: Module, values: list[Value], leading: Value, below: Value, name: str, at: int = 0
) -> tuple[Signal, Signal, Signal]:
    """The largest of the `values` (equal widths) whose bit in `leading` is set, 0 if there is none.

    Also returns which numbers, without their `at` lowest bits, equal the largest, and which are one less. A number may
    be wider than its value: then `leading` and `below` tell which numbers are equal to the largest and one less in the
    bits above, as a call for those bits returns them. Without bits above, `below` is 0.

    The function compares all numbers at once, bit by bit: a number with a 0 drops out where another one still in the
    race has a 1. This is faster and smaller than a tree of comparators, whose every level waits for a carry. Bits go in
    pairs: the second is found for either result of the first, so that two bits wait only once for a result to reach all
    numbers. Each bit of the result is a signal of its own, as Verilator 5.006 sees a loop in a vector whose bits depend
    on each other.
    """
    n, width = len(values), len(values[0])
    top = [Signal(name=f"{name}_found{k}") for k in range(width)]
    bits = [Signal(n, name=f"{name}_bits{k}") for k in range(width)]
    equal = leading
    for k in reversed(range(width)):
        one, found = bits[k], top[k].replicate(n)
        m.d.comb += one.eq(Cat(v[k] for v in values))
        if (width - k) % 2:
            race = leading
            m.d.comb += top[k].eq((race & one).any())
        else:
            m.d.comb += top[k].eq(Mux(top[k + 1], (race & bits[k + 1] & one).any(), (race & one).any()))
        left = Signal(n, name=f"{name}_left{k}")
        m.d.comb += left.eq(leading & (one | ~found))
        if k >= at:
            less = Signal(n, name=f"{name}_less{k}")
            m.d.comb += less.eq((leading & ~one & found) | (below & one & ~found))
            equal, below = left, less
        leading = left
    return comb(m, name, Cat(top)), equal, below
