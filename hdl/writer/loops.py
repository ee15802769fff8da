"""Groups of variables that would close a loop of blocks.

A block `always @*` runs again whenever a variable that it reads is assigned, also with its old value after a default.
Two blocks that read each other's variables would run for ever in an event-driven simulator, although no variable
depends on itself. Variables of one level do not depend on each other, so blocks of one level each close no loop.
A variable some of whose bits depend on others is a loop for tools that do not look at bits, such as Verilator 5.006.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from openvrex.hdl.writer.variables import Var, WriterError

Node = TypeVar("Node", bound=Hashable)


def levels(groups: list[list[Var]], comb: dict[Var, set[Var]]) -> dict[Var, int]:
    """A level for each variable of groups that loop, by which they must be split.

    comb : the variables from which each is computed without a register between
    Raises `WriterError` if variables depend on themselves, or on others of their own bits.
    """
    place: dict[Var, object] = {var: i for i, group in enumerate(groups) for var in group}
    above: dict[object, set] = {}
    for var, values in comb.items():
        above.setdefault(place.get(var, var), set()).update(place.get(v, v) for v in values if v in comb)
    out: dict[Var, int] = {}
    for loop in components(above, lambda node: above.get(node, ())):
        if len(loop) > 1 or loop[0] in above[loop[0]]:
            inside = {var for node in loop for var in (groups[node] if isinstance(node, int) else [node])}
            within = {var: comb.get(var, set()) & inside for var in inside}
            for var, *others in components(inside, within.__getitem__):  # each after those that it depends on
                if others or var in within[var]:
                    raise WriterError(f"signal {var.name}: depends on itself, or a bit of it on another; split it")
                out[var] = max((out[v] for v in within[var]), default=-1) + 1
    return out


def components(nodes: Iterable[Node], after: Callable[[Node], Iterable[Node]]) -> Iterator[list[Node]]:
    """Strongly connected components (Tarjan): each after all others that it reaches."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    open_: dict[Node, None] = {}
    for start in nodes:
        if start in number:
            continue
        number[start] = low[start] = len(number)
        open_[start] = None
        work = [(start, iter(after(start)))]
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    open_[other] = None
                    work.append((other, iter(after(other))))
                    break
                if other in open_:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    found = []
                    while True:
                        last, _ = open_.popitem()
                        found.append(last)
                        if last == node:
                            break
                    yield found
