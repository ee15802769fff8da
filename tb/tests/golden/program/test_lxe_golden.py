"""The golden LXE: results of programs against NumPy, and an error for each kind of wrong program."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import Bank, Format, Machine, Op, Reduce, Source, Step
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import Engine, Instruction, LoadTo, Queue, Status, StoreTo, vector
from openvrex.golden.program.lxe_model import Lxe, LxeError, Memory, Region, play
from openvrex.golden.program.sequencer_model import Issue, resolve, sequence
from openvrex.golden.program.vpe_known_lanes import Known
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

ENGINES = Engine.LOAD, Engine.MUL, Engine.VECTOR, Engine.STORE


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
    assert [result.words[e] for e in ENGINES] == [9 + 21, 6, 12, 6]
    assert result.chunks == 18
    assert [w.addr - Y for w in result.writes] == [0, 16, 32, 48, 64, 80]
    assert [w.known.tolist() for w in result.writes[:2]] == [[True] * 4, [True] * 3 + [False]]  # no eighth tree
    assert np.array_equal(result.writes[0].data.view(np.float32), y[0, :4])


def run(*program: Instruction, registers: dict[int, int] | None = None, unit: Lxe | None = None):
    unit = unit or lxe()
    return unit, unit.run([*program, op("HALT")], registers)


def random_x(rng: np.random.Generator, unit: Lxe, words: int = 32) -> np.ndarray:
    """Numbers at the start of region x."""
    x = bf16(rng, words * FMT.lanes)
    unit.memory.put(X, x)
    return x


def stored(unit: Lxe, *shape: int, dtype=np.float32) -> np.ndarray:
    return unit.memory.get(Y, shape, dtype)


def test_columns_are_a_transposed_tile():
    """V by rows of 5 tokens, multiplied by probabilities over tokens: the trees' words are V's columns."""
    rng = np.random.default_rng(2)
    v, p, unit = bf16(rng, 5, 4), bf16(rng, 2, 5), lxe()
    unit.memory.put(W, v)
    unit.memory.put(X, np.pad(p, ((0, 0), (0, 3))))
    load = op("LOAD", target=LoadTo.COLUMN, addr=W, rows=4, stride=SIZE, to=3)
    _, result = run(
        load, load_x(2, 2), mul(2, 1, 2, keep=1, w=3), take(2), put(2), store(2, 1, stride=16, wide=1), unit=unit
    )
    assert np.array_equal(stored(unit, 2, 4), dot(p, np.ascontiguousarray(v.T), FMT.dot))
    assert result.words[Engine.LOAD] == 5 + 4


def test_steps_and_strides():
    """Rows of X two words long, three apart in X and five in memory, used by a MUL that takes every second row."""
    rng = np.random.default_rng(3)
    unit = lxe()
    x = random_x(rng, unit).reshape(-1, 4)
    w = bf16(rng, 4, 8)
    unit.memory.put(W, w)
    run(
        load_x(4, 2, stride=5 * SIZE, step=3, to=1),
        load_w(4, 2, to=7, step=0),
        mul(2, 1, 2, x=1, x_step=6, w=7),
        take(2),
        put(2),
        store(2, 1, stride=16, wide=1),
        unit=unit,
    )
    rows = np.stack([x[5 * r : 5 * r + 2].reshape(-1) for r in (0, 2)])
    assert np.array_equal(stored(unit, 2, 4), dot(rows, w, FMT.dot))


def test_larger_sums_of_halves():
    """Of a row in one MUL and in two; the parts of a sum agree on it."""
    fmt = replace(FMT, halves=True)
    rng, unit = np.random.default_rng(4), lxe(fmt=fmt)
    x, w = random_x(rng, unit).reshape(-1, 4), bf16(rng, 4, 8)
    unit.memory.put(W, w)
    parts = [mul(1, 1, 1, start=0, x=1, w=1, halves=k) for k in range(2)]
    begin = [load_x(2, 2), load_w(4, 2), mul(2, 1, 2, halves=1), mul(1, 1, 1, end=0, halves=1)]
    run(*begin, parts[1], take(3), put(3), store(3, 1, stride=16, wide=1), unit=unit)
    want = dot(x[:4].reshape(2, 8), w, fmt.dot, halves=True)
    assert np.array_equal(stored(unit, 3, 4), want[[0, 1, 0]])
    assert not np.array_equal(want, dot(x[:4].reshape(2, 8), w, fmt.dot))
    with pytest.raises(LxeError, match="goes on with the sum of instruction 3: set halves=1 as there"):
        run(*begin, parts[0], unit=unit)


@pytest.mark.parametrize("cut", [1, 2])
def test_a_sum_over_several_muls(cut):
    """A ragged word inside the sum gives the same as one padded with zeros; a number without weights stays unknown."""
    rng = np.random.default_rng(cut)
    x, w, unit = bf16(rng, 12), bf16(rng, 4, 12), lxe()
    # Large products that cancel: what shares their chunk loses its low bits.
    large = slice(4 * cut - 4, 4 * cut - 2)
    x[large] = 2.0**19
    w[:, large] = np.outer(w[:, 0], [1, -1])
    unit.memory.put(X, x)
    unit.memory.put(W, w)
    program = [
        load_x(1, 3),
        load_w(3, cut, stride=3 * SIZE, step=0),
        load_w(4, 3 - cut, stride=3 * SIZE, step=0, to=cut, addr=W + cut * SIZE),
        mul(1, 1, cut, keep=3, end=0),
        mul(1, 1, 3 - cut, start=0, x=cut, w=cut),
        take(1),
        put(1, 3),
        store(1, 1, wide=1),
    ]
    _, result = run(*program, unit=unit)
    assert result.writes[0].known.tolist() == [True, True, True, False]
    x[4 * cut - 1] = 0
    want = dot(x[None], w, FMT.dot)[0, :3]
    assert np.array_equal(stored(unit, 4)[:3], want)
    shifted = np.delete(np.arange(12), 4 * cut - 1)  # without the zero
    assert not np.array_equal(dot(x[None, shifted], w[:, shifted], FMT.dot)[0, :3], want)


@pytest.mark.parametrize(("n", "words"), [(0, 0), (-3, 0), (1, 1), (4, 1), (5, 2), (9, 3)])
def test_counts_from_registers(n, words):
    """LOAD and STORE of n rows, MUL of tiles or chunks, VECTOR, LOOP: all by the same register, `add` included."""
    rng = np.random.default_rng(4)
    unit, w, x = lxe(), bf16(rng, 12, 4), bf16(rng, 2, 12)
    unit.memory.put(W, w)
    unit.memory.put(X, x)
    registers = {1: n - 2 & (1 << 40) - 1}
    by = {"len": 1, "add": 2}
    program = [
        load_x(1, 3),
        load_w(1, 1, **by),
        op("MUL", x_step=1, start=1, end=1, keep=3, tiles=9, **by),
        take(7, **by),
        put(7, form=Format.WIDE, **by),
        op("STORE", addr=Y, stride=16, wide=1, unit=1, **by),
    ]
    _, result = run(*program, registers=registers, unit=unit)
    want = dot(x[:1, :4], w[: max(n, 0)], FMT.dot)[0]
    assert np.array_equal(stored(unit, 12)[: max(n, 0)], want)
    assert [int(result.words[e]) for e in ENGINES] == [3 + max(n, 0), words, 2 * words, words]
    if n > 0:
        assert result.writes[-1].known.tolist() == [lane <= (n - 1) % 4 for lane in range(4)]
    # The reduction: n numbers against n rows of one word, columns of W.
    program = [
        load_x(1, 3),
        op("LOAD", target=LoadTo.COLUMN, addr=W, stride=SIZE, **by),
        op("MUL", x_step=1, start=1, end=1, unit=1, **by),
        op("LOOP", count=9, end=7, len=1, add=3 - n),  # once
        take(1, **({"len": 1, "add": 2} if n <= 0 else {})),
        put(1, **({"len": 1, "add": 2} if n <= 0 else {})),
        op("STORE", addr=Y, stride=16, wide=1, len=1, add=3 - n if n > 0 else 2),
        op("END"),
    ]
    unit, result = run(*program, registers=registers, unit=unit)
    if n > 0:
        assert np.array_equal(stored(unit, 4), dot(x[:1].reshape(1, -1)[:, :n], w[:n].T.copy(), FMT.dot)[0])
    else:
        assert not result.writes


def test_loops_and_registers():
    """Two nested loops over a table of addresses; a loop of no rounds; R0 stays 0; registers wrap at 40 bits."""
    rng = np.random.default_rng(5)
    unit = lxe()
    x = random_x(rng, unit)
    _, result = run(
        op("SET", to=1, imm=X),
        op("SET", to=2, imm=Y),
        op("SET", to=0, imm=7),
        op("LOOP", count=2, end=12),
        op("LOOP", count=3, end=10),
        op("LOAD", target=LoadTo.VECTOR, base=1),
        VECTOR_V,
        put(1, form=Format.HALF),
        op("STORE", base=2),
        op("ADD", to=1, a=1, imm=SIZE),
        op("END"),
        op("ADD", to=2, a=2, imm=SIZE),
        op("END"),
        op("LOOP", count=0, end=15),
        op("HALT"),
        op("END"),
        op("ADD", to=3, a=0, imm=1),
        op("ADD", to=4, a=3, imm=(1 << 40) - 2),
        unit=unit,
    )
    assert np.array_equal(stored(unit, 2, 4, dtype=BF16), x.reshape(-1, 4)[[2, 5]])
    assert result.instructions[Engine.LOAD] == 6
    assert [unit.registers[r] for r in range(5)] == [0, X + 6 * SIZE, Y + 2 * SIZE, 1, (1 << 40) - 1]


def test_stores_to_x_and_sign_bits():
    """BF16 rows go back into X and are multiplied from there; sign bits fill the low bits of a word."""
    rng = np.random.default_rng(6)
    unit, w = lxe(), bf16(rng, 4, 4)
    x = random_x(rng, unit)
    unit.memory.put(W, w)
    copy = [vector(Vector(a=Source.STREAM, words=1, keep=3, write=Bank.B), source=Queue.LOAD), put(2, form=Format.HALF)]
    run(
        op("LOAD", target=LoadTo.VECTOR, addr=X, rows=1, stride=SIZE),
        *copy,
        op("STORE", target=StoreTo.X, rows=1, to=20, step=3),
        load_w(4, 1),
        mul(2, 1, 1, x=20, x_step=3),
        take(2),
        put(2),
        store(2, 1, wide=1, stride=16),
        put(1, form=Format.SIGN),
        store(1, 1, addr=Y + 32),
        unit=unit,
    )
    y = dot(x.reshape(-1, 4)[:2], w, FMT.dot)
    assert np.array_equal(stored(unit, 2, 4), y)
    word = unit.memory.get(Y + 32, 4, np.uint16)
    assert word.tolist() == [sum(int(v > 0) << k for k, v in enumerate(to_bf16(y[0]))), 0, 0, 0]


def test_known_numbers_follow_the_lanes():
    """Lanes without weights stay unknown through the VPE and the memory, and may be multiplied by nothing."""
    rng = np.random.default_rng(7)
    unit, w = lxe(), bf16(rng, 3, 4)
    random_x(rng, unit)
    unit.memory.put(W, w)
    first = [load_x(1, 1), load_w(3, 1), mul(1, 1, 1), take(1)]
    back = [put(1, 3, form=Format.HALF), store(1, 1), load_x(1, 1, addr=Y, to=1)]
    run(*first, *back, mul(1, 1, 1, keep=3, x=1), take(1), put(1, 3), store(1, 1, wide=1), unit=unit)
    with pytest.raises(LxeError, match=r"instruction 7 \(MUL\): reads number 3 of X word 1, which was never written"):
        run(*first, *back, mul(1, 1, 1, x=1), unit=lxe_with(unit))
    c = Vector(a=Source.IMMEDIATE, b=Source.BANK, c=Source.BANK, write=Bank.A)
    run(*first, vector(c), vector(Vector(a=Source.BANK, keep=2, reduce=Reduce.MAX)), unit=lxe_with(unit))
    with pytest.raises(LxeError, match=r"instruction 5 \(VECTOR\): reduces lane 3 of its word 0"):
        run(*first, vector(c), vector(Vector(a=Source.BANK, keep=3, reduce=Reduce.MAX)), unit=lxe_with(unit))
    with pytest.raises(LxeError, match=r"instruction 4 \(VECTOR\): stores lane 3 of bank C word 0, which depends on"):
        run(*first, put(1), unit=lxe_with(unit))
    with pytest.raises(LxeError, match=r"instruction 4 \(VECTOR\): stores lane 3 of bank C word 0, which depends on"):
        run(*first, put(2, 3), unit=lxe_with(unit))  # `keep` is of the last word


def lxe_with(unit: Lxe) -> Lxe:
    """A fresh LXE on the same memory."""
    return Lxe(FMT, unit.memory)


LOAD_V = op("LOAD", target=LoadTo.VECTOR, addr=X)
VECTOR_V = vector(Vector(a=Source.STREAM, write=Bank.B), source=Queue.LOAD)
REFUSED = {
    "X word": ([load_w(4, 1), mul(1, 1, 1, x=9)], "(MUL): reads number 0 of X word 9, which was never", None),
    "W word": ([load_x(1, 2), load_w(4, 1), mul(1, 1, 2)], "reads W words 0 to 1, of which no tree has all: 1", None),
    "bank": ([put(1)], "(VECTOR): stores lane 0 of bank C word 0, which was never written", None),
    "operand": ([vector(Vector(a=Source.BANK, addr_a=5))], "reads word 5 of bank A, which was never", None),
    "empty queue": ([take(2)], "takes 2 words of the queue of MUL words, which has 0: let what fills", Status.DEADLOCK),
    "no output": ([store(1, 1)], "takes 1 words of the VPE's output, which has 0", Status.DEADLOCK),
    "left": ([LOAD_V], "(HALT): 1 words are left in the queue of LOAD words", Status.DEADLOCK),
    "kind": ([LOAD_V, take(1, source=1)], "takes FP32 words of the queue of LOAD words, whose next one is BF16", None),
    "store kind": ([LOAD_V, VECTOR_V, put(1, form=Format.HALF), store(1, 1, wide=1)], "takes FP32 words of the", None),
    "semaphore": ([load_x(1, 1, wait=4)], "waits for semaphore 2, which nothing before", Status.DEADLOCK),
    "two wait": (
        [op("SYNC", signal=1), load_x(1, 1, wait=1), mul(1, 1, 1, wait=1)],
        "2 (MUL): waits for semaphore 0, as instruction 1 (LOAD) does",
        None,
    ),
    "HALT": ([op("HALT", signal=1)], "0 (HALT): must not signal", None),
    "256 signals": (
        [op("LOOP", count=256, end=2), op("SYNC", signal=8), op("END")],
        "signals semaphore 3 to 256: a counter has 8 bits",
        Status.SEMAPHORE,
    ),
    "bus": (
        [load_x(1, 1, addr=0x7000)],
        "address 0x7000: 8 bytes from there are in no region: use one of x 0x1000 to 0x2000, w",
        Status.BUS,
    ),
    "bus, a later row": ([load_x(2, 1, stride=0x1000)], "address 0x2000: 8 bytes", Status.BUS),
    "bus, store": (
        [LOAD_V, VECTOR_V, put(1, form=Format.HALF), store(1, 1, addr=0)],
        "address 0x0: 8 bytes",
        Status.BUS,
    ),
    "misaligned": ([load_x(1, 1, addr=X + 4)], "addr=0x1004: must be a multiple of a word's 8 bytes", Status.RANGE),
    "stride": ([load_x(1, 1, stride=12)], "stride=0xc: must be a multiple", Status.RANGE),
    "X full": ([load_x(2, 3, to=27)], "to=27: words 27 to 32 are outside X of 32 words", Status.RANGE),
    "W full": ([load_w(9, 5, to=2)], "to=2: words 2 to 16 are outside W of 16 words", Status.RANGE),
    "columns": ([op("LOAD", target=LoadTo.COLUMN, addr=X, rows=4, to=15)], "to=15: words 15 to 16", Status.RANGE),
    "column words": (
        [op("LOAD", target=LoadTo.COLUMN, addr=X, words=1)],
        "as a row of a COLUMN is one word",
        Status.RANGE,
    ),
    "wide X": ([load_x(1, 1, wide=1)], "wide: FP32 words", Status.RANGE),
    "MUL w": ([mul(1, 4, 4, w=1)], "w=1: words 1 to 16 are outside W", Status.RANGE),
    "MUL x": ([mul(3, 1, 2, x_step=15, x=1)], "x=1: words 1 to 32 are outside X", Status.RANGE),
    "MUL halves": ([mul(1, 1, 1, halves=1)], "halves: this DPE takes sums of whole words only", Status.RANGE),
    "keep": ([mul(1, 1, 1, keep=5)], "keep=4: must be below lanes = 4", Status.RANGE),
    "rows of a sum": ([mul(2, 1, 1, end=0)], "needs one row and one tile", Status.RANGE),
    "bank words": ([put(17)], "words 17 does not fit: at most the 16 of a bank", Status.RANGE),
    "bank address": ([put(1, at=16)], "addr_b=16: words 16 to 16 are outside a bank of 16", Status.RANGE),
    "MUL rows": ([mul(33, 1, 1, x_step=0)], "rows 33 does not fit: at most the 32 words of X", Status.RANGE),
    "MUL chunks": ([mul(1, 1, 1025, x_step=0)], "chunks 1025 does not fit: a sum has at most 1024", Status.RANGE),
    "W step": ([load_w(9, 1, step=8)], "to=0: words 0 to 16 are outside W of 16 words", Status.RANGE),
    "swap": ([vector(Vector(swap=8))], "swap=8 does not fit: at most 7", Status.RANGE),
    "no sum": ([load_x(1, 1), load_w(4, 1), mul(1, 1, 1, start=0)], "none has begun", None),
    "open sum": ([load_x(1, 1), load_w(4, 1), mul(1, 1, 1, end=0)], "(HALT): the sum that instruction 2 began", None),
    "second sum": (
        [load_x(1, 1), load_w(4, 1), *[mul(1, 1, 1, end=0)] * 2],
        "3 (MUL): begins a sum, but that of",
        None,
    ),
    "END": ([op("END")], "instruction 0 (END): is not the END of the innermost LOOP", Status.OPCODE),
    "LOOP": ([op("LOOP", count=1, end=1)], "end=1: must be the index of an END", Status.OPCODE),
    "depth": ([op("LOOP", count=1, end=5)] * 5 + [op("END")], "4 (LOOP): more than 4 loops inside", Status.OPCODE),
    "crossed": (
        [op("LOOP", count=1, end=2), op("LOOP", count=1, end=3), op("END"), op("END")],
        "2 (END): is not",
        Status.OPCODE,
    ),
    "rounds": (
        [op("SET", to=1, imm=1 << 16), op("LOOP", len=1, end=2), op("END")],
        "count 65536 does not fit",
        Status.RANGE,
    ),
    "rows": ([op("SET", to=1, imm=1 << 17), load_x(1, 1, len=1)], "rows 131072 does not fit", Status.RANGE),
    "length": ([op("SET", to=1)] * 64, "the program has 65 instructions, the program memory i_depth = 64", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    program, message, status = REFUSED[name]
    with pytest.raises(LxeError) as e:
        run(*program)
    assert message in str(e.value)
    assert e.value.status == status


def test_a_program_needs_a_halt():
    with pytest.raises(LxeError, match="ends without a HALT") as e:
        lxe().run([op("SET", to=1)])
    assert e.value.status == Status.OPCODE
    with pytest.raises(LxeError, match="the program is empty"):
        lxe().run([])


def test_a_sum_of_too_many_chunks():
    """1,024 chunks in all, the room of the DPE's accumulator."""
    unit, x = lxe(), np.ones(64, BF16)
    unit.memory.put(X, x)
    unit.memory.put(W, np.ones((4, 64), BF16))
    start = [load_x(1, 16), load_w(4, 16)]
    tail = [take(1), put(1), store(1, 1, wide=1)]
    head = mul(1, 1, 16, end=0)
    loop = [op("LOOP", count=62, end=5), mul(1, 1, 16, start=0, end=0), op("END")]
    run(*start, head, *loop, mul(1, 1, 16, start=0), *tail, unit=unit)
    assert stored(unit, 4).tolist() == [4096.0] * 4
    with pytest.raises(LxeError, match="began has 1040 chunks: at most 1024"):
        run(*start, head, *loop, *[mul(1, 1, 16, start=0, end=0)] * 2, mul(1, 1, 16, start=0), *tail, unit=unit)


