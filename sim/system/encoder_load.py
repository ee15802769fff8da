"""The work of a vision encoder's programs on the cores that share a picture, by stage, played by the time view."""

from collections.abc import Mapping
from functools import lru_cache

from openvrex.golden.program.encoder_compiler import LAYER, EncoderPlan, EncoderShape
from openvrex.hdl.params import CoreParams
from openvrex.sim.system.layer_load import Load
from openvrex.sim.system.share_cycles import busy_for, executed
from openvrex.sim.units.lxe_time import LxeTime

# Addresses far apart, so that no burst is cut because of another array.
WORK, WEIGHTS, ENDS = (1 << n for n in (32, 34, 36))


@lru_cache(maxsize=64)
def loads(core: CoreParams, latency: int, cores: int, shape: EncoderShape) -> Mapping[str, Load]:
    """The load of each stage of the core with the most work, core 0.

    latency : cycles from a burst's address to its first beat

    Raises `ParamError` where the core has no program for the encoder.
    """
    plan, out = EncoderPlan(shape, core.lxe_format(), 0, cores), {}
    registers: dict[int, int] = plan.registers(WORK, WEIGHTS, ENDS)
    for stage in plan.stages:
        steps = executed(core, plan.program(stage.name, stage.name), registers).steps
        work = busy_for(core, latency, steps)
        port = LxeTime(core, latency).run(steps).done
        out[stage.name] = Load(work["dpe"], work["vpe"], port, work["bytes"])
    return out


def times(stage: str, shape: EncoderShape) -> int:
    """How often a picture needs a stage."""
    return shape.layers if stage in LAYER else 1
