"""KVMU: beats, writes and tables equal to golden, cycles equal to the time view; stalls, sizes, mutants."""

from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.hdl.params import KvmuParams
from openvrex.hdl.retrieval import placer
from openvrex.sim.units.kvmu_time import KvmuTime
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import kvmu_checks
from openvrex.tb.checks.kvmu_checks import (
    BINS,
    RAGGED,
    SIZES,
    STALLS,
    check,
    check_cycles,
    covered,
    emitted,
    episode,
    results,
    run,
    switches,
    traffic,
    unstalled_sets,
)
from openvrex.tb.formal.kvmu_allocator_proof import DEPTH, prove
from openvrex.tb.formal.kvmu_map_proof import FetchMonitor, MoveMonitor
from openvrex.tb.formal.kvmu_tables import SMALL, USERS
from openvrex.tb.formal.prover import holds
from openvrex.tb.library.runner import lint
from tb.tests.by_day import at_sizes, by_day

DAY = "ragged", "one", "one-slot", "kept"
EACH = by_day(SIZES, *DAY)


test_equals_golden = at_sizes(kvmu_checks.check_equals_golden, EACH)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = frozenset().union(*map(covered, DAY))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, BINS - hit


test_cycles_equal_time_view = at_sizes(kvmu_checks.check_cycles_equal_time_view, EACH)
test_append_never_waits_for_bursts = at_sizes(kvmu_checks.check_append_never_waits_for_bursts, EACH)


@pytest.mark.parametrize("size", EACH)
def test_lint(size, tmp_path):
    assert lint(emitted(SIZES[size]), tmp_path) == ""


CORE = KvmuParams(recent=4, block_slots=2, entry_bytes=4096)


