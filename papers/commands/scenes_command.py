"""`vrex papers scenes`: which scene of a joined video a question fetches, under retrieval policies."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.table import Table

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.inputs import decoder, video, vision
from openvrex.papers.commands.kept_runs import Variant, complete, fail_if_any, key, variants_of
from openvrex.papers.policies.registry import POLICIES
from openvrex.papers.recall import scenes
from openvrex.papers.recall.scene_picture import picture
from openvrex.papers.recall.scene_run import Answer, SceneCase, ask, drawn, far_frames
from openvrex.scripts import console
from openvrex.synth.sweep.database import Row

DEFAULT = scenes.Scenes()
Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Measure:
    """A share's mean over seeds with its 95 % interval, and its mean in each layer; None where nothing was attended."""

    mean: float | None
    low: float | None
    high: float | None
    by_layer: list[float | None]


@dataclass(frozen=True)
class Summary:
    """A variant over all seeds.

    precision : share of the attended far tokens that belong to the scene asked for
    weight_precision : share of full attention's weight on far tokens that lies on the scene asked for
    chance : share of the far tokens that belong to the scene asked for
    recall : share of full attention's weight on far tokens that lies on attended ones
    attended : share of the far tokens that is attended, which is the recall of a random choice
    in_mb, pieces : moved to the device for a question, in how many transfers · seconds : of the processor, a run
    """

    variant: str
    seeds: int
    precision: Measure
    weight_precision: Measure
    chance: float
    recall: Measure
    attended: Measure
    in_mb: float
    pieces: float
    seconds: float


