"""Tables of constants as logic."""

from collections.abc import Sequence

from amaranth import Const, Module, Mux, Signal, Value


def table(m: Module, entries: Sequence[int], index: Value, name: str) -> Signal:
    """Entry `index` of a table of 2^len(index) non-negative integers, as a named signal as wide as the largest.

    Each bit is a decision diagram on the bits of the index, upper bits first. Its nodes are multiplexers that all bits
    share. For a smooth function that takes the same area as a synthesised ROM, and a hundredth of its text.
    """
    out = Signal(max(1, *(int(e).bit_length() for e in entries)), name=name)
    select = Signal(len(index), name=f"{name}_index")
    m.d.comb += select.eq(index)
    nodes: dict[tuple[int, ...], Value] = {}

    def node(column: tuple[int, ...]) -> Value:
        """The bit that is `column[i]` at i, the value of the lower bits of the index."""
        half = len(column) // 2
        if len(set(column)) == 1:
            return Const(column[0], 1)
        if column[:half] == column[half:]:
            return node(column[:half])
        if column not in nodes:
            low, high = node(column[:half]), node(column[half:])
            bit = Signal(name=f"{name}_{len(nodes)}")
            m.d.comb += bit.eq(Mux(select[half.bit_length() - 1], high, low))
            nodes[column] = bit
        return nodes[column]

    for k in range(len(out)):
        m.d.comb += out[k].eq(node(tuple(int(e) >> k & 1 for e in entries)))
    return out