@pytest.mark.parametrize("latency", [1, 12, 60])
def test_documented_cycles_of_requests(latency):
    """The data sheet's formulas; the time view equals the unit by the tests above."""
    time, n = KvmuTime(CORE), latency

    def interval(op, cluster):
        cycles = time.run([(op, 0, cluster)], latency=latency)
        return cycles.w[0] - cycles.a[0], cycles

    def append(cluster):
        return interval(0, cluster)[0]

    assert time.run([(0, 0, 0)], latency=latency).a == [3 + n]  # reads POOL
    assert append(0) == 10 + n  # the second slot of its block
    assert append(1) == 9 + n + 2 - 2  # opens: a block, but no row to read
    assert append(0) == 10 + n + 2  # another block
    assert append(0) == 10 + n + 5 + n  # the oldest entry is of the same cluster
    assert append(1) == 10 + n + 7 + 2 * n  # of another one
    assert append(2) == 9 + n + 7 + 2 * n
    assert append(2) == 10 + n + 7 + 2 * n + 1 + n  # the entry that leaves begins a block
    given = interval(2, 0)[1]
    assert given.c == [3 + n]
    assert given.w == [4 + n]
    many = KvmuTime(CORE)
    for clusters, words in ((0, 0), (17, 2), (1024, 64), (1025, 64)):
        many.run([(0, 0, k) for k in range(many._level[0], clusters)])
        given = many.run([(2, 0, 0)], latency=latency)
        assert given.c == list(range(3 + n, 3 + n + words))
        assert given.w == [3 + n + words if words else 3]
    assert interval(1, 0)[0] <= 4 + 4 * 3 + (n + 1)
    shared = KvmuTime(replace(CORE, shared=True, boundary=8192))
    shared.run([(0, 0, k // 7) for k in range(21)])  # three clusters of four blocks
    cleared = shared.run([(1, 0, 0)], latency=latency)
    assert cleared.w[0] - cleared.a[0] <= 4 + 4 * 3 + (n + 1) + 12 * (n + 4)
    assert len(cleared.x) == 12
    assert append(0) == 9 + n
    time.kv.fresh = CORE.blocks  # only freed blocks are left
    assert append(1) == 9 + n + 2 + n


@pytest.mark.parametrize("latency", [1, 12, 13, 60])
def test_documented_cycles_of_fetches(latency):
    time = KvmuTime(CORE)
    clusters = list(range(64))
    time.run([(0, 0, k) for k in clusters] + [(0, 0, 64)] * 4)
    out = time.run([], [(0, clusters)], latency=latency)
    assert out.b[0] == 5 + latency
    per_cluster = max(1, (latency + 4) / CORE.rows)
    assert out.f[48] - out.f[0] == 48 * per_cluster
    one = time.run([], [(0, [5])], latency=latency)
    assert one.b == [5 + latency]
    time.run([(0, 0, 64)] * 5)
    two = time.run([], [(0, [64])], latency=latency)
    assert two.b[-1] - two.b[0] >= latency + 3


@pytest.mark.parametrize("latency", [1, 12, 60])
def test_documented_cycles_with_kept_blocks(latency):
    """A cluster takes two cycles, a set one for each block that is noted, and a cluster that opens a write."""
    p = replace(CORE, kept=64)
    time, plain, clusters = KvmuTime(p), KvmuTime(CORE), list(range(32))
    for one in (time, plain):
        one.run([(0, 0, k) for k in clusters for _ in range(2)] + [(0, 0, 32)] * 4)  # whole blocks, at home
    opens = [one.run([(0, 0, 33)], latency=latency) for one in (time, plain)]
    assert opens[0].w[0] - opens[0].a[0] == opens[1].w[0] - opens[1].a[0] + 1
    first, second = ([(0, clusters), (0, [5])] for _ in range(2))
    noted, found = (time.run([], sets, latency=latency) for sets in (first, second))
    assert noted.b[0] - noted.f[0] == found.b[0] - found.f[0] == 5 + latency
    assert noted.f[8] - noted.f[0] == 8 * 2 or latency + 4 > 2 * p.rows
    assert (noted.f[-1] - noted.f[-2]) - (found.f[-1] - found.f[-2]) == len(clusters)
    assert p.rows == 16
    assert KvmuTime(p).kv.sizes.keeps == 64


MUTANTS = {  # by size
    "ragged": {
        "$and 1.ddb9b64c: Y[0] const0": "a full pool is not told",
        "$lt 0.dc089097: B[0] const1": "one block more than there is",
        "$lt 0.dc089097: B[1] const1": "`blocks` is ignored",
        "$add 1.b938ccf2: B[0] const0": "a cluster's count does not rise",
        "$ne 0.88beee03: Y[0] const1": "every burst ends with its block",
        "$or 1.6dcaeafe: Y[0] const0": "fetches go on beside a CLEAR",
        "$logic_not 1.7cc9ac49: Y[0] const1": "it writes before all items came",
        "$mux 1.d37c4fa3: S[0] const0": "a CLEAR frees the wrong blocks",
        "$ge 0.46ab45a8: Y[0] const1": "words without a place",
        "$ge 0.46ab45a8: B[0] const1": "the ring is not filled",
        "$logic_not 1.fc98cbbc: Y[0] const1": "a switch empties the ring before its words came",
        "$or 1.7f4116fe: Y[0] const1": "the ring cannot be emptied yet",
        "$le 0.912573ee: A[0] const1": "the clusters of a full word are not kept",
        "$mux 1.2e2a40be: S[0] const0": "the next switch begins where the last one ended",
        "$eq 0.f51e1f11: Y[0] const1": "a read of one word only",
        "$and 1.101958fd: Y[0] const1": "beats are asked for at any time",
        "$or 1.5a3f838b: Y[0] const1": "a set begins before the one before is done",
        "$eq 1.de3c053e: Y[0] const0": "the list of free blocks never ends",
    },
    "runs": {"$and 1.2b2f8c03: Y[0] const0": "adjacent blocks are not merged"},
    "kept": {
        "$eq 0.beeb6acf: Y[0] const1": "a block is read where another one is kept",
        "$and 1.735415a1: Y[0] const0": "no block is found",
        "$ne 0.7cea9049: Y[0] const1": "more blocks are kept than a set may",
        "$or 1.0ffcaa3f: Y[0] const1": "blocks are noted within their set",
        "$or 1.0ffcaa3f: B[0] const0": "a CLEAR within a set waits for ever",
        "$and 1.c947c74c: Y[0] const1": "the next set begins before the last one's blocks are noted",
        "$and 1.12b09c16: B[0] const1": "the place of a cluster is not read",
        "$add 1.38bfda50: B[0] const0": "another cluster is noted",
    },
}


@pytest.mark.parametrize(
    "size",
    ["ragged", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted(MUTANTS.keys() - {"ragged"}))],
)
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(size, every):
    """Some, and at night all."""
    p = SIZES[size]
    e = episode(p, *traffic(p, 1, 300, clear=0.04, sets=150), STALLS, late=3, blocks=p.blocks - 3, uses=0.5)
    episodes = [switches(p), e]
    if p.kept:  # sets of more blocks than may be kept, a CLEAR between those that are noted, cycles
        wanted = {"too_many_to_keep", "clear_between_keeps"}
        some = [(e, got) for e, got in results(size) if not e["keep"]]
        episodes += [e for e, got in some if check(p, e, got).bins & wanted or unstalled_sets(e)]

    def passes(unit):
        for e, got in zip(episodes, run(unit, p, episodes, waves=False), strict=True):
            check(p, e, got)
            if unstalled_sets(e):
                check_cycles(p, e, got)

    assert not survivors(emitted(p), MUTANTS[size], passes, every=every)


@pytest.mark.parametrize(
    ("p", "depth"),
    [(SMALL, 21), *(pytest.param(*size, marks=pytest.mark.nightly) for size in ((SMALL, DEPTH), (USERS, 28)))],
)
def test_allocator_is_proved(p, depth):
    """As far as an APPEND without a move, and at night as far as the longest beat."""
    assert prove(p, depth=depth)
    assert not prove(p, reach=True, depth=30)


@pytest.mark.parametrize(
    ("monitor", "p", "depth"),
    [
        (FetchMonitor, SMALL, 14),
        pytest.param(MoveMonitor, SMALL, 21, marks=pytest.mark.nightly),
        pytest.param(MoveMonitor, SMALL, DEPTH, marks=pytest.mark.nightly),
        pytest.param(FetchMonitor, SMALL, 24, marks=pytest.mark.nightly),
        (FetchMonitor, USERS, 14),
        pytest.param(MoveMonitor, USERS, 28, marks=pytest.mark.nightly),
        pytest.param(FetchMonitor, USERS, 24, marks=pytest.mark.nightly),
    ],
)
def test_map_is_proved(monitor, p, depth):
    """Of one context, and of two users who share."""
    assert holds(monitor(p), merge=False, depth=depth)
    assert not holds(monitor(p, reach=True), merge=False, depth=depth)


def test_proof_sees_a_block_of_two(monkeypatch):
    """The row before the pool: a reset between them would leave the block in both."""
    monkeypatch.setattr(placer, "WRITES", ("link", "row", "oldest", "count", "ring", "place", "pool"))
    assert not prove(depth=16)


def test_proof_sees_a_broken_allocator():
    last_freed = (r"connect \\A \{ 1'0 \\pool \[2\] \}", r"connect \\A { 1'0 \\pool [3] }")  # not the first
    assert not prove(edit=last_freed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recent": 0}, "recent=0: must be 1 to 65536"),
        ({"boundary": 96}, "boundary=96: must be a power of two"),
        ({"rows": 3}, "rows=3: must be a power of two"),
        ({"shared": True}, "boundary=64: must be at least 72, a block, which a CLEAR wipes in one burst"),
        ({"counts": 3}, "counts=3: must be a multiple of read_counts = 2"),
        ({"read_counts": 0}, "read_counts=0: must be a power of two"),
        ({"count_lanes": 4}, "read_counts=2: must be at least count_lanes = 4"),
        ({"addr_bits": 10}, "addr_bits=10: cannot address blocks of 1368 bytes in all"),
        ({"blocks": 1, "addr_bits": 8}, "addr_bits=8: cannot address rings of 360 bytes in all"),
        ({"clusters": 2.0}, "clusters=2.0: must be an integer"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(ParamError, match=message):
        replace(RAGGED, **change)
