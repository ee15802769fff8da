"""Finds which stage of a layer each unit of a core worked on, and when, from the RTL's counters.

A unit works in the order of the program, and golden knows how much work each stage gives it. So a unit's counter tells
its stage, also where stages overlap.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np

from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.isa import Opcode, Retrieve, StoreTo, words_read
from openvrex.golden.program.sequencer_model import Issue
from openvrex.golden.program.stage_plan import Plan
from openvrex.hdl.params import CoreParams
from openvrex.hdl.retrieval.dre import Dre

__all__ = ["Span", "Unit", "spans", "stage_of", "units", "work"]


@dataclass(frozen=True)
class Unit:
    """A unit of a core: the counters that follow its work and its busy cycles, and the work of an instruction.

    `times`: how often the program sends a piece of work that is counted once.
    """

    name: str
    counters: tuple[str, ...]
    busy: tuple[str, ...]
    count: Callable[[Issue], int]
    times: int = 1


@dataclass(frozen=True)
class Span:
    """A unit's work in a stage: first and last cycle, and the busy cycles between them."""

    first: int
    last: int
    busy: int


def units(p: CoreParams) -> list[Unit]:
    """Units in the order in which table and picture show them.

    Busy means: the DPE has a chunk, the VPE a word; loader, storer and retriever have a beat on the bus. The HCU
    compares hashes, counted in the stage that takes the clusters and waits for it. A WTU core takes a word of scores;
    all cores are added.
    """
    fmt = p.lxe_format()
    beats = fmt.word_bytes // p.lxe.bus_bytes
    wtus = [f"dre.{name}" for name, _, _ in Dre.units(p.dre) if name.startswith("wtu")]

    def of(opcode: Opcode, count: Callable[[Issue], int]) -> Callable[[Issue], int]:
        return lambda i: count(i) if i.op == opcode and not i.skip else 0

    rows = of(Opcode.STORE, lambda i: i["rows"] * (i["target"] == StoreTo.SCORE))
    joins = of(Opcode.RETRIEVE, lambda i: int(i["action"] == Retrieve.CLUSTER))

    def lanes(stored: bool) -> Callable[[Issue], int]:
        return of(Opcode.VECTOR, lambda i: i["words"] * ((i.vector.op == VectorOp.STORE) == stored))

    def one(name: str, path: str, counter: str, count: Callable[[Issue], int], busy: str = "") -> Unit:
        return Unit(name, (f"{path}.{counter}",), (f"{path}.{busy or counter}",), count)

    return [
        one("DPE", "lxe.dpe", "chunks", of(Opcode.MUL, lambda i: i["rows"] * i["tiles"] * i["chunks"])),
        one("VPE", "lxe.vpe", "words", lanes(False)),
        one(
            "loader",
            "lxe.loader",
            "beats",
            of(Opcode.LOAD, lambda i: beats * words_read(i, fmt)),
        ),
        one("storer", "lxe.storer", "words", lanes(True), "beats"),
        one("retriever", "retriever", "instructions", lambda i: int(i.op == Opcode.RETRIEVE), "beats"),
        one("HCU", "dre.hcu", "tokens", joins, "compares"),
        Unit("WTU", tuple(f"{w}.rows" for w in wtus), tuple(f"{w}.words" for w in wtus), rows, p.dre.wtu.readings),
    ]


def stage_of(plan: Plan, first: str | None = None, last: str | None = None) -> list[int]:
    """The stage of every instruction of the plan's program, as an index into `plan.stages`.

    first, last : stages of a part of the program, as for `Plan.program`
    """
    names = [stage.name for stage in plan.stages]
    start = names.index(first or names[0])

    def opcodes(last: str | None) -> list[Opcode]:
        """Opcodes of the program up to a stage, without the SYNCs at its start: a part of a program may need fewer of
        them.
        """
        return list(dropwhile(lambda op: op == Opcode.SYNC, (i.op for i in plan.program(first, last))))

    whole, out = opcodes(last), []
    stop = names.index(last or names[-1])
    for k in range(start, stop + 1):
        part = opcodes(names[k])[:-1]
        assert part == whole[: len(part)], f"stage {names[k]}: its instructions are not in one piece"
        out += [k] * (len(part) - len(out))
    return [start] * (len(plan.program(first, last)) - len(whole)) + out + [stop]


def work(stages: Sequence[int], issues: Sequence[Issue], of: Sequence[Unit]) -> np.ndarray:
    """Work of every unit up to the end of every stage, [units, stages].

    stages : stage of each instruction of the program (`stage_of`)
    """
    out = np.zeros((len(of), stages[-1] + 1), np.int64)
    for i in issues:
        for u, unit in enumerate(of):
            out[u, stages[i.pc]] += unit.count(i)
    return out.cumsum(axis=1) // np.array([[unit.times] for unit in of])


def spans(ends: np.ndarray, samples: np.ndarray) -> list[list[Span | None]]:
    """Each unit's work in every stage; None where it has none.

    samples : [n, 1 + 2 * units], cycle, work of all units, busy counts of all units. `first` may be early, and `last`
        late, by the cycles between two samples.
    """
    out = []
    for u, row in enumerate(ends):
        counts, busy = samples[:, 1 + u], samples[:, 1 + len(ends) + u]
        found: list[Span | None] = []
        before = at = 0
        for end in row.tolist():
            if end == before:
                found.append(None)
                continue
            first = int(np.searchsorted(counts, before, "right")) - 1
            last = int(np.searchsorted(counts, end, "left"))
            found.append(Span(int(samples[first, 0]), int(samples[last, 0]), int(busy[last] - busy[at])))
            before, at = end, last
        out.append(found)
    return out
