"""Deadlocks and hazards are found, and a program without any gives the same numbers in every order of the engines."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.vector import Bank, Format, Reduce, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.program.isa import (
    ENGINE,
    SEMAPHORES,
    Engine,
    Instruction,
    LoadTo,
    Opcode,
    Queue,
    Retrieve,
    StoreTo,
    vector,
)
from openvrex.golden.program.lxe_model import Lxe, LxeError, Result, Words, simulate
from openvrex.golden.program.sequencer_model import bits, sequence
from tb.tests.golden.program.program_samples import (
    FMT,
    SIZE,
    W,
    X,
    Y,
    bf16,
    load_w,
    load_x,
    lxe,
    mul,
    op,
    put,
    store,
    take,
)

NOT_NEEDED = ["0 signal", "1 signal", "3 wait"]
X_IN, W_FULL, W_FREE, STORED, X_NEW = (1 << s for s in range(5))

# Six tiles of weights through two halves of W, results to memory; their first words into X and through the DPE again.
PROGRAM = [
    op("SYNC", signal=W_FREE),
    op("SYNC", signal=W_FREE),
    load_x(2, 2, signal=X_IN),
    op("SYNC", wait=X_IN),
    op("SET", to=1, imm=W),
    op("SET", to=2, imm=Y),
    op("LOOP", count=3, end=16),
    load_w(4, 2, addr=0, base=1, wait=W_FREE, signal=W_FULL),
    load_w(4, 2, addr=8 * SIZE, base=1, to=2, wait=W_FREE, signal=W_FULL),
    op("ADD", to=1, a=1, imm=16 * SIZE),
    mul(2, 1, 2, wait=W_FULL, signal=W_FREE),
    mul(2, 1, 2, w=2, wait=W_FULL, signal=W_FREE),
    take(4),
    put(4),
    op("STORE", base=2, rows=3, stride=2 * SIZE, wide=1, signal=STORED),
    op("ADD", to=2, a=2, imm=8 * SIZE),
    op("END"),
    *[op("SYNC", wait=STORED)] * 3,
    op("LOAD", target=LoadTo.VECTOR, addr=Y + 16 * SIZE, rows=1, stride=2 * SIZE, wide=1),
    vector(Vector(a=Source.STREAM, wide=1, words=1, keep=3, write=Bank.B), source=Queue.LOAD),
    put(2, form=Format.HALF),
    op("STORE", target=StoreTo.X, rows=1, step=1, signal=X_NEW),
    mul(2, 1, 1, wait=X_NEW),
    take(2),
    put(2),
    store(2, 1, stride=2 * SIZE, wide=1),
    op("HALT"),
]


def edited(pc: int, **values: int) -> list[Instruction]:
    """The program with fields of one instruction changed."""
    i = PROGRAM[pc]
    return [*PROGRAM[:pc], replace(i, values={**i.values, **values}), *PROGRAM[pc + 1 :]]


def without_signs() -> dict[str, list[Instruction]]:
    """The program without one of its waits or signals, each in turn."""
    return {
        f"{pc} {field}": edited(pc, **{field: 0})
        for pc, i in enumerate(PROGRAM)
        for field in ("wait", "signal")
        if i[field]
    }


class Anyhow(Lxe):
    """Executes the engines' instructions in a random order that semaphores and streams allow."""

    def race(self, program: list[Instruction], rng: np.random.Generator) -> bool:
        """Whether the program ended."""
        self._result, self._sum = Result(), []
        self._queues = [Words(q.name, FMT.lanes) for q in Queue]
        self._out = Words("output", FMT.lanes)
        work = {Engine.LOAD: self._load, Engine.MUL: self._mul, Engine.VECTOR: self._vector, Engine.STORE: self._store}
        counts = [0] * SEMAPHORES
        todo = deque(i for i in sequence(program, [0] * 16, FMT) if i.op in (*ENGINE, Opcode.SYNC))
        queues = {e: deque() for e in Engine}

        def short(i) -> bool:
            """Whether words are missing that the instruction takes."""
            if i.op == Opcode.VECTOR and i.vector.streams:
                return len(self._queues[i["source"]]) < i["words"]
            return i.op == Opcode.STORE and len(self._out) < i["rows"] * i["words"]

        while True:
            heads = [q for q in (todo, *queues.values()) if q]
            rng.shuffle(heads)
            for head in heads:
                i = head[0]
                if head is todo and i.op in ENGINE:
                    queues[ENGINE[i.op]].append(todo.popleft())
                    break
                if all(counts[s] for s in bits(i["wait"])) and not short(i):
                    head.popleft()
                    for s in bits(i["wait"]):
                        counts[s] -= 1
                    if i.op in ENGINE:
                        work[ENGINE[i.op]](i)
                    for s in bits(i["signal"]):
                        counts[s] += 1
                    break
            else:
                return not heads


