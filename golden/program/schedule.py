"""Orders VECTORs by the latencies of the VPE, so that an instruction seldom waits for its operands.

`schedule` takes a straight-line program and gives another order of it that computes the same. It is a list scheduler:
of the instructions that may come next, it takes the one that can start first, and of equal ones the first of the
program. So the steps of one row or token fill the cycles in which those of another wait, if they share no word and no
register.

What keeps its order:

- two instructions of which one writes a word or a register that the other reads or writes
- all that take words of a stream, or that stand with what gives it words: a stream has one order
- all STOREs

Cycles from the first word of an instruction to that of one behind it, where the first has w words, and word j of it is
word k of the second (`golden.arithmetic.vector` has the latencies):

==============================  ====================================================================
any two                         w, or 1 if the first is a STORE, which the VPE hands on
word j is written, then read    j - k + 2 + LATENCY, or FUNCTION_LATENCY if the first has a function
a register is written           w + 1 + that latency + REDUCTION
a STORE reads, then it's written  j - k + 1
no function behind a function   w + FUNCTION_LATENCY - LATENCY
==============================  ====================================================================

A STORE waits for its words while others go on, but the next STORE waits for it. Words of a stream count as present.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import lru_cache

from openvrex.golden.arithmetic.vector import FUNCTION_LATENCY, LATENCY, REDUCTION, Instruction, Op, VectorFormat

Place = tuple[Hashable, int]  # a word of a bank, or a register, and the word of an instruction that needs it


@lru_cache(maxsize=1024)
def schedule(
    program: tuple[Instruction, ...], fmt: VectorFormat, streams: tuple[bool, ...] = (), depth: int = 0
) -> list[int]:
    """The numbers of the program's instructions in their new order.

    streams : of each instruction, whether it keeps its order as those do that take words of a stream
    depth : words behind which addresses start again, those of a bank if not given
    """
    after = needs(program, fmt, streams or (False,) * len(program), depth)
    start: dict[int, int] = {}  # cycle of the first word
    free, stored, early = 0, 0, 0  # first cycle for another instruction, for another STORE, for one without a function

    def earliest(i: int) -> int:
        step = program[i]
        first = max(free, stored) if step.op == Op.STORE else free if fmt.is_function(step.post) else max(free, early)
        ready = max((start[j] + cycles for j, cycles in after[i].items()), default=0)
        return max(first, ready)

    while len(start) < len(program):
        able = (i for i in range(len(program)) if i not in start and start.keys() >= after[i].keys())
        cycle, i = min((earliest(i), i) for i in able)
        start[i], words = cycle, program[i].words + 1
        if program[i].op == Op.STORE:
            free, stored = free + 1, cycle + words
        else:
            free = cycle + words
            early = free + FUNCTION_LATENCY - LATENCY if fmt.is_function(program[i].post) else 0
    return list(start)


def needs(
    program: Sequence[Instruction], fmt: VectorFormat, streams: Sequence[bool], depth: int = 0
) -> list[dict[int, int]]:
    """For each instruction: those that must precede it, and the cycles from their first word to its own.

    `streams` and `depth` as in `schedule`.
    """
    written: dict[Hashable, tuple[int, int]] = {}  # of each place: who writes it, and the cycle in which it is there
    readers: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)  # who reads it since, and in which cycle
    last: dict[bool, int] = {}  # the last STORE, the last instruction with a stream
    out: list[dict[int, int]] = []
    for i, step in enumerate(program):
        need: dict[int, int] = {}

        def behind(j: int, cycles: int, need: dict[int, int] = need) -> None:
            need[j] = max(need.get(j, 0), cycles)

        reads, writes = _places(step, depth or fmt.depth)
        for place, k in reads:
            if place in written:
                by, cycle = written[place]
                behind(by, cycle - k)
        result = (FUNCTION_LATENCY if fmt.is_function(step.post) else LATENCY) + 2
        for place, k in writes:
            register = isinstance(place, int)
            for by, cycle in readers.pop(place, ()):
                behind(by, cycle + 1 - k if program[by].op == Op.STORE else 0)
            if place in written:
                by, cycle = written[place]
                behind(by, cycle if register else 0)
            written[place] = i, k + result + (REDUCTION[step.reduce] if register else 0)
        for place, k in reads:
            readers[place].append((i, k))
        if (store := step.op == Op.STORE) or step.streams or streams[i]:
            if store in last:
                behind(last[store], 0)
            last[store] = i
        out.append(need)
    return out


def _places(step: Instruction, depth: int) -> tuple[list[Place], list[Place]]:
    """The words (bank, address) and registers that an instruction reads, and those that it writes."""
    if step.op == Op.STORE:
        bank, at = step.store_places(depth)
        return [((bank, word), k) for k, word in enumerate(at.tolist())], []
    reads: list[Place] = [(register, 0) for register in step.scalars]
    for bank, at in step.places(depth):
        reads += [((bank, word), k) for k, word in enumerate(at.tolist())]
    results = list(enumerate(step.results(depth).tolist()))
    writes: list[Place] = [((bank, word), k) for bank in step.into for k, word in results]
    if step.reduce:
        writes.append((step.scalar_d, step.words))
    return reads, writes
