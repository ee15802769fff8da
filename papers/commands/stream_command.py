"""`vrex papers stream`: compare retrieval policies with full attention on one stream or several."""

import json as json_format
import math
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure

from openvrex.golden.atomic_files import replacing
from openvrex.golden.function_params import ParamError, check
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.codec import motion_class
from openvrex.golden.policies.registry import Entry, override
from openvrex.golden.policies.stream_runs import TEXT, DecoderStream, Options, TraceStream, follow
from openvrex.papers.commands import policy_comparison
from openvrex.papers.commands.assignments import assigned
from openvrex.papers.policies.registry import ALL, POLICIES, entry
from openvrex.papers.policies.run_figures import clusters, ratios, series, summary, unions
from openvrex.scripts import console
from openvrex.scripts.progress import Bar

TEACHER = "full"
PANELS = {  # the plots of stream.svg: title, scale
    "error": ("attention-output error", 1),
    "agreement": ("next-token agreement so far", 1),
    "in_bytes": ("MB moved to the device so far", 1e6),
    "held_tokens": ("tokens held", 1),
    "operations": ("G operations without linear layers so far", 1e9),
    "device_peak": ("peak device MB", 1e6),
}
COLOURS = [matplotlib.colormaps[name](k)[:3] for name in ("tab20", "tab20b") for k in range(20)]  # one for each policy
DEFAULT = Options()


def command(
    videos: Annotated[
        list[str],
        typer.Argument(
            metavar="VIDEO...",
            help=f"Video file, a clip ({', '.join(video_in.CLIPS)}), '{TEXT}' (documentation in the standard library) "
            "or a trace of `vrex trace` (.safetensors). Several are compared in one report.",
        ),
    ],
    policy: Annotated[str, typer.Option(help=f"Policies with commas between, or all: {', '.join(POLICIES)}.")] = "resv",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=console.folder,
            help="Folder to write into; build/stream/VIDEO by default. Several videos get a folder each inside it.",
        ),
    ] = None,
    param: Annotated[list[str] | None, typer.Option("-p", help="policy.name=value, e.g. resv.resv.th_hd=3.")] = None,
    frames: Annotated[int, typer.Option(help="Most frames, of text: blocks.")] = DEFAULT.frames,
    tokens: Annotated[
        int, typer.Option(help="Tokens of each frame, as for `vrex trace`, or of each block.")
    ] = DEFAULT.tokens,
    fps: Annotated[
        float | None, typer.Option(help="Sample this many frames per second; all frames by default.")
    ] = None,
    question: Annotated[str, typer.Option(help="Text that follows the frames.")] = DEFAULT.question,
    generate: Annotated[int, typer.Option(help="Generate this many tokens.")] = DEFAULT.generate,
    gop: Annotated[
        int,
        typer.Option(
            help="Encode videos again with this GOP and no B-frames, as surveillance does; 0 takes them as they are."
        ),
    ] = DEFAULT.gop,
    depth: Annotated[int | None, typer.Option(help="Number of decoder layers to run; all by default.")] = None,
    json: console.Json = False,
) -> None:
    """Compare retrieval policies on a stream.

    Each policy runs beside full attention in a real decoder. A folder that holds part of the same run is resumed.
    """
    output = output or Path("build/stream") / (Path(videos[0]).stem if len(videos) == 1 else "")
    stems = [Path(v).stem for v in videos]
    check(len(set(stems)) == len(stems), "VIDEO", " ".join(videos), "each needs a name of its own")
    entries = chosen(policy, param or [])
    options = Options(frames=frames, tokens=tokens, fps=fps, question=question, generate=generate, gop=gop, depth=depth)
    streams = []
    for one, stem in zip(videos, stems, strict=True):
        folder = output if len(videos) == 1 else output / stem
        streams.append(run_stream(one, entries, options, folder, quiet=json))
    with replacing(output / "report.md") as file:
        file.write(policy_comparison.report(streams, command_line()).encode())
    if json:
        console.print_json(streams[0] if len(streams) == 1 else streams)
        return
    for results in streams:
        for part in (*policy_comparison.side_by_side(results), policy_comparison.by_length(results)):
            console.out.print(part.rich())
    console.out.print(policy_comparison.beside_papers(streams).rich())
    if "hybrid" in entries:
        console.out.print(policy_comparison.hybrid_tables().rich())
    for said in policy_comparison.answers(streams):
        console.out.print(said, highlight=False, markup=False)
    for note in (*policy_comparison.notes(streams), f"Figures, plots and report: {output}"):
        console.out.print(note, highlight=False)


def command_line() -> str:
    """The command line that the user typed."""
    return shlex.join(["vrex", *sys.argv[1:]])