def prepared(kind: type[Lxe] = Lxe) -> Lxe:
    """An LXE with numbers in its memory."""
    rng, unit = np.random.default_rng(1), kind(FMT, lxe().memory)
    unit.memory.put(X, bf16(rng, 16))
    unit.memory.put(W, bf16(rng, 6 * 32))
    return unit


def results(unit: Lxe) -> list[int]:
    return unit.memory.get(Y, 0x100, np.uint8).tolist()


def test_what_has_no_problem_gives_the_same_in_any_order():
    """One of the two credits is enough, and who waits for a LOAD knows of those before: the rest is needed."""
    unit = prepared()
    unit.run(PROGRAM)
    harmless = {name: p for name, p in without_signs().items() if not simulate(p, {}, FMT).problems()}
    assert list(harmless) == NOT_NEEDED
    for seed, program in enumerate([PROGRAM, *harmless.values()] * 6):
        other = prepared(Anyhow)
        assert other.race(program, np.random.default_rng(seed))
        assert results(other) == results(unit)


@pytest.mark.parametrize("name", sorted(without_signs().keys() - set(NOT_NEEDED)))
def test_a_missing_wait_or_signal_is_found(name):
    """A deadlock stops in every order; a hazard gives other numbers, or a read of what is not there, in some order."""
    program = without_signs()[name]
    order = simulate(program, {}, FMT)
    unit, wrong = prepared(), False
    unit.run(PROGRAM)
    for seed in range(25):
        other = prepared(Anyhow)
        try:
            ended = other.race(program, np.random.default_rng(seed))
        except LxeError:  # never written
            wrong = True
            continue
        assert ended is not bool(order.waiting)
        wrong |= ended and results(other) != results(unit)
    assert bool(order.hazards) == wrong or order.waiting


def test_a_deadlock_names_who_waits_for_what():
    order = simulate(edited(10, signal=0), {}, FMT)
    assert order.waiting == {
        "sequencer": (8, "waits for room in the queue of LOAD instructions (2 places)"),
        "LOAD": (8, "waits for semaphore 2"),
        "MUL": (11, "waits for semaphore 1"),
        "VECTOR": (12, "waits for 2 words of the queue of MUL words"),
        "STORE": (14, "waits for 4 words of the VPE's output"),
    }
    assert (
        order.problems()[0]
        == "deadlock: instruction 8 (sequencer) waits for room in the queue of LOAD instructions (2 places)"
    )


def through(words: int, **fields) -> list[Instruction]:
    """Words of the LOAD queue through bank B to the VPE's output."""
    v = Vector(a=Source.STREAM, words=words - 1, keep=3, write=Bank.B, **fields)
    return [vector(v, source=Queue.LOAD), put(words, form=Format.HALF, at=fields.get("addr_d", 0))]


def problems(*program: Instruction, **places: int) -> list[str]:
    return simulate([*program, op("HALT")], {}, FMT, **places).problems()


def load_v(words: int, addr: int = X, **fields) -> Instruction:
    return op("LOAD", target=LoadTo.VECTOR, words=words - 1, addr=addr, **fields)


def test_words_carry_order_through_the_vpe():
    """A row stored where it came from is ordered word by word; one word further it is not."""
    assert problems(load_v(4), *through(4), store(1, 4, addr=X)) == []
    assert problems(load_v(4), *through(4), store(1, 4, addr=X - SIZE)) == []  # each word after its load
    late = problems(load_v(4), *through(4), store(1, 4, addr=X + SIZE))
    assert late == [
        "instruction 3 (STORE) and instruction 0 (LOAD) both use memory at 0x1008, and nothing orders them: let STORE "
        "wait for a semaphore that LOAD signals"
    ]
    wide = [load_v(1, wide=1), vector(Vector(a=Source.STREAM, wide=1, keep=3, write=Bank.C), source=Queue.LOAD), put(1)]
    assert problems(*wide, store(1, 1, addr=X, wide=1)) == []
    assert len(problems(*wide, load_x(1, 1, addr=X + 3 * SIZE), store(1, 1, addr=X + 2 * SIZE, wide=1))) == 1
    # What is stored was written before the last words were taken, so it says nothing about them.
    take_more = [load_v(1), *through(1)[:1], load_v(2, X + 0x100), *through(2, addr_d=4)[:1]]
    assert problems(*take_more, put(1, form=Format.HALF, at=4), store(1, 1, addr=X + 0x100)) == []
    assert problems(*take_more, put(1, form=Format.HALF), store(1, 1, addr=X)) == []
    assert len(problems(*take_more, put(1, form=Format.HALF), store(1, 1, addr=X + 0x100))) == 1


def test_vectors_that_write_no_bank():
    """Of the stream, and of a bank: their words are taken all the same."""
    top = Vector(a=Source.STREAM, words=1, keep=3, reduce=Reduce.MAX)
    assert problems(load_v(2), vector(top, source=Queue.LOAD), vector(replace(top, a=Source.BANK))) == []


