"""The LXE's golden model: programs against NumPy, and everything that it refuses."""

import numpy as np

from golden.dot import dot
from golden.isa import Engine, Instruction, LoadTo, LxeFormat, Opcode, vector
from golden.lxe import Lxe, Memory, Region
from golden.numerics import to_bf16
from golden.vector import Bank, Format, Op, Source
from golden.vector import Instruction as Vector

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=32, depth=16, i_depth=64)
SIZE = FMT.word_bytes
X, W, Y = 0x1000, 0x8000, 0x20000  # regions


def op(name: str, **values) -> Instruction:
    return Instruction(Opcode[name], values)


def lxe() -> Lxe:
    return Lxe(FMT, Memory([Region("x", X, 0x1000), Region("w", W, 0x4000), Region("y", Y, 0x1000)]))


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


def test_a_tiled_product():
    """Rows of 11 numbers (a ragged word) against 7 rows of weights (a ragged tile)."""
    rng = np.random.default_rng(1)
    x, w = bf16(rng, 3, 11), bf16(rng, 7, 11)
    unit = lxe()
    for addr, rows in ((X, x), (W, w)):
        unit.memory.put(addr, np.pad(rows, ((0, 0), (0, 1))))
    program = [
        load_x(3, 3),
        load_w(7, 3),
        mul(3, 2, 3, keep=3),
        take(6),
        *(put(2, 3, at=2 * k) for k in range(3)),
        store(3, 2, stride=2 * 2 * SIZE, wide=1),
        op("HALT"),
    ]
    result = unit.run(program)
    y = unit.memory.get(Y, (3, 8), np.float32)
    assert np.array_equal(y[:, :7], dot(x, w, FMT.dot))
    assert np.allclose(y[:, :7], x.astype(np.float64) @ w.astype(np.float64).T, atol=1e-5)
    assert result.words == {Engine.LOAD: 9 + 21, Engine.MUL: 6, Engine.VECTOR: 12, Engine.STORE: 6}
    assert result.chunks == 18
    assert [w.addr - Y for w in result.writes] == [0, 16, 32, 48, 64, 80]
    assert [w.known.tolist() for w in result.writes[:2]] == [[True] * 4, [True] * 3 + [False]]  # no eighth tree
    assert np.array_equal(result.writes[0].data.view(np.float32), y[0, :4])
