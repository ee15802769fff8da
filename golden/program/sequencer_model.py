"""Golden model of the LXE's sequencer: turns a program into the instructions that the engines receive.

`sequence` executes loops and registers, replaces counts and addresses that come from registers, and checks that every
instruction stays within the scratchpads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from openvrex.golden.arithmetic.dot import CHUNKS
from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import Swap
from openvrex.golden.program.isa import (
    ADDR_BITS,
    LOOPS,
    PAYLOAD,
    REGISTERS,
    SEMAPHORE_BITS,
    SEMAPHORES,
    VECTOR,
    Instruction,
    LoadTo,
    LxeFormat,
    Opcode,
    Retrieve,
    Status,
    StoreTo,
    expanded_places,
    expands,
    sets_register,
    unpacks,
)

COUNTS = {  # fields that are encoded as one less than the number they stand for
    Opcode.LOAD: ("rows", "words"),
    Opcode.MUL: ("rows", "tiles", "chunks", "keep"),
    Opcode.VECTOR: ("words", "keep"),
    Opcode.STORE: ("rows", "words"),
    Opcode.RETRIEVE: ("rows",),
}


class LxeError(ValueError):
    """A program that cannot run.

    pc : index of the instruction
    reason : the message without the instruction's name
    status : the status that the hardware reports; None where it notices nothing, such as a number never written
    """

    def __init__(self, pc: int, op: Opcode, reason: str, status: Status | None = None):
        super().__init__(f"instruction {pc} ({op.name}): {reason}")
        self.pc, self.reason, self.status = pc, reason, status


@dataclass(frozen=True)
class Issue:
    """An instruction as an engine receives it. `issue["rows"]` is the number of rows, not one less.

    counts : rows, words, tiles, chunks and keep, as far as the instruction has them, as they count
    addr : the byte address, with the base register added
    skip : whether the instruction only waits and signals, because its count is 0 or less
    """

    pc: int
    instruction: Instruction
    counts: dict[str, int]
    addr: int = 0
    skip: bool = False

    def __getitem__(self, name: str) -> int:
        return self.counts[name] if name in self.counts else self.instruction[name]

    @property
    def op(self) -> Opcode:
        """The opcode."""
        return self.instruction.op

    @cached_property
    def vector(self) -> VectorInstruction:
        """The VPE's instruction that a VECTOR carries, with its counts resolved."""
        counts = {name: self.counts[name] - 1 for name in ("words", "keep")}
        return VectorInstruction(**{n.removeprefix("v_"): self.instruction[n] for n in VECTOR} | counts)

    def check_counter(self, s: int, count: int) -> None:
        """Raise `LxeError` for a semaphore that this instruction signals too often."""
        if count >> SEMAPHORE_BITS:
            reason = f"signals semaphore {s} to {count}: a counter has {SEMAPHORE_BITS} bits: wait in between"
            raise self.error(reason, Status.SEMAPHORE)

    def error(self, reason: str, status: Status | None = None) -> LxeError:
        """An error that names this instruction, for the caller to raise."""
        return LxeError(self.pc, self.op, reason, status)


def sequence(program: Sequence[Instruction], registers: list[int], fmt: LxeFormat) -> Iterator[Issue]:
    """Yield all instructions in the order of issue, HALT last. ENDs that neither wait nor signal are left out.

    `registers` are the 16 values; the program changes them as it runs. The caller sets the results of a RETRIEVE before
    it takes the next instruction. Raises `LxeError` for faults that the hardware reports as OPCODE or RANGE, and for a
    semaphore that two engines wait for.
    """
    check_program(program, fmt)
    known: dict[int, Issue] = {}  # issues that need no register, by instruction
    loops: list[list[int]] = []  # first instruction, END, rounds left
    pc = 0
    while True:
        if pc >= len(program):
            raise LxeError(
                pc - 1,
                program[-1].op,
                "the program ends without a HALT: add one as its last instruction",
                Status.OPCODE,
            )
        i = program[pc]
        if i.op in COUNTS:
            if pc not in known or i["len"] or i["base"]:
                known[pc] = resolve(pc, i, registers, fmt)
            yield known[pc]
            pc += 1
            continue
        if i.op != Opcode.END or i["wait"] or i["signal"]:
            yield Issue(pc, i, {})
        if i.op == Opcode.HALT:
            return
        if i.op in (Opcode.SET, Opcode.ADD):
            if i["to"]:
                registers[i["to"]] = (i["imm"] + (registers[i["a"]] if i.op == Opcode.ADD else 0)) % (1 << ADDR_BITS)
        elif i.op == Opcode.LOOP:
            rounds, end = _rounds(pc, i, registers, fmt), i["end"]
            if not pc < end < len(program) or program[end].op != Opcode.END:
                raise LxeError(pc, i.op, f"end={end}: must be the index of an END behind the LOOP", Status.OPCODE)
            if len(loops) == LOOPS:
                raise LxeError(pc, i.op, f"more than {LOOPS} loops inside each other", Status.OPCODE)
            if rounds:
                loops.append([pc + 1, end, rounds])
            else:
                pc = end
        elif i.op == Opcode.END:
            if not loops or loops[-1][1] != pc:
                raise LxeError(pc, i.op, "is not the END of the innermost LOOP", Status.OPCODE)
            loops[-1][2] -= 1
            if loops[-1][2]:
                pc = loops[-1][0]
                continue
            loops.pop()
        pc += 1


