"""Predicts latency, timeline and power of a frame or a token under a policy that chooses tokens by positions.

The layers are those of `sim.system.window_share`, cycle by cycle; a stage lasts as long as core 0, or as the bytes of
all cores take at the device memory. Encoder, vocabulary, barriers between phases and the gap of a layer are those of
a pass with retrieval (`sim.system.accelerator`), so the two compare. So is hybrid memory's state-space branch, which
no program of several cores computes yet. Nothing crosses the link.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Self

from openvrex.golden.function_params import check
from openvrex.golden.policies.registry import Entry
from openvrex.sim.system.accelerator import assembled, branch, seconds
from openvrex.sim.system.core_pass import CorePass, Given
from openvrex.sim.system.layer_load import Load
from openvrex.sim.system.layer_share import REST, StageShare
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.timeline import Pass, Point, Timeline
from openvrex.sim.system.window_demand import BlockDemand, WindowDemand, demand
from openvrex.sim.system.window_share import TURNING, WindowShare

# Stages of the programs by the names that a pass with retrieval gives them.
NAMES = {
    "turn": TURNING,
    "qkv": ("norm1", "qkv", "rotary", "entries", "append"),
    "attention": ("scores", "softmax", "values", "join"),
    "branch": ("branch",),
    **REST,
}


def check_batch(point: Point) -> None:
    """Raise `ParamError` for several streams."""
    check(point.batch == 1, "batch", point.batch, "must be 1: each stream has a window, and passes of its own")


class WindowPass(CorePass):
    """Frames and tokens of one stream under a policy that chooses by positions. `d` : what it asks for"""

    own_share = "which fetches nothing"

    def __init__(self, v: Vrex, d: WindowDemand, point: Point):
        check_batch(point)
        super().__init__(v, replace(point, branch=d.branch))
        self.d, self.rows, self.most, self.note = d, d.rows, d.held, f"{d.held} tokens held"

    @classmethod
    def of(cls, v: Vrex, entry: Entry, point: Point, given: Given) -> Self:
        check_batch(point)  # before the policy runs, which takes long
        return cls(v, demand(entry, point.model, point.cache, given.coded, given.at_once), point)

    @cached_property
    def largest(self) -> WindowShare:
        """A layer's pass of the most tokens."""
        return WindowShare.of(self.v.system, self.point.model, self.d, self.d.most, self.v.latency)

    def share(self, tokens: int) -> WindowShare:
        """A layer's pass of so many tokens."""
        return replace(self.largest, tokens=tokens)

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory beside the weights: keys and values, the branch's state, what programs pass on."""
        m, s = self.point.model, self.d.branch
        entries = (self.largest.slots + self.largest.behind) * m.token_bytes
        state = s.expand * m.width * (4 * s.state + 2 * (s.conv - 1)) if s else 0  # FP32, and the last inputs in BF16
        return entries + m.layers * state + self.largest.window.work.size * self.v.cores

    def stages(self, block: BlockDemand) -> Iterator[tuple[str, float, float]]:
        """Name, seconds and bytes of each stage of a layer, of all passes and turned keys of a block."""
        for keys, fresh in block.turned:
            for name, counts in self.largest.turning(keys, fresh).items():
                yield name, self.took(counts), counts["bytes"]
        for tokens in block.passes:
            for name, counts in self.share(tokens).layer().items():
                yield name, self.took(counts), counts["bytes"]
            steps = branch(self.v, self.point, tokens)
            yield "branch", seconds(self.v, steps), sum(x.bytes for x in steps)

    def frame(self) -> Pass:
        return self._mean(self.d.frames, True)

    def token(self) -> Pass:
        return self._mean((self.d.token,), False)

    def layer(self) -> tuple[int, Mapping[str, Mapping[str, float]]]:
        """The largest pass of a frame of `point.rows` tokens, the stages first that turn a frame's keys."""
        d = replace(self.d, most=max(self.d.most, self.point.rows))
        share = WindowShare.of(self.v.system, self.point.model, d, self.point.rows, self.v.latency)
        stages = share.layer()
        for keys, fresh in d.frames[-1].turned:
            stages = share.turning(keys, fresh) | stages
        return share.slots + share.behind, stages

    def slowest(self, frame: Pass) -> float:
        return max(self.frames())

    def frames(self) -> list[float]:
        """Seconds of each frame of the demand."""
        return [self._mean((one,), True).seconds for one in dict.fromkeys(self.d.frames)]

    def _mean(self, blocks: tuple[BlockDemand, ...], frame: bool) -> Pass:
        p, m = replace(self.point, rows=1, frame=frame), self.point.model
        known = {block: list(self.stages(block)) for block in set(blocks)}
        found = [one for block in blocks for one in known[block]]
        runs = sum(len(b.passes) for b in blocks) / len(blocks)
        rows = sum(sum(b.passes) for b in blocks) / len(blocks)
        waits = seconds(self.v, [StageShare(Load(), 0, self.largest.barriers)]) * runs

        def decode(line: Timeline) -> float:
            for layer in range(m.layers):
                line.put(layer, "gap", "LXE", self.v.gap)
                for name, own in NAMES.items():
                    mine = [one for one in found if one[0] in own]
                    took, moved = (sum(float(one[k]) for one in mine) / len(blocks) for k in (1, 2))
                    ops = 2.0 * rows * (m.matrices[name][0] * m.matrices[name][1] if name in m.matrices else 0)
                    if name == "attention":
                        ops = 2.0 * m.attention_macs(1, self.d.held) * rows
                    if name == "branch":
                        ops = 2.0 * rows * sum(k * n for k, n in p.branch_products.values())
                    if took or ops:
                        line.put(layer, name, "LXE", took + waits * (name == "out"), 0.0, moved, ops)
            return 0.0

        return assembled(self.v, p, decode)
