"""Codes of keys and scores of pages on a golden LXE: bit for bit those of `golden.retrieval.coded_pages`."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.lxe_model import simulate
from openvrex.golden.program.page_stages import PAGES, PagePlan
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.params import preset
from openvrex.tb.library.page_runs import PageRun, asked

FMT = LxeFormat(lanes=16, w_depth=16, x_depth=128, depth=16, i_depth=512)
SHAPE = LayerShape(width=16, heads=6, kv_heads=2, head_size=16, ffn=16, tokens=3, recent=32, entries=0)
PAGE = PageParams(page=4, mean=16, numbers=5, budget=8, recent=64, sinks=0)


def run(shape: LayerShape = SHAPE, p: PageParams = PAGE, pages: int = 64, fmt: LxeFormat = FMT) -> PageRun:
    rng = np.random.default_rng(1)
    own = to_bf16(rng.standard_normal((2, shape.kv_heads, p.numbers, shape.head_size)) / 4)
    return PageRun(fmt, shape, pages, p, KeyMatrices(*own))


CODING = {"depth": 64, "w_depth": 32}  # room to code keys
ONE_ROW = replace(SHAPE, tokens=1, heads=1, kv_heads=1, recent=16)
MANY_ROWS = replace(SHAPE, tokens=4, heads=4, kv_heads=1, head_size=32)  # as many as a bank has words; two words a head


@pytest.mark.parametrize("halves", [False, True], ids=["whole", "halves"])
@pytest.mark.parametrize(
    ("shape", "page", "codes", "places"),
    [
        (SHAPE, PAGE, 0, 2),  # four means a step
        (MANY_ROWS, replace(PAGE, mean=64), 0, 2),
        (ONE_ROW, replace(PAGE, mean=4), 0, 2),  # a mean for each tree
        (SHAPE, replace(PAGE, numbers=14), 0, 1),
        (ONE_ROW, replace(PAGE, numbers=2, page=8, mean=32), 0, 4),
        (MANY_ROWS, replace(PAGE, numbers=1, page=1, mean=8), 0, 1),
        (SHAPE, replace(PAGE, numbers=1, page=2, mean=2), 0, 2),
        # LOAD expands codes: two words of W in a word of memory, which is a page, two pages, half of one.
        (SHAPE, PAGE, 5, 2),
        (MANY_ROWS, replace(PAGE, page=2), 5, 2),
        (ONE_ROW, replace(PAGE, page=8), 5, 2),
        (SHAPE, replace(PAGE, numbers=14), 14, 1),
        (ONE_ROW, replace(PAGE, numbers=14, page=1, mean=8), 14, 1),
    ],
)
def test_scores_are_those_of_the_definition(shape, page, codes, places, halves):
    """No page, one, a pair of steps less a page, a pair, one more, all that there is room for."""
    own = run(shape, page, fmt=replace(FMT, halves=halves, codes=codes, **(CODING if codes else {})))
    assert own.plan.index.places == places
    assert own.plan.index.shifts == (places + 1) // 2 if halves else places
    rng, n = np.random.default_rng(3), FMT.lanes
    ends = {0, 1, 2 * n - 1, 2 * n, 2 * n + 1, 4 * n}
    for coded in sorted({-(-end * page.page // page.mean) * page.mean for end in ends}):
        own.append(to_bf16(rng.standard_normal((coded - own.keys.length, shape.kv_heads, shape.head_size)) * 2 + 1))
        q, sums = asked(own, rng)
        np.testing.assert_array_equal(own.run(), own.keys.page_scores(q, sums))
        assert own.registers[PAGES] == own.pages
    assert own.pages == own.plan.index.pages
    same_codes(own)


def same_codes(own: PageRun) -> None:
    """Means and codes in memory are golden's, byte by byte."""
    for name, want in (
        ("means", own.keys.means),
        ("codes", [own.plan.index.pack(*of) for of in zip(own.keys.numbers, own.keys.gains, strict=True)]),
    ):
        for g, rows in enumerate(want):
            got = own.get(name)[g, : len(rows)]
            np.testing.assert_array_equal(got.view(np.uint16), rows.view(np.uint16))