def test_what_stays_from_program_to_program():
    unit = lxe()
    random_x(np.random.default_rng(8), unit)
    run(load_x(4, 1), unit=unit)
    run(load_w(4, 1, addr=X), unit=unit)
    run(mul(4, 1, 1), take(4), unit=unit)
    run(put(4), store(4, 1, wide=1, stride=16), unit=unit)
    x = unit.memory.get(X, (4, 4), BF16)
    assert np.array_equal(stored(unit, 4, 4), dot(x, x, FMT.dot))


def test_memory():
    memory = Memory([Region("b", 64, 64), Region("a", 0, 64)])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    memory.put(8, x)
    assert np.array_equal(memory.get(8, (2, 3), np.float32), x)
    assert memory.get(12, 4, np.uint8).tolist() == [0, 0, 0x80, 0x3F]  # little-endian 1.0
    data, known = memory.words(32, 3, 8, 40)  # the rows at 72 and 112 are in the other region
    assert data.shape == known.shape == (3, 8)
    with pytest.raises(ParamError, match=r"base of region b='0x20': must be at least 0x40, the end of region a"):
        Memory([Region("a", 0, 64), Region("b", 32, 64)])
    with pytest.raises(ParamError, match="size of region a=0"):
        Region("a", 0, 0)
    with pytest.raises(ParamError, match="must lie below"):
        Region("a", 1 << 40, 8)
    with pytest.raises(ValueError, match="address 0x3c: 8 bytes from there are in no region"):
        memory.get(60, 8, np.uint8)