def register_values(given: dict[int, int]) -> list[int]:
    """The 16 registers with the given values modulo 2^40, 0 where none is given; R0 is always 0."""
    return [given.get(r, 0) % (1 << ADDR_BITS) if r else 0 for r in range(REGISTERS)]


def check_program(program: Sequence[Instruction], fmt: LxeFormat) -> None:
    """Raise `LxeError` for a program that no registers make right.

    It is empty or too long, has a HALT that signals, a semaphore with two waiters, or leaves a RETRIEVE that signals.
    """
    if not program:
        raise LxeError(0, Opcode.HALT, "is missing: the program is empty: add a HALT", Status.OPCODE)
    if len(program) > fmt.i_depth:
        reason = f"the program has {len(program)} instructions, the program memory i_depth = {fmt.i_depth}: use loops"
        raise LxeError(fmt.i_depth, program[fmt.i_depth].op, reason)
    waits: dict[int, tuple[int, Opcode]] = {}
    for pc, i in enumerate(program):
        if i.op == Opcode.HALT and i["signal"]:
            raise LxeError(pc, i.op, "must not signal: no instruction of this program can wait for it")
        if i.op == Opcode.HALT and i["leave"]:
            last = next((x for x in reversed(program[:pc]) if x.op == Opcode.RETRIEVE), None)
            if not last or last["action"] != Retrieve.FETCH or last["signal"]:
                raise LxeError(pc, i.op, "leave: the last RETRIEVE must be a FETCH that signals no semaphore")
        who = i.op if i.op in COUNTS else Opcode.SYNC  # the sequencer
        for s in bits(i["wait"]):
            first, other = waits.setdefault(s, (pc, who))
            if other != who:
                reason = f"waits for semaphore {s}, as instruction {first} ({program[first].op.name}) does: only one "
                raise LxeError(pc, i.op, reason + "engine, or the sequencer, may wait for a semaphore")


def bits(mask: int) -> list[int]:
    """Numbers of the semaphores in a mask."""
    return [s for s in range(SEMAPHORES) if mask >> s & 1]


