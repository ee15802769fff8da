"""Checks of a core, shared by tests, mutants, coverage and stress: layers with retrieval, errors and resets."""

import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.vector import Bank, Format, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import BUDGET_BITS
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.isa import (
    ADDR_BITS,
    ENGINE,
    SEMAPHORES,
    Instruction,
    LoadTo,
    Opcode,
    Queue,
    Retrieve,
    Status,
    StoreTo,
    decode,
    encode,
    to_register,
    vector,
)
from openvrex.golden.program.layer_memory import LayerShape, Register, Tiling
from openvrex.golden.program.recipes import imm
from openvrex.golden.program.regions import EVERYTHING, Allow, Reach, confined
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import override, preset
from openvrex.tb.library.core_host import CoreHost
from openvrex.tb.library.lxe_programs import Ran, Script, image
from openvrex.tb.library.random_layers import turns, weights
from openvrex.tb.library.register_programs import OFFSET
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.stress_traffic import StressTraffic

SHAPE = LayerShape(width=16, heads=2, kv_heads=1, head_size=8, ffn=32, tokens=3, recent=8, entries=16)
GROUPS = replace(SHAPE, heads=4, kv_heads=2, head_size=4)  # entries of the same size as in SHAPE, but several heads
SIZES = ("lxe.i_depth=1024", "lxe.queue=4", "entry_bytes=32", "recent=8", "blocks=36", "clusters=12", "n_ctx=3")
SIZES += ("frame=8", "counts=8")  # tokens of a pass; counts of larger contexts come round and round
RING = replace(SHAPE, tokens=8)  # a pass that fills the ring, so every earlier entry goes home
ONE = replace(SHAPE, tokens=1)
MANY = replace(SHAPE, tokens=4, entries=96)
# Up to 96 clusters, of which the WTU holds 32 counts, and a bank of the VPE a row of 64 scores.
LONG = ("clusters=96", "blocks=120", "counts=32", "vpe.depth=16")
# V-Rex as published on these sizes, whose WTU keeps whole rows and their counts.
PUBLISHED = ("wtu.selection=buckets", "reading=buckets", "counts=16")
TILES = {
    MANY: 1,
    SHAPE: 1,
    GROUPS: 4,
    RING: 1,
    ONE: 1,
}  # in a block of the queries' product: work is between tokens, or before them
LAYERS = 2
ORDERS = (Retrieve.CLEAR, Retrieve.SWITCH)


@cache
def params(protect: str = "none", more: tuple[str, ...] = ()):
    return override(preset("tiny"), [*SIZES, f"protect={protect}", *more]).core


@cache
def emitted(more: tuple[str, ...] = ()):
    return emit("core", params(more=more))


def model(rng: np.random.Generator, shape: LayerShape) -> tuple[list[dict[str, np.ndarray]], list[np.ndarray]]:
    """Weights and hyperplanes of each layer."""
    planes = [rng.normal(size=(16, shape.kv_heads * shape.head_size)) for _ in range(LAYERS)]
    return [weights(shape, rng) for _ in range(LAYERS)], planes


ALONE, AHEAD = [{}, {}], [{"ahead": 1}, {"fetched": True}]


AWAY = [{"ctx": 2, "ahead": 0}, {"ctx": 0, "fetched": True}]  # both layers use other contexts than their own


