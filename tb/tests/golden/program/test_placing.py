"""Placed values: random programs store what they store with all values apart; a bank that is full is named."""

import random

import pytest

from openvrex.golden.arithmetic.vector import Bank, Machine, Op, Step, VectorFormat
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.compiler import vector_item
from openvrex.golden.program.loop_rolling import UNPLACED, Item, Loop
from openvrex.golden.program.placing import Values, place
from openvrex.golden.program.recipes import BANK, IMMEDIATE

DEPTH = 64  # words of a bank: as UNPLACED is a multiple, addresses without a place wrap to places apart
BOTH = Bank.A | Bank.C


def program(rng: random.Random, values: Values) -> list[Item]:
    """Random uses of values in banks A and C, with loops in loops, no word of which is read before it is written."""

    def step(known: set[str]) -> Item:
        if not known or rng.random() < 0.3:
            name = rng.choice([*values])
            known.add(name)
            words, number = values[name], rng.randrange(0x4000)
            return vector_item((), a=IMMEDIATE, imm_a=number, words=len(words) - 1, write=BOTH, addr_d=words[0])
        of, to = (values[rng.choice(sorted(known))] for _ in range(2))
        many = rng.randint(1, min(len(of), len(to)))
        first = of[rng.randrange(len(of) - many + 1)]
        if rng.random() < 0.5:
            return vector_item((), op=Op.STORE, addr_c=first, words=many - 1)
        both = {"a": BANK, "addr_a": first, "c": BANK, "addr_c": first}
        return vector_item((), **both, words=many - 1, write=BOTH, addr_d=to[rng.randrange(len(to) - many + 1)])

    def some(deep: int, known: set[str]) -> list[Item]:
        out: list[Item] = []
        for _ in range(rng.randint(2, 8)):
            if not deep or rng.random() < 0.8:
                out.append(step(known))
                continue
            register = rng.randrange(2)  # which may say that no round runs
            body = some(deep - 1, set(known) if register else known)
            out.append(Loop(tuple(body), (), 0 if register else 3, register, after=tuple(some(0, known))))
        return out

    return some(2, set())


def stores(items: list[Item], rounds: int) -> list[bytes]:
    """What a program stores, if its loops with a register run so many rounds."""
    machine = Machine(VectorFormat(4, DEPTH))

    def run(some: tuple[Item, ...]) -> list[bytes]:
        out = []
        for item in some:
            if isinstance(item, Loop):
                for _ in range(rounds if item.register else item.count):
                    out += run(item.body)
                out += run(item.after)
            else:
                out += [x.data.tobytes() for x in machine.run([Step(item.vector)])]
        return out

    return run(tuple(items))


def test_a_placed_program_stores_what_it_stores_with_all_values_apart():
    """Most programs take fewer words than their values have together. One value has a place given: words 0 to 2."""
    fewer = 0
    for seed in range(20):
        rng, values, at = random.Random(seed), Values(gap=range(UNPLACED, UNPLACED + 4)), UNPLACED + 4
        for name in "abcdefgh"[: rng.randint(4, 8)]:
            values[name] = range(at, at + rng.randint(1, 5))
            at = values[name].stop
        own = {name: words for name, words in values.items() if name != "gap"} | {"given": range(3)}
        items = program(rng, own)
        wanted = [stores(items, rounds) for rounds in (0, 2)]
        for depth in (8, 12, 16, 20, 24, 32, DEPTH):
            try:
                placed = place("stage", items, values, depth)
            except ParamError:
                continue
            break
        assert [stores(placed, rounds) for rounds in (0, 2)] == wanted, seed
        fewer += depth < sum(map(len, own.values()))
    assert fewer > 10


def test_a_full_bank_is_named():
    values = Values(x=range(UNPLACED, UNPLACED + 5), y=range(UNPLACED + 5, UNPLACED + 9))
    x, y = (words[0] for words in values.values())
    fill = [vector_item((), a=IMMEDIATE, words=3, write=Bank.C, addr_d=to) for to in (x, y)]
    give = [vector_item((), op=Op.STORE, addr_c=of, words=3) for of in (x, y)]
    with pytest.raises(ParamError, match="softmax: y=4: words must be free in banks of 8, of which others hold 5"):
        place("softmax", [*fill, *give], values, 8)
    assert place("softmax", [fill[0], give[0], fill[1], give[1]], values, 8)[2].instruction["addr_d"] == 0
