"""CodecSight Figs. 16 to 18 on real clips: stride, threshold of motion, and GOP."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

from openvrex.golden.function_params import check
from openvrex.golden.inputs import decoder, vision
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.codec import PruneParams, Pruner
from openvrex.golden.inputs.frames import Frame, Window
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.papers.commands.prune_command import PROMPT, PRUNING, QUERY, distance, remembered
from openvrex.papers.policies import codecsight_encoder as codecsight
from openvrex.papers.policies.codecsight_encoder import SYSTEMS, Prefilled, Server
from openvrex.scripts.quantity import Column

TAU, GOP, STRIDE = 0.25, 16, 0.2  # the paper's choice, from which one is varied
SWEEPS: dict[str, tuple[float, ...]] = {
    "stride": (0.1, 0.2, 0.5, 1.0),
    "tau": (0.25, 0.5, 1.0, 2.0, 5.0),
    "gop": (4, 8, 16),
}
WINDOW, FRAMES = 80, 256  # the paper's window; most frames of a clip
SHORT, DEPTH = 20, 3  # window of the runs in the decoder, and their layers
PAPER = {  # latency over that of the paper's choice, F1
    ("stride", 0.1): "0.92, below 0.90",
    ("stride", 0.2): "1.00, 0.90",
    ("stride", 1.0): "1.45, 0.84",
    ("tau", 0.25): "1.00, 0.81",
    ("tau", 5.0): "0.83, 0.73",
    ("gop", 4): "1.33, 0.77",
    ("gop", 8): "-, 0.79",
    ("gop", 16): "1.00, 0.81",
}
COLUMNS = {
    "clip": Column("clip"),
    "varied": Column("varied"),
    "value": Column("value"),
    "pruned": Column("pruned", "%", 1),
    "computed": Column("computed", "%", 1),
    "relative": Column("over the choice", "x", 2),
    "refreshed": Column("I-frames refreshed", "", 1),
    "error": Column("error at the query", "", 3),
    "paper": Column("paper: latency, F1"),
}
NOTE = (
    f"Windows of {WINDOW} frames. One of stride, tau (pixels) and GOP varies, the others are 20 %, 0.25 and 16. "
    "pruned: share of visual tokens. computed: tokens that a window after the first computes, of all its visual "
    "tokens; then over that at the paper's choice. I-frames refreshed: of the overlap, a window. error: of the hidden "
    f"states at the query against full recomputation, in windows of {SHORT} frames and {DEPTH} layers."
)


def located(clips: str, frames: int, errors: bool) -> dict[str, Path]:
    """The files of the clips, named with commas between. Raises before anything is read if one is missing."""
    check(frames > WINDOW, "frames", frames, f"must be more than {WINDOW}: the first window has nothing to reuse")
    for model in (decoder.MODEL, vision.MODEL) if errors else ():
        video_in.package_file(*model)
    return {clip: video_in.locate(clip) for clip in clips.split(",")}


def draw(clips: dict[str, Path], frames: int, errors: bool, bar: Progress) -> Drawn:
    """The three sweeps on each clip; `errors` also runs the windows of the first clip in the decoder."""
    rows: list[Row] = []
    task = bar.add_task("codecsight", total=len(clips) + len(SWEEPS["gop"]) * errors)
    for clip, path in clips.items():
        rows += counts(clip, path, frames)
        bar.advance(task)
    if errors:
        found = query_errors(next(iter(clips.values())), lambda: bar.advance(task))
        for row in rows[: sum(map(len, SWEEPS.values()))]:
            row["error"] = found[setting(str(row["varied"]), float(str(row["value"])))]
    title = "CodecSight Figs. 16 to 18: stride, threshold of motion, GOP"
    paper = "latency falls with a smaller stride, a larger tau and a larger GOP; F1 is best at 20 %, 0.25 px and 16."
    return Drawn(title, paper, COLUMNS, rows, NOTE, plot)


def setting(name: str, value: float) -> tuple[float, int, float]:
    """tau, GOP and stride with one of them at `value`."""
    chosen = {"tau": TAU, "gop": GOP, "stride": STRIDE} | {name: value}
    return chosen["tau"], int(chosen["gop"]), chosen["stride"]


def counts(clip: str, path: Path, most: int) -> list[Row]:
    """A row for each value of `SWEEPS`, from frame types and motion vectors alone."""
    frames = {gop: coded(path, int(gop), most, 8) for gop in SWEEPS["gop"]}
    short = min(map(len, frames.values()))
    check(short > WINDOW, "clip", clip, f"has {short} frames; a clip of more than {WINDOW} is needed")
    done: dict[tuple[float, int, float], Row] = {}
    rows: list[Row] = []
    for name, values in SWEEPS.items():
        for value in values:
            tau, gop, stride = now = setting(name, value)
            if now not in done:
                kept = [Pruned(f.leads, m) for f, m in zip(frames[gop], masks(frames[gop], tau), strict=True)]
                done[now] = work(kept, WINDOW, round(stride * WINDOW))
            row: Row = {"clip": clip, "varied": name, "value": f"{value:g}", "error": None}
            rows.append(row | done[now] | {"paper": PAPER.get((name, value))})
    choice = done[TAU, GOP, STRIDE]["computed"]
    for row in rows:
        row["relative"] = row["computed"] / choice if row["computed"] else None
    return rows


@dataclass(frozen=True)
class Pruned:
    """What the counts need of a frame: whether it leads its GOP, and the share of its tokens that is kept."""

    leads: bool
    kept: float


def masks(frames: list[Frame], tau: float) -> Iterator[float]:
    """The share of each frame's tokens that the pruner keeps."""
    pruner = Pruner(PruneParams(**vars(PRUNING) | {"tau": tau}))
    for frame in frames:
        yield float(pruner(frame).mean())


