"""A vision encoder on the RTL of a core: every byte of memory equals golden after each program."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.hdl.emit import Emitted
from openvrex.hdl.retrieval.dre import SETTINGS
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.runner import emit
from openvrex.tb.library.small_encoder import SHAPE, encoder, model, patches
from openvrex.tb.library.small_models import params

# As the golden tests; heads of two words and slices of K; one token and one patch, whose products are single rows.
LONG = replace(SHAPE, width=16, ffn=96, layers=1, extra=2, projector=(8,))
ONE = EncoderShape(layers=1, width=4, heads=1, ffn=4, side=1, patch=3, extra=0, cells=1, projector=(4,))


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
