"""Regions: the memory that software allows a core to reach, in pages of 4 KB."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntFlag

from openvrex.golden.function_params import check
from openvrex.golden.program.bus_memory import Memory
from openvrex.golden.program.isa import ADDR_BITS

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
DENIED = 3  # the response to a burst outside: DECERR


class Allow(IntFlag):
    """Who may do what in a region: the LXE's loads and stores, the retriever with entries, the DRE with its tables.

    With `kvmu.shared` LOAD and STORE also count where the retriever reads or writes at an address that a program names.
    """

    LOAD = 1
    STORE = 2
    ENTRY_READ = 4
    ENTRY_WRITE = 8
    TABLE_READ = 16
    TABLE_WRITE = 32


EVERYTHING = Allow(63)


@dataclass(frozen=True)
class Reach:
    """A region from the page of address `first` to the page of address `last`, both included.

    Raises `ParamError` for addresses outside memory, or a region that ends before it begins.
    """

    first: int
    last: int
    allow: Allow = EVERYTHING

    def __post_init__(self):
        check(0 <= self.first < 1 << ADDR_BITS, "first", hex(self.first), f"must be below 2^{ADDR_BITS}")
        top = f"must be {self.first:#x}, where the region begins, to 2^{ADDR_BITS} - 1"
        check(self.first <= self.last < 1 << ADDR_BITS, "last", hex(self.last), top)

    @property
    def pages(self) -> tuple[int, int]:
        """The numbers of its first and last page."""
        return self.first >> PAGE_BITS, self.last >> PAGE_BITS


EVERYWHERE = Reach(0, (1 << ADDR_BITS) - 1)


def reaches(regions: Iterable[Reach], addr: int, size: int, by: Allow) -> bool:
    """Whether each page of `size` bytes from an address lies in a region that allows `by`."""
    own = [r.pages for r in regions if by in r.allow]
    return all(
        any(first <= page <= last for first, last in own)
        for page in range(addr >> PAGE_BITS, ((addr + size - 1) >> PAGE_BITS) + 1)
    )


def enclosing(spans: Sequence[Reach], most: int) -> list[Reach]:
    """At most `most` regions that hold all of `spans`; where these are more, the nearest neighbours become one."""
    left = sorted(spans, key=lambda r: r.first)
    while len(left) > most:
        gaps = [b.first - a.last for a, b in zip(left, left[1:], strict=False)]
        k = gaps.index(min(gaps))
        a, b = left[k : k + 2]
        left[k : k + 2] = [Reach(a.first, max(a.last, b.last), a.allow | b.allow)]
    return left


def around(memory: Memory, most: int) -> list[Reach]:
    """At most `most` regions that hold a memory's own, for every purpose."""
    return enclosing([Reach(r.base, r.end - 1) for r in memory.regions], most)


def confined(regions: Sequence[Reach]) -> dict[str, int]:
    """The inputs of a core that confine it to these regions."""
    return {"confine": 1, "regions": packed(regions)}


def packed(regions: Sequence[Reach]) -> int:
    """The regions as the port `regions` of a core takes them; those that are not used allow nothing."""
    bits, out = 2 * (ADDR_BITS - PAGE_BITS) + len(Allow), 0
    for k, r in enumerate(regions):
        first, last = r.pages
        out |= (first | last << ADDR_BITS - PAGE_BITS | int(r.allow) << 2 * (ADDR_BITS - PAGE_BITS)) << k * bits
    return out
