"""What the KVMU and the units around it exchange: beats of its streams, and items of its tables."""

from amaranth import Const, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from openvrex.golden.retrieval.table_layout import Item, TableLayout
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.table_client import Sizes

APPEND, CLEAR, SWITCH = 0, 1, 2  # the HCU's ops JOIN, CLEAR and SWITCH, which the DRE hands on as they are


def sharing_members(p: KvmuParams) -> dict[str, wiring.Member]:
    """With `shared` the input `quota`: most blocks that a context may hold; 0: any number."""
    return {"quota": In(bits_for(p.blocks + 1))} if p.shared else {}


def append_layout(p: KvmuParams) -> data.StructLayout:
    """A request for `ctx`. APPEND: place the entry of `token` in `cluster`, which it opens if `is_new`.

    CLEAR: forget the context. SWITCH: give its token counts. Of both, `clusters` is the context's number of clusters.
    """
    return data.StructLayout(
        {
            "op": 2,
            "ctx": bits_for(p.n_ctx),
            "cluster": p.cluster_bits,
            "is_new": 1,
            "clusters": bits_for(p.clusters + 1),
            "token": p.token_bits,
        }
    )


def fetch_layout(p: KvmuParams) -> data.StructLayout:
    """A cluster of a set of `ctx`. `last`: the final one of its set. `empty`: no cluster, and `cluster` is 0."""
    return data.StructLayout({"ctx": bits_for(p.n_ctx), "cluster": bits_for(p.clusters), "last": 1, "empty": 1})


def placed_layout(p: KvmuParams) -> data.StructLayout:
    """Reply to a request, with its `op` and `token`. To an APPEND: where to write the entry now (`device`), its home.

    `full`: the unit refuses the entry, as no block is free, or the context has its quota. Without a place both
    addresses are 0.
    """
    return data.StructLayout({"op": 2, "token": p.token_bits, "full": 1, "device": p.addr_bits, "home": p.addr_bits})


def counts_layout(p: KvmuParams) -> data.StructLayout:
    """A word of token counts, of `count_lanes` clusters that follow each other; 0 above the last cluster.

    `first`: the first word after a SWITCH. `keep`: the WTU can hold all words of the context, which come once.
    Otherwise they come round and round.
    """
    counts = data.ArrayLayout(p.count_bits, p.count_lanes)
    return data.StructLayout({"valid": 1, "counts": counts, "first": 1, "keep": 1})


def move_layout(p: KvmuParams) -> data.StructLayout:
    """An offload: copy `bytes` (always entry_bytes) from device address `src` to home address `dst`.

    With `kv4_group` they are home_bytes there. `wipes`, with `shared`: write zeros to `bytes` (block_bytes) at `dst`.
    """
    addresses = {"src": p.addr_bits, "dst": p.addr_bits}
    if not p.shared:
        return data.StructLayout({**addresses, "bytes": bits_for(p.entry_bytes + 1)})
    most = max(p.entry_bytes, p.block_bytes)
    return data.StructLayout({**addresses, "bytes": bits_for(most + 1), "wipes": 1})


def span_layout(p: KvmuParams) -> data.StructLayout:
    """Blocks of a cluster from `head` to `end`, which has `slots` slots. A single block without a slot means none.

    `kept`, if blocks are kept: the item of the cluster's place.
    """
    kept = {"kept": p.cluster_bits} if p.kept else {}
    return data.StructLayout({"head": p.block_bits, "end": p.block_bits, "slots": bits_for(p.block_slots + 1), **kept})


def kept_index(p: KvmuParams, cluster: Value) -> Value:
    """The index of a cluster's place of kept blocks among the items RING of its context."""
    return p.recent + cluster[: bits_for(p.kept)] if p.kept else Const(0)


def range_layout(p: KvmuParams) -> data.StructLayout:
    """The first `slots` slots of a block (0: none). `join`: the range continues the previous one of its set.

    If blocks are kept: `near`: the block is kept at `place`. `keep`: it is to be kept there.
    """
    kept = {"near": 1, "keep": 1, "place": bits_for(p.kept)} if p.kept else {}
    return data.StructLayout(
        {
            "block": p.block_bits,
            "slots": bits_for(p.block_slots + 1),
            "join": 1,
            "last": 1,
            "ctx": bits_for(p.n_ctx),
            **kept,
        }
    )


def burst_layout(p: KvmuParams) -> data.StructLayout:
    """A fetch of `bytes` from home address `addr` for `ctx`.

    `last`: the final burst of its set. `empty`: the set needs nothing, and `bytes` is 0. If blocks are kept: `near`:
    these bytes lie at device address `to`, not packed. `keep`: they are to be kept there.
    """
    longest = min(p.boundary, p.blocks * p.block_bytes)
    kept = {"near": 1, "keep": 1, "to": p.addr_bits} if p.kept else {}
    return data.StructLayout(
        {"addr": p.addr_bits, "bytes": bits_for(longest + 1), "ctx": bits_for(p.n_ctx), "last": 1, "empty": 1, **kept}
    )


def map_layouts(p: KvmuParams) -> dict[Item, data.StructLayout]:
    """The fields of each item that the KVMU reads and writes."""
    sizes = p.clusters, p.recent, p.count_bits, p.blocks, p.block_slots
    layout = TableLayout(1, *sizes, beat=4096, shared=p.shared)
    own = (Item.PLACE, Item.RING, Item.COUNT, Item.ROW, Item.NEXT, Item.POOL)
    return {item: data.StructLayout(layout.fields(item)) for item in own}


def map_port(p: KvmuParams) -> Sizes:
    """The argument of `hdl.retrieval.table_client.table_client` for the KVMU."""
    widest = max(layout.size for layout in map_layouts(p).values())
    longest = max(p.clusters, p.recent + p.kept, p.blocks)
    return Sizes(p.n_ctx, longest, widest, p.read_counts, p.count_lanes, p.count_bits)
