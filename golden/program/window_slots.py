"""Where the tokens of a window lie: slots of a pool, passes over them, keys to turn.

A policy decides for each block of a stream which tokens it computes and which it keeps (`Decision`). `Slots` turns that
into passes. It knows nothing of keys or queries, so a host can do it before a block is computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import check


@dataclass(frozen=True)
class Decision:
    """What a policy decides for a block, the tokens from `start` to `stop` of the stream.

    rows : tokens to compute, rising; refreshed ones come first, int64 [n]
    positions : their rotary positions, int64 [n]
    keep : tokens that the block may attend to, bool [stop]; row t sees those up to t
    turn : positions by which stored keys move on, int64 [stop]
    """

    index: int
    stage: str
    start: int
    stop: int
    rows: np.ndarray
    positions: np.ndarray
    keep: np.ndarray
    turn: np.ndarray

    @property
    def admitted(self) -> np.ndarray:
        """Tokens of the block that enter the decoder."""
        return self.rows[self.rows >= self.start]

    @property
    def refreshed(self) -> np.ndarray:
        """Earlier tokens that are computed anew."""
        return self.rows[self.rows < self.start]


@dataclass(frozen=True)
class Piece:
    """Tokens that one pass takes through the layers.

    tokens, positions, slots : of each, int64 [n]; the slots are two runs at most
    seen : slots that each may attend to, bool [n, slots of the pool]
    refreshed : how many of them are computed anew
    """

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    seen: np.ndarray
    refreshed: int


@dataclass(frozen=True)
class Turned:
    """Keys that one program turns.

    tokens, distances : tokens, and positions by which their first keys move on, int64 [n]
    slot, place : the first slot and the first place in `kept`; the others follow
    fresh : the keys are not in `kept` yet
    """

    tokens: np.ndarray
    distances: np.ndarray
    slot: int
    place: int
    fresh: bool


@dataclass
class Events:
    """What has happened on a stream, in tokens if not said otherwise.

    pruned : never entered the decoder · dropped : left the window · shifts : blocks at which tokens were dropped
    refreshed : computed anew · turned : keys of a layer that were turned · passes : of tokens through all layers
    wrapped : passes whose slots lie in two runs · evicted : KV blocks of hybrid memory of
        which no token is kept
    scanned : tokens of all layers that a history branch read · carried : of its passes through a layer, those that
        began with the state of an earlier one
    """

    pruned: int = 0
    dropped: int = 0
    shifts: int = 0
    refreshed: int = 0
    turned: int = 0
    passes: int = 0
    wrapped: int = 0
    evicted: int = 0
    scanned: int = 0
    carried: int = 0


class Slots:
    """A pool of `slots` slots that holds a token's entry in each, the same one in every layer.

    most : tokens of a pass at most
    places : keys that `kept` has room for

    For each block call `turns`, then `pieces`. New tokens take the next free slots, round and round. So a window that
    drops its oldest tokens moves through the pool like a ring, past the tokens that stay.
    """

    def __init__(self, slots: int, most: int, places: int):
        self.most, self.places = most, places
        self.token = np.full(slots, -1)  # the token in each slot, -1 for none
        self.slot = np.zeros(0, np.int64)  # the slot of each token; -1 before and after it has one
        self.turned = np.zeros(0, np.int64)  # positions by which each token's key has been turned
        self.place = np.zeros(0, np.int64)  # place of each token in `kept`, -1 for none
        self.used = 0  # places in use
        self.next = 0  # the slot where the search for a free one goes on
        self.events = Events()

    def turns(self, d: Decision) -> list[Turned]:
        """Make room for a block: forget the tokens that the policy has dropped. Returns the keys to turn before it.

        Raises `ParamError` for too few places, and for a token that is turned while it is computed.
        """
        self.slot, self.turned, self.place = (
            np.concatenate([x, np.full(d.stop - len(x), value)])
            for x, value in ((self.slot, -1), (self.turned, 0), (self.place, -1))
        )
        gone = np.flatnonzero((self.slot >= 0) & ~d.keep)
        self.token[self.slot[gone]] = -1
        self.slot[gone] = -1
        e = self.events
        e.dropped += len(gone)
        e.shifts += bool(len(gone))
        e.pruned += d.stop - d.start - len(d.admitted)
        e.refreshed += len(d.refreshed)
        check(not d.turn[d.rows].any(), "turn", d.rows[d.turn[d.rows] != 0].tolist(), "must not name computed tokens")
        moved = np.flatnonzero((self.slot >= 0) & (d.turn != self.turned))
        fresh = moved[self.place[moved] < 0]
        need = self.used + len(fresh)
        check(need <= self.places, "places", self.places, f"must be at least {need}, the keys that are turned so far")
        first = self.place[moved] < 0
        self.place[fresh] = np.arange(self.used, need)
        self.used, self.turned[moved] = need, d.turn[moved]
        e.turned += len(moved)
        starts = (np.diff(self.slot[moved]) != 1) | (np.diff(self.place[moved]) != 1) | (np.diff(first) != 0)
        runs = [run for run in np.split(np.arange(len(moved)), np.flatnonzero(starts) + 1) if len(run)]
        parts = [run[i : i + self.most] for run in runs for i in range(0, len(run), self.most)]
        return [
            Turned(at, d.turn[at], int(self.slot[at[0]]), int(self.place[at[0]]), bool(first[part[0]]))
            for part in parts
            for at in [moved[part]]
        ]

    def pieces(self, d: Decision) -> Iterator[Piece]:
        """Place the block's tokens; the passes that compute it, refreshed tokens first.

        Refreshed tokens keep their slots. Rows see no later token, so it does not matter how rows are cut into passes.
        Raises `ParamError` if there are too few slots.
        """
        new = d.admitted
        free = np.flatnonzero(self.token < 0)
        fits = len(new) <= len(free)
        need = len(self.token) - len(free) + len(new)
        reason = f"must be at least {need}, the tokens in the window at block {d.index}: raise it, or shrink the window"
        check(fits, "slots", len(self.token), reason)
        slots = np.roll(free, -int(np.searchsorted(free, self.next)))[: len(new)]
        if len(slots):
            self.next = (int(slots[-1]) + 1) % len(self.token)
        self.token[slots], self.slot[new] = new, slots
        visible = (self.token >= 0) & d.keep[self.token]
        for at in self._cut(self.slot[d.rows]):
            tokens = d.rows[at]
            seen = visible & (self.token <= tokens[:, None])
            own = self.slot[tokens]
            self.events.passes += 1
            self.events.wrapped += bool((np.diff(own) != 1).any())
            yield Piece(tokens, d.positions[at], own, seen, int((tokens < d.start).sum()))

    def _cut(self, slots: np.ndarray) -> Iterator[slice]:
        """Cut rows into passes: as many as a pass takes, in two runs of slots."""
        start = 0
        while start < len(slots):
            part = slots[start : start + self.most]
            jumps = np.flatnonzero(np.diff(part) != 1)
            stop = start + (int(jumps[1]) + 1 if len(jumps) > 1 else len(part))
            yield slice(start, stop)
            start = stop


def sizes(decisions: list[Decision]) -> tuple[int, int]:
    """Slots that a stream needs: the most tokens in its window at once; and places: keys that are ever turned."""
    known, moved, slots = np.zeros(0, bool), np.zeros(0, bool), 1
    for d in decisions:
        known, moved = (np.concatenate([x, np.zeros(d.stop - len(x), bool)]) for x in (known, moved))
        known &= d.keep
        moved |= known & (d.turn != 0)
        known[d.admitted] = True
        slots = max(slots, int(known.sum()))
    return slots, int(moved.sum())
