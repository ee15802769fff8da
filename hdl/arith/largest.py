"""The largest of many numbers, from the highest bit down."""

from amaranth import Cat, Module, Signal, Value


def largest(m: Module, values: list[Value], live: Value, name: str) -> tuple[Signal, Signal]:
    """The largest of the `values` (equal widths) whose bit in `live` is set, and which of those are equal to it.

    Bit by bit, all at once: a value with a 0 where another one still in the race has a 1 drops out. Faster and smaller
    than a tree of comparators, whose every level waits for a carry. 0 if none is live.
    """
    width = len(values[0])
    top = Signal(width, name=name)
    for k in reversed(range(width)):
        bits, left = Signal(len(values), name=f"{name}_bits{k}"), Signal(len(values), name=f"{name}_left{k}")
        found = Signal(name=f"{name}_found{k}")
        m.d.comb += [
            bits.eq(Cat(v[k] for v in values) & live),
            found.eq(bits.any()),
            top[k].eq(found),
            left.eq(live & (bits | (~found).replicate(len(values)))),
        ]
        live = left
    return top, live
