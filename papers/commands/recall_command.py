"""`vrex papers recall`: what retrieval policies recall of a text, beside the bytes that they fetch for it."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from json import dumps
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.function_params import check
from openvrex.golden.inputs.video import package_file
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.key_matrices import kept
from openvrex.papers.commands.kept_runs import Variant, complete, fail_if_any, key, numbers, variants_of
from openvrex.papers.policies.registry import POLICIES
from openvrex.papers.recall.recall_run import MODELS, Case, Recalled, recall
from openvrex.papers.recall.recall_tasks import TASKS
from openvrex.scripts import console
from openvrex.synth.sweep.database import Row

Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Summary:
    """A variant on a task of one length and depth: means over seeds. `low`, `high`: 95 % interval of the recall.

    behind, about : full attention's recall of the same texts less the variant's, and half the 95 % interval of that;
    None if full attention did not run
    """

    model: str
    variant: str
    task: str
    tokens: int
    depth: float
    runs: int
    recall: float
    low: float
    high: float
    behind: float | None
    about: float | None
    answer_loss: float
    text_loss: float
    frames: float
    answers: float
    in_mb: float
    piece_bytes: float | None
    clusters: float | None
    fetched: float
    blocks: float
    shared: float
    error: float
    seconds: float


def command(
    task: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(TASKS)}.")] = None,
    policy: Annotated[str, typer.Option(help=f"Names with commas between: {', '.join(POLICIES)}.")] = "full,pages",
    param: Annotated[
        list[str] | None,
        typer.Option("-p", help="policy.name=value, or several values with commas between. May be repeated."),
    ] = None,
    tokens: Annotated[str, typer.Option(help="Tokens of the text; several with commas between.")] = "1500",
    depth: Annotated[str, typer.Option(help="Where the fact stands, 0 to 1; several with commas between.")] = "0.25",
    seeds: Annotated[int, typer.Option(min=1, help="Texts of each task, length and depth.")] = 20,
    model: Annotated[str, typer.Option(help=f"The decoder: {' or '.join(MODELS)}.")] = "smollm2",
    reader: Annotated[
        str, typer.Option(help="What reads the text before the question: the policy, or full attention once for all.")
    ] = "policy",
    workers: console.Workers = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    folder: console.Folder = Path("build/recall"),
    json: console.Json = False,
) -> None:
    """Measure what policies recall of facts in a long text.

    The real decoder reads a text that holds a fact, then a question, then the answer, token by token. Run the same
    command again to resume.
    """
    variants = list(variants_of(policy, param or []))
    cases = list(cases_of(task or ["passkey"], tokens, depth, seeds, model, reader))
    package_file(*MODELS[model].file)  # named once, before a cluster starts
    if plainly := without_matrices(variants, model):
        console.err.print(plainly, style="dim", highlight=False, soft_wrap=True)
    asked = {key(*point): point for point in itertools.product(variants, cases)}
    once = reader == "full"  # full attention reads a text once for all policies
    rows = complete(folder / "recall.db", asked, measure, json, scheduler, jobs, workers, by_case=once)
    found = summaries([(*asked[k], recalled(rows[k])) for k in asked if not rows[k].error])
    if not found:  # then all have failed
        fail_if_any(rows)
    write_atomically(folder / "recall.json", (dumps([asdict(s) for s in found], indent=1) + "\n").encode())
    with replacing(folder / "recall.svg") as file:
        plot(found).savefig(file, format="svg")
    if json:
        console.print_json([asdict(s) for s in found])
    else:
        console.out.print(table(found))
        console.out.print(f"{folder}/recall.json, recall.svg and recall.db", highlight=False)
    fail_if_any(rows)


def without_matrices(variants: Iterable[Variant], model: str) -> str:
    """A note if coded pages have no matrices of the model, and so recall less than they could; else empty."""
    plainly = any(
        isinstance(p, PageParams) and not p.matrices and kept(MODELS[model].name) is None
        for p in (variant.entry().params for variant in variants)
    )
    fix = f"make some with `vrex papers calibrate --model {model}`, and give -p pages.matrices=FILE"
    return f"note: no matrices of {model} come with OpenVRex, so pages take rows of a Hadamard matrix: {fix}" * plainly


def cases_of(
    tasks: list[str], tokens: str, depths: str, seeds: int, model: str, reader: str = "policy"
) -> Iterator[Case]:
    """Every task at every length and depth, a case a seed. Raises: `ParamError`."""
    for name in tasks:
        check(name in TASKS, "task", name, f"must be one of {', '.join(TASKS)}")
    lengths, places = numbers("tokens", tokens, int), numbers("depth", depths, float)
    for name, size, place, seed in itertools.product(tasks, lengths, places, range(1, seeds + 1)):
        yield Case(name, size, place, seed, model, reader).checked()


def measure(point: tuple[Variant, Case]) -> dict[str, float]:
    """On a worker: one run."""
    variant, case = point
    return asdict(recall(case, variant.entry()))


def recalled(row: Row) -> Recalled:
    """A kept row as a result; the database knows only numbers."""
    counts = {name: int(row.result[name]) for name in ("in_bytes", "pieces")}
    return Recalled(**{**row.result, **counts})  # type: ignore[arg-type]  # mypy does not follow the keys


def summaries(runs: list[tuple[Variant, Case, Recalled]]) -> list[Summary]:
    """One a variant, task, length and depth, in the order in which they were asked for."""
    groups: dict[tuple[str, str, str, int, float], list[tuple[Case, Recalled]]] = defaultdict(list)
    full = {case: done.recall for variant, case, done in runs if variant.policy == "full"}
    for variant, case, done in runs:
        groups[case.model, variant.name, case.name, case.tokens, case.depth].append((case, done))
    out = []
    for (model, name, task, size, depth), played in groups.items():
        own = [done for _, done in played]
        lost = [full[case] - done.recall for case, done in played if case in full]
        share = fmean(r.recall for r in own)
        mean = {
            f: fmean(getattr(r, f) for r in own)
            for f in ("answer_loss", "text_loss", "frames", "answers", "blocks", "shared", "error", "seconds")
        }
        clusters = None if own[0].clusters is None else fmean(r.clusters or 0.0 for r in own)
        mb, pieces = fmean(r.in_bytes for r in own) / 1e6, fmean(r.pieces for r in own)
        piece = 1e6 * mb / pieces if pieces else None
        low, high = interval(share, len(own))
        behind, about = (fmean(lost), Z * stdev(lost) / sqrt(len(lost))) if len(lost) > 1 else (None, None)
        out.append(
            Summary(
                model, name, task, size, depth, len(own), share, low, high, behind, about,
                in_mb=mb, piece_bytes=piece, clusters=clusters, fetched=fmean(r.tokens for r in own), **mean,
            )
        )  # fmt: skip
    return out


def interval(share: float, runs: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share over independent runs. Digits of one run are not counted as independent."""
    middle = (share + Z * Z / (2 * runs)) / (1 + Z * Z / runs)
    half = Z * sqrt(share * (1 - share) / runs + Z * Z / (4 * runs * runs)) / (1 + Z * Z / runs)
    return max(0.0, middle - half), min(1.0, middle + half)


