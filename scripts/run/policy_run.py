"""What the commands of `vrex run` share: a stream of passes is played, and its results are told.

A policy is a `PolicyRun`: the stream that its decisions make, and the figures of its report. One that watches a video
is a `VideoRun`.
"""

import json as json_format
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.inputs.model_file import FileDecoder, open_model
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.stream_runs import DecoderStream
from openvrex.hdl.params import CoreParams, SystemParams
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run.play_passes import differences, end, play, tell_repeated
from openvrex.scripts.run.run_options import Playing, Watching
from openvrex.tb.library.core_simulator import CoreSimulator
from openvrex.tb.library.pass_stream import PassStream
from openvrex.tb.library.runner import emit

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from openvrex.scripts.run.pass_engine import PassEngine

PASSES, PICTURE = "passes", "timeline"  # in the folder


class PolicyRun(ABC):
    """A run of a policy on a core.

    core : parameters of the core · counters : of the RTL, whose samples each pass has
    key : what decides the stream, in JSON's types; known after `start` · differences : found before the passes
    total : passes of the stream, 0 if the core's numbers decide how many · flat : whether they are many

    equal, differs : what the report says of a run that equals golden, and of another one · title : of the report
    notes : whether the terminal shows the notes of the tables · pictured : number of the section with `picture`
    """

    file = "run.json"  # with the results
    title = "a policy on the RTL"
    equal, differs = "Every store and all memory equal golden.", "The RTL differs from golden."
    notes, pictured = False, -1
    counters: Sequence[Sequence[str]] = [["lxe.dpe.chunks"]]
    core: CoreParams
    key: dict[str, Any]
    differences: Sequence[str] = ()
    total, flat = 0, False

    @abstractmethod
    def start(self, folder: Path, bar: Bar) -> PassStream:
        """The passes. `bar` shows what has to be done first."""

    def disagreements(self) -> list[str]:
        """Where golden decides otherwise than the policy, a line for each."""
        return []

    @abstractmethod
    def result(self, records: list[dict[str, Any]], engine: "PassEngine") -> dict[str, Any]:
        """Figures of the run, in JSON's types."""

    def picture(self, records: list[dict[str, Any]], engine: "PassEngine") -> Figure | None:
        """A picture of the run, for the section `pictured`."""
        return None

    def pages(self) -> list[Section]:
        """Sections of the report alone, behind the first."""
        return []

    def warnings(self, result: dict[str, Any]) -> list[str]:
        """What the user should know besides."""
        return []

    @staticmethod
    @abstractmethod
    def lead(result: dict[str, Any]) -> str:
        """The first sentence of the report: what has run."""

    @staticmethod
    @abstractmethod
    def sections(result: dict[str, Any]) -> list[Section]:
        """The sections of a report about a run, without its picture."""

    @classmethod
    def told(cls, folder: Path, result: dict[str, Any]) -> list[Section]:
        """The sections of a report about the run in a folder."""
        out = cls.sections(result)
        if cls.pictured >= 0:
            out[cls.pictured] = replace(out[cls.pictured], plot=(folder / f"{PICTURE}.svg").read_text())
        return out


