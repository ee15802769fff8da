"""A vision encoder on the RTL of a core: every byte of memory equals golden after each program."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.isa import encode
from openvrex.hdl.emit import Emitted
from openvrex.hdl.retrieval.dre import SETTINGS
from openvrex.sim.units.lxe_time import Run as TimeRun
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.lxe_time_checks import differences
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.small_encoder import SHAPE, encoder, model, patches
from openvrex.tb.library.small_models import SIZES as CORE
from openvrex.tb.library.small_models import params

# As the golden tests; heads of two words and slices of K; one token and one patch, whose products are single rows.
LONG = replace(SHAPE, width=16, ffn=96, layers=1, extra=2, projector=(8,))
ONE = EncoderShape(layers=1, width=4, heads=1, ffn=4, side=1, patch=3, extra=0, shown=0, cells=1, projector=(4,))


@cache
def emitted() -> Emitted:
    return emit("core", params())


@pytest.mark.parametrize("shape", [SHAPE, LONG, ONE], ids=["two layers", "slices", "one patch"])
def test_pictures_equal_golden(shape):
    """Two pictures one after the other, with pauses on every port."""
    own = encoder(shape, params().lxe_format(), model(shape, 3))
    host, seen = own.host, []
    script = Script(host.memory, [r.name for r in host.memory.regions])
    for seed in (1, 2):
        host.begin(patches(shape, seed))
        for step in host.steps():
            [program] = step.programs
            script.add(program, step.registers[0])
            own.run(step)
            script.expect()
        seen.append(host.embeddings.copy())
    ran, after = script.play(emitted(), dict.fromkeys(SETTINGS, 0), 0.1)
    assert not script.differences(ran, after)
    assert not np.array_equal(*seen)


def test_cycles_are_those_of_the_time_view():
    """Every transfer of a layer's programs; the simulator's times of an encoder come from this view."""
    latency, own = 9, encoder(SHAPE, params().lxe_format(), model(SHAPE, 3))
    own.host.begin(patches(SHAPE, 1))
    steps = list(own.host.steps())[1:3]
    programs = [(step.programs[0] or [], step.registers[0]) for step in steps]
    config = {
        "params": list(CORE),
        "runs": [{"program": [f"{encode(i):x}" for i in p], "registers": r, "writes": []} for p, r in programs],
        "memory": bytes(1 << 17).hex(),
        "ports": dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0),
        "latency": latency,
        "counters": emitted().manifest["counters"],
    }
    got = Run(emitted(), "bench_lxe_time", "timed", config)()["runs"]
    for (program, registers), ran in zip(programs, got, strict=True):
        view = TimeRun(params(), latency, trace(params(), [encode(i) for i in program], registers).steps, detail=True)
        view.play()
        assert not differences(view, ran)
