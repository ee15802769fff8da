"""Carry-save addition of many words."""

from amaranth import Cat, Const, Module, Signal, Value

from openvrex.hdl.named import comb


def carry_save(
    m: Module, rows: list[Value], ones: list[Value], width: int, name: str
) -> tuple[list[Value], list[Value]]:
    """Compresses many words to two rows of `width` bits with the same sum, modulo 2^width.

    The sum includes as many of `ones` as find room. The tree of 3:2 compressors is ceil(log1.5(n / 2)) deep and has n -
    2 of them; each has room for a one-bit summand in the lowest bit of its carries. Returns the rows (fewer if there
    were fewer) and the ones left over.
    """
    ones, level = list(ones), 0
    while len(rows) > 2:
        out = []
        for j in range(0, len(rows) - 2, 3):
            a, b, c = (Signal(width, name=f"{name}_{level}_{j + k}") for k in range(3))
            half = Signal(width, name=f"{name}_{level}_h{j}")
            carry = Signal(width, name=f"{name}_{level}_c{j}")
            m.d.comb += [
                a.eq(rows[j]),
                b.eq(rows[j + 1]),
                c.eq(rows[j + 2]),
                half.eq(a ^ b),
                carry.eq((half & c) | (a & b)),
            ]
            out += [half ^ c, Cat(ones.pop() if ones else 0, carry[: width - 1])]
        rows, level = out + rows[len(rows) // 3 * 3 :], level + 1
    return rows, ones


def add(m: Module, rows: list[Value], width: int, name: str, one: bool = False) -> Signal:
    """Sum of many words, and of `one`, modulo 2^width, as a named signal: carries run along the word only once."""
    rows, _ = carry_save(m, rows, [Const(1)] if one else [], width, f"{name}_rows")
    return comb(m, name, sum(rows[1:], rows[0]), width)
