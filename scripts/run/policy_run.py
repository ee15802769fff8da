"""What `vrex run windows` and `vrex run mosaic` share: a stream of passes is played, and its results are told.

A policy is a `PolicyRun`: its checked parameters, the stream that its decisions make, and the figures of its report.
"""

import json as json_format
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.stream_runs import DecoderStream, Options
from openvrex.hdl.params import SystemParams
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run.play_passes import Again, differences, end, play, tell_repeated
from openvrex.tb.library.core_simulator import CoreSimulator
from openvrex.tb.library.pass_stream import PassStream
from openvrex.tb.library.runner import emit

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from distributed import Client

RESULT, PASSES = "run.json", "passes"  # in the folder


@dataclass(frozen=True)
class Asked:
    """What the user asks for: a policy on the first layers of the decoder, over a video.

    policy, changes : name, and `name=value` of its parameters
    video, options : file or clip, and how it becomes a stream
    at_once : most tokens of a pass · slots : for entries; 0: as many as the stream needs
    """

    policy: str
    changes: Sequence[str]
    video: str
    options: Options
    at_once: int
    slots: int


class PolicyRun(ABC):
    """A run of a policy on the core of a system.

    entry : the policy with its parameters. `checked` raises `ParamError` for those that the core does not run
    equal, differs : what the report says of a run that equals golden, and of another one
    title : of the report
    """

    title = "a policy on the RTL"
    equal, differs = "Every store and all memory equal golden.", "The RTL differs from golden."

    def __init__(self, asked: Asked, system: SystemParams):
        self.asked, self.system, self.core = asked, system, system.core
        self.entry = self.checked()
        self.differences: list[str] = []  # found before the passes

    @abstractmethod
    def checked(self) -> Entry:
        """The policy on the core."""

    @abstractmethod
    def start(self, shown: DecoderStream) -> PassStream:
        """The passes of a video: the policy in FP32 decides first."""

    @property
    def total(self) -> int:
        """Passes of the stream, 0 if the core's numbers decide how many."""
        return 0

    @property
    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """Sizes of the stream in memory, which decide its passes."""

    @abstractmethod
    def disagreements(self) -> list[str]:
        """Where golden decides otherwise than the policy, a line for each."""

    @abstractmethod
    def figures(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """Figures of the run, for its report: `events`, `blocks` and others."""

    @staticmethod
    @abstractmethod
    def missing(result: dict[str, Any]) -> list[str]:
        """A warning if a kind of event that the policy is there for has never happened."""

    @staticmethod
    @abstractmethod
    def sections(result: dict[str, Any]) -> list[Section]:
        """The sections of a report about a run."""


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
    own: PolicyRun,
    named: dict[str, Any],
    folder: Path,
    repeat: Again | None,
    connect: Callable[[ExitStack], "Client"],
    json: bool,
) -> None:
    """Play the stream of a policy and tell the results. `named` : preset and parameters, for the record."""
    from openvrex.scripts.run.pass_engine import PassEngine, alone

    started, asked, p = time.perf_counter(), own.asked, own.core
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(quiet=json, transient=False))
        shown = made(asked.video, asked.options, folder, bar)
        stream = own.start(shown)
        what: dict[str, Any] = {"source": shown.source, "policy": asked.policy, "params": asdict(own.entry.params)}
        what |= own.sizes
        stack.enter_context(alone(folder))
        engine = PassEngine(folder / PASSES, stream, CoreSimulator(emit("core", p), p, [["lxe.dpe.chunks"]]), what)
        records = play(engine, bar, own.total, repeat, cache(lambda: connect(stack)))
    found = differences(records) + own.differences
    if repeat:
        tell_repeated(records, json)
        end(found)
        return
    found += own.disagreements()
    result = what | named | {"layers": asked.options.depth} | own.figures(records)
    result |= {"steps": len(records), "compared": sum(one["compared"] for one in records)}
    result |= {"seconds": round(time.perf_counter() - started, 1), "differences": found}
    write(own, folder, result)
    if json:
        console.print_json(result)
    else:
        for s in own.sections(result):
            console.out.print(s.table())
            console.out.print(s.note, highlight=False)
        console.out.print(f"Report: {folder / 'report.html'}")
    for warning in [*shown.fallbacks, *own.missing(result)]:
        console.note(warning)
    end(found)


def write(own: PolicyRun, folder: Path, result: dict[str, Any]) -> None:
    """Write the files of a run that is over."""
    write_atomically(folder / RESULT, json_format.dumps(result, indent=1).encode())
    passed = not result["differences"]
    verdict = own.equal if passed else own.differs
    lead = f"{result['policy']} on {result['layers']} layers, {result['source']['stream']}, preset {result['preset']}."
    html_page.write(folder / "report.html", f"OpenVRex: {own.title}", lead, verdict, passed, own.sections(result))


def traffic(own: Sequence[dict[str, Any]], bus: int) -> dict[str, int]:
    """Bytes of a block's passes between core and memory, and those compared."""
    return {
        "loaded": sum(one["counters"]["lxe.loader.beats"] for one in own) * bus,
        "stored": sum(one["beats"] for one in own) * bus,
        "compared": sum(one["compared"] for one in own),
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
