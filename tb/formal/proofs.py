"""All proofs of the project: each claim with its unit and size, and the evidence that the claim can fail."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from unittest.mock import patch

from amaranth.lib import wiring
from amaranth.lib.data import StructLayout

from openvrex.hdl.emit import ALL, params_of
from openvrex.hdl.execution.loader import Loader
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.hdl.execution.storer import Storer
from openvrex.hdl.params import DreParams, SystemParams, WtuParams, override, preset
from openvrex.hdl.shells.register_block import address_map
from openvrex.hdl.slices import ReadySlice, Slice
from openvrex.tb.formal import (
    clock_gate_equivalence,
    hcu_equality,
    hcu_tiles_proof,
    kvmu_allocator_proof,
    kvmu_map_proof,
    kvmu_tables,
    table_port_proof,
    verilog_equivalence,
    wtu_equality,
    wtu_set_proof,
)
from openvrex.tb.formal.arbiter_proof import CommonMonitor, PortMonitor, TurnMonitor
from openvrex.tb.formal.bursts_proof import BusMonitor
from openvrex.tb.formal.cluster_set_equality import ClusterSetMonitor
from openvrex.tb.formal.collision_proof import CollisionMonitor
from openvrex.tb.formal.count_stream_equality import CountsMonitor
from openvrex.tb.formal.dre_join_proof import WatchedDre
from openvrex.tb.formal.fetch_equality import MergerMonitor, WalkMonitor
from openvrex.tb.formal.free_unit import FreeJoin
from openvrex.tb.formal.guard_proof import GuardMonitor
from openvrex.tb.formal.halt_proof import HaltMonitor, WatchedLxe
from openvrex.tb.formal.idle_proof import shown
from openvrex.tb.formal.interleaver_proof import InterleaverMonitor
from openvrex.tb.formal.kv4_proof import BeatMonitor, CodeMonitor
from openvrex.tb.formal.kvmu_join_proof import JoinMonitor
from openvrex.tb.formal.motion_mask_equality import MotionMaskMonitor
from openvrex.tb.formal.motion_mask_proof import RESIDUALS, SMALL, GrowthMonitor
from openvrex.tb.formal.order_proof import OrderMonitor
from openvrex.tb.formal.placer_equality import PlacerMonitor
from openvrex.tb.formal.prover import MEMORIES, Proof, holds
from openvrex.tb.formal.register_block_equality import RegisterBlockMonitor
from openvrex.tb.formal.register_proof import RegisterMonitor, SetMonitor
from openvrex.tb.formal.row_check_proof import RowMonitor
from openvrex.tb.formal.sequencer_proof import (
    BITS,
    LoopMonitor,
    ReadyMonitor,
    SemaphoreMonitor,
    SteadySemaphores,
    StuckMonitor,
)
from openvrex.tb.formal.stream_proof import StreamMonitor, waiting
from openvrex.tb.formal.wtu_ring_proof import RingMonitor

LIMIT = 600  # seconds of ABC's processor time
PROVED = (*ALL, "register_block")  # blocks with claims

# Every count is at or near its least value, so that all of them wrap and overflow within a few cycles.
_SMALL = (
    *("clusters=4", "n_ctx=2", "n_hp=4", "hcu.n_w=2", "tile=2", "frame=2", "token_bits=3"),
    *("count_bits=3", "wtu.n_w=2"),
    *("score=e2m2", "bin_bits=3", "count_digit=2", "n_buckets=16"),
    *("blocks=4", "block_slots=2", "recent=2", "entry_bytes=8", "boundary=16", "addr_bits=8", "rows=2"),
    *("counts=2", "read_counts=2"),
    *("dpe.n_h=2", "dpe.n_w=2", "vpe.n_w=2", "w_depth=4", "x_depth=4", "vpe.depth=4", "lxe.words=2"),
    *("bus_bytes=4", "burst_bytes=8", "i_depth=4", "queue=1", "bursts=1", "copies=1"),
)


@cache
def small() -> SystemParams:
    """The preset tiny with smaller counts."""
    return override(preset("tiny"), list(_SMALL))


@dataclass(frozen=True)
class Goal:
    """A claim about a unit, and what shows that it can fail.

    make : makes the monitor of the claim; `make(True)` claims that the event never happens, and must fail, or the claim
        is vacuous
    edit : change of the RTLIL after which the claim must fail
    deep : cycles within which both must fail; 0 looks for neither, because a program would have to run: then the goals
        of the units inside show it
    size : the parameters, for readers
    cut, merge, depth : as for `tb.formal.prover.holds`
    within : replacements that hold during the proof
    plants : `vrex dev prove --equal` plants faults in it
    """

    unit: str
    claim: str
    size: str
    make: Callable[[bool], wiring.Component]
    edit: tuple[str, str]
    deep: int
    cut: str = "none"
    merge: bool = True
    depth: int | None = None
    within: Callable[[], AbstractContextManager] = nullcontext
    plants: bool = False

    @property
    def name(self) -> str:
        """Name of its waveforms."""
        return "-".join(re.findall(r"\w+", f"{self.unit} {self.claim} {self.size}"))

    def prove(self, limit: int = LIMIT) -> Proof:
        """Whether the claim holds. Raises `RuntimeError` if ABC has no answer in `limit` seconds of processor time."""
        with self.within():
            how = {"merge": self.merge, "cut": self.cut, "depth": self.depth, "limit": limit}
            return holds(self.make(False), **how, name=self.name)

    def reached(self, limit: int = LIMIT) -> Proof:
        """Show that the claimed event happens: False, with a waveform of it, is the good result."""
        with self.within():
            return holds(self.make(True), merge=False, depth=self.deep, limit=limit, name=f"{self.name}-reached")

    def edited(self, limit: int = LIMIT) -> Proof:
        """Prove the claim of the edited unit: False is the good result."""
        with self.within():
            return holds(self.make(False), self.edit, False, depth=self.deep, limit=limit, name=f"{self.name}-edited")

    def judge(self, limit: int = LIMIT) -> "Verdict":
        """Run all three."""
        start = time.monotonic()
        try:
            proof = self.prove(limit)
            reached, edited = (self.reached(limit), self.edited(limit)) if self.deep else (None, None)
        except RuntimeError as e:
            return Verdict(self.unit, self.claim, self.size, "no answer", "", time.monotonic() - start, note=str(e))
        found = ["broken"] * (not proof) + ["never happens"] * bool(reached) + ["edit not seen"] * bool(edited)
        kind = found[0] if found else f"{proof.depth} cycles" if proof.depth else "unbounded"
        note = str(proof) if not proof else ""
        depths = [p.depth if p is not None else None for p in (reached, edited)]
        return Verdict(self.unit, self.claim, self.size, kind, proof.engine, proof.seconds, *depths, note)


@dataclass(frozen=True)
class Verdict:
    """The result of a claim.

    kind : "unbounded", "<n> cycles", or what is wrong
    seconds : time of the proof alone
    reached : cycles until the claimed event happens
    edited : cycles until the edited unit breaks the claim
    """

    unit: str
    claim: str
    size: str
    kind: str
    engine: str
    seconds: float
    reached: int | None = None
    edited: int | None = None
    note: str = ""

    @property
    def fine(self) -> bool:
        """Whether the claim holds and could have failed."""
        return self.kind == "unbounded" or self.kind.endswith("cycles")


def _on_ready(unit: wiring.Component) -> list[str]:
    return [f"{out} depends on {', '.join(sorted(names))}" for out, names in waiting(unit).items() if names]


def _on_idle(unit: wiring.Component) -> list[str]:
    return [f"{out} shows it" for out in sorted(shown(unit))]


@dataclass(frozen=True)
class Independence:
    """The claim that outputs of `unit` do not depend on some inputs of the same cycle.

    search : finds the outputs that do
    """

    unit: str
    size: str
    make: Callable[[], wiring.Component]
    claim: str
    search: Callable[[wiring.Component], list[str]]
    engine: str

    def judge(self, limit: int = LIMIT) -> Verdict:
        """Decide it in a time that has no limit."""
        start = time.monotonic()
        found = self.search(self.make())
        kind, note = "broken" if found else "unbounded", "; ".join(found)
        return Verdict(self.unit, self.claim, self.size, kind, self.engine, time.monotonic() - start, note=note)


INDEPENDENT: dict[str, tuple[Callable[[wiring.Component], list[str]], str]] = {
    "no offer depends on ready": (_on_ready, "netlist"),
    "no idle payload shows": (_on_idle, "sat"),
}


@dataclass(frozen=True)
class Equality:
    """The claim that the written Verilog of a unit is Amaranth's own RTLIL of it, register by register."""

    unit: str
    size: str
    claim: str = "its Verilog equals RTLIL"

    def judge(self, limit: int = LIMIT) -> Verdict:
        """Decide it by ABC, each leaf on its own; `limit` does not count."""
        return _compared(self, lambda: verilog_equivalence.prove(self.unit, params_of(self.unit, preset(self.size))))


