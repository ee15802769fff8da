"""Predicts the cycles of the cluster set: when it takes a block's rows, and when it lists the union of clusters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from openvrex.hdl.params import WtuParams

TO_FIRST = 4  # cycles from the beat that ends a set to its first cluster
TO_EMPTY = 2  # the same for the beat of an empty set


@dataclass
class ClusterSetCycles:
    """Cycles of all beats in a run without stalls. The first beat is offered in cycle 0.

    i : parts of selected rows
    o : clusters of the unions
    """

    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)


class Listing:
    """The first cycle in which each beat of a set is offered. Whoever takes the beats says when it took the one before.

    n_w : clusters of a word
    clusters : the union, ascending
    ends : cycle of the beat that ends the set
    """

    def __init__(self, n_w: int, clusters: Sequence[int], ends: int):
        self.words = [c // n_w for c in clusters]
        self.first = ends + (TO_FIRST if clusters else TO_EMPTY)
        self._word = self.first  # cycle in which the first cluster of the current word was offered

    def offered(self, k: int, taken: int) -> int:
        """First cycle in which beat `k` is offered, if the one before it was taken in cycle `taken`."""
        distance = self.words[k] - self.words[k - 1]
        if distance:  # the unit has read one word a cycle meanwhile
            self._word = max(taken + 1, self._word + distance)
            return self._word
        return taken + 1


class ClusterSetTime:
    """Time view of `hdl.retrieval.cluster_set.ClusterSet`.

    ready : first cycle after a reset in which the unit can take a beat; the last cycle of the reset is -1
    """

    def __init__(self, p: WtuParams):
        self.p = p
        self.ready = p.words + 1 if p.protect == "none" else 0

    def run(self, sets: Iterable[tuple[int, Sequence[int]]]) -> ClusterSetCycles:
        """Cycles of `sets` of (input beats, ascending clusters of the union), with input beats offered without a gap.

        The unit is ready in cycle 0.
        """
        out = ClusterSetCycles()
        cycle = 0
        for beats, clusters in sets:
            out.i += range(cycle, cycle + beats)
            listing = Listing(self.p.n_w, clusters, out.i[-1])
            out.o.append(listing.first)
            for k in range(1, len(clusters)):
                out.o.append(listing.offered(k, out.o[-1]))
            cycle = out.o[-1] + 1
        return out
