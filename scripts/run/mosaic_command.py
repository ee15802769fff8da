"""`vrex run mosaic`: decoder layers on the RTL of a core, which makes every number that Mosaic decides by."""

import json as json_format
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.golden.policies.mosaic_host import ALLOWED
from openvrex.golden.policies.registry import Entry, entry, override
from openvrex.golden.policies.stream_runs import Options
from openvrex.hdl.emit import emit
from openvrex.hdl.params import CoreParams
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import run_options
from openvrex.scripts.run.play_passes import Again, again, differences, end, play, tell_repeated, workers_of
from openvrex.scripts.run.windows_command import made, split
from openvrex.tb.library.core_simulator import LATENCY, CoreSimulator
from openvrex.tb.library.mosaic_stream import EVENTS, MosaicReference, MosaicStream, Needs, Room
from openvrex.tb.library.window_stream import Reference

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from distributed import Client

RESULT, PASSES = "run.json", "passes"  # in the folder
# Kinds of programs, by what they are for.
PASS, CHOICE, MOVES = ("ask", "attend"), ("codes", "visual_codes"), ("append", "offload", "fetch", "prefetch", "index")
SHOWN = [
    *("block", "stage", "tokens", "programs", "readings"),
    *("cycles", "predicted", "layers", "choice", "moves", "clusters", "loaded", "stored", "compared"),
]
NOTE = (
    "Programs: runs of a program. Readings: answers that the host read before it started the next one. Layers, choice, "
    "moves, clusters: cycles of the decoder's layers, of score codes, of copied entries, of clustering and splits. "
    "Predicted: cycles by the time view. Loaded, stored: bytes between core and memory. Compared: bytes compared with "
    "golden's. Error: distance of the hidden states behind the last layer from the policy in FP32, relative to their "
    "length. From full: the same from full attention in FP32."
)


