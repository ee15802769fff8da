"""Items of tables, against a reader that follows them as a host would."""

import random

from openvrex.golden.function_params import bits_for
from openvrex.golden.retrieval.kvmap import KvMap, MapSizes
from openvrex.golden.retrieval.map_items import context_items, pool_items
from openvrex.golden.retrieval.table_layout import Item, TableLayout

SIZES = {"clusters": 6, "block_slots": 3, "recent": 4}
BLOCKS = 9


def fields(layout: TableLayout, item: Item, value: int) -> dict[str, int]:
    """The fields of an item, lowest first."""
    out = {}
    for name, bits in layout.fields(item).items():
        out[name] = value & (1 << bits) - 1
        value >>= bits
    assert value == 0
    return out


def chain(nexts: dict[int, int], head: int, tail: int) -> list[int]:
    """Blocks from the first to the last."""
    out = [head]
    while out[-1] != tail:
        out.append(nexts[out[-1]])
    return out


def test_a_host_reads_the_whole_map_from_the_items():
    layout = TableLayout(8, SIZES["clusters"], SIZES["recent"], 4, BLOCKS, SIZES["block_slots"])
    kv = KvMap(MapSizes(**SIZES, blocks=BLOCKS, entry_bytes=1, boundary=1, n_ctx=2))
    rng = random.Random(4)
    levels, homes = [0, 0], [{}, {}]  # clusters; (cluster, number in it) -> home
    ring = [[], []]
    seen = set()
    for step in range(1500):
        ctx = rng.randrange(2)
        if rng.random() < 0.03:
            kv.clear(ctx)
            levels[ctx], homes[ctx], ring[ctx] = 0, {}, []
        else:
            cluster = rng.randrange(min(levels[ctx] + 1, SIZES["clusters"]))
            levels[ctx] = max(levels[ctx], cluster + 1)
            placed = kv.append(ctx, cluster)
            if placed.ok:
                homes[ctx][cluster, sum(c == cluster for c, _ in homes[ctx])] = placed.home
                ring[ctx].append(cluster)
        owners = list(range(kv.fresh, BLOCKS))
        pool = pool_items(layout, kv)
        record = fields(layout, Item.POOL, pool.pop((Item.POOL, 0)))
        assert record["fresh"] == kv.fresh
        freed = {index: value for (_, index), value in pool.items()}
        owners += chain(freed, record["free_head"], record["free_tail"]) if record["freed"] else []
        seen.add(("freed", record["freed"]))
        for of in range(2):
            counts = [3] * levels[of]
            items = context_items(layout, kv, of, counts)
            assert [items.pop((Item.COUNT, k)) for k in range(levels[of])] == counts
            owners += check_rows(layout, items, levels[of], homes[of], seen)
            place = fields(layout, Item.PLACE, items.pop((Item.PLACE, 0)))
            n = len(ring[of])
            assert place == {"pos": n % 4, "filled": int(n >= 4)}
            for slot in range(min(n, 4)):
                last = max(e for e in range(n) if e % 4 == slot)
                assert items.pop((Item.RING, slot)) == ring[of][last]
            assert {item for item, _ in items} <= {Item.NEXT}
        assert sorted(owners) == list(range(BLOCKS)), f"step {step}: a block has two owners, or none"
    assert seen == {("freed", 0), ("freed", 1), *(("blocks", k) for k in range(4)), ("off", "full"), ("off", "part")}


def check_rows(layout, items, level, homes, seen) -> list[int]:
    """Compare each cluster's row with the homes that its appends named; the blocks of all clusters."""
    owners = []
    nexts = {index: value for (item, index), value in items.items() if item == Item.NEXT}
    for k in range(level):
        row = fields(layout, Item.ROW, items.pop((Item.ROW, k)))
        mine = [homes[k, i] for i in range(sum(c == k for c, _ in homes))]
        blocks = chain(nexts, row["head"], row["tail"]) if row["tail_slots"] else []
        seen.add(("blocks", min(len(blocks), 3)))
        owners += blocks
        taken = [b * 3 + s for b in blocks for s in range(3)][: max(0, 3 * (len(blocks) - 1)) + row["tail_slots"]]
        assert taken == mine
        if not mine:
            assert not any(row.values())
        elif row["off_slots"]:
            seen.add(("off", "full" if row["off_slots"] == 3 else "part"))
        for left, right in zip(blocks, blocks[1:], strict=False):
            items.pop((Item.NEXT, left))
            assert nexts[left] == right
    return owners


def test_contexts_that_were_never_used_cost_nothing_and_are_zero():
    layout = TableLayout(8, 1024, 256, 16, 1 << 22, 8)
    sizes = {"clusters": 1024, "blocks": 1 << 22, "block_slots": 8, "recent": 256, "entry_bytes": 1}
    kv = KvMap(MapSizes(**sizes, n_ctx=1 << 16))
    assert not kv.contexts
    assert kv.ranges(65535, 0) == []
    assert set(context_items(layout, kv, 1234, []).values()) == {0}
    assert pool_items(layout, kv) == {(Item.POOL, 0): 0}
    kv.append(65535, 3)
    kv.append(65535, 3)
    assert len(kv.contexts) <= 2
    row = layout.pack(Item.ROW, 0, 0, 0, 0, 2)
    items = context_items(layout, kv, 65535, [0, 0, 0, 2])
    assert [items[Item.ROW, k] for k in range(4)] == [0, 0, 0, row]
    assert row >> (3 * bits_for(1 << 22) + bits_for(9)) == 2