@dataclass(frozen=True)
class Gated:
    """The claim that a unit mapped with clock gates is the unit mapped without, flip-flop by flip-flop."""

    unit: str
    size: str
    claim: str = "clock gates change nothing"

    def judge(self, limit: int = LIMIT) -> Verdict:
        """Decide it by ABC, each leaf on its own; `limit` does not count."""
        return _compared(self, lambda: clock_gate_equivalence.prove(self.unit, params_of(self.unit, preset(self.size))))


def _compared(goal: Equality | Gated, compare: Callable[[], Iterable[verilog_equivalence.Equal]]) -> Verdict:
    """The verdict on two netlists that `compare` proves equal."""
    start = time.monotonic()
    try:
        modules = list(compare())
    except verilog_equivalence.UnequalError as e:
        return Verdict(goal.unit, goal.claim, goal.size, "broken", "cec", time.monotonic() - start, note=str(e))
    note = ", ".join(f"{m.module}: {m.registers} registers" for m in modules)
    return Verdict(goal.unit, goal.claim, goal.size, "unbounded", "cec", time.monotonic() - start, note=note)


def unread(port: str, module: str = "unit") -> tuple[str, str]:
    """An edit: where `module` first reads its one-bit input `port`, it sees 1."""
    return rf"(?s)(\nmodule \\top\.{module}\n.*?(?:connect \\[ABS]|switch(?: {{)?) )\\{port} \[0\]", r"\g<1>1'1"