@pytest.mark.parametrize(
    ("codes", "lanes", "mean", "head", "tiles", "batch"),
    [
        (5, 16, 16, 32, 4, 4),
        (20, 32, 8, 32, 4, 4),
        (18, 32, 8, 64, 2, 8),
        (18, 64, 32, 128, 1, 16),
        (2, 4, 4, 4, 16, 1),
    ],
)
def test_codes_of_keys(codes, lanes, mean, head, tiles, batch):
    """Every gain and every number; keys that equal their mean, that are infinite, NaN, very large and very small."""
    fmt = replace(FMT, lanes=lanes, codes=codes, depth=128, w_depth=128)
    shape = replace(SHAPE, head_size=head, tokens=1, recent=lanes)
    p = replace(PAGE, numbers=codes, mean=mean, page=2)
    own, rng = run(shape, p, max(64, 2 * lanes), fmt), np.random.default_rng(6)
    assert (own.plan.coding.tiles, own.plan.coding.batch) == (tiles, batch)
    tokens = own.plan.index.pages * p.page
    # Keys that rise from token to token, in both signs: so means are small beside them.
    keys = rng.standard_normal((tokens, 2, head)) * np.exp2(np.linspace(-6, 6, tokens))[:, None, None]
    own.append(to_bf16(keys * rng.choice([-1, 1], (tokens, 1, 1))))
    same_codes(own)
    assert len(np.unique(own.keys.gains)) > 30
    largest = 5 if codes == 2 else 7  # of two numbers none is above sqrt(2) of their root mean square
    assert set(own.keys.numbers.ravel().tolist()) == set(range(-largest, largest + 1, 2))
    odd = run(shape, p, 2 * max(lanes, 8 * mean), fmt)
    keys = to_bf16(rng.standard_normal((8 * mean, 2, head)))
    keys[:mean], keys[3 * mean : 4 * mean], keys[4 * mean : 5 * mean] = 1, 0, -0.0
    keys[mean, 0, 3], keys[2 * mean, 1, 2] = np.inf, np.nan
    keys[5 * mean : 6 * mean] *= BF16(2.0**120)
    keys[6 * mean : 7 * mean] *= BF16(2.0**-120)
    odd.append(keys)
    same_codes(odd)
    assert {0, 63} <= set(odd.keys.gains.ravel().tolist())
    assert not simulate(odd.plan.program("code0", "code1"), odd.registers, fmt).problems()


@pytest.mark.parametrize("codes", [0, 5])
def test_corners_of_numbers(codes):
    """Keys that equal their mean, infinite and NaN keys, queries of zeros: in codes, means and scores."""
    own, rng = run(fmt=replace(FMT, codes=codes, **CODING)), np.random.default_rng(4)
    keys = to_bf16(rng.standard_normal((256, 2, 16)))
    keys[:16] = 1
    keys[17, 0, 3], keys[40, 1, 2] = np.inf, np.nan
    keys[64:128] *= BF16(2.0**60)
    own.append(keys)
    for factor in (1.0, 0.0, 2.0**70):
        q, sums = asked(own, rng, factor)
        want = own.keys.page_scores(q, sums)
        np.testing.assert_array_equal(own.run(), want)
    assert np.isnan(want).any()


def test_the_program_is_ordered_by_semaphores_alone():
    for pages, codes in ((0, 5), (3, 0), (40, 5), (64, 0)):
        fmt = replace(FMT, codes=codes, **CODING)
        own, rng = run(fmt=fmt), np.random.default_rng(5)
        own.append(to_bf16(rng.standard_normal((pages * 4, 2, 16))))
        asked(own, rng)
        for program in own.programs():
            assert not simulate(program, own.registers, fmt).problems()


@pytest.mark.parametrize(("head", "heads", "kv_heads"), [(128, 32, 8), (128, 4, 1), (64, 9, 3)])
@pytest.mark.parametrize("name", ["core", "edge8", "server48"])
def test_a_layer_fits_on_shipped_cores(name, head, heads, kv_heads):
    """Llama-3 8B, whole and a KV head of it, and SmolLM2: frames of 10 tokens, each stage one program."""
    shape = LayerShape(width=head * heads, heads=heads, kv_heads=kv_heads, head_size=head, ffn=64, entries=0)
    plan = PagePlan(shape, preset(name).core.lxe_format(), 131_072, PageParams())
    assert plan.index.places == 2
    for stage in plan.stages:
        plan.programs(stage.name, stage.name)


@pytest.mark.parametrize(
    ("shape", "page", "pages", "reason"),
    [
        ({"head_size": 24}, {}, 64, "head_size=24: must be a multiple of lanes = 16"),
        ({"recent": 40}, {}, 64, "recent=40: must be a multiple of lanes = 16"),
        ({}, {"numbers": 15}, 64, "numbers of a code=15: must be at most 14"),
        ({}, {"mean": 128, "recent": 128}, 64, "mean=128: must be at most 64, the tokens of lanes = 16 pages of 4"),
        ({}, {}, 48, "pages=48: must be a multiple of 32"),
        ({"tokens": 6}, {}, 64, "tokens=6: makes 18 rows, more than depth = 16"),
        ({}, {"page": 16, "mean": 16, "numbers": 14}, 64, "page=16: needs 17 words of half of W"),
        ({"tokens": 5, "head_size": 128}, {}, 64, "tokens=5: needs 150 words of X"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shape, page, pages, reason):
    fmt = replace(FMT, w_depth=32) if "head_size" in shape else FMT
    with pytest.raises(ParamError, match=reason):
        run(replace(SHAPE, **shape), replace(PAGE, **page), pages, fmt=fmt)
