"""PCI Express at the level of transaction layer packets (PCI Express Base Specification 4.0, sections 2.2, 2.3, 2.6,
3.5, 4.2).

A packet of up to MPS bytes of payload travels with 4 bytes of framing and sequence number (STP token of 128b/130b
links), a header of 12 bytes (completions) or 16 (requests with 64-bit addresses), payload padded to 4 bytes, and 4
bytes of LCRC. Reads: requests of up to MRRS bytes that do not cross 4 KB; each comes back as completions that end at
multiples of the read completion boundary and hold up to MPS bytes. Every `ack` packets are acknowledged by a DLLP of 8
bytes, and credits come back by another, both in the direction against the data. SKP ordered sets take one block in 371.

Closed forms beside it: `Link.raw` (after 128b/130b and SKP), `Link.efficiency` (payload over bytes on the wire of
aligned transfers), `Link.window` (bandwidth that tags allow: tags x MRRS / round trip) and `Link.read_latency`.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from sim.system.served import Served, pieces, requests

FRAME = 8  # bytes: STP token with the sequence number, LCRC
REQUEST, COMPLETION = 16, 12  # bytes of header
DLLP = 8  # bytes: SDP token, four of the packet, CRC
SKP = 370 / 371  # blocks that carry data, one ordered set every 370
PAGE = 4096  # no request crosses a multiple


@dataclass(frozen=True)
class Link:
    """A link of `lanes` lanes at `gt` GT/s.

    mps, mrrs : bytes of payload of a packet, bytes asked for by a read request
    rcb       : read completion boundary of the completer
    combine   : whether the completer joins what lies between boundaries into packets of up to MPS bytes; else every
                completion ends at the next boundary
    tags      : read requests under way
    credits   : bytes of posted data that the receiver has room for
    latency   : seconds one way, both ends' layers included · memory: seconds that the completer takes for a read
    ack       : packets that one ACK acknowledges, and one UpdateFC covers
    lane_watts: power of a lane under full load (V-Rex VI-A: 3 W)
    idle_share: of it without traffic
    """

    gt: float
    lanes: int
    mps: int = 256
    mrrs: int = 512
    rcb: int = 64
    combine: bool = True
    tags: int = 256
    credits: int = 16384
    latency: float = 150e-9
    memory: float = 250e-9
    ack: int = 4
    lane_watts: float = 3.0
    idle_share: float = 0.1

    def __post_init__(self):
        for name in ("mps", "mrrs", "rcb"):
            value = getattr(self, name)
            if not 64 <= value <= PAGE or value & (value - 1):
                raise ValueError(f"{name}={value}: must be a power of two, 64 to {PAGE}")
        for name in ("lanes", "tags", "ack"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.credits < self.mps:
            raise ValueError(f"credits={self.credits}: must hold a packet of mps = {self.mps} bytes")

    @property
    def raw(self) -> float:
        """Bytes per second after encoding and ordered sets."""
        return self.gt * 1e9 * self.lanes / 8 * 128 / 130 * SKP

    @property
    def watts(self) -> float:
        """Under full load."""
        return self.lanes * self.lane_watts

    def efficiency(self, size: int, read: bool = True) -> float:
        """Closed form of aligned transfers of `size` bytes: payload over bytes on the wire, in the data's direction."""
        header = FRAME + (COMPLETION if read else REQUEST)
        unit = self.mps if self.combine or not read else self.rcb
        whole, rest = divmod(size, unit)
        wire = whole * (unit + header) + (header + (rest + 3) // 4 * 4 if rest else 0)
        return size / wire

    @property
    def window(self) -> float:
        """Bytes per second that tags allow."""
        return self.tags * self.mrrs / (2 * self.latency + self.memory)

    def read_latency(self, size: int) -> float:
        """Closed form of one aligned read of up to MRRS bytes on an idle link."""
        wire = FRAME + REQUEST + size / self.efficiency(size)
        return 2 * self.latency + self.memory + wire / self.raw

    def bandwidth(self, size: int, read: bool = True) -> float:
        """Closed form, bytes per second of many aligned transfers of `size` bytes."""
        if not read:
            rate = self.credits / (2 * self.latency + self.mps / self.raw)
            return min(self.raw * self.efficiency(size, read=False), rate)
        request = min(size, self.mrrs)
        return min(self.raw * self.efficiency(size), self.window * request / self.mrrs)

    def read(self, addr, size) -> Served:
        """Read requests by the device, all there at once, in this order; data comes back in order."""
        addr, size = requests(addr, size)
        owner, begin, length = pieces(addr, size, min(self.mrrs, PAGE))
        wire, packets = self._completions(begin, length)
        back = (FRAME + REQUEST + DLLP * 2 / self.ack) / self.raw  # a request, and its share of ACK and UpdateFC
        ask = np.full(len(owner), back)
        take = wire / self.raw
        issued, done = _windowed(ask, take, 2 * self.latency + self.memory, self.tags)
        return self._served(
            owner, size, issued, done, take, {"requests": len(owner), "completions": int(packets.sum())}
        )

    def write(self, addr, size) -> Served:
        """Posted writes, all there at once, in this order; done when the receiver has them."""
        addr, size = requests(addr, size)
        owner, _, length = pieces(addr, size, self.mps)
        take = (FRAME + REQUEST + (length + 3) // 4 * 4 + DLLP / self.ack) / self.raw
        # A packet starts once those before it that no longer fit the receiver's room have been passed on.
        sent, done = _windowed(np.zeros(len(owner)), take, 0.0, self.credits // self.mps, 2 * self.latency)
        return self._served(owner, size, sent, done + self.latency, take, {"packets": len(owner)})

    def _completions(self, begin: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes on the wire, and packets, of the completions of each request."""
        unit = self.mps if self.combine else self.rcb
        # The first completion ends at a boundary, so that those after it are whole.
        packets = (begin + length - 1) // unit - begin // unit + 1
        padding = -(begin + length) % 4 + begin % 4
        return length + padding + packets * (FRAME + COMPLETION), packets

    def _served(self, owner, size, issued, done, take, counts) -> Served:
        start, end = np.full(len(size), np.inf), np.zeros(len(size))
        np.minimum.at(start, owner, issued)
        np.maximum.at(end, owner, done)
        busy = float(take.sum())
        seconds = float(end.max() - start.min()) if len(size) else 0.0
        joules = self.watts * (busy + self.idle_share * max(0.0, seconds - busy))
        return Served(start, end, size, busy, joules, counts)


def _windowed(ask: np.ndarray, take: np.ndarray, trip: float, window: int, again: float = 0.0):
    """When each of a list is issued and done: `ask` seconds each to issue, `take` each on the way back, `trip` in
    between, at most `window` under way; a place is free `again` seconds after the end.

    issue[i] = max(issue[i-1], done[i-window] + again) + ask[i]; done[i] = max(done[i-1], issue[i] + trip) + take[i]
    """
    n = len(take)
    issued, done = np.zeros(n), np.zeros(n)
    last_issue = last_done = 0.0
    for at in range(0, n, window):
        part = slice(at, min(n, at + window))
        count = part.stop - at
        free = done[at - window : at - window + count] + again if at else np.zeros(count)
        asks = ask[part].cumsum()
        issued[part] = asks + np.maximum(np.maximum.accumulate(free - asks + ask[part]), last_issue)
        takes = take[part].cumsum()
        done[part] = takes + np.maximum(np.maximum.accumulate(issued[part] + trip - takes + take[part]), last_done)
        last_issue, last_done = issued[part][-1], done[part][-1]
    return issued - ask, done


def transfers(size: int, piece: int) -> tuple[np.ndarray, np.ndarray]:
    """`size` bytes as a list of pieces one after the other."""
    n = ceil(size / piece)
    return np.arange(n) * piece, np.minimum(piece, size - np.arange(n) * piece)


GEN3_X4 = Link(8.0, 4)
GEN4_X16 = Link(16.0, 16, tags=768, credits=65536)
LINKS = {
    "pcie3x4": GEN3_X4,
    "pcie4x4": Link(16.0, 4),
    "pcie4x16": GEN4_X16,
    "pcie5x16": Link(32.0, 16, tags=768, credits=131072),
    # 6.0 sends flits of 256 bytes, 236 of them packets, without 128b/130b: the same 0.92 within 6 %.
    "pcie6x16": Link(64.0, 16, tags=1024, credits=262144),
}
