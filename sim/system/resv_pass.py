"""ReSV among the policies that run on a core; `sim.system.accelerator` times its passes."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Self

from openvrex.golden.policies.registry import Entry
from openvrex.sim.system.core_pass import CorePass, Given
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.passes import lacks, mark, simulate
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.share_cycles import CoreShare
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import Selection


class ResvPass(CorePass):
    """Frames and tokens under ReSV, which recalls all of the stream. `shares` : of it that a pass fetches"""

    def __init__(self, v: Vrex, point: Point, shares: Selection):
        super().__init__(v, point)
        self.shares, self.rows, self.note, self.mark = shares, point.rows, shares.name, mark(v, point, shares)
        k = v.core.dre.kvmu
        self.home = point.cache * point.model.token_bytes * k.home_bytes / k.entry_bytes

    @classmethod
    def of(cls, v: Vrex, entry: Entry, point: Point, given: Given) -> Self:
        """The entry has no effect: the hardware's parameters are the policy's."""
        return cls(v, point, given.shares)

    @cached_property
    def held_bytes(self) -> int:
        return sum(n for kind, n in arrays(self.v, self.point, self.shares).items() if kind != "weights")

    @property
    def lacks(self) -> str:
        return lacks(self.v, self.point, self.shares)

    def attended(self, frame: Pass) -> int:
        k, p = self.v.core.dre.kvmu, self.point
        return min(p.cache, k.recent) + round(frame.fetched / p.model.token_bytes * k.entry_bytes / k.home_bytes)

    def frame(self) -> Pass:
        return simulate(self.v, self.point, self.shares)

    def token(self) -> Pass:
        return simulate(self.v, replace(self.point, rows=1, frame=False), self.shares)

    def layer(self) -> tuple[int, Mapping[str, Mapping[str, float]]]:
        share = self.share()
        return share.entries, share.layer()

    def share(self) -> CoreShare:
        """Core 0's share of a layer, with the mean share of the entries."""
        p, own = self.point, self.shares
        mean = float(own.layers("frame").mean())
        return CoreShare(self.v.system, p.model.sizes, p.rows, p.cache, mean, self.v.latency, own.cluster)

    @property
    def remarks(self) -> list[str]:
        return self.share().remarks
