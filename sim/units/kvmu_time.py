"""Predicts when the KVMU places each entry, and when it emits each burst of a set."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from openvrex.golden.retrieval.kvmap import KvMap, Range
from openvrex.hdl.params import KvmuParams
from openvrex.sim.units.table_time import Ask, Put, Requests, Taken, alone

APPEND, CLEAR, SWITCH = 0, 1, 2
FIFO = 2  # cycles from an item to the output of the memory in which it waits (`hdl.ram_fifo`)
# First cycle in which a beat of a set is offered: of its number, and the cycle in which the one before was taken.
Offered = Callable[[int, int], int]


def _at_once(number: int, taken: int) -> int:
    """Beats are offered without a gap."""
    return taken + 1


@dataclass
class KvmuCycles:
    """Cycle of each transfer on each stream, without stalls of these streams.

    a : APPENDs, CLEARs and SWITCHes
    w, x, c : replies, offloads and words of counts
    f, b : clusters of sets, and their bursts
    """

    a: list[int] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    x: list[int] = field(default_factory=list)
    c: list[int] = field(default_factory=list)
    f: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)


@dataclass
class Roll:
    """The counts that come round and round, of the context of the last SWITCH.

    clusters : of the context
    room : words for which the WTU's ring has room, and no read
    at : first cluster of the next read
    """

    clusters: int
    room: int
    at: int = 0


class KvmuTime:
    """Time view of `hdl.retrieval.kvmu.Kvmu`.

    Requests and fetches are each exact while the other side does nothing, because both share the port to the tables.

    kv : an empty golden map of the same parameters, which the view fills; by default with bases of 0 and all blocks
    """

    def __init__(self, p: KvmuParams, kv: KvMap | None = None):
        self.p = p
        self.kv = kv or KvMap(p.map_sizes())
        self._level: defaultdict[int, int] = defaultdict(int)  # clusters of each context
        self._pooled = False  # the pool's record was read
        self.roll: Roll | None = None
        self.free = 0  # first cycle in which the KVMU can take a further beat of `a`
        self._port = 0  # first cycle in which the unit can keep another read

    def run(
        self, ops: Iterable[tuple[int, int, int]], sets: Iterable[tuple[int, list[int]]] = (), latency: int = 8
    ) -> KvmuCycles:
        """Cycles of `ops` on `a`, and then of `sets` on `f`, with tables of constant latency; the WTU uses no word.

        The first beat of each is offered in cycle 0, and the others follow without a gap.

        ops : (APPEND, CLEAR or SWITCH, ctx, cluster)
        sets : (ctx, ascending clusters); an empty set is one beat
        """
        out = KvmuCycles()
        self.begin()
        alone(self.serve(ops, out), latency, self.p.count_lanes)
        self.begin()
        alone(self.fetch(sets, out), latency)
        return out

    def reset(self) -> None:
        """After a reset the unit reads the pool's record again. Tables are in memory, and stay."""
        self._pooled = False

    def begin(self) -> None:
        """Starts to count cycles at 0 again, in a unit with nothing in work."""
        self.free = self._port = 0

    def serve(self, ops: Iterable[tuple[int, int, int]], out: KvmuCycles) -> Requests:
        """The requests to the tables of beats that are offered without a gap; appends their cycles to `out`."""
        for op, ctx, cluster in ops:
            yield from self.beat(op, ctx, cluster, 0, out)

    def beat(self, op: int, ctx: int, cluster: int, cycle: int, out: KvmuCycles) -> Requests:
        """The requests of one beat of `a`, which is offered from `cycle` on."""
        now = max(cycle, self.free)
        if op != SWITCH and not self._pooled:
            pool = yield from self._ask(now + 1)
            now, self._pooled = pool.first + 1, True
        out.a.append(now)
        match op:
            case 0:  # APPEND
                end = yield from self._append(ctx, cluster, now + 1, out)
            case 1:  # CLEAR
                end = yield from self._clear(ctx, now + 1, out)
            case _:
                end = yield from self._switch(self._level[ctx], now + 1, out)
        out.w.append(end)
        self.free = end + 1

    def _ask(self, cycle: int, items: int = 1, counts: bool = False) -> Generator[Ask | Put, Taken, Taken]:
        """A read that a part of the unit makes in `cycle`; the port offers it a cycle later."""
        taken = yield Ask(max(cycle, self._port) + 1, items, counts)
        self._port = taken.cycle
        return taken

    def _put(self, cycle: int, items: int) -> Generator[Ask | Put, Taken, int]:
        """Writes from `cycle` on; the cycle behind the last."""
        for _ in range(items):
            taken = yield Put(cycle)
            cycle = taken.cycle + 1
        return cycle

    def _append(self, ctx: int, cluster: int, cycle: int, out: KvmuCycles) -> Generator[Ask | Put, Taken, int]:
        """An APPEND whose first read is made in `cycle`; the cycle of its reply."""
        kv = self.kv
        c = kv.contexts[ctx]
        k = c.clusters.get(cluster)
        read = yield from self._ask(cycle)
        for _ in range(0 if cluster == self._level[ctx] else 2):
            read = yield from self._ask(read.cycle)
        self._level[ctx] = max(self._level[ctx], cluster + 1)
        oldest = c.ring[0] if len(c.ring) == kv.recent else None
        at_home = 0 if oldest is None else c.clusters[oldest].offloaded
        starts_block = at_home > 0 and at_home % kv.block_slots == 0
        known, freed = len(k.blocks) if k else 0, len(kv.freed)
        placed = kv.append(ctx, cluster)
        cycle = read.first + 2
        if not placed.ok:
            return (yield from self._put(cycle, 1))
        if freed > len(kv.freed) > 0:
            read = yield from self._ask(cycle)
            cycle = cycle + 1 if placed.move else read.first + 1
        if oldest is not None:
            read = yield from self._ask(cycle)
            cycle = read.first + 1
            if oldest == cluster:
                cycle += 1
            else:
                read = yield from self._ask(cycle)
                cycle = read.first + 1
            if starts_block:
                read = yield from self._ask(cycle)
                cycle = read.first + 1
            else:
                cycle += 1
            out.x.append(cycle)
            cycle += 1
        grows = len(kv.contexts[ctx].clusters[cluster].blocks) > known
        puts = 4 + (oldest not in (None, cluster)) + grows + (grows and (known > 0 or self.p.kept > 0))
        return (yield from self._put(cycle, puts))

    def _wipe(self, blocks: int, cycle: int, out: KvmuCycles) -> Generator[Ask | Put, Taken, int]:
        """Wipes blocks from `cycle` on; the cycle in which the last is given."""
        out.x.append(cycle)
        for _ in range(blocks - 1):
            read = yield from self._ask(cycle + 1)
            cycle = read.first + 2
            out.x.append(cycle)
        return cycle

    def _clear(self, ctx: int, cycle: int, out: KvmuCycles) -> Generator[Ask | Put, Taken, int]:
        """A CLEAR that begins in `cycle`; the cycle of its reply."""
        kv, clusters = self.kv, self._level.pop(ctx, 0)
        chains, freed = kv.contexts[ctx].clusters, bool(kv.freed)
        for start in range(0, clusters, self.p.rows):
            group = range(start, min(start + self.p.rows, clusters))
            comes = []
            cycle += 1
            for _ in group:
                read = yield from self._ask(cycle)
                comes.append(read.first)
                cycle = read.cycle
            offered = 0
            for cluster, came in zip(group, comes, strict=True):
                cycle = max(cycle, came + FIFO, offered)
                if cluster in chains:
                    if self.p.shared:
                        cycle = yield from self._wipe(len(chains[cluster].blocks), cycle + 1, out)
                    cycle = yield from self._put(max(cycle + 1, comes[-1] + 1), 1 + freed)
                    freed = True
                else:
                    cycle += 1
                offered = cycle
        kv.clear(ctx)
        return (yield from self._put(cycle + 1, 2))

    def _switch(self, clusters: int, cycle: int, out: KvmuCycles) -> Generator[Ask | Put, Taken, int]:
        """A SWITCH whose first read is made behind `cycle`; the cycle of its reply."""
        p, end = self.p, cycle + 2
        roll = Roll(clusters, p.ring)
        while clusters and roll.room >= p.read_words and (clusters > p.counts or roll.at or roll.room == p.ring):
            read = yield from self._ask(cycle + 1, self._read_counts(roll), counts=True)
            out.c += read.comes
            cycle, end = read.cycle - 1, read.comes[-1] + 1
        self.roll = roll if clusters > p.counts else None
        return end

    def _read_counts(self, roll: Roll) -> int:
        """Goes on to the next read of counts; the number of counts of this one."""
        p = self.p
        counts = min(p.read_counts, roll.clusters - roll.at)
        roll.room -= -(-counts // p.count_lanes)
        roll.at = (roll.at + counts) % roll.clusters
        return counts

    def use(self, cycle: int, out: KvmuCycles) -> Requests:
        """The reads that follow when the WTU uses a word of counts in `cycle`, which is not before the last use."""
        assert self.roll is not None, "the counts of this context come once"
        self.roll.room += 1
        while self.roll.room >= self.p.read_words:
            read = yield from self._ask(cycle + 1, self._read_counts(self.roll), counts=True)
            out.c += read.comes
            cycle = read.cycle - 1

    def fetch(
        self, sets: Iterable[tuple[int, list[int]]], out: KvmuCycles, cycle: int = 0, offered: Offered = _at_once
    ) -> Requests:
        """The requests of sets that follow each other without a gap from `cycle` on; appends their cycles to `out`."""
        walk = _Walk(_Merger(self.p.boundary, out.b))
        for ctx, clusters in sets:
            cycle = max(cycle, walk.popped[-1] + 1 if walk.popped else 0)
            ranges = [self.kv.ranges(ctx, cluster) for cluster in clusters]
            _, keeps = self.kv.found(ctx, clusters)
            near = self.kv.near(ctx, clusters)
            alone = [self._alone(ctx, cluster, known, keeps) for cluster, known in zip(clusters, near, strict=True)]
            cycle = yield from self._fetch_set(ranges, alone, cycle, walk, out.f, offered)
            if keeps:
                first = max(walk.popped[-1] + 1, walk.keeps + FIFO)
                cycle = max(cycle, (yield from self._put(first, len(keeps))))
                self.kv.keep(ctx, keeps)
        walk.merger.drain()

    def _alone(self, ctx: int, cluster: int, near: bool, keeps: list[int]) -> int:
        """Whether a cluster's first block is kept (1) or to be kept (2), and so joins no other; otherwise 0."""
        ranges = self.kv.ranges(ctx, cluster)
        if not ranges or ranges[0].slots < self.p.block_slots:
            return 0
        return 1 if near else 2 * (cluster in keeps)

    def _fetch_set(
        self,
        clusters: list[list[Range]],
        alone: list[int],
        cycle: int,
        walk: "_Walk",
        beats: list[int],
        offered: Offered,
    ) -> Generator[Ask | Put, Taken, int]:
        """Fetches the ranges of a set whose first beat is offered from `cycle` on; the cycle behind the last beat.

        The walk goes on until it must ask for a block. That goes before the rows of beats that come later, and before
        the place of kept blocks that is asked for behind a row. `alone` : as `_alone` says, of each cluster
        """
        waiting: list[tuple[int, list[Range]]] = []  # cycle from which each beat's row can be used, its ranges
        walk.done, walk.previous, walk.starts, walk.keeps = 0, None, True, -1
        todo = [*clusters] or [[]]
        before, second = len(walk.popped), None
        while True:
            self._go_on(waiting, walk, len(todo), alone)
            taken = len(waiting)
            room = before + taken - self.p.rows  # the beat that must be done before the next is taken
            row: int | None = None
            if second is not None:
                row = max(second, self._port)
            elif taken < len(todo) and room < len(walk.popped):
                row = max(cycle, walk.popped[room] + 1 if room >= 0 else 0, self._port if clusters else 0)
            if walk.want is not None and (row is None or walk.want <= row):
                cycle = max(cycle, walk.want + 1, self._port + 1)
                second = None if second is None else max(second, walk.want + 1, self._port + 1)
                read = yield from self._ask(walk.want)
                walk.at, walk.want = read.first + 1, None
            elif row is not None and clusters and self.p.kept and second is None:
                yield from self._ask(row)
                second = row + 1
            elif row is not None:
                second = None
                beats.append(row)
                cycle = offered(taken + 1, row) if taken + 1 < len(todo) else row + 1
                come = row + 1
                if clusters:
                    read = yield from self._ask(row)
                    come = read.first + FIFO
                waiting.append((come, todo[taken]))
            else:
                return cycle

    def _go_on(
        self,
        waiting: list[tuple[int, list[Range]]],
        walk: "_Walk",
        beats: int,
        alone: list[int],
    ) -> None:
        """Gives the ranges of beats whose rows have been asked for, until a block must be asked for."""
        while walk.want is None and walk.done < len(waiting):
            come, ranges = waiting[walk.done]
            last = walk.done == beats - 1
            if walk.at is None:
                walk.at, walk.block = max(come, walk.popped[-1] + 1 if walk.popped else 0), 0
            if ranges or last:
                block = ranges[walk.block] if ranges else None
                final = not ranges or walk.block == len(ranges) - 1
                walk.at = max(walk.at, walk.taken)
                apart = alone[walk.done] if ranges and walk.block == 0 else 0
                walk.give(self._span(block), block, last and final, self.p.block_slots, apart)
                if not final:
                    walk.block += 1
                    walk.want = walk.at + 1
                    return
            walk.popped.append(walk.at)
            walk.at = None
            walk.done += 1

    def _span(self, r: Range | None) -> tuple[int, int]:
        """First byte and end of a range of blocks in home memory; (0, 0) for an empty set."""
        if r is None:
            return 0, 0
        size = self.kv.home_bytes
        start = self.kv.home_base + r.block * self.p.block_slots * size
        return start, start + r.slots * size


@dataclass
class _Walk:
    """The walk over the blocks of a set's clusters.

    popped : cycle in which each beat of all sets was done
    done : beats of this set that are done
    at, block : cycle from which the block reached is known, and its number in the cluster; None: a new cluster
    want : cycle in which the block behind must be asked for; None: it need not
    taken : cycle in which the merger took the last range
    previous : the range before, if it was a whole block
    starts : the next range is the first of its set
    keeps : cycle in which the first block to be kept was given
    """

    merger: "_Merger"
    popped: list[int] = field(default_factory=list)
    done: int = 0
    at: int | None = None
    block: int = 0
    want: int | None = None
    taken: int = -1
    previous: int | None = None
    starts: bool = True
    keeps: int = -1

    def give(self, span: tuple[int, int], block: Range | None, last: bool, slots: int, alone: int) -> None:
        """Gives a range in cycle `at`, or the end of a set. alone : as `_alone` says"""
        assert self.at is not None
        join = not self.starts and (block is None or (not alone and self.previous == block.block - 1))
        self.taken = self.merger.take(self.at + 1, span, join, last)
        self.starts = False
        if alone == 2 and self.keeps < 0:
            self.keeps = self.at
        if block is not None:
            self.previous = block.block if block.slots == slots and not alone else None


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
