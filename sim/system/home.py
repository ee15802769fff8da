"""Where entries lie that have left the ring (`Vrex.home`), and how long reads of them take.

The KVMU hands out blocks in order, and a block's address follows from its number (`golden.retrieval.kvmap`). So where
the home's first addresses lie in the device memory, the oldest entries do, as many as there is room for, and a FETCH
reads them there. Nothing in the hardware differs: home is a range of addresses.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from openvrex.sim.system.pcie import Link
from openvrex.sim.system.platforms import HOST, Vrex
from openvrex.sim.system.ssd import Ssd

ENOUGH = 1 << 24  # bytes of a sample of reads


def near(v: Vrex, used: float, blocks: float) -> float:
    """The share of blocks of so many bytes that lies in the device memory, where other arrays use `used` bytes."""
    return min(1.0, max(0.0, v.capacity - used) / blocks) if v.home == "device" and blocks else 0.0


def fetching(v: Vrex, total: float, addr: np.ndarray, size: np.ndarray, near: float) -> float:
    """Seconds in which `total` bytes come from home; the copier also writes what it reads in the device memory.

    addr, size : typical commands, int64 · near : the share that lies in the device memory

    Reads in both memories overlap.
    """
    out = 0.0
    if near:
        piece = 1 << int(np.log2(min(4096, size.mean())))
        out = total * near * (1 / (v.dram.t.bandwidth * v.dram.efficiency(piece)) + 1 / v.bandwidth)
    if near < 1:
        first, rate = transfer(v.link, v.ssd, addr.tobytes(), size.tobytes())
        out = max(out, first + total * (1 - near) / rate)
    return out


@lru_cache(maxsize=512)
def transfer(link: Link, ssd: Ssd | None, addr: bytes, size: bytes) -> tuple[float, float]:
    """Latency in seconds, then bytes per second, of reads over the link from the drive or the host's memory.

    addr, size : int64 arrays of addresses and bytes, as `tobytes` gives them, so that results can be cached
    ssd : None for the host's memory

    The function repeats the list at other addresses until the end, when dies and tags fall idle, no longer counts.
    """
    a, n = np.frombuffer(addr, np.int64), np.frombuffer(size, np.int64)
    times = -(-ENOUGH // int(n.sum()))
    apart = (1 << 34) + (1 << 15)  # distance of the repetitions, which puts them on other planes, too
    a, n = (a + apart * np.arange(times)[:, None]).ravel(), np.tile(n, times)
    if ssd is None:
        first = 2 * link.latency + link.memory
        # The host's memory limits the rate for pieces of this size.
        host = HOST.t.bandwidth * HOST.efficiency(1 << int(np.log2(min(4096, n.mean()))))
        return first, float(min(host, n.sum() / (link.read(a, n).seconds - first)))
    drive = replace(ssd, link=link)
    first = drive.read_latency(1)
    return first, float(n.sum() / (drive.read(a, n).seconds - first))
