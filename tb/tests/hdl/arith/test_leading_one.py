"""Numbers go up until their leading one is at the top: every number of small widths, beside shifts of integers."""

from collections.abc import Callable

import pytest
from amaranth import Module, Signal, Value

from openvrex.hdl.arith.leading_one import halved, lifted
from openvrex.tb.library.simulated import simulated


def every(width: int, shifts: Callable[[Module, Value], tuple[Value, Value]]) -> list[tuple[int, int]]:
    """What `shifts` makes of every number of `width` bits."""
    m, x, out = Module(), Signal(width), []
    shifted, count = shifts(m, x)

    async def bench(ctx):
        for number in range(1 << width):
            ctx.set(x, number)
            out.append((ctx.get(shifted), ctx.get(count)))

    simulated(m, bench)
    return out


def wanted(width: int, step: int, most: int) -> list[tuple[int, int]]:
    """The same of integers that go up by whole steps, at most by so many; a zero goes up by the most."""
    ups = [min((width - x.bit_length()) // step, most) if x else most for x in range(1 << width)]
    return [(x << step * up & (1 << width) - 1, up) for x, up in enumerate(ups)]


@pytest.mark.parametrize(
    ("width", "step", "most"), [(1, 1, 0), (3, 1, 2), (8, 1, 7), (10, 1, 7), (9, 2, 4), (10, 4, 2), (7, 8, 0)]
)
def test_lifted(width, step, most):
    """Also where the number is no multiple of steps, and where its leading one may be more than 7 steps down."""
    assert every(width, lambda m, x: lifted(m, "x", x, step)) == wanted(width, step, most)


@pytest.mark.parametrize(("width", "steps"), [(1, [1]), (8, [4, 2, 1]), (10, [8, 4, 2, 1]), (10, [2, 1]), (10, [8, 4])])
def test_halved(width, steps):
    """Also steps that do not reach the last bit, and those that leave the leading one among the highest bits."""
    up = [(shifted, steps[-1] * up) for shifted, up in wanted(width, steps[-1], sum(steps) // steps[-1])]
    assert every(width, lambda m, x: halved(m, "x", x, steps)) == up
