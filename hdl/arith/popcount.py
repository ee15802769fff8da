"""Population count."""

from amaranth import Cat, Module, Signal, Value, ValueLike


def popcount(m: Module, bits: ValueLike, name: str) -> Signal:
    """The number of ones in `bits`, as a named signal of ceil(log2(n + 1)) bits.

    Full adders compress each weight's bits, those known first. So the low bits of the count come first, and carries
    hardly ripple.
    """
    source = Signal(len(bits), name=f"{name}_bits")
    m.d.comb += source.eq(bits)
    total = Signal(len(source).bit_length(), name=name)
    column, sums, adders = list(source), list[Value](), 0
    while column:
        carries = []
        while len(column) > 1:
            added = Signal(2, name=f"{name}_{adders}")
            m.d.comb += added.eq(_full_adder(*column[:3]))
            column, carries, adders = [*column[3:], added[0]], [*carries, added[1]], adders + 1
        sums += column
        column = carries
    m.d.comb += total.eq(Cat(sums))
    return total


def _full_adder(a: Value, b: Value, c: Value | None = None) -> Value:
    """Sum and carry of two or three bits."""
    half = a ^ b
    return Cat(half, a & b) if c is None else Cat(half ^ c, (a & b) | (half & c))
