"""Predicts time and energy of transfers over PCI Express, packet by packet.

Source: PCI Express Base Specification 4.0, sections 2.2, 2.3, 2.6, 3.5, 4.2.

A packet carries up to MPS bytes of payload, padded to 4 bytes. Around it are 4 bytes of framing and sequence number
(STP token of 128b/130b links), a header of 12 bytes (completions) or 16 bytes (requests with 64-bit addresses), and 4
bytes of LCRC. A read request asks for up to MRRS bytes and does not cross 4 KB. Its data return in completions of up
to MPS bytes that end at multiples of the read completion boundary. One DLLP of 8 bytes acknowledges every `ack`
packets and another returns credits, both against the direction of the data. SKP ordered sets take one block in 371.

Closed forms to compare with: `Link.raw` (after 128b/130b and SKP), `Link.efficiency` (payload over bytes on the wire,
for aligned transfers), `Link.window` (bandwidth that tags allow: tags x MRRS / round trip) and `Link.read_latency`.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import ArrayLike

from openvrex.sim.system.served import Served, pieces, requests

FRAME = 8  # bytes: STP token with the sequence number, LCRC
REQUEST, COMPLETION = 16, 12  # bytes of the header
DLLP = 8  # bytes: SDP token, four of the packet, CRC
SKP = 370 / 371  # share of blocks that carry data: one ordered set follows every 370
PAGE = 4096  # bytes; no request crosses a multiple of this


@dataclass(frozen=True)
class Link:
    """A link of `lanes` lanes at `gt` GT/s. Raises `ValueError` for bad parameters.

    mps, mrrs : most bytes in a packet's payload, most bytes that a read request asks for
    rcb       : read completion boundary of the completer, bytes
    combine   : the completer joins data across boundaries into packets of up to MPS bytes; else every completion ends
                at the next boundary
    tags      : most read requests in flight
    credits   : bytes of posted data for which the receiver has room
    latency   : seconds one way, with the layers of both ends
    memory    : seconds that the completer takes for a read
    ack       : packets that one ACK acknowledges, and that one UpdateFC covers
    lane_watts: power of a lane under full load (V-Rex VI-A: 3 W)
    idle_share: share of that power without traffic
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

    def __post_init__(self) -> None:
        for name in ("mps", "mrrs", "rcb"):
            value = getattr(self, name)
            if not 64 <= value <= PAGE or value & (value - 1):
                raise ValueError(f"{name}={value}: must be a power of two, 64 to {PAGE}")
        for name in ("lanes", "tags", "ack"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.credits < self.mps:
            raise ValueError(f"credits={self.credits}: must hold at least one packet of mps={self.mps} bytes")

    @property
    def raw(self) -> float:
        """Bytes per second after encoding and ordered sets."""
        return self.gt * 1e9 * self.lanes / 8 * 128 / 130 * SKP

    @property
    def watts(self) -> float:
        """Power of all lanes under full load."""
        return self.lanes * self.lane_watts

    def efficiency(self, size: int, read: bool = True) -> float:
        """Closed form for aligned transfers of `size` bytes: payload over all bytes in the data's direction."""
        header = FRAME + (COMPLETION if read else REQUEST)
        unit = self.mps if self.combine or not read else self.rcb
        whole, rest = divmod(size, unit)
        wire = whole * (unit + header) + (header + (rest + 3) // 4 * 4 if rest else 0)
        return size / wire

    @property
    def window(self) -> float:
        """Bytes per second that the number of tags allows."""
        return self.tags * self.mrrs / (2 * self.latency + self.memory)

    def read_latency(self, size: int) -> float:
        """Closed form for one aligned read of up to MRRS bytes on an idle link, seconds."""
        wire = FRAME + REQUEST + size / self.efficiency(size)
        return 2 * self.latency + self.memory + wire / self.raw

    def bandwidth(self, size: int, read: bool = True) -> float:
        """Closed form for many aligned transfers of `size` bytes, bytes per second."""
        if not read:
            rate = self.credits / (2 * self.latency + self.mps / self.raw)
            return min(self.raw * self.efficiency(size, read=False), rate)
        request = min(size, self.mrrs)
        return min(self.raw * self.efficiency(size), self.window * request / self.mrrs)

    def read(self, addr: ArrayLike, size: ArrayLike) -> Served:
        """Serves reads by the device: `size` bytes from `addr`, [requests] each. All are pending at once, in order."""
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

    def write(self, addr: ArrayLike, size: ArrayLike) -> Served:
        """Serves posted writes, all pending at once, in order. A write ends when the receiver has it."""
        addr, size = requests(addr, size)
        owner, _, length = pieces(addr, size, self.mps)
        take = (FRAME + REQUEST + (length + 3) // 4 * 4 + DLLP / self.ack) / self.raw
        # A packet waits until the receiver has passed on enough earlier packets to have room for it.
        sent, done = _windowed(np.zeros(len(owner)), take, 0.0, self.credits // self.mps, 2 * self.latency)
        return self._served(owner, size, sent, done + self.latency, take, {"packets": len(owner)})

    def _completions(self, begin: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes on the wire, and number of packets, of the completions of each request."""
        unit = self.mps if self.combine else self.rcb
        # The first completion ends at a boundary, so that the following ones are whole.
        packets = (begin + length - 1) // unit - begin // unit + 1
        padding = -(begin + length) % 4 + begin % 4
        return length + padding + packets * (FRAME + COMPLETION), packets

    def _served(
        self,
        owner: np.ndarray,
        size: np.ndarray,
        issued: np.ndarray,
        done: np.ndarray,
        take: np.ndarray,
        counts: dict[str, int],
    ) -> Served:
        """Collects packets into requests; `owner` is the request of each packet, `take` its seconds on the link."""
        start, end = np.full(len(size), np.inf), np.zeros(len(size))
        np.minimum.at(start, owner, issued)
        np.maximum.at(end, owner, done)
        busy = float(take.sum())
        seconds = float(end.max() - start.min()) if len(size) else 0.0
        joules = self.watts * (busy + self.idle_share * max(0.0, seconds - busy))
        return Served(start, end, size, busy, joules, counts)


def _windowed(
    ask: np.ndarray, take: np.ndarray, trip: float, window: int, again: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds at which each packet is issued and done, with a limited number in flight.

    ask, take : seconds to issue each packet, and to return its answer
    trip : seconds in between
    window : most packets in flight
    again : seconds from a packet's end until its place in the window is free

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
    """Addresses and sizes of consecutive pieces of `piece` bytes that make up `size` bytes."""
    n = ceil(size / piece)
    return np.arange(n) * piece, np.minimum(piece, size - np.arange(n) * piece)


GEN3_X4 = Link(8.0, 4)
GEN4_X16 = Link(16.0, 16, tags=768, credits=65536)
LINKS = {
    "pcie3x4": GEN3_X4,
    "pcie4x4": Link(16.0, 4),
    "pcie4x16": GEN4_X16,
    "pcie5x16": Link(32.0, 16, tags=768, credits=131072),
    # PCIe 6.0 sends flits of 256 bytes, 236 of them packets, without 128b/130b: the same 0.92 within 6 %.
    "pcie6x16": Link(64.0, 16, tags=1024, credits=262144),
}
