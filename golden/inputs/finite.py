"""Refuses numbers that are not finite where a file is read: one NaN makes every later score and error meaningless."""

import numpy as np


def first_not_finite(x: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first number of an array that is NaN or infinite; None if all are finite."""
    finite = np.isfinite(x)
    return None if finite.all() else tuple(map(int, np.argwhere(~finite)[0]))


def check_weights(file: str, name: str, x: np.ndarray) -> np.ndarray:
    """The weights `x`, called `name` in a file. Raises `ValueError` for one that is not finite."""
    at = first_not_finite(x)
    if at is not None:
        raise ValueError(f"{file}: {name}{list(at)}={x[at]}: must be finite: get the file anew")
    return x
