"""A whole decoder that retrieves coded pages, on a golden core: every choice is that of the definition."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.core_compiler import CorePlan
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.lxe_model import play as simulated
from openvrex.golden.program.model_host import ModelHost
from openvrex.golden.program.score_stages import RetrievalShape
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.system_host import SystemHost
from openvrex.golden.retrieval.coded_pages import PageParams, chosen
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.params import override, preset
from openvrex.tb.library.page_watch import PageWatch
from openvrex.tb.library.policy_passes import PolicyPasses
from openvrex.tb.library.policy_passes import pages as policy_of
from openvrex.tb.library.random_layers import turns, weights
from openvrex.tb.library.small_models import (
    CODES,
    LAYERS,
    PAGE,
    SHAPE,
    PlainDecoder,
    function,
    page_host,
    page_model,
    params,
    parts,
)

PAGES = PageParams()


def played(pages: PageParams, sizes: list[int], generate: int, more: tuple[str, ...] = ()) -> tuple[PageWatch, list]:
    own = page_model(3)
    h = page_host(own, pages, more)
    watch, steps = PageWatch(h, pages), []
    for step in h.stream(parts(own, sizes), generate):
        h.run(step)
        steps.append(step)
        assert watch.take(step) == []
    return watch, steps


@pytest.mark.parametrize(
    ("pages", "more"),
    [
        (PAGE, ()),
        (replace(PAGE, sinks=0, page=4, mean=8), ()),  # as long as the ring
        (replace(PAGE, sinks=3, page=1, mean=4, budget=3), ("clusters=64",)),
    ],
)
def test_every_choice_is_that_of_the_definition(pages, more):
    """A prompt in two passes, frames, one of them empty, a question longer than a pass, generated tokens."""
    watch, steps = played(pages, [5, 3, 0, 3, 4, 3], 4, more)
    tables = LAYERS * SHAPE.kv_heads
    length = watch.host.length
    assert watch.events["means"] == tables * (length // pages.mean)
    assert sum(step.phase == "code" for step in steps) == watch.events["means"]
    assert watch.events["fetches"] > 4 * tables
    assert watch.events["whole pages"] > 4 * tables
    assert (watch.events["parts of pages"] > 0) == (pages.page > 1)
    assert (watch.events["pages of sinks"] > 4 * tables) == (pages.sinks > 0)


def test_a_stream_equals_the_policy_in_fp32():
    """Hidden states of each pass, and the entries fetched for each layer and head; the core rounds to BF16."""
    own = page_model(3)
    h, decoder = page_host(own), PlainDecoder(own, 64)
    wanted = PolicyPasses(decoder, policy_of(decoder, PAGE, own.matrices, params(*CODES).lxe_format().dot))
    given = parts(own, [5, 3, 3, 3, 4])
    x, fetched, same = np.concatenate(given), np.zeros((LAYERS, SHAPE.kv_heads)), []
    for step in h.stream(given):
        h.run(step)
        if step.phase == "attention":
            fetched[step.layer, step.group] = h.system.cores[0].registers[Register.ENTRIES]
        elif step.phase == "down" and step.layer == LAYERS - 1:
            same.append(np.array_equal(fetched, wanted.take_pass(x[step.start : step.start + step.tokens])))
            near = np.linalg.norm(h.hidden(step.tokens)[-1] - wanted.hidden)
            assert near < 0.01 * np.linalg.norm(wanted.hidden)
    assert all(same)
    assert fetched.sum() > 4 * LAYERS * SHAPE.kv_heads


@pytest.mark.parametrize(
    ("pages", "clusters"), [(1, 256), (200, 256), (256, 256), (1, 1024), (256, 1024), (257, 1024), (600, 1024)]
)
def test_rows_of_any_length(pages, clusters):
    """A bank holds 256 scores: longer rows go to the WTU in parts. Scores may be equal, infinite or NaN."""
    page = replace(PAGE, page=1, budget=5, sinks=3)
    h = page_host(page_model(3), page, (f"clusters={clusters}", f"counts={clusters}", "blocks=2048"))
    system, plan = h.system, h.system.plans[0][0]
    core = system.cores[0]
    rng = np.random.default_rng(pages)
    for number in range(pages):
        core.dre.key(0, number)
    scores = np.full(plan.index.pages, np.nan, np.float32)
    scores[:pages] = rng.integers(-40, 40, pages)
    scores[rng.integers(pages, size=2)] = [np.nan, -np.inf]
    old = max(0, pages - 8)
    system.put(0, "ranks", scores[None])
    system.put(0, "candidates", np.where(np.arange(len(scores)) < old, 0, -np.inf).astype(BF16))
    system.put(0, "pins", plan.constants()["pins"])
    asked = []
    core.dre.query = lambda codes, plain=core.dre.query: asked.append(plain(codes)) or asked[-1]
    core.run(plan.program("select", "select"), system.registers(0))
    want = chosen(scores[None, :pages], pages, page)[0]
    np.testing.assert_array_equal(asked[0].rows.mask[0], want)
    assert core.registers[Register.ENTRIES] == np.count_nonzero(want[:old])


def test_semaphores_alone_order_the_programs():
    own = page_model(1)
    h = page_host(own)
    checked = set()
    for step in h.stream(parts(own, [3, 3, 3, 3, 3, 3]), 2):
        result = h.run(step)
        if step.start >= SHAPE.recent:
            order = simulated(result.issues, params(*CODES).lxe_format())
            assert (order.waiting, order.left, order.hazards) == ({}, {}, [])
            checked.add((step.phase, step.tokens))
    phases = {"norm", "entries", "hash", "code", "rest", "attention", "output", "ffn", "down", "head"}
    assert {phase for phase, _ in checked} == phases


@pytest.mark.parametrize(("name", "head"), [("core", 64), ("core", 128), ("edge8", 128)])
def test_programs_fit_shipped_cores(name, head):
    """A KV head of SmolLM2, and one of Llama-3 8B; 131,072 tokens, whose scores a bank does not hold."""
    p = override(preset(name), ["lxe.codes=18", "wtu.budget=true"])
    heads, kv_heads = (9, 3) if head == 64 else (32, 8)
    whole = LayerShape(width=head * heads, heads=heads, kv_heads=kv_heads, head_size=head, ffn=64, entries=1024)
    plan = SharePlan(Shares(whole, 64, p.cores), p.core.core_format(), RetrievalShape(clusters=16384, pages=PAGES), 0)
    lengths = {phase: len(plan.phase(phase) or []) for phase in plan.phases}
    assert all(lengths[phase] for phase in ("entries", "hash", "code", "rest", "attention"))


@pytest.mark.parametrize(
    ("change", "of_shape", "message"),
    [
        ({}, {"kv_heads": 2}, "kv_heads=2: must be 1"),
        ({}, {"recent": 20}, "recent=20: must be a multiple of"),
        ({}, {"recent": 16}, "pages.recent=8: must be 16"),
        ({"page": 1, "mean": 2}, {}, "tokens=3: must be at most mean = 2"),
        ({"sinks": 9}, {}, "sinks=9: must be in at most 4 pages"),
        ({"numbers": 1}, {}, "numbers=1: must be 2"),
    ],
)
def test_sizes_that_do_not_fit(change, of_shape, message):
    shape = replace(SHAPE, **{"kv_heads": 1, "heads": 2} | of_shape)
    with pytest.raises(ParamError, match=message):
        CorePlan(shape, params(*CODES).lxe_format(), RetrievalShape(n_hp=16, pages=replace(PAGE, **change)))


def test_engines_that_do_not_suit():
    with pytest.raises(ParamError, match="lxe.codes=0: must be 2"):
        CorePlan(replace(SHAPE, kv_heads=1), params().lxe_format(), RetrievalShape(n_hp=16, frame=4, pages=PAGE))
    ahead = RetrievalShape(n_hp=16, ahead=1, pages=PAGE)
    with pytest.raises(ParamError, match="ahead=1: must be -1 for coded pages"):
        CorePlan(replace(SHAPE, kv_heads=1), params(*CODES).lxe_format(), ahead)
    with pytest.raises(ParamError, match="budget=False: must be true"):
        page_host(page_model(1), PAGE, ("wtu.budget=false",))
    p = params(*CODES)
    sizes = p.dre.sizes()
    own = RetrievalShape.of(sizes, False, pages=PAGE)
    with pytest.raises(ParamError, match="th_hd=4: must be 1"):
        ModelHost(SHAPE, p.lxe_format(), own, page_model(1), function(p, centre=False), sizes)


# Teams


def system(cores: int, pages: PageParams = PAGE, more: tuple[str, ...] = ()) -> SystemHost:
    """A layer with random weights on several cores."""
    rng, s, p = np.random.default_rng(3), TEAM_SHAPE, params(*CODES, *more)
    matrices = to_bf16(rng.standard_normal((2, s.kv_heads, pages.numbers, s.head_size)) / 2)
    f, sizes = function(p, th_hd=1, centre=False), p.dre.sizes()
    retrieval = RetrievalShape.of(sizes, False, pages=pages)
    own = [weights(s, rng)], [KeyMatrices(*matrices)]
    return SystemHost(s, p.core_format(), retrieval, *own, f, sizes, cores=cores)


TEAM_SHAPE = replace(SHAPE, width=32, ffn=48)


@pytest.mark.parametrize(("cores", "members"), [(4, 2), (6, 3)])
@pytest.mark.parametrize("pages", [PAGE, replace(PAGE, page=1, budget=3, sinks=1)])
def test_a_team_chooses_what_a_core_alone_chooses(cores, members, pages):
    """Each member scores some of the pages, by sums of whole rows: scores and entries are equal, bit for bit."""
    more = ("clusters=64",)
    alone, team = system(1, pages, more), system(cores, pages, more)
    assert (alone.shares.members, team.shares.members) == (1, members)
    s, seen, scored, checked = TEAM_SHAPE, 0, 0, set()
    for k in range(14):
        start = k * s.tokens
        hidden = np.random.default_rng(k).normal(size=(s.tokens, s.width)).astype(np.float32)
        for h in (alone, team):
            h.begin(hidden, *turns(s, start), start)
            for phase, group in h.steps():
                results = h.run(phase, 0, group)
                for result in results.values() if k == 13 and h is team else ():  # it completes a mean
                    order = simulated(result.issues, params(*CODES).lxe_format())
                    assert (order.waiting, order.left, order.hazards) == ({}, {}, [])
                    checked.add(phase)
        for head in range(s.kv_heads):
            groups = [(h, head % h.shares.teams, head // h.shares.teams) for h in (alone, team)]
            arrays = {}
            for name in ("ranks", "codes", "means", "ring", "behind"):
                arrays[name] = [h.get(core, name, 0, group) for h, core, group in groups]
            (one, of, own), (other, leader, _) = groups
            many = one.cores[of].dre.kv.contexts[one.context(0, own)]
            pages_old = -(-max(0, start + s.tokens - s.recent) // pages.page)
            if head == s.kv_heads - 1:  # `ranks` of a core alone are those of its last table
                a, b = (x[0, :pages_old].view(np.uint32) for x in arrays["ranks"])
                np.testing.assert_array_equal(a, b)
                scored = max(scored, pages_old)
            count = other.fetched[0, leader, 0, 0]
            a, b = (x[:count].view(np.uint16) for x in arrays["behind"])
            np.testing.assert_array_equal(a, b)
            seen += count
            for name in ("codes", "means", "ring"):
                np.testing.assert_array_equal(*(x.view(np.uint16) for x in arrays[name]))
            assert many.clusters
        # Parts are joined with roundings to BF16 of their own, 2^-8 each, on the way to the hidden states.
        near = np.linalg.norm(team.get(0, "hidden") - alone.get(0, "hidden"))
        assert near < 0.01 * np.linalg.norm(alone.get(0, "hidden"))
    assert seen > 60
    assert checked == set(team.phases())
    assert scored > 4 * 2 * 4 * (pages.page == 1)  # more than a pair of steps for each member