_STABLE = (
    "th_hd",
    "ratio",
    "device_base",
    "home_base",
    "blocks",
)  # inputs that must be stable according to the data sheets


def _stable(unit: wiring.Component) -> tuple[str, ...]:
    return tuple(n for n in _STABLE if hasattr(unit, n))


def unit_of(name: str, p: object = None) -> wiring.Component:
    """The unit `name` with the parameters `p`, or small ones."""
    module, cls, _ = ALL[name]
    return getattr(import_module(module), cls)(p or params_of(name, small()))


def stream_goal(
    unit: str, edit: tuple[str, str], deep: int, p: object = None, size: str = "", asked: bool = False, **how
) -> Goal:
    """The claim that a beat of `unit` stays until taken, whatever memories hold. `asked`: as in `UnitMonitor`."""

    def make(reach: bool) -> StreamMonitor:
        made = unit_of(unit, p)
        return StreamMonitor(made, _stable(made), reach, asked)

    return Goal(unit, "an offer stays until taken", size, make, edit, deep, cut=MEMORIES, merge=False, **how)


def _collisions() -> Iterator[Goal]:
    """Goals of memories that a unit reads and writes at once. Engines of the LXE leave that to the program."""
    forwards = (r"connect \\S \\part \[4\]", r"connect \\S 1'0")  # takes the word that was read
    for unit, p, size, edit, depth in (
        ("cluster_set", None, "sets of 4", forwards, None),
        ("hcu", hcu_tiles_proof.SMALL, "7 clusters", _KEEPS, 15),
    ):

        def make(reach: bool, unit: str = unit, p: object = p) -> CollisionMonitor:
            one, other = unit_of(unit, p), unit_of(unit, p)
            return CollisionMonitor(one, other, _stable(one), reach, asked=unit == "hcu")

        yield Goal(unit, "no word of a collision is used", size, make, edit, 30, depth=depth)


def goals() -> Iterator[Goal | Independence | Equality | Gated]:
    """All goals, unit by unit."""
    found = [*_specified(), *_streams(), *_hcu(), *_kvmu_parts(), *_kvmu(), *_wtu(), *_table_port(), *_rest()]
    found += [*_kv4(), *_registers(), *_dre_join(), *_collisions(), *_independence(), *_equality(), *_gated()]
    for unit in PROVED:
        yield from (g for g in found if g.unit == unit)


_OVER = (r"connect \\B \S+ \[0\](\n\s+connect \\Y \\asks_tile\n)", r"connect \\B 1'1\1")  # asks over a tile in use
_KEEPS = (r"connect \\S \\scan_first \[0\]", r"connect \\S 1'1")  # a key alone in its batch takes what was read
_TWICE = (r"cell \$or (\$\d+\n(?:.*\n){5}    connect \\A \\active)", r"cell $xor \1")  # a patch twice is none
GUARDED = "no burst leaves its regions or lacks its answer"
EQUAL = "equals its specification"  # for every input, every stall and every content of memories, without a bound
_counted = partial(patch, "openvrex.hdl.unit.COUNTER_BITS", 2)  # counters that wrap soon


@contextmanager
def _rows() -> Iterator[None]:
    """Counters that wrap soon, and ratios of few bits."""
    with _counted(), wtu_set_proof.short_ratio():
        yield


