"""How far two libraries agree on area and delay of the same units, once their units of measure are taken out."""

from dataclasses import dataclass

import numpy as np

from synth.flow import Area


@dataclass(frozen=True)
class Agreement:
    """Figures of `names` by two libraries.

    factor : of one to the other, the middle of the extreme ratios (geometric), which makes `worst` least
    errors : what the first, times the factor, is above the second · worst : the largest of them
    rank : Spearman's correlation of the orders, 1 where they are the same
    """

    names: tuple[str, ...]
    factor: float
    errors: tuple[float, ...]
    rank: float

    @property
    def worst(self) -> float:
        """The largest error either way."""
        return max(map(abs, self.errors))


def agreement(one: dict[str, float], other: dict[str, float]) -> Agreement:
    """Agreement on what both know. Raises: `ValueError` for fewer than two names."""
    names = tuple(n for n in one if n in other)
    if len(names) < 2:
        raise ValueError(f"only {', '.join(names) or 'nothing'} is measured with both libraries; two are the least")
    a, b = (np.array([d[n] for n in names]) for d in (one, other))
    ratio = b / a
    factor = float(np.sqrt(ratio.max() * ratio.min()))
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    rank = float(np.corrcoef(*ranks)[0, 1])
    return Agreement(names, factor, tuple((factor * a / b - 1).tolist()), rank)


def figures(areas: dict[str, Area]) -> tuple[dict[str, float], dict[str, float]]:
    """Area and delay, in the library's units, of units and of their leaves."""
    every = dict(areas)
    for area in areas.values():
        every |= {leaf.name: leaf.area for leaf in area.leaves}
    delays = {n: a.timing.delay for n, a in every.items() if a.timing and a.timing.delay}
    return {n: a.total_area for n, a in every.items() if a.total_area}, delays
