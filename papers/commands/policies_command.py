"""`vrex papers policies`: policies with and without hardware, timed on V-Rex by what they did on a stream."""

from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.papers.evaluation.other_policies import CACHES, PROFILES, Profile, policies, profile
from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table, system_options


def command(
    results: Annotated[
        Path | None,
        typer.Argument(help="results.json of `vrex papers stream`; figures of a recorded stream by default."),
    ] = None,
    on: Annotated[str, typer.Option("--platform", help="edge or server.")] = "edge",
    preset: console.System = None,
    param: console.Param = None,
    cache: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each stream in the cache; several lengths by default.")
    ] = None,
    batch: system_options.Batch = 1,
    json: console.Json = False,
) -> None:
    """Time a frame with every policy, those without hardware too.

    The figures are those of a recorded stream; entries lie behind the link. `vrex simulate policies` times the
    programs that a core runs.
    """
    check(on in system_options.SYSTEMS, "platform", on, f"must be one of {', '.join(system_options.SYSTEMS)}")
    profiles = system_options.read_results(results, _profiles) if results else PROFILES
    (v,) = system_options.systems(on, preset, param, "link")
    curve_table.show([policies(v, profiles, (cache,) if cache else CACHES, batch)], json)


def _profiles(results: dict) -> dict[str, Profile]:
    return {name: profile(results, name) for name in results["policies"]}
