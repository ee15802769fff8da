"""Shifts a number's leading one to the top."""

from functools import reduce
from operator import or_

from amaranth import Cat, Const, Module, Mux, Signal, Value

from openvrex.hdl.named import comb


def lifted(m: Module, name: str, x: Value, step: int) -> tuple[Signal, Value]:
    """`x` shifted left until the leading one is among its highest `step` bits, and by how many steps: 0 to 7.

    It looks at all groups of `step` bits at once, which is faster than shifts by halves of each other. A zero, or a
    leading one more than 7 steps down, goes up by the most steps.
    """
    many = min(8, -(-len(x) // step))
    some = [comb(m, f"{name}_some{k}", x[len(x) - step * (k + 1) : len(x) - step * k].any()) for k in range(many - 1)]
    first = [comb(m, f"{name}_first{k}", one & ~Cat(some[:k]).any()) for k, one in enumerate(some)]
    return selected(m, name, x, step, [*first, comb(m, f"{name}_rest", ~Cat(some).any())])


def selected(m: Module, name: str, x: Value, step: int, first: list[Value]) -> tuple[Signal, Value]:
    """`x` shifted left by k * `step` where `first[k]` is set, one of at most 8, and k."""
    shifted = [(x << step * k)[: len(x)] & one.replicate(len(x)) for k, one in enumerate(first)]
    count = [Cat(one for k, one in enumerate(first) if k >> bit & 1).any() for bit in range(3)]
    return comb(m, name, reduce(or_, shifted)), Cat(count)


def halved(m: Module, name: str, x: Value, steps: list[int]) -> tuple[Signal, Value]:
    """`x` shifted left by each of `steps` whose bits at the top are all zero, and by how many bits in all.

    steps : powers of two, each half of the one before
    """
    taken = []
    for step in steps:
        zeros = comb(m, f"{name}_zeros{step}", ~x[-step:].any())
        x = comb(m, f"{name}_left{step}", Mux(zeros, x << step, x), len(x))
        taken = [zeros, *taken]
    return x, Cat(Const(0, steps[-1].bit_length() - 1), *taken)
