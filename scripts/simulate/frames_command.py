"""`vrex simulate frames`: times of a pass on presets as generated."""

from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options, window_options
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.frame_times import CACHES, frames, policy_frames
from openvrex.sim.system.workload import constant

POLICIES = (*system_options.POLICIES, "pages")


def command(
    on: system_options.System = None,
    preset: console.System = None,
    param: console.Param = None,
    cache: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each stream in the cache; 1K to 1M by default.")
    ] = None,
    home: system_options.Home = None,
    batch: system_options.Batch = 1,
    stage: system_options.Stage = "frame",
    policy: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(POLICIES)}; {system_options.OWN_POLICY}")
    ] = None,
    select: system_options.Select = None,
    weights: system_options.Weights = None,
    json: console.Json = False,
) -> None:
    """Time passes on presets as generated, tables included."""
    system_options.check_names(on, system_options.SYSTEMS, stage=stage)
    policy = system_options.own_policy(policy, on or system_options.SYSTEMS[0], preset, param, select is not None)
    check(policy in POLICIES, "policy", policy, f"must be one of {', '.join(POLICIES)}")
    point, caches = system_options.point(policy, stage, batch=batch), (cache,) if cache else CACHES
    entries, rest = window_options.policies([policy] if policy == "pages" else [], param or [])
    found = system_options.systems(on, preset, rest, home)
    for v in found:
        v.held(point.model, weights or "")  # a bad name is an error, not a cell of the table
    if policy == "pages":
        check(select is None, "select", select, "has no effect on pages, whose budget is pages.budget: leave it out")
        check(stage != "question", "stage", stage, "must be frame or token for pages")
        given = Given(constant(policy, 0.0, 0.0, point.model))
        curve_table.show(policy_frames(found, point, policy, entries[policy], given, caches, weights or ""), json)
        return
    chosen = system_options.selection(select, policy, point.model, found[0].core)
    curve_table.show(frames(found, point, chosen, caches, weights or ""), json)
