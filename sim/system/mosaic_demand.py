"""What Mosaic asks of the hardware in a stream of given length, in each layer, for a mean frame and a token.

How many tokens split their cluster, and which entries lie together, depends on keys. `Habits` lays that down with the
figures of a recorded stream. The rest follows from the policy's parameters.
"""

from dataclasses import dataclass
from math import ceil

from openvrex.golden.function_params import check
from openvrex.golden.policies.mosaic import MosaicParams
from openvrex.golden.policies.mosaic_host import ALLOWED
from openvrex.sim.system.window_demand import PROMPT
from openvrex.sim.system.workload import Session


@dataclass(frozen=True)
class Habits:
    """What Mosaic does on a stream, as far as that depends on keys and queries.

    split : share of a frame's tokens that split their cluster at once
    deferred : share that wait on the device, because their cluster is at home; each leads to a split at retrieval
    members : of a cluster that is split, mean · rounds : of its K-means, mean
    together : entries that a copy brings, since they are adjacent at home and in their slots, mean
    cluster : tokens of a cluster, mean · visual : frames of a visual cluster, mean
    opened : share of the frames that open a visual cluster
    over : entries that are retrieved over the budget, since a cluster is retrieved whole
    covered : share of a layer's retrieved entries that the layer before had prefetched
    """

    split: float
    deferred: float
    members: float
    rounds: float
    together: float
    cluster: float
    visual: float
    opened: float
    over: float
    covered: float


@dataclass(frozen=True)
class MosaicDemand:
    """What a frame and a generated token ask behind `cached` tokens of a stream.

    params : of the policy · habits : what depends on data
    longest : tokens of the longest text, as a block is one pass

    Raises `ParamError` for parameters that no core runs.
    """

    params: MosaicParams
    habits: Habits
    cached: int
    frame_tokens: int = Session.frame_tokens
    longest: int = PROMPT

    def __post_init__(self) -> None:
        p = self.params
        check(p.prefetch in ALLOWED, "mosaic.prefetch", p.prefetch, f"must be one of {', '.join(ALLOWED)}")
        check(not p.alone, "mosaic.semantic_level", False, "must be on, or visual_level: a core has clusters only")

    @property
    def home(self) -> int:
        """Tokens at home: those behind prompt and local window, once there are clusters."""
        built = self.cached >= PROMPT + self.params.build * self.frame_tokens
        return max(0, self.cached - PROMPT - self.params.recent) * built

    @property
    def clusters(self) -> int:
        """Clusters of a layer."""
        return ceil(self.cached / self.habits.cluster)

    @property
    def visual(self) -> int:
        """Visual clusters."""
        return ceil(self.cached / self.frame_tokens / self.habits.visual)

    @property
    def wanted(self) -> float:
        """Entries of a layer that a pass retrieves."""
        return min(self.home, ceil(self.params.ratio * self.home) * self.habits.over)

    @property
    def prefetches(self) -> bool:
        """Whether a layer fetches for the next one."""
        return self.params.prefetch != "none"

    def fetched(self, first: bool) -> float:
        """Entries that a layer fetches on demand. `first` : nothing was prefetched for it."""
        return self.wanted * (1 - self.habits.covered * (self.prefetches and not first))

    @property
    def waiting(self) -> float:
        """Entries of a frame that wait on the device for the split of their cluster."""
        return self.habits.deferred * self.frame_tokens * (1 - self.habits.opened)

    @property
    def most(self) -> int:
        """Tokens of the largest pass."""
        return max(self.longest, self.frame_tokens)

    @property
    def tokens(self) -> int:
        """Tokens that a layer holds on the device at once: prompt, window, the pass, and entries that came or wait."""
        guests = self.fetched(not self.prefetches) + self.wanted * self.prefetches
        return min(self.cached, PROMPT + self.params.recent) + self.most + ceil(guests) + ceil(self.waiting)

    @property
    def attended(self) -> int:
        """Tokens and representatives that a row of a frame attends to."""
        left = self.clusters * (1 - self.wanted / self.home) if self.home else 0
        near = min(self.cached, PROMPT + self.params.recent) + self.frame_tokens
        return near + ceil(self.waiting) + round(self.wanted) + round(left)


# Of the clip `world` at 36 tokens a frame in the arithmetic of hardware: `mosaic-hardware` of docs/results/paper.json,
# written by `vrex papers figure`. `covered` is of `vrex papers stream` (docs/papers/comparison.md). A test holds both.
WORLD = Habits(
    split=0.0739,
    deferred=0.0341,
    members=9.86,
    rounds=2.24,
    together=3.64,
    cluster=11.57,
    visual=7.11,
    opened=0.0893,
    over=1.283,
    covered=0.2,
)
