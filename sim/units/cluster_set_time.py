"""Predicts the cycles of the cluster set: when it takes a block's rows, and when it lists the union of clusters."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class ClusterSetCycles:
    """Cycles of all beats in a run without stalls. The first beat is offered in cycle 0.

    i : parts of selected rows
    o : clusters of the unions
    """

    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)


class ClusterSetTime:
    """Time view of `hdl.retrieval.cluster_set.ClusterSet`. Its cycles do not depend on the parameters."""

    def run(self, sets: Iterable[tuple[int, int]]) -> ClusterSetCycles:
        """Cycles of `sets` of (input beats, clusters in the union), with input beats offered without a gap."""
        out = ClusterSetCycles()
        cycle, listed = 0, -2  # listed: cycle of the last beat on `o` of the set before
        for beats, clusters in sets:
            out.i += range(cycle, cycle + beats)
            swap = max(cycle + beats, listed + 1)  # the bank that was filled is listed from now on
            first = swap + (3 if clusters else 1)
            out.o += range(first, first + max(1, clusters))
            listed, cycle = out.o[-1], swap + 1
        return out