def host(
    rng: np.random.Generator,
    shape: LayerShape = SHAPE,
    how: list[dict] = ALONE,
    protect: str = "none",
    more: tuple[str, ...] = (),
    **function,
) -> CoreHost:
    """A host of two layers. With AHEAD the first layer selects and fetches for the second."""
    p = params(protect, more)
    sizes = p.dre.sizes()
    f = replace(p.dre.function(), **{"th_hd": 4, "ratio_q16": 19661} | function)
    retrievals = [replace(RetrievalShape.of(sizes, f.centre, ctx=i), **how[i]) for i in range(LAYERS)]
    tiles = TILES[shape]
    cuts = CorePlan(shape, p.lxe_format(), retrievals[1]).cuts | {"qkv": Tiling(8 // tiles, tiles, 1, 4)}
    plans = [CorePlan(shape, p.lxe_format(), r, cuts) for r in retrievals]
    layers, planes = model(rng, shape)
    return CoreHost(plans, layers, planes, f, sizes)


def begin(h: CoreHost, rng: np.random.Generator, start: int) -> None:
    """Write the inputs of a pass to memory."""
    s = h.plans[0].shape
    h.begin(rng.normal(size=(s.tokens, s.width)).astype(np.float32), *turns(s, start), start)


def ports(h: CoreHost) -> dict[str, int]:
    f = h.core.dre.params
    bases, kv = {"device_base": h.device_base, "home_base": h.home_base, "table_base": h.table_base}, h.core.dre.kv
    shared = {"quota": kv.quota, "first_context": h.core.dre.first} if kv.sizes.shared else {}
    return {"th_hd": f.th_hd, "ratio": f.ratio_q16, **bases, "blocks": h.blocks, "contexts": kv.n_ctx, **shared}


def passes(seed: int, count: int, *how, **function) -> tuple[CoreHost, Script, list[int]]:
    """Run `count` passes through all layers on golden; the host, and the entries behind the ring in each run."""
    rng = np.random.default_rng(seed)
    h = host(rng, *how, **function)
    script = Script(h.memory, [r.name for r in h.memory.regions])
    fetched = []
    for k in range(count):
        begin(h, rng, k * h.plans[0].shape.tokens)
        for layer in range(LAYERS):
            script.add(h.program(layer), h.registers(layer))
            h.run(layer)
            script.expect()
            fetched.append(h.core.registers[Register.ENTRIES])
    return h, script, fetched


def bins(ran: list[Ran], fetched: list[int]) -> set[str]:
    """What the passes reach in the core."""
    perf = ran[-1].perf
    hit = {"fetches" if n else "fetches_nothing" for n in fetched}
    hit |= {"joins"} if perf["dre.hcu.tokens"] > perf["dre.hcu.opened"] else set()
    hit |= {"bursts_of_a_set"} if perf["dre.kvmu.bursts"] > len([n for n in fetched if n]) else set()
    lanes = params().dpe.n_w
    hit |= {"ragged_tile" if n % lanes else "whole_tile" for n in fetched if n}
    hit |= {"odd_tiles" if -(-n // lanes) % 2 else "even_tiles" for n in fetched if n}
    return hit | moving(ran)


def moving(ran: list[Ran]) -> set[str]:
    """Event counters that do not stand still."""
    return {name for name, n in ran[-1].perf.items() if n}


BINS = {"fetches", "fetches_nothing", "joins", "bursts_of_a_set", "ragged_tile", "odd_tiles", "even_tiles"}


def budgeted(program: list[Instruction], tokens: int, register: int = 0) -> list[Instruction]:
    """A program whose rows of scores take a budget of tokens; 0: a share.

    register : holds the tokens; 0: the instructions do
    """
    if not tokens:
        return program
    count = {"len": register} if register else {"rows": tokens - 1}
    return [
        Instruction(i.op, i.values | {"action": Retrieve.BUDGET} | count)
        if i.op == Opcode.RETRIEVE and i["action"] == Retrieve.SWITCH
        else i
        for i in program
    ]


REGISTERS = ("budget=true", "to_register=true")
# All that a core may have beside: one simulator for the tests of each.
FEATURES = (*REGISTERS, "kv4_group=16")
TOKENS = 12  # a register that programs of these layers do not use
BUDGETS = (1, 0, 4, 1 << BUDGET_BITS, 2, 0, 7)  # of each pass


def budget_passes(seed: int, *how) -> tuple[CoreHost, list[tuple[list[Instruction], dict[int, int], int]], Any]:
    """A host of a core with budgets; for each pass and layer, program, registers and budget; what begins a pass."""
    rng = np.random.default_rng(seed)
    h = host(rng, *how, more=FEATURES)
    runs = []
    for k, tokens in enumerate(BUDGETS):
        for layer in range(LAYERS):
            own = budgeted(h.program(layer), tokens, TOKENS if k % 2 else 0)
            runs.append((own, h.registers(layer) | {TOKENS: tokens}, tokens))
    return h, runs, lambda n: begin(h, rng, n // LAYERS * h.plans[0].shape.tokens) if n % LAYERS == 0 else None


def check_budgets_equal_golden(seed, how, pause, record_property):
    """Layers whose rows take a budget in some passes and a share in others, from instructions or registers.

    Every byte equals golden. Some set holds exactly its budget, some more, some all there is.
    """
    kinds = set()
    h, runs, start = budget_passes(seed, *how)
    script, plain = Script(h.memory, [r.name for r in h.memory.regions]), h.core.dre.query

    def query(codes):
        got = plain(codes)
        for tokens in got.rows.tokens.tolist():
            kind = "exact" if tokens == got.budget else "more" if tokens > got.budget else "all"
            kinds.add(kind if got.budget else "share")
        return got

    h.core.dre.query = query
    for n, (program, registers, _) in enumerate(runs):
        start(n)
        script.add(program, registers)
        h.execute(program, registers)
        script.expect()
    ran, after = script.play(emitted(FEATURES), ports(h), pause, seed=seed)
    assert not script.differences(ran, after)
    assert ran[-1].perf["retriever.fetches"] > 0
    record_property("selections", ", ".join(sorted(kinds)))
    assert kinds == {"share", "more", "exact", "all"}


# Counters that stand still in layers with tokens in few clusters, and what would move them.
ELSEWHERE = {
    "lxe.dpe.waits": "rows of many alike: below",
    "dre.kvmu.full": "test_a_map_without_blocks_ends_in_a_status",
    "retriever.waits": "sets of many entries: test_dre_ip",
    "lxe.sequencer.vector_waits": "test_lxe, test_engines_wait_for_semaphores",
    "lxe.sequencer.store_waits": "test_lxe, test_engines_wait_for_semaphores",
    "lxe.dpe.overruns": "a fault: test_lxe",
}


def stored(program: list[Instruction], register: int, value: int) -> list[Instruction]:
    """A program in front of which a STORE sets a register to a small integer that the VPE makes, and a SYNC waits."""
    taken = {s for i in program if i.op in ENGINE for s in range(SEMAPHORES) if i["wait"] >> s & 1}
    free = 1 << next(s for s in range(SEMAPHORES) if s not in taken)  # of the engines
    number = Vector(a=Source.IMMEDIATE, imm_a=imm(value), c=Source.IMMEDIATE, imm_c=OFFSET, write=Bank.C)
    first = [
        vector(number),
        vector(Vector(op=VectorOp.STORE, format=Format.WIDE)),
        to_register(register, signal=free),
        Instruction(Opcode.SYNC, {"wait": free}),
    ]
    later = [
        Instruction(i.op, i.values | {"end": i["end"] + len(first)} if i.op == Opcode.LOOP else i.values)
        for i in program
    ]
    return first + later


@dataclass
class RandomTraffic(StressTraffic):
    """Two to seven passes of a model with retrieval, by centred or raw hash bits.

    budgets : tokens that rows of scores take in each pass, 0 for a share, and where the number is: "instruction",
        "register", or "store": a STORE of the VPE's number has set the register; empty: a core without budgets
    bins : how many tokens the sets of rows hold, and where their budget was
    """

    seed: int
    count: int
    how: tuple
    stall: float
    centre: bool
    budgets: tuple[tuple[int, str], ...] = ()
    bins: set[str] = field(default_factory=set)

    def __post_init__(self):
        if not self.budgets:
            self.host, self.script, _ = passes(self.seed, self.count, *self.how, centre=self.centre)
            return
        rng = np.random.default_rng(self.seed)
        self.host = h = host(rng, *self.how, more=REGISTERS, centre=self.centre)
        self.script, plain = Script(h.memory, [r.name for r in h.memory.regions]), h.core.dre.query
        where = ""

        def query(codes):
            got = plain(codes)
            for tokens in got.rows.tokens.tolist():
                kind = "exact" if tokens == got.budget else "more" if tokens > got.budget else "all"
                self.bins.add(f"{kind} by {where}" if got.budget else "share")
            return got

        h.core.dre.query = query
        for k, (tokens, where) in enumerate(self.budgets):
            begin(h, rng, k * h.plans[0].shape.tokens)
            for layer in range(LAYERS):
                program = budgeted(h.program(layer), tokens, 0 if where == "instruction" else TOKENS)
                if where == "store":
                    program = stored(program, TOKENS, tokens)
                registers = h.registers(layer) | {TOKENS: 99 if where == "store" else tokens}
                self.script.add(program, registers)
                h.execute(program, registers)
                self.script.expect()

    @classmethod
    def random(cls, rng: Random) -> Self:
        seed, how = rng.getrandbits(31), rng.choice(((), (GROUPS, AHEAD), (GROUPS, AWAY), (RING,)))
        most = 3 if how == (RING,) else 7  # so that what is fetched has room behind the ring
        count, stall, centre = rng.randint(2, most), rng.choice((0.0, 0.2, 0.5)), rng.choice((True, False))
        budgets: tuple[tuple[int, str], ...] = ()
        if rng.random() < 0.6:
            where = ("instruction", "register", "store")
            budgets = tuple((rng.choice((0, 1, 2, 3, 4, 7, 12, 200)), rng.choice(where)) for _ in range(count))
        return cls(seed, count, how, stall, centre, budgets)

    def play(self) -> Any:
        unit = emitted(REGISTERS) if self.budgets else emitted()
        return self.script.play(unit, ports(self.host), self.stall, seed=self.seed)

    def check(self, got: Any) -> int:
        wrong = self.script.differences(*got)
        assert not wrong, wrong
        return got[0][-1].perf["lxe.sequencer.instructions"]


def orders(script: Script) -> int:
    """CLEARs and SWITCHes that the script's runs execute."""
    programs = [[decode(int(word, 16)) for word in words] for words in script.programs]
    each = [sum(i.op == Opcode.RETRIEVE and i["action"] in ORDERS for i in program) for program in programs]
    return sum(each[run["program"]] for run in script.runs)


def forget(ctx: int) -> list[Instruction]:
    """A program that clears a context."""
    return [Instruction(Opcode.RETRIEVE, {"action": Retrieve.CLEAR, "addr": ctx}), Instruction(Opcode.HALT, {})]


def check_a_context_is_forgotten(more):
    """After a CLEAR the context's clusters begin anew, and its blocks are used again.

    Where users share the core the blocks hold zeros. No context holds more than it now may.
    """
    h, script, _ = passes(5, 4 if more else 2, GROUPS, AHEAD, more=more)
    clear, kv = forget(1), h.core.dre.kv
    held = [kv.held(1)]
    assert not more or 1 < held[0] < kv.fresh
    script.add(clear, {})
    h.execute(clear, {})
    script.expect()
    begin(h, np.random.default_rng(6), 0)
    script.add(h.program(0), h.registers(0))
    h.run(0)
    script.expect()
    kv.quota = max(*held, *map(kv.held, range(kv.n_ctx))) if more else 0
    ran, after = script.play(emitted(more), ports(h))
    assert not script.differences(ran, after)
    assert ran[-1].perf["feeder.orders"] == orders(script)


def interruptions(more: tuple[str, ...] = ()) -> tuple[CoreHost, list[dict], np.ndarray]:
    """A pass's clusters and places, cut short by an error response or a reset, and the memory before the pass.

    Golden has run the whole pass. Where users share the core, another one's entries have gone home before.
    """
    rng = np.random.default_rng(7)
    h = host(rng, more=more)
    for k in range(4 if more else 0):
        begin(h, rng, k * SHAPE.tokens)
        h.run(1)
    begin(h, rng, 0)
    before = image(h.memory)
    program, registers = h.program(0, None, "cluster"), h.registers(0)
    h.run(0, None, "cluster")
    names = ("hash_weight", "qkv", "fresh", "ring", "table")
    planes, qkv, fresh, ring, table = (h.address(h.plans[0][name]) for name in names)
    p = params(more=more)
    layout = p.dre.layout()
    level, pool = (h.table_base + layout.address(item) for item in (Item.LEVEL, Item.POOL))
    bus, words = p.lxe.bus_bytes, [f"{encode(i):x}" for i in program]
    errors = [
        ("m_axi", "read", planes + 4 * bus),
        ("m_axi", "write", qkv),
        ("m_axi", "read", table),  # while the retriever copies the token's entry
        ("h_axi", "read", fresh + bus),
        ("h_axi", "write", ring + SHAPE.entry * 2),
        ("t_axi", "read", level),
        ("t_axi", "write", pool),
    ]
    whole = {"program": words, "registers": registers, "ports": ports(h), "errors": [], "cut_at": 0}
    return h, [whole | {"errors": [e]} for e in errors] + [whole | {"cut_at": n} for n in (60, 801, 1030)], before


def attacks() -> tuple[CoreHost, list[dict], np.ndarray]:
    """The same pass, each time with regions that lack what one manager needs; a program that stores far outside.

    "refused" is what the guards must have refused: the manager, and whether it was a write.
    """
    h, (whole, *_), before = interruptions()
    end = h.memory.regions[-1].end
    places = {r.name: [r.base, r.end] for r in h.memory.regions}
    written = {Allow.STORE: "work", Allow.ENTRY_WRITE: "rings", Allow.TABLE_WRITE: "tables"}
    whole = whole | {"errors": [], "ports": ports(h) | confined([Reach(0, end - 1)])}
    out = []
    for k, lacks in enumerate(Allow):
        bad = {"ports": ports(h) | confined([Reach(0, end - 1, EVERYTHING & ~lacks)])}
        kept = [places[written[lacks]]] if lacks in written else []
        out.append(whole | {"bad": bad, "refused": (k // 2, k % 2), "kept": kept})
    word = 4 * params().dpe.n_w
    near, far = (
        {"wide": 1, "rows": 0, "stride": word, "addr": at} for at in (0, (1 << ADDR_BITS) - word)
    )  # a word of the first page, and the last one of all

    def copied(to: dict[str, int], **source: int) -> list[str]:
        program = [
            Instruction(Opcode.LOAD, source | {"target": int(LoadTo.VECTOR)}),
            vector(Vector(words=0, a=Source.STREAM, wide=1, write=Bank.C), source=Queue.LOAD),
            vector(Vector(op=VectorOp.STORE, words=0, format=Format.WIDE)),
            Instruction(Opcode.STORE, to),
            Instruction(Opcode.HALT, {}),
        ]
        return [f"{encode(i):x}" for i in program]

    for program, refused in ((copied(far, **near), (0, 1)), (copied(near, **far), (0, 0))):
        out.append(whole | {"bad": {"program": program}, "refused": refused, "kept": [[0, end]]})
    for name, refused in (("table_base", (2, 0)), ("device_base", (1, 1))):
        beyond = {"ports": whole["ports"] | {name: 1 << 30}}
        out.append(whole | {"bad": beyond, "refused": refused})
    return h, out, before


SHARED = ("shared=true",)


def intrusions() -> tuple[CoreHost, list[dict], np.ndarray]:
    """Two users of a core: what the first does must not touch a byte of the second's table, ring and blocks.

    The second user, of context 1, has entries at home. The first may use context 0 and one block. It asks for more, is
    cut short by errors and resets, names the second's context and copies the second's entries to its own ring.
    """
    h, cases, before = interruptions(SHARED)
    p, kv = params(more=SHARED), h.core.dre.kv
    layout, sizes = p.dre.layout(), kv.sizes
    spans = [(h.table_base + layout.address(Item.LEVEL, 1), h.table_base + layout.address(Item.LEVEL, 2))]
    ring = sizes.recent * sizes.entry_bytes
    spans += [(h.device_base + ring, h.device_base + 2 * ring)]
    blocks = [block for k in kv.contexts[1].clusters.values() for block in k.blocks]
    spans += [(at, at + sizes.block_bytes) for at in (h.home_base + b * sizes.block_bytes for b in blocks)]
    held = [first for first, end in spans if before[first:end].any()]
    assert len(held) > 3  # table, ring and some blocks
    own = ports(h) | {"contexts": 1}
    program = [decode(int(word, 16)) for word in cases[0]["program"]]

    def changed(action: Retrieve | None, **values: int) -> dict:
        """The program with other fields in its RETRIEVEs of a kind, or in the STOREs of its hash bits."""
        of = [i for i in program if i.values.get("action") == action and i.op == Opcode.RETRIEVE]
        of = of if action is not None else [i for i in program if i.op == Opcode.STORE and i["target"] == StoreTo.HASH]
        assert of
        words = [encode(Instruction(i.op, i.values | values) if i in of else i) for i in program]
        return {"program": [f"{word:x}" for word in words]}

    rest = EVERYTHING & ~(Allow.LOAD | Allow.STORE)  # of homes: only the KVMU's own addresses count
    end = h.memory.regions[-1].end
    walls = [Reach(0, h.home_base - 1), Reach(h.home_base, end - 1, rest)]
    confine = {"ports": own | confined(walls)}
    clears = {"program": [f"{encode(i):x}" for i in forget(1)]}
    bad = [
        ({"ports": own | {"quota": 1}}, Status.FULL, None),
        (clears, Status.RANGE, None),
        ({"ports": own | {"contexts": 2, "first_context": 1}}, Status.RANGE, None),
        (changed(None, addr=1), Status.RANGE, None),
        (changed(Retrieve.PLACE, addr=held[2], base=0) | confine, Status.BUS, (1, 0)),
    ]
    whole = cases[0] | {"errors": [], "ports": ports(h)}
    out = [case | {"bad": {"ports": own}} for case in cases]
    out += [whole | {"bad": {"ports": own} | b, "status": status, "refused": r} for b, status, r in bad]
    return h, [case | {"kept": spans} for case in out], before


def check_users_share_a_core():
    """Whatever ends a user's program leaves every byte of the others, and a core that works."""
    h, cases, before = intrusions()
    assert interrupt(emitted(SHARED), h, cases, before) == [True] * len(cases)


def interrupt(unit: Emitted, h: CoreHost, cases: list[dict], before: np.ndarray) -> list[bool]:
    """For each case: it ended as it must, and the core then ran the whole pass as golden does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "memory.bin")
        before.tofile(path)
        config = {"cases": cases, "memory": str(path), "limit": 3000}
        got = Run(unit, "bench_core", "interrupted", config, waves=False)()["cases"]
    out = []
    for case, (first, second, refused, kept, after) in zip(cases, got, strict=True):
        data = bytes.fromhex(after)
        wants = [r for r in h.memory.regions if r.name in ("rings", "weights 0")]
        same = all(data[r.base : r.end] == r.data.tobytes() for r in wants)
        want = case.get("status", Status.BUS if case["errors"] or case.get("refused") else Status.RUNNING)
        ends = (first["status"], second["status"]) == (want, Status.DONE)
        found = (refused >> 2 & 3, refused >> 1 & 1) if refused & 1 else None
        told = found == case.get("refused")
        out.append(ends and same and told and kept and not first["moves"] and not second["moves"])
    return out


def check_nothing_outside_its_regions_is_touched():
    """Each manager is refused what it may not do, in its own way: read and write, table, entry, load and store."""
    h, cases, before = attacks()
    assert interrupt(emitted(), h, cases, before) == [True] * len(cases)


def check_errors_and_resets_leave_a_core_that_works():
    """An error response to any manager ends in a status and a quiet bus. After a reset the core works again."""
    h, cases, before = interruptions()
    assert interrupt(emitted(), h, cases, before) == [True] * len(cases)
