"""`vrex simulate policies`: the retrieval policies on V-Rex's hardware."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options, window_options
from openvrex.scripts.simulate.window_options import ON_CORE
from openvrex.sim.evaluation import core_policies
from openvrex.sim.evaluation.core_policies import compare, curve
from openvrex.sim.evaluation.other_policies import CACHES, PROFILES, Profile, policies, profile
from openvrex.sim.system.workload import MODELS

MODEL = next(iter(MODELS))


def command(
    ctx: typer.Context,
    results: Annotated[
        Path | None, typer.Argument(help="results.json of `vrex stream`; figures of a recorded stream by default.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"Time the programs of these: {', '.join(ON_CORE)}, joined by commas, or all."),
    ] = None,
    on: Annotated[str, typer.Option("--platform", help="edge or server.")] = "edge",
    preset: console.System = None,
    param: console.Param = None,
    cache: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each stream in the cache; several lengths by default.")
    ] = None,
    batch: system_options.Batch = 1,
    model: window_options.Model = MODEL,
    select: Annotated[
        str | None,
        typer.Option(help="With --policy: shares that resv fetches, as of `vrex simulate pass`; world by default."),
    ] = None,
    video: window_options.Video = "world",
    fps: window_options.Fps = 2.0,
    gop: window_options.Gop = 16,
    at_once: window_options.AtOnce = 16,
    json: console.Json = False,
) -> None:
    """Time a frame with each retrieval policy.

    Without --policy, from what the policies do on a recorded stream, those without hardware too. With --policy, from
    the programs that a core runs.
    """
    check(on in system_options.SYSTEMS, "platform", on, f"must be one of {', '.join(system_options.SYSTEMS)}")
    names = ON_CORE if policy == "all" else (policy or "").split(",")
    window_options.check_used(ctx, names)
    check(select is None or "resv" in names, "select", select, "needs --policy resv: leave it out")
    if policy is not None:
        check(results is None, "results", str(results), "has no effect with --policy: leave it out")
        check(batch == 1, "batch", batch, "must be 1 with --policy: each stream has a window, and passes of its own")
        entries, rest = window_options.policies(names, param or [])
        decoder = window_options.model(model)
        (v,) = system_options.systems(on, preset, rest)
        shares = system_options.selection(select, "resv", decoder, v.core)
        coded = window_options.coded(names, video, fps, gop)
        rows = compare(v, entries, decoder, (cache,) if cache else core_policies.CACHES, shares, coded, at_once)
        if json:
            console.print_json([asdict(row) for row in rows])
        else:
            curve_table.show([curve(v, rows, shares)], json)
        return
    check(model == MODEL, "model", model, "has no effect without --policy: leave it out")
    profiles = system_options.read_results(results, _profiles) if results else PROFILES
    (v,) = system_options.systems(on, preset, param)
    curve_table.show([policies(v, profiles, (cache,) if cache else CACHES, batch)], json)


def _profiles(results: dict) -> dict[str, Profile]:
    return {name: profile(results, name) for name in results["policies"]}
