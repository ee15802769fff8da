"""Groups for the 4-bit codec."""

from fractions import Fraction
from functools import cache

import numpy as np

# Numbers that decide the step of a group, largest and least: both signs, one, the ends of the range, far apart.
ENDS = [(0x3F80, 0xBF80), (0x4148, 0xC0A3), (0x42FF, 0x8000), (0x0000, 0xC37F), (0x7F7F, 0xFF7F), (0x0080, 0x8080)]
ENDS += [(0x4380, 0xBA01), (0x3C81, 0xC4FE), (0x0180, 0x0000)]


@cache
def value(bits: int) -> Fraction:
    """A finite BF16 number, subnormals flushed."""
    exponent, sign = bits >> 7 & 255, -1 if bits >> 15 else 1
    return sign * (128 + (bits & 127)) * Fraction(2) ** (exponent - 134) if exponent else Fraction(0)


def groups_of_every_number(group: int, ends: tuple[int, int]) -> np.ndarray:
    """Groups in which every number stands once that lies between the ends, behind these two."""
    low, high = value(ends[1]), value(ends[0])
    inside = [b for b in range(1 << 16) if b >> 7 & 255 != 255 and low <= value(b) <= high]
    inside += inside[: -len(inside) % (group - 2)]
    rows = np.array(inside, np.uint16).reshape(-1, group - 2)
    return np.concatenate([np.tile(np.array(ends, np.uint16), (len(rows), 1)), rows], axis=1)
