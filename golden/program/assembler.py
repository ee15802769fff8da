"""The LXE's assembler: turns text into checked instructions (`golden.program.isa`), and instructions into text.

A line holds an opcode and its fields as `name=value`, separated by blanks. A value holds no blanks; `;` begins a
comment. Opcodes and fields have the names of `golden.program.isa`; opcodes may be of either case. A field that is not
given has its default::

    const K=24 TILES=3             ; numbers by name; LANES and WORD (bytes of a word) are known
    sem   full free                ; semaphores by name, numbered from 0, or as given: sem full=5
    reg   weights=r1               ; registers by name

          set  to=weights imm=0x8000
          sync signal=free
          loop count=TILES         ; or len=r2, to take the count from a register
            load target=W base=weights words=K//LANES rows=LANES wait=free signal=full
            mul  chunks=K//LANES wait=full signal=free
            add  to=weights a=weights imm=K//LANES*WORD*LANES
          end                      ; the assembler enters its index in the loop
          halt

=============================  =======================================================================================
value                          fields that take it
=============================  =======================================================================================
number                         integers, constants, ``+ - * // << | ( )`` of them
semaphores: ``full,free,3``    wait, signal
register: ``r3``               len, base, a and `to` of ADD, `to` of SET, `to` and level of RETRIEVE
member of its enumeration      target (`LoadTo`, `StoreTo`), action (`Retrieve`), source (`Queue`), and those of a
                               VECTOR (`golden.arithmetic.vector`), such as ``v_op=STORE a=STREAM write=B|C post=EXP``
BF16: ``0.5``, bits: ``0x3f00``  imm_a, imm_b, imm_c; a decimal number is rounded, a hexadecimal one gives the bits
=============================  =======================================================================================

Counts are written as they count: ``rows=16`` is encoded as 15. Fields, and what they are if not given:

====================  ======================================================================  =====================
field                 meaning                                                                 default
====================  ======================================================================  =====================
wait, signal          semaphores to take from, to add to                                      none
to                    SET, ADD, RETRIEVE: the register; LOAD, STORE: first word in W or X     0
imm, a                the number, and the register it is added to                             0, r0
count, len            rounds of a LOOP; the register that gives them instead                  one of them is needed
base, addr            address in memory: R[base] + addr bytes                                 r0, 0
rows, words           rows; words of a row (of a VECTOR: of the instruction)                  1
stride, x_step        from one row to the next: bytes in memory; words of X in MUL            without a gap
step                  from one row to the next in X, from one tile to the next in W: words    without a gap
target                where a LOAD or STORE puts its words                                    W, memory
wide=1                words of memory or of the stream hold FP32 numbers (to W: expanded)     BF16
w, x, tiles, chunks   MUL: first word of weights, of activations; tiles; chunks of a row      0, 0, 1, 1
keep                  numbers used of the last word                                           all
v_op, a, b, c         VECTOR: operation, and each operand's source, such as STREAM            FMA: a * 1 + (-0)
write, format         VECTOR: banks that take the result; what its STORE sends                none, FP32 from C
====================  ======================================================================  =====================

start and end are 1, all other fields 0. Those of a VECTOR have the defaults of `golden.arithmetic.vector.Instruction`.
"""

import ast
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import Bank, Format, Op, Post, Reduce, Source, Swap
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.program.deadlock_hazard_check import Order, simulate
from openvrex.golden.program.isa import (
    HEADER,
    LOOPS,
    PAYLOAD,
    REGISTERS,
    SEMAPHORES,
    VECTOR,
    Instruction,
    LoadTo,
    LxeFormat,
    Opcode,
    Queue,
    Retrieve,
    StoreTo,
    encode,
)
from openvrex.golden.program.sequencer_model import COUNTS, LxeError, bits, check_program, resolve

ENUMS: dict[tuple[Opcode, str], type[IntEnum] | type[IntFlag]] = {
    (Opcode.LOAD, "target"): LoadTo,
    (Opcode.STORE, "target"): StoreTo,
    (Opcode.RETRIEVE, "action"): Retrieve,
    (Opcode.VECTOR, "source"): Queue,
    (Opcode.VECTOR, "v_op"): Op,
    **{(Opcode.VECTOR, name): Source for name in "abc"},
    (Opcode.VECTOR, "swap"): Swap,
    (Opcode.VECTOR, "post"): Post,
    (Opcode.VECTOR, "write"): Bank,
    (Opcode.VECTOR, "reduce"): Reduce,
    (Opcode.VECTOR, "format"): Format,
}
MASKS = ("wait", "signal")
HYBRID = (Post.EXPM1.name, Post.SOFTPLUS.name)  # which a VPE without this feature does not have
IMMEDIATES = ("imm_a", "imm_b", "imm_c")  # fields of VECTOR
PLAYED = 1 << 16  # longest program that is played to find deadlocks, in instructions with every round of its loops
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_REGISTER = re.compile(r"r(\d+)")


class AssemblyError(ValueError):
    """A line that cannot be assembled: its number (from 1), its text, and the reason with the fix."""

    def __init__(self, line: int, text: str, reason: str):
        super().__init__(f"line {line}: {text.strip()!r}: {reason}")
        self.line, self.text, self.reason = line, text, reason


@dataclass(frozen=True)
class Program:
    """An assembled program.

    instructions : in program order
    words : the same, encoded as the program memory holds them, 256 bits each
    symbols : constants, semaphores and registers by name; a register is written as "r3"
    lines : source line (from 1) of each instruction
    order : what `golden.program.deadlock_hazard_check.simulate` finds; None where counts come from registers, or
        where the program has more than `PLAYED` steps
    """

    instructions: list[Instruction]
    words: list[int]
    symbols: dict[str, int | float | str]
    lines: list[int]
    order: Order | None


def assemble(text: str, fmt: LxeFormat, queue: int = 2, words: int = 4) -> Program:
    """Assemble a text. Raises `AssemblyError` for the first line that is wrong.

    queue, words : places in the queues of instructions and of words, for the search for deadlocks

    The assembler checks opcodes, fields and values; the length of the program; loops and their nesting; semaphores;
    extents in the scratchpads and alignment. For these it takes counts from registers as 1 and base registers as
    aligned. It then plays the program and checks that it ends and leaves no word in a queue.
    """
    return _Assembler(text, fmt).run(queue, words)


def disassemble(instructions: Sequence[Instruction], fmt: LxeFormat) -> list[str]:
    """Text of instructions, one line each, with loops indented. `assemble` turns it into the same words again.

    Raises `ValueError` for a LOOP and an END that do not match.
    """
    out: list[str] = []
    ends: list[int] = []  # instruction of the END of each open loop
    for pc, i in enumerate(instructions):
        if i.op == Opcode.END and (not ends or ends.pop() != pc):
            raise ValueError(
                f"instruction {pc} (END): is not the END of the innermost LOOP: such a program has no text"
            )
        out.append("  " * len(ends) + statement(i, fmt))
        if i.op == Opcode.LOOP:
            ends.append(i["end"])
    if ends:
        raise ValueError(f"the LOOP whose end is {ends[-1]} has no END there: such a program has no text")
    return out


def statement(i: Instruction, fmt: LxeFormat) -> str:
    """The line of one instruction, with the fields that differ from their defaults."""
    values = {name: i[name] for name in _fields(i.op)}
    usual = _defaults(i.op, values, fmt)
    shown = [name for name in values if values[name] != usual[name] or (name == "count" and not values["len"])]
    return " ".join([i.op.name.lower(), *(f"{name}={_text(i.op, name, values[name], fmt)}" for name in shown)])


def _fields(op: Opcode) -> dict[str, int]:
    """Bits of the fields that a line may give, by name."""
    hidden = ("op", "end") if op == Opcode.LOOP else ("op",)
    return {name: size for name, size in (HEADER | PAYLOAD[op]).items() if name not in hidden}


def _defaults(op: Opcode, values: dict[str, int], fmt: LxeFormat) -> dict[str, int]:
    """Encoded defaults of all fields; some depend on `values`, the encoded fields that are given."""
    out = dict.fromkeys(_fields(op), 0)
    if "keep" in out:
        out["keep"] = fmt.lanes - 1
    if op in (Opcode.LOAD, Opcode.STORE):
        words = values.get("words", 0) + 1
        out |= {"step": words % (1 << 12), "stride": words * fmt.word_bytes << values.get("wide", 0)}
    elif op == Opcode.MUL:
        out |= {"start": 1, "end": 1, "x_step": (values.get("chunks", 0) + 1) % (1 << 12)}
    elif op == Opcode.VECTOR:
        usual = VectorInstruction(keep=fmt.lanes - 1)
        out |= {name: int(getattr(usual, name.removeprefix("v_"))) for name in VECTOR}
    return out


def _takes_register(op: Opcode, name: str) -> bool:
    return name in ("len", "base", "level") or (op in (Opcode.SET, Opcode.ADD, Opcode.RETRIEVE) and name in ("to", "a"))


def _text(op: Opcode, name: str, value: int, fmt: LxeFormat) -> str:
    if name in MASKS:
        return ",".join(map(str, bits(value)))
    if _takes_register(op, name):
        return f"r{value}"
    if name in IMMEDIATES:
        return bf16_text(value)
    if name in COUNTS.get(op, ()):
        return str(value + 1)
    kind = ENUMS.get((op, name))
    if kind is Bank:
        return "|".join(str(b.name) for b in Bank if b and b & value) or "NONE"
    if kind and value in list(kind) and (fmt.vector.hybrid or kind(value).name not in HYBRID):
        return str(kind(value).name)
    return hex(value) if name in ("addr", "imm", "stride") else str(value)


def bf16_text(value: int) -> str:
    """Text of BF16 bits: a decimal number of at most four digits that rounds to them, else the bits in hexadecimal."""
    number = float(np.array([value], np.uint16).view(BF16)[0])
    for digits in (1, 2, 3, 4):
        text = f"{number:#.{digits}g}"
        if value & 0x7F80 not in (0, 0x7F80) and _bf16_bits(float(text)) == value:
            return text
    return {0x0000: "0.0", 0x8000: "-0.0"}.get(value, f"{value:#06x}")


def _bf16_bits(number: float) -> int:
    return int(to_bf16(np.array([number])).view(np.uint16)[0])