def test_control_instructions_wait_and_signal_once_each_time():
    """SET, LOOP (once), END (every round), HALT."""
    program = [op("SET", to=1, signal=1), op("LOOP", count=3, end=2, wait=1, signal=2), op("END", wait=2, signal=2)]
    unit = lxe()
    result = unit.run([*program, op("HALT", wait=2)])
    assert [(t.pc, t.counts[:2]) for t in result.semaphores] == [
        (0, (1, 0)),
        (1, (0, 1)),
        *[(2, (0, 1))] * 3,
        (3, (0, 0)),
    ]


def test_stores_to_the_retrieval_engine():
    """A core takes hash bits token by token and score codes row by row; an LXE alone refuses them."""
    rng = np.random.default_rng(9)
    given = []

    class Core(Lxe):
        def hash(self, i, signs, row):
            given.append((i.addr, signs.tolist()))

        def score(self, i, codes, last, more):
            given.append((codes.tolist(), last, more))

        def retrieve(self, i):
            self.registers[i["to"]] = X + SIZE
            return i["rows"]

    unit = Core(FMT, lxe().memory)
    x = random_x(rng, unit).reshape(-1, 4)
    bits = x.view(np.uint16)
    first = [op("LOAD", target=LoadTo.VECTOR, addr=X, words=3), load_v_to_b(4)]
    program = [
        *first,
        put(4, form=Format.SIGN),
        op("STORE", target=StoreTo.HASH, rows=1, words=1, addr=17),
        put(2, keep=1, form=Format.HALF),
        put(1, keep=3, form=Format.HALF, at=2),
        op("STORE", target=StoreTo.SCORE, rows=1, wide=1),
        op("RETRIEVE", rows=2, to=5, signal=1),
        op("SYNC", wait=1),
        op("LOAD", target=LoadTo.X, base=5),
    ]
    _, result = run(*program, unit=unit)
    assert given == [
        (17, (x[:2] > 0).reshape(-1).tolist()),
        (17, (x[2:4] > 0).reshape(-1).tolist()),
        (bits[:2].reshape(-1)[:5].tolist(), False, False),
        (bits[2, :3].tolist(), True, False),
    ]
    assert result.words[Engine.STORE] == 4 + 3
    assert result.words[Engine.RETRIEVE] == 3
    assert np.array_equal(unit.x[0], bits[1])
    assert not play(result.issues, FMT).problems()
    for stop, what in ((4, "STORE"), (7, "STORE"), (8, "RETRIEVE")):
        part = [i for k, i in enumerate(program[:stop]) if stop == 4 or k not in (2, 3)]
        part = part if what == "STORE" else program[7:8]
        with pytest.raises(LxeError, match=rf"\({what}\): .* the retrieval engine, which an LXE alone does not have"):
            run(*part, unit=lxe_with(unit))


