"""A core on RTL: whole decoder layers with retrieval, every byte of memory against golden after every pass."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from golden.core_host import CoreHost
from golden.core_layer import CorePlan, RetrievalShape
from golden.isa import Instruction, Opcode, Retrieve, Status
from golden.layer_memory import LayerShape, Register
from golden.params import ParamError
from hdl.emit import emit
from hdl.params import override, preset
from tb.lxe import Ran, Script
from tb.runner import lint

SHAPE = LayerShape(width=16, heads=2, kv_heads=1, head_size=8, ffn=32, tokens=3, recent=8, entries=16)
SIZES = ("lxe.i_depth=512", "lxe.queue=4", "entry_bytes=32", "recent=8", "blocks=64", "clusters=32", "n_ctx=6")
LAYERS = 2
CONTEXTS = 3  # of the KVMU for each layer: the rings of two are room for the entries behind the first's


@cache
def params():
    return override(preset("tiny"), list(SIZES)).core


@cache
def emitted():
    return emit("core", params())


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    s = SHAPE

    def matrix(k: int, n: int) -> np.ndarray:
        return rng.normal(size=(k, n)) * k**-0.5

    return {
        "attn_norm": 1 + rng.normal(size=s.width) / 8,
        "qkv": matrix(s.width, (s.heads + 2 * s.kv_heads) * s.head_size),
        "attn_output": matrix(s.heads * s.head_size, s.width),
        "ffn_norm": 1 + rng.normal(size=s.width) / 8,
        "gate_up": matrix(s.width, 2 * s.ffn),
        "ffn_down": matrix(s.ffn, s.width),
    }


def host(rng: np.random.Generator, blocks: int = 64) -> CoreHost:
    p = params()
    function = replace(p.dre.function(), th_hd=4)
    plans = [
        CorePlan(SHAPE, p.lxe_format(), RetrievalShape(n_hp=16, clusters=32, ctx=CONTEXTS * i)) for i in range(LAYERS)
    ]
    planes = [rng.normal(size=(16, SHAPE.kv_heads * SHAPE.head_size)) for _ in range(LAYERS)]
    layers = [weights(rng) for _ in range(LAYERS)]
    sizes = {"blocks": blocks, "block_slots": p.dre.kvmu.block_slots, "n_ctx": CONTEXTS * LAYERS}
    return CoreHost(plans, layers, planes, function, **sizes)


def turns(start: int) -> tuple[np.ndarray, np.ndarray]:
    angle = (start + np.arange(SHAPE.tokens))[:, None] * 1e4 ** -(np.arange(0, SHAPE.head_size, 2) / SHAPE.head_size)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def ports(h: CoreHost) -> dict[str, int]:
    f = h.core.dre.params
    return {"th_hd": f.th_hd, "ratio": f.ratio_q16, "device_base": h.device_base, "home_base": h.home_base}


def passes(seed: int, count: int) -> tuple[CoreHost, Script, list[int]]:
    """So many passes through all layers; entries fetched in each run."""
    rng = np.random.default_rng(seed)
    h = host(rng)
    script = Script(h.memory, [r.name for r in h.memory.regions])
    fetched = []
    for k in range(count):
        start = k * SHAPE.tokens
        h.begin(rng.normal(size=(SHAPE.tokens, SHAPE.width)).astype(np.float32), *turns(start), start)
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
    hit |= {"opens"} if perf["dre.hcu.opened"] else set()
    hit |= {"joins"} if perf["dre.hcu.tokens"] > perf["dre.hcu.opened"] else set()
    hit |= {"offloads"} if perf["retriever.moves"] else set()
    hit |= {"bursts_of_a_set"} if perf["dre.kvmu.bursts"] > len([n for n in fetched if n]) else set()
    hit |= {"retrieves_wait"} if perf["lxe.sequencer.retrieve_waits"] else set()
    hit |= {"program_waits"} if perf["lxe.sequencer.sync_waits"] else set()
    lanes = params().dpe.n_w
    hit |= {"ragged_tile" if n % lanes else "whole_tile" for n in fetched if n}
    hit |= {"odd_tiles" if -(-n // lanes) % 2 else "even_tiles" for n in fetched if n}
    return hit


BINS = {
    *("fetches", "fetches_nothing", "opens", "joins", "offloads", "bursts_of_a_set", "retrieves_wait"),
    *("program_waits", "ragged_tile", "odd_tiles", "even_tiles"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "pause", "count"), [(1, 0.0, 7), (2, 0.4, 5)])
def test_layers_equal_golden(seed, pause, count, record_property):
    """Clusters grow, entries go home and come back, and what is chosen changes from pass to pass."""
    h, script, fetched = passes(seed, count)
    ran, after = script.play(emitted(), ports(h), pause, seed=seed)
    assert not script.differences(ran, after)
    perf, dre = ran[-1].perf, h.core.dre
    assert perf["retriever.entries"] == perf["dre.kvmu.appends"] == count * LAYERS * SHAPE.tokens
    assert perf["dre.hcu.opened"] == sum(map(len, dre.tables))
    if seed == 1:
        hit = bins(ran, fetched)
        record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
        assert hit >= BINS, BINS - hit


def test_a_map_without_blocks_ends_in_a_status():
    """Blocks that do not suffice: the same entry is refused in golden and on RTL, with everything before it done."""
    rng = np.random.default_rng(3)
    h = host(rng)
    p = override(preset("tiny"), [*SIZES, "blocks=4"]).core
    function, kv = h.core.dre.params, h.core.dre.kv
    h.core.dre.kv = type(kv)(
        **{"clusters": 32, "blocks": 4, "block_slots": kv.block_slots, "recent": 8, "entry_bytes": 32},
        **{"boundary": kv.boundary, "n_ctx": kv.n_ctx, "device_base": h.device_base, "home_base": h.home_base},
    )
    script = Script(h.memory)
    refused = None
    for k in range(6):
        start = k * SHAPE.tokens
        h.begin(rng.normal(size=(SHAPE.tokens, SHAPE.width)).astype(np.float32), *turns(start), start)
        script.add(h.program(0), h.registers(0))
        try:
            h.run(0)
        except ValueError as e:
            refused = e
            break
        script.expect()
    assert refused.status == Status.FULL
    assert "more blocks" in str(refused)
    ran, _ = script.play(emit("core", p), ports(h) | {"th_hd": function.th_hd})
    assert [r.status for r in ran] == [Status.DONE] * (len(ran) - 1) + [Status.FULL]
    assert len(ran) == len(script.runs)


def test_a_context_is_forgotten():
    """CLEAR: clusters begin anew, blocks are given again."""
    h, script, _ = passes(5, 2)
    clear = [
        Instruction(Opcode.RETRIEVE, {"action": Retrieve.CLEAR, "ctx": 0}),
        Instruction(Opcode.HALT, {}),
    ]
    script.add(clear, {})
    h.core.run(clear, {})
    script.expect()
    rng = np.random.default_rng(6)
    h.begin(rng.normal(size=(SHAPE.tokens, SHAPE.width)).astype(np.float32), *turns(0), 0)
    script.add(h.program(0), h.registers(0))
    h.run(0)
    script.expect()
    ran, after = script.play(emitted(), ports(h))
    assert not script.differences(ran, after)
    assert ran[-1].perf["feeder.clears"] == 1


def test_lints(tmp_path):
    assert not lint(emitted(), tmp_path)


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
        emit("core", override(preset("tiny"), [*SIZES, change]).core)
