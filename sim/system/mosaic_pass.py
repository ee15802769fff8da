"""Predicts latency, timeline and power of a frame or a token under Mosaic, on one core with memories around it.

The programs are those of `sim.system.mosaic_share`, cycle by cycle. Each lasts as long as the core, or as its bytes
take at the device memory. The host has the link bring entries from home beside the core. A copy of the core then puts
them into slots: those that the layer before has prefetched ahead of the choice, those on demand behind it. Frames go
into clusters behind the last layer.

Left out: the host's own time between programs, and offloads over the link, which go against the direction of fetches.
Encoder, vocabulary and the gap of a layer are those of a pass with retrieval (`sim.system.accelerator`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Self

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.policies.registry import Entry
from openvrex.sim.system.accelerator import assembled
from openvrex.sim.system.core_pass import CorePass, Given
from openvrex.sim.system.home import transfer
from openvrex.sim.system.mosaic_demand import WORLD, MosaicDemand
from openvrex.sim.system.mosaic_share import Counts, MosaicShare
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.timeline import Pass, Point, Timeline

READS = 256  # of the sample that gives the link's rate
CLUSTERING = ("assign", "split", "create", "offload")  # behind the last layer, for each layer


class MosaicPass(CorePass):
    """Frames and tokens of one stream under Mosaic, which recalls all of it. `d` : what it asks for"""

    own_share = "whose share is mosaic.ratio"

    def __init__(self, v: Vrex, d: MosaicDemand, point: Point):
        check(point.batch == 1, "batch", point.batch, "must be 1: each stream has clusters, and passes of its own")
        super().__init__(v, point)
        self.d, self.share = d, MosaicShare(v.system, point.model, d, v.latency)
        self.rows, self.most, self.note = d.frame_tokens, d.attended, f"{d.attended} attended"
        self.home = d.home * point.model.token_bytes

    @classmethod
    def of(cls, v: Vrex, entry: Entry, point: Point, given: Given) -> Self:
        return cls(v, MosaicDemand(entry.params, WORLD, point.cache, point.rows), point)

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory beside the weights: slots and clusters of all layers, what programs pass on."""
        plan = self.share.plan
        return (plan.kv.size - plan["home"].size) * self.point.model.layers + plan.work.size

    def fetched(self, entries: float) -> tuple[float, float]:
        """Seconds of link and drive for so many entries of a layer, and their bytes."""
        size = self.point.model.entry_bytes
        if not entries:
            return 0.0, 0.0
        first, rate = self._rate
        return first + entries * size / rate, entries * size

    @cached_property
    def _rate(self) -> tuple[float, float]:
        """Latency and rate of reads of adjacent entries, the retrieved share of home apart."""
        size, d = self.point.model.entry_bytes, self.d
        some = max(1, round(d.habits.together)) * size
        apart = round(some * d.home / d.wanted / size) * size
        addr, n = apart * np.arange(READS, dtype=np.int64), np.full(READS, some, np.int64)
        return transfer(self.v.link, self.v.ssd, addr.tobytes(), n.tobytes())

    def frame(self) -> Pass:
        return self._pass(0)

    def token(self) -> Pass:
        return self._pass(1)

    def layer(self) -> tuple[int, Mapping[str, Mapping[str, float]]]:
        """A layer that is not the first or the last one."""
        return self.share.plan.shape.recent, self.share.layer()

    def question(self) -> Pass:
        """A question of the longest text."""
        return self._pass(self.d.longest)

    def _pass(self, text: int) -> Pass:
        return assembled(self.v, replace(self.point, rows=1, frame=not text), partial(self._decode, text))

    def _decode(self, text: int, line: Timeline) -> float:
        v, m, d = self.v, self.point.model, self.d
        rows = text or d.frame_tokens

        def lxe(
            layer: int, name: str, counts: Counts, after: float = 0.0, ops: float = 0.0, times: float = 1.0
        ) -> float:
            return line.put(layer, name, "LXE", self.took(counts) * times, after, counts["bytes"] * times, ops)

        products = {name: 2.0 * rows * k * n for name, (k, n) in m.matrices.items()}
        rest = sum(products.values()) - products["qkv"] + 2.0 * m.attention_macs(rows, d.attended)
        came, moved = 0.0, 0.0
        for layer in range(m.layers):
            first, last = layer == 0, layer == m.layers - 1
            own = self.share.layer(text, first, last)
            line.put(layer, "gap", "LXE", v.gap)
            asked = lxe(layer, "ask", own["ask"], 0.0, products["qkv"])
            ready = 0.0
            if d.home:
                if d.prefetches and not first:
                    lxe(layer, "copy", self.share.layer(text, first, False)["prefetch"], came)
                ahead = d.prefetches and not last
                chosen = lxe(layer, "choose", own["choose"], asked, times=1 / (1 + ahead))
                ready, demanded = self._link(line, layer, d.fetched(first), chosen)
                moved += demanded
                if ahead:
                    chosen = lxe(layer, "choose", own["choose"], chosen, times=1 / 2)
                    came, prefetched = self._link(line, layer, d.wanted, chosen)
                    moved += prefetched
                ready = lxe(layer, "copy", own["fetch"], ready)
            lxe(layer, "attend", own["attend"], ready, rest)
        for name in CLUSTERING:
            if not text and name in own:
                lxe(-1, name, own[name], times=m.layers)
        return moved

    def _link(self, line: Timeline, layer: int, entries: float, asked: float) -> tuple[float, float]:
        """A fetch over the link; when it has come, and its bytes."""
        took, moved = self.fetched(entries)
        return (line.put(layer, "fetch", "link", took, asked, moved) if took else asked), moved
