"""The work of a vision encoder's programs on the cores that share a picture, by stage, played by the time view."""

from collections.abc import Mapping
from functools import lru_cache

from openvrex.golden.program.encoder_compiler import LAYER, EncoderPlan, EncoderShape
from openvrex.golden.program.isa import LoadTo, Opcode
from openvrex.hdl.params import SystemParams
from openvrex.sim.system.layer_load import Load
from openvrex.sim.system.share_cycles import busy_for, executed
from openvrex.sim.units.lxe_time import LxeTime

# Addresses far apart, so that no burst is cut because of another array.
WORK, WEIGHTS, ENDS = (1 << n for n in (32, 34, 36))


@lru_cache(maxsize=64)
def loads(system: SystemParams, latency: int, shape: EncoderShape) -> Mapping[str, tuple[Load, float]]:
    """Of each stage the load of the core with the most work, core 0, and the bytes of all cores at the memory.

    latency : cycles from a burst's address to its first beat

    What a group of cores reads together (`system.common`) counts once at the memory. Raises `ParamError` where the core
    has no program for the encoder.
    """
    core, cores = system.core, system.cores
    plan, out = EncoderPlan(shape, core.lxe_format(), 0, cores, system.common), {}
    registers: dict[int, int] = plan.registers(WORK, WEIGHTS, ENDS)
    for stage in plan.stages:
        steps = executed(core, plan.program(stage.name, stage.name), registers).steps
        work = busy_for(core, latency, steps)
        port = LxeTime(core, latency).run(steps).done
        group = plan.group(stage.name)
        rows = [s for s in steps if group > 1 and s.op == Opcode.LOAD and s.beat["target"] == LoadTo.X]
        together = busy_for(core, latency, rows)["bytes"] if rows else 0
        moved = (work["bytes"] - together + together / group) * cores
        out[stage.name] = Load(work["dpe"], work["vpe"], port, work["bytes"]), moved
    return out


def times(stage: str, shape: EncoderShape) -> int:
    """How often a picture needs a stage."""
    return shape.layers if stage in LAYER else 1