def work(frames: list[Pruned], w: int, s: int) -> Row:
    """Pruned and computed shares, and refreshed I-frames a window, over whole windows after the first.

    None where a clip has no second window.

    A window computes its new frames and, of the overlap, the I-frames that have moved.
    """
    computed = every = 0.0
    refreshed, n = 0, 0
    last: set[int] = set()
    for window in whole(iter(frames), w, s):  # type: ignore[arg-type]  # any frame that says whether it leads
        at = range(window.start, window.start + len(window.frames))
        old = [i for i in at if i in last]
        # The overlap moves unless nothing in front of it was dropped.
        again = [i for i in old if frames[i].leads] if last and min(last) < window.start else []
        if last:
            computed += sum(frames[i].kept for i in at if i not in last) + sum(frames[i].kept for i in again)
            every += len(at)
            refreshed, n = refreshed + len(again), n + 1
        last = set(at)
    return {
        "pruned": 1 - float(np.mean([f.kept for f in frames])),
        "computed": computed / every if n else None,
        "refreshed": refreshed / n if n else None,
    }


def whole(stream: Iterator[Frame], w: int, s: int) -> Iterator[Window]:
    """Windows of at least w frames, each from the start of a GOP; the short one at the end is left out."""
    return (x for x in video_in.windows(stream, w, s, whole_gops=True) if len(x.frames) >= w)


def coded(path: Path, gop: int, most: int, size: int) -> list[Frame]:
    """The frames of a clip encoded anew with this GOP."""
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "clip.mkv"
        video_in.reencode(path, again, gop, most)
        return list(video_in.read(again, None, None, size))


def query_errors(path: Path, advance: Callable[[], None]) -> dict[tuple[float, int, float], float]:
    """Error of the hidden states at the query against full recomputation, for each setting of `SWEEPS`."""
    model, encoder = decoder.Decoder(DEPTH, 3 * SHORT * 64 + 1024), vision.VisionEncoder()
    prompt, query = model.embed(PROMPT), model.embed(QUERY)
    wanted = {setting(name, value) for name, values in SWEEPS.items() for value in values}
    out: dict[tuple[float, int, float], float] = {}
    for gop in SWEEPS["gop"]:
        frames = coded(path, int(gop), 2 * SHORT, vision.IMAGE)
        fit = np.concatenate([encoder(f.picture)[1:] for f in frames[:8]])
        projector = vision.Projector.fit(fit, model.embeddings)
        see = remembered(codecsight.Vision(encoder, projector, "whole"))
        fulls: dict[float, list[Prefilled]] = {}
        for now in sorted(x for x in wanted if x[1] == gop):
            tau, _, stride = now
            spans = list(whole(iter(frames), SHORT, round(stride * SHORT)))
            if stride not in fulls:
                fulls[stride] = [Server(SYSTEMS["full"], model, see, prompt, query)(span) for span in spans]
            own = Server(
                SYSTEMS["codecsight"],
                model,
                codecsight.Vision(encoder, projector, "pruned", PruneParams(tau=tau)),
                prompt,
                query,
            )
            got = [distance(own(span).hidden, full.hidden) for span, full in zip(spans, fulls[stride], strict=True)]
            out[now] = float(np.mean(got[1:]))  # the first window has nothing to reuse
        advance()
    return out


def plot(rows: list[Row]) -> Figure:
    """Tokens computed, relative to the paper's choice, against each parameter; a curve a clip."""
    figure = Figure((11, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(SWEEPS)), SWEEPS, strict=True):
        for clip in dict.fromkeys(r["clip"] for r in rows):
            own = [r for r in rows if r["clip"] == clip and r["varied"] == name]
            axes.plot([str(r["value"]) for r in own], [r["relative"] for r in own], marker="o", label=str(clip))
        paper = [(f"{v:g}", PAPER[name, v].split(",")[0]) for v in SWEEPS[name] if (name, v) in PAPER]
        shown = [(x, float(y)) for x, y in paper if y != "-"]
        axes.plot(*zip(*shown, strict=True), "k*", linestyle="none", label="paper's latency")
        axes.set(xlabel=name, ylabel="tokens computed, over the choice")
    axes.legend(fontsize="x-small")
    return figure
