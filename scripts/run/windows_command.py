"""`vrex run windows`: decoder layers on the RTL of a core, under a policy that chooses before each pass."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from openvrex.golden.function_params import check
from openvrex.golden.policies.codecsight_policy import CodecSightParams
from openvrex.golden.policies.registry import Entry, override
from openvrex.golden.policies.registry import entry as entry_of
from openvrex.golden.policies.stream_runs import DecoderStream
from openvrex.golden.policies.window_decisions import BRANCH, WINDOWED, branch_of, windowed
from openvrex.hdl.params import SystemParams
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.run.motion_masks import Masks, masks
from openvrex.scripts.run.policy_run import VideoRun, means, measured, rows, run, split, told
from openvrex.scripts.run.run_options import Encoder, Playing, Watching, check_encoder, grouped
from openvrex.tb.library.core_simulator import LATENCY
from openvrex.tb.library.frame_vision import check_pruned, seen_frames
from openvrex.tb.library.window_stream import Reference, WindowStream

NOTE = (
    "Patches: tokens that the vision encoder computes on the core, its class token included. Rows: tokens computed, "
    "refreshed ones included. Turned: keys of all layers that were turned. Loaded, stored: bytes between core and "
    "memory. Predicted: cycles by the time view. Compared: bytes compared with golden's, of all stores in their order "
    "and of memory after each program. Error: distance of the hidden states behind the last layer from the policy in "
    "FP32, relative to their length. From full: the same from full attention in FP32."
)
SHOWN = [
    *("block", "stage", "tokens", "patches", "rows", "refreshed", "turned", "passes"),
    *("cycles", "predicted", "loaded", "stored", "compared"),
]


@grouped
def command(
    policy: Annotated[str, typer.Argument(help=f"A policy without keys and queries: {', '.join(WINDOWED)}.")],
    asked: Watching,
    *,
    preset: console.Preset = "small",
    encoder: Encoder = "numpy",
    how: Playing,
) -> None:
    """Run decoder layers with a window policy on the RTL of a core.

    Golden runs the same layers; the command compares every store, all memory and every decision. Run the same command
    again to resume.
    """
    others = "resv and mosaic are commands of their own, others have no hardware"
    check(policy in WINDOWED, "policy", policy, f"must be one of {', '.join(WINDOWED)}: {others}")
    own, rest = split(policy, how.param or [])
    check_encoder(encoder)
    chosen = WindowRun(policy, own, asked, console.params(preset, rest), encoder)
    run(chosen, {"preset": preset, "param": rest}, how)


class WindowRun(VideoRun):
    """A run under a policy of `WINDOWED`: CodecSight's masks are those of the system's motion mask.

    encoder : what encodes frames; on the core CodecSight's alone in part, the patches of the tokens that it keeps
    """

    def __init__(
        self, policy: str, changes: dict[str, str], asked: Watching, system: SystemParams, encoder: str = "numpy"
    ):
        super().__init__(policy, changes, asked, system)
        self.encoder = encoder
        if encoder == "core" and isinstance(self.entry.params, CodecSightParams):
            check_pruned(asked.tokens)

    def checked(self) -> Entry:
        """The policy on the core.

        Raises `ParamError` for an unknown one, for unknown or bad parameters, and for a history branch on a core
        without its functions.
        """
        found = windowed(self.policy)
        found = replace(found, params=override(found.params, self.changes))
        reason = "must be disabled on a core without the functions of a scan: add -p features=hybrid or --preset omni"
        check(branch_of(found) is None or self.core.lxe_format().vector.hybrid, "ssm", "random", reason)
        return found

    def decide(self, shown: DecoderStream) -> WindowStream:
        entry, asked, given = self.entry, self.asked, shown.segments
        self.pruned: Masks | None = None
        if isinstance(entry.params, CodecSightParams):
            self.pruned = masks(given, entry.params, self.system.mask)
        tokens, vision = self.pruned.tokens if self.pruned else None, None
        if self.encoder == "core":
            fmt = self.core.core_format()
            vision, given = seen_frames(given, list(shown.pictures()), shown.projector, fmt, tokens)
        self.reference = Reference(entry, shown.decoder)
        segments = self.reference.take_in(given, asked.generate)
        self.full = Reference(entry_of("full"), shown.decoder)
        self.full.take_in(segments)
        self.plain = None
        if branch_of(entry) is not None:
            self.plain = Reference(replace(entry, params=override(entry.params, {"ssm": "disabled"})), shown.decoder)
            self.plain.take_in(segments)
        self.differences = self.pruned.differences if self.pruned else []
        how = asked.at_once, asked.slots, tokens, vision
        self.stream = WindowStream(entry, segments, shown.decoder, self.core, *how)
        self.total = self.stream.total
        self.sizes = {"at_once": asked.at_once, "slots": self.stream.plan.shape.recent, "encoder": self.encoder}
        return self.stream

    def disagreements(self) -> list[str]:
        return self.stream.disagreements(self.reference)

    def figures(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        stream, reference = self.stream, self.reference
        errors = stream.errors(reference), stream.errors(self.full), reference.bounds(self.plain)
        return {
            "need": stream.need,
            "events": asdict(stream.events),
            "blocks": blocks(records, stream, *errors),
            "words": words(stream, reference),
            "mask": self.pruned.figures if self.pruned else None,
        }

    @staticmethod
    def wanted(result: dict[str, Any]) -> Sequence[str]:
        return WINDOWED[result["policy"]] + BRANCH * (result["params"].get("ssm") == "random")

    @staticmethod
    def sections(result: dict[str, Any]) -> list[Section]:
        """The sections of a report about a run."""
        e, own, params = result["events"], result["blocks"], result["params"]
        mean = means(own, ("cycles", "loaded"))
        plot = html_page.bars(
            [str(one["block"]) for one in own],
            {
                "layers": [one["cycles"] - one["turning"] - one["seeing"] for one in own],
                "turning": [one["turning"] for one in own],
                "vision encoder": [one["seeing"] for one in own],
            },
            "block",
            "cycles",
        )
        core = " ".join([result["preset"], *result["param"]])
        return [
            Section(
                f"{result['policy']} on the RTL",
                f"{told(params) or 'no parameters'}. {result['layers']} layers, {result['slots']} slots of which "
                f"{result['need']} are needed, {result['at_once']} tokens a pass at most, preset {core}; memory: "
                f"{LATENCY} cycles to the first beat, then a beat a cycle. A frame takes {mean['cycles']:,.0f} cycles "
                f"and loads {mean['loaded']:,.0f} bytes on average. {NOTE}",
                [*SHOWN, "error", "from full", "result"],
                rows(own, SHOWN),
                plot,
            ),
            Section(
                "Events",
                "Pruned tokens never entered the decoder; dropped ones left the window; refreshed ones were computed "
                "anew; turned are keys of a layer. A pass wraps if its slots are two runs. Of hybrid memory: KV "
                "blocks evicted, tokens of all layers that the history branch scanned, passes of a layer that carried "
                "on a state.",
                list(e),
                [[f"{value:,}" for value in e.values()]],
            ),
            *told_mask(result),
            *told_words(result),
        ]


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
                "turning": sum(one["cycles"] for one in turns),
                "patches": max((one["tokens"] for one in own if one["kind"] == "vision"), default=0),
                "seeing": sum(one["cycles"] for one in own if one["kind"] == "vision"),
                "bound": bound,
                **measured(own, bus, error, from_full),
            }
        )
    return out


def words(stream: WindowStream, reference: Reference) -> dict[str, str] | None:
    """The answer by the hidden states of the core and by those of FP32; None unless all layers are loaded.

    Both choose behind the same tokens: those that FP32 has chosen before.
    """
    decoder = reference.decoder
    if len(decoder.layers) < decoder.n_layers:
        return None
    sides = {"core": stream.outputs, "fp32": reference.outputs}
    return {name: decoder.tokenizer.decode(stream.words(decoder, outputs)) for name, outputs in sides.items()}


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