def load_v_to_b(words: int) -> Instruction:
    """Words of the LOAD queue to bank B."""
    return vector(Vector(a=Source.STREAM, words=words - 1, keep=3, write=Bank.B), source=Queue.LOAD)


@pytest.mark.parametrize(("n", "pairs"), [(-1, 0), (0, 0), (1, 1), (8, 1), (9, 2)])
def test_counts_in_pairs_of_words(n, pairs):
    """Counts from a register, rounded up to whole pairs of words: those of each opcode as in `golden.program.isa`."""
    values = [0, n & (1 << 40) - 1, *[0] * 14]
    by = {"len": 1, "pair": 1}
    counts = {
        "LOAD": ({"target": LoadTo.VECTOR}, {"rows": 2 * pairs, "words": 1}),
        "STORE": ({}, {"rows": 2 * pairs, "words": 1}),
        "MUL": ({"start": 1, "end": 1}, {"rows": 1, "tiles": 2 * pairs, "chunks": 1, "keep": 1}),
        "VECTOR": ({}, {"words": 2 * pairs, "keep": 4}),
    }
    for name, (fields, want) in counts.items():
        issue = resolve(0, op(name, **by, **fields), values, FMT)
        assert issue.skip is (pairs == 0)
        assert issue.skip or issue.counts == want
    unit1 = resolve(0, op("MUL", **by, unit=1, start=1, end=1), values, FMT)
    assert unit1.skip or unit1.counts == {"rows": 1, "tiles": 1, "chunks": 2 * pairs, "keep": 4}
    loop = [op("LOOP", **by, end=2), op("SYNC"), op("END"), op("HALT")]
    assert [i.op.name for i in sequence(loop, values, FMT)].count("SYNC") == pairs


def test_a_register_of_a_count_is_signed_and_the_count_exact():
    """The largest register and a positive `add` give a large count, not a negative one."""
    values = [0, (1 << 39) - 1, *[0] * 14]
    with pytest.raises(LxeError, match=f"rows {(1 << 39) + 4} does not fit"):
        resolve(0, op("STORE", len=1, add=5), values, FMT)


def test_which_numbers_are_known_after_any_vector():
    """Two machines differ where nothing has been written: they agree wherever a number is said to be known.

    Nearly all others differ: so little is called unknown without need.
    """
    rng = np.random.default_rng(10)
    machines, known, unknown, differs = [Machine(FMT.vector), Machine(FMT.vector)], Known(FMT.vector), 0, 0
    refused = 0
    for k in range(1500):
        if k % 30 == 0:
            known = Known(FMT.vector)
            known.banks[:] = rng.random(known.banks.shape) < 0.8
            known.scalars[:] = rng.random(16) < 0.8
            shared = rng.normal(size=(2, *known.banks.shape)).astype(np.float32)
            for m, own in zip(machines, rng.normal(size=(2, *known.banks.shape)).astype(np.float32), strict=True):
                m.banks[:] = np.where(known.banks, shared[0], own).view(np.uint32)
                m.scalars[:] = np.where(known.scalars, shared[1, 0, 0, 0], own[0, :4].reshape(-1))
        words = int(rng.integers(0, 4))
        fields = {n: int(rng.integers(0, FMT.depth)) for n in ("addr_a", "addr_b", "addr_c", "addr_d")}
        fields |= {n: int(rng.integers(0, 16)) for n in ("scalar_a", "scalar_b", "scalar_c", "scalar_d")}
        fields |= {n: int(rng.choice([0, 1, 15])) for n in ("span_a", "span_b", "span_c")}
        fields |= {"a": int(rng.integers(0, 4)), "b": int(rng.choice([0, 0, 1, 2, 3])), "c": int(rng.choice([0, 2, 3]))}
        fields |= {"reduce": int(rng.integers(0, 4)), "swap": int(rng.integers(0, 7)), "write": int(rng.integers(0, 8))}
        v = Vector(
            op=int(rng.choice([Op.FMA, Op.FMA, Op.MAX])), words=words, keep=int(rng.integers(0, 4)), wide=1, **fields
        )
        came, came_known = None, None
        if v.streams:
            came_known = rng.random((words + 1, 4)) < 0.8
            came = [rng.normal(size=came_known.shape).astype(np.float32) for _ in range(3)]
            came = [np.where(came_known, came[2], own).view(np.uint32) for own in came[:2]]
        before = known.banks.copy(), known.scalars.copy()
        try:
            known.run(Issue(0, vector(v), {"words": words + 1, "keep": v.keep + 1}), v, came_known)
        except LxeError:
            known.banks, known.scalars = before
            refused += 1
            continue
        for m, words_ in zip(machines, came or [None, None], strict=True):
            list(m.run([Step(v, words_)]))
        same = machines[0].banks == machines[1].banks
        assert same[known.banks].all()
        assert (machines[0].scalars == machines[1].scalars)[known.scalars].all()
        unknown += (~known.banks).sum() + (~known.scalars).sum()
        differs += (~same).sum() + (machines[0].scalars != machines[1].scalars).sum()
    assert 100 < refused < 1000
    assert 0.9 < differs / unknown <= 1


def test_words_of_few_signs():
    """Signs of lanes nobody has computed make the 16 bits that hold them unknown."""
    unit = lxe()
    random_x(np.random.default_rng(11), unit)
    part = [load_x(1, 1), load_w(3, 1, addr=X), mul(1, 1, 1), take(1), put(1, 3, form=Format.SIGN), store(1, 1)]
    _, result = run(*part, unit=unit)
    assert result.writes[0].known.tolist() == [False, True, True, True]
    result = unit.run([LOAD_V, VECTOR_V, put(1, form=Format.SIGN), store(1, 1), op("HALT")])
    assert result.writes[0].known.tolist() == [True] * 4


def test_memory_keeps_what_is_known():
    """Bytes that mean nothing are marked until they are written; the addresses of rows wrap at 2^40."""
    memory = Memory([Region("low", 0, 64), Region("high", (1 << 40) - 64, 64)])
    bytes_, known = np.arange(8, dtype=np.uint8), np.arange(8) < 4
    memory.write(8, bytes_, known)
    memory.write((1 << 40) - 8, bytes_, ~known)
    data, marks = memory.words((1 << 40) - 8, 2, 8, 16)
    assert data.tolist() == [bytes_.tolist()] * 2
    assert marks.tolist() == [(~known).tolist(), known.tolist()]
    memory.put(12, np.zeros(2, np.uint8))
    memory.write((1 << 40) - 8, bytes_, known | True)
    assert memory.words((1 << 40) - 8, 2, 8, 16)[1].tolist() == [[True] * 8, [True] * 6 + [False] * 2]