def resolve(pc: int, i: Instruction, registers: Sequence[int], fmt: LxeFormat) -> Issue:
    """The issue of one instruction for an engine, with the values of the registers.

    Raises `LxeError` if its counts or its extents in the scratchpads do not fit.
    """
    counts = {name: i[name] + 1 for name in COUNTS[i.op]}
    n = _count(i, registers, fmt)
    if n is not None:
        words, rest = -(-n // fmt.lanes), (n - 1) % fmt.lanes + 1
        if i.op in (Opcode.LOAD, Opcode.STORE, Opcode.RETRIEVE):
            counts |= {"rows": words if i["unit"] or i["pair"] else n}
        elif i.op == Opcode.VECTOR:
            counts |= {"words": words, "keep": rest}
        else:
            counts |= {"chunks": words, "keep": rest} if i["unit"] else {"tiles": words}
    issue = Issue(
        pc,
        i,
        counts,
        (registers[i["base"]] + i["addr"]) % (1 << ADDR_BITS) if "base" in PAYLOAD[i.op] else 0,
        n is not None and n <= 0,
    )
    if not issue.skip:
        _check_extents(issue, fmt)
    return issue


def _count(i: Instruction, registers: Sequence[int], fmt: LxeFormat) -> int | None:
    """The signed count n = R[len] + add, rounded up with `pair`; None if the instruction names no register."""
    if not i["len"]:
        return None
    half, pair = 1 << ADDR_BITS - 1, 2 * fmt.lanes
    n = (registers[i["len"]] + half) % (2 * half) - half + i["add"]
    return -(-n // pair) * pair if i["pair"] else n


def _rounds(pc: int, i: Instruction, registers: Sequence[int], fmt: LxeFormat) -> int:
    n = _count(i, registers, fmt)
    if n is None:
        return i["count"]
    size = 2 * fmt.lanes if i["pair"] else fmt.lanes if i["unit"] else 1
    rounds = max(0, -(-n // size))
    if rounds >> 16:
        raise LxeError(pc, i.op, f"count {rounds} does not fit: at most {(1 << 16) - 1}", Status.RANGE)
    return rounds


def _check_extents(i: Issue, fmt: LxeFormat) -> None:
    def need(ok: bool, reason: str) -> None:
        if not ok:
            raise i.error(reason, Status.RANGE)

    def within(name: str, what: str, first: int, words: int, depth: int) -> None:
        need(
            first + words <= depth,
            f"{name}={first}: words {first} to {first + words - 1} are outside {what} of {depth} words",
        )

    for name, count in i.counts.items():
        field = PAYLOAD[i.op][name]
        need(count <= 1 << field, f"{name} {count} does not fit: at most {1 << field}")
    if "keep" in i.counts:
        need(i["keep"] <= fmt.lanes, f"keep={i['keep'] - 1}: must be below lanes = {fmt.lanes}")
    if i.op in (Opcode.LOAD, Opcode.STORE):
        to, step, rows, words, target = i["to"], i["step"], i["rows"], i["words"], i["target"]
        if i.op == Opcode.STORE and target == StoreTo.SCORE:
            return
        through = target == (LoadTo.VECTOR if i.op == Opcode.LOAD else StoreTo.MEMORY)
        if i.op == Opcode.STORE and fmt.to_register and sets_register(i):
            need(rows == words == 1, f"takes {rows} rows of {words} words: a register takes one word")
            need(to < REGISTERS, f"to={to}: must be below {REGISTERS} for a register")
            need(step < 32, f"step={step}: must be below 32, a shift of a register's number")
            return
        packed = i.op == Opcode.LOAD and fmt.weights and unpacks(i)
        coded = packed or (i.op == Opcode.LOAD and bool(fmt.codes) and expands(i))
        newest = i.op == Opcode.STORE and target == StoreTo.HASH and fmt.newest
        need(through or coded or newest or not i["wide"], "wide: FP32 words go between memory and VPE only: set wide=0")
        if i.op == Opcode.STORE and target == StoreTo.HASH:
            return
        size = fmt.word_bytes
        for name, value in (("addr", i.addr), ("stride", 0 if packed else i["stride"])):
            need(value % size == 0, f"{name}={value:#x}: must be a multiple of a word's {size} bytes")
        if through:
            return
        ends = not packed or Packing.of(i["stride"]).fits(rows)
        need(ends, f"rows={rows - 1}: the last word must hold weights, not scales")
        if i.op == Opcode.LOAD and target == LoadTo.W:
            size = int(expanded_places(i, fmt)[2].max()) - to + 1 if coded else (rows - 1) // fmt.lanes * step + words
            within("to", "W", to, size, fmt.w_depth)
        elif i.op == Opcode.LOAD and target == LoadTo.COLUMN:
            need(words == 1, f"words={words - 1}: must be 0, as a row of a COLUMN is one word")
            within("to", "W", to, (rows - 1) // fmt.lanes + 1, fmt.w_depth)
        else:
            within("to", "X", to, (rows - 1) * step + words, fmt.x_depth)
    elif i.op == Opcode.MUL:
        chunks = i["chunks"]
        need(chunks <= CHUNKS, f"chunks {chunks} does not fit: a sum has at most {CHUNKS}")
        need(i["rows"] <= fmt.x_depth, f"rows {i['rows']} does not fit: at most the {fmt.x_depth} words of X")
        within("w", "W", i["w"], i["tiles"] * chunks, fmt.w_depth)
        within("x", "X", i["x"], (i["rows"] - 1) * i["x_step"] + chunks, fmt.x_depth)
        single = i["rows"] == i["tiles"] == 1
        need(
            single or bool(i["start"] and i["end"]),
            "a sum over several MULs (start=0 or end=0) needs one row and one tile",
        )
        need(fmt.halves or not i["halves"], "halves: this DPE takes sums of whole words only: set dpe.halves=true")
    elif i.op == Opcode.VECTOR:
        need(i["words"] <= fmt.depth, f"words {i['words']} does not fit: at most the {fmt.depth} of a bank")
        for name in ("addr_a", "addr_b", "addr_c", "addr_d"):
            within(name, "a bank", i[name], 1, fmt.depth)
        top = Swap.HALF + max(1, (fmt.depth - 1).bit_length())
        most = (1 << top.bit_length()) - 1  # bits that hold `top`
        need(i["swap"] <= most, f"swap={i['swap']} does not fit: at most {most} with banks of {fmt.depth} words")
