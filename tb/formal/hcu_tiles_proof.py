"""Proof about the HCU's tiles: the lanes compare a cluster only after it came, and before another replaced it.

Keys, levels, items and stalls are free, as far as the ports' rules allow. The monitor replaces the lanes, where it sees
both ports of the tiles' memory and the progress of the visit. It notes which cluster each lane of each word holds.
"""

from functools import partial
from unittest.mock import patch

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.hdl import Assert

from openvrex.hdl.memory import Ram
from openvrex.hdl.params import HcuParams, bits_for
from openvrex.hdl.retrieval.hcu import Hcu
from openvrex.hdl.retrieval.hcu_lanes import Lanes
from openvrex.hdl.retrieval.hcu_state import Scan, Work
from openvrex.tb.formal.stream_proof import UnitMonitor

# Four tiles and no room in the number of clusters, so that every level is a legal one.
SMALL = HcuParams(n_h=1, n_w=1, n_hp=2, clusters=7, tile=2, frame=2, n_ctx=1, token_bits=1, newest=True)


class WatchedLanes(Lanes):
    """Lanes with the claim. With `reach` it is instead that no cluster is compared that replaced another."""

    def __init__(self, reach: bool, p: HcuParams):
        super().__init__(p)
        self.reach = reach

    def select(self, m: Module, tiles: Ram, scan: Scan) -> None:
        """Also keeps the memory."""
        self.tiles = tiles
        super().select(m, tiles, scan)

    def compare(self, m: Module, work: Work, scan: Scan, th_hd: Value) -> None:
        """Also claims that each cluster compared is the one that the visit means."""
        super().compare(m, work, scan, th_hd)
        p, tiles = self.p, self.tiles
        for lane in range(p.n_h):
            held = [
                Signal(bits_for(p.clusters + 1), name=f"held{lane}_{i}", init=p.clusters) for i in range(tiles.words)
            ]
            read = Signal.like(held[0], name=f"read{lane}")
            with m.If(tiles.r_en):
                m.d.sync += read.eq(Array(held)[tiles.r_addr])
            with m.If(work.level_comes):  # what another batch left means nothing
                m.d.sync += [h.eq(p.clusters) for h in held]
            with m.Elif(tiles.w_en[lane]):
                m.d.sync += Array(held)[tiles.w_addr].eq(Mux(work.item_comes, work.arrived, work.used))
            compared = Signal(name=f"compared{lane}")
            cluster = scan.cluster(lane)
            m.d.comb += compared.eq(scan.valid & scan.here & ~work.nothing & (cluster < work.used))
            if self.reach:
                m.d.comb += Assert(~(compared & (cluster >= 2 * p.tile)), "a cluster of the third tile is compared")
            else:
                m.d.comb += Assert(~compared | (read == cluster), "another cluster is compared")


class WatchedHcu(Hcu):
    """An HCU with these lanes."""

    def __init__(self, reach: bool):
        super().__init__(SMALL)
        self.reach = reach

    def elaborate(self, platform):
        with patch("openvrex.hdl.retrieval.hcu.Lanes", partial(WatchedLanes, self.reach)):
            return super().elaborate(platform)


class TileMonitor(UnitMonitor):
    """The HCU between free keys and a free memory. The claims are in the lanes."""

    def __init__(self, reach: bool):
        super().__init__(WatchedHcu(reach), ("th_hd",), asked=True)

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """None of its own."""
