"""Predicts the cycles and the bursts that a layer needs on the DRE, by running the units' time views on samples.

A layer of a 40K cache has 1,024 clusters and hundreds of rows. The time views run on a few keys, rows and clusters,
and the result for one key, row or cluster stands for all.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from golden.retrieval.kvmap import Burst
from hdl.params import DreParams
from sim.units.hcu_time import HcuTime
from sim.units.kvmu_time import APPEND, KvmuTime
from sim.units.wtu_time import WtuTime

KEYS, ROWS, CLUSTERS = 8, 12, 64  # size of the samples
TH_HD = 7  # distance from which on a key opens a cluster


@dataclass(frozen=True)
class Fetch:
    """The KVMU's reads for a sampled cluster set, with adjacent bursts merged into one command.

    cycles : cycles of the walk, per selected cluster
    clusters : selected clusters
    tokens : fetched tokens
    addr, bytes : first byte and size of each command, [commands]
    """

    cycles: float
    clusters: int
    tokens: int
    addr: np.ndarray
    bytes: np.ndarray


@lru_cache(maxsize=64)
def cluster_cycles(p: DreParams, clusters: int) -> float:
    """Mean cycles in which the HCU compares a key that joins one of `clusters` clusters."""
    rng = np.random.default_rng(clusters)
    time = HcuTime(p.hcu, TH_HD)
    table = []
    # Some random keys join a cluster, so more keys than clusters are drawn.
    for code in rng.integers(0, 1 << min(63, p.hcu.n_hp), 16 * clusters).tolist():
        if time.used[0] < clusters and time.key(0, code)[1]:
            table.append(code)
    # These keys differ from a cluster in two bits, so they join it.
    near = rng.choice(table, KEYS) ^ (1 << rng.integers(0, p.hcu.n_hp, KEYS)) ^ (1 << rng.integers(0, p.hcu.n_hp, KEYS))
    return float(np.mean([time.key(0, int(code))[0] for code in near]))


@lru_cache(maxsize=64)
def select_cycles(p: DreParams, clusters: int, ratio_q16: int = 19661) -> float:
    """Mean cycles of a WTU core for a row of `clusters` Gaussian scores, with rows back to back."""
    rng = np.random.default_rng(clusters)
    # A code is about the logarithm of exp(s - max), so it falls linearly with the score s.
    s = rng.normal(0.0, 1.6, (ROWS, clusters))
    top = p.wtu.score
    codes = (1 << top.bits) - 1 - ((s.max(1, keepdims=True) - s) * 1.4427 * (1 << top.man_bits)).astype(np.int64)
    counts = 1 + rng.geometric(1 / 32, clusters)
    _, done = WtuTime(p.wtu).run([(row, counts) for row in np.maximum(codes, 0)], ratio_q16)
    return float(done[-1] - done[0]) / (ROWS - 1)


@lru_cache(maxsize=32)
def _map(p: DreParams, tokens: int) -> tuple[KvmuTime, list[int]]:
    """A KVMU that holds `tokens` tokens of each sampled cluster, and the cluster of each token in order of arrival."""
    blocks = CLUSTERS * (-(-(tokens + 1) // p.kvmu.block_slots) + 1)
    time = KvmuTime(replace(p.kvmu, n_ctx=1, clusters=CLUSTERS, recent=1, blocks=blocks))
    members = np.random.default_rng(tokens).permutation(np.repeat(np.arange(CLUSTERS), tokens)).tolist()
    time.run([(APPEND, 0, c) for c in [*members, 0]])
    return time, members


@lru_cache(maxsize=256)
def fetch(p: DreParams, tokens: int, share: int, by_cluster: bool = True) -> Fetch:
    """Reads for a fetch of clusters from a sample of `CLUSTERS` clusters.

    tokens : tokens of each cluster
    share : number of clusters to fetch
    by_cluster : a cluster's tokens lie together, as the KVMU places them; else tokens lie in order of arrival

    Adjacent bursts become one command, as an NVMe driver or a DMA engine joins them.
    """
    time, members = _map(p, tokens)
    chosen = sorted(np.random.default_rng(share).choice(CLUSTERS, share, replace=False).tolist())
    ran = time.run([], [(0, chosen)])
    cycles = (ran.b[-1] - ran.f[0] + 1) / len(chosen)
    entry = p.kvmu.entry_bytes
    if by_cluster:
        bursts = time.kv.fetch(0, chosen)
    else:
        bursts = [Burst(int(i) * entry, entry) for i in np.flatnonzero(np.isin(members, chosen))]
    addr, size = joined(bursts)
    return Fetch(cycles, len(chosen), int(size.sum()) // entry, addr, size)


def joined(bursts: list[Burst], most: int = 1 << 17) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and sizes of `bursts`, with adjacent neighbours joined up to `most` bytes."""
    out: list[list[int]] = []
    for b in bursts:
        if out and out[-1][0] + out[-1][1] == b.addr and out[-1][1] + b.bytes <= most:
            out[-1][1] += b.bytes
        else:
            out.append([b.addr, b.bytes])
    return np.array([a for a, _ in out], np.int64), np.array([n for _, n in out], np.int64)