def _specified() -> Iterator[Goal]:
    """Goals of units that are proved equal to a specification."""
    p = small().core.dre.wtu
    forwards = (r"connect \\S \\part \[\d+\]", r"connect \\S 1'0")  # takes the word that was read
    for clusters, n_w in ((4, 2), (6, 2), (4, 4), (16, 4)):
        own = replace(p, clusters=clusters, counts=clusters, n_w=n_w)
        size = f"{clusters} clusters, {n_w} a word"
        make = partial(ClusterSetMonitor, own)
        yield Goal("cluster_set", EQUAL, size, make, forwards, 24, within=_counted, plants=True)
    for size, p in (("4 tokens of a patch", SMALL), ("a token of 4 patches", replace(SMALL, group=2))):
        yield Goal("motion_mask", EQUAL, size, partial(MotionMaskMonitor, p), _TWICE, 14, within=_counted, plants=True)
    for name in ("motion_mask_ip", "dre_ip", "core_ip"):
        top = address_map(name, params_of(name, preset("tiny")))
        make, answered = partial(RegisterBlockMonitor, top), unread("s_axi_bready")
        plants = name == "motion_mask_ip"
        yield Goal("register_block", EQUAL, f"registers of {name}", make, answered, 12, merge=False, plants=plants)
    # The smallest sizes of the HCU in which its mechanisms occur, alone and together.
    ties = r"cell \$lt (\$\d+\n(?:.*\n){5}    connect \\A \\partial1 )", r"cell $le \1"
    contexts = (
        r"connect \\A .*(\n    connect \\B \\batch_ctx)",
        r"connect \\A \\batch_ctx [0]\1",
    )  # of a batch may differ
    ops = (
        r"connect \\A .*(\n    connect \\B \\batch_op \[1:0\])",
        r"connect \\A \\batch_op [1:0]\1",
    )  # of a batch may differ
    for size, change, edit in (
        ("3 tiles of a cluster", {"tile": 1, "frame": 1}, _KEEPS),
        ("2 lanes, 2 chunks", {"n_h": 2, "n_hp": 2, "frame": 1}, ties),
        ("batches of 2", {}, _KEEPS),
        ("batches of 2, 2 contexts", {"clusters": 2, "n_ctx": 2}, contexts),
        ("batches of 2, newest", {"newest": True}, ops),
    ):
        own = replace(hcu_equality.SMALL, **change)
        make, plants = partial(hcu_equality.HcuMonitor, own), own.n_h == 2
        yield Goal("hcu", EQUAL, size, make, edit, 16, merge=False, within=_counted, plants=plants)
    for size, change, edit, depth in (
        ("2 words", {}, _EXACT, 32),
        ("2 lanes", {"n_w": 2}, _EXACT, 30),
        ("2 words, counts stream", {"counts": 1}, _EXACT, 40),
        ("2 words, budgets", {"budget": True}, _WEIGHTS, 30),
        ("buckets, 2 words", {"selection": "buckets"}, _BUCKETS, 20),
        ("buckets, 2 lanes", {"selection": "buckets", "n_w": 2}, _BUCKETS, 20),
    ):
        row = replace(wtu_equality.SMALL, **change)
        make, plants = partial(wtu_equality.WtuMonitor, row), size in ("2 words, counts stream", "buckets, 2 lanes")
        yield Goal("wtu", EQUAL, size, make, edit, depth, merge=False, within=_rows, plants=plants)


def _kvmu_parts() -> Iterator[Goal]:
    """Goals of the KVMU's parts, which equal their specifications, and of what joins them."""
    p = replace(kvmu_tables.SMALL, block_slots=3, recent=2, boundary=4)
    one = replace(kvmu_tables.SMALL, block_slots=1, recent=2)
    kept, users = replace(one, kept=2), replace(p, n_ctx=2, shared=True)
    four = replace(p, blocks=4, rows=4, addr_bits=4, clusters=4)
    counts = replace(one, clusters=7, counts=4, read_counts=4, count_lanes=2)
    two_reads = replace(counts, clusters=5, read_counts=2)
    parts = (
        ("placer", PlacerMonitor, "w__ready", {"blocks of 3": p, "blocks of 1": one, "users": users, "kept": kept}),
        ("walk", WalkMonitor, "o__ready", {"4 blocks of 3": four, "kept": kept}),
        ("bursts", MergerMonitor, "o__ready", {"4 blocks of 3": four, "kept": kept}),
        ("counts", CountsMonitor, "c_free", {"words of 2": counts, "2 reads": two_reads}),
    )
    for part, monitor, port, sizes in parts:
        for k, (name, own) in enumerate(sizes.items()):
            yield Goal("kvmu", EQUAL, f"{part}, {name}", partial(monitor, own), unread(port), 16, plants=k == 0)
    for claim, what, edit, sizes in (
        ("reads", "items come to who asked", unread("m__ask__ready"), {"blocks of 1": one, "kept": kept}),
        ("rows", "rows come to who asked", unread("o__ready", "unit.rows"), {"blocks of 1": one, "kept": kept}),
        ("writes", "each write goes once", unread("m__put__ready"), {"kept": kept}),
    ):
        for name, own in sizes.items():
            yield Goal("kvmu", what, name, partial(JoinMonitor, own, claim), edit, 12, merge=claim != "writes")


