"""Tables of the memory models' efficiency by size of the requests, to compare with independent simulators."""

from dataclasses import dataclass, replace

import numpy as np

from openvrex.sim.system.dram import Dram
from openvrex.sim.system.dram_timings import DEVICES
from openvrex.sim.system.pcie import LINKS, transfers
from openvrex.sim.system.ssd import Ssd

CHUNKS = tuple(64 << i for i in range(11))  # 64 B to 64 KB
PAYLOADS = (64, 128, 256, 512, 1024, 4096, 16384, 65536)
REQUESTS = (512, 4096, 16384, 65536, 131072, 1 << 20)
WRITES = (0.0, 0.1, 0.3, 0.5, 1.0)
DEPTHS = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Curve:
    """A table of texts for printing. Each row is a device, each further column a size."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def size(n: int) -> str:
    """`n` bytes as text, in B, KB or MB."""
    return f"{n} B" if n < 1024 else f"{n >> 10} KB" if n < 1 << 20 else f"{n >> 20} MB"


def dram() -> Curve:
    """Share of the peak bandwidth of DRAM reads: sequential, and of chunks at random aligned addresses."""
    rows = []
    for t in DEVICES.values():
        for refresh in ("all", "bank") if t.rfc_bank else ("all",):
            d = Dram(t, refresh=refresh)
            random = (f"{d.efficiency(n):.3f}" for n in CHUNKS)
            rows.append(
                (t.name, refresh, f"{t.bandwidth / 1e9:.1f}", f"{d.efficiency(4096, random=False):.3f}", *random)
            )
    columns = ("DRAM", "refresh", "peak GB/s", "sequential", *(size(n) for n in CHUNKS))
    return Curve("DRAM reads, share of the peak", columns, rows)


def mixed() -> Curve:
    """Share of the peak of one DRAM channel without refresh, for a random mix of reads and writes of 256 B."""
    rows, n = [], 1000
    for t in DEVICES.values():
        d = Dram(replace(t, channels=1), refresh="none")
        for name, random in (("sequential", False), ("random", True)):
            rng = np.random.default_rng(1)
            addr = (rng.integers(0, 1 << 20, n) if random else np.arange(n)) * 256
            served = (d.run(addr, np.full(n, 256), rng.random(n) < share) for share in WRITES)
            rows.append((t.name, name, *(f"{s.utilisation:.3f}" for s in served)))
    return Curve("DRAM, share of the peak by share of writes", ("DRAM", "places", *(f"{w:.0%}" for w in WRITES)), rows)


def pcie() -> Curve:
    """Gigabytes per second of many aligned transfers over PCI Express, by their size."""
    rows = []
    for name, link in LINKS.items():
        for kind, how in (("read", link), ("read, 64 B completions", replace(link, combine=False)), ("write", link)):
            served = [
                (how.write if kind == "write" else how.read)(*transfers(1 << 21, n)).bandwidth / 1e9 for n in PAYLOADS
            ]
            rows.append((name, kind, f"{how.raw / 1e9:.2f}", *(f"{x:.2f}" for x in served)))
    columns = ("link", "transfer", "raw GB/s", *(size(n) for n in PAYLOADS))
    return Curve("PCI Express, GB/s of payload (MPS 256, MRRS 512)", columns, rows)


def ssd() -> Curve:
    """Gigabytes per second of SSD reads at random aligned addresses, by size and queue depth."""
    rows, rng = [], np.random.default_rng(1)
    for name in ("pcie3x4", "pcie4x4"):
        drive = Ssd(LINKS[name])
        for depth in DEPTHS:
            cells = []
            for n in REQUESTS:
                count = max(2 * depth, (1 << 25 if depth > 16 else 1 << 22) // n)
                addr = rng.integers(0, (1 << 38) // n, count) * n
                served = drive.read(addr, np.full(count, n), depth)
                cells.append(f"{served.bandwidth / 1e9:.2f}")
            rows.append((name, str(depth), *cells))
    return Curve("SSD reads, GB/s", ("link", "queue depth", *(size(n) for n in REQUESTS)), rows)


def all_curves() -> list[Curve]:
    """All tables of this module."""
    return [dram(), mixed(), pcie(), ssd()]
