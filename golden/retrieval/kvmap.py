"""The KV memory map: where every entry of the KV cache lies, and which bursts fetch a set of clusters.

An entry is the K and V of one token in one context. A context is one cluster table's map. A new entry goes to the
context's ring in device memory. When it leaves the ring, it moves to its home, where a cluster's entries lie together.

- Home: a cluster owns blocks of `block_slots` slots of `home_bytes` bytes. Its entry i (in order of arrival) has slot
  i mod block_slots of the cluster's block number i div block_slots. The address is
  `home_base + (block * block_slots + slot) * home_bytes`. The map hands out unused blocks first, in order. Then it
  reuses freed blocks in the order in which they were freed.
- Ring: entry n of a context is written at `device_base + (ctx * recent + n mod recent) * entry_bytes`. It stays
  resident until `recent` newer entries came: before entry n is written, entry n - recent moves home.
- Fetch: the entries of a cluster leave the ring in order. So its first `offloaded` slots are the ones at home.

Source: V-Rex section V-C.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from openvrex.golden.function_params import check
from openvrex.golden.retrieval import kv4


class Burst(NamedTuple):
    """A read of `bytes` bytes from byte address `addr`; it does not cross a multiple of the boundary."""

    addr: int
    bytes: int


class Move(NamedTuple):
    """Offload of one entry: its `bytes` bytes at ring address `src` go to home address `dst`, packed if homes are."""

    src: int
    dst: int
    bytes: int


class Range(NamedTuple):
    """The first `slots` slots of `block`."""

    block: int
    slots: int


@dataclass(frozen=True)
class Placed:
    """Result of an append: where to write the entry now, and where it moves later."""

    ok: bool  # False: no block is free, and nothing changed
    device: int = 0  # byte address in the ring, where the entry is written now
    home: int = 0  # byte address of its home
    move: Move | None = None  # the offload to make before this write


@dataclass(frozen=True)
class Traffic:
    """Figures of one fetch, to compare with a layout that keeps the same entries in token order."""

    useful_bytes: int  # bytes of the selected entries that are not resident
    fetched_bytes: int  # bytes of all bursts
    bursts: int
    fewest_bursts: int  # bursts if the fetch could go in the order of addresses
    scattered_bursts: int  # bursts if the entries lay in token order

    @property
    def mean_burst(self) -> float:
        """Mean bytes per burst; 0 if there is none."""
        return self.fetched_bytes / self.bursts if self.bursts else 0.0


@dataclass
class _Cluster:
    blocks: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)  # number n of each entry within the context
    offloaded: int = 0  # entries at home: the first so many


@dataclass
class _Context:
    clusters: dict[int, _Cluster] = field(default_factory=dict)
    ring: deque[int] = field(default_factory=deque)  # cluster of each resident entry, oldest first
    n: int = 0  # entries appended so far


@dataclass(frozen=True, kw_only=True)
class MapSizes:
    """Sizes of a KV memory map: `hdl.params.KvmuParams.map_sizes` gives those of the hardware.

    clusters : most clusters of a context
    blocks : blocks of the pool that all contexts share
    block_slots : entries of a block
    recent : entries of a context's ring
    entry_bytes : bytes of an entry in the ring
    boundary : bursts do not cross a multiple of so many bytes
    n_ctx : contexts
    kv4_group : numbers of a group of the packed entries at home (`golden.retrieval.kv4`); 0: they stay BF16

    Raises `ParamError` for a size below 1 and for a boundary that is no power of two.
    """

    clusters: int
    blocks: int
    block_slots: int
    recent: int
    entry_bytes: int
    boundary: int = 4096
    n_ctx: int = 1
    kv4_group: int = 0

    def __post_init__(self):
        for name in ("clusters", "blocks", "block_slots", "recent", "entry_bytes", "boundary", "n_ctx"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        if self.kv4_group:
            kv4.check_group(self.kv4_group, self.entry_bytes // 2, "an entry")
        check(self.boundary & (self.boundary - 1) == 0, "boundary", self.boundary, "must be a power of two")

    @property
    def home_bytes(self) -> int:
        """Bytes of an entry at home."""
        return self.entry_bytes // (kv4.RATIO if self.kv4_group else 1)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.block_slots * self.home_bytes


class KvMap:
    """The map of contexts, those that have memory, over one pool of blocks.

    device_base, home_base : byte addresses of the first ring and of block 0

    Raises `ParamError` for a context or cluster out of range.
    """

    def __init__(self, sizes: MapSizes, device_base: int = 0, home_base: int = 0):
        s = self.sizes = sizes
        self.max_clusters, self.blocks, self.block_slots, self.recent = s.clusters, s.blocks, s.block_slots, s.recent
        self.entry_bytes, self.home_bytes, self.boundary, self.n_ctx = s.entry_bytes, s.home_bytes, s.boundary, s.n_ctx
        self.device_base, self.home_base = device_base, home_base
        self.contexts: defaultdict[int, _Context] = defaultdict(_Context)  # those that were used
        self.fresh = 0  # blocks handed out at least once
        self.freed: deque[int] = deque()  # blocks to reuse, oldest first

    def append(self, ctx: int, cluster: int) -> Placed:
        """Place the next entry of context `ctx`, which belongs to `cluster`."""
        c = self._context(ctx, cluster)
        k = c.clusters.get(cluster)
        block, slot = divmod(len(k.entries), self.block_slots) if k else (0, 0)
        if k is None or block == len(k.blocks):
            if not self.free:
                return Placed(False)
            k = c.clusters.setdefault(cluster, _Cluster())
            k.blocks.append(self._take())
        k.entries.append(c.n)
        device = self.device_base + (ctx * self.recent + c.n % self.recent) * self.entry_bytes
        move = None
        if c.n >= self.recent:
            oldest = c.clusters[c.ring.popleft()]
            block_of, slot_of = divmod(oldest.offloaded, self.block_slots)
            move = Move(device, self._home(oldest.blocks[block_of], slot_of), self.entry_bytes)
            oldest.offloaded += 1
        c.ring.append(cluster)
        c.n += 1
        return Placed(True, device, self._home(k.blocks[block], slot), move)

    def clear(self, ctx: int) -> None:
        """Forget every entry of context `ctx` and free its blocks.

        Blocks are freed by ascending cluster, and within a cluster in their order.
        """
        for _, k in sorted(self._context(ctx).clusters.items()):
            self.freed.extend(k.blocks)
        self.contexts.pop(ctx, None)

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return self.blocks - self.fresh + len(self.freed)

    def like(self) -> "KvMap":
        """A map of the same sizes and addresses, of which nothing is used."""
        out = copy(self)
        out.contexts, out.fresh, out.freed = defaultdict(_Context), 0, deque()
        return out

    def adopt(self, ctx: int, clusters: dict[int, tuple[int, int]], ring: Sequence[int]) -> None:
        """Give the empty context `ctx` entries that another map had.

        `clusters` has the entries of each cluster, and how many of them are at home. `ring` has the clusters of the
        resident ones, oldest first. The map takes blocks by ascending cluster, as `append` does. It does not know the
        order in which entries at home had come.

        Raises `ParamError` if the context holds entries, or if too few blocks are free. Then nothing changes.
        """
        needed = sum(-(-entries // self.block_slots) for entries, _ in clusters.values())
        check(needed <= self.free, "blocks", self.blocks, f"must leave {needed} free, and {self.free} are")
        check(self._context(ctx).n == 0, "ctx", ctx, "must be empty: clear it first")
        c, old = self.contexts[ctx], 0
        for cluster, (entries, offloaded) in sorted(clusters.items()):
            blocks = [self._take() for _ in range(-(-entries // self.block_slots))]
            c.clusters[cluster] = _Cluster(blocks, list(range(old, old + offloaded)), offloaded)
            old += offloaded
        for n, cluster in enumerate(ring, old):
            c.clusters[cluster].entries.append(n)
        c.ring, c.n = deque(ring), old + len(ring)

    def ranges(self, ctx: int, cluster: int) -> list[Range]:
        """The slots of `cluster` that hold entries at home, in order; entries in the ring are left out."""
        k = self._context(ctx, cluster).clusters.get(cluster)
        if k is None:
            return []
        whole, rest = divmod(k.offloaded, self.block_slots)
        out = [Range(b, self.block_slots) for b in k.blocks[:whole]]
        return [*out, Range(k.blocks[whole], rest)] if rest else out

    def bursts(self, ranges: Iterable[Range]) -> list[Burst]:
        """Bursts that read `ranges` in this order; it merges neighbours in memory and splits at the boundary."""
        return self._cut((self._home(r.block, 0), r.slots * self.home_bytes) for r in ranges)

    def fetch(self, ctx: int, clusters: Iterable[int]) -> list[Burst]:
        """Bursts that read every entry of `clusters` that is not resident, once, and nothing else.

        No list that keeps the order of `clusters` is shorter. If a block is a multiple of the boundary and `home_base`
        lies on the boundary, no list at all is shorter.
        """
        return self.bursts(r for cluster in clusters for r in self.ranges(ctx, cluster))

    def traffic(self, ctx: int, clusters: Iterable[int]) -> Traffic:
        """Figures of `fetch(ctx, clusters)`."""
        clusters = list(clusters)
        ranges = [r for cluster in clusters for r in self.ranges(ctx, cluster)]
        bursts = self.bursts(ranges)
        known = [self.contexts[ctx].clusters[k] for k in clusters if k in self.contexts[ctx].clusters]
        entries = sorted(n for k in known for n in k.entries[: k.offloaded])
        size = self.home_bytes
        return Traffic(
            useful_bytes=len(entries) * size,
            fetched_bytes=sum(b.bytes for b in bursts),
            bursts=len(bursts),
            fewest_bursts=len(self.bursts(sorted(ranges))),
            scattered_bursts=len(self._cut((self.home_base + n * size, size) for n in entries)),
        )

    def _take(self) -> int:
        """A free block, of which there is one."""
        if self.fresh == self.blocks:
            return self.freed.popleft()
        self.fresh += 1
        return self.fresh - 1

    def _home(self, block: int, slot: int) -> int:
        """Byte address of a slot."""
        return self.home_base + (block * self.block_slots + slot) * self.home_bytes

    def _cut(self, pieces: Iterable[tuple[int, int]]) -> list[Burst]:
        """Bursts of (address, bytes) pieces: adjacent pieces are merged, then cut at the boundary."""
        runs: list[list[int]] = []
        for addr, size in pieces:
            if runs and runs[-1][1] == addr:
                runs[-1][1] += size
            else:
                runs.append([addr, addr + size])
        out = []
        for start, end in runs:
            while start < end:
                stop = min(end, (start // self.boundary + 1) * self.boundary)
                out.append(Burst(start, stop - start))
                start = stop
        return out

    def _context(self, ctx: int, cluster: int = 0) -> _Context:
        """The state of context `ctx`; raises `ParamError` for a context or cluster out of range."""
        check(0 <= ctx < self.n_ctx, "ctx", ctx, f"must be 0 to {self.n_ctx - 1}")
        check(0 <= cluster < self.max_clusters, "cluster", cluster, f"must be 0 to {self.max_clusters - 1}")
        return self.contexts[ctx]
