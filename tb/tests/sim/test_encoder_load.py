"""A vision encoder on several cores, timed by its programs: the work is that of its shape, and what limits it."""

import pytest

from openvrex.golden.program.encoder_compiler import EncoderPlan
from openvrex.hdl.params import preset
from openvrex.sim.system import encoder_load
from openvrex.sim.system.accelerator import encoder, seconds
from openvrex.sim.system.platforms import EDGE, SERVER
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import MODELS, Vision
from openvrex.tb.library.runner import ROOT

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


def took(*changes: str) -> tuple[float, float, float]:
    """Share of the DPE's peak that the encoder of an `edge8` reaches, its milliseconds, and GB at the memory."""
    v = EDGE.changed(*changes)
    steps = encoder(v, FRAME)
    own = seconds(v, steps)
    assert seconds(v, encoder(v, Point(1024, 2, 10, True))) == pytest.approx(2 * own)
    return Vision().macs / v.macs / own, 1e3 * own, sum(s.bytes for s in steps) / 1e9


def said(page: str) -> str:
    return " ".join((ROOT / "docs" / page).read_text().split())


def test_rows_that_cores_read_together_double_the_rate():
    """With, 60 % of the peak is reached. Without, each of eight cores reads all rows, and memory limits."""
    (together, ms, moved), (alone, ms_alone, moved_alone) = took(), took("common=false")
    deep, deep_alone = took("dpe.w_depth=64")[0], took("common=false", "dpe.w_depth=64")[0]
    page = said("simulator.md")
    assert together >= 0.6
    assert f"It reaches {together:.1%} of".replace("%", " %") in page
    assert f"and {deep:.1%} with `-p dpe.w_depth=64`".replace("%", " %") in page
    assert f"it were {alone:.1%}, {deep_alone:.0%} with 64 words".replace("%", " %") in page
    figure = f"SigLIP-L on `edge8`: {ms:.1f} ms instead of {ms_alone:.1f}, {moved:.2f} GB instead of {moved_alone:.2f}."
    assert figure in said("archive/decisions.md")
    assert moved_alone * 1e9 / EDGE.bandwidth > 0.9e-3 * ms_alone


def test_a_grid_of_cells_is_at_most_the_patches():
    assert Vision().shape(10, WIDTH).seen == 9
    assert Vision().shape(640, WIDTH).seen == 576


def test_one_core_has_a_program_for_each_stage():
    """Sums of fewer rows stay in banks where a program with all of them were too long."""
    p = preset("core")
    plan = EncoderPlan(Vision().shape(10, WIDTH), p.core.lxe_format())
    lengths = {stage.name: len(plan.program(stage.name, stage.name)) for stage in plan.stages}
    assert max(lengths, key=lengths.__getitem__) == "down"
    assert lengths["down"] <= p.core.lxe.i_depth
