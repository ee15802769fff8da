"""Proofs by induction over all states of small pools: references, slots of a window, prefetch and completion, splits.

Each proof enumerates every state that satisfies its invariant, reachable or not, and every call. If each call keeps the
invariant and the first state has it, then no number of calls breaks it: the proof is unbounded in calls, at the stated
size. Faulty classes show that each invariant can fail.
"""

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations, permutations, product

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.block_allocator import BlockPool, PoolError
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.ledger import Ledger
from openvrex.golden.policies.mosaic_hardware import HardwareLayer
from openvrex.golden.policies.mosaic_layer import Layer
from openvrex.golden.policies.resv_policy import ReSVPolicy, ReSVPolicyParams
from openvrex.golden.policies.store import DEVICE, HOST, PRUNED, Store
from openvrex.golden.program.window_slots import Decision, Slots
from openvrex.golden.retrieval.resv import Retrieved

# Reference counts. A call compares a count with how often it names the block, and with 0. Calls name up to two blocks,
# so a count of 3 stands for every larger one.

BLOCKS, MOST, KEYS = 3, 3, (b"a", b"b")


def pools(kind: type[BlockPool] = BlockPool) -> Iterator[BlockPool]:
    """Every state of a pool that satisfies the invariant."""
    for unused in range(BLOCKS + 1):
        for free in (f for n in range(unused + 1) for f in permutations(range(unused), n)):
            held = [b for b in range(unused) if b not in free]
            for counts in product(range(1, MOST + 1), repeat=len(held)):
                for n in range(min(len(KEYS), unused) + 1):
                    for keys, blocks in product(combinations(KEYS, n), permutations(range(unused), n)):
                        pool = kind(BLOCKS)
                        pool._unused, pool._free = unused, dict.fromkeys(free)
                        pool.refs = dict(zip(held, counts, strict=True))
                        pool._block_of = dict(zip(keys, blocks, strict=True))
                        pool._key_of = dict(zip(blocks, keys, strict=True))
                        yield pool


def state(p: BlockPool) -> tuple:
    return dict(p.refs), list(p._free), p._unused, dict(p._block_of), dict(p._key_of)


def sound(p: BlockPool) -> bool:
    """Every block is unused, free or held by somebody, and a key names one block that is not unused."""
    known = sorted([*p.refs, *p._free])
    named = {block: key for key, block in p._block_of.items()}
    counts = all(n >= 1 for n in p.refs.values())
    return counts and known == list(range(p._unused)) and named == p._key_of and set(named) <= set(known)


def calls() -> Iterator[tuple[str, tuple]]:
    """Every call on a pool, those that must be refused too."""
    some = [list(x) for n in range(3) for x in product(range(BLOCKS + 1), repeat=n)]
    yield from (("allocate", (n,)) for n in range(BLOCKS + 2))
    yield from ((name, (blocks,)) for name in ("share", "free") for blocks in some)
    yield from (("cache", (block, key)) for block in range(BLOCKS + 1) for key in KEYS)


def broken(kind: type[BlockPool], stop: bool = False) -> tuple[int, int, int]:
    """Calls that keep the invariant and do what they say, calls that are refused, and those that break it."""
    kept = refused = bad = 0
    for name, args in calls():
        for p in pools(kind):
            before = state(p)
            try:
                got = getattr(p, name)(*args)
            except PoolError:
                refused += 1
                bad += state(p) != before
                continue
            named = got if name == "allocate" else args[0] if name in ("share", "free") else []
            change = -1 if name == "free" else 1
            want = {b: before[0].get(b, 0) + change * named.count(b) for b in {*before[0], *named}}
            fine = sound(p) and p.refs == {b: n for b, n in want.items() if n}
            kept, bad = kept + fine, bad + (not fine)
            if bad and stop:
                return kept, refused, bad
    return kept, refused, bad


def test_a_reference_count_never_falls_below_zero():
    """By induction: a count is how often the block is held, and it is gone at zero."""
    assert sound(BlockPool(BLOCKS))
    kept, refused, bad = broken(BlockPool)
    assert not bad
    assert kept > 20_000
    assert refused > 20_000


