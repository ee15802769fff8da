"""The memory behind the LXE's bus, for golden models: little-endian bytes in named regions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.program.isa import ADDR_BITS

STRETCH = 1 << 18  # bytes of a stretch, whose writes are noted together


class BusError(ValueError):
    """An access outside all regions. The message names the address and the regions."""


@dataclass
class Region:
    """A stretch of memory from address `base`, `size` bytes long, zero at first.

    data : uint8 [size]
    unknown : bool [size], True where a byte is undefined: it was written from a lane that no program has computed, such
        as a lane behind the end of a row. None while there is no such byte.
    written : bool [stretches of STRETCH bytes], True where `Memory` has written; whoever looks for changes clears it.
        None: others write to `data`, too
    """

    name: str
    base: int
    size: int
    data: np.ndarray = field(init=False, repr=False)
    unknown: np.ndarray | None = field(init=False, repr=False, default=None)
    written: np.ndarray | None = field(init=False, repr=False)

    def __post_init__(self):
        check(self.size >= 1, f"size of region {self.name}", self.size, "must be at least 1 byte")
        fits = 0 <= self.base <= (1 << ADDR_BITS) - self.size
        check(fits, f"base of region {self.name}", self.base, f"the region must lie below 2^{ADDR_BITS}")
        self.data = np.zeros(self.size, np.uint8)
        self.written = np.zeros(-(-self.size // STRETCH), bool)

    @property
    def end(self) -> int:
        """The first address behind the region."""
        return self.base + self.size

    def place(self, addr: int, size: int) -> slice:
        """Where `size` bytes from an address, which are about to be written, lie in `data`."""
        at = slice(addr - self.base, addr - self.base + size)
        if self.written is not None:
            self.written[at.start // STRETCH : (at.stop - 1) // STRETCH + 1] = True
        return at


class Memory:
    """Regions that do not overlap.

    `put` and `get` move arrays of any type in C order, for the host. `words` and `write` are the LXE's accesses. Raises
    `ParamError` for regions that overlap, and `BusError` for an access outside them.
    """

    def __init__(self, regions: Iterable[Region]):
        self.regions = sorted(regions, key=lambda r: r.base)
        for a, b in zip(self.regions, self.regions[1:], strict=False):
            check(
                a.end <= b.base,
                f"base of region {b.name}",
                hex(b.base),
                f"must be at least {a.end:#x}, the end of region {a.name}",
            )

    def region(self, addr: int, size: int) -> Region:
        """The region that holds all `size` bytes from `addr`. Raises `BusError` if there is none."""
        for r in self.regions:
            if r.base <= addr and addr + size <= r.end:
                return r
        known = ", ".join(f"{r.name} {r.base:#x} to {r.end:#x}" for r in self.regions) or "none, the memory is empty"
        raise BusError(f"address {addr:#x}: {size} bytes from there are in no region: use one of {known}")

    def put(self, addr: int, x: np.ndarray) -> None:
        """Write an array from address `addr`."""
        data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        r = self.region(addr, data.size)
        at = r.place(addr, data.size)
        r.data[at] = data
        if r.unknown is not None:
            r.unknown[at] = False

    def get(self, addr: int, shape: int | tuple[int, ...], dtype: type) -> np.ndarray:
        """A copy of the array at address `addr`."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        r = self.region(addr, size)
        return r.data[addr - r.base : addr - r.base + size].copy().view(dtype).reshape(shape)

    def words(self, addr: int, rows: int, row_bytes: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
        """Read `rows` rows of `row_bytes` bytes, their addresses `stride` apart modulo 2^40.

        Returns the bytes, uint8 [rows, row_bytes], and which of them are defined, bool of the same shape.
        """
        span = (rows - 1) * stride + row_bytes
        try:
            r = self.region(addr, span)
        except BusError:  # in several regions
            if rows == 1:
                raise
            at = [(addr + k * stride) % (1 << ADDR_BITS) for k in range(rows)]
            parts = [self.words(a, 1, row_bytes, 0) for a in at]
            return np.concatenate([d for d, _ in parts]), np.concatenate([k for _, k in parts])

        def cut(x: np.ndarray) -> np.ndarray:
            return np.lib.stride_tricks.as_strided(x[addr - r.base :], (rows, row_bytes), (stride, 1))

        known = np.ones((rows, row_bytes), bool) if r.unknown is None else ~cut(r.unknown)
        return cut(r.data).copy(), known

    def write(self, addr: int, data: np.ndarray, known: np.ndarray) -> None:
        """Write the bytes of one row, uint8 [n]; `known`, bool [n], marks those that are defined."""
        r = self.region(addr, data.size)
        at = r.place(addr, data.size)
        r.data[at] = data
        if r.unknown is None and not known.all():
            r.unknown = np.zeros(r.size, bool)
        if r.unknown is not None:
            r.unknown[at] = ~known