def command(
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
    """Run decoder layers with Mosaic on the RTL of a core.

    The core makes every number that Mosaic decides by. Golden runs the same layers; the command compares every store,
    all memory and every decision. Run the same command again to resume.
    """
    repeat = again(first, last, waves)
    own, rest = split("mosaic", param or [])
    asked = Asked(own, video, Options(frames, tokens, fps, question, generate, gop, layers), at_once, slots)
    core = console.params(preset, rest).core
    asked.entry(core)  # a bad parameter fails before the models are loaded
    named = {"preset": preset, "param": rest}
    run(asked, core, named, folder, repeat, lambda stack: workers_of(stack, scheduler, jobs, workers), json)


@dataclass(frozen=True)
class Asked:
    """What the user asks for: Mosaic with `name=value` changes, on the first layers of the decoder, over a video.

    at_once : most tokens of a block · slots : for tokens in each layer; 0: one for each token of the stream
    """

    changes: Sequence[str]
    video: str
    options: Options
    at_once: int
    slots: int

    def entry(self, _: CoreParams) -> Entry:
        """The policy. Raises `ParamError` for unknown or bad parameters, and for those that no core runs."""
        found = entry("mosaic")
        pairs = dict(one.partition("=")[::2] for one in self.changes)
        p = override(replace(found.params, arithmetic="hardware"), pairs)
        check(p.arithmetic == "hardware", "arithmetic", p.arithmetic, "must be hardware: the core decides")
        check(p.prefetch in ALLOWED, "prefetch", p.prefetch, f"must be one of {', '.join(ALLOWED)}")
        return replace(found, params=p)

    def room(self, needs: Needs, sizes: list[int], build: int, lanes: int, depth: int) -> Room:
        """Room for a stream, of what the policy needed in FP32, and some more, as the core's choices differ."""
        longest = max(sizes)
        check(longest <= self.at_once, "--at-once", self.at_once, f"must be at least {longest}: a block is one pass")
        # A cluster, or all first frames if they lie in one visual cluster.
        most = max(needs.members + needs.members // 2, build * longest)
        members = min((depth - 1) // 2, 1 << (most - 1).bit_length())
        check(needs.members <= members, "members", needs.members, f"of a cluster must be at most {members} here")
        return Room(self.slots or sum(sizes), needs.clusters + lanes, needs.visual, members)


def run(
    asked: Asked,
    p: CoreParams,
    named: dict[str, Any],
    folder: Path,
    repeat: Again | None,
    connect: Callable[[ExitStack], "Client"],
    json: bool,
) -> None:
    """Play the stream and tell the results. `named` : preset and parameters of the core, for the record."""
    from openvrex.scripts.run.pass_engine import PassEngine, alone

    started, found, o = time.perf_counter(), asked.entry(p), asked.options
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(quiet=json, transient=False))
        shown = made(asked.video, o, folder, bar)
        reference = MosaicReference(found, shown.decoder)
        segments = reference.take_in(shown.segments, o.generate)
        full = Reference(entry("full"), shown.decoder)
        full.take_in(segments)
        sizes = [len(s.x) for s in segments]
        room = asked.room(reference.needs, sizes, found.params.build, p.dpe.n_w, p.vpe.depth)
        stream = MosaicStream(found, segments, shown.decoder, p, room)
        what: dict[str, Any] = {"source": shown.source, "policy": "mosaic", "params": asdict(found.params)}
        what |= {"room": asdict(room)}
        stack.enter_context(alone(folder))
        engine = PassEngine(folder / PASSES, stream, CoreSimulator(emit("core", p), p, [["lxe.dpe.chunks"]]), what)
        # The number of programs follows from the core's numbers, so the bar has no end.
        records = play(engine, bar, 0, repeat, cache(lambda: connect(stack)))
    lines = differences(records)
    if repeat:
        tell_repeated(records, json)
        end(lines)
        return
    lines += stream.twin.differences
    result = (
        what
        | named
        | {
            "layers": o.depth,
            "events": asdict(stream.events),
            "blocks": blocks(records, stream, stream.errors(reference), stream.errors(full)),
            "kinds": kinds(records),
            "otherwise": stream.chosen_otherwise(reference),
            "numbers": stream.twin.compared,
            "steps": len(records),
            "compared": sum(one["compared"] for one in records),
            "seconds": round(time.perf_counter() - started, 1),
            "differences": lines,
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
    end(lines)


def missing(result: dict[str, Any]) -> list[str]:
    """A warning if a kind of event that the policy is there for has never happened."""
    never = [name for name in EVENTS if not result["events"][name]]
    if not never:
        return []
    text = f"mosaic: nothing was {' or '.join(never)} in this stream: more --frames, a smaller window or thresholds"
    return [f"{text} (-p mosaic.NAME=VALUE) show it"]


def blocks(
    records: list[dict[str, Any]], stream: MosaicStream, errors: list[float], full: list[float]
) -> list[dict[str, Any]]:
    """Figures of each block, of the records of its programs. `full` : errors against full attention."""
    out, bus = [], stream.p.lxe.bus_bytes

    def cycles(own: list[dict[str, Any]], kinds: Sequence[str]) -> int:
        return sum(one["cycles"] for one in own if one["kind"] in kinds)

    for i, (segment, error, from_full) in enumerate(zip(stream.segments, errors, full, strict=True)):
        own = [one for one in records if one["block"] == i]
        total, parts = sum(one["cycles"] for one in own), [cycles(own, kinds) for kinds in (PASS, CHOICE, MOVES)]
        out.append(
            {
                "block": i,
                "stage": segment.stage,
                "tokens": len(segment.x),
                "programs": len(own),
                "readings": stream.outputs.readings[i],
                "cycles": total,
                "predicted": sum(one["predicted"] for one in own),
                "layers": parts[0],
                "choice": parts[1],
                "moves": parts[2],
                "clusters": total - sum(parts),
                "loaded": sum(one["counters"]["lxe.loader.beats"] for one in own) * bus,
                "stored": sum(one["beats"] for one in own) * bus,
                "compared": sum(one["compared"] for one in own),
                "error": error,
                "from_full": from_full,
                "differs": any(one["differences"] for one in own),
            }
        )
    return out


def kinds(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures of each kind of program: runs, work, cycles."""
    out = []
    for kind in dict.fromkeys(one["kind"] for one in records):
        own = [one for one in records if one["kind"] == kind]
        cycles = [one["cycles"] for one in own]
        size = sum(one["size"] for one in own)
        out.append(
            {
                "kind": kind,
                "programs": len(own),
                "size": size,
                "cycles": sum(cycles),
                "shortest": min(cycles),
                "longest": max(cycles),
            }
        )
    return out


def write(folder: Path, result: dict[str, Any]) -> None:
    """Write the files of a run that is over."""
    write_atomically(folder / RESULT, json_format.dumps(result, indent=1).encode())
    passed = not result["differences"]
    verdict = "Every store and all memory equal golden, and every decision that of the policy."
    lead = f"mosaic on {result['layers']} layers, {result['source']['stream']}, preset {result['preset']}."
    said = verdict if passed else "The RTL differs from golden, or golden from the policy."
    html_page.write(folder / "report.html", "OpenVRex: Mosaic on the RTL", lead, said, passed, sections(result))


def sections(result: dict[str, Any]) -> list[Section]:
    """The sections of a report about a run."""
    e, own, params, room = result["events"], result["blocks"], result["params"], result["room"]
    frames = [one for one in own if one["stage"] == "frame"]
    told = ", ".join(f"{name} {value}" for name, value in params.items() if not isinstance(value, dict))
    mean = {name: sum(one[name] for one in frames) / max(1, len(frames)) for name in ("cycles", "loaded", "readings")}
    rows = [
        [
            *(f"{one[key]:,}" if isinstance(one[key], int) else str(one[key]) for key in SHOWN),
            *(f"{one[key]:.2%}" for key in ("error", "from_full")),
            "DIFFERS" if one["differs"] else "equal",
        ]
        for one in own
    ]
    names = ("layers", "choice", "moves", "clusters")
    plot = html_page.bars(
        [str(one["block"]) for one in own], {name: [one[name] for one in own] for name in names}, "block", "cycles"
    )
    core = " ".join([result["preset"], *result["param"]])
    return [
        Section(
            "mosaic on the RTL",
            f"{told}. {result['layers']} layers; room of a layer: {room['slots']} tokens, {room['clusters']} clusters; "
            f"preset {core}; memory: {LATENCY} cycles to the first beat, then a beat a cycle. A frame takes "
            f"{mean['cycles']:,.0f} cycles, loads {mean['loaded']:,.0f} bytes and is read {mean['readings']:,.1f} "
            f"times on average. The policy in NumPy decides the same on the core's keys and queries, and "
            f"{result['numbers']:,} numbers of its tables are equal; in FP32 it attends to other tokens in "
            f"{result['otherwise']} blocks. {NOTE}",
            [*SHOWN, "error", "from full", "result"],
            rows,
            plot,
        ),
        Section(
            "Programs",
            "Size: entries, tokens, members or clusters that the programs of a kind have worked on. Cycles: of all of "
            "them, of the shortest and of the longest.",
            list(result["kinds"][0]),
            [[f"{x:,}" if isinstance(x, int) else x for x in one.values()] for one in result["kinds"]],
        ),
        Section(
            "Events",
            "Clustered: frames. Made: clusters by K-means at once. Assigned: tokens that a cluster took. Split: "
            "clusters on the device. Deferred: tokens that went to the buffer. Merged: clusters split at retrieval, "
            "with the buffer. Offloaded, fetched, prefetched, covered: entries. Represented: pairs attended.",
            list(e),
            [[f"{value:,}" for value in e.values()]],
        ),
    ]
