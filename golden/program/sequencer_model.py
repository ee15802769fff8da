"""What the LXE's sequencer hands to the engines: loops, registers and counts resolved, extents checked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from golden.arithmetic.dot import CHUNKS
from golden.arithmetic.vector import Instruction as VectorInstruction
from golden.arithmetic.vector import Swap
from golden.program.isa import (
    ADDR_BITS,
    LOOPS,
    PAYLOAD,
    REGISTERS,
    SEMAPHORES,
    VECTOR,
    Instruction,
    LoadTo,
    LxeFormat,
    Opcode,
    Status,
    StoreTo,
)

COUNTS = {  # fields that are encoded less one
    Opcode.LOAD: ("rows", "words"),
    Opcode.MUL: ("rows", "tiles", "chunks", "keep"),
    Opcode.VECTOR: ("words", "keep"),
    Opcode.STORE: ("rows", "words"),
    Opcode.RETRIEVE: ("rows",),
}


class LxeError(ValueError):
    """A program that cannot run. `pc` is the index of the instruction, `reason` the message without it.

    status : what the hardware reports; None where it does not notice, such as a number that was never written
    """

    def __init__(self, pc: int, op: Opcode, reason: str, status: Status | None = None):
        super().__init__(f"instruction {pc} ({op.name}): {reason}")
        self.pc, self.reason, self.status = pc, reason, status


@dataclass(frozen=True)
class Issue:
    """An instruction as it is handed on; `issue["rows"]` counts as it is, not less one.

    counts : rows, words, tiles, chunks, keep where the instruction has them · addr : with its register added
    skip : it does nothing but wait and signal
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
        """What it does."""
        return self.instruction.op

    @cached_property
    def vector(self) -> VectorInstruction:
        """The VPE's instruction of a VECTOR."""
        counts = {name: self.counts[name] - 1 for name in ("words", "keep")}
        return VectorInstruction(**{n.removeprefix("v_"): self.instruction[n] for n in VECTOR} | counts)

    def error(self, reason: str, status: Status | None = None) -> LxeError:
        """The error to raise for this instruction."""
        return LxeError(self.pc, self.op, reason, status)


def sequence(program: Sequence[Instruction], registers: list[int], fmt: LxeFormat) -> Iterator[Issue]:
    """All instructions in the order of issue but ENDs that neither wait nor signal; HALT at the end.

    `registers` are the 16 values, changed as the program goes; whoever executes a RETRIEVE sets them, too. `LxeError`
    for what the hardware reports as OPCODE or RANGE, and for a semaphore that two engines wait for.
    """
    check_program(program, fmt)
    known: dict[int, Issue] = {}  # those without registers
    loops: list[list[int]] = []  # first instruction, END, rounds left
    pc = 0
    while True:
        if pc >= len(program):
            raise LxeError(pc - 1, program[-1].op, "the program ends without a HALT", Status.OPCODE)
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
                raise LxeError(pc, i.op, f"end={end} is not the index of an END behind it", Status.OPCODE)
            if len(loops) == LOOPS:
                raise LxeError(pc, i.op, f"more than {LOOPS} nested loops", Status.OPCODE)
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
    """The 16 registers, 0 where none is given; R0 is always 0."""
    return [given.get(r, 0) % (1 << ADDR_BITS) if r else 0 for r in range(REGISTERS)]


def check_program(program: Sequence[Instruction], fmt: LxeFormat) -> None:
    """`LxeError` for a program that is empty or too long, and for semaphores that are used where none can be."""
    if not program:
        raise LxeError(0, Opcode.HALT, "is missing: the program is empty", Status.OPCODE)
    if len(program) > fmt.i_depth:
        reason = f"the program has {len(program)} instructions, the memory (i_depth) {fmt.i_depth}: use loops"
        raise LxeError(fmt.i_depth, program[fmt.i_depth].op, reason)
    waits: dict[int, tuple[int, Opcode]] = {}
    for pc, i in enumerate(program):
        if i.op == Opcode.HALT and i["signal"]:
            raise LxeError(pc, i.op, "signals nothing: what follows it would be a new program")
        who = i.op if i.op in COUNTS else Opcode.SYNC  # the sequencer
        for s in bits(i["wait"]):
            first, other = waits.setdefault(s, (pc, who))
            if other != who:
                reason = f"waits for semaphore {s}, as instruction {first} ({program[first].op.name}) does: only one "
                raise LxeError(pc, i.op, reason + "engine, or the sequencer, may wait for a semaphore")


def bits(mask: int) -> list[int]:
    """The semaphores of a mask."""
    return [s for s in range(SEMAPHORES) if mask >> s & 1]


def resolve(pc: int, i: Instruction, registers: Sequence[int], fmt: LxeFormat) -> Issue:
    """One instruction of an engine with the registers' values; `LxeError` if its extents do not fit."""
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
    """n of an instruction whose count a register holds: signed, 40 bits; with `pair` rounded up."""
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
        need(through or not i["wide"], "wide: words of FP32 go between memory and VPE only")
        if i.op == Opcode.STORE and target == StoreTo.HASH:
            return
        size = fmt.word_bytes
        for name, value in (("addr", i.addr), ("stride", i["stride"])):
            need(value % size == 0, f"{name}={value:#x}: must be a multiple of a word's {size} bytes")
        if through:
            return
        if i.op == Opcode.LOAD and target == LoadTo.W:
            within("to", "W", to, (rows - 1) // fmt.lanes * step + words, fmt.w_depth)
        elif i.op == Opcode.LOAD and target == LoadTo.COLUMN:
            need(words == 1, f"words={words - 1}: a row of a COLUMN is one word, so 0")
            within("to", "W", to, (rows - 1) // fmt.lanes + 1, fmt.w_depth)
        else:
            within("to", "X", to, (rows - 1) * step + words, fmt.x_depth)
    elif i.op == Opcode.MUL:
        chunks = i["chunks"]
        need(chunks <= CHUNKS, f"chunks {chunks}: a sum has at most {CHUNKS}")
        need(i["rows"] <= fmt.x_depth, f"rows {i['rows']} does not fit: at most the {fmt.x_depth} words of X")
        within("w", "W", i["w"], i["tiles"] * chunks, fmt.w_depth)
        within("x", "X", i["x"], (i["rows"] - 1) * i["x_step"] + chunks, fmt.x_depth)
        single = i["rows"] == i["tiles"] == 1
        need(
            single or bool(i["start"] and i["end"]),
            "a sum over several MULs (without start or end) needs rows 1 and tiles 1",
        )
    elif i.op == Opcode.VECTOR:
        need(i["words"] <= fmt.depth, f"words {i['words']} does not fit: at most the {fmt.depth} of a bank")
        for name in ("addr_a", "addr_b", "addr_c", "addr_d"):
            within(name, "a bank", i[name], 1, fmt.depth)
        top = Swap.HALF + max(1, (fmt.depth - 1).bit_length())
        most = (1 << top.bit_length()) - 1  # bits that hold `top`
        need(i["swap"] <= most, f"swap={i['swap']} does not fit: at most {most} with banks of {fmt.depth} words")