class VideoRun(PolicyRun):
    """A run over a video.

    policy, changes : its name, and values of its parameters by name
    sizes : of the stream in memory, which decide its passes; known after `decide`
    entry : the policy with its parameters. `checked` raises `ParamError` for those that the core does not run
    """

    notes = True
    hint = "more --frames or a smaller window {} shows it"
    sizes: dict[str, Any]

    def __init__(self, policy: str, changes: dict[str, str], asked: Watching, system: SystemParams):
        self.policy, self.changes, self.asked = policy, changes, asked
        self.system, self.core = system, system.core
        self.entry = self.checked()
        self.model = open_model(asked.model) if asked.model else None

    @abstractmethod
    def checked(self) -> Entry:
        """The policy on the core."""

    @abstractmethod
    def decide(self, shown: DecoderStream) -> PassStream:
        """The passes of a video: the policy in FP32 decides first."""

    @abstractmethod
    def figures(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """Figures of the run, for its report: `events`, `blocks` and others."""

    @staticmethod
    @abstractmethod
    def wanted(result: dict[str, Any]) -> Sequence[str]:
        """The kinds of events that the policy is there for."""

    @classmethod
    def missing(cls, result: dict[str, Any]) -> list[str]:
        """A warning if one of `wanted` has never happened."""
        never, name = [one for one in cls.wanted(result) if not result["events"][one]], result["policy"]
        text = f"{name}: nothing was {' or '.join(never)} in this stream: {cls.hint.format(f'(-p {name}.NAME=VALUE)')}"
        return [text] * bool(never)

    def start(self, folder: Path, bar: Bar) -> PassStream:
        video, o = self.asked.video, self.asked.options
        seen = bar.add_task("vision encoder", total=o.frames)
        # A folder for each way of making a stream: other options do not touch what is there.
        how = (video, o, self.model.digests()) if self.model else (video, o)
        own = folder / f"video-{sha256(repr(how).encode()).hexdigest()[:12]}"
        self.shown = DecoderStream(video, o, own, lambda done, total: bar.update(seen, completed=done), self.model)
        stream = self.decide(self.shown)
        self.key = {"source": self.shown.source, "policy": self.policy, "params": asdict(self.entry.params)}
        self.key |= self.sizes
        return stream

    def result(self, records: list[dict[str, Any]], engine: "PassEngine") -> dict[str, Any]:
        out = self.key | {"decoder": self.shown.decoder.title, "layers": self.asked.layers} | self.figures(records)
        return out | {"steps": len(records), "compared": sum(one["compared"] for one in records)}

    def warnings(self, result: dict[str, Any]) -> list[str]:
        of, packed = self.shown.decoder, self.core.lxe.weights
        notes = of.notes(of.held(packed)[1]) if isinstance(of, FileDecoder) else []
        return [*notes, *self.shown.fallbacks, *self.missing(result)]

    @staticmethod
    def lead(result: dict[str, Any]) -> str:
        source, decoder = result["source"]["stream"], result.get("decoder", Decoder.title)
        return f"{result['policy']} on {result['layers']} layers of {decoder}, {source}, preset {result['preset']}."


def split(policy: str, assignments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Parameters of the policy by name, and those of the core, of each -p."""
    own = [one for one in assignments if one.startswith(f"{policy}.")]
    pairs = dict(one.removeprefix(f"{policy}.").partition("=")[::2] for one in own)
    return pairs, [one for one in assignments if one not in own]


def run(own: PolicyRun, named: dict[str, Any], how: Playing) -> None:
    """Play the stream of a policy and tell the results. `named` : preset and parameters of the core, for the record."""
    # Dask takes half a second to import; no other command should wait for it.
    from openvrex.scripts.run.pass_engine import PassEngine, alone

    started, p, folder = time.perf_counter(), own.core, how.folder
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(quiet=how.json, transient=False))
        stream = own.start(folder, bar)
        stack.enter_context(alone(folder))
        simulator = CoreSimulator(emit("core", p), p, own.counters, own.flat and not how.repeat)
        engine = PassEngine(folder / PASSES, stream, simulator, own.key)
        records = play(engine, bar, own.total, how.repeat, cache(lambda: how.connect(stack)))
    found = [*differences(records), *own.differences]
    if how.repeat:
        tell_repeated(records, how.json)
        end(found)
        return
    found += own.disagreements()
    result = named | own.result(records, engine)
    result |= {"seconds": round(time.perf_counter() - started, 1), "differences": found}
    write(own, folder, result, own.picture(records, engine))
    if how.json:
        console.print_json(result)
    else:
        for s in own.sections(result):
            console.out.print(s.table())
            if own.notes:
                console.out.print(s.note, highlight=False)
        picture = f" · picture: {folder / PICTURE}.svg, .png" * (own.pictured >= 0)
        console.out.print(f"Report: {folder / 'report.html'}{picture}")
    for warning in own.warnings(result):
        console.note(warning)
    end(found)


def write(own: PolicyRun, folder: Path, result: dict[str, Any], picture: Figure | None) -> None:
    """Write the files of a run that is over."""
    write_atomically(folder / own.file, json_format.dumps(result, indent=1).encode())
    if picture:
        write_atomically(folder / f"{PICTURE}.svg", html_page.svg(picture).encode())
        with replacing(folder / f"{PICTURE}.png") as file:
            picture.savefig(file, format="png", dpi=150)
    passed = not result["differences"]
    verdict, told = own.equal if passed else own.differs, own.told(folder, result)
    page = [*told[:1], *own.pages(), *told[1:]]
    html_page.write(folder / "report.html", f"OpenVRex: {own.title}", own.lead(result), verdict, passed, page)


def measured(
    own: Sequence[dict[str, Any]], bus: int, error: float | None, from_full: float | None
) -> dict[str, int | float | None]:
    """What records of a block's passes say: cycles, bytes between core and memory and those compared, errors."""
    return {
        "cycles": sum(one["cycles"] for one in own),
        "predicted": sum(one["predicted"] for one in own),
        "loaded": sum(one["counters"]["lxe.loader.beats"] for one in own) * bus,
        "stored": sum(one["beats"] for one in own) * bus,
        "compared": sum(one["compared"] for one in own),
        "error": error,
        "from_full": from_full,
        "differs": any(one["differences"] for one in own),
    }


def rows(blocks: list[dict[str, Any]], shown: Sequence[str]) -> list[list[str]]:
    """A row of the report for each block: the figures `shown`, both errors, the result."""
    return [
        [
            *(f"{one[key]:,}" if isinstance(one[key], int) else str(one[key]) for key in shown),
            *("" if one[key] is None else f"{one[key]:.2%}" for key in ("error", "from_full")),
            "DIFFERS" if one["differs"] else "equal",
        ]
        for one in blocks
    ]


def told(params: dict[str, Any]) -> str:
    """A policy's parameters in words."""
    return ", ".join(f"{name} {value}" for name, value in params.items() if not isinstance(value, dict))


def means(blocks: list[dict[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Figures of a frame on average."""
    frames = [one for one in blocks if one["stage"] == "frame"]
    return {name: sum(one[name] for one in frames) / max(1, len(frames)) for name in names}
