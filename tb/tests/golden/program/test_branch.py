"""The history branch as a program: golden LXE against the FP32 branch, passes of any length, refused sizes."""

import pickle

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.state_space import HistoryBranch, StateSpaceParams
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import Engine, LxeFormat
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.lxe_model import simulate
from openvrex.golden.program.scan_compiler import BranchPlan
from openvrex.hdl.params import preset
from openvrex.tb.library.branch_runs import BranchRun

FMT = LxeFormat(lanes=4, w_depth=64, x_depth=64, depth=32, i_depth=1024, features="hybrid")
# Bound of the error's root mean square. Operands of products are rounded to BF16, with a root mean square of less than
# 2^-9 of each. Four products lie behind each other, with two operands each. The step dt also has the error of its
# rounded argument v, at most 7 in magnitude here, so 7 * 2^-9 of dt. The result is rounded once more. The bound takes
# the sum, as if all errors had one sign.
BOUND = (2 * 4 + 7 + 1) * 2.0**-9


def stream(run: BranchRun, tokens: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of the program and of the FP32 branch, [passes * tokens, width]."""
    rng, state = np.random.default_rng(tokens), run.branch.begin()
    got, want = [], []
    for _ in range(passes):
        x = rng.standard_normal((tokens, run.plan.shape.width)).astype(np.float32)
        got.append(run.run(x, np.zeros(x.shape))[0])
        y, state = run.branch(x, np.array([0, tokens]), state)
        want.append(y)
    h = run.get("state").swapaxes(1, 2).reshape(state.h[0].shape)
    assert _error(h, state.h[0]) < BOUND
    kept = run.get("kept").astype(np.float32)
    assert not kept.size or _error(kept, state.conv[0]) < BOUND
    return np.concatenate(got), np.concatenate(want)


def _error(got: np.ndarray, want: np.ndarray) -> float:
    """Root mean square of the error, relative to that of the exact values."""
    return float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))


@pytest.mark.parametrize(("tokens", "passes", "state"), [(1, 5, 4), (2, 3, 2), (5, 2, 8), (8, 2, 4)])
def test_passes_equal_the_branch(tokens, passes, state):
    """State and last inputs go from pass to pass; passes of fewer tokens than taps, too."""
    run = BranchRun(FMT, 8, tokens, StateSpaceParams(state=state))
    assert _error(*stream(run, tokens, passes)) < BOUND


@pytest.mark.parametrize("segments", [1, 2])
def test_the_sum_is_rounded_once(segments):
    """The branch is added to BF16 numbers, here of segments as those of attention, in FP32."""
    rng = np.random.default_rng(6)
    x, total = (rng.standard_normal((3, 8)).astype(np.float32) for _ in "xt")
    y, got = (BranchRun(FMT, 8, 3, StateSpaceParams(state=4), segments).run(x, t)[0] for t in (0 * total, total))
    total = to_bf16(total).astype(np.float32)
    # y is rounded to BF16, so the product lies within half a step of it; FP32 sums of two orders differ by less.
    near = 2**-8 * (1 + 2**-7) * np.abs(y) + 2**-20 * (np.abs(y) + np.abs(total))
    low, high = (to_bf16(total + y + sign * near).astype(np.float32) for sign in (-1, 1))
    assert ((low <= got) & (got <= high)).all()
    assert (got != total).any()
    assert (low == high).mean() > 0.5


def test_cutting_a_stream_into_passes_changes_no_bit_of_the_state():
    states = []
    x = np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32)
    for tokens in (1, 2, 3, 6):
        run = BranchRun(FMT, 8, tokens, StateSpaceParams(state=4))
        sums = [run.run(part, np.zeros((tokens, 8)))[0] for part in x.reshape(-1, tokens, 8)]
        states.append((np.concatenate(sums).tobytes(), run.get("state").tobytes(), run.get("kept").tobytes()))
    assert len(set(states)) == 1


SMALL = LxeFormat(lanes=4, w_depth=8, x_depth=16, depth=32, i_depth=1024, features="hybrid")


def test_groups_of_tokens_and_slices_of_tiles_change_little():
    """A small W and X: groups of one token, tiles in slices. A sum of slices is rounded between them."""
    runs = [BranchRun(fmt, 24, 5, StateSpaceParams(state=8)) for fmt in (FMT, SMALL)]
    assert [run.plan.groups for run in runs] == [[5], [1] * 5]
    assert [run.plan.cuts["z_in"].slices for run in runs] == [1, 3]
    assert [run.plan.keeps_normed for run in runs] == [True, False]
    for run in runs:
        assert _error(*stream(run, 5, 1)) < BOUND


def test_groups_of_tokens_change_no_bit():
    x = np.random.default_rng(5).standard_normal((6, 8)).astype(np.float32)
    runs = [BranchRun(fmt, 8, 6, StateSpaceParams(state=4)) for fmt in (FMT, SMALL)]
    assert [run.plan.groups for run in runs] == [[6], [3, 3]]
    sums = [run.run(x, np.zeros(x.shape))[0].tobytes() for run in runs]
    assert sums[0] == sums[1]
    assert runs[0].get("state").tobytes() == runs[1].get("state").tobytes()


def test_other_sizes():
    """A bank that is just large enough, other numbers of taps, and a step of one word of X and W."""
    assert _error(*stream(BranchRun(FMT, 8, 3, StateSpaceParams(state=4, conv=1)), 3, 2)) < BOUND
    params = StateSpaceParams(expand=1, state=4, conv=2)
    run = BranchRun(LxeFormat(4, 24, 64, 64, 16, 1024, features="hybrid"), 12, 3, params)
    assert _error(*stream(run, 3, 3)) < BOUND


@pytest.mark.parametrize(("fmt", "width"), [(FMT, 8), (SMALL, 8), (SMALL, 24)])
def test_the_program_is_ordered_by_semaphores_alone(fmt, width):
    run = BranchRun(fmt, width, 3, StateSpaceParams(state=8))
    assert (len(run.plan.groups) > 1) == (fmt is SMALL)
    run.give(np.ones((3, width)), np.ones((3, width)))
    assert not simulate(run.plan.program(), run.registers, fmt).problems()


@pytest.mark.parametrize(("name", "most"), [("small", 300), ("omni", 300)])
def test_smollm2_fits_in_the_program_memory(name, most):
    """Width 576, 10 tokens, sizes of Mamba 1.0. The scan takes 71 words of the VPE for a column and token.

    Step sizes, gate and output take 7 more, and a column 50 whatever its tokens.
    """
    fmt = preset(name).core.lxe_format()
    shape = LayerShape(tokens=10)
    plan = BranchPlan(shape, LxeFormat(*(getattr(fmt, f) for f in SIZES), features="hybrid"), StateSpaceParams())
    assert len(plan.program()) < most
    columns = plan.inner // fmt.lanes
    work = plan._cost("scan", [0] * 16)
    assert len(plan.groups) == 1
    assert work.words == columns * (10 * (71 + 7) + 50)


def test_weights_in_bf16_lose_nothing_in_a_core():
    """The FP32 branch then computes with the same numbers, also after pickling."""
    plain, own = (HistoryBranch(StateSpaceParams(state=4, weights=w), 8, 8) for w in ("fp32", "bf16"))
    rounded = [name for name, x in vars(own).items() if isinstance(x, np.ndarray) and (x != getattr(plain, name)).any()]
    assert rounded == ["in_proj", "conv_weight", "x_proj", "dt_proj", "out_proj"]
    for name in rounded:
        assert np.array_equal(getattr(own, name), to_bf16(getattr(plain, name)).astype(np.float32))
    assert np.array_equal(pickle.loads(pickle.dumps(own)).in_proj, own.in_proj)
    plan = BranchRun(FMT, 8, 2, own.params).plan
    assert all(np.array_equal(x, plan.pack(plain)[name]) for name, x in plan.pack(own).items())


SIZES = ("lanes", "window", "w_depth", "x_depth", "depth", "i_depth", "score")


@pytest.mark.parametrize(
    ("fmt", "params", "message"),
    [
        ({"features": ""}, {}, "features='': must have hybrid"),
        ({"depth": 16}, {}, "depth=16: must be at least 33"),
        ({"w_depth": 4}, {}, "w_depth=4: must hold B and C"),
        ({"x_depth": 4}, {}, "x_depth=4: must be at least 7"),
        ({}, {"state": 6}, "state=6: must be a power of two"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fmt, params, message):
    sizes = {"lanes": 4, "w_depth": 128, "x_depth": 64, "depth": 64, "i_depth": 1024, "features": "hybrid"}
    with pytest.raises(ParamError, match=message):
        BranchPlan(LayerShape(width=8, tokens=2), LxeFormat(**sizes | fmt), StateSpaceParams(**params))


def test_the_vpe_takes_every_function_of_the_branch():
    run = BranchRun(FMT, 8, 2, StateSpaceParams(state=4))
    _, results = run.run(np.ones((2, 8)), np.zeros((2, 8)))
    posts = {i.vector.post for r in results for i in r.issues if i.op.name == "VECTOR"}
    assert {2, 3, 7} <= posts  # EXPM1, SOFTPLUS, SILU
    assert sum(r.words[Engine.VECTOR] for r in results) > 0