class Unchecked(BlockPool):
    """Frees what is not held so often."""

    def free(self, blocks):
        for block in blocks:
            self.refs[block] = self.refs.get(block, 0) - 1
            if not self.refs[block]:
                del self.refs[block]
                self._free[block] = None
        return []


class Reborn(BlockPool):
    """Shares a block that nobody holds, and leaves it in the free list."""

    def share(self, blocks):
        for block in blocks:
            if block not in self.refs and block not in self._free:
                raise PoolError("unknown")
            self.refs[block] = self.refs.get(block, 0) + 1


@pytest.mark.parametrize("kind", [Unchecked, Reborn])
def test_faulty_pools_break_the_invariant(kind):
    assert broken(kind, stop=True)[2]


# Slots: three of them, three earlier tokens, a block of one or two tokens.

SLOTS, TOKENS = 3, 3


def holdings() -> Iterator[list[int]]:
    """The slot of each earlier token, -1 for none: every injection."""
    for slots in product(range(-1, SLOTS), repeat=TOKENS):
        used = [s for s in slots if s >= 0]
        if len(used) == len(set(used)):
            yield list(slots)


def subsets(of: list[int]) -> Iterator[list[int]]:
    return (list(x) for n in range(len(of) + 1) for x in combinations(of, n))


def decisions(held: list[int]) -> Iterator[Decision]:
    """Every decision for the next block: tokens kept, refreshed and turned of those held, tokens that enter."""
    for new in (1, 2):
        for enter in subsets(list(range(TOKENS, TOKENS + new))):
            for kept in subsets(held):
                for fresh in subsets(kept):
                    for turns in (False, True):
                        keep = np.isin(np.arange(TOKENS + new), kept + enter)
                        rows = np.array(fresh + enter, np.int64)
                        turn = np.where(np.isin(np.arange(TOKENS + new), [t for t in kept if t not in fresh]), turns, 0)
                        yield Decision(1, "frame", TOKENS, TOKENS + new, rows, rows, keep, turn)


def pool(kind: type[Slots], slot: list[int], at: int) -> Slots:
    s = kind(SLOTS, 2, TOKENS)
    s.slot, s.next = np.array(slot), at
    s.turned, s.place = np.zeros(TOKENS, np.int64), np.full(TOKENS, -1)
    for token, where in enumerate(slot):
        if where >= 0:
            s.token[where] = token
    return s


def faults(kind: type[Slots], slot: list[int], at: int, d: Decision) -> list[str]:
    """What a decision breaks: the invariant, or what the passes of a block must be."""
    s = pool(kind, slot, at)
    held = [t for t, where in enumerate(slot) if where >= 0 and d.keep[t]]
    turned = [int(t) for one in s.turns(d) for t in one.tokens]
    if len(held) + len(d.admitted) > SLOTS:
        with pytest.raises(ParamError, match="slots=3: must be at least"):
            list(s.pieces(d))
        return []
    pieces = list(s.pieces(d))
    found = []
    used = {t: int(where) for t, where in enumerate(s.slot) if where >= 0}
    if {where: t for t, where in used.items()} != {i: int(t) for i, t in enumerate(s.token) if t >= 0}:
        found.append("a slot and its token disagree")
    if sorted(used) != sorted({*held, *d.admitted.tolist()}):
        found.append("a token is lost, or a dropped one held")
    if any(used.get(t) != slot[t] for t in held):
        found.append("a kept token has moved")
    if [int(t) for p in pieces for t in p.tokens] != d.rows.tolist():
        found.append("rows are lost or doubled")
    for p in pieces:
        runs = 1 + int((np.diff(p.slots) != 1).sum())
        seen = [sorted(int(s.token[i]) for i in np.flatnonzero(own)) for own in p.seen]
        want = [sorted(t for t in used if t <= row) for row in p.tokens.tolist()]
        if seen != want or runs > 2 or len(p.tokens) > 2:
            found.append("a row sees other tokens than those in the window up to it, or a pass is too long")
    places = [int(x) for x in s.place if x >= 0]
    if sorted(turned) != np.flatnonzero(d.turn).tolist() or len(places) != len(set(places)):
        found.append("a turned key has no place of its own")
    return found


