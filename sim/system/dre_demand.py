"""Predicts what a layer asks of a DRE and of its tables in memory, by running the units' time views on samples.

A large table is sampled: the time views run on a few rows and clusters, and the result for one row or cluster stands
for all. All reads and writes of the tables in memory are in these cycles, and their beats in these bytes.

latency : cycles from a read of a table to its first beat, and from a write to its response
"""

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from openvrex.golden.retrieval.kvmap import Burst
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import DreParams
from openvrex.sim.units.cluster_set_time import Listing
from openvrex.sim.units.dre_time import CountRing, DreTime
from openvrex.sim.units.hcu_time import JOIN, SWITCH
from openvrex.sim.units.kvmu_time import APPEND, KvmuCycles
from openvrex.sim.units.table_port_time import TablePortTime
from openvrex.sim.units.table_time import Ask, Put, Requests, Taken
from openvrex.sim.units.wtu_time import WtuTime

# Sizes of samples, of which no result is a multiple: rows of scores, clusters of a fetch and how many times as many it
# may take, clusters of a table.
ROWS, SELECTED, LARGEST, TABLE = 12, 64, 8, 2048


@dataclass(frozen=True)
class Demand:
    """What a part of the DRE's work takes.

    cycles : from the first input to the last result
    bytes : of the tables in memory, read and written in whole beats
    """

    cycles: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(self.cycles + other.cycles, self.bytes + other.bytes)

    def __mul__(self, times: float) -> "Demand":
        return Demand(self.cycles * times, self.bytes * times)


@dataclass(frozen=True)
class Fetch:
    """The KVMU's reads for a sampled cluster set, with adjacent bursts merged into one command.

    walk : the walk over a selected cluster
    clusters : selected clusters
    tokens : fetched tokens
    addr, bytes : first byte and size of each command, [commands]
    """

    walk: Demand
    clusters: int
    tokens: int
    addr: np.ndarray
    bytes: np.ndarray


