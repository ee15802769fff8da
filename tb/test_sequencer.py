"""Sequencer: beats equal to an interpreter's, cycles equal to the time view."""

import pytest

from golden.isa import Instruction, Opcode, Status, encode
from hdl.emit import emit, params_of
from hdl.isa import PROGRAM, START
from hdl.params import override, preset
from sim.sequencer import NAMES, SequencerTime, trace
from tb.runner import Run

MAKE, OP = Instruction, Opcode
PROGRAM_OF_ALL = [
    MAKE(OP.SET, {"to": 1, "imm": 3}),
    MAKE(OP.SET, {"to": 2, "imm": 1000}),
    MAKE(OP.LOOP, {"count": 2, "end": 8}),
    MAKE(OP.LOAD, {"base": 2, "addr": 64, "signal": 1, "rows": 3}),
    MAKE(OP.ADD, {"to": 2, "a": 2, "imm": 8}),
    MAKE(OP.MUL, {"wait": 1, "len": 1, "add": 2, "unit": 1, "signal": 2}),
    MAKE(OP.STORE, {"wait": 2}),
    MAKE(OP.VECTOR, {"v_op": 1, "words": 3}),
    MAKE(OP.END, {}),
    MAKE(OP.HALT, {}),
]


def run(program, assign=(), delays=None, idle=0.0, stall=0.0, seed=1):
    """The program's beats, cycles, status and counters in Verilator."""
    system = override(preset("tiny"), list(assign))
    host = [{"op": PROGRAM, "addr": i, "data": encode(x)} for i, x in enumerate(program)]
    host.append({"op": START, "addr": 0, "data": 0})
    waits = {n: (delays or {}).get(n, [1, 1]) for n in NAMES.values()}
    c = {"assign": list(assign), "idle": idle, "stall": stall, "delays": waits, "runs": [{"host": host, "limit": 9999}]}
    return Run(emit("sequencer", params_of("sequencer", system)), "tb.bench_sequencer", "programs", c, seed)()["runs"][
        0
    ]


@pytest.mark.parametrize("queue", [1, 2, 5])
def test_equals_interpreter_and_time_view(queue):
    delays = {"load": 5, "mul": 3, "vector": 2, "store": 1}
    assign = [f"lxe.queue={queue}"]
    got = run(PROGRAM_OF_ALL, assign, {k: [v, v] for k, v in delays.items()})
    p = override(preset("tiny"), assign).core
    want = trace(p, [encode(x) for x in PROGRAM_OF_ALL])
    cycles = SequencerTime(p, delays).run(want.steps)
    for engine, name in NAMES.items():
        beats = [s.beat for s in want.steps if s.op.name == engine.name]
        assert got[name] == [list(x) for x in zip(cycles.handed[name], beats, strict=True)]
    assert (got["end"], got["status"]["code"]) == (cycles.done, Status.DONE)
