"""Options of the simulations of a whole system, and the selection that `--select` names."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from openvrex.golden.function_params import ParamError, check
from openvrex.golden.text_files import read_text
from openvrex.hdl.params import CoreParams
from openvrex.sim.system.core_policies import KINDS
from openvrex.sim.system.measured_gpu import MeasuredGpu
from openvrex.sim.system.passes import NOT_SELECTING, selected
from openvrex.sim.system.platforms import PLATFORMS, Vrex, platform
from openvrex.sim.system.platforms import Platform as Target
from openvrex.sim.system.selection import POLICY, Record, chosen, fetching, of_reading, recorded, records
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import HEADS, TABLE_II, WEIGHTS, Decoder, Selection, Session, measured, table_ii

T = TypeVar("T")
STAGES = ("frame", "question", "token")
POLICIES = (*TABLE_II, *NOT_SELECTING)
LLAMA = Decoder()
STREAM, TABLE = "world", "table2"
SYSTEMS = ("edge", "server")  # platforms of V-Rex with 8 and with 48 cores

Platform = Annotated[
    str,
    typer.Option("--platform", help=f"One of {', '.join(PLATFORMS)}, or a platform file of `vrex simulate gpu`."),
]
System = Annotated[str | None, typer.Option("--platform", help="edge or server; both by default.")]
Home = Annotated[
    str | None,
    typer.Option(
        "--home",
        help="Where entries lie that have left the ring: link, or device, the device memory while it has room; by "
        "default device where the preset has hardware for coded pages.",
    ),
]
Policy = Annotated[str, typer.Option("--policy", help=f"One of {', '.join(POLICIES)}.")]
OWN_POLICY = "the preset's own by default: pages where it has hardware for them, else resv; with --select, resv."
Batch = Annotated[int, typer.Option("--batch", min=1, help="Streams that the platform serves at once.")]
Cache = Annotated[int, typer.Option("--cache", min=1, help="Tokens of each stream in the cache.")]
Stage = Annotated[str, typer.Option("--stage", help=f"What enters the decoder: {', '.join(STAGES)}.")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help=f"Of the decoder's layers: {', '.join(WEIGHTS)}; q4_0 by default where cores expand 4-bit weights. "
        f"Behind a +, of its vocabulary: {', '.join(HEADS)}; q8_0 by default where layers are not bf16.",
    ),
]
Select = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="STREAM[:POLICY]",
        help=f"What is fetched: of a stream ({', '.join(records())}; {STREAM} by default) or results.json of "
        "`vrex papers stream`, by one of its policies (that of the preset's reading by default); or "
        f"{TABLE}, the shares of V-Rex's Table II.",
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


def own_policy(name: str | None, on: str, preset: str | None, assignments: Sequence[str] | None, of_resv: bool) -> str:
    """The policy that --policy names. If it is left out: that of the hardware, or `resv` if an option is ReSV's.

    Raises `ParamError` as `platform`.
    """
    if name is not None or of_resv:
        return name or POLICY
    hardware = [one for one in assignments or () if one.partition(".")[0] not in KINDS]
    found = platform(on, preset, hardware)
    return found.core.policy if isinstance(found, Vrex) else POLICY


def systems(on: str | None, preset: str | None, assignments: list[str] | None, home: str | None = None) -> list[Vrex]:
    """The V-Rex platforms that --platform, --preset, -p and --home name; both without a platform."""
    found = (platform(name, preset, assignments or (), home) for name in ((on,) if on else SYSTEMS))
    return [v for v in found if isinstance(v, Vrex)]


def point(policy: str, stage: str, cache: int = 40960, batch: int = 1, model: Decoder = LLAMA) -> Point:
    """The pass that the options describe."""
    rows = {"frame": Session.frame_tokens, "question": Session.question, "token": 1}[stage]
    return Point(cache, batch, rows, stage == "frame", policy, model)


def held(target: Target, model: Decoder, weights: str | None) -> Decoder:
    """The model with the weights that --weights names, or those that suit the platform.

    Raises `ParamError` as `Vrex.held`, and for 4-bit weights on a GPU, whose rates are those of BF16.
    """
    if isinstance(target, Vrex):
        return target.held(model, weights or "")
    if isinstance(target, MeasuredGpu) and model == LLAMA:
        model = target.decoder
    check(weights in (None, "bf16"), "weights", weights, "must be bf16 on a GPU, whose rates were fitted to it")
    return model


def selection(name: str | None, policy: str, model: Decoder, of: CoreParams | None = None) -> Selection:
    """The selection that --select names. If it is left out: what resv fetched on `STREAM`, of others Table II's shares.

    of : the core, whose reading of ReSV is taken where no policy is named; the default reading if not given

    Raises `ParamError` where the shares are not those of the policy.
    """
    if policy in NOT_SELECTING:
        check(name is None, "select", name, f"has no effect on {policy}, which selects nothing: leave it out")
        return selected(Point(1, policy=policy, model=model), None)
    if name == TABLE or (name is None and policy != "resv"):
        return table_ii(policy, model)
    name, default = name or STREAM, of_reading(of.dre.reading if of else POLICY)
    stream, own = (name, "") if ":" not in name or name.endswith(".json") else name.rsplit(":", 1)
    if policy != "resv":
        check(own in ("", policy), "select", name, f"names another policy than {policy}: leave one out")
        own = policy
    if stream in records():
        known = records()[stream]
        return measured(model, known[chosen(stream, own, known, default)])
    path, some = Path(stream), f"{TABLE}, one of {', '.join(records())}, or a results.json file"
    check(path.suffix == ".json", "select", name, f"must be {some}")

    def taken(results: dict) -> Record:
        return recorded(results, chosen(stream, own, fetching(results), default))

    return measured(model, read_results(path, taken))


def read_results(path: Path, what: Callable[[dict], T]) -> T:
    """`what` of a results.json. Raises: `ValueError` for any other file."""
    try:
        return what(json.loads(read_text(path)))
    except ParamError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as e:
        raise ValueError(
            f"{path}: not a results.json that `vrex papers stream` wrote, or of an older version ({e!r})"
        ) from None