def _kvmu() -> Iterator[Goal]:
    """Goals of the KVMU, from any consistent tables; the longest beat fits in the first two."""
    last = (r"connect \\A \{ 1'0 \\pool \[2\] \}", r"connect \\A { 1'0 \\pool [3] }")  # the last freed block is given
    other = (r"(?s)(\nmodule \\top\.unit\.placer\n.*?connect \\A )\\oldest \[0\]", r"\g<1>1'0")  # of another cluster
    joined = (r"connect \\A \\starts \[0\]", r"connect \\A 1'0")  # a set's first burst continues the one before
    theirs = (
        r"cell \$ge (\$\d+\n(?:.*\n){5}    connect \\A \\place \[3:2\])",
        r"cell $gt \1",
    )  # a block more than the quota
    end = (
        r"(?s)(\nmodule \\top\.unit\.placer\n.*?connect \\[AB] )\\at \[0\]",
        r"\g<1>1'1",
    )  # a CLEAR wipes another block
    allocated, placed, fetched = (
        kvmu_allocator_proof.AllocatorMonitor,
        kvmu_map_proof.MoveMonitor,
        kvmu_map_proof.FetchMonitor,
    )
    one, two = kvmu_tables.SMALL, kvmu_tables.USERS
    for p, claim, monitor, edit, depth in (
        (one, "no block given twice or lost", allocated, last, kvmu_allocator_proof.DEPTH),
        (one, "an entry has a place of its own", placed, other, kvmu_allocator_proof.DEPTH),
        (one, "a set fetches what it names", fetched, joined, 24),
        (two, "no block of another context, nor beyond the quota", allocated, theirs, 28),
        (two, "a beat moves and wipes its context's alone", placed, end, 28),
        (two, "a set fetches its context's alone", fetched, joined, 24),
    ):
        contexts = f"{p.n_ctx} contexts of a cluster" if p.n_ctx > 1 else f"{p.clusters} clusters"
        size = f"{p.blocks} blocks of {p.block_slots}, {contexts}"
        yield Goal("kvmu", claim, size, partial(monitor, p), edit, depth, merge=False, depth=depth)


def _hcu() -> Iterator[Goal]:
    size = f"tiles of {hcu_tiles_proof.SMALL.tile}, {hcu_tiles_proof.SMALL.clusters} clusters"
    make = hcu_tiles_proof.TileMonitor
    yield Goal("hcu", "a cluster is compared while it is there", size, make, _OVER, 20, cut=MEMORIES, merge=False)


def _wtu() -> Iterator[Goal]:
    """Goals of the WTU. `merge` with a depth: nothing is left after the first row, so later cycles are trivial."""
    short = wtu_set_proof.short_ratio
    for claim, depth, change, edit, within in (
        ("the exact minimal set", 70, {"clusters": 2, "counts": 2, "n_w": 1}, _EXACT, short),
        ("the exact minimal set, of counts that stream", 70, {"clusters": 2, "counts": 1, "n_w": 1}, _EXACT, short),
        ("the exact minimal set", 45, {"clusters": 2, "counts": 2}, _EXACT, short),
        ("the minimal set of a budget", 70, {"clusters": 2, "counts": 2, "n_w": 1, "budget": True}, _BUDGET, short),
        ("whole buckets, minimal", 200, {"selection": "buckets"}, _BUCKETS, nullcontext),
    ):
        p = replace(wtu_set_proof.SMALL, **change)
        size = f"rows of {p.clusters}, {p.n_w} a word"
        yield Goal("wtu", claim, size, partial(_row, p), edit, 60, depth=depth, within=within)
    over = (r"connect \\B 2'10(\s+connect \\Y \\full\n)", r"connect \\B 2'11\1")  # a full ring takes counts
    yield Goal("wtu", "a word sees its own counts", "a ring of 2 words", RingMonitor, over, 40, merge=False)


def _row(p: WtuParams, reach: bool) -> wtu_set_proof.RowMonitor:
    return wtu_set_proof.RowMonitor(p, reach)


# Weights lose their lowest bit on the way to the rest of Th.
_EXACT = (r"connect \\B \\value \[(\d+):0\]", r"connect \\B { \\value [\1:1] 1'0 }")
_WEIGHTS = (r"(connect \\A \\tokens \[0\]\n    connect \\B )\S+ \[0\]", r"\g<1>1'0")  # a budget is one of weights
_BUDGET = (r"connect \\budgeted \\budgeted \[0\]", r"connect \\budgeted 1'0")  # takes it as a share
# The lowest code of a bucket is outside:
_BUCKETS = (r"cell \$ge (\$\d+\n(?:.*\n){6}    connect \\B \\low )", r"cell $gt \1")


_WATCHDOG = 5  # cycles


def _stuck(reach: bool) -> StuckMonitor:
    return StuckMonitor(unit_of("sequencer"), reach)


def _joined(join: Callable, *how: object) -> FreeJoin:
    """A join of free units; `how` ends with `reach`."""
    return FreeJoin(join(*how))


