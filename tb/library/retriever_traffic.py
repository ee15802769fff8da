"""Traffic of the retriever: instructions and the DRE's answers, and the beats that the retriever must produce."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from openvrex.golden.function_params import BUDGET_BITS
from openvrex.golden.program.isa import ADDR_BITS, REGISTERS, Retrieve
from openvrex.golden.retrieval import kv4
from openvrex.hdl.instruction_layouts import retrieve_layout
from openvrex.hdl.params import CoreParams
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN, SWITCH
from openvrex.hdl.retrieval.kvmu_layouts import APPEND
from openvrex.tb.library.transfer_traffic import bursts_of, content

# Words of 1 to 8 beats, bursts of 1 to 256, entries of 1 to 130 beats, rings of 1 to 16: changes of preset `tiny`.
SIZES = {
    "tiny": ["entry_bytes=96", "recent=3"],
    "budget": ["entry_bytes=96", "recent=3", "budget=true"],
    "one": [
        *(
            "dpe.n_h=1",
            "n_w=1",
            "w_depth=1",
            "x_depth=1",
            "bus_bytes=2",
            "lxe.burst_bytes=2",
            "bursts=1",
            "copies=1",
        ),
        *("words=2", "entry_bytes=2", "recent=1", "clusters=1", "n_ctx=1", "blocks=4", "block_slots=2", "boundary=2"),
    ],
    "long": ["dpe.n_h=8", "n_w=8", "bus_bytes=16", "burst_bytes=4096", "copies=5", "entry_bytes=2080", "n_ctx=2"],
    "blocks": ["entry_bytes=128", "recent=3", "block_slots=2", "boundary=1024"],
    "shared": ["entry_bytes=128", "recent=3", "block_slots=2", "boundary=1024", "shared=true"],
    "kept": ["entry_bytes=128", "recent=3", "block_slots=2", "kept=4", "boundary=1024"],
    "kept_packed": [
        "entry_bytes=128",
        "recent=3",
        "block_slots=2",
        "kept=4",
        "boundary=1024",
        "kv4_group=16",
        "shared=true",
    ],
    # Packed at home: groups of four beats, of two and of half a beat; bursts of four beats and of one.
    "packed": ["entry_bytes=96", "recent=3", "kv4_group=16"],
    "packed_wide": [
        *("dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "bus_bytes=32", "burst_bytes=128", "copies=5"),
        *("entry_bytes=384", "recent=3", "kv4_group=32", "boundary=1024"),
    ],
    "packed_beats": [
        *("dpe.n_h=32", "dpe.n_w=32", "vpe.n_w=32", "bus_bytes=64", "burst_bytes=64", "copies=1"),
        *("entry_bytes=256", "recent=2", "kv4_group=16", "boundary=256"),
    ],
}
PLAIN = ("tiny", "budget", "one", "long", "blocks", "shared", "kept")  # entries are BF16 at home
# Entries and bus as in `core`.
WIDE = ["dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "w_depth=32", "x_depth=512", "bus_bytes=64", "burst_bytes=1024"]
WIDE += ["entry_bytes=4096", "addr_bits=40"]
RINGS, HOMES, SOURCES, FETCHED = 0x1_0000, 0x20_0000, 0x55_AAB0_0000, 0xAA_5560_0000


def retrieve(action: int, addr: int = 0, rows: int = 1, **fields: int) -> dict:
    """A beat of `hdl.instruction_layouts.retrieve_layout`; `fields`: to, level, shift, skip, signal."""
    names = (name for name, _ in retrieve_layout())
    return {**dict.fromkeys(names, 0), "action": int(action), "addr": addr, "rows": rows - 1, **fields}


def news(op: int, ctx: int, clusters: int) -> dict:
    """A beat of `hdl.retrieval.hcu.joined_layout`; of an order, other fields than these mean nothing."""
    return {
        "op": op,
        "ctx": ctx,
        "clusters": clusters,
        "cluster": 0,
        "is_new": 1,
        "token": 0,
        "full_join": 1,
        "last": 1,
    }


def reply(op: int) -> dict:
    """A beat of `hdl.retrieval.kvmu.placed_layout`; of an order, other fields than `op` mean nothing."""
    return {"op": op, "token": 3, "full": 1, "device": 8, "home": 16}


@dataclass
class Episode:
    """A program, the DRE's answers to it, and what must follow up to its end or its first fault.

    c, t, b : beats that the bench drives
    places : replies and moves in order, ("w" or "x", beat)
    copies : (source, destination, bytes read, bytes written, what a program names of them: "", "from" or "to")
    signals : signals of the instructions that complete
    modes : (budgeted, budget) at the end of each of them, where the WTU has budgets; `budget` is 0 without one
    sets : (register, value)
    orders : (op, context) of the orders to the DRE
    answers : for each of them, the indices of its answers in `t` and in `places`
    untaken : answers in `t` and in `places` that no instruction takes
    written : address of each written beat -> its values in order
    bins : coverage bins that the program reaches
    rings, home : addresses of the KVMU's entries
    """

    p: CoreParams
    errors: frozenset[int] = frozenset()
    c: list[dict] = field(default_factory=list)
    t: list[dict] = field(default_factory=list)
    b: list[dict] = field(default_factory=list)
    places: list[tuple[str, dict]] = field(default_factory=list)
    copies: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    modes: list[tuple[int, int]] = field(default_factory=list)
    sets: list[tuple[int, int]] = field(default_factory=list)
    orders: list[tuple[int, int]] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    untaken: tuple[int, int] = (0, 0)
    written: dict[int, list[int]] = field(default_factory=dict)
    fault: str = ""
    bins: set[str] = field(default_factory=set)
    rings: int = RINGS
    home: int = HOMES

    def __post_init__(self):
        n = self.p.dre.kvmu.n_ctx
        self.levels = [0] * n
        self.placed = [0] * n  # entries of each context
        self.mode = (0, 0)
        self.homes: list[int] = []  # addresses of entries at home
        self.kept_at: set[int] = set()  # of blocks that are kept

    def cluster(self, ctx: int, cluster: int | None = None, **fields: int) -> None:
        """The next token joins `cluster`, or opens one."""
        opened = cluster is None
        cluster = self.levels[ctx] if opened else cluster
        self.levels[ctx] += opened
        self.t.append(news(JOIN, ctx, self.levels[ctx]) | {"cluster": cluster, "is_new": int(opened)})
        i = self._next(Retrieve.CLUSTER, **fields)
        self._set(i["to"], i["addr"] + (cluster << i["shift"]))
        self._set(i["level"], self.levels[ctx])
        self.bins.add("opens" if opened else "joins")
        self._done(i)

    def place(self, ctx: int, addr: int, rows: int, full_at: int = -1, **fields: int) -> None:
        """Add a PLACE of `rows` entries of `ctx`; the KVMU is full at entry `full_at`."""
        k = self.p.dre.kvmu
        i = self._next(Retrieve.PLACE, addr, rows, **fields)
        moved = 0
        for r in range(rows):
            slot = self.rings + (ctx * k.recent + self.placed[ctx] % k.recent) * k.entry_bytes
            home = self.home + len(self.homes) * 3 * k.home_bytes
            full = r == full_at
            if self.placed[ctx] >= k.recent and not full:
                self.homes.append(home)
                self._move(slot, home, k.entry_bytes)
                self._copy(slot, home, k.entry_bytes, "packs")
                moved += 1
                self.bins |= {"moves_its_own"} if r >= k.recent else set()
            self.places.append(("w", reply(APPEND) | {"full": int(full), "device": 0 if full else slot, "home": home}))
            if full:
                self.fault = self.fault or "full"
                return
            self._copy(addr + r * k.entry_bytes, slot, k.entry_bytes, named="from")
            self.placed[ctx] += 1
        self.bins.add("moves" if moved else "no_moves")
        self.bins.add("one_row" if rows == 1 else "rows")
        self._done(i)

    def fetch(
        self,
        addr: int,
        bursts: list[tuple[int, int]],
        short: int = 0,
        keep: dict[int, int] | None = None,
        **fields: int,
    ) -> None:
        """Add a FETCH of bursts (address, bytes) that are whole entries; the room is `short` of that many.

        keep : places of the bursts that are blocks to be kept, by number; a burst from in front of the rings is near
        """
        keep, kept = keep or {}, []
        k = self.p.dre.kvmu
        entry, ratio = k.home_bytes, k.entry_bytes // k.home_bytes
        rows = max(1, -(-sum(size for _, size in bursts) // entry) - short)
        i = self._next(Retrieve.FETCH, addr, rows, **fields)
        at = addr
        for number, (src, size) in enumerate(bursts):
            self.b.append({"addr": src, "bytes": size, "ctx": 0, "last": 0, "empty": 0})
            if k.kept:
                near = src in self.kept_at
                self.b[-1] |= {"near": int(near), "keep": int(number in keep), "to": keep.get(number, src)}
                self.b[-1] |= {"addr": 0} if near else {}
                kept += [(at, keep[number], size * ratio)] if number in keep else []
            if at + size * ratio > addr + rows * k.entry_bytes:
                self.fault = self.fault or "full"
            self._copy(src, at, *((size * ratio,) if src in self.kept_at else (size, "expands")), named="to")
            at += size * ratio
        if not bursts:
            self.b.append({"addr": 0, "bytes": 0, "ctx": 0, "last": 0, "empty": 1})
            self.b[-1] |= {"near": 0, "keep": 0, "to": 0} if k.kept else {}
        self.b[-1]["last"] = 1
        for copy in kept:
            self._copy(*copy, named="from")
            self.kept_at.add(copy[1])
        if k.kept:
            self.bins.add("keeps_all" if len(kept) == k.map_sizes().keeps else "keeps" if kept else "keeps_none")
        entries = (at - addr) // self.p.dre.kvmu.entry_bytes
        self.bins |= {"near"} if any(src in self.kept_at for src, _ in bursts) else set()
        self.bins.add("empty" if not bursts else "one_burst" if len(bursts) == 1 else "bursts")
        self.bins |= {"fetches_moved"} if any(src in self.homes for src, _ in bursts) else set()
        self._set(i["to"], entries)
        self._set(i["level"], entries << i["shift"])
        self._done(i)

    def clear(self, ctx: int, wiped: Sequence[int] = (), **fields: int) -> None:
        """Forget a context; `wiped`: its blocks, if users share the engine."""
        self._order(Retrieve.CLEAR, CLEAR, ctx, wiped=wiped, **fields)
        self.levels[ctx] = self.placed[ctx] = 0

    def switch(self, ctx: int, **fields: int) -> None:
        """Let the rows of scores that follow be of a context."""
        self.mode = (0, 0)
        self._order(Retrieve.SWITCH, SWITCH, ctx, **fields)

    def budget(self, ctx: int, rows: int, **fields: int) -> None:
        """Let them select a budget of `rows` tokens, too."""
        self.mode = (1, rows - 1)
        self._order(Retrieve.BUDGET, SWITCH, ctx, rows, **fields)

    def _move(self, src: int, dst: int, size: int, wipes: int = 0) -> None:
        """The KVMU asks for a move, or that a block is wiped."""
        more = {"wipes": wipes} if self.p.dre.kvmu.shared else {}
        self.places.append(("x", {"src": src, "dst": dst, "bytes": size} | more))

    def _order(
        self, action: Retrieve, op: int, ctx: int, rows: int = 1, wiped: Sequence[int] = (), **fields: int
    ) -> None:
        """Add an instruction that sends an order, and both answers to it."""
        i, level = self._next(action, ctx, rows, **fields), self.levels[ctx]
        for block in wiped:
            self._move(block, block, self.p.dre.kvmu.block_bytes, wipes=1)
            self._copy(block, block, self.p.dre.kvmu.block_bytes, "wipes")
        if not self.fault:
            self.orders.append((op, ctx))
            self.answers.append((len(self.t), len(self.places)))
        self.t.append(news(op, ctx, level))
        self.places.append(("w", reply(op)))
        self._set(i["level"], level)
        size = "empty" if not level else "full" if level == self.p.dre.kvmu.clusters else "some"
        self.bins.add(f"{action.name.lower()}_{size}")
        self._done(i)

    def skip(self, action: int, addr: int = 1, **fields: int) -> None:
        """An instruction that only signals."""
        self.bins.add("skip")
        self._done(self._next(action, addr, skip=1, **fields))

    def bad(self, action: int, **fields: int) -> None:
        """Add an instruction that the retriever refuses."""
        self._next(action, **fields)
        self.fault = self.fault or "range"

    @property
    def reads(self) -> list[tuple[int, int]]:
        """All bursts on `ar`."""
        return [b for src, _, size, *_ in self.copies for b in self.bursts(src, size)]

    @property
    def writes(self) -> list[tuple[int, int]]:
        """All bursts on `aw`."""
        return [b for _, dst, _, size, _ in self.copies for b in self.bursts(dst, size)]

    @property
    def named(self) -> tuple[list[int], list[int]]:
        """For each burst on `ar`, and on `aw`, whether a program names its address."""
        reads = [int(n == "from") for src, _, size, _, n in self.copies for _ in self.bursts(src, size)]
        return reads, [int(n == "to") for _, dst, _, size, n in self.copies for _ in self.bursts(dst, size)]

    def bursts(self, addr: int, size: int) -> list[tuple[int, int]]:
        """Bursts of one copy."""
        words = size // (2 * self.p.dpe.n_w)
        return bursts_of(self.p, {"addr": addr, "stride": 0, "rows": 0, "words": words - 1, "wide": 0})

    def _next(self, action: int, addr: int = 0, rows: int = 1, **fields: int) -> dict:
        self.c.append(retrieve(action, addr, rows, signal=1 << len(self.c) % 16, **fields))
        return self.c[-1]

    def _done(self, i: dict) -> None:
        if not self.fault:
            self.signals.append(i["signal"])
            self.modes += [self.mode] * self.p.dre.wtu.budget

    def _set(self, register: int, value: int) -> None:
        if register and not self.fault:
            self.sets.append((register, value % (1 << ADDR_BITS)))

    def _copy(self, src: int, dst: int, size: int, how: str = "", named: str = "") -> None:
        """Copy `size` bytes; with a `how`, "packs" or "expands", as entries at home are packed; "wipes": as zeros."""
        bus, group = self.p.lxe.bus_bytes, self.p.dre.kvmu.kv4_group
        moved = b"".join(
            (self.written[a][-1].to_bytes(bus, "little") if a in self.written else content(a, bus))
            for a in range(src, src + size, bus)
        )
        if how == "wipes":
            moved = bytes(size)
            self.bins.add(how)
        elif group and how:
            moved = (packed if how == "packs" else expanded)(moved, group)
            self.bins.add(how)
            reach = 4 * bus  # of a packed beat
            within = any((a - dst) % reach for a, _ in self.bursts(dst, len(moved)))
            self.bins |= {f"{how}_within_a_beat"} if within and how == "expands" else set()
        self.copies.append((src, dst, size, len(moved), named))
        for k in range(0, len(moved), bus):
            self.written.setdefault(dst + k, []).append(int.from_bytes(moved[k : k + bus], "little"))
        fails = self.errors & {src + k for k in range(0, size, bus)} or self.errors & {
            a for a, _ in self.bursts(dst, len(moved))
        }
        self.fault = self.fault or ("bus" if fails else "")
        longest = self.p.lxe.burst_bytes
        self.bins.add("aligned" if (src - dst) % longest == 0 else "askew")

    def config(self, stalls=None, latency=(1, 9), cut_at: int = 0, stop: bool = False) -> dict:
        """The configuration of `tb.benches.bench_retriever`."""
        return {
            **{name: getattr(self, name) for name in ("c", "t", "b", "places", "untaken")},
            "errors": sorted(self.errors),
            "stalls": stalls or {},
            "latency": list(latency),
            "dones": len(self.signals),
            "fault": self.fault,
            "cut_at": cut_at,
            "stop": stop,
            "hold": 20,
            "limit": 200_000,  # the longest run takes 115_000
        }


def packed(entry: bytes, group: int) -> bytes:
    """An entry as it lies at home."""
    return kv4.pack(np.frombuffer(entry, np.uint16), group).tobytes()


def expanded(entry: bytes, group: int) -> bytes:
    """What comes back of it."""
    return kv4.expand(np.frombuffer(entry, np.uint8), group).tobytes()


def random_episode(p: CoreParams, rng: random.Random, n: int, errors: frozenset[int] = frozenset()) -> Episode:
    """An episode of `n` valid instructions."""
    k, word = p.dre.kvmu, 2 * p.dpe.n_w
    # Addresses use all of their bits. Tokens and sets lie where no entry is, above the addresses that the KVMU knows.
    rings, home = ((2 * x + 1) << 20 | rng.randrange(1 << 7) << 12 for x in rng.sample(range(1 << 11), 2))
    out, upper = Episode(p, errors, rings=rings, home=home), rings >> 21 & 1

    def elsewhere(half: int) -> int:
        at = (half ^ upper) << ADDR_BITS - 1 | rng.randrange(1 << k.addr_bits, 1 << ADDR_BITS - 1)
        return at // word * word

    contexts = [0, k.n_ctx // 2, k.n_ctx - 1]
    actions = [Retrieve.CLUSTER] * 3 + [Retrieve.PLACE] * 3 + [Retrieve.FETCH] * 3 + [Retrieve.CLEAR, Retrieve.SWITCH]
    actions += [Retrieve.SWITCH, Retrieve.BUDGET, Retrieve.BUDGET] * p.dre.wtu.budget
    for _ in range(n):
        registers = {name: rng.randrange(REGISTERS) for name in ("to", "level")} | {"shift": rng.randrange(32)}
        ctx = rng.choice(contexts)
        action = rng.choice(actions)
        if rng.random() < 0.1:
            out.skip(action, **registers)
        elif action == Retrieve.CLUSTER:
            level = out.levels[ctx]
            opens = not level or (level < k.clusters and rng.random() < 0.5)
            out.cluster(ctx, None if opens else rng.randrange(level), addr=rng.getrandbits(ADDR_BITS), **registers)
        elif action == Retrieve.PLACE:
            out.place(ctx, elsewhere(0), rng.choice([1, 2, k.recent + 1, rng.randint(1, 6)]), **registers)
        elif action == Retrieve.FETCH:
            out.fetch(elsewhere(1), *(random_blocks if k.kept else random_bursts)(out, rng), **registers)
        elif action == Retrieve.SWITCH:
            out.switch(ctx, **registers)
        elif action == Retrieve.BUDGET:
            out.budget(ctx, rng.choice([1, 2, 1 << BUDGET_BITS, rng.randint(1, 1 << BUDGET_BITS)]), **registers)
        else:
            places = range(out.home ^ 1 << 21, (out.home ^ 1 << 21) + 99 * k.block_bytes, k.block_bytes)
            out.clear(ctx, rng.sample(places, rng.choice((0, 1, 3, 9))) if k.shared else (), **registers)
    return out


def random_blocks(episode: Episode, rng: random.Random) -> tuple[list[tuple[int, int]], int, dict[int, int]]:
    """A cluster set of blocks, some of them to be kept, among other entries; nothing is short."""
    k, bursts, keep = episode.p.dre.kvmu, list[tuple[int, int]](), dict[int, int]()
    for _ in range(rng.choice((0, 1, 3, 5))):
        at = (episode.home ^ 1 << 20) + rng.randint(0, 99) * k.block_bytes
        if episode.kept_at and rng.random() < 0.3:
            bursts.append((rng.choice(sorted(episode.kept_at)), k.block_bytes))
            continue
        if rng.random() < 0.7 and len(keep) < k.map_sizes().keeps:
            keep[len(bursts)] = (episode.rings ^ 1 << 19) + rng.randrange(k.kept) * k.map_sizes().place_bytes
        bursts += [(at, k.block_bytes)] if len(bursts) in keep else cut(episode.p, at, rng.randint(1, 2))
    return bursts, 0, keep


def random_bursts(episode: Episode, rng: random.Random) -> tuple[list[tuple[int, int]]]:
    """A cluster set: entries at home, as bursts within `boundary`."""
    k = episode.p.dre.kvmu
    out = []
    for _ in range(rng.randint(0, 3)):
        home = (
            rng.choice(episode.homes)
            if episode.homes and rng.random() < 0.5
            else (episode.home ^ 1 << 20) + rng.randint(0, 99) * k.home_bytes
        )
        out += cut(episode.p, home, rng.randint(1, 2))
    return (out,)


def cut(p: CoreParams, at: int, entries: int) -> list[tuple[int, int]]:
    """Consecutive entries as bursts of the KVMU."""
    k, out = p.dre.kvmu, []
    end = at + entries * k.home_bytes
    while at < end:
        size = min(end, (at // k.boundary + 1) * k.boundary) - at
        out.append((at, size))
        at += size
    return out
