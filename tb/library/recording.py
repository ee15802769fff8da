"""Recorded signals of a unit: packed bits, one sample a cycle, as a recorder in the RTL wrote them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Recording:
    """Signals sampled before each rising clock edge, from the first cycle on.

    columns : name of a bit ("a.b[3]") -> column
    samples : [cycles, bytes] of packed columns, lowest bit first
    """

    columns: dict[str, int]
    samples: np.ndarray

    def words(self, names: list[str], cycles: np.ndarray) -> np.ndarray:
        """Values [names, words] of signals: a word holds 64 of the cycles, the first in its lowest bit."""
        at = np.array([self.columns[n] for n in names], int)
        bits = self.samples[np.ix_(cycles, at // 8)] >> (at % 8).astype(np.uint8) & 1
        return pack(bits.T)


def pack(bits: np.ndarray) -> np.ndarray:
    """Bits [n, cycles] as words [n, ceil(cycles / 64)]."""
    padded = np.zeros((len(bits), -(-bits.shape[1] // 64) * 64), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, 1, "little").view(np.uint64)
