"""A core on RTL: whole decoder layers with retrieval, every byte of memory against golden after every pass."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import FOREVER, MINUS_ZERO, Source
from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.program.core_compiler import LEVEL, CorePlan, RetrievalShape
from openvrex.golden.program.core_stages import ROW
from openvrex.golden.program.deadlock_hazard_check import play
from openvrex.golden.program.isa import Engine, Instruction, Opcode, Retrieve, Status, decode, encode
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.lxe_model import LxeError
from openvrex.golden.program.regions import EVERYTHING, Allow, Reach
from openvrex.golden.retrieval.hashing import Hasher
from openvrex.golden.retrieval.wicsum import select_rows
from openvrex.hdl.params import override, preset
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import core_checks
from openvrex.tb.checks.core_checks import (
    AHEAD,
    ALONE,
    AWAY,
    BINS,
    ELSEWHERE,
    FEATURES,
    GROUPS,
    LAYERS,
    LONG,
    MANY,
    ONE,
    RING,
    SHAPE,
    SHARED,
    SIZES,
    attacks,
    begin,
    bins,
    budgeted,
    check_budgets_equal_golden,
    emitted,
    forget,
    host,
    interrupt,
    interruptions,
    model,
    moving,
    orders,
    params,
    passes,
    ports,
)
from openvrex.tb.library.core_host import CoreHost
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.random_layers import turns
from openvrex.tb.library.runner import lint
from tb.tests.golden.program.layer_samples import Composed, same


@pytest.mark.parametrize(
    ("seed", "pause", "count", "how", "function"),
    [
        (1, 0.0, 7, (), {"centre": False}),
        pytest.param(3, 0.4, 5, (GROUPS, AWAY), {"th_hd": 2}, marks=pytest.mark.nightly),
        pytest.param(2, 0.2, 2, (RING,), {"ratio_q16": 45875}, marks=pytest.mark.nightly),
    ],
)
def test_layers_equal_golden(seed, pause, count, how, function, record_property):
    """Clusters grow, tables get full, entries go home and come back, and what is chosen changes from pass to pass.

    No event counter stands still.
    """
    h, script, fetched = passes(seed, count, *how, **function)
    ran, after = script.play(emitted(), ports(h), pause, seed=seed)
    assert not script.differences(ran, after)
    assert all(max(fetched[layer::LAYERS]) > 0 for layer in range(LAYERS))
    perf, dre = ran[-1].perf, h.core.dre
    assert perf["retriever.entries"] == perf["dre.kvmu.appends"] == count * LAYERS * h.plans[0].shape.tokens
    assert perf["dre.hcu.opened"] == sum(map(len, dre.tables.values()))
    if seed == 1:
        hit = bins(ran, fetched)
        record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
        assert hit >= BINS, BINS - hit
        assert perf.keys() - hit == ELSEWHERE.keys()
    elif seed == 2:
        assert moving(ran) >= {"dre.wtu0.tests", "lxe.dpe.waits"}
    else:
        assert perf["dre.hcu.full_joins"] > 0


def test_packed_homes_equal_golden(record_property):
    """Entries go home in 4 bits a number and come back, and attention runs on what comes back."""
    h, script, fetched = passes(1, 5, SHAPE, AHEAD, "none", FEATURES)
    ran, after = script.play(emitted(FEATURES), ports(h), 0.2, seed=1)
    assert not script.differences(ran, after)
    perf = ran[-1].perf
    assert perf["retriever.moves"] > 0
    assert perf["retriever.fetches"] > 0
    k, size = h.core.dre.kv, params().dpe.n_w * 2
    assert k.home_bytes * 4 == k.entry_bytes == 4 * size
    record_property("entries packed, bursts expanded", f"{perf['retriever.moves']}, {perf['retriever.fetches']}")
    assert sum(fetched) > 0


@pytest.mark.parametrize(
    ("seed", "how", "pause"), [(1, (), 0.0), pytest.param(4, (GROUPS, AHEAD), 0.3, marks=pytest.mark.nightly)]
)
def test_budgets_equal_golden(seed, how, pause, record_property):
    check_budgets_equal_golden(seed, how, pause, record_property)


def test_a_plain_core_refuses_a_budget():
    """A core whose WTU has no budgets ends a program with BUDGET in a status, as golden does."""
    h = host(np.random.default_rng(3))
    script = Script(h.memory)
    program = budgeted([Instruction(Opcode.RETRIEVE, {"action": Retrieve.SWITCH}), Instruction(Opcode.HALT, {})], 3)
    script.add(program, {})
    with pytest.raises(LxeError, match="this core's WTU has no budgets") as error:
        h.execute(program, {})
    [ran], _ = script.play(emitted(), ports(h))
    assert ran.status == error.value.status == Status.RANGE


def growing(more: tuple[str, ...], count: int) -> tuple[CoreHost, Script, list[np.ndarray]]:
    """`count` passes in which every token opens a cluster; the rows of each query block."""
    rng = np.random.default_rng(7)
    h, blocks = host(rng, MANY, more=more, th_hd=0), []
    script, plain = Script(h.memory, [r.name for r in h.memory.regions]), h.core.dre.query
    h.core.dre.query = lambda codes: blocks.append(codes) or plain(codes)
    for k in range(count):
        begin(h, rng, k * MANY.tokens)
        script.add(h.program(0), h.registers(0))
        h.run(0)
        script.expect()
    return h, script, blocks


@pytest.mark.nightly  # short forms: test_dre.py, of counts that roll; golden/program/test_layer.py, of long rows
def test_rows_longer_than_a_bank():
    """Rows of up to 68 scores go to the WTU in parts of 64, in every reading; codes are those of whole rows."""
    h, script, blocks = growing(LONG, 17)
    _, _, whole = growing((*LONG, "vpe.depth=128"), 17)
    sizes = [rows.shape[1] for rows in blocks]
    assert min(sizes) < 32 < 64 < max(sizes) == 68
    assert all(np.array_equal(a, b) for a, b in zip(blocks, whole, strict=True))
    ran, after = script.play(emitted(LONG), ports(h), 0.1, seed=4)
    assert not script.differences(ran, after)
    assert ran[-1].perf["dre.wtu0.waits"] > 0


def test_a_map_without_blocks_ends_in_a_status():
    """Blocks that do not suffice: the same entry is refused in golden and on RTL, with everything before it done."""
    rng = np.random.default_rng(3)
    h = host(rng, th_hd=0)  # hardly any token joins another one's cluster
    script, refused = Script(h.memory), None
    while not refused:
        begin(h, rng, len(script.runs) // LAYERS * SHAPE.tokens)
        for layer in range(LAYERS):
            script.add(h.program(layer, None, "cluster"), h.registers(layer))
            try:
                h.run(layer, None, "cluster")
            except ValueError as e:
                refused = e
                break
            script.expect()
    assert refused.status == Status.FULL
    assert "raise blocks" in str(refused)
    ran, _ = script.play(emitted(), ports(h))
    assert [r.status for r in ran] == [Status.DONE] * (len(ran) - 1) + [Status.FULL]
    assert ran[-1].perf["dre.kvmu.full"] == 1
    assert len(ran) == len(script.runs)


test_a_context_is_forgotten = pytest.mark.parametrize("more", [(), SHARED])(core_checks.check_a_context_is_forgotten)
test_users_share_a_core = core_checks.check_users_share_a_core
test_nothing_outside_its_regions_is_touched = core_checks.check_nothing_outside_its_regions_is_touched


@pytest.mark.parametrize("lacks", [Allow.LOAD, Allow.STORE, Allow.ENTRY_READ, Allow.ENTRY_WRITE])
def test_golden_keeps_to_its_regions_too(lacks):
    rng = np.random.default_rng(7)
    h = host(rng)
    h.core.reach = [Reach(0, h.memory.regions[-1].end - 1, EVERYTHING & ~lacks)]
    begin(h, rng, 0)
    with pytest.raises(LxeError, match=f"outside the regions for {lacks.name}") as e:
        h.run(0)
    assert e.value.status == Status.BUS


test_errors_and_resets_leave_a_core_that_works = core_checks.check_errors_and_resets_leave_a_core_that_works


MUTANTS = {
    "instance 0.fea7973a: fault_bus[0] const0": "an error of the copier is lost",
    "instance 0.fea7973a: m_axi_bresp[1] const0": "an error response of a write is lost",
    "instance 0.bbc3502c: bus_b_resp[1] const0": "one of a write to the offload memory",
    "instance 0.bbc3502c: bus_r_resp[1] const0": "one of a read from there",
    "instance 0.fea7973a: m_axi_rresp[1] const0": "one of a read",
    "instance 0.17b0d5ab: th_hd[4] const1": "every key joins",
    "instance 0.17b0d5ab: device_base[5] const1": "the table is elsewhere",
    "instance 1.ce050b3c: confine[0] const0": "the LXE goes where it likes",
    "instance 1.571db5c4: regions[57] const1": "the retriever writes where it may only read",
    "instance 1.944007dc: regions[56] const1": "the DRE reads tables where it may not",
    "$mux 1.8be64dac: B[1] const0": "what the DRE was refused is the LXE's",
}  # of what joins the units


@pytest.mark.nightly
def test_mutants():
    h, cases, before = interruptions()
    _, refused, _ = attacks()  # of a store, of a write of an entry, of a read of a table
    chosen = [*(cases[k] for k in (0, 1, 3, 4, 5)), *(refused[k] for k in (1, 3, 4))]

    def passes(unit):
        return all(interrupt(unit, h, chosen, before))

    assert not survivors(emitted(), MUTANTS, passes, "core")


@pytest.mark.parametrize(
    ("shape", "how", "centre"), [(SHAPE, ALONE, False), (GROUPS, AHEAD, False), (GROUPS, AWAY, True)]
)
def test_programs_are_ordered_by_semaphores_alone(shape, how, centre):
    rng = np.random.default_rng(8)
    h = host(rng, shape, how, centre=centre)
    for k in range(5):
        begin(h, rng, k * shape.tokens)
        for layer in range(LAYERS):
            result = h.run(layer)
            if k in (0, 4):
                order = play(result.issues, params().lxe_format())
                assert (order.waiting, order.left, order.hazards) == ({}, {}, [])
    assert h.core.registers[Register.ENTRIES] > 0


@pytest.mark.parametrize("centre", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_stages_may_run_alone(centre):
    """Stage by stage, what is in memory and registers is as after the whole program."""
    whole, parts = (host(np.random.default_rng(9), GROUPS, AHEAD, centre=centre) for _ in range(2))
    rng = [np.random.default_rng(10) for _ in range(2)]
    for k in range(4):
        for h, r in zip((whole, parts), rng, strict=True):
            begin(h, r, k * SHAPE.tokens)
        for layer in range(LAYERS):
            whole.run(layer)
            registers = parts.registers(layer)
            plan, entries = parts.plans[layer], whole.core.registers[Register.ENTRIES]
            for stage in plan.stages:
                result = parts.execute(parts.program(layer, stage.name, stage.name), registers)
                registers = {}
                if k < 3:
                    continue
                work = plan.costs(entries, parts.core.registers[LEVEL])[stage.name]
                assert work.chunks == result.chunks, stage.name
                assert work.words == result.words[Engine.VECTOR], stage.name
                assert work.issued == sum(result.instructions.values()), stage.name
    for a, b in zip(whole.memory.regions, parts.memory.regions, strict=True):
        assert a.data.tobytes() == b.data.tobytes()
    assert whole.core.registers[Register.ENTRIES] == parts.core.registers[Register.ENTRIES] > 0


def twice(script: Script, h: CoreHost, count: int) -> None:
    """Passes of all layers; then CLEARs of their contexts, and as many passes with other hidden states."""
    rng = np.random.default_rng(13)
    for k in range(2 * count):
        if k == count:
            for plan in h.plans:
                clear = forget(plan.retrieval.ctx)
                script.add(clear, {})
                h.execute(clear, {})
                script.expect()
        begin(h, rng, k % count * h.plans[0].shape.tokens)
        for layer in range(LAYERS):
            script.add(h.program(layer), h.registers(layer))
            h.run(layer)
            script.expect()


@pytest.mark.parametrize(("shape", "how"), [(GROUPS, AWAY), (ONE, ALONE)])
def test_centred_hash_bits_are_those_of_the_hasher(shape, how):
    """Each context takes its thresholds from its first pass, and again after a CLEAR."""
    h = host(np.random.default_rng(12), shape, how, centre=True)
    planes, fmt, sent = model(np.random.default_rng(12), shape)[1], params().lxe_format().dot, []
    key = h.core.dre.key

    def hears(ctx: int, bits: int, first: int):
        sent.append((ctx, bits))
        return key(ctx, bits, first)

    h.core.dre.key = hears
    rng, seen = np.random.default_rng(13), set()
    for start in range(2):
        f = ReSVParams(n_hp=16, scope="layer", centre=True, dot=fmt)
        hashers = [Hasher(f, shape.kv_heads, shape.head_size) for _ in planes]
        for hasher, p in zip(hashers, planes, strict=True):
            hasher.planes = to_bf16(p)
        for k in range(4):
            begin(h, rng, k * shape.tokens)
            for layer, hasher in enumerate(hashers):
                h.run(layer)
                keys = h.get("fresh")[:, : shape.entry // 2].reshape(shape.tokens, shape.kv_heads, -1)
                want = hasher.frame(hasher.split(keys))[0, :, 0].tolist()
                assert sent == [(h.plans[layer].retrieval.ctx, bits) for bits in want]
                assert (h.get("thresholds", layer)[:16] == hasher.thresholds[0]).all()
                seen.add((start, layer, hasher.thresholds.tobytes()))
                sent.clear()
        for r in h.plans:
            h.execute(forget(r.retrieval.ctx), {})
    assert len(seen) == 2 * LAYERS


@pytest.mark.parametrize("shape", [GROUPS, ONE])
def test_what_centring_costs(shape):
    """Instructions and words of `hash`, for `tiles` words of a token's products and `many` of a pass's."""
    one, other = (host(np.random.default_rng(1), shape, centre=c).plans[0] for c in (True, False))
    tiles, many = 4, 4 * shape.tokens
    for clusters, issued, words in ((0, 7 + (many > tiles), 2 * many + 2 * tiles), (5, 4, many + tiles)):
        mine, raws = (plan.costs(0, clusters) for plan in (one, other))
        a, b = mine.pop("hash"), raws.pop("hash")
        size = 4 * tiles * params().dpe.n_w
        assert (a.issued - b.issued, a.words - b.words, a.chunks - b.chunks) == (issued, words, 0)
        assert (a.loaded - b.loaded, a.stored - b.stored) == (size, 0 if clusters else size)
        assert mine == raws


def test_tiles_of_hyperplanes_are_a_power_of_two():
    with pytest.raises(ParamError, match="n_hp=12: its 3 tiles of 4 hyperplanes must be a power of two for centred"):
        host(np.random.default_rng(1), how=[{"n_hp": 12}] * LAYERS)
    plan = CorePlan(SHAPE, params().lxe_format(), RetrievalShape(n_hp=12, clusters=12, centre=False))
    assert plan.cuts["hash"].tiles == 3


def raw(i: Instruction) -> Instruction:
    """The instruction that takes thresholds from products, with zero in their place."""
    if i.op != Opcode.VECTOR or i["c"] != Source.BANK or i["span_c"] == FOREVER:
        return i
    return Instruction(i.op, i.values | {"c": Source.IMMEDIATE, "imm_c": MINUS_ZERO, "negate_c": 0})


def test_centred_layers_equal_golden():
    """On RTL, every byte: thresholds, clusters and placed entries. A program that ignores the thresholds differs."""
    h = host(np.random.default_rng(12), GROUPS, AWAY, centre=True)
    script = Script(h.memory, [r.name for r in h.memory.regions])
    twice(script, h, 2)
    ran, after = script.play(emitted(), ports(h), 0.2, seed=3)
    assert not script.differences(ran, after)
    assert ran[-1].perf["feeder.orders"] == orders(script)
    script.programs = [[f"{encode(raw(decode(int(word, 16)))):x}" for word in words] for words in script.programs]
    script.runs = script.runs[:LAYERS]  # the first pass tells; behind it memory is not that of the end
    assert any(line.startswith("run ") for line in script.differences(*script.play(emitted(), ports(h))))


def test_entries_are_those_that_guessed_queries_choose():
    """The first layer's input, normed and projected as the second layer's, chooses what the second one attends to."""
    rng = np.random.default_rng(11)
    h = host(rng, GROUPS, AHEAD)
    plan, s, most = h.plans[1], GROUPS, 0
    composed = Composed(plan, model(np.random.default_rng(11), s)[0][1])
    for k in range(6):
        begin(h, rng, k * s.tokens)
        hidden = h.get("hidden")
        cos, sin = turns(s, k * s.tokens)
        x = composed.norm(hidden, "attn_norm")
        q = to_bf16(composed.gemm("qkv", x, composed.w["qkv"]))[:, : s.heads * s.head_size]
        q = composed.turn(q.reshape(s.tokens, s.heads, -1), *(np.float32(t * plan.query_scale) for t in (cos, sin)))
        q = q.reshape(s.tokens, s.kv_heads, s.group, -1).swapaxes(0, 1).reshape(s.kv_heads, -1, s.head_size)
        dre, chosen = h.core.dre, []
        level, counts = dre.level(1), dre.tables[1].counts.copy() if 1 in dre.tables else None
        h.run(0)
        same(h.get("guess").reshape(q.shape), q)
        if level:
            f = params().lxe_format()
            means = h.get("means", 1)[:level, : s.kv_heads * s.head_size].reshape(level, s.kv_heads, -1)
            rows = np.concatenate([dot(q[g], np.ascontiguousarray(means[:, g]), f.dot) for g in range(s.kv_heads)])
            steps = [programs.score_codes(row, plan.scale, f.vector) for row in rows]
            codes = [programs.run(step, f.vector)[0][:level] for step in steps]
            mask = select_rows(np.stack(codes).astype(np.int64), counts, h.core.dre.params).mask.any(0)
            kv, size = h.core.dre.kv, s.entry * 2
            for b in kv.fetch(1, np.flatnonzero(mask).tolist()):
                chosen += [h.memory.get(b.addr + i, (s.entry,), BF16) for i in range(0, b.bytes, size)]
        assert h.core.registers[ROW] == len(chosen)
        same(h.get("behind", 1)[: len(chosen)], np.array(chosen, BF16).reshape(-1, s.entry))
        h.run(1)
        assert h.core.registers[Register.ENTRIES] == len(chosen)
        # Attention to the ring and to them, and to nothing else.
        n, q = s.recent + -(-len(chosen) // 8) * 8, h.get("q", 1).reshape(q.shape)
        entries = np.concatenate([h.get("ring", 1), h.get("behind", 1)])[:n].reshape(n, 2, s.kv_heads, -1)
        behind = np.arange(s.recent, n) < s.recent + len(chosen)
        seen = np.concatenate([plan.seen(k * s.tokens), np.tile(behind, (s.tokens, 1))], axis=1).repeat(s.group, axis=0)
        want = np.concatenate([composed.attention(q[g], entries[:, :, g], seen)[2] for g in range(s.kv_heads)])
        same(h.get("attention", 1), want)
        most = max(most, len(chosen))
    assert most > 0


def test_a_pass_longer_than_the_ring_is_refused():
    """Its first keys would have left the ring before its queries see it: a frame of more tokens goes in passes."""
    with pytest.raises(ParamError, match="tokens=9: must be at most recent = 8.*passes"):
        replace(SHAPE, tokens=9)


def test_lints(tmp_path):
    assert not lint(emitted(), tmp_path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ([{"ahead": 1}, {}], "ahead=1: layer 0 must name the context of layer 1, which has ctx=1, fetched=False"),
        ([{}, {"fetched": True}], "ahead=-1: layer 0 must name the context of layer 1, which has ctx=1, fetched=True"),
        ([{"ahead": 2}, {"fetched": True}], "ahead=2: layer 0 must name the context of layer 1, which has ctx=1"),
        ([{}, {"ahead": 2}], "ahead=2: must be -1 in the last layer"),
        ([{}, {"ctx": 3}], "n_ctx=3: must be above the context 3 of layer 1"),
        ([{"centre": not params().dre.function().centre}, {}], "centre=.*: must be .*as in the retrieval engine"),
    ],
)
def test_layers_that_do_not_fit_together_are_refused(how, message):
    with pytest.raises(ParamError, match=message):
        host(np.random.default_rng(0), how=how)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("entry_bytes=36", "entry_bytes=36.*multiple of a word"),
        ("dpe.n_h=2", "dpe.n_h=2.*must equal"),
        ("bus_bytes=16", "bus_bytes=16.*at most a word"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(change, message):
    with pytest.raises(ParamError, match=message):
        override(preset("tiny"), [*SIZES, change]).core.core_format()
