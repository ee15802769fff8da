"""Predicts how many cycles the HCU compares for each key, and when each result leaves."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from openvrex.hdl.params import HcuParams
from openvrex.sim.units.table_time import Ask, Offer, Put, Requests, Room, alone

JOIN, CLEAR, SWITCH, NEWEST = 0, 1, 2, 3
ORDERS = CLEAR, SWITCH
Beat = tuple[int, int, int, int]  # op, context, hash, last


@dataclass
class HcuCycles:
    """A run of the HCU, which grows as it goes.

    taken : cycle in which the HCU takes each beat on `i`
    compares : cycles in which the accumulators work, per beat
    out : cycle from which each beat is offered on `o`
    waits : cycles in which a visit waited for clusters of its tile
    bound : cycles without early abandoning, tokens x clusters x N_hp / (N_HCU-h x N_HCU-w)
    """

    taken: list[int] = field(default_factory=list)
    compares: list[int] = field(default_factory=list)
    out: list[int] = field(default_factory=list)
    waits: int = 0
    bound: float = 0.0


class HcuTime:
    """Time view of `hdl.retrieval.hcu.Hcu`. It keeps the hash bits of contexts, because distances decide the cycles.

    tables : hash bits of each context's clusters, [clusters, chunks]
    """

    def __init__(self, p: HcuParams, th_hd: int):
        self.p, self.th_hd = p, th_hd
        self.tables: dict[int, np.ndarray] = {}

    def clear(self, ctx: int) -> None:
        """Empties the table of a context."""
        self.tables.pop(ctx, None)

    def key(self, ctx: int, key_hash: int) -> tuple[int, bool]:
        """Cycles of comparing a key that is a batch of its own, and whether it opens a cluster; updates the table."""
        table = self._table(ctx)
        visits, opens = _Key(self, table, key_hash).resolve(table)
        if opens:
            self._open(ctx, key_hash)
        return sum(int(v.sum()) for v in visits), opens

    def run(self, hashes: Iterable[int], latency: int = 8) -> HcuCycles:
        """Cycles of clustering `hashes` (integers of n_hp bits) in context 0, which is cleared first."""
        self.clear(0)
        keys = list(hashes)
        return self.beats([(JOIN, 0, key_hash, int(k == len(keys) - 1)) for k, key_hash in enumerate(keys)], latency)

    def beats(self, beats: Sequence[Beat], latency: int = 8) -> HcuCycles:
        """Cycles of beats that are offered without a gap, on a memory that answers `latency` cycles after an ask."""
        run = HcuCycles()
        alone(self.requests(beats, run), latency)
        return run

    def requests(self, beats: Sequence[Beat], run: HcuCycles, offered: Sequence[int] | None = None) -> Requests:
        """The generator of requests (`sim.units.table_time`) for beats, which enters its cycles into `run`.

        offered : first cycle in which each beat is offered on `i`, at the earliest behind the beat before it
        """
        offered = offered or [0] * len(beats)
        state = _State()
        for first, keys in self._batches(beats):
            last = first + len(keys) - 1
            state.collect(self.p, run, offered[first : last + 1])
            full = len(keys) == self.p.frame or keys[-1][0] in ORDERS or keys[-1][3]
            closed = state.taken + 1 if full else max(offered[last + 1], state.taken + 1) + 1
            yield from self._batch(keys, run, state, closed)

    def _batches(self, beats: Sequence[Beat]) -> Iterator[tuple[int, Sequence[Beat]]]:
        """The batches: index of the first beat, and the beats. Raises `ValueError` if the last batch does not end."""
        at = 0
        while at < len(beats):
            end = at + 1
            while not (beats[end - 1][0] in ORDERS or beats[end - 1][3] or end - at == self.p.frame):
                if end == len(beats):
                    raise ValueError(f"beats: the last of {end} keys must end its frame, or its batch waits")
                if beats[end][:2] != beats[at][:2]:
                    break
                end += 1
            yield at, beats[at:end]
            at = end

    def _batch(self, keys: Sequence[Beat], run: HcuCycles, state: "_State", closed: int) -> Requests:
        """One batch: its table's level and tiles, the visits of its keys, its results."""
        p, (op, ctx, _, _) = self.p, keys[0]
        level = (yield Ask(max(state.idle, state.first + 1))).first
        state.start = max(level + 1, closed)
        old = self._table(ctx) if op not in ORDERS else np.zeros((0, p.chunks), np.uint64)
        first = max(0, len(old) - 1) // p.tile * p.tile if op == NEWEST else 0  # cluster that keys look at
        tiles = _Tiles(p, len(old) - first)
        yield from tiles.ask(level + 1)
        searches = [_Key(self, old, key_hash, first) for _, _, key_hash, _ in keys] if op not in ORDERS else []
        load = state.start + 1
        for tile in range(tiles.number - 1):
            for k, search in enumerate(searches):
                if not k:
                    yield from tiles.enter(tile, load)
                load = tiles.finish(tile, search.visits[tile], load)
        state.freed.clear()
        for k, (_, _, key_hash, _) in enumerate(keys):
            if not k:
                yield from tiles.enter(tiles.number - 1, load)
            visits: list[np.ndarray] = []
            opens, here = False, self._table(ctx)
            if op not in ORDERS:
                run.bound += (len(here) - first) * p.n_hp / (p.n_h * p.n_w)
                visits, opens = searches[k].resolve(here)
            finish = tiles.finish(tiles.number - 1, visits[-1], load) if visits else load + 1
            finish = load = out = max(finish, (yield Room()).cycle)
            if opens:
                self._open(ctx, key_hash)
                load = (yield Put(finish + 1)).cycle
            if opens or op == CLEAR:
                out = (yield Put(load + 1)).cycle
            yield Offer(out + 1)
            state.freed.append(finish)
            run.compares.append(sum(int(v.sum()) for v in visits))
            run.out.append(out + 1)
        run.waits += tiles.waits
        if op == CLEAR:
            self.clear(ctx)
        state.idle = max(out + 1, tiles.all_here, level + 1) + 1

    def _table(self, ctx: int) -> np.ndarray:
        return self.tables.get(ctx, np.zeros((0, self.p.chunks), np.uint64))

    def _open(self, ctx: int, key_hash: int) -> None:
        self.tables[ctx] = np.concatenate([self._table(ctx), self.words(key_hash)[None]])

    def words(self, key_hash: int) -> np.ndarray:
        """The chunks of a hash."""
        p = self.p
        return np.array([key_hash >> c * p.n_w & (1 << p.n_w) - 1 for c in range(p.chunks)], np.uint64)


