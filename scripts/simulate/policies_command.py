"""`vrex simulate policies`: the policies that run on a core, timed by their programs."""

from dataclasses import asdict
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options, window_options
from openvrex.scripts.simulate.window_options import ON_CORE
from openvrex.sim.system import core_policies
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import compare, curve
from openvrex.sim.system.workload import MODELS

MODEL = next(iter(MODELS))


def command(
    ctx: typer.Context,
    policy: Annotated[str, typer.Option(help=f"Of {', '.join(ON_CORE)}, joined by commas, or all.")] = "all",
    on: Annotated[str, typer.Option("--platform", help="edge or server.")] = "edge",
    preset: console.System = None,
    param: console.Param = None,
    cache: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each stream in the cache; several lengths by default.")
    ] = None,
    home: system_options.Home = None,
    model: window_options.Model = MODEL,
    weights: system_options.Weights = None,
    select: Annotated[
        str | None,
        typer.Option(help="Shares that resv fetches, as of `vrex simulate pass`; world by default."),
    ] = None,
    video: window_options.Video = "world",
    fps: window_options.Fps = 2.0,
    gop: window_options.Gop = 16,
    at_once: window_options.AtOnce = 16,
    json: console.Json = False,
) -> None:
    """Time a frame with each policy that runs on a core.

    `vrex papers policies` also times policies without hardware, from what they do on a recorded stream.
    """
    check(on in system_options.SYSTEMS, "platform", on, f"must be one of {', '.join(system_options.SYSTEMS)}")
    names = ON_CORE if policy == "all" else policy.split(",")
    window_options.check_used(ctx, names)
    check(select is None or "resv" in names, "select", select, "needs --policy resv: leave it out")
    entries, rest = window_options.policies(names, param or [])
    (v,) = system_options.systems(on, preset, rest, home)
    decoder = system_options.held(v, window_options.model(model), weights)
    shares = system_options.selection(select, "resv", decoder, v.core)
    given = Given(shares, window_options.coded(names, video, fps, gop), at_once)
    rows = compare(v, entries, decoder, (cache,) if cache else core_policies.CACHES, given)
    if json:
        console.print_json([asdict(row) for row in rows])
    else:
        curve_table.show([curve(v, rows, shares)], json)
