"""`vrex simulate limits`: how a pass grows beyond the paper's 40K cached tokens."""

from typing import Annotated

import typer

from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options
from openvrex.sim.system.limits import CACHES, limits


def command(
    on: system_options.System = None,
    policy: system_options.Policy = "resv",
    cache: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each stream in the cache; several lengths by default.")
    ] = None,
    batch: system_options.Batch = 1,
    stage: system_options.Stage = "frame",
    select: system_options.Select = None,
    json: console.Json = False,
) -> None:
    """Time a pass with up to 1M cached tokens.

    The table also shows what limits the pass.
    """
    system_options.check_names(on, system_options.SYSTEMS, policy, stage)
    point = system_options.point(policy, stage, batch=batch)
    chosen = system_options.selection(select, policy, point.model)
    curve_table.show([limits(point, chosen, (cache,) if cache else CACHES, (on,) if on else ())], json)
