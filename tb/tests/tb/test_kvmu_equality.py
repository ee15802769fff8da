"""The specifications of the KVMU's parts beside golden: what beats of `a` place, write and move, what sets fetch."""

from collections import defaultdict, deque
from functools import cache

import pytest

from openvrex.golden.retrieval.kvmap import KvMap
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, CLEAR, map_layouts
from openvrex.tb.checks.kvmu_checks import SIZES, Replay, bases, kept_index, traffic
from openvrex.tb.formal.count_stream_equality import CountsSpec
from openvrex.tb.formal.fetch_equality import MergerSpec, WalkSpec
from openvrex.tb.formal.placer_spec import PlacerSpec
from openvrex.tb.library.simulated import simulated

QUOTA = 7  # blocks of a context, with `shared`
POOL = 12  # blocks of all contexts
SPECIFIED = ("tiny", "ragged", "one", "runs", "kept", "kept-shared", "shared-one", "one-slot")


def fields(view) -> dict[str, int]:
    """The numbers of a simulated payload."""
    return {name: view[name] for name, _ in view.shape()}


def aligned(p: KvmuParams) -> tuple[int, int]:
    """Bases as the KVMU hands them on: with `kept` multiples of a place and of a block."""
    device, home = bases(p, 1)
    sizes = p.map_sizes()
    return (device - device % sizes.place_bytes, home - home % p.block_bytes) if p.kept else (device, home)


def served(p: KvmuParams, beats: list[dict], device: int, home: int) -> tuple[list, dict]:
    """What the placer's specification does with each beat: its reply, writes and moves; and the tables at the end."""
    spec, out, memory = PlacerSpec(p), [], defaultdict(int)
    rows = map_layouts(p)[Item.ROW]

    async def play(ctx):
        owed, spans = deque(), deque()

        async def pulse(*names):
            for name in names:
                ctx.set(getattr(spec, name), 1)
            await ctx.tick()
            for name in names:
                ctx.set(getattr(spec, name), 0)

        async def item(clears: bool):
            key = owed.popleft()
            word = memory[key]
            ctx.set(spec.came, word)
            if clears and key[0] == Item.ROW:
                row = rows.from_bits(word)
                spans.append({"head": row.head, "end": row.tail, "slots": row.tail_slots})
            await pulse("comes")

        for name, value in (("device_base", device), ("home_base", home), ("blocks", min(p.blocks, POOL))):
            ctx.set(getattr(spec, name), value)
        if p.shared:
            ctx.set(spec.quota, QUOTA)
        ctx.set(spec.beat, {"op": APPEND})
        while not ctx.get(spec.pooled):
            await pulse("asks")
            owed.append((Item.POOL, 0, 0))
            await item(False)
        for beat in beats:
            clears, writes, moves = beat["op"] == CLEAR, {}, []
            ctx.set(spec.beat, beat)
            await pulse("takes")
            while not ctx.get(spec.reply_due):
                if spans:
                    ctx.set(spec.span, spans[0])
                if owed:
                    await item(clears)
                elif ctx.get(spec.ask_due):
                    ask = fields(ctx.get(spec.ask))
                    owed.append((Item(ask["item"]), ask["ctx"], ask["index"]))
                    await pulse("asks")
                elif ctx.get(spec.move_due):
                    moves.append(fields(ctx.get(spec.move)))
                    await pulse("moves")
                elif ctx.get(spec.put_due):
                    put = fields(ctx.get(spec.put))
                    key = Item(put["item"]), put["ctx"], put["index"]
                    assert key not in writes
                    writes[key] = memory[key] = put["data"]
                    frees = clears and key[0] == Item.ROW
                    await pulse("puts", *(["pops"] if frees else []))
                    if frees:
                        spans.popleft()
                elif ctx.get(spec.span_due):
                    assert not spans.popleft()["slots"]
                    await pulse("pops")
                else:
                    await pulse("switches" if ctx.get(spec.switch_due) else "switched")
            out.append((fields(ctx.get(spec.reply)), writes, moves))
            await pulse("replies")

    simulated(spec, play)
    return out, memory


