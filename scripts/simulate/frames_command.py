"""`vrex simulate frames`: times of a pass on presets as generated."""

from typing import Annotated

import typer

from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options
from openvrex.sim.system.frame_times import CACHES, frames


def command(
    on: system_options.System = None,
    preset: console.System = None,
    param: console.Param = None,
    cache: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each stream in the cache; 1K to 1M by default.")
    ] = None,
    home: system_options.Home = "link",
    batch: system_options.Batch = 1,
    stage: system_options.Stage = "frame",
    select: system_options.Select = None,
    json: console.Json = False,
) -> None:
    """Time passes on presets as generated, tables included."""
    system_options.check_names(on, system_options.SYSTEMS, stage=stage)
    point = system_options.point("resv", stage, batch=batch)
    found = system_options.systems(on, preset, param, home)
    chosen = system_options.selection(select, "resv", point.model, found[0].core)
    curve_table.show(frames(found, point, chosen, (cache,) if cache else CACHES), json)