def command(
    clips: Annotated[
        list[str] | None,
        typer.Argument(help=f"Scenes: clips or video files, two or more; {' '.join(scenes.CLIPS)} by default."),
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Names with commas between: {', '.join(POLICIES)}.")] = "full,resv",
    param: Annotated[
        list[str] | None,
        typer.Option("-p", help="policy.name=value, or several values with commas between. May be repeated."),
    ] = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames of each scene.")] = DEFAULT.frames,
    fps: Annotated[float, typer.Option(help="Sample this many frames per second.")] = DEFAULT.fps,
    tokens: Annotated[int, typer.Option(help="Tokens of each frame, as for `vrex trace`.")] = DEFAULT.tokens,
    seeds: Annotated[int, typer.Option(min=1, help="Streams: orders of the scenes, and where each starts.")] = 8,
    workers: console.Workers = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    folder: console.Folder = Path("build/scenes"),
    json: console.Json = False,
) -> None:
    """Measure which scene of a video a question fetches.

    Clips are joined into one stream. A held-out frame of a scene is the question. Run the same command again to resume.
    """
    variants = list(variants_of(policy, param or []))
    names = tuple(str(Path(c).resolve()) if Path(c).is_file() else c for c in clips or DEFAULT.clips)
    cases = [SceneCase(scenes.Scenes(names, frames, fps, tokens, seed)) for seed in range(1, seeds + 1)]
    cases[0].checked()
    for model in (decoder.MODEL, vision.MODEL):
        video.package_file(*model)  # named once, before a cluster starts
    digests = tuple(video.digest(video.locate(name)) for name in names)
    asked = {key(variant, (case, digests)): (variant, case) for variant in variants for case in cases}
    rows = complete(folder / "scenes.db", asked, measure, json, scheduler, jobs, workers)
    runs = [(*asked[k], answer(rows[k])) for k in asked if not rows[k].error]
    found = summaries(runs)
    write_atomically(folder / "scenes.json", (dumps([asdict(s) for s in found], indent=1) + "\n").encode())
    with replacing(folder / "layers.svg") as file:
        by_layer(found).savefig(file, format="svg")
    if drawable := {variant.name: done for variant, case, done in runs if case.scenes.seed == 1}:
        with replacing(folder / "frames.png") as file:
            draw(cases[0], drawable).savefig(file, format="png", dpi=110)
    if json:
        console.print_json([asdict(s) for s in found])
    else:
        console.out.print(table(found))
        console.out.print(f"{folder}/frames.png, layers.svg, scenes.json and scenes.db", highlight=False)
    fail_if_any(rows)


def measure(point: tuple[Variant, SceneCase]) -> dict:
    """On a worker: one run."""
    variant, case = point
    return asdict(ask(case, variant.entry()))


def answer(row: Row) -> Answer:
    """A kept row as a result."""
    return Answer(**row.result)  # type: ignore[arg-type]  # the database's type has numbers only


def summaries(runs: list[tuple[Variant, SceneCase, Answer]]) -> list[Summary]:
    """One a variant, in the order in which they were asked for."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for variant, _, done in runs:
        groups[variant.name].append(done)
    out = []
    for name, own in groups.items():
        questions = [a.questions for a in own]
        out.append(
            Summary(
                name,
                len(own),
                precision=share([a.right for a in own], [a.attended for a in own]),
                weight_precision=share([a.weight_right for a in own], [a.weight for a in own]),
                chance=fmean(a.own / a.far for a in own),
                recall=share([a.weight_found for a in own], [a.weight for a in own]),
                attended=share([a.attended for a in own], [[a.far] * len(a.attended) for a in own]),
                in_mb=sum(a.in_bytes for a in own) / sum(questions) / 1e6,
                pieces=sum(a.pieces for a in own) / sum(questions),
                seconds=fmean(a.seconds for a in own),
            )
        )
    return out


def share(parts: list, wholes: list) -> Measure:
    """A share from its parts and wholes, [seeds][layers]: in all layers together, and in each."""
    part, whole = np.array(parts, float), np.array(wholes, float)
    sums = whole.sum(axis=1)
    values = [float(p / w) for p, w in zip(part.sum(axis=1), sums, strict=True) if w]
    layers = [fmean(p[w > 0] / w[w > 0]) if (w > 0).any() else None for p, w in zip(part.T, whole.T, strict=True)]
    if not values:
        return Measure(None, None, None, layers)
    mean = fmean(values)
    low, high = interval(values)
    return Measure(mean, low, high, layers)


def interval(values: list[float]) -> tuple[float | None, float | None]:
    """Student's 95 % interval of the mean of shares; None for a single value.

    The quantile comes from the normal one by Abramowitz and Stegun 26.7.5. It is 3 % short at 3 values, exact to 1 %
    from 4 on.
    """
    n = len(values)
    if n < 2:
        return None, None
    v = n - 1
    t = Z + (Z**3 + Z) / (4 * v) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * v**2)
    t += (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / (384 * v**3)
    half = t * stdev(values) / n**0.5
    return max(0.0, fmean(values) - half), min(1.0, fmean(values) + half)


def table(found: list[Summary]) -> Table:
    """A row a summary."""
    out = Table("policy", "seeds", "precision", "95 %", "of weight", "chance", "recall", "95 %", "attended",
                "MB a question", "CPU s", title="Which scene a question fetches")  # fmt: skip
    for s in found:
        out.add_row(s.variant, f"{s.seeds}", *_cells(s.precision), _cells(s.weight_precision)[0], f"{s.chance:.1%}",
                    *_cells(s.recall), _cells(s.attended)[0], f"{s.in_mb:.1f}", f"{s.seconds:.1f}")  # fmt: skip
    return out


def _cells(m: Measure) -> tuple[str, str]:
    if m.mean is None:
        return "-", "-"
    return f"{m.mean:.1%}", "-" if m.low is None else f"{m.low:.1%} - {m.high:.1%}"


def by_layer(found: list[Summary]) -> Figure:
    """Precision and recall in each layer, a line a variant; full attention's weight and chance beside precision."""
    figure = Figure((9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for s in found:
        for axes, m in ((left, s.precision), (right, s.recall)):
            axes.plot([100 * x if x is not None else np.nan for x in m.by_layer], label=s.variant, linewidth=1.2)
    weight = [100 * (x or 0.0) for x in found[0].weight_precision.by_layer] if found else []
    left.plot(weight, color="#1b1f24", linestyle=":", label="of full attention's weight")
    left.set(xlabel="layer", ylabel="precision (%)", ylim=(-3, 103))
    right.set(xlabel="layer", ylabel="recall (%)", ylim=(-3, 103))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def draw(case: SceneCase, answers: dict[str, Answer]) -> Figure:
    """The picture of one stream. A policy that attends to all or nothing of the far frames gets no heat map."""
    far = far_frames(case)
    name, first = next(iter(answers.items()))
    maps = {f"What {n} attends to of each frame": np.array(a.fetched_of) for n, a in answers.items()}
    telling = {title: m for title, m in maps.items() if np.ptp(m[:, far])}
    weight = f"Full attention's weight on each frame (run of {name})", np.array(first.weight_of)
    return picture(case.scenes.joined(), drawn(case), far, weight, telling)
