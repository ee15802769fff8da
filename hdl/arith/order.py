"""Order of FP32 numbers."""

from amaranth import Module, Signal, Value


def exceeds(m: Module, x: Value, y: Value, name: str) -> Signal:
    """Whether FP32 `x` is larger than `y`, as a named signal; -0 is below +0, equal bits give either result.

    NaN with a sign is below all numbers, NaN without one above them.
    """
    above, out = Signal(name=f"{name}_above"), Signal(name=name)
    m.d.comb += [
        above.eq(x[:31] > y[:31]),
        out.eq((y[31] & ~x[31]) | ((x[31] == y[31]) & (above ^ x[31]))),
    ]
    return out
