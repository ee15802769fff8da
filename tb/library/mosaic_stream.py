"""Layers of a decoder on a core under Mosaic: a stream of programs (`tb.library.pass_stream`), beside the policy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.mosaic import Mosaic
from openvrex.golden.policies.mosaic_core import CoreLayer, Counts, Job
from openvrex.golden.policies.mosaic_core import MosaicDriver as Driver
from openvrex.golden.policies.mosaic_hardware import HardwareClusters, HardwareLayer
from openvrex.golden.policies.mosaic_host import MosaicHost
from openvrex.golden.policies.policy import LayerBlock
from openvrex.golden.policies.policy_run import Run, decoder_shape
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.stream_runs import Segment
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.lxe_model import Memory
from openvrex.golden.program.mosaic_plan import FramePlan, MosaicPlan
from openvrex.hdl.params import CoreParams
from openvrex.tb.library.handed_over import handed_over
from openvrex.tb.library.pass_stream import Pass, arrays, distance, idle_core, idle_ports, layer_shape, places
from openvrex.tb.library.window_stream import Reference, blocks

EVENTS = (  # that a stream must have, to show what the policy is there for
    *("clustered", "assigned", "split", "deferred", "merged", "offloaded", "fetched", "prefetched", "covered"),
    "represented",
)


class Twin:
    """The policy in NumPy, on the keys, values and queries that the core has made: it must decide the same.

    `differences` has a line for each decision, and each number of a table, that is another one.
    """

    def __init__(self, host: MosaicHost):
        self.host, own = host, host.policy
        self.policy = Mosaic(own.params, own.shape)
        width, fmt = own.width, host.plan.fmt.dot
        self.policy.layers = [HardwareLayer(width, own.shape.kv_heads, fmt) for _ in own.layers]
        self.run = Run(self.policy)
        self.differences: list[str] = []
        self.compared = 0  # numbers of tables
        self.kept: dict[int, np.ndarray] = {}  # tokens that the last layer attends to, by block
        host.watch = self.choose

    def _get(self, plan: MosaicPlan, name: str) -> np.ndarray:
        a = plan[name]
        return self.host.unit.memory.get(a.offset, a.shape, a.dtype).astype(np.float32)

    def choose(self, block: Block, plan: MosaicPlan, layer: int, rows: np.ndarray, chosen: Selected) -> None:
        """Let the policy choose in a layer, and compare with what the core chose."""
        s, many = self.policy.shape, len(rows)
        if layer == 0:
            self.run.begin(block)
        q = self._get(plan, "q").reshape(s.kv_heads, many, s.group, s.head_size).swapaxes(0, 1)
        entries = self._get(plan, "fresh").reshape(many, 2, s.kv_heads, s.head_size)
        self.run.take(layer, rows, entries[:, 0], entries[:, 1])
        history, state = self.run.histories[layer], self.policy.layers[layer]
        attended: list[np.ndarray] = []
        plain = state.means

        def means(at: np.ndarray) -> np.ndarray:
            attended.append(at)
            return plain(at)

        state.means = means  # type: ignore[method-assign]
        want = self.policy.select(LayerBlock(layer, block, rows, q.reshape(many, s.heads, -1), history.k, history.v))
        del state.means
        own = self.host.policy.layers[layer]
        assert isinstance(own, CoreLayer)
        same = {
            "kept tokens": np.array_equal(want.keep, chosen.keep),
            "representatives": np.array_equal(np.concatenate([*attended, np.zeros(0, int)]), own.represented),
            "tokens on the device": np.array_equal(self.policy.store.on_device(layer), self._on_device(layer)),
        }
        self._tell(f"block {block.index}, layer {layer}", same)
        self.kept[block.index] = chosen.keep[0]
        self.policy.store.release(layer)

    def _on_device(self, layer: int) -> np.ndarray:
        return self.host.policy.store.on_device(layer)

    def finish(self, block: Block) -> None:
        """End a block, and compare all clusters: members, flags, and each number in the core's tables."""
        self.run.finish(block)
        core = self.host.core
        self._see(block)
        for layer, (want, own) in enumerate(zip(self.policy.layers, self.host.policy.layers, strict=True)):
            n, names = len(want.clusters), ("size", "partition", "lazy")
            same = {x: np.array_equal(getattr(want, x), getattr(own, x)) for x in ("cluster", "buffered")}
            same |= {x: np.array_equal(getattr(want.clusters, x), getattr(own.clusters, x)) for x in names}
            same["places"] = np.array_equal(self.policy.store.place(layer), self.host.policy.store.place(layer))
            assert isinstance(want, HardwareLayer)
            stats = core.read(layer, "stats").swapaxes(0, 1).reshape(3, -1)[:, :n]
            pairs = core.read(layer, "ring")[self.host.plan.tokens_slots :][:n]
            groups = len(want.visual_sizes)
            numbers = {
                "centroids": (core.read(layer, "centroids")[:n], want.clusters.mean),
                "lengths": (stats[0] * -2, want.clusters.norm),  # type: ignore[attr-defined]
                "variances": (stats[1], want.clusters.variance),
                "sizes": (stats[2], want.clusters.size),
                "pairs": (pairs.reshape(want.pairs.shape), want.pairs),
                "visual sums": (core.read(layer, "visual_sums")[:groups], want.visual_sums),
            }
            for name, (have, right) in numbers.items():
                same[name] = np.array_equal(have.astype(np.float32), right.astype(np.float32))
                self.compared += have.size
            self._tell(f"block {block.index}, layer {layer}, at the end", same)

    def _see(self, block: Block) -> None:
        """Compare the visual clusters that the core has made."""
        frames, want = self.host.frames, self.policy.visual
        if frames is None or want is None:
            return
        assert isinstance(want, HardwareClusters)
        core, number, n = frames.core, frames.layer.number, len(want)
        stats = core.read(number, "stats").swapaxes(0, 1).reshape(3, -1)[:, :n]
        numbers = {
            "visual centroids": (core.read(number, "centroids")[:n], want.mean),
            "visual lengths, variances, sizes": (stats, np.stack([want.norm / -2, want.variance, want.size])),
        }
        same = {"visual clusters": len(frames) == n and np.array_equal(frames.size, want.size)}
        for name, (have, right) in numbers.items():
            same[name] = np.array_equal(have.astype(np.float32), right.astype(np.float32))
            self.compared += have.size
        self._tell(f"block {block.index}, at the end", same)

    def _tell(self, where: str, same: dict[str, bool]) -> None:
        self.differences += [f"{where}: {what} are not the policy's" for what, ok in same.items() if not ok]


