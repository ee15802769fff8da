"""What the DRE's units need for a layer, from their own time views on samples of the size at hand.

A layer of a 40K cache has 1,024 clusters and hundreds of rows; the time views run on a sample of it (some keys, some
rows, some clusters), and what one key, row or cluster takes is the rest's, too.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from golden.retrieval.kvmap import Burst
from hdl.params import DreParams
from sim.units.hcu_time import HcuTime
from sim.units.kvmu_time import APPEND, KvmuTime
from sim.units.wtu_time import WtuTime

KEYS, ROWS, CLUSTERS = 8, 12, 64  # of a sample
TH_HD = 7


@dataclass(frozen=True)
class Fetch:
    """The KVMU's answer to a sampled cluster set: its bursts, merged into commands where they are adjacent.

    cycles : of the walk, a selected cluster · clusters : selected · tokens : fetched
    """

    cycles: float
    clusters: int
    tokens: int
    addr: np.ndarray
    bytes: np.ndarray


@lru_cache(maxsize=64)
def cluster_cycles(p: DreParams, clusters: int) -> float:
    """Cycles of the HCU for a key before a table of `clusters` clusters."""
    rng = np.random.default_rng(clusters)
    time = HcuTime(p.hcu, TH_HD)
    table = []
    for code in rng.integers(0, 1 << min(63, p.hcu.n_hp), 16 * clusters).tolist():  # some join a cluster
        if time.used[0] < clusters and time.key(0, code)[1]:
            table.append(code)
    # Keys two bits from a cluster, which join it.
    near = rng.choice(table, KEYS) ^ (1 << rng.integers(0, p.hcu.n_hp, KEYS)) ^ (1 << rng.integers(0, p.hcu.n_hp, KEYS))
    return float(np.mean([time.key(0, int(code))[0] for code in near]))


@lru_cache(maxsize=64)
def select_cycles(p: DreParams, clusters: int, ratio_q16: int = 19661) -> float:
    """Cycles of a WTU core for a row of `clusters` scores, rows back to back."""
    rng = np.random.default_rng(clusters)
    # Scores as exp(s - max) of Gaussian scores: codes fall off linearly from the top, as the code is a logarithm.
    s = rng.normal(0.0, 1.6, (ROWS, clusters))
    top = p.wtu.score
    codes = (1 << top.bits) - 1 - ((s.max(1, keepdims=True) - s) * 1.4427 * (1 << top.man_bits)).astype(np.int64)
    counts = 1 + rng.geometric(1 / 32, clusters)
    _, done = WtuTime(p.wtu).run([(row, counts) for row in np.maximum(codes, 0)], ratio_q16)
    return float(done[-1] - done[0]) / (ROWS - 1)


@lru_cache(maxsize=32)
def _map(p: DreParams, tokens: int) -> tuple[KvmuTime, list[int]]:
    """A KVMU that holds `tokens` tokens of each sampled cluster, in a random order of arrival; their clusters."""
    blocks = CLUSTERS * (-(-(tokens + 1) // p.kvmu.block_slots) + 1)
    time = KvmuTime(replace(p.kvmu, n_ctx=1, clusters=CLUSTERS, recent=1, blocks=blocks))
    members = np.random.default_rng(tokens).permutation(np.repeat(np.arange(CLUSTERS), tokens)).tolist()
    time.run([(APPEND, 0, c) for c in [*members, 0]])
    return time, members


@lru_cache(maxsize=256)
def fetch(p: DreParams, tokens: int, share: int, by_cluster: bool = True) -> Fetch:
    """A fetch of `share` of the sampled clusters, of `tokens` tokens each; without `by_cluster` they lie as they came.

    Bursts are those of the KVMU; what is adjacent is one command, as an NVMe driver or a DMA engine joins it.
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
    """Bursts as arrays, neighbours that are adjacent joined up to `most` bytes."""
    out: list[list[int]] = []
    for b in bursts:
        if out and out[-1][0] + out[-1][1] == b.addr and out[-1][1] + b.bytes <= most:
            out[-1][1] += b.bytes
        else:
            out.append([b.addr, b.bytes])
    return np.array([a for a, _ in out], np.int64), np.array([n for _, n in out], np.int64)
