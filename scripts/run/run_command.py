"""`vrex run`: run decoder layers on golden and on the RTL of a core, and compare them."""

import json as json_format
import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.function_params import ParamError, check
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.policies.stream_runs import Options
from openvrex.golden.policies.window_decisions import WINDOWED, windowed
from openvrex.hdl.emit import emit
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import policy_run
from openvrex.scripts.run.mosaic_run import MosaicRun
from openvrex.scripts.run.play_passes import again, differences, end, play, tell_repeated
from openvrex.scripts.run.window_run import WindowRun
from openvrex.tb.library.core_simulator import LATENCY, CoreSimulator
from openvrex.tb.library.decoder_layers import DecoderLayers
from openvrex.tb.library.stage_log import Span, Unit, spans
from openvrex.tb.library.window_stream import TOKENS

RESULT, PICTURE, FOLDER = "run.json", "timeline", "passes"  # in the folder
BINS = 400  # of the picture
RESV, MOSAIC = "resv", "mosaic"
WITH = "Options of --policy, for all policies but resv"
# Options that have an effect with ReSV alone, and with the other policies alone.
OWN = {"trace", "ahead", "th_hd", "ratio", "centre"}
WINDOW = {"video", "tokens", "fps", "gop", "question", "generate", "at_once", "slots"}
WORKERS = 2
PASSES = [
    *("number", "frame", "layer", "cycles", "predicted"),
    *("clusters", "chosen", "fetched", "offloaded", "stored", "compared"),
]
PASS_NOTE = (
    "predicted: cycles by the time view; clusters, offloaded: clusters and offloaded entries of the layer after the "
    "pass; chosen: clusters that the pass chose; fetched: entries fetched for them; stored: bytes that the LXE stored; "
    "compared: bytes that the command compared with golden's, of all stores in their order and of memory at the end "
    "of the pass."
)
STAGE_NOTE = (
    "Cycles: from the end of all earlier stages to the end of this one, so that they add up. Units: share of the "
    "cycles between first and last in which the unit works for this stage: the DPE on a chunk a cycle, the VPE on a "
    "word, loader, storer and retriever on a beat of the bus, the HCU on a comparison, the WTU on a word of scores."
)