def test_rows_of_a_mul_are_ordered_one_by_one():
    """A result stored into X may overwrite its own row once all tiles have been multiplied, and no later row."""
    start = [op("SYNC", signal=1), load_x(4, 1, wait=1, signal=2), load_w(4, 1, signal=4), op("SYNC", wait=6)]
    back = [op("STORE", target=StoreTo.X, rows=3, step=1)]
    outs = [take(4), put(4, form=Format.HALF)]
    assert problems(*start, mul(4, 1, 1), *outs, *back) == []
    assert len(problems(*start, mul(4, 1, 1), *outs, op("STORE", target=StoreTo.X, rows=3, step=1, to=1))) == 1
    two = [load_w(8, 1, signal=4), mul(2, 2, 1), take(4), put(4, form=Format.HALF)]
    assert len(problems(*start[:2], two[0], start[3], *two[1:], *back)) == 1  # tile 0 comes before row 0 is done
    early = [op("STORE", target=StoreTo.X), store(1, 3)]
    assert len(problems(*start[:2], two[0], start[3], *two[1:], *early)) == 1


def test_tiles_of_a_mul_are_used_to_the_last_row():
    """The first row's result is in memory, but the second may not have been multiplied: W is not free."""
    start = [op("SYNC", signal=1), load_x(2, 1, wait=1, signal=2), load_w(8, 1, signal=4), op("SYNC", wait=6)]
    rows = [mul(2, 2, 1), take(4), put(2), store(1, 2, wide=1, signal=8), put(2, at=2), store(1, 2, wide=1, signal=16)]
    again = load_w(4, 1)
    assert len(problems(*start, *rows, op("SYNC", wait=8), again)) == 1
    assert problems(*start, *rows, op("SYNC", wait=24), again) == []


def test_few_places_stop_what_many_let_pass():
    """Words that are wanted later stand in the way; so do instructions that do not fit in front of an engine."""
    start = [load_x(6, 1, signal=1), load_w(4, 1, signal=1), *[op("SYNC", wait=1)] * 2]
    turns = [mul(6, 1, 1, signal=2), load_v(1, wait=2), through(1)[0], take(6)]
    assert problems(*start, *turns, words=6) == []
    assert problems(*start, *turns, words=4) == [
        "deadlock: instruction 5 (LOAD) waits for semaphore 1",
        "deadlock: instruction 4 (MUL) waits for room in the queue of MUL words (4 places) for 2 more",
        "deadlock: instruction 6 (VECTOR) waits for 1 words of the queue of LOAD words",
    ]
    many = [op("SYNC", signal=2), *[load_w(1, 1, wait=1)] * 4, op("SYNC", wait=2, signal=1)]
    many += [op("SYNC", signal=1)] * 3
    assert problems(*many, queue=4) == []
    assert (
        problems(*many, queue=3)[0]
        == "deadlock: instruction 4 (sequencer) waits for room in the queue of LOAD instructions (3 places)"
    )


def test_words_that_nobody_takes():
    assert problems(load_v(3)) == [
        "deadlock: instruction 0 (LOAD) waits for the VPE to take its words",
    ]
    known = [load_x(1, 1, signal=1), load_w(4, 1, signal=1), op("SYNC", wait=1), op("SYNC", wait=1)]
    assert problems(*known, mul(1, 1, 1)) == ["1 words are left in the queue of MUL words"]


def test_two_engines_that_signal_one_semaphore():
    """Two takes know of both; one take of neither."""
    x = [load_v(1), *through(1), op("STORE", target=StoreTo.X, signal=1)]
    both = [*x, load_w(4, 1, signal=1)]
    assert len(problems(*both, mul(1, 1, 1, wait=1), take(1))) == 2
    assert problems(*both, op("MUL", len=1, wait=1), mul(1, 1, 1, wait=1), take(1)) == []


def test_a_semaphore_above_255():
    with pytest.raises(LxeError, match="signals semaphore 1 to 256"):
        problems(op("LOOP", count=256, end=2), op("SYNC", signal=2), op("END"))


def test_a_register_that_a_retrieve_sets_is_waited_for():
    ask = op("RETRIEVE", action=Retrieve.CLUSTER, to=3, level=4, signal=1)
    assert problems(ask, op("SYNC", wait=1), op("ADD", to=1, a=3)) == []
    assert problems(ask, op("ADD", to=1, a=5), op("SYNC", wait=1)) == []
    for use in (
        op("ADD", to=1, a=4),
        op("SET", to=3),
        load_w(1, 1, base=3),
        load_w(1, 1, len=4),
        op("LOOP", len=3, end=2),
    ):
        found = problems(ask, use, op("END")) if use.op == Opcode.LOOP else problems(ask, use)
        assert len(found) == 1
        assert "instruction 1 (sequencer) and instruction 0 (RETRIEVE) both use register" in found[0]
