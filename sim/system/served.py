"""The report that every memory model (DRAM, link, drive) returns for a list of requests, and how requests are cut."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Served:
    """Times and energy of a list of requests.

    start, end : seconds at which each request entered the memory's queue, and at which its last byte arrived,
                 [requests]
    bytes      : size of each request, [requests]
    busy       : seconds in which the memory's data path carried data, averaged over its channels
    joules     : energy, including background power over the whole time
    counts     : numbers of events (activations, refreshes, packets, page reads, ...)
    """

    start: np.ndarray
    end: np.ndarray
    bytes: np.ndarray
    busy: float
    joules: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end; 0 without a request."""
        return float(self.end.max() - self.start.min()) if len(self.end) else 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes per second, over the whole time."""
        return float(self.bytes.sum()) / self.seconds if self.seconds else 0.0

    @property
    def utilisation(self) -> float:
        """Share of the time in which the data path is busy."""
        return self.busy / self.seconds if self.seconds else 0.0

    def latency(self, percentile: float) -> float:
        """Latency in seconds that `percentile` percent of the requests do not exceed."""
        return float(np.percentile(self.end - self.start, percentile)) if len(self.end) else 0.0


def requests(addr: ArrayLike, size: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and sizes as arrays of int64, [requests] each.

    Raises `ValueError` for lists of unequal length, negative addresses and empty requests.
    """
    begin, count = np.atleast_1d(np.asarray(addr, np.int64)), np.atleast_1d(np.asarray(size, np.int64))
    if begin.shape != count.shape or begin.ndim != 1:
        raise ValueError(f"addr={begin.shape}, bytes={count.shape}: must be lists of the same length")
    if len(begin) and (begin.min() < 0 or count.min() < 1):
        raise ValueError(
            f"addr={begin.min()}, bytes={count.min()}: addresses start at 0, a request has at least 1 byte"
        )
    return begin, count


def pieces(addr: np.ndarray, size: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts requests at multiples of `unit` bytes; returns the request, first address and bytes of each piece."""
    first, last = addr // unit, (addr + size - 1) // unit
    n = last - first + 1
    owner = np.repeat(np.arange(len(addr)), n)
    index = np.arange(len(owner)) - np.repeat(n.cumsum() - n, n) + first[owner]
    begin = np.maximum(index * unit, addr[owner])
    return owner, begin, np.minimum((index + 1) * unit, (addr + size)[owner]) - begin
