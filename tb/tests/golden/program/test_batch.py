"""Streams whose products run together: each has the numbers that it has alone."""

from collections import Counter

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import Status
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.lxe_model import LxeError
from openvrex.golden.program.lxe_model import play as simulated
from openvrex.golden.program.model_host import HEAD, ModelHost
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.system_host import BatchPart, SystemHost, batch_steps
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.tb.library.page_watch import PageWatch
from openvrex.tb.library.random_layers import turns, weights
from openvrex.tb.library.small_models import CODES, PAGE, function, model, page_host, page_model, params, parts
from openvrex.tb.library.small_models import host as small_host

SHAPE = LayerShape(width=32, heads=4, kv_heads=2, head_size=8, ffn=48, tokens=3, recent=8, entries=24)
STREAMS, LAYERS, PASSES = 3, 2, 14
MOST = STREAMS * SHAPE.tokens


def host(cores: int, pages: PageParams | None, streams: int = STREAMS) -> SystemHost:
    """Layers with random weights on several cores, with coded pages or clusters."""
    more = CODES if pages else ("vpe.depth=64", "w_depth=64")
    rng, s, p = np.random.default_rng(3), SHAPE, params(*more, "n_ctx=16", "blocks=512", "x_depth=256")
    sizes, keys = p.dre.sizes(), s.kv_heads * s.head_size
    own = [weights(s, rng) for _ in range(LAYERS)]
    matrices = to_bf16(rng.standard_normal((LAYERS, 2, s.kv_heads, PAGE.numbers, s.head_size)) / 2)
    planes = [rng.normal(size=(16, keys)) for _ in range(LAYERS)]
    f = function(p, th_hd=1, centre=False) if pages else function(p)
    of_pages = [KeyMatrices(*of) for of in matrices]
    retrieval = RetrievalShape.of(sizes, f.centre, pages=pages)
    how = {"cores": cores, "streams": streams, "batch": MOST * (streams > 1)}
    return SystemHost(s, p.core_format(), retrieval, own, of_pages if pages else planes, f, sizes, **how)


def size(stream: int, k: int) -> int:
    """Tokens of a stream in pass k; a stream that has ended has none."""
    return 0 if (stream == 2 and k > 10) or (stream == 0 and k > 11) else 1 + (stream + k) % SHAPE.tokens


def hidden(stream: int, k: int) -> np.ndarray:
    rng = np.random.default_rng([stream, k])
    return rng.normal(size=(size(stream, k), SHAPE.width)).astype(np.float32)


def fetched(h: SystemHost, stream: int, layer: int) -> list[bytes]:
    """What the tables of a stream's layer hold: ring, entries behind it, and their number of clusters."""
    out = []
    for core in range(h.shares.teams):
        for group in range(h.shares.groups):
            ctx = h.context(layer, group, stream)
            names = ("ring", "behind", *(("codes", "means") if h.plans[0][0].retrieval.pages else ("table",)))
            out += [h.get(core, name, layer, group, stream).tobytes() for name in names]
            out.append(bytes(str(h.cores[core].dre.level(ctx)), "ascii"))
    return out


