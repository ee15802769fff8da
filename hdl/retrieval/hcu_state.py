"""Registers and decisions of the HCU by what they belong to, and layouts of its streams and memories."""

from amaranth import Const, Signal, Value
from amaranth.lib import data
from amaranth.utils import exact_log2

from openvrex.hdl.memory import Ram
from openvrex.hdl.params import HcuParams, bits_for
from openvrex.hdl.retrieval.table_client import Sizes

JOIN, CLEAR, SWITCH, NEWEST = 0, 1, 2, 3


def orders(p: HcuParams, op: Value) -> Value:
    """Whether an op is no key: CLEAR or SWITCH."""
    return op[0] ^ op[1] if p.newest else op != JOIN


def is_key(p: HcuParams, op: Value) -> Value:
    """Whether an op is a key."""
    return op[0] == op[1] if p.newest else op == JOIN


def token_layout(p: HcuParams) -> data.StructLayout:
    """A key to cluster. `op`: JOIN, or NEWEST (`HcuParams.newest`), or CLEAR or SWITCH of `ctx`. `token`: number.
    `last`: final key of its frame.
    """
    return data.StructLayout({"op": 2, "ctx": bits_for(p.n_ctx), "token": p.token_bits, "hash": p.n_hp, "last": 1})


def joined_layout(p: HcuParams) -> data.StructLayout:
    """Result of a key: its cluster, and the number of clusters of its context with this key.

    `is_new`: the key opened the cluster. `full_join`: it joined although it is far, because the table is full.
    NEWEST comes out as JOIN. CLEAR and SWITCH pass through, so that the units behind see them in order, with the number
    of clusters before them.
    """
    return data.StructLayout(
        {
            "op": 2,
            "ctx": bits_for(p.n_ctx),
            "token": p.token_bits,
            "cluster": p.cluster_bits,
            "clusters": bits_for(p.clusters + 1),
            "is_new": 1,
            "full_join": 1,
            "last": 1,
        }
    )


def key_layout(p: HcuParams) -> data.StructLayout:
    """A word of the current hash-bit memory."""
    return data.StructLayout({"token": p.token_bits, "hash": p.n_hp})


def nearest_layout(p: HcuParams) -> data.StructLayout:
    """A key's nearest cluster so far. `distance` is the limit of the search while no cluster is below it."""
    return data.StructLayout({"distance": p.distance_bits, "cluster": p.cluster_bits})


def client_sizes(p: HcuParams) -> Sizes:
    """The argument of `hdl.retrieval.table_client.table_client` for the HCU."""
    return Sizes(p.n_ctx, p.clusters, max(p.n_hp, bits_for(p.clusters + 1)), p.tile)


class Batch:
    """The batch being collected. Its keys lie in the current hash-bit memory, behind those of the batch in work."""

    def __init__(self, p: HcuParams):
        self.op = Signal(2, name="batch_op")
        self.ctx = Signal(bits_for(p.n_ctx), name="batch_ctx")
        self.last = Signal(name="batch_last")  # its final key ends a frame
        self.some = Signal(name="batch_some")  # it has a key
        self.closed = Signal(name="batch_closed")  # it has all its keys
        self.first = Signal(bits_for(p.frame), name="batch_first")  # position of its first key
        self.write = Signal(bits_for(p.frame), name="batch_write")  # position of the next key that comes
        self.held = Signal(bits_for(p.frame + 1))  # keys in the memory, those of the batch in work too
        self.starts = Signal()  # it becomes the batch in work