def run_stream(video: str, entries: dict[str, Entry], options: Options, output: Path, quiet: bool) -> dict:
    """Run full attention and then the policies on one stream; write and return the results."""
    with Bar(quiet=quiet, transient=False) as bar:

        def track(name: str):
            task = bar.add_task(f"{Path(video).stem} {name}", total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        stream: TraceStream | DecoderStream
        if Path(video).suffix == ".safetensors":
            stream = TraceStream(Path(video), output, entries)
        else:
            stream = DecoderStream(video, options, output, track("vision"))
        teacher = follow(stream, TEACHER, entries[TEACHER], output, None, track(TEACHER))
        policies, texts = {}, dict[str, str]()
        for name, found in entries.items():
            run = teacher
            if name != TEACHER:
                run = follow(stream, name, found, output, teacher.records, track(name))
            text = stream.text(run, name == TEACHER) if isinstance(stream, DecoderStream) else None
            texts |= {name: text} if text else {}
            policies[name] = {
                "params": str(run.policy.params),
                "parameters": asdict(run.policy.params),
                **summary(run, teacher),
                "ratio": ratios(run).tolist(),
                "unions": {stage: unions(run, stage).tolist() for stage in ("frame", "generation")},
                "clusters": clusters(run),
                "series": series(run, teacher),
            }
    results = finite(
        {
            "source": stream.source,
            "tokens": teacher.length,
            "entry_bytes": teacher.shape.entry_bytes,
            "motion": {"pixels": stream.motion, "class": motion_class(stream.motion)},
            "fallbacks": list(stream.fallbacks),
            "layers": list(stream.layers),
            "policies": policies,
        }
        | ({"texts": texts} if len(texts) > 1 else {})
    )
    with replacing(output / "results.json") as file:
        file.write((json_format.dumps(results, indent=1, default=int) + "\n").encode())
    for name, figure in (("stream", plot_series(results)), ("ratio", plot_ratios(results))):
        for kind in ("svg", "png"):
            with replacing(output / f"{name}.{kind}") as file, matplotlib.rc_context({"svg.hashsalt": "vrex"}):
                figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return results


def chosen(names: str, assignments: list[str]) -> dict[str, Entry]:
    """The policies that the user named, with their parameters; full attention is always the first one."""
    wanted = ALL if names == "all" else (name.strip() for name in names.split(","))
    entries = {name: entry(name) for name in [TEACHER, *wanted]}
    changes: dict[str, dict[str, str]] = {}
    for path, value in assigned(assignments, "policy.name=value"):
        name, _, rest = path.partition(".")
        text = f"{path}={value}"
        check(bool(rest), "-p", text, "must look like policy.name=value")
        if name not in entries:
            raise ParamError(f"-p {text}: {name} is not among the policies to run ({', '.join(entries)})")
        changes.setdefault(name, {})[rest] = value
    for name, part in changes.items():
        entries[name] = replace(entries[name], params=override(entries[name].params, part))
    return entries


def finite(value):
    """The value with every NaN replaced by None, for JSON."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def plot_series(results: dict) -> Figure:
    """Plots of every policy against the length of the stream."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for axis, (name, (title, scale)) in zip(axes, PANELS.items(), strict=True):
        axis.set_prop_cycle(color=COLOURS)
        for policy, r in results["policies"].items():
            y = np.array([np.nan if v is None else v for v in r["series"][name]]) / scale
            axis.plot(r["series"]["tokens"], y, label=policy, linewidth=1.2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("tokens of the stream")
        axis.set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def plot_ratios(results: dict) -> Figure:
    """Retrieval ratio of the frame stage by layer, and by layer and KV head (V-Rex Fig. 20)."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    by_layer, by_head = figure.subplots(2, 1)
    layers = results["layers"]
    for axis in (by_layer, by_head):
        axis.set_prop_cycle(color=COLOURS)
    for name, p in results["policies"].items():
        r = np.array(p["ratio"], float)
        by_layer.plot(range(len(layers)), r.mean(axis=1), marker="o", markersize=3, linewidth=1, label=name)
        by_head.plot(np.arange(r.size) / r.shape[1], r.ravel(), marker=".", markersize=3, linewidth=0.6)
    by_layer.set_title("tokens attended of those cached, frame stage, by layer", fontsize=10)
    by_head.set_title("the same by KV head, heads of a layer side by side", fontsize=10)
    for axis in (by_layer, by_head):
        axis.set_xticks(range(len(layers)), [str(i) for i in layers], fontsize=8)
        axis.set_xlabel("decoder layer")
        axis.set_ylim(0, 1.05)
    figure.legend(*by_layer.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure
