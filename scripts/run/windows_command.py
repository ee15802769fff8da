"""`vrex run windows`: decoder layers on the RTL of a core, under a policy that chooses before each pass."""

import json as json_format
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import N_LAYERS
from openvrex.golden.policies.codecsight_policy import CodecSightParams
from openvrex.golden.policies.registry import Entry, override
from openvrex.golden.policies.registry import entry as entry_of
from openvrex.golden.policies.stream_runs import DecoderStream, Options
from openvrex.golden.policies.window_decisions import BRANCH, WINDOWED, branch_of, windowed
from openvrex.hdl.emit import emit
from openvrex.hdl.params import CoreParams, SystemParams
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import run_options
from openvrex.scripts.run.motion_masks import masks
from openvrex.scripts.run.play_passes import Again, again, differences, end, play, tell_repeated, workers_of
from openvrex.tb.library.core_simulator import LATENCY, CoreSimulator
from openvrex.tb.library.window_stream import Reference, WindowStream

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from distributed import Client

RESULT, PASSES = "run.json", "passes"  # in the folder
NOTE = (
    "Rows: tokens computed, refreshed ones included. Turned: keys of all layers that were turned. Loaded, stored: "
    "bytes between core and memory. Predicted: cycles by the time view. Compared: bytes compared with golden's, of all "
    "stores in their order and of memory after each program. Error: distance of the hidden states behind the last "
    "layer from the policy in FP32, relative to their length. From full: the same from full attention in FP32."
)
SHOWN = [
    *("block", "stage", "tokens", "rows", "refreshed", "turned", "passes"),
    *("cycles", "predicted", "loaded", "stored", "compared"),
]


def command(
    policy: Annotated[str, typer.Argument(help=f"A policy without keys and queries: {', '.join(WINDOWED)}.")],
    video: run_options.Video = "world",
    frames: run_options.Frames = 3,
    tokens: run_options.Tokens = 16,
    fps: run_options.Fps = None,
    gop: run_options.Gop = 0,
    question: run_options.Question = run_options.QUESTION,
    generate: run_options.Generate = 2,
    layers: run_options.Layers = 2,
    at_once: run_options.AtOnce = run_options.AT_ONCE,
    slots: run_options.Slots = 0,
    first: run_options.First = None,
    last: run_options.Last = None,
    waves: run_options.Waves = False,
    workers: run_options.Workers = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    preset: console.Preset = "small",
    param: console.Param = None,
    folder: console.Folder = Path("build/run"),
    json: console.Json = False,
) -> None:
    """Run decoder layers with a window policy on the RTL of a core.

    Golden runs the same layers; the command compares every store, all memory and every decision. Run the same command
    again to resume.
    """
    others = "resv and mosaic are commands of their own, others have no hardware"
    check(policy in WINDOWED, "policy", policy, f"must be one of {', '.join(WINDOWED)}: {others}")
    repeat = again(first, last, waves)
    own, rest = split(policy, param or [])
    options = Options(frames, tokens, fps, question, generate, gop, layers)
    asked = Asked(policy, own, video, options, at_once, slots)
    system = console.params(preset, rest)
    asked.entry(system.core)  # a bad name or parameter fails before the models are loaded
    named = {"preset": preset, "param": rest}
    run(asked, system, named, folder, repeat, lambda stack: workers_of(stack, scheduler, jobs, workers), json)


@dataclass(frozen=True)
class Asked:
    """What the user asks for: a policy on the first layers of the decoder, over a video.

    policy, changes : name, and `name=value` of its parameters
    video, options : file or clip, and how it becomes a stream
    at_once : most tokens of a pass · slots : of the pool of entries; 0: as many as the stream needs
    """

    policy: str
    changes: Sequence[str]
    video: str
    options: Options
    at_once: int
    slots: int

    def entry(self, p: CoreParams) -> Entry:
        """The policy on a core.

        Raises `ParamError` for an unknown one, for unknown or bad parameters, and for a history branch on a core
        without its functions.
        """
        found = windowed(self.policy)
        found = replace(found, params=override(found.params, dict(one.partition("=")[::2] for one in self.changes)))
        reason = "must be disabled on a core without the functions of a scan: add -p features=hybrid or --preset omni"
        check(branch_of(found) is None or p.lxe_format().vector.hybrid, "ssm", "random", reason)
        return found


