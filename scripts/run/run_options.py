"""Options that the commands of `vrex run` share, alone or as a group (`grouped`)."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openvrex.golden.function_params import check
from openvrex.golden.inputs import video as video_in
from openvrex.golden.policies.stream_runs import Options
from openvrex.scripts import console
from openvrex.tb.library.window_stream import TOKENS

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from distributed import Client

STREAM, AGAIN = "The stream", "Passes once more"
WORKERS = 2  # where the user names none
Again = tuple[int, int, bool]  # first and last pass to repeat, and whether to leave waveforms

ENCODERS = "core", "numpy"
Encoder = Annotated[str, typer.Option(help="What encodes frames: core, or numpy, which takes less time.")]
Layers = Annotated[int, typer.Option(min=1, help="Number of decoder layers, from the first one.")]
Model = Annotated[
    Path | None,
    typer.Option(help="Your decoder: a Hugging Face folder, also GPTQ or AWQ, or a GGUF file.", show_default="SmolLM2"),
]
Frames = Annotated[int, typer.Option(min=1, help="Number of frames, from the first one.")]
Video = Annotated[
    str, typer.Option(help=f"Video file, or a clip: {', '.join(video_in.CLIPS)}.", rich_help_panel=STREAM)
]
Tokens = Annotated[int, typer.Option(help="Tokens of each frame: g*g, or g*g + 1.", rich_help_panel=STREAM)]
Fps = Annotated[
    float | None, typer.Option(help="Sample this many frames per second; all by default.", rich_help_panel=STREAM)
]
Gop = Annotated[
    int, typer.Option(help="Encode the video again with this GOP; 0 takes it as it is.", rich_help_panel=STREAM)
]
Question = Annotated[str, typer.Option(help="Text behind the frames.", rich_help_panel=STREAM)]
Generate = Annotated[int, typer.Option(help="Tokens behind the question, which FP32 chooses.", rich_help_panel=STREAM)]
AtOnce = Annotated[int, typer.Option(help="Most tokens of a pass.")]
Slots = Annotated[int, typer.Option(help="Entries that device memory holds; 0: as many as needed.")]
First = Annotated[
    int | None,
    typer.Option(
        "--from", min=0, help="Repeat passes from this number on, and compare them again.", rich_help_panel=AGAIN
    ),
]
Last = Annotated[
    int | None,
    typer.Option("--to", min=0, help="Last pass to repeat; by default that of --from.", rich_help_panel=AGAIN),
]
Waves = Annotated[
    bool,
    typer.Option(
        "--waves", help="With --from: leave each pass's waveform in FOLDER/passes/waves.", rich_help_panel=AGAIN
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help=f"Worker processes, or jobs; {WORKERS} by default.")
]


@dataclass(frozen=True)
class Watching:
    """Options of a run over a video: how it becomes a stream, and a pass."""

    video: Video = "world"
    frames: Frames = 3
    tokens: Tokens = 16
    fps: Fps = None
    gop: Gop = 0
    question: Question = Options.question
    generate: Generate = 2
    layers: Layers = 2
    model: Model = None
    at_once: AtOnce = TOKENS
    slots: Slots = 0

    @property
    def options(self) -> Options:
        """How the video becomes a stream."""
        return Options(self.frames, self.tokens, self.fps, self.question, self.generate, self.gop, self.layers)


@dataclass(frozen=True)
class Playing:
    """Options of any run: what of it is played, by whom, on which core, and where the results go.

    Raises `ParamError` without --from.
    """

    first: First = None
    last: Last = None
    waves: Waves = False
    workers: Workers = None
    scheduler: console.Scheduler = None
    jobs: console.Jobs = None
    param: console.Param = None
    folder: console.Folder = Path("build/run")
    json: console.Json = False

    def __post_init__(self) -> None:
        whole = self.last is None and not self.waves
        check(self.first is not None or whole, "--from", self.first, "must be given with --to and --waves")

    @property
    def repeat(self) -> Again | None:
        """What to repeat; None: nothing."""
        return None if self.first is None else (self.first, self.first if self.last is None else self.last, self.waves)

    def connect(self, stack: ExitStack) -> "Client":
        """Workers until `stack` ends."""
        from openvrex.synth.sweep.dask_run import cluster

        many = self.workers or (None if self.scheduler else WORKERS)
        return stack.enter_context(cluster(self.scheduler, self.jobs, many))


@dataclass(frozen=True)
class Answering(Playing):
    """Those of `vrex answer`."""

    folder: console.Folder = Path("build/answer")


def check_encoder(name: str) -> None:
    """Raise `ParamError` for what is no encoder."""
    check(name in ENCODERS, "encoder", name, f"must be one of {', '.join(ENCODERS)}")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the fields of each group of options in place of the parameter that takes the group."""
    own = signature(command).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in own if is_dataclass(p.annotation)}
    flat: list[Parameter] = []
    for p in own:
        group = groups.get(p.name)
        flat += [p.replace(name=f.name, default=f.default, annotation=f.type) for f in fields(group)] if group else [p]

    def called(**given: Any) -> None:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**given, **made)

    called.__doc__, called.__module__ = command.__doc__, command.__module__
    called.__annotations__ = {p.name: p.annotation for p in flat}
    called.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    return called
