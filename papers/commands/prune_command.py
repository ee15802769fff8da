"""`vrex papers prune`: the visual tokens that CodecSight prunes, and the error that this causes."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.golden.inputs import decoder, vision
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.codec import PruneParams, Pruner, Recorded, mean_motion, motion_class, save_motion
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.video import CLIPS
from openvrex.golden.policies.registry import override
from openvrex.papers.commands.assignments import assigned
from openvrex.papers.policies import codecsight_encoder as codecsight
from openvrex.papers.policies.codecsight_encoder import SYSTEMS, Counts, Prefilled, Server, Visual
from openvrex.scripts import console
from openvrex.scripts.progress import track

PROMPT = "<|im_start|>user\n"
QUERY = "\nDoes anything unusual happen? Start your response with 'Yes' or 'No'.<|im_end|>\n<|im_start|>assistant\n"
PRUNING = PruneParams(grid=32)


def command(
    videos: Annotated[list[str], typer.Argument(metavar="VIDEO...", help=f"Video files or clips: {', '.join(CLIPS)}.")],
    param: Annotated[list[str] | None, typer.Option("-p", help="grid, tau, alpha or rule=value.")] = None,
    frames: Annotated[int, typer.Option(min=1, help="Most frames.")] = 256,
    fps: Annotated[
        float | None, typer.Option(help="Sample this many frames per second; all frames by default.")
    ] = None,
    gop: Annotated[
        int,
        typer.Option(
            min=0,
            help="Encode videos again with this GOP and no B-frames, as surveillance does; 0 takes them as they are.",
        ),
    ] = 16,
    window: Annotated[
        int, typer.Option(min=0, help="Also run windows of this many frames through the models; 0: none.")
    ] = 0,
    stride: Annotated[int, typer.Option(min=1, help="Number of frames between windows.")] = 16,
    depth: Annotated[
        int, typer.Option(min=1, max=decoder.N_LAYERS, help="Number of decoder layers that windows run through.")
    ] = decoder.N_LAYERS,
    vectors: Annotated[
        Path | None,
        typer.Option(parser=console.file, metavar="FILE.npz", help="Write frame types and motion vectors."),
    ] = None,
    json: console.Json = False,
) -> None:
    """Measure the tokens that CodecSight prunes by motion vectors."""
    if vectors:
        console.check_replaced(vectors, "--vectors", "motion vectors", rb"PK\x03\x04.*")
        check(vectors.suffix == ".npz", "--vectors", str(vectors), "must end in .npz")
    params = override(PRUNING, dict(assigned(param or [], "name=value")))
    how = (params, frames, fps, gop, depth, window, stride, vectors)
    found = [measure(video, *how, quiet=json) for video in videos]
    if json:
        console.print_json(found[0] if len(found) == 1 else found)
        return
    for result in found:
        show(result)


def measure(
    video: str,
    params: PruneParams,
    frames: int,
    fps: float | None,
    gop: int,
    depth: int,
    window: int,
    stride: int,
    vectors: Path | None,
    quiet: bool,
) -> dict:
    """Shares of pruned tokens of a video, and with a `window` what each system computes.

    vectors : file to write frame types and motion vectors into
    """
    rate = fps
    path = video_in.locate(video)
    with tempfile.TemporaryDirectory() as folder:
        most: int | None = frames
        if gop:
            path, most, rate = Path(folder) / f"{path.stem}.mkv", None, None
            video_in.reencode(video, path, gop, frames, fps)
        result = {"video": video, **pruning(video_in.read(path, most, rate, 8, params.alpha > 0), params)}
        if vectors is not None:
            read = video_in.read(path, most, rate, 8)
            save_motion(vectors, (Recorded(f.kind, f.gop, f.size, f.motions) for f in read))
        if window:
            stream = video_in.read(path, most, rate, vision.IMAGE)
            prune = PruneParams(tau=params.tau, rule=params.rule)
            result["windows"] = windows(stream, window, stride, depth, prune, quiet)
    return result


def show(result: dict) -> None:
    """Print what `measure` found."""
    moves = "no motion vectors"
    if result["motion"] is not None:
        moves = f"{result['motion_class']} motion ({result['motion']:.2f} px a frame)"
    console.out.print(
        f"{result['video']}: {result['frames']} frames ({result['types']}), {moves}, tokens pruned "
        f"{result['pruned']:.1%}, without accumulation {result['pruned_alone']:.1%}"
    )
    if "windows" in result:
        console.out.print(table(result["windows"]))


def pruning(frames: Iterable[Frame], params: PruneParams) -> dict:
    """Motion, frame types, and the share of pruned visual tokens with and without accumulation."""
    frames = list(frames)
    pruner, alone = Pruner(params), Pruner(PruneParams(**vars(params) | {"accumulate": False}))
    kinds, kept = [], []
    for frame in frames:
        kinds.append(frame.kind)
        kept.append((pruner(frame).mean(), alone(frame).mean()))
    pruned = 1 - np.mean(kept, axis=0)
    types = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    motion = mean_motion(frames)
    found = {"frames": len(kinds), "types": types, "motion": motion, "motion_class": motion_class(motion)}
    return found | {"pruned": pruned[0], "pruned_alone": pruned[1]}


@dataclass
class Row:
    """Sums for one system over all windows but the first."""

    tokens: int = 0  # of the windows' sequences
    counts: Counts = field(default_factory=Counts)
    hidden: list[float] = field(default_factory=list)  # |h - h_full| / |h_full| at the query, last layer
    reuse: list[float] = field(default_factory=list)  # the same of the attention's output, against the same tokens

    def add(self, got: Prefilled, same: Prefilled, full: Prefilled) -> None:
        """Add the result of one window, with those of full recomputation of the same tokens and of all tokens."""
        self.tokens += len(got.tokens.frame)
        self.counts += got.counts
        self.hidden.append(distance(got.hidden, full.hidden))
        self.reuse.append(distance(got.outputs, same.outputs))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The relative distance |a - b| / |b|."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def windows(stream: Iterator[Frame], w: int, s: int, depth: int, prune: PruneParams, quiet: bool) -> dict[str, dict]:
    """Run every system over the same windows. The first window, which has nothing to reuse, is not counted."""
    check(w * prune.tokens + 256 <= 8192, "window", w, f"the decoder knows 8192 positions, {prune.tokens} a frame")
    spans = list(video_in.windows(stream, w, s, whole_gops=True))
    check(len(spans) > 1, "window", w, f"the stream has one window only: give more than {w} frames")
    model, encoder = decoder.Decoder(depth, w * prune.tokens + 1024), vision.VisionEncoder()
    fit = np.concatenate([encoder(f.picture)[1:] for f in spans[0].frames[:8]])
    projector = vision.Projector.fit(fit, model.embeddings)
    seen = {kind: remembered(codecsight.Vision(encoder, projector, kind, prune)) for kind in codecsight.VISION}
    prompt, query = model.embed(PROMPT), model.embed(QUERY)
    servers = {name: Server(x, model, seen[x.vision], prompt, query) for name, x in SYSTEMS.items()}
    rows = {name: Row() for name in SYSTEMS}
    for span in track(spans, "windows", quiet):
        got = {name: server(span) for name, server in servers.items()}
        if span.index:
            for name, row in rows.items():
                same = {"pruned": "prune", "similar": "dejavu", "whole": "full"}[SYSTEMS[name].vision]
                row.add(got[name], got[same], got["full"])
    return {name: summary(row, rows["full"], depth) for name, row in rows.items()}


def remembered(see: codecsight.Vision) -> Callable[[Frame], Visual]:
    """A vision that several systems share, so that each frame runs once."""
    done: dict[int, Visual] = {}

    def call(frame: Frame) -> Visual:
        if frame.index not in done:
            done[frame.index] = see(frame)
        return done[frame.index]

    return call


def summary(row: Row, full: Row, depth: int) -> dict:
    """Work as shares of full recomputation, and mean errors."""
    c, f = row.counts, full.counts
    return {
        "patches": c.patches / f.patches,
        "sequence": row.tokens / full.tokens,
        "tokens": c.tokens / f.tokens,
        "vision": c.vision / f.vision,
        "decoder": (c.linear + c.attention) / (f.linear + f.attention),
        "all": (c.vision + c.linear + c.attention) / (f.vision + f.linear + f.attention),
        "rotated": c.rotated / row.tokens / depth,
        "reuse_error": np.mean(row.reuse),
        "hidden_error": np.mean(row.hidden),
        "windows": len(row.hidden),
    }


def table(results: dict[str, dict]) -> Table:
    """A table with one row for each system."""
    shares = ("patches", "sequence", "tokens", "vision", "decoder", "all")
    title = f"over {results['full']['windows']} windows, of full recomputation"
    out = Table("system", *(f"{name}" for name in shares), "reuse error", "hidden error", title=title)
    for name, r in results.items():
        out.add_row(name, *(f"{r[x]:.1%}" for x in shares), f"{r['reuse_error']:.3f}", f"{r['hidden_error']:.3f}")
    return out
