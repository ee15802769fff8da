"""What the policies that run on a core have in common: what each demands of a platform, and its passes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from openvrex.golden.inputs.codec import Coded
from openvrex.golden.policies.registry import Entry
from openvrex.hdl.params import CLOCK
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import Selection


@dataclass(frozen=True)
class Given:
    """What a simulation lays down for the policies that need it.

    shares : that ReSV fetches
    coded : types and motion of the video's frames, which come again and again
    at_once : most tokens of a window's pass
    """

    shares: Selection
    coded: Sequence[Coded | None] = (None,)
    at_once: int = 16


class CorePass(ABC):
    """Frames and tokens under a policy on a platform, behind the cached tokens of `point`.

    own_share : why shares of a selection have no effect, or empty
    rows : tokens that a frame computes, mean · most : that a row of it attends to, as far as known before the pass
    home : bytes of keys and values behind the link
    note : what the policy holds or chooses
    mark : behind a time that is not that of the policy's own function (`passes.mark`)

    Raises `ParamError` where the hardware has no program for it.
    """

    own_share = mark = ""
    rows: float
    most = 0
    home = 0.0
    note: str

    def __init__(self, v: Vrex, point: Point):
        self.v, self.point = v, point

    @classmethod
    @abstractmethod
    def of(cls, v: Vrex, entry: Entry, point: Point, given: Given) -> Self:
        """The passes of a policy with its parameters."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of device memory beside the weights."""

    @property
    def arrays(self) -> Mapping[str, int]:
        """Bytes of device memory by the kind of array, with both models' weights."""
        return {"weights": self.point.device_bytes, "others": self.held_bytes}

    def attended(self, frame: Pass) -> int:
        """Tokens that a row of a frame attends to, at most."""
        return self.most

    @abstractmethod
    def frame(self) -> Pass:
        """The mean frame."""

    @abstractmethod
    def token(self) -> Pass:
        """A generated token."""

    @abstractmethod
    def layer(self) -> tuple[int, Mapping[str, Mapping[str, float]]]:
        """A layer of a mean frame on core 0: entries, and `share_cycles.COUNTS` of each stage.

        entries : chosen ones of each table; of a policy with a window, slots of its pool and entries behind it
        """

    @property
    def remarks(self) -> list[str]:
        """Where the hardware does not do what the times are of."""
        return []

    def took(self, counts: Mapping[str, float]) -> float:
        """Seconds of stages that take `cycles` on the core and move `bytes` over the device memory."""
        return max(counts["cycles"] / CLOCK, counts["bytes"] / self.v.bandwidth)

    def slowest(self, frame: Pass) -> float:
        """Seconds of the slowest frame. `frame` : the mean one"""
        return frame.seconds

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory, with both models' weights."""
        return self.point.device_bytes + self.held_bytes

    @property
    def lacks(self) -> str:
        """The memory that is too small, as in "41 of 32 GiB of device memory"; empty if everything fits."""
        need, there = (n / 2**30 for n in (self.device_bytes, self.v.capacity))
        return f"{need:,.0f} of {there:,.0f} GiB of device memory" * (need > there)