def test_a_slot_holds_one_token_until_it_is_dropped():
    """By induction over all states of three slots."""
    cases = 0
    for slot in holdings():
        held = [t for t, where in enumerate(slot) if where >= 0]
        for d in decisions(held):
            for at in range(SLOTS):
                assert not faults(Slots, slot, at, d), (slot, at, d)
                cases += 1
    assert cases > 5000


class Keeps(Slots):
    """Forgets to free the slots of dropped tokens."""

    def turns(self, d):
        grown = d.stop - len(self.slot)
        self.slot = np.pad(self.slot, (0, grown), constant_values=-1)
        self.turned, self.place = np.pad(self.turned, (0, grown)), np.pad(self.place, (0, grown), constant_values=-1)
        return []


def test_faulty_slots_break_the_invariant():
    gone = Decision(1, "frame", 3, 4, np.array([3]), np.array([3]), np.array([False] * 3 + [True]), np.zeros(4, int))
    assert "a token is lost, or a dropped one held" in faults(Keeps, [0, -1, -1], 1, gone)


# Prefetch and completion: three tokens of a layer, everywhere, any guess, any choice.

SHAPE = Shape(2, 1, 1, 4)


def masks() -> list[np.ndarray]:
    return [np.array(x) for x in product((False, True), repeat=3)]


def test_a_guess_and_its_completion_give_the_exact_set_once():
    """What is fetched on demand is the choice less the guess; nothing comes twice, and no copy outlives the layer."""
    completed = wasted = 0
    for places in product((DEVICE, HOST, PRUNED), repeat=3):
        for guess, chosen in product(masks(), repeat=2):
            ledger = Ledger()
            store = Store(SHAPE, ledger)
            store.arrive(3)
            store._place[0, 0, :3] = places
            away = np.array(places) == HOST
            first = store.fetch(0, guess, "prefetch")[0]
            rest = store.fetch(0, chosen, "fetch")[0]
            assert (first == guess & away).all()
            assert (rest == chosen & away & ~guess).all()
            there = store.on_device(0)[0]
            assert (there == ((np.array(places) == DEVICE) | (away & (guess | chosen)))).all()
            moved = ledger.moved["in", "prefetch"] + ledger.moved["in", "fetch"]
            assert moved == SHAPE.entry_bytes * int((away & (guess | chosen)).sum())
            store.release(0)
            assert (store.on_device(0)[0] == (np.array(places) == DEVICE)).all()
            completed += rest.any()
            wasted += (first & ~chosen).any()
    assert completed > 100 < wasted


def test_the_policy_attends_to_its_choice_whatever_it_guessed(monkeypatch):
    """All guesses and choices of three tokens at home, through `ReSVPolicy` with completion."""
    for guess, chosen in product(masks(), repeat=2):
        policy = ReSVPolicy(ReSVPolicyParams(), SHAPE)
        policy.store.arrive(3)
        policy.store._place[1, 0, :3] = HOST
        layer = policy.layers[1]
        layer.length = 3
        layer.cluster_of[:] = np.arange(3)
        for mask, reason in ((guess, "prefetch"), (chosen, "fetch")):
            own = mask[None]
            monkeypatch.setattr(layer, "retrieve", lambda q, own=own: Retrieved([], [], [], [own[0]], own, own))
            keep = policy._retrieve(1, np.zeros((1, 1, 4), np.float32), reason, Counter())
        assert (keep[0] == chosen).all()
        block = Block(1, "frame", 3, 4)
        assert not (keep & ~policy.store.readable(1, block)).any()
        moved = policy.ledger.moved
        assert moved["in", "fetch"] == SHAPE.entry_bytes * int((chosen & ~guess).sum())