def command(
    ctx: typer.Context,
    trace: Annotated[
        Path | None, typer.Option(help="Trace of `vrex trace`; its frames enter the first layer. Needed for resv.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help=f"{RESV}, {MOSAIC}, or one without keys and queries: {', '.join(WINDOWED)}.")
    ] = RESV,
    layers: Annotated[int, typer.Option(min=1, help="Number of decoder layers, from the first one.")] = 2,
    frames: Annotated[int, typer.Option(min=1, help="Number of frames, from the first one.")] = 3,
    ahead: Annotated[
        bool,
        typer.Option("--ahead", help="Let each layer choose and fetch entries for the next one during its own work."),
    ] = False,
    th_hd: console.ThHd = None,
    ratio: console.Ratio = None,
    centre: console.Centre = None,
    video: Annotated[
        str, typer.Option(help=f"Video file, or a clip: {', '.join(video_in.CLIPS)}.", rich_help_panel=WITH)
    ] = "world",
    tokens: Annotated[int, typer.Option(help="Tokens of each frame: g*g, or g*g + 1.", rich_help_panel=WITH)] = 16,
    fps: Annotated[
        float | None, typer.Option(help="Sample this many frames per second; all by default.", rich_help_panel=WITH)
    ] = None,
    gop: Annotated[
        int, typer.Option(help="Encode the video again with this GOP; 0 takes it as it is.", rich_help_panel=WITH)
    ] = 0,
    question: Annotated[str, typer.Option(help="Text behind the frames.", rich_help_panel=WITH)] = Options.question,
    generate: Annotated[
        int, typer.Option(help="Tokens behind the question, which FP32 chooses.", rich_help_panel=WITH)
    ] = 2,
    at_once: Annotated[int, typer.Option(help="Most tokens of a pass.", rich_help_panel=WITH)] = TOKENS,
    slots: Annotated[
        int, typer.Option(help="Entries that device memory holds; 0: as many as needed.", rich_help_panel=WITH)
    ] = 0,
    first: Annotated[
        int | None, typer.Option("--from", min=0, help="Repeat passes from this number on, and compare them again.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="Last pass to repeat; by default that of --from.")
    ] = None,
    waves: Annotated[
        bool, typer.Option("--waves", help="With --from: leave each pass's waveform in FOLDER/passes/waves.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Worker processes, or jobs; 2 by default.")
    ] = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    preset: console.Preset = "small",
    param: console.Param = None,
    folder: console.Folder = Path("build/run"),
    json: console.Json = False,
) -> None:
    """Run decoder layers on the RTL of a core.

    Golden runs the same layers; the command compares every store and every array. Run the same command again to resume.
    """
    # Dask takes half a second to import; no other command should wait for it.
    from openvrex.scripts.run.pass_engine import PassEngine, alone
    from openvrex.synth.sweep.dask_run import cluster

    _check_used(ctx, policy)
    repeat = again(first, last, waves)
    many = workers or (None if scheduler else WORKERS)
    if policy != RESV:
        own, rest = policy_run.split(policy, param or [])
        options = Options(frames, tokens, fps, question, generate, gop, layers)
        asked_for = policy_run.Asked(policy, own, video, options, at_once, slots)
        # A bad name or parameter fails before the models are loaded.
        under = kind(policy)(asked_for, console.params(preset, rest))

        def start(stack: ExitStack) -> Any:
            return stack.enter_context(cluster(scheduler, jobs, many))

        policy_run.run(under, {"preset": preset, "param": rest}, folder, repeat, start, json)
        return
    check(trace is not None, "--trace", "", "must be given: record a trace with 'vrex trace'")
    assert trace is not None
    p = console.params(preset, param).core
    started = time.perf_counter()
    data = Trace.load(trace)
    try:
        run = DecoderLayers(data, p, layers, frames, ahead, console.function(p.dre, th_hd, ratio, centre))
    except TraceError as e:
        raise TraceError(f"{trace.name}: {e}") from None
    asked = {"trace": sha256(trace.read_bytes()).hexdigest(), "layers": layers, "frames": frames, "ahead": ahead}
    asked["function"] = asdict(run.core.dre.params)
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(quiet=json, transient=False))
        stack.enter_context(alone(folder))
        engine = PassEngine(folder / FOLDER, run, CoreSimulator(emit("core", p), p, run.counters), asked)
        connect = cache(lambda: stack.enter_context(cluster(scheduler, jobs, many)))
        records = play(engine, bar, layers * frames, repeat, connect)
    found = differences(records)
    if repeat:
        tell_repeated(records, json)
    else:
        result = {
            "trace": trace.name,
            "model": data.provenance["decoder"]["model"],
            "preset": preset,
            "param": param or [],
            "layers": layers,
            "frames": frames,
            "ahead": ahead,
            "tokens_per_frame": run.tokens,
            "sinks": run.sinks,
            "errors": run.errors(),
            "seconds": round(time.perf_counter() - started, 1),
            "passes": [measured(run, one, engine.samples(one["number"])) for one in records],
            "differences": found,
        }
        write(folder, result, draw(run, records[-1], engine.samples(len(records) - 1)))
        if json:
            console.print_json(result)
        else:
            for s in sections(result):
                console.out.print(s.table())
            console.out.print(f"Report: {folder / 'report.html'} · picture: {folder / PICTURE}.svg, .png")
    end(found)


def kind(policy: str) -> type[policy_run.PolicyRun]:
    """What runs a policy but ReSV."""
    return MosaicRun if policy == MOSAIC else WindowRun


def _check_used(ctx: typer.Context, policy: str) -> None:
    """Raise `ParamError` for an option that has no effect with a policy."""
    if policy not in (RESV, MOSAIC):
        windowed(policy)  # an unknown name comes first
    for option in ctx.command.params:
        name, source = option.name or "", ctx.get_parameter_source(option.name or "")
        if name in (WINDOW if policy == RESV else OWN) and source is not None and source.name == "COMMANDLINE":
            raise ParamError(f"{option.opts[0]}: has no effect with --policy {policy}: leave it out")


def write(folder: Path, result: dict, figure: Figure) -> None:
    """Write the files of a run that is over."""
    write_atomically(folder / RESULT, json_format.dumps(result, indent=1).encode())
    write_atomically(folder / f"{PICTURE}.svg", html_page.svg(figure).encode())
    with replacing(folder / f"{PICTURE}.png") as file:
        figure.savefig(file, format="png", dpi=150)
    lead = f"{result['model']}: {result['layers']} layers, {result['frames']} frames of {result['trace']}, "
    lead += f"preset {result['preset']}."
    passed = not result["differences"]
    verdict = "Every store and every array equal golden." if passed else "The RTL differs from golden."
    html_page.write(folder / "report.html", "OpenVRex: layers on the RTL", lead, verdict, passed, load(folder))


def measured(run: DecoderLayers, one: dict[str, Any], samples: np.ndarray) -> dict:
    """The figures of a pass on the RTL and of its stages, from its record and its samples."""
    n = len(run.units)
    names = [s.name for s in run.plans[one["layer"]].stages]
    found = spans(np.minimum(one["ends"], samples[-1, 1 : 1 + n, None]), samples)
    shown = ("number", "frame", "layer", "cycles", "predicted", "clusters", "offloaded", "compared")
    return {key: one[key] for key in shown} | {
        "chosen": one["counters"]["dre.cluster_set.clusters"],
        "fetched": one["entries"] - run.sinks,
        "stored": one["beats"] * run.p.lxe.bus_bytes,
        "differs": bool(one["differences"]),
        "utilisation": {u.name: int(c) / one["cycles"] for u, c in zip(run.units, samples[-1, 1 + n :], strict=True)},
        "stages": stage_rows(names, run.units, found),
    }


def stage_rows(names: list[str], units: list[Unit], found: list[list[Span | None]]) -> list[dict]:
    """The cycles of each stage, and the share of them in which each unit worked for it."""
    out, before = [], 0
    for k, name in enumerate(names):
        own = {u.name: span for u, row in zip(units, found, strict=True) if (span := row[k])}
        if not own:
            continue
        first, last = min(s.first for s in own.values()), max(s.last for s in own.values())
        share = {unit: s.busy / max(1, last - first) for unit, s in own.items()}
        out.append({"stage": name, "cycles": max(0, last - before), "first": first, "last": last, "units": share})
        before = max(before, last)
    return out


def draw(run: DecoderLayers, one: dict[str, Any], samples: np.ndarray) -> Figure:
    """A picture of a pass, from its record and its samples: one row for each unit.

    The colour names the stage; the height of the filling is the share of cycles in which the unit was busy.
    """
    n = len(run.units)
    found = spans(np.array(one["ends"]), samples)
    names = [s.name for s in run.plans[one["layer"]].stages]
    colours = [matplotlib.colormaps["tab20"](k)[:3] for k in range(20)]
    figure = Figure(figsize=(12, 0.75 * n + 1.2), layout="constrained")
    axes = figure.add_subplot(xlabel="cycle", title=one["name"])
    edges = np.linspace(0, one["cycles"], BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    for u, row in enumerate(found):
        busy = np.diff(np.interp(edges, samples[:, 0], samples[:, 1 + n + u])) / np.diff(edges)
        for k, span in enumerate(row):
            if span:
                base = n - 1 - u
                axes.broken_barh(
                    [(span.first, span.last - span.first)], (base, 0.85), color=colours[k % 20], alpha=0.15
                )
                own = (middle >= span.first) & (middle <= span.last)
                heights = base + 0.85 * busy[own]
                axes.fill_between(middle[own], base, heights, step="mid", color=colours[k % 20], linewidth=0)
    axes.set_yticks(np.arange(n) + 0.4, [u.name for u in reversed(run.units)])
    axes.set_xlim(0, one["cycles"])
    axes.set_ylim(-0.05, n)
    used = [k for k in range(len(names)) if any(row[k] for row in found)]
    handles = [Patch(color=colours[k % 20], label=names[k]) for k in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False)
    return figure


def sections(result: dict, picture: str = "") -> list[Section]:
    """The sections of a report about a run."""
    passes = result["passes"]
    units = list(passes[-1]["utilisation"])
    last = passes[-1]
    everything = {"stage": "all", "cycles": last["cycles"], "first": 0, "last": last["cycles"]}
    everything["units"] = last["utilisation"]
    longest_first = sorted(passes, key=lambda one: -len(one["stages"]))
    names = list(dict.fromkeys(s["stage"] for one in longest_first for s in one["stages"]))
    cycles = [{s["stage"]: s["cycles"] for s in one["stages"]} for one in passes]
    chooses = "each layer chooses for the next one" if result["ahead"] else "each layer chooses for itself"
    return [
        Section(
            "Decoder layers on the RTL",
            f"{result['model']}, {result['tokens_per_frame']} tokens a frame, {result['sinks']} before the first as "
            f"sinks; {chooses}; trace {result['trace']}, preset {' '.join([result['preset'], *result['param']])}; "
            f"memory: {LATENCY} cycles to the first beat, then a beat a cycle. {PASS_NOTE}",
            [*PASSES, "error", "result"],
            [
                [*(f"{one[key]:,}" for key in PASSES), _error(result, one), "DIFFERS" if one["differs"] else "equal"]
                for one in passes
            ],
        ),
        Section(
            f"Stages of frame {last['frame']}, layer {last['layer']}",
            STAGE_NOTE,
            ["stage", "cycles", "first", "last", *units],
            [
                [
                    s["stage"],
                    *(f"{s[key]:,}" for key in ("cycles", "first", "last")),
                    *(f"{s['units'][u]:.1%}" if u in s["units"] else "" for u in units),
                ]
                for s in [*last["stages"], everything]
            ],
            picture,
        ),
        Section(
            "Cycles of the stages, pass by pass",
            "",
            ["stage", *(f"{one['frame']}, {one['layer']}" for one in passes)],
            [[name, *(f"{c[name]:,}" if name in c else "" for c in cycles)] for name in names],
        ),
    ]


def _error(result: dict, one: dict) -> str:
    """The error against full attention in FP64, for the last layer of a frame."""
    return f"{result['errors'][one['frame']]:.2%}" if one["layer"] == result["layers"] - 1 else ""


def load(folder: Path) -> list[Section]:
    """The sections of the run in a folder of `vrex run`. Raises `ValueError` for any other folder."""
    try:
        result = json_format.loads((folder / RESULT).read_text())
        if "policy" in result:
            return kind(result["policy"]).sections(result)
        return sections(result, (folder / f"{PICTURE}.svg").read_text())
    except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
        raise ValueError(f"run={folder}: not a folder that `vrex run` wrote ({e})") from None