class _Assembler:
    """The state of one assembly: names defined so far, instructions so far, loops that are open."""

    def __init__(self, text: str, fmt: LxeFormat):
        self.text, self.fmt = text.splitlines(), fmt
        self.constants: dict[str, int | float] = {"LANES": fmt.lanes, "WORD": fmt.word_bytes}
        self.semaphores: dict[str, int] = {}
        self.registers: dict[str, int] = {}
        self.at = 0  # number of the line that is being read
        self.program: list[tuple[Opcode, dict[str, int]]] = []  # opcode and encoded fields of each instruction
        self.lines: list[int] = []  # line of each instruction
        self.loops: list[int] = []  # instructions of the open LOOPs, outermost first

    def run(self, queue: int, words: int) -> Program:
        for number, raw in enumerate(self.text, 1):
            self.at = number
            tokens = raw.split(";")[0].split()
            if not tokens:
                continue
            head, rest = tokens[0].lower(), tokens[1:]
            if head in ("const", "sem", "reg"):
                self._define(head, rest)
            else:
                self._instruction(head, rest)
        if self.loops:
            raise self._error("the loop has no end: add `end` behind its body", self.lines[self.loops[-1]])
        if not self.program or self.program[-1][0] != Opcode.HALT:
            raise self._error("the program ends without a halt: add `halt` as its last line", max(1, len(self.text)))
        instructions = [Instruction(op, {n: v for n, v in values.items() if v}) for op, values in self.program]
        self._check(instructions)
        order = self._play(instructions, queue, words)
        symbols = self.constants | self.semaphores | {name: f"r{r}" for name, r in self.registers.items()}
        return Program(instructions, [encode(i) for i in instructions], symbols, self.lines, order)

    def _error(self, reason: str, line: int | None = None) -> AssemblyError:
        line = line or self.at
        return AssemblyError(line, self.text[line - 1] if line <= len(self.text) else "", reason)

    def _define(self, kind: str, tokens: list[str]) -> None:
        for token in tokens:
            name, given, value = token.partition("=")
            taken = self.constants.keys() | self.semaphores.keys() | self.registers.keys()
            if not _NAME.fullmatch(name) or _REGISTER.fullmatch(name):
                raise self._error(f"{name!r} is not a name: use letters, digits and _, but not r0 to r{REGISTERS - 1}")
            if name in taken:
                raise self._error(f"{name} is defined already: choose another name")
            if given and not value or not given and kind != "sem":
                raise self._error(f"{name} has no value: write {name}=value, without blanks")
            if kind == "const":
                self.constants[name] = self._number(name, value, self.constants)
            elif kind == "reg":
                self.registers[name] = self._register(name, value)
            else:
                used = set(self.semaphores.values())
                free = [s for s in range(SEMAPHORES) if s not in used]
                if not given and not free:
                    raise self._error(f"{name}: all {SEMAPHORES} semaphores have names: use one for several purposes")
                self.semaphores[name] = self._semaphore(name, value) if given else free[0]

    def _instruction(self, head: str, tokens: list[str]) -> None:
        if head.upper() not in Opcode.__members__:
            known = ", ".join(o.name.lower() for o in Opcode)
            raise self._error(f"unknown opcode {head}: use one of {known}, or const, sem, reg")
        op, pc = Opcode[head.upper()], len(self.program)
        fields = _fields(op)
        values: dict[str, int] = {}
        for token in tokens:
            name, _, value = token.partition("=")
            if name not in fields:
                raise self._error(f"unknown field {name}: {head} has {', '.join(fields)}")
            if not value:
                raise self._error(f"{name} has no value: write {name}=value, without blanks")
            if name in values:
                raise self._error(f"{name} is given twice: leave one out")
            values[name] = self._value(op, name, value)
        values = _defaults(op, values, self.fmt) | values
        if op == Opcode.LOOP:
            if not any(t.startswith(("count=", "len=")) for t in tokens):
                raise self._error("the loop gives no number of rounds: add count= or len=")
            if len(self.loops) == LOOPS:
                raise self._error(f"the loop is nested too deep: at most {LOOPS} loops may be inside each other")
            self.loops.append(pc)
        elif op == Opcode.END:
            if not self.loops:
                raise self._error("the end has no loop: remove it")
            self.program[self.loops.pop()][1]["end"] = pc
        self.program.append((op, values))
        self.lines.append(self.at)
        if pc == self.fmt.i_depth:
            raise self._error(
                f"the program is too long: the program memory holds i_depth = {pc} instructions: use loops"
            )

    def _value(self, op: Opcode, name: str, text: str) -> int:
        if name in MASKS:
            out = 0
            for part in text.split(","):
                out |= 1 << self._semaphore(name, part)
            return out
        if _takes_register(op, name):
            return self._register(name, text)
        if name in IMMEDIATES and not text.lower().startswith("0x"):
            return _bf16_bits(self._number(name, text, self.constants))
        kind = ENUMS.get((op, name))
        if kind is Post and text in HYBRID and not self.fmt.vector.hybrid:
            raise self._error(f"{name}={text}: this hardware has no such function: add the feature hybrid")
        members = {k: int(v) for k, v in kind.__members__.items()} if kind else {}
        value = self._number(name, text, self.constants | members, members)
        if not isinstance(value, int):
            raise self._error(f"{name}={text}: must be an integer")
        less = int(name in COUNTS.get(op, ()))
        size = _fields(op)[name]
        low, high = (-(1 << size - 1), (1 << size - 1) - 1) if name == "add" else (less, (1 << size) - 1 + less)
        if not low <= value <= high:
            raise self._error(f"{name}={text}: {value} does not fit, must be {low} to {high}")
        return value - less

    def _register(self, name: str, text: str) -> int:
        found = _REGISTER.fullmatch(text)
        number = self.registers.get(text, int(found[1]) if found else REGISTERS)
        if number >= REGISTERS:
            names = "".join(f", {n}" for n in self.registers)
            raise self._error(f"{name}={text}: unknown register: use r0 to r{REGISTERS - 1}{names}")
        return number

    def _semaphore(self, name: str, text: str) -> int:
        number = self.semaphores.get(text, int(text) if text.isdecimal() else SEMAPHORES)
        if number >= SEMAPHORES:
            names = "".join(f", {n}" for n in self.semaphores)
            raise self._error(
                f"{name}={text}: unknown semaphore: use 0 to {SEMAPHORES - 1}{names}, or define it: sem {text}"
            )
        return number

    def _number(self, name: str, text: str, names: dict, offered: dict | None = None) -> int | float:
        def value(node: ast.expr) -> int | float:
            match node:
                case ast.Constant(value=int() | float() as v) if not isinstance(v, bool):
                    return v
                case ast.Name(id=n) if n in names:
                    return names[n]
                case ast.Name(id=n):
                    known = ", ".join(offered or names)
                    raise self._error(f"{name}={text}: {n} is unknown: use one of {known}, or define it: const {n}=...")
                case ast.UnaryOp(op=ast.USub(), operand=x):
                    return -value(x)
                case ast.BinOp(left=a, op=o, right=b) if type(o) in _OPERATORS:
                    return _OPERATORS[type(o)](value(a), value(b))
            raise self._error(f"{name}={text}: cannot be read: use numbers, names, + - * // << | and brackets")

        try:
            return value(ast.parse(text, mode="eval").body)
        except (SyntaxError, TypeError, ValueError, ArithmeticError, MemoryError) as e:
            if isinstance(e, AssemblyError):
                raise
            raise self._error(
                f"{name}={text}: cannot be read ({e}): use numbers, names, + - * // << | and brackets"
            ) from None

    def _check(self, instructions: list[Instruction]) -> None:
        """Find semaphores that nothing signals and extents that do not fit, with counts from registers taken as 1."""
        signalled = 0
        for i in instructions:
            signalled |= i["signal"]
        try:
            check_program(instructions, self.fmt)
            for pc, i in enumerate(instructions):
                for s in bits(i["wait"] & ~signalled):
                    raise LxeError(
                        pc,
                        i.op,
                        f"waits for {self._called(s)}, which nothing signals: add signal= to what it waits for",
                    )
                if i.op in COUNTS:
                    once = [1 - i["add"] if r and r == i["len"] else 0 for r in range(REGISTERS)]
                    resolve(pc, replace(i, values={**i.values, "base": 0} if i["base"] else i.values), once, self.fmt)
        except LxeError as e:
            raise self._error(e.reason, self.lines[e.pc]) from None

    def _called(self, semaphore: int) -> str:
        names = [n for n, s in self.semaphores.items() if s == semaphore]
        return f"semaphore {names[0] if names else semaphore}"

    def _play(self, instructions: list[Instruction], queue: int, words: int) -> Order | None:
        """Play the program if its counts are known; raise `AssemblyError` if it deadlocks or leaves words."""
        rounds, total = [1], 0
        for i in instructions:
            if i["len"]:
                return None
            total += rounds[-1]
            if i.op == Opcode.LOOP:
                rounds.append(rounds[-1] * i["count"])
            elif i.op == Opcode.END:
                rounds.pop()
        if total > PLAYED:
            return None
        try:
            order = simulate(instructions, {}, self.fmt, queue, words)
        except LxeError as e:
            raise self._error(e.reason, self.lines[e.pc]) from None
        if order.waiting:
            places = [f"{who} (line {self.lines[pc]}) {self._named(why)}" for who, (pc, why) in order.waiting.items()]
            first = next(iter(order.waiting.values()))
            fix = "move what they wait for in front of them, and let it not depend on them"
            raise self._error(f"deadlock: {'; '.join(places)}: {fix}", self.lines[first[0]])
        for name, count in order.left.items():
            raise self._error(
                f"{count} words are left in {name} at the end: add an instruction that takes them", self.lines[-1]
            )
        return order

    def _named(self, why: str) -> str:
        return re.sub(r"semaphore (\d+)", lambda found: self._called(int(found[1])), why)
