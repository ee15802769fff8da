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


def test_memory_limits_the_products_of_eight_cores():
    """Each core reads all rows for the columns that W holds: the peak is out of reach, by bytes (docs/simulator.md)."""
    steps = encoder(EDGE, FRAME)
    took = seconds(EDGE, steps)
    bus = sum(s.bytes for s in steps) / EDGE.bandwidth
    peak = Vision().macs / EDGE.macs
    assert 0.28 < peak / took < 0.31
    assert bus > 0.9 * took
    assert seconds(EDGE, encoder(EDGE, Point(1024, 2, 10, True))) == pytest.approx(2 * took)


def test_more_words_of_weights_take_less_time():
    deep = EDGE.changed("dpe.w_depth=64")
    assert seconds(deep, encoder(deep, FRAME)) < 0.82 * seconds(EDGE, encoder(EDGE, FRAME))


def test_a_grid_of_cells_is_at_most_the_patches():
    assert Vision().shape(10, WIDTH).seen == 9
    assert Vision().shape(640, WIDTH).seen == 576
