"""Schedules compute what the program does, and know the cycles of the VPE's time view."""

import numpy as np
import pytest

from openvrex.golden.arithmetic.vector import Bank, Instruction, Op, Post, Reduce, Source
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.program.schedule import needs, schedule
from openvrex.hdl.params import PRESETS
from openvrex.sim.units.vpe_time import VpeTime
from openvrex.tb.checks.vpe_checks import random_rows

P = PRESETS["tiny"].core.vpe
FMT = P.format
IMMEDIATE = {name: Source.IMMEDIATE for name in "abc"}
FUNCTION = {"post": Post.EXP}


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_stores_what_the_program_stores(seed):
    """Random instructions with every kind of conflict, of which a third has another place."""
    program = random_rows(P, seed, 40)[0]
    order = schedule(tuple(step.instruction for step in program), FMT)
    assert sorted(order) == list(range(len(program)))
    assert order != sorted(order)
    for got, wanted in zip(programs.run([program[k] for k in order], FMT), programs.run(program, FMT), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_what_stands_with_a_stream_keeps_its_order():
    """The second could start ahead of the first, which waits for the instruction before it."""
    first = Instruction(**IMMEDIATE, write=Bank.A)
    late, free = Instruction(**IMMEDIATE | {"a": Source.BANK}), Instruction(**IMMEDIATE)
    assert schedule((first, late, free), FMT) == [0, 2, 1]
    assert schedule((first, late, free), FMT, (False, True, True)) == [0, 1, 2]


def waits(*program: Instruction) -> int:
    return sum(VpeTime(P).run(program).waits.values())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(
            ({"write": bank, "words": 2, "addr_d": 4} | post, {"words": 1, name: Source.BANK, f"addr_{name}": 5})
            for bank, name in ((Bank.A, "a"), (Bank.B, "b"), (Bank.C, "c"))
            for post in ({}, FUNCTION)
        ),
        *(
            ({"reduce": reduce, "scalar_d": 3, "words": 1} | post, {name: Source.SCALAR, f"scalar_{name}": 3})
            for reduce, name in ((Reduce.MAX, "a"), (Reduce.SUM, "b"), (Reduce.LAST, "c"))
            for post in ({}, FUNCTION)
        ),
        ({"reduce": Reduce.SUM, "scalar_d": 3}, {"reduce": Reduce.LAST, "scalar_d": 3}),
    ],
)
def test_an_operand_is_there_in_the_cycle_that_the_schedule_knows(first, second):
    """With as many words between the two none waits; with one less the second waits for a cycle."""
    one, two = Instruction(**IMMEDIATE | first), Instruction(**IMMEDIATE | FUNCTION | second)
    between = needs((one, two), FMT, (False, False))[1][0] - one.words - 1
    assert waits(one, Instruction(**IMMEDIATE, **FUNCTION, words=between - 1), two) == 0
    assert waits(one, Instruction(**IMMEDIATE, **FUNCTION, words=between - 2), two) == 1


def test_a_store_hands_on_and_keeps_its_words():
    """The VPE takes what follows, unless that writes a word which the STORE has yet to read."""
    store = Instruction(op=Op.STORE, words=7)
    after = needs((store, Instruction(**IMMEDIATE, write=Bank.C, addr_d=4)), FMT, (False, False))
    assert after == [{}, {0: 5}]
    assert needs((store, Instruction(**IMMEDIATE, write=Bank.A, addr_d=4)), FMT, (False, False)) == [{}, {}]


def test_rows_at_once_fill_the_lanes():
    """Four rows of 16 words in turns: softmax takes them in less than two thirds of the cycles of one by one."""
    rows = np.random.default_rng(1).normal(size=(8, 16 * FMT.n)).astype(np.float32)
    some = [programs.softmax(s, 0.125, FMT, k % 4 * 16, k % 4 * 4) for k, s in enumerate(rows)]
    alone, mixed = sum(some, []), programs.interleave(some, FMT)
    one, all_ = (VpeTime(P).run([step.instruction for step in steps]) for steps in (alone, mixed))
    assert all_.words == one.words > 0.8 * all_.end
    assert 3 * all_.end < 2 * one.end
