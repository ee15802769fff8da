"""Programs that fail on the RTL of a core: golden's status, a bus at rest, a core that works after a reset."""

import numpy as np
import pytest

from golden.isa import Instruction, LoadTo, Opcode, Queue, Status, encode
from golden.isa import vector as vector_of
from golden.lxe import BusError, Lxe, LxeError, Memory, Region
from golden.vector import Bank, Format, Op, Source
from golden.vector import Instruction as Vector
from tb.runner import Run
from tb.test_core import SIZES, emitted, params

SIZE = 1 << 12  # bytes of memory; what lies behind is answered by an error
HALT = Instruction(Opcode.HALT, {})


def load(rows: int, **values: int) -> Instruction:
    fields = {"target": LoadTo.VECTOR, "wide": 1, "rows": rows - 1, "stride": 16}
    return Instruction(Opcode.LOAD, {k: int(v) for k, v in (fields | values).items() if v})


def copy(rows: int, to: int = 1024, **values: int) -> list[Instruction]:
    """Rows through the VPE to another place."""
    return [
        load(rows, **values),
        vector_of(Vector(words=rows - 1, a=Source.STREAM, wide=1, write=Bank.C), source=Queue.LOAD),
        vector_of(Vector(op=Op.STORE, words=rows - 1, format=Format.WIDE)),
        Instruction(Opcode.STORE, {"wide": 1, "rows": rows - 1, "stride": 16, "addr": to}),
    ]


PROGRAMS = {
    "opcode": [*copy(9), 15, HALT],
    "an END without a LOOP": [*copy(9), Instruction(Opcode.END, {}), HALT],
    "a word of W": [*copy(9), load(3, target=LoadTo.W, wide=0, words=1, to=63), *copy(9), HALT],
    "a word of X": [*copy(20), Instruction(Opcode.MUL, {"x": 63, "chunks": 2, "start": 1, "end": 1}), *copy(9), HALT],
    "a place off the grid": [*copy(9), *copy(9, addr=4), HALT],
    "reads": [*copy(9), *copy(40, addr=SIZE - 256), HALT],
    "writes": [*copy(9), *copy(40, to=SIZE - 64), *copy(9), HALT],
    "a wait for ever": [*copy(9), Instruction(Opcode.SYNC, {"wait": 1}), HALT],
    "an engine that waits": [load(9), *copy(9)[1:], load(9, wait=2), HALT],
}
WANTS = {  # what golden does not tell: an opcode that it has no instruction for
    "opcode": (Status.OPCODE, 4),
}


def words(program: list) -> list[str]:
    return [f"{i if isinstance(i, int) else encode(i):x}" for i in program]


def golden() -> Lxe:
    unit = Lxe(params().lxe_format(), Memory([Region("memory", 0, SIZE)]))
    numbers = np.random.default_rng(1).normal(size=SIZE // 4)
    unit.memory.put(0, numbers.astype(np.float32))
    return unit


def refusal(program: list) -> tuple[Status, int]:
    """Status and instruction that golden names."""
    with pytest.raises((LxeError, BusError)) as e:
        golden().run(program, {})
    return e.value.status, e.value.pc


def play(episodes: list[dict]) -> list[dict]:
    config = {
        "params": list(SIZES),
        "episodes": episodes,
        "good": words([*copy(30), HALT]),
        "memory": golden().memory.regions[0].data.tobytes().hex(),
        "ports": dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0),
        "latency": 20,
    }
    return Run(emitted(), "tb.bench_lxe_time", "stopped", config)()["episodes"]


def check_good(got: dict) -> None:
    """The program after the reset has done what golden does."""
    unit = golden()
    unit.run([*copy(30), HALT], {})
    assert got["good"]["code"] == Status.DONE
    assert got["memory"] == unit.memory.regions[0].data.tobytes().hex()


def test_faults():
    got = play([{"program": words(program), "cut_at": 0} for program in PROGRAMS.values()])
    for (name, program), g in zip(PROGRAMS.items(), got, strict=True):
        status, pc = WANTS[name] if name in WANTS else refusal(program)
        assert Status(g["status"]["code"]) == status, name
        if status == Status.OPCODE:  # of others, what the sequencer has in hand
            assert g["status"]["pc"] == pc, name
        check_good(g)


def test_resets_in_flight():
    program = words([*copy(60, to=2048), *copy(60, to=3072), HALT])
    for g in play([{"program": program, "cut_at": at} for at in (1, 7, 24, 31, 40, 77, 120)]):
        assert g["status"]["code"] == Status.RUNNING
        check_good(g)
