"""Cycles of the cluster set."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class ClusterSetCycles:
    """An unstalled run: the cycle of each beat on `i` and `o`, the first being offered in cycle 0."""

    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)


class ClusterSetTime:
    """Time view of `hdl.retrieval.cluster_set.ClusterSet`: the same for all parameters."""

    def run(self, sets: Iterable[tuple[int, int]]) -> ClusterSetCycles:
        """Cycles of sets of (beats, clusters in the union), beats offered without a gap."""
        out = ClusterSetCycles()
        cycle, listed = 0, -2  # listed: last beat of the set before on `o`
        for beats, clusters in sets:
            out.i += range(cycle, cycle + beats)
            swap = max(cycle + beats, listed + 1)  # the banks change places
            first = swap + (3 if clusters else 1)
            out.o += range(first, first + max(1, clusters))
            listed, cycle = out.o[-1], swap + 1
        return out