class _Traffic(TablePortTime):
    """A table port that counts the bytes of its beats. The HCU asks for several hashes at once, the KVMU for counts."""

    def __init__(self, p: DreParams, latency: int):
        super().__init__(p, latency)
        self.bytes, self._bus = 0, p.table.bus_bytes
        layout = p.layout()
        self._items = layout.bytes(Item.HASH), layout.bytes(Item.COUNT)

    def take(self, client: int, cycle: int, request: Ask | Put) -> Taken:
        items = request.items if isinstance(request, Ask) else 1
        self.bytes += -(-items * self._items[client] // self._bus) * self._bus
        return super().take(client, cycle, request)


@lru_cache(maxsize=64)
def _held(p: DreParams, clusters: int, latency: int) -> DreTime:
    """A DRE whose context 0 has `clusters` clusters of random hash bits and a full ring."""
    time, rng = DreTime(p, p.function().th_hd, latency), np.random.default_rng(clusters)
    time.hcu.tables[0] = rng.integers(0, 1 << p.hcu.n_w, (clusters, p.hcu.chunks), np.uint64)
    time.kvmu.run([(APPEND, 0, k % clusters) for k in range(max(clusters, p.kvmu.recent))])
    return time


def _linear(clusters: int, of: int, small: Demand, large: Demand) -> Demand:
    """The demand of `clusters` clusters, from those of `of / 2` and of `of`: it grows by as much for each cluster."""
    return large + (large + small * -1) * ((clusters - of) / (of / 2))


@lru_cache(maxsize=64)
def clustering(p: DreParams, clusters: int, keys: int, latency: int) -> Demand:
    """From the first of a frame's keys of a context to the KVMU's reply to the last.

    The context has `clusters` clusters and a full ring. Each key joins a cluster, and its entry moves another one out.
    """
    if clusters > TABLE:
        return _linear(clusters, TABLE, *(clustering(p, n, keys, latency) for n in (TABLE // 2, TABLE)))
    time, rng = deepcopy(_held(p, clusters, latency)), np.random.default_rng(keys)
    joined = rng.integers(0, clusters, keys).tolist()
    table = [sum(int(w) << i * p.hcu.n_w for i, w in enumerate(time.hcu.tables[0][c])) for c in joined]
    # These keys differ from their cluster in as many bits as a member may.
    bits = [rng.choice(p.hcu.n_hp, max(0, time.hcu.th_hd - 1), replace=False).tolist() for _ in joined]
    near = [code ^ sum(1 << int(b) for b in some) for code, some in zip(table, bits, strict=True)]
    beats = [(JOIN, 0, code, int(k == keys - 1)) for k, code in enumerate(near)]
    return _answered(time, p, beats, joined)


@lru_cache(maxsize=64)
def switching(p: DreParams, clusters: int, latency: int) -> Demand:
    """A SWITCH to a context of `clusters` clusters, from the order to the KVMU's reply behind the last count."""
    if clusters > TABLE:
        return _linear(clusters, TABLE, *(switching(p, n, latency) for n in (TABLE // 2, TABLE)))
    return _answered(deepcopy(_held(p, clusters, latency)), p, [(SWITCH, 0, 0, 1)], [0])


def _answered(time: DreTime, p: DreParams, beats: list, clusters: list[int]) -> Demand:
    port, out, news = _Traffic(p, time.latency), KvmuCycles(), list[int]()
    time.kvmu.begin()
    for _ in time.answer(beats, clusters, port, out, news, news):
        raise AssertionError("the KVMU takes all answers at once")
    return Demand(out.w[-1], port.bytes)


@lru_cache(maxsize=64)
def selecting(p: DreParams, clusters: int, latency: int) -> Demand:
    """A row of `clusters` Gaussian scores on a WTU core, the mean of rows back to back.

    Counts that the core cannot hold are read again for each reading of the row.
    """
    most = max(TABLE, 4 * p.wtu.counts)
    if clusters > most:
        return _linear(clusters, most, *(selecting(p, n, latency) for n in (most // 2, most)))
    rng = np.random.default_rng(clusters)
    # A code is about the logarithm of exp(s - max), so it falls linearly with the score s.
    s = rng.normal(0.0, 1.6, (ROWS, clusters))
    top = p.wtu.score
    below = (s.max(1, keepdims=True) - s) * math.log2(math.e) * (1 << top.man_bits)
    codes = (1 << top.bits) - 1 - below.astype(np.int64)
    counts = 1 + rng.geometric(1 / 32, clusters)
    port, ring = _Traffic(p, latency), None
    if clusters > p.wtu.counts:
        time = deepcopy(_held(p, clusters, latency))
        time.keys([(SWITCH, 0, 0, 1)], [0])
        time.kvmu.begin()
        ring = CountRing(time.kvmu, port)
    _, done = WtuTime(p.wtu).run([(row, counts) for row in np.maximum(codes, 0)], p.function().ratio_q16, ring)
    return Demand(float(done[-1] - done[0]) / (ROWS - 1), port.bytes / ROWS)


@lru_cache(maxsize=256)
def fetch(p: DreParams, sizes: tuple[int, ...], share: float, latency: int, by_cluster: bool = True) -> Fetch:
    """Reads for a fetch of clusters of a context, from a sample of its clusters.

    sizes : typical tokens at home of these clusters, each as likely as the others
    share : share of the clusters to fetch; all of `sizes` at least
    by_cluster : a cluster's tokens lie together, as the KVMU places them; else tokens lie in order of arrival

    Adjacent bursts become one command, as an NVMe driver or a DMA engine joins them.
    """
    sizes = sizes[:: -(-len(sizes) // p.kvmu.clusters)]
    rounds = min(LARGEST, max(1.0, len(sizes) / max(share * SELECTED, 1e-9)))  # until all sizes are among the fetched
    sample = min(p.kvmu.clusters, math.ceil(rounds) * SELECTED)
    number = max(1, min(sample // len(sizes), round(share * sample / len(sizes)))) * len(sizes)
    chosen = sorted(np.random.default_rng(number).choice(sample, number, replace=False).tolist())
    every = np.resize(sizes, sample)
    every[chosen] = np.resize(sizes, number)
    small = replace(p, kvmu=replace(p.kvmu, recent=1))  # all tokens but the last are at home
    time = DreTime(small, p.function().th_hd, latency)
    members = np.random.default_rng(sum(sizes) // len(sizes)).permutation(np.repeat(np.arange(sample), every)).tolist()
    for cluster in [*members, 0]:
        time.kvmu.kv.append(0, cluster)
    port, ran = _Traffic(p, latency), KvmuCycles()
    time.kvmu.begin()
    listing = Listing(p.wtu.n_w, chosen, 0)
    port.run([_nothing(), time.kvmu.fetch([(0, chosen)], ran, listing.first, listing.offered)])
    walk = Demand(ran.b[-1] - ran.f[0] + 1, port.bytes) * (1 / number)
    entry = p.kvmu.home_bytes
    if by_cluster:
        bursts = time.kvmu.kv.fetch(0, chosen)
    else:
        bursts = [Burst(int(i) * entry, entry) for i in np.flatnonzero(np.isin(members, chosen))]
    addr, size = joined(bursts)
    return Fetch(walk, number, int(size.sum()) // entry, addr, size)


def _nothing() -> Requests:
    """The requests of an HCU that has no key."""
    yield from ()


def joined(bursts: list[Burst], most: int = 1 << 17) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and sizes of `bursts`, with adjacent neighbours joined up to `most` bytes."""
    out: list[list[int]] = []
    for b in bursts:
        if out and out[-1][0] + out[-1][1] == b.addr and out[-1][1] + b.bytes <= most:
            out[-1][1] += b.bytes
        else:
            out.append([b.addr, b.bytes])
    return np.array([a for a, _ in out], np.int64), np.array([n for _, n in out], np.int64)
