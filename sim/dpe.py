"""Cycles of the DPE."""

from dataclasses import dataclass

import numpy as np

from hdl.params import DpeParams

TO_ISSUE = 1  # from the acceptance of a command to its first chunk
TO_RESULT = 15  # from a row's last chunk to its result


@dataclass(frozen=True)
class DpeTiming:
    """Commands that wait in front of a DPE whose results are always taken, cycles from the first one's acceptance.

    taken : [commands] : acceptance of each command · results : [results] : the transfer of each · busy : chunks issued
    """

    taken: np.ndarray
    results: np.ndarray
    busy: int

    @property
    def utilisation(self) -> float:
        """Share of the cycles from the first command's acceptance to the last result in which the trees multiply."""
        return self.busy / int(self.results[-1])


class DpeTime:
    """Time view of `hdl.dpe.Dpe`: a chunk every cycle, across rows and commands."""

    def __init__(self, p: DpeParams):
        self.p = p

    def chunks(self, length: int) -> int:
        """Chunks of a row of `length` numbers."""
        return -(-length // self.p.n_w)

    def run(self, commands: list[dict]) -> DpeTiming:
        """Commands as beats of `hdl.dpe.command_layout`."""
        # A result for each row and tile.
        rows = np.array([(c["rows"] + 1) * (c.get("tiles", 0) + 1) for c in commands], np.int64)
        chunks = np.array([c["chunks"] + 1 for c in commands], np.int64)
        ends = (rows * chunks).cumsum()  # the cycle of each command's last chunk: the next is taken in it
        taken = np.concatenate([[0], ends[:-1]])
        results = [
            taken[i] + TO_ISSUE - 1 + chunks[i] * np.arange(1, rows[i] + 1) + TO_RESULT
            for i, c in enumerate(commands)
            if c["end"]
        ]
        return DpeTiming(taken, np.concatenate(results) if results else np.zeros(0, np.int64), int(ends[-1]))