@dataclass
class _State:
    """What one batch leaves to the next.

    idle : first cycle in which the unit can ask for a level
    start : cycle in which the batch before left the collection, and room for the next one
    first, taken : cycles in which the first and the final key of the batch being collected were taken
    freed : cycles in which keys of the batch before left the current hash-bit memory
    """

    idle: int = 0
    start: int = -1
    first: int = -1
    taken: int = -1
    freed: list[int] = field(default_factory=list)

    def collect(self, p: HcuParams, run: HcuCycles, offered: Sequence[int]) -> None:
        """Take the keys of a batch."""
        for k, cycle in enumerate(offered):
            must_go = k + len(self.freed) - p.frame + 1  # keys of the batch before that must have left
            room = self.freed[must_go - 1] + 1 if must_go > 0 else 0
            self.taken = max(cycle, self.taken + 1, self.start + 1, room)
            if not k:
                self.first = self.taken
            run.taken.append(self.taken)


class _Tiles:
    """The tiles of a batch's table: when they are asked for, when their clusters are there.

    number : tiles, 1 for an empty table
    here : first cycle in which each group can be read
    all_here : first cycle in which all clusters are on chip
    waits : cycles in which visits waited for clusters
    """

    def __init__(self, p: HcuParams, clusters: int):
        self.p, self.clusters = p, clusters
        self.number = max(1, -(-clusters // p.tile))
        self.here: list[np.ndarray] = []
        self.all_here = self.waits = 0
        self._taken = -1

    def ask(self, cycle: int) -> Requests:
        """Ask for the next tile, from `cycle` on."""
        p, first = self.p, len(self.here) * self.p.tile
        if first < self.clusters:
            n = min(p.tile, self.clusters - first)
            answer = yield Ask(max(cycle, self._taken + 1), n)
            self._taken = answer.cycle
            last = np.minimum(np.arange(p.n_h, n + p.n_h, p.n_h), n) - 1  # last cluster of each group
            self.here.append(answer.first + last + 1)
            self.all_here = answer.first + n

    def enter(self, tile: int, cycle: int) -> Requests:
        """The first visit to a tile is loaded: now the next tile but the one that is there may be asked for."""
        if tile == 0:
            yield from self.ask(0)
        elif tile + 1 < self.number:
            yield from self.ask(cycle + 1)

    def finish(self, tile: int, visited: np.ndarray, load: int) -> int:
        """Last cycle of a visit that is loaded in cycle `load`, and that compares each group for `visited` cycles. A
        cycle behind the last comparison ends it.
        """
        total = int(visited.sum()) + 1
        if tile >= len(self.here):
            return load + total
        here = self.here[tile][: len(visited)]
        waits = max(0, int((here - (visited.cumsum() - visited)[: len(here)]).max()) - load)
        self.waits += waits
        return load + waits + total


class _Key:
    """A key's search through the table as its batch found it."""

    def __init__(self, time: HcuTime, old: np.ndarray, key_hash: int, first: int = 0):
        p = time.p
        self.time, self.key = time, time.words(key_hash)
        self.last = (len(old) - 1) // p.tile * p.tile if len(old) else 0  # first cluster of the last tile
        # The table may fill up in this batch.
        self.best = self.limit = p.n_hp + 1 if len(old) > p.clusters - p.frame else time.th_hd
        self.visits: list[np.ndarray] = []  # cycles for each group, tile by tile
        visited = self._search(old[first : self.last])
        for at in range(0, (self.last - first) // p.n_h, p.tile // p.n_h):
            self.visits.append(visited[at : at + p.tile // p.n_h] if at < len(visited) else np.ones(1, np.int64))

    def resolve(self, table: np.ndarray) -> tuple[list[np.ndarray], bool]:
        """The visits to all tiles, the last as it is in `table`, and whether the key opens a cluster."""
        if not len(table):
            return [], True
        ended = self.best == 0 and self._ends_at_zero
        visited = np.ones(1, np.int64) if ended else self._search(table[self.last :])
        return [*self.visits, visited], self.best >= self.time.th_hd and len(table) < self.time.p.clusters

    @property
    def _ends_at_zero(self) -> bool:
        return self.time.p.early_abandon and self.time.th_hd != 0

    def _search(self, table: np.ndarray) -> np.ndarray:
        """Cycles for each group of `table` [used, chunks]; updates the best distance."""
        p, used = self.time.p, len(table)
        groups = -(-used // p.n_h)
        if not groups:
            return np.zeros(0, np.int64)
        partial = np.cumsum(np.bitwise_count(table ^ self.key), axis=1, dtype=np.int64)
        pad = groups * p.n_h - used
        partial = np.pad(partial, ((0, pad), (0, 0)), constant_values=p.n_hp + 2)
        least = partial.reshape(groups, p.n_h, p.chunks).min(1)  # least distance in each group, after each chunk
        # A group must beat the best of the groups before it. A group that the HCU abandons could not have improved it.
        best = np.minimum.accumulate(np.concatenate([[self.best], least[:, -1]]))
        self.best = int(best[-1])
        if not p.early_abandon:
            return np.full(groups, p.chunks)
        # Lower bound: the bits to come differ in at least as many places as their numbers of ones differ.
        ones = np.bitwise_count(np.concatenate([table, self.key[None]])).astype(np.int64)
        rest = ones.sum(1, keepdims=True) - ones.cumsum(1)
        rest = np.pad(np.abs(rest[:-1] - rest[-1]), ((0, pad), (0, 0)))
        at_least = (partial + rest).reshape(groups, p.n_h, p.chunks).min(1)
        beaten = at_least >= best[:-1, None]
        visited = np.where(beaten.any(1), beaten.argmax(1) + 1, p.chunks)
        zero = np.flatnonzero(least[:, -1] == 0)
        return visited[: zero[0] + 1] if self._ends_at_zero and len(zero) else visited
