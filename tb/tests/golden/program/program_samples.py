"""Small programs of an LXE."""

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.vector import Bank, Format, Op, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.program.isa import Instruction, LoadTo, LxeFormat, Opcode, vector
from openvrex.golden.program.lxe_model import Lxe, Memory, Region

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=32, depth=16, i_depth=64)


SIZE = FMT.word_bytes


X, W, Y = 0x1000, 0x8000, 0x20000  # regions


def op(name: str, **values) -> Instruction:
    return Instruction(Opcode[name], values)


def lxe(fmt: LxeFormat = FMT) -> Lxe:
    return Lxe(fmt, Memory([Region("x", X, 0x1000), Region("w", W, 0x4000), Region("y", Y, 0x1000)]))


def take(words: int, keep: int = FMT.lanes, **fields) -> Instruction:
    """FP32 words of the MUL queue to bank C."""
    v = Vector(a=Source.STREAM, wide=1, words=words - 1, keep=keep - 1, write=Bank.B | Bank.C)
    return vector(v, **fields)


def put(words: int, keep: int = FMT.lanes, form: Format = Format.WIDE, at: int = 0, **fields) -> Instruction:
    """Words of a bank to the output."""
    return vector(Vector(op=Op.STORE, words=words - 1, keep=keep - 1, format=form, addr_b=at, addr_c=at), **fields)


def bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return to_bf16(rng.normal(size=shape))


def load_x(rows: int, words: int, addr: int = X, **fields) -> Instruction:
    values = {"rows": rows - 1, "words": words - 1, "stride": words * SIZE, "step": words, "addr": addr}
    return op("LOAD", target=LoadTo.X, **values | fields)


def load_w(rows: int, words: int, addr: int = W, **fields) -> Instruction:
    values = {"rows": rows - 1, "words": words - 1, "stride": words * SIZE, "step": words, "addr": addr}
    return op("LOAD", target=LoadTo.W, **values | fields)


def mul(rows: int, tiles: int, chunks: int, keep: int = FMT.lanes, **fields) -> Instruction:
    values = {"rows": rows - 1, "tiles": tiles - 1, "chunks": chunks - 1, "keep": keep - 1, "x_step": chunks}
    return op("MUL", **values | {"start": 1, "end": 1} | fields)


def store(rows: int, words: int, addr: int = Y, **fields) -> Instruction:
    return op("STORE", rows=rows - 1, words=words - 1, addr=addr, **fields)
