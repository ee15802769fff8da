"""Multi-objective search (Optuna) in spaces too large for a grid."""

import random
import warnings
from collections.abc import Callable, Iterator

from golden.function_params import check
from synth.sweep.database import Row
from synth.sweep.point_costs import OBJECTIVES
from synth.sweep.points import MOST, Axis, Point, at, size

BATCH = 8  # points proposed at once, whatever the number of workers: the search is the same on any
REPEATS = 20  # proposals of points already seen, or not feasible, before one is drawn at random


class SearchError(ValueError):
    """A search that cannot be run; one line that says why and the fix."""


def search(
    axes: tuple[Axis, ...],
    objectives: tuple[str, ...],
    budget: int,
    seed: int,
    evaluate: Callable[[list[Point]], list[Row]],
    feasible: Callable[[Point], bool] = lambda point: True,
) -> tuple[list[Point], list[Row]]:
    """The `budget` points that a multi-objective tree-structured Parzen estimator proposes, and their rows.

    Points that are not `feasible` are dropped as soon as they are proposed; there are fewer points than the budget
    where the grid has no more. The same seed proposes the same points, so a search that was interrupted goes on when
    it is run again: `evaluate` knows the results it had.
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
    directions = ["maximize" if OBJECTIVES[o].most else "minimize" for o in objectives]
    study = optuna.create_study(directions=directions, sampler=sampler)
    others = _shuffled(axes, seed)  # in whose order points come that the sampler does not find
    points: list[Point] = []
    rows: list[Row] = []
    seen: dict[tuple, Row | None] = {}  # values -> row, none for a point that is not feasible or not evaluated yet
    left = True
    while left and len(points) < budget:
        batch: dict[tuple, object] = {}  # values -> trial
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
            if seen.get(values):
                _tell(study, trial, seen[values], objectives)
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
    """The points of a grid in random order; of a huge one, some of them."""
    n = size(axes, False)
    yield from (at(axes, i) for i in random.Random(seed).sample(range(n), min(n, MOST)))


def _suggest(trial, axis: Axis) -> str:
    """A value of an axis; numbers have an order, which the sampler is told."""
    if axis.ordered:
        return axis.values[trial.suggest_int(axis.name, 0, len(axis.values) - 1)]
    return trial.suggest_categorical(axis.name, axis.values)


def _index(axis: Axis, value: str) -> int | str:
    return axis.values.index(value) if axis.ordered else value


def _tell(study, trial, row: Row, objectives: tuple[str, ...]) -> None:
    from optuna.trial import TrialState

    if row.error:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, [row.result[o] for o in objectives])
