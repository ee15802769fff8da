"""Cycles of the DPE."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from hdl.params import DpeParams
from hdl.queues import RESULTS
from sim.units.queue_cycles import Always, Queue, Wait, alone

TO_ISSUE = 1  # from the acceptance of a command to its first chunk
TO_RESULT = 15  # from a row's last chunk to its result
TO_READ = 1  # from a command's last chunk to `read`


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
    """Time view of `Dpe`: a chunk every cycle, across rows and commands, while there is room for results.

    taken : cycles in which commands were taken · busy : chunks issued · waits : cycles in which one waited for room
    """

    def __init__(self, p: DpeParams):
        self.p = p
        self.taken: list[int] = []
        self.busy = self.waits = 0
        self._issued = 0  # cycle of the last chunk: the next command is taken in it

    def chunks(self, length: int) -> int:
        """Chunks of a row of `length` numbers."""
        return -(-length // self.p.n_w)

    def run(self, commands: list[dict]) -> DpeTiming:
        """Commands as beats of `hdl.execution.dpe.command_layout`."""
        results = Always()

        def all_():
            for c in commands:
                yield from self.command(c, 0, results)

        alone(commands=all_())
        return DpeTiming(np.array(self.taken), np.array(results.put, np.int64) + 2, self.busy)

    def command(self, c: dict, offered: int, results: Queue | Always) -> Generator[Wait, None, int]:
        """Take the next command, which is offered from a cycle on; the cycle of its last chunk.

        results : of depth `RESULTS`; two cycles from there to the taker
        """
        cycle = max(offered, self._issued)
        self.taken.append(cycle)
        cycle += TO_ISSUE - 1
        # A result for each row and tile.
        rows, chunks = (c["rows"] + 1) * (c.get("tiles", 0) + 1), c["chunks"] + 1
        self.busy += rows * chunks
        if not c["end"]:
            cycle += rows * chunks
        else:
            gone, n = results.taken, len(results.put) - RESULTS
            bounded = isinstance(results, Queue)
            for _ in range(rows):
                cycle += chunks
                if bounded and n >= 0:
                    if len(gone) <= n:
                        yield gone, n
                    if gone[n] >= cycle:
                        self.waits += gone[n] + 1 - cycle
                        cycle = gone[n] + 1
                n += 1
                results.push(cycle + TO_RESULT - 2)
        self._issued = cycle
        return cycle