def _halts(reach: bool) -> HaltMonitor:
    return HaltMonitor(unit_of("sequencer"), reach)


@contextmanager
def _short() -> Iterator[None]:
    """A sequencer in which any semaphore may have a signal, and whose watchdog ends soon."""
    with (
        patch("openvrex.hdl.execution.sequencer.Semaphores", SteadySemaphores),
        patch.object(Sequencer, "WATCHDOG", _WATCHDOG),
    ):
        yield


@contextmanager
def _few_dealt() -> Iterator[None]:
    """An interleaver with orders of two bursts."""
    here = "openvrex.hdl.bus.interleaver"
    with patch(f"{here}.WRITES", 2), patch(f"{here}.dealt_bursts", lambda p: 2):
        yield


def _rest() -> Iterator[Goal]:
    longest = override(preset("tiny"), ["dpe.n_h=8", "n_w=8", "bus_bytes=16", "burst_bytes=4096"]).core
    fits = (r"cell \$le ", "cell $ge ")  # reverses: the rest of a row fits before the boundary
    for name, cls in (("loader", Loader), ("storer", Storer)):

        def bursts(reach: bool, cls: type = cls):
            return BusMonitor(cls(longest), reach)

        yield Goal(name, "no burst crosses 4 KB", "bursts of 256 beats", bursts, fits, 30, merge=False)
    endless = (r"(connect \\B )\\ends \[0\]", r"\g<1>1'0")  # no word is the last of its row
    rows = partial(RowMonitor, small().core.dre.wtu)
    yield Goal("dre", "rows have a code for each cluster", "4 clusters", rows, endless, 30)
    bits = partial(patch, "openvrex.hdl.execution.semaphores.SEMAPHORE_BITS", BITS)
    size = f"of {BITS} bits"
    even = (r"connect \\A \\count0 \[2:0\]", r"connect \\A { 2'00 \\count0 [0] }")  # a count of two reads as zero
    taken = (r"connect \\S \\taken0 \[0\]", r"connect \\S 1'0")  # nothing is taken
    yield Goal("sequencer", "semaphores count", size, SemaphoreMonitor, taken, 30, merge=False, within=bits)
    yield Goal("sequencer", "who may go may until it goes", size, ReadyMonitor, even, 30, merge=False, within=bits)
    sleeps = (r"connect \\A \\quiet \[2:0\](\n\s+connect \\B 3'101)", r"connect \\A 3'000\1")  # the watchdog sleeps
    size = f"a watchdog of {_WATCHDOG} cycles"
    yield Goal("sequencer", "never stands still", size, _stuck, sleeps, 30, MEMORIES, False, 60, within=_short)
    for size, p in (("2 x 2 patches", SMALL), ("the same with residuals", RESIDUALS)):
        mask = partial(GrowthMonitor, p)
        yield Goal("motion_mask", "no token leaves a GOP's mask", size, mask, _TWICE, 30, merge=False)
    steady = partial(patch, "openvrex.hdl.execution.sequencer.Semaphores", SteadySemaphores)
    at_once = (r"connect \\A \\drained \[0\]", r"connect \\A 1'1")  # HALT waits for nobody
    claim = "DONE comes when no engine is busy"
    yield Goal("sequencer", claim, "queues of 1", _halts, at_once, 30, MEMORIES, False, within=steady)
    rooms = (r"connect \\A \\level \[2:0\]", r"connect \\A 3'000")  # VECTORs that wait are not told
    claim = "the VPE is busy while a VECTOR waits for words"
    yield Goal("lxe", claim, "queues of 2", partial(_joined, WatchedLxe, small().core), rooms, 30, merge=False)
    depth = (r"connect \\B 3'100(\s+connect \\Y \\full)", r"connect \\B 3'101\1")  # one loop too many
    yield Goal("sequencer", "loops turn and end", "indices of 2 bits", LoopMonitor, depth, 30)
    lowest = (r"connect \\B \\after \[3:0\]", r"connect \\B 4'1111")  # the lowest number always comes first
    yield Goal("arbiter", "nobody is picked twice before", "4 who ask", partial(TurnMonitor, 4), lowest, 30)
    few = override(preset("tiny"), ["bursts=2", "burst_bytes=16"])
    room = (r"cell \$gt (\$\d+\n(?:.*\n){5}    connect \\A \\room)", r"cell $ge \1")
    yield Goal("arbiter", "a granted burst never waits", "bursts of 2 beats", partial(PortMonitor, few), room, 40)

    above = (r"cell \$le ", "cell $ge ")  # a region reaches from its last page up
    for size, named in (("2 regions, 2 bursts in flight", False), ("the same, bursts of two kinds", True)):
        yield Goal("core", GUARDED, size, partial(GuardMonitor, named), above, 12)

    three = SystemParams(few.core, 3, common=True)
    alone = (r"connect \\B \\agree \[1\]", r"connect \\B 1'1")  # a core of a group does not wait for the others
    reads = partial(CommonMonitor, three)
    yield Goal("arbiter", "a group reads as one or not at all", "3 cores", reads, alone, 30, merge=False)

    dealt = override(few, ["ports=2"])
    for kind, name in (("r", "reads"), ("w", "beats of writes"), ("b", "responses")):
        always = (rf"(connect \\B )\S+ \[0\](\n\s+connect \\Y \\{kind}_due0)", r"\g<1>1'1\2")  # port 0 is due
        deals = partial(InterleaverMonitor, dealt, kind)
        claim = f"{name} of two ports in order"
        yield Goal("arbiter", claim, "orders of 2 bursts", deals, always, 30, merge=False, within=_few_dealt)

    def order(kind: type, room: int, reach: bool):
        unit = kind(StructLayout({"x": 2}))
        return OrderMonitor(unit, lambda item: item.x, room, 1, reach=reach, through=kind is ReadySlice)

    forgets = (r"connect \\A \\full \[0\]", r"connect \\A 1'0")  # the unit forgets that it is full
    for unit, kind, room in (("arbiter", Slice, 2), ("sequencer", ReadySlice, 1)):
        slices = partial(order, kind, room)
        yield Goal(unit, "a slice keeps order, and all", "items of 2 bits", slices, forgets, 30, merge=False)


