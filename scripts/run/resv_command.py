"""`vrex run resv`: run decoder layers with ReSV on golden and on the RTL of a core, and compare them."""

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.model_file import ModelFile, open_model
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.hdl.params import CoreParams
from openvrex.scripts import console
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import run_options
from openvrex.scripts.run.policy_run import PolicyRun, run
from openvrex.scripts.run.run_options import Playing, grouped
from openvrex.tb.library.core_simulator import LATENCY
from openvrex.tb.library.decoder_layers import DecoderLayers
from openvrex.tb.library.stage_log import Span, Unit, spans

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from openvrex.scripts.run.pass_engine import PassEngine

BINS = 400  # of the picture
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


@grouped
def command(
    trace: Annotated[Path, typer.Option(help="Trace of `vrex trace`; its frames enter the first layer.")],
    model: run_options.Model = None,
    layers: run_options.Layers = 2,
    frames: run_options.Frames = 3,
    ahead: Annotated[
        bool,
        typer.Option("--ahead", help="Let each layer choose and fetch entries for the next one during its own work."),
    ] = False,
    th_hd: console.ThHd = None,
    ratio: console.Ratio = None,
    centre: console.Centre = None,
    *,
    preset: console.Preset = "small",
    how: Playing,
) -> None:
    """Run decoder layers with ReSV on the RTL of a core.

    Golden runs the same layers; the command compares every store and every array. Run the same command again to resume.
    """
    p = console.params(preset, how.param).core
    f = console.function(p.dre, th_hd, ratio, centre)
    file = open_model(model) if model else None
    run(ResvRun(trace, p, layers, frames, ahead, f, file), {"preset": preset, "param": how.param or []}, how)


class ResvRun(PolicyRun):
    """A run over the frames of a trace, whose first layer takes the recorded inputs.

    Raises `TraceError` for a trace that does not fit, `ParamError` for parameters that do not.
    """

    title, equal, pictured = "layers on the RTL", "Every store and every array equal golden.", 1

    def __init__(
        self,
        trace: Path,
        core: CoreParams,
        layers: int,
        frames: int,
        ahead: bool,
        f: ReSVParams | None,
        file: ModelFile | None = None,
    ):
        data = Trace.load(trace)
        try:
            self.stream = DecoderLayers(data, core, layers, frames, ahead, f, file)
        except TraceError as e:
            raise TraceError(f"{trace.name}: {e}") from None
        self.core, self.counters, self.data, self.trace = core, self.stream.counters, data, trace
        self.total = layers * frames
        self.asked = {"layers": layers, "frames": frames, "ahead": ahead}
        self.key = {"trace": sha256(trace.read_bytes()).hexdigest(), "function": asdict(self.stream.core.dre.params)}
        self.key |= self.asked

    def start(self, folder: Path, bar: Bar) -> DecoderLayers:
        return self.stream

    def result(self, records: list[dict[str, Any]], engine: "PassEngine") -> dict[str, Any]:
        own = self.stream
        return self.asked | {
            "trace": self.trace.name,
            "model": self.data.provenance["decoder"]["model"],
            "tokens_per_frame": own.tokens,
            "sinks": own.sinks,
            "errors": own.errors(),
            "passes": [measured(own, one, engine.samples(one["number"])) for one in records],
        }

    def picture(self, records: list[dict[str, Any]], engine: "PassEngine") -> Figure:
        return draw(self.stream, records[-1], engine.samples(len(records) - 1))

    @staticmethod
    def lead(result: dict[str, Any]) -> str:
        of = f"{result['layers']} layers, {result['frames']} frames of {result['trace']}"
        return f"{result['model']}: {of}, preset {result['preset']}."

    @staticmethod
    def sections(result: dict[str, Any]) -> list[Section]:
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
                f"{result['model']}, {result['tokens_per_frame']} tokens a frame, {result['sinks']} before the first "
                f"as sinks; {chooses}; trace {result['trace']}, "
                f"preset {' '.join([result['preset'], *result['param']])}; "
                f"memory: {LATENCY} cycles to the first beat, then a beat a cycle. {PASS_NOTE}",
                [*PASSES, "error", "result"],
                [
                    [
                        *(f"{one[key]:,}" for key in PASSES),
                        _error(result, one),
                        "DIFFERS" if one["differs"] else "equal",
                    ]
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
            ),
            Section(
                "Cycles of the stages, pass by pass",
                "",
                ["stage", *(f"{one['frame']}, {one['layer']}" for one in passes)],
                [[name, *(f"{c[name]:,}" if name in c else "" for c in cycles)] for name in names],
            ),
        ]


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


def _error(result: dict, one: dict) -> str:
    """The error against full attention in FP64, for the last layer of a frame."""
    return f"{result['errors'][one['frame']]:.2%}" if one["layer"] == result["layers"] - 1 else ""
