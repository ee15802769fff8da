"""KV memory map against a brute-force one that knows the place of every byte."""

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.pages_policy import KeptPages
from openvrex.golden.retrieval.kvmap import Burst, KvMap, MapSizes, Move, Range
from openvrex.tb.library.runner import ROOT

SMALL = {"clusters": 6, "blocks": 9, "block_slots": 3, "recent": 4, "entry_bytes": 24, "boundary": 64}


def kv_map(**changes) -> KvMap:
    bases = {name: changes.pop(name) for name in ("device_base", "home_base") if name in changes}
    return KvMap(MapSizes(**{**SMALL, **changes}), **bases)


class BruteForce(RuleBasedStateMachine):
    """Memories as dictionaries from byte address to (entry, byte); nothing is derived from the map under test."""

    @initialize(
        n_ctx=st.integers(1, 3),
        clusters=st.integers(1, 5),
        blocks=st.integers(1, 12),
        block_slots=st.integers(1, 4),
        recent=st.integers(1, 6),
        entry_bytes=st.integers(1, 20),
        boundary=st.sampled_from([1, 8, 32, 1 << 20]),
        home_base=st.integers(0, 100),
        device_base=st.integers(0, 100),
        kept=st.sampled_from([0, 2, 4]),
    )
    def start(self, **sizes):
        if kept := sizes["kept"]:  # blocks are powers of two, and those that are kept lie in front of the rings
            sizes |= {"block_slots": 1 << sizes["block_slots"] // 2, "entry_bytes": 8}
            sizes["boundary"] = max(8, sizes["boundary"])
            sizes["clusters"] = max(sizes["clusters"], kept)
            sizes["device_base"] += 64 + sizes["n_ctx"] * kept * sizes["block_slots"] * 8
        self.kv = kv_map(**sizes)
        self.device, self.home, self.places = {}, {}, {}
        self.entries = [[] for _ in range(sizes["n_ctx"])]  # cluster of each live entry
        self.serial_of = [[] for _ in range(sizes["n_ctx"])]  # a name for each, never used again
        self.promised = {}  # serial -> home address
        self.serial = 0

    def _bytes(self, ctx, entry):
        return [(self.serial_of[ctx][entry], i) for i in range(self.kv.entry_bytes)]

    def _blocks_needed(self):
        slots = self.kv.block_slots
        return sum(-(-e.count(k) // slots) for e in self.entries for k in set(e))

    @rule(data=st.data())
    def append(self, data):
        ctx = data.draw(st.integers(0, self.kv.n_ctx - 1))
        cluster = data.draw(st.integers(0, self.kv.max_clusters - 1))
        before = self._blocks_needed()
        full = self.entries[ctx].count(cluster) % self.kv.block_slots == 0 and before == self.kv.blocks
        placed = self.kv.append(ctx, cluster)
        assert placed.ok != full, "FULL exactly when every block is in use and one more is needed"
        if full:
            assert placed.move is None
            return
        if placed.move:
            src, dst, n = placed.move
            for i in range(n):
                assert dst + i not in self.home, "an offload overwrites a live byte"
                self.home[dst + i] = self.device.pop(src + i)
        self.serial += 1
        entry = len(self.entries[ctx])
        self.entries[ctx].append(cluster)
        self.serial_of[ctx].append(self.serial)
        self.promised[self.serial] = placed.home
        for i, name in enumerate(self._bytes(ctx, entry)):
            assert placed.device + i not in self.device, "a write overwrites a resident byte"
            self.device[placed.device + i] = name

    @precondition(lambda self: sum(map(len, self.entries)) > 5)
    @rule(data=st.data())
    def clear(self, data):
        ctx = data.draw(st.integers(0, self.kv.n_ctx - 1))
        self.kv.clear(ctx)
        gone = set(self.serial_of[ctx])
        for memory in (self.device, self.home):
            for addr in [a for a, (s, _) in memory.items() if s in gone]:
                del memory[addr]
        self.entries[ctx], self.serial_of[ctx] = [], []

    @rule(data=st.data())
    def fetch(self, data):
        ctx = data.draw(st.integers(0, self.kv.n_ctx - 1))
        chosen = sorted(data.draw(st.sets(st.integers(0, self.kv.max_clusters - 1))))
        bursts = self.kv.fetch(ctx, chosen)
        fetched = [self.home[a] for b in bursts for a in range(b.addr, b.addr + b.bytes)]
        assert len(fetched) == len(set(fetched)), "fetched twice"
        resident = set(self.device.values())
        wanted = {
            byte for e, k in enumerate(self.entries[ctx]) if k in chosen for byte in self._bytes(ctx, e)
        } - resident
        assert set(fetched) == wanted
        for b in bursts:
            assert b.addr // self.kv.boundary == (b.addr + b.bytes - 1) // self.kv.boundary
        for a, b in zip(bursts, bursts[1:], strict=False):
            adjacent = a.addr + a.bytes == b.addr
            assert not adjacent or b.addr % self.kv.boundary == 0, "two bursts could be one"
        t = self.kv.traffic(ctx, chosen)
        assert t.useful_bytes == t.fetched_bytes == len(fetched)
        assert t.fewest_bursts <= t.bursts == len(bursts)

    @precondition(lambda self: self.kv.sizes.kept)
    @rule(data=st.data())
    def take(self, data):
        """A set reads what is kept where it is kept, in the same order, and never what once was there."""
        ctx = data.draw(st.integers(0, self.kv.n_ctx - 1))
        chosen = sorted(data.draw(st.sets(st.integers(0, self.kv.max_clusters - 1))))
        want = [self.home[a] for b in self.kv.fetch(ctx, chosen) for a in range(b.addr, b.addr + b.bytes)]
        bursts = self.kv.take(ctx, chosen)
        got, keeps = [], {}
        for b in bursts:
            memory = self.places if b.near else self.home
            own = [memory[a] for a in range(b.addr, b.addr + b.bytes)]
            got += own
            keeps |= {} if b.keep is None else {b.keep + i: byte for i, byte in enumerate(own)}
        assert got == want
        assert not keeps.keys() & (self.device.keys() | self.home.keys()), "a place is not elsewhere"
        self.places |= keeps
        places = self.kv.contexts[ctx].kept.values()
        assert len(set(places) - {None}) == sum(k is not None for k in places), "two copies"

    @invariant()
    def nothing_lost(self):
        for ctx, entries in enumerate(self.entries):
            serials = self.serial_of[ctx]
            for e in range(len(entries)):
                memory = self.device if e >= len(entries) - self.kv.recent else self.home
                assert (serials[e], 0) in memory.values(), f"entry {e} of {len(entries)} is not where it should be"
        for addr, (serial, i) in self.home.items():
            assert addr == self.promised[serial] + i, "an entry is not at the home that its append named"


TestBruteForce = BruteForce.TestCase
TestBruteForce.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)


def test_kept_blocks():
    """What is found, kept and given up: whole first blocks alone, as many as there are places."""
    sizes = {"recent": 1, "entry_bytes": 8, "boundary": 64, "block_slots": 2, "blocks": 20, "clusters": 8, "kept": 4}
    kv = kv_map(device_base=1024, home_base=4099, **sizes)  # the map takes 4096
    for cluster in (0, 0, 1, 1, 4, 4, 4, 5, 0):
        kv.append(0, cluster)
    home = {0: 4096, 1: 4112, 4: 4128}
    places = {0: 1008, 1: 992}  # of clusters 4 and 5, too
    assert kv.place(0, 4) == places[0]
    assert kv.take(0, [0, 1]) == [Burst(home[k], 16, keep=places[k]) for k in (0, 1)]
    assert kv.take(0, [0, 1]) == [Burst(places[k], 16, near=True) for k in (0, 1)]
    # The second block of cluster 4 is not its first one; cluster 0 was found before cluster 4 took its place.
    want = [Burst(places[0], 16, near=True), Burst(home[4], 16, keep=places[0]), Burst(4144, 8)]
    assert kv.take(0, [0, 4]) == want
    assert kv.take(0, [0, 4])[0] == Burst(home[0], 16, keep=places[0])
    assert kv.take(0, [5]) == kv.fetch(0, [5]) != []  # a part of a block
    kv.append(0, 2)
    kv.append(0, 6)
    kv.append(0, 6)
    kv.append(0, 6)
    assert kv.kept(0)[2] is None
    kv.clear(0)
    assert kv.take(0, [0, 1]) == []


@pytest.mark.parametrize("places", [8, 64])
def test_pages_of_a_policy_are_kept_as_blocks_are(places):
    """What `CodedPages` counts, from which the simulator takes its shares, is what this map would find."""
    rng, recent = random.Random(places), 16
    sizes = {"clusters": 256, "blocks": 256, "block_slots": 8, "recent": recent, "entry_bytes": 8, "kept": places}
    kv, own = kv_map(device_base=1 << 20, **sizes), KeptPages(places, 1)
    for token in range(1600):
        kv.append(0, token // 8)
        if token % 10 == 9 and token > recent:
            whole = (token + 1 - recent) // 8
            pages = sorted(rng.sample(range(whole), min(whole, rng.randint(1, 12))) if whole else [])
            kv.take(0, pages)
            own.take(0, "frame", np.array(pages, int), -(-(token + 1) // 8))
    assert 0 < own.found["frame"] == kv.events["found"] < own.seen["frame"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"kept": 2}, "home_bytes=24: must be a power of two, or set kept=0"),
        ({"kept": 2, "entry_bytes": 32}, "block_slots=3: must be a power of two, or set kept=0"),
    ],
)
def test_bad_sizes_of_kept_blocks(sizes, message):
    with pytest.raises(ParamError, match=message):
        kv_map(**sizes)


def test_order_of_blocks_and_merging():
    kv = kv_map(recent=1, entry_bytes=8, boundary=32)
    for cluster in (2, 2, 2, 2, 0, 0, 0, 0, 5):  # cluster 2: blocks 0, 1; cluster 0: blocks 2, 3; cluster 5: block 4
        kv.append(0, cluster)
    assert kv.ranges(0, 2) == [Range(0, 3), Range(1, 1)]
    assert kv.ranges(0, 0) == [Range(2, 3), Range(3, 1)]
    # Slots 0 to 3 end where page 1 starts; slots 6 to 9 cross into page 2; the last entry is resident.
    assert kv.fetch(0, [2]) == [Burst(0, 32)]
    assert kv.fetch(0, [0, 2, 5]) == [Burst(48, 16), Burst(64, 16), Burst(0, 32)]
    kv.clear(0)
    assert [kv.append(0, 1).home for _ in range(13)][::3] == [5 * 24, 6 * 24, 7 * 24, 8 * 24, 2 * 24]
    assert kv.fetch(0, []) == kv.fetch(0, [3]) == []


def test_clusters_merge_with_each_other():
    kv = kv_map(recent=1, boundary=1 << 20, block_slots=2)
    for cluster in (0, 0, 1, 1, 3):
        kv.append(0, cluster)
    assert kv.fetch(0, [0, 1]) == [Burst(0, 4 * 24)]


def test_offload_comes_with_the_append_that_needs_its_slot():
    kv = kv_map(recent=2, device_base=1000, home_base=5000)
    assert kv.append(0, 1).move is None
    assert kv.append(0, 4).move is None
    third = kv.append(0, 4)
    assert third.move == Move(1000, 5000, 24)
    assert third.device == 1000


def test_fewest_bursts_when_a_block_is_a_multiple_of_the_boundary():
    rng = random.Random(3)
    kv = KvMap(MapSizes(clusters=40, blocks=200, block_slots=8, recent=16, entry_bytes=512), home_base=1 << 20)
    while kv.append(0, int(rng.triangular(0, 40, 5))).ok:
        pass
    for _ in range(20):
        t = kv.traffic(0, sorted(rng.sample(range(40), 15)))
        assert t.bursts == t.fewest_bursts
        assert t.bursts < t.scattered_bursts
        assert t.mean_burst > 3500


def drawn(mean: float, entry_bytes: int) -> tuple[float, float]:
    """Mean bytes of a burst, and home memory over the entries in it: 8,192 tokens in clusters of geometric sizes.

    The clusters' tokens are mixed, and every second cluster is fetched.
    """
    rng = np.random.default_rng(1)
    sizes = rng.geometric(1 / mean, 8192)
    of = np.repeat(np.arange(len(sizes)), sizes)[:8192]
    rng.shuffle(of)
    kv = kv_map(clusters=8192, blocks=8192, block_slots=8, recent=256, entry_bytes=entry_bytes, boundary=4096)
    number: dict[int, int] = {}  # clusters by their first tokens
    for cluster in of.tolist():
        assert kv.append(0, number.setdefault(cluster, len(number))).ok
    return kv.traffic(0, range(0, len(number), 2)).mean_burst, kv.fresh * 8 / len(of)


def test_the_page_shows_bursts_of_llama():
    """Entries of one head of Llama-3 8B and of all eight, in blocks of 8."""
    page = (ROOT / "docs/papers/recall.md").read_text()
    for mean in (1.5, 30):
        (one, space), (all_heads, same) = drawn(mean, 512), drawn(mean, 4096)
        assert space == same
        assert f"\n| {mean:g} | {one:,.0f} | {all_heads:,.0f} | {space:.1f} |\n" in page


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_map(recent=0), "recent=0: must be at least 1"),
        (lambda: kv_map(boundary=48), "boundary=48: must be a power of two"),
        (lambda: kv_map().append(1, 0), "ctx=1: must be 0 to 0"),
        (lambda: kv_map().append(0, 6), "cluster=6: must be 0 to 5"),
        (lambda: kv_map().fetch(0, [-1]), "cluster=-1: must be 0 to 5"),
        (lambda: kv_map().clear(-1), "ctx=-1: must be 0 to 0"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ParamError, match=message):
        call()
