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
- Kept blocks: device memory may keep `kept` whole blocks of each context, the first ones of clusters. Cluster c has
  place c mod `kept`, at `device_base - (ctx * kept + place + 1) * place_bytes`. Bits of `home_base` below a block, and
  for places of `device_base` below `place_bytes`, then count as zero. A set finds its blocks as they were kept
  before it. Of the others that are whole, the first `keeps` are kept from then on, the last one of a place. A cluster
  that gets its first block takes its place from another. An entry at home never changes, so a copy is never stale.

Source: V-Rex section V-C.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from openvrex.golden.function_params import check
from openvrex.golden.retrieval import kv4

KEEPS = 64  # most blocks that a set adds to those kept, and no more than there are places


class Burst(NamedTuple):
    """A read of `bytes` bytes from byte address `addr`; it does not cross a multiple of the boundary.

    near : it is of a block that is kept, and expanded if homes are packed; `bytes` are those that it has at home
    keep : address in device memory at which its entries are kept; None: they are not
    """

    addr: int
    bytes: int
    near: bool = False
    keep: int | None = None

    def beat(self, kept: bool = False) -> dict[str, int]:
        """The fields of a beat of the KVMU that mean something. kept : blocks are kept, so beats have `near`, `keep`"""
        if self.near:
            return {"bytes": self.bytes, "near": 1, "keep": 0, "to": self.addr}
        if self.keep is not None:
            return {"addr": self.addr, "bytes": self.bytes, "near": 0, "keep": 1, "to": self.keep}
        return {"addr": self.addr, "bytes": self.bytes} | ({"near": 0, "keep": 0} if kept else {})


class Move(NamedTuple):
    """Offload of one entry: its `bytes` bytes at ring address `src` go to home address `dst`, packed if homes are.

    A block that moves to where it is gets zeros.
    """

    src: int
    dst: int
    bytes: int

    @property
    def wipes(self) -> bool:
        """Whether zeros go to `dst`."""
        return self.src == self.dst


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
    kept: dict[int, int | None] = field(default_factory=dict)  # cluster whose first block is kept, or none, by place


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
    kept : blocks of a context that device memory keeps; 0: none
    shared : a context that is cleared leaves zeros in its blocks

    Raises `ParamError` for a size below 1, for a boundary that is no power of two, and for kept blocks of other sizes.
    """

    clusters: int
    blocks: int
    block_slots: int
    recent: int
    entry_bytes: int
    boundary: int = 4096
    n_ctx: int = 1
    kv4_group: int = 0
    kept: int = 0
    shared: bool = False

    def __post_init__(self):
        for name in ("clusters", "blocks", "block_slots", "recent", "entry_bytes", "boundary", "n_ctx"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        if self.kv4_group:
            kv4.check_group(self.kv4_group, self.entry_bytes // 2, "an entry")
        check(self.boundary & (self.boundary - 1) == 0, "boundary", self.boundary, "must be a power of two")
        if self.kept:
            for name in ("home_bytes", "block_slots"):
                own = getattr(self, name)
                check(own & (own - 1) == 0, name, own, "must be a power of two, or set kept=0: a block lies on its own")

    @property
    def home_bytes(self) -> int:
        """Bytes of an entry at home."""
        return self.entry_bytes // (kv4.RATIO if self.kv4_group else 1)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.block_slots * self.home_bytes

    @property
    def keeps(self) -> int:
        """Most blocks that a set adds to those kept."""
        return min(KEEPS, self.kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes of a context's places for kept blocks, in front of all rings."""
        return self.kept * self.place_bytes

    @property
    def place_bytes(self) -> int:
        """Bytes of a kept block, whose entries are as in the ring."""
        return self.block_slots * self.entry_bytes


