"""Counts the bytes of device memory, array by array, as the cores' programs and the retrieval engine lay them out.

`golden.program.system_map` gives the places of a system's arrays. Here only the sizes count, so no program is compiled.
A layer's arrays lie among its weights, so each layer has its own mean keys, and its own room for fetched entries: as
many as the table needs that fetches most. Each stream has tables, rings, mean keys and fetched entries of its own.

A policy that fetches everything has no program; two layers' entries count for it, as on a GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.share_plan import SharePlan, shared_space
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.stage_plan import Stage
from openvrex.golden.retrieval.table_layout import Item
from openvrex.sim.system.home import near
from openvrex.sim.system.layer_share import Layer, at_home
from openvrex.sim.system.measured_gpu import MeasuredGpu
from openvrex.sim.system.platforms import Platform, Vrex
from openvrex.sim.system.timeline import EVERYTHING, RESIDENT, Point
from openvrex.sim.system.workload import Selection

OF_TABLES = ("hash_weight", "behind", "table", "thresholds")  # arrays that belong to a table
IN_FLIGHT = 2  # layers whose fetched entries are held where no program of ours fetches them


class _Arrays(SharePlan):
    """A core's arrays, without its programs."""

    def _stages(self) -> Iterator[Stage]:
        return iter(())


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a layer, of all cores, for one stream; `work` serves all layers."""

    weights: int
    keys: int
    fetched: int
    work: int


@lru_cache(maxsize=1024)
def _sizes(fmt: LxeFormat, shares: Shares, retrieval: RetrievalShape) -> _Sizes:
    s, leader = shares, _Arrays(shares, fmt, retrieval, 0)
    one = {name: _up(leader[name].size, leader.weights.align) for name in OF_TABLES if name in leader.arrays}
    tables = s.teams * s.groups
    weights = s.teams * leader.apart - tables * (sum(one.values()) - one["hash_weight"])
    works = [_Arrays(s, fmt, retrieval, m * s.teams).work.size for m in range(s.members)]
    work = shared_space(s, ahead=leader.prefetches).size + s.teams * (sum(works) + leader.team_bytes)
    return _Sizes(weights, tables * (one["table"] + one.get("thresholds", 0)), tables * one["behind"], work)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def arrays(platform: Platform, point: Point, selection: Selection) -> dict[str, int]:
    """Bytes of device memory that a pass needs, by the kind of array.

    weights : of both models · cache : entries, where the policy keeps all on the device
    tables, rings : of the retrieval engine, with places for blocks that the cores keep
    mean keys : of clusters, with the thresholds of hash bits
    index : of a measured GPU, what it ranks
    fetched : room for the entries that a layer fetches · work : what programs pass on
    blocks : entries that have left the rings, as far as there is room, if they lie here (`Vrex.home`)
    """
    m, p = point.model, platform
    if point.policy in RESIDENT:
        weights = replace(point, cache=1, policy="").device_bytes
        return {"weights": weights, "cache": point.device_bytes - weights}
    if not isinstance(p, Vrex) or point.policy == EVERYTHING:
        share = float(selection.layers(point.stage).max())
        fetched = IN_FLIGHT * share * point.batch * point.cache * m.entry_bytes
        out = {"weights": point.device_bytes, "fetched": int(fetched)}
        if isinstance(p, MeasuredGpu):
            out["index"] = int(p.index_bytes(point.policy, point.batch * point.cache, selection.cluster))
        return out
    layer = Layer(p.system, m, point.batch, point.rows, p.latency, p.prefetch)
    s, dre = layer.shares, p.core.dre
    rows, contexts = layer.passes[1], layer.contexts
    most = ceil(float(selection.tables(point.stage, s.heads).max()) * at_home(p, point, selection)[0])
    shares = replace(s, whole=replace(s.whole, tokens=rows, entries=max(1, most)))
    own = _sizes(p.core.lxe_format(), shares, layer.retrieval(max(dre.hcu.frame, rows), False))
    beside = point.device_bytes - m.layers * m.layer_bytes  # encoder and vocabulary have no such programs
    streams = point.batch * m.layers
    out = {
        "weights": beside + m.layers * own.weights,
        "tables": s.teams * dre.layout().address(Item.LEVEL, contexts),
        "rings": s.teams * contexts * (dre.kvmu.recent * dre.kvmu.entry_bytes + dre.kvmu.map_sizes().kept_bytes),
        "mean keys": streams * own.keys,
        "fetched": streams * own.fetched,
        "work": own.work,
    }
    if p.home == "device":
        blocks = blocks_at_home(p, point, selection)
        out["blocks"] = int(near(p, sum(out.values()), blocks) * blocks)
    return out


def blocks_at_home(v: Vrex, point: Point, selection: Selection) -> int:
    """Bytes of the blocks that hold the entries of all contexts at home; of a cluster's last block all slots count."""
    layer = Layer(v.system, point.model, point.batch, point.rows, v.latency, v.prefetch)
    home, wanted = at_home(v, point, selection)
    clusters = min(v.core.dre.hcu.clusters, wanted)
    return layer.blocks(home, clusters) * v.core.dre.kvmu.block_bytes * layer.shares.teams