@dataclass
class Needs:
    """What a stream needs, by a run of the policy in FP32: clusters and visual clusters of a layer, members of one."""

    clusters: int = 1
    visual: int = 1
    members: int = 1

    def see(self, policy: Mosaic) -> None:
        """Look at a policy after a block."""
        for state in policy.layers:
            self.clusters = max(self.clusters, len(state.clusters))
            self.members = max(self.members, int(np.bincount(state.cluster + 1, minlength=2)[1:].max()))
        if policy.visual is not None:
            self.visual = max(self.visual, len(policy.visual))


class MosaicReference(Reference):
    """A `Reference` that notes what the stream needs."""

    def __init__(self, entry: Entry, decoder: Decoder):
        super().__init__(entry, decoder)
        self.needs = Needs()

    def finish(self, block: Block) -> Any:
        out = super().finish(block)
        assert isinstance(self.policy, Mosaic)
        self.needs.see(self.policy)
        return out


@dataclass(frozen=True)
class Room:
    """Room of a core's memory for a stream: slots for tokens, clusters, visual clusters, members of a cluster."""

    slots: int
    clusters: int
    visual: int
    members: int


@dataclass
class Outputs:
    """What a stream leaves: hidden states of each block behind the last layer, answers that the driver read in it."""

    hidden: list[np.ndarray] = field(default_factory=list)
    readings: list[int] = field(default_factory=list)


