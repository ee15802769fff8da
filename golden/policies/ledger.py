"""What a policy costs: every byte moved, every operation, and the memory held."""

from collections import Counter

DIRECTIONS = ("in", "out")  # host to device, device to host
REASONS = {
    "offload": "K and V that leave device memory for the first time",
    "fetch": "K and V that a layer found missing and waited for",
    "prefetch": "K and V fetched for a later layer, or by a prediction made before the layer",
    "refresh": "data moved to compute K and V anew",
    "index": "data that the policy keeps to choose tokens: representatives, hashes, partial keys",
}
OPERATIONS = {
    "linear": "MACs of the decoder's projections and feed-forward layers",
    "attention": "MACs of q k and p v over attended tokens, causal pairs only",
    "prediction": "MACs that choose tokens: query by representative, partial query by partial key",
    "index": "MACs and additions that keep the index: hash projections, running means, clustering distances",
    "compare": "comparisons: Hamming distances, thresholds, maxima",
    "sort": "comparisons of sorting, n log2 n of n entries",
    "elementwise": "multiplications and additions of single numbers: rotation, quantisation",
    "state": "MACs of a recurrent state: convolution, scan, its projections",
    "vision": "MACs of the vision encoder",
}


class PolicyError(ValueError):
    """A defect of a policy: it attends to a token that it does not hold, or counts something that does not exist."""


class Ledger:
    """Counts every byte moved, every operation and the memory held, from the first block on.

    moved, pieces : bytes, and contiguous transfers, by direction (`DIRECTIONS`) and reason (`REASONS`)
    done : operations by kind (`OPERATIONS`)
    held, peak : bytes in device and host memory, now and at most

    Raises `PolicyError` for an unknown name or a negative count.
    """

    def __init__(self) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self.pieces: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.held = {"device": 0, "host": 0}
        self.peak = {"device": 0, "host": 0}

    def move(self, direction: str, reason: str, size: int, pieces: int = 1) -> None:
        """Count `size` bytes that cross the link in `pieces` transfers."""
        if direction not in DIRECTIONS or reason not in REASONS or size < 0 or pieces < 0:
            raise PolicyError(
                f"move {direction!r} {reason!r} {size} in {pieces}: unknown direction or reason, or a negative count"
            )
        if size:
            self.moved[direction, reason] += int(size)
            self.pieces[direction, reason] += int(pieces)

    def work(self, kind: str, count: int) -> None:
        """Count `count` operations of a kind."""
        if kind not in OPERATIONS or count < 0:
            raise PolicyError(f"work {kind!r} {count}: unknown kind, or a negative count")
        if count:
            self.done[kind] += int(count)

    def sort(self, entries: int, times: int = 1) -> None:
        """Count `times` sorts of `entries` entries: n ceil(log2 n) comparisons each."""
        self.work("sort", times * entries * max(0, int(entries) - 1).bit_length())

    def hold(self, place: str, change: int) -> None:
        """Count `change` bytes taken in device or host memory; negative for bytes given back."""
        held = self.held[place] + int(change)
        if held < 0:
            raise PolicyError(f"{place} memory: {-change} bytes given back, but only {self.held[place]} are held")
        self.held[place] = held
        self.peak[place] = max(self.peak[place], held)

    def totals(self) -> dict[str, int]:
        """All counts by flat names such as `in.fetch`, `pieces.in.fetch`, `ops.attention`, `device`, `device.peak`."""
        out = {f"{d}.{r}": self.moved[d, r] for d in DIRECTIONS for r in REASONS if self.moved[d, r]}
        out |= {f"pieces.{d}.{r}": self.pieces[d, r] for d in DIRECTIONS for r in REASONS if self.pieces[d, r]}
        out |= {f"ops.{kind}": self.done[kind] for kind in OPERATIONS if self.done[kind]}
        out |= self.held
        return out | {f"{place}.peak": size for place, size in self.peak.items()}