class Work:
    """The batch in work, and its table."""

    def __init__(self, p: HcuParams):
        tiles = -(-p.clusters // p.tile)
        n_bits = bits_for(p.clusters + 1)
        self.op = Signal(2, name="work_op")
        self.ctx = Signal(bits_for(p.n_ctx), name="work_ctx")
        self.last = Signal(name="work_last")  # its final key ends a frame
        self.first = Signal(bits_for(p.frame), name="work_first")  # position of its first key
        self.started = Signal()  # its keys are being compared
        self.over = Signal()  # its keys are resolved, its items are here, its puts are taken
        self.used = Signal(n_bits)  # clusters of the context
        self.used_next = Signal(n_bits)  # with one more
        self.full = Signal()
        self.near_full = Signal()  # the batch may fill the table
        self.nothing = Signal()  # there is no cluster to compare with
        self.last_tile = Signal(bits_for(tiles), name="work_last_tile")
        self.first_tile: Value = Const(0, 0)  # of the batch, when its level comes
        self.newest = self.op == NEWEST  # its keys look at the last tile only; if `p.newest`
        self.asks_level = Signal()
        self.level_comes = Signal()
        self.asking = Signal()  # a tile remains to be asked for
        self.asks_tile = Signal()
        self.asked = Signal(bits_for(tiles))  # the next tile to ask for
        self.item_comes = Signal()
        self.arrived = Signal(n_bits)  # clusters that came
        self.all_here = Signal()  # all of them came


class Head:
    """The next visit of a key to a tile. Its key was read ahead."""

    def __init__(self, p: HcuParams, keys: Ram):
        self.valid = Signal(name="head_valid")
        self.key = data.View(key_layout(p), keys.r_data)
        self.rests: list[Value] = []  # population count of the key's bits behind each chunk
        self.position = Signal(bits_for(p.frame), name="head_position")  # of the key, in the current hash-bit memory
        self.tile = Signal(bits_for(-(-p.clusters // p.tile)), name="head_tile")
        self.final = Signal(name="head_final")  # final key of the batch
        self.in_last = Signal(name="head_in_last")  # in the last tile
        self.load = Signal()  # it becomes the visit in work


class Scan:
    """The visit in work, and its progress."""

    def __init__(self, p: HcuParams, nearest: Ram):
        self.log_h = exact_log2(p.n_h)
        self.valid = Signal(name="scan_valid")
        self.key = Signal(key_layout(p))
        self.rests: list[Signal] = []  # population count of the key's bits behind each chunk
        self.position = Signal(bits_for(p.frame), name="scan_position")  # of the key, in the current hash-bit memory
        self.tile = Signal(bits_for(-(-p.clusters // p.tile)), name="scan_tile")
        self.fresh = Signal()  # in the first tile
        self.resolves = Signal()  # in the last tile: at its end the key joins or opens a cluster
        self.final = Signal(name="scan_final")  # final key of the batch
        self.first = Signal(name="scan_first")  # nothing has been compared in this visit, and `best` is another key's
        self.over = Signal(name="visit_over")  # nothing remains to be compared in this visit
        self.here = Signal()  # the memory's output is the group
        self.group = Signal(bits_for(-(-p.clusters // p.n_h)), name="scan_group")
        self.chunk = Signal(bits_for(p.chunks), name="scan_chunk")
        self.partial = [Signal(p.distance_bits, name=f"partial{i}") for i in range(p.n_h)]  # of the last comparison
        self.won = Signal(p.n_h)  # clusters of the last comparison that are nearer than `best`
        self.compared = Signal.like(self.group, name="compared")  # group of the last comparison
        self.stored = data.View(nearest_layout(p), nearest.r_data)  # nearest cluster of the tiles before
        self.best = Signal(
            p.distance_bits
        )  # least distance before the last comparison, or the limit if none came below that
        self.best_cluster = Signal(p.cluster_bits)

    def cluster(self, lane: int | Value) -> Value:
        """Index of the cluster in a lane."""
        return (self.group << self.log_h) | lane


class Step:
    """The group that is read next: of this visit, or the first of the next one."""

    def __init__(self, p: HcuParams):
        self.group = Signal(bits_for(-(-p.clusters // p.n_h)), name="next_group")
        self.wants = Signal()  # the group must be read
        self.there = Signal()  # the group has arrived


class End:
    """The end of a visit, and the result of a key."""

    def __init__(self, p: HcuParams):
        self.out = Signal(joined_layout(p))
        self.out_valid = Signal()
        self.out_free = Signal()
        self.puts_hash = Signal()  # the hash bits of the result's new cluster were not taken yet
        self.puts_level = Signal()  # the number of clusters with that result was not taken yet
        self.compares = Signal()  # the lanes compare the key with a group
        self.finish = Signal()  # the visit ends
        self.near = Signal()  # the nearest cluster is below th_hd
        self.resolves = Signal(name="resolved")  # that visit is the key's last
        self.opens = Signal()
        self.joins = Signal()
        self.far = Signal()  # the key joins a cluster that is not near