def table(found: list[Summary]) -> Table:
    """A row a summary; what is the same in all of them stands in the title."""
    of = {
        "task": [s.task for s in found],
        "tokens": [f"{s.tokens:,}" for s in found],
        "depth": [f"{s.depth:g}" for s in found],
        "runs": [f"{s.runs}" for s in found],
    }
    several = [name for name, values in of.items() if len(set(values)) > 1]
    same = [
        values[0] if name == "task" else f"{name} {values[0]}" for name, values in of.items() if name not in several
    ]
    out = Table(title=", ".join([f"Recall: {found[0].model}", *same]))
    out.add_column("policy", no_wrap=True)
    for name in (*several, "recall", "95 %", "behind full", "answer nats", "text nats", "fetched: frames", "answers",
                 "tokens", "blocks", "shared", "error", "MB", "bytes a piece", "clusters / 1K", "CPU s"):  # fmt: skip
        out.add_column(name)
    for i, s in enumerate(found):
        clusters = "" if s.clusters is None else f"{s.clusters:.0f}"
        piece = "" if s.piece_bytes is None else f"{s.piece_bytes:,.0f}"
        behind = "" if s.about is None else f"{s.behind:.1%} ± {s.about:.1%}"
        shares = (f"{s.recall:.0%}", f"{s.low:.0%} - {s.high:.0%}", behind)
        losses = (f"{s.answer_loss:.2f}", f"{s.text_loss:.3f}")
        got = (f"{s.frames:.1%}", f"{s.answers:.1%}", *(f"{x:.0f}" for x in (s.fetched, s.blocks, s.shared)))
        cost = (f"{s.in_mb:,.0f}", piece, clusters, f"{s.seconds:.1f}")
        out.add_row(s.variant, *(of[name][i] for name in several), *shares, *losses, *got, f"{s.error:.3f}", *cost)
    return out


def plot(found: list[Summary]) -> Figure:
    """Recall, and loss of the text, against the share of the cache fetched: a curve a policy, a point a summary.

    Further panels show recall against depth and against length, where there are several.
    """
    further = [name for name in ("depth", "tokens") if len({getattr(s, name) for s in found}) > 1]
    figure = Figure((4.5 * (2 + len(further)), 4), layout="constrained")
    axes = figure.subplots(1, 2 + len(further))
    curves: dict[str, list[Summary]] = defaultdict(list)
    for s in found:
        curves[f"{s.variant.split()[0]}, {s.task}"].append(s)
    for name, own in curves.items():
        own = sorted(own, key=lambda s: s.answers)
        _points(axes[0], [100 * s.answers for s in own], own, name)
        axes[1].plot([100 * s.frames for s in own], [s.text_loss for s in own], marker="o", label=name)
    axes[0].set(xlabel="cache fetched by a token of the answer (%)", ylabel="answer recalled (%)", ylim=(-3, 103))
    axes[1].set(xlabel="cache fetched by a block of the text (%)", ylabel="loss of the text (nats a token)")
    axes[0].legend(fontsize="small")
    for panel, x, other in zip(axes[2:], further, reversed(further), strict=False):
        lines: dict[str, list[Summary]] = defaultdict(list)
        for s in found:
            rest = f", {other} {getattr(s, other):g}" if other != x else ""
            lines[f"{s.variant}, {s.task}{rest}"].append(s)
        for name, own in lines.items():
            own = sorted(own, key=lambda s: getattr(s, x))
            _points(panel, [getattr(s, x) for s in own], own, name)
        label = {"depth": "place of the fact in the text (0 to 1)", "tokens": "tokens of the text"}[x]
        panel.set(xlabel=label, ylabel="answer recalled (%)", ylim=(-3, 103))
        panel.legend(fontsize="small")
    return figure


def _points(axes: Axes, x: list[float], own: list[Summary], name: str) -> None:
    """A curve of recalls with their intervals."""
    recalls = [100 * s.recall for s in own]
    # An end of the interval that is the recall itself, 0 or 100 %, may be a rounding beyond it.
    errors = [[max(0.0, r - 100 * s.low) for r, s in zip(recalls, own, strict=True)],
              [max(0.0, 100 * s.high - r) for r, s in zip(recalls, own, strict=True)]]  # fmt: skip
    axes.errorbar(x, recalls, errors, marker="o", capsize=3, label=name)