def _dre_join() -> Iterator[Goal]:
    """Goals of what joins the units of the DRE."""
    p = override(small(), ["wtu.n_h=2", "clusters=8"]).core.dre
    late = (r"connect \\A \\level \[1:0\]", r"connect \\A 2'00")  # a SWITCH waits for no row
    first = (r"connect \\A \\take_turn \[0\]", r"connect \\A 1'0")  # selections are those of the first WTU
    again = (r"connect \\A \\taken \[0\]", r"connect \\A 1'0")  # `t` gets an answer until the KVMU has it
    for claim, kind, edit in (
        ("no SWITCH meets a row", "rows", late),
        ("selections in the order of rows, each from one WTU", "order", first),
        ("each answer goes to `t` and to the KVMU once", "answers", again),
    ):
        make = partial(_joined, WatchedDre, p, kind)
        yield Goal("dre", claim, "two WTUs, 3 rows", make, edit, 30, merge=False)


def _registers() -> Iterator[Goal]:
    """Goals of registers that a STORE sets."""
    p = override(small(), ["to_register=true"]).core
    steady = partial(patch, "openvrex.hdl.execution.sequencer.Semaphores", SteadySemaphores)
    other = (r"(connect \\A \\store_set \[4:1\]\n\s+connect \\B \d)'101\n", r"\1'110\n")  # R5's number goes to R6
    early = (r"connect \\B \\holds2 \[0\]", r"connect \\B 1'0")  # nobody waits for a SET or SYNC in the second stage
    for claim, kind, edit in (
        ("a register keeps what a STORE writes", "kept", other),
        ("registers are read after what sets them", "order", early),
    ):
        make = partial(RegisterMonitor, p, kind)
        yield Goal("sequencer", claim, "with to_register", make, edit, 30, MEMORIES, False, within=steady)
    again = (r"connect \\B \\sets \[0\](\n\s+connect \\Y \\word_goes)", r"connect \\B 1'0\1")  # the word stays
    short = (r"(cell \$shl .*\n(?:.*\n){5}\s+connect \\A )\\i__payload \[22:0\]", r"\1{ 1'0 \\i__payload [21:0] }")
    for claim, kind, edit in (
        ("a STORE sets its register once", "once", again),
        ("a register gets its STORE's number", "what", short),
    ):

        def sets(reach: bool, kind: str = kind) -> SetMonitor:
            return SetMonitor(Storer(p), kind, reach)

        yield Goal("storer", claim, "with to_register", sets, edit, 30, depth=12, merge=False)


@contextmanager
def _flights(reads: int) -> Iterator[None]:
    """A table port of so many asks in flight but one, and of two puts."""
    with patch("openvrex.hdl.retrieval.table_port.READS", reads), patch("openvrex.hdl.retrieval.table_port.PUTS", 2):
        yield


def _table_port() -> Iterator[Goal]:
    beside = (r"connect \\A \\reading \[0\]", r"connect \\A 1'0")  # a write does not wait for reads
    other = (r"connect \\A \\r_client \[0\]", r"connect \\A 1'0")  # all items go to the HCU
    lost = (r"connect \\A \\waits \[0\]", r"connect \\A 1'0")  # the next request takes the place of one that waits
    for claim, kind, edit, size, reads, bus in (
        ("reads and writes are never in flight together", "bus", beside, "beats of two items", 2, 2),
        ("items go to who asked, in order", "asks", other, "asks of one item", 2, 1),
        ("items go to who asked, in order", "asks", other, "asks of two items", 1, 2),
        ("a put is written once", "puts", lost, "beats of two items", 2, 2),
        ("asks and puts go out in order", "order", lost, "beats of two items", 2, 2),
    ):
        p = table_port_proof.small(bus)

        def make(reach: bool, p: DreParams = p, kind: str = kind):
            return table_port_proof.PortMonitor(p, kind, reach)

        yield Goal("table_port", claim, size, make, edit, 30, within=partial(_flights, reads))