# A split of one of Mosaic's clusters: some tokens, two clusters, any buffered ones, any halves that 2-means may make.

CLUSTERS = 2


class Halves(Layer):
    """A layer whose 2-means gives the labels that it is told."""

    labels: np.ndarray

    def kmeans(self, x: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, int]:
        return self.labels, 1


class HardwareHalves(HardwareLayer):
    """The same in the arithmetic of the hardware."""

    labels: np.ndarray

    def kmeans(self, x: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, int]:
        return self.labels, 1


class Forgets(Halves):
    """Leaves what waits in the buffer where it is."""

    def place(self, tokens: np.ndarray, c: int) -> None:
        super().place(tokens[~self.buffered[tokens]], c)


def layers(kind: type[Halves | HardwareHalves], count: int) -> Iterator[Halves | HardwareHalves]:
    """Every state of a layer that satisfies the invariant: tokens by cluster, or by none, some of them buffered."""
    for cluster in product(range(-1, CLUSTERS), repeat=count):
        for wait in product((False, True), repeat=count):
            own, waits = np.array(cluster), np.array(wait)
            if (waits & (own < 0)).any() or any(not (own[~waits] == c).any() for c in range(CLUSTERS)):
                continue  # only members wait, and a cluster has counted members
            layer = kind(1, 1)
            for growing in (layer.keys, layer.values):
                growing.append(np.arange(1.0, 1 + count, dtype=np.float32).reshape(1, count, 1))
            layer.cluster, layer.buffered = np.full(count, -1), np.zeros(count, bool)
            for c in range(CLUSTERS):
                tokens = np.flatnonzero((own == c) & ~waits)
                layer.place(tokens, layer.clusters.add(layer.directions(tokens)))
            layer.cluster[waits], layer.buffered[waits] = own[waits], True
            layer.clusters.lazy[own[waits]] = True
            yield layer


def whole(layer: Layer) -> bool:
    """Every cluster has counted members, and counts those that do not wait; a cluster is flagged if others wait."""
    clusters, own = layer.clusters, layer.cluster
    counted = np.bincount(own[(own >= 0) & ~layer.buffered], minlength=len(clusters))
    flagged = np.bincount(own[layer.buffered], minlength=len(clusters)) > 0
    known = own.max() < len(clusters) and not (layer.buffered & (own < 0)).any()
    return bool(known and counted.all() and (clusters.size == counted).all() and (clusters.lazy == flagged).all())


def splits(kind: type[Halves | HardwareHalves], count: int) -> Iterator[bool]:
    """Whether each split, of each state, keeps the invariant and each token: in one half, or where it was."""
    for state in layers(kind, count):
        news = np.flatnonzero(state.cluster < 0)[:1]  # a split at once takes the new token in; a deferred one does not
        for c, joins in product(range(CLUSTERS), (news[:0], news)[: 1 + len(news)]):
            tokens = np.append(state.members(c), joins)
            for labels in product((0, 1), repeat=len(tokens)):
                if 0 not in labels:
                    continue  # labels have no gaps
                layer = deepcopy(state)
                layer.labels = np.array(labels)
                changed, _ = layer.split(tokens, c, 0)
                halves = [tokens[layer.labels == i].tolist() for i in range(len(changed))]
                rest = ~np.isin(np.arange(count), tokens)
                yield (
                    whole(layer)
                    and [layer.members(x).tolist() for x in changed] == [sorted(half) for half in halves]
                    and np.array_equal(layer.cluster[rest], state.cluster[rest])
                    and np.array_equal(layer.buffered[rest], state.buffered[rest])
                )


@pytest.mark.parametrize("kind", [Halves, HardwareHalves])
@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_split_neither_loses_nor_doubles_an_entry(kind, count):
    assert all(whole(layer) for layer in layers(kind, count))
    found = list(splits(kind, count))
    assert all(found)
    assert len(found) > {3: 50, 4: 500}[count]


def test_a_split_that_forgets_the_buffer_breaks_the_invariant():
    assert not all(splits(Forgets, 3))