def fetched(p: KvmuParams, beats: list[dict], memory: dict, device: int, home: int) -> list[dict]:
    """The bursts that the specifications of walk and merger give for sets, a set after the other; notes take effect."""
    walk, merger, ranges, bursts = WalkSpec(p), MergerSpec(p), [], []
    rows = map_layouts(p)[Item.ROW]

    async def steps(ctx):
        async def pulse(name):
            ctx.set(getattr(walk, name), 1)
            await ctx.tick()
            ctx.set(getattr(walk, name), 0)

        for beat in beats:
            of = beat["ctx"], beat["cluster"]
            row = rows.from_bits(memory[Item.ROW, *of])
            span = {"head": row.head, "end": row.off, "slots": row.off_slots}
            kept = {"kept": memory[Item.RING, of[0], kept_index(p, of[1])]} if p.kept else {}
            ctx.set(walk.beat, beat)
            await pulse("takes")
            ctx.set(walk.span, span | kept)
            ctx.set(walk.rows, 1)
            while ctx.get(walk.left):
                if ctx.get(walk.ask_due):
                    block = ctx.get(walk.ask)
                    await pulse("asks")
                    ctx.set(walk.next, memory[Item.NEXT, 0, block])
                    await pulse("nexts")
                elif ctx.get(walk.range_due):
                    ranges.append(fields(ctx.get(walk.range)))
                    await pulse("gives")
                else:
                    await ctx.tick()
            while beat["last"] and ctx.get(walk.notes_due):
                note = fields(ctx.get(walk.note))
                memory[Item(note["item"]), note["ctx"], note["index"]] = note["data"]
                await pulse("notes")

    async def joins(ctx):
        waits = deque(ranges)
        ctx.set(merger.home_base, home)
        ctx.set(merger.device_base, device)
        while waits or ctx.get(merger.due):
            gives = ctx.get(merger.due)
            if gives:
                bursts.append(fields(ctx.get(merger.burst)))
            ctx.set(merger.gives, gives)
            ctx.set(merger.takes, int(bool(waits) and not gives))
            if waits and not gives:
                ctx.set(merger.given, waits.popleft())
            await ctx.tick()
            ctx.set(merger.gives, 0)
            ctx.set(merger.takes, 0)

    simulated(walk, steps)
    simulated(merger, joins)
    return bursts


def wanted(kv: KvMap, p: KvmuParams, beats: list[dict]) -> list[dict]:
    """The bursts of golden for the same sets."""
    out, ends = [], [k + 1 for k, beat in enumerate(beats) if beat["last"]]
    for first, end in zip([0, *ends], ends, strict=False):
        ctx, clusters = beats[first]["ctx"], [b["cluster"] for b in beats[first:end] if not b["empty"]]
        found = kv.take(ctx, clusters) if p.kept else kv.fetch(ctx, clusters)
        out += [s.beat(p.kept > 0) | {"ctx": ctx, "last": int(s is found[-1]), "empty": 0} for s in found]
        out += [] if found else [{"ctx": ctx, "bytes": 0, "last": 1, "empty": 1}]
    return out


@cache
def compared(size: str) -> frozenset[str]:
    """Plays beats and sets of a size; the bins that golden hit."""
    p = SIZES[size]
    a, f = traffic(p, 3, 400, clear=0.02, sets=40)
    device, home = aligned(p)
    replay = Replay(p, KvMap(p.map_sizes(min(p.blocks, POOL)), device, home, QUOTA if p.shared else 0))
    out, memory = served(p, a, device, home)
    for beat, given in zip(a, out, strict=True):
        assert given == replay.serve(beat)
    # Clusters of a set rise, and an empty beat is alone.
    beats = [beat for beat in f if not beat["empty"] or beat["last"]]
    for beat, after in zip(beats, [*beats[1:], None], strict=True):
        beat["last"] = int(after is None or after["ctx"] != beat["ctx"] or after["cluster"] <= beat["cluster"])
    got, want = fetched(p, beats, memory, device, home), wanted(replay.kv, p, beats)
    assert [{n: have[n] for n in burst} for have, burst in zip(got, want, strict=True)] == want
    kinds = ("near", "keep", "empty")
    return frozenset(replay.bins | {kind for kind in kinds if any(burst.get(kind) for burst in want)})


@pytest.mark.parametrize("size", SPECIFIED)
def test_the_kvmu_s_specifications_are_golden(size):
    """Beats of several contexts, that fill the pool and free it, then sets of any clusters, some fetched again."""
    compared(size)


def test_the_beats_reach_every_case():
    bins = frozenset[str]().union(*(compared(size) for size in SPECIFIED))
    assert bins >= {"full", "full_opens", "quota", "fresh_block", "freed_block", "next_freed_block", "next_block"}
    assert bins >= {"clear_used", "clear_empty", "wipes", "wipes_chain", "offload_of_same_cluster", "count_saturates"}
    assert bins >= {"near", "keep", "empty"}


@pytest.mark.parametrize("clusters", [1, 5, 8, 9, 21])
def test_the_specification_of_counts_reads_each_count_in_turn(clusters):
    """A context that fits is read once; a larger one again and again, as the ring is used."""
    p = KvmuParams(clusters=32, counts=8, read_counts=4, count_lanes=2, n_ctx=2)
    spec, asks = CountsSpec(p), []

    async def play(ctx):
        ctx.set(spec.context, {"ctx": 1, "clusters": clusters})
        ctx.set(spec.switches, 1)
        await ctx.tick()
        ctx.set(spec.switches, 0)
        for _ in range(60):
            due, coming = ctx.get(spec.ask_due), ctx.get(spec.coming)
            if due:
                asks.append((ctx.get(spec.ask.index), ctx.get(spec.ask.more) + 1))
            ctx.set(spec.asks, due)
            ctx.set(spec.comes, int(coming > 0))
            ctx.set(spec.uses, int(coming > 0 and clusters > p.counts))
            await ctx.tick()

    simulated(spec, play)
    turn = [(at, min(p.read_counts, clusters - at)) for at in range(0, clusters, p.read_counts)]
    assert asks == (turn if clusters <= p.counts else (turn * 60)[: len(asks)])
    assert clusters <= p.counts or len(asks) > 2 * len(turn)
