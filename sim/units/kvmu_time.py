"""Predicts when the KVMU places each entry, and when it emits each burst of a set."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from golden.retrieval.kvmap import KvMap, Range
from hdl.params import KvmuParams
from hdl.queues import RANGES

APPEND, CLEAR = 0, 1


@dataclass
class KvmuCycles:
    """Cycle of each transfer on each stream, without stalls. The first beat is offered in cycle 0.

    a : APPENDs and CLEARs
    w, x : replies and offloads
    f, b : clusters of sets, and their bursts
    free : first cycle in which the KVMU could take a further beat of `a`, fetches not counted
    """

    a: list[int] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    x: list[int] = field(default_factory=list)
    f: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    free: int = 0


class KvmuTime:
    """Time view of `hdl.retrieval.kvmu.Kvmu`. It keeps a golden map `kv` of the same parameters.

    Both inputs are offered without a gap, and no output stalls. The KVMU serves `a` before `f`.
    """

    def __init__(self, p: KvmuParams, device_base: int = 0, home_base: int = 0):
        self.p = p
        self.kv = KvMap(
            clusters=p.clusters,
            blocks=p.blocks,
            block_slots=p.block_slots,
            recent=p.recent,
            entry_bytes=p.entry_bytes,
            boundary=p.boundary,
            n_ctx=p.n_ctx,
            device_base=device_base,
            home_base=home_base,
        )
        self._level = [0] * p.n_ctx  # rows in use: the highest cluster of each context, plus 1
        self._ring: list[list[int]] = [[] for _ in range(p.n_ctx)]  # cluster of each appended entry, by context

    def run(self, ops: Iterable[tuple[int, int, int]], sets: Iterable[tuple[int, list[int]]] = ()) -> KvmuCycles:
        """Cycles of `ops` on `a`, then of `sets` on `f`.

        ops : (APPEND or CLEAR, ctx, cluster)
        sets : (ctx, ascending clusters); an empty set is one beat
        """
        out = KvmuCycles()
        cycle, moving = 0, False
        for op, ctx, cluster in ops:
            out.a.append(cycle)
            moving = False
            if op == CLEAR:
                self.kv.clear(ctx)
                cycle += 2 + self._level[ctx]
                self._level[ctx], self._ring[ctx] = 0, []
                continue
            next_block = self._starts_block(ctx)
            placed = self.kv.append(ctx, cluster)
            if not placed.ok:
                out.w.append(cycle + 2)
                cycle += 2
                continue
            skipped = max(0, cluster - self._level[ctx])
            self._level[ctx] = max(self._level[ctx], cluster + 1)
            self._ring[ctx].append(cluster)
            cycle += 2 + skipped
            moving = placed.move is not None
            if moving:
                cycle += 2 + next_block
                out.x.append(cycle)
            out.w.append(cycle + moving)
        out.free = cycle
        self._fetch(sets, cycle + moving, out)
        return out

    def _starts_block(self, ctx: int) -> bool:
        """Whether the next offload of `ctx` starts a further block of its cluster."""
        ring, recent = self._ring[ctx], self.p.recent
        if len(ring) < recent:
            return False
        offloaded = self.kv.contexts[ctx].clusters[ring[-recent]].offloaded
        return offloaded > 0 and offloaded % self.p.block_slots == 0

    def _fetch(self, sets: Iterable[tuple[int, list[int]]], cycle: int, out: KvmuCycles) -> None:
        """Appends the cycles of the fetches to `out`.

        The walk puts a range a cycle into the queue, from which the address stage and the merger take them.
        """
        popped: list[int] = []  # cycle in which each range left the queue
        taken = -1  # cycle in which the merger took the last range
        merger = _Merger(self.p.boundary, out.b)
        for ctx, clusters in sets:
            starts = True
            previous = None
            for i, cluster in enumerate(clusters or [None]):
                out.f.append(cycle)
                ranges = [] if cluster is None else self.kv.ranges(ctx, cluster)
                final = i == max(0, len(clusters) - 1)
                cycle += 1
                if not ranges and not final:
                    continue
                for j, r in enumerate(ranges or [None]):
                    cycle += bool(j)
                    if len(popped) >= RANGES:
                        cycle = max(cycle, popped[-RANGES] + 1)
                    popped.append(max(cycle + 1, taken))
                    last = final and j == max(0, len(ranges) - 1)
                    join = not starts and (r is None or (previous is not None and r.block == previous + 1))
                    taken = merger.take(popped[-1] + 1, self._span(r), join, last)
                    starts = False
                    if r is not None:
                        previous = r.block if r.slots == self.p.block_slots else None
        merger.drain()

    def _span(self, r: Range | None) -> tuple[int, int]:
        """First byte and end of a range of blocks in home memory; (0, 0) for an empty set."""
        if r is None:
            return 0, 0
        start = self.kv.home_base + r.block * self.p.block_bytes
        return start, start + r.slots * self.p.entry_bytes


class _Merger:
    """The merger: joins adjacent ranges into a run and emits one piece up to the boundary per cycle.

    It holds the last piece of a run until it has seen whether the next range continues the run.
    """

    def __init__(self, boundary: int, beats: list[int]):
        self.boundary, self.beats = boundary, beats
        self.valid = self.last = False
        self.start = self.end = self.cycle = 0

    def take(self, cycle: int, span: tuple[int, int], join: bool, last: bool) -> int:
        """Cycle in which the merger takes a range that is offered from `cycle` on."""
        while self.cycle < cycle and self.valid and (self._crosses() or self.last):
            self._emit()
        self.cycle = max(self.cycle, cycle)
        while self.valid and not join and self._crosses():
            self._emit()
        now = self.cycle
        if self.valid and (not join or self._crosses()):
            self._emit()
        self.cycle, self.valid, self.last = now + 1, True, last
        if not join:
            self.start, self.end = span
        elif span[1] > span[0]:
            self.end = span[1]
        return now

    def drain(self) -> None:
        """Emits the rest of the run."""
        while self.valid:
            self._emit()

    def _crosses(self) -> bool:
        return self.end > self._stop()

    def _stop(self) -> int:
        return (self.start // self.boundary + 1) * self.boundary

    def _emit(self) -> None:
        self.beats.append(self.cycle)
        self.cycle += 1
        self.valid = self._crosses()
        self.start = self._stop()
