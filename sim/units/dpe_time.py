"""Predicts when the DPE takes each command, and when each result leaves it."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from openvrex.hdl.params import DpeParams
from openvrex.hdl.queues import RESULTS
from openvrex.sim.units.queue_cycles import Always, Queue, Wait, Waits, alone

# In cycles:
TO_ISSUE = 1  # from the acceptance of a command to its first chunk
TO_RESULT = 15  # from a row's last chunk to its result
TO_READ = 1  # from a command's last chunk to `read`


@dataclass(frozen=True)
class DpeTiming:
    """A run at full rate: commands are always pending, and results are always taken.

    Cycles count from the acceptance of the first command.

    taken : cycle in which the DPE accepts each command, [commands]
    results : cycle of each result's transfer, [results]
    busy : chunks issued, which is the number of cycles in which the trees multiply
    """

    taken: np.ndarray
    results: np.ndarray
    busy: int

    @property
    def utilisation(self) -> float:
        """Share of cycles in which the trees multiply, from the first command's acceptance to the last result."""
        return self.busy / int(self.results[-1])


class DpeTime:
    """Time view of `hdl.execution.dpe.Dpe`: it issues a chunk every cycle while its results have room.

    There is no gap between rows, nor between commands.

    taken : cycle in which each command was taken
    busy : chunks issued
    waits : cycles in which a chunk waited for room for its result
    """

    def __init__(self, p: DpeParams):
        self.p = p
        self.taken: list[int] = []
        self.busy = self.waits = 0
        self._issued = 0  # cycle of the last chunk: the next command is taken in it

    def chunks(self, length: int) -> int:
        """Chunks of n_w numbers that a row of `length` numbers takes."""
        return -(-length // self.p.n_w)

    def run(self, commands: list[dict]) -> DpeTiming:
        """Timing of `commands`, given as beats of `hdl.execution.dpe.command_layout`."""
        results = Always()

        def all_() -> Waits:
            for c in commands:
                yield from self.command(c, 0, results)

        alone(commands=all_())
        return DpeTiming(np.array(self.taken), np.array(results.put, np.int64) + 2, self.busy)

    def command(self, c: dict, offered: int, results: Queue | Always) -> Generator[Wait, None, int]:
        """Executes the next command and returns the cycle of its last chunk.

        offered : first cycle in which the command is offered
        results : queue of depth `RESULTS`; a result needs two cycles from there to its taker
        """
        cycle = max(offered, self._issued)
        self.taken.append(cycle)
        cycle += TO_ISSUE - 1
        # The DPE gives one result for each row and tile.
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
