"""Searches spaces that are too large for a grid, for several objectives at once, with Optuna."""

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

from openvrex.golden.function_params import check
from openvrex.synth.sweep.database import Row
from openvrex.synth.sweep.point_costs import OBJECTIVES
from openvrex.synth.sweep.points import MOST, Axis, Point, at, size

BATCH = 8  # points proposed at once; it does not depend on the workers, so the search is the same on any machine
REPEATS = 20  # proposals of known or infeasible points before one is drawn at random


class SearchError(ValueError):
    """A search that cannot run. The message says why and the fix, in one line."""


def search(
    axes: tuple[Axis, ...],
    objectives: tuple[str, ...],
    budget: int,
    seed: int,
    evaluate: Callable[[list[Point]], list[Row]],
    feasible: Callable[[Point], bool] = lambda point: True,
) -> tuple[list[Point], list[Row]]:
    """Evaluates the points that a multi-objective tree-structured Parzen estimator proposes; returns points and rows.

    budget : number of points to evaluate; fewer if the grid has no more
    evaluate : rows of some points
    feasible : points for which this is false are dropped when they are proposed

    The same seed proposes the same points. An interrupted search therefore resumes when it is run again, because
    `evaluate` knows the results so far.
    Raises: `SearchError` without Optuna, `ParamError` for a budget below 1 or above the whole grid.
    """
    try:
        import optuna
    except ImportError:
        raise SearchError("--search needs Optuna: pip install 'openvrex[search]'") from None
    check(1 <= budget <= size(axes, False), "--search", budget, f"must be 1 to {size(axes, False)}, the whole grid")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(BATCH, budget // 4), multivariate=True)
    directions: list[Literal["minimize", "maximize"]] = [
        "maximize" if OBJECTIVES[o].most else "minimize" for o in objectives
    ]
    study = optuna.create_study(directions=directions, sampler=sampler)
    others = _shuffled(axes, seed)  # points in random order, for when the sampler finds no new one
    points: list[Point] = []
    rows: list[Row] = []
    seen: dict[tuple, Row | None] = {}  # row by values, None for points that are infeasible or not evaluated yet
    left = True
    while left and len(points) < budget:
        batch: dict[tuple, Any] = {}  # trial by values
        tries = 0
        while len(batch) < min(BATCH, budget - len(points)):
            if tries >= REPEATS:
                point = next((p for p in others if tuple(p.values()) not in seen and feasible(p)), None)
                if left := point is not None:
                    study.enqueue_trial({a.name: _index(a, point[a.name]) for a in axes})
                else:
                    break
            trial = study.ask()
            values = tuple(_suggest(trial, a) for a in axes)
            tries += 1
            if known := seen.get(values):
                _tell(study, trial, known, objectives)
            elif values in seen or not feasible(dict(zip((a.name for a in axes), values, strict=True))):
                seen[values] = None
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                batch[values], seen[values] = trial, None
                tries = 0
        new = [dict(zip((a.name for a in axes), values, strict=True)) for values in batch]
        for values, point, row in zip(batch, new, evaluate(new), strict=True):
            _tell(study, batch[values], row, objectives)
            seen[values] = row
            points.append(point)
            rows.append(row)
    return points, rows


def _shuffled(axes: tuple[Axis, ...], seed: int) -> Iterator[Point]:
    """The points of a grid in random order, at most `MOST` of them."""
    n = size(axes, False)
    yield from (at(axes, i) for i in random.Random(seed).sample(range(n), min(n, MOST)))


def _suggest(trial: Any, axis: Axis) -> str:
    """The trial's value of an axis. The sampler learns that numbers have an order."""
    if axis.ordered:
        return axis.values[trial.suggest_int(axis.name, 0, len(axis.values) - 1)]
    return trial.suggest_categorical(axis.name, axis.values)


def _index(axis: Axis, value: str) -> int | str:
    """A value as `_suggest` makes the sampler know it."""
    return axis.values.index(value) if axis.ordered else value


def _tell(study: Any, trial: Any, row: Row, objectives: tuple[str, ...]) -> None:
    """Tells the sampler the result of a trial."""
    from optuna.trial import TrialState

    if row.error:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, [row.result[o] for o in objectives])
