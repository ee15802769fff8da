"""A vision encoder on several cores, timed by its programs: the work is that of its shape, and what limits it."""

import pytest

from openvrex.sim.system import encoder_load
from openvrex.sim.system.accelerator import encoder, seconds
from openvrex.sim.system.platforms import EDGE, SERVER
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import MODELS, Vision

FRAME = Point(1024, 1, 10, True)
WIDTH = MODELS["llama3-8b"].width


@pytest.mark.parametrize("v", [EDGE, SERVER], ids=lambda v: v.name)
def test_the_programs_have_the_products_of_the_shape(v):
    """DPE steps of core 0 times cores are the shape's multiplications, plus those of the projector."""
    shape = Vision().shape(10, WIDTH)
    found = encoder_load.loads(v.system, v.latency, shape)
    each = v.core.dpe.n_h * v.core.dpe.n_w * v.cores
    done = sum(load.dpe * encoder_load.times(name, shape) for name, (load, _) in found.items()) * each
    projector = shape.seen * (shape.width * WIDTH + WIDTH * WIDTH)
    assert shape.macs == Vision().macs + shape.side**2 * shape.patch * shape.width
    assert done == pytest.approx(shape.macs + projector, rel=0.01)


def took(*changes: str) -> tuple[float, float]:
    """Share of the DPE's peak that the encoder of an `edge8` reaches, and bytes at the memory."""
    v = EDGE.changed(*changes)
    steps = encoder(v, FRAME)
    assert seconds(v, encoder(v, Point(1024, 2, 10, True))) == pytest.approx(2 * seconds(v, steps))
    return Vision().macs / v.macs / seconds(v, steps), sum(s.bytes for s in steps)


def test_rows_that_cores_read_together_double_the_rate():
    """Without, each of eight cores reads all rows, and memory limits (docs/simulator.md has these figures)."""
    alone, bytes_alone = took("common=false")
    together, moved = took()
    assert (round(alone, 3), round(together, 3)) == (0.292, 0.535)
    assert moved < 0.5 * bytes_alone
    assert bytes_alone / EDGE.bandwidth > 0.9 * Vision().macs / EDGE.macs / alone


def test_more_words_of_weights_reach_the_goal():
    """60 % of the peak, with 64 words of W; alone they give 37 %."""
    assert round(took("dpe.w_depth=64")[0], 3) == 0.603
    assert round(took("common=false", "dpe.w_depth=64")[0], 2) == 0.37


def test_a_grid_of_cells_is_at_most_the_patches():
    assert Vision().shape(10, WIDTH).seen == 9
    assert Vision().shape(640, WIDTH).seen == 576
