"""Check bits of protected memories (`golden.arithmetic.secded`)."""

from amaranth import Cat, Const, Module, Signal, Value

from openvrex.golden.arithmetic.secded import check_bits, columns


def checks_of(m: Module, data: Value, protection: str, name: str) -> Signal:
    """The check bits of `data`, as a named signal of `golden.arithmetic.secded.check_bits` bits."""
    width = len(data)
    out = Signal(check_bits(width, protection), name=name)
    if protection == "parity":
        m.d.comb += out.eq(data.xor())
    elif protection == "secded":
        masks = [sum(1 << i for i, c in enumerate(columns(width)) if c >> k & 1) for k in range(len(out))]
        m.d.comb += [out[k].eq((data & mask).xor()) for k, mask in enumerate(masks)]
    return out


def decoded(m: Module, word: Value, width: int, protection: str, name: str) -> tuple[Value, Signal, Signal]:
    """The data of a code word, and whether one of its bits was corrected, or is wrong and could not be."""
    data = word[:width]
    corrected, detected = Signal(name=f"{name}_corrected"), Signal(name=f"{name}_detected")
    if protection == "none":
        return data, Const(0, 1), Const(0, 1)
    syndrome = Signal(len(word) - width, name=f"{name}_syndrome")
    m.d.comb += syndrome.eq(checks_of(m, data, protection, f"{name}_checks") ^ word[width:])
    if protection == "parity":
        m.d.comb += detected.eq(syndrome.any())
        return data, Const(0, 1), detected
    hits = Signal(width, name=f"{name}_hits")
    good = Signal(width, name=f"{name}_good")
    own = Cat(syndrome == 1 << k for k in range(len(syndrome)))
    m.d.comb += [
        hits.eq(Cat(syndrome == column for column in columns(width))),
        good.eq(data ^ hits),
        corrected.eq(hits.any() | own.any()),
        detected.eq(syndrome.any() & ~corrected),
    ]
    return good, corrected, detected
