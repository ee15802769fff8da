"""Nearest centroids on a golden LXE: against the golden functions and brute force, with ties and masked clusters."""

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.lxe_model import simulate
from openvrex.golden.retrieval import centroids
from openvrex.hdl.params import preset
from openvrex.tb.library.centroid_runs import CentroidRun

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=128, depth=16, i_depth=128)
SIZES = [(4, 1, 1), (4, 3, 5), (8, 6, 4), (12, 4, 17), (16, 5, 28), (24, 10, 9)]  # width, tokens, clusters


@pytest.mark.parametrize(("width", "tokens", "clusters"), SIZES)
def test_directions_find_the_nearest(width, tokens, clusters):
    """Numbers and scores equal the golden functions', bit for bit."""
    run, rng = CentroidRun(FMT, width, tokens, clusters), np.random.default_rng(width + clusters)
    for _ in range(3):
        x, m = (centroids.directions(rng.normal(size=(n, width)).astype(BF16), FMT.dot) for n in (tokens, clusters))
        score = run.give(x, m)
        number, best = run.run()
        np.testing.assert_array_equal(number, score.argmax(axis=1))
        np.testing.assert_array_equal(best, score.max(axis=1))


@pytest.mark.parametrize(("width", "tokens", "clusters"), SIZES)
def test_small_integers_with_ties_agree_with_exact_distances(width, tokens, clusters):
    """Products and sums of small integers are exact: the lowest number of the smallest |x - m|^2 in integers."""
    run, rng, ties = CentroidRun(FMT, width, tokens, clusters), np.random.default_rng(clusters), 0
    for _ in range(6):
        x, m = rng.integers(-1, 2, (tokens, width)), rng.integers(-1, 2, (clusters, width))
        m[rng.integers(clusters)] = m[0]
        run.give(x.astype(BF16), m.astype(BF16))
        d = ((x[:, None] - m[None]) ** 2).sum(axis=2)
        number, _ = run.run()
        np.testing.assert_array_equal(number, d.argmin(axis=1))
        ties += int(((d == d.min(axis=1, keepdims=True)).sum(axis=1) > 1).sum())
    assert ties or clusters == 1


def test_closed_clusters_are_never_chosen():
    run, rng = CentroidRun(FMT, 8, 6, 11), np.random.default_rng(3)
    m = centroids.directions(rng.normal(size=(11, 8)).astype(BF16), FMT.dot)
    x = m[[0, 1, 2, 3, 9, 10]]
    assert run.give(x, m).argmax(axis=1).tolist() == [0, 1, 2, 3, 9, 10]
    open_ = np.arange(11) % 2 == 1
    score = run.give(x, m, open_)
    number, _ = run.run()
    assert set(number.astype(int).tolist()) <= set(np.flatnonzero(open_).tolist())
    np.testing.assert_array_equal(number, score.argmax(axis=1))


def test_a_centroid_of_zeros_and_equal_centroids_choose_the_lowest():
    run = CentroidRun(FMT, 4, 3, 9)
    run.give(np.ones((3, 4), BF16), np.zeros((9, 4), BF16))
    assert run.run()[0].tolist() == [0, 0, 0]
    m = np.full((9, 4), 0.5, BF16)
    m[0] = -m[0]
    run.give(np.ones((3, 4), BF16), m)
    assert run.run()[0].tolist() == [1, 1, 1]


def test_the_program_is_ordered_by_semaphores_alone():
    run = CentroidRun(FMT, 16, 5, 28)
    run.give(np.ones((5, 16), BF16), np.ones((28, 16), BF16))
    assert not simulate(run.program(), run.registers, FMT).problems()


@pytest.mark.parametrize(("width", "tokens", "clusters"), [(192, 32, 1984), (1024, 16, 1024)])
def test_a_frame_fits_on_the_core(width, tokens, clusters):
    """Entries of SmolLM2 and of Llama-3 8B on the paper's core."""
    p = preset("core").core.lxe_format()
    assert len(CentroidRun(p, width, tokens, clusters).program()) < 160


@pytest.mark.parametrize(
    ("width", "tokens", "clusters", "reason"),
    [
        (6, 1, 1, "width=6: must be a multiple of lanes = 4"),
        (8, 1, 29, "clusters=29: must be 1 to 28: bank C holds two rows"),
        (8, 1, 0, "clusters=0: must be 1 to 28"),
        (8, 17, 1, "tokens=17: must be at most depth = 16"),
        (36, 1, 1, "width=36: must be at most 32: half of W holds a centroid"),
        (24, 11, 1, "tokens=11: must be at most 10: half of X holds them"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(width, tokens, clusters, reason):
    with pytest.raises(ParamError, match=reason):
        CentroidRun(FMT, width, tokens, clusters)