class KvMap:
    """The map of contexts, those that have memory, over one pool of blocks.

    device_base, home_base : byte addresses of the first ring and of block 0
    quota : most blocks that a context may hold; 0: any number

    Raises `ParamError` for a context or cluster out of range.
    """

    def __init__(self, sizes: MapSizes, device_base: int = 0, home_base: int = 0, quota: int = 0):
        s = self.sizes = sizes
        self.max_clusters, self.blocks, self.block_slots, self.recent = s.clusters, s.blocks, s.block_slots, s.recent
        self.entry_bytes, self.home_bytes, self.boundary, self.n_ctx = s.entry_bytes, s.home_bytes, s.boundary, s.n_ctx
        self.device_base, self.home_base, self.quota = device_base, home_base, quota
        if s.kept:
            self.home_base -= home_base % s.block_bytes
        self.contexts: defaultdict[int, _Context] = defaultdict(_Context)  # those that were used
        self.fresh = 0  # blocks handed out at least once
        self.freed: deque[int] = deque()  # blocks to reuse, oldest first
        self.events: Counter[str] = Counter()  # of `take`: blocks found where they were kept, blocks kept, given up

    def append(self, ctx: int, cluster: int) -> Placed:
        """Place the next entry of context `ctx`, which belongs to `cluster`."""
        c = self._context(ctx, cluster)
        k = c.clusters.get(cluster)
        block, slot = divmod(len(k.entries), self.block_slots) if k else (0, 0)
        if k is None or block == len(k.blocks):
            if not self.free or (self.quota and self.held(ctx) >= self.quota):
                return Placed(False)
            k = c.clusters.setdefault(cluster, _Cluster())
            if not k.blocks and self.sizes.kept:
                c.kept[cluster % self.sizes.kept] = None
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

    def clear(self, ctx: int) -> list[Move]:
        """Forget every entry of context `ctx` and free its blocks; returns those to be wiped, if they are.

        Blocks are freed by ascending cluster, and within a cluster in their order.
        """
        freed = [block for _, k in sorted(self._context(ctx).clusters.items()) for block in k.blocks]
        self.freed.extend(freed)
        self.contexts.pop(ctx, None)
        homes = [self._home(block, 0) for block in freed] if self.sizes.shared else []
        return [Move(home, home, self.sizes.block_bytes) for home in homes]

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return self.blocks - self.fresh + len(self.freed)

    def held(self, ctx: int) -> int:
        """Blocks that a context has."""
        return sum(len(k.blocks) for k in self.contexts[ctx].clusters.values()) if ctx in self.contexts else 0

    def like(self) -> "KvMap":
        """A map of the same sizes and addresses, of which nothing is used."""
        out = copy(self)
        out.contexts, out.fresh, out.freed, out.events = defaultdict(_Context), 0, deque(), Counter()
        return out

    def adopt(self, ctx: int, clusters: dict[int, tuple[int, int]], ring: Sequence[int]) -> None:
        """Give the empty context `ctx` entries that another map had.

        `clusters` has the entries of each cluster, and how many of them are at home. `ring` has the clusters of the
        resident ones, oldest first. The map takes blocks by ascending cluster, as `append` does. It does not know the
        order in which entries at home had come.

        Raises `ParamError` if the context holds entries, if too few blocks are free, or if they exceed the quota. Then
        nothing changes.
        """
        needed = sum(-(-entries // self.block_slots) for entries, _ in clusters.values())
        check(needed <= self.free, "blocks", self.blocks, f"must leave {needed} free, and {self.free} are")
        few = f"must be at least {needed}, the blocks that the context had, or 0"
        check(not 0 < self.quota < needed, "quota", self.quota, few)
        check(self._context(ctx).n == 0, "ctx", ctx, "must be empty: clear it first")
        c, old = self.contexts[ctx], 0
        for cluster, (entries, offloaded) in sorted(clusters.items()):
            blocks = [self._take() for _ in range(-(-entries // self.block_slots))]
            c.clusters[cluster] = _Cluster(blocks, list(range(old, old + offloaded)), offloaded)
            old += offloaded
        for n, cluster in enumerate(ring, old):
            c.clusters[cluster].entries.append(n)
        c.ring, c.n = deque(ring), old + len(ring)
        c.kept = dict.fromkeys(range(self.sizes.kept))

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

    def place(self, ctx: int, cluster: int) -> int:
        """Byte address of the place where a cluster's first block is kept."""
        s = self.sizes
        base = self.device_base - self.device_base % s.place_bytes
        return base - (ctx * s.kept + cluster % s.kept + 1) * s.place_bytes

    def take(self, ctx: int, clusters: Iterable[int]) -> list[Burst]:
        """Bursts of a set as `fetch` gives them, from where its blocks are kept or to be kept; they then are."""
        bursts, keeps = self.found(ctx, list(clusters))
        known = self.kept(ctx)
        self.keep(ctx, keeps)
        gone = sum(k is not None and k != self.contexts[ctx].kept[place] for place, k in known.items())
        found = sum(burst.bytes for burst in bursts if burst.near) // self.sizes.block_bytes
        self.events.update({"found": found, "kept": len(keeps), "given up": gone})
        return bursts

    def found(self, ctx: int, clusters: Sequence[int]) -> tuple[list[Burst], list[int]]:
        """Bursts of a set as its blocks are kept now, and the clusters whose first blocks are to be kept."""
        wanted = [(cluster, self.ranges(ctx, cluster)) for cluster in clusters]
        return self.listed(ctx, wanted, self.near(ctx, clusters))

    def kept(self, ctx: int) -> dict[int, int | None]:
        """A copy of what is known of a context's places."""
        return dict(self.contexts[ctx].kept)

    def near(self, ctx: int, clusters: Iterable[int]) -> list[bool]:
        """Of each cluster, whether its place has its first block."""
        kept, places = self._context(ctx).kept, self.sizes.kept
        return [places > 0 and kept.get(cluster % places) == cluster for cluster in clusters]

    def keep(self, ctx: int, clusters: Iterable[int]) -> None:
        """Note that the places of clusters have their first blocks, in this order."""
        self._context(ctx).kept |= {cluster % self.sizes.kept: cluster for cluster in clusters}

    def listed(
        self, ctx: int, wanted: Sequence[tuple[int, list[Range]]], near: Sequence[bool]
    ) -> tuple[list[Burst], list[int]]:
        """Bursts of a set of clusters with these ranges, and the clusters whose first blocks are to be kept.

        near : of each cluster, whether its place has its first block
        """
        s, runs, bursts, keeps = self.sizes, list[Range](), list[Burst](), list[int]()
        for (cluster, ranges), known in zip(wanted, near, strict=True):
            plain = ranges
            if s.kept and ranges and ranges[0].slots == self.block_slots and (known or len(keeps) < s.keeps):
                place, home = self.place(ctx, cluster), self._home(ranges[0].block, 0)
                bursts += self.bursts(runs)
                for b in self._cut([(home, s.block_bytes)]):
                    at = place + (b.addr - home) * s.place_bytes // s.block_bytes
                    bursts.append(Burst(at, b.bytes, near=True) if known else Burst(*b[:2], keep=at))
                keeps += [] if known else [cluster]
                runs, plain = [], ranges[1:]
            runs += plain
        return bursts + self.bursts(runs), keeps

    def fetch(self, ctx: int, clusters: Iterable[int]) -> list[Burst]:
        """Bursts that read every entry of `clusters` that has left the ring, at its home, once, and nothing else.

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