def split(policy: str, assignments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parameters of the policy without its name, and those of the core, of each -p."""
    own = [one for one in assignments if one.startswith(f"{policy}.")]
    return [one.removeprefix(f"{policy}.") for one in own], [one for one in assignments if one not in own]


def made(video: str, o: Options, folder: Path, bar: Bar) -> DecoderStream:
    """The stream, while `bar` shows the vision encoder's progress."""
    seen = bar.add_task("vision encoder", total=o.frames)
    # A folder for each way of making a stream: other options do not touch what is there.
    key = sha256(repr((video, o)).encode()).hexdigest()[:12]
    return DecoderStream(video, o, folder / f"video-{key}", lambda done, total: bar.update(seen, completed=done))


def run(
    asked: Asked,
    system: SystemParams,
    named: dict[str, Any],
    folder: Path,
    repeat: Again | None,
    connect: Callable[[ExitStack], "Client"],
    json: bool,
) -> None:
    """Play the stream and tell the results: on the core of a system, CodecSight's masks on its motion mask.

    named : preset and parameters, for the record
    """
    from openvrex.scripts.run.pass_engine import PassEngine, alone

    p = system.core
    started, entry, o = time.perf_counter(), asked.entry(p), asked.options
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(quiet=json, transient=False))
        shown = made(asked.video, o, folder, bar)
        reference = Reference(entry, shown.decoder)
        segments = reference.take_in(shown.segments, o.generate)
        full = Reference(entry_of("full"), shown.decoder)
        full.take_in(segments)
        plain = None
        if branch_of(entry) is not None:
            plain = Reference(replace(entry, params=override(entry.params, {"ssm": "disabled"})), shown.decoder)
            plain.take_in(segments)
        pruned = None
        if isinstance(entry.params, CodecSightParams):
            pruned = masks(segments, entry.params, system.mask)
        given = pruned.tokens if pruned else None
        stream = WindowStream(entry, segments, shown.decoder, p, asked.at_once, asked.slots, given)
        what: dict[str, Any] = {"source": shown.source, "policy": asked.policy, "params": asdict(entry.params)}
        what |= {"at_once": asked.at_once, "slots": stream.plan.shape.recent}
        stack.enter_context(alone(folder))
        engine = PassEngine(folder / PASSES, stream, CoreSimulator(emit("core", p), p, [["lxe.dpe.chunks"]]), what)
        records = play(engine, bar, stream.total, repeat, cache(lambda: connect(stack)))
    found = differences(records) + (pruned.differences if pruned else [])
    if repeat:
        tell_repeated(records, json)
        end(found)
        return
    found += stream.disagreements(reference)
    result = (
        what
        | named
        | {
            "layers": o.depth,
            "need": stream.need,
            "events": asdict(stream.events),
            "blocks": blocks(records, stream, stream.errors(reference), stream.errors(full), reference.bounds(plain)),
            "words": words(stream, reference),
            "mask": pruned.figures if pruned else None,
            "steps": len(records),
            "compared": sum(one["compared"] for one in records),
            "seconds": round(time.perf_counter() - started, 1),
            "differences": found,
        }
    )
    write(folder, result)
    if json:
        console.print_json(result)
    else:
        for s in sections(result):
            console.out.print(s.table())
            console.out.print(s.note, highlight=False)
        console.out.print(f"Report: {folder / 'report.html'}")
    for warning in [*shown.fallbacks, *missing(result)]:
        console.note(warning)
    end(found)


def missing(result: dict[str, Any]) -> list[str]:
    """A warning if a kind of event that the policy is there for has never happened."""
    wanted = WINDOWED[result["policy"]] + BRANCH * (result["params"].get("ssm") == "random")
    never = [name for name in wanted if not result["events"][name]]
    if not never:
        return []
    text = f"{result['policy']}: nothing was {' or '.join(never)} in this stream: more --frames or a smaller window"
    return [f"{text} (-p {result['policy']}.NAME=VALUE) shows it"]


def blocks(
    records: list[dict[str, Any]],
    stream: WindowStream,
    errors: list[float | None],
    full: list[float | None],
    bounds: list[float],
) -> list[dict[str, Any]]:
    """Figures of each block, of the records of its steps. `full` : errors against full attention."""
    out, bus = [], stream.p.lxe.bus_bytes
    for d, error, from_full, bound in zip(stream.decisions, errors, full, bounds, strict=True):
        own = [one for one in records if one["block"] == d.index]
        passes = [one for one in own if one["kind"] == "layer"]
        turns = [one for one in own if one["kind"] == "turn"]
        out.append(
            {
                "block": d.index,
                "stage": d.stage,
                "tokens": d.stop - d.start,
                "rows": len(d.rows),
                "refreshed": len(d.refreshed),
                "turned": sum(one["tokens"] for one in turns),
                "passes": len({one["of"] for one in passes}),
                "cycles": sum(one["cycles"] for one in own),
                "turning": sum(one["cycles"] for one in turns),
                "predicted": sum(one["predicted"] for one in own),
                "loaded": sum(one["counters"]["lxe.loader.beats"] for one in own) * bus,
                "stored": sum(one["beats"] for one in own) * bus,
                "compared": sum(one["compared"] for one in own),
                "error": error,
                "bound": bound,
                "from_full": from_full,
                "differs": any(one["differences"] for one in own),
            }
        )
    return out


