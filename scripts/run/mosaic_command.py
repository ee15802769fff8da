"""`vrex run mosaic`: decoder layers on the RTL of a core, which makes every number that Mosaic decides by."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from openvrex.golden.function_params import check
from openvrex.golden.policies.mosaic_host import ALLOWED
from openvrex.golden.policies.registry import Entry, entry, override
from openvrex.golden.policies.stream_runs import DecoderStream
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.run.policy_run import VideoRun, means, measured, rows, run, split, told
from openvrex.scripts.run.run_options import Playing, Watching, grouped
from openvrex.tb.library.core_simulator import LATENCY
from openvrex.tb.library.mosaic_stream import EVENTS, MosaicReference, MosaicStream, Needs, Room
from openvrex.tb.library.window_stream import Reference

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


@grouped
def command(asked: Watching, *, preset: console.Preset = "small", how: Playing) -> None:
    """Run decoder layers with Mosaic on the RTL of a core.

    The core makes every number that Mosaic decides by. Golden runs the same layers; the command compares every store,
    all memory and every decision. Run the same command again to resume.
    """
    own, rest = split("mosaic", how.param or [])
    run(MosaicRun("mosaic", own, asked, console.params(preset, rest)), {"preset": preset, "param": rest}, how)


class MosaicRun(VideoRun):
    """A run under Mosaic. A block is a pass of at most `at_once` tokens; a layer has `slots`, or one for each token."""

    title = "Mosaic on the RTL"
    equal = "Every store and all memory equal golden, and every decision that of the policy."
    differs = "The RTL differs from golden, or golden from the policy."
    hint = "more --frames, a smaller window or thresholds {} show it"

    def checked(self) -> Entry:
        """The policy. Raises `ParamError` for unknown or bad parameters, and for those that no core runs."""
        found = entry("mosaic")
        p = override(replace(found.params, arithmetic="hardware"), self.changes)
        check(p.arithmetic == "hardware", "arithmetic", p.arithmetic, "must be hardware: the core decides")
        check(p.prefetch in ALLOWED, "prefetch", p.prefetch, f"must be one of {', '.join(ALLOWED)}")
        return replace(found, params=p)

    def room(self, needs: Needs, sizes: list[int], build: int, lanes: int, depth: int) -> Room:
        """Room for a stream, of what the policy needed in FP32, and some more, as the core's choices differ."""
        longest, most = max(sizes), self.asked.at_once
        check(longest <= most, "--at-once", most, f"must be at least {longest}: a block is one pass")
        # A cluster, or all first frames if they lie in one visual cluster.
        most = max(needs.members + needs.members // 2, build * longest)
        members = min((depth - 1) // 2, 1 << (most - 1).bit_length())
        check(needs.members <= members, "members", needs.members, f"of a cluster must be at most {members} here")
        return Room(self.asked.slots or sum(sizes), needs.clusters + lanes, needs.visual, members)

    def decide(self, shown: DecoderStream) -> MosaicStream:
        self.reference = MosaicReference(self.entry, shown.decoder)
        segments = self.reference.take_in(shown.segments, self.asked.generate)
        self.full = Reference(entry("full"), shown.decoder)
        self.full.take_in(segments)
        sizes, p = [len(s.x) for s in segments], self.core
        room = self.room(self.reference.needs, sizes, self.entry.params.build, p.dpe.n_w, p.vpe.depth)
        self.stream = MosaicStream(self.entry, segments, shown.decoder, p, room)
        self.sizes = {"room": asdict(room)}
        return self.stream

    def disagreements(self) -> list[str]:
        return self.stream.twin.differences

    def figures(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        stream = self.stream
        return {
            "events": asdict(stream.events),
            "blocks": blocks(records, stream, stream.errors(self.reference), stream.errors(self.full)),
            "kinds": kinds(records),
            "otherwise": stream.chosen_otherwise(self.reference),
            "numbers": stream.twin.compared,
        }

    @staticmethod
    def wanted(result: dict[str, Any]) -> Sequence[str]:
        return EVENTS

    @staticmethod
    def sections(result: dict[str, Any]) -> list[Section]:
        """The sections of a report about a run."""
        e, own, params, room = result["events"], result["blocks"], result["params"], result["room"]
        mean = means(own, ("cycles", "loaded", "readings"))
        names = ("layers", "choice", "moves", "clusters")
        plot = html_page.bars(
            [str(one["block"]) for one in own], {name: [one[name] for one in own] for name in names}, "block", "cycles"
        )
        core = " ".join([result["preset"], *result["param"]])
        return [
            Section(
                "mosaic on the RTL",
                f"{told(params)}. {result['layers']} layers; room of a layer: {room['slots']} tokens, "
                f"{room['clusters']} clusters; preset {core}; memory: {LATENCY} cycles to the first beat, then a beat "
                f"a cycle. A frame takes {mean['cycles']:,.0f} cycles, loads {mean['loaded']:,.0f} bytes and is read "
                f"{mean['readings']:,.1f} times on average. The policy in NumPy decides the same on the core's keys "
                f"and queries, and {result['numbers']:,} numbers of its tables are equal; in FP32 it attends to other "
                f"tokens in {result['otherwise']} blocks. {NOTE}",
                [*SHOWN, "error", "from full", "result"],
                rows(own, SHOWN),
                plot,
            ),
            Section(
                "Programs",
                "Size: entries, tokens, members or clusters that the programs of a kind have worked on. Cycles: of all "
                "of them, of the shortest and of the longest.",
                list(result["kinds"][0]),
                [[f"{x:,}" if isinstance(x, int) else x for x in one.values()] for one in result["kinds"]],
            ),
            Section(
                "Events",
                "Clustered: frames. Made: clusters by K-means at once. Assigned: tokens that a cluster took. Split: "
                "clusters on the device. Deferred: tokens that went to the buffer. Merged: clusters split at "
                "retrieval, with the buffer. Offloaded, fetched, prefetched, covered: entries. Represented: pairs "
                "attended.",
                list(e),
                [[f"{value:,}" for value in e.values()]],
            ),
        ]


def blocks(
    records: list[dict[str, Any]], stream: MosaicStream, errors: list[float], full: list[float]
) -> list[dict[str, Any]]:
    """Figures of each block, of the records of its programs. `full` : errors against full attention."""
    out, bus = [], stream.p.lxe.bus_bytes

    def cycles(own: list[dict[str, Any]], kinds: Sequence[str]) -> int:
        return sum(one["cycles"] for one in own if one["kind"] in kinds)

    for i, (segment, error, from_full) in enumerate(zip(stream.segments, errors, full, strict=True)):
        own = [one for one in records if one["block"] == i]
        parts = [cycles(own, kinds) for kinds in (PASS, CHOICE, MOVES)]
        out.append(
            {
                "block": i,
                "stage": segment.stage,
                "tokens": len(segment.x),
                "programs": len(own),
                "readings": stream.outputs.readings[i],
                "layers": parts[0],
                "choice": parts[1],
                "moves": parts[2],
                "clusters": sum(one["cycles"] for one in own) - sum(parts),
                **measured(own, bus, error, from_full),
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
