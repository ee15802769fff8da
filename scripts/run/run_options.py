"""Options that the commands of `vrex run` share."""

from typing import Annotated

import typer

from openvrex.golden.inputs import video as video_in
from openvrex.golden.policies.stream_runs import Options
from openvrex.tb.library.window_stream import TOKENS

STREAM, AGAIN = "The stream", "Passes once more"
WORKERS = 2  # where the user names none
AT_ONCE, QUESTION = TOKENS, Options.question

Layers = Annotated[int, typer.Option(min=1, help="Number of decoder layers, from the first one.")]
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
