"""Checks of the LXE, shared by tests, mutants, coverage and stress: a layer, and programs that end in a fault."""

from collections.abc import Iterable

import numpy as np

from openvrex.golden.arithmetic.vector import Bank, Format, Op, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.program.isa import Instruction, LoadTo, Opcode, Queue, Status, encode
from openvrex.golden.program.isa import vector as vector_of
from openvrex.golden.program.lxe_model import BusError, Lxe, LxeError, Memory, Region
from openvrex.hdl.emit import Emitted
from openvrex.tb.checks.core_checks import SIZES, begin, emitted, host, params, ports
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.runner import Run

SIZE = 1 << 12  # bytes of memory; the memory answers higher addresses with an error
HALT = Instruction(Opcode.HALT, {})


def load(rows: int, **values: int) -> Instruction:
    fields = {"target": LoadTo.VECTOR, "wide": 1, "rows": rows - 1, "stride": 16}
    return Instruction(Opcode.LOAD, {k: int(v) for k, v in (fields | values).items() if v})


def copy(rows: int, to: int = 1024, **values: int) -> list[Instruction]:
    """Copy rows through the VPE to another place."""
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
    "halves that the DPE lacks": [*copy(9), Instruction(Opcode.MUL, {"start": 1, "end": 1, "halves": 1}), HALT],
    "a place off the grid": [*copy(9), *copy(9, addr=4), HALT],
    "reads": [*copy(9), *copy(40, addr=SIZE - 256), HALT],
    "writes": [*copy(9), *copy(40, to=SIZE - 64), *copy(9), HALT],
    **{
        f"{what} at {at:x}": [*copy(9), *copy(9, **{what: at}), HALT]
        for what in ("addr", "to")
        for at in (0xAAAAAAAAA8, 0x5555555558, 0xFFFFFFFE08, 0x123456789 << 3)
    },
    "a wait for ever": [*copy(9), Instruction(Opcode.SYNC, {"wait": 1}), HALT],
    "an engine that waits": [load(9), *copy(9)[1:], load(9, wait=2), HALT],
}
WANTS = {  # a status that golden cannot give: golden has no instruction for the opcode
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
    """Status and instruction that golden reports for a program it refuses."""
    try:
        golden().run(program, {})
    except (LxeError, BusError) as e:
        return e.status, e.pc
    raise AssertionError("golden ran the program to its end")


def play(episodes: list[dict], unit: Emitted | None = None, **how) -> list[dict]:
    config = {
        "params": list(SIZES),
        "episodes": episodes,
        "good": words([*copy(30), HALT]),
        "memory": golden().memory.regions[0].data.tobytes().hex(),
        "ports": dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0),
        "latency": 20,
    }
    return Run(unit or emitted(), "bench_lxe_time", "stopped", config, **how)()["episodes"]


def check_good(got: dict) -> None:
    """The program after the reset did what golden does."""
    unit = golden()
    unit.run([*copy(30), HALT], {})
    assert got["good"]["code"] == Status.DONE
    assert got["memory"] == unit.memory.regions[0].data.tobytes().hex()


def check_faults(names: Iterable[str] = PROGRAMS, *unit, **how) -> None:
    """These programs end as in golden, and a good program runs after each."""
    got = play([{"program": words(PROGRAMS[name]), "cut_at": 0} for name in names], *unit, **how)
    for name, g in zip(names, got, strict=True):
        status, pc = WANTS[name] if name in WANTS else refusal(PROGRAMS[name])
        assert Status(g["status"]["code"]) == status, name
        if status == Status.OPCODE:  # other faults report the instruction in the sequencer
            assert g["status"]["pc"] == pc, name
        check_good(g)


def check_a_layer_equals_golden(*unit, **how) -> None:
    """A layer with retrieval leaves golden's memory."""
    rng = np.random.default_rng(1)
    h = host(rng)
    script = Script(h.memory)
    begin(h, rng, 0)
    script.add(h.program(0), h.registers(0))
    h.run(0)
    script.expect()
    wrong = script.differences(*script.play(*unit or (emitted(),), ports(h), limit=8000, **how))
    assert not wrong, wrong
