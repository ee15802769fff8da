"""Faults in programs: an instruction dropped, a register, operand or count changed, a wait or signal missing.

`vrex dev mutate` puts faults into hardware. These are faults of whoever writes programs, which the checks of programs
must notice on a golden core: hazards and deadlocks, and results that differ from NumPy's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from openvrex.golden.arithmetic.vector import ONE, Format, Op, Source
from openvrex.golden.program.isa import Instruction, Opcode
from openvrex.golden.program.sequencer_model import bits


@dataclass(frozen=True)
class ProgramMutant:
    """A change of one instruction. fault : its kind · at : index of the instruction · program : with the change."""

    fault: str
    at: int
    program: list[Instruction]

    def __str__(self) -> str:
        return f"{self.fault}: instruction {self.at} is {self.program[self.at]}"


def _with(i: Instruction, **values: int) -> Instruction:
    return Instruction(i.op, i.values | values)


def _credit(i: Instruction) -> bool:
    """Whether it only gives a credit, which a program that needs fewer may lose, and others lack at once."""
    return i.op == Opcode.SYNC and not i["wait"]


def dropped(i: Instruction) -> Iterator[Instruction]:
    """A SYNC without semaphores takes its place. Loops stay."""
    if i.op not in (Opcode.LOOP, Opcode.END, Opcode.HALT) and not _credit(i) and (i.op != Opcode.SYNC or i["wait"]):
        yield Instruction(Opcode.SYNC, {})


def register(i: Instruction) -> Iterator[Instruction]:
    """Another register of an address."""
    names = ("a", "to") if i.op == Opcode.ADD else ("base",) if i.op in (Opcode.LOAD, Opcode.STORE) else ()
    for name in names:
        if i[name]:
            yield _with(i, **{name: i[name] % 15 + 1})


def operand(i: Instruction) -> Iterator[Instruction]:
    """Another word, scalar or sign of an operand, another word or scalar of the result, or two operands exchanged."""
    if i.op != Opcode.VECTOR:
        return
    v = i.vector
    if v.op == Op.STORE:
        name = "addr_c" if v.format == Format.WIDE else "addr_b"
        yield _with(i, **{name: i[name] + 1})
        return
    used = [name for name in "abc" if name != "b" or v.op not in (Op.MAX, Op.MIN)]
    for name in used:
        place = {Source.BANK: f"addr_{name}", Source.SCALAR: f"scalar_{name}"}.get(Source(i[name]))
        if place:
            yield _with(i, **{place: i[place] + 1 if i[place] < 15 else 0})
    if v.write:
        yield _with(i, addr_d=i["addr_d"] + 1)
    if v.reduce:
        yield _with(i, scalar_d=(i["scalar_d"] + 1) % 16)
    alike = v.op in (Op.MAX, Op.MIN) or (v.b == Source.IMMEDIATE and v.imm_b == ONE)  # then a and c are
    if not alike and v.a != Source.STREAM:
        same = {
            f"{n}{x}": i[f"{n}{y}"]
            for n in ("", "addr_", "scalar_", "imm_", "negate_", "span_")
            for x, y in ("ac", "ca")
        }
        yield _with(i, **same)
    squares = v.b == v.a and v.addr_b == v.addr_a
    if not squares:
        yield _with(i, negate_a=1 - v.negate_a)


def count(i: Instruction) -> Iterator[Instruction]:
    """A row or word less, or a round less of a loop."""
    if i.op == Opcode.LOOP and i["len"]:
        yield _with(i, add=i["add"] - 1)
    for name in ("rows", "words", "chunks", "tiles"):
        if i.op in (Opcode.LOAD, Opcode.STORE, Opcode.MUL, Opcode.VECTOR) and i.values.get(name):
            yield _with(i, **{name: i[name] - 1})


def fence(i: Instruction) -> Iterator[Instruction]:
    """A wait or a signal is missing."""
    for name in () if _credit(i) else ("wait", "signal"):
        for s in bits(i[name]):
            yield _with(i, **{name: i[name] & ~(1 << s)})


FAULTS: dict[str, Callable[[Instruction], Iterator[Instruction]]] = {
    f.__name__: f for f in (dropped, register, operand, count, fence)
}


def _of_credits(old: Instruction, new: Instruction, credits_: set[int]) -> bool:
    """Whether two instructions differ in the wait or signal of a credit."""
    changed = (old["wait"] ^ new["wait"]) | (old["signal"] ^ new["signal"])
    return old.op == new.op and any(s in credits_ for s in bits(changed))


def mutants(program: Sequence[Instruction], each: int, rng: Random) -> Iterator[ProgramMutant]:
    """At most `each` mutants of every kind of fault, at random instructions.

    A fault of a credit is left out: with one more or less, a program whose order is sound gives the same numbers.
    """
    credits_ = {s for i in program if _credit(i) for s in bits(i["signal"])}
    for fault, change in FAULTS.items():
        found = [(at, new) for at, i in enumerate(program) for new in change(i) if not _of_credits(i, new, credits_)]
        for at, new in rng.sample(found, min(each, len(found))):
            yield ProgramMutant(fault, at, [*program[:at], new, *program[at + 1 :]])
