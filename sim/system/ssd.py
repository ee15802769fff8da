"""Predicts time and energy of reads from an NVMe SSD behind a PCIe link.

The drive has channels of flash dies; a die has planes that read pages independently. The model cuts a request at flash
pages. Page p lies in channel p mod channels, then in the next die and plane. A plane senses a page in tR. The channel
carries the wanted bytes of the page, and the link takes them to the host in order of arrival. A request ends with its
last byte. Then the next one is taken, with `depth` in flight, after `command` seconds of controller and protocol.

The defaults are a 2 TB M.2 drive of the class of Kioxia's BG6 (V-Rex VI-A):

- 6,000 MB/s and 850,000 random reads of 4 KB a second on PCIe 4.0 x4, 4.2 W active (data sheet)
- four channels of 1,600 MB/s (Toggle DDR 4.0), four dies a channel, four independent planes a die
- tR 50 us (TLC, BiCS generation 5 and 6, ISSCC 2021 papers)

Closed forms to compare with: `Ssd.flash` (bandwidth that sensing allows), `Ssd.wires` (that the channels allow) and
`Ssd.read_latency` (one page).
"""

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from openvrex.sim.system.pcie import GEN3_X4, Link
from openvrex.sim.system.served import Served, pieces, requests


@dataclass(frozen=True)
class Ssd:
    """A drive on `link`. Raises `ValueError` for counts below 1.

    page     : bytes of a flash page
    sense    : seconds in which a plane senses a page, tR
    bus      : bytes per second of a channel
    overhead : seconds of a channel for command and address of a page
    command  : seconds of a request in the controller
    pipe     : seconds of controller and protocol before the first sensing, and after the last byte
    """

    link: Link = field(default_factory=lambda: GEN3_X4)
    capacity: int = 2 * 10**12  # bytes
    channels: int = 4
    dies: int = 4  # dies on a channel
    planes: int = 4  # planes of a die
    page: int = 16384
    sense: float = 50e-6
    bus: float = 1.6e9
    overhead: float = 0.2e-6
    command: float = 1.15e-6
    pipe: float = 8e-6
    active_watts: float = 4.2
    idle_watts: float = 0.5

    def __post_init__(self) -> None:
        for name in ("channels", "dies", "planes", "page"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def units(self) -> int:
        """Number of planes of the drive."""
        return self.channels * self.dies * self.planes

    def flash(self, wanted: int | None = None) -> float:
        """Bytes per second that sensing allows if `wanted` bytes of each page are used, all of them by default."""
        return self.units * (wanted or self.page) / self.sense

    @property
    def wires(self) -> float:
        """Bytes per second that the channels allow for whole pages."""
        return self.channels * self.page / (self.page / self.bus + self.overhead)

    def peak(self) -> float:
        """Bytes per second of long sequential reads: the least of flash, channels and link."""
        return min(self.flash(), self.wires, self.link.raw * self.link.efficiency(self.link.mps, read=False))

    def read_latency(self, size: int = 4096) -> float:
        """Closed form for one request within a page on an idle drive, seconds."""
        wire = size / (self.link.raw * self.link.efficiency(size, read=False))
        transfer = size / self.bus + self.overhead
        return self.command + self.pipe + self.sense + transfer + wire + self.link.latency

    def read(self, addr: ArrayLike, size: ArrayLike, depth: int = 256) -> Served:
        """Serves reads of `size` bytes from `addr`, [requests] each, in order, with `depth` in flight."""
        addr, size = requests(addr, size)
        if depth < 1:
            raise ValueError(f"depth={depth}: must be at least 1")
        owner, begin, length = pieces(addr, size, self.page)
        number = begin // self.page
        channel = (number % self.channels).tolist()
        plane = (number % self.units).tolist()
        rate = self.link.raw * self.link.efficiency(max(1, self.link.mps), read=False)
        moves = (length / self.bus + self.overhead).tolist()
        wires = (length / rate).tolist()
        left = np.bincount(owner, minlength=len(addr)).tolist()
        first = (np.concatenate([[0], np.cumsum(left)[:-1]]) if left else np.zeros(0)).astype(np.int64).tolist()
        of = owner.tolist()
        start, end = [0.0] * len(addr), [0.0] * len(addr)
        plane_free, channel_free = [0.0] * self.units, [0.0] * self.channels
        link_free = controller = 0.0
        events: list[tuple[float, int, int]] = []  # time, kind (0: page is sensed, 1: page crossed the channel), page
        following = 0

        def admit(now: float) -> None:
            """Takes the next request from the queue."""
            nonlocal controller, following
            i = following
            following += 1
            start[i] = now
            controller = max(now, controller) + self.command
            at = controller + self.pipe
            for p in range(first[i], first[i] + left[i]):
                plane_free[plane[p]] = max(plane_free[plane[p]], at) + self.sense
                heapq.heappush(events, (plane_free[plane[p]], 0, p))

        for _ in range(min(depth, len(addr))):
            admit(0.0)
        while events:
            now, kind, p = heapq.heappop(events)
            if kind == 0:
                c = channel[p]
                channel_free[c] = max(channel_free[c], now) + moves[p]
                heapq.heappush(events, (channel_free[c], 1, p))
                continue
            link_free = max(link_free, now) + wires[p]
            i = of[p]
            left[i] -= 1
            end[i] = max(end[i], link_free + self.link.latency)
            if left[i] == 0 and following < len(addr):
                admit(end[i])
        begun, ended = np.array(start), np.array(end)
        seconds = float(ended.max() - begun.min()) if len(addr) else 0.0
        busy = float(np.sum(length)) / rate
        joules = self.idle_watts * seconds + (self.active_watts - self.idle_watts) * busy + self.link.watts * busy
        return Served(begun, ended, size, busy, joules, {"pages": len(of)})
