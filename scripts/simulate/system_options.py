"""Options of the simulations of a whole system, and the selection that `--select` names."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from golden.function_params import check
from golden.text_files import read_text
from sim.system.passes import NOT_SELECTING, selected
from sim.system.platforms import PLATFORMS, Vrex, platform
from sim.system.selection import RATIOS, shares
from sim.system.timeline import Point
from sim.system.workload import TABLE_II, Decoder, Selection, Session, measured, table_ii, traced

T = TypeVar("T")
STAGES = ("frame", "question", "token")
POLICIES = (*TABLE_II, *NOT_SELECTING)
LLAMA = Decoder()
SYSTEMS = ("edge", "server")  # platforms of V-Rex with 8 and with 48 cores

Platform = Annotated[str, typer.Option("--platform", help=f"One of {', '.join(PLATFORMS)}.")]
System = Annotated[str | None, typer.Option("--platform", help="edge or server; both by default.")]
Policy = Annotated[str, typer.Option("--policy", help=f"One of {', '.join(POLICIES)}.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Streams that the platform serves at once.")]
Cache = Annotated[int, typer.Option("--cache", min=1, help="Tokens of each stream in the cache.")]
Stage = Annotated[str, typer.Option("--stage", help=f"What enters the decoder: {', '.join(STAGES)}.")]
Select = Annotated[
    str | None,
    typer.Option(
        "--select",
        help=f"Share of the cache that is fetched: table2 (V-Rex, the default), {', '.join(RATIOS)}, or results.json.",
    ),
]


def check_names(on: str | None, known: Collection[str], policy: str | None = "resv", stage: str = "frame") -> None:
    """Raise `ParamError` for a name that no table of the simulator has."""
    for name, value, allowed in (
        ("platform", on, known),
        ("policy", policy, POLICIES),
        ("stage", stage, STAGES),
    ):
        check(value is None or value in allowed, name, value, f"must be one of {', '.join(allowed)}")


def systems(on: str | None, preset: str | None, assignments: list[str] | None) -> list[Vrex]:
    """The V-Rex platforms that --platform, --preset and -p name; both without a platform."""
    found = (platform(name, preset, assignments or ()) for name in ((on,) if on else SYSTEMS))
    return [v for v in found if isinstance(v, Vrex)]


def point(policy: str, stage: str, cache: int = 40960, batch: int = 1, model: Decoder = LLAMA) -> Point:
    """The pass that the options describe."""
    rows = {"frame": Session.frame_tokens, "question": Session.question, "token": 1}[stage]
    return Point(cache, batch, rows, stage == "frame", policy, model)


def selection(name: str | None, policy: str, model: Decoder) -> Selection:
    """The selection that --select names; the shares of Table II if it is left out.

    Raises `ParamError` where the shares are not those of the policy.
    """
    if policy in NOT_SELECTING:
        check(name is None, "select", name, f"has no effect on {policy}, which selects nothing: leave it out")
        return selected(Point(1, policy=policy, model=model), None)
    if name is None or name == "table2":
        return table_ii(policy, model)
    check(policy == "resv", "select", name, f"has the shares of resv, not of {policy}: leave it out for Table II's")
    if name in RATIOS:
        return traced(model, name)
    path = Path(name)
    check(path.suffix == ".json", "select", name, f"must be table2, one of {', '.join(RATIOS)}, or a results.json file")
    return measured(model, name, *read_results(path, shares))


def read_results(path: Path, what: Callable[[dict], T]) -> T:
    """`what` of a results.json. Raises: `ValueError` for any other file."""
    try:
        return what(json.loads(read_text(path)))
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as e:
        raise ValueError(f"{path}: not a results.json that `vrex stream` wrote with this policy ({e!r})") from None
