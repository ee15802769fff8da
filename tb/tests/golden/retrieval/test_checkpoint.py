"""Checkpoints: a stream continues in another engine as if nothing had happened, and nothing else changes there."""

from random import Random

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval.checkpoint import HEADER, restore, save
from openvrex.golden.retrieval.table_layout import Item, TableLayout
from openvrex.tb.checks.checkpoint_checks import ENTRY, N_CTX, PACKED, SIZES, Engine, engines, hashes

LAYOUTS = {protect: TableLayout(**SIZES, protect=protect) for protect in ("none", "secded")}


def saved(engine: Engine, ctx: int) -> bytes:
    return save(engine.layout, engine.model, engine.memory, ctx)


def moved(source: Engine, ctx: int, target: Engine, to: int) -> None:
    restore(target.layout, target.model, target.memory, to, saved(source, ctx))
    target.tables.write()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("protect", "home"), [("none", {}), ("secded", {}), ("none", PACKED)])
def test_a_stream_continues_in_another_engine(seed, protect, home):
    """Clusters, counts, selections and entries are equal, and other streams of that engine go on as they would."""
    one, two = engines(seed, LAYOUTS[protect], **home)
    _, alone = engines(seed, LAYOUTS[protect], **home)  # as `two`, and nothing comes to it
    source = 1 + seed % (N_CTX - 1)
    one.keys(source, hashes(Random(seed), 9 + seed, 16))
    moved(one, source, two, 0)
    assert saved(two, 0) == saved(one, source)
    rng = Random(seed)
    for _ in range(4):
        more, ctx = hashes(rng, 7, 16), rng.randrange(1, N_CTX)
        assert two.keys(0, more) == one.keys(source, more)
        assert two.fetch(0, Random(seed)) == one.fetch(source, Random(seed))
        others = hashes(rng, 3, 16)
        assert two.keys(ctx, others) == alone.keys(ctx, others)
        assert two.fetch(ctx, Random(seed)) == alone.fetch(ctx, Random(seed))
    assert saved(two, 0) == saved(one, source)


def test_corners_are_exercised():
    """Of the sources above: rings full and not, freed blocks taken, clusters of several blocks, saturated counts."""
    full, freed, several, saturated = set(), 0, 0, 0
    for seed in range(20):
        one, two = engines(seed, LAYOUTS["none"])
        source = 1 + seed % (N_CTX - 1)
        full.add(one.model.kv.contexts[source].n >= one.kv.recent)
        one.keys(source, hashes(Random(seed), 9 + seed, 16))
        before = len(two.kv.freed)
        moved(one, source, two, 0)
        freed += len(two.kv.freed) < before
        several += any(len(k.blocks) > 2 for k in two.kv.contexts[0].clusters.values())
        saturated += 7 in two.model.tables[0].counts
    assert full == {False, True}
    assert min(freed, several, saturated) > 0, (freed, several, saturated)


def test_a_context_without_anything():
    one, two = engines(1, LAYOUTS["none"])
    one.clear(2)
    moved(one, 2, two, 0)
    assert len(saved(two, 0)) == HEADER.size + one.layout.bytes(Item.PLACE)
    assert two.model.level(0) == 0


def test_what_cannot_be_restored_changes_nothing():
    one, two = engines(3, LAYOUTS["none"])
    one.keys(1, hashes(Random(3), 30, 16))
    checkpoint = saved(one, 1)
    other, _ = engines(3, TableLayout(**SIZES | {"recent": 6}))
    few = Engine(one.layout, blocks=3, entry_bytes=24)
    long = Engine(one.layout, blocks=64, entry_bytes=32)
    packed = Engine(one.layout, blocks=64, **PACKED)
    unpacked = saved(long, 1)
    two.keys(0, [1])
    with pytest.raises(ParamError, match="checkpoint=0: must have a home of kv4_group = 16"):
        restore(packed.layout, packed.model, packed.memory, 0, unpacked)
    for target, message in (
        (two, "ctx=0: must be empty"),
        (other, "checkpoint='0x.*must have the layout"),
        (few, "blocks=3: must leave .* free, and 3 are"),
        (long, "checkpoint=24: must have entries of 32 bytes"),
    ):
        before = target.memory.copy()
        with pytest.raises(ParamError, match=message):
            restore(target.layout, target.model, target.memory, 0, checkpoint)
        target.tables.write()
        assert (target.memory == before).all()


def test_wrong_bits_are_corrected_or_refused():
    one, two = engines(4, LAYOUTS["secded"])
    one.keys(1, hashes(Random(4), 12, 16))
    checkpoint = bytearray(saved(one, 1))
    checkpoint[HEADER.size] ^= 1
    restore(two.layout, two.model, two.memory, 0, bytes(checkpoint))
    two.tables.write()
    assert saved(two, 0) == saved(one, 1)
    two.clear(0)
    checkpoint[HEADER.size] ^= 2
    with pytest.raises(ParamError, match="PLACE.*wrong bit"):
        restore(two.layout, two.model, two.memory, 0, bytes(checkpoint))


@pytest.mark.parametrize("seed", range(10))
def test_interleaved_streams_each_equal_the_stream_alone(seed):
    """Two streams take turns on one engine; each clusters, selects and fetches as on an engine of its own.

    The RTL equals golden for contexts in any order (`tb.tests.hdl.retrieval.test_dre`).
    """
    both, *alone = (Engine(LAYOUTS["none"], blocks=160, entry_bytes=ENTRY) for _ in range(3))
    rng, fetched = Random(seed), [0, 0]
    for _ in range(14):
        stream = rng.randrange(2)
        keys = hashes(rng, rng.randrange(1, 9), 16)
        own = alone[stream]
        assert both.keys(stream, keys) == own.keys(0, keys)
        query = rng.randrange(1 << 30)
        clusters, entries = both.fetch(stream, Random(query))
        assert (clusters, entries) == own.fetch(0, Random(query))
        fetched[stream] += len(entries)
    assert min(fetched) > 0