def words(stream: WindowStream, reference: Reference) -> dict[str, str] | None:
    """The answer by the hidden states of the core and by those of FP32; None unless all layers are loaded.

    Both choose behind the same tokens: those that FP32 has chosen before.
    """
    decoder = reference.decoder
    if len(decoder.layers) < N_LAYERS:
        return None
    sides = {"core": stream.outputs, "fp32": reference.outputs}
    return {name: decoder.tokenizer.decode(stream.words(decoder, outputs)) for name, outputs in sides.items()}


def write(folder: Path, result: dict[str, Any]) -> None:
    """Write the files of a run that is over."""
    write_atomically(folder / RESULT, json_format.dumps(result, indent=1).encode())
    passed = not result["differences"]
    verdict = "Every store and all memory equal golden." if passed else "The RTL differs from golden."
    lead = f"{result['policy']} on {result['layers']} layers, {result['source']['stream']}, preset {result['preset']}."
    html_page.write(folder / "report.html", "OpenVRex: a policy on the RTL", lead, verdict, passed, sections(result))


def sections(result: dict[str, Any]) -> list[Section]:
    """The sections of a report about a run."""
    e, own, params = result["events"], result["blocks"], result["params"]
    frames = [one for one in own if one["stage"] == "frame"]
    told = ", ".join(f"{name} {value}" for name, value in params.items() if not isinstance(value, dict))
    mean = {name: sum(one[name] for one in frames) / max(1, len(frames)) for name in ("cycles", "loaded")}
    rows = [
        [
            *(f"{one[key]:,}" if isinstance(one[key], int) else str(one[key]) for key in SHOWN),
            *("" if one[key] is None else f"{one[key]:.2%}" for key in ("error", "from_full")),
            "DIFFERS" if one["differs"] else "equal",
        ]
        for one in own
    ]
    plot = html_page.bars(
        [str(one["block"]) for one in own],
        {"layers": [one["cycles"] - one["turning"] for one in own], "turning": [one["turning"] for one in own]},
        "block",
        "cycles",
    )
    core = " ".join([result["preset"], *result["param"]])
    return [
        Section(
            f"{result['policy']} on the RTL",
            f"{told or 'no parameters'}. {result['layers']} layers, {result['slots']} slots of which {result['need']} "
            f"are needed, {result['at_once']} tokens a pass at most, preset {core}; memory: {LATENCY} cycles to the "
            f"first beat, then a beat a cycle. A frame takes {mean['cycles']:,.0f} cycles and loads "
            f"{mean['loaded']:,.0f} bytes on average. {NOTE}",
            [*SHOWN, "error", "from full", "result"],
            rows,
            plot,
        ),
        Section(
            "Events",
            "Pruned tokens never entered the decoder; dropped ones left the window; refreshed ones were computed anew; "
            "turned are keys of a layer. A pass wraps if its slots are two runs. Of hybrid memory: KV blocks evicted, "
            "tokens of all layers that the history branch scanned, passes of a layer that carried on a state.",
            list(e),
            [[f"{value:,}" for value in e.values()]],
        ),
        *told_mask(result),
        *told_words(result),
    ]


def told_mask(result: dict[str, Any]) -> list[Section]:
    """A section with the masks of the RTL, under CodecSight."""
    own = result.get("mask")
    if not own:
        return []
    note = (
        "The motion mask's RTL has decided which tokens enter the decoder, from the video's own motion vectors. A mask "
        "that is not golden's is a difference. Coded: frames between those taken, too. Cycles: from the first frame to "
        f"the last row, at full rate. Tokens kept of each frame: {', '.join(map(str, own['each']))}."
    )
    shown = ("frames", "coded", "blocks", "tokens", "kept", "cycles", "predicted")
    return [Section("Masks on the RTL", note, list(shown), [[f"{own[name]:,}" for name in shown]])]


def told_words(result: dict[str, Any]) -> list[Section]:
    """A section with the answer in words, where all layers have run."""
    said = result["words"]
    if not said:
        return []
    note = "Tokens chosen behind the question and each later token. Both sides are fed what FP32 has chosen before."
    return [Section("Words", note, list(said), [list(said.values())])]
