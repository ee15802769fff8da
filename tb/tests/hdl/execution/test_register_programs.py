"""Programs on the RTL whose control depends on data: bytes equal golden, cycles the time view; hazards are found."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import Bank, Format, Source
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.deadlock_hazard_check import play
from openvrex.golden.program.isa import (
    NUMBER_BITS,
    Instruction,
    LoadTo,
    Opcode,
    Queue,
    Status,
    StoreTo,
    encode,
    sets_register,
    to_register,
    vector,
)
from openvrex.golden.program.recipes import imm
from openvrex.golden.program.sequencer_model import LxeError
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.core_checks import FEATURES, emitted, params
from openvrex.tb.checks.lxe_time_checks import Program, differences, simulate, timed
from openvrex.tb.checks.lxe_time_checks import play as time_play
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.register_programs import AT, OFFSET, OUT, SET, TO, Numbers, number, rows
from openvrex.tb.library.small_models import PORTS


def fmt():
    return params(more=FEATURES).lxe_format()


def case(rng, count: int, apart: int) -> tuple[Numbers, np.ndarray, list[int], np.ndarray]:
    """A table of 16 rows `apart` words from each other, numbers of rows, and values above, at and below 1."""
    table = rng.integers(-99, 99, (16 * apart, fmt().lanes)).astype(BF16)
    numbers = [0, 15, *rng.integers(0, 16, count - 2).tolist()]
    values = rng.choice([1.0, 1.0078125, 0.9921875, -3.0, 50.0, 2.0**-30 + 1], count).astype(np.float32)
    return Numbers(fmt(), table, numbers, values), table, numbers, values


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_rows_of_a_table_by_computed_numbers(pause):
    """Each row of the result is the row that a number names; with a threshold, only where the value is above it."""
    rng, seen = np.random.default_rng(3), Counter()
    for apart, threshold in ((1, None), (4, None), (1, 1.0), (2, -3.0)):
        run, table, numbers, values = case(rng, 12, apart)
        add = (apart - 1) * fmt().word_bytes  # the last word of each row
        shift = (apart * fmt().word_bytes).bit_length() - 1
        program = rows(fmt(), 12, shift, add, threshold)
        script = Script(run.memory, ["out"])
        script.add(program, run.registers)
        issues = run.lxe.run(program, run.registers).issues
        script.expect()
        want = table[np.array(numbers) * apart + apart - 1]
        copied = np.ones(12, bool) if threshold is None else values > threshold
        got = run.memory.get(OUT, (12, fmt().lanes), BF16)
        np.testing.assert_array_equal(got, np.where(copied[:, None], want, 0))
        order = play(issues, fmt())
        assert (order.waiting, order.left, order.hazards) == ({}, {}, [])
        ran, after = script.play(emitted(FEATURES), PORTS, pause, seed=5)
        assert not script.differences(ran, after)
        seen["copied"] += int(copied.sum())
        seen["skipped"] += int((~copied).sum())
    assert min(seen["copied"], seen["skipped"]) > 3


@pytest.mark.parametrize("latency", [1, 9])
def test_cycles_are_those_of_the_time_view(latency):
    rng, p = np.random.default_rng(4), params(more=FEATURES)
    for threshold in (None, 1.0):
        run, *_ = case(rng, 8, 1)
        program = rows(fmt(), 8, fmt().word_bytes.bit_length() - 1, 0, threshold)
        script = Script(run.memory)
        script.add(program, run.registers)
        run.lxe.run(program, run.registers)
        words = [encode(i) for i in program]
        steps = trace(p, words, run.registers, stored=run.stored).steps
        one = {"program": [f"{w:x}" for w in words], "registers": run.registers, "writes": []}
        [got] = simulate(emitted(FEATURES), [one], latency, PORTS, script.before.tobytes())
        assert got["status"]["code"] == Status.DONE
        assert int(LxeTime(p, latency).run(steps).done) == got["done"]


@pytest.mark.parametrize("latency", [1, 9])
def test_random_programs_take_the_cycles_of_the_time_view(latency):
    """Numbers between transfers, products and loops; the sequencer waits for some of them."""
    programs = [Program(70 * latency + k, numbers=True).out for k in range(6)]
    assert sum(i.op == Opcode.STORE and sets_register(i) for program in programs for i in program) > 8
    for k, (program, got) in enumerate(zip(programs, time_play(emitted(FEATURES), programs, latency), strict=True)):
        assert got["status"]["code"] == Status.DONE, f"program {k}"
        assert not differences(timed(program, latency), got), f"program {k}"


@pytest.mark.parametrize("shift", [0, 1, 7, 17, 31])
def test_every_bit_of_a_number(shift):
    """Numbers of all bits, shifted, added to a base, reach the register: it names where a word is stored."""
    for n in (0, 1, (1 << NUMBER_BITS) - 1, 0x555555, 0x2AAAAA):
        run = Numbers(fmt(), np.zeros((1, fmt().lanes)), [n], np.zeros(1))
        value = (5 + 0xFF_0000_0001 + (n << shift)) % (1 << 40)
        # R[7] less what it must be is the address of the result: the word that is stored tells.
        program = [
            Instruction(Opcode.SET, {"to": 8, "imm": 5}),
            *number(AT, {"c": Source.IMMEDIATE, "imm_c": OFFSET}, to_register(7, 8, 0xFF_0000_0001, shift, signal=8)),
            Instruction(Opcode.ADD, {"to": 7, "a": 7, "imm": (OUT - value) % (1 << 40)}),
            Instruction(Opcode.LOAD, {"target": LoadTo.VECTOR, "base": TO}),
            vector(
                VectorInstruction(
                    a=Source.STREAM, c=Source.IMMEDIATE, imm_c=imm(1.0), write=Bank.B, keep=fmt().lanes - 1
                ),
                source=Queue.LOAD,
            ),
            vector(VectorInstruction(op=VectorOp.STORE, keep=fmt().lanes - 1, format=Format.HALF)),
            Instruction(Opcode.STORE, {"target": StoreTo.MEMORY, "base": 7}),
            Instruction(Opcode.HALT, {}),
        ]
        script = Script(run.memory, ["out"])
        script.add(program, run.registers)
        run.lxe.run(program, run.registers)
        script.expect()
        assert run.stored == [{7: value}]
        ran, after = script.play(emitted(FEATURES), PORTS)
        assert not script.differences(ran, after)
        assert run.lxe.registers[7] == OUT


def sound() -> tuple[Numbers, list[Instruction]]:
    """A program that sets a register and uses it."""
    run, *_ = case(np.random.default_rng(1), 2, 1)
    return run, rows(fmt(), 2, fmt().word_bytes.bit_length() - 1)


def test_a_use_without_a_wait_is_a_hazard():
    """Without the SYNC, the sequencer reads the register while the STORE may not have set it."""
    run, program = sound()
    bare = [replace_op(i) if i.op == Opcode.SYNC else i for i in program]
    bare = [Instruction(i.op, i.values | {"signal": 0}) if i["signal"] >> SET & 1 else i for i in bare]
    order = play(run.lxe.run(bare, run.registers).issues, fmt())
    assert any("register" in h.word and h.engines == ("STORE", "sequencer") for h in order.hazards)


def replace_op(i: Instruction) -> Instruction:
    """A SYNC that waits for nothing."""
    return Instruction(i.op, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"to": 16}, "to=16: must be below 16 for a register"),
        ({"step": 32}, "step=32: must be below 32, a shift"),
        ({"rows": 1}, "takes 2 rows of 1 words: a register takes one word"),
        ({"words": 1}, "takes 1 rows of 2 words: a register takes one word"),
    ],
)
def test_stores_that_do_not_fit_end_in_a_status(change, message):
    run, program = sound()
    bad = [Instruction(i.op, i.values | change) if i.op == Opcode.STORE and i["wide"] else i for i in program]
    script = Script(run.memory)
    script.add(bad, run.registers)
    with pytest.raises(LxeError, match=message) as error:
        run.lxe.run(bad, run.registers)
    [ran], _ = script.play(emitted(FEATURES), PORTS)
    assert ran.status == error.value.status == Status.RANGE


def test_a_plain_lxe_refuses():
    run, program = sound()
    plain = Numbers(replace(fmt(), to_register=False), np.zeros((1, fmt().lanes)), [0, 0], np.zeros(2))
    with pytest.raises(LxeError, match="wide: FP32 words go between memory and VPE only") as error:
        plain.lxe.run(program, run.registers)
    assert error.value.status == Status.RANGE
