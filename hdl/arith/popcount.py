"""Population count."""

from amaranth import Module, Signal, ValueLike


def popcount(m: Module, bits: ValueLike, name: str) -> Signal:
    """The number of ones in `bits`, as a named signal of ceil(log2(n + 1)) bits: a balanced tree of adders."""
    source = Signal(len(bits), name=f"{name}_bits")
    m.d.comb += source.eq(bits)
    nodes, level = list(source), 0
    while len(nodes) > 1:
        sums = []
        for j in range(0, len(nodes) - 1, 2):
            s = Signal(max(len(nodes[j]), len(nodes[j + 1])) + 1, name=f"{name}_{level}_{j // 2}")
            m.d.comb += s.eq(nodes[j] + nodes[j + 1])
            sums.append(s)
        nodes, level = sums + nodes[len(nodes) & ~1 :], level + 1
    total = Signal(len(source).bit_length(), name=name)
    m.d.comb += total.eq(nodes[0])
    return total
