"""Programs whose registers come from numbers of the VPE: rows of a table by number, and loops that run or do not."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import Bank, Format, Source
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.isa import Instruction, LoadTo, LxeFormat, Opcode, Queue, StoreTo, to_register, vector
from openvrex.golden.program.lxe_model import Lxe, Memory, Region
from openvrex.golden.program.recipes import imm

PAGE = 4096
NUMBERS, TABLE, OUT, FLAGS = (k * PAGE for k in range(4))  # addresses
AT, TO, FLAG, BASE, ROW, RUNS = range(1, 7)  # registers: the next number, result and value, the table, what is computed
SET = 3  # semaphore: a register is set
OFFSET = imm(float(1 << 23))


class Numbers:
    """A golden LXE with a table of rows, numbers and values; `stored` has the registers that its STOREs have set."""

    def __init__(self, fmt: LxeFormat, table: np.ndarray, numbers: Sequence[int], values: np.ndarray):
        sizes = (("numbers", NUMBERS), ("table", TABLE), ("out", OUT), ("values", FLAGS))
        self.memory = Memory([Region(name, base, PAGE) for name, base in sizes])
        self.lxe, self.fmt = Lxe(fmt, self.memory), fmt
        self.memory.put(TABLE, table.astype(BF16))
        self.memory.put(NUMBERS, np.repeat(np.asarray(numbers, np.float32)[:, None], fmt.lanes, axis=1))
        self.memory.put(FLAGS, np.repeat(np.asarray(values, np.float32)[:, None], fmt.lanes, axis=1))
        self.memory.put(OUT, np.zeros(PAGE // 2, BF16))
        self.stored: list[dict[int, int]] = []
        self.lxe.number = partial(self._number, self.lxe.number)  # type: ignore[method-assign]

    def _number(self, plain: Any, i: Any, *word: Any) -> None:
        plain(i, *word)
        self.stored.append({i["to"]: self.lxe.registers[i["to"]]} if i["to"] else {})

    @property
    def registers(self) -> dict[int, int]:
        """Values of the registers before a program."""
        return {AT: NUMBERS, TO: OUT, FLAG: FLAGS, BASE: TABLE}


def number(address: int, offset: dict[str, Any], *store: Instruction) -> list[Instruction]:
    """Load an FP32 word from R[address], apply an operation to it, and store it by `store`."""
    words = VectorInstruction(a=Source.STREAM, wide=1, write=Bank.C, words=0, keep=0, **offset)
    return [
        Instruction(Opcode.LOAD, {"target": LoadTo.VECTOR, "wide": 1, "base": address}),
        vector(words, source=Queue.LOAD),
        vector(VectorInstruction(op=VectorOp.STORE, format=Format.WIDE)),
        *store,
        Instruction(Opcode.SYNC, {"wait": 1 << SET}),
    ]


def rows(fmt: LxeFormat, count: int, shift: int, add: int = 0, threshold: float | None = None) -> list[Instruction]:
    """For each of `count` numbers n, copy row n of the table behind `add` bytes to the next row of the result.

    shift : a row of the table has 2^shift bytes
    threshold : copy only where the value of the number is above it; the other rows of the result stay
    """
    word = fmt.word_bytes
    wide = 2 * word  # bytes of a word of FP32 numbers
    # 2^23 + 1 where the value is above the threshold: the larger of the sign of its difference and zero.
    copy = [
        Instruction(Opcode.LOAD, {"target": LoadTo.VECTOR, "base": ROW}),
        vector(VectorInstruction(a=Source.STREAM, write=Bank.B, words=0, keep=fmt.lanes - 1), source=Queue.LOAD),
        vector(VectorInstruction(op=VectorOp.STORE, keep=fmt.lanes - 1, format=Format.HALF)),
        Instruction(Opcode.STORE, {"target": StoreTo.MEMORY, "base": TO}),
    ]
    body = number(AT, {"c": Source.IMMEDIATE, "imm_c": OFFSET}, to_register(ROW, BASE, add, shift, signal=1 << SET))
    if threshold is not None:
        above = {"c": Source.IMMEDIATE, "imm_c": imm(-threshold)}
        body += above_zero(above)
        copy = [Instruction(Opcode.LOOP, {"len": RUNS}), *copy, Instruction(Opcode.END, {})]
    body += copy
    for register, step in ((AT, wide), (FLAG, wide), (TO, word)):
        body.append(Instruction(Opcode.ADD, {"to": register, "a": register, "imm": step}))
    out = [Instruction(Opcode.LOOP, {"count": count}), *body, Instruction(Opcode.END, {})]
    out.append(Instruction(Opcode.HALT, {}))
    return linked(out)


def above_zero(above: dict[str, Any]) -> list[Instruction]:
    """RUNS = 1 if the value at R[FLAG] less the threshold is above zero, else 0.

    A product with 2^100 makes it large, the smaller of it and 1 is at most 1, the larger of that and 0 at least 0.
    """
    one, zero = (
        VectorInstruction(op=op, a=Source.BANK, c=Source.IMMEDIATE, imm_c=imm(x), write=Bank.A | Bank.C, keep=0)
        for op, x in ((VectorOp.MIN, 1.0), (VectorOp.MAX, 0.0))
    )
    big = VectorInstruction(a=Source.BANK, b=Source.IMMEDIATE, imm_b=imm(2.0**100), write=Bank.A | Bank.C, keep=0)
    last = VectorInstruction(a=Source.BANK, c=Source.IMMEDIATE, imm_c=OFFSET, write=Bank.C, keep=0)
    out = number(FLAG, above, to_register(RUNS, signal=1 << SET))
    out[1] = vector(
        VectorInstruction(a=Source.STREAM, wide=1, write=Bank.A | Bank.C, keep=0, **above), source=Queue.LOAD
    )
    return [*out[:2], vector(big), vector(one), vector(zero), vector(last), *out[2:]]


def linked(program: list[Instruction]) -> list[Instruction]:
    """A program whose LOOPs name their ENDs."""
    out, open_ = list(program), []
    for k, i in enumerate(program):
        if i.op == Opcode.LOOP:
            open_.append(k)
        elif i.op == Opcode.END:
            at = open_.pop()
            out[at] = Instruction(Opcode.LOOP, program[at].values | {"end": k})
    return out
