"""`vrex simulate engines`: which DRE a system should have."""

from typing import Annotated

import typer

from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options
from openvrex.sim.system.limits import BATCHES, engines


def command(
    on: system_options.System = None,
    preset: console.System = None,
    param: console.Param = None,
    policy: system_options.Policy = "resv",
    cache: system_options.Cache = 40960,
    batch: Annotated[int | None, typer.Option(min=1, help="Streams served at once; several by default.")] = None,
    stage: system_options.Stage = "frame",
    select: system_options.Select = None,
    json: console.Json = False,
) -> None:
    """Time a pass with DREs of different sizes."""
    system_options.check_names(on, system_options.SYSTEMS, policy, stage)
    point = system_options.point(policy, stage, cache)
    platforms = tuple(system_options.systems(on, preset, param))
    chosen = system_options.selection(select, policy, point.model, platforms[0].core)
    curve_table.show([engines(point, chosen, (batch,) if batch else BATCHES, platforms)], json)
