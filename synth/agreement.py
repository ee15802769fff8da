"""Measures how well two cell libraries agree on area and delay of the same units, apart from a common factor."""

from dataclasses import dataclass

import numpy as np

from openvrex.synth.flow import Area


@dataclass(frozen=True)
class Agreement:
    """Agreement of two libraries on the figures of `names`.

    factor : second over first library: the geometric mean of the extreme ratios, which minimises `worst`
    errors : relative error of the first library times `factor` against the second, by name
    rank : Spearman's rank correlation, 1 if both libraries order the names alike
    """

    names: tuple[str, ...]
    factor: float
    errors: tuple[float, ...]
    rank: float

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return max(map(abs, self.errors))


def agreement(one: dict[str, float], other: dict[str, float]) -> Agreement:
    """Agreement on the names that both have. Raises `ValueError` for fewer than two of them."""
    names = tuple(n for n in one if n in other)
    if len(names) < 2:
        raise ValueError(f"only {', '.join(names) or 'nothing'} is measured with both libraries: measure at least two")
    a, b = (np.array([d[n] for n in names]) for d in (one, other))
    ratio = b / a
    factor = float(np.sqrt(ratio.max() * ratio.min()))
    first, second = (np.argsort(np.argsort(x)) for x in (a, b))
    rank = float(np.corrcoef(first, second)[0, 1])
    return Agreement(names, factor, tuple((factor * a / b - 1).tolist()), rank)


def figures(areas: dict[str, Area]) -> tuple[dict[str, float], dict[str, float]]:
    """Area by name and delay by name, for units and their leaves, in the library's units."""
    every = dict(areas)
    for area in areas.values():
        every |= {leaf.name: leaf.area for leaf in area.leaves}
    delays = {n: a.timing.delay for n, a in every.items() if a.timing and a.timing.delay}
    return {n: a.total_area for n, a in every.items() if a.total_area}, delays