class MosaicStream:
    """The loaded layers of a decoder on a core under Mosaic, over segments of a stream.

    entry : the policy, whose arithmetic is that of the hardware · segments : prompt, frames, question, later tokens
    room : in memory (`room`)

    Where a core has room for the directions of frames (`FramePlan.fits`), it makes the visual clusters, too.

    Iteration gives the programs. Their facts: `block`, `stage`, `layer` · `kind` of the program, and the `size` of its
    work. Then `outputs` has the hidden states, `events` what has happened, and `twin` where the policy in NumPy decides
    otherwise. Raises `ParamError` for a core that does not hold the layers, and for frames
    without a visual embedding.
    """

    def __init__(self, entry: Entry, segments: Sequence[Segment], decoder: Decoder, p: CoreParams, room: Room):
        self.p, self.segments, self.decoder, self.entry = p, segments, decoder, entry
        for i, s in enumerate(segments):
            what = "must have a visual embedding: the host puts frames into visual clusters by it"
            check(s.stage != "frame" or s.visual is not None, "frame", i, what)
        n = p.dpe.n_w
        clusters, visual = (-(-x // n) * n for x in (room.clusters, room.visual))
        total = sum(len(s.x) for s in segments)
        held, packing = decoder.held(p.lxe.weights)
        recent = -(-(room.slots + clusters) // (2 * n)) * 2 * n
        shape = layer_shape(decoder, packing, max(len(s.x) for s in segments), recent)
        shape_of, fmt = decoder_shape(decoder), p.lxe_format()
        policy = Mosaic(entry.params, shape_of)
        self.plan = MosaicPlan(shape, fmt, clusters, visual, total, room.members, policy.semantic_limit)
        seen = [s.visual for s in segments if s.visual is not None]
        frames, most, build = None, max((len(x) for x in seen), default=0), entry.params.build
        if seen and entry.params.visual_level and FramePlan.fits(seen[0].shape[1], build, fmt):
            frames = FramePlan(seen[0].shape[1], most, fmt, visual, len(seen), build, policy.visual_limit)
        self.ports = idle_ports(p)
        turns = np.array(decoder.frequencies)
        given = self.plan, entry.params, shape_of, held, turns, self._core, self._launch
        self.host = MosaicHost(*given, frames)
        self.twin = Twin(self.host)
        self.outputs = Outputs()
        self._give: Callable[[Job], None] | None = None

    def _core(self, _: Any, memory: Memory) -> Core:
        self.core = idle_core(self.p, memory)
        return self.core

    def _launch(self, job: Job) -> None:
        assert self._give is not None  # programs run while the stream is iterated
        self._give(job)

    @property
    def events(self) -> Counts:
        """What has happened."""
        return replace(self.host.core.counts, readings=self.host.readings)

    @property
    def driver(self) -> Driver:
        """The driver, which knows where entries lie."""
        return self.host.core

    def _pass(self, job: Job, block: Block, number: int) -> Pass:
        h, bases = self.host, self.host.bases[job.layer]
        facts = {"block": block.index, "stage": block.stage, "layer": job.layer, "kind": job.kind, "size": job.size}
        return Pass(
            f"{block.stage} {block.index}, {number}: {job.kind}, layer {job.layer}",
            job.program,
            job.registers,
            lambda: h.run(job),
            lambda _: facts,
            lambda: places(((a, a.offset + bases[a.base]) for a in arrays(job.plan)), h.unit.memory),
            step=job,
        )

    def __iter__(self) -> Iterator[Pass]:
        for block, segment in zip(blocks(self.segments), self.segments, strict=True):
            before = self.host.readings

            def work(give: Callable[[Job], None], block: Block = block, segment: Segment = segment) -> None:
                self._give = give
                self.outputs.hidden.append(self.host.block(block, segment.x.astype(np.float32)))

            for number, job in enumerate(handed_over(work)):
                yield self._pass(job, block, number)
            self.twin.finish(block)
            self.outputs.readings.append(self.host.readings - before)

    def errors(self, reference: Reference) -> list[float]:
        """Distance of each block's hidden states from those of the policy in FP32, relative to their length."""
        whole = zip(self.outputs.hidden, reference.outputs, strict=True)
        return [distance(got, want) for got, want in whole]

    def chosen_otherwise(self, reference: Reference) -> int:
        """Blocks whose last layer attends to other tokens than the policy in FP32, whose keys and queries differ."""
        return sum(not np.array_equal(keep, reference.chosen[block][0]) for block, keep in self.twin.kept.items())
