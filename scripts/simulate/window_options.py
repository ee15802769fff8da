"""Options of the simulations of policies that a core can run: the policy's parameters, and the video for CodecSight."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from openvrex.golden.function_params import check
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.policies.registry import Entry, entry, override
from openvrex.golden.policies.window_decisions import WINDOWED, windowed
from openvrex.sim.system.core_policies import KINDS
from openvrex.sim.system.workload import MODELS, Decoder

ON_CORE = tuple(KINDS)  # policies that a core can run
MOTION = ("codecsight",)  # policies that look at the video's motion
PANEL = "Options of policies with a window"
# A policy -> its parameters that no time depends on, or that are the hardware's.
FIXED = {
    "pages": {
        "numbers": "give lxe.codes, the hardware's",
        "recent": "give kvmu.recent, the hardware's",
        "matrices": "no time depends on their values",
    }
}

Model = Annotated[str, typer.Option("--model", help=f"Decoder: {', '.join(MODELS)}.")]
Video = Annotated[
    str,
    typer.Option(
        help=f"Motion for codecsight: a video file, or a clip: {', '.join(video_in.CLIPS)}. It repeats without end.",
        rich_help_panel=PANEL,
    ),
]
Fps = Annotated[
    float, typer.Option(min=0.01, help="Sample this many frames of the video per second.", rich_help_panel=PANEL)
]
Gop = Annotated[
    int, typer.Option(min=0, help="Encode it again with this GOP; 0 takes it as it is.", rich_help_panel=PANEL)
]
AtOnce = Annotated[int, typer.Option(min=1, help="Most tokens of a pass.", rich_help_panel=PANEL)]


def check_used(ctx: typer.Context, names: Sequence[str]) -> None:
    """Raise `ParamError` for an option on the command line that has no effect on these policies."""
    for option, of in (("video", MOTION), ("fps", MOTION), ("gop", MOTION), ("at_once", WINDOWED)):
        source = ctx.get_parameter_source(option)
        typed = source is not None and source.name == "COMMANDLINE"
        name, some = f"--{option.replace('_', '-')}", " or ".join(of)
        check(
            not typed or any(n in of for n in names), name, ctx.params[option], f"needs --policy {some}: leave it out"
        )


def model(name: str) -> Decoder:
    """The decoder `name`. Raises `ParamError` for an unknown one."""
    check(name in MODELS, "model", name, f"must be one of {', '.join(MODELS)}")
    return MODELS[name]


def policies(names: Sequence[str], assignments: Sequence[str]) -> tuple[dict[str, Entry], list[str]]:
    """Policies by name with the parameters that -p gives them, and the other assignments, which are of the hardware.

    Raises `ParamError` for an unknown policy, and for unknown or bad parameters.
    """
    found: dict[str, Entry] = {}
    rest = list(assignments)
    for name in names:
        for fixed, why in FIXED.get(name, {}).items():
            typed = [one for one in rest if one.startswith(f"{name}.{fixed}=")]
            check(not typed, "-p", " ".join(typed), f"has no effect here: {why}")
        own = entry(name) if name in set(ON_CORE).difference(WINDOWED) else windowed(name)
        if hasattr(own.params, "arithmetic"):
            own = replace(own, params=replace(own.params, arithmetic="hardware"))
        mine = [one for one in rest if one.startswith(f"{name}.")]
        rest = [one for one in rest if one not in mine]
        check(not mine or name != "resv", "-p", " ".join(mine), "has no effect here: give the hardware's parameters")
        pairs = dict(one.removeprefix(f"{name}.").partition("=")[::2] for one in mine)
        found[name] = replace(own, params=override(own.params, pairs, f"{name}."))
        how = getattr(found[name].params, "arithmetic", "hardware")
        check(how == "hardware", f"{name}.arithmetic", how, "must be hardware: the core decides")
    return found, rest


def coded(names: Sequence[str], video: str, fps: float, gop: int) -> list[Frame | None]:
    """Types and motion of a video's frames without pictures, if a policy needs them."""
    if not any(n in MOTION for n in names):
        return [None]
    with TemporaryDirectory() as folder:
        source: str | Path = video
        if gop:
            source = Path(folder) / "stream.mkv"
            video_in.reencode(video, source, gop, None, fps)
        frames = video_in.read(source, None, None if gop else fps, 8)
        return [replace(frame, picture=frame.picture[:0]) for frame in frames]