@pytest.mark.parametrize("pages", [None, PAGE], ids=["clusters", "pages"])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_batch_equals_its_streams_alone(cores, pages):
    """Streams of different lengths, one of which ends: hidden states, entries, tables, bit for bit."""
    together, starts = host(cores, pages), [0] * STREAMS
    alone = [host(cores, pages, 1) for _ in range(STREAMS)]
    assert together.shares.members == max(1, cores // SHAPE.kv_heads)
    assert not any(plan.finer for plans in together.plans for plan in plans)
    programs: Counter[tuple[str, int]] = Counter()
    checked = set()
    for k in range(PASSES):
        rows = [size(stream, k) for stream in range(STREAMS)]
        of = [together.of(n, sum(rows)).at(stream) if n else None for stream, n in enumerate(rows)]
        some = [BatchPart(view, stream, sum(rows[:stream])) for stream, view in enumerate(of) if view is not None]
        for view, stream, first in some:
            view.begin(hidden(stream, k), *turns(view.shares.whole, starts[stream]), starts[stream], stream, first)
        for layer in range(LAYERS):
            for part, phase, group in batch_steps(some, layer):
                programs[phase, part.stream] += 1
                for result in part.host.run(phase, layer, group, None, part.stream, part.first).values():
                    if k >= PASSES - 4:
                        order = simulated(result.issues, together.plans[0][0].fmt)
                        assert (order.waiting, order.left, order.hazards) == ({}, {}, [])
                        checked.add(phase)
        out = some[0].host.get(0, "hidden")
        for view, stream, first in some:
            own = alone[stream].of(rows[stream])
            own.begin(hidden(stream, k), *turns(view.shares.whole, starts[stream]), starts[stream])
            for layer in range(LAYERS):
                for phase, group in own.steps(layer):
                    own.run(phase, layer, group)
                assert fetched(own, 0, layer) == fetched(together, stream, layer)
            want = own.get(0, "hidden")
            np.testing.assert_array_equal(out[first : first + len(want)].view(np.uint32), want.view(np.uint32))
            starts[stream] += rows[stream]
    assert sum(programs["ffn", stream] for stream in range(STREAMS)) == PASSES * LAYERS  # once for all streams
    assert all(programs["attention" if cores <= 2 else "attend", stream] > 0 for stream in range(STREAMS))
    assert checked == set(together.phases())  # a mean was completed, too


# A whole decoder

MORE = ("n_ctx=16", "blocks=256", "x_depth=256")
ANSWERED = 4
GIVEN = ([3, 3, 0, 3, 4], [3, 3, 3, 3], [2, 3, 3])  # tokens of each part of each stream


def decoder(pages: bool, streams: int, end: int | None = None, at_once: int = 0) -> ModelHost:
    """A host of so many streams; its head and products are cut for one."""
    if pages:
        return page_host(page_model(3), PAGE, MORE, streams, end, at_once)
    return small_host(model(3), params(*MORE, "lxe.i_depth=1024"), end, streams=streams, at_once=at_once)


def told(
    pages: bool, given: list[list[np.ndarray]], streams: int, end: int | None = None, at_once: int = 0
) -> tuple[list, ModelHost]:
    """Hidden states, logits and tokens of each stream; its pages are held against their definition, too."""
    h = decoder(pages, streams, end, at_once)
    out: list[list[bytes]] = [[] for _ in given]
    watch = PageWatch(h, PAGE) if pages else None
    steps = []
    for step in h.batch(given, ANSWERED):
        h.run(step)
        steps.append(step)
        assert not watch or watch.take(step) == []
        if step.phase == "attention" and step.layer == LAYERS - 1:
            out[step.stream].append(
                h.system.memory.get(step.registers[Register.OUT], (step.tokens, 16), BF16).tobytes()
            )
        if step.phase == HEAD:
            for row, n in enumerate(step.rows):
                out[n].append(h.logits(row).tobytes())
    if watch:
        assert watch.events["fetches"] > 0 < watch.events["means"]
    return [[*x, s.tokens, s.length] for x, s in zip(out, h.said, strict=False)], h


@pytest.mark.parametrize("pages", [False, True], ids=["clusters", "pages"])
@pytest.mark.parametrize("streams", [2, 3])
def test_a_decoder_tells_each_stream_what_it_tells_it_alone(pages, streams):
    """Attention outputs of the last layer, logits, tokens, bit for bit; one stream ends before the others."""
    own = page_model(3) if pages else model(3)
    given = [parts(own, sizes, seed) for seed, sizes in enumerate(GIVEN[:streams])]
    first = told(pages, given[:1], 1)[0][0][-2]
    assert len(first) == ANSWERED
    end = first[1]  # the first stream ends here
    together, h = told(pages, given, streams, end)
    assert len(h.said[0].tokens) < ANSWERED
    assert max(len(s.tokens) for s in h.said) == ANSWERED
    for stream, parts_of in enumerate(given):
        assert told(pages, [parts_of], 1, end)[0][0] == together[stream]


@pytest.mark.parametrize("pages", [False, True], ids=["clusters", "pages"])
@pytest.mark.parametrize(("streams", "at_once"), [(1, 9), (2, 12)])
def test_a_long_pass_tells_what_its_sections_tell_alone(pages, streams, at_once):
    """Of more tokens than the HCU holds; frames and generated tokens are passes of one section."""
    own = page_model(3) if pages else model(3)
    given = [parts(own, sizes, seed) for seed, sizes in enumerate(([8, 3, 7], [3, 9])[:streams])]
    assert at_once // streams > params().dre.hcu.frame > SHAPE.tokens
    together, h = told(pages, given, streams, at_once=at_once)
    assert h.passes == ANSWERED + (2 if streams == 1 else 4)
    for stream, parts_of in enumerate(given):
        assert told(pages, [parts_of], 1)[0][0] == together[stream]


def test_streams_longer_than_memory_say_how_much_they_need():
    """Every token opens a cluster; both streams share the blocks."""
    own = model(1)
    h = small_host(own, params(*MORE), blocks=71, streams=2, th_hd=0)
    steps = h.batch([parts(own, [3] * 3, seed) for seed in range(2)])
    with pytest.raises(LxeError, match="the map has no free block among 71: raise blocks") as e:
        list(map(h.run, steps))
    assert e.value.status == Status.FULL
    assert "Streams of 9 and 9 tokens need at most blocks = 72 (9,216 bytes of home memory)" in str(e.value)


def test_a_head_in_shorter_slices_is_told():
    plans = [HeadPlan(SHAPE, params("vpe.depth=64", *more).lxe_format(), 94, 9) for more in ((), ("x_depth=256",))]
    assert [plan.finer for plan in plans] == [("head",), ()]
    fmt = params("vpe.depth=64", "x_depth=256").lxe_format()
    with pytest.raises(ParamError, match="tokens=66: must be at most 64, .*: take fewer streams, or raise vpe.depth"):
        SharePlan(Shares(SHAPE, 4, 1, 1, 66), fmt, RetrievalShape(), 0)


def test_bad_batches():
    h, own = decoder(False, 2), model(3)
    with pytest.raises(ParamError, match="streams=3: must be at most 2"):
        next(h.batch([parts(own, [2])] * 3))
    with pytest.raises(ParamError, match="parts=1: must hold a token"):
        next(h.batch([parts(own, [2]), parts(own, [0])], 1))
    with pytest.raises(ParamError, match="batch=2: must be at least 3"):
        Shares(SHAPE, 4, 1, 1, 2)
    with pytest.raises(ParamError, match="heads=2: must be 1 in a batch"):
        SharePlan(Shares(SHAPE, 4, 1, 2, 6), params().lxe_format(), RetrievalShape(clusters=8), 0)
    with pytest.raises(ParamError, match="ahead=1: must be -1 in a batch"):
        SharePlan(Shares(SHAPE, 4, 1, 1, 6), params().lxe_format(), RetrievalShape(clusters=8, ahead=1), 0)
    with pytest.raises(ParamError, match="batch=0: must be given in a host of several streams"):
        h.of(2)
    with pytest.raises(ParamError, match="batch=2: must be 0 in a host without batches"):
        small_host(own).of(2, 2)
    short = SharePlan(Shares(SHAPE, 4, 1, 1, 9), params("vpe.depth=64").lxe_format(), RetrievalShape(clusters=8), 0)
    assert set(short.finer) == {"output", "qkv", "down"}  # X has room for a word of each of nine rows
    plan = SharePlan(Shares(SHAPE, 4, 1, 1, 6), params("vpe.depth=64").lxe_format(), RetrievalShape(clusters=8), 0)
    with pytest.raises(ParamError, match="batch=9: must be at most 6"):
        plan.of(3, 9)
