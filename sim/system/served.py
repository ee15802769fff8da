"""What a memory reports about a list of requests."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Served:
    """A list of requests, served. Times in seconds from the first one's start.

    start, end : [requests] : when a request entered the memory's queue; when its last byte was there
    bytes      : [requests]
    busy       : seconds in which the data path of the memory (all its channels, on average) carried these requests'
    data
    joules     : energy, background power over the whole time included
    counts     : events (activations, refreshes, packets, page reads, ...)
    """

    start: np.ndarray
    end: np.ndarray
    bytes: np.ndarray
    busy: float
    joules: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the first start to the last end; 0 without a request."""
        return float(self.end.max() - self.start.min()) if len(self.end) else 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return float(self.bytes.sum()) / self.seconds if self.seconds else 0.0

    @property
    def utilisation(self) -> float:
        """Share of the time in which the data path is busy."""
        return self.busy / self.seconds if self.seconds else 0.0

    def latency(self, percentile: float) -> float:
        """Seconds from a request's start to its end that `percentile` of 100 requests do not exceed."""
        return float(np.percentile(self.end - self.start, percentile)) if len(self.end) else 0.0


def requests(addr, size) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and sizes as arrays of integers; `ValueError` unless they pair and every size is at least 1."""
    addr, size = np.atleast_1d(np.asarray(addr, np.int64)), np.atleast_1d(np.asarray(size, np.int64))
    if addr.shape != size.shape or addr.ndim != 1:
        raise ValueError(f"addr={addr.shape}, bytes={size.shape}: must be lists of the same length")
    if len(addr) and (addr.min() < 0 or size.min() < 1):
        raise ValueError(f"addr={addr.min()}, bytes={size.min()}: addresses start at 0, a request has at least 1 byte")
    return addr, size


def pieces(addr: np.ndarray, size: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Requests cut at multiples of `unit`: the request of each piece, its first address, its bytes."""
    first, last = addr // unit, (addr + size - 1) // unit
    n = last - first + 1
    owner = np.repeat(np.arange(len(addr)), n)
    index = np.arange(len(owner)) - np.repeat(n.cumsum() - n, n) + first[owner]
    begin = np.maximum(index * unit, addr[owner])
    return owner, begin, np.minimum((index + 1) * unit, (addr + size)[owner]) - begin
