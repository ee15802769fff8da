"""A whole decoder on the RTL of a core: every byte of memory equals golden after each step of a stream."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.packed_weights import Packing, Rule
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.isa import Opcode, Status, unpacks
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.lxe_model import LxeError
from openvrex.golden.program.model_host import ModelHost, Weights
from openvrex.hdl.emit import Emitted
from openvrex.tb.library.head_runs import CORNERS, HeadRun
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.model_stream import ModelStream
from openvrex.tb.library.random_layers import packed, quantised, weights
from openvrex.tb.library.runner import emit
from openvrex.tb.library.small_models import (
    CODES,
    LAYERS,
    PAGE,
    PORTS,
    SHAPE,
    VOCABULARY,
    function,
    host,
    model,
    page_host,
    page_model,
    params,
    parts,
)

GENERATED = 2


@cache
def emitted() -> Emitted:
    return emit("core", params())


@pytest.mark.nightly  # short form: test_pass_engine.py, without stalls
def test_a_stream_equals_golden():
    """A prompt in two passes, two frames, an empty one, a question, two tokens; entries leave the ring and return."""
    own = model(1, tied=False)
    h = host(own)
    script = Script(h.memory, [r.name for r in h.memory.regions])
    fetched, kinds = [], set()
    for step in h.stream(parts(own, [4, 3, 0, 3, 2]), GENERATED):
        script.add(step.program, step.registers)
        h.run(step)
        script.expect()
        kinds.add((step.phase, step.tokens))
        if step.phase == "attention":
            fetched.append(h.system.cores[0].registers[Register.ENTRIES])
    assert len(script.runs) == 6 * LAYERS * (4 + SHAPE.kv_heads) + GENERATED
    assert len(kinds) == 3 * 5 + 2  # the first token follows a pass of two
    assert len(script.programs) == 3 * 5 + 1  # passes of three tokens, two and one; one head
    ran, after = script.play(emitted(), ModelStream(h, [], 0).ports, 0.1)
    assert not script.differences(ran, after)
    perf = ran[-1].perf
    assert sum(fetched) > 20
    assert perf["retriever.moves"] == LAYERS * SHAPE.kv_heads * (h.length - SHAPE.recent)
    assert perf["dre.hcu.tokens"] == LAYERS * SHAPE.kv_heads * h.length
    region = next(r for r in h.memory.regions if r.name == "head work")
    at = h.head_address("next") - region.base
    assert np.frombuffer(ran[-1].seen["head work"][at : at + 4], np.float32)[0] == h.tokens[-1]


@pytest.mark.nightly  # short form: test_pass_engine.py, without stalls
def test_a_stream_of_pages_equals_golden():
    """As above, of a decoder that retrieves coded pages."""
    own = page_model(1)
    h = page_host(own)
    script = Script(h.memory, [r.name for r in h.memory.regions])
    fetched, coded = [], 0
    for step in h.stream(parts(own, [4, 3, 0, 3, 3, 3, 2]), GENERATED):
        script.add(step.program, step.registers)
        h.run(step)
        script.expect()
        coded += step.phase == "code"
        if step.phase == "attention":
            fetched.append(h.system.cores[0].registers[Register.ENTRIES])
    ran, after = script.play(emit("core", params(*CODES)), ModelStream(h, [], 0).ports, 0.1)
    assert not script.differences(ran, after)
    perf, tables = ran[-1].perf, LAYERS * SHAPE.kv_heads
    assert sum(fetched) > 20 * tables
    assert coded == tables * (h.length // PAGE.mean)
    assert perf["dre.hcu.opened"] == tables * -(-h.length // PAGE.page)
    assert perf["dre.cluster_set.sets"] == len(fetched)


@pytest.mark.nightly  # short form: test_pass_engine.py, without stalls
@pytest.mark.parametrize("pages", [False, True], ids=["clusters", "pages"])
def test_a_batch_equals_golden(pages):
    """Two streams of other lengths whose products run together: prompts, frames, two tokens of each."""
    more = ("n_ctx=8", "blocks=256", "lxe.i_depth=1024")
    own = page_model(1) if pages else model(1, tied=False)
    h = page_host(own, PAGE, more, 2) if pages else host(own, params(*more), streams=2)
    script = Script(h.memory, [r.name for r in h.memory.regions])
    fetched, streams = Counter[int](), Counter[str]()
    for step in h.batch([parts(own, [4, 3, 3, 3, 2]), parts(own, [3, 3, 3, 2], 1)], GENERATED):
        script.add(step.program, step.registers)
        h.run(step)
        script.expect()
        streams[step.phase] += 1
        if step.phase == "attention":
            fetched[step.stream] += h.system.cores[0].registers[Register.ENTRIES]
    ran, after = script.play(emit("core", params(*(CODES if pages else ()), *more)), ModelStream(h, [], 0).ports, 0.1)
    assert not script.differences(ran, after)
    assert fetched[0] > 20 < fetched[1]
    passes = 7, 5  # of the streams
    assert streams["attention"] == sum(passes) * LAYERS * SHAPE.kv_heads
    assert streams["ffn"] == max(passes) * LAYERS


@pytest.mark.parametrize("rule", [Rule.MINIMUM, Rule.BYTE])
def test_packed_weights_equal_golden(rule):
    """A layer whose GEMMs load weights of 4 bits with minima, or of 8, and a head of 8: a prompt, a frame, a token."""
    shape = LayerShape(width=64, heads=4, kv_heads=2, head_size=16, ffn=64, tokens=3, recent=8, entries=8)
    p, rng = params("lxe.weights=true", "entry_bytes=64", "w_depth=64", "bus_bytes=8"), np.random.default_rng(2)
    packing, own = Packing(rule), model(2, tied=False)
    [layer, _] = quantised(weights(shape, rng), packing)
    table, norm = rng.normal(size=(VOCABULARY, shape.width)) / 8, np.ones(shape.width)
    planes = [np.tile(own.matrices[0][:, :1], (1, shape.kv_heads * shape.head_size))]
    turns = 1e4 ** -(np.arange(0, shape.head_size, 2) / shape.head_size)
    decoder = Weights([layer], planes, norm, table, turns, packed_head=packed(table.T, Packing(Rule.BYTE)))
    f, sizes = function(p), p.dre.sizes()
    h = ModelHost(
        replace(shape, packing=packing), p.lxe_format(), RetrievalShape.of(sizes, f.centre), decoder, f, sizes
    )
    script = Script(h.memory, [r.name for r in h.memory.regions])
    loads = Counter[str]()
    for step in h.stream(parts(decoder, [3, 2]), GENERATED):
        loads[step.phase] += sum(i.op == Opcode.LOAD and unpacks(i) for i in step.program)
        script.add(step.program, step.registers)
        h.run(step)
        script.expect()
    assert loads["head"] > 0
    assert loads.total() > 20
    ran, after = script.play(emit("core", p), ModelStream(h, [], 0).ports, 0.1)
    assert not script.differences(ran, after)


def test_argmax_equals_golden():
    """Ties, negative logits, the first and the last column, a vocabulary that leaves a tile ragged."""
    run = HeadRun(params().lxe_format(), SHAPE.width, VOCABULARY)
    script = Script(run.memory, [r.name for r in run.memory.regions])
    tokens = []
    for logits in CORNERS.values():
        run.put_logits(logits(VOCABULARY))
        script.add(run.program("argmax"), run.registers)
        run.run("argmax")
        script.expect()
        tokens.append(run.token)
    assert {0, VOCABULARY - 1, VOCABULARY // 2} <= set(tokens)
    ran, after = script.play(emitted(), PORTS)
    assert len(ran) == len(CORNERS)
    assert not script.differences(ran, after)


@pytest.mark.nightly
def test_a_stream_longer_than_memory_ends_in_a_status():
    """Golden and the RTL refuse the same step, with all before it equal; golden says how much memory it takes."""
    own = model(1)
    h = host(own, blocks=3)
    script, refused = Script(h.memory, [r.name for r in h.memory.regions]), None
    for step in h.stream(parts(own, [3] * 6)):
        script.add(step.program, step.registers)
        try:
            h.run(step)
        except LxeError as e:
            refused = e
            break
        script.expect()
    assert refused is not None
    assert refused.status == Status.FULL
    assert "A stream of 18 tokens needs at most blocks = " in str(refused)
    ran, _ = script.play(emitted(), ModelStream(h, [], 0).ports)
    assert [r.status for r in ran[:-1]] == [Status.DONE] * (len(script.runs) - 1)
    assert ran[-1].status == Status.FULL
    for had, want in zip(ran[:-1], script.wants, strict=True):
        for name, (data, known) in want.items():
            same = np.frombuffer(had.seen[name], np.uint8) == np.frombuffer(data, np.uint8)
            assert (same if known is None else same | ~known).all()
    assert step.phase == "attention"