@contextmanager
def _codes(n: int) -> Iterator[None]:
    """A codec that packs so many numbers a cycle, and so takes fewer cycles."""
    here = "openvrex.hdl.retrieval.kv4_codec.kv4_codes", "openvrex.sim.units.retriever_time.kv4_codes"
    with patch(here[0], lambda p: n), patch(here[1], lambda p: n):
        yield


def _kv4() -> Iterator[Goal]:
    """Goals of the codec of packed homes."""
    for size, bus, codes, deep in (("four beats", 8, 1, 110), ("a beat", 32, 8, 70), ("half a beat", 64, 8, 150)):
        small = [f"{name}={bus // 2}" for name in ("dpe.n_h", "dpe.n_w", "vpe.n_w")]
        sizes = [*small, f"bus_bytes={bus}", f"burst_bytes={4 * bus}", "kv4_group=16"]
        sizes += ["entry_bytes=512", "boundary=1024"]
        p = override(preset("tiny"), sizes).core
        make, within = partial(BeatMonitor, p), partial(_codes, codes)
        ends = unread("ends")  # every beat looks like its burst's last
        claim, size = "beats to pack leave once, bursts end", f"groups of {size}"
        yield Goal("retriever", claim, size, make, ends, deep, merge=False, within=within)
    steps = (r"cell \$ge ", "cell $gt ")  # a whole step fewer where nothing is left
    yield Goal("retriever", "codes are golden", "any number, any step", CodeMonitor, steps, 4, merge=False)


def _wtus() -> Iterator[tuple[str, WtuParams]]:
    for selection in ("exact", "buckets"):
        p = small().core.dre.wtu
        counts = p.clusters if selection == "buckets" else p.counts
        yield f"selection={selection}", replace(p, selection=selection, counts=counts)


def _independence() -> Iterator[Independence]:
    for claim, how in INDEPENDENT.items():
        for unit in ALL:
            for size, p in _wtus() if unit == "wtu" else (("", None),):
                yield Independence(unit, size, partial(unit_of, unit, p), claim, *how)


def _equality() -> Iterator[Equality]:
    for unit in ALL:
        yield from (Equality(unit, size) for size in ("tiny", "core"))


def _gated() -> Iterator[Gated]:
    """Of all units but `core_ip` and `system`, which consist of others."""
    yield from (Gated(unit, "tiny") for unit in ALL if unit not in ("core_ip", "system"))


def _streams() -> Iterator[Goal]:
    yield stream_goal("hcu", unread("o__ready"), 30, asked=True)
    for size, p in _wtus():
        yield stream_goal("wtu", unread("o__ready", "unit.core"), 40, p, size)
    yield stream_goal("cluster_set", unread("o__ready"), 30)
    yield stream_goal(
        "kvmu", unread("w__ready", "unit.placer"), 40, kvmu_tables.SMALL, "two blocks of 2", asked=True, depth=20
    )
    yield stream_goal("motion_mask", unread("o__ready"), 30)
    yield stream_goal("dpe", unread("r_en", "unit.fifo"), 40)
    yield stream_goal("vpe", unread("o__ready"), 40)
    steady = partial(patch, "openvrex.hdl.execution.sequencer.Semaphores", SteadySemaphores)
    yield stream_goal("sequencer", unread("o__ready", "unit.mul_slice"), 40, within=steady)
    yield stream_goal("feeder", unread("o__ready", "unit.k_slice"), 30)
    yield stream_goal("loader", unread("ar__ready"), 30)
    yield stream_goal("storer", unread("aw__ready"), 30)
    yield stream_goal("retriever", unread("bus__ar__ready"), 40)
    yield stream_goal("arbiter", unread("o__ready", "unit.read_out"), 30)
    yield stream_goal("dre", unread("w__ready", "unit.kvmu"), 0, depth=30)  # rows need a SWITCH and its tables
    yield stream_goal("lxe", unread("ar__ready", "unit.loader"), 0, depth=16, within=steady)
    yield stream_goal("dre_ip", unread("bus__ar__ready", "unit.engine.retriever"), 0, asked=True, depth=24)
    yield stream_goal("core_ip", unread("ar__ready", "unit"), 0, asked=True, depth=16)
    for unit in ("core", "system"):
        yield stream_goal(unit, unread("ar__ready", "unit"), 0)
