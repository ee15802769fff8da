"""Named signals: the one way to name a value where Python has no variable of that name for it.

Amaranth names a signal after the variable it is assigned to. Signals made in a loop, or by a function that several
callers share, get their names here.
"""

from amaranth import Module, Shape, Signal, ValueLike


def comb(m: Module, name: str, value: ValueLike, shape: Shape | int | None = None) -> Signal:
    """`value` as a combinational signal, of the width of `value` unless a `shape` is given."""
    s = Signal(len(value) if shape is None else shape, name=name)
    m.d.comb += s.eq(value)
    return s


def reg(
    m: Module,
    name: str,
    value: ValueLike,
    shape: Shape | int | None = None,
    reset_less: bool = True,
    when: ValueLike | None = None,
) -> Signal:
    """`value` a cycle later, in a register without a reset unless `reset_less` is False.

    when : cycles in which the register takes a value; all if not given. A clock gate needs it
    """
    s = Signal(len(value) if shape is None else shape, name=name, reset_less=reset_less)
    if when is None:
        m.d.sync += s.eq(value)
    else:
        with m.If(when):
            m.d.sync += s.eq(value)
    return s
