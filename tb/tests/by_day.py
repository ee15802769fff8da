"""Which sizes of a unit `make test` plays: the others are left to `make nightly`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def by_day(sizes: Iterable[str], *day: str) -> list[Any]:
    """Values of a test's parameter: those of `day` by day, all of `sizes` at night.

    By day a unit has its usual size, sizes of 1, and each option; other shapes come at night.
    """
    every = list(sizes)
    assert set(day) <= set(every), set(day) - set(every)
    return [pytest.param(size, marks=() if size in day else pytest.mark.nightly) for size in every]


def at_sizes(check: Callable[..., None], sizes: Iterable[str], *day: str) -> Callable[..., None]:
    """A check of a unit as a test at these sizes: all by day, or those of `day`."""
    return pytest.mark.parametrize("size", by_day(sizes, *day) if day else list(sizes))(check)
